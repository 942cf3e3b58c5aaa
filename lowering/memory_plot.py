# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""A picture of an arena: time across, offsets up, one rectangle a value, coloured by its kind.

As SVG, or as an HTML page that holds the SVG, shows what is under the pointer, and lets kinds be
picked. Both stand alone: no script, font or style comes from elsewhere.
"""

import html
import json
import math
from collections.abc import Iterable, Iterator

from .memory_report import PLURAL, Entry, MemoryReport, human

WIDTH, HEIGHT = 1280, 760
LEFT, RIGHT, TOP, BOTTOM = 86, 28, 122, 62
TONES = {
    "residual": ("#3b6fb6", "#5585c6", "#7199d2"),
    "temporary": ("#e69a3c", "#eeb060", "#f3c484"),
    "gradient": ("#2f9e7e", "#4db393", "#74c6ac"),
}
"""Three tones a kind, so that neighbours can be told apart."""
PEAK, BOUND, INK, FAINT = "#b3261e", "#4a148c", "#1f2430", "#6b7280"
MANY = 400
"""Values from which on rectangles have no names in them."""
STYLE = f"""
text {{ font-family: Inter, 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif; fill: {INK}; }}
.title {{ font-size: 22px; font-weight: 600; }}
.sub {{ font-size: 13px; fill: {FAINT}; }}
.tick {{ font-size: 11.5px; fill: {FAINT}; }}
.axis {{ font-size: 13px; fill: {INK}; }}
.name {{ font-size: 10.5px; pointer-events: none; }}
.name.residual, .name.gradient {{ fill: #fff; }}
.line {{ font-size: 12px; font-weight: 600; }}
.value {{ stroke: #fff; }}
.value:hover {{ stroke: {INK}; stroke-width: 1.5; }}
"""


class Plot:
    """The geometry of one picture."""

    def __init__(self, report: MemoryReport) -> None:
        self.report = report
        self.values = [e for e in report.entries if e.offset >= 0 and e.bytes]
        self.steps = max(report.steps, 1)
        self.top = max(report.peak, 1) * 1.06

    def x(self, step: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * step / self.steps

    def y(self, offset: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * offset / self.top

    def svg(self) -> str:
        """The picture as an SVG document."""
        size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
            f"<style>{STYLE}</style>",
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
            *self._heading(),
            *self._legend(),
            *self._grid(),
            *self._rectangles(),
            *self._names(),
            *self._lines(),
            "</svg>",
        ]
        return "\n".join(parts) + "\n"

    def _heading(self) -> Iterator[str]:
        report = self.report
        yield _text(LEFT, 38, f"Memory of @{report.function}", "title")
        facts = [
            f"arena {human(report.peak)}",
            f"{report.ratio:.3f} \u00d7 the lower bound",
            f"{len(self.values):,} values",
            f"{report.steps:,} steps",
        ]
        yield _text(LEFT, 61, " · ".join(facts), "sub")
        outside = [
            f"{name} {human(total['bytes'])}"
            for name, total in report.totals().items()
            if total["bytes"] and name not in {PLURAL[k] for k in TONES}
        ]
        if outside:
            yield _text(LEFT, 81, f"outside the arena: {', '.join(outside)}", "sub")

    def _legend(self) -> Iterator[str]:
        totals = self.report.totals()
        shown = [k for k in TONES if totals[PLURAL[k]]["buffers"]]
        x = WIDTH - RIGHT
        for kind in reversed(shown):
            label = f"{PLURAL[kind]} ({totals[PLURAL[kind]]['buffers']:,})"
            x -= 7.2 * len(label) + 30
            yield f'<g class="key" data-kind="{kind}">'
            look = f'width="13" height="13" rx="3" fill="{TONES[kind][0]}"'
            yield f'<rect x="{x:.1f}" y="26" {look}/>'
            yield _text(x + 19, 37, label, "axis") + "</g>"

    def _grid(self) -> Iterator[str]:
        left, right, low, high = LEFT, WIDTH - RIGHT, HEIGHT - BOTTOM, TOP
        for n, label in byte_ticks(self.top):
            y = self.y(n)
            yield f'<path d="M{left} {y:.1f}H{right}" stroke="#e5e7eb" stroke-width="1"/>'
            yield _text(left - 10, y + 4, label, "tick", "end")
        for n in step_ticks(self.steps):
            x = self.x(n)
            yield f'<path d="M{x:.1f} {low}v5" stroke="{FAINT}" stroke-width="1"/>'
            yield _text(x, low + 20, f"{n:,}", "tick", "middle")
        yield f'<path d="M{left} {high}V{low}H{right}" fill="none" stroke="{FAINT}"/>'
        yield _text(
            (left + right) / 2, HEIGHT - 16, "step, in the order of execution", "axis", "middle"
        )
        middle = (low + high) / 2
        turned = f' transform="rotate(-90 22 {middle:.1f})"'
        yield _text(22, middle, "offset in the arena", "axis", "middle", turned)

    def _box(self, entry: Entry) -> tuple[float, float, float, float]:
        """x, y, width and height of a value's rectangle."""
        size = entry.bytes or 0
        x, y = self.x(entry.first), self.y(entry.offset + size)
        return x, y, self.x(entry.last + 1) - x, self.y(entry.offset) - y

    def _rectangles(self) -> Iterator[str]:
        for i, entry in enumerate(self.values):
            x, y, width, height = self._box(entry)
            tones = TONES.get(entry.kind, TONES["temporary"])
            edge = min(0.9, 0.12 * min(width, height))
            place = f'x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}"'
            look = f'fill="{tones[i % len(tones)]}" stroke-width="{edge:.2f}"'
            yield (
                f'<rect class="value" data-n="{i}" data-kind="{entry.kind}" {place} {look}>'
                f"<title>{html.escape(describe(entry))}</title></rect>"
            )

    def _names(self) -> Iterator[str]:
        """Names in the rectangles that have room for them."""
        if len(self.values) >= MANY:
            return
        for entry in self.values:
            x, y, width, height = self._box(entry)
            label = f"{entry.owner}  {human(entry.bytes)}"
            for text in (label, entry.owner):
                if height >= 14 and 6.1 * len(text) + 10 <= width:
                    yield _text(x + 5, y + height / 2 + 3.7, text, f"name {entry.kind}")
                    break

    def _lines(self) -> Iterator[str]:
        """The peak and the lower bound, labelled above and below so that they never collide."""
        report = self.report
        peak, bound = self.y(report.peak), self.y(report.bound)
        left, right = LEFT, WIDTH - RIGHT
        yield f'<path d="M{left} {peak:.1f}H{right}" stroke="{PEAK}" stroke-width="1.6"/>'
        dashes = 'stroke-width="1.6" stroke-dasharray="7 5"'
        yield f'<path d="M{left} {bound:.1f}H{right}" stroke="{BOUND}" {dashes}/>'
        yield _halo(left + 8, peak - 7, f"peak {human(report.peak)}", PEAK, "start")
        yield _halo(right - 4, peak - 7, f"lower bound {human(report.bound)}", BOUND, "end")


def describe(entry: Entry) -> str:
    """What the tooltip of a value says."""
    made = "at step" if entry.first == entry.last else "steps"
    steps = str(entry.first) if entry.first == entry.last else f"{entry.first} to {entry.last}"
    lines = [
        f"{entry.owner} ({entry.kind})",
        f"{entry.op}  {entry.type}",
        f"{human(entry.bytes)} ({entry.bytes:,} bytes) at offset {entry.offset:,}",
        f"live {made} {steps}",
    ]
    if entry.values > 1:
        lines.append(f"{entry.values} values, one after the other or views")
    return "\n".join(lines)


def byte_ticks(most: float) -> list[tuple[float, str]]:
    """About six round numbers of bytes from 0 to `most`, with labels."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    power = min(max(int(math.log(max(most, 1), 1024)), 0), len(units) - 1)
    scale = 1024**power
    step = _round_step(most / scale / 6)
    if power == 0:
        step = max(step, 1)
    count = int(most / scale / step)
    return [(i * step * scale, f"{i * step:g} {units[power]}") for i in range(count + 1)]


def step_ticks(steps: int) -> Iterable[int]:
    """About ten round step numbers from 0 on."""
    return range(0, steps + 1, max(int(_round_step(steps / 10)), 1))


def _round_step(size: float) -> float:
    """The smallest of 1, 2, 2.5, 5 times a power of ten that is not below `size`."""
    power = 10.0 ** math.floor(math.log10(max(size, 1e-9)))
    return next(n * power for n in (1, 2, 2.5, 5, 10) if n * power >= size * 0.999)


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start", more: str = "") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{kind}" {place}{more}>{html.escape(text)}</text>'


def _halo(x: float, y: float, text: str, colour: str, anchor: str) -> str:
    look = f'style="fill:{colour};stroke:#fff;stroke-width:3;paint-order:stroke"'
    return _text(x, y, text, "line", anchor, f" {look}")


def svg(report: MemoryReport) -> str:
    """The arena of a report as an SVG document."""
    return Plot(report).svg()


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Memory of @%(name)s</title>
<style>
body { margin: 0; background: #f5f6f8; font: 14px/1.45 Inter, 'Helvetica Neue', Arial, sans-serif;
  color: #1f2430; }
main { max-width: 1320px; margin: 24px auto; padding: 0 20px; }
figure { margin: 0; background: #fff; border-radius: 12px; box-shadow: 0 1px 4px #0002;
  overflow: hidden; }
figure svg { display: block; width: 100%%; height: auto; }
.key { cursor: pointer; } .key.off { opacity: .35; }
#tip { position: fixed; display: none; pointer-events: none; background: #1f2430f2; color: #fff;
  padding: 9px 12px; border-radius: 8px; max-width: 460px; box-shadow: 0 4px 14px #0004; }
#tip b { font-size: 15px; } #tip table { border-spacing: 0; margin-top: 4px; }
#tip td:first-child { color: #aeb6c6; padding-right: 14px; }
.list { background: #fff; border-radius: 12px; box-shadow: 0 1px 4px #0002; margin: 18px 0;
  padding: 14px 22px; }
.list table { border-collapse: collapse; width: 100%%; }
.list td, .list th { text-align: right; padding: 4px 8px; border-bottom: 1px solid #eceef2; }
.list td:first-child, .list th:first-child { text-align: left; }
</style></head><body><main><figure>%(svg)s</figure>
<section class="list"><table><thead><tr><th>kind</th><th>buffers</th><th>bytes in all</th>
<th>live at the peak, step %(step)s</th></tr></thead><tbody>%(rows)s</tbody></table></section>
</main><div id="tip"></div><script>
const values = %(values)s, tip = document.getElementById('tip'), off = new Set();
document.querySelectorAll('.value title').forEach(t => t.remove());
document.querySelector('figure').addEventListener('mousemove', e => {
  const n = e.target.dataset && e.target.dataset.n;
  if (n === undefined) { tip.style.display = 'none'; return; }
  tip.replaceChildren();
  const head = document.createElement('b'), table = document.createElement('table');
  head.textContent = values[n].owner;
  for (const [key, text] of Object.entries(values[n].about)) {
    const row = table.insertRow();
    row.insertCell().textContent = key; row.insertCell().textContent = text;
  }
  tip.append(head, table);
  tip.style.display = 'block';
  tip.style.left = Math.min(e.clientX + 16, innerWidth - tip.offsetWidth - 8) + 'px';
  tip.style.top = Math.min(e.clientY + 16, innerHeight - tip.offsetHeight - 8) + 'px';
});
document.querySelectorAll('.key').forEach(key => key.addEventListener('click', () => {
  const kind = key.dataset.kind;
  off.has(kind) ? off.delete(kind) : off.add(kind);
  key.classList.toggle('off', off.has(kind));
  document.querySelectorAll('.value').forEach(v => {
    if (v.dataset.kind === kind) v.style.opacity = off.has(kind) ? .08 : 1;
  });
}));
</script></body></html>
"""


def page(report: MemoryReport) -> str:
    """The arena of a report as an HTML page: the picture, tooltips, kinds to pick, totals."""
    plot = Plot(report)
    rows = [
        f"<tr><td>{name}</td><td>{t['buffers']:,}</td><td>{human(t['bytes'])}</td>"
        f"<td>{human(t['at_peak'])}</td></tr>"
        for name, t in report.totals().items()
        if t["buffers"]
    ]
    values = json.dumps([{"owner": e.owner, "about": _about(e)} for e in plot.values])
    return PAGE % {
        "name": html.escape(report.function),
        "svg": plot.svg(),
        "step": report.peak_step,
        "rows": "".join(rows),
        "values": values.replace("</", "<\\/"),
    }


def _about(entry: Entry) -> dict[str, str]:
    return {
        "kind": entry.kind,
        "op": entry.op,
        "type": entry.type,
        "size": f"{human(entry.bytes)} ({entry.bytes:,} bytes)",
        "offset": f"{entry.offset:,}",
        "live": f"step {entry.first} to {entry.last}",
        "values": str(entry.values),
    }
