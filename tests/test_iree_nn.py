# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Random numbers, dropout, normalization, losses and attention on IREE: known answers, and whole
steps of training.
"""

from collections.abc import Callable
from typing import Any

import gradopt as go
import numpy as np
import optree
import pytest
from gradopt.dialect import reference
from gradopt.dialect.threefry import ThreefryOp

from .helpers import compile_many, linalg_function, run_reference, spec
from .test_loss import POINTS, both
from .test_random import KEY, KNOWN

pytestmark = pytest.mark.compiler
rng = np.random.default_rng(9)
INF, NAN = np.inf, np.nan


def compiled(functions: dict[str, tuple[Callable[..., Any], list[np.ndarray]]]) -> dict[str, Any]:
    """Results of many functions on their arguments, by IREE and by the reference."""
    texts = {n: linalg_function(f, n, *a) for n, (f, a) in functions.items()}
    callables = compile_many(texts)
    found = {}
    for name, (fn, arrays) in functions.items():
        want = run_reference(fn, *arrays)
        found[name] = callables[name]([spec(w) for w in want], *arrays), want
    return found


# --- random numbers -------------------------------------------------------------------------------

SHAPES = [(), (1,), (17,), (33, 1), (100003,), (128, 1024), (3, 5, 7, 11), (2, 0, 3)]


def test_bits() -> None:
    """C107: the known answers, and the bits of small, odd, long and deep shapes."""
    words = [np.full((2,), k, np.uint32) for k, *_ in KNOWN]
    functions: dict[str, Any] = {
        f"answer{i}": (ThreefryOp.build, [w, w[:1], w[:1]]) for i, w in enumerate(words)
    }
    for i, shape in enumerate(SHAPES):
        functions[f"bits{i}"] = (lambda k, s=shape: go.random.bits(k, s), [KEY])
        functions[f"uniform{i}"] = (lambda k, s=shape: go.random.uniform(k, s), [KEY])
    found = compiled(functions)
    for i, (_, _, first, second) in enumerate(KNOWN):
        assert [int(w[0]) for w in found[f"answer{i}"][0]] == [first, second]
    for got, want in found.values():
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(a, b)


def test_whole_numbers_and_booleans_are_the_same() -> None:
    found = compiled(
        {
            "integers": (lambda k: go.random.randint(k, (1001,), -7, 2**31 - 8), [KEY]),
            "mask": (lambda k: go.random.bernoulli(k, 0.3, (1001,)), [KEY]),
            "order": (lambda k: go.random.permutation(k, 1025), [KEY]),
            "keys": (lambda k: go.random.split(k, 9), [KEY]),
            "key_of_step": (go.random.fold_in, [KEY, np.array(-3, np.int32)]),
            "key_of_seed": (go.random.key, [np.array(-(2**40) - 5, np.int64)]),
            "class": (lambda k: go.random.categorical(k, np.zeros((50, 7), "f")), [KEY]),
        }
    )
    for got, want in found.values():
        np.testing.assert_array_equal(got[0], want[0])


def test_unknown_extents() -> None:
    """A mask for a batch that is known when the function runs: that of the known one."""

    def fn(x: Any, key: Any) -> Any:
        return go.dropout(x, 0.5, key), go.random.bits(key, x), go.dropout(x, 0.5, key, (None, 1))

    x = np.ones((5, 3), np.float32)
    function = go.compile(fn)
    for n in (5, 2):
        for got, want in zip(function(x[:n], KEY), run_reference(fn, x[:n], KEY), strict=True):
            np.testing.assert_array_equal(got, want)
    graph = go.trace(fn, go.TensorSpec((None, 3)), spec(KEY), name="loose")
    want = reference.run(graph.module, "loose", x, KEY)
    text = loose_function(fn, "loose", go.TensorSpec((None, 3)), spec(KEY))
    got = compile_many({"loose": text})["loose"]([spec(w) for w in want], x, KEY)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


def loose_function(fn: Callable[..., Any], name: str, *specs: go.TensorSpec) -> str:
    """`linalg_function` for given types."""
    from gradopt.lowering import pipeline

    graph = go.trace(fn, *specs, name=name)
    pipeline.run(graph.module, "gradopt-lower")
    body = list(graph.module.body.operations)
    return "\n".join(op.operation.get_asm(use_local_scope=True) for op in body)


def test_gradient_of_dropout_uses_the_mask_of_the_value() -> None:
    """C047, with the mask drawn anew in each."""

    def fn(x: Any, key: Any) -> Any:
        y = go.dropout(x, 0.5, key)
        return y, go.grad(lambda x: go.dropout(x, 0.5, key).sum())(x)

    y, gradient = map(np.asarray, go.compile(fn)(np.ones(1000, np.float32), KEY))
    np.testing.assert_array_equal(y, gradient)
    assert set(np.unique(y)) == {0, 2}


# --- known answers --------------------------------------------------------------------------------


def test_points_of_losses() -> None:
    """C074, C076, C079 and the others of test_loss.py."""
    functions: dict[str, Any] = {}
    for i, (fn, arguments, _, _) in enumerate(POINTS.values()):
        arrays = [np.asarray(a, np.float32) for a in arguments]

        def run(*x: Any, fn: Any = fn) -> Any:
            return fn(*x), go.grad(lambda *x: fn(*x).sum())(*x)

        functions[f"point{i}"] = run, arrays
    found = compiled(functions)
    for i, (name, (_, _, value, gradient)) in enumerate(POINTS.items()):
        got = found[f"point{i}"][0]
        np.testing.assert_allclose(got[0], value, rtol=2e-6, atol=1e-6, err_msg=name)
        np.testing.assert_allclose(got[1], gradient, rtol=2e-6, atol=1e-6, err_msg=name)


def test_softmax_of_extremes() -> None:
    """C109: a row with one -inf, one of -3.4e38, one with a NaN, one of -inf alone."""
    x = np.array([[1, -INF, 1], [-3.4e38] * 3, [0, NAN, 0], [-INF] * 3], np.float32)
    got = np.asarray(go.compile(go.softmax)(x))
    third = np.float32(1 / 3)
    np.testing.assert_allclose(got, [[0.5, 0, 0.5], [third] * 3, [NAN] * 3, [0] * 3], rtol=1e-6)


def test_softmax_over_an_unknown_axis() -> None:
    """C110: ones (10, k), k known when the function runs, give 1 / k."""
    text = loose_function(go.softmax, "loose", go.TensorSpec((10, None)))
    function = compile_many({"loose": text})["loose"]
    for k in (1, 10):
        x = np.ones((10, k), np.float32)
        np.testing.assert_allclose(function([spec(x)], x)[0], 1 / k, rtol=1e-6)


@pytest.mark.parametrize("shape", [(0, 5), (3, 0)])
def test_softmax_of_nothing(shape: tuple[int, int]) -> None:
    """C094: softmax and log-softmax of empty arrays, and their gradients, have the same shape."""
    for fn in (go.softmax, go.log_softmax):
        value, gradient = go.compile(lambda x, f=fn: (f(x), go.grad(lambda x: f(x).sum())(x)))(
            np.zeros(shape, np.float32)
        )
        assert np.asarray(value).shape == np.asarray(gradient).shape == shape


def test_masked_rows() -> None:
    """C073: rows that are masked out give zeros and no gradient, in attention and in the loss."""
    q, k, v = (rng.normal(size=(1, 2, 3, 4)).astype(np.float32) for _ in range(3))
    mask = np.array([[1, 1, 0], [0, 0, 0], [0, 1, 0]], bool)

    def attend(q: Any, k: Any, v: Any) -> Any:
        every = (0, 1, 2)
        return go.attention(q, k, v, mask), *go.grad(
            lambda *x: go.attention(*x, mask).square().sum(), argnums=every
        )(q, k, v)

    found = go.compile(attend)(q, k, v)
    for got, want in zip(found, run_reference(attend, q, k, v), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(np.asarray(found[0])[:, :, 1], 0)
    np.testing.assert_array_equal(np.asarray(found[1])[:, :, 1], 0)

    logits = rng.normal(size=(2, 6)).astype(np.float32)
    logits[1] = NAN
    labels = np.array([4, -1], np.int32)

    def loss(x: Any, l: Any) -> Any:
        kept = (l != -1).astype("float32").sum()
        return go.cross_entropy(x, l, ignore_index=-1).sum() / kept

    value, gradient = go.compile(go.value_and_grad(loss))(logits, labels)
    want = both(lambda x: go.cross_entropy(x, labels[:1]), logits[:1].astype(float))
    np.testing.assert_allclose(value, want[0][0], rtol=1e-6)
    np.testing.assert_allclose(np.asarray(gradient)[0], want[1][0], rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(np.asarray(gradient)[1], 0)


ROWS = (3, 7, 12, 15, 16, 31, 40)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_batched_products_of_rows_that_fill_no_tile(dtype: str) -> None:
    """(x - r) y with one number r a row, as behind a softmax, on either side of the product."""
    functions: dict[str, Any] = {}
    for batch in (2, 3):
        for rows in ROWS:
            x, r, y = (
                rng.normal(size=s).astype("f").astype(go.TensorSpec((), dtype).dtype)
                for s in ((batch, rows, 8), (batch, rows), (batch, 8, 5))
            )
            name = f"of{batch}x{rows}"
            functions[f"left_{name}"] = (lambda x, r, y: (x - r[..., None]) @ y, [x, r, y])
            functions[f"right_{name}"] = (
                lambda x, r, y: y.mT @ (x - r[..., None]).mT,
                [x, r, y],
            )
    for name, (got, want) in compiled(functions).items():
        tolerance = 1e-5 if dtype == "float32" else 0.05
        np.testing.assert_allclose(
            got[0].astype(float),
            want[0].astype(float),
            rtol=tolerance,
            atol=tolerance,
            err_msg=name,
        )


# --- whole steps ----------------------------------------------------------------------------------


def train(loss: Callable[..., Any], p: dict[str, np.ndarray], *batch: np.ndarray) -> None:
    """One step of Adam with clipping: the same parameters, slots and loss on IREE and on the
    reference.
    """
    slots = {n: (np.zeros_like(v), np.zeros_like(v)) for n, v in p.items()}

    def step(p: Any, slots: Any, t: Any, *batch: Any) -> Any:
        value, gradient = go.value_and_grad(loss)(p, *batch)
        gradient, norm = go.optim.clip_by_global_norm(gradient, 1.0)
        moved = {
            n: go.optim.adam_update(p[n], gradient[n], 0.01, *slots[n], t, weight_decay=0.1)
            for n in p
        }
        return (
            value,
            norm,
            {n: m[0] for n, m in moved.items()},
            {n: m[1:] for n, m in moved.items()},
        )

    t = np.array(3, np.int32)
    got = optree.tree_leaves(go.compile(step)(p, slots, t, *batch))
    leaves, tree = optree.tree_flatten((p, slots, t, *batch))
    want = run_reference(lambda *x: step(*optree.tree_unflatten(tree, x)), *leaves)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-6)


def normal(*shape: int, scale: float = 1.0) -> np.ndarray:
    return (rng.normal(size=shape) * scale).astype(np.float32)


def test_small_net() -> None:
    """C112: 784-12-4, batch 16, loss, all gradients and the update in one function."""
    p = {"w0": normal(784, 12, scale=0.05), "b0": normal(12), "w1": normal(12, 4), "b1": normal(4)}

    def loss(p: Any, x: Any, y: Any) -> Any:
        return go.cross_entropy(go.relu(x @ p["w0"] + p["b0"]) @ p["w1"] + p["b1"], y).mean()

    train(loss, p, normal(16, 784), rng.integers(0, 4, 16).astype(np.int32))


def test_regularized_net() -> None:
    """Batch norm, dropout, smoothed and weighted labels, and rows that do not count."""
    p = {"w0": normal(20, 12), "g": normal(12), "b": normal(12), "w1": normal(12, 4)}
    stats = (np.zeros(12, np.float32), np.ones(12, np.float32))

    def loss(p: Any, x: Any, y: Any, key: Any) -> Any:
        h, _ = go.batch_norm(x @ p["w0"], p["g"], p["b"], running=stats)
        h = go.dropout(go.gelu(h), 0.3, go.random.fold_in(key, 1))
        options = {"ignore_index": -1, "label_smoothing": 0.1, "weight": np.arange(1.0, 5)}
        return go.cross_entropy(h @ p["w1"], y, **options).mean()

    labels = rng.integers(-1, 4, 16).astype(np.int32)
    train(loss, p, normal(16, 20), labels, KEY)


def test_transformer_layer() -> None:
    """31 tokens, rotary positions, queries that share keys, dropped weights, rms norm."""
    p = {"qkv": normal(16, 32, scale=0.2), "o": normal(16, 16, scale=0.2), "g": normal(16)}

    def loss(p: Any, x: Any, key: Any) -> Any:
        q, k, v = go.split(go.rms_norm(x, p["g"]) @ p["qkv"], (16, 8, 8), axis=-1)
        q, k, v = (z.reshape(2, 31, -1, 4).transpose(0, 2, 1, 3) for z in (q, k, v))
        y = go.attention(go.rotary(q), go.rotary(k), v, causal=True, dropout=0.2, random_key=key)
        y = x + y.transpose(0, 2, 1, 3).reshape(2, 31, 16) @ p["o"]
        return go.huber(y, 0.5).mean()

    train(loss, p, normal(2, 31, 16), KEY)


def test_recurrent_net() -> None:
    """Three steps of an LSTM over one of a GRU."""
    p = {"x": normal(6, 20), "h": normal(5, 20), "gx": normal(5, 9), "gh": normal(3, 9)}

    def loss(p: Any, x: Any) -> Any:
        h = c = go.zeros((4, 5))
        for z in x @ p["x"]:
            h, c = go.lstm_cell(z + h @ p["h"], c)
        s = go.gru_cell(h @ p["gx"], go.zeros((4, 3)) @ p["gh"], go.zeros((4, 3)))
        return go.bce_with_logits(s, 0.25).mean() + p["gh"].sum() * 1e-3

    train(loss, p, normal(3, 4, 6))


def test_bias_of_a_one_hot_loss() -> None:
    """C118: mean(-sum(onehot * (x W + b))) with its gradients by W and b."""
    x, hot = normal(2, 7), np.eye(3, dtype=np.float32)[:2]

    def loss(w: Any, b: Any) -> Any:
        return (-(hot * (x @ w + b)).sum(1)).mean()

    got = go.compile(go.grad(loss, argnums=(0, 1)))(normal(7, 3), normal(3))
    np.testing.assert_allclose(got[0], -x.T @ hot / 2, rtol=1e-6)
    np.testing.assert_allclose(got[1], -hot.sum(0) / 2, rtol=1e-6)


def test_layer_norm_over_a_long_axis_in_float64() -> None:
    """C118: layer norm over the channels of (10, 32, 42, 32) in float64."""
    x = rng.normal(size=(10, 32, 42, 32))

    def both_ways(x: Any) -> Any:
        return go.layer_norm(x), go.grad(lambda x: go.layer_norm(x).tanh().sum())(x)

    for got, want in zip(go.compile(both_ways)(x), run_reference(both_ways, x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-10)
