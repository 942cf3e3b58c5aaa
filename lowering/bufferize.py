# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-bufferize: where results live.

IREE returns one buffer for a value that is returned twice, and the caller's own for an argument
that is returned: here such results become copies. A donated input (argument attribute
`gradopt.donated`) gives its storage to a result of its type, one call later: the result is written
into a further argument, tied by `iree.abi.output`, and the caller swaps the two from call to call.
IREE would let the result overwrite the input while other ops still read it, so the two never share
memory.
"""

from collections.abc import Iterable

from ..dialect.control import is_public, symbols
from ..dialect.mlir import func, ir
from . import storage
from .linalg import build
from .passes import failure, gradopt_pass, single_block

DONATED = build.DONATED
"""On an argument: the position of the result that takes over its storage, or a unit for the first
result of its type.
"""
STORAGE = "gradopt.storage"
"""On an added argument: the position of the donated input whose storage it takes over after the
call.
"""
TIED = "iree.abi.output"


@gradopt_pass("gradopt-bufferize")
def bufferize(module: ir.Module) -> None:
    """Make results distinct from inputs and from each other, and give donated inputs' storage to
    results. Runs on linalg.
    """
    module.operation.context.allow_unregistered_dialects = True
    for function in symbols(module).values():
        if not function.is_external and is_public(function):
            single_block(function)
            separate_results(function)
            tie_donated(function)


def separate_results(function: func.FuncOp) -> None:
    """Copy results that are arguments, or stand in the list before, be it under another shape."""
    terminator = list(function.entry_block.operations)[-1].operation
    seen = set(function.entry_block.arguments)
    with ir.InsertionPoint(terminator), terminator.location:
        for i, value in enumerate(list(terminator.operands)):
            if (stored := storage.root(value)) in seen:
                terminator.operands[i] = build.copied(value)
            seen.add(stored)


def tie_donated(function: func.FuncOp) -> None:
    """Add a storage argument for each donated input that has a result of its type."""
    pairs = donation_pairs(function)
    if not pairs or any(STORAGE in about for about in function.arg_attrs):
        return
    attributes = list(function.arg_attrs)
    i64, index_type = ir.IntegerType.get_signless(64), ir.IndexType.get()
    for position, result in pairs:
        function.entry_block.add_argument(
            function.entry_block.arguments[position].type, function.location
        )
        tied, storage = ir.IntegerAttr.get(index_type, result), ir.IntegerAttr.get(i64, position)
        attributes.append(ir.DictAttr.get({TIED: tied, STORAGE: storage}))
    inputs = [a.type for a in function.entry_block.arguments]
    kind = ir.FunctionType.get(inputs, function.type.results)
    function.attributes["function_type"] = ir.TypeAttr.get(kind)
    function.arg_attrs = ir.ArrayAttr.get(attributes)


def donation_pairs(function: func.FuncOp) -> list[tuple[int, int]]:
    """Each donated input with the result that takes over its storage: the one that its attribute
    names, or the first of its type that is free; none for types with unknown extents.

    Raises PassError for an attribute that names a result that does not exist, is of another type,
    or is named twice.
    """
    inputs, results = list(function.type.inputs), list(function.type.results)
    marks = {
        i: about[DONATED]
        for i, about in enumerate(function.arg_attrs if "arg_attrs" in function.attributes else [])
        if DONATED in about
    }
    for i, mark in marks.items():
        if not isinstance(mark, ir.IntegerAttr | ir.UnitAttr):
            message = f"expected {DONATED} of argument {i} to be a result's position, got {mark}"
            raise failure([(function.location, message)])
    pairs = {i: m.value for i, m in marks.items() if isinstance(m, ir.IntegerAttr)}
    for i, result in pairs.items():
        kind = results[result] if 0 <= result < len(results) else None
        if kind != inputs[i] or list(pairs.values()).count(result) > 1:
            got = f"{result} of type {kind}" if kind else str(result)
            expected = f"expected {DONATED} of argument {i} to name a result of its own of type"
            raise failure([(function.location, f"{expected} {inputs[i]}, got {got}")])
    for i in marks:
        if i not in pairs and inputs[i].has_static_shape:
            free = (r for r, k in enumerate(results) if k == inputs[i] and r not in pairs.values())
            if (result := next(free, None)) is not None:
                pairs[i] = result
    return sorted(pairs.items())


def mark_donated(function: func.FuncOp, positions: Iterable[int]) -> list[tuple[int, int]]:
    """Put gradopt.donated on inputs; return the (input, result) pairs that share storage."""
    attributes = [{a.name: a.attr for a in d} for d in function.arg_attrs]
    for position in positions:
        attributes[position][DONATED] = ir.UnitAttr.get()
    function.arg_attrs = ir.ArrayAttr.get([ir.DictAttr.get(d) for d in attributes])
    return donation_pairs(function)
