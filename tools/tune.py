# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-tune: times other ways to compile a function on this machine, and keeps what is faster
for `go.compile(tune="stored")` and `tune=True`.
"""

import argparse
import sys
from typing import Any

from ..dialect.base import new_context
from ..dialect.control import is_public, symbols
from ..dialect.function_graph import FunctionGraph
from ..errors import GradoptError
from ..runtime import tune
from ..runtime.binding import signature_of
from ..runtime.cache import disk_store
from ..runtime.options import check_tune
from ..runtime.present import find_target
from ..runtime.store import TUNED
from .source import read
from .tables import Table, print_table
from .workloads import WORKLOADS, train_step

FAILED, MISUSED = 1, 2

DESCRIPTION = """\
Time other ways to compile a function on this machine: the forms of its ops (docs/tuning.md) and
some of IREE's flags. What makes the whole function at least 2 % faster is kept in the compile cache
and used by go.compile(tune="stored") and go.compile(tune=True), for the function and for equal ops
of others."""

EPILOG = """\
Exit status: 0 done, 1 the input is at fault or does not compile, 2 the command line or a file is.
The machine should have nothing else to do meanwhile."""


def main(argv: list[str] | None = None) -> int:
    """The command; returns its exit status."""
    found = parser()
    options = found.parse_args(argv)
    if options.list:
        return _list(options.json)
    if options.forget:
        print(f"forgot {disk_store().forget(TUNED, disk_store().notes(TUNED))} notes")
        return 0
    if (options.input is None) == (options.workload is None):
        found.error("expected a file or --workload, one of them; or --list or --forget")
    try:
        return _tune(options)
    except GradoptError as error:
        print(f"gradopt-tune: error: {error}", file=sys.stderr)
        return FAILED
    except OSError as error:
        print(f"gradopt-tune: error: cannot read '{options.input}': {error}", file=sys.stderr)
        return MISUSED


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="gradopt-tune", description=DESCRIPTION, epilog=EPILOG)
    files = "a file of MLIR text; - for stdin"
    found.add_argument("input", nargs="?", metavar="FILE", help=files)
    named = "the training step of a workload of gradopt-bench"
    found.add_argument("--workload", choices=list(WORKLOADS), help=named)
    function = "the function of FILE to tune (default: its only public one)"
    found.add_argument("--function", metavar="NAME", help=function)
    found.add_argument("--target", default="cpu", help="what to compile for (default: cpu)")
    seconds = f"how long each comparison takes, compiling aside (default: {tune.SECONDS})"
    found.add_argument("--seconds", type=_seconds, default=tune.SECONDS, help=seconds)
    found.add_argument("--json", action="store_true", help="print JSON")
    found.add_argument("--list", action="store_true", help="list what is kept, and exit")
    forget = "remove everything that is kept, for all functions and ops, and exit"
    found.add_argument("--forget", action="store_true", help=forget)
    return found


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise argparse.ArgumentTypeError(f"expected seconds above 0, got '{text}'")
    return seconds


def _tune(options: argparse.Namespace) -> int:
    graph, target, signature = _workload(options) if options.workload else _function(options)
    tuner = tune.Tuner(graph, target, signature, seconds=options.seconds)
    tuning = tuner.run()
    rows = [
        [g.op, form, round(seconds * 1e3, 4), form == tuning.forms.get(g.name, g.rule)]
        for g in tuner.groups
        for form, seconds in tuner.times.get(g.name, {}).items()
    ]
    times = [round(t * 1e3, 3) for t in (tuning.before, tuning.after)]
    title = f"'{graph.name}': {times[0]} ms, tuned {times[1]} ms" + (
        f", flags {tuning.flags}" if tuning.flags else ""
    )
    if options.json:
        columns = ["function", "before_ms", "after_ms", "flags", "forms"]
        row = [graph.name, *times, tuning.flags, dict(tuning.forms)]
        return print_table(Table("", columns, [row]), True)
    return print_table(Table(title, ["op", "form", "ms", "taken"], rows), False)


def _workload(options: argparse.Namespace) -> tuple[Any, Any, Any]:
    import gradopt as go

    start, batch, loss = WORKLOADS[options.workload]()
    step = go.compile(train_step(loss), donate=0, target=options.target, tune=True)
    return step.trace(start, *batch), step.target, step.signature(start, *batch)


def _function(options: argparse.Namespace) -> tuple[Any, Any, Any]:
    target = find_target(options.target)
    check_tune(True, target)
    source = read(options.input)
    with new_context():
        module = source.parse()
        public = [
            name
            for name, function in symbols(module).items()
            if not function.is_external and is_public(function)
        ]
        name = options.function or (public[0] if len(public) == 1 else "")
        if name not in symbols(module):
            known = ", ".join(symbols(module))
            raise GradoptError(f"expected --function out of {known}, got '{name}'")
        graph = FunctionGraph(module, name)
        return graph, target, signature_of(graph, target)


def _list(as_json: bool) -> int:
    rows = []
    for key, about in sorted(tune.noted().items()):
        what = about.get("op") or f"function {about.get('function', '?')}"
        found = about.get("form") or ", ".join(
            [*(about.get("forms") or {}).values(), *filter(None, [about.get("flags")])]
        )
        where = about.get("machine", {})
        rows.append([key[:12], what, found or "as by the rules", where.get("CPU", "?")])
    title = f"{len(rows)} notes, in {disk_store().folder / TUNED}"
    return print_table(Table(title, ["key", "what", "chosen", "CPU"], rows), as_json)


if __name__ == "__main__":
    sys.exit(main())
