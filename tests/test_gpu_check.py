# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gpu_check, the script for the day that a GPU is there, and the processes that it works with."""

import os
import time
import types

import pytest
from gradopt.lowering.target import target
from gradopt.runtime import present
from gradopt.tools import check, gpu_check
from gradopt.tools.check_rows import Outcome
from gradopt.tools.crew import Crew, Lost


def test_crew_replaces_what_hangs_or_ends() -> None:
    """A task that does not end is ended, one that ends its process, or raises, gives no result; the
    others do.
    """
    tasks = [
        ("hangs", time.sleep, (60,)),
        ("ends", os._exit, (3,)),
        ("raises", int, ("x",)),
        ("works", int, ("7",)),
    ]
    begin = time.monotonic()
    with Crew(2, int) as crew:
        found = dict(crew.run(tasks, limit=8))
    assert time.monotonic() - begin < 50
    assert found["works"] == 7
    assert found["hangs"] == Lost("no result in time")
    assert found["ends"] == Lost("the process that ran it ended (it crashed) with code 3")
    assert "invalid literal" in found["raises"].reason


def test_crew_keeps_a_deadline() -> None:
    """At the deadline what runs is lost and what waits is left out."""
    with Crew(1, int) as crew:
        tasks = [(i, time.sleep, (60,)) for i in range(3)]
        found = dict(crew.run(tasks, deadline=time.monotonic() + 1))
    assert found == {0: Lost("no result in time")}


def test_what_tells_most_comes_first() -> None:
    rows = gpu_check.sample_first(None)
    count = gpu_check.sample_size()
    sample = rows[:count]
    assert {r.dtype for r in sample} <= {"float32", "fixed"}
    assert len({(r.case.op, r.what) for r in sample}) == count
    assert "float64" not in {r.dtype for r in rows[: sum(r.dtype == "float32" for r in rows)]}
    assert len(rows) == len(check._chosen(check._parser().parse_args([])))


def test_rows_on_a_target() -> None:
    """Rows are tried in order within the time, and the table tells what is right."""
    options = check._parser().parse_args(["--ops", "tanh,exp", "--dtypes", "float32,float64"])
    known, found = gpu_check.run(target("jit"), 120, 1, [], check._chosen, options, first=2)
    assert sorted(found.rows) == list(range(len(known))) == list(range(8))
    table, right = gpu_check.lines(target("jit"), known, found, [])
    assert right and [line[:5] for line in table] == [
        ["rows in float32", 4, 4, 0, 0],
        ["rows in float64", 4, 4, 0, 0],
    ]


def test_what_is_wrong_is_told() -> None:
    """A row, a loss, and a workload that fails; what there was no time for is no fault."""
    known = check._chosen(check._parser().parse_args(["--ops", "tanh", "--dtypes", "float32"]))
    where = types.SimpleNamespace(name="cuda")
    found = gpu_check.Findings()
    table, right = gpu_check.lines(where, known, found, ["mlp"])  # type: ignore[arg-type]
    assert right and [line[4] for line in table] == [2, 1]
    found.rows[0] = Outcome(1e6, "result 0 at [0] is 1, not 2", is_compiled=True)
    found.losses = {("mlp", "cuda"): 2.5, ("mlp", "cpu"): 2.4}
    table, right = gpu_check.lines(where, known, found, ["mlp"])  # type: ignore[arg-type]
    assert not right and table[0][2] == table[1][2] == 0
    (fault,) = gpu_check.faults(known, found, where)  # type: ignore[arg-type]
    assert fault.startswith("tanh_float32: 1000000.0 ulp, result 0")
    found.losses["mlp", "cuda"] = Lost("the process that ran it ended")
    table, right = gpu_check.lines(where, known, found, ["mlp"])  # type: ignore[arg-type]
    assert not right and table[1][6] == "the process that ran it ended"


def test_no_device(capsys: pytest.CaptureFixture[str]) -> None:
    if present.devices()["cuda"]:
        pytest.skip("there is a CUDA device here")
    assert gpu_check.main(["--target", "cuda"]) == 3
    assert "nothing was run: CUDA driver library" in capsys.readouterr().err
    assert gpu_check.main(["--target", "abacus"]) == 2
    assert gpu_check.main(["--target", "cpu", "--workloads", "chess"]) == 2
    assert "--workloads expected names out of mlp" in capsys.readouterr().err
