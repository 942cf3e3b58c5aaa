# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Binding a graph to a target: from a graph and options to something that can be called."""

from collections.abc import Callable, Sequence

from ..dialect.control import symbols
from ..dialect.graph import Graph
from ..dialect.mlir import func
from ..lowering.bufferize import mark_donated, mark_static, storage_of_results, unmark
from ..lowering.target import Target
from . import log
from .executable import Executable
from .modules import module_for


def bind(
    graph: Graph,
    target: Target,
    *,
    donated: Sequence[int] = (),
    static_alloc: bool = False,
    remat: str = "",
    disk_cache: bool = True,
    watch: Callable[..., Executable] | None = None,
) -> Executable:
    """A graph compiled for a target; `donated` are positions of inputs. `watch` is called instead
    where somebody watches (monitor.py).
    """
    if watch is not None:
        return watch(
            graph,
            target,
            donated=donated,
            static_alloc=static_alloc,
            remat=remat,
            disk_cache=disk_cache,
        )
    log.about_to_bind(graph, target)
    with graph.context:
        function = symbols(graph.module)[graph.name]
        is_static = mark(function, donated, static_alloc)
        places = storage_of_results(function)
        try:
            if target.name == "jit":
                from .jit import JitExecutable

                return log.logged(JitExecutable(graph, target, list(donated), is_static, remat))
            module = module_for(graph, target, disk_cache, remat)
        finally:
            unmark(function)  # the graph may be compiled with other options
    return log.logged(Executable(graph, module, list(donated), places, is_static))


def mark(function: func.FuncOp, donated: Sequence[int], static_alloc: bool) -> bool:
    """Write the options into a graph's function; whether allocation is static, which it cannot be
    with extents that only a call knows.
    """
    mark_donated(function, donated)
    return static_alloc and mark_static(function)
