# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The same elements under another shape, with axes in another order, or repeated.

A result extent that is known only at run time is taken from the operands: from `x` where it maps to
it, else from one of the `like` operands, which have the result's shape or the extents in question.
"""

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import OpError, PlaceError
from .base import Extents, Ints, Op, Operand, Operands, Result
from .elementwise import as_tensor, broadcast_shapes
from .types import TensorSpec


def normalize_axes(
    op_class: type[Op], axis: int | Sequence[int] | None, rank: int
) -> tuple[int, ...]:
    """`axis` (an int, several, or None for all) as increasing axes, negative ones counted from the
    end.
    """
    if axis is None:
        return tuple(range(rank))
    if type(axis) is int and -rank <= axis < rank:
        return (axis % rank,)
    try:
        several = axis if isinstance(axis, tuple | list) else np.atleast_1d(axis)
        given = [operator.index(a) for a in several]
    except TypeError:
        raise op_class.error("whole numbers as axes", axis) from None
    for a in given:
        if not -rank <= a < rank:
            raise op_class.error(f"an axis in [{-rank}, {rank})", a, kind=PlaceError)
    axes = sorted(a % rank for a in given)
    if len(set(axes)) != len(axes):
        raise op_class.error("distinct axes", tuple(given))
    return tuple(axes)


class ReshapeOp(Op, name="reshape"):
    """The same elements in row-major order under another shape; one extent may be unknown, more are
    taken from `like`.

    Example: `%y = "gradopt.reshape"(%x) {shape = array<i64: 6>} : (tensor<2x3xf32>) ->
    tensor<6xf32>`
    """

    x: Operand
    like: Operands
    shape: Extents
    y: Result

    @classmethod
    def infer(cls, x: TensorSpec, *like: TensorSpec, shape: tuple[int | None, ...]) -> TensorSpec:
        y = x.with_shape(shape)
        if x.size is not None and y.size is not None and x.size != y.size:
            raise cls.error(f"a shape of {x.size} elements", y)
        if x.is_static and not y.is_static:
            raise cls.error("a static shape, as the operand's is", y)
        unknown = [i for i, n in enumerate(shape) if n is None]
        if len(unknown) > 1 and not (
            like and like[0].rank == y.rank and all(like[0].shape[i] is None for i in unknown)
        ):
            raise cls.error("at most one unknown extent", y, "give an operand `like` of that shape")
        return y

    @staticmethod
    def reference(x: np.ndarray, *like: np.ndarray, shape: tuple[int | None, ...]) -> np.ndarray:
        if shape.count(None) > 1:
            return x.reshape(
                [m if n is None else n for n, m in zip(shape, like[0].shape, strict=True)]
            )
        return x.reshape([-1 if n is None else n for n in shape])

    def vjp(self, ct: Any) -> list[Any]:
        """dx = ct in x's shape"""
        return [ct.reshape_to(self.x.shape, like=(self.x,)), *[None] * len(self.like)]


class TransposeOp(Op, name="transpose"):
    """Axes in another order: axis i of the result is axis permutation[i] of the operand.

    Example: `%y = "gradopt.transpose"(%x) {permutation = array<i64: 1, 0>} : (tensor<2x3xf32>) ->
    tensor<3x2xf32>`
    """

    x: Operand
    permutation: Ints
    y: Result

    @classmethod
    def infer(cls, x: TensorSpec, permutation: tuple[int, ...]) -> TensorSpec:
        if sorted(permutation) != list(range(x.rank)):
            raise cls.error(f"a permutation of the {x.rank} axes of {x}", list(permutation))
        return x.with_shape(x.shape[p] for p in permutation)

    @staticmethod
    def reference(x: np.ndarray, permutation: tuple[int, ...]) -> np.ndarray:
        return np.transpose(x, permutation)

    def vjp(self, ct: Any) -> list[Any]:
        """dx = ct with the permutation undone"""
        return [transpose(ct, np.argsort(self.permutation).tolist())]


class BroadcastOp(Op, name="broadcast"):
    """Repetition: axis i of the operand becomes axis dims[i] of the result; extents of 1 and new
    axes are repeated.

    Example: `%y = "gradopt.broadcast"(%x) {shape = array<i64: 2, 3>, dims = array<i64: 1>} :
    (tensor<3xf32>) -> tensor<2x3xf32>`
    """

    x: Operand
    like: Operands
    shape: Extents
    dims: Ints
    y: Result

    @classmethod
    def infer(
        cls, x: TensorSpec, *like: TensorSpec, shape: tuple[int | None, ...], dims: tuple[int, ...]
    ) -> TensorSpec:
        y = x.with_shape(shape)
        if (
            len(dims) != x.rank
            or list(dims) != sorted(set(dims))
            or not set(dims) <= set(range(y.rank))
        ):
            raise cls.error(f"dims to give each axis of {x} an axis of {y}, increasing", list(dims))
        for axis, dim in enumerate(dims):
            if x.shape[axis] not in (1, y.shape[dim]):
                raise cls.error(f"axis {axis} of {x} to be 1 or that of the result", y)
        for dim in cls.unknown(x, shape, dims):
            if not any(l.rank == y.rank and l.shape[dim] is None for l in like):
                raise cls.error(f"an operand `like` with an unknown extent {dim}", y)
        return y

    @staticmethod
    def unknown(x: TensorSpec, shape: tuple[int | None, ...], dims: tuple[int, ...]) -> list[int]:
        """Result axes whose extent is unknown and cannot be read from `x`."""
        own = {dim for axis, dim in enumerate(dims) if x.shape[axis] is None}
        return [i for i, n in enumerate(shape) if n is None and i not in own]

    @staticmethod
    def reference(
        x: np.ndarray, *like: np.ndarray, shape: tuple[int | None, ...], dims: tuple[int, ...]
    ) -> np.ndarray:
        placed = x.reshape([x.shape[dims.index(i)] if i in dims else 1 for i in range(len(shape))])
        extents: Any = list(shape)
        for i, n in enumerate(shape):
            if n is None:
                found = [placed.shape[i], *(l.shape[i] for l in like)]
                extents[i] = next((m for m in found if m != 1), 1)
        return np.broadcast_to(placed, extents)

    def vjp(self, ct: Any) -> list[Any]:
        """dx = ct summed over the repeated axes"""
        x, shape, dims = self.x, self.shape, self.dims
        repeated = [
            i
            for i in range(len(shape))
            if i not in dims or (x.shape[dims.index(i)] == 1 and shape[i] != 1)
        ]
        return [
            ct.sum(repeated).reshape_to(x.shape, like=(x,)) if repeated else ct,
            *[None] * len(self.like),
        ]


# --- functions ------------------------------------------------------------------------------------


def reshape(x: Any, shape: int | Sequence[int], *, copy: bool | None = None) -> Any:
    """`x` under another shape, in row-major order; one extent may be -1 and is found. The result
    is another tensor, whose elements nobody else changes, whatever `copy` is.
    """
    x = as_tensor(x)
    wanted: list[int | None] = [shape] if isinstance(shape, int) else list(shape)
    if wanted.count(-1) > 1:
        raise ReshapeOp.error("at most one extent of -1", wanted)
    if -1 in wanted:
        rest = math.prod(n for n in wanted if n is not None and n != -1)
        size = x.size
        if size is None:
            wanted[wanted.index(-1)] = None
        elif rest == 0 or size % rest:
            raise ReshapeOp.error(f"extents that divide {size} elements", wanted)
        else:
            wanted[wanted.index(-1)] = size // rest
    return _other(x, reshape_to(x, tuple(wanted)))


def unchanged(x: Any) -> Any:
    """`x` as the result of a function that has nothing to do to it: a tensor of a graph itself; of
    an array another one of the same elements, so that writing to one does not change the other.
    """
    return ReshapeOp.emit(x, shape=x.shape) if hasattr(x, "numpy") else x


def _other(x: Any, y: Any) -> Any:
    """`y`, which may be `x` itself where there was nothing to do."""
    return unchanged(x) if y is x else y


def reshape_to(x: Any, shape: tuple[int | None, ...], like: Sequence[Any] = ()) -> Any:
    """`x` under `shape`, whose unknown extents (None), if several, are those of the tensor in
    `like`.
    """
    if tuple(shape) == x.shape and tuple(shape).count(None) <= 1:
        return x
    return ReshapeOp.emit(x, *(like if tuple(shape).count(None) > 1 else ()), shape=tuple(shape))


def transpose(x: Any, axes: Sequence[int] | None = None) -> Any:
    """Axes in another order; reversed if none is given."""
    x = as_tensor(x)
    order = (
        tuple(range(x.ndim))[::-1]
        if axes is None
        else tuple(a % x.ndim if -x.ndim <= a < x.ndim else a for a in axes)
    )
    if order == tuple(range(x.ndim)):
        return unchanged(x)
    return TransposeOp.emit(x, permutation=order)


def permute_dims(x: Any, axes: Sequence[int]) -> Any:
    """Axes in another order: axis i of the result is axis axes[i] of `x`."""
    return transpose(x, axes)


def matrix_transpose(x: Any) -> Any:
    """`x` with its last two axes exchanged."""
    x = as_tensor(x)
    if x.ndim < 2:
        raise TransposeOp.error("a tensor of at least two axes", x.spec)
    return swapaxes(x, -1, -2)


def swapaxes(x: Any, a: int, b: int) -> Any:
    """`x` with two axes exchanged."""
    order = list(range(x.ndim))
    order[a], order[b] = order[b], order[a]
    return transpose(x, order)


def moveaxis(x: Any, source: int | Sequence[int], destination: int | Sequence[int]) -> Any:
    """`x` with axes moved to other places; the rest keep their order."""
    sources, places = ((a,) if isinstance(a, int) else tuple(a) for a in (source, destination))
    if len(sources) != len(places):
        raise TransposeOp.error(f"a place for each of {len(sources)} axes", f"{len(places)} places")
    normalize_axes(TransposeOp, places, x.ndim)
    rest = [i for i in range(x.ndim) if i not in normalize_axes(TransposeOp, sources, x.ndim)]
    for place, axis in sorted(
        (p % x.ndim, a % x.ndim) for p, a in zip(places, sources, strict=True)
    ):
        rest.insert(place, axis)
    return transpose(x, rest)


def broadcast_in_dim(
    x: Any, shape: tuple[int | None, ...], dims: tuple[int, ...], like: Sequence[Any] = ()
) -> Any:
    """Axis i of `x` as axis dims[i] of a result of `shape`; unknown extents not in x are read from
    tensors in `like` that have its rank.
    """
    unknown = BroadcastOp.unknown(x.spec, shape, dims)
    full = [l for l in like if len(l.shape) == len(shape)]
    every = [l for l in full if all(l.shape[i] is None for i in unknown)]
    if len(unknown) > 1 and not every:  # from several tensors: an axis after the other
        step = tuple(1 if i in unknown[1:] else n for i, n in enumerate(shape))
        x = broadcast_in_dim(x, step, dims, like)
        return broadcast_in_dim(x, shape, tuple(range(len(shape))), like)
    used = every[:1] if unknown else []
    return BroadcastOp.emit(x, *used, shape=tuple(shape), dims=tuple(dims))


def broadcast_to(x: Any, shape: Sequence[int | None], like: Sequence[Any] = ()) -> Any:
    """`x` repeated to `shape` by NumPy's rules; unknown extents (None) are those of the tensors in
    `like`.
    """
    x, shape = as_tensor(x), tuple(shape)
    if x.shape == shape:
        return unchanged(x)
    if len(x.shape) > len(shape) or broadcast_shapes(BroadcastOp, x.shape, shape) != shape:
        raise BroadcastOp.error(f"a shape that {x.spec} broadcasts to", shape)
    return broadcast_in_dim(x, shape, tuple(range(len(shape) - x.ndim, len(shape))), like)


def broadcast_arrays(*xs: Any) -> list[Any]:
    """The tensors, each repeated to the shape that NumPy's rules give them together."""
    tensors = [as_tensor(x) for x in xs]
    shape = broadcast_shapes(BroadcastOp, *(t.shape for t in tensors)) if tensors else ()
    likes = [t for t in tensors if None in t.shape]
    return [broadcast_to(t, shape, likes) for t in tensors]


def meshgrid(*xs: Any, indexing: str = "xy") -> list[Any]:
    """Rows as coordinates of a grid: tensors of all combinations of their elements, one for each
    row. With indexing "xy" the first two axes are exchanged, as in pictures; "ij" keeps the order.
    """
    if indexing not in ("xy", "ij"):
        raise OpError(f"meshgrid expected indexing 'xy' or 'ij', got {indexing!r}")
    rows = [as_tensor(x) for x in xs]
    if any(r.ndim != 1 for r in rows):
        raise OpError(f"meshgrid expected rows, got {', '.join(str(r.spec) for r in rows)}")
    order = list(range(len(rows)))
    if indexing == "xy" and len(rows) > 1:
        order[:2] = 1, 0
    spread = [
        expand_dims(r, [a for a in range(len(rows)) if a != order[i]]) for i, r in enumerate(rows)
    ]
    return broadcast_arrays(*spread)


def expand_dims(x: Any, axis: int | Sequence[int] = 0) -> Any:
    """`x` with extents of 1 at the places `axis` of the result."""
    count = np.size(axis)
    axes = normalize_axes(ReshapeOp, axis, x.ndim + count)
    kept = tuple(i for i in range(x.ndim + count) if i not in axes)
    shape = tuple(x.shape[kept.index(i)] if i in kept else 1 for i in range(x.ndim + count))
    if shape.count(None) > 1:
        return broadcast_in_dim(x, shape, kept)
    return _other(x, reshape_to(x, shape))


def squeeze(x: Any, axis: int | Sequence[int] | None = None) -> Any:
    """`x` without the extents of 1 at `axis` (all of them if None)."""
    x = as_tensor(x)
    axes = (
        [i for i, n in enumerate(x.shape) if n == 1]
        if axis is None
        else normalize_axes(ReshapeOp, axis, x.ndim)
    )
    for a in axes:
        if x.shape[a] != 1:
            raise ReshapeOp.error(f"axis {a} to have an extent of 1", x.spec)
    return _other(x, reshape_to(x, tuple(n for i, n in enumerate(x.shape) if i not in axes)))
