# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-run: lists, calls and times the functions of an artifact."""

import argparse
import json
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
