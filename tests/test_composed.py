# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Compiled functions inside traces: one op each, and the numbers of the plain function.

Most tests compare expressions (tests/dags.py): equal ones give equal bits. More random programs:
GRADOPT_RANDOM_COMPOSED=500 in the environment.
"""

import os
import random
from collections.abc import Callable
from typing import Any

import gradopt as go
import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from .dags import same
from .random_programs import INDEXED, LARGEST, OPS, Step, arguments, program, programs

PROGRAMS = int(os.environ.get("GRADOPT_RANDOM_COMPOSED", "12"))
IS_CAMPAIGN = "GRADOPT_RANDOM_COMPOSED" in os.environ
SETTINGS = settings(
    max_examples=PROGRAMS,
    deadline=None,
    derandomize=not IS_CAMPAIGN,
    phases=[p for p in Phase if p not in (Phase.shrink, Phase.explain)],
    suppress_health_check=list(HealthCheck),
    print_blob=True,
    database=None,
)


# --- random programs ------------------------------------------------------------------------------


def run_steps(todo: list[Step], values: list[Any], ids: Any) -> list[Any]:
    """`values`, and what the steps make."""
    for step in todo:
        _, _, rule = OPS[step.name]
        operands = [values[-1 - i % len(values)] for i in step.operands]
        positions = [ids] if step.name in INDEXED else []
        result = rule(go, *operands, *positions, step.number)
        if result is None or result.size > LARGEST or 0 in result.shape:
            result = go.tanh(operands[0])
        values = [*values, result]
    return values


def in_parts(todo: list[Step], rng: random.Random, depth: int = 0) -> Callable[..., Any]:
    """The steps as compiled functions of several, within each other."""
    if len(todo) == 1 or depth == 3:
        return lambda values, ids: run_steps(todo, values, ids)
    cut = rng.randrange(1, len(todo))
    first, second = in_parts(todo[:cut], rng, depth + 1), in_parts(todo[cut:], rng, depth + 1)

    def both(values: list[Any], ids: Any) -> Any:
        return second(first(values, ids), ids)

    return go.compile(both, inline_limit=rng.choice([0, 0, 3])) if rng.random() < 0.7 else both


def composed(todo: list[Step], seed: int) -> Callable[..., Any]:
    parts = in_parts(todo, random.Random(seed))

    def run(*inputs: Any) -> Any:
        *values, ids = inputs
        last = parts(values, ids)[len(values) :][-3:]
        loss = sum(go.sum(go.tanh(v) * (i + 1)) for i, v in enumerate(last))
        return loss, last

    return run


def first_order(fn: Callable[..., Any]) -> Callable[..., Any]:
    return go.value_and_grad(fn, (0, 1, 2, 3), has_aux=True, allow_unused=True)


def second_order(fn: Callable[..., Any]) -> Callable[..., Any]:
    def size(*xs: Any) -> Any:
        _, gradients = first_order(fn)(*xs)
        return sum((g * g).sum() for g in gradients)

    return go.value_and_grad(size, (0, 1, 2, 3), allow_unused=True)


@SETTINGS
@given(programs(4, 9), st.integers(0, 1 << 30))
def test_random_programs(todo: list[Step], seed: int) -> None:
    """B17, B19: values, gradients and their gradients are the plain function's expressions."""
    xs = [x if x.dtype == np.int32 else x.astype(np.float32) for x in arguments()]
    plain, parts = program(go, todo), composed(todo, seed)
    assert same(plain, parts, *xs)
    assert same(first_order(plain), first_order(parts), *xs)
    assert same(second_order(plain), second_order(parts), *xs)
