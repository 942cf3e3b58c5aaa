# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Attention, rotary embedding and recurrent cells: masks, groups, extremes, misfits."""

from typing import Any

import gradopt as go
import jax
import numpy as np
import pytest
from gradopt.errors import OpError
from gradopt.lowering import pipeline

from .helpers import run_reference

rng = np.random.default_rng(7)
KEY = go.random.key(1)


def heads(q_heads: int = 2, kv_heads: int = 2, queries: int = 3, keys: int = 4) -> list[Any]:
    return [
        rng.normal(size=(2, q_heads, queries, 4)),
        rng.normal(size=(2, kv_heads, keys, 4)),
        rng.normal(size=(2, kv_heads, keys, 5)),
    ]


def all_gradients(fn: Any, *arrays: np.ndarray) -> list[np.ndarray]:
    """fn, then the gradients of the sum of its squares by all arguments."""

    def run(*x: Any) -> Any:
        every = tuple(range(len(x)))
        return fn(*x), go.grad(lambda *x: fn(*x).square().sum(), argnums=every)(*x)

    return run_reference(run, *arrays)


def test_masked_rows() -> None:
    """C073: a query that sees no key gives zeros and has gradient 0; the others are as without
    it.
    """
    q, k, v = heads()
    mask = np.array([[1, 1, 0, 1], [0, 0, 0, 0], [0, 1, 0, 0]], bool)
    for m in (mask, np.where(mask, 0.0, -np.inf)):
        y, *gradients = all_gradients(lambda *x, m=m: go.attention(*x, m), q, k, v)
        np.testing.assert_array_equal(y[:, :, 1], 0)
        np.testing.assert_array_equal(gradients[0][:, :, 1], 0)
        assert all(np.isfinite(g).all() for g in gradients)
        rest = [0, 2]
        part, *others = all_gradients(
            lambda *x, m=m[rest]: go.attention(*x, m), q[:, :, rest], k, v
        )
        np.testing.assert_allclose(y[:, :, rest], part, rtol=1e-12)
        np.testing.assert_allclose(gradients[0][:, :, rest], others[0], rtol=1e-9, atol=1e-12)
        for a, b in zip(gradients[1:], others[1:], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
        np.testing.assert_array_equal(gradients[1][:, :, 2], 0)  # a key that nobody sees


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_against_jax(kv_heads: int, causal: bool) -> None:
    """Also what the scale is by default, and how heads are grouped."""
    q, k, v = heads(4, kv_heads, 4, 4)
    v = v[..., :4]

    def last(x: Any) -> Any:
        return np.swapaxes(x, 1, 2)  # (batch, length, heads, dim) as JAX has it

    want = last(jax.nn.dot_product_attention(last(q), last(k), last(v), is_causal=causal))
    got = run_reference(lambda *x: go.attention(*x, causal=causal), q, k, v)[0]
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-6)  # JAX's softmax is in float32


def test_shapes_of_masks() -> None:
    """All ranks and extents of 1 that broadcast, with shared keys."""
    q, k, v = heads(4, 2)
    full = rng.integers(0, 2, (2, 4, 3, 4)).astype(bool)
    for mask in (
        full,
        full[:1],
        full[:, :1],
        full[:, :, :1],
        full[..., :1],
        full[0, 0],
        full[0, 0, 0],
    ):
        got = run_reference(lambda *x, m=mask: go.attention(*x, m), q, k, v)[0]
        wide = np.broadcast_to(mask, full.shape)
        want = run_reference(lambda *x, m=wide: go.attention(*x, m), q, k, v)[0]
        np.testing.assert_allclose(got, want, rtol=1e-12)


def test_dropout() -> None:
    """Dropping nothing is attention; the value is the mean over many masks; gradients use the same
    mask.
    """
    q, k, v = heads()
    plain = run_reference(go.attention, q, k, v)[0]
    many = [
        run_reference(
            lambda *x, i=i: go.attention(*x, dropout=0.25, random_key=go.random.key(i)), q, k, v
        )[0]
        for i in range(200)
    ]
    deviation = np.std(many, axis=0).max()
    assert np.abs(np.mean(many, axis=0) - plain).max() < 5 * deviation / np.sqrt(200)

    def fn(v: Any) -> Any:
        return go.attention(q, k, v, dropout=0.25, random_key=KEY)

    y, gradient = run_reference(
        lambda v: (fn(v), go.grad(lambda v: (fn(v) * fn(v)).sum() / 2)(v)), v
    )
    # fn is linear in v: half the gradient of its square, times v, is the square
    np.testing.assert_allclose((gradient * v).sum(), (y**2).sum(), rtol=1e-9)


def test_no_keys() -> None:
    q, k, v = heads(keys=0)
    y, *gradients = all_gradients(go.attention, q, k, v)
    np.testing.assert_array_equal(y, np.zeros((2, 2, 3, 5)))
    assert [g.shape for g in gradients] == [q.shape, k.shape, v.shape]


def test_attention_costs_what_its_parts_cost() -> None:
    """Written out, it is two products, a softmax and a mask, as one writes it by hand."""

    def by_hand(q: Any, k: Any, v: Any) -> Any:
        scores = (q @ k.mT) * 0.5
        causal = go.iota((8, 8), 0) >= go.iota((8, 8), 1)
        return go.softmax(go.where(causal, scores, -np.inf)) @ v

    names = []
    for fn in (lambda *x: go.attention(*x, causal=True), by_hand):
        specs = [go.TensorSpec((2, 3, 8, 4))] * 3
        graph = go.trace(go.grad(lambda *x, f=fn: f(*x).tanh().sum()), *specs, name="f")
        pipeline.run(graph.module, ",".join(filter(None, list(pipeline.STAGES.values())[:3])))
        (function,) = graph.module.body.operations
        names.append([op.operation.name for op in function.entry_block.operations])
    assert names[0] == names[1]


@pytest.mark.parametrize(("rows", "apart"), [(16, False), (128, False), (12, True), (31, True)])
def test_only_products_of_broken_tiles_are_set_apart(rows: int, apart: bool) -> None:
    """Weights are fused into the packing of the product with the values where rows fill tiles."""
    graph = go.trace(lambda x, v: go.softmax(x) @ v, *[go.TensorSpec((2, rows, rows))] * 2)
    pipeline.run(graph.module, "gradopt-lower")
    assert ("compute_barrier" in str(graph.module)) == apart


def test_unknown_extents() -> None:
    """An unknown batch, and unknown lengths where heads share no keys."""
    q, k = go.TensorSpec((None, 4, 3, 8)), go.TensorSpec((None, 2, 5, 8))
    graph = go.trace(lambda q, k: go.attention(q, k, k), q, k)
    pipeline.run(graph.module, "gradopt-lower")
    assert graph.output_specs == [go.TensorSpec((None, 4, 3, 8))]
    x = go.TensorSpec((None, 2, None, 8))
    graph = go.trace(lambda x: go.attention(x, x, x), x)
    pipeline.run(graph.module, "gradopt-lower")
    assert graph.output_specs == [x]


def test_rotary_turns() -> None:
    """Lengths stay; the product of two vectors depends on the distance of their positions alone."""
    x, y = rng.normal(size=(1, 8)), rng.normal(size=(1, 8))
    for interleaved in (False, True):

        def product(x: Any, y: Any, p: Any, q: Any, i: bool = interleaved) -> Any:
            turned = [go.rotary(v, at, interleaved=i) for v, at in ((x, p), (y, q))]
            return (turned[0] * turned[1]).sum(), go.norm(turned[0])

        near, length = run_reference(product, x, y, *(np.array([i], np.int32) for i in (3, 7)))
        far, _ = run_reference(product, x, y, *(np.array([i], np.int32) for i in (13, 17)))
        np.testing.assert_allclose(near, far, rtol=1e-12)
        np.testing.assert_allclose(length, np.linalg.norm(x), rtol=1e-12)


def test_rotary_begins_at_0() -> None:
    x = rng.normal(size=(2, 3, 4))
    got = run_reference(go.rotary, x)[0]
    np.testing.assert_array_equal(got[:, 0], x[:, 0])
    want = run_reference(go.rotary, x, np.arange(3, dtype=np.int64))[0]
    np.testing.assert_array_equal(got, want)


def test_cells_at_extremes() -> None:
    """Saturated gates keep or replace the state; gradients stay finite."""
    z = np.array([[-1e4, 1e4, 5.0, 1e4]])
    h, c = run_reference(go.lstm_cell, z, np.array([[0.5]]))
    np.testing.assert_array_equal((h, c), (np.tanh([[0.5]]), [[0.5]]))
    x = np.array([[0.0, 1e4, 9.0]])
    kept = run_reference(go.gru_cell, x, x * 0, np.array([[0.25]]))[0]
    np.testing.assert_array_equal(kept, [[0.25]])
    gradient = run_reference(go.grad(lambda z: go.lstm_cell(z, np.ones((1, 1)))[0].sum()), z)[0]
    assert np.isfinite(gradient).all()


Q, K = go.TensorSpec((2, 4, 3, 8)), go.TensorSpec((2, 3, 5, 8))
MISFITS = {
    "axes": lambda q, k: go.attention(q[0], k[0], k[0]),
    "a number of key heads that divides": lambda q, k: go.attention(q, k, k),
    "a key of batch 2 and dim 8": lambda q, k: go.attention(q, k[..., :4], k),
    "a value of shape": lambda q, k: go.attention(q, q, q[:, :, :2]),
    "a mask of bool or float32": lambda q, k: go.attention(q, q, q, np.ones((5, 3), bool)),
    "a random_key": lambda q, k: go.attention(q, q, q, dropout=0.5),
    "a rate in": lambda q, k: go.attention(q, q, q, dropout=1.5, random_key=KEY),
    "an even dim": lambda q, k: go.rotary(q[..., :7]),
    "integer positions of shape": lambda q, k: go.rotary(q, np.arange(5)),
    "4 gates of the known width": lambda q, k: go.lstm_cell(q, q),
    "3 gates of the known width": lambda q, k: go.gru_cell(q, q, q),
}


@pytest.mark.parametrize("message", list(MISFITS))
def test_misfit(message: str) -> None:
    with pytest.raises(OpError, match=message):
        go.trace(MISFITS[message], Q, K)
