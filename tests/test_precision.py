# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Mixed precision: products that round their operands, their gradients, the forms of targets, and
the dynamic loss scale.
"""

from typing import Any

import gradopt as go
import ml_dtypes
import numpy as np
import pytest
from gradopt import optim
from gradopt.dialect.contraction import DotGeneralOp
from gradopt.errors import OpError, PipelineError
from gradopt.lowering import pipeline
from gradopt.lowering.target import target
from gradopt.tools.workloads import WORKLOADS, start_of, train_step

DTYPES = ["bfloat16", "float16"]
F32 = np.float32


def rounded(x: Any, dtype: str) -> np.ndarray:
    return np.asarray(x).astype(getattr(ml_dtypes, dtype, dtype)).astype(F32)


def r(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(F32)


def graph(function: Any, *specs: tuple[int, ...], stage: str = "") -> str:
    found = go.trace(function, *map(go.TensorSpec, specs))
    if stage:
        pipeline.run(found.module, stage)
    return str(found.module)


# --- values and types -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_round_their_operands(dtype: str) -> None:
    """Eager, against NumPy: operands rounded, sums and results in float32."""
    a, b = r(5, 33), r(33, 7, seed=1)
    x, w = r(2, 5, 5, 3), r(3, 3, 3, 4, seed=1)
    q = r(1, 2, 4, 8)
    with go.autocast(dtype):
        found = [
            go.matmul(a, b), go.array(a) @ b, go.einsum("ik,kj->ij", a, b),
            go.conv(x, w, padding=1), go.attention(q, q, q),
        ]  # fmt: skip
    want = rounded(a, dtype) @ rounded(b, dtype)
    for y in found[:3]:
        np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)
    plain = go.conv(rounded(x, dtype), rounded(w, dtype), padding=1)
    np.testing.assert_allclose(found[3], plain, rtol=1e-5, atol=1e-5)
    weights = np.einsum("bhqd,bhkd->bhqk", *[rounded(q, dtype)] * 2) / 8**0.5
    weights = np.exp(weights) / np.exp(weights).sum(-1, keepdims=True)
    mixed = rounded(weights, dtype) @ rounded(q, dtype)
    np.testing.assert_allclose(
        found[4], mixed, rtol=1e-2, atol=1e-2 if dtype == "bfloat16" else 1e-3
    )
    assert {y.dtype for y in found} == {np.dtype("float32")}


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_are_rounded_nowhere_else(dtype: str) -> None:
    """Cotangents are rounded as operands of the products of the backward; gradients are float32."""
    a, b, c = r(4, 16), r(16, 6, seed=1), r(4, 6, seed=2)

    def loss(a: Any, b: Any) -> Any:
        with go.autocast(dtype):
            return (go.matmul(a, b) * c).sum()

    by_a, by_b = go.grad(loss, (0, 1))(a, b)
    assert by_a.dtype == by_b.dtype == F32
    np.testing.assert_allclose(by_a, rounded(c, dtype) @ rounded(b, dtype).T, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(by_b, rounded(a, dtype).T @ rounded(c, dtype), rtol=1e-5, atol=1e-6)


def test_gradients_of_convolutions() -> None:
    """Each of the three products of a convolution rounds its own operands, as JAX does when told
    to, with a cotangent that is rounded too.
    """
    jax = pytest.importorskip("jax")
    x, w = r(2, 6, 6, 3), r(3, 3, 3, 4, seed=1)
    c = r(2, 3, 3, 4, seed=2)

    def loss(x: Any, w: Any) -> Any:
        with go.autocast("bfloat16"):
            return (go.conv(x, w, strides=2, padding=1) * c).sum()

    def theirs(x: Any, w: Any) -> Any:
        axes = ("NHWC", "HWIO", "NHWC")
        conv = jax.lax.conv_general_dilated(x, w, (2, 2), [(1, 1)] * 2, dimension_numbers=axes)
        return (conv * rounded(c, "bfloat16")).sum()

    want = jax.grad(theirs, (0, 1))(rounded(x, "bfloat16"), rounded(w, "bfloat16"))
    for got, value in zip(go.grad(loss, (0, 1))(x, w), want, strict=True):
        assert got.dtype == F32
        np.testing.assert_allclose(got, value, rtol=1e-4, atol=1e-5)


def test_narrow_operands_with_a_precision() -> None:
    """A product of 16-bit operands with a precision gives float32, its gradients their types."""
    a, b = (rounded(r(3, 4, seed=s), "bfloat16").astype(ml_dtypes.bfloat16) for s in (0, 1))

    def f(a: Any, b: Any) -> Any:
        axes = {"lhs_contract": (1,), "rhs_contract": (1,)}
        return DotGeneralOp.emit(a, b, precision="bfloat16", **axes).sum()

    value, (by_a, by_b) = go.value_and_grad(f, (0, 1))(a, b)
    assert value.dtype == F32 and by_a.dtype == by_b.dtype == a.dtype
    np.testing.assert_allclose(
        np.asarray(value), (a.astype(F32) @ b.astype(F32).T).sum(), rtol=1e-5
    )


def test_other_types_are_left_alone() -> None:
    with go.autocast("bfloat16"):
        assert "precision" not in graph(lambda x: x @ x.astype("float64"), (3, 3))
        half = graph(lambda x: x.astype("float16") @ x.astype("float16"), (3, 3))
        assert "precision" not in half and "tensor<3x3xf16>" in half
        ids = graph(lambda x: x.astype("int32") @ x.astype("int32"), (3, 3))
        assert "precision" not in ids


def test_second_derivatives_keep_the_precision() -> None:
    def f(x: Any) -> Any:
        with go.autocast("float16"):
            return ((x @ x) ** 2).sum()

    text = graph(
        go.grad(lambda x: (go.grad(f)(x) ** 2).sum()),
        (3, 3),
        stage=pipeline.STAGES["differentiated"],
    )
    lines = [line for line in text.splitlines() if "dot_general" in line]
    assert len(lines) > 6 and all('precision = "float16"' in line for line in lines)


@pytest.mark.parametrize(
    ("precision", "dtype", "message"),
    [
        (
            "float64",
            "float32",
            "expected precision to be '', 'bfloat16' or 'float16', got 'float64'",
        ),
        (
            "bfloat16",
            "float16",
            "expected operands of float32 or bfloat16 for precision 'bfloat16'",
        ),
    ],
)
def test_precisions_that_do_not_fit(precision: str, dtype: str, message: str) -> None:
    axes = {"lhs_contract": (1,), "rhs_contract": (0,)}
    x = np.ones((2, 2), dtype)
    with pytest.raises(OpError, match=message):
        DotGeneralOp.evaluate(x, x, precision=precision, **axes)


# --- the forms of targets -------------------------------------------------------------------------


def in_form(dtype: str, native: str) -> str:
    def f(x: Any, w: Any) -> Any:
        with go.autocast(dtype):
            return x @ w + x @ (w * 2)

    return graph(f, (4, 4), (4, 4), stage=f"gradopt-product-forms{{native={native}}}")


def test_native_types_are_multiplied_as_they_are() -> None:
    """Operands are rounded once each."""
    text = in_form("bfloat16", "bfloat16")
    assert text.count("(tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xf32>") == 2
    assert text.count('"gradopt.convert"') == 3


def test_other_types_are_widened_behind_the_rounding() -> None:
    text = in_form("float16", "bfloat16")
    assert text.count('"gradopt.convert"') == 6 and "precision" not in text
    assert text.count("(tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>") >= 2


def test_widened_operands_are_read_as_they_were() -> None:
    """A float32 product of what was bfloat16 is exact in bfloat16; one of 16 bits that the target
    has no unit for is done in float32.
    """

    def f(x: Any) -> Any:
        y = x.astype("bfloat16").astype("float32")
        return y @ y

    found = graph(f, (4, 4), stage="gradopt-product-forms{native=bfloat16}")
    assert "(tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xf32>" in found

    def g(x: Any) -> Any:
        return x.astype("float16") @ x.astype("float16")

    found = graph(g, (4, 4), stage="gradopt-product-forms{native=bfloat16}")
    assert "(tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>" in found
    assert graph(g, (4, 4), stage="gradopt-product-forms") == graph(g, (4, 4))


def test_native_types_by_target() -> None:
    assert [d.name for d in target("cpu:znver4").products] == ["bfloat16"]
    assert target("cpu:x86-64-v3").products == target("jit").products == ()
    assert len(target("cuda").products) == 2
    assert "{native=bfloat16}" in pipeline.stages(target("cpu:znver4"))["simplified"]
    with pytest.raises(PipelineError, match=r"expected types out of: bfloat16, float16.*'float8'"):
        graph(lambda x: x, (2,), stage="gradopt-product-forms{native=float8}")


# --- the loss scale -------------------------------------------------------------------------------


def scale_of(state: dict[str, Any]) -> tuple[float, int, int]:
    return float(state["value"]), int(state["good"]), int(state["skipped"])


def test_loss_scale_update() -> None:
    """Grows after `interval` finite steps in a row, shrinks at once, within its limits; the object
    does the same.
    """
    state, scale = optim.loss_scale_state(4.0), optim.LossScale(4.0, interval=2, maximum=16.0)
    seen = []
    for finite in (True, True, False, True, True, True, True, True, False, False, False, False):
        state = optim.loss_scale_update(state, finite, interval=2, maximum=16.0)
        scale.update(go.array(finite))
        assert scale_of(scale.arrays()) == scale_of(state)
        seen.append(float(state["value"]))
    assert seen == [4, 8, 4, 4, 8, 8, 16, 16, 8, 4, 2, 1]
    assert scale_of(state) == (1, 0, 5)
    assert float(optim.loss_scale_update(state, False)["value"]) == 1


def test_a_step_that_is_not_finite_changes_nothing() -> None:
    """In a traced step: the parameters, the slots and the count stay, the scale is halved."""
    start, batch, loss = WORKLOADS["recsys"](batch=2, fields=2, rows=4, dim=2)
    step = train_step(loss, "adam", "float16")
    state = start_of(start, "adam", "float16")
    new, value = step(state, *batch)
    assert np.isfinite(float(value)) and int(new["count"]) == 1
    assert float(new["parameters"]["w1"][0, 0]) != start["w1"][0, 0]
    state["scale"]["value"] = np.float32(np.inf)
    same, _ = step(state, *batch)
    assert int(same["count"]) == 0 and int(same["scale"]["skipped"]) == 1
    for name, x in start.items():
        np.testing.assert_array_equal(same["parameters"][name], x)


def test_unscale_and_select_tree() -> None:
    tree = {"a": np.full(2, 6, np.float16), "b": [np.full(3, 4, F32)]}
    found = optim.unscale(tree, np.float32(2))
    assert found["a"].dtype == F32
    np.testing.assert_array_equal(found["b"][0], 2)
    kept = optim.select_tree(np.bool_(False), tree, {"a": tree["a"] * 0, "b": [tree["b"][0] * 0]})
    np.testing.assert_array_equal(kept["a"], 0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: optim.loss_scale_state(0.0), "expected a positive value, got 0.0"),
        (lambda: optim.loss_scale_update({}, True), "expected a state with good, skipped, value"),
        (
            lambda: optim.loss_scale_update(optim.loss_scale_state(), np.ones(2)),
            r"expected finite to be one boolean.*all_finite",
        ),
        (
            lambda: optim.loss_scale_update(optim.loss_scale_state(), True, backoff=2.0),
            r"expected growth of at least 1, backoff in \(0, 1\]",
        ),
        (
            lambda: optim.select_tree(True, {"a": 1.0}, {"b": 1.0}),
            "expected two trees of one structure",
        ),
        (
            lambda: optim.select_tree(True, np.ones(2, F32), np.ones(3, F32)),
            "expected leaves of one type",
        ),
    ],
)
def test_misuse(call: Any, message: str) -> None:
    with pytest.raises(OpError, match=message):
        call()
