# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Layers on images, (N, *spatial, C) or, with layout="channels_first", (N, C, *spatial)."""

from collections.abc import Sequence
from typing import Any

from ..dialect import convolution, pooling, resize
from ..dialect.convolution import kernel_shape
from ..dialect.types import float32
from ..errors import ModuleError
from . import init
from .layers import activation_of, check_extents, check_width
from .module import Module, parameter

LAYOUTS = ("channels_last", "channels_first")


def _last(layout: str) -> bool:
    if layout not in LAYOUTS:
        raise ModuleError(f"expected a layout out of {', '.join(LAYOUTS)}, got {layout!r}")
    return layout == "channels_last"


class Windowed(Module):
    """What convolutions have in common: a kernel, a bias and an activation."""

    def __init__(
        self,
        in_width: int,
        out_width: int,
        window: int | Sequence[int],
        axes: int,
        kernel: tuple[int, int],
        settings: dict[str, Any],
        bias: bool,
        activation: Any,
        dtype: Any,
        weight_init: init.Initializer | None,
        bias_init: init.Initializer | None,
    ) -> None:
        name = type(self).__name__
        groups = settings["groups"]
        check_extents(name, in_width=in_width, out_width=out_width, groups=groups)
        if in_width % groups or out_width % groups:
            raise ModuleError(
                f"{name} expected groups that divide the widths, got {groups} groups for "
                f"{in_width} -> {out_width}"
            )
        extents = (window,) * axes if isinstance(window, int) else tuple(window)
        if not 1 <= len(extents) <= 3:
            raise ModuleError(f"{name} expected 1 to 3 spatial axes, got window {extents}")
        last = _last(settings["layout"])
        self.in_width, self.out_width, self.window = in_width, out_width, extents
        self.settings, self.activation = settings, activation
        activation_of(activation)
        make = weight_init or init.glorot_uniform(*((-2, -1) if last else (1, 0)))
        self.weight = parameter(make(kernel_shape(extents, *kernel, last), dtype))
        self.bias = parameter((bias_init or init.zeros())((out_width,), dtype)) if bias else None

    def _run(self, function: Any, x: Any) -> Any:
        last = self.settings["layout"] == "channels_last"
        if x.ndim != len(self.window) + 2:
            raise ModuleError(
                f"{type(self).__name__}({self.summary()}) expected an input with "
                f"{len(self.window)} spatial axes, got shape {x.shape}"
            )
        check_width(self, x, self.in_width, -1 if last else 1)
        y, bias = function(x, self.weight, **self.settings), self.bias
        if bias is not None:
            y = y + (bias if last else bias.reshape((-1, *(1,) * len(self.window))))
        activation = activation_of(self.activation)
        return y if activation is None else activation(y)

    def summary(self) -> str:
        window = "x".join(map(str, self.window))
        standard = {"strides": 1, "padding": "VALID", "dilation": 1, "groups": 1}
        standard |= {"layout": "channels_last", "output_padding": 0}
        others = {k: v for k, v in self.settings.items() if v != standard[k]}
        if self.activation is not None:
            others["activation"] = getattr(self.activation, "__name__", self.activation)
        rest = "".join(f", {k}={v}" for k, v in others.items())
        return f"{self.in_width} -> {self.out_width}, {window}{rest}"


class Conv(Windowed):
    """Convolution with 1 to 3 spatial axes, then a bias a channel and an activation; see `go.conv`.

    `window` is an extent for each axis, or one number for `axes` axes, by default 2. The kernel is
    (*window, in_width / groups, out_width), or (out_width, in_width / groups, *window) in layout
    "channels_first", and begins by `weight_init`, by default `nn.init.glorot_uniform()`.
    """

    def __init__(
        self,
        in_width: int,
        out_width: int,
        window: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: str | int | Sequence[Any] = "VALID",
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        bias: bool = True,
        activation: Any = None,
        axes: int = 2,
        layout: str = "channels_last",
        dtype: Any = float32,
        weight_init: init.Initializer | None = None,
        bias_init: init.Initializer | None = None,
    ) -> None:
        settings: dict[str, Any] = {"strides": strides, "padding": padding, "dilation": dilation}
        settings |= {"groups": groups, "layout": layout}
        kernel = (in_width // max(groups, 1), out_width)
        rest = (bias, activation, dtype, weight_init, bias_init)
        super().__init__(in_width, out_width, window, axes, kernel, settings, *rest)

    def __call__(self, x: Any) -> Any:
        return self._run(convolution.conv, x)


class ConvTranspose(Windowed):
    """Transposed convolution, which undoes the shape of a convolution with the same settings; see
    `go.conv_transpose`. The kernel is (*window, out_width / groups, in_width), that of the
    convolution from out_width to in_width, or (in_width, out_width / groups, *window) in layout
    "channels_first".
    """

    def __init__(
        self,
        in_width: int,
        out_width: int,
        window: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: str | int | Sequence[Any] = "VALID",
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        output_padding: int | Sequence[int] = 0,
        bias: bool = True,
        activation: Any = None,
        axes: int = 2,
        layout: str = "channels_last",
        dtype: Any = float32,
        weight_init: init.Initializer | None = None,
        bias_init: init.Initializer | None = None,
    ) -> None:
        settings: dict[str, Any] = {"strides": strides, "padding": padding, "dilation": dilation}
        settings |= {"groups": groups, "layout": layout, "output_padding": output_padding}
        kernel = (out_width // max(groups, 1), in_width)
        rest = (bias, activation, dtype, weight_init, bias_init)
        super().__init__(in_width, out_width, window, axes, kernel, settings, *rest)

    def __call__(self, x: Any) -> Any:
        return self._run(convolution.conv_transpose, x)


class Pool(Module):
    """What pools have in common; arguments as of `go.max_pool`."""

    def __init__(
        self,
        window: int | Sequence[int],
        strides: int | Sequence[int] | None = None,
        padding: str | int | Sequence[Any] = 0,
        layout: str = "channels_last",
        **settings: Any,
    ) -> None:
        _last(layout)
        self.window, self.strides, self.padding = window, strides, padding
        self.layout, self.settings = layout, settings

    def _run(self, function: Any, x: Any) -> Any:
        last = self.layout == "channels_last"
        where: dict[str, Any] = {"strides": self.strides, "padding": self.padding}
        return function(x, self.window, **where, channels_last=last, **self.settings)

    def summary(self) -> str:
        strides = "" if self.strides is None else f", strides={self.strides}"
        return f"{self.window}{strides}"


class MaxPool(Pool):
    """Largest element of each window; `dilation` and `ceil_mode` as of `go.max_pool`."""

    def __call__(self, x: Any) -> Any:
        return self._run(pooling.max_pool, x)


class AvgPool(Pool):
    """Mean of each window; `dilation`, `ceil_mode` and `count_include_pad` as of `go.avg_pool`."""

    def __call__(self, x: Any) -> Any:
        return self._run(pooling.avg_pool, x)


class AdaptiveAvgPool(Module):
    """Means of windows that give images of a size: (N, *size, C); see `go.adaptive_avg_pool`."""

    def __init__(self, size: int | Sequence[int | None], layout: str = "channels_last") -> None:
        _last(layout)
        self.size, self.layout = size, layout

    def __call__(self, x: Any) -> Any:
        return resize.adaptive_avg_pool(x, self.size, self.layout == "channels_last")

    def summary(self) -> str:
        return f"{self.size}"
