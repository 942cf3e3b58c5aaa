# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What else IREE compiles for, passed through: AMD GPUs by ROCm, Apple GPUs by Metal, and VMVX,
IREE's interpreter, which runs on every machine.

Metal code is written as shader source, which macOS compiles when it is loaded; the library of IREE
for Linux has no driver to run it, nor is one for AMD GPUs likely to be on the machine that
compiles.
"""

import numpy as np

from ..dialect.types import DTYPES
from .target import INPUT, Family, Rung, Target

LADDER = (
    Rung("default", ("--iree-opt-level=O1",)),
    Rung("unoptimized", ("--iree-opt-level=O0",)),
)
GFX = (
    *("gfx942", "gfx908", "gfx90a", "gfx950"),  # Instinct
    *("gfx1100", "gfx1101", "gfx1150", "gfx1201"),  # Radeon
)
"""AMD GPUs. IREE 3.13 knows no gfx1030."""


def rocm(variant: str) -> Target:
    """The AMD GPU called `variant`: its code runs on no other."""
    return Target(
        "rocm" if variant == GFX[0] else f"rocm:{variant}",
        "hip",
        ("--iree-hal-target-device=hip", f"--iree-rocm-target={variant}", *INPUT),
        LADDER,
    )


def metal(_: str) -> Target:
    """Apple GPUs."""
    return Target(
        "metal",
        "metal",
        ("--iree-hal-target-device=metal", *INPUT),
        LADDER,
        tuple(d for d in DTYPES if d != np.float64),
        is_spirv=True,  # which IREE turns into shader source
    )


def vmvx(_: str) -> Target:
    """IREE's interpreter."""
    return Target(
        "vmvx",
        "local-task",
        (
            "--iree-hal-target-device=local",
            "--iree-hal-local-target-device-backends=vmvx",
            *INPUT,
        ),
        LADDER,
    )


OTHERS = (
    Family("metal", ("portable",), metal),
    Family("rocm", GFX, rocm),
    Family("vmvx", ("portable",), vmvx),
)
