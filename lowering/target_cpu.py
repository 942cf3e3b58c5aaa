# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""CPUs: this machine's, or others by name: portable baselines such as `x86-64-v3` and `aarch64`,
and some models.

Code is put into an ELF file of IREE's own kind by the linker that IREE brings along, for any
operating system, so that nothing of this machine is needed to compile for another.

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

_V2 = ("cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3")
_V3 = (*_V2, "abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave")
_V4 = (*_V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
_ICELAKE = (
    *_V4,
    *("avx512_bitalg", "avx512_vbmi2", "avx512_vnni", "avx512_vpopcntdq", "avx512ifma"),
    *("avx512vbmi", "gfni"),
)
_ARM = ("asimd", "fp")
_NEOVERSE_N1 = (*_ARM, "asimddp", "asimdhp", "asimdrdm", "atomics", "crc32", "fphp", "lrcpc")
_NEOVERSE_V1 = (*_NEOVERSE_N1, "asimdfhm", "bf16", "fcma", "i8mm", "jscvt", "sha3", "sve")
_NEOVERSE_V2 = (
    *_NEOVERSE_N1,
    *("asimdfhm", "bf16", "fcma", "i8mm", "jscvt", "sve", "sve2", "svebitperm"),
)

CPUS: dict[str, tuple[str, tuple[str, ...]]] = {
    "x86-64-v2": ("x86_64", _V2),
    "x86-64-v3": ("x86_64", _V3),
    "x86-64-v4": ("x86_64", _V4),
    "haswell": ("x86_64", _V3),
    "skylake-avx512": ("x86_64", _V4),
    "icelake-server": ("x86_64", _ICELAKE),
    "znver3": ("x86_64", _V3),
    "znver4": ("x86_64", (*_ICELAKE, "avx512_bf16")),
    "aarch64": ("aarch64", _ARM),
    "cortex-a53": ("aarch64", (*_ARM, "crc32")),
    "cortex-a72": ("aarch64", (*_ARM, "crc32")),
    "cortex-a76": ("aarch64", _NEOVERSE_N1),
    "neoverse-n1": ("aarch64", _NEOVERSE_N1),
    "neoverse-v1": ("aarch64", _NEOVERSE_V1),
    "neoverse-v2": ("aarch64", _NEOVERSE_V2),
}
"""CPUs by name: the architecture, and those of their features that compiled code may use, as
/proc/cpuinfo calls them. Those for operating systems (clwb, pku, xsaves) and ciphers (aes, sha1),
which some machines of a model hide or lack, are not among them: no tensor program becomes such
code.
"""

SPECIAL = {"aarch64": "generic"}
"""What LLVM calls those that have another name there; `aarch64` is armv8-a without extensions."""


def make(variant: str) -> Target:
    """The CPU called `variant`."""
    if variant == HOST:
        return Target(
            "cpu",
            "local-task",
            (*LOCAL, "--iree-llvmcpu-target-cpu=host", *INPUT),
            LADDER,
            is_host=True,
            architecture=platform.machine(),
            cpu_features=tuple(host_features()[1:]),
        )
    architecture, features = CPUS[variant]
    return Target(
        f"cpu:{variant}",
        "local-task",
        (
            *LOCAL,
            f"--iree-llvmcpu-target-triple={architecture}-unknown-linux-gnu",
            f"--iree-llvmcpu-target-cpu={SPECIAL.get(variant, variant)}",
            *INPUT,
        ),
        LADDER,
        architecture=architecture,
        cpu_features=tuple(sorted(features)),
    )


HOST = "host"
LOCAL = ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu")
CPU = Family("cpu", (HOST, *CPUS), make)
