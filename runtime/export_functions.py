# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Which Python functions go.export takes, and what becomes of each."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from ..dialect import modes
from ..dialect.graph import Graph, argument_names, trace
from ..errors import ArtifactError
from .export_hybrid import export_stateful, is_stateful
from .exported import MODES, PARAMETER, Exported

Given = tuple[Callable[..., Any], Sequence[Any], str | None]
"""A function, the arguments that it is compiled for, and its mode, None where nobody says."""


def checked(functions: Any, chosen: Mapping[str, str]) -> dict[str, Given]:
    """What is to be exported, by name; ArtifactError where it is not given as `export` wants it."""
    if not isinstance(functions, Mapping):
        raise ArtifactError(
            "export expected a dict of names and (function, arguments), got "
            f"{type(functions).__name__}"
        )
    if unknown := [name for name in chosen if name not in functions]:
        raise ArtifactError(
            f"modes expected names out of {', '.join(functions)}, got '{unknown[0]}'"
        )
    return {name: _one(name, about, chosen.get(name)) for name, about in functions.items()}


def _one(name: str, about: Any, mode: str | None) -> Given:
    is_given = isinstance(about, tuple | list) and 2 <= len(about) <= 3 and callable(about[0])
    if not is_given or isinstance(about[1], str) or not isinstance(about[1], Sequence):
        raise ArtifactError(
            f"export expected a pair (Python function, arguments) as '{name}', got {about!r:.60}"
        )
    options = about[2] if len(about) == 3 else {}
    if not isinstance(options, Mapping) or not set(options) <= {"mode"}:
        raise ArtifactError(
            f"export expected {{'mode': ...}} as the third of '{name}', got {options!r:.60}"
        )
    mode = mode or options.get("mode")
    if mode is not None and mode not in MODES:
        raise ArtifactError(f"the mode of '{name}' expected 'train' or 'infer', got {mode!r}")
    if mode is None and not modes.is_training():
        mode = "infer"
    return about[0], about[1], mode


def exported_functions(
    functions: Mapping[str, Given],
    held: Collection[str],
    arrays: Mapping[str, np.ndarray],
    roles: Mapping[str, str],
) -> list[Exported]:
    """The functions of an artifact. Those that have an argument out of `held`, whose leaves are
    `arrays`, are functions of their arguments; so are all others, unless one of these works on
    arrays of its own.
    """
    others = {
        name: about
        for name, about in functions.items()
        if not set(argument_names(about[0], len(about[1]))) & set(held)
    }
    if not any(is_stateful(fn, arguments) for fn, arguments, _ in others.values()):
        others = {}
    stateful = export_stateful(others) if others else []
    found = {e.name: _with_updates(e, arrays) for e in stateful}
    return [
        found[name] if name in found else _of_arguments(name, *about, arrays, roles)
        for name, about in functions.items()
    ]


def _with_updates(e: Exported, arrays: Mapping[str, np.ndarray]) -> Exported:
    """The function with its results that are new values of arrays that the artifact holds."""
    new = {i: name for i, name in enumerate(e.result_names()) if name in arrays}
    held = {name: arrays[name] for name in new.values()}
    return dataclasses.replace(e, updates={**new, **e.updates}, held={**held, **e.held})


def _of_arguments(
    name: str,
    fn: Callable[..., Any],
    arguments: Sequence[Any],
    mode: str | None,
    arrays: Mapping[str, np.ndarray],
    roles: Mapping[str, str],
) -> Exported:
    """A function of its arguments, some of which the artifact holds; in training if it updates
    parameters.
    """

    def traced(mode: str) -> tuple[Graph, dict[int, str]]:
        with modes.mode(mode):
            graph = trace(fn, *arguments, name=name)
        results = Exported(graph).result_names()
        return graph, {i: result for i, result in enumerate(results) if result in arrays}

    graph, updates = traced(mode or "train")
    if mode is None:
        mode = "train" if any(roles[n] == PARAMETER for n in updates.values()) else "infer"
        if mode == "infer":
            graph, updates = traced(mode)
    mine = {n: roles[n] for n in graph.input_names if n in arrays}
    used = {n: arrays[n] for n in [*mine, *updates.values()]}
    return Exported(graph, mine, used, updates, mode)
