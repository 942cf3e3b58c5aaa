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

import numpy as np

from ..dialect.types import bfloat16
from .target import INPUT, Family, Rung, Target, host_features

O1 = ("--iree-opt-level=O1", "--iree-llvmcpu-reassociate-fp-reductions")
TILED = (*O1, "--iree-opt-data-tiling")
PLAIN = (
    "--iree-preprocessing-pass-pipeline=builtin.module(util.func(iree-codegen-strip-compilation-info))",
)
"""Ops are not compiled as they say themselves (linalg/direct.py)."""
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
    Rung("no-data-tiling", (*O1, *PLAIN)),
    Rung("unoptimized", ("--iree-opt-level=O0", *PLAIN)),
)
VARIANTS = (
    Rung("no-data-tiling", O1),
    Rung(
        "fused",
        (*TILED, "--iree-dispatch-creation-enable-aggressive-fusion=true"),
    ),
)
"""Flags that are faster for some functions: without data tiling those of small matrices (recsys
0.59 ms, with it 0.64).
"""

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

_NOT_OF_CODE = """
acpi aperfmperf apic arat arch_capabilities arch_lbr arch_perfmon art bts bus_lock_detect cat_l2
cat_l3 cdp_l2 cdp_l3 clflush clflushopt clwb clzero cmp_legacy constant_tsc cpb cppc cpuid
cpuid_fault cqm cqm_llc cqm_mbm_local cqm_mbm_total cqm_occup_llc cr8_legacy dca de debug_swap
decodeassists ds_cpl dtes64 dtherm dts enqcmd epb ept ept_ad erms est extapic extd_apicid
flexpriority flush_l1d flushbyasid fsgsbase fsrm fxsr_opt ht hw_pstate hwp hwp_act_window hwp_epp
hwp_notify hwp_pkg_req hypervisor ibpb ibrs ibrs_enhanced ibs ibt ida intel_ppin intel_pt invpcid
invpcid_single irperf lbrv mba mca mce md_clear monitor msr mtrr mwaitx nonstop_tsc nopl npt
nrip_save nx ospke osvw overflow_recov pae pat pausefilter pbe pcid pconfig pdcm pdpe1gb
perfctr_core perfctr_llc perfctr_nb perfmon_v2 pfthreshold pge pku pln proc_feedback pse pse36 pti
pts rdpid rdpru rdt_a rdtscp rep_good sdbg sep sev sev_es sev_snp skinit smap smca sme smep smx
split_lock_detect ss ssbd stibp succor svm svm_lock syscall tce tdx_guest tm tm2 tme topoext
tpr_shadow tsc tsc_adjust tsc_deadline_timer tsc_known_freq tsc_reliable tsc_scale umip user_shstk
v_spec_ctrl v_vmsave_vmload vgif vmcb_clean vme vmmcall vmx vnmi vpid waitpkg wbnoinvd wdt x2apic
x2avic xgetbv1 xsavec xsaveerptr xsaveopt xsaves xtopology xtpr
"""
NOT_OF_CODE = frozenset(_NOT_OF_CODE.split())
"""What /proc/cpuinfo says of operating systems, hypervisors, timers and counters: no tensor program
becomes such code, and of two machines with equal CPUs one may hide it.
"""

SPECIAL = {"aarch64": "generic"}
"""What LLVM calls those that have another name there; `aarch64` is armv8-a without extensions."""


def make(variant: str) -> Target:
    """The CPU called `variant`."""
    if variant == HOST:
        features = tuple(f for f in host_features()[1:] if f not in NOT_OF_CODE)
        return Target(
            "cpu",
            "local-task",
            (*LOCAL, "--iree-llvmcpu-target-cpu=host", *INPUT),
            LADDER,
            products=products(features),
            is_host=True,
            variants=VARIANTS,
            architecture=platform.machine(),
            cpu_features=features,
            wide_vectors="avx512f" in features,
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
        products=products(features),
        architecture=architecture,
        cpu_features=tuple(sorted(features)),
        wide_vectors="avx512f" in features,
    )


def products(features: tuple[str, ...]) -> tuple[np.dtype, ...]:
    """The 16-bit types in whose products IREE uses instructions of a CPU with these features."""
    return (bfloat16,) if "avx512_bf16" in features else ()


HOST = "host"
LOCAL = ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu")
CPU = Family("cpu", (HOST, *CPUS), make)
