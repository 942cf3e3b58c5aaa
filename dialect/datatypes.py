# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The array API's functions on element types: what they hold, and what two of them become."""

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np

from ..errors import OpError
from .elementwise import common_dtype, is_scalar
from .types import DTYPES, FLOATS, SIGNED, UNSIGNED, as_dtype, bool_, promote

KINDS: dict[str, tuple[np.dtype, ...]] = {
    "bool": (bool_,),
    "signed integer": SIGNED,
    "unsigned integer": UNSIGNED,
    "integral": SIGNED + UNSIGNED,
    "real floating": FLOATS,
    "complex floating": (),
    "numeric": SIGNED + UNSIGNED + FLOATS,
}
"""The kinds that `isdtype` knows, and their element types; gradopt has no complex numbers."""


@dataclasses.dataclass(frozen=True, slots=True)
class FloatInfo:
    """What a floating-point type holds: `eps` is the distance from 1 to the next number,
    `smallest_normal` the least positive number with all digits.
    """

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: np.dtype


@dataclasses.dataclass(frozen=True, slots=True)
class IntegerInfo:
    """The range of an integer type."""

    bits: int
    max: int
    min: int
    dtype: np.dtype


def finfo(type: Any, /) -> FloatInfo:  # noqa: A002 - the standard's name
    """Limits of a floating-point type, or of an array's. OpError for other types."""
    dtype = _dtype_of(type)
    if dtype not in FLOATS:
        raise OpError(f"finfo expected a floating-point type, got {dtype.name}; see iinfo")
    info = ml_dtypes.finfo(dtype)
    eps, most, least, small = map(float, (info.eps, info.max, info.min, info.smallest_normal))
    return FloatInfo(dtype.itemsize * 8, eps, most, least, small, dtype)


def iinfo(type: Any, /) -> IntegerInfo:  # noqa: A002 - the standard's name
    """Limits of an integer type, or of an array's. OpError for other types."""
    dtype = _dtype_of(type)
    if dtype not in KINDS["integral"]:
        raise OpError(f"iinfo expected an integer type, got {dtype.name}; see finfo")
    info = np.iinfo(dtype)
    return IntegerInfo(info.bits, int(info.max), int(info.min), dtype)


def isdtype(dtype: Any, kind: Any) -> bool:
    """Whether an element type is of a kind: a name out of KINDS, a type, or a tuple of them."""
    found = as_dtype(dtype)
    if isinstance(kind, tuple):
        return any(isdtype(found, k) for k in kind)
    if isinstance(kind, str) and kind in KINDS:
        return found in KINDS[kind]
    if isinstance(kind, str) and " " in kind:
        raise OpError(f"isdtype expected a kind out of {', '.join(KINDS)}, got {kind!r}")
    return found == as_dtype(kind)


def result_type(*arrays_and_dtypes: Any) -> np.dtype:
    """The element type of an elementwise function of arrays and types. Python numbers adapt to the
    others where their kind allows. OpError where no type holds all.
    """
    strong = [_dtype_of(x) for x in arrays_and_dtypes if not is_scalar(x)]
    weak = [x for x in arrays_and_dtypes if is_scalar(x)]
    if not arrays_and_dtypes:
        raise OpError("result_type expected at least one array or element type, got none")
    return common_dtype(strong, weak)


def can_cast(from_: Any, to: Any, /) -> bool:
    """Whether the element type `from_` (or an array's) is promoted to `to` where the two meet."""
    have, want = _dtype_of(from_), as_dtype(to)
    try:
        return promote(have, want) == want
    except OpError:
        return False


def _dtype_of(x: Any) -> np.dtype:
    """The element type that `x` is or has."""
    has_one = hasattr(x, "dtype") and not isinstance(x, type)
    return as_dtype(x.dtype if has_one else x)


STANDARD = {d.name: d for d in DTYPES if d.name not in ("float16", "bfloat16")}
"""The element types of the standard by its names for them."""
