# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Compiled modules: one of each in a process, found in memory, on disk, or compiled now.

A module lives as long as something that was bound to it; those used last live on, so that a
function that is compiled again and again, under the same key, costs nothing.
"""

import collections
import logging
import threading
import time
import weakref
from collections.abc import Callable

from ..dialect.control import symbols
from ..dialect.function_graph import FunctionGraph
from ..dialect.graph import Graph
from ..dialect.mlir import ir
from ..lowering.target import Target
from . import cache
from .device import Module
from .present import check_present
from .recent import tables
from .signature import Signature
from .why import History

_log = logging.getLogger("gradopt.cache")

KEPT, KEPT_BYTES = 128, 1 << 28
"""Modules that are kept though nothing is bound to them, and their bytes."""


class Modules:
    """The modules of a process by key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._locks: weakref.WeakValueDictionary[str, threading.Lock] = (
            weakref.WeakValueDictionary()
        )
        self._alive: weakref.WeakValueDictionary[str, Module] = weakref.WeakValueDictionary()
        self._kept: collections.OrderedDict[str, Module] = collections.OrderedDict()

    def find(self, key: str, make: Callable[[], Module]) -> tuple[Module, bool]:
        """The module under a key, or the one that `make` gives; whether it was there. Other threads
        that want the same one wait, those that want another do not.
        """
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            with self._lock:
                found = self._alive.get(key)
            module = make() if found is None else found
            with self._lock:
                self._keep(key, module)
            return module, found is not None

    def _keep(self, key: str, module: Module) -> None:
        self._alive[key] = module
        self._kept[key] = module
        self._kept.move_to_end(key)
        while len(self._kept) > KEPT or sum(m.size for m in self._kept.values()) > KEPT_BYTES:
            self._kept.popitem(last=False)

    def clear(self) -> None:
        """Keep only what something is bound to."""
        with self._lock:
            self._kept.clear()

    def sizes(self) -> list[int]:
        """Bytes of each module in memory."""
        with self._lock:
            return [module.size for module in self._alive.values()]


_modules = Modules()


def clear_cache() -> None:
    """Free the memory of compiled functions: the modules, arenas and pools of all signatures. Calls
    bind them again, from disk where they are there. What is on disk stays (`gradopt-cache clear`).
    """
    for table in tables():
        table.clear()
    _modules.clear()


@cache.tells
def _in_memory() -> dict[str, int]:
    sizes = _modules.sizes()
    return {
        "signatures": sum(map(len, tables())),
        "modules": len(sizes),
        "bytes": sum(sizes),
    }


def module_for(
    graph: Graph | FunctionGraph,
    target: Target,
    disk_cache: bool,
    remat: str,
    signature: Signature,
    history: History | None = None,
) -> Module:
    """The compiled form of a graph: from this process's memory, from disk, or compiled now;
    `history` is told which it was.
    """
    start = time.perf_counter()
    source, disk = cache.MEMORY, ""
    key = signature.key if disk_cache else ""

    def make() -> Module:
        nonlocal source, disk
        found = cache.find(
            signature.key,
            lambda: compile_graph(graph.module, graph.name, target, remat, key),
            disk_cache,
            signature.about(),
        )
        source, disk = found.source, found.disk
        check_present(target)
        return Module(found.image, target.driver)

    module, was_there = _modules.find(signature.key, make)
    if was_there:
        cache.count(cache.MEMORY)
        _log.debug("'%s' found in memory: %s", graph.name, signature.key)
    if history is not None:
        history.add(signature, source, disk, time.perf_counter() - start)
    return module


def compile_graph(
    module: ir.Module, name: str, target: Target, remat: str = "", key: str = ""
) -> bytes:
    """The VMFB of a graph's module, which is lowered in a copy; `key` as in compile_linalg."""
    from ..lowering import pipeline  # a module that is found on disk needs no compiler
    from ..lowering.marks import STATIC, storage_of_results
    from .budget import settled
    from .compiler import compile_linalg

    function = symbols(module)[name]
    is_planned = STATIC in function.attributes or bool(storage_of_results(function))
    lowered, ops = pipeline.lower(module, target, settled(module, name, target, remat))
    with module.context:
        text = lowered.operation.get_asm(enable_debug_info=True)
        return compile_linalg(text, target, name, ops, is_planned, key=key)
