# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Normalization: running statistics, modes, 16 bits, and that layers are what they were."""

from typing import Any

import gradopt as go
import numpy as np
import pytest
from gradopt.errors import OpError
from gradopt.lowering import pipeline

from .helpers import run_reference

rng = np.random.default_rng(5)


def ones_gradient(fn: Any, *arrays: np.ndarray) -> np.ndarray:
    """The gradient of the sum of fn by its first argument."""
    return run_reference(go.grad(lambda *x: fn(*x).sum()), *arrays)[0]


def test_running_mean_moves_once() -> None:
    """C046: batch mean 1, running mean 0, momentum 0.9: the running mean becomes 0.1, also in the
    derived function.
    """
    x = np.array([[0.0], [2.0]])
    stats = np.zeros(1), np.ones(1)

    def layer(x: Any, m: Any, v: Any) -> Any:
        y, running = go.batch_norm(x, running=(m, v), momentum=0.9)
        return y, running

    _, mean, var = run_reference(layer, x, *stats)
    np.testing.assert_allclose([mean, var], [[0.1], [1.0]])

    def step(x: Any, m: Any, v: Any) -> Any:
        def loss(x: Any) -> Any:
            y, running = layer(x, m, v)
            return (y * np.array([[1.0], [3.0]])).sum(), running

        return go.value_and_grad(loss, has_aux=True)(x)

    _, mean, var, _ = run_reference(step, x, *stats)
    np.testing.assert_allclose([mean, var], [[0.1], [1.0]])


def test_unbiased_running_variance() -> None:
    """The batch's variance 1 of 2 elements is 2 if divided by n - 1; y is not affected."""
    x, stats = np.array([[0.0], [2.0]]), (np.zeros(1), np.zeros(1))
    results = [
        run_reference(
            lambda x, m, v, u=u: go.batch_norm(x, running=(m, v), momentum=0.5, unbiased=u),
            x,
            *stats,
        )
        for u in (False, True)
    ]
    np.testing.assert_allclose([r[2] for r in results], [[0.5], [1.0]])
    np.testing.assert_array_equal(results[0][0], results[1][0])


def test_predict_mode() -> None:
    """C025: running mean 0, variance 1, gamma 2, eps 0: the gradient is 2 everywhere."""

    def layer(x: Any) -> Any:
        gamma, stats = np.full(3, 2.0), (np.zeros(3), np.ones(3))
        return go.batch_norm(x, gamma, running=stats, training=False, eps=0.0)[0]

    np.testing.assert_array_equal(ones_gradient(layer, rng.normal(size=(4, 3))), 2)


def test_predict_mode_does_not_use_the_batch() -> None:
    """C026: the gradient is 1 / sqrt(1 + 1e-5) everywhere."""

    def layer(x: Any) -> Any:
        stats = (np.zeros(100), np.ones(100))
        return go.batch_norm(x, np.ones(100), np.zeros(100), running=stats, training=False)[0]

    got = ones_gradient(layer, rng.normal(size=(16, 100)))
    np.testing.assert_allclose(got, 1 / np.sqrt(1 + 1e-5), rtol=1e-12)


def test_modes_agree_on_the_running_statistics() -> None:
    x = rng.normal(size=(8, 3))
    m, v = x.mean(0), x.var(0)

    def both(x: Any, m: Any, v: Any) -> Any:
        trained, _ = go.batch_norm(x, running=(m, v))
        fixed, (same_m, same_v) = go.batch_norm(x, running=(m, v), training=False)
        return trained, fixed, same_m, same_v

    trained, fixed, same_m, same_v = run_reference(both, x, m, v)
    np.testing.assert_allclose(trained, fixed, rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal([same_m, same_v], [m, v])


def test_first_output_only() -> None:
    """C148: the gradient of a layer norm of which only the first result is used."""
    x, g, ct = rng.normal(size=(4, 6)), rng.normal(size=6), rng.normal(size=(4, 6))

    def loss(x: Any) -> Any:
        return (go.layer_norm(x, g) * ct).sum()

    got, h = run_reference(go.grad(loss), x)[0], 1e-6
    for place in ((0, 0), (3, 5), (2, 1)):
        moved = [x.copy(), x.copy()]
        moved[0][place] += h
        moved[1][place] -= h
        up, down = (run_reference(loss, m)[0] for m in moved)
        np.testing.assert_allclose(got[place], (up - down) / (2 * h), rtol=1e-6, atol=1e-8)


def simplified(fn: Any, *shapes: tuple[int, ...]) -> list[str]:
    """Names of the ops of fn's gradient once it is written out and simplified."""
    specs = [go.TensorSpec(s) for s in shapes]
    graph = go.trace(go.grad(lambda *x: fn(*x).sum(), argnums=0), *specs, name="f")
    pipeline.run(graph.module, ",".join(filter(None, list(pipeline.STAGES.values())[:3])))
    (function,) = graph.module.body.operations
    return [op.operation.name for op in function.entry_block.operations]


def test_layer_norm_costs_what_its_parts_cost() -> None:
    """The layer leaves the same ops as `normalize`, scale and shift."""
    from gradopt.dialect.norm import NormalizeOp

    def parts(x: Any, g: Any, b: Any) -> Any:
        return (NormalizeOp.emit(x, axes=(1,))[0] * g + b).tanh()

    def layer(x: Any, g: Any, b: Any) -> Any:
        return go.layer_norm(x, g, b).tanh()

    shapes = (8, 16), (16,), (16,)
    assert simplified(layer, *shapes) == simplified(parts, *shapes)


def test_statistics_of_16_bits() -> None:
    """Far from 0, where float16 has steps of 1: computed in float32, rounded once."""
    x = (2048 + np.arange(8) % 2 * 4).astype(np.float16).reshape(8, 1)
    for fn in (
        lambda x: go.layer_norm(x.T),
        lambda x: go.batch_norm(x, running=(np.zeros(1, "f"), np.ones(1, "f")))[0].T,
        lambda x: go.group_norm(x.reshape(1, 8, 1), 1).reshape(1, 8),
        lambda x: go.instance_norm(x.reshape(1, 8, 1)).reshape(1, 8),
    ):
        got = run_reference(fn, x)[0]
        assert got.dtype == np.float16
        np.testing.assert_array_equal(got, [[-1, 1] * 4])


def test_statistics_keep_their_type() -> None:
    """Running statistics in float32 beside activations in bfloat16."""
    y, (m, v) = (
        go.trace(
            lambda x, m, v: go.batch_norm(x, running=(m, v)),
            go.TensorSpec((4, 3), "bfloat16"),
            go.TensorSpec((3,)),
            go.TensorSpec((3,)),
        ).output_specs[0],
        (go.TensorSpec((3,)),) * 2,
    )
    assert (y.dtype.name, m.dtype.name, v.dtype.name) == ("bfloat16", "float32", "float32")


def test_scale_of_another_type() -> None:
    """A float32 scale of bfloat16 rows gives float32, as in arithmetic."""
    specs = go.TensorSpec((4, 3), "bfloat16"), go.TensorSpec((3,))
    assert go.trace(go.layer_norm, *specs).output_specs == [go.TensorSpec((4, 3))]


def test_shift_without_scale() -> None:
    x, b = rng.normal(size=(4, 3)), rng.normal(size=3)
    stats = (np.zeros(3), np.ones(3))
    for fn in (
        lambda x, b: go.layer_norm(x, beta=b) - go.layer_norm(x),
        lambda x, b: go.batch_norm(x, beta=b) - go.batch_norm(x),
        lambda x, b: go.batch_norm(x, None, b, running=stats)[0] - go.batch_norm(x),
        lambda x, b: go.group_norm(x, 3, beta=b) - go.group_norm(x, 3),
    ):
        np.testing.assert_allclose(run_reference(fn, x, b)[0], np.broadcast_to(b, (4, 3)))


X = go.TensorSpec((4, 6))
MISFITS = {
    "a number of axes to normalize in": lambda x: go.layer_norm(x, axes=3),
    "a number of groups that divides the 6 channels, got 4": lambda x: go.group_norm(x, 4),
    "at least one more axis": lambda x: go.instance_norm(x),
    "mean and variance of one floating-point type": lambda x: go.batch_norm(
        x, running=(np.zeros(5), np.ones(5))
    ),
    "a momentum in": lambda x: go.batch_norm(x, running=(np.zeros(6), np.ones(6)), momentum=1.5),
    "at most 2 tensors of type tensor<6xf32>": lambda x: go.instance_norm(
        x.reshape(2, 2, 6), np.ones(5)
    ),
}


@pytest.mark.parametrize("message", list(MISFITS))
def test_misfit(message: str) -> None:
    with pytest.raises(OpError, match=message):
        go.trace(MISFITS[message], X)
