# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checkpoints of loaded artifacts: whole or not at all, checked, and resumed bit for bit; processes
killed while they save. GRADOPT_KILLS is the number of kills for each target (3).
"""

import fcntl
import json
import os
import pathlib
import random
import subprocess
import sys
import time
from typing import Any

import gradopt as go
import numpy as np
import pytest
import safetensors.numpy
from gradopt import deploy

from . import artifacts
from .test_iree_deploy import same

pytestmark = pytest.mark.compiler
KILLS = int(os.environ.get("GRADOPT_KILLS", "3"))
EXAMPLE = pathlib.Path(__file__).resolve().parent.parent / "examples" / "digits_device.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return artifacts.write(tmp_path_factory.mktemp("checkpoint") / "digits")


@pytest.mark.parametrize("target", artifacts.TARGETS)
def test_resumed_bit_for_bit(target: str, folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Saved, restored into another model and gone on with, it ends as if nothing had been."""
    images, labels = artifacts.data(8 * artifacts.BATCH)
    images = images.reshape(8, artifacts.BATCH, 8, 8, 1)
    labels = labels.reshape(8, artifacts.BATCH)
    model = deploy.load(folder, target)
    for i in range(8):
        model.step(images[i], labels[i])
        if i == 3:
            model.save(tmp_path / "c", epoch=np.int64(2), done=[1, 2.5], mode=None, batch=i + 1)
    other = deploy.load(folder, target)
    other.step(images[0], labels[0])
    notes = other.restore(tmp_path / "c")
    assert notes == {"epoch": 2, "done": [1, 2.5], "mode": None, "batch": 4}
    for i in range(notes["batch"], 8):
        other.step(images[i], labels[i])
    assert same(model.state(), other.state())


def test_others_can_read_it(folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """It is a safetensors file, with the notes and what made it in its metadata."""
    model = deploy.load(folder, "cpu")
    model.save(tmp_path / "c", epoch=1)
    arrays = safetensors.numpy.load_file(tmp_path / "c")
    state = model.state()
    assert sorted(arrays) == sorted(state)
    assert all(np.array_equal(arrays[n], state[n]) for n in state)
    with safetensors.safe_open(tmp_path / "c", "numpy") as file:
        metadata = file.metadata()
    assert metadata["format"] == "gradopt-checkpoint-1" and metadata["artifact"] == "digits"
    assert json.loads(metadata["notes"]) == {"epoch": 1}
    with pytest.raises(
        deploy.ArgumentError, match="save expected notes that JSON can hold: object"
    ):
        model.save(tmp_path / "d", what=object())
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_damage_is_found(folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Any bit flipped, any number of bytes cut off or added; then nothing has changed."""
    model = deploy.load(folder, "cpu")
    path = tmp_path / "c"
    model.save(path)
    data, state = path.read_bytes(), model.state()
    rng = random.Random(0)
    header = 8 + int.from_bytes(data[:8], "little")
    damaged = [data[:n] for n in (0, 7, 8, 100, header, len(data) - 1)] + [data + b"\\0"]
    for place in [*range(16), *(rng.randrange(header) for _ in range(40)), header, len(data) - 1]:
        flipped = bytearray(data)
        flipped[place] ^= 1 << rng.randrange(8)
        damaged.append(bytes(flipped))
    for bad in damaged:
        path.write_bytes(bad)
        with pytest.raises(deploy.CheckpointError, match="is damaged|is no checkpoint"):
            model.restore(path)
    assert same(model.state(), state)
    with pytest.raises(deploy.CheckpointError, match="cannot read '.*none': No such file"):
        model.restore(tmp_path / "none")
    path.write_bytes(safetensors.numpy.save(state))
    with pytest.raises(deploy.CheckpointError, match="is no checkpoint"):
        model.restore(path)


def test_another_state_is_refused(folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Names and types that differ are named."""
    p = {"w1": np.zeros((64, 32), np.float32), "w2": np.zeros((32, 10), np.float16), "w3": 1.0}
    functions = {"f": (lambda p: {"w1": p["w1"] + p["w3"], "w2": p["w2"]}, (p,))}
    other = deploy.load(go.export(tmp_path / "other", functions, {"p": p}))
    other.save(tmp_path / "c")
    model = deploy.load(folder, "cpu")
    state = model.state()
    with pytest.raises(
        deploy.CheckpointError,
        match=r"checkpoint of 'other' with another state than that of 'digits': 'count' expected "
        r"int32, got none; 'p.b1' expected 32xfloat32, got none; 'p.w2' expected 32x10xfloat32, "
        r"got 32x10xfloat16; 'p.w3' expected no array, got float32; .*; and 2 more",
    ):
        model.restore(tmp_path / "c")
    assert same(model.state(), state)


def test_a_save_that_fails_leaves_the_old_one(
    folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = deploy.load(folder, "cpu")
    model.save(tmp_path / "c", epoch=1)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(deploy.os, name, full)
            with pytest.raises(OSError, match="No space"):
                model.save(tmp_path / "c", epoch=2)
        assert model.restore(tmp_path / "c") == {"epoch": 1}
        assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_what_killed_processes_leave_is_removed(
    folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """But not what a living one is writing, nor what is new, nor files of other names."""
    model = deploy.load(folder, "cpu")
    names = {
        "left": ".c.0123456789abcdef.tmp",
        "new": ".c.0123456789abcde0.tmp",
        "written": ".c.0123456789abcde1.tmp",
        "another's": ".cc.0123456789abcdef.tmp",
        "other": ".c.tmp",
    }
    for name in names.values():
        (tmp_path / name).write_bytes(b"part")
        os.utime(tmp_path / name, (0, time.time() - 1e4))
    os.utime(tmp_path / names["new"])
    with open(tmp_path / names["written"]) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        model.save(tmp_path / "c")
    left = {p.name for p in tmp_path.iterdir()}
    assert left == {"c", *names.values()} - {names["left"]}


# --- killed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", artifacts.TARGETS)
def test_killed_while_it_saves(target: str, folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """A process that trains and saves after each batch is killed at random times, and started
    again: there is always a whole checkpoint, none older than one that was there before, and the
    last one is bit-equal to that of a process that was left alone.
    """
    images, labels = artifacts.data(12 * artifacts.BATCH)
    np.savez(tmp_path / "data", images=images, labels=labels, test_images=images[:9],
             test_labels=labels[:9])  # fmt: skip
    epochs = max(2, KILLS) * (12 if target == "cpu" else 1)

    def start(name: str) -> subprocess.Popen[str]:
        command = [sys.executable, EXAMPLE, folder, tmp_path / "data.npz", "--every", "1",
                   "--target", target, "--epochs", str(epochs),
                   "--checkpoint", tmp_path / name]  # fmt: skip
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    alone = start("alone")
    kills, at, rng = 0, (-1, 0), random.Random(5)
    model = deploy.load(folder, "cpu")
    while kills < KILLS:
        process = start("killed")
        loaded = process.stdout.readline()  # type: ignore[union-attr]
        assert loaded.startswith("digits for"), process.communicate()
        time.sleep(rng.random() * (0.25 if target == "cpu" else 1))
        if process.poll() is not None:
            break
        process.kill()
        process.communicate()
        kills += 1
        if (tmp_path / "killed").exists():
            notes = model.restore(tmp_path / "killed")
            assert (notes["epoch"], notes["batch"]) >= at
            at = notes["epoch"], notes["batch"]
    process = start("killed")
    out, err = process.communicate()
    assert process.returncode == 0 and "resumed" in out, err
    assert alone.communicate()[1] == "" and alone.returncode == 0
    assert (tmp_path / "killed").read_bytes() == (tmp_path / "alone").read_bytes()
    assert kills == KILLS, f"only {kills} kills before the end; train longer"
