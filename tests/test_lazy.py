# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Modes of eager ops, ops that are put off, and deferred compute; what needs no compiler."""

import functools
import gc
import os
import re
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import gradopt as go
import numpy as np
import pytest
from gradopt.dialect import modes
from gradopt.errors import (
    ArgumentError,
    CompileError,
    DonationError,
    GradientError,
    OpError,
    TraceError,
)
from gradopt.runtime import compiler, lazy
from gradopt.runtime.state import state


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    """Graphs are run by NumPy, and settings are as before."""
    before = go.config.eager, go.config.target
    go.config.target = "reference"
    yield
    go.config.eager, go.config.target = before


def f32(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)


def pending(x: go.Array) -> bool:
    return x._source is not None and x._source.result is None


# --- modes ----------------------------------------------------------------------------------------


def test_config_is_checked() -> None:
    with pytest.raises(ArgumentError, match="expected one of 'reference', 'lazy', 'op', got 'eag"):
        go.config.eager = "eager"
    with pytest.raises(ArgumentError, match="mode expected one of"):
        go.eager_mode("jit").__enter__()
    with pytest.raises(CompileError, match=r"expected a target out of .*, got 'x'"):
        go.config.target = "x"
    assert repr(go.config) == "Config(eager='reference', target='reference')"


def test_modes_are_the_threads_and_are_restored() -> None:
    """B30: mode, recording, training and deferred compute, after an exception too, are the thread's
    own.
    """
    seen: list[Any] = []

    def other() -> None:
        seen.append((state.eager, state.recording, modes.current_mode(), state.deferred))

    with pytest.raises(ZeroDivisionError), go.eager_mode("lazy"), go.record(), go.infer_mode():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert state.eager == "lazy"
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError), go.deferred():
        assert state.deferred is not None
        raise ZeroDivisionError
    assert seen == [(None, False, "train", None)]
    assert (state.eager, state.recording, modes.current_mode(), state.deferred) == seen[0]


def test_the_process_default_is_for_all_threads() -> None:
    go.config.eager = "lazy"
    x, found = go.array(f32(3)), []
    thread = threading.Thread(target=lambda: found.append(pending(x + 1)))
    thread.start()
    thread.join()
    assert found == [True]
    with go.eager_mode("reference"):
        assert not pending(x + 1)


@pytest.mark.parametrize("mode", ["reference", "lazy", "op"])
def test_modes_agree(mode: str) -> None:
    """B38"""
    x = go.array(f32(2, 3))
    with go.eager_mode(mode):
        y = sum(go.unstack(go.exp(-x), 1)) * 2 + x[:, 0]
    want = np.exp(-f32(2, 3)).sum(1) * 2 + f32(2, 3)[:, 0]
    np.testing.assert_allclose(y.numpy(), want, rtol=1e-6)


@pytest.mark.parametrize("mode", ["reference", "lazy", "op"])
def test_errors_are_raised_at_the_users_line(mode: str) -> None:
    """Shapes and types are checked when an op is called, in every mode."""
    x = go.array(f32(2, 3))
    with go.eager_mode(mode), pytest.raises(OpError, match="expected"):
        _ = x @ x
    with go.eager_mode(mode), pytest.raises(OpError, match="sum' op expected an axis in"):
        go.sum(x, axis=7)


@pytest.mark.parametrize("mode", ["reference", "lazy", "op"])
def test_invoke(mode: str) -> None:
    """B43"""
    x = go.array(f32(2, 3))
    with go.eager_mode(mode):
        np.testing.assert_array_equal(go.invoke("tanh", x).numpy(), np.tanh(f32(2, 3)))
        np.testing.assert_array_equal(go.invoke("gradopt.sum", [x], axes=(0,)), f32(2, 3).sum(0))
        np.testing.assert_array_equal(go.invoke("add", (x, x)), 2 * f32(2, 3))


def test_invoke_in_a_trace() -> None:
    assert "gradopt.exp" in str(go.trace(lambda x: go.invoke("exp", x), f32(2)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: go.invoke("nothing", x), "expected the name of an op on arrays, got 'nothing'"),
        (lambda x: go.invoke("vjp", x), "expected the name of an op on arrays, got 'vjp'"),
        (lambda x: go.invoke("exp", [x, x]), r"exp' op expected operands \(x\), got 2 of them"),
        (lambda x: go.invoke("exp", x, axis=1), "exp' op expected attributes out of: none, got 'a"),
        (lambda x: go.invoke("sum", x), r"sum' op expected attribute 'axes' like .* got none"),
        (lambda x: go.invoke("add", [x, x[0]]), "add' op expected operands of one type"),
    ],
)
def test_misuse_of_invoke(call: Any, message: str) -> None:
    with pytest.raises(OpError, match=message):
        call(go.array(f32(2, 3)))


# --- lazy -----------------------------------------------------------------------------------------


def test_nothing_runs_before_a_value_is_needed() -> None:
    x = go.array(f32(4))
    with go.eager_mode("lazy"):
        y = go.exp(x)
        z = y + 1
        assert pending(y) and pending(z) and not z.is_ready()
        assert z.shape == (4,) and z.dtype == np.float32
        assert float(z[0]) == 2.0
        assert not pending(y)  # somebody could still ask for it: it came along


@pytest.mark.parametrize(
    "read",
    [np.asarray, repr, lambda x: x.tolist(), lambda x: x[0].item(), lambda x: bool(x.any()),
     lambda x: np.from_dlpack(x), go.compile(lambda x: x, target="reference"),
     go.block_until_ready],
    ids=["numpy", "repr", "tolist", "item", "bool", "dlpack", "compiled", "block"],
)  # fmt: skip
def test_what_needs_a_value(read: Any) -> None:
    with go.eager_mode("lazy"):
        y = go.array(f32(4)) + 1
        read(y)
        assert not pending(y)
    np.testing.assert_array_equal(y.numpy(), f32(4) + 1)


def test_a_graph_like_one_before_is_not_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeated graphs are found by their structure: the numbers are inputs."""
    built: list[str] = []
    build = lazy.build
    monkeypatch.setattr(lazy, "build", lambda *a: (built.append(a[0]), build(*a))[1])
    with go.eager_mode("lazy"):
        for i in range(5):
            x = f32(3) + np.float32(i)
            got = go.exp(go.array(x) * i) - go.array(x)
            np.testing.assert_array_equal(got.numpy(), np.exp(x * i) - x)
        assert len(built) == 1
        (go.exp(go.array(f32(4)) * 2) - 1).numpy()
        assert len(built) == 2


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda x: go.tril(x, 1), lambda x: go.tril(x, -1)),
        (lambda x: go.clip(x, -0.0, 9.0) * 0 + 1 / go.clip(x * 0 - 1, -0.0, 0.0),
         lambda x: go.clip(x, 0.0, 9.0) * 0 + 1 / go.clip(x * 0 - 1, 0.0, 0.0)),
        (lambda x: (x + x) * x, lambda x: x + (x * x)),
        (lambda x: x - x * 2, lambda x: x * 2 - x),
        (lambda x: x.sum(0), lambda x: x.sum(1)),
    ],
)  # fmt: skip
def test_other_graphs_are_not_taken_for_one_before(first: Any, second: Any) -> None:
    """C028: attributes, operands and their order are part of what is the same."""
    x = go.array(f32(2, 2) + 1)
    for fn in (first, second):
        want = fn(x).numpy()
        with go.eager_mode("lazy"):
            np.testing.assert_array_equal(fn(x).numpy(), want)


def test_attributes_in_one_graph() -> None:
    """C028: two ops that differ in an attribute are two, put off and in deferred compute."""
    a = go.array(np.ones((2, 2), np.float32))
    with go.eager_mode("lazy"):
        upper, lower = go.tril(a, 1), go.tril(a, -1)
    assert upper.tolist() == [[1, 1], [1, 1]] and lower.tolist() == [[0, 0], [1, 0]]
    with go.deferred():
        go.set_variable(a, "a")
        both = go.tril(a, 1), go.tril(a, -1)
    found = go.compile(go.get_graph(both), target="jit")(a)
    assert [x.tolist() for x in found] == [[[1, 1], [1, 1]], [[0, 0], [1, 0]]]


def test_what_is_dead_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    run = lazy.run
    monkeypatch.setattr(lazy, "run", lambda nodes, *a: (ran.append(len(nodes)), run(nodes, *a))[1])
    x = go.array(f32(3))
    with go.eager_mode("lazy"):
        for _ in range(10):
            go.exp(x)
        y = go.tanh(x)
        y.numpy()
    assert ran == [1]


def test_long_chains() -> None:
    """100,000 ops without a read: they run in portions, and nothing recurses."""
    x = go.array(f32(2))
    with go.eager_mode("lazy"):
        for _ in range(50_000):
            x = go.invoke("neg", go.invoke("neg", x))
    np.testing.assert_array_equal(x.numpy(), f32(2))
    assert len(state.queue.nodes) <= lazy.LIMIT


def test_long_chains_in_deferred_compute() -> None:
    """No recursion over depth: running, building and freeing a chain."""
    x = go.array(f32(2))
    with go.deferred():
        y = x
        for _ in range(100_000):
            y = go.invoke("neg", y)
    np.testing.assert_array_equal(y.numpy(), f32(2))
    go.clear(y)
    del y
    gc.collect()


def test_writes_do_not_reach_ops_before_them() -> None:
    """B33: an op that was put off reads what its operands held when it was called."""
    x = go.array(f32(3))
    with go.eager_mode("lazy"):
        before = x * 2
        x += 10
        x[0] = -1
        after = x * 2
    assert before.tolist() == [0, 2, 4] and after.tolist() == [-2, 22, 24]


def test_memory_that_is_put_off_is_not_overwritten() -> None:
    """Donation and `out` leave what ops that were put off have still to read."""
    double = go.compile(lambda x: x * 2, target="jit", donate=0)
    into = go.compile(lambda x: x * 2, target="jit")
    x, y = go.device_put(f32(3), "jit"), go.device_put(f32(3), "jit")
    with go.eager_mode("lazy"):
        a, b = x + 1, y + 1
        assert double(x).tolist() == [0, 2, 4]
        assert into(f32(3) + 5, out=y).tolist() == [10, 12, 14]
        assert a.tolist() == b.tolist() == [1, 2, 3]
        with pytest.raises(DonationError, match="was used after it had been donated"):
            _ = x + 1


def test_arrays_are_read_in_other_threads() -> None:
    """Arrays of one thread are read, and operands, in others, while it goes on."""
    x = go.array(f32(8))
    made: list[go.Array] = []
    faults: list[BaseException] = []

    def read(i: int) -> None:
        try:
            with go.eager_mode("lazy"):
                for y in list(made):
                    assert (y + i).tolist() == (np.asarray(y) + i).tolist()
        except BaseException as error:
            faults.append(error)

    with go.eager_mode("lazy"):
        for k in range(20):
            made.append(go.exp(x * -k) + 1)
            threads = [threading.Thread(target=read, args=(i,)) for i in range(4)]
            for thread in threads:
                thread.start()
            y = x
            for _ in range(20):
                y = y + k
            for thread in threads:
                thread.join(60)
            assert y.tolist() == (f32(8) + 20 * k).tolist()
    assert not faults
    for k, y in enumerate(made):
        np.testing.assert_array_equal(y.numpy(), np.exp(f32(8) * np.float32(-k)) + 1)


def test_a_failure_is_raised_again_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of a graph that cannot be compiled is raised at each read, until it can be."""
    bind = lazy.bind

    def failing(graph: Any, target: Any, **options: Any) -> Any:
        if target.name == "jit":
            raise CompileError("no code for this")
        return bind(graph, target, **options)

    monkeypatch.setattr(lazy, "bind", failing)
    x = go.array(f32(3))
    go.config.target = "jit"
    with go.eager_mode("lazy"):
        y, z = go.exp(x), go.tanh(x)
        for _ in range(2):
            with pytest.raises(CompileError, match="no code for this"):
                y.numpy()
        with pytest.raises(CompileError, match="no code for this"):
            repr(z)
        assert pending(y) and pending(z) and len(repr(x)) > 0
        go.config.target = "reference"
        np.testing.assert_array_equal(y.numpy(), np.exp(f32(3)))
        np.testing.assert_array_equal(z.numpy(), np.tanh(f32(3)))


def test_an_error_names_the_op_and_the_users_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the compiler says of a place is said of the op, and of the line that called it."""

    def refuse(self: Any, source: bytes, *unused: Any) -> Any:
        file, line = re.findall(r'"([^"]*test_lazy.py)":(\d+)', source.decode())[-1]
        said = f"{file}:{line}:0: error: too hard"
        return {"ok": False, "stage": "codegen", "diagnostics": [said]}, b""

    monkeypatch.setattr(compiler.Worker, "compile", refuse)
    monkeypatch.setattr(lazy, "bind", functools.partial(lazy.bind, disk_cache=False))
    go.config.target = "cpu"
    x = go.array(f32(3, 11))
    with go.eager_mode("lazy"):
        y = go.tanh(x)
        line = sys._getframe().f_lineno - 1
        pattern = rf"op: gradopt.tanh\nlocation: .*test_lazy.py:{line}\n"
        with pytest.raises(CompileError, match=pattern):
            y.numpy()
        go.config.target = "reference"
        np.testing.assert_array_equal(y.numpy(), np.tanh(f32(3, 11)))


def test_without_a_compiler(tmp_path: Any) -> None:
    """Where IREE's compiler is not installed, the error says so, and what to do."""
    package = tmp_path / "iree" / "compiler"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('nothing here')")
    program = """
        import gradopt as go
        with go.eager_mode("lazy"):
            y = go.tanh(go.array([0.0]))
            try:
                print(y)
            except Exception as error:
                print(error)
            go.config.target = "reference"
            print(y)
    """
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    about = {"PYTHONPATH": path, "GRADOPT_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, **about}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    said, value = done.stdout.splitlines()
    assert "'eager' for target 'cpu' expected IREE's compiler, but" in said
    assert "ImportError: nothing here; install the package iree-base-compiler, or use" in said
    assert value == "Array([0.], dtype=float32)"


def test_clear_cache_forgets_graphs() -> None:
    with go.eager_mode("lazy"):
        (go.array(f32(3)) + 1).numpy()
    assert len(lazy._executables)
    go.clear_cache()
    assert not len(lazy._executables)


def test_inputs_are_freed_when_they_were_read() -> None:
    x = go.array(f32(3))
    value = weakref.ref(x._value)
    with go.eager_mode("lazy"):
        y = x + 1
        del x
        assert value() is not None
        y.numpy()
    gc.collect()
    assert value() is None


@pytest.mark.parametrize("mode", ["lazy", "op"])
def test_gradients_are_put_off(mode: str) -> None:
    """B31: the tape in other modes, its backward put off like the ops that it records."""
    x = go.array(f32(3))
    x.attach_grad("add")
    with go.eager_mode(mode):
        for _ in range(2):
            with go.record():
                y = (x * x).sum()
            y.backward()
    assert x.grad is not None and x.grad.tolist() == [0, 4, 8]


# --- deferred compute -----------------------------------------------------------------------------


def test_deferred_builds_a_graph() -> None:
    """B36, B37: arrays that are bound are inputs, others constants; names are scoped and unique."""
    x, w = go.array(f32(2, 3)), go.array(f32(3))
    with go.deferred():
        go.set_variable(x, "x")
        with go.name_scope("first"):
            h = go.exp(x) + w
        y = {"h": h, "s": (h + w).sum(), "named": go.tanh(h, name="out")}
        assert pending(h)
    graph = go.get_graph(y)
    assert graph.input_names == ["x"]
    text = str(graph)
    for name in ("%first.exp = ", "%first.add = ", "%add = ", "%out = "):
        assert text.count(name) == 1, text
    got = go.compile(graph, target="jit")(x)
    want = np.exp(f32(2, 3)) + f32(3)
    np.testing.assert_allclose(got["h"].numpy(), want, rtol=1e-6)
    np.testing.assert_allclose(got["s"].numpy(), (want + f32(3)).sum(), rtol=1e-6)
    np.testing.assert_allclose(got["named"].numpy(), np.tanh(want), rtol=1e-6)


def test_inputs_of_a_graph_may_be_given() -> None:
    """B36: in their order, by name, and those that nothing reads."""
    x, w, other = go.array(f32(2)), go.array(f32(2)), go.array(f32(3))
    with go.deferred():
        y = x - w
    assert go.get_graph(y, inputs=[w, x]).input_names == ["input0", "input1"]
    graph = go.get_graph([y], inputs={"w": w, "other": other, "x": x}, name="difference")
    assert graph.input_names == ["w", "other", "x"] and graph.name == "difference"
    (found,) = go.compile(graph, target="reference")(f32(2), f32(3), f32(2) + 5)
    assert found.tolist() == [5, 5]


def test_values_on_demand_keep_the_graph() -> None:
    """B36: a value that is asked for is computed, and the history stays until it is cleared."""
    x = go.array(f32(3))
    with go.deferred():
        go.set_variable(x, "x")
        y = x * 2
        assert y.tolist() == [0, 2, 4]
        z = y + 1
    assert float(z[1]) == 3
    graph = go.get_graph(z)
    assert "gradopt.mul" in str(graph) and "gradopt.add" in str(graph)
    assert (z + 1).tolist() == [2, 4, 6]  # outside: an array like any other


def test_clear_drops_histories() -> None:
    """B36"""
    x = go.array(f32(3))
    with go.deferred():
        y, z = x * 2, x * 3
    y.numpy()
    node = weakref.ref(y._source.node)
    go.clear([y, {"z": z}])
    gc.collect()
    assert node() is None and y.tolist() == [0, 2, 4]
    with pytest.raises(
        ArgumentError, match=r"expected output 0 to be an array computed in go.defe"
    ):
        go.get_graph(y)
    with pytest.raises(TraceError, match=r"was never computed, and go.clear dropped"):
        z.numpy()


def test_writes_in_deferred_compute() -> None:
    """An array that is written to stands for its new value, and ops before it for the old one."""
    x = go.array(f32(3))
    with go.deferred():
        go.set_variable(x, "x")
        before = x * 2
        x += 1
        x[0] = 7
        after = x * 2
    assert before.tolist() == [0, 2, 4] and after.tolist() == [14, 4, 6] and x.tolist() == [7, 2, 3]
    graph = go.get_graph((before, after))
    a, b = go.compile(graph, target="reference")(f32(3) + 1)
    assert a.tolist() == [2, 4, 6] and b.tolist() == [14, 6, 8]


def test_arrays_on_a_device_and_their_copies_are_inputs() -> None:
    x = go.device_put(f32(3), "jit")
    with go.deferred():
        go.set_variable(x, "x")
        y = x.detach() * go.array(x)
    assert y.tolist() == [0, 1, 4]
    assert go.compile(go.get_graph(y), target="reference")(f32(3) + 1).tolist() == [1, 4, 9]


def test_binding_is_checked() -> None:
    """B36"""
    x, w = go.array(f32(3)), go.array(f32(3))
    with pytest.raises(ArgumentError, match=r"'x' expected to be called in go.deferred"):
        go.set_variable(x, "x")
    with go.deferred():
        assert go.set_variable(x, "x") is x
        go.set_variable(x, "x")  # again, by the same name
        with pytest.raises(ArgumentError, match=r"'y' expected an array without .* bound to 'x'"):
            go.set_variable(x, "y")
        with pytest.raises(ArgumentError, match="a name for each array, got 'x' for a second one"):
            go.set_variable(w, "x")
        with pytest.raises(ArgumentError, match=r"got the result of 'add' \(.*test_lazy.py:\d+\)"):
            go.set_variable(x + 1, "y")
        with pytest.raises(ArgumentError, match="'y' expected an Array, got ndarray"):
            go.set_variable(f32(3), "y")  # type: ignore[arg-type]
        y = x * w
    with pytest.raises(ArgumentError, match="expected the variable 'x', which it reads, among the"):
        go.get_graph(y, inputs=[w])
    with pytest.raises(ArgumentError, match="expected input 0 to be an array that is given, got t"):
        go.get_graph(y, inputs=[y])
    with pytest.raises(ArgumentError, match="expected input 0 to be an Array, got ndarray"):
        go.get_graph(y, inputs=[f32(3)])  # type: ignore[list-item]
    with pytest.raises(ArgumentError, match=r"expected output 0 to be an array computed in go.def"):
        go.get_graph([go.array(1.0)])
    with pytest.raises(ArgumentError, match=r"expected output 1 to be .* got float"):
        go.get_graph([y, 1.0])


def test_recording_in_deferred_compute_is_an_error() -> None:
    """B36"""
    x = go.array(f32(3))
    x.attach_grad()
    with go.record(), pytest.raises(GradientError, match="expected a thread that is not recording"):
        go.deferred().__enter__()
    with go.deferred(), pytest.raises(GradientError, match=r"go.record expected no go.deferred"):
        go.record().__enter__()
    assert state.deferred is None and not state.recording


@pytest.mark.parametrize("make", [lambda f: go.compile(f, target="reference"),
                                  lambda f: go.hybridize(f, target="reference")])  # fmt: skip
def test_compiled_functions_become_part_of_the_graph(make: Any) -> None:
    def f(x: Any, w: Any) -> Any:
        return go.exp(x) * w

    x, w = go.array(f32(3)), go.array(f32(3))
    graph_of_f = go.trace(f, f32(3), f32(3), name="f")
    with go.deferred():
        go.set_variable(x, "x")
        y = make(f)(x, w) + go.compile(graph_of_f, target="reference")(x, w)
    graph = go.get_graph(y)
    assert str(graph).count("gradopt.exp") == 2
    got = go.compile(graph, target="reference")(x)
    np.testing.assert_allclose(got.numpy(), 2 * np.exp(f32(3)) * f32(3), rtol=1e-6)


def test_derivatives_become_part_of_the_graph() -> None:
    x = go.array(f32(3))
    with go.deferred():
        go.set_variable(x, "x")
        y = go.grad(lambda x: (x * x * x).sum())(x)
    got = go.compile(go.get_graph(y), target="reference")(f32(3) + 1)
    np.testing.assert_allclose(got.numpy(), 3 * (f32(3) + 1) ** 2)


def test_shapes_are_those_of_the_arrays() -> None:
    """C029: the graph of one batch is not used for another; it says so."""
    x = go.array(f32(2, 5))
    with go.deferred():
        go.set_variable(x, "x")
        y = x[:, :-1] * 2
    compiled = go.compile(go.get_graph(y), target="reference")
    np.testing.assert_array_equal(compiled(x).numpy(), f32(2, 5)[:, :-1] * 2)
    with pytest.raises(ArgumentError, match="expected argument 'x'"):
        compiled(f32(5, 7))
