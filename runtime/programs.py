# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The backward of one op as a list of ops to run: what backward_graph derives from the op's rule,
read once for each op, attributes, operand types and set of operands that need a gradient.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..dialect import builder as builders
from ..dialect.base import Op
from ..dialect.creation import ConstantOp
from ..dialect.types import TensorSpec, is_float
from ..errors import GradientError
from .array import Array, of_value

KNOWN = 4096
_known: dict[Any, "Rule"] = {}


@dataclasses.dataclass(frozen=True)
class Step:
    """An op: where its operands are and its results go, and what nobody reads after it."""

    op_class: type[Op]
    attributes: dict[str, Any]
    specs: tuple[TensorSpec, ...]
    operands: tuple[int, ...]
    results: tuple[int, ...]
    last: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Program:
    """The backward of an op. Its slots hold first what it reads: of the op's inputs, its outputs
    and its outputs' gradients, in this order, those that `saved` holds for; then constants, and
    what its steps make. `gradients` are the slots of the gradients by the inputs, None for inputs
    that have none.
    """

    saved: tuple[bool, ...]
    reads: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    constants: tuple[np.ndarray, ...]
    steps: tuple[Step, ...]
    gradients: tuple[int | None, ...]
    slots: int

    def run(self, given: list[Array]) -> list[Array | None]:
        """The gradients by the inputs, from arrays for what is read; runs ops as the thread does,
        and records them if it records.
        """
        add = builders.imperative.add
        constants = [add(ConstantOp, (), {"value": value}) for value in self.constants]
        slots: list[Any] = [*given, *constants]
        slots += [None] * (self.slots - len(slots))
        for step in self.steps:
            operands = tuple(slots[i] for i in step.operands)
            results = add(step.op_class, operands, step.attributes)
            self._put(slots, step, results if isinstance(results, tuple) else (results,))
        return [None if i is None else slots[i] for i in self.gradients]

    def evaluate(self, given: list[np.ndarray], shared: bool) -> list[Array | None]:
        """The same at once on NumPy arrays, through the ops' references; `shared` says whether
        results may share their memory.
        """
        slots: list[Any] = [*given, *self.constants]
        slots += [None] * (self.slots - len(slots))
        for step in self.steps:
            operands = [slots[i] for i in step.operands]
            self._put(slots, step, step.op_class.compute(step.specs, operands, step.attributes))
        found = [None if i is None else slots[i] for i in self.gradients]
        return [
            None if f is None else of_value(f if shared or f.flags.owndata else f.copy())
            for f in found
        ]

    @staticmethod
    def _put(slots: list[Any], step: Step, results: Sequence[Any]) -> None:
        for i, result in zip(step.results, results, strict=True):
            slots[i] = result
        for i in step.last:
            slots[i] = None


class Rule:
    """The backward of an op with attributes, on operands of given types, for those that need a
    gradient.

    `program` is that where all floating-point results have a gradient: None where there is nothing
    to hand on, an error for an op without a gradient rule. It says what a recorded op keeps.
    """

    __slots__ = (
        "_others", "attributes", "floats", "needs", "op_class", "operands", "program", "results"
    )  # fmt: skip

    def __init__(
        self,
        op_class: type[Op],
        attributes: dict[str, Any],
        operands: Sequence[TensorSpec],
        needs: tuple[bool, ...],
    ) -> None:
        found = op_class.infer(*operands, **attributes)
        self.op_class = op_class
        self.attributes = attributes
        self.operands = operands
        self.needs = needs
        self.results = (found,) if isinstance(found, TensorSpec) else tuple(found)
        self.floats = tuple(is_float(r.dtype) for r in self.results)
        self._others: dict[tuple[bool, ...], Program | None] = {}
        self.program = self._derived(self.floats)

    def given(self, has: tuple[bool, ...]) -> Program | None:
        """The program for results some of which may have no gradient, that reads no more than what
        is kept; zeros stand for gradients that it reads in vain. None where it gives nothing.
        """
        if isinstance(self.program, GradientError):
            raise self.program
        if has == self.floats or self.program is None:
            return self.program
        if has not in self._others:
            found = self._derived(has)
            assert not isinstance(found, GradientError)
            keeps = all(set(a) <= set(b) for a, b in self._kept(found))
            self._others[has] = found if keeps else self.program
        return self._others[has]

    def _kept(self, other: Program | None) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        assert isinstance(self.program, Program)
        return [] if other is None else list(zip(other.reads[:2], self.program.reads, strict=False))

    def _derived(self, has: tuple[bool, ...]) -> Program | GradientError | None:
        from ..lowering.backward import backward_graph  # brings the passes

        if not any(has):
            return None
        try:
            found = backward_graph(
                self.op_class.MNEMONIC, self.operands, self.needs, has, **self.attributes
            )
        except GradientError as error:
            return error
        if found is None or not any(found.has_gradient):
            return None
        return _read(found, len(self.operands), len(self.results))


def rule(
    op_class: type[Op],
    attributes: dict[str, Any],
    arrays: Sequence[Array],
    needs: tuple[bool, ...],
) -> Rule:
    """The backward of an op on arrays; see Rule."""
    values = [v.hex() if type(v) is float else v for v in attributes.values()]  # -0.0 is not 0.0
    key = (op_class, *values, *[(a.shape, a.dtype) for a in arrays], needs)
    try:
        return _known[key]
    except KeyError:
        pass
    except TypeError:  # lists and arrays among the attributes
        return Rule(op_class, attributes, [a.spec for a in arrays], needs)
    found = Rule(op_class, attributes, [a.spec for a in arrays], needs)
    if len(_known) >= KNOWN:
        _known.clear()
    _known[key] = found
    return found


def _read(backward: Any, inputs: int, outputs: int) -> Program:
    """The program of a derived function."""
    from ..dialect.control import symbols

    block = symbols(backward.module)[backward.name].entry_block
    slots: dict[Any, int] = {a: i for i, a in enumerate(block.arguments)}
    ops = list(block.operations)
    constants = [op for op in ops if isinstance(op, ConstantOp)]
    for op in constants:
        slots[op.operation.results[0]] = len(slots)
    last: dict[int, int] = {}
    found = []
    *body, end = [op for op in ops if not isinstance(op, ConstantOp)]
    for n, op in enumerate(body):
        operands = tuple(slots[o] for o in op.operation.operands)
        last.update(dict.fromkeys(operands, n))
        for r in op.operation.results:
            slots[r] = len(slots)
        found.append((op, operands, tuple(slots[r] for r in op.operation.results)))
    kept = [slots[o] for o in end.operation.operands]
    steps = []
    for n, (op, operands, results) in enumerate(found):
        free = {i for i in (*operands, *results) if last.get(i, n) == n} - set(kept)
        about = op.read_attributes(), tuple(op.result_specs())
        steps.append(Step(type(op), *about, operands, results, tuple(sorted(free))))
    rest = iter(kept)
    gradients = tuple(next(rest) if has else None for has in backward.has_gradient)
    saved = backward.saved
    parts = saved[:inputs], saved[inputs : inputs + outputs], saved[inputs + outputs :]
    reads = tuple(tuple(i for i, kept in enumerate(part) if kept) for part in parts)
    values = tuple(_constant(op) for op in constants)
    return Program(saved, reads, values, tuple(steps), gradients, len(slots))  # type: ignore[arg-type]


def _constant(op: Any) -> np.ndarray:
    """A constant's value; one of equal elements has the memory of one."""
    value = op.read_attribute("value")
    if value.size > 1 and (value == value.flat[0]).all():
        return np.broadcast_to(value.flat[0], value.shape)
    value.setflags(write=False)
    return value
