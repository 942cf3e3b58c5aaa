# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Stand-ins for float64 on targets that do not compute in it: sums of two float32, of which the
high one has 12 significant bits and the low one 24.

A product of two high halves is exact in float32, and so are a sum's rounding errors that are taken
from them. Compilers of GPUs may contract x * y + z, and simplify (x + y) - x, where IEEE 754 would
not; they do not see through the mask that cuts off a high half's lower bits, and contracting what
is exact changes nothing. So pairs have their 36 bits whatever a driver does.

The low half of numbers below 2^-100 is lost where a device flushes denormal numbers to 0:
`in_double` takes another formula there, and logarithms go back to the single number that their
argument was (`single`).
"""

import math as pymath
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from ...dialect.mlir import arith, ir, math
from ...dialect.types import bool_, float32, float64, int32, is_narrow
from . import scalar
from .scalar import Scalar, absolute, bitcast, convert, select

_has_double: ContextVar[bool] = ContextVar("has_double", default=True)


@contextmanager
def _computing(has_double: bool) -> Any:
    token = _has_double.set(has_double)
    try:
        yield
    finally:
        _has_double.reset(token)


def computing(has_double: bool) -> AbstractContextManager[None]:
    """Lowering for a target that computes in float64, or for one that does not."""
    return _computing(has_double)


def is_single(x: Scalar) -> bool:
    """Whether `x` is a float32 and the target has nothing wider."""
    return x.dtype == float32 and not _has_double.get()


def in_double(
    function: Callable[..., Scalar] | None = None,
    *,
    single: Callable[..., Scalar] | None = None,
    near_zero: Callable[..., Scalar] | None = None,
) -> Any:
    """`function` evaluated in float64 and rounded to the operands' type; where the target has no
    float64, `single` on float32, or without one `function` on pairs. `near_zero` is what it is for
    a first operand below 2^-60, to float32's precision.
    """
    if function is None:
        return lambda f: in_double(f, single=single, near_zero=near_zero)

    def wrapped(*operands: Scalar, **attributes: Any) -> Scalar:
        dtype = operands[0].dtype
        if _has_double.get() or not (dtype == float32 or is_narrow(dtype)):
            doubles = (convert(x, float64) for x in operands)
            return convert(function(*doubles, **attributes), dtype)
        singles = [convert(x, float32) for x in operands]
        if single:
            return convert(single(*singles, **attributes), dtype)
        result = function(*(pair(x) for x in singles), **attributes).rounded()
        if near_zero:
            result = select(absolute(singles[0]) < 2.0**-60, near_zero(*singles), result)
        return convert(result, dtype)

    return wrapped


def identity(x: Scalar) -> Scalar:
    """`near_zero` of functions that are x there."""
    return x


class Pair(Scalar):
    """A number being computed as the sum of two float32; `low` is None where it is 0, `single` the
    float32 that it was made from, if it is exactly that one, `nearest` the one that it rounds to,
    if that was computed apart.
    """

    __slots__ = ("high", "low", "nearest", "single")

    def __init__(
        self,
        high: Scalar,
        low: Scalar | None,
        single: Scalar | None = None,
        nearest: Scalar | None = None,
    ) -> None:
        self.dtype = float64  # what it stands for
        self.high = high
        self.low = low
        self.single = single
        self.nearest = single if nearest is None else nearest

    def constant(self, x: Any) -> "Pair":
        """`x`, a number or a pair, as a pair."""
        if isinstance(x, Pair):
            return x
        high, low = halves(float(x))
        return Pair(self.high.constant(high), self.high.constant(low) if low else None)

    def apply(self, op: Callable[..., ir.Value], *others: Any) -> "Pair":
        return OPS[op](self, *(self.constant(x) for x in others))

    def chosen(self, condition: Scalar, other: Any) -> "Pair":
        other = self.constant(other)
        low = nearest = None
        if self.low is not None or other.low is not None:
            low = select(condition, self.lower, other.lower)
        if self.nearest is not None or other.nearest is not None:
            nearest = select(condition, self.rounded(), other.rounded())
        return Pair(select(condition, self.high, other.high), low, nearest=nearest)

    @property
    def lower(self) -> Scalar:
        """The low half, as a number also where it is 0."""
        return self.high.constant(0.0) if self.low is None else self.low

    def is_nan(self) -> Scalar:
        return scalar.is_nan(self.high)

    def rounded(self) -> Scalar:
        """The nearest float32, but for its last bit; keeps the sign of 0."""
        if self.nearest is not None:
            return self.nearest
        if self.low is None:
            return self.high
        return select(self.high == 0.0, self.high, self.high + self.low)

    def polynomial(self, coefficients: Sequence[float]) -> Scalar:
        """Horner's rule, the terms above the third power in float32."""
        first, last = coefficients[:-4], coefficients[-4:]
        result = self.constant(0.0)
        if first:
            result = pair(self.rounded().polynomial(first))
        for c in last:
            result = result * self + c
        return result

    def compare(self, direction: str, other: Any) -> Scalar:
        other = self.constant(other)
        if direction in ("gt", "ge"):
            return other.compare({"gt": "lt", "ge": "le"}[direction], self)
        same = self.high == other.high
        if direction in ("eq", "ne"):
            equal = same & (self.lower == other.lower)
            return equal if direction == "eq" else ~equal
        return (self.high < other.high) | (same & self.lower.compare(direction, other.lower))


def halves(x: float) -> tuple[float, float]:
    """The high and the low half of a number."""
    if not pymath.isfinite(x) or x == 0:
        return x, 0.0
    bits = np.float32(x).view(np.int32) & HEAD
    high = float(bits.view(np.float32))
    return high, float(np.float32(x - high))


HEAD = np.int32(-4096)  # all but the lower 12 bits
EXPONENT = 0x7F800000
SIGN = -(2**31)


def head(x: Scalar) -> Scalar:
    """A float32 with its lower 12 bits cut off."""
    return bitcast(bitcast(x, int32) & int(HEAD), float32)


def is_finite(x: Scalar) -> Scalar:
    """By its bits, since GPUs may take comparisons to be of finite numbers."""
    return (bitcast(x, int32) & EXPONENT) != EXPONENT


def pair(x: Scalar) -> Pair:
    """A float32 as a pair, exactly."""
    high = head(x)
    return Pair(high, select(is_finite(x), x - high, 0.0), x)


def settled(high: Scalar, rest: Scalar | None) -> Pair:
    """The pair of a number and a much smaller one, which may be NaN where the first is infinite."""
    if rest is None:
        total, finite = high, is_finite(high)
        top = head(total)
        return Pair(top, select(finite, high - top, 0.0))
    total = high + rest
    finite = is_finite(total)
    top = head(select(finite, total, high))
    return Pair(top, select(finite, (high - top) + rest, 0.0))


def plus(*terms: Scalar | None) -> Scalar | None:
    """The sum of those that are not None."""
    total: Scalar | None = None
    for term in terms:
        total = term if total is None else total if term is None else total + term
    return total


def times(x: Scalar | None, y: Scalar | None) -> Scalar | None:
    return None if x is None or y is None else x * y


def add(x: Pair, y: Pair) -> Pair:
    swapped = absolute(x.high) < absolute(y.high)
    large, small = select(swapped, y.high, x.high), select(swapped, x.high, y.high)
    top = head(large + small)
    return settled(top, plus((large - top) + small, plus(x.low, y.low)))


def negative(x: Pair) -> Pair:
    low, nearest = (None if p is None else -p for p in (x.low, x.nearest))
    return Pair(-x.high, low, nearest=nearest)


def multiply(x: Pair, y: Pair) -> Pair:
    small = plus(times(x.low, y.high), times(x.low, y.low))
    return settled(x.high * y.high, plus(times(x.high, y.low), small))


def divide(x: Pair, y: Pair) -> Pair:
    """The quotient in float32, cut, and that of what it leaves."""
    divisor = y.rounded()
    top = head(x.rounded() / divisor)
    left = x.high - top * y.high
    crossed = None if y.low is None else -(top * y.low)
    return settled(top, plus(left, plus(x.low, crossed)) / divisor)  # type: ignore[operator]


def square_root(x: Pair) -> Pair:
    """By sqrt x - y = (x - y^2) / (sqrt x + y)."""
    root = scalar.sqrt(x.rounded())
    top = head(root)
    return settled(top, plus(x.high - top * top, x.low) / (top + root))  # type: ignore[operator]


def floor(x: Pair) -> Pair:
    whole = scalar.floor(x.high)
    return settled(whole, select(whole == x.high, scalar.floor(x.lower), 0.0))


def flipped(x: Pair, sign: Scalar) -> Pair:
    """With the sign changed where the bit `sign` is set."""
    high, low, nearest = (
        None if p is None else bitcast(bitcast(p, int32) ^ sign, float32)
        for p in (x.high, x.low, x.nearest)
    )
    assert high is not None
    return Pair(high, low, nearest=nearest)


def magnitude(x: Pair) -> Pair:
    found = flipped(x, bitcast(x.high, int32) & SIGN)
    found.single = None if x.single is None else absolute(x.single)
    return found


def with_sign(x: Pair, y: Pair) -> Pair:
    return flipped(x, (bitcast(x.high, int32) ^ bitcast(y.high, int32)) & SIGN)


def larger(x: Pair, y: Pair) -> Pair:
    return x.chosen((x > y) | x.is_nan(), y)


def smaller(x: Pair, y: Pair) -> Pair:
    return x.chosen((x < y) | x.is_nan(), y)


# --- exponentials and logarithms ------------------------------------------------------------------


def parts_of(x: float, rest: float, count: int) -> list[float]:
    """The sum x + rest of two float64 as `count` float32 of 12 bits, then one of 24."""
    parts = []
    for _ in range(count):
        parts.append(halves(x)[0])
        x -= parts[-1]
    return [*parts, float(np.float32(x + rest))]


LN2 = parts_of(pymath.log(2), 2.3190468138462996e-17, 2)
EXP_TAIL = [1 / pymath.factorial(n) for n in range(9, 2, -1)]
LOG_TAIL = [2 / n for n in range(15, 3, -2)]


def power_of_two(n: Scalar) -> Scalar:
    """2^n in float32 for an int32 in [-126, 127]."""
    return bitcast((n + 127) << 23, float32)


def exponential(x: Pair) -> Pair:
    """2^k e^r with k the nearest whole number to x / ln 2: e^r by its series, from r^3 on in
    float32.
    """
    x = select(x < -104.0, x.constant(-104.0), select(x > 89.0, x.constant(89.0), x))
    k = scalar.round_even(x.rounded() * (1 / pymath.log(2)))
    low = plus(x.low, -(k * LN2[1]))
    r = settled(x.high - k * LN2[0], low - k * LN2[2])  # type: ignore[operator]
    single = r.rounded()
    tail = scalar.polynomial(single, EXP_TAIL) * (single * single * single)
    power = r * r * 0.5 + r + 1.0
    power = settled(power.high, plus(power.low, tail))
    n = convert(k, int32)
    half = n >> 1
    scales = power_of_two(half), power_of_two(n - half)
    parts = (power.high, power.lower, power.rounded())  # the last since small lower ones are lost
    high, low, nearest = (p * scales[0] * scales[1] for p in parts)
    return Pair(high, low, nearest=nearest)


def logarithm(x: Pair) -> Pair:
    """k ln 2 + 2 atanh((m - 1) / (m + 1)) for x = 2^k m, m around 1."""
    m, k = mantissa(x)
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    tail = scalar.polynomial(z.rounded(), LOG_TAIL) * (s.rounded() * z.rounded() * z.rounded())
    near = s * 2.0 + s * z * (2 / 3)
    near = settled(near.high, plus(near.low, tail))
    result = near + settled(k * LN2[0], k * LN2[1] + k * LN2[2])
    whole = x.rounded()
    special = select(whole == 0.0, result.constant(-pymath.inf), pymath.nan)
    special = select(whole > 0.0, x, special)
    return result.chosen((whole > 0.0) & is_finite(whole), special)


ROOT_HALF = 0x3F3504F3  # the bits of sqrt 1/2


def mantissa(x: Pair) -> tuple[Pair, Scalar]:
    """m in [sqrt 1/2, sqrt 2) and k, a whole float32, with x = 2^k m."""
    if x.single is not None:
        m, k = single_mantissa(x.single)
        return pair(m), k
    bits = bitcast(x.high, int32)
    k = (bits - ROOT_HALF) >> 23
    high = bitcast(bits - (k << 23), float32)
    inverse = power_of_two(2 - select(k < -124, -124, k)) * 0.25
    return Pair(high, None if x.low is None else x.low * inverse), convert(k, float32)


def single_mantissa(x: Scalar) -> tuple[Scalar, Scalar]:
    """The same of a float32, which may be denormal."""
    tiny = x < 2.0**-126
    bits = bitcast(select(tiny, x * 2.0**24, x), int32)
    k = (bits - ROOT_HALF) >> 23
    m = bitcast(bits - (k << 23), float32)
    return m, convert(k - select(tiny, k.constant(24), 0), float32)


OPS: dict[Callable[..., ir.Value], Callable[..., Pair]] = {
    arith.addf: add,
    arith.subf: lambda x, y: add(x, negative(y)),
    arith.mulf: multiply,
    arith.divf: divide,
    arith.negf: negative,
    arith.maximumf: larger,
    arith.minimumf: smaller,
    math.absf: magnitude,
    math.copysign: with_sign,
    math.floor: floor,
    math.roundeven: lambda x: floor(x + 0.5),  # ties go up
    math.fma: lambda x, y, z: add(multiply(x, y), z),
    math.sqrt: square_root,
    math.exp: exponential,
    math.log: logarithm,
}
"""What pairs do for ops of the arith and math dialects."""
