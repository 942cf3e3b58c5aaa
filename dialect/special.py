# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Special functions: the error function and its relatives, the gamma function's logarithm and its
derivatives.
"""

import math
from typing import Any

import numpy as np

from .base import Int, Operand, Result, function
from .elementwise import FLOAT, Elementwise, mul_no_nan
from .later import scipy
from .transcendental import Transcendental, exp, square
from .types import TensorSpec


class ErfOp(Transcendental, name="erf"):
    """Error function: y = 2 / sqrt(pi) * integral of e^(-t^2) from 0 to x.

    Example: `%y = "gradopt.erf"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    reference = staticmethod(scipy.special.erf)

    def slope(self) -> Any:
        """dy/dx = 2 / sqrt(pi) * e^(-x^2)"""
        return exp(-square(self.x)) * (2 / math.sqrt(math.pi))


class ErfcOp(Transcendental, name="erfc"):
    """Complementary error function, accurate where erf is close to 1: y = 1 - erf(x).

    Example: `%y = "gradopt.erfc"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    reference = staticmethod(scipy.special.erfc)

    def slope(self) -> Any:
        """dy/dx = -2 / sqrt(pi) * e^(-x^2)"""
        return exp(-square(self.x)) * (-2 / math.sqrt(math.pi))


class ErfInvOp(Transcendental, name="erf_inv"):
    """Inverse of the error function: erf(y) = x; infinite at -1 and 1.

    Example: `%y = "gradopt.erf_inv"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    reference = staticmethod(scipy.special.erfinv)

    def slope(self) -> Any:
        """dy/dx = sqrt(pi) / 2 * e^(y^2)"""
        return exp(square(self.y)) * (math.sqrt(math.pi) / 2)


class LgammaOp(Transcendental, name="lgamma"):
    """Logarithm of the magnitude of the gamma function: y = ln |gamma(x)|.

    Example: `%y = "gradopt.lgamma"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    reference = staticmethod(scipy.special.gammaln)

    def slope(self) -> Any:
        """dy/dx = digamma(x)"""
        return digamma(self.x)


class DigammaOp(Transcendental, name="digamma"):
    """Logarithmic derivative of the gamma function: y = gamma'(x) / gamma(x).

    Example: `%y = "gradopt.digamma"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    reference = staticmethod(scipy.special.digamma)

    def slope(self) -> Any:
        """dy/dx = polygamma of order 1"""
        return polygamma(self.x, order=1)


class PolygammaOp(Elementwise, name="polygamma"):
    """Derivative of digamma of the given order, 1 to 100: y = d^order digamma(x) / dx^order.

    Example: `%y = "gradopt.polygamma"(%x) {order = 1 : i64} : (tensor<4xf32>) -> tensor<4xf32>`
    """

    KIND = FLOAT
    x: Operand
    order: Int
    y: Result

    @classmethod
    def infer(cls, x: TensorSpec, order: int) -> TensorSpec:
        if order < 1:
            raise cls.error("an order of at least 1", order, "order 0 is digamma")
        if order > 100:
            raise cls.error("an order of at most 100", order)
        return cls.check(x)

    @staticmethod
    def reference(x: np.ndarray, order: int) -> np.ndarray:
        """For x < 0 by reflection: psi_n(x) = (-1)^n psi_n(1 - x) - pi d^n cot(pi x) / dx^n."""
        mirrored = np.where(x > 0, x, 1 - x).astype(np.float64)
        value = scipy.special.polygamma(order, mirrored)
        cot = 1 / np.tan(np.pi * x.astype(np.float64))
        reflected = (-1) ** order * value - np.pi * np.polyval(
            cotangent_derivative(order)[::-1], cot
        )
        return np.where(
            x > 0, value, np.where(x == np.floor(x), np.inf if order % 2 else np.nan, reflected)
        )

    def vjp(self, ct: Any) -> list[Any]:
        """dx = ct * polygamma of the next order"""
        return [mul_no_nan(ct, polygamma(self.x, order=self.order + 1))]


def cotangent_derivative(order: int) -> list[float]:
    """Coefficients p, lowest first, with d^order cot(pi x) / dx^order = sum of p_k cot(pi x)^k.

    From d cot(pi x) / dx = -pi (1 + cot(pi x)^2).
    """
    p = np.polynomial.Polynomial([0.0, 1.0])
    for _ in range(order):
        p = p.deriv() * np.polynomial.Polynomial([-math.pi, 0.0, -math.pi])
    return p.coef.tolist()


erf, erfc, erf_inv, lgamma, digamma, polygamma = map(
    function, (ErfOp, ErfcOp, ErfInvOp, LgammaOp, DigammaOp, PolygammaOp)
)
