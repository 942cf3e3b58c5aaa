# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Compiled modules: one of each in a process, found in memory, on disk, or compiled now."""

import threading

from ..dialect.control import symbols
from ..dialect.graph import Graph
from ..dialect.mlir import ir
from ..lowering import pipeline
from ..lowering.bufferize import STATIC, storage_of_results
from ..lowering.target import Target
from . import cache
from .budget import settled
from .compiler import compile_linalg
from .device import Module
from .signature import module_key

_lock = threading.Lock()
_locks: dict[str, threading.Lock] = {}
_modules: dict[str, Module] = {}


def module_for(graph: Graph, target: Target, disk_cache: bool, remat: str = "") -> Module:
    """The compiled form of a graph: from this process's memory, from disk, or compiled now."""
    key = module_key(graph.module.operation.get_asm(), target, remat)
    with _lock:
        lock = _locks.setdefault(key, threading.Lock())
    with lock:  # other threads that want the same module wait; those that want another do not
        if key in _modules:
            cache.count("memory_hits")
        else:
            image = cache.image(
                key, lambda: compile_graph(graph.module, graph.name, target, remat), disk_cache
            )
            _modules[key] = Module(image, target.driver)
        return _modules[key]


def compile_graph(module: ir.Module, name: str, target: Target, remat: str = "") -> bytes:
    """The VMFB of a graph's module, which is lowered in a copy."""
    function = symbols(module)[name]
    is_planned = STATIC in function.attributes or bool(storage_of_results(function))
    lowered, ops = pipeline.lower(module, target, settled(module, name, target, remat))
    with module.context:
        text = lowered.operation.get_asm(enable_debug_info=True)
        return compile_linalg(text, target, name, ops, is_planned)
