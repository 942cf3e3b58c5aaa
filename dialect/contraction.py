# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Sums of products over shared axes: one op, `dot_general`, and the functions built on it."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import builder as builders
from .base import Ints, Op, Operand, Result, Str
from .elementwise import NUMERIC, broadcast_shapes, promote_together
from .precision import current_precision, in_type_of, product_type, rounded
from .shape import broadcast_arrays, moveaxis, transpose
from .types import TensorSpec, bool_


class DotGeneralOp(Op, name="dot_general"):
    """Batched contraction: y[b, i, j] = sum over k of lhs[b, i, k] * rhs[b, k, j], for axes in any
    order.

    The result has the batch axes (in the order given), the free axes of lhs, then those of rhs.
    16-bit floats are summed in float32. With `precision` "bfloat16" or "float16" operands of
    float32 are rounded to that type first; the result is float32, also of operands of that type.
    Example: `%y = "gradopt.dot_general"(%a, %b) {lhs_contract = array<i64: 1>, rhs_contract =
    array<i64: 0>} : (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>`
    """

    lhs: Operand
    rhs: Operand
    lhs_contract: Ints
    rhs_contract: Ints
    lhs_batch: Ints = ()
    rhs_batch: Ints = ()
    precision: Str = ""
    y: Result

    @classmethod
    def infer(
        cls,
        lhs: TensorSpec,
        rhs: TensorSpec,
        lhs_contract: tuple[int, ...],
        rhs_contract: tuple[int, ...],
        lhs_batch: tuple[int, ...],
        rhs_batch: tuple[int, ...],
        precision: str,
    ) -> TensorSpec:
        if lhs.dtype != rhs.dtype or lhs.dtype == bool_:
            raise cls.error(
                "numeric operands of one element type", f"{lhs} and {rhs}", "convert one of them"
            )
        for side, spec, axes in (
            ("lhs", lhs, (*lhs_batch, *lhs_contract)),
            ("rhs", rhs, (*rhs_batch, *rhs_contract)),
        ):
            if len(set(axes)) != len(axes) or not set(axes) <= set(range(spec.rank)):
                raise cls.error(f"distinct {side} axes in [0, {spec.rank})", list(axes))
        for what, left, right in (
            ("contracting", lhs_contract, rhs_contract),
            ("batch", lhs_batch, rhs_batch),
        ):
            extents = [lhs.shape[a] for a in left], [rhs.shape[a] for a in right]
            if extents[0] != extents[1]:
                got = " and ".join(
                    "x".join("?" if n is None else str(n) for n in e) or "none" for e in extents
                )
                raise cls.error(
                    f"{what} dimensions to match",
                    f"{got} ({lhs} and {rhs})",
                    "transpose or reshape an operand",
                )
        batch = [lhs.shape[a] for a in lhs_batch]
        left = [lhs.shape[a] for a in free_axes(lhs.rank, lhs_batch, lhs_contract)]
        right = [rhs.shape[a] for a in free_axes(rhs.rank, rhs_batch, rhs_contract)]
        dtype = product_type(cls, lhs, precision)
        return lhs.with_shape([*batch, *left, *right]).with_dtype(dtype)

    @staticmethod
    def reference(
        lhs: np.ndarray,
        rhs: np.ndarray,
        lhs_contract: tuple[int, ...],
        rhs_contract: tuple[int, ...],
        lhs_batch: tuple[int, ...],
        rhs_batch: tuple[int, ...],
        precision: str,
    ) -> np.ndarray:
        lhs, rhs = rounded(precision, lhs, rhs)
        return contracted(lhs, rhs, lhs_contract, rhs_contract, lhs_batch, rhs_batch)

    def vjp(self, ct: Any) -> list[Any]:
        """dlhs = contraction of ct with rhs over rhs's free axes; drhs = contraction of lhs with ct
        over lhs's free axes
        """
        lhs = Side(self.lhs, self.lhs_batch, self.lhs_contract)
        rhs = Side(self.rhs, self.rhs_batch, self.rhs_contract)
        batch, left = len(lhs.batch), len(lhs.free)
        of_lhs = tuple(range(batch, batch + left))
        of_rhs = tuple(range(batch + left, ct.ndim))
        ct = in_type_of(self.lhs, ct)
        return [
            in_type_of(self.lhs, _gradient(ct, of_rhs, lhs, rhs, self.precision)),
            in_type_of(self.rhs, _gradient(ct, of_lhs, rhs, lhs, self.precision)),
        ]


@dataclasses.dataclass
class Side:
    """An operand of a contraction and what its axes are for."""

    x: Any
    batch: tuple[int, ...]
    contract: tuple[int, ...]

    @property
    def free(self) -> tuple[int, ...]:
        return free_axes(self.x.ndim, self.batch, self.contract)


def _gradient(ct: Any, ct_contract: tuple[int, ...], own: Side, other: Side, precision: str) -> Any:
    """The gradient by the operand `own`: ct contracted with `other` over `ct_contract`, the axes
    of ct that are other's free axes.

    The contraction is written with ct first or second, whichever leaves the axes in the operand's
    order, so that a matrix product needs no transpose.
    """
    # Afterwards ct's remaining axes stand for own's free axes, other's for its contracted ones, in
    # the order they have in other.
    contracted = tuple(own.contract[other.contract.index(a)] for a in sorted(other.contract))
    ct_first = (*own.batch, *own.free, *contracted)
    other_first = (*own.batch, *contracted, *own.free)
    batch = tuple(range(len(own.batch)))
    if other_first == tuple(sorted(other_first)) and ct_first != tuple(sorted(ct_first)):
        return DotGeneralOp.emit(
            other.x,
            ct,
            lhs_contract=other.free,
            rhs_contract=ct_contract,
            lhs_batch=other.batch,
            rhs_batch=batch,
            precision=precision,
        )
    product = DotGeneralOp.emit(
        ct,
        other.x,
        lhs_contract=ct_contract,
        rhs_contract=other.free,
        lhs_batch=batch,
        rhs_batch=other.batch,
        precision=precision,
    )
    return transpose(product, np.argsort(ct_first).tolist())


def free_axes(rank: int, batch: Sequence[int], contract: Sequence[int]) -> tuple[int, ...]:
    """The axes that are neither batch nor contracting."""
    return tuple(a for a in range(rank) if a not in batch and a not in contract)


def contracted(
    lhs: np.ndarray,
    rhs: np.ndarray,
    lhs_contract: Sequence[int],
    rhs_contract: Sequence[int],
    lhs_batch: Sequence[int] = (),
    rhs_batch: Sequence[int] = (),
) -> np.ndarray:
    """The contraction of NumPy arrays: for each batch, one product of matrices whose rows and
    columns are the free axes.
    """
    n = len(lhs_batch)
    first = tuple(range(n))
    axes = (*lhs_batch, *lhs_contract), (*rhs_batch, *rhs_contract)
    if axes == ((*first, n + 1), (*first, n)) and lhs.ndim == rhs.ndim == n + 2:
        return np.matmul(lhs, rhs)
    left = free_axes(lhs.ndim, lhs_batch, lhs_contract)
    right = free_axes(rhs.ndim, rhs_batch, rhs_contract)
    batch = [lhs.shape[a] for a in lhs_batch]
    rows, columns = [lhs.shape[a] for a in left], [rhs.shape[a] for a in right]
    inner = math.prod([lhs.shape[a] for a in lhs_contract])
    a = lhs.transpose(*lhs_batch, *left, *lhs_contract).reshape(*batch, math.prod(rows), inner)
    b = rhs.transpose(*rhs_batch, *rhs_contract, *right).reshape(*batch, inner, math.prod(columns))
    return np.matmul(a, b).reshape([*batch, *rows, *columns])


# --- functions ------------------------------------------------------------------------------------


def dot_general(
    lhs: Any,
    rhs: Any,
    *,
    lhs_contract: Sequence[int],
    rhs_contract: Sequence[int],
    lhs_batch: Sequence[int] = (),
    rhs_batch: Sequence[int] = (),
    name: str | None = None,
) -> Any:
    """Contract `lhs` with `rhs` over the axes given, in their common element type (see the op);
    float32 in the precision of `go.autocast`.
    """
    with builders.owner("dot_general", (lhs, rhs)):
        lhs, rhs = promote_together(NUMERIC, (lhs, rhs))
        return DotGeneralOp.emit(
            lhs,
            rhs,
            lhs_contract=tuple(lhs_contract),
            rhs_contract=tuple(rhs_contract),
            lhs_batch=tuple(lhs_batch),
            rhs_batch=tuple(rhs_batch),
            precision=current_precision(lhs, rhs),
            name=name,
        )


def matmul(a: Any, b: Any, name: str | None = None) -> Any:
    """Matrix product of the last two axes, the others broadcast; vectors count as a row (left) or
    column (right).
    """
    with builders.owner("dot_general", (a, b)):
        a, b = promote_together(NUMERIC, (a, b))
        if a.ndim == 0 or b.ndim == 0:
            raise DotGeneralOp.error(
                "operands of at least one axis", f"{a.spec} and {b.spec}", "multiply scalars with *"
            )
        precision = current_precision(a, b)
        if b.ndim <= 2:
            axes = {"lhs_contract": (a.ndim - 1,), "rhs_contract": (max(b.ndim - 2, 0),)}
            return DotGeneralOp.emit(a, b, name=name, precision=precision, **axes)
        if a.ndim == 1:
            axes = {"lhs_contract": (b.ndim - 2,), "rhs_contract": (0,)}
            return DotGeneralOp.emit(b, a, name=name, precision=precision, **axes)
        return _batched(a, b, name)


def _batched(a: Any, b: Any, name: str | None) -> Any:
    shape = broadcast_shapes(DotGeneralOp, a.shape[:-2], b.shape[:-2])
    a, b = (
        x if x.shape[:-2] == shape else x.broadcast_to((*shape, *x.shape[-2:]), like=(a, b))
        for x in (a, b)
    )
    n = len(shape)
    batch = tuple(range(n))
    axes = {"lhs_contract": (n + 1,), "rhs_contract": (n,), "precision": current_precision(a, b)}
    return DotGeneralOp.emit(a, b, name=name, lhs_batch=batch, rhs_batch=batch, **axes)


def dot(a: Any, b: Any) -> Any:
    """Contraction of a's last axis with b's last but one (or only) axis, as NumPy's dot."""
    return dot_general(a, b, lhs_contract=(a.ndim - 1,), rhs_contract=(max(b.ndim - 2, 0),))


def tensordot(a: Any, b: Any, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Any:
    """Contraction over the last `axes` axes of a and first of b, or over the two lists of axes."""
    if isinstance(axes, int):
        left, right = list(range(a.ndim - axes, a.ndim)), list(range(axes))
    else:
        left, right = [x % a.ndim for x in axes[0]], [x % b.ndim for x in axes[1]]
    return dot_general(a, b, lhs_contract=left, rhs_contract=right)


def vecdot(a: Any, b: Any, *, axis: int = -1) -> Any:
    """Sums of products along `axis` of both, the other axes broadcast."""
    with builders.owner("dot_general", (a, b)):
        a, b = promote_together(NUMERIC, (a, b))
        a, b = (moveaxis(x, axis, -1) for x in (a, b))
        if a.shape[-1] != b.shape[-1]:
            raise DotGeneralOp.error(
                "axes of one extent", f"{a.spec} and {b.spec}", f"see axis {axis}"
            )
        a, b = broadcast_arrays(a, b)
        n = a.ndim - 1
        return dot_general(
            a, b, lhs_contract=(n,), rhs_contract=(n,), lhs_batch=range(n), rhs_batch=range(n)
        )


def outer(a: Any, b: Any) -> Any:
    """All products of an element of vector a with one of vector b."""
    return dot_general(a, b, lhs_contract=(), rhs_contract=())
