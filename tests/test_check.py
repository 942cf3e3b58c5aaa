# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-check: the command, and that it sees what is wrong."""

import dataclasses
import importlib
import json
import pathlib
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from gradopt.dialect.transcendental import TanhOp
from gradopt.dialect.types import TensorSpec
from gradopt.errors import CompileError
from gradopt.lowering.linalg.registry import BODIES
from gradopt.lowering.target import Refusal
from gradopt.op_cases import CASES
from gradopt.op_cases.rows import in_dtype, rows, ulps
from gradopt.tools import check, check_rows

from .helpers import CPU


def tables(text: str) -> list[Any]:
    """The JSON tables that the command printed one after another."""
    decoder, at, found = json.JSONDecoder(), 0, []
    while at < len(text.rstrip()):
        table, at = decoder.raw_decode(text, at)
        found.append(table)
        at += len(text[at:]) - len(text[at:].lstrip())
    return found


def row_of(op: str) -> Any:
    return next(c for c in CASES if c.op == op)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--target", "abacus"], "expected a target out of cpu, .*, jit, reference, got .abacus."),
        (["--ops", "tanh,no_op"], "--ops expected names out of .*tanh.* got no_op"),
        (["--families", "elementwise,none"], "--families expected names out of .* got none"),
        (["--dtypes", "float8"], "expected an element type out of .* got .float8."),
    ],
)
def test_misuse(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(argv) == 2
    assert re.search(message, capsys.readouterr().err)


def test_dtypes_that_rows_take() -> None:
    """Floats of a row become the type; integers only where the op takes them."""
    names = {r.dtype for r in rows(row_of("tanh"))}
    assert names == {"float64", "float32", "float16", "bfloat16"}
    assert {"int8", "uint32", "float16"} <= {r.dtype for r in rows(row_of("add"))}
    assert {r.dtype for r in rows(row_of("popcount"))} == {
        "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8",
    }  # fmt: skip
    assert in_dtype(row_of("tanh"), np.dtype("int32")) is None
    assert [r.what for r in rows(row_of("tanh"), (np.dtype("float32"),))] == ["value", "gradient"]
    assert [r.what for r in rows(row_of("floor"), (np.dtype("float32"),))] == ["value"]


def test_units_in_the_last_place() -> None:
    one = np.float32([1, 2])
    assert ulps(one, one) == 0
    assert ulps(np.float32([1 + 2**-23, 2]), one) == 1
    assert ulps(np.float32([1 + 2**-23, 2]), one, whole=True) == 0.5
    assert ulps(np.float32([np.nan, 2]), one) == np.inf
    assert ulps(one.astype("float64"), one) == np.inf
    assert ulps(one[:1], one) == np.inf
    assert ulps(np.int32([1]), np.int32([2])) == np.inf
    assert ulps(np.float32([np.nan, np.inf]), np.float32([np.nan, np.inf])) == 0
    assert ulps(np.float32([np.inf]), np.float32([-np.inf])) == np.inf


def test_rows_need_no_jax() -> None:
    """JAX is there for tests only: rows are listed and run without it."""
    code = (
        "import sys; sys.modules['jax'] = None\n"
        "from gradopt.op_cases import CASES\n"
        "from gradopt.op_cases.rows import rows\n"
        "row = next(r for c in CASES if c.op == 'conv' for r in rows(c) if r.what == 'gradient')\n"
        "print(len(CASES), len(row.want))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(len(CASES)), "2"]


@pytest.mark.compiler
def test_rows_agree(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(["--ops", "tanh,add", "--dtypes", "float32,int8", "--json"]) == 0
    (summary,) = tables(capsys.readouterr().out)
    total = summary[-1]
    assert (total["family"], total["ops"]) == ("all", 2)
    assert total["values"] == total["agree"] == 4  # tanh, add and its integer row in int8 too
    assert total["gradients"] == total["agree "] == 2


@pytest.mark.compiler
def test_wrong_lowering_is_seen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A target that computes something else: exit status 1, the worst row named."""
    monkeypatch.setitem(BODIES, TanhOp, lambda x: x)
    assert check.main(["--ops", "tanh", "--dtypes", "float32", "--no-gradients", "--json"]) == 1
    summary, details = tables(capsys.readouterr().out)
    assert summary[-1]["worst row"] == "tanh_float32"
    assert summary[-1]["agree"] == 0
    assert [d["agrees"] for d in details] == ["NO"]


@pytest.mark.compiler
def test_one_failure_does_not_hide_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions that IREE cannot compile are found by halving; the others run."""
    kind = "(%x: tensor<2xf32>) -> tensor<2xf32>"
    body = "{ return %x : tensor<2xf32> }"
    texts = {f"f{i}": f"func.func @f{i}{kind} {body}" for i in range(5)}
    texts["f3"] = texts["f3"].replace("return %x", "return %y")
    calls = check.compile_many(texts, CPU)
    for name, call in calls.items():
        if name == "f3":
            with pytest.raises(CompileError):
                call([], np.ones(2, np.float32))
        else:
            (got,) = call([TensorSpec((2,))], np.ones(2, np.float32))
            assert got.tolist() == [1, 1]


@pytest.mark.compiler
def test_refused_rows_are_no_failures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a target refuses has a column of its own, and its reason on request."""
    refusing = dataclasses.replace(CPU, refusals=(Refusal("it has no hyperbolas", ("tanh",)),))
    monkeypatch.setattr(check, "find_target", lambda name: refusing)
    monkeypatch.setattr(check_rows, "find_target", lambda name: refusing)
    argv = ["--ops", "tanh,exp", "--dtypes", "float32", "--no-gradients", "--json"]
    assert check.main(argv) == 0
    (summary,) = tables(capsys.readouterr().out)
    assert [summary[-1][c] for c in ("values", "agree", "refused")] == [1, 1, 1]
    assert check.main([*argv, "--verbose"]) == 0
    _, details = tables(capsys.readouterr().out)
    (refused,) = [d for d in details if d["agrees"] == "refused"]
    assert refused["row"] == "tanh_float32" and "it has no hyperbolas" in refused["why"]


CRASHING = """
import os
from gradopt.tools import check, check_rows

def choose(options):
    compared = check_rows._compared

    def crash(row, got, want):
        return os._exit(7) if row.name == "tanh_float32" else compared(row, got, want)

    check_rows._compared = crash
    return check._chosen(options)
"""


def test_a_row_that_ends_its_process_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """Rows are run in several processes; one that crashes fails, the others run."""
    (tmp_path / "crashing_rows.py").write_text(CRASHING)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(check_rows, "AT_ONCE", 1)
    choose = importlib.import_module("crashing_rows").choose
    argv = ["--target", "jit", "--ops", "tanh,exp", "--dtypes", "float32", "--no-gradients"]
    options = check._parser().parse_args(argv)
    names = [row.name for row in check._chosen(options)]
    found = dict(check_rows.run_all(len(names), check_rows.Plan("jit"), choose, options, jobs=2))
    outcomes = {names[i]: outcome for i, outcome in found.items()}
    assert outcomes["tanh_float32"].why.endswith("ended (it crashed) with code 7")
    assert outcomes["exp_float32"].error < 8


@pytest.mark.compiler
def test_two_targets_row_by_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--against compares what two targets compute, not with the reference."""
    argv = ["--ops", "tanh,add", "--dtypes", "float32", "--no-gradients", "--json"]
    assert check.main([*argv, "--target", "jit", "--against", "cpu"]) == 0
    (summary,) = tables(capsys.readouterr().out)
    assert summary[-1]["values"] == summary[-1]["agree"] == 2
    monkeypatch.setitem(BODIES, TanhOp, lambda x: x)  # on both: they agree with each other
    assert check.main([*argv, "--target", "jit", "--against", "cpu"]) == 0
    capsys.readouterr()
    assert check.main([*argv, "--target", "cpu", "--against", "reference"]) == 2
    assert "--against expected" in capsys.readouterr().err
