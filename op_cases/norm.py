# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Normalization."""

from collections.abc import Callable
from typing import Any

import numpy as np

from .case import Case, jax, jnp, reals, seed

seed(21)


def jax_normalize(x: Any, axes: tuple[int, ...], eps: float, center: bool) -> Any:
    m = x.mean(axes, keepdims=True) * center
    r = jax.lax.rsqrt(((x - m) ** 2).mean(axes, keepdims=True) + eps)
    return (x - m) * r, jnp.squeeze(m, axes), jnp.squeeze(r, axes)


def jax_layer(x: Any, axes: int, eps: float, center: bool = True) -> Any:
    return jax_normalize(x, tuple(range(x.ndim - axes, x.ndim)), eps, center)[0]


def jax_group(x: Any, axis: int, groups: int, eps: float) -> Any:
    last = jnp.moveaxis(x, axis, -1)
    flat = last.reshape(len(x), -1, groups, last.shape[-1] // groups)
    y = jax_normalize(flat, (1, 3), eps, True)[0]
    return jnp.moveaxis(y.reshape(last.shape), -1, axis)


def scaled(y: Any, affine: Any, axis: int | None = None) -> Any:
    shape = [-1 if i == axis else 1 for i in range(y.ndim)]
    placed = [a if axis is None else a.reshape(shape) for a in affine]
    y = y * placed[0] if placed else y
    return y + placed[1] if len(placed) > 1 else y


def jax_batch(
    x: Any, mean: Any, var: Any, *affine: Any, axis: int, momentum: float, ddof: int
) -> Any:
    over = tuple(i for i in range(x.ndim) if i != axis)
    y = scaled(jax_normalize(x, over, 1e-3, True)[0], affine, axis)
    keep = 1 - momentum
    new_var = momentum * var + keep * x.var(over, ddof=ddof)
    return y, momentum * mean + keep * x.mean(over), new_var


def jax_infer(x: Any, mean: Any, var: Any, *affine: Any, axis: int) -> Any:
    shape = [-1 if i == axis else 1 for i in range(x.ndim)]
    y = (x - mean.reshape(shape)) / jnp.sqrt(var.reshape(shape) + 1e-3)
    return scaled(y, affine, axis)


def positive(*shape: int) -> np.ndarray:
    return reals(*shape, low=0.2, high=3.0)


def layer(
    op: str, count: int, center: bool, attributes: dict[str, Any], suffix: str, *shape: int
) -> Case:
    axes = attributes.get("axes", 1)

    def in_jax(x: Any, *affine: Any) -> Any:
        return scaled(jax_layer(x, axes, 1e-3, center), affine)

    affine = [reals(*shape[len(shape) - axes :]) for _ in range(count)]
    return Case(op, [reals(*shape), *affine], in_jax, attributes | {"eps": 1e-3}, suffix=suffix)


def channels(
    op: str,
    function: Callable[..., Any],
    count: int,
    x: np.ndarray,
    attributes: dict[str, Any],
    suffix: str = "",
) -> Case:
    n = x.shape[attributes["channel_axis"]]
    affine = [reals(n) for _ in range(count)]
    attributes = attributes | {"eps": 1e-3}
    return Case(op, [x, *affine], function, attributes, suffix=suffix)


CASES = [
    *(
        Case(
            "normalize",
            [reals(4, 6, 5)],
            lambda x, axes=axes, center=center: jax_normalize(x, axes, 1e-3, center),
            {"axes": axes, "eps": 1e-3, "center": center},
            suffix=suffix,
            ulp=64,
        )
        for suffix, axes, center in (
            ("", (2,), True),
            ("batch", (0, 1), True),
            ("rms", (2,), False),
        )
    ),
    layer("layer_norm", 2, True, {}, "", 4, 6, 5),
    layer("layer_norm", 0, True, {"axes": 2}, "plain", 4, 6, 5),
    layer("layer_norm", 1, True, {"axes": 2}, "scaled", 3, 4, 7),
    layer("rms_norm", 1, False, {}, "", 4, 6, 5),
    layer("rms_norm", 0, False, {"axes": 3}, "plain", 2, 3, 5),
    channels(
        "group_norm",
        lambda x, *a: scaled(jax_group(x, 3, 2, 1e-3), a, 3),
        2,
        reals(2, 3, 5, 4),
        {"channel_axis": 3, "groups": 2},
    ),
    channels(
        "group_norm",
        lambda x, *a: scaled(jax_group(x, 1, 3, 1e-3), a, 1),
        1,
        reals(2, 6, 5),
        {"channel_axis": 1, "groups": 3},
        "channels_first",
    ),
    channels(
        "instance_norm",
        lambda x, *a: scaled(jax_normalize(x, (1, 2), 1e-3, True)[0], a, 3),
        2,
        reals(2, 3, 5, 4),
        {"channel_axis": 3},
    ),
    channels(
        "instance_norm",
        lambda x: jax_normalize(x, (2,), 1e-3, True)[0],
        0,
        reals(2, 3, 7),
        {"channel_axis": 1},
        "channels_first",
    ),
    *(
        Case(
            "batch_norm_train",
            [x, reals(n), positive(n), *(reals(n) for _ in range(count))],
            lambda *v, axis=axis, momentum=momentum, ddof=ddof: jax_batch(
                *v, axis=axis, momentum=momentum, ddof=ddof
            ),
            {"channel_axis": axis, "eps": 1e-3, "momentum": momentum, "unbiased": bool(ddof)},
            suffix=suffix,
        )
        for suffix, x, axis, n, count, momentum, ddof in (
            ("", reals(4, 5, 3), 2, 3, 2, 0.9, 0),
            ("unbiased", reals(3, 2, 5), 1, 2, 1, 0.5, 1),
            ("plain", reals(6, 4), 1, 4, 0, 0.0, 0),
        )
    ),
    *(
        Case(
            "batch_norm_infer",
            [x, reals(n), positive(n), *(reals(n) for _ in range(count))],
            lambda *v, axis=axis: jax_infer(*v, axis=axis),
            {"channel_axis": axis, "eps": 1e-3},
            suffix=suffix,
        )
        for suffix, x, axis, n, count in (
            ("", reals(4, 5, 3), 2, 3, 2),
            ("scaled", reals(3, 2, 5), 1, 2, 1),
            ("plain", reals(6, 4), 1, 4, 0),
        )
    ),
]
