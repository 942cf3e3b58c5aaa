# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Ops that are put off: recorded, and run as one graph when a value is needed; or compiled one by
one.

Each thread has a queue. When the value of one of its arrays is needed, in whatever thread, all of
it runs that somebody can still ask for, as one graph on the target of `go.config`. A graph like one
before (the same ops, attributes, types and dependencies; numbers are inputs) is found by its
structure, without being built; others go through the caches of compiled modules, in memory and on
disk.
"""

import threading
import weakref
from collections.abc import Sequence
from typing import Any

from ..dialect.graph import DATA
from ..dialect.types import TensorSpec
from ..errors import CompileError
from ..lowering.target import target as find_target
from . import array as arrays_of
from .array import Array
from .binding import bind
from .device import PLACES
from .device import place as place_of
from .nodes import (
    Node,
    Ref,
    Value,
    build,
    by_reference,
    held,
    identity,
    kind_of,
    needed,
    place,
    stored,
)
from .recent import Recent
from .state import state
from .why import History

LIMIT = 512
"""Ops that wait at most; then they run, so that a loop in which nothing is read does not grow."""
MOVED = 1 << 12
"""Bytes from which arrays are moved to the target's device when an op first reads them, so that
they are not copied for each graph.
"""
EXECUTABLES = 1024

default = "reference"
where = "cpu"
"""The mode and target of `go.config`."""

_executables = Recent("eager ops", EXECUTABLES)
_history = History("eager ops")
_queues: "weakref.WeakSet[Queue]" = weakref.WeakSet()


def mode() -> str:
    """The mode ops run in on this thread."""
    return state.eager or default


def add(
    op_class: Any, arrays: list[Array], attributes: dict[str, Any], specs: Any, name: str | None
) -> list[Array]:
    """Put an op off, or have it compiled and run at once in mode "op"; its results."""
    if state.deferred is not None:
        return state.deferred.add(op_class, arrays, attributes, specs, name)
    if mode() == "op":
        node = _node(None, op_class, arrays, attributes, specs, name)
        return run([node], [(node, i) for i in range(len(specs))], where)
    if state.queue is None:
        state.queue = Queue()
    return state.queue.add(op_class, arrays, attributes, specs, name)


def _node(
    queue: "Queue | None",
    op_class: Any,
    arrays: list[Array],
    attributes: Any,
    specs: Any,
    name: Any,
) -> Node:
    operands = tuple(_operand(queue, a) for a in arrays)
    node = Node(queue, op_class, operands, attributes, specs, name or op_class.MNEMONIC, place())
    node.kind = kind_of(op_class, attributes, arrays)
    return node


def _operand(queue: "Queue | None", array: Array) -> Any:
    source = array._source
    if source is not None:
        if source.result is None and source.node.owner is queue:
            return source.node, source.index
        array._resolve()  # another thread's, or known by now
    if array._value is not None and array.nbytes >= MOVED:
        target = find_target(where)
        if target.ladder and target.driver in PLACES:
            array.buffer_view()
    return held(array)


class Queue:
    """The ops that one thread has put off."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.nodes: list[weakref.ref[Node]] = []
        self.limit = LIMIT
        _queues.add(self)

    def add(
        self, op_class: Any, arrays: list[Array], attributes: Any, specs: Any, name: str | None
    ) -> list[Array]:
        with self.lock:
            node = _node(self, op_class, arrays, attributes, specs, name)
            results = node.arrays()
            if (device := place_of(find_target(where).driver)) != "cpu":
                for array in results:
                    array.device = device
            self.nodes.append(weakref.ref(node))
            if len(self.nodes) >= self.limit:
                self.flush()
        return results

    def resolve(self, value: Value, array: Array) -> None:
        """Run what an array is computed by, and all else that waits."""
        with self.lock:
            if value.result is None:
                self.flush()
        if array._source is value:
            settle(array, value)

    def flush(self) -> None:
        """Run all that somebody can ask for. After an error all waits as before."""
        with self.lock:
            nodes = [n for ref in self.nodes if (n := ref()) is not None]
            values = [v for node in nodes for ref in node.values if (v := ref()) is not None]
            outputs = [(v.node, v.index) for v in values]
            try:
                results = run(needed(outputs), outputs, where) if outputs else []
            except BaseException:
                self.limit = len(self.nodes) + LIMIT  # tried again when something is read
                raise
            for value, result in zip(values, results, strict=True):
                value.result = result
            for node in nodes:
                node.operands = ()
            self.nodes.clear()
            self.limit = LIMIT


def settle(array: Array, value: Value) -> None:
    """Give an array the storage of its result."""
    result = value.result
    assert result is not None
    array._lease, array._pending, array._owner = result._lease, result._pending, result._owner
    array.device, array._is_anywhere = result.device, result._is_anywhere
    array._view, array._value = result._view, result._value
    array._source = None


def flush_all() -> None:
    """Run what all threads have put off, before memory is written to that it may read."""
    for queue in list(_queues):
        if queue.nodes:
            queue.flush()


arrays_of.readers.append(flush_all)


# --- running --------------------------------------------------------------------------------------


def run(nodes: Sequence[Node], outputs: Sequence[Ref], target: str) -> list[Array]:
    """The results of nodes, computed as one graph on a target. Raises CompileError, with the op and
    the line that called it, where that cannot be compiled.
    """
    key, leaves, reads = _structure(nodes, outputs)
    key = (target, *key)
    found = _executables.get(key)
    if found is None:
        found = _compiled(nodes, outputs, leaves, reads, target)
        _executables[key] = found
    if isinstance(found, CompileError):
        raise found.with_traceback(None)
    results = list(found(leaves))
    for array in results:  # it is the setting that says where they are, for now
        array._is_anywhere = True
    return results


def _compiled(
    nodes: Sequence[Node],
    outputs: Sequence[Ref],
    leaves: Sequence[Any],
    reads: dict[Any, int],
    target: str,
) -> Any:
    """What runs a graph like that of these nodes, or the error that it cannot be compiled with."""
    inputs = [(f"x{i}", TensorSpec(x.shape, x.dtype), DATA) for i, x in enumerate(leaves)]
    graph = build("eager", inputs, reads, nodes, outputs)
    try:
        return bind(graph, find_target(target), parts={"mode": "train"}, history=_history)
    except CompileError as error:
        return error


def _structure(
    nodes: Sequence[Node], outputs: Sequence[Ref]
) -> tuple[tuple[int, ...], list[Any], dict[Any, int]]:
    """What graphs that run by the same code have in common, as numbers; the inputs, each once, and
    which operands read them.
    """
    key: list[int] = []
    leaves: list[Any] = []
    reads: dict[Any, int] = {}
    position: dict[int, int] = {}
    for n, node in enumerate(nodes):
        position[node.serial] = n
        key.append(node.kind)
        for ref in node.operands:
            there = stored(ref)
            if there is None:
                key += position[ref[0].serial], ref[1]
                continue
            name = identity(ref)
            if (number := reads.get(name)) is None:
                number = reads[name] = len(leaves)
                leaves.append(there)
            key.append(-1 - number)
    key.append(len(nodes))
    for node, i in outputs:
        key += position[node.serial], i
    return tuple(key), leaves, reads


def evaluate(outputs: Sequence[Ref]) -> list[Array]:
    """Results on demand, by the mode of this thread."""
    nodes = needed(outputs)
    if mode() == "reference":
        return by_reference(nodes, outputs)
    return run(nodes, outputs, where)
