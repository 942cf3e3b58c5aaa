# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Element types: promotion by the array API's rules, nothing narrowed in silence, targets that
refuse what they cannot compute in.
"""

import dataclasses
import itertools
from typing import Any

import gradopt as go
import jax.numpy as jnp
import numpy as np
import pytest
from gradopt.dialect.types import (
    DTYPES,
    FLOATS,
    INTEGERS,
    TensorSpec,
    bfloat16,
    bool_,
    promote,
    uint64,
)
from gradopt.errors import OpError, PassError
from gradopt.lowering import pipeline
from gradopt.lowering.target import target
from gradopt.runtime.modules import compile_graph

from .helpers import run_reference

F32, F64 = np.dtype("float32"), np.dtype("float64")
EVERY = list(itertools.combinations_with_replacement(DTYPES, 2))
LOST = [pair for pair in EVERY if uint64 in pair and any(d.kind == "i" for d in pair)]
"""Integers that no integer type holds both of; NumPy makes them float64."""
PAIRS = [pair for pair in EVERY if pair not in LOST]


def name(pair: Any) -> str:
    return " and ".join(d.name for d in pair)


@pytest.mark.parametrize("pair", PAIRS, ids=name)
def test_promotion(pair: tuple[np.dtype, np.dtype]) -> None:
    """The array API's table where it has the pair (both real, or both integers or booleans); floats
    win over integers, 16-bit floats of two kinds give float32.
    """
    a, b = pair
    found = promote(a, b)
    assert found == promote(b, a)
    if {a, b} <= {*INTEGERS, bool_} or ({a, b} <= set(FLOATS) and bfloat16 not in pair):
        assert found == np.promote_types(a, b)
    if a in FLOATS or b in FLOATS:
        assert found == jnp.promote_types(a, b)


@pytest.mark.parametrize("pair", PAIRS, ids=name)
def test_sum_has_the_promoted_type(pair: tuple[np.dtype, np.dtype]) -> None:
    """Values too, and the result is the same in either order."""
    a, b = (np.ones(2, d) for d in pair)
    want = promote(*pair)
    for x, y in ((a, b), (b, a)):
        (got,) = run_reference(lambda x, y: go.maximum(x, y), x, y)
        assert got.dtype == want
        np.testing.assert_array_equal(got, np.ones(2, want))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_python_numbers_adapt(dtype: np.dtype) -> None:
    """A Python number takes the tensor's type where its kind allows, as in JAX."""
    graph = go.trace(
        lambda x: (go.where(x > 0, x, 1), go.where(x > 0, x, 1.5)), TensorSpec(2, dtype)
    )
    whole, real = (s.dtype for s in graph.output_specs)
    assert whole == (dtype if dtype != bool_ else np.dtype("int32"))
    assert real == (dtype if dtype in FLOATS else F32)


@pytest.mark.parametrize("pair", LOST, ids=name)
def test_no_common_type(pair: tuple[np.dtype, np.dtype]) -> None:
    a, b = pair
    fault = f"expected element types that one type holds, got {a.name} and {b.name}; convert one"
    with pytest.raises(OpError, match=fault):
        promote(a, b)


def test_integer_beside_a_narrow_float() -> None:
    """C013: q / sqrt(n) keeps q's type; n gets no gradient."""
    for dtype in ("float32", "float16", "bfloat16"):
        q = np.ones((5, 5, 5), go.TensorSpec((), dtype).dtype)
        (g,) = run_reference(
            go.grad(lambda q, n: (q / go.sqrt(n.astype(q.dtype))).astype("float32").sum()),
            q,
            np.int64(5),
        )
        assert g.dtype == q.dtype
        np.testing.assert_allclose(g.astype(np.float64), 0.44721, rtol=5e-3)


def test_float64_stays() -> None:
    """C014: 1e-60 is not narrowed to 0."""
    (g,) = run_reference(go.grad(lambda x: ((x - 0.0) ** 2).sum()), np.array([1e-60]))
    np.testing.assert_allclose(g, [2e-60])


@pytest.mark.compiler
def test_float64_stays_on_the_target() -> None:
    """C014"""
    got = go.compile(go.grad(lambda x: ((x - 0.0) ** 2).sum()))(np.array([1e-60]))
    np.testing.assert_allclose(got, [2e-60])


def narrow_target() -> Any:
    """A target without float64 and 64-bit integers, as GPUs of phones are."""
    kept = tuple(d for d in DTYPES if d.itemsize < 8)
    return dataclasses.replace(target("cpu"), name="phone", dtypes=kept)


@pytest.mark.parametrize(
    ("fn", "dtype", "fault"),
    [
        (go.tanh, "float64", r"'gradopt.tanh' op .* 'phone' .* got float64; convert the inputs"),
        (lambda x: x.astype("float64") * 2, "float32", r"'gradopt.convert' op .* got float64"),
        (lambda x: x, "int64", r"@lambda expected .* got int64"),
    ],
    ids=["op", "inside", "argument"],
)
def test_target_refuses(fn: Any, dtype: str, fault: str) -> None:
    """C014, C121: what a target cannot compute in is refused before anything is compiled, by op,
    target and line.
    """
    graph = go.trace(fn, TensorSpec((2,), dtype), name=None)
    with pytest.raises(PassError, match=fault) as caught:
        compile_graph(graph.module, graph.name, narrow_target())
    assert __file__ in str(caught.value) or "argument" in fault or "@lambda" in fault


def test_target_takes_the_rest() -> None:
    graph = go.trace(lambda x: go.tanh(x) * 2, TensorSpec((2,), "float32"))
    pipeline.lower(graph.module, narrow_target())
