# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""One compiled function driven through random sequences of modes, gradient requests, shapes,
recorded calls, backwards, memory of the caller's, errors and threads, by IREE: every result is that
of the reference, which knows no state, and of a function that is used in one way only.

GRADOPT_SEQUENCES sets how many sequences of 30 steps are tried.
"""

import functools
import os
import threading
from collections.abc import Callable
from typing import Any

import gradopt as go
import numpy as np
import pytest
from gradopt.dialect import modes, reference, trees
from gradopt.dialect.graph import trace
from gradopt.dialect.types import TensorSpec
from gradopt.errors import ArgumentError, GradientError
from gradopt.lowering import pipeline
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

pytestmark = pytest.mark.compiler

SEQUENCES = int(os.environ.get("GRADOPT_SEQUENCES", "2"))
WIDTH = 3
KEY = np.array([3, 4], np.uint32)
REQUESTS = (
    "write",
    {"p": "write"},
    {"p.w": "add", "p.b": "write"},
)
BATCHES = (2, 5)


def net(p: dict[str, Any], x: Any) -> Any:
    """A net that differs between the modes, reads outputs and inputs in its backward, and returns
    an argument.
    """
    stats = np.zeros(WIDTH, np.float32), np.ones(WIDTH, np.float32)
    h, _ = go.batch_norm(x @ p["w"] + p["b"], running=stats)
    h = go.tanh(go.dropout(h, 0.5, KEY))
    return (h * h).sum(), h.T.reshape(-1), x


@functools.cache
def differentiated(mode: str, batch: int) -> Any:
    """The graph of results and all gradients, for the reference."""

    def fn(p: Any, x: Any, cts: Any) -> Any:
        results, pullback = go.vjp(net, p, x)
        return results, pullback(cts)

    p = {"w": TensorSpec((4, WIDTH)), "b": TensorSpec((WIDTH,))}
    cts = TensorSpec(()), TensorSpec((batch * WIDTH,)), TensorSpec((batch, 4))
    with modes.mode(mode):
        graph = trace(fn, p, TensorSpec((batch, 4)), cts)
    pipeline.run(graph.module, pipeline.STAGES["differentiated"])
    return graph


def expected(mode: str, p: Any, x: np.ndarray, cts: Any) -> tuple[Any, Any]:
    """Results and all gradients."""
    graph = differentiated(mode, len(x))
    given = trees.leaves((p, x, cts))
    found = reference.run(graph.module, graph.name, *given)
    return trees.unflatten(graph.out_tree, found)


@functools.cache
def single_purpose(mode: str, request: int, batch: int, static: bool) -> Any:
    """A function that is used in one way only."""
    assert batch in BATCHES
    return go.compile(net, mode=mode, grad_req=REQUESTS[request], static_alloc=static)


def in_thread(call: Callable[[], Any]) -> Any:
    """The result of a call on a thread of its own."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append((call(), None))
        except Exception as error:
            found.append((None, error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert found, "a call did not come back"
    value, error = found[0]
    if error is not None:
        raise error
    return value


def close(got: Any, want: Any) -> None:
    for a, b in zip(trees.leaves(got), trees.leaves(want), strict=True):
        np.testing.assert_allclose(np.asarray(a), b, rtol=1e-4, atol=1e-4)


def same(got: Any, want: Any) -> None:
    for a, b in zip(trees.leaves(got), trees.leaves(want), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


class Machine(RuleBasedStateMachine):
    @initialize(static=st.booleans(), seed=st.integers(0, 2**16))
    def start(self, static: bool, seed: int) -> None:
        self.static = static
        self.f = go.compile(net, static_alloc=static)
        self.rng = np.random.default_rng(seed)
        self.p: Any = {"w": self.draw(4, WIDTH), "b": self.draw(WIDTH)}
        self.recorded: list[dict[str, Any]] = []
        self.spent: list[Any] = []
        self.results: list[tuple[Any, Any]] = []  # arrays that were returned, and what they held

    def draw(self, *shape: int) -> np.ndarray:
        return self.rng.normal(size=shape).astype(np.float32)

    def arguments(self, batch: int, on_device: bool) -> tuple[Any, Any, np.ndarray]:
        """Arguments as the caller gives them, and x in NumPy."""
        x = self.draw(batch, 4)
        if on_device:
            return trees.map_leaves(go.device_put, self.p), go.device_put(x), x
        return self.p, x, x

    def held(self, results: Any) -> None:
        self.results.append((results, trees.map_leaves(lambda a: np.array(a), results)))
        del self.results[:-6]

    @rule(
        mode=st.sampled_from(modes.MODES),
        batch=st.sampled_from(BATCHES),
        on_device=st.booleans(),
        threaded=st.booleans(),
    )
    def call(self, mode: str, batch: int, on_device: bool, threaded: bool) -> None:
        p, x, plain = self.arguments(batch, on_device)

        def run() -> Any:
            with modes.mode(mode):
                return self.f(p, x)

        got = in_thread(run) if threaded else run()
        close(got, expected(mode, self.p, plain, zero_cts(batch))[0])
        same(got, single_purpose(mode, 0, batch, self.static)(self.p, plain))
        self.held(got)

    @rule(
        mode=st.sampled_from(modes.MODES),
        request=st.integers(0, len(REQUESTS) - 1),
        batch=st.sampled_from(BATCHES),
        on_device=st.booleans(),
        threaded=st.booleans(),
    )
    def record(self, mode: str, request: int, batch: int, on_device: bool, threaded: bool) -> None:
        p, x, plain = self.arguments(batch, on_device)
        self.f.grad_req = REQUESTS[request]

        def run() -> Any:
            with modes.mode(mode):
                return self.f.vjp(p, x)

        results, pullback = in_thread(run) if threaded else run()
        plain = plain.copy()
        if not on_device:
            x[...] = np.nan  # the caller's memory is the caller's
        about = {"mode": mode, "request": request, "p": self.p, "x": plain, "pullback": pullback}
        close(results, expected(mode, self.p, plain, zero_cts(batch))[0])
        self.recorded.append(about)
        self.held(results)

    @precondition(lambda self: getattr(self, "recorded", None))
    @rule(
        which=st.integers(0, 99),
        retain=st.booleans(),
        none=st.booleans(),
        out=st.sampled_from(["none", "numpy", "array"]),
        threaded=st.booleans(),
    )
    def backward(self, which: int, retain: bool, none: bool, out: str, threaded: bool) -> None:
        which %= len(self.recorded)
        about = self.recorded[which]
        mode, request, p, x, pullback = (
            about[k] for k in ("mode", "request", "p", "x", "pullback")
        )
        batch = len(x)
        cts = (1.0, None if none else self.draw(batch * WIDTH), self.draw(batch, 4))
        full = (np.float32(1), np.zeros(batch * WIDTH, "f") if none else cts[1], cts[2])
        want = self.wanted(expected(mode, p, x, full)[1], request)
        places = self.places(request, out, batch)
        start = trees.map_leaves(lambda a: np.array(a), places)
        again = self.places(request, "numpy", batch)
        for a, b in zip(trees.leaves(again), trees.leaves(start), strict=False):
            a[...] = b

        def run() -> Any:
            return pullback(cts, out=places, retain_graph=retain)

        got = in_thread(run) if threaded else run()
        added = trees.leaves(places)[-1:] if request == 2 else []
        for a, b in zip(trees.leaves(got), trees.leaves(want), strict=True):
            is_total = any(a is t for t in added)
            base = trees.leaves(start)[-1] if is_total else 0
            np.testing.assert_allclose(np.asarray(a), b + base, rtol=1e-4, atol=1e-4)
        fresh = single_purpose(mode, request, batch, self.static).vjp(p, x)[1]
        same(got, fresh(cts, out=again if request == 2 else None))
        if not retain:
            del self.recorded[which]
            self.spent.append(pullback)

    def wanted(self, gradients: Any, request: int) -> Any:
        """Those that a request asks for."""
        return gradients if request == 0 else (gradients[0], None)

    def places(self, request: int, kind: str, batch: int) -> Any:
        """Memory for the gradients; "add" always needs some."""
        if kind == "none" and request != 2:
            return None
        make = go.device_put if kind == "array" else np.array
        w, b = make(self.draw(4, WIDTH)), make(self.draw(WIDTH))
        return ({"w": w, "b": b}, make(self.draw(batch, 4)) if request == 0 else None)

    @precondition(lambda self: getattr(self, "spent", None))
    @rule()
    def backward_again(self) -> None:
        with pytest.raises(GradientError, match="was called before"):
            self.spent[-1](None)

    @rule(what=st.sampled_from(["shape", "kind", "count"]))
    def wrong(self, what: str) -> None:
        """Refused calls leave no trace."""
        x = self.draw(2, 5) if what == "shape" else "x"
        before = go.is_training()
        with pytest.raises((ArgumentError, ValueError, TypeError)):
            self.f(self.p) if what == "count" else self.f(self.p, x)
        assert go.is_training() == before

    @rule()
    def returned_arrays_stay(self) -> None:
        for results, values in self.results:
            same(results, values)

    @rule()
    def update(self) -> None:
        """The caller's parameters change, be it between a recorded call and its backward."""
        old = self.p
        self.p = {k: v + np.float32(0.1) for k, v in old.items()}
        for about in self.recorded:
            if about["p"] is old:
                about["p"] = {k: v.copy() for k, v in old.items()}
        for array in old.values():
            array[...] = np.nan


def zero_cts(batch: int) -> Any:
    return np.float32(0), np.zeros(batch * WIDTH, "f"), np.zeros((batch, 4), "f")


Machine.TestCase.settings = settings(
    max_examples=SEQUENCES,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
    database=None,
)


class TestStateMachine(Machine.TestCase):
    """C023, B02, B03, B10, B11, B13, B14, B16, B23, B25"""
