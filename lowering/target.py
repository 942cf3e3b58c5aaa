# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What IREE is told for a target: flags, and the ladder of weaker flags to walk down when its
compiler fails.

Measured on IREE 3.13 (iree-cpu.md, section 2): the first rung is as fast as any; the second allows
what fails the first for large fused results; without data tiling steps are up to a quarter slower.
Going up in optimization level never helped. IREE's worker threads have 128 KiB of stack: code
compiled with a limit as high as that overruns it and crashes.
"""

import dataclasses
import functools
import hashlib
import platform
from collections.abc import Iterable

import numpy as np

from ..dialect.control import symbols
from ..dialect.mlir import ir
from ..dialect.types import DTYPES, dtype_from_mlir, dtype_to_mlir
from ..errors import CompileError
from .passes import failure


@dataclasses.dataclass(frozen=True)
class Rung:
    """One attempt: flags of a session, and flags that IREE only takes once a process."""

    name: str
    flags: tuple[str, ...]
    process_flags: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Target:
    """Where compiled code runs: the flags that say so, IREE's driver for it, and the ladder."""

    name: str
    driver: str
    flags: tuple[str, ...]
    ladder: tuple[Rung, ...]  # none where IREE does not compile for it
    dtypes: tuple[np.dtype, ...] = DTYPES  # what it computes in; others are refused, not narrowed

    def identity(self) -> str:
        """What distinguishes machines for this target: code for one may not run on another."""
        return f"{self.name}:{host_cpu()}"


O1 = ("--iree-opt-level=O1", "--iree-llvmcpu-reassociate-fp-reductions")
TILED = (*O1, "--iree-opt-data-tiling")
LADDER = (
    Rung("default", TILED),
    Rung(
        "large-vectors",
        TILED,
        (
            "--iree-llvmcpu-fail-on-large-vector=false",
            "--iree-llvmcpu-stack-allocation-limit=65536",
        ),
    ),
    Rung("no-data-tiling", O1),
    Rung("unoptimized", ("--iree-opt-level=O0",)),
)

TARGETS = {
    "cpu": Target(
        "cpu",
        "local-task",
        (
            "--iree-hal-target-device=local",
            "--iree-hal-local-target-device-backends=llvm-cpu",
            "--iree-llvmcpu-target-cpu=host",
            "--iree-input-type=none",
            "--iree-input-demote-f64-to-f32=false",
            "--iree-opt-strip-assertions=false",  # they check unknown extents
        ),
        LADDER,
    ),
    "jit": Target("jit", "local-task", (), ()),  # no IREE: MLIR's own compiler, in this process
    "reference": Target("reference", "local-task", (), ()),  # no compiler: ops run on NumPy
}


def target(name: str) -> Target:
    """The target called `name`. Names are checked here because IREE's compiler crashes on some it
    does not know.
    """
    if name not in TARGETS:
        raise CompileError(f"expected a target out of {', '.join(TARGETS)}, got '{name}'")
    return TARGETS[name]


def check_dtypes(module: ir.Module, target: Target) -> None:
    """Raise for every op and argument whose element type the target does not compute in: nothing is
    narrowed in silence.
    """
    known = {dtype_to_mlir(d) for d in target.dtypes}
    faults = []
    for function in symbols(module).values():
        for op in [] if function.is_external else function.entry_block.operations:
            values = [*op.operation.operands, *op.operation.results]
            if lost := _outside(values, known):
                faults.append((op.location, f"'{op.operation.name}' op {_refusal(target, lost)}"))
        arguments = [] if function.is_external else function.entry_block.arguments
        if lost := _outside(arguments, known):
            faults.append((function.location, f"@{function.name.value} {_refusal(target, lost)}"))
    if faults:
        raise failure(faults)


def _outside(values: Iterable[ir.Value], known: set[ir.Type]) -> str:
    """The name of an element type that is not among those known; "" if there is none."""
    for value in values:
        if isinstance(value.type, ir.RankedTensorType) and value.type.element_type not in known:
            return dtype_from_mlir(value.type.element_type).name
    return ""


def _refusal(target: Target, dtype: str) -> str:
    names = ", ".join(d.name for d in target.dtypes)
    return (
        f"expected an element type that target '{target.name}' computes in ({names}), got {dtype}; "
        "convert the inputs first, or choose another target"
    )


@functools.cache
def host_features() -> list[str]:
    """The CPU features that code compiled for this machine may use."""
    try:
        with open("/proc/cpuinfo") as file:
            line = next(x for x in file if x.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        return [platform.machine(), platform.processor()]
    return [platform.machine(), *sorted(line.split(":", 1)[1].split())]


@functools.cache
def host_cpu() -> str:
    """This machine's architecture and CPU features, shortened to a digest."""
    digest = hashlib.sha256(" ".join(host_features()).encode()).hexdigest()
    return f"{platform.machine()}-{digest[:12]}"
