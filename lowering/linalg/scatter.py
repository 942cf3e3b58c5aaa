# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Reading an element at a time along an axis, and blocks at fixed and computed places: parallel
generics that read at computed positions, which are brought inside first.
"""

from typing import Any

from ...dialect.dynamic import DynamicSliceOp, DynamicUpdateSliceOp, UpdateSliceOp
from ...dialect.gather import TakeAlongAxisOp
from ...dialect.mlir import arith, ir, tensor
from ...dialect.types import TensorSpec, int64
from . import build
from .build import PARALLEL, Extent
from .indexing import bring_inside
from .registry import lowers
from .scalar import Scalar, convert, maximum, minimum


@lowers(TakeAlongAxisOp)
def take_along_axis(op: Any, x: ir.Value, indices: ir.Value) -> ir.Value:
    x_spec, i_spec = op.operand_specs()
    shape = build.shape_of(indices)
    axes = list(range(x_spec.rank))
    for a in axes:
        if a != op.axis:
            build.agree(build.extent(x, a), shape[a])
    out = build.empty(shape, build.element_of(x))
    if 0 in shape:
        return out
    x = build.read_at(x)

    def body(index: ir.Value, _: ir.Value) -> list[ir.Value]:
        where = [build.loop_index(a) for a in axes]
        at = bring_inside(Scalar(index, i_spec.dtype), x_spec.shape[op.axis] or 0)
        where[op.axis] = arith.index_cast(ir.IndexType.get(), at.value)
        return [tensor.extract(x, where)]

    indices = build.fusion_barrier(indices)
    return build.generic([(indices, axes)], [(out, axes)], [PARALLEL] * len(axes), body)[0]


def first_of_block(
    start: ir.Value, spec: TensorSpec, extents: list[Extent], sizes: list[Extent]
) -> ir.Value:
    """Where a block begins: `start`, clamped to [0, extent - size], axis by axis, as i64."""
    wide = build.element_type(int64)
    rank = len(extents)
    room = []
    for n, m in zip(extents, sizes, strict=True):
        if isinstance(n, int) and isinstance(m, int):
            room.append(build.number(n - m, wide))
        else:
            left = arith.subi(build.as_index(n), build.as_index(m))
            room.append(arith.index_cast(wide, left))
    most = tensor.from_elements(build.tensor_type([rank], wide), room)

    def body(s: ir.Value, high: ir.Value) -> ir.Value:
        at = convert(Scalar(s, spec.dtype), int64)
        return minimum(maximum(at, 0), Scalar(high, int64)).value

    return build.fusion_barrier(build.elementwise([start, most], wide, body))


def _moved(first: ir.Value, rank: int, sign: int) -> list[ir.Value]:
    """In a body: the loops' places, moved by the start of a block."""
    where = []
    for a in range(rank):
        offset = arith.index_cast(ir.IndexType.get(), tensor.extract(first, [build.index(a)]))
        at = build.loop_index(a)
        where.append(arith.addi(at, offset) if sign > 0 else arith.subi(at, offset))
    return where


@lowers(DynamicSliceOp)
def dynamic_slice(op: Any, x: ir.Value, start: ir.Value) -> ir.Value:
    shape = build.shape_of(x)
    sizes = [n if m is None else m for n, m in zip(shape, op.sizes, strict=True)]
    out = build.empty(sizes, build.element_of(x))
    if 0 in sizes or not sizes:
        return x if not sizes else out
    first = first_of_block(start, op.operand_specs()[1], shape, sizes)
    x = build.read_at(x)
    axes = list(range(len(shape)))

    def body(_: ir.Value) -> list[ir.Value]:
        return [tensor.extract(x, _moved(first, len(shape), 1))]

    return build.generic([], [(out, axes)], [PARALLEL] * len(axes), body)[0]


@lowers(DynamicUpdateSliceOp)
def dynamic_update_slice(op: Any, x: ir.Value, update: ir.Value, start: ir.Value) -> ir.Value:
    shape, sizes = build.shape_of(x), build.shape_of(update)
    if 0 in sizes or not sizes:
        return x if sizes else update
    first = first_of_block(start, op.operand_specs()[2], shape, sizes)
    return _replaced(x, update, lambda: _moved(first, len(shape), -1), [1] * len(shape))


@lowers(UpdateSliceOp)
def update_slice(op: Any, x: ir.Value, update: ir.Value) -> ir.Value:
    shape, sizes = build.shape_of(x), build.shape_of(update)
    for n, m, given in zip(shape, sizes, op.operand_specs()[0].shape, strict=True):
        if given is None:
            build.agree(n, m)
    if 0 in sizes or not sizes:
        return x if sizes else update

    def places() -> list[ir.Value]:
        return [
            arith.subi(build.loop_index(a), build.index(s)) if s else build.loop_index(a)
            for a, s in enumerate(op.start)
        ]

    return _replaced(x, update, places, list(op.stride))


def _replaced(x: ir.Value, update: ir.Value, places: Any, stride: list[int]) -> ir.Value:
    """x, and in the places that are those of `update` times the stride, the update."""
    shape, sizes = build.shape_of(x), build.shape_of(update)
    axes = list(range(len(shape)))
    update = build.read_at(update)

    def body(old: ir.Value, _: ir.Value) -> list[ir.Value]:
        inside, where = None, []
        for a, at in enumerate(places()):
            if shape[a] is sizes[a] or (stride[a] == 1 and shape[a] == sizes[a]):
                where.append(at)
                continue
            step, size = build.index(stride[a]), build.as_index(sizes[a])
            # a place before the block is a huge one without its sign
            number = at if stride[a] == 1 else arith.divui(at, step)
            fits = arith.cmpi(arith.CmpIPredicate.ult, number, size)
            if stride[a] != 1:
                even = arith.cmpi(arith.CmpIPredicate.eq, arith.remui(at, step), build.index(0))
                fits = arith.andi(fits, even)
            inside = fits if inside is None else arith.andi(inside, fits)
            where.append(arith.select(fits, number, build.index(0)))
        new = tensor.extract(update, where)
        return [new if inside is None else arith.select(inside, new, old)]

    out = build.empty(shape, build.element_of(x))
    return build.generic([(x, axes)], [(out, axes)], [PARALLEL] * len(axes), body)[0]
