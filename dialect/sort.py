# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Order along an axis: sorting, the largest few, and what is computed from sorted values.

NaN counts as larger than every number: it is last in ascending order, first in descending. Equal
elements, among them 0 and -0, and all NaN, keep their order in both.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import OpError
from . import builder as builders
from .base import Bool, Int, Op, Operand, Result
from .creation import zeros_like
from .elementwise import ANY, as_tensor, mul_no_nan, promote_together
from .gather import put_along_axis
from .indexing import take
from .logic import select
from .reduction import as_float
from .scan import check_axis
from .shape import moveaxis, normalize_axes
from .slicing import slice_axis
from .types import TensorSpec, int32, is_float


class SortOp(Op, name="sort"):
    """Elements along an axis in ascending (or descending) order, and the positions (int32) that
    they come from: y_i = x[indices_i]. Stable; NaN counts as the largest.

    Example: `%y, %i = "gradopt.sort"(%x) {axis = 1 : i64} : (tensor<2x3xf32>) -> (tensor<2x3xf32>,
    tensor<2x3xi32>)`
    """

    x: Operand
    axis: Int
    descending: Bool = False
    y: Result
    indices: Result

    @classmethod
    def infer(cls, x: TensorSpec, axis: int, descending: bool) -> tuple[TensorSpec, TensorSpec]:
        check_axis(cls, x, axis)
        if x.shape[axis] is None:
            raise cls.error(f"a known extent of axis {axis}", x, "declare the extent")
        return x, x.with_dtype(int32)

    @staticmethod
    def reference(x: np.ndarray, axis: int, descending: bool) -> tuple[np.ndarray, np.ndarray]:
        if descending:  # the last of the reversed is the first
            turned = np.flip(x, axis)
            order = x.shape[axis] - 1 - np.flip(np.argsort(turned, axis, kind="stable"), axis)
        else:
            order = np.argsort(x, axis, kind="stable")
        return np.take_along_axis(x, order, axis), order

    def vjp(self, ct: Any, ct_indices: Any) -> list[Any]:
        """dx = ct, each element put back where its value came from"""
        if ct is None:
            return [None]
        return [put_along_axis(zeros_like(self.x), self.indices, ct, self.axis, mode="add")]


class TopKOp(Op, name="top_k"):
    """The k largest (or smallest) elements along an axis, in that order, and the positions (int32)
    that they come from; the first of equal ones first. NaN counts as the largest.

    Example: `%y, %i = "gradopt.top_k"(%x) {k = 2 : i64, axis = 1 : i64} : (tensor<2x5xf32>) ->
    (tensor<2x2xf32>, tensor<2x2xi32>)`
    """

    x: Operand
    k: Int
    axis: Int
    largest: Bool = True
    y: Result
    indices: Result

    @classmethod
    def infer(
        cls, x: TensorSpec, k: int, axis: int, largest: bool
    ) -> tuple[TensorSpec, TensorSpec]:
        check_axis(cls, x, axis)
        n = x.shape[axis]
        if n is None:
            raise cls.error(f"a known extent of axis {axis}", x, "declare the extent")
        if not 0 <= k <= n:
            raise cls.error(f"k in [0, {n}], the extent of axis {axis}", k)
        y = x.with_shape((*x.shape[:axis], k, *x.shape[axis + 1 :]))
        return y, y.with_dtype(int32)

    @staticmethod
    def reference(x: np.ndarray, k: int, axis: int, largest: bool) -> tuple[np.ndarray, np.ndarray]:
        y, order = SortOp.reference(x, axis, descending=largest)
        first = (slice(None),) * axis + (slice(0, k),)
        return y[first], order[first]

    @staticmethod
    def decompose(x: Any, k: int, axis: int, largest: bool) -> Any:
        """The first k in descending (or ascending) order"""
        y, indices = SortOp.emit(x, axis=axis, descending=largest)
        return slice_axis(y, axis, 0, k), slice_axis(indices, axis, 0, k)

    def vjp(self, ct: Any, ct_indices: Any) -> list[Any]:
        """dx = ct, each element put back where its value came from; 0 elsewhere"""
        if ct is None:
            return [None]
        return [put_along_axis(zeros_like(self.x), self.indices, ct, self.axis, mode="add")]


# --- functions ------------------------------------------------------------------------------------


def _sorted(x: Any, axis: int | None, descending: bool) -> tuple[Any, Any]:
    x = as_tensor(x)
    if axis is None:
        return SortOp.emit(x.reshape(-1), axis=0, descending=descending)
    (axis,) = normalize_axes(SortOp, axis, x.ndim)
    return SortOp.emit(x, axis=axis, descending=descending)


def sort(x: Any, axis: int | None = -1, descending: bool = False, *, stable: bool = True) -> Any:
    """`x` in ascending order along `axis` (None: flattened); NaN counts as the largest. Equal
    elements always keep their order, `stable` or not.
    """
    return _sorted(x, axis, descending)[0]


def argsort(x: Any, axis: int | None = -1, descending: bool = False, *, stable: bool = True) -> Any:
    """Positions (int32) that put `x` in ascending order along `axis` (None: flattened); equal
    elements keep their order, in descending order too, `stable` or not.
    """
    return _sorted(x, axis, descending)[1]


def top_k(x: Any, k: int, axis: int = -1, largest: bool = True) -> tuple[Any, Any]:
    """The `k` largest (or smallest) elements along `axis`, and their positions (int32)."""
    x = as_tensor(x)
    (axis,) = normalize_axes(TopKOp, axis, x.ndim)
    return TopKOp.emit(x, k=k, axis=axis, largest=largest)


def median(x: Any, axis: int | None = None, keepdims: bool = False) -> Any:
    """The middle element along `axis` (None: of all), the mean of the middle two where their
    number is even; NaN where any element is.
    """
    return quantile(x, 0.5, axis, keepdims)


def quantile(
    x: Any, q: float | Sequence[float], axis: int | None = None, keepdims: bool = False
) -> Any:
    """The value below which a share `q` in [0, 1] of the elements along `axis` (None: of all) is,
    linear between elements as NumPy's default; NaN where any element is. Several `q` give a first
    axis.
    """
    x = as_float(x)
    shares = np.asarray(q, np.float64)
    if shares.ndim > 1 or not np.all((shares >= 0) & (shares <= 1)):
        raise OpError(f"quantile expected one or a row of numbers in [0, 1], got {q}")
    kept = tuple(range(x.ndim))
    if axis is None:
        x, axis = x.reshape(-1), 0
    else:
        (axis,) = kept = normalize_axes(SortOp, axis, x.ndim)
    n = x.shape[axis]
    if not n:
        raise OpError(f"quantile expected a known extent, not 0, on axis {axis}, got {x.spec}")
    y = sort(x, axis)
    place = shares.reshape(-1) * (n - 1)
    low = np.minimum(np.floor(place).astype(np.int32), n - 1)
    high = np.minimum(low + 1, n - 1)
    shape = (-1,) + (1,) * (x.ndim - 1 - axis)
    weight = (place - low).astype(np.float64).reshape(shape)
    weight = weight.astype(y.dtype if y.dtype.itemsize > 2 else np.float32)
    wide = y.astype(weight.dtype)
    below, above = take(wide, low, axis), take(wide, high, axis)
    found = mul_no_nan(1 - weight, below) + mul_no_nan(weight, above)  # 0 of an infinity is 0
    largest = slice_axis(wide, axis, n - 1, n)
    found = select(largest.equal(largest), found, math.nan).astype(y.dtype)
    if shares.ndim == 0:
        found = found.squeeze(axis)
        return found.expand_dims(kept) if keepdims else found
    found = moveaxis(found, axis, 0)
    return found.expand_dims(tuple(a + 1 for a in kept)) if keepdims else found


def searchsorted(a: Any, values: Any, side: str = "left", *, sorter: Any = None) -> Any:
    """Positions (int32) in the sorted row `a` where `values` would be put in: before (left) or
    after (right) what is equal. NaN counts as the largest. With `sorter`, positions as `argsort`
    gives them, `a` need not be sorted.
    """
    if side not in ("left", "right"):
        raise OpError(f"searchsorted expected side 'left' or 'right', got {side!r}")
    with builders.owner("searchsorted", (a, values)):
        a, values = promote_together(ANY, (as_tensor(a), as_tensor(values)))
        if a.ndim != 1 or a.shape[0] is None:
            raise OpError(f"searchsorted expected one sorted row of known extent, got {a.spec}")
        n = a.shape[0]
        a = a if sorter is None else take(a, sorter)
        start = values.equal(values).astype(int32) * 0
        if n == 0:
            return start
        span = 1 << n.bit_length()
        found = start  # how many elements are known to come before
        while span := span // 2:
            probe = found + span
            element = take(a, (probe - 1).clip(0, n - 1))
            before = _is_before(element, values, side == "right")
            found = select(before & (probe <= n), probe, found)
        return found


def _is_before(x: Any, y: Any, or_equal: bool) -> Any:
    """x < y, or x <= y, with NaN as the largest."""
    less = x <= y if or_equal else x < y
    if not is_float(x.dtype):
        return less
    y_nan = ~y.equal(y)
    return less | y_nan if or_equal else less | (y_nan & x.equal(x))
