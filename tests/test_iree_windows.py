# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Windows, arrangements, padding, resizing and einsum, compiled by IREE: the known answers, and
unknown extents.
"""

from collections.abc import Callable
from typing import Any

import gradopt as go
import numpy as np
import pytest
from gradopt.dialect.types import TensorSpec
from gradopt.lowering.linalg import convolution

from . import test_arrange, test_einsum, test_windows
from .helpers import compile_many, linalg_function, run_reference

pytestmark = pytest.mark.compiler
rng = np.random.default_rng(12)
F32 = np.dtype(np.float32)

GROUPED = rng.normal(size=(2, 4, 4, 6)).astype(F32), rng.normal(size=(3, 3, 2, 6)).astype(F32)


def grouped_input_gradient(g: Any, w: Any) -> Any:
    """C116: the input gradient of a convolution with groups and stride 2."""
    x = go.zeros((2, 8, 8, 6))
    return go.vjp(lambda x: go.conv(x, w, 2, 1, groups=3), x)[1](g)


def penalty(w: Any) -> Any:
    """C010: |d sum(conv(x, w)^2) / dx|^2"""
    x = go.constant(np.linspace(-1, 1, 16, dtype=F32).reshape(1, 4, 4, 1))
    return go.grad(lambda x: go.conv(x, w).square().sum())(x).square().sum()


DILATED = (
    np.array([[[7, 3]], [[3, 2]]], F32).transpose(0, 2, 1),
    np.array([[[3, 6]], [[4, 2]]], F32).transpose(2, 1, 0),
)


def dilated(x: Any, w: Any) -> Any:
    """C089: padding 1, stride 2, dilation 2: y, then dw, then dx."""
    y, pull = go.vjp(lambda x, w: go.conv(x, w, 2, 1, 2), x, w)
    dx, dw = pull(go.ones_like(y))
    return go.concat([v.flatten() for v in (y, dw, dx)])


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    name: (fn, arrays)
    for points in (test_windows.POINTS, test_arrange.POINTS, test_einsum.POINTS)
    for name, (fn, arrays, _) in points.items()
}
FUNCTIONS |= {
    "C116 grouped input gradient": (grouped_input_gradient, GROUPED),
    "C010 penalty": (go.grad(penalty), (np.array([1, -2, 0.5, 3], F32).reshape(2, 2, 1, 1),)),
    "C089 stride and dilation": (dilated, DILATED),
    "einsum of several": (
        lambda x, y, z: go.einsum("bij,jk,bkk->ib", x, y, z),
        tuple(rng.normal(size=s).astype(F32) for s in ((2, 3, 4), (4, 5), (2, 5, 5))),
    ),
    "cross": (go.cross, tuple(rng.normal(size=(4, 3)).astype(F32) for _ in range(2))),
    "kron": (go.kron, tuple(rng.normal(size=s).astype(F32) for s in ((2, 3), (3, 2)))),
}
FUNCTIONS = {name: f for name, f in FUNCTIONS.items() if name != "unit batch of nothing"}


def named(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name)


@pytest.fixture(scope="module")
def points() -> dict[str, Callable[..., Any]]:
    return compile_many(
        {named(n): linalg_function(fn, named(n), *arrays) for n, (fn, arrays) in FUNCTIONS.items()}
    )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_known_answers(name: str, points: dict[str, Callable[..., Any]]) -> None:
    """The points of the other files, C010, C089 and C116: IREE agrees with the reference."""
    fn, arrays = FUNCTIONS[name]
    (want,) = run_reference(fn, *arrays)
    (got,) = points[named(name)]([TensorSpec(want.shape, want.dtype)], *arrays)
    np.testing.assert_allclose(
        got.astype(np.float64), want.astype(np.float64), rtol=1e-5, atol=1e-6
    )


# --- unknown extents ------------------------------------------------------------------------------

N = None
X4 = rng.normal(size=(3, 6, 4, 2)).astype(F32)
SMALL = rng.normal(size=(4, 3)).astype(F32)
UNKNOWN: dict[str, tuple[Callable[..., Any], tuple[Any, ...], np.ndarray]] = {
    "max pool": (lambda x: go.max_pool(x, 3, 2, 1), (N, 6, 4, 2), X4),
    "max pool gradient": (
        go.grad(lambda x: go.max_pool(x, 3, 2, 1).square().sum()),
        (N, 6, 4, 2),
        X4,
    ),
    "max pool, channels first": (
        go.grad(lambda x: go.max_pool(x, 2, channels_last=False).square().sum()),
        (N, 6, 4, 2),
        X4,
    ),
    "avg pool gradient": (
        go.grad(lambda x: go.avg_pool(x, 3, 2, 1).square().sum()),
        (N, 6, 4, 2),
        X4,
    ),
    "patches gradient": (
        go.grad(lambda x: go.extract_patches(x, 2).square().sum()),
        (N, 6, 4, 2),
        X4,
    ),
    "adaptive": (lambda x: go.adaptive_avg_pool(x, (4, 3)), (N, 6, 4, 2), X4),
    "resize gradient": (
        go.grad(lambda x: go.resize(x, (N, 9, 3, 2)).square().sum()),
        (N, 6, 4, 2),
        X4,
    ),
    "pad gradient": (
        go.grad(lambda x: go.pad(x, [(0, 0), (2, 1), (0, 3), (0, 0)], "reflect").square().sum()),
        (N, 6, 4, 2),
        X4,
    ),
    "response norm": (lambda x: go.local_response_norm(x, 3), (N, 6, 4, 2), X4),
    "depth to space": (
        lambda x: go.depth_to_space(go.space_to_depth(x, 2), 2),
        (N, 6, 4, 2),
        X4,
    ),
    "roll": (lambda x: go.roll(x, 1, 1), (N, 3), SMALL),
    "tile": (lambda x: go.tile(x, (1, 2)), (N, 3), SMALL),
    "repeat": (lambda x: go.repeat(x, 2, 1), (N, 3), SMALL),
    "diff": (go.grad(lambda x: go.diff(x).square().sum()), (N, 3), SMALL),
    "diagonal": (lambda x: go.diagonal(x, 0, 1, 2), (N, 6, 4, 2), X4),
    "tril": (go.tril, (N, 6, 4, 2), X4),
    "einsum": (lambda x: go.einsum("...c,dc->...d", x, SMALL[:, :2]), (N, 6, 4, 2), X4),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_batch(name: str) -> None:
    """Compiled for any batch, the reference's numbers."""
    fn, shape, x = UNKNOWN[name]
    (want,) = run_reference(fn, x)
    got = np.asarray(go.compile(go.trace(fn, TensorSpec(shape)))(x))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_columns_a_few_images_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both gradients of a strided convolution, the columns of the input's in several parts."""
    x, w = rng.normal(size=(6, 7, 8, 3)).astype(F32), rng.normal(size=(3, 3, 3, 5)).astype(F32)

    def gradients(x: Any, w: Any) -> Any:
        y, pull = go.vjp(lambda x, w: go.conv(x, w, 2, 1), x, w)
        return pull(go.sin(y))

    compiled = go.compile(gradients, disk_cache=False)
    at_once = compiled.mlir("linalg", x, w).count("linalg.matmul")
    monkeypatch.setattr(convolution, "AT_ONCE", 2000)
    assert compiled.mlir("linalg", x, w).count("linalg.matmul") > at_once
    for got, want in zip(compiled(x, w), run_reference(gradients, x, w), strict=True):
        np.testing.assert_allclose(np.asarray(got), want, rtol=2e-5, atol=2e-5)
