# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Python functions that tools compile: `package.module:function` or `file.py:function`."""

import importlib
import importlib.util
import inspect
import os
import pathlib
import re
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from ..dialect.graph import trace
from ..dialect.modes import mode
from ..dialect.types import TensorSpec
from ..errors import ArgumentError
from ..runtime.dynamic import Dynamic
from ..runtime.program import Program

PLACE = re.compile(r"(?P<module>.+\.py|[A-Za-z_][\w.]*):(?P<name>[A-Za-z_][\w.]*)")


def is_place(text: str) -> bool:
    """Whether an input is a Python function's place, and no file's name."""
    return PLACE.fullmatch(text) is not None and not os.path.exists(text)


def load(text: str) -> tuple[ModuleType, str]:
    """The module and the function's name. Raises ArgumentError where there is none."""
    match = PLACE.fullmatch(text)
    assert match is not None
    name = match["module"]
    try:
        module = _of_file(pathlib.Path(name)) if name.endswith(".py") else _of_name(name)
    except (ImportError, OSError) as error:
        raise ArgumentError(f"cannot import '{name}': {error}") from None
    return module, match["name"]


def _of_file(path: pathlib.Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.resolve().parent))  # as `python file.py` has it
    spec.loader.exec_module(module)
    return module


def _of_name(name: str) -> ModuleType:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return importlib.import_module(name)


def function(module: ModuleType, name: str) -> Callable[..., Any]:
    """A function of a module by name, with dots for what is inside of classes and objects."""
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise ArgumentError(f"'{module.__name__}' expected to have a function '{name}'")
        found = getattr(found, part)
    if not callable(found):
        raise ArgumentError(
            f"'{module.__name__}:{name}' expected to be a function, got {found!r:.60}"
        )
    return found


class Types:
    """The types of arguments by name, of which each function takes those that it has."""

    def __init__(
        self, given: Sequence[tuple[str, TensorSpec]], dynamic: Sequence[tuple[str, int, str]]
    ) -> None:
        self.trees = _trees(given)
        self.open: dict[str, dict[int, str]] = {}
        for name, axis, dimension in dynamic:
            self.open.setdefault(name, {})[axis] = dimension
        self.used: set[str] = set()

    def program(self, fn: Callable[..., Any], name: str, traced_for: str) -> Program:
        """A function, traced in a mode. Raises ArgumentError for arguments whose type is not given,
        TraceError where it cannot be traced.
        """
        arguments = self._arguments(fn, name)
        own = {path: axes for path, axes in self.open.items() if path.split(".")[0] in arguments}
        types = tuple(arguments.values())
        if own:
            types = Dynamic(own).specs(fn, types)
        with mode(traced_for):
            return Program.of_graph(trace(fn, *types, name=name))

    def _arguments(self, fn: Callable[..., Any], name: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        missing = ""
        for parameter in inspect.signature(fn).parameters.values():
            if parameter.name in self.trees and not missing:
                found[parameter.name] = self.trees[parameter.name]
            elif parameter.default is parameter.empty or parameter.name in self.trees:
                missing = missing or parameter.name
                raise ArgumentError(
                    f"'{name}' expected the type of argument '{missing}'; give --input "
                    f"{missing}=4x8xfloat32"
                )
            else:  # left to its default, as are all behind it
                missing = parameter.name
        self.used |= set(found)
        return found

    def check_used(self) -> None:
        """Raise ArgumentError for a type or an open axis that no function has an argument for."""
        for name in [*self.trees, *(path.split(".")[0] for path in self.open)]:
            if name not in self.used:
                raise ArgumentError(f"no function has an argument '{name}'; leave it out")


def _trees(given: Sequence[tuple[str, TensorSpec]]) -> dict[str, Any]:
    """Arguments put together from their leaves: "p.w" is the key w of p, "p.0" the first of p."""
    found: dict[str, Any] = {}
    for path, spec in given:
        *above, last = path.split(".")
        at: Any = found
        for part in above:
            at = at.setdefault(part, {})
            if not isinstance(at, dict):
                raise ArgumentError(
                    f"--input '{path}' expected '{part}' to have no type of its own"
                )
        if last in at:
            raise ArgumentError(f"--input expected '{path}' once")
        at[last] = spec
    return {name: _listed(tree) for name, tree in found.items()}


def _listed(tree: Any) -> Any:
    """A tree with lists where all keys are positions."""
    if not isinstance(tree, dict):
        return tree
    inner = {key: _listed(value) for key, value in tree.items()}
    positions = [str(i) for i in range(len(inner))]
    return [inner[i] for i in positions] if sorted(inner) == sorted(positions) else inner
