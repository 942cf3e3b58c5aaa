# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Updates in place wait for the readers of what they overwrite, or say why they cannot."""

from typing import Any

import gradopt as go
import pytest
from gradopt.dialect.control import symbols
from gradopt.dialect.mlir import func, ir
from gradopt.lowering import pipeline
from gradopt.lowering.order_updates import order_updates

W = go.TensorSpec((4, 4))
X = go.TensorSpec((2, 4))


def lowered(fn: Any, *specs: Any) -> tuple[ir.Module, func.FuncOp]:
    """The module has to be held as long as its function is used."""
    graph = go.trace(fn, *specs, name="step")
    with graph.context:
        module = ir.Module.parse(graph.mlir())
        passes = [p for stage, p in pipeline.STAGES.items() if stage != "linalg"]
        pipeline.run(module, ",".join(filter(None, passes)))
        pipeline.run(module, "convert-gradopt-to-linalg")
        return module, symbols(module)["step"]


def ordered(fn: Any, *specs: Any) -> tuple[ir.Module, func.FuncOp, str]:
    """The function with its first argument's update ordered, and why that could not be."""
    module, function = lowered(fn, *specs)
    with function.context, ir.Location.unknown():
        refused = order_updates(function, [(0, 0)])
        module.operation.verify()
    return module, function, refused.get(0, "")


def readers_before(function: func.FuncOp, name: str) -> list[bool]:
    """Of each op called `name` that reads the first argument: whether the first result depends on
    it.
    """
    ops = [op.operation for op in function.entry_block.operations]
    needed, todo = set(), [ops[-1].operands[0]]
    while todo:
        value = todo.pop()
        if value not in needed:
            needed.add(value)
            if not isinstance(value.owner, ir.Block):
                todo += list(value.owner.operands)
    argument = function.entry_block.arguments[0]
    readers = [op for op in ops if op.name.startswith(name) and argument in list(op.operands)]
    return [any(r in needed for r in op.results) for op in readers]


def test_a_reader_beside_the_update_comes_first() -> None:
    """B09: dx = ct w^T reads the old w; nothing but the token makes the update wait for it."""

    def step(w: Any, x: Any, ct: Any) -> Any:
        return w - x.mT @ ct, ct @ w.mT

    _module, function = lowered(step, W, X, X)
    assert readers_before(function, "linalg.matmul") == [False]
    _module, function, refused = ordered(step, W, X, X)
    assert not refused
    assert readers_before(function, "linalg.matmul") == [True]


def test_a_reader_that_the_update_depends_on_gets_no_token() -> None:
    """The forward product is there long before the gradient."""

    def step(w: Any, x: Any) -> Any:
        return w - x.mT @ go.tanh(x @ w)

    before = str(lowered(step, W, X)[0])
    module, _, refused = ordered(step, W, X)
    assert not refused and str(module).count("linalg.generic") == before.count("linalg.generic")


def test_training_steps_are_updated_in_place() -> None:
    """Every parameter of a two-layer net with momentum can be overwritten."""

    def loss(p: Any, x: Any) -> Any:
        return (go.tanh(x @ p["a"] + p["b"]) @ p["c"]).sum()

    def step(p: Any, v: Any, x: Any) -> Any:
        g = go.grad(loss)(p, x)
        v = {n: 0.9 * v[n] + g[n] for n in p}
        return {n: p[n] - 0.1 * v[n] for n in p}, v

    p = {"a": W, "b": go.TensorSpec((4,)), "c": W}
    module, function = lowered(step, p, p, X)
    with function.context, ir.Location.unknown():
        assert order_updates(function, [(i, i) for i in range(6)]) == {}
        module.operation.verify()


def test_a_table_is_scattered_into_behind_its_readers() -> None:
    """C023: rows are read before the scatter writes."""

    def step(t: Any, i: Any) -> Any:
        return t.at[i].add(go.take(t, i, axis=0)), go.take(t, i + 1, axis=0)

    ids = go.TensorSpec((3,), "int32")
    module, function = lowered(step, W, ids)
    with function.context, ir.Location.unknown():
        refused = order_updates(function, [(0, 0)])
        module.operation.verify()
    assert refused == {0: "its op scatters into something else"}  # into a copy


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (lambda w: w + w.mT, "its op reads what is computed from the old value, in the same"),
        (lambda w: (w + 1, w + (w + 1).sum()), "an op reads the old value that depends on the new"),
        (lambda w: w @ w, "'linalg.matmul' makes it, which is not elementwise"),
        (lambda w: go.flip(w, 0) * 2, "its op reads"),
    ],
)
def test_what_cannot_be_updated_in_place(fn: Any, reason: str) -> None:
    """B09: an access pattern that does not allow it is refused, with the reason."""
    assert ordered(fn, W)[2].startswith(reason)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int64", "int8", "bool"])
def test_tokens_in_every_type(dtype: str) -> None:
    """The token changes no bit, whatever the element type."""

    def step(w: Any, x: Any) -> Any:
        reader = go.cumsum(w.astype("float32"), 1) if dtype == "bool" else go.cumsum(w, 1)
        return go.where(x, w, go.zeros_like(w)), reader

    module, _, refused = ordered(step, go.TensorSpec((4, 4), dtype), go.TensorSpec((4, 4), "bool"))
    assert not refused and "arith.xori" in str(module)


def test_the_same_text_every_time() -> None:
    def step(w: Any, x: Any, ct: Any) -> Any:
        return w - x.mT @ ct, ct @ w.mT

    assert str(ordered(step, W, X, X)[0]) == str(ordered(step, W, X, X)[0])


def test_long_chains_take_no_recursion() -> None:
    """C128: the update of a weight that a chain of 3,000 ops reads."""

    def step(w: Any) -> Any:
        y = w
        for _ in range(3000):
            y = go.cumsum(y, 0) * 0.5
        return w + 1, y

    assert not ordered(step, go.TensorSpec((2, 2)))[2]
