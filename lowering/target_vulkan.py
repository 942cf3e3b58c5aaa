# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Vulkan: SPIR-V that runs on any GPU of the last years, or code for GPUs by name."""

import numpy as np

from ..dialect.types import DTYPES
from .target import INPUT, Family, Rung, Target

FEATURES = (
    "spirv:v1.3,cap:Shader,cap:Float16,cap:Int8,cap:Int16,cap:Int64,"
    "cap:StorageBuffer8BitAccess,cap:StorageBuffer16BitAccess,ext:SPV_KHR_8bit_storage"
)
"""What code of the portable profile may ask of a device, where it works with such numbers:
arithmetic and storage in 8, 16 and 64 bits. IREE's own default is without, and computes wrong
numbers in silence: from 16-bit floats; in the last bytes of arrays of 8-bit numbers and truth
values, which it reaches by words of 32 bits then; in shifts of 64-bit integers by 0. The extension
is part of Vulkan 1.2, and is named since IREE ignores the capability without it in this version of
SPIR-V.
"""

PROCESSORS = (
    "compute = fp32|fp16|int64|int32|int16|int8, storage = b64|b32|b16|b8, subgroup = none, "
    "subgroup_size_choices = [64], max_workgroup_sizes = [128, 128, 64], "
    "max_thread_count_per_workgroup = 128, max_workgroup_memory_bytes = 16384, "
    "max_workgroup_counts = [65535, 65535, 65535]"
)
"""The same for IREE's choice of forms, else it has 64-bit integers emulated all the same; the
limits are those of its default, which every device has.
"""

PORTABLE = (
    '#hal.device.target<"vulkan", [#hal.executable.target<"vulkan-spirv", "vulkan-spirv-fb", '
    '{iree_codegen.target_info = #iree_gpu.target<arch = "vp_android_baseline_2022", '
    f'features = "{FEATURES}", wgp = <{PROCESSORS}>>}}>]>'
)

LADDER = (
    Rung("default", ("--iree-opt-level=O1",)),
    Rung("unoptimized", ("--iree-opt-level=O0",)),
)


GPUS = ("rdna1", "rdna2", "rdna3", "rdna4", "turing", "ampere", "ada")
"""GPUs by the names that IREE 3.13 knows; it crashes on others. Left out are those without 64-bit
integers there (adreno, valhall1 to 4): IREE emulates them without division, and with wrong shifts
by 0. The portable profile is for these.
"""


def make(variant: str) -> Target:
    """The portable profile, or code for one of GPUS."""
    portable = variant == "portable"
    device = (
        [f"--iree-hal-target-device={PORTABLE}"]
        if portable
        else ["--iree-hal-target-device=vulkan", f"--iree-vulkan-target={variant}"]
    )
    return Target(
        "vulkan" if portable else f"vulkan:{variant}",
        "vulkan",
        (*device, *INPUT),
        LADDER,
        tuple(d for d in DTYPES if d != np.float64),
        is_spirv=True,
    )


VULKAN = Family("vulkan", ("portable", *GPUS), make)
