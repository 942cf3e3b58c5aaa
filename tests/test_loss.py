# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Losses where formulas go wrong: zeros, infinities, kinks, rows that do not count, misfits."""

from collections.abc import Callable
from typing import Any

import gradopt as go
import numpy as np
import pytest
from gradopt.errors import OpError

from .helpers import run_reference

INF, NAN = np.inf, np.nan
rng = np.random.default_rng(6)


def both(fn: Callable[..., Any], *arrays: Any) -> tuple[np.ndarray, np.ndarray]:
    """fn and the gradient of its sum by the first argument, in float64."""
    inputs = [np.asarray(a, np.float64) if np.asarray(a).dtype.kind == "f" else a for a in arrays]

    def run(*x: Any) -> Any:
        return fn(*x), go.grad(lambda *x: fn(*x).sum())(*x)

    value, gradient = run_reference(run, *inputs)
    return value, gradient


POINTS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Any, Any]] = {
    # name: function, arguments, values, gradients
    "C076: bce_with_logits at 0": (go.bce_with_logits, ([0.0], [0.0]), [np.log(2)], [0.5]),
    "C076: with a weight": (
        lambda x, t: go.bce_with_logits(x, t, pos_weight=3.0),
        ([0.0], [0.0]),
        [np.log(2)],
        [0.5],
    ),
    "C076: softplus at 0": (go.softplus, ([0.0],), [np.log(2)], [0.5]),
    "bce_with_logits far out": (
        go.bce_with_logits,
        ([1e4, -1e4, 1e4], [1.0, 0.0, 0.0]),
        [0, 0, 1e4],
        [0, 0, 1],
    ),
    "bce of certainty": (go.bce, ([0.0, 1.0], [0.0, 1.0]), [0, 0], [1, -1]),
    "bce against certainty": (go.bce, ([0.0, 1.0], [1.0, 0.0]), [INF, INF], [-INF, INF]),
    "C074: softplus far out": (
        go.softplus,
        ([20.0, 50.0, 100.0],),
        [20 + 2.061153618190204e-9, 50, 100],
        [1 / (1 + np.exp(-20)), 1, 1],
    ),
    "C074: softplus of beta 5": (lambda x: go.softplus(x * 5) / 5, ([20.0],), [20], [1]),
    "C067: power 0.5": (lambda x: go.pow(x, 0.5), ([0.0, 4.0],), [0, 2], [0, 0.25]),
    "C067: root": (go.sqrt, ([0.0, 4.0],), [0, 2], [0, 0.25]),
    "C079: relu6 at its bounds": (
        go.relu6,
        ([-1.0, 0.0, 3.0, 6.0, 7.0],),
        [0, 0, 3, 6, 6],
        [0, 0, 1, 0, 0],
    ),
    "kl_div of nothing": (go.kl_div, ([-INF, -1.0], [0.0, 1.0]), [0, 1], [0, -1]),
    "huber at its joints": (
        go.huber,
        ([-1.0, 1.0, 0.0, 3.0], [0.0] * 4),
        [0.5, 0.5, 0, 2.5],
        [-1, 1, 0, 1],
    ),
    "smooth_l1 at its joints": (
        lambda x, t: go.smooth_l1(x, t, beta=2.0),
        ([-2.0, 2.0, 0.0, 4.0], [0.0] * 4),
        [1, 1, 0, 3],
        [-1, 1, 0, 1],
    ),
    "mae of the target": (go.mae, ([1.0], [1.0]), [0], [0]),
    "hinge at its kink": (go.hinge, ([1.0, 0.5, 2.0], [1.0] * 3), [0, 0.5, 0], [0, -1, 0]),
    "gaussian_nll of variance 0": (
        lambda v, x: go.gaussian_nll(x, x, v, eps=0.5),
        ([0.0, 2.0], [1.0, 1.0]),
        [0.5 * np.log(0.5), 0.5 * np.log(2)],
        [0, 0.25],
    ),
    "poisson_nll of no counts": (
        lambda x, t: go.poisson_nll(x, t, full=True),
        ([0.0], [0.0]),
        [1],
        [1],
    ),
    "cosine_similarity of 0": (
        go.cosine_similarity,
        ([[0.0, 0.0], [3.0, 4.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 0.0], [0.0, 2.0]]),
        [0, 0, 0],
        [[0, 0], [0, 0], [0, 1]],
    ),
    "triplet_margin of one point": (go.triplet_margin, ([[1.0]], [[1.0]], [[1.0]]), [1], [[0]]),
    "focal far out": (go.focal, ([1e4, -1e4], [1.0, 0.0]), [0, 0], [0, 0]),
    "soft labels on a mask": (
        go.cross_entropy,
        ([[0.0, 0.0, -INF]], [[0.5, 0.5, 0.0]]),
        [np.log(2)],
        [[0, 0, 0]],
    ),
}


@pytest.mark.parametrize("name", list(POINTS))
def test_point(name: str) -> None:
    fn, arguments, value, gradient = POINTS[name]
    got = both(fn, *arguments)
    np.testing.assert_allclose(got[0], value, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(got[1], gradient, rtol=1e-12, atol=1e-12)


LABELS = np.array([2, -100, 0], np.int32)


@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}, {"weight": np.ones(4)}], ids=str)
def test_ignored_rows(options: dict[str, Any]) -> None:
    """C073: what stands in a row that is ignored does not matter; the others are as without it."""
    x = rng.normal(size=(3, 4))
    x[1] = [NAN, INF, -INF, 1]

    def loss(x: Any, labels: Any) -> Any:
        return go.cross_entropy(x, labels, ignore_index=-100, **options)

    value, gradient = both(loss, x, LABELS)
    kept, kept_gradient = both(
        lambda x, l: go.cross_entropy(x, l, **options), x[[0, 2]], LABELS[[0, 2]]
    )
    np.testing.assert_allclose(value, [kept[0], 0, kept[1]], rtol=1e-12)
    np.testing.assert_allclose(gradient[[0, 2]], kept_gradient, rtol=1e-12, atol=1e-15)
    np.testing.assert_array_equal(gradient[1], 0)


def test_nll_loss_ignores_rows() -> None:
    x = np.array([[-1.0, -2.0, -3.0, -4.0], [NAN, -INF, 0, 0], [-5.0, 0, 0, 0]])
    value, gradient = both(lambda x, l: go.nll_loss(x, l, ignore_index=-100), x, LABELS)
    np.testing.assert_array_equal(value, [3, 0, 5])
    np.testing.assert_array_equal(gradient, [[0, 0, -1, 0], [0] * 4, [-1, 0, 0, 0]])


def test_spellings_agree() -> None:
    """Integer labels, probabilities, log-probabilities: the same loss and gradient."""
    x, labels, w = rng.normal(size=(5, 4)), np.array([0, 3, 1, 1, 2], np.int32), np.arange(1.0, 5)
    hot = np.eye(4)[labels]
    for options in ({}, {"weight": w}, {"label_smoothing": 0.2, "weight": w}):
        want = both(lambda x, l, o=options: go.cross_entropy(x, l, **o), x, labels)
        soft = both(lambda x, t, o=options: go.cross_entropy(x, t, **o), x, hot)
        for a, b in zip(soft, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)
        if "label_smoothing" not in options:
            logs = both(lambda x, l, o=options: go.nll_loss(go.log_softmax(x), l, **o), x, labels)
            for a, b in zip(logs, want, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


def test_gradient_by_the_weight() -> None:
    labels = np.array([1, 1, 0], np.int32)
    x = np.zeros((3, 2))
    _, gradient = both(lambda w: go.cross_entropy(x, labels, weight=w), np.ones(2))
    np.testing.assert_allclose(gradient, [np.log(2), 2 * np.log(2)])


def test_losses_of_16_bits() -> None:
    """Computed in float32: the square of 300 does not overflow before the root is taken."""
    a = np.full((1, 4), 300, np.float16)
    assert run_reference(go.cosine_similarity, a, a)[0] == 1
    assert run_reference(lambda x: go.triplet_margin(x, -x, x), a)[0] == 1201


def test_plain_cross_entropy_is_the_plain_op() -> None:
    graph = go.trace(go.cross_entropy, go.TensorSpec((3, 4)), go.TensorSpec((3,), "int32"))
    assert '"gradopt.cross_entropy"' in graph.mlir()


def test_losses_broadcast_and_promote() -> None:
    got = run_reference(lambda x: go.huber(x, 1), np.zeros((2, 3), np.float32))[0]
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, 0.5)
    assert run_reference(go.mse, np.zeros((2, 1)), np.ones(3))[0].shape == (2, 3)


@pytest.mark.parametrize("shape", [(0, 4), (2, 0, 4)])
def test_no_rows(shape: tuple[int, ...]) -> None:
    """C094: no rows give no losses, and gradients of the shape of the logits."""
    x, labels = np.zeros(shape), np.zeros(shape[:-1], np.int32)
    for fn in (
        lambda x, l: go.cross_entropy(x, l, label_smoothing=0.1),
        lambda x, l: go.nll_loss(x, l),
        lambda x, l: go.cross_entropy(x, go.one_hot(l, 4)),
    ):
        value, gradient = both(fn, x, labels)
        assert (value.shape, gradient.shape) == (shape[:-1], shape)


X = go.TensorSpec((2, 3))
MISFITS = {
    "integer labels of shape": lambda x: go.cross_entropy(x, np.zeros(3, np.int32), 1),
    "logits and probabilities of one type": lambda x: go.cross_entropy(x, np.ones((2, 4))),
    "integer labels to ignore some": lambda x: go.cross_entropy(x, x, ignore_index=0),
    r"smoothing in \[0, 1\]": lambda x: go.cross_entropy(
        x, np.zeros(2, np.int32), label_smoothing=2
    ),
    "at most one weight of type tensor<3xf32>": lambda x: go.nll_loss(
        x, np.zeros(2, np.int32), weight=np.ones(2)
    ),
    "a positive delta": lambda x: go.huber(x, x, delta=0),
    "a positive beta, got 0.0; use mae": lambda x: go.smooth_l1(x, x, beta=0),
    "a positive eps": lambda x: go.gaussian_nll(x, x, x, eps=0),
    "shapes that broadcast together": lambda x: go.mse(x, np.ones(4)),
}


@pytest.mark.parametrize("message", list(MISFITS))
def test_misfit(message: str) -> None:
    with pytest.raises(OpError, match=message):
        go.trace(MISFITS[message], X)
