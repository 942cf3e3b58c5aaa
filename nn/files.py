# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Arrays in safetensors files."""

import os
import pathlib
import tempfile
from typing import Any

import numpy as np

from ..errors import ArtifactError


def save(path: Any, arrays: dict[str, Any]) -> None:
    """Write a file, whole or not at all."""
    import safetensors.numpy  # when first needed, as it takes time

    path = pathlib.Path(path)
    found = {name: np.ascontiguousarray(x).reshape(np.shape(x)) for name, x in arrays.items()}
    data = safetensors.numpy.save(found)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        pathlib.Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def load(path: Any) -> dict[str, np.ndarray]:
    """The arrays of a file by name; ArtifactError for what is no safetensors file."""
    from ..deploy import read_safetensors  # when first needed, as it takes time

    try:
        return read_safetensors(pathlib.Path(path).read_bytes())[0]
    except OSError as error:
        raise ArtifactError(f"cannot read '{path}': {error.strerror}") from None
    except ValueError as error:
        raise ArtifactError(f"'{path}' is no safetensors file: {error}") from None
