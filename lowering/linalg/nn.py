# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Composite ops in the forms that IREE fuses into few dispatches: reductions, a step a row, one
pass over the tensor.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...dialect.loss import CrossEntropyOp
from ...dialect.mlir import arith, ir, tensor
from ...dialect.nn import LogSoftmaxOp, SoftmaxOp
from ...dialect.norm import NormalizeOp
from ...dialect.types import int64
from ..forms import form_of, parts_of
from . import build, scalar
from .build import PARALLEL
from .reduction import (
    MAXIMUM,
    SUM,
    accumulator,
    count_of,
    exponential_sum,
    finite,
    map_rows,
    mean_of,
    reduce,
    rounded,
    squared_deviation,
)
from .registry import lowers
from .scalar import Scalar, convert, select


def with_rows(
    x: ir.Value, rows: Sequence[ir.Value], axes: Sequence[int], dtype: np.dtype, function: Any
) -> ir.Value:
    """An elementwise function of `x` and of tensors without `axes`, in the accumulator type,
    rounded to `dtype`.
    """
    rank, wide = build.rank_of(x), accumulator(dtype)
    every = list(range(rank))
    kept = [a for a in every if a not in axes]
    out = build.empty(build.shape_of(x), build.element_type(dtype))

    def body(element: ir.Value, *rest: ir.Value) -> list[ir.Value]:
        others = [Scalar(v, wide) for v in rest[:-1]]
        return [convert(function(convert(Scalar(element, dtype), wide), *others), dtype).value]

    return build.generic(
        [(x, every), *((r, kept) for r in rows)], [(out, every)], [PARALLEL] * rank, body
    )[0]


@lowers(SoftmaxOp)
def softmax(op: Any, x: ir.Value) -> ir.Value:
    dtype = op.operand_specs()[0].dtype
    if form_of(op) == "kept":
        return _softmax_kept(x, op.axis, dtype)
    top, total = exponential_sum(x, [op.axis], dtype)
    total = map_rows([total], accumulator(dtype), lambda s: select(s == 0, 1, s))
    return with_rows(
        x, [top, total], [op.axis], dtype, lambda v, t, s: scalar.exp(v - finite(t)) / s
    )


def _softmax_kept(x: ir.Value, axis: int, dtype: np.dtype) -> ir.Value:
    """The exponentials, each computed once, then divided by their sum."""
    wide = accumulator(dtype)
    top = reduce([x], [], [axis], dtype, MAXIMUM)
    powers = with_rows(
        rounded(x, dtype, wide), [top], [axis], wide, lambda v, t: scalar.exp(v - finite(t))
    )
    total = reduce([powers], [], [axis], wide, SUM)
    total = map_rows([total], wide, lambda s: select(s == 0, 1, s))
    return rounded(with_rows(powers, [total], [axis], wide, lambda v, s: v / s), wide, dtype)


@lowers(LogSoftmaxOp)
def log_softmax(op: Any, x: ir.Value) -> ir.Value:
    dtype = op.operand_specs()[0].dtype
    top, total = exponential_sum(x, [op.axis], dtype)
    log_total = map_rows([total], accumulator(dtype), lambda s: scalar.log(select(s == 0, 1, s)))
    return with_rows(x, [top, log_total], [op.axis], dtype, lambda v, t, s: v - finite(t) - s)


@lowers(CrossEntropyOp)
def cross_entropy(op: Any, x: ir.Value, labels: ir.Value) -> list[ir.Value]:
    """ln sum e^x a row, then the label's logit read by position"""
    x_spec, label_spec = op.operand_specs()
    dtype, wide = x_spec.dtype, accumulator(x_spec.dtype)
    axis, classes = x_spec.rank - 1, build.extent(x, x_spec.rank - 1)
    top, total = exponential_sum(x, [axis], dtype)
    lse = map_rows([top, total], wide, lambda t, s: t + scalar.log(s))
    loops = list(range(axis))
    logits = build.read_at(x)

    def pick(label: ir.Value, value: ir.Value, _: ir.Value) -> list[ir.Value]:
        place = convert(Scalar(label, label_spec.dtype), int64)
        last = convert(scalar.from_index(build.as_index(classes), int64), int64) - 1
        inside = scalar.minimum(scalar.maximum(place, 0), last)
        column = arith.index_cast(ir.IndexType.get(), inside.value)
        logit = tensor.extract(logits, [*(build.loop_index(loop) for loop in loops), column])
        return [(Scalar(value, wide) - convert(Scalar(logit, dtype), wide)).value]

    out = build.empty(build.shape_of(lse), build.element_type(wide))
    loss = build.generic([(labels, loops), (lse, loops)], [(out, loops)], [PARALLEL] * axis, pick)[
        0
    ]
    return [rounded(loss, wide, dtype), rounded(lse, wide, dtype)]


@lowers(NormalizeOp)
def normalize(op: Any, x: ir.Value) -> list[ir.Value]:
    """Two passes: the mean, then the mean square of what is left"""
    dtype = op.operand_specs()[0].dtype
    wide = accumulator(dtype)
    axes, parts = op.axes, parts_of(op)
    count = count_of([build.extent(x, a) for a in axes], wide)
    if op.center:
        m = mean_of(x, axes, dtype, parts)
        total = squared_deviation(x, m, axes, dtype, parts)
    else:
        total = reduce([x], [], axes, dtype, SUM, lambda v: v * v, parts)
        m = build.fill(0, build.shape_of(total), build.element_type(wide))
    r = map_rows([total], wide, lambda s: scalar.rsqrt(s / count + op.eps))
    y = with_rows(x, [m, r], axes, dtype, lambda v, c, s: (v - c) * s)
    return [y, rounded(m, wide, dtype), rounded(r, wide, dtype)]
