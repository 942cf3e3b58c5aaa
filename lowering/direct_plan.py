# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How a dot_general is computed as sums in blocks (blocks.py): which operand the columns are of,
and what is moved for that.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

from ..dialect.contraction import DotGeneralOp, free_axes
from ..dialect.mlir import ir
from ..dialect.types import TensorSpec, float32, float64
from .blocks import Nest, block_of, is_fast

MOVED = 1 << 18
"""Most elements that are moved for a product."""
PAGE, PANEL_WIDTH, SHARED = 1024, 256, 4
"""Columns of an operand that is copied into panels of so many, if so many products read it: 32x256
times 256x1024, 32 times 0.101 ms each, in panels 0.074.
"""
COUNTED = 64
"""Most readers of an operand that are looked at."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """A nest; whether its lhs is the rhs of the product; the order of axes in which its rhs is
    read; how many products read that in the same way; and how many elements of it and of the result
    are copied for it.
    """

    nest: Nest
    is_swapped: bool
    order: tuple[int, ...]
    shared: int
    moved: int

    @property
    def panel(self) -> int:
        """The columns of a panel, where the nest's rhs is to be copied into panels first; 0 where
        not: its rows are as long as a page, so that each step of a sum would look for another.
        """
        columns = self.nest.extents[self.nest.out[-1]]
        is_long = columns >= PAGE and columns % PANEL_WIDTH == 0
        return PANEL_WIDTH if is_long and self.shared >= SHARED else 0

    @property
    def is_fast(self) -> bool:
        """Whether it is faster than what IREE makes of a product."""
        return is_fast(self.nest.simplified()) and self.moved <= MOVED


def plan_of(op: DotGeneralOp) -> Plan | None:
    """The plan that moves the least; None where none fits, or an extent is not known."""
    operation: Any = op
    lhs, rhs = operation.operand_specs()
    is_plain = lhs.dtype in (float32, float64) and not op.precision
    if not is_plain or None in (*lhs.shape, *rhs.shape) or 0 in (*lhs.shape, *rhs.shape):
        return None
    plans = [p for p in _plans(op, lhs, rhs) if block_of(p.nest.simplified(), lhs.dtype.itemsize)]
    return min(plans, key=lambda p: p.moved, default=None)


def _plans(op: DotGeneralOp, lhs: TensorSpec, rhs: TensorSpec) -> Iterator[Plan]:
    left = lhs, op.lhs_batch, op.lhs_contract
    right = rhs, op.rhs_batch, op.rhs_contract
    for is_swapped, first, second in ((False, left, right), (True, right, left)):
        nest, order = _nest(first, second)
        shared = _shared(op, int(not is_swapped))
        moved = math.prod(nest.shapes[1]) // shared if order != tuple(sorted(order)) else 0
        if is_swapped:
            moved += math.prod(nest.shapes[2])
        yield Plan(nest, is_swapped, order, shared, moved)


Side = tuple[TensorSpec, tuple[int, ...], tuple[int, ...]]
"""An operand, its batch axes and those that are summed over."""


def _nest(first: Side, second: Side) -> tuple[Nest, tuple[int, ...]]:
    """The nest of a product, and the order of the second operand's axes in it, with its columns
    last. Loops of batches and sums come first.
    """
    (lhs, lhs_batch, lhs_contract), (rhs, rhs_batch, rhs_contract) = first, second
    lhs_free = free_axes(lhs.rank, lhs_batch, lhs_contract)
    rhs_free = free_axes(rhs.rank, rhs_batch, rhs_contract)
    left = [*lhs_batch, *lhs_contract, *lhs_free]  # their axes in the order of loops
    right = [*rhs_batch, *rhs_contract, *rhs_free]
    both, rows = len(lhs_batch) + len(lhs_contract), len(left)
    loops = [*range(both), *range(rows, rows + len(rhs_free))]  # of the axes in `right`
    order = tuple(range(rhs.rank))
    if not rhs_free or order[-1] != rhs_free[-1]:
        order = tuple(right)
    extents = [lhs.shape[a] for a in left] + [rhs.shape[a] for a in rhs_free]
    out = (*range(len(lhs_batch)), *range(both, rows), *range(rows, rows + len(rhs_free)))
    lhs_loops = tuple(left.index(a) for a in range(lhs.rank))
    rhs_loops = tuple(loops[right.index(a)] for a in order)
    return Nest(tuple(extents), lhs_loops, rhs_loops, out), order  # type: ignore[arg-type]


def _shared(op: DotGeneralOp, side: int) -> int:
    """How many products read an operand of one as it does, itself among them. Of a recurrence's
    operand, which every step reads, no more than `COUNTED` readers are looked at.
    """
    fields = ("rhs_batch", "rhs_contract") if side else ("lhs_batch", "lhs_contract")

    def reading(one: ir.Operation) -> list[ir.Attribute | None]:
        found = one.attributes
        return [found.get(field) for field in fields]

    operation: Any = op
    own = reading(operation.operation)
    uses = itertools.islice(operation.operation.operands[side].uses, COUNTED)
    users = [u.owner for u in uses if u.operand_number == side]
    alike = sum(isinstance(u, DotGeneralOp) and reading(u.operation) == own for u in users)
    return max(alike, 1)
