# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Modules: arrays found by walking, frozen, copied, converted, written to files and read back."""

import copy
import pathlib
import pickle
import typing
from typing import Any

import gradopt as go
import ml_dtypes
import numpy as np
import pytest
from gradopt import nn
from gradopt.errors import ArtifactError, GradientError, ModuleError


class Pair(typing.NamedTuple):
    a: Any
    b: Any


class Net(nn.Module):
    """All kinds of containers; one layer stands in two places."""

    def __init__(self) -> None:
        self.first = nn.Dense(2, 3)
        self.blocks = [nn.Dense(3, 3, bias=False), {"norm": nn.BatchNorm(3)}]
        self.pair = Pair(nn.parameter(np.ones(3, np.float32)), (self.first, "a name", 3))
        self.steps = go.array(0)
        self.rate = 0.5

    def __call__(self, x: Any) -> Any:
        y = self.blocks[0](self.first(x))
        return self.blocks[1]["norm"](y) * self.pair.a


PATHS = [
    "first.weight", "first.bias", "blocks.0.weight", "blocks.1.norm.gamma", "blocks.1.norm.beta",
    "blocks.1.norm.running_mean", "blocks.1.norm.running_var", "pair.a", "steps",
]  # fmt: skip
STATES = {"blocks.1.norm.running_mean", "blocks.1.norm.running_var", "steps"}
X = np.array([[1.0, 2.0], [3.0, -1.0]], np.float32)


def test_paths() -> None:
    """B31: each array once, by the path of its first place; those with a gradient are trained."""
    net = Net()
    assert list(net.arrays()) == PATHS
    assert list(net.parameters()) == [p for p in PATHS if p not in STATES]
    assert list(net.modules()) == ["", "first", "blocks.0", "blocks.1.norm"]
    assert net.count() == 6 + 3 + 9 + 3 + 3 + 3
    assert net.parameters()["pair.a"] is net.pair.a


def test_printed() -> None:
    assert repr(nn.Sequential(nn.Conv(1, 8, 3, padding="SAME"), "relu", nn.BatchNorm(8))) == (
        "Sequential(3 layers): 96 parameters\n"
        "  layers:\n"
        "    0: Conv(1 -> 8, 3x3, padding=SAME): 80 parameters\n"
        "      weight: float32 (3, 3, 1, 8)\n"
        "      bias: float32 (8,)\n"
        "    1: Activation(relu)\n"
        "    2: BatchNorm(8): 16 parameters\n"
        "      gamma: float32 (8,)\n"
        "      beta: float32 (8,)\n"
        "      running_mean: float32 (8,), not trained\n"
        "      running_var: float32 (8,), not trained"
    )


def test_gradients() -> None:
    net = Net()
    net.set_grad_req("add", "blocks.0.*")
    for _ in range(2):
        with go.record(), go.infer_mode():
            loss = net(X).sum()
        loss.backward()
    twice = np.asarray(net.blocks[0].weight.grad)
    net.zero_grad()
    assert not any(np.asarray(x.grad).any() for x in net.parameters().values())
    with go.record(), go.infer_mode():
        loss = net(X).sum()
    loss.backward()
    np.testing.assert_allclose(twice, 2 * np.asarray(net.blocks[0].weight.grad), rtol=1e-6)


def test_freeze() -> None:
    net = Net()
    net.freeze("first.*")
    assert not [p for p in net.parameters() if p.startswith("first")]
    assert "weight: float32 (2, 3), not trained" in repr(net)
    with go.record(), go.infer_mode():
        loss = net(X).sum()
    loss.backward()
    assert net.first.weight.grad is None and np.asarray(net.blocks[0].weight.grad).any()
    net.unfreeze()
    assert list(net.parameters()) == [p for p in PATHS if p not in STATES]
    with pytest.raises(GradientError, match="grad_req out of 'write', 'add', 'null', got 'sum'"):
        net.set_grad_req("sum")
    assert list(net.parameters()) == [p for p in PATHS if p not in STATES]
    with pytest.raises(ModuleError, match=r"'head\.\*' matches no array of Net; it has first.weig"):
        net.freeze("head.*")


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_copies(copied: Any) -> None:
    """Copies have memory, variables and shared layers of their own."""
    net = Net()
    net.freeze("pair.a")
    net.set_grad_req("add", "blocks.0.*")
    twin = copied(net)
    assert list(twin.arrays()) == PATHS and list(twin.parameters()) == list(net.parameters())
    assert twin.pair.b[0] is twin.first and twin.rate == 0.5
    with go.infer_mode():
        before = np.asarray(net(X))
        np.testing.assert_array_equal(twin(X), before)
        for _ in range(2):
            with go.record():
                loss = twin(X).sum()
            loss.backward()
        assert not np.asarray(net.first.weight.grad).any()
        twin.first.weight[...] = 0
        np.testing.assert_array_equal(net(X), before)
    twin.unfreeze("pair.a")
    assert "pair.a" in twin.parameters() and "pair.a" not in net.parameters()


def test_names_that_clash() -> None:
    """An attribute may not hide a method; what holds no arrays may be called anything else."""
    net = Net()
    for value in (nn.parameter([1.0]), nn.Dense(1, 1), [go.ones(2)]):
        with pytest.raises(ModuleError, match=r"'parameters' of Net would hide its method"):
            net.parameters = value  # type: ignore[method-assign]
    net.other = {"a.b": go.ones(1), "a": {"b": go.ones(1)}}
    with pytest.raises(ModuleError, match=r"two arrays of a module have the path 'other\.a\.b'"):
        net.arrays()


def test_parameters_are_floats() -> None:
    with pytest.raises(
        ModuleError, match="a parameter expected an array of floats, got tensor<3xi"
    ):
        nn.parameter(np.arange(3))
    with pytest.raises(ModuleError, match=r"expected numbers, got .*outside traced functions"):
        go.trace(lambda x: nn.parameter(x), X)
    with pytest.raises(GradientError, match="grad_req out of 'write', 'add', 'null'"):
        nn.parameter([1.0], "sum")
    x = go.ones(3)
    assert nn.parameter(x) is not x and x.grad is None


def test_parameters_stay_parameters() -> None:
    """An array that would silently no longer be trained is an error; written to, it is."""
    layer = nn.Dense(2, 1)
    for value in (layer.weight * 2, go.ones((2, 1))):
        with pytest.raises(ModuleError, match=r"'weight' of Dense is a parameter.*nn\.parameter"):
            layer.weight = value
    with pytest.raises(ModuleError, match="is a parameter"):
        go.trace(lambda w: setattr(layer, "weight", w), np.ones((2, 1), np.float32))
    before = layer.weight
    layer.weight -= 1.0
    layer.weight[...] = 2.0
    assert layer.weight is before and list(layer.parameters()) == ["weight", "bias"]
    layer.weight = nn.parameter(go.ones((2, 1)))
    layer.bias = None
    assert list(layer.parameters()) == ["weight"]


def test_no_call() -> None:
    class Empty(nn.Module):
        pass

    with pytest.raises(ModuleError, match="Empty has no __call__"):
        Empty()(1)


# --- types and other arrays -----------------------------------------------------------------------


def test_astype() -> None:
    net = Net().astype("bfloat16", "first.*")
    assert net.first.weight.dtype == net.pair.b[0].bias.dtype == ml_dtypes.bfloat16
    assert net.pair.a.dtype == net.blocks[0].weight.dtype == np.float32
    assert list(net.parameters()) == [p for p in PATHS if p not in STATES]
    assert Net().astype("float64").steps.dtype == np.int32
    with pytest.raises(ModuleError, match="astype expected a floating-point type, got int32"):
        net.astype("int32")
    norm = nn.BatchNorm(3).astype("bfloat16")  # statistics keep their small changes
    assert norm.gamma.dtype == ml_dtypes.bfloat16 and norm.running_var.dtype == np.float32
    assert norm.astype("float64").running_var.dtype == np.float64
    moved = net.to("cpu")
    assert moved is net and list(net.parameters()) == [p for p in PATHS if p not in STATES]


def test_replaced() -> None:
    """A function of the arrays, which the net itself is not changed by."""
    net = Net()
    arrays = net.arrays()
    other = {path: np.full(x.shape, 0.5, x.dtype) for path, x in net.parameters().items()}
    with go.infer_mode():
        want = 0.5 * ((((X @ np.full((2, 3), 0.5)) + 0.5) @ np.full((3, 3), 0.5)) * 0.5 + 0.5)
        np.testing.assert_allclose(net.apply(other, X), want, rtol=1e-4)
        graph = go.trace(lambda p, x: net.apply(p, x), net.parameters(), X)
    assert set(graph.input_names) == {f"p.{path}" for path in other} | {"x"}
    assert all(net.arrays()[path] is x for path, x in arrays.items())
    copied = net.replaced(other)
    assert copied.pair.b[0] is copied.first and copied.blocks is not net.blocks
    with pytest.raises(ModuleError, match=r"unexpected last.*'steps' expected int32 of shape \(\)"):
        net.replaced({"last": X, "steps": X})


def test_hybridized_module() -> None:
    """A hybridized net has the net's arrays, also after they changed."""
    net = Net()
    fast = go.hybridize(net, target="reference")
    for _ in range(2):
        with go.infer_mode():
            np.testing.assert_array_equal(fast(X), net(X))
        net.first.weight[...] = 2.0
    twin = copy.deepcopy(net)
    np.testing.assert_array_equal(fast(X), twin(X))
    for path, x in twin.arrays().items():
        np.testing.assert_array_equal(net.arrays()[path], x, err_msg=path)


# --- files ----------------------------------------------------------------------------------------


def test_save_and_load(tmp_path: pathlib.Path) -> None:
    net, twin = Net().astype("bfloat16", "blocks.0.*"), Net().astype("bfloat16", "blocks.0.*")
    net.steps[...] = 7
    net(X)
    net.save(tmp_path / "net.safetensors")
    kept = twin.arrays()
    twin.load(tmp_path / "net.safetensors")
    for path, x in twin.arrays().items():
        assert x is kept[path] and x.dtype == net.arrays()[path].dtype
        np.testing.assert_array_equal(x, net.arrays()[path])
    assert int(twin.steps) == 7 and list(twin.parameters()) == list(net.parameters())
    assert [p.name for p in tmp_path.iterdir()] == ["net.safetensors"]


def test_files_that_do_not_fit(tmp_path: pathlib.Path) -> None:
    """All that does not fit is named, and nothing has changed."""
    net, path = Net(), tmp_path / "net.safetensors"
    before = {p: np.array(x) for p, x in net.arrays().items()}
    other = Net()
    other.first = nn.Dense(2, 4)
    other.pair = Pair(other.pair.a, ())
    other.more = nn.parameter(np.ones(2))
    other.astype("float64", "pair.a")
    del other.blocks[1]["norm"].running_var
    other.save(path)
    with pytest.raises(ModuleError) as caught:
        net.load(path)
    assert str(caught.value) == (
        "arrays for Net do not fit: missing blocks.1.norm.running_var; unexpected more; "
        "'first.weight' expected float32 of shape (2, 3), got float32 of shape (2, 4); "
        "'first.bias' expected float32 of shape (3,), got float32 of shape (4,); "
        "'pair.a' expected float32 of shape (3,), got float64 of shape (3,)"
    )
    for p, x in net.arrays().items():
        np.testing.assert_array_equal(x, before[p])
    part = nn.Sequential(nn.Dense(2, 3))
    part.save(path)
    whole = nn.Sequential(nn.Dense(2, 3), nn.Dense(3, 1))
    with pytest.raises(ModuleError, match=r"missing layers\.1\.weight, layers\.1\.bias$"):
        whole.load(path)
    whole.load(path, strict=False)
    np.testing.assert_array_equal(whole[0].weight, part[0].weight)


def test_no_file(tmp_path: pathlib.Path) -> None:
    net, path = Net(), tmp_path / "net.safetensors"
    with pytest.raises(ArtifactError, match=r"cannot read .*net\.safetensors': No such file"):
        net.load(path)
    path.write_bytes(b"nothing")
    with pytest.raises(ArtifactError, match="is no safetensors file"):
        net.load(path)
    with pytest.raises(FileNotFoundError):
        net.save(tmp_path / "missing" / "net.safetensors")
