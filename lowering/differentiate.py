# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-differentiate: derived functions written out, innermost first.

Reverse mode over a function's ops, in their order, backwards. A missing cotangent is a zero that
costs nothing; several are added in the order they are met; the rules come from the ops (`vjp`). A
derived function is made of gradopt ops only, so it can be differentiated again.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from ..dialect.base import wrap
from ..dialect.builder import Builder
from ..dialect.control import (
    COTANGENT,
    PRIMALS,
    DerivativeOp,
    JvpOp,
    VjpOp,
    argument_names,
    call,
    head_positions,
    named_symbols,
    optimization_barrier,
    signature,
    symbols,
    tagged,
)
from ..dialect.creation import ones_like, zeros_like
from ..dialect.loops import ScanOp
from ..dialect.mlir import func, ir
from ..dialect.types import is_float
from .call_pairs import CallPairs
from .call_rules import (
    FORWARD,
    custom_gradients,
    has_rule,
    is_kept,
    rule_functions,
    use_forward_functions,
)
from .decompose import expand, needs_rule
from .inline import callee_of, callees_first, clone_body
from .loop_gradients import LoopGradient
from .passes import failure, gradopt_pass, single_block
from .policies import SAVING, resumed_function, use_saving_functions
from .reverse import reverse


@gradopt_pass("gradopt-differentiate")
def differentiate(module: ir.Module) -> None:
    """Write out the derivatives that gradopt.vjp and gradopt.jvp name, innermost first, and call
    them directly.
    """
    Differentiation(module).run()


@dataclasses.dataclass(frozen=True)
class Request:
    """Which derivative of which function; `kind` is the op that asks for it. With `body` that of
    the function's body, whatever rule it has.
    """

    callee: str
    wrt: tuple[int, ...]
    heads: tuple[int, ...]
    unreachable: str = "zeros"
    kind: str = "vjp"
    intermediates: tuple[str, ...] = ()
    body: bool = False


class Differentiation:
    """One run of the pass: the module's functions and the derived ones made so far."""

    def __init__(self, module: ir.Module) -> None:
        self.module = module
        self.functions = symbols(module)
        self.vjps: dict[Request, func.FuncOp] = {}
        self.jvps: dict[Request, func.FuncOp] = {}
        self.taken = named_symbols(module)
        self.pairs = CallPairs(self)

    def run(self) -> None:
        for name in callees_first(self.functions, self.named):
            if not self.functions[name].is_external:
                self.expand(self.functions[name])
        self.pairs.remove_bodies()

    def named(self, function: func.FuncOp) -> list[str]:
        """The functions that a function calls or differentiates, last one first."""
        if function.is_external:
            return []
        ops = list(single_block(function).operations)
        self._check_regions(function, ops)
        kinds = {func.CallOp: callee_of, VjpOp: _callee, JvpOp: _callee, ScanOp: _callee}
        named = [kinds[type(op)](op) for op in reversed(ops) if type(op) in kinds]
        return named + rule_functions(self.functions, function)

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
                labels = op.intermediates if isinstance(op, VjpOp) else ()
                kind = type(op).MNEMONIC
                request = Request(op.callee, op.wrt, heads, op.unreachable, kind, labels)
                derive = self.jvp if isinstance(op, JvpOp) else self.vjp
                replace(op, derive(request, op.location))

    def new_function(
        self, request: Request, rule: type[DerivativeOp], location: ir.Location
    ) -> func.FuncOp:
        """An empty private function with the derivative's type, named after the function it is
        derived from.
        """
        callee = self.functions[request.callee]
        labels = request.intermediates if rule is VjpOp else ()
        inputs, results = rule.infer(callee, request.wrt, request.heads, intermediates=labels)
        names = argument_names(callee)
        names += (
            [f"ct{i}" for i in request.heads]
            if rule is VjpOp
            else [f"d_{names[i]}" for i in request.wrt]
        )
        types = [s.to_mlir() for s in inputs], [s.to_mlir() for s in results]
        with location:
            function = self.private_function(f"{request.callee}_{rule.MNEMONIC}", *types, names)
        if rule is VjpOp:  # for gradopt-partition
            count = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), len(callee.type.results))
            function.attributes[PRIMALS] = count
            about = [{a.name: a.attr for a in d} for d in function.arg_attrs]
            for attributes in about[len(callee.type.inputs) :]:
                attributes[COTANGENT] = ir.UnitAttr.get()
            function.arg_attrs = ir.ArrayAttr.get([ir.DictAttr.get(a) for a in about])
        return function

    def private_function(
        self,
        name: str,
        inputs: Sequence[ir.Type],
        results: Sequence[ir.Type],
        names: Sequence[str],
    ) -> func.FuncOp:
        """A new private function with an empty body; `names` are those of its arguments."""
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        location = ir.Location.current
        with ir.InsertionPoint(self.module.body):
            function = func.FuncOp(name, (list(inputs), list(results)), visibility="private")
        about = [ir.DictAttr.get({"gradopt.name": ir.StringAttr.get(n)}) for n in names]
        function.arg_attrs = ir.ArrayAttr.get(about)
        function.add_entry_block([ir.Location.name(n, location) for n in names])
        self.functions[name] = function
        return function

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
                values = self._body(request, list(block.arguments)[:count], location)
            values = self.prepared(block, values)
            results, tags = values[: len(callee.type.results)], values[len(callee.type.results) :]
            inputs = [*(block.arguments[i] for i in request.wrt), *tags]
            seeds = list(
                zip((results[i] for i in request.heads), list(block.arguments)[count:], strict=True)
            )
            gradients, replaced = reverse(block, inputs, seeds, location, self)
            results = [replaced.get(r, r) for r in results]
            self._check_reachable(request, gradients, location)
            gradients = [
                zeros_like(wrap(x)) if g is None else g
                for x, g in zip(inputs, gradients, strict=True)
            ]
            with ir.InsertionPoint(block), location:
                func.ReturnOp([*results, *gradients])
        self.vjps[request] = function
        return function

    def prepared(self, block: ir.Block, values: list[ir.Value]) -> list[ir.Value]:
        """Have a block consist of ops with gradient rules; returns what stands for `values`."""
        values = expand(block, needs_rule, values)
        values = use_forward_functions(self.functions, block, values)
        values = use_saving_functions(self.functions, block, values, self.private_function)
        return self.pairs.use_operands(block, values)

    def _check_reachable(
        self, request: Request, gradients: list[Any], location: ir.Location
    ) -> None:
        if request.unreachable == "zeros":
            return
        every = argument_names(self.functions[request.callee])
        names = [*(every[i] for i in request.wrt), *request.intermediates]
        missing = [f"'{n}'" for n, g in zip(names, gradients, strict=True) if g is None]
        if missing:
            message = (
                f"'gradopt.{request.kind}' op expected results of @{request.callee} that depend on "
                f"every input to differentiate, got unreachable {', '.join(missing)}; leave it "
                'out, or ask for zeros with unreachable = "zeros" (allow_unused=True in Python)'
            )
            raise failure([(location, message)])

    def _body(
        self, request: Request, operands: list[ir.Value], location: ir.Location
    ) -> list[ir.Value]:
        """What is differentiated, on `operands`: a copy of the function's body, or a call where the
        function has a rule of its own. Returns its results, then the intermediates.
        """
        callee = self.functions[request.callee]
        tags = [t.operation.results[0] for t in tagged(VjpOp, callee, request.intermediates)]
        if not has_rule(callee) or request.body:
            return clone_body(self.functions, callee, operands, tags, is_kept)
        if tags:
            message = f"expected no intermediates inside @{request.callee}, which has its own rule"
            raise failure([(location, message)])
        return [ir.Value(v) for v in call(callee, *map(wrap, operands))]

    def has_call_rule(self, op: func.CallOp) -> bool:
        """False for a call of a function without a body."""
        return not self.functions[callee_of(op)].is_external

    def call_rule(self, op: func.CallOp, cts: list[Any]) -> list[Any]:
        """The gradients of a call by its operands: by the function's own backward function, or
        through the function computed anew.
        """
        callee = self.functions[callee_of(op)]
        if FORWARD in op.operation.attributes:
            return custom_gradients(self.functions, op, cts)
        heads = tuple(i for i, ct in enumerate(cts) if ct is not None)
        operands = [wrap(o) for o in op.operation.operands]
        wrt = tuple(i for i, o in enumerate(operands) if is_float(o.dtype))
        derived = self.vjp(Request(callee.name.value, wrt, heads, body=True), op.location)
        again = [optimization_barrier(o) for o in operands]
        given = [cts[i] for i in heads]
        if SAVING in op.operation.attributes:
            count = len(self.functions[op.operation.attributes[SAVING].value].type.results)
            saved = [optimization_barrier(wrap(r)) for r in list(op.operation.results)[count:]]
            make = self.private_function
            with op.location:
                derived = resumed_function(self.functions, derived, count, len(saved), make)
            found = call(derived, *again, *given, *saved)
        else:
            found = call(derived, *again, *given)[len(cts) :]
        gradients: list[Any] = [None] * len(operands)
        for i, gradient in zip(wrt, found, strict=True):
            gradients[i] = gradient
        return gradients

    def loop_rule(
        self, op: func.CallIndirectOp, cts: list[Any], active: set[ir.Value]
    ) -> tuple[list[Any], dict[ir.Value, ir.Value]]:
        """The gradients of a loop by its operands, from a loop the other way; and what stands for
        its results, where the loop saves more than it did.
        """
        return LoopGradient(self, op, cts, active).build()

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


def _callee(op: DerivativeOp | ScanOp) -> str:
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
