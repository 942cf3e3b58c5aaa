# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-bench --sweep, --from and --gemm-peak, as far as they need no compiler: points, the
processes of both sides, rows, tables, charts, and that the steps in JAX are those of gradopt.
"""

import contextlib
import json
import os
import pathlib
import re
import sys
import types
import xml.etree.ElementTree as ET
from typing import Any

import numpy as np
import pytest
from gradopt.dialect.graph import trace
from gradopt.tools import (
    bench,
    bench_chart,
    bench_peak,
    bench_points,
    bench_step,
    bench_sweep,
    bench_tables,
    bench_worker,
    workloads,
)
from gradopt.tools.bench_points import Point, parse
from gradopt.tools.bench_sweep import PointError, Side, Sweep

TINY = {
    "mlp": {"batch": 3, "width": 8, "depth": 3},
    "cnn": {"batch": 1},
    "resnet": {"batch": 2, "width": 4},
    "gpt": {"batch": 2, "tokens": 4, "dim": 8, "heads": 2, "layers": 2, "vocab": 16},
    "lstm": {"batch": 2, "steps": 3, "width": 4, "hidden": 4},
    "recsys": {"batch": 4, "fields": 2, "rows": 10, "dim": 4},
}

# --- points ---------------------------------------------------------------------------------------


def test_points() -> None:
    first, second, third = parse("mlp.batch=1, gpt.layers=2+dim=64,cnn,cnn")
    assert first.size == {"batch": 1, "width": 1024, "depth": 2}
    assert (second.size["layers"], second.size["dim"], second.size["tokens"]) == (2, 64, 128)
    assert [str(p) for p in (first, second, third)] == [
        "mlp.batch=1",
        "gpt.layers=2+dim=64",
        "cnn",
    ]
    assert bench_points.series_of("mlp", first.size) == "batch"
    assert bench_points.series_of("gpt", second.size) is None
    assert bench_points.series_of("cnn", third.size) == ""


def test_every_point() -> None:
    """The default points exist, are 35 to 50, and cover every workload."""
    every = bench_points.every_point()
    assert parse(",".join(map(str, every))) == every
    assert 35 <= len(every) <= 50
    assert {p.workload for p in every} == set(workloads.WORKLOADS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mlq.batch=1", "expected workloads out of mlp, cnn, .*, got 'mlq.batch=1'"),
        ("mlp.height=1", "expected sizes of mlp out of batch, width, depth, got 'mlp.height=1'"),
        ("mlp.batch=a", "expected a whole number for batch, got 'mlp.batch=a'"),
        ("mlp.batch", "expected a whole number for batch, got 'mlp.batch'"),
        ("mlp.batch=1+batch=2", "expected each size once, got 'mlp.batch=1"),
        ("", "expected workloads out of"),
    ],
)
def test_points_reject(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(text)


# --- the steps in JAX -----------------------------------------------------------------------------


@pytest.mark.parametrize("workload", TINY)
def test_jax_twin(workload: str, tmp_path: pathlib.Path) -> None:
    """Five training steps in JAX end with the loss that gradopt's NumPy reference ends with."""
    jax_workloads = pytest.importorskip("gradopt.tools.jax_workloads")
    point = Point(workload, tuple(TINY[workload].items()))
    request = {"workload": workload, "sizes": point.size, "target": "reference"}
    request["arrays"] = bench_sweep.save_arrays(point, tmp_path)
    _, check, facts = bench_step.prepare(request)
    _, check_jax, facts_jax = jax_workloads.prepare(request)
    np.testing.assert_allclose(check(), check_jax(), rtol=1e-5)
    assert facts() == {"memory": None}
    assert facts_jax()["temp_bytes"] > 0


@pytest.mark.parametrize("stride", [1, 2])
def test_jax_channels_first(stride: int) -> None:
    """The layers of the twins give the same with channels behind the batch."""
    layout = pytest.importorskip("gradopt.tools.jax_workloads").Layout
    last, first = layout({"channels_last": 1}), layout({"channels_last": 0})
    rng = np.random.default_rng(0)
    x, kernel = rng.standard_normal((2, 6, 6, 3)), rng.standard_normal((3, 3, 3, 4))
    gamma, beta = rng.standard_normal((2, 4))
    expected = last.batch_norm(last.conv(x, kernel, stride), gamma, beta)
    got = first.conv(x.transpose(0, 3, 1, 2), kernel.transpose(3, 2, 0, 1), stride)
    got = np.asarray(first.batch_norm(got, gamma, beta))
    np.testing.assert_allclose(got.transpose(0, 2, 3, 1), expected, rtol=1e-5, atol=1e-6)


def test_depth_keeps_the_standard() -> None:
    """The weights of the standard net do not depend on how deeper ones are drawn."""
    p, (x, _), _ = workloads.mlp()
    rng = np.random.default_rng(0)
    for i, shape in enumerate([(784, 1024), (1024, 1024), (1024, 10)]):
        np.testing.assert_array_equal(
            p[f"w{i}"], (rng.standard_normal(shape) * 0.05).astype(np.float32)
        )
    np.testing.assert_array_equal(x, rng.standard_normal((128, 784)).astype(np.float32))


# --- processes and rows ---------------------------------------------------------------------------

PROVIDER = """
import os, time
def prepare(request):
    print("this goes to stderr", flush=True)
    if request["workload"] == "raises":
        raise ValueError("no such thing")
    if request["workload"] == "ends":
        os._exit(3)
    def step():
        if request["workload"] == "hangs":
            time.sleep(60)
        if request["workload"] == "breaks" and os.environ.get("BREAKS"):
            raise RuntimeError("broken")
    return step, lambda: float(os.environ.get("LOSS", "2.0")), lambda: {"memory": 64}
"""


def side(folder: pathlib.Path, name: str = "gradopt", **environment: str) -> Side:
    (folder / "provider.py").write_text(PROVIDER)
    command = [sys.executable, "-P", bench_worker.__file__, str(folder / "provider.py")]
    return Side(name, command, os.environ | environment)


def test_side(tmp_path: pathlib.Path) -> None:
    """A side answers, goes on after an error, and is a PointError when it ends or hangs."""
    with contextlib.closing(side(tmp_path)) as timed:
        with pytest.raises(PointError, match="gradopt: ValueError: no such thing"):
            timed.ask({"workload": "raises"}, 30)
        first = timed.ask({"workload": "runs"}, 30)
        assert (first["loss5"], first["memory"]) == (2.0, 64)
        assert len(timed.ask({"seconds": 0}, 30)["times_ms"]) == bench_worker.LEAST_STEPS
        with pytest.raises(PointError, match="the process ended with code 3: this goes to stderr"):
            timed.ask({"workload": "ends"}, 30)
    with (
        contextlib.closing(side(tmp_path)) as timed,
        pytest.raises(PointError, match=r"no answer in 0\.1 s"),
    ):
        timed.ask({"workload": "hangs"}, 0.1)


def swept(
    monkeypatch: pytest.MonkeyPatch, folder: pathlib.Path, workload: str, **of_jax: str
) -> dict[str, Any]:
    """The row of a point whose sides run PROVIDER."""

    def made(self: Sweep, name: str, _: str, stack: contextlib.ExitStack) -> Side:
        return stack.enter_context(
            contextlib.closing(side(folder, name, **(of_jax if name == "jax" else {})))
        )

    monkeypatch.setattr(Sweep, "_side", made)
    monkeypatch.setattr(bench_sweep, "save_arrays", lambda *_: "")
    point: Any = types.SimpleNamespace(workload=workload, size={"batch": 1})
    return Sweep(seconds=0, rounds=2, limit=30, jax="python").row(point)


def test_row(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    row = swept(monkeypatch, tmp_path, "runs")
    assert {"workload", "point", "size", "first_s", "loss5", "memory", "median_ms", "min_ms"} < set(
        row
    )
    assert row["steps"] == row["jax"]["steps"] == 2 * bench_worker.LEAST_STEPS
    assert row["loss_error"] == 0 and row["ratio"] > 0 and bench_sweep.is_good(row)


def test_row_with_other_loss(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """Losses that differ, or are no numbers, make a row that is not good."""
    row = swept(monkeypatch, tmp_path, "runs", LOSS="2.1")
    assert abs(row["loss_error"] - 0.1 / 2.1) < 1e-9
    assert not bench_sweep.is_good(row)
    assert "losses apart by 4.8e-02" in bench_tables.line(row)
    assert not bench_sweep.is_good({"loss_error": float("nan")})


def test_row_that_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """What gradopt cannot do is an error; what JAX cannot do leaves gradopt's figures."""
    row = swept(monkeypatch, tmp_path, "raises")
    assert row["error"] == "gradopt: ValueError: no such thing" and "median_ms" not in row
    row = swept(monkeypatch, tmp_path, "breaks", BREAKS="1")
    assert row["jax"] == {"error": "jax: RuntimeError: broken"} and row["median_ms"] >= 0
    assert not bench_sweep.is_good(row)


# --- rows to tables and charts --------------------------------------------------------------------


def fake(point: str, ms: float, jax_ms: float | None = None) -> dict[str, Any]:
    made = parse(point)[0]
    row: dict[str, Any] = {"workload": made.workload, "point": point, "size": made.size}
    row |= {"median_ms": ms, "min_ms": ms, "first_s": 2.0, "memory": 2**20, "loss5": 2.0}
    if jax_ms is not None:
        jax = {"median_ms": jax_ms, "min_ms": jax_ms, "first_s": 1.0, "temp_bytes": 2**21}
        row |= {"jax": jax | {"loss5": 2.0}, "ratio": jax_ms / ms, "loss_error": 0.0}
    return row


ROWS = [
    fake("mlp", 7, 7),
    fake("mlp.batch=1", 1, 4),
    fake("mlp.batch=1024", 50, 25),
    fake("mlp.width=64", 0.5),
    fake("gpt.layers=2+dim=64", 9, 9),
    {"workload": "cnn", "point": "cnn", "size": {"batch": 32}, "error": "gradopt: a | b"},
]


def test_series() -> None:
    """Points that differ in one size, with the standard one, by size."""
    found = [
        (s.workload, s.name, [r["size"][s.name] for r in s.rows]) for s in bench_chart.series(ROWS)
    ]
    assert found == [("mlp", "batch", [1, 128, 1024]), ("mlp", "width", [64, 1024])]


def test_chart() -> None:
    """The SVG is well formed, has a line for each side and panel, and nothing outside of it."""
    root = ET.fromstring(bench_chart.svg(ROWS))
    name = "{http://www.w3.org/2000/svg}"
    lines = [p for p in root.iter(f"{name}path") if p.get("stroke-width") == "2"]
    colours = [p.get("stroke") for p in lines]
    assert colours.count(bench_chart.COLOURS["gradopt"]) == 6
    assert colours.count(bench_chart.COLOURS["JAX"]) == 3  # width has one point of JAX
    texts = [t.text for t in root.iter(f"{name}text")]
    assert {"mlp", "batch", "width", "ms a step", "temporaries", "gradopt", "JAX"} <= set(texts)
    for circle in root.iter(f"{name}circle"):
        assert 0 < float(circle.get("cx", "")) < bench_chart.WIDTH
        assert 0 < float(circle.get("cy", "")) < float(root.get("height", ""))


@pytest.mark.parametrize("values", [(1, 1024), (3.1, 3.2), (5, 5), (1e-3, 1e9), (900, 1100)])
def test_axis(values: tuple[float, float]) -> None:
    """Values lie on the axis in their order; there are one to five ticks."""
    axis = bench_chart.Axis(values, 10, 110)
    assert 10 < axis(values[0]) <= axis(values[1]) < 110
    assert len(axis.ticks()) <= 5
    assert all(10 <= axis(tick) <= 110 for tick in axis.ticks())


def test_command_from(capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path) -> None:
    """--from reads rows, the last of each point, and writes the chart and tables."""
    file, chart = tmp_path / "sweep.json", tmp_path / "chart.html"
    file.write_text("".join(json.dumps(row) + "\n" for row in [fake("mlp", 9), *ROWS]))
    given = ["--from", str(file), "--chart", str(chart), "--markdown"]
    assert bench.main(given) == 1  # a row is an error
    text = capsys.readouterr().out
    assert "| mlp.batch=1 | 1 | 4 | 4.00 | 2 | 1 | 1.0 | 2.0 |" in text
    assert "| cnn | gradopt: a / b |" in text
    mean = "6 points; geometric mean of the ratios 1.19; least 0.50 (mlp.batch=1024); 1 below 1"
    assert f"{mean}; failed: cnn." in text
    assert chart.read_text().startswith("<!doctype html>")
    assert bench.main(["--from", str(file)]) == 1
    assert [json.loads(x) for x in capsys.readouterr().out.splitlines()] == ROWS


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--sweep", "--points", "mlq"], "--points: expected workloads out of mlp"),
        (["--sweep", "--rounds", "0"], "--rounds expected a number from 1 on, got 0"),
        (["--sweep", "--resume"], "--resume expected -o FILE"),
        (["--sweep", "--jax-python", "/no/python"], "--jax-python expected a Python that can"),
        (["--sweep", "--chart", "a.png"], r"--chart expected a name that ends in .svg or .html"),
        (["--from", "/no/file"], "--from: .*No such file"),
        (["--from", __file__], r"test_sweep.py:1 expected a row of gradopt-bench --sweep, got '# "),
        (["--warm", "--workloads", "mlq"], "--workloads, --size: expected workloads out of"),
        (["--warm", "--size", "height=1"], "--workloads, --size: expected sizes of mlp"),
    ],
)
def test_command_reject(given: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main(given)
    assert re.search(message, capsys.readouterr().err)


def test_resume(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """With --resume good rows stay in the file, and only the other points are measured."""
    file = tmp_path / "rows.json"
    bad = fake("mlp.batch=1024", 1) | {"error": "gradopt: no answer"}
    file.write_text("".join(json.dumps(row) + "\n" for row in [fake("mlp.batch=1", 3), bad]))
    measured = []

    def row(self: Sweep, point: Point) -> dict[str, Any]:
        measured.append(str(point))
        return fake(str(point), 5)

    monkeypatch.setattr(Sweep, "row", row)
    points = "mlp.batch=1024,mlp.batch=1,mlp.width=64"
    given = ["--sweep", "--points", points, "--against", "none", "-o", str(file)]
    assert bench.main([*given, "--resume"]) == 0
    assert measured == ["mlp.batch=1024", "mlp.width=64"]
    found = {r["point"]: r["median_ms"] for r in bench_sweep.read_rows(str(file))}
    assert found == {"mlp.batch=1": 3, "mlp.batch=1024": 5, "mlp.width=64": 5}
    assert bench.main(given) == 0
    assert len(measured) == 5 and len(file.read_text().splitlines()) == 3


# --- the share of the peak ------------------------------------------------------------------------


def test_flops() -> None:
    """A net's products: each weight with the batch, once forward, and for both gradients; the
    gradient by the input is not computed.
    """
    batch, width = 8, 32
    products = 784 * width + width * width + width * 10
    expected = 6 * batch * products - 2 * batch * 784 * width
    assert bench_peak.flops("mlp", {"batch": batch, "width": width}) == expected


def test_flops_of_convolutions() -> None:
    """Convolutions count, too: here kernels of 3 x 3 on 32 x 32, 16 x 16 and 8 x 8 results."""
    forward = 2 * (32 * 32 * 9 * 3 * 32 + 16 * 16 * 9 * 32 * 64 + 8 * 8 * 9 * 64 * 128 + 128 * 10)
    start, batch, loss = workloads.cnn(batch=1)
    assert bench_peak.flops_of(trace(loss, start, *batch, name="loss")) == forward


def test_share() -> None:
    row = bench_peak.with_share({"gflop": 2.0, "min_ms": 10.0, "median_ms": 20.0}, peak=250.0)
    assert (row["gflops"], row["share"], row["share_median"]) == (200.0, 0.8, 0.4)
