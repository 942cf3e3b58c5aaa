# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-rematerialize: what the late part of a function (the backward of a training step)
computes anew instead of having it kept, by a policy or so that the memory fits a budget.

Results stay the same bit for bit. A copy has the name of what it is a copy of with `.remat` behind
it, and reads it from behind barriers, so that neither gradopt nor IREE merges the two. A plan that
would not lower the planned peak is not used.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ..dialect.control import is_public, symbols
from ..dialect.mlir import func, ir
from ..errors import PassError
from . import costs
from .cut import min_cut
from .liveness import analyse
from .passes import failure, gradopt_pass
from .recompute import CONSTANT, FREE, VIEW, Model, Step

REPORT = "gradopt.rematerialization"
"""Attribute of functions that the pass looked at: what it did."""
UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9}
UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30}
ATTEMPTS = 5
"""How often a choice is made for a budget, should the plan need more than the model says."""
LARGE = 1000
"""Ops of a function beyond which its second place to be cut in two is tried only if need be."""
TRIES = 200_000
"""Values tried one by one, times the ops of the function."""
SMALL = 16
"""Values of a function in which the search starts from several sides."""
PAIRS = 40
"""Values of a function in which they are tried two at once too."""
ROUNDS, STARTS = 6, 6
ALL = 8
"""Values of a function in which all choices are tried."""
FENCES = 16
"""Stretches whose kept values IREE frees on their own."""
FENCE_COST = 1.25
"""How much more memory these take, since IREE does not share it well between what it runs apart."""


class BudgetError(PassError):
    """A function has no plan in its budget; `smallest` is the smallest planned peak found."""

    def __init__(self, faults: Iterable[tuple[ir.Location, str]], smallest: int) -> None:
        super().__init__(failure(faults).diagnostics)
        self.smallest = smallest


@dataclasses.dataclass(frozen=True)
class Report:
    """What became of a function: planned peaks in bytes, how many ops are done anew, how many
    operations on elements these are to those of the whole function, in percent, and a note where
    nothing was done.
    """

    peak_before: int
    peak_after: int
    recomputed: int = 0
    extra_percent: float = 0.0
    note: str = ""

    def attribute(self) -> ir.DictAttr:
        i64 = ir.IntegerType.get_signless(64)
        found: dict[str, ir.Attribute] = {
            "peak_before": ir.IntegerAttr.get(i64, self.peak_before),
            "peak_after": ir.IntegerAttr.get(i64, self.peak_after),
            "recomputed": ir.IntegerAttr.get(i64, self.recomputed),
            "extra_percent": ir.FloatAttr.get(ir.F64Type.get(), self.extra_percent),
        }
        if self.note:
            found["note"] = ir.StringAttr.get(self.note)
        return ir.DictAttr.get(found)


def report_of(function: func.FuncOp) -> Report | None:
    """What the pass wrote on a function; None where it has not run."""
    if REPORT not in function.attributes:
        return None
    about = function.attributes[REPORT]
    return Report(**{named.name: named.attr.value for named in about})


@gradopt_pass("gradopt-rematerialize")
def rematerialize(module: ir.Module, *, policy: str = "", budget: str = "") -> None:
    """Compute values anew where they are read late instead of keeping them, by a policy (cheap,
    all; default cheap) or so that the planned peak fits a budget (a fraction of the peak, or bytes
    such as 12MiB).
    """
    for function in symbols(module).values():
        if function.is_external or not is_public(function):
            continue
        if policy and budget:
            raise failure([(function.location, "expected a policy or a budget, got both")])
        if policy and policy not in POLICIES:
            expected = f"expected a policy out of {', '.join(POLICIES)}, got '{policy}'"
            raise failure([(function.location, expected)])
        with module.context, function.location:
            if budget:
                report, function = fit(function, budget)
            else:
                report, function = mirror(function, policy or "cheap")
            function.attributes[REPORT] = report.attribute()


def mirror(function: func.FuncOp, policy: str) -> tuple[Report, func.FuncOp]:
    """Compute anew what a policy says, if that lowers the planned peak."""
    before, model = analyse(function).peak(), Model(function)
    found = [mirrored(model, turn, POLICIES[policy]) for turn in turns(model)]
    if not found:
        return Report(before, before, note="there is nothing to compute"), function
    choice = min(found, key=lambda c: (c.peak, c.seconds))
    report, function = rewritten(function, model, before, choice)
    return (dataclasses.replace(report, peak_after=before) if report.note else report), function


def fit(function: func.FuncOp, budget: str) -> tuple[Report, func.FuncOp]:
    """Compute anew so much that the planned peak fits a budget; PassError where that is not
    possible.
    """
    before = analyse(function).peak()
    limit = goal = parse_budget(budget, before, function)
    if before <= limit:
        note = "the budget is met without recomputing"
        return Report(before, before, note=note), function
    for _ in range(ATTEMPTS):
        model = Model(function)
        choice = least_work(model, goal)
        if choice is None or choice.peak > goal:
            break
        report, function = rewritten(function, model, limit + 1, choice)
        if not report.note:
            return dataclasses.replace(report, peak_before=before), function
        goal -= max(choice.peak // 50, 1)  # the plan needs more than the model says
    return _smallest(function, before, limit, goal)


def _smallest(
    function: func.FuncOp, before: int, limit: int, goal: int
) -> tuple[Report, func.FuncOp]:
    """The function with the smallest planned peak that is found by asking for a peak that there is
    not, and then for less and less; BudgetError if even that does not fit.
    """
    peak = smallest = before
    for attempt in range(ATTEMPTS):
        model = Model(function)
        choice = least_work(model, peak - 1 if attempt else goal)
        if choice is None or choice.peak >= peak:
            break
        peak = choice.peak
        report, function = rewritten(function, model, limit + 1, choice)
        if not report.note:
            return dataclasses.replace(report, peak_before=before), function
        smallest = min(smallest, report.peak_after)
    expected = (
        f"expected a budget that @{function.name.value} can be computed in, got {limit:,} bytes"
    )
    found = (
        f"the smallest planned peak found is {smallest:,} bytes, of {before:,} without recomputing"
    )
    raise BudgetError([(function.location, f"{expected}; {found}")], smallest)


def rewritten(
    function: func.FuncOp, model: Model, below: int, choice: "Choice"
) -> tuple[Report, func.FuncOp]:
    """The function after a choice, or as it was if its planned peak, that of the report, would not
    be below `below`: the report then has a note.
    """
    backup = function.operation.clone(ir.InsertionPoint(function))
    total = sum(model.flops)
    copies = model.rewrite(choice.order, choice.copies, choice.fences)
    extra = sum(costs.cost(op.opview).flops for op in copies)
    after = analyse(function).peak()
    if after >= below:
        function.operation.erase()
        note = f"recomputing would give a peak of {after:,} bytes; it is not done"
        return Report(below, after, note=note), backup.opview
    backup.erase()
    percent = round(100 * extra / max(total, 1), 2)
    return Report(below, after, len(copies), percent), function


def parse_budget(text: str, peak: int, function: func.FuncOp) -> int:
    """Bytes of a budget: `0.5` of the peak, `12582912`, `12MiB`, `12MB`."""
    match = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*([A-Za-z]*)", text.strip())
    unit = UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        expected = "expected a budget such as 0.5 (of the peak), 12582912 or 12MiB"
        raise failure([(function.location, f"{expected}, got '{text}'")])
    number = float(match[1])
    is_fraction = not match[2] and "." in match[1] and number <= 1
    return int(number * peak) if is_fraction else int(number * unit)


@dataclasses.dataclass(frozen=True)
class Choice:
    """What to compute anew: the function's steps with the copies, the values at which stretches of
    the early part end, the peak, and the seconds of the copies.
    """

    order: list[Step]
    copies: list[int]
    fences: list[int]
    peak: int
    seconds: float


def chosen(model: Model, turn: int, keep: Sequence[bool], line: "Line") -> Choice:
    """The choice of what is kept at a turn."""
    order, copies = model.schedule(turn, keep)
    whole, parts = (model.allocated(order, copies, turn, by_stretch=b) for b in (False, True))
    pays = parts * FENCE_COST < whole
    fences = line.fences({v for _, ins, _, _ in order[turn:] for v in ins}) if pays else []
    seconds = sum(model.seconds[op] for op, _, _, is_copy in order if is_copy)
    return Choice(order, copies, fences, model.peak(order, copies), seconds)


# --- by policy ------------------------------------------------------------------------------------


def is_cheap(op: Any) -> bool:
    """True but for products, convolutions, and random numbers."""
    return not isinstance(op, costs.PRODUCTS) and not costs.is_random(op)


POLICIES: dict[str, Callable[[Any], bool]] = {"cheap": is_cheap, "all": lambda op: True}
"""Which ops may be done anew. Ops of other dialects and barriers never are."""


def mirrored(model: Model, turn: int, may_repeat: Callable[[Any], bool]) -> Choice:
    """All values kept whose op may not be repeated; of the others, those at the frontier too whose
    recomputation would release no more bytes than it pins, until nothing changes.

    Ops at the frontier that share an input are decided together.
    """
    cut = Cut(model, turn)
    may = [model.movable[i] and may_repeat(op) for i, op in enumerate(model.ops)]
    keep = np.array([p < 0 or not may[p] for p in model.producer])
    while True:
        repeated = _repeated(model, turn, keep.tolist())
        losing = [g for g in _frontier(model, turn, repeated) if not g.pays]
        if not losing:
            return chosen(model, turn, keep.tolist(), Line(model, turn, cut.choices))
        for group in losing:
            for op in group.ops:
                keep[list(model.outs[op])] = True


def _repeated(model: Model, turn: int, keep: list[bool]) -> list[int]:
    """The ops done anew with a choice, in order."""
    order, _ = model.schedule(turn, keep)
    return sorted({op for op, _, _, is_copy in order if is_copy})


@dataclasses.dataclass
class Group:
    """Ops at the frontier of what is done anew that share inputs."""

    ops: list[int]
    pays: bool


def _frontier(model: Model, turn: int, repeated: list[int]) -> list[Group]:
    """The groups of repeated ops that read values kept for them: do they release more than they
    pin?
    """
    copied = set(repeated)
    storage = _storage(model)

    def is_kept(v: int) -> bool:
        return 0 <= model.producer[v] < turn and model.producer[v] not in copied

    late = {storage[v] for i in range(turn, len(model)) for v in model.ins[i]}
    readers: dict[int, list[int]] = {}
    for op in repeated:
        for v in model.ins[op]:
            if is_kept(storage[v]) and model.kind[model.producer[storage[v]]] != CONSTANT:
                readers.setdefault(storage[v], []).append(op)
    leader = {op: op for ops in readers.values() for op in ops}

    def find(op: int) -> int:
        while leader[op] != op:
            leader[op] = op = leader[leader[op]]
        return op

    for ops in readers.values():
        for op in ops[1:]:
            leader[find(op)] = find(ops[0])
    groups: dict[int, list[int]] = {}
    for op in sorted(leader):
        groups.setdefault(find(op), []).append(op)
    pinned: dict[int, int] = dict.fromkeys(groups, 0)
    for v, ops in readers.items():
        if v not in late:  # otherwise it is there anyway
            pinned[find(ops[0])] += model.bytes[v]
    found = []
    for head, ops in groups.items():
        outs = [v for op in ops if model.kind[op] not in (FREE, VIEW) for v in model.outs[op]]
        released = sum(
            model.bytes[v] for v in outs if any(u >= turn or u in copied for u in model.users[v])
        )
        found.append(Group(ops, pays=released > pinned[head] or not outs))
    return found


def _storage(model: Model) -> list[int]:
    """The value that each value is a view, or a repetition, of."""
    found = list(range(len(model.values)))
    for op in range(len(model)):
        if model.kind[op] in (FREE, VIEW) and model.ins[op]:
            for v in model.outs[op]:
                found[v] = found[model.ins[op][0]]
    return found


# --- by budget ------------------------------------------------------------------------------------


def least_work(model: Model, bytes_: int) -> Choice | None:
    """The choice found with the least work whose peak fits; that with the smallest peak if none
    does.
    """
    found: list[Choice] = []
    for turn in turns(model):
        if found and len(model) > LARGE and found[-1].peak <= bytes_:
            break
        search = Budget(model, turn, bytes_)
        keep = search.least_work()
        found.append(chosen(model, turn, keep.tolist(), search.line))
    key = lambda c: (0, c.seconds) if c.peak <= bytes_ else (c.peak, c.seconds)  # noqa: E731
    return min(found, key=key, default=None)


MOST_SEGMENTS = 96
"""Most stretches that a function is computed anew by."""


def turns(model: Model) -> list[int]:
    """Places to cut a function in two: where most bytes are alive, and where most are waiting, each
    counted for as long as it is not read.
    """
    order = model.unchanged()
    if not order:
        return []
    live = model.live(order)
    waiting = np.zeros(len(order) + 1)
    for v in range(model.arguments, len(model.values)):
        used = [model.producer[v], *model.users[v]]
        for a, b in itertools.pairwise(used):
            waiting[a + 1] += model.bytes[v] * (b - a)
            waiting[b] -= model.bytes[v] * (b - a)
    found = [int(np.argmax(live)) + 1, int(np.argmax(np.cumsum(waiting)))]
    return list(dict.fromkeys(min(max(t, 1), len(order)) for t in found))


class Budget:
    """The search for the choice of least work whose peak fits: many candidates, each simulated.

    The candidates are cheapest cuts of the early part at a price a byte, with checkpoints forced at
    evenly spaced narrow points so that the work is done anew stretch by stretch; then mixtures of a
    candidate that fits and a cheaper one that does not; then single values kept or dropped. What
    does not fit is compared by the bytes above the limit, over all steps.
    """

    def __init__(self, model: Model, turn: int, limit: int) -> None:
        self.model = model
        self.turn = turn
        self.limit = limit
        self.tried: dict[bytes, tuple[float, float]] = {}
        self.lowest: tuple[int, np.ndarray] | None = None
        self.cut = Cut(model, turn)
        self.choices = self.cut.choices
        self.line = Line(model, turn, self.choices)

    def rank(self, keep: np.ndarray) -> tuple[float, float]:
        """What is least for the best choice: (bytes above the limit over all steps, seconds of work
        done anew).
        """
        key = np.packbits(keep).tobytes()
        if key not in self.tried:
            order, copies = self.model.schedule(self.turn, keep.tolist())
            profile = self.model.profile(order, copies)
            peak, limit = max(profile, default=0), self.limit
            if self.lowest is None or peak < self.lowest[0]:
                self.lowest = peak, keep
            excess = sum(b - limit for b in profile if b > limit) if peak > limit else 0
            self.tried[key] = excess, sum(self.model.seconds[s[0]] for s in order if s[3])
        return self.tried[key]

    def fits(self, keep: np.ndarray) -> bool:
        return self.rank(keep)[0] == 0

    def least_work(self) -> np.ndarray:
        """The choice found with the least work among those that fit; if there is none, that with
        the smallest peak.
        """
        if len(self.choices) <= ALL:
            return min(self._every(), key=self.rank)
        found = [min(family, key=self.rank) for family in self._families()]
        if len(self.choices) <= SMALL:  # from several sides
            unlike = {k.tobytes(): k for k in sorted(found, key=self.rank)}
            nothing = np.zeros(len(self.model.values), bool)
            found += [self.cut.everything(), nothing]
            found += map(self._local, [*found[-2:], *itertools.islice(unlike.values(), STARTS)])
            if self.lowest is not None:
                found.append(self._local(self.lowest[1]))
        best = min(found, key=self.rank)
        if not self.fits(best):
            best = self._local(best)
        if not self.fits(best):
            return best if self.lowest is None else self.lowest[1]
        cheaper = [k for k in found if self.rank(k)[1] < self.rank(best)[1]]
        for other in [*cheaper, self.cut.everything()]:
            best = self._mixed(best, other)
        return self._local(best)

    def _every(self) -> Iterator[np.ndarray]:
        """All choices."""
        for flags in itertools.product((True, False), repeat=len(self.choices)):
            keep = self.cut.everything()
            keep[self.choices] = flags
            yield keep

    def _families(self) -> Iterator[list[np.ndarray]]:
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
                if self.fits(found[-1]):
                    high = middle
                else:
                    low = middle + 1
            yield found

    def _mixed(self, fits: np.ndarray, cheap: np.ndarray) -> np.ndarray:
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
                if self.fits(mixed):
                    low, best = middle, min(best, mixed, key=self.rank)
                else:
                    high = middle
        return best

    def _local(self, best: np.ndarray) -> np.ndarray:
        """Single values kept or dropped, the dearest first, and in small functions two at once, as
        long as that helps.
        """
        model = self.model
        order = sorted(
            self.choices,
            key=lambda v: (-model.seconds[model.producer[v]] / (model.bytes[v] or 1), v),
        )
        most = max(TRIES // (len(model) + 1), 16)
        step = -(-len(order) // most) if order else 1
        moves = [(v,) for v in order[::step]]
        is_small = len(order) <= SMALL
        if len(order) <= PAIRS:
            moves += list(itertools.combinations(order, 2))
        for _ in range(ROUNDS):
            start = best
            for move in moves:
                other = (start if is_small else best).copy()  # small: the best step, not the first
                other[list(move)] = ~other[list(move)]
                best = min(best, other, key=self.rank)
            if best is start:
                break
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
        self.read_late = [v for v in self.values if any(u >= turn for u in model.users[v])]

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
        self.sizes = sizes = np.array([model.bytes[v] for v in choices], float)
        is_late = np.array([any(u >= turn for u in model.users[v]) for v in choices], bool)
        change = np.zeros(turn + 2)
        crosses = self.last > self.made
        np.add.at(change, self.made[crosses] + 1, sizes[crosses])
        np.add.at(change, self.last[crosses] + 1, -sizes[crosses])
        self.width = np.cumsum(change)[: turn + 1]
        kept = np.zeros(turn + 2)
        np.add.at(kept, self.made + 1, sizes * is_late)
        self.kept = np.cumsum(kept)[: turn + 1]

    def fences(self, kept: set[int]) -> list[int]:
        """Values at which to end stretches of the early part: narrow places that little but values
        in `kept` crosses. What crosses and is not kept would be put, and stay, with what is.
        """
        others = ~np.isin(self.values, list(kept)) & (self.last > self.made)
        change = np.zeros(len(self.width) + 1)
        np.add.at(change, self.made[others] + 1, self.sizes[others])
        np.add.at(change, self.last[others] + 1, -self.sizes[others])
        is_clean = np.cumsum(change)[: len(self.width)] <= self.width / 10
        found = self._crossing(min(FENCES, len(self.width) // 8) - 1, is_clean)
        return [v for v in found if v in kept]

    def checkpoints(self, count: int) -> list[int]:
        """The values that cross `count` narrow places, evenly spaced by what is kept between."""
        return self._crossing(count, np.ones(len(self.width), bool))

    def _crossing(self, count: int, allowed: np.ndarray) -> list[int]:
        found: set[int] = set()
        if count < 1:
            return []
        spacing = self.kept[-1] / (count + 1)
        for j in range(1, count + 1):
            low, high = np.searchsorted(self.kept, [spacing * (j - 0.5), spacing * (j + 0.5)])
            places = np.arange(max(low, 1), max(high, low + 1, 2))
            places = places[places < len(self.width)]
            places = places[allowed[places]]
            if len(places):
                distance = np.abs(self.kept[places] - spacing * j)
                place = places[np.lexsort((distance, self.width[places]))[0]]
                crosses = (self.made < place) & (self.last >= place)
                found.update(self.values[crosses].tolist())
        return sorted(found)
