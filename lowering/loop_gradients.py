# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The gradient of a loop: a loop over the same steps, the other way.

The body is derived as one function, then parted as gradopt-partition parts functions: what the
backward of a step reads is saved step by step, as further outputs of the loop, or computed anew.
The slices and outputs of the loop are there already, at no price, as is what all steps read; the
carry of each step has to be saved. Gradients by the carry are the carry of the loop back, those by
what all steps read are added up in it, and those by the slices are its outputs.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ..dialect.base import wrap
from ..dialect.builder import Builder
from ..dialect.control import argument_names
from ..dialect.creation import zeros_like
from ..dialect.loops import ScanOp, loop_of, loop_operands
from ..dialect.mlir import func, ir
from ..dialect.types import TensorSpec, is_float
from . import costs
from .partition import Joint, ancestors, label

if TYPE_CHECKING:
    from .differentiate import Differentiation


class StepJoint(Joint):
    """The derived body of a loop with `carries` carries and `xs` slices."""

    def __init__(self, function: func.FuncOp, carries: int, xs: int) -> None:
        self.carries, self.xs = carries, xs
        arguments = list(function.entry_block.arguments)
        self.carried = set(arguments[:carries])
        self.varying = set(arguments[: carries + xs])  # what differs from step to step
        super().__init__(function)

    def price(self, value: ir.Value) -> float:
        """Bytes to keep a value of one step: none for an output, which is stacked anyway."""
        if value in self.results[: self.carries] and value not in self.results[self.carries :]:
            return costs.nbytes(value.type)
        return super().price(value)

    def price_of_input(self, value: ir.Value) -> int:
        """Bytes to keep an input: a carry is gone with its step."""
        return costs.nbytes(value.type) if value in self.carried else 0

    def repeats(self, op: Any) -> bool:
        """What is the same in all steps is not saved for each of them."""
        if not any(o in self.varying for o in op.operation.operands):
            return True
        self.varying.update(op.operation.results)
        return super().repeats(op)


class LoopGradient:
    """The gradient of one loop, given the cotangents of its results, None where there is none."""

    def __init__(
        self,
        of: "Differentiation",
        op: func.CallIndirectOp,
        cts: list[Any],
        active: set[ir.Value],
    ) -> None:
        self.of, self.op, self.cts = of, op, cts
        self.loop: Any = loop_of(op)
        self.operands = loop_operands(op)
        self.carries, self.xs = self.loop.carries, self.loop.xs
        self._choose([o in active for o in self.operands])

    def _choose(self, active: list[bool]) -> None:
        """Find by what the body is differentiated (`wrt`), and of which of its results (`heads`).

        A carry is among both if it depends on what is active in any step, and if in any step what
        has a cotangent depends on it.
        """
        through, anyhow = self.of.pairs.dependence(self.loop.callee)
        given = sum(1 << i for i, a in enumerate(active) if a)
        results = [TensorSpec.from_mlir(r.type).dtype for r in self.op.operation.results]
        reached = {i for i, ct in enumerate(self.cts) if ct is not None and is_float(results[i])}
        for _ in range(self.carries):
            given |= sum(1 << i for i in range(self.carries) if through[i] & given)
            read = 0
            for i in reached:
                read |= anyhow[i]
            reached |= {i for i in range(self.carries) if read >> i & 1}
        kinds = [TensorSpec.from_mlir(o.type).dtype for o in self.operands]
        floats = [i for i, kind in enumerate(kinds) if is_float(kind) and given >> i & 1]
        self.both = [i for i in floats if i < self.carries and i in reached]
        self.wrt = tuple(self.both + [i for i in floats if i >= self.carries])
        self.heads = tuple(self.both + sorted(i for i in reached if i >= self.carries))

    def build(self) -> tuple[list[Any], dict[ir.Value, ir.Value]]:
        """The gradients by the operands of the call, and what stands for its results."""
        gradients: list[Any] = [None] * (1 + len(self.operands))
        if not self.wrt or not self.heads:
            return gradients, {}
        self.joint = self._joint()
        saved = self._saved()
        results, replaced = self._forward(saved)
        found = self._backward(saved, results)
        for i, gradient in zip(self.wrt, found, strict=True):
            gradients[1 + i] = gradient
        return gradients, replaced

    def _joint(self) -> StepJoint:
        from .differentiate import Request  # which needs this file

        request = Request(self.loop.callee, self.wrt, self.heads, body=True)
        return StepJoint(self.of.vjp(request, self.op.location), self.carries, self.xs)

    def _saved(self) -> list[ir.Value]:
        """The values of the body that become further outputs of the loop."""
        own = {*self.joint.inputs[self.carries :], *self.joint.results[self.carries :]}
        return [v for v in self.joint.kept if v not in own]

    def _forward(self, saved: list[ir.Value]) -> tuple[list[ir.Value], dict[ir.Value, ir.Value]]:
        """The results of the loop, and after them what it saves."""
        op, joint = self.op, self.joint
        if not saved:
            return list(op.operation.results), {}
        values = [*joint.results, *saved]
        names = argument_names(joint.function)[: len(joint.inputs)]
        needed = ancestors(joint.free, values)
        ops = [o for o in joint.free if o in needed]
        body = self._function("saving", list(zip(joint.inputs, names, strict=True)), ops, values)
        with Builder(ir.InsertionPoint(op), op.location):
            about = self.loop.read_attributes()
            del about["callee"]
            found = ScanOp.emit_call(body, *map(wrap, self.operands), **about)
        results = [ir.Value(r) for r in found]
        replaced = dict(zip(op.operation.results, results, strict=False))
        for old, new in replaced.items():
            old.replace_all_uses_with(new)
        return results, replaced

    def _backward(self, saved: list[ir.Value], results: list[ir.Value]) -> list[Any]:
        """The gradients by `wrt`, from the loop back."""
        joint, first = self.joint, self.carries + self.xs
        invariant = [v for v in joint.kept if v in joint.inputs[first:]]
        sliced = [v for v in joint.kept if v not in invariant]
        outputs = joint.results[self.carries :]
        stacked = {
            **dict(zip(outputs, results[self.carries :], strict=False)),
            **dict(zip(joint.inputs[self.carries :], self.operands[self.carries :], strict=True)),
            **dict(zip(saved, results[len(joint.results) :], strict=True)),
        }
        added = [i for i in self.wrt if i >= first]
        body = self._step_back(invariant, sliced, added)
        cts = [self.cts[i] for i in self.heads]
        count = len(self.both)
        for i, carry in enumerate(self.both):
            if cts[i] is None:
                cts[i] = zeros_like(wrap(results[carry]))
        values = dict(zip(joint.inputs, self.operands, strict=True))
        found = ScanOp.emit_call(
            body,
            *cts[:count],
            *(zeros_like(wrap(self.operands[i])) for i in added),
            *(wrap(stacked[v]) for v in sliced),
            *cts[count:],
            *(wrap(values[v]) for v in invariant),
            length=self.loop.length,
            carries=count + len(added),
            xs=len(sliced) + len(cts) - count,
            reverse=not self.loop.reverse,
            unroll=self.loop.unroll,
        )
        sums = count + len(added)  # stand before the slices, which come first among operands
        return [*found[:count], *found[sums:], *found[count:sums]]

    def _step_back(
        self, invariant: list[ir.Value], sliced: list[ir.Value], added: list[int]
    ) -> func.FuncOp:
        """The body of the loop back: (cotangents of the carry, sums, what is read, cotangents of
        outputs) to (gradients by the carry, sums, gradients by slices).
        """
        joint, count = self.joint, len(self.both)
        names = joint.argument_names()
        sums = [joint.inputs[i] for i in added]
        again = joint.repeated | set(joint.backward)
        ops = [o for o in joint.ops if o in again]
        used = ancestors(ops, joint.gradients)
        inputs = [(v, names[v]) for v in joint.cotangents[:count]]
        inputs += [(None, f"sum_{names[v]}") for v in sums]
        inputs += [(v, names.get(v) or label(v)) for v in sliced]
        inputs += [(v, names[v]) for v in joint.cotangents[count:]]
        inputs += [(v, names[v]) for v in invariant]
        kinds = {i: joint.inputs[wrt].type for i, wrt in enumerate(added, count)}
        by = dict(zip(self.wrt, joint.gradients, strict=True))
        slices = [by[i] for i in self.wrt if self.carries <= i < self.carries + self.xs]
        results = [*(by[i] for i in self.both), *(by[i] for i in added), *slices]
        return self._function("back", inputs, [o for o in ops if o in used], results, kinds)

    def _function(
        self,
        suffix: str,
        inputs: Sequence[tuple[Any, str]],
        ops: Iterable[Any],
        results: list[ir.Value],
        sums: dict[int, ir.Type] | None = None,
    ) -> func.FuncOp:
        """A private function of copies of `ops`, on arguments that stand for `inputs`. The argument
        at a position of `sums`, of that type, is added to the result at the same.
        """
        sums = sums or {}
        kinds = [sums[i] if v is None else v.type for i, (v, _) in enumerate(inputs)]
        name, types = f"{self.loop.callee}_{suffix}", [v.type for v in results]
        with self.op.location:
            function = self.of.private_function(name, kinds, types, [n for _, n in inputs])
        block = function.entry_block
        arguments = list(block.arguments)
        values = {v: a for (v, _), a in zip(inputs, arguments, strict=True) if v is not None}
        with ir.InsertionPoint(block):
            for op in ops:
                copy = op.operation.clone()
                for i, operand in enumerate(op.operation.operands):
                    copy.operands[i] = values[operand]
                values |= dict(zip(op.operation.results, copy.results, strict=True))
        returned = [values[v] for v in results]
        with Builder(ir.InsertionPoint(block), self.op.location):
            for i in sums:
                returned[i] = ir.Value(wrap(arguments[i]) + wrap(returned[i]))
        with ir.InsertionPoint(block), self.op.location:
            func.ReturnOp(returned)
        return function
