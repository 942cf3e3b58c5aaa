# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Functions of the array API standard that are other functions under its names, or that do nothing
to real numbers.
"""

from typing import Any

from . import arithmetic, logic
from .creation import placed, zeros_like
from .elementwise import ACCEPTS, NUMERIC, as_tensor
from .logic import ConvertOp
from .shape import unchanged
from .types import as_dtype

subtract, multiply, divide, negative = (
    arithmetic.sub,
    arithmetic.mul,
    arithmetic.div,
    arithmetic.neg,
)
isfinite, isinf, isnan = logic.is_finite, logic.is_inf, logic.is_nan
bitwise_invert = logic.bitwise_not
bitwise_left_shift, bitwise_right_shift = logic.shift_left, logic.shift_right


def astype(x: Any, dtype: Any, *, copy: bool = True, device: Any = None) -> Any:
    """`x` in another element type, as the op `convert`; in its own another array, to which one can
    write, unless `copy` is False.
    """
    dtype, x = as_dtype(dtype), as_tensor(x)
    if x.dtype != dtype:
        return placed(logic.convert(x, dtype=dtype), device)
    return placed(unchanged(x) if copy else x, device)


def positive(x: Any) -> Any:
    """`x` itself, as another array."""
    x = as_tensor(x)
    if not ACCEPTS[NUMERIC](x.dtype):
        raise ConvertOp.error("a numeric operand of positive", x.spec, "convert it first")
    return unchanged(x)


def conj(x: Any) -> Any:
    """The complex conjugate of `x`: that of a real number is the number."""
    return positive(x)


def real(x: Any) -> Any:
    """The real part of `x`: that of a real number is the number."""
    return positive(x)


def imag(x: Any) -> Any:
    """The imaginary part of `x`: that of a real number is 0."""
    return zeros_like(positive(x))
