# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What gradopt says about its work, through Python's logging: loggers `gradopt.AREA`.

GRADOPT_LOG says what is printed: a level, areas, or both: `debug`, `compile,cache`,
`warning,passes=debug`.
"""

import logging
import os
import time
import warnings
from typing import Any

from ..dialect.function_graph import FunctionGraph
from ..dialect.graph import Graph
from ..lowering.target import Target
from .executable import Executable
from .monitor import Wrapped

AREAS = {
    "compile": "what is compiled: signature, seconds, rung of the ladder",
    "cache": "where modules are found",
    "passes": "passes and their milliseconds",
    "memory": "arenas that are planned",
    "calls": "calls of compiled functions",
    "device": 'which target "auto" is',
}
LEVELS = {name: getattr(logging, name.upper()) for name in ("debug", "info", "warning", "error")}


def configure(text: str) -> dict[str, int]:
    """Set the loggers as GRADOPT_LOG says, and print what they let through to stderr; returns the
    levels by logger. Words that are no level and no area are a warning.
    """
    levels: dict[str, int] = {}
    for word in filter(None, (w.strip().lower() for w in text.split(","))):
        area, _, level = word.partition("=")
        if word in LEVELS:
            levels["gradopt"] = LEVELS[word]
        elif area in AREAS and (level or "debug") in LEVELS:
            levels[f"gradopt.{area}"] = LEVELS[level or "debug"]
        else:
            warnings.warn(
                f"GRADOPT_LOG expected levels ({', '.join(LEVELS)}) and areas "
                f"({', '.join(AREAS)}, also as area=level), got '{word}'",
                stacklevel=2,
            )
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    logger = logging.getLogger("gradopt")
    if levels and not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s %(levelname)s %(message)s"))
        logger.addHandler(handler)
        logger.propagate = False
    return levels


def signature(graph: Graph | FunctionGraph) -> str:
    """A graph's inputs and results, for people."""
    inputs = zip(graph.input_names, graph.input_specs, strict=True)
    given = ", ".join(f"{name}: {spec}" for name, spec in inputs)
    return f"{graph.name}({given}) -> ({', '.join(map(str, graph.output_specs))})"


def about_to_bind(graph: Graph | FunctionGraph, target: Target) -> None:
    """Say what is about to be compiled, or found."""
    if (log := logging.getLogger("gradopt.compile")).isEnabledFor(logging.INFO):
        log.info("%s for %s", signature(graph), target.name)


def logged(executable: Executable) -> Executable:
    """The executable; where calls are logged, one that does so. Others cost nothing."""
    is_wanted = logging.getLogger("gradopt.calls").isEnabledFor(logging.DEBUG)
    return LoggedExecutable(executable) if is_wanted else executable


class LoggedExecutable(Wrapped):
    """An executable whose calls are logged."""

    def __call__(self, leaves: list[Any], *more: Any, **options: Any) -> Any:
        begin = time.perf_counter()
        found = self.inner(leaves, *more, **options)
        seconds = time.perf_counter() - begin
        logging.getLogger("gradopt.calls").debug("'%s': %.3f ms", self.name, seconds * 1e3)
        return found


configure(os.environ.get("GRADOPT_LOG", ""))
