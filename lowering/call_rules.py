# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Functions that say how they are differentiated, by an attribute: calls of them are not inlined
before.

`gradopt.custom_vjp = {forward = @fwd, backward = @bwd}`: where it is differentiated, @fwd is called
instead, which gives the function's results, then residuals; @bwd takes the residuals, then the
cotangents of the floating-point results, and gives the gradients of the floating-point inputs.
`gradopt.checkpoint`: nothing is kept for the backward, which computes the function anew.
`gradopt.compiled`: the function is derived by itself, once for all its calls; see call_pairs.py.
"""

from collections.abc import Sequence
from typing import Any

from ..dialect.base import wrap
from ..dialect.control import CHECKPOINT, COMPILED, CUSTOM_VJP, call, signature
from ..dialect.creation import zeros_like
from ..dialect.mlir import func, ir
from ..dialect.types import TensorSpec, is_float
from .inline import Functions, callee_of
from .passes import failure, single_block

FORWARD = "gradopt.custom_forward"
"""Attribute of calls of forward functions: the function they stand for."""


def has_rule(function: func.FuncOp) -> bool:
    """True for functions whose calls are differentiated as they stand."""
    return any(a in function.attributes for a in (CUSTOM_VJP, CHECKPOINT))


def is_kept(function: func.FuncOp) -> bool:
    """True for functions whose calls stay calls while what is around them is differentiated."""
    return COMPILED in function.attributes or has_rule(function)


def rule_functions(functions: Functions, function: func.FuncOp) -> list[str]:
    """The forward and backward functions that a function names, checked."""
    if CUSTOM_VJP not in function.attributes:
        return []
    about = function.attributes[CUSTOM_VJP]
    names = []
    for key in ("forward", "backward"):
        symbol: Any = about[key] if isinstance(about, ir.DictAttr) and key in about else None
        name = symbol.value if isinstance(symbol, ir.FlatSymbolRefAttr) else ""
        if name not in functions:
            raise _fault(function, f"{{forward = @f, backward = @b}} of the module, got {about}")
        names.append(name)
    _check(functions, function, *names)
    return names


def _check(functions: Functions, function: func.FuncOp, forward: str, backward: str) -> None:
    inputs, results = signature(function)
    given, found = signature(functions[forward])
    if given != inputs or found[: len(results)] != results:
        expected = (
            f"@{forward} to take {_listed(inputs)} and give {_listed(results)}, then residuals"
        )
        raise _fault(function, f"{expected}, got {functions[forward].type}")
    residuals, floats = found[len(results) :], [s for s in results if is_float(s.dtype)]
    expected = [*residuals, *floats], [s for s in inputs if is_float(s.dtype)]
    if signature(functions[backward]) != expected:
        types = f"{_listed(expected[0])} and give {_listed(expected[1])}"
        raise _fault(function, f"@{backward} to take {types}, got {functions[backward].type}")


def _fault(function: func.FuncOp, expected: str) -> Exception:
    what = f"attribute '{CUSTOM_VJP}' of @{function.name.value} expected {expected}"
    return failure([(function.location, what)])


def _listed(specs: Sequence[TensorSpec]) -> str:
    return f"({', '.join(map(str, specs))})"


def use_forward_functions(
    functions: Functions, block: ir.Block, kept: Sequence[ir.Value]
) -> list[ir.Value]:
    """Call forward functions in the place of those with a custom rule; returns what stands for the
    values in `kept`.
    """
    values = list(kept)
    for op in list(block.operations):
        callee = functions[callee_of(op)] if isinstance(op, func.CallOp) else None
        if callee is None or CUSTOM_VJP not in callee.attributes:
            continue
        forward, _ = rule_functions(functions, callee)
        with ir.InsertionPoint(op), op.location:
            new = func.CallOp(functions[forward], list(op.operation.operands)).operation
            new.attributes[FORWARD] = ir.FlatSymbolRefAttr.get(callee.name.value)
        for old, result in zip(op.operation.results, new.results, strict=False):
            values = [result if v == old else v for v in values]
            old.replace_all_uses_with(result)
        op.operation.erase()
    return values


def custom_gradients(functions: Functions, op: func.CallOp, cts: list[Any]) -> list[Any]:
    """What the backward function gives for a call of the forward function, an entry an operand."""
    function = functions[op.operation.attributes[FORWARD].value]
    _, backward = rule_functions(functions, function)
    count = len(function.type.results)
    results = [wrap(r) for r in op.operation.results]
    operands = [wrap(o) for o in op.operation.operands]
    residuals, given = results[count:], zip(results[:count], cts[:count], strict=True)
    for i, argument in _passed_on(functions[callee_of(op)]).items():
        if i >= count:  # the operand itself: no second name for one value
            residuals[i - count] = operands[argument]
    floats = [(r, ct) for r, ct in given if is_float(r.dtype)]
    seeds = [zeros_like(r) if ct is None else ct for r, ct in floats]
    found = iter(call(functions[backward], *residuals, *seeds))
    return [next(found) if is_float(o.dtype) else None for o in operands]


def _passed_on(function: func.FuncOp) -> dict[int, int]:
    """The results of a function that are arguments of it: their positions, and the arguments'."""
    if function.is_external:
        return {}
    block = single_block(function)
    place = {a: i for i, a in enumerate(block.arguments)}
    returned = list(list(block.operations)[-1].operation.operands)
    return {i: place[v] for i, v in enumerate(returned) if v in place}
