# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Reading an element at a time, each at its own position along an axis.

Indices are those of indexing.py: a negative one counts from the end, one outside is the nearest
inside.
"""

from typing import Any

import numpy as np

from .base import Int, Op, Operand, Result
from .creation import zeros_like
from .elementwise import as_tensor, broadcast_shapes
from .indexing import check_indices, inside
from .scatter import put_along_axis
from .shape import normalize_axes
from .types import TensorSpec


class TakeAlongAxisOp(Op, name="take_along_axis"):
    """Elements along an axis, each at its own position: y[a, i, b] = x[a, indices[a, i, b], b].

    Example: `%y = "gradopt.take_along_axis"(%x, %i) {axis = 1 : i64} : (tensor<2x5xf32>,
    tensor<2x3xi32>) -> tensor<2x3xf32>`
    """

    x: Operand
    indices: Operand
    axis: Int
    y: Result

    @classmethod
    def infer(cls, x: TensorSpec, indices: TensorSpec, axis: int) -> TensorSpec:
        if not 0 <= axis < x.rank:
            raise cls.error(f"an axis of a tensor of rank {x.rank}", axis)
        if indices.rank != x.rank or any(
            n != m for a, (n, m) in enumerate(zip(x.shape, indices.shape, strict=True)) if a != axis
        ):
            raise cls.error(f"indices of x's shape but for axis {axis}", f"{indices} for {x}")
        check_indices(cls, x, indices, axis)
        return indices.with_dtype(x.dtype)

    @staticmethod
    def reference(x: np.ndarray, indices: np.ndarray, axis: int) -> np.ndarray:
        return np.take_along_axis(x, inside(indices, x.shape[axis]), axis)

    def vjp(self, ct: Any) -> list[Any]:
        """dx = zeros, to which each element of ct is added where it came from"""
        dx = put_along_axis(zeros_like(self.x), self.indices, ct, self.axis, mode="add")
        return [dx, None]


# --- functions ------------------------------------------------------------------------------------


def take_along_axis(x: Any, indices: Any, axis: int = -1) -> Any:
    """Elements of `x` along `axis`, each at the position that `indices` has at its place; the other
    axes broadcast together, as in NumPy.
    """
    x, indices = as_tensor(x), as_tensor(indices)
    (axis,) = normalize_axes(TakeAlongAxisOp, axis, x.ndim)
    if indices.ndim != x.ndim:
        raise TakeAlongAxisOp.error(f"indices of rank {x.ndim}", indices.spec)
    ones = [tuple(1 if a == axis else n for a, n in enumerate(t.shape)) for t in (x, indices)]
    common = broadcast_shapes(TakeAlongAxisOp, *ones)

    def fitted(t: Any) -> Any:
        shape = tuple(t.shape[axis] if a == axis else n for a, n in enumerate(common))
        likes = [v for v in (x, indices) if None in v.shape]
        return t if t.shape == shape else t.broadcast_to(shape, like=likes)

    return TakeAlongAxisOp.emit(fitted(x), fitted(indices), axis=axis)
