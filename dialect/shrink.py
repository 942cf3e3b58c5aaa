# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""More activation functions: thresholds, shrinkage, smooth gates."""

import math
from typing import Any

import numpy as np

from .activation import Activation, sigmoid, softplus
from .arithmetic import abs as magnitude
from .arithmetic import neg
from .base import Float, Int, Op, Operand, Result, check_float, function
from .later import scipy
from .logic import select
from .shape import normalize_axes
from .special import erfc
from .transcendental import exp, sqrt, square
from .types import TensorSpec


class LogSigmoidOp(Activation, name="log_sigmoid"):
    """Logarithm of the logistic function, without overflow: y = -ln(1 + e^-x).

    Example: `%y = "gradopt.log_sigmoid"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    @staticmethod
    def reference(x: np.ndarray) -> np.ndarray:
        return scipy.special.log_expit(x)

    @staticmethod
    def decompose(x: Any) -> Any:
        """-softplus(-x)"""
        return neg(softplus(neg(x)))

    def slope(self) -> Any:
        """dy/dx = 1 / (1 + e^x)"""
        return sigmoid(neg(self.x))


class ThresholdOp(Activation, name="threshold"):
    """Numbers above a threshold, another value in the place of the rest: y = x for x > threshold,
    else value.

    Example: `%y = "gradopt.threshold"(%x) {threshold = 0.1 : f64, value = 0.0 : f64} :
    (tensor<4xf32>) -> tensor<4xf32>`
    """

    threshold: Float = 0.0
    value: Float = 0.0

    @staticmethod
    def reference(x: np.ndarray, threshold: float, value: float) -> np.ndarray:
        return np.where(x > threshold, x, value)

    def vjp(self, ct: Any) -> list[Any]:
        """dx = ct for x > threshold, else 0 (at it too)"""
        return [select(self.x > self.threshold, ct, 0)]


class Shrink(Activation):
    """Something that is 0 for |x| <= width, with `width` at least 0."""

    width: Float = 0.5

    @classmethod
    def infer(cls, x: TensorSpec, width: float) -> TensorSpec:
        if not width >= 0:
            raise cls.error("a width of at least 0", width)
        return cls.check(x)

    def vjp(self, ct: Any) -> list[Any]:
        """dx = ct for |x| > width, else 0 (at the width too)"""
        return [select(magnitude(self.x) > self.width, ct, 0)]


class HardShrinkOp(Shrink, name="hard_shrink"):
    """Small numbers set to 0: y = x for |x| > width, else 0.

    Example: `%y = "gradopt.hard_shrink"(%x) {width = 0.5 : f64} : (tensor<4xf32>) -> tensor<4xf32>`
    """

    @staticmethod
    def reference(x: np.ndarray, width: float) -> np.ndarray:
        return np.where(np.abs(x) <= width, 0, x)


class SoftShrinkOp(Shrink, name="soft_shrink"):
    """Magnitudes made smaller: y = sign(x) * max(|x| - width, 0), the proximal map of width * |x|.

    Example: `%y = "gradopt.soft_shrink"(%x) {width = 0.5 : f64} : (tensor<4xf32>) -> tensor<4xf32>`
    """

    @staticmethod
    def reference(x: np.ndarray, width: float) -> np.ndarray:
        return np.where(np.abs(x) <= width, 0, x - np.sign(x) * width)


class SquareplusOp(Activation, name="squareplus"):
    """Smooth ramp without exponentials: y = (x + sqrt(x^2 + b)) / 2.

    Source: Barron, "Squareplus" (2021).
    Example: `%y = "gradopt.squareplus"(%x) {b = 4.0 : f64} : (tensor<4xf32>) -> tensor<4xf32>`
    """

    b: Float = 4.0

    @classmethod
    def infer(cls, x: TensorSpec, b: float) -> TensorSpec:
        if not b > 0:
            raise cls.error("b above 0", b)
        return cls.check(x)

    @staticmethod
    def reference(x: np.ndarray, b: float) -> np.ndarray:
        root = np.hypot(x, math.sqrt(b))
        return np.where(x > 0, (x + root) / 2, b / 2 / (root + np.abs(x)))

    def slope(self) -> Any:
        """dy/dx = (1 + x / sqrt(x^2 + b)) / 2, written without a difference for x < 0"""
        root = sqrt(square(self.x) + self.b)
        size = magnitude(self.x)
        small = self.b / (root * (root + size)) * 0.5
        return select(self.x > 0, 1 - small, small)


class NdtrOp(Activation, name="ndtr"):
    """Distribution function of the standard normal: y = erfc(-x / sqrt 2) / 2.

    Example: `%y = "gradopt.ndtr"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    reference = staticmethod(scipy.special.ndtr)

    @staticmethod
    def decompose(x: Any) -> Any:
        """erfc(-x / sqrt 2) / 2"""
        return erfc(x * -math.sqrt(0.5)) * 0.5

    def slope(self) -> Any:
        """dy/dx = e^(-x^2 / 2) / sqrt(2 pi)"""
        return exp(square(self.x) * -0.5) * (1 / math.sqrt(2 * math.pi))


class GluOp(Op, name="glu"):
    """Gated linear unit: the first half along an axis times the logistic function of the second.

    Example: `%y = "gradopt.glu"(%x) {axis = 1 : i64} : (tensor<2x6xf32>) -> tensor<2x3xf32>`
    """

    x: Operand
    axis: Int = -1
    y: Result

    @classmethod
    def infer(cls, x: TensorSpec, axis: int) -> TensorSpec:
        check_float(cls, x)
        (axis,) = normalize_axes(cls, axis, x.rank)
        n = x.shape[axis]
        if n is None or n % 2:
            raise cls.error(f"a known, even extent of axis {axis}", x)
        return x.with_shape(n // 2 if i == axis else m for i, m in enumerate(x.shape))

    @staticmethod
    def reference(x: np.ndarray, axis: int) -> np.ndarray:
        a, b = np.split(x, 2, axis)
        return a * scipy.special.expit(b)

    @staticmethod
    def decompose(x: Any, axis: int) -> Any:
        """a * sigmoid(b)"""
        axis %= x.ndim
        half = x.shape[axis] // 2
        return x.slice_axis(axis, 0, half) * sigmoid(x.slice_axis(axis, half, 2 * half))


log_sigmoid, threshold, hard_shrink, soft_shrink, squareplus, ndtr, glu = map(
    function,
    (
        LogSigmoidOp,
        ThresholdOp,
        HardShrinkOp,
        SoftShrinkOp,
        SquareplusOp,
        NdtrOp,
        GluOp,
    ),
)
