# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-spirv-forms: what IREE 3.13 cannot compile to SPIR-V, in forms that it can.

Of its own gathers it has none for some ("failed to get lowering configuration"): rows of a table
are read in the body of a generic. Its scatters run on one thread: they get one thread a column.
Products of bfloat16 fail where it vectorizes them ("failed to legalize 'vector.bitcast'"), and so
do they where their result is rounded to it in the same dispatch: both conversions are in dispatches
of their own.
"""

from ..dialect.control import symbols
from ..dialect.mlir import arith, ir, tensor
from .linalg import build
from .passes import gradopt_pass, operations

GATHER = "iree_linalg_ext.gather"
SCATTER = "iree_linalg_ext.scatter"
COLUMNS = (
    "#iree_codegen.compilation_info<lowering_config = #iree_codegen.lowering_config<"
    "tile_sizes = [[0, 64], [0, 1]]>, translation_info = #iree_codegen.translation_info<"
    "pipeline = #iree_gpu.spirv_pipeline<BaseDistribute> workgroup_size = [64, 1, 1]>>"
)
"""How a scatter of rows is spread: 64 columns a workgroup, one a thread, each all rows in order.
Alone, one thread takes rows times columns steps, and Mesa's software device ends the loops of a
thread, in silence, after 65535 steps. A single column stays on one thread: all of them would add
the same.
"""
PRODUCTS = ("linalg.matmul", "linalg.batch_matmul", "linalg.conv")


@gradopt_pass("gradopt-spirv-forms")
def spirv_forms(module: ir.Module) -> None:
    """Replace what IREE cannot compile to SPIR-V. Runs on linalg."""
    module.operation.context.allow_unregistered_dialects = True  # for IREE's own ops
    for function in symbols(module).values():
        if function.is_external:
            continue
        for op in operations(function):
            with ir.InsertionPoint(op), op.location:
                if op.name == GATHER:
                    op.results[0].replace_all_uses_with(gathered(*op.operands))
                    op.erase()
                elif op.name == SCATTER and build.static_shape(op.results[0])[1] != 1:
                    op.attributes["compilation_info"] = ir.Attribute.parse(COLUMNS)
                elif op.name.startswith(PRODUCTS) and _is_of_bfloat16(op):
                    op.results[0].replace_all_uses_with(widened(op))
                    op.erase()


def _is_of_bfloat16(op: ir.Operation) -> bool:
    *inputs, _ = op.operands
    return any(isinstance(build.element_of(x), ir.BF16Type) for x in inputs)


def widened(op: ir.Operation) -> ir.Value:
    """A named product of operands converted to its result's type."""
    *inputs, out = op.operands
    wide = build.element_of(out)

    def convert(x: ir.Value) -> ir.Value:
        found = build.elementwise([x], wide, lambda v: arith.extf(wide, v))
        return build.fusion_barrier(found)

    attributes = {n: op.attributes[n] for n in op.attributes if n != "operandSegmentSizes"}
    return build.fusion_barrier(
        build.named(op.name, [convert(x) for x in inputs], out, **attributes)
    )


def gathered(table: ir.Value, rows: ir.Value, out: ir.Value) -> ir.Value:
    """table[rows[i, 0], j] for every place of `out`, with rows in range."""
    table = build.read_at(table)

    def body(row: ir.Value, _: ir.Value) -> list[ir.Value]:
        at = [arith.index_cast(ir.IndexType.get(), row), build.loop_index(1)]
        return [tensor.extract(table, at)]

    zero = ir.AffineExpr.get_constant(0)
    kinds = [build.PARALLEL, build.PARALLEL]
    return build.generic([(build.read_at(rows), [0, zero])], [(out, [0, 1])], kinds, body)[0]
