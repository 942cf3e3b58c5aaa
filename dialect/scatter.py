# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Writing at positions along an axis: the new value, or the larger or smaller of old and new.

Updates are taken one after the other, in row-major order of the indices, so what repeated positions
give is the same on every target. Indices are those of indexing.py.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import OpError
from . import builder as builders
from .base import OPS, in_float32
from .creation import constant, full, iota, zeros_like
from .elementwise import as_tensor
from .indexing import Scatter, ScatterAddOp, TakeOp, check_indices
from .logic import select
from .reduction import sum as sum_of
from .shape import normalize_axes
from .types import TensorSpec, bool_, int32, int64, limits_of, uint8, uint32, uint64


class ScatterSetOp(Scatter, name="scatter_set"):
    """x with slices replaced at the given positions: y = x, then y[a, indices[i], b] = updates[a,
    i, b] for every i. The last update of a position stays, and gets its gradient.

    Example: `%y = "gradopt.scatter_set"(%x, %i, %u) {axis = 0 : i64}
    : (tensor<10x4xf32>, tensor<3xi32>, tensor<3x4xf32>) -> tensor<10x4xf32>`
    """

    @classmethod
    def combine(cls, old: np.ndarray, update: np.ndarray) -> np.ndarray:
        return update

    def vjp(self, ct: Any) -> list[Any]:
        """dx = ct with zeros at the positions, dupdates = ct at the positions for the update that
        stayed, 0 for the others
        """
        axis, indices = self.axis, self.indices
        dx = ScatterSetOp.emit(ct, indices, zeros_like(self.updates), axis=axis)
        if indices.spec.size is None:
            raise self.error("a known number of indices for a gradient", indices.spec)
        order = constant(np.arange(indices.spec.size).astype(np.int32)).reshape(indices.shape)
        nobody = full(self.x.shape[axis], -1, int32)
        last = ScatterMaxOp.emit(nobody, indices, order, axis=0)
        stayed = TakeOp.emit(last, indices, axis=0).equal(order)
        du = TakeOp.emit(ct, indices, axis=axis)
        dims = tuple(range(axis, axis + indices.ndim))
        stayed = stayed.broadcast_in_dim(du.shape, dims, like=(du,))
        return [dx, None, select(stayed, du, 0)]


class ScatterExtreme(Scatter):
    """The largest or smallest of what is there and all updates of a position."""

    @in_float32
    def vjp(self, ct: Any) -> list[Any]:
        """ct split evenly among what is equal to y: x itself and the updates of the position"""
        axis, indices, y = self.axis, self.indices, self.y
        there = self.x.equal(y)
        given = self.updates.equal(TakeOp.emit(y, indices, axis=axis))
        ties = ScatterAddOp.emit(there.astype(ct.dtype), indices, given.astype(ct.dtype), axis=axis)
        share = select(ties.equal(0), 0, ct / ties)
        du = select(given, TakeOp.emit(share, indices, axis=axis), 0)
        return [select(there, share, 0), None, du]


class ScatterMaxOp(ScatterExtreme, name="scatter_max"):
    """x with larger slices at the given positions: y = x, then y[a, indices[i], b] = max(y[a,
    indices[i], b], updates[a, i, b]) for every i; NaN if any is. Ties share the gradient evenly.

    Example: `%y = "gradopt.scatter_max"(%x, %i, %u) {axis = 0 : i64}
    : (tensor<10x4xf32>, tensor<3xi32>, tensor<3x4xf32>) -> tensor<10x4xf32>`
    """

    @classmethod
    def combine(cls, old: np.ndarray, update: np.ndarray) -> np.ndarray:
        return np.maximum(old, update)


class ScatterMinOp(ScatterExtreme, name="scatter_min"):
    """x with smaller slices at the given positions: y = x, then y[a, indices[i], b] = min(y[a,
    indices[i], b], updates[a, i, b]) for every i; NaN if any is. Ties share the gradient evenly.

    Example: `%y = "gradopt.scatter_min"(%x, %i, %u) {axis = 0 : i64}
    : (tensor<10x4xf32>, tensor<3xi32>, tensor<3x4xf32>) -> tensor<10x4xf32>`
    """

    @classmethod
    def combine(cls, old: np.ndarray, update: np.ndarray) -> np.ndarray:
        return np.minimum(old, update)


# --- functions ------------------------------------------------------------------------------------

MODES = ("set", "add", "mul", "max", "min")


def scatter(mode: str, x: Any, indices: Any, updates: Any, axis: int = 0) -> Any:
    """`x` with slices of `updates` written along `axis` at integer positions: set, add, mul, max or
    min, in row-major order of the indices. Booleans are set, their max is or, their min and.
    """
    x = as_tensor(x)
    op_class = OPS[f"scatter_{mode}"]
    (axis,) = normalize_axes(op_class, axis, x.ndim)
    updates = as_tensor(updates, x.dtype)
    if x.dtype == bool_ and mode in ("set", "max", "min"):
        x, updates = x.astype(uint8), updates.astype(uint8)
        return op_class.emit(x, as_tensor(indices), updates, axis=axis).astype(bool_)
    return op_class.emit(x, as_tensor(indices), updates, axis=axis)


def scatter_set(x: Any, indices: Any, updates: Any, axis: int = 0) -> Any:
    """`x` with slices replaced by those of `updates` along `axis` at integer positions; of repeated
    positions the last one stays.
    """
    return scatter("set", x, indices, updates, axis)


def scatter_mul(x: Any, indices: Any, updates: Any, axis: int = 0) -> Any:
    """`x` with slices multiplied by those of `updates` along `axis` at integer positions, by each
    of repeated ones.
    """
    return scatter("mul", x, indices, updates, axis)


def scatter_max(x: Any, indices: Any, updates: Any, axis: int = 0) -> Any:
    """The larger of `x` and the slices of `updates` along `axis` at integer positions."""
    return scatter("max", x, indices, updates, axis)


def scatter_min(x: Any, indices: Any, updates: Any, axis: int = 0) -> Any:
    """The smaller of `x` and the slices of `updates` along `axis` at integer positions."""
    return scatter("min", x, indices, updates, axis)


def as_index(indices: Any) -> Any:
    """Integers in a type that holds every position and is signed."""
    if indices.dtype == uint64:
        indices = indices.clip(max=np.iinfo(np.int64).max)
    return indices.astype(int64 if indices.dtype in (uint64, uint32, int64) else int32)


def positions(indices: Any, extent: int) -> Any:
    """Integer indices (tensor or array) as positions in [0, extent), in 32 bits."""
    i = as_index(as_tensor(indices))
    return select(i < 0, i + extent, i).clip(0, max(extent - 1, 0)).astype(int32)


def flat_positions(indices: Sequence[Any], extents: Sequence[int]) -> Any:
    """Row-major positions in a block of `extents` from the positions along each axis."""
    if math.prod(extents) > np.iinfo(np.int32).max:
        raise OpError(
            f"indexing expected at most 2^31 - 1 elements along the indexed axes, got {extents}; "
            "index one axis at a time"
        )
    flat = None
    for index, n in zip(indices, extents, strict=True):
        i = positions(index, n)
        flat = i if flat is None else flat * n + i
    return flat


def put_along_axis(x: Any, indices: Any, values: Any, axis: int, mode: str = "set") -> Any:
    """`x` with elements of `values` written along `axis`, each at the position that `indices` has
    at its place: set, add, mul, max or min. The inverse of `take_along_axis`.

    Extents of other axes have to be known, but for adding.
    """
    with builders.owner("put_along_axis", (x, indices, values)):
        x, indices = as_tensor(x), as_tensor(indices)
        values = as_tensor(values, x.dtype)
        if mode not in MODES:
            raise OpError(f"put_along_axis expected a mode out of {', '.join(MODES)}, got '{mode}'")
        (axis,) = normalize_axes(ScatterSetOp, axis, x.ndim)
        check_indices(TakeOp, x.spec, indices.spec, axis)
        if indices.ndim != x.ndim:
            raise ScatterSetOp.error(f"indices of rank {x.ndim}", indices.spec)
        wanted = tuple(indices.shape[a] if a == axis else n for a, n in enumerate(x.shape))
        likes = [v for v in (x, indices) if None in v.shape]
        indices = indices.broadcast_to(wanted, like=likes)
        values = values.broadcast_to(wanted, like=[*likes, indices])
        if x.spec.is_static and indices.spec.is_static:
            return _put_static(mode, x, indices, values, axis)
        if mode != "add" or x.shape[axis] is None:
            raise ScatterSetOp.error("known extents", x.spec, "declare them")
        return _add_dense(x, indices, values, axis)


def _put_static(mode: str, x: Any, indices: Any, values: Any, axis: int) -> Any:
    """As a scatter into the flattened tensor."""
    places = [indices if a == axis else iota(indices.spec.extents, a) for a in range(indices.ndim)]
    flat = flat_positions(places, x.spec.extents).reshape(-1)
    return scatter(mode, x.reshape(-1), flat, values.reshape(-1)).reshape(x.shape)


def _add_dense(x: Any, indices: Any, values: Any, axis: int) -> Any:
    """Every element of `values` compared with every place along the axis: extents of the others
    may be unknown.
    """
    n = x.shape[axis]
    ramp = constant(np.arange(n).astype(np.int32)).reshape(
        [n if a == axis + 1 else 1 for a in range(x.ndim + 1)]
    )
    where = positions(indices, n).expand_dims(axis + 1).equal(ramp)
    return x + sum_of(select(where, values.expand_dims(axis + 1), 0), axis)


def segment_sum(data: Any, segment_ids: Any, num_segments: int) -> Any:
    """Sums of the slices of `data` along its first axis that have one id in [0, num_segments);
    slices with an id outside are left out.
    """
    return _segments("add", data, segment_ids, num_segments, 0)


def segment_max(data: Any, segment_ids: Any, num_segments: int) -> Any:
    """Largest of the slices of `data` along its first axis that have one id in [0, num_segments);
    the least number (-inf) of none. Slices with an id outside are left out.
    """
    data = as_tensor(data)
    return _segments("max", data, segment_ids, num_segments, limits_of(data.dtype)[0])


def _segments(mode: str, data: Any, ids: Any, count: int, start: float) -> Any:
    """Slices scattered into `count` segments and one more, which takes those left out."""
    with builders.owner(f"segment_{mode}", (data, ids)):
        data, ids = as_tensor(data), as_tensor(ids)
        check_indices(TakeOp, TensorSpec((count + 1,), int32), ids.spec, 0)
        if ids.ndim != 1 or data.ndim < 1:
            raise OpError(f"segments expected a row of ids and slices, got {ids.spec}")
        ids = as_index(ids)
        ids = select((ids < 0) | (ids >= count), count, ids)
        shape = (count + 1, *data.shape[1:])
        table = (
            constant(start, data.dtype).broadcast_to(shape, like=(data,))
            if None in shape
            else full(shape, start, data.dtype)
        )
        return scatter(mode, table, ids, data).slice_axis(0, 0, count)
