# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Binding a graph to a target: from a graph and options to something that can be called."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..dialect.control import symbols
from ..dialect.graph import Graph
from ..dialect.mlir import func
from ..lowering.bufferize import mark_donated, mark_static, storage_of_results, unmark
from ..lowering.target import Target
from .executable import Executable
from .modules import module_for
from .signature import of_graph
from .why import History


def bind(
    graph: Graph,
    target: Target,
    *,
    donated: Sequence[int] = (),
    static_alloc: bool = False,
    remat: str = "",
    disk_cache: bool = True,
    parts: Mapping[str, Any] | None = None,
    notes: Mapping[str, Any] | None = None,
    origin: str = "",
    history: History | None = None,
) -> Executable:
    """A graph compiled for a target; `donated` are positions of inputs.

    `parts` is what else the key consists of, `notes` what `why()` is to know beside, `origin` whose
    graph it is, and `history` where a miss is noted (signature.py).
    """
    with graph.context:
        function = symbols(graph.module)[graph.name]
        is_static = mark(function, donated, static_alloc)
        places = storage_of_results(function)
        try:
            if target.name == "jit":
                from .jit import JitExecutable

                return JitExecutable(graph, target, list(donated), is_static, remat)
            options = {
                "option donate": [graph.input_names[i] for i in donated],
                "option static_alloc": is_static,
                "option rematerialize": remat,
            }
            signature = of_graph(graph, target, {**options, **(parts or {})}, notes, origin)
            module = module_for(graph, target, disk_cache, remat, signature, history)
        finally:
            unmark(function)  # the graph may be compiled with other options
    return Executable(graph, module, list(donated), places, is_static)


def mark(function: func.FuncOp, donated: Sequence[int], static_alloc: bool) -> bool:
    """Write the options into a graph's function; whether allocation is static, which it cannot be
    with extents that only a call knows.
    """
    mark_donated(function, donated)
    return static_alloc and mark_static(function)
