# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Base classes of elementwise ops, broadcasting and promotion.

Operands of an elementwise op have one shape and one element type; the public functions broadcast by
NumPy's rules and promote by the array API's, as explicit `broadcast` and `convert` ops. Python and
NumPy scalars adapt to the tensors.
"""

import functools
from typing import Any

import numpy as np

from . import builder as builders
from .base import NO_GRADIENT, Op, Operand, Result, function, in_float32
from .creation import as_array, constant
from .types import TensorSpec, as_dtype, bool_, float32, int32, is_float, is_integer, promote

FLOAT, INTEGER, NUMERIC, BOOLEAN, ANY = "floating-point", "integer", "numeric", "boolean", "any"
ACCEPTS = {
    FLOAT: is_float,
    INTEGER: is_integer,
    NUMERIC: lambda d: is_float(d) or is_integer(d),
    BOOLEAN: lambda d: d == bool_,
    "integer or boolean": lambda d: is_integer(d) or d == bool_,
    ANY: lambda d: True,
}


class Elementwise(Op):
    """One result element from the operand elements at the same place."""

    KIND = NUMERIC  # what element types the operands may have, a key of ACCEPTS

    @classmethod
    def check(cls, *operands: TensorSpec) -> TensorSpec:
        """The one type of all operands."""
        for operand in operands:
            if operand != operands[0]:
                listed = " and ".join(map(str, operands))
                raise cls.error("operands of one type", listed, "broadcast or convert one of them")
        if not ACCEPTS[cls.KIND](operands[0].dtype):
            raise cls.error(f"{cls.KIND} operands", operands[0], "convert them first")
        return operands[0]

    @classmethod
    def infer(cls, *operands: TensorSpec, **attributes: Any) -> TensorSpec:
        return cls.check(*operands)

    @classmethod
    def prepare(cls, *operands: Any) -> list[Any]:
        """The operands promoted and broadcast together. Those that `infer` takes stay as they
        are.
        """
        return broadcast_together(cls, *promote_together(cls.KIND, operands))

    @classmethod
    def build(cls, *operands: Any, name: str | None = None, **attributes: Any) -> Any:
        return builders.owner(cls.MNEMONIC, operands).build(cls, operands, attributes, name)


class Unary(Elementwise):
    """One tensor in, one of the same type out, with the derivative as a formula."""

    x: Operand
    y: Result

    def slope(self) -> Any:
        """dy/dx, elementwise, from `self.x` and `self.y`."""
        raise NotImplementedError(type(self))

    @in_float32
    def vjp(self, ct: Any) -> list[Any]:
        """dx = ct * dy/dx, and 0 where ct is 0 even if the slope is infinite or NaN"""
        return [mul_no_nan(ct, self.slope())]


class Predicate(Elementwise):
    """One tensor in, booleans out."""

    x: Operand
    y: Result

    @classmethod
    def infer(cls, x: TensorSpec) -> TensorSpec:
        return cls.check(x).with_dtype(bool_)

    vjp = NO_GRADIENT


class Binary(Elementwise):
    """Two tensors of one type in, one of the same type out."""

    lhs: Operand
    rhs: Operand
    y: Result


def promote_together(kind: str, operands: tuple[Any, ...]) -> list[Any]:
    """The operands as tensors of one element type, float32 or bool where `kind` asks for floats or
    booleans.

    Scalars are weak: they take the tensors' type when their kind allows.
    """
    dtype = common_type(kind, *map(_kind_of, operands))
    return [as_tensor(o, dtype) for o in operands]


def _kind_of(x: Any) -> tuple[np.dtype, bool]:
    """The element type of an operand, and whether it gives way to that of others."""
    if hasattr(x, "graph"):  # a tensor or an Array
        return x.dtype, False
    if is_scalar(x):
        return number_type(x), True
    return as_dtype(x.dtype) if hasattr(x, "dtype") else as_array(x).dtype, False


def number_type(x: Any) -> np.dtype:
    """The element type of a Python or NumPy number where nothing asks for another."""
    if type(x) is float:
        return float32
    if type(x) is int and -(2**31) <= x < 2**31:
        return int32
    return as_array(x if type(x) in (int, bool) else np.asarray(x).item()).dtype


@functools.cache
def common_type(kind: str, *operands: tuple[np.dtype, bool]) -> np.dtype:
    """The element type of operands together, as `promote_together` has it, of those that
    `_kind_of` gives.
    """
    weak = [dtype for dtype, gives_way in operands if gives_way]
    dtypes = [dtype for dtype, gives_way in operands if not gives_way]
    if not dtypes:
        dtypes, weak = weak, []
    dtype = promote(*dtypes)
    for scalar in weak:
        if (is_float(scalar) and not is_float(dtype)) or (dtype == bool_ and scalar != bool_):
            dtype = scalar
    if kind == FLOAT and not is_float(dtype):
        dtype = float32
    return bool_ if kind == BOOLEAN else dtype


def common_dtype(dtypes: list[np.dtype], scalars: list[Any]) -> np.dtype:
    """The element type of tensors of `dtypes` and numbers together. OpError where there is none."""
    tensors = [(dtype, False) for dtype in dtypes]
    return common_type(ANY, *tensors, *((number_type(x), True) for x in scalars))


def is_scalar(x: Any) -> bool:
    """True for Python numbers and NumPy scalars, whose type gives way to that of tensors."""
    return isinstance(x, bool | int | float | np.generic)


def as_tensor(x: Any, dtype: Any = None) -> Any:
    """`x` (tensor, array or number) as a tensor of `dtype`."""
    if not hasattr(x, "graph"):
        return constant(x, dtype)
    return x if dtype is None or x.dtype == dtype else x.astype(dtype)


def broadcast_together(op_class: type[Op], *tensors: Any) -> list[Any]:
    """The tensors with the shape that NumPy's rules give them. An unknown extent agrees with 1 and
    with unknown ones.
    """
    shape = broadcast_shapes(op_class, *(t.shape for t in tensors))
    if all(t.shape == shape for t in tensors):
        return list(tensors)
    like = [_at_rank(t, len(shape)) for t in tensors if None in t.shape]
    return [t if t.shape == shape else t.broadcast_to(shape, like=like) for t in tensors]


def _at_rank(tensor: Any, rank: int) -> Any:
    """The tensor with extents of 1 in front, up to a rank."""
    added = tuple(range(rank - tensor.ndim))
    return tensor.expand_dims(added) if added else tensor


def _shown(shape: tuple[int | None, ...]) -> str:
    return str(shape).replace("None", "?")


def broadcast_shapes(op_class: type[Op], *shapes: tuple[int | None, ...]) -> tuple[int | None, ...]:
    """The common shape by NumPy's rules; raises where extents clash."""
    if shapes.count(shapes[0]) == len(shapes):
        return shapes[0]
    result: list[int | None] = []
    for position in range(-max(map(len, shapes)), 0):
        found = {s[position] for s in shapes if len(s) >= -position} - {1}
        if len(found) > 1:
            raise op_class.error(
                "shapes that broadcast together",
                " and ".join(map(_shown, shapes)),
                f"extents at {position} differ and none of them is 1",
            )
        result.append(found.pop() if found else 1)
    return tuple(result)


class MulNoNanOp(Binary, name="mul_no_nan"):
    """Product that is 0 where the left side is 0: y = lhs * rhs, and 0 where lhs = 0 even if rhs is
    infinite or NaN.

    Gradient rules multiply cotangents with slopes by it, so that what is masked out stays out
    (ops.md, "select").
    Example: `%y = "gradopt.mul_no_nan"(%ct, %slope) : (tensor<4xf32>, tensor<4xf32>) ->
    tensor<4xf32>`
    """

    @staticmethod
    def reference(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
        return np.where(lhs == 0, 0, lhs * rhs)

    def vjp(self, ct: Any) -> list[Any]:
        """dlhs = ct * rhs, also where lhs = 0, so that a zero cotangent does not hide its slope;
        drhs = ct * lhs, 0 where lhs = 0
        """
        return [mul_no_nan(ct, self.rhs), mul_no_nan(self.lhs, ct)]


mul_no_nan = function(MulNoNanOp)
