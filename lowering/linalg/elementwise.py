# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Bodies of the elementwise ops. What the formulas mean stands with the ops; here is only how they
are computed.
"""

import math as pymath
from typing import Any

from ...dialect import activation as act
from ...dialect import arithmetic as ar
from ...dialect import control, elementwise, logic
from ...dialect import special as sp
from ...dialect import transcendental as tr
from ...dialect.types import bool_
from . import accurate, scalar, special
from .registry import scalar as body
from .scalar import Scalar, absolute, convert, copysign, maximum, minimum, select

# --- arithmetic -----------------------------------------------------------------------------------

body(ar.AddOp)(lambda x, y: x + y)
body(ar.SubOp)(lambda x, y: x - y)
body(ar.MulOp)(scalar.product)
body(ar.DivOp)(lambda x, y: x / y)
body(elementwise.MulNoNanOp)(lambda x, y: select(x == 0, 0, x * y))
body(ar.NegOp)(lambda x: -x)
body(ar.AbsOp)(absolute)
body(ar.FloorOp)(scalar.floor)
body(ar.CeilOp)(scalar.ceil)
body(ar.TruncOp)(scalar.trunc)
body(ar.RoundOp)(scalar.round_even)
body(ar.RoundHalfAwayOp)(scalar.round_away)
body(ar.CopysignOp)(copysign)


@body(ar.MaximumOp)
def larger(x: Scalar, y: Scalar) -> Scalar:
    return x | y if x.dtype == bool_ else maximum(x, y)


@body(ar.MinimumOp)
def smaller(x: Scalar, y: Scalar) -> Scalar:
    return x & y if x.dtype == bool_ else minimum(x, y)


@body(ar.SignOp)
def sign(x: Scalar) -> Scalar:
    if x.kind == "float":
        return select((x == 0) | scalar.is_nan(x), x, copysign(x.constant(1), x))
    positive = select(x > 0, x.constant(1), 0)
    return positive if x.kind == "unsigned" else select(x < 0, -1, positive)


def safe_division(x: Scalar, y: Scalar) -> tuple[Scalar, Scalar]:
    """The divisor with what traps (0, and -1 for the smallest number) replaced by 1, and where it
    was 0.
    """
    zero = y == 0
    return select(zero if x.kind == "unsigned" else zero | (y == -1), 1, y), zero


@body(ar.FmodOp)
def fmod(x: Scalar, y: Scalar) -> Scalar:
    if x.kind == "float":
        return accurate.fmod(x, y)
    return x % safe_division(x, y)[0]


@body(ar.RemainderOp)
def remainder(x: Scalar, y: Scalar) -> Scalar:
    """fmod, moved by one divisor where the signs differ"""
    r = fmod(x, y)
    if x.kind == "unsigned":
        return r
    differs = (r != 0) & ((r < 0) ^ (y < 0))
    moved = select(differs, r + y, r)
    return select(r == 0, copysign(r, y), moved) if x.kind == "float" else moved


@body(ar.FloorDivideOp)
def floor_divide(x: Scalar, y: Scalar) -> Scalar:
    """The quotient of x less its remainder, which is whole but for rounding"""
    if x.kind == "float":
        r = accurate.fmod(x, y)
        differs = (r != 0) & ((r < 0) ^ (y < 0))
        quotient = scalar.round_even((x - r) / y - select(differs, x.constant(1), 0))
        plain = (y == 0) | (absolute(x) == pymath.inf) | (absolute(y) == pymath.inf)
        return select(plain, x / y, select(quotient == 0, copysign(quotient, x / y), quotient))
    divisor, zero = safe_division(x, y)
    if x.kind == "unsigned":
        return select(zero, 0, x / divisor)
    quotient, r = x / divisor, x % divisor
    floored = select((r != 0) & ((r < 0) ^ (divisor < 0)), quotient - 1, quotient)
    return select(zero, 0, select(y == -1, -x, floored))


# --- logic, bits, selection, conversion -----------------------------------------------------------

body(logic.CompareOp)(lambda x, y, direction: x.compare(direction, y))
body(logic.IsNanOp)(scalar.is_nan)
body(logic.IsInfOp)(lambda x: absolute(x) == pymath.inf)
body(logic.IsFiniteOp)(lambda x: absolute(x) < pymath.inf)
body(logic.LogicalNotOp, logic.BitwiseNotOp)(lambda x: ~x)
body(logic.LogicalAndOp, logic.BitwiseAndOp)(lambda x, y: x & y)
body(logic.LogicalOrOp, logic.BitwiseOrOp)(lambda x, y: x | y)
body(logic.LogicalXorOp, logic.BitwiseXorOp)(lambda x, y: x ^ y)
body(logic.SelectOp)(select)
body(logic.ClampOp)(lambda x, low, high: minimum(maximum(x, low), high))
body(logic.ConvertOp)(convert)
body(logic.BitcastOp)(scalar.bitcast)
body(control.StopGradientOp)(lambda x: x)
body(control.TagOp)(lambda x, label: x)


def shift_fits(x: Scalar, amount: Scalar) -> Scalar:
    """Where 0 <= amount < width; LLVM leaves other shifts undefined."""
    below = amount < x.dtype.itemsize * 8
    return below if x.kind == "unsigned" else below & (amount >= 0)


@body(logic.ShiftLeftOp)
def shift_left(x: Scalar, amount: Scalar) -> Scalar:
    fits = shift_fits(x, amount)
    return select(fits, x << select(fits, amount, 0), 0)


@body(logic.ShiftRightOp)
def shift_right(x: Scalar, amount: Scalar) -> Scalar:
    fits = shift_fits(x, amount)
    sign_only = x.constant(0) if x.kind == "unsigned" else select(x < 0, x.constant(-1), 0)
    return select(fits, x >> select(fits, amount, 0), sign_only)


# --- powers, exponentials, trigonometry, special functions ----------------------------------------

body(tr.SquareOp)(lambda x: x * x)
body(tr.SqrtOp)(scalar.sqrt)
body(tr.RsqrtOp)(scalar.rsqrt)
body(tr.CbrtOp)(accurate.cbrt)
body(tr.ReciprocalOp)(lambda x: 1 / x)
body(tr.ExpOp)(accurate.exp)
body(tr.Expm1Op)(accurate.expm1)
body(tr.Exp2Op)(accurate.exp2)
body(tr.LogOp)(accurate.log)
body(tr.Log1pOp)(accurate.log1p)
body(tr.Log2Op)(accurate.log2)
body(tr.Log10Op)(accurate.log10)
body(tr.SinOp)(accurate.sin)
body(tr.CosOp)(accurate.cos)
body(tr.TanOp)(accurate.tan)
body(tr.AsinOp)(accurate.asin)
body(tr.AcosOp)(accurate.acos)
body(tr.AtanOp)(accurate.atan)
body(tr.SinhOp)(accurate.sinh)
body(tr.CoshOp)(accurate.cosh)
body(tr.TanhOp)(accurate.tanh)
body(tr.AsinhOp)(accurate.asinh)
body(tr.AcoshOp)(accurate.acosh)
body(tr.AtanhOp)(accurate.atanh)
body(sp.ErfOp)(special.erf)
body(sp.ErfcOp)(special.erfc)
body(sp.ErfInvOp)(special.erf_inv)
body(sp.LgammaOp)(special.lgamma)
body(sp.DigammaOp)(special.digamma)
body(sp.PolygammaOp)(special.polygamma)
body(tr.Atan2Op)(accurate.atan2)
body(tr.HypotOp)(accurate.hypot)


@body(tr.PowOp)
def power(x: Scalar, y: Scalar) -> Scalar:
    """Of integers the product of x^(2^b) over all bits b that y has; 1 / x^|y| is whole only for 1
    and -1
    """
    if x.kind == "float":
        return accurate.power(x, y)
    result, square = x.constant(1), x
    for b in range(x.dtype.itemsize * 8 - (x.kind == "signed")):
        result = select(((y >> b) & 1) != 0, result * square, result)
        square = square * square
    if x.kind == "unsigned":
        return result
    whole = select(x == 1, x, select(x == -1, select((y & 1) != 0, x, 1), 0))
    return select(y < 0, whole, result)


@body(tr.LogaddexpOp)
def logaddexp(x: Scalar, y: Scalar) -> Scalar:
    """max + log1p(e^-|x - y|); equal infinities, whose difference is NaN, give themselves"""
    top, gap = maximum(x, y), absolute(x - y)
    return select(absolute(top) == pymath.inf, top, top + accurate.log1p(accurate.exp(-gap)))


# --- activations ----------------------------------------------------------------------------------


def sigmoid(x: Scalar) -> Scalar:
    return 1 / (1 + accurate.exp(-x))


def softplus(x: Scalar) -> Scalar:
    return maximum(x, 0) + accurate.log1p(accurate.exp(-absolute(x)))


def expm1_below_zero(x: Scalar) -> Scalar:
    return accurate.expm1(minimum(x, 0))


def hard_sigmoid(x: Scalar) -> Scalar:
    return minimum(maximum(x / 6 + 0.5, 0), 1)


body(act.ReluOp)(lambda x: maximum(x, 0))
body(act.LeakyReluOp)(lambda x, negative_slope: select(x > 0, x, x * negative_slope))
body(act.PreluOp)(lambda x, weight: select(x > 0, x, x * weight))
body(act.EluOp)(lambda x, alpha: select(x > 0, x, expm1_below_zero(x) * alpha))
body(act.CeluOp)(lambda x, alpha: select(x > 0, x, accurate.expm1(minimum(x, 0) / alpha) * alpha))
body(act.SeluOp)(lambda x: act.SELU_SCALE * select(x > 0, x, expm1_below_zero(x) * act.SELU_ALPHA))
body(act.SigmoidOp)(sigmoid)
body(act.SiluOp)(lambda x: x * sigmoid(x))
body(act.SoftplusOp)(softplus)
body(act.MishOp)(lambda x: x * accurate.tanh(softplus(x)))
body(act.SoftsignOp)(lambda x: x / (1 + absolute(x)))
body(act.HardSigmoidOp)(hard_sigmoid)
body(act.HardSwishOp)(lambda x: x * hard_sigmoid(x))
body(act.HardtanhOp)(lambda x, low, high: minimum(maximum(x, low), high))


@body(act.GeluOp)
def gelu(x: Scalar, approximate: str) -> Any:
    """The exact form by erfc(-x / sqrt 2) / 2, which keeps its digits for very negative x"""
    if approximate == "tanh":
        c = pymath.sqrt(2 / pymath.pi)
        return x * 0.5 * (1 + accurate.tanh(x * (c + (c * 0.044715) * (x * x))))
    return x * 0.5 * special.erfc(x * -pymath.sqrt(0.5))
