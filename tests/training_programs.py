# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Training steps as people write them, each with a net and what it is trained by: what artifacts
are made of in test_export.py and test_iree_export.py.
"""

from collections.abc import Callable
from typing import Any

import gradopt as go
import numpy as np
from gradopt import nn, optim

Step = Callable[[Any, Any], Any]
Program = Callable[[], tuple[Step, Callable[[Any], Any]]]
"""Makes, by the seed of go.random, a training step (x, y) -> loss and a prediction of x."""

PROGRAMS: dict[str, Program] = {}


def program(fn: Program) -> Program:
    PROGRAMS[fn.__name__] = fn
    return fn


def batch(seed: int, rows: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Inputs (rows, 6) and targets (rows, 3)."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, 6)).astype(np.float32), rng.normal(size=(rows, 3)).astype("f4")


def stepping(net: Any, optimizer: Any) -> Step:
    """The usual step."""

    def step(x: Any, y: Any) -> Any:
        with go.record():
            loss = ((net(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


@program
def dropout_and_batch_norm() -> Any:
    net = nn.Sequential(nn.Dense(6, 8), nn.BatchNorm(8), go.relu, nn.Dropout(0.4), nn.Dense(8, 3))
    return stepping(net, optim.Adam(net, 0.05, clip_norm=1.0)), net


@program
def schedule_and_overrides() -> Any:
    net = nn.Sequential(nn.Dense(6, 8, activation="tanh"), nn.Dense(8, 3))
    optimizer = optim.AdamW(
        net,
        optim.schedules.warmup_cosine(0.1, warmup=2, steps=10),
        overrides={"*.bias": {"weight_decay": 0.0}},
        clip_value=0.5,
    )
    return stepping(net, optimizer), net


@program
def loss_scale() -> Any:
    net = nn.Sequential(nn.Dense(6, 8, activation="relu"), nn.Dense(8, 3))
    optimizer, scale = optim.SGD(net, 0.1, momentum=0.9), optim.LossScale(interval=2)

    def step(x: Any, y: Any) -> Any:
        with go.record(), go.autocast("float16"):
            error = net(x).astype("float32") - y
            loss = scale((error**2).mean())
        loss.backward()
        optimizer.step(loss_scale=scale)
        return loss

    return step, net


@program
def masters_of_16_bits() -> Any:
    net = nn.Sequential(nn.Dense(6, 8, activation="tanh"), nn.Dense(8, 3)).astype("bfloat16")
    optimizer = optim.Adam(net, 0.05)

    def step(x: Any, y: Any) -> Any:
        with go.record():
            error = net(x.astype("bfloat16")).astype("float32") - y
            loss = (error**2).mean()
        loss.backward()
        optimizer.step()
        return loss

    return step, lambda x: net(x.astype("bfloat16")).astype("float32")


@program
def frozen() -> Any:
    net = nn.Sequential(nn.Dense(6, 8, activation="tanh"), nn.BatchNorm(8), nn.Dense(8, 3))
    net.freeze("layers.0.*")
    return stepping(net, optim.RMSProp(net, 0.01)), net


@program
def tied() -> Any:
    class Tied(nn.Module):
        def __init__(self) -> None:
            self.inner = nn.Dense(6, 6, bias=False)
            self.outer = nn.Dense(6, 6, bias=False)
            self.outer.weight = self.inner.weight
            self.head = nn.Dense(6, 3)

        def __call__(self, x: Any) -> Any:
            return self.head(self.outer(go.tanh(self.inner(x))))

    net = Tied()
    return stepping(net, optim.Lion(net, 0.01)), net


@program
def average() -> Any:
    """An exponential moving average of the weights, which the prediction uses."""
    net = nn.Sequential(nn.Dense(6, 8, activation="tanh"), nn.Dense(8, 3))
    inner = stepping(net, optim.SGD(net, 0.1))
    mean = {path: go.array(x.detach()) for path, x in net.arrays().items()}

    def step(x: Any, y: Any) -> Any:
        loss = inner(x, y)
        for path, w in net.arrays().items():
            mean[path][...] = 0.9 * mean[path] + 0.1 * w.detach()
        return loss

    return step, lambda x: net.apply(mean, x)


@program
def accumulated() -> Any:
    """Gradients of two halves of a batch, added up."""
    net = nn.Sequential(nn.Dense(6, 8, activation="tanh"), nn.Dense(8, 3))
    net.set_grad_req("add")
    optimizer = optim.Adam(net, 0.05)

    def step(x: Any, y: Any) -> Any:
        total = go.array(np.float32(0))
        for half in (slice(0, 4), slice(4, 8)):
            with go.record():
                loss = ((net(x[half]) - y[half]) ** 2).mean()
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        return total

    return step, net


@program
def adversaries() -> Any:
    """Two nets with an optimizer each."""
    made, judge = nn.Dense(6, 3), nn.Sequential(nn.Dense(3, 4), go.tanh, nn.Dense(4, 1))
    ours, theirs = optim.SGD(made, 0.1), optim.Adam(judge, 0.01)

    def step(x: Any, y: Any) -> Any:
        with go.record():
            gap = judge(made(x).detach()).mean() - judge(y).mean()
        gap.backward()
        theirs.step()
        with go.record():
            loss = -judge(made(x)).mean()
        loss.backward()
        ours.step()
        return loss

    return step, made


@program
def by_hand() -> Any:
    """Neither modules nor optimizers: arrays and go.grad."""
    w, count = go.array(np.linspace(-1, 1, 18, dtype=np.float32).reshape(6, 3)), go.array(0)

    def error(w: Any, x: Any, y: Any) -> Any:
        keep = go.dropout(x, 0.25, go.random.fold_in(go.random.key(5), count))
        return ((keep @ w - y) ** 2).mean()

    def step(x: Any, y: Any) -> Any:
        loss, slope = go.value_and_grad(error)(w, x, y)
        w[...] = w - 0.1 * slope
        count.__iadd__(1)
        return loss

    return step, lambda x: x @ w
