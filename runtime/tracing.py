# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Running an eager function once in deferred compute, and what its calls run from then on.

While it is traced nothing is written: what the function writes to arrays that were there before is
noted beside them, so that other threads, and a caller after an error, see them as they were.
"""

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..dialect import builder as builders
from ..dialect import modes, trees
from ..dialect.graph import DATA, PARAMETER, Graph, function_name
from ..errors import TraceError
from . import lazy
from .array import Array, of_value
from .deferred import Scope
from .function import CachedFunction
from .function import compile as compile_graph
from .nodes import Leaf, Node, Ref, Value, build, held, needed, place
from .state import state
from .tape import Mark
from .tape import needed as needs_gradient
from .walk import GRADIENT, Place, Saved, Walk, differences


class Before:
    """What an array had beside its elements."""

    def __init__(self, array: Array) -> None:
        self.array = array
        self.history = array._history
        self.mark: Mark | None = None if self.history is None else self.history.mark
        self.fresh = self.mark is not None and self.mark.is_fresh

    def put_back(self) -> None:
        self.array._history = self.history
        if self.mark is not None:
            self.mark.is_fresh = self.fresh


class Trace(Scope):
    """Collects the ops of a function that is being traced. `own` are the arrays with elements that
    it made itself; others were there before: those that it reads are inputs, those that it writes
    to are noted in `written`.
    """

    RECORDS = True

    def __init__(self, name: str, found: list[Any]) -> None:
        super().__init__()
        self.name = name
        self.own: dict[int, Array] = {}
        self.written: dict[int, Value] = {}
        self.before = {id(x): Before(x) for x in found if type(x) is Array}
        self.is_over = False

    def made(self, array: Array) -> None:
        self.own[id(array)] = array

    def existed(self, array: Array) -> bool:
        """Whether an array was there before; then it is known from now on."""
        source = array._source
        if id(array) in self.own or (source is not None and source.node.owner is self):
            return False
        if id(array) not in self.before:
            self.before[id(array)] = Before(array)
        return True

    def source_of(self, array: Array) -> Value | None:
        """What an array holds at this point of the function; None for elements of its own."""
        if not self.existed(array):
            return array._source
        return self.written.get(id(array)) or Value(self.leaf(array), 0)

    def leaf(self, array: Array) -> Leaf:
        found = self.leaves.get(id(array))
        if found is None:
            found = self.leaves[id(array)] = Leaf(self, array, None)
        return found

    def operand(self, array: Array) -> Any:
        source = self.source_of(array)
        return held(array) if source is None else (source.node, source.index)

    def rebind(self, to: Array, other: Array) -> bool:
        source = self.source_of(other)
        if self.existed(to):
            self.written[id(to)] = source or Value(Leaf(self, other, held(other)), 0)
            return True
        if source is None:
            self.made(to)
            return False
        to._source, to._value, to._view = source, None, None
        return True

    def reading(self, array: Array) -> None:
        if self.source_of(array) is not None:
            where = place()
            raise TraceError(
                f"{f'{where[0]}:{where[1]}: ' if where else ''}'{self.name}' asks for the value of "
                f"an array of type {array.spec} while it is hybridized, which is known only when "
                "the compiled form runs; use go.where for a choice between arrays, return the "
                "array and read it outside, or pass the number as a Python argument"
            )

    def resolve(self, value: Value, array: Array) -> None:
        if not self.is_over and state.deferred is self:
            self.reading(array)
        raise TraceError(
            f"an array of type {array.spec} was made while '{self.name}' was traced, and has no "
            "value; have the function return it instead of keeping it elsewhere"
        )


class Traced:
    """What calls of one signature run: the graph compiled, where its inputs come from, and where
    its results go.
    """

    def __init__(self, graph: Graph | None, function: Any, donating: Any) -> None:
        self.graph: Any = graph
        self.function: CachedFunction = function
        self.constants: list[Array] = []  # the results of a function without inputs
        self.donating: CachedFunction = donating
        self.inputs: list[Any] = []  # an array each, by number, or itself
        self.results: list[tuple[str, Any]] = []
        self.structure: Any = None
        self.writes: list[tuple[Any, int]] = []  # which array gets which output
        self.places: list[tuple[int, tuple[str, Any]]] = []  # of the walk, and what is put there
        self.fresh: list[tuple[Any, bool]] = []  # arrays whose gradient was filled, or used

    def __call__(self, walk: Walk) -> Any:
        """The results for the arrays of a call."""
        arrays = walk.arrays

        def current(target: Any) -> Any:
            return arrays[target] if type(target) is int else target

        given = [current(t) for t in self.inputs]
        for target, _ in self.writes:
            array = current(target)
            if isinstance(array, Array) and array._history is not None:
                array._history.check_write(array, f"an update in '{self.graph.name}'")
        recorded = state.recording and any(
            isinstance(x, Array) and needs_gradient(x) is not None for x in given
        )
        found: tuple[Any, ...] = ()
        if given:
            found = (self.function if recorded else self.donating)(*given)
        else:
            found = tuple(x.snapshot() for x in self.constants)
        for target, k in self.writes:
            _put(current(target), found[k])

        def what(kind: str, x: Any) -> Any:
            return found[x] if kind == "output" else current(x) if kind == "array" else x

        for number, spec in self.places:
            walk.places[number][0].set(what(*spec))
        for target, fresh in self.fresh:
            history = current(target)._history
            if history is not None and history.mark is not None:
                history.mark.is_fresh = fresh
        for noted in walk.noted:
            noted.after_replay()
        return trees.unflatten(self.structure, [what(*spec) for spec in self.results])


def _put(to: Any, new: Array) -> None:
    """Write a result back."""
    if isinstance(to, np.ndarray):
        np.copyto(to, new.numpy())
        return
    history, new_history = to._history, new._history
    new._history = None
    try:
        to.rebind(new)
    finally:
        new._history = new_history
    to._history = history


# --- tracing --------------------------------------------------------------------------------------


def trace(
    fn: Callable[..., Any],
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    walk: Walk,
    again: Callable[..., Walk],
    donate: bool,
    options: dict[str, Any],
) -> Traced:
    """Trace a function on its arguments, which `walk` has gone through, as `again` does. All that
    can be seen of the arrays, and of what holds them, is as before, also after an error.
    """

    def finish(scope: Trace, before: Walk, results: Any, after: Walk) -> Traced:
        return Finish(scope, before).traced(results, after, donate, options)

    arguments, keywords = _as_arrays((arguments, keywords))
    mode = options.get("mode") or modes.current_mode()
    return run(fn, arguments, keywords, again, mode, finish)


def run(
    fn: Callable[..., Any],
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    again: Callable[..., Walk],
    mode: str,
    finish: Callable[[Trace, Walk, Any, Walk], Any],
) -> Any:
    """What `finish` makes of a function that has run on arrays in deferred compute: of what was
    collected, the arrays found before, the results, and the arrays found after.
    """
    before = again(arguments, keywords)
    scope = Trace(function_name(fn), before.arrays)
    with _as_it_was(scope, before, lambda: again(arguments, keywords)):
        with _entered(scope), modes.mode(mode):
            results = fn(*arguments, **keywords)
        return finish(scope, before, results, again(arguments, keywords))


def _as_arrays(given: Any) -> Any:
    """The arguments with Arrays in the place of NumPy arrays, which are the same ones twice where
    they are given twice.
    """
    made: dict[int, Array] = {}

    def converted(x: Any) -> Any:
        if type(x) is not np.ndarray:
            return x
        if id(x) not in made:
            made[id(x)] = of_value(x.copy())
        return made[id(x)]

    return trees.map_leaves(converted, given)


@contextlib.contextmanager
def _entered(scope: Trace) -> Iterator[None]:
    recording, scopes = state.recording, list(builders.scopes())
    state.deferred, state.recording = scope, False
    try:
        yield
    finally:
        state.deferred, state.recording = None, recording
        builders.scopes()[:] = scopes
        scope.is_over = True


@contextlib.contextmanager
def _as_it_was(scope: Trace, before: Walk, again: Callable[[], Walk]) -> Iterator[None]:
    """Whatever happens, arrays, and the places that hold them, are as they were."""
    notes = [(x, n, copy.copy(getattr(x, n))) for x in before.noted for n in type(x).NOTES]
    saved = Saved(before.containers)
    try:
        yield
    finally:
        for noted, name, value in notes:
            setattr(noted, name, value)
        for then in scope.before.values():
            then.put_back()
        saved.put_back()
        for where, old, _ in list(differences(before, again())):
            where.set(old)  # cells, globals, slots
        for known in (scope.own, scope.before, scope.written, scope.leaves):
            known.clear()  # arrays that leaked hold the scope, and nothing more


class Finish:
    """Makes of what was collected what calls run."""

    def __init__(self, scope: Trace, before: Walk) -> None:
        self.scope = scope
        self.before = before
        self.number = {id(x): i for i, x in enumerate(before.arrays)}
        self.outputs: list[Ref] = []
        self._output: dict[tuple[int, int], int] = {}

    def traced(self, results: Any, after: Walk, donate: bool, options: dict[str, Any]) -> Traced:
        leaves, structure = trees.flatten(results)
        found = [self._spec(leaf) for leaf in leaves]
        places = self.moved(after)
        writes = [(self._target(i), self._ref(value)) for i, value in self.scope.written.items()]
        nodes = needed(self.outputs)
        inputs = self.inputs(nodes)
        reads = {(leaf.serial, 0): i for i, leaf in enumerate(inputs)}
        names, specs = self._names(inputs), [leaf.specs[0] for leaf in inputs]
        named = list(zip(names, specs, map(self._role, inputs), strict=True))
        graph = build(self.scope.name, named, reads, nodes, self.outputs)
        traced = Traced(graph, *self._compiled(graph, inputs, donate, options))
        traced.constants = [] if inputs else lazy.evaluate(self.outputs)
        traced.inputs = [self._target(id(leaf.array)) for leaf in inputs]
        traced.results, traced.structure = found, structure
        traced.writes, traced.places, traced.fresh = writes, places, self._fresh()
        return traced

    def _compiled(
        self, graph: Graph, inputs: list[Leaf], donate: bool, options: dict[str, Any]
    ) -> tuple[Any, Any]:
        """The graph's compiled form, and one that is given the memory of what is written."""
        if not inputs:
            return None, None
        about = {"static_alloc": False, **options}
        strict = about.pop("donate_strict", False)
        function = compile_graph(graph, **about)
        written = [i for i, leaf in enumerate(inputs) if id(leaf.array) in self.scope.written]
        if not (donate and written):
            return function, function
        return function, compile_graph(graph, donate=written, donate_strict=strict, **about)

    def _target(self, i: int) -> Any:
        """An array by its number, or itself where only the function knows it."""
        return self.number.get(i, self.scope.before[i].array)

    def _spec(self, leaf: Any) -> tuple[str, Any]:
        """What a call gives for something that the function returned."""
        if not isinstance(leaf, Array):
            return "value", leaf
        if self.scope.existed(leaf):
            return "array", self._target(id(leaf))
        source = self.scope.source_of(leaf)
        return "output", self._ref(source or Value(Leaf(self.scope, leaf, held(leaf)), 0))

    def _ref(self, value: Value) -> int:
        """The number of an output."""
        key = value.node.serial, value.index
        if key not in self._output:
            self._output[key] = len(self.outputs)
            self.outputs.append((value.node, value.index))
        return self._output[key]

    def moved(self, after: Walk) -> list[tuple[int, tuple[str, Any]]]:
        """What the function put in the place of arrays; TraceError for other changes."""
        number = {where.location: i for i, (where, _) in enumerate(self.before.places)}
        found = []
        for where, old, new in differences(self.before, after):
            if type(old) is not Array or type(new) is not Array or where.kind == GRADIENT:
                raise self._changed(where, old, new)
            found.append((number[where.location], self._spec(new)))
        return found

    def _changed(self, where: Place, old: Any, new: Any) -> TraceError:
        a, b = (x.spec if isinstance(x, Array) else repr(x)[:40] for x in (old, new))
        return TraceError(
            f"'{self.scope.name}' changes '{where.path}' from {a} to {b}, which calls of its "
            "compiled form would not do again; keep a number that changes in an Array that is "
            "there before, return it, or do it outside"
        )

    def inputs(self, nodes: list[Node]) -> list[Leaf]:
        """The arrays that are read: first those that every call finds anew."""
        refs = [*self.outputs, *(ref for node in nodes for ref in node.operands)]
        found = {
            ref[0].serial: ref[0]
            for ref in refs
            if type(ref) is tuple and type(ref[0]) is Leaf and ref[0].snapshot is None
        }
        count = len(self.number)
        return sorted(
            found.values(), key=lambda leaf: (self.number.get(id(leaf.array), count), leaf.serial)
        )

    def _names(self, inputs: list[Leaf]) -> list[str]:
        where, number = self.before.where, self.number
        return [
            where[number[id(leaf.array)]].path if id(leaf.array) in number else f"captured{i}"
            for i, leaf in enumerate(inputs)
        ]

    def _role(self, leaf: Leaf) -> str:
        """Arrays whose gradient is asked for are trained."""
        mark = self.scope.before[id(leaf.array)].mark
        return DATA if mark is None or mark.request == "null" else PARAMETER

    def _fresh(self) -> list[tuple[Any, bool]]:
        """Arrays whose gradient was filled, or used, and which it is now."""
        return [
            (self._target(i), then.mark.is_fresh)
            for i, then in self.scope.before.items()
            if then.mark is not None and then.mark.is_fresh != then.fresh
        ]
