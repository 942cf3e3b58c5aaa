# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Reductions: neighbouring axes are merged first, long narrow column sums split, full sums taken
row by row.

A plain generic for rows; columns of a tall matrix, and any long axis, in parts, as `forms.py`
chooses; never one scalar out of a matrix in one step, which runs on one core. 16-bit floats and
integers below 32 bits accumulate in 32 bits. Maxima start from -inf and propagate NaN.
"""

import dataclasses
import math as pymath
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...dialect import reduction as ops
from ...dialect.mlir import ir
from ...dialect.types import bool_, float32, int32, is_float, is_narrow, uint32
from .. import forms
from . import build, scalar
from .build import PARALLEL, REDUCTION, Extent
from .registry import lowers
from .scalar import Scalar, convert, select
from .shape import extract

Combine = Callable[[Scalar, Scalar], Scalar]


@dataclasses.dataclass(frozen=True)
class Monoid:
    """How elements are combined, and what nothing combines to, for an element type."""

    combine: Combine
    identity: Callable[[np.dtype], float]


SUM = Monoid(lambda a, x: a + x, lambda dtype: 0)
PRODUCT = Monoid(lambda a, x: a * x, lambda dtype: 1)
ANY = Monoid(lambda a, x: a | x, lambda dtype: 0)
ALL = Monoid(lambda a, x: a & x, lambda dtype: 1)
MAXIMUM = Monoid(
    scalar.maximum, lambda dtype: -pymath.inf if is_float(dtype) else np.iinfo(dtype).min
)
MINIMUM = Monoid(
    scalar.minimum, lambda dtype: pymath.inf if is_float(dtype) else np.iinfo(dtype).max
)


def accumulator(dtype: np.dtype) -> np.dtype:
    """The element type that a reduction of `dtype` is computed in."""
    if is_narrow(dtype):
        return float32
    if dtype != bool_ and not is_float(dtype) and dtype.itemsize < 4:
        return uint32 if dtype.kind == "u" else int32
    return dtype


# --- the general reduction ------------------------------------------------------------------------


def reduce(
    operands: Sequence[ir.Value],
    rows: Sequence[ir.Value],
    axes: Sequence[int],
    dtype: np.dtype,
    monoid: Monoid,
    element: Callable[..., Scalar] = lambda x: x,
    parts: int | None = None,
) -> ir.Value:
    """Combine element(*operands, *rows) over `axes`, in the accumulator type of `dtype`.

    `operands` have one shape, `rows` that shape without `axes`. The element function gets Scalars
    in the accumulator type. Columns are reduced in so many `parts`, or as their extents have it.
    """
    shape = build.shape_of(operands[0])
    kept = [a for a in range(len(shape)) if a not in axes]
    result_shape = [shape[a] for a in kept]
    if not axes:
        return _accumulate(operands, rows, list(range(len(shape))), [], dtype, monoid, element)
    if not kept and len(axes) > 1 and not rows:  # a row at a time, then the rows
        partial = reduce(operands, rows, axes[-1:], dtype, monoid, element)
        return reduce([partial], [], axes[:-1], accumulator(dtype), monoid)
    groups = _groups(len(shape), axes)
    merged = [build.collapse(v, groups) for v in operands]
    flat_rows = [build.collapse(r, _row_groups(groups, axes)) for r in rows]
    reduced = [g for g, group in enumerate(groups) if group[0] in axes]
    kept_groups = [g for g in range(len(groups)) if g not in reduced]
    long = max(reduced, key=lambda g: build.static_shape(merged[0])[g])
    extents = build.static_shape(merged[0])
    if reduced == [0] and len(extents) == 2:
        parts = parts or forms.column_parts(*extents)
    else:
        parts = forms.row_parts(extents[long])
    if parts > 1:
        whole = _in_parts(merged, flat_rows, long, parts, reduced, dtype, monoid, element)
    else:
        whole = _accumulate(merged, flat_rows, kept_groups, reduced, dtype, monoid, element)
    return build.reshape(whole, result_shape)


def _groups(rank: int, axes: Sequence[int]) -> list[list[int]]:
    """Neighbouring axes that are all reduced or all kept."""
    groups: list[list[int]] = []
    for a in range(rank):
        if groups and (a in axes) == (groups[-1][0] in axes):
            groups[-1].append(a)
        else:
            groups.append([a])
    return groups


def _row_groups(groups: Sequence[Sequence[int]], axes: Sequence[int]) -> list[list[int]]:
    """The groups of kept axes as axes of a tensor that has only those."""
    at, result = 0, []
    for group in groups:
        if group[0] not in axes:
            result.append(list(range(at, at + len(group))))
            at += len(group)
    return result


def _in_parts(
    operands: Sequence[ir.Value],
    rows: Sequence[ir.Value],
    axis: int,
    parts: int,
    reduced: Sequence[int],
    dtype: np.dtype,
    monoid: Monoid,
    element: Callable[..., Scalar],
) -> ir.Value:
    """The reduction over `axis` (and the other reduced axes) of parts of equal length, then over
    the parts, and over what is left behind them.
    """
    shape = build.shape_of(operands[0])
    length = build.static_shape(operands[0])[axis] // parts
    kept = [a for a in range(len(shape)) if a not in reduced]

    def after(a: int) -> int:  # where an axis stands once `axis` is two
        return a + (a > axis)

    def piece(start: int, stop: int) -> list[ir.Value]:
        if (start, stop) == (0, shape[axis]):
            return list(operands)
        first = [start if a == axis else 0 for a in range(len(shape))]
        extents = [stop - start if a == axis else n for a, n in enumerate(shape)]
        return [extract(v, first, extents, [1] * len(shape)) for v in operands]

    split: list[list[Extent]] = [[parts, length] if a == axis else [n] for a, n in enumerate(shape)]
    several = [build.expand(v, split) for v in piece(0, parts * length)]
    partial = _accumulate(
        several,
        rows,
        sorted([axis, *map(after, kept)]),
        sorted([axis + 1, *(after(a) for a in reduced if a != axis)]),
        dtype,
        monoid,
        element,
        row_axes=list(map(after, kept)),
    )
    place = len([a for a in kept if a < axis])
    total = reduce([partial], [], [place], accumulator(dtype), monoid)
    if parts * length == shape[axis]:
        return total
    rest = _accumulate(
        piece(parts * length, shape[axis]), rows, kept, list(reduced), dtype, monoid, element
    )
    return map_rows([total, rest], accumulator(dtype), monoid.combine)


def _accumulate(
    operands: Sequence[ir.Value],
    rows: Sequence[ir.Value],
    kept: list[int],
    reduced: list[int],
    dtype: np.dtype,
    monoid: Monoid,
    element: Callable[..., Scalar],
    row_axes: list[int] | None = None,
) -> ir.Value:
    """One generic: loops over the kept axes, then the reduced ones. `row_axes` are the kept axes
    that `rows` have.
    """
    shape = build.shape_of(operands[0])
    order = kept + reduced
    loop_of = {axis: loop for loop, axis in enumerate(order)}
    wide = accumulator(dtype)
    out = build.fill(monoid.identity(wide), [shape[a] for a in kept], build.element_type(wide))

    def body(*elements: ir.Value) -> list[ir.Value]:
        scalars = [convert(Scalar(x, _dtype_of(x, dtype, wide)), wide) for x in elements[:-1]]
        return [monoid.combine(Scalar(elements[-1], wide), element(*scalars)).value]

    inputs = [(v, [loop_of[a] for a in range(len(shape))]) for v in operands]
    inputs += [(r, [loop_of[a] for a in (kept if row_axes is None else row_axes)]) for r in rows]
    loops = [PARALLEL] * len(kept) + [REDUCTION] * len(reduced)
    return build.generic(inputs, [(out, list(range(len(kept))))], loops, body)[0]


def _dtype_of(x: ir.Value, dtype: np.dtype, wide: np.dtype) -> np.dtype:
    """Operands come in the op's element type or, where computed on the way, in the
    accumulator's.
    """
    return wide if x.type == build.element_type(wide) else dtype


def rounded(x: ir.Value, wide: np.dtype, dtype: np.dtype) -> ir.Value:
    """A tensor of element type `wide`, such as a result in the accumulator type, as `dtype`."""
    if wide == dtype:
        return x
    return build.elementwise(
        [x], build.element_type(dtype), lambda v: convert(Scalar(v, wide), dtype).value
    )


def map_rows(
    values: Sequence[ir.Value], dtype: np.dtype, function: Callable[..., Scalar]
) -> ir.Value:
    """An elementwise function of tensors in `dtype`: what is costly is done here, a value a row,
    not in the matrix.
    """
    return build.elementwise(
        values, build.element_type(dtype), lambda *v: function(*(Scalar(x, dtype) for x in v)).value
    )


def count_of(extents: Sequence[Extent], dtype: np.dtype) -> Scalar:
    """The product of extents as a number of `dtype`, made where it is used."""
    total = build.product(extents)
    if isinstance(total, int):
        return Scalar(build.number(total, build.element_type(dtype)), dtype)
    return scalar.from_index(total, dtype)


# --- the ops --------------------------------------------------------------------------------------


def _plain(monoid: Monoid) -> Callable[..., ir.Value]:
    def lower(op: Any, x: ir.Value) -> ir.Value:
        dtype = op.operand_specs()[0].dtype
        total = reduce([x], [], op.axes, dtype, monoid, parts=forms.parts_of(op))
        return rounded(total, accumulator(dtype), dtype)

    return lower


lowers(ops.SumOp)(_plain(SUM))
lowers(ops.ProdOp)(_plain(PRODUCT))
lowers(ops.MaxOp)(_plain(MAXIMUM))
lowers(ops.MinOp)(_plain(MINIMUM))
lowers(ops.AnyOp)(_plain(ANY))
lowers(ops.AllOp)(_plain(ALL))


def mean_of(
    x: ir.Value, axes: Sequence[int], dtype: np.dtype, parts: int | None = None
) -> ir.Value:
    """The mean over axes, in the accumulator type."""
    wide = accumulator(dtype)
    extents = [build.extent(x, a) for a in axes]
    count = count_of(extents, wide)
    total = reduce([x], [], axes, dtype, SUM, parts=parts)
    return map_rows([total], wide, lambda t: t / count)


@lowers(ops.MeanOp)
def mean(op: Any, x: ir.Value) -> ir.Value:
    dtype = op.operand_specs()[0].dtype
    return rounded(mean_of(x, op.axes, dtype, forms.parts_of(op)), accumulator(dtype), dtype)


def squared_deviation(
    x: ir.Value, m: ir.Value, axes: Sequence[int], dtype: np.dtype, parts: int | None = None
) -> ir.Value:
    """sum (x - m)^2 over axes, in the accumulator type; the second of two passes."""
    if len(axes) > 1 and len(axes) == build.rank_of(x):  # one number in all, which meets every row
        if build.static_shape(x)[-1] > forms.LONG:
            x, axes = build.collapse(x, [list(axes)]), [0]
        else:
            x = build.collapse(x, [list(axes[:-1]), [axes[-1]]])
            partial = _accumulate(
                [x], [m], [0], [1], dtype, SUM, lambda v, c: (v - c) * (v - c), row_axes=[]
            )
            return reduce([partial], [], [0], accumulator(dtype), SUM)
    return reduce([x], [m], axes, dtype, SUM, lambda v, c: (v - c) * (v - c), parts)


@lowers(ops.VarOp)
def var(op: Any, x: ir.Value) -> ir.Value:
    dtype = op.operand_specs()[0].dtype
    wide = accumulator(dtype)
    parts = forms.parts_of(op)
    total = squared_deviation(x, mean_of(x, op.axes, dtype, parts), op.axes, dtype, parts)
    degrees = scalar.maximum(
        count_of([build.extent(x, a) for a in op.axes], wide) - op.correction, 0
    )
    return rounded(map_rows([total], wide, lambda s: s / degrees), wide, dtype)


@lowers(ops.NormOp)
def norm(op: Any, x: ir.Value) -> ir.Value:
    dtype = op.operand_specs()[0].dtype
    wide = accumulator(dtype)
    total = reduce([x], [], op.axes, dtype, SUM, lambda v: v * v, forms.parts_of(op))
    return rounded(map_rows([total], wide, scalar.sqrt), wide, dtype)


@lowers(ops.LogsumexpOp)
def logsumexp(op: Any, x: ir.Value) -> ir.Value:
    """The maximum, the sum of exponentials of what is below it, then one logarithm a row"""
    dtype = op.operand_specs()[0].dtype
    wide = accumulator(dtype)
    top, total = exponential_sum(x, op.axes, dtype, forms.parts_of(op))
    result = map_rows(
        [top, total],
        wide,
        lambda t, s: select(scalar.absolute(t) == pymath.inf, t, t + scalar.log(s)),
    )
    return rounded(result, wide, dtype)


def exponential_sum(
    x: ir.Value, axes: Sequence[int], dtype: np.dtype, parts: int | None = None
) -> tuple[ir.Value, ir.Value]:
    """The maximum over axes and the sum of e^(x - maximum), both in the accumulator type."""
    if len(axes) > 1 and len(axes) == build.rank_of(x):
        x, axes = build.collapse(x, [list(axes)]), [0]
    top = reduce([x], [], axes, dtype, MAXIMUM, parts=parts)
    total = reduce([x], [top], axes, dtype, SUM, lambda v, t: scalar.exp(v - finite(t)), parts)
    return top, total


def finite(top: Scalar) -> Scalar:
    """The maximum to subtract: 0 instead of -inf, whose difference with itself is NaN."""
    return select(top == -pymath.inf, 0, top)


@lowers(ops.ArgmaxOp)
def argmax(op: Any, x: ir.Value) -> ir.Value:
    return _arg_extreme(op, x, "gt", MAXIMUM)


@lowers(ops.ArgminOp)
def argmin(op: Any, x: ir.Value) -> ir.Value:
    return _arg_extreme(op, x, "lt", MINIMUM)


def _arg_extreme(op: Any, x: ir.Value, direction: str, monoid: Monoid) -> ir.Value:
    """Value and place together; among equals, and among NaNs, the smaller place, in whatever order
    they are met.
    """
    dtype = op.operand_specs()[0].dtype
    shape = build.shape_of(x)
    kept = [a for a in range(len(shape)) if a != op.axis]
    loop_of = {axis: loop for loop, axis in enumerate([*kept, op.axis])}
    result_shape = [shape[a] for a in kept]
    i32 = build.element_type(int32)
    identity = 0 if dtype == bool_ else monoid.identity(dtype)
    if dtype == bool_ and direction == "lt":
        identity = 1
    best = build.fill(identity, result_shape, build.element_type(dtype))
    place = build.fill(np.iinfo(np.int32).max, result_shape, i32)

    def body(element: ir.Value, top: ir.Value, at: ir.Value) -> list[ir.Value]:
        v, t, old = Scalar(element, dtype), Scalar(top, dtype), Scalar(at, int32)
        new = scalar.from_index(build.loop_index(len(kept)), int32)
        better, equal = v.compare(direction, t), v == t
        if is_float(dtype):
            nan, had_nan = scalar.is_nan(v), scalar.is_nan(t)
            better, equal = (better & ~had_nan) | (nan & ~had_nan), equal | (nan & had_nan)
        better = better | (equal & (new < old))
        return [select(better, v, t).value, select(better, new, old).value]

    outputs = [(best, list(range(len(kept)))), (place, list(range(len(kept))))]
    inputs = [(x, [loop_of[a] for a in range(len(shape))])]
    return build.generic(inputs, outputs, [PARALLEL] * len(kept) + [REDUCTION], body)[1]
