# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-bench."""

import json
import sys

import pytest
from gradopt.tools import bench, bench_peak

pytestmark = pytest.mark.compiler


def test_bench(capsys: pytest.CaptureFixture[str]) -> None:
    """One JSON line a workload, with the loss that all peers reach after five steps."""
    assert bench.main(["--workloads", "mlp,recsys", "--seconds", "0"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(r["peer"], r["workload"]) for r in rows] == [("gradopt", "mlp"), ("gradopt", "recsys")]
    of, found = {"peer", "workload", "optimizer", "precision"}, {"median_ms", "min_ms", "first_s"}
    assert set(rows[0]) == of | found | {"loss5"}
    assert abs(rows[0]["loss5"] - 2.07406) < 1e-4
    assert abs(rows[1]["loss5"] - 0.69344) < 1e-4
    with pytest.raises(SystemExit):
        bench.main(["--workloads", "mlq"])
    assert "--workloads expected names out of mlp,cnn" in capsys.readouterr().err


def test_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    """A point is measured beside JAX, with the same loss; one that cannot be made is an error."""
    points = "recsys.rows=50+dim=4+batch=8,gpt.layers=1+dim=6"
    given = ["--sweep", "--points", points, "--seconds", "0.1", "--rounds", "2"]
    assert bench.main([*given, "--jax-python", sys.executable]) == 1
    row, bad = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert row["size"] == {"batch": 8, "fields": 8, "rows": 50, "dim": 4}
    assert row["loss_error"] < 1e-5 and row["ratio"] > 0 and row["memory"] > 0
    assert row["jax"]["loss5"] > 0 and row["first_s"] > 0 and row["steps"] >= 6
    assert bad["point"] == "gpt.layers=1+dim=6" and "reshape" in bad["error"]


def test_warm(capsys: pytest.CaptureFixture[str]) -> None:
    """The parts of a first step add up to it; a warm one asks no compiler."""
    given = ["--warm", "--workloads", "mlp", "--size", "batch=2", "--size", "width=8"]
    assert bench.main(given) == 0
    cold, warm = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    parts = "trace_s", "passes_s", "iree_s", "load_s", "run_s"
    for row in (cold, warm):
        assert abs(sum(row[name] for name in parts) - row["first_s"]) < 0.005
        assert all(row[name] >= 0 for name in parts) and row["process_s"] > row["first_s"]
    assert cold["iree_s"] > 0 and cold["passes"]["gradopt-differentiate"] > 0
    assert (warm["iree_s"], warm["passes"]) == (0, {}) and 0 < cold["own_share"] < 1


def test_peak() -> None:
    speeds = bench_peak.peaks("cpu", 64)
    assert set(speeds) == {"numpy", "iree"} and min(speeds.values()) > 0
