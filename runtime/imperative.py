# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Imperative mode: what ops do where no graph is being built.

By default an op runs at once, on NumPy, through its own `reference`; where `go.config.eager` says
so, or in deferred compute, it is put off (lazy.py). Where the thread is recording, the tape keeps
what the op's gradient reads (tape.py).
"""

from typing import Any

import numpy as np

from ..dialect import builder as builders
from ..dialect.base import Op
from ..dialect.creation import ConstantOp, as_array
from ..dialect.types import TensorSpec
from . import interop, lazy, tape  # noqa: F401 - Array gets NumPy's protocols
from .array import Array, of_value
from .state import state
from .transforms import Transforms

_known: dict[Any, tuple[dict[str, Any], tuple[TensorSpec, ...], bool]] = {}
"""Attributes in their normal form, result types and whether there is one result, not a tuple: by
op, attributes and operand types.
"""
KNOWN = 4096


class Imperative(Transforms):
    """Runs ops, with the interface of a Builder."""

    def __enter__(self) -> "Imperative":
        return self

    def __exit__(self, *exception: Any) -> None:
        return None

    def add(
        self,
        op_class: type[Op],
        operands: tuple[Any, ...],
        attributes: dict[str, Any],
        name: str | None = None,
    ) -> Any:
        """Run an op on arrays, or put it off; its result, or a tuple of them. OpError for operands
        that it does not take.
        """
        arrays = [x if type(x) is Array else of_value(as_array(x)) for x in operands]
        if op_class is ConstantOp:
            return _constant(attributes["value"])
        attributes, specs, single = described(op_class, arrays, attributes)
        if state.deferred is not None or lazy.mode() != "reference":
            results = lazy.add(op_class, arrays, attributes, specs, name)
        else:
            results = _run(op_class, arrays, attributes, specs)
        if state.recording:
            tape.record(op_class, attributes, arrays, results)
        return results[0] if single else tuple(results)


def described(
    op_class: type[Op], arrays: list[Array], attributes: dict[str, Any]
) -> tuple[dict[str, Any], tuple[TensorSpec, ...], bool]:
    """Attributes with defaults, result types, and whether there is one result, not a tuple."""
    key = (op_class, *attributes.items(), *((a.shape, a.dtype) for a in arrays))
    try:
        return _known[key]
    except KeyError:
        is_known = False
    except TypeError:  # lists and arrays among the attributes
        is_known = True
    attributes = op_class.with_defaults(attributes)
    found = op_class.infer(*(a.spec for a in arrays), **attributes)
    single = isinstance(found, TensorSpec)
    result = attributes, (found,) if single else tuple(found), single
    if not is_known:
        if len(_known) >= KNOWN:
            _known.clear()
        _known[key] = result
    return result


def _constant(value: np.ndarray) -> Array:
    return of_value(value if not value.flags.writeable else value.copy())


def _run(
    op_class: type[Op],
    arrays: list[Array],
    attributes: dict[str, Any],
    specs: tuple[TensorSpec, ...],
) -> list[Array]:
    """The op's reference on the arrays' elements. Results may share the memory of arrays that have
    elements, which nobody writes to, but not that of buffers.
    """
    shared = all(a._value is not None for a in arrays)
    values = op_class.compute(specs, [a.numpy() for a in arrays], attributes)
    return [of_value(v if shared or v.flags.owndata else v.copy()) for v in values]


builders.imperative = Imperative()
