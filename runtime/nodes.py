# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Ops that are put off: what a node keeps of one, the graph that nodes make, and running them.

A node's operands are what the arrays held when the op was called: `(node, result)` where that was
put off, too, else the elements (NumPy's, which nobody writes to) or an Array of the same buffer. So
writing to an array later changes nothing for the nodes before. Nodes hold what they read, arrays
hold their `Value`, which holds its node: what nobody can ask for any more is gone by itself.
"""

import itertools
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..dialect import builder as builders
from ..dialect.base import Op
from ..dialect.creation import constant
from ..dialect.graph import Graph, user_frame
from ..dialect.mlir import ir
from ..dialect.types import TensorSpec
from .array import Array, of_value

_serial = itertools.count()
_kinds: dict[Any, int] = {}
_kind = itertools.count()
KINDS = 1 << 16
"""Kinds of ops that are known by number."""

Place = tuple[str, int]
"""A file and a line."""

Ref = tuple["Node", int]
"""A result of a node."""


class Node:
    """An op that was put off."""

    __slots__ = (
        "__weakref__", "attributes", "found", "kind", "name", "op_class", "operands", "owner",
        "place", "serial", "specs", "values",
    )  # fmt: skip

    def __init__(
        self,
        owner: Any,
        op_class: type[Op] | None,
        operands: tuple[Any, ...],
        attributes: dict[str, Any],
        specs: Sequence[TensorSpec],
        name: str,
        place: Place | None,
    ) -> None:
        self.owner = owner  # the queue or scope
        self.op_class = op_class
        self.operands = operands
        self.attributes = attributes
        self.specs = specs
        self.name = name
        self.place = place
        self.serial = next(_serial)
        self.kind = -1
        self.values: list[Any] = []  # weakly, what arrays have of the results
        self.found: dict[int, Array] = {}  # results that are known, where they are kept

    def arrays(self) -> list[Array]:
        """New arrays that stand for the results."""
        found = [promised(Value(self, i), spec) for i, spec in enumerate(self.specs)]
        self.values = [weakref.ref(array._source) for array in found]
        return found


class Leaf(Node):
    """An array that deferred compute met: an input of the graph, or a constant. `name` is that of
    the variable it is bound to, "" for none.
    """

    __slots__ = ("array", "snapshot")

    def __init__(self, owner: Any, array: Array, snapshot: Any) -> None:
        super().__init__(owner, None, (), {}, (array.spec,), "", place())
        self.array = array
        self.snapshot = snapshot  # None for what only a call knows


class Value:
    """A result of a node, as the source of arrays."""

    __slots__ = ("__weakref__", "index", "node", "result")

    def __init__(self, node: Node, index: int) -> None:
        self.node = node
        self.index = index
        self.result: Array | None = None

    def resolve(self, array: Array) -> None:
        """Compute the elements of an array, which has this as its source."""
        self.node.owner.resolve(self, array)


def promised(value: Value, spec: TensorSpec) -> Array:
    """An array whose elements are still to be computed. Extents may be open, as they are where a
    function is traced for types (export_hybrid.py).
    """
    found = Array(None, spec.shape, spec.dtype)  # type: ignore[arg-type]
    found._source = value
    return found


def held(array: Array) -> Any:
    """What an array holds now, whatever is written to it later: its elements, or an Array of the
    same buffer. DonationError for an array that was donated.
    """
    value = array._value
    if value is not None:
        return value
    array.buffer_view()
    return array.snapshot()


def place() -> Place | None:
    """The user's line that is being executed."""
    frame = user_frame()
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def scoped(name: str) -> str:
    """A name with the open name scopes in front."""
    scopes = builders.scopes()
    return ".".join([*scopes, name]) if scopes else name


def kind_of(op_class: type[Op], attributes: dict[str, Any], arrays: Sequence[Array]) -> int:
    """A number for all that is compiled of an op: equal for the same op, attributes and types."""
    key = (
        op_class,
        *((field, frozen(value)) for field, value in attributes.items()),
        *((a.shape, a.dtype) for a in arrays),
    )
    number = _kinds.get(key)
    if number is None:
        if len(_kinds) >= KINDS:
            _kinds.clear()  # numbers are not given twice
        number = _kinds[key] = next(_kind)
    return number


def frozen(value: Any) -> Any:
    """An attribute as part of a key; 0.0 and -0.0 differ, NaNs of one spelling do not."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype, value.tobytes()
    if isinstance(value, tuple | list):
        return tuple(map(frozen, value))
    return value


# --- graphs ---------------------------------------------------------------------------------------


class Replayed(Graph):
    """A graph made of nodes; its ops have the places of the calls that made the nodes."""

    place: Place | None = None

    def _source_location(self) -> ir.Location:
        if self.place is None:
            return ir.Location.unknown()
        return ir.Location.file(*self.place, 0)


def stored(ref: Any) -> Any:
    """What an operand reads that is there: elements, or an Array; None for a result that is still
    to be computed.
    """
    if type(ref) is not tuple:
        return ref
    node, i = ref
    return node.snapshot if type(node) is Leaf else node.found.get(i)


def needed(refs: Sequence[Ref], whole: bool = False) -> list[Node]:
    """The nodes to run for results, in the order of the calls; those of known results, too, for the
    `whole` graph.
    """
    seen: dict[int, Node] = {}
    pending = [ref[0] for ref in refs if whole or stored(ref) is None]
    while pending:
        node = pending.pop()
        if type(node) is not Leaf and node.serial not in seen:
            seen[node.serial] = node
            read = [ref for ref in node.operands if type(ref) is tuple]
            pending += [ref[0] for ref in read if whole or stored(ref) is None]
    return [seen[n] for n in sorted(seen)]


def build(
    name: str,
    inputs: Sequence[tuple[str, TensorSpec, str]],
    reads: dict[Any, int],
    nodes: Sequence[Node],
    outputs: Sequence[Ref],
) -> Graph:
    """The graph of nodes. `inputs` are its inputs: name, type and role. `reads` says by identities
    of operands (see `identity`) which input they read; other elements are constants.
    """
    graph = Replayed(name)
    tensors = [graph.input(n, spec, role=role) for n, spec, role in inputs]
    values = {key: tensors[i] for key, i in reads.items()}
    scopes = builders.scopes()
    before, scopes[:] = list(scopes), []  # names have their scopes already
    try:
        with graph:
            for node in nodes:
                graph.place = node.place
                _append(graph, node, values)
            graph.place = None
            made = [_tensor(ref, values) for ref in outputs]
    finally:
        scopes[:] = before
    graph.output(made)
    graph.finish()
    return graph


def _append(graph: Graph, node: Node, values: dict[Any, Any]) -> None:
    operands = [_tensor(ref, values) for ref in node.operands]
    assert node.op_class is not None
    made = node.op_class.append(graph, operands, node.attributes, node.name)
    for i, tensor in enumerate(made if isinstance(made, tuple) else (made,)):
        values[node.serial, i] = tensor


def _tensor(ref: Any, values: dict[Any, Any]) -> Any:
    key = identity(ref)
    found = values.get(key)
    if found is None:
        found = values[key] = constant(elements(stored(ref)))
    return found


def identity(ref: Any) -> Any:
    """What is the same for operands that are the same value."""
    if type(ref) is tuple:
        return ref[0].serial, ref[1]
    return id(ref) if type(ref) is np.ndarray else id(ref._view)


def by_reference(nodes: Sequence[Node], outputs: Sequence[Ref]) -> list[Array]:
    """The results of nodes, run one by one on NumPy by the ops' reference."""
    values: dict[Any, tuple[np.ndarray, ...]] = {}
    last = {ref[0].serial: n.serial for n in nodes for ref in n.operands if type(ref) is tuple}
    last.update({node.serial: -1 for node, _ in outputs})
    for node in nodes:
        assert node.op_class is not None
        operands = [_known(ref, values) for ref in node.operands]
        values[node.serial] = node.op_class.compute(node.specs, operands, node.attributes)
        for ref in node.operands:
            if type(ref) is tuple and last[ref[0].serial] == node.serial:
                values.pop(ref[0].serial, None)
    return [of_value(np.array(_known(ref, values))) for ref in outputs]


def _known(ref: Any, values: dict[Any, tuple[np.ndarray, ...]]) -> np.ndarray:
    found = stored(ref)
    return values[ref[0].serial][ref[1]] if found is None else elements(found)


def elements(held: Any) -> np.ndarray:
    """The elements of what an array held."""
    return held if type(held) is np.ndarray else held.numpy()
