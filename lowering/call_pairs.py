# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Calls that are differentiated as calls: the function is derived once for all of them.

A function with the attribute `gradopt.compiled` becomes @f_forward, which gives its results and
what the backward reads of its values, and @f_backward, one call of which stands where the backward
of the function's body would. Inlined, the two are the very ops that the body, inlined before, gives
rise to, in the same order: @f_backward does not add up the contributions to a gradient, its caller
does, in the order in which the body's ops make them. Both are marked `gradopt.compiled` again, for
derivatives of higher order.
"""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..dialect.base import Op, wrap
from ..dialect.builder import Builder
from ..dialect.control import COMPILED, argument_names, call
from ..dialect.mlir import func, ir
from ..dialect.types import is_float_type
from .call_rules import has_rule, is_kept
from .inline import callee_of, clone_body
from .passes import single_block
from .reverse import Sweep

if TYPE_CHECKING:
    from .differentiate import Differentiation


@dataclasses.dataclass(frozen=True)
class Source:
    """Where a value comes from: the result of a call, or what the call is given, by position."""

    is_result: bool
    position: int


@dataclasses.dataclass(frozen=True)
class Pair:
    """@f_forward and @f_backward for given inputs to differentiate by and given cotangents.

    The backward takes what `reads` says of the forward's arguments and results, then the
    cotangents. `contributions` are to gradients by inputs of the forward, by their positions, and
    come from the backward. Without any there are no such functions.
    """

    forward: func.FuncOp | None
    backward: func.FuncOp | None
    reads: list[Source]
    contributions: list[tuple[int, Source]]


class CallPairs:
    """The pairs made so far, and what the results of functions depend on."""

    def __init__(self, differentiation: "Differentiation") -> None:
        self.differentiation = differentiation
        self.functions = differentiation.functions
        self.pairs: dict[Any, Pair] = {}
        self.bodies: dict[str, func.FuncOp] = {}
        self.dependences: dict[str, tuple[list[int], list[int]]] = {}

    def is_paired(self, op: func.CallOp) -> bool:
        """Whether a call is of a function that is derived by itself."""
        callee = self.functions.get(callee_of(op))
        if callee is None or callee.is_external or has_rule(callee):
            return False
        return COMPILED in callee.attributes

    # --- bodies -----------------------------------------------------------------------------------

    def body(self, name: str) -> func.FuncOp:
        """A function with the body as it is differentiated, in ops that have rules; made once, and
        removed at the end.
        """
        if name not in self.bodies:
            callee = self.functions[name]
            make, kinds = self.differentiation.private_function, callee.type
            with callee.location:
                args = kinds.inputs, kinds.results, argument_names(callee)
                function = make(f"{name}_body", *args)
                block = function.entry_block
                with Builder(ir.InsertionPoint(block), callee.location):
                    with ir.InsertionPoint(block):
                        inputs = list(block.arguments)
                        results = clone_body(self.functions, callee, inputs, keep=is_kept)
                    results = self.differentiation.prepared(block, results)
                    with ir.InsertionPoint(block):
                        func.ReturnOp(results)
            self.bodies[name] = function
        return self.bodies[name]

    def remove_bodies(self) -> None:
        """Nothing is derived any more."""
        for function in self.bodies.values():
            del self.functions[function.name.value]
            function.operation.erase()

    def use_operands(self, block: ir.Block, values: list[ir.Value]) -> list[ir.Value]:
        """Have readers of results that are operands of their call, or earlier results of it, read
        those; returns what stands for `values`.
        """
        for op in block.operations:
            if not isinstance(op, func.CallOp) or not self.is_paired(op):
                continue
            returned = list(single_block(self.body(callee_of(op))).operations)[-1].operation
            known = dict(
                zip(self.body(callee_of(op)).entry_block.arguments, op.operands, strict=True)
            )
            for value, result in zip(returned.operands, op.results, strict=True):
                other = known.setdefault(value, result)
                if other != result:
                    values = [other if v == result else v for v in values]
                    result.replace_all_uses_with(other)
        return values

    # --- what depends on what ---------------------------------------------------------------------

    def active_results(self, op: func.CallOp, active: set[ir.Value]) -> list[ir.Value]:
        """The results that a gradient by an active operand goes through."""
        given = _bits(o in active for o in op.operation.operands)
        through, _ = self.dependence(callee_of(op))
        return [r for r, bits in zip(op.operation.results, through, strict=True) if bits & given]

    def reached_operands(self, op: func.CallOp, reached: set[ir.Value]) -> list[ir.Value]:
        """The operands that the reached ones of the results depend on, in whatever way."""
        _, anyhow = self.dependence(callee_of(op))
        found = 0
        for result, bits in zip(op.operation.results, anyhow, strict=True):
            found |= bits if result in reached else 0
        return [o for i, o in enumerate(op.operation.operands) if found >> i & 1]

    def dependence(self, name: str) -> tuple[list[int], list[int]]:
        """The inputs that each result of a function depends on, as bits: through values that have
        gradients, and in whatever way.
        """
        if name not in self.dependences:
            block = self.body(name).entry_block
            through = {a: 1 << i for i, a in enumerate(block.arguments)}
            anyhow = dict(through)
            for op in block.operations:
                if isinstance(op, func.ReturnOp):
                    results = list(op.operation.operands)
                    found = [through[r] for r in results], [anyhow[r] for r in results]
                    self.dependences[name] = found
                    break
                inner = self._inner(op)
                operands = _operands(op)
                for i, result in enumerate(op.operation.results):
                    smooth = not isinstance(op, Op) or _is_float(result)
                    through[result] = _union(through, operands, inner and inner[0][i], smooth)
                    anyhow[result] = _union(anyhow, operands, inner and inner[1][i], True)
        return self.dependences[name]

    def _inner(self, op: Any) -> tuple[list[int], list[int]] | None:
        """The dependence of what a call calls, if its body is differentiated in its place."""
        if not isinstance(op, func.CallOp):
            return None
        return self.dependence(callee_of(op)) if self.is_paired(op) else None

    # --- the rule ---------------------------------------------------------------------------------

    def contributions(
        self, op: func.CallOp, cts: list[Any], active: set[ir.Value]
    ) -> tuple[list[tuple[int, Any]], dict[ir.Value, ir.Value]]:
        """The contributions of a call to the gradients by its operands, by their positions, in
        order; and what stands for the results of the call.
        """
        operands = list(op.operation.operands)
        wrt = tuple(i for i, o in enumerate(operands) if o in active and _is_float(o))
        heads = tuple(i for i, ct in enumerate(cts) if ct is not None)
        pair = self.pair(callee_of(op), wrt, heads, op.location)
        if pair.forward is None:
            return [], {}
        with ir.InsertionPoint(op), op.location:
            new = func.CallOp(pair.forward, operands).operation
        replaced = dict(zip(op.operation.results, new.results, strict=False))
        for old, result in replaced.items():
            old.replace_all_uses_with(result)
        results = list(new.results)
        read = [_from(s, results, operands) for s in pair.reads]
        given = [*map(wrap, read), *(cts[i] for i in heads)]
        made = call(pair.backward, *given) if pair.backward is not None else ()
        return [(i, _from(s, made, given)) for i, s in pair.contributions], replaced

    def pair(
        self, name: str, wrt: tuple[int, ...], heads: tuple[int, ...], location: ir.Location
    ) -> Pair:
        """The pair of a function, made once."""
        key = name, wrt, heads
        if key not in self.pairs:
            with self.functions[name].location:
                self.pairs[key] = self._derive(self.functions[name], wrt, heads)
        return self.pairs[key]

    def _derive(self, callee: func.FuncOp, wrt: tuple[int, ...], heads: tuple[int, ...]) -> Pair:
        """Write out body and backward in one block, then part it."""
        make = self.differentiation.private_function
        body, kinds, names = self.body(callee.name.value), callee.type, argument_names(callee)
        function = make(f"{callee.name.value}_forward", kinds.inputs, kinds.results, names)
        block, location = function.entry_block, ir.Location.current
        inputs = list(block.arguments)
        with Builder(ir.InsertionPoint(block), location):
            with ir.InsertionPoint(block):
                results = clone_body(self.functions, body, inputs, keep=lambda inner: True)
            cts = [
                block.add_argument(results[i].type, ir.Location.name(f"ct{i}", location))
                for i in heads
            ]
            count = len(block.operations)
            seeds = [(results[i], ct) for i, ct in zip(heads, cts, strict=True)]
            sweep = Sweep(block, [inputs[i] for i in wrt], seeds, self.differentiation)
        results = [sweep.replaced.get(r, r) for r in results]
        position = {inputs[i]: i for i in wrt}
        met = [(position[x], ir.Value(ct)) for x, ct in sweep.met]
        split = _Split(
            block, inputs, results, cts, list(block.operations)[count + sweep.inserted :], met
        )
        pair = split.pair(function, names, make)
        if pair.forward is None:
            del self.functions[function.name.value]
            function.operation.erase()
        return pair


class _Split:
    """A block with a body and then its backward, parted into two functions."""

    def __init__(
        self,
        block: ir.Block,
        inputs: list[ir.Value],
        results: list[ir.Value],
        cts: list[ir.Value],
        backward: list[Any],
        met: list[tuple[int, ir.Value]],
    ) -> None:
        self.block, self.inputs, self.results, self.cts = block, inputs, results, cts
        self.backward, self.met = backward, met

    def pair(self, forward: func.FuncOp, names: Sequence[str], make: Any) -> Pair:
        """The two functions."""
        if not self.met:
            return Pair(None, None, [], [])
        own = {r for op in self.backward for r in op.operation.results}
        read = self._read(own)
        given = {v: i for i, v in enumerate([*read, *self.cts])}
        made = {v: i for i, v in enumerate(dict.fromkeys(v for _, v in self.met if v in own))}
        contributions = [
            (i, Source(True, made[v]) if v in made else Source(False, given[v]))
            for i, v in self.met
        ]
        sources = self._sources(read)
        known = dict(zip(self.inputs, names, strict=True))
        labels = [known.get(v) or _label(v) for v in read]
        labels += [f"ct{i}" for i in range(len(self.cts))]
        backward = None
        if made:
            backward = self._backward(forward, make, given, list(made), labels)
        else:  # what the body is given is handed on as it is
            for op in reversed(self.backward):
                op.operation.erase()
        self._finish(forward)
        return Pair(forward, backward, sources, contributions)

    def _read(self, own: set[ir.Value]) -> list[ir.Value]:
        """What the backward, and its caller, need of the body's values."""
        found: dict[ir.Value, None] = {}
        for op in self.backward:
            found.update((v, None) for v in _operands(op) if v not in own)
        found.update((v, None) for _, v in self.met if v not in own)
        return [v for v in found if v not in self.cts]

    def _sources(self, read: list[ir.Value]) -> list[Source]:
        """Where the caller finds what is read; adds to the forward's results what is missing."""
        found = []
        inputs = {v: i for i, v in enumerate(self.inputs)}
        results = {v: i for i, v in reversed(list(enumerate(self.results)))}
        for value in read:
            if value in inputs:
                found.append(Source(False, inputs[value]))
                continue
            if value not in results:
                results[value] = len(self.results)
                self.results.append(value)
            found.append(Source(True, results[value]))
        return found

    def _backward(
        self,
        forward: func.FuncOp,
        make: Any,
        given: dict[ir.Value, int],
        made: list[ir.Value],
        labels: list[str],
    ) -> func.FuncOp:
        """@f_backward, with the ops of the backward moved into it."""
        name = forward.name.value.replace("_forward", "_backward")
        types = [v.type for v in given], [v.type for v in made]
        function = make(name, *types, labels)
        block = function.entry_block
        arguments = list(block.arguments)
        with ir.InsertionPoint(block):
            end = func.ReturnOp(made).operation
        inside = {v: arguments[i] for v, i in given.items()}
        for op in self.backward:
            op.operation.move_before(end)
            _rewire(op, inside)
        function.attributes[COMPILED] = ir.UnitAttr.get()
        return function

    def _finish(self, forward: func.FuncOp) -> None:
        """What is left is @f_forward."""
        for _ in self.cts:
            self.block.erase_argument(len(self.inputs))
        with ir.InsertionPoint(self.block):
            func.ReturnOp(self.results)
        kind = ir.FunctionType.get([v.type for v in self.inputs], [v.type for v in self.results])
        forward.attributes["function_type"] = ir.TypeAttr.get(kind)
        forward.attributes[COMPILED] = ir.UnitAttr.get()


def _bits(flags: Any) -> int:
    return sum(1 << i for i, flag in enumerate(flags) if flag)


def _union(
    known: dict[ir.Value, int], operands: list[ir.Value], only: int | None, smooth: bool
) -> int:
    """What a result depends on: all operands, or only those given by bits."""
    found = 0
    for i, operand in enumerate(operands if smooth else []):
        if only is None or only >> i & 1:
            found |= known[operand]
    return found


def _is_float(value: ir.Value) -> bool:
    kind = value.type
    return isinstance(kind, ir.RankedTensorType) and is_float_type(kind.element_type)


def _from(source: Source, results: Sequence[Any], given: Sequence[Any]) -> Any:
    return (results if source.is_result else given)[source.position]


def _label(value: ir.Value) -> str:
    location = value.owner.operation.location
    return location.name_str if isinstance(location, ir.NameLoc) else "residual"


def _operands(op: Any) -> list[ir.Value]:
    """What an op and the ops in its regions read of values outside."""
    found: list[ir.Value] = []
    inside: set[ir.Value] = set()

    def look(inner: ir.Operation) -> ir.WalkResult:
        found.extend(inner.operands)
        inside.update(inner.results)
        for region in inner.regions:
            for block in region.blocks:
                inside.update(block.arguments)
        return ir.WalkResult.ADVANCE

    if not len(op.operation.regions):
        return list(op.operation.operands)
    op.operation.walk(look)
    return [v for v in found if v not in inside]


def _rewire(op: Any, inside: dict[ir.Value, ir.Value]) -> None:
    """Give an op, and the ops in its regions, what stands for values outside."""

    def change(inner: ir.Operation) -> ir.WalkResult:
        for i, value in enumerate(inner.operands):
            if value in inside:
                inner.operands[i] = inside[value]
        return ir.WalkResult.ADVANCE

    op.operation.walk(change)
