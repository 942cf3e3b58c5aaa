# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""dot_general as `linalg.matmul` or `linalg.batch_matmul` with indexing maps.

Operands are never transposed to suit the product: axes are merged to [batch, rows, depth] or
[batch, depth, rows], and the maps say which. Only axes that do not line up so are moved first. Sums
of 16-bit floats and small integers are 32 bits wide.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...dialect.contraction import DotGeneralOp, free_axes
from ...dialect.mlir import DYNAMIC, ir
from ..direct_plan import plan_of
from ..forms import DIRECT, form_of, product_form
from . import build
from .build import PARALLEL, REDUCTION, Extent
from .direct import TILED, no_sums, sums_of_products
from .reduction import accumulator, rounded
from .registry import lowers
from .scalar import Scalar, convert
from .shape import permuted


@lowers(DotGeneralOp)
def dot_general(op: Any, lhs: ir.Value, rhs: ir.Value) -> ir.Value:
    dtype = op.lhs.dtype
    wide = accumulator(dtype)
    lhs_free = free_axes(build.rank_of(lhs), op.lhs_batch, op.lhs_contract)
    rhs_free = free_axes(build.rank_of(rhs), op.rhs_batch, op.rhs_contract)
    extents = [
        *(build.extent(lhs, a) for a in (*op.lhs_batch, *lhs_free)),
        *(build.extent(rhs, a) for a in rhs_free),
    ]
    for pair in (
        *zip(op.lhs_batch, op.rhs_batch, strict=True),
        *zip(op.lhs_contract, op.rhs_contract, strict=True),
    ):
        build.agree(build.extent(lhs, pair[0]), build.extent(rhs, pair[1]))
    form = form_of(op)
    if form == DIRECT:
        return _directly(op, lhs, rhs)
    # The contracted axes are walked in the order they have in lhs.
    order = np.argsort(op.lhs_contract)
    lhs_contract, rhs_contract = (
        [axes[i] for i in order] for axes in (op.lhs_contract, op.rhs_contract)
    )
    a, a_last = as_matrix(lhs, op.lhs_batch, lhs_free, lhs_contract)
    b, b_last = as_matrix(rhs, op.rhs_batch, rhs_free, rhs_contract)
    product = multiply(a, b, a_last, b_last, dtype, wide, form)
    return rounded(build.reshape(product, extents), wide, op.result_specs()[0].dtype)


def _directly(op: Any, lhs: ir.Value, rhs: ir.Value) -> ir.Value:
    plan = plan_of(op)
    assert plan is not None, op
    nest = plan.nest
    first, second = (rhs, lhs) if plan.is_swapped else (lhs, rhs)
    second = permuted(second, plan.order)
    if plan.panel:
        *rows, columns = build.static_shape(second)
        split = build.reshape(second, [*rows, columns // plan.panel, plan.panel])
        second = permuted(split, [len(rows), *range(len(rows)), len(rows) + 1])
        y = sums_of_products(first, second, nest.in_panels(plan.panel))
        y = build.reshape(y, nest.shapes[2])
    else:
        y = sums_of_products(first, second, nest)
    if not plan.is_swapped:
        return y
    batch, rank = len(op.lhs_batch), len(nest.out)
    rows = rank - (build.rank_of(lhs) - batch - len(op.lhs_contract))
    return permuted(y, [*range(batch), *range(rows, rank), *range(batch, rows)])


def as_matrix(
    x: ir.Value, batch: Sequence[int], free: Sequence[int], contract: Sequence[int]
) -> tuple[ir.Value, bool]:
    """`x` with its axes merged to [batch, free, contract], and True, or to [batch, contract, free],
    and False.

    The batch axis is left out where there is none.
    """
    depth_last = (*batch, *free, *contract)
    depth_first = (*batch, *contract, *free)
    if depth_first == tuple(sorted(depth_first)) and depth_last != depth_first:
        first, second, last = contract, free, False
    else:
        x = permuted(x, depth_last)
        first, second, last = free, contract, True
    shape = build.shape_of(x)
    sizes = [len(batch)] if batch else []
    cuts = np.cumsum([0, *sizes, len(first), len(second)])
    return build.reshape(x, [build.product(shape[i:j]) for i, j in itertools.pairwise(cuts)]), last


def multiply(
    a: ir.Value,
    b: ir.Value,
    a_last: bool,
    b_last: bool,
    dtype: np.dtype,
    wide: np.dtype,
    form: str = "",
) -> ir.Value:
    """[batch, rows, columns] = sum over depth; `a_last` and `b_last` say where depth stands. The
    form is that of the extents where none is given.
    """
    batched = build.rank_of(a) == 3
    lead = [0] if batched else []
    n = len(lead)
    rows, columns, depth = n, n + 1, n + 2
    a_axes, b_axes = (
        [*lead, rows, depth] if a_last else [*lead, depth, rows],
        [*lead, columns, depth] if b_last else [*lead, depth, columns],
    )
    shape: list[Extent] = [
        *([build.extent(a, 0)] if batched else []),
        build.extent(a, a_axes.index(rows)),
        build.extent(b, b_axes.index(columns)),
    ]
    out = no_sums(shape, build.element_type(wide))
    extents = [shape[n], shape[n + 1], build.extent(a, a_axes.index(depth))]
    if any(isinstance(x, int) and x == 0 for x in [*extents, *shape]):
        return out
    out_axes = list(range(n + 2))
    if (form or product_form(extents, dtype)) == "generic":
        return _by_generic(a, b, a_axes, b_axes, shape, dtype, wide)
    maps = [
        ir.AffineMapAttr.get(build.affine_map(n + 3, axes)) for axes in (a_axes, b_axes, out_axes)
    ]
    name = "linalg.batch_matmul" if batched else "linalg.matmul"
    operands = [_packed_apart(x) for x in ([_set_apart(a), _set_apart(b)] if batched else [a, b])]
    attributes = {"indexing_maps": ir.ArrayAttr.get(maps), TILED: ir.UnitAttr.get()}
    return build.named(name, operands, out, **attributes)


TILE = 16
"""Rows that data tiling packs together, on the widest vectors."""


def _set_apart(x: ir.Value) -> ir.Value:
    """An operand of a batched product, not fused into its packing where that adds rows.

    With data tiling, IREE 3.13 gives wrong numbers, in all batches but the first, where an operand
    [batch, rows, columns] is computed from something without columns (one number a row, as in
    softmax), or has axes moved so that batch and rows stay side by side, and the rows are no
    multiple of the tile's: it packs them as if the rows of all batches were one run.
    """
    rows = build.static_shape(x)[1]
    if rows != DYNAMIC and rows % TILE == 0:
        return x
    source = x
    while not isinstance(source.owner, ir.Block) and source.owner.name in build.RESHAPES:
        source = source.owner.operands[0]
    computed = not isinstance(source.owner, ir.Block) and source.owner.name in COMPUTED
    return build.fusion_barrier(x) if computed else x


def _packed_apart(x: ir.Value) -> ir.Value:
    """An operand that comes from a convolution, or from elements gathered through a map, not packed
    in the same dispatch: IREE 3.13 would tile what makes it to suit the packing, which makes a
    convolution seven times slower, and a copy of windows four times.
    """
    return build.fusion_barrier(x) if build.comes_from(x, _is_slow_to_pack) else x


def _is_slow_to_pack(op: ir.Operation) -> bool:
    """Whether an op is a convolution, or reads at sums or multiples of its loops."""
    if op.name != "linalg.generic":
        return op.name.startswith("linalg.conv_")
    return not all(m.is_projected_permutation for m in build.indexing_maps(op))


COMPUTED = ("linalg.generic", "linalg.transpose")


def _by_generic(
    a: ir.Value,
    b: ir.Value,
    a_axes: list[int],
    b_axes: list[int],
    shape: list[Extent],
    dtype: np.dtype,
    wide: np.dtype,
) -> ir.Value:
    """A product as rows of a plain sum. Axes of one element are dropped here: IREE would do so, and
    lose the mark of the zeros.
    """

    def body(x: ir.Value, y: ir.Value, total: ir.Value) -> list[ir.Value]:
        left, right = convert(Scalar(x, dtype), wide), convert(Scalar(y, dtype), wide)
        return [(Scalar(total, wide) + left * right).value]

    sizes = dict(zip(a_axes, build.shape_of(a), strict=True))
    sizes |= dict(zip(b_axes, build.shape_of(b), strict=True))
    loops = [i for i in sorted(sizes) if sizes[i] != 1]

    def without_ones(x: ir.Value, axes: list[int]) -> tuple[ir.Value, list[int]]:
        kept = [i for i in axes if i in loops]
        return build.reshape(x, [sizes[i] for i in kept]), [loops.index(i) for i in kept]

    kept = [i for i in loops if i < len(shape)]
    out = no_sums([sizes[i] for i in kept], build.element_type(wide))
    inputs = [without_ones(a, a_axes), without_ones(b, b_axes)]
    kinds = [PARALLEL if i in kept else REDUCTION for i in loops]
    outputs = [(out, [loops.index(i) for i in kept])]
    return build.reshape(build.generic(inputs, outputs, kinds, body)[0], shape)
