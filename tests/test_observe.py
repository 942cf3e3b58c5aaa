# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Looking into compiled functions: monitors, NaN checks, stages and logs, on the host JIT."""

import gc
import logging
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import gradopt as go
import numpy as np
import pytest
from gradopt.dialect import trees
from gradopt.dialect.mlir import ir
from gradopt.errors import ArgumentError, NonFiniteError
from gradopt.lowering import pipeline
from gradopt.lowering.target import target
from gradopt.runtime import log, monitor

rng = np.random.default_rng(3)


def f32(*shape: int) -> np.ndarray:
    return rng.uniform(-1, 1, shape).astype(np.float32)


def net(x: Any, w: Any) -> Any:
    return go.tanh(x @ w).sum()


def step(x: Any, w: Any) -> Any:
    return go.value_and_grad(net, (0, 1))(x, w)


FORWARD = ["dot_general", "tanh", "sum"]
BACKWARD = ["sum.vjp", "tanh.vjp", "dot_general.vjp"]


class Seen:
    """A callback that notes what it is given."""

    def __init__(self) -> None:
        self.entries: list[tuple[Any, str, np.ndarray]] = []

    def __call__(self, op: Any, output: str, array: Any) -> None:
        self.entries.append((op, output, np.array(array)))

    @property
    def ops(self) -> list[str]:
        """The ops in order, each once where it has several outputs in a row."""
        return list(dict.fromkeys(op for op, _, _ in self.entries))

    def value(self, op: str) -> np.ndarray:
        """The last value that an op made."""
        return next(a for name, _, a in reversed(self.entries) if name == op)


def same(got: Any, want: Any) -> None:
    for a, b in zip(leaves(got), leaves(want), strict=True):
        np.testing.assert_array_equal(a, b)


def leaves(tree: Any) -> list[np.ndarray]:
    return [np.asarray(x) for x in trees.leaves(tree)]


# --- monitors -------------------------------------------------------------------------------------


@pytest.mark.parametrize("static_alloc", [False, True])
def test_monitor_forward_and_backward(static_alloc: bool) -> None:
    """B20, C143: each op of the forward and the backward is reported once a call, in order, with
    its name, kind, source line and value.
    """
    f = go.compile(step, target="jit", static_alloc=static_alloc)
    x, w = f32(2, 3), f32(3, 4)
    want = f(x, w)
    for _ in range(2):
        seen = Seen()
        with f.monitor(seen):
            same(f(x, w), want)
        assert seen.ops == FORWARD + BACKWARD
        pairs = [(op, output) for op, output, _ in seen.entries]
        assert len(set(pairs)) == len(pairs)
        assert {op.kind for op, _, _ in seen.entries if op in FORWARD} == set(FORWARD)
        assert [op for op in seen.ops if op.is_backward] == BACKWARD
        assert all(op.where.startswith(f"{__file__}:") for op, _, _ in seen.entries)
    h = np.tanh(x @ w)
    np.testing.assert_allclose(seen.value("dot_general"), x @ w, rtol=1e-5)
    np.testing.assert_allclose(seen.value("tanh"), h, rtol=1e-5)
    np.testing.assert_allclose(seen.value("sum"), h.sum(), rtol=1e-5)
    np.testing.assert_array_equal(seen.value("sum.vjp"), np.ones((2, 4)))
    np.testing.assert_allclose(seen.value("tanh.vjp"), 1 - h**2, rtol=1e-4)
    np.testing.assert_allclose(seen.value("dot_general.vjp"), x.T @ (1 - h**2), rtol=1e-4)


def test_monitor_off_costs_nothing() -> None:
    """B20, C143: without a monitor a call runs the executable that it ran before there was one; no
    other is made until a function that is monitored is called.
    """
    f = go.compile(step, target="jit")
    x, w = f32(2, 3), f32(3, 4)
    f(x, w)
    before, plain = f._bound, dict(f._bound)
    with f.monitor(Seen()):
        assert f._bound is not before
        assert not f._bound
        f(x, w)
        (watched,) = f._bound.values()
        assert type(watched) is monitor.MonitoredExecutable
    assert f._bound is before
    f(x, w)
    assert dict(f._bound) == plain
    assert all(type(e).__call__ is not monitor.MonitoredExecutable.__call__ for e in plain.values())
    with f.monitor(Seen()):
        f(x, w)
        assert list(f._bound.values()) == [watched]  # compiled once


def test_monitor_inputs() -> None:
    """B20: with all=True what ops read is reported, too, before what they make, by operand."""
    f = go.compile(step, target="jit")
    x, w = f32(2, 3), f32(3, 4)
    seen = Seen()
    with f.monitor(seen, all=True, pattern="dot_general"):
        f(x, w)
    labels = [(op, output) for op, output, _ in seen.entries]
    assert labels == [
        ("dot_general", "dot_general.lhs"),
        ("dot_general", "dot_general.rhs"),
        ("dot_general", "dot_general"),
    ]
    np.testing.assert_array_equal(seen.entries[0][2], x)
    np.testing.assert_array_equal(seen.entries[1][2], w)


def test_monitor_scopes_patterns_and_several() -> None:
    """B20: name scopes are part of names, a pattern chooses ops, several monitors at once get what
    each asked for, several outputs are numbered.
    """

    def scoped(x: Any) -> Any:
        with go.name_scope("first"):
            a, b = go.split(go.exp(x), 2)
        with go.name_scope("second"):
            return go.square(a) * b

    f = go.compile(scoped, target="jit")
    first, everything = Seen(), Seen()
    one, other = f.monitor(first, pattern="first.*"), f.monitor(everything)
    f(f32(4))
    one.remove()
    one.remove()
    f(f32(4))
    other.remove()
    f(f32(4))
    assert {op.split(".")[0] for op in first.ops} == {"first"}
    assert "first.exp" in first.ops
    assert {"second.square", "second.mul"} <= set(everything.ops)
    counts = [op for op, _, _ in everything.entries]
    assert counts.count("second.mul") == 2


def test_monitor_of_a_graph_and_donation() -> None:
    """B20: graphs built by hand, unknown extents and donated arguments are monitored, too."""
    graph = go.Graph("total")
    a, b = graph.input("a", (None, 3)), graph.input("b", (None, 3))
    graph.output((a * b).sum())
    total, seen = go.compile(graph, target="jit"), Seen()
    with total.monitor(seen):
        for rows in (2, 5):
            (got,) = total(np.ones((rows, 3), np.float32), np.ones((rows, 3), np.float32))
            assert float(got) == 3 * rows
    assert [(op, a.shape) for op, _, a in seen.entries][::2] == [("mul", (2, 3)), ("mul", (5, 3))]

    decay, seen = go.compile(lambda w: w * 0.5, donate=0, target="jit"), Seen()
    w = go.device_put(np.full(3, 8, np.float32), "jit")
    with decay.monitor(seen):
        new = decay(w)
    assert w.is_deleted()
    np.testing.assert_array_equal(new, [4, 4, 4])
    np.testing.assert_array_equal(seen.value("mul"), [4, 4, 4])


@pytest.mark.parametrize("static_alloc", [False, True])
def test_monitor_of_recorded_calls(static_alloc: bool) -> None:
    """B20, C143: the ops of a recorded call are reported with it, those of its backward with the
    backward, each once; a backward that was recorded before the monitor came is not watched.
    """
    f = go.compile(net, target="jit", static_alloc=static_alloc)
    x, w = f32(2, 3), f32(3, 4)
    value, pullback = f.vjp(x, w)
    want = pullback(retain_graph=True)
    seen = Seen()
    with f.monitor(seen):
        pullback()
        assert not seen.entries
        got, pullback = f.vjp(x, w)
        assert seen.ops == FORWARD
        gradients = pullback()
        assert seen.ops == FORWARD + BACKWARD
    assert len({(op, output) for op, output, _ in seen.entries}) == len(seen.entries)
    same((got, gradients), (value, want))
    plain = dict(f._bound.recorded)
    f.vjp(x, w)[1]()
    assert dict(f._bound.recorded) == plain
    assert len(seen.entries) == len({(op, output) for op, output, _ in seen.entries})


def test_monitor_errors() -> None:
    """B20: registering None is an error; an error in a callback reaches the caller."""
    f = go.compile(net, target="jit")
    with pytest.raises(ArgumentError, match=r"monitor expected a function .* got None; to end"):
        f.monitor(None)  # type: ignore[arg-type]

    def failing(*_: Any) -> None:
        raise KeyError("mine")

    with f.monitor(failing), pytest.raises(KeyError, match="mine"):
        f(f32(2, 3), f32(3, 4))
    f(f32(2, 3), f32(3, 4))


def test_monitor_while_other_threads_call() -> None:
    """B20: monitors come and go while other threads call; results stay right, no plain executable
    is watched.
    """
    f = go.compile(step, target="jit")
    x, w = f32(2, 3), f32(3, 4)
    want, faults, stop = f(x, w), [], threading.Event()

    def call() -> None:
        while not stop.is_set():
            try:
                same(f(x, w), want)
            except AssertionError as error:
                faults.append(error)

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(30):
        with f.monitor(Seen()):
            f(x, w)
    stop.set()
    for thread in threads:
        thread.join()
    assert not faults
    assert not any(isinstance(e, monitor.Wrapped) for e in f._bound.values())


def test_watching_keeps_nothing_alive() -> None:
    """A compiled function is freed with its last reference, watched or not."""
    f = go.compile(net, target="jit")
    with f.monitor(Seen()):
        f(f32(2, 3), f32(3, 4))
    gone = weakref.ref(f)
    del f
    gc.collect()
    assert gone() is None


# --- NaN and infinities ---------------------------------------------------------------------------


def test_first_nan_in_the_forward() -> None:
    """The op that made the first NaN is named, with line and operands; NaN that a where leaves out
    is not blamed, and without debug_nans nothing is checked.
    """

    def f(x: Any) -> Any:
        harmless = go.where(x > 5, go.log(x - 5), x)
        with go.name_scope("layer"):
            root = go.sqrt(x - 1)  # the culprit
        return (root * harmless).sum()

    compiled = go.compile(f, target="jit")
    x = np.array([2.0, 0.5, 3.0])
    assert np.isnan(compiled(x))
    with go.debug_nans():
        with pytest.raises(NonFiniteError, match=r"first made by op 'layer\.sqrt'") as caught:
            compiled(x)
        assert float(compiled(x + 2)) > 0
    assert isinstance(caught.value, FloatingPointError)
    assert caught.value.op == "layer.sqrt"
    line = f.__code__.co_firstlineno + 3
    assert caught.value.op.where == f"{__file__}:{line}"
    assert f"gradopt.sqrt, forward) at {__file__}:{line}" in str(caught.value)
    np.testing.assert_array_equal(caught.value.inputs["sqrt.x"], x - 1)
    assert "read sqrt.x: float64[3], from -0.5 to 2" in str(caught.value)
    assert "made sqrt: float64[3], from 1 to 1.41421, 1 of 3 NaN" in str(caught.value)
    assert np.isnan(compiled(x))


@go.custom_vjp
def square_badly(x: Any) -> Any:
    return x * x


square_badly.defvjp(lambda x: (x * x, x), lambda x, ct: (go.log(-go.abs(x)) * ct,))


def test_first_nan_in_the_backward() -> None:
    """A NaN that only a gradient rule makes is found in the backward."""
    f = go.compile(lambda x: go.value_and_grad(lambda x: square_badly(x).sum())(x), target="jit")
    with go.debug_nans(), pytest.raises(NonFiniteError, match="'log'") as caught:
        f(np.array([1.0, 2.0]))
    assert f"{__file__}:{square_badly_line()}" in str(caught.value)


def square_badly_line() -> int:
    with open(__file__) as file:
        return next(i for i, line in enumerate(file, 1) if line.startswith("square_badly.defvjp"))


def test_nan_in_an_argument_and_infinities() -> None:
    """Arguments that have NaN already are named; infinities are looked for when asked."""
    f = go.compile(lambda x, scale: go.exp(x) * scale["a"], target="jit")
    x = np.array([1.0, 2.0])
    with go.debug_nans():
        with pytest.raises(NonFiniteError, match=r"argument 'scale\.a' has already") as caught:
            f(x, {"a": np.array([np.nan, 1.0])})
        assert caught.value.op is None
        assert np.isinf(f(np.array([1000.0, 1.0]), {"a": np.ones(2)})).any()
    with go.debug_infs(), pytest.raises(NonFiniteError, match="infinity, first made by op 'exp'"):
        f(np.array([1000.0, 1.0]), {"a": np.ones(2)})


def test_nan_check_is_a_switch() -> None:
    """debug_nans is a context manager and a switch, and of all functions, those made before too;
    donated arguments are looked at as they were given.
    """
    f = go.compile(lambda x: go.log(x), donate=0, target="jit")
    f(go.device_put(np.ones(2), "jit"))
    try:
        go.debug_nans()
        with pytest.raises(NonFiniteError, match="from -1 to 1"):
            f(go.device_put(np.array([-1.0, 1.0]), "jit"))
        with go.debug_nans(False):
            f(go.device_put(np.array([-1.0, 1.0]), "jit"))
        with pytest.raises(NonFiniteError):
            f(np.array([-1.0, 1.0]))
    finally:
        go.debug_nans(False)
    assert np.isnan(f(np.array([-1.0, 1.0]))).any()


# --- stages, logs, profiles -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cpu", "jit"])
def test_every_stage_can_be_read(name: str) -> None:
    """B21: the graph after each stage is text that parses and verifies, derivatives written out
    after `differentiated`, no op of the dialect left after `linalg`, names and lines kept.
    """
    x, w = f32(2, 3), f32(3, 4)
    f = go.compile(step, target=name)
    texts = {stage: f.mlir(stage, x, w) for stage in pipeline.stages(target(name))}
    with go.trace(step, x, w).context as context:
        context.allow_unregistered_dialects = True
        for text in texts.values():
            assert ir.Module.parse(text).operation.verify()
    assert "gradopt.vjp" in texts["graph"]
    assert "gradopt.vjp" not in texts["differentiated"]
    assert "%tanh.vjp" in texts["differentiated"]
    assert texts["simplified"].count("gradopt.") < texts["differentiated"].count("gradopt.")
    assert texts["rematerialized"] == texts["simplified"]
    assert '"gradopt.' not in texts["linalg"]
    if name == "jit":
        assert "memref" in texts["memref"]
    with pytest.raises(ArgumentError, match="expected a stage out of graph"):
        f.mlir("nowhere", x, w)


@pytest.fixture
def messages(caplog: pytest.LogCaptureFixture) -> Callable[[str], list[str]]:
    """What was logged in an area."""
    caplog.set_level(logging.DEBUG, logger="gradopt")
    return lambda area: [r.getMessage() for r in caplog.records if r.name == f"gradopt.{area}"]


def test_log(messages: Callable[[str], list[str]]) -> None:
    """Compilations, passes and calls are logged in areas of their own."""
    f = go.compile(net, target="jit")
    f(f32(2, 3), f32(3, 4))
    f(f32(2, 3), f32(3, 4))
    (said,) = messages("compile")
    assert said == "net(x: tensor<2x3xf32>, w: tensor<3x4xf32>) -> (tensor<f32>) for jit"
    assert any(m.startswith("gradopt-differentiate: ") for m in messages("passes"))
    assert len(messages("calls")) == 2
    assert messages("calls")[0].startswith("'net': ")


def test_calls_are_logged_only_where_that_is_asked_for() -> None:
    """An executable is the plain one where calls are not logged."""
    f = go.compile(net, target="jit")
    f(f32(2, 3), f32(3, 4))
    assert not any(isinstance(e, monitor.Wrapped) for e in f._bound.values())


def test_gradopt_log() -> None:
    """GRADOPT_LOG takes levels and areas; what it does not know is a warning."""
    levels = log.configure("")
    assert levels == {}
    try:
        levels = log.configure("warning, passes=debug,cache")
        assert levels == {"gradopt": 30, "gradopt.passes": 10, "gradopt.cache": 10}
        with pytest.warns(UserWarning, match="GRADOPT_LOG expected levels .* got 'chache'"):
            log.configure("chache")
    finally:
        for name in levels:
            logging.getLogger(name).setLevel(logging.NOTSET)
        for handler in list(logging.getLogger("gradopt").handlers):
            logging.getLogger("gradopt").removeHandler(handler)
        logging.getLogger("gradopt").propagate = True


def test_gradopt_log_in_a_process() -> None:
    """GRADOPT_LOG=passes prints passes to stderr, and nothing else."""
    code = (
        "import gradopt as go, numpy as np\n"
        "go.compile(lambda x: go.exp(x), target='jit')(np.ones(3))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"GRADOPT_LOG": "passes"},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stderr.splitlines()
    assert any(line.startswith("gradopt.passes DEBUG gradopt-simplify") for line in lines)
    assert all(line.startswith("gradopt.passes DEBUG ") for line in lines)


def test_profile_refuses_what_it_cannot_measure() -> None:
    f = go.compile(net, target="jit")
    with go.profile(), pytest.raises(ArgumentError, match="expected functions of target 'cpu'"):
        f(f32(2, 3), f32(3, 4))
    f(f32(2, 3), f32(3, 4))
    with pytest.raises(ArgumentError, match="repeat to be at least 1, got 0"):
        go.profile(repeat=0)
    with pytest.raises(ArgumentError, match="rows by one of op, line, dispatch, got 'x'"):
        go.profile().rows("x")
