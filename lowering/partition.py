# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-partition: a joint function (results and gradients at once) as a forward and a backward
function, with the fewest bytes kept between them.

The joint function of `gradopt-differentiate` takes inputs, then cotangents (attribute
gradopt.cotangent), and gives results, then gradients; gradopt.primals says how many results. What
depends on no cotangent could run in either part. What the backward reads of it is kept (a
residual), or computed anew from what is: the choice of the fewest bytes is a minimum cut, in which
a value's bytes are the price to keep it, and edges that nobody may cut say what is made of what.
Inputs and results are kept by reference, at no price. Computed anew is only what costs no speed:
quick elementwise ops, which are fused into their readers, and what the results do not need anyway.
"""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

from ..dialect.base import Op
from ..dialect.control import (
    COTANGENT,
    PRIMALS,
    OptimizationBarrierOp,
    argument_names,
    named_symbols,
    symbols,
)
from ..dialect.loops import ScanOp
from ..dialect.mlir import func, ir
from . import costs
from .cut import min_cut
from .linalg.registry import BODIES
from .passes import failure, gradopt_pass, single_block


@gradopt_pass("gradopt-partition")
def partition(module: ir.Module) -> None:
    """Split every function that has cotangents among its arguments into @f_forward (inputs ->
    results, residuals) and @f_backward (the inputs and results that it reads, residuals,
    cotangents -> gradients); the joint function stays.
    """
    taken = named_symbols(module)
    for function in symbols(module).values():
        if not function.is_external and cotangent_positions(function):
            split(module, Joint(function), taken)


def cotangent_positions(function: func.FuncOp) -> list[int]:
    """The arguments marked as cotangents."""
    about = function.arg_attrs if "arg_attrs" in function.attributes else []
    return [i for i, attributes in enumerate(about) if COTANGENT in attributes]


class Joint:
    """A joint function, its ops sorted into those that need no cotangent and the others, and what
    the latter keep of the former.
    """

    def __init__(self, function: func.FuncOp) -> None:
        self.function = function
        block = single_block(function)
        *self.ops, self.terminator = block.operations
        positions = cotangent_positions(function)
        arguments = list(block.arguments)
        self.cotangents = [arguments[i] for i in positions]
        self.inputs = [a for i, a in enumerate(arguments) if i not in positions]
        self._check(positions)
        depends = set(self.cotangents)
        self.backward: list[Any] = []
        self.free: list[Any] = []  # ops that need no cotangent
        for op in self.ops:
            if any(o in depends for o in op.operation.operands):
                depends.update(op.operation.results)
                self.backward.append(op)
            else:
                self.free.append(op)
        values = list(self.terminator.operation.operands)
        self.results, self.gradients = values[: self.count], values[self.count :]
        for i, value in enumerate(self.results):
            if value in depends:
                message = f"expected result {i} to depend on no cotangent; it is marked as primal"
                raise failure([(function.location, message)])
        self.forward = ancestors(self.free, self.results)
        self.kept = self._kept()

    def _check(self, positions: list[int]) -> None:
        where, attributes = self.function.location, self.function.attributes
        count = attributes[PRIMALS].value if PRIMALS in attributes else -1
        if not 0 <= count <= len(self.function.type.results):
            what = f"attribute '{PRIMALS}' of a function with cotangents"
            raise failure([(where, f"{what} expected the number of its results, got {count}")])
        last = len(self.function.type.inputs)
        if positions != list(range(last - len(positions), last)):
            raise failure(
                [(where, f"expected cotangents to be the last arguments, got {positions}")]
            )
        self.count = count

    def argument_names(self) -> dict[ir.Value, str]:
        """The names of the arguments."""
        arguments = self.function.entry_block.arguments
        return dict(zip(arguments, argument_names(self.function), strict=True))

    def _kept(self) -> list[ir.Value]:
        """The values that the backward reads of the forward, inputs included, in order."""
        number: dict[ir.Value, int] = {}
        for value in [*self.inputs, *(r for op in self.free for r in op.operation.results)]:
            number[value] = len(number)
        rows, columns, capacities = [], [], []

        def edge(a: int, b: int, capacity: float) -> None:
            rows.append(a)
            columns.append(b)
            capacities.append(capacity)

        inward = {v: 2 + 2 * i for v, i in number.items()}  # the outward node is the next one
        for value in self.inputs:
            edge(0, inward[value], math.inf)  # kept at no price, where nothing leads on from there
            if price := self.price_of_input(value):
                edge(inward[value], inward[value] + 1, price)
        late = self._behind_barriers()
        for op in self.free:
            in_forward = op in self.forward
            repeats = not in_forward or self.repeats(op)
            for result in op.operation.results:
                price = math.inf if op in late else self.price(result)
                edge(inward[result], inward[result] + 1, price)
                if not repeats:
                    edge(0, inward[result], math.inf)
                for operand in op.operation.operands:
                    if operand in number:
                        edge(inward[operand] + 1, inward[result], math.inf)
        wanted = [o for op in self.backward for o in op.operation.operands] + self.gradients
        for value in wanted:
            if value in number:
                edge(inward[value] + 1, 1, math.inf)
        source = min_cut(rows, columns, capacities, 2 + 2 * len(number))
        self.repeated = set()
        kept: set[ir.Value] = set()
        pending = [v for v in wanted if v in number]
        seen = set(pending)
        while pending:
            value = pending.pop()
            is_input = isinstance(value.owner, ir.Block)
            if is_input or (source[inward[value]] and not source[inward[value] + 1]):
                kept.add(value)
                continue
            op = value.owner.opview
            self.repeated.add(op)
            for operand in op.operation.operands:
                if operand not in seen:
                    seen.add(operand)
                    pending.append(operand)
        return [v for v in number if v in kept]

    def price(self, value: ir.Value) -> float:
        """Bytes to keep a value: none for a result, which the caller has. No function is kept."""
        if not isinstance(value.type, ir.RankedTensorType):
            return math.inf
        return 0 if value in self.results else costs.nbytes(value.type)

    def price_of_input(self, value: ir.Value) -> int:
        """Bytes to keep an input: none, as the caller has it."""
        return 0

    def repeats(self, op: Any) -> bool:
        """Whether the backward may compute an op of the forward anew."""
        return repeats_at_no_cost(op)

    def _behind_barriers(self) -> set[Any]:
        """Ops that need no cotangent, and stand behind a barrier that the results do not need: what
        they make is meant to be computed by the backward.
        """
        values: set[ir.Value] = set()
        found = set()
        for op in self.free:
            if op in self.forward:
                continue
            is_barrier = isinstance(op, OptimizationBarrierOp)
            if is_barrier or any(o in values for o in op.operation.operands):
                found.add(op)
                values.update(op.operation.results)
        return found

    @property
    def residuals(self) -> list[ir.Value]:
        """What the forward gives to the backward beside its results."""
        own = {*self.inputs, *self.results}
        return [v for v in self.kept if v not in own]

    @property
    def by_reference(self) -> list[ir.Value]:
        """The inputs and results that the backward reads."""
        own = {*self.inputs, *self.results}
        return [v for v in self.kept if v in own]


def repeats_at_no_cost(op: Any) -> bool:
    """True for ops that are computed in the loops of their readers, quickly."""
    if isinstance(op, ScanOp):  # the loop as a function; its call is another op
        return True
    if isinstance(op, costs.VIEWS + costs.ON_DEMAND):
        return not isinstance(op, OptimizationBarrierOp)
    return type(op) in BODIES and type(op).MNEMONIC not in costs.SLOW


def ancestors(ops: list[Any], values: Iterable[ir.Value]) -> set[Any]:
    """The ops that values are made by."""
    needed = set(values)
    found = set()
    for op in reversed(ops):
        if any(r in needed for r in op.operation.results) or not isinstance(op, Op):
            found.add(op)
            needed.update(op.operation.operands)
    return found


# --- the two functions ----------------------------------------------------------------------------


def split(module: ir.Module, joint: Joint, taken: set[str]) -> tuple[func.FuncOp, func.FuncOp]:
    """Add the forward and the backward function of a joint one to the module."""
    name = joint.function.name.value
    names = dict(
        zip(joint.function.entry_block.arguments, argument_names(joint.function), strict=True)
    )
    residuals = joint.residuals
    needed = ancestors(joint.free, [*joint.results, *residuals])
    forward = _function(
        module,
        _unused(f"{name}_forward", taken),
        [(v, names[v]) for v in joint.inputs],
        [op for op in joint.free if op in needed],
        [*joint.results, *residuals],
    )
    again = joint.repeated | set(joint.backward)
    labels = [(v, names.get(v) or label(v)) for v in joint.by_reference + residuals]
    labels += [(v, names[v]) for v in joint.cotangents]
    used = ancestors([op for op in joint.ops if op in again], joint.gradients)
    ops = [op for op in joint.ops if op in used]
    backward = _function(module, _unused(f"{name}_backward", taken), labels, ops, joint.gradients)
    return forward, backward


def _unused(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def label(value: ir.Value) -> str:
    location = value.owner.operation.location
    return location.name_str if isinstance(location, ir.NameLoc) else "residual"


def _function(
    module: ir.Module,
    name: str,
    inputs: list[tuple[ir.Value, str]],
    ops: list[Any],
    results: list[ir.Value],
) -> func.FuncOp:
    """A function of copies of `ops` on arguments that stand for `inputs`."""
    kinds = [v.type for v, _ in inputs], [v.type for v in results]
    with module.context, ir.Location.unknown(), ir.InsertionPoint(module.body):
        function = func.FuncOp(name, kinds)
        names = [ir.DictAttr.get({"gradopt.name": ir.StringAttr.get(n)}) for _, n in inputs]
        function.arg_attrs = ir.ArrayAttr.get(names)
        block = function.add_entry_block([ir.Location.name(n) for _, n in inputs])
        values = dict(zip((v for v, _ in inputs), block.arguments, strict=True))
        with ir.InsertionPoint(block):
            for op in ops:
                copy = op.operation.clone()
                for i, operand in enumerate(op.operation.operands):
                    copy.operands[i] = values[operand]
                values |= dict(zip(op.operation.results, copy.results, strict=True))
            func.ReturnOp([values[v] for v in results])
    return function


# --- reports --------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Kept:
    """A value that a backward keeps."""

    value: ir.Value
    name: str
    nbytes: int
    why: str


def kept_values(joint: Joint) -> list[Kept]:
    """What the backward of a joint function keeps, inputs first, each with the reason."""
    names = dict(
        zip(joint.function.entry_block.arguments, argument_names(joint.function), strict=True)
    )
    found = []
    for value in joint.kept:
        size = costs.nbytes(value.type)
        if value in names:
            found.append(Kept(value, names[value], size, f"argument '{names[value]}'"))
        else:
            mnemonic = value.owner.name.removeprefix("gradopt.")
            found.append(Kept(value, label(value), size, f"output of {mnemonic}"))
    return found
