# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Batches of many sizes: filled up to a few (go.bucketed), or of open extent (`dynamic`); and
compiled functions inside compiled ones, on the CPU.
"""

from collections.abc import Callable
from typing import Any

import gradopt as go
import numpy as np
import pytest
from gradopt.errors import ArgumentError, OpError, TraceError

from .helpers import run_reference

pytestmark = pytest.mark.compiler

RNG = np.random.default_rng(0)
P = {
    "w": RNG.standard_normal((5, 8)).astype(np.float32),
    "v": RNG.standard_normal((8, 3)).astype(np.float32),
}


def batch(count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(count)
    x = rng.standard_normal((count, 5)).astype(np.float32)
    return x, rng.integers(0, 3, count).astype(np.int32)


def loss(p: Any, x: Any, y: Any, mask: Any = None) -> Any:
    rows = go.cross_entropy(go.tanh(x @ p["w"]) @ p["v"], y)
    return go.masked_mean(rows, mask)


def step(p: Any, x: Any, y: Any, mask: Any = None) -> Any:
    return go.value_and_grad(loss, (0, 1))(p, x, y, mask=mask)


# --- buckets --------------------------------------------------------------------------------------


def test_few_variants() -> None:
    """C032, issue 5 item 10: nine sizes, two modules; loss and gradients are those of the batch
    alone, rows that are filled in contribute nothing.
    """
    before = go.cache_info()
    fn = go.bucketed(step, [8, 4], argnums=(1, 2), disk_cache=False)
    open_size = go.compile(step, dynamic={1: {0: "batch"}, 2: {0: "batch"}})
    for _ in range(2):
        for count in range(1, 9):
            x, y = batch(count)
            value, (gp, gx) = fn(P, x, y)
            want, (wp, wx) = open_size(P, x, y)
            assert gx.shape == x.shape
            np.testing.assert_allclose(value, want, rtol=1e-6)
            np.testing.assert_allclose(gx, wx, rtol=1e-5, atol=1e-7)
            for name in P:
                np.testing.assert_allclose(gp[name], wp[name], rtol=1e-5, atol=1e-7)
    made = go.cache_info().compiled - before.compiled
    assert made <= 3  # two sizes, and the one of open extent


def test_rows_are_cut_back() -> None:
    """Results with the batch on any axis, by tracing with two sizes, or as declared."""

    def fn(x: Any, state: Any) -> Any:
        return {"t": go.tanh(x.T), "n": go.ones(3), "s": state["h"] * 2}

    x, h = batch(3)[0], np.ones((2, 3), np.float32)
    axes = {"x": 0, "state.h": 1}
    found = go.bucketed(fn, axes=axes)(x, {"h": h})
    declared = {"t": 1, "n": None, "s": 1}
    again = go.bucketed(fn, axes=axes, out_axes=declared)(x, state={"h": h})
    for got in (found, again):
        assert {n: np.shape(a) for n, a in got.items()} == {"t": (5, 3), "n": (3,), "s": (2, 3)}
        np.testing.assert_allclose(got["t"], np.tanh(x.T), rtol=1e-5)
    empty = go.bucketed(lambda x: x * 2, [4])(x[:0])
    assert empty.shape == (0, 5)


MIXED: dict[str, Callable[..., Any]] = {
    "a mean": lambda x: x.mean(),
    "a sum with an unused mask": lambda x, mask: x.sum(0),
    "statistics of the batch": lambda x: x - x.mean(0),
    "a sort along the batch": lambda x: go.sort(x, 0),
}


@pytest.mark.parametrize("name", MIXED)
def test_filled_in_rows_must_not_count(name: str) -> None:
    """A function whose results change with the rows that are filled in is refused."""
    x, _ = batch(3)
    expected = r"results that depend on the 3 rows given, not on the 1 filled in.*mask"
    fn = go.bucketed(MIXED[name], [4], disk_cache=False)
    for _ in range(2):  # every time
        with pytest.raises(ArgumentError, match=expected):
            fn(x)
    assert go.bucketed(MIXED[name], [4], check=False)(x) is not None


def test_bucketed_errors() -> None:
    """What does not fit is told before anything runs."""
    fn = go.bucketed(step, [4, 8], argnums=(1, 2))
    x, y = batch(9)
    with pytest.raises(ArgumentError, match=r"at most 8 rows \(sizes: 4, 8\), got 9; split it"):
        fn(P, x, y)
    with pytest.raises(ArgumentError, match="one batch, got 9 rows in argument 'x' and 2 in 'y'"):
        fn(P, x, y[:2])
    with pytest.raises(ArgumentError, match="is given its mask by bucketed"):
        fn(P, x, y, mask=y > 0)
    with pytest.raises(ArgumentError, match="missing a required argument: 'y'"):
        fn(P, x=x)
    with pytest.raises(ArgumentError, match="batch on one axis, got result 0 of type tensor<20xf"):
        go.bucketed(lambda x: x.reshape(-1), [4])(x[:3])
    for sizes in ([0], [], "all", [2.5]):
        with pytest.raises(ArgumentError, match="sizes expected numbers of rows"):
            go.bucketed(step, sizes)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="expected no options for 'step', which is compiled"):
        go.bucketed(go.compile(step), [4], static_alloc=True)
    with pytest.raises(ArgumentError, match="out_axes expected an axis or None"):
        go.bucketed(lambda x: (x, x), [4], out_axes={"a": 0})(x[:3])
    with pytest.raises(ArgumentError, match="expected a function"):
        go.bucketed(3)  # type: ignore[arg-type]


def test_compiled_functions_and_traces() -> None:
    """A compiled function keeps its options, donation among them; inside a trace, where extents are
    known, nothing is filled in; the mask may be given by name only.
    """

    def update(w: Any, x: Any, *, mask: Any) -> Any:
        return w + go.masked_sum(x, mask)

    def by_position(w: Any, x: Any, mask: Any) -> Any:
        return w + go.masked_sum(x, mask)

    x, _ = batch(3)
    w = go.device_put(np.zeros((), np.float32))
    compiled = go.compile(by_position, donate=0, disk_cache=False)
    found = go.bucketed(compiled, argnums=1)(w, x)
    assert w.is_deleted()
    np.testing.assert_allclose(found, x.sum(), rtol=1e-5)
    again = go.bucketed(update, argnums=1)(np.float32(0), x)
    np.testing.assert_allclose(again, x.sum(), rtol=1e-5)
    inside = run_reference(lambda x: go.bucketed(update, argnums=1)(0.0, x), x)[0]
    np.testing.assert_allclose(inside, x.sum(), rtol=1e-5)


def test_masked_sums() -> None:
    """What stands in other rows does not matter, even NaN; their gradient is 0."""
    x = np.array([[1.0, 2.0], [3.0, 5.0], [np.nan, np.inf]])
    mask = np.array([True, True, False])
    both = go.value_and_grad(go.masked_mean)
    value, slope = run_reference(both, x, mask)
    np.testing.assert_array_equal(value, 2.75)
    np.testing.assert_array_equal(slope, [[0.25, 0.25], [0.25, 0.25], [0, 0]])
    along = run_reference(lambda x, m: go.masked_sum(x.T, m, axis=-1), x, mask)[0]
    assert along == 11
    assert run_reference(go.masked_mean, x[:2])[0] == 2.75
    with pytest.raises(OpError, match="expected one boolean for each place along axis 0"):
        run_reference(go.masked_sum, x, mask[:2])
    with pytest.raises(OpError, match="expected one boolean"):
        run_reference(go.masked_sum, x, mask.astype(np.float32))
    with pytest.raises(OpError, match="expected an axis of a tensor of rank 2, got 2"):
        run_reference(lambda x, m: go.masked_sum(x, m, axis=2), x, mask)


# --- open extents ---------------------------------------------------------------------------------


def test_open_extents() -> None:
    """B07: a training step compiles once for all sizes, and gives what each size alone does."""
    traced = []

    def counted(p: Any, data: Any) -> Any:
        traced.append(1)
        return go.value_and_grad(loss)(p, data["x"], data["y"])

    before = go.cache_info()
    fn = go.compile(counted, dynamic={"data": {0: "batch"}}, disk_cache=False)
    for count in (1, 3, 4):
        x, y = batch(count)
        value, gradient = fn(P, {"x": x, "y": y})
        rows = [fn(P, {"x": x[i : i + 1], "y": y[i : i + 1]}) for i in range(count)]
        np.testing.assert_allclose(value, np.mean([float(r[0]) for r in rows]), rtol=1e-5)
        for name in P:
            alone = np.mean([np.asarray(r[1][name]) for r in rows], axis=0)
            np.testing.assert_allclose(gradient[name], alone, rtol=1e-4, atol=1e-6)
    assert len(traced) == 1
    assert go.cache_info().compiled - before.compiled == 1


def test_shared_dimensions() -> None:
    """B06: extents of one name must agree, which a call checks before anything runs; the error
    names both arguments.
    """
    fn = go.compile(loss, dynamic={"x": {0: "batch"}, "y": {-1: "batch"}})
    x, y = batch(3)
    expected = (
        r"'loss' expected one extent for the dimension 'batch', got 3 in argument 'x' of shape "
        r"\(3, 5\) and 2 in argument 'y' of shape \(2,\)"
    )
    with pytest.raises(ArgumentError, match=expected):
        fn(P, x, y[:2])
    assert [str(s) for s in fn.trace(P, x, y).input_specs[2:]] == [
        "tensor<?x5xf32>",
        "tensor<?xi32>",
    ]
    wrong: list[tuple[Any, str]] = [
        ({"z": 0}, "dynamic of 'loss' expected arguments out of p.v, p.w, x, y, got 'z'"),
        ({"x": 2}, r"expected an axis of argument 'x' of shape \(3, 5\), got 2"),
    ]
    for dynamic, message in wrong:
        with pytest.raises(ArgumentError, match=message):
            go.compile(loss, dynamic=dynamic)(P, x, y)
    for malformed in ({}, "x", {"x": {}}, {"x": "batch"}, {"x": {0: 1}}):
        with pytest.raises(ArgumentError, match="dynamic expected axes of arguments"):
            go.compile(loss, dynamic=malformed)
    with pytest.raises(ArgumentError, match="dynamic expected a function, got a graph"):
        go.compile(go.trace(loss, P, x, y), dynamic={0: 0})


def test_shapes_that_depend_on_data() -> None:
    """B07: no op has such a result; those that would say what to do instead."""
    x = np.ones(3, np.float32)
    for fn in (lambda x: x[x > 0], lambda x: go.nonzero(x)):
        with pytest.raises((OpError, TraceError), match=r"size|where"):
            go.compile(fn)(x)


# --- on the CPU -----------------------------------------------------------------------------------


def test_composed_on_cpu() -> None:
    """B17, B19: bits of a model of compiled layers, its gradients, and their gradients, are those
    of the plain one.
    """

    def layer(p: Any, x: Any) -> Any:
        return go.layer_norm(go.tanh(x @ p["w"] + p["b"]), p["g"]) + x * go.sin(x)

    def model(fn: Any) -> Callable[..., Any]:
        def run(ps: Any, x: Any) -> Any:
            for p in ps:
                x = fn(p, x)
            return (x * x).mean()

        def twice(ps: Any, x: Any) -> Any:
            value, gradient = go.value_and_grad(run)(ps, x)
            second = go.grad(lambda x: (go.grad(run, 1)(ps, x) ** 2).sum())(x)
            return value, gradient, second

        return twice

    rng = np.random.default_rng(1)
    shapes = {"w": (6, 6), "b": (6,), "g": (6,)}
    ps = [
        {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()} for _ in range(2)
    ]
    x = rng.standard_normal((4, 6)).astype(np.float32)
    one = go.compile(model(layer), disk_cache=False)(ps, x)
    other = go.compile(model(go.compile(layer)), disk_cache=False)(ps, x)
    leaves = [one[0], one[2], *(g[n] for g in one[1] for n in g)]
    others = [other[0], other[2], *(g[n] for g in other[1] for n in g)]
    for a, b in zip(leaves, others, strict=True):
        np.testing.assert_array_equal(a, b)


def test_arguments_are_not_changed() -> None:
    """C038: `x *= 2` gives a new value; the caller's array stays as it is, and views of one array
    that overlap are read as they were.
    """

    @go.compile
    def fn(x: Any, y: Any) -> Any:
        x *= 2
        return x + y

    np.testing.assert_array_equal(fn(np.ones(4, np.float32), np.ones(4, np.float32)), [3] * 4)
    base = np.arange(8, dtype=np.float32)
    np.testing.assert_array_equal(fn(base[0:4], base[2:6]), [2, 5, 8, 11])
    np.testing.assert_array_equal(base, np.arange(8))
