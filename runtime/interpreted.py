# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Target `reference`: graphs run op by op on NumPy, by the ops' references. It needs no compiler,
and is what the other targets are held against.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..dialect import builder as builders
from ..dialect import reference
from ..dialect.base import Op
from ..dialect.control import symbols
from ..dialect.function_graph import FunctionGraph
from ..dialect.graph import Graph
from ..dialect.loops import ScanOp, loop_of, loop_operands, scan
from ..dialect.mlir import func, ir
from ..dialect.types import TensorSpec
from ..lowering.target import Target
from . import dispatch
from .array import Array, asarray, of_value
from .device import place
from .executable import Executable


@dataclasses.dataclass(frozen=True)
class Step:
    """An op of a program: what it reads and where its results go, by number; `over` are the numbers
    that nothing reads afterwards.
    """

    op_class: type[Op]
    attributes: dict[str, Any]
    operands: tuple[int, ...]
    results: tuple[int, ...]
    specs: tuple[TensorSpec, ...]
    over: tuple[int, ...]
    body: "Program | None"  # of a loop

    def run(self, operands: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """The results on NumPy arrays."""
        if self.body is None:
            return self.op_class.compute(self.specs, operands, self.attributes)
        body = self.body

        def step(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
            return tuple(body.run(arrays))

        return ScanOp.reference(*operands, body=step, results=self.specs, **self.attributes)

    def put_off(self, operands: Sequence[Any]) -> Sequence[Any]:
        """The results as the thread runs ops on arrays, a loop step by step."""
        if self.body is None:
            found = builders.imperative.add(self.op_class, tuple(operands), self.attributes)
            return found if isinstance(found, tuple) else (found,)
        about = self.attributes
        count, first = about["carries"], about["carries"] + about["xs"]
        body, rest, xs = self.body, operands[first:], list(operands[count:first])

        def step(carry: Any, x: Any) -> tuple[Any, Any]:
            results = body.put_off([*carry, *x, *rest])
            return results[:count], results[count:]

        carry, ys = scan(step, list(operands[:count]), xs, about["length"], about["reverse"])
        return [*carry, *ys]


@dataclasses.dataclass(frozen=True)
class Program:
    """A function of ops alone, derivatives expanded and calls inlined, as steps. Its inputs have
    the first numbers.
    """

    inputs: int
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]

    @classmethod
    def of(cls, module: ir.Module, name: str) -> "Program":
        """The program of a function of a module, which is expanded in a copy."""
        with module.context:
            copy = ir.Module.parse(module.operation.get_asm(enable_debug_info=True))
            from ..lowering import pipeline  # what only compiling needs, else

            pipeline.run(copy, f"{pipeline.STAGES['differentiated']},gradopt-inline")
            return cls._of(symbols(copy), name)

    @classmethod
    def _of(cls, functions: dict[str, func.FuncOp], name: str) -> "Program":
        """The program of a function whose calls are those of loops."""
        block = functions[name].entry_block
        number = {value: i for i, value in enumerate(block.arguments)}
        ops = [op for op in block.operations if not isinstance(op, ScanOp)]
        for op in ops:
            for result in op.operation.results:
                number[result] = len(number)
        read = [loop_operands(op) if loop_of(op) else list(op.operation.operands) for op in ops]
        last = {number[o]: i for i, operands in enumerate(read) for o in operands}
        steps = []
        for i, op in enumerate(ops):
            operands = tuple(number[o] for o in read[i])
            if isinstance(op, func.ReturnOp):
                return cls(len(block.arguments), tuple(steps), operands)
            results = tuple(number[r] for r in op.operation.results)
            over = {n for n in operands if last[n] == i} | {n for n in results if n not in last}
            attributes: dict[str, Any] = (loop_of(op) or op).read_attributes()
            body = cls._of(functions, attributes.pop("callee")) if loop_of(op) else None
            specs = tuple(TensorSpec.from_mlir(r.type) for r in op.operation.results)
            steps.append(Step(type(op), attributes, operands, results, specs, tuple(over), body))
        raise AssertionError(f"@{name} has no return")

    def run(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The results on NumPy arrays of the types that the function takes."""
        values: dict[int, np.ndarray] = dict(enumerate(arrays))
        for step in self.steps:
            operands = [values[n] for n in step.operands]
            found = step.run(operands)
            values.update(zip(step.results, found, strict=True))
            for n in step.over:
                del values[n]
        return [values[n] for n in self.outputs]

    def put_off(self, arrays: Sequence[Any]) -> list[Any]:
        """The results as the thread runs ops on arrays; see imperative.py."""
        values: dict[int, Any] = {i: asarray(x) for i, x in enumerate(arrays)}
        for step in self.steps:
            found = step.put_off([values[n] for n in step.operands])
            values.update(zip(step.results, found, strict=True))
        return [values[n] for n in self.outputs]


class ReferenceExecutable(Executable):
    """A graph that NumPy runs, called like one that IREE compiled. Donated arrays are given up;
    their memory is not used again.
    """

    def __init__(
        self,
        graph: Graph | FunctionGraph,
        target: Target,
        donated: list[int],
        is_static: bool,
    ) -> None:
        self._describe(graph, donated, is_static, place(target.driver))
        self.in_place: set[int] = set()
        self.program: Program | None = None
        self.module: Any = None
        if all(s.is_static for s in self.inputs):
            self.program = Program.of(graph.module, graph.name)
            return
        with graph.context:  # extents that only a call knows are checked op by op
            self.module = ir.Module.parse(graph.module.operation.get_asm(enable_debug_info=True))
        from ..lowering import pipeline  # what only compiling needs, else

        pipeline.run(self.module, pipeline.STAGES["differentiated"])

    def __call__(self, leaves: Sequence[Any], out: Sequence[Any] | None = None) -> Any:
        """As an Executable; results are copied to `out`."""
        destinations = self.destinations(leaves, out)
        leaves = self.here(leaves)
        if self.donated:
            self.check_donated(leaves)
            dispatch.settle()  # calls that read what is given up
        given = [_native(x) for x in leaves]
        if self.program is not None:
            found: Sequence[np.ndarray] = self.program.run(given)
        else:
            found = reference.run(self.module, self.name, *given)
        results = [of_value(x.copy()) for x in found]  # arguments are the caller's
        for position in self.donated:
            if isinstance(leaves[position], Array):
                leaves[position].give_up()
        return self.tree(results if destinations is None else destinations.fill(results))


def _native(leaf: Any) -> np.ndarray:
    array = np.asarray(leaf)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
