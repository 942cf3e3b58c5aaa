# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Convolution and its two gradients: three bilinear ops with one set of attributes, closed under
differentiation.

With channels last, images are (N, *spatial, C) and kernels (*window, C / groups, O); with channels
first, (N, C, *spatial) and (O, C / groups, *window). There are 1 to 3 spatial axes. Result extents
are (n + low + high - dilation (k - 1) - 1) // stride + 1. With `precision` "bfloat16" or "float16"
operands of float32 are rounded to that type, and the result is float32.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from . import builder as builders
from .base import Bool, Int, Ints, Op, Operand, Result, Str
from .contraction import contracted
from .elementwise import FLOAT, promote_together
from .precision import current_precision, in_type_of, product_type, rounded
from .slicing import PadOp
from .types import TensorSpec, is_float

MOST = 2**24
"""Elements that references copy at a time."""


class ConvolutionLike(Op):
    """What the three ops share: their attributes, and shapes as (batch, spatial, channels) whatever
    the layout.
    """

    strides: Ints
    low: Ints
    high: Ints
    dilation: Ints
    groups: Int = 1
    channels_last: Bool = True
    precision: Str = ""

    @classmethod
    def check(cls, a: TensorSpec, b: TensorSpec, **attributes: Any) -> int:
        """Number of spatial axes; raises on wrong ranks, element types or attribute lengths."""
        spatial = a.rank - 2
        if a.dtype != b.dtype or not is_float(a.dtype):
            raise cls.error(
                "floating-point operands of one element type", f"{a} and {b}", "convert one of them"
            )
        if a.rank != b.rank or not 1 <= spatial <= 3:
            raise cls.error("operands of one rank, 3 to 5", f"{a} and {b}")
        for name in ("strides", "low", "high", "dilation"):
            if len(attributes[name]) != spatial:
                raise cls.error(f"{spatial} values in {name}", list(attributes[name]))
        steps = {name: attributes[name] for name in ("strides", "dilation", "groups")}
        if min(*steps["strides"], *steps["dilation"], steps["groups"]) < 1:
            listed = ", ".join(f"{name} {value}" for name, value in steps.items())
            raise cls.error("strides, dilation and groups of at least 1", listed)
        if min(*attributes["low"], *attributes["high"]) < 0:
            raise cls.error(
                "no negative padding",
                f"{attributes['low']} and {attributes['high']}",
                "slice the input",
            )
        product_type(cls, a, attributes["precision"])
        return spatial

    @classmethod
    def windows(
        cls, extents: Sequence[int | None], kernel: Sequence[int | None], attributes: dict[str, Any]
    ) -> list[int]:
        """Spatial extents of the convolution's result."""
        result = []
        for n, k, s, lo, hi, d in zip(
            extents,
            kernel,
            *(attributes[a] for a in ("strides", "low", "high", "dilation")),
            strict=True,
        ):
            if n is None or k is None:
                raise cls.error(
                    "known spatial extents", f"{list(extents)} and window {list(kernel)}"
                )
            if k < 1 or n + lo + hi < d * (k - 1) + 1:
                raise cls.error(
                    f"a window of 1 to {(n + lo + hi - 1) // d + 1} elements", k, "pad the input"
                )
            result.append((n + lo + hi - d * (k - 1) - 1) // s + 1)
        return result


def image_parts(
    spec: TensorSpec, channels_last: bool
) -> tuple[int | None, tuple[int | None, ...], int | None]:
    """(batch, spatial extents, channels) of an image type."""
    n, *rest = spec.shape
    return (n, tuple(rest[:-1]), rest[-1]) if channels_last else (n, tuple(rest[1:]), rest[0])


def kernel_parts(
    spec: TensorSpec, channels_last: bool
) -> tuple[tuple[int | None, ...], int | None, int | None]:
    """(window, input channels of a group, output channels) of a kernel type."""
    if channels_last:
        *window, c, o = spec.shape
    else:
        o, c, *window = spec.shape
    return tuple(window), c, o


def image_shape(n: Any, spatial: Sequence[Any], c: Any, channels_last: bool) -> tuple[Any, ...]:
    return (n, *spatial, c) if channels_last else (n, c, *spatial)


def kernel_shape(window: Sequence[Any], c: Any, o: Any, channels_last: bool) -> tuple[Any, ...]:
    return (*window, c, o) if channels_last else (o, c, *window)


class ConvOp(ConvolutionLike, name="conv"):
    """Convolution (cross-correlation): y[n, p, o] = sum over k, c of x[n, p * stride + k * dilation
    - low, c] * w[k, c, o].

    Example: `%y = "gradopt.conv"(%x, %w) {strides = array<i64: 2, 2>, low = array<i64: 1, 1>, high
    = array<i64: 1, 1>, dilation = array<i64: 1, 1>} : (tensor<8x32x32x3xf32>, tensor<3x3x3x16xf32>)
    -> tensor<8x16x16x16xf32>`
    """

    x: Operand
    w: Operand
    y: Result

    @classmethod
    def infer(cls, x: TensorSpec, w: TensorSpec, **attributes: Any) -> TensorSpec:
        cls.check(x, w, **attributes)
        last, groups = attributes["channels_last"], attributes["groups"]
        (n, spatial, c), (window, per_group, o) = image_parts(x, last), kernel_parts(w, last)
        if c is None or per_group is None or o is None or c != per_group * groups or o % groups:
            raise cls.error(
                f"{c} input channels to be {groups} groups of the kernel's", f"{x} and {w}"
            )
        y = x.with_shape(image_shape(n, cls.windows(spatial, window, attributes), o, last))
        return y.with_dtype(product_type(cls, x, attributes["precision"]))

    @staticmethod
    def reference(x: np.ndarray, w: np.ndarray, **attributes: Any) -> np.ndarray:
        last, groups = attributes["channels_last"], attributes["groups"]
        x, w = rounded(attributes["precision"], images_last(x, last), kernel_last(w, last))
        n = w.ndim - 2
        out = ConvOp.windows(x.shape[1:-1], w.shape[:-2], attributes)
        split_w = w.reshape(*w.shape[:-1], groups, w.shape[-1] // groups)
        axes = (*range(n + 1, 2 * n + 1), 2 * n + 2), range(n + 1)
        parts = [
            contracted(p, split_w, *axes, (2 * n + 1,), (n + 1,))
            for _, p in patches(_pad(x, attributes), w.shape[:-2], out, attributes)
        ]
        y = np.moveaxis(np.concatenate(parts, 1), 0, -2)
        return images_back(y.reshape(*y.shape[:-2], w.shape[-1]), last)

    def vjp(self, ct: Any) -> list[Any]:
        """dx and dw are the two gradient ops, each linear in ct"""
        attributes, last = self.read_attributes(), self.channels_last
        extents, window = image_parts(self.x.spec, last)[1], kernel_parts(self.w.spec, last)[0]
        ct = in_type_of(self.x, ct)
        return [
            in_type_of(self.x, ConvInputGradientOp.emit(ct, self.w, extents=extents, **attributes)),
            in_type_of(self.w, ConvWeightGradientOp.emit(self.x, ct, window=window, **attributes)),
        ]


class ConvInputGradientOp(ConvolutionLike, name="conv_input_gradient"):
    """Gradient of `conv` by its input, also known as transposed convolution; `extents` are the
    input's spatial extents.

    dx[n, q, c] = sum over k, o, p with p * stride + k * dilation - low = q of g[n, p, o] * w[k, c,
    o].
    Example: `%dx = "gradopt.conv_input_gradient"(%g, %w) {extents = array<i64: 32, 32>, strides =
    array<i64: 2, 2>, low = array<i64: 1, 1>, high = array<i64: 1, 1>, dilation = array<i64: 1, 1>}
    : (tensor<8x16x16x16xf32>, tensor<3x3x3x16xf32>) -> tensor<8x32x32x3xf32>`
    """

    g: Operand
    w: Operand
    extents: Ints
    y: Result

    @classmethod
    def infer(
        cls, g: TensorSpec, w: TensorSpec, extents: tuple[int, ...], **attributes: Any
    ) -> TensorSpec:
        spatial_axes = cls.check(g, w, **attributes)
        last = attributes["channels_last"]
        (n, spatial, c), (window, per_group, o) = image_parts(g, last), kernel_parts(w, last)
        if len(extents) != spatial_axes:
            raise cls.error(f"{spatial_axes} extents", list(extents))
        if (
            spatial != tuple(cls.windows(extents, window, attributes))
            or c != o
            or per_group is None
        ):
            raise cls.error(
                f"a gradient with spatial extents {cls.windows(extents, window, attributes)} and "
                f"{o} channels",
                g,
            )
        dx = g.with_shape(image_shape(n, extents, per_group * attributes["groups"], last))
        return dx.with_dtype(product_type(cls, g, attributes["precision"]))

    @staticmethod
    def reference(
        g: np.ndarray, w: np.ndarray, extents: tuple[int, ...], **attributes: Any
    ) -> np.ndarray:
        last, groups = attributes["channels_last"], attributes["groups"]
        g, w = rounded(attributes["precision"], images_last(g, last), kernel_last(w, last))
        dx = np.zeros((g.shape[0], *extents, groups * w.shape[-2]), g.dtype)
        padded = _pad(dx, attributes)
        n = w.ndim - 2
        split_g = g.reshape(*g.shape[:-1], groups, g.shape[-1] // groups)
        split_w = w.reshape(*w.shape[:-1], groups, w.shape[-1] // groups)
        for tap, window in taps(w.shape[:-2], g.shape[1:-1], attributes):
            part = contracted(split_g, split_w[tap], (n + 2,), (2,), (n + 1,), (1,))
            padded[window] += np.moveaxis(part, 0, -2).reshape(padded[window].shape)
        inside = tuple(slice(lo, lo + n) for lo, n in zip(attributes["low"], extents, strict=True))
        return images_back(padded[(slice(None), *inside)], last)

    def vjp(self, ct: Any) -> list[Any]:
        """dg = conv(ct, w), dw = weight gradient of conv at input ct: the op is linear in both
        operands
        """
        attributes = self.read_attributes()
        del attributes["extents"]
        window = kernel_parts(self.w.spec, self.channels_last)[0]
        ct = in_type_of(self.g, ct)
        return [
            in_type_of(self.g, ConvOp.emit(ct, self.w, **attributes)),
            in_type_of(self.w, ConvWeightGradientOp.emit(ct, self.g, window=window, **attributes)),
        ]


class ConvWeightGradientOp(ConvolutionLike, name="conv_weight_gradient"):
    """Gradient of `conv` by its kernel; `window` are the kernel's spatial extents.

    dw[k, c, o] = sum over n, p of x[n, p * stride + k * dilation - low, c] * g[n, p, o].
    Example: `%dw = "gradopt.conv_weight_gradient"(%x, %g) {window = array<i64: 3, 3>, strides =
    array<i64: 2, 2>, low = array<i64: 1, 1>, high = array<i64: 1, 1>, dilation = array<i64: 1, 1>}
    : (tensor<8x32x32x3xf32>, tensor<8x16x16x16xf32>) -> tensor<3x3x3x16xf32>`
    """

    x: Operand
    g: Operand
    window: Ints
    y: Result

    @classmethod
    def infer(
        cls, x: TensorSpec, g: TensorSpec, window: tuple[int, ...], **attributes: Any
    ) -> TensorSpec:
        spatial_axes = cls.check(x, g, **attributes)
        last, groups = attributes["channels_last"], attributes["groups"]
        (n, spatial, c), (m, out, o) = image_parts(x, last), image_parts(g, last)
        if len(window) != spatial_axes:
            raise cls.error(f"{spatial_axes} window extents", list(window))
        if n != m or out != tuple(cls.windows(spatial, window, attributes)):
            raise cls.error(
                f"a gradient of batch {n} and spatial extents "
                f"{cls.windows(spatial, window, attributes)}",
                g,
            )
        if c is None or o is None or c % groups or o % groups:
            raise cls.error(f"channels divisible into {groups} groups", f"{x} and {g}")
        dw = x.with_shape(kernel_shape(window, c // groups, o, last))
        return dw.with_dtype(product_type(cls, x, attributes["precision"]))

    @staticmethod
    def reference(
        x: np.ndarray, g: np.ndarray, window: tuple[int, ...], **attributes: Any
    ) -> np.ndarray:
        last, groups = attributes["channels_last"], attributes["groups"]
        x, g = rounded(attributes["precision"], images_last(x, last), images_last(g, last))
        n = x.ndim - 2
        split_g = g.reshape(*g.shape[:-1], groups, g.shape[-1] // groups)
        parts = [
            contracted(p, split_g[where], range(n + 1), range(n + 1), (2 * n + 1,), (n + 1,))
            for where, p in patches(_pad(x, attributes), window, g.shape[1:-1], attributes)
        ]
        dw = np.moveaxis(sum(parts[1:], parts[0]), 0, -2)
        dw = dw.reshape(*dw.shape[:-2], g.shape[-1])
        return kernel_back(dw, last)

    def vjp(self, ct: Any) -> list[Any]:
        """dx = input gradient of conv with kernel ct, dg = conv(x, ct): the op is linear in both
        operands
        """
        attributes = self.read_attributes()
        del attributes["window"]
        extents = image_parts(self.x.spec, self.channels_last)[1]
        ct = in_type_of(self.x, ct)
        return [
            in_type_of(self.x, ConvInputGradientOp.emit(self.g, ct, extents=extents, **attributes)),
            in_type_of(self.g, ConvOp.emit(self.x, ct, **attributes)),
        ]


# --- NumPy helpers of the references --------------------------------------------------------------


def images_last(x: np.ndarray, channels_last: bool) -> np.ndarray:
    return x if channels_last else np.moveaxis(x, 1, -1)


def images_back(x: np.ndarray, channels_last: bool) -> np.ndarray:
    return x if channels_last else np.moveaxis(x, -1, 1)


def kernel_last(w: np.ndarray, channels_last: bool) -> np.ndarray:
    return w if channels_last else np.moveaxis(w, (1, 0), (-2, -1))


def kernel_back(w: np.ndarray, channels_last: bool) -> np.ndarray:
    return w if channels_last else np.moveaxis(w, (-2, -1), (1, 0))


def _pad(x: np.ndarray, attributes: dict[str, Any]) -> np.ndarray:
    if not any((*attributes["low"], *attributes["high"])):
        return x
    return np.pad(x, [(0, 0), *zip(attributes["low"], attributes["high"], strict=True), (0, 0)])


def taps(window: Sequence[int], out: Sequence[int], attributes: dict[str, Any]) -> Any:
    """For each kernel position: its index, and the padded input's elements that it meets, as an
    index (batch, *spatial).
    """
    for tap in itertools.product(*map(range, window)):
        where = tuple(
            slice(k * d, k * d + (p - 1) * s + 1, s)
            for k, d, p, s in zip(
                tap, attributes["dilation"], out, attributes["strides"], strict=True
            )
        )
        yield tap, (slice(None), *where)


def patches(
    padded: np.ndarray, window: Sequence[int], out: Sequence[int], attributes: dict[str, Any]
) -> Iterator[tuple[slice, np.ndarray]]:
    """The elements that each position of the result meets, (images, *out, *window, groups,
    channels of a group), as views for some images at a time: which images, and theirs.
    """
    batch, *steps, channel = padded.strides
    strides = [s * n for s, n in zip(steps, attributes["strides"], strict=True)]
    inner = [s * n for s, n in zip(steps, attributes["dilation"], strict=True)]
    groups = attributes["groups"]
    depth = padded.shape[-1] // groups
    shape = (len(padded), *out, *window, groups, depth)
    strides = (batch, *strides, *inner, channel * depth, channel)
    view = np.lib.stride_tricks.as_strided(padded, shape, strides, writeable=False)
    count = max(1, MOST // max(1, math.prod(shape[1:])))
    for i in range(0, max(1, len(view)), count):
        yield slice(i, i + count), view[i : i + count]


# --- functions ------------------------------------------------------------------------------------


def conv(
    x: Any,
    w: Any,
    strides: int | Sequence[int] = 1,
    padding: str | int | Sequence[Any] = "VALID",
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: str = "channels_last",
    input_dilation: int | Sequence[int] = 1,
    name: str | None = None,
) -> Any:
    """Convolution of images with a kernel, with 1 to 3 spatial axes.

    `layout` "channels_last" takes x (N, *spatial, C) and w (*window, C / groups, O);
    "channels_first" takes (N, C, *spatial) and (O, C / groups, *window). `padding` is "VALID",
    "SAME" (result extent = ceil(n / stride)), a number, or a (low, high) pair for each spatial
    axis. `input_dilation` - 1 zeros are put between the elements of x before it is padded.
    """
    with builders.owner("conv", (x, w)):
        x, w = promote_together(FLOAT, (x, w))
        last, s, d = _settings(ConvOp, x, layout, strides, dilation)
        x = _spread(x, _settings(ConvOp, x, layout, input_dilation, 1)[1], last)
        extents, window = image_parts(x.spec, last)[1], kernel_parts(w.spec, last)[0]
        low, high = paddings(ConvOp, padding, extents, window, s, d)
        attributes: dict[str, Any] = {"strides": s, "low": low, "high": high, "dilation": d}
        attributes["precision"] = current_precision(x, w)
        return ConvOp.emit(x, w, **attributes, groups=groups, channels_last=last, name=name)


def conv_transpose(
    g: Any,
    w: Any,
    strides: int | Sequence[int] = 1,
    padding: str | int | Sequence[Any] = "VALID",
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: str = "channels_last",
    output_padding: int | Sequence[int] = 0,
    name: str | None = None,
) -> Any:
    """Transposed convolution: the input gradient of the convolution that has kernel `w` and these
    settings.

    `w` has the shape that this convolution's kernel has. Result extents are (n - 1) stride +
    dilation (k - 1) + 1 - low - high + output_padding, and n stride with padding "SAME". An
    output_padding below the stride says which of the inputs is meant that give the same windows.
    """
    op = ConvInputGradientOp
    with builders.owner("conv_transpose", (g, w)):
        g, w = promote_together(FLOAT, (g, w))
        last, s, d = _settings(op, g, layout, strides, dilation)
        extents: Any = image_parts(g.spec, last)[1]
        window: Any = kernel_parts(w.spec, last)[0]
        if None in (*extents, *window):
            raise op.error("known spatial extents", f"{g.spec} and {w.spec}")
        full = tuple(n * step for n, step in zip(extents, s, strict=True))
        low, high = paddings(op, padding, full, window, s, d)
        if not _is_same(padding):
            sizes = zip(extents, window, s, d, low, high, strict=True)
            full = tuple((n - 1) * t + e * (k - 1) + 1 - l - h for n, k, t, e, l, h in sizes)
        more = _settings(op, g, layout, output_padding, 1)[1]
        if any(
            m and not (0 < m < t and not _is_same(padding)) for m, t in zip(more, s, strict=True)
        ):
            expected = "an output_padding of at least 0 and below the stride, 0 with padding 'SAME'"
            raise op.error(expected, more)
        full = tuple(n + m for n, m in zip(full, more, strict=True))
        attributes: dict[str, Any] = {"strides": s, "low": low, "high": high, "dilation": d}
        attributes |= {"extents": full, "groups": groups, "channels_last": last}
        attributes["precision"] = current_precision(g, w)
        return op.emit(g, w, **attributes, name=name)


def _spread(x: Any, steps: Sequence[int], channels_last: bool) -> Any:
    """`x` with zeros between the elements of its spatial axes."""
    if set(steps) <= {1}:
        return x
    if min(steps) < 1:
        raise ConvOp.error("an input_dilation of at least 1", steps)
    none = (0,) * x.ndim
    between = image_shape(0, [s - 1 for s in steps], 0, channels_last)
    return PadOp.emit(x, low=none, high=none, interior=between)


def _settings(
    op_class: type[Op], x: Any, layout: str, strides: Any, dilation: Any
) -> tuple[bool, tuple[int, ...], tuple[int, ...]]:
    """(is the layout channels_last, strides, dilation), the latter one a spatial axis."""
    if layout not in ("channels_last", "channels_first"):
        raise op_class.error("layout to be 'channels_last' or 'channels_first'", f"'{layout}'")
    axes = max(x.ndim - 2, 0)
    found = []
    for name, value in (("strides", strides), ("dilation", dilation)):
        each = (value,) * axes if np.ndim(value) == 0 else tuple(value)
        if len(each) != axes:
            raise op_class.error(f"{name} for {axes} spatial axes", each)
        found.append(each)
    return layout == "channels_last", found[0], found[1]


def _is_same(padding: Any) -> bool:
    return isinstance(padding, str) and padding.upper() == "SAME"


def paddings(
    op_class: type[Op], padding: Any, extents: Any, window: Any, strides: Any, dilation: Any
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What is added before and behind each spatial axis."""
    if isinstance(padding, str) and padding.upper() == "VALID":
        padding = 0
    if isinstance(padding, int):
        pairs = [(padding, padding)] * len(extents)
    elif not isinstance(padding, str):
        pairs = [(p, p) if isinstance(p, int) else tuple(p) for p in padding]
    elif _is_same(padding):
        pairs = []
        for n, k, s, d in zip(extents, window, strides, dilation, strict=False):
            if n is None or k is None:
                raise op_class.error("known spatial extents for padding 'SAME'", list(extents))
            total = max((-(-n // s) - 1) * s + d * (k - 1) + 1 - n, 0)
            pairs.append((total // 2, total - total // 2))
    else:
        expected = "padding to be 'VALID', 'SAME', a number or (low, high) pairs"
        raise op_class.error(expected, f"'{padding}'")
    if len(pairs) != len(extents) or any(len(p) != 2 for p in pairs):
        raise op_class.error(f"a (low, high) pair for {len(extents)} spatial axes", padding)
    return tuple(p[0] for p in pairs), tuple(p[1] for p in pairs)
