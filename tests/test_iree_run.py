# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-run: lists, calls, times; and the scripts it writes for IREE's own iree-run-module."""

import json
import pathlib
import re
import subprocess
from typing import Any

import gradopt as go
import numpy as np
import pytest
from gradopt import deploy
from gradopt.dialect.types import bfloat16
from gradopt.tools import run

from . import artifacts

pytestmark = pytest.mark.compiler


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The artifact's folder; the working folder has a batch for it."""
    monkeypatch.chdir(tmp_path)
    images, labels = artifacts.data(artifacts.BATCH)
    np.save("x.npy", images)
    np.save("y.npy", labels)
    return str(artifacts.shared())


BATCH = ["--input", "x.npy", "--input", "y.npy", "--target", "cpu"]


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run.main(list(arguments)) == 0
    return capsys.readouterr().out


def test_lists(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(said(capsys, folder, "--target", "cpu", "--json"))
    assert rows[0] == {
        "function": "step", "mode": "train", "reads": 7, "changes": 7,
        "inputs": "images: 16x8x8x1xfloat32, labels: 16xint32", "outputs": "loss: float32",
    }  # fmt: skip
    assert [row["function"] for row in rows] == ["step", "infer", "eval"]
    assert "functions of digits, cpu on local-sync" in said(
        capsys, folder, "--target", "cpu", "--device", "local-sync"
    )
    drivers = [row["driver"] for row in json.loads(said(capsys, "--devices", "--json"))]
    assert drivers[:2] == ["local-sync", "local-task"]


def test_steps(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A state goes from call to call by files, and ends where one process would."""
    said(capsys, folder, "step", *BATCH, "--steps", "3", "--save", "a")
    last = json.loads(said(capsys, folder, "step", *BATCH, "--state", "a", "--json"))
    model = deploy.load(folder, "cpu")
    images, labels = np.load("x.npy"), np.load("y.npy")
    for _ in range(4):
        loss = model.step(images, labels)["loss"]
    assert np.float32(last["loss"]) == loss
    table = said(capsys, folder, "infer", *BATCH[:2], "--target", "cpu", "--state", "a",
                 "--output", "found")  # fmt: skip
    assert re.search(r"label +16xint32 +\d", table)
    assert np.load("found/scores.npy").shape == (16, 10)
    assert "loss: float32\n" in said(capsys, folder, "eval", *BATCH)


def test_bench(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, folder, "step", "--bench", "--repeat", "5", "--target", "cpu", "--json")
    (row,) = json.loads(text)
    assert 0 < row["min ms"] <= row["median ms"] and row["load ms"] > 0
    assert row["state bytes"] == 19204 and row["arena bytes"] > 0 and row["peak MiB"] > 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none"], r"'none' expected to be the folder of an artifact, but .* cannot be read"),
        ([], "expected the folder of an artifact"),
        (["DIGITS", "train"], "expected a function out of step, infer, eval, got 'train'"),
        (["DIGITS", "train", "--iree", "i"], "a function out of step, infer, eval, got 'train'"),
        (["DIGITS", "step"], r"expected 2 arguments \(images, labels\), got none for images"),
        (["DIGITS", "infer", "--input", "2x64xfloat32=1"], "'images' of type .* got 2x64xfloat32"),
        (["DIGITS", "infer", "--input", "2xthree=1"], r"a \.npy file or SHAPExDTYPE=VALUE"),
        (["DIGITS", "infer", "--input", "none.npy"], r"got 'none\.npy': .*No such file"),
        (["DIGITS", "infer", "--input", __file__], "the magic string is not correct"),
        (["DIGITS", "infer", "--input", "2xint8=300"], "300 does not fit int8"),
        (["DIGITS", "infer", "--bench"], r"--bench expected --input for 'images' of type \?x8x8x1"),
        (["DIGITS", "step", "--bench", "--repeat", "0"], "--repeat expected a number of calls"),
        (["DIGITS", "step", "--steps", "0"], "--steps expected a number of calls, got 0"),
        (["DIGITS", "--state", "x.npy"], r"'x\.npy' is no checkpoint, or damaged"),
        (["DIGITS", "--target", "cuda"], "a target that it has, cpu.*, got 'cuda'; this machine"),
        (["DIGITS", "infer", "--input", "x.npy", "--output", "x.npy"], "File exists"),
    ],
)  # fmt: skip
def test_says_what_is_wrong(
    arguments: list[str], message: str, folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [folder if a == "DIGITS" else a for a in arguments]
    if "--target" not in given:
        given += ["--target", "cpu"]
    assert run.main(given) == 1
    assert re.search(f"gradopt-run: error: .*{message}", capsys.readouterr().err)


@pytest.mark.parametrize("target", artifacts.TARGETS)
def test_trains_by_iree_alone(target: str, folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A training loop in a shell, of calls of iree-run-module, has the bits of the model's."""
    out = said(capsys, folder, "step", "--target", target, "--iree", "calls")
    assert out == "wrote calls/step.sh\n"
    said(capsys, folder, "infer", "--target", target, "--iree", "calls")
    pathlib.Path("x.npy").rename("calls/images.npy")
    pathlib.Path("y.npy").rename("calls/labels.npy")
    loop = "for i in 1 2 3; do calls/step.sh; done; calls/infer.sh"
    done = subprocess.run(["sh", "-ec", loop], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    model = deploy.load(folder, target)
    images, labels = np.load("calls/images.npy"), np.load("calls/labels.npy")
    for _ in range(3):
        loss = model.step(images, labels)["loss"]
    assert np.load("calls/loss.npy") == loss
    for name, array in {**model.state(), **model.infer(images)}.items():
        np.testing.assert_array_equal(np.load(f"calls/{name}.npy"), array)


def test_all_element_types_by_iree_alone(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What IREE reads no .npy files of goes through raw ones."""
    monkeypatch.chdir(tmp_path)
    p: dict[str, Any] = {
        "bfloat16": np.array([1, 2.5, -1], bfloat16),
        "uint8": np.array([1, 200], np.uint8),
        "bool": np.array([True, False, True]),
        "float16": np.float16([0.5]),
    }
    functions = {"swap": (lambda p: {"p": {k: a[::-1] for k, a in p.items()}}, (p,))}
    go.export("a", functions, {"p": p})
    said(capsys, "a", "swap", "--iree", "calls")
    for turn in (1, 2):
        done = subprocess.run(["calls/swap.sh"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        for name, array in p.items():
            path = pathlib.Path("calls") / f"p.{name}"
            if name == "float16":
                got = np.load(path.with_suffix(".float16.npy"))
            else:
                got = np.frombuffer(pathlib.Path(f"{path}.bin").read_bytes(), array.dtype)
            np.testing.assert_array_equal(got, array[:: (-1) ** turn])
