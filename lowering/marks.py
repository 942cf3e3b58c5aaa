# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What is written on a function before it is lowered: which inputs are donated, whether allocation
is static; and which results are written into memory of the caller's for that.

It imports none of the lowerings: a call whose module is on disk needs the marks, not them.
"""

import collections
from collections.abc import Iterable, Mapping

from ..dialect.control import symbols
from ..dialect.loops import ScanOp
from ..dialect.mlir import func, ir
from . import costs
from .passes import failure

DONATED = "gradopt.donated"
"""On an argument: the position of the result that takes over its storage, or a unit for the first
result of its type.
"""
STORAGE = "gradopt.storage"
"""On an added argument: the position of the donated input whose storage it takes over after the
call.
"""
STATIC = "gradopt.static_alloc"
"""On a function: it gets all its memory from its caller, or with the value TEMPORARIES that of its
temporaries.
"""
TEMPORARIES = "temporaries"
LARGE = 8 << 20
"""Bytes of values of a function, as it was traced, from which its temporaries, with those of its
gradient, may be more than the 64 MiB that IREE 3.13 keeps from call to call. More than that it asks
the system for in each call, and every page of it is a fault: 1.1 us each, a seventh to a half of
the time of training steps.
"""
NULL, WRITE, ADD = "null", "write", "add"
"""What happens to the gradient by an input: it is not computed, given, or added to what is
there.
"""
DISAGREE = "unknown extents differ at"
"""How the message of a failed check of extents starts; the place in the user's source follows."""


def storage_of_results(function: func.FuncOp) -> list[tuple[int, int | None]]:
    """The results that are written into memory of the caller's, in the order of the arguments
    added for them: each with the donated input whose storage it takes over, if any.
    """
    found: list[tuple[int, int | None]] = [(r, p) for p, r in donation_pairs(function)]
    if STATIC in function.attributes and isinstance(function.attributes[STATIC], ir.UnitAttr):
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
    named = collections.Counter(pairs.values())
    for i, result in pairs.items():
        kind = results[result] if 0 <= result < len(results) else None
        if kind != inputs[i] or named[result] > 1:
            got = f"{result} of type {kind}" if kind else str(result)
            expected = f"expected {DONATED} of argument {i} to name a result of its own of type"
            raise failure([(function.location, f"{expected} {inputs[i]}, got {got}")])
    free: dict[ir.Type, collections.deque[int]] = collections.defaultdict(collections.deque)
    for result, kind in enumerate(results):
        if result not in named:
            free[kind].append(result)
    for i in marks:
        if i not in pairs and inputs[i].has_static_shape and free[inputs[i]]:
            pairs[i] = free[inputs[i]].popleft()
    return sorted(pairs.items())


def with_attributes(function: func.FuncOp) -> None:
    """Give the arguments of a function that has no attributes for them empty ones."""
    if "arg_attrs" not in function.attributes:
        function.arg_attrs = ir.ArrayAttr.get([ir.DictAttr.get({}) for _ in function.type.inputs])


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


def is_large(function: func.FuncOp) -> bool:
    """Whether the values of a function, and of those it is made of, take more than LARGE bytes."""
    total = 0
    for one in symbols(function.operation.parent).values():
        for op in [] if one.is_external else one.entry_block.operations:
            total += costs.made(op)
            if total > LARGE:
                return True
    return False


def mark_static(function: func.FuncOp) -> bool:
    """Ask for static allocation; False, and nothing done, where extents are known only at run
    time.
    """
    return _mark(function, ir.UnitAttr.get())


def mark_temporaries(function: func.FuncOp) -> str:
    """Ask for static allocation of temporaries: TEMPORARIES; "", and nothing done, where extents
    are known only at run time, or for loops, which would all be written out for it.
    """
    functions = symbols(function.operation.parent).values()
    bodies = [one.entry_block for one in functions if not one.is_external]
    if any(isinstance(op, ScanOp) for body in bodies for op in body.operations):
        return ""
    return TEMPORARIES if _mark(function, ir.StringAttr.get(TEMPORARIES)) else ""


def _mark(function: func.FuncOp, how: ir.Attribute) -> bool:
    values = list(function.entry_block.arguments)
    for op in function.entry_block.operations:
        values += op.operation.results
    if not all(v.type.has_static_shape for v in values if isinstance(v.type, ir.ShapedType)):
        return False
    function.attributes[STATIC] = how
    return True
