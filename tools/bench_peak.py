# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-bench --gemm-peak: which share of this machine's speed at large matrix products training
steps reach.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any, NoReturn

import gradopt as go
import numpy as np
import rich.console

from ..dialect.control import symbols
from ..dialect.graph import Graph, trace
from ..lowering import costs, pipeline
from .bench_step import prepare
from .workloads import WORKLOADS, train_step

EXTENTS = 1024, 2048
"""Of the square products whose speed is the peak."""
CALLS = 8
SHARED = "mlp", "gpt"
"""The workloads that are mostly products."""


def flops(workload: str, sizes: dict[str, int] | None = None) -> int:
    """Multiplications and additions in products and convolutions of one training step, counted in
    its simplified graph; the masked half of attention counts.
    """
    start, batch, loss = WORKLOADS[workload](**(sizes or {}))
    return flops_of(trace(train_step(loss), start, *batch, name="step"))


def flops_of(graph: Graph) -> int:
    """The same of a graph, which is differentiated and simplified, in place."""
    graph.finish()
    for stage in ("differentiated", "simplified"):
        pipeline.run(graph.module, pipeline.STAGES[stage])
    with graph.context:
        ops = list(symbols(graph.module)[graph.name].entry_block.operations)
        return sum(costs.cost(op).flops for op in ops if isinstance(op, costs.PRODUCTS))


def peaks(target: str, extent: int) -> dict[str, float]:
    """GFLOP/s of NumPy and of IREE at the product of two float32 matrices, the best of some calls
    that take turns.
    """
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((extent, extent), np.float32) for _ in range(2))
    product = go.compile(lambda x, y: x @ y, target=target)
    a, b = go.device_put(x, target), go.device_put(y, target)
    calls: dict[str, Callable[[], Any]] = {
        "numpy": lambda: x @ y,
        "iree": lambda: go.block_until_ready(product(a, b)),
    }
    best = dict.fromkeys(calls, float("inf"))
    for turn in range(CALLS + 1):
        for name, call in calls.items():
            seconds = _seconds(call)
            if turn:  # the first compiles
                best[name] = min(best[name], seconds)
    return {name: 2 * extent**3 / seconds / 1e9 for name, seconds in best.items()}


def _seconds(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def step_row(workload: str, target: str, seconds: float) -> dict[str, Any]:
    """The arithmetic of a workload's step in GFLOP, and its time."""
    step, _, _ = prepare({"workload": workload, "sizes": {}, "target": target})
    step()
    step()
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        times.append(_seconds(step) * 1e3)
    return {
        "workload": workload,
        "gflop": round(flops(workload) / 1e9, 3),
        "min_ms": round(min(times), 3),
        "median_ms": round(statistics.median(times), 3),
    }


def with_share(row: dict[str, Any], peak: float) -> dict[str, Any]:
    """A row with its GFLOP/s, and their share of `peak`: of the fastest step (`share`), as the peak
    is that of the fastest product, and of the median.
    """
    least, median = (row["gflop"] / row[name] * 1e3 for name in ("min_ms", "median_ms"))
    found = {"gflops": round(least, 1), "share": round(least / peak, 3)}
    return row | found | {"share_median": round(median / peak, 3)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this mode."""
    peak = (
        "measure what this machine reaches at large float32 products, and which share of it the "
        f"steps of {' and '.join(SHARED)} do"
    )
    parser.add_argument("--gemm-peak", action="store_true", help=peak)


def is_asked(options: argparse.Namespace) -> bool:
    """Whether the options ask for this mode."""
    return options.gemm_peak


def run(options: argparse.Namespace, refuse: Callable[[str], NoReturn]) -> int:
    """Print a JSON line for each product and each step; the exit status. The peak is the best of
    all products, which are measured before the steps and again after them.
    """
    progress = rich.console.Console(stderr=True)
    with progress.status("") as status:
        found: dict[tuple[str, int], float] = {}

        def measure_peaks() -> None:
            for extent in EXTENTS:
                status.update(f"products of {extent} x {extent}")
                for name, speed in peaks(options.target, extent).items():
                    found[name, extent] = max(speed, found.get((name, extent), 0.0))

        measure_peaks()
        rows = []
        for workload in SHARED:
            status.update(f"{workload}: compiling, then {options.seconds:g} s of steps")
            rows.append(step_row(workload, options.target, options.seconds))
        measure_peaks()
    peak = max(found.values())
    for (name, extent), speed in found.items():
        print(json.dumps({"gemm": name, "extent": extent, "gflops": round(speed, 1)}))
    for row in rows:
        print(json.dumps(with_share(row, peak)))
    return 0
