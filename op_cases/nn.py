# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Composite ops of neural networks."""

from typing import Any

from .case import CUBE, Case, jax, jnp, reals, seed
from .random import KEY

seed(7)


def jax_dropout(x: Any, key: Any, rate: float, shape: tuple[int, ...] | None = None) -> Any:
    kept = jax.random.bernoulli(key, jnp.float32(1 - rate), shape or x.shape)
    return jnp.where(kept, x / (1 - rate), 0)


CASES = [
    Case("softmax", [CUBE], lambda x: jax.nn.softmax(x, 1), {"axis": 1}),
    Case("log_softmax", [CUBE], lambda x: jax.nn.log_softmax(x, 2), {"axis": 2}),
    Case("dropout", [CUBE, KEY], lambda x, k: jax_dropout(x, k, 0.3), {"rate": 0.3}),
    Case(
        "dropout",
        [reals(4, 3, 5), KEY],
        lambda x, k: jax_dropout(x, k, 0.5, (4, 1, 5)),
        {"rate": 0.5, "shared": (1,)},
        suffix="shared",
    ),
]
