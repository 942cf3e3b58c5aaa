# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Windows that move over images: what they share, and the elements they meet as patches.

Images are (N, *spatial, C) with channels last, else (N, C, *spatial), with 1 to 3 spatial axes. An
axis of n elements is first spread to m = (n - 1) base_dilation + 1 places, then padded; negative
padding cuts off. Result extents are (m + low + high - dilation (k - 1) - 1) // stride + 1.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .base import Bool, Ints, Op
from .convolution import image_parts, image_shape, images_last, paddings
from .elementwise import ACCEPTS, FLOAT
from .types import TensorSpec

GEOMETRY = ("window", "strides", "low", "high", "dilation", "base_dilation")


class WindowOp(Op):
    """What the ops share: attributes, result extents, and the elements that a window meets."""

    KIND = FLOAT
    window: Ints
    strides: Ints
    low: Ints
    high: Ints
    dilation: Ints
    base_dilation: Ints
    channels_last: Bool = True

    @classmethod
    def pooled(cls, x: TensorSpec, **attributes: Any) -> TensorSpec:
        """The type of one value for each window; raises on what does not fit."""
        axes = len(attributes["window"])
        if not ACCEPTS[cls.KIND](x.dtype):
            raise cls.error(f"a {cls.KIND} operand", x, "convert it first")
        if not 1 <= axes <= 3 or x.rank != axes + 2:
            raise cls.error("1 to 3 window extents and an operand of two more axes", f"{x}")
        for name in GEOMETRY:
            if len(attributes[name]) != axes:
                raise cls.error(f"{axes} values in {name}", list(attributes[name]))
        steps = [attributes[a] for a in ("window", "strides", "dilation", "base_dilation")]
        if min(itertools.chain(*steps)) < 1:
            listed = ", ".join(f"{name} {attributes[name]}" for name in GEOMETRY)
            raise cls.error("window, strides and dilations of at least 1", listed)
        last = attributes["channels_last"]
        n, spatial, c = image_parts(x, last)
        extents = [cls._windows(*axis) for axis in zip(spatial, *geometry(attributes), strict=True)]
        return x.with_shape(image_shape(n, extents, c, last))

    @classmethod
    def _windows(cls, n: int | None, k: int, s: int, lo: int, hi: int, d: int, base: int) -> int:
        """How many windows there are along an axis."""
        if n is None:
            raise cls.error("known spatial extents", "an unknown one")
        spread = spread_extent(n, base)
        if min(lo, hi, lo + hi) < -spread:
            raise cls.error(f"to cut off at most {spread} elements", f"low {lo}, high {hi}")
        if spread + lo + hi < d * (k - 1) + 1:
            most = max(0, (spread + lo + hi - 1) // d + 1)
            raise cls.error(f"a window of at most {most} elements", k, "pad the input")
        return (spread + lo + hi - d * (k - 1) - 1) // s + 1


def geometry(attributes: dict[str, Any]) -> list[tuple[int, ...]]:
    """Window, strides, low, high, dilation and base dilation."""
    return [attributes[name] for name in GEOMETRY]


def spread_extent(n: int, base: int) -> int:
    """The extent of n elements with base - 1 places between neighbours."""
    return (n - 1) * base + 1 if n else 0


def elements(x: np.ndarray, fill: Any, attributes: dict[str, Any]) -> Iterator[np.ndarray]:
    """For each place k of the window, the elements that all windows have there, (N, *windows, C);
    `fill` in the padding.
    """
    x = images_last(x, attributes["channels_last"])
    window, strides, low, high, dilation, base = geometry(attributes)
    n, *spatial, c = x.shape
    extents = [spread_extent(m, b) for m, b in zip(spatial, base, strict=True)]
    spread = np.full((n, *extents, c), fill, x.dtype)
    spread[(slice(None), *(slice(None, None, b) for b in base))] = x
    sides = [(max(lo, 0), max(hi, 0)) for lo, hi in zip(low, high, strict=True)]
    padded = np.pad(spread, [(0, 0), *sides, (0, 0)], constant_values=fill)
    cut = [(max(-lo, 0), max(-hi, 0)) for lo, hi in zip(low, high, strict=True)]
    kept = [slice(lo, m - hi) for (lo, hi), m in zip(cut, padded.shape[1:-1], strict=True)]
    padded = padded[(slice(None), *kept)]
    for place in itertools.product(*map(range, window)):
        where = []
        for m, k, w, s, d in zip(padded.shape[1:-1], place, window, strides, dilation, strict=True):
            count = (m - d * (w - 1) - 1) // s + 1
            where.append(slice(k * d, k * d + (count - 1) * s + 1, s))
        yield padded[(slice(None), *where)]


def window_attributes(
    op_class: type[Op],
    spatial: Sequence[int | None],
    window: Any,
    strides: Any,
    padding: Any,
    dilation: Any,
    channels_last: bool,
) -> dict[str, Any]:
    """The attributes of a `WindowOp` over images with `spatial` extents, from a function's
    arguments.
    """
    axes = len(spatial)
    if axes < 1:
        raise op_class.error("images (N, *spatial, C) with 1 to 3 spatial axes", "none")
    k = spatial_numbers(op_class, "window", window, axes)
    s = k if strides is None else spatial_numbers(op_class, "strides", strides, axes)
    d = spatial_numbers(op_class, "dilation", dilation, axes)
    low, high = paddings(op_class, padding, spatial, k, s, d)
    found = dict(zip(GEOMETRY, (k, s, low, high, d, (1,) * axes), strict=True))
    return found | {"channels_last": channels_last}


def spatial_extents(op_class: type[Op], x: Any, channels_last: bool) -> tuple[int | None, ...]:
    """The spatial extents of a tensor of images."""
    if x.ndim < 3:
        raise op_class.error("images (N, *spatial, C) with 1 to 3 spatial axes", x.spec)
    return image_parts(x.spec, channels_last)[1]


def spatial_numbers(op_class: type[Op], what: str, value: Any, axes: int) -> tuple[int, ...]:
    """A number for every spatial axis, from one number for all or one for each."""
    each = (value,) * axes if np.ndim(value) == 0 else tuple(value)
    if len(each) != axes:
        raise op_class.error(f"{what} for {axes} spatial axes", each)
    return each
