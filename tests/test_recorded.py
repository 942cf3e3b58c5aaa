# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Recorded calls of compiled functions: forward and backward, gradient requests, modes, roles. On
the host JIT, which compiles in a moment; tests/test_iree_recorded.py runs some of it by IREE.
"""

import threading
from collections.abc import Callable
from typing import Any

import gradopt as go
import numpy as np
import pytest
from gradopt.errors import ArgumentError, GradientError, TraceError

rng = np.random.default_rng(5)


def compiled(fn: Any = None, **options: Any) -> Any:
    return go.compile(fn, target="jit", **options)


def f32(*shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def net(p: dict[str, Any], x: Any) -> Any:
    """A net whose backward reads outputs (tanh) and inputs (matmul)."""
    h = go.tanh(x @ p["w"] + p["b"])
    return (h * h).sum(), h


def parameters() -> dict[str, np.ndarray]:
    return {"w": f32(4, 3), "b": f32(3)}


def gradients(p: dict[str, np.ndarray], x: np.ndarray, ct: np.ndarray | float = 0) -> Any:
    """What the backward of `net` gives for cotangents 1 and `ct`."""
    h = np.tanh(x @ p["w"] + p["b"])
    d = (2 * h + ct) * (1 - h * h)
    return {"w": x.T @ d, "b": d.sum(0)}, d @ p["w"].T


def close(got: Any, want: Any, rtol: float = 2e-5) -> None:
    for g, w in zip(*map(go_leaves, (got, want)), strict=True):
        np.testing.assert_allclose(g, w, rtol=rtol, atol=1e-5)


def go_leaves(tree: Any) -> list[Any]:
    from gradopt.dialect import trees

    return trees.leaves(tree)


@pytest.mark.parametrize("static", [False, True])
def test_train_infer_train(static: bool) -> None:
    """C023: record x1, call on x2, record x3: each is that of a fresh function."""
    f, p = compiled(net, static_alloc=static), parameters()
    x1, x2, x3 = f32(5, 4), f32(5, 4), f32(5, 4)
    _, first = f.vjp(p, x1)
    loss, _ = f(p, x2)
    _, third = f.vjp(p, x3)
    np.testing.assert_allclose(loss, (np.tanh(x2 @ p["w"] + p["b"]) ** 2).sum(), rtol=1e-5)
    close(third((1.0, None)), gradients(p, x3))
    close(first((1.0, None)), gradients(p, x1))


def test_backward_twice() -> None:
    """B16: once by default, again with retain_graph=True; what was kept is freed."""
    f, p, x = compiled(net), parameters(), f32(5, 4)
    _, pullback = f.vjp(p, x)
    assert pullback.nbytes > 0
    close(pullback((1.0, None), retain_graph=True), gradients(p, x))
    ct = f32(5, 3)
    close(pullback((1.0, ct)), gradients(p, x, ct))
    assert pullback.nbytes == 0
    with pytest.raises(GradientError, match=r"'net' was called before.*retain_graph=True"):
        pullback((1.0, None))


def test_forward_and_backward() -> None:
    """B04: of this thread's last forward; by default cotangents are ones."""
    f, p, x = compiled(net), parameters(), f32(5, 4)
    with pytest.raises(GradientError, match="expected a forward on this thread"):
        f.backward()
    f.forward(p, f32(5, 4))
    _, h = f.forward(p, x)
    np.testing.assert_allclose(h, np.tanh(x @ p["w"] + p["b"]), rtol=1e-5)
    close(f.backward(), gradients(p, x, 1.0))
    found: list[Any] = []

    def elsewhere() -> None:
        try:
            f.backward()
        except GradientError as error:
            found.append(error)

    f.forward(p, x)
    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert len(found) == 1
    close(f.backward((1.0, None)), gradients(p, x))


def test_two_forwards_wait_for_their_backwards() -> None:
    """B10: with static allocation, what a recorded call keeps is not used again before its
    backward.
    """
    f, p = compiled(net, static_alloc=True), parameters()
    xs = [f32(5, 4) for _ in range(4)]
    pullbacks = [f.vjp(p, x)[1] for x in xs]
    for x, pullback in reversed(list(zip(xs, pullbacks, strict=True))):
        close(pullback((1.0, None)), gradients(p, x))


def test_numpy_arguments_may_change_before_the_backward() -> None:
    f, p, x = compiled(net), parameters(), f32(5, 4)
    want = gradients(p, x)
    _, pullback = f.vjp(p, x)
    x[...] = np.nan
    p["w"][...] = np.nan
    close(pullback((1.0, None)), want)


def test_arguments_may_be_donated_or_written_to_before_the_backward() -> None:
    """B33: what a backward reads are the elements at the time of the call."""
    f, x = compiled(lambda x: go.sin(x)), go.device_put(f32(4))
    give = compiled(lambda x: x + 1, donate=0)
    want = np.cos(x.numpy())
    _, pullback = f.vjp(x)
    x += 1
    close(pullback(np.ones(4, np.float32)), (want,))
    x -= 1
    _, pullback = f.vjp(x)
    want = np.cos(x.numpy())
    give(x)
    close(pullback(np.ones(4, np.float32)), (want,))


def test_what_a_backward_reads_is_not_written_to_in_place() -> None:
    """B33: `out` in the memory of an array that a recorded call keeps is an error."""
    f, x = compiled(lambda x: go.sin(x)), go.device_put(f32(4))
    double = compiled(lambda x: x * 2)
    _, pullback = f.vjp(x)
    with pytest.raises(GradientError, match="out of 'lambda' would change the elements"):
        double(x, out=x)
    pullback(np.ones(4, np.float32))
    double(x, out=x)


# --- gradient requests ----------------------------------------------------------------------------


def test_requests() -> None:
    """B14: null, write and add; pruned gradients are None."""
    p, x = parameters(), f32(5, 4)
    (want, wrt_x) = gradients(p, x)
    for request, expected in (
        ("write", (want, wrt_x)),
        (("write", "null"), (want, None)),
        ({"p": "write"}, (want, None)),
        ({"p.w": "write"}, ({"w": want["w"], "b": None}, None)),
        ({"p": "write", "p.b": "null", "x": "write"}, ({"w": want["w"], "b": None}, wrt_x)),
        ({1: "write"}, ({"w": None, "b": None}, wrt_x)),
    ):
        got = compiled(net, grad_req=request).vjp(p, x)[1]((1.0, None))
        close(got, expected)
        assert [g is None for g in (got[0]["w"], got[0]["b"], got[1])] == [
            g is None for g in (expected[0]["w"], expected[0]["b"], expected[1])
        ]


def test_parameters_are_differentiated_by_default() -> None:
    """B04: `param` and `data`"""
    p, x = parameters(), f32(5, 4)
    got = compiled(net, param=0, data=1).vjp(p, x)[1]((1.0, None))
    close(got, (gradients(p, x)[0], None))
    assert got[1] is None
    f = compiled(net, param=0, data=1)
    roles = f.mlir("graph", p, x)
    assert roles.count('gradopt.role = "param"') == 2
    assert roles.count('gradopt.role = "data"') == 1


@pytest.mark.parametrize("kind", ["array", "numpy", "read array"])
def test_add(kind: str) -> None:
    """B09, B14: the gradient is added to what the caller's array holds, in its memory."""
    f, p, x = compiled(net, grad_req={"p.w": "add", "x": "write"}), parameters(), f32(5, 4)
    start = f32(4, 3)
    total: Any = start.copy() if kind == "numpy" else go.device_put(start)
    seen = total if kind == "numpy" else total.numpy() if kind == "read array" else None
    want = start.copy()
    for _ in range(3):
        f.forward(p, x)
        got = f.backward((1.0, None), out=({"w": total, "b": None}, None))
        want += gradients(p, x)[0]["w"]
        assert got[0]["w"] is total
        np.testing.assert_allclose(total, want, rtol=2e-5, atol=1e-5)
        if seen is not None:
            np.testing.assert_array_equal(seen, np.asarray(total))
        close(got[1], gradients(p, x)[1])


def test_write_goes_into_arrays_of_the_caller() -> None:
    """B13, B14"""
    f, p, x = compiled(net, grad_req="write"), parameters(), f32(5, 4)
    into = {"w": np.full((4, 3), np.nan, np.float32), "b": go.device_put(np.zeros(3, np.float32))}
    got = f.vjp(p, x)[1]((1.0, None), out=(into, None))
    assert got[0]["w"] is into["w"]
    assert got[0]["b"] is into["b"]
    close(got, gradients(p, x))
    close(into, gradients(p, x)[0])


def test_pruned_work_is_absent() -> None:
    """B14, B15: without the gradient by x its product is gone, and heads that nothing reads are no
    arguments.
    """
    p, x = parameters(), f32(5, 4)
    both = compiled(net).mlir("backward", p, x)
    one = compiled(net, grad_req={"p": "write"}).mlir("backward", p, x)
    assert (both.count('"gradopt.dot_general"'), one.count('"gradopt.dot_general"')) == (2, 1)

    def two(x: Any, y: Any) -> Any:
        return go.sin(x), go.exp(y)

    text = compiled(two, grad_req=("write", "null")).mlir("backward", f32(3), f32(3))
    assert "%ct0" in text
    assert "%ct1" not in text
    assert "exp" not in compiled(two, grad_req=("write", "null")).mlir("backward", x, x)
    pullback = compiled(two, grad_req=("write", "null")).vjp(x, x)[1]
    np.testing.assert_allclose(pullback((np.ones_like(x), None))[0], np.cos(x), rtol=1e-5)


def test_inference_keeps_nothing() -> None:
    """B03: a plain call has the results only."""
    f, p, x = compiled(net), parameters(), f32(5, 4)
    assert f.mlir("forward", p, x).count("->") >= f.mlir("simplified", p, x).count("->")

    def deep(x: Any) -> Any:
        return go.exp(go.sin(x) * go.cos(x)).sum()

    plain, forward = (compiled(deep).mlir(s, x) for s in ("simplified", "forward"))
    assert "-> tensor<f32>" in plain
    assert "-> (tensor<f32>, tensor" in forward


def test_unreached_inputs_have_zeros() -> None:
    """B50: no contribution gives zeros, and adds nothing."""

    def fn(x: Any, y: Any) -> Any:
        return x * 2 + go.stop_gradient(y)

    x, y = f32(3), f32(3)
    got = compiled(fn).vjp(x, y)[1](np.ones(3, np.float32))
    close(got, (np.full(3, 2), np.zeros(3)))
    total = np.ones(3, np.float32)
    compiled(fn, grad_req=("null", "add")).vjp(x, y)[1](np.ones(3, np.float32), out=(None, total))
    np.testing.assert_array_equal(total, np.ones(3))


def test_two_inputs_with_one_gradient_get_two_arrays() -> None:
    """B52, C040: f(a, b) = a * b with a = b = x: 3 for each, 6 in all."""
    f = compiled(lambda a, b: a * b)
    x = np.full(1, 3, np.float32)
    a, b = f.vjp(x, x)[1](np.ones(1, np.float32))
    assert float(a[0]) == float(b[0]) == 3
    total = np.zeros(1, np.float32)
    g = compiled(lambda a, b: a + b)
    a, b = g.vjp(x, x)[1](np.ones(1, np.float32))
    assert not np.shares_memory(a.numpy(), b.numpy())
    h = compiled(lambda x: x * x, grad_req="add")
    h.vjp(x)[1](np.ones(1, np.float32), out=(total,))
    assert float(total[0]) == 6


def test_rule_with_one_silent_slot() -> None:
    """C040 (b): a rule that gives 3g for slot 0 and nothing for slot 1, called with x twice."""

    @go.custom_vjp
    def op(a: Any, b: Any) -> Any:
        return a * 3 + b

    op.defvjp(lambda a, b: (a * 3 + b, ()), lambda _, g: (g * 3, None))
    x = np.ones(2, np.float32)
    (got,) = compiled(lambda x: op(x, x)).vjp(x)[1](np.ones(2, np.float32))
    np.testing.assert_array_equal(got, [3, 3])


def test_barrier_against_gradients_is_no_common_subexpression() -> None:
    """C041: o1 = stop(x + 1), o2 = x + 1: slope 1, and two arrays."""
    f = compiled(lambda x: (go.stop_gradient(x + 1), x + 1))
    x = f32(4)
    (o1, o2), pullback = f.vjp(x)
    assert not np.shares_memory(o1.numpy(), o2.numpy())
    np.testing.assert_array_equal(pullback((np.ones(4, "f"), np.ones(4, "f")))[0], np.ones(4))


def test_region_that_ends_in_a_view() -> None:
    """C031: transpose, then reshape; ones back, with static allocation too."""
    x = f32(3, 4)
    for static in (False, True):
        f = compiled(lambda x: x.T.reshape(2, 6), static_alloc=static)
        np.testing.assert_array_equal(f.vjp(x)[1]()[0], np.ones((3, 4)))


def test_second_gradient_of_a_step() -> None:
    """C035: per-example losses, the second gradient is that of half of the first; as often as it
    is called.
    """

    def fn(x: Any) -> Any:
        def loss(x: Any) -> Any:
            copy = go.optimization_barrier(x.T)
            return (copy * copy).sum(0).mean()

        return go.grad(loss)(x), go.grad(lambda x: loss(x) * 0.5)(x)

    x = f32(6, 3)
    for static in (False, True):
        f = compiled(fn, static_alloc=static)
        for _ in range(3):
            first, second = f(x)
            np.testing.assert_allclose(first, 2 * x / 6, rtol=1e-6)
            np.testing.assert_array_equal(second, first * np.float32(0.5))


def test_higher_order() -> None:
    """B19, C044: through compiled functions and their recorded calls."""
    power, x = compiled(lambda x: (x**5).sum()), np.array([1.0], np.float64)
    first = compiled(go.grad(power))
    assert float(first(x)[0]) == pytest.approx(5)
    assert float(compiled(go.grad(lambda x: first(x).sum()))(x)[0]) == pytest.approx(20)
    assert float(first.vjp(x)[1](np.ones(1))[0][0]) == pytest.approx(20)

    def through_vjp(x: Any) -> Any:
        return power.vjp(x)[1](1.0)[0].sum()

    assert float(compiled(go.grad(through_vjp))(x)[0]) == pytest.approx(20)
    fourth, at = compiled(go.grad(lambda x: (x**4).sum())), np.array([0.5, 1.5, 2.5, 3.5])
    np.testing.assert_allclose(fourth.vjp(at)[1](np.ones(4))[0], 12 * at**2)


def test_passthrough_outputs() -> None:
    """B02, C037: the arguments' memory is nobody else's, in recorded calls too."""
    f, kept = compiled(lambda x: (x, x + 1, x + 1)), []
    x: Any = np.zeros(2, np.float32)
    for _ in range(4):
        (same, more, again), pullback = f.vjp(x)
        assert not np.shares_memory(more.numpy(), again.numpy())
        kept += [(same, more)]
        np.testing.assert_array_equal(pullback()[0], [3, 3])
        x = same
    for same, more in kept:
        np.testing.assert_array_equal(same, [0, 0])
        np.testing.assert_array_equal(more, [1, 1])


# --- modes ----------------------------------------------------------------------------------------


def normalized(x: Any) -> Any:
    """Batch norm that follows the mode: running mean 0, running variance 1, gamma 2, eps 0."""
    gamma, stats = np.full(3, 2, np.float32), (np.zeros(3, np.float32), np.ones(3, np.float32))
    return go.batch_norm(x, gamma, running=stats, eps=0.0)[0]


@pytest.mark.parametrize("options", [{}, {"static_alloc": True, "static_shape": True}])
def test_recorded_in_predict_mode(options: dict[str, Any]) -> None:
    """C025, C026, B23: dx = 2 everywhere; the mode is part of what is compiled."""
    x = f32(4, 3)
    ones = np.ones((4, 3), np.float32)
    f = compiled(normalized, **options)
    with go.infer_mode():
        assert not go.is_training()
        y, pullback = f.vjp(x)
    assert go.is_training()
    np.testing.assert_array_equal(pullback(ones)[0], 2 * ones)
    np.testing.assert_allclose(y, 2 * x, rtol=1e-6)
    trained = 2 * (x - x.mean(0)) / x.std(0)
    for _ in range(2):  # interleaved in any order
        np.testing.assert_allclose(f(x), trained, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(f.vjp(x)[1](ones)[0], 0 * x, atol=1e-5)
        with go.infer_mode():
            np.testing.assert_allclose(f(x), 2 * x, rtol=1e-6)
    fixed = compiled(normalized, mode="infer", **options)
    np.testing.assert_array_equal(fixed.vjp(x)[1](ones)[0], 2 * ones)


def test_modes_in_a_trace() -> None:
    """B17, B23: a function in another is what it is in the mode of that, or of its own; both can
    stand in one trace.
    """
    x = f32(4, 3)
    follows, fixed = compiled(normalized), compiled(normalized, mode="infer")

    def both(x: Any) -> Any:
        with go.infer_mode():
            inside = follows(x)
        return follows(x), inside, fixed(x), follows(x)

    trained, inside, inferred, again = compiled(both)(x)
    np.testing.assert_allclose(trained, 2 * (x - x.mean(0)) / x.std(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(trained, again)
    for found in (inside, inferred):
        np.testing.assert_allclose(found, 2 * x, rtol=1e-6)


def test_modes_are_of_a_thread_and_restored() -> None:
    """B23, B25: also where a function raises while it is traced."""
    seen: list[bool] = []
    with go.infer_mode():
        thread = threading.Thread(target=lambda: seen.append(go.is_training()))
        thread.start()
        thread.join()
        with go.train_mode():
            assert go.is_training()
        assert not go.is_training()
    assert seen == [True]

    def bad(x: Any) -> Any:
        assert not go.is_training()
        raise KeyError("user's")

    f = compiled(bad, mode="infer")
    for _ in range(2):
        with pytest.raises(KeyError, match="user's"):
            f(f32(2))
        assert go.is_training()


def test_dropout_follows_the_mode() -> None:
    """B23"""
    f = compiled(lambda x: go.dropout(x, 0.5, go.random.key(7)))
    x = np.ones(64, np.float32)
    dropped = f(x).numpy()
    assert set(dropped) == {0, 2}
    with go.infer_mode():
        np.testing.assert_array_equal(f(x), x)
    y, pullback = f.vjp(x)
    np.testing.assert_array_equal(y, dropped)
    np.testing.assert_array_equal(pullback(np.ones(64, np.float32))[0], dropped)


# --- what is refused ------------------------------------------------------------------------------


def two(x: Any, y: Any) -> Any:
    return x * y


REFUSED: dict[str, tuple[type[Exception], str, Callable[[], Any]]] = {
    "static_shape alone": (
        ArgumentError,
        "static_shape=True expected static_alloc=True",
        lambda: compiled(two, static_shape=True),
    ),
    "mode": (ArgumentError, "mode expected 'train', 'infer'", lambda: compiled(two, mode="test")),
    "request": (
        ArgumentError,
        "grad_req expected 'null', 'write' or 'add'.*got 'sum'",
        lambda: compiled(two, grad_req="sum"),
    ),
    "doubled": (
        ArgumentError,
        "every argument exactly once, got argument 1 2 times",
        lambda: compiled(two, data=(0, 1), param=1),
    ),
    "missing": (
        ArgumentError,
        "got argument 1 \\('y'\\) in neither",
        lambda: compiled(two, data=0)(f32(2), f32(2)),
    ),
    "out of range": (
        ArgumentError,
        "param expected positions of the 2 arguments of 'two', got 2",
        lambda: compiled(two, data=(0, 1), param=2)(f32(2), f32(2)),
    ),
    "unknown name": (
        ArgumentError,
        "grad_req of 'two' expected names out of x, y, got 'z'",
        lambda: compiled(two, grad_req={"z": "add"}).vjp(f32(2), f32(2)),
    ),
    "too few requests": (
        ArgumentError,
        "one entry for each of its 2 arguments \\(x, y\\), got 1",
        lambda: compiled(two, grad_req=["add"]).vjp(f32(2), f32(2)),
    ),
    "integers": (
        GradientError,
        "got 'y' with dtype int32; integers",
        lambda: compiled(two, grad_req={"y": "write"}).vjp(f32(2), np.ones(2, np.int32)),
    ),
    "nothing": (
        GradientError,
        "the request 'null' for all",
        lambda: compiled(two, grad_req="null").vjp(f32(2), f32(2)),
    ),
    "donate": (
        ArgumentError,
        "no donated arguments.*compile it without donate",
        lambda: compiled(two, donate=0).vjp(f32(2), f32(2)),
    ),
    "budget": (
        ArgumentError,
        "no memory_budget or remat.*go.checkpoint",
        lambda: compiled(two, memory_budget=0.5).vjp(f32(2), f32(2)),
    ),
    "cotangent type": (
        ArgumentError,
        "cotangent of result 0 of type tensor<2xf32>, got tensor<2xf64>",
        lambda: compiled(two).vjp(f32(2), f32(2))[1](np.ones(2)),
    ),
    "cotangent structure": (
        ArgumentError,
        "cotangents with the structure of its result",
        lambda: compiled(two).vjp(f32(2), f32(2))[1]((1.0, 2.0)),
    ),
    "add without out": (
        ArgumentError,
        "expected an array in out that the gradient by 'x' is added to",
        lambda: compiled(two, grad_req="add").vjp(f32(2), f32(2))[1](),
    ),
    "out type": (
        ArgumentError,
        "an array of type tensor<2xf32> for 'y', got tensor<3xf32>",
        lambda: compiled(two).vjp(f32(2), f32(2))[1](out=(None, f32(3))),
    ),
    "out for null": (
        ArgumentError,
        "None for 'y', whose request is 'null'",
        lambda: compiled(two, grad_req=("write", "null")).vjp(f32(2), f32(2))[1](
            out=(None, f32(2))
        ),
    ),
    "out structure": (
        ArgumentError,
        "a tuple with one entry an argument, got 1 entries",
        lambda: compiled(two).vjp(f32(2), f32(2))[1](out=(None,)),
    ),
    "no array": (
        ArgumentError,
        "expected an array or number as argument 'y', got str",
        lambda: compiled(two).vjp(f32(2), "y"),
    ),
    "graph without inputs": (TraceError, "at least one input", lambda: compiled(go.Graph("none"))),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    """B01, B04, B13, B14, B56"""
    kind, message, call = REFUSED[name]
    with pytest.raises(kind, match=message):
        call()


def test_an_error_leaves_the_record_usable() -> None:
    """B25: a refused backward changes nothing."""
    f, x, y = compiled(two, grad_req="add"), f32(2), f32(2)
    _, pullback = f.vjp(x, y)
    a, b = np.ones(2, np.float32), go.device_put(np.ones(2, np.float32))
    for ct, out in ((np.ones(3, "f"), (a, b)), (np.ones(2, "f"), (a, None))):
        with pytest.raises(ArgumentError):
            pullback(ct, out=out)
    pullback(np.ones(2, np.float32), out=(a, b))
    np.testing.assert_allclose(a, 1 + y, rtol=1e-6)
    np.testing.assert_allclose(b, 1 + x, rtol=1e-6)


def test_static_shape_keeps_its_promise() -> None:
    """B04: another shape is an error that names the argument; the function stays usable."""
    f = compiled(two, static_alloc=True, static_shape=True)
    x = f32(3)
    np.testing.assert_array_equal(f(x, x), x * x)
    with pytest.raises(
        ArgumentError, match="'x' of type tensor<4xf32>, before it was tensor<3xf32>"
    ):
        f(f32(4), f32(4))
    np.testing.assert_array_equal(f(x, x), x * x)
    np.testing.assert_array_equal(f.vjp(x, x)[1]()[0], x)
    with pytest.raises(ArgumentError, match="static_shape=True expected"):
        f.vjp(f32(4), f32(4))


def test_graphs_are_recorded_too() -> None:
    """B01: a graph's inputs are its arguments, and its results a tuple."""
    g = go.Graph("affine")
    x, w = g.input("x", (2, 3)), g.parameter("w", (3, 4))
    g.output(x @ w)
    f = compiled(g, grad_req={"w": "write"})
    a, b = f32(2, 3), f32(3, 4)
    (y,), pullback = f.vjp(a, b)
    np.testing.assert_allclose(y, a @ b, rtol=1e-5)
    none, found = pullback((np.ones((2, 4), np.float32),))
    assert none is None
    np.testing.assert_allclose(found, a.T @ np.ones((2, 4)), rtol=1e-5)
