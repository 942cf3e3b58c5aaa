# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""go.scan and go.fori_loop: values and derivatives against JAX's lax.scan in float64, in a trace,
at once and after gradopt-unroll-scans; what is refused; what the passes make of loops.
"""

import collections
from collections.abc import Callable
from typing import Any

import gradopt as go
import jax
import numpy as np
import optree
import pytest
from gradopt.dialect import reference
from gradopt.dialect.graph import Graph, trace
from gradopt.errors import OpError, PassError
from gradopt.lowering import pipeline
from gradopt.tools import workloads

from .helpers import lowered, spec

DIFFERENTIATED, SIMPLIFIED = pipeline.STAGES["differentiated"], pipeline.STAGES["simplified"]
TRIPS = SIMPLIFIED.replace(pipeline.UNROLL, f"{pipeline.UNROLL}{{limit=1 chunk=2}}")
SINGLE = SIMPLIFIED.replace(pipeline.UNROLL, f"{pipeline.UNROLL}{{limit=1 chunk=1}}")

rng = np.random.default_rng(5)
BATCH, IN, WIDTH, STEPS = 2, 3, 4, 5
WEIGHTS = {
    "x": rng.normal(size=(IN, 4 * WIDTH)),
    "h": rng.normal(size=(WIDTH, 4 * WIDTH)) / 2,
    "b": rng.normal(size=4 * WIDTH),
}
X = rng.normal(size=(STEPS, BATCH, IN))
START = rng.normal(size=(BATCH, WIDTH)), rng.normal(size=(BATCH, WIDTH))


# --- programs, in the functions of `m`: those of gradopt, or of JAX -------------------------------

Program = Callable[..., Any]
GO: Any = go


class Jax:
    """JAX under gradopt's names."""

    tanh, where, stack, zeros = jax.numpy.tanh, jax.numpy.where, jax.numpy.stack, jax.numpy.zeros
    sigmoid, scan = jax.nn.sigmoid, staticmethod(jax.lax.scan)
    fori_loop, stop_gradient = staticmethod(jax.lax.fori_loop), staticmethod(jax.lax.stop_gradient)
    checkpoint = staticmethod(jax.checkpoint)

    @staticmethod
    def split(x: Any, n: int, axis: int) -> Any:
        return jax.numpy.split(x, n, axis)


def lstm(m: Any, p: Any, start: Any, x: Any) -> Any:
    def step(state: Any, x: Any) -> Any:
        h, c = state
        i, f, g, o = m.split(x @ p["x"] + h @ p["h"] + p["b"], 4, -1)
        c = m.sigmoid(f) * c + m.sigmoid(i) * m.tanh(g)
        h = m.sigmoid(o) * m.tanh(c)
        return (h, c), h

    (h, c), ys = m.scan(step, start, x)
    return (h * c).sum() + (ys**3).sum()


def gru_reversed(m: Any, p: Any, start: Any, x: Any) -> Any:
    """One carry in a dict, two outputs, from the last slice to the first."""

    def step(state: Any, x: Any) -> Any:
        h = state["h"]
        r, u, n, _ = m.split(x @ p["x"] + p["b"], 4, -1)
        a, b, d, _ = m.split(h @ p["h"], 4, -1)
        u = m.sigmoid(u + b)
        h = (1 - u) * m.tanh(n + m.sigmoid(r + a) * d) + u * h
        return {"h": h}, (h, u.sum())

    end, (ys, sums) = m.scan(step, {"h": start[0]}, x, reverse=True)
    return (end["h"] ** 2).sum() + (ys**2).sum() * sums[1] + sums.sum()


def without_xs(m: Any, p: Any, start: Any, x: Any) -> Any:
    """No slices; a carry that counts, one that is not read, one with no gradient."""

    def step(state: Any, _: Any) -> Any:
        h, total, count, _ = state
        h = m.tanh(h @ p["h"][:, :WIDTH] + count * x[0, 0, 0])
        return (h, total + h.sum(), count + 1, m.stop_gradient(h)), None

    (h, total, count, still), none = m.scan(step, (start[0], 0.0, 0, start[1]), None, length=4)
    assert none is None
    return (h**2).sum() + total * count + still.sum()


def no_carry(m: Any, p: Any, start: Any, x: Any) -> Any:
    """Only slices: a map."""
    _, ys = m.scan(lambda c, x: (c, m.tanh(x @ p["x"])), None, x)
    return (ys * ys).sum() + start[0].sum()


def nested(m: Any, p: Any, start: Any, x: Any) -> Any:
    """A loop in a loop, whose body reads what both take along, and a checkpoint."""

    def outer(h: Any, x: Any) -> Any:
        def inner(c: Any, row: Any) -> Any:
            c = m.tanh(c + row @ p["x"][:, :WIDTH] * h[1])
            return c, c.sum()

        c, sums = m.scan(m.checkpoint(inner), h[0], x)
        return h * 0.5 + c, sums

    h, sums = m.scan(outer, start[0], x)
    return (h**2).sum() + (sums**2).sum() + p["b"].sum()


def powers(m: Any, p: Any, start: Any, x: Any) -> Any:
    """fori_loop, with a number that takes the type of what is added to it."""
    h, _ = m.fori_loop(
        2, 6, lambda i, v: (m.tanh(v[0] * i + v[1]), v[1] + x[0, 0, 0]), (start[0], 0.0)
    )
    return (h**3).sum() + p["b"].sum()


PROGRAMS = [lstm, gru_reversed, without_xs, no_carry, nested, powers]


def against(program: Program, transform: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
    """What a transformed program gives, as a function of gradopt's, and JAX's answer."""
    with jax.enable_x64(True):
        found = jax.jit(transform(jax, lambda *a: program(Jax, *a)))(WEIGHTS, START, X)
        want = jax.tree.map(np.asarray, found)
    return transform(go, lambda *a: program(GO, *a)), want


def gradient(m: Any, fn: Any) -> Any:
    unused = {"allow_unused": True} if m is go else {}
    return m.value_and_grad(fn, argnums=(0, 1, 2), **unused)


class Unrolled:
    """gradopt with a loop of Python's in the place of `scan`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(go, name)

    @staticmethod
    def scan(f: Any, carry: Any, xs: Any = None, length: int | None = None) -> Any:
        outputs = []
        for t in range(length or xs.shape[0]):
            carry, y = f(carry, None if xs is None else xs[t])
            outputs.append(y)
        return carry, None if outputs[0] is None else go.stack(outputs)


def second(fn: Any) -> Any:
    """The gradient of the squares of the gradient, and the derivative of the gradient."""
    first = go.grad(fn, argnums=(0, 1, 2), allow_unused=True)

    def squares(*a: Any) -> Any:
        return sum((g * g).sum() for g in optree.tree_leaves(first(*a)))

    def along(*a: Any) -> Any:
        squared = go.grad(squares, argnums=(0, 1, 2), allow_unused=True)(*a)
        return go.jvp(first, a, a)[1], squared

    return along


def traced(fn: Any, *arguments: Any) -> Graph:
    specs = optree.tree_map(spec, arguments)
    return lowered(trace(fn, *specs), DIFFERENTIATED)


def run(graph: Graph, *arguments: Any) -> list[np.ndarray]:
    return list(reference.run(graph.module, graph.name, *optree.tree_leaves(arguments)))


def same(found: Any, want: Any, rtol: float = 1e-11) -> None:
    pairs = zip(optree.tree_leaves(found), jax.tree.leaves(want), strict=True)
    for a, b in pairs:
        assert np.shape(a) == np.shape(b)
        np.testing.assert_allclose(np.asarray(a), b, rtol, 1e-12)


# --- values and derivatives -----------------------------------------------------------------------


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_in_a_trace_as_in_jax(program: Program) -> None:
    """The loops as they are differentiated, written out, and in trips."""
    fn, want = against(program, gradient)
    graph = traced(fn, WEIGHTS, START, X)
    text = str(graph)
    assert "gradopt.scan" in text
    same(run(graph, WEIGHTS, START, X), want)
    for passes in (SIMPLIFIED, TRIPS, SINGLE):
        graph = lowered(Graph.parse(text), passes)
        same(run(graph, WEIGHTS, START, X), want)
        assert ("gradopt.scan" in str(graph)) == (passes != SIMPLIFIED)


@pytest.mark.parametrize("program", [lstm, nested], ids=lambda p: p.__name__)
def test_derivatives_of_derivatives(program: Program) -> None:
    """As of a loop of Python's: of loops that save, and of loops back."""
    few = WEIGHTS, START, X[:2]
    found, want = (
        run(traced(second(lambda *a, m=m: program(m, *a)), *few), *few) for m in (GO, Unrolled())
    )
    same(found, want)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_at_once_as_in_jax(program: Program) -> None:
    """On arrays the body runs in Python, and the tape is differentiated."""
    fn, want = against(program, gradient)
    arrays = optree.tree_map(go.array, (WEIGHTS, START, X))
    same(fn(*arrays), want)


def test_the_interpreter_runs_loops() -> None:
    """Target `reference`, with known and with open extents."""
    fn, want = against(lstm, gradient)
    same(go.compile(fn, target="reference")(WEIGHTS, START, X), want)

    @go.compile(target="reference")
    def total(x: Any) -> Any:
        return go.scan(lambda c, x: (c + x, c * x), go.zeros_like(x[0]), x)

    x = np.arange(6.0).reshape(3, 2)
    carry, ys = total(x)
    same((carry, ys), (x.sum(0), np.stack([x[0] * 0, x[0] * x[1], (x[0] + x[1]) * x[2]])))


def test_without_steps() -> None:
    """The carry comes back, outputs have the types they would have; gradients go through."""

    def body(c: Any, x: Any) -> Any:
        return c * x, {"a": c, "b": (x > 0).astype("int32")}

    def loss(c: Any, x: Any) -> Any:
        c, ys = go.scan(body, c, x)
        return c.sum() * 2 + ys["a"].sum(), ys

    c, x = np.ones(3), np.zeros((0, 3))
    for found in (
        go.value_and_grad(loss, argnums=(0, 1), has_aux=True, allow_unused=True)(
            *map(go.array, (c, x))
        ),
        go.compile(
            go.value_and_grad(loss, argnums=(0, 1), has_aux=True, allow_unused=True),
            target="reference",
        )(c, x),
    ):
        (value, ys), (dc, dx) = found
        assert float(value) == 6
        assert ys["a"].shape == ys["b"].shape == (0, 3)
        assert ys["b"].dtype == go.int32
        same((dc, dx), (np.full(3, 2.0), x))
    graph = traced(loss, c, x)
    same(run(lowered(graph, SIMPLIFIED), c, x), [6.0, np.zeros((0, 3)), np.zeros((0, 3))])
    assert float(go.fori_loop(3, 1, lambda i, v: v * 2, go.array(1.5))) == 1.5


def test_numbers_adapt_and_the_index_is_int32() -> None:
    def body(i: Any, v: Any) -> Any:
        assert i.dtype == go.int32
        return v + i.astype(v.dtype)

    assert float(go.fori_loop(0, 4, body, 0.5)) == 6.5
    x = go.array(np.arange(3.0))
    for fn in (
        lambda x: go.scan(lambda c, x: (c + x, c), 0, x),
        lambda x: go.scan(lambda c, x: (x, c), 0.0, x),
    ):
        carry, ys = fn(x)
        assert carry.dtype == ys.dtype == go.float64
        graph = traced(fn, np.arange(3.0))
        same(run(graph, np.arange(3.0)), (carry, ys))
        assert len(list(graph.module.body.operations)) == 2  # no second body


def test_custom_rules_in_a_loop() -> None:
    @go.custom_vjp
    def twice(x: Any) -> Any:
        return x * 2

    twice.defvjp(lambda x: (x * 2, x), lambda x, ct: (ct * 10 * x,))

    def loss(x: Any) -> Any:
        return go.scan(lambda c, _: (twice(c), None), x, length=2)[0].sum()

    for grad in (traced(go.grad(loss), X[0]), lowered(traced(go.grad(loss), X[0]), SIMPLIFIED)):
        same(run(grad, X[0]), [10 * X[0] * 10 * 2 * X[0]])


def test_one_compiled_function_in_another_and_recorded() -> None:
    """A compiled function with a loop, derived as a call; forward and backward by themselves."""
    _, want = against(lstm, gradient)
    inner = go.compile(lambda *a: lstm(GO, *a), target="reference")
    outer = go.compile(go.value_and_grad(inner, argnums=(0, 1, 2)), target="reference")
    same(outer(WEIGHTS, START, X), want)
    value, pullback = inner.vjp(WEIGHTS, START, X)
    same((value, pullback(np.ones(()))), want)


def test_hybridized() -> None:
    w = go.array(WEIGHTS["x"])
    w.attach_grad()

    @go.hybridize(target="reference")
    def train(x: Any) -> Any:
        with go.record():
            _, ys = go.scan(lambda c, x: (c, go.tanh(x @ w)), None, x)
            value = (ys**2).sum()
        value.backward()
        return value

    value = train(go.array(X))
    want = np.tanh(X @ WEIGHTS["x"])
    same(value, (want**2).sum())
    same(w.grad, np.einsum("tbi,tbo->io", X, 2 * want * (1 - want**2)))


# --- what is refused ------------------------------------------------------------------------------

A, F64 = np.ones(3), np.zeros(3)
WRONG: list[tuple[Callable[..., Any], str]] = [
    (
        lambda: go.scan(lambda c, x: (c, x), A, {"a": A, "b": A[:2]}),
        "'xs.b' with a first axis of extent 3, as 'xs.a' has, got tensor<2xf64>",
    ),
    (
        lambda: go.scan(lambda c, x: (c, x), A, A, length=4),
        "'xs' with a first axis of extent 4, as length has, got tensor<3xf64>",
    ),
    (
        lambda: go.scan(lambda c, x: (c, x), A, 1.0),
        "'xs' with a first axis of known extent, got tensor<f32>",
    ),
    (
        lambda: go.scan(lambda c, x: (c, x), A),
        "'gradopt.scan' op expected length, or arrays in xs, got neither",
    ),
    (
        lambda: go.scan(lambda c, x: (c, x), A, length=-1),
        "length of at least 0, got -1",
    ),
    (
        lambda: go.scan(lambda c, x: (c, x), A, A, unroll=0),
        "unroll as None, a boolean or an integer of at least 1, got 0",
    ),
    (
        lambda: go.scan(lambda c, x: (c, x), {"h": "a"}, A),
        "an array or number as 'init.h', got str 'a'",
    ),
    (
        lambda: go.scan(lambda c, x: c, A, A),
        r"the body to return a pair \(carry, y\), got ",
    ),
    (
        lambda: go.scan(lambda c, x: ((c, c), x), A, A),
        r"a carry of the structure \* from the body, got \(\*, \*\)",
    ),
    (
        lambda: go.scan(lambda c, x: ({"h": c["h"][:2]}, x), {"h": A}, A),
        "to give 'carry.h' of type tensor<3xf64>, got tensor<2xf64>; its shape has",
    ),
    (
        lambda: go.scan(lambda c, x: (c.astype("float32"), x), A, A),
        "'carry' of type tensor<3xf64>, got tensor<3xf32>; convert one of them",
    ),
    (
        lambda: go.scan(lambda c, x: (c + x, x), np.zeros((), "int32"), A),
        "'carry' of type tensor<i32>, got tensor<f64>",
    ),
    (
        lambda: go.fori_loop(0, 2.5, lambda i, v: v, A),
        "Python integers as bounds of fori_loop, got int and float",
    ),
]


@pytest.mark.parametrize("fn, message", WRONG, ids=range(len(WRONG)))
def test_what_is_refused(fn: Callable[..., Any], message: str) -> None:
    """At once, and in a trace."""
    with pytest.raises(OpError, match=message):
        fn()
    with pytest.raises(OpError, match=message):
        trace(fn)


def test_bounds_of_a_trace_and_open_extents_are_refused() -> None:
    with pytest.raises(OpError, match=r"bounds of fori_loop, got int and Tensor; the number of st"):
        trace(lambda n: go.fori_loop(0, n, lambda i, v: v, 1.0), go.TensorSpec((), "int32"))
    with pytest.raises(OpError, match=r"'xs' with a first axis of known extent.*declare the ext"):
        trace(lambda x: go.scan(lambda c, x: (c, x), 0.0, x), go.TensorSpec((None, 2)))


# --- passes ---------------------------------------------------------------------------------------


def counts(graph: Graph) -> collections.Counter[str]:
    return collections.Counter(op.operation.name for op in graph.func.entry_block.operations)


def test_written_out_it_is_what_a_python_loop_gives() -> None:
    """The benchmark's lstm: the same ops, with one product for each weight gradient."""
    p, batch, by_hand = workloads.lstm(batch=2, steps=6, width=8, hidden=16)

    def loss(p: Any, x: Any, y: Any) -> Any:
        def step(state: Any, z: Any) -> Any:
            h, c = state
            i, f, g, o = go.split(z + h @ p["wh"], 4, axis=-1)
            c = go.sigmoid(f) * c + go.sigmoid(i) * go.tanh(g)
            h = go.sigmoid(o) * go.tanh(c)
            return (h, c), None

        start = go.zeros((2, 16)), go.zeros((2, 16))
        (h, _), _ = go.scan(step, start, x @ p["wx"] + p["b"])
        return go.cross_entropy(h @ p["w"], y).mean()

    one, other = (
        counts(lowered(traced(workloads.train_step(f), p, *batch), SIMPLIFIED))
        for f in (loss, by_hand)
    )
    assert one == other
    assert one["gradopt.dot_general"] == 6 + 5 + 1 + 5  # steps, back, recurrent weight, the rest


def test_trips_add_products_up_as_one() -> None:
    """A trip has one product for the gradient by a weight, and no sum of zeros."""
    fn, _ = against(lstm, gradient)
    graph = lowered(traced(fn, WEIGHTS, START, X), TRIPS)
    back = next(f for f in graph.module.body.operations if "back_by2" in str(f.name))
    names = collections.Counter(op.operation.name for op in back.entry_block.operations)
    assert names["gradopt.dot_general"] == 2 * 2 + 2  # by h and x, each step; by both weights


def test_a_step_saves_what_its_gradient_reads() -> None:
    """The carry and what tanh gives; neither the captured weight nor what is stacked anyway."""

    def loss(w: Any, x: Any) -> Any:
        return go.scan(lambda c, x: (go.tanh(c @ w + x), x * 2), x[0], x)[0].sum()

    graph = traced(go.grad(loss, argnums=(0, 1)), np.ones((3, 3)), np.ones((4, 3)))
    saving = next(f for f in graph.module.body.operations if "saving" in str(f.name))
    assert [str(t) for t in saving.type.results[2:]] == ["tensor<3xf64>"] * 2


def test_long_loops_are_limited_where_they_have_to_be_written_out() -> None:
    def fn(x: Any) -> Any:
        return go.scan(lambda c, x: (go.tanh(c) + x, None), go.zeros_like(x[0]), x)[0]

    message = (
        r"'gradopt.scan' op expected at most 1600 ops for all steps together, .* because {}, got "
        r"900 steps of 2 ops; "
    )
    graph = trace(fn, go.TensorSpec((900, None)))
    with pytest.raises(PassError, match=message.format("its extents are not all known")):
        lowered(graph, "gradopt-unroll-scans{max-ops=100}")
    graph = trace(fn, go.TensorSpec((900, 2)))
    with pytest.raises(PassError, match=message.format("memory is planned for them")):
        lowered(graph, "gradopt-unroll-scans{max-ops=100 full=true}")
    lowered(graph, "gradopt-unroll-scans{max-ops=100}")
    assert "@lambda_by16" in str(graph)
    graph = trace(fn, go.TensorSpec((9, None)))
    lowered(graph, "gradopt-unroll-scans{limit=2}")
    assert "gradopt.scan" not in str(graph)


def test_unroll_says_how_many_steps_a_trip_has() -> None:
    for unroll, name in (
        (3, "@lambda_0_by3"),
        (1, "@lambda_0,"),
        (False, "@lambda_0,"),
        (True, ""),
    ):
        graph = trace(
            lambda x, unroll=unroll: go.scan(lambda c, x: (c + x, None), x[0], x, unroll=unroll)[0],
            go.TensorSpec((8, 2)),
        )
        text = str(lowered(graph, pipeline.UNROLL))
        assert (name in text) if name else ("gradopt.scan" not in text)
