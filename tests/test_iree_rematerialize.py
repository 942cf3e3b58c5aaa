# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Recomputation in IREE: the same results bit for bit, and the memory that was planned."""

import json
import re
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
from gradopt.errors import PassError
from gradopt.lowering import pipeline
from gradopt.lowering.liveness import analyse
from gradopt.lowering.target import target
from gradopt.runtime import budget
from gradopt.runtime.buffers import copy_in
from gradopt.runtime.compiler import compile_linalg
from gradopt.runtime.device import instance
from gradopt.tools.workloads import gpt, train_step

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


def test_arena_fits_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """B05, B63, B64: with static allocation the budget is one for the arena that calls use. Here a
    plan of half the size gives an arena of more, so that it is made again; the results stay the
    same bit for bit.
    """
    aims: list[str] = []
    needed = budget._Search._needed

    def seen(search: Any, remat: str) -> Any:
        aims.append(remat)
        return needed(search, remat)

    monkeypatch.setattr(budget._Search, "_needed", seen)
    start, batch, loss = gpt(batch=2, tokens=32, dim=32, layers=4, vocab=64)
    step = train_step(loss)
    plain = go.compile(step, donate=0, static_alloc=True)
    half = go.compile(step, donate=0, static_alloc=True, memory_budget=0.5)
    whole = plain.memory_report(start, *batch).arena
    assert half.memory_report(start, *batch).arena <= whole / 2
    assert aims[0] == ""
    assert len(aims) == 3
    assert ".remat" in half.mlir("rematerialized", start, *batch)
    p, q = ({k: go.device_put(v) for k, v in start.items()} for _ in range(2))
    for _ in range(2):
        p, q = plain(p, *batch)[0], half(q, *batch)[0]
    for k in p:
        np.testing.assert_array_equal(np.asarray(p[k]), np.asarray(q[k]))
    assert len(aims) == 3  # what was found is used again


def test_policy_that_raises_the_arena_is_not_used() -> None:
    """B64: never worse in the arena either; bytes that are enough change nothing."""
    w, x = np.eye(8, dtype=np.float32), np.ones((16, 8), np.float32)
    step = go.grad(lambda w, x: (go.tanh(x @ w) @ w).sum())
    whole = go.compile(step, static_alloc=True).memory_report(w, x).arena
    choices: list[dict[str, Any]]
    choices = [{"remat": "all"}, {"remat": "cheap"}, {"memory_budget": "1MiB"}]
    for options in choices:
        less = go.compile(step, static_alloc=True, **options).memory_report(w, x).arena
        assert less <= whole


def test_impossible_budget_states_the_smallest_arena() -> None:
    """B63: what cannot be met is refused before anything is compiled."""
    w, x = np.eye(8, dtype=np.float32), np.ones((16, 8), np.float32)
    step = go.compile(
        go.grad(lambda w, x: (go.tanh(x @ w) @ w).sum()), static_alloc=True, memory_budget=10
    )
    with pytest.raises(PassError, match="got 10 bytes; the smallest arena found is ") as e:
        step(w, x)
    found = re.search(r"found is ([\d,]+) bytes, of ([\d,]+)", str(e.value))
    assert found
    assert 10 < int(found[1].replace(",", "")) <= int(found[2].replace(",", ""))


if __name__ == "__main__":
    print(json.dumps(measured()))
