# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Running sums and the like at hard points: zeros, ties, infinities, nothing, long axes, second
derivatives. test_iree_positions.py runs the same points compiled.
"""

from collections.abc import Callable
from typing import Any

import gradopt as go
import jax
import numpy as np
import pytest
from gradopt.errors import OpError

from .helpers import Point, check_point, run_reference

INF, NAN = np.inf, np.nan


def row(*values: Any, dtype: Any = np.float32) -> np.ndarray:
    return np.array(values, dtype)


def total(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The gradient of the sum of fn(x)."""
    return go.grad(lambda x: fn(x).sum())


def twice(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The gradient of the sum of the squared gradient of fn."""
    return go.grad(lambda x: go.grad(fn)(x).square().sum())


def weighted(x: Any) -> Any:
    return (go.cumsum(x) * row(1, 10, 100)).sum()


POINTS: dict[str, Point] = {
    "C059 a zero": (go.grad(lambda x: go.cumprod(x).square().sum()), (row(1, 0),), [2, 0]),
    "C059 a zero inside": (total(go.cumprod), (row(2, 0, 3),), [1, 8, 0]),
    "C059 two zeros": (total(go.cumprod), (row(2, 0, 3, 0, 5),), [1, 8, 0, 0, 0]),
    "C059 reversed": (
        total(lambda x: go.cumprod(x, reverse=True)),
        (row(3, 0, 2),),
        [0, 8, 1],
    ),
    "C059 twice": (twice(lambda x: go.cumprod(x).sum()), (row(2, 0, 3),), [64, 8, 32]),
    "C058 products": (
        lambda *rows: tuple(total(lambda x: x.prod())(r) for r in rows),
        (row(4, 0), row(4, 0, 0), row(0, 2, 3)),
        ([0, 4], [0, 0, 0], [6, 0, 0]),
    ),
    "a zero before numbers that overflow": (
        go.cumprod,
        (np.concatenate([[0], np.full(300, 1e30)]).astype(np.float32),),
        np.zeros(301),
    ),
    "C071 a prefix of -inf": (go.cumlogsumexp, (row(-INF, -INF, 1),), [-INF, -INF, 1]),
    "C071 gradient": (total(go.cumlogsumexp), (row(-INF, -INF, 1),), [0, 0, 1]),
    "C071 only -inf": (total(go.cumlogsumexp), (row(-INF, -INF),), [0, 0]),
    "C071 reversed": (
        lambda x: go.cumlogsumexp(x, reverse=True),
        (row(1, -INF, -INF),),
        [1, -INF, -INF],
    ),
    "logsumexp without overflow": (
        go.cumlogsumexp,
        (row(1000, 1000, -1000),),
        [1000, 1000 + np.log(2), 1000 + np.log(2)],
    ),
    "gradient of logsumexp without overflow": (
        total(go.cumlogsumexp),
        (row(1000, 1000, -1000, dtype=np.float64),),
        [2, 1, 0],
    ),
    "gradient of logsumexp at inf": (total(go.cumlogsumexp), (row(0, INF)[:1],), [1]),
    "C106 gradient of a sum": (go.grad(weighted), (row(1, 2, 3),), [111, 110, 100]),
    "C106 reversed sum": (lambda x: go.cumsum(x, reverse=True), (row(1, 2, 3),), [6, 5, 3]),
    "C106 reversed long": (
        lambda x: go.cumsum(x, axis=1, reverse=True),
        (np.ones((2, 1000), np.float32),),
        np.broadcast_to(np.arange(1000, 0, -1), (2, 1000)),
    ),
    "C098 sums of nothing": (
        lambda x: (go.cumsum(x, 1), go.cumprod(x, 1), total(lambda v: go.cumsum(v, 1))(x)),
        (np.ones((2, 0), np.float32),),
        (np.ones((2, 0)),) * 3,
    ),
    "C098 all scans of nothing, either axis": (
        lambda x: tuple(
            total(lambda v, f=f, a=a: f(v, a))(x)
            for f in (go.cumsum, go.cumprod, go.cummax, go.cummin, go.cumlogsumexp)
            for a in (0, 1)
        ),
        (np.ones((2, 0), np.float32),),
        (np.ones((2, 0)),) * 10,
    ),
    # ties share evenly, as in the max of what came so far
    "ties of a maximum": (
        total(go.cummax),
        (row(1, 1, 0, 1),),
        [1 + 0.5 + 0.5 + 1 / 3, 1 + 1 / 3, 0, 1 / 3],
    ),
    "ties are those of max": (
        lambda x: (go.grad(lambda x: go.cummax(x)[3])(x), go.grad(lambda x: x[:4].max())(x)),
        (row(2, 1, 2, 2, 2),),
        ([1 / 3, 0, 1 / 3, 1 / 3, 0],) * 2,
    ),
    "ties of a minimum": (total(go.cummin), (row(0, 2, 0),), [1 + 1 + 0.5, 0, 0.5]),
    "ties reversed": (total(lambda x: go.cummax(x, reverse=True)), (row(1, 0, 1),), [0.5, 0, 2.5]),
    "a maximum and NaN": (go.cummax, (row(1, NAN, 3),), [1, NAN, NAN]),
    "gradient of a maximum and NaN": (total(go.cummax), (row(1, NAN, 3),), [1, 0, 0]),
    "a maximum of infinities": (total(go.cummax), (row(-INF, -INF, INF),), [1.5, 0.5, 1]),
    "a sum and NaN": (go.cumsum, (row(1, INF, -INF, 2),), [1, INF, NAN, NAN]),
    "a long maximum": (
        lambda x: go.cummax(x),
        (np.arange(500, dtype=np.float32) % 250,),
        np.minimum(np.arange(500), 249),
    ),
    # types
    "small integers": (go.cumsum, (np.full(300, 100, np.uint8),), np.arange(1, 301) * 100),
    "booleans": (go.cumsum, (np.ones(200, bool),), np.arange(1, 201)),
    "unsigned maximum": (go.cummax, (row(1, 200, 100, dtype=np.uint8),), [1, 200, 200]),
    "large unsigned": (go.cummin, (row(2**32 - 1, 5, dtype=np.uint32),), [2**32 - 1, 5]),
    "f16 sums in float32": (
        lambda x: go.cumsum(x).astype(np.float32)[-1],
        (np.full(4096, 1, np.float16),),
        4096,
    ),
    "flattened": (go.cumsum, (row([1, 2], [3, 4]),), [1, 3, 6, 10]),
    # recurrences
    "a recurrence": (lambda a, b: go.linear_scan(a, b), (row(9, 2, 3), row(1, 1, 1)), [1, 3, 10]),
    "a recurrence, infinite slope": (go.linear_scan, (row(0, INF), row(0, 1)), [0, 1]),
    "a recurrence, reversed": (
        lambda a, b: go.linear_scan(a, b, reverse=True),
        (row(2, 3, 9), row(1, 1, 1)),
        [9, 4, 1],
    ),
    "fused before and after": (
        lambda x: go.exp(go.cumsum(x * 2.0, 1) - 1.0) * x,
        (row([0.5, -0.5, 0], [1, -1, 0]),),
        [[0.5, -0.5 * np.exp(-1), 0], [np.e, -np.exp(-1), 0]],
    ),
}


@pytest.mark.parametrize("name", POINTS)
def test_reference(name: str) -> None:
    check_point(POINTS[name])


SCANS = {
    "cumsum": (go.cumsum, jax.lax.cumsum),
    "cumprod": (go.cumprod, jax.lax.cumprod),
    "cummax": (go.cummax, jax.lax.cummax),
    "cumlogsumexp": (go.cumlogsumexp, jax.lax.cumlogsumexp),
}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", SCANS)
def test_second_derivative(name: str, reverse: bool) -> None:
    ours, theirs = SCANS[name]
    x, w = np.array([0.5, -1.5, 2, 0.25]), np.array([1.0, -2, 3, 5])

    def loss(scan: Any, sin: Any) -> Any:
        return lambda x: (sin(scan(x, axis=0, reverse=reverse)) * w).sum()

    def second(grad: Any, loss: Any) -> Any:
        return grad(lambda x: (grad(loss)(x) * w).sum())

    (got,) = run_reference(second(go.grad, loss(ours, go.sin)), x)
    want = second(jax.grad, loss(theirs, jax.numpy.sin))(x)
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)


def test_gradient_of_a_product_at_zeros_again() -> None:
    """C059: the gradient is differentiable where elements are 0. Against sums of products."""
    x = np.array([2.0, 0, 3, 0, 5])

    def plain(x: Any) -> Any:
        y = [x[0]]
        for i in range(1, 5):
            y.append(y[-1] * x[i])
        return sum(v * (k + 1) for k, v in enumerate(y))

    def scanned(x: Any) -> Any:
        return (go.cumprod(x) * np.arange(1.0, 6)).sum()

    for fn in (plain, scanned):
        (got,) = run_reference(twice(fn), x)
        want = jax.grad(lambda x: (jax.grad(plain)(x) ** 2).sum())(x)
        np.testing.assert_allclose(got, want, rtol=1e-12)


def test_numbers_have_no_axis() -> None:
    with pytest.raises(OpError, match=r"'gradopt.cumsum' op expected an axis in"):
        go.trace(lambda x: go.cumsum(x, 0), go.TensorSpec(()))


def test_unknown_extent_of_a_gradient() -> None:
    graph = go.trace(go.cumsum, go.TensorSpec((None,)))
    assert graph.output_specs == [go.TensorSpec((None,))]


def test_misfits() -> None:
    with pytest.raises(OpError, match="expected a numeric operand"):
        go.trace(lambda x: go.cummax(x, 0), go.TensorSpec((3,), bool))
    with pytest.raises(OpError, match="expected a known extent of the axis"):
        go.trace(lambda x: go.linear_scan(x, x), go.TensorSpec((None,)))
