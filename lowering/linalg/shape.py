# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Moving elements: what can be a view is one; the rest are copies in forms that IREE tiles."""

import functools
import math as pymath
from collections.abc import Sequence
from typing import Any

from ...dialect.mlir import DYNAMIC, arith, ir, tensor
from ...dialect.shape import BroadcastOp, ReshapeOp, TransposeOp
from ...dialect.slicing import ConcatOp, PadOp, ReverseOp, SliceOp, StackOp, UnstackOp
from . import build
from .build import PARALLEL, Extent
from .registry import lowers


@lowers(ReshapeOp)
def reshape(op: Any, x: ir.Value, *like: ir.Value) -> ir.Value:
    return build.reshape(x, known_extents(op.shape, x, like))


def known_extents(
    shape: Sequence[int | None], x: ir.Value, like: Sequence[ir.Value]
) -> list[Extent]:
    """The extents of a reshape's result: a single unknown one from the number of elements, several
    from `like`. A call fails where the elements are not as many as the result has.
    """
    total = build.product(build.shape_of(x))
    if shape.count(None) > 1:
        extents = [build.extent(like[0], axis) if n is None else n for axis, n in enumerate(shape)]
    else:
        rest = build.product([n for n in shape if n is not None])
        one = total if rest == 1 else arith.divui(build.as_index(total), build.as_index(rest or 1))
        extents = [one if n is None else n for n in shape]
        if None in shape and rest == 1:
            return extents
    build.agree(total, build.product(extents))
    return extents


@lowers(TransposeOp)
def transpose(op: Any, x: ir.Value) -> ir.Value:
    return permuted(x, op.permutation)


def permuted(x: ir.Value, permutation: Sequence[int]) -> ir.Value:
    """Axes in another order; `x` itself if the order is that it has."""
    if list(permutation) == sorted(permutation):
        return x
    out = build.empty([build.extent(x, p) for p in permutation], build.element_of(x))
    return build.named(
        "linalg.transpose", [x], out, permutation=ir.DenseI64ArrayAttr.get(list(permutation))
    )


@lowers(BroadcastOp)
def broadcast(op: Any, x: ir.Value, *like: ir.Value) -> ir.Value:
    """A copy through a map, where no elementwise op takes the broadcast in."""
    kept = [a for a, n in enumerate(build.static_shape(x)) if n != 1 or op.shape[op.dims[a]] == 1]
    axes = [op.dims[a] for a in kept]
    if len(kept) < len(op.dims):
        x = build.reshape(x, [build.extent(x, a) for a in kept])
    shape: list[Extent] = [
        n
        if n is not None
        else build.extent(x, axes.index(i))
        if i in axes
        else extent_of_like(like, i)
        for i, n in enumerate(op.shape)
    ]
    loops = list(range(len(shape)))
    out = build.empty(shape, build.element_of(x))
    return build.generic(
        [(x, axes)], [(out, loops)], [PARALLEL] * len(loops), lambda element, _: [element]
    )[0]


def extent_of_like(like: Sequence[ir.Value], axis: int) -> Extent:
    """An unknown extent, from the first of the `like` operands that has it."""
    return build.extent(next(l for l in like if build.static_shape(l)[axis] == DYNAMIC), axis)


@lowers(ConcatOp)
def concat(op: Any, lhs: ir.Value, rhs: ir.Value) -> ir.Value:
    """Nested concatenations along the axis, used only here, are flattened into one copy"""
    parts = [*_parts(lhs, op.axis), *_parts(rhs, op.axis)]
    return joined(parts, op.axis, build.lowered_type(op.result_specs()[0]))


def _parts(value: ir.Value, axis: int) -> list[ir.Value]:
    owner = value.owner
    if (
        not isinstance(owner, ir.Block)
        and owner.name == "tensor.concat"
        and owner.attributes["dim"].value == axis
    ):
        return list(owner.operands)
    return [value]


def joined(parts: Sequence[ir.Value], axis: int, kind: ir.Type) -> ir.Value:
    """Tensors one after the other along an axis: `tensor.concat` along the first, else inserted one
    by one.

    IREE 3.13 turns inner concatenations into outer ones with transposes, which is slower, and
    crashes where an operand is one of several results of a generic. It cannot fold the unit axes of
    columns ("expected rank to be smaller or equal to the other rank"), which are joined as vectors,
    and makes columns of joined vectors by itself where they are split later, unless it is kept from
    looking through.

    Few small parts are chosen from in one dispatch: a copy of each would take a dispatch, which is
    longer than what it moves.
    """
    shape = build.shape_of(parts[0])
    for other in range(len(shape)):
        if other != axis:
            build.agree(*(build.extent(p, other) for p in parts))
    if axis == 0 and len(shape) > 1 and all(n == 1 for n in shape[1:]):
        vectors = [build.reshape(p, [build.extent(p, 0)]) for p in parts]
        one = build.tensor_type([ir.RankedTensorType(kind).shape[0]], build.element_of(parts[0]))
        whole = tensor.concat(one, 0, vectors)
        return build.reshape(whole, [build.extent(whole, 0), *shape[1:]])
    if axis == 0:
        whole = tensor.concat(kind, 0, list(parts))
        return build.barrier(whole) if len(shape) == 1 else whole
    if _is_chosen_from(parts):
        return _chosen(parts, axis)
    shape[axis] = functools.reduce(build.plus, (build.extent(p, axis) for p in parts))
    whole, at = build.empty(shape, build.element_of(parts[0])), 0
    for part in parts:
        extents = build.shape_of(part)
        start: list[Extent] = [at if a == axis else 0 for a in range(len(shape))]
        whole = _inserted(part, whole, start, extents)
        at = build.plus(at, extents[axis])
    return whole


CHOSEN = 4
"""Most parts that are chosen from: each element looks at all of them."""
SMALL = 65536
"""Most elements of parts that are chosen from, in all."""


def _is_chosen_from(parts: Sequence[ir.Value]) -> bool:
    shapes = {tuple(build.static_shape(p)) for p in parts}
    extents = [n for shape in shapes for n in shape]
    is_known = len(shapes) == 1 and DYNAMIC not in extents
    return is_known and 1 < len(parts) <= CHOSEN and len(parts) * pymath.prod(extents) <= SMALL


def _chosen(parts: Sequence[ir.Value], axis: int) -> ir.Value:
    """Equal parts along an axis, as a choice by the position there."""
    extents = build.static_shape(parts[0])
    split = [*extents[:axis], len(parts), *extents[axis:]]
    loops = list(range(len(split)))

    def body(*elements: ir.Value) -> list[ir.Value]:
        chosen = elements[len(parts) - 1]
        for i, element in enumerate(elements[: len(parts) - 1]):
            here = arith.cmpi(arith.CmpIPredicate.eq, build.loop_index(axis), build.index(i))
            chosen = arith.select(here, element, chosen)
        return [chosen]

    inputs = [(p, [a for a in loops if a != axis]) for p in parts]
    out = build.empty(split, build.element_of(parts[0]))
    whole = build.generic(inputs, [(out, loops)], [PARALLEL] * len(loops), body)[0]
    merged = [n * len(parts) if a == axis else n for a, n in enumerate(extents)]
    return build.reshape(whole, merged)


def _inserted(
    part: ir.Value, whole: ir.Value, start: Sequence[Extent], extents: Sequence[Extent]
) -> ir.Value:
    (starts, moving), (sizes, unknown) = build.mixed(start), build.mixed(extents)
    return tensor.InsertSliceOp(
        part, whole, moving, unknown, [], starts, sizes, [1] * len(sizes)
    ).result


@lowers(StackOp)
def stack(op: Any, *xs: ir.Value) -> ir.Value:
    shapes = map(build.shape_of, xs)
    slots = [[*shape[: op.axis], 1, *shape[op.axis :]] for shape in shapes]
    parts = [build.reshape(x, slot) for x, slot in zip(xs, slots, strict=True)]
    return joined(parts, op.axis, build.lowered_type(op.result_specs()[0]))


@lowers(UnstackOp)
def unstack(op: Any, x: ir.Value) -> list[ir.Value]:
    spec = op.operand_specs()[0]
    rest = [n for i, n in enumerate(build.shape_of(x)) if i != op.axis]
    starts = [
        [i if a == op.axis else 0 for a in range(spec.rank)]
        for i in range(spec.shape[op.axis] or 0)
    ]
    extents = [1 if a == op.axis else n for a, n in enumerate(build.shape_of(x))]
    return [build.reshape(extract(x, start, extents, [1] * spec.rank), rest) for start in starts]


@lowers(SliceOp)
def slice_(op: Any, x: ir.Value) -> ir.Value:
    (result,) = op.result_specs()
    extents = [build.extent(x, axis) if n is None else n for axis, n in enumerate(result.shape)]
    return extract(x, op.start, extents, op.stride)


def extract(
    x: ir.Value, start: Sequence[int], extents: Sequence[Extent], stride: Sequence[int]
) -> ir.Value:
    """`extents` elements from `start` on, every stride-th. Of a tensor that was made wider, they
    are taken before that: IREE's code generator for GPUs fails on strided pieces of one that it
    makes wider in the same dispatch.
    """
    if 0 in extents:  # MLIR takes an offset at the very end for out of bounds
        return build.empty(extents, build.element_of(x))
    wide = build.element_of(x)
    if max(stride, default=1) > 1 and (narrow := _before_widening(x)) is not None:
        part = extract(narrow, start, extents, stride)
        return build.elementwise([part], wide, lambda v: arith.extf(wide, v))
    sizes, unknown = build.mixed(extents)
    kind = build.tensor_type(extents, wide)
    return tensor.ExtractSliceOp(kind, x, [], unknown, [], list(start), sizes, list(stride)).result


def _before_widening(x: ir.Value) -> ir.Value | None:
    """The tensor of narrower floating-point numbers that `x` is, element by element."""
    owner = x.owner
    if isinstance(owner, ir.Block) or owner.name != "linalg.generic" or len(owner.operands) != 2:
        return None
    maps = list(owner.attributes["indexing_maps"])
    body = list(owner.regions[0].blocks[0].operations)
    is_it = len(body) == 2 and body[0].operation.name == "arith.extf" and maps[0] == maps[1]
    return owner.operands[0] if is_it else None


@lowers(PadOp)
def pad(op: Any, x: ir.Value) -> ir.Value:
    """Padding between elements is padding after each element of an axis split in two, cut off after
    the last
    """
    spec = op.operand_specs()[0]
    value = build.number(op.value, build.element_of(x))
    if 0 in spec.shape:
        extents = [
            build.extent(x, axis) if n is None else n
            for axis, n in enumerate(op.result_specs()[0].shape)
        ]
        return build.fill(value, extents, build.element_of(x))
    x = spread(x, op.interior, value)
    return padded(x, op.low, op.high, value)


def spread(x: ir.Value, interior: Sequence[int], value: ir.Value) -> ir.Value:
    """`interior` times `value` between the elements of each axis. An axis of unknown extent has
    none.
    """
    if not any(interior):
        return x
    rank = build.rank_of(x)
    split = [n for extent in build.shape_of(x) for n in (extent, 1)]
    after = [w for i in interior for w in (0, i)]
    whole = padded(build.reshape(x, split), [0] * len(split), after, value)
    merged = [_spaced(n, i) for n, i in zip(build.shape_of(x), interior, strict=True)]
    cut = [_spaced(n, i, last=True) for n, i in zip(build.shape_of(x), interior, strict=True)]
    return extract(build.reshape(whole, merged), [0] * rank, cut, [1] * rank)


def _spaced(extent: Extent, interior: int, last: bool = False) -> Extent:
    return (
        extent
        if interior == 0 or not isinstance(extent, int)
        else extent * (interior + 1) - (interior if last else 0)
    )


def padded(x: ir.Value, low: Sequence[int], high: Sequence[int], value: ir.Value) -> ir.Value:
    """`tensor.pad` with a constant; `x` itself where nothing is added."""
    if not any((*low, *high)):
        return x
    extents: list[Extent] = [
        n + lo + hi if isinstance(n, int) else n
        for n, lo, hi in zip(build.shape_of(x), low, high, strict=True)
    ]
    op = tensor.PadOp(
        build.tensor_type(extents, build.element_of(x)), x, [], [], list(low), list(high)
    )
    block = op.regions[0].blocks.append(*[ir.IndexType.get()] * len(low))
    with ir.InsertionPoint(block):
        tensor.YieldOp(value)
    return op.result


@lowers(ReverseOp)
def reverse(op: Any, x: ir.Value) -> ir.Value:
    return reversed_along(x, op.axes)


def reversed_along(x: ir.Value, reversed_axes: Sequence[int]) -> ir.Value:
    """Reads at extent - 1 - i: IREE does not take reversed maps."""
    extents = build.shape_of(x)
    if 0 in extents or not reversed_axes:
        return x
    axes = list(range(len(extents)))
    x = build.read_at(x)

    def body(_: ir.Value) -> list[ir.Value]:
        where = [build.loop_index(a) for a in axes]
        for a in reversed_axes:
            last = arith.subi(build.as_index(extents[a]), build.index(1))
            where[a] = arith.subi(last, where[a])
        return [tensor.extract(x, where)]

    out = build.empty(extents, build.element_of(x))
    return build.generic([], [(out, axes)], [PARALLEL] * len(axes), body)[0]
