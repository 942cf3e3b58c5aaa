# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-decompose: composite ops (softmax, norms, attention, ...) written in simpler ones.

A composite op says by its `decompose` what it is made of. The gradient pass uses it for ops without
a gradient rule of their own, the pipeline for ops without a lowering of their own.
"""

from collections.abc import Callable, Sequence
from typing import Any

from ..dialect.base import OPS, Op, is_composite, wrap
from ..dialect.builder import Builder
from ..dialect.control import symbols
from ..dialect.mlir import ir
from ..errors import OpError, PipelineError
from .linalg import is_lowered
from .passes import failure, gradopt_pass


@gradopt_pass("gradopt-decompose")
def decompose(module: ir.Module, *, ops: str = "", keep_lowered: bool = False) -> None:
    """Write composite ops in simpler ones: all, those named in `ops` (as softmax+attention), or
    with keep-lowered those that have no lowering to linalg of their own.
    """
    names = set(filter(None, ops.split("+")))
    if unknown := sorted(n for n in names if not is_composite(OPS.get(n))):
        known = ", ".join(sorted(n for n, op in OPS.items() if is_composite(op)))
        raise PipelineError(
            f"option 'ops' of pass 'gradopt-decompose' expected composite ops out of: {known}, "
            f"got {', '.join(map(repr, unknown))}"
        )

    def chosen(op: type[Op]) -> bool:
        return (not names or op.MNEMONIC in names) and not (keep_lowered and is_lowered(op))

    for function in symbols(module).values():
        if not function.is_external:
            for block in function.body.blocks:
                expand(block, chosen)


def needs_rule(op: type[Op]) -> bool:
    """True for ops that are differentiated through what they are made of."""
    return not hasattr(op, "vjp")


def expand(
    block: ir.Block, chosen: Callable[[type[Op]], bool], kept: Sequence[ir.Value] = ()
) -> list[ir.Value]:
    """Replace the chosen composite ops of a block until none is left; returns what stands for the
    values in `kept`, which are not yet used by an op.
    """
    values = list(kept)
    while composite := [op for op in block.operations if _is_chosen(op, chosen)]:
        for op in composite:
            results = op.operation.results
            replaced = dict(zip(results, _written_out(op), strict=True))
            values = [replaced.get(v, v) for v in values]
            for old, new in replaced.items():
                old.replace_all_uses_with(new)
            op.operation.erase()
    return values


def _is_chosen(op: Any, chosen: Callable[[type[Op]], bool]) -> bool:
    return isinstance(op, Op) and is_composite(type(op)) and chosen(type(op))


def _written_out(op: Any) -> list[ir.Value]:
    """The values that `op` is made of, built in front of it."""
    with Builder(ir.InsertionPoint(op), op.location):
        try:
            operands = [wrap(o) for o in op.operation.operands]
            found = type(op).decompose(*operands, **op.read_attributes())
        except OpError as error:
            raise failure([(op.location, str(error))]) from error
    found = found if isinstance(found, tuple | list) else [found]
    results = [ir.Value(v) for v in found]  # Tensors cannot be keys
    types = [r.type for r in op.operation.results]
    if (got := [r.type for r in results]) != types:
        expected = ", ".join(map(str, types))
        message = f"'{op.OPERATION_NAME}' op expected its decomposition to give {expected}"
        raise failure([(op.location, f"{message}, got {', '.join(map(str, got))}")])
    return [ir.Value(r) for r in results]  # Tensors cannot be looked up in a table
