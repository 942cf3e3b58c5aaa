# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Products of tensors."""

from .case import Case, jnp, reals, seed

seed(3)

CASES = [
    Case(
        "dot_general",
        [reals(3, 4), reals(4, 5)],
        jnp.matmul,
        {"lhs_contract": (1,), "rhs_contract": (0,)},
    ),
    Case(
        "dot_general",
        [reals(4, 3), reals(5, 4)],
        lambda a, b: a.T @ b.T,
        {"lhs_contract": (0,), "rhs_contract": (1,)},
        suffix="transposed",
    ),
    Case(
        "dot_general",
        [reals(2, 3, 4), reals(4, 2, 5)],
        lambda a, b: jnp.einsum("bik,kbj->bij", a, b),
        {"lhs_contract": (2,), "rhs_contract": (0,), "lhs_batch": (0,), "rhs_batch": (1,)},
        suffix="batch",
    ),
    Case(
        "dot_general",
        [reals(3, 2, 4), reals(4, 5, 3)],
        lambda a, b: jnp.einsum("ikl,lji->kj", a, b),
        {"lhs_contract": (0, 2), "rhs_contract": (2, 0)},
        suffix="two_axes",
    ),
    Case(
        "dot_general",
        [reals(3), reals(4)],
        jnp.outer,
        {"lhs_contract": (), "rhs_contract": ()},
        suffix="outer",
    ),
    Case(
        "dot_general",
        [reals(7), reals(7)],
        jnp.dot,
        {"lhs_contract": (0,), "rhs_contract": (0,)},
        suffix="vectors",
    ),
    Case(  # IREE packed the rows of all batches as one run where an operand's axes are moved so
        "dot_general",
        [reals(2, 33, 17), reals(17, 2, 9)],
        lambda a, b: jnp.einsum("bik,kbj->bij", a, b),
        {"lhs_contract": (2,), "rhs_contract": (0,), "lhs_batch": (0,), "rhs_batch": (1,)},
        suffix="batch_moved_rhs",
    ),
    Case(
        "dot_general",
        [reals(4, 2, 3), reals(2, 5, 4)],
        lambda a, b: jnp.einsum("kbi,bjk->bij", a, b),
        {"lhs_contract": (0,), "rhs_contract": (2,), "lhs_batch": (1,), "rhs_batch": (0,)},
        suffix="batch_moved_lhs",
    ),
]
