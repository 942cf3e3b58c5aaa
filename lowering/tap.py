# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Tapping a function: the values of its ops as further results, under the names that its user gave.

A graph is tapped when derivatives are written out and calls inlined, before anything is simplified
or decomposed, so that each op that a program or a gradient rule asks for is there, once.
"""

import dataclasses
import fnmatch
from collections import Counter

from ..dialect.base import Op
from ..dialect.creation import ConstantOp
from ..dialect.mlir import func, ir, place
from .reverse import reached


@dataclasses.dataclass(frozen=True)
class TappedOp:
    """An op whose values a tapped function returns: the name of the user's op that it belongs to,
    what that op's source line is, its mnemonic, and its inputs and outputs, each a name and a
    position among the tapped values.

    A gradient rule makes several ops of one of the user's, all under its name: the names of outputs
    tell them apart.
    """

    name: str
    kind: str
    where: str
    inputs: tuple[tuple[str, int], ...]
    outputs: tuple[tuple[str, int], ...]


@dataclasses.dataclass(frozen=True)
class Taps:
    """The ops of a tapped function in order, the types of the values that it returns behind its
    own results, and what its own results and its arguments are among them (-1: not tapped).
    """

    ops: tuple[TappedOp, ...]
    types: tuple[ir.Type, ...]
    results: tuple[int, ...]
    arguments: tuple[int, ...]


def tap(
    function: func.FuncOp, pattern: str = "*", inputs: bool = False, constants: bool = False
) -> Taps:
    """Make a function return the outputs of its ops, with `inputs` what they read, too, behind its
    results; of those ops only whose names match a pattern such as `layer0.*`.

    Ops that depend on no argument are left out where they are parts of the op whose name they have
    (numbers in a gradient rule), unless `constants`.
    """
    *ops, terminator = function.entry_block.operations
    own = list(terminator.operation.operands)
    places: dict[ir.Value, int] = {}
    names: Counter[tuple[str, str]] = Counter()
    tapped = []
    for op in _shown(function, ops, constants):
        name, kind = name_of(op), type(op).MNEMONIC
        if not fnmatch.fnmatchcase(name, pattern):
            continue
        count = names[name, kind]
        names[name, kind] += 1
        label = f"{kind}_{count}" if count else kind
        results = list(op.operation.results)
        outputs = [label] if len(results) == 1 else [f"{label}.{i}" for i in range(len(results))]
        read = list(zip(operand_names(op), op.operation.operands, strict=True)) if inputs else []
        tapped.append(
            TappedOp(
                name,
                kind,
                source_line(op.location),
                tuple((f"{label}.{n}", places.setdefault(v, len(places))) for n, v in read),
                tuple(
                    (n, places.setdefault(r, len(places)))
                    for n, r in zip(outputs, results, strict=True)
                ),
            )
        )
    values = list(places)
    _return(function, terminator, [*own, *values])
    return Taps(
        tuple(tapped),
        tuple(v.type for v in values),
        tuple(places.get(v, -1) for v in own),
        tuple(places.get(a, -1) for a in function.entry_block.arguments),
    )


def _shown(function: func.FuncOp, ops: list[ir.OpView], constants: bool) -> list[Op]:
    """The ops to tap, of those that a result needs: what computes with an argument, and others that
    have a name of their own.
    """
    needed = reached(ops, list(function.entry_block.operations)[-1].operation.operands)
    found = [op for op in ops if isinstance(op, Op) and _makes_tensors(op, needed)]
    if constants:
        return found
    varying = set(function.entry_block.arguments)
    for op in ops:
        if any(o in varying for o in op.operation.operands):
            varying.update(op.operation.results)
    depends = {name_of(op) for op in found if op.operation.results[0] in varying}
    return [
        op
        for op in found
        if op.operation.results[0] in varying
        or not (isinstance(op, ConstantOp) or name_of(op) in depends)
    ]


def _makes_tensors(op: Op, needed: set[ir.Value]) -> bool:
    results = list(op.operation.results)
    return any(r in needed for r in results) and all(
        isinstance(r.type, ir.RankedTensorType) for r in results
    )


def _return(function: func.FuncOp, terminator: ir.OpView, values: list[ir.Value]) -> None:
    with terminator.operation.location, ir.InsertionPoint(terminator):
        func.ReturnOp(values)
    terminator.operation.erase()
    kind = ir.FunctionType.get(function.type.inputs, [v.type for v in values])
    function.attributes["function_type"] = ir.TypeAttr.get(kind)


def operand_names(op: Op) -> list[str]:
    """The fields that the operands of an op are, numbered where a field holds several."""
    many = len(op.operation.operands) - len(op.OPERANDS) + 1
    names = []
    for field, is_variadic in op.OPERANDS.items():
        names += [f"{field}{i}" for i in range(many)] if is_variadic else [field]
    return names


def name_of(op: Op) -> str:
    """The readable name that an op was built with, name scopes in front, `.vjp` behind it for what
    its gradient is made of; else its mnemonic.
    """
    location = op.location
    while isinstance(location, ir.CallSiteLoc):
        location = location.callee
    return location.name_str if isinstance(location, ir.NameLoc) else type(op).MNEMONIC


def source_line(location: ir.Location) -> str:
    """`file:line` of a location; "" where there is none."""
    file, line, _ = place(location)
    return f"{file}:{line}" if file else ""
