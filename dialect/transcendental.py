# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Powers, exponentials, logarithms and trigonometry of floating-point tensors.

A unary op gives its derivative as `slope`; the base class multiplies the cotangent with it.
"""

import math
from typing import Any

import numpy as np

from .base import function, in_float32
from .elementwise import FLOAT, NUMERIC, Binary, Unary, mul_no_nan
from .logic import select


class Transcendental(Unary):
    """A smooth function of one floating-point tensor."""

    KIND = FLOAT


# --- powers and roots -----------------------------------------------------------------------------


class SquareOp(Transcendental, name="square"):
    """Square: y = x * x.

    Example: `%y = "gradopt.square"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    KIND = NUMERIC
    reference = staticmethod(np.square)

    def slope(self) -> Any:
        """dy/dx = 2 x"""
        return 2 * self.x


class SqrtOp(Transcendental, name="sqrt"):
    """Square root: y = x^(1/2); NaN below 0.

    Example: `%y = "gradopt.sqrt"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    reference = staticmethod(np.sqrt)

    def slope(self) -> Any:
        """dy/dx = 1 / (2 y), 0 at x = 0"""
        return select(self.y.equal(0), 0, 0.5 / self.y)


class RsqrtOp(Transcendental, name="rsqrt"):
    """Reciprocal square root: y = x^(-1/2).

    Example: `%y = "gradopt.rsqrt"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    reference = staticmethod(lambda x: 1 / np.sqrt(x))

    def slope(self) -> Any:
        """dy/dx = -y^3 / 2"""
        return -0.5 * self.y * self.y * self.y


class CbrtOp(Transcendental, name="cbrt"):
    """Cube root, of negative numbers too: y = x^(1/3).

    Example: `%y = "gradopt.cbrt"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    reference = staticmethod(np.cbrt)

    def slope(self) -> Any:
        """dy/dx = 1 / (3 y^2), 0 at x = 0"""
        return select(self.y.equal(0), 0, 1 / (3 * square(self.y)))


class ReciprocalOp(Transcendental, name="reciprocal"):
    """Reciprocal: y = 1 / x.

    Example: `%y = "gradopt.reciprocal"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    reference = staticmethod(lambda x: 1 / x)

    def slope(self) -> Any:
        """dy/dx = -y^2"""
        return -square(self.y)


# --- exponentials and logarithms ------------------------------------------------------------------


class ExpOp(Transcendental, name="exp"):
    """Exponential: y = e^x.

    Example: `%y = "gradopt.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    reference = staticmethod(np.exp)

    def slope(self) -> Any:
        """dy/dx = y"""
        return self.y


class Expm1Op(Transcendental, name="expm1"):
    """Exponential less one, accurate near 0: y = e^x - 1.

    Example: `%y = "gradopt.expm1"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    reference = staticmethod(np.expm1)

    def slope(self) -> Any:
        """dy/dx = e^x"""
        return exp(self.x)


class Exp2Op(Transcendental, name="exp2"):
    """Power of two: y = 2^x.

    Example: `%y = "gradopt.exp2"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    reference = staticmethod(np.exp2)

    def slope(self) -> Any:
        """dy/dx = y ln 2"""
        return self.y * math.log(2)


class LogOp(Transcendental, name="log"):
    """Natural logarithm: y = ln x; -inf at 0, NaN below.

    Example: `%y = "gradopt.log"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    reference = staticmethod(np.log)

    def slope(self) -> Any:
        """dy/dx = 1 / x"""
        return 1 / self.x


class Log1pOp(Transcendental, name="log1p"):
    """Natural logarithm of one more, accurate near 0: y = ln(1 + x).

    Example: `%y = "gradopt.log1p"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    reference = staticmethod(np.log1p)

    def slope(self) -> Any:
        """dy/dx = 1 / (1 + x)"""
        return 1 / (1 + self.x)


class Log2Op(Transcendental, name="log2"):
    """Logarithm to base 2: y = ln x / ln 2.

    Example: `%y = "gradopt.log2"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    reference = staticmethod(np.log2)

    def slope(self) -> Any:
        """dy/dx = 1 / (x ln 2)"""
        return 1 / (self.x * math.log(2))


class Log10Op(Transcendental, name="log10"):
    """Logarithm to base 10: y = ln x / ln 10.

    Example: `%y = "gradopt.log10"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    reference = staticmethod(np.log10)

    def slope(self) -> Any:
        """dy/dx = 1 / (x ln 10)"""
        return 1 / (self.x * math.log(10))


# --- trigonometry ---------------------------------------------------------------------------------


class SinOp(Transcendental, name="sin"):
    """Sine of radians: y = sin x.

    Example: `%y = "gradopt.sin"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    reference = staticmethod(np.sin)

    def slope(self) -> Any:
        """dy/dx = cos x"""
        return cos(self.x)


class CosOp(Transcendental, name="cos"):
    """Cosine of radians: y = cos x.

    Example: `%y = "gradopt.cos"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    reference = staticmethod(np.cos)

    def slope(self) -> Any:
        """dy/dx = -sin x"""
        return -sin(self.x)


class TanOp(Transcendental, name="tan"):
    """Tangent of radians: y = tan x.

    Example: `%y = "gradopt.tan"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    reference = staticmethod(np.tan)

    def slope(self) -> Any:
        """dy/dx = 1 + y^2"""
        return 1 + square(self.y)


class AsinOp(Transcendental, name="asin"):
    """Inverse sine in radians, in [-pi/2, pi/2]; NaN outside [-1, 1].

    Example: `%y = "gradopt.asin"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    reference = staticmethod(np.arcsin)

    def slope(self) -> Any:
        """dy/dx = 1 / sqrt(1 - x^2)"""
        return rsqrt((1 - self.x) * (1 + self.x))


class AcosOp(Transcendental, name="acos"):
    """Inverse cosine in radians, in [0, pi]; NaN outside [-1, 1].

    Example: `%y = "gradopt.acos"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    reference = staticmethod(np.arccos)

    def slope(self) -> Any:
        """dy/dx = -1 / sqrt(1 - x^2)"""
        return -rsqrt((1 - self.x) * (1 + self.x))


class AtanOp(Transcendental, name="atan"):
    """Inverse tangent in radians, in [-pi/2, pi/2].

    Example: `%y = "gradopt.atan"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    reference = staticmethod(np.arctan)

    def slope(self) -> Any:
        """dy/dx = 1 / (1 + x^2)"""
        return 1 / (1 + square(self.x))


class SinhOp(Transcendental, name="sinh"):
    """Hyperbolic sine: y = (e^x - e^-x) / 2.

    Example: `%y = "gradopt.sinh"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    reference = staticmethod(np.sinh)

    def slope(self) -> Any:
        """dy/dx = cosh x"""
        return cosh(self.x)


class CoshOp(Transcendental, name="cosh"):
    """Hyperbolic cosine: y = (e^x + e^-x) / 2.

    Example: `%y = "gradopt.cosh"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    reference = staticmethod(np.cosh)

    def slope(self) -> Any:
        """dy/dx = sinh x"""
        return sinh(self.x)


class TanhOp(Transcendental, name="tanh"):
    """Hyperbolic tangent: y = (e^x - e^-x) / (e^x + e^-x).

    Example: `%y = "gradopt.tanh"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    reference = staticmethod(np.tanh)

    def slope(self) -> Any:
        """dy/dx = 1 - y^2"""
        return (1 - self.y) * (1 + self.y)


class AsinhOp(Transcendental, name="asinh"):
    """Inverse hyperbolic sine: y = ln(x + sqrt(x^2 + 1)).

    Example: `%y = "gradopt.asinh"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    reference = staticmethod(np.arcsinh)

    def slope(self) -> Any:
        """dy/dx = 1 / sqrt(1 + x^2)"""
        return rsqrt(1 + square(self.x))


class AcoshOp(Transcendental, name="acosh"):
    """Inverse hyperbolic cosine: y = ln(x + sqrt(x^2 - 1)); NaN below 1.

    Example: `%y = "gradopt.acosh"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    reference = staticmethod(np.arccosh)

    def slope(self) -> Any:
        """dy/dx = 1 / sqrt(x^2 - 1)"""
        return rsqrt((self.x - 1) * (self.x + 1))


class AtanhOp(Transcendental, name="atanh"):
    """Inverse hyperbolic tangent: y = ln((1 + x) / (1 - x)) / 2; NaN outside [-1, 1].

    Example: `%y = "gradopt.atanh"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    reference = staticmethod(np.arctanh)

    def slope(self) -> Any:
        """dy/dx = 1 / (1 - x^2)"""
        return 1 / ((1 - self.x) * (1 + self.x))


# --- two operands ---------------------------------------------------------------------------------


class PowOp(Binary, name="pow"):
    """Power: y = lhs ^ rhs, with x^0 = 1; NaN for a negative base and a fraction. Of
    integers modulo 2^width, and with a negative exponent the whole part of 1 / lhs^|rhs|, 0 of 0.

    Example: `%y = "gradopt.pow"(%a, %b) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>`
    """

    @staticmethod
    def reference(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
        if lhs.dtype.kind != "i" or (rhs >= 0).all():
            return np.power(lhs, rhs)
        whole = np.where(lhs == 1, 1, np.where(lhs == -1, 1 - 2 * (rhs & 1), 0))
        return np.where(rhs < 0, whole, np.power(lhs, np.maximum(rhs, 0)))

    @in_float32
    def vjp(self, ct: Any) -> list[Any]:
        """dlhs = ct * rhs * lhs^(rhs - 1), 0 at lhs = 0 for 0 <= rhs < 1; drhs = ct * y * ln lhs, 0
        at lhs = 0 for rhs >= 0
        """
        x, e = self.lhs, self.rhs
        at_zero = x.equal(0) & (e >= 0)
        flat = at_zero & (e < 1)
        by_base = select(flat, 0, mul_no_nan(e, pow(x, select(flat, 1, e - 1))))
        by_exponent = select(at_zero, 0, self.y * log(select(at_zero, 1, x)))
        return [mul_no_nan(ct, by_base), mul_no_nan(ct, by_exponent)]


class Atan2Op(Binary, name="atan2"):
    """Angle of the point (rhs, lhs) in radians, in [-pi, pi]: y = atan(lhs / rhs) in the right
    quadrant.

    Example: `%y = "gradopt.atan2"(%a, %b) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>`
    """

    KIND = FLOAT
    reference = staticmethod(np.arctan2)

    @in_float32
    def vjp(self, ct: Any) -> list[Any]:
        """dlhs = ct * rhs / (lhs^2 + rhs^2), drhs = -ct * lhs / (lhs^2 + rhs^2)"""
        norm = square(self.lhs) + square(self.rhs)
        return [mul_no_nan(ct, self.rhs / norm), mul_no_nan(ct, -self.lhs / norm)]


class HypotOp(Binary, name="hypot"):
    """Length of the vector (lhs, rhs) without overflow: y = sqrt(lhs^2 + rhs^2).

    Example: `%y = "gradopt.hypot"(%a, %b) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>`
    """

    KIND = FLOAT
    reference = staticmethod(np.hypot)

    @in_float32
    def vjp(self, ct: Any) -> list[Any]:
        """dlhs = ct * lhs / y, drhs = ct * rhs / y, 0 at the origin"""
        inverse = select(self.y.equal(0), 0, 1 / self.y)
        return [mul_no_nan(ct, self.lhs * inverse), mul_no_nan(ct, self.rhs * inverse)]


class LogaddexpOp(Binary, name="logaddexp"):
    """Logarithm of a sum of exponentials: y = ln(e^lhs + e^rhs); -inf where both are -inf.

    Example: `%y = "gradopt.logaddexp"(%a, %b) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>`
    """

    KIND = FLOAT
    reference = staticmethod(np.logaddexp)

    @in_float32
    def vjp(self, ct: Any) -> list[Any]:
        """dlhs = ct * e^(lhs - y), drhs = ct * e^(rhs - y), 1 of +inf and 0 where both are -inf"""
        gradients = []
        for side in (self.lhs, self.rhs):
            known = side.equal(math.inf) | self.y.equal(-math.inf)
            share = select(known, (side > 0).astype(side.dtype), exp(side - self.y))
            gradients.append(mul_no_nan(ct, share))
        return gradients


# --- functions ------------------------------------------------------------------------------------

square, sqrt, rsqrt, cbrt, reciprocal = map(
    function, (SquareOp, SqrtOp, RsqrtOp, CbrtOp, ReciprocalOp)
)
exp, expm1, exp2, log, log1p, log2, log10 = map(
    function, (ExpOp, Expm1Op, Exp2Op, LogOp, Log1pOp, Log2Op, Log10Op)
)
sin, cos, tan, asin, acos, atan = map(function, (SinOp, CosOp, TanOp, AsinOp, AcosOp, AtanOp))
sinh, cosh, tanh, asinh, acosh, atanh = map(
    function, (SinhOp, CoshOp, TanhOp, AsinhOp, AcoshOp, AtanhOp)
)
pow, atan2, hypot, logaddexp = map(function, (PowOp, Atan2Op, HypotOp, LogaddexpOp))  # noqa: A001
