# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Running sums, products, maxima and the like along one axis, and linear recurrences, which are
their gradients.

With `reverse` they run from the end of the axis to its start.
"""

import itertools
import math
from typing import Any

import numpy as np

from . import builder as builders
from .base import Bool, Int, Op, Operand, Result, in_float32
from .elementwise import (
    ACCEPTS,
    FLOAT,
    NUMERIC,
    as_tensor,
    broadcast_together,
    mul_no_nan,
    promote_together,
)
from .logic import select
from .padding import pad
from .reduction import as_float, summable
from .shape import normalize_axes
from .slicing import slice_axis
from .transcendental import exp
from .types import TensorSpec


class Scan(Op):
    """At each place the combination of all elements up to it along `axis`; from the end with
    `reverse`.
    """

    KIND = NUMERIC
    x: Operand
    axis: Int
    reverse: Bool = False
    y: Result

    @classmethod
    def infer(cls, x: TensorSpec, axis: int, reverse: bool) -> TensorSpec:
        check_axis(cls, x, axis)
        if not ACCEPTS[cls.KIND](x.dtype):
            raise cls.error(f"a {cls.KIND} operand", x, "convert it first")
        return x

    def before(self, value: Any, fill: float) -> Any:
        """What stands one place before along the way of the scan; `fill` at its start."""
        return neighbour(value, self.axis, self.reverse, fill)

    def after(self, value: Any, fill: float) -> Any:
        """What stands one place after along the way of the scan; `fill` at its end."""
        return neighbour(value, self.axis, not self.reverse, fill)

    def backwards(self, slopes: Any, values: Any) -> Any:
        """s with s_i = values_i + slopes_i * s_(i+1), against the way of the scan."""
        return LinearScanOp.emit(slopes, values, axis=self.axis, reverse=not self.reverse)


def check_axis(op_class: type[Op], x: TensorSpec, axis: int) -> None:
    """Raise unless `axis` is an axis of `x`."""
    if not 0 <= axis < x.rank:
        remedy = "" if x.rank else "reshape the number to one axis first"
        raise op_class.error(f"an axis of a tensor of rank {x.rank}", axis, remedy)


def neighbour(value: Any, axis: int, ahead: bool, fill: float) -> Any:
    """The tensor moved by one place along an axis, to its end or, with `ahead`, to its start;
    `fill` in the free place.
    """
    n = value.shape[axis]
    if n is None:
        raise LinearScanOp.error(
            "a known extent of the axis for a gradient", value.spec, "declare the extent"
        )
    if n == 0:
        return value
    widths = [(0, 0)] * value.ndim
    widths[axis] = (0, 1) if ahead else (1, 0)
    part = slice_axis(value, axis, 1, n) if ahead else slice_axis(value, axis, 0, n - 1)
    return pad(part, widths, constant_values=fill)


def _running(function: Any, x: np.ndarray, axis: int, reverse: bool) -> np.ndarray:
    """NumPy's running `function` along an axis, from the end with `reverse`."""
    turned = np.flip(x, axis) if reverse else x
    y = function(turned, axis=axis, dtype=x.dtype)
    return np.flip(y, axis) if reverse else y


class CumsumOp(Scan, name="cumsum"):
    """Running sum along an axis: y_i = x_0 + ... + x_i; with reverse x_i + ... + x_(n-1).

    Example: `%y = "gradopt.cumsum"(%x) {axis = 1 : i64} : (tensor<2x3xf32>) -> tensor<2x3xf32>`
    """

    @staticmethod
    def reference(x: np.ndarray, axis: int, reverse: bool) -> np.ndarray:
        return _running(np.add.accumulate, x, axis, reverse)

    def vjp(self, ct: Any) -> list[Any]:
        """dx = running sum of ct, the other way"""
        return [CumsumOp.emit(ct, axis=self.axis, reverse=not self.reverse)]


class CumprodOp(Scan, name="cumprod"):
    """Running product along an axis: y_i = x_0 * ... * x_i; with reverse x_i * ... * x_(n-1). The
    gradient is exact where elements are 0.

    Example: `%y = "gradopt.cumprod"(%x) {axis = 1 : i64} : (tensor<2x3xf32>) -> tensor<2x3xf32>`
    """

    @staticmethod
    def reference(x: np.ndarray, axis: int, reverse: bool) -> np.ndarray:
        return _running(np.multiply.accumulate, x, axis, reverse)

    @in_float32
    def vjp(self, ct: Any) -> list[Any]:
        """dx_i = y_(i-1) * s_i with s_i = ct_i + x_(i+1) * s_(i+1)"""
        s = self.backwards(self.after(self.x, 0), ct)
        return [mul_no_nan(s, self.before(self.y, 1))]


class RunningExtreme(Scan):
    """Largest or smallest element so far."""

    @in_float32
    def vjp(self, ct: Any) -> list[Any]:
        """dx_j = sum of ct_i / c_i over all i from j on with y_i = x_j, where c_i elements up to i
        are equal to y_i: ties share evenly, as in the max of what came so far
        """
        x, y = self.x, self.y
        taken = x.equal(y)
        hit = taken.astype(ct.dtype)
        goes_on = self.before(y, math.nan).equal(y).astype(ct.dtype)  # y is what it was before
        ties = LinearScanOp.emit(goes_on, hit, axis=self.axis, reverse=self.reverse)
        share = select(ties.equal(0), 0, ct / ties)
        return [select(taken, self.backwards(self.after(goes_on, 0), share), 0)]


class CummaxOp(RunningExtreme, name="cummax"):
    """Running maximum along an axis: y_i = max(x_0, ..., x_i); NaN from the first NaN on.

    Elements equal to the maximum so far share its gradient evenly.
    Example: `%y = "gradopt.cummax"(%x) {axis = 1 : i64} : (tensor<2x3xf32>) -> tensor<2x3xf32>`
    """

    @staticmethod
    def reference(x: np.ndarray, axis: int, reverse: bool) -> np.ndarray:
        return _running(np.maximum.accumulate, x, axis, reverse)


class CumminOp(RunningExtreme, name="cummin"):
    """Running minimum along an axis: y_i = min(x_0, ..., x_i); NaN from the first NaN on.

    Elements equal to the minimum so far share its gradient evenly.
    Example: `%y = "gradopt.cummin"(%x) {axis = 1 : i64} : (tensor<2x3xf32>) -> tensor<2x3xf32>`
    """

    @staticmethod
    def reference(x: np.ndarray, axis: int, reverse: bool) -> np.ndarray:
        return _running(np.minimum.accumulate, x, axis, reverse)


class CumlogsumexpOp(Scan, name="cumlogsumexp"):
    """Logarithm of the running sum of exponentials along an axis, without overflow: y_i = ln(e^x_0
    + ... + e^x_i); -inf where all elements so far are -inf.

    Example: `%y = "gradopt.cumlogsumexp"(%x) {axis = 1 : i64} : (tensor<2x3xf32>) ->
    tensor<2x3xf32>`
    """

    KIND = FLOAT

    @staticmethod
    def reference(x: np.ndarray, axis: int, reverse: bool) -> np.ndarray:
        return _running(np.logaddexp.accumulate, x, axis, reverse)

    @in_float32
    def vjp(self, ct: Any) -> list[Any]:
        """dx_i = e^(x_i - y_i) * s_i with s_i = ct_i + e^(y_i - y_(i+1)) * s_(i+1); 0 where y_i =
        -inf
        """
        x, y = self.x, self.y
        empty = y.equal(-math.inf)
        slopes = select(y.equal(math.inf), 1, exp(y - self.after(y, 0)))
        slopes = select(empty, 0, slopes)
        s = self.backwards(slopes, ct)
        return [mul_no_nan(s, select(empty, 0, exp(x - y)))]


class LinearScanOp(Op, name="linear_scan"):
    """Linear recurrence along an axis: y_i = b_i + a_i * y_(i-1), y_0 = b_0; with reverse from the
    end, y_i = b_i + a_i * y_(i+1). A product with y = 0 is 0 even if a is infinite.

    Example: `%y = "gradopt.linear_scan"(%a, %b) {axis = 0 : i64} : (tensor<8xf32>, tensor<8xf32>)
    -> tensor<8xf32>`
    """

    a: Operand
    b: Operand
    axis: Int
    reverse: Bool = False
    y: Result

    @classmethod
    def infer(cls, a: TensorSpec, b: TensorSpec, axis: int, reverse: bool) -> TensorSpec:
        if a != b or not ACCEPTS[FLOAT](a.dtype):
            raise cls.error("floating-point operands of one type", f"{a} and {b}")
        check_axis(cls, a, axis)
        if a.shape[axis] is None:
            raise cls.error("a known extent of the axis", a, "declare the extent")
        return a

    @staticmethod
    def reference(a: np.ndarray, b: np.ndarray, axis: int, reverse: bool) -> np.ndarray:
        y = np.array(b)
        a, rows = np.moveaxis(a, axis, 0), np.moveaxis(y, axis, 0)
        order = range(len(a))[::-1] if reverse else range(len(a))
        for before, i in itertools.pairwise(order):
            rows[i] += np.where(rows[before] == 0, 0, a[i] * rows[before])
        return y

    @staticmethod
    def decompose(a: Any, b: Any, axis: int, reverse: bool) -> Any:
        """Steps of 1, 2, 4, ... places: two steps in a row are one with slope a a' and rest b + a
        b'
        """
        kind, n, step = a.dtype, a.shape[axis], 1
        a, b = (v.astype(np.float32) if kind.itemsize == 2 else v for v in (a, b))
        while step < n:
            widths = [(0, 0)] * a.ndim
            widths[axis] = (0, step) if reverse else (step, 0)
            first, last = (step, n) if reverse else (0, n - step)
            b = b + mul_no_nan(pad(slice_axis(b, axis, first, last), widths), a)
            if 2 * step < n:
                a = a * pad(slice_axis(a, axis, first, last), widths, constant_values=1)
            step *= 2
        return b.astype(kind)

    @in_float32
    def vjp(self, ct: Any) -> list[Any]:
        """db_i = g_i and da_i = g_i * y_(i-1), with g_i = ct_i + a_(i+1) * g_(i+1)"""
        slopes = neighbour(self.a, self.axis, not self.reverse, 0)
        g = LinearScanOp.emit(slopes, ct, axis=self.axis, reverse=not self.reverse)
        return [mul_no_nan(g, neighbour(self.y, self.axis, self.reverse, 0)), g]


# --- functions ------------------------------------------------------------------------------------


def _scan(op_class: type[Op], x: Any, axis: int | None, reverse: bool) -> Any:
    """Emit a scan along `axis`, or over the flattened tensor."""
    if axis is None:
        return op_class.emit(x.reshape(-1), axis=0, reverse=reverse)
    return op_class.emit(x, axis=normalize_axes(op_class, axis, x.ndim)[0], reverse=reverse)


def cumsum(x: Any, axis: int | None = None, reverse: bool = False) -> Any:
    """Running sum along `axis` (None: of the flattened tensor), from the end with `reverse`.
    Booleans and integers below 32 bits are summed in 32 bits.
    """
    return _scan(CumsumOp, summable(x), axis, reverse)


def cumprod(x: Any, axis: int | None = None, reverse: bool = False) -> Any:
    """Running product along `axis` (None: of the flattened tensor), from the end with `reverse`.
    Booleans and integers below 32 bits are multiplied in 32 bits.
    """
    return _scan(CumprodOp, summable(x), axis, reverse)


def cummax(x: Any, axis: int | None = None, reverse: bool = False) -> Any:
    """Running maximum along `axis` (None: of the flattened tensor), from the end with `reverse`;
    elements equal to the maximum so far share its gradient evenly.
    """
    return _scan(CummaxOp, as_tensor(x), axis, reverse)


def cummin(x: Any, axis: int | None = None, reverse: bool = False) -> Any:
    """Running minimum along `axis` (None: of the flattened tensor), from the end with `reverse`;
    elements equal to the minimum so far share its gradient evenly.
    """
    return _scan(CumminOp, as_tensor(x), axis, reverse)


def cumlogsumexp(x: Any, axis: int | None = None, reverse: bool = False) -> Any:
    """Logarithm of the running sum of exponentials along `axis` (None: of the flattened tensor),
    from the end with `reverse`.
    """
    return _scan(CumlogsumexpOp, as_float(x), axis, reverse)


def cumulative_sum(
    x: Any, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Any:
    """Running sum along `axis`, which may be left away where there is one, in `dtype` as in `sum`;
    behind a 0 with `include_initial`.
    """
    return _cumulative(CumsumOp, x, axis, dtype, 0 if include_initial else None)


def cumulative_prod(
    x: Any, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Any:
    """Running product along `axis`, which may be left away where there is one, in `dtype` as in
    `prod`; behind a 1 with `include_initial`.
    """
    return _cumulative(CumprodOp, x, axis, dtype, 1 if include_initial else None)


def _cumulative(
    op_class: type[Op], x: Any, axis: int | None, dtype: Any, initial: float | None
) -> Any:
    x = summable(x, dtype)
    if axis is None and x.ndim != 1:
        raise op_class.error("an axis, for a tensor that has not just one", x.spec)
    (axis,) = normalize_axes(op_class, 0 if axis is None else axis, x.ndim)
    y = op_class.emit(x, axis=axis)
    if initial is None:
        return y
    widths = [(1, 0) if a == axis else (0, 0) for a in range(x.ndim)]
    return pad(y, widths, constant_values=initial)


def linear_scan(a: Any, b: Any, axis: int = 0, reverse: bool = False) -> Any:
    """y with y_i = b_i + a_i * y_(i-1) along `axis`; from its end with `reverse`. `a` and `b`
    broadcast together.
    """
    with builders.owner("linear_scan", (a, b)):
        a, b = broadcast_together(LinearScanOp, *promote_together(FLOAT, (a, b)))
        (axis,) = normalize_axes(LinearScanOp, axis, a.ndim)
        return LinearScanOp.emit(a, b, axis=axis, reverse=reverse)
