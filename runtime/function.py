# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""go.compile: Python functions and graphs as compiled functions, one module for each signature they
are called with.
"""

import functools
import threading
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..dialect import trees
from ..dialect.control import symbols
from ..dialect.creation import as_array
from ..dialect.graph import Graph, spec_of, trace
from ..dialect.mlir import ir
from ..dialect.tensor import Tensor
from ..errors import ArgumentError, OpError, TraceError
from ..lowering import memory_report, pipeline, plan_memory
from ..lowering.bufferize import storage_of_results
from ..lowering.rematerialize import POLICIES
from ..lowering.target import Target
from ..lowering.target import target as find_target
from .arguments import check_types, not_arrays, positional
from .binding import bind, mark
from .budget import settled
from .compiler import plan_linalg
from .device import Array
from .executable import Executable
from .memory import MemoryReport


def compile(  # noqa: A001 - go.compile
    fn: Callable[..., Any] | Graph | None = None,
    *,
    target: str = "cpu",
    donate: int | Sequence[int] = (),
    static_alloc: bool = False,
    memory_budget: float | int | str | None = None,
    remat: str | None = None,
    disk_cache: bool = True,
) -> Any:
    """Compile a Python function or a graph for a target; the result is called like the function.

    Targets are `cpu`, by IREE, and `jit`, the host JIT that proves memory plans (docs/memory.md).

    The function is traced once for each structure and type of its arguments, which are arrays,
    numbers, or nested containers of them. Results are `Array`s, which NumPy reads in place. A
    compiled Python function called in a trace becomes part of what is traced.
    `donate` lists positions of arguments that the caller gives up: results of the same types are
    written into their storage, without allocating, and the donated arrays cannot be used again.
    `memory_budget`, bytes (1_000_000, "12MiB") or a fraction of what the function needs (0.5),
    makes it compute values anew instead of keeping them, as little as fits; PassError where it
    cannot.
    `remat="cheap"` does so for whatever is cheap to compute, "all" for all values.
    With `static_alloc=True` calls allocate nothing once the first has run: temporaries live in one
    arena that every call uses again, and a result's memory is used again when the array and every
    NumPy view of it are gone. With `disk_cache=False` the compiled module is not kept for other
    processes. Can be used as a decorator.
    """
    if fn is not None and not callable(fn) and not isinstance(fn, Graph):
        raise ArgumentError(f"expected a function or a Graph to compile, got {fn!r:.60}")
    if fn is None:
        return functools.partial(
            compile,
            target=target,
            donate=donate,
            static_alloc=static_alloc,
            memory_budget=memory_budget,
            remat=remat,
            disk_cache=disk_cache,
        )
    donated = (donate,) if isinstance(donate, int) else tuple(donate)
    if not all(isinstance(position, int) for position in donated):
        raise ArgumentError(f"donate expected positions of arguments, got {donate!r}")
    options = rematerialization(memory_budget, remat)
    return CachedFunction(fn, find_target(target), donated, disk_cache, static_alloc, options)


def rematerialization(memory_budget: Any = None, remat: str | None = None) -> str:
    """The options of gradopt-rematerialize for those of `compile`; empty where it is not to run."""
    if memory_budget is None and remat is None:
        return ""
    if memory_budget is not None and remat is not None:
        raise ArgumentError("expected memory_budget or remat, got both")
    if remat is not None:
        if remat not in POLICIES:
            raise ArgumentError(f"remat expected one of {', '.join(POLICIES)}, got {remat!r}")
        return f"policy={remat}"
    if isinstance(memory_budget, str):
        return f"budget={''.join(memory_budget.split())}"
    if isinstance(memory_budget, float) and 0 <= memory_budget <= 1:
        return f"budget={memory_budget:.12f}"
    if isinstance(memory_budget, bool) or not isinstance(memory_budget, int) or memory_budget < 0:
        expected = "memory_budget expected bytes, or a fraction from 0.0 to 1.0"
        raise ArgumentError(f"{expected}, got {memory_budget!r}")
    return f"budget={memory_budget}"


class CachedFunction:
    """A function compiled when it is called, once for each signature; safe to call from several
    threads.
    """

    def __init__(
        self,
        fn: Callable[..., Any] | Graph,
        target: Target,
        donate: tuple[int, ...],
        disk_cache: bool,
        static_alloc: bool = False,
        remat: str = "",
    ) -> None:
        if not isinstance(fn, Graph):
            functools.update_wrapper(self, fn)
        elif not fn.input_names:
            raise TraceError(
                f"expected a graph with at least one input to compile, got none in '{fn.name}'"
            )
        self.fn = fn
        self.target = target
        self.donate = donate
        self.disk_cache = disk_cache
        self.remat = remat
        self.static_alloc = static_alloc
        self._warned = False
        self._bound: dict[Any, Executable] = {}
        self._lock = threading.Lock()

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        if keywords:
            arguments = positional(self.fn, arguments, keywords)
        leaves, structure = trees.flatten(arguments)
        try:
            leaves = [x if type(x) in (np.ndarray, Array) else as_array(x) for x in leaves]
        except OpError:
            if not isinstance(self.fn, Graph) and any(isinstance(x, Tensor) for x in leaves):
                return self.fn(*arguments)  # in a trace: part of what is being built
            raise not_arrays(self.fn, arguments) from None
        key = (structure, *((leaf.shape, leaf.dtype) for leaf in leaves))
        executable = self._bound.get(key)
        if executable is None:
            with self._lock:
                executable = self._bound.get(key) or self._bind(key, arguments)
        return executable(leaves)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Of a decorated method: with the instance as its first argument."""
        return self if instance is None else types.MethodType(self, instance)

    def trace(self, *specs: Any) -> Graph:
        """The graph for arguments like `specs` (TensorSpec, or arrays that stand for their
        type).
        """
        if isinstance(self.fn, Graph):
            self.fn.finish()
            return self.fn
        return trace(self.fn, *specs)

    def mlir(self, stage: str, *specs: Any) -> str:
        """The IR for arguments like `specs` at a stage: graph, differentiated, simplified,
        rematerialized or linalg; memref, too, for target jit.
        """
        stages = pipeline.stages(self.target, self.remat)
        if stage not in stages:
            raise ArgumentError(f"expected a stage out of {', '.join(stages)}, got '{stage}'")
        graph = self.trace(*specs)
        with graph.context:
            module = ir.Module.parse(graph.mlir(locations=True))
            self._mark(graph, module)
        remat = settled(module, graph.name, self.target, self.remat)
        for name, passes in pipeline.stages(self.target, remat).items():
            pipeline.run(module, passes)
            if name == stage:
                break
        return module.operation.get_asm(use_name_loc_as_prefix=True)

    def memory_report(self, *specs: Any) -> MemoryReport:
        """The memory of a call with arguments like `specs`: what it takes and returns, how donated
        arguments are used again, and what IREE and gradopt need for temporaries.
        """
        graph = self.trace(*specs)
        with graph.context:
            module = ir.Module.parse(graph.mlir(locations=True))
            self._mark(graph, module)
            places = storage_of_results(symbols(module)[graph.name])
            remat = settled(module, graph.name, self.target, self.remat)
            lowered, _ = pipeline.lower(module, self.target, remat)
            text = lowered.operation.get_asm(enable_debug_info=True)
        decided = plan_linalg(text, self.target, graph.name).get(graph.name, {})
        for stage in ("differentiated", "simplified", "rematerialized"):
            pipeline.run(module, pipeline.stages(self.target, remat)[stage])
        with graph.context:
            plan = memory_report.report(plan_memory.plan(symbols(module)[graph.name]))
        return MemoryReport.of(graph, places, decided, plan)

    def _mark(self, graph: Graph, module: ir.Module) -> bool:
        """Write the options into a graph's module; whether allocation is static."""
        return mark(symbols(module)[graph.name], self._donated(graph), self.static_alloc)

    def _bind(self, key: Any, arguments: tuple[Any, ...]) -> Executable:
        graph = self.trace(*arguments)
        if not graph.input_names:
            raise TraceError(
                "expected a function with at least one array among its arguments, got none for "
                f"'{graph.name}'"
            )
        if isinstance(self.fn, Graph):
            check_types(
                graph.name,
                graph.input_names,
                graph.input_specs,
                [spec_of(a) for a in trees.leaves(arguments)],
            )
        self._bound[key] = bind(
            graph,
            self.target,
            donated=self._donated(graph),
            static_alloc=self.static_alloc,
            remat=self.remat,
            disk_cache=self.disk_cache,
        )
        if self.static_alloc and not self._bound[key].is_static and not self._warned:
            self._warned = True
            warnings.warn(
                f"'{graph.name}' has extents that are known only when it is called; it runs "
                "without static_alloc",
                stacklevel=3,
            )
        return self._bound[key]

    def _donated(self, graph: Graph) -> list[int]:
        """The positions of the inputs that the donated arguments consist of."""
        counts = (
            [s.num_leaves for s in graph.in_tree.children()]
            if graph.in_tree
            else [1] * len(graph.input_names)
        )
        for position in self.donate:
            if not 0 <= position < len(counts):
                raise ArgumentError(
                    f"donate expected positions of the {len(counts)} arguments of '{graph.name}', "
                    f"got {position}"
                )
        starts = np.cumsum([0, *counts]).tolist()
        return [i for p in self.donate for i in range(starts[p], starts[p + 1])]
