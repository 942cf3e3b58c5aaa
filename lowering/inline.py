# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-inline: calls replaced by the bodies they call."""

from collections.abc import Callable, Sequence

from ..dialect.control import symbols
from ..dialect.mlir import func, ir
from .passes import failure, gradopt_pass, single_block

Functions = dict[str, func.FuncOp]


@gradopt_pass("gradopt-inline")
def inline(module: ir.Module) -> None:
    """Replace every call of a function of the module by the function's body."""
    functions = symbols(module)
    for name in callees_first(functions, called):
        for op in calls_in(functions[name]):
            if _has_body(functions, op):
                with ir.InsertionPoint(op):
                    callee = functions[callee_of(op)]
                    results = clone_body(functions, callee, list(op.operation.operands))
                for old, new in zip(op.operation.results, results, strict=True):
                    old.replace_all_uses_with(new)
                op.operation.erase()


def callees_first(
    functions: Functions, names_in: Callable[[func.FuncOp], Sequence[str]]
) -> list[str]:
    """The functions so that what a function names (`names_in`) stands before it. Raises PassError
    for recursion.
    """
    order: list[str] = []
    done: set[str] = set()
    for root in functions:
        path, pending = [root], [list(names_in(functions[root]))]
        while path:
            while pending[-1] and (pending[-1][-1] in done or pending[-1][-1] not in functions):
                pending[-1].pop()
            if pending[-1]:
                name = pending[-1].pop()
                if name in path:
                    cycle = " -> @".join([*path[path.index(name) :], name])
                    where = functions[name].location
                    raise failure([(where, f"expected no recursion, got @{cycle}; unroll it")])
                path.append(name)
                pending.append(list(names_in(functions[name])))
                continue
            pending.pop()
            name = path.pop()
            if name not in done:
                done.add(name)
                order.append(name)
    return order


def called(function: func.FuncOp) -> list[str]:
    """The functions that a function calls, last one first."""
    return [callee_of(op) for op in reversed(calls_in(function))]


def calls_in(function: func.FuncOp) -> list[func.CallOp]:
    """The calls in a function, those in regions of its ops included."""
    found: list[func.CallOp] = []
    if function.is_external:
        return found
    single_block(function)

    def look(op: ir.Operation) -> ir.WalkResult:
        if isinstance(op.opview, func.CallOp):
            found.append(op.opview)
        return ir.WalkResult.ADVANCE

    function.operation.walk(look)
    return found


def clone_body(
    functions: Functions,
    callee: func.FuncOp,
    operands: Sequence[ir.Value],
    also: Sequence[ir.Value] = (),
    keep: Callable[[func.FuncOp], bool] = lambda function: False,
) -> list[ir.Value]:
    """Append a copy of a function's body on `operands` at the current insertion point, calls in it
    inlined too, but those of functions to `keep`. No function may be recursive.

    Returns the values that the function returns, then the copies of `also`, values in its body.
    """
    frames = [_Frame(callee, operands)]
    while True:
        frame = frames[-1]
        op = next(frame.ops)
        if isinstance(op, func.ReturnOp):
            frames.pop()
            if not frames:
                return frame.inside([*op.operation.operands, *also])
            frames[-1].enter(frames[-1].call.results, frame.inside(op.operation.operands))
        elif (
            isinstance(op, func.CallOp)
            and _has_body(functions, op)
            and not keep(functions[callee_of(op)])
        ):
            frame.call = op.operation
            frames.append(_Frame(functions[callee_of(op)], frame.inside(op.operation.operands)))
        else:
            copy = op.operation.clone()
            frame.rewire(copy)
            frame.enter(op.operation.results, list(copy.results))


class _Frame:
    """One function being copied: where the copy is, and what stands for its values."""

    def __init__(self, callee: func.FuncOp, operands: Sequence[ir.Value]) -> None:
        block = single_block(callee)
        self.ops = iter(list(block.operations))
        self.values: dict[ir.Value, ir.Value] = {}
        self.call: ir.Operation = None  # type: ignore[assignment]  # the call being copied
        self.enter(block.arguments, operands)

    def enter(self, old: Sequence[ir.Value], new: Sequence[ir.Value]) -> None:
        self.values.update(zip(old, new, strict=True))

    def inside(self, values: Sequence[ir.Value]) -> list[ir.Value]:
        return [self.values[v] for v in values]

    def rewire(self, copy: ir.Operation) -> None:
        """Give a copied op, and the ops in its regions, the values of the copy."""

        def on(op: ir.Operation) -> ir.WalkResult:
            for i, value in enumerate(op.operands):
                if value in self.values:
                    op.operands[i] = self.values[value]
            return ir.WalkResult.ADVANCE

        copy.walk(on)


def callee_of(op: func.CallOp) -> str:
    return op.operation.attributes["callee"].value


def _has_body(functions: Functions, op: func.CallOp) -> bool:
    return callee_of(op) in functions and not functions[callee_of(op)].is_external
