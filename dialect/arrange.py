# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Arrangements of elements that are made of simpler moves: rolled, repeated, cut to triangles and
diagonals.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from . import elementwise, reduction
from .arithmetic import sub
from .base import Int, Ints, Op, Operand, Result
from .creation import constant, iota
from .elementwise import as_tensor
from .indexing import take
from .logic import logical_xor, select
from .mlir import ir
from .shape import moveaxis, normalize_axes
from .slicing import concat, slice_axis
from .types import TensorSpec, bool_


def known(op_class: type[Op], x: TensorSpec, axes: Sequence[int]) -> list[int]:
    """The extents of `axes`; raises where one is unknown."""
    found = [x.shape[a] for a in axes]
    if None in found:
        raise op_class.error(f"known extents of axes {list(axes)}", x)
    return [n for n in found if n is not None]


class RollOp(Op, name="roll"):
    """Elements moved along axes, those that leave at the end coming in at the start: y[i] = x[(i -
    shift) mod n].

    Example: `%y = "gradopt.roll"(%x) {shifts = array<i64: 1>, axes = array<i64: 0>} :
    (tensor<4xf32>) -> tensor<4xf32>`
    """

    x: Operand
    shifts: Ints
    axes: Ints
    y: Result

    @classmethod
    def infer(cls, x: TensorSpec, shifts: tuple[int, ...], axes: tuple[int, ...]) -> TensorSpec:
        if list(axes) != sorted(set(axes)) or not set(axes) <= set(range(x.rank)):
            raise cls.error(f"increasing axes of a tensor of rank {x.rank}", list(axes))
        if len(shifts) != len(axes):
            raise cls.error(f"a shift for each of {len(axes)} axes", list(shifts))
        known(cls, x, axes)
        return x

    @staticmethod
    def reference(x: np.ndarray, shifts: tuple[int, ...], axes: tuple[int, ...]) -> np.ndarray:
        return np.roll(x, shifts, axes)

    @staticmethod
    def decompose(x: Any, shifts: tuple[int, ...], axes: tuple[int, ...]) -> Any:
        """The last elements, then the first ones"""
        for shift, axis in zip(shifts, axes, strict=True):
            n = x.shape[axis]
            if n and shift % n:
                at = n - shift % n
                x = concat([slice_axis(x, axis, at, n), slice_axis(x, axis, 0, at)], axis)
        return x

    def vjp(self, ct: Any) -> list[Any]:
        """dx = ct rolled back"""
        return [RollOp.emit(ct, shifts=tuple(-s for s in self.shifts), axes=self.axes)]


class TileOp(Op, name="tile"):
    """The whole tensor repeated along each axis: y[i] = x[i mod n].

    Example: `%y = "gradopt.tile"(%x) {repeats = array<i64: 2, 1>} : (tensor<2x3xf32>) ->
    tensor<4x3xf32>`
    """

    x: Operand
    repeats: Ints
    y: Result

    @classmethod
    def infer(cls, x: TensorSpec, repeats: tuple[int, ...]) -> TensorSpec:
        if len(repeats) != x.rank or min(repeats, default=0) < 0:
            raise cls.error(f"a number of at least 0 for each of {x.rank} axes", list(repeats))
        known(cls, x, [a for a, r in enumerate(repeats) if r != 1])
        pairs = zip(x.shape, repeats, strict=True)
        return x.with_shape(n if n is None else n * r for n, r in pairs)

    @staticmethod
    def reference(x: np.ndarray, repeats: tuple[int, ...]) -> np.ndarray:
        return np.tile(x, repeats)

    @staticmethod
    def decompose(x: Any, repeats: tuple[int, ...]) -> Any:
        """Each axis as (repeats, n), the first of them broadcast"""
        return _repeated(x, repeats, outer=True)


class RepeatOp(Op, name="repeat"):
    """Each element repeated along an axis: y[i] = x[i div repeats].

    Example: `%y = "gradopt.repeat"(%x) {repeats = 2 : i64, axis = 0 : i64} : (tensor<3xf32>) ->
    tensor<6xf32>`
    """

    x: Operand
    repeats: Int
    axis: Int
    y: Result

    @classmethod
    def infer(cls, x: TensorSpec, repeats: int, axis: int) -> TensorSpec:
        if not 0 <= axis < x.rank:
            raise cls.error(f"an axis of a tensor of rank {x.rank}", axis)
        if repeats < 0:
            raise cls.error("a number of repeats of at least 0", repeats)
        (n,) = known(cls, x, [axis])
        return x.with_shape((*x.shape[:axis], n * repeats, *x.shape[axis + 1 :]))

    @staticmethod
    def reference(x: np.ndarray, repeats: int, axis: int) -> np.ndarray:
        return np.repeat(x, repeats, axis)

    @staticmethod
    def decompose(x: Any, repeats: int, axis: int) -> Any:
        """The axis as (n, repeats), the second of them broadcast"""
        return _repeated(x, [repeats if a == axis else 1 for a in range(x.ndim)], outer=False)


def _repeated(x: Any, repeats: Sequence[int], outer: bool) -> Any:
    """Axes repeated, whole (`outer`) or each element. Axes that are not stay as they are."""
    axes = [a for a, r in enumerate(repeats) if r != 1]
    if not axes:
        return x
    full: list[Any] = []
    dims: list[int] = []
    for a, n in enumerate(x.shape):
        if a in axes and outer:
            full.append(repeats[a])
        dims.append(len(full))
        full.append(n)
        if a in axes and not outer:
            full.append(repeats[a])
    spread = x.broadcast_in_dim(tuple(full), tuple(dims), like=(x,))
    shape = tuple(n * repeats[a] if a in axes else n for a, n in enumerate(x.shape))
    return spread.reshape_to(shape, like=(x,) if shape.count(None) > 1 else ())


class Triangle(Op):
    """The elements on one side of a diagonal of the last two axes, 0 on the other."""

    x: Operand
    k: Int = 0
    y: Result

    @classmethod
    def infer(cls, x: TensorSpec, k: int) -> TensorSpec:
        if x.rank < 2:
            raise cls.error("a tensor of at least two axes", x)
        known(cls, x, (x.rank - 2, x.rank - 1))
        return x

    def vjp(self, ct: Any) -> list[Any]:
        """dx = the same side of ct"""
        return [type(self).emit(ct, k=self.k)]


class TrilOp(Triangle, name="tril"):
    """Zeros above the k-th diagonal: y[..., i, j] = x[..., i, j] where j <= i + k, else 0.

    Example: `%y = "gradopt.tril"(%x) {k = -1 : i64} : (tensor<3x3xf32>) -> tensor<3x3xf32>`
    """

    @staticmethod
    def reference(x: np.ndarray, k: int) -> np.ndarray:
        return np.tril(x, k)

    @staticmethod
    def decompose(x: Any, k: int) -> Any:
        """A choice between x and 0 by row and column"""
        shape = x.shape[-2:]
        return select(iota(shape, 1) <= iota(shape, 0) + k, x, constant(0, x.dtype))


class TriuOp(Triangle, name="triu"):
    """Zeros below the k-th diagonal: y[..., i, j] = x[..., i, j] where j >= i + k, else 0.

    Example: `%y = "gradopt.triu"(%x) {k = 1 : i64} : (tensor<3x3xf32>) -> tensor<3x3xf32>`
    """

    @staticmethod
    def reference(x: np.ndarray, k: int) -> np.ndarray:
        return np.triu(x, k)

    @staticmethod
    def decompose(x: Any, k: int) -> Any:
        """A choice between x and 0 by row and column"""
        shape = x.shape[-2:]
        return select(iota(shape, 1) >= iota(shape, 0) + k, x, constant(0, x.dtype))


class DiagonalOp(Op, name="diagonal"):
    """A diagonal of two axes, as a new last axis in their place: y[..., i] = x[..., i, i + offset],
    or x[..., i - offset, i] for a negative offset.

    Example: `%y = "gradopt.diagonal"(%x) {offset = 1 : i64, axis1 = 0 : i64, axis2 = 1 : i64} :
    (tensor<3x4xf32>) -> tensor<3xf32>`
    """

    x: Operand
    offset: Int = 0
    axis1: Int
    axis2: Int
    y: Result

    @classmethod
    def infer(cls, x: TensorSpec, offset: int, axis1: int, axis2: int) -> TensorSpec:
        if axis1 == axis2 or not {axis1, axis2} <= set(range(x.rank)):
            raise cls.error(f"two axes of a tensor of rank {x.rank}", (axis1, axis2))
        n, m = known(cls, x, (axis1, axis2))
        count = _diagonal_length(n, m, offset)
        rest = [n for a, n in enumerate(x.shape) if a not in (axis1, axis2)]
        if count == 0 and None in rest:
            raise cls.error("known extents for an empty diagonal", x)
        return x.with_shape([*rest, count])

    @staticmethod
    def reference(x: np.ndarray, offset: int, axis1: int, axis2: int) -> np.ndarray:
        return np.diagonal(x, offset, axis1, axis2)

    @staticmethod
    def decompose(x: Any, offset: int, axis1: int, axis2: int) -> Any:
        """The two axes as one, of which every (m + 1)-th element: the gradient spreads, it does not
        scatter
        """
        x = moveaxis(x, (axis1, axis2), (x.ndim - 2, x.ndim - 1))
        *rest, n, m = x.shape
        count = _diagonal_length(n, m, offset)
        row, column = max(-offset, 0), max(offset, 0)
        if count == 0:
            return slice_axis(x, x.ndim - 2, 0, 0).reshape_to((*rest, 0))
        flat = x.reshape_to((*rest, n * m), like=(slice_axis(x, x.ndim - 1, 0, 1).squeeze(-1),))
        start = row * m + column
        return slice_axis(flat, flat.ndim - 1, start, start + (count - 1) * (m + 1) + 1, m + 1)


def _diagonal_length(n: int, m: int, offset: int) -> int:
    return max(0, min(n + min(offset, 0), m - max(offset, 0)))


class DiffOp(Op, name="diff"):
    """Differences of neighbours along an axis, n times over: y[i] = x[i + 1] - x[i]; of booleans,
    whether they differ.

    Example: `%y = "gradopt.diff"(%x) {n = 1 : i64, axis = 0 : i64} : (tensor<4xf32>) ->
    tensor<3xf32>`
    """

    x: Operand
    n: Int = 1
    axis: Int
    y: Result

    @classmethod
    def infer(cls, x: TensorSpec, n: int, axis: int) -> TensorSpec:
        if not 0 <= axis < x.rank:
            raise cls.error(f"an axis of a tensor of rank {x.rank}", axis)
        if n < 0:
            raise cls.error("a number of times of at least 0", n)
        (count,) = known(cls, x, [axis])
        return x.with_shape((*x.shape[:axis], max(0, count - n), *x.shape[axis + 1 :]))

    @staticmethod
    def reference(x: np.ndarray, n: int, axis: int) -> np.ndarray:
        return np.diff(x, n, axis)

    @staticmethod
    def decompose(x: Any, n: int, axis: int) -> Any:
        """x without its first less x without its last, n times"""
        combine: Any = logical_xor if x.dtype == bool_ else sub
        for _ in range(n):
            count = x.shape[axis]
            if count == 0:
                break
            later = slice_axis(x, axis, 1, count)
            earlier = slice_axis(x, axis, 0, count - 1)
            x = combine(later, earlier)
        return x


# --- functions ------------------------------------------------------------------------------------


def roll(x: Any, shift: int | Sequence[int], axis: int | Sequence[int] | None = None) -> Any:
    """Elements of `x` moved `shift` places along `axis` (of the flattened tensor if None), those
    that leave at one end coming in at the other. Several shifts are for as many axes.
    """
    x = as_tensor(x)
    if axis is None:
        return roll(x.flatten(), shift, 0).reshape_to(x.shape, like=(x,))
    axes = np.atleast_1d(axis).tolist()
    shifts = [shift] * len(axes) if isinstance(shift, int) else list(shift)
    if len(shifts) != len(axes):
        raise RollOp.error(f"a shift for each of {len(axes)} axes", shifts)
    total: dict[int, int] = {}
    for a, s in zip(axes, shifts, strict=True):  # an axis may come twice, as in NumPy
        (a,) = normalize_axes(RollOp, a, x.ndim)
        total[a] = total.get(a, 0) + s
    found = tuple(sorted(total))
    return RollOp.emit(x, shifts=tuple(total[a] for a in found), axes=found)


def tile(x: Any, repeats: int | Sequence[int]) -> Any:
    """`x` repeated `repeats` times along each axis, as NumPy's tile."""
    x = as_tensor(x)
    times = (repeats,) if isinstance(repeats, int) else tuple(repeats)
    if len(times) > x.ndim:
        x = x.expand_dims(tuple(range(len(times) - x.ndim)))
    return TileOp.emit(x, repeats=(1,) * (x.ndim - len(times)) + times)


def repeat(x: Any, repeats: int | Sequence[int], axis: int | None = None) -> Any:
    """Each element of `x` repeated along `axis` (of the flattened tensor if None): as often as the
    number `repeats` says, or the number for its position.
    """
    x = as_tensor(x)
    if axis is None:
        return repeat(x.flatten(), repeats, 0)
    (axis,) = normalize_axes(RepeatOp, axis, x.ndim)
    if isinstance(repeats, ir.Value):
        raise RepeatOp.error(
            "repeats that are known", repeats, "the result's shape must not depend on data"
        )
    if np.ndim(repeats) == 0 or np.shape(repeats) == (1,):
        repeats = int(np.asarray(repeats).reshape(()))
        return RepeatOp.emit(x, repeats=repeats, axis=axis)
    (n,) = known(RepeatOp, x.spec, [axis])
    counts = np.asarray(repeats, np.int64)
    if counts.shape != (n,) or counts.min(initial=0) < 0:
        raise RepeatOp.error(f"a number of repeats for each of {n} positions", counts.tolist())
    return take(x, np.repeat(np.arange(n, dtype=np.int32), counts), axis)


def tril(x: Any, k: int = 0) -> Any:
    """`x` with zeros above the k-th diagonal of its last two axes."""
    return TrilOp.emit(as_tensor(x), k=k)


def triu(x: Any, k: int = 0) -> Any:
    """`x` with zeros below the k-th diagonal of its last two axes."""
    return TriuOp.emit(as_tensor(x), k=k)


def diagonal(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """The elements i, i + offset of two axes, along a new last axis in their place."""
    x = as_tensor(x)
    first, second = (normalize_axes(DiagonalOp, a, x.ndim)[0] for a in (axis1, axis2))
    return DiagonalOp.emit(x, offset=offset, axis1=first, axis2=second)


def matrix_trace(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """The sum of a diagonal, NumPy's trace."""
    return reduction.sum(diagonal(x, offset, axis1, axis2), -1)


def diff(x: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Any:
    """Differences of neighbours along `axis`, `n` times over. `prepend` and `append` are put before
    and behind first: numbers, or tensors that match but along the axis.
    """
    x = as_tensor(x)
    (axis,) = normalize_axes(DiffOp, axis, x.ndim)

    def edge(value: Any) -> list[Any]:
        if value is None:
            return []
        value = as_tensor(value, x.dtype if elementwise.is_scalar(value) else None)
        if value.ndim == 0:
            first = slice_axis(x, axis, 0, 1) if x.shape[axis] else x
            shape = tuple(1 if a == axis else m for a, m in enumerate(x.shape))
            value = value.broadcast_to(shape, like=(first,))
        return [value]

    parts = [*edge(prepend), x, *edge(append)]
    return DiffOp.emit(concat(parts, axis) if len(parts) > 1 else x, n=n, axis=axis)
