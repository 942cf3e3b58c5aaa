# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How ops that are not of MLIR's linalg are written in the memref form, and what shapes their
results have where the types do not say. `writer` is the memref.Writer of the function.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ..dialect.mlir import DYNAMIC, arith, ir, linalg, memref
from .linalg import build
from .memref_build import (
    Extent,
    copy,
    elementwise,
    extents,
    integer,
    kept_axes,
    loops,
    memref_of,
    only_unknown,
    subview,
)
from .passes import failure
from .storage import viewed


def write_constant(writer: Any, op: ir.Operation) -> None:
    kind = memref_of(op.results[0].type)
    name = writer.new_name("constant")
    with ir.InsertionPoint(writer.function):
        ir.Operation.create(
            "memref.global",
            attributes={
                "sym_name": ir.StringAttr.get(name),
                "sym_visibility": ir.StringAttr.get("private"),
                "type": ir.TypeAttr.get(kind),
                "initial_value": op.attributes["value"],
                "constant": ir.UnitAttr.get(),
                "alignment": ir.IntegerAttr.get(integer(64), 64),
            },
        )
    writer.memrefs[op.results[0]] = memref.get_global(kind, name)


def write_same(writer: Any, op: ir.Operation) -> None:
    for result in op.results:
        writer.memrefs[result] = writer.memref(viewed(result))


def write_cast(writer: Any, op: ir.Operation) -> None:
    kind = memref_of(op.results[0].type)
    writer.memrefs[op.results[0]] = memref.cast(kind, writer.memref(op.operands[0]))


def write_reshape(writer: Any, op: ir.Operation) -> None:
    source, *sizes = op.operands
    kept = [a for a in ("reassociation", "static_output_shape") if a in op.attributes]
    writer.memrefs[op.results[0]] = ir.Operation.create(
        op.name.replace("tensor.", "memref."),
        results=[memref_of(op.results[0].type)],
        operands=[writer.memref(source), *sizes],
        attributes={a: op.attributes[a] for a in kept},
    ).results[0]


def write_extract_slice(writer: Any, op: ir.Operation) -> None:
    part = subview(
        writer.memref(op.operands[0]), *slice_of(op, 1), rank=build.rank_of(op.results[0])
    )
    writer.memrefs[op.results[0]] = place = writer.place(op.results[0])
    copy(part, place)


def write_insert_slice(writer: Any, op: ir.Operation) -> None:
    source, into = list(op.operands)[:2]
    place = writer.written(op.results[0], into, True)
    part = subview(place, *slice_of(op, 2), rank=build.rank_of(source))
    copy(writer.memref(source), part)


def write_concat(writer: Any, op: ir.Operation) -> None:
    axis = op.attributes["dim"].value
    writer.memrefs[op.results[0]] = place = writer.place(op.results[0])
    rank = build.rank_of(op.results[0])
    at: Extent = 0
    for value in op.operands:
        source = writer.memref(value)
        shape = extents(source)
        start: list[Extent] = [at if a == axis else 0 for a in range(rank)]
        copy(source, subview(place, start, shape, [1] * rank, rank))
        at = build.plus(at, shape[axis])


def write_pad(writer: Any, op: ir.Operation) -> None:
    source = writer.memref(op.operands[0])
    writer.memrefs[op.results[0]] = place = writer.place(op.results[0])
    block = op.regions[0].blocks[0]
    rank = len(block.arguments)
    used = any(list(argument.uses) for argument in block.arguments)

    def edge(*_: ir.Value) -> list[ir.Value]:
        return inlined(block, [linalg.IndexOp(a).result for a in range(rank)] if used else [])

    elementwise([], place, edge)
    low = mixed(op.attributes["static_low"], iter(list(op.operands)[1:]))
    copy(source, subview(place, low, extents(source), [1] * rank, rank))


def write_gather(writer: Any, op: ir.Operation) -> None:
    table, where, out = op.operands
    _check_rows(op, where)
    table, where = writer.memref(table), writer.memref(where)
    place = writer.written(op.results[0], out, False)
    rank = build.rank_of(out)

    def row(_: ir.Value) -> list[ir.Value]:
        at = [linalg.IndexOp(a).result for a in range(rank)]
        found = memref.load(where, [at[0], build.index(0)])
        return [memref.load(table, [arith.index_cast(ir.IndexType.get(), found), *at[1:]])]

    elementwise([], place, row)


def write_scatter(writer: Any, op: ir.Operation) -> None:
    """In the order of the updates."""
    updates, where, table = op.operands
    _check_rows(op, where)
    updates, where = writer.memref(updates), writer.memref(where)
    place = writer.written(op.results[0], table, True)
    block = op.regions[0].blocks[0]

    def write(*at: ir.Value) -> None:
        found = memref.load(where, [at[0], build.index(0)])
        target = [arith.index_cast(ir.IndexType.get(), found), *at[1:]]
        new = inlined(block, [memref.load(updates, list(at)), memref.load(place, target)])
        memref.store(new[0], place, target)

    loops(extents(updates), write)


def write_scan(writer: Any, op: ir.Operation) -> None:
    source, out, carry = op.operands
    axis = op.attributes["dimension"].value
    if not ir.BoolAttr(op.attributes["inclusive"]).value:
        raise unexpected(op)
    source = writer.memref(source)
    place = writer.written(op.results[0], out, False)
    total = writer.written(op.results[1], carry, True)
    block = op.regions[0].blocks[0]

    def write(*at: ir.Value) -> None:
        rest = [i for a, i in enumerate(at) if a != axis]
        new = inlined(block, [memref.load(total, rest), memref.load(source, list(at))])
        memref.store(new[0], place, list(at))
        memref.store(new[0], total, rest)

    loops(extents(source), write)


def slice_shape(writer: Any, op: ir.Operation) -> list[Extent]:
    sizes = slice_of(op, 1)[1]
    kept = kept_axes(sizes, build.rank_of(op.results[0]))
    return [sizes[a] for a in kept]


def concat_shape(writer: Any, op: ir.Operation) -> list[Extent]:
    axis = op.attributes["dim"].value
    shapes = [extents(writer.memref(v)) for v in op.operands]
    along = functools.reduce(build.plus, [s[axis] for s in shapes])
    shape = [along if a == axis else n for a, n in enumerate(shapes[0])]
    return only_unknown(shape, op.results[0])


def pad_shape(writer: Any, op: ir.Operation) -> list[Extent]:
    rest = iter(list(op.operands)[1:])
    low = mixed(op.attributes["static_low"], rest)
    high = mixed(op.attributes["static_high"], rest)
    shape = extents(writer.memref(op.operands[0]))
    padded = [build.plus(build.plus(n, a), b) for n, a, b in zip(shape, low, high, strict=True)]
    return only_unknown(padded, op.results[0])


def into_shape(writer: Any, op: ir.Operation) -> list[Extent]:
    into = op.operands[1] if op.name == "tensor.insert_slice" else op.operands[2]
    return only_unknown(writer.shape(into), op.results[0])


WRITERS: dict[str, Callable[[Any, ir.Operation], None]] = {
    "arith.constant": write_constant,
    "iree_linalg_ext.gather": write_gather,
    "iree_linalg_ext.scan": write_scan,
    "iree_linalg_ext.scatter": write_scatter,
    "iree_tensor_ext.compute_barrier.start": write_same,
    "tensor.cast": write_cast,
    "tensor.collapse_shape": write_reshape,
    "tensor.concat": write_concat,
    "tensor.expand_shape": write_reshape,
    "tensor.extract_slice": write_extract_slice,
    "tensor.insert_slice": write_insert_slice,
    "tensor.pad": write_pad,
    "util.optimization_barrier": write_same,
}
SHAPES: dict[str, Callable[[Any, ir.Operation], list[Extent]]] = {
    "tensor.concat": concat_shape,
    "tensor.extract_slice": slice_shape,
    "tensor.insert_slice": into_shape,
    "tensor.pad": pad_shape,
}
READS = ("tensor.extract", "tensor.dim")
INITS = {"iree_linalg_ext.gather": 1, "iree_linalg_ext.scatter": 1, "iree_linalg_ext.scan": 2}
"""IREE's ops and how many of their last operands their results are written into."""


def is_destination_passing(op: ir.Operation) -> bool:
    return op.name in INITS or op.name.startswith("linalg.")


def inits(op: ir.Operation) -> list[ir.Value]:
    """The operands that give the results' shapes and, if they are read, their first elements."""
    return list(op.operands)[-INITS.get(op.name, len(op.results)) :]


def unexpected(op: ir.Operation) -> Exception:
    message = (
        f"'{op.name}' op expected to be one that gradopt's lowering to linalg makes, or MLIR's"
    )
    return failure([(op.location, message)])


def _check_rows(op: ir.Operation, where: ir.Value) -> None:
    """Raise for a gather or scatter of anything but whole rows, which gradopt does not make."""
    one = list(ir.DenseI64ArrayAttr(op.attributes["dimension_map"])) == [0]
    if not one or build.rank_of(where) != 2 or build.static_shape(where)[1] != 1:
        raise unexpected(op)


def mixed(static: ir.Attribute, unknown: Any) -> list[Extent]:
    """Numbers with DYNAMIC for those that are operands, as extents."""
    return [next(unknown) if n == DYNAMIC else n for n in ir.DenseI64ArrayAttr(static)]


def slice_of(op: ir.Operation, tensors: int) -> tuple[list[Extent], list[Extent], list[Extent]]:
    """Offsets, sizes and strides of a slice op with so many tensor operands."""
    rest = iter(list(op.operands)[tensors:])
    offsets, sizes, strides = (
        mixed(op.attributes[f"static_{name}"], rest) for name in ("offsets", "sizes", "strides")
    )
    return offsets, sizes, strides


def inlined(block: ir.Block, values: Sequence[ir.Value]) -> list[ir.Value]:
    """Move a region's ops here; what it yields, for these arguments, those first that are used."""
    for argument, value in zip(block.arguments, values, strict=False):
        argument.replace_all_uses_with(value)
    *ops, end = [op.operation for op in block.operations]
    for op in ops:
        op.detach_from_parent()
        ir.InsertionPoint.current.insert(op)
    return list(end.operands)
