# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""An elementwise op that reads a value in another shape, done in the value's own: what it computes
can then be done where the value is made.
"""

from collections.abc import Sequence

from ...dialect.mlir import ir
from . import build

Pair = tuple[list[int], list[int]]
"""Neighbouring axes of a value, and those that a reshape makes of them."""


def reshape_later(value: ir.Value) -> None:
    """Where all that is done with a value is to reshape it and to compute one result of that,
    element by element: compute the result in the value's shape, and reshape that.
    """
    users = [use.owner.operation for use in value.uses]
    if len(users) != 1 or users[0].name not in REASSOCIATING:
        return
    reshaped = users[0].results[0]
    readers = [use.owner.operation for use in reshaped.uses]
    if len(readers) != 1 or not _is_elementwise(readers[0]):
        return
    (reader,), pairs = readers, _pairs(users[0])
    *maps, _ = build.indexing_maps(reader)
    axes = [[ir.AffineDimExpr(e).position for e in m.results] for m in maps]
    read = [_kept_pairs(a, pairs) for a in axes]
    if None not in read:
        _rewrite(reader, reshaped, value, read, pairs)  # type: ignore[arg-type]


REASSOCIATING = ("tensor.collapse_shape", "tensor.expand_shape")


def _pairs(reshape: ir.Operation) -> list[Pair]:
    groups = [[int(i) for i in g] for g in ir.ArrayAttr(reshape.attributes["reassociation"])]
    if reshape.name == "tensor.expand_shape":
        return [([i], group) for i, group in enumerate(groups)]
    return [(group, [i]) for i, group in enumerate(groups)]


def _is_elementwise(op: ir.Operation) -> bool:
    """Whether an op computes one new tensor, in the order of its axes, not knowing where it is."""
    if not build.is_elementwise(op) or len(op.results) != 1:
        return False
    inside = [o.operation.name for o in op.regions[0].blocks[0].operations]
    init = op.operands[len(op.operands) - 1]
    is_new = not isinstance(init.owner, ir.Block) and init.owner.name == "tensor.empty"
    maps = build.indexing_maps(op)
    return (
        is_new
        and "linalg.index" not in inside
        and build.is_identity(maps[-1])
        and all(m.is_projected_permutation for m in maps)
        and all(isinstance(v.type, ir.RankedTensorType) for v in op.operands)
    )


def _kept_pairs(axes: Sequence[int], pairs: Sequence[Pair]) -> list[Pair] | None:
    """The pairs that the axes of an operand are, in its order; None where it has only a part of
    one, or not side by side.
    """
    found, rest = [], list(axes)
    while rest:
        pair = next((p for p in pairs if p[1] == rest[: len(p[1])]), None)
        if pair is None:
            return None
        found.append(pair)
        rest = rest[len(pair[1]) :]
    return found


def _rewrite(
    reader: ir.Operation,
    reshaped: ir.Value,
    value: ir.Value,
    read: Sequence[Sequence[Pair]],
    pairs: Sequence[Pair],
) -> None:
    shape = build.static_shape(value)
    element = build.element_of(reader.results[0])
    rank = len(shape)
    with ir.InsertionPoint(reader), reader.location:
        inputs = [
            value
            if operand == reshaped
            else build.reshape(operand, [shape[a] for own, _ in kept for a in own])
            for operand, kept in zip(list(reader.operands)[:-1], read, strict=True)
        ]
        operands = [*inputs, build.empty(shape, element)]
        new = reader.clone()
        new.move_before(reader)
        for i, operand in enumerate(operands):
            new.operands[i] = operand
        new.results[0].set_type(build.tensor_type(shape, element))
        axes = [[a for own, _ in kept for a in own] for kept in [*read, pairs]]
        maps = [ir.AffineMapAttr.get(build.affine_map(rank, a)) for a in axes]
        parallel = ir.Attribute.parse("#linalg.iterator_type<parallel>")
        new.attributes["indexing_maps"] = ir.ArrayAttr.get(maps)
        new.attributes["iterator_types"] = ir.ArrayAttr.get([parallel] * rank)
        old = build.reshape(new.results[0], build.static_shape(reader.results[0]))
    reader.results[0].replace_all_uses_with(old)
    reader.erase()
