# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Writing artifacts: folders of compiled functions, initial values and a manifest, which train and
infer where neither gradopt nor a compiler is installed. docs/artifacts.md describes the files.
"""

import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import ArtifactError
from ..lowering.target import Target, families
from ..lowering.target import target as find_target
from . import folder as folders
from . import manifest
from .build import build, build_fat, part, without_constants
from .export_functions import checked, exported_functions
from .exported import CONSTANT, Exported, held_by, roles_of
from .options import rematerialization
from .weights import SAFETENSORS, formats, named_arrays, split, write_weights

GRAPH = "graph.mlir"
SEPARATOR = "\n// -----\n\n"
"""Between the functions there, as gradopt-opt takes it."""
LOADER = pathlib.Path(__file__).resolve().parent.parent / "deploy.py"
"""What loads artifacts: a copy goes into each."""


def export(
    folder: str | pathlib.Path,
    functions: Mapping[str, tuple[Any, ...]],
    parameters: Mapping[str, Any] | None = None,
    *,
    state: Mapping[str, Any] | None = None,
    modes: Mapping[str, str] | None = None,
    targets: str | Sequence[str] = "cpu",
    fat: bool = False,
    donate: bool = True,
    static_alloc: bool = True,
    memory_budget: float | int | str | None = None,
    remat: str | None = None,
    weights: str | Sequence[str] = (SAFETENSORS,),
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

    Functions may also be eager ones over nets and optimizers, hybridized ones, and modules: what
    they read and write beside their arguments is held by the artifact; see `export_stateful`.

    `modes` says of functions whether they are exported in training ("train": dropout drops, batch
    norm uses the statistics of the batch) or for inference ("infer"); so does {"mode": ...} as the
    third behind function and arguments. Without it a function that updates parameters, their
    gradients or an optimizer is in training, and all others are for inference.

    There is a module for each of the `targets` ("cpu", "cpu:x86-64-v3", "vulkan", "cuda:sm_80"),
    compiled side by side, or with `fat` one for all. With `donate`, a new value takes over the
    memory of the old one; with `static_alloc`, functions whose extents are all known allocate
    nothing. `memory_budget` and `remat` recompute values in training, as those of `go.compile` do.
    `weights` says how initial values are written, "safetensors", "irpa" (IREE's format),
    both, or () for those of constants alone; `licence` is theirs. `name` is that of the folder
    unless given.

    The folder appears whole or not at all, in the place of an artifact that stood there. Raises
    ArtifactError for what does not fit together, for a folder that holds something else, and where
    several targets are asked for and not all can be had; PassError for what a target cannot do;
    CompileError where IREE fails.
    """
    arrays, roles = named_arrays(parameters, state)
    held = {*(parameters or {}), *(state or {})}
    exported = exported_functions(checked(functions, modes or {}), held, arrays, roles)
    _check_all_used(exported, arrays)
    return write_artifact(
        folder,
        exported,
        targets,
        fat=fat,
        donate=donate,
        static_alloc=static_alloc,
        remat=rematerialization(memory_budget, remat),
        weights=weights,
        licence=licence,
        name=name,
    )


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
    fat: bool = False,
    donate: bool = True,
    static_alloc: bool = True,
    remat: str = "",
    weights: str | Sequence[str] = (SAFETENSORS,),
    licence: str | None = None,
    name: str | None = None,
) -> pathlib.Path:
    """Write an artifact of exported functions, as `export` does for Python functions. `remat` are
    the options of gradopt-rematerialize, for functions in training or with derivatives.
    """
    path = pathlib.Path(folder)
    chosen, kinds = _targets(targets), formats(weights)
    _check(functions)
    functions = [without_constants(one) for one in functions]
    roles = roles_of(functions)
    arrays, zeros = split(held_by(functions), roles)
    if not kinds:  # constants cannot be given later
        kinds = [SAFETENSORS]
        arrays = {name: a for name, a in arrays.items() if roles[name] == CONSTANT}
    before = _files_of(path)
    title = name or path.resolve().name
    parts = [part(one, donate, static_alloc, remat) for one in functions]
    images = build_fat(parts, chosen, title) if fat else build(parts, chosen, title)
    with folders.written_whole(path, before) as new:
        for file, image in images.files.items():
            (new / file).write_bytes(image)
        write_weights(new, arrays, kinds, licence)
        (new / GRAPH).write_text(SEPARATOR.join(one.text() for one in parts))
        (new / "gradopt_deploy.py").write_bytes(LOADER.read_bytes())
        storage = {one.name: one.storage for one in parts}
        about = {
            "format": manifest.FORMAT,
            "name": title,
            "versions": manifest.made_by(),
            "licence": licence,
            "modules": [
                manifest.module_entry(target, file, images.files[file], storage)
                for target, file in zip(chosen, images.names, strict=True)
            ],
            "functions": [manifest.entry(one, storage[one.name], roles) for one in functions],
            "zeros": zeros,
            "files": {p.name: folders.digest(p) for p in sorted(new.iterdir())},
        }
        (new / manifest.FILE).write_text(manifest.text(about))
    return path


def _files_of(folder: pathlib.Path) -> list[str]:
    """The files of the artifact that stands in a folder, none if there is none. Raises
    ArtifactError where something else stands there, which is not to be replaced.
    """
    if folder.exists() and not folder.is_dir():
        raise ArtifactError(f"expected '{folder}' to be a folder, or not there, got a file")
    if not folder.is_dir() or not any(folder.iterdir()):
        return []
    if (old := manifest.read(folder)) is None:
        raise ArtifactError(
            f"expected '{folder}' to be an artifact, an empty folder or not there, got a folder "
            "with other files; choose another name"
        )
    return [manifest.FILE, *old["files"]]


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
