# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-check: every op of the dialect, and its gradient, on a target of this machine against the
NumPy reference.
"""

import argparse
import collections
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import rich.console
import rich.progress

from ..dialect.base import OPS
from ..dialect.graph import trace
from ..dialect.mlir import ir
from ..dialect.types import DTYPES, TensorSpec, as_dtype
from ..errors import CompileError, GradoptError
from ..lowering import pipeline
from ..lowering.target import Target, families, target
from ..op_cases import FAMILIES
from ..op_cases.rows import Row, rows
from ..runtime.compiler import compile_linalg
from ..runtime.device import Module
from ..runtime.jit import POISON, JitModule
from .tables import Table, print_table

AT_ONCE = 40
"""Functions in one module: enough to share the compiler's start, few enough to find a culprit."""

DESCRIPTION = """\
Run every op of the dialect on a target, in every element type it takes, and its gradient in the
floating-point ones, and compare with the NumPy reference. Errors are in units in the last place
(ulp) of the result's type: of each element for elementwise ops, of the largest one for sums. A row
agrees if it is within the op's tolerance, which its row in gradopt/op_cases states."""

EPILOG = "Exit status: 0 all rows agree, 1 some do not, 2 the command line is at fault."


def linalg_function(
    fn: Callable[..., Any], name: str, *arrays: np.ndarray, passes: str = "gradopt-lower"
) -> str:
    """The text of one function, lowered as compilers get it, that can stand beside others in a
    module.
    """
    graph = trace(fn, *(TensorSpec(x.shape, x.dtype) for x in arrays), name=name)
    pipeline.run(graph.module, passes)
    body = list(graph.module.body.operations)
    return "\n".join(op.operation.get_asm(use_local_scope=True) for op in body)


def compile_many(functions: dict[str, str], where: Target) -> dict[str, Callable[..., Any]]:
    """Compile functions given as text, some to a module; returns what calls each of them with the
    results' types and the arguments. A function that IREE cannot compile raises its CompileError
    when it is called, and does not keep others from being compiled.
    """
    names = list(functions)
    callables: dict[str, Callable[..., Any]] = {}
    for start in range(0, len(names), AT_ONCE):
        callables |= _compile_together(
            {n: functions[n] for n in names[start : start + AT_ONCE]}, where
        )
    return callables


def _compile_together(functions: dict[str, str], where: Target) -> dict[str, Callable[..., Any]]:
    names = list(functions)
    text = "module {\n" + "\n".join(functions.values()) + "\n}"
    title = f"{names[0]} to {names[-1]}"
    try:
        if where.ladder:
            module: Any = Module(compile_linalg(text, where, title), where.driver)
        else:
            module = compile_memrefs(text, title)
    except CompileError as error:
        if len(names) == 1:
            return {names[0]: _raises(error)}
        half = len(names) // 2
        parts = [{n: functions[n] for n in part} for part in (names[:half], names[half:])]
        return _compile_together(parts[0], where) | _compile_together(parts[1], where)
    return {name: _caller(module, name) for name in names}


def compile_memrefs(text: str, title: str) -> JitModule:
    """Functions in memref form, compiled by the host JIT."""
    with ir.Context() as context:
        context.allow_unregistered_dialects = True
        return JitModule(ir.Module.parse(text), title)


def _caller(module: Any, name: str) -> Callable[..., Any]:
    def call(specs: Sequence[TensorSpec], *arrays: np.ndarray) -> list[np.ndarray]:
        if isinstance(module, JitModule):
            return module.run(name, arrays, specs, poison=POISON)
        return [np.array(a) for a in module.run(name, arrays, [s.dtype for s in specs])]

    return call


def _raises(error: CompileError) -> Callable[..., Any]:
    def call(*unused: Any) -> Any:
        raise error

    return call


def run_rows(chosen: Sequence[Row], where: Target) -> Iterator[tuple[Row, float, str]]:
    """Each row, its error in ulp and, where it could not run, why; compiled some at a time."""
    passes = ",".join(filter(None, pipeline.stages(where).values()))
    for start in range(0, len(chosen), AT_ONCE):
        group = chosen[start : start + AT_ONCE]
        texts = {
            f"row{i}": linalg_function(r.fn, f"row{i}", *r.arrays, passes=passes)
            for i, r in enumerate(group)
        }
        compiled = compile_many(texts, where)
        for i, row in enumerate(group):
            try:
                got = compiled[f"row{i}"](
                    [TensorSpec(w.shape, w.dtype) for w in row.want], *row.arrays
                )
                yield row, row.error(got), ""
            except (GradoptError, RuntimeError) as error:
                yield row, np.inf, str(error)


# --- the command ----------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> int:
    """The command; returns its exit status."""
    options = _parser().parse_args(argv)
    try:
        where = target(options.target)
        chosen = _chosen(options)
    except GradoptError as error:
        print(f"gradopt-check: error: {error}", file=sys.stderr)
        return 2
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if not options.verbose else "default")
        results = list(_with_progress(run_rows(chosen, where), len(chosen)))
    print_table(_summary(results, where, time.perf_counter() - begin), options.json)
    bad = [r for r in results if not r[1] <= r[0].ulp]
    if bad or options.verbose:
        print_table(_details(results if options.verbose else bad), options.json)
    return 1 if bad else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gradopt-check", description=DESCRIPTION, epilog=EPILOG, allow_abbrev=False
    )
    known = ", ".join(name for name in families() if name != "reference")
    parser.add_argument("--target", default="cpu", help=f"what to run on: {known} (default: cpu)")
    parser.add_argument("--ops", default="", help="ops to check, with commas (default: all)")
    parser.add_argument("--families", default="", help=f"families out of {', '.join(FAMILIES)}")
    parser.add_argument("--dtypes", default="", help="element types, with commas (default: all)")
    parser.add_argument("--no-gradients", action="store_true", help="check values only")
    parser.add_argument("--verbose", action="store_true", help="list every row, not only bad ones")
    parser.add_argument("--json", action="store_true", help="print tables as JSON")
    return parser


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


def _with_progress(results: Iterable[Any], total: int) -> Iterator[Any]:
    console = rich.console.Console(file=sys.stderr)
    columns = (*rich.progress.Progress.get_default_columns(), rich.progress.MofNCompleteColumn())
    with rich.progress.Progress(*columns, console=console, transient=True) as progress:
        yield from progress.track(results, total=total, description="rows")


Result = tuple[Row, float, str]


def _summary(results: list[Result], where: Target, seconds: float) -> Table:
    """A line a family: rows, rows that agree, the largest error and its row."""
    family_of = {id(c): f for f, cases in FAMILIES.items() for c in cases}
    by_name = {c.name: family_of[id(c)] for cases in FAMILIES.values() for c in cases}
    groups: dict[str, list[Result]] = collections.defaultdict(list)
    for result in results:
        groups[by_name[result[0].case.name]].append(result)
    lines = [_line(family, group) for family, group in groups.items()]
    lines.append(_line("all", results))
    title = f"gradopt-check on target '{where.name}' ({where.identity()}), {seconds:.0f} s"
    return Table(
        title,
        ["family", "ops", "values", "agree", "gradients", "agree ", "worst ulp", "worst row"],
        lines,
    )


def _line(family: str, group: list[Result]) -> list[Any]:
    counts: list[Any] = []
    for what in ("value", "gradient"):
        rows_of = [r for r in group if r[0].what == what]
        counts += [len(rows_of), sum(error <= row.ulp for row, error, _ in rows_of)]
    worst = max(group, key=lambda r: r[1], default=None)
    shown = ["", ""] if worst is None else [f"{worst[1]:.1f}", worst[0].name]
    return [family, len({r.case.op for r, _, _ in group}), *counts, *shown]


def _details(results: list[Result]) -> Table:
    """A line a row."""
    lines = [
        [row.name, f"{error:.1f}", f"{row.ulp:g}", "yes" if error <= row.ulp else "NO", why[:300]]
        for row, error, why in results
    ]
    return Table("rows", ["row", "ulp", "allowed", "agrees", "why"], lines)


if __name__ == "__main__":
    sys.exit(main())
