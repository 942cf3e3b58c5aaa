# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Artifacts, compiled by IREE and run by gradopt.deploy. GRADOPT_ARTIFACT_MIB in the environment is
the size of the one of test_size, and `-s` prints what is measured:

    GRADOPT_ARTIFACT_MIB=50 python -m pytest tests/test_iree_artifact.py -k size -s
"""

import json
import os
import pathlib
import time
from typing import Any

import gradopt as go
import numpy as np
import pytest
from gradopt import deploy
from gradopt.errors import ArtifactError
from gradopt.tools import compile as compile_tool

from .artifacts import HAS_VULKAN

pytestmark = pytest.mark.compiler
MIB = int(os.environ.get("GRADOPT_ARTIFACT_MIB", "4"))
ALL = ["cpu", "vulkan"] if HAS_VULKAN else ["cpu"]

Tree = dict[str, Any]

LOSS = """\
func.func @predict(%w: tensor<4x3xbf16> {gradopt.name = "w", gradopt.role = "parameter"},
    %x: tensor<8x4xf32> {gradopt.name = "x"}) -> (tensor<8x3xf32> {gradopt.name = "scores"}) {
  %0 = "gradopt.convert"(%w) {dtype = f32} : (tensor<4x3xbf16>) -> tensor<4x3xf32>
  %1 = "gradopt.dot_general"(%x, %0) {lhs_contract = array<i64: 1>, rhs_contract = array<i64: 0>}
      : (tensor<8x4xf32>, tensor<4x3xf32>) -> tensor<8x3xf32>
  return %1 : tensor<8x3xf32>
}
func.func @loss(%w: tensor<4x3xbf16> {gradopt.name = "w", gradopt.role = "parameter"},
    %x: tensor<8x4xf32> {gradopt.name = "x"}, %y: tensor<8x3xf32> {gradopt.name = "y"})
    -> tensor<f32> {
  %0 = call @predict(%w, %x) : (tensor<4x3xbf16>, tensor<8x4xf32>) -> tensor<8x3xf32>
  %1 = "gradopt.mse"(%0, %y) : (tensor<8x3xf32>, tensor<8x3xf32>) -> tensor<8x3xf32>
  %2 = "gradopt.sum"(%1) {axes = array<i64: 0, 1>} : (tensor<8x3xf32>) -> tensor<f32>
  return %2 : tensor<f32>
}
"""


def loss(p: Tree, x: Any, y: Any) -> Any:
    return go.mse(go.tanh(x @ p["w"]) @ p["u"], y).mean()


def step(p: Tree, m: Tree, rate: Any, x: Any, y: Any) -> Tree:
    value, gradient = go.value_and_grad(loss)(p, x, y)
    m = {k: 0.9 * m[k] + gradient[k] for k in p}
    return {"loss": value, "p": {k: p[k] - rate * m[k] for k in p}, "m": m}


def problem() -> tuple[Tree, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    shapes = {"p.u": (8, 2), "p.w": (4, 8), "x": (16, 4), "y": (16, 2)}
    made = {n: rng.normal(size=s).astype(np.float32) / 2 for n, s in shapes.items()}
    return {"u": made["p.u"], "w": made["p.w"]}, made["x"], made["y"]


@pytest.mark.parametrize("fat", [False, True], ids=["a file a target", "one file"])
def test_training(fat: bool, tmp_path: pathlib.Path) -> None:
    """Parameters and momentum are updated in place, to what NumPy gives; on all targets, from one
    artifact, be it from one and the same module.
    """
    p, x, y = problem()
    m = {k: np.zeros_like(a) for k, a in p.items()}
    functions = {"step": (step, (p, m, np.float32(0), x, y))}
    go.export(tmp_path / "a", functions, {"p": p}, state={"m": m}, targets=ALL, fat=fat)
    about = json.loads((tmp_path / "a" / "manifest.json").read_text())
    files = {e["target"]: e["file"] for e in about["modules"]}
    assert files == {t: "fat.vmfb" if fat else f"{t}.vmfb" for t in ALL}
    for module in about["modules"]:
        assert module["functions"]["step"]["in_place"]
        assert module["functions"]["step"]["arena"] > 0
    for target in ALL:
        _train(deploy.load(tmp_path / "a", target), p, x, y)


def _train(model: deploy.Model, p: Tree, x: np.ndarray, y: np.ndarray) -> None:
    p = {k: a.astype(np.float64) for k, a in p.items()}
    m = {k: np.zeros_like(a) for k, a in p.items()}
    for _ in range(4):
        hidden = np.tanh(x @ p["w"])
        off = hidden @ p["u"] - y
        found = model.step(np.float32(0.1), x, y)["loss"]
        np.testing.assert_allclose(found, np.mean(off**2), rtol=1e-5)
        ct = 2 * off / off.size
        gradient = {"u": hidden.T @ ct, "w": x.T @ (ct @ p["u"].T * (1 - hidden**2))}
        m = {k: 0.9 * m[k] + gradient[k] for k in p}
        p = {k: p[k] - 0.1 * m[k] for k in p}
    for k in p:
        np.testing.assert_allclose(model.state()[f"p.{k}"], p[k], rtol=1e-4, atol=1e-6)


def test_size(tmp_path: pathlib.Path) -> None:
    """C142: an artifact is not larger than its parameters and constants, by more than a tenth,
    whatever the number of functions and targets, and with an optimizer's state beside.
    """
    rng = np.random.default_rng(0)
    w = rng.normal(size=(512, MIB * 512)).astype(np.float32)
    x = np.ones((1, 512), np.float32)

    def infer(p: Any, x: Any) -> Any:
        return (x @ p).sum()

    def train(p: Any, m: Any, x: Any) -> Tree:
        value, gradient = go.value_and_grad(infer)(p, x)
        m = 0.9 * m + gradient
        return {"loss": value, "p": p - 0.1 * m, "m": m}

    def constant(x: Any) -> Any:
        return (x @ go.constant(w)).sum()

    m = np.zeros_like(w)
    functions = {"infer": (infer, (w, x)), "train": (train, (w, m, x))}
    kinds = {
        "parameters": (functions, {"parameters": {"p": w}, "state": {"m": m}}),
        "constants": ({"infer": (constant, (x,)), "slope": (go.grad(constant), (x,))}, {}),
    }
    for kind, (made, held) in kinds.items():
        folder = go.export(tmp_path / kind, made, targets=ALL, **held)
        size = sum(p.stat().st_size for p in folder.iterdir())
        begin = time.perf_counter()
        model = deploy.load(folder, "cpu")
        milliseconds = (time.perf_counter() - begin) * 1e3
        np.testing.assert_allclose(model.infer(x)[""], w.sum(dtype=np.float64), rtol=1e-2, atol=1)
        print(
            f"\n{MIB} MiB of {kind}: {size:,} bytes, {size / w.nbytes:.4f} times theirs, loaded in "
            f"{milliseconds:.1f} ms"
        )
        assert size <= 1.1 * w.nbytes


def test_gradient_and_training_from_a_file(tmp_path: pathlib.Path) -> None:
    """gradopt-compile on a loss in MLIR, parameters in bfloat16 from a file; the artifact's own
    graph.mlir, compiled again, is the same module, bit for bit.
    """
    rng = np.random.default_rng(3)
    w = rng.normal(size=(4, 3)).astype(go.bfloat16)
    x, y = (rng.normal(size=s).astype(np.float32) for s in ((8, 4), (8, 3)))
    (tmp_path / "loss.mlir").write_text(LOSS)
    weights = tmp_path / "w.safetensors"
    weights.write_bytes(b"".join(deploy.safetensors_pieces({"w": w}, {})))
    command = ["--emit", "grad,step", "--learning-rate", "input", "--optimizer", "momentum"]
    command += ["--weights", str(weights), "--weights-format", "irpa", "--licence", "CC0-1.0"]
    assert (
        compile_tool.main([str(tmp_path / "loss.mlir"), *command, "-o", str(tmp_path / "a")]) == 0
    )
    model = deploy.load(tmp_path / "a")
    wide = w.astype(np.float32)
    gradient = 2 * x.T @ (x @ wide - y)
    found = model.grad(x, y)
    np.testing.assert_allclose(found["loss"], ((x @ wide - y) ** 2).sum(), rtol=1e-5)
    np.testing.assert_allclose(found["grad.w"].astype(np.float32), gradient, rtol=2**-8)
    model.step(x, y, np.float32(0.01))
    rounded = gradient.astype(go.bfloat16).astype(np.float32)
    np.testing.assert_allclose(model.state()["slots.w.m"], rounded, rtol=2**-7)
    new = model.state()["w"].astype(np.float32)
    np.testing.assert_allclose(new, wide - 0.01 * rounded, rtol=2**-7, atol=1e-3)

    (tmp_path / "again.mlir").write_bytes((tmp_path / "a" / "graph.mlir").read_bytes())
    assert compile_tool.main([str(tmp_path / "again.mlir"), "-o", str(tmp_path / "b")]) == 0
    modules = [(tmp_path / name / "cpu.vmfb").read_bytes() for name in ("a", "b")]
    assert modules[0] == modules[1]
    assert str(tmp_path).encode() not in modules[0]
    assert str(pathlib.Path(__file__).parent).encode() not in modules[0]


def test_gradients_across_the_border(tmp_path: pathlib.Path) -> None:
    """C151: forward and backward from one artifact, in the names of its signature."""

    (tmp_path / "f.py").write_text("def f(x, unused_y, int_k):\n    return (x * 2).sum()\n")
    types = ["--input", "x=3xfloat32", "--input", "unused_y=2xfloat32", "--input", "int_k=int32"]
    given = [str(tmp_path / "f.py:f"), *types, "--parameters", "x,unused_y,int_k"]
    assert compile_tool.main([*given, "--emit", "loss,grad", "-o", str(tmp_path / "a")]) == 0
    model = deploy.load(tmp_path / "a")
    arrays = {"x": np.float32([1, 2, 3]), "unused_y": np.ones(2, np.float32), "int_k": np.int32(7)}
    model.set_state(arrays)
    assert model.loss()["loss"] == 12
    found = {n: a.tolist() for n, a in model.grad().items()}
    assert found == {"loss": 12, "grad.x": [2, 2, 2], "grad.unused_y": [0, 0]}
    about = json.loads((tmp_path / "a" / "manifest.json").read_text())
    grad = next(f for f in about["functions"] if f["name"] == "grad")
    assert grad["gradients"] == {"x": 1, "unused_y": 2, "int_k": None}
    assert [i["dtype"] for i in grad["inputs"]] == ["float32", "float32", "int32"]


def test_same_bytes_twice(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled anew, the same functions are the same files."""
    p, x, y = problem()
    for name in ("a", "b"):
        monkeypatch.setenv("GRADOPT_CACHE_DIR", str(tmp_path / f"cache-{name}"))
        go.export(tmp_path / name / "net", {"loss": (loss, (p, x, y))}, {"p": p})
    for path in (tmp_path / "a" / "net").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / "net" / path.name).read_bytes(), path.name


def test_a_target_that_fails(tmp_path: pathlib.Path) -> None:
    """It is named, with what it cannot do; what stood there stays."""
    x = np.ones(2, np.float64)
    functions = {"f": (lambda x: x + 1, (x,))}
    go.export(tmp_path / "a", functions)
    before = {q.name: q.read_bytes() for q in (tmp_path / "a").iterdir()}
    with pytest.raises(ArtifactError, match=r"1 of 2 targets .*\nvulkan: .*float64") as caught:
        go.export(tmp_path / "a", functions, targets=["cpu", "vulkan"], name="other")
    assert "cpu:" not in str(caught.value)
    assert {q.name: q.read_bytes() for q in (tmp_path / "a").iterdir()} == before
