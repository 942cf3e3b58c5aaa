# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Which elementwise ops become one generic: an op is computed inside its only elementwise user, a
truth value inside each.

The users of a mask or a scaled cotangent then read the tensors it was made of, and it is never
stored. IREE fuses what is left into the products and reductions around it.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..dialect.base import Op
from ..dialect.creation import IotaOp
from ..dialect.mlir import ir
from ..dialect.shape import BroadcastOp
from ..dialect.types import TensorSpec, bool_
from .linalg import build
from .linalg.registry import BODIES
from .linalg.scalar import Scalar, convert, from_index, widened
from .simplify import splat_of

LARGEST = 64
"""Most ops in one generic."""
MOST_INPUTS = 16
"""Most tensors that one generic reads; a dispatch of IREE cannot have more than 32 in all."""


@dataclasses.dataclass(frozen=True)
class Number:
    """An operand that is a constant."""

    value: np.generic


@dataclasses.dataclass(frozen=True)
class Index:
    """An operand that is an index ramp along a loop."""

    loop: int


@dataclasses.dataclass(frozen=True)
class Input:
    """An operand that is read: the position among the generic's inputs."""

    position: int


@dataclasses.dataclass(frozen=True)
class Node:
    """An op that is computed in the body."""

    op: Any
    operands: tuple["Number | Index | Input | Node", ...]


Source = Number | Index | Input | Node


class Fusion:
    """The elementwise ops of a function that are computed inside others."""

    def __init__(self, ops: list[Op]) -> None:
        self.sizes: dict[ir.Value, int] = {}  # result -> ops in its tree
        self.reads: dict[ir.Value, set[ir.Value]] = {}  # result -> values that its tree reads
        self.inside: set[ir.Value] = set()
        self.cut: set[ir.Value] = set()  # results that IREE must not fuse into their users again
        for op in ops:
            if type(op) in BODIES:
                self._decide(op)

    def _decide(self, op: Op) -> None:
        result = op.operation.results[0]
        size, reads = 1, set()
        for operand in set(op.operation.operands):
            size += self.sizes[operand] if operand in self.inside else 0
            reads |= self.reads[operand] if operand in self.inside else {operand}
        if len(reads) > MOST_INPUTS:  # too much to be one generic: its operands get their own
            self.cut.update(o for o in op.operation.operands if o in self.inside)
            self.inside.difference_update(op.operation.operands)
            size, reads = 1, set(op.operation.operands)
        self.sizes[result], self.reads[result] = size, reads
        users = [use.owner for use in result.uses]
        fits = size < LARGEST and all(type(u.opview) in BODIES for u in users)
        is_truth = TensorSpec.from_mlir(result.type).dtype == bool_
        if users and fits and (len(users) == 1 or is_truth):
            self.inside.add(result)

    def readers(self, value: ir.Value) -> Iterator[Op]:
        """The elementwise ops with a generic of their own that read `value`, directly or in an op
        inside them.
        """
        for user in {use.owner for use in value.uses}:
            if type(user.opview) in BODIES:
                if user.results[0] in self.inside:
                    yield from self.readers(user.results[0])
                else:
                    yield user.opview

    def is_inside(self, op: Op) -> bool:
        """True if the op is computed inside its users, and needs no lowering of its own."""
        return op.operation.results[0] in self.inside


class Tree:
    """One generic in the making: an op, the ops inside it, and the tensors that they read."""

    def __init__(self, op: Any, fusion: Fusion, value: Callable[[ir.Value], ir.Value]) -> None:
        self.fusion = fusion
        self.value = value
        self.inputs: list[tuple[ir.Value, tuple[int, ...]]] = []  # lowered tensors and their loops
        self.root = self._node(op)

    def _node(self, op: Any) -> Node:
        return Node(op, tuple(self._source(o) for o in op.operation.operands))

    def _source(self, operand: ir.Value) -> Source:
        if (number := splat_of(operand)) is not None:
            return Number(number)
        if operand in self.fusion.inside:
            return self._node(operand.owner.opview)
        owner = None if isinstance(operand.owner, ir.Block) else operand.owner.opview
        if isinstance(owner, IotaOp):
            return Index(owner.axis)
        if isinstance(owner, BroadcastOp):
            return self._broadcast(owner)
        return self._input(self.value(operand), range(TensorSpec.from_mlir(operand.type).rank))

    def _broadcast(self, op: Any) -> Source:
        """The broadcast's operand without the axes that are repeated, and the loops that are the
        others.
        """
        inner = op.operation.operands[0]
        owner = None if isinstance(inner.owner, ir.Block) else inner.owner.opview
        if isinstance(owner, IotaOp):
            return Index(op.dims[owner.axis])
        x = self.value(inner)
        shape = build.static_shape(x)
        kept = [a for a, n in enumerate(shape) if n != 1 or op.shape[op.dims[a]] == 1]
        if len(kept) < len(shape):
            x = build.reshape(x, [build.extent(x, a) for a in kept])
        return self._input(x, [op.dims[a] for a in kept])

    def _input(self, value: ir.Value, loops: Any) -> Input:
        entry = (value, tuple(loops))
        if entry not in self.inputs:
            self.inputs.append(entry)
        return Input(self.inputs.index(entry))

    def nodes(self, node: Node | None = None) -> Iterator[Node]:
        """All ops of the tree."""
        node = node or self.root
        yield node
        for operand in node.operands:
            if isinstance(operand, Node):
                yield from self.nodes(operand)

    def body(self, *elements: ir.Value) -> list[ir.Value]:
        """The body of the generic; the last element is the output's."""
        return [self._compute(self.root, elements).value]

    def _compute(self, node: Node, elements: tuple[ir.Value, ...]) -> Scalar:
        op = node.op
        scalars = [
            self._read(operand, spec.dtype, elements)
            for operand, spec in zip(node.operands, op.operand_specs(), strict=True)
        ]
        if op.WIDEN:
            scalars = [widened(x) for x in scalars]
        result = BODIES[type(op)](*scalars, **op.read_attributes())
        return convert(result, op.result_specs()[0].dtype)

    def _read(self, source: Source, dtype: np.dtype, elements: tuple[ir.Value, ...]) -> Scalar:
        if isinstance(source, Number):
            return Scalar(build.number(source.value.item(), build.element_type(dtype)), dtype)
        if isinstance(source, Index):
            return from_index(build.loop_index(source.loop), dtype)
        if isinstance(source, Input):
            return Scalar(elements[source.position], dtype)
        return self._compute(source, elements)
