# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Tables that tools print: for people, or as JSON."""

import dataclasses
import json
import sys
from typing import Any, TextIO

import rich.console
import rich.table

from ..dialect.base import NO_GRADIENT, OPS, REQUIRED, Op, is_composite
from ..dialect.control import DerivativeOp
from ..lowering.linalg import is_lowered
from ..lowering.passes import PASSES
from ..lowering.pipeline import PIPELINES


@dataclasses.dataclass
class Table:
    """A title, columns, and rows of as many cells."""

    title: str
    columns: list[str]
    rows: list[list[Any]]


def print_table(table: Table, as_json: bool, file: TextIO | None = None) -> int:
    """Print a table to a file, by default stdout; returns 0. JSON is a list of objects, one a
    row.
    """
    out = file or sys.stdout
    if as_json:
        print(
            json.dumps(
                [dict(zip(table.columns, row, strict=True)) for row in table.rows], indent=1
            ),
            file=out,
        )
        return 0
    shown = rich.table.Table(title=table.title, title_justify="left", box=None, pad_edge=False)
    for column in table.columns:
        shown.add_column(column, overflow="fold")
    for row in table.rows:
        shown.add_row(*map(str, row))
    width = None if out.isatty() else 200
    rich.console.Console(file=out, width=width).print(shown)
    return 0


def ops_table() -> Table:
    """Every op: its fields, what it has of gradient, reference and lowering, and its first
    sentence.
    """
    rows = [_op_row(name, op) for name, op in sorted(OPS.items())]
    gaps = sum("MISSING" in row for row in rows)
    title = f"{len(rows)} ops of the gradopt dialect, {gaps} with a gap"
    return Table(
        title,
        ["op", "operands", "attributes", "results", "gradient", "reference", "lowering", "summary"],
        rows,
    )


def _op_row(name: str, op: type[Op]) -> list[str]:
    attributes = ", ".join(
        a if d is REQUIRED else f"{a}={d}" for a, (_, d) in op.ATTRIBUTES.items()
    )
    summary = " ".join((op.__doc__ or "").split("\n\n")[0].split())
    fields = [
        ", ".join(f + ("..." if many else "") for f, many in group.items())
        for group in (op.OPERANDS, op.RESULTS)
    ]
    return [name, fields[0], attributes, fields[1], *_status(op), summary]


def _status(op: type[Op]) -> list[str]:
    if issubclass(op, DerivativeOp):
        return ["by expansion", "by expansion", "by expansion"]
    if op.OF_FUNCTION:
        return ["by expansion", "yes", "yes"]
    rule, otherwise = getattr(op, "vjp", None), "through parts" if is_composite(op) else "MISSING"
    return [
        "none by definition" if rule is NO_GRADIENT else "rule" if rule else otherwise,
        "yes" if getattr(op, "reference", None) else "MISSING",
        "yes" if is_lowered(op) else otherwise,
    ]


def passes_table() -> Table:
    """Every gradopt pass and pipeline. MLIR's own passes can be used too."""
    rows = [
        [p.name, " ".join(f"{k}={v}" for k, v in p.options.items()), p.summary]
        for p in sorted(PASSES.values(), key=lambda p: p.name)
    ]
    rows += [[name, "", f"the passes {passes}"] for name, passes in PIPELINES.items()]
    return Table(
        "gradopt's passes; all passes of MLIR can be used as well",
        ["pass", "options", "summary"],
        rows,
    )


def timing_table(times: list[tuple[str, float]]) -> Table:
    """Seconds and share of each pass, in order, and their sum."""
    total = sum(seconds for _, seconds in times)
    rows = [[name, f"{s:.4f}", f"{100 * s / total:.1f}" if total else "0.0"] for name, s in times]
    return Table(
        "Execution time",
        ["pass", "seconds", "percent"],
        [*rows, ["total", f"{total:.4f}", "100.0"]],
    )
