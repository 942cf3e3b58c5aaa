# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Artifacts in an environment that has only iree-base-runtime and what it needs: no gradopt, no
compiler. GRADOPT_LOADS is the number of loads (100), GRADOPT_CALLS of calls with 1 MiB (200),
GRADOPT_EXITS of processes that end (3), GRADOPT_ROUNDS of rounds of threads (1).
"""

import functools
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import venv
from typing import Any

import numpy as np
import pytest
from gradopt import deploy

from . import artifacts

pytestmark = pytest.mark.compiler
ROOT = pathlib.Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "digits_device.py"


def number(name: str, otherwise: int) -> int:
    return int(os.environ.get(name, otherwise))


@functools.cache
def bare(folder: pathlib.Path) -> str:
    """The interpreter of a new environment; skips where no package can be had."""
    venv.create(folder, with_pip=False)
    python = str(folder / "bin" / "python")
    version = importlib.metadata.version("iree-base-runtime")
    command = [sys.executable, "-m", "pip", "--python", python, "install", "-q",
               "--disable-pip-version-check", f"iree-base-runtime=={version}"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"pip cannot install iree-base-runtime: {done.stderr[-300:]}")
    return python


@pytest.fixture
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return bare(tmp_path_factory.getbasetemp() / "bare")


def run(python: str, code: str, *arguments: Any) -> Any:
    """What a script prints, as JSON; it finds no module of the working directory's."""
    command = [python, "-I", "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


LOADED = """
import json, sys
known = sys.stdlib_module_names | {"numpy", "ml_dtypes", "iree", "__mp_main__", "sitecustomize"}
names = {name.partition(".")[0] for name in sys.modules}
print(json.dumps(sorted(n for n in names - known if not n.startswith("_"))))
"""


def test_nothing_else_is_loaded(python: str, tmp_path: pathlib.Path) -> None:
    """`gradopt.deploy` and an artifact's own loader need NumPy, ml_dtypes and IREE's runtime; the
    environment has nothing else that they could load.
    """
    folder = artifacts.shared()
    (tmp_path / "gradopt").symlink_to(ROOT)
    package = "import sys; sys.path.insert(0, sys.argv[1]); import gradopt.deploy as deploy\n"
    alone = "import sys; sys.path.insert(0, sys.argv[2]); import gradopt_deploy as deploy\n"
    use = "deploy.load(sys.argv[2])\n"
    assert run(python, package + use + LOADED, tmp_path, folder) == ["gradopt"]
    assert run(python, alone + use + LOADED, tmp_path, folder) == ["gradopt_deploy"]
    code = "import json, importlib.metadata as m\n"
    code += "print(json.dumps(sorted(d.name for d in m.distributions())))"
    assert run(python, code) == ["iree-base-runtime", "ml_dtypes", "numpy"]


@pytest.mark.parametrize("target", artifacts.TARGETS)
def test_trains_on_a_device(target: str, python: str, tmp_path: pathlib.Path) -> None:
    """The artifact's folder alone trains, evaluates and infers, and resumes."""
    folder = artifacts.shared()
    images, labels = artifacts.data(96)
    data = {"images": images, "labels": labels, "test_images": images, "test_labels": labels}
    np.savez(tmp_path / "data", **data)
    for epochs in (3, 5):
        command = [python, EXAMPLE, folder, tmp_path / "data.npz", "--target", target,
                   "--checkpoint", tmp_path / "c", "--epochs", str(epochs)]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert "resumed at epoch 3, batch 0" in done.stdout
    assert float(done.stdout.split()[-1]) > 0.9
    model = deploy.load(folder, target)
    assert model.restore(tmp_path / "c")["epoch"] == 5
    assert model.eval(images[:16], labels[:16])["loss"] < 0.5


def test_its_command_line(python: str, tmp_path: pathlib.Path) -> None:
    """Lists, calls, and steps from one checkpoint to the next."""
    folder = artifacts.shared()
    images, labels = artifacts.data(artifacts.BATCH)
    np.save(tmp_path / "x.npy", images)
    np.save(tmp_path / "y.npy", labels)

    def command(*arguments: Any, status: int = 0) -> str:
        words = [python, folder / "gradopt_deploy.py", *map(str, arguments)]
        done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr

    assert "infer(images: ?x8x8x1xfloat32) -> label: ?xint32" in command(folder, "--target", "cpu")
    assert "local-task: " in command("--devices")
    step = [folder, "step", "--target", "cpu", "--input", "x.npy", "--input", "y.npy"]
    command(*step, "--save", "a", "--steps", 3)
    command(*step, "--state", "a", "--save", "b", "--output", "results")
    model = deploy.load(folder, "cpu")
    losses = [model.step(images, labels)["loss"] for _ in range(4)]
    assert np.load(tmp_path / "results" / "loss.npy") == losses[-1]
    state = model.state()
    model.restore(tmp_path / "b")
    assert all(np.array_equal(a, state[name]) for name, a in model.state().items())
    message = command(*step[:4], "--input", "2xfloat32=1", status=1)
    assert message.startswith("error: 'step' expected 2 arguments (images, labels), got none for")


START = """
import json, resource, sys, threading
sys.path.insert(0, sys.argv[1])
import gradopt_deploy as deploy, numpy as np

def memory():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

folder, images = sys.argv[1], np.ones((4, 8, 8, 1), np.float32)
"""


def test_threads(python: str) -> None:
    """C134: 32 threads that each load and call for themselves, in a process that has done nothing
    else yet.
    """
    code = """
want, faults = [], []

def work():
    try:
        gate.wait()
        model = deploy.load(folder, "cpu")
        for _ in range(5):
            model.step(np.ones((16, 8, 8, 1), np.float32), np.zeros(16, np.int32))
            want.append(model.infer(images)["scores"].tobytes())
    except Exception as error:
        faults.append(repr(error))

gate = threading.Barrier(32)
threads = [threading.Thread(target=work) for _ in range(32)]
for t in threads: t.start()
for t in threads: t.join()
print(json.dumps([faults, len(want), len(set(want))]))
"""
    for _ in range(number("GRADOPT_ROUNDS", 1)):
        assert run(python, START + code, artifacts.shared()) == [[], 160, 5]


def test_memory_stays(python: str) -> None:
    """C136: loads, and calls with fresh inputs of 1 MiB, leave resident memory where it was in
    their first half. It goes up and down by what a call needs.
    """
    code = """
def load(): deploy.load(folder, "cpu").infer(images)
def call(): model.infer(np.ones((4096, 8, 8, 1), np.float32))
model = deploy.load(folder, "cpu")
grown = []
for what, count in ((load, int(sys.argv[2])), (call, int(sys.argv[3]))):
    used = []
    for _ in range(count):
        what()
        used.append(memory())
    warm, end = used[: count // 2], used[-count // 10 :]
    grown.append(min(end) / max(warm) - 1)
print(json.dumps(grown))
"""
    counts = number("GRADOPT_LOADS", 100), number("GRADOPT_CALLS", 200)
    grown = run(python, START + code, artifacts.shared(), *counts)
    assert max(grown) < 0.02, grown


@pytest.mark.parametrize("target", artifacts.TARGETS)
def test_the_end_of_a_process(target: str, python: str) -> None:
    """C137: a process that ends with models and results alive, or in the midst of a call of another
    thread, ends well.
    """
    code = """
model = deploy.load(folder, sys.argv[2])
large = np.ones((4096, 8, 8, 1), np.float32)
results = [model.infer(large), model.infer(images), model.state()]
kept = model.infer
def work():
    while True: model.infer(large)
threading.Thread(target=work, daemon=True).start()
print(json.dumps(len(results)))
"""
    for _ in range(number("GRADOPT_EXITS", 3) if target == "cpu" else 1):
        assert run(python, START + code, artifacts.shared(), target) == 3


def test_a_forked_process(python: str) -> None:
    """A child of a process that has loaded says so instead of hanging."""
    code = """
import os
model = deploy.load(folder, "cpu")
read, write = os.pipe()
if os.fork() == 0:
    said = []
    for use in (lambda: model.infer(images), lambda: deploy.load(folder), model.state):
        try: use()
        except deploy.DeviceError as error: said.append(str(error)[:23])
    os.write(write, json.dumps(said).encode())
    os._exit(0)
os.wait()
print(os.read(read, 1000).decode())
"""
    said = run(python, START + code, artifacts.shared())
    assert said == ["this process was forked"] * 3
