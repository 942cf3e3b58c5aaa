# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Joining tensors, taking parts of them, padding and reversing them."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import OpError
from .base import Extents, Float, Int, Ints, Op, Operand, Operands, Result, Results
from .creation import zeros_like
from .elementwise import as_tensor
from .shape import normalize_axes, unchanged
from .types import TensorSpec, is_float, limits_of, promote


class ConcatOp(Op, name="concat"):
    """Two tensors one after the other along an axis. Chains along the first axis are one
    copy after lowering; equal parts use `stack`.

    Example: `%y = "gradopt.concat"(%a, %b) {axis = 0 : i64} : (tensor<2xf32>, tensor<3xf32>) ->
    tensor<5xf32>`
    """

    lhs: Operand
    rhs: Operand
    axis: Int
    y: Result

    @classmethod
    def infer(cls, lhs: TensorSpec, rhs: TensorSpec, axis: int) -> TensorSpec:
        if not 0 <= axis < lhs.rank:
            raise cls.error(f"an axis in [0, {lhs.rank})", axis)
        if (lhs.rank, lhs.dtype) != (rhs.rank, rhs.dtype) or _without(lhs.shape, axis) != _without(
            rhs.shape, axis
        ):
            raise cls.error(f"operands equal but for axis {axis}", f"{lhs} and {rhs}")
        a, b = lhs.shape[axis], rhs.shape[axis]
        return lhs.with_shape(
            (*lhs.shape[:axis], None if a is None or b is None else a + b, *lhs.shape[axis + 1 :])
        )

    @staticmethod
    def reference(lhs: np.ndarray, rhs: np.ndarray, axis: int) -> np.ndarray:
        return np.concatenate((lhs, rhs), axis)

    def vjp(self, ct: Any) -> list[Any]:
        """dlhs = the first part of ct, drhs = the rest"""
        a, b = self.lhs.shape[self.axis], self.rhs.shape[self.axis]
        if a is None or b is None:
            raise self.error(
                "known extents along the axis for a gradient",
                f"{self.lhs.spec} and {self.rhs.spec}",
            )
        return [slice_axis(ct, self.axis, 0, a), slice_axis(ct, self.axis, a, a + b)]


def _without(shape: tuple[int | None, ...], axis: int) -> tuple[int | None, ...]:
    return shape[:axis] + shape[axis + 1 :]


class StackOp(Op, name="stack"):
    """Tensors of one type along a new axis.

    Example: `%y = "gradopt.stack"(%a, %b) {axis = 0 : i64} : (tensor<3xf32>, tensor<3xf32>) ->
    tensor<2x3xf32>`
    """

    xs: Operands
    axis: Int
    y: Result

    @classmethod
    def infer(cls, *xs: TensorSpec, axis: int) -> TensorSpec:
        if not xs or len(set(xs)) != 1:
            raise cls.error("one or more operands of one type", ", ".join(map(str, xs)) or "none")
        if not 0 <= axis <= xs[0].rank:
            raise cls.error(f"an axis in [0, {xs[0].rank}]", axis)
        return xs[0].with_shape((*xs[0].shape[:axis], len(xs), *xs[0].shape[axis:]))

    @staticmethod
    def reference(*xs: np.ndarray, axis: int) -> np.ndarray:
        return np.stack(xs, axis)

    def vjp(self, ct: Any) -> list[Any]:
        """dx_i = the slice of ct that x_i became"""
        return list(UnstackOp.emit(ct, axis=self.axis))


class UnstackOp(Op, name="unstack"):
    """The slices along an axis, without it.

    Example: `%a, %b = "gradopt.unstack"(%x) {axis = 0 : i64} : (tensor<2x3xf32>) -> (tensor<3xf32>,
    tensor<3xf32>)`
    """

    x: Operand
    axis: Int
    ys: Results

    @classmethod
    def infer(cls, x: TensorSpec, axis: int) -> tuple[TensorSpec, ...]:
        if not 0 <= axis < x.rank or not x.shape[axis]:
            raise cls.error("an axis with a known extent of at least 1", f"axis {axis} of {x}")
        return (x.with_shape(_without(x.shape, axis)),) * (x.shape[axis] or 0)

    @staticmethod
    def reference(x: np.ndarray, axis: int) -> tuple[np.ndarray, ...]:
        return tuple(np.moveaxis(x, axis, 0))

    def vjp(self, *cts: Any) -> list[Any]:
        """dx = the cotangents stacked, zeros where there is none"""
        return [
            StackOp.emit(
                *(zeros_like(y) if ct is None else ct for ct, y in zip(cts, self.ys, strict=True)),
                axis=self.axis,
            )
        ]


class SliceOp(Op, name="slice"):
    """Every stride-th element from start up to limit, along each axis. A limit of `?` means the
    axis's end.

    Example: `%y = "gradopt.slice"(%x) {start = array<i64: 1>, limit = array<i64: 5>, stride =
    array<i64: 2>} : (tensor<6xf32>) -> tensor<2xf32>`
    """

    x: Operand
    start: Ints
    limit: Extents
    stride: Ints
    y: Result

    @classmethod
    def infer(
        cls,
        x: TensorSpec,
        start: tuple[int, ...],
        limit: tuple[int | None, ...],
        stride: tuple[int, ...],
    ) -> TensorSpec:
        if not len(start) == len(limit) == len(stride) == x.rank:
            raise cls.error(
                f"start, limit and stride of length {x.rank}",
                f"{len(start)}, {len(limit)} and {len(stride)}",
            )
        return x.with_shape(map(cls._extent, range(x.rank), x.shape, start, limit, stride))

    @classmethod
    def _extent(
        cls, axis: int, n: int | None, start: int, limit: int | None, stride: int
    ) -> int | None:
        if stride < 1:
            raise cls.error(
                "strides of at least 1", stride, "reverse the axis first for a negative stride"
            )
        if n is None:
            if (start, limit, stride) != (0, None, 1):
                raise cls.error(
                    f"axis {axis}, whose extent is unknown, to be kept whole",
                    f"{start}:{limit}:{stride}",
                )
            return None
        end = n if limit is None else limit
        if not 0 <= start <= end <= n:
            raise cls.error(f"0 <= start <= limit <= {n} on axis {axis}", f"{start}:{limit}")
        return -((start - end) // stride)

    @staticmethod
    def reference(
        x: np.ndarray,
        start: tuple[int, ...],
        limit: tuple[int | None, ...],
        stride: tuple[int, ...],
    ) -> np.ndarray:
        return x[tuple(map(slice, start, limit, stride))]

    def vjp(self, ct: Any) -> list[Any]:
        """dx = ct spread with zeros: low = start, interior = stride - 1, high = what is left"""
        low, interior = self.start, tuple(s - 1 for s in self.stride)
        high = tuple(
            0 if n is None or m is None else n - (lo + max((m - 1) * s + 1, 0))
            for n, m, lo, s in zip(self.x.shape, ct.shape, low, self.stride, strict=True)
        )
        return [PadOp.emit(ct, low=low, high=high, interior=interior)]


class PadOp(Op, name="pad"):
    """A constant before (low), after (high) and between (interior) the elements of each axis.

    Example: `%y = "gradopt.pad"(%x) {low = array<i64: 1>, high = array<i64: 0>, interior =
    array<i64: 1>} : (tensor<3xf32>) -> tensor<6xf32>`
    """

    x: Operand
    low: Ints
    high: Ints
    interior: Ints
    value: Float = 0.0
    y: Result

    @classmethod
    def infer(
        cls,
        x: TensorSpec,
        low: tuple[int, ...],
        high: tuple[int, ...],
        interior: tuple[int, ...],
        value: float,
    ) -> TensorSpec:
        if not len(low) == len(high) == len(interior) == x.rank:
            raise cls.error(
                f"low, high and interior of length {x.rank}",
                f"{len(low)}, {len(high)} and {len(interior)}",
            )
        if min((*low, *high, *interior), default=0) < 0:
            raise cls.error(
                "no negative padding",
                f"low {low}, high {high}, interior {interior}",
                "slice instead",
            )
        widths = zip(x.shape, low, high, interior, strict=True)
        if any(n is None and (l, h, i) != (0, 0, 0) for n, l, h, i in widths):
            raise cls.error(
                "no padding on axes of unknown extent", f"low {low}, high {high} of {x}"
            )
        least, most = limits_of(x.dtype)
        if not is_float(x.dtype) and not (least <= value <= most and value % 1 == 0):
            raise cls.error(f"a value that {x.dtype.name} can hold", value)
        return x.with_shape(
            None if n is None else n + l + h + max(n - 1, 0) * i
            for n, l, h, i in zip(x.shape, low, high, interior, strict=True)
        )

    @staticmethod
    def reference(
        x: np.ndarray,
        low: tuple[int, ...],
        high: tuple[int, ...],
        interior: tuple[int, ...],
        value: float,
    ) -> np.ndarray:
        extents = [
            n + l + h + max(n - 1, 0) * i
            for n, l, h, i in zip(x.shape, low, high, interior, strict=True)
        ]
        y = np.full(extents, value, x.dtype)
        y[
            tuple(
                slice(l, m - h, i + 1)
                for l, m, h, i in zip(low, extents, high, interior, strict=True)
            )
        ] = x
        return y

    def vjp(self, ct: Any) -> list[Any]:
        """dx = the elements of ct that came from x"""
        limit = tuple(
            None if n is None else n - h for n, h in zip(ct.shape, self.high, strict=True)
        )
        return [
            SliceOp.emit(
                ct, start=self.low, limit=limit, stride=tuple(i + 1 for i in self.interior)
            )
        ]


class ReverseOp(Op, name="reverse"):
    """Elements in opposite order along axes.

    Example: `%y = "gradopt.reverse"(%x) {axes = array<i64: 0>} : (tensor<4xf32>) -> tensor<4xf32>`
    """

    x: Operand
    axes: Ints
    y: Result

    @classmethod
    def infer(cls, x: TensorSpec, axes: tuple[int, ...]) -> TensorSpec:
        if list(axes) != sorted(set(axes)) or not set(axes) <= set(range(x.rank)):
            raise cls.error(f"increasing axes of a tensor of rank {x.rank}", list(axes))
        return x

    @staticmethod
    def reference(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        return np.flip(x, axes)

    def vjp(self, ct: Any) -> list[Any]:
        """dx = ct reversed"""
        return [ReverseOp.emit(ct, axes=self.axes)]


# --- functions --------------------------------------------------------------------------------


def concat(xs: Sequence[Any], axis: int | None = 0) -> Any:
    """Tensors one after the other along `axis` (None: flattened), in their common element type."""
    tensors = [as_tensor(x) for x in xs]
    if not tensors:
        raise ConcatOp.error("at least one tensor", "none")
    if axis is None:
        tensors, axis = [t.flatten() for t in tensors], 0
    (axis,) = normalize_axes(ConcatOp, axis, tensors[0].ndim)
    dtype = promote(*(t.dtype for t in tensors))
    first, *rest = [as_tensor(t, dtype) for t in tensors]
    if len(rest) > 1 and first.spec.is_static and all(t.spec == first.spec for t in rest):
        together = StackOp.emit(first, *rest, axis=axis)
        return together.reshape(
            [n * len(tensors) if i == axis else n for i, n in enumerate(first.shape)]
        )
    for tensor in rest:
        first = ConcatOp.emit(first, tensor, axis=axis)
    return first if rest else unchanged(first)


def stack(xs: Sequence[Any], axis: int = 0) -> Any:
    """Tensors of one shape along a new axis, in their common element type."""
    tensors = [as_tensor(x) for x in xs]
    if not tensors:
        raise StackOp.error("at least one tensor", "none")
    dtype = promote(*(t.dtype for t in tensors))
    (axis,) = normalize_axes(StackOp, axis, tensors[0].ndim + 1)
    return StackOp.emit(*(as_tensor(t, dtype) for t in tensors), axis=axis)


def unstack(x: Any, axis: int = 0) -> tuple[Any, ...]:
    """The slices of `x` along `axis`, without it."""
    x = as_tensor(x)
    (axis,) = normalize_axes(UnstackOp, axis, x.ndim)
    return () if x.shape[axis] == 0 else tuple(UnstackOp.emit(x, axis=axis))


def _split_error(expected: str, got: Any) -> OpError:
    return OpError(f"split expected {expected}, got {got}")


def split(x: Any, sections: int | Sequence[int], axis: int = 0) -> list[Any]:
    """Parts of `x` along `axis`: `sections` equal ones, or one of each size in `sections`."""
    x = as_tensor(x)
    (axis,) = normalize_axes(UnstackOp, axis, x.ndim)
    n = x.shape[axis]
    if n is None:
        raise _split_error(f"a known extent of axis {axis}", x.spec)
    if isinstance(sections, int):
        if sections < 1 or n % sections:
            raise _split_error(f"a number of equal parts of {n} elements", sections)
        if x.shape.count(None) <= 1:
            parts = (*x.shape[:axis], sections, n // sections, *x.shape[axis + 1 :])
            return list(unstack(x.reshape(parts), axis))
        sections = [n // sections] * sections
    if sum(sections) != n or min(sections, default=0) < 0:
        raise _split_error(f"sizes that add up to {n}", list(sections))
    ends = list(itertools.accumulate(sections))
    return [slice_axis(x, axis, end - size, end) for size, end in zip(sections, ends, strict=True)]


def flip(x: Any, axis: int | Sequence[int] | None = None) -> Any:
    """`x` with the order of elements reversed along `axis` (all axes if None)."""
    x = as_tensor(x)
    return ReverseOp.emit(x, axes=normalize_axes(ReverseOp, axis, x.ndim))


def slice_axis(x: Any, axis: int, start: int, limit: int, stride: int = 1) -> Any:
    """Elements start:limit:stride along one axis."""
    whole: list[tuple[int, int | None, int]] = [(0, n, 1) for n in x.shape]
    whole[axis] = (start, limit, stride)
    starts, limits, strides = zip(*whole, strict=True)
    return (
        x
        if whole[axis] == (0, x.shape[axis], 1)
        else SliceOp.emit(x, start=starts, limit=limits, stride=strides)
    )
