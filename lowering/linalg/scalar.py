# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Scalar arithmetic for the bodies of generics: values with operators, so that a lowering reads
like its formula.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...dialect.mlir import arith, ir, math
from ...dialect.types import UNSIGNED, bool_, float32, float64, is_float, is_integer, is_narrow
from .build import element_type, number

PREDICATES = {
    "float": {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"},
    "signed": {"eq": "eq", "ne": "ne", "lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge"},
    "unsigned": {"eq": "eq", "ne": "ne", "lt": "ult", "le": "ule", "gt": "ugt", "ge": "uge"},
}


class Scalar:
    """A number being computed: an MLIR value and the element type it stands for, which tells
    unsigned from signed.
    """

    __slots__ = ("dtype", "value")
    __hash__ = None  # type: ignore[assignment]  # == is an operation

    def __init__(self, value: ir.Value, dtype: np.dtype) -> None:
        self.value = value
        self.dtype = dtype

    def constant(self, x: Any) -> "Scalar":
        """`x` as a number of the same type; Scalars pass through."""
        return x if isinstance(x, Scalar) else Scalar(number(x, self.value.type), self.dtype)

    @property
    def kind(self) -> str:
        return (
            "float"
            if is_float(self.dtype)
            else "unsigned"
            if self.dtype in UNSIGNED or self.dtype == bool_
            else "signed"
        )

    def apply(self, op: Callable[..., ir.Value], *others: Any) -> "Scalar":
        """An op on this and other numbers of its type."""
        return Scalar(op(self.value, *(self.constant(x).value for x in others)), self.dtype)

    def chosen(self, condition: "Scalar", other: Any) -> "Scalar":
        """This number where `condition` holds, else the other."""
        return Scalar(
            arith.select(condition.value, self.value, self.constant(other).value), self.dtype
        )

    def is_nan(self) -> "Scalar":
        return Scalar(arith.cmpf(arith.CmpFPredicate.UNO, self.value, self.value), bool_)

    def polynomial(self, coefficients: Sequence[float]) -> "Scalar":
        """Horner's rule, highest coefficient first."""
        result = self.constant(coefficients[0])
        for c in coefficients[1:]:
            result = result * self + c
        return result

    def rounded(self) -> "Scalar":
        """As a single MLIR value, where it is more than that."""
        return self

    def _binary(
        self, other: Any, floating: Callable, signed: Callable, unsigned: Callable
    ) -> "Scalar":
        return self.apply(
            {"float": floating, "signed": signed, "unsigned": unsigned}[self.kind], other
        )

    def __add__(self, other: Any) -> "Scalar":
        return self._binary(other, arith.addf, arith.addi, arith.addi)

    def __sub__(self, other: Any) -> "Scalar":
        return self._binary(other, arith.subf, arith.subi, arith.subi)

    def __mul__(self, other: Any) -> "Scalar":
        return self._binary(other, arith.mulf, arith.muli, arith.muli)

    def __truediv__(self, other: Any) -> "Scalar":
        return self._binary(other, arith.divf, arith.divsi, arith.divui)

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: Any) -> "Scalar":
        return self.constant(other) - self

    def __rtruediv__(self, other: Any) -> "Scalar":
        return self.constant(other) / self

    def __mod__(self, other: Any) -> "Scalar":
        """C's remainder, with the sign of the dividend."""
        return self._binary(other, arith.remf, arith.remsi, arith.remui)

    def __neg__(self) -> "Scalar":
        return self.apply(arith.negf) if self.kind == "float" else self.constant(0) - self

    def __and__(self, other: Any) -> "Scalar":
        return Scalar(arith.andi(self.value, self.constant(other).value), self.dtype)

    def __or__(self, other: Any) -> "Scalar":
        return Scalar(arith.ori(self.value, self.constant(other).value), self.dtype)

    def __xor__(self, other: Any) -> "Scalar":
        return Scalar(arith.xori(self.value, self.constant(other).value), self.dtype)

    def __invert__(self) -> "Scalar":
        return self ^ (1 if self.dtype == bool_ else -1)

    def __lshift__(self, other: Any) -> "Scalar":
        return Scalar(arith.shli(self.value, self.constant(other).value), self.dtype)

    def __rshift__(self, other: Any) -> "Scalar":
        return self._binary(other, arith.shrsi, arith.shrsi, arith.shrui)

    def compare(self, direction: str, other: Any) -> "Scalar":
        """Comparison; with NaN only `ne` holds."""
        other = self.constant(other)
        predicate = PREDICATES[self.kind][direction]
        if self.kind == "float":
            return Scalar(
                arith.cmpf(
                    getattr(arith.CmpFPredicate, predicate.upper()), self.value, other.value
                ),
                bool_,
            )
        return Scalar(
            arith.cmpi(getattr(arith.CmpIPredicate, predicate), self.value, other.value), bool_
        )

    def __eq__(self, other: object) -> "Scalar":  # type: ignore[override]
        return self.compare("eq", other)

    def __ne__(self, other: object) -> "Scalar":  # type: ignore[override]
        return self.compare("ne", other)

    def __lt__(self, other: Any) -> "Scalar":
        return self.compare("lt", other)

    def __le__(self, other: Any) -> "Scalar":
        return self.compare("le", other)

    def __gt__(self, other: Any) -> "Scalar":
        return self.compare("gt", other)

    def __ge__(self, other: Any) -> "Scalar":
        return self.compare("ge", other)


def _unary(op: Callable[[ir.Value], ir.Value]) -> Callable[[Scalar], Scalar]:
    return lambda x: x.apply(op)


floor, ceil, trunc, sqrt, rsqrt = map(
    _unary, (math.floor, math.ceil, math.trunc, math.sqrt, math.rsqrt)
)
exp, log, log1p, expm1, tanh = map(_unary, (math.exp, math.log, math.log1p, math.expm1, math.tanh))
round_even, round_away = map(_unary, (math.roundeven, math.round))


def product(x: Scalar, y: Scalar) -> Scalar:
    """x * y, in a form that a sum over it does not turn into a contraction.

    IREE takes acc + f(x) * g(y) for a matrix product, whatever the functions of one argument f and
    g are, and with data tiling compiles acc + x * y. It does not look into a fused multiply-add;
    adding -0.0 changes no product, and LLVM removes it.
    """
    if _is_constant(x) or _is_constant(y):
        return x * y
    if x.kind == "float":
        return Scalar(math.fma(x.value, y.value, x.constant(-0.0).value), x.dtype)
    if x.dtype == bool_:
        return x & y
    return Scalar(arith.mulsi_extended(x.value, y.value)[0], x.dtype)


def _is_constant(x: Scalar) -> bool:
    return not isinstance(x.value.owner, ir.Block) and x.value.owner.name == "arith.constant"


def absolute(x: Scalar) -> Scalar:
    if x.kind == "float":
        return x.apply(math.absf)
    return x if x.kind == "unsigned" else select(x < 0, -x, x)


def copysign(x: Scalar, y: Scalar) -> Scalar:
    return x.apply(math.copysign, y)


def fma(a: Scalar, b: Any, c: Any) -> Scalar:
    """a * b + c, rounded once."""
    return a.apply(math.fma, b, c)


def maximum(x: Scalar, y: Any) -> Scalar:
    """The larger, NaN if either is."""
    return x._binary(y, arith.maximumf, arith.maxsi, arith.maxui)


def minimum(x: Scalar, y: Any) -> Scalar:
    """The smaller, NaN if either is."""
    return x._binary(y, arith.minimumf, arith.minsi, arith.minui)


def select(condition: Scalar, on_true: Any, on_false: Any) -> Scalar:
    like = on_true if isinstance(on_true, Scalar) else on_false
    return like.constant(on_true).chosen(condition, on_false)


def shift_right_logical(x: Scalar, amount: Scalar) -> Scalar:
    """The bits moved down, zeros above."""
    return Scalar(arith.shrui(x.value, amount.value), x.dtype)


def is_nan(x: Scalar) -> Scalar:
    return x.is_nan()


def polynomial(x: Scalar, coefficients: Sequence[float]) -> Scalar:
    """Horner's rule, highest coefficient first."""
    return x.polynomial(coefficients)


# --- element types --------------------------------------------------------------------------------


def widened(x: Scalar) -> Scalar:
    """A 16-bit float in float32; others as they are."""
    return convert(x, float32) if is_narrow(x.dtype) else x


def bitcast(x: Scalar, dtype: np.dtype) -> Scalar:
    to = element_type(dtype)
    return Scalar(x.value if x.value.type == to else arith.bitcast(to, x.value), dtype)


def convert(x: Scalar, dtype: np.dtype) -> Scalar:
    """Value conversion: floats to integers truncate and saturate (NaN to 0), numbers to booleans
    test for 0.
    """
    if x.dtype == dtype:
        return x
    x = x.rounded()
    if x.dtype == dtype:
        return x
    if dtype == bool_:
        return x != 0
    if is_float(x.dtype) and is_float(dtype):
        return _float_to_float(x, dtype)
    if is_float(x.dtype):
        return _float_to_integer(x, dtype)
    to = element_type(dtype)
    if is_float(dtype):
        op = arith.sitofp if x.kind == "signed" else arith.uitofp
        return Scalar(op(to, x.value), dtype)
    return _integer_to_integer(x, dtype)


def _float_to_float(x: Scalar, dtype: np.dtype) -> Scalar:
    to = element_type(dtype)
    if x.dtype.itemsize == dtype.itemsize:  # float16 and bfloat16
        return convert(convert(x, float32), dtype)
    return Scalar(
        (arith.extf if x.dtype.itemsize < dtype.itemsize else arith.truncf)(to, x.value), dtype
    )


def _float_to_integer(x: Scalar, dtype: np.dtype) -> Scalar:
    """LLVM leaves out-of-range conversions undefined, so the ends are chosen by comparison."""
    x = widened(x)
    limits = np.iinfo(dtype)
    below, above = x <= float(limits.min), x >= float(limits.max)
    inside = select(below | above | is_nan(x), 0.0, x)
    op = arith.fptoui if dtype in UNSIGNED else arith.fptosi
    whole = Scalar(op(element_type(dtype), inside.value), dtype)
    return select(below, int(limits.min), select(above, int(limits.max), whole))


def _integer_to_integer(x: Scalar, dtype: np.dtype) -> Scalar:
    to = element_type(dtype)
    if x.value.type == to:
        return Scalar(x.value, dtype)
    if x.dtype != bool_ and x.dtype.itemsize > dtype.itemsize:
        return Scalar(arith.trunci(to, x.value), dtype)
    return Scalar((arith.extsi if x.kind == "signed" else arith.extui)(to, x.value), dtype)


def from_index(value: ir.Value, dtype: np.dtype) -> Scalar:
    """A loop index as a number of `dtype`."""
    if is_integer(dtype):
        return Scalar(arith.index_cast(element_type(dtype), value), dtype)
    wide = Scalar(arith.index_cast(element_type(np.dtype("int64")), value), np.dtype("int64"))
    return convert(wide, dtype)
