# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Mixed precision of products: operands rounded to 16 bits, sums and results in float32.

Matrix products, convolutions and attention have an attribute `precision`, "bfloat16" or "float16",
which `go.autocast` sets. Operands and results stay float32, and so do cotangents and gradients:
rounding is part of each product, forward and backward, and counts as the identity in derivatives.
Nothing is rounded twice, as it is where a product gives 16 bits.
"""

from typing import Any

import numpy as np

from .base import Op
from .modes import autocast_dtype
from .types import TensorSpec, as_dtype, float32

PRECISIONS = ("bfloat16", "float16")


def current_precision(*operands: Any) -> str:
    """The attribute of a product built here of these tensors: the type of `go.autocast` where all
    are float32, "" where there is none.
    """
    dtype = autocast_dtype()
    return "" if dtype is None or any(x.dtype != float32 for x in operands) else dtype.name


def product_type(op_class: type[Op], operand: TensorSpec, precision: str) -> np.dtype:
    """The element type of a product of operands of one type; OpError where `precision` does not fit
    them.
    """
    if not precision:
        return operand.dtype
    if precision not in PRECISIONS:
        raise op_class.error("precision to be '', 'bfloat16' or 'float16'", f"'{precision}'")
    if operand.dtype not in (float32, as_dtype(precision)):
        raise op_class.error(
            f"operands of float32 or {precision} for precision '{precision}'",
            operand,
            "convert them, or leave precision away",
        )
    return float32


def rounded(precision: str, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """The operands of a reference as the product takes them."""
    if not precision:
        return arrays
    return tuple(x.astype(as_dtype(precision)).astype(x.dtype) for x in arrays)


def in_type_of(operand: Any, x: Any) -> Any:
    """`x`, a cotangent or gradient, in the type of a product's operand: they differ where the
    operands were narrow and the result is float32.
    """
    return x if x.dtype == operand.dtype else x.astype(operand.dtype)
