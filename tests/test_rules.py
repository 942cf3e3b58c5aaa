# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Gradients given by the user, checkpoints, intermediates, matrices of derivatives."""

from typing import Any

import gradopt as go
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gradopt.errors import GradientError, OpError, PassError
from gradopt.lowering import pipeline

from .helpers import lowered, run_reference, spec

X = np.array([0.5, 1.5, 2.5])


def close(got: Any, want: Any) -> None:
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


# --- custom_vjp -----------------------------------------------------------------------------------


def clipped() -> Any:
    """x * s, with the gradient by x clipped and none by s."""

    @go.custom_vjp
    def product(x: Any, s: Any) -> Any:
        return x * s

    def forward(x: Any, s: Any) -> Any:
        return x * s, {"s": s}

    def backward(residuals: Any, ct: Any) -> Any:
        return go.clip(ct * residuals["s"], -1, 1), None

    product.defvjp(forward, backward)
    return product


def test_custom_gradient_is_used() -> None:
    """B57: what the rule says, not what the function does; None counts as zeros."""
    got = run_reference(
        go.grad(lambda x, s: (clipped()(x, s) * 5).sum(), (0, 1)), X, np.array([1, -1, 0.1])
    )
    close(got, [[1, -1, 0.5], [0, 0, 0]])


def test_custom_function_gives_its_value() -> None:
    close(run_reference(clipped(), X, X), [X * X])


def square_with_rule() -> Any:
    @go.custom_vjp
    def square(x: Any) -> Any:
        return x * x

    square.defvjp(lambda x: (x * x, x), lambda x, ct: (2 * x * ct,))
    return square


def test_custom_gradient_of_second_order() -> None:
    """B55, B57: through the forward and backward functions; jvp as well."""
    square = square_with_rule()

    def loss(x: Any) -> Any:
        return (square(x) * x).sum()

    close(run_reference(go.grad(lambda x: go.grad(loss)(x).sum()), X), [6 * X])
    close(run_reference(lambda x: go.jvp(loss, (x,), (x,)), X), [(X**3).sum(), (3 * X**3).sum()])


def test_custom_gradient_of_trees_and_integers() -> None:
    @go.custom_vjp
    def pick(table: dict[str, Any], ids: Any) -> Any:
        return {"rows": table["w"][ids], "ids": ids}

    def forward(table: dict[str, Any], ids: Any) -> Any:
        return pick.fn(table, ids), (ids, table["w"])

    def backward(residuals: Any, ct: Any) -> Any:
        ids, w = residuals
        assert ct["ids"] is None
        return {"w": go.scatter_add(go.zeros_like(w), ids, 10 * ct["rows"])}, None

    pick.defvjp(forward, backward)
    (g,) = run_reference(
        lambda w, ids: go.grad(lambda w: pick({"w": w}, ids)["rows"].sum())(w),
        np.ones((3, 2)),
        np.array([2, 0, 2]),
    )
    close([g], [[[10, 10], [0, 0], [20, 20]]])


def test_misuse_of_custom_gradients() -> None:
    def with_rule(forward: Any, backward: Any) -> Any:
        f = go.custom_vjp(lambda x: x * 2)
        f.defvjp(forward, backward)
        return lambda x: go.grad(lambda x: f(x).sum())(x)

    def fine(x: Any) -> Any:
        return x * 2, ()

    cases = [
        (lambda x: x, lambda r, ct: (ct,), r"expected to return \(result, residuals\), got Tensor"),
        (lambda x: (x.sum(), ()), lambda r, ct: (ct,), "first result to be that of the function"),
        (fine, lambda r, ct: ct, "a tuple of 1 gradients, one an argument, got Tensor"),
        (fine, lambda r, ct: (ct, ct), "a tuple of 1 gradients, one an argument, got 2 entries"),
        (fine, lambda r, ct: (ct.sum(),), "expected gradient 0 of type tensor<3xf64>, got"),
        (fine, lambda r, ct: ((ct, ct),), "a gradient in the structure of its argument"),
    ]
    for forward, backward, message in cases:
        with pytest.raises(GradientError, match=message):
            run_reference(with_rule(forward, backward), X)
    with pytest.raises(GradientError, match="expected a rule, got none; call its defvjp"):
        run_reference(go.custom_vjp(go.tanh), X)


def test_custom_function_sees_its_arguments_only() -> None:
    def outer(w: Any, x: Any) -> Any:
        f = go.custom_vjp(lambda x: x * w)
        f.defvjp(lambda x: (x * 2, ()), lambda r, ct: (ct,))
        return f(x)

    with pytest.raises(GradientError, match="expected only its arguments to be used"):
        run_reference(outer, X, X)


def test_rule_attributes_are_checked() -> None:
    """The attribute in text: functions that are missing or do not fit."""
    text = """
func.func private @f(%x: tensor<f32>) -> tensor<f32> attributes {{gradopt.custom_vjp = {rule}}} {{
  return %x : tensor<f32>
}}
func.func private @bad(%x: tensor<f32>) -> (tensor<f32>, tensor<i32>) {{
  %c = "gradopt.constant"() {{value = dense<1> : tensor<i32>}} : () -> tensor<i32>
  return %x, %c : tensor<f32>, tensor<i32>
}}
func.func @g(%x: tensor<f32>, %ct: tensor<f32>) -> tensor<f32> {{
  %v = "gradopt.vjp"() {{callee = @f, wrt = array<i64: 0>}}
    : () -> ((tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>))
  %r:2 = func.call_indirect %v(%x, %ct) : (tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>)
  return %r#1 : tensor<f32>
}}
"""
    from gradopt.dialect.base import new_context
    from gradopt.dialect.mlir import ir

    for rule, message in [
        ("1 : i64", r"of @f expected {forward = @f, backward = @b} of the module, got 1 : i64"),
        ("{forward = @nowhere, backward = @f}", "expected {forward = @f, backward = @b}"),
        ("{forward = @bad, backward = @f}", r"@f to take \(tensor<i32>, tensor<f32>\)"),
        ("{forward = @g, backward = @f}", r"@g to take \(tensor<f32>\)"),
    ]:
        with new_context():
            module = ir.Module.parse(text.format(rule=rule))
            with pytest.raises(PassError, match=message):
                pipeline.run(module, "gradopt-differentiate")


# --- checkpoint -----------------------------------------------------------------------------------


def test_checkpoint_computes_anew() -> None:
    """B57: same numbers; the exponential stands twice, behind a barrier that keeps the copies
    apart.
    """
    f = go.checkpoint(lambda x: go.sin(go.exp(x)))
    gradient = go.grad(lambda x: f(x).sum())
    close(run_reference(gradient, X), [np.cos(np.exp(X)) * np.exp(X)])
    graph = lowered(go.trace(lambda x: (f(x), gradient(x)), spec(X)))
    pipeline.run(graph.module, "gradopt-simplify")
    assert graph.mlir().count("gradopt.exp") == 2
    assert "gradopt.optimization_barrier" in graph.mlir()


def test_checkpoint_of_higher_order() -> None:
    f = go.checkpoint(lambda x, k: go.sin(go.exp(x)) * k)
    second = go.grad(lambda x: go.grad(lambda x: f(x, 2.0).sum())(x).sum())
    want = jax.grad(lambda x: jax.grad(lambda x: (2 * jnp.sin(jnp.exp(x))).sum())(x).sum())(X)
    close(run_reference(second, X), [want])


def test_checkpoint_keeps_captured_values() -> None:
    """Values of the function around have gradients through a checkpoint too."""

    def loss(w: Any, x: Any) -> Any:
        return go.checkpoint(lambda x: go.tanh(x * w))(x).sum()

    got = run_reference(go.grad(loss, (0, 1)), X, X + 1)
    close(got, jax.grad(lambda w, x: jnp.tanh(x * w).sum(), (0, 1))(X, X + 1))


# --- intermediates --------------------------------------------------------------------------------


def test_gradient_of_an_intermediate() -> None:
    """B54, C020: asking for the gradient of y does not cut off x."""

    def loss(x: Any) -> Any:
        y = go.tag(5 * x * x + 13 * x + 10, "y")
        return (2 * y).sum()

    got = run_reference(go.grad(loss, intermediates=("y",)), np.array([0.0, 7.0]))
    close(got, [[26, 166], [2, 2]])


def test_intermediates_by_name() -> None:
    """B54: several, in any order, of any shape; with aux and values."""

    def loss(x: Any) -> Any:
        a = go.tag(x * x, "a")
        b = go.tag(a.sum(), "b")
        return b * b, a

    fn = go.value_and_grad(loss, has_aux=True, intermediates=("b", "a"))
    value, aux, g, da, db = run_reference(fn, X)  # dictionaries in the order of their keys
    total = (X * X).sum()
    close([value, aux, g, db, da], [total**2, X * X, 4 * total * X, 2 * total, [2 * total] * 3])


def test_intermediates_that_are_not_there() -> None:
    def loss(x: Any) -> Any:
        go.tag(x.argmax(), "place")
        return (go.tag(x, "twice") + go.tag(x * 2, "twice")).sum()

    for label, message in [
        ("h", "expected one value tagged 'h' in @loss_0, got 0; tags are: 'place', 'twice'"),
        ("twice", "expected one value tagged 'twice' in @loss_0, got 2"),
        ("place", "expected floating-point intermediates, got 'place' in @loss_0 with dtype int32"),
    ]:
        with pytest.raises(OpError, match=message):
            run_reference(go.grad(loss, intermediates=(label,)), X)


def test_unreachable_intermediate() -> None:
    """B51"""

    def loss(x: Any) -> Any:
        go.tag(x * 2, "unused")
        return x.sum()

    with pytest.raises(PassError, match="got unreachable 'unused'"):
        run_reference(go.grad(loss, intermediates=("unused",)), X)
    got = run_reference(go.grad(loss, intermediates=("unused",), allow_unused=True), X)
    close(got, [np.ones(3), np.zeros(3)])


# --- matrices -------------------------------------------------------------------------------------


def f(n: Any, x: Any) -> Any:
    return n.stack([n.sum(x * x * x), n.sin(x[0] * x[1])])


@pytest.mark.parametrize("mode", ["auto", "forward", "reverse"])
def test_jacobian(mode: str) -> None:
    """B55"""
    got = run_reference(go.jacobian(lambda x: f(go, x), mode=mode), X)
    close(got, [jax.jacobian(lambda x: f(jnp, x))(X)])


@pytest.mark.parametrize("mode", ["forward", "reverse"])
def test_jacobian_of_trees(mode: str) -> None:
    """Each leaf of the result by each argument, in JAX's order."""

    def g(a: Any, b: Any) -> Any:
        return {"u": a @ b, "v": ((a * a).sum(0), b[0])}

    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 3)), rng.normal(size=(3, 2))
    got = run_reference(go.jacobian(g, (0, 1), mode=mode), a, b)
    close(got, jax.tree.leaves(jax.jacobian(g, (0, 1))(a, b)))


def test_hessian_and_its_product() -> None:
    """B55"""

    def loss(n: Any, x: Any) -> Any:
        return n.sum(n.sin(x) * x[0] * x)

    want = jax.hessian(lambda x: loss(jnp, x))(X)
    close(run_reference(go.hessian(lambda x: loss(go, x)), X), [want])
    got = run_reference(lambda x, v: go.hvp(lambda x: loss(go, x), (x,), (v,)), X, X + 1)
    close(got, [want @ (X + 1)])


def test_jacobian_misuse() -> None:
    with pytest.raises(GradientError, match="mode auto, forward or reverse, got 'both'"):
        go.jacobian(go.tanh, mode="both")
    with pytest.raises(GradientError, match=r"floating-point results of known shapes, got .*i32"):
        run_reference(go.jacobian(lambda x: (x, x.argmax())), X)


@pytest.mark.compiler
def test_compiled() -> None:
    """B38: all of it through IREE."""
    square, check = square_with_rule(), go.checkpoint(lambda x: go.sin(go.exp(x)))

    @go.compile
    def run(x: Any) -> Any:
        tagged = go.grad(lambda x: (2 * go.tag(x * x, "y")).sum(), intermediates=("y",))
        return (
            go.grad(lambda x: (square(x) * x).sum())(x),
            go.grad(lambda x: check(x).sum())(x),
            tagged(x)[1]["y"],
            go.jacobian(lambda x: f(go, x))(x),
            go.hessian(lambda x: (x**4).sum())(x),
        )

    want = [
        3 * X**2,
        np.cos(np.exp(X)) * np.exp(X),
        [2, 2, 2],
        jax.jacobian(lambda x: f(jnp, x))(X),
        np.diag(12 * X**2),
    ]
    for a, b in zip(run(X), want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)
