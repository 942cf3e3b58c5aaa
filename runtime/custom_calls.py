# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Calls on the tape of functions with a gradient rule of their own: `custom_vjp` and `checkpoint`,
called on arrays outside a trace.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..dialect import modes, trees
from ..dialect.checkpoint_policies import Policy, everything_saveable
from ..dialect.types import is_float
from ..errors import GradientError
from . import generator, sweep
from .array import Array, asarray, of_value
from .state import state
from .tape import History, Node, keep, needed, next_number, placed, variable


class Recorded:
    """A function run, and recorded, on arguments of its own: `variables` stand for the leaves that
    need a gradient.
    """

    def __init__(self, fn: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.first = next_number()
        leaves, self.structure = trees.flatten(arguments)
        self.leaves = [asarray(x) for x in leaves]
        given = [x if needed(x) is None else variable(x) for x in self.leaves]
        self.variables = [v for v, x in zip(given, self.leaves, strict=True) if v is not x]
        with sweep.recording(True):
            self.found = fn(*trees.unflatten(self.structure, given))

    def captured(self, results: Sequence[Array]) -> list[History]:
        """The places outside the function that results depend on otherwise than through its
        arguments, in the order they were made.
        """
        return _outside(results, self.first, {v._history.node for v in self.variables})


def _outside(results: Sequence[Array], first: int, own: set[Node]) -> list[History]:
    """The places before the number `first` that arrays depend on, not through the nodes `own`."""
    found: dict[sweep.Place, History] = {}
    seen: set[Node] = set()
    left = [h for r in results if (h := needed(r)) is not None]
    while left:
        place = left.pop()
        if place.node.number < first:
            if place.node not in own:
                found.setdefault((place.node, place.index), place)
        elif place.node not in own and place.node not in seen:
            seen.add(place.node)
            left += [p for p in place.node.parents if p is not None]
    return [found[key] for key in sorted(found, key=lambda k: (k[0].number, k[1]))]


def _results(node: Node, leaves: Sequence[Array]) -> list[Array]:
    """Results as what a node made, instead of what they were made of."""
    found = [r.snapshot() for r in leaves]
    for i, result in enumerate(found):
        if is_float(result.dtype):
            result._history = History(node, i)
    return found


def _array_leaves(tree: Any) -> tuple[list[Array], Any]:
    leaves, structure = trees.flatten(tree)
    return [asarray(x) for x in leaves], structure


# --- custom_vjp -----------------------------------------------------------------------------------


class CustomNode(Node):
    """A call with the user's backward: `rule(residuals, cotangents)` gives the gradients by the
    floating-point leaves of the arguments.
    """

    __slots__ = ("label", "out_tree", "places", "residual_tree", "residuals", "rule", "specs")

    def __init__(
        self,
        label: str,
        parents: Sequence[History | None],
        results: Sequence[Array],
        out_tree: Any,
        residuals: Any,
        rule: Callable[..., list[Any]],
    ) -> None:
        super().__init__(tuple(parents), len(results))
        self.label = label
        self.specs = [r.spec for r in results]
        self.out_tree = out_tree
        leaves, self.residual_tree = _array_leaves(residuals)
        self.residuals = [keep(x) for x in leaves]
        self.places = [x._history for x in leaves]
        self.rule: Callable[..., list[Any]] | None = rule

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"custom_vjp '{self.label}'"

    def kept(self) -> list[Any]:
        return self.residuals

    def free(self) -> None:
        super().free()
        self.residuals, self.places, self.rule = [], [], None

    def pull(self, cts: list[Array | None], fast: bool) -> Sequence[Array | None]:
        assert self.rule is not None
        pairs = zip(cts, self.specs, strict=True)
        heads = [
            (of_value(np.zeros(s.extents, s.dtype)) if ct is None else ct)
            if is_float(s.dtype)
            else None
            for ct, s in pairs
        ]
        residuals = [placed(k, p) for k, p in zip(self.residuals, self.places, strict=True)]
        given = trees.unflatten(self.residual_tree, residuals)
        first = next_number()
        found = self.rule(given, trees.unflatten(self.out_tree, heads))
        given_nodes = {h.node for x in (*residuals, *heads) if (h := needed(x)) is not None}
        arrays = [g for g in found if g is not None]
        _refuse_captured(self.label, "its backward", _outside(arrays, first, given_nodes))
        return [None if p is None else g for p, g in zip(self.parents, found, strict=True)]


def custom_call(
    name: str,
    fn: Callable[..., Any],
    forward: Callable[..., Any],
    backward: Callable[..., list[Any]],
    arguments: tuple[Any, ...],
) -> Any:
    """A call of a custom_vjp on arrays. Its function runs, or where a gradient is asked for its
    forward. `backward` gives the gradients by all leaves, None for integers.
    """
    leaves = [asarray(x) for x in trees.leaves(arguments)]
    if not state.recording or all(needed(x) is None for x in leaves):
        run = Recorded(fn, arguments) if state.recording else None
        given = trees.unflatten(trees.structure(arguments), leaves)
        found, structure = _array_leaves(fn(*given) if run is None else run.found)
        if run is not None:
            _refuse_captured(name, "it", run.captured(found))
        return trees.unflatten(structure, found)
    run = Recorded(forward, arguments)
    if not (isinstance(run.found, tuple) and len(run.found) == 2):
        raise GradientError(
            f"forward of custom_vjp '{name}' expected to return (result, residuals), got "
            f"{type(run.found).__name__}"
        )
    results, out_tree = _array_leaves(run.found[0])
    residuals, _ = _array_leaves(run.found[1])
    _refuse_captured(name, "its forward", run.captured([*results, *residuals]))
    parents = [needed(x) for x in run.leaves]
    node = CustomNode(name, parents, results, out_tree, run.found[1], backward)
    return trees.unflatten(out_tree, _results(node, results))


def _refuse_captured(name: str, what: str, places: list[History]) -> None:
    if places:
        raise GradientError(
            f"custom_vjp '{name}' expected only its arguments to be used, got {what} using "
            f"{places[0].node.name}, or what depends on it, of the code around it; pass it as an "
            "argument"
        )


# --- checkpoint -----------------------------------------------------------------------------------


class CheckpointNode(Node):
    """A call of which the arguments are kept, and what else was used of recorded graphs is known:
    the function runs again for its backward.
    """

    __slots__ = ("captured", "fn", "keys", "label", "leaves", "mode", "structure")

    def __init__(
        self,
        label: str,
        fn: Callable[..., Any],
        run: Recorded,
        captured: list[History],
        keys: list[Any],
        count: int,
    ) -> None:
        super().__init__((*map(needed, run.leaves), *captured), count)
        self.label = label
        self.fn: Callable[..., Any] | None = fn
        self.keys = keys  # random ones that were drawn
        self.mode = modes.current_mode()
        self.structure = run.structure
        self.leaves = [keep(x) for x in run.leaves]
        self.captured = [(p, p.node.writes) for p in captured]

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"the checkpointed '{self.label}'"

    def kept(self) -> list[Any]:
        return self.leaves

    def free(self) -> None:
        super().free()
        self.leaves, self.captured, self.fn = [], [], None

    def pull(self, cts: list[Array | None], fast: bool) -> Sequence[Array | None]:
        assert self.fn is not None
        for place, writes in self.captured:
            if place.node.writes != writes:
                raise GradientError(
                    f"the checkpointed '{self.label}' uses a variable that was written to between "
                    "its call and the backward, which computes it anew; go backward before, or "
                    "pass the variable as an argument"
                )
        create_graph = state.recording
        places = self.parents[: len(self.leaves)]
        given = [placed(k, p) for k, p in zip(self.leaves, places, strict=True)]
        with modes.mode(self.mode), generator.keys_again(self.keys):
            run = Recorded(self.fn, trees.unflatten(self.structure, given))
        results, _ = _array_leaves(run.found)
        again = [(p.node, p.index) for p in run.captured(results)]
        if again != [(p.node, p.index) for p, _ in self.captured]:
            raise GradientError(
                f"the checkpointed '{self.label}' uses other arrays of recorded graphs in its "
                "backward, which computes it anew, than when it was called; pass them as arguments"
            )
        pairs = zip(results, cts, strict=True)
        seeds = [(h, ct) for r, ct in pairs if ct is not None and (h := needed(r)) is not None]
        wanted = [(v._history.node, v._history.index) for v in run.variables]
        wanted += [(p.node, p.index) for p, _ in self.captured]
        found = iter(sweep.gradients(seeds, wanted, create_graph, create_graph, run.first))
        return [None if p is None else next(found) for p in self.parents]


def checkpoint_call(
    fn: Callable[..., Any], name: str, arguments: tuple[Any, ...], policy: Policy
) -> Any:
    """A call of a checkpointed function on arrays."""
    leaves = [asarray(x) for x in trees.leaves(arguments)]
    given = trees.unflatten(trees.structure(arguments), leaves)
    if not state.recording or policy == everything_saveable:
        return fn(*given)
    with generator.keys_noted() as keys:
        run = Recorded(fn, given)
    results, out_tree = _array_leaves(run.found)
    captured = run.captured(results)
    if all(needed(r) is None for r in results):
        return run.found
    node = CheckpointNode(name, fn, run, captured, keys, len(results))
    return trees.unflatten(out_tree, _results(node, results))
