# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Arithmetic with conditions inside: blends, guarded divisions, replaced values, angles."""

import math
from typing import Any

import ml_dtypes
import numpy as np

from .activation import Activation
from .arithmetic import neg
from .base import NO_GRADIENT, Float, Operand, Result, function, in_float32
from .creation import full_like
from .elementwise import FLOAT, Binary, Elementwise, Predicate, mul_no_nan
from .logic import is_finite, select
from .types import float32, is_narrow


class LerpOp(Elementwise, name="lerp"):
    """Straight line between two values: y = lhs + weight * (rhs - lhs).

    Example: `%y = "gradopt.lerp"(%a, %b, %w) : (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) ->
    tensor<4xf32>`
    """

    KIND = FLOAT
    lhs: Operand
    rhs: Operand
    weight: Operand
    y: Result

    @staticmethod
    def reference(lhs: np.ndarray, rhs: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return lhs + weight * (rhs - lhs)

    @in_float32
    def vjp(self, ct: Any) -> list[Any]:
        """dlhs = ct * (1 - weight), drhs = ct * weight, dweight = ct * (rhs - lhs)"""
        return [
            mul_no_nan(ct, 1 - self.weight),
            mul_no_nan(ct, self.weight),
            mul_no_nan(ct, self.rhs - self.lhs),
        ]


class DivNoNanOp(Binary, name="div_no_nan"):
    """Quotient that is 0 where the divisor is 0: y = lhs / rhs.

    Example: `%y = "gradopt.div_no_nan"(%a, %b) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>`
    """

    KIND = FLOAT

    @staticmethod
    def reference(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
        return np.where(rhs == 0, 0, lhs / rhs)

    @in_float32
    def vjp(self, ct: Any) -> list[Any]:
        """dlhs = ct / rhs, drhs = -ct * y / rhs, both 0 where rhs = 0"""
        dlhs = div_no_nan(ct, self.rhs)
        return [dlhs, neg(mul_no_nan(dlhs, self.y))]


class SquaredDifferenceOp(Binary, name="squared_difference"):
    """Squared distance: y = (lhs - rhs)^2.

    Example: `%y = "gradopt.squared_difference"(%a, %b) : (tensor<4xf32>, tensor<4xf32>) ->
    tensor<4xf32>`
    """

    @staticmethod
    def reference(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
        return (lhs - rhs) * (lhs - rhs)

    @staticmethod
    def decompose(lhs: Any, rhs: Any) -> Any:
        """The square of the difference, 16-bit floats in float32"""
        dtype = lhs.dtype
        if is_narrow(dtype):
            lhs, rhs = lhs.astype(float32), rhs.astype(float32)
        difference = lhs - rhs
        return (difference * difference).astype(dtype)

    @in_float32
    def vjp(self, ct: Any) -> list[Any]:
        """dlhs = 2 ct (lhs - rhs), drhs = -dlhs"""
        dlhs = mul_no_nan(ct, (self.lhs - self.rhs) * 2)
        return [dlhs, neg(dlhs)]


class HeavisideOp(Binary, name="heaviside"):
    """Step: y = 0 for lhs < 0, rhs at 0, 1 above; NaN of NaN.

    Example: `%y = "gradopt.heaviside"(%x, %v) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>`
    """

    KIND = FLOAT
    reference = staticmethod(np.heaviside)

    def vjp(self, ct: Any) -> list[Any]:
        """drhs = ct where lhs = 0; none by lhs"""
        return [None, select(self.lhs.equal(0), ct, 0)]


class NanToNumOp(Activation, name="nan_to_num"):
    """NaN and infinities replaced by numbers; `posinf` and `neginf` that are themselves infinite
    stand for the largest and the least finite number.

    Example: `%y = "gradopt.nan_to_num"(%x) {nan = 0.0 : f64} : (tensor<4xf32>) -> tensor<4xf32>`
    """

    WIDEN = False  # the largest number depends on the element type
    nan: Float = 0.0
    posinf: Float = math.inf
    neginf: Float = -math.inf

    @staticmethod
    def reference(x: np.ndarray, nan: float, posinf: float, neginf: float) -> np.ndarray:
        most, least = largest(x.dtype, posinf), largest(x.dtype, neginf)
        y = np.where(x == np.inf, most, np.where(x == -np.inf, least, x.astype(np.float64)))
        return np.where(np.isnan(x), nan, y)

    def vjp(self, ct: Any) -> list[Any]:
        """dx = ct where x is finite, else 0"""
        return [select(is_finite(self.x), ct, 0)]


def largest(dtype: np.dtype, value: float) -> float:
    """`value`, or the largest finite number of its sign where it is infinite."""
    return math.copysign(float(ml_dtypes.finfo(dtype).max), value) if math.isinf(value) else value


class Deg2radOp(Activation, name="deg2rad"):
    """Degrees as radians: y = x * pi / 180.

    Example: `%y = "gradopt.deg2rad"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    @staticmethod
    def reference(x: np.ndarray) -> np.ndarray:
        return x * (np.pi / 180)

    @staticmethod
    def decompose(x: Any) -> Any:
        """x * pi / 180"""
        return x * (math.pi / 180)

    def slope(self) -> Any:
        """pi / 180"""
        return full_like(self.x, math.pi / 180)


class Rad2degOp(Activation, name="rad2deg"):
    """Radians as degrees: y = x * 180 / pi.

    Example: `%y = "gradopt.rad2deg"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    @staticmethod
    def reference(x: np.ndarray) -> np.ndarray:
        return x * (180 / np.pi)

    @staticmethod
    def decompose(x: Any) -> Any:
        """x * 180 / pi"""
        return x * (180 / math.pi)

    def slope(self) -> Any:
        """180 / pi"""
        return full_like(self.x, 180 / math.pi)


class SignbitOp(Predicate, name="signbit"):
    """True where the sign is negative, of -0.0 and NaN too.

    Example: `%y = "gradopt.signbit"(%x) : (tensor<4xf32>) -> tensor<4xi1>`
    """

    KIND = FLOAT
    WIDEN = False
    reference = staticmethod(np.signbit)
    vjp = NO_GRADIENT


lerp, div_no_nan, squared_difference, heaviside, nan_to_num, deg2rad, rad2deg, signbit = map(
    function,
    (
        LerpOp,
        DivNoNanOp,
        SquaredDifferenceOp,
        HeavisideOp,
        NanToNumOp,
        Deg2radOp,
        Rad2degOp,
        SignbitOp,
    ),
)
