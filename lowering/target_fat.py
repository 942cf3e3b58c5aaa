# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Several targets in one module, out of which IREE takes the first that the device at hand can run.

Two things of IREE 3.13: linking, which is on by default, keeps the code of only one device; and the
flag that turns it off is for a whole process, not for one compilation. The optimization flags are
for all devices at once, so that those that not all targets have by default are left out.
"""

from collections.abc import Sequence

from ..errors import CompileError
from .target import Rung, Target

DEVICE = "--iree-hal-target-device="
NOT_LINKED = ("--iree-hal-link-executables=false",)
OF_ONE_FAMILY = (
    "--iree-llvmcpu-",
    "--iree-cuda-",
    "--iree-vulkan-",
    "--iree-metal-",
    "--iree-rocm-",
)
"""How the flags start that only say something about one family's code."""


def fat(targets: Sequence[Target]) -> Target:
    """The targets as one, called by all their names, which can do what all of them can. Raises
    CompileError for two of one kind of device: they would be the same to IREE, which takes the
    first.
    """
    kinds = [t.driver for t in targets]
    if twice := next((k for k in kinds if kinds.count(k) > 1), None):
        names = ", ".join(t.name for t, k in zip(targets, kinds, strict=True) if k == twice)
        raise CompileError(
            f"expected targets of different devices for one file, got {names}; write a file each"
        )
    ladder = [
        Rung(name, flags, NOT_LINKED)
        for name, flags in (
            ("default", _common([t.ladder[0].flags for t in targets])),
            ("unoptimized", _common([t.ladder[-1].flags for t in targets])),
        )
    ]
    return Target(
        "+".join(t.name for t in targets),
        "",
        _joined([t.flags for t in targets]),
        tuple(ladder),
        tuple(d for d in targets[0].dtypes if all(d in t.dtypes for t in targets)),
        tuple(refused for t in targets for refused in t.refusals),
        tuple(d for d in targets[0].products if all(d in t.products for t in targets)),
        is_spirv=any(t.is_spirv for t in targets),
        is_host=any(t.is_host for t in targets),
    )


def _joined(flags: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """All flags, each once, with the devices in one of them."""
    devices = [f.removeprefix(DEVICE) for one in flags for f in one if f.startswith(DEVICE)]
    others = [f for one in flags for f in one if not f.startswith(DEVICE)]
    return (f"{DEVICE}{','.join(devices)}", *dict.fromkeys(others))


def _common(flags: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """The flags that all have, and those that are about one family's code."""
    shared = set(flags[0]).intersection(*flags[1:])
    every = dict.fromkeys(f for one in flags for f in one)
    return tuple(f for f in every if f in shared or f.startswith(OF_ONE_FAMILY))
