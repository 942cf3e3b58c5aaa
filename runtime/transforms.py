# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Derivatives of Python functions that run at once on arrays: what `go.grad` and its like are
outside a trace. The function runs, and is recorded, on arguments that are variables; its recorded
graph is differentiated.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..dialect import trees
from ..dialect.control import VjpOp
from ..dialect.elementwise import is_scalar
from ..dialect.graph import argument_names, function_name
from ..dialect.mutation import Watch
from ..dialect.transform import leaf_names
from ..dialect.types import TensorSpec, is_float
from ..errors import GradientError, TraceError
from . import sweep
from .array import Array, asarray, of_value
from .custom_calls import checkpoint_call, custom_call
from .state import state
from .tape import Follower, following, needed, variable


class Run:
    """A function run on arguments, with the leaves at the positions `wrt` as variables: what
    Traced is to a trace. Where the thread records, derivatives are recorded, too.

    With `follow` it is known which values were tagged, and what the results depend on in ways that
    have no gradient.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        arguments: tuple[Any, ...],
        wrt: tuple[int, ...],
        follow: bool = False,
    ) -> None:
        self.name = function_name(fn)
        self._is_recorded = state.recording
        outer = state.follower
        self._follower = Follower(outer) if follow or outer is not None else None
        names = leaf_names(fn, arguments)
        self._names = [names[i] for i in wrt]
        leaves, structure = trees.flatten(arguments)
        leaves = [asarray(x) if _is_array(x) else x for x in leaves]
        for i in wrt:
            leaves[i] = variable(leaves[i])
        self._variables = [leaves[i] for i in wrt]
        self._first = min(node.number for node, _ in self._places())
        given = trees.unflatten(structure, leaves)
        changes = Watch(argument_names(fn, len(given)), given)
        with sweep.recording(True), following(self._follower):
            results = fn(*given)
        changes.check(self.name, results)
        found, self.out_tree = trees.flatten(results)
        self._results = [self._result(x) for x in found]
        self._linear: tuple[list[Array], list[Array], list[Array | None]] | None = None
        self.output_specs: Sequence[TensorSpec] = [r.spec for r in self._results]

    def _result(self, x: Any) -> Array:
        if not _is_array(x):
            raise TraceError(
                f"'{self.name}' returned {type(x).__name__} {x!r:.60}; results must be arrays or "
                "numbers"
            )
        return asarray(x)

    def values(self) -> list[Array]:
        """The leaves of the result: constants, where nobody records."""
        if self._is_recorded:
            return self._results
        return [_constant(r, self._first) for r in self._results]

    def _places(self) -> list[sweep.Place]:
        return [_place(v) for v in self._variables]

    def vjp(
        self,
        heads: tuple[int, ...],
        cts: list[Any],
        unreachable: str,
        intermediates: tuple[str, ...] = (),
    ) -> tuple[list[Array], list[Array]]:
        """The leaves of the result, and the gradients by the variables and `intermediates`."""
        of = [*self._variables, *self._tagged(intermediates)]
        given = zip((self._results[i] for i in heads), cts, strict=True)
        seeds = [(h, ct) for r, ct in given if (h := needed(r)) is not None]
        places = [_place(v) for v in of]
        found = sweep.gradients(seeds, places, True, state.recording, self._first)
        if unreachable == "error":
            names = [*self._names, *intermediates]
            self._check_reachable(
                heads, [(n, p) for n, p, f in zip(names, places, found, strict=True) if f is None]
            )
        return self.values(), [
            _zeros(v) if f is None else f for f, v in zip(found, of, strict=True)
        ]

    def jvp(self, tangents: list[Any]) -> tuple[list[Array], list[Array]]:
        """The leaves of the result, and the tangents of those that are floating-point: the vjp of
        the vjp, which is linear in its cotangents.
        """
        heads, cts, gradients = self._linear = self._linear or self._differentiated()
        pairs = zip(gradients, tangents, strict=True)
        seeds = [(h, t) for g, t in pairs if g is not None and (h := needed(g)) is not None]
        of = [_place(ct) for ct in cts]
        found = sweep.gradients(seeds, of, True, state.recording, self._first)
        ready = {id(r): f for r, f in zip(heads, found, strict=True) if f is not None}
        floats = [r for r in self._results if is_float(r.dtype)]
        return self.values(), [ready.get(id(r), _zeros(r)) for r in floats]

    def _differentiated(self) -> tuple[list[Array], list[Array], list[Array | None]]:
        """Results, their cotangents, and the gradients by the variables as functions of these. They
        are ones, never zeros, which guards against infinite slopes would take for "nothing to do".
        """
        heads = [r for r in self._results if is_float(r.dtype) and needed(r) is not None]
        heads = list({id(r): r for r in heads}.values())
        with sweep.recording(False):
            cts = [variable(of_value(np.ones(r.shape, r.dtype))) for r in heads]
        seeds = [(r._history, ct) for r, ct in zip(heads, cts, strict=True)]
        return heads, cts, sweep.gradients(seeds, self._places(), True, True, self._first)

    # --- what depends on what ---------------------------------------------------------------------

    def _tagged(self, labels: tuple[str, ...]) -> list[Array]:
        """The values with the given labels, each of which was set once."""
        if not labels:
            return []
        assert self._follower is not None
        tags = self._follower.tags
        found = []
        for label in labels:
            values = [value for name, value in tags if name == label]
            if len(values) != 1:
                known = ", ".join(f"'{t}'" for t in dict.fromkeys(n for n, _ in tags)) or "none"
                raise VjpOp.error(
                    f"one value tagged '{label}' in '{self.name}'",
                    f"{len(values)}; tags are: {known}",
                )
            if not is_float(values[0].dtype):
                got = f"'{label}' in '{self.name}' with dtype {values[0].dtype.name}"
                raise VjpOp.error("floating-point intermediates", got, "integers have no gradient")
            found.append(values[0])
        if len(set(labels)) != len(labels):
            raise VjpOp.error("distinct labels", ", ".join(labels))
        return found

    def _check_reachable(
        self, heads: tuple[int, ...], zeros: list[tuple[str, sweep.Place]]
    ) -> None:
        """Raise for those of the variables without a gradient that no head depends on."""
        if not zeros:
            return
        assert self._follower is not None
        of = [self._results[i]._history for i in heads]
        reached = self._follower.reachable([h.node for h in of if h is not None])
        missing = [f"'{name}'" for name, (node, _) in zeros if node not in reached]
        if missing:
            raise GradientError(
                f"the gradient of '{self.name}' expected a result that depends on every argument "
                f"to differentiate, got unreachable {', '.join(missing)}; leave it out, or ask for "
                "zeros with allow_unused=True"
            )


class Transforms:
    """What functions do at once on arrays, where in a trace they are ops."""

    called = Run
    custom_call = staticmethod(custom_call)
    checkpoint_call = staticmethod(checkpoint_call)


def _is_array(x: Any) -> bool:
    return isinstance(x, Array | np.ndarray) or is_scalar(x) or hasattr(x, "__array__")


def _place(x: Array) -> sweep.Place:
    return x._history.node, x._history.index


def _zeros(like: Array) -> Array:
    return of_value(np.zeros(like.shape, like.dtype))


def _constant(x: Array, first: int) -> Array:
    """An array outside the graph that was recorded from a node's number on."""
    history = x._history
    return x.snapshot() if history is not None and history.node.number >= first else x
