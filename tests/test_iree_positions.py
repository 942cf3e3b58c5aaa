# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The known answers of scans, sorting, scatters and subscripts, compiled by IREE for the CPU."""

from collections.abc import Callable
from typing import Any

import gradopt as go
import numpy as np
import pytest

from . import test_scan, test_scatter, test_sort, test_subscript
from .helpers import Point, check_point, compile_many, linalg_function, run_reference
from .test_scan import row

pytestmark = pytest.mark.compiler

RNG = np.random.default_rng(8)
ENDS = np.array([1, 0, 1, 1], np.float32)


def sums(*arrays: Any) -> Any:
    """What is computed here by NumPy in float64."""
    return np.cumsum(arrays[0].astype(np.float64), -1)


EVEN = RNG.integers(-8, 9, (3, 20_001)).astype(np.float32)
CASES: dict[str, Point] = {
    "C103 a destination is still there": (
        lambda x, acc: (x @ np.eye(2, dtype=np.float32) + acc, acc),
        (row([1, 2], [3, 4]), np.full((2, 2), 100, np.float32)),
        ([[101, 102], [103, 104]], np.full((2, 2), 100)),
    ),
    "C103 a table is still there": (
        lambda t, u: (go.scatter_add(t, np.array([0, 0]), u), t),
        (row([1, 2], [3, 4]), row([1, 1], [1, 1])),
        ([[3, 4], [3, 4]], [[1, 2], [3, 4]]),
    ),
    "many counts": (
        lambda x: go.bincount(x + 1, 10, x * 2.0 + 1.0),
        (np.arange(200_000, dtype=np.int32) % 9,),
        np.concatenate([[0], np.bincount(np.arange(200_000) % 9) * (np.arange(9) * 2 + 1)]),
    ),
    "a long sum": (lambda x: go.cumsum(x, 1), (EVEN,), sums(EVEN)),
    "a sort of many": (
        lambda x: go.sort(x, 1, descending=True),
        (EVEN[:, :3000],),
        -np.sort(-EVEN[:, :3000], 1),
    ),
}
POINTS = {
    f"{module.__name__.rsplit('_', 1)[-1]}: {name}": point
    for module in (test_scan, test_sort, test_scatter, test_subscript)
    for name, point in module.POINTS.items()
} | CASES


@pytest.fixture(scope="module")
def compiled() -> dict[str, Callable[..., Any]]:
    texts = {
        f"row{i}": linalg_function(fn, f"row{i}", *map(np.asarray, arrays))
        for i, (fn, arrays, _) in enumerate(POINTS.values())
    }
    return dict(zip(POINTS, compile_many(texts).values(), strict=True))


@pytest.mark.parametrize("name", POINTS)
def test_iree(name: str, compiled: dict[str, Callable[..., Any]]) -> None:
    def run(fn: Callable[..., Any], *arrays: np.ndarray) -> list[np.ndarray]:
        return compiled[name](go.trace(fn, *arrays).output_specs, *arrays)

    check_point(POINTS[name], run)


def test_scatters_are_in_order() -> None:
    """C119: 100 runs, adding and replacing."""
    at = np.array([3, 0, 0, 4, 2], np.int32)
    fn = go.compile(
        lambda u: (go.scatter_add(go.zeros(5), at, u), go.scatter_set(go.zeros(5), at, u))
    )
    for _ in range(100):
        added, replaced = fn(row(1, 2, 3, 4, 5))
        np.testing.assert_array_equal(np.asarray(added), [5, 0, 5, 1, 4])
        np.testing.assert_array_equal(np.asarray(replaced), [3, 0, 5, 1, 4])


WRITERS: dict[str, Callable[..., Any]] = {
    **{
        mode: lambda x, i, u, m=mode: getattr(go, f"scatter_{m}")(x, i, u)
        for mode in ("set", "add", "mul", "max", "min")
    },
    "view": lambda x, i, u: go.scatter_add(x.reshape(5, 3, 1), i, u.reshape(3, 3, 1)),
    "slice": lambda x, i, u: x.at[1:].set(u[0]),
    "sort": lambda x, i, u: go.sort(x),
    "cumsum": lambda x, i, u: go.cumsum(x, 0),
    "block": lambda x, i, u: go.dynamic_update_slice(x, u, (i[0], 0)),
}


@pytest.mark.parametrize("name", WRITERS)
def test_inputs_stay_as_they_are(name: str) -> None:
    """C103: IREE scatters into an input, which is the caller's array where that is aligned."""
    fn = go.compile(WRITERS[name])
    memory = np.zeros(256, np.uint8)
    start = -memory.ctypes.data % 64
    x = memory[start : start + 60].view(np.float32).reshape(5, 3)
    x[:] = np.arange(15).reshape(5, 3)
    before, i, u = x.copy(), np.array([0, 0, 2], np.int32), np.ones((3, 3), np.float32)
    on_device = go.device_put(x)
    want = run_reference(WRITERS[name], x, i, u)[0]
    for given in (x, on_device):
        np.testing.assert_allclose(np.asarray(fn(given, i, u)), want)
        np.testing.assert_array_equal(np.asarray(given), before)


def test_a_donated_table_is_read_first() -> None:
    """C103: others read the table that is scattered into."""

    def fn(x: Any, i: Any, u: Any) -> Any:
        return go.scatter_add(x, i, u).sum(0), x * 2.0, go.take(x, i).sum(), x.sum(1)

    compiled = go.compile(fn, donate=(0,))
    x = RNG.integers(-3, 4, (500, 32)).astype(np.float32)
    i, u = RNG.integers(0, 500, 2000), np.ones((2000, 32), np.float32)
    want = run_reference(fn, x, i, u)
    for _ in range(20):
        for a, b in zip(compiled(go.device_put(x), i, u), want, strict=True):
            np.testing.assert_allclose(np.asarray(a), b, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("reverse", [False, True])
def test_rounding_errors_of_a_long_sum(reverse: bool) -> None:
    """At most 128 additions one after the other in each of three levels of blocks; one sum after
    the other would be off by 1e-3.
    """
    x = np.full(200_003, 0.1, np.float32)
    fn = go.compile(lambda x: (go.cumsum(x, reverse=reverse), go.cumlogsumexp(x, reverse=reverse)))
    total, log = (np.asarray(y) for y in fn(x))
    exact = np.cumsum(x.astype(np.float64))
    exact = exact[::-1] if reverse else exact
    np.testing.assert_allclose(total, exact, rtol=3 * 128 * 2**-24)
    np.testing.assert_allclose(log, np.log(exact / x[0]) + x[0], rtol=3 * 128 * 2**-24)


N = None
UNKNOWN: dict[str, tuple[Callable[..., Any], list[Any], tuple[np.ndarray, ...]]] = {
    "C101 collapse": (lambda x: x.reshape(1, -1), [(N, 2, N)], (row([[1, 2], [3, 4]]),)),
    "C101 expand": (
        lambda x: x.expand_dims(0),
        [(N, N)],
        (np.arange(32, dtype=np.float32).reshape(4, 8),),
    ),
    "scan along the unknown axis": (lambda x: go.cumsum(x, 0), [(N, 2)], (row([1, 2], [3, 4]),)),
    "reversed scan along the unknown axis": (
        lambda x: go.cummax(x, 0, reverse=True),
        [(N, 2)],
        (row([1, 9], [3, 4], [2, 5]),),
    ),
    "scan beside the unknown axis": (
        go.grad(lambda x: go.cumprod(x, 1).sum()),
        [(N, 3)],
        (row([2, 0, 3], [1, 2, 3]),),
    ),
    "long scan beside the unknown axis": (
        lambda x: go.cumsum(x, 1),
        [(N, 300)],
        (np.ones((3, 300), np.float32),),
    ),
    "sort beside the unknown axis": (
        lambda x: (go.sort(x, 1), go.argsort(x, 1)),
        [(N, 70)],
        (RNG.integers(0, 9, (3, 70)).astype(np.float32),),
    ),
    "gradient of the largest": (
        go.grad(lambda x: (go.top_k(x, 2)[0] * row(10, 1)).sum()),
        [(N, 4)],
        (row([1, 5, 5, 2], [4, 3, 2, 1], [1, 2, 3, 4]),),
    ),
    "along an axis": (
        lambda x, i: go.take_along_axis(x, i, 1),
        [(N, 3), (N, 1)],
        (row([1, 2, 3], [4, 5, 6]), np.array([[2], [-3]], np.int32)),
    ),
    "a block of rows": (
        lambda x: (
            go.dynamic_slice(x, (0, 1), (N, 2)),
            x.at[:, 1:].set(0.0),
            x.at[:, [0]].add(1.0),
        ),
        [(N, 3)],
        (row([1, 2, 3], [4, 5, 6]),),
    ),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_extents(name: str) -> None:
    fn, shapes, arrays = UNKNOWN[name]
    specs = [go.TensorSpec(s, a.dtype) for s, a in zip(shapes, arrays, strict=True)]
    found = go.compile(go.trace(fn, *specs))(*arrays)
    got = found if isinstance(found, tuple) else (found,)
    for a, b in zip(got, run_reference(fn, *arrays), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(np.asarray(a), b, rtol=1e-6)
