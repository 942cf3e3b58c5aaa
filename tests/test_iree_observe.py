# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Looking into functions that IREE compiled: monitors, profiles, NaN checks, memory by owner."""

import json
import pathlib
from typing import Any

import gradopt as go
import numpy as np
import pytest
from gradopt.dialect import trees
from gradopt.errors import NonFiniteError
from gradopt.runtime.measure import _sites
from gradopt.tools import bench

from .test_observe import BACKWARD, FORWARD, Seen, f32, step

pytestmark = pytest.mark.compiler


def test_monitor_with_static_allocation() -> None:
    """B20, C143: as on the host JIT, with static allocation, donation and data tiling: each forward
    and backward op once a call, results those of the plain executable, which is the same one
    afterwards.
    """
    f = go.compile(step, static_alloc=True)
    x, w = f32(8, 16), f32(16, 32)
    want = trees.leaves(f(x, w))
    plain = dict(f._bound)
    kept = []
    for _ in range(2):
        seen = Seen()
        with f.monitor(seen):
            got = trees.leaves(f(x, w))
        assert seen.ops == FORWARD + BACKWARD
        assert len({(op, output) for op, output, _ in seen.entries}) == len(seen.entries)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
        kept.append(seen)
    h = np.tanh(x @ w)
    np.testing.assert_allclose(kept[0].value("tanh"), h, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(kept[0].value("dot_general.vjp"), x.T @ (1 - h**2), atol=1e-4)
    assert dict(f._bound) == plain


def test_first_nan_with_donation_and_static_allocation() -> None:
    """The op is found where the call overwrote its arguments."""

    def update(w: Any, x: Any) -> Any:
        return w - 0.1 * go.grad(lambda w: go.log(w * x).sum())(w)

    f = go.compile(update, donate=0, static_alloc=True)
    with go.debug_nans():
        w = f(go.device_put(np.ones(4, np.float32)), np.ones(4, np.float32))
        with pytest.raises(NonFiniteError, match=r"argument 'x' has already"):
            f(w, np.full(4, np.nan, np.float32))
    with go.debug_infs(), pytest.raises(NonFiniteError, match=r"op 'log\.vjp'.*backward") as caught:
        f(go.device_put(np.zeros(4, np.float32)), np.ones(4, np.float32))
    assert caught.value.op is not None
    assert caught.value.op.where.startswith(__file__)  # type: ignore[attr-defined]


def test_profile_by_op_line_and_dispatch(tmp_path: pathlib.Path) -> None:
    """Dispatches lead back to ops and lines, forward and backward apart, and to what is fused into
    them; the trace has an event for each dispatch of each call.
    """

    def loss(w: Any, x: Any) -> Any:
        with go.name_scope("layer"):
            h = go.relu(x @ w)
        return go.square(h).sum()

    def train(w: Any, x: Any) -> Any:
        value, gradient = go.value_and_grad(loss)(w, x)
        return w - 0.1 * gradient, value

    f = go.compile(train, donate=0, static_alloc=True)
    w, x = go.device_put(f32(64, 32)), f32(16, 64)
    with go.profile(repeat=3) as found:
        w, _ = f(w, x)
        f(w, x)
    (profile,) = found.functions
    assert profile.function == "train"
    assert profile.calls == 3
    assert profile.milliseconds > 0
    names = {name for d in profile.dispatches for name, _ in d.ops}
    assert {"layer.dot_general", "layer.relu", "layer.dot_general.vjp"} <= names
    first = loss.__code__.co_firstlineno
    lines = {r.where: r for r in found.rows("line") if r.phase == "backward"}
    assert f"{__file__}:{first + 2}" in lines
    ops = {r.op: r for r in found.rows("op")}
    assert ops["layer.dot_general"].phase == "forward"
    assert "layer.relu" in ops["layer.dot_general"].with_ops
    assert ops["layer.dot_general.vjp"].phase == "backward"
    update = {"mul", "sub"}  # together with the gradient, or on its own
    assert update & set(ops["layer.dot_general.vjp"].with_ops) or update & names
    assert sum(r.percent for r in found.rows("dispatch")) == pytest.approx(100)
    assert "layer.dot_general.vjp" in str(found)
    assert set(found.to_dict()["functions"][0]["phases"]) == {"forward", "backward"}

    found.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    dispatches = [e for e in events if e["ph"] == "X" and e["cat"] != "call"]
    assert len(dispatches) == 3 * len(profile.dispatches)
    assert all(e["dur"] >= 0 and e["ts"] >= 0 for e in dispatches)
    lanes: dict[int, float] = {}
    for e in sorted(dispatches, key=lambda e: e["ts"]):  # what runs side by side has its own lane
        assert e["ts"] >= lanes.get(e["tid"], 0) - 1e-3
        lanes[e["tid"]] = e["ts"] + e["dur"]


def test_profile_of_all_types_and_of_equal_dispatches() -> None:
    """Arguments of each type are taken; dispatches that share their code are told apart."""

    def f(a: Any, b: Any, c: Any, d: Any, e: Any, s: Any) -> Any:
        for i in range(2):
            with go.name_scope(f"layer{i}"):
                a = go.softmax(a @ a) * s
        return a, b.astype("float32") + 1, c + 1, go.where(d, 1.0, 2.0), e.sum()

    arguments = (
        f32(16, 16),
        np.ones(3, np.float16),
        np.ones((2, 2), np.uint32),
        np.array([True, False]),
        np.ones((0, 3), np.float32),
        np.float32(2),
    )
    with go.profile(repeat=2) as found:
        go.compile(f)(*arguments)
    by_code: dict[str, set[str]] = {}
    for d in found.functions[0].dispatches:
        by_code.setdefault(d.code, set()).add(d.op.split(".")[0])
    assert {"layer0", "layer1"} in by_code.values()


def test_command_buffers_are_found_by_their_dispatches() -> None:
    """Of several command buffers with the same dispatches the first recorded is the first in the
    program; what the program does not know is left out.
    """

    def record(buffer: int, index: int, key: str) -> dict[str, Any]:
        about = {"command_buffer_id": buffer, "command_index": index, "key": key}
        return about | {"record_type": "command_operation", "op": "dispatch"}

    records = [record(7, 0, "a"), record(7, 2, "b"), record(9, 0, "b"), record(8, 0, "b")]
    records.append(record(10, 0, "unknown"))
    commands = [[{"code": "b"}], [{"code": "a"}, {"code": "b"}], [{"code": "b"}]]
    assert _sites(records, commands) == {
        (7, 0): (1, 0),
        (7, 2): (1, 1),
        (8, 0): (0, 0),
        (9, 0): (2, 0),
    }


def test_bench_profile(capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path) -> None:
    """gradopt-bench --profile prints a workload's profile and writes a trace."""
    size = ["--size", "batch=8", "--size", "width=16"]
    trace = tmp_path / "trace.json"
    assert bench.main(["--profile", "mlp", *size, "--json", "-o", str(trace)]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {r["phase"] for r in rows} == {"forward", "backward"}
    assert any("workloads.py:" in r["where"] for r in rows)
    assert json.loads(trace.read_text())["traceEvents"]


def test_memory_by_owner() -> None:
    """B22: parameters, auxiliary states and gradients have the names of arguments, residuals and
    temporaries those of ops, with the line that asks for them.
    """

    def loss(p: Any, x: Any, y: Any) -> Any:
        with go.name_scope("layer"):
            h = go.tanh(x @ p["w"] + p["b"])
        return go.cross_entropy(h @ p["v"], y).mean()

    def train(p: Any, momentum: Any, x: Any, y: Any) -> Any:
        value, gradient = go.value_and_grad(loss)(p, x, y)
        momentum = {n: 0.9 * momentum[n] + gradient[n] for n in p}
        return {n: p[n] - 0.1 * momentum[n] for n in p}, momentum, value

    p = {"w": f32(24, 48), "b": f32(48), "v": f32(48, 10)}
    f = go.compile(train, donate=(0, 1), static_alloc=True)
    report = f.memory_report(p, p, f32(16, 24), np.zeros(16, np.int32))
    owners: dict[str, set[str]] = {}
    for entry in report.plan.entries:
        assert entry.owner
        owners.setdefault(entry.kind, set()).add(entry.owner)
    assert owners["parameter"] == {"p.w", "p.b", "p.v"}
    assert owners["auxiliary"] == {"momentum.w", "momentum.b", "momentum.v"}
    assert owners["gradient"] <= {f"{a}.{n}" for a in ("p", "momentum") for n in p}
    assert owners["input"] == {"x", "y"}
    assert any(o.startswith("layer.") for o in owners["residual"])
    names = {op.split(".")[0] for op in owners["temporary"] | owners["residual"]}
    assert not names & {"p", "momentum", "x"}
    assert report.temporaries
    assert all(t.name and t.where.startswith(f"{__file__}:") for t in report.temporaries)


def test_gradients_that_wait_for_no_cotangent_are_gradients() -> None:
    """B22: the gradient of a parameter that the loss is linear in is no residual."""

    def loss(p: Any, x: Any) -> Any:
        return (go.exp(x @ p["w"]) @ p["v"]).sum()

    def train(p: Any, x: Any) -> Any:
        gradient = go.grad(loss)(p, x)
        return {n: p[n] - 0.1 * gradient[n] for n in p}

    f = go.compile(train, donate=0)
    report = f.memory_report({"w": f32(8, 16), "v": f32(16, 3)}, f32(4, 8))
    owners = {e.owner for e in report.plan.entries if e.kind == "gradient"}
    assert owners == {"p.w", "p.v"}
