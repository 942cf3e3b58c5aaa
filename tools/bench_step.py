# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt's training steps, for bench_worker.py."""

from typing import Any

import gradopt as go

from ..errors import CompileError
from .workloads import WORKLOADS, train_step

CHECK_STEPS = 5


def prepare(request: dict[str, Any]) -> tuple[Any, Any, Any]:
    """(step, check, facts), as bench_worker.py wants them. The arrays of the request's file are
    made anew here: they are the same.
    """
    target = request["target"]
    start, batch, loss = WORKLOADS[request["workload"]](**request["sizes"])
    compiled = go.compile(train_step(loss), donate=0, target=target)
    data = [go.device_put(x, target) for x in batch]
    state: dict[str, Any] = {}

    def reset() -> None:
        state["p"] = {n: go.device_put(w, target) for n, w in start.items()}

    def step() -> Any:
        state["p"], value = compiled(state["p"], *data)
        return go.block_until_ready(value)

    def check() -> float:
        reset()
        return [float(step()) for _ in range(CHECK_STEPS)][-1]

    def facts() -> dict[str, Any]:
        try:
            return {"memory": _arena(compiled.memory_report(start, *batch))}
        except CompileError:  # of targets that IREE does not compile for, it is not known
            return {"memory": None}

    reset()
    return step, check, facts


def _arena(report: Any) -> int:
    """Bytes of temporaries: as IREE lays them out, or else as gradopt plans them."""
    return next((n for n in (report.arena, report.iree) if n is not None), report.plan.peak)
