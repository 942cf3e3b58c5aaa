# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The benchmark's training steps: weights and one batch from NumPy's generator with seed 0, losses
as gradopt functions.

Each workload is a function () -> (parameters, batch, loss), all float32. Those with convolutions
have `channels_last`: 1, or 0 for images (N, C, H, W) and kernels (out, in, height, width).
"""

import itertools
from collections.abc import Callable
from typing import Any

import gradopt as go
import numpy as np

Workload = tuple[dict[str, np.ndarray], tuple[np.ndarray, ...], Callable[..., Any]]

LEARNING_RATE = 0.01


def _normal(rng: np.random.Generator, *shape: int, scale: float) -> np.ndarray:
    return (rng.standard_normal(shape) * scale).astype(np.float32)


class _Layout:
    """How images and kernels lie in memory, and the settings of ops that say so."""

    def __init__(self, channels_last: int) -> None:
        self.last = bool(channels_last)
        self.conv: dict[str, Any] = {"layout": "channels_last" if self.last else "channels_first"}
        self.channel_axis = -1 if self.last else 1
        self.spatial = (1, 2) if self.last else (2, 3)

    def kernel(
        self, rng: np.random.Generator, out: int, inner: int, width: int, scale: float
    ) -> np.ndarray:
        """A square kernel, (out, in, height, width), or (height, width, in, out) with channels
        last.
        """
        drawn = _normal(rng, out, inner, width, width, scale=scale)
        return np.ascontiguousarray(drawn.transpose(2, 3, 1, 0)) if self.last else drawn

    def images(self, rng: np.random.Generator, batch: int) -> np.ndarray:
        """Images (batch, 3, 32, 32), or (batch, 32, 32, 3) with channels last."""
        drawn = _normal(rng, batch, 3, 32, 32, scale=1.0)
        return np.ascontiguousarray(drawn.transpose(0, 2, 3, 1)) if self.last else drawn


def _labels(rng: np.random.Generator, classes: int, *shape: int) -> np.ndarray:
    return rng.integers(0, classes, shape).astype(np.int32)


def mlp(batch: int = 128, width: int = 1024, depth: int = 2) -> Workload:
    """784-1024-1024-10 classifier with relu; `depth` hidden layers."""
    rng = np.random.default_rng(0)
    extents = [784, *[width] * depth, 10]
    p: dict[str, np.ndarray] = {}
    for i, (inner, out) in enumerate(itertools.pairwise(extents)):
        # Layers beyond the standard two keep the size of what goes through them, at any depth.
        scale = (2 / width) ** 0.5 if 2 <= i < depth else 0.05
        p[f"w{i}"] = _normal(rng, inner, out, scale=scale)
        p[f"b{i}"] = np.zeros(out, np.float32)

    def loss(p: Any, x: Any, y: Any) -> Any:
        for i in range(depth):
            x = go.relu(x @ p[f"w{i}"] + p[f"b{i}"])
        return go.cross_entropy(x @ p[f"w{depth}"] + p[f"b{depth}"], y).mean()

    x = _normal(rng, batch, 784, scale=1.0)
    return p, (x, _labels(rng, 10, batch)), loss


def cnn(batch: int = 32, channels_last: int = 1) -> Workload:
    """Three 3x3 convolutions with relu (32, 64 by stride 2, 128 by stride 2), average over the
    image, linear.
    """
    rng, layout = np.random.default_rng(0), _Layout(channels_last)
    sizes = [(32, 3), (64, 32), (128, 64)]
    p = {
        f"k{i}": layout.kernel(rng, o, c, 3, (2 / (9 * c)) ** 0.5) for i, (o, c) in enumerate(sizes)
    }
    p["w"] = _normal(rng, 128, 10, scale=0.1)

    def loss(p: Any, x: Any, y: Any) -> Any:
        for i, stride in enumerate((1, 2, 2)):
            x = go.relu(go.conv(x, p[f"k{i}"], strides=stride, padding=1, **layout.conv))
        return go.cross_entropy(x.mean(layout.spatial) @ p["w"], y).mean()

    x = layout.images(rng, batch)
    return p, (x, _labels(rng, 10, batch)), loss


def resnet(batch: int = 16, width: int = 32, channels_last: int = 1) -> Workload:
    """A stem and three residual blocks with batch norm in training mode, average over the image,
    linear.
    """
    rng, layout = np.random.default_rng(0), _Layout(channels_last)
    p = {"stem": layout.kernel(rng, width, 3, 3, 0.27)}
    blocks = [(width, 1), (2 * width, 2), (4 * width, 2)]
    inner = width
    for i, (c, _) in enumerate(blocks):
        p[f"{i}a"] = layout.kernel(rng, c, inner, 3, (2 / (9 * inner)) ** 0.5)
        p[f"{i}b"] = layout.kernel(rng, c, c, 3, (2 / (9 * c)) ** 0.5)
        p[f"{i}p"] = layout.kernel(rng, c, inner, 1, (2 / inner) ** 0.5)
        for n in "ab":
            p[f"{i}{n}g"], p[f"{i}{n}h"] = np.ones(c, np.float32), np.zeros(c, np.float32)
        inner = c
    p["w"] = _normal(rng, inner, 10, scale=0.1)

    def conv(x: Any, kernel: Any, strides: int = 1, padding: int = 0) -> Any:
        return go.conv(x, kernel, strides=strides, padding=padding, **layout.conv)

    def norm(x: Any, gamma: Any, beta: Any) -> Any:
        return go.batch_norm(x, gamma, beta, channel_axis=layout.channel_axis)

    def loss(p: Any, x: Any, y: Any) -> Any:
        x = go.relu(conv(x, p["stem"], padding=1))
        for i, (_, stride) in enumerate(blocks):
            h = conv(x, p[f"{i}a"], strides=stride, padding=1)
            h = go.relu(norm(h, p[f"{i}ag"], p[f"{i}ah"]))
            h = conv(h, p[f"{i}b"], padding=1)
            h = norm(h, p[f"{i}bg"], p[f"{i}bh"])
            x = go.relu(h + conv(x, p[f"{i}p"], strides=stride))
        return go.cross_entropy(x.mean(layout.spatial) @ p["w"], y).mean()

    x = layout.images(rng, batch)
    return p, (x, _labels(rng, 10, batch)), loss


def gpt(
    batch: int = 4,
    tokens: int = 128,
    dim: int = 256,
    heads: int = 4,
    layers: int = 4,
    vocab: int = 1024,
) -> Workload:
    """Pre-norm causal transformer with tanh-gelu and an untied head; mean cross-entropy over all
    tokens.
    """
    rng = np.random.default_rng(0)
    p = {
        "tok": _normal(rng, vocab, dim, scale=0.02),
        "pos": _normal(rng, tokens, dim, scale=0.02),
        "head": _normal(rng, dim, vocab, scale=0.02),
    }
    for i in range(layers):
        p[f"{i}qkv"] = _normal(rng, dim, 3 * dim, scale=0.02)
        p[f"{i}o"] = _normal(rng, dim, dim, scale=0.02)
        p[f"{i}f1"] = _normal(rng, dim, 4 * dim, scale=0.02)
        p[f"{i}f2"] = _normal(rng, 4 * dim, dim, scale=0.02)
        for n in "12":
            p[f"{i}g{n}"], p[f"{i}h{n}"] = np.ones(dim, np.float32), np.zeros(dim, np.float32)

    def attention(x: Any, qkv: Any) -> Any:
        split = (x @ qkv).reshape(batch, tokens, 3, heads, dim // heads).transpose(2, 0, 3, 1, 4)
        q, k, v = split
        scores = (q @ k.mT) / (dim // heads) ** 0.5
        causal = go.iota((tokens, tokens), 0) >= go.iota((tokens, tokens), 1)
        mixed = go.softmax(go.where(causal, scores, -1e9)) @ v
        return mixed.transpose(0, 2, 1, 3).reshape(batch * tokens, dim)

    def loss(p: Any, x: Any, y: Any) -> Any:
        h = go.embedding(p["tok"], x.flatten()) + go.tile(p["pos"], (batch, 1))
        for i in range(layers):
            with go.name_scope(f"layer{i}"):
                normed = go.layer_norm(h, p[f"{i}g1"], p[f"{i}h1"])
                h = h + attention(normed, p[f"{i}qkv"]) @ p[f"{i}o"]
                normed = go.layer_norm(h, p[f"{i}g2"], p[f"{i}h2"])
                h = h + go.gelu(normed @ p[f"{i}f1"], approximate="tanh") @ p[f"{i}f2"]
        return go.cross_entropy(h @ p["head"], y.flatten()).mean()

    return p, (_labels(rng, vocab, batch, tokens), _labels(rng, vocab, batch, tokens)), loss


def lstm(batch: int = 32, steps: int = 32, width: int = 128, hidden: int = 256) -> Workload:
    """One LSTM layer (gates i, f, g, o) unrolled over its steps, last state to 10 classes."""
    rng = np.random.default_rng(0)
    p = {
        "wx": _normal(rng, width, 4 * hidden, scale=0.08),
        "wh": _normal(rng, hidden, 4 * hidden, scale=0.08),
        "b": np.zeros(4 * hidden, np.float32),
        "w": _normal(rng, hidden, 10, scale=0.1),
    }

    def loss(p: Any, x: Any, y: Any) -> Any:
        h = c = go.zeros((batch, hidden))
        for z in x @ p["wx"] + p["b"]:
            i, f, g, o = go.split(z + h @ p["wh"], 4, axis=-1)
            c = go.sigmoid(f) * c + go.sigmoid(i) * go.tanh(g)
            h = go.sigmoid(o) * go.tanh(c)
        return go.cross_entropy(h @ p["w"], y).mean()

    x = _normal(rng, steps, batch, width, scale=1.0)
    return p, (x, _labels(rng, 10, batch)), loss


def recsys(batch: int = 256, fields: int = 8, rows: int = 50_000, dim: int = 32) -> Workload:
    """Eight look-ups in one table, side by side, two-layer net, binary cross-entropy on logits."""
    rng = np.random.default_rng(0)
    p = {
        "table": _normal(rng, rows, dim, scale=0.05),
        "w0": _normal(rng, fields * dim, 256, scale=0.06),
        "b0": np.zeros(256, np.float32),
        "w1": _normal(rng, 256, 1, scale=0.06),
        "b1": np.zeros(1, np.float32),
    }

    def loss(p: Any, x: Any, y: Any) -> Any:
        h = go.embedding(p["table"], x).reshape(batch, fields * dim)
        z = (go.relu(h @ p["w0"] + p["b0"]) @ p["w1"] + p["b1"])[:, 0]
        return go.bce_with_logits(z, y).mean()

    x = _labels(rng, rows, batch, fields)
    return p, (x, rng.integers(0, 2, batch).astype(np.float32)), loss


WORKLOADS: dict[str, Callable[..., Workload]] = {
    "mlp": mlp,
    "cnn": cnn,
    "resnet": resnet,
    "gpt": gpt,
    "lstm": lstm,
    "recsys": recsys,
}


OPTIMIZERS = ("sgd", "momentum", "adam")
PRECISIONS = ("float32", "bfloat16", "float16")
ADAM_RATE = 0.001


def start_of(parameters: Any, optimizer: str = "sgd", precision: str = "float32") -> Any:
    """The state of `train_step` before the first step: the parameters, and with an optimizer that
    remembers or in float16 a dict of them, the slots, the count of steps and the loss scale.
    """
    slots = {"sgd": (), "momentum": ("m",), "adam": ("m", "v")}[optimizer]
    state: dict[str, Any] = {s: {n: np.zeros_like(w) for n, w in parameters.items()} for s in slots}
    if optimizer == "adam":
        state["count"] = np.int32(0)
    if precision == "float16":
        scale = {"value": np.float32(2.0**15), "good": np.int32(0), "skipped": np.int32(0)}
        state["scale"] = scale
    return {"parameters": parameters, **state} if state else parameters


def train_step(
    loss: Callable[..., Any], optimizer: str = "sgd", precision: str = "float32"
) -> Callable[..., Any]:
    """(state, *batch) -> (state after one step, loss) for a state of `start_of`: plain SGD and
    momentum 0.9 at LEARNING_RATE, Adam at ADAM_RATE. The products of the loss are computed in
    `precision`, parameters and updates in float32; in float16 the loss is scaled.
    """

    def value_and_grad(*inputs: Any) -> Any:
        with go.autocast(None if precision == "float32" else precision):
            return go.value_and_grad(loss)(*inputs)

    def plain(parameters: Any, *batch: Any) -> Any:
        value, gradient = value_and_grad(parameters, *batch)
        return {n: parameters[n] - LEARNING_RATE * gradient[n] for n in parameters}, value

    def scaled(scale: Any, parameters: Any, *batch: Any) -> Any:
        def scaled_loss(parameters: Any, *batch: Any) -> Any:
            return loss(parameters, *batch) * scale["value"]

        with go.autocast(precision):
            value, gradient = go.value_and_grad(scaled_loss)(parameters, *batch)
        return value / scale["value"], go.optim.unscale(gradient, scale["value"])

    def step(state: Any, *batch: Any) -> Any:
        parameters = state["parameters"]
        if "scale" not in state:
            value, gradient = value_and_grad(parameters, *batch)
            return updated(state, gradient, optimizer), value
        value, gradient = scaled(state["scale"], parameters, *batch)
        finite = go.optim.all_finite(gradient)
        before = {n: x for n, x in state.items() if n != "scale"}
        new = go.optim.select_tree(finite, updated(before, gradient, optimizer), before)
        return {**new, "scale": go.optim.loss_scale_update(state["scale"], finite)}, value

    return plain if optimizer == "sgd" and precision != "float16" else step


def updated(state: Any, gradient: Any, optimizer: str) -> Any:
    """The state of a step after one update of all parameters."""
    new: dict[str, Any] = {name: {} for name in state}
    if optimizer == "adam":
        new["count"] = state["count"] + 1
    for n, p in state["parameters"].items():
        if optimizer == "adam":
            slots = state["m"][n], state["v"][n], new["count"]
            found = go.optim.adam_update(p, gradient[n], ADAM_RATE, *slots)
            new["parameters"][n], new["m"][n], new["v"][n] = found
        elif optimizer == "momentum":
            found = go.optim.momentum_update(p, gradient[n], LEARNING_RATE, state["m"][n])
            new["parameters"][n], new["m"][n] = found
        else:
            new["parameters"][n] = go.optim.sgd_update(p, gradient[n], LEARNING_RATE)
    return new
