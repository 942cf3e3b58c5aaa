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


def make(variant: str) -> Target:
    """The Vulkan profile called `variant`."""
    return Target(
        "vulkan",
        "vulkan",
        (
            f"--iree-hal-target-device={PORTABLE}",
            *INPUT,
        ),
        LADDER,
        tuple(d for d in DTYPES if d != np.float64),
        is_spirv=True,
    )


VULKAN = Family("vulkan", ("portable",), make)
