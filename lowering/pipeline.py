# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Pass pipelines: gradopt's own, the parser of their text, and how they run, gradopt's passes mixed
with MLIR's.

MLIR cannot parse the name of a pass written in Python, so the text is parsed here; every stretch of
MLIR's own passes is handed over to MLIR.
"""

import dataclasses
import difflib
import functools
import logging
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ..dialect.base import Op
from ..dialect.control import symbols
from ..dialect.mlir import diagnostics, ir, location, passmanager
from ..errors import Diagnostic, PassError, PipelineError
from . import (
    bufferize,
    choose_forms,
    decompose,
    differentiate,
    inline,
    layout,
    memref,
    multi_output,
    partition,
    plan_memory,
    product_forms,
    rematerialize,
    separate,
    simplify,
    spirv_forms,
    to_linalg,
    to_llvm,
    unroll_scans,
)
from .passes import PASSES
from .target import Target, check_supported

STAGES = {
    "graph": "",
    "differentiated": "gradopt-differentiate,gradopt-inline,symbol-dce",
    "simplified": (
        "gradopt-unroll-scans,gradopt-decompose{keep-lowered=true},gradopt-simplify,gradopt-layout,"
        "gradopt-product-forms"
    ),
    "rematerialized": "",
    "linalg": "gradopt-choose-forms,convert-gradopt-to-linalg,gradopt-bufferize",
}
"""What happens to a graph before IREE gets it: each stage's name and the passes that lead to it
from the one before; `stages` has those that depend on options.
"""

UNROLL = "gradopt-unroll-scans"

JIT_STAGES = STAGES | {
    "simplified": STAGES["simplified"].replace(UNROLL, f"{UNROLL}{{full=true}}"),
    "linalg": (
        "gradopt-choose-forms,convert-gradopt-to-linalg,convert-elementwise-to-linalg,"
        "linalg-fuse-elementwise-ops"
    ),
    "memref": "gradopt-plan-memory,gradopt-bufferize{form=memref}",
}
"""What happens to a graph before the host JIT gets it."""

FUSION = "gradopt-multi-output-fusion"
"""What happens to linalg, besides, for CPUs."""

SPIRV = "gradopt-spirv-forms,gradopt-separate-reductions"
"""What happens to linalg, besides, for targets whose code is SPIR-V."""

PIPELINES = {
    "gradopt-lower": ",".join(filter(None, STAGES.values())),
    "gradopt-lower-jit": ",".join(filter(None, JIT_STAGES.values())),
}
"""Names that stand for several passes."""

MODULE = "builtin.module"
_log = logging.getLogger("gradopt.passes")


@dataclasses.dataclass(frozen=True)
class Step:
    """One pass of a parsed pipeline: its name, options as text, and the passes nested in it if it
    is an op's name.
    """

    name: str
    options: str = ""
    nested: tuple["Step", ...] = ()
    is_anchor: bool = False

    def __str__(self) -> str:
        if self.is_anchor:
            return f"{self.name}({','.join(map(str, self.nested))})"
        return f"{self.name}{{{self.options}}}" if self.options else self.name


@functools.cache
def parse(text: str) -> tuple[Step, ...]:
    """The steps of a pipeline such as
    `builtin.module(gradopt-simplify{max-iterations=2},func.func(cse))`.

    `builtin.module(...)` around the whole is optional. Raises PipelineError for malformed text,
    unknown passes and options.
    """
    parser = _Parser(text)
    steps = parser.steps()
    if parser.rest:
        raise parser.error("',' or its end")
    steps = [s for step in steps for s in _expand(step)]
    for step in steps:
        _check(step)
    return tuple(steps)


class _Parser:
    """Recursive descent over: steps = step (',' step)*; step = name ('(' steps ')' | '{' options
    '}')?
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    @property
    def rest(self) -> str:
        return self.text[self.at :].lstrip()

    def steps(self) -> list[Step]:
        found = [self.step()] if self.rest and not self.rest.startswith(")") else []
        while self.accept(","):
            found.append(self.step())
        return found

    def step(self) -> Step:
        start = self.text[self.at :]
        self.at += len(start) - len(start.lstrip())
        end = self.at
        while end < len(self.text) and (self.text[end].isalnum() or self.text[end] in "-_."):
            end += 1
        name = self.text[self.at : end]
        if not name:
            raise self.error("a pass or op name")
        self.at = end
        if self.accept("("):
            nested = tuple(self.steps())
            self.require(")")
            return Step(name, nested=nested, is_anchor=True)
        return Step(name, self.braced())

    def braced(self) -> str:
        if not self.accept("{"):
            return ""
        start, depth = self.at, 1
        while self.at < len(self.text) and depth:
            depth += {"{": 1, "}": -1}.get(self.text[self.at], 0)
            self.at += 1
        if depth:
            raise PipelineError(f"pipeline expected '}}', got its end, in '{self.text}'")
        return self.text[start : self.at - 1].strip()

    def accept(self, sign: str) -> bool:
        if not self.rest.startswith(sign):
            return False
        self.at = len(self.text) - len(self.rest) + 1
        return True

    def require(self, sign: str) -> None:
        if not self.accept(sign):
            raise self.error(f"'{sign}'")

    def error(self, expected: str) -> PipelineError:
        """What stands at the place reached is not what should."""
        got = f"'{self.rest[:20]}'" if self.rest else "its end"
        place = len(self.text) - len(self.rest) + 1
        return PipelineError(
            f"pipeline expected {expected}, got {got} at character {place} of '{self.text}'"
        )


def _expand(step: Step) -> Iterator[Step]:
    if step.is_anchor and step.name == MODULE:
        for nested in step.nested:
            yield from _expand(nested)
    elif step.name in PIPELINES and not step.is_anchor:
        if step.options:
            raise PipelineError(
                f"pipeline '{step.name}' expected no options, got '{step.options}'; give them to "
                f"its passes, {PIPELINES[step.name]}"
            )
        yield from parse(PIPELINES[step.name])
    else:
        yield step


def _check(step: Step) -> None:
    for anchor in (s for s in _walk(step) if s.is_anchor and s.name in {*PASSES, *PIPELINES}):
        raise PipelineError(f"pass '{anchor.name}' expected no nested passes, got '{anchor}'")
    if step.name in PASSES:
        PASSES[step.name].parse_options(split_options(step.options))
        return
    if own := [s.name for s in _walk(step) if s.name in PASSES]:
        raise PipelineError(
            f"pass '{own[0]}' expected to run on {MODULE}, got nested in '{step.name}'; move it out"
        )
    try:
        with ir.Context():
            passmanager.PassManager.parse(f"{MODULE}({step})")
    except ValueError as error:
        reason = str(error).splitlines()[0].split("error: ")[-1].strip() or "malformed options"
        close = difflib.get_close_matches(step.name, [*PASSES, *PIPELINES], 1)
        hint = f"did you mean '{close[0]}'? " if close else ""
        raise PipelineError(
            f"pipeline step '{step}': {reason}; {hint}--list-passes shows gradopt's passes"
        ) from None


def _walk(step: Step) -> Iterator[Step]:
    yield step
    for nested in step.nested:
        yield from _walk(nested)


def split_options(text: str) -> dict[str, str]:
    """`a=1 b=2` as a dict; an option without a value is `true`."""
    return dict((word.split("=", 1) if "=" in word else (word, "true")) for word in text.split())  # type: ignore[misc]


def run(
    module: ir.Module,
    steps: Sequence[Step] | str,
    after: Callable[[Step, float], None] | None = None,
) -> None:
    """Run a pipeline on a module, in place; `after` is called with each step and its seconds.

    Raises PassError with MLIR's diagnostics where a pass fails or leaves IR that does not verify.
    """
    with module.context:
        for step in parse(steps) if isinstance(steps, str) else steps:
            start = time.perf_counter()
            try:
                if step.name in PASSES:
                    own = PASSES[step.name]
                    own.run(module, **own.parse_options(split_options(step.options)))
                else:
                    passmanager.PassManager.parse(f"{MODULE}({step})").run(module.operation)
            except ir.MLIRError as error:
                found = diagnostics(error) or [
                    Diagnostic("", 0, 0, "error", f"pass '{step}' failed")
                ]
                raise PassError(found) from None
            seconds = time.perf_counter() - start
            _log.debug("%s: %.1f ms", step, seconds * 1e3)
            if after:
                after(step, seconds)


def stages(target: Target, remat: str = "") -> dict[str, str]:
    """The stages of a target and the passes that lead to each; `remat` are the options of
    gradopt-rematerialize, which is left out without.
    """
    found = dict(STAGES if target.ladder else JIT_STAGES)
    if remat:
        found["rematerialized"] = f"gradopt-rematerialize{{{remat}}}"
        found["simplified"] = JIT_STAGES["simplified"]
    products, native = "gradopt-product-forms", "+".join(d.name for d in target.products)
    found["simplified"] = found["simplified"].replace(products, f"{products}{{native={native}}}")
    options = [f"forms={target.forms}"] if target.forms else []
    options += ["wide-vectors=true"] if target.wide_vectors else []
    if options:
        first = "gradopt-choose-forms"
        found["linalg"] = found["linalg"].replace(first, f"{first}{{{' '.join(options)}}}")
    if np.dtype("float64") not in target.dtypes:
        to_linalg = "convert-gradopt-to-linalg"
        found["linalg"] = found["linalg"].replace(to_linalg, f"{to_linalg}{{float64=false}}")
    own = SPIRV if target.is_spirv else FUSION if target.family == "cpu" else ""
    if own:
        last = "gradopt-bufferize"
        found["linalg"] = found["linalg"].replace(last, f"{own},{last}")
    return found


def lower(
    module: ir.Module, target: Target, remat: str = ""
) -> tuple[ir.Module, dict[str, list[str]]]:
    """A copy of a module as the compiler of a target gets it, and the names of the ops that stood
    at each `file:line` before they were lowered. Raises PassError for element types that the target
    does not compute in. `remat`: see `stages`.
    """
    names: dict[str, list[str]] = {}
    with module.context:
        copy = ir.Module.parse(module.operation.get_asm(enable_debug_info=True))
        for stage, passes in stages(target, remat).items():
            if stage == "linalg":
                check_supported(copy, target)
                names = _ops_by_line(copy)
            run(copy, passes)
    return copy, names


def _ops_by_line(module: ir.Module) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for function in symbols(module).values():
        for op in [] if function.is_external else function.entry_block.operations:
            if not isinstance(op, Op):
                continue
            names = found.setdefault(location(op.location).rsplit(":", 1)[0], [])
            if op.operation.name not in names:
                names.append(op.operation.name)
    return found


__all__ = [
    "PIPELINES",
    "STAGES",
    "Step",
    "bufferize",
    "choose_forms",
    "decompose",
    "differentiate",
    "inline",
    "layout",
    "memref",
    "multi_output",
    "parse",
    "partition",
    "plan_memory",
    "product_forms",
    "rematerialize",
    "run",
    "separate",
    "simplify",
    "spirv_forms",
    "to_linalg",
    "to_llvm",
    "unroll_scans",
]
