# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""NumPy's operators and methods, of tensors and arrays alike: each is a function of the dialect."""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..errors import OpError
from . import (
    activation,
    arithmetic,
    arrange,
    contraction,
    creation,
    elementwise,
    logic,
    reduction,
    scan,
    shape,
    slicing,
    sort,
    standard,
    subscript,
    transcendental,
)
from .builder import Builder
from .types import TensorSpec, bool_, is_float, is_integer

VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12")
"""The versions of the array API standard that gradopt follows; it reports the last."""

IN_PLACE = {
    "add": "+=",
    "sub": "-=",
    "mul": "*=",
    "truediv": "/=",
    "floordiv": "//=",
    "mod": "%=",
    "pow": "**=",
    "matmul": "@=",
    "and": "&=",
    "or": "|=",
    "xor": "^=",
    "lshift": "<<=",
    "rshift": ">>=",
}
"""The operators that name their left operand anew, by the name of the plain one."""


class Operators:
    """What tensors, which stand for values of a graph, and arrays, which have numbers, have in
    common.
    """

    __slots__ = ()

    graph: "Builder | None" = None
    needs_gradient = False
    __hash__ = None  # type: ignore[assignment]  # == is elementwise

    spec: TensorSpec
    shape: tuple[Any, ...]
    dtype: np.dtype
    ndim: int

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        """The module `gradopt`, for code written for any array library. OpError for a version of
        the array API standard that it does not follow.
        """
        if api_version not in (None, *VERSIONS):
            raise OpError(
                f"expected a version of the array API out of {', '.join(VERSIONS)}, got "
                f"{api_version!r}"
            )
        return sys.modules[__name__.rpartition(".dialect.")[0]]

    # --- operators --------------------------------------------------------------------------------

    def __add__(self, other: Any) -> Any:
        return arithmetic.add(self, other)

    def __radd__(self, other: Any) -> Any:
        return arithmetic.add(other, self)

    def __sub__(self, other: Any) -> Any:
        return arithmetic.sub(self, other)

    def __rsub__(self, other: Any) -> Any:
        return arithmetic.sub(other, self)

    def __mul__(self, other: Any) -> Any:
        return arithmetic.mul(self, other)

    def __rmul__(self, other: Any) -> Any:
        return arithmetic.mul(other, self)

    def __truediv__(self, other: Any) -> Any:
        return arithmetic.div(self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return arithmetic.div(other, self)

    def __floordiv__(self, other: Any) -> Any:
        return arithmetic.floor_divide(self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return arithmetic.floor_divide(other, self)

    def __mod__(self, other: Any) -> Any:
        return arithmetic.remainder(self, other)

    def __rmod__(self, other: Any) -> Any:
        return arithmetic.remainder(other, self)

    def __pow__(self, other: Any) -> Any:
        """Small whole exponents and 0.5 are written with products and roots, which are exact where
        pow is not; integers to whole powers stay integers.
        """
        is_whole = isinstance(other, int) and not isinstance(other, bool)
        if is_whole and (1 <= other <= 4 or (other >= 0 and is_integer(self.dtype))):
            return self._power(other)
        if isinstance(other, float) and other == 0.5 and is_float(self.dtype):
            return self.sqrt()
        if is_whole and other < 0 and is_integer(self.dtype):  # a fraction, not its whole part
            return transcendental.pow(self, float(other))
        return transcendental.pow(self, other)

    def _power(self, exponent: int) -> Any:
        """self ** exponent by products, the square of the half first."""
        if exponent < 2:
            return shape.unchanged(self) if exponent else creation.ones_like(self)
        half = self._power(exponent // 2)
        return half * half * self if exponent % 2 else half * half

    def __rpow__(self, other: Any) -> Any:
        return transcendental.pow(other, self)

    def __matmul__(self, other: Any) -> Any:
        return contraction.matmul(self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return contraction.matmul(other, self)

    def __neg__(self) -> Any:
        return arithmetic.neg(self)

    def __pos__(self) -> Any:
        return standard.positive(self)

    def __abs__(self) -> Any:
        return arithmetic.abs(self)

    def __invert__(self) -> Any:
        return logic.logical_not(self) if self.dtype == bool_ else logic.bitwise_not(self)

    def __and__(self, other: Any) -> Any:
        return self._bits(logic.logical_and, logic.bitwise_and, other)

    def __or__(self, other: Any) -> Any:
        return self._bits(logic.logical_or, logic.bitwise_or, other)

    def __xor__(self, other: Any) -> Any:
        return self._bits(logic.logical_xor, logic.bitwise_xor, other)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def _bits(self, logical: Any, bitwise: Any, other: Any) -> Any:
        other = elementwise.as_tensor(other) if not elementwise.is_scalar(other) else other
        both = self.dtype == bool_ and (
            isinstance(other, bool) or getattr(other, "dtype", None) == bool_
        )
        return (logical if both else bitwise)(self, other)

    def __lshift__(self, other: Any) -> Any:
        return logic.shift_left(self, other)

    def __rlshift__(self, other: Any) -> Any:
        return logic.shift_left(other, self)

    def __rshift__(self, other: Any) -> Any:
        return logic.shift_right(self, other)

    def __rrshift__(self, other: Any) -> Any:
        return logic.shift_right(other, self)

    def __eq__(self, other: object) -> Any:  # type: ignore[override]
        return logic.equal(self, other)

    def __ne__(self, other: object) -> Any:  # type: ignore[override]
        return logic.not_equal(self, other)

    def __lt__(self, other: Any) -> Any:
        return logic.less(self, other)

    def __le__(self, other: Any) -> Any:
        return logic.less_equal(self, other)

    def __gt__(self, other: Any) -> Any:
        return logic.greater(self, other)

    def __ge__(self, other: Any) -> Any:
        return logic.greater_equal(self, other)

    def equal(self, other: Any) -> Any:
        return logic.equal(self, other)

    def __getitem__(self, key: Any) -> Any:
        return subscript.getitem(self, key)

    @property
    def at(self) -> subscript.At:
        """`x.at[key].set(value)`, and add, multiply, max, min: x with the part that `key` names
        changed.
        """
        return subscript.At(self)

    def __iter__(self) -> Iterator[Any]:
        if not self.shape:
            raise TypeError(f"iteration over {self.spec}, which has no axes")
        return iter(slicing.unstack(self))

    # --- elementwise methods ----------------------------------------------------------------------

    def astype(self, dtype: Any) -> Any:
        return logic.convert(self, dtype=dtype)

    def clip(self, min: Any = None, max: Any = None) -> Any:  # noqa: A002 - NumPy's names
        return logic.clip(self, min, max)

    def round(self) -> Any:
        return arithmetic.round(self)

    def sqrt(self) -> Any:
        return transcendental.sqrt(self)

    def square(self) -> Any:
        return transcendental.square(self)

    def exp(self) -> Any:
        return transcendental.exp(self)

    def log(self) -> Any:
        return transcendental.log(self)

    def tanh(self) -> Any:
        return transcendental.tanh(self)

    def relu(self) -> Any:
        return activation.relu(self)

    # --- reductions -------------------------------------------------------------------------------

    def sum(self, axis: Any = None, keepdims: bool = False, *, dtype: Any = None) -> Any:
        return reduction.sum(self, axis, keepdims, dtype=dtype)

    def prod(self, axis: Any = None, keepdims: bool = False, *, dtype: Any = None) -> Any:
        return reduction.prod(self, axis, keepdims, dtype=dtype)

    def mean(self, axis: Any = None, keepdims: bool = False) -> Any:
        return reduction.mean(self, axis, keepdims)

    def var(self, axis: Any = None, keepdims: bool = False, correction: float = 0) -> Any:
        return reduction.var(self, axis, keepdims, correction)

    def std(self, axis: Any = None, keepdims: bool = False, correction: float = 0) -> Any:
        return reduction.std(self, axis, keepdims, correction)

    def max(self, axis: Any = None, keepdims: bool = False) -> Any:
        return reduction.max(self, axis, keepdims)

    def min(self, axis: Any = None, keepdims: bool = False) -> Any:
        return reduction.min(self, axis, keepdims)

    def any(self, axis: Any = None, keepdims: bool = False) -> Any:
        return reduction.any(self, axis, keepdims)

    def all(self, axis: Any = None, keepdims: bool = False) -> Any:
        return reduction.all(self, axis, keepdims)

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Any:
        return reduction.argmax(self, axis, keepdims)

    def argmin(self, axis: int | None = None, keepdims: bool = False) -> Any:
        return reduction.argmin(self, axis, keepdims)

    # --- scans and order --------------------------------------------------------------------------

    def cumsum(self, axis: int | None = None, reverse: bool = False) -> Any:
        return scan.cumsum(self, axis, reverse)

    def cumprod(self, axis: int | None = None, reverse: bool = False) -> Any:
        return scan.cumprod(self, axis, reverse)

    def sort(self, axis: int | None = -1, descending: bool = False) -> Any:
        """The elements in order, as a new tensor."""
        return sort.sort(self, axis, descending)

    def argsort(self, axis: int | None = -1, descending: bool = False) -> Any:
        return sort.argsort(self, axis, descending)

    # --- shape ------------------------------------------------------------------------------------

    @property
    def T(self) -> Any:  # noqa: N802 - NumPy's name
        return shape.transpose(self)

    @property
    def mT(self) -> Any:  # noqa: N802 - the array API's name
        return shape.matrix_transpose(self)

    def reshape(self, *extents: Any) -> Any:
        return shape.reshape(self, extents[0] if len(extents) == 1 else extents)

    def reshape_to(self, extents: tuple[int | None, ...], like: Sequence[Any] = ()) -> Any:
        return shape.reshape_to(self, extents, like)

    def transpose(self, *axes: Any) -> Any:
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        return shape.transpose(self, order or None)

    def swapaxes(self, a: int, b: int) -> Any:
        return shape.swapaxes(self, a, b)

    def broadcast_to(self, extents: Sequence[int | None], like: Sequence[Any] = ()) -> Any:
        return shape.broadcast_to(self, extents, like)

    def broadcast_in_dim(
        self, extents: tuple[int | None, ...], dims: tuple[int, ...], like: Sequence[Any] = ()
    ) -> Any:
        return shape.broadcast_in_dim(self, extents, dims, like)

    def expand_dims(self, axis: Any) -> Any:
        return shape.expand_dims(self, axis)

    def squeeze(self, axis: Any = None) -> Any:
        return shape.squeeze(self, axis)

    def repeat(self, repeats: Any, axis: int | None = None) -> Any:
        return arrange.repeat(self, repeats, axis)

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
        return arrange.diagonal(self, offset, axis1, axis2)

    def trace(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
        return arrange.matrix_trace(self, offset, axis1, axis2)

    def flatten(self) -> Any:
        return shape.reshape(self, -1)

    def slice_axis(self, axis: int, start: int, limit: int, stride: int = 1) -> Any:
        return slicing.slice_axis(self, axis, start, limit, stride)
