# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The kinds of attributes an op can have: how each is written in MLIR and what Python value it
stands for.
"""

import dataclasses
import operator
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from .mlir import DYNAMIC, ir
from .types import as_dtype, bfloat16, dtype_from_mlir, dtype_to_mlir


@dataclasses.dataclass(frozen=True)
class AttributeKind:
    """A two-way mapping between Python values and MLIR attributes; `example` is how MLIR text
    writes one, `normal` brings a Python value into the form that ops see.
    """

    example: str
    normal: Callable[[Any], Any]
    to_mlir: Callable[[Any], ir.Attribute]
    from_mlir: Callable[[Any], Any]
    mlir_type: type

    def parse(self, attribute: ir.Attribute) -> Any:
        """The Python value; ValueError if the attribute is of another kind."""
        if not isinstance(attribute, self.mlir_type):
            raise ValueError(f"expected an attribute like {self.example}, got {attribute}")
        return self.from_mlir(attribute)


def _ints_to_mlir(values: Any) -> ir.Attribute:
    return ir.DenseI64ArrayAttr.get([DYNAMIC if v is None else int(v) for v in values])


def _ints(attribute: ir.DenseI64ArrayAttr) -> tuple[int, ...]:
    # By index: the bindings' iterator takes five times as long.
    return tuple([attribute[i] for i in range(len(attribute))])


def _known_ints(attribute: ir.DenseI64ArrayAttr) -> tuple[int, ...]:
    if DYNAMIC in (values := _ints(attribute)):
        raise ValueError(f"expected integers, got the marker of an unknown extent in {attribute}")
    return values


def _elements_to_mlir(array: Any) -> ir.Attribute:
    array = np.asarray(array)
    element = dtype_to_mlir(as_dtype(array.dtype))
    kind = ir.RankedTensorType.get_unchecked(array.shape, element)
    if _is_splat(array):
        return ir.DenseElementsAttr.get_splat(
            kind, _scalar_to_mlir(array[(0,) * array.ndim], element)
        )
    if array.dtype == bfloat16:
        return ir.DenseElementsAttr.get(np.ascontiguousarray(array).view(np.uint16), type=kind)
    return ir.DenseElementsAttr.get(np.ascontiguousarray(array), type=kind)


def _is_splat(array: np.ndarray) -> bool:
    """True if all elements have the same bits."""
    if array.size == 0:
        return False
    if all(
        stride == 0 or extent == 1
        for stride, extent in zip(array.strides, array.shape, strict=True)
    ):
        return True  # a broadcast scalar: no need to look at every element
    bits = array.reshape(-1).view(f"u{array.dtype.itemsize}")
    return bool((bits == bits[0]).all())


def _scalar_to_mlir(value: np.generic, element: ir.Type) -> ir.Attribute:
    if isinstance(element, ir.IntegerType):
        if element.width == 1:
            return ir.BoolAttr.get(bool(value))
        # Unsigned values above the signed range are handed over as the same bits.
        signed = (
            int(value) - (1 << element.width)
            if int(value) >= 1 << (element.width - 1)
            else int(value)
        )
        return ir.IntegerAttr.get(element, signed)
    return ir.FloatAttr.get(element, float(value), loc=ir.Location.unknown())


def _elements_from_mlir(attribute: ir.DenseElementsAttr) -> np.ndarray:
    kind = ir.RankedTensorType(attribute.type)
    dtype, shape = dtype_from_mlir(kind.element_type), tuple(kind.shape)
    if attribute.is_splat and 0 not in shape:  # as a broadcast scalar, which costs nothing
        return np.broadcast_to(
            np.array(_scalar_from_mlir(attribute.get_splat_value()), dtype), shape
        )
    if dtype == bfloat16:  # the bindings cannot read these
        return _bfloat16_from_text(str(attribute)).reshape(shape)
    return np.array(attribute).astype(dtype, copy=False).reshape(shape)


def _scalar_from_mlir(attribute: ir.Attribute) -> float | int | bool:
    return attribute.value  # type: ignore[attr-defined]


def _bfloat16_from_text(text: str) -> np.ndarray:
    """Elements of `dense<...>` as MLIR prints them: decimal, hex bits for nan and inf, or one hex
    string when long.
    """
    if whole := re.match(r'dense<"0x([0-9A-Fa-f]*)">', text):
        return np.frombuffer(bytes.fromhex(whole[1]), bfloat16)
    words = re.findall(
        r"0x[0-9A-Fa-f]{4}|[-+0-9.eE]+", text[len("dense<") : text.rindex(">", 0, text.rindex(":"))]
    )
    bits = [
        int(w, 16) if w.startswith("0x") else np.array(float(w), bfloat16).view(np.uint16).item()
        for w in words
    ]
    return np.array(bits, np.uint16).view(bfloat16)


def _extents(values: Any) -> tuple[int | None, ...]:
    return tuple(None if v is None else operator.index(v) for v in values)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a string")
    return value


def _string(attribute: ir.Attribute) -> str:
    if not isinstance(attribute, ir.StringAttr):
        raise ValueError(f"expected strings, got {attribute}")
    return attribute.value


Ints = AttributeKind("array<i64: 0, 1>", _extents, _ints_to_mlir, _known_ints, ir.DenseI64ArrayAttr)
Extents = AttributeKind(
    "array<i64: 2, 3>",
    _extents,
    _ints_to_mlir,
    lambda a: tuple(None if v == DYNAMIC else v for v in a),
    ir.DenseI64ArrayAttr,
)
"""Integers of which some may be unknown."""
Int = AttributeKind(
    "3 : i64",
    operator.index,
    lambda v: ir.IntegerAttr.get(ir.IntegerType.get_signless(64), v),
    lambda a: a.value,
    ir.IntegerAttr,
)
Float = AttributeKind("1.0 : f64", float, ir.FloatAttr.get_f64, lambda a: a.value, ir.FloatAttr)
Bool = AttributeKind("true", bool, ir.BoolAttr.get, lambda a: a.value, ir.BoolAttr)
Str = AttributeKind('"text"', _text, ir.StringAttr.get, lambda a: a.value, ir.StringAttr)
Strs = AttributeKind(
    '["a", "b"]',
    lambda values: tuple(_text(v) for v in values),
    lambda values: ir.ArrayAttr.get([ir.StringAttr.get(v) for v in values]),
    lambda a: tuple(_string(v) for v in a),
    ir.ArrayAttr,
)
DType = AttributeKind(
    "f32",
    as_dtype,
    lambda v: ir.TypeAttr.get(dtype_to_mlir(v)),
    lambda a: dtype_from_mlir(a.value),
    ir.TypeAttr,
)
Elements = AttributeKind(
    "dense<0.0> : tensor<2xf32>",
    np.asarray,
    _elements_to_mlir,
    _elements_from_mlir,
    ir.DenseElementsAttr,
)
Symbol = AttributeKind(
    "@name", _text, ir.FlatSymbolRefAttr.get, lambda a: a.value, ir.FlatSymbolRefAttr
)
