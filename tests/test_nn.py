# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Layers of go.nn: values and gradients against JAX in float64, eager, and modes and states."""

import contextlib
import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import gradopt as go
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from gradopt import nn
from gradopt.errors import ModuleError, OpError, TraceError

pytestmark = pytest.mark.filterwarnings("ignore:an array of type .* is a constant of")
f64 = np.float64
rng = np.random.default_rng(11)


@dataclasses.dataclass
class Case:
    """A layer, its inputs, and what it does, as a function of its arrays by path, in JAX."""

    name: str
    make: Callable[[], nn.Module]
    inputs: tuple[np.ndarray, ...]
    jax: Callable[..., Any]
    call: Callable[..., Any] = lambda net, *x: net(*x)
    mode: str = "train"


def r(*shape: int) -> np.ndarray:
    return rng.normal(size=shape)


def dense(p: Any, x: Any, at: str = "") -> Any:
    y = x @ p[f"{at}weight"]
    return y + p[f"{at}bias"] if f"{at}bias" in p else y


def conv(p: Any, x: Any, dims: tuple[str, str, str], **options: Any) -> Any:
    options = {"window_strides": (1,) * (x.ndim - 2), "padding": "VALID"} | options
    y = jax.lax.conv_general_dilated(x, p["weight"], dimension_numbers=dims, **options)
    bias = p["bias"] if dims[2][-1] == "C" else p["bias"].reshape(-1, *(1,) * (x.ndim - 2))
    return y + bias


def conv_transposed(p: Any, x: Any, shape: tuple[int, ...], strides: tuple[int, int]) -> Any:
    """The input gradient of the convolution."""
    dims = ("NHWC", "HWIO", "NHWC")

    def forward(image: Any) -> Any:
        return jax.lax.conv_general_dilated(
            image, p["weight"], strides, "VALID", dimension_numbers=dims
        )

    return jax.vjp(forward, jnp.zeros(shape))[1](x)[0] + p["bias"]


def normalized(x: Any, axes: tuple[int, ...], eps: float = 1e-5) -> Any:
    return (x - x.mean(axes, keepdims=True)) / jnp.sqrt(x.var(axes, keepdims=True) + eps)


def grouped(p: Any, x: Any, groups: int) -> Any:
    split = x.reshape(*x.shape[:-1], groups, -1)
    return normalized(split, (1, 2, 4)).reshape(x.shape) * p["gamma"] + p["beta"]


def attended(
    p: Any,
    x: Any,
    context: Any = None,
    heads: int = 2,
    groups: int = 1,
    causal: bool = False,
    mask: Any = None,
    turn: Callable[[Any], Any] = lambda x: x,
) -> Any:
    """Attention with plain sums; keys are repeated for the heads of a group."""
    seen = x if context is None else context

    def split(name: str, source: Any, count: int) -> Any:
        y = dense(p, source, f"{name}.")
        return y.reshape(*y.shape[:2], count, -1).transpose(0, 2, 1, 3)

    q = turn(split("query", x, heads))
    k, v = (jnp.repeat(split(n, seen, heads // groups), groups, 1) for n in ("key", "value"))
    k = turn(k)
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / np.sqrt(q.shape[-1])
    if causal:
        scores = jnp.where(jnp.tri(*scores.shape[-2:], dtype=bool), scores, -jnp.inf)
    if mask is not None:
        scores = jnp.where(mask, scores, -jnp.inf)
    y = jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores), v)
    return dense(p, y.transpose(0, 2, 1, 3).reshape(*x.shape[:2], -1), "out.")


def turned(x: Any) -> Any:
    """Rotary positions, as complex numbers."""
    half = x.shape[-1] // 2
    angle = jnp.arange(x.shape[-2])[:, None] * 10000.0 ** (-jnp.arange(half) / half)
    z = (x[..., :half] + 1j * x[..., half:]) * jnp.exp(1j * angle)
    return jnp.concatenate([z.real, z.imag], -1)


def lstm(p: Any, x: Any, h: Any = None, c: Any = None, reverse: bool = False) -> Any:
    h = jnp.zeros((x.shape[0], p["recurrent"].shape[0])) if h is None else h
    c, outputs = jnp.zeros_like(h) if c is None else c, []
    for t in range(x.shape[1])[:: -1 if reverse else 1]:
        i, f, g, o = jnp.split(x[:, t] @ p["weight"] + p["bias"] + h @ p["recurrent"], 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        outputs.append(h)
    return jnp.stack(outputs[:: -1 if reverse else 1], 1), h, c


def gru(p: Any, x: Any, h: Any = None) -> Any:
    h, outputs = jnp.zeros((x.shape[0], p["recurrent"].shape[0])) if h is None else h, []
    for t in range(x.shape[1]):
        xr, xu, xn = jnp.split(x[:, t] @ p["weight"] + p["bias"], 3, -1)
        hr, hu, hn = jnp.split(h @ p["recurrent"] + p["recurrent_bias"], 3, -1)
        u = jax.nn.sigmoid(xu + hu)
        h = (1 - u) * jnp.tanh(xn + jax.nn.sigmoid(xr + hr) * hn) + u * h
        outputs.append(h)
    return jnp.stack(outputs, 1), h


def batch_inferred(p: Any, x: Any) -> Any:
    scale = p["gamma"] / jnp.sqrt(p["running_var"] + 1e-5)
    return (x - p["running_mean"]) * scale + p["beta"]


MASK = rng.random((1, 1, 4, 5)) < 0.6
MASK[..., 0] = True
NHWC, NCHW = ("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW")

CASES = [
    Case("dense", lambda: nn.Dense(3, 4, dtype=f64), (r(2, 5, 3),), dense),
    Case("dense-no-bias", lambda: nn.Dense(3, 4, bias=False, dtype=f64), (r(2, 3),), dense),
    Case(
        "dense-activation",
        lambda: nn.Dense(3, 4, activation="gelu", dtype=f64),
        (r(2, 3),),
        lambda p, x: jax.nn.gelu(dense(p, x), approximate=False),
    ),
    Case(
        "conv-1d",
        lambda: nn.Conv(2, 3, 3, axes=1, dtype=f64),
        (r(2, 7, 2),),
        lambda p, x: conv(p, x, ("NHC", "HIO", "NHC")),
    ),
    Case(
        "conv-same-strided",
        lambda: nn.Conv(4, 6, (3, 2), strides=(2, 1), padding="SAME", groups=2, dtype=f64),
        (r(2, 5, 6, 4),),
        lambda p, x: conv(
            p, x, NHWC, window_strides=(2, 1), padding="SAME", feature_group_count=2
        ),
    ),
    Case(
        "conv-dilated-first",
        lambda: nn.Conv(2, 3, 2, padding=1, dilation=2, layout="channels_first", dtype=f64),
        (r(2, 2, 5, 4),),
        lambda p, x: conv(p, x, NCHW, padding=((1, 1), (1, 1)), rhs_dilation=(2, 2)),
    ),
    Case(
        "conv-3d",
        lambda: nn.Conv(1, 2, 2, axes=3, dtype=f64),
        (r(1, 3, 3, 3, 1),),
        lambda p, x: conv(p, x, ("NDHWC", "DHWIO", "NDHWC")),
    ),
    Case(
        "conv-transpose",
        lambda: nn.ConvTranspose(2, 3, 3, strides=2, dtype=f64),
        (r(2, 4, 3, 2),),
        lambda p, x: conv_transposed(p, x, (2, 9, 7, 3), (2, 2)),
    ),
    Case(
        "max-pool",
        lambda: nn.MaxPool(2),
        (r(2, 4, 6, 3),),
        lambda p, x: x.reshape(2, 2, 2, 3, 2, 3).max((2, 4)),
    ),
    Case(
        "avg-pool-first",
        lambda: nn.AvgPool(2, layout="channels_first"),
        (r(2, 3, 4, 6),),
        lambda p, x: x.reshape(2, 3, 2, 2, 3, 2).mean((3, 5)),
    ),
    Case(
        "adaptive-pool",
        lambda: nn.AdaptiveAvgPool(1),
        (r(2, 4, 6, 3),),
        lambda p, x: x.mean((1, 2), keepdims=True),
    ),
    Case("flatten", lambda: nn.Flatten(), (r(2, 3, 4),), lambda p, x: x.reshape(2, 12)),
    Case("activation", lambda: nn.Activation("silu"), (r(5),), lambda p, x: jax.nn.silu(x)),
    Case(
        "batch-norm",
        lambda: nn.BatchNorm(3, dtype=f64),
        (r(4, 5, 3),),
        lambda p, x: normalized(x, (0, 1)) * p["gamma"] + p["beta"],
    ),
    Case(
        "batch-norm-first",
        lambda: nn.BatchNorm(3, channel_axis=1, affine=False, dtype=f64),
        (r(4, 3, 5),),
        lambda p, x: normalized(x, (0, 2)),
    ),
    Case(
        "batch-norm-infer",
        lambda: nn.BatchNorm(3, dtype=f64),
        (r(4, 5, 3),),
        batch_inferred,
        mode="infer",
    ),
    Case(
        "layer-norm",
        lambda: nn.LayerNorm((2, 3), dtype=f64),
        (r(4, 2, 3),),
        lambda p, x: normalized(x, (1, 2)) * p["gamma"] + p["beta"],
    ),
    Case(
        "rms-norm",
        lambda: nn.RMSNorm(3, dtype=f64),
        (r(4, 2, 3),),
        lambda p, x: x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * p["gamma"],
    ),
    Case(
        "group-norm",
        lambda: nn.GroupNorm(6, 2, dtype=f64),
        (r(2, 3, 2, 6),),
        lambda p, x: grouped(p, x, 2),
    ),
    Case(
        "embedding",
        lambda: nn.Embedding(5, 3, dtype=f64),
        (np.array([[0, 4], [2, 2]], np.int32),),
        lambda p, ids: p["weight"][ids],
    ),
    Case(
        "attention", lambda: nn.MultiHeadAttention(6, 2, dtype=f64), (r(2, 4, 6),), attended
    ),
    Case(
        "attention-causal-grouped",
        lambda: nn.MultiHeadAttention(
            8, 4, kv_heads=2, causal=True, rotary=True, bias=False, dtype=f64
        ),
        (r(2, 4, 8),),
        lambda p, x: attended(p, x, heads=4, groups=2, causal=True, turn=turned),
    ),
    Case(
        "attention-context-mask",
        lambda: nn.MultiHeadAttention(6, 2, head_width=4, context_width=3, dtype=f64),
        (r(2, 4, 6), r(2, 5, 3)),
        lambda p, x, context: attended(p, x, context, mask=MASK),
        call=lambda net, x, context: net(x, context, MASK),
    ),
    Case("lstm", lambda: nn.LSTM(2, 3, dtype=f64), (r(2, 4, 2),), lambda p, x: lstm(p, x),
         call=lambda net, x: (lambda y, s: (y, *s))(*net(x))),
    Case(
        "lstm-state-reverse",
        lambda: nn.LSTM(2, 3, reverse=True, dtype=f64),
        (r(2, 4, 2), r(2, 3), r(2, 3)),
        lambda p, x, h, c: lstm(p, x, h, c, reverse=True),
        call=lambda net, x, h, c: (lambda y, s: (y, *s))(*net(x, (h, c))),
    ),
    Case("gru", lambda: nn.GRU(2, 3, dtype=f64), (r(2, 4, 2),), gru),
    Case("gru-state", lambda: nn.GRU(2, 3, dtype=f64), (r(2, 4, 2), r(2, 3)), gru),
    Case(
        "sequential",
        lambda: nn.Sequential(nn.Dense(3, 4, dtype=f64), "tanh", nn.Dense(4, 2, dtype=f64)),
        (r(5, 3),),
        lambda p, x: dense(p, jnp.tanh(dense(p, x, "layers.0.")), "layers.2."),
    ),
]  # fmt: skip


def outputs(y: Any) -> list[Any]:
    return list(y) if isinstance(y, tuple | list) else [y]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_layer(case: Case) -> None:
    """B38: values, and gradients by parameters and inputs, are JAX's, taped and as a traced
    function of the arrays.
    """
    go.random.seed(3)
    net = case.make()
    for path, x in net.arrays().items():  # not the values where things vanish
        x[...] = np.abs(r(*x.shape)) + 0.1 if path.endswith("var") else 0.5 * r(*x.shape)
    arrays = {path: np.asarray(x) for path, x in net.arrays().items()}
    trained, floats = net.parameters(), [x.dtype == f64 for x in case.inputs]
    inputs = [go.array(x) for x in case.inputs]
    for x, is_float in zip(inputs, floats, strict=True):
        if is_float:
            x.attach_grad()
    wanted = outputs(jax.jit(case.jax)(arrays, *case.inputs))
    weights = [r(*y.shape) for y in wanted]

    def jax_loss(trained: Any, given: Any) -> Any:
        filled = iter(given)
        xs = [next(filled) if f else x for x, f in zip(case.inputs, floats, strict=True)]
        ys = outputs(case.jax(arrays | trained, *xs))
        return sum((y * w).sum() for y, w in zip(ys, weights, strict=True))

    with go.infer_mode() if case.mode == "infer" else contextlib.nullcontext(), go.record():
        ys = outputs(case.call(net, *inputs))
        loss = sum(((y * w).sum() for y, w in zip(ys, weights, strict=True)), start=0.0)
    for got, want in zip(ys, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-11)
    by_trained, by_inputs = jax.jit(jax.grad(jax_loss, (0, 1)))(
        {path: arrays[path] for path in trained},
        [x for x, f in zip(case.inputs, floats, strict=True) if f],
    )
    if trained or by_inputs:
        loss.backward()
    for path, x in trained.items():
        np.testing.assert_allclose(x.grad, by_trained[path], rtol=1e-8, atol=1e-10, err_msg=path)
    for x, want in zip([x for x in inputs if x.grad is not None], by_inputs, strict=True):
        np.testing.assert_allclose(x.grad, want, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_unknown_batch(case: Case) -> None:
    """A batch that is known only at run time; recurrent layers need to know the time."""
    net = case.make()
    specs = [go.TensorSpec((None, *x.shape[1:]), x.dtype) for x in case.inputs]
    with go.infer_mode():
        if isinstance(net, nn.LSTM | nn.GRU):
            with pytest.raises(ModuleError, match=r"extent of time, got shape \(2, None, 2\)"):
                net(go.Graph().input("x", (2, None, 2), "float64"))
        graph = go.trace(lambda *x: case.call(net, *x), *specs)
        want = outputs(case.call(net, *case.inputs))
    assert [s.shape for s in graph.output_specs] == [(None, *y.shape[1:]) for y in want]


def step_of(case: Case, net: nn.Module) -> Callable[..., Any]:
    """Forward, loss and backward of a layer."""

    def step(*inputs: Any) -> Any:
        with go.record():
            loss = sum(((y * y).sum() for y in outputs(case.call(net, *inputs))), start=0.0)
        if net.parameters():
            loss.backward()
        return loss

    return step


def trained(case: Case, target: str | None) -> dict[str, np.ndarray]:
    """Loss, states and gradients of a step of a layer, eager or hybridized for a target."""
    go.random.seed(3)
    net = case.make()
    step = step_of(case, net)
    with go.infer_mode() if case.mode == "infer" else contextlib.nullcontext():
        loss = (go.hybridize(step, target=target) if target else step)(*map(go.array, case.inputs))
    found = {f"gradient of {path}": np.array(x.grad) for path, x in net.parameters().items()}
    return found | {path: np.array(x) for path, x in net.arrays().items()} | {"loss": loss}


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_layer_hybridized(case: Case) -> None:
    """B38: the graph of a layer's step, run by the ops' references, is the eager step exactly."""
    want = trained(case, None)
    for name, x in trained(case, "reference").items():
        np.testing.assert_array_equal(x, want[name], err_msg=name)


# --- modes and states -----------------------------------------------------------------------------


def test_running_statistics() -> None:
    """C046: they move once a call, while training only, and nothing of it is recorded."""
    norm = nn.BatchNorm(2, momentum=0.9)
    x = np.array([[0.0, 3.0], [2.0, 5.0]], np.float32)
    with go.record():
        loss = norm(x).sum()
    loss.backward()
    np.testing.assert_allclose(norm.running_mean, [0.1, 0.4], rtol=1e-6)
    np.testing.assert_allclose(norm.running_var, [1.0, 1.0], rtol=1e-6)
    with go.infer_mode():
        y = norm(x)
    np.testing.assert_allclose(norm.running_mean, [0.1, 0.4], rtol=1e-6)
    np.testing.assert_allclose(y, (x - [0.1, 0.4]) / np.sqrt(1 + 1e-5), rtol=1e-5)
    assert list(norm.parameters()) == ["gamma", "beta"]


@pytest.mark.parametrize("target", [None, "reference"])
def test_checkpointed(target: str | None) -> None:
    """C046, C047: what is computed anew draws the same mask, and moves no statistics again."""
    go.random.seed(1)
    norm, dropout, x = nn.BatchNorm(3), nn.Dropout(0.5), go.array(r(64, 3).astype(np.float32))

    def inner(x: Any) -> Any:
        return dropout(norm(x))

    def step(run: Any) -> Any:
        with go.record():
            y = run(x)
            loss = (y * y).sum()
        loss.backward()
        return y

    if target:
        step = go.hybridize(step, target=target)
    plain = np.asarray(step(inner))
    wanted = [np.array(a) for a in (norm.gamma.grad, norm.running_mean)]
    go.random.seed(1)
    norm.running_mean[...], norm.running_var[...] = 0.0, 1.0
    np.testing.assert_array_equal(step(go.checkpoint(inner)), plain)
    for got, want in zip((norm.gamma.grad, norm.running_mean), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)
    assert int(go.random.get_state()["count"]) == 1


def test_gradient_in_predict_mode() -> None:
    """C025: recorded in predict mode, batch norm is a scale; gamma / sqrt(running variance) = 2."""
    norm, x = nn.BatchNorm(3, eps=0.0), go.array(r(4, 3).astype(np.float32))
    norm.gamma[...] = 2.0
    x.attach_grad()
    for step in (lambda: norm(x), go.hybridize(lambda: norm(x), target="reference")):
        with go.record(train_mode=False):
            y = step().sum()
        y.backward()
        np.testing.assert_array_equal(x.grad, 2)
    assert not np.any(norm.running_mean.numpy())


def test_states_in_a_trace() -> None:
    """C034: a change of a state is never lost: in a trace it is an error, or in the copy."""
    norm = nn.BatchNorm(2)
    x = np.array([[0.0, 3.0], [2.0, 5.0]], np.float32)
    with pytest.raises(TraceError, match=r"the state 'running_mean' of BatchNorm.*net\.replaced"):
        go.trace(norm, x)
    with go.infer_mode():
        assert go.trace(lambda x: norm(x), x).output_specs[0].shape == (2, 2)

    def run(arrays: Any, x: Any) -> Any:
        copy = norm.replaced(arrays)
        return copy(x), copy.arrays()["running_mean"]

    assert [s.shape for s in go.trace(run, norm.arrays(), x).output_specs] == [(2, 2), (2,)]
    assert not np.any(norm.running_mean.numpy())


def test_dropout() -> None:
    """The mask comes from the state, is that of go.dropout, and is the gradient's, too."""
    x, layer = go.ones(1000), nn.Dropout(0.4)
    x.attach_grad()
    go.random.seed(7)
    key = go.random.next_key()
    go.random.seed(7)
    with go.record():
        first = layer(x)
        second = layer(x)
    first.backward()
    np.testing.assert_array_equal(first, go.dropout(go.ones(1000), 0.4, key))
    np.testing.assert_array_equal(x.grad, first)
    kept = np.asarray(first) > 0
    assert abs(kept.mean() - 0.6) < 0.05 and (kept != (np.asarray(second) > 0)).any()
    with go.infer_mode():
        np.testing.assert_array_equal(layer(x), x)
    shared = np.asarray(nn.Dropout(0.5, shared=(1,))(np.ones((64, 3), np.float32)))
    assert (shared == shared[:, :1]).all() and 0 < shared[:, 0].astype(bool).mean() < 1


def test_attention_dropout() -> None:
    layer, x = nn.MultiHeadAttention(4, 2, dropout=0.5), r(2, 3, 4).astype(np.float32)
    a, b = (np.asarray(layer(x, key=go.random.key(k))) for k in (1, 1))
    np.testing.assert_array_equal(a, b)
    assert (np.asarray(layer(x)) != np.asarray(layer(x))).any()
    with go.infer_mode():
        np.testing.assert_array_equal(layer(x), layer(x))


# --- mixed precision ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_autocast(dtype: str) -> None:
    """B30: products in 16 bits, parameters and gradients in float32; off inside, and restored."""
    net, x = nn.Dense(4, 3), np.ones((2, 4), np.float32)
    with go.autocast(dtype):
        with go.record():
            y = net(x)
            loss = y.astype("float32").sum()
        loss.backward()
        with go.autocast(None):
            assert net(x).dtype == np.float32
        with pytest.raises(ZeroDivisionError), go.autocast(None), go.infer_mode():
            assert net(x).dtype == np.float32
            raise ZeroDivisionError
        assert go.is_training() and net(x).dtype == y.dtype == np.float32
    assert net.weight.grad.dtype == net.weight.dtype == np.float32
    np.testing.assert_array_equal(net.weight.grad, 2)
    cast = np.dtype(getattr(ml_dtypes, dtype, dtype))
    wide = x @ np.asarray(net.weight).astype(cast).astype(np.float32)
    np.testing.assert_allclose(y, wide, rtol=1e-6)
    for layer, shape in (
        (nn.Conv(2, 3, 2), (1, 3, 3, 2)),
        (nn.MultiHeadAttention(4, 2), (1, 3, 4)),
        (nn.GRU(2, 3), (1, 2, 2)),
    ):
        found = go.trace(lambda x, layer=layer: layer(x), go.TensorSpec(shape))
        assert "precision" not in str(found.module)
        with go.autocast(dtype):
            found = go.trace(lambda x, layer=layer: layer(x), go.TensorSpec(shape))
        assert f'precision = "{dtype}"' in str(found.module)


def test_autocast_is_the_threads_own() -> None:
    """B30: another thread is in no context of this one."""
    x, found = np.full((1, 1), 1 + 2**-10, np.float32), []
    with go.autocast("bfloat16"):
        thread = threading.Thread(target=lambda: found.append(float(go.matmul(x, x)[0, 0])))
        thread.start()
        thread.join()
        assert float(go.matmul(x, x)[0, 0]) == 1
    assert found == [float(x[0, 0] * x[0, 0])]


def test_autocast_takes_16_bits() -> None:
    with pytest.raises(OpError, match=r"autocast expected 'bfloat16'.*got 'float32'.*net\.astype"):
        go.autocast("float32")


def test_autocast_is_part_of_the_key() -> None:
    """A compiled function called in another precision is traced anew."""
    net, x = nn.Dense(4, 3), np.ones((2, 4), np.float32)
    function = go.compile(lambda x: net(x))
    with go.autocast("bfloat16"):
        text = function.mlir("graph", x)
    assert "bfloat16" in text and "bfloat16" not in function.mlir("graph", x)
    infer = go.compile(lambda x: net(x), mode="infer")
    with go.autocast("bfloat16"):
        assert "bfloat16" in infer.mlir("graph", x)


# --- misuse ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.Dense(0, 3), "Dense expected in_width of at least 1, got 0"),
        (lambda: nn.Dense(2, 3, activation="rely"), "expected an activation out of celu.*'rely'"),
        (lambda: nn.Dense(2, 3)(np.ones((4, 3), "f")), r"Dense\(2 -> 3\) expected .*width 2 at"),
        (lambda: nn.Conv(3, 4, 2, groups=2), "groups that divide the widths, got 2 .* 3 -> 4"),
        (lambda: nn.Conv(1, 1, 2, layout="NCHW"), "a layout out of channels_last"),
        (lambda: nn.Conv(1, 1, 2)(np.ones((1, 3, 1), "f")), "2 spatial axes, got shape"),
        (lambda: nn.MultiHeadAttention(6, 4), "heads that divide the width 6, got 4"),
        (lambda: nn.MultiHeadAttention(8, 4, kv_heads=3), "kv_heads that divide 4, got 3"),
        (lambda: nn.Dropout(1.5), r"a rate in \[0, 1\], got 1.5"),
        (lambda: nn.LayerNorm(3)(np.ones((3, 2), "f")), r"last axes are \(3,\), got shape"),
        (lambda: nn.LSTM(2, 3)(np.ones((3, 2), "f")), r"\(batch, time, width\)"),
        (lambda: nn.GroupNorm(4, 3), "groups that divide 4, got 3"),
        (lambda: nn.Sequential(nn.Dense(1, 1), 3), "got 3 at position 1"),
    ],
)
def test_misuse(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ModuleError, match=message):
        make()


# --- initialisers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "shape", "deviation", "limit"),
    [
        (nn.init.normal(0.3), (200, 50), 0.3, None),
        (nn.init.uniform(-0.6, 0.6), (200, 50), 0.6 / 3**0.5, 0.6),
        (nn.init.truncated_normal(0.5), (200, 50), 0.5 * nn.init.TRUNCATED, 1.0),
        (nn.init.glorot_uniform(), (200, 50), (2 / 250) ** 0.5, (6 / 250) ** 0.5),
        (nn.init.xavier_normal(), (200, 50), (2 / 250) ** 0.5, None),
        (nn.init.he_normal(), (3, 3, 20, 50), (2 / 180) ** 0.5, None),
        (nn.init.kaiming_uniform(1, 0), (50, 20, 3, 3), (2 / 180) ** 0.5, (6 / 180) ** 0.5),
        (nn.init.lecun_normal(), (200, 50), 200**-0.5, None),
        (nn.init.lecun_uniform(), (200, 50), 200**-0.5, (3 / 200) ** 0.5),
        (nn.init.variance_scaling(3, "fan_out", "normal"), (5, 40, 50), 0.012**0.5, None),
    ],
)
def test_initialisers(make: Any, shape: tuple[int, ...], deviation: float, limit: Any) -> None:
    """10,000 numbers or so of the right deviation, the same from the same seed."""
    go.random.seed(5)
    x = make(shape)
    np.testing.assert_allclose(np.asarray(x).std(), deviation, rtol=0.03)
    assert abs(np.asarray(x).mean()) < 0.05 * deviation and x.dtype == np.float32
    assert limit is None or np.abs(np.asarray(x)).max() <= limit * (1 + 1e-6)
    assert (np.asarray(make(shape)) != np.asarray(x)).any()
    go.random.seed(5)
    np.testing.assert_array_equal(make(shape), x)
    np.testing.assert_array_equal(
        make(shape, key=go.random.key(1)), make(shape, key=np.array([0, 1], np.uint32))
    )
    assert make((2, 3), "bfloat16").dtype == ml_dtypes.bfloat16


def test_orthogonal() -> None:
    for shape in ((6, 4), (3, 5), (2, 3, 4)):
        q = np.asarray(nn.init.orthogonal(2.0)(shape, f64)).reshape(-1, shape[-1])
        q = q if q.shape[0] >= q.shape[1] else q.T
        np.testing.assert_allclose(q.T @ q, 4 * np.eye(q.shape[1]), atol=1e-12)
    assert not np.any(nn.init.zeros()((2, 2)).numpy()) and np.all(nn.init.ones()(3).numpy() == 1)


def test_initialisers_want_fans() -> None:
    with pytest.raises(OpError, match=r"at least 2 axes, got shape \(3,\); use nn.init.normal"):
        nn.init.he_normal()((3,))
    with pytest.raises(OpError, match="floating-point type, got tensor<3xi32>"):
        nn.init.normal()(3, "int32")
    with pytest.raises(OpError, match="a mode out of fan_in"):
        nn.init.variance_scaling(1, "fan")


# --- the random state -----------------------------------------------------------------------------


def test_random_state() -> None:
    """Keys are blocks of counters under the seed's key; the state can be kept and put back."""
    go.random.seed(9)
    first = [np.asarray(go.random.next_key()) for _ in range(3)]
    np.testing.assert_array_equal(first, go.random.split(go.random.key(9), 3))
    state = go.random.get_state()
    after = np.asarray(go.random.next_key())
    go.random.set_state(state)
    np.testing.assert_array_equal(go.random.next_key(), after)
    assert int(state["count"]) == 3
    with pytest.raises(OpError, match="set_state expected 'key' and 'count'"):
        go.random.set_state({"key": first[0]})


def test_keys_in_a_trace() -> None:
    """A traced function has no state: a key is an error, or comes from an argument."""
    layer, x = nn.Dropout(0.5), np.ones(64, np.float32)
    with pytest.raises(TraceError, match=r"a random key was asked for.*key_scope"):
        go.trace(layer, x)

    def run(key: Any, x: Any) -> Any:
        with go.random.key_scope(key):
            return layer(x), layer(x)

    key = go.random.key(4)
    before = go.random.get_state()["count"]
    graph = go.trace(run, key, x)
    assert len(graph.output_specs) == 2
    a, b = run(key, x)
    np.testing.assert_array_equal(a, go.dropout(go.array(x), 0.5, go.random.fold_in(key, 0)))
    np.testing.assert_array_equal(b, go.dropout(go.array(x), 0.5, go.random.fold_in(key, 1)))
    assert go.random.get_state()["count"] == before
