# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-unroll-scans: which loops are written out, and how many steps a trip of the others has.

Measured with IREE 3.13 on two cores: each trip of a loop costs 0.15 ms (it submits its dispatches
by itself, and packs weights anew), and compiling takes 0.11 s a step written out. So a loop of at
most `limit` steps is written out, if that is at most `max-ops` ops; a longer one becomes a loop of
trips of `chunk` steps, fewer where these are more than `max-ops` ops, with what is left over
written out behind it. A net of 32 steps took 12.0 ms written out, 13.6 in chunks of 16 and 24.6 as
a loop of single steps.

In a trip, products that are added up over all steps become one product (see gradopt-simplify), for
which they are added to each other first, and then to the sum so far: sums in another order.

Written out whole, whatever they are, are loops with unknown extents, all with `full`, and all of a
module with a function that gets its memory from its caller (`gradopt.static_alloc`): its commands
have to be known one by one. That fails beyond 16 times `max-ops` ops.
"""

from collections.abc import Sequence
from typing import Any

from ..dialect import builder as builders
from ..dialect.arithmetic import AddOp
from ..dialect.base import wrap
from ..dialect.builder import Builder
from ..dialect.control import argument_names, named_symbols, symbols
from ..dialect.creation import zeros, zeros_like
from ..dialect.loops import ScanOp, loop_of, loop_operands
from ..dialect.mlir import func, ir, op_of, passmanager
from ..dialect.slicing import StackOp, UnstackOp, concat, slice_axis
from ..dialect.types import TensorSpec
from .inline import Functions, callees_first, clone_body
from .marks import STATIC
from .passes import failure, gradopt_pass, single_block

FORCED = 16
"""How many times `max-ops` a loop may become that has to be written out."""


@gradopt_pass("gradopt-unroll-scans")
def unroll_scans(
    module: ir.Module,
    *,
    limit: int = 64,
    chunk: int = 16,
    max_ops: int = 8192,
    full: bool = False,
) -> None:
    """Write out loops of at most `limit` steps and `max-ops` ops, all with `full`; make longer ones
    loops of trips of `chunk` steps.
    """
    functions = symbols(module)
    order = callees_first(functions, loop_bodies)
    if not any(loop_bodies(functions[name]) for name in order):
        return
    static = any(STATIC in f.attributes for f in functions.values())
    unroller = _Unroller(module, limit, chunk, max_ops, full or static)
    for name in order:
        for op in _loops_in(functions[name]):
            unroller.rewrite(op)
    _remove_unused(module, unroller.functions)


def loop_bodies(function: func.FuncOp) -> list[str]:
    """The bodies of the loops of a function, last one first."""
    if function.is_external:
        return []
    ops = reversed(list(single_block(function).operations))
    return [op.callee for op in ops if isinstance(op, ScanOp)]


def _loops_in(function: func.FuncOp) -> list[func.CallIndirectOp]:
    ops = [] if function.is_external else function.entry_block.operations
    return [op for op in ops if loop_of(op) is not None]


class _Unroller:
    """The pass on one module."""

    def __init__(self, module: ir.Module, limit: int, chunk: int, max_ops: int, full: bool) -> None:
        self.module, self.functions = module, symbols(module)
        self.limit, self.chunk, self.max_ops, self.full = limit, chunk, max_ops, full
        self.taken = named_symbols(module)
        self.trips: dict[tuple[str, int, bool, int], func.FuncOp] = {}

    def rewrite(self, op: func.CallIndirectOp) -> None:
        """Write a loop out, whole or in trips, or leave it as it is; one of which nothing is read
        goes.
        """
        loop: Any = loop_of(op)
        body = self.functions[loop.callee]
        if any(list(r.uses) for r in op.operation.results):
            steps = self._steps(op, loop, len(single_block(body).operations) - 1)
            if steps == 1 and loop.length > 1:
                return
            with Builder(ir.InsertionPoint(op), op.location):
                if steps >= loop.length:
                    found = _written_out(self.functions, loop, loop_operands(op), loop.length)
                else:
                    found = self._in_trips(loop, loop_operands(op), steps)
            for old, new in zip(op.operation.results, found, strict=True):
                old.replace_all_uses_with(ir.Value(new))
        op.operation.erase()

    def _steps(self, op: func.CallIndirectOp, loop: Any, ops: int) -> int:
        """How many steps of a loop with a body of `ops` ops are written out together."""
        values = [*op.operation.operands[1:], *op.operation.results]
        unknown = any(None in TensorSpec.from_mlir(v.type).shape for v in values)
        ops = max(ops, 1)
        if self.full or unknown:
            if ops * loop.length > FORCED * self.max_ops:
                why = "its extents are not all known" if unknown else "memory is planned for them"
                message = (
                    f"'gradopt.scan' op expected at most {FORCED * self.max_ops} ops for all steps "
                    f"together, which are written out because {why}, got {loop.length} steps of "
                    f"{ops} ops; compile without static_alloc and memory_budget and for a target "
                    "other than jit, with extents that are known, or raise max-ops of "
                    "gradopt-unroll-scans"
                )
                raise failure([(op.location, message)])
            return loop.length
        if loop.unroll:
            return loop.unroll
        if loop.length <= self.limit and ops * loop.length <= self.max_ops:
            return loop.length
        return max(min(self.chunk, self.max_ops // ops), 1)

    def _in_trips(self, loop: Any, operands: list[ir.Value], steps: int) -> list[Any]:
        """A loop of trips of `steps` steps, then the steps left over."""
        count, length = loop.carries, loop.length
        first = length % steps if loop.reverse else 0
        inside = first, first + length // steps * steps
        outside = (0, first) if loop.reverse else (inside[1], length)
        carry = [wrap(o) for o in operands[:count]]
        xs = [wrap(o) for o in operands[count : count + loop.xs]]
        captured = [wrap(o) for o in operands[count + loop.xs :]]
        trips = length // steps
        parts = [slice_axis(x, 0, *inside) for x in xs]
        found = ScanOp.emit_call(
            self._trip(loop, steps),
            *carry,
            *(x.reshape((trips, steps, *x.shape[1:])) for x in parts),
            *captured,
            length=trips,
            carries=count,
            xs=loop.xs,
            reverse=loop.reverse,
            unroll=1,
        )
        ys = [y.reshape((trips * steps, *y.shape[2:])) for y in found[count:]]
        if outside[0] == outside[1]:
            return [*found[:count], *ys]
        left = [ir.Value(slice_axis(x, 0, *outside)) for x in xs]
        given = [*map(ir.Value, found[:count]), *left, *map(ir.Value, captured)]
        rest = _written_out(self.functions, loop, given, outside[1] - outside[0])
        pairs = zip(ys, rest[count:], strict=True)
        joined = [concat([b, a] if loop.reverse else [a, b], 0) for a, b in pairs]
        return [*rest[:count], *joined]

    def _trip(self, loop: Any, steps: int) -> func.FuncOp:
        """The body of several steps: slices and outputs of them have a first axis for the steps."""
        key = loop.callee, loop.carries, loop.reverse, steps
        if key in self.trips:
            return self.trips[key]
        body, count = self.functions[loop.callee], loop.carries
        inputs, results = list(body.type.inputs), list(body.type.results)
        for i in range(count, count + loop.xs):
            inputs[i] = _stacked(inputs[i], steps)
        results[count:] = [_stacked(kind, steps) for kind in results[count:]]
        name = f"{loop.callee}_by{steps}"
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        with body.location, ir.InsertionPoint(self.module.body):
            function = func.FuncOp(name, (inputs, results), visibility="private")
            names = [{"gradopt.name": ir.StringAttr.get(n)} for n in argument_names(body)]
            function.arg_attrs = ir.ArrayAttr.get([ir.DictAttr.get(n) for n in names])
            function.add_entry_block()
        block = function.entry_block
        arguments = list(block.arguments)
        sums = _sums(body, count)
        with Builder(ir.InsertionPoint(block), body.location):
            given = [
                ir.Value(zeros_like(wrap(a))) if i in sums else a for i, a in enumerate(arguments)
            ]
            found = _written_out(self.functions, loop, given, steps)
            for i in sums:
                found[i] = wrap(arguments[i]) + wrap(ir.Value(found[i]))
            with ir.InsertionPoint(block), body.location:
                func.ReturnOp([ir.Value(v) for v in found])
        self.functions[name] = self.trips[key] = function
        return function


def _written_out(
    functions: Functions, loop: Any, operands: Sequence[ir.Value], length: int
) -> list[Any]:
    """The results of `length` steps of a loop on operands of that length, step by step."""
    count, first = loop.carries, loop.carries + loop.xs
    body = functions[loop.callee]
    carry = list(operands[:count])
    slices = [
        [ir.Value(v) for v in UnstackOp.emit(wrap(x), axis=0)] if length else []
        for x in operands[count:first]
    ]
    steps = []
    for t in reversed(range(length)) if loop.reverse else range(length):
        given = [*carry, *(s[t] for s in slices), *operands[first:]]
        with builders.required("scan").insertion_point:
            found = clone_body(functions, body, given)
        carry = found[:count]
        steps.append(found[count:])
    if not steps:
        specs = map(TensorSpec.from_mlir, body.type.results[count:])
        return [*carry, *(zeros((0, *s.extents), s.dtype) for s in specs)]
    ordered = steps[::-1] if loop.reverse else steps
    return [*carry, *(StackOp.emit(*map(wrap, ys), axis=0) for ys in zip(*ordered, strict=True))]


def _sums(body: func.FuncOp, carries: int) -> list[int]:
    """The carries that a body only adds something to."""
    block = single_block(body)
    returned = list(list(block.operations)[-1].operation.operands)
    found = []
    for i, argument in enumerate(list(block.arguments)[:carries]):
        made = op_of(returned[i])
        is_sum = isinstance(made, AddOp) and argument in list(made.operation.operands)
        if is_sum and len(list(argument.uses)) == 1 and len(list(returned[i].uses)) == 1:
            found.append(i)
    return found


def _stacked(kind: ir.Type, length: int) -> ir.Type:
    spec = TensorSpec.from_mlir(kind)
    return spec.with_shape((length, *spec.shape)).to_mlir()


def _remove_unused(module: ir.Module, functions: Functions) -> None:
    """Erase loops that nothing calls, then the functions that were their bodies."""
    for function in functions.values():
        for op in [] if function.is_external else list(function.entry_block.operations):
            if isinstance(op, ScanOp) and not list(op.operation.results[0].uses):
                op.operation.erase()
    passmanager.PassManager.parse("builtin.module(symbol-dce)").run(module.operation)
