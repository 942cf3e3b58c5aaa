# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The tape: ops recorded for gradients.

An array that depends on a variable has a History: the node of the op that made it, and which of the
op's results it is. Nodes know the places of their operands and keep what their gradient reads, as
the op's rule says (programs.py). Nothing refers from a node to the arrays that it made, so that a
graph that nobody can differentiate any more is freed at once. sweep.py goes backwards through it.
"""

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..dialect.base import Op
from ..dialect.control import TagOp
from ..dialect.graph import user_frame
from ..dialect.types import is_float
from ..errors import GradientError
from .array import Array, device_put, of_value
from .programs import Program, Rule, rule
from .state import state

REQUESTS = ("write", "add", "null")

_order = itertools.count()
"""Nodes are numbered as they are made: operands have smaller numbers than results."""


class Mark:
    """The request for a gradient: what becomes of it, and the array that holds it."""

    __slots__ = ("gradient", "is_fresh", "request")

    def __init__(self, request: str, gradient: Array | None) -> None:
        self.request = request
        self.gradient = gradient
        self.is_fresh = False  # whether a backward has filled it since somebody last took it


class Node:
    """What made values of a recorded graph: here, nothing did: it is a variable.

    `parents` are the places of what it was made from, None for what needs no gradient.
    """

    __slots__ = (
        "__weakref__", "count", "freed", "marks", "needs", "number", "parents",
        "writes",
    )  # fmt: skip
    name = "a variable"

    def __init__(self, parents: tuple["History | None", ...] = (), count: int = 1) -> None:
        self.count = count  # of results
        self.number = next(_order)
        self.parents = parents
        self.marks: dict[int, Mark] | None = None  # by result
        self.freed = False
        self.writes = 0  # how often a variable was written to
        self.needs = bool(parents)  # False for variables whose gradient nobody wants

    def pull(self, cts: list[Array | None], fast: bool) -> Sequence[Array | None]:
        """The gradients by the parents, None for zeros, from those by the results. `fast` says that
        ops run on NumPy and are not recorded.
        """
        raise NotImplementedError(type(self))

    def kept(self) -> list[Any]:
        """The arrays that are kept for the backward."""
        return []

    def free(self) -> None:
        """Let go of all that the backward needs."""
        if self.parents:
            self.freed = True
            self.parents = ()


class History:
    """The place of an array in a recorded graph: the node that made it, and which result it is."""

    __slots__ = ("assigned", "index", "node")

    def __init__(self, node: Node, index: int = 0, assigned: bool = False) -> None:
        self.node = node
        self.index = index
        self.assigned = assigned  # the array came here by assignments to it

    @property
    def needs(self) -> bool:
        """Whether what is made from the array has a gradient to hand on."""
        return self.node.needs

    @property
    def mark(self) -> Mark | None:
        return None if self.node.marks is None else self.node.marks.get(self.index)

    def set_mark(self, mark: Mark | None) -> None:
        """Ask for the gradient of what stands here, or no more."""
        marks = dict(self.node.marks or {})
        marks.pop(self.index, None)
        self.node.marks = {**marks, self.index: mark} if mark is not None else marks or None

    def is_leaf(self) -> bool:
        """True for variables, which no op made."""
        return not self.node.parents and not self.node.freed

    def check_write(self, array: Array, what: str) -> None:
        """Raise GradientError where an array that stands here must not be written to."""
        if self.node.freed or (self.is_leaf() and not (state.recording and self.needs)):
            return
        if self.assigned and self.mark is None:
            return
        frame = user_frame()
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}: " if frame else ""
        if self.is_leaf():
            raise GradientError(
                f"{where}{what} while recording would change a variable (attach_grad) of type "
                f"{array.spec}, and its gradient could not say of which elements it is; write to "
                "it outside go.record(), or in `with go.pause():`, or make a new array, as "
                "x.at[key].set(value) does"
            )
        raise GradientError(
            f"{where}{what} would change an array of type {array.spec} that is part of a recorded "
            f"graph (it is the result of {self.node.name}), and gradients would no longer be those "
            "of what was computed; make a new array, as x.at[key].set(value) does, write to "
            "x.detach(), or go backward first"
        )

    def after_write(self, new: "History | None") -> "History | None":
        """Where an array stands once it was written to: a variable stays one, and so does what is
        marked; else it is where the value is that was assigned.
        """
        if self.is_leaf() and self.mark is not None:
            self.node.writes += 1
            return self
        if (mark := self.mark) is not None:
            return leaf(mark)
        return new

    def of_assignment(self) -> "History":
        """The place of an array that is not an op's result, but was given its elements."""
        return History(self.node, self.index, True)

    def of_copy(self, device: str) -> "History | None":
        """The place of a copy of an array that lives on a device."""
        return History(CopyNode(self, device)) if self.needs else None


def leaf(mark: Mark | None = None) -> History:
    """The place of a new variable; without a mark it is one whose gradient is asked for by its
    place.
    """
    node = Node()
    node.needs = mark is None or mark.request != "null"
    if mark is not None:
        node.marks = {0: mark}
    return History(node)


class CopyNode(Node):
    """A copy of a value, maybe on another device than the value, where its gradient goes."""

    __slots__ = ("device",)
    name = "a copy"

    def __init__(self, parent: History, device: str) -> None:
        super().__init__((parent,))
        self.device = device

    def pull(self, cts: list[Array | None], fast: bool) -> Sequence[Array | None]:
        return [
            ct if ct is None or ct.device == self.device else device_put(ct, self.device)
            for ct in cts
        ]


class OpNode(Node):
    """A recorded op, with what the backward by its rule reads: of its operands, then its
    results.
    """

    __slots__ = ("read", "rule")

    def __init__(
        self,
        rule: Rule,
        arrays: Sequence[Array],
        results: Sequence[Array],
        parents: tuple[History | None, ...],
    ) -> None:
        backward = rule.program
        self.read: tuple[Any, ...] = ()
        if type(backward) is Program:
            if None in backward.gradients:  # states have no gradient: nothing of them is kept
                found = zip(parents, backward.gradients, strict=True)
                parents = tuple(None if g is None else p for p, g in found)
            inputs, outputs, _ = backward.reads
            if inputs or outputs:
                kept = [arrays[i] for i in inputs] + [results[i] for i in outputs]
                self.read = tuple([keep(x) for x in kept])
        super().__init__(parents, len(results))
        self.rule = rule

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"'{self.rule.op_class.OPERATION_NAME}'"

    def kept(self) -> list[Any]:
        return list(self.read)

    def free(self) -> None:
        super().free()
        self.read = ()

    def pull(self, cts: list[Array | None], fast: bool) -> Sequence[Array | None]:
        backward = self.rule.given(tuple([ct is not None for ct in cts]))
        if backward is None:
            return [None] * len(self.parents)
        heads = [self._ct(cts, i) for i in backward.reads[2]]
        if fast:
            given = [*self._selected(backward), *heads]
            shared = all(not isinstance(g, Array) or g._value is not None for g in given)
            arrays = [g.numpy() if isinstance(g, Array) else g for g in given]
            return backward.evaluate(arrays, shared)
        places = [self.parents[i] for i in backward.reads[0]]
        places += [History(self, i) for i in backward.reads[1]]
        pairs = zip(self._selected(backward), places, strict=True)
        return backward.run([placed(kept, place) for kept, place in pairs] + heads)

    def _selected(self, backward: Program) -> Sequence[Any]:
        """What a program reads, of what is kept."""
        every = self.rule.program
        if backward is every:
            return self.read
        assert isinstance(every, Program)
        names = [(n, i) for n in (0, 1) for i in every.reads[n]]
        found = dict(zip(names, self.read, strict=True))
        return [found[n, i] for n in (0, 1) for i in backward.reads[n]]

    def _ct(self, cts: list[Array | None], i: int) -> Array:
        if (ct := cts[i]) is not None:
            return ct
        spec = self.rule.results[i]
        return of_value(np.zeros(spec.extents, spec.dtype))


def keep(array: Array) -> Any:
    """What keeps an array's elements as they are now."""
    is_there = array._value is not None and array._source is None and state.deferred is None
    return array._value if is_there else array.snapshot()


def placed(kept: Any, place: History | None) -> Array:
    """What was kept as an array that stands where it stood."""
    found = kept.snapshot() if isinstance(kept, Array) else of_value(kept)
    found._history = place
    return found


def next_number() -> int:
    """The number that nodes made from now on have at least."""
    return next(_order)


def needed(array: Any) -> History | None:
    """Where an array stands in a recorded graph, if its gradient is asked for; None else."""
    history = getattr(array, "_history", None)
    return history if history is not None and history.node.needs else None


def variable(array: Array) -> Array:
    """An array of the same elements as a new variable; where the thread records, a copy."""
    place = needed(array) if state.recording else None
    found = array.snapshot()
    found._history = leaf() if place is None else place.of_copy(array.device)
    return found


class Follower:
    """What a function does that is run to be differentiated, besides what the graph knows: values
    that were tagged, and what values depend on in ways that have no gradient, which the follower of
    a function around it is told, too.
    """

    def __init__(self, outer: "Follower | None") -> None:
        self.tags: list[tuple[str, Array]] = []
        self.sources: dict[Node, list[Node]] = {} if outer is None else outer.sources

    def note(
        self,
        op_class: type[Op],
        attributes: dict[str, Any],
        arrays: Sequence[Array],
        results: Sequence[Array],
    ) -> None:
        """Take down an op that was run. What it gives has a place, though it needs no gradient."""
        if op_class is TagOp:
            (result,) = results
            self.tags.append((attributes["label"], result))
            if result._history is None and is_float(result.dtype):
                result._history = leaf()
        sources = [a._history.node for a in arrays if a._history is not None]
        for result in results if sources else ():
            if result._history is None:
                result._history = History(Node())
            self.sources[result._history.node] = sources

    def reachable(self, nodes: Sequence[Node]) -> set[Node]:
        """All that nodes depend on, in whatever way."""
        found: set[Node] = set()
        left = list(nodes)
        while left:
            if (node := left.pop()) not in found:
                found.add(node)
                left += [p.node for p in node.parents if p is not None]
                left += self.sources.get(node, ())
        return found


@contextlib.contextmanager
def following(follower: Follower | None) -> Iterator[None]:
    """Within it, a follower is told of what the thread records, and no other."""
    before = state.follower
    state.follower = follower
    try:
        yield
    finally:
        state.follower = before


def record(
    op_class: type[Op],
    attributes: dict[str, Any],
    arrays: Sequence[Array],
    results: Sequence[Array],
) -> None:
    """Take down that an op made `results` of `arrays`, if one of these needs a gradient."""
    parents = tuple([h if (h := a._history) is not None and h.node.needs else None for a in arrays])
    if parents.count(None) < len(parents):
        _record(op_class, attributes, arrays, results, parents)
    if state.follower is not None:
        state.follower.note(op_class, attributes, arrays, results)


def _record(
    op_class: type[Op],
    attributes: dict[str, Any],
    arrays: Sequence[Array],
    results: Sequence[Array],
    parents: tuple[History | None, ...],
) -> None:
    found = rule(op_class, attributes, arrays, tuple([p is not None for p in parents]))
    if found.program is None:
        return
    node = OpNode(found, arrays, results, parents)
    for i, result in enumerate(results):
        if found.floats[i]:
            result._history = History(node, i)
