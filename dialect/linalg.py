# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The array API's linear algebra, as far as it is made of products and sums: `go.linalg`.

There are no decompositions (cholesky, qr, svd, eigh), and nothing that needs one (inv, solve, det,
matrix_rank, pinv).
"""

import math
from typing import Any

from ..errors import OpError
from . import arrange, reduction
from .arithmetic import abs as magnitude
from .contraction import matmul, outer, tensordot, vecdot
from .creation import eye
from .einsum import cross
from .shape import broadcast_to, matrix_transpose
from .types import TensorSpec

__all__ = [
    "cross",
    "diagonal",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_transpose",
    "outer",
    "tensordot",
    "trace",
    "vecdot",
    "vector_norm",
]


def diagonal(x: Any, *, offset: int = 0) -> Any:
    """The elements i, i + offset of the last two axes, in the place of both."""
    return arrange.diagonal(x, offset, -2, -1)


def trace(x: Any, *, offset: int = 0, dtype: Any = None) -> Any:
    """The sum of a diagonal of the last two axes, in `dtype` as in `sum`."""
    return reduction.sum(diagonal(x, offset=offset), -1, dtype=dtype)


def vector_norm(x: Any, *, axis: Any = None, keepdims: bool = False, ord: float = 2) -> Any:  # noqa: A002
    """(sum |x|^ord)^(1/ord) over `axis` (None: all): the largest magnitude for infinity, the
    smallest for -infinity, how many elements are not 0 for 0. Integers give float32.
    """
    x = reduction.as_float(x)
    if ord == 2:
        return reduction.norm(x, axis, keepdims)
    if ord == 0:
        return reduction.sum((x != 0).astype(x.dtype), axis, keepdims)
    size = magnitude(x)
    if math.isinf(ord):
        return (reduction.max if ord > 0 else reduction.min)(size, axis, keepdims)
    if ord == 1:
        return reduction.sum(size, axis, keepdims)
    return reduction.sum(size**ord, axis, keepdims) ** (1 / ord)


def matrix_norm(x: Any, *, keepdims: bool = False, ord: Any = "fro") -> Any:  # noqa: A002
    """Norm of matrices, in the last two axes: the root of the sum of squares for "fro"; for 1 and
    infinity the largest sum of magnitudes of a column and a row, for -1 and -infinity the smallest.
    OpError for norms that are made of singular values.
    """
    x = reduction.as_float(x)
    _check_matrices("matrix_norm", x.spec)
    if ord == "fro":
        return reduction.norm(x, (-2, -1), keepdims)
    if ord not in (1, -1, math.inf, -math.inf):
        raise OpError(
            f"matrix_norm expected ord 'fro', 1, -1, inf or -inf, got {ord!r}; the others need "
            "singular values, which gradopt does not compute"
        )
    along, across = (-2, -1) if abs(ord) == 1 else (-1, -2)
    sums = reduction.sum(magnitude(x), along, keepdims=True)
    found = (reduction.max if ord > 0 else reduction.min)(sums, across, keepdims=True)
    return found if keepdims else found.squeeze((-2, -1))


def matrix_power(x: Any, n: int) -> Any:
    """The product of `n` square matrices `x`, by squaring. OpError for a negative `n`."""
    _check_matrices("matrix_power", x.spec)
    if x.shape[-1] != x.shape[-2]:
        raise OpError(f"matrix_power expected square matrices, got {x.spec}")
    if n < 0:
        raise OpError(f"matrix_power expected n of at least 0, got {n}; gradopt has no inverse")
    if n == 0:
        likes = [x] if None in x.shape else []
        return broadcast_to(eye(x.shape[-1], dtype=x.dtype), x.shape, likes)
    result = None
    while n:
        if n % 2:
            result = x if result is None else matmul(result, x)
        n //= 2
        x = matmul(x, x) if n else x
    return result


def _check_matrices(name: str, spec: TensorSpec) -> None:
    if spec.rank < 2:
        raise OpError(f"{name} expected at least two axes, got {spec}")
