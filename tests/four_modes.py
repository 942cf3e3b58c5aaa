# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Rows of the ops in the modes that a user can choose between: B38."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gradopt as go
import numpy as np
from gradopt.dialect.base import OPS
from gradopt.dialect.elementwise import Elementwise
from gradopt.dialect.types import TensorSpec, is_float
from gradopt.op_cases import Case
from gradopt.op_cases.rows import ulps

MODES = ("eager", "lazy", "op by op", "deferred", "compiled", "hybridized")


@contextlib.contextmanager
def running_on(target: str, mode: str) -> Iterator[None]:
    """Within it, ops are run by a mode on a target."""
    before = go.config.target
    go.config.target = target
    try:
        with go.eager_mode(mode):
            yield
    finally:
        go.config.target = before


def arguments(case: Case) -> list[np.ndarray]:
    """A row's inputs and, if it has a gradient, cotangents of its floating-point results."""
    if not case.differentiable():
        return list(case.inputs)
    rng = np.random.default_rng(2)
    op = OPS[case.op]
    specs = op.infer(
        *(TensorSpec(x.shape, x.dtype) for x in case.inputs), **op.with_defaults(case.attributes)
    )
    floats = [s for s in listed(specs) if is_float(s.dtype)]
    return [*case.inputs, *(rng.uniform(0.5, 1.5, s.extents).astype(s.dtype) for s in floats)]


def by_the_tape(case: Case) -> Callable[..., list[Any]]:
    """A row's results and then its gradients, as a user who records ops writes it."""
    wrt = case.differentiable()

    def run(*arguments: Any) -> list[Any]:
        inputs, cts = list(arguments[: len(case.inputs)]), list(arguments[len(case.inputs) :])
        for i in wrt:
            inputs[i] = inputs[i].detach()
            inputs[i].attach_grad()
        with go.record():
            results = listed(case.build(*inputs))
        floats = [r for r in results if is_float(r.dtype)]
        heads = [(r, ct) for r, ct in zip(floats, cts, strict=bool(wrt)) if r._history is not None]
        if heads:
            go.backward([r for r, _ in heads], [ct for _, ct in heads])
        return [*results, *(inputs[i].grad for i in wrt)]

    return run


def by_transforms(case: Case) -> Callable[..., list[Any]]:
    """The same, as a user of go.vjp writes it."""
    wrt = case.differentiable()

    def run(*arguments: Any) -> list[Any]:
        inputs, cts = arguments[: len(case.inputs)], list(arguments[len(case.inputs) :])
        if not wrt:
            return listed(case.build(*inputs))

        def varied(*values: Any) -> tuple[Any, ...]:
            every = list(inputs)
            for i, v in zip(wrt, values, strict=True):
                every[i] = v
            return tuple(listed(case.build(*every)))

        results, pull = go.vjp(varied, *(inputs[i] for i in wrt))
        given = iter(cts)
        found = pull(tuple(next(given) if is_float(r.dtype) else None for r in results))
        return [*results, *found]

    return run


def listed(results: Any) -> list[Any]:
    return list(results) if isinstance(results, tuple | list) else [results]


def run(cases: Sequence[Case], mode: str, target: str) -> list[list[np.ndarray]]:
    """The results and gradients of rows in a mode, where graphs run on a target. Where a mode makes
    graphs, all rows are one.
    """
    arrays = [[go.array(x) for x in arguments(case)] for case in cases]
    if mode in ("eager", "lazy", "op by op"):
        with running_on(target, {"eager": "reference", "op by op": "op"}.get(mode, mode)):
            return _read(_together(by_the_tape, cases)(*arrays))
    if mode == "deferred":
        return _deferred(cases, arrays, target)
    if mode == "compiled":
        return _read(go.compile(_together(by_transforms, cases), target=target)(*arrays))
    return _read(go.hybridize(_together(by_the_tape, cases), target=target)(*arrays))


def _together(write: Callable[[Case], Any], cases: Sequence[Case]) -> Callable[..., list[Any]]:
    def rows(*arrays: Any) -> list[Any]:
        return [write(case)(*given) for case, given in zip(cases, arrays, strict=True)]

    return rows


def _read(results: list[list[Any]]) -> list[list[np.ndarray]]:
    return [[np.asarray(r) for r in row] for row in results]


def _deferred(
    cases: Sequence[Case], arrays: list[list[go.Array]], target: str
) -> list[list[np.ndarray]]:
    every = [x for given in arrays for x in given]
    with go.deferred():
        for i, x in enumerate(every):
            go.set_variable(x, f"x{i}")
        results = _together(by_transforms, cases)(*arrays)
    graph = go.get_graph(results, inputs=every)
    return _read(go.compile(graph, target=target)(*every))


def groups(names: Sequence[str], size: int) -> dict[str, list[str]]:
    """Rows by the first and last of each group."""
    parts = [list(names[i : i + size]) for i in range(0, len(names), size)]
    return {f"{part[0]}..{part[-1]}": part for part in parts}


def identical(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    """Whether two lists of arrays have the same types and elements, NaNs among them."""
    return len(a) == len(b) and all(ulps(x, y) == 0 for x, y in zip(a, b, strict=True))


def error(case: Case, got: list[np.ndarray], want: list[np.ndarray]) -> float:
    """The largest difference as a part of what the row allows a target: below 1 is within."""
    whole = not issubclass(OPS[case.op], Elementwise)
    if len(got) != len(want):
        return np.inf
    values = len(want) - len(case.differentiable())
    found = [
        ulps(g, w, whole) / (case.ulp if i < values else case.ulp * 8)
        for i, (g, w) in enumerate(zip(got, want, strict=True))
    ]
    return max(found, default=0.0)
