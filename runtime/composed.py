# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Compiled functions in a trace: one op, a call of a private function of the module that is built.

The function is traced once for each signature within a module, however often it is called there,
and differentiated once for all of its calls (lowering/call_pairs.py). gradopt-inline puts the body
in the place of each call before anything is compiled, so that numbers and speed are those of the
plain function.
"""

import contextlib
import dataclasses
import enum
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..dialect import builder as builders
from ..dialect import trees
from ..dialect.base import wrap
from ..dialect.control import COMPILED, TagOp, call, stop_gradient, symbols
from ..dialect.creation import constant
from ..dialect.graph import (
    AUXILIARY,
    Graph,
    argument_names,
    check_updates,
    free_symbol,
    function_name,
    run_function,
)
from ..dialect.mlir import func, ir
from ..dialect.tensor import Tensor
from ..errors import ArgumentError, TraceError
from .arguments import check_types
from .array import Array

INLINE_LIMIT = 2
"""Functions of at most so many ops are no calls in a trace. A call that stands once costs a
millisecond more than the ops it stands for, however few; one that stands often saves more than that
from two ops on.
"""

Static = bool | int | float | complex | str | bytes | type | np.generic | np.dtype | enum.Enum
"""Arguments that are part of a signature in a trace, as values."""


@dataclasses.dataclass(frozen=True)
class Traced:
    """A function traced for a signature: its graph, the tensors of outer graphs that it uses, and
    for each leaf of its result where that comes from: a result of the call, an operand, or a value
    that is no tensor.
    """

    inner: Graph
    captured: tuple[Tensor, ...]
    results: tuple[tuple[str, Any], ...]
    structure: Any


def call_in_trace(
    fn: Callable[..., Any] | Graph,
    arguments: tuple[Any, ...],
    key: Any,
    inline_limit: int,
    auxiliary: Sequence[int] = (),
) -> Any:
    """A compiled function's result where it is called in a trace; `key` identifies it, `auxiliary`
    lists positions of arguments that are states.

    With at most `inline_limit` ops, or tags, the body becomes part of what is built at once.
    """
    leaves, structure = trees.flatten(arguments)
    outer = builders.current() or next(x.graph for x in leaves if isinstance(x, Tensor))
    if not isinstance(outer, Graph):
        raise TraceError(f"'{_name(fn)}' is called by a rule of a pass; call the plain function")
    with outer:
        if isinstance(fn, Graph):
            return _call_graph(outer, fn, leaves, key)
        if not all(isinstance(leaf, Tensor | np.ndarray | Array | Static) for leaf in leaves):
            return fn(*arguments)  # an object such as `self`, which may be another each time
        given = [leaf if isinstance(leaf, Static) else constant_of(leaf) for leaf in leaves]
        given = [_stopped(given, structure, auxiliary, i) for i in range(len(given))]
        return _call_function(outer, fn, structure, given, key, inline_limit, set(auxiliary))


def _call_function(
    outer: Graph,
    fn: Callable[..., Any],
    structure: Any,
    given: list[Any],
    key: Any,
    inline_limit: int,
    auxiliary: set[int],
) -> Any:
    tensors = [wrap(outer.adopt(x), outer) for x in given if isinstance(x, Tensor)]
    signature = key, structure, tuple(map(_kind, given))
    traced = outer.shared.get(signature)
    if traced is None:
        traced = _trace(outer, fn, structure, given, auxiliary)
        if not traced.captured and not _is_small(traced, inline_limit):
            outer.shared[signature] = traced
    operands = tensors + list(traced.captured)
    made: Sequence[Any]
    if _is_small(traced, inline_limit):
        made = _inlined(outer, traced.inner, operands)
        traced.inner.func.operation.erase()
    else:
        traced.inner.func.attributes[COMPILED] = ir.UnitAttr.get()
        made = call(traced.inner.func, *operands)
    sources: dict[str, Sequence[Any]] = {"result": made, "operand": operands}
    found = [sources[what][v] if what in sources else v for what, v in traced.results]
    return trees.unflatten(traced.structure, found)


def _name(fn: Callable[..., Any] | Graph) -> str:
    return fn.name if isinstance(fn, Graph) else function_name(fn)


def output_names(graph: Graph) -> list[str]:
    """Readable names of a graph's results: their paths in what the function returns, or the names
    of the ops that make them.
    """
    graph.finish()
    if graph.out_tree is not None:
        numbered = trees.unflatten(graph.out_tree, range(graph.out_tree.num_leaves))
        return [path for path, _ in trees.named_leaves("result", numbered)]
    found = []
    for value in list(graph.block.operations)[-1].operation.operands:
        if isinstance(value.owner, ir.Block):
            found.append(graph.input_names[ir.BlockArgument(value).arg_number])
        else:
            location = value.owner.location
            found.append(location.name_str if isinstance(location, ir.NameLoc) else "result")
    return found


def checked_limit(inline_limit: Any) -> int:
    """The option; raises ArgumentError for what is no number of ops."""
    if isinstance(inline_limit, bool) or not isinstance(inline_limit, int) or inline_limit < 0:
        raise ArgumentError(
            f"inline_limit expected a number of ops, 0 or more, got {inline_limit!r}"
        )
    return inline_limit


def constant_of(leaf: Any) -> Tensor:
    """An array as a tensor of what is being built."""
    return leaf if isinstance(leaf, Tensor) else constant(np.asarray(leaf))


def _kind(leaf: Any) -> Any:
    """What a leaf adds to the signature: a tensor's type, another's value."""
    return leaf.spec if isinstance(leaf, Tensor) else (type(leaf), repr(leaf))


def _stopped(given: list[Any], structure: Any, auxiliary: Sequence[int], i: int) -> Any:
    """A leaf, without a gradient if it belongs to an auxiliary argument."""
    if not auxiliary or not isinstance(given[i], Tensor):
        return given[i]
    counts = [child.num_leaves for child in structure.children()]
    owner = next(p for p in range(len(counts)) if i < sum(counts[: p + 1]))
    return stop_gradient(given[i]) if owner in auxiliary else given[i]


def _trace(
    outer: Graph, fn: Callable[..., Any], structure: Any, given: list[Any], auxiliary: set[int]
) -> Traced:
    """The function on tensors of its own, as a private function of the module."""
    inner = Graph(free_symbol(outer, function_name(fn)), parent=outer)
    arguments = trees.unflatten(structure, given)
    names = argument_names(fn, len(arguments))
    inputs, paths = [], []
    for position, (name, argument) in enumerate(zip(names, arguments, strict=True)):
        role = {"role": AUXILIARY} if position in auxiliary else {}
        for path, leaf in trees.named_leaves(name, argument):
            is_tensor = isinstance(leaf, Tensor)
            inputs.append(inner.input(path, leaf.spec, **role) if is_tensor else leaf)
            paths.append(path)
    try:
        with _no_scopes():
            results = run_function(inner, fn, names, trees.unflatten(structure, inputs))
        leaves, tree = trees.flatten(results)
        sources = _compact(inner, leaves)
        inner.finish()
        check_updates(inner)
    except BaseException:
        inner.func.operation.erase()  # the graph around it can be gone on with
        raise
    return Traced(inner, tuple(o for o, _ in inner.captures.values()), tuple(sources), tree)


def _compact(inner: Graph, leaves: list[Any]) -> list[tuple[str, Any]]:
    """Have the function return each value once, and none that its caller has; say where the leaves
    of its result come from.
    """
    made: dict[ir.Value, int] = {}
    sources: list[tuple[str, Any]] = []
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            sources.append(("value", leaf))
            continue
        with inner:
            value = inner.adopt(leaf)
        value = ir.Value(value)
        if isinstance(value.owner, ir.Block):
            sources.append(("operand", ir.BlockArgument(value).arg_number))
            continue
        if value not in made:
            made[value] = len(made)
            inner.output(wrap(value, inner))
        sources.append(("result", made[value]))
    return sources


@contextlib.contextmanager
def _no_scopes() -> Iterator[None]:
    """Names without the scopes that are open where the first call stands."""
    scopes = builders.scopes()
    before = list(scopes)
    scopes.clear()
    try:
        yield
    finally:
        scopes[:] = before


def _is_small(traced: Traced, inline_limit: int) -> bool:
    ops = list(traced.inner.block.operations)[:-1]  # without the terminator
    return len(ops) <= inline_limit or any(isinstance(op, TagOp) for op in ops)


def _inlined(outer: Graph, inner: Graph, operands: Sequence[Tensor]) -> list[Tensor]:
    """A copy of the body where the graph is built, its ops under names of the outer graph."""
    values: dict[ir.Value, ir.Value] = dict(zip(inner.block.arguments, operands, strict=True))

    def rewire(op: ir.Operation) -> ir.WalkResult:
        for i, operand in enumerate(op.operands):
            op.operands[i] = values.get(operand, operand)
        return ir.WalkResult.ADVANCE

    for op in inner.block.operations:
        if isinstance(op, func.ReturnOp):
            break
        copy = op.operation.clone(ip=outer.insertion_point)
        copy.walk(rewire)
        copy.location = outer.renamed(copy.location)
        values.update(zip(op.operation.results, copy.results, strict=True))
    return [wrap(values[v], outer) for v in op.operation.operands]


# --- graphs ---------------------------------------------------------------------------------------


def _call_graph(outer: Graph, graph: Graph, leaves: list[Any], key: Any) -> tuple[Any, ...]:
    """A call of a graph's function, of which the module gets a copy."""
    given = [constant_of(leaf) for leaf in leaves]
    specs = [t.spec for t in given]
    check_types(graph.name, graph.input_names, graph.input_specs, specs)
    text = graph.mlir(locations=True)
    signature = key, text
    if signature not in outer.shared:
        outer.shared[signature] = _copied(outer, graph.name, text)
    operands = [
        stop_gradient(x) if role == AUXILIARY else x
        for x, (_, role) in zip(given, graph.inputs, strict=True)
    ]
    return call(outer.shared[signature], *operands)


def _copied(outer: Graph, name: str, text: str) -> func.FuncOp:
    """The functions of a module, put into that of a graph under names that are free there."""
    module = ir.Module.parse(text)
    functions = symbols(module)
    taken = set(functions)
    for old, function in functions.items():
        new = free_symbol(outer, old, taken)
        taken.add(new)
        if new != old:
            ir.SymbolTable.replace_all_symbol_uses(old, new, module.operation)
            function.attributes["sym_name"] = ir.StringAttr.get(new)
    for function in functions.values():
        function.attributes["sym_visibility"] = ir.StringAttr.get("private")
        function.operation.detach_from_parent()
        outer.module.body.append(function.operation)
    functions[name].attributes[COMPILED] = ir.UnitAttr.get()
    return functions[name]
