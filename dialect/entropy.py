# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Functions of probabilities and their logarithms, with their limits where a factor is 0."""

from typing import Any

import numpy as np

from .arithmetic import neg
from .base import function
from .elementwise import FLOAT, Binary, mul_no_nan
from .later import scipy
from .logic import select
from .special import digamma, lgamma
from .transcendental import Transcendental, cos, log, log1p, reciprocal, sin
from .types import is_narrow


class XlogyOp(Binary, name="xlogy"):
    """Product with a logarithm: y = lhs * ln rhs, and 0 where lhs = 0 (unless rhs is NaN).

    Example: `%y = "gradopt.xlogy"(%a, %b) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>`
    """

    KIND = FLOAT
    reference = staticmethod(scipy.special.xlogy)

    def vjp(self, ct: Any) -> list[Any]:
        """dlhs = ct * ln rhs; drhs = ct * lhs / rhs, 0 where lhs = 0"""
        slope = mul_no_nan(self.lhs, reciprocal(self.rhs))
        return [mul_no_nan(ct, log(self.rhs)), mul_no_nan(ct, slope)]


class Xlog1pyOp(Binary, name="xlog1py"):
    """Product with the logarithm of 1 more: y = lhs * ln(1 + rhs), and 0 where lhs = 0 (unless rhs
    is NaN).

    Example: `%y = "gradopt.xlog1py"(%a, %b) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>`
    """

    KIND = FLOAT
    reference = staticmethod(scipy.special.xlog1py)

    def vjp(self, ct: Any) -> list[Any]:
        """dlhs = ct * ln(1 + rhs); drhs = ct * lhs / (1 + rhs), 0 where lhs = 0"""
        slope = mul_no_nan(self.lhs, reciprocal(self.rhs + 1))
        return [mul_no_nan(ct, log1p(self.rhs)), mul_no_nan(ct, slope)]


class EntrOp(Transcendental, name="entr"):
    """Entropy of a probability: y = -x ln x, 0 at 0, -inf below.

    Example: `%y = "gradopt.entr"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    reference = staticmethod(scipy.special.entr)

    def slope(self) -> Any:
        """dy/dx = -ln x - 1"""
        return neg(log(self.x)) - 1


class LogitOp(Transcendental, name="logit"):
    """Inverse of the logistic function: y = ln(x / (1 - x)); infinite at 0 and 1.

    Example: `%y = "gradopt.logit"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    reference = staticmethod(scipy.special.logit)

    def slope(self) -> Any:
        """dy/dx = 1 / (x (1 - x))"""
        return reciprocal(self.x * (1 - self.x))


class SincOp(Transcendental, name="sinc"):
    """Normalized sine: y = sin(pi x) / (pi x), 1 at 0.

    Example: `%y = "gradopt.sinc"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    reference = staticmethod(np.sinc)

    def slope(self) -> Any:
        """dy/dx = (cos(pi x) - y) / x, and for |x| < 0.1 its series, which can be differentiated
        further: -pi^2 x / 3 + pi^4 x^3 / 30 - ...
        """
        x, p = self.x, np.pi
        near = (x * x) < 0.01
        away = select(near, 1, x)
        far = (cos(away * p) - sin(away * p) / (away * p)) / away
        small = select(near, x, 0)
        terms, square = 0.0, small * small
        for k in range(6, 0, -1):  # sinc x = sum (-1)^k (pi x)^2k / (2k + 1)!
            terms = terms * square + (-1) ** k * p ** (2 * k) * 2 * k / scipy.special.factorial(
                2 * k + 1
            )
        return select(near, terms * small, far)


class LbetaOp(Binary, name="lbeta"):
    """Logarithm of the beta function: y = lgamma(lhs) + lgamma(rhs) - lgamma(lhs + rhs).

    Example: `%y = "gradopt.lbeta"(%a, %b) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>`
    """

    KIND = FLOAT
    reference = staticmethod(scipy.special.betaln)

    @staticmethod
    def decompose(lhs: Any, rhs: Any) -> Any:
        """lgamma(lhs) + lgamma(rhs) - lgamma(lhs + rhs), 16-bit floats in float32"""
        dtype = lhs.dtype
        if is_narrow(dtype):
            lhs, rhs = lhs.astype("float32"), rhs.astype("float32")
        return (lgamma(lhs) + lgamma(rhs) - lgamma(lhs + rhs)).astype(dtype)

    def vjp(self, ct: Any) -> list[Any]:
        """dlhs = ct * (digamma(lhs) - digamma(lhs + rhs)), drhs likewise"""
        both = digamma(self.lhs + self.rhs)
        return [mul_no_nan(ct, digamma(v) - both) for v in (self.lhs, self.rhs)]


xlogy, xlog1py, entr, logit, sinc, lbeta = map(
    function, (XlogyOp, Xlog1pyOp, EntrOp, LogitOp, SincOp, LbetaOp)
)
