# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The arrays of an artifact by name, and the files that their initial values stand in."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import iree.runtime as iree
import numpy as np
import safetensors

from ..deploy import safetensors_pieces
from ..dialect import trees
from ..dialect.creation import as_array
from ..dialect.types import TensorSpec, bfloat16
from ..errors import ArtifactError
from .exported import PARAMETER, STATE

SAFETENSORS, IRPA = "safetensors", "irpa"
FORMATS = {SAFETENSORS: "weights.safetensors", IRPA: "weights.irpa"}
"""The files that initial values can be written to."""

DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": bfloat16,
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U64": np.dtype(np.uint64),
    "U32": np.dtype(np.uint32),
    "U16": np.dtype(np.uint16),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
"""Element types as safetensors names them; its own NumPy loader does not know BF16."""


def named_arrays(
    parameters: Mapping[str, Any] | None, state: Mapping[str, Any] | None
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Arrays under the names that their inputs have, the argument's name and the path in its tree,
    and the role of each.
    """
    arrays: dict[str, np.ndarray] = {}
    roles: dict[str, str] = {}
    for role, given in ((PARAMETER, parameters), (STATE, state)):
        for argument, tree in (given or {}).items():
            for name, leaf in trees.named_leaves(argument, tree):
                if name in arrays:
                    raise ArtifactError(
                        f"two arrays of the artifact are called '{name}'; rename one of the keys"
                    )
                arrays[name], roles[name] = as_array(leaf), role
    return arrays, roles


def formats(given: str | Sequence[str]) -> list[str]:
    """The kinds of files that are asked for; ArtifactError for one that there is not."""
    names = [given] if isinstance(given, str) else list(given)
    for name in names:
        if name not in FORMATS:
            raise ArtifactError(f"weights expected kinds out of {', '.join(FORMATS)}, got '{name}'")
    return list(dict.fromkeys(names))


def split(
    arrays: Mapping[str, np.ndarray | TensorSpec], roles: Mapping[str, str]
) -> tuple[dict[str, np.ndarray], list[str]]:
    """The arrays that have to be written, and the names of state that starts as zeros, of which a
    file would only be large. Arrays without a value are in neither.
    """
    values = {n: np.asarray(a, order="C") for n, a in arrays.items() if isinstance(a, np.ndarray)}
    zeros = [n for n, a in values.items() if roles[n] == STATE and _is_zero(a)]
    return {n: a for n, a in values.items() if n not in set(zeros)}, sorted(zeros)


def _is_zero(array: np.ndarray) -> bool:
    """Whether all bits are 0; those of -0.0 are not."""
    return not array.reshape(-1).view(np.uint8).any()


def write_weights(
    folder: pathlib.Path,
    arrays: Mapping[str, np.ndarray],
    kinds: Sequence[str],
    licence: str | None,
) -> None:
    """Write arrays, contiguous ones, to a folder, a file of each kind; none for no arrays."""
    if arrays and SAFETENSORS in kinds:
        notes = {"licence": licence} if licence else {}
        with open(folder / FORMATS[SAFETENSORS], "wb") as file:
            file.writelines(safetensors_pieces(arrays, notes))
    if arrays and IRPA in kinds:
        index = iree.ParameterIndex()
        for name in sorted(arrays):
            index.add_buffer(name, arrays[name].reshape(-1).view(np.uint8))
        path = folder / FORMATS[IRPA]
        path.touch()  # with the rights of other new files, which IREE does not give
        index.create_archive_file(str(path))


def read_weights(path: str | pathlib.Path) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file by name. Raises ArtifactError for another file, OSError
    where it cannot be read.
    """
    data = pathlib.Path(path).read_bytes()
    try:
        entries = safetensors.deserialize(data)
        return {
            name: np.frombuffer(about["data"], DTYPES[about["dtype"]]).reshape(about["shape"])
            for name, about in entries
        }
    except safetensors.SafetensorError as error:
        raise ArtifactError(f"'{path}' expected to be a safetensors file: {error}") from None
    except KeyError as error:
        raise ArtifactError(
            f"'{path}' expected element types out of {', '.join(DTYPES)}, got {error}"
        ) from None


def with_values(
    held: Mapping[str, np.ndarray | TensorSpec],
    values: Mapping[str, np.ndarray],
    required: Sequence[str],
    source: str,
) -> dict[str, np.ndarray | TensorSpec]:
    """Held arrays with the values that a file gives for them by name. Raises ArtifactError for
    those that are required and not there, of another type, or unknown.
    """
    if unknown := sorted(set(values) - set(held)):
        raise ArtifactError(
            f"'{source}' expected names out of {', '.join(held) or 'none'}, got '{unknown[0]}'"
        )
    if missing := [name for name in required if name not in values]:
        raise ArtifactError(f"'{source}' expected a value of '{missing[0]}', got none")
    found = dict(held)
    for name, array in values.items():
        was = held[name]
        kind = was if isinstance(was, TensorSpec) else TensorSpec(was.shape, was.dtype)
        if TensorSpec(array.shape, array.dtype) != kind:
            got = TensorSpec(array.shape, array.dtype)
            raise ArtifactError(f"'{source}' expected '{name}' of type {kind}, got {got}")
        found[name] = array
    return found
