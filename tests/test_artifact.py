# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Artifacts and the commands around them: export, gradopt-compile, gradopt-run, gradopt-bench, and
the digits example, trained and then run without gradopt.
"""

import json
import pathlib
import re
import subprocess
import sys
from typing import Any

import gradopt as go
import numpy as np
import pytest
from gradopt.errors import ArgumentError, ArtifactError
from gradopt.runtime import artifact
from gradopt.runtime.artifact import Artifact
from gradopt.tools import bench, run
from gradopt.tools import compile as compile_tool

pytestmark = pytest.mark.compiler
ROOT = pathlib.Path(__file__).resolve().parent.parent

STEP = """\
func.func private @loss(%w: tensor<3xf32> {gradopt.name = "w"}) -> tensor<f32> {
  %0 = "gradopt.mul"(%w, %w) : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
  %1 = "gradopt.sum"(%0) {axes = array<i64: 0>} : (tensor<3xf32>) -> tensor<f32>
  return %1 : tensor<f32>
}
func.func @step(%w: tensor<3xf32> {gradopt.name = "w", gradopt.donated})
    -> (tensor<3xf32>, tensor<f32>) {
  %one = "gradopt.constant"() {value = dense<1.0> : tensor<f32>} : () -> tensor<f32>
  %vjp = "gradopt.vjp"() {callee = @loss, wrt = array<i64: 0>}
      : () -> ((tensor<3xf32>, tensor<f32>) -> (tensor<f32>, tensor<3xf32>))
  %r:2 = call_indirect %vjp(%w, %one) : (tensor<3xf32>, tensor<f32>) -> (tensor<f32>, tensor<3xf32>)
  %rate = "gradopt.constant"() {value = dense<0.25> : tensor<3xf32>} : () -> tensor<3xf32>
  %d = "gradopt.mul"(%rate, %r#1) : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
  %new = "gradopt.sub"(%w, %d) : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
  return %new, %r#0 : tensor<3xf32>, tensor<f32>
}
"""


def predict(params: dict[str, Any], x: Any) -> dict[str, Any]:
    scores = x @ params["w"] + params["b"]
    return {"label": scores.argmax(axis=1), "scores": scores}


def params() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(9)
    return {"w": rng.normal(size=(3, 4)).astype(np.float32), "b": np.arange(4, dtype=np.float32)}


@pytest.fixture
def exported(tmp_path: pathlib.Path) -> pathlib.Path:
    functions = {"predict": (predict, (params(), go.TensorSpec((None, 3))))}
    return go.export(tmp_path / "net-1.5", functions, {"params": params()})


def test_export_and_load(exported: pathlib.Path) -> None:
    """Names with dots, unknown extents, parameters from the weights file."""
    assert sorted(p.name for p in exported.parent.iterdir()) == [
        "net-1.5.json", "net-1.5.safetensors", "net-1.5.vmfb",
    ]  # fmt: skip
    for name in (exported, exported.with_name("net-1.5.vmfb"), exported.with_name("net-1.5")):
        loaded = Artifact(name)
        for n in (1, 5):
            x = np.random.default_rng(n).normal(size=(n, 3)).astype(np.float32)
            found = loaded.call("predict", x)
            want = x @ params()["w"] + params()["b"]
            np.testing.assert_allclose(found["scores"], want, rtol=1e-5, atol=1e-6)
            np.testing.assert_array_equal(found["label"], want.argmax(axis=1))


def test_manifest(exported: pathlib.Path) -> None:
    (function,) = json.loads(exported.read_text())["functions"]
    assert [(i["name"], i["shape"], i["dtype"], i["role"]) for i in function["inputs"]] == [
        ("params.b", [4], "float32", "parameter"),
        ("params.w", [3, 4], "float32", "parameter"),
        ("x", [None, 3], "float32", "data"),
    ]
    assert [(o["name"], o["dtype"]) for o in function["outputs"]] == [
        ("label", "int32"),
        ("scores", "float32"),
    ]


def test_compiled_functions_can_be_exported(tmp_path: pathlib.Path) -> None:
    double = go.compile(lambda x: x + x)
    path = go.export(tmp_path / "d", {"double": (double, (go.TensorSpec((2,)),))})
    (found,) = Artifact(path).call("double", np.float32([1, 2])).values()
    np.testing.assert_array_equal(found, [2, 4])


def test_errors_of_the_compiler_can_name_ops(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What goes to the compiler has the user's lines, and the ops that stand there are known."""
    seen: dict[str, Any] = {}

    def look(text: str, target: Any, name: str, ops: dict[str, list[str]]) -> bytes:
        for place, names in ops.items():
            file, line = place.rsplit(":", 1)
            seen[file] = names, f'loc("{file}":{line}:' in text
        return b""

    monkeypatch.setattr(artifact, "compile_linalg", look)
    monkeypatch.setenv("GRADOPT_CACHE_DIR", str(tmp_path))
    functions = {name: (f, (go.TensorSpec((2,)),)) for name, f in [("a", go.sin), ("b", go.cos)]}
    go.export(tmp_path / "e", functions)
    assert seen == {__file__: (["gradopt.sin", "gradopt.cos"], True)}


def test_wrong_calls(exported: pathlib.Path) -> None:
    loaded = Artifact(exported)
    with pytest.raises(ArtifactError, match="expected a function out of predict, got 'train'"):
        loaded.call("train")
    with pytest.raises(
        TypeError, match=r"argument 'x' of type tensor<\?x3xf32>, got tensor<2x4xf32>"
    ):
        loaded.call("predict", np.ones((2, 4), np.float32))


def edit(path: pathlib.Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_what_cannot_be_loaded(exported: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """C133: damage, other versions and other machines are told, before anything is run."""
    manifest, image = json.loads(exported.read_text()), exported.with_name("net-1.5.vmfb")
    with pytest.raises(ArtifactError, match=r"cannot read the manifest '.*none\.json'"):
        Artifact(tmp_path / "none")
    edit(exported, format="gradopt-artifact-0")
    with pytest.raises(
        ArtifactError, match="expected format gradopt-artifact-1, got gradopt-artifact-0"
    ):
        Artifact(exported)
    versions = manifest["versions"] | {"iree-base-compiler": "1.2.3"}
    edit(exported, **manifest | {"versions": versions})
    with pytest.raises(
        ArtifactError, match=r"compiled by IREE 1\.2\.3, this is IREE .*install 1\.2\.3"
    ):
        Artifact(exported)
    edit(exported, **manifest | {"cpu_features": [*manifest["cpu_features"], "avx9000"]})
    with pytest.raises(ArtifactError, match="a CPU with avx9000, which this one lacks"):
        Artifact(exported)
    edit(exported, **manifest)
    image.write_bytes(image.read_bytes()[:-1])
    with pytest.raises(ArtifactError, match=r"'.*net-1\.5\.vmfb' is damaged"):
        Artifact(exported)
    exported.write_text("not json")
    with pytest.raises(ArtifactError, match="is no manifest"):
        Artifact(exported)


@pytest.mark.filterwarnings("ignore:the compile cache")
def test_nothing_is_half_written(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An export that fails half-way leaves the artifact of before."""
    functions = {"f": (lambda x: x + 1, (np.ones(2, np.float32),))}
    path = go.export(tmp_path / "a", functions)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="No space"):
        go.export(path, {"f": (lambda x: x + 2, (np.ones(2, np.float32),))})
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


ONES = np.ones((4, 2), np.float32)


@pytest.mark.parametrize(
    ("functions", "parameters", "message"),
    [
        ({}, None, "at least one function, got none"),
        (predict, None, r"expected a dict of names and \(function, arguments\), got function"),
        ({"f": (predict, 1, 2)}, None, r"a pair \(Python function, arguments\) as 'f', got"),
        ({"f": (lambda p: p, (ONES,))}, {"q": ONES}, "parameter 'q' expected to be an input of"),
        ({"f": (lambda p: p, (ONES,))}, {"p": ONES.T}, "expected argument 'p' of type tensor<4x2"),
        ({"f": (lambda p: p, (ONES,))}, {"p": {"a.b": ONES, "a": {"b": ONES}}}, "two parameters"),
    ],
    ids=["nothing", "no dict", "no pair", "another name", "another shape", "one name twice"],
)
def test_what_cannot_be_exported(
    functions: Any, parameters: Any, message: str, tmp_path: pathlib.Path
) -> None:
    with pytest.raises((ArtifactError, ArgumentError), match=message):
        go.export(tmp_path / "a", functions, parameters)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16", "int8", "uint32", "bool"])
def test_element_types_of_parameters(dtype: str, tmp_path: pathlib.Path) -> None:
    w = np.array([[0, 1], [1, 0]]).astype(go.TensorSpec((), dtype).dtype)
    p = {"w": w, "scale": 2.0, "steps": 3}
    functions = {"f": (lambda p: (p["w"], p["scale"] * p["steps"]), (p,))}
    loaded = Artifact(go.export(tmp_path / "a", functions, {"p": p}))
    assert loaded.weights["p.w"].dtype == w.dtype
    got, product = loaded.call("f").values()
    np.testing.assert_array_equal(got, w)
    assert product == 6


def test_export_without_parameters_leaves_none(tmp_path: pathlib.Path) -> None:
    f = {"f": (lambda p: p + 1, (ONES,))}
    go.export(tmp_path / "a", f, {"p": ONES})
    assert (tmp_path / "a.safetensors").exists()
    go.export(tmp_path / "a", f)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json", "a.vmfb"]


# --- the commands ---------------------------------------------------------------------------------


def test_compile_and_run_a_step(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A training step in text, with a derivative and a donated argument, compiled and called."""
    source = tmp_path / "step.mlir"
    source.write_text(STEP)
    assert compile_tool.main([str(source)]) == 0
    assert capsys.readouterr().out == f"wrote {tmp_path}/step.vmfb\n"
    np.save(tmp_path / "w.npy", np.array([1, 2, 4], np.float32))
    assert (
        run.main([str(tmp_path / "step"), "step", "--input", str(tmp_path / "w.npy"), "--json"])
        == 0
    )
    assert json.loads(capsys.readouterr().out) == {"0": [0.5, 1.0, 2.0], "1": 21.0}
    assert run.main([str(tmp_path / "step"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {
            "function": "step",
            "inputs": "w: 3xfloat32",
            "parameters": 0,
            "outputs": "0: 3xfloat32, 1: float32",
        }
    ]


@pytest.mark.parametrize("stage", ["graph", "differentiated", "simplified", "linalg"])
def test_compile_prints_stages(
    stage: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "step.mlir").write_text(STEP)
    assert compile_tool.main([str(tmp_path / "step.mlir"), "--emit", stage]) == 0
    text = capsys.readouterr().out
    assert ("gradopt.vjp" in text) == (stage == "graph")
    assert ("linalg.generic" in text) == (stage == "linalg")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step.mlir"]


@pytest.mark.parametrize(
    ("text", "status", "message"),
    [
        (None, 2, r"cannot read '.*bad\.mlir': No such file"),
        ("func.func @f(", 1, r"bad\.mlir:1:13: error: expected"),
        ("func.func private @f() { return }", 1, r"bad\.mlir:1:1: error: expected a public func"),
        (STEP.replace("gradopt.sum", "gradopt.sun"), 1, r"bad\.mlir:3:8: error: .* did you mean"),
        (STEP.replace("dense<0.25> : tensor<3xf32>", "dense<0.25> : tensor<2xf32>"), 1,
         r"bad\.mlir:12:11: error: 'gradopt.constant' op expected result type tensor<2xf32>"),
        ("func.func @f(%i: index) { return }", 1, "@f to take and return tensors, got index"),
        ("func.func @__f() { return }", 1, "a name that does not start with __, got @__f"),
        ("func.func @f() { return } func.func private @g()", 1, "@g to have a body, got a decl"),
        ("func.func @f() { gradopt.exp }", 1, "expected MLIR text or bytecode"),
    ],
    ids=["missing", "syntax", "private", "unknown op", "wrong shape", "index", "name",
         "declaration", "custom form"],
)  # fmt: skip
def test_compile_says_what_is_wrong(
    text: str | None,
    status: int,
    message: str,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if text is not None:
        (tmp_path / "bad.mlir").write_text(text)
    assert compile_tool.main([str(tmp_path / "bad.mlir")]) == status
    assert re.search(message, capsys.readouterr().err)
    assert not list(tmp_path.glob("*.vmfb"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none"], "cannot read the manifest"),
        (["net-1.5", "train"], "expected a function out of predict, got 'train'"),
        (["net-1.5", "predict"], r"'predict' expected 1 arguments \(x\), got 0"),
        (["net-1.5", "predict", "--input", "2x4xfloat32=1"], "argument 'x' of type"),
        (
            ["net-1.5", "predict", "--input", "2xthree=1"],
            "--input expected a .npy file or SHAPExDTYPE=VALUE .* got '2xthree=1'",
        ),
        (["net-1.5", "predict", "--input", "none.npy"], "none.npy"),
        (["net-1.5", "predict", "--input", __file__], "the magic string is not correct"),
        (["net-1.5", "predict", "--input", "2xint8=300"], "integers that fit int8"),
        (["net-1.5", "predict", "--input", "2x3xfloat32=1", "--output", __file__], "File exists"),
    ],
    ids=["artifact", "function", "count", "shape", "text", "file", "other file", "fit", "folder"],
)
def test_run_says_what_is_wrong(
    arguments: list[str],
    message: str,
    exported: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(exported.parent)
    assert run.main(arguments) == 1
    assert re.search(f"gradopt-run: error: .*{message}", capsys.readouterr().err)


def test_run_writes_results(
    exported: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "results"
    command = [str(exported), "predict", "--input", "2x3xfloat32=0", "--output", str(folder)]
    assert run.main(command) == 0
    np.testing.assert_array_equal(np.load(folder / "scores.npy"), [params()["b"]] * 2)
    np.testing.assert_array_equal(np.load(folder / "label.npy"), [3, 3])


def test_bench(capsys: pytest.CaptureFixture[str]) -> None:
    """One JSON line a workload, with the loss that all peers reach after five steps."""
    assert bench.main(["--workloads", "mlp,recsys", "--seconds", "0"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(r["peer"], r["workload"]) for r in rows] == [("gradopt", "mlp"), ("gradopt", "recsys")]
    assert set(rows[0]) == {"peer", "workload", "median_ms", "min_ms", "first_s", "loss5"}
    assert abs(rows[0]["loss5"] - 2.07406) < 1e-4
    assert abs(rows[1]["loss5"] - 0.69344) < 1e-4
    with pytest.raises(SystemExit):
        bench.main(["--workloads", "mlq"])
    assert "--workloads expected names out of mlp,cnn" in capsys.readouterr().err


# --- the example ----------------------------------------------------------------------------------


def test_digits(tmp_path: pathlib.Path) -> None:
    """Trained to 97%, exported, and run to the same figure by a process without gradopt."""

    def example(script: str, *arguments: str) -> str:
        command = [sys.executable, str(ROOT / "examples" / script), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        return done.stdout

    trained = example("digits.py", "--out", str(tmp_path))
    accuracy = re.search(r"test accuracy (\d\.\d+)", trained)
    assert accuracy
    assert float(accuracy[1]) >= 0.97
    inferred = example("digits_infer.py", str(tmp_path))
    assert f"test accuracy {accuracy[1]}, by IREE's runtime alone" in inferred
    assert "of gradopt and compilers, loaded here: nothing" in inferred
    assert json.loads((tmp_path / "digits.json").read_text())["format"] == artifact.FORMAT
