# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""go.compile: Python functions and graphs as compiled functions, one module for each signature they
are called with.
"""

import functools
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..dialect import modes, trees
from ..dialect.creation import as_array
from ..dialect.graph import Graph, spec_of
from ..dialect.modes import current_mode, mode_like
from ..dialect.tensor import Tensor
from ..dialect.transform import vjp
from ..errors import ArgumentError, GradientError, OpError, TraceError
from . import tape_calls
from .arguments import check_types, not_arrays, positional
from .array import Array
from .binding import bind
from .buffers import from_other
from .composed import INLINE_LIMIT, call_in_trace
from .executable import Executable
from .inspected import Inspected
from .monitor import Watched
from .options import GradReq, Options, check_requests, refuse_for_graphs
from .recorded import Differentiable
from .requests import frozen
from .serial import parsed
from .signature import origin_of
from .state import state
from .why import History, Miss


def compile(  # noqa: A001 - go.compile
    fn: Callable[..., Any] | Graph | None = None,
    *,
    target: str = "cpu",
    donate: int | Sequence[int] = (),
    data: int | Sequence[int] | None = None,
    param: int | Sequence[int] | None = None,
    grad_req: GradReq = None,
    mode: str | None = None,
    static_alloc: bool = False,
    static_shape: bool = False,
    memory_budget: float | int | str | None = None,
    remat: str | None = None,
    disk_cache: bool = True,
    donate_strict: bool = False,
    inline_limit: int = INLINE_LIMIT,
    auxiliary: int | Sequence[int] = (),
    dynamic: Any = None,
    tune: bool | str = False,
) -> Any:
    """Compile a Python function or a graph for a target; the result is called like the function.

    Targets are `cpu`, `vulkan`, `cuda` and others that IREE compiles for, `auto`, the best of them
    that has a device here (docs/targets.md), `jit`, the host JIT that proves memory plans
    (docs/memory.md), and `reference`, which runs op by op on NumPy, without a compiler. Calls raise
    DeviceError for a target that has no device here.

    The function is traced once for each structure and type of its arguments, which are arrays,
    numbers, or nested containers of them, and for each mode. Results are `Array`s, which NumPy
    reads in place.
    `donate` lists positions of arguments that the caller gives up: results of the same types are
    written into their storage, without allocating, and the donated arrays cannot be used again;
    with `donate_strict=True` a donated array that no result can use is a DonationError.
    `param` lists the positions of arguments that are trained, `data` those of the others; together
    they name each one once.
    `grad_req` says which gradients `vjp` and `backward` give: "write", "add" (to arrays that the
    caller gives) or "null", for all arguments, in a sequence with one entry an argument, or in a
    dict by their names ("null" for those it leaves out). By default they are written for the
    parameters, or for all floating-point arguments where `param` is left away.
    `mode`, "train" or "infer", is that of `dropout`, `batch_norm` and their like; by default the
    one at the call (`go.infer_mode()`).
    `dynamic` leaves extents of arguments open, so that one module serves all sizes:
    `{"x": {0: "batch"}, "y": {0: "batch"}}` (axes of one name agree, which calls check).
    `auxiliary` lists positions of arguments that are states and get no gradient.
    Called in a trace the function is one call, traced and differentiated once for each signature;
    with at most `inline_limit` ops it becomes part of what is traced there.
    `memory_budget`, bytes (1_000_000, "12MiB") or a fraction of what the function needs (0.5),
    makes it compute values anew instead of keeping them, as little as fits; PassError where it
    cannot.
    `remat="cheap"` does so for whatever is cheap to compute, "all" for all values.
    With `static_alloc=True` calls allocate nothing once the first has run: temporaries live in one
    arena that every call uses again, and a result's memory is used again when the array and every
    NumPy view of it are gone. `static_shape=True`, with it, promises arguments of one structure and
    type for good: others are an error, not a second compilation.
    With `tune=True` the first call of a signature times other ways to compile it on this machine,
    for seconds to minutes, and notes what is faster (docs/tuning.md); `tune="stored"` goes by what
    was noted before, and times nothing.
    With `disk_cache=False` the compiled module is not kept for other processes. Can be used as a
    decorator.
    """
    if fn is not None and not callable(fn) and not isinstance(fn, Graph):
        raise ArgumentError(f"expected a function or a Graph to compile, got {fn!r:.60}")
    if isinstance(fn, Graph):
        refuse_for_graphs(dynamic, auxiliary)
    options = Options.of(
        target=target,
        donate=donate,
        donate_strict=donate_strict,
        data=data,
        param=param,
        grad_req=grad_req,
        mode=mode,
        static_alloc=static_alloc,
        static_shape=static_shape,
        memory_budget=memory_budget,
        remat=remat,
        disk_cache=disk_cache,
        inline_limit=inline_limit,
        auxiliary=auxiliary,
        dynamic=dynamic,
        tune=tune,
    )
    return CachedFunction(fn, options) if fn is not None else lambda f: CachedFunction(f, options)


def deserialize(text: str) -> "CachedFunction":
    """The compiled function whose graph and options `CachedFunction.serialize` wrote: it takes the
    inputs one by one, and returns a tuple. Raises TraceError for other text.
    """
    graph, options = parsed(text)
    return compile(graph, **options)


class CachedFunction(Inspected, Watched):
    """A function compiled when it is called, once for each signature; safe to call from several
    threads.
    """

    def __init__(self, fn: Callable[..., Any] | Graph, options: Options) -> None:
        if not isinstance(fn, Graph):
            functools.update_wrapper(self, fn)
        elif not fn.input_names:
            raise TraceError(
                f"expected a graph with at least one input to compile, got none in '{fn.name}'"
            )
        Inspected.__init__(self, fn, options)
        self._own_mode, self._dynamic = options.mode, options.dynamic  # where calls look
        self._warned = False
        self._history = History(origin_of(fn))
        self._lock = threading.Lock()
        # by signature, so that others are not waited for
        self._locks: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()
        self._thread = threading.local()
        self.backwards: dict[Any, CachedFunction] = {}  # of recorded calls, to be recorded too
        Watched.__init__(self, self.name)

    @property
    def grad_req(self) -> GradReq:
        """Which gradients recorded calls give from now on; each choice has modules of its own."""
        return self._grad_req

    @grad_req.setter
    def grad_req(self, grad_req: GradReq) -> None:
        self._grad_req = check_requests(grad_req)

    def __call__(self, *arguments: Any, out: Any = None, **keywords: Any) -> Any:
        """Call the compiled form for arguments like these; see `compile`."""
        if keywords:
            arguments = positional(self.fn, arguments, keywords)
        if state.deferred is not None:
            return self._deferred(arguments)
        if state.recording and tape_calls.is_differentiated(self, arguments):
            return tape_calls.call(self, arguments, out)
        key = [mode_like(self._own_mode) if self._own_mode else current_mode(), len(arguments)]
        for x in arguments:  # what most calls are: arrays, and no more; as _leaves and _key have it
            if type(x) is not Array and type(x) is not np.ndarray:
                break
            key += x.shape, x.dtype
        else:
            if self._dynamic is None and (found := self._bound.get(tuple(key))) is not None:
                return found(arguments, None if out is None else found.out_leaves(out))
        leaves, structure = self.leaves_of(arguments)
        if structure is None:
            if out is not None:
                raise ArgumentError(f"'{self.name}' expected no `out` in a trace, got one")
            return self._in_trace(arguments)
        key = self._key(arguments, leaves, structure)
        executable = self._bound.get(key)
        if executable is None:
            if not isinstance(structure, int):  # what was converted, as the arrays it is now
                arguments = trees.unflatten(structure, leaves)
            with self._lock_of(key):
                executable = self._bound.get(key) or self._bind(key, arguments)
        return executable(leaves, None if out is None else executable.out_leaves(out))

    def leaves_of(self, arguments: tuple[Any, ...]) -> tuple[Sequence[Any], Any]:
        """The arrays that arguments consist of and the structure they stand in, a number for
        arguments that are all arrays; no structure in a trace.
        """
        for x in arguments:
            if type(x) is not Array and type(x) is not np.ndarray:
                break
        else:
            return arguments, len(arguments)
        leaves, structure = trees.flatten(arguments)
        for i, x in enumerate(leaves):
            if type(x) is not Array and type(x) is not np.ndarray:
                try:
                    leaves[i] = as_array(from_other(x))
                except OpError:
                    if any(isinstance(x, Tensor) for x in leaves):
                        return leaves, None
                    raise not_arrays(self.fn, arguments) from None
        return leaves, structure

    def _in_trace(self, arguments: tuple[Any, ...]) -> Any:
        """A call where a graph is being built: a part of that."""
        mode, options = self._mode(), self.options
        with modes.mode(mode):
            key = self, mode
            return call_in_trace(self.fn, arguments, key, options.inline_limit, options.auxiliary)

    def _deferred(self, arguments: tuple[Any, ...]) -> Any:
        """A call in deferred compute: its ops become part of what is built there."""
        with modes.mode(self._mode()):
            if not isinstance(self.fn, Graph):
                return self.fn(*arguments)
            self._graph(arguments)  # checks the types
            from .interpreted import Program

            made = Program.of(self.fn.module, self.fn.name).put_off(arguments)
            tree = self.fn.out_tree
            return tuple(made) if tree is None else trees.unflatten(tree, made)

    # --- recorded calls ---------------------------------------------------------------------------

    def vjp(self, *arguments: Any, **keywords: Any) -> tuple[Any, Any]:
        """`(results, pullback)`: a call that keeps what its backward reads. `pullback(cotangents)`
        gives a tuple of one gradient an argument (see `Pullback`), those that `grad_req` asks for,
        an option of go.compile and an attribute that can be set.

        In a trace it is `go.vjp`. Raises GradientError where there is nothing to differentiate by,
        ArgumentError with options that recorded calls do not go with: `donate`, `memory_budget` and
        `remat`.
        """
        if keywords:
            arguments = positional(self.fn, arguments, keywords)
        leaves, structure = self.leaves_of(arguments)
        if structure is None or state.deferred is not None:
            return vjp(self, *arguments)
        return self.recorded(arguments, leaves, structure, self._grad_req).record(list(leaves))

    def recorded(
        self, arguments: tuple[Any, ...], leaves: Sequence[Any], structure: Any, grad_req: GradReq
    ) -> Differentiable:
        """The forward and the backward for a signature and requests."""
        key = (*self._key(arguments, leaves, structure), frozen(grad_req))
        recorded = self._bound.recorded.get(key)
        if recorded is None:
            if not isinstance(structure, int):  # what was converted, as the arrays it is now
                arguments = trees.unflatten(structure, leaves)
            with self._lock_of(key):
                recorded = self._bound.recorded.get(key) or self._record(key, grad_req, arguments)
        return recorded

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        """The results of a call that `backward` on this thread differentiates; see `vjp`."""
        results, self._thread.pullback = self.vjp(*arguments, **keywords)
        return results

    def backward(
        self, cotangents: Any = None, *, out: Any = None, retain_graph: bool = False
    ) -> tuple[Any, ...]:
        """The gradients of this thread's last `forward`; arguments and errors as those of
        `Pullback`.
        """
        pullback = getattr(self._thread, "pullback", None)
        if pullback is None:
            raise GradientError(
                f"backward of '{self.name}' expected a forward on this thread before it, got none"
            )
        return pullback(cotangents, out=out, retain_graph=retain_graph)

    def derived(self, mode: str, fn: Callable[..., Any]) -> "CachedFunction":
        """A function compiled for the same target, and a mode."""
        options = Options(self.options.target, mode=mode, disk_cache=self.options.disk_cache)
        return CachedFunction(fn, options)

    def _record(self, key: Any, grad_req: GradReq, arguments: tuple[Any, ...]) -> Differentiable:
        """Compile the forward and the backward for a signature."""
        table = self._bound
        self._check_promise(key, table.recorded, arguments)
        graph = self._graph(arguments)
        requests = self._requests(graph, grad_req)
        from ..lowering.record import record

        recording = record(graph, requests)
        named = zip(graph.input_names, requests, strict=True)
        parts = {f"grad_req of '{name}'": request for name, request in named}
        about: dict[str, Any] = {
            "static_alloc": self.options.static_alloc,
            "disk_cache": self.options.disk_cache,
            "tune": self.options.tune,
            "parts": {"mode": key[0]} | parts,
            "history": self._history,
            "watch": table.watch,
        }
        forward = bind(recording.forward, self.target, **about)
        totals = recording.totals()
        backward = bind(recording.backward, self.target, donated=totals, **about)
        found = Differentiable(graph, recording, forward, backward, requests)
        table.recorded[key] = found
        return found

    # --- signatures -------------------------------------------------------------------------------

    def _key(self, arguments: tuple[Any, ...], leaves: Sequence[Any], structure: Any) -> Any:
        """What a call has in common with those that run the same code."""
        key = [mode_like(self._own_mode) if self._own_mode else current_mode(), structure]
        if self._dynamic is not None:
            return (*key, *self._dynamic.types(self.fn, arguments))  # type: ignore[arg-type]
        for leaf in leaves:
            key.append(leaf.shape)
            key.append(leaf.dtype)
        return tuple(key)

    def _lock_of(self, key: Any) -> Any:
        with self._lock:
            return self._locks.setdefault(key, threading.Lock())

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Of a decorated method: with the instance as its first argument."""
        return self if instance is None else types.MethodType(self, instance)

    def why(self) -> Miss | None:
        """The latest miss: a call, or a gradient of one, with a signature that was not in memory;
        printed, it says what changed since the nearest earlier one. None before the first call.
        """
        return self._history.latest

    def clear_cache(self) -> None:
        """Free the memory of all signatures: arenas and pools, and modules that nothing else uses;
        the next calls bind them again.
        """
        self._bound.clear()
        self._bound.recorded.clear()

    def _graph(self, arguments: tuple[Any, ...]) -> Graph:
        """The graph of a call with these arguments, whose types are checked."""
        graph = self.trace(*arguments)
        if not graph.input_names:
            raise TraceError(
                "expected a function with at least one array among its arguments, got none for "
                f"'{graph.name}'"
            )
        if isinstance(self.fn, Graph):
            specs = [spec_of(a) for a in trees.leaves(arguments)]
            check_types(graph.name, graph.input_names, graph.input_specs, specs)
        return graph

    def _bind(self, key: Any, arguments: tuple[Any, ...]) -> Executable:
        """Compile for a signature."""
        table = self._bound  # another one from when somebody begins to watch
        self._check_promise(key, table, arguments)
        graph = self._graph(arguments)
        executable = table[key] = bind(
            graph,
            self.target,
            donated=self._donated(graph),
            static_alloc=self.options.static_alloc,
            remat=self.remat,
            disk_cache=self.options.disk_cache,
            parts={"mode": key[0]},
            history=self._history,
            donate_strict=self.options.donate_strict,
            tune=self.options.tune,
            watch=table.watch,
        )
        if self.options.static_alloc and not executable.is_static and not self._warned:
            self._warned = True
            warnings.warn(
                f"'{graph.name}' has extents that are known only when it is called; it runs "
                "without static_alloc",
                stacklevel=3,
            )
        return executable

    def _check_promise(
        self, key: Any, known: Mapping[Any, Any], arguments: tuple[Any, ...]
    ) -> None:
        """Raise where `static_shape` promised arguments of the types that are known."""
        first = next((k for k in known if k[0] == key[0]), None)
        if not self.options.static_shape or first is None:
            return
        name, names, specs = known[first].name, known[first].names, known[first].inputs
        found = [spec_of(leaf) for leaf in trees.leaves(arguments)]
        for argument, spec, other in zip(names, specs, found, strict=False):
            if spec != other:
                got = f"argument '{argument}' of type {other}, before it was {spec}"
                break
        else:
            got = f"{len(found)} arrays in another structure than the {len(specs)} before"
        raise ArgumentError(
            f"'{name}' with static_shape=True expected arguments of one structure and type, got "
            f"{got}; compile it without static_shape"
        )
