# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Composite ops of neural networks, with gradients of their own because accuracy and saved bytes
are better that way.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from .base import Float, Int, Ints, Op, Operand, Result, as_wide, check_float, in_float32
from .creation import constant
from .distributions import RandomBernoulliOp
from .elementwise import mul_no_nan
from .logic import select
from .modes import is_training
from .reduction import as_float, finite_max
from .shape import normalize_axes, unchanged
from .threefry import as_key, check_key
from .transcendental import exp, log
from .types import TensorSpec


class SoftmaxLike(Op):
    """Something normalized along one axis."""

    x: Operand
    axis: Int
    y: Result

    @classmethod
    def infer(cls, x: TensorSpec, axis: int) -> TensorSpec:
        check_float(cls, x)
        if not 0 <= axis < x.rank:
            raise cls.error(f"an axis of a tensor of rank {x.rank}", axis)
        return x


class SoftmaxOp(SoftmaxLike, name="softmax"):
    """Exponentials that add up to 1 along an axis: y = e^x / sum e^x; zeros where all elements are
    -inf.

    Example: `%y = "gradopt.softmax"(%x) {axis = 1 : i64} : (tensor<2x3xf32>) -> tensor<2x3xf32>`
    """

    @staticmethod
    def reference(x: np.ndarray, axis: int) -> np.ndarray:
        top = np.maximum.reduce(x, axis, keepdims=True, initial=-np.inf)
        powers = np.exp(x - np.where(top == -np.inf, 0, top))
        total = np.add.reduce(powers, axis, keepdims=True)
        return powers / np.where(total == 0, 1, total)

    @staticmethod
    def decompose(x: Any, axis: int) -> Any:
        """e^(x - max) / sum e^(x - max), with 0 in the place of a maximum of -inf"""
        powers, total = _exponentials(x, axis)
        y = powers / select(total == 0, 1, total)
        return y.astype(x.dtype)

    @in_float32
    def vjp(self, ct: Any) -> list[Any]:
        """dx = y * (ct - sum of ct * y)"""
        return [mul_no_nan(ct - mul_no_nan(ct, self.y).sum(self.axis, keepdims=True), self.y)]


class LogSoftmaxOp(SoftmaxLike, name="log_softmax"):
    """Logarithm of softmax: y = x - ln sum e^x; -inf where all elements are -inf.

    Example: `%y = "gradopt.log_softmax"(%x) {axis = 1 : i64} : (tensor<2x3xf32>) ->
    tensor<2x3xf32>`
    """

    @staticmethod
    def reference(x: np.ndarray, axis: int) -> np.ndarray:
        top = np.maximum.reduce(x, axis, keepdims=True, initial=-np.inf)
        shifted = x - np.where(top == -np.inf, 0, top)
        total = np.add.reduce(np.exp(shifted), axis, keepdims=True)
        return shifted - np.log(np.where(total == 0, 1, total))

    @staticmethod
    def decompose(x: Any, axis: int) -> Any:
        """x - max - ln sum e^(x - max)"""
        top = finite_max(as_wide(x), (axis,))
        _, total = _exponentials(x, axis)
        return (as_wide(x) - top - log(select(total == 0, 1, total))).astype(x.dtype)

    @in_float32
    def vjp(self, ct: Any) -> list[Any]:
        """dx = ct - e^y * sum of ct"""
        return [ct - mul_no_nan(ct.sum(self.axis, keepdims=True), exp(self.y))]


def _exponentials(x: Any, axis: int) -> tuple[Any, Any]:
    """e^(x - max) and its sum along an axis."""
    powers = exp(as_wide(x) - finite_max(as_wide(x), (axis,)))
    return powers, powers.sum(axis, keepdims=True)


class DropoutOp(Op, name="dropout"):
    """Elements replaced by 0 with probability rate, the others scaled: y = b ? x / (1 - rate) : 0,
    b drawn by `random_bernoulli` with p = 1 - rate.

    b is the same along the axes in `shared`. The mask is a pure function of the key: the gradient
    draws it again instead of keeping it.
    Example: `%y = "gradopt.dropout"(%x, %key) {rate = 0.1 : f64} : (tensor<4xf32>, tensor<2xui32>)
    -> tensor<4xf32>`
    """

    x: Operand
    key: Operand
    rate: Float
    shared: Ints = ()
    y: Result

    @classmethod
    def infer(
        cls, x: TensorSpec, key: TensorSpec, rate: float, shared: tuple[int, ...]
    ) -> TensorSpec:
        check_float(cls, x)
        check_key(cls, key)
        if not 0 <= rate <= 1:
            raise cls.error("a rate in [0, 1]", rate)
        if list(shared) != sorted(set(shared)) or not set(shared) <= set(range(x.rank)):
            raise cls.error(f"increasing axes of a tensor of rank {x.rank} to share", list(shared))
        return x

    @staticmethod
    def reference(
        x: np.ndarray, key: np.ndarray, rate: float, shared: tuple[int, ...]
    ) -> np.ndarray:
        drawn = tuple(1 if i in shared else n for i, n in enumerate(x.shape))
        kept = RandomBernoulliOp.reference(key, shape=drawn, p=1 - rate)
        return np.where(kept, x * (1 / (1 - rate) if rate < 1 else 0), 0)

    @staticmethod
    def decompose(x: Any, key: Any, rate: float, shared: tuple[int, ...]) -> Any:
        kept = tuple(i for i in range(x.ndim) if i not in shared)
        drawn = tuple(1 if i in shared else n for i, n in enumerate(x.shape))
        like = [] if None not in drawn else [x]
        mask = RandomBernoulliOp.emit(key, *like, shape=drawn, p=1 - rate)
        if shared:  # back over the shared axes
            mask = mask.reshape([drawn[i] for i in kept])
            mask = mask.broadcast_in_dim(x.shape, kept, like=(x,))
        scaled = as_wide(x) * (1 / (1 - rate) if rate < 1 else 0.0)
        return select(mask, scaled, 0).astype(x.dtype)

    def vjp(self, ct: Any) -> list[Any]:
        """dx = ct dropped out likewise, with the same mask"""
        return [DropoutOp.emit(ct, self.key, rate=self.rate, shared=self.shared), None]


# --- functions ------------------------------------------------------------------------------------


def softmax(x: Any, axis: int = -1) -> Any:
    """Exponentials of `x` that add up to 1 along `axis`."""
    x = as_float(x)
    return SoftmaxOp.emit(x, axis=normalize_axes(SoftmaxOp, axis, x.ndim)[0])


def log_softmax(x: Any, axis: int = -1) -> Any:
    """Logarithm of softmax along `axis`, accurate where softmax underflows."""
    x = as_float(x)
    return LogSoftmaxOp.emit(x, axis=normalize_axes(LogSoftmaxOp, axis, x.ndim)[0])


def dropout(
    x: Any,
    rate: float,
    key: Any,
    noise_shape: Sequence[int | None] | None = None,
    training: bool | None = None,
) -> Any:
    """`x` with elements replaced by 0 with probability `rate` and the others scaled by 1 / (1 -
    rate); `x` itself unless `training`, by default the mode (`go.infer_mode`).

    `noise_shape` is the shape of the mask: extents of 1 where all elements along an axis are
    dropped together, others as in `x`, or None. A key gives one mask: fold the number of the layer
    and of the step into it.
    """
    x = as_float(x)
    if not (is_training() if training is None else training):
        return unchanged(x)
    given = x.shape if noise_shape is None else tuple(noise_shape)
    pairs = list(zip(given, x.shape, strict=False))
    if len(given) != x.ndim or any(n not in (1, None, m) for n, m in pairs):
        raise DropoutOp.error(f"a noise_shape of extents of 1 or those of {x.spec}", given)
    shared = tuple(i for i, (n, m) in enumerate(pairs) if n == 1 != m)
    key = key if hasattr(key, "graph") else constant(as_key(key))
    return DropoutOp.emit(x, key, rate=rate, shared=shared)
