# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Weighted sums along an axis: one generic that reads at positions of a table."""

from typing import Any

import numpy as np

from ...dialect.mlir import arith, ir, tensor
from ...dialect.resize import ResampleOp
from . import build
from .build import PARALLEL, REDUCTION
from .reduction import accumulator, rounded
from .registry import lowers
from .scalar import Scalar, convert, select

MOST_UNROLLED = 16
"""Sums of more terms are loops over the table's columns."""


@lowers(ResampleOp)
def resample(op: Any, x: ir.Value) -> ir.Value:
    dtype, axis = op.operand_specs()[0].dtype, op.axis
    wide = accumulator(dtype)
    indices, weights = op.indices, op.weights
    extents = build.shape_of(x)
    extents[axis] = len(indices)
    element = build.element_type(wide)
    if 0 in extents:
        return build.empty(extents, build.element_of(x))
    loops = list(range(len(extents)))
    read = build.read_at(x)

    def term(total: Scalar, index: ir.Value, weight: ir.Value, skips: bool) -> Scalar:
        where = [build.loop_index(a) for a in loops]
        where[axis] = arith.index_cast(ir.IndexType.get(), index)
        factor = Scalar(weight, wide)
        value = convert(Scalar(tensor.extract(read, where), dtype), wide) * factor
        return total + (select(factor == 0, 0, value) if skips else value)

    width = indices.shape[1]
    skipped = (weights == 0).any(axis=0)
    if width <= MOST_UNROLLED:
        inputs = []
        for t in range(width):
            inputs += [(_constant(indices[:, t], np.int32), [axis])]
            inputs += [(_constant(weights[:, t], wide), [axis])]

        def body(*elements: ir.Value) -> list[ir.Value]:
            total = Scalar(build.number(0, element), wide)
            for t in range(width):
                index, weight = elements[2 * t : 2 * t + 2]
                total = term(total, index, weight, bool(skipped[t]))
            return [total.value]

        out = build.empty(extents, element)
        y = build.generic(inputs, [(out, loops)], [PARALLEL] * len(loops), body)[0]
        return rounded(y, wide, dtype)

    def reduced(index: ir.Value, weight: ir.Value, total: ir.Value) -> list[ir.Value]:
        return [term(Scalar(total, wide), index, weight, bool(skipped.any())).value]

    column = len(loops)
    inputs = [
        (_constant(indices, np.int32), [axis, column]),
        (_constant(weights, wide), [axis, column]),
    ]
    out = build.fill(0, extents, element)
    kinds = [*[PARALLEL] * len(loops), REDUCTION]
    return rounded(build.generic(inputs, [(out, loops)], kinds, reduced)[0], wide, dtype)


def _constant(array: np.ndarray, dtype: Any) -> ir.Value:
    values = np.ascontiguousarray(array.astype(dtype))
    attribute = ir.DenseElementsAttr.get(values)
    return arith.constant(attribute.type, attribute)
