# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Artifacts and gradopt-compile, with IREE's compiler replaced: what is written and when, which
functions are made, and what is refused.
"""

import concurrent.futures
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import sys
import time
from typing import Any

import gradopt as go
import ml_dtypes
import numpy as np
import pytest
from gradopt import deploy
from gradopt.dialect.graph import Graph, trace
from gradopt.dialect.types import DTYPES, TensorSpec
from gradopt.errors import ArgumentError, ArtifactError, CompileError, PassError
from gradopt.lowering.hoist import LARGEST
from gradopt.lowering.target import target
from gradopt.lowering.target_fat import fat
from gradopt.runtime import artifact, build, folder, manifest, progress, weights
from gradopt.runtime.artifact import write_artifact
from gradopt.runtime.exported import Exported

from .compilers import replaced

Tree = dict[str, Any]
SCALAR = go.TensorSpec(())
P = {"w": np.float32([[1, 2], [3, 4]]), "b": np.float32([10, 20])}
X, Y = go.TensorSpec((None, 2)), go.TensorSpec((8, 2))


def predict(p: Tree, x: Any) -> Tree:
    return {"scores": x @ p["w"] + p["b"]}


def loss(p: Tree, x: Any, y: Any) -> Any:
    return go.mse(predict(p, x)["scores"], y).mean()


def step(p: Tree, v: Tree, x: Any, y: Any) -> Tree:
    value, g = go.value_and_grad(loss)(p, x, y)
    v = {k: 0.9 * v[k] + g[k] for k in v}
    return {"loss": value, "p": {k: p[k] - 0.1 * v[k] for k in p}, "v": v}


V = {k: np.zeros_like(a) for k, a in P.items()}
FUNCTIONS = {"predict": (predict, (P, X)), "step": (step, (P, V, Y, Y))}


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    return replaced(monkeypatch)


def export(path: pathlib.Path, functions: Any = FUNCTIONS, **options: Any) -> Tree:
    """The manifest of an artifact."""
    given = {"parameters": {"p": P}, "state": {"v": V}} | options
    return json.loads((go.export(path, functions, **given) / "manifest.json").read_text())


# --- what is written ------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_compiler")
def test_manifest(tmp_path: pathlib.Path) -> None:
    """C133: the versions that made it; roles, new values, storage and files of everything."""
    about = export(tmp_path / "net-1.5", targets=["cpu", "cuda:sm_86"], licence="CC0-1.0")
    assert [about[k] for k in ("format", "name", "licence")] == [
        "gradopt-artifact-2",
        "net-1.5",
        "CC0-1.0",
    ]
    assert about["versions"]["gradopt"] == deploy.VERSION
    assert set(about["versions"]) == {
        "gradopt", "gradopt sources", "iree-base-compiler", "torch-mlir",
    }  # fmt: skip
    predict_, step_ = about["functions"]
    assert [(i["name"], i["shape"], i["dtype"], i["role"]) for i in predict_["inputs"]] == [
        ("p.b", [2], "float32", "parameter"),
        ("p.w", [2, 2], "float32", "parameter"),
        ("x", [None, 2], "float32", "data"),
    ]
    assert (predict_["mode"], step_["mode"]) == ("infer", "train")
    assert [i["role"] for i in step_["inputs"]] == ["parameter"] * 2 + ["state"] * 2 + ["data"] * 2
    assert [(o["name"], o["role"]) for o in step_["outputs"]] == [
        ("loss", "result"),
        ("p.b", "parameter"),
        ("p.w", "parameter"),
        ("v.b", "state"),
        ("v.w", "state"),
    ]
    pairs = [(s["output"], s["input"]) for s in step_["storage"]]
    assert pairs == [(1, 0), (2, 1), (3, 2), (4, 3), (0, None)]
    assert predict_["storage"] == []
    assert [(m["target"], m["driver"], m["file"]) for m in about["modules"]] == [
        ("cpu", "local-task", "cpu.vmfb"),
        ("cuda:sm_86", "cuda", "cuda-sm_86.vmfb"),
    ]
    assert "avx2" in about["modules"][0]["cpu_features"] or os.uname().machine != "x86_64"
    assert about["zeros"] == ["v.b", "v.w"]
    for name, of in about["files"].items():
        data = (tmp_path / "net-1.5" / name).read_bytes()
        assert of == {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    names = {*about["files"], "manifest.json"}
    assert names == {p.name for p in (tmp_path / "net-1.5").iterdir()}
    loader = (tmp_path / "net-1.5" / "gradopt_deploy.py").read_bytes()
    assert loader == pathlib.Path(deploy.__file__).read_bytes()


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize(
    ("options", "places", "is_static"),
    [
        ({"donate": False}, [(i, None) for i in range(5)], True),
        ({"static_alloc": False}, [(i + 1, i) for i in range(4)], False),
        ({"donate": False, "static_alloc": False}, [], False),
    ],
)
def test_what_memory_is_given(
    options: Any, places: list[Any], is_static: bool, tmp_path: pathlib.Path
) -> None:
    about = export(tmp_path / "a", **options)
    assert [(s["output"], s["input"]) for s in about["functions"][1]["storage"]] == places
    assert about["modules"][0]["functions"]["step"]["arena"] == (64 if is_static else 0)


@pytest.mark.usefixtures("no_compiler")
def test_less_memory(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions that train are recomputed in, and the target's arena is what has to fit."""
    asked = []

    def settled(module: Any, name: str, to: Any, remat: str) -> str:
        asked.append((name, to.name, remat))
        return "policy=cheap" if remat else ""

    monkeypatch.setattr(build, "settled", settled)
    export(tmp_path / "a", targets=["cpu", "vulkan"], memory_budget="12 MiB")
    assert asked == [
        ("predict", "cpu", ""),
        ("step", "cpu", "budget=12MiB"),
        ("predict", "vulkan", ""),
        ("step", "vulkan", "budget=12MiB"),
    ]


def test_a_new_value_of_what_is_not_read(no_compiler: list[Any], tmp_path: pathlib.Path) -> None:
    """A function can make what others read, as an init does."""
    begin = (lambda n: {"p": {"w": go.ones((2, 2)) * n, "b": go.zeros(2)}}, (SCALAR,))
    about = export(tmp_path / "a", {"begin": begin, **FUNCTIONS})
    made = about["functions"][0]
    assert [o["role"] for o in made["outputs"]] == ["parameter", "parameter"]
    assert [(s["output"], s["input"]) for s in made["storage"]] == [(0, None), (1, None)]


@pytest.mark.usefixtures("no_compiler")
def test_same_bytes(tmp_path: pathlib.Path) -> None:
    """The same functions are the same files, whatever folder they are written to."""
    for name in ("a", "b"):
        export(tmp_path / name / "net", weights=("safetensors", "irpa"))
    for path in (tmp_path / "a" / "net").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / "net" / path.name).read_bytes(), path.name


def test_errors_of_the_compiler_can_name_ops(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What goes to the compiler has the user's lines, and the ops that stand there are known."""
    seen: dict[str, Any] = {}

    def look(text: str, to: Any, name: str, ops: dict[str, list[str]], *_: Any) -> bytes:
        for place, names in ops.items():
            file, line = place.rsplit(":", 1)
            seen[file] = names, f'loc("{file}":{line}:' in text
        raise CompileError("that is all")

    monkeypatch.setattr(build, "compile_linalg", look)
    monkeypatch.setenv("GRADOPT_CACHE_DIR", str(tmp_path))
    functions = {name: (f, (go.TensorSpec((2,)),)) for name, f in [("a", go.sin), ("b", go.cos)]}
    with pytest.raises(CompileError, match="that is all"):
        go.export(tmp_path / "e", functions)
    assert seen == {__file__: (["gradopt.sin", "gradopt.cos"], True)}


@pytest.mark.usefixtures("no_compiler")
def test_graph_is_there_to_read(tmp_path: pathlib.Path) -> None:
    export(tmp_path / "a")
    text = (tmp_path / "a" / "graph.mlir").read_text()
    assert '"gradopt.vjp"' in text
    assert '%p.w: tensor<2x2xf32> {gradopt.donated = 2 : i64, gradopt.name = "p.w"' in text
    assert text.count("// -----") == 1


# --- constants and weights ------------------------------------------------------------------------


LARGE = np.arange(LARGEST, dtype=np.float32)
SMALL = np.arange(8, dtype=np.float32)


def test_large_constants_are_held_once(
    no_compiler: list[tuple[str, str]], tmp_path: pathlib.Path
) -> None:
    """C142: a constant that several functions use, and the derivative of one, for two targets, is
    in one file once.
    """
    scale = go.TensorSpec((LARGEST,))
    functions = {
        "f": (lambda x: x * go.constant(LARGE) + go.constant(SMALL).sum(), (scale,)),
        "g": (go.grad(lambda x: (x * go.constant(LARGE) * x).sum()), (scale,)),
        "h": (lambda x: x + go.constant(np.full(LARGEST, 2, np.float32)), (scale,)),
    }
    about = export(tmp_path / "a", functions, targets=["cpu", "vulkan"], parameters={}, state={})
    names = {
        f["name"]: [i["name"] for i in f["inputs"] if i["role"] == "constant"]
        for f in about["functions"]
    }
    (name,) = names["f"]
    assert names == {"f": [name], "g": [name], "h": []}
    found = weights.read_weights(tmp_path / "a" / "weights.safetensors")
    np.testing.assert_array_equal(found[name], LARGE)
    assert len(found) == 1
    for text in [t for _, t in no_compiler] + [(tmp_path / "a" / "graph.mlir").read_text()]:
        assert len(text) < LARGE.nbytes


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize("kinds", ["safetensors", "irpa", ("irpa", "safetensors")])
def test_weights_files(kinds: Any, tmp_path: pathlib.Path) -> None:
    """Both formats, all element types, no extent, and no elements."""
    arrays = {d.name: np.array([[0, 1], [1, 0]]).astype(d) for d in DTYPES}
    p = arrays | {"none": np.zeros((0, 3), np.float32), "one": np.float32(7)}
    export(tmp_path / "a", {"f": (lambda p: p, (p,))}, parameters={"p": p}, state={}, weights=kinds)
    expected = {kinds} if isinstance(kinds, str) else set(kinds)
    assert {q.suffix[1:] for q in (tmp_path / "a").glob("weights.*")} == expected
    held = {f"p.{n}": deploy.Entry(f"p.{n}", a.shape, a.dtype, "parameter") for n, a in p.items()}
    readers = {
        "safetensors": lambda data: deploy.read_safetensors(data)[0],
        "irpa": lambda data: deploy.read_irpa(data, held),
    }
    for kind, read in readers.items():
        if kind in expected:
            path = tmp_path / "a" / f"weights.{kind}"
            assert path.stat().st_mode == (tmp_path / "a" / "manifest.json").stat().st_mode
            found = read(path.read_bytes())
            assert set(found) == set(held)
            for n, a in p.items():
                assert found[f"p.{n}"].dtype == a.dtype
                np.testing.assert_array_equal(found[f"p.{n}"], a)


@pytest.mark.usefixtures("no_compiler")
def test_without_weights(tmp_path: pathlib.Path) -> None:
    """Constants are there all the same: they cannot be set later."""
    functions = {"f": (lambda p, x: x @ p["w"] + go.constant(LARGE).sum(), (P, X))}
    export(tmp_path / "a", functions, weights=(), state={}, parameters={"p": {"w": P["w"]}})
    (name,) = weights.read_weights(tmp_path / "a" / "weights.safetensors")
    assert name.startswith("constant.")
    export(tmp_path / "b", weights=())
    assert not list((tmp_path / "b").glob("weights.*"))


def test_zeros_that_are_none() -> None:
    """Only state whose bits are all 0 is left out of the file."""
    arrays = {
        "a": np.zeros(3, np.float32),
        "b": np.float32([0, -0.0]),
        "c": np.zeros(2, ml_dtypes.bfloat16),
        "d": TensorSpec((2,)),
    }
    roles = {"a": "state", "b": "state", "c": "parameter", "d": "state"}
    values, zeros = weights.split(arrays, roles)
    assert (sorted(values), zeros) == (["b", "c"], ["a"])


# --- whole or not at all --------------------------------------------------------------------------


def contents(path: pathlib.Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


@pytest.mark.usefixtures("no_compiler")
def test_nothing_is_half_written(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An export that fails at any point leaves the artifact of before, and nothing beside it."""
    export(tmp_path / "a")
    before = contents(tmp_path)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    places = [(artifact, "write_weights"), (folder, "_sync"), (folder, "_replace")]
    for module, name in [*places, (manifest, "text")]:
        with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
            patch.setattr(module, name, full)
            export(tmp_path / "a", licence="other")
        assert contents(tmp_path) == before, name


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize("has_exchange", [True, False])
def test_what_is_replaced(
    has_exchange: bool, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of the artifact before go, those of others stay, be it through a link."""
    if not has_exchange:
        monkeypatch.setattr(folder, "_exchange", lambda *_: False)
    export(tmp_path / "a", targets=["cpu", "vulkan"], weights=("safetensors", "irpa"))
    (tmp_path / "a" / "test.npz").write_bytes(b"mine")
    (tmp_path / "a" / "runs").mkdir()
    (tmp_path / "a" / "runs" / "1").write_bytes(b"mine, too")
    (tmp_path / "link").symlink_to("a")
    about = export(tmp_path / "link")
    assert set(contents(tmp_path / "a")) == {
        *about["files"], "manifest.json", "test.npz", "runs/1",
    }  # fmt: skip
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "link"]


def test_what_is_not_replaced(tmp_path: pathlib.Path) -> None:
    """Found out before anything is compiled."""
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "manifest.json").write_text('{"name": "another kind"}')
    with pytest.raises(ArtifactError, match=r"'.*file' to be a folder, or not there, got a"):
        export(tmp_path / "file")
    with pytest.raises(ArtifactError, match="got a folder with other files; choose another name"):
        export(tmp_path / "folder")
    assert contents(tmp_path) == {
        "file": b"mine",
        "folder/manifest.json": b'{"name": "another kind"}',
    }


def test_all_targets_are_tried(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One error names all targets that fail, each with its reason, and nothing is written."""
    tried = []

    def compiled(source: build.Source, lane: str) -> bytes:
        tried.append(source.target.name)
        if source.target.family == "cuda":
            raise CompileError("IREE could not")
        return b""

    monkeypatch.setattr(build.Source, "compiled", compiled)
    double = {"f": (lambda x: x + x, (go.TensorSpec((2,), "float64"),))}
    with pytest.raises(ArtifactError) as caught:
        go.export(tmp_path / "a", double, targets=["vulkan", "cuda", "cpu"])
    assert re.fullmatch(
        r"2 of 3 targets cannot be compiled for, and nothing is written; .*\n"
        r"vulkan: .*'gradopt.add' op expected an element type that target 'vulkan' computes in.*"
        r"\ncuda: IREE could not",
        str(caught.value),
        re.DOTALL,
    )
    assert sorted(tried) == ["cpu", "cuda"]
    assert not list(tmp_path.iterdir())
    with pytest.raises(PassError, match="computes in"):  # of one target, the error itself
        go.export(tmp_path / "a", double, targets="vulkan")


# --- what is refused ------------------------------------------------------------------------------


ONES = np.ones((4, 2), np.float32)


@pytest.mark.parametrize(
    ("functions", "parameters", "options", "message"),
    [
        ({}, None, {}, "at least one function, got none"),
        (predict, None, {}, r"expected a dict of names and \(function, arguments\), got function"),
        ({"f": predict}, None, {}, r"a pair \(Python function, arguments\) as 'f', got"),
        ({"f": (lambda p: p, (ONES,))}, {"q": ONES}, {}, "'q' expected to be an input of an expo"),
        ({"f": (lambda p: p, (ONES,))}, {"p": ONES.T}, {}, "argument 'p' of type tensor<4x2xf32>"),
        ({"f": (lambda p: p, (ONES,))}, {"p": {"a.b": ONES, "a": {"b": ONES}}}, {}, "two arrays"),
        ({"f": (lambda p: {"p": p.sum()}, (ONES,))}, {"p": ONES}, {},
         r"the new value of 'p' to be of type tensor<4x2xf32>, got tensor<f32>"),
        ({"f": (lambda p: p.sum(), (X,))}, {"p": ONES}, {}, r"known extents of 'p', which is held"),
        ({"f": (lambda p: p, (ONES,))}, {"p": ONES}, {"memory_budget": 1, "remat": "all"}, "both"),
        ({"f": (lambda p: p, (ONES,))}, {"p": ONES}, {"state": {"p": ONES}}, "two arrays"),
        ({"f": (lambda p: p, (ONES,))}, {"p": ONES}, {"targets": ()}, "one target, got none"),
        ({"f": (lambda p: p, (ONES,))}, {"p": ONES}, {"targets": ["cpu", "cpu:host"]}, "'cpu' twi"),
        ({"f": (lambda p: p, (ONES,))}, {"p": ONES}, {"targets": "jit"}, "'jit', which keeps no f"),
        ({"f": (lambda p: p, (ONES,))}, {"p": ONES}, {"weights": "npz"}, "weights expected kinds "),
        ({"f-1": (lambda p: p, (ONES,))}, {"p": ONES}, {}, "of letters, digits and _, .*'f-1'"),
        ({"__f": (lambda p: p, (ONES,))}, {"p": ONES}, {}, "not to start with __, got '__f'"),
    ],
    ids=["nothing", "no dict", "no pair", "another name", "another shape", "one name twice",
         "new value", "open", "remat", "two roles", "no target", "one target twice", "no files",
         "weights", "symbol", "own symbol"],
)  # fmt: skip
def test_what_cannot_be_exported(
    functions: Any, parameters: Any, options: Any, message: str, tmp_path: pathlib.Path
) -> None:
    with pytest.raises((ArtifactError, ArgumentError), match=message):
        go.export(tmp_path / "a", functions, parameters, **options)
    assert not list(tmp_path.iterdir())


def graph() -> Graph:
    return trace(lambda w, x: (w * x, x), ONES, ONES, name="f")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"roles": {"w": "weight"}}, "the role of 'w' to be one of data, parameter, .* got weight"),
        ({"roles": {"z": "state"}}, "'z' to be one of its inputs, got w, x"),
        ({"roles": {"w": "state"}, "held": {}}, "a value, or a TensorSpec, for the held input 'w'"),
        ({"updates": {2: "w"}}, "the new value of 'w' among 2 results, got 2"),
        ({"updates": {0: "z"}}, "'z', which a result replaces, to be held, got no such array"),
        ({"roles": {"w": "constant"}, "updates": {0: "w"}}, "constant 'w' to stay as it is"),
        ({"updates": {0: "w", 1: "w"}}, "results of different names, got 'w' twice"),
        ({"mode": "test"}, "a mode out of train, infer, got test"),
        ({"results": ["a"]}, "2 names of results, got 1"),
    ],
)
def test_exported_parts_that_do_not_fit(parts: Any, message: str, tmp_path: pathlib.Path) -> None:
    good = Exported(graph(), {"w": "parameter"}, {"w": ONES})
    with pytest.raises(ArtifactError, match=f"'f' expected {message}"):
        write_artifact(tmp_path / "a", [dataclasses.replace(good, **parts)])


def test_functions_that_disagree(tmp_path: pathlib.Path) -> None:
    one = Exported(graph(), {"w": "parameter"}, {"w": ONES})
    other = dataclasses.replace(one, graph=trace(lambda w: w, ONES, name="g"))
    cases = [
        ({"held": {"w": ONES * 2}}, "one initial value of 'w', got two"),
        ({"roles": {"w": "state"}}, "'w' to be a parameter, as elsewhere, got state"),
        ({"graph": one.graph}, "different names, got 'f'"),
    ]
    for parts, message in cases:
        with pytest.raises(ArtifactError, match=message):
            write_artifact(tmp_path / "a", [one, dataclasses.replace(other, **parts)])


def test_fat_targets() -> None:
    """One flag for all devices, each family's own flags, and no linking, which loses code."""
    both = fat([target("cpu"), target("vulkan")])
    flag = "--iree-hal-target-device="
    (vulkan,) = (f.removeprefix(flag) for f in target("vulkan").flags if f.startswith(flag))
    assert [f for f in both.flags if f.startswith(flag)] == [f"{flag}local,{vulkan}"]
    assert len(both.flags) == len(set(both.flags))
    assert all("--iree-hal-link-executables=false" in r.process_flags for r in both.ladder)
    assert "--iree-opt-data-tiling" not in both.ladder[0].flags
    with pytest.raises(CompileError, match="different devices for one file, got cuda, cuda:sm_86"):
        fat([target("cuda"), target("vulkan"), target("cuda:sm_86")])
    with pytest.raises(CompileError, match="different devices for one file, got vulkan, vulkan:a"):
        fat([target("vulkan"), target("vulkan:ada")])


def test_progress(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Where compiling takes long, a terminal shows for what; nothing else does."""
    monkeypatch.setattr(progress, "SHOWN_AFTER", 0.0)
    for is_terminal in (False, True):
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            running = {"vulkan": pool.submit(time.sleep, 0.3)}
            monkeypatch.setattr(sys.stderr, "isatty", lambda answer=is_terminal: answer)
            progress.follow(running)
        assert running["vulkan"].done()
        assert ("compiling for vulkan" in capsys.readouterr().err) == is_terminal
