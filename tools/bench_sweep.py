# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-bench --sweep: training steps at sizes up and down, each beside JAX in the same minute.

A point has two processes, one for each side, which prepare the step once and then time it in turn,
round by round, so that what else the machine does meets both. Both get the same weights and batch,
and the same settings of the memory allocator.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import pathlib
import select
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np
import rich.console
import rich.progress

from . import bench_chart, bench_points, bench_tables
from .bench_points import Point
from .workloads import WORKLOADS

HERE = pathlib.Path(__file__).parent
ALLOCATOR = "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=8589934592:" + (
    "glibc.malloc.top_pad=268435456"
)
"""Freed memory is kept by the process, on both sides: otherwise 15 to 25 % of a step with large
intermediates are page faults, in JAX above all.
"""
LOSS_TOLERANCE = 1e-4
"""How far apart, relative to each other, the losses of both sides may be after five steps."""

OWN, JAX = "gradopt", "jax"

Row = dict[str, Any]


class PointError(Exception):
    """One side of a point fails: which, and why."""

    def __init__(self, side: str, reason: str) -> None:
        super().__init__(f"{side}: {reason}")
        self.side = side


# --- one side, seen from here ---------------------------------------------------------------------


class Side:
    """A process that times one side's step (bench_worker.py)."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        self.name = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            text=True,
        )

    def ask(self, request: Row, limit: float) -> Row:
        """The answer to a request. Raises PointError for an error, none in `limit` seconds, and a
        process that ends.
        """
        with contextlib.suppress(BrokenPipeError):  # it has ended: seen when its answer is read
            print(json.dumps(request), file=self._process.stdin, flush=True)
        out = self._process.stdout
        assert out is not None
        if not select.select([out], [], [], limit)[0]:
            raise PointError(self.name, f"no answer in {limit:g} s")
        line = out.readline()
        if not line:
            code = self._process.wait()
            raise PointError(self.name, f"the process ended with code {code}{self._last_words()}")
        answer = json.loads(line)
        if "error" in answer:
            raise PointError(self.name, answer["error"])
        return answer

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return f": {lines[-1][:300]}" if lines else ""

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]


class Sweep:
    """How points are measured: seconds for each side, in how many rounds, at most how long a side
    may take to prepare; `jax` is the Python that has JAX, "" for none.
    """

    def __init__(
        self,
        seconds: float = 3.0,
        rounds: int = 5,
        limit: float = 600.0,
        target: str = "cpu",
        jax: str = "",
    ) -> None:
        self.seconds, self.rounds, self.limit = seconds, rounds, limit
        self.target, self.jax = target, jax

    def row(self, point: Point) -> Row:
        """The row of a point; where gradopt fails it has `error` and no figures, where JAX does the
        error is in `jax`.
        """
        about: Row = {"workload": point.workload, "point": str(point), "size": point.size}
        try:
            return about | self._measured(point)
        except (PointError, TypeError, ValueError, ArithmeticError, MemoryError) as error:
            return about | {"error": str(error) or type(error).__name__}

    def _measured(self, point: Point) -> Row:
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gradopt-bench-"))
            request: Row = {"workload": point.workload, "sizes": point.size, "target": self.target}
            request["arrays"] = save_arrays(point, pathlib.Path(folder))
            own = self._side(OWN, folder, stack)
            found = own.ask(request, self.limit)
            if not self.jax:
                return found | self.timed(own)[OWN]
            try:
                jax = self._side(JAX, folder, stack)
                other = jax.ask(request, self.limit)
                times = self.timed(own, jax)
            except PointError as error:
                if error.side == OWN:
                    raise
                return found | self.timed(own)[OWN] | {JAX: {"error": str(error)}}
        return compared(found | times[OWN], other | times[JAX])

    def _side(self, name: str, folder: str, stack: contextlib.ExitStack) -> Side:
        """The process of a side, which is ended with the stack."""
        environment = os.environ | {"GLIBC_TUNABLES": ALLOCATOR}
        python, provider = sys.executable, "gradopt.tools.bench_step"
        if name == OWN:
            environment["GRADOPT_CACHE_DIR"] = folder  # empty: the first step is compiled
        else:
            python, provider = self.jax, str(HERE / "jax_workloads.py")
            if python != sys.executable:
                environment.pop("PYTHONPATH", None)  # it is about the packages of this Python
            if self.target.startswith("cpu"):
                environment.setdefault("JAX_PLATFORMS", "cpu")
        side = Side(name, [python, "-P", str(HERE / "bench_worker.py"), provider], environment)
        stack.callback(side.close)
        return side

    def timed(self, *sides: Side) -> dict[str, Row]:
        """median_ms and min_ms of each side over all rounds, in which they take turns, and of how
        many steps.
        """
        times: dict[str, list[float]] = {side.name: [] for side in sides}
        for _ in range(self.rounds):
            for side in sides:
                request = {"seconds": self.seconds / self.rounds}
                times[side.name] += side.ask(request, self.limit)["times_ms"]
        return {
            name: {
                "median_ms": round(statistics.median(found), 4),
                "min_ms": round(min(found), 4),
                "steps": len(found),
            }
            for name, found in times.items()
        }


def save_arrays(point: Point, folder: pathlib.Path) -> str:
    """Write a point's starting weights and batch to an .npz file; its path."""
    start, batch, _ = WORKLOADS[point.workload](**point.size)
    path = folder / "arrays.npz"
    named = {f"p.{name}": w for name, w in start.items()}
    np.savez(path, **named, **{f"x{i}": x for i, x in enumerate(batch)})  # type: ignore[arg-type]
    return str(path)


def compared(own: Row, jax: Row) -> Row:
    """A row with both sides: `ratio` of the medians, above 1 where gradopt is faster, and
    `loss_error`, relative, which has to be below LOSS_TOLERANCE.
    """
    apart = abs(own["loss5"] - jax["loss5"])
    loss_error = apart / abs(jax["loss5"]) if jax["loss5"] else apart
    ratio = round(jax["median_ms"] / own["median_ms"], 4)
    return own | {"jax": jax, "ratio": ratio, "loss_error": loss_error}


def is_good(row: Row) -> bool:
    """Whether a row has figures of all sides that it is about, and equal losses; a loss that is not
    a number is equal to none.
    """
    if "error" in row or "error" in row.get("jax", {}):
        return False
    return row.get("loss_error", 0.0) <= LOSS_TOLERANCE


# --- the command ----------------------------------------------------------------------------------


def read_rows(path: str) -> list[Row]:
    """The rows of a file, the last of each point, in the order of their first. Raises ValueError
    for what is no such file.
    """
    rows: dict[str, Row] = {}
    for number, line in enumerate(pathlib.Path(path).read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            rows[row["point"]] = row
        except (ValueError, KeyError, TypeError):
            raise ValueError(
                f"{path}:{number} expected a row of gradopt-bench --sweep, got '{line[:60]}'"
            ) from None
    return list(rows.values())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this mode."""
    sweep = "time the workloads at many sizes, beside JAX where it is there; one JSON line a point"
    parser.add_argument("--sweep", action="store_true", help=sweep)
    points = (
        "with --sweep, which points, as mlp.batch=1,gpt.layers=2+dim=64,cnn (default: "
        f"{len(bench_points.every_point())} of all workloads)"
    )
    parser.add_argument("--points", metavar="A,B", help=points)
    against = "with --sweep, whom beside: jax or none (default: jax, if it is installed)"
    parser.add_argument("--against", choices=("jax", "none"), help=against)
    python = "with --sweep, a Python that has JAX (default: this one, if it has)"
    parser.add_argument("--jax-python", metavar="PATH", help=python)
    rounds = "with --sweep, in how many turns each side runs its --seconds (default: 5)"
    parser.add_argument("--rounds", type=int, default=5, help=rounds)
    limit = "with --sweep, seconds after which a side is given up (default: 600)"
    parser.add_argument("--limit", type=float, default=600.0, metavar="SECONDS", help=limit)
    resume = "with --sweep and -o, keep the good rows of that file, and measure the other points"
    parser.add_argument("--resume", action="store_true", help=resume)
    earlier = "measure nothing: take the rows of an earlier --sweep -o FILE"
    parser.add_argument("--from", dest="rows_from", metavar="FILE", help=earlier)
    chart = "with --sweep or --from, write a chart of the rows, .svg or .html"
    parser.add_argument("--chart", metavar="FILE", help=chart)
    markdown = "with --sweep or --from, print tables for people, not JSON lines"
    parser.add_argument("--markdown", action="store_true", help=markdown)


def is_asked(options: argparse.Namespace) -> bool:
    """Whether the options ask for this mode."""
    return bool(options.sweep or options.rows_from)


def run(options: argparse.Namespace, refuse: Callable[[str], NoReturn]) -> int:
    """Measure or read rows, write what is asked for; 1 where a point failed, or losses differ.
    `refuse` ends the command for options that cannot be met.
    """
    if options.chart and pathlib.Path(options.chart).suffix not in (".svg", ".html"):
        refuse(f"--chart expected a name that ends in .svg or .html, got '{options.chart}'")
    if options.rows_from:
        try:
            rows = read_rows(options.rows_from)
        except (OSError, ValueError) as error:
            refuse(f"--from: {error}")
    else:
        rows = _swept(options, refuse)
    if options.chart:
        bench_chart.write(options.chart, rows)
    if options.markdown:
        print(bench_tables.markdown(rows), end="")
    elif options.rows_from and not options.chart:
        print(*map(json.dumps, rows), sep="\n")
    return int(not all(map(is_good, rows)))


def _swept(options: argparse.Namespace, refuse: Callable[[str], NoReturn]) -> list[Row]:
    """The rows of a sweep, written and printed as they come."""
    try:
        points = (
            bench_points.parse(options.points) if options.points else bench_points.every_point()
        )
    except ValueError as error:
        refuse(f"--points: {error}")
    if options.rounds < 1:
        refuse(f"--rounds expected a number from 1 on, got {options.rounds}")
    kept = _kept(options, refuse)
    jax = python_with_jax(options, refuse)
    sweep = Sweep(options.seconds, options.rounds, options.limit, options.target, jax)
    left = [point for point in points if str(point) not in kept]
    with contextlib.ExitStack() as stack:
        file = None
        if options.output:
            file = stack.enter_context(open(options.output, "a" if options.resume else "w"))
        for row in _progress(left, sweep):
            kept[row["point"]] = row
            if not options.markdown:
                print(json.dumps(row), flush=True)
            if file:
                print(json.dumps(row), file=file, flush=True)
    return [kept[str(point)] for point in points]


def _kept(options: argparse.Namespace, refuse: Callable[[str], NoReturn]) -> dict[str, Row]:
    """The good rows that are there already, by point."""
    if not options.resume:
        return {}
    if not options.output:
        refuse("--resume expected -o FILE, the rows to go on from")
    try:
        found = read_rows(options.output) if pathlib.Path(options.output).exists() else []
    except (OSError, ValueError) as error:
        refuse(f"--resume: {error}")
    return {row["point"]: row for row in found if is_good(row)}


def python_with_jax(options: argparse.Namespace, refuse: Callable[[str], NoReturn]) -> str:
    """The Python to run JAX with, "" for none."""
    if options.against == "none":
        return ""
    if options.jax_python:
        command = [options.jax_python, "-c", "import jax"]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
            reason = "" if done.returncode == 0 else done.stderr.strip().splitlines()[-1]
        except OSError as error:
            reason = str(error)
        if reason:
            refuse(f"--jax-python expected a Python that can import jax, got: {reason}")
        return str(options.jax_python)
    if importlib.util.find_spec("jax"):
        return sys.executable
    if options.against == "jax":
        refuse(
            "--against jax expected JAX to be installed; give a Python that has it: --jax-python"
        )
    return ""


def _progress(points: list[Point], sweep: Sweep) -> Iterator[Row]:
    """The rows of the points; on stderr how far it is, and what came of each."""
    console = rich.console.Console(stderr=True)
    columns = (
        rich.progress.SpinnerColumn(),
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.MofNCompleteColumn(),
        rich.progress.TimeElapsedColumn(),
    )
    with rich.progress.Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task("", total=len(points))
        for point in points:
            shown.update(task, description=str(point))
            row = sweep.row(point)
            console.print(bench_tables.line(row), highlight=False, markup=False)
            shown.advance(task)
            yield row
