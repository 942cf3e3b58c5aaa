# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Rows of the op table on targets: lowered, compiled some to a module, then run, or assembled where
they cannot be run; in several processes at once.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..dialect.graph import trace
from ..dialect.mlir import ir
from ..dialect.types import TensorSpec, is_float
from ..errors import CompileError, GradoptError, PassError
from ..lowering import pipeline
from ..lowering.target import Target, check_supported
from ..op_cases.rows import Row
from ..runtime.compiler import compile_linalg
from ..runtime.device import Module
from ..runtime.jit import POISON, JitModule
from ..runtime.present import find_target
from .crew import Crew, Lost
from .ptxas import assemble

AT_ONCE = 40
"""Functions in one module: enough to share the compiler's start, few enough to find a culprit."""
APART = 2
"""How many times a row's tolerance two targets may differ: each may be off by as much as it, to
either side.
"""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is done with rows: compiled for a target and, unless `only_compiled`, run and compared
    with the reference, or with what another target computes; `assembled` are the architectures that
    their PTX is assembled for.
    """

    target: str
    against: str = ""
    only_compiled: bool = False
    assembled: tuple[str, ...] = ()

    @property
    def allowance(self) -> float:
        """How many times its tolerance a row may be off."""
        return APART if self.against else 1


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of a row: its error in ulp where it ran; why it was refused, why it failed."""

    error: float = np.inf
    why: str = ""
    refused: str = ""
    is_compiled: bool = False
    assembled: tuple[str, ...] = ()


# --- lowering -------------------------------------------------------------------------------------


def linalg_function(
    fn: Callable[..., Any], name: str, *arrays: np.ndarray, passes: str = "gradopt-lower"
) -> str:
    """The text of one function, lowered as compilers get it, that can stand beside others in a
    module.
    """
    graph = trace(fn, *(TensorSpec(x.shape, x.dtype) for x in arrays), name=name)
    pipeline.run(graph.module, passes)
    return _functions(graph.module)


def _functions(module: ir.Module) -> str:
    body = list(module.body.operations)
    return "\n".join(op.operation.get_asm(use_local_scope=True) for op in body)


class RefusedError(GradoptError):
    """A row that its target refuses, with the reason."""


def lowered_row(row: Row, name: str, where: Target) -> str:
    """The text of a row's function as the target's compiler gets it. Raises RefusedError where the
    target's table of capabilities says that it cannot run it.
    """
    graph = trace(row.fn, *(TensorSpec(x.shape, x.dtype) for x in row.arrays), name=name)
    for stage, passes in pipeline.stages(where).items():
        if stage == "linalg":
            try:
                with graph.context:
                    check_supported(graph.module, where)
            except PassError as error:
                raise RefusedError(error.diagnostics[0].message) from None
        pipeline.run(graph.module, passes)
    return _functions(graph.module)


# --- compiling ------------------------------------------------------------------------------------

Compiled = Callable[..., Any]


def compile_many(
    functions: dict[str, str],
    where: Target,
    use: Callable[[bytes, list[str], Target], dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Compile functions given as text, some to a module. Returns for each of them what `use` makes
    of the module and the names in it, by default what calls it with the results' types and the
    arguments; for a function that IREE cannot compile, or `use` fails on, a function that raises
    its CompileError when it is called. Such a function does not keep others from being compiled.
    """
    names = list(functions)
    found: dict[str, Any] = {}
    for start in range(0, len(names), AT_ONCE):
        part = {n: functions[n] for n in names[start : start + AT_ONCE]}
        found |= _compile_together(part, where, use or callers)
    return found


def _compile_together(
    functions: dict[str, str], where: Target, use: Callable[..., dict[str, Any]]
) -> dict[str, Any]:
    names = list(functions)
    text = "module {\n" + "\n".join(functions.values()) + "\n}"
    title = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
    try:
        if not where.ladder:
            module = compile_memrefs(text, title)
            return {name: _caller(module, name) for name in names}
        # Of several functions one is at fault: it is found before weaker flags are tried.
        first = where if len(names) == 1 else dataclasses.replace(where, ladder=where.ladder[:1])
        return use(compile_linalg(text, first, title), names, where)
    except CompileError as error:
        if len(names) == 1:
            return {names[0]: _raises(error)}
        half = len(names) // 2
        parts = [{n: functions[n] for n in part} for part in (names[:half], names[half:])]
        return _compile_together(parts[0], where, use) | _compile_together(parts[1], where, use)


def callers(image: bytes, names: list[str], where: Target) -> dict[str, Compiled]:
    """What calls each function of a module."""
    module = Module(image, where.driver)
    return {name: _caller(module, name) for name in names}


def compile_memrefs(text: str, title: str) -> JitModule:
    """Functions in memref form, compiled by the host JIT."""
    with ir.Context() as context:
        context.allow_unregistered_dialects = True
        return JitModule(ir.Module.parse(text), title)


def _caller(module: Any, name: str) -> Compiled:
    def call(specs: Sequence[TensorSpec], *arrays: np.ndarray) -> list[np.ndarray]:
        if isinstance(module, JitModule):
            return module.run(name, arrays, specs, poison=POISON)
        return [np.array(a) for a in module.run(name, arrays, [s.dtype for s in specs])]

    return call


def _raises(error: CompileError) -> Compiled:
    def call(*unused: Any) -> Any:
        raise error

    return call


def assemblies(
    image: bytes, names: list[str], where: Target, architectures: Sequence[str]
) -> dict[str, Outcome]:
    """The functions of a module that compiled, and what they were assembled for. Raises
    CompileError where several of them were not assembled for all architectures, so that each is
    tried by itself.
    """
    taken, refused = [], ""
    for architecture in architectures:
        try:
            assemble(image, architecture)
            taken.append(architecture)
        except CompileError as error:
            if len(names) > 1:
                raise
            refused = refused or str(error)
    found = Outcome(why=refused, is_compiled=True, assembled=tuple(taken))
    return dict.fromkeys(names, found)


# --- rows -----------------------------------------------------------------------------------------


def outcomes(rows: Sequence[Row], plan: Plan) -> list[Outcome]:
    """What comes of some rows."""
    if plan.only_compiled:
        use = functools.partial(assemblies, architectures=plan.assembled)
        return [_compiled(*made) for made in _made(rows, find_target(plan.target), use)]
    results = _results(rows, find_target(plan.target))
    if not plan.against:
        return [_compared(row, got, row.want) for row, got in zip(rows, results, strict=True)]
    others = _results(rows, find_target(plan.against))
    return [
        other if isinstance(other, Outcome) else _compared(row, got, other)
        for row, got, other in zip(rows, results, others, strict=True)
    ]


def _made(
    rows: Sequence[Row], where: Target, use: Callable[..., dict[str, Any]] | None = None
) -> list[tuple[Any, str, str]]:
    """For each row what `use` made of it, why it was refused, and why it could not be lowered."""
    texts, refused, failed = {}, {}, {}
    for i, row in enumerate(rows):
        name = f"row{i}"
        try:
            texts[name] = lowered_row(row, name, where)
        except RefusedError as reason:
            refused[name] = str(reason)
        except GradoptError as error:
            failed[name] = str(error)
    made = compile_many(texts, where, use)
    names = [f"row{i}" for i in range(len(rows))]
    return [(made.get(n), refused.get(n, ""), failed.get(n, "")) for n in names]


def _compiled(made: Any, refused: str, failed: str) -> Outcome:
    if made is None:
        return Outcome(why=failed, refused=refused)
    if isinstance(made, Outcome):
        return made
    try:
        return made()
    except CompileError as error:
        return Outcome(why=str(error))


def _results(rows: Sequence[Row], where: Target) -> list[list[np.ndarray] | Outcome]:
    """The results of each row on a target, or what came of it instead."""
    found: list[list[np.ndarray] | Outcome] = []
    for row, (call, refused, failed) in zip(rows, _made(rows, where), strict=True):
        if call is None:
            found.append(Outcome(why=failed, refused=refused))
            continue
        try:
            specs = [TensorSpec(w.shape, w.dtype) for w in row.want]
            found.append(call(specs, *row.arrays))
        except (GradoptError, RuntimeError) as error:
            found.append(Outcome(why=str(error), is_compiled=not isinstance(error, CompileError)))
    return found


def _compared(row: Row, got: list[np.ndarray] | Outcome, want: list[np.ndarray]) -> Outcome:
    """The outcome of a row with results."""
    if isinstance(got, Outcome):
        return got
    error = row.error(got, want)
    return Outcome(error, "" if error <= row.ulp else _differ(got, want), is_compiled=True)


def _differ(got: list[np.ndarray], want: list[np.ndarray]) -> str:
    """The elements that differ most, for people."""
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            return f"result {i} is {a.dtype.name}{list(a.shape)}, not {b.dtype.name}{list(b.shape)}"
        if not a.size or np.array_equal(a, b, equal_nan=is_float(a.dtype)):
            continue
        wide = [x.astype(np.float64) for x in (a, b)]
        with np.errstate(invalid="ignore"):
            gap = np.where(wide[0] == wide[1], 0, np.abs(wide[0] - wide[1]))
        at = np.unravel_index(int(np.nanargmax(np.nan_to_num(gap, nan=np.inf))), a.shape)
        return f"result {i} at {[int(n) for n in at]} is {a[at]}, not {b[at]}"
    return ""


# --- many rows ------------------------------------------------------------------------------------


def run_all(
    count: int, plan: Plan, choose: Callable[..., list[Row]], options: Any, jobs: int
) -> Iterator[tuple[int, Outcome]]:
    """The outcome of each of the `count` rows that `choose(options)` gives, by its position, in the
    order in which they are found; with several jobs in as many processes. A row that ends its
    process is found and fails, the others do not.
    """
    groups = [list(range(i, min(i + AT_ONCE, count))) for i in range(0, count, AT_ONCE)]
    if jobs <= 1 or len(groups) == 1:
        rows = choose(options)
        for group in groups:
            yield from zip(group, outcomes([rows[i] for i in group], plan), strict=True)
        return
    with Crew(min(jobs, len(groups)), start, choose, options) as crew:
        yield from by_crew(crew, groups, plan)


def by_crew(
    crew: Crew,
    groups: Sequence[list[int]],
    plan: Plan,
    limit: float | None = None,
    deadline: float | None = None,
) -> Iterator[tuple[int, Outcome]]:
    """The outcome of each row of groups, by processes that have them. A group that ends its process
    is split until the row is found that does; `limit` and `deadline` as in Crew.run, a row that has
    no time left is left out.
    """
    while groups:
        split: list[list[int]] = []
        tasks = [(i, _of_group, (group, plan)) for i, group in enumerate(groups)]
        for i, found in crew.run(tasks, limit, deadline):
            group = groups[i]
            if not isinstance(found, Lost):
                yield from zip(group, found, strict=True)
            elif deadline is not None and time.monotonic() > deadline:
                continue
            elif len(group) == 1:
                yield group[0], Outcome(why=found.reason)
            else:
                split += [group[: len(group) // 2], group[len(group) // 2 :]]
        groups = split


_rows: list[Row] = []


def start(choose: Callable[..., list[Row]], options: Any) -> None:
    """What a process begins with: it chooses the rows again, as rows cannot be sent."""
    _rows[:] = choose(options)


def _of_group(group: list[int], plan: Plan) -> list[Outcome]:
    return outcomes([_rows[i] for i in group], plan)
