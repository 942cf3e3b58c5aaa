# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""go.compile: Python functions and graphs as compiled functions, one module for each signature they
are called with.
"""

import functools
import json
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
from ..errors import ArgumentError, DonationError, OpError, TraceError
from ..lowering import memory_report, pipeline, plan_memory
from ..lowering.bufferize import STATIC, mark_donated, mark_static, storage_of_results, unmark
from ..lowering.rematerialize import POLICIES
from ..lowering.target import Target
from ..lowering.target import target as find_target
from . import cache
from .arguments import check_types, not_arrays, positional
from .compiler import compile_linalg, plan_linalg
from .device import (
    Array,
    Donation,
    Lease,
    Module,
    allocate,
    allocate_arena,
    borrow,
    can_borrow,
    contents,
    fill,
)
from .memory import MemoryReport
from .signature import module_key

_lock = threading.Lock()
_locks: dict[str, threading.Lock] = {}
_modules: dict[str, Module] = {}


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
        for name, passes in stages.items():
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
            lowered, _ = pipeline.lower(module, self.target, self.remat)
            text = lowered.operation.get_asm(enable_debug_info=True)
        decided = plan_linalg(text, self.target, graph.name).get(graph.name, {})
        for stage in ("differentiated", "simplified", "rematerialized"):
            pipeline.run(module, pipeline.stages(self.target, self.remat)[stage])
        with graph.context:
            plan = memory_report.report(plan_memory.plan(symbols(module)[graph.name]))
        return MemoryReport.of(graph, places, decided, plan)

    def _mark(self, graph: Graph, module: ir.Module) -> bool:
        """Write the options into a graph's module; whether allocation is static."""
        function = symbols(module)[graph.name]
        mark_donated(function, self._donated(graph))
        if not self.static_alloc or mark_static(function):
            return self.static_alloc
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"'{graph.name}' has extents that are known only when it is called; it runs "
                "without static_alloc",
                stacklevel=4,
            )
        return False

    def _bind(self, key: Any, arguments: tuple[Any, ...]) -> "Executable":
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
        with graph.context:
            function = symbols(graph.module)[graph.name]
            is_static = self._mark(graph, graph.module)
            places, donated = storage_of_results(function), self._donated(graph)
            try:
                if self.target.name == "jit":
                    from .jit import JitExecutable

                    self._bound[key] = JitExecutable(graph, self.target, donated, self.remat)
                    return self._bound[key]
                module = module_for(graph, self.target, self.disk_cache, self.remat)
            finally:
                unmark(function)  # the graph may be compiled with other options
        self._bound[key] = Executable(graph, module, donated, places, is_static)
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


# --- compiled modules -----------------------------------------------------------------------------


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
    lowered, ops = pipeline.lower(module, target, remat)
    with module.context:
        text = lowered.operation.get_asm(enable_debug_info=True)
        return compile_linalg(text, target, name, ops, is_planned)


class Executable:
    """A compiled graph with what a call needs to know: types, donated inputs, the memory that calls
    use again, the results' structure.

    Memory that is in use by one call or array is in no pool, so that calls of several threads at
    once each have their own.
    """

    def __init__(
        self,
        graph: Graph,
        module: Module,
        donated: list[int],
        places: list[tuple[int, int | None]],
        is_static: bool,
    ) -> None:
        self.name = graph.name
        self.names = graph.input_names
        self.inputs = graph.input_specs
        self.outputs = graph.output_specs
        self.out_tree = graph.out_tree
        self.module = module
        self.donated = donated
        self.places = places
        self.is_static = is_static
        self.function = module.function(graph.name)
        about = module.about(graph.name)
        self.in_place = _in_place(about)
        self.result_of = {position: result for result, position in places if position is not None}
        self.arena_size = int(about.get("iree.abi.transients.size.constant", 0))
        self.arenas: list[Any] = []
        self.pools: dict[int, list[Any]] = {result: [] for result, _ in places}
        self.staging: dict[int, list[Any]] = {i: [] for i in range(len(self.inputs))}

    def __call__(self, leaves: list[Any]) -> Any:
        call = Call(self)
        try:
            found = call.run(leaves)
        except BaseException:
            call.undo()
            raise
        finally:
            call.close()
        results = [
            Array(view, tuple(view.shape), spec.dtype, lease)
            for (view, lease), spec in zip(found, self.outputs, strict=True)
        ]
        return tuple(results) if self.out_tree is None else trees.unflatten(self.out_tree, results)

    def check_donated(self, leaves: list[Any]) -> None:
        """Raise where an array is donated and given again."""
        arrays = [id(leaf) for leaf in leaves if isinstance(leaf, Array)]
        for i in self.donated:
            if isinstance(leaves[i], Array) and arrays.count(id(leaves[i])) > 1:
                raise DonationError(
                    f"'{self.name}' expected a donated array to be given once, got "
                    f"'{self.names[i]}' also as another argument; "
                    "pass a copy, or do not donate it"
                )


def _in_place(about: dict[str, str]) -> set[int]:
    """The donated inputs that a module may overwrite, from its reflection."""
    found = json.loads(about.get("gradopt.memory", "{}"))
    return {tie["donated"] for tie in found.get("ties", []) if tie["in_place"]}


class Call:
    """One call: the memory it takes from pools and donated arrays, and where that goes after it."""

    def __init__(self, executable: Executable) -> None:
        self.executable = executable
        self.donations: dict[int, Donation] = {}
        self.lent: list[tuple[list[Any], Any]] = []  # pools, and what goes back there at the end
        self.keep: list[Any] = []

    def run(self, leaves: list[Any]) -> list[tuple[Any, Lease | None]]:
        """The results' buffer views, and the leases of those that go back to a pool."""
        e = self.executable
        if e.donated:
            e.check_donated(leaves)
            for i in e.donated:
                if isinstance(leaves[i], Array):
                    self.donations[i] = leaves[i].give_up()
        overwritten: dict[int | None, tuple[Any, Lease | None]] = {}
        arguments = [self._argument(i, leaf, overwritten) for i, leaf in enumerate(leaves)]
        places = [overwritten[p] if p in overwritten else self._place(r) for r, p in e.places]
        arguments += [view for view, _ in places]
        if e.is_static:
            arguments.append(self._borrow(e.arenas, lambda a: allocate_arena(a, e.arena_size)))
        returned = e.module.call(e.function, arguments, len(e.outputs))
        found: list[tuple[Any, Lease | None]] = [(view, None) for view in returned]
        for (result, position), place in zip(e.places, places, strict=True):
            found[result] = place
            if position in self.donations and position not in e.in_place:
                self._adopt(self.donations[position], e.pools[result])
        return found

    def _argument(
        self, i: int, leaf: Any, overwritten: dict[int | None, tuple[Any, Lease | None]]
    ) -> Any:
        """The buffer view of an argument. What the call overwrites is a copy where NumPy reads the
        donated array, or it is itself NumPy's: that memory stays the caller's.
        """
        e = self.executable
        donation = self.donations.get(i)
        if i in e.in_place:
            if donation is not None and donation.is_free:
                overwritten[i] = donation.view, donation.lease
            else:
                overwritten[i] = self._place(e.result_of[i])
                old = leaf if donation is None else contents(donation.view, leaf.dtype)
                fill(overwritten[i][0], old)
            return overwritten[i][0]
        if donation is not None:
            return donation.view
        if isinstance(leaf, Array):
            return leaf.buffer_view()
        allocator = e.module.device.allocator
        if i in e.result_of or (e.is_static and not can_borrow(leaf)):
            pool = e.pools[e.result_of[i]] if i in e.result_of else e.staging[i]
            view = self._borrow(pool, lambda a: allocate(a, leaf.shape, leaf.dtype))
            fill(view, leaf)
            return view
        return borrow(allocator, leaf, self.keep)

    def _place(self, result: int) -> tuple[Any, Lease]:
        """Memory for a result."""
        e = self.executable
        spec, pool = e.outputs[result], e.pools[result]
        view = _pop(pool) or allocate(e.module.device.allocator, spec.shape, spec.dtype)  # type: ignore[arg-type]
        return view, Lease(view, pool)

    def _borrow(self, pool: list[Any], make: Callable[[Any], Any]) -> Any:
        """Memory for the time of the call."""
        found = _pop(pool) or make(self.executable.module.device.allocator)
        self.lent.append((pool, found))
        return found

    def _adopt(self, donation: Donation, pool: list[Any]) -> None:
        """Keep a donated array's memory for the next call, unless it goes to another pool, or
        enough is there: a pool grows only when it had nothing to give.
        """
        if donation.is_free and donation.lease is None and not pool:
            pool.append(donation.view)

    def undo(self) -> None:
        """The call failed: donated arrays are as they were."""
        for donation in self.donations.values():
            donation.undo()

    def close(self) -> None:
        """The call is over."""
        for pool, view in self.lent:
            pool.append(view)


def _pop(pool: list[Any]) -> Any:
    try:
        return pool.pop()
    except IndexError:
        return None
