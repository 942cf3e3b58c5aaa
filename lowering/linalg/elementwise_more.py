# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Bodies of further elementwise ops: bits, blends, thresholds, functions of probabilities."""

import math as pymath

import numpy as np

from ...dialect import bits, blend, entropy, shrink
from ...dialect.mlir import math
from . import accurate, scalar
from .elementwise import shift_fits
from .registry import scalar as body
from .scalar import Scalar, absolute, convert, copysign, select

UINT32 = np.dtype(np.uint32)

# --- bits -----------------------------------------------------------------------------------------

body(bits.PopcountOp)(lambda x: Scalar(math.ctpop(x.value), x.dtype))


@body(bits.CountLeadingZerosOp)
def count_leading_zeros(x: Scalar) -> Scalar:
    """By numbers of 32 bits, the only ones that SPIR-V counts in"""
    size = 8 * x.dtype.itemsize
    pattern = Scalar(x.value, np.dtype(f"uint{size}"))
    if size < 32:
        return convert(_leading_zeros(convert(pattern, UINT32)) - (32 - size), x.dtype)
    if size == 32:
        return Scalar(math.ctlz(x.value), x.dtype)
    high = convert(scalar.shift_right_logical(pattern, pattern.constant(32)), UINT32)
    low = _leading_zeros(convert(pattern, UINT32)) + 32
    return convert(select(high == 0, low, _leading_zeros(high)), x.dtype)


def _leading_zeros(x: Scalar) -> Scalar:
    return Scalar(math.ctlz(x.value), UINT32)


@body(bits.ShiftRightLogicalOp)
def shift_right_logical(x: Scalar, amount: Scalar) -> Scalar:
    fits = shift_fits(x, amount)
    return select(fits, scalar.shift_right_logical(x, select(fits, amount, 0)), 0)


@body(bits.NextafterOp)
def nextafter(x: Scalar, y: Scalar) -> Scalar:
    """The bits as an integer, plus 1 away from 0 and minus 1 towards it; from 0 the bits 0...01
    under the sign of y
    """
    whole = bits.WHOLE[x.dtype.itemsize]
    number = scalar.bitcast(x, whole)
    least = select(y < 0, number.constant(np.iinfo(whole).min + 1), 1)
    is_outward = ~((y > x) ^ (x > 0))
    moved = select(x == 0, least, select(is_outward, number + 1, number - 1))
    found = select(x == y, y, scalar.bitcast(moved, x.dtype))
    return select(scalar.is_nan(x) | scalar.is_nan(y), pymath.nan, found)


# --- blends ---------------------------------------------------------------------------------------

body(blend.LerpOp)(lambda x, y, weight: x + weight * (y - x))
body(blend.DivNoNanOp)(lambda x, y: select(y == 0, 0, x / y))
body(blend.HeavisideOp)(
    lambda x, v: select(x == 0, v, select(x > 0, x.constant(1), select(x < 0, 0, x)))
)


@body(blend.SignbitOp)
def signbit(x: Scalar) -> Scalar:
    """The sign of 1 with x's sign, since comparisons do not see that of -0 and NaN"""
    return copysign(x.constant(1), x) < 0


@body(blend.NanToNumOp)
def nan_to_num(x: Scalar, nan: float, posinf: float, neginf: float) -> Scalar:
    most, least = (blend.largest(x.dtype, v) for v in (posinf, neginf))
    finite = select(x == pymath.inf, most, select(x == -pymath.inf, least, x))
    return select(scalar.is_nan(x), nan, finite)


# --- thresholds -----------------------------------------------------------------------------------

body(shrink.ThresholdOp)(lambda x, threshold, value: select(x > threshold, x, value))
body(shrink.HardShrinkOp)(lambda x, width: select(absolute(x) <= width, 0, x))


@body(shrink.SoftShrinkOp)
def soft_shrink(x: Scalar, width: float) -> Scalar:
    return select(absolute(x) <= width, 0, x - copysign(x.constant(width), x))


@body(shrink.SquareplusOp)
def squareplus(x: Scalar, b: float) -> Scalar:
    """For x < 0 by the conjugate, which does not cancel"""
    root = accurate.hypot(x, x.constant(pymath.sqrt(b)))
    return select(x > 0, (x + root) * 0.5, (b / 2) / (root + absolute(x)))


# --- probabilities --------------------------------------------------------------------------------


@body(entropy.XlogyOp)
def xlogy(x: Scalar, y: Scalar) -> Scalar:
    return select((x == 0) & ~scalar.is_nan(y), 0, x * accurate.log(y))


@body(entropy.Xlog1pyOp)
def xlog1py(x: Scalar, y: Scalar) -> Scalar:
    return select((x == 0) & ~scalar.is_nan(y), 0, x * accurate.log1p(y))


@body(entropy.EntrOp)
def entr(x: Scalar) -> Scalar:
    below = select(x < 0, x.constant(-pymath.inf), -(x * accurate.log(x)))
    return select(x == 0, 0, below)


@body(entropy.LogitOp)
def logit(x: Scalar) -> Scalar:
    """Near 1/2, where the quotient is near 1, by log1p of what it differs by"""
    middle = absolute(x - 0.5) < 0.25
    difference = (2 * x - 1) / (1 - x)
    return select(middle, accurate.log1p(select(middle, difference, 0)), accurate.log(x / (1 - x)))


@body(entropy.SincOp)
def sinc(x: Scalar) -> Scalar:
    angle = select(x == 0, x.constant(1), x * pymath.pi)
    return select(x == 0, 1, accurate.sin(angle) / angle)
