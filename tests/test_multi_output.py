# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-multi-output-fusion: what is joined computes the same, and only what may be is joined."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import gradopt as go
import numpy as np
import pytest
from gradopt.dialect.control import symbols
from gradopt.dialect.graph import trace
from gradopt.dialect.mlir import ir
from gradopt.lowering import memref, multi_output, pipeline
from gradopt.lowering.linalg import build
from gradopt.lowering.passes import operations
from gradopt.lowering.target import target
from hypothesis import HealthCheck, Phase, given, settings

from .helpers import run_reference, spec
from .random_programs import Step, arguments, differentiated, programs
from .test_jit import run_plan

FUSED = pipeline.FUSION
LINALG = ",".join(list(filter(None, pipeline.JIT_STAGES.values()))[:-1]).replace(
    "convert-gradopt-to-linalg", f"convert-gradopt-to-linalg,{FUSED}"
)


def linalg(fn: Callable[..., Any], *arrays: np.ndarray) -> ir.Module:
    """A function as linalg, before anything is joined."""
    graph = trace(fn, *map(spec, arrays), name="f")
    for stage in ("differentiated", "simplified"):
        pipeline.run(graph.module, pipeline.STAGES[stage])
    pipeline.run(graph.module, "convert-gradopt-to-linalg")
    return graph.module


def generics(module: ir.Module) -> list[int]:
    """How many results each elementwise generic of a module has."""
    with module.context:
        ops = [o.operation for o in symbols(module)["f"].entry_block.operations]
        return [len(op.results) for op in ops if build.is_elementwise(op)]


def joined(fn: Callable[..., Any], *arrays: np.ndarray, passes: str = FUSED) -> list[int]:
    """The generics with several results that are made of a function."""
    module = linalg(fn, *arrays)
    pipeline.run(module, passes)
    with module.context:
        module.operation.verify()
    return [n for n in generics(module) if n > 1]


def f32(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def cell(x: Any, h: Any, c: Any, w: Any) -> Any:
    """Three steps of an LSTM."""
    for _ in range(3):
        i, f, g, o = go.split((x + h) @ w, 4, axis=-1)
        c = go.sigmoid(f) * c + go.sigmoid(i) * go.tanh(g)
        h = go.sigmoid(o) * go.tanh(c)
    return (h * h).sum() + c.sum()


def gates(x: Any, h: Any, c: Any, w: Any) -> Any:
    return go.value_and_grad(cell, argnums=(0, 1, 2, 3))(x, h, c, w)


GATES = f32(4, 8), f32(4, 8), f32(4, 8), f32(8, 32)


def test_gates_are_one_dispatch() -> None:
    """Those of a step of which the backward reads each, and what the backward makes of them."""
    module = linalg(gates, *GATES)
    before = len(generics(module))
    pipeline.run(module, FUSED)
    found = generics(module)
    assert sum(n > 4 for n in found) >= 4
    assert len(found) <= before - 16


def test_joined_gates_compute_the_same() -> None:
    arrays = [a.astype(np.float64) for a in GATES]
    want = run_reference(gates, *arrays)
    for a, b in zip(run(gates, *arrays, want=want), want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


def run(fn: Callable[..., Any], *arrays: np.ndarray, want: list[np.ndarray]) -> list[np.ndarray]:
    """What a function gives on the host after the pass."""
    graph = trace(fn, *map(spec, arrays), name="f")
    pipeline.run(graph.module, LINALG)
    with graph.context:
        plan = memref.fresh_plan(symbols(graph.module)["f"])
    return run_plan(graph.module, plan, want, *arrays)


@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    phases=[p for p in Phase if p != Phase.shrink],
    suppress_health_check=list(HealthCheck),
    database=None,
)
@given(programs())
def test_random_programs_with_all_joined_that_may_be(todo: list[Step]) -> None:
    """Values and gradients, with groups that save nothing joined too."""
    xs = arguments()
    fn = differentiated(go, todo)
    want = run_reference(fn, *xs)
    with mock.patch.object(multi_output, "GAIN", 0):
        found = run(fn, *xs, want=want)
    for a, b in zip(found, want, strict=True):
        size = max(1.0, float(np.max(np.abs(b), initial=0)))
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11 * size)


def three(x: Any) -> tuple[Any, Any, Any]:
    """Three results of one intermediate value, each read twice."""
    y = go.cumsum(x, 0)
    return go.exp(y), go.tanh(y), go.sin(y)


def used(*values: Any) -> Any:
    """Something that reads values twice, and not element by element."""
    return sum(v.sum() + go.cumsum(v, 0)[0, 0] for v in values)


def test_readers_of_one_value_are_joined() -> None:
    assert joined(lambda x: used(*three(x)), f32(4, 8)) == [3]


def test_results_of_the_function_are_not_joined() -> None:
    """Their storage may be that of an argument that others read at other positions."""
    assert joined(three, f32(4, 8)) == []
    assert joined(lambda x: [v.reshape(-1) for v in three(x)], f32(4, 8)) == []


def test_large_values_are_left_to_iree() -> None:
    def fn(x: Any) -> Any:
        return used(*three(x))

    assert joined(fn, f32(4, 8), passes=f"{FUSED}{{max-elements=31}}") == []
    assert joined(fn, f32(4, 8), passes=f"{FUSED}{{max-elements=32}}") == [3]


def test_arguments_connect_nothing() -> None:
    """An op of the backward that reads an argument stays there."""
    assert joined(lambda x: used(go.exp(x), go.tanh(x), go.sin(x)), f32(4, 8)) == []


def test_what_lies_between_keeps_apart() -> None:
    """A product, another extent, and the same value read the other way round."""

    def product(x: Any) -> Any:
        y = go.cumsum(x, 0)
        a = go.exp(y)
        return used(a, go.tanh(y) + a @ a)

    def transposed(x: Any) -> Any:
        y = go.cumsum(x, 0)
        a = go.exp(y)
        return used(a, go.tanh(y) + a.T)

    for fn in (product, transposed):
        with mock.patch.object(multi_output, "GAIN", 0):
            assert joined(fn, f32(8, 8)) == []
            x = f32(8, 8).astype(np.float64)
            want = run_reference(fn, x)
            np.testing.assert_allclose(run(fn, x, want=want)[0], want[0], rtol=1e-12)


def test_values_behind_several_barriers() -> None:
    """Barriers of what is joined go, wherever they stand."""
    bar = '"iree_tensor_ext.compute_barrier.start"'
    kind = "(tensor<4x8xf32>) -> tensor<4x8xf32>"
    text = str(linalg(lambda x: used(*three(x)), f32(4, 8)))
    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if "math.exp" in line)
    end = next(i for i in range(at, len(lines)) if lines[i].strip().startswith("}"))
    start = max(i for i in range(at) if "linalg.generic" in lines[i])
    name = lines[start].split()[0]
    rest = [line.replace(f"{name} ", "%behind ").replace(f"{name})", "%behind)") for line in lines]
    barriers = [f"%before = {bar}({name}) : {kind}", f"%behind = {bar}(%before) : {kind}"]
    context = ir.Context()
    context.allow_unregistered_dialects = True
    with context:
        module = ir.Module.parse("\n".join([*lines[: end + 1], *barriers, *rest[end + 1 :]]))
    pipeline.run(module, FUSED)
    with context:
        module.operation.verify()
    assert [n for n in generics(module) if n > 1] == [3]


def test_a_dispatch_has_so_many_tensors() -> None:
    def fn(x: Any) -> Any:
        y = go.cumsum(x, 0)
        return used(*(go.exp(y * k) for k in range(2, 42)))

    found = joined(fn, f32(4, 8))
    assert sum(found) == 40 and max(found) == multi_output.OPERANDS - 1


def test_bodies_of_loops() -> None:
    """Of a loop that stays one, the steps of a trip; what the next trip reads stays as it is."""
    _, h, c, w = GATES

    def fn(h: Any, c: Any, w: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            h, c = carry
            i, f, g, o = go.split(h @ w, 4, axis=-1)
            c = go.sigmoid(f) * c + go.sigmoid(i) * go.tanh(g)
            h = go.sigmoid(o) * go.tanh(c)
            return (h, c), (c * c + c, h)

        return go.scan(step, (h, c), None, length=70)[1]

    module = linalg(fn, h, c, w)
    assert "scf.for" in str(module)
    pipeline.run(module, FUSED)
    with module.context:
        module.operation.verify()
    with module.context:
        loops = [o for o in operations(symbols(module)["f"]) if o.name == "scf.for"]
        inner = [o.operation for loop in loops for o in loop.regions[0].blocks[0].operations]
        assert sum(len(o.results) > 1 for o in inner if build.is_elementwise(o)) >= 14


def test_the_pass_is_for_cpus() -> None:
    for name, has in (("cpu", True), ("cpu:aarch64", True), ("cuda", False), ("vulkan", False)):
        assert (FUSED in pipeline.stages(target(name))["linalg"]) == has


@pytest.mark.parametrize("count", [2, 4, 5])
@pytest.mark.parametrize("axis", [1, 2])
def test_few_small_parts_are_chosen_from(count: int, axis: int) -> None:
    """Joined along inner axes: one dispatch that chooses, not a copy of each."""

    def fn(*xs: Any) -> Any:
        return go.concat(xs, axis)

    arrays = [np.full((2, 3, 4), k, np.float64) for k in range(count)]
    module = linalg(fn, *arrays)
    assert ("tensor.insert_slice" in str(module)) == (count > 4)
    want = run_reference(fn, *arrays)
    np.testing.assert_array_equal(run(fn, *arrays, want=want)[0], want[0])
