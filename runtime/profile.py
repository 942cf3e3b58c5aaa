# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""go.profile: where the time of compiled functions goes, by op and by line of the program."""

import dataclasses
import io
import itertools
import json
import os
import pathlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import rich.console
import rich.table

from ..dialect.function_graph import FunctionGraph
from ..dialect.graph import Graph
from ..errors import ArgumentError
from ..lowering.target import Target
from . import monitor
from .executable import Executable
from .measure import Dispatch, FunctionProfile, measure


@dataclasses.dataclass(frozen=True)
class Row:
    """Dispatches taken together: milliseconds a call, their share of all in percent, those of all
    workers together, how many there are, what they have in common, and the other ops in them.
    """

    milliseconds: float
    percent: float
    cpu_milliseconds: float
    dispatches: int
    phase: str
    op: str
    where: str
    with_ops: tuple[str, ...]


LISTED = 4
"""How many ops a cell of the table names."""

BY = {
    "op": lambda d: (d.phase, d.op, d.where),
    "line": lambda d: (d.phase, d.where),
    "dispatch": lambda d: (d.phase, d.op, d.where, d.code),
}
"""What rows of a profile can stand for."""


class profile:  # noqa: N801 - used as a function, `with profile() as p:`
    """Profile the compiled functions that are called inside a `with` statement, once for each
    signature; `repeat` calls of each are measured in a process of its own, after one that is not.

    `print(p)` shows a table by op; see `rows` and `save` for more. Functions are to have target
    cpu; raises ArgumentError for others, and ProfileError where IREE's tools fail.
    """

    is_lasting = False

    def __init__(self, repeat: int = 10) -> None:
        if repeat < 1:
            raise ArgumentError(f"profile expected repeat to be at least 1, got {repeat}")
        self.repeat = repeat
        self.functions: list[FunctionProfile] = []

    def __enter__(self) -> "profile":
        monitor.wrap_calls((*monitor.wrappers(), self))
        return self

    def __exit__(self, *exception: Any) -> None:
        monitor.wrap_calls(tuple(w for w in monitor.wrappers() if w is not self))

    def __call__(
        self,
        inner: Executable,
        graph: Graph | FunctionGraph,
        target: Target,
        options: dict[str, Any],
    ) -> Executable:
        """A function's executable, as bind asks for it."""
        if not target.ladder:
            raise ArgumentError(
                f"profile expected functions of target 'cpu', got '{graph.name}' for "
                f"'{target.name}'"
            )
        return ProfiledExecutable(self, inner, graph, target, options)

    def rows(self, by: str = "op") -> list[Row]:
        """The dispatches of all functions by `op`, `line` or `dispatch`, the slowest first. A
        dispatch's time counts for the op that it is made for; `with_ops` are others that are fused
        into it. Rows by line name ops without their scopes.
        """
        if by not in BY:
            raise ArgumentError(f"profile expected rows by one of {', '.join(BY)}, got '{by}'")
        groups: dict[Any, list[Dispatch]] = defaultdict(list)
        for d in itertools.chain(*(f.dispatches for f in self.functions)):
            groups[BY[by](d)].append(d)
        total = sum(d.milliseconds for f in self.functions for d in f.dispatches) or 1.0
        name = unscoped if by == "line" else str
        rows = [_row(found, total, name) for found in groups.values()]
        return sorted(rows, key=lambda r: (-r.milliseconds, r.op, r.where))

    def table(self, by: str = "op", limit: int = 30) -> rich.table.Table:
        """The first rows as a table, in milliseconds, or microseconds where all are short."""
        rows = self.rows(by)
        scale, unit = (1.0, "ms") if rows and rows[0].milliseconds >= 0.1 else (1e3, "us")
        calls = [f"{f.function} {f.milliseconds * scale:.3f} {unit}" for f in self.functions]
        table = rich.table.Table(
            title=f"a call: {', '.join(calls) or 'none'}", title_justify="left"
        )
        for column in (unit, "%", f"CPU {unit}", "dispatches"):
            table.add_column(column, justify="right")
        table.add_column("phase")
        table.add_column("ops" if by == "line" else "op", overflow="fold")
        table.add_column("where", overflow="fold")
        table.add_column("fused in", overflow="fold")
        for row in rows[:limit]:
            table.add_row(*_cells(row, scale))
        if rest := rows[limit:]:
            time = sum(r.milliseconds for r in rest) * scale
            percent = sum(r.percent for r in rest)
            count = sum(r.dispatches for r in rest)
            more = f"{len(rest)} more"
            table.add_row(f"{time:.3f}", f"{percent:.1f}", "", str(count), "", more, "", "")
        return table

    def __rich__(self) -> rich.table.Table:
        return self.table()

    def __str__(self) -> str:
        out = io.StringIO()
        rich.console.Console(file=out, width=140).print(self.table())
        return out.getvalue().rstrip()

    def to_dict(self) -> dict[str, Any]:
        """The profile as JSON has it, without the events."""
        functions = [dataclasses.asdict(f) for f in self.functions]
        return {
            "functions": [
                {k: v for k, v in f.items() if k != "events"} | {"phases": _phases(one.dispatches)}
                for f, one in zip(functions, self.functions, strict=True)
            ]
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all measured calls as a trace file for Perfetto (ui.perfetto.dev) or
        chrome://tracing.
        """
        events = [e for i, f in enumerate(self.functions) for e in _trace_events(i, f)]
        pathlib.Path(path).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))


def unscoped(name: str) -> str:
    """The name of an op without name scopes: a line is run in many of them."""
    parts = name.split(".")
    end = parts.index("vjp") if "vjp" in parts else len(parts)
    return ".".join(parts[max(end - 1, 0) :])


def _row(found: list[Dispatch], total: float, name: Callable[[str], str]) -> Row:
    first = found[0]
    ops = list(dict.fromkeys(name(op) for d in found for op, _ in d.ops))
    roots = list(dict.fromkeys(name(d.op) for d in found))
    time = sum(d.milliseconds for d in found)
    return Row(
        time,
        100 * time / total,
        sum(d.cpu_milliseconds for d in found),
        len(found),
        first.phase,
        ", ".join(roots),
        first.where,
        tuple(n for n in ops if n not in roots),
    )


def _cells(row: Row, scale: float) -> Iterator[str]:
    yield f"{row.milliseconds * scale:.3f}"
    yield f"{row.percent:.1f}"
    yield f"{row.cpu_milliseconds * scale:.3f}"
    ops, others = (listed(names) for names in (row.op.split(", "), row.with_ops))
    yield from (str(row.dispatches), row.phase, ops, shortened(row.where), others)


def listed(names: Sequence[str]) -> str:
    """The first names of a list, and how many there are beside them."""
    rest = len(names) - LISTED
    return ", ".join(names[:LISTED]) + (f" and {rest} more" if rest > 0 else "")


def shortened(where: str) -> str:
    """A source line as seen from the current folder; without folders if it is outside of it."""
    file, _, line = where.rpartition(":")
    if not file:
        return where
    relative = os.path.relpath(file)
    return f"{os.path.basename(file) if relative.startswith('..') else relative}:{line}"


def _phases(dispatches: Iterable[Dispatch]) -> dict[str, float]:
    found: Counter[str] = Counter()
    for d in dispatches:
        found[d.phase] += d.milliseconds  # type: ignore[assignment]  # a Counter of numbers
    return dict(found)


def _trace_events(process: int, profile: FunctionProfile) -> Iterator[dict[str, Any]]:
    """The events of a function in the format of Chrome's traces: a process with a lane for whole
    calls, and as many as dispatches run side by side.
    """

    def about(kind: str, lane: int, name: str) -> dict[str, Any]:
        return {"ph": "M", "pid": process, "tid": lane, "name": kind, "args": {"name": name}}

    yield about("process_name", 0, profile.function)
    yield about("thread_name", 0, "calls")
    begin = min((start for _, start, _ in profile.events), default=0)
    free: list[int] = []  # when each lane is free again
    for index, start, end in sorted(profile.events, key=lambda e: (e[1], -e[2])):
        event = {"ph": "X", "pid": process, "ts": (start - begin) / 1e3, "dur": (end - start) / 1e3}
        if index < 0:
            yield event | {"tid": 0, "name": profile.function, "cat": "call"}
            continue
        d = profile.dispatches[index]
        lane = next((i for i, t in enumerate(free) if t <= start), len(free))
        if lane == len(free):
            free.append(0)
            yield about("thread_name", lane + 1, f"dispatches {lane + 1}")
        free[lane] = end
        details = {"where": d.where, "dispatch": d.code, "workgroups": d.workgroups}
        ops = {"ops": [f"{name} {where}" for name, where in d.ops]}
        yield event | {"tid": lane + 1, "name": d.op, "cat": d.phase, "args": details | ops}


class ProfiledExecutable(monitor.Wrapped):
    """An executable whose first call is profiled."""

    def __init__(
        self,
        session: profile,
        inner: Executable,
        graph: Graph | FunctionGraph,
        target: Target,
        options: dict[str, Any],
    ) -> None:
        super().__init__(inner)
        self.session = session
        self.graph = graph
        self.target = target
        self.options = options
        self.is_done = False

    def __call__(self, leaves: list[Any], *more: Any, **options: Any) -> Any:
        if not self.is_done:
            self.is_done = True
            arrays = [np.asarray(leaf) for leaf in leaves]
            found = measure(self.graph, self.target, self.options, arrays, self.session.repeat)
            self.session.functions.append(found)
        return self.inner(leaves, *more, **options)
