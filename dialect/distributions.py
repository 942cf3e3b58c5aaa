# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Random numbers of a distribution, each a function of the random bits at its position; see
random.py for what they have in common. Composite ops: they consist of `random_bits` and arithmetic.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import reduction, transcendental
from .base import NO_GRADIENT, DType, Float, Int, Op, Operand, Result
from .creation import constant, iota
from .later import scipy
from .logic import bitcast, clip
from .slicing import stack
from .special import erf_inv
from .threefry import Draw, RandomBitsOp, ThreefryOp, check_key, encrypt
from .types import (
    TensorSpec,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int32,
    int64,
    is_float,
    is_integer,
    is_narrow,
)

FRACTION_BITS = {float64: 52, float32: 23, float16: 11, bfloat16: 8}
"""Random bits in a number of [0, 1)."""


class RandomUniformOp(Draw, name="random_uniform"):
    """Numbers spread evenly over [low, high): y = low + u * (high - low), u a fraction of random
    bits in [0, 1).

    Example: `%y = "gradopt.random_uniform"(%key) {shape = array<i64: 4>} : (tensor<2xui32>) ->
    tensor<4xf32>`
    """

    low: Float = 0.0
    high: Float = 1.0
    dtype: DType = float32

    @classmethod
    def infer(
        cls,
        key: TensorSpec,
        *like: TensorSpec,
        shape: tuple[int | None, ...],
        low: float,
        high: float,
        dtype: np.dtype,
    ) -> TensorSpec:
        check_floating(cls, dtype)
        if not (low <= high and math.isfinite(np.array(high - low, dtype))):
            raise cls.error(f"low <= high with a finite distance in {dtype.name}", f"{low}, {high}")
        return cls.drawn(key, like, TensorSpec(shape, dtype))

    @staticmethod
    def reference(
        key: np.ndarray,
        *like: np.ndarray,
        shape: tuple[int | None, ...],
        low: float,
        high: float,
        dtype: np.dtype,
    ) -> np.ndarray:
        first = RandomBitsOp.reference(
            key, *like, shape=shape, word="first" if dtype == float64 else "xor"
        ).astype(np.uint64)
        second = RandomBitsOp.reference(key, *like, shape=shape, word="second").astype(np.uint64)
        bits, whole = (first << np.uint64(32) | second, 64) if dtype == float64 else (first, 32)
        wide = float32 if is_narrow(dtype) else dtype
        kept = FRACTION_BITS[dtype]
        fraction = (bits >> np.uint64(whole - kept)).astype(wide) * wide.type(2.0**-kept)
        low, high = dtype.type(low), dtype.type(high)
        y = fraction * (wide.type(high) - wide.type(low)) + wide.type(low)
        return np.minimum(y, wide.type(below(high, low)))

    @staticmethod
    def decompose(
        key: Any, *like: Any, shape: Any, low: float, high: float, dtype: np.dtype
    ) -> Any:
        """The fraction, exact, scaled and shifted in float32 for 16-bit types; what rounding would
        bring to `high` stays below it
        """
        wide = float32 if is_narrow(dtype) else dtype
        u = _fraction(key, like, shape, dtype)
        lowest, highest = dtype.type(low), dtype.type(high)
        scale = wide.type(wide.type(highest) - wide.type(lowest))
        y = u * scale + wide.type(lowest)
        if is_narrow(dtype) or low != 0:
            y = clip(y, max=wide.type(below(highest, lowest)))
        return y.astype(dtype)


def below(high: Any, low: Any) -> Any:
    """The largest number below `high`, but not below `low`, in their type."""
    return np.nextafter(high, low)


def check_floating(op_class: type[Op], dtype: np.dtype) -> None:
    if not is_float(dtype):
        raise op_class.error("a floating-point dtype", dtype.name)


def _fraction(key: Any, like: Sequence[Any], shape: Any, dtype: np.dtype) -> Any:
    """A fraction of random bits in [0, 1), in float32 for 16-bit types. Numbers of at most 31 bits
    are converted as signed ones, which CPUs do faster.
    """
    kept = FRACTION_BITS[dtype]
    if dtype == float64:
        first = RandomBitsOp.emit(key, *like, shape=shape, word="first")
        second = RandomBitsOp.emit(key, *like, shape=shape, word="second") >> (64 - kept)
        return first.astype(dtype) * 2.0**-32 + second.astype(dtype) * 2.0**-kept
    bits = RandomBitsOp.emit(key, *like, shape=shape) >> (32 - kept)
    return bitcast(bits, dtype=int32).astype(float32) * 2.0**-kept


class FloatDraw(Draw):
    """Numbers of a distribution without parameters."""

    dtype: DType = float32

    @classmethod
    def infer(
        cls, key: TensorSpec, *like: TensorSpec, shape: tuple[int | None, ...], dtype: np.dtype
    ) -> TensorSpec:
        check_floating(cls, dtype)
        return cls.drawn(key, like, TensorSpec(shape, dtype))


class RandomNormalOp(FloatDraw, name="random_normal"):
    """Numbers of the standard normal distribution, by inversion: y = sqrt(2) erf_inv(u), u uniform
    in (-1, 1).

    Example: `%y = "gradopt.random_normal"(%key) {shape = array<i64: 4>} : (tensor<2xui32>) ->
    tensor<4xf32>`
    """

    @staticmethod
    def reference(
        key: np.ndarray, *like: np.ndarray, shape: tuple[int | None, ...], dtype: np.dtype
    ) -> np.ndarray:
        wide = float32 if is_narrow(dtype) else dtype
        least = float(np.nextafter(wide.type(-1), wide.type(0)))
        u = RandomUniformOp.reference(key, *like, shape=shape, low=least, high=1.0, dtype=wide)
        return math.sqrt(2) * scipy.special.erfinv(u.astype(np.float64))

    @staticmethod
    def decompose(key: Any, *like: Any, shape: Any, dtype: np.dtype) -> Any:
        wide = float32 if is_narrow(dtype) else dtype
        least = float(np.nextafter(wide.type(-1), wide.type(0)))
        u = RandomUniformOp.emit(key, *like, shape=shape, low=least, high=1.0, dtype=wide)
        return (erf_inv(u) * math.sqrt(2)).astype(dtype)


class RandomTruncatedNormalOp(Draw, name="random_truncated_normal"):
    """Numbers of the standard normal distribution between two bounds, by inversion: y = sqrt(2)
    erf_inv(u), u uniform in (erf(lower / sqrt 2), erf(upper / sqrt 2)).

    Example: `%y = "gradopt.random_truncated_normal"(%key) {shape = array<i64: 4>, lower = -2.0 :
    f64, upper = 2.0 : f64} : (tensor<2xui32>) -> tensor<4xf32>`
    """

    lower: Float = -2.0
    upper: Float = 2.0
    dtype: DType = float32

    @classmethod
    def infer(
        cls,
        key: TensorSpec,
        *like: TensorSpec,
        shape: tuple[int | None, ...],
        lower: float,
        upper: float,
        dtype: np.dtype,
    ) -> TensorSpec:
        check_floating(cls, dtype)
        low, high, least, most = cls.ends(lower, upper, dtype)
        if not (low < high and least <= most):
            raise cls.error(
                "lower < upper with a share of the distribution between them that "
                f"{dtype.name} can tell from none",
                f"{lower} and {upper}",
            )
        return cls.drawn(key, like, TensorSpec(shape, dtype))

    @staticmethod
    def ends(lower: float, upper: float, dtype: np.dtype) -> tuple[float, float, float, float]:
        """The range of u, and the first and last number inside the bounds."""
        wide = float32 if is_narrow(dtype) else dtype
        low, high = (float(wide.type(math.erf(b / math.sqrt(2)))) for b in (lower, upper))
        bounds = np.array([lower, upper], dtype)
        least, most = (np.nextafter(b, o) for b, o in zip(bounds, bounds[::-1], strict=True))
        return low, high, float(least), float(most)

    @staticmethod
    def reference(
        key: np.ndarray,
        *like: np.ndarray,
        shape: tuple[int | None, ...],
        lower: float,
        upper: float,
        dtype: np.dtype,
    ) -> np.ndarray:
        wide = float32 if is_narrow(dtype) else dtype
        low, high, least, most = RandomTruncatedNormalOp.ends(lower, upper, dtype)
        u = RandomUniformOp.reference(key, *like, shape=shape, low=low, high=high, dtype=wide)
        return np.clip(math.sqrt(2) * scipy.special.erfinv(u.astype(np.float64)), least, most)

    @staticmethod
    def decompose(
        key: Any, *like: Any, shape: Any, lower: float, upper: float, dtype: np.dtype
    ) -> Any:
        wide = float32 if is_narrow(dtype) else dtype
        low, high, least, most = RandomTruncatedNormalOp.ends(lower, upper, dtype)
        u = RandomUniformOp.emit(key, *like, shape=shape, low=low, high=high, dtype=wide)
        return clip((erf_inv(u) * math.sqrt(2)).astype(dtype), least, most)


class RandomExponentialOp(FloatDraw, name="random_exponential"):
    """Numbers of the exponential distribution of mean 1, by inversion: y = -ln(1 - u), u uniform in
    [0, 1).

    Example: `%y = "gradopt.random_exponential"(%key) {shape = array<i64: 4>} : (tensor<2xui32>) ->
    tensor<4xf32>`
    """

    @staticmethod
    def reference(
        key: np.ndarray, *like: np.ndarray, shape: tuple[int | None, ...], dtype: np.dtype
    ) -> np.ndarray:
        wide = float32 if is_narrow(dtype) else dtype
        u = RandomUniformOp.reference(key, *like, shape=shape, low=0.0, high=1.0, dtype=wide)
        return -np.log1p(-u.astype(np.float64))

    @staticmethod
    def decompose(key: Any, *like: Any, shape: Any, dtype: np.dtype) -> Any:
        wide = float32 if is_narrow(dtype) else dtype
        u = RandomUniformOp.emit(key, *like, shape=shape, dtype=wide)
        return (-transcendental.log1p(-u)).astype(dtype)


class RandomGumbelOp(FloatDraw, name="random_gumbel"):
    """Numbers of the standard Gumbel distribution, by inversion: y = -ln(-ln u), u uniform in (0,
    1).

    Example: `%y = "gradopt.random_gumbel"(%key) {shape = array<i64: 4>} : (tensor<2xui32>) ->
    tensor<4xf32>`
    """

    @staticmethod
    def reference(
        key: np.ndarray, *like: np.ndarray, shape: tuple[int | None, ...], dtype: np.dtype
    ) -> np.ndarray:
        wide = float32 if is_narrow(dtype) else dtype
        least = float(np.finfo(wide).tiny)
        u = RandomUniformOp.reference(key, *like, shape=shape, low=least, high=1.0, dtype=wide)
        return -np.log(-np.log(u.astype(np.float64)))

    @staticmethod
    def decompose(key: Any, *like: Any, shape: Any, dtype: np.dtype) -> Any:
        wide = float32 if is_narrow(dtype) else dtype
        least = float(np.finfo(wide).tiny)
        u = RandomUniformOp.emit(key, *like, shape=shape, low=least, high=1.0, dtype=wide)
        return (-transcendental.log(-transcendental.log(u))).astype(dtype)


class RandomBernoulliOp(Draw, name="random_bernoulli"):
    """True with probability p: y = u < p, u uniform in [0, 1) with 23 random bits.

    Example: `%y = "gradopt.random_bernoulli"(%key) {shape = array<i64: 4>, p = 0.5 : f64} :
    (tensor<2xui32>) -> tensor<4xi1>`
    """

    p: Float = 0.5

    @classmethod
    def infer(
        cls, key: TensorSpec, *like: TensorSpec, shape: tuple[int | None, ...], p: float
    ) -> TensorSpec:
        if not 0 <= p <= 1:
            raise cls.error("a probability in [0, 1]", p)
        return cls.drawn(key, like, TensorSpec(shape, bool_))

    @staticmethod
    def reference(
        key: np.ndarray, *like: np.ndarray, shape: tuple[int | None, ...], p: float
    ) -> np.ndarray:
        u = RandomUniformOp.reference(key, *like, shape=shape, low=0.0, high=1.0, dtype=float32)
        return u < np.float32(p)

    @staticmethod
    def decompose(key: Any, *like: Any, shape: Any, p: float) -> Any:
        """23 bits as a whole number below p * 2^23, rounded up, which is the same without floats"""
        bits = RandomBitsOp.emit(key, *like, shape=shape) >> (32 - FRACTION_BITS[float32])
        return bits < math.ceil(float(np.float32(p)) * 2 ** FRACTION_BITS[float32])


class RandomRandintOp(Draw, name="random_randint"):
    """Whole numbers in [low, high): y = low + (h * m + l) mod n, n = high - low, m = 2^32 mod n, of
    64 random bits h * 2^32 + l, modulo 2^32.

    h and l are the bits of the two keys that `key` splits into. A number is at most n / 2^32 times
    more likely than another.
    Example: `%y = "gradopt.random_randint"(%key) {shape = array<i64: 4>, low = 0 : i64, high = 6 :
    i64} : (tensor<2xui32>) -> tensor<4xi32>`
    """

    low: Int
    high: Int
    dtype: DType = int32

    @classmethod
    def infer(
        cls,
        key: TensorSpec,
        *like: TensorSpec,
        shape: tuple[int | None, ...],
        low: int,
        high: int,
        dtype: np.dtype,
    ) -> TensorSpec:
        if not is_integer(dtype):
            raise cls.error("an integer dtype", dtype.name)
        limits = np.iinfo(dtype)
        if not limits.min <= low < high <= limits.max + 1 or high - low >= 2**32:
            raise cls.error(
                f"low < high, at most 2^32 - 1 apart, of numbers that fit {dtype.name}",
                f"{low} and {high}",
            )
        return cls.drawn(key, like, TensorSpec(shape, dtype))

    @staticmethod
    def reference(
        key: np.ndarray,
        *like: np.ndarray,
        shape: tuple[int | None, ...],
        low: int,
        high: int,
        dtype: np.dtype,
    ) -> np.ndarray:
        n = high - low
        rows = np.stack(encrypt(key, np.zeros(2, np.uint32), np.arange(2)), axis=-1)
        h, l = (RandomBitsOp.reference(row, *like, shape=shape).astype(np.uint64) for row in rows)
        multiplier = np.uint64((2**16 % n) ** 2 % 2**32 % n)
        mixed = (h % n * multiplier + l % n) & np.uint64(0xFFFFFFFF)
        return (low + (mixed % np.uint64(n)).astype(np.int64)).astype(dtype)

    @staticmethod
    def decompose(key: Any, *like: Any, shape: Any, low: int, high: int, dtype: np.dtype) -> Any:
        n = high - low
        multiplier = (2**16 % n) ** 2 % 2**32 % n
        h, l = (RandomBitsOp.emit(k, *like, shape=shape) % n for k in _halves(key))
        offset = (h * multiplier + l) % n
        if dtype == int64:
            return offset.astype(int64) + low
        return (offset + low % 2**32).astype(dtype)


def _halves(key: Any) -> list[Any]:
    """The two keys that a key splits into."""
    first, second = (constant(np.array(words, np.uint32)) for words in ([0, 0], [0, 1]))
    return list(stack(ThreefryOp.emit(key, first, second), axis=1))


class RandomPermutationOp(Op, name="random_permutation"):
    """The numbers 0 to n - 1 in random order: y[i] = how many of n random bits come before the
    i-th, the earlier one first among equals.

    Costs n^2 comparisons.
    Example: `%y = "gradopt.random_permutation"(%key) {n = 4 : i64} : (tensor<2xui32>) ->
    tensor<4xi32>`
    """

    key: Operand
    n: Int
    y: Result

    @classmethod
    def infer(cls, key: TensorSpec, n: int) -> TensorSpec:
        check_key(cls, key)
        if not 0 <= n < 2**31:
            raise cls.error("a number of elements in [0, 2^31)", n)
        return TensorSpec((n,), int32)

    @staticmethod
    def reference(key: np.ndarray, n: int) -> np.ndarray:
        order = np.argsort(RandomBitsOp.reference(key, shape=(n,)), kind="stable")
        return np.argsort(order)

    @staticmethod
    def decompose(key: Any, n: int) -> Any:
        bits = RandomBitsOp.emit(key, shape=(n,))
        own, others = bits.expand_dims(1), bits.expand_dims(0)
        earlier = iota((n, n), 1) < iota((n, n), 0)
        first = (others < own) | (others.equal(own) & earlier)
        return first.astype(int32).sum(1)

    vjp = NO_GRADIENT


class RandomCategoricalOp(Op, name="random_categorical"):
    """An index drawn with probabilities softmax(logits) along an axis: y = argmax(logits + g), g
    Gumbel numbers (Gumbel-max trick).

    Example: `%y = "gradopt.random_categorical"(%key, %logits) {axis = 1 : i64} : (tensor<2xui32>,
    tensor<8x10xf32>) -> tensor<8xi32>`
    """

    key: Operand
    logits: Operand
    axis: Int
    y: Result

    @classmethod
    def infer(cls, key: TensorSpec, logits: TensorSpec, axis: int) -> TensorSpec:
        check_key(cls, key)
        check_floating(cls, logits.dtype)
        if not 0 <= axis < logits.rank or logits.shape[axis] == 0:
            raise cls.error(f"an axis of {logits} with at least one element", axis)
        return TensorSpec((n for i, n in enumerate(logits.shape) if i != axis), int32)

    @staticmethod
    def reference(key: np.ndarray, logits: np.ndarray, axis: int) -> np.ndarray:
        g = RandomGumbelOp.reference(key, shape=logits.shape, dtype=logits.dtype)
        return np.argmax(logits + g.astype(logits.dtype), axis=axis)

    @staticmethod
    def decompose(key: Any, logits: Any, axis: int) -> Any:
        wide = float32 if is_narrow(logits.dtype) else logits.dtype
        g = RandomGumbelOp.emit(
            key, *([] if logits.spec.is_static else [logits]), shape=logits.shape, dtype=wide
        )
        return reduction.argmax(logits.astype(wide) + g, axis)

    vjp = NO_GRADIENT
