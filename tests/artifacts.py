# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""A small artifact for tests of what loads artifacts: a net on 8 x 8 images, trained with momentum
in place.
"""

import functools
import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any

import gradopt as go
import numpy as np
from gradopt import deploy

BATCH = 16
HAS_VULKAN = any(d.driver == "vulkan" for d in deploy.devices())
TARGETS = ("cpu", "vulkan") if HAS_VULKAN else ("cpu",)

Tree = dict[str, Any]


def scores(p: Tree, images: Any) -> Any:
    return go.tanh(images.reshape(-1, 64) @ p["w1"] + p["b1"]) @ p["w2"]


def loss(p: Tree, images: Any, labels: Any) -> Any:
    return go.cross_entropy(scores(p, images), labels).mean()


def step(p: Tree, v: Tree, count: Any, images: Any, labels: Any) -> Tree:
    value, gradient = go.value_and_grad(loss)(p, images, labels)
    v = {k: 0.9 * v[k] + gradient[k] for k in p}
    return {
        "p": {k: p[k] - 0.05 * v[k] for k in p},
        "v": v,
        "count": count + 1,
        "loss": value,
    }


def evaluate(p: Tree, images: Any, labels: Any) -> Tree:
    return {"loss": loss(p, images, labels)}


def infer(p: Tree, images: Any) -> Tree:
    return {"label": scores(p, images).argmax(-1), "scores": scores(p, images)}


def parameters() -> Tree:
    rng = np.random.default_rng(3)
    return {
        "w1": rng.normal(size=(64, 32)).astype(np.float32) / 8,
        "b1": np.zeros(32, np.float32),
        "w2": rng.normal(size=(32, 10)).astype(np.float32) / 6,
    }


def data(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Images of which the net can learn the labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, count).astype(np.int32)
    patterns = np.random.default_rng(77).random((10, 8, 8, 1))
    images = patterns[labels] + rng.normal(size=(count, 8, 8, 1)) / 4
    return images.astype(np.float32), labels


@functools.cache
def shared() -> pathlib.Path:
    """The artifact for all targets that run here, of a process; not to be changed."""
    return write(pathlib.Path(_folder.name) / "digits")


_folder = tempfile.TemporaryDirectory(prefix="gradopt-artifacts-")


def write(folder: pathlib.Path, targets: Sequence[str] = TARGETS, **options: Any) -> pathlib.Path:
    """The artifact with step, eval and infer."""
    p = parameters()
    v = {k: np.zeros_like(a) for k, a in p.items()}
    count = np.int32(0)
    images, labels = go.TensorSpec((BATCH, 8, 8, 1)), go.TensorSpec((BATCH,), "int32")
    functions = {
        "step": (step, (p, v, count, images, labels)),
        "infer": (infer, (p, go.TensorSpec((None, 8, 8, 1)))),
        "eval": (evaluate, (p, images, labels)),
    }
    state = {"v": v, "count": count}
    return go.export(folder, functions, {"p": p}, state=state, targets=targets, **options)
