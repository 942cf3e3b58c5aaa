# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-bench --warm: what the first step of a process costs, with an empty cache and with a warm
one, and where the time goes.

Each start is a process of its own. The parts are what gradopt logs: `gradopt.compile` when a trace
is done and what IREE took, `gradopt.passes` each pass, `gradopt.calls` the call itself.
"""

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, NoReturn

import rich.console

from .bench_points import Point, parse
from .bench_step import prepare
from .bench_tables import warm_table

PARTS = "trace_s", "passes_s", "iree_s", "load_s", "run_s"


class Watch(logging.Handler):
    """What gradopt logs of one first call."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.traced = self.iree = self.called = 0.0  # when, how long, when
        self.passes: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        given: Any = record.args
        if record.name == "gradopt.passes":
            step, milliseconds = str(given[0]), given[1]
            self.passes[step] = self.passes.get(step, 0.0) + milliseconds / 1e3
        elif record.name == "gradopt.calls":
            self.called = time.perf_counter() - given[1] / 1e3
        elif "by IREE" in record.msg:
            self.iree += given[-1]
        elif not self.traced:
            self.traced = time.perf_counter()


def first_call(workload: str, sizes: dict[str, int], target: str) -> dict[str, Any]:
    """Seconds of this process's first training step, and of its parts: tracing; gradopt's passes;
    IREE's compiler; the step itself; and the rest, which is reading and printing IR, the cache, and
    loading the module.
    """
    watch = Watch()
    for area in ("compile", "passes", "calls"):
        logger = logging.getLogger(f"gradopt.{area}")
        logger.setLevel(logging.DEBUG)
        logger.addHandler(watch)
        logger.propagate = False
    step, _, _ = prepare({"workload": workload, "sizes": sizes, "target": target})
    begin = time.perf_counter()
    step()
    end = time.perf_counter()
    total, passes = end - begin, sum(watch.passes.values())
    parts = [watch.traced - begin, passes, watch.iree, 0.0, end - watch.called]
    parts[PARTS.index("load_s")] = total - sum(parts)
    named = dict(zip(PARTS, parts, strict=True))
    return {
        "first_s": round(total, 3),
        **{name: round(seconds, 3) for name, seconds in named.items()},
        "passes": {name: round(seconds, 4) for name, seconds in watch.passes.items()},
    }


def rows_of(point: Point, target: str) -> list[dict[str, Any]]:
    """The rows of a workload, cold and warm; `own_share` of the cold one is the share of gradopt's
    tracing and passes in the first step; `process_s` is from the start of the process to its end,
    with all that it imports. Raises RuntimeError, with the last line of what it says, where a
    process fails.
    """
    rows = []
    with tempfile.TemporaryDirectory(prefix="gradopt-bench-") as folder:
        for start in ("cold", "warm"):
            row: dict[str, Any] = {"workload": point.workload, "size": point.size, "start": start}
            row |= _in_process(point, target, folder)
            if start == "cold":
                own = row["trace_s"] + row["passes_s"]
                row["own_share"] = round(own / row["first_s"], 3)
            rows.append(row)
    return rows


def _in_process(point: Point, target: str, cache: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "gradopt.tools.bench_warm", point.workload, target]
    command.append(json.dumps(point.size))
    environment = os.environ | {"GRADOPT_CACHE_DIR": cache}
    begin = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    seconds = time.perf_counter() - begin
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise RuntimeError(f"{point}: {said[-1][:300]}")
    return {"process_s": round(seconds, 3)} | json.loads(done.stdout.splitlines()[-1])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this mode."""
    warm = (
        "time the first step of a new process with an empty cache and with a warm one, and what "
        "gradopt, IREE and loading take of it"
    )
    parser.add_argument("--warm", action="store_true", help=warm)


def is_asked(options: argparse.Namespace) -> bool:
    """Whether the options ask for this mode."""
    return options.warm


def run(options: argparse.Namespace, refuse: Callable[[str], NoReturn]) -> int:
    """Print two JSON lines a workload, or with `--markdown` a table; the exit status."""
    sizes = f".{'+'.join(options.size)}" if options.size else ""
    try:
        points = parse(",".join(f"{name}{sizes}" for name in options.workloads.split(",")))
    except ValueError as error:
        refuse(f"--workloads, --size: {error}")
    rows = []
    progress = rich.console.Console(stderr=True)
    for point in points:
        with progress.status(f"{point}: first steps of two processes"):
            try:
                found = rows_of(point, options.target)
            except RuntimeError as error:
                print(error, file=sys.stderr)
                return 1
        rows += found
        if not options.markdown:
            print(*map(json.dumps, found), sep="\n", flush=True)
    if options.markdown:
        print(warm_table(rows), end="")
    return 0


if __name__ == "__main__":
    print(json.dumps(first_call(sys.argv[1], json.loads(sys.argv[3]), sys.argv[2])))
