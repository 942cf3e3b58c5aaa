# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Blocks of neighbouring places of images laid out as channels, and back."""

from typing import Any

import numpy as np

from .base import Bool, Int, Op, Operand, Result, Str
from .convolution import image_parts, image_shape, images_back, images_last
from .elementwise import as_tensor
from .shape import transpose
from .types import TensorSpec


class Blocks(Op):
    """Blocks of neighbouring places (block along each spatial axis), and channels.

    With mode "DCR" the channels are ordered by place in the block first, by depth after; with "CRD"
    by depth first (ONNX's names).
    """

    x: Operand
    block: Int
    mode: Str = "DCR"
    channels_last: Bool = True
    y: Result

    @classmethod
    def check(
        cls, x: TensorSpec, block: int, mode: str, channels_last: bool
    ) -> tuple[Any, list[int], Any]:
        """(batch, spatial extents, channels); raises on what does not fit."""
        if not 3 <= x.rank <= 5:
            raise cls.error("images (N, *spatial, C) with 1 to 3 spatial axes", x)
        if block < 1 or mode not in ("DCR", "CRD"):
            expected = "a block of at least 1 and mode 'DCR' or 'CRD'"
            raise cls.error(expected, f"{block} and '{mode}'")
        n, spatial, c = image_parts(x, channels_last)
        if c is None or None in spatial:
            raise cls.error("known spatial extents and channels", x)
        return n, [m or 0 for m in spatial], c

    @staticmethod
    def depths(total: int, parts: int, part: int, mode: str) -> slice:
        """The channels of one place of the block."""
        depth = total // parts
        return (
            slice(part * depth, (part + 1) * depth) if mode == "DCR" else slice(part, None, parts)
        )


class DepthToSpaceOp(Blocks, name="depth_to_space"):
    """Channels laid out as blocks of places (pixel shuffle): y[n, p block + b, d] = x[n, p, (b,
    d)], or x[n, p, (d, b)] with mode "CRD".

    Example: `%y = "gradopt.depth_to_space"(%x) {block = 2 : i64} : (tensor<1x2x3x8xf32>) ->
    tensor<1x4x6x2xf32>`
    """

    @classmethod
    def infer(cls, x: TensorSpec, block: int, mode: str, channels_last: bool) -> TensorSpec:
        n, spatial, c = cls.check(x, block, mode, channels_last)
        places = block ** len(spatial)
        if c % places:
            raise cls.error(f"channels that {places} divides", x)
        larger = [m * block for m in spatial]
        return x.with_shape(image_shape(n, larger, c // places, channels_last))

    @staticmethod
    def reference(x: np.ndarray, block: int, mode: str, channels_last: bool) -> np.ndarray:
        x = images_last(x, channels_last)
        axes = x.ndim - 2
        parts = block**axes
        y = np.zeros(
            (x.shape[0], *(m * block for m in x.shape[1:-1]), x.shape[-1] // parts), x.dtype
        )
        for part, place in enumerate(np.ndindex(*[block] * axes)):
            where = (slice(None), *(slice(b, None, block) for b in place))
            y[where] = x[..., Blocks.depths(x.shape[-1], parts, part, mode)]
        return images_back(y, channels_last)

    @staticmethod
    def decompose(x: Any, block: int, mode: str, channels_last: bool) -> Any:
        """Channels split, their parts moved behind the spatial axes, and merged with them"""
        n, spatial, c = Blocks.check(x.spec, block, mode, channels_last)
        axes = len(spatial)
        blocks, depth = [block] * axes, c // block**axes
        split = [*blocks, depth] if mode == "DCR" else [depth, *blocks]
        first = axes + 1 if channels_last else 1  # where the split channels start
        at = list(range(first, first + axes + 1))
        depth_at, block_at = (at[-1], at[:-1]) if mode == "DCR" else (at[0], at[1:])
        spatial_at = range(1, axes + 1) if channels_last else range(axes + 2, 2 * axes + 2)
        shape = (n, *spatial, *split) if channels_last else (n, *split, *spatial)
        places = [a for pair in zip(spatial_at, block_at, strict=True) for a in pair]
        order = [0, *places, depth_at] if channels_last else [0, depth_at, *places]
        larger = [m * block for m in spatial]
        moved = transpose(x.reshape_to(shape), order)
        return moved.reshape_to(image_shape(n, larger, depth, channels_last))

    def vjp(self, ct: Any) -> list[Any]:
        """dx = ct with its blocks as channels again"""
        return [SpaceToDepthOp.emit(ct, **self.read_attributes())]


class SpaceToDepthOp(Blocks, name="space_to_depth"):
    """Blocks of places laid out as channels: y[n, p, (b, d)] = x[n, p block + b, d], or y[n, p, (d,
    b)] with mode "CRD".

    Example: `%y = "gradopt.space_to_depth"(%x) {block = 2 : i64} : (tensor<1x4x6x2xf32>) ->
    tensor<1x2x3x8xf32>`
    """

    @classmethod
    def infer(cls, x: TensorSpec, block: int, mode: str, channels_last: bool) -> TensorSpec:
        n, spatial, c = cls.check(x, block, mode, channels_last)
        if any(m % block for m in spatial):
            raise cls.error(f"spatial extents that {block} divides", x)
        smaller = [m // block for m in spatial]
        channels = c * block ** len(spatial)
        return x.with_shape(image_shape(n, smaller, channels, channels_last))

    @staticmethod
    def reference(x: np.ndarray, block: int, mode: str, channels_last: bool) -> np.ndarray:
        x = images_last(x, channels_last)
        axes = x.ndim - 2
        parts = block**axes
        y = np.zeros(
            (x.shape[0], *(m // block for m in x.shape[1:-1]), x.shape[-1] * parts), x.dtype
        )
        for part, place in enumerate(np.ndindex(*[block] * axes)):
            where = (slice(None), *(slice(b, None, block) for b in place))
            y[..., Blocks.depths(y.shape[-1], parts, part, mode)] = x[where]
        return images_back(y, channels_last)

    @staticmethod
    def decompose(x: Any, block: int, mode: str, channels_last: bool) -> Any:
        """Spatial axes split, the inner parts moved to the channels, and merged with them"""
        n, spatial, c = Blocks.check(x.spec, block, mode, channels_last)
        axes = len(spatial)
        smaller = [m // block for m in spatial]
        first = 1 if channels_last else 2
        outer, inner = ([first + s + 2 * a for a in range(axes)] for s in (0, 1))
        depth_at = 2 * axes + 1 if channels_last else 1
        shape = image_shape(n, [e for m in smaller for e in (m, block)], c, channels_last)
        channels = [*inner, depth_at] if mode == "DCR" else [depth_at, *inner]
        order = [0, *outer, *channels] if channels_last else [0, *channels, *outer]
        moved = transpose(x.reshape_to(shape), order)
        return moved.reshape_to(image_shape(n, smaller, c * block**axes, channels_last))

    def vjp(self, ct: Any) -> list[Any]:
        """dx = ct with its channels as blocks again"""
        return [DepthToSpaceOp.emit(ct, **self.read_attributes())]


def depth_to_space(
    x: Any, block: int, mode: str = "DCR", channels_last: bool = True, name: str | None = None
) -> Any:
    """Channels of images laid out as blocks of `block` places along each spatial axis. `mode` says
    how channels are ordered: by place first ("DCR", as TensorFlow) or by depth first ("CRD", as
    PyTorch's pixel_shuffle).
    """
    attributes: dict[str, Any] = {"block": block, "mode": mode, "channels_last": channels_last}
    return DepthToSpaceOp.emit(as_tensor(x), **attributes, name=name)


def space_to_depth(
    x: Any, block: int, mode: str = "DCR", channels_last: bool = True, name: str | None = None
) -> Any:
    """Blocks of `block` places along each spatial axis laid out as channels: undoes
    `depth_to_space`.
    """
    attributes: dict[str, Any] = {"block": block, "mode": mode, "channels_last": channels_last}
    return SpaceToDepthOp.emit(as_tensor(x), **attributes, name=name)
