# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How a compiled function runs on the host: on the caller's thread, or on IREE's workers, behind
fences.

Measured on IREE 3.13, a function of one dispatch: 2.4 microseconds on the caller's thread
(local-sync); 14 to 40 on workers (local-task), most of it for waking a thread up and being woken;
28 in the asynchronous form where each call is waited for, but 7 a call where calls are not. So what
takes about as long as that is run on the caller's thread, and all else asynchronously. Both read
and write the same memory.
"""

import dataclasses
import os

from ..dialect.control import DerivativeOp, symbols
from ..dialect.mlir import ir
from ..dialect.types import TensorSpec
from ..errors import ArgumentError
from . import costs
from .target import Target

INLINE_SECONDS = 50e-6
"""What runs on the caller's thread, by the estimate of costs.py, which is about twice the time that
products take there: up to 25 microseconds, what workers cost.
"""
DERIVATIVE = 4
"""How many times the work of a function its derivative is taken for."""
ASYNC = "--iree-execution-model=async-external"
FORMS = ("inline", "sync", "async")


def in_form(module: ir.Module, target: Target) -> Target:
    """The target as this module is to be compiled for it: with the driver and flags of its form,
    which GRADOPT_DISPATCH names where it is not to be chosen by the work.
    """
    if target.driver != "local-task" or not target.ladder:
        return target
    form = os.environ.get("GRADOPT_DISPATCH") or chosen(module)
    if form not in FORMS:
        raise ArgumentError(f"GRADOPT_DISPATCH expected one of {', '.join(FORMS)}, got '{form}'")
    if form == "inline":
        return dataclasses.replace(target, driver="local-sync")
    return dataclasses.replace(target, flags=(*target.flags, ASYNC)) if form == "async" else target


def chosen(module: ir.Module) -> str:
    """The form for the work that a module does; asynchronous where that is known only at run
    time.
    """
    seconds, derivatives = 0.0, 0
    for function in symbols(module).values():
        for op in [] if function.is_external else function.entry_block.operations:
            if any(_is_unknown(v.type) for v in op.operation.results):
                return "async"
            seconds += costs.cost(op).seconds
            derivatives += isinstance(op, DerivativeOp)
        if seconds > INLINE_SECONDS:
            break
    return "inline" if seconds * DERIVATIVE**derivatives <= INLINE_SECONDS else "async"


def _is_unknown(kind: ir.Type) -> bool:
    return isinstance(kind, ir.RankedTensorType) and None in TensorSpec.from_mlir(kind).shape
