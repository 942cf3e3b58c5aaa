# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Recomputation in IREE: the same results bit for bit, and the memory that was planned."""

import json
import subprocess
import sys
from typing import Any

import gradopt as go
import iree.runtime as iree
import numpy as np
import pytest
from gradopt.dialect import trees
from gradopt.dialect.control import symbols
from gradopt.dialect.graph import trace
from gradopt.dialect.mlir import ir
from gradopt.lowering import pipeline
from gradopt.lowering.liveness import analyse
from gradopt.lowering.target import target
from gradopt.runtime.buffers import copy_in
from gradopt.runtime.compiler import compile_linalg
from gradopt.runtime.device import instance

pytestmark = pytest.mark.compiler

PLAIN, HALF = "", "budget=0.5"


def peak_and_results(fn: Any, remat: str, *arrays: Any) -> tuple[int, int, list[np.ndarray]]:
    """(planned peak, bytes that a call had allocated at most beside its arguments, results)."""
    graph = trace(fn, *arrays, name="step")
    with graph.context:
        module = ir.Module.parse(graph.mlir(locations=True))
        passes = list(pipeline.stages(target("cpu"), remat).values())
        for text in passes[:-1]:
            pipeline.run(module, text)
        planned = analyse(symbols(module)["step"]).peak()
        pipeline.run(module, passes[-1])
        image = compile_linalg(module.operation.get_asm(), target("cpu"), "step", {})
    device = iree.get_device("local-sync", cache=False)
    made = iree.VmModule.copy_buffer(instance(), image)
    context = iree.VmContext(instance(), [iree.create_hal_module(instance(), device), made])
    views = [copy_in(device.allocator, np.asarray(a)) for a in trees.leaves(arrays)]
    given, found = iree.VmVariantList(len(views)), iree.VmVariantList(8)
    for view in views:
        given.push_ref(view)
    before = _allocated(device)
    context.invoke(made.lookup_function("step"), given, found)
    peak = sum(device.allocator.statistics[f"{m}_bytes_peak"] for m in ("host", "device"))
    results = [found.get_as_object(i, iree.HalBufferView) for i in range(len(found))]
    arrays_ = [
        iree.DeviceArray(device, r, implicit_host_transfer=True).to_host().copy() for r in results
    ]
    return planned, peak - before, arrays_


def _allocated(device: Any) -> int:
    about = device.allocator.statistics
    return sum(
        about[f"{m}_bytes_allocated"] - about[f"{m}_bytes_freed"] for m in ("host", "device")
    )


def loss(x: Any) -> Any:
    """A chain whose values cannot be fused away."""
    for _ in range(16):
        x = go.sin(go.cos(x).sum(1, keepdims=True) + x)
    return x.sum()


def measured() -> dict[str, Any]:
    """Planned and allocated peaks of the chain's gradient, with half the memory and without a
    budget. IREE never lowers the peak that it tells, so that half comes first, in a process that
    has run nothing else.
    """
    x = np.linspace(-1, 1, 300_000).reshape(3000, 100).astype(np.float32)
    half = peak_and_results(go.grad(loss), HALF, x)
    plain = peak_and_results(go.grad(loss), PLAIN, x)
    is_same = bool((half[2][0] == plain[2][0]).all())
    return {"half": half[:2], "plain": plain[:2], "result": x.nbytes, "is_same": is_same}


def test_peak_falls_with_the_plan() -> None:
    """B64, C049, C052: what IREE allocates is what was planned, within 20%."""
    command = [sys.executable, __file__]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    found = json.loads(done.stdout)
    (planned, half), (unbudgeted, plain) = found["half"], found["plain"]
    assert planned <= unbudgeted / 2
    assert half - found["result"] == pytest.approx(planned, rel=0.2)
    assert half - found["result"] < 0.6 * (plain - found["result"])
    assert found["is_same"]


def test_compiled_functions_agree() -> None:
    """B05, B64, C047, C052: with products and dropout, through go.compile: bit for bit."""

    def loss(weights: Any, x: Any, key: Any) -> Any:
        for i, w in enumerate(weights):
            x = go.dropout(go.tanh(x @ w), 0.5, go.random.fold_in(key, i))
        return (x * x).mean()

    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((32, 32)).astype(np.float32) for _ in range(4)]
    x, key = rng.standard_normal((128, 32)).astype(np.float32), go.random.key(1)
    step = go.value_and_grad(loss)
    plain = trees.leaves(go.compile(step)(weights, x, key))
    compiled = go.compile(step, memory_budget=0.8)
    assert ".remat" in compiled.mlir("rematerialized", weights, x, key)
    for a, b in zip(trees.leaves(compiled(weights, x, key)), plain, strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


if __name__ == "__main__":
    print(json.dumps(measured()))
