# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Sorting in forms that run in parallel: `iree_linalg_ext.sort` of IREE 3.13 is quadratic on one
core, and sorts in its operand.

Elements become integer keys of the same order, NaN last, which are compared together with their
positions, so that no two are equal and every form is stable. A short axis is sorted by counting how
many elements come before each; a long one by merging ever longer runs, each step of which compares
and exchanges all pairs at one distance (Batcher's bitonic sort).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...dialect.mlir import arith, ir, tensor
from ...dialect.sort import SortOp
from ...dialect.types import bool_, float32, int32, int64, is_float, is_narrow
from . import build, scalar
from .build import PARALLEL, REDUCTION
from .registry import lowers
from .scalar import Scalar, convert, select
from .shape import extract, padded

COUNTED = 64
"""Longest axis that is sorted by counting, which takes a comparison of each pair."""


def key_of(x: Scalar) -> Scalar:
    """An integer of the same order: a float's bits, turned around where it is negative."""
    if not is_float(x.dtype):
        wide = int64 if x.dtype == np.dtype("uint32") or x.dtype.itemsize == 8 else int32
        return convert(x, wide)
    x = convert(x, float32) if is_narrow(x.dtype) else x
    whole = int64 if x.dtype.itemsize == 8 else int32
    top = np.iinfo(whole).max
    bits = scalar.bitcast(select(x == 0, 0, x), whole)  # 0 and -0 are equal
    ordered = select(bits < 0, bits ^ top, bits)
    return select(scalar.is_nan(x), top, ordered)


@lowers(SortOp)
def sort(op: Any, x: ir.Value) -> list[ir.Value]:
    dtype, axis = op.operand_specs()[0].dtype, op.axis
    shape = build.shape_of(x)
    n = op.operand_specs()[0].shape[axis]
    i32 = build.element_type(int32)
    if 0 in shape:
        return [x, build.empty(shape, i32)]
    if n == 1:
        return [x, build.fill(0, shape, i32)]
    kind = int64 if dtype.itemsize == 8 or dtype == np.dtype("uint32") else int32

    def key(v: ir.Value) -> ir.Value:
        k = key_of(Scalar(v, dtype))
        return (~k if op.descending else k).value

    keys = build.elementwise([x], build.element_type(kind), key)
    by_counting = n <= COUNTED
    order = _counted(keys, axis, kind) if by_counting else _merged(keys, axis, n, kind)
    return [_read(x, order, axis), order]


def _read(x: ir.Value, order: ir.Value, axis: int) -> ir.Value:
    """x at the positions along an axis."""
    axes = list(range(build.rank_of(x)))
    x = build.read_at(x)

    def body(at: ir.Value, _: ir.Value) -> list[ir.Value]:
        where = [build.loop_index(a) for a in axes]
        where[axis] = arith.index_cast(ir.IndexType.get(), at)
        return [tensor.extract(x, where)]

    out = build.empty(build.shape_of(order), build.element_of(x))
    return build.generic(
        [(build.fusion_barrier(order), axes)], [(out, axes)], [PARALLEL] * len(axes), body
    )[0]


def _counted(keys: ir.Value, axis: int, kind: np.dtype) -> ir.Value:
    """The position whose number of smaller elements is i, at each i."""
    shape, rank = build.shape_of(keys), build.rank_of(keys)
    keys = build.fusion_barrier(keys)
    i32 = build.element_type(int32)
    zeros = build.fill(0, shape, i32)
    own = list(range(rank))
    other = [rank if a == axis else a for a in own]
    loops = [PARALLEL] * rank + [REDUCTION]

    def count(mine: ir.Value, its: ir.Value, total: ir.Value) -> list[ir.Value]:
        a, b = Scalar(mine, kind), Scalar(its, kind)
        i = scalar.from_index(build.loop_index(axis), int32)
        j = scalar.from_index(build.loop_index(rank), int32)
        before = (b < a) | ((b == a) & (j < i))
        return [(Scalar(total, int32) + convert(before, int32)).value]

    ranks = build.generic([(keys, own), (keys, other)], [(zeros, own)], loops, count)[0]

    def find(place: ir.Value, total: ir.Value) -> list[ir.Value]:
        i = scalar.from_index(build.loop_index(axis), int32)
        j = scalar.from_index(build.loop_index(rank), int32)
        return [(Scalar(total, int32) + select(Scalar(place, int32) == i, j, 0)).value]

    ranks = build.fusion_barrier(ranks)
    return build.generic([(ranks, other)], [(zeros, own)], loops, find)[0]


def _merged(keys: ir.Value, axis: int, n: int, kind: np.dtype) -> ir.Value:
    """Bitonic sort of an axis that is filled up to a power of two by what comes last."""
    rank = build.rank_of(keys)
    length = 1 << (n - 1).bit_length()
    high = [length - n if a == axis else 0 for a in range(rank)]
    last = build.number(np.iinfo(kind).max, build.element_type(kind))
    keys = padded(build.fusion_barrier(keys), [0] * rank, high, last)
    shape = build.shape_of(keys)
    out = build.empty(shape, build.element_type(int32))
    axes = list(range(rank))
    places = build.generic(
        [],
        [(out, axes)],
        [PARALLEL] * rank,
        lambda _: [scalar.from_index(build.loop_index(axis), int32).value],
    )[0]
    pair = [keys, places]
    run = 2
    while run <= length:
        pair = _exchange(pair, axis, run, kind, mirrored=True)
        distance = run // 4
        while distance:
            pair = _exchange(pair, axis, 2 * distance, kind, mirrored=False)
            distance //= 2
        run *= 2
    return extract(
        pair[1], [0] * rank, [n if a == axis else m for a, m in enumerate(shape)], [1] * rank
    )


def _exchange(
    pair: Sequence[ir.Value], axis: int, run: int, kind: np.dtype, mirrored: bool
) -> list[ir.Value]:
    """In every run compare each element of the first half with that in the same place of the
    second, or the mirrored place, and put the smaller one first.
    """
    shape, rank = build.shape_of(pair[0]), build.rank_of(pair[0])
    keys, places = (build.read_at(v) for v in pair)
    axes = list(range(rank))

    def body(key: ir.Value, place: ir.Value, *_: ir.Value) -> list[ir.Value]:
        where = [build.loop_index(a) for a in axes]
        bits = build.index(run - 1 if mirrored else run // 2)
        at = where[axis]
        where[axis] = partner = arith.xori(at, bits)
        k, p = Scalar(key, kind), Scalar(place, int32)
        l = Scalar(tensor.extract(keys, where), kind)
        q = Scalar(tensor.extract(places, where), int32)
        mine_first = (k < l) | ((k == l) & (p < q))
        is_first = Scalar(arith.cmpi(arith.CmpIPredicate.ult, at, partner), bool_)
        stays = ~(mine_first ^ is_first)
        return [select(stays, k, l).value, select(stays, p, q).value]

    outs = [(build.empty(shape, build.element_of(v)), axes) for v in pair]
    return build.generic([(keys, axes), (places, axes)], outs, [PARALLEL] * rank, body)
