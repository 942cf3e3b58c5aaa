# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What several test files need: gradients as graphs, the reference on graphs, many functions in one
IREE module.
"""

import collections
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gradopt.dialect import reference
from gradopt.dialect.graph import Graph, trace
from gradopt.dialect.types import TensorSpec
from gradopt.lowering import pipeline
from gradopt.lowering.target import target
from gradopt.op_cases import CASES, Case
from gradopt.op_cases.rows import Row, ulps
from gradopt.tools import check
from gradopt.tools.check import linalg_function

CPU = target("cpu")

__all__ = [
    "CPU",
    "compile_many",
    "iree_errors",
    "linalg_function",
    "lowered",
    "run_reference",
    "some_cases",
    "spec",
    "ulps",
]


def spec(x: np.ndarray) -> TensorSpec:
    return TensorSpec(x.shape, x.dtype)


def lowered(graph: Graph, passes: str = pipeline.STAGES["differentiated"]) -> Graph:
    """The graph after passes, in place."""
    pipeline.run(graph.module, passes)
    return graph


def run_reference(
    fn: Callable[..., Any], *arrays: np.ndarray, simplify: bool = False
) -> list[np.ndarray]:
    """The results of a Python function, traced, differentiated where it asks for it, on NumPy."""
    graph = lowered(trace(fn, *map(spec, arrays)))
    if simplify:
        lowered(graph, pipeline.STAGES["simplified"])
    return list(reference.run(graph.module, graph.name, *arrays))


def compile_many(functions: dict[str, str]) -> dict[str, Callable[..., Any]]:
    """Compile many functions, some to a module; returns what calls each of them."""
    return check.compile_many(functions, CPU)


def some_cases(of_each: int = 2) -> list[Case]:
    """The first rows of each op: what the element types beside float32 are tested on. gradopt-check
    runs all.
    """
    seen: collections.Counter[str] = collections.Counter()
    found = []
    for case in CASES:
        seen[case.op] += 1
        if seen[case.op] <= of_each:
            found.append(case)
    return found


def iree_errors(rows: Sequence[Row]) -> dict[str, tuple[float, str]]:
    """Name -> (error in ulp, why it could not run), for rows compiled for the CPU."""
    return {row.name: (error, why) for row, error, why in check.run_rows(rows, CPU)}


Point = tuple[Callable[..., Any], tuple[Any, ...], Any]
"""A function, its arguments, and the known answer: one array, or a tuple of them."""


def check_point(point: Point, run: Callable[..., Any] = run_reference) -> None:
    """`run(fn, *arrays)` gives the known answer."""
    fn, arrays, want = point
    got = run(fn, *map(np.asarray, arrays))
    wants = want if isinstance(want, tuple) else (want,)
    assert len(got) == len(wants)
    for a, b in zip(got, wants, strict=True):
        assert a.shape == np.shape(b)
        np.testing.assert_allclose(a.astype(np.float64), b, rtol=2e-6, atol=1e-12)
