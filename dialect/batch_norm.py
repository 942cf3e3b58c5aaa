# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Batch normalization, with statistics of the batch and running ones."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from .base import Bool, Float, Int, Op, Operand, Operands, Result, as_wide, check_float
from .elementwise import as_tensor
from .modes import is_training
from .norm import (
    NormalizeOp,
    affine_reference,
    apply_affine,
    channel_shape,
    other_axes,
    per_channel,
    same_type,
)
from .reduction import as_float
from .reduction import var as variance
from .shape import normalize_axes
from .transcendental import rsqrt
from .types import TensorSpec, is_float


class BatchNormTrainOp(Op, name="batch_norm_train"):
    """Batch normalization while training: y = (x - m) / sqrt(v + eps) * gamma + beta with the mean
    m and the variance v of each channel over this batch, and the running statistics moved towards
    them.

    new_mean = momentum * mean + (1 - momentum) * m, new_var likewise, as in MXNet and Keras;
    PyTorch's momentum is 1 - this one. v is divided by the number n of elements a channel in y, and
    in new_var too unless `unbiased`, when that one is divided by n - 1 (as in PyTorch).
    Example: `%y, %m, %v = "gradopt.batch_norm_train"(%x, %mean, %var) {channel_axis = 1 : i64} :
    (tensor<8x3xf32>, tensor<3xf32>, tensor<3xf32>) -> (tensor<8x3xf32>, tensor<3xf32>,
    tensor<3xf32>)`
    """

    x: Operand
    mean: Operand
    var: Operand
    affine: Operands
    channel_axis: Int
    eps: Float = 1e-5
    momentum: Float = 0.9
    unbiased: Bool = False
    y: Result
    new_mean: Result
    new_var: Result

    STATES = ("mean", "var")

    @classmethod
    def infer(
        cls,
        x: TensorSpec,
        mean: TensorSpec,
        var: TensorSpec,
        *affine: TensorSpec,
        channel_axis: int,
        eps: float,
        momentum: float,
        unbiased: bool,
    ) -> tuple[TensorSpec, ...]:
        check_statistics(cls, x, mean, var, affine, channel_axis)
        if not 0 <= momentum <= 1:
            raise cls.error("a momentum in [0, 1]", momentum)
        return x, mean, var

    @staticmethod
    def reference(
        x: np.ndarray,
        mean: np.ndarray,
        var: np.ndarray,
        *affine: np.ndarray,
        channel_axis: int,
        eps: float,
        momentum: float,
        unbiased: bool,
    ) -> tuple[np.ndarray, ...]:
        over = tuple(i for i in range(x.ndim) if i != channel_axis)
        shape = channel_shape(x.ndim, channel_axis)
        m, v = x.mean(over), x.var(over)
        y = (x - m.reshape(shape)) / np.sqrt(v.reshape(shape) + eps)
        running = x.var(over, ddof=1) if unbiased else v
        return (
            affine_reference(y, affine, shape),
            momentum * mean + (1 - momentum) * m,
            momentum * var + (1 - momentum) * running,
        )

    @staticmethod
    def decompose(
        x: Any,
        mean: Any,
        var: Any,
        *affine: Any,
        channel_axis: int,
        eps: float,
        momentum: float,
        unbiased: bool,
    ) -> tuple[Any, ...]:
        """The variance comes from an op of its own, since 1 / r^2 - eps would not be accurate; the
        lowering computes both from the same sums
        """
        wide, axes = as_wide(x), other_axes(x.ndim, channel_axis)
        y, m, _ = NormalizeOp.emit(wide, axes=axes, eps=eps)
        y = apply_affine(y, *per_channel(list(map(as_wide, affine)), x, channel_axis))
        v = variance(wide, axes, correction=int(unbiased))
        return y.astype(x.dtype), _moved(mean, m, momentum), _moved(var, v, momentum)


def _moved(old: Any, new: Any, momentum: float) -> Any:
    return (as_wide(old) * momentum + new * (1 - momentum)).astype(old.dtype)


class BatchNormInferOp(Op, name="batch_norm_infer"):
    """Batch normalization with given statistics of each channel: y = (x - mean) / sqrt(var + eps) *
    gamma + beta.

    Example: `%y = "gradopt.batch_norm_infer"(%x, %mean, %var) {channel_axis = 1 : i64} :
    (tensor<8x3xf32>, tensor<3xf32>, tensor<3xf32>) -> tensor<8x3xf32>`
    """

    x: Operand
    mean: Operand
    var: Operand
    affine: Operands
    channel_axis: Int
    eps: Float = 1e-5
    y: Result

    STATES = ("mean", "var")

    @classmethod
    def infer(
        cls,
        x: TensorSpec,
        mean: TensorSpec,
        var: TensorSpec,
        *affine: TensorSpec,
        channel_axis: int,
        eps: float,
    ) -> TensorSpec:
        check_statistics(cls, x, mean, var, affine, channel_axis)
        return x

    @staticmethod
    def reference(
        x: np.ndarray,
        mean: np.ndarray,
        var: np.ndarray,
        *affine: np.ndarray,
        channel_axis: int,
        eps: float,
    ) -> np.ndarray:
        shape = channel_shape(x.ndim, channel_axis)
        y = (x - mean.reshape(shape)) / np.sqrt(var.reshape(shape) + eps)
        return affine_reference(y, affine, shape)

    @staticmethod
    def decompose(x: Any, mean: Any, var: Any, *affine: Any, channel_axis: int, eps: float) -> Any:
        """The root and the scale are one number a channel"""
        wide = as_wide(x)
        gamma = [as_wide(a).astype(wide.dtype) for a in affine[:1]]
        mean, var = mean.astype(wide.dtype), var.astype(wide.dtype)
        scale = rsqrt(var + eps)
        scale = scale * gamma[0] if gamma else scale
        mean, scale, *beta = per_channel([mean, scale, *affine[1:]], x, channel_axis)
        y = (wide - mean) * scale
        return (y + as_wide(beta[0]) if beta else y).astype(x.dtype)


def check_statistics(
    op_class: type[Op],
    x: TensorSpec,
    mean: TensorSpec,
    var: TensorSpec,
    affine: Sequence[TensorSpec],
    channel_axis: int,
) -> None:
    """Raise unless there is one number a channel of everything; statistics may have another
    floating-point type than `x`.
    """
    check_float(op_class, x)
    if not 0 <= channel_axis < x.rank:
        raise op_class.error(f"a channel axis of a tensor of rank {x.rank}", channel_axis)
    shape = (x.shape[channel_axis],)
    if not (mean == var and mean.shape == shape and is_float(mean.dtype)):
        expected = f"mean and variance of one floating-point type and shape {shape}"
        raise op_class.error(expected, f"{mean} and {var}")
    if len(affine) > 2 or any(a != x.with_shape(shape) for a in affine):
        listed = " and ".join(map(str, affine))
        raise op_class.error(
            f"at most 2 tensors of type {x.with_shape(shape)} as scale and shift", listed
        )


# --- functions ------------------------------------------------------------------------------------


def batch_norm(
    x: Any,
    gamma: Any = None,
    beta: Any = None,
    channel_axis: int = -1,
    eps: float = 1e-5,
    running: tuple[Any, Any] | None = None,
    training: bool | None = None,
    momentum: float = 0.9,
    unbiased: bool = False,
) -> Any:
    """Normalize every channel over all other axes, then scale by `gamma` and shift by `beta`.

    Without `running`, by the statistics of this batch; returns the result. With `running`, a pair
    (mean, variance) of one number a channel, returns the result and the new pair: while `training`
    by the statistics of this batch, which move the running ones (new = momentum * old + (1 -
    momentum) * batch; the batch's variance divided by n - 1 if `unbiased`); else by the running
    ones, which stay. Where `training` is left away, the mode says (`go.infer_mode`).
    """
    x = as_float(x)
    (channel,) = normalize_axes(BatchNormTrainOp, channel_axis, x.ndim)
    if running is not None:
        mean, variance = map(as_float, running)
        attributes: dict[str, Any] = {"channel_axis": channel, "eps": eps}
        affine = same_type(x, gamma, beta)
        if not (is_training() if training is None else training):
            y = BatchNormInferOp.emit(x, mean, variance, *affine, **attributes)
            return y, (mean, variance)
        attributes |= {"momentum": momentum, "unbiased": unbiased}
        y, *moved = BatchNormTrainOp.emit(x, mean, variance, *affine, **attributes)
        return y, tuple(moved)
    axes = tuple(i for i in range(x.ndim) if i != channel)
    y = NormalizeOp.emit(x, axes=axes, eps=eps, center=True)[0]
    shape = tuple(n if i == channel else 1 for i, n in enumerate(x.shape))
    placed = [None if a is None else as_tensor(a).reshape(shape) for a in (gamma, beta)]
    return apply_affine(y, *placed)
