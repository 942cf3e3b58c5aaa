# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Loops as `scf.for`, with the lowered body inside: the carry and the stacked outputs are its
iteration arguments, and each trip inserts its outputs in place.

IREE runs such a loop on the host and submits the dispatches of each trip by itself.
"""

from typing import Any

from ...dialect.loops import ScanOp, loop_of
from ...dialect.mlir import arith, func, ir, scf, tensor
from ..inline import clone_body
from . import build
from .build import Extent
from .registry import lowers


@lowers(ScanOp)
def scan(op: Any) -> ir.Value:
    """The loop as a function, which only its calls read."""
    return op.operation.results[0]


@lowers(func.CallIndirectOp)
def trips(op: Any, _: ir.Value, *operands: ir.Value) -> list[ir.Value]:
    """A call of a loop, whose body is lowered already."""
    loop: Any = loop_of(op)
    body, count, first = loop.target(), loop.carries, loop.carries + loop.xs
    carry, xs, captured = operands[:count], operands[count:first], operands[first:]
    stacked = [
        build.empty(
            [loop.length, *ir.RankedTensorType(y).shape], ir.RankedTensorType(y).element_type
        )
        for y in list(body.type.results)[count:]
    ]
    zero, one, last = build.index(0), build.index(1), build.index(loop.length)
    made = scf.ForOp(zero, last, one, [*carry, *stacked])
    arguments = list(made.inner_iter_args)
    with ir.InsertionPoint(made.body):
        at: ir.Value = made.induction_variable
        if loop.reverse:
            at = arith.subi(build.index(loop.length - 1), at)
        slices = [_slice(x, at) for x in xs]
        found = clone_body({}, body, [*arguments[:count], *slices, *captured])
        pairs = zip(found[count:], arguments[count:], strict=True)
        scf.yield_([*found[:count], *(_inserted(y, into, at) for y, into in pairs)])
    return list(made.results_)


def _place(whole: ir.Value, at: ir.Value) -> tuple[list[int], list[ir.Value], list[int]]:
    """Starts and extents of a slice along the first axis."""
    rest = build.static_shape(whole)[1:]
    start: list[Extent] = [at, *(0 for _ in rest)]
    return *build.mixed(start), [1, *rest]


def _slice(x: ir.Value, at: ir.Value) -> ir.Value:
    starts, moving, sizes = _place(x, at)
    kind = build.tensor_type(sizes[1:], build.element_of(x))
    return tensor.ExtractSliceOp(kind, x, moving, [], [], starts, sizes, [1] * len(sizes)).result


def _inserted(y: ir.Value, into: ir.Value, at: ir.Value) -> ir.Value:
    starts, moving, sizes = _place(into, at)
    return tensor.InsertSliceOp(y, into, moving, [], [], starts, sizes, [1] * len(sizes)).result
