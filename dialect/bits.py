# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Counting and moving the bits of integers, and of floating-point numbers."""

from typing import Any

import numpy as np

from .base import NO_GRADIENT, function
from .elementwise import FLOAT, INTEGER, Binary, Unary
from .types import int16, int32, int64


def unsigned(x: np.ndarray) -> np.ndarray:
    """The same bits as unsigned integers."""
    return x.view(f"u{x.dtype.itemsize}")


class PopcountOp(Unary, name="popcount"):
    """Number of bits that are 1, in two's complement.

    Example: `%y = "gradopt.popcount"(%x) : (tensor<4xi32>) -> tensor<4xi32>`
    """

    KIND = INTEGER

    @staticmethod
    def reference(x: np.ndarray) -> np.ndarray:
        return np.bitwise_count(unsigned(x))

    vjp = NO_GRADIENT


class CountLeadingZerosOp(Unary, name="count_leading_zeros"):
    """Number of bits above the highest that is 1; the width of 0.

    Example: `%y = "gradopt.count_leading_zeros"(%x) : (tensor<4xi32>) -> tensor<4xi32>`
    """

    KIND = INTEGER

    @staticmethod
    def reference(x: np.ndarray) -> np.ndarray:
        bits = unsigned(x)
        return np.sum([(bits >> i) == 0 for i in range(x.dtype.itemsize * 8)], axis=0)

    vjp = NO_GRADIENT


class ShiftRightLogicalOp(Binary, name="shift_right_logical"):
    """Bits moved down with zeros above: 0 where the shift is negative or not below the width.

    Example: `%y = "gradopt.shift_right_logical"(%a, %b) : (tensor<4xi32>, tensor<4xi32>) ->
    tensor<4xi32>`
    """

    KIND = INTEGER

    @staticmethod
    def reference(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
        fits = (rhs >= 0) & (rhs < lhs.dtype.itemsize * 8)
        shifted = unsigned(lhs) >> unsigned(np.where(fits, rhs, 0).astype(rhs.dtype))
        return np.where(fits, shifted.view(lhs.dtype), 0)

    vjp = NO_GRADIENT


WHOLE = {2: int16, 4: int32, 8: int64}
"""Integers of the width of a floating-point type, by their bytes."""


class NextafterOp(Binary, name="nextafter"):
    """The number of the type next to lhs in the direction of rhs; rhs where they are equal, NaN
    where either is.

    Example: `%y = "gradopt.nextafter"(%a, %b) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>`
    """

    KIND = FLOAT
    WIDEN = False

    @staticmethod
    def reference(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
        return np.where(lhs == rhs, rhs, np.nextafter(lhs, rhs))  # 0 towards -0 is -0

    def vjp(self, ct: Any) -> list[Any]:
        """dlhs = ct, drhs = 0"""
        return [ct, None]


nextafter = function(NextafterOp)
popcount, count_leading_zeros, shift_right_logical = map(
    function, (PopcountOp, CountLeadingZerosOp, ShiftRightLogicalOp)
)
