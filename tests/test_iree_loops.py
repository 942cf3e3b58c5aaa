# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Loops compiled by IREE: written out, and in trips (the loop back runs from the end) with steps
left over, with their gradients; on Vulkan, and code for CUDA.
"""

from typing import Any

import gradopt as go
import numpy as np
import optree
import pytest
from gradopt.dialect.graph import trace
from gradopt.lowering import pipeline
from gradopt.lowering.target import target
from gradopt.runtime.compiler import compile_linalg
from gradopt.runtime.present import why_no_device

from .helpers import spec

REASON = why_no_device("vulkan")
pytestmark = pytest.mark.compiler

rng = np.random.default_rng(6)
WEIGHTS = {"h": rng.normal(size=(8, 8)) / 3, "x": rng.normal(size=(3, 8)), "b": rng.normal(size=8)}
WEIGHTS = {name: w.astype(np.float32) for name, w in WEIGHTS.items()}


def rows(steps: int) -> np.ndarray:
    return rng.normal(size=(steps, 4, 3)).astype(np.float32)


def loss(unroll: int | None) -> Any:
    """A recurrent net with a counter, so that a carry and an output are integers."""

    def of(p: Any, x: Any) -> Any:
        def step(state: Any, x: Any) -> Any:
            h, n = state
            h = go.tanh(h @ p["h"] + x @ p["x"] + p["b"])
            return (h, n + 1), (h * 2, n)

        start = go.zeros((4, 8)), 0
        (h, n), (ys, ns) = go.scan(step, start, x, unroll=unroll)
        return (h**2).sum() + (ys**3).mean() + ns.astype("float32").sum() * n

    return go.value_and_grad(of, argnums=(0, 1))


def agrees(on: str, steps: int, unroll: int | None, **options: Any) -> None:
    """A target gives what the reference gives."""
    x = rows(steps)
    want = go.compile(loss(unroll), target="reference")(WEIGHTS, x)
    found = go.compile(loss(unroll), target=on, **options)(WEIGHTS, x)
    for a, b in zip(optree.tree_leaves(found), optree.tree_leaves(want), strict=True):
        size = float(np.max(np.abs(np.asarray(b))))
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), 0, 2e-6 * size)


def test_written_out() -> None:
    agrees("cpu", 4, None)


def test_in_trips_with_steps_left_over() -> None:
    agrees("cpu", 7, 3)


def test_with_memory_of_the_callers_everything_is_written_out() -> None:
    agrees("cpu", 3, 1, static_alloc=True)


def test_the_host_jit_writes_everything_out() -> None:
    agrees("jit", 3, 1)


@pytest.mark.skipif(bool(REASON), reason=f"no Vulkan device: {REASON}")
def test_on_vulkan() -> None:
    agrees("vulkan", 5, 2)


def test_code_for_cuda() -> None:
    where = target("cuda")
    graph = trace(loss(2), optree.tree_map(spec, WEIGHTS), spec(rows(5)))
    lowered, _ = pipeline.lower(graph.module, where)
    text = lowered.operation.get_asm()
    assert text.count("scf.for") == 2
    assert compile_linalg(text, where, "loops")
