# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-check: every op of the dialect, and its gradient, on a target against the NumPy
reference, or against another target; compiled and assembled where the target cannot run here.
"""

import argparse
import collections
import os
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import rich.console
import rich.progress

from ..dialect.base import OPS
from ..dialect.types import DTYPES, as_dtype
from ..errors import GradoptError
from ..lowering.target import Target, families
from ..op_cases import FAMILIES
from ..op_cases.rows import Row, rows
from ..runtime.present import AUTO, find_target, why_not
from . import differ, ptxas
from .capabilities import capabilities_table, devices_table
from .check_rows import (
    Outcome,
    Plan,
    compile_many,
    compile_memrefs,
    linalg_function,
    outcomes,
    run_all,
)
from .tables import Table, print_table

__all__ = ["compile_many", "compile_memrefs", "linalg_function", "main", "run_rows"]

DESCRIPTION = """\
Run every op of the dialect on a target, in every element type it takes, and its gradient in the
floating-point ones, and compare with the NumPy reference. Errors are in units in the last place
(ulp) of the result's type: of each element for elementwise ops, of the largest one for sums. A row
agrees if it is within the op's tolerance, which its row in gradopt/op_cases states. Rows that the
target refuses, by its table of capabilities, are counted, and are no failures.

A target that cannot run on this machine is compiled for, and its PTX assembled with NVIDIA's ptxas;
the table says what was done, and that nothing was run.

With --against, what two targets compute is compared: row by row (within twice the tolerance), or
for a program (--program), op by op, to name the first op that differs."""

EPILOG = """\
Exit status: 0 all rows agree (with --compile-only: compile, and assemble), 1 some do not, 2 the
command line is at fault, 3 all compile and assemble, but none could be run on this machine."""

NOT_RUN = 3
SECONDS = 15
"""How often a line tells the progress where there is no terminal."""


def run_rows(chosen: Sequence[Row], where: Target) -> Iterator[tuple[Row, float, str]]:
    """Each row, its error in ulp and, where it could not run, why; compiled some at a time."""
    for start in range(0, len(chosen), 40):
        group = chosen[start : start + 40]
        for row, outcome in zip(group, outcomes(group, Plan(where.name)), strict=True):
            yield row, outcome.error, outcome.refused or outcome.why


# --- the command ----------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> int:
    """The command; returns its exit status."""
    options = _parser().parse_args(argv)
    try:
        if options.devices or options.capabilities:
            return print_table(_asked(options), options.json)
        if options.program:
            return differ.main(options)
        where = find_target(options.target)
        plan, missing = _plan(options, where)
        count = len(_chosen(options))
    except GradoptError as error:
        print(f"gradopt-check: error: {error}", file=sys.stderr)
        return 2
    begin = time.perf_counter()
    if missing:
        print(f"gradopt-check: rows are only compiled: {missing}", file=sys.stderr)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if not options.verbose else "default")
        chosen = _chosen(options)
        found: dict[int, Outcome] = {}
        running = run_all(count, plan, _chosen, options, options.jobs)
        for i, outcome in _with_progress(running, count, found):
            found[i] = outcome
    results = [(row, found[i]) for i, row in enumerate(chosen)]
    seconds = time.perf_counter() - begin
    print_table(_summary(results, where, plan, missing, seconds), options.json)
    bad = [r for r in results if not is_good(*r, plan)]
    if bad or options.verbose:
        print_table(_details(results if options.verbose else bad, plan), options.json)
    return 1 if bad else NOT_RUN if missing else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gradopt-check",
        description=DESCRIPTION,
        epilog=EPILOG,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    known = ", ".join([AUTO, *(name for name in families() if name != "reference")])
    what = f"what to run on: {known}, or one of their variants (default: cpu)"
    parser.add_argument("--target", default="cpu", help=what)
    parser.add_argument("--ops", default="", help="ops to check, with commas (default: all)")
    parser.add_argument("--families", default="", help=f"families out of {', '.join(FAMILIES)}")
    parser.add_argument("--dtypes", default="", help="element types, with commas (default: all)")
    parser.add_argument("--no-gradients", action="store_true", help="check values only")
    jobs = "processes at work at once (default: the number of cores)"
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help=jobs)
    only = "compile rows, and assemble PTX, without running them"
    parser.add_argument("--compile-only", action="store_true", help=only)
    standard = ",".join(ptxas.ARCHITECTURES)
    archs = f"what PTX is assembled for, with commas (default: of {standard} those of the variant)"
    parser.add_argument("--assemble", default="", metavar="SM,...", help=archs)
    against = "compare with what another target computes, instead of the reference"
    parser.add_argument("--against", default="", metavar="TARGET", help=against)
    differ.add_arguments(parser)
    parser.add_argument("--devices", action="store_true", help="list the devices that are here")
    can = "list what each target computes in, and what it refuses, with the reasons"
    parser.add_argument("--capabilities", action="store_true", help=can)
    parser.add_argument("--verbose", action="store_true", help="list every row, not only bad ones")
    parser.add_argument("--json", action="store_true", help="print tables as JSON")
    return parser


def _asked(options: argparse.Namespace) -> Table:
    return devices_table() if options.devices else capabilities_table()


def _plan(options: argparse.Namespace, where: Target) -> tuple[Plan, str]:
    """What is to be done, and why no more than compiling can be. Raises GradoptError where that is
    not what was asked for.
    """
    missing = "" if options.compile_only else why_not(where)
    only = options.compile_only or bool(missing)
    if only and not where.ladder:
        raise GradoptError(
            f"--compile-only expected a target that IREE compiles for, got '{where.name}'"
        )
    if options.against:
        other = find_target(options.against)
        if reason := missing or why_not(other):
            raise GradoptError(f"--against expected two targets that run here: {reason}")
        if options.compile_only:
            raise GradoptError("--against expected no --compile-only: it compares results")
    asked = tuple(filter(None, options.assemble.split(",")))
    if asked and not (only and where.family == "cuda"):
        raise GradoptError(
            f"--assemble expected a CUDA target that is only compiled for, got '{where.name}'"
        )
    if where.family == "cuda" and only and not asked:
        asked = tuple(ptxas.architectures(where))
    if asked and not ptxas.ptxas():
        missing_tool = f"--assemble expected ptxas, found none; pip install {ptxas.PACKAGE}"
        if options.assemble:
            raise GradoptError(missing_tool)
        print(f"gradopt-check: PTX is not assembled: {missing_tool}", file=sys.stderr)
        asked = ()
    other = find_target(options.against).name if options.against else ""
    return Plan(where.name, other, only, asked), missing


def _chosen(options: argparse.Namespace) -> list[Row]:
    """The rows that the command line asks for. Raises GradoptError for names that do not exist."""
    ops = _names("ops", options.ops, OPS)
    families = _names("families", options.families, FAMILIES)
    dtypes = tuple(as_dtype(d) for d in options.dtypes.split(",") if d) or DTYPES
    return [
        row
        for family in families
        for case in FAMILIES[family]
        if case.op in ops
        for row in rows(case, dtypes, not options.no_gradients)
    ]


def _names(option: str, text: str, known: Iterable[str]) -> list[str]:
    names = [n for n in text.split(",") if n]
    if unknown := [n for n in names if n not in known]:
        raise GradoptError(
            f"--{option} expected names out of {', '.join(known)}, got {', '.join(unknown)}"
        )
    return names or list(known)


def _with_progress(
    results: Iterable[tuple[int, Outcome]], total: int, found: dict[int, Outcome]
) -> Iterator[tuple[int, Outcome]]:
    """The results, shown as they come: a bar on a terminal, else a line now and then."""
    console = rich.console.Console(file=sys.stderr)
    if console.is_terminal:
        columns = (
            *rich.progress.Progress.get_default_columns(),
            rich.progress.MofNCompleteColumn(),
        )
        with rich.progress.Progress(*columns, console=console, transient=True) as progress:
            yield from progress.track(results, total=total, description="rows")
        return
    begin = told = time.perf_counter()
    for result in results:
        yield result
        now = time.perf_counter()
        if now - told > SECONDS:
            failed = sum(bool(o.why) for o in found.values())
            line = f"{len(found)} of {total} rows, {failed} failed, {now - begin:.0f} s"
            print(f"gradopt-check: {line}", file=sys.stderr, flush=True)
            told = now


# --- tables ---------------------------------------------------------------------------------------

Result = tuple[Row, Outcome]


def is_good(row: Row, outcome: Outcome, plan: Plan) -> bool:
    """Whether a row is as it should be: refused, within its tolerance, or compiled and
    assembled.
    """
    if outcome.refused:
        return True
    if plan.only_compiled:
        return outcome.is_compiled and outcome.assembled == plan.assembled
    return outcome.error <= row.ulp * plan.allowance


def _summary(
    results: list[Result], where: Target, plan: Plan, missing: str, seconds: float
) -> Table:
    """A line a family, and one for all."""
    family_of = {c.name: family for family, cases in FAMILIES.items() for c in cases}
    groups: dict[str, list[Result]] = collections.defaultdict(list)
    for result in results:
        groups[family_of[result[0].case.name]].append(result)
    named = [*groups.items(), ("all", results)]
    title = f"gradopt-check on target '{where.name}' ({where.identity()}), {seconds:.0f} s"
    if plan.only_compiled:
        why = "as asked" if not missing else f"it cannot run here: {missing}"
        tool = f"; assembled by ptxas {ptxas.version()}" if plan.assembled else ""
        title = f"{title}: compiled, NOTHING WAS RUN ({why}){tool}"
        archs = [f"assembled {a}" for a in plan.assembled]
        columns = ["family", "ops", "rows", "compiled", *archs, "refused", "first that failed"]
        return Table(title, columns, [_compiled_line(f, group, plan) for f, group in named])
    if plan.against:
        title = f"{title}, against target '{plan.against}'"
    worst = ["refused", "worst ulp", "worst row"]
    columns = ["family", "ops", "values", "agree", "gradients", "agree ", *worst]
    return Table(title, columns, [_line(f, group, plan) for f, group in named])


def _compiled_line(family: str, group: list[Result], plan: Plan) -> list[Any]:
    """Rows, those compiled, assembled, refused."""
    tried = [r for r in group if not r[1].refused]
    bad = next((row.name for row, o in tried if not is_good(row, o, plan)), "")
    return [
        family,
        len({r.case.op for r, _ in group}),
        len(tried),
        sum(o.is_compiled for _, o in tried),
        *(sum(a in o.assembled for _, o in tried) for a in plan.assembled),
        len(group) - len(tried),
        bad,
    ]


def _line(family: str, group: list[Result], plan: Plan) -> list[Any]:
    """Rows that ran, those that agree, those refused, the largest error and its row."""
    tried = [r for r in group if not r[1].refused]
    counts: list[Any] = []
    for what in ("value", "gradient"):
        rows_of = [r for r in tried if r[0].what == what]
        counts += [len(rows_of), sum(is_good(*r, plan) for r in rows_of)]
    worst = max(tried, key=lambda r: r[1].error, default=None)
    shown = ["", ""] if worst is None else [f"{worst[1].error:.1f}", worst[0].name]
    ops = len({r.case.op for r, _ in group})
    return [family, ops, *counts, len(group) - len(tried), *shown]


def _details(results: list[Result], plan: Plan) -> Table:
    """A line a row."""
    if plan.only_compiled:
        lines = [
            [row.name, _state(o), " ".join(o.assembled), (o.refused or o.why)[:300]]
            for row, o in results
        ]
        return Table("rows", ["row", "compiled", "assembled", "why"], lines)
    lines = [
        [
            row.name,
            "" if o.refused else f"{o.error:.1f}",
            f"{row.ulp * plan.allowance:g}",
            "refused" if o.refused else "yes" if is_good(row, o, plan) else "NO",
            (o.refused or o.why)[:300],
        ]
        for row, o in results
    ]
    return Table("rows", ["row", "ulp", "allowed", "agrees", "why"], lines)


def _state(outcome: Outcome) -> str:
    return "refused" if outcome.refused else "yes" if outcome.is_compiled else "NO"


if __name__ == "__main__":
    sys.exit(main())
