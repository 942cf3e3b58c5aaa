# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The tuner: the fastest forms of a function's ops, and flags of IREE, on this machine.

Equal ops of a function are a group. Each group's forms are compiled by themselves and timed in
turns; what is fastest there has to make the whole function faster, too, else nothing of it is kept.
What was found is noted on disk, for each group and for the function, and is good for the CPU and
the version of IREE that it was found with.
"""

import dataclasses
import json
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ..dialect.base import Op
from ..dialect.control import symbols
from ..dialect.function_graph import FunctionGraph
from ..dialect.graph import Graph, trace
from ..dialect.types import TensorSpec, is_float
from ..errors import CompileError
from ..lowering.target import Target, host_cpu
from . import progress
from .array import device_put
from .cache import disk_store, versions
from .dispatch import block_until_ready
from .signature import Signature, digest
from .store import TUNED

STORED = "stored"
"""What `tune` is where what was found before is used, and nothing is timed."""
LEAST_GAIN = 0.02
"""By how much something has to be faster to be taken."""
LEAST_SHARE = 0.01
"""Groups with a smaller share of a function's estimated time are left alone."""
SECONDS = 0.5
"""How long one comparison takes, compiling aside."""
ROUNDS = 5
"""Least number of times that everything compared is run."""
FAR = 1.5
"""What is so many times slower than the fastest is not run more often than that."""

AnyGraph = Graph | FunctionGraph
Timer = Callable[[], float]
"""Runs something once; the seconds that it took."""


@dataclasses.dataclass(frozen=True)
class Group:
    """Equal ops of a function: the group's name, one of the ops without what it reads, its forms
    and the one that the rules choose, the share of the function's estimated time, and the op as a
    graph of its own; None where it has extents that are not known.
    """

    name: str
    op: str
    forms: tuple[str, ...]
    rule: str
    share: float
    graph: Graph | None = dataclasses.field(repr=False, compare=False)


@dataclasses.dataclass(frozen=True)
class Tuning:
    """What a function is compiled with: forms by group, where they are not those of the rules, and
    the name of a variant of the target's flags, "" for the usual ones; the seconds of a call
    without and with them, where they were measured.
    """

    forms: Mapping[str, str] = dataclasses.field(default_factory=dict)
    flags: str = ""
    before: float = math.nan
    after: float = math.nan

    def of(self, target: Target) -> Target:
        """The target with these forms and flags."""
        from ..lowering.choose_forms import written

        variants = [rung for rung in target.variants if rung.name == self.flags]
        ladder = (*variants, *target.ladder)
        return dataclasses.replace(target, forms=written(self.forms), ladder=ladder)


def tuned(
    graph: AnyGraph, target: Target, how: bool | str, signature: Signature, remat: str = ""
) -> Target:
    """The target as a graph is to be compiled for it: by what is noted for its signature; else,
    with `how` True, by what the tuner finds; with "stored", by what is noted of its groups.
    """
    noted = _noted(signature.key, target)
    if noted is not None:
        forms, flags = noted.get("forms"), noted.get("flags")
        return Tuning(forms if isinstance(forms, dict) else {}, str(flags or "")).of(target)
    if how != STORED:
        return Tuner(graph, target, signature, remat).run().of(target)
    found = groups(graph, target, remat)
    return Tuning({g.name: f for g in found if (f := winner(g, target)) != g.rule}).of(target)


def groups(graph: AnyGraph, target: Target, remat: str = "") -> list[Group]:
    """The groups of a graph's ops that have several forms, those with the largest share first."""
    from ..dialect.mlir import ir
    from ..lowering import costs, pipeline
    from ..lowering.forms import choices, group_of

    with graph.lock, graph.context:
        module = ir.Module.parse(graph.module.operation.get_asm())
        for stage, passes in pipeline.stages(target, remat).items():
            if stage == "linalg":
                break
            pipeline.run(module, passes)
        ops = [
            op
            for function in symbols(module).values()
            for op in ([] if function.is_external else function.entry_block.operations)
            if isinstance(op, Op)
        ]
        total = sum(costs.cost(op).seconds for op in ops) or 1.0
        equal: dict[str, list[Any]] = {}
        for op in ops:
            if len(choices(op, target.wide_vectors)) > 1:
                equal.setdefault(group_of(op), []).append(op)
        found = [
            _group(name, same[0], sum(costs.cost(op).seconds for op in same) / total, target)
            for name, same in equal.items()
        ]
    return sorted(found, key=lambda g: (-g.share, g.name))


def _group(name: str, op: Any, share: float, target: Target) -> Group:
    from ..lowering.forms import choices, described, form_of

    specs, attributes, kind = op.operand_specs(), op.read_attributes(), type(op)
    is_known = all(None not in spec.shape for spec in specs)
    alone = trace(lambda *x: kind.emit(*x, **attributes), *specs) if is_known else None
    wide = target.wide_vectors
    forms, rule = tuple(choices(op, wide)), form_of(op, wide)
    return Group(name, described(op), forms, rule, share, alone)


class Tuner:
    """Tunes one graph for one signature."""

    def __init__(
        self,
        graph: AnyGraph,
        target: Target,
        signature: Signature,
        remat: str = "",
        seconds: float = SECONDS,
    ) -> None:
        self.graph, self.target, self.signature = graph, target, signature
        self.remat, self.seconds = remat, seconds
        self.groups: list[Group] = []
        self.times: dict[str, dict[str, float]] = {}  # group -> form -> seconds of one op

    def run(self) -> Tuning:
        """What makes the function faster, noted on disk."""
        if any(None in spec.shape for spec in self.graph.input_specs):
            return Tuning()  # there is nothing to time it with
        found = groups(self.graph, self.target, self.remat)
        found = [g for g in found if g.share >= LEAST_SHARE and g.graph is not None]
        self.groups = found
        title = f"tuning '{self.graph.name}'"
        with progress.counted(title, len(found) + 1 + len(self.target.variants)) as step:
            fastest = {g: self._fastest(g, step) for g in found}
            tuning = self._together({g: f for g, f in fastest.items() if f != g.rule}, step)
            for rung in self.target.variants:
                step(f"flags {rung.name}")
                tuning = self._better(tuning, dataclasses.replace(tuning, flags=rung.name))
        for g in found:
            if g.name in self.times:
                self._note_group(g, tuning.forms.get(g.name, g.rule))
        self._note(self.signature.key, {"function": self.graph.name} | dataclasses.asdict(tuning))
        return tuning

    def _fastest(self, group: Group, step: Callable[[str], None]) -> str:
        """The fastest form of a group, by its note or by timing."""
        step(group.op)
        noted = winner(group, self.target, "")
        if noted:
            return noted
        assert group.graph is not None
        timers = {}
        for form in group.forms:
            target = Tuning({group.name: form}).of(self.target)
            if timer := self._timer(group.graph, target):
                timers[form] = timer
        times = self.times[group.name] = race(timers, self.seconds)
        best = min(times, key=times.__getitem__, default=group.rule)
        gains = times.get(best, 0.0) <= times.get(group.rule, math.inf) * (1 - LEAST_GAIN)
        return best if gains else group.rule

    def _together(self, forms: Mapping[Group, str], step: Callable[[str], None]) -> Tuning:
        """The forms, or the half of them that promises most, and so on, that make the function
        faster.
        """
        step("the whole function")
        ordered = sorted(forms, key=lambda g: (-self._gain(g, forms[g]), g.name))
        tuning = Tuning()
        while ordered:
            chosen = Tuning({g.name: forms[g] for g in ordered})
            tuning = self._better(Tuning(before=tuning.before), chosen)
            if tuning.forms:
                break
            ordered = ordered[: len(ordered) // 2]
        return tuning

    def _gain(self, group: Group, form: str) -> float:
        """An estimate of the part of the function's time that a form saves."""
        times = self.times.get(group.name, {})
        if form not in times or group.rule not in times:
            return group.share
        return group.share * (1 - times[form] / times[group.rule])

    def _better(self, one: Tuning, other: Tuning) -> Tuning:
        """The one, or the other where the whole function is faster with it, with their times."""
        timers = {
            i: timer
            for i, tuning in enumerate((one, other))
            if (timer := self._timer(self.graph, tuning.of(self.target), self.remat))
        }
        times = race(timers, 2 * self.seconds)
        now = times.get(0, math.inf)
        before = now if math.isnan(one.before) else one.before
        if times.get(1, math.inf) < now * (1 - LEAST_GAIN):
            return dataclasses.replace(other, before=before, after=times[1])
        return dataclasses.replace(one, before=before, after=now)

    def _timer(self, graph: AnyGraph, target: Target, remat: str = "") -> Timer | None:
        """Times calls of a graph compiled for a target; None where that cannot be done."""
        from .binding import bind

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of rungs: a slow one loses
            try:
                run = bind(graph, target, static_alloc=True, remat=remat, disk_cache=False)
            except CompileError:
                return None
        leaves = [device_put(a, target.name) for a in samples(graph)]

        def once() -> float:
            begin = time.perf_counter()
            block_until_ready(run(leaves))
            return time.perf_counter() - begin

        return once

    def _note_group(self, group: Group, form: str) -> None:
        about = {"group": group.name, "op": group.op, "form": form, "rule": group.rule}
        self._note(group.name, about | {"seconds": self.times[group.name]})

    def _note(self, name: str, about: Mapping[str, Any]) -> None:
        where = machine(self.target)
        text = json.dumps({**about, "machine": where, "made": time.time()})
        disk_store().keep_note(TUNED, digest({"name": name, **where}), text)


def samples(graph: AnyGraph) -> Iterator[np.ndarray]:
    """Arrays to call a graph with: normal numbers, or small integers."""
    rng = np.random.default_rng(0)

    def sample(spec: TensorSpec) -> np.ndarray:
        shape: Any = spec.shape
        numbers = rng.standard_normal(shape) if is_float(spec.dtype) else rng.integers(0, 2, shape)
        return np.asarray(numbers).astype(spec.dtype)

    return map(sample, graph.input_specs)


def race(
    timers: Mapping[Any, Timer], seconds: float, clock: Callable[[], float] = time.perf_counter
) -> dict[Any, float]:
    """The least seconds of each, run in turns for so many seconds and ROUNDS times at least; after
    that only those that are not far behind.
    """
    running = dict(timers)
    for timer in running.values():
        timer()
    least = dict.fromkeys(running, math.inf)
    end, rounds = clock() + seconds, 0
    while rounds < ROUNDS or (len(running) > 1 and clock() < end):
        for name, timer in running.items():
            least[name] = min(least[name], timer())
        rounds += 1
        if rounds == ROUNDS:
            limit = FAR * min(least.values(), default=0.0)
            running = {name: t for name, t in running.items() if least[name] <= limit}
    return least


# --- notes ----------------------------------------------------------------------------------------


def machine(target: Target) -> dict[str, str]:
    """What measurements are good for."""
    return {
        "target": target.name,
        "CPU": f"{cpu_model()}, {os.cpu_count()} cores, {host_cpu()}",
        "IREE": versions()["iree-base-compiler"],
    }


def cpu_model() -> str:
    """The name of this machine's CPU, as far as the system tells."""
    try:
        with open("/proc/cpuinfo") as file:
            lines = [line for line in file if line.startswith("model name")]
    except OSError:
        return ""
    return lines[0].partition(":")[2].strip() if lines else ""


def winner(group: Group, target: Target, otherwise: str | None = None) -> str:
    """The form that is noted for a group, if it is one that the group has; else its rule's."""
    form = (_noted(group.name, target) or {}).get("form")
    return form if form in group.forms else group.rule if otherwise is None else otherwise


def _noted(name: str, target: Target) -> dict[str, Any] | None:
    return _read(disk_store().note(TUNED, digest({"name": name, **machine(target)})))


def _read(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def noted() -> dict[str, dict[str, Any]]:
    """All notes of the tuner, by key."""
    found = {key: _read(text) for key, text in disk_store().notes(TUNED).items()}
    return {key: about for key, about in found.items() if about is not None}
