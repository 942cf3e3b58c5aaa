# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-compile and the functions that it makes of a loss and a prediction, with IREE's compiler
replaced.
"""

import io
import json
import pathlib
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gradopt import deploy
from gradopt.dialect import optimizer, reference
from gradopt.dialect.base import new_context
from gradopt.dialect.graph import trace
from gradopt.dialect.mlir import ir
from gradopt.dialect.types import TensorSpec
from gradopt.errors import ArtifactError
from gradopt.lowering import pipeline
from gradopt.runtime import pieces, weights
from gradopt.runtime.exported import Exported
from gradopt.runtime.program import Program
from gradopt.tools import compile as compile_tool

from .compilers import replaced

Tree = dict[str, Any]
ONES = np.ones((4, 2), np.float32)


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    replaced(monkeypatch)


# --- functions made of a loss ---------------------------------------------------------------------


NAMES = {
    "sgd": optimizer.SgdUpdateOp,
    "momentum": optimizer.MomentumUpdateOp,
    "adam": optimizer.AdamUpdateOp,
    "adamw": optimizer.AdamUpdateOp,
    "rmsprop": optimizer.RmspropUpdateOp,
    "adagrad": optimizer.AdagradUpdateOp,
    "lion": optimizer.LionUpdateOp,
}


def program(fn: Any, *arguments: Any, **roles: str) -> Program:
    return Program.of_graph(trace(fn, *arguments, name="loss")).with_roles(roles)


def evaluate(exported: Exported, given: dict[str, Any]) -> dict[str, Any]:
    """A function's results by name, on NumPy."""
    with exported.graph.context:
        pipeline.run(exported.graph.module, pipeline.STAGES["differentiated"])
        inputs = [np.asarray(given[n]) for n in exported.graph.input_names]
        found = reference.run(exported.graph.module, exported.name, *inputs)
    return dict(zip(exported.result_names(), found, strict=True))


@pytest.mark.parametrize("name", list(pieces.RULES))
def test_steps(name: str) -> None:
    """Two steps of each optimizer, its settings given, are two of its formula."""
    chosen = pieces.Optimizer.of(name, "input", weight_decay=0.1)
    rule = pieces.RULES[name]
    w, x = np.float32([1, -2, 3]), np.float32([0.5, 2, -1])
    of = program(lambda w, x: (w * w * x).sum(), w, x, w="parameter")
    made = pieces.step(of, {"w": w}, chosen)
    slots = chosen.state({"w": TensorSpec((3,))})
    assert made.roles == {"w": "parameter"} | dict.fromkeys(slots, "state")
    held = {n: np.zeros(s.extents, s.dtype) for n, s in slots.items()} | {"w": w}
    own = [w.astype(np.float64), *(np.zeros(3) for _ in rule.slots)]
    settings = {**chosen.settings, **rule.fixed}
    for t in (1, 2):
        value = (held["w"] ** 2 * x).sum()
        found = evaluate(made, held | {"x": x, "learning_rate": np.float32(0.2)})
        np.testing.assert_allclose(found["loss"], value, rtol=1e-6)
        arguments = [own[0], 2 * own[0] * x, np.float64(0.2), *own[1:]]
        arguments += [np.int32(t)] if rule.counts else []
        new = NAMES[name].reference(*arguments, **settings)
        own = list(new) if rule.slots else [new]
        held = {n: found[n] for n in held}
        np.testing.assert_allclose(held["w"], own[0], rtol=1e-5, atol=1e-6)
        for slot, value in zip(rule.slots, own[1:], strict=True):
            np.testing.assert_allclose(held[f"slots.w.{slot}"], value, rtol=1e-5)
        assert held.get("count", t) == t


def test_gradients_across_the_border() -> None:
    """C151: of an input that is not used it is zeros; an integer has none, and that is recorded."""
    x, k = np.float32([3, 4]), np.int32(5)
    of = program(
        lambda x, unused_y, int_k: (x * 2).sum(), x, x, k,
        x="parameter", unused_y="parameter", int_k="parameter",
    )  # fmt: skip
    made = pieces.grad(of, {})
    assert made.notes == {"gradients": {"x": 1, "unused_y": 2, "int_k": None}}
    found = evaluate(made, {"x": x, "unused_y": x, "int_k": k})
    assert list(found) == ["loss", "grad.x", "grad.unused_y"]
    np.testing.assert_array_equal(found["grad.x"], [2, 2])
    np.testing.assert_array_equal(found["grad.unused_y"], [0, 0])


def test_state_of_the_loss() -> None:
    """What a loss returns under the name of held state is its new value: in step, not in loss."""

    def counted(w: Any, seen: Any, x: Any) -> Tree:
        return {"loss": (w * x).sum(), "seen": seen + 1, "max": x.max()}

    x = np.float32([1, 2])
    of = program(counted, x, np.int32(0), x, w="parameter", seen="state")
    made = pieces.step(of, {}, pieces.Optimizer.of("sgd", 0.5))
    assert made.updates == {2: "seen", 3: "w"}
    found = evaluate(made, {"w": x, "seen": np.int32(3), "x": x})
    assert {n: v.tolist() for n, v in found.items()} == {
        "loss": 5.0, "max": 2.0, "seen": 4, "w": [0.5, 1.0],
    }  # fmt: skip
    assert pieces.loss(of, {}).result_names() == ["loss", "max"]


def test_stored_in_16_bits() -> None:
    """Parameters in bfloat16, computing and what the optimizer remembers in float32."""
    w, x = np.float32([1, 2]), np.float32([0.25, 0.5])
    bfloat16 = np.dtype(ml_dtypes.bfloat16)
    of = program(lambda w, x: (w * x).sum(), w, x, w="parameter").stored_as({"w": bfloat16})
    assert of.inputs[0][1] == TensorSpec((2,), "bfloat16")
    made = pieces.step(of, {}, pieces.Optimizer.of("momentum", 1.0))
    assert made.held["slots.w.m"] == TensorSpec((2,), "float32")
    found = evaluate(made, {"w": w.astype(bfloat16), "x": x, "slots.w.m": np.zeros(2, np.float32)})
    assert found["w"].dtype == bfloat16
    np.testing.assert_array_equal(found["w"].astype(np.float32), [0.75, 1.5])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pieces.Optimizer.of("sgd", None, momentum=0.9), "'sgd' expected settings out of"),
        (lambda: pieces.Optimizer.of("adam", -1.0), "a learning rate of at least 0, got -1.0"),
        (lambda: pieces.Optimizer.of("adma", None), "an optimizer out of sgd, .* got 'adma'"),
        (lambda: pieces.grad(program(lambda w: w, ONES, w="parameter"), {}),
         "a loss that is one floating-point number, .* got tensor<4x2xf32>"),
        (lambda: pieces.grad(program(lambda w: w.sum(), ONES), {}),
         "expected floating-point parameters among its inputs, w; say which by --parameters"),
        (lambda: pieces.init(pieces.Optimizer.of("sgd", None), {}, {}), "a state for init, but"),
    ],
)  # fmt: skip
def test_what_cannot_be_made(make: Any, message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        make()


# --- gradopt-compile ------------------------------------------------------------------------------


MODEL = """\
func.func @predict(%w: tensor<2xf32> {gradopt.name = "w"}, %x: tensor<2xf32> {gradopt.name = "x"})
    -> (tensor<2xf32> {gradopt.name = "scores"}) {
  %0 = "gradopt.mul"(%w, %x) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  return %0 : tensor<2xf32>
}
func.func @loss(%w: tensor<2xf32> {gradopt.name = "w"}, %x: tensor<2xf32> {gradopt.name = "x"})
    -> tensor<f32> {
  %0 = call @predict(%w, %x) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  %1 = "gradopt.sum"(%0) {axes = array<i64: 0>} : (tensor<2xf32>) -> tensor<f32>
  return %1 : tensor<f32>
}
"""
PYTHON = """\
import gradopt as go
def predict(p, x):
    return x @ p["w"]
def loss(p, x, y, scale=2.0):
    return scale * go.mse(predict(p, x), y).mean()
text = "no function"
"""


def compiled(folder: pathlib.Path, *arguments: str, status: int = 0) -> Tree:
    """The manifest that gradopt-compile writes."""
    assert compile_tool.main([*arguments, "-o", str(folder)]) == status
    return json.loads((folder / "manifest.json").read_text()) if status == 0 else {}


@pytest.fixture
def model(tmp_path: pathlib.Path) -> str:
    (tmp_path / "model.mlir").write_text(MODEL)
    (tmp_path / "net.py").write_text(PYTHON)
    return str(tmp_path / "model.mlir")


def signature(function: Tree) -> str:
    inputs = ", ".join(f"{i['name']}:{i['role']}" for i in function["inputs"])
    outputs = ", ".join(f"{o['name']}:{o['role']}" for o in function["outputs"])
    return f"{function['name']}({inputs}) -> {outputs}"


@pytest.mark.usefixtures("no_compiler")
def test_compile_as_it_is(
    model: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    about = compiled(tmp_path / "a", model)
    assert [signature(f) for f in about["functions"]] == [
        "predict(w:data, x:data) -> scores:result",
        "loss(w:data, x:data) -> 0:result",
    ]
    assert capsys.readouterr().out == f"wrote {tmp_path}/a\n"
    code = io.BytesIO()
    with new_context():
        ir.Module.parse(MODEL).operation.write_bytecode(code)
    (tmp_path / "code.mlirbc").write_bytes(code.getvalue())
    assert compile_tool.main([str(tmp_path / "code.mlirbc")]) == 0
    again = json.loads((tmp_path / "code" / "manifest.json").read_text())
    assert again["functions"] == about["functions"]


@pytest.mark.usefixtures("no_compiler")
def test_compile_what_is_donated(tmp_path: pathlib.Path) -> None:
    """An argument with gradopt.donated is held, and the result that takes it over its new value."""
    donated = MODEL.replace('{gradopt.name = "w"}', '{gradopt.name = "w", gradopt.donated}', 1)
    (tmp_path / "model.mlir").write_text(donated)
    predict, loss = compiled(tmp_path / "a", str(tmp_path / "model.mlir"))["functions"]
    assert signature(predict) == "predict(w:state, x:data) -> w:state"
    assert signature(loss) == "loss(w:state, x:data) -> 0:result"
    assert (predict["mode"], predict["storage"]) == ("train", [{"output": 0, "input": 0}])


@pytest.mark.usefixtures("no_compiler")
def test_compile_a_step(
    model: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Out of a file; the artifact's own graph.mlir gives the same functions again."""
    values = tmp_path / "w.safetensors"
    w = np.float32([3, 4])
    values.write_bytes(b"".join(deploy.safetensors_pieces({"w": w}, {})))
    command = [model, "--emit", "infer,loss,grad,step", "--optimizer", "adam", "--parameters", "w",
               "--learning-rate", "input", "--weights", str(values), "--name", "n"]  # fmt: skip
    about = compiled(tmp_path / "a", *command, "--target", "cpu,vulkan", "--target", "cuda")
    assert [signature(f) for f in about["functions"]] == [
        "infer(w:parameter, x:data) -> scores:result",
        "loss(w:parameter, x:data) -> loss:result",
        "grad(w:parameter, x:data) -> loss:result, grad.w:result",
        "step(w:parameter, x:data, learning_rate:data, count:state, slots.w.m:state, "
        "slots.w.v:state) -> loss:result, count:state, w:parameter, slots.w.m:state, "
        "slots.w.v:state",
    ]
    assert [m["target"] for m in about["modules"]] == ["cpu", "vulkan", "cuda"]
    assert about["zeros"] == ["count", "slots.w.m", "slots.w.v"]
    found = weights.read_weights(tmp_path / "a" / "weights.safetensors")
    np.testing.assert_array_equal(found.pop("w"), w)
    assert not found
    assert "no initial" not in capsys.readouterr().err
    text = (tmp_path / "a" / "graph.mlir").read_text()
    (tmp_path / "graph.mlir").write_text(text)
    again = compiled(tmp_path / "b", str(tmp_path / "graph.mlir"), "--name", "n")
    for function in about["functions"]:
        function.pop("gradients", None)
    assert again["functions"] == about["functions"]
    assert "no initial values of w, count" in capsys.readouterr().err


@pytest.mark.usefixtures("no_compiler")
def test_compile_a_python_function(model: str, tmp_path: pathlib.Path) -> None:
    types = ["--input", "p.w=2x3xfloat32", "--input", "x=8x2xfloat32", "--input", "y=8x3xfloat32"]
    made = ["--parameters", "p", "--emit", "infer,step,init"]
    command = [str(tmp_path / "net.py:loss"), *types, *made]
    opened = ["--dynamic", "x:0=batch", "--dynamic", "y:0=batch", "--optimizer", "lion"]
    about = compiled(tmp_path / "a", *command, *opened, "--dtype", "bfloat16")
    assert [signature(f) for f in about["functions"]] == [
        "infer(p.w:parameter, x:data) -> :result",
        "step(p.w:parameter, x:data, y:data, slots.p.w.m:state) -> loss:result, p.w:parameter, "
        "slots.p.w.m:state",
        "init() -> slots.p.w.m:state",
    ]
    (w, x), step_ = about["functions"][0]["inputs"], about["functions"][1]
    assert (w["dtype"], x["shape"]) == ("bfloat16", [None, 2])
    assert [i["dtype"] for i in step_["inputs"]] == ["bfloat16", *["float32"] * 3]
    assert about["zeros"] == []


@pytest.mark.parametrize("stage", ["graph", "differentiated", "simplified", "linalg"])
def test_compile_prints_stages(
    stage: str, model: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compile_tool.main([model, "--stage", stage]) == 0
    text = capsys.readouterr().out
    assert ("call @predict" in text) == (stage == "graph")
    assert ("linalg.generic" in text) == (stage == "linalg")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.mlir", "net.py"]


@pytest.mark.parametrize(
    ("text", "status", "message"),
    [
        (None, 2, r"cannot read '.*bad\.mlir': No such file"),
        ("func.func @f(", 1, r"bad\.mlir:1:13: error: expected"),
        ("func.func private @f() { return }", 1, r"bad\.mlir:1:1: error: expected a public func"),
        (MODEL.replace("gradopt.sum", "gradopt.sun"), 1, r"bad\.mlir:9:8: error: .* did you mean"),
        (MODEL.replace("array<i64: 0>", "array<i64: 1>"), 1, r"bad\.mlir:9:8: error: 'gradopt"),
        ("func.func @f(%i: index) { return }", 1, "@f to take and return tensors, got index"),
        ("func.func @__f() { return }", 1, "a name that does not start with __, got @__f"),
        ("func.func @f() { return } func.func private @g()", 1, "@g to have a body, got a decl"),
        ("func.func @f() { gradopt.exp }", 1, "expected MLIR text or bytecode"),
    ],
    ids=["missing", "syntax", "private", "unknown op", "wrong axes", "index", "name",
         "declaration", "custom form"],
)  # fmt: skip
def test_compile_says_what_is_wrong_in_a_file(
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
    assert not (tmp_path / "bad").exists()


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ("model.mlir --emit grad", 1, "'loss' expected floating-point parameters"),
        ("model.mlir --emit grad --loss lost", 1, "--loss expected a function out of predict"),
        ("model.mlir --emit grad --loss predict --parameters w", 1, "a loss that is one floating"),
        ("model.mlir --emit grad --parameters v", 1, "floating-point parameters among its inputs"),
        ("model.mlir --parameters v", 1, "--parameters expected arguments out of w, x, got 'v'"),
        ("model.mlir --emit step --parameters w --momentum 0.9", 2, "'sgd' expected settings out"),
        ("model.mlir --parameters w --weights model.mlir", 1, "to be a safetensors file"),
        ("model.mlir --parameters w --weights none", 1, "cannot read 'none': No such file"),
        ("model.mlir --input x=2xfloat32", 2, "--input expected a Python function; the types"),
        ("model.mlir --dynamic x:0", 2, "--dynamic expected a Python function; .* with \\? for"),
        ("model.mlir --target tpu", 2, "expected a target out of cpu, .* got 'tpu'"),
        ("model.mlir --memory-budget 1MiB --remat cheap", 2, "--remat: not allowed with"),
        ("model.mlir --emit test", 2, "expected names out of infer, loss, grad, step, init, got"),
        ("model.mlir --emit infer --betas 1", 2, "expected two numbers X,Y, got '1'"),
        ("net.py:loss", 1, "'loss' expected the type of argument 'p'; give --input p=4x8xfloat32"),
        ("net.py:lost", 2, "'net' expected to have a function 'lost'"),
        ("net.py:text", 2, "'net:text' expected to be a function, got 'no function'"),
        ("no.net:loss", 2, "cannot import 'no.net': No module named 'no'"),
        ("net.py:predict --input p.w=2x3xfloat32 --input x=3x2xfloat32 --input z=float32", 1,
         "no function has an argument 'z'"),
        ("net.py:predict --input p.w=2xx3xfloat32", 2, "NAME=TYPE such as x=\\?x8xfloat32 .*"),
        ("net.py:predict --stage graph --input x=float32", 1, "--stage expected a file of MLIR"),
    ],
)  # fmt: skip
def test_compile_says_what_is_wrong_on_the_command_line(
    arguments: str,
    status: int,
    message: str,
    model: str,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        got = compile_tool.main([*arguments.split(), "-o", "a"])
    except SystemExit as ended:
        got = ended.code
    assert (got, bool(re.search(message, capsys.readouterr().err))) == (status, True)
    assert not (tmp_path / "a").exists()


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        compile_tool.main(["--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    for text in ("examples:", "--optimizer", "exit status:", "--dynamic", "file.py:function"):
        assert text in said
