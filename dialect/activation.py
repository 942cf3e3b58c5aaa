# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Activation functions of neural networks."""

import math
from typing import Any

import numpy as np

from . import arithmetic
from .base import Float, Operand, Result, Str, function, in_wide
from .creation import full_like, ones_like
from .elementwise import FLOAT, Elementwise, Unary, mul_no_nan
from .later import scipy
from .logic import select
from .special import erfc
from .transcendental import exp, log1p, square, tanh
from .types import TensorSpec

SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805
"""Constants of Klambauer et al., "Self-Normalizing Neural Networks" (2017), appendix A."""


class Activation(Unary):
    """A function of one floating-point tensor, with or without number attributes."""

    KIND = FLOAT


class ReluOp(Activation, name="relu"):
    """Rectified linear unit: y = max(x, 0).

    Example: `%y = "gradopt.relu"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    @staticmethod
    def reference(x: np.ndarray) -> np.ndarray:
        return np.maximum(x, 0)

    def vjp(self, ct: Any) -> list[Any]:
        """dx = ct where y > 0, else 0 (at 0 too)"""
        return [select(self.y > 0, ct, 0)]


class LeakyReluOp(Activation, name="leaky_relu"):
    """Leaky rectifier: y = x for x > 0, else negative_slope * x.

    Example: `%y = "gradopt.leaky_relu"(%x) {negative_slope = 0.1 : f64} : (tensor<4xf32>) ->
    tensor<4xf32>`
    """

    negative_slope: Float = 0.01

    @staticmethod
    def reference(x: np.ndarray, negative_slope: float) -> np.ndarray:
        return np.where(x > 0, x, x * negative_slope)

    def slope(self) -> Any:
        """1 for x > 0, else negative_slope (at 0 too)"""
        return select(self.x > 0, ones_like(self.x), self.negative_slope)


class PreluOp(Elementwise, name="prelu"):
    """Leaky rectifier with a learned slope: y = x for x > 0, else weight * x.

    Example: `%y = "gradopt.prelu"(%x, %w) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>`
    """

    KIND = FLOAT
    x: Operand
    weight: Operand
    y: Result

    @staticmethod
    def reference(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return np.where(x > 0, x, x * weight)

    def vjp(self, ct: Any) -> list[Any]:
        """dx = ct for x > 0, else ct * weight; dweight = 0 for x > 0, else ct * x"""
        positive = self.x > 0
        return [
            select(positive, ct, mul_no_nan(ct, self.weight)),
            select(positive, 0, mul_no_nan(ct, self.x)),
        ]


class EluOp(Activation, name="elu"):
    """Exponential linear unit: y = x for x > 0, else alpha * (e^x - 1).

    Example: `%y = "gradopt.elu"(%x) {alpha = 1.0 : f64} : (tensor<4xf32>) -> tensor<4xf32>`
    """

    alpha: Float = 1.0

    @staticmethod
    def reference(x: np.ndarray, alpha: float) -> np.ndarray:
        return np.where(x > 0, x, np.expm1(np.minimum(x, 0)) * alpha)

    def slope(self) -> Any:
        """1 for x > 0, else alpha * e^x"""
        return select(self.x > 0, 1, exp(self.x.clip(max=0)) * self.alpha)


class CeluOp(Activation, name="celu"):
    """Continuously differentiable exponential linear unit: y = x for x > 0, else alpha * (e^(x /
    alpha) - 1).

    Example: `%y = "gradopt.celu"(%x) {alpha = 1.0 : f64} : (tensor<4xf32>) -> tensor<4xf32>`
    """

    alpha: Float = 1.0

    @staticmethod
    def reference(x: np.ndarray, alpha: float) -> np.ndarray:
        return np.where(x > 0, x, np.expm1(np.minimum(x, 0) / alpha) * alpha)

    def slope(self) -> Any:
        """1 for x > 0, else e^(x / alpha)"""
        return select(self.x > 0, 1, exp(self.x.clip(max=0) / self.alpha))


class SeluOp(Activation, name="selu"):
    """Scaled exponential linear unit: y = scale * (x for x > 0, else alpha * (e^x - 1)), constants
    as in the paper.

    Example: `%y = "gradopt.selu"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    @staticmethod
    def reference(x: np.ndarray) -> np.ndarray:
        return SELU_SCALE * np.where(x > 0, x, np.expm1(np.minimum(x, 0)) * SELU_ALPHA)

    def slope(self) -> Any:
        """scale for x > 0, else scale * alpha * e^x"""
        return select(self.x > 0, SELU_SCALE, exp(self.x.clip(max=0)) * (SELU_SCALE * SELU_ALPHA))


class GeluOp(Activation, name="gelu"):
    """Gaussian error linear unit: y = x * Phi(x), Phi the normal distribution; `approximate` is
    "none" or "tanh".

    The tanh form is x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) of Hendrycks and Gimpel
    (2016).
    Example: `%y = "gradopt.gelu"(%x) {approximate = "tanh"} : (tensor<4xf32>) -> tensor<4xf32>`
    """

    approximate: Str = "none"

    @classmethod
    def infer(cls, x: TensorSpec, approximate: str) -> TensorSpec:
        if approximate not in ("none", "tanh"):
            raise cls.error("approximate to be 'none' or 'tanh'", f"'{approximate}'")
        return cls.check(x)

    @staticmethod
    def reference(x: np.ndarray, approximate: str) -> np.ndarray:
        if approximate == "none":
            return x * scipy.special.ndtr(x)
        return x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    @staticmethod
    @in_wide
    def decompose(x: Any, approximate: str) -> Any:
        """x / 2 * erfc(-x / sqrt 2), or the tanh form"""
        if approximate == "none":
            return x * 0.5 * erfc(x * -math.sqrt(0.5))
        c = math.sqrt(2 / math.pi)
        return x * 0.5 * (1 + tanh(x * (c + (c * 0.044715) * (x * x))))

    def slope(self) -> Any:
        """none: Phi(x) + x * phi(x). tanh, with t = tanh(u): (1 + t) / 2 + x / 2 * (1 - t^2) *
        du/dx
        """
        x = self.x
        if self.approximate == "none":
            density = exp(square(x) * -0.5) * (1 / math.sqrt(2 * math.pi))
            return 0.5 * erfc(x * -math.sqrt(0.5)) + x * density
        c = math.sqrt(2 / math.pi)
        squared = square(x)
        t = tanh(x * (c + (c * 0.044715) * squared))
        bend = 0.5 * x * (c + (3 * c * 0.044715) * squared)
        return 0.5 * (1 + t) + mul_no_nan((1 - t) * (1 + t), bend)


class SigmoidOp(Activation, name="sigmoid"):
    """Logistic function: y = 1 / (1 + e^-x).

    Example: `%y = "gradopt.sigmoid"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    reference = staticmethod(scipy.special.expit)

    def slope(self) -> Any:
        """dy/dx = y * sigmoid(-x), accurate where y is close to 1"""
        return self.y * sigmoid(-self.x)


class SiluOp(Activation, name="silu"):
    """Sigmoid-weighted linear unit (swish): y = x * sigmoid(x).

    Example: `%y = "gradopt.silu"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    @staticmethod
    def reference(x: np.ndarray) -> np.ndarray:
        return x * scipy.special.expit(x)

    @staticmethod
    @in_wide
    def decompose(x: Any) -> Any:
        """x * sigmoid(x)"""
        return x * sigmoid(x)

    def slope(self) -> Any:
        """dy/dx = s + x * s * (1 - s), s = sigmoid(x)"""
        s = sigmoid(self.x)
        return s * (1 + self.x * sigmoid(-self.x))


class SoftplusOp(Activation, name="softplus"):
    """Smooth ramp: y = ln(1 + e^x), without overflow.

    Example: `%y = "gradopt.softplus"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    @staticmethod
    def reference(x: np.ndarray) -> np.ndarray:
        return np.logaddexp(x, 0)

    @staticmethod
    @in_wide
    def decompose(x: Any) -> Any:
        """max(x, 0) + ln(1 + e^-|x|)"""
        return arithmetic.maximum(x, 0) + log1p(exp(-arithmetic.abs(x)))

    def slope(self) -> Any:
        """dy/dx = sigmoid(x)"""
        return sigmoid(self.x)


class MishOp(Activation, name="mish"):
    """Self-gated unit: y = x * tanh(softplus(x)).

    Example: `%y = "gradopt.mish"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    @staticmethod
    def reference(x: np.ndarray) -> np.ndarray:
        return x * np.tanh(np.logaddexp(x, 0))

    @staticmethod
    @in_wide
    def decompose(x: Any) -> Any:
        """x * tanh(softplus(x))"""
        return x * tanh(softplus(x))

    def slope(self) -> Any:
        """dy/dx = t + x * (1 - t^2) * sigmoid(x), t = tanh(softplus(x))"""
        t = tanh(softplus(self.x))
        return t + self.x * ((1 - t) * (1 + t)) * sigmoid(self.x)


class SoftsignOp(Activation, name="softsign"):
    """Soft sign: y = x / (1 + |x|).

    Example: `%y = "gradopt.softsign"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    @staticmethod
    def reference(x: np.ndarray) -> np.ndarray:
        return x / (1 + np.abs(x))

    @staticmethod
    @in_wide
    def decompose(x: Any) -> Any:
        """x / (1 + |x|)"""
        return x / (1 + arithmetic.abs(x))

    def slope(self) -> Any:
        """dy/dx = 1 / (1 + |x|)^2"""
        return 1 / square(1 + arithmetic.abs(self.x))


class HardSigmoidOp(Activation, name="hard_sigmoid"):
    """Piecewise linear sigmoid: y = min(max(x / 6 + 1 / 2, 0), 1).

    Example: `%y = "gradopt.hard_sigmoid"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    @staticmethod
    def reference(x: np.ndarray) -> np.ndarray:
        return np.clip(x / 6 + 0.5, 0, 1)

    def slope(self) -> Any:
        """1 / 6 for -3 < x < 3, else 0"""
        return select((self.x > -3) & (self.x < 3), full_like(self.x, 1 / 6), 0)


class HardSwishOp(Activation, name="hard_swish"):
    """Piecewise swish: y = x * hard_sigmoid(x).

    Example: `%y = "gradopt.hard_swish"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    @staticmethod
    def reference(x: np.ndarray) -> np.ndarray:
        return x * np.clip(x / 6 + 0.5, 0, 1)

    def slope(self) -> Any:
        """0 for x <= -3, 1 for x >= 3, else x / 3 + 1 / 2"""
        return select(self.x <= -3, 0, select(self.x >= 3, 1, self.x / 3 + 0.5))


class HardtanhOp(Activation, name="hardtanh"):
    """Limit to a fixed range: y = min(max(x, low), high). relu6 is low = 0, high = 6.

    Unlike `clamp`, the slope at a bound is 0.
    Example: `%y = "gradopt.hardtanh"(%x) {low = 0.0 : f64, high = 6.0 : f64} : (tensor<4xf32>) ->
    tensor<4xf32>`
    """

    low: Float = -1.0
    high: Float = 1.0

    @classmethod
    def infer(cls, x: TensorSpec, low: float, high: float) -> TensorSpec:
        if not low < high:
            raise cls.error("low < high", f"{low} and {high}")
        return cls.check(x)

    @staticmethod
    def reference(x: np.ndarray, low: float, high: float) -> np.ndarray:
        return np.clip(x, low, high)

    def vjp(self, ct: Any) -> list[Any]:
        """dx = ct for low < x < high, else 0"""
        return [select((self.x > self.low) & (self.x < self.high), ct, 0)]


relu, sigmoid, silu, softplus, mish, softsign = map(
    function, (ReluOp, SigmoidOp, SiluOp, SoftplusOp, MishOp, SoftsignOp)
)
leaky_relu, prelu, elu, celu, selu, gelu = map(
    function, (LeakyReluOp, PreluOp, EluOp, CeluOp, SeluOp, GeluOp)
)
hard_sigmoid, hard_swish, hardtanh = map(function, (HardSigmoidOp, HardSwishOp, HardtanhOp))


def relu6(x: Any) -> Any:
    """min(max(x, 0), 6), with slope 0 at both bounds."""
    return hardtanh(x, low=0.0, high=6.0)
