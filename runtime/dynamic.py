# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Extents of arguments that are left open, so that one compiled module serves all sizes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..dialect import trees
from ..dialect.graph import argument_names, function_name, spec_of
from ..dialect.types import TensorSpec
from ..errors import ArgumentError

Axes = dict[int, str]
"""The open axes of an array, each with the name of its dimension; "" for one of its own."""


class Dynamic:
    """The option `dynamic` of go.compile: for arguments, by name or position, or arrays in them by
    their path, the open axes: `{"x": {0: "batch"}, "mask": 0}`.

    An axis with a name has the extent of all others of that name; one without, of its own.
    """

    def __init__(self, given: Any) -> None:
        if not isinstance(given, Mapping) or not given:
            raise _malformed(given)
        self.given: dict[Any, Axes] = {key: _axes(axes) for key, axes in given.items()}
        self._known: dict[Any, list[Axes]] = {}

    def axes(self, fn: Callable[..., Any], arguments: tuple[Any, ...]) -> list[Axes]:
        """The open axes of each leaf of the arguments. Raises ArgumentError for keys that no
        argument fits, and axes that an array does not have.
        """
        leaves, structure = trees.flatten(arguments)
        key = structure, tuple(len(_shape(leaf)) for leaf in leaves)
        if key not in self._known:
            self._known[key] = self._find(fn, arguments)
        return self._known[key]

    def _find(self, fn: Callable[..., Any], arguments: tuple[Any, ...]) -> list[Axes]:
        names = argument_names(fn, len(arguments))
        found: list[Axes] = []
        unused = set(self.given)
        paths: list[str] = []
        for position, (name, argument) in enumerate(zip(names, arguments, strict=True)):
            for path, leaf in trees.named_leaves(name, argument):
                paths.append(path)
                chosen: Axes = {}
                for key, axes in self.given.items():
                    if key == position or path == key or path.startswith(f"{key}."):
                        unused.discard(key)
                        chosen = chosen | _placed(function_name(fn), path, leaf, axes)
                found.append(chosen)
        if unused:
            raise ArgumentError(
                f"dynamic of '{function_name(fn)}' expected arguments out of {', '.join(paths)}, "
                f"got {', '.join(map(repr, unused))}"
            )
        return found

    def types(self, fn: Callable[..., Any], arguments: tuple[Any, ...]) -> list[TensorSpec]:
        """The types of the leaves, with open extents. Raises ArgumentError where extents of one
        name differ.
        """
        leaves = trees.leaves(arguments)
        axes = self.axes(fn, arguments)
        _check(fn, arguments, leaves, axes)
        return [
            spec.with_shape(tuple(None if i in a else n for i, n in enumerate(spec.shape)))
            for spec, a in zip(map(spec_of, leaves), axes, strict=True)
        ]

    def specs(self, fn: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments as types with open extents."""
        return trees.unflatten(trees.structure(arguments), self.types(fn, arguments))


def _axes(given: Any) -> Axes:
    """One entry of the option."""
    if isinstance(given, int) and not isinstance(given, bool):
        return {given: ""}
    if isinstance(given, Mapping):
        axes = {axis: name or "" for axis, name in given.items()}
    elif isinstance(given, Sequence) and not isinstance(given, str):
        axes = dict.fromkeys(given, "")
    else:
        raise _malformed(given)
    good = all(isinstance(a, int) and isinstance(n, str) for a, n in axes.items())
    if not good or not axes:
        raise _malformed(given)
    return axes


def _malformed(given: Any) -> ArgumentError:
    return ArgumentError(
        'dynamic expected axes of arguments, as {"x": {0: "batch"}, "mask": 0}, got '
        f"{given!r:.80}"
    )


def _shape(leaf: Any) -> tuple[Any, ...]:
    return leaf.shape if hasattr(leaf, "shape") else np.shape(leaf)


def _placed(function: str, path: str, leaf: Any, axes: Axes) -> Axes:
    """Axes counted from the front."""
    rank = len(_shape(leaf))
    for axis in axes:
        if not -rank <= axis < rank:
            raise ArgumentError(
                f"dynamic of '{function}' expected an axis of argument '{path}' of shape "
                f"{_shape(leaf)}, got {axis}"
            )
    return {axis % rank: name for axis, name in axes.items()}


def _check(
    fn: Callable[..., Any], arguments: tuple[Any, ...], leaves: list[Any], axes: list[Axes]
) -> None:
    """Raise where extents of one name differ."""
    known: dict[str, tuple[int, int]] = {}
    for i, chosen in enumerate(axes):
        shape = _shape(leaves[i])
        for axis, name in chosen.items():
            if not name:
                continue
            other, at = known.setdefault(name, (i, axis))
            extent, first = shape[axis], _shape(leaves[other])[at]
            if extent != first and None not in (extent, first):
                names = argument_names(fn, len(arguments))
                paths = [
                    path
                    for name_, argument in zip(names, arguments, strict=True)
                    for path, _ in trees.named_leaves(name_, argument)
                ]
                raise ArgumentError(
                    f"'{function_name(fn)}' expected one extent for the dimension '{name}', got "
                    f"{first} in argument '{paths[other]}' of shape {_shape(leaves[other])} and "
                    f"{extent} in argument '{paths[i]}' of shape {shape}"
                )
