# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Layers that most nets have. Widths are given, not found at the first call: a net is complete when
it is made, so that its parameters can be counted, loaded and given to an optimizer at once.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..dialect import activation, indexing, nn, shape, shrink, transcendental
from ..dialect.contraction import matmul
from ..dialect.elementwise import as_tensor
from ..dialect.modes import is_training
from ..dialect.shape import unchanged
from ..dialect.types import float32
from ..errors import ModuleError
from ..runtime import generator
from . import init
from .module import Module, parameter

ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    name: getattr(module, name)
    for module, names in (
        (activation, ("celu", "elu", "gelu", "hard_sigmoid", "hard_swish", "hardtanh")),
        (activation, ("leaky_relu", "mish", "relu", "relu6", "selu", "sigmoid", "silu")),
        (activation, ("softplus", "softsign")),
        (nn, ("log_softmax", "softmax")),
        (shrink, ("log_sigmoid", "squareplus")),
        (transcendental, ("tanh",)),
    )
    for name in names
}
"""Functions that are given by their name, so that nets can be printed and pickled."""


def activation_of(given: Any) -> Callable[[Any], Any] | None:
    """An activation given as its name, as a function, or None; ModuleError for another name."""
    if given is None or (callable(given) and not isinstance(given, str)):
        return given
    if given not in ACTIVATIONS:
        names = ", ".join(sorted(ACTIVATIONS))
        raise ModuleError(f"expected an activation out of {names}, or a function, got {given!r}")
    return ACTIVATIONS[given]


def check_width(module: Module, x: Any, width: int, axis: int = -1) -> None:
    """Raise unless an axis of the input has the width that the module was made for."""
    if not x.ndim or x.shape[axis] != width:
        raise ModuleError(
            f"{type(module).__name__}({module.summary()}) expected an input of width {width} at "
            f"axis {axis}, got shape {x.shape}"
        )


def check_extents(what: str, **extents: int) -> None:
    """Raise for extents that are not positive."""
    for name, n in extents.items():
        if not isinstance(n, int) or n < 1:
            raise ModuleError(f"{what} expected {name} of at least 1, got {n!r}")


class Dense(Module):
    """y = activation(x weight + bias): x (..., in_width), weight (in_width, out_width), bias
    (out_width).

    `activation` is a name of `nn.ACTIVATIONS` or a function. Weights begin by `weight_init`, by
    default `nn.init.glorot_uniform()`, biases by `bias_init`, by default zeros.
    """

    def __init__(
        self,
        in_width: int,
        out_width: int,
        bias: bool = True,
        activation: Any = None,
        dtype: Any = float32,
        weight_init: init.Initializer | None = None,
        bias_init: init.Initializer | None = None,
    ) -> None:
        check_extents("Dense", in_width=in_width, out_width=out_width)
        self.in_width, self.out_width, self.activation = in_width, out_width, activation
        activation_of(activation)
        make = weight_init or init.glorot_uniform()
        self.weight = parameter(make((in_width, out_width), dtype))
        self.bias = parameter((bias_init or init.zeros())((out_width,), dtype)) if bias else None

    def __call__(self, x: Any) -> Any:
        check_width(self, x, self.in_width)
        y = matmul(x, self.weight)
        y = y if self.bias is None else y + self.bias
        function = activation_of(self.activation)
        return y if function is None else function(y)

    def summary(self) -> str:
        rest = "" if self.activation is None else f", {_named(self.activation)}"
        return f"{self.in_width} -> {self.out_width}{rest}"


class Embedding(Module):
    """Rows of a table (number, width) by whole numbers: ids of any shape give (*shape, width).

    The table begins by `weight_init`, by default normal with variance 1 / width. A number outside
    counts as the nearest one inside.
    """

    def __init__(
        self,
        number: int,
        width: int,
        dtype: Any = float32,
        weight_init: init.Initializer | None = None,
    ) -> None:
        check_extents("Embedding", number=number, width=width)
        self.number, self.width = number, width
        self.weight = parameter((weight_init or init.normal(width**-0.5))((number, width), dtype))

    def __call__(self, ids: Any) -> Any:
        return indexing.embedding(self.weight, ids)

    def summary(self) -> str:
        return f"{self.number} x {self.width}"


class Dropout(Module):
    """Elements replaced by 0 with probability `rate`, the others divided by 1 - rate, while
    training (`go.infer_mode` switches it off); along `shared` axes all are dropped together.

    What is dropped is drawn with the next key of `go.random`, or with `key` if it is given.
    """

    def __init__(self, rate: float, shared: Sequence[int] = ()) -> None:
        if not 0 <= rate <= 1:
            raise ModuleError(f"Dropout expected a rate in [0, 1], got {rate}")
        self.rate, self.shared = rate, tuple(shared)

    def __call__(self, x: Any, key: Any = None) -> Any:
        if not is_training() or not self.rate:
            return unchanged(x)
        axes = {a % x.ndim for a in self.shared}
        noise = [1 if i in axes else None for i in range(x.ndim)]
        return nn.dropout(x, self.rate, generator.next_key() if key is None else key, noise)

    def summary(self) -> str:
        return f"{self.rate}"


class Flatten(Module):
    """The axes from `first` on as one."""

    def __init__(self, first: int = 1) -> None:
        self.first = first

    def __call__(self, x: Any) -> Any:
        rest = x.shape[self.first :]
        size = None if None in rest else math.prod(rest)
        return shape.reshape_to(as_tensor(x), (*x.shape[: self.first], size))


class Activation(Module):
    """A function of `nn.ACTIVATIONS`, by name."""

    def __init__(self, name: str) -> None:
        activation_of(name)
        self.name = name

    def __call__(self, x: Any) -> Any:
        function: Any = activation_of(self.name)
        return function(x)

    def summary(self) -> str:
        return _named(self.name)


class Sequential(Module):
    """Layers one after the other: modules, functions of one argument, or names of activations."""

    def __init__(self, *layers: Any) -> None:
        self.layers = [Activation(x) if isinstance(x, str) else x for x in layers]
        for i, layer in enumerate(self.layers):
            if not callable(layer):
                raise ModuleError(
                    f"Sequential expected modules, functions or names of activations, got "
                    f"{layer!r} at position {i}"
                )

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x

    def __getitem__(self, key: Any) -> Any:
        return Sequential(*self.layers[key]) if isinstance(key, slice) else self.layers[key]

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.layers)

    def summary(self) -> str:
        return f"{len(self)} layers"


def _named(function: Any) -> str:
    return function if isinstance(function, str) else getattr(function, "__name__", repr(function))
