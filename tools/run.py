# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-run: lists and calls the functions of an artifact."""

import argparse
import json
import pathlib
import sys
from typing import Any

import numpy as np

from ..dialect.creation import as_array
from ..dialect.types import as_dtype, is_float
from ..errors import ArgumentError, GradoptError
from ..runtime.artifact_1 import Artifact
from .tables import Table, print_table

DESCRIPTION = """\
List the functions of an artifact, or call one: --input takes a .npy file, or SHAPExDTYPE=VALUE such
as 4x8xfloat32=0 for an array filled with a number, once for each data input; parameters come from
the artifact's weights. Results are printed, or written as .npy files to the folder given by
--output."""


def main(argv: list[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="gradopt-run", description=DESCRIPTION)
    parser.add_argument("artifact", help="the .vmfb or its manifest .json")
    parser.add_argument(
        "function", nargs="?", help="the function to call; without it the functions are listed"
    )
    parser.add_argument("--input", action="append", default=[], help="an argument, in order")
    parser.add_argument(
        "--output", type=pathlib.Path, help="a folder for the results, one .npy file each"
    )
    parser.add_argument("--json", action="store_true", help="print as JSON")
    options = parser.parse_args(argv)
    try:
        artifact = Artifact(options.artifact)
        if options.function is None:
            return print_table(_functions(artifact), options.json)
        inputs = [_array(text) for text in options.input]
        results = artifact.call(options.function, *inputs)
        _show(results, options)
    except (GradoptError, OSError) as error:
        print(f"gradopt-run: error: {error}", file=sys.stderr)
        return 1
    return 0


def _functions(artifact: Artifact) -> Table:
    def listed(entries: list[dict[str, Any]]) -> str:
        return ", ".join(f"{e['name']}: {_type(e)}" for e in entries)

    rows = []
    for name, about in artifact.functions.items():
        data, weights = (
            [i for i in about["inputs"] if i["role"] == role] for role in ("data", "parameter")
        )
        rows.append([name, listed(data), len(weights), listed(about["outputs"])])
    return Table(
        f"functions of {artifact.manifest['name']}",
        ["function", "inputs", "parameters", "outputs"],
        rows,
    )


def _type(entry: dict[str, Any]) -> str:
    return "x".join(["?" if n is None else str(n) for n in entry["shape"]] + [entry["dtype"]])


def _array(text: str) -> np.ndarray:
    """A .npy file's array, or one made from SHAPExDTYPE=VALUE."""
    kind, equals, value = text.partition("=")
    *extents, dtype = kind.split("x")
    try:
        if not equals:
            return np.lib.format.read_array(open(text, "rb"))
        number = float(value) if is_float(as_dtype(dtype)) else int(value)
        return np.broadcast_to(as_array(number, dtype), [int(n) for n in extents])
    except (ValueError, EOFError) as error:
        raise ArgumentError(
            f"--input expected a .npy file or SHAPExDTYPE=VALUE such as 4x8xfloat32=0, got "
            f"'{text}': {error}"
        ) from None


def _show(results: dict[str, np.ndarray], options: argparse.Namespace) -> None:
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
        for name, array in results.items():
            np.save(options.output / f"{name or 'result'}.npy", array)
    elif options.json:
        print(json.dumps({name: array.tolist() for name, array in results.items()}))
    else:
        for name, array in results.items():
            shape = "x".join(map(str, array.shape)) + ("x" if array.ndim else "")
            print(f"{name or 'result'}: {shape}{array.dtype.name}")
            print(np.array2string(array, threshold=64))


if __name__ == "__main__":
    sys.exit(main())
