# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""go.compile: Python functions and graphs as compiled functions, one module for each signature they
are called with.
"""

import functools
import threading
import types
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
from ..lowering import pipeline
from ..lowering.bufferize import mark_donated
from ..lowering.target import Target
from ..lowering.target import target as find_target
from . import cache
from .arguments import check_types, not_arrays, positional
from .compiler import compile_linalg
from .device import Array, Module, allocate, borrow, copy_in
from .signature import module_key

_lock = threading.Lock()
_locks: dict[str, threading.Lock] = {}
_modules: dict[str, Module] = {}


def compile(  # noqa: A001 - go.compile
    fn: Callable[..., Any] | Graph | None = None,
    *,
    target: str = "cpu",
    donate: int | Sequence[int] = (),
    disk_cache: bool = True,
) -> Any:
    """Compile a Python function or a graph for a target; the result is called like the function.

    Targets are `cpu`, by IREE, and `jit`, the host JIT that proves memory plans (docs/memory.md).

    The function is traced once for each structure and type of its arguments, which are arrays,
    numbers, or nested containers of them. Results are `Array`s, which NumPy reads in place. A
    compiled Python function called in a trace becomes part of what is traced.
    `donate` lists positions of arguments that the caller gives up: results of the same types are
    written into their storage, without allocating, and the donated arrays cannot be used again.
    With `disk_cache=False` the compiled module is not kept for other processes. Can be used as a
    decorator.
    """
    if fn is not None and not callable(fn) and not isinstance(fn, Graph):
        raise ArgumentError(f"expected a function or a Graph to compile, got {fn!r:.60}")
    if fn is None:
        return functools.partial(compile, target=target, donate=donate, disk_cache=disk_cache)
    donated = (donate,) if isinstance(donate, int) else tuple(donate)
    if not all(isinstance(position, int) for position in donated):
        raise ArgumentError(f"donate expected positions of arguments, got {donate!r}")
    return CachedFunction(fn, find_target(target), donated, disk_cache)


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
        """The IR for arguments like `specs` at a stage: graph, differentiated, simplified or
        linalg; memref, too, for target jit.
        """
        stages = pipeline.stages(self.target)
        if stage not in stages:
            raise ArgumentError(f"expected a stage out of {', '.join(stages)}, got '{stage}'")
        graph = self.trace(*specs)
        with graph.context:
            module = ir.Module.parse(graph.mlir(locations=True))
            mark_donated(symbols(module)[graph.name], self._donated(graph))
        for name, passes in stages.items():
            pipeline.run(module, passes)
            if name == stage:
                break
        return module.operation.get_asm(use_name_loc_as_prefix=True)

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
            donated = self._donated(graph)
            pairs = mark_donated(symbols(graph.module)[graph.name], donated)
            if self.target.name == "jit":
                from .jit import JitExecutable

                self._bound[key] = JitExecutable(graph, self.target, donated)
                return self._bound[key]
            module = module_for(graph, self.target, self.disk_cache)
        self._bound[key] = Executable(graph, module, donated, pairs)
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


def module_for(graph: Graph, target: Target, disk_cache: bool) -> Module:
    """The compiled form of a graph: from this process's memory, from disk, or compiled now."""
    key = module_key(graph.module.operation.get_asm(), target)
    with _lock:
        lock = _locks.setdefault(key, threading.Lock())
    with lock:  # other threads that want the same module wait; those that want another do not
        if key in _modules:
            cache.count("memory_hits")
        else:
            image = cache.image(
                key, lambda: compile_graph(graph.module, graph.name, target), disk_cache
            )
            _modules[key] = Module(image, target.driver)
        return _modules[key]


def compile_graph(module: ir.Module, name: str, target: Target) -> bytes:
    """The VMFB of a graph's module, which is lowered in a copy."""
    lowered, ops = pipeline.lower(module, target)
    with module.context:
        return compile_linalg(lowered.operation.get_asm(enable_debug_info=True), target, name, ops)


class Executable:
    """A compiled graph with what a call needs to know: types, donated inputs, spare storage, the
    results' structure.
    """

    def __init__(
        self, graph: Graph, module: Module, donated: list[int], pairs: list[tuple[int, int]]
    ) -> None:
        self.name = graph.name
        self.names = graph.input_names
        self.inputs = graph.input_specs
        self.outputs = graph.output_specs
        self.out_tree = graph.out_tree
        self.module = module
        self.donated = donated
        self.storage = [p for p, _ in pairs]  # donated inputs whose storage a result takes over
        self._function = module.function(graph.name)
        self._spare: dict[int, list[Any]] = {position: [] for position in self.storage}

    def __call__(self, leaves: list[Any]) -> Any:
        if self.donated:
            self._check_donated(leaves)
        allocator = self.module.device.allocator
        keep: list[Any] = []
        views = [self._view(i, leaf, allocator, keep) for i, leaf in enumerate(leaves)]
        storage = [self._take_spare(position, allocator) for position in self.storage]
        found = self.module.call(self._function, views + storage, len(self.outputs))
        for position in self.donated:
            leaf = leaves[position]
            is_free = leaf.give_up() if isinstance(leaf, Array) else True
            if is_free and position in self._spare:
                self._spare[position].append(views[position])
        results = [
            Array(v, tuple(v.shape), s.dtype) for v, s in zip(found, self.outputs, strict=True)
        ]
        return tuple(results) if self.out_tree is None else trees.unflatten(self.out_tree, results)

    def _view(self, position: int, leaf: Any, allocator: Any, keep: list[Any]) -> Any:
        """The buffer view of an argument. A donated NumPy array is copied, since its memory stays
        the caller's.
        """
        if isinstance(leaf, Array):
            return leaf.buffer_view()
        return (
            copy_in(allocator, leaf) if position in self._spare else borrow(allocator, leaf, keep)
        )

    def _take_spare(self, position: int, allocator: Any) -> Any:
        """Storage of the size of a donated input: what the call before gave up, or new memory in
        the first call.
        """
        try:
            return self._spare[position].pop()
        except IndexError:
            spec = self.inputs[position]
            return allocate(allocator, spec.shape, spec.dtype)  # type: ignore[arg-type]

    def _check_donated(self, leaves: list[Any]) -> None:
        arrays = [id(leaf) for leaf in leaves if isinstance(leaf, Array)]
        for i in self.donated:
            if isinstance(leaves[i], Array) and arrays.count(id(leaves[i])) > 1:
                raise DonationError(
                    f"'{self.name}' expected a donated array to be given once, got "
                    f"'{self.names[i]}' also as another argument; "
                    "pass a copy, or do not donate it"
                )
