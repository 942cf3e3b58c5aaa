# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""grad, value_and_grad, vjp and jvp, and the pass behind them, on the reference executor."""

from collections.abc import Callable
from typing import Any

import gradopt as go
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gradopt.dialect import reference
from gradopt.dialect.slicing import ReverseOp
from gradopt.dialect.transcendental import TanhOp
from gradopt.errors import GradientError, PassError

from .helpers import lowered, run_reference, spec

rng = np.random.default_rng(3)


def array(*values: float) -> np.ndarray:
    return np.array(values, np.float64)


def close(got: Any, want: Any, rtol: float = 1e-9) -> None:
    np.testing.assert_allclose(got, want, rtol=rtol, atol=1e-12)


def differentiated(fn: Callable[..., Any], *arrays: np.ndarray) -> str:
    return lowered(go.trace(fn, *map(spec, arrays))).mlir()


# --- sums of contributions ------------------------------------------------------------------------


@pytest.mark.parametrize("uses", range(1, 10))
def test_every_use_counts_once(uses: int) -> None:
    """B50, C001: 1x + 2x + ... + nx has the slope n(n+1)/2."""
    (g,) = run_reference(
        go.grad(lambda x: sum(k * x for k in range(1, uses + 1)).sum()), array(1.0)
    )
    close(g, [uses * (uses + 1) / 2])


def test_sum_of_one_value() -> None:
    """C002: x + x + ... eight times."""
    (g,) = run_reference(go.grad(lambda x: (x + x + x + x + x + x + x + x).sum()), array(1.0))
    close(g, [8.0])


def test_one_contribution_is_not_copied() -> None:
    """B50: the gradient of sum(x * y) is a broadcast and two products, and no sum."""
    text = differentiated(
        go.grad(lambda x, y: (x * y).sum(), argnums=(0, 1)), np.ones(3), np.ones(3)
    )
    assert "gradopt.add" not in text


def test_order_of_contributions_is_fixed() -> None:
    """B50: the same function gives the same text, sums in the same order, every time."""

    def loss(x: Any) -> Any:
        return (go.tanh(x) * go.exp(x) + go.sin(x) / x).sum()

    texts = {differentiated(go.grad(loss), np.ones(3)) for _ in range(3)}
    assert len(texts) == 1


def test_same_argument_twice() -> None:
    """C040: x given in two places gets both contributions."""
    (g,) = run_reference(go.grad(lambda x: (lambda a, b: a * b)(x, x)), np.float64(3))
    close(g, 6.0)


# --- what has no gradient -------------------------------------------------------------------------


def test_unreachable_argument_is_an_error() -> None:
    """B51"""

    def loss(weight: Any, unused: Any) -> Any:
        return (weight * 2).sum()

    with pytest.raises(PassError, match=r"depend on every input.*unreachable 'unused'.*zeros"):
        run_reference(go.grad(loss, argnums=(0, 1)), np.ones(2), np.ones(3))


def test_unreachable_argument_on_request() -> None:
    """B51"""
    got = run_reference(
        go.grad(lambda w, u: (w * 2).sum(), argnums=(0, 1), allow_unused=True),
        np.ones(2),
        np.ones((3, 1)),
    )
    close(got[0], [2, 2])
    close(got[1], np.zeros((3, 1)))


def test_reached_through_ops_without_slope() -> None:
    """A loss that depends on x only by its sign reaches x: the gradient is zeros, no error."""
    (g,) = run_reference(go.grad(lambda x: (go.sign(x) * 3).sum()), array(1, -2))
    close(g, [0, 0])


def test_zero_gradient_costs_nothing() -> None:
    """B53: the part of a loss under stop_gradient leaves no op in the gradient."""
    with_part = differentiated(
        go.grad(lambda x: (x * 2).sum() + (0 * go.stop_gradient(go.tanh(x))).sum()), np.ones(3)
    )
    assert with_part.count("gradopt.tanh") == 1


def test_integer_argument_is_an_error() -> None:
    """B56, C091"""
    with pytest.raises(GradientError, match=r"argument 'count' with dtype int64"):
        run_reference(go.grad(lambda count: count * count), np.int64(3))
    with pytest.raises(GradientError, match=r"argument 'mask' with dtype bool"):
        run_reference(go.grad(lambda x, mask: x.sum(), argnums=1), np.ones(2), np.ones(2, bool))


def test_integer_argument_beside() -> None:
    """C091: an index has no gradient, what it selects has one."""
    (g,) = run_reference(
        go.grad(lambda x, idx: (x[idx] * array(1, 2, 3)).sum()), np.ones(4), np.array([2, 0, 2])
    )
    close(g, [2, 0, 4, 0])


def test_missing_rule_names_all_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    """B53, C145: one error lists every op without a rule, each with its line."""
    monkeypatch.delattr(ReverseOp, "vjp")
    with pytest.raises(PassError) as caught:
        run_reference(go.grad(lambda x: go.flip(go.flip(x)).sum()), np.ones(2))
    faults = caught.value.diagnostics
    assert [f.message.split(";")[0] for f in faults] == [
        "'gradopt.reverse' op expected a gradient rule, got none"
    ] * 2
    assert all(f.file == __file__ and f.line for f in faults)


def test_missing_rule_off_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """B53: no rule is needed where the incoming gradients are known zeros."""
    monkeypatch.delattr(ReverseOp, "vjp")

    def loss(x: Any) -> Any:
        return (x * x).sum() + go.stop_gradient(go.flip(x)).sum(), go.flip(x)

    g, _ = run_reference(go.grad(loss, has_aux=True), array(1, 2))
    close(g, [2, 4])


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (
            lambda self, ct: [],
            r"'gradopt.tanh' op expected its gradient rule to give 1 entries, got 0",
        ),
        (lambda self, ct: [ct.sum()], r"rule to give tensor<2xf64> for operand 0, got tensor<f64>"),
    ],
    ids=["count", "type"],
)
def test_wrong_rule_is_named(rule: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """C146"""
    monkeypatch.setattr(TanhOp, "vjp", rule)
    with pytest.raises(PassError, match=message):
        run_reference(go.grad(lambda x: go.tanh(x).sum()), np.ones(2))


def test_stop_gradient_is_kept_apart() -> None:
    """C041: o1 = stop(x + 1) and o2 = x + 1 are the same numbers, and only one has a slope."""

    def loss(x: Any) -> Any:
        return (go.stop_gradient(x + 1) + (x + 1)).sum()

    (g,) = run_reference(go.grad(loss), array(1, 2))
    close(g, [1, 1])


# --- the transformations --------------------------------------------------------------------------


def test_value_and_grad_of_a_tree() -> None:
    def loss(params: dict[str, Any], batch: tuple[Any, Any]) -> Any:
        x, y = batch
        return ((x @ params["w"] + params["b"] - y) ** 2).mean()

    params = {"w": rng.normal(size=(3, 2)), "b": rng.normal(size=2)}
    batch = (rng.normal(size=(5, 3)), rng.normal(size=(5, 2)))
    graph = lowered(go.trace(go.value_and_grad(loss), params, batch))
    flat = [params["b"], params["w"], *batch]  # dictionaries in the order of their keys
    got = reference.run(graph.module, graph.name, *flat)
    want, gradient = jax.value_and_grad(loss)(params, batch)
    close(got[0], want)
    close(got[1], gradient["b"])
    close(got[2], gradient["w"])
    assert graph.out_tree.num_leaves == 3


def test_argnums_and_keywords() -> None:
    def loss(a: Any, b: Any, *, scale: float = 1.0) -> Any:
        return (a * b * scale).sum()

    got = run_reference(
        lambda a, b: go.grad(loss, argnums=(1, 0))(a, b, scale=3.0), array(1, 2), array(5, 7)
    )
    close(got[0], [3, 6])
    close(got[1], [15, 21])
    close(run_reference(go.grad(loss, argnums=-1), array(1, 2), array(5, 7))[0], [1, 2])
    with pytest.raises(GradientError, match="argnums expected positions of the 2 arguments, got 2"):
        run_reference(go.grad(loss, argnums=2), array(1), array(1))


def test_has_aux() -> None:
    def loss(x: Any) -> Any:
        y = x * x
        return y.sum(), {"y": y, "n": 3}

    gradient, n, y = run_reference(go.grad(loss, has_aux=True), array(1, 2))
    close(gradient, [2, 4])
    close(y, [1, 4])
    assert n == 3
    with pytest.raises(GradientError, match=r"expected to return \(number, aux\)"):
        run_reference(go.grad(lambda x: x.sum(), has_aux=True), np.ones(2))


@pytest.mark.parametrize(
    "loss", [lambda x: x, lambda x: (x.sum(), x), lambda x: x.sum().astype("int32"), lambda x: ()]
)
def test_loss_must_be_one_number(loss: Any) -> None:
    with pytest.raises(GradientError, match="expected one floating-point number as result, got"):
        run_reference(go.grad(loss), np.ones(2))


def test_vjp_of_several_results() -> None:
    """Cotangents in the structure of the result; integers have none; None stands for zero."""

    def f(x: Any) -> Any:
        return {"a": go.exp(x), "b": (x * 2, x.argmax())}

    def pulled(x: Any, ct: Any) -> Any:
        _, pullback = go.vjp(f, x)
        return pullback({"a": ct, "b": (ct, None)}), pullback({"a": None, "b": (ct, None)})

    x, ct = array(0.5, 1), array(1, 10)
    got = run_reference(pulled, x, ct)
    close(got[0], ct * (np.exp(x) + 2))
    close(got[1], ct * 2)


def test_vjp_checks_cotangents() -> None:
    def pulled(ct: Any) -> Callable[..., Any]:
        return lambda x: go.vjp(lambda v: (v, v.sum()), x)[1](ct)

    with pytest.raises(GradientError, match="with the structure of its result"):
        run_reference(pulled(1.0), np.ones(2))
    with pytest.raises(GradientError, match=r"cotangent 0 of type .*2.*f64.*got"):
        run_reference(pulled((np.ones(3), 1.0)), np.ones(2))


def test_jvp_agrees_with_jax() -> None:
    """B55"""

    def f(n: Any, x: Any, y: Any) -> Any:
        return n.sin(x * y) + x**3, (n.exp(x) / y).sum()

    x, y, dx, dy = (rng.uniform(0.5, 2, (3,)) for _ in range(4))
    got = run_reference(
        lambda a, b, da, db: go.jvp(lambda u, v: f(go, u, v), (a, b), (da, db)), x, y, dx, dy
    )
    want = jax.tree.leaves(jax.jvp(lambda u, v: f(jnp, u, v), (x, y), (dx, dy)))
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        close(a, b)


def test_jvp_checks_tangents() -> None:
    with pytest.raises(GradientError, match="tangents with the structure of the primals"):
        run_reference(lambda x: go.jvp(go.tanh, (x,), (x, x)), np.ones(2))
    with pytest.raises(GradientError, match="expected tangent 0 of type"):
        run_reference(lambda x: go.jvp(go.tanh, (x,), (x.sum(),)), np.ones(2))


def test_integers_beside_primals() -> None:
    """Integers have no gradient and take no tangent: None."""
    x, i, pick = array(1, 2, 3), np.array([0, 1]), lambda x, i: x[i] ** 2
    graph = go.trace(lambda x, i: go.vjp(pick, x, i)[1](array(1, 1)), spec(x), spec(i))
    assert graph.out_tree.num_leaves == 1
    (g,) = run_reference(lambda x, i: go.vjp(pick, x, i)[1](array(1, 1))[0], x, i)
    close(g, [2, 4, 0])
    (_, d) = run_reference(lambda x, i: go.jvp(pick, (x, i), (x, None)), x, i)
    close(d, [2, 8])
    for tangents, message in (((x, i), "None for integers and booleans"), (x, "tuple of tangents")):
        with pytest.raises(GradientError, match=message):
            go.trace(lambda x, t=tangents: go.jvp(pick, (x, i), t), spec(x))
    with pytest.raises(GradientError, match="at least one floating-point argument"):
        go.trace(lambda i: go.vjp(lambda i: i + 1, i)[0], spec(i))


def test_stop_gradient_of_a_tree() -> None:
    def loss(p: Any) -> Any:
        still = go.stop_gradient({"a": p["a"], "b": (p["b"],)})
        return (still["a"] * p["b"] + still["b"][0] * p["a"]).sum()

    (ga, gb) = run_reference(
        lambda a, b: tuple(go.grad(loss)({"a": a, "b": b}).values()), array(2.0), array(3.0)
    )
    close(ga, [3])
    close(gb, [2])


def test_derivative_outside_a_graph() -> None:
    """B38: outside a trace the function runs at once."""
    close(go.grad(lambda x: (x * x).sum())(np.ones(2)), [2, 2])


# --- nesting --------------------------------------------------------------------------------------


def polynomial(x: Any) -> Any:
    return (x**5).sum()


@pytest.mark.parametrize(
    ("order", "want"), [(1, 5.0), (2, 20.0), (3, 60.0), (4, 120.0), (5, 120.0), (6, 0.0)]
)
def test_higher_orders(order: int, want: float) -> None:
    """B55, C044: d^n x^5 / dx^n at 1."""
    fn: Callable[..., Any] = polynomial
    for _ in range(order):
        fn = go.grad(fn)
    close(run_reference(fn, np.float64(1))[0], want)


def test_second_order_elementwise() -> None:
    """C044: the second derivative of sum(x^4) is 12 x^2."""
    x = array(0.5, 1.5, 2.5, 3.5)
    (g,) = run_reference(go.grad(lambda v: go.grad(lambda u: (u**4).sum())(v).sum()), x)
    close(g, [3, 27, 75, 147])


def test_gradient_reaches_the_cotangent() -> None:
    """C011: g = v * dy/dx of y = log(x), differentiated by v and by x."""

    def g(v: Any, x: Any) -> Any:
        return go.vjp(go.log, x)[1](v)

    got = run_reference(go.grad(g, argnums=(0, 1)), np.float64(2), np.float64(0.5))
    close(got[0], 2.0)
    close(got[1], -8.0)


def test_perturbations_are_told_apart() -> None:
    """d/dx (x * d/dy (x + y)) is 1, not 2."""
    (g,) = run_reference(
        go.grad(lambda x: x * go.grad(lambda y: x + y)(np.float64(3))), np.float64(2)
    )
    close(g, 1.0)


def test_captured_values_have_gradients() -> None:
    """A function may use tensors of the functions around it, and is differentiated by them too."""

    def outer(w: Any, x: Any) -> Any:
        inner = go.grad(lambda v: (w * v**3).sum())(x)
        return (inner * w).sum()

    w, x = array(2, 3), array(1, 5)
    got = run_reference(go.grad(outer, argnums=(0, 1)), w, x)
    close(got[0], 6 * w * x**2)
    close(got[1], 6 * w**2 * x)


def model(n: Any, w: Any, x: Any) -> Any:
    hidden = n.tanh(x @ w)
    return (hidden * n.exp(-hidden)).sum()


@pytest.mark.parametrize("way", ["reverse over reverse", "forward over reverse", "jvp of vjp"])
def test_hessian_vector_product(way: str) -> None:
    """B55: three compositions, one product, that of JAX."""
    w, x, t = rng.normal(size=(3, 2)), rng.normal(size=(4, 3)), rng.normal(size=(3, 2))

    def gradient(v: Any, x: Any) -> Any:
        return go.grad(lambda u: model(go, u, x))(v)

    def hvp(w: Any, x: Any, t: Any) -> Any:
        if way == "reverse over reverse":
            return go.grad(lambda v: (gradient(v, x) * t).sum())(w)
        if way == "forward over reverse":
            return go.jvp(lambda v: gradient(v, x), (w,), (t,))[1]
        return go.jvp(lambda v: go.vjp(lambda u: model(go, u, x), v)[1](1.0), (w,), (t,))[1]

    want = jax.jvp(jax.grad(lambda v: model(jnp, v, x)), (w,), (t,))[1]
    close(run_reference(hvp, w, x, t)[0], want, rtol=1e-8)


def test_gradient_penalty_of_a_convolution() -> None:
    """C010: p = |d sum(conv(x, w)^2) / dx|^2, differentiated by w."""
    x, w = rng.normal(size=(1, 1, 4, 4)), rng.normal(size=(1, 1, 2, 2))

    def penalty(w: Any, x: Any) -> Any:
        slope = go.grad(lambda v: (go.conv(v, w, layout="channels_first") ** 2).sum())(x)
        return (slope**2).sum()

    def jax_conv(v: Any, w: Any) -> Any:
        return jax.lax.conv_general_dilated(v, w, (1, 1), "VALID")

    def jax_penalty(w: Any, x: Any) -> Any:
        return (jax.grad(lambda v: (jax_conv(v, w) ** 2).sum())(x) ** 2).sum()

    close(run_reference(go.grad(penalty), w, x)[0], jax.grad(jax_penalty)(w, x), rtol=1e-8)


def test_gradient_of_a_compiled_looking_call() -> None:
    """Calls of the same function share its derivative."""

    def block(x: Any) -> Any:
        return go.grad(lambda v: go.sin(v).sum())(x)

    text = differentiated(lambda x: block(x) + block(x * 2), np.ones(3))
    assert text.count("func.func") == 1


# --- points where gradients go wrong --------------------------------------------------------------

NUMERIC = {
    "C013 integer beside float": (
        lambda q: (q / go.sqrt(go.constant(np.int64(5)).astype("float32"))).sum(),
        np.ones((5, 5), np.float32),
        np.full((5, 5), 1 / np.sqrt(5)),
    ),
    "C014 no narrowing": (lambda x: (x * x).sum(), array(1e-60), [2e-60]),
    "C058 product, one zero": (lambda x: x.prod(axis=1).sum(), np.array([[4.0, 0]]), [[0, 4]]),
    "C058 product, two zeros": (lambda x: x.prod(), array(4, 0, 0), [0, 0, 0]),
    "C058 product, leading zero": (lambda x: x.prod(), array(0, 2, 3), [6, 0, 0]),
    "C061 norm at zero": (lambda x: go.norm(x), array(0, 0), [0, 0]),
    "C061 squared norm at zero": (lambda x: go.norm(x) ** 2, array(0, 0), [0, 0]),
    "C062 std of a constant": (lambda x: x.std(), array(1, 1), [0, 0]),
    "C062 std of one number": (lambda x: x.std(), array(0.5), [0]),
    "C064 power zero": (lambda x: ((x - go.floor(x)) ** 0).sum(), array(1), [0]),
    "C065 exponent at base zero": (
        lambda b: go.pow(array(0, 2), b).sum(),
        array(1, 1),
        [0, 2 * np.log(2)],
    ),
    "C077 relu at zero": (lambda x: go.relu(x).sum(), array(-1, 0, 1e-40, 2), [0, 0, 1, 1]),
    "C077 where at zero": (lambda x: go.where(x > 0, x, 0.0).sum(), array(-1, 0, 2), [0, 0, 1]),
    "C079 clip at its bounds": (
        lambda x: x.clip(-1, 1).sum(),
        array(-2, -1, 0, 1, 2),
        [0, 1, 1, 1, 0],
    ),
    "C082 centred": (lambda x: (x - x.mean()).sum(), array(1, 2, 3, 4), [0, 0, 0, 0]),
    "C082 max and itself": (lambda x: (x.max() + x).sum(), array(2, 3), [1, 3]),
    "C094 softmax of nothing": (lambda x: go.softmax(x).sum(), np.ones((0, 5)), np.ones((0, 5))),
    "C094 softmax over nothing": (
        lambda x: go.log_softmax(x).sum(),
        np.ones((3, 0)),
        np.ones((3, 0)),
    ),
    "C097 broadcast against nothing": (
        lambda b: (go.constant(np.ones((4, 0))) + b[:, None]).sum(),
        np.ones(4),
        np.zeros(4),
    ),
    "C098 mean of nothing": (lambda x: x.mean(), np.ones(0), np.ones(0)),
    "C113 column": (
        lambda w: (go.constant(np.ones((3, 5))) @ w)[:, 0].mean(),
        np.ones((5, 7)),
        np.eye(1, 7).repeat(5, axis=0),
    ),
    **{
        f"C092 {name} of 0-d": (lambda x, name=name: getattr(go, name)(x), np.float64(1), 1.0)
        for name in ("prod", "sum", "max", "mean")
    },
}


@pytest.mark.parametrize("case", NUMERIC, ids=lambda c: c.replace(" ", "-"))
def test_gradient_at(case: str) -> None:
    loss, x, want = NUMERIC[case]
    (g,) = run_reference(go.grad(loss), np.asarray(x))
    assert (g.shape, g.dtype) == (np.shape(want), np.asarray(x).dtype)
    np.testing.assert_allclose(g, want, rtol=1e-6, atol=1e-12)


def test_dot_product() -> None:
    """C016: loss = u . (W v)"""
    w, u, v = rng.normal(size=(10, 10)), rng.normal(size=10), rng.normal(size=10)
    value, g = run_reference(go.value_and_grad(lambda w: go.dot(u, w @ v)), w)
    close(value, u @ w @ v)
    close(g, np.outer(u, v))


def test_stride_and_dilation_are_not_swapped() -> None:
    """C089"""
    x = array(7, 3, 3, 2).reshape(1, 2, 2)
    w = array(3, 6, 4, 2).reshape(2, 1, 2).transpose(1, 0, 2).reshape(1, 2, 2)

    def loss(x: Any, w: Any) -> Any:
        y = go.conv(x, w, 2, padding=1, dilation=2, layout="channels_first")
        return y.sum(), y

    dx, dw, y = run_reference(go.grad(loss, argnums=(0, 1), has_aux=True), x, w)
    assert np.isfinite(y).all()
    want = jax.grad(
        lambda x, w: jax.lax.conv_general_dilated(
            x, w, (2,), [(1, 1)], rhs_dilation=(2,), dimension_numbers=("NCH", "OIH", "NCH")
        ).sum(),
        argnums=(0, 1),
    )(x, w)
    close(dx, want[0])
    close(dw, want[1])


def test_deep_chain() -> None:
    """C128: no recursion over the depth of a graph, in tracing, differentiation or printing."""
    depth = 1200

    def loss(y: Any) -> Any:
        for _ in range(depth):
            y = y + 0.0001 * y
        return y.sum()

    (g,) = run_reference(go.grad(loss), array(1.0))
    close(g, [1.0001**depth], rtol=1e-6)
