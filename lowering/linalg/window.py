# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Windows over images, channels last inside.

A value for each window is folded from strided slices of the padded image, one a place of the
window, in one elementwise generic; windows of many places are a reduction over them. A value for
each element gathers from the windows that meet it: the element at place t of the padded image is in
the windows u, u - 1, ..., where u = t div stride, at their places r, r + stride, ..., where r = t
mod stride. So the image is split into (u, r), and what belongs to windows comes in slices shifted
by 0, 1, ...: no element is written twice, and nothing waits for anything.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...dialect.convolution import image_parts
from ...dialect.mlir import arith, ir
from ...dialect.patches import ExtractPatchesOp, FoldPatchesOp
from ...dialect.pooling import (
    CountTiesOp,
    MaxPoolOp,
    MinPoolOp,
    PoolTiesOp,
    SumPoolOp,
    UnpoolTiesOp,
)
from ...dialect.types import bool_, float32
from ...dialect.window import geometry
from . import build
from .build import PARALLEL, REDUCTION, dim
from .convolution import images_back, images_last, only_windows
from .reduction import MAXIMUM, MINIMUM, SUM, Monoid, accumulator, rounded
from .registry import lowers
from .scalar import Scalar, convert, select
from .shape import extract, padded, permuted, spread

MOST_SLICES, MOST_COMPARED = 16, 64
"""Plain reductions of windows of more places are in loops over the places, which IREE knows as
pools; those that compare, and what is gathered, only beyond the second number: IREE vectorizes
their slices, not their loops (7 x 7 places: 7 and 71 ms).
"""

Step = Callable[..., Scalar]
"""(accumulated, *elements) -> accumulated."""


def pad_image(
    x: ir.Value, low: Sequence[int], high: Sequence[int], base: Sequence[int], value: float
) -> ir.Value:
    """Images spread by `base`, with `value` around; negative widths cut off."""
    number = build.number(value, build.element_of(x))
    n, *spatial, c = build.shape_of(x)
    if 0 in spatial:  # nothing but padding
        extents = [lo + hi for lo, hi in zip(low, high, strict=True)]
        known = [m and (m - 1) * b + 1 for m, b in zip(spatial, base, strict=True)]  # type: ignore[operator]
        whole = [m + e for m, e in zip(known, extents, strict=True)]
        return build.fill(number, [n, *whole, c], build.element_of(x))
    x = spread(x, [0, *(b - 1 for b in base), 0], number)
    start = [max(-lo, 0) for lo in low]
    kept = [
        m - b - max(-hi, 0)
        for m, b, hi in zip(build.static_shape(x)[1:-1], start, high, strict=True)
    ]
    if min((*low, *high)) < 0:
        x = extract(x, [0, *start, 0], [n, *kept, c], [1] * (len(start) + 2))
    sides = [[0, *(max(w, 0) for w in widths), 0] for widths in (low, high)]
    return padded(x, sides[0], sides[1], number)


# --- a value for each window ----------------------------------------------------------------------


def fold_windows(
    images: Sequence[ir.Value],
    values: Sequence[ir.Value],
    op: Any,
    dtypes: Sequence[np.dtype],
    out: np.dtype,
    identity: float,
    step: Step,
) -> ir.Value:
    """Fold `step` over the places of each window, from `identity`, in `out`: its arguments are what
    is accumulated, the images' elements there, and the window's `values`.

    `images` are padded; `dtypes` are the types that the elements are computed in.
    """
    n, c = _ends(images[0])
    window, strides, dilation, axes = op.window, op.strides, op.dilation, len(op.window)
    extents = _extents_of(build.static_shape(images[0])[1:-1], op)
    element = build.element_type(out)
    outer = list(range(axes + 2))
    kinds = [dtypes[i] for i in range(len(images))], list(dtypes[len(images) :])

    def scalars(elements: Sequence[ir.Value], types: Sequence[np.dtype]) -> list[Scalar]:
        return [_computed(v, t) for v, t in zip(elements, types, strict=True)]

    if math.prod(window) <= (MOST_COMPARED if values else MOST_SLICES):
        met = []
        for place in itertools.product(*map(range, window)):
            start = [0, *(k * d for k, d in zip(place, dilation, strict=True)), 0]
            met += [extract(x, start, [n, *extents, c], [1, *strides, 1]) for x in images]
        count = len(images)

        def body(*elements: ir.Value) -> list[ir.Value]:
            total = Scalar(build.number(identity, element), out)
            own = scalars(elements[len(met) : -1], kinds[1])
            for at in range(0, len(met), count):
                total = step(total, *scalars(elements[at : at + count], kinds[0]), *own)
            return [total.value]

        inputs = [(v, outer) for v in [*met, *values]]
        start = build.empty([n, *extents, c], element)
        return build.generic(inputs, [(start, outer)], [PARALLEL] * len(outer), body)[0]

    images = [only_windows(x, window, strides, dilation) for x in images]
    places = range(axes + 2, 2 * axes + 2)
    moving = [
        dim(p) * s + dim(k) * d
        for p, k, s, d in zip(outer[1:-1], places, strides, dilation, strict=True)
    ]
    # Read by no one: it fixes the extents of the loops over places.
    places_of = build.empty(list(window), element)

    def reduced(*elements: ir.Value) -> list[ir.Value]:
        found = scalars(elements[: len(images)], kinds[0])
        own = scalars(elements[len(images) : -2], kinds[1])
        return [step(Scalar(elements[-1], out), *found, *own).value]

    inputs = [(x, [0, *moving, axes + 1]) for x in images] + [(v, outer) for v in values]
    inputs.append((places_of, list(places)))
    loops = [PARALLEL] * (axes + 2) + [REDUCTION] * axes
    start = build.fill(identity, [n, *extents, c], element)
    return build.generic(inputs, [(start, outer)], loops, reduced)[0]


def _computed(value: ir.Value, dtype: np.dtype) -> Scalar:
    """An element in the type that it is computed in."""
    return convert(Scalar(value, dtype), accumulator(dtype))


@lowers(SumPoolOp)
def sum_pool(op: Any, x: ir.Value) -> ir.Value:
    """A pool of spread elements with stride 1, as gradients are, gathers only what is there"""
    if set(op.strides) == {1} and set(op.base_dilation) != {1}:
        return _gather_sums(op, x)
    return _pool(op, x, SUM)


@lowers(MaxPoolOp)
def max_pool(op: Any, x: ir.Value) -> ir.Value:
    return _pool(op, x, MAXIMUM)


@lowers(MinPoolOp)
def min_pool(op: Any, x: ir.Value) -> ir.Value:
    return _pool(op, x, MINIMUM)


def _pool(op: Any, x: ir.Value, monoid: Monoid) -> ir.Value:
    last, dtype = op.channels_last, op.operand_specs()[0].dtype
    wide = accumulator(dtype)
    padding = 0 if monoid is SUM else monoid.identity(dtype)
    image = pad_image(images_last(x, last), op.low, op.high, op.base_dilation, padding)
    y = fold_windows([image], [], op, [dtype], wide, monoid.identity(wide), monoid.combine)
    return images_back(rounded(y, wide, dtype), last)


@lowers(CountTiesOp)
def count_ties(op: Any, x: ir.Value, y: ir.Value) -> ir.Value:
    return _fold_ties(op, x, y, None, float32)


@lowers(PoolTiesOp)
def pool_ties(op: Any, x: ir.Value, y: ir.Value, c: ir.Value) -> ir.Value:
    return _fold_ties(op, x, y, c, op.result_specs()[0].dtype)


def _fold_ties(op: Any, x: ir.Value, y: ir.Value, c: ir.Value | None, dtype: np.dtype) -> ir.Value:
    """The padding holds NaN, or what no integer window value is compared with: nothing is equal to
    it
    """
    last, kind = op.channels_last, op.operand_specs()[0].dtype
    where = op.low, op.high, op.base_dilation
    images, kinds = [pad_image(images_last(x, last), *where, math.nan)], [kind]
    if c is not None:
        images.append(pad_image(images_last(c, last), *where, 0))
        kinds.append(dtype)
    wide = accumulator(dtype)

    def step(total: Scalar, element: Scalar, *rest: Scalar) -> Scalar:
        summand = rest[0] if c is not None else total.constant(1)
        return total + select(element == rest[-1], summand, 0)

    z = fold_windows(images, [images_last(y, last)], op, [*kinds, kind], wide, 0, step)
    return images_back(rounded(z, wide, dtype), last)


# --- a value for each element ---------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Axis:
    """An axis of n elements met by windows: the element q is at place q + low of the padded axis;
    window p is at places p stride + k dilation, k < window.

    The element q = stride u + r is met by the windows u + first - j at their places r + offset +
    stride j, as far as they have such places: `shifts` are the numbers j.
    """

    n: int
    windows: int
    window: int
    stride: int
    dilation: int
    low: int

    @property
    def first(self) -> int:
        """The last window that starts at or before the first element."""
        return self.low // self.stride

    @property
    def offset(self) -> int:
        """Where the first element is, counted from the start of window `first`."""
        return self.low - self.first * self.stride

    @property
    def end(self) -> int:
        """The last place of a window."""
        return self.dilation * (self.window - 1)

    @property
    def groups(self) -> int:
        """How many strides the elements extend over."""
        return -(-self.n // self.stride)

    @property
    def shifts(self) -> range:
        least = -((self.offset + self.stride - 1) // self.stride)
        return range(least, (self.end - self.offset) // self.stride + 1)

    @property
    def before(self) -> int:
        """Windows to add in front and behind, so that there are all that are looked at."""
        return max(0, self.shifts[-1] - self.first)

    @property
    def after(self) -> int:
        return max(0, self.first - self.shifts[0] + self.groups - self.windows)

    def start(self, shift: int) -> int:
        """The window `shift` before `first`, with those added in front."""
        return self.first - shift + self.before

    def meets(self, r: ir.Value, shift: int) -> ir.Value | bool:
        """Whether the window `shift` back has the place r + offset + shift stride; True where that
        is so for every r < stride.
        """
        if all(self._hits(shift)):
            return True
        return self.is_place(arith.addi(r, build.index(self.offset + shift * self.stride)))

    def never(self, shift: int) -> bool:
        """Whether no element meets the window `shift` back."""
        return not any(self._hits(shift))

    def always(self) -> bool:
        """Whether all elements meet all windows that are looked at."""
        return all(all(self._hits(j)) for j in self.shifts)

    def _hits(self, shift: int) -> list[bool]:
        """For each r, whether the window `shift` back has the place r + offset + shift stride."""
        least = self.offset + shift * self.stride
        places = range(least, least + self.stride)
        return [0 <= p <= self.end and p % self.dilation == 0 for p in places]

    def is_place(self, place: ir.Value) -> ir.Value:
        """Whether a window has an element at `place`, counted from its start."""
        below = arith.cmpi(arith.CmpIPredicate.sle, place, build.index(self.end))
        above = arith.cmpi(arith.CmpIPredicate.sge, place, build.index(0))
        found = arith.andi(below, above)
        if self.dilation > 1:
            rest = arith.remsi(place, build.index(self.dilation))
            equal = arith.cmpi(arith.CmpIPredicate.eq, rest, build.index(0))
            found = arith.andi(found, equal)
        return found


def gather_windows(
    images: Sequence[ir.Value],
    values: Sequence[ir.Value],
    paddings: Sequence[float],
    axes: Sequence[Axis],
    dtypes: Sequence[np.dtype],
    out: np.dtype,
    step: Step,
) -> ir.Value:
    """Fold `step` over the windows that meet each element, from 0, in `out`: its arguments are what
    is accumulated, whether the window meets the element, the images' elements, and the window's
    `values`.

    `paddings` stand for the values of windows that do not exist.
    """
    rank = len(axes)
    n, c = _ends(images[0] if images else values[0])
    element = build.element_type(out)
    split = [n, *(e for a in axes for e in (a.groups, a.stride)), c]
    loops = list(range(2 * rank + 2))
    groups, places = [1 + 2 * i for i in range(rank)], [2 + 2 * i for i in range(rank)]
    inputs: list[tuple[ir.Value, list[Any]]] = []
    for x in images:
        high = [0, *(a.groups * a.stride - a.n for a in axes), 0]
        whole = padded(x, [0] * len(high), high, build.number(0, build.element_of(x)))
        inputs.append((build.reshape(whole, split), loops))
    around = [0, *(a.before for a in axes), 0], [0, *(a.after for a in axes), 0]
    values = [
        padded(v, *around, build.number(p, build.element_of(v)))
        for v, p in zip(values, paddings, strict=True)
    ]
    count, kinds = len(images), (list(dtypes[: len(images)]), list(dtypes[len(images) :]))
    kinds_of_loops = [PARALLEL] * len(loops)

    def scalars(elements: Sequence[ir.Value], types: Sequence[np.dtype]) -> list[Scalar]:
        return [_computed(v, t) for v, t in zip(elements, types, strict=True)]

    reach = [len(a.shifts) for a in axes]
    shifts = _useful_shifts(axes)
    if len(shifts) <= MOST_COMPARED:
        for shift in shifts:
            first = [0, *(a.start(s) for a, s in zip(axes, shift, strict=True)), 0]
            extents = [n, *(a.groups for a in axes), c]
            at = [0, *groups, 2 * rank + 1]
            inputs += [(extract(v, first, extents, [1] * len(first)), at) for v in values]

        def body(*elements: ir.Value) -> list[ir.Value]:
            total = Scalar(build.number(0, element), out)
            own, at = scalars(elements[:count], kinds[0]), count
            here = [build.loop_index(p) for p in places]
            for shift in shifts:
                met = _all(a.meets(p, s) for a, p, s in zip(axes, here, shift, strict=True))
                theirs = scalars(elements[at : at + len(values)], kinds[1])
                total = step(total, met, *own, *theirs)
                at += len(values)
            return [total.value]

        result = build.empty(split, element)
    else:  # loops over windows from the first that meets an element to the last
        later = range(len(loops), len(loops) + rank)
        moving = [dim(g) + dim(j) for g, j in zip(groups, later, strict=True)]
        extents = [n, *(a.groups + len(a.shifts) - 1 for a in axes), c]
        start = [a.start(a.shifts[-1]) for a in axes]
        for v in values:
            part = extract(v, [0, *start, 0], extents, [1] * (rank + 2))
            inputs.append((part, [0, *moving, 2 * rank + 1]))
        # Read by no one: it fixes the extents of the loops over windows.
        inputs.append((build.empty(reach, element), list(later)))
        kinds_of_loops = kinds_of_loops + [REDUCTION] * rank

        def body(*elements: ir.Value) -> list[ir.Value]:
            found = []
            for a, p, j in zip(axes, places, later, strict=True):
                if a.always():
                    continue
                back = arith.subi(build.index(a.shifts[-1]), build.loop_index(j))
                least = arith.addi(arith.muli(back, build.index(a.stride)), build.index(a.offset))
                found.append(a.is_place(arith.addi(build.loop_index(p), least)))
            own = scalars(elements[:count], kinds[0])
            theirs = scalars(elements[count:-2], kinds[1])
            return [step(Scalar(elements[-1], out), _all(found), *own, *theirs).value]

        result = build.fill(0, split, element)
    whole = build.generic(inputs, [(result, loops)], kinds_of_loops, body)[0]
    merged = build.reshape(whole, [n, *(a.groups * a.stride for a in axes), c])
    if all(a.n == a.groups * a.stride for a in axes):
        return merged
    return extract(merged, [0] * (rank + 2), [n, *(a.n for a in axes), c], [1] * (rank + 2))


def _useful_shifts(axes: Sequence[Axis]) -> list[tuple[int, ...]]:
    """How far back, along each axis, there are windows that meet elements."""
    return [
        shift
        for shift in itertools.product(*(a.shifts for a in axes))
        if not any(a.never(j) for a, j in zip(axes, shift, strict=True))
    ]


def _ends(x: ir.Value) -> tuple[build.Extent, build.Extent]:
    """Batch and channels of images."""
    return build.extent(x, 0), build.extent(x, build.rank_of(x) - 1)


def _all(conditions: Any) -> Scalar | None:
    """The conjunction; None where it is always true."""
    found = None
    for condition in conditions:
        if condition is True:
            continue
        found = condition if found is None else arith.andi(found, condition)
    return None if found is None else Scalar(found, bool_)


def _gather_sums(op: Any, x: ir.Value) -> ir.Value:
    """The windows of the pool that this is the gradient of have a value each in x: window p is at
    places p base_dilation + k dilation, the element q at q + dilation (window - 1) - low.
    """
    last, dtype = op.channels_last, op.operand_specs()[0].dtype
    extents = image_parts(op.result_specs()[0], last)[1]
    windows = image_parts(op.operand_specs()[0], last)[1]
    axes = [
        Axis(n or 0, p or 0, k, base, d, d * (k - 1) - lo)
        for n, p, k, _, lo, _, d, base in zip(extents, windows, *_geometry(op), strict=True)
    ]

    def step(total: Scalar, met: Scalar | None, value: Scalar) -> Scalar:
        return total + (value if met is None else select(met, value, 0))

    wide = accumulator(dtype)
    y = gather_windows([], [images_last(x, last)], [0], axes, [dtype], wide, step)
    return images_back(rounded(y, wide, dtype), last)


def _geometry(op: Any) -> list[tuple[int, ...]]:
    return geometry(op.read_attributes())


@lowers(UnpoolTiesOp)
def unpool_ties(op: Any, x: ir.Value, y: ir.Value, g: ir.Value) -> ir.Value:
    """Windows that do not exist have the value NaN, which nothing is equal to"""
    last, kind = op.channels_last, op.operand_specs()[0].dtype
    dtype = op.result_specs()[0].dtype
    x, y, g = (images_last(v, last) for v in (x, y, g))
    n, *spatial, c = build.shape_of(x)
    if 0 in spatial:
        return images_back(build.fill(0, [n, *spatial, c], build.element_type(dtype)), last)
    none = [0] * len(spatial)
    image = pad_image(x, none, none, op.base_dilation, 0)
    extents = build.static_shape(image)[1:-1]
    windows = build.static_shape(y)[1:-1]
    axes = [
        Axis(m, p, k, s, d, lo)
        for m, p, k, s, lo, _, d, _ in zip(extents, windows, *_geometry(op), strict=True)
    ]

    def step(
        total: Scalar, met: Scalar | None, element: Scalar, value: Scalar, more: Scalar
    ) -> Scalar:
        equal = element == value
        return total + select(equal if met is None else equal & met, more, 0)

    wide = accumulator(dtype)
    z = gather_windows([image], [y, g], [math.nan, 0], axes, [kind, kind, dtype], wide, step)
    z = extract(z, [0] * build.rank_of(z), [n, *spatial, c], [1, *op.base_dilation, 1])
    return images_back(rounded(z, wide, dtype), last)


# --- patches --------------------------------------------------------------------------------------


@lowers(ExtractPatchesOp)
def extract_patches(op: Any, x: ir.Value) -> ir.Value:
    """One copy through a map"""
    last, axes = op.channels_last, len(op.window)
    image = pad_image(images_last(x, last), op.low, op.high, op.base_dilation, 0)
    image = only_windows(image, op.window, op.strides, op.dilation)
    n, c = _ends(image)
    windows, places = range(1, axes + 1), range(axes + 1, 2 * axes + 1)
    moving = [
        dim(p) * s + dim(k) * d
        for p, k, s, d in zip(windows, places, op.strides, op.dilation, strict=True)
    ]
    element, channel = build.element_of(image), 2 * axes + 1
    # Read by no one: it fixes the extents of the loops over places.
    sizes = build.empty(list(op.window), element)
    inputs = [(image, [0, *moving, channel]), (sizes, list(places))]
    extents = _extents_of(build.static_shape(image)[1:-1], op)
    if last:
        out, axes_of = [n, *extents, *op.window, c], [0, *windows, *places, channel]
    else:
        out, axes_of = [n, c, *op.window, *extents], [0, channel, *places, *windows]
    loops = [PARALLEL] * (2 * axes + 2)
    y = build.empty(out, element)
    return build.generic(inputs, [(y, axes_of)], loops, lambda v, *_: [v])[0]


def _extents_of(spatial: Sequence[int], op: Any) -> list[int]:
    """How many windows there are over a padded image."""
    sizes = zip(spatial, op.window, op.strides, op.dilation, strict=True)
    return [(m - d * (k - 1) - 1) // s + 1 for m, k, s, d in sizes]


@lowers(FoldPatchesOp)
def fold_patches(op: Any, y: ir.Value) -> ir.Value:
    """The places that windows do not have (of other dilation, or outside) hold 0"""
    last, axes, dtype = op.channels_last, len(op.window), op.result_specs()[0].dtype
    if not last:  # (N, C, *window, *windows)
        y = permuted(y, [0, *range(axes + 2, 2 * axes + 2), *range(2, axes + 2), 1])
    n, c = _ends(y)
    if 0 in op.extents:
        return images_back(build.fill(0, [n, *op.extents, c], build.element_of(y)), last)
    spread_extents = [(m - 1) * b + 1 for m, b in zip(op.extents, op.base_dilation, strict=True)]
    windows = build.static_shape(y)[1 : axes + 1]
    found = [
        Axis(m, p, k, s, d, lo)
        for m, p, k, s, lo, _, d, _ in zip(spread_extents, windows, *_geometry(op), strict=True)
    ]
    zero = build.number(0, build.element_of(y))
    y = spread(y, [0] * (axes + 1) + [d - 1 for d in op.dilation] + [0], zero)
    low = [max(0, -(a.offset + a.stride * a.shifts[0])) for a in found]
    high = [max(0, a.offset + a.stride * (a.shifts[-1] + 1) - a.end - 1) for a in found]
    y = padded(
        y,
        [0, *(a.before for a in found), *low, 0],
        [0, *(a.after for a in found), *high, 0],
        zero,
    )
    parts = []
    for shift in _useful_shifts(found):
        start = [a.start(j) for a, j in zip(found, shift, strict=True)]
        place = [a.offset + a.stride * j + lo for a, j, lo in zip(found, shift, low, strict=True)]
        extents = [n, *(a.groups for a in found), *(a.stride for a in found), c]
        parts.append(extract(y, [0, *start, *place, 0], extents, [1] * (2 * axes + 2)))
    wide = accumulator(dtype)
    element = build.element_type(wide)
    split = [n, *(e for a in found for e in (a.groups, a.stride)), c]
    groups, places = [1 + 2 * i for i in range(axes)], [2 + 2 * i for i in range(axes)]
    loops = list(range(2 * axes + 2))
    kinds = [PARALLEL] * len(loops)

    def body(*elements: ir.Value) -> list[ir.Value]:
        total = Scalar(elements[-1], wide)
        for value in elements[:-1]:
            total = total + _computed(value, dtype)
        return [total.value]

    whole = build.fill(0, split, element)
    for at in range(0, len(parts), MOST_COMPARED):
        some = [(v, [0, *groups, *places, loops[-1]]) for v in parts[at : at + MOST_COMPARED]]
        whole = build.generic(some, [(whole, loops)], kinds, body)[0]
    x = build.reshape(whole, [n, *(a.groups * a.stride for a in found), c])
    x = extract(x, [0] * (axes + 2), [n, *op.extents, c], [1, *op.base_dilation, 1])
    return images_back(rounded(x, wide, dtype), last)
