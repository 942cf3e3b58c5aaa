# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""A chart of the rows of gradopt-bench --sweep, as SVG, or as an HTML page that holds it.

One row of panels a series, a workload at sizes that differ in one name: milliseconds a step, bytes
of temporaries and seconds to the first step, against the size. All axes are logarithmic. Fonts,
styles and scripts from elsewhere are not needed.
"""

import dataclasses
import html
import math
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .bench_points import series_of

Row = dict[str, Any]
Line = list[tuple[int, float]]

WIDTH, HEAD, PANEL_HEIGHT = 1200, 104, 150
LEFT, RIGHT, GAP_X, GAP_Y = 118, 24, 62, 58
COLOURS = {"gradopt": "#3b6fb6", "JAX": "#e08a1e"}
INK, FAINT, GRID = "#1f2430", "#6b7280", "#e5e7eb"
STYLE = f"""
text {{ font-family: Inter, 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif; fill: {INK}; }}
.title {{ font-size: 22px; font-weight: 600; }}
.sub {{ font-size: 13px; fill: {FAINT}; }}
.column, .series {{ font-size: 14px; font-weight: 600; }}
.tick {{ font-size: 11px; fill: {FAINT}; }}
.axis {{ font-size: 12px; fill: {FAINT}; }}
"""


@dataclasses.dataclass(frozen=True)
class Metric:
    """What a column of panels shows: its title, where it stands in a row for both sides, and how
    its ticks are written.
    """

    title: str
    own: Callable[[Row], Any]
    jax: Callable[[Row], Any]
    tick: Callable[[float], str]


def _of_jax(name: str) -> Callable[[Row], Any]:
    return lambda row: row.get("jax", {}).get(name)


def _plain_tick(value: float) -> str:
    return f"{value:g}"


def _byte_tick(value: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:g} {unit}B"
    return f"{value:g} B"


def _size_tick(value: int) -> str:
    for unit, size in (("M", 1_000_000), ("k", 1000)):
        if value >= 10_000 and value % size == 0:
            return f"{value // size}{unit}"
    return str(value)


METRICS = (
    Metric("ms a step", lambda row: row.get("median_ms"), _of_jax("median_ms"), _plain_tick),
    Metric("temporaries", lambda row: row.get("memory"), _of_jax("temp_bytes"), _byte_tick),
    Metric("s to the first step", lambda row: row.get("first_s"), _of_jax("first_s"), _plain_tick),
)


@dataclasses.dataclass(frozen=True)
class Series:
    """The rows of one workload that differ in one size, smallest first."""

    workload: str
    name: str
    rows: list[Row]

    def line(self, value: Callable[[Row], Any]) -> Line:
        """(size, value) of each row that has a value above 0."""
        found = [(row["size"][self.name], value(row)) for row in self.rows]
        return [(x, y) for x, y in found if y is not None and y > 0]


def series(rows: Sequence[Row]) -> list[Series]:
    """The series of two points or more, in the order of their first rows. A workload at its
    standard sizes belongs to all series of it; rows that failed to none.
    """
    found: dict[tuple[str, str], list[Row]] = {}
    base: dict[str, Row] = {}
    for row in rows:
        name = None if "error" in row else series_of(row["workload"], row["size"])
        if name:
            found.setdefault((row["workload"], name), []).append(row)
        elif name == "":
            base[row["workload"]] = row
    made = []
    for (workload, name), own in found.items():
        every = own + ([base[workload]] if workload in base else [])
        every = [row for row in every if row["size"][name] > 0]  # others have no logarithm
        every.sort(key=lambda row: row["size"][name])
        made.append(Series(workload, name, every))
    return [s for s in made if len(s.rows) > 1]


class Axis:
    """Numbers above 0 on a logarithmic axis from `low` to `high` pixels, with a margin."""

    def __init__(self, values: Sequence[float], low: float, high: float) -> None:
        first, last = math.log10(min(values)), math.log10(max(values))
        margin = max((last - first) * 0.06, 0.12)
        self.first, self.last = first - margin, last + margin
        self.low, self.high = low, high

    def __call__(self, value: float) -> float:
        share = (math.log10(value) - self.first) / (self.last - self.first)
        return self.low + share * (self.high - self.low)

    def ticks(self) -> list[float]:
        """Round numbers on the axis, four at most where there is room for them: powers of ten, or
        else also 2 and 5 times these.
        """
        powers = range(math.floor(self.first), math.ceil(self.last) + 1)
        for digits in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)):
            found = [d * 10.0**p for p in powers for d in digits]
            found = [v for v in found if self.first <= math.log10(v) <= self.last]
            if len(found) >= 2:
                return found[:: math.ceil(len(found) / 4)]
        return found


class Chart:
    """The geometry of one chart."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.series = series(rows)
        self.height = HEAD + len(self.series) * (PANEL_HEIGHT + GAP_Y) + 16
        self.sides = [s for s in COLOURS if s != "JAX" or any("jax" in row for row in rows)]
        room = WIDTH - LEFT - RIGHT - GAP_X * (len(METRICS) - 1)
        self.panel_width = room / len(METRICS)

    def svg(self) -> str:
        """The chart as an SVG document."""
        size = f'width="{WIDTH}" height="{self.height}" viewBox="0 0 {WIDTH} {self.height}"'
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
            f"<style>{STYLE}</style>",
            f'<rect width="{WIDTH}" height="{self.height}" fill="#ffffff"/>',
            *self._heading(),
        ]
        for i, shown in enumerate(self.series):
            top = HEAD + i * (PANEL_HEIGHT + GAP_Y)
            parts += [_text(22, top + 22, shown.workload, "series")]
            parts += [_text(22, top + 40, shown.name, "axis")]
            for j, metric in enumerate(METRICS):
                parts += self._panel(shown, metric, self._left(j), top)
        return "\n".join([*parts, "</svg>"]) + "\n"

    def _left(self, column: int) -> float:
        return LEFT + column * (self.panel_width + GAP_X)

    def _heading(self) -> Iterator[str]:
        yield _text(22, 36, "Training steps against their size", "title")
        said = "medians of steps taken in turn; float32, SGD; logarithmic axes"
        yield _text(22, 58, said, "sub")
        x = WIDTH - RIGHT - 100 * len(self.sides)
        for side in self.sides:
            yield _stroke(f"M{x} 32h26", COLOURS[side], 2.4) + _dot(x + 13, 32, COLOURS[side])
            yield _text(x + 34, 36, side, "column")
            x += 110
        for j, metric in enumerate(METRICS):
            yield _text(self._left(j), HEAD - 12, metric.title, "column")

    def _panel(self, shown: Series, metric: Metric, left: float, top: float) -> Iterator[str]:
        lines = {"gradopt": shown.line(metric.own), "JAX": shown.line(metric.jax)}
        points = [point for line in lines.values() for point in line]
        if not points:
            yield _text(left, top + 22, "no figures", "axis")
            return
        right, bottom = left + self.panel_width, top + PANEL_HEIGHT
        x = Axis([row["size"][shown.name] for row in shown.rows], left, right)
        y = Axis([value for _, value in points], bottom, top)
        for value in y.ticks():
            yield _stroke(f"M{left:.1f} {y(value):.1f}H{right:.1f}", GRID, 1)
            yield _text(left - 6, y(value) + 4, metric.tick(value), "tick", "end")
        for value in sorted({row["size"][shown.name] for row in shown.rows}):
            yield _stroke(f"M{x(value):.1f} {bottom}v4", FAINT, 1)
            yield _text(x(value), bottom + 17, _size_tick(value), "tick", "middle")
        yield _stroke(f"M{left:.1f} {top}V{bottom}H{right:.1f}", FAINT, 1)
        yield _text((left + right) / 2, bottom + 33, shown.name, "axis", "middle")
        for side, line in lines.items():
            if len(line) > 1:
                path = "L".join(f"{x(a):.1f} {y(b):.1f}" for a, b in line)
                yield _stroke(f"M{path}", COLOURS[side], 2)
            for a, b in line:
                told = f"{side}: {shown.workload} {shown.name}={a}, {metric.title} {b:g}"
                yield _dot(x(a), y(b), COLOURS[side], told)


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{kind}" {place}>{html.escape(text)}</text>'


def _stroke(path: str, colour: str, width: float) -> str:
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width}"/>'


def _dot(x: float, y: float, colour: str, told: str = "") -> str:
    title = f"<title>{html.escape(told)}</title>" if told else ""
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.6" fill="{colour}">{title}</circle>'


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Training steps against their size</title>
<style>
body { margin: 0; background: #f5f6f8; }
figure { max-width: 1200px; margin: 24px auto; background: #fff; border-radius: 12px;
  box-shadow: 0 1px 4px #0002; overflow: hidden; }
figure svg { display: block; width: 100%%; height: auto; }
</style></head><body><figure>%s</figure></body></html>
"""


def svg(rows: Sequence[Row]) -> str:
    """The rows as an SVG document."""
    return Chart(rows).svg()


def write(path: str, rows: Sequence[Row]) -> None:
    """Write the chart to a file, SVG or HTML by its name."""
    text = svg(rows) if path.endswith(".svg") else PAGE % svg(rows)
    pathlib.Path(path).write_text(text)
