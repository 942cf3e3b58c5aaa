# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Auxiliary inputs: states such as running statistics, which are no part of what is trained and get
no gradient.

An input is auxiliary where it is declared so (`Graph.auxiliary`), or where ops use it as a state
(`STATES` of their class), and nothing else does that has a gradient.
"""

from typing import Any

from .base import Op
from .control import DerivativeOp, OptimizationBarrierOp, StopGradientOp, TagOp, symbols
from .graph import AUXILIARY
from .logic import ConvertOp
from .mlir import func, ir, op_of
from .shape import ReshapeOp

SAME = (ConvertOp, ReshapeOp, StopGradientOp, TagOp, OptimizationBarrierOp)
"""Ops whose result is a state where their operand is one."""

STATE, OTHER = 1, 2


def auxiliary_inputs(graph: Any) -> list[int]:
    """The positions of a graph's auxiliary inputs, declared or found by their use."""
    graph.finish()
    functions = symbols(graph.module)
    function = functions[graph.name]
    uses = _Uses(functions).of(graph.name)
    about = list(function.arg_attrs) if "arg_attrs" in function.attributes else [{}] * len(uses)
    return [
        i
        for i, (used, given) in enumerate(zip(uses, about, strict=True))
        if used == STATE or _role(given) == AUXILIARY
    ]


def _role(about: Any) -> str:
    return about["gradopt.role"].value if "gradopt.role" in about else ""


class _Uses:
    """How the functions of a module use their arguments."""

    def __init__(self, functions: dict[str, func.FuncOp]) -> None:
        self.functions = functions
        self.known: dict[str, list[int]] = {}

    def of(self, name: str) -> list[int]:
        """For each argument STATE, OTHER or both, added up; 0 where nothing with a gradient reads
        it.
        """
        function = self.functions.get(name)
        if function is None or function.is_external:
            return [OTHER] * len(function.type.inputs if function else ())
        if name not in self.known:
            self.known[name] = [0] * len(function.type.inputs)  # no recursion in a module
            block = function.entry_block
            found: dict[ir.Value, int] = {}
            for op in reversed(list(block.operations)):
                for operand, use in self._operands(op, found):
                    found[operand] = found.get(operand, 0) | use
            self.known[name] = [found.get(a, 0) for a in block.arguments]
        return self.known[name]

    def _operands(self, op: Any, found: dict[ir.Value, int]) -> list[tuple[ir.Value, int]]:
        """What an op reads, and as what; `found` says how its results are used."""
        operands = list(op.operation.operands)
        if isinstance(op, func.ReturnOp):
            return []
        if isinstance(op, SAME):
            return [(operands[0], found.get(op.operation.results[0], 0))]
        if isinstance(op, func.CallOp):
            return self._called(op.operation.attributes["callee"].value, operands)
        if isinstance(op, func.CallIndirectOp):
            derivative = op_of(operands[0])
            if isinstance(derivative, DerivativeOp):
                return self._called(derivative.callee, operands[1:])
        if not isinstance(op, Op) or not type(op).STATES:
            is_smooth = not isinstance(op, Op) or type(op).has_gradient()
            return [(o, OTHER) for o in operands] if is_smooth else []
        fields = list(type(op).OPERANDS)
        places = {fields.index(name) for name in type(op).STATES}
        return [(o, STATE if i in places else OTHER) for i, o in enumerate(operands)]

    def _called(self, name: str, operands: list[ir.Value]) -> list[tuple[ir.Value, int]]:
        """What a call reads; a derivative's further operands are no states."""
        uses = self.of(name)
        rest = [OTHER] * (len(operands) - len(uses))
        return list(zip(operands, uses + rest, strict=True))
