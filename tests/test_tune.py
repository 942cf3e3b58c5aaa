# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The tuner with times that are made up: what it takes, what it notes, who uses the notes."""

import itertools
import json
import pathlib
from collections.abc import Callable
from typing import Any

import gradopt as go
import numpy as np
import pytest
from gradopt.dialect.graph import Graph, trace
from gradopt.errors import ArgumentError
from gradopt.lowering.forms import FORMS
from gradopt.runtime import tune
from gradopt.runtime.binding import signature_of
from gradopt.runtime.cache import disk_store
from gradopt.runtime.store import TUNED
from gradopt.runtime.tune import Tuner, Tuning, groups, noted, race, tuned
from gradopt.tools import tune as tool

from .helpers import CPU

Times = Callable[[bool, str, str], float | None]
"""(whether it is the whole function, its form, the name of its first rung) -> seconds; None for
what does not compile.
"""


def columns(extra: float = 0.0) -> Graph:
    """One group, of which "split-16" is the rule's choice."""
    return trace(lambda x: (x + extra).sum(axis=0), go.TensorSpec((8192, 8)))


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> Callable[[Times], None]:
    monkeypatch.setenv("GRADOPT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tune, "race", lambda timers, seconds: race(timers, 0.0))

    def install(times: Times) -> None:
        def timer(self: Tuner, graph: Any, target: Any, remat: str = "") -> Any:
            form = target.forms.partition("=")[2] or "split-16"
            seconds = times(graph is self.graph, form, target.ladder[0].name)
            return None if seconds is None else lambda: seconds

        monkeypatch.setattr(Tuner, "_timer", timer)

    return install


def by(graph: Graph, how: bool | str = True) -> Tuning:
    """What a graph is compiled with."""
    found = tuned(graph, CPU, how, signature_of(graph, CPU))
    forms = dict(entry.rsplit("=", 1) for entry in found.forms.split("+") if entry)
    flags = found.ladder[0].name
    return Tuning(forms, "" if flags == "default" else flags)


def never(*_: Any) -> float:
    raise AssertionError("nothing is to be timed")


# --- timing ---------------------------------------------------------------------------------------


def test_a_race_takes_minima_in_turns() -> None:
    runs: list[str] = []

    def timer(name: str, seconds: list[float]) -> Callable[[], float]:
        endless = itertools.cycle(seconds)
        return lambda: (runs.append(name), next(endless))[1]

    timers = {"a": timer("a", [3.0, 1.0]), "b": timer("b", [1.2]), "far": timer("far", [1.6])}
    clock = itertools.count()
    assert race(timers, 10, lambda: next(clock)) == {"a": 1.0, "b": 1.2, "far": 1.6}
    assert runs[: 3 * tune.ROUNDS] == ["a", "b", "far"] * tune.ROUNDS
    assert runs.count("far") == tune.ROUNDS + 1  # one call before anything counts
    assert runs.count("a") == runs.count("b") > runs.count("far")


def test_nobody_races() -> None:
    assert race({}, 1.0) == {}


# --- what is taken --------------------------------------------------------------------------------


def test_what_is_faster_is_taken_and_noted(use: Any) -> None:
    use(lambda whole, form, flags: 0.5 if form == "split-64" else 1.0)
    (group,) = groups(columns(), CPU)
    assert (group.rule, group.forms) == ("split-16", ("whole", "split-16", "split-64", "split-256"))
    assert by(columns()).forms == {group.name: "split-64"}
    use(never)
    for how in (True, "stored"):
        assert by(columns(), how).forms == {group.name: "split-64"}
    about = {about.get("group", ""): about for about in noted().values()}
    assert about[group.name]["seconds"]["split-64"] == 0.5
    assert (about[""]["before"], about[""]["after"]) == (1.0, 0.5)


def test_what_is_no_faster_in_the_whole_is_not_taken(use: Any) -> None:
    use(lambda whole, form, flags: 1.0 if whole or form != "split-64" else 0.5)
    assert by(columns()) == Tuning()
    use(never)
    assert by(columns()) == by(columns(), "stored") == Tuning()
    assert {about.get("form") for about in noted().values()} == {"split-16", None}


def test_a_small_gain_is_none(use: Any) -> None:
    use(lambda whole, form, flags: 0.985 if form == "split-64" or flags == "fused" else 1.0)
    assert by(columns()) == Tuning()


def test_flags_are_tried_on_the_whole(use: Any) -> None:
    use(lambda whole, form, flags: 0.9 if flags == "no-data-tiling" else 1.0)
    assert by(columns()) == Tuning({}, "no-data-tiling")


def test_what_does_not_compile_is_left_out(use: Any) -> None:
    use(lambda whole, form, flags: 1.0 if form == "split-16" and flags == "default" else None)
    assert by(columns()) == Tuning()
    use(lambda whole, form, flags: None)
    assert by(columns(1.0)) == Tuning()


def test_half_of_what_promises_most_is_tried_where_all_is_slower(use: Any) -> None:
    graph = trace(
        lambda x, y: (x.sum(axis=0), y.sum(axis=0)),
        go.TensorSpec((16384, 8)),
        go.TensorSpec((8192, 8)),
    )
    larger, smaller = groups(graph, CPU)

    def times(whole: bool, form: str, flags: str) -> float:
        if not whole:
            return 0.5 if form == "split-64" else 1.0
        return {"split-16": 1.0, "split-64": 0.8}.get(form, 1.5)  # with both forms, neither

    use(times)
    assert larger.share > smaller.share
    assert by(graph).forms == {larger.name: "split-64"}


def test_unknown_extents_are_not_timed(use: Any) -> None:
    use(never)
    assert by(trace(lambda x: x.sum(axis=0), go.TensorSpec((None, 8)))) == Tuning()


# --- notes ----------------------------------------------------------------------------------------


def test_other_functions_use_what_is_noted_of_a_group(use: Any) -> None:
    use(lambda whole, form, flags: 0.5 if form == "split-64" else 1.0)
    found = by(columns())
    use(never)
    assert by(columns(1.0), "stored").forms == found.forms
    other = trace(lambda x: x.sum(axis=0), go.TensorSpec((16384, 8)))
    assert by(other, "stored") == Tuning()


def test_another_machine_has_notes_of_its_own(use: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    use(lambda whole, form, flags: 0.5 if form == "split-64" else 1.0)
    by(columns())
    monkeypatch.setattr(tune, "cpu_model", lambda: "another")
    assert by(columns(), "stored") == Tuning()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"form": "halves"}', '{"forms": 3}', "{}"])
def test_damaged_notes_do_nothing(use: Any, text: str) -> None:
    use(lambda whole, form, flags: 0.5 if form == "split-64" else 1.0)
    by(columns())
    for key in disk_store().notes(TUNED):
        disk_store().keep_note(TUNED, key, text)
    use(never)
    assert by(columns(), "stored") == by(columns(1.0), "stored") == Tuning()


def test_choices_are_part_of_the_key() -> None:
    graph = columns()
    (group,) = groups(graph, CPU)
    choices = [Tuning(), Tuning({group.name: "split-64"}), Tuning({}, "no-data-tiling")]
    keys = {signature_of(graph, choice.of(CPU)).key for choice in choices}
    assert len(keys) == 3
    assert Tuning().of(CPU) == CPU
    assert Tuning({}, "nonesuch").of(CPU) == CPU


def test_defaults_use_no_notes(use: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "tuned", never)
    f = go.compile(lambda x: x.sum(axis=0), target="reference")
    assert f(np.ones((2, 3), np.float32)).tolist() == [2, 2, 2]


@pytest.mark.parametrize("value", ["fast", 1.5, None])
def test_bad_values(value: Any) -> None:
    with pytest.raises(ArgumentError, match=r"tune expected True, False or 'stored', got "):
        go.compile(lambda x: x, tune=value)


@pytest.mark.parametrize("target", ["reference", "jit"])
def test_targets_with_nothing_to_tune(target: str) -> None:
    with pytest.raises(ArgumentError, match=f"tune=True expected a target that .*, got '{target}'"):
        go.compile(lambda x: x, tune=True, target=target)


# --- the command ----------------------------------------------------------------------------------

TEXT = """
func.func @total(%x: tensor<8192x8xf32>) -> tensor<8xf32> {
  %y = "gradopt.sum"(%x) {axes = array<i64: 0>} : (tensor<8192x8xf32>) -> tensor<8xf32>
  return %y : tensor<8xf32>
}
"""


def test_command(use: Any, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    use(lambda whole, form, flags: 0.5 if form == "split-64" else 1.0)
    file = tmp_path / "total.mlir"
    file.write_text(TEXT)
    assert tool.main([str(file), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["function"], row["before_ms"], row["after_ms"]) == ("total", 1000.0, 500.0)
    assert list(row["forms"].values()) == ["split-64"]
    assert tool.main(["--list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {r["what"].partition("(")[0] for r in listed} == {"sum", "function total"}
    assert tool.main(["--forget"]) == 0
    assert capsys.readouterr().out == "forgot 2 notes\n"
    assert not noted()


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ([], 2, "expected a file or --workload, one of them"),
        (["total.mlir", "--workload", "mlp"], 2, "expected a file or --workload, one of them"),
        (["total.mlir", "--seconds", "0"], 2, "expected seconds above 0, got '0'"),
        (["nonesuch.mlir"], 2, "cannot read 'nonesuch.mlir'"),
        (["total.mlir", "--function", "f"], 1, "expected --function out of total, got 'f'"),
        (["total.mlir", "--target", "jit"], 1, "tune=True expected a target that IREE compiles"),
    ],
)
def test_command_misused(
    arguments: list[str],
    status: int,
    message: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "total.mlir").write_text(TEXT)
    try:
        assert tool.main(arguments) == status
    except SystemExit as error:
        assert error.code == status
    assert message in capsys.readouterr().err


def test_documented_forms() -> None:
    """docs/tuning.md has every form."""
    text = (pathlib.Path(__file__).parents[1] / "docs" / "tuning.md").read_text()
    assert all(f"`{form}`" in text for known in FORMS.values() for form in known.all)
