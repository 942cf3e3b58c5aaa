# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Signatures: their parts, keys, and what `why` says when one of them changes.

Compiled by the host JIT, which takes the same way to a key.
"""

import dataclasses
import functools
import gc
import os
import pathlib
import subprocess
import sys
from typing import Any

import gradopt as go
import numpy as np
import pytest
from gradopt.errors import OpError, TraceError
from gradopt.lowering import target as targets
from gradopt.lowering.target import Target, target
from gradopt.runtime import cache, signature
from gradopt.runtime.binding import signature_of
from gradopt.runtime.recent import Recent
from gradopt.runtime.signature import Signature
from gradopt.runtime.why import Change, History, Miss, changes

compiled = functools.partial(go.compile, target="jit")


def ones(*shape: int, dtype: Any = "float32") -> np.ndarray:
    return np.ones(shape, dtype)


def loss(w: Any, x: Any) -> Any:
    return go.tanh(x @ w).sum()


def graph_of(fn: Any = loss, *specs: Any) -> go.Graph:
    return go.trace(fn, *(specs or (go.TensorSpec((3, 2)), go.TensorSpec((4, 3)))))


def signed(graph: go.Graph | None = None, on: str | Target = "cpu", **options: Any) -> Signature:
    chosen = target(on) if isinstance(on, str) else on
    return signature_of(graph or graph_of(), chosen, **options)


def parts(found: tuple[Change, ...]) -> list[str]:
    return [change.part for change in found]


# --- every part of the key ------------------------------------------------------------------------

SEEN = {
    "shape": (
        lambda f: f(ones(3, 2), ones(5, 3)),
        ["argument 'x': was tensor<4x3xf32>, is tensor<5x3xf32>"],
    ),
    "dtype": (
        lambda f: f(ones(3, 2), ones(4, 3, dtype="float64")),
        ["argument 'x': was tensor<4x3xf32>, is tensor<4x3xf64>"],
    ),
    "structure": (
        lambda f: f((ones(3, 2),), ones(4, 3)),
        [
            "structure of the arguments: was (*, *), is ((*,), *)",
            "argument 'w.0': was none, is tensor<3x2xf32>",
            "argument 'w': was tensor<3x2xf32>, is none",
        ],
    ),
}


@pytest.mark.parametrize("part", SEEN)
def test_a_call_that_differs(part: str) -> None:
    """B05: an argument's shape, its dtype, the structure: by the argument's name."""

    def f(w: Any, x: Any) -> Any:
        w = w[0] if isinstance(w, tuple) else w
        return go.convert(x, dtype="float64") @ go.convert(w, dtype="float64")

    call, expected = SEEN[part]
    f = compiled(f)
    assert f.why() is None
    f(ones(3, 2), ones(4, 3))
    assert f.why().compared != "call"
    call(f)
    said = str(f.why())
    assert f.why().compared == "call"
    for line in expected:
        assert line in said
    shown = [c for c in f.why().changes if c.part != "graph"]
    assert len(shown) == len(expected)


def test_graph_content() -> None:
    """B05: an op, a constant, an attribute; the first op that differs is named."""
    before = signed(graph_of(lambda x: go.exp(x) * 2, go.TensorSpec(3)))
    for other, was, now in [
        (lambda x: go.tanh(x) * 2, "gradopt.exp (op 0)", "gradopt.tanh (op 0)"),
        (lambda x: go.exp(x) * 3, "dense<2", "dense<3"),
        (lambda x: go.exp(x) * 2 + 1, "return", "gradopt.constant"),
    ]:
        (found,) = changes(before, signed(graph_of(other, go.TensorSpec(3))))
        assert found.part == "graph"
        assert was in str(found.before)
        assert now in str(found.now)


def test_other_ops_for_another_shape() -> None:
    """Where the shape changed the graph follows, and is named only if its ops are others."""
    wide, narrow = go.TensorSpec((3, 4)), go.TensorSpec((3, 5))
    same = changes(signed(graph_of(go.exp, wide)), signed(graph_of(go.exp, narrow)))
    assert parts(same) == ["argument 'x'"]

    def branch(x: Any) -> Any:
        return go.exp(x) if x.shape[1] == 4 else go.tanh(x)

    both = changes(signed(graph_of(branch, wide)), signed(graph_of(branch, narrow)))
    assert parts(both) == ["argument 'x'", "graph"]
    assert both[1] == Change("graph", "gradopt.exp (op 0)", "gradopt.tanh (op 0)")


@pytest.mark.parametrize(
    ("option", "value", "name", "shown"),
    [
        ("static_alloc", True, "option static_alloc", "was False, is True"),
        ("donated", [0], "option donate", "was none, is w"),
        ("remat", "budget=0.5", "option memory_budget", "was none, is 0.5"),
        ("remat", "policy=all", "option remat", "was none, is all"),
        ("parts", {"mode": "train"}, "mode", "was none, is train"),
        ("parts", {"grad_req of 'w'": "add"}, "grad_req of 'w'", "was none, is add"),
    ],
    ids=["static_alloc", "donate", "memory_budget", "remat", "mode", "grad_req"],
)
def test_an_option(option: str, value: Any, name: str, shown: str) -> None:
    """B05: each option is a part of the key, and named as such."""
    before, now = signed(), signed(**{option: value})
    assert before.key != now.key
    found = {c.part: c for c in changes(before, now)}
    assert str(found[name]) == f"{name}: {shown}"
    assert set(found) <= {name, "graph"}


def test_target_device_cpu_and_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    """B05: the target, its device, this machine's CPU, the compiler's flags."""
    cpu, before = target("cpu"), signed()
    other = dataclasses.replace(cpu, name="gpu")
    assert [str(c) for c in changes(before, signed(on=other))] == ["target: was cpu, is gpu"]
    other = dataclasses.replace(cpu, driver="cuda")
    assert [str(c) for c in changes(before, signed(on=other))] == [
        "device: was local-sync, is cuda"
    ]
    other = dataclasses.replace(cpu, flags=(*cpu.flags, "--iree-new"))
    (found,) = changes(before, signed(on=other))
    assert found.part == "compiler flags"
    assert "--iree-new" in str(found)
    monkeypatch.setattr(signature, "host_cpu", lambda: "x86_64-other")
    (found,) = changes(before, signed())
    assert str(found).startswith("CPU: was ")
    assert str(found).endswith("is x86_64-other")


@pytest.mark.parametrize("package", sorted(cache.versions()))
def test_versions(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """B05, C133: of gradopt and of each part of the compiler."""
    before = signed()
    monkeypatch.setattr(signature, "versions", lambda: cache.versions() | {package: "99"})
    now = signed()
    assert before.key != now.key
    (found,) = changes(before, now)
    assert str(found) == f"version of {package}: was {cache.versions()[package]}, is 99"


def test_roles() -> None:
    """A parameter is no data, though of the same type."""
    sides = []
    for role in ("data", "param"):
        g = go.Graph("affine")
        x = g.input("x", 3, role=role)
        g.output(x + 1)
        g.finish()
        sides.append(signed(g))
    (found,) = [c for c in changes(*sides) if c.part != "graph"]
    assert str(found) == "argument 'x': was tensor<3xf32>, is tensor<3xf32> param"


def test_all_parts_are_explained() -> None:
    """Whatever part of the key differs is a change, whatever its name."""
    before = signed()
    for part in before.parts:
        now = Signature(before.name, {**before.parts, part: "other"}, before.notes)
        assert parts(changes(before, now)) == [part]
        assert before.key != now.key


# --- what is compared -----------------------------------------------------------------------------


def test_the_nearest_earlier_signature() -> None:
    """The one with the fewest differences, not the latest."""
    f = compiled(loss)
    f(ones(3, 2), ones(4, 3))
    f(ones(5, 7), ones(9, 5))
    f(ones(3, 2), ones(6, 3))
    assert [str(c) for c in f.why().changes] == [
        "argument 'x': was tensor<4x3xf32>, is tensor<6x3xf32>"
    ]


def test_another_function_of_the_same_code() -> None:
    """Options differ between compiled functions: a new one is compared with the earlier ones."""
    x = ones(3, 2), ones(4, 3)
    compiled(loss)(*x)
    f = compiled(loss, donate=0)
    f(*x)
    assert f.why().compared == "code"
    assert "option donate: was none, is w" in str(f.why())
    assert f.why() is go.why()[-1]


def test_a_signature_that_was_dropped() -> None:
    f = compiled(loss)
    f(ones(3, 2), ones(4, 3))
    f.clear_cache()
    f(ones(3, 2), ones(4, 3))
    assert not f.why().changes
    assert "equal to the nearest earlier signature" in str(f.why())
    assert "which was dropped" in str(f.why())


def test_long_values_are_cut() -> None:
    before, now = "a" * 300 + "b" * 300, "a" * 300 + "c" * 300
    said = str(Change("structure", before, now))
    assert len(said) < 220
    assert "ab" in said
    assert "ac" in said


def test_few_misses_are_remembered() -> None:
    """C032: what explains misses does not grow."""
    history, one = History(), signed()
    for i in range(300):
        history.add(Signature("f", {**one.parts, "i": i}), cache.COMPILED, "", 0.1)
    assert len(history._earlier) == 128
    assert len(go.why()) == 64
    assert all(isinstance(m, Miss) for m in go.why())


# --- keys -----------------------------------------------------------------------------------------

KEYS = """
import gradopt as go
def step(p, x):
    value, gradient = go.value_and_grad(lambda p: (go.tanh(x @ p["w"]) + p["b"]).sum())(p)
    return {n: p[n] - 0.1 * gradient[n] for n in p}, value
f = go.compile(step, donate=0, static_alloc=True)
specs = {"w": go.TensorSpec((3, 2)), "b": go.TensorSpec(2)}, go.TensorSpec((4, 3))
print(f.signature(*specs).key, go.deserialize(f.serialize(*specs)).signature().key)
"""


def test_keys_are_stable(tmp_path: pathlib.Path) -> None:
    """C130, B26: one key in processes with other hash seeds, working folders and line numbers, and
    for the graph that is read back from text.
    """
    found = set()
    for i, seed in enumerate(("1", "2")):
        folder = tmp_path / str(i)
        folder.mkdir()
        (folder / "program.py").write_text("\n" * i + KEYS)
        environment = os.environ | {"PYTHONHASHSEED": seed}
        command = [sys.executable, "program.py"]
        found.update(
            subprocess.run(
                command, env=environment, cwd=folder, capture_output=True, text=True, check=True
            ).stdout.split()
        )
    assert len(found) == 1


@pytest.mark.parametrize(
    "options",
    [{}, {"donate": 0}, {"static_alloc": True}, {"memory_budget": 0.9}, {"remat": "all"}],
    ids=str,
)
def test_a_graph_and_its_options_as_text(options: dict[str, Any]) -> None:
    """B26: read back, it has the same key, and gives the same results."""
    specs = {"w": go.TensorSpec((3, 2))}, go.TensorSpec((4, 3))

    def step(p: Any, x: Any) -> Any:
        value, gradient = go.value_and_grad(lambda p: (go.tanh(x @ p["w"]) ** 2).sum())(p)
        return {"w": p["w"] - 0.1 * gradient["w"]}, value

    f = go.compile(step, **options)
    text = f.serialize(*specs)
    again = go.deserialize(text)
    assert again.signature().key == f.signature(*specs).key
    assert again.serialize() == text
    w, x = np.random.default_rng(0).standard_normal((2, 4, 3)).astype("f")[:, :3, :2], ones(4, 3)
    here = go.deserialize(text.replace("\\22target\\22: \\22cpu", "\\22target\\22: \\22jit"))
    (want, value), got = go.compile(step, target="jit")({"w": w[0]}, x), here(w[0], x)
    np.testing.assert_array_equal(got[0], want["w"])
    np.testing.assert_array_equal(got[1], value)


def test_text_that_is_no_graph() -> None:
    with pytest.raises(TraceError, match="expected the text of a graph"):
        go.deserialize("nonsense")
    with pytest.raises(TraceError, match="one public function, got 0"):
        go.deserialize("module {}")
    with pytest.raises(TraceError, match=r"expected the options of 'loss' .* use gradopt\.Graph"):
        go.deserialize(graph_of().mlir())


def test_a_graph_of_text_can_go_on() -> None:
    """Ops can be added to it; unnamed arguments get names."""
    g = go.Graph.parse(
        "func.func @f(%x: tensor<3xf32>) -> tensor<3xf32> {\n  return %x : tensor<3xf32>\n}"
    )
    assert g.input_names == ["arg0"]
    y = g.input("y", 3)
    g.output(y * 2)
    x = np.arange(3, dtype="f")
    first, second = compiled(g)(x, x)
    np.testing.assert_array_equal(first, x)
    np.testing.assert_array_equal(second, 2 * x)


# --- inference before compilation -----------------------------------------------------------------


def test_a_contradiction_is_found_before_anything_is_compiled() -> None:
    """B06: with the op, the source line and both types; a repeated signature infers nothing."""
    traced = 0

    @compiled
    def f(x: Any, y: Any) -> Any:
        nonlocal traced
        traced += 1
        return go.exp(x) @ y

    before = go.cache_info()
    with pytest.raises(OpError, match=r"test_why\.py:\d+: .*gradopt\.dot_general.*3 .*2") as error:
        f(ones(4, 3), ones(2, 5))
    assert "gradopt" in str(error.value)
    assert go.cache_info() == before
    assert f.why() is None
    for _ in range(3):
        f(ones(4, 3), ones(3, 5))
    assert traced == 2


# --- what is kept in memory -----------------------------------------------------------------------


def test_the_signatures_used_last_are_kept() -> None:
    """C032: a limit for each function, one warning that says what to do."""
    table = Recent("f", limit=3)
    for i in range(3):
        table[i] = f"value {i}"
    assert table.get(0) == "value 0"
    with pytest.warns(UserWarning, match=r"'f' .* more than 3 signatures; .*go\.bucketed.*dynamic"):
        table[3] = "value 3"
    assert list(table) == [2, 0, 3]
    table[4] = "value 4"  # no further warning
    assert list(table) == [0, 3, 4]
    assert table.get(1) is None
    table.clear()
    assert table.get(0) is None


def test_clear_cache_frees_signatures() -> None:
    gc.collect()
    f = compiled(loss)
    before = go.cache_info().signatures
    for n in range(3, 6):
        f(ones(n, 2), ones(4, n))
    assert go.cache_info().signatures == before + 3
    f.clear_cache()
    assert go.cache_info().signatures == before
    f(ones(3, 2), ones(4, 3))
    go.clear_cache()
    assert go.cache_info().signatures == 0
    f(ones(3, 2), ones(4, 3))


def test_host_cpu_is_part_of_every_key() -> None:
    assert signed().parts["CPU"] == targets.host_cpu()
