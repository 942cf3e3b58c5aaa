# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Whose storage a result may be: the one place that says which ops look at their operand's bytes
and which may write over them, before lowering and after.
"""

import math
from collections.abc import Sequence
from typing import Any

from ..dialect.base import Op
from ..dialect.control import OptimizationBarrierOp, StopGradientOp, TagOp
from ..dialect.elementwise import Elementwise
from ..dialect.logic import BitcastOp
from ..dialect.mlir import ir
from ..dialect.shape import ReshapeOp
from ..dialect.types import TensorSpec

VIEW_OPS = (ReshapeOp, BitcastOp, StopGradientOp, TagOp, OptimizationBarrierOp)
"""Ops of the dialect whose result may be their first operand's storage as it is."""

LOWERED_VIEWS = {
    "builtin.unrealized_conversion_cast",
    "iree_tensor_ext.compute_barrier.start",
    "tensor.cast",
    "tensor.collapse_shape",
    "tensor.expand_shape",
    "tensor.reshape",
    "util.optimization_barrier",
}
"""Ops after lowering whose result is their operand's storage: the first's, or that of the same
position.
"""


def may_alias(rule: type[Op]) -> bool:
    """True for ops of which `aliases` can give pairs."""
    return rule.UPDATES or issubclass(rule, (*VIEW_OPS, Elementwise))


def aliases(
    rule: type[Op], specs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> tuple[tuple[int, int], ...]:
    """Which outputs may be written over which inputs, as pairs (output, input).

    An elementwise op may write over any input of its type, since it reads an element before it
    writes the one at the same place; a view over what it looks at; an update over what it updates.
    """
    if issubclass(rule, VIEW_OPS):
        return ((0, 0),) if specs[0].dtype.itemsize == outputs[0].dtype.itemsize else ()
    if issubclass(rule, Elementwise):
        return tuple((0, i) for i, s in enumerate(specs) if s == outputs[0])
    return ((0, 0),) if rule.UPDATES else ()


def viewed(value: ir.Value) -> ir.Value | None:
    """What a value after lowering is a view of; None where it is not one."""
    if isinstance(value.owner, ir.Block) or value.owner.name not in LOWERED_VIEWS:
        return None
    operands = value.owner.operands
    position = ir.OpResult(value).result_number
    return operands[position if len(operands) == len(value.owner.results) else 0]


def root(value: ir.Value) -> ir.Value:
    """The value whose storage a value after lowering is."""
    while (under := viewed(value)) is not None:
        value = under
    return value


def nbytes(kind: ir.Type) -> int | None:
    """Bytes of a tensor, as NumPy and IREE lay it out; None where an extent is unknown."""
    tensor = ir.RankedTensorType(kind)
    if 0 in (shape := tensor.shape):
        return 0
    if not tensor.has_static_shape:
        return None
    element: Any = tensor.element_type
    if isinstance(element, ir.ComplexType):
        width = 2 * element.element_type.width
    else:
        width = getattr(element, "width", 64)  # an index has none
    return math.prod(shape) * max(width // 8, 1)
