# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Which elementwise ops become one generic: an op is computed where all its users are, a truth
value in each of their places.

The users of a mask or a scaled cotangent then read the tensors it was made of, and it is never
stored. IREE fuses what is left into the products and reductions around it.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..dialect.base import Op
from ..dialect.creation import IotaOp
from ..dialect.mlir import ir, op_of
from ..dialect.shape import BroadcastOp
from ..dialect.types import TensorSpec, bool_, uint8
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
    """Groups of elementwise ops that become one generic each, that of their last op."""

    def __init__(self, ops: list[Op]) -> None:
        self.root: dict[ir.Value, ir.Value] = {}  # result of an op -> result of the op it is in
        self.reads: dict[ir.Value, set[ir.Value]] = {}  # root -> values that its generic reads
        self.size: dict[ir.Value, int] = {}  # root -> ops in its generic
        self.cut: set[ir.Value] = set()  # results that IREE must not fuse into their users again
        for op in reversed(ops):
            if type(op) in BODIES:
                self._place(op)

    def _place(self, op: Op) -> None:
        """Put the op into the generic that all its users are in; a truth value into each."""
        result = op.operation.results[0]
        users = [use.owner for use in result.uses]
        roots = [self.root[u.results[0]] for u in users if type(u.opview) in BODIES]
        homes = sorted(set(roots), key=roots.index)
        is_truth = TensorSpec.from_mlir(result.type).dtype == bool_
        if homes and len(roots) == len(users) and (len(homes) == 1 or is_truth):
            operands = set(op.operation.operands)
            if all(self._fits(home, result, operands) for home in homes):
                for home in homes:
                    self.size[home] += 1
                    self.reads[home] = self.reads[home] - {result} | operands
                self.root[result] = homes[0]
                return
            self.cut.add(result)
        self.root[result], self.size[result] = result, 1
        self.reads[result] = set(op.operation.operands)

    def _fits(self, home: ir.Value, result: ir.Value, operands: set[ir.Value]) -> bool:
        reads = self.reads[home] - {result} | operands
        return self.size[home] < LARGEST and len(reads) <= MOST_INPUTS

    def is_inside(self, value: ir.Value) -> bool:
        """True if the value is computed in the generics of its users, and in none of its own."""
        return self.root.get(value, value) != value

    def readers(self, value: ir.Value) -> list[ir.Value]:
        """The roots of the generics that read `value`."""
        users = {use.owner for use in value.uses}
        return [r for r, reads in self._roots_of(users) if value in reads]

    def _roots_of(self, users: set[Any]) -> Iterator[tuple[ir.Value, set[ir.Value]]]:
        for user in users:
            if type(user.opview) in BODIES:
                root = self.root[user.results[0]]
                yield root, self.reads[root]


class Tree:
    """One generic in the making: an op, the ops inside it, and the tensors that they read."""

    def __init__(self, op: Any, fusion: Fusion, value: Callable[[ir.Value], ir.Value]) -> None:
        self.fusion = fusion
        self.value = value
        self.inputs: list[tuple[ir.Value, tuple[int, ...]]] = []  # tensors and their loops
        self.nodes: dict[ir.Value, Node] = {}
        self.likes: list[tuple[ir.Value, int]] = []  # tensors with an axis that a loop runs along
        self.root = self._node(op)

    def _node(self, op: Any) -> Node:
        result = op.operation.results[0]
        if result not in self.nodes:
            self.nodes[result] = Node(op, tuple(self._source(o) for o in op.operation.operands))
        return self.nodes[result]

    def _source(self, operand: ir.Value) -> Source:
        if (number := splat_of(operand)) is not None:
            return Number(number)
        if self.fusion.is_inside(operand):
            return self._node(operand.owner.opview)
        owner = op_of(operand)
        if isinstance(owner, IotaOp):
            return Index(owner.axis)
        if isinstance(owner, BroadcastOp):
            return self._broadcast(owner)
        return self._input(self.value(operand), range(TensorSpec.from_mlir(operand.type).rank))

    def _broadcast(self, op: Any) -> Source:
        """The broadcast's operand without the axes that are repeated, and the loops that are the
        others.
        """
        inner, *like = op.operation.operands
        self.likes += [(self.value(l), a) for l in like for a in _taken_from(op, l)]
        owner = op_of(inner)
        if isinstance(owner, IotaOp):
            loop = op.dims[owner.axis]
            if op.shape[loop] == owner.shape[owner.axis]:
                return Index(loop)
            return Number(owner.dtype.type(0))  # a ramp of one element, repeated
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

    def body(self, *elements: ir.Value) -> list[ir.Value]:
        """The body of the generic; the last element is the output's."""
        scalars: dict[ir.Value, Scalar] = {}
        for result, node in self.nodes.items():  # operands stand before the ops that use them
            scalars[result] = self._compute(node, elements, scalars)
        return [scalars[self.root.op.operation.results[0]].value]

    def _compute(
        self, node: Node, elements: tuple[ir.Value, ...], scalars: dict[ir.Value, Scalar]
    ) -> Scalar:
        op = node.op
        operands = [
            self._read(operand, spec.dtype, elements, scalars)
            for operand, spec in zip(node.operands, op.operand_specs(), strict=True)
        ]
        if op.WIDEN:
            operands = [widened(x) for x in operands]
        with op.location:  # by which profiles find the op again
            result = BODIES[type(op)](*operands, **op.read_attributes())
            return convert(result, op.result_specs()[0].dtype)

    def _read(
        self,
        source: Source,
        dtype: np.dtype,
        elements: tuple[ir.Value, ...],
        scalars: dict[ir.Value, Scalar],
    ) -> Scalar:
        if isinstance(source, Number):
            return Scalar(build.number(source.value.item(), build.element_type(dtype)), dtype)
        if isinstance(source, Index):
            return from_index(build.loop_index(source.loop), dtype)
        if isinstance(source, Input):
            element = elements[source.position]
            is_byte = dtype == bool_ and element.type != build.element_type(bool_)
            return convert(Scalar(element, uint8), bool_) if is_byte else Scalar(element, dtype)
        return scalars[source.op.operation.results[0]]


def _taken_from(op: Any, like: ir.Value) -> list[int]:
    """The axes of a broadcast whose extents are those of its operand `like`."""
    unknown = op.unknown(op.x.spec, op.shape, op.dims)
    return [a for a in unknown if TensorSpec.from_mlir(like.type).shape[a] is None]


def as_bytes(truth: ir.Value) -> ir.Value:
    """Truth values as numbers 0 and 1, which the body of a generic takes for them."""
    element = build.element_type(uint8)
    return build.elementwise([truth], element, lambda v: convert(Scalar(v, bool_), uint8).value)
