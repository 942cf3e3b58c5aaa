# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Calls of compiled functions on the tape: one node a call, whose backward is compiled, too."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..dialect import builder as builders
from ..dialect import modes, trees
from ..dialect.transform import vjp
from ..dialect.types import is_float
from ..errors import GradientError
from ..lowering.marks import NULL, WRITE
from .array import Array
from .requests import ByLeaf
from .state import state
from .tape import History, Node, keep, needed, placed

if TYPE_CHECKING:
    from .function import CachedFunction
    from .recorded import Differentiable, Pullback


class CallNode(Node):
    """A call of a compiled function: its arguments, for a backward that is recorded itself, and
    what its compiled backward keeps.
    """

    __slots__ = ("function", "leaves", "mode", "of", "pullback")

    def __init__(
        self,
        function: "CachedFunction",
        mode: str,
        leaves: list[Any],
        of: "Differentiable",
        pullback: "Pullback",
    ) -> None:
        asked = zip(map(needed, leaves), of.requests, strict=True)
        parents = tuple(None if request == NULL else place for place, request in asked)
        super().__init__(parents, of.recording.result_count)
        self.function = function
        self.mode = mode
        self.leaves = [keep(x) if isinstance(x, Array) else np.array(x) for x in leaves]
        self.of = of
        self.pullback: Pullback | None = pullback

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"the compiled function '{self.function.name}'"

    def kept(self) -> list[Any]:
        return [*self.leaves, *(self.pullback.kept if self.pullback is not None else ())]

    def free(self) -> None:
        super().free()
        self.leaves = []
        self.pullback = None

    def pull(self, cts: list[Array | None], fast: bool) -> Sequence[Array | None]:
        if not state.recording:
            assert self.pullback is not None
            found = self.pullback(self.of.results(cts), retain_graph=True)
            return trees.leaves(found, none_is_leaf=True)
        leaves = [placed(x, p) for x, p in zip(self.leaves, self.parents, strict=True)]
        has = tuple(ct is not None for ct in cts)
        backward = _backward(self.function, self.mode, self.of, has)
        found = iter(backward(self.of.arguments(leaves), [ct for ct in cts if ct is not None]))
        return [None if p is None else next(found) for p in self.parents]


def is_differentiated(arguments: tuple[Any, ...]) -> bool:
    """Whether the gradient of an array among the arguments is asked for, outside a trace."""
    return builders.current() is None and any(
        needed(x) is not None for x in trees.leaves(arguments)
    )


def call(function: "CachedFunction", arguments: tuple[Any, ...], out: Any) -> Any:
    """A call that is recorded. GradientError with `out`, whose arrays would become part of the
    recorded graph.
    """
    if out is not None:
        raise GradientError(
            f"'{function.name}' expected no `out` while recording a call of arrays that need a "
            "gradient, got one, which its result could not be written to without the recorded "
            "graph changing; leave it away, or call it in `with go.pause():`"
        )
    leaves, structure = function.leaves_of(arguments)
    leaves = list(leaves)
    requests = ByLeaf(NULL if needed(x) is None else WRITE for x in leaves)
    of = function.recorded(arguments, leaves, structure, requests)
    results, pullback = of.record(leaves)
    node = CallNode(function, function.options.mode or modes.current_mode(), leaves, of, pullback)
    for i, result in enumerate(trees.leaves(results)):
        if is_float(result.dtype):
            result._history = History(node, i)
    return results


def _backward(
    function: "CachedFunction", mode: str, of: "Differentiable", has: tuple[bool, ...]
) -> "CachedFunction":
    """The compiled backward of a function, as a function that can itself be recorded: of arguments
    and those cotangents that there are.
    """
    key = mode, of.requests, has, of.in_tree, of.out_tree
    found = function.backwards.get(key)
    if found is None:
        found = function.backwards[key] = function.derived(mode, _pullback(function, of, has))
    return found


def _pullback(function: "CachedFunction", of: "Differentiable", has: tuple[bool, ...]) -> Any:
    requests = of.requests

    def backward(arguments: tuple[Any, ...], cts: list[Any]) -> tuple[Any, ...]:
        given = iter(cts)
        cotangents = [next(given) if h else None for h in has]
        found = vjp(function, *arguments)[1](of.results(cotangents))
        leaves = trees.leaves(found, none_is_leaf=True)
        return tuple(g for g, r in zip(leaves, requests, strict=True) if r != NULL)

    backward.__name__ = f"{function.name}_backward"
    return backward
