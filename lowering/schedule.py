# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The order of a function's ops: one with a lower peak of memory, where there is one.

Several orders are tried: as late as possible what takes more bytes than it frees, as early as
possible what frees more than it takes, both, and greedily, forwards and backwards, what takes the
least next. The best of them, or the given one, is then improved around its peak: what lies idle
there is made later, what frees something comes earlier. The given order stays where none is lower.
Ops that are not pure, barriers among them, keep their order. Time is n log n in ops.
"""

import dataclasses
import heapq
from collections.abc import Callable, Iterable, Sequence

from ..dialect.base import Op
from ..dialect.mlir import func, ir
from .liveness import Analysis, Program, is_pure_rule

ROUNDS = 8
"""How often ops are moved around the peak of the best order found."""


@dataclasses.dataclass(frozen=True)
class Order:
    """An order of a program's steps, and the peak that it has; `before` is the given order's."""

    steps: list[int]
    peak: int
    before: int

    @property
    def is_better(self) -> bool:
        return self.peak < self.before


def best_order(function: func.FuncOp) -> tuple[Analysis, Order]:
    """The order with the lowest peak among those tried."""
    analysis = Analysis(function)
    graph = _Graph(analysis)
    given = list(range(len(analysis.work)))
    before = peak = analysis.program().peak()
    best = given
    for order in graph.orders():
        if (found := analysis.program(order).peak()) < peak:
            best, peak = order, found
    height = _height(analysis, best)
    for _ in range(ROUNDS):
        moved = [(_height(analysis, order), order) for order in graph.around_peak(best)]
        found, order = min(moved, key=lambda m: m[0])
        if found >= height:
            break
        best, height = order, found
    return analysis, Order(best, analysis.program(best).peak(), before)


def _height(analysis: Analysis, order: Sequence[int]) -> tuple[int, int]:
    """The most bytes live at one step, and at how many steps."""
    live = analysis.program(order).live()
    return max(live), live.count(max(live))


def reorder(function: func.FuncOp, analysis: Analysis, order: Sequence[int]) -> Callable[[], None]:
    """Move a function's ops into the order of its steps; what is no step goes right before its
    first user. Returns what moves them back.
    """
    ops = list(analysis.block.operations)
    _arrange(_in_full(analysis, order), ops[-1])
    return lambda: _arrange([op.operation for op in ops[:-1]], ops[-1])


def _arrange(ops: Iterable[ir.Operation], terminator: ir.OpView) -> None:
    for op in ops:
        op.move_before(terminator.operation)


def _in_full(analysis: Analysis, order: Sequence[int]) -> list[ir.Operation]:
    """All ops but the terminator, the steps in `order`, the others as late as they can be; those
    that nothing needs come last.
    """
    impure = _impure(analysis)
    found: dict[ir.Operation, None] = {}
    steps = [analysis.work[i].op for i in order]
    for op in [*steps, *analysis.ops[:-1]]:
        stack = [op]
        while stack:
            top = stack[-1]
            missing = [] if top in found else _needs(top, analysis, impure, found)
            if missing:
                stack.extend(reversed(missing))
            else:
                found.setdefault(stack.pop())
    return list(found)


def _needs(
    op: ir.Operation,
    analysis: Analysis,
    impure: dict[ir.Operation, ir.Operation | None],
    found: dict[ir.Operation, None],
) -> list[ir.Operation]:
    """The ops that have to come before `op` and have not yet."""
    makers = [v.owner for v in analysis.uses(op) if not isinstance(v.owner, ir.Block)]
    if (before := impure.get(op)) is not None:
        makers.append(before)
    return [m for m in makers if m not in found]


def is_pure(op: ir.Operation) -> bool:
    """True for ops that may move past any other: those of the dialect that say so, and what only
    computes.
    """
    if isinstance(op.opview, Op):
        return is_pure_rule(type(op.opview))
    return op.name.split(".")[0] in ("arith", "math", "tensor", "linalg")


def _impure(analysis: Analysis) -> dict[ir.Operation, ir.Operation | None]:
    """Each op that is not pure, with the one before it."""
    found: dict[ir.Operation, ir.Operation | None] = {}
    before = None
    for op in analysis.ops[:-1]:
        if not is_pure(op):
            found[op] = before
            before = op
    return found


class _Graph:
    """What the steps of a program wait for, take and free."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        self.program: Program = analysis.program()
        self.count = len(analysis.work)
        self.after = self._dependencies()
        self.before: list[list[int]] = [[] for _ in range(self.count)]  # who waits for a step
        for i, earlier in enumerate(self.after):
            for j in earlier:
                self.before[j].append(i)
        self.reads = [[v for v in dict.fromkeys(w.reads) if self._bytes(v)] for w in analysis.work]
        self.makes = [[r for r in w.op.results if self._bytes(r)] for w in analysis.work]
        self.maker = {v: i for i, values in enumerate(self.makes) for v in values}
        self.readers: dict[ir.Value, list[int]] = {}
        for i, values in enumerate(self.reads):
            for value in values:
                self.readers.setdefault(value, []).append(i)

    def _bytes(self, value: ir.Value) -> int:
        buffer = self.program.buffer_of.get(value)
        return buffer.size or 0 if buffer is not None and buffer.in_arena else 0

    def _dependencies(self) -> list[list[int]]:
        """For each step the steps before it in every order."""
        analysis = self.analysis
        step_of = {w.op: i for i, w in enumerate(analysis.work)}
        impure = _impure(analysis)
        closed: dict[ir.Operation, frozenset[int]] = {}
        found = []
        for op in analysis.ops[:-1]:  # operands stand before the ops that use them
            makers = [v.owner for v in analysis.uses(op) if not isinstance(v.owner, ir.Block)]
            if impure.get(op) is not None:
                makers.append(impure[op])
            needs: set[int] = set()
            for maker in makers:
                needs |= {step_of[maker]} if maker in step_of else closed[maker]
            if op in step_of:
                found.append(sorted(needs))
            else:
                closed[op] = frozenset(needs)
        return found

    # --- orders ---------------------------------------------------------------------------------

    def orders(self) -> list[list[int]]:
        """The orders to try, the given one left out."""
        given = list(range(self.count))
        hastened = self.hastened(given)
        return [
            self.delayed(given),
            hastened,
            self.delayed(hastened),
            self._greedy_forwards(),
            self._greedy_backwards(),
        ]

    def _takes(self, i: int) -> int:
        return sum(map(self._bytes, self.makes[i]))

    def _frees(self, i: int) -> int:
        """Bytes that only this step reads."""
        return sum(self._bytes(v) for v in self.reads[i] if len(self.readers[v]) == 1)

    def around_peak(self, order: Sequence[int]) -> list[list[int]]:
        """Orders with what lies idle at the peak made later, what frees bytes earlier, or both."""
        place = [0] * self.count
        for n, i in enumerate(order):
            place[i] = n
        live = self.analysis.program(order).live()
        at = live.index(max(live))
        idle, freeing = set(), set()
        for value, readers in self.readers.items():
            made, uses = self.maker.get(value, -1), [place[j] for j in readers]
            if made >= 0 and place[made] < at < min(uses):
                idle.add(made)
            if (made < 0 or place[made] <= at) and max(uses) > at:
                freeing.add(order[max(uses)])
        hastened = self.hastened(order, freeing)
        return [self.delayed(order, idle), hastened, self.delayed(hastened, idle)]

    def delayed(self, order: Sequence[int], only: set[int] | None = None) -> list[int]:
        """Each step that takes more than it frees, or those of `only`, right before the first that
        needs it.
        """
        is_late = [
            self._takes(i) > self._frees(i) if only is None else i in only
            for i in range(self.count)
        ]
        found: dict[int, None] = {}
        for i in [*(i for i in order if not is_late[i]), *order]:
            stack = [i]
            while stack:
                top = stack[-1]
                missing = [j for j in self.after[top] if j not in found]
                if missing and top not in found:
                    stack.extend(reversed(missing))
                else:
                    found.setdefault(stack.pop())
        return list(found)

    def hastened(self, order: Sequence[int], only: set[int] | None = None) -> list[int]:
        """Each step that frees at least what it takes, or those of `only`, right after the last
        that it waits for.
        """
        is_early = [
            0 < self._frees(i) >= self._takes(i) if only is None else i in only
            for i in range(self.count)
        ]
        waits = [len(earlier) for earlier in self.after]
        found: dict[int, None] = {}
        for i in order:
            stack = [i]
            while stack:
                top = stack.pop()
                if top in found:
                    continue
                found[top] = None
                for j in self.before[top]:
                    waits[j] -= 1
                    if not waits[j] and is_early[j]:
                        stack.append(j)
        return list(found)

    def _greedy_forwards(self) -> list[int]:
        """From the first step on, of those that can run the one that takes least net of what it
        frees.
        """
        left = {v: len(readers) for v, readers in self.readers.items()}
        waits = [len(earlier) for earlier in self.after]
        net = [self._takes(i) - self._frees(i) for i in range(self.count)]
        ready = [(net[i], i) for i in range(self.count) if not waits[i]]
        heapq.heapify(ready)
        found: dict[int, None] = {}
        while ready:
            worth, i = heapq.heappop(ready)
            if i in found or worth != net[i]:
                continue
            found[i] = None
            for value in self.reads[i]:
                left[value] -= 1
                if left[value] == 1:
                    last = next(j for j in self.readers[value] if j not in found)
                    net[last] -= self._bytes(value)
                    if not waits[last]:
                        heapq.heappush(ready, (net[last], last))
            for j in self.before[i]:
                waits[j] -= 1
                if not waits[j]:
                    heapq.heappush(ready, (net[j], j))
        return list(found)

    def _greedy_backwards(self) -> list[int]:
        """From the last step on, of those that nothing later waits for the one that adds least to
        what is live.
        """
        waits = [len(later) for later in self.before]
        live: set[ir.Value] = set()
        net = [sum(map(self._bytes, self.reads[i])) - self._takes(i) for i in range(self.count)]
        ready = [(net[i], -i) for i in range(self.count) if not waits[i]]
        heapq.heapify(ready)
        found: dict[int, None] = {}
        while ready:
            worth, negative = heapq.heappop(ready)
            i = -negative
            if i in found or worth != net[i]:
                continue
            found[i] = None
            for value in self.reads[i]:
                if value in live:
                    continue
                live.add(value)
                for j in self.readers[value]:
                    if j not in found:
                        net[j] -= self._bytes(value)
                        if not waits[j]:
                            heapq.heappush(ready, (net[j], -j))
            for j in self.after[i]:
                waits[j] -= 1
                if not waits[j]:
                    heapq.heappush(ready, (net[j], -j))
        return list(reversed(found))
