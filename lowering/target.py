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

from ..errors import CompileError


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
    ladder: tuple[Rung, ...]

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
}


def target(name: str) -> Target:
    """The target called `name`. Names are checked here because IREE's compiler crashes on some it
    does not know.
    """
    if name not in TARGETS:
        raise CompileError(f"expected a target out of {', '.join(TARGETS)}, got '{name}'")
    return TARGETS[name]


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
