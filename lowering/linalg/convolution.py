# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Convolution and its gradients, channels last inside, in the forms that `forms.py` lists and
chooses from.

- forward: pad, then the named convolution, or one product with columns of what the taps meet;
- input gradient: zeros between the elements for strides, pad, then a convolution with the kernel
  turned round; or one matrix product for each phase of the stride (so many images at once that
  their columns stay small), put together by selects;
- weight gradient: one matrix product for each tap, or one for all, whose left side is gathered by a
  map or joined from slices.

Groups have no fast form in IREE and run as one generic.
"""

import itertools
import math as pymath
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...dialect.convolution import ConvInputGradientOp, ConvOp, ConvWeightGradientOp
from ...dialect.mlir import arith, ir, tensor
from ..forms import (
    DIRECT,
    correlation_form,
    form_of,
    has_unit_axis,
    image_nest,
    weight_gradient_nest,
)
from . import build
from .build import PARALLEL, REDUCTION, dim
from .contraction import multiply
from .direct import base_of_views, no_sums, sums_of_products, view, views
from .reduction import accumulator, rounded
from .registry import lowers
from .scalar import Scalar, convert
from .shape import extract, joined, padded, permuted

NAMED = {
    1: "linalg.conv_1d_nwc_wcf",
    2: "linalg.conv_2d_nhwc_hwcf",
    3: "linalg.conv_3d_ndhwc_dhwcf",
}
AT_ONCE = 1 << 21
"""Bytes of columns of images that are multiplied in one product."""


# --- layout ---------------------------------------------------------------------------------------


def images_last(x: ir.Value, channels_last: bool) -> ir.Value:
    rank = build.rank_of(x)
    return x if channels_last else permuted(x, [0, *range(2, rank), 1])


def images_back(x: ir.Value, channels_last: bool) -> ir.Value:
    rank = build.rank_of(x)
    return x if channels_last else permuted(x, [0, rank - 1, *range(1, rank - 1)])


def kernel_last(w: ir.Value, channels_last: bool) -> ir.Value:
    """A kernel (*window, C, O), not fused into what reads it where its axes were moved: IREE 3.13
    would have the convolution read it in the order that it had, a hundred times slower.
    """
    w = w if channels_last else permuted(w, [*range(2, build.rank_of(w)), 1, 0])
    is_moved = build.comes_from(w, lambda op: op.name == "linalg.transpose")
    return build.fusion_barrier(w) if is_moved else w


def kernel_back(w: ir.Value, channels_last: bool) -> ir.Value:
    rank = build.rank_of(w)
    return w if channels_last else permuted(w, [rank - 1, rank - 2, *range(rank - 2)])


def pad_spatial(x: ir.Value, low: Sequence[int], high: Sequence[int]) -> ir.Value:
    """Zeros around the spatial axes; negative widths cut off."""
    n, *spatial, c = build.shape_of(x)
    start = [0, *(max(-lo, 0) for lo in low), 0]
    kept = [
        n,
        *(m - max(-lo, 0) - max(-hi, 0) for m, lo, hi in zip(spatial, low, high, strict=True)),
        c,
    ]  # type: ignore[operator]
    if min((*low, *high), default=0) < 0:
        x = extract(x, start, kept, [1] * len(kept))
    zero = build.number(0, build.element_of(x))
    return padded(
        x, [0, *(max(lo, 0) for lo in low), 0], [0, *(max(hi, 0) for hi in high), 0], zero
    )


def only_windows(
    x: ir.Value, window: Sequence[int], strides: Sequence[int], dilation: Sequence[int]
) -> ir.Value:
    """Padded images without what lies behind the only window of an axis.

    IREE 3.13 drops the loop over a single window, then takes the extent of the rest for that of the
    window ("inferred input/output operand has shape's dimension").
    """
    n, *spatial, c = build.shape_of(x)
    kept = [
        reach if reach < m < reach + s else m
        for m, s, reach in zip(
            spatial,
            strides,
            (d * (k - 1) + 1 for k, d in zip(window, dilation, strict=True)),
            strict=True,
        )
    ]  # type: ignore[operator]
    return (
        x
        if kept == spatial
        else extract(x, [0] * (len(kept) + 2), [n, *kept, c], [1] * (len(kept) + 2))
    )


# --- forward --------------------------------------------------------------------------------------


@lowers(ConvOp)
def conv(op: Any, x: ir.Value, w: ir.Value) -> ir.Value:
    last = op.channels_last
    image = pad_spatial(images_last(x, last), op.low, op.high)
    dtype, form = op.x.dtype, form_of(op)
    y = correlate(image, kernel_last(w, last), op.strides, op.dilation, op.groups, dtype, form)
    return images_back(_result(op, y), last)


def _result(op: Any, y: ir.Value) -> ir.Value:
    """Sums, which are as wide as the accumulators, in the element type of the op's result."""
    return rounded(y, accumulator(op.operand_specs()[0].dtype), op.result_specs()[0].dtype)


def correlate(
    x: ir.Value,
    w: ir.Value,
    strides: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    dtype: np.dtype,
    form: str,
) -> ir.Value:
    """Convolution of padded images (N, *spatial, C) with a kernel (*window, C / groups, O), of
    element type `dtype`; all results here are of its accumulator's.
    """
    wide = accumulator(dtype)
    *window, _, channels = build.static_shape(w)
    x = only_windows(x, window, strides, dilation)
    n, *spatial, _ = build.shape_of(x)
    extents = [
        (m - d * (k - 1) - 1) // s + 1
        for m, k, s, d in zip(spatial, window, strides, dilation, strict=True)
    ]  # type: ignore[operator]
    if form == "grouped":
        return _grouped(x, w, extents, strides, dilation, groups, dtype, wide)
    if form == DIRECT:
        return _added_up(x, w, [0] * len(window), extents, strides, dilation)  # type: ignore[arg-type]
    if form == "columns":
        met = list(_met_by_taps(x, window, extents, strides, dilation))
        depth = pymath.prod(build.static_shape(w)[:-1])
        return _columns_times(met, build.reshape(w, [depth, channels]), dtype)
    out = no_sums([n, *extents, channels], build.element_type(wide))
    attributes = {"strides": _vector(strides), "dilations": _vector(dilation)}
    return build.named(NAMED[len(window)], [x, w], out, **attributes)


def _met_by_taps(
    x: ir.Value,
    window: Sequence[int],
    extents: Sequence[build.Extent],
    strides: Sequence[int],
    dilation: Sequence[int],
) -> Iterator[ir.Value]:
    """For each tap the elements of padded images that it meets, (N, *extents, C). One after the
    other: IREE keeps the order, and what is copied right before it is read is still in the cache.
    """
    n, *_, c = build.shape_of(x)
    for tap in itertools.product(*map(range, window)):
        start = [k * d for k, d in zip(tap, dilation, strict=True)]
        yield extract(x, [0, *start, 0], [n, *extents, c], [1, *strides, 1])


def _added_up(
    x: ir.Value,
    w: ir.Value,
    start: Sequence[int],
    extents: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int],
) -> ir.Value:
    """Correlation, from `start` on, as a sum over taps of what they meet, read where it lies, times
    their matrices [C, O].
    """
    *window, channels, o = build.static_shape(w)
    matrices = build.reshape(w, [pymath.prod(window), channels, o])
    x, total = base_of_views(x), None
    for number, tap in enumerate(itertools.product(*map(range, window))):
        at = [a + k * d for a, k, d in zip(start, tap, dilation, strict=True)]
        images, places = view(x, at, extents, strides)
        matrix = extract(matrices, [number, 0, 0], [1, channels, o], [1, 1, 1])
        matrix = build.reshape(matrix, [channels, o])
        nest = image_nest((*places, channels), o)
        total = sums_of_products(images, matrix, nest, total, are_views=True)
    assert total is not None
    return build.reshape(total, [build.static_shape(x)[0], *extents, o])


def _images_times(x: ir.Value, kernel: ir.Value, dtype: np.dtype) -> ir.Value:
    """Images (N, *spatial, C) times a matrix [C, O] at every place."""
    *places, c = build.shape_of(x)
    wide = accumulator(dtype)
    rows = build.reshape(x, [build.product(places), c])
    product = multiply(rows, kernel, True, False, dtype, wide)
    return build.reshape(product, [*places, build.static_shape(kernel)[-1]])


def _vector(values: Sequence[int]) -> ir.Attribute:
    return ir.DenseElementsAttr.get(np.array(values, np.int64))


def _grouped(
    x: ir.Value,
    w: ir.Value,
    extents: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    dtype: np.dtype,
    wide: np.dtype,
) -> ir.Value:
    """Loops (n, *p, group, o, *k, c) over x[n, p s + k d, group, c] w[k, c, group, o]."""
    n, *spatial, _ = build.shape_of(x)
    *window, per_group, channels = build.static_shape(w)
    x = build.reshape(x, [n, *spatial, groups, per_group])
    w = build.reshape(w, [*window, per_group, groups, channels // groups])
    axes = len(window)
    batch, places, group, o = 0, range(1, axes + 1), axes + 1, axes + 2
    steps, depth = range(axes + 3, 2 * axes + 3), 2 * axes + 3
    moving = [
        dim(p) * s + dim(k) * d for p, k, s, d in zip(places, steps, strides, dilation, strict=True)
    ]
    out = build.fill(0, [n, *extents, groups, channels // groups], build.element_type(wide))

    def body(a: ir.Value, b: ir.Value, total: ir.Value) -> list[ir.Value]:
        left, right = convert(Scalar(a, dtype), wide), convert(Scalar(b, dtype), wide)
        return [(Scalar(total, wide) + left * right).value]

    inputs = [(x, [batch, *moving, group, depth]), (w, [*steps, depth, group, o])]
    loops = [PARALLEL] * (axes + 3) + [REDUCTION] * (axes + 1)
    y = build.generic(inputs, [(out, [batch, *places, group, o])], loops, body)[0]
    return build.reshape(y, [n, *extents, channels])


# --- gradient by the input ------------------------------------------------------------------------


@lowers(ConvInputGradientOp)
def conv_input_gradient(op: Any, g: ir.Value, w: ir.Value) -> ir.Value:
    last = op.channels_last
    g, w = images_last(g, last), kernel_last(w, last)
    window = build.static_shape(w)[:-2]
    dtype, form = op.g.dtype, form_of(op)
    if form != "spread" and set(op.strides) != {1}:
        return images_back(_result(op, _by_phases(g, w, op, dtype)), last)
    g = _spread(g, op.strides)
    low, high = [], []
    for n, m, k, d, lo in zip(
        op.extents, build.static_shape(g)[1:-1], window, op.dilation, op.low, strict=True
    ):
        low.append(d * (k - 1) - lo)
        high.append(n - m - low[-1] + d * (k - 1))
    image, turned = pad_spatial(g, low, high), _turned(w, op.groups, list(map(range, window)))
    if op.groups > 1:
        form = "grouped"
    elif form != DIRECT:
        form = correlation_form(window, dtype)
    dx = correlate(image, turned, [1] * len(window), op.dilation, op.groups, dtype, form)
    return images_back(_result(op, dx), last)


def _spread(g: ir.Value, strides: Sequence[int]) -> ir.Value:
    """stride - 1 zeros after each element of the spatial axes."""
    if set(strides) == {1}:
        return g
    n, *spatial, c = build.shape_of(g)
    split = [n, *(e for m in spatial for e in (m, 1)), c]
    after = [0, *(e for s in strides for e in (0, s - 1)), 0]
    zero = build.number(0, build.element_of(g))
    spread = padded(build.reshape(g, split), [0] * len(split), after, zero)
    return build.reshape(spread, [n, *(m * s for m, s in zip(spatial, strides, strict=True)), c])  # type: ignore[operator]


def _turned(w: ir.Value, groups: int, taps: Sequence[range]) -> ir.Value:
    """The kernel of the input gradient: of the taps given by axis (*taps, O / groups, C), turned
    round, input and output channels exchanged.
    """
    *_, per_group, channels = build.static_shape(w)
    outputs = channels // groups
    rank = len(taps)
    out = build.empty([*map(len, taps), outputs, groups, per_group], build.element_of(w))
    w = build.read_at(w)

    def body(_: ir.Value) -> list[ir.Value]:
        at = [_place(t[::-1], build.loop_index(i)) for i, t in enumerate(taps)]
        o, group, c = (build.loop_index(rank + i) for i in range(3))
        channel = arith.addi(arith.muli(group, build.index(outputs)), o)
        return [tensor.extract(w, [*at, c, channel])]

    turned = build.generic([], [(out, list(range(rank + 3)))], [PARALLEL] * (rank + 3), body)[0]
    return build.reshape(turned, [*map(len, taps), outputs, groups * per_group])


def _place(values: range, i: ir.Value) -> ir.Value:
    """`values[i]`."""
    return arith.addi(build.index(values.start), arith.muli(build.index(values.step), i))


def _by_phases(g: ir.Value, w: ir.Value, op: Any, dtype: np.dtype) -> ir.Value:
    """dx at places q = s u + o, for each remainder o, depends on taps r, r + s, ... only, where
    r = (o + low) mod s: dx[s u + o] = sum over j of g[u + first - j] w[r + s j], with
    first = (o + low) div s.

    Each is a convolution of g with those taps of the kernel turned round; the results are
    interleaved.
    """
    window, strides = build.static_shape(w)[:-2], op.strides
    n, *spatial, o = build.shape_of(g)
    rank, c_in = len(window), build.static_shape(w)[-2]
    count = [-(-m // s) for m, s in zip(op.extents, strides, strict=True)]
    furthest = [(k - 1) // s for k, s in zip(window, strides, strict=True)]
    last = [(s - 1 + lo) // s + c for s, lo, c in zip(strides, op.low, count, strict=True)]
    before = [max(0, j - lo // s) for j, lo, s in zip(furthest, op.low, strides, strict=True)]
    after = [max(0, e - m) for e, m in zip(last, spatial, strict=True)]  # type: ignore[operator]
    padded_g = pad_spatial(g, before, after)
    one = [1] * (rank + 2)
    form = "columns" if form_of(op) != DIRECT else "named"
    phases: list[ir.Value | None] = []
    for remainder in itertools.product(*map(range, strides)):
        shifted = [r + lo for r, lo in zip(remainder, op.low, strict=True)]
        taps = [range(x % s, k, s) for x, s, k in zip(shifted, strides, window, strict=True)]
        if not all(taps):
            phases.append(None)
            continue
        start = [
            x // s - t[-1] // s + b
            for x, s, t, b in zip(shifted, strides, taps, before, strict=True)
        ]
        kept = [c + len(t) - 1 for c, t in zip(count, taps, strict=True)]
        kernel, ones = _turned(w, 1, taps), [1] * rank
        if form == "named" and has_unit_axis([len(t) for t in taps]):
            phases.append(_added_up(padded_g, kernel, start, count, ones, ones))  # type: ignore[arg-type]
        else:
            met = extract(padded_g, [0, *start, 0], [n, *kept, o], one)
            phases.append(correlate(met, kernel, ones, ones, 1, dtype, form))
    element = build.element_type(accumulator(dtype))
    return _interleaved(phases, [n, *count, c_in], element, op)


def _columns_times(columns: Sequence[ir.Value], rows: ir.Value, dtype: np.dtype) -> ir.Value:
    """The images joined along channels, times a matrix [channels, O]; so many images at once that
    what is joined, and its copy in tiles, stay small.
    """
    element = build.element_of(columns[0])
    n, *places, _ = build.shape_of(columns[0])
    depth, channels = build.static_shape(rows)
    at_once = _images_at_once(n, [*places, depth], dtype) if len(columns) > 1 else n
    products = []
    for first in range(0, n, at_once) if at_once != n else (0,):
        if at_once == n:
            part = columns
        else:
            rank = len(places) + 1
            part = [
                extract(
                    c, [first] + [0] * rank, [at_once, *build.shape_of(c)[1:]], [1] * (rank + 1)
                )
                for c in columns
            ]
        images = part[0]
        if len(part) > 1:
            side_by_side = build.tensor_type([at_once, *places, depth], element)
            images = joined(part, len(places) + 1, side_by_side)
        products.append(_images_times(images, rows, dtype))
    if len(products) == 1:
        return products[0]
    sums = build.element_of(products[0])
    return joined(products, 0, build.tensor_type([n, *places, channels], sums))


def _images_at_once(count: build.Extent, shape: Sequence[build.Extent], dtype: np.dtype) -> Any:
    """The most images of a shape that divide `count` and take at most AT_ONCE bytes; all where
    extents are unknown.
    """
    size = build.product([count, *shape])
    if not isinstance(count, int) or not isinstance(size, int):
        return count
    size *= dtype.itemsize
    pieces = [p for p in range(1, count + 1) if count % p == 0 and size <= p * AT_ONCE]
    return count // pieces[0] if pieces else 1


def _interleaved(
    phases: Sequence[ir.Value | None], shape: Sequence[build.Extent], element: ir.Type, op: Any
) -> ir.Value:
    """The phases' elements in turn along each spatial axis, cut to the input's extents; None is a
    phase of zeros.
    """
    n, *count, c_in = shape
    strides, rank = op.strides, len(count)
    loops = list(range(2 * rank + 2))
    times, turns = [1 + 2 * i for i in range(rank)], [2 + 2 * i for i in range(rank)]
    split = [n, *(e for c, s in zip(count, strides, strict=True) for e in (c, s)), c_in]
    there = [
        (p, v)
        for p, v in zip(itertools.product(*map(range, strides)), phases, strict=True)
        if v is not None
    ]

    def body(*elements: ir.Value) -> list[ir.Value]:
        result = build.number(0, element)
        if len(there) == len(phases):
            result = elements[0]
        for (phase, _), value in zip(there, elements, strict=False):
            here = None
            for turn, r in zip(turns, phase, strict=True):
                equal = arith.cmpi(arith.CmpIPredicate.eq, build.loop_index(turn), build.index(r))
                here = equal if here is None else arith.andi(here, equal)
            result = arith.select(here, value, result)
        return [result]

    inputs = [(v, [0, *times, 2 * rank + 1]) for _, v in there]
    out = build.empty(split, element)
    whole = build.generic(inputs, [(out, loops)], [PARALLEL] * len(loops), body)[0]
    merged = build.reshape(whole, [n, *(c * s for c, s in zip(count, strides, strict=True)), c_in])
    if tuple(build.static_shape(merged)[1:-1]) == tuple(op.extents):
        return merged
    return extract(merged, [0] * (rank + 2), [n, *op.extents, c_in], [1] * (rank + 2))


# --- gradient by the kernel -----------------------------------------------------------------------


@lowers(ConvWeightGradientOp)
def conv_weight_gradient(op: Any, x: ir.Value, g: ir.Value) -> ir.Value:
    last, form = op.channels_last, form_of(op)
    x, g = images_last(x, last), images_last(g, last)
    if form == DIRECT and (met := _places_met(op, x, g)) is not None:
        return kernel_back(_result(op, _direct(x, g, met, op)), last)
    x = _padded_anew(x, build.shape_of(g)[1:-1], op.low, op.high)
    x = only_windows(x, op.window, op.strides, op.dilation)
    by_form = {"gathered": _gathered, "columns": _by_columns}.get(form, _tap_by_tap)
    return kernel_back(_result(op, by_form(x, g, op, op.x.dtype)), last)


def _padded_anew(
    x: ir.Value, places: Sequence[build.Extent], low: Sequence[int], high: Sequence[int]
) -> ir.Value:
    """Padded images that are not those of the convolution, with one more row of zeros: were they
    equal, IREE would make them once, and keep them from the forward to here. The row is added along
    an axis of several windows (`places`), as nothing may lie behind a single one.
    """
    several = [a for a, n in enumerate(places) if isinstance(n, int) and n > 1 and high[a] >= 0]
    if max((*low, *high), default=0) <= 0 or not several:
        return pad_spatial(x, low, high)
    return pad_spatial(x, low, [h + (a == several[0]) for a, h in enumerate(high)])


def _tap_by_tap(x: ir.Value, g: ir.Value, op: Any, dtype: np.dtype) -> ir.Value:
    """dw[k] = (elements that tap k meets, a row an output place)^T g, for each group."""
    n, *extents, o = build.shape_of(g)
    channels, groups = build.static_shape(x)[-1], op.groups
    wide = accumulator(dtype)
    rows = build.product([n, *extents])
    g_matrix = _group_matrix(g, rows, groups, o)
    products = []
    for met in _met_by_taps(x, op.window, extents, op.strides, op.dilation):
        product = multiply(
            _group_matrix(met, rows, groups, channels), g_matrix, False, False, dtype, wide
        )
        if groups > 1:  # [groups, C / groups, O / groups] to [C / groups, O]
            product = build.reshape(permuted(product, [1, 0, 2]), [channels // groups, o])
        products.append(build.reshape(product, [1, channels // groups, o]))
    whole = joined(
        products,
        0,
        build.tensor_type([len(products), channels // groups, o], build.element_type(wide)),
    )
    return build.reshape(whole, [*op.window, channels // groups, o])


Met = tuple[list[int], list[int], list[int]]
"""Where in the images, and where in the result's gradient, the places of a tap start, and how many
there are, by axis.
"""


def _places_met(op: Any, x: ir.Value, g: ir.Value) -> list[Met] | None:
    """For each tap the output places at which it meets an element of the images, none of the
    padding; None where that is a single place, whose product is no sum.
    """
    found = []
    batch, *sizes, _ = build.static_shape(x)
    outputs = build.static_shape(g)[1:-1]
    axes = list(zip(sizes, outputs, op.strides, op.dilation, op.low, strict=True))
    for tap in itertools.product(*map(range, op.window)):
        ranges = []
        for k, (size, output, s, d, low) in zip(tap, axes, strict=True):
            shift = k * d - low  # place p meets p s + shift
            first, last = max(0, -(shift // s)), min(output, (size - 1 - shift) // s + 1)
            ranges.append((first * s + shift, first, max(0, last - first)))
        met = tuple(map(list, zip(*ranges, strict=True)))
        if batch * pymath.prod(met[2]) == 1:
            return None
        found.append(met)
    return found


def _direct(x: ir.Value, g: ir.Value, met: Sequence[Met], op: Any) -> ir.Value:
    """Tap by tap, each a sum over output places, which reads the images in place; the padding has
    no part in it.
    """
    channels, o = build.static_shape(x)[-1], build.static_shape(g)[-1]
    element, ones = build.element_of(x), [1] * len(op.window)
    x, g, sums = base_of_views(x), base_of_views(g), []
    for at, output, extents in met:
        if 0 in extents:
            sums.append(build.fill(0, [1, channels, o], element))
            continue
        (images, grads), places = views([(x, at, op.strides), (g, output, ones)], extents)
        nest = weight_gradient_nest((*places, channels), (*places, o))
        total = sums_of_products(images, grads, nest, are_views=True)
        sums.append(build.reshape(total, [1, channels, o]))
    kind = build.tensor_type([len(sums), channels, o], element)
    return build.reshape(joined(sums, 0, kind), [*op.window, channels, o])


def _group_matrix(x: ir.Value, rows: build.Extent, groups: int, channels: Any) -> ir.Value:
    """[rows, channels], or [groups, rows, channels / groups]."""
    if groups == 1:
        return build.reshape(x, [rows, channels])
    return permuted(build.reshape(x, [rows, groups, channels // groups]), [1, 0, 2])


def _by_columns(x: ir.Value, g: ir.Value, op: Any, dtype: np.dtype) -> ir.Value:
    """One product (elements that the taps meet side by side, a row an output place)^T g."""
    n, *extents, o = build.shape_of(g)
    wide = accumulator(dtype)
    met = list(_met_by_taps(x, op.window, extents, op.strides, op.dilation))
    channels = build.static_shape(x)[-1]
    depth, rows = len(met) * channels, build.product([n, *extents])
    side_by_side = build.tensor_type([n, *extents, depth], build.element_of(x))
    left = build.reshape(joined(met, len(extents) + 1, side_by_side), [rows, depth])
    product = multiply(left, build.reshape(g, [rows, o]), False, False, dtype, wide)
    return build.reshape(product, [*op.window, channels, o])


def _gathered(x: ir.Value, g: ir.Value, op: Any, dtype: np.dtype) -> ir.Value:
    """One product [window * C, N * places] g, its left side read through a map from the padded
    images.
    """
    n, *extents, o = build.shape_of(g)
    channels, rank = build.static_shape(x)[-1], len(op.window)
    wide = accumulator(dtype)
    taps, c, batch = range(rank), rank, rank + 1
    places = range(rank + 2, 2 * rank + 2)
    moving = [
        dim(p) * s + dim(k) * d
        for p, k, s, d in zip(places, taps, op.strides, op.dilation, strict=True)
    ]
    # Read by no one: it fixes the extents of the tap loops.
    sizes = build.empty(list(op.window), build.element_of(x))
    out = build.empty([*op.window, channels, n, *extents], build.element_of(x))
    inputs = [(x, [batch, *moving, c]), (sizes, list(taps))]
    loops = list(range(2 * rank + 2))
    rows = build.generic(inputs, [(out, loops)], [PARALLEL] * len(loops), lambda v, *_: [v])[0]
    depth = build.product([n, *extents])
    left = build.reshape(rows, [pymath.prod(op.window) * channels, depth])
    product = multiply(left, build.reshape(g, [depth, o]), True, False, dtype, wide)
    return build.reshape(product, [*op.window, channels, o])
