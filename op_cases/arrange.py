# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Rolled, repeated and cut arrangements, and blocks of places."""

from collections.abc import Callable
from typing import Any

import numpy as np

from .case import CUBE, Case, bools, ints, jnp, reals, seed

seed(51)


def arranged(
    op: str, x: np.ndarray, jax: Callable[..., Any], suffix: str = "", **attributes: Any
) -> Case:
    return Case(op, [x], jax, attributes, suffix=suffix)


def jax_blocks(x: Any, block: int, mode: str) -> Any:
    """depth_to_space of images (N, H, W, C)"""
    n, h, w, c = x.shape
    d = c // block**2
    if mode == "DCR":
        split = x.reshape(n, h, w, block, block, d).transpose(0, 1, 3, 2, 4, 5)
    else:
        split = x.reshape(n, h, w, d, block, block).transpose(0, 1, 4, 2, 5, 3)
    return split.reshape(n, h * block, w * block, d)


def jax_channels(x: Any, block: int, mode: str) -> Any:
    """space_to_depth of images (N, H, W, C)"""
    n, h, w, c = x.shape
    split = x.reshape(n, h // block, block, w // block, block, c)
    order = (0, 1, 3, 2, 4, 5) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return split.transpose(order).reshape(n, h // block, w // block, c * block**2)


def first(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn` of images with channels last, for images with channels first."""
    return lambda x: jnp.moveaxis(fn(jnp.moveaxis(x, 1, -1)), -1, 1)


CASES = [
    arranged("roll", CUBE, lambda x: jnp.roll(x, (1, -5), (0, 2)), shifts=(1, -5), axes=(0, 2)),
    arranged("roll", CUBE, lambda x: x, "whole", shifts=(3, 8), axes=(1, 2)),
    arranged("tile", reals(2, 3), lambda x: jnp.tile(x, (2, 3)), repeats=(2, 3)),
    arranged("tile", CUBE, lambda x: jnp.tile(x, (1, 3, 1)), "one_axis", repeats=(1, 3, 1)),
    arranged("repeat", CUBE, lambda x: jnp.repeat(x, 3, 1), repeats=3, axis=1),
    arranged("repeat", CUBE, lambda x: jnp.repeat(x, 2, 2), "last", repeats=2, axis=2),
    arranged("tril", CUBE, lambda x: jnp.tril(x, 1), k=1),
    arranged("tril", reals(5, 3), lambda x: jnp.tril(x, -1), "below", k=-1),
    arranged("triu", CUBE, lambda x: jnp.triu(x, 1), k=1),
    arranged("triu", bools(4, 4), jnp.triu, "bool"),
    arranged("diagonal", reals(3, 4), lambda x: jnp.diagonal(x), axis1=0, axis2=1),
    arranged(
        "diagonal",
        CUBE,
        lambda x: jnp.diagonal(x, 1, 2, 0),
        "offset",
        offset=1,
        axis1=2,
        axis2=0,
    ),
    arranged(
        "diagonal",
        CUBE,
        lambda x: jnp.diagonal(x, -2, 1, 2),
        "below",
        offset=-2,
        axis1=1,
        axis2=2,
    ),
    arranged("diff", CUBE, lambda x: jnp.diff(x, axis=2), axis=2),
    arranged("diff", CUBE, lambda x: jnp.diff(x, 2, 1), "twice", n=2, axis=1),
    arranged("diff", ints(7), jnp.diff, "int", axis=0),
    arranged("diff", bools(7), lambda x: x[1:] != x[:-1], "bool", axis=0),
    arranged("depth_to_space", reals(2, 2, 3, 8), lambda x: jax_blocks(x, 2, "DCR"), block=2),
    arranged(
        "depth_to_space",
        reals(2, 18, 2, 3),
        first(lambda x: jax_blocks(x, 3, "CRD")),
        "first",
        block=3,
        mode="CRD",
        channels_last=False,
    ),
    arranged(
        "depth_to_space",
        reals(2, 8, 2, 3),
        first(lambda x: jax_blocks(x, 2, "DCR")),
        "first_places",
        block=2,
        channels_last=False,
    ),
    arranged("space_to_depth", reals(2, 4, 6, 2), lambda x: jax_channels(x, 2, "DCR"), block=2),
    arranged(
        "space_to_depth",
        reals(2, 4, 6, 2),
        lambda x: jax_channels(x, 2, "CRD"),
        "depth_first",
        block=2,
        mode="CRD",
    ),
    arranged(
        "space_to_depth",
        reals(1, 3, 6, 4),
        first(lambda x: jax_channels(x, 2, "CRD")),
        "first",
        block=2,
        mode="CRD",
        channels_last=False,
    ),
]
