# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-product-forms: products of 16-bit floats in the fastest form of a target.

A target multiplies a narrow type itself, or it does not: then its operands are widened to float32
where they are made, which is exact, and IREE's float32 kernels do the rest. Measured on IREE 3.13
and Zen 4: AVX512-BF16 makes products of bfloat16 summed in float32 twice as fast as those of
float32; of float16, which has no such unit, named products are slower than float32
(docs/precision.md has the figures).
"""

from collections.abc import Callable
from typing import Any

from ..dialect.base import wrap
from ..dialect.builder import Builder
from ..dialect.contraction import DotGeneralOp
from ..dialect.control import symbols
from ..dialect.convolution import ConvolutionLike
from ..dialect.logic import ConvertOp
from ..dialect.mlir import ir, op_of
from ..dialect.precision import PRECISIONS
from ..dialect.types import as_dtype, float32, is_narrow
from ..errors import PipelineError
from .passes import gradopt_pass

PRODUCTS = (DotGeneralOp, ConvolutionLike)


@gradopt_pass("gradopt-product-forms")
def product_forms(module: ir.Module, *, native: str = "bfloat16+float16") -> None:
    """Write products with a `precision`, and those of 16-bit floats, for a target that multiplies
    the types in `native` itself, and widens the others.

    Operands are rounded once for all products that read them. A product of operands that were
    widened from a native type reads them as they were.
    """
    types = tuple(filter(None, native.split("+")))
    if unknown := sorted(set(types) - set(PRECISIONS)):
        raise PipelineError(
            "option 'native' of pass 'gradopt-product-forms' expected types out of: "
            f"{', '.join(PRECISIONS)}, joined by '+', got {', '.join(map(repr, unknown))}"
        )
    for block in _blocks(module):
        Forms(types).rewrite(block)


def round_operands(module: ir.Module) -> None:
    """Write out the rounding of float32 operands by `precision`, and leave all else as it is: what
    a lowering needs.
    """
    for block in _blocks(module):
        Forms(PRECISIONS, lambda op: op.precision != "").rewrite(block)


def _blocks(module: ir.Module) -> list[ir.Block]:
    functions = [f for f in symbols(module).values() if not f.is_external]
    return [block for f in functions for block in f.body.blocks]


class Forms:
    """The rewrite of the chosen products of one block, with the converted operands that it has made
    so far.
    """

    def __init__(
        self, native: tuple[str, ...], chosen: Callable[[Any], bool] = lambda op: True
    ) -> None:
        self.native = native
        self.chosen = chosen
        self.converted: dict[tuple[ir.Value, str], Any] = {}

    def rewrite(self, block: ir.Block) -> None:
        """Give each chosen product its form."""
        for op in list(block.operations):
            if isinstance(op, PRODUCTS) and self.chosen(op):
                with Builder(ir.InsertionPoint(op), op.location):
                    new = self._form(op)
                if new is not None:
                    op.operation.results[0].replace_all_uses_with(ir.Value(new))
                    op.operation.erase()

    def _form(self, op: Any) -> Any:
        """What stands for the result of a product; None where it has its form."""
        operands = [wrap(o) for o in op.operation.operands]
        dtype, precision = operands[0].dtype, op.precision
        result = op.result_specs()[0].dtype
        narrow = precision or (dtype.name if is_narrow(dtype) else _widened_from(operands))
        if not narrow or (narrow not in self.native and dtype == float32 and not precision):
            return None
        is_native = narrow in self.native
        if is_native and dtype.name == narrow:
            return None
        rounded = [self._in(x, narrow) for x in operands]
        final = rounded if is_native else [self._in(x, "float32") for x in rounded]
        attributes = op.read_attributes() | {"precision": narrow if is_native else ""}
        y = type(op).emit(*final, **attributes)
        return y if y.dtype == result else y.astype(result)

    def _in(self, x: Any, dtype: str) -> Any:
        """`x` in another type, converted once in the block; as it was where it was widened."""
        if x.dtype.name == dtype:
            return x
        value = ir.Value(x)
        made = op_of(value)
        is_exact = is_narrow(as_dtype(dtype))  # widened, and back
        if is_exact and isinstance(made, ConvertOp) and made.x.dtype.name == dtype:
            return made.x
        key = value, dtype
        if key not in self.converted:
            self.converted[key] = x.astype(dtype)
        return self.converted[key]


def _widened_from(operands: list[Any]) -> str:
    """The narrow type that all operands of float32 were converted from; "" where there is none."""
    found = set()
    for x in operands:
        made = op_of(ir.Value(x))
        if x.dtype != float32 or not isinstance(made, ConvertOp) or not is_narrow(made.x.dtype):
            return ""
        found.add(made.x.dtype.name)
    return found.pop() if len(found) == 1 else ""
