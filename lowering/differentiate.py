# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-differentiate: derived functions written out, innermost first.

Reverse mode over a function's ops, in their order, backwards. A missing cotangent is a zero that
costs nothing; several are added in the order they are met; the rules come from the ops (`vjp`). A
derived function is made of gradopt ops only, so it can be differentiated again.
"""

import dataclasses
from typing import Any

from ..dialect.base import NO_GRADIENT, Op, wrap
from ..dialect.builder import Builder
from ..dialect.control import (
    DerivativeOp,
    JvpOp,
    VjpOp,
    argument_names,
    call,
    head_positions,
    named_symbols,
    signature,
    symbols,
)
from ..dialect.creation import ones_like, zeros_like
from ..dialect.mlir import func, ir
from ..dialect.types import TensorSpec, is_float, is_float_type
from ..errors import OpError, PassError
from .decompose import expand, needs_rule
from .inline import callee_of, callees_first, clone_body
from .passes import failure, gradopt_pass, single_block


@gradopt_pass("gradopt-differentiate")
def differentiate(module: ir.Module) -> None:
    """Write out the derivatives that gradopt.vjp and gradopt.jvp name, innermost first, and call
    them directly.
    """
    Differentiation(module).run()


@dataclasses.dataclass(frozen=True)
class Request:
    """Which derivative of which function; `kind` is the op that asks for it."""

    callee: str
    wrt: tuple[int, ...]
    heads: tuple[int, ...]
    unreachable: str = "zeros"
    kind: str = "vjp"


class Differentiation:
    """One run of the pass: the module's functions and the derived ones made so far."""

    def __init__(self, module: ir.Module) -> None:
        self.module = module
        self.functions = symbols(module)
        self.vjps: dict[Request, func.FuncOp] = {}
        self.jvps: dict[Request, func.FuncOp] = {}
        self.taken = named_symbols(module)

    def run(self) -> None:
        for name in callees_first(self.functions, self.named):
            if not self.functions[name].is_external:
                self.expand(self.functions[name])

    def named(self, function: func.FuncOp) -> list[str]:
        """The functions that a function calls or differentiates, last one first."""
        if function.is_external:
            return []
        ops = list(single_block(function).operations)
        self._check_regions(function, ops)
        kinds = {func.CallOp: callee_of, VjpOp: _callee, JvpOp: _callee}
        return [kinds[type(op)](op) for op in reversed(ops) if type(op) in kinds]

    def _check_regions(self, function: func.FuncOp, ops: list[Any]) -> None:
        inside: list[tuple[ir.Location, str]] = []

        def look(op: ir.Operation) -> ir.WalkResult:
            if isinstance(op.opview, DerivativeOp) and op.parent != function.operation:
                outer = op.parent.name
                message = f"'{op.name}' op expected to stand in a function, got it in '{outer}'"
                inside.append((op.location, message))
            return ir.WalkResult.ADVANCE

        for op in ops:
            if len(op.operation.regions):
                op.operation.walk(look)
        if inside:
            raise failure(inside)

    def expand(self, function: func.FuncOp) -> None:
        """Replace the derivative ops of a function; those of all functions that it names are."""
        for op in list(function.entry_block.operations):
            if isinstance(op, DerivativeOp):
                heads = head_positions(self.functions[op.callee], op.heads)
                request = Request(op.callee, op.wrt, heads, op.unreachable, type(op).MNEMONIC)
                derive = self.jvp if isinstance(op, JvpOp) else self.vjp
                replace(op, derive(request, op.location))

    def new_function(
        self, request: Request, rule: type[DerivativeOp], location: ir.Location
    ) -> func.FuncOp:
        """An empty private function with the derivative's type, named after the function it is
        derived from.
        """
        callee = self.functions[request.callee]
        inputs, results = rule.infer(callee, request.wrt, request.heads)
        name = f"{request.callee}_{rule.MNEMONIC}"
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        types = [s.to_mlir() for s in inputs], [s.to_mlir() for s in results]
        with ir.InsertionPoint(self.module.body), location:
            self.functions[name] = func.FuncOp(name, types, visibility="private")
        names = argument_names(callee)
        names += (
            [f"ct{i}" for i in request.heads]
            if rule is VjpOp
            else [f"d_{names[i]}" for i in request.wrt]
        )
        self.functions[name].arg_attrs = ir.ArrayAttr.get(
            [ir.DictAttr.get({"gradopt.name": ir.StringAttr.get(n)}) for n in names]
        )
        self.functions[name].add_entry_block([ir.Location.name(n, location) for n in names])
        return self.functions[name]

    # --- reverse mode -----------------------------------------------------------------------------

    def vjp(self, request: Request, location: ir.Location) -> func.FuncOp:
        """The function (inputs, cotangents) -> (results, gradients)."""
        if request in self.vjps:
            return self.vjps[request]
        callee = self.functions[request.callee]
        single_block(callee)
        function = self.new_function(request, VjpOp, location)
        count = len(callee.type.inputs)
        block = function.entry_block
        with Builder(ir.InsertionPoint(block), location):
            with ir.InsertionPoint(block):
                results = clone_body(self.functions, callee, list(block.arguments)[:count])
            results = expand(block, needs_rule, results)
            inputs = [block.arguments[i] for i in request.wrt]
            seeds = list(
                zip((results[i] for i in request.heads), list(block.arguments)[count:], strict=True)
            )
            gradients = reverse(block, inputs, seeds, location)
            self._check_reachable(request, gradients, location)
            gradients = [
                zeros_like(wrap(x)) if g is None else g
                for x, g in zip(inputs, gradients, strict=True)
            ]
            with ir.InsertionPoint(block), location:
                func.ReturnOp([*results, *gradients])
        self.vjps[request] = function
        return function

    def _check_reachable(
        self, request: Request, gradients: list[Any], location: ir.Location
    ) -> None:
        if request.unreachable == "zeros":
            return
        names = argument_names(self.functions[request.callee])
        missing = [
            f"'{names[i]}'"
            for i, gradient in zip(request.wrt, gradients, strict=True)
            if gradient is None
        ]
        if missing:
            message = (
                f"'gradopt.{request.kind}' op expected results of @{request.callee} that depend on "
                f"every input to differentiate, got unreachable {', '.join(missing)}; leave it "
                'out, or ask for zeros with unreachable = "zeros" (allow_unused=True in Python)'
            )
            raise failure([(location, message)])

    # --- forward mode -----------------------------------------------------------------------------

    def jvp(self, request: Request, location: ir.Location) -> func.FuncOp:
        """The function (inputs, tangents) -> (results, tangents of the heads), as the vjp of the
        vjp.

        g(ct) = vjp of f at ct is linear in ct: g(ct) = J^T ct. Its own vjp at a tangent t is J t,
        for any ct. The ct used is ones, never zeros, which guards against infinite slopes would
        take for "nothing to do".
        """
        if request in self.jvps:
            return self.jvps[request]
        inputs, results = signature(self.functions[request.callee])
        inner = self.vjp(request, location)
        cotangents = tuple(range(len(inputs), len(inputs) + len(request.heads)))
        gradients = tuple(range(len(results), len(results) + len(request.wrt)))
        twice = self.vjp(Request(inner.name.value, cotangents, gradients), location)
        function = self.new_function(request, JvpOp, location)
        arguments = [wrap(a) for a in function.entry_block.arguments]
        with Builder(ir.InsertionPoint(function.entry_block), location):
            primals, tangents = arguments[: len(inputs)], arguments[len(inputs) :]
            values = call(self.functions[request.callee], *primals)
            ones = [ones_like(values[i]) for i in request.heads]
            found = call(twice, *primals, *ones, *tangents)
            with ir.InsertionPoint(function.entry_block), location:
                func.ReturnOp([*values, *found[len(results) + len(request.wrt) :]])
        self.jvps[request] = function
        return function


def _callee(op: DerivativeOp) -> str:
    return op.callee


def replace(op: DerivativeOp, function: func.FuncOp) -> None:
    """Put the derived function where the derivative op was: as a direct call, or as a constant
    where it is used otherwise.
    """
    value = op.operation.results[0]
    for use in list(value.uses):
        user = use.owner
        if isinstance(user.opview, func.CallIndirectOp) and use.operand_number == 0:
            with ir.InsertionPoint(user), user.location:
                direct = func.CallOp(function, list(user.operands)[1:])
            for old, new in zip(user.results, direct.operation.results, strict=True):
                old.replace_all_uses_with(new)
            user.erase()
    if list(value.uses):
        with ir.InsertionPoint(op), op.location:
            symbol = ir.FlatSymbolRefAttr.get(function.name.value)
            value.replace_all_uses_with(func.ConstantOp(value.type, symbol).result)
    op.operation.erase()


def reverse(
    block: ir.Block,
    inputs: list[ir.Value],
    seeds: list[tuple[ir.Value, ir.Value]],
    location: ir.Location,
) -> list[Any]:
    """Append the gradients of <results, cotangents> by `inputs` to the block, given (result,
    cotangent) pairs.

    Returns a tensor for each input; None where no seeded result depends on it. A gradient that is
    zero though its input is reached is made of zeros. Raises PassError with all ops that have no
    gradient rule.
    """
    ops = list(block.operations)
    active = _active(ops, inputs)
    reached = _reached(ops, [result for result, _ in seeds])
    cotangents: dict[ir.Value, list[Any]] = {}
    for result, ct in seeds:
        cotangents.setdefault(result, []).append(wrap(ct))
    faults = []
    for op in reversed(ops):
        with Builder(ir.InsertionPoint(block), _derived_location(op)):
            cts = [_total(cotangents.pop(r, [])) for r in op.operation.results]
        if all(ct is None for ct in cts) or not any(o in active for o in _read(op)):
            continue
        operands = list(op.operation.operands)
        fault = _missing_rule(op)
        if fault is None and type(op).vjp is NO_GRADIENT:
            continue
        with Builder(ir.InsertionPoint(block), _derived_location(op)):
            if fault:  # go on as if there were a rule, to find all that have none
                faults.append((op.location, fault))
                go_on = [o in active and _is_float_tensor(o.type) for o in operands]
                gradients = [
                    zeros_like(wrap(o)) if g else None for o, g in zip(operands, go_on, strict=True)
                ]
            else:
                gradients = _apply_rule(op, cts)
        for operand, gradient in zip(operands, gradients, strict=True):
            if gradient is not None and operand in active:
                cotangents.setdefault(operand, []).append(gradient)
    if faults:
        raise failure(reversed(faults))
    with Builder(ir.InsertionPoint(block), location):
        totals = [_total(cotangents.get(x, [])) for x in inputs]
        return [
            zeros_like(wrap(x)) if t is None and x in reached else t
            for x, t in zip(inputs, totals, strict=True)
        ]


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


def _active(ops: list[Any], inputs: list[ir.Value]) -> set[ir.Value]:
    """Values that depend on an input, but for what ops of the dialect make that is no float."""
    active = set(inputs)
    for op in ops:
        if any(o in active for o in _read(op)):
            foreign = not isinstance(op, Op)
            active.update(r for r in op.operation.results if foreign or _is_float_tensor(r.type))
    return active


def _is_float_tensor(kind: ir.Type) -> bool:
    return isinstance(kind, ir.RankedTensorType) and is_float_type(kind.element_type)


def _reached(ops: list[Any], results: list[ir.Value]) -> set[ir.Value]:
    """Values that a result depends on, in whatever way."""
    reached = set(results)
    for op in reversed(ops):
        if any(r in reached for r in op.operation.results):
            reached.update(_read(op))
    return reached


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


def _missing_rule(op: Any) -> str | None:
    if isinstance(op, Op) and hasattr(type(op), "vjp"):
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
