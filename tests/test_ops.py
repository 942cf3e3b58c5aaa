# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Every op: types, value against JAX, gradient against JAX and central differences, and that
nothing is missing.
"""

from typing import Any

import jax
import numpy as np
import pytest
from gradopt.dialect.base import NO_GRADIENT, OPS, is_composite
from gradopt.dialect.graph import trace
from gradopt.dialect.types import TensorSpec
from gradopt.lowering.linalg import is_lowered
from gradopt.op_cases import CASES, WITHOUT_CASE, Case

from .helpers import run_reference, spec

rng = np.random.default_rng(1)


def ids(case: Case) -> str:
    return case.name


def leaves(x: Any) -> list[np.ndarray]:
    return [np.asarray(v) for v in jax.tree.leaves(x)]


def pulled(case: Case) -> Any:
    """(inputs, cotangents of the float results) -> gradients, in gradopt."""
    from gradopt.dialect import transform

    wrt = case.differentiable()

    def run(*arguments: Any) -> Any:
        inputs, cts = arguments[: len(case.inputs)], arguments[len(case.inputs) :]

        def varied(*values: Any) -> Any:
            every = list(inputs)
            for i, v in zip(wrt, values, strict=True):
                every[i] = v
            return case.build(*every)

        _, pullback = transform.vjp(varied, *(inputs[i] for i in wrt))
        return pullback(cts[0] if len(cts) == 1 else tuple(cts))

    return run


def cotangents(case: Case) -> list[np.ndarray]:
    """Random ones for every result; integer results have none and are not differentiated here."""
    values = run_reference(case.build, *case.inputs)
    return [rng.uniform(0.5, 1.5, v.shape).astype(v.dtype) for v in values]


DIFFERENTIABLE = [c for c in CASES if c.differentiable() and c.jax is not None]


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_infer_agrees_with_reference(case: Case) -> None:
    """`infer` and `reference` give the same types, and the op verifies."""
    graph = trace(case.build, *map(spec, case.inputs))
    graph.mlir()
    values = run_reference(case.build, *case.inputs)
    assert [(s.shape, s.dtype) for s in graph.output_specs] == [(v.shape, v.dtype) for v in values]


@pytest.mark.parametrize("case", [c for c in CASES if c.jax], ids=ids)
def test_reference_agrees_with_jax(case: Case) -> None:
    got, want = run_reference(case.build, *case.inputs), leaves(case.jax(*case.inputs))
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_simplify_keeps_values(case: Case) -> None:
    """Values, and gradients at ones, are the same after gradopt-simplify."""
    functions = [case.build] + ([with_gradient(case)] if case.differentiable() else [])
    for fn in functions:
        want = run_reference(fn, *case.inputs)
        for a, b in zip(run_reference(fn, *case.inputs, simplify=True), want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-14, atol=1e-15)


def with_gradient(case: Case) -> Any:
    """The gradients for cotangents of ones, which simplify to less."""
    from gradopt.dialect.creation import ones_like

    def run(*inputs: Any) -> Any:
        found = case.build(*inputs)
        many = isinstance(found, tuple | list)
        cts = [ones_like(v) for v in (found if many else [found])]
        return pulled(case)(*inputs, *cts)

    return run


@pytest.mark.parametrize("case", DIFFERENTIABLE, ids=ids)
def test_gradient_agrees_with_jax(case: Case) -> None:
    """The vector-Jacobian product in float64."""
    cts, wrt = cotangents(case), case.differentiable()

    def chosen(*values: Any) -> Any:
        every = list(case.inputs)
        for i, v in zip(wrt, values, strict=True):
            every[i] = v
        return jax.tree.leaves(case.jax(*every))

    got = run_reference(pulled(case), *case.inputs, *cts)
    want = jax.vjp(chosen, *(case.inputs[i] for i in wrt))[1](cts)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("case", DIFFERENTIABLE, ids=ids)
def test_gradient_agrees_with_central_differences(case: Case) -> None:
    """<gradient, direction> against the slope of <results, cotangents> along a random direction, in
    float64.
    """
    cts, wrt = cotangents(case), case.differentiable()
    directions = [rng.uniform(-1, 1, case.inputs[i].shape) for i in wrt]

    def value(step: float) -> float:
        every = list(case.inputs)
        for i, d in zip(wrt, directions, strict=True):
            every[i] = every[i] + step * d
        return sum(
            float((v * c).sum())
            for v, c in zip(run_reference(case.build, *every), cts, strict=True)
        )

    if case.op == "convert":  # float32 results are too coarse for differences
        pytest.skip("rounds to float32")
    h = 1e-5
    slope = (value(h) - value(-h)) / (2 * h)
    got = run_reference(pulled(case), *case.inputs, *cts)
    along = sum(float((g * d).sum()) for g, d in zip(got, directions, strict=True))
    np.testing.assert_allclose(along, slope, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_unknown_extents(case: Case) -> None:
    """With the first extent of every input unknown, an op infers a compatible type or says why it
    needs to know.
    """
    from gradopt.errors import GradoptError

    known = trace(case.build, *map(spec, case.inputs)).output_specs
    loose = [TensorSpec((None, *x.shape[1:]), x.dtype) if x.ndim else spec(x) for x in case.inputs]
    try:
        found = trace(case.build, *loose).output_specs
    except GradoptError as error:
        assert "expected" in str(error)
        return
    for a, b in zip(found, known, strict=True):
        assert a.dtype == b.dtype
        assert len(a.shape) == len(b.shape)
        assert all(m is None or m == n for m, n in zip(a.shape, b.shape, strict=True))


def elementwise_cases() -> list[Case]:
    from gradopt.dialect.elementwise import Elementwise

    return [c for c in CASES if issubclass(OPS[c.op], Elementwise)]


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,)], ids=str)
@pytest.mark.parametrize("case", elementwise_cases(), ids=ids)
def test_small_shapes(case: Case, shape: tuple[int, ...]) -> None:
    """Elementwise ops on 0-d, empty and one-element arrays. C095"""
    inputs = [np.resize(x.reshape(-1)[:1], shape).astype(x.dtype) for x in case.inputs]
    (value,) = run_reference(case.build, *inputs)
    assert value.shape == shape


def test_every_op_is_complete() -> None:
    """Docstring with a formula or sentence and an example, infer, reference, a gradient or
    NO_GRADIENT, lowering, a row.
    """
    covered = {c.op for c in CASES} | set(WITHOUT_CASE)
    for name, op in OPS.items():
        assert op.__doc__ and "Example: `" in op.__doc__, f"{name}: docstring without example"
        assert name in covered, f"{name}: no row in op_cases.py"
        if name in WITHOUT_CASE:
            continue
        assert "infer" in {k for c in op.__mro__ for k in vars(c)}, f"{name}: no infer"
        assert callable(getattr(op, "reference", None)), f"{name}: no reference"
        composite = is_composite(op)
        rule = callable(getattr(op, "vjp", None))
        assert rule or composite, f"{name}: neither vjp, NO_GRADIENT nor decompose"
        assert is_lowered(op) or composite, f"{name}: neither lowering nor decompose"


def test_there_are_enough_ops() -> None:
    assert len(OPS) >= 90
    assert sum(getattr(op, "vjp", None) is NO_GRADIENT for op in OPS.values()) < len(OPS) / 2
