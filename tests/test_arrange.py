# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Arrangements, padding and resizing: known answers, and what is refused.
tests/test_iree_windows.py runs the same points on IREE.
"""

from collections.abc import Callable
from typing import Any

import gradopt as go
import numpy as np
import pytest
from gradopt.errors import OpError
from gradopt.lowering import pipeline

from .helpers import run_reference

F32, F16 = np.dtype(np.float32), np.dtype(np.float16)
INF, NAN = np.inf, np.nan
Point = tuple[Callable[..., Any], tuple[np.ndarray, ...], Any]


def row(*values: Any, dtype: Any = F32) -> np.ndarray:
    return np.array(values, dtype)


def reversed_add(base: Any, x: Any) -> Any:
    """base[::-1] += 2 * x[::-1], as a function"""
    return (base[::-1] + 2 * x[::-1])[::-1]


SQUARE = np.arange(16, dtype=F32).reshape(4, 4)

POINTS: dict[str, Point] = {
    "C028 two triangles": (
        lambda a: go.stack([go.tril(a, 1), go.tril(a, -1)]),
        (np.ones((2, 2), F32),),
        [[[1, 1], [1, 1]], [[0, 0], [1, 0]]],
    ),
    "C029 batch 2": (lambda x: x[:, :-1] * 2, (np.ones((2, 3), F32),), 2 * np.ones((2, 2))),
    "C029 batch 5, width 7": (
        lambda x: x[:, :-1] * 2,
        (np.ones((5, 7), F32),),
        2 * np.ones((5, 6)),
    ),
    "C043 reversed assignment": (
        reversed_add,
        (np.zeros(6, F32), np.arange(6, dtype=F32)),
        [0, 2, 4, 6, 8, 10],
    ),
    "C043 gradient": (
        go.grad(lambda x: (reversed_add(go.zeros(6), x) * np.arange(6, dtype=F32)).sum()),
        (np.arange(6, dtype=F32),),
        [0, 2, 4, 6, 8, 10],
    ),
    "NaN outside a triangle is not seen": (
        lambda x: go.tril(x),
        (row([1, NAN], [2, 3]),),
        [[1, 0], [2, 3]],
    ),
    "diagonal below": (lambda x: go.diagonal(x, -1), (SQUARE,), [4, 9, 14]),
    "diagonal gradient": (
        go.grad(lambda x: (go.diagonal(x, 2) * row(1, 2)).sum()),
        (SQUARE,),
        [[0, 0, 1, 0], [0, 0, 0, 2], [0, 0, 0, 0], [0, 0, 0, 0]],
    ),
    "empty diagonal": (lambda x: go.diagonal(x, 9), (SQUARE,), np.zeros(0)),
    "trace": (lambda x: go.matrix_trace(x, 1), (SQUARE,), 1 + 6 + 11),
    "methods": (
        lambda x: x.trace() + x.diagonal(1).sum() + x.repeat(2, 0).sum(),
        (SQUARE,),
        30 + 18 + 240,
    ),
    "roll by axes": (
        lambda x: go.roll(x, (1, 1, -2), (0, 0, 1)),
        (SQUARE,),
        np.roll(SQUARE, (2, -2), (0, 1)),
    ),
    "roll flattened": (lambda x: go.roll(x, 3), (SQUARE,), np.roll(SQUARE, 3)),
    "roll of nothing": (lambda x: go.roll(x, 3, 0), (np.zeros((0, 2), F32),), np.zeros((0, 2))),
    "repeat by position": (
        lambda x: go.repeat(x, [2, 0, 1], 0),
        (row(1, 2, 3),),
        [1, 1, 3],
    ),
    "repeat by position, gradient": (
        go.grad(lambda x: (go.repeat(x, [2, 0, 1], 0) * row(1, 2, 4)).sum()),
        (row(1, 2, 3),),
        [3, 0, 4],
    ),
    "tile by fewer axes": (
        lambda x: go.tile(x, 2),
        (row([1, 2], [3, 4]),),
        np.tile([[1, 2], [3, 4]], 2),
    ),
    "tile no times": (lambda x: go.tile(x, (0, 2)), (SQUARE,), np.zeros((0, 8))),
    "f16 tile gradient is summed in float32": (
        go.grad(lambda x: go.tile(x, 4096).astype(F32).sum()),
        (row(1, dtype=F16),),
        [4096],
    ),
    "diff with edges": (
        lambda x: go.diff(x, prepend=0, append=row(10)),
        (row(1, 4, 9),),
        [1, 3, 5, 1],
    ),
    "diff of one element": (lambda x: go.diff(x, 3), (row(1),), np.zeros(0)),
    "negative padding": (lambda x: go.pad(x, [(-1, 2)]), (row(1, 2, 3),), [2, 3, 0, 0]),
    "negative and interior padding": (
        lambda x: go.pad(x, [(-2, -1)], interior=1, constant_values=7),
        (row(1, 2, 3),),
        [2, 7],
    ),
    "negative padding, gradient": (
        go.grad(lambda x: go.pad(x, [(-1, 2)]).square().sum()),
        (row(1, 2, 3),),
        [0, 4, 6],
    ),
    "reflect gradient": (
        go.grad(lambda x: (go.pad(x, 2, "reflect") * np.arange(7, dtype=F32)).sum()),
        (row(1, 2, 3),),
        [2 + 6, 1 + 3 + 5, 0 + 4],
    ),
    "edge gradient, f16": (
        go.grad(lambda x: go.pad(x, 3000, "edge").astype(F32).sum()),
        (row(1, 2, dtype=F16),),
        np.array([3001, 3001], F16),  # rounded once
    ),
    "wrap": (lambda x: go.pad(x, [(3, 1)], mode="wrap"), (row(1, 2),), [2, 1, 2, 1, 2, 1]),
    "infinity stays in its place": (
        lambda x: go.resize(x, (4,)),
        (row(INF, 1),),
        [INF, INF, INF, 1],
    ),
    "an infinite cotangent stays in its place": (
        lambda x, ct: go.vjp(lambda x: go.resize(x, (4,)), x)[1](ct),
        (row(1, 2), row(1, 1, 1, INF)),
        [2, INF],
    ),
    # torch: F.interpolate(x, 4, mode="linear", align_corners=True)
    "resize by corners": (
        lambda x: go.resize(x, (4,), coordinates="align_corners"),
        (row(0, 3),),
        [0, 1, 2, 3],
    ),
    "resize to one by corners": (
        lambda x: go.resize(x, (1,), coordinates="align_corners"),
        (row(5, 3),),
        [5],
    ),
    "nearest, asymmetric": (
        lambda x: go.resize(x, (5,), "nearest", "asymmetric"),
        (row(1, 2, 3),),
        [1, 1, 2, 2, 3],
    ),
    "nearest, middles": (
        lambda x: go.resize(x, (5,), "nearest"),
        (row(1, 2, 3),),
        [1, 1, 2, 3, 3],
    ),
    # torch: F.interpolate(x, 4, mode="bicubic") along one axis: the weights for a quarter are those
    # of Keys' kernel with a = -0.75, the border repeated
    "cubic as PyTorch": (
        lambda x: go.resize(x, (4,), "cubic", cubic=-0.75, border="clamp"),
        (row(0, 64),),
        [-6.75, 14.5, 49.5, 70.75],
    ),
    "nearest gradient": (
        go.grad(lambda x: (go.upsample(x, 2) * np.arange(4, dtype=F32).reshape(1, 4, 1)).sum()),
        (row(1, 2).reshape(1, 2, 1),),
        row(1, 5).reshape(1, 2, 1),
    ),
    "pixel shuffle": (
        lambda x: go.depth_to_space(x, 2, "CRD", channels_last=False)[0, 0],
        (np.arange(4, dtype=F32).reshape(1, 4, 1, 1),),
        [[0, 1], [2, 3]],
    ),
}


@pytest.mark.parametrize("name", POINTS)
def test_known_answers(name: str) -> None:
    fn, arrays, want = POINTS[name]
    (got,) = run_reference(fn, *arrays)
    assert got.shape == np.shape(want)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)


def test_triangles_stay_two() -> None:
    """C028: eliminating common subexpressions compares attributes; equal ones are merged."""
    graph = go.trace(
        lambda a: (go.tril(a, 1), go.tril(a, -1), go.tril(a, 1)), go.TensorSpec((2, 2))
    )
    pipeline.run(graph.module, "gradopt-simplify")
    assert graph.mlir().count("gradopt.tril") == 2


def test_indexing_is_traced_anew_for_each_shape() -> None:
    """C029: the shape of the first call is not kept."""

    def f(x: Any) -> Any:
        return x[:, :-1] * 2

    for shape, want in (((2, 3), (2, 2)), ((5, 7), (5, 6)), ((None, 4), (None, 3))):
        assert go.trace(f, go.TensorSpec(shape)).output_specs[0].shape == want


@pytest.mark.parametrize("method", ["linear", "cubic"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "align_corners", "asymmetric"])
@pytest.mark.parametrize("border", ["renormalize", "clamp"])
def test_constants_stay_constant(method: str, coordinates: str, border: str) -> None:
    """Weights add up to 1, whatever the extents."""
    for n, m in ((1, 4), (3, 7), (8, 3), (2, 5)):
        (got,) = run_reference(
            lambda x, m=m: go.resize(x, (m,), method, coordinates, border=border), np.full(n, 3.0)
        )
        np.testing.assert_allclose(got, np.full(m, 3.0))


def test_cubic_reproduces_squares() -> None:
    """Keys' kernel with a = -0.5 interpolates polynomials of degree 2 exactly inside."""
    x = np.arange(9.0)
    (got,) = run_reference(lambda x: go.resize(x, (27,), "cubic"), x**2)
    at = (np.arange(27) + 0.5) / 3 - 0.5
    np.testing.assert_allclose(got[6:-6], at[6:-6] ** 2)


def test_space_to_depth_undoes() -> None:
    x = np.random.default_rng(1).normal(size=(2, 4, 6, 4, 3))
    for mode in ("DCR", "CRD"):
        for last in (True, False):
            image = x if last else np.moveaxis(x, -1, 1)

            def there_and_back(x: Any, mode: str = mode, last: bool = last) -> Any:
                deep = go.space_to_depth(x, 2, mode, channels_last=last)
                return go.depth_to_space(deep, 2, mode, channels_last=last)

            np.testing.assert_array_equal(run_reference(there_and_back, image)[0], image)


UNKNOWN: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...]]] = {
    "roll": (lambda x: go.roll(x, 1, 1), (None, 3), (None, 3)),
    "tile": (lambda x: go.tile(x, (1, 2)), (None, 3), (None, 6)),
    "repeat": (lambda x: go.repeat(x, 2, 1), (None, 3), (None, 6)),
    "tril": (go.tril, (None, 3, 3), (None, 3, 3)),
    "diagonal": (lambda x: go.diagonal(x, 0, 1, 2), (None, 3, 4), (None, 3)),
    "diff": (go.diff, (None, 3), (None, 2)),
    "pad": (lambda x: go.pad(x, ((0, 0), (1, 1)), "reflect"), (None, 3), (None, 5)),
    "resize": (lambda x: go.resize(x, (None, 5)), (None, 3), (None, 5)),
    "depth_to_space": (lambda x: go.depth_to_space(x, 2), (None, 3, 3, 8), (None, 6, 6, 2)),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_batch(name: str) -> None:
    fn, shape, want = UNKNOWN[name]
    assert go.trace(fn, go.TensorSpec(shape)).output_specs[0].shape == want


REFUSED: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "roll": (lambda x: go.roll(x, (1, 2), 0), (3,), "a shift for each of 1 axes"),
    "tile": (lambda x: go.tile(x, -1), (3,), "a number of at least 0 for each of 1 axes"),
    "repeat": (lambda x: go.repeat(x, [1, 2], 0), (3,), "repeats for each of 3 positions"),
    "tril": (go.tril, (3,), "at least two axes"),
    "diagonal": (lambda x: go.diagonal(x, 0, 1, 1), (3, 3), "two axes of a tensor of rank 2"),
    "diff": (lambda x: go.diff(x, -1), (3,), "a number of times of at least 0"),
    "pad mode": (lambda x: go.pad(x, 1, "mirror"), (3,), "a mode out of reflect, symmetric"),
    "negative reflection": (lambda x: go.pad(x, -1, "edge"), (3,), "no negative padding"),
    "reflection of nothing": (lambda x: go.pad(x, 1, "wrap"), (0,), "a known extent of at least 1"),
    "method": (lambda x: go.resize(x, (2,), "area"), (3,), "method out of nearest, linear, cubic"),
    "resize to nothing": (lambda x: go.resize(x, (0,)), (3,), "an extent of at least 1"),
    "resize unknown": (lambda x: go.resize(x, (4,)), (None,), "known extents of at least 1"),
    "depth": (lambda x: go.depth_to_space(x, 2), (1, 2, 2, 6), "channels that 4 divides"),
    "space": (lambda x: go.space_to_depth(x, 2), (1, 3, 2, 6), "extents that 2 divides"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    fn, shape, message = REFUSED[name]
    with pytest.raises(OpError, match=message):
        go.trace(fn, go.TensorSpec(shape))


def test_linear_resizing_of_integers_is_refused() -> None:
    op = go.trace(lambda x: go.resize(x, (5,)), go.TensorSpec((3,), np.int32))
    assert op.output_specs[0].dtype == np.float32  # integers give float32, as mean does
    nearest = go.trace(lambda x: go.resize(x, (5,), "nearest"), go.TensorSpec((3,), np.int32))
    assert nearest.output_specs[0].dtype == np.int32
