# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-plan-memory: every value stands where the plan says for as long as it is read.

With GRADOPT_PLANS=1000 in the environment the random programs are a campaign.
"""

import json
import os
import pathlib
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from typing import Any

import gradopt as go
import numpy as np
import pytest
from gradopt.dialect import reference
from gradopt.dialect.base import new_context
from gradopt.dialect.control import symbols
from gradopt.dialect.graph import Graph, trace
from gradopt.dialect.mlir import func, ir
from gradopt.errors import PassError
from gradopt.lowering import bufferize, memory_plot, pipeline, plan_memory, schedule, storage
from gradopt.lowering.linalg.registry import BODIES
from gradopt.lowering.liveness import ARENA, Buffer
from gradopt.lowering.memory_report import MemoryReport, human, report
from gradopt.lowering.plan_memory import Plan, plan
from gradopt.tools import bench, opt, workloads
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from .random_programs import Step, arguments, differentiated, programs

COUNT = int(os.environ.get("GRADOPT_PLANS", "12"))
IS_CAMPAIGN = "GRADOPT_PLANS" in os.environ
SETTINGS = settings(
    max_examples=COUNT,
    deadline=None,
    derandomize=not IS_CAMPAIGN,
    phases=[p for p in Phase if p != Phase.shrink or not IS_CAMPAIGN],  # it takes many minutes
    suppress_health_check=list(HealthCheck),
    database=None,
)
RATIOS: list[float] = []


@pytest.fixture(scope="module", autouse=True)
def ratios() -> Any:
    """The share of plans near the bound."""
    yield
    if RATIOS:
        good = sum(r <= 1.02 for r in RATIOS) / len(RATIOS)
        print(
            f"\n{len(RATIOS)} plans, {good:.1%} within 1.02 of the bound, at most {max(RATIOS):.4f}"
        )
        assert good >= 0.95


# --- what a plan has to keep ----------------------------------------------------------------------


def check(found: Plan) -> None:
    """Run a plan's steps on storage that knows whose value it holds: what a step reads has to be
    there, whatever was written since it was made.
    """
    program = found.program
    block = program.function.entry_block
    holds: dict[Buffer, ir.Value] = {}
    arena = [b for b in program.buffers if b.kind in ARENA and b.size]
    for argument in block.arguments:
        if argument in program.buffer_of:
            holds[program.buffer_of[argument]] = argument

    def verify(value: ir.Value, reader: ir.Operation) -> None:
        buffer = program.buffer_of[value]
        if buffer.kind == "constant" or not buffer.size:
            return
        assert storage_of(holds[buffer]) == storage_of(value), f"{reader} reads {value}"

    def write(value: ir.Value) -> None:
        buffer = program.buffer_of[value]
        for other in arena if buffer.kind in ARENA else []:
            end, other_end = buffer.offset + (buffer.size or 0), other.offset + (other.size or 0)
            if buffer.offset < other_end and other.offset < end:
                holds.pop(other, None)
        holds[buffer] = value

    steps = set(program.steps)
    for op in block.operations:
        if op.operation not in steps:
            continue
        for value in stored_reads(op.operation, program.buffer_of):
            verify(value, op.operation)
        for result in op.operation.results:
            if result in program.buffer_of and storage_of(result) == result:
                write(result)
    terminator = list(block.operations)[-1].operation
    for value in terminator.operands:
        verify(value, terminator)
    for buffer in program.buffers:
        assert (buffer.offset >= 0) == (buffer.kind in ARENA and buffer.size is not None)
        assert buffer.offset < 0 or buffer.offset + (buffer.size or 0) <= found.size
    outside = {id(b) for b in program.results}
    assert not outside & {id(b) for b in arena}
    assert found.bound == program.peak() <= found.size


VIEWS = (
    "gradopt.reshape",
    "gradopt.bitcast",
    "gradopt.optimization_barrier",
    *storage.LOWERED_VIEWS,
)


def storage_of(value: ir.Value) -> ir.Value:
    """What a value is a view of."""
    while not isinstance(value.owner, ir.Block) and value.owner.name in VIEWS:
        value = value.owner.operands[0]
    return value


def stored_reads(op: ir.Operation, stored: dict[ir.Value, Buffer]) -> Iterator[ir.Value]:
    """The stored values that an op reads, through those that are computed inside it. Elementwise
    ops read through broadcasts even where these are stored for others.
    """
    pending = [op]
    while pending:
        reader = pending.pop()
        operands: list[ir.Value] = []

        def look(inner: ir.Operation, operands: list[ir.Value] = operands) -> ir.WalkResult:
            operands.extend(inner.operands)
            return ir.WalkResult.ADVANCE

        reader.walk(look)
        destinations = [] if reader.name.startswith("gradopt.") else _unread(reader)
        for value in operands:
            if value in destinations:
                continue
            is_inside = not isinstance(value.owner, ir.Block) and value.owner.parent == op.parent
            is_through = (
                is_inside
                and value.owner.name == "gradopt.broadcast"
                and type(reader.opview) in BODIES
            )
            if value in stored and not is_through:
                yield value
            elif is_inside:
                pending.append(value.owner)


def _unread(op: ir.Operation) -> list[ir.Value]:
    """Destinations whose bytes do not matter: fresh ones."""
    return [
        v
        for v in op.operands
        if not isinstance(v.owner, ir.Block) and v.owner.name == "tensor.empty"
    ]


def function_of(graph: Graph, stage: str) -> func.FuncOp:
    """The graph's function after the passes that lead to a stage."""
    for name, passes in pipeline.STAGES.items():
        pipeline.run(graph.module, passes)
        if name == stage:
            break
    (function,) = symbols(graph.module).values()
    return function


@SETTINGS
@given(programs())
@example(
    [
        Step("diagonal", (1,), 0),
        Step("log_softmax", (0,), 0),
        Step("diagonal", (1,), 0),
        Step("pad_mode", (2,), 0),
        Step("mean", (2,), 0),
    ]
)
def test_random_programs(todo: list[Step]) -> None:
    """B09, C035: plans of random programs with their gradients, before lowering, with and without
    a schedule, and after it.
    """
    graph = trace(differentiated(go, todo), *arguments())
    function = function_of(graph, "simplified")
    with graph.context:
        found = plan(function)
        check(found)
        RATIOS.append(found.size / found.bound if found.bound else 1.0)
        better, _ = plan_memory.scheduled(function)
        check(better)
        assert better.total <= found.total
        graph.module.operation.verify()
    pipeline.run(graph.module, pipeline.STAGES["linalg"])
    with graph.context:
        before = plan(function)
        check(before)
        plan_memory.separate_destinations(function)
        graph.module.operation.verify()
        lowered = plan(function)
        check(lowered)
        RATIOS.append(lowered.size / lowered.bound if lowered.bound else 1.0)


OPS = ("add", "mul", "tanh", "transpose", "reshape", "dot", "sum", "slice", "barrier")


@st.composite
def dags(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    """Functions of square matrices: an op and how far back its operands are."""
    one = st.tuples(st.sampled_from(OPS), st.integers(0, 9), st.integers(0, 9))
    return draw(st.lists(one, min_size=3, max_size=40))


def build(todo: list[tuple[str, int, int]], returned: int = 3) -> Graph:
    def run(x: Any, y: Any) -> Any:
        values = [x, y]
        for name, i, j in todo:
            a, b = values[-1 - i % len(values)], values[-1 - j % len(values)]
            values.append(apply(name, a, b))
        return values[-returned:]

    spec = go.TensorSpec((8, 8))
    return trace(run, spec, spec)


def apply(name: str, a: Any, b: Any) -> Any:
    if name == "dot":
        return go.tanh(a @ b)
    if name == "sum":
        return go.broadcast_to(a.sum(0), (8, 8)) * b
    if name == "slice":
        return go.concat([a[:4], b[4:]])
    if name == "reshape":
        return a.reshape(64).reshape(8, 8)
    if name == "transpose":
        return a.T
    if name == "barrier":
        return go.optimization_barrier(a)
    return go.tanh(a) if name == "tanh" else a + b if name == "add" else a * b


@settings(SETTINGS, max_examples=5 * COUNT)
@given(dags(), st.sets(st.integers(0, 1)), st.integers(1, 4))
def test_random_functions(
    todo: list[tuple[str, int, int]], donated: set[int], returned: int
) -> None:
    """B09: plans of random functions, some arguments of which are donated; a schedule does not
    change what they compute, and its plan is never larger.
    """
    graph = build(todo, returned)
    function = function_of(graph, "graph")
    xs = [np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32) for _ in range(2)]
    want = reference.run(graph.module, graph.name, *xs)
    barriers = barriers_of(function)
    with graph.context:
        bufferize.mark_donated(function, donated)
        found = plan(function)
        check(found)
        RATIOS.append(found.size / found.bound if found.bound else 1.0)
        better, _ = plan_memory.scheduled(function)
        check(better)
        assert better.total <= found.total
    assert barriers_of(function) == barriers
    for a, b in zip(want, reference.run(graph.module, graph.name, *xs), strict=True):
        np.testing.assert_array_equal(a, b)


def barriers_of(function: func.FuncOp) -> list[ir.Operation]:
    ops = [op.operation for op in function.entry_block.operations]
    return [op for op in ops if op.name == "gradopt.optimization_barrier"]


# --- rules ----------------------------------------------------------------------------------------


def planned(text: str, passes: str = "") -> Plan:
    with new_context() as context:
        context.allow_unregistered_dialects = True
        module = ir.Module.parse(text)
        pipeline.run(module, passes)
        found = plan(next(iter(symbols(module).values())))
        check(found)
        found.context = context  # type: ignore[attr-defined]  # stays with what it made
        found.module = module  # type: ignore[attr-defined]
        return found


def traced(fn: Any, *specs: Any, donated: Any = (), stage: str = "graph") -> Plan:
    graph = trace(fn, *specs)
    function = function_of(graph, stage)
    with graph.context:
        bufferize.mark_donated(function, donated)
        found = plan(function)
        check(found)
    return found


M = go.TensorSpec((64, 64))
BYTES = 64 * 64 * 4


def test_a_chain_takes_one_buffer() -> None:
    """B09: a chain of ops that are not fused is computed in two buffers, elementwise ones in
    place.
    """

    def chain(x: Any) -> Any:
        for _ in range(6):
            x = go.tanh(x @ x)
        return x.sum()

    found = traced(chain, M)
    assert found.size == found.bound == 2 * BYTES
    assert len(found.program.in_place) == 6


def test_numbers_ramps_and_broadcasts_take_nothing() -> None:
    """B08, B09: what is computed inside its reader is not stored."""

    def f(x: Any, b: Any) -> Any:
        mask = go.iota((64, 64), 0) >= go.iota((64, 64), 1)
        return go.where(mask, x * 2.0 + b, 0.0).sum()

    assert [b.kind for b in traced(f, M, go.TensorSpec((64,))).program.buffers if b.first >= 0] == [
        "temporary",
        "output",
    ]


def test_inputs_are_not_overwritten() -> None:
    """B09: inputs and results are the caller's; neither lies in the arena."""
    found = traced(lambda x: go.tanh(x), M)
    assert found.size == 0
    assert [b.kind for b in found.program.buffers] == ["input", "output"]
    assert not found.program.in_place


def test_what_is_written_over_by_a_result_lies_in_its_storage() -> None:
    """B09: a product whose sum is returned is made where the sum will stand."""
    found = traced(lambda x, y: (x @ y) + y, M, M)
    assert found.size == 0
    (result,) = found.program.results
    assert len(result.values) == 2


def test_donated_argument() -> None:
    """B09: a donated argument is overwritten by its result where every reader has run."""
    found = traced(lambda w, x: (w - 0.1 * (x @ w), x.sum()), M, M, donated=[0])
    assert found.program.donated == {0: 0}
    assert (
        found.program.results[0]
        is found.program.buffer_of[found.program.function.entry_block.arguments[0]]
    )
    assert found.size == BYTES  # the product cannot be made in the argument's storage


def test_donated_argument_that_is_read_later_stays() -> None:
    """B09, C035: no result is written over an argument that a later op reads; the report says
    so.
    """
    found = traced(lambda w, x: (w - x, (x @ w).sum()), M, M, donated=[0])
    assert not found.program.donated
    assert "reads the argument after" in found.program.kept[0]
    assert any("is not written over" in note for note in report(found).notes)


def test_donated_argument_that_its_result_reads_elsewhere_stays() -> None:
    """B09: w @ x reads all of w for every row, so it cannot be written over it."""
    found = traced(lambda w, x: w @ x, M, M, donated=[0])
    assert "while it makes the result" in found.program.kept[0]
    found = traced(lambda w: w + w.T, M, donated=[0])
    assert found.program.donated == {0: 0}
    assert found.size == BYTES  # the transpose


def test_donated_argument_that_is_returned_stays() -> None:
    """B09: the copy that the caller gets is made last."""
    found = traced(lambda w, x: (w - x, w), M, M, donated=[0])
    assert found.program.kept == {0: "the argument is a result as well"}


def test_gradient_is_added_into_the_callers_buffer() -> None:
    """B09: a gradient with request `add`: the sum is written over the buffer that was given."""
    found = traced(lambda total, x, ct: total + x.T @ ct, M, M, M, donated=[0])
    assert found.program.donated == {0: 0}
    assert [found.program.steps[s].name for s, _, _ in found.program.in_place] == ["gradopt.add"]


def test_one_value_returned_twice() -> None:
    """The second result is a copy in storage of its own."""

    def f(x: Any) -> Any:
        y = go.tanh(x @ x)
        return y, y

    found = traced(f, M)
    first, second = found.program.results
    assert first is not second
    assert found.program.copied == [1]
    assert traced(lambda x: (x, x.reshape(32, 128)), M).program.copied == [0, 1]


def test_views_at_the_edge() -> None:
    """C031: a transpose and a reshape in the end: the result is the transpose's storage."""
    found = traced(lambda x: go.tanh(x).T.reshape(32, 128), M)
    (result,) = found.program.results
    assert [v.owner.name for v in result.values] == ["gradopt.transpose", "gradopt.reshape"]
    gradient = traced(go.grad(lambda x: x.T.reshape(-1).sum()), M, stage="simplified")
    assert gradient.size == 0


def test_two_gradients_in_one_step() -> None:
    """C035: a transposed copy that two gradients read is kept until the second has read it."""

    def step(x: Any, w: Any) -> Any:
        def loss(w: Any) -> Any:
            return ((x.T.reshape(64, 64) @ w) ** 2).sum(1)

        first = go.grad(lambda w: loss(w).sum())(w)
        return first, go.grad(lambda w: 0.5 * loss(w).sum())(w)

    for stage in ("simplified", "linalg"):
        found = traced(step, M, M, stage=stage)
        assert found.size == found.bound > 0


def test_updates_in_place() -> None:
    """B09: a scatter writes over what it updates if that dies, and into a new buffer if not."""

    def f(x: Any, i: Any, keep: bool) -> Any:
        y = x @ x
        z = y.at[i].add(x[:2])
        return (z @ z).sum() + (y.sum() if keep else 0)

    ids = go.TensorSpec((2,), "int32")
    places = [
        [
            found.steps[s].name
            for s, _, _ in found.in_place
            if found.steps[s].name.startswith("gradopt.scatter")
        ]
        for found in (traced(lambda x, i, k=k: f(x, i, k), M, ids).program for k in (False, True))
    ]
    assert places[0] and not places[1]


LINALG = """
#same = affine_map<(i, j) -> (i, j)>
#turned = affine_map<(i, j) -> (j, i)>
func.func @f(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {{
  %e = tensor.empty() : tensor<8x8xf32>
  %a = linalg.generic {{indexing_maps = [#same, #same], iterator_types = ["parallel", "parallel"]}}
    ins(%x : tensor<8x8xf32>) outs(%e : tensor<8x8xf32>) {{
    ^bb0(%in: f32, %out: f32):
      %0 = math.exp %in : f32
      linalg.yield %0 : f32
  }} -> tensor<8x8xf32>
  %b = linalg.generic {{indexing_maps = [{first}, {second}, #same],
                        iterator_types = ["parallel", "parallel"]}}
    ins(%a, %a : tensor<8x8xf32>, tensor<8x8xf32>) outs(%e : tensor<8x8xf32>) {{
    ^bb0(%in: f32, %other: f32, %out: f32):
      %0 = arith.addf %in, %other : f32
      linalg.yield %0 : f32
  }} -> tensor<8x8xf32>
  %y = linalg.transpose ins(%b : tensor<8x8xf32>) outs(%e : tensor<8x8xf32>) permutation = [1, 0]
  return %y : tensor<8x8xf32>
}}
"""


def test_generics_in_place_by_indexing_maps() -> None:
    """B09: a generic is written over an input only if it reads it nowhere else than where it
    writes.
    """
    assert planned(LINALG.format(first="#same", second="#turned")).size == 512
    assert planned(LINALG.format(first="#turned", second="#turned")).size == 512


def test_accumulation_into_what_is_read_as_well() -> None:
    """A product that adds to one of its own operands gets a buffer of its own."""
    text = """
    func.func @f(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
      %e = tensor.empty() : tensor<8x8xf32>
      %a = linalg.transpose ins(%x : tensor<8x8xf32>) outs(%e : tensor<8x8xf32>)
        permutation = [1, 0]
      %b = linalg.matmul ins(%a, %x : tensor<8x8xf32>, tensor<8x8xf32>)
        outs(%a : tensor<8x8xf32>) -> tensor<8x8xf32>
      %y = linalg.transpose ins(%b : tensor<8x8xf32>) outs(%e : tensor<8x8xf32>)
        permutation = [1, 0]
      return %y : tensor<8x8xf32>
    }"""
    found = planned(text)
    assert found.size == 512
    alone = planned(text.replace("ins(%a, %x :", "ins(%x, %x :"))
    assert alone.size == 256


def test_unknown_extents_are_reported() -> None:
    """Buffers of unknown size are listed, not planned."""
    found = traced(lambda x: (go.tanh(x @ x.T) @ x).sum(), go.TensorSpec((None, 4)))
    assert found.program.unknown
    assert all(b.offset == -1 for b in found.program.unknown)
    assert any("known only when the function runs" in n for n in report(found).notes)


def test_branches_are_refused() -> None:
    text = """
    func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
      cf.br ^next
    ^next:
      return %x : tensor<4xf32>
    }"""
    with pytest.raises(PassError, match="to have one block, got 2"):
        planned(text)


# --- owners, report, picture ----------------------------------------------------------------------


def step_report(name: str, scheduled: bool = False, **sizes: Any) -> MemoryReport:
    parameters, batch, loss = getattr(workloads, name)(**sizes)
    graph = trace(workloads.train_step(loss), parameters, *batch, name="step")
    function_of(graph, "simplified")
    text = "{schedule=true}" if scheduled else ""
    pipeline.run(graph.module, f"gradopt-plan-memory{text}")
    with graph.context:
        (found,) = plan_memory.planned(graph.module)
        check(found)
        return report(found)


def test_owners_of_a_training_step() -> None:
    """B22: parameters by argument, residuals and temporaries by op."""
    found = step_report("mlp", batch=8, width=32)
    owners = {(e.kind, e.owner) for e in found.entries}
    assert {
        ("parameter", f"parameters.{n}") for n in ("w0", "b0", "w1", "b1", "w2", "b2")
    } <= owners
    assert {("input", "arg1"), ("input", "arg2")} <= owners
    assert ("residual", "dot_general") in owners
    assert ("temporary", "dot_general_2.vjp") in owners
    assert found.peak == found.bound


def test_owners_after_a_schedule() -> None:
    """B22: a derived op that waits for no cotangent comes first here; residuals are still told
    apart.
    """
    found = step_report("mlp", scheduled=True, batch=128, width=64)
    kinds = {e.owner: e.kind for e in found.entries if e.offset >= 0}
    assert kinds["dot_general"] == kinds["dot_general_1"] == "residual"
    assert kinds["dot_general_2.vjp"] == "temporary"


def test_optimizer_slots_and_gradients() -> None:
    """B22: what the update alone reads is auxiliary; a gradient that several results need is
    stored, under its parameter's name.
    """

    def step(w: Any, m: Any, x: Any) -> Any:
        gradient = go.grad(lambda w: (go.tanh(x @ w) ** 2).sum())(w)
        m = 0.9 * m + gradient
        return w - 0.1 * m + gradient.T, m

    found = report(traced(step, M, M, M, stage="simplified"))
    kinds = {
        e.owner: e.kind for e in found.entries if e.kind in ("parameter", "auxiliary", "input")
    }
    assert kinds == {"w": "parameter", "m": "auxiliary", "x": "input"}
    assert [e.owner for e in found.entries if e.kind == "gradient"] == ["m"]


def test_residuals_without_names() -> None:
    """B22: text without locations: what the loss depends on is the forward."""
    parameters, batch, loss = workloads.mlp(batch=8, width=32)
    graph = trace(workloads.train_step(loss), parameters, *batch, name="step")
    function_of(graph, "simplified")
    named, bare = report(planned(graph.mlir(locations=True))), report(planned(graph.mlir()))
    kinds = [[(e.kind, e.bytes) for e in r.entries] for r in (named, bare)]
    assert kinds[0] == kinds[1]


def test_report_is_data_and_text() -> None:
    """B22: the report as JSON and as a table."""
    found = step_report("mlp", scheduled=True, batch=8, width=32)
    data = json.loads(json.dumps(found.to_dict()))
    assert data["peak"] == found.peak
    assert (
        sum(
            t["at_peak"]
            for n, t in data["totals"].items()
            if n in ("residuals", "temporaries", "gradients")
        )
        <= found.bound
    )
    text = str(found)
    assert "lower bound" in text
    assert "residuals" in text
    assert "schedule: kept" in text


def test_plan_is_deterministic() -> None:
    texts = set()
    for _ in range(2):
        graph = build([("dot", i % 3, i % 5) for i in range(30)])
        function_of(graph, "graph")
        pipeline.run(graph.module, "gradopt-plan-memory{schedule=true}")
        texts.add(graph.mlir())
    assert len(texts) == 1


def test_schedule_lowers_the_peak() -> None:
    """Four values that are made from one product at once and then read one by one: each is made
    right before its reader.
    """

    def f(x: Any) -> Any:
        products = [go.tanh(x @ x * k) for k in range(1, 5)]
        total = x[0].sum()
        for p in products:
            total = total + p.sum()
        return total

    graph = trace(f, M)
    function = function_of(graph, "simplified")
    with graph.context:
        before = plan(function)
        after, note = plan_memory.scheduled(function)
        check(after)
        assert (before.size // BYTES, after.size // BYTES) == (4, 2)
        assert note == f"schedule: reordered, from {before.size} to {after.size} bytes"
        again, note = plan_memory.scheduled(function)
        assert again.size == after.size
        assert "kept" in note


def test_deep_functions() -> None:
    """A chain of 1,500 ops is deeper than Python's stack: no walk is recursive."""
    graph = build([("dot", 0, 1)] * 750)
    function = function_of(graph, "graph")
    with graph.context:
        _, order = schedule.best_order(function)
    assert sorted(order.steps) == list(range(len(order.steps)))


@pytest.mark.parametrize("count", [10, 300])
def test_pictures(count: int) -> None:
    """A rectangle a value, with a tooltip; names only where they fit; the peak and the bound as
    labelled lines.
    """
    graph = build([("dot", i % 4, i % 7) for i in range(count)], returned=1)
    function = function_of(graph, "graph")
    with graph.context:
        found = report(plan(function))
    picture = memory_plot.svg(found)
    root = ElementTree.fromstring(picture)
    kind = "{http://www.w3.org/2000/svg}"
    values = [r for r in root.iter(f"{kind}rect") if r.get("class") == "value"]
    assert len(values) == sum(e.offset >= 0 for e in found.entries)
    for value in values:
        title = value.find(f"{kind}title")
        assert title is not None
        assert "bytes" in (title.text or "")
        assert float(value.get("width", "0")) > 0
    labels = [t.text for t in root.iter(f"{kind}text")]
    assert f"peak {human(found.peak)}" in labels
    assert f"lower bound {human(found.bound)}" in labels
    page = memory_plot.page(found)
    assert page.count('class="value"') == len(values)
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")


def test_ticks_are_round() -> None:
    assert [label for _, label in memory_plot.byte_ticks(40 * 2**20)] == [
        "0 MiB",
        "10 MiB",
        "20 MiB",
        "30 MiB",
        "40 MiB",
    ]
    assert list(memory_plot.step_ticks(26)) == [0, 5, 10, 15, 20, 25]
    assert [human(n) for n in (0, 1023, 1024, 1536, 10**9)] == [
        "0 B",
        "1023 B",
        "1 KiB",
        "1.5 KiB",
        "954 MiB",
    ]


# --- the tools ------------------------------------------------------------------------------------


def test_tools(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """B22: a workload's step as a file, its plan as JSON, its picture; a file that cannot be
    written is said.
    """
    monkeypatch.chdir(tmp_path)
    size = ["--size", "batch=8", "--size", "width=32"]
    assert bench.main(["--emit-mlir", "mlp", *size, "-o", "mlp.mlir"]) == 0
    flags = ["mlp.mlir", "--gradopt-plan-memory", "-o", "planned.mlir"]
    plots = ["--memory-plot", "a.svg", "--memory-plot", "a.html"]
    assert opt.main([*flags, "--memory-report", "--json", *plots]) == 0
    (data,) = json.loads(capsys.readouterr().err)
    assert data["function"] == "step"
    assert data["totals"]["parameters"]["buffers"] == 6
    assert f"size = {data['peak']} : i64" in pathlib.Path("planned.mlir").read_text()
    assert pathlib.Path("a.svg").read_text().startswith("<svg")
    assert pathlib.Path("a.html").read_text().startswith("<!doctype html>")
    assert opt.main([*flags, "--memory-plot", "missing/a.svg"]) == opt.MISUSED
    assert "cannot write 'missing/a.svg'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        bench.main(["--emit-mlir", "mlp", "--size", "height=3"])
    assert "--size" in capsys.readouterr().err
