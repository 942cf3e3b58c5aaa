# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Composite ops of neural networks."""

from typing import Any

from .case import CUBE, Case, ints, jax, jnp, reals, seed

seed(7)


def jax_normalize(x: Any, axes: tuple[int, ...], eps: float, center: bool) -> Any:
    m = x.mean(axes, keepdims=True) * center
    r = jax.lax.rsqrt(((x - m) ** 2).mean(axes, keepdims=True) + eps)
    return (x - m) * r, jnp.squeeze(m, axes), jnp.squeeze(r, axes)


def jax_cross_entropy(x: Any, labels: Any) -> Any:
    lse = jax.scipy.special.logsumexp(x, -1)
    return lse - jnp.take_along_axis(x, labels[..., None], -1)[..., 0], lse


LABELS = ints(2, 3, low=0, high=4)
CASES = [
    Case("softmax", [CUBE], lambda x: jax.nn.softmax(x, 1), {"axis": 1}),
    Case("log_softmax", [CUBE], lambda x: jax.nn.log_softmax(x, 2), {"axis": 2}),
    Case("cross_entropy", [CUBE, LABELS], jax_cross_entropy, ulp=32),
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
]
