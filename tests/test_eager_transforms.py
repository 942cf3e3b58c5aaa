# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Derivatives of functions that run at once on arrays: the same numbers, structures and errors as
in a trace; custom_vjp and checkpoint; random programs.

GRADOPT_RANDOM_GRAPHS=2000 in the environment makes the last a long campaign.
"""

import gc
import os
import tracemalloc
from typing import Any

import gradopt as go
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gradopt.errors import GradientError, TraceError
from hypothesis import HealthCheck, Phase, given, settings

from .helpers import run_reference
from .random_programs import (
    Step,
    arguments,
    differentiated,
    flat,
    program,
    programs,
)

EXAMPLES = int(os.environ.get("GRADOPT_RANDOM_GRAPHS", "12"))
IS_CAMPAIGN = "GRADOPT_RANDOM_GRAPHS" in os.environ
SETTINGS = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=not IS_CAMPAIGN,
    phases=[p for p in Phase if p != Phase.shrink or not IS_CAMPAIGN],
    suppress_health_check=list(HealthCheck),
    database=None,
)

rng = np.random.default_rng(4)
X = rng.uniform(0.5, 1.5, (3, 2))


def variable(x: Any, grad_req: str = "write") -> Any:
    found = go.array(x)
    found.attach_grad(grad_req)
    return found


def same(a: Any, b: Any) -> None:
    """Trees of one structure with equal arrays."""
    left, right = jax.tree.map(np.asarray, a), jax.tree.map(np.asarray, b)
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for x, y in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        np.testing.assert_allclose(x, y, 1e-12, 1e-14)


def in_trace(fn: Any, *arguments: Any) -> Any:
    """What a compiled function gives."""
    return go.compile(fn, target="reference")(*arguments)


def tree(p: dict[str, Any], n: Any) -> dict[str, Any]:
    y = go.tanh(p["w"] * p["b"][0])
    return {"y": y, "z": (y.sum(axis=1) * p["b"][0].sum(), p["w"].argmax()), "n": n + 1}


P = {"w": X, "b": (np.array([0.3, 0.7]),)}
N = np.array(3, np.int32)


def loss(p: dict[str, Any], n: Any) -> Any:
    found = tree(p, n)
    return found["y"].sum() + found["z"][0].mean(), {"n": found["n"], "y": found["y"]}


SAME: dict[str, Any] = {
    "grad": lambda p, n: go.grad(lambda p, n: loss(p, n)[0])(p, n),
    "has_aux": lambda p, n: go.value_and_grad(loss, has_aux=True)(p, n),
    "argnums": lambda p, n: go.grad(lambda a, n, b: (a * b).sum() * n, (0, 2))(
        p["w"], n.astype("float64"), p["w"] * 2
    ),
    "keywords": lambda p, n: go.grad(lambda x, scale: (x * scale).sum())(p["w"], scale=2.0),
    "vjp": lambda p, n: go.vjp(tree, p, n)[1]({"y": p["w"], "z": (np.ones(3), None), "n": None}),
    "vjp value": lambda p, n: go.vjp(tree, p, n)[0],
    "jvp": lambda p, n: go.jvp(tree, (p, n), ({"w": p["w"] * 2, "b": (np.ones(2),)}, None)),
    "hvp": lambda p, n: go.hvp(lambda w: (w**3).sum(), (p["w"],), (p["w"] * 2,)),
    "jacobian": lambda p, n: go.jacobian(lambda w: (w**2).sum(axis=0))(p["w"]),
    "jacobian forward": lambda p, n: go.jacobian(
        lambda w, b: {"a": w[0] * b, "b": b.sum()}, (0, 1), mode="forward"
    )(p["w"], p["b"][0]),
    "hessian": lambda p, n: go.hessian(lambda w: (w**3 * w.sum()).sum())(p["w"]),
    "intermediates": lambda p, n: go.grad(
        lambda w: (
            go.tag(w * w, "a") * go.tag(w + 0.0 * w, "b") + go.tag(go.ones((3, 2), w.dtype), "c")
        ).sum(),
        intermediates=("b", "a", "c"),
    )(p["w"]),
    "third": lambda p, n: go.grad(
        lambda x: go.grad(lambda y: go.grad(lambda z: (z**4).sum())(y).sum())(x).sum()
    )(p["w"]),
    "perturbations": lambda p, n: go.grad(
        lambda x: (x * go.grad(lambda y: (x * y * y).sum())(x)).sum()
    )(p["w"]),
    "jvp of grad": lambda p, n: go.jvp(go.grad(lambda w: (w**4).sum()), (p["w"],), (p["w"],)),
    "grad of jvp": lambda p, n: go.grad(lambda w: go.jvp(lambda v: v**3, (w,), (w,))[1].sum())(
        p["w"]
    ),
    "unused": lambda p, n: go.grad(lambda a, b: a.sum(), (0, 1), allow_unused=True)(p["w"], p["w"]),
    "no gradient": lambda p, n: go.grad(lambda w: (w > 1).astype("float64").sum())(p["w"]),
    "stopped": lambda p, n: go.grad(lambda w: (go.stop_gradient(w) * 1.0).sum())(p["w"]),
    "constant tangent": lambda p, n: go.jvp(
        lambda w: (w > 1, go.ones(2), w[0]), (p["w"],), (p["w"],)
    ),
    "identity": lambda p, n: go.vjp(lambda w: (w, w), p["w"])[1]((p["w"], p["w"])),
}


@pytest.mark.parametrize("name", SAME)
def test_eager_is_as_traced(name: str) -> None:
    """B38, B55: values, gradients, structures."""
    arrays = {"w": go.array(P["w"]), "b": (go.array(P["b"][0]),)}
    same(SAME[name](arrays, go.array(N)), in_trace(SAME[name], P, N))


WRONG: dict[str, tuple[Any, type[Exception], str]] = {
    "unreachable": (
        lambda x: go.grad(lambda a, b: a.sum(), (0, 1))(x, x), Exception, "unreachable 'b'",
    ),
    "no number": (lambda x: go.grad(lambda x: x)(x), GradientError, "expected one floating-point"),
    "no aux": (lambda x: go.grad(lambda x: x.sum(), has_aux=True)(x), GradientError, "number, aux"),
    "integers": (
        lambda x: go.grad(lambda n: n.sum() * 1.0)(np.arange(3)), GradientError,
        "got argument 'n' with dtype int64",
    ),
    "argnums": (lambda x: go.grad(lambda x: x.sum(), 2)(x), GradientError, "of the 1 arguments"),
    "cotangents": (
        lambda x: go.vjp(lambda x: x, x)[1]((1.0, 2.0)), GradientError, "structure of its result",
    ),
    "cotangent": (
        lambda x: go.vjp(lambda x: x, x)[1](np.ones(7)), GradientError, "cotangent 0 of type",
    ),
    "tangents": (
        lambda x: go.jvp(lambda x: x, (x,), (None,)), GradientError, "structure of the primals",
    ),
    "label": (
        lambda x: go.grad(lambda x: go.tag(x, "a").sum(), intermediates=("b",))(x), Exception,
        "one value tagged 'b' in .*, got 0; tags are: 'a'",
    ),
    "labels": (
        lambda x: go.grad(
            lambda x: (go.tag(x, "a") + go.tag(x, "a")).sum(), intermediates=("a",)
        )(x), Exception, "one value tagged 'a' in .*, got 2",
    ),
    "result": (lambda x: go.grad(lambda x: "x")(x), TraceError, "returned str 'x'"),
    "container": (
        lambda x: go.grad(lambda p: p.update(y=p["x"]) or p["x"].sum())({"x": x}), TraceError,
        "changes its argument: 'p.y' is set",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_errors_are_those_of_a_trace(name: str) -> None:
    """B38, B51, B56"""
    fn, kind, message = WRONG[name]
    with pytest.raises(kind, match=message):
        fn(go.array(X))
    with pytest.raises(kind, match=message):
        in_trace(fn, X)


def test_python_control_flow_on_values() -> None:
    """Outside a trace arrays have values."""

    def f(x: Any, n: Any) -> Any:
        while float(x) < 100 and n > 0:
            x = x * x if x > 1 else x + 1
            n = n - 1
        return x

    close = np.testing.assert_allclose
    close(go.grad(f)(2.0, 10), 128 * 2.0**7 / 16)
    close(go.grad(f)(np.float32(0.5), 10), jax.grad(lambda x: (x + 1.0) ** 16)(0.5), 1e-6)
    close(go.grad(f)(2.0, 1), 4)


def test_results_are_constants_unless_somebody_records() -> None:
    """B32, B35"""
    x = go.array(X)
    value, gradient = go.value_and_grad(lambda x: (x * x).sum())(x)
    outputs, pullback = go.vjp(go.tanh, x)
    (back,) = pullback(np.ones_like(X))
    for found in (value, gradient, outputs, back):
        assert found._history is None
    assert x._history is None


def test_closures_over_variables() -> None:
    """B34: an inner gradient passes them by; an outer one differentiates the inner by them."""
    w, x = variable(np.array([1.0, 2.0])), go.array([3.0, 4.0])
    (go.grad(lambda x: (x * x * w).sum())(x)).sum()
    assert w.grad.tolist() == [0, 0]
    with go.record():
        g = go.grad(lambda x: (x * x * w).sum())(x)
        y = (g * g).sum()
    y.backward()
    np.testing.assert_allclose(w.grad, 2 * (2 * x.numpy()) ** 2 * w.numpy())
    with go.record():
        _, pullback = go.vjp(lambda x: go.sin(x * w), x)
        (g,) = pullback(w)
        y = g.sum()
    y.backward()
    want = jax.grad(lambda w: jnp.sum(jax.vjp(lambda x: jnp.sin(x * w), x.numpy())[1](w)[0]))
    np.testing.assert_allclose(w.grad, want(w.numpy()), 1e-6)


def test_a_variable_is_an_argument() -> None:
    """B31: it is neither marked nor filled; its gradient is returned."""
    w = variable([1.0, 2.0])
    np.testing.assert_allclose(go.grad(lambda w: (w**3).sum())(w), [3, 12])
    assert w.grad.tolist() == [0, 0]
    with go.record():
        y = go.grad(lambda w: (w**3).sum())(w).sum()
    y.backward()
    np.testing.assert_allclose(w.grad, [6, 12])


# --- rules of one's own ---------------------------------------------------------------------------


def clipped() -> Any:
    @go.custom_vjp
    def f(x: Any, k: Any) -> Any:
        return {"y": go.sin(x), "k": k * 2}

    def forward(x: Any, k: Any) -> Any:
        return {"y": go.sin(x), "k": k * 2}, (go.cos(x), x)

    def backward(residuals: Any, ct: Any) -> Any:
        slope, x = residuals
        assert ct["k"] is None
        return go.clip(ct["y"], -1.0, 1.0) * slope * x, None

    f.defvjp(forward, backward)
    return f


def test_custom_vjp() -> None:
    """B57, B38: the user's gradient, to second order, eager as traced."""
    f, k = clipped(), np.array(3, np.int32)

    def first(x: Any, k: Any) -> Any:
        return go.grad(lambda x: (3.0 * f(x, k)["y"]).sum())(x)

    def second(x: Any, k: Any) -> Any:
        return go.grad(lambda x: (first(x, k) * x).sum())(x)

    for fn in (first, second, lambda x, k: f(x, k)):
        same(fn(go.array(X), go.array(k)), in_trace(fn, X, k))
    np.testing.assert_allclose(first(X, k), np.cos(X) * X)
    x = variable(X)
    with go.record():
        found = f(x, k)
        assert found["k"]._history is None
        found["y"].backward(0.5)
    np.testing.assert_allclose(x.grad, 0.5 * np.cos(X) * X)


def test_custom_vjp_misuse() -> None:
    """B57: what would lose a gradient is refused, as in a trace."""
    w, x = variable([2.0]), variable([1.0])

    def made(fn: Any, forward: Any, backward: Any) -> Any:
        f = go.custom_vjp(fn)
        f.defvjp(forward, backward)
        return f

    good = (lambda x: x * 1.0, lambda x: (x * 1.0, x), lambda r, ct: (ct,))
    for fn, forward, backward, message in (
        (good[0], lambda x: (x * w, ()), good[2], "got its forward using a variable"),
        (
            good[0],
            lambda x: (x * 1.0, w * 2.0),
            good[2],
            "got its forward using a variable, or what depends",
        ),
        (good[0], lambda x: x * 1.0, good[2], "return .result, residuals., got Array"),
        (good[0], good[1], lambda r, ct: ct, "a tuple of 1 gradients, one an argument, got Array"),
        (good[0], good[1], lambda r, ct: (ct[0],), r"gradient 0 of type tensor<1xf32>, got .*<f32"),
        (good[0], good[1], lambda r, ct: ((ct, ct),), "a gradient in the structure of its arg"),
    ):
        with pytest.raises(GradientError, match=message), go.record():
            made(fn, forward, backward)(x).backward()
    with go.record(), pytest.raises(GradientError, match="got it using a variable"):
        made(lambda x: x * w, *good[1:])(go.array([1.0]))
    with go.record():
        y = made(*good[:2], lambda r, ct: (ct * w,))(x)
        y.backward(retain_graph=True)
        np.testing.assert_allclose(x.grad, [2])
        with pytest.raises(GradientError, match="got its backward using a variable"):
            y.backward(create_graph=True)


def test_checkpoint_computes_anew() -> None:
    """B57: gradients by arguments and by what it uses besides, to second order; it keeps its
    arguments only.
    """
    w = variable(rng.normal(size=(64, 64)))
    x = variable(rng.normal(size=(8, 64)))
    calls = []

    def block(x: Any) -> Any:
        calls.append(1)
        for _ in range(6):
            x = go.tanh(x @ w) * 2.0
        return x

    found = []
    for fn in (block, go.checkpoint(block)):
        with go.record():
            y = fn(fn(x) * 1.0)
        kept = go.autograd.saved_bytes(y)
        y.backward()
        found.append((kept, y, x.grad.numpy(), w.grad.numpy()))
        with go.record():
            g = go.autograd.grad((fn(x) ** 2).sum(), x, create_graph=True)
            loss = (g * g).sum()
        loss.backward()
        found[-1] += (x.grad.numpy(), w.grad.numpy())
    (plain, *a), (less, *b) = found
    assert less == 2 * x.nbytes + 8 < plain / 5  # the 1.0 is kept, too
    for left, right in zip(a, b, strict=True):  # sums of contributions of a block come first
        np.testing.assert_allclose(left, right, 1e-11)
    calls.clear()
    go.checkpoint(block)(x)
    assert len(calls) == 1


def test_checkpoint_draws_the_same_random_numbers() -> None:
    """B64: and leaves the state where it would be without a checkpoint."""
    x = variable(np.ones(50))
    found = []
    for wrap in (lambda f: f, go.checkpoint):
        go.random.seed(7)
        f = wrap(lambda x: go.dropout(go.sin(x), 0.5, go.random.next_key()))
        with go.record():
            y = f(f(x))
        y.backward()
        found.append((y.numpy(), x.grad.numpy(), np.asarray(go.random.next_key())))
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_checkpoint_misuse() -> None:
    """B33: what would be computed anew from other values is an error."""
    x, w = variable([1.0]), variable([2.0])
    f = go.checkpoint(lambda x: go.sin(x * w))
    with go.record():
        y = f(x)
    w += 1.0
    with pytest.raises(GradientError, match="uses a variable that was written to between"):
        y.backward()
    h = variable([1.0])
    g = go.checkpoint(lambda x: x * h)
    with go.record():
        y = g(x)
        h = h * 2.0
    with pytest.raises(GradientError, match="uses other arrays of recorded graphs in its backward"):
        y.backward()


def test_checkpoint_needs_less_memory() -> None:
    """B60: the peak of a chain of blocks, measured."""

    def block(x: Any) -> Any:
        for _ in range(8):
            x = go.tanh(x)
        return x

    peaks = []
    for fn in (block, go.checkpoint(block)):
        x = variable(np.ones((256, 256)))
        gc.collect()
        tracemalloc.start()
        with go.record():
            y = x
            for _ in range(8):
                y = fn(y)
            y.sum().backward()
        peaks.append(tracemalloc.get_traced_memory()[1] / x.nbytes)
        tracemalloc.stop()
        del y
    assert peaks[1] < peaks[0] / 2


# --- random programs ------------------------------------------------------------------------------


@SETTINGS
@given(programs())
def test_random_programs(todo: list[Step]) -> None:
    """B38: eager values and gradients are those of the trace, which test_random_graphs.py holds
    against JAX; a campaign does so here, too.
    """
    xs = arguments()
    got = flat(differentiated(go, todo)(*xs))
    want = run_reference(differentiated(go, todo), *xs)
    in_jax = flat(differentiated(jnp, todo)(*xs)) if IS_CAMPAIGN else want
    for a, b, c in zip(got, want, in_jax, strict=True):
        size = max(1.0, float(np.max(np.abs(b), initial=0)))
        np.testing.assert_allclose(a, b, 1e-12, 1e-14 * size)
        np.testing.assert_allclose(a, c, 1e-9, 1e-11 * size)


@SETTINGS
@given(programs(2, 3))
def test_random_programs_to_second_order(todo: list[Step]) -> None:
    """B38, B55: Hessians times vectors are those of the trace."""
    *floats, ids = arguments()

    def along(*floats: Any) -> Any:
        fn = lambda *floats: program(go, todo)(*floats, ids)[0]  # noqa: E731
        return go.hvp(fn, floats, tuple(floats))

    for a, b in zip(along(*map(go.array, floats)), run_reference(along, *floats), strict=True):
        size = max(1.0, float(np.max(np.abs(b), initial=0)))
        np.testing.assert_allclose(a, b, 1e-11, 1e-13 * size)


@SETTINGS
@given(programs())
def test_random_programs_on_the_tape(todo: list[Step]) -> None:
    """C004, B34: recorded by hand, with buffers that are added to, in two backwards."""
    xs = arguments()
    *floats, ids = [go.array(x) for x in xs]
    for x in floats:
        x.attach_grad("add")
    with go.record():
        value, last = program(go, todo)(*floats, ids)
    heads = [y for y in (value, *last) if y._history is not None and y._history.needs]
    if heads:
        go.backward(heads, [2.0] * len(heads), retain_graph=True)
        go.backward(heads, [0.5] * len(heads))

    def total(*xs: Any) -> Any:
        value, last = program(go, todo)(*xs)
        return value + sum(y.sum() for y in last)

    want = run_reference(go.grad(total, (0, 1, 2, 3), allow_unused=True), *xs)
    for x, b in zip(floats, want, strict=True):
        size = max(1.0, float(np.max(np.abs(b), initial=0)))
        np.testing.assert_allclose(x.grad, 2.5 * b, 1e-12, 1e-14 * size)
