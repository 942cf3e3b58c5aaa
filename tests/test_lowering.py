# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Lowerings on IREE's CPU against the reference: element types, special values, empty tensors, and
forms that IREE compiles wrongly when they are written in the obvious way.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import gradopt as go
import ml_dtypes
import numpy as np
import pytest
from gradopt.dialect.types import TensorSpec

from .helpers import compile_many, linalg_function, run_reference

pytestmark = pytest.mark.compiler
rng = np.random.default_rng(7)
INF, NAN = np.inf, np.nan


@dataclasses.dataclass
class Row:
    """A function, its arguments, and how far from the reference its results may be, relative to the
    largest.
    """

    fn: Callable[..., Any]
    arrays: tuple[np.ndarray, ...]
    rtol: float = 0.0


def f32(*shape: int) -> np.ndarray:
    return rng.uniform(-2, 2, shape).astype(np.float32)


# --- element types --------------------------------------------------------------------------------

LOGICAL = {
    "identity": lambda x: x,
    "and": lambda x: x & ~x[::-1],
    "any": lambda x: x.any(),
    "where": lambda x: go.where(x, x[::-1], False),
    "concat": lambda x: go.concat([x, x[1:3]]),
    "argmax": lambda x: x.argmax(),
    "take": lambda x: go.take(x, np.array([2, 0, 2, -1])),
    "to int32": lambda x: x.astype(np.int32),
    "to float32": lambda x: x.astype(np.float32),
}
EVERY = {
    "identity": lambda x: x,
    "add": lambda x: x + x[::-1],
    "multiply": lambda x: x * x[::-1],
    "less": lambda x: x < x[::-1],
    "where": lambda x: go.where(x > x[::-1], x, x[::-1]),
    "sum": lambda x: x.sum(),
    "max": lambda x: x.max(),
    "argmax": lambda x: x.argmax(),
    "concat": lambda x: go.concat([x, x[1:3]]),
    "take": lambda x: go.take(x, np.array([2, 0, 2, -1])),
    "reshape": lambda x: x.reshape(-1, 1).T,
    "to float32": lambda x: x.astype(np.float32),
    "to int32": lambda x: x.astype(np.int32),
    "to bool": lambda x: x.astype(bool),
    "scatter_add": lambda x: go.scatter_add(x, np.array([1, 1, 3]), x[:3]),
}
WHOLE = {
    "floor_divide": lambda x: x // 3,
    "remainder": lambda x: x % 3,
    "by_zero": lambda x: x // (x - x) * 0,
    "bits": lambda x: (x & 6) | (~x >> 1),
    "shift": lambda x: x << 2,
    "minimum": lambda x: go.minimum(x, 3),
    "prod": lambda x: x.prod(),
    "to float64": lambda x: x.astype(np.float64) / 2,
}
REAL = {
    "divide": lambda x: x / (1 + x * x),
    "exp": lambda x: go.exp(x),
    "log": lambda x: go.log(go.abs(x) + 1),
    "tanh": lambda x: go.tanh(x),
    "mean": lambda x: x.mean(),
    "softmax": lambda x: go.softmax(x),
    "matmul": lambda x: x.reshape(-1, 1) @ x.reshape(1, -1),
    "gradient": go.grad(lambda x: (go.sigmoid(x) * x).sum()),
}
VALUES = np.array([0, 1, 7, 100, 3, 5])
ROUNDING = {"float64": 1e-14, "float32": 4e-7, "float16": 1e-3, "bfloat16": 8e-3}


def dtype_rows() -> dict[str, Row]:
    rows = {}
    for name in ("int8", "int16", "int32", "int64", "uint8", "uint32", "bool", *ROUNDING):
        dtype = np.dtype(getattr(ml_dtypes, name) if name == "bfloat16" else name)
        integer = dtype.kind in "iu"
        x = VALUES.astype(dtype) if dtype.kind in "iub" else (VALUES / 32 - 1).astype(dtype)
        functions = LOGICAL if dtype.kind == "b" else EVERY | (WHOLE if integer else REAL)
        for label, fn in functions.items():
            rows[f"{name} {label}"] = Row(fn, (x,), ROUNDING.get(name, 0.0))
    return rows


# --- special values -------------------------------------------------------------------------------

SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1e-30, 1e30, -1e30, 3.4e38, -3.4e38, INF, -INF, NAN],
    np.float32,
)
SMALL_RESULT = ["sin", "cos", "tan"]  # of arguments too large for float32 to say where they are
UNARY = [
    "abs", "sign", "floor", "ceil", "trunc", "round", "exp", "exp2", "expm1", "log", "log2",
    "log10", "log1p", "sqrt", "rsqrt", "cbrt", "reciprocal", "square", "tanh", "sinh", "cosh",
    "asinh", "acosh", "atanh", "asin", "acos", "atan", "erf", "erfc", "sigmoid", "softplus",
    "relu", "gelu", "silu", "is_nan", "is_inf", "is_finite", "sin", "cos",
]  # fmt: skip
BINARY = [
    "add", "sub", "mul", "div", "maximum", "minimum", "pow", "atan2", "hypot", "fmod",
    "remainder", "floor_divide", "copysign", "logaddexp",
]  # fmt: skip


def special_rows() -> dict[str, Row]:
    rows = {
        f"special {name}": Row(
            getattr(go, name),
            (np.delete(SPECIAL, [7, 8, 9, 10]) if name in SMALL_RESULT else SPECIAL,),
            1e-6,
        )
        for name in UNARY
    }
    left, right = (np.ascontiguousarray(v.ravel()) for v in np.meshgrid(SPECIAL, SPECIAL))
    rows |= {f"special {name}": Row(getattr(go, name), (left, right), 1e-6) for name in BINARY}
    big = np.float32(3.4e38)
    logits = np.array(
        [[1, -INF, 2], [-big, -big, -big], [1, NAN, 2], [-INF, -INF, -INF]], np.float32
    )
    for name in ("softmax", "log_softmax", "logsumexp"):  # C109
        rows[f"special {name}"] = Row(lambda x, n=name: getattr(go, n)(x, axis=1), (logits,), 1e-6)
    for name in ("max", "min", "argmax", "argmin", "sum"):
        rows[f"special {name} of rows"] = Row(lambda x, n=name: getattr(x, n)(axis=1), (logits,))
    return rows


# --- shapes ---------------------------------------------------------------------------------------

EMPTY = {
    "C094 softmax": (go.grad(lambda x: go.softmax(x).sum()), [(0, 5)]),
    "C094 log_softmax": (go.grad(lambda x: go.log_softmax(x).sum()), [(3, 0)]),
    "C095 matmul": (lambda a, b: a @ b, [(2, 0, 4), (4, 3)]),
    "C095 matmul over nothing": (lambda a, b: a @ b, [(2, 0), (0, 3)]),
    "C098 mean": (lambda x: x.mean(), [(0,)]),
    "sum": (lambda x: x.sum(axis=0), [(0, 3)]),
    "max of rows": (lambda x: x.max(axis=1), [(0, 3)]),
    "tanh": (lambda x: go.tanh(x), [(2, 0)]),
    "concat": (lambda a, b: go.concat([a, b]), [(0, 3), (2, 3)]),
    "pad": (lambda x: go.pad(x, 1), [(0, 2)]),
    "transpose": (lambda x: x.T, [(0, 2)]),
    "0-d": (go.grad(lambda x: go.exp(x) * x), [()]),
    "one element": (lambda x: go.tanh(x).sum(), [(1, 1, 1)]),
}

# --- what IREE compiles wrongly -------------------------------------------------------------------

INNER = {
    "tanh": lambda n, x: go.tanh(x),
    "negated": lambda n, x: -x,
    "exp": lambda n, x: go.exp(x),
    "absolute": lambda n, x: go.abs(x),
    "itself": lambda n, x: x,
}


def contraction_rows() -> dict[str, Row]:
    """Sums over products of functions, which IREE takes for plain matrix products."""
    rows = {}
    for name, inner in INNER.items():
        rows |= {
            f"sum of {name} by row": Row(
                lambda x, y, f=inner: (f(go, x) * y).sum(axis=1), (f32(33, 5), f32(5)), 1e-5
            ),
            f"sum of {name} by column": Row(
                lambda x, y, f=inner: (y[:, None] * f(go, x)).sum(axis=0),
                (f32(33, 5), f32(33)),
                1e-5,
            ),
            f"sum of {name} in batches": Row(
                lambda x, y, f=inner: (f(go, x) * y[..., None]).sum(axis=1),
                (f32(4, 16, 9), f32(4, 16)),
                1e-5,
            ),
            f"{name} of a product, summed": Row(
                lambda x, y, f=inner: f(go, x * y).sum(axis=1), (f32(17, 4), f32(4)), 1e-5
            ),
            f"int sum of {name}": Row(
                lambda x, y, f=inner: (
                    (f(go, x) * y).sum(axis=1)
                    if f is INNER["negated"] or f is INNER["absolute"]
                    else x.sum()
                ),
                (rng.integers(-9, 9, (33, 5)).astype(np.int32), np.arange(5, dtype=np.int32)),
            ),
        }
    return rows


def epilogue_rows() -> dict[str, Row]:
    """What stands behind a product reads tensors that others read too."""

    def shared(a: Any, t: Any, c: Any, b: Any) -> Any:
        v = go.tanh(c)
        return a @ t + v, v * b

    def chain(a: Any, t: Any, c: Any, b: Any) -> Any:
        v = go.tanh(c) * b
        w = go.tanh(a @ t) + v
        return w, (go.exp(v) * b).sum(axis=-1), (w * b).sum(axis=0)

    def packed(c: Any, b: Any) -> Any:
        return go.tanh(c / (1.5 + b * b)).sum() + go.tanh(c[..., 0] @ c).sum()

    gradient = go.grad(packed, argnums=(0, 1))
    rows = {"shared with a gradient": Row(gradient, (f32(2, 3, 4), f32(4)), 1e-5)}
    for size in [(2, 3, 2, 4), (2, 5, 7, 9), (3, 16, 16, 16), (1, 33, 5, 17)]:
        batch, m, k, n = size
        arrays = f32(batch, m, k), f32(batch, k, n), f32(batch, m, n), f32(n)
        rows[f"shared operand {size}"] = Row(shared, arrays, 1e-5)
        rows[f"shared chain {size}"] = Row(chain, arrays, 1e-5)
        flat = tuple(x[0] if x.ndim == 3 else x for x in arrays)
        rows[f"shared operand {size[1:]}"] = Row(shared, flat, 1e-5)
        rows[f"shared chain {size[1:]}"] = Row(chain, flat, 1e-5)
    return rows


def gather_rows() -> dict[str, Row]:
    """What reads rows by position is used by all kinds of ops."""
    forms = {
        "product": lambda e, w: e @ w,
        "sum": lambda e, w: e.sum(),
        "sum of rows": lambda e, w: e.sum(-1),
        "first column": lambda e, w: e[..., 0].sum(),
        "last row": lambda e, w: go.tanh(e[-1]),
        "every other row": lambda e, w: (e[::2] * 2).sum(0),
        "gated": lambda e, w: e[..., : e.shape[-1] // 2] * go.sigmoid(e[..., e.shape[-1] // 2 :]),
        "neighbours": lambda e, w: (e[1:] * e[:-1]).sum(-1),
        "mean, product": lambda e, w: e.mean(0) @ w,
    }
    rows = {}
    for table, width, count in [(10, 4, 6), (5, 6, 5), (20, 16, 8), (27, 10, 96), (100, 32, 64)]:
        arrays = f32(table, width), rng.integers(0, table, count).astype(np.int32), f32(width, 3)
        for name, use in forms.items():
            rows[f"rows of {table}x{width}, {name}"] = Row(
                lambda t, i, w, f=use: f(go.embedding(t, i), w), arrays, 1e-5
            )
            rows[f"rows of {table}x{width}, gradient of {name}"] = Row(
                go.grad(lambda t, i, w, f=use: go.tanh(f(go.embedding(t, i), w)).sum()),
                arrays,
                1e-5,
            )
        rows[f"columns of {table}x{width}"] = Row(
            lambda t, i, w: go.take(t.T, i, axis=1)[0].sum() * go.take(t.T, i, axis=1)[:, 1],
            arrays,
            1e-5,
        )
    return rows


LONG = 1024 * 2**-26
"""What rounding may add up to in 1,024 additions: a quarter of the bound. The reference runs in
float64, since NumPy's own float32 sums over columns are far off.
"""


def scatter_rows() -> dict[str, Row]:
    """Rows are added to a table that others read, too."""

    def beside(use: Callable[..., Any]) -> Callable[..., Any]:
        def fn(x: Any, i: Any, u: Any) -> Any:
            table = go.exp(x)
            # the constant result has IREE run what does not depend on each other side by side
            return go.zeros((3, 4)), use(table), go.scatter_add(table, i, u), go.zeros(())

        return fn

    def gradient(x: Any, i: Any, b: Any) -> Any:
        def loss(x: Any, b: Any) -> Any:
            y = x + b
            return go.tanh(x[i]).sum() + 2 * go.tanh(y).sum() + 3 * go.tanh(y + y).sum()

        return go.zeros((3, 4)), go.grad(loss, (0, 1))(x, b), go.zeros(())

    uses = {
        "sum": lambda t: t.sum((0, 1)),
        "itself": lambda t: t,
        "shape": lambda t: t.reshape(-1),
        "product": lambda t: t.reshape(t.shape[0], -1) @ t.reshape(t.shape[0], -1).T,
        "rows": lambda t: go.take(t, np.array([1, 1, 0]), axis=0),
        "another scatter": lambda t: go.scatter_add(t, np.array([0]), go.ones((1, *t.shape[1:]))),
    }
    return {
        f"rows added to {n}, {name}": Row(
            beside(use), (f32(n, *m), np.array([1, 0, 1], np.int32), f32(3, *m)), 1e-5
        )
        for n, m in ((2, (3, 4)), (50, (3, 8)))
        for name, use in uses.items()
    } | {
        "rows added to a cotangent that is summed, too": Row(
            gradient, (f32(2, 3, 4), np.array([0, 0, 1], np.int32), f32(4)), 1e-5
        )
    }


def long_rows() -> dict[str, Row]:
    """Sums over many elements, which grow inexact when they are taken one after the other."""
    flat, one = np.full(200_003, 0.1, np.float32), np.linspace(9, 11, 100_001, dtype=np.float32)
    rows = {
        f"long {name}": Row(fn, (x,), LONG)
        for x in (flat, one)
        for name, fn in {
            f"sum of {x.size}": lambda x: x.mean(),
            f"variance of {x.size}": lambda x: x.var(),
            f"norm of {x.size}": lambda x: go.norm(x) / 100,
            f"logsumexp of {x.size}": lambda x: go.logsumexp(x),
            f"largest of {x.size}": lambda x: (x.max(), x.min(), x.argmax()),
        }.items()
    }
    for shape, axes in [
        ((3, 50_001), 1), ((50_001, 3), 0), ((17_000, 200), 0), ((2, 40_000, 3), 1),
        ((3, 2, 20_001), (0, 2)), ((3, 30_001), None), ((131_088, 2), 0),
    ]:  # fmt: skip
        x = (rng.random(shape) + 1).astype(np.float32)
        rows[f"long {shape} {axes}"] = Row(
            lambda x, a=axes: (x.mean(a), x.var(a), x.max(a)), (x,), LONG
        )
    return rows


def mask_rows() -> dict[str, Row]:
    """Truth values that are chosen by behind a product."""
    below = np.tril(np.ones((5, 5), bool))

    def masked(q: Any, m: Any) -> Any:
        return go.softmax(go.where(m, q @ q.T, -1e9))

    return {
        "mask": Row(masked, (f32(5, 5), below), 1e-6),
        "mask, gradient": Row(
            go.grad(lambda q, m: masked(q, m).square().sum()), (f32(5, 5), below), 1e-6
        ),
        "mask of a row": Row(lambda q, m: go.where(m[1], q @ q, 0.0), (f32(5, 5), below), 1e-6),
        "masks": Row(lambda q, m: go.where(m & ~m.T, q @ q, 0.0).sum(0), (f32(5, 5), below), 1e-5),
    }


COLUMNS = {
    "columns": lambda x: go.concat([go.tanh(x[0:1, None]), x[2:, None], x[1:2, None]]),
    "columns of length 1": lambda x: go.stack([go.tanh(x[:1]), x[2:3], x[1:2]]).reshape(3),
    "numbers": lambda x: go.stack([x.sum(), x.max(), go.tanh(x[0])]) * 2,
    "gradient of a product of 3": go.grad(lambda x: x[:3].prod()),
    "gradient of a product of 5": go.grad(lambda x: x.prod()),
    "inner axis": lambda x: go.concat([x[:, None], go.tanh(x)[:, None]], axis=1),
    "of one": lambda x: go.concat([x]),
    "of nothing and something": lambda x: go.concat([x[:0], x]),
}


def cases() -> dict[str, Row]:
    """C110, C112, C113, C115, C118, C119"""

    def dense(w1: Any, b1: Any, w2: Any, b2: Any, x: Any, y: Any) -> Any:
        def loss(w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
            return go.cross_entropy(go.relu(x @ w1 + b1) @ w2 + b2, y).mean()

        value, gradients = go.value_and_grad(loss, argnums=(0, 1, 2, 3))(w1, b1, w2, b2)
        return value, [p - 0.1 * g for p, g in zip((w1, b1, w2, b2), gradients, strict=True)]

    labels = rng.integers(0, 4, 16).astype(np.int32)
    dense_arguments = (f32(784, 12) / 20, f32(12), f32(12, 4), f32(4), f32(16, 784), labels)
    x3, w3, v3 = np.ones((2, 3, 4), "f"), np.ones((4, 5), "f"), np.ones((5, 6), "f")
    return {
        "C112 dense step": Row(dense, dense_arguments, 1e-4),
        "C113 column": Row(
            go.grad(lambda w, x: (x @ w)[:, 0].mean()),
            (np.ones((5, 7), np.float32), np.ones((3, 5), np.float32)),
            1e-6,
        ),
        "C113 time step": Row(
            go.grad(lambda w, x, v: ((x @ w)[:, 0] @ v).sum()), (w3, x3, v3), 1e-6
        ),
        "C115 depthwise": Row(
            go.grad(lambda x, w: (go.conv(x, w, groups=4) ** 2).sum(), argnums=(0, 1)),
            (f32(1, 8, 8, 4), f32(3, 3, 1, 4)),
            1e-5,
        ),
        "C088 grouped, strided": Row(
            go.grad(
                lambda x, w: (go.conv(x, w, 2, padding=1, groups=4) ** 2).sum(), argnums=(0, 1)
            ),
            (f32(1, 4, 4, 4), f32(3, 3, 1, 4)),
            1e-5,
        ),
        "C118 bias loss": Row(
            go.grad(lambda b, x, w, t: -(t * (x @ w + b)).sum(axis=1).mean(), argnums=(0, 2)),
            (f32(3), f32(2, 7), f32(7, 3), np.eye(2, 3, dtype=np.float32)),
            1e-5,
        ),
        "C118 layer norm": Row(
            lambda x, g, b: go.layer_norm(x, g, b),
            (rng.normal(size=(10, 32, 42, 32)), np.ones(32), np.zeros(32)),
            1e-12,
        ),
        "C119 scatter with repeats": Row(
            lambda u: go.scatter_add(go.zeros((5,)), np.array([3, 0, 0, 4, 2]), u),
            (np.arange(1, 6, dtype=np.float32),),
        ),
        "C086 separated axes": Row(
            go.grad(lambda x: (x.sum(axis=(0, 2)) ** 2).sum()), (f32(3, 2, 3, 2),), 1e-5
        ),
    }


ROWS = (
    dtype_rows()
    | special_rows()
    | {
        f"empty {n}": Row(f, tuple(f32(*s) for s in shapes), 1e-6)
        for n, (f, shapes) in EMPTY.items()
    }
    | contraction_rows()
    | epilogue_rows()
    | gather_rows()
    | scatter_rows()
    | long_rows()
    | mask_rows()
    | {f"join {name}": Row(fn, (f32(5),), 1e-6) for name, fn in COLUMNS.items()}
    | cases()
)


@pytest.fixture(scope="module")
def compiled() -> dict[str, Callable[..., Any]]:
    texts = {
        f"row{i}": linalg_function(row.fn, f"row{i}", *row.arrays)
        for i, row in enumerate(ROWS.values())
    }
    return dict(zip(ROWS, compile_many(texts).values(), strict=True))


@pytest.mark.parametrize("name", ROWS)
def test_agrees_with_reference(name: str, compiled: dict[str, Callable[..., Any]]) -> None:
    row = ROWS[name]
    if name.startswith("long"):
        want = run_reference(row.fn, *(a.astype(np.float64) for a in row.arrays))
        want = [w.astype(np.float32) if w.dtype.kind == "f" else w for w in want]
    else:
        want = run_reference(row.fn, *row.arrays)
    got = compiled[name]([TensorSpec(w.shape, w.dtype) for w in want], *row.arrays)
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if b.dtype.kind in "iub":
            np.testing.assert_array_equal(a, b)
            continue
        a, b = a.astype(np.float64), b.astype(np.float64)
        if "special" in name:  # each element by itself: they are of all sizes
            np.testing.assert_allclose(a, b, rtol=row.rtol, atol=1e-37)
        else:
            largest = float(np.max(np.abs(b), initial=1))
            np.testing.assert_allclose(a, b, rtol=0, atol=row.rtol * largest)
