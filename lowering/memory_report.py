# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The memory of a function by owner: what its plan says, as data, JSON and a table."""

import dataclasses
import io
from collections.abc import Iterable
from typing import Any

import rich.console
import rich.table

from ..dialect.mlir import ir
from ..dialect.types import TensorSpec
from .liveness import ARENA, Buffer, name_of
from .plan_memory import ALIGNMENT, Plan

EXTERNAL = ("parameter", "auxiliary", "input", "output", "constant")
PLURAL = {
    "parameter": "parameters",
    "auxiliary": "auxiliary states",
    "input": "inputs",
    "output": "outputs",
    "constant": "constants",
    "residual": "residuals",
    "gradient": "gradients",
    "temporary": "temporaries",
}
LARGEST = 10
"""Rows of the table of largest values."""
SHOWN = 3
"""Values written over an operand that the text names; the data has all."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """One buffer: its kind and owner, the op that makes it and the type of what it first holds,
    bytes (None where unknown), the steps it is used from and to, its offset in the arena (-1: not
    there), and how many values share it.
    """

    kind: str
    owner: str
    op: str
    type: str
    bytes: int | None
    first: int
    last: int
    offset: int
    values: int


@dataclasses.dataclass
class MemoryReport:
    """What a function needs: `peak` bytes of arena, of which `bound` are live at one step, and the
    caller's arguments and results; `real` is for what a compiler reports of the same function.
    """

    function: str
    steps: int
    peak: int
    bound: int
    entries: list[Entry]
    in_place: list[str]
    notes: list[str]
    real: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """The arena's size in lower bounds."""
        return self.peak / self.bound if self.bound else 1.0

    @property
    def peak_step(self) -> int:
        """The first step at which most bytes of the arena are live; -1 where it is empty."""
        change = [0] * (self.steps + 2)
        for entry in self._arena():
            change[entry.first] += _rounded(entry.bytes)
            change[entry.last + 1] -= _rounded(entry.bytes)
        live, most, at = 0, 0, -1
        for t, grown in enumerate(change):
            live += grown
            if live > most:
                most, at = live, t
        return at

    def _arena(self) -> list[Entry]:
        return [e for e in self.entries if e.offset >= 0]

    def totals(self) -> dict[str, dict[str, int]]:
        """For each kind how many buffers, their bytes and the bytes of those live at the peak."""
        at = self.peak_step
        found = {}
        for kind in (*EXTERNAL, *ARENA):
            of_kind = [e for e in self.entries if e.kind == kind]
            live = [e for e in of_kind if kind not in ARENA or e.first <= at <= e.last]
            found[PLURAL[kind]] = {
                "buffers": len(of_kind),
                "bytes": sum(e.bytes or 0 for e in of_kind),
                "at_peak": sum(e.bytes or 0 for e in live),
            }
        return found

    def largest(self, count: int = LARGEST) -> list[Entry]:
        """The largest buffers of the arena."""
        return sorted(self._arena(), key=lambda e: (-(e.bytes or 0), e.first))[:count]

    def to_dict(self) -> dict[str, Any]:
        """The report as numbers, strings, lists and dicts."""
        return {
            "function": self.function,
            "steps": self.steps,
            "peak": self.peak,
            "bound": self.bound,
            "ratio": round(self.ratio, 4),
            "peak_step": self.peak_step,
            "totals": self.totals(),
            "buffers": [dataclasses.asdict(e) for e in self.entries],
            "in_place": self.in_place,
            "notes": self.notes,
            "real": self.real,
        }

    def __str__(self) -> str:
        out = io.StringIO()
        self.print(out)
        return out.getvalue()

    def print(self, file: Any) -> None:
        """The report as tables."""
        console = rich.console.Console(file=file, width=None if file.isatty() else 120)
        head = f"Memory of @{self.function}: arena {human(self.peak)}"
        bound = f"lower bound {human(self.bound)}, ratio {self.ratio:.3f}, {self.steps} steps"
        console.print(f"{head}, {bound}", highlight=False, soft_wrap=True)
        console.print(self._totals_table())
        if self.largest():
            console.print(self._largest_table())
        count = len(self.in_place)
        made = f"{count} value{' is' if count == 1 else 's are'} written over an operand"
        if self.in_place:
            made += f": {', '.join(self.in_place[:SHOWN])}"
            made += ", ..." if count > SHOWN else ""
        lines = [made, *self.notes, *(f"{k}: {v}" for k, v in self.real.items())]
        for line in lines:
            console.print(line, highlight=False, soft_wrap=True, markup=False)

    def _totals_table(self) -> rich.table.Table:
        rows = [
            (name, str(t["buffers"]), human(t["bytes"]), human(t["at_peak"]))
            for name, t in self.totals().items()
            if t["buffers"]
        ]
        return _table(("kind", "buffers", "bytes in all", f"at step {self.peak_step}"), rows, 1)

    def _largest_table(self) -> rich.table.Table:
        rows = [
            (e.owner, e.kind, e.type, human(e.bytes), f"{e.first}-{e.last}", str(e.offset))
            for e in self.largest()
        ]
        columns = ("largest in the arena", "kind", "type", "bytes", "steps", "offset")
        return _table(columns, rows, 3)


def report(plan: Plan) -> MemoryReport:
    """The report of a plan."""
    program = plan.program
    return MemoryReport(
        program.function.name.value,
        len(program.steps),
        plan.size,
        plan.bound,
        [_entry(buffer) for buffer in program.buffers],
        [f"{_name(result)} over {_name(operand)}" for _, result, operand in program.in_place],
        [*_notes(plan), *plan.notes],
    )


def _notes(plan: Plan) -> Iterable[str]:
    program = plan.program
    arguments = program.function.entry_block.arguments
    for position, result in program.donated.items():
        yield f"result {result} is written over the donated {_name(arguments[position])}"
    for position, reason in program.kept.items():
        name = _name(arguments[position])
        yield f"the donated {name} is not written over: {reason}"
    for result in program.copied:
        yield f"result {result} is a copy of {_name(program.returned[result])}"
    if program.unknown:
        names = ", ".join(b.owner for b in program.unknown[:LARGEST])
        yield (
            f"{len(program.unknown)} buffers have a size that is known only when the function "
            f"runs and are not planned: {names}"
        )


def _entry(buffer: Buffer) -> Entry:
    value = buffer.values[0] if buffer.values else None
    op = "" if value is None or isinstance(value.owner, ir.Block) else value.owner.name
    return Entry(
        buffer.kind,
        buffer.owner,
        op,
        "" if value is None else str(TensorSpec.from_mlir(value.type)),
        buffer.size,
        buffer.first,
        buffer.last,
        buffer.offset if buffer.in_arena else -1,
        len(buffer.values),
    )


def _name(value: ir.Value) -> str:
    if isinstance(value.owner, ir.Block):
        position = ir.BlockArgument(value).arg_number
        function = value.owner.owner
        about = function.attributes["arg_attrs"][position] if _has_about(function) else {}
        name = about["gradopt.name"].value if "gradopt.name" in about else position
        return f"argument '{name}'"
    return f"'{name_of(value.owner)}'"


def _has_about(function: Any) -> bool:
    return "arg_attrs" in function.attributes


def _rounded(size: int | None) -> int:
    return -(-(size or 0) // ALIGNMENT) * ALIGNMENT


def _table(columns: Iterable[str], rows: list[tuple[str, ...]], left: int) -> rich.table.Table:
    shown = rich.table.Table(box=None, pad_edge=False)
    for i, column in enumerate(columns):
        shown.add_column(column, justify="left" if i < left else "right", overflow="fold")
    for row in rows:
        shown.add_row(*row)
    return shown


def human(size: int | None) -> str:
    """Bytes for people: three digits and a binary unit."""
    if size is None:
        return "unknown"
    number, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if number < 1024:
            break
        number, unit = number / 1024, larger
    return (
        f"{size} B"
        if unit == "B"
        else f"{number:.3g} {unit}"
        if number < 999.5
        else (f"{number:.0f} {unit}")
    )
