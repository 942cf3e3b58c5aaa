# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Artifacts of training code, compiled: trained where they run, they equal the same code trained in
Python. All programs of training_programs.py with GRADOPT_EXPORT_PROGRAMS=all.
"""

import os
import pathlib
import re
import subprocess
import sys
from typing import Any

import gradopt as go
import numpy as np
import pytest
from gradopt import deploy, nn, optim
from gradopt.lowering import pipeline
from gradopt.lowering.target import target
from gradopt.runtime.export_hybrid import export_stateful
from gradopt.runtime.exported import held_by
from iree.compiler.tools import compile_str

from .training_programs import PROGRAMS, batch, stepping

pytestmark = pytest.mark.compiler

SOME = ("dropout_and_batch_norm",)
CHOSEN = PROGRAMS if os.environ.get("GRADOPT_EXPORT_PROGRAMS") == "all" else SOME
X, Y = go.TensorSpec((None, 6)), go.TensorSpec((None, 3))


@pytest.mark.parametrize("name", CHOSEN)
def test_steps_are_those_of_hybridized_code(name: str, tmp_path: pathlib.Path) -> None:
    """Three steps in the artifact and in Python, both compiled, a prediction, and what is left
    behind.
    """
    go.random.seed(5)
    step, predict = PROGRAMS[name]()
    functions: Any = {"step": (step, batch(0)), "infer": (predict, (X,))}
    go.export(tmp_path / "net", functions)
    model = deploy.load(tmp_path / "net", device="local-sync")
    run = go.hybridize(step)
    for i in range(3):
        np.testing.assert_allclose(model.step(*batch(i))[""], run(*batch(i)), rtol=1e-5)
    x = batch(9, rows=1)[0]
    with go.infer_mode():
        want = go.hybridize(predict)(x)
    np.testing.assert_allclose(model.infer(x)[""], want, rtol=1e-5)
    exported = export_stateful({n: (*about, None) for n, about in functions.items()})
    left, got = held_by(exported), model.state()
    assert set(got) <= set(left)
    for path, a in got.items():
        assert a.tobytes() == left[path].tobytes(), path  # type: ignore[union-attr]


def make() -> tuple[Any, Any]:
    net = nn.Sequential(
        nn.Conv(1, 4, 3, padding=1), nn.BatchNorm(4), go.relu, nn.Dropout(0.4), nn.Flatten(),
        nn.Dense(64, 3),
    )  # fmt: skip
    return net, optim.Adam(net, 0.05)


def init(seed: Any) -> tuple[Any, Any]:
    go.random.seed(seed)
    return make()


def images(seed: int, rows: int = 8) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, 4, 4, 1)).astype(np.float32)


def test_a_life_on_the_device(tmp_path: pathlib.Path) -> None:
    """C149, and the ways between Python and a device: an artifact without weights, begun there from
    a seed; trained, with a rate that is set from outside; stopped, and gone on with bit for bit;
    inference of a batch of one, there, in Python from the checkpoint, and by an artifact for
    inference that Python exports then.
    """
    net, optimizer = make()
    step = stepping(net, optimizer)
    spec, seed = go.TensorSpec((None, 4, 4, 1)), go.TensorSpec((), "int64")
    about = images(0), batch(0)[1]
    folder = tmp_path / "net"
    functions: Any = {"init": (init, (seed,)), "step": (step, about), "infer": (net, (spec,))}
    go.export(folder, functions, weights=())
    assert not (folder / "weights.safetensors").exists()
    model = deploy.load(folder)
    with pytest.raises(deploy.ArgumentError, match="call 'init', restore a checkpoint or use set"):
        model.step(*about)
    model.init(7)
    model.set_state({"optimizer.learning_rate": np.float32(0.02)})
    model.step(images(1), batch(1)[1])
    model.save(tmp_path / "net.ckpt", batch=1)
    model.step(images(2), batch(2)[1])
    other = deploy.load(folder)
    assert other.restore(tmp_path / "net.ckpt") == {"batch": 1}
    other.step(images(2), batch(2)[1])
    a, b = model.state(), other.state()
    assert list(a) == list(b) and all(a[n].tobytes() == b[n].tobytes() for n in a)

    x = images(9, rows=1)
    model.save(tmp_path / "net.ckpt")
    go.restore(tmp_path / "net.ckpt", net, optimizer, go.random)
    assert int(optimizer.count) == 2 and optimizer.learning_rate == np.float32(0.02)
    with go.infer_mode():
        want = net(go.array(x)).numpy()
    np.testing.assert_allclose(model.infer(x)[""], want, rtol=1e-4, atol=1e-5)
    go.export(tmp_path / "small", {"infer": (net, (spec,))})
    small = deploy.load(tmp_path / "small")
    assert set(small.state()) == set(net.arrays())
    np.testing.assert_array_equal(small.infer(x)[""], model.infer(x)[""])


def test_forward_and_backward(tmp_path: pathlib.Path) -> None:
    """C151: of an argument that nothing depends on the gradient is zero; an integer has none, and
    is among the inputs.
    """

    def f(x: Any, unused_y: Any, int_k: Any) -> Any:
        return {"z": x * 2}

    def backward(x: Any, unused_y: Any, int_k: Any, ct: Any) -> Any:
        _, pull = go.vjp(lambda *a: f(*a)["z"], x, unused_y, int_k)
        return dict(zip(("x", "unused_y", "int_k"), pull(ct), strict=True))

    x, k = go.TensorSpec((3,)), go.TensorSpec((), "int32")
    functions: Any = {"forward": (f, (x, x, k)), "backward": (backward, (x, x, k, x))}
    go.export(tmp_path / "f", functions)
    model = deploy.load(tmp_path / "f")
    one = np.ones(3, np.float32)
    assert model.forward(one, one, 5)["z"].tolist() == [2, 2, 2]
    got = model.backward(one, one, 5, one)
    assert {n: g.tolist() for n, g in got.items()} == {"x": [2, 2, 2], "unused_y": [0, 0, 0]}
    types = [(i.name, i.type) for i in model.functions["backward"].inputs]
    assert types[2] == ("int_k", "int32")


def test_digits(tmp_path: pathlib.Path) -> None:
    """The example: trained to 97%, exported, and run to the same figure, and trained anew as well,
    by processes without gradopt.
    """
    root = pathlib.Path(__file__).resolve().parent.parent / "examples"

    def example(script: str, *arguments: Any) -> str:
        command = [sys.executable, root / script, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    folder, data, kept = (tmp_path / n for n in ("digits", "digits.npz", "digits.ckpt"))
    trained = example("digits.py", "--out", folder)
    accuracy = re.search(r"test accuracy (\d\.\d+)", trained)
    assert accuracy and float(accuracy[1]) >= 0.97
    inferred = example("digits_infer.py", folder)
    assert f"test accuracy {accuracy[1]}, by IREE's runtime alone" in inferred
    assert "of gradopt and compilers, loaded here: nothing" in inferred
    device = example("digits_device.py", folder, data, "--checkpoint", kept, "--epochs", "3")
    assert float(device.rpartition("test accuracy ")[2]) >= 0.97


def test_batch_norm_costs_no_pass() -> None:
    """C149: in inference IREE fuses it with the convolution before it: there are no more dispatches
    than without.
    """

    def dispatches(*layers: Any) -> int:
        spec = go.TensorSpec((None, 8, 8, 4))
        (found,) = export_stateful({"infer": (nn.Sequential(*layers), (spec,), None)})
        found.graph.finish()
        text = pipeline.lower(found.graph.module, target("cpu"))[0].operation.get_asm()
        flow = compile_str(text, target_backends=["llvm-cpu"], extra_args=["--compile-to=flow"])
        assert flow is not None
        return flow.count(b"flow.dispatch @")

    conv = nn.Conv(4, 8, 3)
    assert dispatches(conv, nn.BatchNorm(8), go.relu) == dispatches(conv, go.relu) == 1


def test_mutation(tmp_path: pathlib.Path) -> None:
    """C152: what writes to its argument and its buffers, and lets arrays change places: one result,
    and states that the next call reads. Results are not overwritten by later calls.
    """

    class Doubling(nn.Module):
        def __init__(self) -> None:
            self.last = go.array(np.zeros(2, np.float32))
            self.a, self.b = go.array(np.float32(1)), go.array(np.float32(2))

        def __call__(self, x: Any) -> Any:
            x *= 2
            x += self.last
            self.last[...] = x
            self.a, self.b = self.b, self.a + self.b
            return x

    go.export(tmp_path / "f", {"f": (Doubling(), (go.TensorSpec((2,)),))})
    model = deploy.load(tmp_path / "f")
    given = np.ones(2, np.float32)
    found = [model.f(given) for _ in range(4)]
    assert [list(x) for x in found] == [[""]] * 4
    assert [x[""].tolist() for x in found] == [[2, 2], [4, 4], [6, 6], [8, 8]]
    assert given.tolist() == [1, 1]
    assert {n: x.tolist() for n, x in model.state().items()} == {"last": [8, 8], "a": 8, "b": 13}
