# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Compiled functions inside traces: one op each, and the numbers of the plain function.

Most tests compare expressions (tests/dags.py): equal ones give equal bits. More random programs:
GRADOPT_RANDOM_COMPOSED=500 in the environment.
"""

import os
import random
from collections.abc import Callable
from typing import Any

import gradopt as go
import numpy as np
import pytest
from gradopt.dialect.auxiliary import auxiliary_inputs
from gradopt.dialect.control import symbols
from gradopt.dialect.mlir import func, ir
from gradopt.errors import ArgumentError, OpError, PassError
from gradopt.lowering import pipeline
from gradopt.lowering.inline import callee_of
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from .dags import same
from .helpers import run_reference
from .random_programs import INDEXED, LARGEST, OPS, Step, arguments, program, programs

PROGRAMS = int(os.environ.get("GRADOPT_RANDOM_COMPOSED", "12"))
IS_CAMPAIGN = "GRADOPT_RANDOM_COMPOSED" in os.environ
SETTINGS = settings(
    max_examples=PROGRAMS,
    deadline=None,
    derandomize=not IS_CAMPAIGN,
    phases=[p for p in Phase if p not in (Phase.shrink, Phase.explain)],
    suppress_health_check=list(HealthCheck),
    print_blob=True,
    database=None,
)


# --- random programs ------------------------------------------------------------------------------


def run_steps(todo: list[Step], values: list[Any], ids: Any) -> list[Any]:
    """`values`, and what the steps make."""
    for step in todo:
        _, _, rule = OPS[step.name]
        operands = [values[-1 - i % len(values)] for i in step.operands]
        positions = [ids] if step.name in INDEXED else []
        result = rule(go, *operands, *positions, step.number)
        if result is None or result.size > LARGEST or 0 in result.shape:
            result = go.tanh(operands[0])
        values = [*values, result]
    return values


def in_parts(todo: list[Step], rng: random.Random, depth: int = 0) -> Callable[..., Any]:
    """The steps as compiled functions of several, within each other."""
    if len(todo) == 1 or depth == 3:
        return lambda values, ids: run_steps(todo, values, ids)
    cut = rng.randrange(1, len(todo))
    first, second = in_parts(todo[:cut], rng, depth + 1), in_parts(todo[cut:], rng, depth + 1)

    def both(values: list[Any], ids: Any) -> Any:
        return second(first(values, ids), ids)

    return go.compile(both, inline_limit=rng.choice([0, 0, 3])) if rng.random() < 0.7 else both


def composed(todo: list[Step], seed: int) -> Callable[..., Any]:
    parts = in_parts(todo, random.Random(seed))

    def run(*inputs: Any) -> Any:
        *values, ids = inputs
        last = parts(values, ids)[len(values) :][-3:]
        loss = sum(go.sum(go.tanh(v) * (i + 1)) for i, v in enumerate(last))
        return loss, last

    return run


def first_order(fn: Callable[..., Any]) -> Callable[..., Any]:
    return go.value_and_grad(fn, (0, 1, 2, 3), has_aux=True, allow_unused=True)


def second_order(fn: Callable[..., Any]) -> Callable[..., Any]:
    def size(*xs: Any) -> Any:
        _, gradients = first_order(fn)(*xs)
        return sum((g * g).sum() for g in gradients)

    return go.value_and_grad(size, (0, 1, 2, 3), allow_unused=True)


@SETTINGS
@given(programs(4, 9), st.integers(0, 1 << 30))
def test_random_programs(todo: list[Step], seed: int) -> None:
    """B17, B19: values, gradients and their gradients are the plain function's expressions."""
    xs = [x if x.dtype == np.int32 else x.astype(np.float32) for x in arguments()]
    one, other = program(go, todo), composed(todo, seed)
    assert same(one, other, *xs)
    assert same(first_order(one), first_order(other), *xs)
    assert same(second_order(one), second_order(other), *xs)


# --- one op ---------------------------------------------------------------------------------------

ORDERS: dict[str, Callable[[Any], Any]] = {
    "value": lambda f: f,
    "gradient": lambda f: go.grad(f),
    "second": lambda f: go.grad(lambda x: (go.grad(f)(x) ** 2).sum()),
    "jvp": lambda f: lambda x: go.jvp(f, (x,), (x,)),
}
X = np.arange(4, dtype=np.float32) + 0.5


DERIVED = "gradopt-differentiate,symbol-dce"


def whole(fn: Callable[..., Any], **options: Any) -> Any:
    """`fn` compiled, a call however small it is."""
    return go.compile(fn, inline_limit=0, **options)


def layer(p: Any, x: Any) -> Any:
    h = go.tanh(x @ p["w"] + p["b"])
    return go.layer_norm(h, p["g"]) + x * go.sin(x)


def parameters(count: int = 3) -> list[dict[str, np.ndarray]]:
    one = {"w": np.ones((4, 4)), "b": np.ones(4), "g": np.ones(4)}
    return [{n: a.astype(np.float32) for n, a in one.items()} for _ in range(count)]


def stacked(fn: Callable[..., Any]) -> Callable[..., Any]:
    def loss(ps: Any, x: Any) -> Any:
        for p in ps:
            x = fn(p, x)
        return (x * x).sum()

    return loss


def calls_of(graph: go.Graph, passes: str = "") -> dict[str, list[str]]:
    """The functions of a graph's module after passes, with the functions they call."""
    with graph.context:
        module = ir.Module.parse(graph.mlir(locations=True))
        pipeline.run(module, passes)
        return {
            name: [
                callee_of(op)
                for op in function.entry_block.operations
                if isinstance(op, func.CallOp)
            ]
            for name, function in symbols(module).items()
        }


def test_a_call_is_one_op() -> None:
    """B17: one private function for three calls; in the derivative one forward and one backward,
    derived once, and one call of each for each call.
    """
    traced = []

    def counted(p: Any, x: Any) -> Any:
        traced.append(1)
        return layer(p, x)

    graph = go.trace(go.value_and_grad(stacked(whole(counted))), parameters(), X[None], name="main")
    assert len(traced) == 1
    assert calls_of(graph) == {"main": [], "loss": ["counted"] * 3, "counted": []}
    after = calls_of(graph, "gradopt-differentiate,symbol-dce")
    pairs = ["counted_forward"] * 2 + ["counted_forward_"]
    # the first layer's input is not differentiated by: a pair of its own
    assert sorted(after["loss_vjp"]) == sorted(
        [*pairs, "counted_backward", "counted_backward", "counted_backward_"]
    )
    assert len(after) == 6


def test_one_pair_for_all_calls() -> None:
    """B17"""
    gradient = go.value_and_grad(stacked(whole(layer)), (0, 1))
    after = calls_of(go.trace(gradient, parameters(), X[None], name="main"), DERIVED)
    assert after["loss_vjp"] == ["layer_forward"] * 3 + ["layer_backward"] * 3


def test_kinds_of_calls_have_pairs_of_their_own() -> None:
    """B17: by what is differentiated, and which results have a cotangent."""

    def two(x: Any, y: Any) -> Any:
        return go.sin(x) * y, go.cos(y) * x

    def loss(x: Any, y: Any) -> Any:
        f = whole(two)
        a, b = f(x, y)
        c, _ = f(x, go.stop_gradient(y))
        return (a * b * c).sum()

    after = calls_of(go.trace(go.grad(loss), X, X, name="main"), DERIVED)
    assert sum("backward" in name for name in after) == 2


def check(one: Callable[..., Any], other: Callable[..., Any]) -> None:
    """Values, first and second derivatives and tangents are the same expressions."""
    for name, order in ORDERS.items():
        assert same(order(one), order(other), X), name


@go.custom_vjp
def own_rule(x: Any) -> Any:
    return go.exp(x)


own_rule.defvjp(lambda x: (go.exp(x), x), lambda r, ct: (ct * go.sin(r),))


def with_rules(x: Any) -> Any:
    inner = go.checkpoint(lambda y: go.sin(y) * y)
    return inner(own_rule(x)) + go.stop_gradient(go.tanh(x)) * x


def tangled(a: Any, b: Any) -> Any:
    t = go.sin(a) * b + a * a
    return t, t, a, 3.0, {"n": None, "b": b * 2}


def untangled(fn: Callable[..., Any]) -> Callable[..., Any]:
    def run(x: Any) -> Any:
        t, u, a, k, rest = fn(x, x)
        return (t * u * a * k + rest["b"]).sum()

    return run


def summed(x: Any, axis: int, scale: float) -> Any:
    return go.cumsum(x * scale, axis) * x


def in_checkpoint(fn: Callable[..., Any]) -> Callable[..., Any]:
    kept = go.checkpoint(fn, policy=go.checkpoint_policies.dots_saveable)
    return lambda x: kept(x).sum()


def twice(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: fn(fn(x)).sum()


def plain(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return fn


def product(x: Any) -> Any:
    return go.sin(x) * go.exp(x) + x


def different(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: (fn(x, 0, 0.1) + fn(x, 0, 2) + fn(x, scale=0.5, axis=0)).sum()


def with_array(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: fn(X, x).sum()


COMPOSED: dict[str, Callable[..., Callable[..., Any]]] = {
    "C040 an operand twice, results twice, arguments returned": lambda c: untangled(c(tangled)),
    "C041, B57 rules inside": lambda c: twice(c(with_rules)),
    "compiled inside compiled": lambda c: twice(c(lambda x: c(with_rules)(x) * go.sin(x) + x)),
    "inside a checkpoint": lambda c: in_checkpoint(c(with_rules)),
    "a gradient inside": lambda c: twice(c(go.grad(lambda y: with_rules(y).sum()))),
    "numbers are part of the signature": lambda c: different(c(summed)),
    "arrays are operands": lambda c: with_array(c(lambda w, x: go.sin(x * w) + go.tanh(x))),
    "donation and arenas do not apply": lambda c: twice(c(product, donate=0, static_alloc=True)),
    "a policy does not apply": lambda c: twice(c(product, remat="all")),
    "a budget does not apply": lambda c: twice(c(product, memory_budget=0.5)),
}
"""By what a function is compiled -> a function with compiled ones in it."""


@pytest.mark.parametrize("name", COMPOSED)
def test_composed(name: str) -> None:
    """B17, B19"""
    check(COMPOSED[name](plain), COMPOSED[name](whole))


def captured(compiled: Callable[[Any], Any]) -> Callable[..., Any]:
    """A function that uses tensors of the one around it, which change between its calls."""

    def run(x: Any) -> Any:
        h = [go.cos(x)]
        f = compiled(lambda y: go.sin(y) * h[0] * h[0] + h[0])
        a = f(x)
        h[0] = a + 1
        return (a * f(x)).sum()

    return run


def test_captured_tensors() -> None:
    """B17: they are operands; each call sees those of its time."""
    check(captured(plain), captured(whole))


@pytest.mark.parametrize("order", [1, 2, 3, 4, 5])
def test_fifth_power(order: int) -> None:
    """C044, B19: d^n x^5 / dx^n at 1, each derivative of a compiled function, compiled again."""
    fn = whole(lambda x: x**5)
    for _ in range(order):
        fn = whole(go.grad(fn))
    (found,) = run_reference(fn, np.float64(1))
    assert found == [5, 20, 60, 120, 120][order - 1]


def test_fourth_powers() -> None:
    """C044"""
    fn = whole(lambda x: (x**4).sum())
    second = whole(go.grad(lambda x: whole(go.grad(fn))(x).sum()))
    (found,) = run_reference(second, np.array([0.5, 1.5, 2.5, 3.5]))
    np.testing.assert_array_equal(found, [3, 27, 75, 147])


def test_unreachable_arguments() -> None:
    """B51: as in the plain function: an input that no result depends on is an error, and one that
    another result depends on.
    """
    f = whole(lambda x, y: (go.sin(x) * x, go.cos(y) * y))
    graph = go.trace(go.grad(lambda x, y: f(x, y)[0].sum(), 1), X, X)
    with pytest.raises(PassError, match="unreachable 'y'"):
        pipeline.run(graph.module, DERIVED)
    both = go.grad(lambda x, y: f(x, y)[0].sum(), (0, 1), allow_unused=True)
    want = go.grad(lambda x, y: (go.sin(x) * x).sum(), (0, 1), allow_unused=True)
    assert same(both, want, X, X)


# --- small functions, names -----------------------------------------------------------------------


def test_inline_limit() -> None:
    """B04: functions with at most so many ops are no calls; nor are those with tags, whose values
    are asked for by name.
    """

    def three(x: Any) -> Any:
        return go.sin(go.cos(go.tanh(x)))

    for limit, count in ((2, 2), (3, 1)):
        f = go.compile(three, inline_limit=limit)
        graph = go.trace(lambda x, f=f: f(f(x)), X, name="main")
        assert len(calls_of(graph)) == count
    tagged = whole(lambda x: go.sin(go.tag(go.cos(x), "inside")))
    graph = go.trace(lambda x: tagged(x) * tagged(x), X, name="main")
    assert list(calls_of(graph)) == ["main"]
    assert "%sin_1" in str(graph)
    assert '"cos_1"' in graph.mlir(locations=True)
    for wrong in (-1, 2.5, True, "all"):
        with pytest.raises(ArgumentError, match="inline_limit expected a number of ops, 0 or more"):
            go.compile(three, inline_limit=wrong)


def test_names() -> None:
    """B17: readable names of inputs and results; calls are named after what they call, in the
    scopes that are open; ops inside have names of their own.
    """
    f = whole(lambda p, x: {"y": go.tanh(x @ p["w"]), "all": (x, x + 1)})
    assert f.input_names({"w": np.ones((4, 4))}, X) == ["p.w", "x"]
    assert f.output_names({"w": np.ones((4, 4))}, X) == ["result.all.0", "result.all.1", "result.y"]

    def run(p: Any, x: Any) -> Any:
        for i in range(2):
            with go.name_scope(f"layer{i}"):
                x = g(p, x)["y"]
        return x

    def block(p: Any, x: Any) -> Any:
        return {"y": go.tanh(x @ p["w"])}

    g = whole(block)
    text = go.trace(run, {"w": np.ones((4, 4))}, np.ones((2, 4))).mlir(locations=True)
    assert '"layer0.block"' in text
    assert '"layer1.block"' in text
    assert '"tanh"' in text
    assert "layer0.tanh" not in text


def test_objects_as_arguments() -> None:
    """A method, and other arguments that are no arrays: part of what is traced, as they may be
    others at each call.
    """

    class Layer:
        def __init__(self, scale: float) -> None:
            self.scale = scale

        @go.compile
        def __call__(self, x: Any) -> Any:
            return go.sin(go.cos(x) * self.scale) * x

    one, two = Layer(1.0), Layer(2.0)
    assert same(
        lambda x: one(two(x)),
        lambda x: go.sin(go.cos(go.sin(go.cos(x) * 2.0) * x) * 1.0) * (go.sin(go.cos(x) * 2.0) * x),
        X,
    )


def test_a_failed_trace_leaves_nothing() -> None:
    """B25"""
    f = whole(lambda x: go.sin(go.cos(x)) @ np.ones((7, 7), np.float32))

    def run(x: Any) -> Any:
        with pytest.raises(OpError):
            f(x)
        return go.tanh(x)

    graph = go.trace(run, X, name="main")
    assert list(calls_of(graph)) == ["main"]


# --- graphs and states ----------------------------------------------------------------------------


def graph_of(name: str = "affine") -> go.Graph:
    graph = go.Graph(name)
    a, b = graph.input("a", 4), graph.auxiliary("b", 4)
    graph.output(go.sin(a) * b + a, a * b)
    return graph


def test_graphs_in_a_trace() -> None:
    """B01, B17: a compiled graph is a call too, of a copy of its functions; auxiliary inputs get no
    gradient.
    """
    f = go.compile(graph_of())

    def affine(a: Any, b: Any) -> Any:
        b = go.stop_gradient(b)
        return go.sin(a) * b + a, a * b

    def use(fn: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x: sum(v.sum() for v in fn(x, fn(x, go.cos(x))[0]))

    check(use(affine), use(f))
    traced = go.trace(use(f), X, name="affine")
    assert list(calls_of(traced)) == ["affine", "affine_0"]
    assert f.input_names() == ["a", "b"]
    assert f.auxiliary_names() == ["b"]
    assert f.output_names() == ["add", "mul_1"]
    with pytest.raises(ArgumentError, match=r"argument 'a' of type tensor<4xf32>, got tensor<3"):
        go.trace(lambda x: f(x, x), X[:3])
    with pytest.raises(ArgumentError, match="expected 2 arguments"):
        go.trace(lambda x: f(x), X)


def normed(x: Any, gamma: Any, beta: Any, mean: Any, var: Any, training: bool = True) -> Any:
    y, state = go.batch_norm(x, gamma, beta, running=(mean, var), training=training)
    return go.relu(y).sum(), state


BATCH = [np.ones((8, 3), np.float32), *[np.ones(3, np.float32)] * 4]


def test_auxiliary_inputs() -> None:
    """B17: running statistics are states where they are used as nothing else, in whatever function
    of the module.
    """

    def step(x: Any, gamma: Any, beta: Any, mean: Any, var: Any) -> Any:
        loss = go.value_and_grad(whole(normed), (1, 2), has_aux=True)
        (_, state), (dg, db) = loss(x, gamma, beta, mean, var)
        return gamma - dg, beta - db, state

    def infer(*arguments: Any) -> Any:
        return normed(*arguments, training=False)

    def shrunk(*arguments: Any) -> Any:
        mean = arguments[3]
        return normed(*arguments)[0] + (mean * mean).sum()

    def cast(x: Any, gamma: Any, beta: Any, mean: Any, var: Any) -> Any:
        stopped = go.stop_gradient(mean).reshape(3)
        return normed(x, gamma, beta, stopped, var)[0], mean > 0

    want = {normed: [3, 4], step: [3, 4], infer: [3, 4], shrunk: [4], cast: [3, 4]}
    for fn, positions in want.items():
        assert auxiliary_inputs(go.trace(fn, *BATCH)) == positions, fn


def test_declared_auxiliary_arguments() -> None:
    """B17: all arrays of an argument; in a trace no gradient goes there."""
    f = whole(lambda p, s: go.sin(p["w"]) * s["a"] + s["b"] * p["w"], auxiliary=1)
    assert f.auxiliary_names({"w": X}, {"a": X, "b": X}) == ["s.a", "s.b"]
    found = go.grad(lambda x: f({"w": x}, {"a": x * 2, "b": x}).sum())
    stop = go.stop_gradient
    assert same(found, go.grad(lambda x: (go.sin(x) * stop(x * 2) + stop(x) * x).sum()), X)
    with pytest.raises(ArgumentError, match="auxiliary expected positions of the 2 arguments"):
        whole(lambda p, s: p, auxiliary=2).trace(X, X)


# --- signatures -----------------------------------------------------------------------------------


def test_values_that_are_part_of_the_signature() -> None:
    """C028: calls that differ in an attribute only are not one; True, 1 and 1.0 are three values,
    and so are 0.0 and -0.0.
    """
    both = whole(lambda x, k: go.tril(x, k) * 1.5 + go.sin(x))
    a = np.ones((2, 2))
    upper, lower = run_reference(lambda a: (both(a, 1), both(a, -1)), a)
    np.testing.assert_allclose(upper - np.sin(1), [[1.5, 1.5], [1.5, 1.5]])
    np.testing.assert_allclose(lower - np.sin(1), [[0, 0], [1.5, 0]])
    scaled = whole(lambda x, k: go.sin(x) * k)
    values = (True, 1, 1.0, 0.0, -0.0, np.float32(1), np.int32(1))
    graph = go.trace(lambda x: [scaled(x, k) for k in values], X, name="main")
    assert len(calls_of(graph)) == 1 + len(values)
    again = go.trace(lambda x: [scaled(x, k) for k in values * 2], X, name="main")
    assert len(calls_of(again)) == 1 + len(values)


def test_shapes_are_part_of_the_signature() -> None:
    """C029: one function for each shape and structure, in a trace too."""
    f = whole(lambda x: go.sin(x[:, :-1]) * 2)
    x, y = np.ones((2, 3)), np.ones((5, 7))
    graph = go.trace(lambda x, y: (f(x), f(y), f(x)), x, y, name="main")
    assert calls_of(graph)["main"] == ["lambda", "lambda_0", "lambda"]
    found = run_reference(lambda x, y: (f(x), f(y)), x, y)
    assert [a.shape for a in found] == [(2, 2), (5, 6)]


def test_one_array_in_two_places() -> None:
    """C040: a rule that gives 3 for the first place and nothing for the second gives 3."""

    @go.custom_vjp
    def product(a: Any, b: Any) -> Any:
        return a * b

    product.defvjp(lambda a, b: (a * b, ()), lambda residuals, ct: (3 * ct, None))
    f = whole(lambda a, b: product(a, b) + 0 * go.sin(go.stop_gradient(a)))
    assert run_reference(go.grad(lambda x: f(x, x)), np.float64(3))[0] == 3
    g = whole(lambda a, b: a * b + 0 * go.sin(go.stop_gradient(a)))
    assert run_reference(go.grad(lambda x: g(x, x)), np.float64(3))[0] == 6


def test_states_of_other_traces() -> None:
    """A compiled function keeps nothing of a trace: it is traced anew for another module."""
    traced = []

    def counted(x: Any) -> Any:
        traced.append(1)
        return go.sin(go.cos(x)) * x

    f = whole(counted)
    first, second = (go.trace(lambda x: f(f(x)), X, name="main") for _ in range(2))
    assert len(traced) == 2
    assert str(first) == str(second)
