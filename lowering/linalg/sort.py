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
from ...dialect.sort import SortOp, TopKOp
from ...dialect.types import (
    TensorSpec,
    bool_,
    float32,
    int32,
    int64,
    is_float,
    is_narrow,
    uint32,
    uint64,
)
from . import build, scalar
from .build import PARALLEL, REDUCTION
from .registry import lowers
from .scalar import Scalar, convert, select
from .shape import extract, joined, padded

COUNTED = 64
"""Longest axis that is sorted by counting, which takes a comparison of each pair."""
FEW = 16
"""Most elements that are looked for one after the other instead of sorting."""


def key_of(x: Scalar) -> Scalar:
    """An integer of the same order: a float's bits, turned around where it is negative."""
    if not is_float(x.dtype):
        wide = int64 if x.dtype == uint32 or x.dtype.itemsize == 8 else int32
        key = convert(x, wide)
        return key ^ np.iinfo(wide).min if x.dtype == uint64 else key
    x = convert(x, float32) if is_narrow(x.dtype) else x
    whole = int64 if x.dtype.itemsize == 8 else int32
    top = np.iinfo(whole).max
    bits = scalar.bitcast(select(x == 0, 0, x), whole)  # 0 and -0 are equal
    ordered = select(bits < 0, bits ^ top, bits)
    return select(scalar.is_nan(x), top, ordered)


@lowers(SortOp)
def sort(op: Any, x: ir.Value) -> list[ir.Value]:
    return _sorted(x, op.operand_specs()[0], op.axis, op.descending)


def _sorted(x: ir.Value, spec: TensorSpec, axis: int, descending: bool) -> list[ir.Value]:
    shape, n = build.shape_of(x), spec.shape[axis] or 0
    if 0 in shape:
        return [x, build.empty(shape, build.element_type(int32))]
    if n == 1:
        return [x, build.fill(0, shape, build.element_type(int32))]
    keys, kind = _keys(x, spec.dtype, descending)
    order = _counted(keys, axis, kind) if n <= COUNTED else _merged(keys, axis, n, kind)
    return [_read(x, order, axis), order]


def _keys(x: ir.Value, dtype: np.dtype, descending: bool) -> tuple[ir.Value, np.dtype]:
    """The keys of elements, to be put in ascending order, and their type."""
    kind = int64 if dtype.itemsize == 8 or dtype == uint32 else int32

    def key(v: ir.Value) -> ir.Value:
        k = key_of(Scalar(v, dtype))
        return (~k if descending else k).value

    return build.fusion_barrier(build.elementwise([x], build.element_type(kind), key)), kind


@lowers(TopKOp)
def top_k(op: Any, x: ir.Value) -> list[ir.Value]:
    """A few are found one after the other: the first in order behind the last one found"""
    (spec,), axis, k = op.operand_specs(), op.axis, op.k
    shape = build.shape_of(x)
    few = [k if a == axis else n for a, n in enumerate(shape)]
    if 0 in few or k > FEW:
        whole = _sorted(x, spec, axis, op.largest)
        return [extract(v, [0] * len(few), few, [1] * len(few)) for v in whole]
    keys, kind = _keys(x, spec.dtype, op.largest)
    rows = [n for a, n in enumerate(shape) if a != axis]
    found = (
        build.fill(np.iinfo(kind).min, rows, build.element_type(kind)),
        build.fill(-1, rows, build.element_type(int32)),
    )
    places = []
    for _ in range(k):
        found = _next(keys, axis, kind, *found)
        one = [1 if a == axis else n for a, n in enumerate(shape)]
        places.append(build.reshape(found[1], one))
    order = joined(places, axis, build.tensor_type(few, build.element_type(int32)))
    return [_read(x, order, axis), order]


def _next(
    keys: ir.Value, axis: int, kind: np.dtype, last: ir.Value, last_place: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """The first key, and its place, behind the last one found along an axis."""
    shape, rank = build.shape_of(keys), build.rank_of(keys)
    rows = [a for a in range(rank) if a != axis]
    loop_of = {a: loop for loop, a in enumerate([*rows, axis])}
    extents = [shape[a] for a in rows]
    most = [np.iinfo(kind).max, np.iinfo(np.int32).max]
    outs = [
        build.fill(m, extents, build.element_type(t))
        for m, t in zip(most, (kind, int32), strict=True)
    ]
    kept = list(range(rank - 1))

    def body(*values: ir.Value) -> list[ir.Value]:
        k, l, best = (Scalar(values[i], kind) for i in (0, 1, 3))
        q, place = Scalar(values[2], int32), Scalar(values[4], int32)
        here = scalar.from_index(build.loop_index(rank - 1), int32)
        behind = (l < k) | ((l == k) & (q < here))
        first = (k < best) | ((k == best) & (here < place))
        taken = behind & first
        return [select(taken, k, best).value, select(taken, here, place).value]

    inputs = [(keys, [loop_of[a] for a in range(rank)]), (last, kept), (last_place, kept)]
    loops = [PARALLEL] * (rank - 1) + [REDUCTION]
    key, place = build.generic(inputs, [(o, kept) for o in outs], loops, body)
    return build.fusion_barrier(key), build.fusion_barrier(place)


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
    keys = padded(keys, [0] * rank, high, last)
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
