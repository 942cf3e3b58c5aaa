# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What the backward of a function keeps: `go.residuals` and `go.print_residuals`."""

import dataclasses
from collections.abc import Callable
from typing import Any

from ..dialect import trees
from ..dialect.control import symbols
from ..dialect.creation import ones_like
from ..dialect.graph import function_name, trace
from ..dialect.mlir import func, ir, location
from ..dialect.transform import vjp
from ..dialect.types import TensorSpec, is_float
from . import pipeline
from .inline import callee_of
from .partition import Joint, kept_values


@dataclasses.dataclass(frozen=True)
class Residual:
    """A value that a backward keeps: its name and type, `why` (an argument, or the output of which
    op), and `file:line` of what made it; an argument has none.
    """

    name: str
    spec: TensorSpec
    nbytes: int
    why: str
    source: str

    def __str__(self) -> str:
        where = f" at {self.source}" if self.source else ""
        return f"{self.spec} {self.nbytes:,} bytes: {self.why}{where}"


def residuals(fn: Callable[..., Any], *arguments: Any) -> list[Residual]:
    """What the backward of `fn` keeps for arguments like these (arrays, TensorSpecs, or trees of
    them): the fewest bytes that its gradients can be computed from without computing anything
    costly twice, arguments first.
    """

    def both(*primals: Any) -> Any:
        values, pullback = vjp(fn, *primals)
        leaves, structure = trees.flatten(values)
        cts = [ones_like(v) if is_float(v.dtype) else None for v in leaves]
        return pullback(trees.unflatten(structure, cts))

    graph = trace(both, *arguments, name=f"{function_name(fn)}_residuals")
    with graph.context:
        pipeline.run(graph.module, "gradopt-differentiate")
        calls = [op for op in graph.func.entry_block.operations if isinstance(op, func.CallOp)]
        derived = callee_of(calls[-1])
        # the call goes with symbol-dce; what it calls is asked about here
        pipeline.run(graph.module, f"gradopt-inline,{pipeline.STAGES['simplified']}")
        joint = Joint(symbols(graph.module)[derived])
        return [
            Residual(
                k.name,
                TensorSpec.from_mlir(k.value.type),
                k.nbytes,
                k.why,
                "" if isinstance(k.value.owner, ir.Block) else _line(k.value.owner.location),
            )
            for k in kept_values(joint)
        ]


def _line(where: ir.Location) -> str:
    return location(where).rsplit(":", 1)[0]


def print_residuals(fn: Callable[..., Any], *arguments: Any) -> None:
    """Print `residuals`, a line each."""
    for residual in residuals(fn, *arguments):
        print(residual)
