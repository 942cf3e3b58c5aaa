# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Vulkan: SPIR-V that runs on any GPU of the last years, or code for GPUs by name."""

import numpy as np

from ..dialect.types import DTYPES
from .target import INPUT, Family, Rung, Target

FEATURES = "spirv:v1.3,cap:Shader,cap:Float16,cap:Int16,cap:StorageBuffer16BitAccess"
"""What the portable profile asks of a device. IREE's own default is without the last three, and
computes wrong numbers from 16-bit floats in silence (iree.md, section 1).
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
