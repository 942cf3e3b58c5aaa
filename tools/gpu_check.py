# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""A GPU tried out within minutes: the op table and the six workloads on it, what tells most first.

    python -m gradopt.tools.gpu_check --target cuda --budget 600

All that compiles or runs does so in processes that are ended when they take too long, so that a
driver that hangs costs its share of the time, not the rest.
"""

import argparse
import dataclasses
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import GradoptError
from ..lowering.target import Target
from ..op_cases import CASES
from ..op_cases.rows import Row, rows
from ..runtime.present import AUTO, devices, find_target, why_not
from .bench import prepare
from .check import is_good
from .check_rows import Outcome, Plan, by_crew, start
from .crew import Crew, Lost
from .tables import Table, print_table
from .workloads import WORKLOADS

DESCRIPTION = """\
Try out a GPU: a sample of the op table (the first row of each op in float32, and its gradient), the
six workloads (losses of five training steps against the CPU's, milliseconds a step), then all other
rows as far as the time goes, float32 first. Prints one table."""

EPILOG = """\
Exit status: 0 all that was tried is right, 1 something is not, 2 the command line is at fault, 3
there is no device of that kind here."""

AT_ONCE = 16
"""Rows in a task: few, so that one that hangs costs little."""
LIMIT = 120.0
"""Seconds for a task of rows: mostly those of IREE's compiler."""
SHARES = (0.4, 0.7, 0.78)
"""The part of the time by which the sample is done, by which the workloads' losses are known, and
by which their steps are timed; the rest is for the rest of the rows.
"""
AGREE = 1e-4
"""The relative difference of losses that is allowed: sums of some thousand float32 numbers, made in
another order, five steps long.
"""
SECONDS = 2.0
"""How long the steps of a workload are timed."""


# --- what is tried, in processes ------------------------------------------------------------------


def sample_first(options: Any) -> list[Row]:
    """All rows, those that tell most first: of each op the first in float32, all others in float32,
    then other types.
    """
    everything = [row for case in CASES for row in rows(case)]
    seen: set[tuple[str, str]] = set()
    ranks = []
    for row in everything:
        kind = (row.case.op, row.what)
        plain = row.dtype in ("float32", "fixed")
        ranks.append(0 if plain and kind not in seen else 1 if plain else 2)
        if plain:
            seen.add(kind)
    order = sorted(range(len(everything)), key=lambda i: ranks[i])
    return [everything[i] for i in order]


def sample_size() -> int:
    """How many rows the sample has."""
    kinds = {
        (row.case.op, row.what)
        for case in CASES
        for row in rows(case)
        if row.dtype in ("float32", "fixed")
    }
    return len(kinds)


def losses(name: str, target: str) -> float:
    """The loss of a workload after five steps."""
    return prepare(name, target)[1]()


def step_time(name: str, target: str) -> float:
    """The median milliseconds of a step of a workload, which is compiled already."""
    step = prepare(name, target)[0]
    np.asarray(step())
    times, end = [], time.perf_counter() + SECONDS
    while time.perf_counter() < end or len(times) < 3:
        begin = time.perf_counter()
        np.asarray(step())
        times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times)


# --- the whole ------------------------------------------------------------------------------------


@dataclasses.dataclass
class Findings:
    """What is known so far."""

    rows: dict[int, Outcome] = dataclasses.field(default_factory=dict)
    losses: dict[tuple[str, str], Any] = dataclasses.field(default_factory=dict)
    times: dict[tuple[str, str], Any] = dataclasses.field(default_factory=dict)


def run(
    where: Target,
    budget: float,
    jobs: int,
    workloads: Sequence[str],
    choose: Callable[[Any], list[Row]] = sample_first,
    options: Any = None,
    first: int | None = None,
) -> tuple[list[Row], Findings]:
    """Try out a target for `budget` seconds; the rows in their order, and what came of them.
    `choose(options)` gives the rows, of which the `first` are tried before the workloads.
    """
    begin = time.monotonic()
    known = choose(options)
    count = sample_size() if first is None else first
    plan, found = Plan(where.name), Findings()
    sample, rest = _groups(0, min(count, len(known))), _groups(count, len(known))
    pairs = [(name, t) for name in workloads for t in dict.fromkeys((where.name, "cpu"))]
    ends = [begin + share * budget for share in SHARES]
    with Crew(jobs, start, choose, options) as crew:
        for i, outcome in by_crew(crew, sample, plan, LIMIT, ends[0]):
            found.rows[i] = outcome
        _tell(f"{len(found.rows)} of {count} rows of the sample", begin)
        tasks = [(pair, losses, pair) for pair in pairs]
        for pair, value in crew.run(tasks, None, ends[1]):
            found.losses[pair] = value
            _tell(f"{pair[0]} on {pair[1]}: {_shown(value)}", begin)
    with Crew(1, start, _nothing, None) as crew:  # alone, so that nothing disturbs it
        done = [p for p in pairs if not isinstance(found.losses.get(p, Lost("")), Lost)]
        tasks = [(pair, step_time, pair) for pair in done]
        for pair, value in crew.run(tasks, None, ends[2]):
            found.times[pair] = value
    _tell(f"{len(found.times)} of {len(pairs)} steps timed", begin)
    with Crew(jobs, start, choose, options) as crew:
        for i, outcome in by_crew(crew, rest, plan, LIMIT, begin + budget):
            found.rows[i] = outcome
            if len(found.rows) % 200 == 0:
                _tell(f"{len(found.rows)} of {len(known)} rows", begin)
    return known, found


def _nothing(options: Any) -> list[Row]:
    return []


def _groups(begin: int, end: int) -> list[list[int]]:
    return [list(range(i, min(i + AT_ONCE, end))) for i in range(begin, end, AT_ONCE)]


def _shown(value: Any) -> str:
    return value.reason.splitlines()[0] if isinstance(value, Lost) else f"loss {value:.6g}"


def _tell(text: str, begin: float) -> None:
    print(f"gpu_check: {time.monotonic() - begin:.0f} s: {text}", file=sys.stderr, flush=True)


# --- the table ------------------------------------------------------------------------------------

COLUMNS = ["what", "tried", "right", "refused", "left out", "worst", "where", "ms", "ms on cpu"]


def lines(where: Target, known: Sequence[Row], found: Findings, workloads: Sequence[str]) -> Any:
    """The lines of the table, and whether all that was tried is right."""
    plan, table, right = Plan(where.name), [], True
    for dtype in dict.fromkeys(row.dtype for row in known):
        of = [(row, found.rows.get(i)) for i, row in enumerate(known) if row.dtype == dtype]
        ran = [(row, o) for row, o in of if o is not None and not o.refused]
        good = sum(is_good(row, o, plan) for row, o in ran)
        refused = sum(o is not None and bool(o.refused) for _, o in of)
        left = sum(o is None for _, o in of)
        worst = max(ran, key=lambda r: r[1].error / r[0].ulp, default=None)
        shown = ["", ""] if worst is None else [f"{worst[1].error:.1f} ulp", worst[0].name]
        table.append([f"rows in {dtype}", len(ran), good, refused, left, *shown, "", ""])
        right &= good == len(ran)
    for name in workloads:
        line, good = _workload_line(name, where, found)
        table.append(line)
        right &= good
    return table, right


def _workload_line(name: str, where: Target, found: Findings) -> tuple[list[Any], bool]:
    got, want = (found.losses.get((name, t)) for t in (where.name, "cpu"))
    times = [found.times.get((name, t)) for t in (where.name, "cpu")]
    ms = [f"{t:.3f}" if isinstance(t, float) else "" for t in times]
    lost = next((x for x in (got, want) if isinstance(x, Lost)), None)
    late = lost is not None and lost.reason == "no result in time"
    if got is None or want is None or late:
        return [f"{name}, 5 steps", 0, 0, 0, 1, "", "", *ms], True
    if lost is not None:
        return [f"{name}, 5 steps", 1, 0, 0, 0, "", lost.reason.splitlines()[0], *ms], False
    gap = abs(got - want) / max(abs(want), 1e-30)
    good = bool(gap <= AGREE)
    shown = [f"{gap:.1e} of {want:.5g}", ""]
    return [f"{name}, 5 steps", 1, int(good), 0, 0, *shown, *ms], good


def faults(known: Sequence[Row], found: Findings, where: Target) -> list[str]:
    """A line for each row that is wrong."""
    plan = Plan(where.name)
    bad = [(known[i], o) for i, o in sorted(found.rows.items()) if not is_good(known[i], o, plan)]
    return [f"{row.name}: {o.error:.1f} ulp, {o.why[:200]}" for row, o in bad]


# --- the command ----------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> int:
    """The command; returns its exit status."""
    options = _parser().parse_args(argv)
    names = [n for n in options.workloads.split(",") if n]
    try:
        where = find_target(options.target)
        if unknown := [n for n in names if n not in WORKLOADS]:
            raise GradoptError(
                f"--workloads expected names out of {', '.join(WORKLOADS)}, got {unknown[0]}"
            )
    except GradoptError as error:
        print(f"gpu_check: error: {error}", file=sys.stderr)
        return 2
    if reason := why_not(where):
        print(f"gpu_check: nothing was run: {reason}", file=sys.stderr)
        return 3
    warnings.simplefilter("ignore")
    known, found = run(where, options.budget, options.jobs, names)
    table, right = lines(where, known, found, names)
    device = next(iter(devices().get(where.driver, ())), None)
    kind = ", a program on the CPU" if device and device.is_software else ""
    title = f"target '{where.name}' on {device.name if device else 'this machine'}{kind}"
    print_table(Table(title, COLUMNS, table), options.json)
    for line in faults(known, found, where):
        print(line)
    return 0 if right else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m gradopt.tools.gpu_check",
        description=DESCRIPTION,
        epilog=EPILOG,
        allow_abbrev=False,
    )
    what = "what to try: cuda, vulkan, rocm (default: auto, the best that is here)"
    parser.add_argument("--target", default=AUTO, help=what)
    budget = "how long it may take (default: 540, nine minutes)"
    parser.add_argument("--budget", type=float, default=540.0, metavar="SECONDS", help=budget)
    jobs = "processes at work at once (default: the number of cores)"
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help=jobs)
    every = ",".join(WORKLOADS)
    parser.add_argument("--workloads", default=every, help=f"with commas (default: {every})")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
