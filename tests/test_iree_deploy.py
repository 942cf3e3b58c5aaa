# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Loading artifacts and calling their functions: what is checked, which module is taken, where the
state is. test_iree_checkpoint.py has checkpoints, test_iree_bare.py bare processes.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
import sys
import threading
from typing import Any
from unittest import mock

import gradopt as go
import numpy as np
import pytest
from gradopt import deploy
from gradopt.dialect.types import bfloat16
from gradopt.lowering.target import target as find_target
from gradopt.runtime.compiler import compile_linalg

from . import artifacts

pytestmark = pytest.mark.compiler


@pytest.fixture(scope="module")
def folder() -> pathlib.Path:
    return artifacts.shared()


def add(p: Any, x: Any, y: Any) -> Any:
    return {"p": {"w": p["w"] + (x * y).sum(0)}, "w": p["w"]}


@pytest.fixture(scope="module")
def open_folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A function that changes the state and has open extents."""
    path = tmp_path_factory.mktemp("deploy") / "open"
    rows = go.TensorSpec((None, 4))
    p = {"w": np.ones(4, np.float32)}
    return go.export(path, {"add": (add, (p, rows, rows))}, {"p": p})


@pytest.fixture
def copy(folder: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of the artifact, to be damaged."""
    return pathlib.Path(shutil.copytree(folder, tmp_path / "digits"))


def edit(folder: pathlib.Path, change: Any) -> None:
    """Change the manifest in place."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return list(a) == list(b) and all(np.array_equal(a[n], b[n]) for n in a)


# --- calls ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", artifacts.TARGETS)
def test_trains_as_the_reference_does(target: str, folder: pathlib.Path) -> None:
    """Steps change the state on the device; what infer and eval then compute is by the new one."""
    model = deploy.load(folder, target)
    step = go.compile(artifacts.step, target="reference")
    p, v, count = artifacts.parameters(), None, np.int32(0)
    v = {k: np.zeros_like(a) for k, a in p.items()}
    images, labels = artifacts.data(artifacts.BATCH)
    for _ in range(3):
        want = step(p, v, count, images, labels)
        p, v, count = want["p"], want["v"], want["count"]
        got = model.step(images, labels)
        assert list(got) == ["loss"]
        np.testing.assert_allclose(got["loss"], want["loss"], rtol=1e-5)
    state = model.state()
    assert sorted(state) == ["count", "p.b1", "p.w1", "p.w2", "v.b1", "v.w1", "v.w2"]
    assert state["count"] == 3
    for k in p:
        np.testing.assert_allclose(state[f"p.{k}"], p[k], rtol=1e-4, atol=1e-6)
    found = model.call("infer", images=images[:5])
    np.testing.assert_allclose(
        found["scores"], artifacts.scores(p, images[:5]), rtol=1e-4, atol=1e-5
    )
    np.testing.assert_array_equal(found["label"], found["scores"].argmax(-1))
    assert model.eval(images, labels=labels)["loss"].shape == ()


def test_same_bits_on_both_cpu_devices(folder: pathlib.Path) -> None:
    images, labels = artifacts.data(artifacts.BATCH)
    models = [deploy.load(folder, "cpu", device) for device in ("local-task", "local-sync")]
    for model in models:
        model.step(images, labels)
    assert same(models[0].state(), models[1].state())


def test_updates_are_in_place(folder: pathlib.Path) -> None:
    """Where the module overwrites, buffers stay; elsewhere old and new ones take turns, so that
    nothing is allocated but the loss.
    """
    model = deploy.load(folder, "cpu", "local-sync")
    images, labels = artifacts.data(artifacts.BATCH)

    def places() -> dict[str, Any]:
        return {n: model._memory.span(slot.view) for n, slot in model._slots.items()}

    seen = []
    for _ in range(4):
        model.step(images, labels)
        seen.append(places())
    before = model._memory.allocator.statistics
    for _ in range(10):
        model.step(images, labels)
        found = places()
        assert len(model.step.overwrites) >= 5
        assert all(found[name] == seen[0][name] for name in model.step.overwrites)
        assert set(found.values()) <= {span for one in seen for span in one.values()}
    after = model._memory.allocator.statistics
    grown = after["device_bytes_allocated"] - before["device_bytes_allocated"]
    assert grown <= 10 * 64


@pytest.mark.parametrize(
    ("data", "named", "message"),
    [
        ((), {}, r"'step' expected 2 arguments \(images, labels\), got none for images, labels"),
        ((1, 2, 3), {}, r"'step' expected 2 arguments \(images, labels\), got 3"),
        (("x",), {"images": 1}, "'step' expected argument 'images' once, got it twice"),
        ((), {"image": 1}, "'step' expected 2 arguments .* got one called 'image'"),
        (([0.0],), {"labels": 1}, "'images' to be an array, 16x8x8x1xfloat32, got list"),
        ((np.zeros((15, 8, 8, 1), np.float32), 0), {}, "'images' of type .*, got 15x8x8x1xfloat32"),
        ((np.zeros((16, 64), np.float32), 0), {}, "'images' of type .*, got 16x64xfloat32"),
        ((np.zeros((16, 8, 8, 1)), 0), {}, "'images' of type .*, got 16x8x8x1xfloat64"),
        ((np.zeros((16, 8, 8, 1), ">f4"), 0), {}, "'images' of type .*, got 16x8x8x1x>f4"),
        ((0.5, 0), {}, "'images' of type 16x8x8x1xfloat32, got float32"),
    ],
)  # fmt: skip
def test_arguments_are_checked(data: Any, named: Any, message: str, folder: pathlib.Path) -> None:
    model = deploy.load(folder, "cpu")
    with pytest.raises(deploy.ArgumentError, match=message):
        model.step(*data, **named)
    with pytest.raises(deploy.ArgumentError, match="a function out of step, infer, eval, got 'st'"):
        model.call("st")
    with pytest.raises(AttributeError, match="functions step, infer, eval has no 'st'"):
        _ = model.st


@pytest.mark.parametrize(
    ("value", "dtype", "fits"),
    [
        (3, "int32", True), (3, "float32", True), (0.5, "float32", True), (True, "bool", True),
        (0.5, "int32", False), (300, "int8", False), (-1, "uint8", False), (1, "bool", False),
        (True, "float32", False), (1 << 70, "float16", True),
    ],
)  # fmt: skip
def test_python_numbers(value: Any, dtype: str, fits: bool) -> None:
    """A Python number takes on the dtype that is expected, if it is of that kind."""
    entry = deploy.Entry("x", (), np.dtype(dtype), "data")
    if fits:
        with np.errstate(over="ignore"):
            assert deploy._as_array("'f'", entry, value).dtype == dtype
    else:
        with pytest.raises(
            deploy.ArgumentError, match=f"'f' expected argument 'x' of type {dtype}"
        ):
            deploy._as_array("'f'", entry, value)


def test_open_extents(open_folder: pathlib.Path) -> None:
    """Extents that do not agree are found by the module; the state is as it was."""
    model = deploy.load(open_folder)
    ones = np.ones((9, 4), np.float32)
    want = 1
    for rows in (9, 5, 9):
        assert model.add(ones[:rows], ones[:rows])["w"][0] == want
        want += rows
    with pytest.raises(deploy.ArgumentError, match=r"agree, got shapes \(9, 4\), \(7, 4\)"):
        model.add(ones, ones[:7])
    np.testing.assert_array_equal(model.state()["p.w"], [want] * 4)


OPEN_IN_PLACE = """
func.func @add(%w: tensor<4xf32> {iree.abi.output = 0 : index}, %x: tensor<?x4xf32>)
    -> (tensor<4xf32>, tensor<f32>) attributes {iree.reflection = {
      gradopt.memory = "{\\22ties\\22: [{\\22donated\\22: 0, \\22in_place\\22: true}]}"}} {
  %zero = arith.constant 0.0 : f32
  %i0 = arith.constant 0 : index
  %new = linalg.generic {
      indexing_maps = [affine_map<(n, i) -> (n, i)>, affine_map<(n, i) -> (i)>],
      iterator_types = ["reduction", "parallel"]
    } ins(%x : tensor<?x4xf32>) outs(%w : tensor<4xf32>) {
    ^bb0(%a: f32, %b: f32):
      %c = arith.addf %a, %b : f32
      linalg.yield %c : f32
    } -> tensor<4xf32>
  %n = tensor.dim %x, %i0 : tensor<?x4xf32>
  %n32 = arith.index_cast %n : index to i32
  %count = arith.sitofp %n32 : i32 to f32
  %counts = tensor.from_elements %count : tensor<f32>
  return %new, %counts : tensor<4xf32>, tensor<f32>
}
"""


def test_open_extents_in_place(tmp_path: pathlib.Path) -> None:
    """Where a module with open extents overwrites, the first call with new ones is made on a copy,
    so that one it refuses has changed nothing. This folder is written by hand.
    """
    image = compile_linalg(OPEN_IN_PLACE, find_target("cpu"), "add")
    w = {"name": "w", "shape": [4], "dtype": "float32", "role": "state"}
    x = {"name": "x", "shape": [None, 4], "dtype": "float32", "role": "data"}
    n = {"name": "n", "shape": [], "dtype": "float32", "role": "result"}
    add = {
        "name": "add", "mode": "train", "inputs": [w, x], "outputs": [w, n],
        "storage": [{"output": 0, "input": 0}],
    }  # fmt: skip
    # The module has the storage as the input itself: the call gives it once.
    add["storage"] = []
    (tmp_path / "cpu.vmfb").write_bytes(image)
    manifest = {
        "format": "gradopt-artifact-2", "name": "add",
        "versions": {"gradopt": go.__version__, "iree-base-compiler": deploy.runtime_version()},
        "modules": [{
            "target": "cpu", "driver": "local-task", "file": "cpu.vmfb",
            "architecture": "", "cpu_features": [],
            "functions": {"add": {"arena": 0, "in_place": [0]}},
        }],
        "functions": [add], "zeros": ["w"],
        "files": {"cpu.vmfb": {"sha256": hashlib.sha256(image).hexdigest(), "bytes": len(image)}},
    }  # fmt: skip
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    model = deploy.load(tmp_path)
    ones = np.ones((3, 4), np.float32)
    spans = []
    for rows in (3, 2, 3, 2):
        assert model.add(ones[:rows])["n"] == rows
        spans.append(model._memory.span(model._slots["w"].view))
    assert model.add.proven == {((3, 4),), ((2, 4),)}
    np.testing.assert_array_equal(model.state()["w"], [10] * 4)
    real = model._code.context
    model._code = mock.Mock(wraps=model._code)
    for rows, is_kept in ((1, True), (3, False)):  # never seen, seen before
        model._code.context = Context(real, RuntimeError("INTERNAL"), True)
        with pytest.raises(deploy.DeviceError):
            model.add(ones[:rows])
        model._code.context = real
        if is_kept:
            np.testing.assert_array_equal(model.state()["w"], [10] * 4)
        else:
            with pytest.raises(deploy.DeviceError, match="w are lost"):
                model.state()


class Context:
    """A context whose calls fail, before or after they have run."""

    def __init__(self, real: Any, error: BaseException, runs: bool) -> None:
        self.real, self.error, self.runs = real, error, runs

    def invoke(self, *arguments: Any) -> None:
        if self.runs:
            self.real.invoke(*arguments)
        raise self.error


def fail(model: deploy.Model, error: BaseException, runs: bool) -> None:
    """Make a step fail."""
    real = model._code.context
    model._code = mock.Mock(wraps=model._code)
    model._code.context = Context(real, error, runs)
    images, labels = artifacts.data(artifacts.BATCH)
    try:
        with pytest.raises(type(error) if not isinstance(error, RuntimeError) else RuntimeError):
            model.step(images, labels)
    finally:
        model._code.context = real


def test_a_call_that_fails_says_what_is_lost(folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """What a module overwrites is lost when it fails, and is not read any more; a checkpoint, the
    initial values or new ones bring it back.
    """
    model = deploy.load(folder, "cpu")
    initial = model.state()
    model.save(tmp_path / "a")
    images, labels = artifacts.data(artifacts.BATCH)
    for mend in (
        lambda: model.restore(tmp_path / "a"),
        model.reset,
        lambda: model.set_state(initial),
    ):
        fail(model, RuntimeError("the device is gone"), True)
        for use in (model.state, lambda: model.infer(images), lambda: model.step(images, labels)):
            with pytest.raises(
                deploy.DeviceError, match=r"the device is gone; the values of .*p.w1"
            ):
                use()
        with pytest.raises(deploy.DeviceError):
            model.save(tmp_path / "a")
        mend()
        assert same(model.state(), initial)


def test_an_interrupt_comes_before_or_after_a_call(folder: pathlib.Path) -> None:
    """Ctrl-C leaves the state as it was before the call, or as it is after it, never between."""
    images, labels = artifacts.data(artifacts.BATCH)
    model, other = deploy.load(folder, "cpu"), deploy.load(folder, "cpu")
    before = model.state()
    fail(model, KeyboardInterrupt(), False)
    assert same(model.state(), before)
    fail(model, KeyboardInterrupt(), True)
    other.step(images, labels)
    assert same(model.state(), other.state())
    model.step(images, labels)
    other.step(images, labels)
    assert same(model.state(), other.state())


# --- element types and memory ---------------------------------------------------------------------


def everything(p: Any, x: Any, y: Any) -> Any:
    return {"p": dict(p), "again": dict(p), "x": x, "y": y}


DTYPES = {
    "cpu": ["float64", "float16", "bfloat16", "int64", "int8", "uint16", "bool"],
    "vulkan": ["float32", "float16", "uint32", "bool"],
}


@pytest.mark.parametrize("target", artifacts.TARGETS)
def test_element_types(target: str, tmp_path: pathlib.Path) -> None:
    """Every element type, with no axes and with no elements, comes back bit for bit: as data, as
    held arrays, from both kinds of weights files and a checkpoint.
    """
    held = {}
    for name in DTYPES[target]:
        dtype = bfloat16 if name == "bfloat16" else np.dtype(name)
        held[name] = np.array([[0, 1, 3, 1], [1, 0, 100, 0]]).astype(dtype)
    held["scalar"] = np.array(1, np.int32)
    held["empty"] = np.zeros((0, 3), np.float32)
    x, y = np.float32([[1, np.nan], [-0.0, np.inf]]), np.zeros((4, 0), np.int32)
    functions = {"f": (everything, (held, x, y))}
    go.export(
        tmp_path / "a", functions, {"p": held}, targets=target, weights=("safetensors", "irpa")
    )
    (tmp_path / "a" / "weights.safetensors").unlink()
    edit(tmp_path / "a", lambda m: m["files"].pop("weights.safetensors"))
    model = deploy.load(tmp_path / "a")
    for _ in range(3):
        found = model.f(x, y)
        model.save(tmp_path / "c")
        model.reset()
        model.restore(tmp_path / "c")
        state = model.state()
        for name, array in held.items():
            for got in (found[f"again.{name}"], state[f"p.{name}"]):
                assert got.dtype == array.dtype and got.shape == array.shape
                assert got.tobytes() == array.tobytes(), name
        assert found["x"].tobytes() == x.tobytes() and found["y"].shape == (4, 0)


def swap(p: Any, x: Any) -> Any:
    """New values and results that are inputs as they came."""
    return {"p": {"a": p["b"], "b": p["a"], "last": x}, "x": x, "old": p["last"]}


@pytest.mark.parametrize(
    ("target", "donate"),
    [("cpu", True), ("cpu", False), *((t, True) for t in artifacts.TARGETS[1:])],
)
def test_nothing_shares_memory(target: str, donate: bool, tmp_path: pathlib.Path) -> None:
    """Results that are inputs passed on keep their values when the inputs change later."""
    n = 1 << 15  # larger than what is copied without asking
    p = {k: np.full(n, i, np.float32) for i, k in enumerate(["a", "b", "last"])}
    spec = go.TensorSpec((n,))
    functions = {"swap": (swap, (p, spec)), "add": (lambda p: {"p": {"a": p["a"] + 1}}, (p,))}
    go.export(
        tmp_path / "a", functions, {"p": p}, targets=target, donate=donate, static_alloc=donate
    )
    model = deploy.load(tmp_path / "a")
    whole = np.zeros(n + 16, np.float32)
    x = whole[(-whole.__array_interface__["data"][0] % 64) // 4 :][:n]  # can be lent
    want = {k: float(i) for i, k in enumerate(["a", "b", "last"])}
    kept = []
    for i in range(6):
        x[:] = 10 + i
        old = want["last"]
        want = {"a": want["b"], "b": want["a"], "last": 10.0 + i}
        found = model.swap(x)
        kept.append((found, 10.0 + i, old))
        x[:] = -1
        model.add()
        want["a"] += 1
        for name, value in want.items():
            np.testing.assert_array_equal(model.state()[f"p.{name}"], value)
    for found, now, old in kept:
        np.testing.assert_array_equal(found["x"], now)
        np.testing.assert_array_equal(found["old"], old)


def test_arrays_in_any_layout(folder: pathlib.Path) -> None:
    """Strided, read-only and unaligned arrays, and what has DLPack's protocol alone."""
    model = deploy.load(folder, "cpu")
    images, _ = artifacts.data(8)
    want = model.infer(images)["scores"]
    read_only = images.copy()
    read_only.flags.writeable = False
    raw = np.zeros(images.nbytes + 4, np.uint8)
    shifted = raw[4:].view(np.float32).reshape(images.shape)
    shifted[...] = images
    fortran = np.asfortranarray(images)

    class Foreign:
        __dlpack__ = images.__dlpack__
        __dlpack_device__ = images.__dlpack_device__

    for given in (read_only, shifted, fortran, Foreign()):
        np.testing.assert_array_equal(model.infer(given)["scores"], want)


def test_large_results_are_not_copied(folder: pathlib.Path) -> None:
    """They outlive the model, and can be written to."""
    model = deploy.load(folder, "cpu")
    found = model.infer(artifacts.data(4096)[0])["scores"]
    want = found.copy()
    assert not found.flags.owndata and found.nbytes > deploy._SMALL
    for _ in range(3):
        model.infer(artifacts.data(4096, 5)[0])
    del model
    np.testing.assert_array_equal(found, want)
    found[:] = 0


# --- threads --------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["local-task", "local-sync"])
def test_threads(device: str, folder: pathlib.Path) -> None:
    """Steps of several threads follow each other, inferences run at once and see whole states."""
    model = deploy.load(folder, "cpu", device)
    images, labels = artifacts.data(artifacts.BATCH)
    whole = [model.infer(images)["scores"]]
    alone = deploy.load(folder, "cpu", device)
    for _ in range(40):
        alone.step(images, labels)
        whole.append(alone.infer(images)["scores"])
    known = {a.tobytes() for a in whole}
    faults: list[Any] = []

    def work(kind: str) -> None:
        try:
            for _ in range(10):
                if kind == "step":
                    model.step(images, labels)
                elif model.infer(images)["scores"].tobytes() not in known:
                    faults.append("a state between two steps")
                elif kind == "state":
                    model.set_state({"v.b1": model.state()["v.b1"] * 0})
        except Exception as error:
            faults.append(error)

    kinds = ["step", "infer"] * 4
    threads = [threading.Thread(target=work, args=(kind,)) for kind in kinds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert same(model.state(), alone.state())


# --- what cannot be loaded ------------------------------------------------------------------------


def versions(**changes: str) -> Any:
    def change(manifest: dict[str, Any]) -> None:
        manifest["versions"] |= {k.replace("_", "-"): v for k, v in changes.items()}

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(format="gradopt-artifact-9"),
         r"expected format gradopt-artifact-2, got gradopt-artifact-9, written by gradopt 0\.1\.0; "
         r"this loader is of gradopt 0\.1\.0; load it with the gradopt_deploy\.py in its folder"),
        (versions(gradopt="0.7.1"),
         r"was written by gradopt 0\.7\.1, this loader is of gradopt 0\.1\.0; load it with the "
         r"gradopt_deploy\.py in its folder, install gradopt==0\.7\.1, or export it again"),
        (versions(iree_base_compiler="3.11.0"),
         r"was compiled by IREE 3\.11\.0, the runtime here is IREE 3\.13\.\d+; install "
         r"iree-base-runtime==3\.11\.0, or export it again with IREE 3\.13"),
        (versions(iree_base_compiler="3.14.0rc20270101"), "compiled by IREE 3.14.0rc20270101"),
        (lambda m: m.pop("versions"), "written by gradopt unknown"),
        (lambda m: m["modules"][0].update(architecture="aarch64"),
         "cpu is code for aarch64, this machine is x86_64; export it for a target that is here"),
        (lambda m: m["modules"][0].update(cpu_features=["avx9000", "sse9"]),
         "cpu needs the CPU features avx9000, sse9, which this CPU lacks"),
        (lambda m: m["modules"][0].update(driver="cuda", target="cuda"), "cuda .*libcuda"),
        (lambda m: m["modules"][0].update(driver="metal", target="metal"), "no driver 'metal'"),
        (lambda m: m["modules"][0]["functions"]["step"].update(arena=64),
         r"'step' expected an arena of \d+ bytes, the manifest says 64"),
        (lambda m: m["modules"][0]["functions"]["step"].update(in_place=[0]),
         "overwrites inputs .*, the manifest says"),
        (lambda m: m["functions"][0]["outputs"][1].update(shape=[None]), "has an open extent"),
        (lambda m: m["functions"][0]["inputs"][0].update(dtype="float31"), "KeyError: 'float31'"),
        (lambda m: m["functions"][0]["inputs"][0].update(role="guest"), "role 'guest' of"),
        (lambda m: m["functions"][0]["storage"][0].update(output=99), "below 8, got 99"),
        (lambda m: m["functions"][0].update(name="train"), "KeyError: 'step'"),
        (lambda m: m["modules"][0].update(file="../x.vmfb"), r"'\.\./x.vmfb' is no name of a file"),
        (lambda m: m["modules"][0].update(file="x.vmfb"), "'x.vmfb' is not among its files"),
        (lambda m: m.update(modules=[]), "it has no module"),
        (lambda m: m.pop("functions"), "is damaged: KeyError: 'functions'"),
    ],
)  # fmt: skip
def test_what_is_refused(change: Any, message: str, copy: pathlib.Path) -> None:
    """C133: other versions and machines, and manifests that cannot be, are told before IREE sees a
    byte, with both versions and what to do.
    """

    def one_module(manifest: dict[str, Any]) -> None:
        manifest["modules"] = manifest["modules"][:1]
        change(manifest)

    edit(copy, one_module)
    with pytest.raises(deploy.ArtifactError, match=message):
        deploy.load(copy)


@pytest.mark.parametrize("file", ["cpu.vmfb", "weights.safetensors"])
def test_damaged_files(file: str, copy: pathlib.Path) -> None:
    """Missing, cut off, or a bit flipped."""
    path = copy / file
    data = path.read_bytes()
    path.unlink()
    with pytest.raises(deploy.ArtifactError, match=f"cannot read '.*{file}': No such file"):
        deploy.load(copy, "cpu")
    path.write_bytes(data[:-1])
    with pytest.raises(deploy.ArtifactError, match=rf"expected {len(data)} bytes, got"):
        deploy.load(copy, "cpu")
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 4
    path.write_bytes(flipped)
    with pytest.raises(deploy.ArtifactError, match=r"damaged: expected SHA-256 [0-9a-f]{64}, got"):
        deploy.load(copy, "cpu")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 1}', "[" * 100_000, "\0"])
def test_manifests_that_are_none(text: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(deploy.ArtifactError, match=r"is damaged|expected format"):
        deploy.load(tmp_path)
    with pytest.raises(deploy.ArtifactError, match=r"folder of an artifact, but .* cannot be read"):
        deploy.load(tmp_path / "none")


def test_every_entry_of_the_manifest_can_be_wrong(copy: pathlib.Path) -> None:
    """Any value of the manifest replaced by another loads or is refused, and never crashes."""
    path = copy / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["modules"] = manifest["modules"][:1]
    manifest["modules"][0]["cpu_features"] = manifest["modules"][0]["cpu_features"][:2]

    def places(x: Any) -> Any:
        for key in list(x) if isinstance(x, dict) else range(len(x)):
            yield x, key
            if isinstance(x[key], dict | list):
                yield from places(x[key])

    values = [None, -1, "x", [], {}, 1 << 70]
    count = refused = 0
    for parent, key in places(manifest):
        old = parent[key]
        for new in values[(count := count + 1) % 5 :][:1]:
            parent[key] = new
            path.write_text(json.dumps(manifest))
            try:
                deploy.load(copy, "cpu")
            except deploy.ArtifactError:
                refused += 1
        parent[key] = old
    assert refused > 100


def test_a_folder_that_is_written_while_it_is_read(
    copy: pathlib.Path, open_folder: pathlib.Path
) -> None:
    """Files of another artifact than the manifest's are not taken for damage: it is read again."""
    read, is_first = deploy.Manifest.read, [True]

    def late(self: Any, name: str) -> bytes:
        if is_first.pop() if is_first else False:
            shutil.copytree(open_folder, copy, dirs_exist_ok=True)
        return read(self, name)

    with mock.patch.object(deploy.Manifest, "read", late):
        model = deploy.load(copy)
    assert list(model.functions) == ["add"]


def test_hot_reload(copy: pathlib.Path, open_folder: pathlib.Path) -> None:
    """A loaded artifact needs its files no more: they may be overwritten, cut off and removed; both
    then run side by side.
    """
    images, labels = artifacts.data(artifacts.BATCH)
    old = deploy.load(copy, "cpu")
    want = old.infer(images)["scores"]
    for path in copy.iterdir():
        if path.is_file():  # Python may have left a folder of its own
            os.truncate(path, 0)
    shutil.copytree(open_folder, copy, dirs_exist_ok=True)
    new = deploy.load(copy)
    new.add(np.ones((2, 4), np.float32), np.ones((2, 4), np.float32))
    shutil.rmtree(copy)
    np.testing.assert_array_equal(old.infer(images)["scores"], want)
    old.step(images, labels)
    with pytest.raises(deploy.ArtifactError, match="cannot read"):
        old.reset()


# --- which module is taken ------------------------------------------------------------------------


def compiled(target: str, features: int = 0) -> deploy.Compiled:
    family = target.partition(":")[0]
    drivers = {"cpu": "local-task", "vmvx": "local-task", "rocm": "hip"}
    return deploy.Compiled(
        target,
        drivers.get(family, family),
        f"{target}.vmfb",
        "x86_64" if family == "cpu" else "",
        tuple(f"f{i}" for i in range(features)),
        {},
    )


MODULES = [
    compiled("cpu:x86-64-v3", 2), compiled("vulkan"), compiled("vulkan:rdna3"), compiled("cpu", 9),
    compiled("vmvx"), compiled("cuda"), compiled("cuda:sm_89"), compiled("rocm:gfx942"),
    compiled("metal"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "target", "order"),
    [
        ("gpu", "auto", "cuda:sm_89 cuda rocm:gfx942 metal vulkan cpu cpu:x86-64-v3 vmvx"),
        ("software", "auto", "cuda:sm_89 cuda rocm:gfx942 metal cpu cpu:x86-64-v3 vmvx vulkan"),
        ("gpu", "cpu", "cpu cpu:x86-64-v3"),
        ("gpu", "vulkan", "vulkan vulkan:rdna3"),
        ("gpu", "vulkan:rdna3", "vulkan:rdna3"),
        ("gpu", "cuda:sm_75", ""),
    ],
)
def test_order_of_preference(kind: str, target: str, order: str) -> None:
    found = [deploy.Device("vulkan", "some GPU", "vulkan", kind)]
    with mock.patch.object(deploy, "_devices", lambda driver: (found, "")):
        assert [m.target for m in deploy._preferred(MODULES, target)] == order.split()


def test_lesser_cpus(folder: pathlib.Path) -> None:
    """The best module that the CPU can run is taken; a baseline is refused on a lesser CPU, and any
    code where its features are not known.
    """
    v3 = dataclasses.replace(compiled("cpu:x86-64-v3"), cpu_features=("avx2", "fma"))
    for here, why in [
        ({"avx2", "fma", "sse"}, ""),
        ({"avx2"}, "needs the CPU features fma, which this CPU lacks"),
        (None, "needs CPU features, and those of this machine are not known"),
    ]:
        with mock.patch.object(deploy, "cpu_features", lambda here=here: here):
            assert deploy._unfit(v3, None).startswith(why) and bool(deploy._unfit(v3, None)) == (
                why != ""
            )


def test_a_worse_module_is_taken_where_the_best_does_not_load(copy: pathlib.Path) -> None:
    """And the model says why; but a damaged file is an error, not a reason to take another."""

    def add(manifest: dict[str, Any]) -> None:
        better = dict(manifest["modules"][0], target="cpu:better", file="cpu-better.vmfb")
        (copy / "cpu-better.vmfb").write_bytes(b"not a module")
        manifest["modules"].append(better)
        manifest["files"]["cpu-better.vmfb"] = {
            "sha256": deploy.hashlib.sha256(b"not a module").hexdigest(),
            "bytes": 12,
        }
        better["cpu_features"] = [*manifest["modules"][0]["cpu_features"], *["sse"] * 5]

    edit(copy, add)
    model = deploy.load(copy)
    assert model.target == "cpu"
    assert model.skipped[0].startswith("cpu:better cannot be loaded on local-task: ")
    (copy / "cpu-better.vmfb").write_bytes(b"not a modulE")
    with pytest.raises(deploy.ArtifactError, match=r"cpu-better.vmfb' is damaged"):
        deploy.load(copy)
    with pytest.raises(
        deploy.ArtifactError,
        match=r"a target that it has, cpu, .*cpu:better, got 'cuda'; this machine is x86_64 CPU, ",
    ):
        deploy.load(copy, "cuda")
    with pytest.raises(deploy.ArtifactError, match="cpu runs on local-task, not on device 'cuda:"):
        deploy.load(copy, device="cuda://0")


def test_versions_agree() -> None:
    """The loader is one file that says which gradopt it belongs to."""
    assert go.__version__ == deploy.VERSION
    assert deploy._release("3.13.0") == deploy._release("3.13.2.post1") == "3.13"
    assert deploy._release("3.13.0rc1") == "3.13.0rc1"
    loaded = deploy.load.__module__
    assert "from ." not in pathlib.Path(sys.modules[loaded].__file__ or "").read_text()


def test_describe(folder: pathlib.Path) -> None:
    about = deploy.load(folder, "cpu").describe()
    assert json.loads(json.dumps(about)) == about
    assert about["state_bytes"] == 2 * 4 * (64 * 32 + 32 + 320) + 4
    assert about["functions"]["step"]["changes"][:1] == ["count"]
    assert about["functions"]["infer"]["outputs"] == {
        "label": "?xint32",
        "scores": "?x10xfloat32",
    }


def test_without_initial_values(tmp_path: pathlib.Path) -> None:
    """An artifact without weights gets them from a call, set_state or a checkpoint."""
    p = {"w": np.float32([1, 2])}
    functions = {
        "init": (lambda seed: {"p": {"w": seed * go.ones((2,))}}, (go.TensorSpec(()),)),
        "read": (lambda p: {"twice": p["w"] * 2}, (p,)),
    }
    model = deploy.load(go.export(tmp_path / "a", functions, {"p": p}, weights=()))
    with pytest.raises(deploy.ArgumentError, match=r"'p.w' to have a .*; call 'init', restore"):
        model.read()
    with pytest.raises(deploy.ArgumentError, match=r"the state expected 'p.w' to have a value"):
        model.save(tmp_path / "c")
    model.init(3.0)
    np.testing.assert_array_equal(model.read()["twice"], [6, 6])
    model.reset()
    with pytest.raises(deploy.ArgumentError, match="which the artifact came without"):
        model.state()
    model.set_state(p_w := {"p.w": np.float32([5, 7])})
    assert same(model.state(), p_w)
    for arrays, message in [
        ({"p.v": p["w"]}, "names of parameters and states, p.w, got 'p.v', which is none"),
        ({"p.w": p["w"][:1]}, "set_state expected argument 'p.w' of type 2xfloat32, got 1xfloat32"),
    ]:
        with pytest.raises(deploy.ArgumentError, match=message):
            model.set_state({"p.w": np.float32([0, 0]), **arrays})
    assert same(model.state(), p_w)
