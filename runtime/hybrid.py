# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""go.hybridize: eager functions and modules, as they are, as compiled functions.

A function runs once for each signature, in deferred compute (tracing.py), and then its graph does.
A signature is all that the function could tell apart: the types of all arrays that it can reach
(walk.py), how they are shared, the numbers and objects among its arguments and in what it names,
and the mode. Arrays are inputs, those that the function writes to are results, too, and are written
back after each call.
"""

import functools
import threading
import types
from collections.abc import Callable
from typing import Any

from ..dialect import builder as builders
from ..dialect import trees
from ..dialect.graph import Graph, argument_names, function_name
from ..dialect.modes import current_mode
from ..dialect.tensor import Tensor
from ..errors import ArgumentError
from .present import find_target
from .recent import Recent
from .state import state
from .tracing import Traced, trace
from .walk import Walk
from .why import Miss

OPTIONS = (
    "target", "mode", "static_alloc", "memory_budget", "remat", "disk_cache", "donate_strict"
)  # fmt: skip
"""The options of go.compile that go.hybridize takes."""


def hybridize(fn: Callable[..., Any] | None = None, **options: Any) -> Any:
    """An eager function or module, compiled without a change of its code; can be a decorator.

    It is called like `fn`, gives the same results and gradients, and leaves the arrays that it
    works on as `fn` would: what it writes to an argument, to an array that it closes over, to an
    attribute or a global is there after each call, and so are gradients that it computes with
    `go.record()` and `backward`. Called while recording it is one node of the tape.

    Options are those of go.compile that are not about single arguments: `target`, `mode`,
    `static_alloc`, `memory_budget`, `remat`, `disk_cache`, `donate_strict`; and `donate` (True):
    whether arrays that it writes to give up their memory for the new elements, where nothing else
    has it.

    It is traced once for each signature: types of arrays, values of other arguments and of Python
    numbers that it names. TraceError, in the first call, where it asks for the value of an array,
    or changes a number or a container that a later call would not change; nothing is changed then.
    """
    donate = options.pop("donate", True)
    for name in options:
        if name not in OPTIONS:
            listed = ", ".join((*OPTIONS, "donate"))
            raise ArgumentError(f"go.hybridize expected options out of {listed}, got '{name}'")
    if not isinstance(donate, bool):
        raise ArgumentError(
            f"donate of go.hybridize expected True or False, got {donate!r}; the arrays are those "
            "that the function writes to"
        )
    find_target(options.get("target", "cpu"))
    if fn is None:
        return lambda f: HybridFunction(f, donate, options)
    if not callable(fn):
        raise ArgumentError(f"go.hybridize expected a function or module, got {fn!r:.60}")
    return HybridFunction(fn, donate, options)


class HybridFunction:
    """An eager function that is compiled when it is called, once for each signature; safe to call
    from several threads. Attributes are those of the function or module.
    """

    WRAPS = ("fn",)

    def __init__(self, fn: Callable[..., Any], donate: bool, options: dict[str, Any]) -> None:
        if isinstance(fn, types.FunctionType):
            functools.update_wrapper(self, fn)
        self.fn = fn
        self.options = options
        self._donate = donate
        self._known = Recent(function_name(fn))
        self._lock = threading.RLock()
        self._latest: Traced | None = None

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Call the compiled form for arguments like these; see `hybridize`."""
        if is_inside(arguments, keywords):
            return self.fn(*arguments, **keywords)
        walk = Walk(self._named(arguments, keywords), self.fn)
        traced = self._find(walk, arguments, keywords)
        if not traced.writes:
            return traced(walk)
        with self._lock:  # updates of the same arrays take turns
            return traced(walk)

    def _find(self, walk: Walk, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Traced:
        key = (self.options.get("mode") or current_mode(), walk.key)
        traced = self._known.get(key)
        if traced is None:
            with self._lock:
                traced = self._known.get(key)
                if traced is None:
                    traced = self._known[key] = self._trace(walk, arguments, keywords)
                    self._latest = traced
        return traced

    def _trace(self, walk: Walk, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Traced:
        return trace(
            self.fn,
            arguments,
            keywords,
            walk,
            lambda a, k: Walk(self._named(a, k), self.fn),
            self._donate,
            self.options,
        )

    def _named(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Any]:
        """The arguments by name."""
        names = argument_names(self.fn, len(arguments))
        named = dict(zip(names, arguments, strict=True))
        return named | keywords

    # --- questions --------------------------------------------------------------------------------

    def traced(self, *arguments: Any, **keywords: Any) -> Traced:
        """What a call with these arguments runs, which is traced if it has not been."""
        return self._find(Walk(self._named(arguments, keywords), self.fn), arguments, keywords)

    def trace(self, *arguments: Any, **keywords: Any) -> Graph:
        """The graph of a call with these arguments: inputs are all arrays that it reads, results
        what it returns and then what it writes.
        """
        return self.traced(*arguments, **keywords).graph

    def input_names(self, *arguments: Any, **keywords: Any) -> list[str]:
        """Where the inputs of the graph are found: names of arguments, attributes, globals."""
        return self.trace(*arguments, **keywords).input_names

    def mlir(self, stage: str, *arguments: Any, **keywords: Any) -> str:
        """The IR of a call at a stage; see `CachedFunction.mlir`."""
        traced = self.traced(*arguments, **keywords)
        return traced.donating.mlir(stage, *traced.graph.input_specs)

    def memory_report(self, *arguments: Any, **keywords: Any) -> Any:
        """The memory of a call; see `CachedFunction.memory_report`."""
        traced = self.traced(*arguments, **keywords)
        return traced.donating.memory_report(*traced.graph.input_specs)

    def signature(self, *arguments: Any, **keywords: Any) -> Any:
        """What the compiled module of a call depends on; see `CachedFunction.signature`."""
        traced = self.traced(*arguments, **keywords)
        return traced.donating.signature(*traced.graph.input_specs)

    def why(self) -> Miss | None:
        """The latest compilation, and what it was for; None before the first call."""
        return None if self._latest is None else self._latest.donating.why()

    def clear_cache(self) -> None:
        """Forget all signatures; the next calls trace again."""
        self._known.clear()

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Of a decorated method: with the instance as its first argument."""
        return self if instance is None else types.MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "fn":
            raise AttributeError(name)
        return getattr(self.fn, name)

    def __repr__(self) -> str:
        return f"go.hybridize({self.fn!r})"


def is_inside(arguments: Any, keywords: Any) -> bool:
    """Whether a call is part of something that is being traced."""
    if builders.current() is not None or state.deferred is not None:
        return True
    return any(isinstance(x, Tensor) for x in trees.leaves((arguments, keywords)))
