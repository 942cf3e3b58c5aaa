# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Reading and adding at positions given by integer tensors.

A negative index counts from the end; one that is still outside counts as the nearest position
inside, on every target.
"""

from typing import Any

import numpy as np

from .base import Int, Op, Operand, Result
from .creation import zeros_like
from .elementwise import as_tensor
from .shape import normalize_axes
from .types import TensorSpec, bool_, is_integer, uint64


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
        try:
            return np.take(x, indices, axis)  # counts negative ones from the end, too
        except IndexError:
            return np.take(x, inside(indices, x.shape[axis]), axis)

    def vjp(self, ct: Any) -> list[Any]:
        """dx = zeros, to which each slice of ct is added where it came from"""
        return [ScatterAddOp.emit(zeros_like(self.x), self.indices, ct, axis=self.axis), None]


class Scatter(Op):
    """x with slices combined into it at positions along an axis: for every i in row-major order,
    y[a, indices[i], b] = combine(y[a, indices[i], b], updates[a, i, b]).
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

    @classmethod
    def combine(cls, old: np.ndarray, update: np.ndarray) -> np.ndarray:
        """What a slice becomes, in NumPy."""
        raise NotImplementedError(cls)

    @classmethod
    def reference(
        cls, x: np.ndarray, indices: np.ndarray, updates: np.ndarray, axis: int
    ) -> np.ndarray:
        y = np.moveaxis(x.copy(), axis, 0)
        where = inside(indices, x.shape[axis]).reshape(-1)
        flat = updates.reshape(x.shape[:axis] + where.shape + x.shape[axis + 1 :])
        for i, update in zip(where, np.moveaxis(flat, axis, 0), strict=True):
            y[i] = cls.combine(y[i], update)
        return np.moveaxis(y, 0, axis)


class ScatterAddOp(Scatter, name="scatter_add"):
    """x with slices added at the given positions: y = x, then y[a, indices[i], b] += updates[a, i,
    b] for every i.

    Repeated positions add up.
    Example: `%y = "gradopt.scatter_add"(%x, %i, %u) {axis = 0 : i64}
    : (tensor<10x4xf32>, tensor<3xi32>, tensor<3x4xf32>) -> tensor<10x4xf32>`
    """

    @classmethod
    def combine(cls, old: np.ndarray, update: np.ndarray) -> np.ndarray:
        return old + update

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
    if x.dtype == bool_ and issubclass(op_class, Scatter):
        raise op_class.error("a numeric operand", x, "convert it first")


def inside(indices: np.ndarray, extent: int) -> np.ndarray:
    """Positions in [0, extent): negative ones counted from the end, then the nearest."""
    if indices.dtype == uint64:
        indices = np.minimum(indices, np.uint64(np.iinfo(np.int64).max))
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
