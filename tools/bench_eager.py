# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-bench --eager: what eager ops cost, beside NumPy, PyTorch and JAX without jit.

This file runs by itself, too, where gradopt is not installed: `python bench_eager.py --libraries
torch`. It then prints JSON lines, which `gradopt-bench --eager --beside FILE` sets beside its own.
"""

import argparse
import contextlib
import importlib.util
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

OPS: dict[str, Callable[[Any, Any], Any]] = {
    "add a number": lambda lib, d: d["x"] + 1.5,
    "add": lambda lib, d: d["x"] + d["y"],
    "mul, broadcast": lambda lib, d: d["x"] * d["row"],
    "div": lambda lib, d: d["x"] / d["y"],
    "exp": lambda lib, d: lib.exp(d["x"]),
    "tanh": lambda lib, d: lib.tanh(d["x"]),
    "relu": lambda lib, d: lib.relu(d["x"]),
    "where": lambda lib, d: lib.where(d["mask"], d["x"], d["y"]),
    "sum, one axis": lambda lib, d: d["x"].sum(1),
    "mean": lambda lib, d: d["x"].mean(),
    "max": lambda lib, d: d["x"].max(),
    "softmax": lambda lib, d: lib.softmax(d["x"]),
    "layer_norm": lambda lib, d: lib.layer_norm(d["x"], d["row"], d["row"]),
    "matmul": lambda lib, d: d["x"] @ d["y"],
    "matmul, batched": lambda lib, d: d["batch"] @ d["batch"],
    "conv": lambda lib, d: lib.conv(d["image"], d["kernel"]),
    "reshape": lambda lib, d: d["x"].reshape((-1, 8)),
    "transpose": lambda lib, d: d["x"].T,
    "concat": lambda lib, d: lib.concat([d["x"], d["y"]]),
    "slice": lambda lib, d: d["x"][1:-1, ::2],
    "take": lambda lib, d: lib.take(d["x"], d["index"]),
    "10 ops": lambda lib, d: (
        (lib.tanh(d["x"] @ d["y"] + d["row"]) * d["x"] - d["y"]).sum(1).mean()
        + (lib.exp(d["x"]) / d["y"]).max()
    ),
}
"""The ops by name: functions of a library and of its arrays (`data`)."""


def data(n: int) -> dict[str, np.ndarray]:
    """What the ops run on, of a size n; the same for all."""
    random = np.random.default_rng(0)

    def f32(*shape: int) -> np.ndarray:
        return random.uniform(0.5, 1.5, shape).astype(np.float32)

    return {
        "x": f32(n, n),
        "y": f32(n, n),
        "row": f32(n),
        "batch": f32(4, n, n),
        "image": f32(1, 3, n, n),
        "kernel": f32(8, 3, 3, 3),
        "mask": f32(n, n) > 1,
        "index": random.integers(0, n, n),
    }


# --- libraries ------------------------------------------------------------------------------------


class NumPy:
    """NumPy, with what it has not written as its users do."""

    exp, tanh, array = np.exp, np.tanh, staticmethod(np.array)
    where, concat = staticmethod(np.where), staticmethod(np.concatenate)

    def relu(self, x: Any) -> Any:
        return np.maximum(x, 0)

    def softmax(self, x: Any) -> Any:
        powers = np.exp(x - x.max(-1, keepdims=True))
        return powers / powers.sum(-1, keepdims=True)

    def layer_norm(self, x: Any, gamma: Any, beta: Any) -> Any:
        centered = x - x.mean(-1, keepdims=True)
        variance = (centered * centered).mean(-1, keepdims=True)
        return centered / np.sqrt(variance + 1e-5) * gamma + beta

    def take(self, x: Any, index: Any) -> Any:
        return np.take(x, index, 0)

    def conv(self, x: Any, w: Any) -> Any:
        windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], (2, 3))
        return np.tensordot(windows, w, ((1, 4, 5), (1, 2, 3))).transpose(0, 3, 1, 2)

    def ready(self, x: Any) -> Any:
        return x

    def mode(self) -> Any:
        return contextlib.nullcontext()


class Gradopt(NumPy):
    """gradopt's eager ops, in one of its modes."""

    def __init__(self, how: str = "reference") -> None:
        import gradopt as go

        self.go, self.how = go, how
        self.exp, self.tanh, self.where, self.concat = go.exp, go.tanh, go.where, go.concat
        self.relu, self.softmax, self.layer_norm = go.relu, go.softmax, go.layer_norm
        self.take = go.take
        self.conv = lambda x, w: go.conv(x, w, layout="channels_first")

    def array(self, x: np.ndarray) -> Any:
        found = self.go.array(x)
        if self.how == "recorded" and x.dtype == np.float32:
            found.attach_grad()
        return found

    def ready(self, x: Any) -> Any:
        return x.block_until_ready()

    @contextlib.contextmanager
    def mode(self) -> Iterator[None]:
        recorded = self.how == "recorded"
        with self.go.record() if recorded else self.go.eager_mode(self.how):
            yield


class Torch(NumPy):
    """PyTorch eager, on as many threads as it takes."""

    def __init__(self) -> None:
        import torch

        functions = torch.nn.functional
        self.array, self.exp, self.tanh, self.relu = (
            torch.tensor,
            torch.exp,
            torch.tanh,
            torch.relu,
        )
        self.where, self.concat, self.conv = torch.where, torch.cat, functions.conv2d
        self.softmax = lambda x: torch.softmax(x, -1)
        self.layer_norm = lambda x, g, b: functions.layer_norm(x, g.shape, g, b)
        self.take = lambda x, i: torch.index_select(x, 0, i)


class Jax(NumPy):
    """JAX without jit."""

    def __init__(self) -> None:
        import jax
        import jax.numpy as jnp

        self.array, self.exp, self.tanh, self.relu = jnp.array, jnp.exp, jnp.tanh, jax.nn.relu
        self.where, self.concat, self.softmax = jnp.where, jnp.concatenate, jax.nn.softmax
        self.take = lambda x, i: jnp.take(x, i, axis=0)
        self.conv = lambda x, w: jax.lax.conv(x, w, (1, 1), "VALID")
        self.layer_norm = self._layer_norm
        self.sqrt = jnp.sqrt

    def _layer_norm(self, x: Any, gamma: Any, beta: Any) -> Any:
        centered = x - x.mean(-1, keepdims=True)
        variance = (centered * centered).mean(-1, keepdims=True)
        return centered / self.sqrt(variance + 1e-5) * gamma + beta

    def ready(self, x: Any) -> Any:
        return x.block_until_ready()


LIBRARIES: dict[str, Callable[[], Any]] = {
    "numpy": NumPy,
    "gradopt": Gradopt,
    "recorded": lambda: Gradopt("recorded"),
    "lazy": lambda: Gradopt("lazy"),
    "op": lambda: Gradopt("op"),
    "torch": Torch,
    "jax": Jax,
}
"""NumPy; gradopt as it is, recording for gradients, lazy, and compiling each op; the peers."""
PACKAGES = {"recorded": "gradopt", "lazy": "gradopt", "op": "gradopt"}

# --- measuring ------------------------------------------------------------------------------------


def measure(
    libraries: dict[str, Any], size: int, ops: list[str], runs: int, per_run: float = 1e-3
) -> list[dict[str, Any]]:
    """Rows of every op in every library: microseconds of the first call and of a call in the best
    of many short runs. The libraries take turns.
    """
    arrays = {
        name: {k: library.array(v) for k, v in data(size).items()}
        for name, library in libraries.items()
    }
    rows = []
    for op in ops:
        found = {name: _Timed(OPS[op], libraries[name], arrays[name]) for name in libraries}
        for timed in found.values():
            timed.count = max(1, int(per_run / timed.best))
        for _ in range(runs):
            for timed in found.values():
                timed.run()
        for name, t in found.items():
            us = {"first_us": round(t.first * 1e6, 1), "best_us": round(t.best * 1e6, 2)}
            rows.append({"library": name, "op": op, "size": size, **us})
    return rows


class _Timed:
    """An op of a library, timed: its first call, then runs of several."""

    def __init__(self, op: Callable[[Any, Any], Any], library: Any, arrays: Any) -> None:
        self.op, self.library, self.arrays = op, library, arrays
        self.best, self.count = float("inf"), 1
        self.run()
        self.first, self.best = self.best, float("inf")
        for _ in range(3):
            self.run()

    def run(self) -> None:
        op, library, arrays, result = self.op, self.library, self.arrays, None
        with library.mode():
            begin = time.perf_counter()
            for _ in range(self.count):
                result = op(library, arrays)
            library.ready(result)
            self.best = min(self.best, (time.perf_counter() - begin) / self.count)


def table(rows: list[dict[str, Any]]) -> str:
    """Rows of several libraries side by side, as text: best microseconds, in brackets first."""
    names = list(dict.fromkeys(row["library"] for row in rows))
    found: dict[tuple[int, str], dict[str, str]] = {}
    for row in rows:
        cell = f"{row['best_us']:.1f} ({row['first_us']:.0f})"
        found.setdefault((row["size"], row["op"]), {})[row["library"]] = cell
    lines = [f"{'size':>4}  {'op':16}" + "".join(f"{n:>18}" for n in names)]
    for (size, op), cells in found.items():
        lines.append(f"{size:4}  {op:16}" + "".join(f"{cells.get(n, '-'):>18}" for n in names))
    return "\n".join(lines)


def installed() -> list[str]:
    """The libraries that this environment has, without gradopt's modes that compile."""
    names = [n for n in LIBRARIES if n not in ("lazy", "op")]
    return [n for n in names if importlib.util.find_spec(PACKAGES.get(n, n))]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this mode."""
    known = ",".join(LIBRARIES)
    parser.add_argument(
        "--libraries",
        metavar="A,B",
        help=f"with --eager, which of {known} (default: those that are installed, but for lazy "
        "and op, which compile)",
    )
    parser.add_argument(
        "--sizes", default="16,256", metavar="N,M", help="with --eager, sizes (default: 16,256)"
    )
    parser.add_argument(
        "--ops", metavar="A;B", help=f"with --eager, which of {'; '.join(OPS)} (default: all)"
    )
    parser.add_argument(
        "--runs", type=int, default=50, metavar="N", help="with --eager, short runs (default: 50)"
    )
    beside = "with --eager, JSON lines of a run elsewhere, to be shown in the same table"
    parser.add_argument("--beside", action="append", default=[], metavar="FILE", help=beside)


def run(options: argparse.Namespace, as_table: bool) -> int:
    """Measure, and print the table or JSON lines; the exit status."""
    names = options.libraries.split(",") if options.libraries else installed()
    libraries = {name: LIBRARIES[name]() for name in names}
    ops = options.ops.split(";") if options.ops else list(OPS)
    rows = []
    for size in map(int, options.sizes.split(",")):
        rows += measure(libraries, size, ops, options.runs)
    for path in options.beside:
        with open(path, encoding="utf-8") as file:
            rows += [json.loads(line) for line in file if line.strip()]
    print(table(rows) if as_table else "\n".join(map(json.dumps, rows)))
    return 0


if __name__ == "__main__":
    _parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(_parser)
    sys.exit(run(_parser.parse_args(), as_table=False))
