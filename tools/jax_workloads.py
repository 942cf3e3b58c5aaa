# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The training steps of workloads.py in JAX, for bench_worker.py: the same mathematics on the same
arrays, as a user of JAX writes them: jit, donated parameters, `lax.scan` over time.

This file runs by itself, where gradopt is not installed: it needs NumPy and JAX.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

LEARNING_RATE = 0.01
CHECK_STEPS = 5
EPSILON = 1e-5

Parameters = dict[str, Any]
Sizes = dict[str, int]


def cross_entropy(logits: Any, labels: Any) -> Any:
    """Mean over all rows of -log softmax(logits)[label]."""
    log_p = jax.nn.log_softmax(logits)
    return -jnp.take_along_axis(log_p, labels[:, None], axis=-1).mean()


class Layout:
    """Where channels are: last, or where `channels_last` is 0 right behind the batch."""

    def __init__(self, sizes: Sizes) -> None:
        self.last = bool(sizes.get("channels_last", 1))
        self.spatial = (1, 2) if self.last else (2, 3)

    def conv(self, x: Any, kernel: Any, stride: int = 1) -> Any:
        """A convolution that keeps the image's size at stride 1."""
        edge = kernel.shape[0 if self.last else 3] // 2
        names = ("NHWC", "HWIO", "NHWC") if self.last else ("NCHW", "OIHW", "NCHW")
        padding = [(edge, edge)] * 2
        return jax.lax.conv_general_dilated(
            x, kernel, (stride, stride), padding, dimension_numbers=names
        )

    def batch_norm(self, x: Any, gamma: Any, beta: Any) -> Any:
        if not self.last:
            gamma, beta = gamma[:, None, None], beta[:, None, None]
        return normalized(x, (0, *self.spatial)) * gamma + beta


def normalized(x: Any, axes: Any) -> Any:
    """x with mean 0 and variance 1 over axes."""
    centered = x - x.mean(axes, keepdims=True)
    return centered * jax.lax.rsqrt((centered * centered).mean(axes, keepdims=True) + EPSILON)


def layer_norm(x: Any, gamma: Any, beta: Any) -> Any:
    return normalized(x, -1) * gamma + beta


def mlp(p: Parameters, x: Any, y: Any, sizes: Sizes) -> Any:
    depth = sizes["depth"]
    for i in range(depth):
        x = jax.nn.relu(x @ p[f"w{i}"] + p[f"b{i}"])
    return cross_entropy(x @ p[f"w{depth}"] + p[f"b{depth}"], y)


def cnn(p: Parameters, x: Any, y: Any, sizes: Sizes) -> Any:
    layout = Layout(sizes)
    for i, stride in enumerate((1, 2, 2)):
        x = jax.nn.relu(layout.conv(x, p[f"k{i}"], stride))
    return cross_entropy(x.mean(layout.spatial) @ p["w"], y)


def resnet(p: Parameters, x: Any, y: Any, sizes: Sizes) -> Any:
    layout = Layout(sizes)
    conv, norm = layout.conv, layout.batch_norm
    x = jax.nn.relu(conv(x, p["stem"]))
    for i, stride in enumerate((1, 2, 2)):
        h = jax.nn.relu(norm(conv(x, p[f"{i}a"], stride), p[f"{i}ag"], p[f"{i}ah"]))
        h = norm(conv(h, p[f"{i}b"]), p[f"{i}bg"], p[f"{i}bh"])
        x = jax.nn.relu(h + conv(x, p[f"{i}p"], stride))
    return cross_entropy(x.mean(layout.spatial) @ p["w"], y)


def attention(x: Any, qkv: Any, sizes: Sizes) -> Any:
    batch, tokens, heads = sizes["batch"], sizes["tokens"], sizes["heads"]
    size = sizes["dim"] // heads
    q, k, v = (x @ qkv).reshape(batch, tokens, 3, heads, size).transpose(2, 0, 3, 1, 4)
    scores = q @ k.swapaxes(-1, -2) / np.float32(size**0.5)
    causal = jnp.tril(jnp.ones((tokens, tokens), bool))
    mixed = jax.nn.softmax(jnp.where(causal, scores, -1e9)) @ v
    return mixed.transpose(0, 2, 1, 3).reshape(batch * tokens, heads * size)


def gpt(p: Parameters, x: Any, y: Any, sizes: Sizes) -> Any:
    h = p["tok"][x.ravel()] + jnp.tile(p["pos"], (sizes["batch"], 1))
    for i in range(sizes["layers"]):
        normed = layer_norm(h, p[f"{i}g1"], p[f"{i}h1"])
        h = h + attention(normed, p[f"{i}qkv"], sizes) @ p[f"{i}o"]
        normed = layer_norm(h, p[f"{i}g2"], p[f"{i}h2"])
        h = h + jax.nn.gelu(normed @ p[f"{i}f1"], approximate=True) @ p[f"{i}f2"]
    return cross_entropy(h @ p["head"], y.ravel())


def lstm(p: Parameters, x: Any, y: Any, sizes: Sizes) -> Any:
    def cell(state: Any, z: Any) -> Any:
        h, c = state
        i, f, g, o = jnp.split(z + h @ p["wh"], 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

    start = jnp.zeros((x.shape[1], p["wh"].shape[0]), x.dtype)
    (h, _), _ = jax.lax.scan(cell, (start, start), x @ p["wx"] + p["b"])
    return cross_entropy(h @ p["w"], y)


def recsys(p: Parameters, x: Any, y: Any, sizes: Sizes) -> Any:
    h = p["table"][x].reshape(x.shape[0], -1)
    z = (jax.nn.relu(h @ p["w0"] + p["b0"]) @ p["w1"] + p["b1"])[:, 0]
    return (jnp.maximum(z, 0) - z * y + jnp.log1p(jnp.exp(-jnp.abs(z)))).mean()


LOSSES: dict[str, Callable[..., Any]] = {
    "mlp": mlp,
    "cnn": cnn,
    "resnet": resnet,
    "gpt": gpt,
    "lstm": lstm,
    "recsys": recsys,
}


def train_step(loss: Callable[..., Any], sizes: Sizes) -> Callable[..., Any]:
    """(parameters, *batch) -> (parameters after one step of plain SGD, loss)."""

    def step(p: Parameters, *batch: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(p, *batch, sizes)
        return jax.tree.map(lambda w, g: w - LEARNING_RATE * g, p, gradient), value

    return step


def prepare(request: dict[str, Any]) -> tuple[Any, Any, Any]:
    """(step, check, facts), as bench_worker.py wants them."""
    with np.load(request["arrays"]) as file:
        given = {name: file[name] for name in file.files}
    start = {n.removeprefix("p."): a for n, a in given.items() if n.startswith("p.")}
    batch = jax.device_put([given[f"x{i}"] for i in range(len(given) - len(start))])
    loss, sizes = LOSSES[request["workload"]], request["sizes"]
    jitted = jax.jit(train_step(loss, sizes), donate_argnums=0)
    state = {"p": jax.tree.map(jnp.array, start)}
    compiled = jitted.lower(state["p"], *batch).compile()

    def step() -> Any:
        state["p"], value = compiled(state["p"], *batch)
        jax.block_until_ready((state["p"], value))
        return value

    def check() -> float:
        state["p"] = jax.tree.map(jnp.array, start)
        return [float(step()) for _ in range(CHECK_STEPS)][-1]

    return step, check, functools.partial(facts, compiled)


def facts(compiled: Any) -> dict[str, Any]:
    """Bytes of temporaries, where XLA tells."""
    found = compiled.memory_analysis()
    return {"temp_bytes": getattr(found, "temp_size_in_bytes", None), "version": jax.__version__}
