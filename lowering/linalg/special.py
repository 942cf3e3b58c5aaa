# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Special functions, which IREE lacks or has only in float32: computed in float64 and rounded;
where the target has no float64, in float32 (singles.py) or in pairs of them (pairs.py).
"""

import math as pymath

import numpy as np
import scipy.special

from ...dialect.special import cotangent_derivative
from ...dialect.types import float64, int64
from . import singles
from .accurate import INFINITY, NAN, exp, log, log1p, sine_cosine
from .pairs import Pair, in_double
from .scalar import (
    Scalar,
    absolute,
    bitcast,
    copysign,
    floor,
    polynomial,
    round_even,
    select,
    sqrt,
)

ERF_PP = (
    -2.37630166566501626084e-05,
    -5.77027029648944159157e-03,
    -2.84817495755985104766e-02,
    -3.25042107247001499370e-01,
    1.28379167095512558561e-01,
)
ERF_QQ = (
    -3.96022827877536812320e-06,
    1.32494738004321644526e-04,
    5.08130628187576562776e-03,
    6.50222499887672944485e-02,
    3.97917223959155352819e-01,
    1.0,
)
ERF_PA = (
    -2.16637559486879084300e-03,
    3.54783043256182359371e-02,
    -1.10894694282396677476e-01,
    3.18346619901161753674e-01,
    -3.72207876035701323847e-01,
    4.14856118683748331666e-01,
    -2.36211856075265944077e-03,
)
ERF_QA = (
    1.19844998467991074170e-02,
    1.36370839120290507362e-02,
    1.26171219808761642112e-01,
    7.18286544141962662868e-02,
    5.40397917702171048937e-01,
    1.06420880400844228286e-01,
    1.0,
)
ERF_RA = (
    -9.81432934416914548592e00,
    -8.12874355063065934246e01,
    -1.84605092906711035994e02,
    -1.62396669462573470355e02,
    -6.23753324503260060396e01,
    -1.05586262253232909814e01,
    -6.93858572707181764372e-01,
    -9.86494403484714822705e-03,
)
ERF_SA = (
    -6.04244152148580987438e-02,
    6.57024977031928170135e00,
    1.08635005541779435134e02,
    4.29008140027567833386e02,
    6.45387271733267880336e02,
    4.34565877475229228821e02,
    1.37657754143519042600e02,
    1.96512716674392571292e01,
    1.0,
)
ERF_RB = (
    -4.83519191608651397019e02,
    -1.02509513161107724954e03,
    -6.37566443368389627722e02,
    -1.60636384855821916062e02,
    -1.77579549177547519889e01,
    -7.99283237680523006574e-01,
    -9.86494292470009928597e-03,
)
ERF_SB = (
    -2.24409524465858183362e01,
    4.74528541206955367215e02,
    2.55305040643316442583e03,
    3.19985821950859553908e03,
    1.53672958608443695994e03,
    3.25792512996573918826e02,
    3.03380607434824582924e01,
    1.0,
)
ERX = 8.45062911510467529297e-01
"""Rational approximations of Sun's fdlibm, s_erf.c (1993), on [0, 0.84375], [0.84375, 1.25], [1.25,
1/0.35], [1/0.35, 28].
"""


def erf_parts(x: Scalar) -> tuple[Scalar, Scalar]:
    """erf |x| and erfc |x| in float64, each accurate where it is small."""
    a = absolute(x)
    z = a * a
    small = a * (polynomial(z, ERF_PP) / polynomial(z, ERF_QQ))
    s = a - 1.0
    middle = polynomial(s, ERF_PA) / polynomial(s, ERF_QA)
    t = 1.0 / z
    near = a < 1 / 0.35
    ratio = select(
        near,
        polynomial(t, ERF_RA) / polynomial(t, ERF_SA),
        polynomial(t, ERF_RB) / polynomial(t, ERF_SB),
    )
    high = bitcast(bitcast(a, int64) & -0x100000000, float64)
    tail = exp(-high * high - 0.5625) * exp((high - a) * (high + a) + ratio) / a
    tail = select(a >= 28.0, 0.0, tail)
    first, second = a < 0.84375, a < 1.25
    value = select(first, a + small, select(second, ERX + middle, 1.0 - tail))
    rest = select(first, 1.0 - (a + small), select(second, (1 - ERX) - middle, tail))
    return value, rest


@in_double(single=singles.erf)
def erf(x: Scalar) -> Scalar:
    return copysign(erf_parts(x)[0], x)


@in_double(single=singles.erfc)
def erfc(x: Scalar) -> Scalar:
    value, rest = erf_parts(x)
    return select(x < 0.0, 1.0 + value, rest)


"""Single-precision start values of Giles, "Approximating the erfinv function" (2010)."""


@in_double(single=singles.erf_inv)
def erf_inv(x: Scalar) -> Scalar:
    """Giles' start value, then two Halley steps on erf(y) = |x|, taken on erfc where |x| is close
    to 1.
    """
    a = absolute(x)
    w = -log((1.0 - a) * (1.0 + a))
    y = a * select(
        w < 5.0,
        polynomial(w - 2.5, singles.ERF_INV_CENTRE),
        polynomial(sqrt(w) - 3.0, singles.ERF_INV_TAIL),
    )
    for _ in range(2):
        value, rest = erf_parts(y)
        error = select(a < 0.5, value - a, (1.0 - a) - rest)
        step = error / (exp(-(y * y)) * (2 / pymath.sqrt(pymath.pi)))
        y = y - step / (1.0 + y * step)
    return copysign(select(a == 1.0, INFINITY, select(a == 0.0, a, select(a > 1.0, NAN, y))), x)


LANCZOS = (
    0.99999999999980993,
    676.5203681218851,
    -1259.1392167224028,
    771.32342877765313,
    -176.61502916214059,
    12.507343278686905,
    -0.13857109526572012,
    9.9843695780195716e-6,
    1.5056327351493116e-7,
)
"""Coefficients of Lanczos' approximation of the gamma function for g = 7, n = 9 (Godfrey, 2001)."""


def sine_of_pi(x: Scalar) -> tuple[Scalar, Scalar]:
    """sin and cos of pi x, up to a common sign, exact at whole numbers."""
    return sine_cosine((x - round_even(x)) * pymath.pi)


ROOT_SERIES = [
    *((-1) ** k * float(scipy.special.zetac(k)) / k for k in range(28, 1, -1)),
    1 - np.euler_gamma,
]
"""Coefficients of lgamma(2 + z) / z, highest first: 1 - euler, then (-1)^k (zeta(k) - 1) / k."""


def lgamma_near_roots(x: Scalar) -> Scalar:
    """For x in [1/2, 5/2), by the series around 2, with lgamma(1 + z) = lgamma(2 + z) - log1p(z):
    it keeps its digits where it is close to 0.
    """
    first = x < 1.5
    z = select(first, x - 1.0, x - 2.0)
    value = polynomial(z, ROOT_SERIES) * z
    return value - select(first, log1p(z), 0.0)


@in_double(near_zero=lambda x: -log(absolute(x)))
def lgamma(x: Scalar) -> Scalar:
    """Lanczos' series for x >= 1/2, Taylor's near the roots 1 and 2, else ln(pi / |sin pi x|) -
    lgamma(1 - x).
    """
    mirrored = x < 0.5
    z = select(mirrored, 1.0 - x, x) - 1.0
    series = z.constant(LANCZOS[0])
    for i, c in enumerate(LANCZOS[1:], 1):
        series = series + c / (z + float(i))
    t = z + 7.5
    value = (z + 0.5) * (log(t) - 1.0) - 7.0 + (0.5 * pymath.log(2 * pymath.pi) + log(series))
    value = select(z < 1.5, lgamma_near_roots(z + 1.0), value)
    reflected = log(pymath.pi / absolute(sine_of_pi(x)[0])) - value
    if isinstance(x, Pair):  # `value` may be infinite, too
        reflected = select(x == floor(x), INFINITY, reflected)
    return select(absolute(x) == INFINITY, INFINITY, select(mirrored, reflected, value))


BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)
"""Bernoulli numbers B2, B4, ..."""
SHIFT = 10
"""Steps of the recurrence before the asymptotic series, which is then good to 1e-15."""


@in_double(near_zero=lambda x: -1.0 / x)
def digamma(x: Scalar) -> Scalar:
    """psi(z + 10) - sum of 1 / (z + k) with the asymptotic series; for x <= 0 psi(1 - x) - pi /
    tan(pi x).
    """
    mirrored = x <= 0.0
    z = select(mirrored, 1.0 - x, x)
    total = z.constant(0.0)
    for k in range(SHIFT):
        total = total - 1.0 / (z + float(k))
    w = z + float(SHIFT)
    squared = 1.0 / (w * w)
    series = (
        polynomial(squared, [b / (2 * j) for j, b in reversed(list(enumerate(BERNOULLI, 1)))])
        * squared
    )
    value = total + log(w) - 0.5 / w - series
    s, c = sine_of_pi(x)
    pole = (x < 0.0) & (x == floor(x))
    return select(pole, NAN, select(mirrored, value - pymath.pi * (c / s), value))


@in_double
def polygamma(x: Scalar, order: int) -> Scalar:
    """Recurrence and asymptotic series of the order-th derivative of digamma; reflection for x <= 0
    (see the op).
    """
    mirrored = x <= 0.0
    z = select(mirrored, 1.0 - x, x)
    total = z.constant(0.0)
    factorial = float(pymath.factorial(order))
    for k in range(SHIFT + order):
        total = total + factorial / whole_power(z + float(k), order + 1)
    w = z + float(SHIFT + order)
    inverse = 1.0 / w
    series = float(pymath.factorial(order - 1)) + 0.5 * factorial * inverse
    for j, b in enumerate(BERNOULLI, 1):
        c = b * pymath.factorial(2 * j + order - 1) / pymath.factorial(2 * j)
        series = series + c * whole_power(inverse, 2 * j)
    value = (total + series * whole_power(inverse, order)) * float((-1) ** (order + 1))
    s, c = sine_of_pi(x)
    reflection = polynomial(c / s, cotangent_derivative(order)[::-1]) * pymath.pi
    reflected = value * float((-1) ** order) - reflection
    pole = mirrored & (x == floor(x))
    return select(pole, INFINITY if order % 2 else NAN, select(mirrored, reflected, value))


def whole_power(x: Scalar, n: int) -> Scalar:
    """x^n for n >= 1 by repeated squaring."""
    if n == 1:
        return x
    half = whole_power(x, n // 2)
    return half * half * x if n % 2 else half * half
