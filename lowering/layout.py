# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-layout: convolutions and pools with channels first run with channels last, and what
stands between them does too, where that leaves the fewest bytes to transpose.

Every value that the layout of a convolution or pool reaches has a second order of axes besides its
own (`layout_rules`). Which ops take which of the two is a minimum cut: an op that moves is on the
side of the source, one that stays on that of the sink, and an edge between the maker of a value and
its readers has the value's bytes as capacity. Arguments and results of the function stay.
"""

import math
from collections import defaultdict
from typing import Any

import numpy as np

from ..dialect.base import Op, wrap
from ..dialect.builder import Builder
from ..dialect.contraction import DotGeneralOp, free_axes
from ..dialect.control import symbols
from ..dialect.creation import ConstantOp, IotaOp
from ..dialect.mlir import func, ir, op_of
from ..dialect.patches import ExtractPatchesOp, FoldPatchesOp
from ..dialect.shape import BroadcastOp, ReshapeOp, TransposeOp
from ..dialect.types import TensorSpec
from .cut import min_cut
from .layout_rules import Form, Order, between, form_of, inverse, is_first, own, own_of
from .passes import gradopt_pass

UNKNOWN = 64
"""What an unknown extent counts as where bytes are compared."""
MOVED, STAYS = 0, 1
"""The nodes of the cut that stand for the two layouts. `min_cut` gives node 0 the smallest side: of
two cuts as cheap, the one that leaves more ops as they are.
"""


@gradopt_pass("gradopt-layout")
def layout(module: ir.Module) -> None:
    """Run convolutions, pools and what stands between them with channels last, and transpose as few
    bytes as possible.
    """
    for function in symbols(module).values():
        if function.is_external or len(list(function.body.blocks)) > 1:
            continue
        if any(map(is_first, function.entry_block.operations)):
            Rewriter(function, Plan(function)).run()


# --- the choice -----------------------------------------------------------------------------------


class Plan:
    """Which ops of a function move: `forms` has those, each with its form."""

    def __init__(self, function: func.FuncOp) -> None:
        self.block = function.entry_block
        self.orders: dict[ir.Value, Order] = {}
        self._spread()
        found = {op: self._form(op) for op in self.block.operations}
        self.flexible: dict[Any, Form] = {op: f for op, f in found.items() if f is not None}
        self.nodes = {op: i for i, op in enumerate(self.flexible, 2)}
        self.forms = self._cut()

    def _spread(self) -> None:
        """Give the values around the convolutions and pools a second order, and those around these,
        as long as there are rules for it.
        """
        todo = [op for op in self.block.operations if is_first(op)]
        queued = set(todo)
        for op in todo:  # grows
            queued.discard(op)
            if (form := form_of(op, self.orders)) is None or isinstance(op, TransposeOp):
                continue
            values = [*op.operation.results, *op.operation.operands]
            for value, order in zip(values, (*form.results, *form.operands), strict=True):
                if value in self.orders or order == own(len(order)) or is_known(value):
                    continue
                self.orders[value] = order
                near = [op_of(value), *(use.owner.opview for use in value.uses)]
                new = [o for o in near if isinstance(o, Op) and o not in queued]
                todo += new
                queued.update(new)

    def _form(self, op: Any) -> Form | None:
        """The form of an op that may move: its values have the orders that it needs, or no other
        than their own.
        """
        form = form_of(op, self.orders) if isinstance(op, Op) else None
        if form is None or is_first(op):
            return form
        operands = list(op.operation.operands)
        needed = zip(operands[: count_read(op)], form.operands, strict=False)
        fits = all(self._has(v, order) or is_known(v) for v, order in needed)
        fits = fits and all(map(self._has, op.operation.results, form.results))
        return form if fits else None

    def _has(self, value: ir.Value, order: Order) -> bool:
        return order == own(len(order)) or self.orders.get(value) == order

    def _cut(self) -> dict[Any, Form]:
        edges: dict[tuple[int, int], float] = defaultdict(float)
        for op, node in self.nodes.items():
            stay, move = self._costs(op)
            edges[MOVED, node] += stay
            edges[node, STAYS] += move
        nodes = len(self.nodes) + 2
        for value in self.orders:
            maker, readers = self._maker(value), self._readers(value)
            readers.discard(maker)
            if readers and not self.is_free(value):
                self._join(edges, nodes, maker, readers, self._bytes(value))
                nodes += 2
        found = {pair: c for pair, c in edges.items() if c > 0 and pair[0] != pair[1]}
        rows, columns = zip(*found, strict=True)
        moved = min_cut(rows, columns, list(found.values()), nodes)
        return {op: self.flexible[op] for op, node in self.nodes.items() if moved[node]}

    @staticmethod
    def _join(
        edges: dict[tuple[int, int], float], node: int, maker: int, readers: set[int], size: float
    ) -> None:
        """The value is transposed once, however many readers are on the other side than the maker:
        two nodes stand for its two layouts.
        """
        edges[maker, node] += size
        edges[node + 1, maker] += size
        for reader in readers:
            edges[node, reader] = edges[reader, node + 1] = math.inf

    def _costs(self, op: Any) -> tuple[float, float]:
        """What an op transposes itself if it stays, and if it moves."""
        values = [*op.operation.operands, *op.operation.results]
        if is_first(op):
            return math.inf, 0
        if isinstance(op, ExtractPatchesOp):
            return self._bytes(values[0]), 0
        if isinstance(op, FoldPatchesOp):
            return self._bytes(values[0]) + self._bytes(values[1]), 0
        if isinstance(op, TransposeOp):
            permutation = self.flexible[op].attributes["permutation"]
            cost = size_of(values[1])
            return cost, 0 if permutation == own(len(permutation)) else cost
        return 0, 0

    def _bytes(self, value: ir.Value) -> float:
        """What is moved where a value is brought from one of its orders to the other."""
        moves = value in self.orders and not keeps_elements(value, self.orders[value])
        return size_of(value) if moves else 0

    def _maker(self, value: ir.Value) -> int:
        op = op_of(value)
        if op is None or op not in self.nodes:
            return STAYS
        results = list(op.operation.results)
        is_moved = self.flexible[op].results[results.index(value)] == self.orders[value]
        return self.nodes[op] if is_moved else STAYS

    def _readers(self, value: ir.Value) -> set[int]:
        found = set()
        for use in value.uses:
            op, position = use.owner.opview, use.operand_number
            if position >= count_read(op) or takes_order(op, position, self.orders[value]):
                continue
            form = self.flexible.get(op)
            takes_it = form is not None and form.operands[position] == self.orders[value]
            found.add(self.nodes[op] if takes_it else STAYS)
        return found

    def is_free(self, value: ir.Value) -> bool:
        """Whether a value costs nothing in either order: it is known, or repeats something that is
        read as it is.
        """
        op = op_of(value)
        if is_known(value):
            return True
        if not isinstance(op, BroadcastOp) or op not in self.flexible:
            return False
        order = self.flexible[op].operands[0]
        return order == own(len(order))


def is_known(value: ir.Value) -> bool:
    """Whether a value is a constant or an index ramp, which there can be in any order."""
    return isinstance(op_of(value), ConstantOp | IotaOp)


def count_read(op: Any) -> int:
    """How many operands of an op are read; `like` of the rest says extents only."""
    return 1 if isinstance(op, BroadcastOp | ReshapeOp) else len(op.operation.operands)


def size_of(value: ir.Value) -> float:
    spec = TensorSpec.from_mlir(value.type)
    return spec.dtype.itemsize * math.prod(UNKNOWN if n is None else n for n in spec.shape)


def keeps_elements(value: ir.Value, order: Order) -> bool:
    """Whether an order only moves extents of 1, so that no element moves."""
    shape = TensorSpec.from_mlir(value.type).shape
    moved = [a for a in order if shape[a] != 1]
    return moved == sorted(moved)


def takes_order(op: Any, position: int, order: Order) -> bool:
    """Whether an operand of a product lies as a matrix in another order: neither it nor the other
    operand, whose contracted axes come in the same order, has to be moved for the product.
    """
    if not isinstance(op, DotGeneralOp):
        return False
    side = ("lhs", "rhs")[position]
    batch, contract = getattr(op, f"{side}_batch"), getattr(op, f"{side}_contract")
    free = free_axes(len(order), batch, contract)
    depth = [contract[i] for i in np.argsort(op.lhs_contract)]
    return order in ((*batch, *free, *depth), (*batch, *depth, *free))


# --- the rewriting --------------------------------------------------------------------------------


class Rewriter:
    """Builds the ops that move anew, in front of what they replace, and hands every op its operands
    in the order that it takes. `made` has the orders that each value is there in.
    """

    def __init__(self, function: func.FuncOp, plan: Plan) -> None:
        self.plan = plan
        self.block = function.entry_block
        self.made: dict[ir.Value, dict[Order, ir.Value]] = defaultdict(dict)
        for argument in filter(is_tensor, self.block.arguments):
            self.made[argument][own_of(argument)] = argument

    def run(self) -> None:
        ops = list(self.block.operations)
        replaced = [op for op in ops if not self._rewrite(op)]
        for op in reversed(replaced):
            if not any(list(r.uses) for r in op.operation.results):
                op.operation.erase()

    def _rewrite(self, op: Any) -> bool:
        """True if the op stays; results of others are in `made`, or will be when they are read."""
        results = list(op.operation.results)
        if results and is_known(results[0]):
            self.made[results[0]][own_of(results[0])] = results[0]
            return False
        if results and self._is_repeated(results[0]):
            return False
        with self._building(op, op):
            if op in self.plan.forms:
                form = self.plan.forms[op]
                new = self._moved(op, form)
            elif isinstance(op, DotGeneralOp) and (found := self._product(op)) is not None:
                form, new = own_form(op), [found]
            else:
                self._stay(op)
                return True
        for old, order, value in zip(results, form.results, new, strict=True):
            self.made[old][order] = value
        return False

    def _building(self, at: Any, like: Any) -> Builder:
        """Builds in front of an op, at the place in the source of another."""
        self.at = at
        return Builder(ir.InsertionPoint(at), like.location)

    def _is_repeated(self, value: ir.Value) -> bool:
        """Whether a value is a broadcast that is made where it is read."""
        return value in self.plan.orders and self.plan.is_free(value)

    def _moved(self, op: Any, form: Form) -> list[ir.Value]:
        """The results of an op in another form."""
        operands = list(op.operation.operands)
        values = [self._in(v, o) for v, o in zip(operands, form.operands, strict=True)]
        if isinstance(op, TransposeOp):
            return [transposed(values[0], form.attributes["permutation"])]
        return emitted(op, values, form.attributes)

    def _stay(self, op: Any) -> None:
        for i, operand in enumerate(list(op.operation.operands)):
            if is_tensor(operand):
                op.operation.operands[i] = self._in(operand, own_of(operand))
        for result in filter(is_tensor, op.operation.results):
            self.made[result][own_of(result)] = result

    def _product(self, op: Any) -> ir.Value | None:
        """A product of operands as they lie; None where they lie in their own order."""
        attributes, values = op.read_attributes(), list(op.operation.operands)
        changed = False
        for i, side in enumerate(("lhs", "rhs")):
            value, made = values[i], self.made[values[i]]
            order = self.plan.orders.get(value)
            if own_of(value) not in made and order in made and takes_order(op, i, order):
                places, changed, values[i] = inverse(order), True, made[order]
                for part in ("batch", "contract"):
                    name = f"{side}_{part}"
                    attributes[name] = tuple(places[a] for a in attributes[name])
            else:
                values[i] = self._in(value, own_of(value))
        return emitted(op, values, attributes)[0] if changed else None

    def _in(self, value: ir.Value, order: Order) -> ir.Value:
        """A value in an order, made in front of the op being rewritten if it is not there yet."""
        made = self.made[value]
        if order not in made:
            maker, at = op_of(value), self.at
            if is_known(value):
                with self._building(at, maker):
                    made[order] = known_in(maker, order)
            elif self._is_repeated(value):
                form = form_of(maker, {value: order}) or own_form(maker)
                with self._building(at, maker):
                    made[order] = self._moved(maker, form)[0]
            else:
                old, there = next(iter(made.items()))
                made[order] = transposed(there, between(old, order))
        return made[order]


def is_tensor(value: ir.Value) -> bool:
    return isinstance(value.type, ir.RankedTensorType)


def own_form(op: Any) -> Form:
    """An op as it is."""
    operands, results = op.operation.operands, op.operation.results
    return Form(tuple(map(own_of, operands)), tuple(map(own_of, results)))


def emitted(op: Any, values: list[ir.Value], attributes: dict[str, Any]) -> list[ir.Value]:
    """The results of an op like `op` on other operands, with some attributes changed."""
    found = type(op).emit(*map(wrap, values), **op.read_attributes() | attributes)
    new = [ir.Value(v) for v in (found if isinstance(found, tuple) else (found,))]
    for attribute in op.operation.attributes:
        if "." in attribute:
            new[0].owner.attributes[attribute] = op.operation.attributes[attribute]
    return new


def known_in(op: Any, order: Order) -> ir.Value:
    """What a constant or an index ramp is in another order."""
    if isinstance(op, ConstantOp):
        return emitted(op, [], {"value": np.transpose(op.value, order)})[0]
    shape = tuple(op.shape[a] for a in order)
    return emitted(op, [], {"shape": shape, "axis": inverse(order)[op.axis]})[0]


def transposed(value: ir.Value, permutation: Order) -> ir.Value:
    """A transpose, or what comes to the same: nothing, or a reshape."""
    if permutation == own(len(permutation)):
        return value
    x = wrap(value)
    if keeps_elements(value, permutation) and x.spec.is_static:
        return ir.Value(x.reshape_to(tuple(x.shape[a] for a in permutation)))
    return ir.Value(TransposeOp.emit(x, permutation=permutation))
