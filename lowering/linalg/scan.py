# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Running sums and the like: `iree_linalg_ext.scan`, a long axis in blocks.

One scan goes through its axis element by element. A long axis is therefore scanned in blocks, side
by side; the scan of their totals is what each block starts from. It also keeps the rounding errors
of sums small. Products are taken in one go: in blocks 0 * 1e30 * 1e30 would be 0 * inf. 16-bit
floats and integers below 32 bits are scanned in 32 bits. IREE 3.13 has no reversed scan: the axis
is reversed before and after.
"""

from typing import Any

from ...dialect import scan as ops
from ...dialect.mlir import DYNAMIC, ir
from . import build
from .build import PARALLEL
from .elementwise import logaddexp
from .reduction import MAXIMUM, MINIMUM, PRODUCT, SUM, Monoid, accumulator, rounded
from .registry import lowers
from .scalar import Scalar
from .shape import extract, padded, reversed_along

BLOCK = 64
"""Elements of a block. An axis of more than two blocks is scanned in blocks."""

LOGADDEXP = Monoid(logaddexp, lambda dtype: -float("inf"))


def _lowers_to(monoid: Monoid, in_blocks: bool = True) -> Any:
    def lower(op: Any, x: ir.Value) -> ir.Value:
        dtype = op.operand_specs()[0].dtype
        if 0 in build.static_shape(x):
            return x
        wide = accumulator(dtype)
        x = rounded(x, dtype, wide)
        if op.reverse:
            x = reversed_along(x, [op.axis])
        y = _scan(x, op.axis, wide, monoid, in_blocks)
        if op.reverse:
            y = reversed_along(y, [op.axis])
        return rounded(y, wide, dtype)

    return lower


def _scan(x: ir.Value, axis: int, dtype: Any, monoid: Monoid, in_blocks: bool) -> ir.Value:
    n = build.static_shape(x)[axis]
    if not in_blocks or n == DYNAMIC or n <= 2 * BLOCK:
        return _in_one_go(x, axis, dtype, monoid)
    identity = build.number(monoid.identity(dtype), build.element_type(dtype))
    rank = build.rank_of(x)
    count = -(-n // BLOCK)

    def along(value: int) -> list[int]:
        return [value if a == axis else 0 for a in range(rank)]

    whole = padded(x, along(0), along(count * BLOCK - n), identity)
    split = [[count, BLOCK] if a == axis else [m] for a, m in enumerate(build.shape_of(x))]
    blocks = _in_one_go(build.expand(whole, split), axis + 1, dtype, monoid)
    last = [BLOCK - 1 if a == axis + 1 else 0 for a in range(rank + 1)]
    ends = [1 if a == axis + 1 else m for a, m in enumerate(build.shape_of(blocks))]
    totals = build.reshape(
        extract(blocks, last, ends, [1] * (rank + 1)),
        [m for a, m in enumerate(ends) if a != axis + 1],
    )
    carries = _scan(totals, axis, dtype, monoid, in_blocks)
    shape = [count - 1 if a == axis else m for a, m in enumerate(build.shape_of(carries))]
    before = extract(carries, [0] * rank, shape, [1] * rank)
    before = padded(before, along(1), along(0), identity)

    def body(carry: ir.Value, value: ir.Value, _: ir.Value) -> list[ir.Value]:
        return [monoid.combine(Scalar(carry, dtype), Scalar(value, dtype)).value]

    loops = list(range(rank + 1))
    out = build.empty(build.shape_of(blocks), build.element_type(dtype))
    inputs = [(before, [a for a in loops if a != axis + 1]), (blocks, loops)]
    y = build.generic(inputs, [(out, loops)], [PARALLEL] * len(loops), body)[0]
    merged = build.collapse(y, [[a + (a > axis)] if a != axis else [a, a + 1] for a in range(rank)])
    return extract(merged, [0] * rank, build.shape_of(x), [1] * rank)


def _in_one_go(x: ir.Value, axis: int, dtype: Any, monoid: Monoid) -> ir.Value:
    shape = build.shape_of(x)
    element = build.element_of(x)
    out = build.empty(shape, element)
    carry = build.fill(
        monoid.identity(dtype), [n for a, n in enumerate(shape) if a != axis], element
    )
    op = ir.Operation.create(
        "iree_linalg_ext.scan",
        results=[out.type, carry.type],
        operands=[build.fusion_barrier(x), out, carry],
        attributes={
            "dimension": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), axis),
            "inclusive": ir.BoolAttr.get(True),
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 2]),
        },
        regions=1,
    )
    block = op.regions[0].blocks.append(element, element)
    with ir.InsertionPoint(block):
        before, value = (Scalar(v, dtype) for v in block.arguments)
        ir.Operation.create("iree_linalg_ext.yield", operands=[monoid.combine(before, value).value])
    return build.fusion_barrier(op.results[0])


lowers(ops.CumsumOp)(_lowers_to(SUM))
lowers(ops.CumprodOp)(_lowers_to(PRODUCT, in_blocks=False))
lowers(ops.CummaxOp)(_lowers_to(MAXIMUM))
lowers(ops.CumminOp)(_lowers_to(MINIMUM))
lowers(ops.CumlogsumexpOp)(_lowers_to(LOGADDEXP))
