# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Binding a graph to a target: from a graph and options to something that can be called."""

from collections.abc import Sequence

from ..dialect.control import symbols
from ..dialect.graph import Graph
from ..dialect.mlir import func
from ..errors import DonationError
from ..lowering.bufferize import mark_donated, mark_static, storage_of_results, unmark
from ..lowering.dispatch_form import in_form
from ..lowering.target import Target
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
    donate_strict: bool = False,
) -> Executable:
    """A graph compiled for a target; `donated` are positions of inputs. With `donate_strict`,
    DonationError where one of them has memory that no result takes over.
    """
    with graph.context:
        function = symbols(graph.module)[graph.name]
        is_static = mark(function, donated, static_alloc)
        places = storage_of_results(function)
        try:
            if donate_strict:
                check_donations(graph, donated, [position for _, position in places])
            if target.name == "jit":
                from .jit import JitExecutable

                return JitExecutable(graph, target, list(donated), is_static, remat)
            module = module_for(graph, in_form(graph.module, target), disk_cache, remat)
        finally:
            unmark(function)  # the graph may be compiled with other options
    return Executable(graph, module, list(donated), places, is_static)


def mark(function: func.FuncOp, donated: Sequence[int], static_alloc: bool) -> bool:
    """Write the options into a graph's function; whether allocation is static, which it cannot be
    with extents that only a call knows.
    """
    mark_donated(function, donated)
    return static_alloc and mark_static(function)


def check_donations(graph: Graph, donated: Sequence[int], taken: Sequence[int | None]) -> None:
    """Raise DonationError for a donated input that is not among those taken over by a result."""
    for i in donated:
        if i in taken:
            continue
        name, spec = graph.input_names[i], graph.input_specs[i]
        if None in spec.shape:
            reason = "its extents are known only when it is called"
        elif spec in graph.output_specs:
            reason = "all results of that type take over other donated arguments"
        else:
            reason = "no result has that type"
        raise DonationError(
            f"'{graph.name}' expected a result to take over the memory of donated argument "
            f"'{name}' of type {spec}, but {reason}; do not donate it, or leave donate_strict away"
        )
