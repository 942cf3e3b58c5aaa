# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""go.profile: where the time of compiled functions goes, by op and by line of the user's program.

IREE fuses ops into dispatches, and measures those. The functions are compiled once more, with a
note of which ops each dispatch comes from (compile_sites.py), and run by iree-benchmark-module in a
process of its own: IREE's Python bindings cannot profile.
"""

import dataclasses
import io
import itertools
import json
import os
import pathlib
import subprocess
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import iree.runtime as iree
import numpy as np
import rich.console
import rich.table

from ..dialect.control import symbols
from ..dialect.graph import Graph
from ..errors import ArgumentError, ProfileError
from ..lowering import pipeline
from ..lowering.bufferize import STATIC, storage_of_results, unmark
from ..lowering.target import Target
from . import monitor
from .compiler import compile_sites
from .device import Module
from .executable import Executable

TOOLS = pathlib.Path(iree.benchmark_exe()).resolve().parent
MODES = "host-execution,executable-metadata"
TIME_LIMIT = 600.0
ELEMENTS = {
    "float64": "f64",
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
    "uint32": "i32",
    "uint8": "i8",
    "bool": "i1",
}
"""How IREE's tools call the types of arguments."""


@dataclasses.dataclass(frozen=True)
class Dispatch:
    """A dispatch of a function: the names and lines (`file:line`) of the ops in it, first that which
    it is made for; IREE's name for its code; milliseconds a call, from its start to its end;
    those of all workers together; how many workgroups it has.
    """

    ops: tuple[tuple[str, str], ...]
    code: str
    milliseconds: float
    cpu_milliseconds: float
    workgroups: int

    @property
    def op(self) -> str:
        return self.ops[0][0] if self.ops else self.code

    @property
    def where(self) -> str:
        return self.ops[0][1] if self.ops else ""

    @property
    def phase(self) -> str:
        """forward, or backward for what gradients are made of."""
        return "backward" if monitor.is_backward(self.op) else "forward"


@dataclasses.dataclass(frozen=True)
class FunctionProfile:
    """The profile of one function for one signature: calls measured, milliseconds a call, the
    dispatches of a call in the order in which they are put to the device, and (dispatch or -1 for a
    whole call, start and end in nanoseconds) of all calls.
    """

    function: str
    calls: int
    milliseconds: float
    dispatches: tuple[Dispatch, ...]
    events: tuple[tuple[int, int, int], ...]


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
        self, inner: Executable, graph: Graph, target: Target, options: dict[str, Any]
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
        into it.
        """
        if by not in BY:
            raise ArgumentError(f"profile expected rows by one of {', '.join(BY)}, got '{by}'")
        groups: dict[Any, list[Dispatch]] = defaultdict(list)
        for d in itertools.chain(*(f.dispatches for f in self.functions)):
            groups[BY[by](d)].append(d)
        total = sum(d.milliseconds for f in self.functions for d in f.dispatches) or 1.0
        rows = [_row(found, total) for found in groups.values()]
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


def _row(found: list[Dispatch], total: float) -> Row:
    first = found[0]
    ops = list(dict.fromkeys(name for d in found for name, _ in d.ops))
    roots = list(dict.fromkeys(d.op for d in found))
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
    yield from (str(row.dispatches), row.phase, row.op, shortened(row.where))
    yield ", ".join(row.with_ops)


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


# --- measuring ------------------------------------------------------------------------------------


class ProfiledExecutable(monitor.Wrapped):
    """An executable whose first call is profiled."""

    def __init__(
        self,
        session: profile,
        inner: Executable,
        graph: Graph,
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


def measure(
    graph: Graph,
    target: Target,
    options: dict[str, Any],
    arrays: Sequence[np.ndarray],
    repeat: int,
) -> FunctionProfile:
    """The profile of a graph compiled with these options of `bind`, called with arrays."""
    from .binding import mark

    with graph.context:
        function = symbols(graph.module)[graph.name]
        is_static = mark(function, options["donated"], options["static_alloc"])
        places = storage_of_results(function)
        try:
            is_planned = STATIC in function.attributes or bool(places)
            lowered, ops = pipeline.lower(graph.module, target, options["remat"])
            text = lowered.operation.get_asm(enable_debug_info=True)
        finally:
            unmark(function)
    image, commands = compile_sites(text, target, graph.name, ops, is_planned)
    with tempfile.TemporaryDirectory(prefix="gradopt-profile-") as name:
        folder = pathlib.Path(name)
        inputs = [_input(folder / f"{i}.bin", array) for i, array in enumerate(arrays)]
        for result, _ in places:
            spec = graph.output_specs[result]
            inputs.append(f"{_type(spec.shape, spec.dtype)}=0")
        if is_static:
            about = Module(image, target.driver).about(graph.name)
            inputs.append(f"&{max(int(about['iree.abi.transients.size.constant']), 64)}xi8")
        (folder / "module.vmfb").write_bytes(image)
        records = _recorded(folder, target.driver, graph.name, inputs, repeat + 1)
    return _profile(graph.name, records, commands, repeat + 1)


def _type(shape: Sequence[int | None], dtype: np.dtype) -> str:
    return "x".join([*map(str, shape), ELEMENTS[dtype.name]])


def _input(path: pathlib.Path, array: np.ndarray) -> str:
    """An argument as IREE's tools take it."""
    text = _type(array.shape, array.dtype)
    if not array.size:
        return text
    path.write_bytes(array.astype(array.dtype.newbyteorder("="), copy=False).tobytes())
    return f"{text}=@{path}"


def _recorded(
    folder: pathlib.Path, driver: str, name: str, inputs: Sequence[str], calls: int
) -> list[dict[str, Any]]:
    """What IREE records of some calls."""
    _tool(
        "iree-benchmark-module",
        f"--module={folder / 'module.vmfb'}",
        f"--device={driver}",
        f"--function={name}",
        *(f"--input={i}" for i in inputs),
        f"--benchmark_min_time={calls}x",
        f"--device_profiling_mode={MODES}",
        f"--device_profiling_output={folder / 'profile'}",
    )
    text = _tool("iree-profile", "export", "--format=ireeperf-jsonl", str(folder / "profile"))
    return [json.loads(line) for line in text.splitlines()]


def _tool(name: str, *arguments: str) -> str:
    try:
        done = subprocess.run(
            [TOOLS / name, *arguments], capture_output=True, text=True, timeout=TIME_LIMIT
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProfileError(f"'{name}' of IREE's runtime could not be run: {error}") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        reason = " | ".join(x for x in said if "ASLR" not in x)[:600]
        raise ProfileError(f"'{name}' of IREE's runtime ended with {done.returncode}: {reason}")
    return done.stdout


def _profile(
    name: str,
    records: Sequence[dict[str, Any]],
    commands: Sequence[Sequence[dict[str, Any]]],
    calls: int,
) -> FunctionProfile:
    """Put together what IREE recorded and where its commands come from; the first call is left out
    where there are others.
    """
    sites = _sites(records, commands)
    runs: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    whole = []
    for r in records:
        if r["record_type"] != "host_execution_event" or not r["valid"]:
            continue
        if r["op"] == "dispatch" and (
            site := sites.get((r["command_buffer_id"], r["command_index"]))
        ):
            runs[site].append(r)
        elif r["op"] == "execute":
            whole.append(r)
    # What runs less often belongs to setting the module up.
    kept = {site: found[calls > 1 :] for site, found in sorted(runs.items()) if len(found) >= calls}
    dispatches, events = [], []
    for (buffer, position), found in kept.items():
        command = commands[buffer][position] if commands else {"code": found[0]["key"], "ops": []}
        events += [(len(dispatches), *_span(r)) for r in found]
        dispatches.append(_dispatch(command, found))
    spans = [(-1, *_span(r)) for r in whole]
    measured = max(calls - 1, 1)
    first = min((start for _, start, _ in events), default=0)
    spans = [s for s in spans if s[2] >= first]
    total = sum(end - start for _, start, end in spans) / measured / 1e6
    return FunctionProfile(name, measured, total, tuple(dispatches), tuple(events + spans))


def _span(record: dict[str, Any]) -> tuple[int, int]:
    return record["start_host_time_ns"], record["end_host_time_ns"]


def _dispatch(command: dict[str, Any], found: Sequence[dict[str, Any]]) -> Dispatch:
    return Dispatch(
        tuple((name, f"{file}:{line}" if file else "") for name, file, line in command["ops"]),
        command["code"],
        sum(r["duration_ns"] for r in found) / len(found) / 1e6,
        sum(r["tile_duration_sum_ns"] for r in found) / len(found) / 1e6,
        int(np.prod(found[0]["workgroup_count"])),
    )


def _sites(
    records: Sequence[dict[str, Any]], commands: Sequence[Sequence[dict[str, Any]]]
) -> dict[tuple[int, int], tuple[int, int]]:
    """(command buffer, index in it) of IREE's records -> (command buffer, dispatch in it) of
    `commands`. A buffer is found by its sequence of dispatches; of several with the same, those
    that are recorded first are those that stand first.
    """
    buffers: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for r in records:
        if r["record_type"] == "command_operation" and r["op"] == "dispatch":
            buffers[r["command_buffer_id"]].append((r["command_index"], r["key"]))
    known: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for i, buffer in enumerate(commands):
        known[tuple(c["code"] for c in buffer)].append(i)
    found, seen = {}, Counter()
    for identity, dispatches in sorted(buffers.items()):
        keys = tuple(key for _, key in sorted(dispatches))
        if commands and keys not in known:
            continue
        same = known[keys] or [identity]
        place = same[seen[keys] % len(same)]
        seen[keys] += 1
        for position, (index, _) in enumerate(sorted(dispatches)):
            found[identity, index] = place, position
    return found
