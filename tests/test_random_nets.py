# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Random nets trained by random optimizers: eager, put off, hybridized and copied, with the same
numbers; and their gradients against central differences.
"""

import copy
import os
from collections.abc import Callable
from typing import Any

import gradopt as go
import numpy as np
import pytest
from gradopt import nn, optim

COUNT = int(os.environ.get("GRADOPT_RANDOM_NETS", "6"))
STEPS = 3
CLASSES = 3


class Residual(nn.Module):
    """x + inner(x), with a scale, and a state that counts."""

    def __init__(self, inner: nn.Module, dtype: Any) -> None:
        self.parts = {"inner": inner, "scale": nn.parameter(np.asarray(0.5, dtype))}
        self.calls = go.array(0)

    def __call__(self, x: Any) -> Any:
        self.set_state("calls", self.calls + 1)
        return x + self.parts["inner"](x) * self.parts["scale"]


class Last(nn.Module):
    """The outputs of a recurrent layer."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer

    def __call__(self, x: Any) -> Any:
        return self.layer(x)[0]


def image_part(rng: np.random.Generator, c: int, dtype: Any) -> nn.Module:
    """A part that keeps (N, 4, 4, c)."""
    layout: dict[str, Any] = {"padding": "SAME", "dtype": dtype}
    return [
        lambda: nn.Conv(c, c, 3, activation="tanh", **layout),
        lambda: nn.Conv(c, c, (2, 3), groups=c, bias=False, **layout),
        lambda: nn.BatchNorm(c, dtype=dtype),
        lambda: nn.GroupNorm(c, 2, dtype=dtype),
        lambda: nn.LayerNorm((4, c), dtype=dtype),
        lambda: Residual(nn.Conv(c, c, 1, activation="silu", dtype=dtype), dtype),
        lambda: nn.Dropout(0.3, shared=(1, 2)),
        lambda: nn.Sequential(nn.AvgPool(2), nn.ConvTranspose(c, c, 2, strides=2, dtype=dtype)),
    ][rng.integers(8)]()


def sequence_part(rng: np.random.Generator, c: int, dtype: Any) -> nn.Module:
    """A part that keeps (N, 3, c)."""
    return [
        lambda: nn.Dense(c, c, activation="gelu", dtype=dtype),
        lambda: Residual(nn.MultiHeadAttention(c, 2, causal=True, dtype=dtype), dtype),
        lambda: nn.MultiHeadAttention(c, 4, kv_heads=2, dropout=0.2, dtype=dtype),
        lambda: Last(nn.LSTM(c, c, reverse=True, dtype=dtype)),
        lambda: Last(nn.GRU(c, c, dtype=dtype)),
        lambda: nn.RMSNorm(c, dtype=dtype),
        lambda: nn.BatchNorm(c, dtype=dtype),
        lambda: nn.Dropout(0.2),
    ][rng.integers(8)]()


def some_net(rng: np.random.Generator, dtype: Any) -> tuple[nn.Module, Any]:
    """A net that gives (N, CLASSES), and its input."""
    if rng.random() < 0.5:
        parts = [image_part(rng, 4, dtype) for _ in range(rng.integers(1, 4))]
        ends = nn.Flatten(), nn.Dense(64, CLASSES, dtype=dtype)
        return nn.Sequential(*parts, *ends), rng.normal(size=(2, 4, 4, 4)).astype(dtype)
    parts = [sequence_part(rng, 8, dtype) for _ in range(rng.integers(1, 4))]
    ends = nn.Flatten(), nn.Dense(24, CLASSES, dtype=dtype)
    if rng.random() < 0.5:
        table = nn.Embedding(5, 8, dtype=dtype)
        return nn.Sequential(table, *parts, *ends), rng.integers(0, 5, (2, 3)).astype(np.int32)
    return nn.Sequential(*parts, *ends), rng.normal(size=(2, 3, 8)).astype(dtype)


def some_optimizer(rng: np.random.Generator, net: nn.Module) -> optim.Optimizer:
    rates = [0.01, optim.schedules.cosine(0.05, 5), optim.schedules.piecewise([0.01, 0.1], [2])]
    options: dict[str, Any] = {"learning_rate": rates[rng.integers(3)]}
    if rng.random() < 0.5:
        options["clip_norm"] = 0.3
    if rng.random() < 0.5:
        options["weight_decay"] = 0.1
        options["overrides"] = {"*s": {"weight_decay": 0.0}} if rng.random() < 0.5 else {}
        names = list(net.parameters())
        if not any(n.endswith("s") for n in names):
            options["overrides"] = {}
    kinds = [optim.SGD, optim.Adam, optim.AdamW, optim.RMSProp, optim.AdaGrad, optim.Lion]
    return kinds[rng.integers(6)](net, **options)


class Job:
    """A net, its optimizer and perhaps a loss scale, made from a number."""

    def __init__(self, seed: int, dtype: Any) -> None:
        rng = np.random.default_rng(seed)
        go.random.seed(seed)
        self.net, self.x = some_net(rng, dtype)
        self.labels = rng.integers(0, CLASSES, 2).astype(np.int32)
        self.optimizer = some_optimizer(rng, self.net)
        self.scale = optim.LossScale(4.0, interval=2) if rng.random() < 0.5 else None

    def step(self, x: Any, labels: Any) -> Any:
        with go.record():
            loss = go.cross_entropy(self.net(x), labels).mean()
            scaled = loss if self.scale is None else self.scale(loss)
        scaled.backward()
        self.optimizer.step(loss_scale=self.scale)
        return loss

    def run(self, wrap: Callable[[Any], Any] = lambda f: f) -> dict[str, np.ndarray]:
        """Losses and all arrays after some steps."""
        step = wrap(self.step)
        losses = [step(self.x, self.labels) for _ in range(STEPS)]
        found = {f"loss {i}": np.array(x) for i, x in enumerate(losses)}
        for holder in (self.net, self.optimizer, self.scale):
            arrays = {} if holder is None else holder.arrays()
            found |= {f"{type(holder).__name__} {k}": np.array(x) for k, x in arrays.items()}
        return found


def check(found: dict[str, np.ndarray], want: dict[str, np.ndarray], how: str) -> None:
    """Equal but for float64's rounding; gradients that are rounding alone, such as those of a bias
    behind which a mean is taken away, move AdaGrad's parameters most, by 1e-16 / eps = 1e-6 lr.
    """
    assert list(found) == list(want)
    for name, x in found.items():
        np.testing.assert_allclose(x, want[name], rtol=1e-7, atol=1e-7, err_msg=f"{how}: {name}")


def put_off(job: Job) -> dict[str, np.ndarray]:
    """A run in lazy mode, graphs being run by the ops' references."""
    target = go.config.target
    try:
        go.config.target = "reference"
        with go.eager_mode("lazy"):
            return job.run()
    finally:
        go.config.target = target


@pytest.mark.parametrize("seed", range(COUNT))
def test_every_way(seed: int) -> None:
    """B38: all ways to run steps give the same losses, parameters, states and random keys."""
    job = Job(seed, np.float64)
    keys = go.random.get_state()
    twin = copy.deepcopy(job)
    want = job.run()
    assert all(np.isfinite(x).all() for x in want.values())
    go.random.set_state(keys)
    copied = twin.run()
    for name, x in copied.items():
        np.testing.assert_array_equal(x, want[name], err_msg=name)
    if isinstance(job.optimizer, optim.Lion):
        return  # a step is a sign: where a gradient is rounding alone, anything
    check(Job(seed, np.float64).run(lambda f: go.hybridize(f, target="reference")), want, "hybrid")
    check(put_off(Job(seed, np.float64)), want, "lazy")


@pytest.mark.parametrize("seed", range(COUNT))
def test_gradients(seed: int) -> None:
    """Along a random direction in all parameters, the gradient is the central difference."""
    job = Job(seed, np.float64)
    net, keys = job.net, go.random.get_state()
    states = {k: np.array(x) for k, x in net.arrays().items() if k not in net.parameters()}

    def loss() -> Any:
        go.random.set_state(keys)
        net.update(states, strict=False)
        with go.record():
            return go.cross_entropy(net(job.x), job.labels).mean()

    loss().backward()
    rng = np.random.default_rng(seed)
    along = {k: rng.normal(size=x.shape) for k, x in net.parameters().items()}
    slope = sum((np.asarray(x.grad) * along[k]).sum() for k, x in net.parameters().items())
    middle, values, h = {k: np.array(x) for k, x in net.parameters().items()}, [], 1e-6
    for sign in (1, -1):
        net.update({k: m + sign * h * along[k] for k, m in middle.items()}, strict=False)
        values.append(float(loss()))
    np.testing.assert_allclose(slope, (values[0] - values[1]) / (2 * h), rtol=1e-5, atol=1e-8)
