# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Where lowerings are registered: `lowers` for a whole op, `scalar` for the body of an elementwise
one.
"""

from collections.abc import Callable
from typing import Any

from ...dialect.base import Op
from .scalar import Scalar

LOWERINGS: dict[type[Op], Callable[..., Any]] = {}
"""op class -> (op, *lowered operands) -> lowered result, or a list of them, built at the current
insertion point.
"""

BODIES: dict[type[Op], Callable[..., Scalar]] = {}
"""elementwise op class -> (*Scalars, **attributes) -> Scalar. 16-bit floats come as float32 and are
rounded at the end.
"""


def lowers(*op_classes: type[Op]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the lowering of op classes."""
    return _registers(LOWERINGS, op_classes)


def scalar(*op_classes: type[Op]) -> Callable[[Callable[..., Scalar]], Callable[..., Scalar]]:
    """Register the body of elementwise op classes."""
    return _registers(BODIES, op_classes)


def _registers(
    table: dict[type[Op], Any], op_classes: tuple[type[Op], ...]
) -> Callable[[Any], Any]:
    def register(function: Any) -> Any:
        for op_class in op_classes:
            if op_class in LOWERINGS or op_class in BODIES:
                raise ValueError(f"{op_class.__name__} has a lowering already")
            table[op_class] = function
        return function

    return register


def is_lowered(op_class: type[Op]) -> bool:
    return op_class in LOWERINGS or op_class in BODIES
