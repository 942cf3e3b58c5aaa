# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Measuring a compiled function with IREE's tools, dispatch by dispatch.

The function is compiled once more, with a note of which ops each dispatch comes from
(compile_sites.py), and run by iree-benchmark-module in a process of its own: IREE's Python bindings
cannot profile.
"""

import dataclasses
import json
import pathlib
import statistics
import subprocess
import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import iree.runtime as iree
import numpy as np

from ..dialect.control import symbols
from ..dialect.function_graph import FunctionGraph
from ..dialect.graph import Graph
from ..dialect.mlir import ir
from ..errors import ProfileError
from ..lowering import pipeline
from ..lowering.marks import storage_of_results, unmark
from ..lowering.target import Target
from . import monitor
from .binding import mark
from .compiler import compile_sites
from .device import Module

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
    "uint64": "i64",
    "uint32": "i32",
    "uint16": "i16",
    "uint8": "i8",
    "bool": "i1",
}
"""How IREE's tools call the types of arguments."""


@dataclasses.dataclass(frozen=True)
class Dispatch:
    """A dispatch of a function: the names and lines (`file:line`) of the ops in it, first the one
    that it is made for; IREE's name for its code; milliseconds a call, from its start to its end,
    in the median; those of all workers together; how many workgroups it has.
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
    """The profile of one function for one signature: calls measured, milliseconds a call in the
    median, the dispatches of a call in the order in which they are put to the device, and
    (dispatch or -1 for a whole call, start and end in nanoseconds) of all calls.
    """

    function: str
    calls: int
    milliseconds: float
    dispatches: tuple[Dispatch, ...]
    events: tuple[tuple[int, int, int], ...]


def measure(
    graph: Graph | FunctionGraph,
    target: Target,
    options: dict[str, Any],
    arrays: Sequence[np.ndarray],
    repeat: int,
) -> FunctionProfile:
    """The profile of a graph compiled with these options of `bind`, called with arrays."""
    with graph.context:
        module = ir.Module.parse(graph.module.operation.get_asm(enable_debug_info=True))
        function = symbols(module)[graph.name]
        unmark(function)  # another thread may be binding the graph
        asked = options["static_alloc"], target, options["remat"]
        is_static = mark(function, options["donated"], *asked)
        places = storage_of_results(function)
        lowered, ops = pipeline.lower(module, target, options["remat"])
        text = lowered.operation.get_asm(enable_debug_info=True)
    is_planned = bool(is_static or places)
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
    spans = sorted(s for s in spans if s[2] >= first)
    each = max(len(spans) // measured, 1)  # command buffers of a call
    total = [sum(e - s for _, s, e in spans[i : i + each]) for i in range(0, len(spans), each)]
    milliseconds = statistics.median(total) / 1e6 if total else 0.0
    return FunctionProfile(name, measured, milliseconds, tuple(dispatches), tuple(events + spans))


def _span(record: dict[str, Any]) -> tuple[int, int]:
    return record["start_host_time_ns"], record["end_host_time_ns"]


def _dispatch(command: dict[str, Any], found: Sequence[dict[str, Any]]) -> Dispatch:
    return Dispatch(
        tuple((name, f"{file}:{line}" if file else "") for name, file, line in command["ops"]),
        command["code"],
        statistics.median(r["duration_ns"] for r in found) / 1e6,
        statistics.median(r["tile_duration_sum_ns"] for r in found) / 1e6,
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
