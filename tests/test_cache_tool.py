# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-cache, on entries whose modules are any bytes."""

import json
import os
import pathlib
from typing import Any

import pytest
from gradopt.runtime.cache import versions
from gradopt.runtime.store import Store
from gradopt.tools.cache import main

KEYS = [f"{i}a" * 32 for i in range(4)]


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> Store:
    """Four entries, the first used longest ago, the last of another version."""
    monkeypatch.setenv("GRADOPT_CACHE_DIR", str(tmp_path))
    found = Store(tmp_path, 1 << 20)
    for i, key in enumerate(KEYS):
        made_by = versions() if i < 3 else versions() | {"gradopt": "old"}
        notes = {"argument 'x'": f"tensor<{i}xf32>", "structure": "(*,)"}
        found.save(key, bytes(600), {"versions": made_by, "name": f"step{i}", "notes": notes})
        os.utime(found.path(key), (1e9 + i, 1e9 + i))
    return found


def run(capsys: pytest.CaptureFixture[str], *argv: str, status: int = 0) -> str:
    assert main(list(argv)) == status
    return capsys.readouterr().out


def run_json(capsys: pytest.CaptureFixture[str], *argv: str, status: int = 0) -> Any:
    return json.loads(run(capsys, *argv, "--json", status=status))


def test_list(kept: Store, capsys: pytest.CaptureFixture[str]) -> None:
    said = run(capsys, "list")
    lines = [line.split() for line in said.splitlines()]
    start = next(i for i, line in enumerate(lines) if line[0] == "key")  # behind a title that wraps
    rows = lines[start + 1 :]
    assert [row[1] for row in rows] == ["step3", "step2", "step1", "step0"]
    assert rows[0][0] == KEYS[3][:12]
    assert (rows[0][2], rows[0][-1], rows[1][-1]) == ("tensor<3xf32>", "another", "this")
    (row,) = run_json(capsys, "list", "step1")
    assert (row["key"], row["arguments"]) == (KEYS[1], "tensor<1xf32>")


def test_stat(kept: Store, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = run_json(capsys, "stat")
    assert found["entries"] == 4
    assert found["bytes"] == sum(e.bytes for e in kept.entries())
    assert found["entries_of_other_versions"] == 1
    assert str(kept.folder) in run(capsys, "stat")


def test_prune(kept: Store, capsys: pytest.CaptureFixture[str]) -> None:
    """C131: what was left behind goes, then the entries used longest ago."""
    left_over = kept.modules / f".{KEYS[0]}.vmfb.1-0"
    left_over.write_bytes(b"half")
    assert "removed 0 entries" in run(capsys, "prune")
    assert not left_over.exists()
    size = sum(e.bytes for e in kept.entries() if e.key != KEYS[0])
    assert run(capsys, "prune", "--max-size", str(size)).startswith("removed 1 entries")
    assert {e.key for e in kept.entries()} == set(KEYS[1:])
    assert run_json(capsys, "prune", "--other-versions")[0]["removed"] == 1
    assert {e.key for e in kept.entries()} == set(KEYS[1:3])


def test_verify(kept: Store, capsys: pytest.CaptureFixture[str]) -> None:
    """C131: a changed entry, and one in another's place."""
    assert run(capsys, "verify") == "4 entries, 0 with faults\n"
    data = kept.path(KEYS[0]).read_bytes()
    kept.path(KEYS[0]).write_bytes(data[:-1] + b"x")
    kept.path(KEYS[1]).write_bytes(kept.path(KEYS[2]).read_bytes())
    said = run(capsys, "verify", status=1)
    assert f"{kept.path(KEYS[0])}: is damaged (wrong checksum)" in said
    assert f"{kept.path(KEYS[1])}: is the entry of another key ({KEYS[2]})" in said
    assert "4 entries, 2 with faults" in said
    assert len(run_json(capsys, "verify", "--remove", status=1)) == 2
    assert run(capsys, "verify") == "2 entries, 0 with faults\n"


def test_clear(kept: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "clear").startswith("removed 4 entries")
    assert not list(kept.entries())
    assert run(capsys, "list").startswith("0 entries, 0 bytes")


@pytest.mark.parametrize(
    ("argv", "message"),
    [(["prune", "--max-size", "lots"], "expected a size such as"), ([], "COMMAND"), (["x"], "'x'")],
    ids=str,
)
def test_misuse(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(argv)
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


def test_a_limit_that_is_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GRADOPT_CACHE_SIZE", "lots")
    assert main(["stat"]) == 2
    assert "GRADOPT_CACHE_SIZE expected a size such as 2GiB" in capsys.readouterr().err
