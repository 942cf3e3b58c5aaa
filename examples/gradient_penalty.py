# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Train a generator of handwritten digits against a convolutional critic with a gradient penalty.

    python examples/gradient_penalty.py --steps 200

The critic's loss holds the norm of its own gradient by the images (Gulrajani et al. 2017, "Improved
Training of Wasserstein GANs"), so its update is a second derivative through the convolutions. The
nets are trained twice from the same weights: line by line, on the tape, and by one compiled step.
Both print the same numbers.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import gradopt as go
import numpy as np
from sklearn.datasets import load_digits

BATCH, NOISE, PENALTY = 32, 16, 10.0
CRITIC_RATE, GENERATOR_RATE = 0.01, 0.05

Net = dict[str, Any]


def images() -> np.ndarray:
    """All 1,797 digits, (N, 8, 8, 1) in [-1, 1]."""
    return (load_digits().images / 8 - 1).astype(np.float32)[..., None]


def initial(seed: int = 1) -> tuple[Net, Net]:
    """Weights of a critic and a generator."""
    rng = np.random.default_rng(seed)

    def weights(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / np.sqrt(np.prod(shape[:-1]))).astype(np.float32)

    critic = {
        "conv1": weights(3, 3, 1, 8),
        "conv2": weights(3, 3, 8, 16),
        "dense": weights(4 * 4 * 16, 1),
    }
    generator = {"hidden": weights(NOISE, 64), "image": weights(64, 64), "bias": np.zeros(64, "f4")}
    return critic, generator


def score(critic: Net, x: Any) -> Any:
    """How real the critic takes images to be, a number each."""
    h = go.silu(go.conv(x, critic["conv1"], padding=1))
    h = go.silu(go.conv(h, critic["conv2"], strides=2, padding=1))
    return (h.reshape(-1, 4 * 4 * 16) @ critic["dense"]).reshape(-1)


def generate(generator: Net, noise: Any) -> Any:
    """Images made of noise, (N, 8, 8, 1) in [-1, 1]."""
    h = go.silu(noise @ generator["hidden"])
    return go.tanh(h @ generator["image"] + generator["bias"]).reshape(-1, 8, 8, 1)


def penalty(slope: Any) -> Any:
    """How far the norm of the critic's gradient by an image, (N, 8, 8, 1), is from 1."""
    norm = go.sqrt((slope * slope).sum(axis=(1, 2, 3)) + 1e-12)
    return PENALTY * ((norm - 1) ** 2).mean()


def batches(x: np.ndarray, steps: int, seed: int = 2) -> Iterator[tuple[np.ndarray, ...]]:
    """For each step: real images, noise, and where between real and fake the slope is taken."""
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        real = x[rng.integers(0, len(x), BATCH)]
        noise = rng.standard_normal((BATCH, NOISE)).astype(np.float32)
        yield real, noise, rng.random((BATCH, 1, 1, 1), np.float32)


# --- line by line ---------------------------------------------------------------------------------


class Eager:
    """Nets whose weights are variables; ops run when they are called."""

    def __init__(self, critic: Net, generator: Net) -> None:
        self.critic = {name: go.array(w) for name, w in critic.items()}
        self.generator = {name: go.array(w) for name, w in generator.items()}
        for w in (*self.critic.values(), *self.generator.values()):
            w.attach_grad()

    def step(self, real: Any, noise: Any, between: Any) -> tuple[float, float]:
        """Update the critic, then the generator; their losses before."""
        fake = generate(self.generator, go.array(noise))
        middle = real * between + fake * (1 - between)
        middle.attach_grad()
        with go.record():
            (slope,) = go.autograd.grad(score(self.critic, middle), [middle], create_graph=True)
            loss = score(self.critic, fake).mean() - score(self.critic, real).mean()
            loss = loss + penalty(slope)
        loss.backward()
        for w in self.critic.values():
            w -= CRITIC_RATE * w.grad
        with go.record():
            made = -score(self.critic, generate(self.generator, go.array(noise))).mean()
        weights = list(self.generator.values())
        for w, slope in zip(weights, go.autograd.grad(made, weights), strict=True):
            w -= GENERATOR_RATE * slope
        return float(loss), float(made)


# --- compiled -------------------------------------------------------------------------------------


def critic_loss(critic: Net, real: Any, fake: Any, between: Any) -> Any:
    middle = real * between + fake * (1 - between)
    slope = go.grad(lambda x: score(critic, x).sum())(middle)
    return score(critic, fake).mean() - score(critic, real).mean() + penalty(slope)


def generator_loss(generator: Net, critic: Net, noise: Any) -> Any:
    return -score(critic, generate(generator, noise)).mean()


@go.compile(donate=(0, 1))
def step(critic: Net, generator: Net, real: Any, noise: Any, between: Any) -> tuple[Any, ...]:
    """The same step as one function: forward, both backwards, both updates."""
    fake = generate(generator, noise)
    loss, slope = go.value_and_grad(critic_loss)(critic, real, fake, between)
    critic = {name: w - CRITIC_RATE * slope[name] for name, w in critic.items()}
    made, slope = go.value_and_grad(generator_loss)(generator, critic, noise)
    generator = {name: w - GENERATOR_RATE * slope[name] for name, w in generator.items()}
    return critic, generator, loss, made


class Compiled:
    """Nets whose weights go into the compiled step, and come out of it."""

    def __init__(self, critic: Net, generator: Net) -> None:
        self.critic, self.generator = critic, generator

    def step(self, real: Any, noise: Any, between: Any) -> tuple[float, float]:
        found = step(self.critic, self.generator, real, noise, between)
        self.critic, self.generator, loss, made = found
        return float(loss), float(made)


def train(nets: Any, x: np.ndarray, steps: int) -> tuple[np.ndarray, float]:
    """The losses of each step, and the median milliseconds of one."""
    losses, times = [], []
    for batch in batches(x, steps):
        begin = time.perf_counter()
        losses.append(nets.step(*batch))
        times.append((time.perf_counter() - begin) * 1e3)
    return np.array(losses), float(np.median(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    x = images()
    makers: list[Callable[..., Any]] = [Eager, Compiled]
    (eager, slow), (compiled, fast) = [train(make(*initial()), x, steps) for make in makers]
    print("step   critic: eager  compiled     generator: eager  compiled")
    for i in sorted({*range(0, steps, max(1, steps // 10)), steps - 1}):
        (a, b), (c, d) = eager[i], compiled[i]
        print(f"{i:4d}        {a:9.5f} {c:9.5f}            {b:9.5f} {d:9.5f}")
    print(f"largest difference {np.abs(eager - compiled).max():.2e}")
    print(f"a step: {slow:.1f} ms line by line, {fast:.2f} ms compiled")


if __name__ == "__main__":
    main()
