# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Why a call was a miss: what changed between its signature and the nearest earlier one of the same
compiled function.
"""

import collections
import dataclasses
import functools
import re
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from .cache import COMPILED, DISK, MEMORY, disk_store
from .signature import Signature, digest

REMEMBERED = 128
"""Signatures that a compiled function remembers, to compare with."""
RECENT = 64
"""Misses that the process remembers."""
GRAPH = "graph"
NOTHING = "none"
"""How a part is shown that one of two signatures does not have."""
WIDTH = 72

OUTCOME = {
    COMPILED: "compiled in {0:.2f} s",
    DISK: "found on disk in {0:.2f} s",
    MEMORY: "found in this process's memory",
}


COMPARED = {
    "call": "the nearest earlier signature of the function",
    "code": "the nearest earlier signature of a function compiled from the same code",
    "disk": "the nearest entry on disk for the same code",
}
"""What a miss can be compared with, the first that there is."""


@dataclasses.dataclass(frozen=True)
class Change:
    """A part of a signature that changed; None where it was, or is, not there."""

    part: str
    before: Any
    now: Any

    def __str__(self) -> str:
        before, now = _shown(self.before), _shown(self.now)
        if max(len(before), len(now)) > WIDTH:
            before, now = _around_the_difference(before, now)
        return f"{self.part}: was {before}, is {now}"


@dataclasses.dataclass(frozen=True)
class Miss:
    """A signature that a compiled function had not been called with: where its module came from
    (`source`: "compiled", "disk" or "memory"), after how many seconds, why the disk did not have it
    (`disk`; "" where it did, or was not asked), and what changed.

    `compared` says what `changes` are relative to, a key of COMPARED; "" where there is nothing.
    """

    signature: Signature = dataclasses.field(repr=False)
    source: str
    disk: str
    seconds: float
    when: float
    nearest: Signature | None = dataclasses.field(repr=False)
    whose: str = ""

    @property
    def name(self) -> str:
        return self.signature.name

    @property
    def key(self) -> str:
        return self.signature.key

    @property
    def compared(self) -> str:
        return self._compared[0]

    @property
    def changes(self) -> tuple[Change, ...]:
        """The parts that changed; empty where nothing is compared, or all parts are equal."""
        return self._compared[1]

    @functools.cached_property
    def _compared(self) -> tuple[str, tuple[Change, ...]]:
        if self.nearest is not None:
            return self.whose, changes(self.nearest, self.signature)
        if self.source == COMPILED and (found := _nearest_on_disk(self.signature, self.when)):
            return "disk", changes(found, self.signature)
        return "", ()

    def __str__(self) -> str:
        outcome = OUTCOME[self.source].format(self.seconds)
        lines = [f"'{self.name}' ({self.signature.origin}), key {self.key[:12]}: {outcome}"]
        if self.disk:
            lines.append(f"  the disk cache: {self.disk}")
        return "\n".join(lines + [f"  {line}" for line in self._reasons()])

    def _reasons(self) -> list[str]:
        if not self.compared:
            return ["this is the first signature of the function"]
        other = COMPARED[self.compared]
        if not self.changes:
            shares = "whose module it shares" if self.compared == "code" else "which was dropped"
            return [f"equal to {other}, {shares}"]
        return [f"compared with {other}:", *(f"  {change}" for change in self.changes)]


class History:
    """The signatures that one compiled function had, and its latest miss. `origin` says whose they
    are (signature.origin_of).
    """

    def __init__(self, origin: str = "") -> None:
        self.origin = origin
        self._earlier: collections.OrderedDict[str, Signature] = collections.OrderedDict()
        self._lock = threading.Lock()
        self.latest: Miss | None = None

    def add(self, signature: Signature, source: str, disk: str, seconds: float) -> Miss:
        """Note a miss."""
        with self._lock:
            whose, nearest = "call", _nearest(self._earlier.values(), signature)
            if nearest is None:
                others = [m.signature for m in list(_misses)]
                same = [s for s in others if s.origin == signature.origin]
                whose, nearest = "code", _nearest(same, signature)
            miss = Miss(signature, source, disk, seconds, time.time(), nearest, whose)
            name = digest(signature.described)
            self._earlier[name] = signature
            self._earlier.move_to_end(name)
            if len(self._earlier) > REMEMBERED:
                self._earlier.popitem(last=False)
            self.latest = miss
        _misses.append(miss)
        return miss


_misses: collections.deque[Miss] = collections.deque(maxlen=RECENT)


def why() -> list[Miss]:
    """The latest 64 misses of all compiled functions, oldest first; printed, each says what changed
    in the signature. `CachedFunction.why()` is the latest of one function.
    """
    return list(_misses)


def _nearest(earlier: Iterable[Signature], signature: Signature) -> Signature | None:
    """The signature with the fewest parts that differ, of those of the same graph (a function has
    others for its forward and backward), if there are any; of several, the latest.
    """
    parts = signature.described
    return min(
        reversed(list(earlier)),
        key=lambda s: (s.name != signature.name, len(_differ(s.described, parts))),
        default=None,
    )


def _nearest_on_disk(signature: Signature, when: float) -> Signature | None:
    """The nearest signature of the same origin that was on disk at a time."""
    found = []
    for entry in disk_store().entries():
        about = entry.about()
        if (
            entry.key != signature.key
            and about.get("origin") == signature.origin
            and about.get("made", 0) < when * 1e9
        ):
            parts, notes = about.get("parts", {}), about.get("notes", {})
            found.append((about["made"], Signature(about.get("name", ""), parts, notes)))
    return _nearest((s for _, s in sorted(found, key=lambda pair: pair[0])), signature)


def _differ(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    names = [*now, *(name for name in before if name not in now)]
    return [n for n in names if before.get(n) != now.get(n)]


def changes(before: Signature, now: Signature) -> tuple[Change, ...]:
    """What changed from one signature to another. A graph that differs is left out where its ops
    are the same and other parts say why it does.
    """
    old, new = before.described, now.described
    names = _differ(old, new)
    causes = [n for n in names if n != GRAPH]
    found = [Change(n, old.get(n), new.get(n)) for n in causes]
    if GRAPH in names:
        difference = _graph_difference(before.text, now.text, bool(causes))
        if difference is None and not causes:
            difference = tuple(f"content {str(p.get(GRAPH))[:12]}" for p in (old, new))
        if difference is not None:
            found.append(Change(GRAPH, *difference))
    return tuple(found)


OP = re.compile(r'^\s*(?:%[^=]*= )?"?([A-Za-z_][\w.]*\.[\w.]+|call|return)"?')


def _graph_difference(before: str, now: str, only_ops: bool) -> tuple[str, ...] | None:
    """The first op that differs, or else, unless only ops count, the first line; None if none does,
    or a text is not known.
    """
    if not before or not now:
        return None
    old, new = _ops(before), _ops(now)
    for i in range(max(len(old), len(new))):
        a, b = (ops[i] if i < len(ops) else "no more ops" for ops in (old, new))
        if a != b:
            return f"{a} (op {i})", f"{b} (op {i})"
    if only_ops:
        return None
    for a, b in zip(before.splitlines(), now.splitlines(), strict=False):
        if a != b:
            return a.strip(), b.strip()
    return None


def _ops(text: str) -> list[str]:
    found = (match[1] for line in text.splitlines() if (match := OP.match(line)))
    return [name for name in found if name != "func.func"]


def _shown(value: Any) -> str:
    if value is None:
        return NOTHING
    if isinstance(value, (list, tuple)):
        shown = (_shown(v) for v in value)
        return " ".join(v for v in shown if v != NOTHING) or NOTHING
    return str(value) or NOTHING


def _around_the_difference(before: str, now: str) -> tuple[str, str]:
    """The stretches of two texts around the first place where they differ."""
    pairs = enumerate(zip(before, now, strict=False))
    same = next((i for i, (a, b) in pairs if a != b), min(len(before), len(now)))
    start = max(same - WIDTH // 3, 0)

    def cut(text: str) -> str:
        front, back = "..." if start else "", "..." if len(text) > start + WIDTH else ""
        return f"{front}{text[start : start + WIDTH]}{back}"

    return cut(before), cut(now)
