# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The points of gradopt-bench --sweep: workloads at other sizes than the standard ones.

A point is written `gpt.layers=48`, with several sizes `gpt.layers=2+dim=64`, and `gpt` alone is the
workload at its standard sizes. The points that differ from these in one size make a series.
"""

import dataclasses
import functools
import inspect

from .workloads import WORKLOADS

SERIES: dict[str, dict[str, tuple[int, ...]]] = {
    "mlp": {
        "batch": (1, 16, 512, 1024),
        "width": (64, 256, 2048, 4096),
        "depth": (4, 12, 48),
    },
    "cnn": {"batch": (1, 8, 64, 128)},
    "resnet": {"batch": (1, 4, 64, 128)},
    "gpt": {
        "layers": (1, 2, 8, 16),
        "dim": (64, 128, 512),
        "tokens": (32, 512),
        "batch": (1, 16),
    },
    "lstm": {"steps": (8, 64), "hidden": (64, 512), "batch": (1, 128)},
    "recsys": {"batch": (1, 2048), "rows": (1000, 1_000_000), "dim": (8, 128)},
}
"""What a sweep measures: these, and each workload at its standard sizes."""


@functools.cache
def standard(workload: str) -> dict[str, int]:
    """The standard sizes of a workload by name."""
    given = inspect.signature(WORKLOADS[workload]).parameters.values()
    return {p.name: p.default for p in given if isinstance(p.default, int)}


@dataclasses.dataclass(frozen=True)
class Point:
    """A workload, and those sizes of it that are given."""

    workload: str
    given: tuple[tuple[str, int], ...] = ()

    @property
    def size(self) -> dict[str, int]:
        """All sizes."""
        return standard(self.workload) | dict(self.given)

    def __str__(self) -> str:
        sizes = "+".join(f"{name}={n}" for name, n in self.given)
        return f"{self.workload}.{sizes}" if sizes else self.workload


def every_point() -> list[Point]:
    """The default points: each workload, then its series."""
    found = []
    for workload, series in SERIES.items():
        found.append(Point(workload))
        found += [Point(workload, ((name, n),)) for name, values in series.items() for n in values]
    return found


def parse(text: str) -> list[Point]:
    """The points of `mlp.batch=1,gpt.layers=2+dim=64`. Raises ValueError that says what is wrong
    with which of them.
    """
    return list(dict.fromkeys(_point(word.strip()) for word in text.split(",")))


def _point(word: str) -> Point:
    workload, dot, sizes = word.partition(".")
    if workload not in WORKLOADS:
        raise ValueError(f"expected workloads out of {', '.join(WORKLOADS)}, got '{word}'")
    given = tuple(_size(word, workload, part) for part in sizes.split("+")) if dot else ()
    if len({name for name, _ in given}) < len(given):
        raise ValueError(f"expected each size once, got '{word}'")
    return Point(workload, given)


def _size(word: str, workload: str, part: str) -> tuple[str, int]:
    name, _, number = part.partition("=")
    known = standard(workload)
    if name not in known:
        raise ValueError(f"expected sizes of {workload} out of {', '.join(known)}, got '{word}'")
    if not (number.isascii() and number.isdigit()):
        raise ValueError(f"expected a whole number for {name}, got '{word}'")
    return name, int(number)


def series_of(workload: str, size: dict[str, int]) -> str | None:
    """The one size in which a point differs from the standard ones, "" where in none, None where
    it is in no series.
    """
    usual = standard(workload)
    other = [name for name, n in size.items() if usual.get(name) != n]
    return other[0] if len(other) == 1 else None if other else ""
