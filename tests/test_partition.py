# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-partition: forward and backward give what the joint function does, with the fewest bytes
between them; checkpoint policies; what go.residuals says.
"""

import itertools
import os
from collections.abc import Callable
from typing import Any

import gradopt as go
import numpy as np
import pytest
from gradopt.dialect import checkpoint_policies as policies
from gradopt.dialect import reference, trees
from gradopt.dialect.base import new_context
from gradopt.dialect.control import symbols
from gradopt.dialect.graph import Graph, trace
from gradopt.dialect.mlir import ir
from gradopt.dialect.types import TensorSpec, is_float
from gradopt.errors import GradientError, PassError
from gradopt.lowering import pipeline
from gradopt.lowering.cut import min_cut
from gradopt.lowering.partition import Joint, cotangent_positions, split
from hypothesis import HealthCheck, given, settings

from .helpers import run_reference, spec
from .random_programs import arguments, program, programs

GRAPHS = int(os.environ.get("GRADOPT_REMAT_GRAPHS", "8"))
SIMPLE = pipeline.STAGES["simplified"]


def joint_of(fn: Callable[..., Any], *specs: Any) -> tuple[Graph, Joint]:
    """The joint function of the gradients of `fn`, simplified. The graph holds the module."""

    def both(*primals: Any) -> Any:
        values, pull = go.vjp(fn, *primals)
        leaves, structure = trees.flatten(values)
        ones = [go.ones_like(v) if is_float(v.dtype) else None for v in leaves]
        return pull(trees.unflatten(structure, ones))

    graph = trace(both, *specs, name="both")
    pipeline.run(graph.module, f"gradopt-differentiate,gradopt-inline,{SIMPLE}")
    functions = symbols(graph.module).values()
    return graph, Joint(next(f for f in functions if cotangent_positions(f)))


def run_split(graph: Graph, joint: Joint, *arrays: np.ndarray) -> tuple[list[Any], list[Any]]:
    """(results and gradients of the joint function, the same by forward and backward); the last
    arrays are the cotangents.
    """
    with graph.context:
        forward, backward = split(graph.module, joint, set(symbols(graph.module)))
        graph.module.operation.verify()
    count = len(joint.inputs)
    whole = reference.run(graph.module, joint.function.name.value, *arrays)
    made = list(reference.run(graph.module, forward.name.value, *arrays[:count]))
    known = dict(zip(joint.inputs, arrays, strict=False))
    known |= dict(zip([*joint.results, *joint.residuals], made, strict=True))
    given_ = [known[v] for v in joint.by_reference + joint.residuals]
    found = reference.run(graph.module, backward.name.value, *given_, *arrays[count:])
    return list(whole), [*made[: joint.count], *found]


def test_inputs_are_kept_by_reference() -> None:
    """C050, C053, B08: z = x * w keeps x and w themselves; the forward gives nothing more."""
    graph, joint = joint_of(lambda x, w: x * w, TensorSpec((4,)), TensorSpec((4,)))
    assert joint.by_reference == joint.inputs
    assert joint.residuals == []
    with graph.context:
        forward, backward = split(graph.module, joint, set())
    assert len(forward.type.results) == 1
    assert len(backward.type.inputs) == 3


def test_masks_instead_of_numbers() -> None:
    """The fewest bytes: of relu of a product, a truth value an element; a result for nothing."""
    x, w = TensorSpec((8, 8)), TensorSpec((8, 8))
    graph, joint = joint_of(lambda x, w: go.relu(x @ w) @ w, x, w)
    kept = [str(v.type) for v in joint.residuals]
    assert kept == ["tensor<8x8xf32>"]  # the second product's gradient reads the numbers
    graph, joint = joint_of(lambda x, w: go.relu(x @ w) + 1, x, w)
    assert [str(v.type) for v in joint.residuals] == ["tensor<8x8xi1>"]
    graph, joint = joint_of(go.tanh, x)
    assert joint.residuals == []  # the result is enough, and the caller has it
    assert joint.by_reference == joint.results
    assert graph.func


def test_the_forward_of_inference_keeps_nothing() -> None:
    """B03, B08: what only the backward needs is in no inference graph, and unused residuals are not
    computed.
    """

    def loss(x: Any, w: Any) -> Any:
        return go.tanh(x @ w).sum()

    x = np.ones((4, 4), np.float32)
    graph = trace(loss, x, x, name="loss")
    pipeline.run(graph.module, SIMPLE)
    assert len(symbols(graph.module)["loss"].type.results) == 1
    graph, joint = joint_of(loss, spec(x), spec(x))
    with graph.context:
        forward, _ = split(graph.module, joint, set())
    used = [v for op in forward.entry_block.operations for v in op.operation.results]
    assert all(list(v.uses) for v in used)


@settings(
    max_examples=GRAPHS,
    deadline=None,
    derandomize="GRADOPT_REMAT_GRAPHS" not in os.environ,
    suppress_health_check=list(HealthCheck),
    database=None,
)
@given(programs())
def test_forward_and_backward_are_the_joint_function(todo: Any) -> None:
    """Of random programs, bit for bit; draws are those of the key."""
    xs = arguments()
    fn = program(go, todo)

    def floats(*xs: Any) -> Any:
        return fn(*xs)

    try:
        graph, joint = joint_of(floats, *map(spec, xs))
    except GradientError:
        return
    cts = [np.ones(tuple(ir.RankedTensorType(c.type).shape)) for c in joint.cotangents]
    whole, parts = run_split(graph, joint, *xs, *cts)
    assert len(whole) == len(parts)
    for a, b in zip(whole, parts, strict=True):
        np.testing.assert_array_equal(a, b)


def test_faults() -> None:
    """What no joint function is."""
    text = """
    func.func @f(%x: tensor<4xf32> {{A}}, %ct: tensor<4xf32> {{B}})
        -> (tensor<4xf32>, tensor<4xf32>) attributes {{C}} {{
      %y = "gradopt.mul"(%x, %ct) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
      return %y, %y : tensor<4xf32>, tensor<4xf32>
    }}"""
    mark = "gradopt.cotangent"
    for a, b, c, match in (
        ("", mark, "gradopt.primals = 1 : i64", "expected result 0 to depend on no cotangent"),
        ("", mark, "", "expected the number of its results, got -1"),
        ("", mark, "gradopt.primals = 3 : i64", "expected the number of its results, got 3"),
        (mark, "", "gradopt.primals = 0 : i64", "expected cotangents to be the last arguments"),
    ):
        filled = text.replace("{{A}}", f"{{{a}}}").replace("{{B}}", f"{{{b}}}")
        filled = filled.replace("{{C}}", f"{{{c}}}").replace("{{", "{").replace("}}", "}")
        with new_context():
            module = ir.Module.parse(filled)
            with pytest.raises(PassError, match=match):
                pipeline.run(module, "gradopt-partition")


# --- the cut --------------------------------------------------------------------------------------


def test_cut_is_the_cheapest() -> None:
    """Against all ways to part the nodes of small random graphs."""
    rng = np.random.default_rng(0)
    for _ in range(60):
        nodes = int(rng.integers(3, 8))
        edges = {
            (int(a), int(b)): float(rng.choice([1.0, 2.5, 7.0, 40.0, np.inf]))
            for a, b in rng.integers(0, nodes, (2 * nodes, 2))
            if a != b and b != 0 and a != 1
        }
        rows, columns = [a for a, _ in edges], [b for _, b in edges]
        costs = [
            _price(edges, {0, *(i + 2 for i, f in enumerate(flags) if f)})
            for flags in itertools.product((False, True), repeat=nodes - 2)
        ]
        if min(costs) == np.inf:
            continue
        side = min_cut(rows, columns, list(edges.values()), nodes)
        assert side[0]
        assert not side[1]
        assert _price(edges, set(np.flatnonzero(side).tolist())) == pytest.approx(min(costs))


def _price(edges: dict[tuple[int, int], float], source: set[int]) -> float:
    return sum(c for (a, b), c in edges.items() if a in source and b not in source)


# --- checkpoint policies --------------------------------------------------------------------------


def layers(x: Any, w: Any) -> Any:
    h = go.tag(x @ w, "h")
    a = go.tag(go.tanh(h), "a")
    return go.exp(go.sin(a @ w)).sum()


POLICIES = {
    "nothing": (policies.nothing_saveable, []),
    "everything": (policies.everything_saveable, ["tanh", "dot_general", "exp"]),
    "dots": (policies.dots_saveable, ["dot_general", "dot_general"]),
    "weights": (policies.dots_with_no_batch_dims_saveable, ["dot_general", "dot_general"]),
    "only h": (policies.save_only_these_names("h"), ["dot_general"]),
    "only a": (policies.save_only_these_names("a"), ["tanh"]),
    "all but a": (
        policies.save_anything_except_these_names("a"),
        ["dot_general", "dot_general", "exp"],
    ),
    "names but a": (policies.save_any_names_but_these("a"), ["dot_general"]),
}


@pytest.mark.parametrize("name", POLICIES)
def test_policies_keep_what_they_say(name: str) -> None:
    """B57: as listed, with the same values and gradients, of first and second order."""
    policy, kept = POLICIES[name]
    x, w = np.linspace(-1, 1, 16).reshape(4, 4), np.linspace(0, 1, 16).reshape(4, 4)
    checked = go.checkpoint(layers, policy=policy)
    found = go.residuals(checked, x, w)
    assert [r.why for r in found] == [
        "argument 'x'",
        "argument 'w'",
        *(f"output of {k}" for k in kept),
    ]
    assert all(r.nbytes == 128 for r in found)

    def twice(fn: Any) -> Any:
        by_w = go.grad(fn, 1)
        return lambda x, w: (
            *go.value_and_grad(fn, (0, 1))(x, w),
            go.grad(lambda w: (by_w(x, w) ** 2).sum())(w),
        )

    for simplify in (False, True):
        want = run_reference(lambda x, w: _flat(twice(layers)(x, w)), x, w, simplify=simplify)
        got = run_reference(lambda x, w: _flat(twice(checked)(x, w)), x, w, simplify=simplify)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


def _flat(found: Any) -> Any:
    value, (by_x, by_w), second = found
    return value, by_x, by_w, second


def test_policy_inside_a_step() -> None:
    """Several checkpoints, one in another, captured values, several results, an argument as one."""
    save = policies.save_only_these_names("kept")

    def step(x: Any, w: Any) -> Any:
        @go.checkpoint(policy=save)
        def inner(h: Any) -> Any:
            return go.tag(go.sin(h @ w), "kept") * h, h

        @go.checkpoint(policy=policies.dots_saveable)
        def outer(x: Any) -> Any:
            a, b = inner(x)
            return go.tanh(a @ w) + b

        return (outer(outer(x)) ** 2).sum()

    def plain(x: Any, w: Any) -> Any:
        def outer(x: Any) -> Any:
            return go.tanh((go.sin(x @ w) * x) @ w) + x

        return (outer(outer(x)) ** 2).sum()

    x, w = np.linspace(-1, 1, 9).reshape(3, 3), np.linspace(0, 1, 9).reshape(3, 3)
    for simplify in (False, True):
        got = run_reference(go.grad(step, (0, 1)), x, w, simplify=simplify)
        want = run_reference(go.grad(plain, (0, 1)), x, w, simplify=simplify)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


def test_policy_faults() -> None:
    """What no policy is, in Python and in the IR."""
    with pytest.raises(GradientError, match=r"expected a policy of go.checkpoint_pol"):
        go.checkpoint(lambda x: x, policy="d")  # type: ignore[arg-type]
    text = """
    func.func private @f(%x: tensor<f32>) -> tensor<f32>
        attributes {gradopt.checkpoint = {policy = "most"}} {
      %y = "gradopt.sin"(%x) : (tensor<f32>) -> tensor<f32>
      return %y : tensor<f32>
    }
    func.func @g(%x: tensor<f32>, %ct: tensor<f32>) -> tensor<f32> {
      %v = "gradopt.vjp"() {callee = @f, wrt = array<i64: 0>}
        : () -> ((tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>))
      %r:2 = func.call_indirect %v(%x, %ct)
        : (tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>)
      return %r#1 : tensor<f32>
    }"""
    with new_context():
        module = ir.Module.parse(text)
        with pytest.raises(PassError, match=r"expected a policy out of .*everything_saveable"):
            pipeline.run(module, "gradopt-differentiate")


def test_residuals_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Type, bytes, why, and the line."""
    go.print_residuals(
        lambda x, y: (go.tanh(x @ x) @ y).sum(), TensorSpec((2, 2)), TensorSpec((2, 3))
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "tensor<2x2xf32> 16 bytes: argument 'x'",
        "tensor<2x3xf32> 24 bytes: argument 'y'",
    ]
    assert lines[2].startswith("tensor<2x2xf32> 16 bytes: output of tanh at ")
    assert "test_partition.py:" in lines[2]
    assert len(lines) == 3
