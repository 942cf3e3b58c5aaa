# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Vulkan: SPIR-V that runs on any GPU of the last years, or code for GPUs by name."""

import numpy as np

from ..dialect.types import DTYPES
from .target import INPUT, Family, Rung, Target

FEATURES = (
    "spirv:v1.3,cap:Shader,cap:Float16,cap:Int16,cap:StorageBuffer16BitAccess,cap:Int8,"
    "cap:StorageBuffer8BitAccess,ext:SPV_KHR_8bit_storage"
)
"""What the portable profile asks of a device: arithmetic and storage in 8 and 16 bits, which come
with all GPUs that compute in float16. IREE's own default is without, and computes wrong numbers in
silence: from 16-bit floats, and in the last bytes of arrays of 8-bit numbers and truth values,
which it reaches by words of 32 bits then. The extension is part of Vulkan 1.2, and is named since
IREE ignores the capability without it in this version of SPIR-V.
"""

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
            "--iree-hal-target-device=vulkan",
            f"--iree-vulkan-target-features={FEATURES}",
            *INPUT,
        ),
        LADDER,
        tuple(d for d in DTYPES if d != np.float64),
        is_spirv=True,
    )


VULKAN = Family("vulkan", ("portable",), make)
