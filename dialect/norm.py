# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Normalization: one op with a gradient and a lowering of its own, `normalize`, and the layers that
consist of it.

Layers take gamma (scale) and then beta (shift) as their last operands, or gamma alone, or neither.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from .base import (
    Bool,
    Float,
    Int,
    Ints,
    Op,
    Operand,
    Operands,
    Result,
    check_float,
    in_float32,
    in_wide,
)
from .creation import zeros_like
from .elementwise import as_tensor, mul_no_nan
from .reduction import as_float, count, expand, mean, mean_along
from .shape import normalize_axes
from .transcendental import rsqrt
from .types import TensorSpec


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

    @staticmethod
    @in_wide
    def decompose(x: Any, axes: tuple[int, ...], eps: float, center: bool) -> tuple[Any, ...]:
        """The mean, the mean square of what is left, and the quotient"""
        m = mean(x, axes) if center else zeros_like(mean(x, axes))
        left = x - expand(m, x, axes) if center else x
        r = rsqrt(mean(left * left, axes) + eps)
        return left * expand(r, x, axes), m, r

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


class Layer(Op):
    """A normalization with scale and shift."""

    x: Operand
    affine: Operands
    y: Result

    @classmethod
    def check_affine(
        cls, affine: Sequence[TensorSpec], expected: TensorSpec, most: int = 2
    ) -> None:
        """Raise unless scale and shift are of the type `expected`."""
        if len(affine) > most or any(a != expected for a in affine):
            listed = " and ".join(map(str, affine))
            raise cls.error(f"at most {most} tensors of type {expected} as scale and shift", listed)


def affine_reference(y: np.ndarray, affine: Sequence[np.ndarray], shape: Any = None) -> np.ndarray:
    """y * gamma + beta in NumPy."""
    placed = [a if shape is None else a.reshape(shape) for a in affine]
    y = y * placed[0] if placed else y
    return y + placed[1] if len(placed) > 1 else y


class LayerNormOp(Layer, name="layer_norm"):
    """Zero mean and unit variance over the last `axes` axes, scaled and shifted: y = (x - m) /
    sqrt(var x + eps) * gamma + beta.

    gamma and beta have the shape of these axes.
    Example: `%y = "gradopt.layer_norm"(%x, %g, %b) : (tensor<8x16xf32>, tensor<16xf32>,
    tensor<16xf32>) -> tensor<8x16xf32>`
    """

    axes: Int = 1
    eps: Float = 1e-5

    @classmethod
    def infer(cls, x: TensorSpec, *affine: TensorSpec, axes: int, eps: float) -> TensorSpec:
        check_float(cls, x)
        if not 1 <= axes <= x.rank:
            raise cls.error(f"a number of axes to normalize in [1, {x.rank}]", axes)
        cls.check_affine(affine, x.with_shape(x.shape[x.rank - axes :]))
        return x

    @staticmethod
    def reference(x: np.ndarray, *affine: np.ndarray, axes: int, eps: float) -> np.ndarray:
        over = tuple(range(x.ndim - axes, x.ndim))
        centered = x - mean_along(x, over)
        variance = mean_along(centered * centered, over)
        return affine_reference(centered / np.sqrt(variance + eps), affine)

    @staticmethod
    @in_wide
    def decompose(x: Any, *affine: Any, axes: int, eps: float) -> Any:
        y = NormalizeOp.emit(x, axes=range(x.ndim - axes, x.ndim), eps=eps)[0]
        return apply_affine(y, *affine)


class RmsNormOp(Layer, name="rms_norm"):
    """Unit mean square over the last `axes` axes, scaled: y = x / sqrt(mean x^2 + eps) * gamma.

    gamma has the shape of these axes.
    Example: `%y = "gradopt.rms_norm"(%x, %g) : (tensor<8x16xf32>, tensor<16xf32>) ->
    tensor<8x16xf32>`
    """

    axes: Int = 1
    eps: Float = 1e-5

    @classmethod
    def infer(cls, x: TensorSpec, *affine: TensorSpec, axes: int, eps: float) -> TensorSpec:
        check_float(cls, x)
        if not 1 <= axes <= x.rank:
            raise cls.error(f"a number of axes to normalize in [1, {x.rank}]", axes)
        cls.check_affine(affine, x.with_shape(x.shape[x.rank - axes :]), most=1)
        return x

    @staticmethod
    def reference(x: np.ndarray, *affine: np.ndarray, axes: int, eps: float) -> np.ndarray:
        over = tuple(range(x.ndim - axes, x.ndim))
        square = np.mean(x**2, axis=over, keepdims=True)
        return affine_reference(x / np.sqrt(square + eps), affine)

    @staticmethod
    @in_wide
    def decompose(x: Any, *affine: Any, axes: int, eps: float) -> Any:
        over = range(x.ndim - axes, x.ndim)
        return apply_affine(NormalizeOp.emit(x, axes=over, eps=eps, center=False)[0], *affine)


class ChannelLayer(Layer):
    """A normalization with one scale and one shift a channel."""

    @classmethod
    def check_channels(
        cls, x: TensorSpec, affine: Sequence[TensorSpec], channel_axis: int
    ) -> int | None:
        """The number of channels; raises where scale and shift are not one number a channel."""
        check_float(cls, x)
        if not 0 <= channel_axis < x.rank:
            raise cls.error(f"a channel axis of a tensor of rank {x.rank}", channel_axis)
        channels = x.shape[channel_axis]
        cls.check_affine(affine, x.with_shape((channels,)))
        return channels


def other_axes(rank: int, *kept: int) -> tuple[int, ...]:
    return tuple(i for i in range(rank) if i not in kept)


def channel_shape(rank: int, channel_axis: int) -> list[int]:
    """The shape that NumPy broadcasts one number a channel by."""
    return [-1 if i == channel_axis else 1 for i in range(rank)]


def per_channel(values: Sequence[Any], x: Any, channel_axis: int) -> list[Any]:
    """Tensors with one number a channel, to be broadcast with `x`."""
    added = other_axes(x.ndim, channel_axis)
    return [v.expand_dims(added) if added else v for v in values]


class GroupNormOp(ChannelLayer, name="group_norm"):
    """Zero mean and unit variance of each group of neighbouring channels of an example, scaled and
    shifted: y = (x - m) / sqrt(var + eps) * gamma + beta.

    The first axis counts examples; m and var are over all other axes, with the channels of the
    group.
    Example: `%y = "gradopt.group_norm"(%x, %g, %b) {channel_axis = 2 : i64, groups = 4 : i64} :
    (tensor<8x10x16xf32>, tensor<16xf32>, tensor<16xf32>) -> tensor<8x10x16xf32>`
    """

    channel_axis: Int
    groups: Int
    eps: Float = 1e-5

    @classmethod
    def infer(
        cls, x: TensorSpec, *affine: TensorSpec, channel_axis: int, groups: int, eps: float
    ) -> TensorSpec:
        channels = cls.check_channels(x, affine, channel_axis)
        if channel_axis == 0:
            raise cls.error("a channel axis behind the first one, which counts examples", 0)
        if channels is None or groups < 1 or channels % groups:
            raise cls.error(f"a number of groups that divides the {channels} channels", groups)
        if x.shape.count(None) > 1:
            raise cls.error("at most one unknown extent", x)
        return x

    @staticmethod
    def reference(
        x: np.ndarray, *affine: np.ndarray, channel_axis: int, groups: int, eps: float
    ) -> np.ndarray:
        last = np.moveaxis(x, channel_axis, -1)
        flat = last.reshape(len(x), -1, groups, last.shape[-1] // groups)
        centered = flat - flat.mean((1, 3), keepdims=True)
        y = centered / np.sqrt((centered**2).mean((1, 3), keepdims=True) + eps)
        return np.moveaxis(affine_reference(y.reshape(last.shape), affine), -1, channel_axis)

    @staticmethod
    @in_wide
    def decompose(x: Any, *affine: Any, channel_axis: int, groups: int, eps: float) -> Any:
        c = channel_axis
        split = (*x.shape[:c], groups, x.shape[c] // groups, *x.shape[c + 1 :])
        y = NormalizeOp.emit(x.reshape_to(split), axes=other_axes(len(split), 0, c), eps=eps)[0]
        return apply_affine(y.reshape_to(x.shape), *per_channel(affine, x, c))


class InstanceNormOp(ChannelLayer, name="instance_norm"):
    """Zero mean and unit variance of each channel of each example, scaled and shifted: y = (x - m)
    / sqrt(var + eps) * gamma + beta.

    The first axis counts examples; m and var are over all others but the channels.
    Example: `%y = "gradopt.instance_norm"(%x, %g, %b) {channel_axis = 2 : i64} :
    (tensor<8x10x16xf32>, tensor<16xf32>, tensor<16xf32>) -> tensor<8x10x16xf32>`
    """

    channel_axis: Int
    eps: Float = 1e-5

    @classmethod
    def infer(cls, x: TensorSpec, *affine: TensorSpec, channel_axis: int, eps: float) -> TensorSpec:
        cls.check_channels(x, affine, channel_axis)
        if channel_axis == 0 or x.rank < 3:
            raise cls.error(
                "an axis of examples in front of the channel axis, and at least one more axis",
                f"{x} with channel axis {channel_axis}",
            )
        return x

    @staticmethod
    def reference(x: np.ndarray, *affine: np.ndarray, channel_axis: int, eps: float) -> np.ndarray:
        over = tuple(i for i in range(x.ndim) if i not in (0, channel_axis))
        centered = x - x.mean(over, keepdims=True)
        y = centered / np.sqrt((centered**2).mean(over, keepdims=True) + eps)
        return affine_reference(y, affine, channel_shape(x.ndim, channel_axis))

    @staticmethod
    @in_wide
    def decompose(x: Any, *affine: Any, channel_axis: int, eps: float) -> Any:
        y = NormalizeOp.emit(x, axes=other_axes(x.ndim, 0, channel_axis), eps=eps)[0]
        return apply_affine(y, *per_channel(affine, x, channel_axis))


# --- functions ------------------------------------------------------------------------------------


def layer_norm(
    x: Any, gamma: Any = None, beta: Any = None, axes: Any = 1, eps: float = 1e-5
) -> Any:
    """Normalize over the last `axes` axes, then scale by `gamma` and shift by `beta`, both of the
    normalized shape.
    """
    return _layer(LayerNormOp, as_float(x), gamma, beta, axes=axes, eps=eps)


def rms_norm(x: Any, gamma: Any = None, axes: Any = 1, eps: float = 1e-5) -> Any:
    """Divide by the root mean square over the last `axes` axes, then scale by `gamma`."""
    return _layer(RmsNormOp, as_float(x), gamma, None, axes=axes, eps=eps)


def group_norm(
    x: Any,
    groups: int,
    gamma: Any = None,
    beta: Any = None,
    channel_axis: int = -1,
    eps: float = 1e-5,
) -> Any:
    """Normalize each of `groups` groups of neighbouring channels of an example (the first axis)
    over all other axes, then scale by `gamma` and shift by `beta`, one number a channel.
    """
    x = as_float(x)
    (channel,) = normalize_axes(GroupNormOp, channel_axis, x.ndim)
    return _channel_layer(GroupNormOp, x, gamma, beta, channel_axis=channel, groups=groups, eps=eps)


def instance_norm(
    x: Any, gamma: Any = None, beta: Any = None, channel_axis: int = -1, eps: float = 1e-5
) -> Any:
    """Normalize each channel of each example (the first axis) over all other axes, then scale by
    `gamma` and shift by `beta`, one number a channel.
    """
    x = as_float(x)
    (channel,) = normalize_axes(InstanceNormOp, channel_axis, x.ndim)
    return _channel_layer(InstanceNormOp, x, gamma, beta, channel_axis=channel, eps=eps)


def same_type(x: Any, gamma: Any, beta: Any) -> list[Any]:
    """Scale and shift as operands of x's element type; ones for a scale that is missing."""
    if beta is not None and gamma is None:
        gamma = np.ones(as_tensor(beta).shape)
    return [as_tensor(a).astype(x.dtype) for a in (gamma, beta) if a is not None]


def _layer(op_class: type[Op], x: Any, gamma: Any, beta: Any, **attributes: Any) -> Any:
    """The op with scale and shift inside, where they are of the types that it takes; else they are
    applied to its result, promoted and broadcast as in arithmetic.
    """
    axes = attributes["axes"]
    wanted = x.spec.with_shape(x.shape[max(x.ndim - axes, 0) :])
    given = [None if a is None else as_tensor(a) for a in (gamma, beta)]
    fits = [a is not None and a.spec == wanted for a in given]
    inside = 2 if all(fits) else int(fits[0])
    y = op_class.emit(x, *given[:inside], **attributes)
    return apply_affine(y, *[None] * inside, *given[inside:])


def _channel_layer(op_class: type[Op], x: Any, gamma: Any, beta: Any, **attributes: Any) -> Any:
    return op_class.emit(x, *same_type(x, gamma, beta), **attributes)


def apply_affine(y: Any, gamma: Any = None, beta: Any = None) -> Any:
    y = y if gamma is None else y * gamma
    return y if beta is None else y + beta
