# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""CPUs: this machine's, or portable baselines.

Measured on IREE 3.13 (iree-cpu.md, section 2): the first rung is as fast as any; the second allows
what fails the first for large fused results; without data tiling steps are up to a quarter slower.
Going up in optimization level never helped. IREE's worker threads have 128 KiB of stack: code
compiled with a limit as high as that overruns it and crashes.
"""

import platform

from .target import INPUT, Family, Rung, Target, host_features

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


def make(variant: str) -> Target:
    """The CPU called `variant`."""
    return Target(
        "cpu",
        "local-task",
        (
            "--iree-hal-target-device=local",
            "--iree-hal-local-target-device-backends=llvm-cpu",
            "--iree-llvmcpu-target-cpu=host",
            *INPUT,
        ),
        LADDER,
        is_host=True,
        architecture=platform.machine(),
        cpu_features=tuple(host_features()[1:]),
    )


CPU = Family("cpu", ("host",), make)
