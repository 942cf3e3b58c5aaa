# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Writing at positions at hard points: repeated places, ties, zeros, places outside, nothing.
Blocks, counts and segments. test_iree_positions.py runs the same points compiled.
"""

from typing import Any

import gradopt as go
import jax
import numpy as np
import pytest
from gradopt.errors import OpError, TraceError

from .helpers import Point, check_point, run_reference
from .test_scan import row

INF, NAN = np.inf, np.nan
AT = np.array([3, 0, 0, 4, 2])


def grads(fn: Any, *ct: float) -> Any:
    """Gradients by both arguments of the sum of fn(x, u) * ct."""
    return go.grad(lambda x, u: (fn(x, u) * row(*ct)).sum(), (0, 1))


def product(x: Any, u: Any) -> Any:
    return go.scatter_mul(x, np.array([1, 0, 1, 1]), u)


POINTS: dict[str, Point] = {
    "C119 repeats add up": (
        lambda u: go.scatter_add(go.zeros(5), AT, u),
        (row(1, 2, 3, 4, 5),),
        [5, 0, 5, 1, 4],
    ),
    "the last stays": (
        lambda u: go.scatter_set(go.full(5, 9.0), AT, u),
        (row(1, 2, 3, 4, 5),),
        [3, 9, 5, 1, 4],
    ),
    "the last gets the gradient": (
        grads(lambda x, u: go.scatter_set(x, AT, u), 10, 20, 30, 40, 50),
        (row(1, 1, 1, 1, 1), row(1, 2, 3, 4, 5)),
        ([0, 20, 0, 0, 0], [40, 0, 10, 50, 30]),
    ),
    "largest with ties": (
        lambda x, u: (
            go.scatter_max(x, np.array([0, 0, 1]), u),
            *grads(lambda x, u: go.scatter_max(x, np.array([0, 0, 1]), u), 6, 1, 1)(x, u),
        ),
        (row(2, 0, 7), row(2, 2, -1)),
        ([2, 0, 7], [2, 1, 1], [2, 2, 0]),
    ),
    "smallest with ties": (
        grads(lambda x, u: go.scatter_min(x, np.array([0, 0, 1]), u), 6, 1, 1),
        (row(5, 0, 7), row(2, 2, -1)),
        ([0, 0, 1], [3, 3, 1]),
    ),
    "largest and NaN": (
        lambda x, u: go.scatter_max(x, np.array([0, 0, 1]), u),
        (row(2, NAN, 7), row(NAN, 2, -1)),
        [NAN, NAN, 7],
    ),
    "C059 products at a place, no zero": (
        grads(product, 1, 1),
        (row(2, 3), row(4, 5, 6, 7)),
        ([5, 168], [126, 2, 84, 72]),
    ),
    "C059 products at a place, a zero": (
        grads(product, 1, 1),
        (row(2, 3), row(4, 5, 0, 7)),
        ([5, 0], [0, 2, 84, 0]),
    ),
    "C059 products at a place, two zeros": (
        grads(product, 1, 1),
        (row(0, 3), row(0, 5, 0, 7)),
        ([5, 0], [0, 0, 0, 0]),
    ),
    "places outside and from the end": (
        lambda x: go.scatter_set(x, np.array([-1, 7, -9]), row(1, 2, 3)),
        (row(0, 0, 0),),
        [3, 0, 2],
    ),
    **{
        f"{kind.__name__} places": (
            lambda x, i: (go.scatter_set(x, i, row(1, 2)), go.take(x, i)),
            (row(7, 8, 9), np.array([2, 1], kind)),
            ([7, 2, 1], [9, 8]),
        )
        for kind in (np.int64, np.int16, np.uint8, np.uint32)
    },
    "large unsigned places": (
        lambda x, i: go.take(x, i),
        (row(7, 8, 9), np.array([2**32 - 1, 0], np.uint32)),
        [9, 7],
    ),
    "C121 rows at 64-bit ids": (
        go.embedding,
        (np.arange(256, dtype=np.float32).reshape(128, 2), np.array([0, 5, 127], np.int64)),
        [[0, 1], [10, 11], [254, 255]],
    ),
    "booleans": (
        lambda x, u: (
            go.scatter_set(x, np.array([0, 0]), u),
            go.scatter_max(x, np.array([1, 1]), u),
        ),
        (np.array([True, False, True]), np.array([True, False])),
        ([0, 0, 1], [1, 1, 1]),
    ),
    "no updates": (
        lambda x: go.scatter_mul(x, np.zeros(0, np.int32), np.zeros((0,), np.float32)),
        (row(1, 2),),
        [1, 2],
    ),
    "the table is still there": (
        lambda x, i, u: (x * 2.0, go.scatter_set(x * 2.0, i, u), (x * 2.0).sum()),
        (row(1, 2, 3), np.array([0, 0], np.int32), row(5, 6)),
        ([2, 4, 6], [6, 4, 6], 12),
    ),
    # an element at a time
    "along an axis": (
        lambda x, i: go.take_along_axis(x, i, 1),
        (row([1, 2, 3], [4, 5, 6]), np.array([[2, -1], [9, 0]], np.int64)),
        [[3, 3], [6, 4]],
    ),
    "along an axis, broadcast": (
        lambda x, i: go.take_along_axis(x, i, 0),
        (row([1, 2, 3], [4, 5, 6]), np.array([[1]], np.int32)),
        [[4, 5, 6]],
    ),
    "gradient along an axis": (
        go.grad(
            lambda x: (go.take_along_axis(x, np.array([[0, 0], [1, 0]]), 1) * row(1, 10)).sum()
        ),
        (row([1, 2, 3], [4, 5, 6]),),
        [[11, 0, 0], [10, 1, 0]],
    ),
    "put along an axis": (
        lambda x: tuple(
            go.put_along_axis(x, np.array([[0, 0], [1, 0]]), row(5, 7), 1, mode=m)
            for m in ("set", "add", "mul", "max", "min")
        ),
        (row([1, 2], [3, 6]),),
        (
            [[7, 2], [7, 5]],
            [[13, 2], [10, 11]],
            [[35, 2], [21, 30]],
            [[7, 2], [7, 6]],
            [[1, 2], [3, 5]],
        ),
    ),
    # blocks
    "a block at a computed place": (
        lambda x, i: (
            go.dynamic_slice(x, (i, 0), (2, 2)),
            go.dynamic_update_slice(x, x[:1] * 10, (i, i)),
        ),
        (np.arange(6, dtype=np.float32).reshape(3, 2), np.int32(1)),
        ([[2, 3], [4, 5]], [[0, 1], [0, 10], [4, 5]]),
    ),
    "a block outside is clamped": (
        lambda x: (
            go.dynamic_slice(x, (5,), (2,)),
            go.dynamic_slice(x, (-1,), (2,)),
            go.dynamic_update_slice(x, row(8, 9), 2),
        ),
        (row(1, 2, 3),),
        ([2, 3], [1, 2], [1, 8, 9]),
    ),
    "gradients of blocks": (
        lambda x, u, i: (
            go.grad(lambda x: (go.dynamic_slice(x, i, (2,)) * row(5, 6)).sum())(x),
            *go.grad(
                lambda x, u: (go.dynamic_update_slice(x, u, i) * row(1, 2, 3, 4)).sum(), (0, 1)
            )(x, u),
        ),
        (row(0, 0, 0, 0), row(0, 0), np.array([9], np.int64)),
        ([0, 0, 5, 6], [1, 2, 0, 0], [3, 4]),
    ),
    "a block replaced": (
        lambda x, u: (
            go.update_slice(x, u, (0, 1), (1, 2)),
            *go.grad(lambda x, u: (go.update_slice(x, u, (0, 1), (1, 2)) * x).sum(), (0, 1))(x, u),
        ),
        (np.ones((1, 5), np.float32), row([7, 8])),
        ([[1, 7, 1, 8, 1]], [[2, 7, 2, 8, 2]], [[1, 1]]),
    ),
    "an empty block": (
        lambda x, u: (
            go.update_slice(x, u, 2),
            go.dynamic_update_slice(x, u, 1),
            go.dynamic_slice(x, 1, (0,)),
        ),
        (row(1, 2), np.zeros(0, np.float32)),
        ([1, 2], [1, 2], np.zeros(0)),
    ),
    # counts
    "labels": (
        lambda l: go.one_hot(l, 3),
        (np.array([0, 2, -1, 3], np.int8),),
        [[1, 0, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0]],
    ),
    "counts": (
        lambda x, w: (go.bincount(x, 3), go.bincount(x, 3, w)),
        (np.array([0, 2, -1, 3, 2]), row(1, 2, 3, 4, 5)),
        ([1, 0, 2], [1, 0, 7]),
    ),
    "gradient of counts": (
        go.grad(lambda w: (go.bincount(np.array([0, 2, -1, 3, 2]), 3, w) * row(1, 2, 3)).sum()),
        (row(1, 2, 3, 4, 5),),
        [1, 3, 0, 0, 3],
    ),
    "how many are not 0": (
        lambda x: (go.count_nonzero(x), go.count_nonzero(x, 0)),
        (row([0, 2], [NAN, -0.0]),),
        (2, [1, 1]),
    ),
    "where they are": (
        lambda x: (
            *go.nonzero(x, size=4, fill_value=-1),
            go.argwhere(x, size=2),
            *go.nonzero(x, size=1),
        ),
        (row([0, 2], [1, 0], [0, 3]),),
        ([0, 1, 2, -1], [1, 0, 1, -1], [[0, 1], [1, 0]], [0], [1]),
    ),
    "where nothing is": (lambda x: go.nonzero(x, size=2)[0], (row(0, 0),), [0, 0]),
    "positions as rows": (
        lambda i: go.unravel_index(i, (2, 3)),
        (np.array([0, 4, -1, 99]),),
        ([0, 1, 1, 1], [0, 1, 2, 2]),
    ),
    "sums of segments": (
        lambda x: (
            go.segment_sum(x, np.array([0, 2, 0, 5]), 3),
            go.segment_max(x, np.array([0, 2, 0, -1]), 3),
        ),
        (row([1, 2], [3, 4], [5, 0], [9, 9]),),
        ([[6, 2], [0, 0], [3, 4]], [[5, 2], [-INF, -INF], [3, 4]]),
    ),
    "gradient of segments": (
        go.grad(lambda x: (go.segment_sum(x, np.array([0, 2, 0, 5]), 3) * row(1, 2, 3)).sum()),
        (row(1, 2, 3, 4),),
        [1, 3, 1, 0],
    ),
}


@pytest.mark.parametrize("name", POINTS)
def test_reference(name: str) -> None:
    check_point(POINTS[name])


@pytest.mark.parametrize("mode", ["set", "add", "mul", "max", "min"])
def test_second_derivative(mode: str) -> None:
    """By both arguments, with repeated places. JAX takes the updates one by one."""
    at, x, u = np.array([1, 0, 1, -1]), np.array([0.5, 1.5, 2]), np.array([1.0, -2, 3, 0.5])
    w = np.array([1.0, -2, 3])

    def ours(x: Any, u: Any) -> Any:
        return (go.sin(getattr(go, f"scatter_{mode}")(x, at, u)) * w).sum()

    step = {
        "set": lambda a, b: b,
        "add": lambda a, b: a + b,
        "mul": lambda a, b: a * b,
        "max": jax.numpy.maximum,
        "min": jax.numpy.minimum,
    }[mode]

    def theirs(x: Any, u: Any) -> Any:
        for i, place in enumerate(at):
            x = x.at[place].set(step(x[place], u[i]))
        return (jax.numpy.sin(x) * w).sum()

    def second(grad: Any, loss: Any) -> Any:
        def squared(x: Any, u: Any) -> Any:
            dx, du = grad(loss, (0, 1))(x, u)
            return (dx * dx).sum() + (du * du * du).sum()

        return grad(squared, (0, 1))

    got = run_reference(second(go.grad, ours), x, u)
    want = second(jax.grad, theirs)(jax.numpy.asarray(x), jax.numpy.asarray(u))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def test_gradient_of_products_again_at_zeros() -> None:
    """C059: the gradient by a factor is differentiable where factors are 0."""
    x, u = np.array([2.0, 3]), np.array([0.0, 5, 0, 7])

    def plain(x: Any, u: Any) -> Any:
        return x[1] * u[0] * u[2] * u[3] + 2 * x[0] * u[1]

    def second(fn: Any, grad: Any) -> Any:
        def squared(u: Any) -> Any:
            du = grad(lambda u: fn(x, u))(u)
            return (du * np.array([1.0, 2, 3, 4])).sum()

        return grad(squared)

    (got,) = run_reference(
        second(lambda x, u: (product(go.constant(x), u) * np.array([2.0, 1])).sum(), go.grad), u
    )
    np.testing.assert_allclose(got, second(plain, jax.grad)(u), rtol=1e-12)


def test_shapes_do_not_depend_on_data() -> None:
    """B07: refused, with what to do."""
    with pytest.raises(OpError, match=r"nonzero expected a size, .*give the most elements"):
        go.trace(lambda x: go.nonzero(x), go.TensorSpec((3,)))
    with pytest.raises(OpError, match="bincount expected a length that is a known number"):
        go.trace(lambda x: go.bincount(x, None), go.TensorSpec((3,), "int32"))
    with pytest.raises(OpError, match=r"use where\(\) for a mask"):
        go.trace(lambda x: x[x > 0], go.TensorSpec((3,)))


def test_misfits() -> None:
    three = go.TensorSpec((3,))
    with pytest.raises(OpError, match="expected updates of type tensor<2xf32>, got tensor<3xf32>"):
        go.trace(lambda x: go.scatter_max(x, np.array([0, 1]), x), three)
    with pytest.raises(OpError, match=r"'gradopt.take_along_axis' op expected indices of rank 1"):
        go.trace(lambda x: go.take_along_axis(x, np.zeros((1, 2), np.int32)), three)
    with pytest.raises(OpError, match="expected an update of x's element type that fits"):
        go.trace(lambda x: go.update_slice(x, np.zeros(4, np.float32)), three)
    with pytest.raises(OpError, match="expected a block inside"):
        go.trace(lambda x: go.update_slice(x, np.zeros(2, np.float32), 2), three)
    with pytest.raises(OpError, match="expected a size in the extent for each axis"):
        go.trace(lambda x: go.dynamic_slice(x, (0,), (4,)), three)
    with pytest.raises(OpError, match="expected a start of 1 integers"):
        go.trace(lambda x: go.dynamic_slice(x, np.zeros(2, np.int32), (2,)), three)
    with pytest.raises(OpError, match="expected a mode out of set, add, mul, max, min"):
        go.trace(lambda x: go.put_along_axis(x, np.array([0]), 1.0, 0, mode="div"), three)
    with pytest.raises(OpError, match="bincount expected integers"):
        go.trace(lambda x: go.bincount(x, 3), three)
    with pytest.raises(TraceError, match=r"x = x.at\[key\].set\(value\)"):
        go.trace(lambda x: x.__setitem__(0, 1.0), three)
