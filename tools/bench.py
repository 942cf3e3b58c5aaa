# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-bench: whole training steps, timed; one JSON line a workload."""

import argparse
import dataclasses
import json
import pathlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import gradopt as go
import rich.console

from ..dialect import trees
from ..dialect.graph import trace
from ..lowering import pipeline
from ..lowering.bufferize import mark_donated
from ..runtime.present import find_target
from ..runtime.profile import BY
from . import bench_eager, bench_peak, bench_sweep, bench_warm
from .bench_compile import compile_row, is_good
from .bench_memory import STEPS, memory_row
from .workloads import OPTIMIZERS, PRECISIONS, WORKLOADS, start_of, train_step

CHECK_STEPS = 5
MODES = bench_sweep, bench_peak, bench_warm
"""What the command can do besides, each with options of its own."""


def prepare(
    name: str, target: str, optimizer: str = OPTIMIZERS[0], precision: str = PRECISIONS[0]
) -> tuple[Callable[[], Any], Callable[[], float]]:
    """(one training step, the loss after five steps from the start)."""
    start, batch, loss = WORKLOADS[name]()
    start = start_of(start, optimizer, precision)
    step_fn = go.compile(train_step(loss, optimizer, precision), donate=0, target=target)
    data = [go.device_put(x, target) for x in batch]
    state: dict[str, Any] = {}

    def reset() -> None:
        state["p"] = trees.map_leaves(lambda w: go.device_put(w, target), start)

    def step() -> Any:
        state["p"], value = step_fn(state["p"], *data)
        return go.block_until_ready(value)  # a call may return before it has run

    def check() -> float:
        reset()
        losses = [step() for _ in range(CHECK_STEPS)]
        return float(losses[-1])

    reset()
    return step, check


def measure(
    name: str,
    seconds: float,
    target: str,
    optimizer: str = OPTIMIZERS[0],
    precision: str = PRECISIONS[0],
) -> dict[str, Any]:
    """The row of one workload: milliseconds a step, seconds to the first step, the loss
    after five.
    """
    begin = time.perf_counter()
    step, check = prepare(name, target, optimizer, precision)
    step()
    first = time.perf_counter() - begin
    loss = check()
    step()
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        begin = time.perf_counter()
        step()
        times.append((time.perf_counter() - begin) * 1e3)
    return {
        "peer": "gradopt",
        "workload": name,
        "optimizer": optimizer,
        "precision": precision,
        "median_ms": round(statistics.median(times), 3),
        "min_ms": round(min(times), 3),
        "first_s": round(first, 2),
        "loss5": loss,
    }


def emitted(name: str, sizes: dict[str, int]) -> str:
    """The step of a workload as MLIR with locations, its parameters donated."""
    start, batch, loss = WORKLOADS[name](**sizes)
    graph = trace(train_step(loss), start, *batch, name="step")
    with graph.context:
        mark_donated(graph.finish(), range(len(start)))
    for stage in ("differentiated", "simplified"):
        pipeline.run(graph.module, pipeline.STAGES[stage])
    return graph.module.operation.get_asm(enable_debug_info=True)


def _size(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    return name, int(number)


def _budget(text: str) -> float | int | str:
    if text.isdigit():
        return int(text)
    try:
        return float(text)
    except ValueError:
        return text


def _profile(options: argparse.Namespace) -> int:
    """Print the profile of a workload's step; `-o` gets the trace."""
    start, batch, loss = WORKLOADS[options.profile](**dict(map(_size, options.size)))
    settings = options.optimizer, options.precision
    step = go.compile(train_step(loss, *settings), donate=0, target=options.target)
    with go.profile() as found:
        step(start_of(start, *settings), *batch)
    if options.json:
        print(json.dumps([dataclasses.asdict(row) for row in found.rows(options.by)]))
    else:
        rich.console.Console(width=140).print(found.table(options.by))
    if options.output:
        found.save(options.output)
    return 0


def _compile_only(
    names: list[str], options: argparse.Namespace, progress: rich.console.Console
) -> int:
    """Print a line for each workload that is compiled; 1 where one is not."""
    where, sizes, failed = find_target(options.target), dict(map(_size, options.size)), False
    for name in names:
        with progress.status(f"{name}: compiling for {where.name}"):
            row = compile_row(name, where, sizes)
        print(json.dumps(row), flush=True)
        failed |= not is_good(row)
    return int(failed)


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="gradopt-bench",
        description="Time whole training steps (forward, backward, update) of "
        "standard workloads. Prints one "
        "JSON line each: median_ms and min_ms a step, first_s to the first step (tracing and "
        "compiling), loss5 after five "
        "steps from fixed weights.",
    )
    every = ",".join(WORKLOADS)
    parser.add_argument(
        "--workloads", default=every, help=f"which, separated by commas (default: {every})"
    )
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="how long to time each (default: 3)"
    )
    parser.add_argument("--target", default="cpu", help="what to compile for (default: cpu)")
    of = "what updates the parameters, in timings and with --profile (default: sgd)"
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default=OPTIMIZERS[0], help=of)
    of = (
        "what products take their operands as, in timings and with --profile; float16 with a "
        "dynamic loss scale (default: float32)"
    )
    parser.add_argument("--precision", choices=PRECISIONS, default=PRECISIONS[0], help=of)
    emit = "print the step of a workload as MLIR, differentiated and simplified, and time nothing"
    parser.add_argument("--emit-mlir", choices=WORKLOADS, metavar="NAME", help=emit)
    output = (
        "with --emit-mlir, the file to write; with --profile, one for a Perfetto trace; with "
        "--sweep, one for the rows"
    )
    parser.add_argument("-o", dest="output", help=output)
    memory = "print what steps need of memory, planned and real (docs/memory.md), and time nothing"
    parser.add_argument("--memory", action="store_true", help=memory)
    budget = "with --memory, compute values anew to stay in this: bytes, 12MiB, or a fraction (0.5)"
    parser.add_argument("--memory-budget", type=_budget, metavar="BUDGET", help=budget)
    size = (
        "with --emit-mlir, --memory, --profile, --compile-only and --warm, a size of the workload, "
        "as layers=48; repeatable"
    )
    parser.add_argument("--size", action="append", default=[], metavar="NAME=N", help=size)
    profile = "print where the time of a workload's step goes, by op and source line"
    parser.add_argument("--profile", choices=WORKLOADS, metavar="NAME", help=profile)
    by = "with --profile, what the rows are: op, line or dispatch (default: op)"
    parser.add_argument("--by", choices=BY, default="op", help=by)
    parser.add_argument(
        "--json", action="store_true", help="with --profile and --eager, rows as JSON"
    )
    only = "compile the steps, which the target need not run here, assemble PTX, and time nothing"
    parser.add_argument("--compile-only", action="store_true", help=only)
    eager = "time eager ops of NumPy, gradopt, and JAX and PyTorch if they are installed"
    parser.add_argument("--eager", action="store_true", help=eager)
    bench_eager.add_arguments(parser)
    for mode in MODES:
        mode.add_arguments(parser)
    options = parser.parse_args(arguments)
    for mode in MODES:
        if mode.is_asked(options):
            return mode.run(options, parser.error)
    if options.eager:
        try:
            return bench_eager.run(options, as_table=not options.json)
        except (KeyError, ValueError) as error:
            parser.error(f"--eager: {error}")
    if options.emit_mlir:
        try:
            text = emitted(options.emit_mlir, dict(map(_size, options.size)))
        except (TypeError, ValueError) as error:
            parser.error(f"--size: {error}")
        pathlib.Path(options.output).write_text(text) if options.output else print(text, end="")
        return 0
    if options.profile:
        return _profile(options)
    names = options.workloads.split(",")
    for name in names:
        if name not in WORKLOADS:
            parser.error(f"--workloads expected names out of {every}, got '{name}'")
    progress = rich.console.Console(stderr=True)
    if options.compile_only:
        return _compile_only(names, options, progress)
    for name in names:
        if options.memory:
            with progress.status(f"{name}: compiling, then {STEPS} steps"):
                sizes = dict(map(_size, options.size))
                row = memory_row(name, options.target, sizes, options.memory_budget)
        else:
            with progress.status(f"{name}: compiling, then {options.seconds:g} s of steps"):
                settings = options.target, options.optimizer, options.precision
                row = measure(name, options.seconds, *settings)
        print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
