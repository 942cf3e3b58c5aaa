# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Normalization by neighbouring channels."""

import math
from typing import Any

import numpy as np

from .base import Float, Int, Op, Operand, Result, as_wide, check_float
from .pooling import SumPoolOp
from .reduction import as_float
from .shape import normalize_axes
from .types import TensorSpec


class LocalResponseNormOp(Op, name="local_response_norm"):
    """Each channel divided by a power of its neighbourhood's mean square: y = x / (k + alpha / size
    * sum of x^2)^beta, the sum over `size` channels around it, from channel - size div 2 on.

    Example: `%y = "gradopt.local_response_norm"(%x) {size = 5 : i64, axis = 1 : i64} :
    (tensor<8x16xf32>) -> tensor<8x16xf32>`
    """

    x: Operand
    size: Int
    axis: Int
    alpha: Float = 1e-4
    beta: Float = 0.75
    k: Float = 1.0
    y: Result

    @classmethod
    def infer(cls, x: TensorSpec, size: int, axis: int, **unused: float) -> TensorSpec:
        check_float(cls, x)
        if not 0 <= axis < x.rank or x.shape[axis] is None:
            raise cls.error(f"an axis of known extent of a tensor of rank {x.rank}", f"{axis}, {x}")
        if size < 1:
            raise cls.error("a size of at least 1", size)
        if None in x.shape[:axis] and None in x.shape[axis + 1 :]:
            raise cls.error("known extents before or behind the axis", x, "move it to the end")
        return x

    @staticmethod
    def reference(
        x: np.ndarray, size: int, axis: int, alpha: float, beta: float, k: float
    ) -> np.ndarray:
        channels = np.moveaxis(x, axis, 0)
        y = np.zeros_like(channels)
        for c in range(len(channels)):
            first = c - size // 2
            near = channels[max(first, 0) : max(first + size, 0)]
            y[c] = channels[c] / (k + alpha / size * np.sum(near * near, axis=0)) ** beta
        return np.moveaxis(y, 0, axis)

    @staticmethod
    def decompose(x: Any, size: int, axis: int, alpha: float, beta: float, k: float) -> Any:
        """The sums are those of windows over channels"""
        wide, n = as_wide(x), x.shape[axis]
        if 0 in x.shape:
            return x
        before, after = x.shape[:axis], x.shape[axis + 1 :]
        outer, inner = (None if None in e else math.prod(e) for e in (before, after))
        squares = (wide * wide).reshape_to((outer, n, inner))
        attributes: dict[str, Any] = {
            "window": (size,),
            "low": (size // 2,),
            "high": ((size - 1) // 2,),
        }
        attributes |= dict.fromkeys(("strides", "dilation", "base_dilation"), (1,))
        sums = SumPoolOp.emit(squares, **attributes).reshape_to(x.shape, like=(x,))
        return (wide / (sums * (alpha / size) + k) ** beta).astype(x.dtype)


def local_response_norm(
    x: Any,
    size: int,
    alpha: float = 1e-4,
    beta: float = 0.75,
    k: float = 1.0,
    axis: int = -1,
    name: str | None = None,
) -> Any:
    """Each channel (along `axis`) of `x` divided by a power of the mean square of the `size`
    channels around it; PyTorch's numbers, in which `alpha` is divided by `size`.
    """
    x = as_float(x)
    (axis,) = normalize_axes(LocalResponseNormOp, axis, x.ndim)
    attributes: dict[str, Any] = {"size": size, "axis": axis}
    attributes |= {"alpha": alpha, "beta": beta, "k": k}
    return LocalResponseNormOp.emit(x, **attributes, name=name)
