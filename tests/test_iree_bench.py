# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-bench."""

import json

import pytest
from gradopt.tools import bench

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
