# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Sums of products that read their operands where they lie, in the blocks of `blocks.py`.

One generic, with IREE's attribute that says how it is compiled. Its products are `fma(a, b, -0.0)`,
added to the sum, which the compiler makes one instruction of: IREE 3.13 would take a plain product
for a contraction, and unroll that into scalars where it has more loops than three.
"""

from collections.abc import Iterator, Sequence

from ...dialect.mlir import arith, func, ir, math, tensor
from ..blocks import Block, Nest, block_of
from ..marks import DONATED
from ..passes import operations
from . import build
from .build import PARALLEL, REDUCTION, Extent
from .reshape_later import reshape_later

COMPILATION = "compilation_info"
"""IREE's attribute of ops that say themselves how they are compiled."""
TILED = "iree.opt.data_tiling"
"""IREE's mark of products whose operands are to be packed into tiles. Where it finds one, be it on
another op, it looks for no more itself: it would take for products what only looks like one, the
column sums of x * y (three times slower then) and the rows of a plain sum.
"""
MADE_HERE = ("linalg.fill", "linalg.generic", "linalg.transpose")


def sums_of_products(
    lhs: ir.Value,
    rhs: ir.Value,
    nest: Nest,
    onto: ir.Value | None = None,
    are_views: bool = False,
) -> ir.Value:
    """out[...] = sum of lhs[...] * rhs[...], added to `onto` where that is given. With `are_views`
    the loops of `nest` stay as they are.
    """
    plain = nest.simplified(are_views)
    element = build.element_of(lhs)
    block = block_of(plain, element.width // 8)
    assert block is not None, nest
    *sides, sums = plain.shapes
    operands = [_operand(x, shape) for x, shape in zip((lhs, rhs), sides, strict=True)]
    if onto is None:
        start = no_sums(sums, element)
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


def no_sums(shape: Sequence[Extent], element: ir.Type) -> ir.Value:
    """Zeros for sums to start from, marked."""
    new = build.empty(shape, element)
    new.owner.attributes[TILED] = ir.UnitAttr.get()
    return build.named("linalg.fill", [build.number(0, element)], new)


def base_of_views(x: ir.Value) -> ir.Value:
    """A tensor that views are to be taken of: IREE may fold none with how it was made, which could
    change their loops.
    """
    return x if isinstance(x.owner, ir.Block) else build.fusion_barrier(x)


Axis = tuple[int, int, int, int]
"""Of an axis of a view: the size of the whole, where it starts, its extent and its stride."""


def view(
    x: ir.Value, start: Sequence[int], extents: Sequence[int], strides: Sequence[int]
) -> tuple[ir.Value, list[int]]:
    """`extents` places of images (N, *spatial, C), from `start` on, every stride-th: (*places, C),
    and these places, as `views` has them.
    """
    (one,), places = views([(x, start, strides)], extents)
    return one, places


def views(
    images: Sequence[tuple[ir.Value, Sequence[int], Sequence[int]]], extents: Sequence[int]
) -> tuple[list[ir.Value], list[int]]:
    """As many places of several images (N, *spatial, C), each from its start on by its strides:
    (*places, C), and the places. What lies side by side in all is one axis, and there are none of
    one element: IREE would make it so, and with that change the loops over it.
    """
    n = build.static_shape(images[0][0])[0]
    axes: list[list[Axis]] = [[(n, 0, n, 1)] for _ in images]
    for axis, extent in enumerate(extents):
        sizes = [build.static_shape(x)[axis + 1] for x, _, _ in images]
        is_whole = all(
            size == extent and strides[axis] == 1 == found[-1][3]
            for size, found, (_, _, strides) in zip(sizes, axes, images, strict=True)
        )
        for size, found, (_, start, strides) in zip(sizes, axes, images, strict=True):
            whole, at, taken, _ = found[-1]
            if is_whole:
                found[-1] = whole * size, at * size, taken * size, 1
            else:
                found.append((size, start[axis], extent, strides[axis]))
    places = [taken for _, _, taken, _ in axes[0] if taken != 1]
    return [_piece(x, a, places) for (x, _, _), a in zip(images, axes, strict=True)], places


def _piece(x: ir.Value, axes: Sequence[Axis], places: Sequence[int]) -> ir.Value:
    sizes, starts, taken, steps = zip(*axes, strict=True)
    channels = build.static_shape(x)[-1]
    base = build.reshape(x, [*sizes, channels])
    if sizes == taken:
        return build.reshape(base, [*places, channels])
    kind = build.tensor_type([*places, channels], build.element_of(x))
    piece = [*starts, 0], [*taken, channels], [*steps, 1]
    return tensor.ExtractSliceOp(kind, base, [], [], [], *map(list, piece)).result


def _operand(x: ir.Value, shape: Sequence[int]) -> ir.Value:
    """An operand in a shape, neither computed again for each block that reads it, nor its reshape
    taken into the loops, nor one number in the place of a tensor filled with it: blocks of such
    sums are four times as slow.
    """
    reshaped = build.reshape(x, shape)
    is_made = not isinstance(x.owner, ir.Block) and (x.owner.name in MADE_HERE or _is_splat(x))
    return build.fusion_barrier(reshaped) if is_made or reshaped != x else x


def _is_splat(x: ir.Value) -> bool:
    op = x.owner
    return op.name == "arith.constant" and ir.DenseElementsAttr(op.attributes["value"]).is_splat


def keep_loops(function: func.FuncOp) -> None:
    """Keep IREE from taking what follows the sums into their loops, other than elementwise ops at
    the same places: it would change the loops, and what the sums say of them with that.

    Updates of donated arguments are kept apart, too. What IREE makes of an elementwise op alone may
    overwrite the old value (runtime/compile_arena.py); with the sums the new one would need memory
    of its own.
    """
    donated = donated_arguments(function)
    for op in [op for op in operations(function) if COMPILATION in op.attributes]:
        reshape_later(op.results[0])
        _keep_updates(op.results[0], donated)
        others = [use for use in op.results[0].uses if not _may_be_fused(use)]
        if others:
            with ir.InsertionPoint.after(op), op.location:
                kept = build.fusion_barrier(op.results[0])
            for use in others:
                use.owner.operands[use.operand_number] = kept


def donated_arguments(function: func.FuncOp) -> set[ir.Value]:
    """The arguments whose storage a result takes over."""
    attributes = function.arg_attrs if "arg_attrs" in function.attributes else []
    arguments = function.entry_block.arguments
    return {a for a, about in zip(arguments, attributes, strict=False) if DONATED in about}


def _keep_updates(sums: ir.Value, donated: set[ir.Value]) -> None:
    """Keep elementwise ops that read donated arguments from being done together with the sums."""
    for use in list(sums.uses):
        user = use.owner.operation
        if user.name in (*build.RESHAPES, "linalg.transpose"):
            _keep_updates(user.results[0], donated)
        elif build.is_elementwise(user) and donated & set(_read_in_place(user)):
            with ir.InsertionPoint(user), user.location:
                user.operands[use.operand_number] = build.fusion_barrier(sums)


def _read_in_place(op: ir.Operation) -> Iterator[ir.Value]:
    """What an elementwise op reads, each element for that of the result, before any reshape."""
    for value, read in zip(op.operands, build.indexing_maps(op), strict=True):
        if build.is_identity(read):
            while not isinstance(value.owner, ir.Block) and value.owner.name in build.RESHAPES:
                value = value.owner.operands[0]
            yield value


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
