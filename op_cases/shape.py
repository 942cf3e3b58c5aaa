# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Moving elements."""

from .case import CUBE, Case, jax, jnp, reals, seed

seed(5)

CASES = [
    Case("reshape", [CUBE], lambda x: x.reshape(4, 6), {"shape": (4, 6)}),
    Case("transpose", [CUBE], lambda x: x.transpose(2, 0, 1), {"permutation": (2, 0, 1)}),
    Case(
        "broadcast",
        [reals(3, 1)],
        lambda x: jnp.broadcast_to(x[None, :, :], (2, 3, 4)),
        {"shape": (2, 3, 4), "dims": (1, 2)},
    ),
    Case(
        "concat",
        [reals(2, 3), reals(2, 4)],
        lambda a, b: jnp.concatenate((a, b), 1),
        {"axis": 1},
    ),
    Case("stack", [reals(2, 3), reals(2, 3)], lambda a, b: jnp.stack((a, b), 1), {"axis": 1}),
    Case("unstack", [CUBE], lambda x: [x[:, i] for i in range(3)], {"axis": 1}),
    Case(
        "slice",
        [reals(6, 7)],
        lambda x: x[1:6:2, 2:7],
        {"start": (1, 2), "limit": (6, 7), "stride": (2, 1)},
    ),
    Case(
        "pad",
        [reals(2, 3)],
        lambda x: jax.lax.pad(x, 0.5, [(1, 2, 1), (0, 1, 2)]),
        {"low": (1, 0), "high": (2, 1), "interior": (1, 2), "value": 0.5},
    ),
    Case("reverse", [CUBE], lambda x: jnp.flip(x, (0, 2)), {"axes": (0, 2)}),
]
