# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Reverse mode over the ops of a block: what gradopt-differentiate derives functions by."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from ..dialect.base import NO_GRADIENT, Op, wrap
from ..dialect.builder import Builder
from ..dialect.creation import zeros_like
from ..dialect.loops import loop_of
from ..dialect.mlir import func, ir
from ..dialect.types import TensorSpec, is_float, is_float_type
from ..errors import OpError, PassError
from .passes import failure


class Pairs(Protocol):
    """Calls of functions that are derived by themselves: see call_pairs.py."""

    def is_paired(self, op: func.CallOp) -> bool:
        """Whether a call is one of those."""
        ...

    def active_results(self, op: func.CallOp, active: set[ir.Value]) -> list[ir.Value]:
        """The results that depend on active operands."""
        ...

    def reached_operands(self, op: func.CallOp, reached: set[ir.Value]) -> list[ir.Value]:
        """The operands that reached results depend on."""
        ...

    def contributions(
        self, op: func.CallOp, cts: list[Any], active: set[ir.Value]
    ) -> tuple[list[tuple[int, Any]], dict[ir.Value, ir.Value]]:
        """What a call contributes to the gradients by its operands, in the order that its ops would
        do so, and what stands for its results, if another call does.
        """
        ...


class Calls(Protocol):
    """The rules of calls."""

    @property
    def pairs(self) -> Pairs: ...

    def has_call_rule(self, op: func.CallOp) -> bool:
        """Whether a call can be differentiated."""
        ...

    def call_rule(self, op: func.CallOp, cts: list[Any]) -> list[Any]:
        """The gradients of a call by its operands."""
        ...

    def loop_rule(
        self, op: func.CallIndirectOp, cts: list[Any], active: set[ir.Value]
    ) -> tuple[list[Any], dict[ir.Value, ir.Value]]:
        """The gradients of a loop by its operands, and what stands for its results, if another loop
        does.
        """
        ...


def reverse(
    block: ir.Block,
    inputs: list[ir.Value],
    seeds: list[tuple[ir.Value, ir.Value]],
    location: ir.Location,
    calls: Calls,
) -> tuple[list[Any], dict[ir.Value, ir.Value]]:
    """Append the gradients of <results, cotangents> by `inputs`, values of the block, to the block,
    given (result, cotangent) pairs. `calls` has the rule of calls.

    Returns a tensor for each input; None where no seeded result depends on it. A gradient that is
    zero though its input is reached is made of zeros. Returns, too, what stands for results of
    calls. Raises PassError with all ops that have no gradient rule.
    """
    needed = reached(list(block.operations), [result for result, _ in seeds], calls.pairs)
    sweep = Sweep(block, inputs, seeds, calls)
    with Builder(ir.InsertionPoint(block), location):
        totals = [sweep.total(x) for x in inputs]
        gradients = [
            zeros_like(wrap(x)) if t is None and x in needed else t
            for x, t in zip(inputs, totals, strict=True)
        ]
    return gradients, sweep.replaced


class Sweep:
    """The ops of a block, backwards, each of which hands on what it is given by its rule.

    `met` are the contributions to the gradients by `inputs`, values of the block, in the order they
    are met; `replaced` says what stands for results of calls that are now those of @f_forward, and
    of loops that save more; `inserted` how many ops more there are in front of what is appended.
    """

    def __init__(
        self,
        block: ir.Block,
        inputs: list[ir.Value],
        seeds: list[tuple[ir.Value, ir.Value]],
        calls: Calls,
    ) -> None:
        self.block = block
        self.calls = calls
        self.met: list[tuple[ir.Value, Any]] = []
        self.replaced: dict[ir.Value, ir.Value] = {}
        self.inserted = 0
        self.old: list[Any] = []  # calls that others stand for; kept until no value is looked up
        self.wanted = set(inputs)
        self.cotangents: dict[ir.Value, list[Any]] = {}
        self.gradients_of: dict[ir.Value, Any] = {}  # what ops in the block make, and is asked for
        self.faults: list[tuple[ir.Location, str]] = []
        ops = list(block.operations)
        self.active = _active(ops, inputs, calls.pairs)
        for result, ct in seeds:
            self._add(result, wrap(ct))
        for op in reversed(ops):
            self._pass(op)
        if self.faults:
            raise failure(self.faults[::-1])
        for op in self.old:
            op.operation.erase()

    def total(self, value: ir.Value) -> Any:
        """The gradient by an input: None where there is no contribution."""
        if value in self.gradients_of:
            return self.gradients_of[value]
        return _total(self.cotangents.get(value, []))

    def _add(self, value: ir.Value, contribution: Any) -> None:
        self.cotangents.setdefault(value, []).append(contribution)
        if value in self.wanted:
            self.met.append((value, contribution))

    def _pass(self, op: Any) -> None:
        """Hand on the cotangents of an op's results to its operands."""
        with Builder(ir.InsertionPoint(self.block), _derived_location(op)):
            cts = [_total(self.cotangents.pop(r, [])) for r in op.operation.results]
        for r, ct in zip(op.operation.results, cts, strict=True):
            if r in self.wanted:
                self.gradients_of[r] = ct
        if all(ct is None for ct in cts) or not any(o in self.active for o in _read(op)):
            return
        fault = _missing_rule(op, self.calls)
        if fault is None and getattr(type(op), "vjp", None) is NO_GRADIENT:
            return
        operands = list(op.operation.operands)
        with Builder(ir.InsertionPoint(self.block), _derived_location(op)):
            found = self._contributions(op, operands, cts, fault)
        for position, gradient in found:
            if gradient is not None and operands[position] in self.active:
                self._add(operands[position], gradient)

    def _contributions(
        self, op: Any, operands: list[ir.Value], cts: list[Any], fault: str | None
    ) -> list[tuple[int, Any]]:
        """What an op contributes to the gradients by its operands, by their positions."""
        if fault:  # go on as if there were a rule, to find all that have none
            self.faults.append((op.location, fault))
            go_on = [o in self.active and _is_float_tensor(o.type) for o in operands]
            gradients = [
                zeros_like(wrap(o)) if g else None for o, g in zip(operands, go_on, strict=True)
            ]
        elif isinstance(op, func.CallOp) and self.calls.pairs.is_paired(op):
            found, replaced = self.calls.pairs.contributions(op, cts, self.active)
            if replaced:
                self.replaced.update(replaced)
                self.old.append(op)
            return found
        elif loop_of(op) is not None:
            gradients, replaced = self.calls.loop_rule(op, cts, self.active)
            if replaced:
                self.replaced.update(replaced)
                self.old.append(op)
                self.inserted += 1  # the new loop as a function; calls come and go
        elif isinstance(op, func.CallOp):
            gradients = self.calls.call_rule(op, cts)
        else:
            gradients = _apply_rule(op, cts)
        return list(enumerate(gradients))


def _read(op: Any) -> list[ir.Value]:
    """The values an op depends on: its operands, and what the ops in its regions read."""
    if not len(op.operation.regions):
        return list(op.operation.operands)
    found: list[ir.Value] = []

    def look(inner: ir.Operation) -> ir.WalkResult:
        found.extend(inner.operands)
        return ir.WalkResult.ADVANCE

    op.operation.walk(look)
    return found


def _active(ops: list[Any], inputs: list[ir.Value], pairs: Pairs) -> set[ir.Value]:
    """Values that depend on an input, but for what ops of the dialect make that is no float."""
    active = set(inputs)
    for op in ops:
        if isinstance(op, func.CallOp) and pairs.is_paired(op):
            active.update(pairs.active_results(op, active))
        elif any(o in active for o in _read(op)):
            foreign = not isinstance(op, Op)
            active.update(r for r in op.operation.results if foreign or _is_float_tensor(r.type))
    return active


def _is_float_tensor(kind: ir.Type) -> bool:
    return isinstance(kind, ir.RankedTensorType) and is_float_type(kind.element_type)


def reached(
    ops: Sequence[Any], results: Iterable[ir.Value], pairs: Pairs | None = None
) -> set[ir.Value]:
    """Values that a result depends on, in whatever way; through paired calls, if `pairs` are given,
    only where their results depend on an operand.
    """
    found = set(results)
    for op in reversed(ops):
        if pairs is not None and isinstance(op, func.CallOp) and pairs.is_paired(op):
            found.update(pairs.reached_operands(op, found))
        elif any(r in found for r in op.operation.results):
            found.update(_read(op))
    return found


def _total(contributions: list[Any]) -> Any:
    """The sum in the order given; the contribution itself if there is one, None if there is
    none.
    """
    if not contributions:
        return None
    first, *rest = contributions
    for other in rest:
        first = first + other
    return first


def _derived_location(op: Any) -> ir.Location:
    """The op's location, with `.vjp` behind its name."""
    location = op.location
    return (
        ir.Location.name(f"{location.name_str}.vjp", location.child_loc)
        if isinstance(location, ir.NameLoc)
        else location
    )


def _missing_rule(op: Any, calls: Calls) -> str | None:
    if isinstance(op, func.CallOp) and calls.has_call_rule(op):
        return None
    if loop_of(op) is not None or (isinstance(op, Op) and hasattr(type(op), "vjp")):
        return None
    name = op.operation.name
    remedy = "define `vjp` on its class, or keep it out with stop_gradient"
    return f"'{name}' op expected a gradient rule, got none; {remedy}"


def _apply_rule(op: Op, cts: list[Any]) -> list[Any]:
    """What the op's rule gives, checked: one entry an operand, each of the operand's type."""
    try:
        gradients = list(op.vjp(*cts))
    except OpError as error:
        raise failure([(op.location, str(error))]) from error
    operands = op.operation.operands
    if len(gradients) != len(operands):
        raise _rule_fault(op, f"{len(operands)} entries", len(gradients))
    for i, (operand, gradient) in enumerate(zip(operands, gradients, strict=True)):
        if gradient is None or gradient.type == operand.type:
            continue
        if is_float(TensorSpec.from_mlir(operand.type).dtype):
            raise _rule_fault(op, f"{operand.type} for operand {i}", gradient.type)
    return gradients


def _rule_fault(op: Op, expected: str, got: Any) -> PassError:
    message = f"'{op.OPERATION_NAME}' op expected its gradient rule to give {expected}, got {got}"
    return failure([(op.location, message)])
