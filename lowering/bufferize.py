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
into further arguments, and its temporaries into the last, `!hal.buffer {iree.abi.transients}`. With
the value "temporaries" it is only these.
"""

from collections.abc import Callable

from ..dialect.control import is_public, symbols
from ..dialect.mlir import func, ir
from ..errors import PipelineError
from . import storage
from .linalg import build
from .marks import (
    DONATED,
    STATIC,
    STORAGE,
    donation_pairs,
    mark_donated,
    mark_static,
    storage_of_results,
    unmark,
)
from .passes import gradopt_pass, single_block

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
    donated input's storage, and, with static allocation, one a result, unless it is of temporaries
    only, and one for all temporaries.
    """
    places, is_static = storage_of_results(function), STATIC in function.attributes
    if not (places or is_static) or any(TIED in about for about in function.arg_attrs):
        return
    attributes, kinds = list(function.arg_attrs), list(function.type.results)
    i64, index_type = ir.IntegerType.get_signless(64), ir.IndexType.get()
    for result, position in places:
        function.entry_block.add_argument(kinds[result], function.location)
        about: dict[str, ir.Attribute] = {TIED: ir.IntegerAttr.get(index_type, result)}
        if position is not None:
            about[STORAGE] = ir.IntegerAttr.get(i64, position)
        attributes.append(ir.DictAttr.get(about))
    if is_static:
        function.entry_block.add_argument(ir.Type.parse("!hal.buffer"), function.location)
        attributes.append(ir.DictAttr.get({ARENA: ir.UnitAttr.get()}))
    inputs = [a.type for a in function.entry_block.arguments]
    kind = ir.FunctionType.get(inputs, kinds)
    function.attributes["function_type"] = ir.TypeAttr.get(kind)
    function.arg_attrs = ir.ArrayAttr.get(attributes)


__all__ = [
    "ARENA",
    "DONATED",
    "FORMS",
    "STATIC",
    "STORAGE",
    "TIED",
    "bufferize",
    "donation_pairs",
    "mark_donated",
    "mark_static",
    "storage_of_results",
    "unmark",
]
