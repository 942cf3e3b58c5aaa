# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What several test files need: gradients as graphs, the reference on graphs, many functions in one
IREE module.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gradopt.dialect import reference
from gradopt.dialect.graph import Graph, trace
from gradopt.dialect.types import TensorSpec
from gradopt.lowering import pipeline
from gradopt.lowering.target import target
from gradopt.runtime.compiler import compile_linalg
from gradopt.runtime.device import Module

CPU = target("cpu")


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


def linalg_function(fn: Callable[..., Any], name: str, *arrays: np.ndarray) -> str:
    """The text of one function, lowered to linalg, that can stand beside others in a module."""
    graph = trace(fn, *map(spec, arrays), name=name)
    pipeline.run(graph.module, "gradopt-lower")
    body = list(graph.module.body.operations)
    return "\n".join(op.operation.get_asm(use_local_scope=True) for op in body)


def compile_many(functions: dict[str, str], at_once: int = 40) -> dict[str, Callable[..., Any]]:
    """Compile many functions, some to a module; returns what calls each of them."""
    names = list(functions)
    callables: dict[str, Callable[..., Any]] = {}
    for start in range(0, len(names), at_once):
        chunk = names[start : start + at_once]
        text = "module {\n" + "\n".join(functions[n] for n in chunk) + "\n}"
        module = Module(compile_linalg(text, CPU, f"{chunk[0]} to {chunk[-1]}"), CPU.driver)
        for name in chunk:
            callables[name] = _caller(module, name)
    return callables


def _caller(module: Module, name: str) -> Callable[..., Any]:
    def call(specs: Sequence[TensorSpec], *arrays: np.ndarray) -> list[np.ndarray]:
        return [np.array(a) for a in module.run(name, arrays, [s.dtype for s in specs])]

    return call


def ulps(got: np.ndarray, want: np.ndarray, whole: bool = False) -> float:
    """The largest difference in float32 units in the last place: of each element (not below 1e-6),
    or of the largest one.

    Elements of sums are compared with `whole`, since terms that cancel leave an error of the size
    of the terms.
    """
    if got.dtype.kind != "f" and got.dtype.name != "bfloat16":
        return 0.0 if np.array_equal(got, want) else np.inf
    wide, right = got.astype(np.float64), want.astype(np.float64)
    same = (wide == right) | (np.isnan(wide) & np.isnan(right))
    size = np.max(np.abs(right), initial=0) if whole else np.abs(right)
    gap = np.where(
        same, 0, np.abs(wide - right) / (np.maximum(size, 1e-6) * np.finfo(np.float32).eps)
    )
    return float(np.max(np.where(np.isnan(gap), np.inf, gap), initial=0))
