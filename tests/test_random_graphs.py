# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Random programs of at least 15 ops from all families: the reference, JAX and IREE agree in values
and gradients.

The reference and JAX run in float64 and must agree to rounding. IREE runs in float32 and must
agree to 2e-5 of the largest element.
`python -m pytest tests/test_random_graphs.py -k iree -s` with GRADOPT_RANDOM_GRAPHS=2000 in the
environment is a long campaign; --hypothesis-seed starts another.
"""

import collections
import os
from typing import Any

import gradopt as go
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings

from .helpers import run_reference
from .random_programs import (
    FAMILIES,
    OPS,
    Step,
    arguments,
    differentiated,
    flat,
    program,
    programs,
)

EXAMPLES = int(os.environ.get("GRADOPT_RANDOM_GRAPHS", "25"))
IS_CAMPAIGN = "GRADOPT_RANDOM_GRAPHS" in os.environ
SETTINGS = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=not IS_CAMPAIGN,
    phases=[p for p in Phase if p != Phase.shrink or not IS_CAMPAIGN],  # it takes many minutes
    suppress_health_check=list(HealthCheck),
    print_blob=True,
    database=None,
)

COUNTS: collections.Counter[str] = collections.Counter()


@pytest.fixture(scope="module", autouse=True)
def printed() -> Any:
    """The number of programs that agreed, and from how many families their steps were."""
    yield
    families = sum(f"family {f}" in COUNTS for f in FAMILIES)
    print(
        f"\n{COUNTS['reference']} random programs agreed with JAX, {COUNTS['iree']} with JAX and "
        f"IREE; {COUNTS['ops']} ops, {families} of {len(FAMILIES)} families"
    )


def count(kind: str, todo: list[Step]) -> None:
    COUNTS[kind] += 1
    COUNTS["ops"] += ops_in(todo)
    if COUNTS[kind] % 100 == 0:
        print(f"{COUNTS[kind]} programs", flush=True)
        jax.clear_caches()  # what it compiled for each program adds up to gigabytes
    COUNTS.update(f"family {OPS[step.name][0]}" for step in todo)


def ops_in(todo: list[Step]) -> int:
    """Ops of the program and its loss, before it is differentiated, without constants."""
    xs = arguments()
    graph = go.trace(program(go, todo), *xs)
    names = [op.operation.name for op in graph.block.operations]
    return sum(n.startswith("gradopt.") and n != "gradopt.constant" for n in names)


def expected(todo: list[Step], xs: list[np.ndarray]) -> list[np.ndarray]:
    """What JAX gives in float64."""
    return flat(differentiated(jnp, todo)(*xs))


@SETTINGS
@given(programs().filter(lambda todo: ops_in(todo) >= 15))
def test_reference_agrees_with_jax(todo: list[Step]) -> None:
    """Values and gradients in float64, before and after gradopt-simplify."""
    xs = arguments()
    got = run_reference(differentiated(go, todo), *xs)
    simplified = run_reference(differentiated(go, todo), *xs, simplify=True)
    want = expected(todo, xs)
    assert len(got) == len(want)
    for a, b, c in zip(got, want, simplified, strict=True):
        size = max(1.0, float(np.max(np.abs(b), initial=0)))
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11 * size)
        np.testing.assert_allclose(c, a, rtol=1e-12, atol=1e-14 * size)
    count("reference", todo)


def found(*todo: tuple[str, tuple[int, ...], int]) -> Any:
    """A program that IREE once got wrong."""
    return example([Step(*step) for step in todo])


@pytest.mark.compiler
@SETTINGS
@given(programs().filter(lambda todo: ops_in(todo) >= 15))
@found(("take", (1,), 0), ("add", (0, 2), 0), ("add", (2, 3), 0), ("add", (0, 0), 0))
@found(("bend", (0,), 0), ("pick", (2,), 0), ("div", (3, 4), 0), ("matmul", (1, 4), 0))
@found(("bend", (3,), 4), ("exp", (4,), 3), ("softplus", (2,), 0), ("flatten", (5,), 0))
@found(
    ("take", (1,), 1),
    ("add", (0, 0), 0),
    ("bend", (0,), 0),
    ("max", (0,), 0),
    ("add", (0, 0), 0),
    ("transpose", (0,), 0),
    ("flip", (5,), 3),
    ("max", (2,), 0),
    ("max", (0,), 1),
    ("scale", (5,), 1),
    ("mean", (5,), 4),
    ("bend", (4,), 2),
)
@found(("diagonal", (3,), 2), ("roll", (0,), 0), ("attention", (0, 1), 1))
@found(("by_order", (5,), 0), ("conv", (0, 0), 3), ("conv", (0, 0), 3))
def test_iree_agrees_with_reference_and_jax(todo: list[Step]) -> None:
    """Values and gradients in float32. C030, C112, C118"""
    xs = arguments()
    narrow = [*(x.astype(np.float32) for x in xs[:-1]), xs[-1]]
    want = expected(todo, xs)
    reference = run_reference(differentiated(go, todo), *xs)
    got = flat(go.compile(differentiated(go, todo), disk_cache=False)(*narrow))
    for a, b, c in zip(got, want, reference, strict=True):
        assert (a.shape, a.dtype) == (b.shape, np.float32)
        size = max(1.0, float(np.max(np.abs(b), initial=0)))
        np.testing.assert_allclose(c, b, rtol=1e-9, atol=1e-11 * size)
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-5 * size)
    count("iree", todo)
