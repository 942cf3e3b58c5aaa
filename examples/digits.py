# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Train a small convolutional net on scikit-learn's handwritten digits, and export it.

    python examples/digits.py --out out/digits --targets cpu,vulkan

A training step (forward, backward, momentum update) is one compiled call here. The folder that is
written trains, evaluates and predicts without gradopt: see digits_infer.py and digits_device.py.
"""

import argparse
import pathlib
import resource
import time
from typing import Any

import gradopt as go
import numpy as np
import rich.progress
from gradopt import nn, optim
from sklearn.datasets import load_digits

BATCH, EPOCHS, LEARNING_RATE, MOMENTUM = 32, 25, 0.05, 0.9


def data(seed: int = 0) -> dict[str, np.ndarray]:
    """Training images and labels, and those of the test set, a fifth of all 1,797; images are 8 x
    8 in [0, 1].
    """
    digits = load_digits()
    order = np.random.default_rng(seed).permutation(len(digits.target))
    images = (digits.images[order] / 16).astype(np.float32)[..., None]
    labels = digits.target[order].astype(np.int32)
    cut = len(labels) * 4 // 5
    return {
        "images": images[:cut],
        "labels": labels[:cut],
        "test_images": images[cut:],
        "test_labels": labels[cut:],
    }


def make() -> tuple[nn.Module, optim.Optimizer]:
    """A net from images (N, 8, 8, 1) to scores (N, 10), and what trains it."""
    net = nn.Sequential(
        nn.Conv(1, 16, 3, padding=1, activation="relu"),
        nn.Conv(16, 32, 3, strides=2, padding=1),
        nn.BatchNorm(32),
        go.relu,
        nn.Flatten(),
        nn.Dense(512, 10),
    )
    return net, optim.SGD(net, LEARNING_RATE, momentum=MOMENTUM)


def init(seed: Any) -> tuple[nn.Module, optim.Optimizer]:
    """A new net; on a device, too."""
    go.random.seed(seed)
    return make()


class Task:
    """What is done with a net; each method can be compiled, and exported."""

    def __init__(self, net: nn.Module, optimizer: optim.Optimizer) -> None:
        self.net, self.optimizer = net, optimizer

    def step(self, images: Any, labels: Any) -> dict[str, Any]:
        """Train on a batch."""
        with go.record():
            loss = go.cross_entropy(self.net(images), labels).mean()
        loss.backward()
        self.optimizer.step()
        return {"loss": loss}

    def evaluate(self, images: Any, labels: Any) -> dict[str, Any]:
        """How good the net is."""
        scores = self.net(images)
        right = (scores.argmax(-1) == labels).astype("float32")
        return {"loss": go.cross_entropy(scores, labels).mean(), "accuracy": right.mean()}

    def infer(self, images: Any) -> dict[str, Any]:
        """The most likely digit of each image."""
        return {"digit": self.net(images).argmax(-1)}


def train(task: Task, images: np.ndarray, labels: np.ndarray, target: str) -> float:
    """Train, and return the median milliseconds of a step."""
    step = go.hybridize(task.step, target=target)
    rng = np.random.default_rng(2)
    times = []
    columns = [
        *rich.progress.Progress.get_default_columns(),
        rich.progress.TextColumn("loss {task.fields[loss]}"),
    ]
    with rich.progress.Progress(*columns) as progress:
        bar = progress.add_task("training", total=EPOCHS, loss="-")
        for _ in range(EPOCHS):
            order = rng.permutation(len(labels))
            for batch in order[: len(order) // BATCH * BATCH].reshape(-1, BATCH):
                begin = time.perf_counter()
                loss = step(images[batch], labels[batch])["loss"]
                times.append((time.perf_counter() - begin) * 1e3)
            progress.update(bar, advance=1, loss=f"{float(loss):.4f}")
    return float(np.median(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=pathlib.Path, default=pathlib.Path("out/digits"), help="the folder to write"
    )
    parser.add_argument("--target", default="cpu", help="what to train on here")
    parser.add_argument("--targets", default="cpu", help="what to export for: cpu,vulkan")
    options = parser.parse_args()
    arrays = data()
    print(
        f"{len(arrays['labels'])} digits to train on, {len(arrays['test_labels'])} to test; "
        "compiling takes a few seconds"
    )
    net, optimizer = init(1)
    task = Task(net, optimizer)
    milliseconds = train(task, arrays["images"], arrays["labels"], options.target)
    with go.infer_mode():
        found = task.evaluate(go.array(arrays["test_images"]), go.array(arrays["test_labels"]))
    print(f"test accuracy {float(found['accuracy']):.4f}")
    print(f"step          {milliseconds:.3f} ms")
    print(f"peak memory   {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")

    batch = go.TensorSpec((BATCH, 8, 8, 1)), go.TensorSpec((BATCH,), "int32")
    some = go.TensorSpec((None, 8, 8, 1)), go.TensorSpec((None,), "int32")
    functions = {
        "init": (init, (go.TensorSpec((), "int64"),)),
        "step": (task.step, batch),
        "eval": (task.evaluate, some),
        "infer": (task.infer, some[:1]),
    }
    begin = time.perf_counter()
    go.export(options.out, functions, targets=options.targets.split(","))
    np.savez(options.out.with_suffix(".npz"), **arrays)  # type: ignore[arg-type]
    print(f"wrote {options.out} in {time.perf_counter() - begin:.1f} s")


if __name__ == "__main__":
    main()
