# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The forms that ops are lowered in, and the rules that choose them.

Some ops can be written in linalg in several ways that give the same values and differ in speed.
Each way is a form with a name; `FORMS` lists, for each class of ops, its forms, those that are
right for an op, and the rule that chooses one. The lowerings read the choice and know no numbers
themselves. `gradopt.form = "name"` on an op overrides the rule.

The numbers in the rules are sums of the shortest times of the dispatches, in milliseconds, of
IREE 3.13 on two Zen 4 cores with AVX-512.
"""

import dataclasses
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..dialect import reduction
from ..dialect.base import Op
from ..dialect.contraction import DotGeneralOp, free_axes
from ..dialect.convolution import ConvInputGradientOp, ConvOp, ConvWeightGradientOp, kernel_parts
from ..dialect.mlir import ir
from ..dialect.nn import SoftmaxOp
from ..dialect.norm import NormalizeOp
from ..dialect.types import bfloat16, is_float
from .blocks import Nest, block_of
from .direct_plan import plan_of
from .passes import failure

ATTRIBUTE = "gradopt.form"
"""On an op: the form that it is lowered in."""
DIRECT = "direct"
"""The form in blocks of sums (blocks.py), for targets with wide vectors."""


@dataclasses.dataclass(frozen=True)
class Forms:
    """The forms of a class of ops, with a sentence each, the plain one first; those that are right
    for an op; and the one that it gets if nobody says otherwise.
    """

    all: Mapping[str, str]
    valid: Callable[[Any], Sequence[str]]
    rule: Callable[[Any, bool], str]  # with whether the target's vectors are wide (blocks.py)


# --- products -------------------------------------------------------------------------------------


def product_form(extents: Sequence[Any], dtype: np.dtype) -> str:
    """The form of a product with these (rows, columns, depth), None or a value where unknown.

    With a single row, column or step of depth there is nothing to gain from packing. Named products
    extend their operands to the result's type, as signed numbers: unsigned ones need a body.
    """
    is_single = any(isinstance(n, int) and n == 1 for n in extents)
    return "generic" if is_single or not has_kernel(dtype) else "named"


def has_kernel(dtype: np.dtype) -> bool:
    return is_float(dtype) or dtype.kind == "i"


def has_block(nest: Nest, dtype: np.dtype, are_views: bool = False) -> bool:
    """Whether a nest can be computed in blocks."""
    is_known = dtype in (np.float32, np.float64) and nest.products > 0
    return is_known and block_of(nest.simplified(are_views), dtype.itemsize) is not None


def _product_forms(op: Any) -> list[str]:
    dtype = op.operand_specs()[0].dtype
    direct = [DIRECT] if plan_of(op) else []
    return [*(["named"] if has_kernel(dtype) else []), "generic", *direct]


def _product_rule(op: Any, wide: bool) -> str:
    if wide and (plan := plan_of(op)) and plan.is_fast:
        return DIRECT
    lhs, rhs = op.operand_specs()
    rows, columns = (
        free_axes(spec.rank, batch, contract)
        for spec, batch, contract in (
            (lhs, op.lhs_batch, op.lhs_contract),
            (rhs, op.rhs_batch, op.rhs_contract),
        )
    )
    sides = [(lhs, rows), (rhs, columns), (lhs, op.lhs_contract)]
    return product_form([_product([s.shape[a] for a in axes]) for s, axes in sides], lhs.dtype)


def _product(extents: Sequence[int | None]) -> int | None:
    return None if None in extents else math.prod(extents)  # type: ignore[arg-type]


# --- convolutions ---------------------------------------------------------------------------------

MOST_PHASES = 8


MOST_TAPS = 64
"""Taps of a window whose elements are put side by side."""


def correlation_form(window: Sequence[int], dtype: np.dtype) -> str:
    """The form of a convolution with strides for a window and operands of a type.

    3x3 at 16x32x32x32 -> 32: named 1.31, columns 3.4; 16x16x16x64 -> 64: 1.30 and 2.1. A window of
    one element is a product as it stands. IREE drops an axis of one element, and no longer finds
    the convolution: 1x2 at 16x16x16x64 -> 32 named 3.7, columns 0.2. IREE makes AVX512-BF16
    instructions of matrix products, not of convolutions: in bfloat16 named 2.4, columns 0.9.
    """
    is_other = dtype == bfloat16 or has_unit_axis(window)
    return "columns" if is_other and math.prod(window) <= MOST_TAPS else "named"


def has_unit_axis(window: Sequence[int | None]) -> bool:
    return 1 in window


def image_nest(images: Sequence[int], outputs: int) -> Nest:
    """The loops of images (N, *places, C) times a matrix [C, O] at every place."""
    *places, channels = images
    last = len(places)
    out = tuple(range(last))
    return Nest((*places, outputs, channels), (*out, last + 1), (last + 1, last), (*out, last))


def _has_image_block(images: Sequence[int | None], outputs: int | None, dtype: np.dtype) -> bool:
    if None in images or outputs is None:
        return False
    return has_block(image_nest(images, outputs), dtype, are_views=True)  # type: ignore[arg-type]


def _channels_last(shape: Sequence[int | None], channels_last: bool) -> tuple[int | None, ...]:
    return tuple(shape) if channels_last else (shape[0], *shape[2:], shape[1])


def _conv_forms(op: Any) -> list[str]:
    if op.groups > 1:
        return ["grouped"]
    x, y = (
        _channels_last(spec.shape, op.channels_last)
        for spec in (op.operand_specs()[0], op.result_specs()[0])
    )
    is_exact = not op.precision and _has_image_block((*y[:-1], x[-1]), y[-1], op.x.dtype)
    return ["named", "columns", *([DIRECT] if is_exact else [])]


def _conv_rule(op: Any, wide: bool) -> str:
    window, _, _ = kernel_parts(op.operand_specs()[1], op.channels_last)
    if wide and has_unit_axis(window) and DIRECT in _conv_forms(op):
        return DIRECT
    return "grouped" if op.groups > 1 else correlation_form(window, op.x.dtype)  # type: ignore[arg-type]


def _input_gradient_forms(op: Any) -> list[str]:
    if op.groups > 1:
        return ["spread"]
    is_strided = math.prod(op.strides) > 1
    if is_strided and set(op.dilation) != {1}:
        return ["spread"]
    g, dx = (
        _channels_last(spec.shape, op.channels_last)
        for spec in (op.operand_specs()[0], op.result_specs()[0])
    )
    count = [-(-m // s) for m, s in zip(op.extents, op.strides, strict=True)]
    is_exact = not op.precision and _has_image_block((g[0], *count, g[-1]), dx[-1], op.g.dtype)
    direct = [DIRECT] if is_exact else []
    return ["spread", *(["phases"] if is_strided else []), *direct]


def _input_gradient_rule(op: Any, wide: bool) -> str:
    """Stride 2, 3x3 at 32x32x32x32 -> 64: phases 2.4, spread 5.2. Each phase is a product of its
    own, so that there are not to be many. At 16x32x32x32 -> 64 phases 1.01, direct 0.73.
    """
    few = math.prod(op.strides) <= MOST_PHASES
    is_split = math.prod(op.strides) > 1 and few
    window, _, _ = kernel_parts(op.operand_specs()[1], op.channels_last)
    if wide and (is_split or has_unit_axis(window)) and DIRECT in _input_gradient_forms(op):  # type: ignore[arg-type]
        return DIRECT
    return "phases" if few and "phases" in _input_gradient_forms(op) else "spread"


def weight_gradient_nest(x: Sequence[int], g: Sequence[int]) -> Nest:
    """The loops of a weight gradient of one tap, over what it meets of images, (N, *places, C), and
    the result's gradient (N, *places, O).
    """
    *places, channels = x
    depth = tuple(range(len(places)))
    c, o = len(places), len(places) + 1
    return Nest((*places, channels, g[-1]), (*depth, c), (*depth, o), (c, o))


def _weight_gradient_forms(op: Any) -> list[str]:
    if op.groups > 1:
        return ["taps"]
    x, g = (_channels_last(spec.shape, op.channels_last) for spec in op.operand_specs())
    met = (*g[:-1], x[-1])
    is_known = None not in (*x, *g)
    has_direct = (
        is_known
        and not op.precision
        and has_block(weight_gradient_nest(met, g), op.x.dtype, are_views=True)  # type: ignore[arg-type]
    )
    return ["taps", "gathered", "columns", *([DIRECT] if has_direct else [])]


def _weight_gradient_rule(op: Any, wide: bool) -> str:
    """3x3, taps, gathered, columns: 32x32x32x3 -> 32 0.71, 1.30, 0.75; with 8 channels 1.47, 3.89,
    2.46; 16x32x32x32 -> 32 2.82, 3.18, 4.11; 32x16x16x64 -> 128 by stride 2 1.76, 1.90, 1.84. With
    one channel the product of a tap has one row: 32x28x28x1 -> 16 0.38, 0.38, 0.29; 5x5 -> 32 1.54,
    1.15, 1.13. Direct needs no copies: 16x32x32x32 -> 32 taps 2.18, direct 1.34; 16x8x8x128 -> 128
    1.44 and 1.30.
    """
    x, _ = op.operand_specs()
    if wide and DIRECT in _weight_gradient_forms(op):
        return DIRECT
    is_single = x.shape[-1 if op.channels_last else 1] == 1
    return "columns" if is_single and op.groups == 1 and math.prod(op.window) > 1 else "taps"


# --- reductions -----------------------------------------------------------------------------------

SPLIT = 16
"""Least number of parts of a column reduction of a tall matrix."""
TALL, NARROW = 4096, 128
"""A matrix with at least TALL rows and fewer than NARROW columns has its column reduction split."""
LONG, LONGEST = 16384, 1024
"""An axis of more than LONG elements is reduced in parts of about LONGEST: the rounding errors of a
sum grow with its length.
"""
PARTS = (16, 64, 256)
"""Numbers of parts that there are forms of."""


def column_parts(rows: int, columns: int) -> int:
    """Into how many parts the rows of a matrix are split for a column reduction, so that all cores
    have work and rounding errors stay small. Unknown extents are negative.

    16384x32, in 1, 16, 64, 256 parts: 0.064, 0.017, 0.017, 0.018; 4096x64: 0.020, 0.013, 0.013,
    0.009; 1024x128: 0.006, 0.006, 0.006, 0.008; 2048x512: 0.087, 0.097, 0.074, 0.087; batch norm of
    16x32x32x32, three reductions: 0.205, 0.108, 0.107, 0.106.
    """
    if rows >= TALL and rows % SPLIT == 0 and 0 < columns < NARROW:
        return SPLIT if rows <= SPLIT * TALL else rows // LONGEST
    return row_parts(rows)


def row_parts(length: int) -> int:
    """Into how many parts an axis is split that is not the rows of a column reduction."""
    return math.ceil(length / LONGEST) if length > LONG else 1


def _matrix(op: Any) -> tuple[int, int] | None:
    """(rows, columns) of a column reduction; None of others, and where extents are unknown."""
    shape, axes = op.operand_specs()[0].shape, list(op.axes)
    count = len(axes)
    if axes != list(range(count)) or not 0 < count < len(shape) or None in shape or 0 in shape:
        return None
    return math.prod(shape[:count]), math.prod(shape[count:])


def _reduction_forms(op: Any) -> list[str]:
    matrix = _matrix(op)
    if matrix is None:
        return ["whole"]
    rows = matrix[0]
    whole = [_split(1)] if rows <= LONG else []
    parts = {column_parts(*matrix), *PARTS}
    return whole + [
        _split(n)
        for n in sorted(parts)
        if n > 1 and (n == column_parts(*matrix) or (rows % n == 0 and n < rows <= n * LONG))
    ]


def _reduction_rule(op: Any, wide: bool) -> str:
    matrix = _matrix(op)
    return "whole" if matrix is None else _split(column_parts(*matrix))


def _split(parts: int) -> str:
    return f"split-{parts}" if parts > 1 else "whole"


def parts_of(op: Any) -> int | None:
    """Into how many parts a reduction splits its rows; None where it is not one of columns."""
    if _matrix(op) is None:
        form_of(op)
        return None
    return int(form_of(op).removeprefix("split-").replace("whole", "1"))


# --- the table ------------------------------------------------------------------------------------

PRODUCT = Forms(
    {
        "named": "linalg.matmul or linalg.batch_matmul with maps, which IREE packs in tiles",
        "generic": "one generic, a plain sum for each element",
        DIRECT: "one generic, in blocks of sums, which reads the operands in place",
    },
    _product_forms,
    _product_rule,
)
CONVOLUTION = Forms(
    {
        "named": "the named convolution of the padded images",
        "columns": "what each tap meets side by side, times the kernel as one matrix",
        DIRECT: "a sum of products for each tap, in blocks, which reads the images in place",
        "grouped": "one generic, with groups",
    },
    _conv_forms,
    _conv_rule,
)
INPUT_GRADIENT = Forms(
    {
        "spread": "zeros between the elements for strides, then a convolution with the kernel "
        "turned round",
        "phases": "a product for each remainder of the strides, then interleaved",
        DIRECT: "a convolution for each remainder of the strides, or a sum of products for each "
        "tap, in blocks, which read the images in place",
    },
    _input_gradient_forms,
    _input_gradient_rule,
)
WEIGHT_GRADIENT = Forms(
    {
        "taps": "a product for each tap",
        DIRECT: "a sum of products for each tap, which reads the images in place, in blocks",
        "gathered": "one product, with all taps' elements as rows, gathered by a map",
        "columns": "one product, with what each tap meets side by side as columns",
    },
    _weight_gradient_forms,
    _weight_gradient_rule,
)
REDUCTION = Forms(
    {
        "whole": "one reduction",
        "split-N": "column sums of N parts of the rows, then of the parts",
    },
    _reduction_forms,
    _reduction_rule,
)
SOFTMAX = Forms(
    {
        "computed-twice": "exponentials once for the sum, once for the quotient",
        "kept": "exponentials stored in between",
    },
    lambda op: ["computed-twice", "kept"],
    lambda op, wide: "computed-twice",
)

REDUCTIONS = (
    *(reduction.SumOp, reduction.MeanOp, reduction.VarOp, reduction.ProdOp, reduction.MaxOp),
    *(reduction.MinOp, reduction.AnyOp, reduction.AllOp, reduction.NormOp, reduction.LogsumexpOp),
    NormalizeOp,
)
FORMS: dict[type[Op], Forms] = {
    DotGeneralOp: PRODUCT,
    ConvOp: CONVOLUTION,
    ConvInputGradientOp: INPUT_GRADIENT,
    ConvWeightGradientOp: WEIGHT_GRADIENT,
    SoftmaxOp: SOFTMAX,
    **dict.fromkeys(REDUCTIONS, REDUCTION),
}


def form_of(op: Any, wide: bool = False) -> str:
    """The form that an op is lowered in: that of its attribute, else the rule's, for a target with
    wide vectors or another. Raises PassError at the op for a form that is not right for it.
    """
    attributes = op.operation.attributes
    if ATTRIBUTE not in attributes:
        return FORMS[type(op)].rule(op, wide)
    given = attributes[ATTRIBUTE]
    name = given.value if isinstance(given, ir.StringAttr) else str(given)
    valid = FORMS[type(op)].valid(op) if type(op) in FORMS else []
    if name not in valid:
        expected = f"to be one of {', '.join(valid)}" if valid else "on ops that have forms only"
        message = f"'{op.OPERATION_NAME}' op expected {ATTRIBUTE} {expected}, got '{name}'"
        raise failure([(op.location, message)])
    return name


def choices(op: Any, wide: bool = True) -> list[str]:
    """The forms that are right for an op, the plain one first; none for ops without forms."""
    valid = FORMS[type(op)].valid(op) if type(op) in FORMS else []
    return [form for form in valid if wide or form != DIRECT]


def described(op: Any) -> str:
    """An op without the values that it reads: its name, attributes and types."""
    attributes = ", ".join(f"{k} = {v}" for k, v in sorted(op.read_attributes().items()))
    types = [", ".join(map(str, specs)) for specs in (op.operand_specs(), op.result_specs())]
    return f"{op.MNEMONIC}({types[0]}) {{{attributes}}} -> {types[1]}"


def group_of(op: Any) -> str:
    """The name of the ops that are equal but for the values that they read, the same in every
    process: `conv.3f2a9c01d4e5`.
    """
    return f"{op.MNEMONIC}.{hashlib.sha256(described(op).encode()).hexdigest()[:12]}"
