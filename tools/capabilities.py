# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What targets can do, and which devices are here, as tables: from what the compiler refuses by."""

from ..dialect.types import DTYPES
from ..lowering.target import Target, families
from ..runtime.present import devices, find_target, why_no_device, why_not
from .tables import Table


def capabilities_table() -> Table:
    """For each family of targets its variants and the element types that it computes in, then a
    line for each thing that it refuses.
    """
    lines: list[list[str]] = []
    for family in families().values():
        where = find_target(family.name)
        lacking = [d.name for d in DTYPES if d not in where.dtypes]
        types = f"all but {', '.join(lacking)}" if lacking else "all"
        variants = ", ".join(filter(None, family.variants))
        lines.append([family.name, variants, types, "", why_not(where) or "yes"])
        lines += [["", "", *_refused(where, i), ""] for i in range(len(where.refusals))]
    columns = ["target", "variants (the first: default)", "element types", "refused", "runs here"]
    return Table("targets", columns, lines)


def _refused(where: Target, i: int) -> list[str]:
    refusal = where.refusals[i]
    ops = ", ".join(refusal.ops) or "every op"
    return [", ".join(d.name for d in refusal.dtypes) or "all", f"{ops}: {refusal.reason}"]


def devices_table() -> Table:
    """Every device of each driver of IREE's; why there is none."""
    lines = []
    for driver, found in devices().items():
        for device in found:
            kind = "software" if device.is_software else ""
            lines.append([driver, device.name, device.path, kind])
        if not found:
            lines.append([driver, "none", "", why_no_device(driver)])
    return Table(
        f"devices; target 'auto' is '{find_target('auto').name}'",
        ["driver", "device", "path", "about"],
        lines,
    )
