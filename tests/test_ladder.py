# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The rung of the ladder that compiled a signature is remembered. The compiler is a stand-in that
refuses the first rungs.
"""

import pathlib
from collections.abc import Callable
from typing import Any

import pytest
from gradopt.lowering.target import target
from gradopt.runtime import compiler
from gradopt.runtime.cache import disk_store
from gradopt.runtime.store import RUNGS

CPU = target("cpu")
KEY, OTHER = "a" * 64, "b" * 64
NAMES = [rung.name for rung in CPU.ladder]
Compile = Callable[..., list[str]]


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> Compile:
    """(first rung that compiles, key) -> the rungs that were tried."""
    monkeypatch.setenv("GRADOPT_CACHE_DIR", str(tmp_path))

    def run(first: int, key: str, stage: str = "stream") -> list[str]:
        found: list[str] = []

        class Worker:
            def compile(self, source: bytes, flags: Any, *_: Any) -> tuple[dict[str, Any], bytes]:
                at = len(CPU.ladder) - len(left)
                found.append(left.pop(0).name)
                if at < first:
                    return {"ok": False, "stage": stage, "diagnostics": ["too large"]}, b""
                return {"ok": True}, b"image"

        left = list(compiler._remembered(CPU.ladder, "f", key))
        monkeypatch.setattr(compiler, "_worker", lambda *_: Worker())
        assert compiler.compile_linalg("module {}", CPU, "f", key=key) == b"image"
        return found

    return run


@pytest.mark.filterwarnings("ignore:IREE could not compile")
def test_the_next_compilation_starts_where_the_last_ended(tried: Compile) -> None:
    assert tried(2, KEY) == NAMES[:3]
    assert disk_store().notes(RUNGS) == {KEY: NAMES[2]}
    assert tried(2, KEY) == [NAMES[2]]
    assert tried(2, OTHER) == NAMES[:3]
    assert tried(2, "") == NAMES[:3]  # what is not kept on disk


def test_the_first_rung_is_not_noted(tried: Compile) -> None:
    assert tried(0, KEY) == [NAMES[0]]
    assert not disk_store().notes(RUNGS)


@pytest.mark.filterwarnings("ignore:IREE could not compile")
@pytest.mark.parametrize("stage", ["timeout", "crash"])
def test_what_may_go_well_the_next_time_is_tried_again(tried: Compile, stage: str) -> None:
    assert tried(1, KEY, stage) == tried(1, KEY, stage) == NAMES[:2]


@pytest.mark.filterwarnings("ignore:IREE could not compile")
def test_a_damaged_note_is_none(tried: Compile) -> None:
    disk_store().keep_note(RUNGS, KEY, "nonesuch")
    assert tried(1, KEY) == NAMES[:2]
    disk_store().clear()
    assert not disk_store().notes(RUNGS)


def test_notes_that_cannot_be_written_are_not_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GRADOPT_CACHE_DIR", str(tmp_path / "file"))
    disk_store().keep_note(RUNGS, KEY, "default")
    assert disk_store().note(RUNGS, KEY) == ""
    assert disk_store().notes(RUNGS) == {}
    assert disk_store().forget(RUNGS, [KEY]) == 0
