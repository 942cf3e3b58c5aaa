# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-bufferize: where results live.

IREE returns one buffer for a value that is returned twice, and the caller's own for an argument
that is returned: here such results become copies. A donated input (argument attribute
`gradopt.donated`) gives its storage to a result of its type, one call later: the result is written
into a further argument, tied by `iree.abi.output`, and the caller swaps the two from call to call.
IREE would let the result overwrite the input while other ops still read it, so the two share memory
only where that is shown to be safe on the commands that IREE makes (runtime/compile_arena.py); the
caller then passes the same memory for both.

A function with the attribute `gradopt.static_alloc` allocates nothing: all its results are written
into further arguments, and its temporaries into the last, `!hal.buffer {iree.abi.transients}`.
"""

from collections.abc import Callable, Iterable, Mapping

from ..dialect.control import is_public, symbols
from ..dialect.mlir import func, ir
from ..errors import PipelineError
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
STATIC = "gradopt.static_alloc"
"""On a function: it gets all its memory from its caller."""
TIED = "iree.abi.output"
ARENA = "iree.abi.transients"

FORMS: dict[str, Callable[..., None]] = {}
"""What gradopt-bufferize does to a function, by its option `form`."""


@gradopt_pass("gradopt-bufferize")
def bufferize(module: ir.Module, *, form: str = "iree", poison: bool = False) -> None:
    """Make results distinct from inputs and from each other, and give donated inputs' storage to
    results, all memory where a function asks for it; with `form=memref`, give every value its
    planned place in one arena. Runs on linalg.

    `poison`, of the memref form, fills storage that no later op may read. Raises PipelineError for
    another form.
    """
    if form not in FORMS:
        raise PipelineError(
            f"option 'form' of pass 'gradopt-bufferize' expected one of: {', '.join(FORMS)}, "
            f"got '{form}'"
        )
    if poison and form != "memref":
        raise PipelineError(
            "option 'poison' of pass 'gradopt-bufferize' expected to be given with form=memref, "
            f"got form={form}"
        )
    module.operation.context.allow_unregistered_dialects = True
    for function in symbols(module).values():
        if not function.is_external and is_public(function):
            single_block(function)
            FORMS[form](function, **{"poison": True} if poison else {})


def for_iree(function: func.FuncOp) -> None:
    """Make results distinct, and give donated inputs' storage to results."""
    separate_results(function)
    take_storage(function)


FORMS["iree"] = for_iree


def separate_results(function: func.FuncOp) -> None:
    """Copy results that are arguments, or stand in the list before, be it under another shape."""
    terminator = list(function.entry_block.operations)[-1].operation
    seen = set(function.entry_block.arguments)
    with ir.InsertionPoint(terminator), terminator.location:
        for i, value in enumerate(list(terminator.operands)):
            if (stored := storage.root(value)) in seen:
                terminator.operands[i] = build.copied(value)
            seen.add(stored)


def take_storage(function: func.FuncOp) -> None:
    """Add the arguments for the memory that the caller gives: one a result that takes over a
    donated input's storage, and, with static allocation, one a result and one for all temporaries.
    """
    places, is_static = storage_of_results(function), STATIC in function.attributes
    if not (places or is_static) or any(TIED in about for about in function.arg_attrs):
        return
    attributes = list(function.arg_attrs)
    i64, index_type = ir.IntegerType.get_signless(64), ir.IndexType.get()
    for result, position in places:
        function.entry_block.add_argument(function.type.results[result], function.location)
        about: dict[str, ir.Attribute] = {TIED: ir.IntegerAttr.get(index_type, result)}
        if position is not None:
            about[STORAGE] = ir.IntegerAttr.get(i64, position)
        attributes.append(ir.DictAttr.get(about))
    if is_static:
        function.entry_block.add_argument(ir.Type.parse("!hal.buffer"), function.location)
        attributes.append(ir.DictAttr.get({ARENA: ir.UnitAttr.get()}))
    inputs = [a.type for a in function.entry_block.arguments]
    kind = ir.FunctionType.get(inputs, function.type.results)
    function.attributes["function_type"] = ir.TypeAttr.get(kind)
    function.arg_attrs = ir.ArrayAttr.get(attributes)


def storage_of_results(function: func.FuncOp) -> list[tuple[int, int | None]]:
    """The results that are written into memory of the caller's, in the order of the arguments
    added for them: each with the donated input whose storage it takes over, if any.
    """
    found: list[tuple[int, int | None]] = [(r, p) for p, r in donation_pairs(function)]
    if STATIC in function.attributes:
        donated = {result for result, _ in found}
        kinds = function.type.results
        found += [
            (r, None) for r, kind in enumerate(kinds) if r not in donated and kind.has_static_shape
        ]
    return found


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


def mark_donated(function: func.FuncOp, inputs: Iterable[int] | Mapping[int, int]) -> None:
    """Put gradopt.donated on inputs; a mapping says which result takes over each one's storage."""
    attributes = [{a.name: a.attr for a in d} for d in function.arg_attrs]
    i64 = ir.IntegerType.get_signless(64)
    for position in inputs:
        mark = ir.IntegerAttr.get(i64, inputs[position]) if isinstance(inputs, Mapping) else None
        attributes[position][DONATED] = mark or ir.UnitAttr.get()
    function.arg_attrs = ir.ArrayAttr.get([ir.DictAttr.get(d) for d in attributes])


def unmark(function: func.FuncOp) -> None:
    """Take away what mark_donated and mark_static wrote."""
    attributes = [{a.name: a.attr for a in d if a.name != DONATED} for d in function.arg_attrs]
    function.arg_attrs = ir.ArrayAttr.get([ir.DictAttr.get(d) for d in attributes])
    if STATIC in function.attributes:
        del function.attributes[STATIC]


def mark_static(function: func.FuncOp) -> bool:
    """Ask for static allocation; False, and nothing done, where extents are known only at run
    time.
    """
    values = list(function.entry_block.arguments)
    for op in function.entry_block.operations:
        values += op.operation.results
    if not all(v.type.has_static_shape for v in values if isinstance(v.type, ir.ShapedType)):
        return False
    function.attributes[STATIC] = ir.UnitAttr.get()
    return True
