# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-check --against --program: the first op that two targets differ at is named."""

import json
import pathlib
import re
from typing import Any

import gradopt as go
import numpy as np
import pytest
from gradopt.dialect.graph import trace
from gradopt.dialect.transcendental import ExpOp
from gradopt.errors import ArgumentError
from gradopt.lowering import pipeline
from gradopt.lowering.linalg.registry import BODIES
from gradopt.lowering.linalg.scalar import convert
from gradopt.lowering.target import target
from gradopt.tools import check, differ

PROGRAM = """\
func.func @f(%x: tensor<4x3xf32> {gradopt.name = "x"}) -> tensor<4x3xf32> {
  %0 = "gradopt.tanh"(%x) : (tensor<4x3xf32>) -> tensor<4x3xf32>
  %1 = "gradopt.exp"(%0) : (tensor<4x3xf32>) -> tensor<4x3xf32>
  %2 = "gradopt.mul"(%1, %0) : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
  return %2 : tensor<4x3xf32>
}
"""


@pytest.fixture(autouse=True)
def forgotten() -> Any:
    """Modules made with a planted fault do not outlive their test."""
    go.clear_cache()
    yield
    go.clear_cache()


@pytest.fixture
def halved(monkeypatch: pytest.MonkeyPatch) -> None:
    """A target `jit` whose exp goes through float16."""
    right, lower = BODIES[ExpOp], pipeline.lower

    def rounded(x: Any) -> Any:
        found = right(x)
        return convert(convert(found, np.dtype("float16")), found.dtype)

    def lowered(module: Any, where: Any, remat: str = "") -> Any:
        with monkeypatch.context() as patch:
            if where.name == "jit":
                patch.setitem(BODIES, ExpOp, rounded)
            return lower(module, where, remat)

    monkeypatch.setattr(pipeline, "lower", lowered)


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    status = check.main(["--target", "jit", "--against", "reference", *argv])
    said = capsys.readouterr()
    return status, said.out + said.err


def test_targets_that_agree(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "f.mlir"
    file.write_text(PROGRAM)
    status, said = run(capsys, "--program", str(file))
    assert status == 0
    assert "no op of 3 differs by more than 64 ulp" in said


@pytest.mark.usefixtures("halved")
def test_first_op_that_differs(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The op with the planted cast is named, not the one that reads it, with its line, how far
    apart it is, what it read, and which target is off.
    """
    file = tmp_path / "f.mlir"
    file.write_text(PROGRAM)
    status, said = run(capsys, "--program", str(file), "--seed", "3")
    assert status == 1
    assert "'f' on jit against reference: 2 of 3 ops differ by more than 64 ulp" in said
    assert f"the first is\nop 'exp' (gradopt.exp, forward) at {file}:3\n" in said
    assert "read exp.x: float32[4, 3], from -0." in said and "apart by" in said
    off = said.partition("off the reference on what each read: jit ")[2]
    found = re.match(r"([\d.]+) ulp \(.*\), reference ([\d.]+) ulp", off)
    assert found and float(found[1]) > 500 and float(found[2]) == 0


@pytest.mark.usefixtures("halved")
def test_ops_of_a_gradient(capsys: pytest.CaptureFixture[str]) -> None:
    """A Python function with its arguments; every op in the order in which it runs, as JSON."""

    def loss(x: Any) -> Any:
        with go.name_scope("head"):
            return go.exp(x).sum()

    graph = trace(go.grad(loss), np.linspace(-1, 1, 5, dtype=np.float32))
    graph.finish()
    leaves = [np.linspace(-1, 1, 5, dtype=np.float32)]
    found = differ.compare(graph, leaves, (target("jit"), target("reference")))
    assert found.first is not None and not found.is_same
    assert found.ops[found.first][0].name == "head.exp"
    assert any(op.name.endswith(".vjp") for op, _ in found.ops)
    table = differ._ops(found)
    assert json.dumps(table.rows)
    assert table.rows[found.first][-1] == "NO"


@pytest.mark.compiler
@pytest.mark.usefixtures("halved")
def test_two_compiled_targets(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "f.mlir"
    file.write_text(PROGRAM)
    argv = ["--target", "cpu", "--against", "jit", "--program", str(file), "--input", "4x3xfloat32"]
    assert check.main(argv) == 1
    said = capsys.readouterr().out
    assert f"op 'exp' (gradopt.exp, forward) at {file}:3" in said


def test_python_programs(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A function with --input for its arguments, or one that returns them with it."""
    (tmp_path / "differ_net.py").write_text(
        "import gradopt as go, numpy as np\n"
        "def net(w, x):\n    return go.tanh(x @ w).sum()\n"
        "def example():\n    return go.grad(net), (np.ones((2, 3), 'float32'), np.ones((4, 2), "
        "'float32'))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    inputs = ["--input", "2x3xfloat32", "--input", "4x2xfloat32=0.5"]
    assert run(capsys, "--program", "differ_net:net", *inputs)[0] == 0
    assert run(capsys, "--program", "differ_net:example")[0] == 0


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--program", "nowhere:f"], "--program expected MODULE:FUNCTION: No module named"),
        (["--program", "math:nothing"], "--program expected MODULE:FUNCTION: .*nothing"),
        (["--program", "no.mlir"], "cannot read 'no.mlir': No such file"),
        (["--program", "{file}", "--function", "g"], "--function expected one of f, got g"),
        (["--program", "{file}", "--input", "4xfloat32"], "--input expected .* argument 'x', got"),
        (["--program", "{file}", "--input", "4xfloat9"], "--input expected a .npy file"),
    ],
)  # fmt: skip
def test_misuse(
    argv: list[str], message: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "f.mlir"
    file.write_text(PROGRAM)
    status, said = run(capsys, *(a.format(file=file) for a in argv))
    assert status == 2 and re.search(message, said), said


def test_program_needs_two_targets(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(["--program", "x.mlir"]) == 2
    assert "--program expected --against" in capsys.readouterr().err


def test_random_inputs() -> None:
    rng = np.random.default_rng(0)
    assert differ.random_array((3,), np.dtype("int32"), rng).max() < differ.LARGEST_INTEGER
    with pytest.raises(ArgumentError, match="--input for each argument with unknown extents"):
        differ.random_array((None, 2), np.dtype("float32"), rng)
