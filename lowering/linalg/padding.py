# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Padding with elements of the tensor: one generic that reads at positions it computes."""

from typing import Any

from ...dialect.mlir import arith, ir, tensor
from ...dialect.padding import PadModeOp
from . import build
from .build import PARALLEL
from .registry import lowers


@lowers(PadModeOp)
def pad_mode(op: Any, x: ir.Value) -> ir.Value:
    extents = build.shape_of(x)
    padded = [
        n + lo + hi if isinstance(n, int) else n
        for n, lo, hi in zip(extents, op.low, op.high, strict=True)
    ]
    loops = list(range(len(padded)))
    if 0 in padded:
        return build.empty(padded, build.element_of(x))
    read = build.read_at(x)

    def body(_: ir.Value) -> list[ir.Value]:
        where = [build.loop_index(a) for a in loops]
        for axis, (n, lo, hi) in enumerate(zip(extents, op.low, op.high, strict=True)):
            if (lo or hi) and isinstance(n, int):
                where[axis] = _position(where[axis], n, lo, op.mode)
        return [tensor.extract(read, where)]

    out = build.empty(padded, build.element_of(x))
    return build.generic([], [(out, loops)], [PARALLEL] * len(loops), body)[0]


def _position(i: ir.Value, n: int, low: int, mode: str) -> ir.Value:
    """Which of n elements the element i of the padded axis is a copy of."""
    if mode == "edge":
        moved = arith.subi(i, build.index(low))
        return arith.minsi(arith.maxsi(moved, build.index(0)), build.index(n - 1))
    period = {"wrap": n, "symmetric": 2 * n, "reflect": 2 * (n - 1)}[mode]
    if period == 0:
        return build.index(0)
    turn = arith.remui(arith.addi(i, build.index(-low % period)), build.index(period))
    if mode == "wrap":
        return turn
    back = period - 1 if mode == "symmetric" else period
    return arith.minsi(turn, arith.subi(build.index(back), turn))
