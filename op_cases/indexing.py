# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Reading and adding at positions."""

import numpy as np

from .case import Case, jnp, reals, seed

seed(6)

INDICES = np.array([[0, 4, 2], [-1, 0, 0]], np.int32)
CASES = [
    Case("take", [reals(5, 3), INDICES], lambda x, i: jnp.take(x, i, axis=0), {"axis": 0}),
    Case(
        "take",
        [reals(2, 5, 3), INDICES],
        lambda x, i: jnp.take(x, i, axis=1),
        {"axis": 1},
        suffix="middle",
    ),
    Case(
        "scatter_add",
        [reals(5, 3), INDICES, reals(2, 3, 3)],
        lambda x, i, u: jnp.asarray(x).at[i].add(u),
        {"axis": 0},
    ),
    Case(
        "scatter_add",
        [reals(2, 5, 3), INDICES, reals(2, 2, 3, 3)],
        lambda x, i, u: jnp.asarray(x).at[:, i].add(u),
        {"axis": 1},
        suffix="middle",
    ),
]
