# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Tensor: a value of a graph under construction, with NumPy's operators and methods."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ..errors import TraceError
from . import base, control
from .mlir import ir
from .operators import IN_PLACE, Operators
from .types import TensorSpec

if TYPE_CHECKING:
    from .builder import Builder

    class Value(Operators, ir.Value):
        """What Tensor is to type checkers."""
else:
    Value = ir.Value  # the bindings allow one base: the operators are put into the class below


class Tensor(Value):
    """A value of a graph: it has a type, no numbers yet. Functions and operators on it add ops to
    the graph.
    """

    graph: "Builder | None" = None
    __array_ufunc__ = None  # NumPy arrays leave operators to Tensor

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

    def detach(self) -> "Tensor":
        """The tensor as a constant to derivatives: `stop_gradient`."""
        return control.stop_gradient(self)

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

    def __complex__(self) -> complex:
        self._no_value("complex()")

    def item(self) -> Any:
        self._no_value("item()")

    # --- where it is: where the function that the graph becomes is called -------------------------

    @property
    def device(self) -> None:
        """None: tensors of a graph are where the function that it becomes is called."""
        return None

    def to_device(self, device: Any, /, *, stream: Any = None) -> "Tensor":
        """The tensor itself, for None; TraceError for other devices."""
        if device is not None:
            raise TraceError(
                f"{self!r} cannot be moved to {device!r}: it is where the function that the graph "
                "becomes is called; move that function's arguments, or give device=None"
            )
        return self

    def __dlpack__(self, **options: Any) -> Any:
        self._no_value("DLPack")


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


for _name, _member in vars(Operators).items():
    if _name not in vars(Tensor) and _name not in ("__module__", "__doc__", "__slots__"):
        setattr(Tensor, _name, _member)

for _name, _operator in IN_PLACE.items():
    setattr(Tensor, f"__i{_name}__", _in_place(_name, _operator))

base.wrap.tensor_class = Tensor
