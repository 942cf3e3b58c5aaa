# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Several elementwise generics as one with several results."""

import functools
from collections.abc import Sequence

from ..dialect.mlir import ir, linalg
from .linalg import build
from .linalg.build import PARALLEL


def top_level_users(value: ir.Value, group: Sequence[ir.Operation] = ()) -> list[ir.Operation]:
    """The ops of the value's own block that read it, themselves or in their regions, but for those
    of `group`. Fusion barriers read nothing: their users do.
    """
    found: list[ir.Operation] = []
    here = value.owner.operation.block
    for use in value.uses:
        op = use.owner.operation
        while op.block != here:
            op = op.parent.operation
        if op.name == build.FUSION_BARRIER:
            found += top_level_users(op.results[0], group)
        elif op not in group:
            found.append(op)
    return found


def join(group: Sequence[ir.Operation]) -> None:
    """Replace elementwise generics of one domain, each with one result, by one with those of their
    results that others read. Nothing but they themselves may lie between one of them and another.

    IREE fuses nothing into it and it into nothing: of a product with several results it packs wrong
    numbers, or finds no form.
    """
    users = {op.results[0]: top_level_users(op.results[0], group) for op in group}
    kept = [result for result, found in users.items() if found]
    inputs: dict[tuple[ir.Value, str], tuple[ir.Value, ir.AffineMap]] = {}
    for op in group:
        for value, found in zip(_reads(op), build.indexing_maps(op), strict=False):
            if build.unbarred(value) not in users:
                inputs.setdefault((value, str(found)), (value, found))
    first = _earliest([user for found in users.values() for user in found])
    _hoist([value for value, _ in inputs.values()], group, first)
    with ir.InsertionPoint(first), group[-1].location:
        made = _generic(list(inputs.values()), kept)
        results = [build.fusion_barrier(r) for r in made.results]
    place = dict(zip(inputs, made.regions[0].blocks[0].arguments, strict=False))
    _move_bodies(group, place, made, kept)
    for old, new in zip(kept, results, strict=True):
        old.replace_all_uses_with(new)
    for new in results:
        _drop_barriers(new)
    for op in reversed(group):
        _drop_barriers(op.results[0])
        op.erase()


def _reads(op: ir.Operation) -> list[ir.Value]:
    return list(op.operands)[:-1]


def _earliest(ops: Sequence[ir.Operation]) -> ir.Operation:
    first = ops[0]
    for op in ops[1:]:
        if op.is_before_in_block(first):
            first = op
    return first


def _hoist(values: Sequence[ir.Value], group: Sequence[ir.Operation], first: ir.Operation) -> None:
    """Have what makes values, and what the bodies of `group` read, stand before `first`."""
    late: dict[ir.Value, ir.Operation] = {}
    todo = [*values, *(v for op in group for v in captured(op))]
    while todo:
        value = todo.pop()
        owner = value.owner
        if isinstance(owner, ir.Block) or value in late:
            continue
        if owner.operation.block != first.block or owner.operation.is_before_in_block(first):
            continue
        late[value] = owner.operation
        todo += [*owner.operands, *captured(owner.operation)]
    before = functools.cmp_to_key(lambda a, b: -1 if a.is_before_in_block(b) else a != b)
    for op in sorted(late.values(), key=before):
        op.move_before(first)


def captured(op: ir.Operation) -> set[ir.Value]:
    """What the regions of an op read, values from around it among them."""
    blocks = [block for region in op.regions for block in region.blocks]
    inner = [o.operation for block in blocks for o in block.operations]
    return {v for o in inner for v in o.operands}.union(*map(captured, inner))


def _generic(
    inputs: Sequence[tuple[ir.Value, ir.AffineMap]], kept: Sequence[ir.Value]
) -> ir.Operation:
    """A generic with an empty body over the positions of the results that it is to have."""
    rank = build.rank_of(kept[0])
    given = [build.fusion_barrier(v) if _is_reduced(v) else v for v, _ in inputs]
    outs = [build.empty(build.static_shape(r), build.element_of(r)) for r in kept]
    maps = [found for _, found in inputs] + [ir.AffineMap.get_identity(rank)] * len(outs)
    kinds = [ir.Attribute.parse(f"#linalg.iterator_type<{PARALLEL}>")] * rank
    made = linalg.GenericOp(
        [r.type for r in kept],
        given,
        outs,
        ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps]),
        ir.ArrayAttr.get(kinds),
    ).operation
    made.regions[0].blocks.append(*[build.element_of(v) for v in [*given, *outs]])
    return made


def _is_reduced(value: ir.Value) -> bool:
    owner = value.owner
    return (
        not isinstance(owner, ir.Block)
        and owner.name.startswith("linalg.")
        and not build.is_elementwise(owner.operation)
    )


def _move_bodies(
    group: Sequence[ir.Operation],
    place: dict[tuple[ir.Value, str], ir.Value],
    made: ir.Operation,
    kept: Sequence[ir.Value],
) -> None:
    """Have the bodies of `group` one after the other in that of `made`; `place` has the elements
    that it reads.
    """
    body = made.regions[0].blocks[0]
    results: dict[ir.Value, ir.Value] = {}
    for op in group:
        old = op.regions[0].blocks[0]
        for value, found, element in zip(
            _reads(op), build.indexing_maps(op), old.arguments, strict=False
        ):
            made_here = results.get(build.unbarred(value))
            element.replace_all_uses_with(made_here or place[value, str(found)])
        *inner, end = [o.operation for o in old.operations]
        for o in inner:
            body.append(o)
        results[op.results[0]] = end.operands[0]
    with ir.InsertionPoint(body), made.location:
        linalg.YieldOp([results[r] for r in kept])


def _drop_barriers(value: ir.Value) -> None:
    """Have what reads a value behind further fusion barriers, be it several, read it as it is."""
    while barriers := [u.owner for u in value.uses if u.owner.name == build.FUSION_BARRIER]:
        for barrier in barriers:
            barrier.results[0].replace_all_uses_with(value)
            barrier.operation.erase()
