# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Binding a graph to a target: from a graph and options to something that can be called."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..dialect.control import symbols
from ..dialect.function_graph import FunctionGraph
from ..dialect.graph import Graph
from ..dialect.mlir import func
from ..errors import DonationError
from ..lowering.dispatch_form import in_form
from ..lowering.marks import (
    TEMPORARIES,
    is_large,
    mark_donated,
    mark_static,
    mark_temporaries,
    storage_of_results,
    unmark,
)
from ..lowering.target import Target
from . import log
from .cache import COMPILED
from .executable import Executable
from .modules import module_for
from .signature import Signature, of_graph
from .why import History


def bind(
    graph: Graph | FunctionGraph,
    target: Target,
    *,
    donated: Sequence[int] | Mapping[int, int] = (),
    static_alloc: bool = False,
    remat: str = "",
    disk_cache: bool = True,
    donate_strict: bool = False,
    tune: bool | str = False,
    parts: Mapping[str, Any] | None = None,
    history: History | None = None,
    watch: Callable[..., Executable] | None = None,
) -> Executable:
    """A graph compiled for a target; `donated` are positions of inputs, or a mapping of them to the
    results that take over their memory; with `donate_strict`, DonationError where one of them has
    memory that no result takes over; `tune` as in go.compile.

    `parts` is what else the key consists of, by name, such as {"mode": "train"}; each part that
    changes is named by `why()`. The miss is noted in `history`. `watch` is called instead where
    somebody watches (monitor.py).
    """
    if tune:
        from .tune import tuned

        about = {"static_alloc": static_alloc, "remat": remat, "parts": parts}
        untuned = signature_of(graph, target, donated=donated, **about)
        target = tuned(graph, target, tune, untuned, remat)
    if watch is not None:
        return watch(
            graph,
            target,
            donated=donated,
            static_alloc=static_alloc,
            remat=remat,
            disk_cache=disk_cache,
            donate_strict=donate_strict,
            parts=parts,
            history=history,
        )
    log.about_to_bind(graph, target)
    with graph.lock, graph.context:  # a graph may be bound by several threads, with other options
        function = symbols(graph.module)[graph.name]
        is_static = mark(function, donated, static_alloc, target, remat)
        places = storage_of_results(function)
        try:
            if donate_strict:
                check_donations(graph, donated, [position for _, position in places])
            target = in_form(graph.module, target)
            about = {**options(graph, donated, is_static, remat), **(parts or {})}
            signature = of_graph(graph, target, about, history.origin if history else "")
            if not target.ladder:
                found = _in_process(
                    graph, target, list(donated), bool(is_static), remat, signature, history
                )
                return log.logged(found)
            module = module_for(graph, target, disk_cache, remat, signature, history)
        finally:
            unmark(function)
    arenas = module.home.arenas() if is_static == TEMPORARIES else None
    return log.logged(Executable(graph, module, list(donated), places, bool(is_static), arenas))


def signature_of(
    graph: Graph | FunctionGraph,
    target: Target,
    *,
    donated: Sequence[int] | Mapping[int, int] = (),
    static_alloc: bool = False,
    remat: str = "",
    parts: Mapping[str, Any] | None = None,
) -> Signature:
    """The signature that `bind` would find a graph's module under."""
    with graph.lock, graph.context:
        function = symbols(graph.module)[graph.name]
        try:
            is_static = mark(function, donated, static_alloc, target, remat)
            about = {**options(graph, donated, is_static, remat), **(parts or {})}
            return of_graph(graph, in_form(graph.module, target), about)
        finally:
            unmark(function)


def _in_process(
    graph: Graph | FunctionGraph,
    target: Target,
    donated: list[int],
    is_static: bool,
    remat: str,
    signature: Signature,
    history: History | None,
) -> Executable:
    """A graph compiled by the host JIT, or run by NumPy, which keep nothing."""
    start = time.perf_counter()
    if target.name == "reference":
        from .interpreted import ReferenceExecutable

        found: Executable = ReferenceExecutable(graph, target, donated, is_static)
    else:
        from .jit import JitExecutable

        found = JitExecutable(graph, target, donated, is_static, remat)
    if history is not None:
        why = f"not asked, as target {target.name} keeps nothing"
        history.add(signature, COMPILED, why, time.perf_counter() - start)
    return found


def options(
    graph: Graph | FunctionGraph,
    donated: Sequence[int] | Mapping[int, int],
    is_static: bool | str,
    remat: str,
) -> dict[str, Any]:
    """The parts of a key that options of go.compile are."""
    kind, _, value = remat.partition("=")
    return {
        "option donate": [graph.input_names[i] for i in donated],
        "option static_alloc": is_static,
        "option memory_budget": value if kind == "budget" else "",
        "option remat": value if kind == "policy" else "",
    }


def mark(
    function: func.FuncOp,
    donated: Sequence[int] | Mapping[int, int],
    static_alloc: bool,
    target: Target,
    remat: str,
) -> bool | str:
    """Write the options into a graph's function; whether allocation is static, which it cannot be
    with extents that only a call knows. TEMPORARIES where it is so only for these: in large
    functions on the host, where nobody asks for it; but not with options of recomputation, which
    are for the arena then.
    """
    mark_donated(function, donated)
    if static_alloc:
        return mark_static(function)
    is_of_host = target.family == "cpu" and bool(target.ladder)
    return is_of_host and not remat and is_large(function) and mark_temporaries(function)


def check_donations(
    graph: Graph | FunctionGraph,
    donated: Sequence[int] | Mapping[int, int],
    taken: Sequence[int | None],
) -> None:
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
