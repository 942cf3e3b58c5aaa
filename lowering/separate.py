# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-separate-reductions: what reduces, and what repeats the result, in two dispatches.

IREE 3.13 fuses a reduction with an op that reads its result at other positions than its own, as `x
/ sum(x, axis=0)` does, and with what widens the elements that it reads. In SPIR-V the threads of
such a dispatch hand elements to each other in the memory of their workgroup, with no barrier
between writing and reading them: wherever a workgroup is more than one subgroup the numbers are
wrong, in silence.
"""

from ..dialect.control import symbols
from ..dialect.mlir import func, ir
from . import storage
from .linalg import build
from .passes import gradopt_pass


@gradopt_pass("gradopt-separate-reductions")
def separate(module: ir.Module) -> None:
    """Keep IREE from fusing reductions with ops that read the result at other positions than their
    own. Runs on linalg, for targets whose code is SPIR-V.
    """
    module.operation.context.allow_unregistered_dialects = True  # for IREE's own ops
    for function in symbols(module).values():
        if not function.is_external:
            separate_in(function)


def separate_in(function: func.FuncOp) -> None:
    """The same in a function."""
    reduced: set[ir.Value] = set()  # results of reductions, and what ops make of them in place
    barred: dict[ir.Value, ir.Value] = {}
    for op in [o.operation for block in function.body.blocks for o in block.operations]:
        if not op.name.startswith("linalg.") or op.name == "linalg.fill":
            continue
        reduces, follows = not build.is_elementwise(op), False  # named ops reduce
        for i, value in enumerate(list(op.operands)):
            widened = reduces and _is_widened(storage.root(value))
            if not widened and storage.root(value) not in reduced:
                continue
            if not reduces and _reads_in_place(op, i, value):
                follows = True
                continue
            if value not in barred:
                with ir.InsertionPoint(op), op.location:
                    barred[value] = build.fusion_barrier(value)
            op.operands[i] = barred[value]
        if reduces or follows:
            reduced.update(op.results)


def _is_widened(value: ir.Value) -> bool:
    """Whether a value is made element by element of narrower ones. IREE makes such values anew in
    each dispatch that reads them, in the memory of the workgroup again where that reduces them.
    """
    made = value.owner
    if isinstance(made, ir.Block) or not build.is_elementwise(made):
        return False
    return min(map(_width, made.operands)) < _width(value)


def _width(value: ir.Value) -> int:
    """Bits of an element; 0 where they are not known."""
    return getattr(ir.ShapedType(value.type).element_type, "width", 0)


def _reads_in_place(op: ir.Operation, operand: int, value: ir.Value) -> bool:
    """Whether each step of an op reads a value at the step's own position."""
    if storage.root(value) != value:
        return False
    return build.is_identity(build.indexing_maps(op)[operand])
