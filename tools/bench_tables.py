# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The rows of gradopt-bench --sweep and --warm for people: a line, and tables in Markdown."""

import math
from typing import Any

Row = dict[str, Any]

HEADER = (
    "| point | gradopt ms | JAX ms | JAX / gradopt | gradopt first s | JAX first s | gradopt MiB "
    "| JAX MiB |\n|---|--:|--:|--:|--:|--:|--:|--:|"
)
WARM_HEADER = (
    "| workload | start | process s | first step s | trace | passes | IREE | load | run | own |"
    "\n"
    "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|"
)
WORTH_SAYING = 1e-4
"""Relative difference of losses from which on a table says it."""


def line(row: Row) -> str:
    """A row in one line."""
    if "error" in row:
        return f"{row['point']}: {row['error']}"
    said = f"{row['point']}: {row['median_ms']:.2f} ms, first {row['first_s']:.1f} s"
    jax = row.get("jax", {})
    if "error" in jax:
        return f"{said}; {jax['error']}"
    if jax:
        said += f"; JAX {jax['median_ms']:.2f} ms, ratio {row['ratio']:.2f}{_doubt(row)}"
    return said


def _doubt(row: Row) -> str:
    error = row.get("loss_error", 0.0)
    return "" if error <= WORTH_SAYING else f" (losses apart by {error:.1e})"


def markdown(rows: list[Row]) -> str:
    """A table for each workload, and what they sum up to."""
    parts = []
    for workload in dict.fromkeys(row["workload"] for row in rows):
        own = [row for row in rows if row["workload"] == workload]
        parts.append("\n".join([f"### {workload}\n", HEADER, *map(_cells, own)]))
    return "\n\n".join([*parts, summary(rows)]) + "\n"


def _cells(row: Row) -> str:
    if "error" in row:
        return f"| {row['point']} | {_plain(row['error'])} | | | | | | |"
    jax = row.get("jax", {})
    ratio = f"{row['ratio']:.2f}{_doubt(row)}" if "ratio" in row else ""
    times = _number(row, "median_ms"), _plain(jax.get("error", "")) or _number(jax, "median_ms")
    firsts = _number(row, "first_s"), _number(jax, "first_s")
    memory = _mebibytes(row.get("memory")), _mebibytes(jax.get("temp_bytes"))
    return "| " + " | ".join([row["point"], *times, ratio, *firsts, *memory]) + " |"


def _plain(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")[:120]


def _number(row: Row, name: str) -> str:
    value = row.get(name)
    return "" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _mebibytes(count: int | None) -> str:
    return "" if count is None else f"{count / 2**20:.1f}"


def summary(rows: list[Row]) -> str:
    """How many points there are, and the geometric mean and the least of their ratios."""
    ratios = {row["point"]: row["ratio"] for row in rows if "ratio" in row}
    failed = [row["point"] for row in rows if "error" in row or "error" in row.get("jax", {})]
    said = [f"{len(rows)} points"]
    if ratios:
        mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
        worst = min(ratios, key=lambda point: ratios[point])
        below = sum(r < 1 for r in ratios.values())
        said += [
            f"geometric mean of the ratios {mean:.2f}",
            f"least {ratios[worst]:.2f} ({worst})",
            f"{below} below 1",
        ]
    if failed:
        said.append(f"failed: {', '.join(failed)}")
    return "; ".join(said) + "."


def warm_table(rows: list[Row]) -> str:
    """A table of the rows of bench_warm.py, in seconds."""
    names = "process_s", "first_s", "trace_s", "passes_s", "iree_s", "load_s", "run_s"
    lines = [WARM_HEADER]
    for row in rows:
        cells = [row["workload"], row["start"], *(f"{row[name]:.2f}" for name in names)]
        cells.append(f"{row['own_share']:.1%}" if "own_share" in row else "")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
