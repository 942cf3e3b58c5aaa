# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-run: lists, calls and times the functions of an artifact."""

import argparse
import json
import pathlib
import re
import shlex
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import deploy
from .tables import Table, print_table

try:
    import resource
except ImportError:  # there is none on Windows
    resource = None


def main(argv: list[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="gradopt-run", description=deploy.DESCRIPTION)
    deploy.add_arguments(parser)
    add = parser.add_argument
    add("--bench", action="store_true", help="time the calls; arguments not given are zeros")
    add("--repeat", type=int, default=100, metavar="N", help="how many calls to time (100)")
    add("--json", action="store_true", help="print as JSON")
    add(
        "--iree",
        type=pathlib.Path,
        metavar="FOLDER",
        help="write the state as files, and a shell script that calls by IREE's iree-run-module",
    )
    options = parser.parse_args(argv)
    try:
        return run(options)
    except (deploy.ArtifactError, OSError) as error:
        print(f"gradopt-run: error: {error}", file=sys.stderr)
        return 1


def run(options: argparse.Namespace) -> int:
    """Do what the options say."""
    if options.devices:
        return print_table(devices(), options.json)
    model = deploy.open_model(options)
    if options.function is None:
        return print_table(functions(model), options.json)
    if options.bench:
        return print_table(bench(model, options), options.json)
    if options.iree:
        print(f"wrote {write_script(model, options)}")
        return 0
    results = deploy.call_with(model, options)
    if options.output:
        return print_table(written(results, options), options.json)
    if options.json:
        print(json.dumps({name: array.tolist() for name, array in results.items()}))
    else:
        deploy.show(results)
    return 0


def devices() -> Table:
    """The devices of this machine."""
    rows = [[d.driver, d.kind, d.name, d.uri] for d in deploy.devices()]
    return Table("devices of this machine", ["driver", "kind", "name", "uri"], rows)


def functions(model: deploy.Model) -> Table:
    """The functions of an artifact, with the number of arrays that each has from the state."""
    rows = [
        [
            f.name,
            f.mode,
            _listed(f.inputs),
            sum(i.role != "data" for i in f.signature.inputs),
            _listed(f.outputs),
            len(f.changes),
        ]
        for f in model.functions.values()
    ]
    return Table(
        f"functions of {model.name}, {model.target} on {model.device}",
        ["function", "mode", "inputs", "reads", "outputs", "changes"],
        rows,
    )


def _listed(entries: Sequence[deploy.Entry]) -> str:
    return ", ".join(map(str, entries))


def written(results: dict[str, np.ndarray], options: argparse.Namespace) -> Table:
    """What was written to files: names, types, and the range of the numbers."""
    rows = []
    for name, array in results.items():
        numbers = array.astype(np.float64)
        of = [f"{f(numbers):.6g}" if array.size else "-" for f in (np.min, np.mean, np.max)]
        entry = deploy.Entry(name, array.shape, array.dtype, "result")
        rows.append([name or "result", entry.type, *of])
    return Table(f"written to {options.output}", ["result", "type", "min", "mean", "max"], rows)


def write_script(model: deploy.Model, options: argparse.Namespace) -> pathlib.Path:
    """Write a function's call by iree-run-module as a shell script, and what it reads beside its
    arguments as files; returns the script's path. The script writes results, and over a held array
    its new value, so that it can be called again and again. It trusts its files and is not atomic.
    """
    if options.function not in model.functions:
        model.call(options.function)  # says so
    f, folder = model.functions[options.function], options.iree
    folder.mkdir(parents=True, exist_ok=True)
    arrays = model.state(constants=True)
    for entry in f.signature.inputs:
        if entry.role != "data":
            _write(folder / _file(entry), arrays[entry.name])
    outputs = f.signature.outputs
    inputs = [_given(entry) for entry in f.signature.inputs]
    for i, source in f.storage.items():
        path = folder / _file(outputs[i])
        if source in f.in_place:  # taken for the same memory: so it has the same contents
            inputs.append(inputs[source])
        elif path.suffix == ".npy":
            inputs.append(f"{_iree_type(outputs[i])}=0")
        else:
            if not path.exists():
                _write(path, np.zeros(outputs[i].extents, outputs[i].dtype))
            inputs.append(_given(outputs[i]))
    if f.arena:
        inputs.append(f"&{f.arena}xi8")
    module = pathlib.Path(options.artifact).resolve() / model.module.file
    words = [f"--module={module}", f"--device={model.device}", f"--function={f.name}"]
    words += [f"--input={i}" for i in inputs] + [f"--output=@{_file(o)}" for o in outputs]
    lines = " \\\n  ".join(["iree-run-module", *map(shlex.quote, words)])
    script = folder / f"{f.name}.sh"
    script.write_text(f'#!/bin/sh -e\ncd "$(dirname "$0")"\n{lines}\n')
    script.chmod(0o755)
    return script


def _is_npy(entry: deploy.Entry) -> bool:
    """Whether IREE reads and writes an array as .npy: it has no bfloat16 there, and takes unsigned
    integers and bool for other types than modules have.
    """
    return entry.dtype.kind in "fi" and entry.dtype != deploy.bfloat16


def _file(entry: deploy.Entry) -> str:
    suffix = "npy" if _is_npy(entry) else "bin"
    return f"{entry.name.replace('/', '_') or 'result'}.{suffix}"


def _write(path: pathlib.Path, array: np.ndarray) -> None:
    if path.suffix == ".npy":
        np.save(path, array)
    else:
        path.write_bytes(array.tobytes())


def _given(entry: deploy.Entry) -> str:
    """An argument as --input takes it."""
    if _is_npy(entry):
        return f"@{_file(entry)}"
    if None in entry.shape:
        raise deploy.ArgumentError(
            f"--iree expected known extents where IREE reads no .npy, got '{entry.name}' of type "
            f"{entry.type}"
        )
    return f"{_iree_type(entry)}=@{_file(entry)}"


_IREE_TYPES = {"float": "f", "int": "i", "uint": "i", "bfloat": "bf"}


def _iree_type(entry: deploy.Entry) -> str:
    kind, bits = re.fullmatch(r"([a-z]+)(\d*)", entry.dtype.name).groups()  # type: ignore[union-attr]
    name = f"{_IREE_TYPES[kind]}{bits}" if bits else "i1"
    return "x".join([*map(str, entry.shape), name])


def bench(model: deploy.Model, options: argparse.Namespace) -> Table:
    """Milliseconds of loading and calling a function, and the bytes it needs."""
    if options.repeat < 1:
        raise deploy.ArgumentError(f"--repeat expected a number of calls, got {options.repeat}")
    arrays: list[Any] = [deploy.parse_array(text) for text in options.input]
    if options.function in model.functions:
        arrays += map(_zeros, model.functions[options.function].inputs[len(arrays) :])
    times = []
    for _ in range(options.repeat + 1):
        start = time.perf_counter()
        model.call(options.function, *arrays)
        times.append((time.perf_counter() - start) * 1e3)
    first, rest = times[0], times[1:]
    about = model.describe()
    row: dict[str, Any] = {
        "function": options.function,
        "target": model.target,
        "device": model.device,
        "load ms": round(about["load_ms"], 2),
        "first ms": round(first, 3),
        "min ms": round(min(rest), 3),
        "median ms": round(float(np.median(rest)), 3),
        "arena bytes": model.functions[options.function].arena,
        "state bytes": about["state_bytes"],
        "held bytes": about["held_bytes"],
        "module bytes": about["module_bytes"],
    }
    if resource is not None:  # in KiB, on Apple's systems in bytes
        unit = 2**20 if sys.platform == "darwin" else 2**10
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        row["peak MiB"] = round(peak / unit, 1)
    return Table(f"{options.repeat} calls", list(row), [list(row.values())])


def _zeros(entry: deploy.Entry) -> np.ndarray:
    if None in entry.shape:
        raise deploy.ArgumentError(
            f"--bench expected --input for '{entry.name}' of type {entry.type}, whose extents are "
            "open, got none"
        )
    return np.zeros([n or 0 for n in entry.shape], entry.dtype)


if __name__ == "__main__":
    sys.exit(main())
