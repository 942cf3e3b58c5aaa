# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Every op and its gradient, compiled by IREE for the CPU, against the reference in float32."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gradopt.dialect.base import OPS
from gradopt.dialect.elementwise import Elementwise
from gradopt.dialect.types import TensorSpec
from gradopt.op_cases import CASES

from .helpers import compile_many, linalg_function, run_reference, ulps
from .test_ops import pulled

pytestmark = pytest.mark.compiler
rng = np.random.default_rng(2)


def narrowed(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32) if x.dtype == np.float64 else x


@dataclasses.dataclass
class Row:
    """A function to compile: the op, or its gradient."""

    name: str
    fn: Callable[..., Any]
    arrays: list[np.ndarray]
    ulp: float
    want: list[np.ndarray]
    sums: bool


def rows() -> list[Row]:
    found = []
    for case in CASES:
        attributes = {
            k: narrowed(v) if isinstance(v, np.ndarray) else v for k, v in case.attributes.items()
        }
        case = dataclasses.replace(
            case, inputs=[narrowed(x) for x in case.inputs], attributes=attributes
        )
        sums = not issubclass(OPS[case.op], Elementwise)
        found.append(_row(case.name, case.build, case.inputs, case.ulp, sums))
        if case.differentiable():
            cts = [rng.uniform(0.5, 1.5, v.shape).astype(v.dtype) for v in found[-1].want]
            found.append(
                _row(f"{case.name}_vjp", pulled(case), [*case.inputs, *cts], case.ulp * 8, sums)
            )
    return found


def _row(
    name: str, fn: Callable[..., Any], arrays: list[np.ndarray], ulp: float, sums: bool
) -> Row:
    return Row(name, fn, arrays, ulp, run_reference(fn, *arrays), sums)


ROWS = rows()


@pytest.fixture(scope="module")
def compiled() -> dict[str, Callable[..., Any]]:
    return compile_many({r.name: linalg_function(r.fn, r.name, *r.arrays) for r in ROWS})


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r.name)
def test_iree_agrees_with_reference(row: Row, compiled: dict[str, Callable[..., Any]]) -> None:
    specs = [TensorSpec(w.shape, w.dtype) for w in row.want]
    got = compiled[row.name](specs, *row.arrays)
    worst = max((ulps(g, w, row.sums) for g, w in zip(got, row.want, strict=True)), default=0.0)
    assert worst <= row.ulp, f"{worst:.1f} ulp"
