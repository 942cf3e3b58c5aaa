# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Artifacts: compiled functions, weights and a manifest in files that run where neither gradopt nor
a compiler is installed.

`NAME.vmfb` holds the functions, `NAME.safetensors` the weights, `NAME.json` the manifest, which
says what each function takes and returns, for which target and CPU it was compiled, by which
versions, and the digests of the other two files.
"""

import hashlib
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from ..dialect import trees
from ..dialect.control import argument_names, is_public, signature, symbols
from ..dialect.creation import as_array
from ..dialect.graph import Graph, trace
from ..dialect.mlir import func, ir
from ..dialect.types import TensorSpec, bfloat16
from ..errors import ArtifactError
from ..lowering import pipeline
from ..lowering.marks import donation_pairs
from ..lowering.target import Target, host_features
from ..lowering.target import target as find_target
from . import cache
from .arguments import check_types
from .cache import versions, write_whole
from .compiler import compile_linalg
from .device import Module
from .signature import of_text

FORMAT = "gradopt-artifact-1"


def export(
    path: str | pathlib.Path,
    functions: Mapping[str, tuple[Callable[..., Any], Sequence[Any]]],
    parameters: Mapping[str, Any] | None = None,
    target: str = "cpu",
) -> pathlib.Path:
    """Write an artifact: `path`.vmfb, `path`.safetensors and `path`.json; returns the manifest's
    path.

    `functions` maps a name to a Python function and the arguments it is compiled for: trees of
    TensorSpec (None for an extent known only at run time) or arrays that stand for their type.
    `parameters` maps names of arguments to trees of arrays: they become the weights file, and
    inputs of those names are marked as parameters in the manifest.
    """
    base = base_path(path)
    chosen = find_target(target)
    graphs = _traced(functions)
    weights = _named_arrays(parameters or {})
    _check_weights(graphs, weights)
    tables = [_describe(g.func, weights, g.out_tree) for g in graphs]
    image = compile_modules([g.module for g in graphs], base.name, chosen)
    return write(base, image, tables, weights, chosen)


def _traced(functions: Any) -> list[Graph]:
    """The graphs of what is to be exported."""
    if not isinstance(functions, Mapping):
        raise ArtifactError(
            "export expected a dict of names and (function, arguments), got "
            f"{type(functions).__name__}"
        )
    if not functions:
        raise ArtifactError("export expected at least one function, got none")
    for name, pair in functions.items():
        if not (isinstance(pair, tuple | list) and len(pair) == 2 and callable(pair[0])):
            raise ArtifactError(
                f"export expected a pair (Python function, arguments) as '{name}', got {pair!r:.60}"
            )
    return [trace(fn, *specs, name=name) for name, (fn, specs) in functions.items()]


def _check_weights(graphs: Sequence[Graph], weights: Mapping[str, np.ndarray]) -> None:
    """Raise where a weight is no input of a function, or not of its type."""
    taken = {name for g in graphs for name in g.input_names}
    for name, array in weights.items():
        if name not in taken:
            raise ArtifactError(
                f"parameter '{name}' expected to be an input of an exported function, which are "
                f"{', '.join(sorted(taken))}; name it as the function's argument"
            )
        got = TensorSpec(array.shape, array.dtype)
        for g in graphs:
            for other, spec in zip(g.input_names, g.input_specs, strict=True):
                if other == name:
                    check_types(g.name, [name], [spec], [got])


def base_path(path: str | pathlib.Path) -> pathlib.Path:
    """An artifact's path without the extension of one of its files."""
    path = pathlib.Path(path)
    return path.with_suffix("") if path.suffix in (".vmfb", ".json", ".safetensors") else path


def compile_modules(modules: Sequence[ir.Module], name: str, target: Target) -> bytes:
    """One VMFB with the public functions of several modules, from the disk cache if it is there."""
    texts = []
    for module in modules:
        with module.context:
            texts.append(module.operation.get_asm())

    def make() -> bytes:
        functions: list[str] = []
        ops: dict[str, list[str]] = {}
        for module in modules:
            lowered, names = pipeline.lower(module, target)
            with module.context:
                functions += [_standing_alone(op) for op in lowered.body.operations]
            for place in names:
                ops.setdefault(place, []).extend(names[place])
        text = "\n".join(functions)
        return compile_linalg(f"module {{\n{text}\n}}\n", target, name, ops)

    signature = of_text(name, "\n".join(texts), target, origin=f"artifact {name}")
    return cache.find(signature.key, make, about=signature.about()).image


def _standing_alone(op: Any) -> str:
    """An op's text that can stand beside that of other modules, with its source lines."""
    return op.operation.get_asm(use_local_scope=True, enable_debug_info=True)


def write(
    base: pathlib.Path,
    image: bytes,
    tables: list[dict[str, Any]],
    weights: Mapping[str, np.ndarray],
    target: Target,
) -> pathlib.Path:
    """Write the files of an artifact, the manifest last, each whole or not at all."""
    base.parent.mkdir(parents=True, exist_ok=True)
    files = {f"{base.name}.vmfb": image}
    if weights:
        contiguous = {name: np.asarray(array, order="C") for name, array in weights.items()}
        files[f"{base.name}.safetensors"] = safetensors.numpy.save(contiguous)
    manifest = {
        "format": FORMAT,
        "name": base.name,
        "versions": versions(),
        "target": target.name,
        "driver": target.driver,
        "cpu_features": host_features(),
        "functions": tables,
        "files": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
    }
    for name, data in files.items():
        write_whole(base.parent / name, data)
    path = base.parent / f"{base.name}.json"
    write_whole(path, json.dumps(manifest, indent=1).encode())
    if not weights:  # those of an artifact that stood here before
        (base.parent / f"{base.name}.safetensors").unlink(missing_ok=True)
    return path


def describe(module: ir.Module, weights: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The manifest's entries for the public functions of a module."""
    return [_describe(f, weights, None) for f in symbols(module).values() if is_public(f)]


def _describe(function: func.FuncOp, weights: Mapping[str, Any], out_tree: Any) -> dict[str, Any]:
    inputs, results = signature(function)
    paths = out_tree.paths() if out_tree is not None else [(i,) for i in range(len(results))]
    names = argument_names(function)
    named = zip(names, inputs, strict=True)
    storage = [
        _entry(f"{names[i]}.storage", inputs[i]) | {"role": "storage", "of": names[i]}
        for i, _ in donation_pairs(function)
    ]
    return {
        "name": function.name.value,
        "inputs": [
            *(_entry(n, s) | {"role": "parameter" if n in weights else "data"} for n, s in named),
            *storage,
        ],
        "outputs": [_entry(".".join(map(str, p)), s) for p, s in zip(paths, results, strict=True)],
    }


def _entry(name: str, spec: TensorSpec) -> dict[str, Any]:
    return {"name": name, "shape": list(spec.shape), "dtype": spec.dtype.name}


def _named_arrays(parameters: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Arrays under the names that their inputs have: the argument's name and the path in its
    tree.
    """
    named: dict[str, np.ndarray] = {}
    for argument, tree in parameters.items():
        for name, leaf in trees.named_leaves(argument, tree):
            if name in named:
                raise ArtifactError(f"two parameters are called '{name}'; rename one of the keys")
            named[name] = as_array(leaf)
    return named


# --- loading --------------------------------------------------------------------------------------


class Artifact:
    """An artifact, loaded: its functions by name, with parameters filled in from the weights
    file.
    """

    def __init__(self, path: str | pathlib.Path) -> None:
        base = base_path(path)
        manifest = base.with_name(f"{base.name}.json")
        self.manifest = _read_manifest(manifest)
        files = {
            name: _read_checked(manifest.parent / name, digest)
            for name, digest in self.manifest["files"].items()
        }
        self.weights: dict[str, np.ndarray] = {}
        for name, data in files.items():
            if name.endswith(".safetensors"):
                self.weights = read_safetensors(data)
        self.functions = {f["name"]: f for f in self.manifest["functions"]}
        self._module = Module(files[f"{self.manifest['name']}.vmfb"], self.manifest["driver"])

    def call(self, name: str, *arrays: Any) -> dict[str, np.ndarray]:
        """The results of a function by name, on arrays for its data inputs, in order."""
        if name not in self.functions:
            raise ArtifactError(
                f"expected a function out of {', '.join(self.functions)}, got '{name}'"
            )
        about = self.functions[name]
        given = [np.asarray(a) for a in arrays]
        data = [i for i in about["inputs"] if i["role"] == "data"]
        check_types(
            name,
            [i["name"] for i in data],
            [_spec(i) for i in data],
            [TensorSpec(a.shape, a.dtype) for a in given],
        )
        rest = iter(given)
        leaves = []
        for entry in about["inputs"]:
            if entry["role"] == "storage":  # of a donated input: room for the result
                leaves.append(np.empty(entry["shape"], _spec(entry).dtype))
            else:
                leaves.append(
                    self.weights[entry["name"]] if entry["role"] == "parameter" else next(rest)
                )
        outputs = [_spec(o) for o in about["outputs"]]
        found = self._module.run(name, leaves, [o.dtype for o in outputs])
        return {o["name"]: np.array(v) for o, v in zip(about["outputs"], found, strict=True)}


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


def read_safetensors(data: bytes) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file by name."""
    return {
        name: np.frombuffer(about["data"], DTYPES[about["dtype"]]).reshape(about["shape"])
        for name, about in safetensors.deserialize(data)
    }


def _spec(entry: dict[str, Any]) -> TensorSpec:
    return TensorSpec(entry["shape"], entry["dtype"])


def _read_manifest(path: pathlib.Path) -> dict[str, Any]:
    try:
        manifest = json.loads(path.read_text())
    except OSError as error:
        raise ArtifactError(f"cannot read the manifest '{path}': {error.strerror}") from None
    except ValueError as error:
        raise ArtifactError(f"'{path}' is no manifest: {error}") from None
    if manifest.get("format") != FORMAT:
        raise ArtifactError(
            f"'{path}' expected format {FORMAT}, got {manifest.get('format')}; export it again"
        )
    made, here = manifest["versions"]["iree-base-compiler"], versions()["iree-base-runtime"]
    if made != here:
        raise ArtifactError(
            f"'{path}' was compiled by IREE {made}, this is IREE {here}; export it again or "
            f"install {made}"
        )
    missing = sorted(set(manifest["cpu_features"]) - set(host_features()))
    if missing:
        raise ArtifactError(
            f"'{path}' was compiled for a CPU with {', '.join(missing)}, which this one lacks; "
            "export it on this machine"
        )
    return manifest


def _read_checked(path: pathlib.Path, digest: str) -> bytes:
    """A file's bytes; ArtifactError where they are not those the manifest was written for."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ArtifactError(f"cannot read '{path}': {error.strerror}") from None
    if hashlib.sha256(data).hexdigest() != digest:
        raise ArtifactError(
            f"'{path}' is damaged: its checksum is not the manifest's; export it again"
        )
    return data
