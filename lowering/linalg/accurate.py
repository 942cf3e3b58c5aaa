# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Elementary and special functions that IREE 3.13 lacks, or gets wrong, on CPU: accurate over the
whole range.

IREE's float64 has no sin, cos, tan, tanh, atan, log2, log10, cbrt, erf or atan2 (no math library is
linked), its expm1 and log1p lose all digits near 0; in float32 its sin and cos leave [-1, 1] for
large arguments, sinh, asinh and atanh lose small ones, pow gives NaN for x^0 at x <= 0, atan2 at
the origin. What is not cheap is computed in float64 and rounded; where the target has no float64,
in float32 (singles.py) or in pairs of them (pairs.py).
"""

import math as pymath

from ...dialect.types import float64, int64
from . import singles
from .angles import pair_sine_cosine
from .pairs import Pair, identity, in_double, is_single, pair
from .scalar import (
    Scalar,
    absolute,
    bitcast,
    convert,
    copysign,
    floor,
    fma,
    is_nan,
    maximum,
    minimum,
    polynomial,
    round_even,
    select,
    sqrt,
)
from .scalar import exp as plain_exp
from .scalar import expm1 as plain_expm1
from .scalar import log as plain_log
from .scalar import log1p as plain_log1p
from .scalar import tanh as plain_tanh

INFINITY, NAN = pymath.inf, pymath.nan
LN2 = pymath.log(2)


# --- exponentials and logarithms ------------------------------------------------------------------


def exp(x: Scalar) -> Scalar:
    return singles.exp(x) if is_single(x) else plain_exp(x)


def log(x: Scalar) -> Scalar:
    return singles.log(x) if is_single(x) else plain_log(x)


def log1p(x: Scalar) -> Scalar:
    """In float64 by Kahan: with u = 1 + x rounded, log(u) x / (u - 1) has the rounding error of u
    cancel.
    """
    if is_single(x):
        return singles.log1p(x)
    if x.dtype != float64:
        return plain_log1p(x)
    u = x + 1.0
    return select(u == 1.0, x, select(u == INFINITY, u, log(u) * x / (u - 1.0)))


def expm1(x: Scalar) -> Scalar:
    """In float64 by Kahan: with u = e^x rounded, (u - 1) x / log(u)."""
    if is_single(x):
        return singles.expm1(x)
    if x.dtype != float64:
        return plain_expm1(x)
    u = exp(x)
    near = (u - 1.0) * x / log(u)
    return select(u == 1.0, x, select((u == INFINITY) | (u < 1e-16), u - 1.0, near))


@in_double
def exp2(x: Scalar) -> Scalar:
    """2^x = 2^n e^(f ln 2), n the nearest whole number to x, f the rest. 2^n is made of bits, in
    two halves for its range.
    """
    if isinstance(x, Pair):
        return exp(x * LN2)
    clamped = minimum(maximum(x, -1200.0), 1100.0)
    n = round_even(clamped)
    half = floor(n * 0.5)
    fraction = exp((clamped - n) * LN2)
    return fraction * power_of_two(half) * power_of_two(n - half)


def power_of_two(n: Scalar) -> Scalar:
    """2^n for a whole float64 n in [-1022, 1023], NaN for NaN; 0 below."""
    biased = convert(maximum(n, -1023.0) + 1023.0, int64)
    return select(is_nan(n), n, bitcast(biased << 52, float64))


@in_double
def log2(x: Scalar) -> Scalar:
    """ln x / ln 2, exact for powers of two: the exponent is split off, but near 1, where it would
    cancel. In pairs the logarithm does so itself.
    """
    if isinstance(x, Pair):
        return log(x) * (1 / LN2)
    bits = bitcast(x, int64)
    exponent = convert(((bits >> 52) & 0x7FF) - 1023, float64)
    mantissa = bitcast((bits & 0x000FFFFFFFFFFFFF) | 0x3FF0000000000000, float64)
    ordinary = (x >= 2.0**-1022) & (x < INFINITY) & ((x < 0.7) | (x > 1.4))
    return select(ordinary, exponent + log(mantissa) * (1 / LN2), log(x) * (1 / LN2))


@in_double
def log10(x: Scalar) -> Scalar:
    return log(x) * (1 / pymath.log(10))


@in_double
def cbrt(x: Scalar) -> Scalar:
    """e^(ln |x| / 3), with one Newton step, under x's sign; in pairs the step would lose digits."""
    a = absolute(x)
    y = exp(log(a) * (1 / 3))
    refined = y if isinstance(x, Pair) else y - (y * y * y - a) / (3.0 * y * y)
    return copysign(select((a == 0.0) | (a == INFINITY), a, refined), x)


@in_double
def power(x: Scalar, y: Scalar) -> Scalar:
    """e^(y ln |x|), with the sign and the special values of IEEE 754's pow."""
    a = absolute(x)
    magnitude = select(a == 1.0, 1.0, exp(y * log(a)))
    whole = floor(y) == y
    odd = whole & (floor(y * 0.5) * 2.0 != y) & (absolute(y) < 2.0**53)
    negative = copysign(x.constant(1.0), x) < 0.0
    result = select(negative & odd, -magnitude, magnitude)
    undefined = (x < 0.0) & (x != -INFINITY) & ~whole
    return select((y == 0.0) | (x == 1.0), 1.0, select(undefined, NAN, result))


# --- trigonometry ---------------------------------------------------------------------------------

HALF_PI_PARTS = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591833e-33)
"""pi / 2 as a sum of three float64, for Cody and Waite's reduction."""
SIN_COEFFICIENTS = (
    1.58969099521155010221e-10,
    -2.50507602534068634195e-08,
    2.75573137070700676789e-06,
    -1.98412698298579493134e-04,
    8.33333333332248946124e-03,
    -1.66666666666666324348e-01,
)
COS_COEFFICIENTS = (
    -1.13596475577881948265e-11,
    2.08757232129817482790e-09,
    -2.75573143513906633035e-07,
    2.48015872894767294178e-05,
    -1.38888888888741095749e-03,
    4.16666666666666019037e-02,
)
"""Minimax coefficients on [-pi/4, pi/4] of Sun's fdlibm, k_sin.c and k_cos.c (1993)."""


def sine_cosine(x: Scalar) -> tuple[Scalar, Scalar]:
    """sin x and cos x in float64 for |x| < 2^52; NaN beyond, where the number of quarter turns is
    no longer known exactly. In pairs for all x.
    """
    if isinstance(x, Pair):
        return pair_sine_cosine(x)
    x = select(absolute(x) < 2.0**52, x, NAN)
    k = round_even(x * (2 / pymath.pi))
    r = x
    for part in HALF_PI_PARTS:
        r = fma(-k, part, r)
    z = r * r
    sine = fma(r * z, polynomial(z, SIN_COEFFICIENTS), r)
    cosine = 1.0 - z * 0.5 + z * z * polynomial(z, COS_COEFFICIENTS)
    quadrant = k - floor(k * 0.25) * 4.0
    swapped = (quadrant == 1.0) | (quadrant == 3.0)
    a, b = select(swapped, cosine, sine), select(swapped, sine, cosine)
    return select(quadrant >= 2.0, -a, a), select((quadrant == 1.0) | (quadrant == 2.0), -b, b)


@in_double(near_zero=identity)
def sin(x: Scalar) -> Scalar:
    return select(x == 0.0, x, sine_cosine(x)[0])


@in_double
def cos(x: Scalar) -> Scalar:
    return sine_cosine(x)[1]


@in_double(near_zero=identity)
def tan(x: Scalar) -> Scalar:
    s, c = sine_cosine(x)
    return select(x == 0.0, x, s / c)


ATAN_NUMERATOR = (
    -8.750608600031904122785e-1,
    -1.615753718733365076637e1,
    -7.500855792314704667340e1,
    -1.228866684490136173410e2,
    -6.485021904942025371773e1,
)
ATAN_DENOMINATOR = (
    1.0,
    2.485846490142306297962e1,
    1.650270098316988542046e2,
    4.328810604912902668951e2,
    4.853903996359136964868e2,
    1.945506571482613964425e2,
)
"""Rational approximation on [0, 0.66] of Moshier's Cephes, atan.c (1989)."""


@in_double(near_zero=identity)
def atan(x: Scalar) -> Scalar:
    """By atan(a) = pi/2 - atan(1/a) for a > 1 + sqrt 2, and pi/4 + atan((a - 1) / (a + 1)) for a >
    0.66.
    """
    a = absolute(x)
    large, middle = a > 1 + pymath.sqrt(2), a > 0.66
    reduced = select(large, -1.0 / a, select(middle, (a - 1.0) / (a + 1.0), a))
    offset = select(large, pymath.pi / 2, select(middle, pymath.pi / 4, a.constant(0.0)))
    correction = select(
        large,
        6.123233995736765886130e-17,
        select(middle, 3.061616997868382943065e-17, a.constant(0.0)),
    )
    z = reduced * reduced
    tail = z * polynomial(z, ATAN_NUMERATOR) / polynomial(z, ATAN_DENOMINATOR)
    return copysign(offset + (reduced * tail + reduced + correction), x)


@in_double(near_zero=identity)
def asin(x: Scalar) -> Scalar:
    return atan(x / sqrt((1.0 - x) * (1.0 + x)))


@in_double
def acos(x: Scalar) -> Scalar:
    return 2.0 * atan(sqrt((1.0 - x) / (1.0 + x)))


def angle(y: Scalar, x: Scalar) -> Scalar:
    """The angle of the smaller over the larger side, moved to its octant."""
    a, b = absolute(x), absolute(y)
    small, large = minimum(a, b), maximum(a, b)
    ratio = select(small == large, 1.0, small / large)
    angle = select(large == 0.0, 0.0, atan(ratio))
    angle = select(b > a, pymath.pi / 2 - angle, angle)
    angle = select(copysign(x.constant(1.0), x) < 0.0, pymath.pi - angle, angle)
    return copysign(angle, y)


def scaled_angle(y: Scalar, x: Scalar) -> Scalar:
    """The same of float32 in pairs, with no small parts that could be lost."""
    a, b = absolute(x), absolute(y)
    scale = select(maximum(a, b) < 2.0**-60, x.constant(2.0**100), 1.0)
    found = angle(pair(y * scale), pair(x * scale)).rounded()
    return select((b < a * 2.0**-40) & (x > 0.0), y / x, found)


@in_double(single=scaled_angle)
def atan2(y: Scalar, x: Scalar) -> Scalar:
    return angle(y, x)


# --- hyperbolic functions -------------------------------------------------------------------------


def overflow_threshold(x: Scalar) -> float:
    """A number a little below which e^x is finite."""
    return 700.0 if x.dtype == float64 else 87.0


def sinh(x: Scalar) -> Scalar:
    """(e + e / (e + 1)) / 2 with e = e^|x| - 1; for large |x| the square of e^(|x| / 2), halved."""
    a = absolute(x)
    e, root = expm1(a), exp(a * 0.5)
    return copysign(
        select(a > overflow_threshold(x), root * (0.5 * root), 0.5 * (e + e / (e + 1.0))), x
    )


def cosh(x: Scalar) -> Scalar:
    a = absolute(x)
    e, root = exp(a), exp(a * 0.5)
    return select(a > overflow_threshold(x), root * (0.5 * root), 0.5 * (e + 1.0 / e))


def tanh(x: Scalar) -> Scalar:
    """In float64 -t / (t + 2) with t = e^(-2 |x|) - 1."""
    if is_single(x):
        return singles.tanh(x)
    if x.dtype != float64:
        return plain_tanh(x)
    t = expm1(-2.0 * absolute(x))
    return copysign(-t / (t + 2.0), x)


def asinh(x: Scalar) -> Scalar:
    a = absolute(x)
    near = log1p(a + a * a / (1.0 + sqrt(a * a + 1.0)))
    return copysign(select(a > 1e9, log(a) + LN2, near), x)


def acosh(x: Scalar) -> Scalar:
    t = x - 1.0
    near = log1p(t + sqrt(t * (t + 2.0)))
    return select(x < 1.0, NAN, select(x > 1e9, log(x) + LN2, near))


def atanh(x: Scalar) -> Scalar:
    a = absolute(x)
    return copysign(0.5 * log1p(2.0 * a / (1.0 - a)), x)


def hypot(x: Scalar, y: Scalar) -> Scalar:
    """The larger side times sqrt(1 + ratio^2), which does not overflow; infinite if either
    side is.
    """
    a, b = absolute(x), absolute(y)
    large, small = maximum(a, b), minimum(a, b)
    ratio = small / large
    length = select(large == 0.0, large, large * sqrt(1.0 + ratio * ratio))
    return select((a == INFINITY) | (b == INFINITY), INFINITY, length)


# --- remainders -----------------------------------------------------------------------------------


def fmod(x: Scalar, y: Scalar) -> Scalar:
    """Remainder with x's sign; float32 has it in hardware. In float64 by steps of r - trunc(r / y)
    y, each exact and 2^52 times smaller than the one before, so that quotients below 2^150 are
    done after three; NaN beyond.
    """
    if is_single(x):
        return singles.fmod(x, y)
    if x.dtype != float64:
        return x % y
    a, b = absolute(x), absolute(y)
    r = a
    for _ in range(3):
        quotient = floor(absolute(r) / b)
        r = select(absolute(r) < b, r, fma(-copysign(quotient, r), b, r))
    r = select(r < 0.0, r + b, r)  # a quotient that was rounded up
    undefined = (a == INFINITY) | (b == 0.0) | is_nan(x) | is_nan(y) | (a / b > 2.0**150)
    return select(undefined, NAN, copysign(select(b == INFINITY, a, r), x))
