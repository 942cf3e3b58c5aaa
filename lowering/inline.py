# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-inline: calls replaced by the bodies they call."""

from collections.abc import Sequence

from ..dialect.control import symbols
from ..dialect.mlir import func, ir
from .passes import failure, gradopt_pass


@gradopt_pass("gradopt-inline")
def inline(module: ir.Module) -> None:
    """Replace every call of a function of the module by the function's body."""
    functions = symbols(module)
    for function in functions.values():
        if function.is_external:
            continue
        for op in list(function.entry_block.operations):
            if isinstance(op, func.CallOp) and _has_body(functions, op):
                with ir.InsertionPoint(op):
                    results = clone_body(
                        functions,
                        functions[callee_of(op)],
                        list(op.operation.operands),
                        (function,),
                    )
                for old, new in zip(op.operation.results, results, strict=True):
                    old.replace_all_uses_with(new)
                op.operation.erase()


def clone_body(
    functions: dict[str, func.FuncOp],
    callee: func.FuncOp,
    operands: Sequence[ir.Value],
    callers: tuple[func.FuncOp, ...] = (),
) -> list[ir.Value]:
    """Append a copy of a function's body on `operands` at the current insertion point, calls in it
    inlined too.

    Returns the values that the function returns. Raises PassError for recursion.
    """
    if callee in callers:
        raise failure(
            [
                (
                    callee.location,
                    f"expected no recursion, got @{callee.name.value} calling itself; unroll it",
                )
            ]
        )
    mapping: dict[ir.Value, ir.Value] = dict(
        zip(callee.entry_block.arguments, operands, strict=True)
    )
    for op in callee.entry_block.operations:
        values = [mapping[o] for o in op.operation.operands]
        if isinstance(op, func.ReturnOp):
            return values
        if isinstance(op, func.CallOp) and _has_body(functions, op):
            results = clone_body(functions, functions[callee_of(op)], values, (*callers, callee))
        else:
            copy = op.operation.clone()
            for i, value in enumerate(values):
                copy.operands[i] = value
            results = list(copy.results)
        mapping.update(zip(op.operation.results, results, strict=True))
    raise failure([(callee.location, f"expected a return in @{callee.name.value}")])


def callee_of(op: func.CallOp) -> str:
    return op.operation.attributes["callee"].value


def _has_body(functions: dict[str, func.FuncOp], op: func.CallOp) -> bool:
    return callee_of(op) in functions and not functions[callee_of(op)].is_external
