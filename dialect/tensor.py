# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Tensor: a value of a graph under construction, with NumPy's operators and methods."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ..errors import TraceError
from . import (
    activation,
    arithmetic,
    arrange,
    base,
    contraction,
    creation,
    elementwise,
    logic,
    reduction,
    scan,
    shape,
    slicing,
    sort,
    subscript,
    transcendental,
)
from .mlir import ir
from .types import TensorSpec, bool_, is_float, is_integer

if TYPE_CHECKING:
    from .builder import Builder


class Tensor(ir.Value):
    """A value of a graph: it has a type, no numbers yet. Functions and operators on it add ops to
    the graph.
    """

    graph: "Builder | None" = None
    __array_ufunc__ = None  # NumPy arrays leave operators to Tensor
    __hash__ = None  # type: ignore[assignment]  # == is elementwise

    # --- type -------------------------------------------------------------------------------------

    @property
    def spec(self) -> TensorSpec:
        """Shape and element type."""
        return TensorSpec.from_mlir(self.type)

    @property
    def shape(self) -> tuple[Any, ...]:
        """Extents; None for one known only at run time."""
        return self.spec.shape

    @property
    def dtype(self) -> np.dtype:
        return self.spec.dtype

    @property
    def ndim(self) -> int:
        return self.spec.rank

    @property
    def size(self) -> int | None:
        """Number of elements; None where it is known only at run time."""
        return self.spec.size

    def __len__(self) -> int:
        if not self.shape or self.shape[0] is None:
            raise TraceError(
                f"len() of {self.spec}: the first extent is "
                f"{'missing' if not self.shape else 'unknown'}"
            )
        return self.shape[0]

    def __repr__(self) -> str:
        return f"Tensor({self.spec})"

    # --- what a value without numbers cannot do ---------------------------------------------------

    def _no_value(self, use: str) -> NoReturn:
        raise TraceError(
            f"{use} needs the value of {self!r}, which is known only when the compiled function "
            "runs; "
            "use go.where for a choice between tensors, or compute the number outside the traced "
            "function"
        )

    def __format__(self, spec: str) -> str:
        return str(self) if not spec else self._no_value(f"the format '{spec}'")

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        raise TraceError(
            "a Tensor cannot be changed in place; make a new one, as x = x.at[key].set(value) does "
            "(or .add, .multiply, .max, .min), or go.where or go.concat"
        )

    def __array_function__(self, function: Any, *unused: Any) -> NoReturn:
        name = function.__name__
        raise TraceError(f"numpy.{name} cannot take {self!r}; use go.{name} or a method of it")

    def __bool__(self) -> bool:
        self._no_value("a Python condition")

    def __int__(self) -> int:
        self._no_value("int()")

    def __float__(self) -> float:
        self._no_value("float()")

    def __index__(self) -> int:
        self._no_value("a Python index")

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        self._no_value("conversion to a NumPy array")

    def item(self) -> Any:
        self._no_value("item()")

    # --- operators --------------------------------------------------------------------------------

    def __add__(self, other: Any) -> "Tensor":
        return arithmetic.add(self, other)

    def __radd__(self, other: Any) -> "Tensor":
        return arithmetic.add(other, self)

    def __sub__(self, other: Any) -> "Tensor":
        return arithmetic.sub(self, other)

    def __rsub__(self, other: Any) -> "Tensor":
        return arithmetic.sub(other, self)

    def __mul__(self, other: Any) -> "Tensor":
        return arithmetic.mul(self, other)

    def __rmul__(self, other: Any) -> "Tensor":
        return arithmetic.mul(other, self)

    def __truediv__(self, other: Any) -> "Tensor":
        return arithmetic.div(self, other)

    def __rtruediv__(self, other: Any) -> "Tensor":
        return arithmetic.div(other, self)

    def __floordiv__(self, other: Any) -> "Tensor":
        return arithmetic.floor_divide(self, other)

    def __rfloordiv__(self, other: Any) -> "Tensor":
        return arithmetic.floor_divide(other, self)

    def __mod__(self, other: Any) -> "Tensor":
        return arithmetic.remainder(self, other)

    def __rmod__(self, other: Any) -> "Tensor":
        return arithmetic.remainder(other, self)

    def __pow__(self, other: Any) -> "Tensor":
        """Small whole exponents and 0.5 are written with products and roots, which are exact where
        pow is not; integers to whole powers stay integers.
        """
        is_whole = isinstance(other, int) and not isinstance(other, bool)
        if is_whole and (1 <= other <= 4 or (other >= 0 and is_integer(self.dtype))):
            return self._power(other)
        if isinstance(other, float) and other == 0.5 and is_float(self.dtype):
            return self.sqrt()
        return transcendental.pow(self, other)

    def _power(self, exponent: int) -> "Tensor":
        """self ** exponent by products, the square of the half first."""
        if exponent < 2:
            return self if exponent else creation.ones_like(self)
        half = self._power(exponent // 2)
        return half * half * self if exponent % 2 else half * half

    def __rpow__(self, other: Any) -> "Tensor":
        return transcendental.pow(other, self)

    def __matmul__(self, other: Any) -> "Tensor":
        return contraction.matmul(self, other)

    def __rmatmul__(self, other: Any) -> "Tensor":
        return contraction.matmul(other, self)

    def __neg__(self) -> "Tensor":
        return arithmetic.neg(self)

    def __pos__(self) -> "Tensor":
        return self

    def __abs__(self) -> "Tensor":
        return arithmetic.abs(self)

    def __invert__(self) -> "Tensor":
        return logic.logical_not(self) if self.dtype == bool_ else logic.bitwise_not(self)

    def __and__(self, other: Any) -> "Tensor":
        return self._bits(logic.logical_and, logic.bitwise_and, other)

    def __or__(self, other: Any) -> "Tensor":
        return self._bits(logic.logical_or, logic.bitwise_or, other)

    def __xor__(self, other: Any) -> "Tensor":
        return self._bits(logic.logical_xor, logic.bitwise_xor, other)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def _bits(self, logical: Any, bitwise: Any, other: Any) -> "Tensor":
        other = elementwise.as_tensor(other) if not elementwise.is_scalar(other) else other
        both = self.dtype == bool_ and (
            isinstance(other, bool) or getattr(other, "dtype", None) == bool_
        )
        return (logical if both else bitwise)(self, other)

    def __lshift__(self, other: Any) -> "Tensor":
        return logic.shift_left(self, other)

    def __rshift__(self, other: Any) -> "Tensor":
        return logic.shift_right(self, other)

    def __eq__(self, other: object) -> "Tensor":  # type: ignore[override]
        return logic.equal(self, other)

    def __ne__(self, other: object) -> "Tensor":  # type: ignore[override]
        return logic.not_equal(self, other)

    def __lt__(self, other: Any) -> "Tensor":
        return logic.less(self, other)

    def __le__(self, other: Any) -> "Tensor":
        return logic.less_equal(self, other)

    def __gt__(self, other: Any) -> "Tensor":
        return logic.greater(self, other)

    def __ge__(self, other: Any) -> "Tensor":
        return logic.greater_equal(self, other)

    def equal(self, other: Any) -> "Tensor":
        return logic.equal(self, other)

    def __getitem__(self, key: Any) -> "Tensor":
        return subscript.getitem(self, key)

    @property
    def at(self) -> subscript.At:
        """`x.at[key].set(value)`, and add, multiply, max, min: x with the part that `key` names
        changed.
        """
        return subscript.At(self)

    def __iter__(self) -> Iterator["Tensor"]:
        return iter(slicing.unstack(self))

    # --- elementwise methods ----------------------------------------------------------------------

    def astype(self, dtype: Any) -> "Tensor":
        return logic.convert(self, dtype=dtype)

    def clip(self, min: Any = None, max: Any = None) -> "Tensor":  # noqa: A002 - NumPy's names
        return logic.clip(self, min, max)

    def round(self) -> "Tensor":
        return arithmetic.round(self)

    def sqrt(self) -> "Tensor":
        return transcendental.sqrt(self)

    def square(self) -> "Tensor":
        return transcendental.square(self)

    def exp(self) -> "Tensor":
        return transcendental.exp(self)

    def log(self) -> "Tensor":
        return transcendental.log(self)

    def tanh(self) -> "Tensor":
        return transcendental.tanh(self)

    def relu(self) -> "Tensor":
        return activation.relu(self)

    # --- reductions -------------------------------------------------------------------------------

    def sum(self, axis: Any = None, keepdims: bool = False) -> "Tensor":
        return reduction.sum(self, axis, keepdims)

    def prod(self, axis: Any = None, keepdims: bool = False) -> "Tensor":
        return reduction.prod(self, axis, keepdims)

    def mean(self, axis: Any = None, keepdims: bool = False) -> "Tensor":
        return reduction.mean(self, axis, keepdims)

    def var(self, axis: Any = None, keepdims: bool = False, correction: int = 0) -> "Tensor":
        return reduction.var(self, axis, keepdims, correction)

    def std(self, axis: Any = None, keepdims: bool = False, correction: int = 0) -> "Tensor":
        return reduction.std(self, axis, keepdims, correction)

    def max(self, axis: Any = None, keepdims: bool = False) -> "Tensor":
        return reduction.max(self, axis, keepdims)

    def min(self, axis: Any = None, keepdims: bool = False) -> "Tensor":
        return reduction.min(self, axis, keepdims)

    def any(self, axis: Any = None, keepdims: bool = False) -> "Tensor":
        return reduction.any(self, axis, keepdims)

    def all(self, axis: Any = None, keepdims: bool = False) -> "Tensor":
        return reduction.all(self, axis, keepdims)

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> "Tensor":
        return reduction.argmax(self, axis, keepdims)

    def argmin(self, axis: int | None = None, keepdims: bool = False) -> "Tensor":
        return reduction.argmin(self, axis, keepdims)

    # --- scans and order --------------------------------------------------------------------------

    def cumsum(self, axis: int | None = None, reverse: bool = False) -> "Tensor":
        return scan.cumsum(self, axis, reverse)

    def cumprod(self, axis: int | None = None, reverse: bool = False) -> "Tensor":
        return scan.cumprod(self, axis, reverse)

    def sort(self, axis: int | None = -1, descending: bool = False) -> "Tensor":
        """The elements in order, as a new tensor."""
        return sort.sort(self, axis, descending)

    def argsort(self, axis: int | None = -1, descending: bool = False) -> "Tensor":
        return sort.argsort(self, axis, descending)

    # --- shape ------------------------------------------------------------------------------------

    @property
    def T(self) -> "Tensor":  # noqa: N802 - NumPy's name
        return shape.transpose(self)

    @property
    def mT(self) -> "Tensor":  # noqa: N802 - the array API's name
        return shape.swapaxes(self, -1, -2)

    def reshape(self, *extents: Any) -> "Tensor":
        return shape.reshape(self, extents[0] if len(extents) == 1 else extents)

    def reshape_to(
        self, extents: tuple[int | None, ...], like: Sequence["Tensor"] = ()
    ) -> "Tensor":
        return shape.reshape_to(self, extents, like)

    def transpose(self, *axes: Any) -> "Tensor":
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        return shape.transpose(self, order or None)

    def swapaxes(self, a: int, b: int) -> "Tensor":
        return shape.swapaxes(self, a, b)

    def broadcast_to(
        self, extents: Sequence[int | None], like: Sequence["Tensor"] = ()
    ) -> "Tensor":
        return shape.broadcast_to(self, extents, like)

    def broadcast_in_dim(
        self, extents: tuple[int | None, ...], dims: tuple[int, ...], like: Sequence["Tensor"] = ()
    ) -> "Tensor":
        return shape.broadcast_in_dim(self, extents, dims, like)

    def expand_dims(self, axis: Any) -> "Tensor":
        return shape.expand_dims(self, axis)

    def squeeze(self, axis: Any = None) -> "Tensor":
        return shape.squeeze(self, axis)

    def repeat(self, repeats: Any, axis: int | None = None) -> "Tensor":
        return arrange.repeat(self, repeats, axis)

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> "Tensor":
        return arrange.diagonal(self, offset, axis1, axis2)

    def trace(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> "Tensor":
        return arrange.matrix_trace(self, offset, axis1, axis2)

    def flatten(self) -> "Tensor":
        return shape.reshape(self, -1)

    def slice_axis(self, axis: int, start: int, limit: int, stride: int = 1) -> "Tensor":
        return slicing.slice_axis(self, axis, start, limit, stride)


def _in_place(name: str, operator: str) -> Callable[[Tensor, Any], Tensor]:
    """`x += y`: the name x then stands for x + y. No array is written to; the graph is told, so
    that an update of an argument that goes nowhere is an error.
    """
    plain = getattr(Tensor, f"__{name}__")

    def update(self: Tensor, other: Any) -> Tensor:
        new = plain(self, other)
        note = getattr(new.graph, "note_update", None) if isinstance(new, Tensor) else None
        if note is not None and new is not self:
            note(self, new, operator)
        return new

    update.__name__ = f"__i{name}__"
    return update


for _name, _operator in {
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
}.items():
    setattr(Tensor, f"__i{_name}__", _in_place(_name, _operator))

base.wrap.tensor_class = Tensor
