# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Train a small convolutional net on scikit-learn's handwritten digits, and export it.

    python examples/digits.py --out out/digits

Everything that runs is compiled by IREE: a training step (forward, backward, momentum update) and a
prediction. What is written to the folder runs without gradopt: see digits_infer.py.
"""

import argparse
import pathlib
import resource
import time
from typing import Any

import gradopt as go
import numpy as np
import rich.progress
from sklearn.datasets import load_digits

BATCH, EPOCHS, LEARNING_RATE, MOMENTUM = 32, 25, 0.05, 0.9

Tree = dict[str, Any]


def data(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training images and labels, then those of the test set, a fifth of all 1,797; images are 8 x
    8 in [0, 1].
    """
    digits = load_digits()
    order = np.random.default_rng(seed).permutation(len(digits.target))
    images = (digits.images[order] / 16).astype(np.float32)[..., None]
    labels = digits.target[order].astype(np.int32)
    cut = len(labels) * 4 // 5
    return images[:cut], labels[:cut], images[cut:], labels[cut:]


def initial(seed: int = 1) -> Tree:
    """He-initialized weights."""
    rng = np.random.default_rng(seed)

    def he(*shape: int) -> np.ndarray:
        scale = np.sqrt(2 / np.prod(shape[:-1]))
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    return {
        "conv1": {"w": he(3, 3, 1, 16), "b": np.zeros(16, np.float32)},
        "conv2": {"w": he(3, 3, 16, 32), "b": np.zeros(32, np.float32)},
        "dense": {"w": he(512, 10), "b": np.zeros(10, np.float32)},
    }


def logits(p: Tree, images: Any) -> Any:
    """Class scores of images (N, 8, 8, 1)."""
    h = go.relu(go.conv(images, p["conv1"]["w"], padding=1) + p["conv1"]["b"])
    h = go.relu(go.conv(h, p["conv2"]["w"], strides=2, padding=1) + p["conv2"]["b"])
    return h.reshape(-1, 512) @ p["dense"]["w"] + p["dense"]["b"]


def loss(p: Tree, images: Any, labels: Any) -> Any:
    return go.cross_entropy(logits(p, images), labels).mean()


@go.compile(donate=(0, 1))
def step(p: Tree, velocity: Tree, images: Any, labels: Any) -> tuple[Tree, Tree, Any]:
    """One step of gradient descent with momentum; weights and velocity are updated in their
    storage.
    """
    value, gradient = go.value_and_grad(loss)(p, images, labels)
    velocity = {
        layer: {n: MOMENTUM * velocity[layer][n] + gradient[layer][n] for n in velocity[layer]}
        for layer in velocity
    }
    p = {
        layer: {n: p[layer][n] - LEARNING_RATE * velocity[layer][n] for n in p[layer]}
        for layer in p
    }
    return p, velocity, value


def predict(p: Tree, images: Any) -> Any:
    """The most likely digit of each image."""
    return logits(p, images).argmax(-1)


def train(images: np.ndarray, labels: np.ndarray) -> tuple[Tree, float]:
    """Trained weights and the median milliseconds of a step."""
    p = initial()
    velocity = {layer: {n: np.zeros_like(w) for n, w in ws.items()} for layer, ws in p.items()}
    rng = np.random.default_rng(2)
    times = []
    columns = [
        *rich.progress.Progress.get_default_columns(),
        rich.progress.TextColumn("loss {task.fields[loss]}"),
    ]
    with rich.progress.Progress(*columns) as progress:
        task = progress.add_task("training", total=EPOCHS, loss="-")
        for _ in range(EPOCHS):
            order = rng.permutation(len(labels))
            for batch in order[: len(order) // BATCH * BATCH].reshape(-1, BATCH):
                begin = time.perf_counter()
                p, velocity, value = step(p, velocity, images[batch], labels[batch])
                times.append((time.perf_counter() - begin) * 1e3)
            progress.update(task, advance=1, loss=f"{value:.4f}")
    return p, float(np.median(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        default=pathlib.Path("out/digits"),
        help="the folder to write to",
    )
    folder = parser.parse_args().out
    images, labels, test_images, test_labels = data()
    print(
        f"{len(labels)} digits to train on, {len(test_labels)} to test; compiling takes a few "
        "seconds"
    )
    p, milliseconds = train(images, labels)
    found = np.asarray(go.compile(predict)(p, test_images))
    print(f"test accuracy {np.mean(found == test_labels):.4f}")
    print(f"step          {milliseconds:.3f} ms")
    print(f"peak memory   {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")
    some = go.TensorSpec((None, *test_images.shape[1:]))
    manifest = go.export(folder / "digits", {"predict": (predict, (p, some))}, {"p": p})
    np.savez(folder / "test.npz", images=test_images, labels=test_labels)
    info = go.cache_info()
    print(
        f"wrote {manifest} ({info.compiled} modules compiled, {info.disk_hits} found in the cache)"
    )


if __name__ == "__main__":
    main()
