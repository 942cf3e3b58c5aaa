# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Tensors from nothing."""

import numpy as np

from .case import Case, jax, jnp, seed

seed(8)

CASES = [
    Case("constant", [], lambda: jnp.array([1.5, -2.0]), {"value": np.array([1.5, -2.0])}),
    Case(
        "iota",
        [],
        lambda: jax.lax.broadcasted_iota(jnp.int32, (2, 3), 1),
        {"shape": (2, 3), "axis": 1, "dtype": np.dtype("int32")},
    ),
]
