# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Reading and replacing a block of a tensor, at a place that is fixed or computed.

Computed starts are clamped so that the block is inside, as XLA has it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from . import builder as builders
from .base import Extents, Ints, Op, Operand, Result
from .creation import constant, zeros_like
from .elementwise import as_tensor
from .slicing import slice_axis, stack
from .types import TensorSpec, int32, int64, is_integer, uint32, uint64


class DynamicSliceOp(Op, name="dynamic_slice"):
    """A block of extents `sizes` at a computed place: y[i] = x[start + i], where start is clamped
    so that the block is inside.

    Example: `%y = "gradopt.dynamic_slice"(%x, %start) {sizes = array<i64: 2, 3>}
    : (tensor<8x3xf32>, tensor<2xi32>) -> tensor<2x3xf32>`
    """

    x: Operand
    start: Operand
    sizes: Extents
    y: Result

    @classmethod
    def infer(cls, x: TensorSpec, start: TensorSpec, sizes: tuple[int | None, ...]) -> TensorSpec:
        check_start(cls, x, start)
        if len(sizes) != x.rank or any(
            m is None if n is None else m is None or not 0 <= m <= n
            for m, n in zip(sizes, x.shape, strict=False)
            if (m, n) != (None, None)
        ):
            raise cls.error(f"a size in the extent for each axis of {x}", sizes)
        return x.with_shape(sizes)

    @staticmethod
    def reference(x: np.ndarray, start: np.ndarray, sizes: tuple[int | None, ...]) -> np.ndarray:
        extents = [n if m is None else m for m, n in zip(sizes, x.shape, strict=True)]
        return x[_block(start, extents, x.shape)]

    def vjp(self, ct: Any) -> list[Any]:
        """dx = ct in its place in zeros"""
        return [DynamicUpdateSliceOp.emit(zeros_like(self.x), ct, self.start), None]


class DynamicUpdateSliceOp(Op, name="dynamic_update_slice"):
    """x with a block replaced at a computed place: y[start + i] = update[i], where start is clamped
    so that the block is inside.

    Example: `%y = "gradopt.dynamic_update_slice"(%x, %u, %start)
    : (tensor<8x3xf32>, tensor<2x3xf32>, tensor<2xi32>) -> tensor<8x3xf32>`
    """

    UPDATES = True
    x: Operand
    update: Operand
    start: Operand
    y: Result

    @classmethod
    def infer(cls, x: TensorSpec, update: TensorSpec, start: TensorSpec) -> TensorSpec:
        check_start(cls, x, start)
        _check_block(cls, x, update)
        return x

    @staticmethod
    def reference(x: np.ndarray, update: np.ndarray, start: np.ndarray) -> np.ndarray:
        y = x.copy()
        y[_block(start, update.shape, x.shape)] = update
        return y

    def vjp(self, ct: Any) -> list[Any]:
        """dx = ct with zeros in the block, dupdate = the block of ct"""
        block = DynamicSliceOp.emit(ct, self.start, sizes=self.update.shape)
        return [DynamicUpdateSliceOp.emit(ct, zeros_like(self.update), self.start), block, None]


class UpdateSliceOp(Op, name="update_slice"):
    """x with every stride-th element from `start` on replaced by those of `update`, along each
    axis: y[start + stride * i] = update[i].

    Example: `%y = "gradopt.update_slice"(%x, %u) {start = array<i64: 1>, stride = array<i64: 2>}
    : (tensor<6xf32>, tensor<2xf32>) -> tensor<6xf32>`
    """

    UPDATES = True
    x: Operand
    update: Operand
    start: Ints
    stride: Ints
    y: Result

    @classmethod
    def infer(
        cls, x: TensorSpec, update: TensorSpec, start: tuple[int, ...], stride: tuple[int, ...]
    ) -> TensorSpec:
        _check_block(cls, x, update)
        if not len(start) == len(stride) == x.rank or min((*start, 0)) < 0 or min((*stride, 1)) < 1:
            raise cls.error(f"a start and a stride of at least 1 for each axis of {x}", start)
        for axis, (n, m, s, k) in enumerate(zip(x.shape, update.shape, start, stride, strict=True)):
            if n is None or m is None:
                if (s, k) != (0, 1):
                    raise cls.error(f"axis {axis}, of unknown extent, to be replaced whole", s)
            elif m and s + (m - 1) * k >= n:
                raise cls.error(f"a block inside {x}", f"{update} from {start} by {stride}")
        return x

    @staticmethod
    def reference(
        x: np.ndarray, update: np.ndarray, start: tuple[int, ...], stride: tuple[int, ...]
    ) -> np.ndarray:
        y = x.copy()
        y[
            tuple(
                slice(s, s + m * k, k) for s, m, k in zip(start, update.shape, stride, strict=True)
            )
        ] = update
        return y

    def vjp(self, ct: Any) -> list[Any]:
        """dx = ct with zeros in the place of the update, dupdate = ct there"""
        start, stride, update = self.start, self.stride, self.update
        dx = UpdateSliceOp.emit(ct, zeros_like(update), start=start, stride=stride)
        du = ct
        for axis, m in enumerate(update.shape):
            if m is not None and m != ct.shape[axis]:
                last = start[axis] + max((m - 1) * stride[axis] + 1, 0)
                du = slice_axis(du, axis, start[axis], last, stride[axis])
        return [dx, du]


def check_start(op_class: type[Op], x: TensorSpec, start: TensorSpec) -> None:
    """Raise unless `start` is a row of integers, one for each axis of `x`."""
    if start.shape != (x.rank,) or not is_integer(start.dtype):
        raise op_class.error(f"a start of {x.rank} integers, one for each axis of {x}", start)


def _check_block(op_class: type[Op], x: TensorSpec, update: TensorSpec) -> None:
    fits = update.dtype == x.dtype and update.rank == x.rank
    if not fits or any(
        (m is None) != (n is None) or (m is not None and n is not None and m > n)
        for m, n in zip(update.shape, x.shape, strict=True)
    ):
        raise op_class.error(f"an update of x's element type that fits in {x}", update)


def _block(start: np.ndarray, extents: Sequence[int], shape: Sequence[int]) -> tuple[slice, ...]:
    first = [min(max(int(s), 0), n - m) for s, m, n in zip(start, extents, shape, strict=True)]
    return tuple(slice(s, s + m) for s, m in zip(first, extents, strict=True))


# --- functions ------------------------------------------------------------------------------------


def dynamic_slice(x: Any, start: Any, sizes: Sequence[int | None]) -> Any:
    """The block of extents `sizes` (None: the whole axis) of `x` that begins at `start`: one
    integer (number or tensor) for each axis, or a tensor of them; clamped so that the block is
    inside.
    """
    with builders.owner("dynamic_slice", _flat(x, start)):
        x, given = as_tensor(x), tuple(sizes)
        if len(given) == x.ndim:
            given = tuple(n if m is None else m for m, n in zip(given, x.shape, strict=True))
        return DynamicSliceOp.emit(x, as_start(x, start), sizes=given)


def dynamic_update_slice(x: Any, update: Any, start: Any) -> Any:
    """`x` with the block that begins at `start` (see `dynamic_slice`) replaced by `update`."""
    with builders.owner("dynamic_update_slice", _flat(x, update, start)):
        x = as_tensor(x)
        update = as_tensor(update, x.dtype)
        return DynamicUpdateSliceOp.emit(x, update, as_start(x, start))


def update_slice(
    x: Any, update: Any, start: int | Sequence[int] = 0, stride: int | Sequence[int] = 1
) -> Any:
    """`x` with every stride-th element from `start` on, along each axis, replaced by those of
    `update`; numbers stand for every axis.
    """
    with builders.owner("update_slice", (x, update)):
        x = as_tensor(x)
        starts = np.broadcast_to(np.asarray(start, np.int64), (x.ndim,)).tolist()
        strides = np.broadcast_to(np.asarray(stride, np.int64), (x.ndim,)).tolist()
        return UpdateSliceOp.emit(
            x, as_tensor(update, x.dtype), start=tuple(starts), stride=tuple(strides)
        )


def _flat(*values: Any) -> tuple[Any, ...]:
    lists = [given if isinstance(given, list | tuple) else [given] for given in values]
    return tuple(v for given in lists for v in given)


def as_start(x: Any, start: Any) -> Any:
    """`start` as a row of integers in 32 bits, or 64 where one of them has more."""
    if not isinstance(start, list | tuple):
        start = as_tensor(start)
        if start.shape == () and x.ndim == 1:
            start = start.reshape(1)
        return start
    if not start:
        return constant(np.zeros(0, np.int32))
    tensors = [as_tensor(s) for s in start]
    for s in tensors:
        if s.shape != () or not is_integer(s.dtype):
            raise DynamicSliceOp.error("integers as start", s.spec)
    most = np.iinfo(np.int64).max
    tensors = [s.clip(max=most) if s.dtype == uint64 else s for s in tensors]
    wide = any(s.dtype in (int64, uint32) for s in tensors)
    return stack([s.astype(int64 if wide else int32) for s in tensors])
