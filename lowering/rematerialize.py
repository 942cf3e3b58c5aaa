# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-rematerialize: what the backward computes anew instead of having it kept since the
forward, by a policy or so that the memory fits a budget.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from ..dialect.control import is_public, symbols
from ..dialect.mlir import func, ir
from .passes import failure, gradopt_pass
from .recompute import CONSTANT, FREE, VIEW, Model, Step

LARGEST = 1_000_000_000
"""What the finite capacities of a cut add up to at most; scipy's are 32 bits."""
NEVER = 2**31 - 1
MOST_SEGMENTS = 96
"""Most stretches that a function is computed anew by."""


def turns(model: Model) -> list[int]:
    """Places to cut a function in two: where most bytes are alive, and where most are waiting, each
    counted for as long as it is not read.
    """
    order = model.unchanged()
    live = model.live(order)
    waiting = np.zeros(len(order) + 1)
    for v in range(model.arguments, len(model.values)):
        used = [model.producer[v], *model.users[v]]
        for a, b in itertools.pairwise(used):
            waiting[a + 1] += model.bytes[v] * (b - a)
            waiting[b] -= model.bytes[v] * (b - a)
    found = [int(np.argmax(live)) + 1, int(np.argmax(np.cumsum(waiting)))]
    return sorted({min(max(t, 1), len(order)) for t in found})


class Budget:
    """The search for the choice of least work whose peak fits: many candidates, each simulated.

    The candidates are cheapest cuts of the early part at a price a byte, with checkpoints forced at
    evenly spaced narrow points so that the work is done anew segment by segment; then mixtures of a
    candidate that fits and a cheaper one that does not; then single values kept or dropped.
    """

    def __init__(self, model: Model, turn: int) -> None:
        self.model = model
        self.turn = turn
        self.tried: dict[bytes, tuple[int, float]] = {}
        self.cut = Cut(model, turn)
        self.choices = self.cut.choices
        self.line = Line(model, turn, self.choices)

    def measure(self, keep: np.ndarray) -> tuple[int, float]:
        """(peak bytes, seconds of work done anew) of a choice."""
        key = np.packbits(keep).tobytes()
        if key not in self.tried:
            order, copies = self.model.schedule(self.turn, keep.tolist())
            peak = self.model.peak(order, copies)
            self.tried[key] = peak, sum(self.model.seconds[s[0]] for s in order if s[3])
        return self.tried[key]

    def least_work(self, bytes_: int) -> tuple[np.ndarray, int, float]:
        """The choice found with the least work among those whose peak is at most `bytes_`; if there
        is none, that with the smallest peak.
        """
        found = [self._best(found, bytes_) for found in self._families(bytes_)]
        best = self._best(found, bytes_)
        if self.measure(best)[0] > bytes_:
            best = self._descend(best, bytes_)
        cheaper = [k for k in found if self.measure(k)[1] < self.measure(best)[1]]
        for other in [*cheaper, self.cut.everything()]:
            best = self._mixed(best, other, bytes_)
        best = self._refine(best, bytes_)
        return best, *self.measure(best)

    def _rank(self, keep: np.ndarray, bytes_: int) -> tuple[float, float]:
        peak, seconds = self.measure(keep)
        return (0, seconds) if peak <= bytes_ else (peak, seconds)

    def _best(self, candidates: Iterable[np.ndarray], bytes_: int) -> np.ndarray:
        return min(candidates, key=lambda k: self._rank(k, bytes_))

    def _families(self, bytes_: int) -> Iterator[list[np.ndarray]]:
        """For each number of checkpoints, cuts at prices that close in on the budget."""
        prices = self.cut.prices()
        counts, most = [0], min(MOST_SEGMENTS, self.turn // 3)
        while counts[-1] < most:
            counts.append(min(most, max(counts[-1] + 1, counts[-1] * 4 // 3)))
        for count in counts:
            forced = self.line.checkpoints(count)
            found, low, high = [], 0, len(prices)
            while low < high:
                middle = (low + high) // 2
                found.append(self.cut.solve(prices[middle], forced))
                if self.measure(found[-1])[0] <= bytes_:
                    high = middle
                else:
                    low = middle + 1
            yield found

    def _mixed(self, fits: np.ndarray, cheap: np.ndarray, bytes_: int) -> np.ndarray:
        """The best of the choices that follow `cheap` on one side of a place and `fits` on the
        other.
        """
        best = fits
        values = np.arange(len(fits))
        for cheap_first in (False, True):
            low, high = 0, len(fits)
            while high - low > 1:
                middle = (low + high) // 2
                part = values < middle if cheap_first else values >= len(fits) - middle
                mixed = np.where(part, cheap, fits)
                if self.measure(mixed)[0] <= bytes_:
                    low, best = middle, self._best([best, mixed], bytes_)
                else:
                    high = middle
        return best

    def _descend(self, start: np.ndarray, bytes_: int) -> np.ndarray:
        """Single values kept or dropped as long as the peak falls, while it does not fit."""
        best = start
        for _ in range(4):
            before = self._rank(best, bytes_)
            for v in self._limited(self.choices):
                other = best.copy()
                other[v] = not other[v]
                best = self._best([best, other], bytes_)
            if self._rank(best, bytes_)[0] == 0 or self._rank(best, bytes_) == before:
                break
        return best

    def _limited(self, values: Sequence[int]) -> Sequence[int]:
        """As many of the values as can be tried one by one."""
        most = max(4_000_000 // (len(self.model) + 1) ** 1, 1) // 40 + 16
        return values if len(values) <= most else values[:: -(-len(values) // most)]

    def _refine(self, start: np.ndarray, bytes_: int) -> np.ndarray:
        """Values kept that were computed anew where that still fits, the dearest first; then
        exchanges of one for another in small functions.
        """
        best, model = start, self.model
        for _ in range(3):
            before = self._rank(best, bytes_)
            dropped = [v for v in self.choices if not best[v]]
            dropped.sort(key=lambda v: (-model.seconds[model.producer[v]] / (model.bytes[v] or 1), v))
            for v in self._limited(dropped):
                other = best.copy()
                other[v] = True
                best = self._best([best, other], bytes_)
            if len(self.choices) <= 40:
                best = self._exchange(best, bytes_)
            if self._rank(best, bytes_) == before:
                break
        return best

    def _exchange(self, best: np.ndarray, bytes_: int) -> np.ndarray:
        for v in self.choices:
            for u in self.choices:
                other = best.copy()
                other[v] = not other[v]
                other[u] = not other[u]
                best = self._best([best, other], bytes_)
        return best


class Cut:
    """The cheapest way to have what the late ops need, at a price a byte kept: a minimum cut.

    A value has a node that is on the source's side if it is needed, an op one that is if it is done
    anew. A needed value whose op is not done anew pays for its bytes, an op done anew for its time,
    and it needs its operands.
    """

    def __init__(self, model: Model, turn: int) -> None:
        self.model, self.turn = model, turn
        is_early = [0 <= p < turn for p in model.producer]
        needed = _ancestors(model, turn, is_early)
        self.values = [v for v in range(len(model.values)) if needed[v]]
        self.ops = sorted({model.producer[v] for v in self.values})
        self.value_node = {v: 2 + i for i, v in enumerate(self.values)}
        self.op_node = {o: 2 + len(self.values) + i for i, o in enumerate(self.ops)}
        self.choices = [
            v
            for v in self.values
            if model.movable[p := model.producer[v]] and model.kind[p] not in (FREE, VIEW, CONSTANT)
        ]
        self.read_late = [
            v for v in self.values if any(u >= turn for u in model.users[v])
        ]

    def everything(self) -> np.ndarray:
        """The choice that keeps all."""
        return np.ones(len(self.model.values), bool)

    def prices(self) -> list[float]:
        """Prices a byte worth trying, rising: at the lowest everything is kept, at the highest
        hardly anything.
        """
        model = self.model
        ratios = sorted(
            model.seconds[model.producer[v]] / model.bytes[v]
            for v in self.choices
            if model.bytes[v] and model.seconds[model.producer[v]]
        )
        if not ratios:
            return [1.0]
        low, high = ratios[0] / 2, sum(ratios)
        return [low * (high / low) ** (i / 31) for i in range(32)]

    def solve(self, price: float, forced: Iterable[int] = ()) -> np.ndarray:
        """The cheapest choice, as flags of what is kept; `forced` is kept at no price."""
        model, rows, columns, capacities = self.model, [], [], []
        free = set(forced)

        def edge(a: int, b: int, capacity: float) -> None:
            rows.append(a)
            columns.append(b)
            capacities.append(capacity)

        for v in self.read_late:
            edge(0, self.value_node[v], math.inf)
        for v in self.values:
            op = model.producer[v]
            if v in free:
                continue
            kept = price * model.bytes[v]
            if not model.movable[op]:
                edge(self.value_node[v], 1, kept)
            else:
                cheap = model.kind[op] in (FREE, VIEW)
                edge(self.value_node[v], self.op_node[op], math.inf if cheap else kept)
        for op in self.ops:
            if model.movable[op] and model.kind[op] != CONSTANT:
                if model.seconds[op]:
                    edge(self.op_node[op], 1, model.seconds[op])
                for u in set(model.ins[op]):
                    if u in self.value_node:
                        edge(self.op_node[op], self.value_node[u], math.inf)
        needed = min_cut(rows, columns, capacities, 2 + len(self.values) + len(self.ops))
        keep = np.zeros(len(model.values), bool)
        for v in self.choices:
            keep[v] = v in free or not needed[self.op_node[model.producer[v]]]
        return keep


def min_cut(
    rows: Sequence[int], columns: Sequence[int], capacities: Sequence[float], nodes: int
) -> np.ndarray:
    """Which nodes are on the side of node 0 in a smallest cut between it and node 1.

    Capacities are scaled to integers that add up to a billion at most, infinite ones excepted.
    """
    given = np.asarray(capacities, float)
    finite = np.isfinite(given)
    total = given[finite].sum()
    scaled = np.full(len(given), NEVER, np.int64)
    if total > 0:
        scaled[finite] = np.ceil(given[finite] * ((LARGEST - len(given)) / total)).astype(np.int64)
    shape = (nodes, nodes)
    graph = csr_array((scaled.astype(np.int32), (rows, columns)), shape=shape)
    flow = maximum_flow(graph, 0, 1).flow
    residual = graph - flow
    residual.data[residual.data < 0] = 0
    residual.eliminate_zeros()
    side = np.zeros(nodes, bool)
    side[breadth_first_order(residual, 0, return_predecessors=False)] = True
    return side


def _ancestors(model: Model, turn: int, is_early: list[bool]) -> list[bool]:
    """The early values that late ops read or that these are made of."""
    found = [False] * len(model.values)
    for op in range(len(model) - 1, -1, -1):
        if op >= turn or any(found[v] for v in model.outs[op]):
            for v in model.ins[op]:
                if is_early[v]:
                    found[v] = True
    return found


class Line:
    """The early part as a line, for choosing checkpoints on it: at each place, the bytes on their
    way from before it to behind it in the early part, and the bytes made before it for the late.
    """

    def __init__(self, model: Model, turn: int, choices: Sequence[int]) -> None:
        last = [-1] * len(model.values)  # the last early op that reads a value, through views too
        for op in range(turn - 1, -1, -1):
            is_view = model.kind[op] in (FREE, VIEW) and len(model.outs[op]) == 1
            when = last[model.outs[op][0]] if is_view else op
            for v in model.ins[op]:
                last[v] = max(last[v], when)
        self.values = np.array(choices, int)
        self.made = np.array([model.producer[v] for v in choices], int)
        self.last = np.array([last[v] for v in choices], int)
        sizes = np.array([model.bytes[v] for v in choices], float)
        is_late = np.array([any(u >= turn for u in model.users[v]) for v in choices], bool)
        change = np.zeros(turn + 2)
        crosses = self.last > self.made
        np.add.at(change, self.made[crosses] + 1, sizes[crosses])
        np.add.at(change, self.last[crosses] + 1, -sizes[crosses])
        self.width = np.cumsum(change)[: turn + 1]
        kept = np.zeros(turn + 2)
        np.add.at(kept, self.made + 1, sizes * is_late)
        self.kept = np.cumsum(kept)[: turn + 1]

    def checkpoints(self, count: int) -> list[int]:
        """The values that cross `count` narrow places, evenly spaced by what is kept between."""
        found: set[int] = set()
        spacing = self.kept[-1] / (count + 1)
        for j in range(1, count + 1):
            low, high = np.searchsorted(self.kept, [spacing * (j - 0.5), spacing * (j + 0.5)])
            places = np.arange(max(low, 1), max(high, low + 1, 2))
            places = places[places < len(self.width)]
            if len(places):
                distance = np.abs(self.kept[places] - spacing * j)
                place = places[np.lexsort((distance, self.width[places]))[0]]
                crosses = (self.made < place) & (self.last >= place)
                found.update(self.values[crosses].tolist())
        return sorted(found)
