# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""`x[key]` and `x.at[key]` against NumPy and JAX, over keys of all kinds. test_iree_positions.py
runs POINTS compiled.
"""

from typing import Any

import gradopt as go
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gradopt.dialect import reference
from gradopt.errors import OpError

from .helpers import Point, check_point, lowered, run_reference
from .test_scan import row

rng = np.random.default_rng(6)
ALL = slice(None)
A = np.array
MASK, PLANE = A([True, False, True, True]), rng.integers(0, 2, (4, 5)).astype(bool)
X = np.arange(1.0, 121).reshape(2, 4, 5, 3)
KEYS: list[Any] = [
    0, -1, (ALL, 1), slice(None, None, -1), (..., slice(3, 0, -2), 0), (None, 1, ..., None),
    slice(2, 2), (1, 2, 3, 0), (ALL, slice(None, None, 3)), ...,
    A([1, 0, 1]), (ALL, A([3, -1, 0])), (A([0, 1]), A([2, 3])), (ALL, A([[0], [2]]), A([1, 4, 0])),
    (A([0, 1]), ALL, A([2, 3])), (0, ALL, A([2, 3])), (ALL, A([1, 1]), 0),
    (A([0, 1]), None, A([1, 2])), (ALL, MASK), (ALL, PLANE), MASK[:2], (MASK[:2], ALL, A([1, 2])),
    (..., A([2, 0])), (ALL, slice(1, 3), A([1, 2, 2]), 1),
    (ALL, 0, slice(None, None, -2), A([1, 2])),
    (ALL, A([], int)), (A(1), A(2)), (slice(0, 1), slice(3, None, -1), A([0, 4]), A([0, 2])),
    (None, ALL, None, A([0, 1]), None, A([1, 2])), (ALL, np.zeros((4, 5), bool)), (..., PLANE, 0),
    (ALL, A([0, 1], np.uint8), A([2, 3], np.int64)), (1, A([0, 3]), ALL, None, A([[2], [1]])),
]  # fmt: skip
POINTS: dict[str, Point] = {
    "C043 added to a reversed slice": (
        lambda base, x: base.at[::-1].add(2 * x[::-1]),
        (np.zeros(6, np.float32), np.arange(6, dtype=np.float32)),
        [0, 2, 4, 6, 8, 10],
    ),
    "C019 a row replaced": (
        go.grad(lambda a, b: b.at[1].set(a[0]).sum(), (0, 1)),
        (row([1, 2]), row([0, 1], [2, 3])),
        ([[1, 1]], [[1, 1], [0, 0]]),
    ),
    "C019 a slice replaced by itself": (
        lambda w: w.at[:, 0].set(w[:, 0]),
        (row([1, 2], [3, 4]),),
        [[1, 2], [3, 4]],
    ),
    "reversed and strided": (
        lambda x: (x[::-2], x.at[::-2].set(row(1, 2, 3)), x.at[4:0:-2].multiply(10.0)),
        (np.arange(5, dtype=np.float32),),
        ([4, 2, 0], [3, 1, 2, 3, 1], [0, 1, 20, 3, 40]),
    ),
    "several index arrays": (
        lambda x, i, j: (x[i, j], x.at[i, j].add(1.0), x.at[i, j].max(4.0)),
        (row([1, 2], [3, 5]), np.array([0, 1, 1]), np.array([1, 0, 0])),
        ([2, 3, 3], [[1, 3], [5, 5]], [[1, 4], [4, 5]]),
    ),
    "a mask": (
        lambda x: (x[A([True, False, True])], x.at[A([True, False, True])].set(0.0)),
        (row(1, 2, 3),),
        ([1, 3], [0, 2, 0]),
    ),
    "smaller and larger of a slice": (
        lambda x: (x.at[1:].min(2.0), go.grad(lambda x: x.at[1:].max(2.0).sum())(x)),
        (row(1, 2, 3),),
        ([1, 2, 2], [1, 0.5, 1]),
    ),
    "an array with slices": (
        lambda x, i: (x[::-1, i, 1:], x.at[::-1, i, 1:].set(row([1, 2])[None])),
        (np.zeros((2, 3, 3), np.float32), np.array([2, 0])),
        (np.zeros((2, 2, 2)), [[[0, 1, 2], [0, 0, 0], [0, 1, 2]]] * 2),
    ),
}


@pytest.mark.parametrize("name", POINTS)
def test_reference(name: str) -> None:
    check_point(POINTS[name])


@pytest.mark.parametrize("key", KEYS, ids=lambda k: repr(k).replace("\n", "")[:60])
def test_keys(key: Any) -> None:
    """Values, all updates, updates by one number, and gradients."""
    want = X[key]
    u = rng.uniform(0, 100, want.shape)
    (got,) = run_reference(lambda x: x[key], X)
    np.testing.assert_array_equal(got, want)
    replaced, one = X.copy(), X.copy()
    replaced[key], one[key] = u, 7
    np.testing.assert_array_equal(run_reference(lambda x, u: x.at[key].set(u), X, u)[0], replaced)
    np.testing.assert_array_equal(run_reference(lambda x: x.at[key].set(7), X)[0], one)
    for method in ("add", "multiply", "max", "min"):
        (got,) = run_reference(lambda x, u, m=method: getattr(x.at[key], m)(u), X, u)
        np.testing.assert_allclose(got, getattr(jnp.asarray(X).at[key], method)(u), rtol=1e-12)

    def loss(x: Any, u: Any) -> Any:
        parts = x.at[key].set(u) ** 2, x.at[key].add(u) ** 2 * 3, x[key] ** 2
        return parts[0].sum() + parts[1].sum() + parts[2].sum()

    got = run_reference(go.grad(loss, (0, 1)), X, u)
    want = jax.grad(lambda x, u: loss(jnp.asarray(x), u), (0, 1))(X, u)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_lists_and_tensors() -> None:
    i = np.array([1, 0], np.int32)
    got = run_reference(lambda x, i: (x[[1, 0]], x[i], x[i, [0, 2]], x.at[[0]].get()), X, i)
    for a, b in zip(got, (X[[1, 0]], X[i], X[i, [0, 2]], X[[0]]), strict=True):
        np.testing.assert_array_equal(a, b)


def test_unknown_extents() -> None:
    """Axes of unknown extent are kept whole."""
    fn = lambda x: (x[:, 1], x[:, [1, 0]], x.at[:, 1:].set(0.0), x.at[:, [0]].add(1.0))  # noqa: E731
    graph = go.trace(fn, go.TensorSpec((None, 3)))
    x = row([1, 2, 3], [4, 5, 6])
    got = reference.run(lowered(graph).module, graph.name, x)
    np.testing.assert_array_equal(got[0], [2, 5])
    np.testing.assert_array_equal(got[1], [[2, 1], [5, 4]])
    np.testing.assert_array_equal(got[2], [[1, 0, 0], [4, 0, 0]])
    np.testing.assert_array_equal(got[3], [[2, 2, 3], [5, 5, 6]])


def test_a_slice_is_not_scattered() -> None:
    """C043: parts named by slices are written by padding or choosing."""
    text = go.trace(
        lambda x: (x.at[::-1].set(1.0), x.at[1::2].add(1.0), x.at[0].max(1.0)), go.TensorSpec((6,))
    ).mlir()
    assert "scatter" not in text


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ((0, 0, 0, 0, 0), "expected at most 4 indices"),
        ((..., 0, ...), "expected at most one `...`"),
        (2, r"expected an index in \[-2, 2\) on axis 0"),
        (slice(None, None, 0), "expected a step other than 0"),
        (np.array([True, False, True]), r"expected a mask of shape \(2,\)"),
        (1.5, "expected an index of integers, slices"),
        ("a", "expected an index of integers, slices"),
        ((np.array([0, 1]), np.array([0, 1, 2])), "expected shapes that broadcast together"),
    ],
)
def test_misfits(key: Any, message: str) -> None:
    for fn in (lambda x: x[key], lambda x: x.at[key].set(0.0)):
        with pytest.raises(OpError, match=message):
            go.trace(fn, go.TensorSpec((2, 4, 5, 3)))
