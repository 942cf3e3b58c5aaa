# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Rows in every element type their op takes, and functions to run them: the op, its gradient."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np

from ..dialect import reference, transform
from ..dialect.base import OPS
from ..dialect.elementwise import Elementwise
from ..dialect.graph import trace
from ..dialect.types import DTYPES, FLOATS, TensorSpec, bool_, is_float
from ..errors import GradoptError
from ..lowering import pipeline
from .case import Case

SMALLEST = {"float64": 1e-14, "float32": 1e-6, "float16": 1e-3, "bfloat16": 1e-3}
"""Errors of numbers below these count as if the number were this large."""


def in_dtype(case: Case, dtype: np.dtype) -> Case | None:
    """The row with inputs of another element type, None where its op does not take that.

    Floats of a row take the type; integers do only where the row has no floats. Numbers are spread
    before they become whole, magnitudes where unsigned.
    """
    main = "f" if any(x.dtype.kind == "f" for x in case.inputs) else case.inputs and "iu"
    if main == "iu" and not is_whole(dtype) and dtype != bool_:
        return None
    inputs = [_as(x, dtype) if x.dtype.kind in (main or "") else x for x in case.inputs]
    attributes = dict(case.attributes)
    for name, value in case.attributes.items():
        if isinstance(value, np.ndarray):
            attributes[name] = _as(value, dtype)
        elif isinstance(value, float) and not is_float(dtype):
            attributes[name] = float(round(value))
    changed = dataclasses.replace(case, inputs=inputs, attributes=attributes)
    specs = [TensorSpec(x.shape, x.dtype) for x in inputs]
    op = OPS[case.op]
    try:  # not `build`, which converts what the op itself does not take
        op.infer(*specs, **op.with_defaults(attributes))
    except GradoptError:
        return None
    return changed


def is_whole(dtype: np.dtype) -> bool:
    return dtype.kind in "iu"


def _as(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if is_float(dtype) or x.dtype.kind != "f":
        return x.astype(dtype)
    if dtype == bool_:
        return x > 0
    whole = np.trunc(np.nan_to_num(x, posinf=9, neginf=-9) * 4)
    return (np.abs(whole) if dtype.kind == "u" else whole).astype(dtype)


def variants(case: Case, dtypes: tuple[np.dtype, ...] = DTYPES) -> Iterator[tuple[str, Case]]:
    """The row in each of `dtypes` that its op takes, with the type's name; once, as "fixed", where
    no input has a type to choose.
    """
    if not any(x.dtype.kind in "fiu" for x in case.inputs) and not any(
        isinstance(v, np.ndarray) for v in case.attributes.values()
    ):
        yield "fixed", case
        return
    for dtype in dtypes:
        if (changed := in_dtype(case, dtype)) is not None:
            yield dtype.name, changed


def gradient_of(case: Case) -> Callable[..., Any]:
    """(inputs, cotangents of the floating-point results) -> gradients, in gradopt."""
    wrt = case.differentiable()

    def run(*arguments: Any) -> Any:
        inputs, cts = arguments[: len(case.inputs)], list(arguments[len(case.inputs) :])

        def varied(*values: Any) -> Any:
            every = list(inputs)
            for i, v in zip(wrt, values, strict=True):
                every[i] = v
            found = case.build(*every)
            results = found if isinstance(found, tuple | list) else (found,)
            return tuple(r for r in results if is_float(r.dtype))

        return transform.vjp(varied, *(inputs[i] for i in wrt))[1](tuple(cts))

    return run


def run_reference(fn: Callable[..., Any], *arrays: np.ndarray) -> list[np.ndarray]:
    """The results of a Python function, traced and differentiated, on NumPy arrays."""
    graph = trace(fn, *(TensorSpec(x.shape, x.dtype) for x in arrays))
    pipeline.run(graph.module, pipeline.STAGES["differentiated"])
    return list(reference.run(graph.module, graph.name, *arrays))


@dataclasses.dataclass
class Row:
    """Something to run on a target: the op on the inputs of a row, or its gradient."""

    case: Case
    dtype: str
    what: str  # "value" or "gradient"

    @property
    def name(self) -> str:
        return f"{self.case.name}_{self.dtype}{'_vjp' if self.what == 'gradient' else ''}"

    @property
    def ulp(self) -> float:
        """How many units in the last place a target may be off."""
        return self.case.ulp if self.what == "value" else self.case.ulp * 8

    @property
    def fn(self) -> Callable[..., Any]:
        return self.case.build if self.what == "value" else gradient_of(self.case)

    @functools.cached_property
    def arrays(self) -> list[np.ndarray]:
        """The arguments: the row's inputs, and cotangents for a gradient."""
        if self.what == "value":
            return self.case.inputs
        rng = np.random.default_rng(2)
        values = run_reference(self.case.build, *self.case.inputs)
        cts = [rng.uniform(0.5, 1.5, v.shape).astype(v.dtype) for v in values if is_float(v.dtype)]
        return [*self.case.inputs, *cts]

    @functools.cached_property
    def want(self) -> list[np.ndarray]:
        """What the reference gives."""
        return run_reference(self.fn, *self.arrays)

    def error(self, got: list[np.ndarray], want: list[np.ndarray] | None = None) -> float:
        """The largest difference from the reference, or from `want`, in units in the last place."""
        whole = not issubclass(OPS[self.case.op], Elementwise)
        pairs = zip(got, self.want if want is None else want, strict=True)
        return max((ulps(g, w, whole) for g, w in pairs), default=0.0)


def rows(case: Case, dtypes: tuple[np.dtype, ...] = DTYPES, gradients: bool = True) -> list[Row]:
    """The op in each of `dtypes` that it takes, and its gradient in those that are floats."""
    found = []
    floats = ("fixed", *(d.name for d in FLOATS))
    for dtype, changed in variants(case, dtypes):
        found.append(Row(changed, dtype, "value"))
        if gradients and dtype in floats and changed.differentiable():
            found.append(Row(changed, dtype, "gradient"))
    return found


def ulps(got: np.ndarray, want: np.ndarray, whole: bool = False) -> float:
    """The largest difference in units in the last place: of each element, or of the largest one.

    Elements of sums are compared with `whole`, since terms that cancel leave an error of the size
    of the terms. Infinite for another shape or type, and for integers that differ.
    """
    if (got.shape, got.dtype) != (want.shape, want.dtype):
        return np.inf
    if not is_float(want.dtype):
        return 0.0 if np.array_equal(got, want) else np.inf
    left, right = got.astype(np.float64), want.astype(np.float64)
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    finite = np.where(np.isfinite(right), np.abs(right), 0)
    size = np.max(finite, initial=0) if whole else finite
    unit = np.maximum(size, SMALLEST[want.dtype.name]) * float(ml_dtypes.finfo(want.dtype).eps)
    with np.errstate(invalid="ignore"):
        gap = np.where(same, 0, np.abs(left - right) / unit)
    return float(np.max(np.where(np.isnan(gap), np.inf, gap), initial=0))
