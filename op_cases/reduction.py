# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Reductions."""

from collections.abc import Callable
from typing import Any

import numpy as np

from .case import CUBE, Case, bools, ints, jax, jnp, reals, seed

seed(2)


def reduction(
    op: str,
    function: Callable[..., Any],
    x: np.ndarray = CUBE,
    axes: tuple[int, ...] = (0, 2),
    **options: Any,
) -> Case:
    attributes = {"axes": axes} | options.pop("attributes", {})
    return Case(op, [x], lambda v: function(v, axis=axes), attributes, **options)


CASES = [
    reduction("sum", jnp.sum),
    reduction("sum", jnp.sum, axes=(0, 1, 2), suffix="all"),
    reduction("sum", jnp.sum, ints(2, 3, 4), suffix="int"),
    reduction("sum", jnp.sum, reals(8192, 3), axes=(0,), suffix="tall", ulp=64),
    reduction("prod", jnp.prod),
    reduction("prod", jnp.prod, reals(7, 2), axes=(0,), suffix="odd"),
    reduction("max", jnp.max),
    reduction("min", jnp.min),
    reduction("mean", jnp.mean),
    reduction("var", jnp.var),
    reduction(
        "var",
        lambda v, axis: jnp.var(v, axis=axis, ddof=1),
        attributes={"correction": 1},
        suffix="corrected",
    ),
    reduction("any", jnp.any, bools(2, 3, 4)),
    reduction("all", jnp.all, bools(2, 3, 4)),
    reduction("logsumexp", jax.scipy.special.logsumexp),
    reduction("norm", lambda v, axis: jnp.sqrt(jnp.sum(v * v, axis=axis))),
    Case("argmax", [CUBE], lambda v: jnp.argmax(v, axis=1), {"axis": 1}),
    Case("argmin", [CUBE], lambda v: jnp.argmin(v, axis=1), {"axis": 1}),
]
