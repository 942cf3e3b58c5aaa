# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Order along an axis."""

from typing import Any

import numpy as np

from .case import CUBE, Case, ints, jnp, reals, seed

seed(22)


def jax_sort(axis: int, descending: bool = False) -> Any:
    def function(x: Any) -> Any:
        order = jnp.argsort(x, axis, stable=True, descending=descending)
        return jnp.take_along_axis(x, order, axis), order.astype(np.int32)

    return function


def jax_top_k(k: int, axis: int, largest: bool = True) -> Any:
    def function(x: Any) -> Any:
        y, order = jax_sort(axis, descending=largest)(x)
        return jnp.take(y, np.arange(k), axis), jnp.take(order, np.arange(k), axis)

    return function


SPACED = (ints(301, low=0, high=9) + 10 * np.argsort(reals(301))) / 500
"""Far enough apart for finite differences."""

CASES = [
    Case("sort", [CUBE], jax_sort(1), {"axis": 1}),
    Case("sort", [reals(40, 3)], jax_sort(0, True), {"axis": 0, "descending": True}, suffix="down"),
    Case("sort", [ints(2, 33)], jax_sort(1), {"axis": 1}, suffix="ties"),
    Case(
        "sort",
        [ints(2, 33)],
        jax_sort(1, True),
        {"axis": 1, "descending": True},
        suffix="ties_down",
    ),
    Case("sort", [SPACED], jax_sort(0), {"axis": 0}, suffix="long"),
    Case("top_k", [reals(3, 9)], jax_top_k(4, 1), {"k": 4, "axis": 1}),
    Case(
        "top_k",
        [reals(7, 2)],
        jax_top_k(3, 0, False),
        {"k": 3, "axis": 0, "largest": False},
        suffix="smallest",
    ),
    Case("top_k", [reals(2, 40)], jax_top_k(20, 1), {"k": 20, "axis": 1}, suffix="many"),
]
