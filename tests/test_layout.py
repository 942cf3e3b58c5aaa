# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-layout: nets with channels first keep their values, and transpose no more than they have
to.
"""

from collections.abc import Callable
from typing import Any

import gradopt as go
import numpy as np
import pytest
from gradopt.dialect import reference
from gradopt.dialect.control import symbols
from gradopt.dialect.graph import Graph
from gradopt.dialect.shape import TransposeOp
from gradopt.lowering import pipeline
from gradopt.lowering.layout import size_of
from gradopt.lowering.layout_rules import is_first
from gradopt.tools import workloads
from hypothesis import given, settings
from hypothesis import strategies as st

from .helpers import lowered, spec

rng = np.random.default_rng(3)
FIRST: Any = {"layout": "channels_first"}
BEFORE = f"{pipeline.STAGES['differentiated']},{pipeline.STAGES['simplified']}".removesuffix(
    ",gradopt-layout"
)


def draw(*shape: int) -> np.ndarray:
    return rng.normal(size=shape)


def ops_of(graph: Graph) -> list[Any]:
    return list(symbols(graph.module)[graph.name].entry_block.operations)


def moved_bytes(graph: Graph) -> float:
    """What transposes move, and what convolutions and pools with channels first do when lowered."""
    total = 0
    for op in ops_of(graph):
        if isinstance(op, TransposeOp):
            total += size_of(op.operation.results[0])
        elif is_first(op):
            total += sum(map(size_of, [*op.operation.operands, *op.operation.results]))
    return total


def laid_out(graph: Graph, *arrays: np.ndarray, exact: bool = False) -> Graph:
    """The graph after the pass, once it is known to give the same values, to move no more than
    before, and to have nothing left to do.
    """
    lowered(graph, BEFORE)
    want, moved = reference.run(graph.module, graph.name, *arrays), moved_bytes(graph)
    lowered(graph, "gradopt-layout")
    assert graph.module.operation.verify()
    got = reference.run(graph.module, graph.name, *arrays)
    for a, b in zip(got, want, strict=True):
        if exact:
            np.testing.assert_array_equal(a, b)
        else:
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
    assert moved_bytes(graph) <= moved
    assert not any(map(is_first, ops_of(graph)))
    text = graph.mlir()
    lowered(graph, "gradopt-layout")
    assert graph.mlir() == text
    return graph


def net(fn: Callable[..., Any], *arrays: np.ndarray, exact: bool = False) -> Graph:
    return laid_out(go.trace(fn, *map(spec, arrays)), *arrays, exact=exact)


def transposes(graph: Graph) -> list[tuple[int, ...]]:
    """The shapes that transposes give."""
    return [op.y.shape for op in ops_of(graph) if isinstance(op, TransposeOp)]


X, W, V = draw(2, 4, 6, 5), draw(6, 4, 3, 3), draw(4, 6, 3, 3)
LAST_X, LAST_W, LAST_V = (2, 6, 5, 4), (3, 3, 4, 6), (3, 3, 6, 4)


# --- how many transposes are left -----------------------------------------------------------------


def test_a_chain_is_transposed_at_its_ends() -> None:
    """The image, each kernel, and the result; nothing between the convolutions."""

    def chain(x: Any, w: Any, v: Any) -> Any:
        y = go.relu(go.conv(x, w, padding=1, **FIRST))
        return go.tanh(go.conv(y, v, padding=1, **FIRST)) * 2

    found = transposes(net(chain, X, W, V, exact=True))
    assert sorted(found) == sorted([LAST_X, LAST_W, LAST_V, (2, 4, 6, 5)])


def test_a_mean_over_the_image_needs_no_transpose() -> None:
    graph = net(lambda x, w: go.conv(x, w, **FIRST).mean((2, 3)), X, W)
    assert transposes(graph) == [LAST_X, LAST_W]


def test_images_with_channels_last_before_and_behind() -> None:
    """A user's own transposes from and to channels last go away."""

    def between(x: Any, w: Any) -> Any:
        y = go.conv(x.transpose(0, 3, 1, 2), w, padding=1, **FIRST)
        return go.relu(y).transpose(0, 2, 3, 1)

    assert transposes(net(between, draw(*LAST_X), W, exact=True)) == [LAST_W]


def test_the_smaller_side_is_transposed() -> None:
    """A convolution's result is added to what a larger argument pins: it goes back before; a sum
    over channels makes it smaller first.
    """
    x, large = draw(1, 4, 6, 5), draw(8, 6, 6, 5)

    def added(x: Any, w: Any, large: Any) -> Any:
        return go.relu(go.conv(x, w, padding=1, **FIRST) + large) * large

    assert transposes(net(added, x, W, large, exact=True))[2:] == [(1, 6, 6, 5)]
    graph = net(lambda x, w: go.conv(x, w, padding=1, **FIRST).sum(1), X, W)
    assert transposes(graph) == [LAST_X, LAST_W]


def test_a_product_takes_its_operand_as_it_lies() -> None:
    """The contraction of channels (a pointwise convolution written as a product) needs none."""

    def pointwise(x: Any, w: Any, m: Any) -> Any:
        y = go.conv(x, w, padding=1, **FIRST)
        return go.einsum("nchw,cd->nhwd", y, m)

    assert transposes(net(pointwise, X, W, draw(6, 3))) == [LAST_X, LAST_W]


def test_a_product_over_the_image_does_not_move_its_weights() -> None:
    """Contracted axes in another order would have the other operand transposed, however large."""
    weights = draw(6, 4, 3, 50)
    graph = net(lambda x, w, m: go.tensordot(go.conv(x, w, **FIRST), m, 3), X, W, weights)
    assert transposes(graph) == [LAST_X, LAST_W, (2, 6, 4, 3)]


@pytest.mark.parametrize("name", ["cnn", "resnet"])
def test_training_steps(name: str) -> None:
    """A training step moves the images once, and each kernel once for its use and once in its
    gradient; nothing else.
    """
    sizes = {"batch": 2} if name == "cnn" else {"batch": 2, "width": 2}
    start, batch, loss = getattr(workloads, name)(**sizes, channels_last=0)
    step = workloads.train_step(loss)
    graph = go.trace(step, start, *batch, name="step")
    lowered(graph, BEFORE)
    lowered(graph, "gradopt-layout")
    kernels = sum(v.ndim == 4 for v in start.values())
    kept = [s for s in transposes(graph) if len(s) == 4]
    assert len(kept) <= 1 + 2 * kernels
    assert sum(s[-1] == 3 and s[1:3] == (32, 32) for s in kept) == 1


@pytest.mark.parametrize("name", ["cnn", "resnet"])
def test_both_layouts_have_the_same_loss(name: str) -> None:
    """The workloads' sources with channels first and last, in one run of the loss each."""
    sizes = {"batch": 2} if name == "cnn" else {"batch": 2, "width": 2}
    losses = []
    for last in (0, 1):
        start, batch, loss = getattr(workloads, name)(**sizes, channels_last=last)
        graph = lowered(go.trace(loss, start, *batch, name="loss"), BEFORE)
        lowered(graph, "gradopt-layout")
        leaves = [start[k] for k in sorted(start)]
        losses += reference.run(graph.module, "loss", *leaves, *batch)
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


# --- values ---------------------------------------------------------------------------------------


def with_gradients(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The results of a function and its gradients by all arguments."""

    def both(*xs: Any) -> Any:
        y, pull = go.vjp(fn, *xs)
        return y, *pull(go.sin(y) + 1)

    return both


def _norm(x: Any, w: Any, gamma: Any) -> Any:
    y = go.batch_norm(go.conv(x, w, padding=1, **FIRST), gamma, gamma, channel_axis=1)
    return go.relu(y) + go.conv(x, w, padding=1, **FIRST)


def _pools(x: Any, w: Any) -> Any:
    y = go.conv(x, w, padding=1, **FIRST)
    y = go.max_pool(y, 2, 1, channels_last=False) + go.min_pool(y, 2, 1, channels_last=False)
    return go.avg_pool(y, 3, 2, 1, channels_last=False, count_include_pad=False)


def _joined(x: Any, w: Any) -> Any:
    y = go.conv(x, w, padding=1, **FIRST)
    y = go.concat([y, x, x * 2], axis=1)
    a, b = go.split(y, 2, axis=1)
    return go.stack([a, go.flip(b, 2)], axis=1).sum(0)


def _flat(x: Any, w: Any, m: Any) -> Any:
    y = go.max_pool(go.relu(go.conv(x, w, padding=1, **FIRST)), 2, channels_last=False)
    return y.reshape(2, -1) @ m


def _attention(x: Any, w: Any) -> Any:
    y = go.conv(x, w, padding=1, **FIRST).reshape(2, 6, 30)
    scores = go.softmax(go.einsum("nci,ncj->nij", y, y) / 6)
    return go.einsum("nij,ncj->nci", scores, y).reshape(2, 6, 6, 5)


def _parts(x: Any, w: Any) -> Any:
    y = go.conv(x, w, padding=1, **FIRST)
    y = go.pad(y, ((0, 0), (1, 2), (0, 1), (3, 0)), mode="edge")[:, 1:-1, ::2]
    return go.cumsum(y, 1) * go.sort(y, 2) + go.log_softmax(y, 1)


def _stats(x: Any, w: Any) -> Any:
    y = go.conv(x, w, padding=1, **FIRST)
    y = (y - y.mean((2, 3), keepdims=True)) / (y.var((0, 2, 3), keepdims=True) + 1).sqrt()
    return y * go.argmax(y, 1, keepdims=True).astype(y.dtype) + y.max(0)


NETS: dict[str, tuple[Callable[..., Any], list[np.ndarray]]] = {
    "grouped, strided": (
        lambda x, w: go.conv(x, w, 2, 1, groups=2, **FIRST),
        [X, draw(6, 2, 3, 3)],
    ),
    "dilated": (lambda x, w: go.conv(x, w, 1, 2, 2, **FIRST), [X, W]),
    "transposed": (lambda x, w: go.conv_transpose(x, w, 2, 1, **FIRST), [X, V]),
    "one axis": (
        lambda x, w: go.relu(go.conv(x, w, 1, 1, **FIRST)),
        [draw(2, 3, 7), draw(4, 3, 3)],
    ),
    "three axes": (
        lambda x, w: go.max_pool(go.conv(x, w, **FIRST), 2, channels_last=False),
        [draw(1, 2, 4, 4, 5), draw(3, 2, 1, 2, 2)],
    ),
    "batch norm, residual": (_norm, [X, draw(4, 4, 3, 3), draw(4)]),
    "group norm": (
        lambda x, w, g: go.group_norm(go.conv(x, w, **FIRST), 3, g, g, channel_axis=1),
        [X, W, draw(6)],
    ),
    "instance norm": (
        lambda x, w: go.instance_norm(go.conv(x, w, **FIRST), channel_axis=1),
        [X, W],
    ),
    "pools": (_pools, [X, W]),
    "concat, split, stack": (_joined, [X, W]),
    "flatten, linear": (_flat, [X, W, draw(36, 3)]),
    "attention": (_attention, [X, W]),
    "pad, slice, scan, sort": (_parts, [X, W]),
    "statistics": (_stats, [X, W]),
    "patches": (
        lambda x, w: go.extract_patches(
            go.conv(x, w, padding=1, **FIRST), 2, channels_last=False
        ).reshape(2, 24, -1),
        [X, W],
    ),
    "resized": (
        lambda x, w: go.upsample(go.conv(x, w, padding=1, **FIRST), 2, channels_last=False),
        [X, W],
    ),
    "one pixel": (
        lambda x, w: go.relu(go.conv(x, w, **FIRST)).squeeze((2, 3)),
        [draw(2, 4, 3, 3), W],
    ),
    "a kernel that is made": (lambda x, y: go.conv(x, go.tanh(y), **FIRST), [X, W]),
    "images as kernels": (
        lambda x, w, v: go.conv(x, go.conv(w, v, padding=1, **FIRST), **FIRST),
        [X, W, draw(4, 4, 3, 3)],
    ),
    "channels last inside": (
        lambda x, w, v: go.conv(go.conv(x, w, **FIRST).transpose(0, 2, 3, 1), v),
        [X, W, draw(2, 2, 6, 3)],
    ),
    "constants and ramps": (
        lambda x, w: (
            go.conv(x, w, padding=1, **FIRST) * go.iota((2, 6, 6, 5), 1).astype("float64")
            + np.arange(360.0).reshape(2, 6, 6, 5)
        ),
        [X, W],
    ),
}


@pytest.mark.parametrize("name", NETS)
def test_values_and_gradients(name: str) -> None:
    fn, arrays = NETS[name]
    net(with_gradients(fn), *arrays)


@pytest.mark.parametrize("name", ["grouped, strided", "transposed", "one axis", "one pixel"])
def test_values_are_the_same_bits(name: str) -> None:
    """Where nothing is summed over axes that changed places, layout alone changes no bit."""
    fn, arrays = NETS[name]
    net(fn, *arrays, exact=True)


def test_unknown_extents() -> None:
    """An open batch: broadcasts take their extents from values that move too."""

    def fn(x: Any, w: Any, g: Any) -> Any:
        y = go.batch_norm(go.conv(x, w, padding=1, **FIRST), g, channel_axis=1)
        y = go.relu(y + y.mean((1, 2, 3), keepdims=True))
        return go.sum_pool(y, 2, channels_last=False).reshape(-1, 6 * 3 * 2)

    arrays = X, W, draw(6)
    specs = [go.TensorSpec((None, 4, 6, 5), np.float64), *map(spec, arrays[1:])]
    graph = laid_out(go.trace(with_gradients(fn), *specs), *arrays)
    assert (None, 6, 5, 4) in transposes(graph)


# --- what stays as it is --------------------------------------------------------------------------


def _unchanged(graph: Graph) -> bool:
    lowered(graph, BEFORE)
    text = graph.mlir()
    lowered(graph, "gradopt-layout")
    return graph.mlir() == text


@pytest.mark.parametrize("name", ["mlp", "gpt", "lstm", "recsys", "cnn"])
def test_other_programs_stay_as_they_are(name: str) -> None:
    """Programs without convolutions, and those with channels last, to the letter."""
    sizes = {
        "gpt": {"layers": 1, "tokens": 8, "dim": 16, "vocab": 32},
        "lstm": {"steps": 2},
        "recsys": {"rows": 100},
    }
    start, batch, loss = workloads.WORKLOADS[name](**sizes.get(name, {}))
    assert _unchanged(go.trace(workloads.train_step(loss), start, *batch, name="step"))


def test_transposes_without_convolutions_stay() -> None:
    graph = go.trace(lambda x: go.relu(x.transpose(0, 2, 3, 1)).sum(3), spec(X))
    assert _unchanged(graph)


def test_names_and_places_stay() -> None:
    """What is built anew stands at the source line of what it replaces."""
    graph = go.trace(lambda x, w: go.relu(go.conv(x, w, name="stem", **FIRST)), *map(spec, (X, W)))
    before = {str(op.location) for op in ops_of(graph)}
    laid_out(graph, X, W)
    assert {str(op.location) for op in ops_of(graph)} <= before


# --- random nets ----------------------------------------------------------------------------------


def _conv(x: Any, other: Any, n: int) -> Any:
    kernel = np.cos(np.arange(3.0 * x.shape[1] * 9) + n).reshape(3, x.shape[1], 3, 3)
    return go.tanh(go.conv(x, go.constant(kernel, np.float64), 1 + n % 2, 1, **FIRST))


STEPS: dict[str, Callable[[Any, Any, int], Any]] = {
    "conv": _conv,
    "pool": lambda x, o, n: go.max_pool(x, 2, 1, 1, channels_last=False),
    "relu": lambda x, o, n: go.relu(x),
    "add": lambda x, o, n: x + o if x.shape == o.shape else x * 2,
    "mean": lambda x, o, n: x - x.mean(n % 4, keepdims=True),
    "mean of two": lambda x, o, n: x * x.mean((n % 3, 3), keepdims=True),
    "concat": lambda x, o, n: go.concat([x, x * x], 1) if x.shape[1] < 8 else x,
    "pad": lambda x, o, n: go.pad(x, [(0, i == n % 4) for i in range(4)]),
    "slice": lambda x, o, n: x[:, :, : max(1, x.shape[2] - 1)],
    "turn": lambda x, o, n: x.transpose(0, 1, 3, 2),
    "there and back": lambda x, o, n: go.tanh(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2),
    "reshape": lambda x, o, n: x.reshape(x.shape[0], x.shape[1], -1, 1),
    "softmax": lambda x, o, n: go.softmax(x, n % 4),
    "stack": lambda x, o, n: go.stack([x, o], n % 5).sum(n % 5) if x.shape == o.shape else x,
}


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 9), st.integers(0, 3)),
        min_size=2,
        max_size=8,
    )
)
def test_random_nets(steps: list[tuple[str, int, int]]) -> None:
    def fn(x: Any) -> Any:
        values = [_conv(x, x, 0)]
        for name, number, back in steps:
            other = values[max(0, len(values) - 1 - back)]
            values.append(STEPS[name](values[-1], other, number))
        return values[-1], go.relu(values[-2])

    net(lambda x: (*fn(x), go.grad(lambda x: go.sin(fn(x)[0]).sum())(x)), X)
