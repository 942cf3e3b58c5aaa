# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Element types, tensor types and promotion, in plain Python: no MLIR context is needed to reason
about shapes.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy as np

from ..errors import OpError
from .mlir import DYNAMIC, ir

float64, float32, float16 = np.dtype("float64"), np.dtype("float32"), np.dtype("float16")
bfloat16 = np.dtype(ml_dtypes.bfloat16)
int64, int32, int16, int8 = (
    np.dtype("int64"),
    np.dtype("int32"),
    np.dtype("int16"),
    np.dtype("int8"),
)
uint64, uint32, uint16, uint8 = (
    np.dtype("uint64"),
    np.dtype("uint32"),
    np.dtype("uint16"),
    np.dtype("uint8"),
)
bool_ = np.dtype("bool")

FLOATS = (float64, float32, float16, bfloat16)
SIGNED = (int64, int32, int16, int8)
UNSIGNED = (uint64, uint32, uint16, uint8)
INTEGERS = SIGNED + UNSIGNED
DTYPES = FLOATS + INTEGERS + (bool_,)

MLIR_NAMES = {
    float64: "f64", float32: "f32", float16: "f16", bfloat16: "bf16", int64: "i64", int32: "i32",
    int16: "i16", int8: "i8", uint64: "ui64", uint32: "ui32", uint16: "ui16", uint8: "ui8",
    bool_: "i1",
}  # fmt: skip
_FLOATS, _INTEGERS, _NARROW = map(frozenset, (FLOATS, INTEGERS, (float16, bfloat16)))
_KNOWN = {dtype: dtype for dtype in DTYPES}
BY_MLIR_NAME = {name: dtype for dtype, name in MLIR_NAMES.items()}
_FLOATS_BY_CLASS: dict[type, np.dtype] = {
    ir.F64Type: float64, ir.F32Type: float32, ir.F16Type: float16, ir.BF16Type: bfloat16,
}  # fmt: skip


def is_float(dtype: np.dtype) -> bool:
    return dtype in _FLOATS


def is_float_type(element: ir.Type) -> bool:
    """`is_float` for an MLIR type."""
    return isinstance(element, ir.F64Type | ir.F32Type | ir.F16Type | ir.BF16Type)


def is_integer(dtype: np.dtype) -> bool:
    return dtype in _INTEGERS


def is_narrow(dtype: np.dtype) -> bool:
    """True for the 16-bit floats, whose arithmetic is done in float32."""
    return dtype in _NARROW


def limits_of(dtype: np.dtype) -> tuple[Any, Any]:
    """The least and the greatest element of a type."""
    if is_float(dtype):
        return -np.inf, np.inf
    if dtype == bool_:
        return False, True
    return np.iinfo(dtype).min, np.iinfo(dtype).max


def as_dtype(dtype: Any) -> np.dtype:
    """The supported element type that `dtype` (a name, NumPy type or dtype) stands for; OpError if
    there is none.
    """
    if isinstance(dtype, np.dtype) and dtype in _KNOWN:
        return _KNOWN[dtype]
    if isinstance(dtype, str) and dtype in BY_MLIR_NAME:
        return BY_MLIR_NAME[dtype]
    try:
        found = bfloat16 if dtype == "bfloat16" else np.dtype(dtype).newbyteorder("=")
    except TypeError:
        found = None
    if found is None or found not in DTYPES:
        raise OpError(
            f"expected an element type out of {', '.join(d.name for d in DTYPES)}, got {dtype!r}"
        )
    return found


def dtype_from_mlir(element: ir.Type) -> np.dtype:
    """The element type that an MLIR element type stands for."""
    if (found := _FLOATS_BY_CLASS.get(type(element))) is not None:
        return found  # printing the type, as below, takes ten times as long
    try:
        return BY_MLIR_NAME[str(element)]
    except KeyError:
        raise OpError(
            f"expected an element type out of {', '.join(BY_MLIR_NAME)}, got {element}"
        ) from None


def dtype_to_mlir(dtype: np.dtype) -> ir.Type:
    """The MLIR element type of `dtype`, in the current context."""
    return ir.Type.parse(MLIR_NAMES[dtype])


@dataclasses.dataclass(frozen=True, slots=True)
class TensorSpec:
    """The type of a tensor: its shape, with None for an extent known only at run time, and its
    element type.

    >>> TensorSpec((None, 784), "float32")
    TensorSpec(tensor<?x784xf32>)
    """

    shape: tuple[int | None, ...]
    dtype: np.dtype

    def __init__(self, shape: int | Iterable[int | None], dtype: Any = float32) -> None:
        shape = (shape,) if isinstance(shape, int) else shape
        extents = tuple(None if n is None else int(n) for n in shape)
        if any(n is not None and n < 0 for n in extents):
            raise OpError(
                f"expected extents of at least 0, or None where unknown, got shape {extents}"
            )
        object.__setattr__(self, "shape", extents)
        object.__setattr__(self, "dtype", as_dtype(dtype))

    @classmethod
    def known(cls, shape: tuple[int | None, ...], dtype: np.dtype) -> "TensorSpec":
        """The type of a shape and an element type that were checked before."""
        spec = object.__new__(cls)
        object.__setattr__(spec, "shape", shape)
        object.__setattr__(spec, "dtype", dtype)
        return spec

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int | None:
        """Number of elements; None where an extent is unknown (and none is 0)."""
        if 0 in self.shape:
            return 0
        total = 1
        for extent in self.shape:
            if extent is None:
                return None
            total *= extent
        return total

    @property
    def extents(self) -> tuple[int, ...]:
        """The shape of a type all of whose extents are known."""
        known = tuple(n for n in self.shape if n is not None)
        if len(known) != self.rank:
            raise OpError(f"expected known extents, got {self}")
        return known

    @property
    def is_static(self) -> bool:
        return None not in self.shape

    def with_shape(self, shape: Iterable[int | None]) -> "TensorSpec":
        return TensorSpec(shape, self.dtype)

    def with_dtype(self, dtype: np.dtype) -> "TensorSpec":
        return TensorSpec(self.shape, dtype)

    def to_mlir(self) -> ir.Type:
        """The builtin tensor type, in the current context."""
        return ir.RankedTensorType.get_unchecked(
            [DYNAMIC if n is None else n for n in self.shape], dtype_to_mlir(self.dtype)
        )

    @staticmethod
    def from_mlir(kind: ir.Type) -> "TensorSpec":
        if not isinstance(kind, ir.RankedTensorType):
            raise OpError(f"expected a ranked tensor type, got {kind}")
        if kind.encoding is not None:
            raise OpError(f"expected a tensor type without an encoding, got {kind}")
        shape = tuple(kind.shape)
        if DYNAMIC in shape:
            shape = tuple(None if n == DYNAMIC else n for n in shape)
        return TensorSpec.known(shape, dtype_from_mlir(kind.element_type))

    def __str__(self) -> str:
        extents = "".join("?x" if n is None else f"{n}x" for n in self.shape)
        return f"tensor<{extents}{MLIR_NAMES[self.dtype]}>"

    def __repr__(self) -> str:
        return f"TensorSpec({self})"


def promote(*dtypes: np.dtype) -> np.dtype:
    """The element type that holds all of `dtypes`, by the array API's rules; integers give way to
    any float.

    float16 with bfloat16 gives float32, uint32 with a signed integer gives int64, uint8 with int8
    gives int16. OpError for uint64 with a signed integer, which no integer type holds.
    """
    found = dtypes[0]
    for dtype in dtypes[1:]:
        found = _promote_pair(found, dtype)
    return found


def _promote_pair(a: np.dtype, b: np.dtype) -> np.dtype:
    if a == b:
        return a
    if is_float(a) or is_float(b):
        if not (is_float(a) and is_float(b)):
            return a if is_float(a) else b
        return max((a, b), key=lambda d: d.itemsize) if a.itemsize != b.itemsize else float32
    if uint64 in (a, b) and (a in SIGNED or b in SIGNED):
        raise OpError(
            f"expected element types that one type holds, got {a.name} and {b.name}; convert one "
            "of the two by astype"
        )
    return np.promote_types(a, b)
