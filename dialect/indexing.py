# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Reading and adding at positions given by integer tensors.

A negative index counts from the end; one that is still outside counts as the nearest position
inside, on every target.
"""

from typing import Any

import numpy as np

from ..errors import OpError
from .base import Int, Op, Operand, Result
from .creation import zeros_like
from .elementwise import as_tensor
from .shape import moveaxis, normalize_axes
from .slicing import SliceOp, flip
from .types import TensorSpec, bool_, is_integer


class TakeOp(Op, name="take"):
    """Slices of x along an axis at the given positions: y[a, i, b] = x[a, indices[i], b].

    Example: `%y = "gradopt.take"(%x, %i) {axis = 0 : i64} : (tensor<10x4xf32>, tensor<2x3xi32>) ->
    tensor<2x3x4xf32>`
    """

    x: Operand
    indices: Operand
    axis: Int = 0
    y: Result

    @classmethod
    def infer(cls, x: TensorSpec, indices: TensorSpec, axis: int) -> TensorSpec:
        check_indices(cls, x, indices, axis)
        return x.with_shape(x.shape[:axis] + indices.shape + x.shape[axis + 1 :])

    @staticmethod
    def reference(x: np.ndarray, indices: np.ndarray, axis: int) -> np.ndarray:
        return np.take(x, inside(indices, x.shape[axis]), axis)

    def vjp(self, ct: Any) -> list[Any]:
        """dx = zeros, to which each slice of ct is added where it came from"""
        return [ScatterAddOp.emit(zeros_like(self.x), self.indices, ct, axis=self.axis), None]


class ScatterAddOp(Op, name="scatter_add"):
    """x with slices added at the given positions: y = x, then y[a, indices[i], b] += updates[a, i,
    b] for every i.

    Repeated positions add up.
    Example: `%y = "gradopt.scatter_add"(%x, %i, %u) {axis = 0 : i64}
    : (tensor<10x4xf32>, tensor<3xi32>, tensor<3x4xf32>) -> tensor<10x4xf32>`
    """

    UPDATES = True
    x: Operand
    indices: Operand
    updates: Operand
    axis: Int = 0
    y: Result

    @classmethod
    def infer(
        cls, x: TensorSpec, indices: TensorSpec, updates: TensorSpec, axis: int
    ) -> TensorSpec:
        check_indices(cls, x, indices, axis)
        expected = x.with_shape(x.shape[:axis] + indices.shape + x.shape[axis + 1 :])
        if updates != expected:
            raise cls.error(f"updates of type {expected}", updates)
        return x

    @staticmethod
    def reference(x: np.ndarray, indices: np.ndarray, updates: np.ndarray, axis: int) -> np.ndarray:
        y = x.copy()
        where: Any = (slice(None),) * axis + (inside(indices, x.shape[axis]),)
        np.add.at(y, where, updates)
        return y

    def vjp(self, ct: Any) -> list[Any]:
        """dx = ct, dupdates = ct at the positions"""
        return [ct, None, TakeOp.emit(ct, self.indices, axis=self.axis)]


def check_indices(op_class: type[Op], x: TensorSpec, indices: TensorSpec, axis: int) -> None:
    """Raise unless `indices` are integers and `axis` an axis of `x` that has elements and a known
    extent.
    """
    if not is_integer(indices.dtype):
        raise op_class.error("integer indices", indices)
    if not 0 <= axis < x.rank:
        raise op_class.error(f"an axis of a tensor of rank {x.rank}", axis)
    if x.shape[axis] is None or (x.shape[axis] == 0 and indices.size != 0):
        raise op_class.error(f"a known extent of at least 1 on axis {axis}", x)
    if x.dtype == bool_ and op_class is ScatterAddOp:
        raise op_class.error("a numeric operand", x)


def inside(indices: np.ndarray, extent: int) -> np.ndarray:
    """Positions in [0, extent): negative ones counted from the end, then the nearest."""
    wide = indices.astype(np.int64)
    return np.clip(np.where(wide < 0, wide + extent, wide), 0, max(extent - 1, 0))


# --- functions ------------------------------------------------------------------------------------


def take(x: Any, indices: Any, axis: int = 0) -> Any:
    """Slices of `x` along `axis` at integer positions `indices`, whose shape takes the place of the
    axis.
    """
    x = as_tensor(x)
    return TakeOp.emit(x, as_tensor(indices), axis=normalize_axes(TakeOp, axis, x.ndim)[0])


def embedding(table: Any, ids: Any) -> Any:
    """Rows of `table` (rows, dim) at `ids` (...), giving (..., dim)."""
    return take(table, ids, axis=0)


def scatter_add(x: Any, indices: Any, updates: Any, axis: int = 0) -> Any:
    """`x` with slices of `updates` added along `axis` at integer positions; repeated positions add
    up.
    """
    x = as_tensor(x)
    updates = as_tensor(updates, x.dtype)
    return ScatterAddOp.emit(
        x, as_tensor(indices), updates, axis=normalize_axes(ScatterAddOp, axis, x.ndim)[0]
    )


def getitem(x: Any, key: Any) -> Any:
    """`x[key]` for integers, slices (negative steps too), None, `...` and at most one integer array
    or tensor.
    """
    items = _full_key(x, key)
    axis, array_axes = 0, range(0)
    for item in items:  # every item leaves `axis` after what it made
        if item is None:
            x = x.expand_dims(axis)
            axis += 1
        elif isinstance(item, slice):
            x = _slice(x, axis, item)
            axis += 1
        elif _is_integer(item):
            x = _pick(x, axis, int(item))
        else:
            indices = _indices(item)
            x = TakeOp.emit(x, indices, axis=axis)
            array_axes = range(axis, axis + indices.ndim)
            axis += indices.ndim
    numbers = [i for i, item in enumerate(items) if not (item is None or isinstance(item, slice))]
    if array_axes and numbers != list(range(numbers[0], numbers[-1] + 1)):
        return moveaxis(x, tuple(array_axes), tuple(range(len(array_axes))))  # as NumPy has it
    return x


def _is_integer(item: Any) -> bool:
    return isinstance(item, int | np.integer) and not isinstance(item, bool)


def _indices(item: Any) -> Any:
    try:
        indices = as_tensor(item)
    except OpError:
        got, remedy = f"{type(item).__name__} {item!r:.40}", ""
    else:
        if is_integer(indices.dtype):
            return indices
        got, remedy = indices.spec, "shapes must not depend on data: use where() for a mask"
    raise TakeOp.error("an index of integers, slices, None, ... or an integer array", got, remedy)


def _full_key(x: Any, key: Any) -> list[Any]:
    """One item an axis of `x`, plus None for each new axis; `...` and what is left out written as
    full slices.
    """
    items = list(key) if isinstance(key, tuple) else [key]
    used = sum(item is not None and item is not Ellipsis for item in items)
    if used > x.ndim:
        raise SliceOp.error(f"at most {x.ndim} indices for {x.spec}", used)
    if sum(not isinstance(i, int | np.integer | slice | None | type(Ellipsis)) for i in items) > 1:
        raise TakeOp.error("at most one index array", "several", "flatten the axes and index once")
    dots = [i for i, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1:
        raise SliceOp.error("at most one `...`", len(dots))
    at = dots[0] if dots else len(items)
    return items[:at] + [slice(None)] * (x.ndim - used) + items[at + 1 :]


def _slice(x: Any, axis: int, item: slice) -> Any:
    if item.start is item.stop is item.step is None:
        return x
    n = x.shape[axis]
    if n is None:
        raise SliceOp.error(f"axis {axis}, whose extent is unknown, to be kept whole", item)
    if item.step == 0:
        raise SliceOp.error("a step other than 0", item)
    start, stop, step = item.indices(n)
    count = len(range(start, stop, step))
    if count == 0:
        return x.slice_axis(axis, 0, 0)
    if step > 0:
        return x.slice_axis(axis, start, start + (count - 1) * step + 1, step)
    return flip(x.slice_axis(axis, start + (count - 1) * step, start + 1, -step), axis)


def _pick(x: Any, axis: int, position: int) -> Any:
    n = x.shape[axis]
    if n is None:
        raise SliceOp.error(f"axis {axis}, whose extent is unknown, to be kept whole", position)
    if not -n <= position < n:
        raise SliceOp.error(f"an index in [-{n}, {n}) on axis {axis} of {x.spec}", position)
    return x.slice_axis(axis, position % n, position % n + 1).squeeze(axis)
