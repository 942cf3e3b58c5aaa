# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-generic-gathers: rows of a table, read in the body of a generic.

IREE 3.13 has no form in SPIR-V for some of its own gathers ("failed to get lowering
configuration").
"""

from ..dialect.control import symbols
from ..dialect.mlir import arith, ir, tensor
from .linalg import build
from .passes import gradopt_pass

GATHER = "iree_linalg_ext.gather"


@gradopt_pass("gradopt-generic-gathers")
def generic_gathers(module: ir.Module) -> None:
    """Replace IREE's gathers with generics. Runs on linalg, for targets whose code is SPIR-V."""
    module.operation.context.allow_unregistered_dialects = True  # for IREE's own ops
    for function in symbols(module).values():
        if function.is_external:
            continue
        for op in [o.operation for block in function.body.blocks for o in block.operations]:
            if op.name == GATHER:
                with ir.InsertionPoint(op), op.location:
                    op.results[0].replace_all_uses_with(gathered(*op.operands))
                op.erase()


def gathered(table: ir.Value, rows: ir.Value, out: ir.Value) -> ir.Value:
    """table[rows[i, 0], j] for every place of `out`, with rows in range."""
    table = build.read_at(table)

    def body(row: ir.Value, _: ir.Value) -> list[ir.Value]:
        at = [arith.index_cast(ir.IndexType.get(), row), build.loop_index(1)]
        return [tensor.extract(table, at)]

    zero = ir.AffineExpr.get_constant(0)
    kinds = [build.PARALLEL, build.PARALLEL]
    return build.generic([(build.read_at(rows), [0, zero])], [(out, [0, 1])], kinds, body)[0]
