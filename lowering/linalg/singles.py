# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Elementary functions in float32 alone, for targets that do not compute in float64: a few units in
the last place over the whole range.

They are built from +, - and *, which every device rounds alike; a GPU's own exp and log may be off
by 2^-21 and more, and its division and square root by 2.5 units. Where a rounding error is taken
back, the number that it is taken from went through a mask (see pairs.py).
"""

import math as pymath

from ...dialect.types import float32, int32
from .pairs import head, pair, power_of_two, single_mantissa
from .scalar import (
    Scalar,
    absolute,
    bitcast,
    convert,
    copysign,
    floor,
    is_nan,
    polynomial,
    round_even,
    select,
    sqrt,
)

LN2 = (0.693145751953125, 1.4286068203094172e-06)
"""ln 2 in two parts, the first of 15 bits."""


# --- exponentials and logarithms ------------------------------------------------------------------

EXP_TAIL = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)
"""(e^r - 1 - r) / r^2 on [-ln 2 / 2, ln 2 / 2], of Moshier's Cephes, expf.c (1989)."""


def reduced(x: Scalar, rest: Scalar | None = None) -> tuple[Scalar, Scalar]:
    """n and e^r - 1 with x + rest = n ln 2 + r, for x in [-104, 89] and a small rest."""
    k = round_even(x * (1 / pymath.log(2)))
    r = (x - k * LN2[0]) - k * LN2[1]
    r = r if rest is None else r + rest
    return convert(k, int32), r * r * polynomial(r, EXP_TAIL) + r


def exp(x: Scalar, rest: Scalar | None = None) -> Scalar:
    """e^(x + rest)."""
    n, above = reduced(clamped(x, -104.0, 89.0), rest)
    half = n >> 1
    return (1.0 + above) * power_of_two(half) * power_of_two(n - half)


def clamped(x: Scalar, low: float, high: float) -> Scalar:
    """`x` moved into [low, high]; NaN stays."""
    return select(x < low, low, select(x > high, high, x))


def expm1(x: Scalar) -> Scalar:
    """2^n (e^r - 1) + (2^n - 1), from n = 25 on e^x."""
    n, above = reduced(clamped(x, -30.0, 17.0))
    scale = power_of_two(n)
    near = scale * above + (scale - 1.0)
    return select(x == 0.0, x, select(x > 17.0, exp(x), near))


LOG_TAIL = (0.24279078841, 0.28498786688, 0.40000972152, 0.66666662693)
"""(log((1 + s) / (1 - s)) - 2 s) / s^3 in s^2, of Sun's fdlibm, e_logf.c (1993)."""


def log(x: Scalar) -> Scalar:
    m, k = single_mantissa(x)
    f = m - 1.0
    s = f / (m + 1.0)
    z = s * s
    square = f * f * 0.5
    near = f - (square - s * (square + z * polynomial(z, LOG_TAIL)))
    result = k * LN2[0] + (near + k * LN2[1])
    special = select(x == 0.0, -pymath.inf, select(x > 0.0, x, pymath.nan))
    return select((x > 0.0) & (x < pymath.inf), result, special)


def log1p(x: Scalar) -> Scalar:
    """log u + c / u for u near 1 + x, whose last bit is cut off, and c = 1 + x - u."""
    u = bitcast(bitcast(1.0 + x, int32) & -2, float32)
    rest = select(x > 1.0, 1.0 - (u - x), x - (u - 1.0))
    plain = (u == 0.0) | ~(u < pymath.inf)
    return select(x == 0.0, x, log(u) + select(plain, 0.0, rest / u))


def tanh(x: Scalar) -> Scalar:
    """-t / (t + 2) with t = e^(-2 |x|) - 1."""
    t = expm1(absolute(x) * -2.0)
    return copysign(-t / (t + 2.0), x)


# --- the error function ---------------------------------------------------------------------------

ERF = (
    8.73331228e-05,
    -0.000822327682,
    0.00520770065,
    -0.0268619265,
    0.112837382,
    -0.376126349,
    0.12837923,
)
"""erf(x) / x - 1 in x^2 for |x| <= 0.86, fitted by weighted least squares."""
ERFCX = (
    -0.000194005072,
    -0.000688509317,
    0.00196792651,
    0.00250448496,
    -0.023795031,
    0.0683110058,
    -0.119270548,
    0.129645005,
    -0.0475624353,
    -0.135621101,
    1.25300801,
)
"""e^(x^2) erfc(x) (1 + 2 x) in (x - 3) / (x + 3) for x in [0.4, 11], fitted the same way."""


def erf_parts(x: Scalar) -> tuple[Scalar, Scalar]:
    """erf |x| for |x| < 0.84 and erfc |x| for |x| > 0.4."""
    a = clamped(absolute(x), 0.0, 11.0)
    small = a + a * polynomial(a * a, ERF)
    top = head(a)  # its square is exact
    power = exp(-top * top, (top - a) * (top + a))
    p = (a - 3.0) / (a + 3.0)
    return small, power * polynomial(p, ERFCX) / (1.0 + 2.0 * a)


def erf(x: Scalar) -> Scalar:
    small, rest = erf_parts(x)
    return copysign(select(absolute(x) < 0.84, small, 1.0 - rest), x)


def erfc(x: Scalar) -> Scalar:
    small, rest = erf_parts(x)
    near = select(x < 0.0, 1.0 + small, 1.0 - small)
    return select(absolute(x) < 0.5, near, select(x < 0.0, 2.0 - rest, rest))


ERF_INV_CENTRE = (
    2.81022636e-08,
    3.43273939e-07,
    -3.5233877e-06,
    -4.39150654e-06,
    0.00021858087,
    -0.00125372503,
    -0.00417768164,
    0.246640727,
    1.50140941,
)
ERF_INV_TAIL = (
    -0.000200214257,
    0.000100950558,
    0.00134934322,
    -0.00367342844,
    0.00573950773,
    -0.0076224613,
    0.00943887047,
    1.00167406,
    2.83297682,
)
"""Single-precision coefficients of Giles, "Approximating the erfinv function" (2010)."""


def erf_inv(x: Scalar) -> Scalar:
    a = absolute(x)
    w = -log((1.0 - a) * (1.0 + a))
    y = x * select(
        w < 5.0, polynomial(w - 2.5, ERF_INV_CENTRE), polynomial(sqrt(w) - 3.0, ERF_INV_TAIL)
    )
    end = select(a == 1.0, pymath.inf, select(a < 1.0, y, pymath.nan))
    return copysign(end, x)


# --- remainders -----------------------------------------------------------------------------------

STEPS = 10  # each takes at least 11 of the 100 bits that a quotient may have


def fmod(x: Scalar, y: Scalar) -> Scalar:
    """By steps of r - q b, each exact: the quotient q is cut to 12 bits, b taken in two halves. At
    first b is a multiple of y, so that quotients stay in range; a small y is scaled, so that its
    low half does.
    """
    a, divisor = absolute(x), absolute(y)
    r = steps_down(a, divisor * 2.0**100 * 2.0**100)
    r = steps_down(r, divisor * 2.0**100)
    scale = select(divisor < 2.0**-60, x.constant(2.0**60), 1.0)
    r, b = steps_down(r * scale, divisor * scale), divisor * scale
    r = select(r < 0.0, r + b, r) / scale  # a quotient that was rounded up
    undefined = ~(a < pymath.inf) | (divisor == 0.0) | is_nan(y)
    return select(undefined, pymath.nan, copysign(select(divisor < pymath.inf, r, a), x))


def steps_down(r: Scalar, b: Scalar) -> Scalar:
    """`r` less a multiple of b, of which |r| is at most 2^100 times as much, down to |r| < b."""
    parts = pair(b)
    for _ in range(STEPS):
        size = absolute(r)
        quotient = copysign(head(floor(size / b)), r)
        left = (r - quotient * parts.high) - quotient * parts.lower
        r = select(size < b, r, left)
    return r
