# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Arithmetic: sums, products, divisions, extremes, signs and rounding."""

from typing import Any

import numpy as np

from .base import NO_GRADIENT, function, in_float32
from .elementwise import ANY, FLOAT, Binary, Unary, as_tensor, mul_no_nan
from .logic import is_inf, select
from .types import is_integer


class AddOp(Binary, name="add"):
    """Sum: y = lhs + rhs.

    Example: `%y = "gradopt.add"(%a, %b) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>`
    """

    reference = staticmethod(np.add)

    def vjp(self, ct: Any) -> list[Any]:
        """dlhs = drhs = ct"""
        return [ct, ct]


class SubOp(Binary, name="sub"):
    """Difference: y = lhs - rhs.

    Example: `%y = "gradopt.sub"(%a, %b) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>`
    """

    reference = staticmethod(np.subtract)

    def vjp(self, ct: Any) -> list[Any]:
        """dlhs = ct, drhs = -ct"""
        return [ct, -ct]


class MulOp(Binary, name="mul"):
    """Product: y = lhs * rhs.

    Example: `%y = "gradopt.mul"(%a, %b) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>`
    """

    reference = staticmethod(np.multiply)

    def vjp(self, ct: Any) -> list[Any]:
        """dlhs = ct * rhs, drhs = ct * lhs"""
        return [mul_no_nan(ct, self.rhs), mul_no_nan(ct, self.lhs)]


class DivOp(Binary, name="div"):
    """Quotient of floating-point numbers: y = lhs / rhs. Integers are promoted by the function
    `div`.

    Example: `%y = "gradopt.div"(%a, %b) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>`
    """

    KIND = FLOAT
    reference = staticmethod(np.divide)

    @in_float32
    def vjp(self, ct: Any) -> list[Any]:
        """dlhs = ct / rhs, drhs = -ct * y / rhs"""
        return [mul_no_nan(ct, 1 / self.rhs), mul_no_nan(ct, -self.y / self.rhs)]


def _guarded(divide: Any, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """Integer division with 0 where NumPy would warn or overflow."""
    if lhs.dtype.kind == "f":
        return divide(lhs, rhs)
    return np.where(rhs == 0, 0, divide(lhs, np.where(rhs == 0, 1, rhs)))


class FloorDivideOp(Binary, name="floor_divide"):
    """Quotient rounded down, as Python's `//`: y = (lhs - lhs % rhs) / rhs; integers by 0 give 0.
    Of infinities as the quotient, which has no fraction: inf // 2 = inf, -1 // inf = -0.

    Example: `%y = "gradopt.floor_divide"(%a, %b) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>`
    """

    @staticmethod
    def reference(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
        quotient = _guarded(np.floor_divide, lhs, rhs)
        if lhs.dtype.kind != "f":
            return quotient
        return np.where(np.isinf(lhs) | np.isinf(rhs), lhs / rhs, quotient)

    vjp = NO_GRADIENT


class RemainderOp(Binary, name="remainder"):
    """Remainder with the divisor's sign, as Python's `%`: y = lhs - rhs * floor(lhs / rhs);
    integers by 0 give 0.

    Example: `%y = "gradopt.remainder"(%a, %b) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>`
    """

    @staticmethod
    def reference(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
        return _guarded(np.remainder, lhs, rhs)

    def vjp(self, ct: Any) -> list[Any]:
        """dlhs = ct, drhs = -ct * floor(lhs / rhs), which is -1 where y = rhs = +-inf"""
        moved = self.y.equal(self.rhs) & is_inf(self.rhs)
        return [ct, mul_no_nan(ct, select(moved, 1, -floor_divide(self.lhs, self.rhs)))]


class FmodOp(Binary, name="fmod"):
    """Remainder with the dividend's sign, as C's fmod: y = lhs - rhs * trunc(lhs / rhs); integers
    by 0 give 0.

    Example: `%y = "gradopt.fmod"(%a, %b) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>`
    """

    @staticmethod
    def reference(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
        return _guarded(np.fmod, lhs, rhs)

    def vjp(self, ct: Any) -> list[Any]:
        """dlhs = ct, drhs = -ct * trunc(lhs / rhs)"""
        return [ct, mul_no_nan(ct, -((self.lhs - self.y) / self.rhs).round())]


class MaximumOp(Binary, name="maximum"):
    """Larger of two, NaN if either is: y = max(lhs, rhs).

    Example: `%y = "gradopt.maximum"(%a, %b) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>`
    """

    KIND = ANY
    reference = staticmethod(np.maximum)

    def vjp(self, ct: Any) -> list[Any]:
        """dlhs = ct where lhs > rhs, ct / 2 on a tie, else 0; drhs the other way round"""
        return _share(ct, self.lhs > self.rhs, self.lhs.equal(self.rhs), self.rhs > self.lhs)


class MinimumOp(Binary, name="minimum"):
    """Smaller of two, NaN if either is: y = min(lhs, rhs).

    Example: `%y = "gradopt.minimum"(%a, %b) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>`
    """

    KIND = ANY
    reference = staticmethod(np.minimum)

    def vjp(self, ct: Any) -> list[Any]:
        """dlhs = ct where lhs < rhs, ct / 2 on a tie, else 0; drhs the other way round"""
        return _share(ct, self.lhs < self.rhs, self.lhs.equal(self.rhs), self.rhs < self.lhs)


def _share(ct: Any, left: Any, tie: Any, right: Any) -> list[Any]:
    """`ct` to the side that was taken, half to each on a tie."""
    halved = select(tie, ct * 0.5, 0)
    return [select(left, ct, halved), select(right, ct, halved)]


class CopysignOp(Binary, name="copysign"):
    """Magnitude of one, sign of the other: y = |lhs| with the sign bit of rhs.

    Example: `%y = "gradopt.copysign"(%a, %b) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>`
    """

    KIND = FLOAT
    reference = staticmethod(np.copysign)

    def vjp(self, ct: Any) -> list[Any]:
        """dlhs = ct * sign(lhs) * sign(y), 0 at lhs = 0; drhs = 0"""
        return [mul_no_nan(ct, sign(self.lhs) * sign(self.y)), None]


# --- sign and rounding ----------------------------------------------------------------------------


class NegOp(Unary, name="neg"):
    """Negation: y = -x.

    Example: `%y = "gradopt.neg"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    reference = staticmethod(np.negative)

    def vjp(self, ct: Any) -> list[Any]:
        """dx = -ct"""
        return [-ct]


class AbsOp(Unary, name="abs"):
    """Magnitude: y = |x|.

    Example: `%y = "gradopt.abs"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    reference = staticmethod(np.abs)

    def vjp(self, ct: Any) -> list[Any]:
        """dx = ct * sign(x), 0 at x = 0"""
        return [mul_no_nan(ct, sign(self.x))]


class SignOp(Unary, name="sign"):
    """Sign: y = -1, 0 or 1; NaN of NaN.

    Example: `%y = "gradopt.sign"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    reference = staticmethod(np.sign)
    vjp = NO_GRADIENT


class Rounding(Unary):
    """A whole number near x. The functions give integers back as they are."""

    KIND = FLOAT
    vjp = NO_GRADIENT

    @classmethod
    def build(cls, *operands: Any, name: str | None = None, **attributes: Any) -> Any:
        (x,) = operands
        if hasattr(x, "dtype") and is_integer(x.dtype):
            return as_tensor(x)
        return super().build(x, name=name, **attributes)


class FloorOp(Rounding, name="floor"):
    """Largest whole number not above x.

    Example: `%y = "gradopt.floor"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    reference = staticmethod(np.floor)


class CeilOp(Rounding, name="ceil"):
    """Smallest whole number not below x.

    Example: `%y = "gradopt.ceil"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    reference = staticmethod(np.ceil)


class RoundOp(Rounding, name="round"):
    """Nearest whole number, halves to the even one.

    Example: `%y = "gradopt.round"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    reference = staticmethod(np.round)


class RoundHalfAwayOp(Rounding, name="round_half_away"):
    """Nearest whole number, halves away from zero.

    Example: `%y = "gradopt.round_half_away"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    @staticmethod
    def reference(x: np.ndarray) -> np.ndarray:
        whole = np.trunc(x)
        return whole + np.where(np.abs(x - whole) >= 0.5, np.sign(x), 0)


class TruncOp(Rounding, name="trunc"):
    """Whole part: x rounded towards zero.

    Example: `%y = "gradopt.trunc"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    reference = staticmethod(np.trunc)


add, sub, mul, div = map(function, (AddOp, SubOp, MulOp, DivOp))
floor_divide, remainder, fmod, copysign = map(
    function, (FloorDivideOp, RemainderOp, FmodOp, CopysignOp)
)
maximum, minimum = map(function, (MaximumOp, MinimumOp))
neg, sign, floor, ceil, trunc = map(function, (NegOp, SignOp, FloorOp, CeilOp, TruncOp))
abs = function(AbsOp)  # noqa: A001 - the name NumPy users expect
round = function(RoundOp)  # noqa: A001
round_half_away = function(RoundHalfAwayOp)
