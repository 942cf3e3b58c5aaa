# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""go.hybridize: eager functions and modules as compiled ones, without a change of code."""

import functools
import threading
import types
from collections.abc import Callable
from typing import Any

import gradopt as go
import numpy as np
import pytest
from gradopt import nn, optim
from gradopt.dialect import modes
from gradopt.errors import ArgumentError, GradientError, OpError, TraceError
from gradopt.runtime.state import state

hybridize = functools.partial(go.hybridize, target="reference")


def f32(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


# --- signatures -----------------------------------------------------------------------------------


def test_shapes_are_not_burnt_in() -> None:
    """C029: each shape, type and structure has a graph of its own."""
    f = hybridize(lambda x: x[:, :-1] * 2)
    for x in (f32(2, 5), f32(5, 7), f32(2, 5) + 1, f32(2, 5).astype(np.float64)):
        got = f(x)
        assert got.dtype == x.dtype
        np.testing.assert_array_equal(got.numpy(), x[:, :-1] * 2)
    assert len(f._known) == 3


def test_python_values_are_part_of_the_signature() -> None:
    """Numbers, strings and None choose code; 0.0 and -0.0, 1 and True differ."""

    def f(x: Any, n: Any, how: str = "sum", scale: Any = None) -> Any:
        for _ in range(int(n)):
            x = x * 2
        x = getattr(x, how)()
        return x if scale is None else x + 1 / go.array(np.float32(scale))

    h = hybridize(f)
    for n, how, scale in [(1, "sum", None), (2, "sum", None), (1, "max", None), (1, "sum", 0.0),
                          (1, "sum", -0.0), (True, "sum", None)]:  # fmt: skip
        for _ in range(2):
            want = f(go.array(f32(3)), n, how, scale)
            got = h(f32(3), n, scale=scale, how=how)
            assert got.numpy() == want.numpy(), (n, how, scale)
    assert len(h._known) == 6


def test_modes_are_part_of_the_signature() -> None:
    """B30, C025: training and inference have graphs of their own."""
    net = nn.BatchNorm(3)
    f = hybridize(net)
    x = normal(0, 4, 3)
    for _ in range(2):
        with go.infer_mode():
            np.testing.assert_array_equal(f(x).numpy(), net(go.array(x)).numpy())
        f(x)
    assert len(f._known) == 2


SCALE = 2.0
OFFSET = go.array(f32(3))
COUNT = 0
KEPT: list[Any] = []


def test_globals_and_closures_may_be_rebound() -> None:
    """Arrays that a function names are inputs, wherever they are bound; numbers are looked at."""
    global SCALE, OFFSET
    weight = go.array(f32(3))
    f = hybridize(lambda x: x * weight * SCALE + OFFSET)
    x = f32(3) + 1

    def check() -> None:
        want = x * weight.numpy() * SCALE + OFFSET.numpy()
        np.testing.assert_array_equal(f(x).numpy(), want)

    check()
    weight = go.array(f32(3) + 5)
    check()
    OFFSET = go.array(f32(3) + 7)
    check()
    weight[1] = 100
    check()
    assert len(f._known) == 1
    SCALE = 3.0
    check()
    assert len(f._known) == 2
    OFFSET = go.array(f32(1))
    check()
    assert len(f._known) == 3
    assert sorted(f.input_names(x)) == ["OFFSET", "weight", "x"]


def test_containers_objects_and_functions_are_walked() -> None:
    class Part:
        def __init__(self, k: float) -> None:
            self.k = go.array(np.float32(k))
            self.next: Part | None = None

    first, second = Part(2), Part(3)
    first.next, second.next = second, first  # a cycle
    table = {"a": [go.array(np.float32(5))], "part": first}

    def inner(x: Any, by: Any = go.array(np.float32(7))) -> Any:  # noqa: B008 - a default
        return x * table["part"].next.k * by

    def outer(x: Any) -> Any:
        return inner(x) + table["a"][0]

    f = hybridize(functools.partial(outer))
    assert float(f(np.float32(1))) == 26
    second.k = go.array(np.float32(4))
    table["a"][0] = go.array(np.float32(6))
    assert float(f(go.array(np.float32(1)))) == 34
    table["a"].append(go.array(np.float32(0)))
    assert float(f(go.array(np.float32(1)))) == 34


def test_attributes_of_classes() -> None:
    class Net:
        scale = go.array(f32(2))
        power = 1

        def __call__(self, x: Any) -> Any:
            type(self).scale = type(self).scale + 1
            return x * self.scale**self.power

    net, f = Net(), hybridize(Net())
    assert f(f32(2)).tolist() == [0, 2] and Net.scale.tolist() == [1, 2]
    Net.scale = go.array(f32(2) + 5)
    assert f(f32(2)).tolist() == [0, 7] and Net.scale.tolist() == [6, 7]
    Net.power = 2
    assert f(f32(2)).tolist() == [0, 64] and net.scale.tolist() == [7, 8]


def test_arrays_that_are_put_off() -> None:
    """Lazy ops before a call, and after it."""
    w = go.array(f32(3))
    f = hybridize(lambda x: w.__iadd__(x) * 2)
    with go.eager_mode("lazy"):
        w += 1
        y = f(w * 3) + w
    assert y.tolist() == [12, 24, 36] and w.tolist() == [4, 8, 12]


def test_a_view_at_the_end() -> None:
    """C031: a function that ends in a pure view, differentiated."""
    x = go.array(f32(2, 3))
    x.attach_grad()
    f = hybridize(lambda x: x.T.reshape(-1))
    with go.record():
        y = f(x)
    y.backward()
    assert x.grad is not None and x.grad.tolist() == [[1] * 3] * 2


def test_reversed_slices() -> None:
    """C043: an assignment to a reversed slice."""

    def f(base: Any, x: Any) -> Any:
        base[::-1] += 2 * x[::-1]
        return base

    base = go.array(np.zeros(6, np.float32))
    assert hybridize(f)(base, f32(6)) is base and base.tolist() == [0, 2, 4, 6, 8, 10]


def test_arrays_that_are_shared() -> None:
    """C040: one array in two places is one input, and a signature of its own."""

    def f(a: Any, b: Any) -> Any:
        a += 1
        return a * b

    h = hybridize(f)
    for make in (lambda x: (x, x), lambda x: (x, go.array(x)), lambda x: (x, x)):
        a, b = make(go.array(f32(3)))
        c, d = make(go.array(f32(3)))
        np.testing.assert_array_equal(h(a, b).numpy(), f(c, d).numpy())
        np.testing.assert_array_equal(b.numpy(), d.numpy())


# --- results --------------------------------------------------------------------------------------


def test_results_have_their_structure() -> None:
    """C037: inputs that are returned are the caller's arrays; numbers and None come through."""
    w = go.array(f32(3))

    def f(x: Any) -> Any:
        y = x + 1
        return {"x": x, "w": w, "y": (y, y), "n": 3, "none": None, "made": go.array([1.0])}

    x, h = go.array(f32(3)), hybridize(f)
    for _ in range(2):
        found = h(x)
        assert found["x"] is x and found["w"] is w and found["n"] == 3 and found["none"] is None
        assert found["y"][0] is found["y"][1] and found["y"][0].tolist() == [1, 2, 3]
        assert found["made"].tolist() == [1]
        found["made"] += 1


def test_kept_results_do_not_change() -> None:
    """C037: outputs fed back as inputs."""
    f = hybridize(lambda x: (x * 1, x + 1))
    x, kept = go.array(np.float32(0)), []
    for _ in range(4):
        same, after = f(x)
        kept.append((float(same), float(after), same, after))
        x = same
    assert [(float(c), float(d)) for _, _, c, d in kept] == [(0, 1)] * 4


def test_a_function_without_arrays() -> None:
    f = hybridize(lambda n: go.ones((n,)) * 2)
    a, b = f(2), f(2)
    a += 1
    assert f(2).tolist() == b.tolist() == [2, 2] and f(3).shape == (3,)


# --- writes ---------------------------------------------------------------------------------------


def test_writes_are_there_after_each_call() -> None:
    """C034: arguments, closures, attributes and what is read after a write."""
    total, w = go.array(np.zeros(3, np.float32)), go.array(f32(3))

    def f(x: Any) -> Any:
        x[0] = x[1]
        y = x * 2
        total[...] = total + y
        x -= 1
        return (x + total).sum()

    def run(fn: Callable[..., Any]) -> list[Any]:
        total[...] = go.array(np.zeros(3, np.float32))
        x = go.array(f32(3))
        sums = [float(fn(x)) for _ in range(3)]
        return [*sums, x.tolist(), total.tolist()]

    assert run(hybridize(f)) == run(f)
    assert w.tolist() == [0, 1, 2]


def test_a_lost_update() -> None:
    """C034: a parameter updated inside, with only the loss returned."""
    w = go.array(np.float32([1]))  # type: ignore
    w.attach_grad()

    @hybridize
    def step() -> Any:
        with go.record():
            loss = (w * w).sum()
        loss.backward()
        w.__isub__(0.1 * w.grad)  # type: ignore
        return loss

    seen = [w.item()] + [(step(), w.item())[1] for _ in range(5)]
    np.testing.assert_allclose(seen, [1, 0.8, 0.64, 0.512, 0.4096, 0.32768], rtol=1e-6)


def test_numpy_arguments_are_written_back() -> None:
    def f(x: Any) -> Any:
        x += 1
        return x * 2

    x = f32(3)
    assert hybridize(f)(x).tolist() == [2, 4, 6] and x.tolist() == [1, 2, 3]
    both = hybridize(lambda x, y: f(x) + y)
    assert both(x, x).tolist() == [6, 9, 12] and x.tolist() == [2, 3, 4]


def test_arrays_are_put_in_other_places() -> None:
    """Attributes, items and globals that are bound to new arrays inside are so after each call."""
    global OFFSET

    class Net:
        def __init__(self) -> None:
            self.w = go.array(f32(2))
            self.parts = {"b": go.array(f32(2))}

        def update(self, x: Any) -> Any:
            global OFFSET
            self.w = self.w - x
            self.parts["b"] = self.parts["b"] + self.w
            OFFSET = OFFSET * 2
            return x + OFFSET

    def run(call: Any) -> list[Any]:
        global OFFSET
        net, OFFSET = Net(), go.array(f32(2))
        results = [call(net, go.array(np.float32(k))).tolist() for k in range(3)]
        return [results, net.w.tolist(), net.parts["b"].tolist(), OFFSET.tolist()]

    assert run(hybridize(Net.update)) == run(Net.update)


def test_whole_training_steps() -> None:
    """B38: net, loss, backward and optimizer, dropout and running statistics: one compiled call,
    bit for bit what runs eagerly on the same executor.
    """

    def train(wrap: Callable[..., Any]) -> list[Any]:
        go.random.seed(3)
        layers = nn.Dense(8, 16), nn.BatchNorm(16), go.relu, nn.Dropout(0.3), nn.Dense(16, 4)
        net = nn.Sequential(*layers)
        opt = optim.Adam(net.parameters(), 0.01, clip_norm=1.0)

        def step(x: Any, y: Any) -> Any:
            with go.record():
                loss = ((net(x) - y) ** 2).mean()
            loss.backward()
            opt.step()
            return loss

        run = wrap(step)
        x, y = normal(1, 32, 8), normal(2, 32, 4)
        losses = [float(run(go.array(x), go.array(y))) for _ in range(5)]
        opt.learning_rate = 0.001
        losses += [float(run(go.array(x), go.array(y))) for _ in range(2)]
        with pytest.raises(GradientError, match="was not filled by a backward since"):
            opt.step()
        arrays = {path: x.tolist() for path, x in net.arrays().items()}
        grads = {path: x.grad.tolist() for path, x in net.parameters().items()}  # type: ignore
        return [losses, arrays, grads, int(opt.count)]

    assert train(hybridize) == train(lambda f: f)


def test_accumulated_gradients() -> None:
    """C001: request "add" inside a compiled step, and zero_grad."""
    x = go.array(f32(3))
    x.attach_grad("add")

    @hybridize
    def accumulate() -> None:
        for _ in range(2):
            with go.record():
                y = (x * x).sum()
            y.backward()

    accumulate()
    accumulate()
    assert x.grad is not None and x.grad.tolist() == [0, 8, 16]
    assert float(accumulate.trace().input_specs[0].size or 0) == 3


# --- gradients ------------------------------------------------------------------------------------


def test_called_while_recording() -> None:
    """B38: one node of the tape, with gradients by arguments and by what it closes over."""
    w = go.array(normal(0, 3, 2))
    w.attach_grad()

    def f(x: Any) -> Any:
        return go.tanh(x @ w)

    grads = []
    for fn in (f, hybridize(f)):
        x = go.array(normal(1, 4, 3))
        x.attach_grad()
        with go.record():
            loss = (fn(x) * fn(x * 2)).sum()
        loss.backward()
        grads.append([np.array(x.grad), np.array(w.grad)])
    for a, b in zip(*grads, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


def test_second_order() -> None:
    """C044: the gradient of a recorded gradient through a compiled form."""
    f = hybridize(lambda x: x**5)
    x = go.array(np.float32(1))
    x.attach_grad()
    with go.record():
        y = f(x)
        g = go.autograd.grad(y, x, create_graph=True)
    g.backward()
    assert float(g) == 5 and float(x.grad) == 20  # type: ignore[arg-type]


def test_derivatives_inside() -> None:
    """go.grad, checkpoint, custom_vjp and compiled functions inside are part of the graph."""
    square = go.custom_vjp(lambda x: x * x)
    square.defvjp(lambda x: (x * x, x), lambda x, ct: (3 * x * ct,))
    inner = go.compile(lambda x: go.tanh(x) * x, target="reference")

    def f(x: Any) -> Any:
        by_x = go.grad(lambda x: (inner(x) + square(x)).sum())(x)
        again = go.grad(lambda x: go.checkpoint(lambda x: go.exp(x) * x)(x).sum())(x)
        value, pull = go.vjp(inner, x)
        return by_x, again, value, pull(go.ones_like(value))[0]

    x = normal(0, 4)
    for a, b in zip(hybridize(f)(x), f(go.array(x)), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    text = hybridize(f).mlir("graph", x)
    assert text.count("func.func") == 1 and "gradopt.tanh" in text


def test_in_a_trace_it_is_inlined() -> None:
    f = hybridize(lambda x: x * OFFSET[0] + 1)
    compiled = go.compile(lambda x: f(x) * 2, target="reference")
    np.testing.assert_array_equal(compiled(f32(3)).numpy(), (f32(3) * OFFSET.numpy()[0] + 1) * 2)
    outer = hybridize(lambda x: f(x) * 2)
    np.testing.assert_array_equal(outer(f32(3)).numpy(), (f32(3) * OFFSET.numpy()[0] + 1) * 2)


# --- what it refuses ------------------------------------------------------------------------------


def branches(x: Any) -> Any:
    return x if x.sum() > 0 else -x


def indexes(x: Any) -> Any:
    return [1, 2, 3][x.astype("int32").max()]


def formats(x: Any) -> Any:
    return x + len(f"{x.sum():.2f}")


def to_numpy(x: Any) -> Any:
    return np.asarray(x).sum() + x


def reads_a_global(x: Any) -> Any:
    return x * float(OFFSET[0])


@pytest.mark.parametrize("f", [branches, indexes, formats, to_numpy, reads_a_global],
                         ids=lambda f: f.__name__)  # fmt: skip
def test_values_are_not_there(f: Any) -> None:
    """B06: a Python decision on a value is refused, with the line and the remedy."""
    with pytest.raises(
        TraceError, match=rf"test_hybrid.py:\d+: '{f.__name__}' asks for the value "
    ):
        hybridize(f)(f32(3))
    with pytest.raises(TraceError, match=r"use go.where for a choice between arrays"):
        hybridize(f)(f32(3))


def counts(x: Any) -> Any:
    global COUNT
    COUNT += 1
    return x


class Counter:
    def __init__(self) -> None:
        self.calls = 0
        self.cache: Any = None

    def __call__(self, x: Any) -> Any:
        self.calls += 1
        return x

    def listing(self, x: Any) -> Any:
        KEPT.append([x, 3])
        return x

    def caching(self, x: Any) -> Any:
        self.cache = x * 2
        return x


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: counts, "'counts' changes 'COUNT' from 0 to 1, which calls of its compiled form"),
        (Counter, "changes 'calls' from 0 to 1"),
        (lambda: Counter().caching, "changes '.*cache' from None to tensor<3xf32>"),
        (lambda: Counter().listing, "changes '.*KEPT.0.0' from None to tensor<3xf32>"),
    ],
    ids=["global", "attribute", "cache", "list"],
)
def test_python_state_that_changes_is_refused(make: Any, message: str) -> None:
    """What later calls would not do again is said at once, and undone."""
    fn = make()
    with pytest.raises(TraceError, match=message):
        hybridize(fn)(f32(3))
    assert not KEPT and COUNT == 0 and getattr(fn, "calls", 0) == 0
    assert getattr(getattr(fn, "__self__", None), "cache", None) is None


def test_arrays_that_leak_say_so() -> None:
    kept = types.SimpleNamespace()

    def f(x: Any) -> Any:
        kept.y = x * 2
        return x + 1

    assert hybridize(f)(f32(3)).tolist() == [1, 2, 3]
    with pytest.raises(TraceError, match="was made while 'f' was traced, and has no value"):
        kept.y.numpy()


def test_a_failure_while_tracing_changes_nothing() -> None:
    """Arrays, gradients, histories, modes and flags are as they were."""
    w, b = go.array(f32(3)), go.array(f32(3))
    w.attach_grad()

    class Box:
        array = go.array(f32(3))

    box = Box()
    box.array = first = go.array(f32(3))

    def f(x: Any) -> Any:
        x += 1
        b[0] = 50
        box.array = b * 2
        b.attach_grad()
        with go.record(), go.infer_mode(), go.name_scope("inner"):
            loss = (w * w).sum()
            loss.backward()
            KEPT.append([b, {}])
            with go.pause():
                w[...] = w * 2
            raise ZeroDivisionError

    x = go.array(f32(3))
    history = w._history
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            hybridize(f)(x)
        assert x.tolist() == w.tolist() == b.tolist() == box.array.tolist() == [0, 1, 2]
        assert w.grad is not None and w.grad.tolist() == [0, 0, 0]
        assert not go.autograd.is_fresh(w) and w._history is history and b._history is None
        assert box.array is first and not KEPT
        assert state.deferred is None and not state.recording and modes.current_mode() == "train"
    assert (x + w).tolist() == [0, 2, 4]


def test_op_errors_come_from_the_users_line() -> None:
    f = hybridize(lambda x, w: x @ w)
    with pytest.raises(OpError, match="expected"):
        f(f32(2, 3), f32(2, 3))
    assert f(f32(2, 3), f32(3, 2)).shape == (2, 2)


def test_options_are_checked() -> None:
    with pytest.raises(ArgumentError, match=r"expected options out of target, .* got 'param'"):
        go.hybridize(lambda x: x, param=0)
    with pytest.raises(ArgumentError, match=r"donate of go.hybridize expected True or False"):
        go.hybridize(lambda x: x, donate=0)
    with pytest.raises(ArgumentError, match="expected a function or module, got 3"):
        go.hybridize(3)  # type: ignore[arg-type]
    with pytest.raises(TraceError, match=r"go.deferred expected no function that is being hybridi"):
        hybridize(lambda x: go.deferred().__enter__())(f32(3))


# --- what it is -----------------------------------------------------------------------------------


def test_as_a_decorator_of_methods() -> None:
    class Net:
        def __init__(self, k: float) -> None:
            self.k = go.array(np.float32(k))

        @go.hybridize(target="reference")
        def forward(self, x: Any) -> Any:
            """What it does."""
            return x * self.k

    assert Net(2).forward(f32(2)).tolist() == [0, 2] and Net(3).forward(f32(2)).tolist() == [0, 3]
    assert Net.forward.__doc__ == "What it does." and Net.forward.__name__ == "forward"
    assert len(Net.forward._known) == 1


def test_modules_keep_their_attributes() -> None:
    net = nn.Dense(3, 2)
    f = hybridize(net)
    assert list(f.parameters()) == ["weight", "bias"] and f.weight is net.weight
    np.testing.assert_array_equal(f(f32(4, 3)).numpy(), net(go.array(f32(4, 3))).numpy())
    with pytest.raises(AttributeError, match="nothing"):
        _ = f.nothing


def test_questions() -> None:
    f = go.hybridize(lambda x: go.exp(x) * OFFSET[0], target="jit")
    assert f.why() is None
    f(f32(3))
    assert "gradopt.exp" in f.mlir("graph", f32(3)) and "linalg" in f.mlir("linalg", f32(3))
    assert f.signature(f32(3)).key and f.why() is not None
    assert f.trace(f32(3)).input_names == f.input_names(f32(3)) == ["x", "OFFSET"]
    f.clear_cache()
    assert not f._known


def test_threads_update_in_turns() -> None:
    """Calls of several threads that write to one array lose no update."""
    total = go.array(np.zeros(2, np.float32))

    @go.hybridize(target="jit")
    def f(x: Any) -> None:
        total.__iadd__(x)

    threads = [
        threading.Thread(target=lambda: [f(np.ones(2, np.float32)) for _ in range(50)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert total.tolist() == [200, 200]


TABLE = np.zeros(5000, np.float32)
CHOSEN = {1}


@pytest.mark.parametrize("count", [3, 5000])
def test_what_is_no_array_of_ours_is_seen_when_it_changes(count: int) -> None:
    """Elements of NumPy arrays of any size and of sets, which the code names, are in the key."""
    table = TABLE[:count].copy()
    f = go.hybridize(lambda x: x + table[: x.shape[0]] + len(CHOSEN), target="reference")
    x = go.zeros((3,))
    assert f(x).tolist() == [1, 1, 1]
    table[1] = 5
    assert f(x).tolist() == [1, 6, 1]
    CHOSEN.add(2)
    try:
        assert f(x).tolist() == [2, 7, 2]
    finally:
        CHOSEN.remove(2)
    assert f(x).tolist() == [1, 6, 1]
