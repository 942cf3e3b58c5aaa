# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Per-op services: inference, memory, the backward of one op."""

from typing import Any

import gradopt as go
import numpy as np
import pytest
from gradopt import services
from gradopt.dialect import reference
from gradopt.dialect.base import OPS
from gradopt.dialect.slicing import ReverseOp
from gradopt.dialect.types import is_float
from gradopt.errors import GradientError, OpError
from gradopt.lowering.backward import backward_graph
from gradopt.op_cases import CASES, Case
from gradopt.op_cases.rows import gradient_of

from .helpers import run_reference, spec
from .test_ops import ids

SPEC = go.TensorSpec


# --- infer ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_infer_agrees_with_the_graph(case: Case) -> None:
    """B40: shape, dtype, device; exact, since all extents are known."""
    specs = [services.describe(spec(x), "cpu:1") for x in case.inputs]
    try:
        found = services.infer_fallible(case.op, *specs, **case.attributes)
    except OpError:  # the row relies on the function, which broadcasts or converts
        assert len({(x.shape, x.dtype) for x in case.inputs}) > 1
        return
    want = go.trace(case.build, *map(spec, case.inputs)).output_specs
    assert [o.spec for o in found.outputs] == want
    assert found.exact
    assert {o.device for o in found.outputs} == ({"cpu:1"} if specs else {"cpu"})


def test_host_constants_are_folded() -> None:
    """B40: a computed shape resolves."""
    (shape,) = services.infer("mul", np.array([2, 1]), np.array([3, 2]))
    np.testing.assert_array_equal(shape.value, [6, 2])
    (y,) = services.infer("reshape", SPEC((3, 4)), shape=shape)
    assert y.shape == (6, 2)
    assert y.value is None
    (large,) = services.infer("add", np.ones(5000), np.ones(5000))
    assert large.value is None


def test_unknown_values() -> None:
    """B40: the fallible variant says that an answer has to be checked, and why."""
    found = services.infer_fallible("tanh", SPEC((None, 3)))
    assert not found.exact
    assert found.outputs[0].shape == (None, 3)
    assert found.reason == "unknown extents of input 0"
    shape = services.describe(SPEC((2,), "int64"))
    found = services.infer_fallible("reshape", SPEC((3, 4)), shape=shape)
    assert not found.exact
    assert found.outputs[0].shape == (None, None)
    with pytest.raises(
        OpError, match=r"'gradopt.reshape' op expected known values, got attr.*shape"
    ):
        services.infer("reshape", SPEC((3, 4)), shape=shape)
    with pytest.raises(
        OpError, match=r"'gradopt.softmax' op expected the value of attribute 'axis'"
    ):
        services.infer("softmax", SPEC((3, 4)), axis=services.describe(SPEC((), "int64")))
    assert services.infer("sum", SPEC((None, 3)), axes=(1,))[0].shape == (None,)


def test_infer_refuses() -> None:
    """B06, B18"""
    with pytest.raises(OpError, match=r"operands of one type, got tensor<3xf32> and tensor<4xf32>"):
        services.infer("add", SPEC((3,)), SPEC((4,)))
    a, b = services.describe(SPEC((3,)), "cpu"), services.describe(SPEC((3,)), "vulkan")
    with pytest.raises(OpError, match="on one device, got input 0 on cpu and input 1 on vulkan"):
        services.infer("add", a, b)
    for name in ("no_op", "vjp"):
        with pytest.raises(OpError, match=f"expected an op .* on arrays, got '{name}'"):
            services.infer(name)


# --- memory ---------------------------------------------------------------------------------------


def test_memory_of_ops() -> None:
    """B41"""
    x, half = SPEC((8, 16)), SPEC((8, 16), "float16")
    add = services.memory("add", x, x)
    assert [o.nbytes for o in add.outputs] == [512]
    assert (add.workspaces, add.aliases) == ((), ((0, 0), (0, 1)))
    assert services.memory("compare", x, x, direction="lt").aliases == ()
    assert services.memory("reshape", x, shape=(128,)).aliases == ((0, 0),)
    assert services.memory("transpose", x, permutation=(1, 0)).aliases == ()
    rows = services.memory("softmax", x, axis=1).workspaces
    assert [size for _, size in rows] == [32, 32, 32]  # maximum, sum, safe sum of every row
    contract = {"lhs_contract": (1,), "rhs_contract": (1,)}
    product = services.memory("dot_general", half, half, **contract)
    assert [size for _, size in product.workspaces] == [256]  # float32 accumulators
    scatter = services.memory("scatter_add", x, SPEC((2,), "int32"), SPEC((2, 16)), axis=0)
    assert scatter.aliases == ((0, 0),)
    with pytest.raises(OpError, match="inputs of known shapes"):
        services.memory("tanh", SPEC((None,)))


# --- backward -------------------------------------------------------------------------------------


def run_backward(case: Case, backward: Any, outputs: list[np.ndarray], cts: Any) -> list[Any]:
    every = [*case.inputs, *outputs, *cts]
    saved = [a for a, kept in zip(every, backward.saved, strict=True) if kept]
    return list(reference.run(backward.module, backward.name, *saved))


@pytest.mark.parametrize("case", [c for c in CASES if c.differentiable()], ids=ids)
def test_backward_gives_the_gradient(case: Case) -> None:
    """B42: from what it says must be saved, and nothing else."""
    outputs = run_reference(case.build, *case.inputs)
    floats = [is_float(v.dtype) for v in outputs]
    cts = [np.full(v.shape, 1.25, v.dtype) for v in outputs]
    wrt = [i in case.differentiable() for i in range(len(case.inputs))]
    found = backward_graph(case.op, [spec(x) for x in case.inputs], wrt, floats, **case.attributes)
    assert found is not None
    got = iter(run_backward(case, found, outputs, cts))
    seeds = [ct for ct, f in zip(cts, floats, strict=True) if f]
    want = run_reference(gradient_of(case), *case.inputs, *seeds)
    for i, gradient in zip(case.differentiable(), want, strict=True):
        if not found.has_gradient[i]:
            assert not gradient.any()
        else:
            np.testing.assert_allclose(next(got), gradient, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "saved", "has_gradient"),
    [
        ("tanh", [SPEC((3,))], {}, "y ct", [True]),
        ("sin", [SPEC((3,))], {}, "x ct", [True]),
        ("mul", [SPEC((3,))] * 2, {}, "x0 x1 ct", [True, True]),
        ("add", [SPEC((3,))] * 2, {}, "ct", [True, True]),
        ("softmax", [SPEC((2, 3))], {"axis": 1}, "y ct", [True]),
        ("take", [SPEC((5, 3)), SPEC((2,), "int32")], {"axis": 0}, "x1 ct", [True, False]),
        ("heaviside", [SPEC((3,))] * 2, {}, "x0 ct", [False, True]),
        ("floor", [SPEC((3,))], {}, "", [False]),
    ],
)
def test_what_is_saved(
    op: str, inputs: list[Any], attributes: Any, saved: str, has_gradient: list[bool]
) -> None:
    """B32, B42: the least that the rule reads."""
    wrt = [is_float(x.dtype) for x in inputs]
    found = backward_graph(op, inputs, wrt, [True], **attributes)
    names = ["x"] if len(inputs) == 1 else [f"x{i}" for i in range(len(inputs))]
    kept = [n for n, k in zip([*names, "y", "ct"], found.saved, strict=True) if k]
    assert " ".join(kept) == saved
    assert list(found.has_gradient) == has_gradient


def test_masks() -> None:
    """B42: only what is asked for; nothing without a gradient of an output."""
    pair = [SPEC((3,))] * 2
    one = backward_graph("mul", pair, [True, False], [True])
    assert one.saved == (False, True, False, True)
    assert one.has_gradient == (True, False)
    assert backward_graph("mul", pair, [True, True], [False]) is None
    assert backward_graph("mul", pair, [False, False], [True]) is None
    with pytest.raises(OpError, match="input_requires_grad of length 2, got 1"):
        backward_graph("mul", pair, [True], [True])


def test_no_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """B42, B53, B56: the error names op and input."""
    monkeypatch.delattr(ReverseOp, "vjp")
    with pytest.raises(
        GradientError, match=r"'gradopt.reverse' op .* rule for input 'x', got none"
    ):
        backward_graph("reverse", [SPEC((3,))], [True], [True], axes=(0,))
    with pytest.raises(GradientError, match=r"'gradopt.take' .* got 'indices' with dtype int32"):
        backward_graph("take", [SPEC((5,)), SPEC((2,), "int32")], [True, True], [True], axis=0)


def test_every_op_has_services() -> None:
    assert all(services.op_class(name) is op for name, op in OPS.items() if not op.OF_FUNCTION)
