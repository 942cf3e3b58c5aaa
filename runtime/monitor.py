# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Watching compiled functions: what each op computes in a call, forward and backward.

A function that is watched has other executables, compiled to return the values of their ops, too.
Those of one that is not watched know nothing of it, and cost nothing.
"""

import copy
import dataclasses
import fnmatch
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ..dialect import trees
from ..dialect.control import symbols
from ..dialect.function_graph import FunctionGraph
from ..dialect.graph import Graph
from ..dialect.mlir import ir
from ..dialect.types import TensorSpec
from ..errors import ArgumentError
from ..lowering.marks import unmark
from ..lowering.target import Target
from .executable import Executable
from .recent import Recent

if TYPE_CHECKING:
    from ..lowering.tap import TappedOp, Taps

Callback = Callable[["OpName", str, Any], Any]
BACKWARD = "vjp"


class OpName(str):
    """The name of an op of a compiled function, as text, that also knows what the op is: its
    mnemonic (`kind`), the user's source line (`where`, as `file:line`), and whether it is part of a
    gradient (`is_backward`).
    """

    kind: str
    where: str

    @classmethod
    def of(cls, op: "TappedOp") -> "OpName":
        name = cls(op.name)
        name.kind, name.where = op.kind, op.where
        return name

    @property
    def is_backward(self) -> bool:
        return is_backward(self)


def is_backward(name: str) -> bool:
    """True for the names of ops that gradients are made of."""
    return BACKWARD in name.split(".")


class Monitor:
    """A callback that gets what the ops of a compiled function compute, until it is removed."""

    def __init__(self, owner: "Watched", callback: Callback, inputs: bool, pattern: str) -> None:
        if not callable(callback):
            raise ArgumentError(
                f"monitor expected a function of (op, output, array), got {callback!r:.60}; to end "
                "monitoring, call remove() on what monitor returned"
            )
        self.callback = callback
        self.inputs = inputs
        self.pattern = pattern
        self._owner = owner

    def remove(self) -> None:
        """Stop calling the callback. Does nothing the second time."""
        with _guard:
            if self in self._owner.monitors:
                self._owner.monitors.remove(self)
                self._owner._choose()

    def report(self, ops: Sequence[tuple[OpName, "TappedOp"]], values: Sequence[Any]) -> None:
        """Call the callback with the values of a call, in the order of the ops."""
        for name, op in ops:
            if fnmatch.fnmatchcase(name, self.pattern):
                for label, position in (op.inputs if self.inputs else ()) + op.outputs:
                    self.callback(name, label, values[position])

    def __enter__(self) -> "Monitor":
        return self

    def __exit__(self, *exception: Any) -> None:
        self.remove()


class Wrapper(Protocol):
    """Something that is done about the calls of all compiled functions while it is on."""

    is_lasting: bool
    """False where what it makes is of no use when it is off."""

    def __call__(
        self,
        inner: Executable,
        graph: Graph | FunctionGraph,
        target: Target,
        options: dict[str, Any],
    ) -> Executable:
        """An executable around another, made for a graph with these options of `bind`."""
        ...


_guard = threading.RLock()
_watched: "weakref.WeakSet[Watched]" = weakref.WeakSet()
_wrappers: tuple[Wrapper, ...] = ()


class Table(Recent):
    """The executables of a callable, all made in one way: plain ones, or watched by `watch`; and
    what recorded calls are made of.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.watch: Watch | None = None
        self.recorded = Recent(name)


class Watched:
    """A compiled callable that can be watched. Its executables stand in `_bound`: another table
    for each way of watching, so that calls look nowhere else. Whoever adds to the table reads it
    first, binds with its `watch`, and adds to that table: another may be there by then.
    """

    def __init__(self, name: str) -> None:
        self.monitors: list[Monitor] = []
        self._table_name = name
        self._tables: dict[Any, Table] = {}
        with _guard:
            _watched.add(self)
            self._choose()

    def monitor(self, callback: Callback, *, all: bool = False, pattern: str = "*") -> Monitor:  # noqa: A002
        """Call `callback(op, output, array)` for each output of each op, in the order in which they
        are run, after every call; with `all=True` for what ops read, too, before their outputs.

        `op` is the name of the op, with name scopes in front, and `.vjp` behind it for what its
        gradient is made of; see `OpName` for what else it tells. `output` is the op's mnemonic,
        numbered where a gradient rule has several of a kind, with a dot and a position or an
        operand's name behind it where there are several outputs, or for inputs. `pattern` chooses
        ops by name: `layer0.*`, `*.vjp`.

        Returns a Monitor to `remove()`; as a context manager it removes itself. Raises
        ArgumentError where `callback` is no function.
        """
        found = Monitor(self, callback, all, pattern)
        with _guard:
            self.monitors.append(found)
            self._choose()
        return found

    def _choose(self) -> None:
        """Take the table for the way of watching that is asked for now."""
        taps = tuple(sorted({(m.pattern, m.inputs) for m in self.monitors}))
        key = taps, _wrappers
        self._tables = {
            k: t for k, t in self._tables.items() if k == key or all(w.is_lasting for w in k[1])
        }
        table = self._tables.setdefault(key, Table(self._table_name))
        if taps or _wrappers:
            table.watch = Watch(self.monitors, taps, _wrappers)
        self._bound = table


def wrappers() -> tuple[Wrapper, ...]:
    """What is done about the calls of all compiled functions now."""
    return _wrappers


def wrap_calls(new: tuple[Wrapper, ...]) -> None:
    """Do this about the calls of all compiled functions, from their next calls on."""
    global _wrappers
    with _guard:
        _wrappers = new
        for one in list(_watched):
            one._choose()


@dataclasses.dataclass
class Watch:
    """A way of watching: which taps the monitors need, and what is done about calls. Called by
    `bind`, with its arguments.
    """

    monitors: list[Monitor]
    taps: tuple[tuple[str, bool], ...]
    wrappers: tuple[Wrapper, ...]

    def __call__(self, graph: Graph | FunctionGraph, target: Target, **options: Any) -> Executable:
        from .binding import bind

        if self.taps:
            found: Executable = MonitoredExecutable(self, graph, target, options)
        else:
            found = bind(graph, target, **options)
        for wrapper in self.wrappers:
            found = wrapper(found, graph, target, options)
        return found


class Wrapped(Executable):
    """An executable in another that does something about its calls."""

    def __init__(self, inner: Executable) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class MonitoredExecutable(Wrapped):
    """An executable whose calls report what the ops compute."""

    def __init__(
        self, watch: Watch, graph: Graph | FunctionGraph, target: Target, options: dict[str, Any]
    ) -> None:
        from .binding import bind

        self.monitors = watch.monitors
        self.out_tree = graph.out_tree
        self.outputs = graph.output_specs
        pattern = watch.taps[0][0] if len(watch.taps) == 1 else "*"
        tapped, self.taps = tapped_graph(graph, pattern, any(i for _, i in watch.taps))
        self.ops = [(OpName.of(op), op) for op in self.taps.ops]
        # What is returned is kept anyway, so that nothing is left to rematerialize.
        super().__init__(bind(tapped, target, **{**options, "remat": ""}))

    def __call__(self, leaves: list[Any], *more: Any, **options: Any) -> Any:
        if more and more[0] is not None:  # arrays for the results; none for the values
            more = [*more[0], *[None] * len(self.taps.types)], *more[1:]
        result, values = self.inner(leaves, *more, **options)
        for monitor in list(self.monitors):
            monitor.report(self.ops, values)
        return result


def tapped_graph(
    graph: Graph | FunctionGraph, pattern: str = "*", inputs: bool = False, constants: bool = False
) -> "tuple[Graph | FunctionGraph, Taps]":
    """The graph with derivatives written out and its ops tapped; what it returns is a pair of what
    it returned and a list of the values.
    """
    from ..lowering import pipeline
    from ..lowering.tap import tap

    found = copy.copy(graph)
    with graph.context:
        found.module = ir.Module.parse(graph.module.operation.get_asm(enable_debug_info=True))
        pipeline.run(found.module, pipeline.STAGES["differentiated"])
        found.func = symbols(found.module)[graph.name]
        unmark(found.func)  # another thread may be binding the graph
        taps = tap(found.func, pattern, inputs, constants)
        found.output_specs = [*graph.output_specs, *map(TensorSpec.from_mlir, taps.types)]
    own: Any = (0,) * len(graph.output_specs)
    if graph.out_tree is not None:
        own = trees.unflatten(graph.out_tree, own)
    found.out_tree = trees.structure((own, [0] * len(taps.types)))
    return found, taps
