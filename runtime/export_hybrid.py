# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Functions that work on nets and optimizers, as functions of an artifact.

A function is traced as go.hybridize does it. The arrays that it reads beside its arguments are held
by the artifact, one for each array, whatever functions share it; what it writes to them are their
new values. Its arguments are data.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..dialect import graph as graphs
from ..dialect import trees
from ..dialect.creation import as_array
from ..dialect.elementwise import is_scalar
from ..dialect.graph import argument_names
from ..dialect.types import TensorSpec
from ..errors import ArtifactError
from ..nn.module import Module
from ..nn.variables import FROZEN, request_of
from ..optim.loss_scale import LossScale
from ..optim.optimizer import Optimizer
from .array import Array, of_value
from .exported import CONSTANT, MODES, PARAMETER, STATE, Exported
from .held_names import Names
from .hybrid import HybridFunction
from .nodes import Leaf, Ref, build, held, needed
from .tracing import Finish, Trace, run
from .walk import GRADIENT, Walk

OBJECTS = Module, Optimizer, LossScale


@dataclasses.dataclass
class Part:
    """A function that was traced. Values are nodes' results."""

    name: str
    mode: str
    data: list[tuple[str, Array]]
    before: Walk
    results: list[tuple[str, Ref]] = dataclasses.field(default_factory=list)
    updates: list[tuple[Array, Ref]] = dataclasses.field(default_factory=list)
    made: list[tuple[str, Any, dict[int, Ref]]] = dataclasses.field(default_factory=list)
    """Nets and optimizers that it returns: path, object, and the values of its arrays."""
    differentiates: bool = False

    def reads(self, refs: Sequence[Ref]) -> list[Leaf]:
        """The arrays that results are computed from."""
        every = [*refs, *(ref for node in needed(refs) for ref in node.operands)]
        found = [r[0] for r in every if type(r) is tuple and type(r[0]) is Leaf]
        return list({leaf.serial: leaf for leaf in found if leaf.snapshot is None}.values())

    def is_data(self, x: Array) -> bool:
        return any(x is given for _, given in self.data)

    def trains(self) -> bool:
        """Whether it updates parameters, their gradients or an optimizer; or updates other arrays,
        by gradients.
        """
        holders = {id(x): p.holder for p, x in self.before.places if p.kind == GRADIENT}
        optimizers = [x for x in self.before.noted if isinstance(x, Optimizer)]
        theirs = {id(x) for o in optimizers for x in o.arrays().values()}
        of_nets = {id(x) for p, x in self.before.places if isinstance(p.holder, Module)}
        for x, _ in self.updates:
            variable = holders.get(id(x), x)
            if self.is_data(x) or self.is_data(variable):
                continue
            if request_of(variable) not in (None, FROZEN) or id(x) in theirs:
                return True
            if self.differentiates and id(x) not in of_nets and id(x) in _ids(self.before):
                return True
        return False


def _ids(walk: Walk) -> set[int]:
    return {id(x) for x in walk.arrays}


def is_stateful(fn: Any, arguments: Sequence[Any]) -> bool:
    """Whether a function is to be exported by what is here: it is hybridized or a module, it names
    arrays, or has nets or optimizers as arguments.
    """
    if isinstance(fn, HybridFunction | Module):
        return True
    if any(isinstance(x, OBJECTS) for x in trees.leaves(list(arguments))):
        return True
    return any(type(x) is Array for x in Walk({}, fn).arrays)


def export_stateful(
    functions: Mapping[str, tuple[Callable[..., Any], Sequence[Any], str | None]],
) -> list[Exported]:
    """The functions of an artifact for eager functions, hybridized ones and modules: by name, each
    with its arguments and the mode that it is traced in ("train" or "infer"; None for "train" where
    it updates parameters, gradients or an optimizer, and else "infer").

    Arrays, NumPy arrays and TensorSpecs among the arguments, also in containers, are data, which
    stand for their type; None in a shape is an extent known only at run time. Other arguments
    (numbers, strings, modules) are what they are at each call. Arrays that a function returns are
    its results; a net, optimizer or loss scale that it returns has new values for the arrays of the
    one that the other functions use. A write to an argument is a result of that name. Raises
    ArtifactError for other results, and for what cannot be an update of a held array.
    """
    parts = [_traced(name, *about) for name, about in functions.items()]
    return _Join(parts).exported()


# --- tracing --------------------------------------------------------------------------------------


def _traced(name: str, fn: Callable[..., Any], arguments: Sequence[Any], mode: str | None) -> Part:
    if isinstance(fn, HybridFunction):
        mode, fn = mode or fn.options.get("mode"), fn.fn
    if mode is not None and mode not in MODES:
        raise ArtifactError(f"the mode of '{name}' expected 'train' or 'infer', got {mode!r}")
    names = argument_names(fn, len(arguments))
    given, data = _stand_ins(names, arguments)

    def again(a: tuple[Any, ...], _: Any) -> Walk:
        return Walk(dict(zip(names, a, strict=True)), fn)

    def traced_in(mode: str) -> Part:
        def finish(scope: Trace, before: Walk, results: Any, after: Walk) -> Part:
            return _Collect(scope, before, Part(name, mode, data, before)).part(results, after)

        return run(fn, given, {}, again, mode, finish)

    if mode is not None:
        return traced_in(mode)
    part = traced_in("train")
    return part if part.trains() else traced_in("infer")


def _stand_ins(
    names: Sequence[str], arguments: Sequence[Any]
) -> tuple[tuple[Any, ...], list[tuple[str, Array]]]:
    """The arguments with an array, whose elements nobody may ask for, in the place of each that is
    data; and those arrays by name.
    """
    data: list[tuple[str, Array]] = []
    given = []
    for name, argument in zip(names, arguments, strict=True):
        found = []
        for path, leaf in trees.named_leaves(name, argument):
            if isinstance(leaf, TensorSpec | np.ndarray | np.generic | Array):
                spec = TensorSpec(leaf.shape, leaf.dtype)
                stand_in = Array(None, spec.shape, spec.dtype)  # type: ignore[arg-type]
                if (request := request_of(leaf)) is not None:
                    stand_in.attach_grad(request)
                data.append((path, stand_in))
                leaf = stand_in
            found.append(leaf)
        given.append(trees.unflatten(trees.structure(argument), found))
    return tuple(given), data


class _Collect(Finish):
    """Makes a Part of what was collected."""

    def __init__(self, scope: Trace, before: Walk, part: Part) -> None:
        super().__init__(scope, before)
        self._part = part
        part.differentiates = scope.differentiates

    def part(self, results: Any, after: Walk) -> Part:
        for path, leaf in trees.named_leaves("", results):
            self._take(path.removeprefix("."), leaf)
        updates = {id(x): (x, ref) for x, ref in [*self._written(), *self._rebound(after)]}
        self._part.updates = list(updates.values())
        return self._part

    def _value(self, x: Array) -> Ref:
        """What an array holds at the end."""
        source = self.scope.source_of(x)
        return (Leaf(self.scope, x, held(x)), 0) if source is None else (source.node, source.index)

    def _take(self, path: str, leaf: Any) -> None:
        part = self._part
        if isinstance(leaf, OBJECTS):
            values = {id(x): self._value(x) for x in leaf.arrays().values()}
            part.made.append((path, leaf, values))
        elif isinstance(leaf, Array):
            part.results.append((path, self._value(leaf)))
        elif isinstance(leaf, np.ndarray | np.generic) or is_scalar(leaf):
            part.results.append((path, (Leaf(None, x := of_value(as_array(leaf)), held(x)), 0)))
        else:
            raise ArtifactError(
                f"'{part.name}' expected to return arrays, numbers, nets or optimizers, got "
                f"{type(leaf).__name__} {leaf!r:.60} as '{path}'; leave it out"
            )

    def _written(self) -> list[tuple[Array, Ref]]:
        scope = self.scope
        return [(scope.before[i].array, (v.node, v.index)) for i, v in scope.written.items()]

    def _rebound(self, after: Walk) -> list[tuple[Array, Ref]]:
        """Arrays in whose place the function put others."""
        new: dict[Any, Array] = {}
        now = {place.location: x for place, x in after.places}
        for i, _ in self.moved(after):
            where = self.before.places[i][0]
            new[where.location] = now[where.location]
        found: dict[int, tuple[Array, Ref]] = {}
        for where, old in self.before.places:
            if where.location not in new:
                continue
            same = [p for p, x in self.before.places if x is old]
            others = [p for p in same if new.get(p.location) is not new[where.location]]
            if others:
                raise ArtifactError(
                    f"'{self._part.name}' puts another array in the place of '{where.path}', which "
                    f"is also '{others[0].path}'; write to it, x[...] = y"
                )
            found[id(old)] = old, self._value(new[where.location])
        return list(found.values())


# --- what functions share -------------------------------------------------------------------------


class _Join:
    """Makes functions of an artifact, which share arrays, of parts."""

    def __init__(self, parts: list[Part]) -> None:
        self.parts = parts
        self.names = Names([p.before for p in parts], (n for p in parts for n, _ in p.data))
        self.gradients = self.names.gradients()
        read = {id(leaf.array) for p in parts for leaf in p.reads(self._refs(p, p.updates))}
        self.updates = [[u for u in p.updates if self._is_kept(p, u, read)] for p in parts]
        found: dict[int, Array] = {}
        self.written: set[int] = set()
        for part, updates in zip(parts, self.updates, strict=True):
            arrays = [leaf.array for leaf in part.reads(self._refs(part, updates))]
            arrays += [x for x, _ in updates]
            found |= {id(x): x for x in arrays if not part.is_data(x)}
            self.written |= {id(x) for x, _ in updates}
        self.held = {self.names.of(x): x for x in self.names.in_order(found)}
        self.made = [self._made(p) for p in parts]
        self.written |= {id(x) for updates in self.made for x, _ in updates}
        self.values = {name: x.numpy() for name, x in self.held.items()}

    def _refs(self, part: Part, updates: Sequence[tuple[Array, Ref]]) -> list[Ref]:
        made = [ref for _, _, values in part.made for ref in values.values()]
        return [*(ref for _, ref in part.results), *(ref for _, ref in updates), *made]

    def _is_kept(self, part: Part, update: tuple[Array, Ref], read: set[int]) -> bool:
        """Whether an update is to be seen: it changes something, and is no gradient, or state of
        go.random, that nobody reads.
        """
        x, (node, _) = update
        if type(node) is Leaf and node.array is x:
            return False
        passing = id(x) in self.gradients or self.names.is_random(x)
        return id(x) in read or not passing

    def _made(self, part: Part) -> list[tuple[Array, Ref]]:
        """The updates by nets and optimizers that a part returns."""
        found = []
        for path, made, values in part.made:
            named = self.names.within(made, path)
            known = {name: x for name, x in named.items() if name in self.held}
            if not known:
                raise ArtifactError(
                    f"'{part.name}' returns a {type(made).__name__} whose arrays "
                    f"({', '.join(named) or 'none'}) no other function uses; they use "
                    f"{', '.join(self.held) or 'none'}"
                )
            for name, x in known.items():
                if x.spec != (old := self.held[name]).spec:
                    raise ArtifactError(
                        f"'{part.name}' expected to return '{name}' of type {old.spec}, got "
                        f"{x.spec}"
                    )
                found.append((old, values[id(x)]))
        return found

    def role(self, x: Array) -> str:
        """What a held array is for."""
        request = request_of(x)
        if request not in (None, FROZEN):
            return PARAMETER
        if id(x) in self.written or (request is None and self.names.is_state(x)):
            return STATE
        return CONSTANT

    def exported(self) -> list[Exported]:
        """The functions."""
        return [
            self._exported(p, [*updates, *made])
            for p, updates, made in zip(self.parts, self.updates, self.made, strict=True)
        ]

    def _exported(self, part: Part, updates: list[tuple[Array, Ref]]) -> Exported:
        results = list(part.results)
        shown = [ref for _, ref in results]
        arguments = {id(x): name for name, x in part.data}
        results += [
            (arguments[id(x)], ref) for x, ref in updates if part.is_data(x) and ref not in shown
        ]
        updates = [(x, ref) for x, ref in updates if not part.is_data(x)]
        outputs = [ref for _, ref in [*results, *updates]]
        leaves = {id(leaf.array): leaf for leaf in part.reads(outputs)}
        used = {name: x for name, x in self.held.items() if id(x) in leaves}
        roles = {name: self.role(x) for name, x in used.items()}
        inputs = [(n, x.spec, _kind(roles[n])) for n, x in used.items()]
        inputs += [(n, x.spec, graphs.DATA) for n, x in part.data]
        arrays = [*used.values(), *(x for _, x in part.data)]
        reads = {(leaves[id(x)].serial, 0): i for i, x in enumerate(arrays) if id(x) in leaves}
        graph = build(part.name, inputs, reads, needed(outputs), outputs)
        replaced = [self.names.of(x) for x, _ in updates]
        return Exported(
            graph=graph,
            roles=roles,
            held={n: self.values[n] for n in dict.fromkeys([*used, *replaced])},
            updates={len(results) + i: name for i, name in enumerate(replaced)},
            mode=part.mode,
            results=[*(name for name, _ in results), *replaced],
        )


def _kind(role: str) -> str:
    """The role of a graph's input for that of an artifact's."""
    return {PARAMETER: graphs.PARAMETER, STATE: graphs.AUXILIARY}.get(role, graphs.DATA)
