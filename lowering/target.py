# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Targets: what code is compiled for, by names such as "cpu", "cpu:x86-64-v3" or "cuda:sm_89": a
family and, behind a colon, one of its variants.

Each family stands in a file of its own, `target_<family>.py`, with the flags that IREE is told, the
ladder of weaker flags to walk down when its compiler fails, and what the target cannot do, which is
refused by name before anything is compiled.
"""

import dataclasses
import functools
import hashlib
import platform
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from ..dialect.control import symbols
from ..dialect.mlir import ir
from ..dialect.types import DTYPES, bfloat16, dtype_from_mlir, dtype_to_mlir, float16
from ..errors import CompileError
from .passes import failure


@dataclasses.dataclass(frozen=True)
class Rung:
    """One attempt: flags of a session, and flags that IREE only takes once a process."""

    name: str
    flags: tuple[str, ...]
    process_flags: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Refusal:
    """Ops that a target cannot run, by their names without "gradopt."; all ops where `ops` is
    empty. With `dtypes` only where an operand or result has one of these element types. `reason`
    completes "because ...".
    """

    reason: str
    ops: tuple[str, ...] = ()
    dtypes: tuple[np.dtype, ...] = ()


@dataclasses.dataclass(frozen=True)
class Target:
    """Where compiled code runs: the flags that say so, IREE's driver for it, and the ladder."""

    name: str
    driver: str
    flags: tuple[str, ...]
    ladder: tuple[Rung, ...]  # none where IREE does not compile for it
    dtypes: tuple[np.dtype, ...] = DTYPES  # what it computes in; others are refused, not narrowed
    refusals: tuple[Refusal, ...] = ()
    products: tuple[np.dtype, ...] = (bfloat16, float16)  # of 16 bits, in products not widened
    is_spirv: bool = False  # whether IREE makes SPIR-V for it
    is_host: bool = False  # whether the code is for the CPU of this machine
    architecture: str = ""  # of CPU code, as platform.machine() says it
    cpu_features: tuple[str, ...] = ()  # of CPU code, as /proc/cpuinfo says them
    wide_vectors: bool = False  # whether its vectors have 512 bits
    variants: tuple[Rung, ...] = ()  # other flags, which the tuner tries
    forms: str = ""  # of gradopt-choose-forms: the forms that ops have otherwise than by the rules

    @property
    def family(self) -> str:
        return self.name.partition(":")[0]

    def identity(self) -> str:
        """What distinguishes machines for this target: code for one may not run on another."""
        return f"{self.name}:{host_cpu()}" if self.is_host else self.name


@dataclasses.dataclass(frozen=True)
class Family:
    """Targets of one kind: `make` gives the one for a variant out of `variants`; the first of them
    is meant where none is named.
    """

    name: str
    variants: tuple[str, ...]
    make: Callable[[str], Target]
    is_compiled: bool = True  # by IREE


INPUT = (
    "--iree-input-type=none",
    "--iree-input-demote-f64-to-f32=false",
    "--iree-opt-strip-assertions=false",  # they check unknown extents
)
"""What IREE is told of its input, for all targets."""


@functools.cache
def families() -> dict[str, Family]:
    """All families by name."""
    from . import target_cpu, target_cuda, target_local, target_other, target_vulkan

    found = [
        target_cpu.CPU,
        target_vulkan.VULKAN,
        target_cuda.CUDA,
        *target_other.OTHERS,
        *target_local.LOCAL,
    ]
    return {family.name: family for family in found}


@functools.cache
def target(name: str) -> Target:
    """The target called `name`. Names are checked here because IREE's compiler crashes on some it
    does not know.
    """
    family, colon, variant = name.partition(":")
    known = families()
    if family not in known:
        raise CompileError(f"expected a target out of {', '.join(known)}, got '{name}'")
    variants = known[family].variants
    if colon and variant not in variants:
        raise CompileError(
            f"expected '{family}', or with a colon one of its variants {', '.join(variants)}, got "
            f"'{name}'"
        )
    return known[family].make(variant or variants[0])


# --- what a target cannot do ----------------------------------------------------------------------


def check_supported(module: ir.Module, target: Target) -> None:
    """Raise for every op and argument whose element type the target does not compute in, nothing is
    narrowed in silence, and for every op that it refuses.
    """
    known = {dtype_to_mlir(d) for d in target.dtypes}
    faults = []
    for function in symbols(module).values():
        for op in [] if function.is_external else function.entry_block.operations:
            values = [*op.operation.operands, *op.operation.results]
            if lost := _outside(values, known):
                faults.append((op.location, f"'{op.operation.name}' op {_narrow(target, lost)}"))
            elif refused := refusal(target, op.operation.name, values):
                faults.append((op.location, refused))
        arguments = [] if function.is_external else function.entry_block.arguments
        if lost := _outside(arguments, known):
            faults.append((function.location, f"@{function.name.value} {_narrow(target, lost)}"))
    if faults:
        raise failure(faults)


def refusal(target: Target, op: str, values: Iterable[ir.Value]) -> str:
    """Why a target cannot run an op on values of these types; "" where it can."""
    dtypes = list(_dtypes(values))
    for refused in target.refusals:
        names = op.removeprefix("gradopt.")
        if refused.ops and names not in refused.ops:
            continue
        of = [d for d in dtypes if d in refused.dtypes]
        if of or not refused.dtypes:
            in_types = f" in {of[0].name}" if of else ""
            return (
                f"'{op}' op expected a target that can run it{in_types}, got '{target.name}', "
                f"which cannot because {refused.reason}; choose another target"
                + (" or element type" if of else "")
            )
    return ""


def _dtypes(values: Iterable[ir.Value]) -> Iterator[np.dtype]:
    for value in values:
        if isinstance(value.type, ir.RankedTensorType):
            yield dtype_from_mlir(value.type.element_type)


def _outside(values: Iterable[ir.Value], known: set[ir.Type]) -> str:
    """The name of an element type that is not among those known; "" if there is none."""
    for value in values:
        if isinstance(value.type, ir.RankedTensorType) and value.type.element_type not in known:
            return dtype_from_mlir(value.type.element_type).name
    return ""


def _narrow(target: Target, dtype: str) -> str:
    names = ", ".join(d.name for d in target.dtypes)
    return (
        f"expected an element type that target '{target.name}' computes in ({names}), got {dtype}; "
        "convert the inputs first, or choose another target"
    )


# --- this machine ---------------------------------------------------------------------------------


@functools.cache
def host_features() -> list[str]:
    """The CPU features that code compiled for this machine may use."""
    try:
        with open("/proc/cpuinfo") as file:
            line = next(x for x in file if x.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        return [platform.machine(), platform.processor()]
    return [platform.machine(), *sorted(line.split(":", 1)[1].split())]


@functools.cache
def host_cpu() -> str:
    """This machine's architecture and CPU features, shortened to a digest."""
    digest = hashlib.sha256(" ".join(host_features()).encode()).hexdigest()
    return f"{platform.machine()}-{digest[:12]}"
