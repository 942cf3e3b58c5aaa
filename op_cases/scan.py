# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Running sums and the like, and linear recurrences."""

from collections.abc import Callable
from typing import Any

import numpy as np

from .case import CUBE, Case, ints, jax, jnp, reals, seed

seed(21)


def scans(op: str, function: Callable[..., Any], ulp: float = 8) -> list[Case]:
    """A scan along a middle axis, reversed along the last, and along one of many blocks."""

    def row(suffix: str, x: np.ndarray, axis: int, reverse: bool, ulp: float = ulp) -> Case:
        return Case(
            op,
            [x],
            lambda v: function(v, axis=axis, reverse=reverse),
            {"axis": axis, "reverse": reverse},
            suffix=suffix,
            ulp=ulp,
        )

    return [
        row("", CUBE, 1, False),
        row("reverse", CUBE, 2, True),
        row("long", reals(2, 301) / 2, 1, False, ulp * 4),
        row("long_reverse", reals(150, 3), 0, True, ulp * 4),
    ]


def jax_linear(a: Any, b: Any, axis: int, reverse: bool) -> Any:
    a, b = jnp.moveaxis(a, axis, 0), jnp.moveaxis(b, axis, 0)

    def step(y: Any, row: Any) -> Any:
        y = row[1] + row[0] * y
        return y, y

    y = jax.lax.scan(step, jnp.zeros_like(b[0]), (a, b), reverse=reverse)[1]
    return jnp.moveaxis(y, 0, axis)


CASES = [
    *scans("cumsum", jax.lax.cumsum),
    Case("cumsum", [ints(3, 5)], lambda x: jax.lax.cumsum(x, 1), {"axis": 1}, suffix="int"),
    *scans("cumprod", jax.lax.cumprod, ulp=32),
    Case("cumprod", [ints(3, 5)], lambda x: jax.lax.cumprod(x, 1), {"axis": 1}, suffix="int"),
    *scans("cummax", jax.lax.cummax),
    Case("cummax", [ints(3, 5)], lambda x: jax.lax.cummax(x, 0), {"axis": 0}, suffix="int"),
    *scans("cummin", jax.lax.cummin),
    *scans("cumlogsumexp", jax.lax.cumlogsumexp, ulp=16),
    *(
        Case(
            "linear_scan",
            [reals(*shape, low=-1, high=1), reals(*shape)],
            lambda a, b, axis=axis, reverse=reverse: jax_linear(a, b, axis, reverse),
            {"axis": axis, "reverse": reverse},
            suffix=suffix,
            ulp=32,
        )
        for suffix, shape, axis, reverse in (
            ("", (3, 7), 1, False),
            ("reverse", (9, 2), 0, True),
        )
    ),
]
