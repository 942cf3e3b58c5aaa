# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The only place that imports MLIR's Python bindings, so that another distribution of them is a
change of one file.
"""

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

from torch_mlir import ir, passmanager
from torch_mlir.dialects import ext, func, irdl

from ..errors import Diagnostic

__all__ = [
    "DYNAMIC",
    "ExecutionEngine",
    "arith",
    "cf",
    "diagnostics",
    "ext",
    "func",
    "ir",
    "irdl",
    "linalg",
    "location",
    "math",
    "memref",
    "op_of",
    "passmanager",
    "place",
    "scf",
    "tensor",
]

if TYPE_CHECKING:
    from torch_mlir.dialects import arith, cf, linalg, math, memref, scf, tensor
    from torch_mlir.execution_engine import ExecutionEngine


def __getattr__(name: str) -> Any:
    """What only lowering needs, imported when it is first asked for: linalg alone takes a third of
    the time of all bindings.
    """
    if name == "ExecutionEngine":
        return importlib.import_module("torch_mlir.execution_engine").ExecutionEngine
    if name in __all__:
        return importlib.import_module(f"torch_mlir.dialects.{name}")
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


for _dialect in ("iree_linalg_ext", "iree_tensor_ext", "util"):
    # Dialects of IREE's that the bindings have no classes for: they would look for a module anew
    # each time that one of their ops is read, which took half of the time of some passes.
    sys.modules.setdefault(f"{ext.__package__}.{_dialect}", types.ModuleType(_dialect))

DYNAMIC: int = ir.ShapedType.get_dynamic_size()
"""How MLIR writes an unknown extent (`?`) in a list of integers."""


def diagnostics(error: ir.MLIRError) -> list[Diagnostic]:
    """What MLIR reported, notes left out; nothing where it failed without a word."""
    return [
        Diagnostic(*place(d.location), d.severity.name.lower(), d.message)
        for d in error.error_diagnostics
    ]


def place(loc: ir.Location) -> tuple[str, int, int]:
    """(file, line, column) of a location, looking through names, fusions and call sites; ("", 0, 0)
    where there is none.
    """
    with loc.context:
        loc = ir.Location.from_attr(loc.attr)  # diagnostics give locations without their kind
    while True:
        if isinstance(loc, ir.FileLineColLoc):
            return loc.filename, loc.start_line, loc.start_col
        if isinstance(loc, ir.NameLoc):
            loc = loc.child_loc
        elif isinstance(loc, ir.CallSiteLoc):
            loc = loc.callee
        elif isinstance(loc, ir.FusedLoc) and loc.locations:
            loc = loc.locations[0]
        else:
            return "", 0, 0


def op_of(value: ir.Value) -> Any:
    """The op that makes a value; None for an argument."""
    return None if isinstance(value.owner, ir.Block) else value.owner.opview


def location(loc: ir.Location) -> str:
    """`file:line:col` of a location; `<unknown>` where there is none."""
    file, line, column = place(loc)
    return f"{file}:{line}:{column}" if file else "<unknown>"
