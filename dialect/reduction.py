# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Reductions over axes. In the IR the reduced axes are dropped; the functions put them back with
`keepdims`.
"""

import math
from typing import Any

import numpy as np

from .base import NO_GRADIENT, Int, Ints, Op, Operand, Result, in_float32, in_wide
from .control import stop_gradient
from .creation import constant, ones_like
from .elementwise import ACCEPTS, BOOLEAN, FLOAT, NUMERIC, as_tensor, mul_no_nan
from .later import scipy
from .logic import is_finite, select
from .shape import normalize_axes
from .slicing import concat
from .transcendental import exp, log
from .types import TensorSpec, as_dtype, bool_, float32, int32, is_float, uint32


class Reduction(Op):
    """One value from all elements along `axes`, which are distinct, increasing and not negative."""

    KIND = NUMERIC
    NEEDS_ELEMENTS = False  # True where an empty reduction has no value
    x: Operand
    axes: Ints
    y: Result

    @classmethod
    def infer(cls, x: TensorSpec, axes: tuple[int, ...], **attributes: Any) -> TensorSpec:
        if not ACCEPTS[cls.KIND](x.dtype):
            raise cls.error(f"a {cls.KIND} operand", x, "convert it first")
        if list(axes) != sorted(set(axes)) or not set(axes) <= set(range(x.rank)):
            raise cls.error(f"increasing axes of a tensor of rank {x.rank}", list(axes))
        if cls.NEEDS_ELEMENTS and 0 in [x.shape[a] for a in axes]:
            raise cls.error("at least one element to reduce", x, "an empty reduction has no value")
        return x.with_shape(n for i, n in enumerate(x.shape) if i not in axes)

    def expand(self, value: Any) -> Any:
        """`value`, of the result's shape, repeated to the operand's shape."""
        return expand(value, self.x, self.axes)


def expand(value: Any, x: Any, axes: tuple[int, ...]) -> Any:
    """`value`, of x's shape without `axes`, repeated along them."""
    kept = tuple(i for i in range(x.ndim) if i not in axes)
    return value.broadcast_in_dim(x.shape, kept, like=(x,))


def count(x: Any, axes: tuple[int, ...]) -> Any:
    """Number of elements along `axes`, as a tensor of x's dtype: a scalar where it is known, else
    of x's shape without `axes`.
    """
    extents = [x.shape[a] for a in axes]
    if None in extents:
        return sum(ones_like(x), axis=axes)
    return constant(float(math.prod(extents)), x.dtype)


def _averaged(total: Any, x: np.ndarray) -> Any:
    """Sums of elements of x, divided by how many there are in each: in their own type where it
    holds the number, else in float64.
    """
    n = x.size // (total.size or 1)
    return total / (n if n <= 2**24 else np.int64(n))


def mean_along(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """NumPy's mean, with the axes kept, at less cost."""
    return _averaged(np.add.reduce(x, axes, keepdims=True), x)


class SumOp(Reduction, name="sum"):
    """Sum over axes; 0 of nothing.

    Example: `%y = "gradopt.sum"(%x) {axes = array<i64: 0>} : (tensor<2x3xf32>) -> tensor<3xf32>`
    """

    @staticmethod
    def reference(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        return np.add.reduce(x, axes)

    def vjp(self, ct: Any) -> list[Any]:
        """dx = ct, repeated"""
        return [self.expand(ct)]


class MeanOp(Reduction, name="mean"):
    """Arithmetic mean over axes; NaN of nothing.

    Example: `%y = "gradopt.mean"(%x) {axes = array<i64: 0>} : (tensor<2x3xf32>) -> tensor<3xf32>`
    """

    KIND = FLOAT

    @staticmethod
    def reference(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        return _averaged(np.add.reduce(x, axes), x)

    @staticmethod
    @in_wide
    def decompose(x: Any, axes: tuple[int, ...]) -> Any:
        """sum x / n"""
        return SumOp.emit(x, axes=axes) / count(x, axes)

    @in_float32
    def vjp(self, ct: Any) -> list[Any]:
        """dx = ct / n, repeated"""
        return [self.expand(ct / count(self.x, self.axes))]


class VarOp(Reduction, name="var"):
    """Variance over axes: y = sum((x - mean x)^2) / (n - correction).

    Example: `%y = "gradopt.var"(%x) {axes = array<i64: 0>, correction = 1 : i64} :
    (tensor<2x3xf32>) -> tensor<3xf32>`
    """

    KIND = FLOAT
    correction: Int = 0

    @staticmethod
    def reference(x: np.ndarray, axes: tuple[int, ...], correction: int) -> np.ndarray:
        n = np.int64(math.prod([x.shape[a] for a in axes]))
        centered = x - np.sum(x, axis=axes, keepdims=True) / n
        return np.sum(centered * centered, axis=axes) / np.maximum(n - correction, 0)

    @staticmethod
    @in_wide
    def decompose(x: Any, axes: tuple[int, ...], correction: int) -> Any:
        """sum (x - mean x)^2 / (n - correction)"""
        centered = x - expand(MeanOp.emit(x, axes=axes), x, axes)
        degrees = (count(x, axes) - correction).clip(min=0)
        return SumOp.emit(centered * centered, axes=axes) / degrees

    @in_float32
    def vjp(self, ct: Any) -> list[Any]:
        """dx = ct * 2 (x - mean x) / (n - correction)"""
        centered = self.x - self.expand(mean(self.x, axis=self.axes))
        degrees = (count(self.x, self.axes) - self.correction).clip(min=0)
        return [mul_no_nan(self.expand(mul_no_nan(ct, 2 / degrees)), centered)]


class ProdOp(Reduction, name="prod"):
    """Product over axes; 1 of nothing. The gradient is exact where elements are 0.

    Example: `%y = "gradopt.prod"(%x) {axes = array<i64: 0>} : (tensor<2x3xf32>) -> tensor<3xf32>`
    """

    @staticmethod
    def reference(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        return np.prod(x, axis=axes)

    @in_float32
    def vjp(self, ct: Any) -> list[Any]:
        """dx_i = ct * product of all x_j with j != i, axis by axis"""
        partial = [self.x]
        for axis in reversed(self.axes):
            partial.append(prod(partial[-1], axis=axis))
        for axis in self.axes:
            inner = partial[-2]
            partial.pop()
            ct = mul_no_nan(expand(ct, inner, (axis,)), exclusive_product(inner, axis))
        return [ct]


def exclusive_product(x: Any, axis: int) -> Any:
    """For each element the product of all others along `axis`, without division, in log2(n) steps
    of halves.
    """
    n = x.shape[axis]
    if n is None:
        raise ProdOp.error(
            "a known extent of reduced axes for a gradient", x.spec, "declare the extent"
        )
    if n <= 1:
        return ones_like(x)
    half = n // 2
    low, high = x.slice_axis(axis, 0, half), x.slice_axis(axis, half, 2 * half)
    rest = [x.slice_axis(axis, 2 * half, n)] if n % 2 else []
    others = exclusive_product(concat([low * high, *rest], axis), axis)
    shared = others.slice_axis(axis, 0, half)
    last = [others.slice_axis(axis, half, half + 1)] if n % 2 else []
    return concat([shared * high, shared * low, *last], axis)


class Extreme(Reduction):
    """Largest or smallest element."""

    NEEDS_ELEMENTS = True

    @in_float32
    def vjp(self, ct: Any) -> list[Any]:
        """dx = ct split evenly among the elements equal to y"""
        taken = self.x.equal(self.expand(self.y))
        ties = sum(taken.astype(ct.dtype), axis=self.axes)
        return [select(taken, self.expand(ct / ties), 0)]


class MaxOp(Extreme, name="max"):
    """Largest element over axes; NaN if any is.

    Example: `%y = "gradopt.max"(%x) {axes = array<i64: 0>} : (tensor<2x3xf32>) -> tensor<3xf32>`
    """

    @staticmethod
    def reference(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        return np.maximum.reduce(x, axes)


class MinOp(Extreme, name="min"):
    """Smallest element over axes; NaN if any is.

    Example: `%y = "gradopt.min"(%x) {axes = array<i64: 0>} : (tensor<2x3xf32>) -> tensor<3xf32>`
    """

    @staticmethod
    def reference(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        return np.minimum.reduce(x, axes)


class AnyOp(Reduction, name="any"):
    """True where any element over axes is; false of nothing.

    Example: `%y = "gradopt.any"(%x) {axes = array<i64: 0>} : (tensor<2x3xi1>) -> tensor<3xi1>`
    """

    KIND = BOOLEAN

    @staticmethod
    def reference(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        return np.any(x, axis=axes)

    vjp = NO_GRADIENT


class AllOp(Reduction, name="all"):
    """True where all elements over axes are; true of nothing.

    Example: `%y = "gradopt.all"(%x) {axes = array<i64: 0>} : (tensor<2x3xi1>) -> tensor<3xi1>`
    """

    KIND = BOOLEAN

    @staticmethod
    def reference(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        return np.all(x, axis=axes)

    vjp = NO_GRADIENT


class ArgExtreme(Op):
    """Position of an extreme along one axis, the first among equals; a NaN counts as the
    extreme.
    """

    x: Operand
    axis: Int
    y: Result

    @classmethod
    def infer(cls, x: TensorSpec, axis: int) -> TensorSpec:
        if not 0 <= axis < x.rank:
            raise cls.error(f"an axis of a tensor of rank {x.rank}", axis)
        if x.shape[axis] == 0:
            raise cls.error("at least one element to choose from", x)
        return TensorSpec((n for i, n in enumerate(x.shape) if i != axis), int32)

    vjp = NO_GRADIENT


class ArgmaxOp(ArgExtreme, name="argmax"):
    """Position (int32) of the largest element along an axis.

    Example: `%y = "gradopt.argmax"(%x) {axis = 1 : i64} : (tensor<2x3xf32>) -> tensor<2xi32>`
    """

    @staticmethod
    def reference(x: np.ndarray, axis: int) -> np.ndarray:
        return np.argmax(x, axis=axis)


class ArgminOp(ArgExtreme, name="argmin"):
    """Position (int32) of the smallest element along an axis.

    Example: `%y = "gradopt.argmin"(%x) {axis = 1 : i64} : (tensor<2x3xf32>) -> tensor<2xi32>`
    """

    @staticmethod
    def reference(x: np.ndarray, axis: int) -> np.ndarray:
        return np.argmin(x, axis=axis)


class LogsumexpOp(Reduction, name="logsumexp"):
    """Logarithm of the sum of exponentials over axes, without overflow; -inf of nothing and where
    all elements are -inf.

    Example: `%y = "gradopt.logsumexp"(%x) {axes = array<i64: 1>} : (tensor<2x3xf32>) ->
    tensor<2xf32>`
    """

    KIND = FLOAT

    @staticmethod
    def reference(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        return np.asarray(
            scipy.special.logsumexp(x, axis=axes)
            if x.size
            else np.full(np.sum(x, axis=axes).shape, -np.inf)
        )

    @staticmethod
    @in_wide
    def decompose(x: Any, axes: tuple[int, ...]) -> Any:
        """max + ln sum e^(x - max), -inf where the sum is 0"""
        top = finite_max(x, axes)
        total = SumOp.emit(exp(x - top), axes=axes)
        shifted = log(select(total.equal(0), 1, total)) + top.reshape_to(total.shape, like=(total,))
        return select(total.equal(0), -math.inf, shifted)

    @in_float32
    def vjp(self, ct: Any) -> list[Any]:
        """dx = ct * e^(x - y), 0 where y = -inf"""
        y = self.expand(self.y)
        return [mul_no_nan(self.expand(ct), select(y.equal(-math.inf), 0, exp(self.x - y)))]


class NormOp(Reduction, name="norm"):
    """Euclidean norm over axes: y = sqrt(sum x^2).

    Example: `%y = "gradopt.norm"(%x) {axes = array<i64: 1>} : (tensor<2x3xf32>) -> tensor<2xf32>`
    """

    KIND = FLOAT

    @staticmethod
    def reference(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        return np.sqrt(np.sum(x * x, axis=axes))

    @staticmethod
    @in_wide
    def decompose(x: Any, axes: tuple[int, ...]) -> Any:
        """sqrt(sum x^2)"""
        return SumOp.emit(x * x, axes=axes).sqrt()

    @in_float32
    def vjp(self, ct: Any) -> list[Any]:
        """dx = ct * x / y, 0 where y = 0"""
        inverse = select(self.y.equal(0), 0, 1 / self.y)
        return [mul_no_nan(self.expand(ct), self.x * self.expand(inverse))]


def finite_max(x: Any, axes: tuple[int, ...]) -> Any:
    """The maximum over axes, kept as extents of 1, as something to subtract: constant to gradients,
    0 where it is infinite or there is none.
    """
    if 0 in [x.shape[a] for a in axes]:
        return constant(0, x.dtype)
    top = max(stop_gradient(x), axes, keepdims=True)
    return select(is_finite(top), top, 0)


# --- functions ------------------------------------------------------------------------------------


def _reduce(op_class: type[Op], x: Any, axis: Any, keepdims: bool, **attributes: Any) -> Any:
    """Emit a reduction over `axis` (None: all) and put the reduced axes back as extents of 1 where
    asked.
    """
    axes = normalize_axes(op_class, axis, x.ndim)
    y = op_class.emit(x, axes=axes, **attributes)
    return y.expand_dims(axes) if keepdims else y


def sum(  # noqa: A001 - NumPy's name
    x: Any, axis: Any = None, keepdims: bool = False, *, dtype: Any = None
) -> Any:
    """Sum over `axis` (int, tuple, or None for all), in `dtype`. Unless that is given, booleans and
    integers below 32 bits are summed in 32 bits.
    """
    return _reduce(SumOp, summable(x, dtype), axis, keepdims)


def prod(x: Any, axis: Any = None, keepdims: bool = False, *, dtype: Any = None) -> Any:
    """Product over `axis` (int, tuple, or None for all), in `dtype`. Unless that is given, booleans
    and integers below 32 bits are multiplied in 32 bits.
    """
    return _reduce(ProdOp, summable(x, dtype), axis, keepdims)


def summable(x: Any, dtype: Any = None) -> Any:
    """`x` as a tensor of `dtype`, or if that is None, of at least 32 bits if it holds integers or
    booleans.
    """
    x = as_tensor(x)
    if dtype is not None:
        return x.astype(as_dtype(dtype))
    dtype = x.dtype
    if dtype.kind in "biu" and dtype.itemsize < 4:
        return x.astype(uint32 if dtype.kind == "u" else int32)
    return x


def mean(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Arithmetic mean over `axis`; integers give float32."""
    return _reduce(MeanOp, as_float(x), axis, keepdims)


def var(x: Any, axis: Any = None, keepdims: bool = False, correction: float = 0) -> Any:
    """Variance over `axis`: the squared distance from the mean, summed and divided by n -
    correction.
    """
    x = as_float(x)
    if correction == int(correction):
        return _reduce(VarOp, x, axis, keepdims, correction=int(correction))
    n = count(x, normalize_axes(VarOp, axis, x.ndim))
    biased = _reduce(VarOp, x, axis, keepdims)
    n = n if n.ndim == 0 else n.reshape_to(biased.shape, like=(biased,))
    return biased * (n / (n - correction).clip(min=0))


def std(x: Any, axis: Any = None, keepdims: bool = False, correction: float = 0) -> Any:
    """Standard deviation over `axis`, the root of `var`; its gradient is 0 where it is 0."""
    return var(x, axis, keepdims, correction).sqrt()


def max(x: Any, axis: Any = None, keepdims: bool = False) -> Any:  # noqa: A001
    """Largest element over `axis`; ties share the gradient evenly."""
    return _reduce(MaxOp, as_tensor(x), axis, keepdims)


def min(x: Any, axis: Any = None, keepdims: bool = False) -> Any:  # noqa: A001
    """Smallest element over `axis`; ties share the gradient evenly."""
    return _reduce(MinOp, as_tensor(x), axis, keepdims)


def any(x: Any, axis: Any = None, keepdims: bool = False) -> Any:  # noqa: A001
    """True where any element over `axis` is true (not 0)."""
    return _reduce(AnyOp, as_tensor(x).astype(bool_), axis, keepdims)


def all(x: Any, axis: Any = None, keepdims: bool = False) -> Any:  # noqa: A001
    """True where all elements over `axis` are true (not 0)."""
    return _reduce(AllOp, as_tensor(x).astype(bool_), axis, keepdims)


def logsumexp(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Logarithm of the sum of exponentials over `axis`."""
    return _reduce(LogsumexpOp, as_float(x), axis, keepdims)


def norm(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Euclidean norm over `axis`; its gradient is 0 where it is 0."""
    return _reduce(NormOp, as_float(x), axis, keepdims)


def argmax(x: Any, axis: int | None = None, keepdims: bool = False) -> Any:
    """Position (int32) of the largest element along `axis`, or in the flattened tensor."""
    return _arg_reduce(ArgmaxOp, as_tensor(x), axis, keepdims)


def argmin(x: Any, axis: int | None = None, keepdims: bool = False) -> Any:
    """Position (int32) of the smallest element along `axis`, or in the flattened tensor."""
    return _arg_reduce(ArgminOp, as_tensor(x), axis, keepdims)


def _arg_reduce(op_class: type[Op], x: Any, axis: int | None, keepdims: bool) -> Any:
    if axis is None:
        flat = op_class.emit(x.reshape(-1), axis=0)
        return flat.expand_dims(tuple(range(x.ndim))) if keepdims else flat
    (axis,) = normalize_axes(op_class, axis, x.ndim)
    y = op_class.emit(x, axis=axis)
    return y.expand_dims((axis,)) if keepdims else y


def as_float(x: Any) -> Any:
    """`x` as a floating-point tensor, float32 if it is not one."""
    x = as_tensor(x)
    return x if is_float(x.dtype) else x.astype(float32)
