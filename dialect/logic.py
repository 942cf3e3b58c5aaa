# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Comparison, logic, bits, selection and conversion between element types."""

from typing import Any

import numpy as np

from .base import NO_GRADIENT, DType, Operand, Result, Str, function
from .elementwise import (
    ANY,
    BOOLEAN,
    FLOAT,
    INTEGER,
    Binary,
    Elementwise,
    Predicate,
    Unary,
    as_tensor,
    broadcast_together,
    promote_together,
)
from .shape import unchanged
from .types import TensorSpec, as_dtype, bool_, is_float, is_integer, limits_of

COMPARISONS = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


class CompareOp(Elementwise, name="compare"):
    """Comparison: y = lhs <direction> rhs, with direction eq, ne, lt, le, gt or ge; false where
    either is NaN, but ne.

    Example: `%y = "gradopt.compare"(%a, %b) {direction = "lt"} : (tensor<4xf32>, tensor<4xf32>) ->
    tensor<4xi1>`
    """

    KIND = ANY
    lhs: Operand
    rhs: Operand
    direction: Str
    y: Result

    @classmethod
    def infer(cls, lhs: TensorSpec, rhs: TensorSpec, direction: str) -> TensorSpec:
        if direction not in COMPARISONS:
            raise cls.error(f"a direction out of {', '.join(COMPARISONS)}", f"'{direction}'")
        return cls.check(lhs, rhs).with_dtype(bool_)

    @staticmethod
    def reference(lhs: np.ndarray, rhs: np.ndarray, direction: str) -> np.ndarray:
        return COMPARISONS[direction](lhs, rhs)

    vjp = NO_GRADIENT


# --- tests of one value ---------------------------------------------------------------------------


class IsFiniteOp(Predicate, name="is_finite"):
    """True where x is neither infinite nor NaN.

    Example: `%y = "gradopt.is_finite"(%x) : (tensor<4xf32>) -> tensor<4xi1>`
    """

    KIND = FLOAT
    reference = staticmethod(np.isfinite)


class IsNanOp(Predicate, name="is_nan"):
    """True where x is NaN.

    Example: `%y = "gradopt.is_nan"(%x) : (tensor<4xf32>) -> tensor<4xi1>`
    """

    KIND = FLOAT
    reference = staticmethod(np.isnan)


class IsInfOp(Predicate, name="is_inf"):
    """True where x is positive or negative infinity.

    Example: `%y = "gradopt.is_inf"(%x) : (tensor<4xf32>) -> tensor<4xi1>`
    """

    KIND = FLOAT
    reference = staticmethod(np.isinf)


# --- logic and bits -------------------------------------------------------------------------------


class LogicalNotOp(Unary, name="logical_not"):
    """Negation of booleans: y = not x.

    Example: `%y = "gradopt.logical_not"(%x) : (tensor<4xi1>) -> tensor<4xi1>`
    """

    KIND = BOOLEAN
    reference = staticmethod(np.logical_not)
    vjp = NO_GRADIENT


class LogicalAndOp(Binary, name="logical_and"):
    """Conjunction of booleans: y = lhs and rhs.

    Example: `%y = "gradopt.logical_and"(%a, %b) : (tensor<4xi1>, tensor<4xi1>) -> tensor<4xi1>`
    """

    KIND = BOOLEAN
    reference = staticmethod(np.logical_and)
    vjp = NO_GRADIENT


class LogicalOrOp(Binary, name="logical_or"):
    """Disjunction of booleans: y = lhs or rhs.

    Example: `%y = "gradopt.logical_or"(%a, %b) : (tensor<4xi1>, tensor<4xi1>) -> tensor<4xi1>`
    """

    KIND = BOOLEAN
    reference = staticmethod(np.logical_or)
    vjp = NO_GRADIENT


class LogicalXorOp(Binary, name="logical_xor"):
    """Exclusive disjunction of booleans: y = lhs != rhs.

    Example: `%y = "gradopt.logical_xor"(%a, %b) : (tensor<4xi1>, tensor<4xi1>) -> tensor<4xi1>`
    """

    KIND = BOOLEAN
    reference = staticmethod(np.logical_xor)
    vjp = NO_GRADIENT


class BitwiseNotOp(Unary, name="bitwise_not"):
    """Complement of every bit.

    Example: `%y = "gradopt.bitwise_not"(%x) : (tensor<4xi32>) -> tensor<4xi32>`
    """

    KIND = "integer or boolean"
    reference = staticmethod(np.bitwise_not)
    vjp = NO_GRADIENT


class BitwiseAndOp(Binary, name="bitwise_and"):
    """Conjunction of every bit.

    Example: `%y = "gradopt.bitwise_and"(%a, %b) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>`
    """

    KIND = "integer or boolean"
    reference = staticmethod(np.bitwise_and)
    vjp = NO_GRADIENT


class BitwiseOrOp(Binary, name="bitwise_or"):
    """Disjunction of every bit.

    Example: `%y = "gradopt.bitwise_or"(%a, %b) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>`
    """

    KIND = "integer or boolean"
    reference = staticmethod(np.bitwise_or)
    vjp = NO_GRADIENT


class BitwiseXorOp(Binary, name="bitwise_xor"):
    """Exclusive disjunction of every bit.

    Example: `%y = "gradopt.bitwise_xor"(%a, %b) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>`
    """

    KIND = "integer or boolean"
    reference = staticmethod(np.bitwise_xor)
    vjp = NO_GRADIENT


class ShiftLeftOp(Binary, name="shift_left"):
    """Bits moved up: y = lhs << rhs; 0 where rhs is negative or not below the width.

    Example: `%y = "gradopt.shift_left"(%a, %b) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>`
    """

    KIND = INTEGER

    @staticmethod
    def reference(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
        fits = (rhs >= 0) & (rhs < lhs.dtype.itemsize * 8)
        return np.where(fits, np.left_shift(lhs, np.where(fits, rhs, 0)), 0)

    vjp = NO_GRADIENT


class ShiftRightOp(Binary, name="shift_right"):
    """Bits moved down: y = lhs >> rhs, keeping the sign; a shift that is negative or not below the
    width leaves only the sign.

    Example: `%y = "gradopt.shift_right"(%a, %b) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>`
    """

    KIND = INTEGER

    @staticmethod
    def reference(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
        fits = (rhs >= 0) & (rhs < lhs.dtype.itemsize * 8)
        return np.where(
            fits,
            np.right_shift(lhs, np.where(fits, rhs, 0)),
            np.where(lhs < 0, -1, 0).astype(lhs.dtype),
        )

    vjp = NO_GRADIENT


# --- selection ------------------------------------------------------------------------------------


class SelectOp(Elementwise, name="select"):
    """Choice: y = condition ? on_true : on_false.

    The gradient of the side not taken is exactly 0.
    Example: `%y = "gradopt.select"(%c, %a, %b) : (tensor<4xi1>, tensor<4xf32>, tensor<4xf32>) ->
    tensor<4xf32>`
    """

    KIND = ANY
    condition: Operand
    on_true: Operand
    on_false: Operand
    y: Result

    @classmethod
    def infer(cls, condition: TensorSpec, on_true: TensorSpec, on_false: TensorSpec) -> TensorSpec:
        result = cls.check(on_true, on_false)
        if condition != result.with_dtype(bool_):
            raise cls.error(
                f"a condition of type {result.with_dtype(bool_)}",
                condition,
                "broadcast or compare first",
            )
        return result

    @classmethod
    def prepare(cls, condition: Any, on_true: Any, on_false: Any) -> list[Any]:
        branches = promote_together(ANY, (on_true, on_false))
        (condition,) = promote_together(BOOLEAN, (condition,))
        return broadcast_together(cls, condition, *branches)

    @staticmethod
    def reference(condition: np.ndarray, on_true: np.ndarray, on_false: np.ndarray) -> np.ndarray:
        return np.where(condition, on_true, on_false)

    def vjp(self, ct: Any) -> list[Any]:
        """don_true = condition ? ct : 0, don_false = condition ? 0 : ct"""
        return [None, select(self.condition, ct, 0), select(self.condition, 0, ct)]


class ClampOp(Elementwise, name="clamp"):
    """Limit to a range: y = min(max(x, low), high).

    The gradient at a bound is 1, outside 0; NaN passes through.
    Example: `%y = "gradopt.clamp"(%x, %l, %h) : (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) ->
    tensor<4xf32>`
    """

    x: Operand
    low: Operand
    high: Operand
    y: Result

    @staticmethod
    def reference(x: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        return np.minimum(np.maximum(x, low), high)

    def vjp(self, ct: Any) -> list[Any]:
        """dx = ct where low <= x <= high; dlow = ct where x < low <= high; dhigh = ct where high is
        taken
        """
        x, low, high = self.x, self.low, self.high
        capped = (x > high) | (low > high)
        raised = (x < low) & ~capped
        return [select(capped | raised, 0, ct), select(raised, ct, 0), select(capped, ct, 0)]


# --- element types --------------------------------------------------------------------------------


class ConvertOp(Elementwise, name="convert"):
    """Value in another element type: floats to integers truncate and saturate (NaN to 0), numbers
    to booleans test for 0.

    Example: `%y = "gradopt.convert"(%x) {dtype = i32} : (tensor<4xf32>) -> tensor<4xi32>`
    """

    KIND = ANY
    WIDEN = False
    x: Operand
    dtype: DType
    y: Result

    @classmethod
    def infer(cls, x: TensorSpec, dtype: np.dtype) -> TensorSpec:
        return x.with_dtype(dtype)

    @staticmethod
    def reference(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
        if dtype == bool_:
            return x != 0
        if is_float(x.dtype) and is_integer(dtype):
            limits, wide = (
                np.iinfo(dtype),
                np.nan_to_num(x.astype(np.float64), nan=0, posinf=np.inf, neginf=-np.inf),
            )
            inside = np.clip(np.trunc(wide), limits.min, np.nextafter(limits.max + 1.0, 0)).astype(
                dtype
            )
            return np.where(
                wide >= limits.max, limits.max, np.where(wide <= limits.min, limits.min, inside)
            ).astype(dtype)
        return x.astype(dtype)

    def vjp(self, ct: Any) -> list[Any]:
        """dx = ct, converted back"""
        return [convert(ct, dtype=self.x.dtype)]


class BitcastOp(Elementwise, name="bitcast"):
    """The same bits read as another element type of the same width.

    Example: `%y = "gradopt.bitcast"(%x) {dtype = i32} : (tensor<4xf32>) -> tensor<4xi32>`
    """

    KIND = ANY
    WIDEN = False
    x: Operand
    dtype: DType
    y: Result

    @classmethod
    def infer(cls, x: TensorSpec, dtype: np.dtype) -> TensorSpec:
        if bool_ in (x.dtype, dtype) or x.dtype.itemsize != dtype.itemsize:
            raise cls.error(
                "element types of one width",
                f"{x.dtype.name} and {dtype.name}",
                "use convert for values",
            )
        return x.with_dtype(dtype)

    @staticmethod
    def reference(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
        return np.ascontiguousarray(x).view(dtype)

    vjp = NO_GRADIENT


# --- functions ------------------------------------------------------------------------------------

compare, select, clamp, bitcast = map(function, (CompareOp, SelectOp, ClampOp, BitcastOp))
is_finite, is_nan, is_inf = map(function, (IsFiniteOp, IsNanOp, IsInfOp))
logical_not, logical_and, logical_or, logical_xor = map(
    function, (LogicalNotOp, LogicalAndOp, LogicalOrOp, LogicalXorOp)
)
bitwise_not, bitwise_and, bitwise_or, bitwise_xor = map(
    function, (BitwiseNotOp, BitwiseAndOp, BitwiseOrOp, BitwiseXorOp)
)
shift_left, shift_right = map(function, (ShiftLeftOp, ShiftRightOp))


def convert(x: Any, *, dtype: Any, name: str | None = None) -> Any:
    """`x` with another element type (see the op `convert`); `x` itself where it has that type
    already.
    """
    dtype = as_dtype(dtype)
    return unchanged(x) if x.dtype == dtype else ConvertOp.emit(x, dtype=dtype, name=name)


def where(condition: Any, on_true: Any, on_false: Any) -> Any:
    """Elements of `on_true` where `condition` holds, else of `on_false`; the side not taken gets no
    gradient.
    """
    return select(condition, on_true, on_false)


def clip(x: Any, min: Any = None, max: Any = None) -> Any:  # noqa: A002 - NumPy's names
    """`x` limited to [min, max]; a bound of None is no bound. Bounds that are numbers adapt to x's
    element type as in arithmetic, tensors promote with it.
    """
    x = as_tensor(x)
    least, most = limits_of(x.dtype)
    return clamp(x, least if min is None else min, most if max is None else max)


def equal(x: Any, y: Any) -> Any:
    """x == y, elementwise."""
    return compare(x, y, direction="eq")


def not_equal(x: Any, y: Any) -> Any:
    """x != y, elementwise."""
    return compare(x, y, direction="ne")


def less(x: Any, y: Any) -> Any:
    """x < y, elementwise."""
    return compare(x, y, direction="lt")


def less_equal(x: Any, y: Any) -> Any:
    """x <= y, elementwise."""
    return compare(x, y, direction="le")


def greater(x: Any, y: Any) -> Any:
    """x > y, elementwise."""
    return compare(x, y, direction="gt")


def greater_equal(x: Any, y: Any) -> Any:
    """x >= y, elementwise."""
    return compare(x, y, direction="ge")
