# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What a pass is: a name, a sentence, typed options and one function on a module. The registry
feeds tools and Python alike.
"""

import dataclasses
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from ..dialect.mlir import func, ir, place
from ..errors import Diagnostic, PassError, PipelineError

PASSES: dict[str, "Pass"] = {}
"""Every gradopt pass by name."""


@dataclasses.dataclass(frozen=True)
class Pass:
    """A rewrite of a module. `options` maps an option's name, with dashes, to its default, whose
    type is the option's.
    """

    name: str
    run: Callable[..., None]
    summary: str
    options: dict[str, Any]

    def parse_options(self, given: dict[str, str]) -> dict[str, Any]:
        """Keyword arguments for `run` from text; PipelineError for an unknown option or a value of
        the wrong type.
        """
        parsed = {}
        for option, text in given.items():
            if option not in self.options:
                known = ", ".join(self.options) or "none"
                raise PipelineError(
                    f"pass '{self.name}' expected options out of: {known}, got '{option}'"
                )
            parsed[option.replace("-", "_")] = self._parse(option, text)
        return parsed

    def _parse(self, option: str, text: str) -> Any:
        kind = type(self.options[option])
        try:
            return {"true": True, "false": False}[text] if kind is bool else kind(text)
        except (KeyError, ValueError):
            raise PipelineError(
                f"option '{option}' of pass '{self.name}' expected {kind.__name__}, got '{text}'"
            ) from None


def gradopt_pass(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function `(module, *, option=default, ...)` as the pass `name`; its docstring's
    first line is the summary.
    """

    def register(run: Callable[..., None]) -> Callable[..., None]:
        parameters = list(inspect.signature(run).parameters.values())[1:]
        options = {p.name.replace("_", "-"): p.default for p in parameters}
        summary = " ".join((run.__doc__ or "").split("\n\n")[0].split())
        PASSES[name] = Pass(name, run, summary, options)
        return run

    return register


def failure(faults: Iterable[tuple[ir.Location, str]]) -> PassError:
    """The error of a pass that found `faults`."""
    return PassError([Diagnostic(*place(loc), "error", message) for loc, message in faults])


def operations(function: func.FuncOp) -> list[ir.Operation]:
    """The ops of a function in order, those in its loops behind each loop."""
    found: list[ir.Operation] = []
    pending = [op.operation for block in function.body.blocks for op in block.operations][::-1]
    while pending:
        found.append(op := pending.pop())
        if op.name == "scf.for":
            pending += [o.operation for o in op.regions[0].blocks[0].operations][::-1]
    return found


def single_block(function: func.FuncOp) -> ir.Block:
    """The body of a function. Raises PassError where it has none, or branches."""
    if function.is_external:
        message = f"expected @{function.name.value} to have a body, got a declaration"
        raise failure([(function.location, message)])
    if len(blocks := list(function.body.blocks)) > 1:
        message = f"expected @{function.name.value} to have one block, got {len(blocks)}"
        raise failure([(function.location, message)])
    return function.entry_block
