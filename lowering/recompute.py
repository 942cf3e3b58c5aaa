# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What the later part of a function computes anew instead of having it kept: the choice as numbers,
what memory it needs, and the rewrite.

A function is cut in two at a `turn`: what stands before it is early (the forward of a training
step), the rest late. A choice says which early values are kept for the late ops; what they need
besides is computed anew, right before the first late op that reads it. The model works on integers,
so that hundreds of choices can be tried for a function of thousands of ops.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ..dialect.base import Op, wrap
from ..dialect.builder import Builder
from ..dialect.control import OptimizationBarrierOp, optimization_barrier
from ..dialect.creation import ConstantOp
from ..dialect.mlir import func, ir
from ..dialect.types import TensorSpec, bool_
from .bufferize import donation_pairs
from .costs import ON_DEMAND, VIEWS, cost, nbytes
from .linalg.registry import BODIES
from .passes import single_block

WORK, ELEMENTWISE, FREE, VIEW, CONSTANT = range(5)
"""Kinds of ops: done on its own; computed in the loop of its users where they share one; computed
in every loop that reads it; another view of its operand's storage; there from the start."""
NOBODY, STORED, SEVERAL = -1, -2, -3
"""Who reads a value: nobody so far; something that needs it in memory; several elementwise loops.
Otherwise the one loop that does, by its position."""

Step = tuple[int, tuple[int, ...], tuple[int, ...], bool]
"""An op's position in the function, the values that it reads and makes, whether it is a copy."""
ALIGNMENT = 64
SUFFIX = ".remat"
REMATERIALIZED = "gradopt.rematerialized"
"""Attribute of ops that compute a value anew."""


class Model:
    """A function as numbers. Values are numbered: arguments first, then results in order."""

    def __init__(self, function: func.FuncOp) -> None:
        block = single_block(function)
        *ops, terminator = block.operations
        ops = _updates_early(ops, terminator)
        self.ops: list[Any] = ops
        number = {a: i for i, a in enumerate(block.arguments)}
        self.arguments = len(number)
        self.ins: list[tuple[int, ...]] = []
        self.outs: list[tuple[int, ...]] = []
        self.kind: list[int] = []
        self.producer: list[int] = [-1] * self.arguments
        for i, op in enumerate(ops):
            self.ins.append(tuple(number[o] for o in op.operation.operands))
            first = len(number)
            for result in op.operation.results:
                number[result] = len(number)
                self.producer.append(i)
            self.outs.append(tuple(range(first, len(number))))
            self.kind.append(_kind(op))
        self.values = list(number)
        self.bytes = [-(-nbytes(v.type) // ALIGNMENT) * ALIGNMENT for v in self.values]
        self.is_truth = [_is_truth(v.type) for v in self.values]
        self.outputs = [number[o] for o in terminator.operation.operands]
        self.donated = {self.outputs[r] for _, r in donation_pairs(function)}
        found = [cost(op) for op in ops]
        self.seconds = [c.seconds for c in found]
        self.flops = [c.flops for c in found]
        self.movable = [_can_move(op) for op in ops]
        self.users: list[list[int]] = [[] for _ in self.values]
        for i, ins in enumerate(self.ins):
            for v in ins:
                self.users[v].append(i)

    def __len__(self) -> int:
        return len(self.ops)

    def unchanged(self) -> list[Step]:
        """The function as it is."""
        return [(i, self.ins[i], self.outs[i], False) for i in range(len(self.ops))]

    def schedule(self, turn: int, keep: Sequence[bool]) -> tuple[list[Step], list[int]]:
        """The function where late ops read copies of the early values that they need and `keep`
        does not have, and the value that each value beyond the function's own is a copy of.

        An early value is kept in any case if its op must not run twice.
        """
        order = [(i, self.ins[i], self.outs[i], False) for i in range(turn)]
        copies: list[int] = []
        stands_for: dict[int, int] = {}  # early value -> itself, or its copy
        for i in range(turn, len(self.ops)):
            for v in self.ins[i]:
                self._request(v, turn, keep, order, copies, stands_for)
            ins = tuple(stands_for.get(v, v) for v in self.ins[i])
            order.append((i, ins, self.outs[i], False))
        return order, copies

    def _request(
        self,
        value: int,
        turn: int,
        keep: Sequence[bool],
        order: list[Step],
        copies: list[int],
        stands_for: dict[int, int],
    ) -> None:
        """Append what makes an early value available; depth first, without recursion."""
        pending = [value]
        while pending:
            v = pending[-1]
            op = self.producer[v]
            if v in stands_for or op < 0 or op >= turn:
                pending.pop()
            elif self.is_kept(v, keep):
                stands_for[v] = v
                pending.pop()
            elif missing := [
                u for u in self.ins[op] if 0 <= self.producer[u] < turn and u not in stands_for
            ]:
                pending += reversed(missing)
            else:
                pending.pop()
                ins = tuple(stands_for.get(u, u) for u in self.ins[op])
                if self.kind[op] in (FREE, VIEW) and ins == self.ins[op]:
                    stands_for.update(zip(self.outs[op], self.outs[op], strict=True))
                    continue
                first = len(self.values) + len(copies)
                copies += self.outs[op]
                outs = tuple(range(first, first + len(self.outs[op])))
                stands_for.update(
                    (o, o if self.is_kept(o, keep) else c)
                    for o, c in zip(self.outs[op], outs, strict=True)
                )
                order.append((op, ins, outs, True))

    def is_kept(self, value: int, keep: Sequence[bool]) -> bool:
        op = self.producer[value]
        if self.kind[op] in (FREE, VIEW) and self.movable[op]:
            return False  # as cheap as what it is made of
        return bool(keep[value]) or not self.movable[op] or self.kind[op] == CONSTANT

    # --- memory -----------------------------------------------------------------------------------

    def peak(self, order: Sequence[Step], copies: Sequence[int] = ()) -> int:
        """The largest sum of bytes of temporary values alive at a step."""
        return max(self.profile(order, copies), default=0)

    def profile(self, order: Sequence[Step], copies: Sequence[int] = ()) -> list[int]:
        """The bytes of temporary values alive while each step runs. Arguments, results and
        constants do not count; an elementwise op may write over an operand of its size that dies
        at it, which then lies where its result does.
        """
        made, freed = self._made_and_freed(order, copies)
        live, found = 0, []
        for new, old, over in zip(made, freed, self._over(order, made, freed), strict=True):
            found.append(live + new - over)
            live += new - sum(old)
        return found

    def live(self, order: Sequence[Step], copies: Sequence[int] = ()) -> list[int]:
        """The bytes of temporary values alive behind each step."""
        made, freed = self._made_and_freed(order, copies)
        return list(itertools.accumulate(m - sum(f) for m, f in zip(made, freed, strict=True)))

    def allocated(
        self, order: Sequence[Step], copies: Sequence[int], turn: int, by_stretch: bool
    ) -> int:
        """The most bytes allocated at a step where results are allocated too when they are made,
        but for those that take over a donated argument, and what is kept beyond the turn is freed
        when it has been read (`by_stretch`), or all at the end.
        """
        reader, last, inside = self._readers(order, copies)
        sizes = self.bytes + [self.bytes[v] for v in copies] if copies else self.bytes
        end = len(order)
        change = [0] * (end + 1)
        for i, (op, _, outs, _) in enumerate(order):
            if inside[i] or self.kind[op] in (VIEW, CONSTANT):
                continue
            for v in outs:
                if (self.kind[op] == FREE and reader[v] != STORED) or v in self.donated:
                    continue
                stays = last[v] >= end or (i < turn <= last[v] and not by_stretch)
                change[i] += sizes[v]
                change[end if stays else max(last[v], i) + 1] -= sizes[v]
        return max(itertools.accumulate(change))

    def _over(
        self, order: Sequence[Step], made: list[int], freed: list[list[int]]
    ) -> Iterator[int]:
        """The bytes that each step writes over operands of its own."""
        for (op, *_), new, old in zip(order, made, freed, strict=True):
            yield new if self.kind[op] == ELEMENTWISE and new in old else 0

    def _made_and_freed(
        self, order: Sequence[Step], copies: Sequence[int]
    ) -> tuple[list[int], list[list[int]]]:
        """The bytes that each step makes, and those of each value that is not read behind it."""
        reader, last, inside = self._readers(order, copies)
        sizes = self.bytes + [self.bytes[v] for v in copies] if copies else self.bytes
        end = len(order)
        place: dict[int, int] = {}
        dying: list[list[int]] = [[] for _ in order]
        outside = []  # elementwise steps that write results of the function
        for i, (op, _, outs, _) in enumerate(order):
            kind = self.kind[op]
            if inside[i] or kind in (VIEW, CONSTANT):
                continue
            for v in outs:
                if last[v] >= end:
                    if kind == ELEMENTWISE:
                        outside.append((i, v))
                elif kind != FREE or reader[v] == STORED:
                    place[v] = i
                    dying[max(last[v], i)].append(v)
        while outside:  # what is written over lies where the result does: with the caller
            i, result = outside.pop()
            for v in dying[i]:
                if sizes[v] == sizes[result] and place[v] < i:
                    dying[i].remove(v)
                    if self.kind[order[place[v]][0]] == ELEMENTWISE:
                        outside.append((place[v], v))
                    del place[v]
                    break
        made = [0] * end
        for v, i in place.items():
            made[i] += sizes[v]
        return made, [[sizes[v] for v in values] for values in dying]

    def _readers(
        self, order: Sequence[Step], copies: Sequence[int]
    ) -> tuple[list[int], list[int], list[bool]]:
        """Who reads each value, the last step at which it is read (beyond the end: it is a result),
        and which steps are computed in the loops of their users, or not at all.
        """
        end = len(order)
        reader = [NOBODY] * (len(self.values) + len(copies))
        last = [-1] * len(reader)
        inside = [False] * end
        for v in self.outputs:
            reader[v], last[v] = STORED, end
        for i in range(end - 1, -1, -1):
            op, ins, outs, _ = order[i]
            kind = self.kind[op]
            if kind == CONSTANT:
                continue
            if len(outs) == 1:
                v = outs[0]
                by, when = reader[v], last[v]
                if by == NOBODY and self.movable[op]:
                    inside[i] = True
                    continue
                if kind == VIEW:
                    for u in ins:
                        reader[u], last[u] = STORED, max(last[u], when)
                    continue
                if kind == FREE and by != STORED:
                    for u in ins:
                        reader[u], last[u] = STORED, max(last[u], when)
                    continue
                truth = (
                    self.is_truth[v]
                    if v < len(self.values)
                    else self.is_truth[copies[v - len(self.values)]]
                )
                if kind == ELEMENTWISE and (by >= 0 or (by == SEVERAL and truth)):
                    inside[i] = True
                    for u in ins:
                        reader[u] = (
                            by
                            if reader[u] in (NOBODY, by)
                            else SEVERAL
                            if reader[u] != STORED
                            else STORED
                        )
                        last[u] = max(last[u], when)
                    continue
            elif self.movable[op] and all(reader[v] == NOBODY for v in outs):
                inside[i] = True
                continue
            if kind == ELEMENTWISE:
                for u in ins:
                    reader[u] = (
                        i
                        if reader[u] in (NOBODY, i)
                        else SEVERAL
                        if reader[u] != STORED
                        else STORED
                    )
                    last[u] = max(last[u], i)
            else:
                for u in ins:
                    reader[u], last[u] = STORED, max(last[u], i)
        return reader, last, inside

    def _is_on_demand(self, value: int) -> bool:
        return value >= self.arguments and self.kind[self.producer[value]] in (FREE, CONSTANT)

    # --- the rewrite ------------------------------------------------------------------------------

    def rewrite(
        self, order: Sequence[Step], copies: Sequence[int], fences: Iterable[int] = ()
    ) -> list[ir.Operation]:
        """Give the function the steps of `order`, copies included; returns those. Ops that nothing
        reads any more are erased.

        The values in `fences` go through a barrier to whoever reads them. IREE then runs what makes
        them apart from what follows, and frees what it kept of a stretch when that has been read;
        without any, all that the early part keeps is one piece of memory to the end.
        """
        made: list[Any] = [*self.values, *[None] * len(copies)]
        terminator = list(self.ops[0].operation.block.operations)[-1]
        found: list[ir.Operation] = []
        behind: dict[int, ir.Value] = {}
        for op, ins, outs, is_copy in order:
            operation = self.ops[op].operation
            if is_copy:
                found.append(self._copy(operation, ins, made, behind, terminator))
                made[outs[0] : outs[-1] + 1] = found[-1].results
                continue
            behind = {}  # a later run of copies has barriers of its own
            for j, v in enumerate(ins):
                if v != self.ins[op][j]:
                    operation.operands[j] = made[v]
            operation.move_before(terminator.operation)
        for v in fences:
            self._fence(v)
        for op in reversed(self.ops):
            if isinstance(op, Op) and not any(list(r.uses) for r in op.operation.results):
                op.operation.erase()
        return [op for op in found if any(list(r.uses) for r in op.results)]

    def _fence(self, value: int) -> None:
        original = self.values[value]
        users = [(use.owner.operation, use.operand_number) for use in original.uses]
        made_by = original.owner.operation
        ops = list(made_by.block.operations)
        behind = next(i for i, op in enumerate(ops) if op.operation == made_by) + 1
        with Builder(ir.InsertionPoint(ops[behind]), made_by.location):
            barred = ir.Value(optimization_barrier(wrap(original)))
        for user, position in users:
            user.operands[position] = barred

    def _copy(
        self,
        original: ir.Operation,
        ins: Sequence[int],
        made: list[Any],
        behind: dict[int, ir.Value],
        before: Any,
    ) -> ir.Operation:
        """A copy of an op in front of another. What it reads of the function itself stands behind a
        barrier, so that no compiler merges it with what it is a copy of.
        """
        shared = [v for v in ins if v < len(self.values)]
        apart = [v for v in shared if not self._is_on_demand(v)]
        if not apart and len(shared) == len(ins):  # it would be the same as the original
            apart = [min(shared, key=lambda v: self.bytes[v])]
        for v in apart:
            if v not in behind:
                with Builder(ir.InsertionPoint(before), original.location):
                    behind[v] = ir.Value(optimization_barrier(wrap(made[v])))
        with ir.InsertionPoint(before):
            copy = original.clone()
        for j, v in enumerate(ins):
            copy.operands[j] = behind[v] if v in apart else made[v]
        copy.attributes[REMATERIALIZED] = ir.UnitAttr.get()
        copy.location = renamed(copy.location)
        return copy


def renamed(location: ir.Location) -> ir.Location:
    """The location with `.remat` behind its name."""
    if not isinstance(location, ir.NameLoc):
        return location
    return ir.Location.name(f"{location.name_str}{SUFFIX}", location.child_loc)


def _updates_early(ops: list[Any], terminator: Any) -> list[Any]:
    """The ops, with those that only lead to results (the update of a parameter from its gradient)
    as soon as what they read is there, so that this dies early.
    """
    ops = sorted(ops, key=lambda op: not isinstance(op, ConstantOp))
    position = {op.operation: i for i, op in enumerate(ops)}
    end = len(ops)
    position[terminator.operation] = end
    leads = [False] * end + [True]
    for i in range(end - 1, -1, -1):
        if type(ops[i]) in BODIES:
            users = [use.owner for r in ops[i].operation.results for use in r.uses]
            leads[i] = bool(users) and all(leads[position[u.operation]] for u in users)
    after: dict[int, list[int]] = {}
    place = list(range(end))  # the op that each op now comes behind, itself where it stays
    for i, op in enumerate(ops):
        if leads[i]:
            producers = [
                o.owner.operation
                for o in op.operation.operands
                if not isinstance(o.owner, ir.Block)
            ]
            place[i] = max((place[position[p]] for p in producers), default=i)
            if place[i] != i:
                after.setdefault(place[i], []).append(i)
    moved = set(itertools.chain.from_iterable(after.values()))
    found = []
    for i in range(end):
        if i not in moved:
            found += [ops[i], *(ops[j] for j in after.get(i, ()))]
    return found


def _kind(op: Any) -> int:
    if isinstance(op, ConstantOp):
        return CONSTANT
    if isinstance(op, ON_DEMAND):
        return FREE
    if isinstance(op, VIEWS):
        return VIEW
    return ELEMENTWISE if type(op) in BODIES else WORK


def _is_truth(kind: ir.Type) -> bool:
    return isinstance(kind, ir.RankedTensorType) and TensorSpec.from_mlir(kind).dtype == bool_


def _can_move(op: Any) -> bool:
    """True for ops that may run twice: those of the dialect, none of which has effects, but for
    barriers.
    """
    return isinstance(op, Op) and not isinstance(op, OptimizationBarrierOp)
