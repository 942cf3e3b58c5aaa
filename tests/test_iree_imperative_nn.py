# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""B38: train steps of nets, as they are, run eagerly and hybridized: one compiled call each, with
the same losses, parameters, states and random numbers.
"""

import os
import pathlib
from collections.abc import Callable
from typing import Any

import gradopt as go
import numpy as np
import pytest
import safetensors.numpy
from gradopt import deploy, nn, optim
from gradopt.errors import GradientError

from .test_nn import CASES, Case, trained

pytestmark = pytest.mark.compiler

LAYERS = int(os.environ.get("GRADOPT_NN_LAYERS", "1"))
"""How many layers are compiled one by one; 28 is all of them."""
FIRST = ("attention-context-mask", "gru")

rng = np.random.default_rng(2)
X = rng.normal(size=(16, 6, 6, 1)).astype(np.float32)
LABELS = (X.mean((1, 2, 3)) > 0).astype(np.int32)


class Step:
    """A train step and all arrays that it works on."""

    def __init__(
        self,
        make: Callable[[], nn.Module],
        optimizer: Callable[[nn.Module], Any],
        scaled: bool = True,
    ) -> None:
        go.random.seed(3)
        self.net = make()
        self.optimizer = optimizer(self.net)
        self.scale = optim.LossScale(4.0, interval=4) if scaled else None

    def __call__(self, x: Any, labels: Any) -> Any:
        with go.record():
            loss = go.cross_entropy(self.net(x), labels).mean()
            scaled = loss if self.scale is None else self.scale(loss)
        scaled.backward()
        self.optimizer.step(loss_scale=self.scale)
        return loss

    def state(self) -> dict[str, np.ndarray]:
        arrays = {"key count": go.random.get_state()["count"]}
        for name in ("net", "optimizer", "scale") if self.scale else ("net", "optimizer"):
            found = getattr(self, name).arrays()
            arrays |= {f"{name} {path}": np.array(x) for path, x in found.items()}
        return arrays


def convnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv(1, 4, 3, padding="SAME", activation="relu"),
        nn.BatchNorm(4),
        nn.MaxPool(2),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Dense(36, 2),
    )


def losses(step: Any, n: int) -> list[float]:
    return [float(step(X, LABELS)) for _ in range(n)]


def check_states(eager: Step, hybrid: Step) -> None:
    """Equal but for float32's rounding, which steps divided by roots of small means make larger."""
    want = eager.state()
    for name, x in hybrid.state().items():
        np.testing.assert_allclose(x, want[name], rtol=2e-4, atol=2e-5, err_msg=name)


def test_whole_step() -> None:
    """C034, C046, C047: convolution, running statistics, dropout, a schedule, clipping and loss
    scaling; compiled once.
    """

    def adam(net: nn.Module) -> optim.Optimizer:
        rate = optim.schedules.warmup_cosine(0.02, 3, 12)
        return optim.AdamW(net, rate, clip_norm=1.0, overrides={"*.bias": {"weight_decay": 0.0}})

    eager, hybrid = Step(convnet, adam), Step(convnet, adam)
    want = losses(eager, 10)
    keys = go.random.get_state()
    go.random.seed(3)
    for _ in range(int(keys["count"]) - 10):  # those of the initialisers
        go.random.next_key()
    compiled = go.hybridize(hybrid)
    before = go.cache_info()
    got = losses(compiled, 10)
    after = go.cache_info()
    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert after.compiled - before.compiled == 1
    check_states(eager, hybrid)
    assert (int(hybrid.optimizer.count), int(hybrid.scale.good)) == (10, 2)
    assert float(hybrid.scale.value) == 16
    with pytest.raises(GradientError, match="was not filled by a backward since the last step"):
        hybrid.optimizer.step()


OPTIMIZERS: list[Callable[[nn.Module], optim.Optimizer]] = [
    lambda net: optim.SGD(net, 0.1, weight_decay=0.01),
    lambda net: optim.SGD(net, 0.1, momentum=0.9, nesterov=True),
    lambda net: optim.Adam(net, 0.01, weight_decay=0.01),
    lambda net: optim.RMSProp(net, 0.01),
    lambda net: optim.AdaGrad(net, 0.1, clip_value=0.1),
    lambda net: optim.Lion(net, 0.01, weight_decay=0.1),
]


def test_every_optimizer() -> None:
    """Six nets trained in one compiled call; new learning rates need no other one."""

    def dense() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Dense(36, 2, activation="tanh"))

    eager, hybrid = ([Step(dense, make, scaled=False) for make in OPTIMIZERS] for _ in range(2))

    def all_of(steps: list[Step], x: Any, labels: Any) -> Any:
        return [step(x, labels) for step in steps]

    compiled, table = go.hybridize(all_of), []
    before = go.cache_info()
    for i in range(8):
        if i == 4:
            for step in eager + hybrid:
                step.optimizer.learning_rate = step.optimizer.learning_rate / 2
        pair = all_of(eager, X, LABELS), compiled(hybrid, X, LABELS)
        table.append([[float(x) for x in side] for side in pair])
    assert go.cache_info().compiled - before.compiled == 1
    for want, got in table:
        np.testing.assert_allclose(got, want, rtol=1e-5)
    for a, b in zip(eager, hybrid, strict=True):
        check_states(a, b)


def test_overflow() -> None:
    """A compiled step whose gradients overflow changes nothing but the scale."""

    class Net(nn.Module):
        def __init__(self) -> None:
            self.layer = nn.Dense(4, 2)

        def __call__(self, x: Any) -> Any:
            return self.layer(x)

    step = Step(Net, lambda net: optim.SGD(net, 0.5, momentum=0.9))
    compiled, x = go.hybridize(step), np.ones((3, 4), np.float32)
    labels = np.zeros(3, np.int32)
    compiled(x, labels)
    before = step.state()
    compiled(np.full_like(x, np.inf), labels)
    after = step.state()
    changed = {name for name in after if not np.array_equal(after[name], before[name])}
    assert changed == {"scale value", "scale good", "scale skipped"}
    assert float(step.scale.value) == 2 and int(step.scale.skipped) == 1
    compiled(x, labels)
    assert int(step.optimizer.count) == 2


def test_bfloat16_step() -> None:
    """Autocast and float32 copies of bfloat16 parameters, in one compiled step. bfloat16 has 8
    bits: products may round differently, losses agree to a few of the last.
    """

    class Net(nn.Module):
        def __init__(self) -> None:
            self.first = nn.Dense(36, 8, activation="tanh")
            self.last = nn.Dense(8, 2).astype("bfloat16")

        def __call__(self, x: Any) -> Any:
            with go.autocast("bfloat16"):
                return self.last(self.first(x.reshape(16, 36))).astype("float32")

    eager, hybrid = (Step(Net, lambda net: optim.Adam(net, 0.01)) for _ in range(2))
    want, got = losses(eager, 6), losses(go.hybridize(hybrid), 6)
    np.testing.assert_allclose(got, want, rtol=2 * 2**-8)
    assert got[-1] < got[0]
    assert hybrid.net.last.weight.dtype == go.array(0, "bfloat16").dtype
    masters = hybrid.optimizer.masters
    assert set(masters) == {"last.weight", "last.bias"}
    for name, master in masters.items():
        x = hybrid.net.parameters()[name]
        np.testing.assert_array_equal(x, np.asarray(master).astype(x.dtype))


@pytest.mark.parametrize(
    "case", sorted(CASES, key=lambda c: c.name not in FIRST)[:LAYERS], ids=lambda c: c.name
)
def test_layer_compiled(case: Case) -> None:
    """A layer's step in float64, compiled: loss, states and gradients."""
    want = trained(case, None)
    for name, x in trained(case, "cpu").items():
        np.testing.assert_allclose(x, want[name], rtol=1e-9, atol=1e-12, err_msg=name)


def test_export(tmp_path: pathlib.Path) -> None:
    """C149: a net that was trained, exported for inference: running statistics, no dropout, a batch
    of one, and weights by their paths.
    """
    step = Step(convnet, lambda net: optim.SGD(net, 0.1), scaled=False)
    losses(step, 2)
    weights, images = step.net.arrays(), go.TensorSpec((None, *X.shape[1:]))

    def predict(weights: Any, x: Any) -> Any:
        return step.net.apply(weights, x)

    path = tmp_path / "net"
    with go.infer_mode():
        go.export(path, {"predict": (predict, (weights, images))}, {"weights": weights})
        want = step.net(X[:1])
    (found,) = deploy.load(path).call("predict", X[:1]).values()
    np.testing.assert_allclose(found, want, rtol=1e-5)
    assert "weights.layers.1.running_mean" in safetensors.numpy.load_file(
        path / "weights.safetensors"
    )
