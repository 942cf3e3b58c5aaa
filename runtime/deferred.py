# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Deferred compute: code on arrays builds a graph instead of running.

    with go.deferred():
        go.set_variable(x, "x")
        y = go.exp(x) * w
    graph = go.get_graph(y)

Values can be asked for all the same: they are computed on demand, and the graph stays.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..dialect import trees
from ..dialect.graph import DATA, Graph
from ..dialect.types import TensorSpec
from ..errors import ArgumentError, GradientError, TraceError
from . import lazy
from .array import Array
from .nodes import Leaf, Node, Value, build, held, kind_of, needed, place, scoped
from .state import state


class Scope:
    """What collects the ops of a thread in deferred compute."""

    RECORDS = False  # whether gradients may be recorded inside

    def __init__(self) -> None:
        self.leaves: dict[int, Leaf] = {}  # by the array's identity
        self.kept: list[Array] = []  # so that identities stay theirs
        self.differentiates = False  # whether gradients were asked for

    def add(
        self,
        op_class: Any,
        arrays: Sequence[Array],
        attributes: dict[str, Any],
        specs: Any,
        name: str | None,
    ) -> list[Array]:
        """Put an op off; its results."""
        operands = tuple(self.operand(a) for a in arrays)
        name = scoped(name or op_class.MNEMONIC)
        node = Node(self, op_class, operands, attributes, specs, name, place())
        node.kind = kind_of(op_class, attributes, arrays)
        return node.arrays()

    def operand(self, array: Array) -> Any:
        """What an op reads of an array."""
        source = array._source
        if source is not None:
            if isinstance(source.node.owner, Scope):
                return source.node, source.index
            array._resolve()
        return self.leaf(array), 0

    def leaf(self, array: Array) -> Leaf:
        """What stands for an array that was there before."""
        found = self.leaves.get(id(array))
        if found is None:
            with _leave():
                there = held(array)
            found = self.leaves[id(array)] = Leaf(self, array, there)
            self.kept.append(array)
        return found

    def made(self, array: Array) -> None:
        """An array with elements was made."""

    def rebind(self, to: Array, other: Array) -> bool:
        """An array is given the storage of another one; whether that is done."""
        self.leaves.pop(id(to), None)
        if other._source is None:  # detached, or a copy: the same input
            self.leaves[id(to)] = self.leaf(other)
            self.kept.append(to)
        return False

    def reading(self, array: Array) -> None:
        """The value of an array is asked for."""

    def resolve(self, value: Value, array: Array) -> None:
        """Compute the value of an array, of which the graph stays."""
        if array._value is not None or array._view is not None:
            return
        node, i = value.node, value.index
        if i not in node.found:
            with _leave():
                (node.found[i],) = lazy.evaluate([(node, i)])
        value.result = node.found[i]
        lazy.settle(array, value)
        array._source = value


@contextlib.contextmanager
def _leave() -> Iterator[None]:
    """Outside the scope of this thread."""
    before, state.deferred = state.deferred, None
    try:
        yield
    finally:
        state.deferred = before


class _Cleared:
    """The source of an array whose history was dropped before its value was computed."""

    result = None
    node: Any = None

    def __init__(self, spec: TensorSpec) -> None:
        self.spec = spec
        self.node = self.owner = self

    def resolve(self, *unused: Any) -> None:
        raise TraceError(
            f"the value of an array of type {self.spec} was never computed, and go.clear dropped "
            "what it is computed by; read it before, or keep its history"
        )


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Within it, ops of this thread on arrays are not run but collected, for `go.get_graph`. A
    value that is asked for is computed on demand. TraceError in a function that is hybridized,
    GradientError where the thread is recording.
    """
    if state.recording:
        raise GradientError(
            "go.deferred expected a thread that is not recording, got one in go.record(); leave "
            "that, or compile the graph and record its call"
        )
    if state.deferred is not None and state.deferred.RECORDS:
        raise TraceError(
            "go.deferred expected no function that is being hybridized around it, got one; "
            "call it outside"
        )
    before, state.deferred = state.deferred, Scope()
    try:
        yield
    finally:
        state.deferred = before


def set_variable(array: Array, name: str) -> Array:
    """Bind an array to a variable of the graph that is being built by `go.deferred`: an input under
    this name. The array itself.

    ArgumentError outside of go.deferred, for an array that is bound to another variable, for a
    name that another array has, and for the result of an op, which cannot be one.
    """
    scope = state.deferred
    if scope is None or scope.RECORDS:
        raise ArgumentError(f"go.set_variable of '{name}' expected to be called in go.deferred()")
    if not isinstance(array, Array):
        got = type(array).__name__
        raise ArgumentError(f"go.set_variable of '{name}' expected an Array, got {got}")
    if array._source is not None and isinstance(array._source.node.owner, Scope):
        node = array._source.node
        raise ArgumentError(
            f"go.set_variable of '{name}' expected an array that is given, got the result of "
            f"'{node.name}'{_at(node)}; bind the arrays that it is computed from"
        )
    leaf = scope.leaf(array)
    if leaf.name not in ("", name):
        raise ArgumentError(
            f"go.set_variable of '{name}' expected an array without a variable, got one that is "
            f"bound to '{leaf.name}'"
        )
    if any(other.name == name and other is not leaf for other in scope.leaves.values()):
        raise ArgumentError(
            f"go.set_variable expected a name for each array, got '{name}' for a second one"
        )
    leaf.name = name
    return array


def get_graph(
    outputs: Any,
    inputs: Sequence[Array] | Mapping[str, Array] | None = None,
    *,
    name: str = "main",
) -> Graph:
    """The graph that `go.deferred` built of arrays, a nested container of them. It can be compiled,
    and returns their structure.

    `inputs` are the arrays that become its inputs, in this order, under the names of their
    variables, or of the mapping; by default those bound by `go.set_variable`, in the order of
    that. Other arrays that it reads are constants. ArgumentError for an output that was not built,
    by its position, and for variables and inputs that do not fit.
    """
    arrays, structure = trees.flatten(outputs)
    refs = _built(arrays, inputs)
    nodes = needed(refs, whole=True)
    leaves = _leaves(nodes, refs)
    named = _named(name, leaves, inputs)
    number = {id(array): i for i, (_, array) in enumerate(named)}
    reads = {(x.serial, 0): number[id(x.array)] for x in leaves if id(x.array) in number}
    graph = build(name, [(n, array.spec, DATA) for n, array in named], reads, nodes, refs)
    graph.out_tree = structure
    return graph


def _built(arrays: Sequence[Any], inputs: Any) -> list[Any]:
    """What outputs stand for: results of ops, inputs, and beside these constants."""
    given = inputs.values() if isinstance(inputs, Mapping) else inputs or ()
    chosen = {id(x) for x in given}
    refs, constants = [], []
    for i, array in enumerate(arrays):
        source = array._source if isinstance(array, Array) else None
        if source is not None and isinstance(source.node.owner, Scope):
            refs.append((source.node, source.index))
            continue
        if not isinstance(array, Array) or id(array) not in chosen:
            constants.append(i)
        if not isinstance(array, Array):
            break
        if state.deferred is not None:
            refs.append((state.deferred.leaf(array), 0))
        else:
            refs.append((Leaf(None, array, held(array)), 0))
    if constants and (len(constants) == len(arrays) or len(refs) < len(arrays)):
        i = constants[-1]
        got = "one with a value only" if isinstance(arrays[i], Array) else type(arrays[i]).__name__
        raise ArgumentError(
            f"go.get_graph expected output {i} to be an array computed in go.deferred(), got {got}"
        )
    return refs


def _leaves(nodes: Sequence[Node], refs: Sequence[Any]) -> list[Leaf]:
    """The arrays that are read, in the order in which deferred compute met them."""
    every = [*refs, *(ref for node in nodes for ref in node.operands)]
    found = {r[0].serial: r[0] for r in every if type(r) is tuple and type(r[0]) is Leaf}
    return [found[n] for n in sorted(found)]


def _named(graph: str, leaves: list[Leaf], inputs: Any) -> list[tuple[str, Array]]:
    """The inputs by name."""
    names = {id(leaf.array): leaf.name for leaf in leaves if leaf.name}
    if inputs is None:
        return list({id(x.array): (x.name, x.array) for x in leaves if x.name}.values())
    given = list(inputs.items()) if isinstance(inputs, Mapping) else [("", x) for x in inputs]
    read = {id(leaf.array) for leaf in leaves}
    named = []
    for i, (name, array) in enumerate(given):
        if not isinstance(array, Array):
            got = type(array).__name__
            raise ArgumentError(f"go.get_graph expected input {i} to be an Array, got {got}")
        source = array._source
        if id(array) not in read and source is not None and isinstance(source.node.owner, Scope):
            raise ArgumentError(
                f"go.get_graph expected input {i} to be an array that is given, got the result of "
                f"'{source.node.name}'{_at(source.node)}"
            )
        named.append((name or names.get(id(array)) or f"input{i}", array))
    chosen = {id(array) for _, array in named}
    for i, name in names.items():
        if i not in chosen:
            raise ArgumentError(
                f"go.get_graph of '{graph}' expected the variable '{name}', which it reads, among "
                "the inputs; add its array"
            )
    return named


def _at(node: Node) -> str:
    return f" ({node.place[0]}:{node.place[1]})" if node.place else ""


def clear(arrays: Any) -> None:
    """Drop what `go.deferred` keeps of how arrays, a nested container of them, are computed. Values
    that were computed stay; others can no longer be asked for.
    """
    for array in trees.leaves(arrays):
        source = getattr(array, "_source", None)
        if source is not None and isinstance(source.node.owner, Scope):
            is_known = array._value is not None or array._view is not None
            array._source = None if is_known else _Cleared(array.spec)
