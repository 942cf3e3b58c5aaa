# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Reading and writing at given positions. Indices are brought inside first, so no index can touch
other memory.

Rows are read by `iree_linalg_ext.gather` and written by `iree_linalg_ext.scatter` with
`unique_indices = false`, which runs on one workgroup and is right with repeated positions.
"""

from collections.abc import Sequence
from typing import Any

from ...dialect.control import OptimizationBarrierOp, StopGradientOp
from ...dialect.creation import ConstantOp
from ...dialect.indexing import ScatterAddOp, TakeOp
from ...dialect.mlir import ir, op_of
from ...dialect.scatter import ScatterMaxOp, ScatterMinOp, ScatterSetOp
from ...dialect.scatter_product import ScatterMulOp
from ...dialect.shape import ReshapeOp, TransposeOp
from ...dialect.types import TensorSpec, float32, int32, int64, is_narrow, uint64
from ..marks import DONATED
from . import build
from .reduction import rounded
from .registry import lowers
from .scalar import Scalar, convert, maximum, minimum, select
from .shape import permuted

VIEWS = (ReshapeOp, TransposeOp, OptimizationBarrierOp, StopGradientOp)
"""Ops whose result may be their operand's storage."""


def positions(indices: ir.Value, spec: TensorSpec, extent: int) -> ir.Value:
    """Indices as a column [n, 1] of i32 in [0, extent): negative ones counted from the end, then
    the nearest inside.
    """

    def body(v: ir.Value) -> ir.Value:
        return bring_inside(Scalar(v, spec.dtype), extent).value

    inside = build.elementwise([indices], build.element_type(int32), body)
    return build.reshape(inside, [build.product(build.shape_of(indices)), 1])


def bring_inside(index: Scalar, extent: int) -> Scalar:
    """An index as an i32 in [0, extent): a negative one counted from the end, then the nearest."""
    dtype = index.dtype
    index = minimum(index, max(extent - 1, 0)) if dtype == uint64 else index
    i = convert(index, int64 if dtype.itemsize >= 4 and dtype != int32 else int32)
    i = select(i < 0, i + extent, i) if dtype.kind == "i" else i
    return convert(minimum(maximum(i, 0), extent - 1), int32)


@lowers(TakeOp)
def take(op: Any, x: ir.Value, indices: ir.Value) -> ir.Value:
    x_spec, i_spec = op.operand_specs()
    front, back = _fronted(x, op.axis)
    rows = build.product(back)
    where = positions(indices, i_spec, x_spec.shape[op.axis] or 0)
    table = build.reshape(front, [build.extent(front, 0), rows])
    count = build.extent(where, 0)
    if 0 in (count, rows):
        return build.empty(_result_shape(op, x, indices), build.element_of(x))
    out = build.empty([count, rows], build.element_of(x))
    found = ir.Operation.create(
        "iree_linalg_ext.gather",
        results=[out.type],
        operands=[table, where, out],
        attributes=_dimension_map([1, 1, 1, 0]),
    ).results[0]
    # IREE 3.13 fuses a gather into what reads it, and then reads the wrong rows, or outside.
    found = build.reshape(build.fusion_barrier(found), [*build.shape_of(indices), *back])
    return permuted(found, _unfronted(op.axis, i_spec.rank, x_spec.rank))


COMBINE = {
    ScatterSetOp: lambda old, update: update,
    ScatterAddOp: lambda old, update: old + update,
    ScatterMulOp: lambda old, update: old * update,
    ScatterMaxOp: maximum,
    ScatterMinOp: minimum,
}
"""What is written at a position, from what is there and an update."""


@lowers(*COMBINE)
def scatter(op: Any, x: ir.Value, indices: ir.Value, updates: ir.Value) -> ir.Value:
    """16-bit floats are combined in float32"""
    dtype = op.operand_specs()[0].dtype
    if is_narrow(dtype):
        wide = [rounded(v, dtype, float32) for v in (x, updates)]
        return rounded(_scatter(op, wide[0], indices, wide[1]), float32, dtype)
    return _scatter(op, x, indices, updates)


def _scatter(op: Any, x: ir.Value, indices: ir.Value, updates: ir.Value) -> ir.Value:
    x_spec, i_spec, _ = op.operand_specs()
    front, back = _fronted(x, op.axis)
    rows = build.product(back)
    where = positions(indices, i_spec, x_spec.shape[op.axis] or 0)
    count = build.extent(where, 0)
    if 0 in (count, rows):
        return x
    for axis, n in enumerate(_result_shape(op, x, indices)):
        build.agree(n, build.extent(updates, axis))
    moved = _unfronted(op.axis, i_spec.rank, x_spec.rank)
    values = build.reshape(
        permuted(updates, [moved.index(a) for a in range(len(moved))]), [count, rows]
    )
    table = build.reshape(front, [build.extent(front, 0), rows])
    if not _is_private(op):
        table = build.copied(table)
    # IREE 3.13 does not tile what it fuses into a scatter: it would put all of it on the stack.
    values, where = build.fusion_barrier(values), build.fusion_barrier(where)
    scattered = ir.Operation.create(
        "iree_linalg_ext.scatter",
        results=[table.type],
        operands=[values, where, table],
        attributes=_dimension_map([1, 1, 1, 0]) | {"unique_indices": ir.BoolAttr.get(False)},
        regions=1,
    )
    element = build.element_of(x)
    block = scattered.regions[0].blocks.append(element, element)
    with ir.InsertionPoint(block):
        kind = float32 if is_narrow(x_spec.dtype) else x_spec.dtype
        update, old = (Scalar(v, kind) for v in block.arguments)
        ir.Operation.create(
            "iree_linalg_ext.yield", operands=[COMBINE[type(op)](old, update).value]
        )
    result = build.reshape(scattered.results[0], [build.extent(front, 0), *back])
    return permuted(result, _unfronted(op.axis, 1, x_spec.rank))


def _is_private(op: Any) -> bool:
    """True if nothing but the scatter reads its table, or if nobody may write to it anyway.

    IREE 3.13 scatters into the table itself, also while another dispatch still reads it. It does so
    where the table is an input that nothing else reads, too, whose memory is the caller's own
    unless it was donated; it copies an input that others read.
    """
    value = op.operation.operands[0]
    if is_narrow(op.x.dtype):  # made wider, which others may do too
        return isinstance(op_of(value), ConstantOp)
    while owner := op_of(value):
        if isinstance(owner, ConstantOp):
            return True
        if len(list(value.uses)) > 1:
            return False
        if not isinstance(owner, VIEWS):
            return True
        value = owner.operation.operands[0]
    return _is_donated(value)


def _is_donated(argument: Any) -> bool:
    """True for an input of a function that its caller gives away."""
    function = argument.owner.owner
    if "arg_attrs" not in function.attributes:
        return False
    return DONATED in function.attributes["arg_attrs"][argument.arg_number]


def _dimension_map(segments: Sequence[int]) -> dict[str, ir.Attribute]:
    return {
        "dimension_map": ir.DenseI64ArrayAttr.get([0]),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get(list(segments)),
    }


def _fronted(x: ir.Value, axis: int) -> tuple[ir.Value, list[build.Extent]]:
    """`x` with `axis` first, and the extents behind it."""
    order = [axis, *(a for a in range(build.rank_of(x)) if a != axis)]
    front = permuted(x, order)
    return front, build.shape_of(front)[1:]


def _unfronted(axis: int, count: int, rank: int) -> list[int]:
    """The permutation that puts the first `count` axes where `axis` was among the `rank` - 1
    others.
    """
    rest = list(range(count, count + rank - 1))
    return [*rest[:axis], *range(count), *rest[axis:]]


def _result_shape(op: Any, x: ir.Value, indices: ir.Value) -> list[build.Extent]:
    shape = build.shape_of(x)
    return [*shape[: op.axis], *build.shape_of(indices), *shape[op.axis + 1 :]]
