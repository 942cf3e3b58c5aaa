# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The tape: recording, variables, going backward, what is kept, writing in place, higher order."""

import gc
import threading
import tracemalloc
import weakref
from typing import Any

import gradopt as go
import numpy as np
import pytest
from gradopt.errors import GradientError, OpError
from gradopt.op_cases import CASES, Case
from gradopt.op_cases.rows import gradient_of, is_float
from gradopt.runtime import array as arrays
from gradopt.runtime import autograd
from gradopt.runtime.config import eager_mode

from .helpers import run_reference

rng = np.random.default_rng(5)
ROWS = [case for case in CASES if case.differentiable()]


def variable(x: Any, grad_req: str = "write", dtype: Any = None) -> Any:
    found = go.array(x, dtype)
    found.attach_grad(grad_req)
    return found


def close(got: Any, want: Any, rtol: float = 1e-6) -> None:
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape
    np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol, 1e-12)


def slope(fn: Any, x: np.ndarray, step: float = 1e-5) -> np.ndarray:
    """The gradient by central differences, in float64."""
    found = np.zeros_like(x)
    for i in np.ndindex(*x.shape):
        moved = np.zeros_like(x)
        moved[i] = step
        found[i] = (fn(x + moved) - fn(x - moved)) / (2 * step)
    return found


# --- sums of contributions ------------------------------------------------------------------------


@pytest.mark.parametrize("uses", range(1, 10))
def test_accumulation_counts_each_use_once(uses: int) -> None:
    """C001: a gradient of n(n+1)/2, on top of what is there or instead of it."""
    for request, want in (("add", 10 + uses * (uses + 1) / 2), ("write", uses * (uses + 1) / 2)):
        x = variable([1.0], request)
        x.grad[...] = 10
        with go.record():
            y = x * 1.0
            for k in range(2, uses + 1):
                y = y + x * float(k)
        y.backward()
        close(x.grad, [want])


def test_an_array_added_to_itself_many_times() -> None:
    """C002"""
    x = variable([3.0])
    with go.record():
        y = x + x + x + x + x + x + x + x
    y.backward()
    close(x.grad, [8])


def test_accumulation_of_softmax() -> None:
    """C004"""
    x = variable(rng.normal(size=(2, 10)), "add")
    x.grad[...] = 5
    head = np.zeros((2, 10))
    head[:, 3] = 1
    with go.record():
        y = go.softmax(x)
    y.backward(head)
    p = y.numpy()
    close(x.grad, 5 + p[:, 3:4] * (head - p))


@pytest.mark.parametrize("case", ROWS, ids=lambda case: case.name)
def test_every_op_eager_and_traced(case: Case) -> None:
    """C004, B38: value and gradient of every op are those of the traced graph, and every op adds
    to what is there. Sums of composite ops come in another order where the op is simplified alone,
    so that their last bits may differ.
    """
    wrt = case.differentiable()
    xs = [go.array(x) for x in case.inputs]
    for i in wrt:
        xs[i].attach_grad("add")
        xs[i].grad[...] = 5
    with go.record():
        found = case.build(*xs)
    ys = found if isinstance(found, tuple | list) else (found,)
    values = run_reference(case.build, *case.inputs)
    for y, value in zip(ys, values, strict=True):
        np.testing.assert_array_equal(y, value)
    floats = [y for y in ys if is_float(y.dtype)]
    cts = [rng.uniform(0.5, 1.5, y.shape).astype(y.dtype) for y in floats]
    go.backward(floats, cts)
    want = run_reference(gradient_of(case), *case.inputs, *cts)
    for i, w in zip(wrt, want, strict=True):
        assert xs[i].grad.dtype == w.dtype
        np.testing.assert_allclose(xs[i].grad.numpy() - 5, w, 1e-12, 1e-14 * (5 + np.abs(w).max()))


def test_sums_of_16_bits_are_rounded_once() -> None:
    """C005"""
    for dtype, want in (("float16", 2052), ("bfloat16", 516)):
        x = variable([1], "add", dtype)
        x.grad[...] = 2048 if dtype == "float16" else 512
        with go.record():
            y = x * 0.5
            for _ in range(7):
                y = y + x * 0.5
        y.backward()
        assert x.grad.dtype == x.dtype
        close(x.grad, [want])


def test_a_gradient_kept_in_several_places_is_several_arrays() -> None:
    """B52"""
    a, b = variable([1.0, 2.0]), variable([3.0, 4.0])
    with go.record():
        y = a + b
    y.backward()
    a.grad += 1
    close(a.grad, [2, 2])
    close(b.grad, [1, 1])


# --- retained graphs, heads, variables ------------------------------------------------------------


def test_two_stages_through_a_detached_value() -> None:
    """C007: a thousand times."""
    for _ in range(1000):
        x = variable([1.0, 2.0])
        with go.record():
            h = x * x
            d = h.detach()
            d.attach_grad()
            loss = (3 * d).sum()
        loss.backward(retain_graph=True)
        h.backward(d.grad)
        assert d.grad.tolist() == [3, 3]
        assert x.grad.tolist() == [6, 12]


def test_gradient_through_a_copy_to_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """C008: there is one device here, so the second is simulated: arrays that are put there say
    that they live on "elsewhere", while their memory is the host's.
    """
    x = variable(rng.normal(size=10))
    places = []
    put = arrays.device_put

    def moved(ct: Any, target: str) -> Any:
        places.append((ct.device, target))
        return put(ct)

    monkeypatch.setattr("gradopt.runtime.tape.device_put", moved)
    with go.record():
        y = go.tanh(x)
        with monkeypatch.context() as patch:
            patch.setattr(arrays, "place", lambda driver: "elsewhere")
            z = go.device_put(y)
    assert z.device == "elsewhere"
    z.backward(go.device_put(np.ones(10)))
    close(x.grad, 1 - np.tanh(x.numpy()) ** 2)
    assert x.grad.device == "cpu" and not places
    with go.record(), monkeypatch.context() as patch:
        z = go.device_put(go.tanh(x))
        patch.setattr(arrays, "place", lambda driver: "elsewhere")
        ct = go.device_put(np.ones(10))
    z.backward(ct)
    assert places == [("elsewhere", "cpu")] and x.grad.device == "cpu"


def test_second_order_of_a_convolution() -> None:
    """C010"""
    x, w = rng.normal(size=(1, 4, 4, 1)), variable(rng.normal(size=(2, 2, 1, 1)))

    def penalty(w: Any) -> Any:
        v = variable(x)
        with go.record():
            y = go.conv(v, w)
            (g,) = go.autograd.grad((y * y).sum(), [v], create_graph=True)
            return (g * g).sum()

    penalty(w).backward()
    want = slope(lambda w: float(penalty(go.array(w))), w.numpy(), 1e-6)
    np.testing.assert_allclose(w.grad, want, rtol=1e-6)


def test_second_backward_reaches_the_head_gradient() -> None:
    """C011"""
    x, v = variable(0.5), variable(2.0)
    with go.record():
        g = go.autograd.grad(go.log(x), x, head_grads=v, create_graph=True)
    g.backward()
    close(v.grad, 2)
    close(x.grad, -8)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_integers_among_the_operands(dtype: str) -> None:
    """C013"""
    q, n = variable(np.ones((5, 5, 5)), dtype=dtype), go.array(5, "int64")
    with go.record():
        y = q / go.sqrt(n).astype(dtype)
    y.backward()
    assert q.grad.dtype == q.dtype and n.grad is None
    close(q.grad, np.full((5, 5, 5), 0.44721), 1e-3 if dtype == "float16" else 1e-5)
    with go.record():
        mixed = q / go.sqrt(n)
    mixed.backward()
    assert q.grad.dtype == q.dtype
    close(q.grad, np.full((5, 5, 5), 0.44721), 1e-3 if dtype == "float16" else 1e-5)
    with pytest.raises(GradientError, match=r"floating-point array, got one of type tensor<i64>"):
        n.attach_grad()


def test_float64_stays_float64() -> None:
    """C014"""
    x = variable(np.array([1e-60]))
    with go.record():
        loss = ((x - 0.0) ** 2).sum()
    loss.backward()
    assert x.grad.dtype == np.float64
    close(x.grad, [2e-60], 1e-15)


def test_a_dot_product_inside_and_outside() -> None:
    """C016"""
    w, u, v = (
        variable(rng.normal(size=(10, 10))),
        go.array(rng.normal(size=10)),
        rng.normal(size=10),
    )
    outside = go.dot(u, w @ v)
    with go.record():
        loss = go.dot(u, w @ v)
    loss.backward()
    want = np.sum(u.numpy() * (w.numpy() @ v))
    close(loss, want, 1e-12)
    close(outside, want, 1e-12)
    close(w.grad, np.outer(u, v), 1e-12)


def test_release_may_come_twice() -> None:
    """C017: after a backward, too."""
    w, b, x = variable(rng.normal(size=(3, 2))), variable(np.zeros(3)), rng.normal(size=2)
    with go.record():
        y = w @ x + b
    go.backward(y)
    go.autograd.release(y)
    go.autograd.release(y)
    with go.record():
        y = w @ x + b
    go.autograd.release(y)
    go.autograd.release([y, y])
    with pytest.raises(GradientError, match="retain_graph=True"):
        y.backward()
    go.autograd.release(go.array(1.0))


def test_the_gradient_of_an_intermediate_does_not_cut_the_graph() -> None:
    """C020, B31: eager, and compiled."""

    def f(x: Any) -> Any:
        return 5 * x * x + 13 * x + 10

    x = variable([0.0, 7.0])
    with go.record():
        y = f(x)
        y.attach_grad()
        z = 2 * y
    z.backward()
    close(x.grad, [26, 166])
    close(y.grad, [2, 2])

    def tagged(x: Any) -> Any:
        gradient = go.grad(lambda x: (2 * go.tag(f(x), "y")).sum(), intermediates=("y",))
        return gradient(x)

    compiled = go.compile(tagged, target="reference")
    for found in (tagged(x.numpy()), compiled(x.numpy())):
        close(found[0], [26, 166])
        close(found[1]["y"], [2, 2])


def test_retained_graphs_accumulate_by_request() -> None:
    """C022"""
    for request, want in (("add", 6), ("write", 3)):
        x = variable([1.0], request)
        with go.record():
            y = 3 * x
        y.backward(retain_graph=True)
        y.backward(retain_graph=True)
        close(x.grad, [want])
        y.backward()
        with pytest.raises(GradientError, match="retain_graph=True"):
            y.backward()


def test_heads_and_variables() -> None:
    """B34: defaults, several heads, variables instead of buffers, and which one is wrong."""
    x, w, other = variable([1.0, 2.0]), variable([3.0, 4.0]), variable([0.0])
    with go.record():
        a, b = x * w, x * x
    found = go.backward([a, b, a], [None, [1.0, 10.0], 2.0], [x, a], retain_graph=True)
    close(found[0], [3 * 3 + 2, 3 * 4 + 40])
    close(found[1], [3, 3])
    close(x.grad, [0, 0])
    close(go.autograd.grad(b, x, retain_graph=True), [2, 4])
    close(go.autograd.grad([b], [x], retain_graph=True)[0], [2, 4])
    x.backward()
    close(x.grad, [1, 1])
    plain = go.array([1.0])
    for call, message in (
        (lambda: go.backward([a, plain]), r"heads that were recorded, got head 1 of type"),
        (lambda: go.backward([a, 3.0]), r"expected Arrays, got float as head 1"),
        (lambda: go.backward(a, variables=[x, plain]), r"variable 1 of type tensor<1xf32>, which"),
        (lambda: go.backward(a, variables=[x, other]), r"variable 1, which is unreachable"),
        (lambda: go.backward(a, [np.ones(3)]), r"head gradient 0 of type tensor<2xf32>, got .*f64"),
        (lambda: go.backward([a, b], [None]), r"for each of 2 heads, got 1"),
        (lambda: go.backward([]), r"at least one head, got none"),
    ):
        with pytest.raises(GradientError, match=message):
            call()
    go.backward([a, b])
    close(x.grad, [3 + 2, 4 + 4])


def test_unused_results_of_an_op() -> None:
    """B34: zeros stand for the gradients of results that nobody reads."""
    x = variable(rng.normal(size=(4, 3)))
    with go.record():
        first, *_ = go.split(x, 3, axis=1)
        values, _ = go.top_k(x, 2)
    go.backward([first, values])
    want = np.zeros((4, 3))
    want[:, 0] = 1
    order = np.argsort(-x.numpy(), axis=1)[:, :2]
    np.put_along_axis(want, order, np.take_along_axis(want, order, 1) + 1, 1)
    close(x.grad, want)


def test_an_op_without_a_rule_is_an_error_where_it_is_met() -> None:
    """B53"""
    x = variable([1.0, 2.0])
    ops = [op for op in go.dialect.base.OPS.values() if op.OPERANDS and not op.has_gradient()]
    assert all(op.vjp is go.dialect.base.NO_GRADIENT for op in ops)
    with go.record():
        y = (x > 1).astype("float32") + go.stop_gradient(x)
    with pytest.raises(GradientError, match="head 0"):
        y.backward()


# --- recording ------------------------------------------------------------------------------------


def test_modes_nest_and_are_restored_on_exceptions() -> None:
    """B30"""
    assert not go.is_recording() and go.is_training()
    with go.record(train_mode=False):
        assert go.is_recording() and not go.is_training()
        with go.pause(train_mode=True):
            assert not go.is_recording() and go.is_training()
            with go.record():
                assert go.is_recording() and go.is_training()
        with pytest.raises(ZeroDivisionError), go.pause():
            1 / 0  # noqa: B018
        assert go.is_recording() and not go.is_training()
    with pytest.raises(ZeroDivisionError), go.record(train_mode=False):
        1 / 0  # noqa: B018
    assert not go.is_recording() and go.is_training()


def test_an_error_in_a_backward_leaves_everything_as_it_was() -> None:
    """B30, B35"""
    x = variable([1.0, 2.0])

    @go.custom_vjp
    def fails(x: Any) -> Any:
        return x * 1.0

    fails.defvjp(lambda x: (x * 1.0, ()), lambda residuals, ct: 1 / 0)
    with go.record():
        y = fails(x * 2.0) + x
        with pytest.raises(ZeroDivisionError):
            y.backward()
        assert go.is_recording()
        with pytest.raises(ZeroDivisionError):
            y.backward()
    assert not go.autograd.is_fresh(x)
    close(x.grad, [0, 0])


def test_threads_record_by_themselves() -> None:
    """B30: 8 threads, some of which record, with variables of their own."""
    wrong: list[str] = []
    ready = threading.Barrier(8)

    def work(i: int) -> None:
        ready.wait()
        for n in range(30):
            x = variable([float(i), float(n)])
            with go.record() if i % 2 else go.pause():
                y = (x * x * (i + 1.0)).sum()
            if (y._history is not None) != bool(i % 2) or go.is_recording():
                wrong.append(f"thread {i} records what it should not")
            if i % 2:
                y.backward()
                if x.grad.tolist() != [2 * i * (i + 1), 2 * n * (i + 1)]:
                    wrong.append(f"thread {i} got {x.grad}")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    with go.record():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_only_what_depends_on_a_variable_is_recorded() -> None:
    """B32"""
    x, c = variable([1.0, 2.0]), go.array([3.0, 4.0])
    frozen = variable([1.0, 2.0], "null")
    y = x * c
    assert y._history is None
    with go.record():
        assert (c * c)._history is None and (frozen * c)._history is None
        assert (x > 1)._history is None and x.argmax()._history is None
        assert x.detach()._history is None and go.stop_gradient(x)._history is None
        with go.pause():
            assert (x * c)._history is None
        assert (x * c)._history is not None
    assert frozen.grad is None


KEPT: list[tuple[str, Any, float]] = [
    ("add", lambda x, c: x + c, 0),
    ("tanh", lambda x, c: go.tanh(x), 1),
    ("exp", lambda x, c: go.exp(x), 1),
    ("log", lambda x, c: go.log(x), 1),
    ("product with a constant", lambda x, c: x * c, 1),
    ("square", lambda x, c: x * x, 1),
    ("quotient by a constant", lambda x, c: x / c, 1),
    ("sum", lambda x, c: x.sum(), 0),
    ("mean", lambda x, c: x.mean(axis=0), 0),
    ("transpose", lambda x, c: x.T, 0),
    ("reshape", lambda x, c: x.reshape(-1), 0),
    ("slice", lambda x, c: x[1:, ::2], 0),
    ("concat", lambda x, c: go.concat([x, c]), 0),
    ("matmul with a constant", lambda x, c: x @ c.T, 1),
    ("softmax", lambda x, c: go.softmax(x), 1),
    ("relu", lambda x, c: go.relu(x), 1),
    ("where", lambda x, c: go.where(c > 0, x, 0.0), 0.25),
    ("tanh of tanh", lambda x, c: go.tanh(go.tanh(x)), 2),
]


@pytest.mark.parametrize(("name", "fn", "count"), KEPT, ids=[name for name, _, _ in KEPT])
def test_bytes_kept_are_the_least_that_the_rule_reads(name: str, fn: Any, count: float) -> None:
    """B32: arrays kept, in units of x. A sum keeps nothing, a product its other side, tanh its
    result; a choice its condition, of a byte an element.
    """
    x, c = (
        variable(rng.uniform(0.5, 1.5, (64, 32)).astype(np.float32)),
        go.array(rng.uniform(0.5, 1.5, (64, 32)).astype(np.float32)),
    )
    with go.record():
        y = fn(x, c)
    assert go.autograd.saved_bytes(y) == count * x.nbytes
    y.backward()
    assert go.autograd.saved_bytes(y) == 0


def test_memory_of_a_chain_is_what_is_kept() -> None:
    """B32, measured: a chain of sums keeps nothing of a megabyte each, one of products all."""
    x = variable(np.ones((512, 512), np.float32))
    warm = np.ones((512, 512), np.float32)
    for fn, least, most in ((lambda y: y + warm, 0, 2.5), (lambda y: y * y, 9, 12)):
        with go.record():
            fn(fn(x)).backward()
        gc.collect()
        tracemalloc.start()
        with go.record():
            y = x
            for _ in range(10):
                y = fn(y)
        size = tracemalloc.get_traced_memory()[0] / x.nbytes
        tracemalloc.stop()
        assert least <= size <= most, size
        go.autograd.release(y)


def test_history_is_freed_by_a_backward_and_without_one() -> None:
    """B35: no cycle keeps it alive until the garbage collector comes."""
    gc.disable()
    try:
        for retain in (False, True):
            x = variable(np.ones(4))
            with go.record():
                h = go.exp(x * 2.0)
                y = go.tanh(h).sum()
            node = weakref.ref(h._history.node)
            y.backward(retain_graph=retain)
            assert go.autograd.saved_bytes(y) == 0 or retain
            del h, y
            assert node() is None
    finally:
        gc.enable()


def test_a_graph_that_shares_what_was_freed() -> None:
    """B35: the second of two heads over one value says what to do; nothing is silently zero."""
    x = variable([1.0])
    with go.record():
        h = x * 2.0
        a, b = h * h, go.exp(h)
    a.backward()
    with pytest.raises(GradientError, match=r"retain_graph=True, or take \.detach"):
        b.backward()
    with go.record():
        again = h * x
    with pytest.raises(GradientError, match="retain_graph"):
        again.backward()


def test_long_chains() -> None:
    """No recursion: 100,000 nodes, copies and sums, forward, backward and freed."""
    x, one = variable([1.0]), go.array([1.0])
    with go.record():
        y = x
        for i in range(100_000):
            y = go.array(y) if i % 10 else y + one
    y.backward(retain_graph=True)
    close(x.grad, [1])
    del y


# --- variables ------------------------------------------------------------------------------------


def test_marking_and_dropping_twice_are_errors() -> None:
    """B31"""
    x = variable([1.0])
    with pytest.raises(GradientError, match=r"no variable yet, got one of .* call its drop_grad"):
        x.attach_grad("add")
    x.drop_grad()
    assert x.grad is None
    with pytest.raises(GradientError, match="drop_grad expected a variable, got an array"):
        x.drop_grad()
    with pytest.raises(GradientError, match="out of 'write', 'add', 'null', got 'plus'"):
        x.attach_grad("plus")
    x.attach_grad("null")
    assert x.grad is None
    x.drop_grad()
    x.attach_grad()
    with go.record():
        y = x * 2.0
        y.attach_grad()
        with pytest.raises(GradientError, match="no variable yet"):
            y.attach_grad()
        z = y * 3.0
    y.drop_grad()
    z.backward()
    close(x.grad, [6])
    assert y.grad is None
    with pytest.raises(GradientError, match="drop_grad expected a variable"):
        y.drop_grad()


def test_a_variable_dropped_after_its_use_gets_nothing() -> None:
    """B31"""
    x, w = variable([2.0]), variable([3.0])
    with go.record():
        y = x * w
    x.drop_grad()
    y.backward()
    assert x.grad is None
    close(w.grad, [2])


def test_requests_of_intermediates() -> None:
    """B31: added, written or left away, for results as for leaves."""
    x = variable([1.0, 2.0])
    for request, want in (("add", [11, 11]), ("write", [1, 1])):
        with go.record():
            y = x * 2.0
            y.attach_grad(request)
            y.grad[...] = 10
            z = y.sum()
        z.backward()
        close(y.grad, want)
        close(x.grad, [2, 2])


def test_gradient_buffers_are_arrays_of_their_own() -> None:
    """B31: zeros at first; `x.grad op= y` works; the array stays the same one."""
    x = variable([1.0, 2.0])
    buffer = x.grad
    close(buffer, [0, 0])
    with go.record():
        y = (x * x).sum()
    y.backward()
    assert x.grad is buffer
    close(buffer, [2, 4])
    x.grad *= 0.5
    x.grad[0] = 7
    assert x.grad is buffer
    close(buffer, [7, 2])
    x.grad = [1, 1]
    close(buffer, [1, 1])
    with pytest.raises(OpError, match="got tensor<3xf32>"):
        x.grad = [1, 2, 3]
    with pytest.raises(GradientError, match="call its attach_grad first"):
        go.array(1.0).grad = 1.0
    go.autograd.zero_grad(x)
    close(buffer, [0, 0])


def test_stale_gradients_are_known() -> None:
    """A gradient is fresh from a backward that fills it until it is consumed."""
    x, w = variable([1.0]), variable([1.0])
    assert not autograd.is_fresh(x)
    with go.record():
        y = x * 2.0
    y.backward()
    assert autograd.is_fresh(x) and not autograd.is_fresh(w)
    assert autograd.consume(x) and not autograd.is_fresh(x) and not autograd.consume(x)
    assert not autograd.consume(w) and not autograd.consume(go.array(1.0))


# --- writing in place -----------------------------------------------------------------------------


def test_assigning_a_recorded_value_into_a_slice() -> None:
    """C019: what is overwritten gets no gradient; a slice assigned to itself stays."""
    a, b = variable([[1.0, 2.0]]), go.arange(4, dtype="float32").reshape(2, 2)
    with go.record():
        b[1] = a[0]
    b.backward()
    close(b, [[0, 1], [1, 2]])
    close(a.grad, [[1, 1]])
    a, c, rows = variable([[1.0, 2.0]]), variable(np.ones((2, 2), np.float32)), go.zeros((3, 2))
    with go.record():
        for i in range(2):
            rows[i] = c[i] * 2.0
        rows[0] = a[0]
    rows.backward()
    close(a.grad, [[1, 1]])
    close(c.grad, [[0, 0], [2, 2]])
    w = go.array(np.arange(6.0).reshape(2, 3))
    with go.record():
        w[:, 0] = w[:, 0]
    close(w, np.arange(6.0).reshape(2, 3))
    w.attach_grad()
    with go.record(), pytest.raises(GradientError, match=r"test_tape.py:\d+: an assignment to a"):
        w[:, 0] = w[:, 0]
    w[:, 0] = w[:, 0]
    close(w, np.arange(6.0).reshape(2, 3))


def test_writing_to_an_array_of_a_recorded_graph_is_an_error() -> None:
    """B33: it says why, and what to do; nothing changes."""
    x = variable([1.0, 2.0])

    def assign(y: Any) -> None:
        y[0] = 5.0

    def add(y: Any) -> None:
        y += 1.0

    with go.record():
        y = x * x
        z = y * 3.0
        for write in (assign, add):
            with pytest.raises(GradientError, match=r"part of a recorded graph .*'gradopt.mul'"):
                write(y)
            with pytest.raises(GradientError, match=r"while recording would change a variable"):
                write(x)
            with go.pause():
                with pytest.raises(GradientError, match=r"make a new array"):
                    write(y)
                y.detach()[0] = 1.0
    for write in (assign, add):
        with pytest.raises(GradientError, match="or go backward first"):
            write(y)
    close(y, [1, 4])
    z.backward()
    close(x.grad, [6, 12])
    assign(y)
    close(y, [5, 4])


def test_variables_may_be_written_to_outside_recording() -> None:
    """B33: they stay variables, and graphs recorded before see what was there."""
    x = variable([1.0, 2.0])
    with go.record():
        y = (x * x).sum()
        with go.pause():
            x -= 1.0
    x *= 10.0
    x[0] = 7.0
    close(x, [7, 10])
    y.backward()
    close(x.grad, [2, 4])
    with go.record():
        y = (x * x).sum()
    y.backward()
    close(x.grad, [14, 20])


def test_a_marked_result_stays_a_variable_when_written_to() -> None:
    """B31, B33"""
    x = variable([1.0])
    with go.record():
        y = x * 2.0
        y.attach_grad()
        z = y * y
    z.backward()
    y[0] = 5.0
    with go.record():
        z = y * y
    z.backward()
    close(y.grad, [10])
    close(x.grad, [8])


def test_a_value_assigned_outside_recording_is_a_constant() -> None:
    """B33: how running statistics are kept."""
    x, state = variable([1.0, 2.0]), go.zeros(2)
    with go.record():
        y = x * 3.0
        with go.pause():
            state[...] = y
    assert state._history is None
    close(state, [3, 6])


def test_writing_with_out_into_a_recorded_graph_is_an_error() -> None:
    """B33: whether it is the array that is written to that is recorded, or the call."""
    double = go.compile(lambda x: x * 2.0, target="reference")
    x, c = variable([1.0, 2.0]), go.array([1.0, 1.0])
    with go.record():
        y = x * x
        with pytest.raises(
            GradientError, match=r"out of 'lambda' would change an array .* part of"
        ):
            double(c, out=y)
        with pytest.raises(GradientError, match=r"out of 'lambda' while recording would change a"):
            double(c, out=x)
        with pytest.raises(GradientError, match=r"no `out` while recording a call"):
            double(x, out=c)
        with go.pause():
            double(x, out=c)
    close(c, [2, 4])
    with pytest.raises(GradientError, match=r"part of"):
        double(c, out=y)
    y.backward()
    double(c, out=y)
    close(y, [4, 8])


# --- compiled functions, higher order -------------------------------------------------------------


def net(p: dict[str, Any], x: Any) -> Any:
    return go.tanh(x @ p["w"]) * go.exp(p["b"])


def parameters() -> dict[str, Any]:
    return {"w": rng.normal(size=(4, 3)), "b": rng.normal(size=3)}


def test_a_compiled_function_is_one_node() -> None:
    """B19, B34: its gradients are those of the plain function, through ops before and after."""
    compiled = go.compile(net, target="reference")
    given, x = parameters(), rng.normal(size=(5, 4))
    found = []
    for fn in (net, compiled):
        p, v = {k: variable(a) for k, a in given.items()}, variable(x)
        with go.record():
            y = fn({"w": p["w"] * 2.0, "b": p["b"]}, go.sin(v))
            loss = (y * y).sum()
        loss.backward()
        found.append([loss, v.grad, p["w"].grad, p["b"].grad])
    for a, b in zip(*found, strict=True):
        close(a, b, 1e-12)
    assert compiled({k: go.array(a) for k, a in given.items()}, x)._history is None
    with go.record():
        assert compiled({k: go.array(a) for k, a in given.items()}, x)._history is None


def test_higher_order_through_a_compiled_function() -> None:
    """B19: its backward is recorded, and compiled, too; three times over."""
    x = rng.uniform(0.5, 1.5, 4)

    def polynomial(x: Any) -> Any:
        return (x**5).sum()

    for fn in (polynomial, go.compile(polynomial, target="reference")):
        v = variable(x)
        with go.record():
            g = go.autograd.grad(fn(v), v, create_graph=True)
            h = go.autograd.grad(g.sum(), v, create_graph=True)
            t = h.sum()
        t.backward()
        close(g, 5 * x**4, 1e-12)
        close(h, 20 * x**3, 1e-12)
        close(v.grad, 60 * x**2, 1e-12)


def test_a_penalty_on_the_gradient_of_a_compiled_function() -> None:
    """B19, C010: gradients by parameters, of the norm of one by the data."""
    given, x = parameters(), rng.normal(size=(5, 4))
    found = []
    for fn in (net, go.compile(net, target="reference")):
        p, v = {k: variable(a) for k, a in given.items()}, variable(x)
        with go.record():
            y = fn(p, v)
            g = go.autograd.grad(y, v, create_graph=True)
            loss = ((g * g).sum(axis=1) ** 0.5 - 1.0).square().mean() + y.mean()
        loss.backward()
        found.append([loss, p["w"].grad, p["b"].grad, v.grad])
    for a, b in zip(*found, strict=True):
        close(a, b, 1e-11)


def test_functions_recorded_with_states_and_numpy() -> None:
    """B19: NumPy arguments may change before the backward; integers have no gradient."""
    pick = go.compile(lambda x, i: go.take(x, i, 0) * 2.0, target="reference")
    x, i = variable(rng.normal(size=(4, 2))), np.array([1, 1, 3], np.int32)
    with go.record():
        y = pick(x, i)
    i[...] = 0
    y.backward()
    close(x.grad, [[0, 0], [4, 4], [0, 0], [2, 2]])


def test_gradients_can_be_added_in_a_recorded_backward() -> None:
    """B34: create_graph with buffers: x.grad is part of the graph, and can be differentiated."""
    x = variable([2.0])
    with go.record():
        y = x**4
        y.backward(create_graph=True)
        g = x.grad * 1.0
    close(g, [32])
    g.backward()
    close(x.grad, [48])
    go.autograd.zero_grad(x)
    close(x.grad, [0])


@pytest.mark.parametrize("mode", ["lazy", "op"])
@pytest.mark.compiler
def test_other_modes(mode: str) -> None:
    """B38: put off, or compiled op by op, the tape gives the same numbers."""
    x = rng.normal(size=(4, 3)).astype(np.float32)
    found = []
    for eager in ("reference", mode):
        with eager_mode(eager):
            v = variable(x)
            with go.record():
                g = go.autograd.grad(go.tanh(v).sum(), v, create_graph=True)
                loss = (g * g * v).sum()
            v += 1.0
            loss.backward()
            found.append([loss.numpy(), g.numpy(), v.grad.numpy()])
    for a, b in zip(*found, strict=True):
        close(a, b, 1e-5)
