# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-bench --compile-only: whole training steps compiled for a target, which need not run
here, and their PTX assembled.
"""

import time
from typing import Any

from ..dialect.graph import trace
from ..errors import CompileError
from ..lowering.bufferize import mark_donated
from ..lowering.target import Target
from ..runtime.modules import compile_graph
from . import ptxas
from .workloads import WORKLOADS, train_step


def compiled_step(name: str, where: Target, sizes: dict[str, int]) -> bytes:
    """The VMFB of the step of a workload, its parameters donated."""
    start, batch, loss = WORKLOADS[name](**sizes)
    graph = trace(train_step(loss), start, *batch, name="step")
    with graph.context:
        mark_donated(graph.finish(), range(len(start)))
    return compile_graph(graph.module, "step", where)


def compile_row(name: str, where: Target, sizes: dict[str, int]) -> dict[str, Any]:
    """The row of one workload: seconds to trace, lower and compile it, bytes, and the architectures
    that its PTX is assembled for, each with "yes" or what ptxas says; none without ptxas.
    """
    begin = time.perf_counter()
    row: dict[str, Any] = {"workload": name, "target": where.name, "ran": False}
    try:
        image = compiled_step(name, where, sizes)
    except CompileError as error:
        return row | {"compiled": False, "why": str(error).splitlines()[0]}
    row |= {
        "compiled": True,
        "compile_s": round(time.perf_counter() - begin, 1),
        "bytes": len(image),
    }
    if where.family == "cuda":
        archs = ptxas.architectures(where) if ptxas.ptxas() else []
        row["assembled"] = {a: _assembled(image, a) for a in archs}
    return row


def _assembled(image: bytes, architecture: str) -> str:
    try:
        ptxas.assemble(image, architecture)
    except CompileError as error:
        return str(error)
    return "yes"


def is_good(row: dict[str, Any]) -> bool:
    """Whether a workload compiled, and all that was assembled was."""
    return row["compiled"] and all(v == "yes" for v in row.get("assembled", {}).values())
