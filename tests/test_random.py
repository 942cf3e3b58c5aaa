# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Random numbers and dropout on the reference: known answers, keys, distributions, masks."""

from collections.abc import Callable
from typing import Any

import gradopt as go
import numpy as np
import pytest
import scipy.stats
from gradopt.dialect.threefry import ThreefryOp
from gradopt.errors import OpError

from .helpers import run_reference

KEY = go.random.key(42)
MANY = 20000


def drawn(function: Callable[..., Any], *arguments: Any, **options: Any) -> np.ndarray:
    """What a function of `go.random` gives for KEY, on the reference."""
    return run_reference(lambda key: function(key, *arguments, **options), KEY)[0]


KNOWN = [
    (0, 0, 0x6B200159, 0x99BA4EFE),
    (2**32 - 1, 2**32 - 1, 0x1CB996FC, 0xBB002BE7),
]
"""Words of the key and of the counter, and the words of the block: the first and the second vector
of the authors' known answers.
"""


@pytest.mark.parametrize(("key", "counter", "first", "second"), KNOWN)
def test_known_answers(key: int, counter: int, first: int, second: int) -> None:
    """C107: Threefry-2x32 with 20 rounds."""
    words = [np.array(counter, np.uint32)] * 2
    found = ThreefryOp.evaluate(np.full(2, key, np.uint32), *words)
    assert [int(w) for w in found] == [first, second]


def test_key() -> None:
    """The words are the upper and the lower half of the seed, from numbers and from tensors."""
    for seed in (0, 1, -1, 2**40 + 5, -(2**63), 2**63 - 1):
        words = [(seed >> 32) % 2**32, seed % 2**32]
        np.testing.assert_array_equal(go.random.key(seed), words)
        np.testing.assert_array_equal(run_reference(go.random.key, np.int64(seed))[0], words)
    found = run_reference(go.random.key, np.int32(-1))[0]
    np.testing.assert_array_equal(found, [0, 2**32 - 1])


def test_keys_of_arrays_and_tensors_agree() -> None:
    split, folded = run_reference(lambda k: (go.random.split(k, 5), go.random.fold_in(k, 3)), KEY)
    np.testing.assert_array_equal(go.random.split(KEY, 5), split)
    np.testing.assert_array_equal(go.random.fold_in(KEY, 3), folded)
    np.testing.assert_array_equal(folded, split[3])
    of_step = run_reference(go.random.fold_in, KEY, np.int64(3))[0]
    np.testing.assert_array_equal(of_step, folded)


def test_numbers_do_not_depend_on_each_other() -> None:
    """A longer row begins with the shorter one; the shape only arranges."""
    np.testing.assert_array_equal(
        drawn(go.random.bits, (6,)), drawn(go.random.bits, (2, 5)).ravel()[:6]
    )


def test_shape_of_a_tensor() -> None:
    x = np.zeros((3, 4), np.float32)
    got = run_reference(lambda k, x: go.random.normal(k, x), KEY, x)[0]
    np.testing.assert_array_equal(got, drawn(go.random.normal, (3, 4)))
    graph = go.trace(go.random.bits, go.TensorSpec((2,), "uint32"), go.TensorSpec((None, None)))
    assert graph.output_specs == [go.TensorSpec((None, None), "uint32")]


DISTRIBUTIONS = {
    "uniform": (go.random.uniform, {"low": -1, "high": 3}, scipy.stats.uniform(-1, 4)),
    "normal": (go.random.normal, {}, scipy.stats.norm()),
    "exponential": (go.random.exponential, {}, scipy.stats.expon()),
    "gumbel": (go.random.gumbel, {}, scipy.stats.gumbel_r()),
}


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", list(DISTRIBUTIONS))
def test_distribution(name: str, dtype: str) -> None:
    """Kolmogorov and Smirnov's distance of 20000 numbers from the distribution: below 0.0115 with
    probability 0.99, plus what rounding to steps of 1/256 (bfloat16) adds.
    """
    function, options, distribution = DISTRIBUTIONS[name]
    x = drawn(function, (MANY,), dtype=dtype, **options).astype(np.float64)
    distance = scipy.stats.kstest(x, distribution.cdf).statistic
    assert distance < 0.0115 + {"bfloat16": 1 / 256, "float16": 1 / 2048}.get(dtype, 0)


def test_truncated_normal() -> None:
    x = run_reference(lambda k: go.random.truncated_normal(k, -1, 2, (MANY,)), KEY)[0]
    assert -1 <= x.min() < -0.99 and 1.9 < x.max() <= 2
    distribution = scipy.stats.truncnorm(-1, 2)
    assert scipy.stats.kstest(x.astype(float), distribution.cdf).statistic < 0.0115


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_uniform_stays_below_its_end(dtype: str) -> None:
    """Where low + u (high - low) rounds to high, the number before is taken."""
    x = drawn(go.random.uniform, (MANY,), 1.0, 1.03125, dtype=dtype).astype(np.float64)
    assert x.min() >= 1.0
    assert x.max() < 1.03125


def test_bernoulli() -> None:
    for p in (0.0, 0.3, 1.0):
        assert abs(drawn(go.random.bernoulli, p, (MANY,)).mean() - p) < 0.01
    odds = np.array([0.0, 0.5, 1.0], np.float32)
    mean = drawn(lambda k: go.random.bernoulli(k, go.constant(odds), (MANY, 3))).mean(0)
    np.testing.assert_allclose(mean, odds, atol=0.01)


def test_randint() -> None:
    counts = np.bincount(drawn(go.random.randint, (MANY,), 0, 7), minlength=7)
    assert scipy.stats.chisquare(counts).pvalue > 0.01
    x = drawn(go.random.randint, (MANY,), -128, 128, dtype="int8")
    assert (x.min(), x.max()) == (-128, 127)


def test_permutation() -> None:
    orders = [
        run_reference(lambda k: go.random.permutation(k, 4), go.random.key(i))[0]
        for i in range(600)
    ]
    assert all(sorted(o) == [0, 1, 2, 3] for o in orders)
    counts = np.unique(orders, axis=0, return_counts=True)[1]
    assert len(counts) == 24
    assert scipy.stats.chisquare(counts).pvalue > 0.01
    rows = np.arange(8.0).reshape(4, 2)
    moved = run_reference(go.random.permutation, KEY, rows)[0]
    np.testing.assert_array_equal(moved, rows[drawn(go.random.permutation, 4)])
    assert drawn(go.random.permutation, 0).shape == (0,)


def test_categorical() -> None:
    """Counts fit the probabilities; a class of -inf is never drawn."""
    p = np.array([0.1, 0.0, 0.6, 0.3])
    with np.errstate(divide="ignore"):
        logits = np.broadcast_to(np.log(p), (MANY, 4)).astype(np.float32)
    counts = np.bincount(drawn(lambda k: go.random.categorical(k, logits)), minlength=4)
    assert counts[1] == 0
    assert scipy.stats.chisquare(counts[[0, 2, 3]], p[[0, 2, 3]] * MANY).pvalue > 0.01


# --- dropout --------------------------------------------------------------------------------------


def dropped(x: np.ndarray, *arguments: Any, **options: Any) -> list[np.ndarray]:
    """(dropout, gradient of its sum)"""

    def run(x: Any, key: Any) -> Any:
        def fn(x: Any) -> Any:
            return go.dropout(x, arguments[0], key, *arguments[1:], **options)

        return fn(x), go.grad(lambda x: fn(x).sum())(x)

    return run_reference(run, x, KEY)


def test_gradient_uses_the_mask_of_the_value() -> None:
    """C047: the gradient of the sum of dropout of ones is nonzero where the result is, and equal to
    it.
    """
    y, gradient = dropped(np.ones(1000, np.float32), 0.5)
    assert 400 < np.count_nonzero(y) < 600
    assert set(np.unique(y)) == {0, 2}
    np.testing.assert_array_equal(gradient, y)


def test_dropout_of_everything_and_nothing() -> None:
    x = np.array([1.0, np.inf, np.nan, -2.0], np.float32)
    y, gradient = dropped(x, 1.0)
    np.testing.assert_array_equal(y, 0)
    np.testing.assert_array_equal(gradient, 0)
    y, gradient = dropped(x, 0.0)
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(gradient, 1)
    y, gradient = dropped(x, 0.7, training=False)
    np.testing.assert_array_equal(y, x)


def test_rows_are_dropped_together() -> None:
    y, _ = dropped(np.ones((200, 3), np.float32), 0.5, noise_shape=(200, 1))
    assert np.all(y == y[:, :1])
    assert 60 < np.count_nonzero(y[:, 0]) < 140


def test_dropout_scale_is_not_rounded_before_16_bits() -> None:
    y, gradient = dropped(np.full(100, 3, np.float16), 0.1)
    assert set(np.unique(y)) <= {0, np.float16(3 / 0.9)}
    assert set(np.unique(gradient)) <= {0, np.float16(1 / 0.9)}


def test_unknown_extents_of_dropout() -> None:
    specs = (go.TensorSpec((None, 3, None)), go.TensorSpec((2,), "uint32"))
    for shape in (None, (None, 1, None)):
        graph = go.trace(lambda x, k, s=shape: go.dropout(x, 0.5, k, s), *specs)
        assert graph.output_specs == [specs[0]]


# --- misfits --------------------------------------------------------------------------------------

MISFITS = {
    "a key of type tensor<2xui32>, got tensor<2xi32>": lambda k: go.random.bits(
        k.astype("int32"), (2,)
    ),
    "an operand `like` with an unknown extent 0": lambda k: go.random.bits(k, (None, 2)),
    "a floating-point dtype, got int32": lambda k: go.random.normal(k, (2,), "int32"),
    "low <= high": lambda k: go.random.uniform(k, (2,), 1.0, 0.0),
    "an integer dtype, got float32": lambda k: go.random.randint(k, (2,), 0, 2, "float32"),
    "numbers that fit int8": lambda k: go.random.randint(k, (2,), 0, 129, "int8"),
    "a probability in": lambda k: go.random.bernoulli(k, 1.5, (2,)),
    "lower < upper": lambda k: go.random.truncated_normal(k, 9.0, 10.0, (2,)),
    "a rate in": lambda k: go.dropout(np.ones(3), -0.1, k),
    "a noise_shape of extents of 1 or those": lambda k: go.dropout(np.ones((3, 2)), 0.1, k, (3, 3)),
    "expected a key, two uint32 words, got int64 of shape": lambda k: go.random.bits(
        np.array([1, 2]), (2,)
    ),
    "a number of keys of at least 1": lambda k: go.random.split(k, 0),
    "a seed of 64 bits": lambda k: go.random.key(2**64),
    "expected a number in": lambda k: go.random.fold_in(k, -1),
    "an axis of": lambda k: go.random.categorical(k, np.ones((2, 0), np.float32)),
}


@pytest.mark.parametrize("message", list(MISFITS))
def test_misfit(message: str) -> None:
    with pytest.raises(OpError, match=message):
        go.trace(MISFITS[message], go.TensorSpec((2,), "uint32"))
