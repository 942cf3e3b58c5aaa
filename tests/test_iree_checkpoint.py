# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checkpoints of loaded artifacts: whole or not at all, checked, and resumed bit for bit; processes
killed while they save. GRADOPT_KILLS is the number of kills (2 on the CPU, 1 on Vulkan).
"""

import argparse
import fcntl
import importlib.util
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
ASKED = os.environ.get("GRADOPT_KILLS")
KILLS = dict.fromkeys(artifacts.TARGETS, int(ASKED)) if ASKED else {"cpu": 2, "vulkan": 1}
EXAMPLE = pathlib.Path(__file__).resolve().parent.parent / "examples" / "digits_device.py"


@pytest.fixture(scope="module")
def folder() -> pathlib.Path:
    return artifacts.shared()


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
    damaged = [data[:n] for n in (0, 7, 8, 100, header, len(data) - 1)] + [data + b"\0"]
    for place in [*range(16), *(rng.randrange(header) for _ in range(40)), header, len(data) - 1]:
        flipped = bytearray(data)
        flipped[place] ^= 1 << rng.randrange(8)
        damaged.append(bytes(flipped))
    for bad in damaged:
        path.write_bytes(bad)
        with pytest.raises(deploy.CheckpointError, match=r"is damaged|is no checkpoint"):
            model.restore(path)
    assert same(model.state(), state)
    with pytest.raises(deploy.CheckpointError, match=r"cannot read '.*none': No such file"):
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


def example() -> Any:
    """examples/digits_device.py as a module."""
    spec = importlib.util.spec_from_file_location("digits_device", EXAMPLE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("target", artifacts.TARGETS)
def test_killed_while_it_saves(target: str, folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """A process that trains and saves after each batch is killed at random times, and started
    again: there is always a whole checkpoint, none older than one that was there before, and the
    last one is equal, byte for byte, to that of a process that was left alone.
    """
    images, labels = artifacts.data((12 if target == "cpu" else 4) * artifacts.BATCH)
    data = {"images": images, "labels": labels, "test_images": images, "test_labels": labels}
    np.savez(tmp_path / "data", **data)
    kills = KILLS[target]
    epochs = 2 + kills * (4 if target == "cpu" else 2)
    killed, alone = tmp_path / "killed", tmp_path / "alone"
    command = [sys.executable, EXAMPLE, folder, tmp_path / "data.npz", "--every", "1",
               "--target", target, "--epochs", str(epochs), "--checkpoint", killed]  # fmt: skip
    model = deploy.load(folder, target)
    options = argparse.Namespace(epochs=epochs, every=1, seed=0, checkpoint=alone)
    example().train(model, data, options)
    at, rng, begun = (0, 0), random.Random(5), None
    for _ in range(kills):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        while process.poll() is None and written(killed) == begun:
            time.sleep(0.001)
        time.sleep(rng.random() * (0.03 if target == "cpu" else 0.3))
        assert process.poll() is None, f"ended before it was killed: {process.communicate()}"
        process.kill()
        process.communicate()
        notes = model.restore(killed)
        assert (notes["epoch"], notes["batch"]) > at
        at, begun = (notes["epoch"], notes["batch"]), written(killed)
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and f"resumed at epoch {at[0]}, batch {at[1]}" in done.stdout, done
    assert killed.read_bytes() == alone.read_bytes()


def written(path: pathlib.Path) -> int | None:
    """When a file was written last; None where there is none."""
    return path.stat().st_mtime_ns if path.exists() else None
