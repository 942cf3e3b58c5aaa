# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Which devices this machine has, which targets run on them, and which of those is the best: the
target "auto".
"""

import dataclasses
import functools
import logging
import platform

from ..errors import DeviceError
from ..lowering.target import Target, host_features
from ..lowering.target import target as named_target

AUTO = "auto"
ORDER = ("cuda", "rocm", "metal", "vulkan")
"""Families that "auto" takes, the first that has a device; else the CPU."""
SOFTWARE = ("llvmpipe", "lavapipe", "softpipe", "swiftshader")
"""How GPUs are called that are programs. They are slower than the CPU's own code, so that "auto"
counts them as none.
"""
REMEDIES = {
    "cuda": "install NVIDIA's driver, whose libcuda.so is looked for, and see that nvidia-smi "
    "lists a GPU",
    "hip": "install ROCm, whose libamdhip64.so is looked for, and see that rocminfo lists a GPU",
    "metal": "Metal is there on macOS only",
    "vulkan": "install a Vulkan driver, or mesa-vulkan-drivers, which runs Vulkan on the CPU, and "
    "see that vulkaninfo lists a device",
}

_log = logging.getLogger("gradopt.device")


@dataclasses.dataclass(frozen=True)
class DeviceInfo:
    """A device that a driver of IREE's finds: its name, and what IREE calls it (its path, after
    `driver://`).
    """

    driver: str
    name: str
    path: str = ""

    @property
    def is_software(self) -> bool:
        """Whether it is a GPU by name only: a program on the CPU."""
        return any(word in self.name.lower() for word in SOFTWARE)


@functools.cache
def _found(driver: str) -> tuple[tuple[DeviceInfo, ...], str]:
    """The devices of a driver, and why there are none."""
    import iree.runtime as iree

    if driver not in iree.HalDriver.query():
        return (), f"this build of IREE's runtime has no driver '{driver}'"
    try:
        listed = iree.get_driver(driver).query_available_devices()
    except RuntimeError as error:
        return (), _said(error)
    found = tuple(DeviceInfo(driver, d["name"], d["path"]) for d in listed)
    return found, "" if found else "its driver finds no device"


def _said(error: RuntimeError) -> str:
    """What IREE says of a driver that cannot start, without places in its source."""
    text = (str(error).splitlines() or ["its driver does not start"])[0]
    text = text.rpartition("UNAVAILABLE; ")[2]
    return text.partition(" not available")[0] + " not available" if "not avail" in text else text


def devices() -> dict[str, tuple[DeviceInfo, ...]]:
    """The devices of this machine by driver: none where a driver finds none, or its library is
    missing. CPUs are there by the drivers local-sync and local-task.
    """
    import iree.runtime as iree

    return {driver: _found(driver)[0] for driver in sorted(iree.HalDriver.query())}


def why_no_device(driver: str) -> str:
    """Why a driver has no device here, and what to do about it; "" where it has one."""
    found, reason = _found(driver)
    if found:
        return ""
    remedy = REMEDIES.get(driver)
    return f"{reason}; {remedy}" if remedy else reason


def why_not(target: Target) -> str:
    """Why a target's code cannot run on this machine, and what to do; "" where it can."""
    if target.architecture and target.architecture != platform.machine():
        return (
            f"its code is for {target.architecture}, this machine is a {platform.machine()}; "
            "run it there, or choose another target"
        )
    lacking = sorted(set(target.cpu_features) - set(host_features()))
    if lacking:
        return (
            f"its code may use CPU features that this machine lacks: {', '.join(lacking)}; choose "
            "a target for an older CPU"
        )
    return why_no_device(target.driver)


def check_present(target: Target) -> None:
    """Raise DeviceError where a target's code cannot run on this machine."""
    if reason := why_not(target):
        raise DeviceError(f"target '{target.name}' cannot run on this machine: {reason}")


def find_target(name: str) -> Target:
    """The target called `name`; for "auto", the best that this machine has a device for."""
    return named_target(best() if name == AUTO else name)


@functools.cache
def best() -> str:
    """The name of the target that "auto" means here, looked for once a process."""
    chosen, device = "cpu", platform.machine()
    for family in ORDER:
        real = [d for d in _found(named_target(family).driver)[0] if not d.is_software]
        if real:
            chosen, device = family, real[0].name
            break
    _log.info("target 'auto' is '%s' here (%s)", chosen, device)
    return chosen
