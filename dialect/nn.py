# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Composite ops of neural networks, with gradients of their own because accuracy and saved bytes
are better that way.
"""

import math
from typing import Any

import numpy as np

from . import reduction
from .activation import softplus
from .base import Bool, Float, Int, Ints, Op, Operand, Result, check_float, in_float32
from .control import stop_gradient
from .counting import one_hot
from .elementwise import as_tensor, mul_no_nan
from .logic import select
from .reduction import LogsumexpOp, as_float, count, expand, mean
from .scatter import as_index
from .shape import normalize_axes
from .transcendental import exp, log
from .types import TensorSpec, float32, is_integer, is_narrow


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
        top = np.max(x, axis=axis, keepdims=True, initial=-np.inf)
        powers = np.exp(x - np.where(top == -np.inf, 0, top))
        total = np.sum(powers, axis=axis, keepdims=True)
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
        top = np.max(x, axis=axis, keepdims=True, initial=-np.inf)
        shifted = x - np.where(top == -np.inf, 0, top)
        total = np.sum(np.exp(shifted), axis=axis, keepdims=True)
        return shifted - np.log(np.where(total == 0, 1, total))

    @staticmethod
    def decompose(x: Any, axis: int) -> Any:
        """x - max - ln sum e^(x - max)"""
        top = _finite_top(x, axis)
        _, total = _exponentials(x, axis)
        return (as_wide(x) - top - log(select(total == 0, 1, total))).astype(x.dtype)

    @in_float32
    def vjp(self, ct: Any) -> list[Any]:
        """dx = ct - e^y * sum of ct"""
        return [ct - mul_no_nan(ct.sum(self.axis, keepdims=True), exp(self.y))]


def as_wide(x: Any) -> Any:
    """`x` in the type that composite ops are computed in: float32 for 16-bit floats."""
    return x.astype(float32) if is_narrow(x.dtype) else x


def _finite_top(x: Any, axis: int) -> Any:
    """The maximum along an axis, kept as an extent of 1, constant to gradients; 0 where it is
    -inf.
    """
    x = stop_gradient(as_wide(x))
    top = reduction.max(x, axis, keepdims=True)
    return select(top == -math.inf, 0, top)


def _exponentials(x: Any, axis: int) -> tuple[Any, Any]:
    """e^(x - max) and its sum along an axis."""
    powers = exp(as_wide(x) - _finite_top(x, axis))
    return powers, powers.sum(axis, keepdims=True)


class CrossEntropyOp(Op, name="cross_entropy"):
    """Loss of each row of logits against an integer label: loss = ln sum e^x - x[label], over the
    last axis.

    The second result is ln sum e^x, kept for the gradient. Labels outside [0, classes) count as the
    nearest one inside.
    Example: `%loss, %lse = "gradopt.cross_entropy"(%x, %labels)
    : (tensor<8x10xf32>, tensor<8xi32>) -> (tensor<8xf32>, tensor<8xf32>)`
    """

    x: Operand
    labels: Operand
    loss: Result
    lse: Result

    @classmethod
    def infer(cls, x: TensorSpec, labels: TensorSpec) -> tuple[TensorSpec, TensorSpec]:
        check_float(cls, x)
        if x.rank < 1 or x.shape[-1] == 0:
            raise cls.error("logits with at least one class on the last axis", x)
        if labels.shape != x.shape[:-1] or not is_integer(labels.dtype):
            raise cls.error(
                f"integer labels of shape {x.shape[:-1]}", labels, "one label a row of logits"
            )
        row = x.with_shape(x.shape[:-1])
        return row, row

    @staticmethod
    def reference(x: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        lse = LogsumexpOp.reference(x, (x.ndim - 1,))
        labels = np.clip(labels.astype(np.int64), 0, x.shape[-1] - 1)
        return lse - np.take_along_axis(x, labels[..., None], -1)[..., 0], lse

    @in_float32
    def vjp(self, ct: Any, ct_lse: Any) -> list[Any]:
        """dx = ct * (softmax(x) - onehot(labels)) + ct_lse * softmax(x)"""
        x, last = self.x, (self.x.ndim - 1,)
        p = exp(x - expand(self.lse, x, last))
        dx = None
        if ct is not None:
            classes = x.shape[-1]
            if classes is None:
                raise self.error("a known number of classes for a gradient", x.spec)
            hot = one_hot(as_index(self.labels).clip(0, classes - 1), classes, x.dtype)
            dx = mul_no_nan(expand(ct, x, last), p - hot)
        if ct_lse is not None:
            more = mul_no_nan(expand(ct_lse, x, last), p)
            dx = more if dx is None else dx + more
        return [dx, None]


class NormalizeOp(Op, name="normalize"):
    """Zero mean and unit variance over axes: y = (x - m) * r, r = 1 / sqrt(var x + eps).

    The heart of layer, batch, group and instance norm; with center = false the mean is not
    subtracted (root mean square norm). The further results are the mean m and r, without the axes.
    Example: `%y, %m, %r = "gradopt.normalize"(%x) {axes = array<i64: 1>}
    : (tensor<8x16xf32>) -> (tensor<8x16xf32>, tensor<8xf32>, tensor<8xf32>)`
    """

    x: Operand
    axes: Ints
    eps: Float = 1e-5
    center: Bool = True
    y: Result
    m: Result
    r: Result

    @classmethod
    def infer(
        cls, x: TensorSpec, axes: tuple[int, ...], eps: float, center: bool
    ) -> tuple[TensorSpec, ...]:
        check_float(cls, x)
        if not axes or list(axes) != sorted(set(axes)) or not set(axes) <= set(range(x.rank)):
            raise cls.error(f"increasing axes of a tensor of rank {x.rank}", list(axes))
        row = x.with_shape(n for i, n in enumerate(x.shape) if i not in axes)
        return x, row, row

    @staticmethod
    def reference(
        x: np.ndarray, axes: tuple[int, ...], eps: float, center: bool
    ) -> tuple[np.ndarray, ...]:
        n = np.prod([x.shape[a] for a in axes])
        m = np.sum(x, axis=axes, keepdims=True) / n * center
        r = 1 / np.sqrt(np.sum((x - m) ** 2, axis=axes, keepdims=True) / n + eps)
        return (x - m) * r, np.squeeze(m, axes), np.squeeze(r, axes)

    @in_float32
    def vjp(self, ct: Any, ct_m: Any, ct_r: Any) -> list[Any]:
        """dx = r * (ct - mean(ct) - y * mean(ct * y)) + ct_m / n - ct_r * r^2 * y / n, means over
        the axes
        """
        y, axes = self.y, self.axes
        n = count(y, axes)
        terms = []
        if ct is not None:
            shared = mean(mul_no_nan(ct, y), axes)
            inner = ct - mul_no_nan(expand(shared, y, axes), y)
            inner = inner - expand(mean(ct, axes), y, axes) if self.center else inner
            terms.append(mul_no_nan(inner, expand(self.r, y, axes)))
        if ct_m is not None and self.center:
            terms.append(expand(ct_m / n, y, axes))
        if ct_r is not None:
            slope = mul_no_nan(ct_r, self.r * self.r) / -n
            terms.append(mul_no_nan(expand(slope, y, axes), y))
        return [sum(terms[1:], terms[0]) if terms else None]


# --- functions ------------------------------------------------------------------------------------


def softmax(x: Any, axis: int = -1) -> Any:
    """Exponentials of `x` that add up to 1 along `axis`."""
    x = as_float(x)
    return SoftmaxOp.emit(x, axis=normalize_axes(SoftmaxOp, axis, x.ndim)[0])


def log_softmax(x: Any, axis: int = -1) -> Any:
    """Logarithm of softmax along `axis`, accurate where softmax underflows."""
    x = as_float(x)
    return LogSoftmaxOp.emit(x, axis=normalize_axes(LogSoftmaxOp, axis, x.ndim)[0])


def cross_entropy(logits: Any, labels: Any, name: str | None = None) -> Any:
    """Softmax cross-entropy of each row of `logits` (..., classes) against integer `labels` (...);
    one loss a row.
    """
    return CrossEntropyOp.emit(as_float(logits), as_tensor(labels), name=name)[0]


def bce_with_logits(logits: Any, targets: Any) -> Any:
    """Binary cross-entropy of sigmoid(logits) against targets in [0, 1], elementwise: softplus(z) -
    z * target.
    """
    return softplus(logits) - logits * targets


def mse(prediction: Any, target: Any) -> Any:
    """Squared error, elementwise."""
    return (as_tensor(prediction) - target).square()


def layer_norm(
    x: Any, gamma: Any = None, beta: Any = None, axes: Any = 1, eps: float = 1e-5
) -> Any:
    """Normalize over the last `axes` axes, then scale by `gamma` and shift by `beta`, both of the
    normalized shape.
    """
    x, axes = _last_axes(x, axes)
    y = NormalizeOp.emit(x, axes=axes, eps=eps, center=True)[0]
    return _affine(y, gamma, beta)


def rms_norm(x: Any, gamma: Any = None, axes: Any = 1, eps: float = 1e-5) -> Any:
    """Divide by the root mean square over the last `axes` axes, then scale by `gamma`."""
    x, axes = _last_axes(x, axes)
    y = NormalizeOp.emit(x, axes=axes, eps=eps, center=False)[0]
    return _affine(y, gamma, None)


def _last_axes(x: Any, count: int) -> tuple[Any, tuple[int, ...]]:
    """`x` as a floating-point tensor, and its last `count` axes."""
    x = as_float(x)
    if not 1 <= count <= x.ndim:
        raise NormalizeOp.error(f"a number of axes to normalize in [1, {x.ndim}]", count)
    return x, tuple(range(x.ndim - count, x.ndim))


def batch_norm(
    x: Any, gamma: Any = None, beta: Any = None, channel_axis: int = -1, eps: float = 1e-5
) -> Any:
    """Normalize every channel over all other axes (training mode: statistics of this batch), then
    scale and shift.
    """
    x = as_float(x)
    (channel,) = normalize_axes(NormalizeOp, channel_axis, x.ndim)
    axes = tuple(i for i in range(x.ndim) if i != channel)
    y = NormalizeOp.emit(x, axes=axes, eps=eps, center=True)[0]
    shape = tuple(n if i == channel else 1 for i, n in enumerate(x.shape))
    return _affine(
        y,
        None if gamma is None else as_tensor(gamma).reshape(shape),
        None if beta is None else as_tensor(beta).reshape(shape),
    )


def _affine(y: Any, gamma: Any, beta: Any) -> Any:
    y = y if gamma is None else y * gamma
    return y if beta is None else y + beta
