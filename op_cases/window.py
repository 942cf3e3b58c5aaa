# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Windows over images."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from ..dialect.base import OPS
from .case import Case, ints, jax, jnp, reals, result_shape, seed

seed(50)


def window_attributes(
    window: tuple[int, ...],
    strides: tuple[int, ...] | None = None,
    low: tuple[int, ...] | None = None,
    high: tuple[int, ...] | None = None,
    dilation: tuple[int, ...] | None = None,
    base_dilation: tuple[int, ...] | None = None,
    channels_last: bool = True,
) -> dict[str, Any]:
    none, one = (0,) * len(window), (1,) * len(window)
    return {
        "window": window,
        "strides": strides or window,
        "low": low or none,
        "high": high or none,
        "dilation": dilation or one,
        "base_dilation": base_dilation or one,
        "channels_last": channels_last,
    }


def jax_sum(a: dict[str, Any]) -> Callable[..., Any]:

    def full(values: tuple[Any, ...], rest: Any) -> tuple[Any, ...]:
        return (rest, *values, rest) if a["channels_last"] else (rest, rest, *values)

    def pool(x: Any) -> Any:
        return jax.lax.reduce_window(
            x,
            np.array(0, x.dtype),
            jax.lax.add,
            full(a["window"], 1),
            full(a["strides"], 1),
            full(tuple(zip(a["low"], a["high"], strict=True)), (0, 0)),
            full(a["base_dilation"], 1),
            full(a["dilation"], 1),
        )

    return pool


def jax_place(x: Any, place: tuple[int, ...], a: dict[str, Any], fill: float = 0) -> Any:
    """What all windows meet at one place, (N, *windows, C)."""
    x = x if a["channels_last"] else jnp.moveaxis(x, 1, -1)
    between = (b - 1 for b in a["base_dilation"])
    widths = [(0, 0, 0), *zip(a["low"], a["high"], between, strict=True), (0, 0, 0)]
    x = jax.lax.pad(x, np.array(fill, x.dtype), widths)
    where = [slice(None)]
    for k, n, w, s, d in zip(
        place, x.shape[1:-1], a["window"], a["strides"], a["dilation"], strict=True
    ):
        where.append(slice(k * d, n - (w - 1 - k) * d, s))
    return x[tuple(where)]


def jax_extreme(a: dict[str, Any], start: float, extreme: str) -> Callable[..., Any]:
    """The extreme of slices, one a place of the window. JAX's own pools have no gradient where they
    are dilated, and give that of ties to one element.
    """

    def pool(x: Any) -> Any:
        met = jnp.stack([jax_place(x, k, a, start) for k in np.ndindex(*a["window"])])
        y = getattr(jnp, extreme)(met, axis=0)
        return y if a["channels_last"] else jnp.moveaxis(y, -1, 1)

    return pool


def jax_avg(a: dict[str, Any], include: bool) -> Callable[..., Any]:
    total = jax_sum(a)

    def pool(x: Any) -> Any:
        counted = jnp.ones(x.shape) if not include else None
        return total(x) / (np.prod(a["window"]) if include else total(counted))

    return pool


def shuffled(*shape: int) -> np.ndarray:
    """Distinct numbers, 0.1 apart: which of them is the greatest does not depend on small steps."""
    order = np.argsort(reals(int(np.prod(shape))))
    return (np.argsort(order) * 0.1 - 2).reshape(shape)


def patch_cases(suffix: str, shape: tuple[int, ...], a: dict[str, Any]) -> list[Case]:
    """Patches and their sums, for one setting."""
    x, last, axes = reals(*shape), a["channels_last"], len(a["window"])

    def patches(x: Any) -> Any:
        found = jnp.stack([jax_place(x, k, a) for k in np.ndindex(*a["window"])], axis=-1)
        found = found.reshape(*found.shape[:-1], *a["window"])  # (N, *windows, C, *window)
        if last:
            return jnp.moveaxis(found, axes + 1, -1)
        around = range(1, axes + 1)
        return found.transpose(0, axes + 1, *(a + axes + 1 for a in around), *around)

    y = reals(*result_shape("extract_patches", x, **a))
    extents = shape[1:-1] if last else shape[2:]

    def fold(y: Any) -> Any:
        return jax.linear_transpose(patches, x)(y)[0]

    return [
        Case("extract_patches", [x], patches, a, suffix=suffix),
        Case("fold_patches", [y], fold, {"extents": extents} | a, suffix=suffix),
    ]


def pool_cases(suffix: str, shape: tuple[int, ...], a: dict[str, Any]) -> list[Case]:
    """Every pool, and the ops of the extremes' gradients, for one setting."""
    x = shuffled(*shape)
    few = ints(*shape, low=0, high=3).astype(np.float64)
    y = OPS["max_pool"].evaluate(few, **a)[0]
    return [
        Case("sum_pool", [x], jax_sum(a), a, suffix=suffix),
        Case("max_pool", [x], jax_extreme(a, -np.inf, "max"), a, suffix=suffix),
        Case("min_pool", [x], jax_extreme(a, np.inf, "min"), a, suffix=suffix),
        Case("avg_pool", [x], jax_avg(a, True), a, suffix=suffix),
        Case("count_ties", [few, y], None, a, suffix=suffix),
        Case("pool_ties", [few, y, reals(*shape)], None, a, wrt=(2,), suffix=suffix),
        Case("unpool_ties", [few, y, reals(*y.shape)], None, a, wrt=(2,), suffix=suffix),
    ]


SETTINGS = {
    "": ((2, 8, 6, 3), window_attributes((2, 2))),
    "overlapping": ((2, 9, 8, 5), window_attributes((3, 3), (2, 2), (1, 0), (1, 1))),
    "stride1": ((1, 5, 6, 2), window_attributes((3, 2), (1, 1), (1, 0), (1, 1))),
    "channels_first": (
        (2, 3, 7, 6),
        window_attributes((3, 2), (2, 1), (0, 1), (1, 0), channels_last=False),
    ),
    "dilated": ((1, 9, 9, 2), window_attributes((3, 2), (2, 1), (1, 2), (2, 1), (2, 3))),
    "spread": (
        (1, 4, 5, 2),
        window_attributes((3, 4), (2, 1), (2, 1), (1, 0), base_dilation=(2, 3)),
    ),
    "gaps": ((1, 11, 3), window_attributes((2,), (3,), (1,), (0,))),
    "cut": ((1, 9, 3), window_attributes((3,), (2,), (-2,), (1,))),
    "large": ((1, 12, 11, 2), window_attributes((5, 5), (2, 1), (2, 2), (2, 1))),
    "larger": ((1, 12, 22, 2), window_attributes((9, 17), (1, 2), (2, 2), (2, 1))),
    "larger_dilated": ((1, 81, 2), window_attributes((33,), (1,), (3,), (1,), (2,))),
    "larger_strides": ((1, 301, 1), window_attributes((140,), (2,), (3,), (1,), (2,))),
    "one_axis": ((3, 10, 2), window_attributes((4,), (3,), (1,), (2,))),
    "three_axes": (
        (1, 4, 5, 4, 2),
        window_attributes((2, 3, 2), (1, 2, 2), (0, 1, 0), (1, 1, 0)),
    ),
}


def jax_response_norm(x: Any, size: int, axis: int, alpha: float, beta: float, k: float) -> Any:
    x = jnp.moveaxis(x, axis, 0)
    widths = [(size // 2, (size - 1) // 2), *[(0, 0)] * (x.ndim - 1)]
    squares = jnp.pad(x * x, widths)
    total = sum(squares[i : i + len(x)] for i in range(size))
    return jnp.moveaxis(x / (k + alpha / size * total) ** beta, 0, axis)


def response_norm(suffix: str, shape: tuple[int, ...], **a: Any) -> Case:
    a = {"alpha": 1e-4, "beta": 0.75, "k": 1.0} | a
    x = reals(*shape)
    return Case("local_response_norm", [x], lambda x: jax_response_norm(x, **a), a, suffix=suffix)


CASES = [
    response_norm("", (2, 3, 7), size=5, axis=2),
    response_norm("first", (2, 5, 3, 2), size=4, axis=1, alpha=0.5, beta=0.6, k=2.0),
    response_norm("wide", (3, 4), size=11, axis=1, alpha=2.0),
    *itertools.chain(*(pool_cases(name, *setting) for name, setting in SETTINGS.items())),
    *itertools.chain(
        *(patch_cases(name, *s) for name, s in SETTINGS.items() if not name.startswith("larger"))
    ),
    *patch_cases("one_window", (1, 3, 5, 2), window_attributes((2, 2), (2, 3), (0, 0), (0, 0))),
    *patch_cases("many", (1, 12, 11, 1), window_attributes((9, 8), (1, 1), (2, 0), (0, 1))),
    Case(
        "avg_pool",
        [reals(2, 7, 6, 3)],
        jax_avg(SETTINGS["overlapping"][1], False),
        SETTINGS["overlapping"][1] | {"count_include_pad": False},
        suffix="real_places",
    ),
    Case(
        "avg_pool",
        [reals(2, 3, 7, 6)],
        jax_avg(SETTINGS["channels_first"][1], False),
        SETTINGS["channels_first"][1] | {"count_include_pad": False},
        suffix="real_places_first",
    ),
    Case(
        "max_pool",
        [ints(2, 7, 6, 3)],
        jax_extreme(SETTINGS["overlapping"][1], -(2**31), "max"),
        SETTINGS["overlapping"][1],
        suffix="int",
    ),
]
