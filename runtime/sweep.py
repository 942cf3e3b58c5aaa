# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Going backwards through a recorded graph: from the gradients of its heads to those of variables,
without recursion, each node after all that read what it made.
"""

import contextlib
import heapq
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..dialect.types import float32, is_narrow
from ..errors import GradientError
from . import lazy
from .array import Array, of_value
from .state import state
from .tape import History, Mark, Node

Place = tuple[Node, int]


class Total:
    """A sum of contributions, in the order they come; of 16-bit floats in float32, rounded when it
    is asked for.
    """

    __slots__ = ("_is_own", "_sum")

    def __init__(self, first: Array) -> None:
        self._sum = first
        self._is_own = False  # whether the memory of the sum is nobody else's

    def add(self, other: Array, fast: bool) -> None:
        if is_narrow(other.dtype):
            other = other.astype(float32)
            self._sum = self._sum.astype(float32)
        if not fast:
            self._sum = self._sum + other
        elif self._is_own:
            np.add(self._sum._value, other.numpy(), out=self._sum._value)  # type: ignore[arg-type]
        else:
            self._sum = of_value(np.asarray(self._sum.numpy() + other.numpy()))
            self._is_own = True

    def value(self, dtype: Any) -> Array:
        return self._sum.astype(dtype) if self._sum.dtype != dtype else self._sum

    def added_to(self, before: Array) -> Array:
        """The sum on top of what was there before, rounded once."""
        if is_narrow(before.dtype):
            return (before.astype(float32) + self._sum.astype(float32)).astype(before.dtype)
        return before + self._sum


def is_fast(create_graph: bool) -> bool:
    """Whether ops run on NumPy at once, and nobody has to know of them."""
    return not create_graph and state.deferred is None and lazy.mode() == "reference"


@contextlib.contextmanager
def recording(on: bool) -> Iterator[None]:
    """Within it, the thread records, or does not."""
    before = state.recording
    state.recording = on
    try:
        yield
    finally:
        state.recording = before


def reachable(heads: Sequence[History], first: int = 0, whole: bool = True) -> list[Node]:
    """The nodes from the number `first` on that heads depend on, and those next to them, in the
    order they were made. GradientError where one of them has been freed, if the `whole` graph has
    to be there.
    """
    found: set[Node] = set()
    left = [h.node for h in heads]
    while left:
        node = left.pop()
        if node in found:
            continue
        found.add(node)
        if node.number < first:
            continue
        if node.freed and whole:
            raise GradientError(
                "backward expected a recorded graph, got one that was freed, in whole or in part, "
                f"by an earlier backward (at the result of {node.name}); give that one "
                "retain_graph=True, or take .detach() of what comes from before it"
            )
        left.extend(p.node for p in node.parents if p is not None)
    return sorted(found, key=lambda n: n.number)


def gradients(
    heads: Sequence[tuple[History, Array]],
    variables: Sequence[Place] | None,
    retain: bool,
    create_graph: bool,
    first: int = 0,
) -> list[Array | None]:
    """The gradients by variables, None where no head depends on one; without variables, those that
    arrays were marked for are written to their buffers, or added. Nothing is written, or freed,
    where something fails. With `create_graph` the backward is recorded. Nodes before the number
    `first` are no part of the graph.
    """
    if state.deferred is not None:
        state.deferred.differentiates = True
    nodes = reachable([h for h, _ in heads], first)
    wanted = None if variables is None else set(variables)
    with recording(create_graph):
        totals = _sweep(heads, nodes, wanted, is_fast(create_graph))
        if variables is None:
            found: list[Array | None] = []
            ready = [_filled(mark, total) for mark, total in _marked(totals)]
            for (mark, _), new in zip(_marked(totals), ready, strict=True):
                fill(mark, new)
        else:
            found = [_value(totals.get(place)) for place in variables]
    if not retain:
        for node in nodes:
            if node.number >= first:
                node.free()
    return found


def _value(total: tuple[Total, Any] | None) -> Array | None:
    return None if total is None else total[0].value(total[1])


def _marked(totals: dict[Place, tuple[Total, Any]]) -> list[tuple[Mark, Total]]:
    places = totals.items()
    marks = [((node.marks or {}).get(index), total) for (node, index), (total, _) in places]
    return [(m, t) for m, t in marks if m is not None and m.request != "null"]


def _filled(mark: Mark, total: Total) -> Array:
    """What a gradient's buffer holds after the backward."""
    assert mark.gradient is not None
    if mark.request == "add":
        return total.added_to(mark.gradient)
    return total.value(mark.gradient.dtype)


def fill(mark: Mark, new: Array) -> None:
    """Write a gradient to its buffer, whatever stands there in a recorded graph."""
    assert mark.gradient is not None
    mark.gradient.rebind(new)
    mark.is_fresh = True


def _useful(nodes: list[Node], wanted: set[Place] | None) -> set[Node]:
    """The nodes that a gradient has to pass, or ends at."""
    if wanted is None:
        ends = {n for n in nodes if any(m.request != "null" for m in (n.marks or {}).values())}
    else:
        ends = {n for n, _ in wanted}
    found: set[Node] = set()
    for node in nodes:
        if node in ends or any(p is not None and p.node in found for p in node.parents):
            found.add(node)
    return found


def _sweep(
    heads: Sequence[tuple[History, Array]],
    nodes: list[Node],
    wanted: set[Place] | None,
    fast: bool,
) -> dict[Place, tuple[Total, Any]]:
    """The totals, with their dtypes, of what is wanted, or marked, in the order they are met."""
    useful = _useful(nodes, wanted)
    totals: dict[Place, tuple[Total, Any]] = {}
    found: dict[Place, tuple[Total, Any]] = {}
    results: dict[Node, set[int]] = {}
    queue: list[tuple[int, Node]] = []

    def put(history: History, ct: Array) -> None:
        node, place = history.node, (history.node, history.index)
        if node not in useful:
            return
        if place in totals:
            totals[place][0].add(ct, fast)
            return
        totals[place] = Total(ct), ct.dtype
        if node not in results:
            results[node] = set()
            heapq.heappush(queue, (-node.number, node))
        results[node].add(history.index)

    for history, ct in heads:
        put(history, ct)
    while queue:
        node = heapq.heappop(queue)[1]
        indices = results.pop(node)
        for i in sorted(indices):
            if i in (node.marks or ()) if wanted is None else (node, i) in wanted:
                found[node, i] = totals[node, i]
        given = {i: _value(totals.pop((node, i))) for i in indices}
        if not any(p is not None and p.node in useful for p in node.parents):
            continue
        cts = [given.get(i) for i in range(node.count)]
        for parent, gradient in zip(node.parents, node.pull(cts, fast), strict=True):
            if parent is not None and gradient is not None:
                put(parent, gradient)
    return found
