# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The elements that windows meet, copied out (im2col, unfold), and added back (col2im, fold).

See window.py for images and windows.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from . import builder as builders
from .base import Ints, Operand, Result
from .convolution import image_parts, image_shape, images_back
from .elementwise import ANY, NUMERIC, as_tensor
from .types import TensorSpec
from .window import WindowOp, elements, spatial_extents, window_attributes


class ExtractPatchesOp(WindowOp, name="extract_patches"):
    """Each window's elements: y[n, p, k, c] = x[n, p * stride + k * dilation - low, c], 0 in the
    padding; with channels first, y[n, c, k, p].

    Example: `%y = "gradopt.extract_patches"(%x) {window = array<i64: 3>, strides = array<i64: 2>,
    low = array<i64: 1>, high = array<i64: 1>, dilation = array<i64: 1>, base_dilation = array<i64:
    1>} : (tensor<8x9x4xf32>) -> tensor<8x5x3x4xf32>`
    """

    KIND = ANY
    x: Operand
    y: Result

    @classmethod
    def infer(cls, x: TensorSpec, **attributes: Any) -> TensorSpec:
        last = attributes["channels_last"]
        n, windows, c = image_parts(cls.pooled(x, **attributes), last)
        return x.with_shape(_patch_shape(n, windows, attributes["window"], c, last))

    @staticmethod
    def reference(x: np.ndarray, **attributes: Any) -> np.ndarray:
        window, last = attributes["window"], attributes["channels_last"]
        y = np.stack(list(elements(x, 0, attributes)), axis=-2)  # (N, *windows, places, C)
        n, *windows, _, c = y.shape
        y = y.reshape(n, *windows, *window, c)
        axes = range(1, len(window) + 1)
        return y if last else y.transpose(0, -1, *(a + len(window) for a in axes), *axes)

    def vjp(self, ct: Any) -> list[Any]:
        """dx = for each element, the sum of what came from it"""
        extents = image_parts(self.x.spec, self.channels_last)[1]
        return [FoldPatchesOp.emit(ct, extents=extents, **self.read_attributes())]


class FoldPatchesOp(WindowOp, name="fold_patches"):
    """Patches added up where their windows meet: x[n, q, c] = sum over p, k with p * stride + k *
    dilation - low = q of y[n, p, k, c], the transpose of `extract_patches`; `extents` are those of
    the image.

    Example: `%x = "gradopt.fold_patches"(%y) {extents = array<i64: 9>, window = array<i64: 3>,
    strides = array<i64: 2>, low = array<i64: 1>, high = array<i64: 1>, dilation = array<i64: 1>,
    base_dilation = array<i64: 1>} : (tensor<8x5x3x4xf32>) -> tensor<8x9x4xf32>`
    """

    KIND = NUMERIC
    y: Operand
    extents: Ints
    x: Result

    @classmethod
    def infer(cls, y: TensorSpec, extents: tuple[int, ...], **attributes: Any) -> TensorSpec:
        last, axes = attributes["channels_last"], len(attributes["window"])
        if y.rank != 2 * axes + 2:
            raise cls.error(f"patches of {2 * axes + 2} axes", y)
        n, c = y.shape[0], y.shape[-1 if last else 1]
        x = y.with_shape(image_shape(n, extents, c, last))
        windows = image_parts(cls.pooled(x, **attributes), last)[1]
        expected = y.with_shape(_patch_shape(n, windows, attributes["window"], c, last))
        if y != expected:
            raise cls.error(f"patches of type {expected}", y)
        return x

    @staticmethod
    def reference(y: np.ndarray, extents: tuple[int, ...], **attributes: Any) -> np.ndarray:
        last, axes = attributes["channels_last"], len(extents)
        if not last:
            y = np.moveaxis(y, 1, -1)  # (N, *window, *windows, C)
            around = range(1, axes + 1)
            y = y.transpose(0, *(a + axes for a in around), *around, 2 * axes + 1)
        n, c = y.shape[0], y.shape[-1]
        x = np.zeros((n, *extents, c), y.dtype)
        at = np.arange(x.size).reshape(x.shape)  # the element that a place holds; -1 for none
        where = elements(at, -1, attributes | {"channels_last": True})
        for k, found in zip(np.ndindex(attributes["window"]), where, strict=True):
            values = y[(slice(None), *[slice(None)] * axes, *k)]
            np.add.at(x.reshape(-1), found[found >= 0], values[found >= 0])
        return images_back(x, last)

    def vjp(self, ct: Any) -> list[Any]:
        """dy = ct at the elements that were added to"""
        attributes = self.read_attributes()
        del attributes["extents"]
        return [ExtractPatchesOp.emit(ct, **attributes)]


def _patch_shape(
    n: Any, windows: Sequence[Any], window: Sequence[int], c: Any, channels_last: bool
) -> tuple[Any, ...]:
    return (n, *windows, *window, c) if channels_last else (n, c, *window, *windows)


# --- functions ------------------------------------------------------------------------------------


def extract_patches(
    x: Any,
    window: int | Sequence[int],
    strides: int | Sequence[int] = 1,
    padding: str | int | Sequence[Any] = 0,
    dilation: int | Sequence[int] = 1,
    channels_last: bool = True,
    name: str | None = None,
) -> Any:
    """The elements of each window over images (N, *spatial, C) as (N, *windows, *window, C); with
    channels first, of (N, C, *spatial) as (N, C, *window, *windows), which is the order of
    PyTorch's unfold. Settings are those of `max_pool`; the padding holds 0.
    """
    with builders.owner("extract_patches", (x,)):
        x = as_tensor(x)
        spatial = spatial_extents(ExtractPatchesOp, x, channels_last)
        attributes = window_attributes(
            ExtractPatchesOp, spatial, window, strides, padding, dilation, channels_last
        )
        return ExtractPatchesOp.emit(x, **attributes, name=name)


def fold_patches(
    patches: Any,
    extents: int | Sequence[int],
    strides: int | Sequence[int] = 1,
    padding: str | int | Sequence[Any] = 0,
    dilation: int | Sequence[int] = 1,
    channels_last: bool = True,
    name: str | None = None,
) -> Any:
    """Images with spatial `extents` whose elements are the sums of the patches' elements that came
    from there: the transpose of `extract_patches` with the same settings.
    """
    with builders.owner("fold_patches", (patches,)):
        patches = as_tensor(patches)
        axes = (patches.ndim - 2) // 2
        found = (extents,) * axes if isinstance(extents, int) else tuple(extents)
        window = patches.shape[axes + 1 : -1] if channels_last else patches.shape[2 : axes + 2]
        if axes < 1 or len(found) != axes or None in window:
            expected = "patches (N, *windows, *window, C) of known windows, and an extent an axis"
            raise FoldPatchesOp.error(expected, f"{patches.spec} and {extents}")
        attributes = window_attributes(
            FoldPatchesOp, found, window, strides, padding, dilation, channels_last
        )
        return FoldPatchesOp.emit(patches, extents=found, **attributes, name=name)
