# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Attention, rotary embedding and recurrent cells."""

from typing import Any

import numpy as np

from .case import Case, ints, jax, jnp, reals, seed
from .random import KEY

seed(23)


def jax_attention(
    q: Any, k: Any, v: Any, *masks: Any, scale: float = 0.5, causal: bool = False
) -> Any:
    group = q.shape[1] // k.shape[1]
    k, v = jnp.repeat(k, group, 1), jnp.repeat(v, group, 1)
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) * scale
    for mask in masks:
        scores = jnp.where(mask, scores, -1e30) if mask.dtype == bool else scores + mask
    if causal:
        scores = jnp.where(jnp.tri(*scores.shape[-2:], dtype=bool), scores, -1e30)
    return jax.nn.softmax(scores, -1) @ v


def jax_rotary(x: Any, positions: Any, interleaved: bool) -> Any:
    """As complex numbers."""
    half = x.shape[-1] // 2
    angle = positions[..., None] * 100.0 ** (-jnp.arange(half) / half)
    a, b = (x[..., ::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
    turned = (a + 1j * b) * jnp.exp(1j * angle)
    parts = [turned.real, turned.imag]
    return jnp.stack(parts, -1).reshape(x.shape) if interleaved else jnp.concatenate(parts, -1)


def jax_lstm(z: Any, c: Any) -> Any:
    i, f, g, o = jnp.split(z, 4, -1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def jax_gru(x: Any, s: Any, h: Any) -> Any:
    (xr, xu, xn), (hr, hu, hn) = jnp.split(x, 3, -1), jnp.split(s, 3, -1)
    r, u = jax.nn.sigmoid(xr + hr), jax.nn.sigmoid(xu + hu)
    return (1 - u) * jnp.tanh(xn + r * hn) + u * h


def heads(q_heads: int, kv_heads: int, queries: int, keys: int) -> list[np.ndarray]:
    return [
        reals(2, q_heads, queries, 4),
        reals(2, kv_heads, keys, 4),
        reals(2, kv_heads, keys, 3),
    ]


SEEN = np.array([[1, 0, 1, 1, 1], [1, 1, 0, 0, 1], [0, 1, 1, 0, 0]], bool)[None, None]

CASES = [
    Case("attention", heads(2, 2, 3, 5), jax_attention, {"scale": 0.5}),
    Case(
        "attention",
        heads(4, 2, 5, 5),
        lambda *x: jax_attention(*x, causal=True),
        {"scale": 0.5, "causal": True},
        suffix="grouped_causal",
    ),
    Case("attention", [*heads(2, 2, 3, 5), SEEN], jax_attention, {"scale": 0.5}, suffix="mask"),
    Case(
        "attention",
        [*heads(4, 1, 3, 5), reals(2, 4, 1, 5)],
        jax_attention,
        {"scale": 0.5},
        suffix="bias",
    ),
    Case(
        "dropout_attention",
        [*heads(4, 2, 3, 5), KEY, SEEN],
        None,
        {"scale": 0.5, "rate": 0.3},
    ),
    *(
        Case(
            "rotary",
            [reals(2, 3, 5, 8), positions],
            lambda x, p, interleaved=interleaved: jax_rotary(x, p, interleaved),
            {"base": 100.0, "interleaved": interleaved},
            suffix=suffix,
        )
        for suffix, positions, interleaved in (
            ("", np.arange(5, dtype=np.int32), False),
            ("interleaved", ints(2, 3, 5, low=0, high=20), True),
        )
    ),
    Case("lstm_cell", [reals(3, 20), reals(3, 5)], jax_lstm),
    Case("gru_cell", [reals(3, 15), reals(3, 15), reals(3, 5)], jax_gru),
]
