# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""A function of a module that passes have made, as a graph that can be compiled."""

import threading
from typing import Any

from .control import argument_names, signature, symbols
from .mlir import ir


class FunctionGraph:
    """A finished function: what of `Graph` compiling it needs. Arguments and results are flat."""

    in_tree = None
    out_tree = None

    def __init__(self, module: ir.Module, name: str) -> None:
        self.module = module
        self.context = module.context
        self.name = name
        self.lock = threading.RLock()
        function = symbols(module)[name]
        self.input_names = argument_names(function)
        self.input_specs, self.output_specs = signature(function)

    def finish(self) -> Any:
        """The function."""
        return symbols(self.module)[self.name]

    def mlir(self, locations: bool = False) -> str:
        """The module as text, with source locations on request."""
        return self.module.operation.get_asm(
            use_name_loc_as_prefix=True, enable_debug_info=locations
        )
