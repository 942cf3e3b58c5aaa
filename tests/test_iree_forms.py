# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Each form compiled once by IREE, against the reference."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gradopt.dialect.types import TensorSpec
from gradopt.lowering import pipeline

from .form_cases import FORM_CASES, FormCase
from .helpers import CPU, compile_many, linalg_function, run_reference

pytestmark = pytest.mark.compiler
LIKE_SUM = ("mean", "var", "max", "norm", "logsumexp")  # which have its forms
FIRST = {
    (case.op, form): (case, form)
    for case in reversed(FORM_CASES)
    for form in case.forms
    if case.op not in LIKE_SUM
}
ROWS = {f"{case}, {form}": (case, form) for case, form in FIRST.values()}
NAMES = {row: f"f{i}" for i, row in enumerate(ROWS)}


def text_of(case: FormCase, form: str, name: str) -> str:
    stages = pipeline.stages(dataclasses.replace(CPU, forms=f"{case.op}={form}"))
    passes = ",".join(filter(None, stages.values()))
    return linalg_function(case.fn, name, *case.arrays, passes=passes)


@pytest.fixture(scope="module")
def functions() -> dict[str, Callable[..., Any]]:
    return compile_many({NAMES[row]: text_of(*ROWS[row], NAMES[row]) for row in ROWS})


@pytest.mark.parametrize("row", ROWS)
def test_form(row: str, functions: dict[str, Callable[..., Any]]) -> None:
    case = ROWS[row][0]
    want = run_reference(case.fn, *case.arrays)
    got = functions[NAMES[row]]([TensorSpec(w.shape, w.dtype) for w in want], *case.arrays)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-4)
