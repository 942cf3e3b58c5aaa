# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Gradient requests for every op, its inputs used one to nine times: null, write and add.

GRADOPT_REQUESTS=all tries every number of uses with every op; by default each op has one of them.
"""

import os
from typing import Any

import gradopt as go
import numpy as np
import pytest
from gradopt.dialect import reference
from gradopt.dialect.graph import trace
from gradopt.dialect.types import is_float
from gradopt.lowering.record import Recording, record
from gradopt.op_cases import Case

from .helpers import some_cases, spec

rng = np.random.default_rng(9)

USES = range(1, 10)
ROWS = [case for case in some_cases(1) if case.differentiable()]
PAIRS = [
    (case, uses)
    for i, case in enumerate(ROWS)
    for uses in (USES if os.environ.get("GRADOPT_REQUESTS") == "all" else [1 + i % 9])
]


def used(case: Case, uses: int) -> Any:
    """The op applied to its inputs as often as `uses` says, in ways that nothing merges."""

    def fn(*inputs: Any) -> Any:
        found: list[Any] = []
        for _ in range(uses):
            results = case.build(*map(go.optimization_barrier, inputs))
            found += results if isinstance(results, tuple | list) else [results]
        return tuple(r for r in found if is_float(r.dtype))

    return fn


def backward(
    recording: Recording, inputs: list[np.ndarray], totals: list[np.ndarray]
) -> tuple[list[np.ndarray], ...]:
    """Results for `inputs`, and gradients for cotangents of ones, by the reference."""
    forward, back = recording.forward, recording.backward
    found = list(reference.run(forward.module, forward.name, *inputs))
    results, residuals = found[: recording.result_count], found[recording.result_count :]
    kept = [inputs[i] for i in recording.inputs] + [results[i] for i in recording.results]
    cts = [np.ones_like(results[i]) for i in recording.heads]
    return results, list(reference.run(back.module, back.name, *kept, *residuals, *cts, *totals))


@pytest.mark.parametrize(("case", "uses"), PAIRS, ids=lambda x: getattr(x, "name", str(x)))
def test_requests(case: Case, uses: int) -> None:
    """B14: `uses` contributions are summed, "add" adds the sum to what is there, and "null" has no
    result; each input has its own request.
    """
    wrt = case.differentiable()
    once = ["write" if i in wrt else "null" for i in range(len(case.inputs))]
    specs = [spec(x) for x in case.inputs]
    single = record(trace(used(case, 1), *specs), once)
    results, want = backward(single, case.inputs, [])
    for shift in range(3):
        requests = list(once)
        for n, i in enumerate(wrt):
            requests[i] = ("write", "add", "null")[(n + shift) % 3]
        asked = [i for i in wrt if requests[i] != "null"]
        if not asked:
            continue
        recording = record(trace(used(case, uses), *specs), requests)
        totals = [rng.normal(size=case.inputs[i].shape) for i in recording.added]
        again, got = backward(recording, case.inputs, totals)
        assert recording.wrt == asked
        for a, b in zip(again, results * uses, strict=True):
            np.testing.assert_array_equal(a, b)
        start = dict(zip(recording.added, totals, strict=True))
        for i, gradient in zip(asked, got, strict=True):
            expected = want[wrt.index(i)] * uses + start.get(i, 0)
            np.testing.assert_allclose(gradient, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("uses", USES)
def test_contributions_are_summed_before_they_are_added(dtype: str, uses: int) -> None:
    """B14, needs.md 3: one at a time, halves would be lost beside a large total."""

    def fn(x: Any) -> Any:
        return tuple(go.optimization_barrier(x) * 0.5 for _ in range(uses))

    f = go.compile(fn, target="jit", grad_req="add")
    kind = go.TensorSpec((), dtype).dtype
    start = 2.0 ** (11 if dtype == "float16" else 8)  # its neighbour is 2 away
    total, x = np.full(3, start, kind), np.ones(3, kind)
    f.vjp(x)[1](out=(total,))
    want = (np.full(3, start, np.float32) + np.float32(uses * 0.5)).astype(kind)
    np.testing.assert_array_equal(total, want)


@pytest.mark.parametrize("uses", USES)
def test_compiled_with_every_number_of_uses(uses: int) -> None:
    """B14: the same through compiled functions, with memory of the caller's that is added to."""

    def fn(x: Any, y: Any) -> Any:
        found = x * 0
        for i in range(uses):
            found = found + go.sin(x * (i + 1)) * y
        return found

    x, y = rng.normal(size=(4,)), rng.normal(size=(4,))
    dx = sum((i + 1) * np.cos(x * (i + 1)) for i in range(uses)) * y
    dy = sum(np.sin(x * (i + 1)) for i in range(uses))
    for requests in (("write", "add"), ("add", "null"), ("null", "write"), ("add", "add")):
        f = go.compile(fn, target="jit", grad_req=requests)
        totals = tuple(np.ones(4) if r == "add" else None for r in requests)
        got = f.vjp(x, y)[1](out=totals)
        for g, request, want, total in zip(got, requests, (dx, dy), totals, strict=True):
            if request == "null":
                assert g is None
            else:
                expected = want + (request == "add")
                np.testing.assert_allclose(g, expected, rtol=1e-12, atol=1e-12)
                assert total is None or g is total
