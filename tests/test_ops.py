# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Every op: types, value against JAX, gradient against JAX and central differences, and that
nothing is missing.
"""

from typing import Any

import gradopt as go
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gradopt.dialect.base import NO_GRADIENT, OPS, is_composite
from gradopt.dialect.graph import trace
from gradopt.dialect.types import TensorSpec, is_float
from gradopt.lowering.linalg import is_lowered
from gradopt.op_cases import CASES, WITHOUT_CASE, Case
from gradopt.op_cases.rows import gradient_of

from .helpers import run_reference, spec

rng = np.random.default_rng(1)


def ids(case: Case) -> str:
    return case.name


def leaves(x: Any) -> list[np.ndarray]:
    return [np.asarray(v) for v in jax.tree.leaves(x)]


def cotangents(case: Case) -> list[np.ndarray]:
    """Random ones for every floating-point result."""
    values = run_reference(case.build, *case.inputs)
    return [rng.uniform(0.5, 1.5, v.shape).astype(v.dtype) for v in values if is_float(v.dtype)]


def directions(case: Case) -> list[np.ndarray]:
    """Random ones for every input to differentiate by."""
    return [rng.uniform(-1, 1, case.inputs[i].shape) for i in case.differentiable()]


def moved(case: Case, along: list[np.ndarray], step: float) -> list[np.ndarray]:
    """The inputs, a step along a direction."""
    every = list(case.inputs)
    for i, d in zip(case.differentiable(), along, strict=True):
        every[i] = every[i] + step * d
    return every


def varied(case: Case, values: Any) -> list[Any]:
    """The inputs, with others in the place of those to differentiate by."""
    every = list(case.inputs)
    for i, v in zip(case.differentiable(), values, strict=True):
        every[i] = v
    return every


def jax_floats(case: Case) -> Any:
    """JAX's function of the inputs to differentiate by, with its floating-point results."""

    def run(*values: Any) -> Any:
        return [r for r in jax.tree.leaves(case.jax(*varied(case, values))) if is_float(r.dtype)]

    return run


def slope_of_gradient(case: Case) -> Any:
    """(inputs, cotangents, directions) -> gradients of <gradient, direction>, in gradopt."""
    wrt = case.differentiable()

    def run(*arguments: Any) -> Any:
        count = len(case.inputs)
        inputs, rest = arguments[:count], arguments[count:]
        cts, along = rest[: len(rest) - len(wrt)], rest[len(rest) - len(wrt) :]

        def slope(*values: Any) -> Any:
            every = list(inputs)
            for i, v in zip(wrt, values, strict=True):
                every[i] = v
            gradients = gradient_of(case)(*every, *cts)
            return sum((g * d).sum() for g, d in zip(gradients, along, strict=True))

        every = tuple(range(len(wrt)))
        return go.grad(slope, every, allow_unused=True)(*(inputs[i] for i in wrt))

    return run


def dot(a: Any, b: Any) -> float:
    return sum(float((x * y).sum()) for x, y in zip(a, b, strict=True))


DIFFERENTIABLE = [c for c in CASES if c.differentiable()]
COMPARED = [c for c in DIFFERENTIABLE if c.jax]


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
        results = found if many else [found]
        cts = [ones_like(v) for v in results if is_float(v.dtype)]
        return gradient_of(case)(*inputs, *cts)

    return run


@pytest.mark.parametrize("case", COMPARED, ids=ids)
def test_gradient_agrees_with_jax(case: Case) -> None:
    """The vector-Jacobian product in float64."""
    cts = cotangents(case)
    got = run_reference(gradient_of(case), *case.inputs, *cts)
    want = jax.vjp(jax_floats(case), *(case.inputs[i] for i in case.differentiable()))[1](cts)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("case", COMPARED, ids=ids)
def test_second_gradient_agrees_with_jax(case: Case) -> None:
    """B55: the gradient of <gradient, direction> in float64."""
    cts, along = cotangents(case), directions(case)

    def slope(values: Any) -> Any:
        gradients = jax.vjp(jax_floats(case), *values)[1](cts)
        return sum(jnp.sum(g * d) for g, d in zip(gradients, along, strict=True))

    got = run_reference(slope_of_gradient(case), *case.inputs, *cts, *along)
    want = jax.grad(slope)([case.inputs[i] for i in case.differentiable()])
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("case", DIFFERENTIABLE, ids=ids)
def test_gradient_agrees_with_central_differences(case: Case) -> None:
    """<gradient, direction> against the slope of <results, cotangents> along a random direction, in
    float64.
    """
    cts, along = cotangents(case), directions(case)

    def value(step: float) -> float:
        found = run_reference(case.build, *moved(case, along, step))
        return dot([v for v in found if is_float(v.dtype)], cts)

    skip_if_rounded(case)
    slope = (value(1e-5) - value(-1e-5)) / 2e-5
    got = run_reference(gradient_of(case), *case.inputs, *cts)
    np.testing.assert_allclose(dot(got, along), slope, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", DIFFERENTIABLE, ids=ids)
def test_second_gradient_agrees_with_central_differences(case: Case) -> None:
    """The same one order up: B55."""
    cts, along, across = cotangents(case), directions(case), directions(case)

    def value(step: float) -> float:
        return dot(run_reference(gradient_of(case), *moved(case, across, step), *cts), along)

    skip_if_rounded(case)
    slope = (value(1e-5) - value(-1e-5)) / 2e-5
    got = run_reference(slope_of_gradient(case), *case.inputs, *cts, *along)
    np.testing.assert_allclose(dot(got, across), slope, rtol=1e-5, atol=1e-6)


def skip_if_rounded(case: Case) -> None:
    if case.op == "convert":  # float32 results are too coarse for differences
        pytest.skip("rounds to float32")


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
