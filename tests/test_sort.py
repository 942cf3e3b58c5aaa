# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Order at hard points: ties, NaN, infinities, signed zeros, unsigned numbers, short and long axes.
test_iree_positions.py runs the same points compiled.
"""

from typing import Any

import gradopt as go
import jax
import numpy as np
import pytest
from gradopt.errors import OpError

from .helpers import Point, check_point, run_reference
from .test_scan import row

INF, NAN = np.inf, np.nan
rng = np.random.default_rng(5)
LONG = rng.integers(0, 50, 1000).astype(np.int32)
TALL = rng.uniform(-1, 1, (70, 3)).astype(np.float32)
SPECIAL = row(NAN, 1, -INF, -0.0, NAN, 0, INF, -1)

POINTS: dict[str, Point] = {
    "C104 keys and values": (
        lambda k, v: (go.sort(k), go.take(v, go.argsort(k)), v, k),
        (np.arange(8, 0, -1, dtype=np.float32), np.arange(10, 18, dtype=np.float32)),
        (np.arange(1, 9), np.arange(17, 9, -1), np.arange(10, 18), np.arange(8, 0, -1)),
    ),
    "NaN is last": (
        lambda x: (go.sort(x), go.argsort(x)),
        (SPECIAL,),
        ([-INF, -1, 0, 0, 1, INF, NAN, NAN], [2, 7, 3, 5, 1, 6, 0, 4]),
    ),
    "NaN is first in descending order": (
        lambda x: (go.sort(x, descending=True), go.argsort(x, descending=True)),
        (SPECIAL,),
        ([NAN, NAN, INF, 1, 0, 0, -1, -INF], [0, 4, 6, 1, 3, 5, 7, 2]),
    ),
    **{
        f"{kind.__name__} has its order": (
            lambda x: (go.sort(x), go.argsort(x, descending=True)),
            (np.array(values, kind),),
            (np.sort(np.array(values, kind)), order),
        )
        for kind, values, order in (
            (np.uint8, [200, 3, 255, 0], [2, 0, 1, 3]),
            (np.int8, [-128, 3, 127, 0], [2, 1, 3, 0]),
            (np.uint32, [2**31, 3, 2**32 - 1, 0], [2, 0, 1, 3]),
            (np.int64, [2**40, -(2**40), 2**63 - 1, -(2**63)], [2, 0, 1, 3]),
            (np.bool_, [True, False, True, False], [0, 2, 1, 3]),
            (np.float16, [-1, 65504, -65504, 1e-7], [1, 3, 0, 2]),
            (np.float64, [-1e-300, 1e300, 0, -1e300], [1, 2, 0, 3]),
        )
    },
    "largest integers": (
        lambda x: (go.sort(x), go.argsort(x)),
        (np.full(70, 2**31 - 1, np.int32),),
        (np.full(70, 2**31 - 1), np.arange(70)),
    ),
    "stable": (
        lambda x: (go.argsort(x), go.argsort(x, descending=True)),
        (LONG,),
        (np.argsort(LONG, kind="stable"), np.argsort(-LONG, kind="stable")),
    ),
    "a tall matrix": (
        lambda x: (go.sort(x, 0), go.argsort(x, 0, descending=True)),
        (TALL,),
        (np.sort(TALL, 0), np.argsort(-TALL, 0, kind="stable")),
    ),
    "flattened": (lambda x: go.sort(x, None), (row([3, 1], [2, 0]),), [0, 1, 2, 3]),
    "nothing": (
        lambda x: (go.sort(x), go.argsort(x, 0), go.grad(lambda x: go.sort(x).sum())(x)),
        (np.ones((2, 0), np.float32),),
        (np.ones((2, 0)),) * 3,
    ),
    "one": (lambda x: (go.sort(x), go.argsort(x)), (row([3], [1]),), ([[3], [1]], [[0], [0]])),
    "gradient": (
        go.grad(lambda x: (go.sort(x) * row(1, 2, 3, 4)).sum()),
        (row(2, 9, -1, 2),),
        [2, 4, 1, 3],
    ),
    "gradient of a long sort": (
        go.grad(lambda x: (go.sort(x) * np.arange(1000, dtype=np.float32)).sum()),
        (LONG.astype(np.float32),),
        np.argsort(np.argsort(LONG, kind="stable")),
    ),
    "the largest": (
        lambda x: go.top_k(x, 2),
        (row([1, 3, 3, 2], [0, NAN, 5, 5]),),
        ([[3, 3], [NAN, 5]], [[1, 2], [1, 2]]),
    ),
    "the smallest": (
        lambda x: go.top_k(x, 2, axis=0, largest=False),
        (row([1, 3], [1, NAN], [-1, 2]),),
        ([[-1, 2], [1, 3]], [[2, 2], [0, 0]]),
    ),
    "all of the largest": (
        lambda x: go.top_k(x, 8)[1],
        (SPECIAL,),
        [0, 4, 6, 1, 3, 5, 7, 2],
    ),
    "the largest of many ties": (
        lambda x: (go.top_k(x, 17)[1], go.top_k(x, 9, largest=False)[1]),
        (LONG,),
        (np.argsort(-LONG, kind="stable")[:17], np.argsort(LONG, kind="stable")[:9]),
    ),
    "the largest of least integers": (
        lambda x: go.top_k(x, 2, largest=False),
        (np.full(3, -(2**31), np.int32),),
        ([-(2**31)] * 2, [0, 1]),
    ),
    "none of the largest": (
        lambda x: go.top_k(x, 0),
        (row(1, 2),),
        (np.zeros(0), np.zeros(0)),
    ),
    "gradient of the largest": (
        go.grad(lambda x: (go.top_k(x, 2)[0] * row(10, 1)).sum()),
        (row(1, 5, 5, 2),),
        [0, 10, 1, 0],
    ),
    "medians": (
        lambda x: (go.median(x), go.median(x, 1), go.median(x, 0, keepdims=True)),
        (row([1, 9, 3], [4, 2, INF]),),
        (3.5, [3, 4], [[2.5, 5.5, INF]]),
    ),
    "gradient of medians": (
        go.grad(lambda x: go.median(x, 1).sum()),
        (row([1, 9, 3, 4], [4, 4, 4, 4]),),
        [[0, 0, 0.5, 0.5], [0, 0.5, 0.5, 0]],
    ),
    "quantiles": (
        lambda x: (go.quantile(x, 0.25), go.quantile(x, [0, 0.1, 1], axis=0)),
        (row(4, 1, 3, 2),),
        (1.75, [1, 1.3, 4]),
    ),
    "quantiles of NaN": (lambda x: go.quantile(x, 0.25, 1), (row([1, NAN], [1, 2]),), [NAN, 1.25]),
    "places in a sorted row": (
        lambda a, v: (go.searchsorted(a, v), go.searchsorted(a, v, side="right")),
        (row(1, 2, 2, 5, NAN), row([0, 1, 2], [3, 9, NAN])),
        ([[0, 0, 1], [3, 4, 4]], [[0, 1, 3], [3, 4, 5]]),
    ),
    "places in nothing": (go.searchsorted, (np.zeros(0, np.float32), row(1, 2)), [0, 0]),
}


@pytest.mark.parametrize("name", POINTS)
def test_reference(name: str) -> None:
    check_point(POINTS[name])


def test_second_derivative() -> None:
    x, w = np.array([0.5, -1.5, 2, 0.25]), np.array([1.0, -2, 3, 5])

    def second(grad: Any, sort: Any, sin: Any) -> Any:
        def loss(x: Any) -> Any:
            return (sin(sort(x)) * w).sum()

        return grad(lambda x: (grad(loss)(x) * w).sum())

    (got,) = run_reference(second(go.grad, go.sort, go.sin), x)
    np.testing.assert_allclose(got, second(jax.grad, jax.numpy.sort, jax.numpy.sin)(x), rtol=1e-9)


def test_quantiles_agree_with_numpy() -> None:
    x = rng.uniform(-1, 1, (7, 4))
    q = np.linspace(0, 1, 13)
    (got,) = run_reference(lambda x: go.quantile(x, q, axis=0), x)
    np.testing.assert_allclose(got, np.quantile(x, q, axis=0), rtol=1e-12)


def test_unknown_batch() -> None:
    """The sorted axis has to be known, the others not, in the gradient too."""
    from gradopt.dialect import reference

    from .helpers import lowered

    fn = go.grad(lambda x: (go.top_k(x, 2)[0] * row(10, 1)).sum())
    graph = go.trace(fn, go.TensorSpec((None, 4)))
    x = row([1, 5, 5, 2], [4, 3, 2, 1], [1, 2, 3, 4])
    (got,) = reference.run(lowered(graph).module, graph.name, x)
    np.testing.assert_array_equal(got, [[0, 10, 1, 0], [10, 1, 0, 0], [0, 0, 1, 10]])


def test_misfits() -> None:
    with pytest.raises(OpError, match="expected a known extent of axis 0"):
        go.trace(lambda x: go.sort(x, 0), go.TensorSpec((None,)))
    with pytest.raises(OpError, match=r"'gradopt.top_k' op expected k in \[0, 3\]"):
        go.trace(lambda x: go.top_k(x, 4), go.TensorSpec((3,)))
    with pytest.raises(OpError, match="expected an axis in"):
        go.trace(lambda x: go.sort(x), go.TensorSpec(()))
    with pytest.raises(OpError, match=r"numbers in \[0, 1\]"):
        go.trace(lambda x: go.quantile(x, 1.5), go.TensorSpec((3,)))
    with pytest.raises(OpError, match="side 'left' or 'right'"):
        go.trace(lambda x: go.searchsorted(x, x, side="middle"), go.TensorSpec((3,)))
