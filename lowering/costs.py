# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What an op costs, in operations and in seconds of a rough roofline: enough to compare the ops of
one function with each other, and no promise about any machine.
"""

import dataclasses
import math
from typing import Any

from ..dialect.attention import Attention
from ..dialect.base import Op
from ..dialect.contraction import DotGeneralOp
from ..dialect.control import OptimizationBarrierOp, StopGradientOp, TagOp
from ..dialect.convolution import ConvInputGradientOp, ConvolutionLike, ConvOp, kernel_parts
from ..dialect.creation import ConstantOp, IotaOp
from ..dialect.logic import BitcastOp
from ..dialect.mlir import ir
from ..dialect.shape import BroadcastOp, ReshapeOp
from ..dialect.types import TensorSpec

FLOPS_PER_SECOND = 40e9
"""Multiplications and additions of products and convolutions, on one core of a common CPU."""
BYTES_PER_SECOND = 8e9
"""Bytes that everything else reads and writes."""
SLOW_PER_SECOND = 1e9
"""Elements of exponentials, logarithms, divisions and the like."""
RANDOM_PER_SECOND = 0.1e9
"""Random numbers, each of 20 rounds of a block cipher."""

SLOW = frozenset(
    (
        *("exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "pow", "sqrt", "rsqrt", "div"),
        *("sin", "cos", "tan", "tanh", "sigmoid", "erf", "erfc", "gelu", "silu", "softplus"),
        *("mish", "logit", "softmax", "log_softmax", "logsumexp", "cross_entropy"),
    )
)
VIEWS = (ReshapeOp, BitcastOp, StopGradientOp, TagOp, OptimizationBarrierOp)
"""Ops whose result is their operand's storage."""
ON_DEMAND = (ConstantOp, BroadcastOp, IotaOp)
"""Ops that are computed in the loops that read them."""
PRODUCTS = (DotGeneralOp, ConvolutionLike)
RANDOM = frozenset({"threefry"})


@dataclasses.dataclass(frozen=True)
class Cost:
    """Operations on elements, and seconds."""

    flops: int
    seconds: float


def elements(kind: ir.Type) -> int:
    """Elements of a tensor type, unknown extents taken for 1; 0 of what is no tensor."""
    if not isinstance(kind, ir.RankedTensorType):
        return 0
    return math.prod(1 if n is None else n for n in TensorSpec.from_mlir(kind).shape)


def nbytes(kind: ir.Type) -> int:
    """Bytes of a value of a type, unknown extents taken for 1; 0 of what is no tensor."""
    count = elements(kind)
    return count * TensorSpec.from_mlir(kind).dtype.itemsize if count else 0


def made(op: Any) -> int:
    """Bytes of what an op makes: its results, and of attention the weights, which no value of the
    graph is as large as.
    """
    total = sum(nbytes(r.type) for r in op.operation.results)
    if isinstance(op, Attention):
        (batch, heads, queries, _), keys = op.query.shape, op.key.shape[2]
        rows = (batch or 1) * (heads or 1) * (queries or 1)
        total += rows * (keys or 1) * op.query.dtype.itemsize
    return total


def is_random(op: Any) -> bool:
    """True for draws of random numbers: pure functions of a key, but long ones."""
    name = getattr(type(op), "MNEMONIC", "")
    return name.startswith("random_") or name in RANDOM


def cost(op: Any) -> Cost:
    """The cost of one op on its own."""
    if not isinstance(op, Op) or isinstance(op, VIEWS + ON_DEMAND):
        return Cost(0, 0.0)
    values = [*op.operation.operands, *op.operation.results]
    moved = sum(nbytes(v.type) for v in values) / BYTES_PER_SECOND
    largest = max((elements(v.type) for v in values), default=0)
    if isinstance(op, PRODUCTS):
        flops = 2 * _products(op)
        return Cost(flops, max(flops / FLOPS_PER_SECOND, moved))
    if is_random(op):
        return Cost(100 * largest, largest / RANDOM_PER_SECOND)
    slow = largest / SLOW_PER_SECOND if type(op).MNEMONIC in SLOW else 0.0
    return Cost(largest, max(moved, slow))


def _products(op: Any) -> int:
    """How many pairs of numbers a product or a convolution multiplies."""
    if isinstance(op, DotGeneralOp):
        contracted = math.prod(op.lhs.shape[a] or 1 for a in op.lhs_contract)
        return elements(op.operation.results[0].type) * contracted
    if isinstance(op, ConvOp):
        image, kernel = op.y, op.w
    elif isinstance(op, ConvInputGradientOp):
        image, kernel = op.g, op.w
    else:
        image, kernel = op.g, op.y
    outputs = kernel_parts(kernel.spec, op.channels_last)[2] or 1
    return elements(image.type) * (elements(kernel.type) // outputs)
