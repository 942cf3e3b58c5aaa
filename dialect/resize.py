# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Images resized, and other sums along an axis whose positions and weights are known.

Each axis by itself: a result element is a weighted sum of a few elements of the axis, and the
gradient of an element the sum, with the same weights, of what was made of it: one op, `resample`,
closed under differentiation.
"""

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from . import builder as builders
from . import reduction
from .arrange import RepeatOp
from .base import Elements, Float, Int, Ints, Op, Operand, Result, Str, as_wide, check_float
from .convolution import image_parts, image_shape
from .elementwise import as_tensor
from .indexing import TakeOp
from .pooling import avg_pool, max_pool
from .reduction import as_float
from .slicing import slice_axis, stack
from .types import TensorSpec, is_float, is_integer
from .window import spatial_extents, spatial_numbers

METHODS = ("nearest", "linear", "cubic")
COORDINATES = ("half_pixel", "align_corners", "asymmetric")
BORDERS = ("renormalize", "clamp")


class ResampleOp(Op, name="resample"):
    """Weighted sums along an axis: y[a, i, b] = sum over t of weights[i, t] * x[a, indices[i, t],
    b]. What has weight 0 is not read, whatever it holds.

    Example: `%y = "gradopt.resample"(%x) {indices = dense<[[0, 1], [1, 2]]> : tensor<2x2xi32>,
    weights = dense<0.5> : tensor<2x2xf64>, axis = 0 : i64} : (tensor<3xf32>) -> tensor<2xf32>`
    """

    x: Operand
    indices: Elements
    weights: Elements
    axis: Int
    y: Result

    @classmethod
    def infer(
        cls, x: TensorSpec, indices: np.ndarray, weights: np.ndarray, axis: int
    ) -> TensorSpec:
        check_float(cls, x)
        if not 0 <= axis < x.rank or x.shape[axis] is None:
            raise cls.error(f"an axis of known extent of a tensor of rank {x.rank}", f"{axis}, {x}")
        n = x.shape[axis] or 0
        if indices.ndim != 2 or indices.shape != weights.shape or indices.shape[1] == 0:
            expected = "indices and weights of one shape, a row for each result"
            raise cls.error(expected, f"{indices.shape} and {weights.shape}")
        if not is_integer(indices.dtype) or not is_float(weights.dtype):
            raise cls.error("integer indices and floating-point weights", f"{indices.dtype}")
        if indices.size and not (indices.min() >= 0 and indices.max() < n):
            raise cls.error(f"indices in [0, {n})", f"{indices.min()} to {indices.max()}")
        return x.with_shape((*x.shape[:axis], len(indices), *x.shape[axis + 1 :]))

    @staticmethod
    def reference(x: np.ndarray, indices: np.ndarray, weights: np.ndarray, axis: int) -> np.ndarray:
        rows = np.moveaxis(x, axis, 0)
        y = np.zeros((len(indices), *rows.shape[1:]), x.dtype)
        for i, t in np.ndindex(indices.shape):
            if weights[i, t] != 0:
                y[i] += weights[i, t] * rows[indices[i, t]]
        return np.moveaxis(y, 0, axis)

    def vjp(self, ct: Any) -> list[Any]:
        """dx[j] = sum of weight * ct over the results that x[j] is in"""
        n = self.x.shape[self.axis]
        indices, weights = transposed_table(self.indices, self.weights, n)
        return [ResampleOp.emit(ct, indices=indices, weights=weights, axis=self.axis)]


def transposed_table(
    indices: np.ndarray, weights: np.ndarray, n: int
) -> tuple[np.ndarray, np.ndarray]:
    """For each of n elements, the results it is in and its weights there; weight 0 fills up."""
    uses: list[list[tuple[int, float]]] = [[] for _ in range(n)]
    for i, t in np.ndindex(indices.shape):
        if weights[i, t] != 0:
            uses[indices[i, t]].append((i, float(weights[i, t])))
    width = max(1, max(map(len, uses), default=0))
    filled = [[*use, *[(0, 0.0)] * (width - len(use))] for use in uses]
    table = np.array(filled, np.float64).reshape(n, width, 2)
    return table[..., 0].astype(np.int32), table[..., 1].astype(weights.dtype)


class ResizeOp(Op, name="resize"):
    """Axes brought to other extents by interpolation: y[..., i, ...] = sum over j of k(c(i) - j)
    x[..., j, ...], for each of `axes` after the other.

    For an axis of n elements and m results, the coordinate c(i) is (i + 0.5) n / m - 0.5
    (half_pixel), i (n - 1) / (m - 1) (align_corners) or i n / m (asymmetric). The kernel k takes
    the nearest element, is linear, or Keys' cubic with parameter `cubic`. Where a cubic reaches
    over the border, the weights inside are scaled to add up to 1 (border "renormalize", as JAX), or
    the border's element is repeated ("clamp", as PyTorch, which has cubic = -0.75).
    Example: `%y = "gradopt.resize"(%x) {axes = array<i64: 1, 2>, sizes = array<i64: 4, 9>} :
    (tensor<1x2x3x4xf32>) -> tensor<1x4x9x4xf32>`
    """

    x: Operand
    axes: Ints
    sizes: Ints
    method: Str = "linear"
    coordinates: Str = "half_pixel"
    cubic: Float = -0.5
    border: Str = "renormalize"
    y: Result

    @classmethod
    def infer(
        cls,
        x: TensorSpec,
        axes: tuple[int, ...],
        sizes: tuple[int, ...],
        method: str,
        coordinates: str,
        cubic: float,
        border: str,
    ) -> TensorSpec:
        for name, value, known in (
            ("method", method, METHODS),
            ("coordinates", coordinates, COORDINATES),
            ("border", border, BORDERS),
        ):
            if value not in known:
                raise cls.error(f"{name} out of {', '.join(known)}", f"'{value}'")
        if method != "nearest" and not is_float(x.dtype):
            raise cls.error("a floating-point operand", x, "convert it, or take the nearest")
        if list(axes) != sorted(set(axes)) or not set(axes) <= set(range(x.rank)):
            raise cls.error(f"increasing axes of a tensor of rank {x.rank}", list(axes))
        if len(sizes) != len(axes) or min(sizes, default=1) < 1:
            raise cls.error(f"an extent of at least 1 for each of {len(axes)} axes", list(sizes))
        if not all(x.shape[a] for a in axes):
            raise cls.error("known extents of at least 1 on the resized axes", x)
        new = dict(zip(axes, sizes, strict=True))
        return x.with_shape(new.get(a, n) for a, n in enumerate(x.shape))

    @staticmethod
    def reference(
        x: np.ndarray,
        axes: tuple[int, ...],
        sizes: tuple[int, ...],
        method: str,
        coordinates: str,
        cubic: float,
        border: str,
    ) -> np.ndarray:
        for axis, m in zip(axes, sizes, strict=True):
            rows = np.moveaxis(x, axis, 0)
            n = len(rows)
            results = []
            for i in range(m):
                c = coordinate(i, n, m, coordinates)
                if method == "nearest":
                    results.append(rows[_nearest(i, n, m, coordinates)])
                    continue
                if method == "linear":  # beyond the border there is nothing to interpolate with
                    c = min(max(c, Fraction(0)), Fraction(n - 1))
                reach = range(-3, n + 3)
                found = {j: _kernel(float(c - j), method, cubic) for j in reach}
                if border == "renormalize":
                    found = {j: w for j, w in found.items() if 0 <= j < n}
                total = sum(found.values())
                results.append(
                    sum(w / total * rows[min(max(j, 0), n - 1)] for j, w in found.items() if w)
                )
            x = np.moveaxis(np.stack(results), 0, axis)
        return x

    @staticmethod
    def decompose(
        x: Any, axes: tuple[int, ...], sizes: tuple[int, ...], method: str, **attributes: Any
    ) -> Any:
        """`resample` along each axis; `repeat` where every element is taken equally often, `take`
        for what has no gradient
        """
        y = x if method == "nearest" else as_wide(x)
        for axis, m in zip(axes, sizes, strict=True):
            n = y.shape[axis]
            if n == m:
                continue
            indices, weights = table(n, m, method, **attributes)
            if method == "nearest" and m % n == 0 and _is_even(indices, m // n):
                y = RepeatOp.emit(y, repeats=m // n, axis=axis)
            elif is_float(y.dtype):
                y = ResampleOp.emit(y, indices=indices, weights=weights, axis=axis)
            else:
                y = TakeOp.emit(y, as_tensor(indices[:, 0]), axis=axis)
        return y.astype(x.dtype)


def _is_even(indices: np.ndarray, times: int) -> bool:
    """Whether the positions are 0, 1, ..., each so many times in a row."""
    return bool((indices[:, 0] == np.arange(len(indices)) // times).all())


def coordinate(i: int, n: int, m: int, coordinates: str) -> Fraction:
    """Where result i of m stands among n elements."""
    if coordinates == "half_pixel":
        return Fraction((2 * i + 1) * n - m, 2 * m)
    if coordinates == "asymmetric":
        return Fraction(i * n, m)
    return Fraction(i * (n - 1), m - 1) if m > 1 else Fraction(0)


def _nearest(i: int, n: int, m: int, coordinates: str) -> int:
    """The element that result i takes: of two equally near ones the later, but with asymmetric
    coordinates always that before.
    """
    c = coordinate(i, n, m, coordinates)
    nearest = math.floor(c if coordinates == "asymmetric" else c + Fraction(1, 2))
    return min(max(nearest, 0), n - 1)


def _kernel(d: float, method: str, a: float) -> float:
    """The weight of an element at distance d. Cubic: Keys, "Cubic convolution interpolation for
    digital image processing" (1981).
    """
    d = abs(d)
    if method == "linear":
        return max(0.0, 1 - d)
    if d <= 1:
        return ((a + 2) * d - (a + 3)) * d * d + 1
    return (((d - 5) * d + 8) * d - 4) * a if d < 2 else 0.0


def table(
    n: int, m: int, method: str, coordinates: str, cubic: float, border: str
) -> tuple[np.ndarray, np.ndarray]:
    """For each of m results, the elements of n that it is made of, and their weights."""
    rows = []
    for i in range(m):
        if method == "nearest":
            rows.append([(_nearest(i, n, m, coordinates), 1.0)])
            continue
        c = coordinate(i, n, m, coordinates)
        if method == "linear":
            c = min(max(c, Fraction(0)), Fraction(n - 1))
        before, after = (0, 2) if method == "linear" else (1, 3)
        low = math.floor(c)
        places = range(low - before, low + after)
        row = [(j, _kernel(float(c - j), method, cubic)) for j in places]
        if border == "renormalize":
            inside = [(j, w if 0 <= j < n else 0.0) for j, w in row]
            total = math.fsum(w for _, w in inside)
            row = [(j, w / total) for j, w in inside]
        rows.append([(min(max(j, 0), n - 1), w) for j, w in row])
    found = np.array(rows, np.float64)
    return found[..., 0].astype(np.int32), found[..., 1]


# --- functions ------------------------------------------------------------------------------------


def resize(
    x: Any,
    shape: Sequence[int | None],
    method: str = "linear",
    coordinates: str = "half_pixel",
    cubic: float = -0.5,
    border: str = "renormalize",
    name: str | None = None,
) -> Any:
    """`x` brought to `shape` by interpolation along each axis whose extent changes (None keeps
    one), without smoothing where it shrinks.

    `method` is "nearest", "linear" or "cubic"; `coordinates` "half_pixel" (the elements are the
    middles of equal cells), "align_corners" (first and last elements stay in place) or "asymmetric"
    (the first one does). The defaults of `cubic` and `border` are JAX's; PyTorch and ONNX have
    cubic=-0.75 and border="clamp".
    """
    with builders.owner("resize", (x,)):
        x = as_tensor(x) if method == "nearest" else as_float(x)
        if len(shape) != x.ndim:
            raise ResizeOp.error(f"an extent for each of {x.ndim} axes", list(shape))
        pairs = enumerate(zip(x.shape, shape, strict=True))
        axes = tuple(a for a, (n, m) in pairs if m is not None and n != m)
        attributes: dict[str, Any] = {"method": method, "coordinates": coordinates}
        attributes |= {"cubic": cubic, "border": border}
        sizes = tuple(shape[a] for a in axes)
        return ResizeOp.emit(x, axes=axes, sizes=sizes, **attributes, name=name)


def upsample(
    x: Any,
    scale: int | Sequence[int],
    method: str = "nearest",
    coordinates: str = "half_pixel",
    cubic: float = -0.5,
    border: str = "renormalize",
    channels_last: bool = True,
    name: str | None = None,
) -> Any:
    """Images (N, *spatial, C), or (N, C, *spatial), `scale` times as large; see `resize`."""
    x = as_tensor(x)
    spatial = spatial_extents(ResizeOp, x, channels_last)
    times = spatial_numbers(ResizeOp, "scale", scale, len(spatial))
    if None in spatial:
        raise ResizeOp.error("known spatial extents", x.spec)
    n, _, c = image_parts(x.spec, channels_last)
    sizes = [m * t for m, t in zip(spatial, times, strict=True)]  # type: ignore[operator]
    shape = image_shape(n, sizes, c, channels_last)
    return resize(x, shape, method, coordinates, cubic, border, name)


def _bins(n: int, m: int) -> list[tuple[int, int]]:
    """n elements as m overlapping bins of nearly equal size, (start, end) each."""
    return [(i * n // m, -(-(i + 1) * n // m)) for i in range(m)]


def _adaptive(
    op: str, x: Any, size: Any, channels_last: bool
) -> tuple[Any, list[int], list[int], int]:
    """The tensor, its spatial extents, those wanted, and the first spatial axis."""
    x = as_tensor(x)
    spatial = spatial_extents(ResampleOp, x, channels_last)
    wanted = (size,) * len(spatial) if isinstance(size, int) else tuple(size)
    if len(wanted) != len(spatial) or not all(spatial):
        expected = f"known spatial extents, and as many for the result of {op}"
        raise ResampleOp.error(expected, f"{x.spec} and {size}")
    found = [n if m is None else m for n, m in zip(spatial, wanted, strict=True)]
    if min(found) < 1:  # type: ignore[type-var]
        raise ResampleOp.error("extents of at least 1", found)
    return x, list(spatial), found, 1 if channels_last else 2  # type: ignore[arg-type]


def adaptive_avg_pool(x: Any, size: int | Sequence[int | None], channels_last: bool = True) -> Any:
    """Means of images (N, *spatial, C), or (N, C, *spatial), over bins that give the spatial
    extents `size` (None keeps an extent). Bin i of m over n elements is floor(i n / m) up to
    ceil((i + 1) n / m), as in PyTorch.
    """
    x, spatial, sizes, first = _adaptive("adaptive_avg_pool", as_float(x), size, channels_last)
    if all(n % m == 0 for n, m in zip(spatial, sizes, strict=True)):
        window = [n // m for n, m in zip(spatial, sizes, strict=True)]
        return avg_pool(x, window, channels_last=channels_last)
    y = as_wide(x)
    for axis, (n, m) in enumerate(zip(spatial, sizes, strict=True), first):
        if n == m:
            continue
        bins = _bins(n, m)
        width = max(stop - start for start, stop in bins)
        places = np.array([start for start, _ in bins])[:, None] + np.arange(width)
        counts = np.array([stop - start for start, stop in bins])[:, None]
        inside = np.arange(width) < counts
        indices = np.where(inside, places, 0).astype(np.int32)
        y = ResampleOp.emit(y, indices=indices, weights=inside / counts, axis=axis)
    return y.astype(x.dtype)


def adaptive_max_pool(x: Any, size: int | Sequence[int | None], channels_last: bool = True) -> Any:
    """Largest elements of images over the bins of `adaptive_avg_pool`. Bins of unequal size are
    reduced one by one: fit for a few of them.
    """
    x, spatial, sizes, first = _adaptive("adaptive_max_pool", x, size, channels_last)
    if all(n % m == 0 for n, m in zip(spatial, sizes, strict=True)):
        window = [n // m for n, m in zip(spatial, sizes, strict=True)]
        return max_pool(x, window, channels_last=channels_last)
    axes = tuple(range(first, first + len(sizes)))
    found = []
    every = [_bins(n, m) for n, m in zip(spatial, sizes, strict=True)]
    for bins in itertools.product(*every):
        part = x
        for axis, (start, stop) in zip(axes, bins, strict=True):
            part = slice_axis(part, axis, start, stop)
        found.append(reduction.max(part, axes))
    n, _, c = image_parts(x.spec, channels_last)
    joined = stack(found, axis=first)
    return joined.reshape_to(image_shape(n, sizes, c, channels_last), like=(x,))
