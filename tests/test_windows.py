# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Pools, patches, response norms and transposed convolutions: known answers, further derivatives,
and what is refused. tests/test_iree_windows.py runs the same points on IREE.
"""

from collections.abc import Callable
from typing import Any

import gradopt as go
import jax
import numpy as np
import pytest
from gradopt.errors import GradoptError, OpError
from gradopt.lowering import pipeline
from gradopt.op_cases import FAMILIES, Case

from .helpers import run_reference
from .test_ops import ids

F32 = np.dtype(np.float32)
INF, NAN = np.inf, np.nan
Point = tuple[Callable[..., Any], tuple[np.ndarray, ...], Any]


def signal(*values: Any, dtype: Any = F32) -> np.ndarray:
    """One image with one spatial axis and one channel."""
    return np.array(values, dtype).reshape(1, -1, 1)


def flat(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *x: fn(*x).flatten()


def slope(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The gradient of the sum, flattened."""
    return flat(go.grad(lambda x: fn(x).sum()))


def weighted(fn: Callable[..., Any], *weights: float) -> Callable[..., Any]:
    """The gradient of the results weighted."""
    return flat(go.grad(lambda x: (fn(x).flatten() * np.array(weights, F32)).sum()))


POINTS: dict[str, Point] = {
    "max ties": (
        weighted(lambda x: go.max_pool(x, 2), 1, 3),
        (signal(5, 5, 1, 2),),
        [0.5, 0.5, 0, 3],
    ),
    "max ties, overlapping": (
        weighted(lambda x: go.max_pool(x, 3, 1), 6, 3),
        (signal(2, 2, 2, 0),),
        [2, 3.5, 3.5, 0],
    ),
    "min ties in the padding": (
        weighted(lambda x: go.min_pool(x, 3, 2, 1), 1, 1),
        (signal(0, 0, 1),),
        [0.5, 1.5, 0],
    ),
    "max of negative numbers with padding": (
        flat(lambda x: go.max_pool(x, 3, 1, 1)),
        (signal(-1, -2, -3),),
        [-1, -1, -2],
    ),
    "padding is no tie of -inf": (
        weighted(lambda x: go.max_pool(x, 3, 1, 1), 1, 1),
        (signal(-INF, -INF),),
        [1, 1],
    ),
    "max NaN": (flat(lambda x: go.max_pool(x, 2)), (signal(NAN, 1, 3, 2, 1, NAN),), [NAN, 3, NAN]),
    "min NaN": (flat(lambda x: go.min_pool(x, 2)), (signal(NAN, 1, 3, 2, 1, NAN),), [NAN, 2, NAN]),
    "max NaN leaves other gradients": (
        slope(lambda x: go.max_pool(x, 2)),
        (signal(NAN, 1, 3, 2),),
        [0, 0, 1, 0],
    ),
    "max infinite": (
        slope(lambda x: go.max_pool(x, 2)),
        (signal(INF, 1, INF, INF),),
        [1, 0, 0.5, 0.5],
    ),
    "max int8": (
        flat(lambda x: go.max_pool(x, 3, 1, 1)),
        (signal(-128, -128, -5, dtype=np.int8),),
        np.array([-128, -5, -5], np.int8),
    ),
    "max uint8": (
        flat(lambda x: go.max_pool(x, 2)),
        (signal(200, 3, 127, 128, dtype=np.uint8),),
        np.array([200, 128], np.uint8),
    ),
    "min uint32": (
        flat(lambda x: go.min_pool(x, 2, padding=1)),
        (signal(2**32 - 1, 3, 2**31, 4, dtype=np.uint32),),
        np.array([2**32 - 1, 3, 4], np.uint32),
    ),
    "sum uint8 in 32 bits": (
        flat(lambda x: go.sum_pool(x, 2)),
        (signal(200, 200, 255, 255, dtype=np.uint8),),
        np.array([400, 510], np.uint32),
    ),
    "avg counts the padding": (
        flat(lambda x: go.avg_pool(x, 3, 1, 1)),
        (signal(3, 6, 9),),
        [3, 6, 5],
    ),
    "avg counts elements only": (
        flat(lambda x: go.avg_pool(x, 3, 1, 1, count_include_pad=False)),
        (signal(3, 6, 9),),
        [4.5, 6, 7.5],
    ),
    "avg, elements only, gradient": (
        slope(lambda x: go.avg_pool(x, 3, 1, 1, count_include_pad=False)),
        (signal(3, 6, 9),),
        [1 / 2 + 1 / 3, 1 / 2 + 1 / 3 + 1 / 2, 1 / 3 + 1 / 2],
    ),
    # PyTorch: F.avg_pool1d(x, 3, 2, 1, ceil_mode=True) divides by 3, 3, 2: what hangs over the
    # padded end never counts
    "avg ceil mode": (
        flat(lambda x: go.avg_pool(x, 3, 2, 1, ceil_mode=True)),
        (signal(3, 6, 9, 12),),
        [3, 9, 6],
    ),
    "max ceil mode": (
        flat(lambda x: go.max_pool(x, 2, ceil_mode=True)),
        (signal(1, 2, 3, 4, 0),),
        [2, 4, 0],
    ),
    "ceil mode leaves out windows of padding": (
        flat(lambda x: go.max_pool(x, 2, 2, 1, ceil_mode=True)),
        (signal(1, 2, 3),),
        [1, 3],
    ),
    "max same": (flat(lambda x: go.max_pool(x, 3, 2, "SAME")), (signal(1, 5, 2, 3, 4),), [5, 5, 4]),
    "unit batch of nothing": (
        lambda x: go.grad(lambda x: go.max_pool(x, 2).sum())(x),
        (np.zeros((0, 4, 3), F32),),
        np.zeros((0, 4, 3)),
    ),
    "second derivative of a squared max": (
        flat(
            go.grad(lambda x: go.grad(lambda x: (go.max_pool(x, 2) ** 3).sum())(x).square().sum())
        ),
        (signal(1, 2, 4, 3),),
        [0, 36 * 2**3, 36 * 4**3, 0],
    ),
    "patches": (
        lambda x: go.extract_patches(x, 2, 1, [(1, 0)]).squeeze((0, 3)),
        (signal(1, 2, 3),),
        [[0, 1], [1, 2], [2, 3]],
    ),
    "folded patches": (
        flat(lambda x: go.fold_patches(go.extract_patches(x, 3, 2, 1), 5, 2, 1)),
        (signal(1, 1, 1, 1, 1),),
        [1, 2, 1, 2, 1],
    ),
    "adaptive bins of PyTorch": (
        flat(lambda x: go.adaptive_avg_pool(x, 3)),
        (signal(0, 1, 2, 3, 4),),
        [0.5, 2, 3.5],
    ),
    "adaptive maxima": (
        flat(lambda x: go.adaptive_max_pool(x, 3)),
        (signal(0, 4, 2, 3, 1),),
        [4, 4, 3],
    ),
    "adaptive bins larger than the image": (
        flat(lambda x: go.adaptive_avg_pool(x, 3)),
        (signal(2, 4),),
        [2, 3, 4],
    ),
    "response norm": (
        flat(lambda x: go.local_response_norm(x, 3, alpha=3.0, beta=1.0)),
        (np.array([[1, 2, 0]], F32),),
        [1 / 6, 2 / 6, 0],
    ),
    # torch.nn.functional.conv_transpose1d(ones(1, 1, 2), arange(1, 4), stride=2, padding=1,
    # output_padding=1)
    "transposed convolution with output padding": (
        lambda g, w: go.conv_transpose(
            g, w, 2, 1, output_padding=1, layout="channels_first"
        ).flatten(),
        (np.ones((1, 1, 2), F32), np.arange(1, 4, dtype=F32).reshape(1, 1, 3)),
        [2, 4, 2, 3],
    ),
    "convolution of a spread input": (
        flat(lambda x: go.conv(x, np.ones((2, 1, 1), F32), input_dilation=3, padding=1)),
        (signal(1, 2),),
        [1, 1, 0, 2, 2],
    ),
}


@pytest.mark.parametrize("name", POINTS)
def test_known_answers(name: str) -> None:
    """The hard points of ops.md's table, on the reference."""
    fn, arrays, want = POINTS[name]
    (got,) = run_reference(fn, *arrays)
    assert got.shape == np.shape(want)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)


ROWS = [
    case
    for family in ("window", "arrange", "resize", "padding")
    for case in FAMILIES[family]
    if case.jax and case.differentiable() and "large" not in case.suffix and case.suffix != "many"
]


@pytest.mark.parametrize("case", ROWS, ids=ids)
def test_further_derivatives(case: Case) -> None:
    """The gradient of the square of a gradient, and the directional derivative, against central
    differences.
    """
    (x,) = case.inputs
    direction = np.cos(3 * x)

    def squared(x: Any) -> Any:
        g = go.grad(lambda x: go.sin(case.build(x) * 1.3).sum())(x)
        return (g * g * go.cos(x)).sum()

    def along(fn: Callable[..., Any], h: float = 1e-5) -> np.ndarray:
        values = [run_reference(fn, x + step * direction)[0] for step in (h, -h)]
        return (values[0] - values[1]) / (2 * h)

    (got,) = run_reference(go.grad(squared), x)
    np.testing.assert_allclose((got * direction).sum(), along(squared), rtol=1e-5, atol=1e-6)
    got = run_reference(lambda x, t: go.jvp(case.build, (x,), (t,)), x, direction)[-1]
    np.testing.assert_allclose(got, along(case.build), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op", [go.max_pool, go.min_pool, go.sum_pool, go.avg_pool])
@pytest.mark.parametrize("channels_last", [True, False])
def test_unknown_batch_and_channels(op: Any, channels_last: bool) -> None:
    """The spatial extents are all that has to be known."""
    shape = (None, 6, 4, None) if channels_last else (None, None, 6, 4)
    graph = go.trace(
        lambda x: op(x, (2, 3), 1, 1, channels_last=channels_last), go.TensorSpec(shape)
    )
    want = (None, 7, 4, None) if channels_last else (None, None, 7, 4)
    assert graph.output_specs[0].shape == want


def test_sizes_of_ceil_mode() -> None:
    """As many windows as PyTorch has, for all small settings."""
    for n, k, s, p in np.ndindex(12, 5, 5, 3):
        n, k, s = n + 1, k + 1, s + 1
        if 2 * p > k or n + 2 * p < k:
            continue
        count = -(-(n + 2 * p - k) // s) + 1
        count -= (count - 1) * s >= n + p
        graph = go.trace(
            lambda x, k=k, s=s, p=p: go.max_pool(x, k, s, p, ceil_mode=True),
            go.TensorSpec((1, n, 1)),
        )
        assert graph.output_specs[0].shape[1] == count, (n, k, s, p)


@pytest.mark.parametrize("mode", ["max", "avg"])
def test_adaptive_pools_agree_with_their_definition(mode: str) -> None:
    """Every bin by itself, in both layouts; None keeps an extent."""
    x = np.random.default_rng(3).normal(size=(2, 7, 5, 6, 3))
    size = (3, None, 4)
    want = np.zeros((2, 3, 5, 4, 3))
    reduce = np.max if mode == "max" else np.mean
    for i, j, k in np.ndindex(3, 5, 4):
        part = x[:, i * 7 // 3 : -(-(i + 1) * 7 // 3), j : j + 1, k * 6 // 4 : -(-(k + 1) * 6 // 4)]
        want[:, i, j, k] = reduce(part, (1, 2, 3))
    pool: Any = go.adaptive_max_pool if mode == "max" else go.adaptive_avg_pool
    (got,) = run_reference(lambda x: pool(x, size), x)
    np.testing.assert_allclose(got, want)
    first = np.moveaxis(x, -1, 1)
    (got,) = run_reference(lambda x: pool(x, size, channels_last=False), first)
    np.testing.assert_allclose(got, np.moveaxis(want, -1, 1))


def test_global_pool_is_the_mean() -> None:
    x = np.random.default_rng(4).normal(size=(2, 6, 5, 3))
    (got,) = run_reference(lambda x: go.adaptive_avg_pool(x, 1), x)
    np.testing.assert_allclose(got, x.mean((1, 2), keepdims=True))


REFUSED: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "window too large": (lambda x: go.max_pool(x, 5), (1, 4, 1), "a window of at most 4 elements"),
    "no spatial axis": (lambda x: go.max_pool(x, 2), (3, 4), "1 to 3 spatial axes"),
    "strides of 0": (
        lambda x: go.max_pool(x, 2, 0),
        (1, 4, 1),
        "strides and dilations of at least",
    ),
    "wrong number of extents": (
        lambda x: go.avg_pool(x, (2, 2)),
        (1, 4, 1),
        "window for 1 spatial axes",
    ),
    "unknown spatial extent": (lambda x: go.max_pool(x, 2), (1, None, 1), "known spatial extents"),
    "cut off too much": (
        lambda x: go.max_pool(x, 1, padding=[(-5, 9)]),
        (1, 4, 1),
        "to cut off at most 4 elements",
    ),
    "patches that do not fit": (
        lambda x: go.fold_patches(x, 7),
        (1, 3, 2, 1),
        "patches of type tensor<1x6x2x1xf32>",
    ),
    "output padding": (
        lambda x: go.conv_transpose(x, np.ones((3, 1, 1), F32), 2, output_padding=2),
        (1, 4, 1),
        "an output_padding of at least 0 and below the stride",
    ),
    "response norm of no channels": (
        lambda x: go.local_response_norm(x, 0),
        (2, 3),
        "a size of at least 1",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    fn, shape, message = REFUSED[name]
    with pytest.raises(OpError, match=message):
        go.trace(fn, go.TensorSpec(shape))


def test_boolean_images_are_refused() -> None:
    with pytest.raises(GradoptError, match="expected a numeric operand"):
        go.trace(lambda x: go.max_pool(x, 2), go.TensorSpec((1, 4, 1), bool))


# --- convolutions, C088, C115 ---------------------------------------------------------------------


def central(fn: Callable[..., Any], arrays: tuple[np.ndarray, ...], which: int) -> np.ndarray:
    """The gradient of a scalar function by one of its arrays, by central differences."""
    slopes, h = np.zeros_like(arrays[which]), 1e-5
    for place in np.ndindex(arrays[which].shape):
        values = []
        for step in (h, -h):
            moved = [a.copy() for a in arrays]
            moved[which][place] += step
            values.append(run_reference(fn, *moved)[0])
        slopes[place] = (values[0] - values[1]) / (2 * h)
    return slopes


def check_gradients(fn: Callable[..., Any], *arrays: np.ndarray) -> None:
    """Gradients by all arrays against central differences."""
    found = run_reference(lambda *a: go.grad(fn, argnums=tuple(range(len(a))))(*a), *arrays)
    for which, got in enumerate(found):
        np.testing.assert_allclose(got, central(fn, arrays, which), rtol=1e-6, atol=1e-7)


def test_grouped_strided_convolution() -> None:
    """C088: channels = groups = 4, kernel 3, stride 2, padding 1, with bias."""
    rng = np.random.default_rng(5)
    x, w, b = rng.normal(size=(1, 4, 4, 4)), rng.normal(size=(3, 3, 1, 4)), rng.normal(size=4)
    check_gradients(lambda x, w, b: ((go.conv(x, w, 2, 1, groups=4) + b) ** 2).sum(), x, w, b)


def test_depthwise_convolution() -> None:
    """C115: x (1, 8, 8, 4), kernel 3 x 3, groups 4, valid."""
    rng = np.random.default_rng(6)
    x, w = rng.normal(size=(1, 8, 8, 4)), rng.normal(size=(3, 3, 1, 4))
    check_gradients(lambda x, w: (go.conv(x, w, groups=4) ** 2).sum(), x, w)


def test_transposed_convolution_with_groups() -> None:
    """Output padding, groups and dilation, in both layouts: the same numbers, and gradients."""
    rng = np.random.default_rng(7)
    g, w = rng.normal(size=(2, 3, 2, 4)), rng.normal(size=(2, 3, 3, 4))
    options: dict[str, Any] = {"strides": (2, 3), "padding": 1, "dilation": (2, 1), "groups": 2}
    options |= {"output_padding": (1, 2)}

    def last(g: Any, w: Any) -> Any:
        return go.conv_transpose(g, w, **options)

    def first(g: Any, w: Any) -> Any:
        return go.conv_transpose(g, w, **options, layout="channels_first")

    (want,) = run_reference(last, g, w)
    assert want.shape == (2, (3 - 1) * 2 + 2 + 1 - 2 + 1, (2 - 1) * 3 + 2 + 1 - 2 + 2, 6)
    (got,) = run_reference(first, np.moveaxis(g, -1, 1), w.transpose(3, 2, 0, 1))
    np.testing.assert_allclose(np.moveaxis(got, 1, -1), want)
    check_gradients(lambda g, w: (last(g, w) ** 2).sum(), g, w)


def test_spread_input_agrees_with_jax() -> None:
    rng = np.random.default_rng(8)
    x, w = rng.normal(size=(2, 4, 3, 2)), rng.normal(size=(3, 2, 2, 5))
    want = jax.lax.conv_general_dilated(
        x,
        w,
        (2, 1),
        [(1, 2), (0, 1)],
        lhs_dilation=(3, 2),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    options: dict[str, Any] = {"strides": (2, 1), "padding": [(1, 2), (0, 1)]}
    (got,) = run_reference(lambda x, w: go.conv(x, w, **options, input_dilation=(3, 2)), x, w)
    np.testing.assert_allclose(got, want, rtol=1e-10)
    check_gradients(lambda x, w: (go.conv(x, w, input_dilation=(3, 2)) ** 2).sum(), x, w)


@pytest.mark.parametrize("apart", [True, False])
def test_convolutions_are_not_fused_into_packing(apart: bool) -> None:
    """A product's operand that comes from a convolution is packed apart, one from a product is
    not.
    """

    def f(x: Any, k: Any, w: Any) -> Any:
        h = go.conv(x, k, padding=1) if apart else x @ k[0, 0]
        return go.relu(h + 1).reshape(-1, 16) @ w

    specs = [go.TensorSpec(shape) for shape in ((2, 8, 8, 4), (3, 3, 4, 16), (16, 16))]
    graph = go.trace(f, *specs)
    pipeline.run(graph.module, "gradopt-lower")
    assert ("compute_barrier" in str(graph.module)) == apart
