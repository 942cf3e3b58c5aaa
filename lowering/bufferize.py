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

from ..dialect.control import signature, symbols
from ..dialect.mlir import arith, func, ir
from .linalg import build
from .passes import gradopt_pass

DONATED = "gradopt.donated"
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
        if not function.is_external and function.visibility.value == "public":
            separate_results(function)
            tie_donated(function)


def separate_results(function: func.FuncOp) -> None:
    """Copy results that are arguments or stand in the list before."""
    terminator = list(function.entry_block.operations)[-1].operation
    seen = set(function.entry_block.arguments)
    with ir.InsertionPoint(terminator), terminator.location:
        for i, value in enumerate(list(terminator.operands)):
            if value in seen:
                terminator.operands[i] = copied(value)
            seen.add(value)


def copied(value: ir.Value) -> ir.Value:
    """A copy that IREE does not see through: each element is chosen by a number that is 0, which
    IREE is kept from knowing.
    """
    i32 = ir.IntegerType.get_signless(32)
    zero = build.barrier(build.fill(0, [1], i32))
    axes = list(range(build.rank_of(value)))
    element = build.element_of(value)
    constant_axis = ir.AffineExpr.get_constant(0)

    def body(x: ir.Value, number: ir.Value, _: ir.Value) -> list[ir.Value]:
        is_zero = arith.cmpi(arith.CmpIPredicate.eq, number, build.number(0, i32))
        return [arith.select(is_zero, x, build.number(0, element))]

    out = build.empty(build.shape_of(value), element)
    return build.generic(
        [(value, axes), (zero, [constant_axis])], [(out, axes)], [build.PARALLEL] * len(axes), body
    )[0]


def tie_donated(function: func.FuncOp) -> None:
    """Add a storage argument for each donated input that has a result of its type."""
    attributes = list(function.arg_attrs) if "arg_attrs" in function.attributes else []
    terminator = list(function.entry_block.operations)[-1].operation
    i64, index_type = ir.IntegerType.get_signless(64), ir.IndexType.get()
    taken = {
        d[DONATED].value
        for d in attributes
        if DONATED in d and isinstance(d[DONATED], ir.IntegerAttr)
    }
    for position, about in enumerate(list(attributes)):
        if DONATED not in about:
            continue
        kind = function.entry_block.arguments[position].type
        if isinstance(about[DONATED], ir.IntegerAttr):
            result = about[DONATED].value
        else:
            result = next(
                (r for r, o in enumerate(terminator.operands) if r not in taken and o.type == kind),
                None,
            )
        if result is None:
            continue
        taken.add(result)
        function.entry_block.add_argument(kind, function.location)
        tied, storage = ir.IntegerAttr.get(index_type, result), ir.IntegerAttr.get(i64, position)
        attributes.append(ir.DictAttr.get({TIED: tied, STORAGE: storage}))
    if taken:
        inputs = [a.type for a in function.entry_block.arguments]
        results = [o.type for o in terminator.operands]
        function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, results))
        function.arg_attrs = ir.ArrayAttr.get(attributes)


def mark_donated(function: func.FuncOp, positions: Iterable[int]) -> list[tuple[int, int]]:
    """Put gradopt.donated on inputs, each with the first free result of its type; return the
    (input, result) pairs.
    """
    inputs, results = signature(function)
    pairs: dict[int, int] = {}
    for position in positions:
        free = (
            r
            for r, spec in enumerate(results)
            if r not in pairs.values() and spec == inputs[position]
        )
        if (result := next(free, None)) is not None:
            pairs[position] = result
    attributes = [{a.name: a.attr for a in d} for d in function.arg_attrs]
    for position, result in pairs.items():
        i64 = ir.IntegerType.get_signless(64)
        attributes[position][DONATED] = ir.IntegerAttr.get(i64, result)
    function.arg_attrs = ir.ArrayAttr.get([ir.DictAttr.get(d) for d in attributes])
    return list(pairs.items())
