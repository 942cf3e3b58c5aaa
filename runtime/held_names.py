# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Names for the arrays that exported functions share: one for each array, however many functions
and objects hold it, out of what the user called things.

Arrays of a net have their paths in it ("layers.0.weight"), with the variable's name in front where
there are several nets. What an optimizer remembers stands below "optimizer", a loss scale below
"loss_scale", or below their variables' names where there are several; the state of go.random below
"random"; a gradient behind its variable, "layers.0.weight.grad". Other arrays have the name of
their variable, with attributes and keys behind it.
"""

import re
import types
from collections.abc import Iterable, Iterator
from typing import Any

from ..nn.module import Module
from ..optim.loss_scale import LossScale
from ..optim.optimizer import Optimizer
from . import generator
from .array import Array
from .walk import ATTRIBUTE, CELL, DEFAULT, GRADIENT, Place, Walk

KINDS = ((Module, ""), (Optimizer, "optimizer"), (LossScale, "loss_scale"))
"""What has arrays by name, and what stands in front of these where there is one of it."""


class Names:
    """The names for arrays that walks have found; `taken` are those of other things."""

    def __init__(self, walks: Iterable[Walk], taken: Iterable[str]) -> None:
        self.prefixes: dict[int, str] = {}  # of nets, optimizers and loss scales
        self._roots: list[Any] = []
        self._known: dict[int, str] = {}
        self._weak: dict[int, str] = {}
        self._given: dict[int, str] = {}
        self._taken = set(taken)
        self._keep: list[Any] = []
        self._gradients: dict[int, Array] = {}  # of which variable
        walks = list(walks)
        places = [(place, x) for w in walks for place, x in w.places if type(x) is Array]
        for kind, prefix in KINDS:
            self._take_all(_roots(kind, places), prefix)
        self._note(generator.state_arrays(), "random")
        for place, x in places:
            self._look(place, x)

    def _take_all(self, roots: list[tuple[Any, str]], alone: str) -> None:
        """Name what objects of one kind hold."""
        used: set[str] = set()
        for root, name in roots:
            prefix = alone if len(roots) == 1 else _free(name or type(root).__name__.lower(), used)
            used.add(prefix)
            self.prefixes[id(root)] = prefix
            self._roots.append(root)
            self._note(root.arrays(), prefix)

    def _note(self, arrays: dict[str, Any], prefix: str) -> None:
        for path, x in arrays.items():
            self._known.setdefault(id(x), ".".join(filter(None, (prefix, path))))

    def _look(self, place: Place, x: Array) -> None:
        if place.kind == GRADIENT:
            self._gradients[id(x)] = place.holder
            return
        inside = [p for p in _chain(place) if isinstance(p.holder, Optimizer)]
        name = ".".join(_keys(place)) if not inside else str(place.key)
        found = self._weak.get(id(x))
        if found is None or (not inside and name.count(".") < found.count(".")):
            self._weak[id(x)] = name

    # --- questions --------------------------------------------------------------------------------

    def gradients(self) -> dict[int, Array]:
        """By the identity of an array that holds a gradient, the variable."""
        return self._gradients

    def is_random(self, x: Array) -> bool:
        """Whether an array is a part of the state of go.random."""
        return any(x is y for y in generator.state_arrays().values())

    def is_state(self, x: Array) -> bool:
        """Whether an array belongs to a net, an optimizer or the state of go.random."""
        return id(x) in self._known

    def in_order(self, arrays: dict[int, Array]) -> list[Array]:
        """Arrays by identity: those of nets first, then optimizers' and others, as these have
        them.
        """
        return [arrays[i] for i in dict.fromkeys([*self._known, *arrays]) if i in arrays]

    def of(self, x: Array) -> str:
        """The name of an array, which it has from now on."""
        if id(x) not in self._given:
            if id(x) in self._gradients:
                name = f"{self.of(self._gradients[id(x)])}.grad"
            else:
                name = self._known.get(id(x)) or self._weak.get(id(x)) or "captured"
            self._given[id(x)] = name = _free(re.sub(r"[^A-Za-z0-9_.]", "_", name), self._taken)
            self._taken.add(name)
            self._keep.append(x)
        return self._given[id(x)]

    def within(self, made: Any, path: str) -> dict[str, Any]:
        """The arrays of a net, optimizer or loss scale that a function returns at a path, under the
        names of those that it stands for: the only one of its kind, or the one of that name.
        """
        kind, alone = next((kind, alone) for kind, alone in KINDS if isinstance(made, kind))
        several = sum(isinstance(x, kind) for x in self._roots) > 1
        prefix = path if several else alone
        return {".".join(filter(None, (prefix, n))): x for n, x in made.arrays().items()}


def _roots(kind: type, places: list[tuple[Place, Array]]) -> list[tuple[Any, str]]:
    """The outermost objects of a kind that hold arrays, each with the name of its variable."""
    found: dict[int, tuple[Any, list[str]]] = {}
    for place, _ in places:
        chain = _chain(place)
        if kind is Module and any(isinstance(p.holder, Optimizer) for p in chain):
            continue
        for p in chain:
            if p.kind == ATTRIBUTE and isinstance(p.holder, kind):
                keys = _keys(p.above) if p.above is not None else []
                known = found.get(id(p.holder))
                if known is None or len(keys) < len(known[1]):
                    found[id(p.holder)] = p.holder, keys
                break
    inner = {
        id(x)
        for root, _ in found.values()
        if isinstance(root, Module)
        for x in list(root.modules().values())[1:]
    }
    return [(x, ".".join(keys)) for x, keys in found.values() if id(x) not in inner]


def _chain(place: Place) -> list[Place]:
    """A place and those above it, the outermost first."""
    found: list[Place] = []
    at: Place | None = place
    while at is not None:
        found.append(at)
        at = at.above
    return found[::-1]


def _keys(place: Place) -> list[str]:
    """The name of a variable, then attributes and keys; what functions it was found through, and
    `self`, are left out.
    """
    chain = _chain(place)
    starts = [i for i, p in enumerate(chain) if _is_variable(p)]
    keys = [_key(p) for p in chain[starts[-1] if starts else 0 :] if p.key is not None]
    keys = [k for k in keys if k != "__self__"]
    return keys[1:] if keys[:1] == ["self"] and len(keys) > 1 else keys


def _key(place: Place) -> str:
    """What a place is called; those of defaults are numbers."""
    if place.kind == DEFAULT and isinstance(place.holder, types.FunctionType):
        code, defaults = place.holder.__code__, place.holder.__defaults__ or ()
        named = code.co_varnames[: code.co_argcount][-len(defaults) :] if defaults else ()
        named += tuple(place.holder.__kwdefaults__ or ())
        return named[place.key]
    return str(place.key)


def _is_variable(place: Place) -> bool:
    """Whether a place is that of a variable: of a closure, a module, or a default."""
    holder = place.holder
    is_global = isinstance(holder, dict) and "__builtins__" in holder
    return place.kind == CELL or is_global or (place.kind == DEFAULT and place.key is not None)


def _free(name: str, taken: set[str]) -> str:
    """The name, or one like it that is not taken."""
    return next(n for n in _numbered(name) if n not in taken)


def _numbered(name: str) -> Iterator[str]:
    yield name
    i = 1
    while True:
        yield f"{name}_{i}"
        i += 1
