# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Sums, averages and extremes of windows, and the ops that their gradients are made of.

Places between spread elements and in the padding hold 0 for sums; for extremes they are never
chosen. See window.py for images and windows.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import builder as builders
from .base import NO_GRADIENT, Bool, Ints, Op, Operand, Result, as_wide
from .convolution import image_parts, images_back, images_last
from .creation import constant, zeros_like
from .elementwise import NUMERIC, as_tensor
from .reduction import as_float, summable
from .types import TensorSpec, float32, is_float, limits_of
from .window import WindowOp, elements, geometry, spatial_extents, spread_extent, window_attributes

# --- sums and averages ----------------------------------------------------------------------------


class SumPoolOp(WindowOp, name="sum_pool"):
    """Sum of each window's elements: y[n, p, c] = sum over k of x[n, p * stride + k * dilation -
    low, c].

    Example: `%y = "gradopt.sum_pool"(%x) {window = array<i64: 3>, strides = array<i64: 2>, low =
    array<i64: 1>, high = array<i64: 1>, dilation = array<i64: 1>, base_dilation = array<i64: 1>} :
    (tensor<8x9x4xf32>) -> tensor<8x5x4xf32>`
    """

    KIND = NUMERIC
    x: Operand
    y: Result

    @classmethod
    def infer(cls, x: TensorSpec, **attributes: Any) -> TensorSpec:
        return cls.pooled(x, **attributes)

    @staticmethod
    def reference(x: np.ndarray, **attributes: Any) -> np.ndarray:
        total = np.sum(list(elements(x, 0, attributes)), axis=0)
        return images_back(total, attributes["channels_last"])

    def vjp(self, ct: Any) -> list[Any]:
        """dx = for each element, the sum of ct over the windows that meet it: a sum pool of ct with
        stride and base dilation exchanged
        """
        attributes = self.read_attributes()
        spatial = image_parts(self.x.spec, self.channels_last)[1]
        windows = image_parts(ct.spec, self.channels_last)[1]
        low, high = [], []
        for n, p, k, s, lo, _, d, base in zip(spatial, windows, *geometry(attributes), strict=True):
            low.append(d * (k - 1) - lo)
            high.append(spread_extent(n, base) - spread_extent(p, s) + lo)
        exchanged = {"strides": self.base_dilation, "base_dilation": self.strides}
        if 0 in spatial:
            return [zeros_like(self.x)]
        attributes |= exchanged | {"low": low, "high": high}
        return [SumPoolOp.emit(ct, **attributes)]


class AvgPoolOp(WindowOp, name="avg_pool"):
    """Mean of each window's elements: y = sum_pool(x) / count.

    The count is that of the window's places, or with count_include_pad = false of those that hold
    elements (NaN where there are none). The last `overhang` places of the padding never count.
    Example: `%y = "gradopt.avg_pool"(%x) {window = array<i64: 2>, strides = array<i64: 2>, low =
    array<i64: 0>, high = array<i64: 0>, dilation = array<i64: 1>, base_dilation = array<i64: 1>} :
    (tensor<8x8x4xf32>) -> tensor<8x4x4xf32>`
    """

    x: Operand
    count_include_pad: Bool = True
    overhang: Ints = ()
    y: Result

    @classmethod
    def infer(
        cls, x: TensorSpec, count_include_pad: bool, overhang: tuple[int, ...], **attributes: Any
    ) -> TensorSpec:
        y = cls.pooled(x, **attributes)
        if overhang and (len(overhang) != len(attributes["window"]) or min(overhang) < 0):
            raise cls.error(f"{len(attributes['window'])} overhangs of at least 0", list(overhang))
        return y

    @staticmethod
    def reference(
        x: np.ndarray, count_include_pad: bool, overhang: tuple[int, ...], **attributes: Any
    ) -> np.ndarray:
        last = attributes["channels_last"]
        spatial = images_last(x, last).shape[1:-1]
        over = overhang or (0,) * len(spatial)
        if count_include_pad:
            spread = zip(spatial, attributes["base_dilation"], strict=True)
            spread = [spread_extent(n, b) for n, b in spread]
            sides = zip(spread, attributes["low"], attributes["high"], over, strict=True)
            counted = np.ones([1, *(n + lo + hi - o for n, lo, hi, o in sides), 1])
            ones = {"low": (0,) * len(over), "high": over, "base_dilation": (1,) * len(over)}
            met = elements(counted, 0, attributes | ones | {"channels_last": True})
        else:
            real = np.ones([1, *spatial, 1])
            met = elements(real, 0, attributes | {"channels_last": True})
        total = np.sum(list(elements(x, 0, attributes)), axis=0)
        return images_back(total / np.sum(list(met), axis=0), last)

    @staticmethod
    def decompose(
        x: Any, count_include_pad: bool, overhang: tuple[int, ...], **attributes: Any
    ) -> Any:
        """sum_pool(x) / count, the counts a constant"""
        last, wide = attributes["channels_last"], as_wide(x)
        count = window_counts(
            image_parts(x.spec, last)[1], count_include_pad, overhang, **attributes
        )
        if (count == count.flat[0]).all():
            count = count.flat[0]
        else:
            count = count[..., None] if last else count
        return (SumPoolOp.emit(wide, **attributes) / constant(count, wide.dtype)).astype(x.dtype)


def window_counts(
    spatial: Sequence[Any], include_pad: bool, overhang: Sequence[int], **attributes: Any
) -> np.ndarray:
    """How many places of each window count, by the window's position: the product of the counts
    along the axes.
    """
    counts = np.ones([1] * len(spatial))
    over = overhang or (0,) * len(spatial)
    axes = zip(spatial, over, *geometry(attributes), strict=True)
    for axis, (n, o, k, s, lo, hi, d, base) in enumerate(axes):
        length = spread_extent(n, base) + lo + hi
        starts = np.arange((length - d * (k - 1) - 1) // s + 1) * s
        places = starts[:, None] + d * np.arange(k)
        inside = places < length - o
        if not include_pad:
            element = places - lo
            inside &= (element >= 0) & (element < spread_extent(n, base)) & (element % base == 0)
        counts = counts * np.expand_dims(
            inside.sum(1), [a for a in range(len(spatial)) if a != axis]
        )
    return counts


# --- extremes -------------------------------------------------------------------------------------


class ExtremePool(WindowOp):
    """An extreme of each window's elements."""

    KIND = NUMERIC
    x: Operand
    y: Result

    @classmethod
    def infer(cls, x: TensorSpec, **attributes: Any) -> TensorSpec:
        return cls.pooled(x, **attributes)

    def vjp(self, ct: Any) -> list[Any]:
        """dx = for each element, the sum of ct / ties over the windows whose extreme it is"""
        attributes = self.read_attributes()
        wide = as_wide(ct)  # a count is not rounded to 16 bits
        share = wide / CountTiesOp.emit(self.x, self.y, **attributes).astype(wide.dtype)
        return [UnpoolTiesOp.emit(self.x, self.y, share, **attributes).astype(ct.dtype)]


class MaxPoolOp(ExtremePool, name="max_pool"):
    """Largest of each window's elements: y[n, p, c] = max over k of x[n, p * stride + k * dilation
    - low, c]; NaN if any is. -inf (of integers the least) where there are none.

    Example: `%y = "gradopt.max_pool"(%x) {window = array<i64: 3>, strides = array<i64: 2>, low =
    array<i64: 1>, high = array<i64: 1>, dilation = array<i64: 1>, base_dilation = array<i64: 1>} :
    (tensor<8x9x4xf32>) -> tensor<8x5x4xf32>`
    """

    @staticmethod
    def reference(x: np.ndarray, **attributes: Any) -> np.ndarray:
        met = list(elements(x, limits_of(x.dtype)[0], attributes))
        return images_back(np.max(met, axis=0), attributes["channels_last"])


class MinPoolOp(ExtremePool, name="min_pool"):
    """Smallest of each window's elements: y[n, p, c] = min over k of x[n, p * stride + k * dilation
    - low, c]; NaN if any is. inf (of integers the greatest) where there are none.

    Example: `%y = "gradopt.min_pool"(%x) {window = array<i64: 3>, strides = array<i64: 2>, low =
    array<i64: 1>, high = array<i64: 1>, dilation = array<i64: 1>, base_dilation = array<i64: 1>} :
    (tensor<8x9x4xf32>) -> tensor<8x5x4xf32>`
    """

    @staticmethod
    def reference(x: np.ndarray, **attributes: Any) -> np.ndarray:
        met = list(elements(x, limits_of(x.dtype)[1], attributes))
        return images_back(np.min(met, axis=0), attributes["channels_last"])


class TiesOp(WindowOp):
    """About the elements x of each window that are equal to the window's value y. Padding is never
    equal, nor is NaN.
    """

    x: Operand
    y: Operand

    @classmethod
    def check(cls, x: TensorSpec, y: TensorSpec, **attributes: Any) -> None:
        """Raise unless y has a value for each window of x."""
        if y != (expected := cls.pooled(x, **attributes)):
            raise cls.error(f"window values of type {expected}", y)


class CountTiesOp(TiesOp, name="count_ties"):
    """How many elements of each window are equal to its value, in float32: z[n, p, c] = sum over k
    of (x[n, p * stride + k * dilation - low, c] = y[n, p, c]).

    Example: `%z = "gradopt.count_ties"(%x, %y) {window = array<i64: 2>, strides = array<i64: 2>,
    low = array<i64: 0>, high = array<i64: 0>, dilation = array<i64: 1>, base_dilation = array<i64:
    1>} : (tensor<8x8x4xf32>, tensor<8x4x4xf32>) -> tensor<8x4x4xf32>`
    """

    z: Result

    @classmethod
    def infer(cls, x: TensorSpec, y: TensorSpec, **attributes: Any) -> TensorSpec:
        cls.check(x, y, **attributes)
        return y.with_dtype(float32)

    @staticmethod
    def reference(x: np.ndarray, y: np.ndarray, **attributes: Any) -> np.ndarray:
        last = attributes["channels_last"]
        met = elements(x, np.nan, attributes)
        return images_back(np.sum([e == images_last(y, last) for e in met], axis=0), last)

    vjp = NO_GRADIENT


class PoolTiesOp(TiesOp, name="pool_ties"):
    """Sum of c over the elements of each window that are equal to its value: z[n, p, c] = sum over
    k of c where x = y. Linear in c; the transpose of `unpool_ties`.

    Example: `%z = "gradopt.pool_ties"(%x, %y, %c) {window = array<i64: 2>, strides = array<i64: 2>,
    low = array<i64: 0>, high = array<i64: 0>, dilation = array<i64: 1>, base_dilation = array<i64:
    1>} : (tensor<8x8x4xf32>, tensor<8x4x4xf32>, tensor<8x8x4xf32>) -> tensor<8x4x4xf32>`
    """

    c: Operand
    z: Result

    @classmethod
    def infer(cls, x: TensorSpec, y: TensorSpec, c: TensorSpec, **attributes: Any) -> TensorSpec:
        cls.check(x, y, **attributes)
        if c.shape != x.shape or not is_float(c.dtype):
            raise cls.error(f"a floating-point summand for each element of {x}", c)
        return y.with_dtype(c.dtype)

    @staticmethod
    def reference(x: np.ndarray, y: np.ndarray, c: np.ndarray, **attributes: Any) -> np.ndarray:
        last = attributes["channels_last"]
        pairs = zip(elements(x, np.nan, attributes), elements(c, 0, attributes), strict=True)
        met = [np.where(e == images_last(y, last), v, 0) for e, v in pairs]
        return images_back(np.sum(met, axis=0), last)

    def vjp(self, ct: Any) -> list[Any]:
        """dc = for each element, the sum of ct over the windows whose value it is equal to"""
        return [None, None, UnpoolTiesOp.emit(self.x, self.y, ct, **self.read_attributes())]


class UnpoolTiesOp(TiesOp, name="unpool_ties"):
    """For each element, the sum of g over the windows that meet it and whose value it is equal to.
    Linear in g; the transpose of `pool_ties`.

    Example: `%z = "gradopt.unpool_ties"(%x, %y, %g) {window = array<i64: 2>, strides = array<i64:
    2>, low = array<i64: 0>, high = array<i64: 0>, dilation = array<i64: 1>, base_dilation =
    array<i64: 1>} : (tensor<8x8x4xf32>, tensor<8x4x4xf32>, tensor<8x4x4xf32>) -> tensor<8x8x4xf32>`
    """

    g: Operand
    z: Result

    @classmethod
    def infer(cls, x: TensorSpec, y: TensorSpec, g: TensorSpec, **attributes: Any) -> TensorSpec:
        cls.check(x, y, **attributes)
        if g.shape != y.shape or not is_float(g.dtype):
            raise cls.error(f"a floating-point value for each window, as {y}", g)
        return x.with_dtype(g.dtype)

    @staticmethod
    def reference(x: np.ndarray, y: np.ndarray, g: np.ndarray, **attributes: Any) -> np.ndarray:
        last = attributes["channels_last"]
        x, y, g = (images_last(v, last) for v in (x, y, g))
        at = np.arange(x.size).reshape(x.shape)  # the element that a place holds; -1 for none
        dx = np.zeros(x.size, g.dtype)
        for where in elements(at, -1, attributes | {"channels_last": True}):
            equal = (where >= 0) & (x.reshape(-1)[where] == y) if x.size else where >= 0
            np.add.at(dx, where[equal], g[equal])
        return images_back(dx.reshape(x.shape), last)

    def vjp(self, ct: Any) -> list[Any]:
        """dg = for each window, the sum of ct over its elements that are equal to its value"""
        return [None, None, PoolTiesOp.emit(self.x, self.y, ct, **self.read_attributes())]


# --- functions ------------------------------------------------------------------------------------


def max_pool(
    x: Any,
    window: int | Sequence[int],
    strides: int | Sequence[int] | None = None,
    padding: str | int | Sequence[Any] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    channels_last: bool = True,
    name: str | None = None,
) -> Any:
    """Largest element of each window over the spatial axes of images (N, *spatial, C), or (N, C,
    *spatial); ties share the gradient evenly.

    `strides` are the window's extents unless given. `padding` is a number, "VALID", "SAME" (result
    extent = ceil(n / stride)) or a (low, high) pair for each spatial axis; it is never chosen.
    `ceil_mode` adds a last window that hangs over the end, if it starts inside, as PyTorch does.
    """
    return _pool(MaxPoolOp, x, window, strides, padding, dilation, ceil_mode, channels_last, name)


def min_pool(
    x: Any,
    window: int | Sequence[int],
    strides: int | Sequence[int] | None = None,
    padding: str | int | Sequence[Any] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    channels_last: bool = True,
    name: str | None = None,
) -> Any:
    """Smallest element of each window; otherwise as `max_pool`."""
    return _pool(MinPoolOp, x, window, strides, padding, dilation, ceil_mode, channels_last, name)


def sum_pool(
    x: Any,
    window: int | Sequence[int],
    strides: int | Sequence[int] | None = None,
    padding: str | int | Sequence[Any] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    channels_last: bool = True,
    name: str | None = None,
) -> Any:
    """Sum of each window's elements, padded with 0; otherwise as `max_pool`. Booleans and integers
    below 32 bits are summed in 32 bits.
    """
    x = summable(x)
    return _pool(SumPoolOp, x, window, strides, padding, dilation, ceil_mode, channels_last, name)


def avg_pool(
    x: Any,
    window: int | Sequence[int],
    strides: int | Sequence[int] | None = None,
    padding: str | int | Sequence[Any] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    channels_last: bool = True,
    count_include_pad: bool = True,
    name: str | None = None,
) -> Any:
    """Mean of each window's elements; otherwise as `max_pool`. Zeros of the padding count as
    elements, unless `count_include_pad` is false; what `ceil_mode` adds never counts.
    """
    x = as_float(x)
    counts = {"count_include_pad": count_include_pad}
    return _pool(
        AvgPoolOp, x, window, strides, padding, dilation, ceil_mode, channels_last, name, **counts
    )


def _pool(
    op_class: type[Op],
    x: Any,
    window: Any,
    strides: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    channels_last: bool,
    name: str | None,
    **attributes: Any,
) -> Any:
    with builders.owner(op_class.MNEMONIC, (x,)):
        x = as_tensor(x)
        spatial = spatial_extents(op_class, x, channels_last)
        found = window_attributes(
            op_class, spatial, window, strides, padding, dilation, channels_last
        )
        if ceil_mode:
            over = _overhang(spatial, found)
            found["high"] = tuple(h + o for h, o in zip(found["high"], over, strict=True))
            attributes |= {"overhang": over} if op_class is AvgPoolOp and any(over) else {}
        return op_class.emit(x, **found, **attributes, name=name)


def _overhang(spatial: Sequence[Any], attributes: dict[str, Any]) -> tuple[int, ...]:
    """What to add behind each axis, so that the last window that starts before the end (padding
    behind it not counted) is there.
    """
    found = []
    for n, k, s, lo, hi, d, _ in zip(spatial, *geometry(attributes), strict=True):
        if n is None:
            found.append(0)
            continue
        rest = n + lo + hi - d * (k - 1) - 1
        count = math.ceil(rest / s) + 1
        count -= (count - 1) * s >= n + lo
        found.append(max(0, (count - 1) * s - rest))
    return tuple(found)
