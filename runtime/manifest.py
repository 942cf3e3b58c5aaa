# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The manifest of an artifact: what its functions take and return, and what its modules need."""

import dataclasses
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import iree.runtime as iree

from ..deploy import FORMAT, VERSION
from ..dialect.types import TensorSpec
from ..lowering.target import Target
from .buffers import ALIGNMENT
from .cache import versions
from .device import instance
from .executable import in_place
from .exported import RESULT, Exported

__all__ = ["FILE", "FORMAT", "Storage", "entry", "made_by", "module_entry", "read", "text"]

FILE = "manifest.json"


@dataclasses.dataclass(frozen=True)
class Storage:
    """The memory that a function's results are written to, and whether its temporaries lie in the
    caller's memory too.
    """

    places: Sequence[tuple[int, int | None]]  # each result with the donated input, if there is one
    is_static: bool


def entry(exported: Exported, storage: Storage, roles: Mapping[str, str]) -> dict[str, Any]:
    """The manifest's entry of a function; `roles` are those of all held arrays."""
    graph = exported.graph
    named = zip(graph.input_names, graph.input_specs, strict=True)
    results = zip(exported.result_names(), graph.output_specs, strict=True)
    updates = exported.updates
    return {
        "name": exported.name,
        "mode": exported.mode,
        "inputs": [_typed(n, s) | {"role": exported.role(n)} for n, s in named],
        "outputs": [
            _typed(n, s) | {"role": roles[n] if i in updates else RESULT}
            for i, (n, s) in enumerate(results)
        ],
        "storage": [{"output": r, "input": position} for r, position in storage.places],
        **exported.notes,
    }


def _typed(name: str, spec: TensorSpec) -> dict[str, Any]:
    return {"name": name, "shape": list(spec.shape), "dtype": spec.dtype.name}


def module_entry(target: Target, file: str, image: bytes, storage: Mapping[str, Storage]) -> Any:
    """The manifest's entry of a module, a VMFB, for a target."""
    module = iree.VmModule.copy_buffer(instance(), image)
    return {
        "target": target.name,
        "driver": target.driver,
        "file": file,
        "architecture": target.architecture,
        "cpu_features": list(target.cpu_features),
        "functions": {name: _memory(module, name, s) for name, s in storage.items()},
    }


def _memory(module: Any, name: str, storage: Storage) -> dict[str, Any]:
    """What a module does with the memory it is given for a call of a function. An arena that is
    needed is never of 0 bytes: that says that the function takes none.
    """
    about = dict(module.lookup_function(name).reflection)
    size = int(about.get("iree.abi.transients.size.constant", 0))
    return {
        "arena": max(size, ALIGNMENT) if storage.is_static else 0,
        "in_place": sorted(in_place(about)),
    }


def made_by() -> dict[str, str]:
    """The versions that made an artifact."""
    found = versions()
    return {
        "gradopt": VERSION,
        "gradopt sources": found["gradopt"],
        "iree-base-compiler": found["iree-base-compiler"],
        "torch-mlir": found["torch-mlir"],
    }


def read(folder: pathlib.Path) -> dict[str, Any] | None:
    """The manifest in a folder, of whatever version; None where there is none."""
    try:
        found = json.loads((folder / FILE).read_bytes())
    except (OSError, ValueError):
        return None
    is_ours = isinstance(found, dict) and str(found.get("format")).startswith("gradopt-artifact-")
    return found if is_ours and isinstance(found.get("files"), dict) else None


def text(about: Mapping[str, Any]) -> str:
    """A manifest as JSON, with a line for each of its smallest parts."""
    return "".join(_lines(about, "")) + "\n"


def _lines(value: Any, indent: str) -> Iterator[str]:
    inner = value.values() if isinstance(value, Mapping) else value
    is_short = not isinstance(value, Mapping | list) or (
        indent and not any(isinstance(v, Mapping) or _is_nested(v) for v in inner)
    )
    if is_short:
        yield json.dumps(value)
        return
    entries = value.items() if isinstance(value, Mapping) else ((None, v) for v in value)
    open_, close = "{}" if isinstance(value, Mapping) else "[]"
    for i, (key, entry) in enumerate(entries):
        yield f"{',' if i else open_}\n{indent} " + ("" if key is None else f"{json.dumps(key)}: ")
        yield from _lines(entry, f"{indent} ")
    yield f"\n{indent}{close}"


def _is_nested(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(v, Mapping | list) for v in value)
