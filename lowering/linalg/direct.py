# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Sums of products that read their operands where they lie, in the blocks of `blocks.py`.

One generic, with IREE's attribute that says how it is compiled. Its products are `fma(a, b, -0.0)`,
added to the sum, which the compiler makes one instruction of: IREE 3.13 would take a plain product
for a contraction, and unroll that into scalars where it has more loops than three.
"""

from collections.abc import Sequence

from ...dialect.mlir import arith, ir, math, tensor
from ..blocks import Block, Nest, block_of
from . import build
from .build import PARALLEL, REDUCTION

COMPILATION = "compilation_info"
"""IREE's attribute of ops that say themselves how they are compiled."""
EMPTY = "tensor.empty"
MADE_HERE = ("linalg.generic", "linalg.transpose")


def sums_of_products(
    lhs: ir.Value,
    rhs: ir.Value,
    nest: Nest,
    onto: ir.Value | None = None,
) -> ir.Value:
    """out[...] = sum of lhs[...] * rhs[...], added to `onto` where that is given. Where lhs is a
    view the loops of `nest` stay as they are.
    """
    plain = nest.simplified(are_views=_is_view(lhs))
    element = build.element_of(lhs)
    block = block_of(plain, element.width // 8)
    assert block is not None, nest
    *sides, sums = plain.shapes
    operands = [_operand(x, shape) for x, shape in zip((lhs, rhs), sides, strict=True)]
    if onto is None:
        start = build.fill(0, sums, element)
    else:  # IREE would put both sums in one dispatch, and cannot compile two that say how
        start = build.fusion_barrier(build.reshape(onto, sums))
    minus_zero = build.number(-0.0, element)
    contract = arith.FastMathFlags.contract

    def body(a: ir.Value, b: ir.Value, total: ir.Value) -> list[ir.Value]:
        product = math.fma(a, b, minus_zero, fastmath=contract)
        return [arith.addf(total, product, fastmath=contract)]

    inputs = list(zip(operands, (plain.lhs, plain.rhs), strict=True))
    loops = [PARALLEL if i in plain.out else REDUCTION for i in range(len(plain.extents))]
    (total,) = build.generic(inputs, [(start, plain.out)], loops, body)
    total.owner.attributes[COMPILATION] = _compilation(plain, block)
    return build.reshape(total, nest.shapes[2])


def base_of_views(x: ir.Value) -> ir.Value:
    """A tensor that views are to be taken of: IREE may fold none with how it was made, which could
    change their loops.
    """
    return x if isinstance(x.owner, ir.Block) else build.fusion_barrier(x)


def view(
    x: ir.Value, start: Sequence[int], extents: Sequence[int], strides: Sequence[int]
) -> tuple[ir.Value, list[int]]:
    """`extents` places of images (N, *spatial, C), from `start` on, every stride-th: (*places, C),
    and these places. What lies side by side is one axis, and there are none of one element: IREE
    would make it so, and with that change the loops over it.
    """
    n, *spatial, channels = build.static_shape(x)
    axes = [(n, 0, n, 1)]  # size, start, extent, stride
    for size, first, extent, stride in zip(spatial, start, extents, strides, strict=True):
        whole, at, taken, step = axes[-1]
        if extent == size and step == 1:
            axes[-1] = whole * size, at * size, taken * size, 1
        else:
            axes.append((size, first, extent, stride))
    sizes, starts, taken, steps = zip(*axes, strict=True)
    base = build.reshape(x, [*sizes, channels])
    places = [m for m in taken if m != 1]
    if sizes == taken:
        return build.reshape(base, [*places, channels]), places
    kind = build.tensor_type([*places, channels], build.element_of(x))
    piece = [*starts, 0], [*taken, channels], [*steps, 1]
    return tensor.ExtractSliceOp(kind, base, [], [], [], *map(list, piece)).result, places


def _is_view(x: ir.Value) -> bool:
    return not isinstance(x.owner, ir.Block) and x.owner.name == "tensor.extract_slice"


def _operand(x: ir.Value, shape: Sequence[int]) -> ir.Value:
    """An operand in a shape, neither computed again for each block that reads it, nor its reshape
    taken into the loops.
    """
    reshaped = build.reshape(x, shape)
    is_made = not isinstance(x.owner, ir.Block) and x.owner.name in MADE_HERE
    return build.fusion_barrier(reshaped) if is_made or reshaped != x else x


def keep_loops(module: ir.Module) -> None:
    """Keep IREE from taking what follows the sums into their loops, other than elementwise ops at
    the same places: it would change the loops, and what the sums say of them with that.
    """
    found: list[ir.Operation] = []

    def look(op: ir.Operation) -> ir.WalkResult:
        if COMPILATION in op.attributes:
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(look)
    for op in found:
        _reshape_later(op.results[0])
        others = [use for use in op.results[0].uses if not _may_be_fused(use)]
        if others:
            with ir.InsertionPoint.after(op), op.location:
                kept = build.fusion_barrier(op.results[0])
            for use in others:
                use.owner.operands[use.operand_number] = kept


def _reshape_later(sums: ir.Value) -> None:
    """Do an elementwise op on sums in another shape in theirs, and reshape its result."""
    users = [use.owner.operation for use in sums.uses]
    if len(users) != 1 or users[0].name not in build.RESHAPES:
        return
    reshaped = users[0].results[0]
    readers = [use.owner.operation for use in reshaped.uses]
    if len(readers) != 1 or not _is_same_everywhere(readers[0]):
        return
    (reader,) = readers
    shape = build.static_shape(sums)
    with ir.InsertionPoint(reader), reader.location:
        operands = [
            sums if v == reshaped else build.reshape(v, shape) for v in list(reader.operands)[:-1]
        ]
        new = reader.clone()
        element = build.element_of(reader.results[0])
        new.operands[len(operands)] = build.empty(shape, element)
        new.move_before(reader)
        new.results[0].set_type(build.tensor_type(shape, element))
        rank = len(shape)
        maps = [ir.AffineMapAttr.get(ir.AffineMap.get_identity(rank))] * len(new.operands)
        new.attributes["indexing_maps"] = ir.ArrayAttr.get(maps)
        kind = ir.Attribute.parse("#linalg.iterator_type<parallel>")
        new.attributes["iterator_types"] = ir.ArrayAttr.get([kind] * rank)
        for i, operand in enumerate(operands):
            new.operands[i] = operand
        old = build.reshape(new.results[0], build.static_shape(reader.results[0]))
    reader.results[0].replace_all_uses_with(old)
    reader.erase()


def _is_same_everywhere(op: ir.Operation) -> bool:
    """Whether an op computes each element of its one result from those at the same place."""
    if not build.is_elementwise(op) or len(op.results) != 1:
        return False
    inside = [o.operation.name for o in op.regions[0].blocks[0].operations]
    is_placed = "linalg.index" in inside or op.operands[len(op.operands) - 1].owner.name != EMPTY
    return not is_placed and all(map(build.is_identity, build.indexing_maps(op)))


def _may_be_fused(use: ir.OpOperand) -> bool:
    user = use.owner.operation
    if user.name in build.RESHAPES:  # that of a tap's sums, to be joined with others
        sides = [build.static_shape(v) for v in (user.operands[0], user.results[0])]
        return len({tuple(n for n in side if n != 1) for side in sides}) == 1
    return build.is_elementwise(user) and all(
        build.is_identity(build.indexing_maps(user)[i]) for i in (use.operand_number, -1)
    )


def _compilation(nest: Nest, block: Block) -> ir.Attribute:
    steps = [int(i not in nest.out) for i in range(len(nest.extents))]
    levels: dict[str, Sequence[int]] = {
        "distribution": block.workgroup,
        "vector_common_parallel": block.registers,
        "vector_reduction": steps,
    }
    tiles = ", ".join(f"{level} = {list(sizes)}" for level, sizes in levels.items())
    return ir.Attribute.parse(
        f"#iree_codegen.compilation_info<lowering_config = #iree_cpu.lowering_config<{tiles}>, "
        "translation_info = <pipeline = #iree_cpu.pipeline<DoubleTilingExpert>>>"
    )
