# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Writing at positions, reading at a position an element, and blocks."""

from typing import Any

import numpy as np

from .case import Case, ints, jax, jnp, reals, seed

seed(23)

REPEATED = np.array([[0, 4, 2], [-1, 0, 0]], np.int32)
DISTINCT = np.array([3, 0, -1], np.int32)


def scatter(mode: str, method: str, indices: np.ndarray, suffix: str = "") -> list[Case]:
    """Along the first and along a middle axis."""
    shape = indices.shape

    def first(x: Any, i: Any, u: Any) -> Any:
        if mode == "mul":  # JAX has no gradient of it with repeated positions
            for place, factor in zip(indices.reshape(-1), u.reshape(-1, 3), strict=True):
                x = jnp.asarray(x).at[place].set(x[place] * factor)
            return x
        return getattr(jnp.asarray(x).at[i], method)(u)

    def middle(x: Any, i: Any, u: Any) -> Any:
        return jnp.stack([first(*row) for row in zip(x, (i, i), u, strict=True)])

    op = f"scatter_{mode}"
    x, u = reals(5, 3), reals(*shape, 3)
    y, v = reals(2, 5, 3), reals(2, *shape, 3)
    both = f"{suffix}_middle" if suffix else "middle"
    return [
        Case(op, [x, indices, u], first, {"axis": 0}, suffix=suffix),
        Case(op, [y, indices, v], middle, {"axis": 1}, suffix=both),
    ]


def jax_update(x: Any, u: Any) -> Any:
    return jnp.asarray(x).at[1:7:2, 2:4].set(u)


CASES = [
    *scatter("set", "set", DISTINCT),
    Case(
        "scatter_set",
        [reals(5, 3), REPEATED, reals(2, 3, 3)],
        lambda x, i, u: jnp.asarray(x).at[np.array([4, 2, 0])].set(u[[1, 0, 1], [0, 2, 2]]),
        {"axis": 0},
        suffix="repeated",
    ),
    *scatter("mul", "multiply", DISTINCT),
    *scatter("mul", "multiply", REPEATED, "repeated"),
    *scatter("max", "max", REPEATED),
    *scatter("min", "min", REPEATED),
    Case(
        "take_along_axis",
        [reals(2, 5, 3), ints(2, 4, 3, low=-5, high=5)],
        lambda x, i: jnp.take_along_axis(x, i, 1),
        {"axis": 1},
    ),
    Case(
        "dynamic_slice",
        [reals(6, 7), np.array([3, 2], np.int32)],
        lambda x, s: jax.lax.dynamic_slice(x, [s[0], s[1]], (2, 4)),
        {"sizes": (2, 4)},
    ),
    Case(
        "dynamic_slice",
        [reals(6, 7), np.array([-3, 9], np.int32)],
        lambda x, s: jnp.asarray(x)[0:2, 3:7],
        {"sizes": (2, 4)},
        suffix="clamped",
    ),
    Case(
        "dynamic_update_slice",
        [reals(6, 7), reals(2, 4), np.array([3, 2], np.int32)],
        lambda x, u, s: jax.lax.dynamic_update_slice(x, u, [s[0], s[1]]),
    ),
    Case(
        "dynamic_update_slice",
        [reals(6, 7), reals(2, 4), np.array([99, -99], np.int32)],
        lambda x, u, s: jnp.asarray(x).at[4:6, 0:4].set(u),
        suffix="clamped",
    ),
    Case(
        "update_slice",
        [reals(8, 5), reals(3, 2)],
        jax_update,
        {"start": (1, 2), "stride": (2, 1)},
    ),
    Case(
        "one_hot",
        [ints(2, 3, low=-1, high=5)],
        lambda l: jax.nn.one_hot(l, 4, dtype=jnp.float32),
        {"classes": 4, "dtype": np.dtype("float32")},
    ),
]
