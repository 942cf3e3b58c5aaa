# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Recorded calls by IREE: whose memory gradients are in, and that none is held for ever."""

import gc
import os
import weakref
from typing import Any

import gradopt as go
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .helpers import run_reference
from .random_programs import arguments, differentiated, flat, program, programs

pytestmark = pytest.mark.compiler

PROGRAMS = int(os.environ.get("GRADOPT_RANDOM_GRAPHS", "4"))

rng = np.random.default_rng(11)


def f32(*shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def layer(w: Any, x: Any) -> Any:
    return go.tanh(x @ w)


def test_add_in_place() -> None:
    """B09: IREE adds in the caller's memory, where nothing else reads it, without a copy."""
    f, w, x = go.compile(layer, grad_req=("add", "null"), static_alloc=True), f32(16, 8), f32(4, 16)
    total = go.device_put(np.zeros((16, 8), np.float32))
    view, want = total.buffer_view(), np.zeros((16, 8))
    for step in range(3):
        _, pullback = f.vjp(w, x)
        (got, _) = pullback(np.ones((4, 8), np.float32), out=(total, None))
        want += x.T @ (1 - np.tanh(x @ w) ** 2)
        assert got is total
        assert total.buffer_view() is view
        assert pullback.nbytes == 0, step
        np.testing.assert_allclose(total, want, rtol=1e-4, atol=1e-5)
    (recorded,) = f._bound.recorded.values()
    assert recorded.backward.in_place, "the gradient is added by a copy"


@pytest.mark.parametrize("static", [False, True])
def test_residuals_die_with_the_backward(static: bool) -> None:
    """B16, B22: after it, or with the record that nobody wants; with static allocation their
    memory serves the next call.
    """
    f = go.compile(lambda x: go.exp(go.sin(x) * x).sum(), static_alloc=static)
    x = f32(64)
    addresses, alive = set(), []
    for i in range(20):
        _, pullback = f.vjp(x)
        residual = pullback._kept[-1]
        alive.append(weakref.ref(residual))
        addresses.add(residual.numpy().ctypes.data)
        del residual
        if i % 2:
            pullback()
        del pullback
        gc.collect()
        assert alive[-1]() is None
    if static:
        assert len(addresses) <= 2


def test_a_failing_call_leaves_no_state() -> None:
    """B25: modes, records and memory are as before."""
    f, w, x = go.compile(layer, static_alloc=True), f32(16, 8), f32(4, 16)
    want = [np.array(g) for g in f.vjp(w, x)[1]()]
    with pytest.raises(ValueError, match="dot_general"), go.infer_mode():
        f.vjp(w, f32(4, 15))
    assert go.is_training()
    for got, expected in zip(f.vjp(w, x)[1](), want, strict=True):
        np.testing.assert_array_equal(got, expected)


@settings(
    max_examples=PROGRAMS,
    deadline=None,
    derandomize="GRADOPT_RANDOM_GRAPHS" not in os.environ,
    suppress_health_check=list(HealthCheck),
    database=None,
)
@given(
    programs(),
    st.lists(st.sampled_from(["null", "write", "add"]), min_size=4, max_size=4),
    st.booleans(),
)
def test_random_programs(todo: Any, requests: list[str], static: bool) -> None:
    """B03, B14: forward and backward of random programs with random requests give the results and
    gradients that the reference gives at once.
    """
    if set(requests) == {"null"}:
        return
    xs = arguments()
    want = run_reference(differentiated(go, todo), *xs)
    narrow = [*(x.astype(np.float32) for x in xs[:-1]), xs[-1]]
    options: dict[str, Any] = {"static_alloc": static, "disk_cache": False}
    f = go.compile(program(go, todo), grad_req=[*requests, "null"], **options)
    (loss, last), pullback = f.vjp(*narrow)
    totals = [
        np.ones_like(x) if r == "add" else None for r, x in zip(requests, narrow, strict=False)
    ]
    gradients = pullback((1.0, tuple(None for _ in last)), out=(*totals, None))
    got = [g for g in flat(((loss, last), gradients[:4])) if g.dtype != object]
    expected = want[: len(want) - 4]
    expected += [w + (r == "add") for w, r in zip(want[-4:], requests, strict=True) if r != "null"]
    assert gradients[4] is None
    for a, b in zip(got, expected, strict=True):
        size = max(1.0, float(np.max(np.abs(b), initial=0)))
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-5 * size)
