# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""One training step, timed in a process of its own: `python -P bench_worker.py PROVIDER`.

PROVIDER is a module, or the path of a Python file, with

    prepare(request: dict) -> (step, check, facts)

where `step()` runs one training step and waits for it, `check()` gives the loss after five from the
start, and `facts()` more fields for the answer. The request has `workload`; `sizes`, by name;
`arrays`, the path of an .npz file with the starting weights (`p.NAME`) and the batch (`x0`, `x1`,
...); and `target`, gradopt's name for where it is to run.

The process reads one JSON object a line from stdin and answers each with one on stdout:

- {"workload": ...} is prepared and run: first_s (seconds to the end of the first step, with tracing
  and compiling), loss5, and the facts;
- {"seconds": s} runs steps for s seconds, and three at least: times_ms, one a step.

What fails is answered as {"error": ...}. This file needs nothing but Python, so that any Python
that has the peer can run it.
"""

import importlib
import json
import os
import runpy
import sys
import time
from collections.abc import Callable
from typing import Any

LEAST_STEPS = 3


class Worker:
    """The prepared step, and what it is asked to do."""

    def __init__(self, prepare: Callable[..., Any]) -> None:
        self.prepare = prepare
        self.step: Callable[[], Any] = lambda: None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """What a request asks for, or the error that it ends with."""
        try:
            return self._timed(request["seconds"]) if "seconds" in request else self._first(request)
        except Exception as error:  # whatever it is, the other points go on
            return {"error": f"{type(error).__name__}: {str(error).strip()[:400]}"}

    def _first(self, request: dict[str, Any]) -> dict[str, Any]:
        begin = time.perf_counter()
        self.step, check, facts = self.prepare(request)
        self.step()
        first = time.perf_counter() - begin
        return {"first_s": round(first, 2), "loss5": check(), **facts()}

    def _timed(self, seconds: float) -> dict[str, Any]:
        self.step()  # the other side ran last: caches and clocks are its
        times: list[float] = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(times) < LEAST_STEPS:
            begin = time.perf_counter()
            self.step()
            times.append(round((time.perf_counter() - begin) * 1e3, 4))
        return {"times_ms": times}


def main(provider: str) -> None:
    """Answer requests until stdin ends. What libraries print goes to stderr."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        if provider.endswith(".py"):
            prepare = runpy.run_path(provider)["prepare"]
        else:
            prepare = importlib.import_module(provider).prepare
        worker = Worker(prepare)
        for line in sys.stdin:
            answers.write(json.dumps(worker.answer(json.loads(line))) + "\n")
            answers.flush()


if __name__ == "__main__":
    main(sys.argv[1])
