# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Train the digits artifact on a device, with nothing but the artifact, IREE's runtime and NumPy.

    python examples/digits_device.py out/digits out/digits.npz --target vulkan

examples/digits.py writes both. The folder has `init`, which makes a new net, `step`, which trains
on a batch, and `infer`, which says what digits it sees. Every few batches a checkpoint is written.
Where there is one already, training goes on from it: killed at any time and started again, it ends
with the very same weights.
"""

import argparse
import importlib.util
import pathlib
import sys
import time
from typing import Any

import numpy as np


def loader(folder: pathlib.Path) -> Any:
    """The artifact's own loader: gradopt_deploy.py out of its folder."""
    spec = importlib.util.spec_from_file_location("gradopt_deploy", folder / "gradopt_deploy.py")
    assert spec and spec.loader, f"{folder} has no gradopt_deploy.py"
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def batches(epoch: int, seed: int, count: int, size: int) -> np.ndarray:
    """The batches of an epoch, rows of indices: the same ones whenever they are asked for."""
    order = np.random.default_rng([seed, epoch]).permutation(count)
    return order[: count // size * size].reshape(-1, size)


def train(model: Any, data: Any, options: argparse.Namespace) -> None:
    """Train from the checkpoint, if there is one, to the end of the last epoch."""
    at = {"epoch": 0, "batch": 0, "seed": options.seed}
    if options.checkpoint.exists():
        at = model.restore(options.checkpoint)
        print(f"resumed at epoch {at['epoch']}, batch {at['batch']}", flush=True)
    elif "init" in model.functions:
        model.init(options.seed)
    size = model.step.inputs[0].shape[0] or options.batch
    since, last = 0, time.perf_counter()
    for epoch in range(at["epoch"], options.epochs):
        rows = batches(epoch, at["seed"], len(data["labels"]), size)
        loss = float("nan")
        for i in range(at["batch"] if epoch == at["epoch"] else 0, len(rows)):
            loss = float(model.step(data["images"][rows[i]], data["labels"][rows[i]])["loss"])
            since += 1
            if since % options.every == 0 and i + 1 < len(rows):
                model.save(options.checkpoint, epoch=epoch, batch=i + 1, seed=at["seed"])
        model.save(options.checkpoint, epoch=epoch + 1, batch=0, seed=at["seed"])
        took, last = time.perf_counter() - last, time.perf_counter()
        print(f"epoch {epoch + 1}: loss {loss:.4f}, {took:.1f} s", flush=True)


def accuracy(model: Any, data: Any) -> float:
    """The share of test images whose digit is right."""
    images, labels = data["test_images"], data["test_labels"]
    found = next(iter(model.infer(images).values()))
    if found.ndim == 2:  # scores
        found = found.argmax(1)
    return float(np.mean(found == labels))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path, help="the artifact")
    parser.add_argument("data", type=pathlib.Path, help="the .npz file with images and labels")
    parser.add_argument("--target", default="auto", help="cpu, vulkan, ... (auto)")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=32, help="where the artifact leaves it open")
    parser.add_argument("--seed", type=int, default=0, help="of the net, and the order of images")
    parser.add_argument("--every", type=int, default=20, help="batches between checkpoints")
    parser.add_argument("--checkpoint", type=pathlib.Path, default=pathlib.Path("digits.ckpt"))
    options = parser.parse_args()
    model = loader(options.folder).load(options.folder, options.target)
    print(f"{model.name} for {model.target}, loaded in {1e3 * model.load_seconds:.0f} ms")
    with np.load(options.data) as file:
        data = dict(file)
    train(model, data, options)
    print(f"test accuracy {accuracy(model, data):.4f}")


if __name__ == "__main__":
    main()
