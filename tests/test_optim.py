# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""go.optim: optimizers against loops in NumPy; schedules, clipping, loss scaling, stale grads."""

import copy
import math
import pathlib
import pickle
from collections.abc import Callable
from typing import Any

import gradopt as go
import ml_dtypes
import numpy as np
import pytest
from gradopt import nn, optim
from gradopt.errors import GradientError, ModuleError, OpError
from gradopt.optim import schedules

rng = np.random.default_rng(5)
TARGET = rng.normal(size=(3, 2))


def variables(dtype: Any = np.float64) -> dict[str, Any]:
    start = np.random.default_rng(1)
    return {
        "w": nn.parameter(start.normal(size=(3, 2)).astype(dtype)),
        "b": nn.parameter(start.normal(size=2).astype(dtype)),
    }


def loss_of(p: Any) -> Any:
    """Not a sum over elements, so that parameters are tied."""
    return ((p["w"] * p["b"] - TARGET).astype("float64") ** 2).sum()


def gradients(p: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    e = 2 * (p["w"] * p["b"] - TARGET)
    return {"w": e * p["b"], "b": (e * p["w"]).sum(0)}


def train(optimizer: optim.Optimizer, steps: int, loss: Callable[[Any], Any] = loss_of) -> None:
    for _ in range(steps):
        with go.record():
            value = loss(optimizer.parameters)
        value.backward()
        optimizer.step()


# --- updates --------------------------------------------------------------------------------------


def sgd(w: Any, g: Any, s: Any, t: int) -> Any:
    return w - 0.05 * (g + 0.1 * w)


def momentum(w: Any, g: Any, s: Any, t: int) -> Any:
    s["m"] = 0.8 * s.get("m", 0) + g
    return w - 0.05 * s["m"]


def nesterov(w: Any, g: Any, s: Any, t: int) -> Any:
    s["m"] = 0.8 * s.get("m", 0) + g
    return w - 0.05 * (g + 0.8 * s["m"])


def adam_move(g: Any, s: Any, t: int) -> Any:
    s["m"] = 0.9 * s.get("m", 0) + 0.1 * g
    s["v"] = 0.99 * s.get("v", 0) + 0.01 * g * g
    return s["m"] / (1 - 0.9**t) / (np.sqrt(s["v"] / (1 - 0.99**t)) + 1e-8)


def adam(w: Any, g: Any, s: Any, t: int) -> Any:
    return w - 0.05 * adam_move(g + 0.1 * w, s, t)


def adamw(w: Any, g: Any, s: Any, t: int) -> Any:
    return w - 0.05 * (adam_move(g, s, t) + 0.1 * w)


def rmsprop(w: Any, g: Any, s: Any, t: int) -> Any:
    s["v"] = 0.9 * s.get("v", 0) + 0.1 * g * g
    return w - 0.05 * g / (np.sqrt(s["v"]) + 1e-8)


def adagrad(w: Any, g: Any, s: Any, t: int) -> Any:
    s["s"] = s.get("s", 0) + g * g
    return w - 0.05 * g / (np.sqrt(s["s"]) + 1e-10)


def lion(w: Any, g: Any, s: Any, t: int) -> Any:
    m = s.get("m", 0)
    s["m"] = 0.99 * m + 0.01 * g
    return w - 0.05 * (np.sign(0.9 * m + 0.1 * g) + 0.1 * w)


CASES: dict[Any, Callable[[Any], optim.Optimizer]] = {
    sgd: lambda p: optim.SGD(p, 0.05, weight_decay=0.1),
    momentum: lambda p: optim.SGD(p, 0.05, momentum=0.8),
    nesterov: lambda p: optim.SGD(p, 0.05, momentum=0.8, nesterov=True),
    adam: lambda p: optim.Adam(p, 0.05, beta2=0.99, weight_decay=0.1),
    adamw: lambda p: optim.AdamW(p, 0.05, beta2=0.99, weight_decay=0.1),
    rmsprop: lambda p: optim.RMSProp(p, 0.05, decay=0.9),
    adagrad: lambda p: optim.AdaGrad(p, 0.05),
    lion: lambda p: optim.Lion(p, 0.05, weight_decay=0.1),
}


@pytest.mark.parametrize("formula", list(CASES), ids=lambda f: f.__name__)
def test_ten_steps(formula: Any) -> None:
    """Ten steps are those of a loop in NumPy, in the arrays that the net has."""
    p = variables()
    want = {name: np.array(x) for name, x in p.items()}
    slots: dict[str, dict[str, Any]] = {name: {} for name in p}
    optimizer = CASES[formula](p)
    train(optimizer, 10)
    for t in range(1, 11):
        g = gradients(want)
        want = {name: formula(want[name], g[name], slots[name], t) for name in want}
    for name, x in p.items():
        np.testing.assert_allclose(x, want[name], rtol=1e-7)
    assert int(optimizer.count) == 10


def test_one_loss_falls() -> None:
    """A net of float32 parameters learns."""
    go.random.seed(0)
    net = nn.Sequential(nn.Dense(2, 16, activation="tanh"), nn.Dense(16, 1))
    x = rng.normal(size=(64, 2)).astype(np.float32)
    y = (x[:, :1] * x[:, 1:]).astype(np.float32)
    optimizer, losses = optim.Adam(net, 0.02), []
    for _ in range(150):
        with go.record():
            loss = ((net(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    assert losses[-1] < 0.05 * losses[0]


def test_put_off() -> None:
    """B38: steps whose ops are put off, and run as graphs, give the same numbers."""

    def run() -> dict[str, np.ndarray]:
        p = variables(np.float32)
        optimizer = optim.Adam(p, schedules.cosine(0.05, 20), clip_norm=1.0)
        scale = optim.LossScale(4.0, interval=2)
        for _ in range(5):
            with go.record():
                loss = scale(loss_of(p))
            loss.backward()
            optimizer.step(loss_scale=scale)
        with pytest.raises(GradientError, match="was not filled"):
            optimizer.step()
        arrays = optimizer.arrays() | p | scale.arrays()
        return {name: np.array(x) for name, x in arrays.items()}

    want, target = run(), go.config.target
    try:
        go.config.target = "reference"
        with go.eager_mode("lazy"):
            found = run()
    finally:
        go.config.target = target
    for name, x in found.items():
        np.testing.assert_array_equal(x, want[name], err_msg=name)


def test_overrides() -> None:
    """A factor of the learning rate and a weight decay for some parameters; later ones win."""
    p = variables()
    want = {name: np.array(x) for name, x in p.items()}
    changes = {"*": {"weight_decay": 0.0}, "w": {"learning_rate": 0.5, "weight_decay": 0.2}}
    train(optim.SGD(p, 0.05, weight_decay=0.1, overrides=changes), 1)
    g = gradients(want)
    np.testing.assert_allclose(p["b"], want["b"] - 0.05 * g["b"], rtol=1e-12)
    np.testing.assert_allclose(p["w"], want["w"] - 0.025 * (g["w"] + 0.2 * want["w"]), rtol=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: optim.SGD(p, overrides={"c": {}}), "'c' matches no parameter; there are w, b"),
        (lambda p: optim.SGD(p, overrides={"w": {"beta": 1}}), "out of weight_decay, .*got beta"),
        (lambda p: optim.Adam(p, beta1=1.0), r"Adam expected beta1 in \[0, 1\), got 1.0"),
        (lambda p: optim.AdamW(p, weight_decay=-1), "AdamW expected weight_decay of at least 0"),
        (lambda p: optim.SGD(p, nesterov=True), "expected a momentum with nesterov"),
        (lambda p: optim.SGD(p, clip_norm=0), "a positive clip_norm, got 0"),
        (lambda p: optim.SGD([]), "expected parameters, got none"),
        (lambda p: optim.SGD([go.ones(3)]), "variables, got tensor<3xf32> as '0'.*attach_grad"),
        (lambda p: optim.SGD([np.ones(3)]), "variables, got ndarray as '0'"),
        (lambda p: optim.SGD([p["w"], p["w"]]), "one array is both parameter '0' and '1'"),
        (lambda p: optim.LossScale(0), "0 < minimum <= value <= maximum, got 1.0, 0"),
        (lambda p: optim.LossScale(2, interval=0), "an interval of at least 1"),
    ],
)
def test_misuse(make: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(ModuleError, match=message):
        make(variables())


# --- stale gradients ------------------------------------------------------------------------------


def test_stale_gradients() -> None:
    """A gradient that no backward filled since the last step is an error that names it, before
    anything has changed.
    """
    p = variables()
    optimizer = optim.Adam(p)
    with pytest.raises(
        GradientError, match="the gradient of 'w', 'b' was not filled by a backward"
    ):
        optimizer.step()
    train(optimizer, 1)
    before = {name: np.array(x) for name, x in p.items()}
    with go.record():
        loss = (p["w"] ** 2).sum()
    loss.backward()
    with pytest.raises(GradientError, match=r"the gradient of 'b' was .*ignore_stale=True"):
        optimizer.step()
    assert int(optimizer.count) == 1
    for name, x in p.items():
        np.testing.assert_array_equal(x, before[name])
    optimizer.step(ignore_stale=True)
    np.testing.assert_array_equal(p["b"], before["b"])
    assert (np.asarray(p["w"]) != before["w"]).all()
    train(optimizer, 1)
    optimizer.zero_grad()
    with pytest.raises(GradientError, match="'w', 'b' was not filled"):
        optimizer.step()


def test_gradients_written_by_hand() -> None:
    p = variables()
    optimizer = optim.SGD(p, 1.0)
    before = np.array(p["w"])
    p["w"].grad[...] = 1.0
    optimizer.step(ignore_stale=True)
    np.testing.assert_array_equal(p["w"], before - 1)
    with pytest.raises(GradientError, match="'w', 'b' was not"):
        optimizer.step()


def test_accumulated_gradients() -> None:
    """Two halves of a batch with the request "add" are the whole batch."""
    x = rng.normal(size=(8, 3))
    nets = [nn.Dense(3, 2, dtype=np.float64) for _ in range(2)]
    nets[1].update(nets[0].arrays())
    nets[1].set_grad_req("add")
    for net, batches in zip(nets, ([x], [x[:4], x[4:]]), strict=True):
        optimizer = optim.Adam(net, 0.1)
        for _ in range(3):
            for batch in batches:
                with go.record():
                    loss = (net(batch) ** 2).sum() / 8
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    for path, want in nets[0].arrays().items():
        np.testing.assert_allclose(nets[1].arrays()[path], want, rtol=1e-10)


def test_frozen_parameters_stay() -> None:
    net = nn.Sequential(nn.Dense(2, 2), nn.Dense(2, 1))
    optimizer = optim.SGD(net, 0.1)
    before = np.array(net[0].weight)
    net.freeze("layers.0.*")
    train(optimizer, 1, lambda p: net(np.ones((1, 2), np.float32)).sum())
    np.testing.assert_array_equal(net[0].weight, before)
    net[1].weight.drop_grad()
    with pytest.raises(GradientError, match=r"'layers\.1\.weight' is no variable any more"):
        optimizer.step()


def test_step_while_recording() -> None:
    """A step is no part of what is recorded, wherever it is called."""
    p = variables()
    optimizer = optim.SGD(p, 0.1)
    with go.record():
        loss_of(p).backward()
        optimizer.step()
        assert go.is_recording()


# --- learning rates -------------------------------------------------------------------------------

SCHEDULES: list[tuple[Any, Callable[[int], float]]] = [
    (schedules.constant(0.3), lambda t: 0.3),
    (schedules.exponential(0.5, 0.9), lambda t: 0.5 * 0.9**t),
    (schedules.exponential(0.5, 0.9, 4, staircase=True), lambda t: 0.5 * 0.9 ** (t // 4)),
    (schedules.polynomial(1.0, 0.2, 8), lambda t: 1 - 0.1 * min(t, 8)),
    (schedules.polynomial(1.0, 0.2, 8, 2), lambda t: 0.2 + 0.8 * (1 - min(t, 8) / 8) ** 2),
    (
        schedules.cosine(1.0, 8, 0.1),
        lambda t: 0.1 + 0.45 * (1 + math.cos(math.pi * min(t, 8) / 8)),
    ),
    (
        schedules.warmup_cosine(1.0, 3, 9),
        lambda t: t / 3 if t < 3 else 0.5 * (1 + math.cos(math.pi * min(t - 3, 6) / 6)),
    ),
    (schedules.piecewise([1.0, 0.5, 0.1], [3, 5]), lambda t: [1.0, 0.5, 0.1][(t >= 3) + (t >= 5)]),
    (
        schedules.joined([schedules.constant(1.0), schedules.exponential(1.0, 0.5)], [4]),
        lambda t: 1.0 if t < 4 else 0.5 ** (t - 4),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("schedule", "formula"), SCHEDULES)
def test_schedules(schedule: Any, formula: Callable[[int], float]) -> None:
    """Of Python and NumPy integers a float; of arrays and tensors float32 of the same value."""
    graph = go.trace(schedule, go.TensorSpec((), "int32"))
    assert graph.output_specs == [go.TensorSpec((), "float32")]
    for t in range(12):
        assert isinstance(schedule(t), float)
        assert schedule(t) == pytest.approx(formula(t), rel=1e-12, abs=1e-15)
        assert schedule(np.int64(t)) == schedule(t)
        got = schedule(go.array(t))
        assert got.dtype == np.float32 and got.shape == ()
        np.testing.assert_allclose(got, formula(t), rtol=2e-6, atol=2e-7)


def test_schedules_are_checked() -> None:
    with pytest.raises(OpError, match="'cosine' expected at least 1 steps, got 0"):
        schedules.cosine(1.0, 0)
    with pytest.raises(OpError, match="'warmup_cosine' expected at least 6 steps, got 5"):
        schedules.warmup_cosine(1.0, 5, 5)
    with pytest.raises(OpError, match="expected 1 increasing boundaries of 2 parts"):
        schedules.piecewise([1.0, 2.0], [])


def test_learning_rate() -> None:
    """A schedule gets the number of updates made before; a number can be set."""
    p = {"w": nn.parameter(np.zeros(1, np.float32))}
    optimizer = optim.SGD(p, schedules.piecewise([1.0, 0.5], [2]))
    rates = []
    for _ in range(4):
        rates.append(optimizer.learning_rate)
        train(optimizer, 1, lambda p: -p["w"].sum())
    assert rates == [1, 1, 0.5, 0.5] and float(p["w"][0]) == 3
    with pytest.raises(ModuleError, match="the learning rate is given by a schedule"):
        optimizer.learning_rate = 1.0
    plain = optim.SGD(p, 1.0)
    plain.learning_rate = 0.25
    train(plain, 1, lambda p: p["w"].sum())
    assert float(p["w"][0]) == 2.75 and plain.learning_rate == 0.25


# --- clipping -------------------------------------------------------------------------------------


def test_clipping() -> None:
    """By value first, then by the norm of all gradients together, which can be read."""
    p = variables()
    want = {name: np.array(x) for name, x in p.items()}
    g = {name: np.clip(x, -0.7, 0.7) for name, x in gradients(want).items()}
    norm = math.sqrt(sum((x**2).sum() for x in g.values()))
    optimizer = optim.SGD(p, 1.0, clip_norm=0.5, clip_value=0.7)
    train(optimizer, 1)
    for name, x in p.items():
        np.testing.assert_allclose(x, want[name] - g[name] * 0.5 / norm, rtol=1e-12)
    np.testing.assert_allclose(optimizer.gradient_norm, norm, rtol=1e-6)
    with pytest.raises(OpError, match="clip_by_value expected a positive limit, got 0"):
        optim.clip_by_value([], 0)


# --- mixed precision ------------------------------------------------------------------------------


def test_master_weights() -> None:
    """Steps too small for bfloat16 add up in a float32 copy, and are lost without one."""
    for master, moved in ((True, True), (False, False)):
        p = {"w": nn.parameter(np.ones(2, ml_dtypes.bfloat16))}
        optimizer = optim.SGD(p, 1e-3, master_weights=master)
        train(optimizer, 20, lambda p: p["w"].astype("float32").sum())
        assert bool((np.asarray(p["w"]) < 1).all()) == moved
        assert p["w"].dtype == ml_dtypes.bfloat16
    assert list(optimizer.masters) == []
    adam = optim.Adam({"w": nn.parameter(np.ones(2, np.float16))})
    assert {x.dtype for x in (*adam.masters.values(), *adam.slots["w"].values())} == {
        np.dtype(np.float32)
    }


def overflowing(p: Any) -> Any:
    """A loss whose gradient is not finite in float16."""
    return (p["w"] * np.float16(60000)).sum().astype("float32") * 60000.0


def test_loss_scale() -> None:
    """Overflow halves the scale and changes nothing else; `interval` finite steps double it."""
    p = {"w": nn.parameter(np.ones(2, np.float16))}
    optimizer = optim.Adam(p, 0.125)
    scale = optim.LossScale(8.0, interval=2, maximum=16.0)
    values = []

    def step(loss: Callable[[Any], Any]) -> None:
        with go.record():
            scaled = scale(loss(p))
        scaled.backward()
        optimizer.step(loss_scale=scale)
        values.append(float(scale.value))

    before = {name: np.array(x) for name, x in optimizer.arrays().items()}
    with np.errstate(all="ignore"):
        step(overflowing)
    np.testing.assert_array_equal(p["w"], 1)
    for name, x in optimizer.arrays().items():
        np.testing.assert_array_equal(x, before[name])
    for _ in range(5):
        step(lambda p: (p["w"] * p["w"]).sum())
    assert values == [4, 4, 8, 8, 16, 16]
    assert (int(scale.skipped), int(optimizer.count)) == (1, 5)
    plain = {"w": nn.parameter(np.ones(2, np.float16))}
    train(optim.Adam(plain, 0.125), 5, lambda p: (p["w"] * p["w"]).sum())
    np.testing.assert_array_equal(p["w"], plain["w"])


def test_static_loss_scale() -> None:
    """Gradients below float16 are kept by a static scale, which stays."""
    p = {"w": nn.parameter(np.ones(1, np.float16))}
    scale = optim.LossScale(1024.0, dynamic=False)
    optimizer = optim.SGD(p, 1e6)
    for factor, want in ((1e-7, 0.9), (1e-7, 0.8)):
        with go.record():
            loss = scale(p["w"].sum().astype("float32") * factor)
        loss.backward()
        optimizer.step(loss_scale=scale)
        np.testing.assert_allclose(p["w"], want, rtol=2e-3)
    assert float(scale.value) == 1024 and repr(scale) == "LossScale(1024, static, 0 skipped)"


# --- state ----------------------------------------------------------------------------------------


def test_state_saved(tmp_path: pathlib.Path) -> None:
    """Training goes on from files as if it had not ended."""
    p, q = variables(), variables()
    first = optim.Adam(p, 0.05)
    train(first, 3)
    first.save(tmp_path / "adam.safetensors")
    second = optim.Adam(q, 0.9)
    for name, x in q.items():
        x[...] = p[name]
    second.load(tmp_path / "adam.safetensors")
    train(first, 3)
    train(second, 3)
    for name, x in p.items():
        np.testing.assert_array_equal(q[name], x)
    assert second.learning_rate == 0.05
    with pytest.raises(ModuleError, match=r"arrays for SGD do not fit: .*unexpected slots.*w\.v"):
        optim.SGD(p, momentum=0.9).load(tmp_path / "adam.safetensors")


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies(copied: Any) -> None:
    """An optimizer copied with its net trains the copy, from the same state."""
    net = nn.Dense(2, 1)
    optimizer = optim.Adam(net, 0.1, clip_norm=1.0)
    x = np.ones((3, 2), np.float32)
    train(optimizer, 2, lambda p: (net(x) ** 2).sum())
    for twin, other in (copied((net, optimizer)), copied((optimizer, net))[::-1]):
        assert all(twin.parameters()[k] is p for k, p in other.parameters.items())
        with pytest.raises(GradientError, match="'weight', 'bias' was not filled"):
            other.step()
        train(other, 2, lambda p, twin=twin: (twin(x) ** 2).sum())
        assert (int(other.count), int(optimizer.count)) == (4, 2)
        assert (np.asarray(twin.weight) != np.asarray(net.weight)).all()


def test_printed() -> None:
    assert repr(optim.SGD(variables(), 0.1)) == "SGD(2 parameters, learning_rate=0.1, 0 updates)"
    assert "a schedule" in repr(optim.SGD(variables(), schedules.constant(1)))
