# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What the calls of a compiled function need of memory: CachedFunction.memory_report."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from ..dialect.graph import DATA, PARAMETER, Graph
from ..dialect.types import TensorSpec
from ..lowering import memory_report

IN_PLACE, PING_PONG = "in place", "ping-pong"


@dataclasses.dataclass(frozen=True)
class Buffer:
    """An input or result: its name, bytes, and for donated inputs how their memory is used again
    and why so.
    """

    name: str
    bytes: int
    donated: str = ""
    why: str = ""


@dataclasses.dataclass(frozen=True)
class Temporary:
    """A value that lives in the arena: its bytes, offset (-1: where IREE puts it), the op it is
    made for, that op's source line, the command that makes it, and the first and last (execution,
    step) that touch it.
    """

    bytes: int
    offset: int
    name: str
    where: str
    command: str
    first: tuple[int, ...]
    last: tuple[int, ...]

    @staticmethod
    def of(value: dict[str, Any]) -> "Temporary":
        times = tuple(value["first"]), tuple(value["last"])
        source = value["name"], value["where"], value["command"]
        return Temporary(value["size"], value["offset"], *source, *times)


@dataclasses.dataclass(frozen=True)
class MemoryReport:
    """The memory of one function for one signature, in bytes.

    `iree` is what IREE by itself needs for temporaries, `arena` what they take in gradopt's one
    arena (None without static_alloc), `bound` the most bytes of temporaries alive at one time in
    the order that is run. `spare` is the second memory of donated inputs that are not overwritten.
    `plan` is what gradopt plans for the same function before IREE fuses, packs and orders it, by
    owner.
    """

    function: str
    static_alloc: bool
    parameters: tuple[Buffer, ...]
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    spare: int
    iree: int | None
    arena: int | None
    bound: int | None
    temporaries: tuple[Temporary, ...]
    plan: memory_report.MemoryReport
    note: str = ""

    @staticmethod
    def of(
        graph: Graph,
        places: Sequence[tuple[int, int | None]],
        planned: dict[str, Any],
        plan: memory_report.MemoryReport,
    ) -> "MemoryReport":
        """Put together what a graph takes and returns, what the compiler decided, and gradopt's own
        plan.
        """
        results = {position: result for result, position in places if position is not None}
        ties = {tie["donated"]: tie for tie in planned.get("ties", [])}
        buffers: dict[str, list[Buffer]] = {DATA: [], PARAMETER: []}
        spare = 0
        for i, ((name, role), spec) in enumerate(zip(graph.inputs, graph.input_specs, strict=True)):
            how = why = ""
            if i in results:
                tie = ties.get(i, {"in_place": False, "why": "the compiler's schedule is unknown"})
                how, why = (IN_PLACE if tie["in_place"] else PING_PONG), tie["why"]
                spare += 0 if tie["in_place"] else size_of(spec)
            buffers[role].append(Buffer(name, size_of(spec), how, why))
        outputs = [Buffer(str(i), size_of(s)) for i, s in enumerate(graph.output_specs)]
        return MemoryReport(
            graph.name,
            any(position is None for _, position in places) or planned.get("arena") is not None,
            tuple(buffers[PARAMETER]),
            tuple(buffers[DATA]),
            tuple(outputs),
            spare,
            planned.get("iree"),
            planned["arena"] if planned.get("repacked") else planned.get("iree"),
            planned.get("bound"),
            tuple(Temporary.of(value) for value in planned.get("values", [])),
            plan,
            planned.get("why", ""),
        )

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON has it."""
        return dataclasses.asdict(self) | {"plan": self.plan.to_dict()}

    def __str__(self) -> str:
        return render(self)


def size_of(spec: TensorSpec) -> int:
    """Bytes; 0 where extents are unknown."""
    return 0 if None in spec.shape else math.prod(spec.shape) * spec.dtype.itemsize  # type: ignore[arg-type]


LARGEST = 12
"""How many temporaries the text of a report lists."""


def render(report: MemoryReport) -> str:
    """The report as text: totals, donated inputs, and the largest temporaries."""

    def line(name: str, size: int | None, note: str = "") -> str:
        return f"  {name:<24}{'unknown' if size is None else f'{size:,}':>16}  {note}".rstrip()

    donated = [b for b in (*report.parameters, *report.inputs) if b.donated]
    in_place = [b for b in donated if b.donated == IN_PLACE]
    arena = "one arena" if report.static_alloc else "where IREE puts them"
    lines = [
        f"memory of '{report.function}', in bytes",
        line("parameters", sum(b.bytes for b in report.parameters)),
        line("inputs", sum(b.bytes for b in report.inputs)),
        line("outputs", sum(b.bytes for b in report.outputs)),
        line("overwritten in place", sum(b.bytes for b in in_place), f"{len(in_place)} donated"),
        line("spare, for ping-pong", report.spare, f"{len(donated) - len(in_place)} donated"),
        line("temporaries", report.arena, arena),
        line("  by IREE alone", report.iree),
        line("  alive at one time", report.bound, "lower bound"),
    ]
    if report.note:
        lines.append(f"  not planned: {report.note}")
    lines += [line(f"  {b.name}", b.bytes, f"{b.donated}: {b.why}") for b in donated]
    largest = sorted(report.temporaries, key=lambda t: (-t.bytes, t.first))[:LARGEST]
    if largest:
        lines.append(f"the largest of {len(report.temporaries)} temporaries")
    for t in largest:
        life = f"{'.'.join(map(str, t.first))} to {'.'.join(map(str, t.last))}"
        lines.append(line(f"  {life}", t.bytes, f"{t.name or t.command}  {t.where}"))
    lines += ["planned before IREE, by owner", str(report.plan).rstrip()]
    return "\n".join(lines)
