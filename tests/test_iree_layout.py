# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Nets with channels first, compiled by IREE: one step of training in both layouts."""

from typing import Any

import gradopt as go
import numpy as np
import pytest

from .helpers import compile_many, linalg_function, run_reference, spec

pytestmark = pytest.mark.compiler
rng = np.random.default_rng(8)


def draw(*shape: int) -> np.ndarray:
    return (rng.normal(size=shape) / 2).astype(np.float32)


IMAGES, STEM, DEEP, SHORT = (
    draw(4, 3, 12, 12),
    draw(8, 3, 3, 3),
    draw(16, 8, 3, 3),
    draw(16, 8, 1, 1),
)
GAMMA, HEAD = draw(16), draw(16 * 3 * 3, 5)
KERNELS = (2, 3, 1, 0)


def step_of(last: bool) -> Any:
    """One step of a small residual net: images, kernels, batch norm and linear weights -> the
    kernels, weights after it, and the loss. The images are flattened with channels first.
    """
    layout, axis = ("channels_last", 3) if last else ("channels_first", 1)

    def loss(p: list[Any], x: Any) -> Any:
        stem, deep, short, gamma, head = p
        x = go.relu(go.conv(x, stem, padding=1, layout=layout))
        x = go.max_pool(x, 2, channels_last=last)
        h = go.conv(x, deep, 2, 1, layout=layout)
        h = go.batch_norm(h, gamma, gamma, channel_axis=axis)
        h = go.relu(h + go.conv(x, short, 2, layout=layout))
        h = h.transpose(0, 3, 1, 2) if last else h
        return go.log_softmax(h.reshape(4, -1) @ head)[:, 0].mean()

    def step(x: Any, *p: Any) -> Any:
        value, gradients = go.value_and_grad(lambda *p: loss(list(p), x), (0, 1, 2, 3, 4))(*p)
        return (*(a - 0.1 * g for a, g in zip(p, gradients, strict=True)), value)

    return step


def test_a_step_of_training_in_both_layouts() -> None:
    first = [IMAGES, STEM, DEEP, SHORT, GAMMA, HEAD]
    last = [IMAGES.transpose(0, 2, 3, 1), *(k.transpose(KERNELS) for k in first[1:4]), GAMMA, HEAD]
    arrays = {"first": first, "last": [np.ascontiguousarray(a) for a in last]}
    steps = {"first": step_of(last=False), "last": step_of(last=True)}
    run = compile_many({n: linalg_function(f, n, *arrays[n]) for n, f in steps.items()})
    want = {n: run_reference(steps[n], *arrays[n]) for n in steps}
    found = {n: run[n]([spec(w) for w in want[n]], *arrays[n]) for n in steps}
    near = {"rtol": 2e-5, "atol": 2e-5}
    for name in steps:
        for got, expected in zip(found[name], want[name], strict=True):
            np.testing.assert_allclose(got, expected, **near)
    for i, (a, b) in enumerate(zip(found["first"], found["last"], strict=True)):
        np.testing.assert_allclose(a.transpose(KERNELS) if i < 3 else a, b, **near)
