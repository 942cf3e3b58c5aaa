# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""CUDA: PTX, which the driver compiles for the GPU that is there, of the variant's architecture or
a newer one.
"""

from .target import INPUT, Family, Rung, Target

LADDER = (
    Rung("default", ("--iree-opt-level=O1",)),
    Rung("unoptimized", ("--iree-opt-level=O0",)),
)
VARIANTS = ("sm_80", "sm_75", "sm_86", "sm_87", "sm_89", "sm_120")
"""The first is the portable one: its PTX runs on every later GPU, the others do not on earlier
ones. IREE 3.13 knows no sm_90 and no sm_100: sm_80 and sm_89 run there. Its compiler crashes on
names that it does not know at all.
"""


def make(variant: str) -> Target:
    """The CUDA architecture called `variant`."""
    return Target(
        "cuda" if variant == VARIANTS[0] else f"cuda:{variant}",
        "cuda",
        ("--iree-hal-target-device=cuda", f"--iree-cuda-target={variant}", *INPUT),
        LADDER,
    )


def architecture(target: Target) -> int:
    """The compute capability that a CUDA target needs at least, as in 89 of sm_89."""
    return int((target.name.partition(":")[2] or VARIANTS[0]).removeprefix("sm_"))


CUDA = Family("cuda", VARIANTS, make)
