# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The arrays of an artifact by name, and the files that their initial values stand in."""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors.numpy

from ..dialect import trees
from ..dialect.creation import as_array
from ..errors import ArtifactError
from .exported import PARAMETER, STATE

FORMATS = {"safetensors": "weights.safetensors"}
"""The files that weights can be written to."""


def named_arrays(trees_by_role: Mapping[str, Mapping[str, Any] | None]) -> Any:
    """Arrays under the names that their inputs have, the argument's name and the path in its tree,
    and the role of each: `{"parameter": {argument: tree}, "state": ...}`.
    """
    arrays: dict[str, np.ndarray] = {}
    roles: dict[str, str] = {}
    for role in (PARAMETER, STATE):
        for argument, tree in (trees_by_role.get(role) or {}).items():
            for name, leaf in trees.named_leaves(argument, tree):
                if name in arrays:
                    raise ArtifactError(
                        f"two arrays of the artifact are called '{name}'; rename one of the keys"
                    )
                arrays[name], roles[name] = as_array(leaf), role
    return arrays, roles


def write_weights(
    folder: pathlib.Path, arrays: Mapping[str, np.ndarray], licence: str | None
) -> list[str]:
    """Write the initial values to a folder; returns the names of the files."""
    if not arrays:
        return []
    notes = {"licence": licence} if licence else None
    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    name = FORMATS["safetensors"]
    safetensors.numpy.save_file(contiguous, folder / name, notes)
    return [name]
