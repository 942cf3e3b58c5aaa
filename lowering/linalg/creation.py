# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Constants, index ramps and barriers."""

from typing import Any

import numpy as np

from ...dialect.control import OptimizationBarrierOp
from ...dialect.creation import ConstantOp, IotaOp
from ...dialect.mlir import arith, ir
from ...dialect.types import UNSIGNED
from . import build, scalar
from .registry import lowers


@lowers(ConstantOp)
def constant(op: Any) -> ir.Value:
    """The attribute itself, signless"""
    kind = build.lowered_type(op.result_specs()[0])
    attribute = op.operation.attributes["value"]
    if op.value.dtype in UNSIGNED:
        attribute = ir.DenseElementsAttr.get(
            np.ascontiguousarray(op.value).view(op.value.dtype.str.replace("u", "i")), type=kind
        )
    return arith.constant(kind, attribute)


@lowers(IotaOp)
def iota(op: Any) -> ir.Value:
    """The loop's index, converted"""
    out = build.empty(op.shape, build.element_type(op.dtype))
    axes = list(range(len(op.shape)))

    def body(_: ir.Value) -> list[ir.Value]:
        return [scalar.from_index(build.loop_index(op.axis), op.dtype).value]

    return build.generic([], [(out, axes)], [build.PARALLEL] * len(axes), body)[0]


@lowers(OptimizationBarrierOp)
def optimization_barrier(op: Any, x: ir.Value) -> ir.Value:
    return build.barrier(x)
