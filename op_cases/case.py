# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What a row is, and the numbers that rows are made of."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from ..dialect.base import OPS
from ..dialect.types import TensorSpec, is_float


class Absent:
    """Stands for JAX where it is not installed: rows can be listed, not compared with it."""

    def __getattr__(self, name: str) -> "Absent":
        return self


try:
    import jax
    import jax.numpy as jnp
except ImportError:
    jax = jnp = Absent()


@dataclasses.dataclass
class Case:
    """A row: the op, its inputs and attributes, the same in JAX (None where JAX has no such op).

    `ulp` is the tolerance of targets in units in the last place, `wrt` are the inputs to
    differentiate by (all floating-point ones by default).
    """

    op: str
    inputs: list[np.ndarray]
    jax: Callable[..., Any] | None
    attributes: dict[str, Any] = dataclasses.field(default_factory=dict)
    ulp: float = 8
    wrt: tuple[int, ...] | None = None
    suffix: str = ""

    @property
    def name(self) -> str:
        return f"{self.op}{'_' if self.suffix else ''}{self.suffix}"

    def differentiable(self) -> tuple[int, ...]:
        """Positions of the inputs to differentiate by."""
        if not OPS[self.op].has_gradient():
            return ()
        if self.wrt is not None:
            return self.wrt
        return tuple(i for i, x in enumerate(self.inputs) if is_float(x.dtype))

    def build(self, *tensors: Any) -> Any:
        return OPS[self.op].build(*tensors, **self.attributes)


_rng = np.random.default_rng(0)


def seed(number: int) -> None:
    """Start the numbers of a family: they do not depend on the rows of others."""
    global _rng
    _rng = np.random.default_rng(number)


def reals(*shape: int, low: float = -2.0, high: float = 2.0) -> np.ndarray:
    """Distinct numbers in [low, high], kept 0.01 away from whole numbers, where rounding ops
    jump.
    """
    x = _rng.uniform(low, high, shape)
    near = np.abs(x - np.round(x)) < 0.01
    return np.where(near, x + 0.02, x)


def ints(*shape: int, low: int = -9, high: int = 10, dtype: str = "int32") -> np.ndarray:
    return _rng.integers(low, high, shape).astype(dtype)


def bools(*shape: int) -> np.ndarray:
    return _rng.integers(0, 2, shape).astype(bool)


X = reals(3, 5)
Y = reals(3, 5)
POSITIVE = reals(3, 5, low=0.1, high=4.0)
UNIT = reals(3, 5, low=-0.95, high=0.95)
I, J = ints(3, 5), ints(3, 5)
B, C = bools(3, 5), bools(3, 5)
CUBE = reals(2, 3, 4)


def result_shape(op: str, *inputs: np.ndarray, **attributes: Any) -> tuple[int, ...]:
    """The shape of an op's first result."""
    rule = OPS[op]
    specs = [TensorSpec(x.shape, x.dtype) for x in inputs]
    found = rule.infer(*specs, **rule.with_defaults(attributes))
    return (found if isinstance(found, TensorSpec) else found[0]).extents


def unary(op: str, function: Callable[..., Any] | None, x: np.ndarray = X, **options: Any) -> Case:
    return Case(op, [x], function, **options)


def binary(
    op: str,
    function: Callable[..., Any] | None,
    x: np.ndarray = X,
    y: np.ndarray = Y,
    **options: Any,
) -> Case:
    return Case(op, [x, y], function, **options)
