# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Imperative mode: what ops do where no graph is being built.

By default an op runs at once, on NumPy, through its own `reference`; where `go.config.eager` says
so, or in deferred compute, it is put off (lazy.py). Where the thread is recording, the tape keeps
what the op's gradient reads (tape.py).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..dialect import builder as builders
from ..dialect.base import Op
from ..dialect.creation import ConstantOp, as_array
from ..dialect.elementwise import number_type
from ..dialect.types import TensorSpec
from . import interop, lazy, tape  # noqa: F401 - Array gets NumPy's protocols
from .array import Array, of_value
from .state import state
from .transforms import Transforms


class Plan(NamedTuple):
    """What was decided of an op on operands of known types."""

    attributes: dict[str, Any]  # in their normal form
    specs: tuple[TensorSpec, ...]  # of the results
    is_single: bool  # one result, not a tuple
    types: tuple[TensorSpec, ...] = ()
    """The types that the operands have for the op, where some are numbers or repeated for it."""


_plans: dict[Any, Plan] = {}
"""By op, attributes and operand types."""
_prepared: dict[Any, Plan] = {}
"""The same, for operands before `prepare`."""
PLANS = 4096


class Imperative(Transforms):
    """Runs ops, with the interface of a Builder."""

    def __enter__(self) -> "Imperative":
        return self

    def __exit__(self, *exception: Any) -> None:
        return None

    def add(
        self,
        op_class: type[Op],
        operands: Sequence[Any],
        attributes: dict[str, Any],
        name: str | None = None,
    ) -> Any:
        """Run an op on arrays, or put it off; its result, or a tuple of them. OpError for operands
        that it does not take.
        """
        if op_class is ConstantOp:
            return _constant(attributes["value"])
        plan, _ = _found(_plans, op_class, operands, attributes)
        if plan is None:
            operands = [x if type(x) is Array else _constant(as_array(x)) for x in operands]
            plan = planned(op_class, operands, attributes)
        if is_put_off():
            results = lazy.add(op_class, list(operands), plan.attributes, plan.specs, name)
            return _recorded(op_class, plan, operands, results)
        return _run(op_class, plan, operands, [_elements(a) for a in operands])

    def build(
        self,
        op_class: type[Op],
        operands: Sequence[Any],
        attributes: dict[str, Any],
        name: str | None = None,
    ) -> Any:
        """`add`, of operands as the op's `prepare` brings them together. That is left out where it
        was seen to do nothing but repeat arrays and make arrays of numbers: references take such
        operands as they are, and NumPy repeats them.
        """
        plan, key = _found(_prepared, op_class, operands, attributes)
        if plan is None or is_put_off():
            prepared = tuple(op_class.prepare(*operands))
            result = self.add(op_class, prepared, attributes, name)
            if plan is None and key is not None:
                _learn(key, operands, prepared, planned(op_class, prepared, attributes))
            return result
        if not plan.types:
            values = [_elements(x) for x in operands]
            return _run(op_class, plan, operands, values)
        pairs = list(zip(operands, plan.types, strict=True))
        values = [_elements(x) if type(x) is Array else as_array(x, s.dtype) for x, s in pairs]
        if state.recording:  # the tape needs operands of the op's types
            operands = [
                x.broadcast_to(s.shape) if type(x) is Array else _repeated(v, s)
                for (x, s), v in zip(pairs, values, strict=True)
            ]
        return _run(op_class, plan, operands, values)


def is_put_off() -> bool:
    """True where ops are not run at once, by their references."""
    return state.deferred is not None or (state.eager or lazy.default) != "reference"


def _found(
    plans: dict[Any, Plan],
    op_class: type[Op],
    operands: Sequence[Any],
    attributes: dict[str, Any],
) -> tuple[Plan | None, Any]:
    """The plan, if there is one, and the key for it; None as the key where it is for no others:
    operands are neither arrays nor numbers, or attributes have no hash.
    """
    parts: list[Any] = [op_class]
    for x in operands:
        kind = type(x)
        if kind is Array:
            parts += x.shape, x.dtype
        elif kind is float or kind is bool:
            parts.append(kind)
        elif kind is int and -(2**63) <= x < 2**63:
            parts.append(number_type(x))
        else:
            return None, None
    if attributes:  # with floats as texts, as -0.0 == 0.0
        parts += map(repr, attributes.items()) if op_class.HAS_FLOATS else attributes.items()
    key = tuple(parts)
    try:
        return plans.get(key), key
    except TypeError:
        return None, None


def _remember(plans: dict[Any, Plan], key: Any, plan: Plan) -> None:
    if len(plans) >= PLANS:
        plans.clear()
    plans[key] = plan


def planned(op_class: type[Op], arrays: Sequence[Any], attributes: dict[str, Any]) -> Plan:
    """The plan of an op on arrays. OpError where the op does not take them."""
    plan, key = _found(_plans, op_class, arrays, attributes)
    if plan is not None:
        return plan
    attributes = op_class.with_defaults(attributes)
    found = op_class.infer(*(a.spec for a in arrays), **attributes)
    is_single = isinstance(found, TensorSpec)
    plan = Plan(attributes, (found,) if is_single else tuple(found), is_single)
    if key is not None:
        _remember(_plans, key, plan)
    return plan


def _learn(key: Any, operands: Sequence[Any], prepared: Sequence[Any], plan: Plan) -> None:
    """Remember the plan for operands that `prepare` made no other changes to than to repeat them
    and to make arrays of numbers.
    """
    pairs = list(zip(operands, prepared, strict=True))
    if all(type(x) is not Array or x.dtype == p.dtype for x, p in pairs):
        is_changed = any(p is not x for x, p in pairs)
        types = tuple(p.spec for p in prepared) if is_changed else ()
        _remember(_prepared, key, plan._replace(types=types))


def _constant(value: np.ndarray) -> Array:
    return of_value(value if not value.flags.writeable else value.copy())


def _elements(x: Array) -> np.ndarray:
    """The elements of an array, for reading."""
    value = x._value
    return x.numpy() if value is None else value


def _repeated(value: np.ndarray, spec: TensorSpec) -> Array:
    """An array of a type from elements that NumPy's rules repeat to it."""
    return of_value(np.broadcast_to(value, spec.extents))


def _run(op_class: type[Op], plan: Plan, operands: Sequence[Any], values: list[np.ndarray]) -> Any:
    """The op's reference on the operands' elements. Results may share the memory of arrays that
    have elements, which nobody writes to, but not that of buffers.
    """
    results = []
    for value in op_class.compute(plan.specs, values, plan.attributes):
        if value.base is not None and any(type(x) is Array and x._value is None for x in operands):
            value = value.copy()
        results.append(of_value(value))
    return _recorded(op_class, plan, operands, results)


def _recorded(
    op_class: type[Op], plan: Plan, operands: Sequence[Array], results: list[Array]
) -> Any:
    """What an op gives: its result or a tuple of them, which the tape is told of."""
    if state.recording:
        tape.record(op_class, plan.attributes, operands, results)
    return results[0] if plan.is_single else tuple(results)


builders.imperative = Imperative()
