# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-plan-memory: where every value of a function lies, written into the IR.

On the function: `gradopt.arena = {size, bound}`, the bytes of the arena and the largest sum of
bytes live at one time, which no plan can beat in this order. On every op that makes storage:
`gradopt.offsets`, an entry a result, -1 for what lies elsewhere (the caller's storage, a view).
"""

import dataclasses

from ..dialect.control import symbols
from ..dialect.mlir import func, ir
from . import packing
from .liveness import Program, analyse
from .passes import gradopt_pass, single_block
from .schedule import best_order, reorder

ARENA, OFFSETS, NOTE = "gradopt.arena", "gradopt.offsets", "note"
ALIGNMENT = 64
FILL, EMPTY = "linalg.fill", "tensor.empty"


@dataclasses.dataclass
class Plan:
    """A program whose arena buffers have offsets: `size` bytes in all, of which at least `bound`
    are needed.
    """

    program: Program
    size: int
    bound: int
    notes: list[str] = dataclasses.field(default_factory=list)
    """What was tried and not done, for the report."""

    @property
    def ratio(self) -> float:
        return self.size / self.bound if self.bound else 1.0


@gradopt_pass("gradopt-plan-memory")
def plan_memory(module: ir.Module, *, schedule: bool = False) -> None:
    """Give every value that is stored an offset in one arena, written as attributes; with
    `schedule`, ops are reordered first where that lowers the peak.
    """
    for function in symbols(module).values():
        if not function.is_external:
            separate_destinations(function)
            found, note = scheduled(function) if schedule else (plan(function), "")
            annotate(found, note)


def planned(module: ir.Module) -> list[Plan]:
    """The plans of a module's functions as they stand, with what gradopt-plan-memory noted."""
    found = []
    for function in symbols(module).values():
        if not function.is_external:
            new = plan(function)
            if ARENA in function.attributes and NOTE in (about := function.attributes[ARENA]):
                new.notes.append(about[NOTE].value)
            found.append(new)
    return found


def plan(function: func.FuncOp) -> Plan:
    """The plan of a function of one block; at the linalg level best after
    `separate_destinations`.
    """
    program = analyse(function)
    size = packing.pack(program.arena, ALIGNMENT)  # type: ignore[arg-type]
    return Plan(program, size, packing.lower_bound(program.arena, ALIGNMENT))  # type: ignore[arg-type]


def scheduled(function: func.FuncOp) -> tuple[Plan, str]:
    """The plan after ops are reordered, where that lowers the arena, and what was done."""
    given = plan(function)
    analysis, order = best_order(function)
    if not order.is_better:
        return given, f"schedule: kept, no order tried has a peak below {order.before} bytes"
    undo = reorder(function, analysis, order.steps)
    found = plan(function)
    if found.size >= given.size:
        undo()
        tried = f"another would need {found.size} bytes, this one {given.size}"
        return plan(function), f"schedule: kept, {tried}"
    return found, f"schedule: reordered, from {given.size} to {found.size} bytes"


def annotate(plan: Plan, note: str = "") -> None:
    """Write a plan into the IR, and a note for the report."""
    program = plan.program
    function = program.function
    with function.context, ir.Location.unknown():
        i64 = ir.IntegerType.get_signless(64)
        about: dict[str, ir.Attribute] = {
            name: ir.IntegerAttr.get(i64, n)
            for name, n in (("size", plan.size), ("bound", plan.bound))
        }
        if note:
            about[NOTE] = ir.StringAttr.get(note)
        function.attributes[ARENA] = ir.DictAttr.get(about)
        for op in program.steps:
            found = [program.buffer_of.get(r) for r in op.results]
            if any(b is not None for b in found):
                offsets = [-1 if b is None else b.offset for b in found]
                op.attributes[OFFSETS] = ir.DenseI64ArrayAttr.get(offsets)


def separate_destinations(function: func.FuncOp) -> None:
    """Give every user of a `tensor.empty`, or of a fill of one, its own, right in front of it.

    Such ops are equal and have been merged; as destinations they would keep one buffer for all
    users, and each of these would copy it.
    """
    block = single_block(function)
    for op in list(block.operations):
        if op.operation.name in (EMPTY, FILL) and _is_fresh(op.operation):
            _separate(op.operation, block)


def _is_fresh(op: ir.Operation) -> bool:
    """True for an empty tensor and for a fill of one."""
    if op.name == EMPTY:
        return True
    out = op.operands[len(op.operands) - 1].owner
    return not isinstance(out, ir.Block) and out.name == EMPTY


def _separate(op: ir.Operation, block: ir.Block) -> None:
    for use in list(op.results[0].uses):
        user = use.owner.operation
        while user.parent != block.owner:
            user = user.parent.operation
        with ir.InsertionPoint(user):
            operands = list(op.operands)
            if op.name == FILL:
                operands[-1] = operands[-1].owner.clone().results[0]
            copy = op.clone()
            for i, operand in enumerate(operands):
                copy.operands[i] = operand
        use.owner.operation.operands[use.operand_number] = copy.results[0]
    out = op.operands[len(op.operands) - 1].owner if op.name == FILL else None
    op.erase()
    if out is not None and not list(out.results[0].uses):
        out.erase()
