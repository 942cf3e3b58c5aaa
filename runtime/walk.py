# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What a function works on beside its arguments: the arrays, numbers and objects that its code
names, in closures, globals, defaults and the attributes of objects.
"""

import collections
import copy
import functools
import os
import sys
import sysconfig
import types
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from .array import Array

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_FOLDERS = ("dialect", "lowering", "nn", "op_cases", "optim", "runtime", "tools")
_OTHERS = (
    *(os.path.join(_ROOT, folder) + os.sep for folder in _FOLDERS),
    *(os.path.abspath(sysconfig.get_path(n)) + os.sep for n in ("stdlib", "purelib", "platlib")),
)
ITEM, ATTRIBUTE, CELL = "item", "attribute", "cell"
DEFAULT, GRADIENT = "default", "gradient"  # cannot be set
CONTAINERS = (tuple, list, collections.deque, dict)
CONTENT = 1 << 12
"""Bytes up to which the elements of NumPy arrays that are no arguments are part of the key; of
larger ones a checksum is, with the array's identity.
"""
_SIMPLE = (bool, int, str, bytes, type(None))


class Same:
    """An object as part of a key: equal to itself alone."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return type(other) is Same and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


class Place:
    """Where an object was found: the one that holds it, and how; `path` names it for people."""

    __slots__ = ("above", "holder", "key", "kind")

    def __init__(self, above: "Place | None", holder: Any, kind: str, key: Any) -> None:
        self.above = above
        self.holder = holder
        self.kind = kind
        self.key = key

    @property
    def path(self) -> str:
        """Names with dots, such as `self.layers.0.weight`."""
        names: list[str] = []
        place: Place | None = self
        while place is not None:
            if place.key is not None:
                names.append(str(place.key))
            place = place.above
        return ".".join(reversed(names))

    @property
    def location(self) -> tuple[int, str, Any]:
        return id(self.holder), self.kind, self.key

    def set(self, value: Any) -> None:
        """Put an object here."""
        if self.kind == CELL:
            self.holder.cell_contents = value
        elif self.kind == ATTRIBUTE:
            setattr(self.holder, self.key, value)
        else:
            self.holder[self.key] = value


class Walk:
    """The arrays that are found, each once, in an order that depends on nothing but the structure;
    the places of arrays and numbers; and a key that is equal where all else is.

    A class may name attributes in `NOTES` that are not looked into, as no result depends on them;
    its `after_replay` is called after each call of a compiled form. A class of functions that are
    made of others names the attributes that hold those in `WRAPS`.
    """

    def __init__(self, arguments: dict[str, Any], fn: Any) -> None:
        self.arrays: list[Any] = []  # NumPy's, where they are arguments
        self.places: list[tuple[Place, Any]] = []  # of arrays and simple values
        self.where: list[Place] = []  # of each array
        self.containers: list[Any] = []  # that can be changed, attributes of objects among them
        self.noted: list[Any] = []  # objects with notes of their own on gradients
        self._key: list[Any] = []
        self._seen: dict[int, int] = {}
        self._keep: list[Any] = []
        self._pending: list[tuple[Any, Place, bool]] = []
        self._push([(x, Place(None, None, ITEM, name)) for name, x in arguments.items()], True)
        self._run()
        self._push([(fn, Place(None, None, ITEM, None))], False)
        self._run()
        self.key = tuple(self._key)

    def _push(self, found: list[tuple[Any, Place]], given: bool) -> None:
        self._pending += [(x, place, given) for x, place in reversed(found)]

    def _run(self) -> None:
        while self._pending:
            x, place, given = self._pending.pop()
            kind = type(x)
            if kind is Array:
                self._array(x, place)
            elif kind in _SIMPLE:
                self._key += kind, x
                self.places.append((place, x))
            elif kind is float or kind is complex or isinstance(x, np.generic):
                self._key += kind, repr(x)  # 0.0 and -0.0 differ, and a NaN is one
                self.places.append((place, x))
            elif kind is np.ndarray and given:
                self.places.append((place, x))
                if id(x) in self._seen:
                    self._key += "seen", self._seen[id(x)]
                else:
                    self._take(x, place)
            elif id(x) in self._seen:
                self._key += "seen", self._seen[id(x)]
            else:
                self._seen[id(x)] = len(self._seen)
                self._keep.append(x)
                self._push(self._inside(x, place), given and isinstance(x, CONTAINERS))

    def _array(self, x: Array, place: Place) -> None:
        self.places.append((place, x))
        if id(x) in self._seen:
            self._key += "seen", self._seen[id(x)]
            return
        self._take(x, place)
        if x._history is not None:
            mark = x._history.mark
            self._key += "history", None if mark is None else mark.request
            if mark is not None and mark.gradient is not None:
                self._push([(mark.gradient, Place(place, x, GRADIENT, "grad"))], False)

    def _take(self, x: Any, place: Place) -> None:
        self._seen[id(x)] = len(self._seen)
        self.arrays.append(x)
        self.where.append(place)
        self._key += type(x), x.shape, x.dtype

    def _inside(self, x: Any, place: Place) -> list[tuple[Any, Place]]:
        """What an object holds, with what is to be in the key of it."""
        kind = type(x)
        if isinstance(x, tuple | list | collections.deque):
            self._key += kind, len(x)
            if not isinstance(x, tuple):
                self.containers.append(x)
            return [(child, Place(place, x, ITEM, i)) for i, child in enumerate(x)]
        if isinstance(x, dict):
            self.containers.append(x)
            self._key += kind, *(k if isinstance(k, _SIMPLE) else Same(k) for k in x)
            return [(child, Place(place, x, ITEM, k)) for k, child in x.items()]
        if kind is types.MethodType:
            self._key.append(kind)
            return [
                (x.__self__, Place(place, x, ATTRIBUTE, "__self__")),
                (x.__func__, Place(place.above, x, ATTRIBUTE, None)),
            ]
        if isinstance(x, functools.partial):
            self._key.append(kind)
            parts = ("func", x.func), ("args", x.args), ("keywords", x.keywords)
            return [(part, Place(place, x, ATTRIBUTE, name)) for name, part in parts]
        if kind is types.FunctionType:
            return self._function(x, place)
        if kind is np.ndarray and x.dtype != object:
            self._key += x.shape, x.dtype, content(x)
            return []
        if isinstance(x, set | frozenset):
            self._key += kind, frozenset(k if isinstance(k, _SIMPLE) else Same(k) for k in x)
            return []
        if wrapped := getattr(kind, "WRAPS", ()):
            self._key.append(kind)
            return [(getattr(x, n), Place(place, x, DEFAULT, None)) for n in wrapped]
        if is_own(kind):
            return self._object(x, place)
        self._key.append(Same(x))
        return []

    def _function(self, fn: types.FunctionType, place: Place) -> list[tuple[Any, Place]]:
        if not is_user_code(fn.__code__.co_filename):
            self._key.append(Same(fn))
            return []
        self._key.append(fn.__code__)
        found: list[tuple[Any, Place]] = []
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=False):
            try:
                found.append((cell.cell_contents, Place(place, cell, CELL, name)))
            except ValueError:  # it is set later
                self._key.append(name)
        for name in names_in(fn.__code__):
            if name in fn.__globals__ and not isinstance(fn.__globals__[name], types.ModuleType):
                found.append((fn.__globals__[name], Place(place, fn.__globals__, ITEM, name)))
        defaults = [*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values()]
        found += [(x, Place(place, fn, DEFAULT, i)) for i, x in enumerate(defaults)]
        return found

    def _object(self, x: Any, place: Place) -> list[tuple[Any, Place]]:
        self._key.append(type(x))
        found: list[tuple[Any, Place]] = []
        notes = getattr(type(x), "NOTES", ())
        if notes:
            self.noted.append(x)
        if hasattr(x, "__dict__"):
            self.containers.append(x.__dict__)
        for name, value in getattr(x, "__dict__", {}).items():
            if name in notes:
                continue
            found.append((value, Place(place, x, ATTRIBUTE, name)))
            self._key.append(name)
        for name in slots_of(type(x)):
            if hasattr(x, name):
                found.append((getattr(x, name), Place(place, x, ATTRIBUTE, name)))
        for base in user_classes(type(x)):  # what instances have in common
            for name, value in vars(base).items():
                if type(value) in _SHARED and not name.startswith("__"):
                    found.append((value, Place(place, base, ATTRIBUTE, name)))
        methods = [(fn, Place(place, x, ATTRIBUTE, None)) for fn in methods_of(type(x))]
        return found + methods


def content(x: np.ndarray) -> Any:
    """What tells an array's elements from others."""
    if x.nbytes <= CONTENT:
        return x.tobytes()
    flat = np.ascontiguousarray(x).reshape(-1).view(np.uint8)
    return Same(x), zlib.crc32(flat.data)


@functools.lru_cache(maxsize=4096)
def names_in(code: types.CodeType) -> tuple[str, ...]:
    """The names that code and the functions in it look up, attributes among them."""
    found: dict[str, None] = {}
    pending = [code]
    while pending:
        one = pending.pop()
        found.update(dict.fromkeys(one.co_names))
        pending += [c for c in one.co_consts if isinstance(c, types.CodeType)]
    return tuple(found)


@functools.lru_cache(maxsize=4096)
def is_user_code(file: str) -> bool:
    """Whether code is neither gradopt's nor of an installed package."""
    path = os.path.abspath(file)
    return not path.startswith(_OTHERS) and not file.startswith("<frozen")


@functools.lru_cache(maxsize=4096)
def is_own(kind: type) -> bool:
    """Whether objects of a class are looked into: classes of the user and of gradopt."""
    if kind.__module__ == "builtins" or issubclass(kind, type | types.ModuleType | types.CodeType):
        return False
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None) or ""
    if kind.__module__.startswith(_PACKAGE + "."):
        return kind.__module__.startswith(_LOOKED_INTO)
    return is_user_code(file) if file else kind.__module__ == "__main__"


_SHARED = (Array, float, complex, dict, list, tuple, *_SIMPLE)
_PACKAGE = __name__.split(".", maxsplit=1)[0]
_LOOKED_INTO = (f"{_PACKAGE}.nn", f"{_PACKAGE}.optim")


@functools.lru_cache(maxsize=4096)
def user_classes(kind: type) -> tuple[type, ...]:
    """The class and its bases that are the user's."""
    files = [getattr(sys.modules.get(c.__module__), "__file__", None) for c in kind.__mro__]
    pairs = zip(kind.__mro__, files, strict=True)
    return tuple(
        c for c, file in pairs if c.__module__ == "__main__" or (file and is_user_code(file))
    )


@functools.lru_cache(maxsize=4096)
def slots_of(kind: type) -> tuple[str, ...]:
    found: list[str] = []
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        found += (slots,) if isinstance(slots, str) else slots
    return tuple(n for n in found if n not in ("__dict__", "__weakref__"))


@functools.lru_cache(maxsize=4096)
def methods_of(kind: type) -> tuple[types.FunctionType, ...]:
    """The functions of a user's class, which may name globals."""
    found: list[types.FunctionType] = []
    for base in kind.__mro__:
        for member in base.__dict__.values():
            member = member.fget if isinstance(member, property) else member
            member = getattr(member, "__func__", member)
            if type(member) is types.FunctionType and is_user_code(member.__code__.co_filename):
                found.append(member)
    return tuple(found)


def differences(before: Walk, after: Walk) -> Iterator[tuple[Place, Any, Any]]:
    """The places whose object is another one now: place, object before (None for none), after."""
    known = {place.location: x for place, x in before.places}
    for place, x in after.places:
        old = known.get(place.location, before)
        if old is before:
            yield place, None, x
        elif old is not x and not (type(old) is type(x) and type(x) is not Array and old == x):
            yield place, old, x


class Saved:
    """Containers as they are, to be put back."""

    def __init__(self, containers: list[Any]) -> None:
        self._saved = [(x, copy.copy(x)) for x in containers]

    def put_back(self) -> None:
        """Have the containers hold what they held."""
        for container, before in self._saved:
            if isinstance(container, dict):
                if list(container) != list(before) or any(
                    container[k] is not v for k, v in before.items()
                ):
                    container.clear()
                    container.update(before)
            elif len(container) != len(before) or any(
                a is not b for a, b in zip(container, before, strict=True)
            ):
                container.clear()
                container.extend(before)
