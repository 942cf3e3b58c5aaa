# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Known answers where implementations go wrong: 16-bit floats, masked branches, extremes, unknown
extents, numbers that do not fit. On the reference and on IREE.
"""

from collections.abc import Callable
from typing import Any

import gradopt as go
import ml_dtypes
import numpy as np
import pytest
from gradopt.dialect import reference
from gradopt.errors import ArgumentError, OpError, PassError

from .helpers import compile_many, linalg_function, lowered, run_reference

F32, F16, BF16 = np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
INF, NAN = np.inf, np.nan


def row(*values: Any, dtype: Any = F32) -> np.ndarray:
    return np.array(values, dtype)


LABEL = np.zeros(1, np.int32)
KEEP_FIRST = np.array([[True], [False]])


def cross_entropy(x: Any) -> Any:
    return go.cross_entropy(x, LABEL).astype(F32).sum()


def total(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The gradient of the sum of fn(x), summed in float32."""
    return go.grad(lambda x: fn(x).astype(F32).sum())


def twice(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The gradient of the sum of the squared gradient."""
    return go.grad(lambda x: go.grad(lambda x: fn(x).sum())(x).square().sum())


POINTS: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...], Any]] = {
    # 16-bit floats: rules are computed in float32 and rounded once
    "f16 cross entropy": (go.grad(cross_entropy), (row([100, 100], dtype=F16),), [[-0.5, 0.5]]),
    "bf16 cross entropy": (go.grad(cross_entropy), (row([100, 100], dtype=BF16),), [[-0.5, 0.5]]),
    "f16 variance": (go.grad(lambda x: x.var()), (row(1000, 1000.5, dtype=F16),), [-0.25, 0.25]),
    "f16 norm": (go.grad(go.norm), (row(3 * 2**-18, 2**-16, dtype=F16),), [0.6, 0.8]),
    "f16 gelu": (
        total(lambda x: go.gelu(x, approximate="tanh")),
        (row(0, 300, -300, dtype=F16),),
        [0.5, 1, 0],
    ),
    "f16 asinh": (total(go.asinh), (row(300, dtype=F16),), [1 / 300]),
    "f16 softsign": (total(go.softsign), (row(300, dtype=F16),), [1 / 301**2]),
    "f16 angle": (
        go.grad(lambda x: go.atan2(x, go.constant(row(300, dtype=F16))).sum()),
        (row(300, dtype=F16),),
        [1 / 600],
    ),
    "f16 mean of many": (
        lambda x: go.grad(lambda x: x.mean())(x)[:1],
        (np.ones(70000, F16),),
        [1 / 70000],
    ),
    "f16 largest of many": (
        lambda x: go.grad(lambda x: x.max())(x)[:1],
        (np.ones(70000, F16),),
        [1 / 70000],
    ),
    "bf16 rows of a table": (
        go.grad(lambda t: go.embedding(t, np.zeros(1000, np.int32)).sum()),
        (np.zeros((2, 1), BF16),),
        [[1000], [0]],
    ),
    "f16 scatter": (
        lambda t: go.scatter_add(t, np.zeros(5000, np.int32), np.ones(5000, F16)),
        (np.zeros(2, F16),),
        [5000, 0],
    ),
    # branches that are masked out stay out
    "masked product": (
        go.grad(lambda x: go.where(x[:, 0] < 1e30, x.prod(1), 0.0).sum()),
        (row([1, 2, 3], [3e38, 3e38, 1]),),
        [[6, 3, 2], [0, 0, 0]],
    ),
    "masked sign": (
        go.grad(lambda x: go.where(go.is_nan(x), 0.0, go.copysign(x, 2.0)).sum()),
        (row(NAN, -1),),
        [0, -1],
    ),
    **{
        f"masked {name}, order {order}": (
            lambda x, f=fn, d=derive: d(lambda x: go.where(KEEP_FIRST, f(x), 0.0))(x)[1],
            (row([1, 2, 4], [INF, NAN, 1]),),
            [0, 0, 0],
        )
        for name, fn in {
            "softmax": go.softmax,
            "layer norm": go.layer_norm,
            "std": lambda x: x.std(axis=1, keepdims=True),
            "logsumexp": lambda x: go.logsumexp(x, axis=1, keepdims=True),
        }.items()
        for order, derive in ((1, total), (2, twice))
    },
    # extremes
    "var of one": (go.grad(lambda x: x.var(correction=1)), (row(1),), [NAN]),
    "var of nothing": (go.grad(lambda x: x.var(axis=1).sum()), (np.ones((3, 0), F32),), [[]] * 3),
    "gelu far out": (
        go.grad(lambda x: go.gelu(x, approximate="tanh").sum()),
        (row(1e20, -1e20),),
        [1, 0],
    ),
    "gelu in its tail": (
        go.grad(lambda x: go.gelu(x).sum()),
        (row(-6, -5.5),),
        [-3.5468711e-8, -5.733473e-7],
    ),
    "logaddexp at infinity": (
        go.grad(lambda x: go.logaddexp(x, 1.0).sum()),
        (row(INF, -INF, 1),),
        [1, 0, 0.5],
    ),
    "pow, base then exponent": (
        go.grad(lambda x, e: go.grad(go.pow)(x, e), 1),
        (np.float64(2), np.float64(0)),
        0.5,
    ),
    "pow, exponent then base": (
        go.grad(lambda x, e: go.grad(go.pow, 1)(x, e)),
        (np.float64(2), np.float64(0)),
        0.5,
    ),
    "remainder of large numbers": (
        lambda x: go.fmod(x, 3.0),
        (np.array([1e22, 12345678901234567890.0, -7, 1e18]),),
        [1, 1, -1, 1],
    ),
    # positions and ramps
    "one row repeated": (lambda x: go.iota((1,), 0, F32) + x, (np.zeros(3, F32),), [0, 0, 0]),
    "one row repeated, two axes": (
        lambda x: go.iota((1, 3), 0, F32) + x,
        (np.zeros((2, 3), F32),),
        np.zeros((2, 3)),
    ),
    "uint8 labels": (lambda l: go.one_hot(l, 300).sum(-1), (row(5, 255, dtype=np.uint8),), [1, 1]),
    "int8 label outside": (lambda l: go.one_hot(l, 300).sum(), (row(-1, dtype=np.int8),), 0),
    "uint8 labels of a loss": (
        go.grad(lambda x, l: go.cross_entropy(x, l).sum()),
        (np.zeros((1, 300), F32), row(255, dtype=np.uint8)),
        [np.full(300, 1 / 300) - (np.arange(300) == 255)],
    ),
}


def agrees(got: np.ndarray, want: Any, dtype: np.dtype) -> None:
    rtol = {F16: 2e-3, BF16: 8e-3}.get(dtype, 2e-6)
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=rtol, atol=1e-12)


@pytest.mark.parametrize("name", POINTS)
def test_reference(name: str) -> None:
    fn, arrays, want = POINTS[name]
    (got,) = run_reference(fn, *map(np.asarray, arrays))
    agrees(got, want, arrays[0].dtype)


@pytest.fixture(scope="module")
def compiled() -> dict[str, Callable[..., Any]]:
    texts = {
        f"row{i}": linalg_function(fn, f"row{i}", *map(np.asarray, arrays))
        for i, (fn, arrays, _) in enumerate(POINTS.values())
    }
    return dict(zip(POINTS, compile_many(texts).values(), strict=True))


@pytest.mark.compiler
@pytest.mark.parametrize("name", POINTS)
def test_iree(name: str, compiled: dict[str, Callable[..., Any]]) -> None:
    fn, arrays, want = POINTS[name]
    spec = go.trace(fn, *arrays).output_specs[0]
    (got,) = compiled[name]([spec], *map(np.asarray, arrays))
    agrees(got, want, arrays[0].dtype)


# --- unknown extents ------------------------------------------------------------------------------

N = None
SIX = np.arange(6, dtype=np.float32)
MISFIT = "misfit"
UNKNOWN: dict[
    str, tuple[Callable[..., Any], list[tuple[Any, ...]], tuple[np.ndarray, ...], Any]
] = {
    "scaled": (lambda x: x * 2.0, [(N,)], (SIX,), SIX * 2),
    "rows": (lambda x: x.reshape(-1, 3), [(N,)], (SIX,), SIX.reshape(2, 3)),
    "rows that do not fit": (lambda x: x.reshape(-1, 4), [(N,)], (SIX,), MISFIT),
    "to known": (lambda x: x.reshape(2, 3), [(N,)], (SIX,), SIX.reshape(2, 3)),
    "two to known": (lambda x: x.reshape(3, 2), [(N, N)], (SIX.reshape(2, 3),), SIX.reshape(3, 2)),
    "known too small": (lambda x: x.reshape(6), [(N, 3)], (np.ones((5, 3), F32),), MISFIT),
    "to a number": (lambda x: x.reshape(()), [(N,)], (SIX[3:4],), 3.0),
    "joined": (
        lambda x: go.concat([x, x + 1, x], 1),
        [(2, N)],
        (SIX.reshape(2, 3),),
        np.hstack([SIX.reshape(2, 3) + k for k in (0, 1, 0)]),
    ),
    "padding of nothing": (
        lambda x: go.pad(x, ((1, 1), (0, 0))),
        [(0, N)],
        (np.ones((0, 3), F32),),
        np.zeros((2, 3)),
    ),
    "row against a column": (
        lambda x: go.ones((2, 1)) * x,
        [(N,)],
        (SIX,),
        np.stack([SIX, SIX]),
    ),
    "a number against two": (
        lambda c, r: go.where(c > 0, r, 0.0),
        [(N, 1), (1, N)],
        (row([1], [-1]), SIX[None]),
        np.stack([SIX, 0 * SIX]),
    ),
    "extent of another": (
        lambda y, z: go.ones((1,)).broadcast_to((N,), like=(y,)) + z,
        [(N,), (N,)],
        (SIX, SIX),
        SIX + 1,
    ),
    "extent of another that differs": (
        lambda y, z: go.ones((1,)).broadcast_to((N,), like=(y,)) + z,
        [(N,), (N,)],
        (SIX, SIX[:2]),
        MISFIT,
    ),
    "barrier": (go.optimization_barrier, [(N,)], (SIX,), SIX),
    "nothing": (lambda x: x + 1.0, [(N,)], (SIX[:0],), SIX[:0]),
    "gradient": (
        go.grad(lambda x: x.square().mean()),
        [(N, 3)],
        (SIX.reshape(2, 3),),
        SIX.reshape(2, 3) / 3,
    ),
    "batch norm": (
        go.grad(lambda x, w: (go.batch_norm(x, eps=0.0) * w).sum()),
        [(N, 2), (N, 2)],
        (row([1, 4], [2, 2], [3, 0]), row([1, 2], [3, 5], [0, 0])),
        # (w - mean w - y mean(w y)) / std, by column; y = (-1, 0, 1) sqrt(3 / 2) and its negative
        np.outer([-1, 2, -1], [5 / 6, 2 / 3]) * np.sqrt(1.5),
    ),
}


@pytest.mark.parametrize("where", ["reference", pytest.param("iree", marks=pytest.mark.compiler)])
@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_extents(name: str, where: str) -> None:
    fn, shapes, arrays, want = UNKNOWN[name]
    graph = go.trace(fn, *map(go.TensorSpec, shapes))

    def run() -> Any:
        if where == "iree":
            return go.compile(graph)(*arrays)
        return reference.run(lowered(graph).module, graph.name, *arrays)[0]

    if isinstance(want, str):
        with pytest.raises((ArgumentError, PassError), match=r"expected (extents|operands)"):
            run()
    else:
        np.testing.assert_allclose(np.asarray(run()), want, rtol=1e-5, atol=1e-6)


# --- numbers that do not fit ----------------------------------------------------------------------


@pytest.mark.parametrize("number", [300, -1, np.int64(300)])
@pytest.mark.parametrize("op", [go.add, go.less, go.maximum, go.equal])
def test_integers_that_do_not_fit(op: Callable[..., Any], number: Any) -> None:
    with pytest.raises(OpError, match=r"expected integers that fit uint8, \[0, 255\], got"):
        go.trace(lambda x: op(x, number), go.TensorSpec((3,), np.uint8))


def test_wide_integers_are_kept() -> None:
    graph = go.trace(lambda: (go.constant(3_000_000_000), go.constant(-5), go.arange(0)))
    assert [s.dtype.name for s in graph.output_specs] == ["int64", "int32", "int32"]
    (got,) = run_reference(lambda x: go.where(x > 0, 2**40, 1), np.int32([1, -1]))
    np.testing.assert_array_equal(got, [2**40, 1])


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("bool", 2), ("int32", -INF), ("int32", 0.5), ("uint8", 256), ("int64", 2**53 + 1)],
)
def test_padding_that_does_not_fit(dtype: str, value: Any) -> None:
    with pytest.raises(OpError, match=r"'gradopt.pad' op expected a value that"):
        go.trace(lambda x: go.pad(x, 1, constant_values=value), go.TensorSpec((3,), dtype))


def test_whole_powers_of_integers() -> None:
    x = np.int32([2, -3, 0])
    for exponent in range(12):
        (got,) = run_reference(lambda x, e=exponent: x**e, x)
        np.testing.assert_array_equal(got, x**exponent)
        assert got.dtype == np.int32
