# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Updates of optimizers."""

from collections.abc import Callable
from typing import Any

import numpy as np

from .case import Case, jnp, reals, seed

seed(24)

RATE = np.array(0.125)
STEP = np.array(3, np.int32)
DECAY = 0.01


def slot() -> np.ndarray:
    return reals(3, 5, low=0.1, high=2.0)


def momentum(nesterov: bool) -> Callable[..., Any]:
    def update(p: Any, g: Any, lr: Any, m: Any) -> Any:
        g = g + DECAY * p
        m = 0.8 * m + g
        return p - lr * (g + 0.8 * m if nesterov else m), m

    return update


def adam(decoupled: bool) -> Callable[..., Any]:
    def update(p: Any, g: Any, lr: Any, m: Any, v: Any, step: Any) -> Any:
        g = g if decoupled else g + DECAY * p
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g**2
        move = m / (1 - 0.9**step) / (jnp.sqrt(v / (1 - 0.99**step)) + 1e-4)
        return p - lr * (move + DECAY * p * decoupled), m, v

    return update


def rmsprop(p: Any, g: Any, lr: Any, v: Any) -> Any:
    g = g + DECAY * p
    v = 0.9 * v + 0.1 * g**2
    return p - lr * g / (jnp.sqrt(v) + 1e-4), v


def adagrad(p: Any, g: Any, lr: Any, s: Any) -> Any:
    g = g + DECAY * p
    return p - lr * g / (jnp.sqrt(s + g**2) + 1e-4), s + g**2


def lion(p: Any, g: Any, lr: Any, m: Any) -> Any:
    return p - lr * (jnp.sign(0.9 * m + 0.1 * g) + DECAY * p), 0.95 * m + 0.05 * g


def update(
    op: str, function: Callable[..., Any], *more: np.ndarray, suffix: str = "", **attributes: Any
) -> Case:
    # Gradients mostly of one sign: that by the learning rate is a sum, which should not cancel.
    inputs = [reals(3, 5), reals(3, 5, low=-0.5, high=3), RATE, *more]
    return Case(op, inputs, function, attributes, suffix=suffix)


CASES = [
    update("sgd_update", lambda p, g, lr: p - lr * (g + DECAY * p), weight_decay=DECAY),
    update("momentum_update", momentum(False), slot(), momentum=0.8, weight_decay=DECAY),
    update(
        "momentum_update",
        momentum(True),
        slot(),
        momentum=0.8,
        weight_decay=DECAY,
        nesterov=True,
        suffix="nesterov",
    ),
    *(
        update(
            "adam_update",
            adam(decoupled),
            slot(),
            slot(),
            STEP,
            beta2=0.99,
            eps=1e-4,
            weight_decay=DECAY,
            decoupled=decoupled,
            suffix=suffix,
        )
        for suffix, decoupled in (("", True), ("coupled", False))
    ),
    update("rmsprop_update", rmsprop, slot(), decay=0.9, eps=1e-4, weight_decay=DECAY),
    update("adagrad_update", adagrad, slot(), eps=1e-4, weight_decay=DECAY),
    update("lion_update", lion, slot(), beta2=0.95, weight_decay=DECAY),
]
