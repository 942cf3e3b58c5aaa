# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-bench --memory: what training steps need of memory, planned and real."""

import gc
from typing import Any

import gradopt as go

from ..lowering.target import target as find_target
from ..runtime.device import device
from .workloads import WORKLOADS, train_step

STEPS = 3


def memory_row(
    name: str, target: str, sizes: dict[str, int], budget: float | int | str | None
) -> dict[str, Any]:
    """The row of one workload, in bytes, for its step with static allocation and donated
    parameters: gradopt's plan before IREE (`planned`, `planned_bound`); the temporaries as IREE
    alone packs them (`iree`) and in the end (`arena`, `bound`); second copies of parameters
    (`spare`); and what the allocator gave for all that and the result besides the parameters and
    the batch (`measured`).
    """
    start, batch, loss = WORKLOADS[name](**sizes)
    step = go.compile(
        train_step(loss), donate=0, target=target, static_alloc=True, memory_budget=budget
    )
    report = step.memory_report(start, *batch)
    allocator = device(find_target(target).driver).allocator
    given = {n: go.device_put(w, target) for n, w in start.items()}
    data = [go.device_put(x, target) for x in batch]
    gc.collect()  # arenas of functions that are gone would be freed at any time
    before = live_bytes(allocator)
    for _ in range(STEPS):
        given, value = step(given, *data)
    go.block_until_ready((given, value))
    measured = live_bytes(allocator) - before
    return {
        "workload": name,
        **sizes,
        "parameters": sum(w.nbytes for w in start.values()),
        "planned": report.plan.peak,
        "planned_bound": report.plan.bound,
        "iree": report.iree,
        "arena": report.arena,
        "bound": report.bound,
        "spare": report.spare,
        "measured": measured,
        "loss": float(value),
    }


def live_bytes(allocator: Any) -> int:
    """What an allocator has given and not got back."""
    found = allocator.statistics
    return sum(
        found[f"{m}_bytes_allocated"] - found[f"{m}_bytes_freed"] for m in ("host", "device")
    )
