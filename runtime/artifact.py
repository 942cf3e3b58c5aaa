# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Writing artifacts: folders of compiled functions, initial values and a manifest, which train and
infer where neither gradopt nor a compiler is installed. docs/artifacts.md describes the files.
"""

import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..dialect.graph import trace
from ..dialect.modes import is_training
from ..dialect.types import TensorSpec
from ..errors import ArtifactError
from ..lowering.target import Target, families
from ..lowering.target import target as find_target
from . import folder as folders
from . import manifest, weights
from .build import build, part
from .exported import STATE, Exported, held_by, roles_of, spec_of

GRAPH = "graph.mlir"
LOADER = pathlib.Path(__file__).resolve().parent.parent / "deploy.py"
"""What loads artifacts: a copy goes into each."""


def export(
    folder: str | pathlib.Path,
    functions: Mapping[str, tuple[Callable[..., Any], Sequence[Any]]],
    parameters: Mapping[str, Any] | None = None,
    *,
    state: Mapping[str, Any] | None = None,
    targets: str | Sequence[str] = "cpu",
    donate: bool = True,
    static_alloc: bool = True,
    licence: str | None = None,
    name: str | None = None,
) -> pathlib.Path:
    """Write an artifact, a folder, and return its path.

    `functions` maps names to Python functions with the arguments they are compiled for: trees of
    TensorSpec (None for an extent known only at run time) or arrays that stand for their type.
    `parameters` and `state` (optimizer state, statistics, counters) map names of arguments to trees
    of arrays: what the artifact holds, under the argument's name and the path in its tree ("p.w").
    Arguments of those names are read from there, all others are given by the caller. A result whose
    path has such a name is the new value of that array: of {"p": {"w": ...}, "loss": ...}, "p.w"
    is.

    """
    arrays, roles = weights.named_arrays({"parameter": parameters, "state": state})
    exported = [_exported(*one, arrays, roles) for one in _checked(functions)]
    _check_all_used(exported, arrays)
    return write_artifact(
        folder,
        exported,
        targets,
        donate=donate,
        static_alloc=static_alloc,
        licence=licence,
        name=name,
    )


def _checked(functions: Any) -> list[tuple[str, Callable[..., Any], Sequence[Any]]]:
    """Names, functions and arguments of what is to be exported."""
    if not isinstance(functions, Mapping):
        raise ArtifactError(
            "export expected a dict of names and (function, arguments), got "
            f"{type(functions).__name__}"
        )
    for name, pair in functions.items():
        if not (isinstance(pair, tuple | list) and len(pair) == 2 and callable(pair[0])):
            raise ArtifactError(
                f"export expected a pair (Python function, arguments) as '{name}', got {pair!r:.60}"
            )
    return [(name, fn, arguments) for name, (fn, arguments) in functions.items()]


def _exported(
    name: str,
    fn: Callable[..., Any],
    arguments: Sequence[Any],
    arrays: Mapping[str, np.ndarray],
    roles: Mapping[str, str],
) -> Exported:
    """A Python function, traced for an artifact that holds arrays."""
    graph = trace(fn, *arguments, name=name)
    mine = {n: roles[n] for n in graph.input_names if n in arrays}
    results = Exported(graph).result_names()
    updates = {i: result for i, result in enumerate(results) if result in arrays}
    used = {n: arrays[n] for n in [*mine, *updates.values()]}
    return Exported(graph, mine, used, updates, "train" if is_training() else "infer")


def _check_all_used(functions: Sequence[Exported], arrays: Mapping[str, np.ndarray]) -> None:
    used = {name for function in functions for name in function.held}
    for name in arrays:
        if name not in used:
            inputs = sorted({n for function in functions for n in function.graph.input_names})
            raise ArtifactError(
                f"'{name}' expected to be an input of an exported function, which are "
                f"{', '.join(inputs)}; name it as the function's argument"
            )


def write_artifact(
    folder: str | pathlib.Path,
    functions: Sequence[Exported],
    targets: str | Sequence[str] = "cpu",
    *,
    donate: bool = True,
    static_alloc: bool = True,
    licence: str | None = None,
    name: str | None = None,
) -> pathlib.Path:
    """Write an artifact of exported functions, as `export` does for Python functions."""
    path = pathlib.Path(folder)
    chosen = _targets(targets)
    _check(functions)
    arrays, roles = held_by(functions), roles_of(functions)
    parts = [part(one, donate, static_alloc) for one in functions]
    title = name or path.resolve().name
    images = build(parts, chosen, title)
    about = {
        "format": manifest.FORMAT,
        "name": title,
        "versions": manifest.made_by(),
        "licence": licence,
    }
    storage = {one.name: one.storage for one in parts}
    with folders.written_whole(path) as new:
        about["modules"] = []
        for target, image in zip(chosen, images, strict=True):
            file = f"{target.name.replace(':', '-')}.vmfb"
            (new / file).write_bytes(image)
            about["modules"].append(manifest.module_entry(target, file, image, storage))
        about["functions"] = [manifest.entry(one, storage[one.name], roles) for one in functions]
        weights.write_weights(new, _values(arrays), licence)
        (new / GRAPH).write_text(_texts(functions))
        if LOADER.exists():
            (new / "gradopt_deploy.py").write_bytes(LOADER.read_bytes())
        about["files"] = {p.name: folders.digest(p) for p in sorted(new.iterdir())}
        (new / manifest.FILE).write_text(manifest.text(about))
    return path


def _targets(names: str | Sequence[str]) -> list[Target]:
    """The targets by name. Raises for none, for one named twice, and for those that IREE does not
    compile for.
    """
    given = [names] if isinstance(names, str) else list(names)
    found = [find_target(name) for name in given]
    if not found:
        raise ArtifactError("export expected at least one target, got none")
    for one in found:
        if not one.ladder:
            known = ", ".join(n for n, family in families().items() if family.is_compiled)
            raise ArtifactError(
                f"export expected targets of the families {known}, got '{one.name}', which keeps "
                "no files"
            )
    known_names = [one.name for one in found]
    if twice := next((n for n in known_names if known_names.count(n) > 1), None):
        raise ArtifactError(f"export expected each target once, got '{twice}' twice")
    return found


SYMBOL = re.compile(r"(?!__)[A-Za-z_][A-Za-z0-9_]*")


def _check(functions: Sequence[Exported]) -> None:
    if not functions:
        raise ArtifactError("export expected at least one function, got none")
    names = [one.name for one in functions]
    for one in functions:
        if not SYMBOL.fullmatch(one.name):
            raise ArtifactError(
                "export expected names of functions to be of letters, digits and _, and not to "
                f"start with __, got '{one.name}'"
            )
        if names.count(one.name) > 1:
            raise ArtifactError(f"export expected functions of different names, got '{one.name}'")
        one.check()


def _values(arrays: Mapping[str, np.ndarray | TensorSpec]) -> dict[str, np.ndarray]:
    return {name: a for name, a in arrays.items() if not isinstance(a, TensorSpec)}


def _texts(functions: Sequence[Exported]) -> str:
    """The functions in the dialect, each a module of its own."""
    return "\n".join(f"// {one.name}\n{one.graph.mlir()}" for one in functions)


__all__ = ["STATE", "Exported", "export", "spec_of", "write_artifact"]
