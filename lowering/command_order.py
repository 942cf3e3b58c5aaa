# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The order of commands that needs the least memory found, and which of them may run side by side.

The search starts from the given order and looks at its peak. What was made before it and is not
read until after it is made later, and what frees memory after it is done earlier, each with what
has to come along; the move that lowers the peak is made, until none does. A move is judged by the
stretch of commands that it touches, and how much is looked at is bounded by a count, never by a
clock, so that the same commands always get the same order.

This module imports the standard library only: a compile worker loads it by its path.
"""

import dataclasses
from collections.abc import Iterator, Sequence

CANDIDATES = 64
"""Commands on each side of the peak that are tried, those of the most bytes first."""
WORK = 3_000_000
"""Uses of values that are looked at in all."""

Height = tuple[int, int]
"""The most bytes alive at a command, and at how many commands."""


@dataclasses.dataclass(frozen=True)
class Value:
    """Memory that some of the commands use: they are in `users`, each once. One that `enters` is
    there before the first command, one that `leaves` is needed after the last.
    """

    size: int
    users: Sequence[int]
    enters: bool = False
    leaves: bool = False


class Commands:
    """Commands by number, those that have to come before each, and the values that they use."""

    def __init__(self, before: Sequence[Sequence[int]], values: Sequence[Value]) -> None:
        self.before = before
        self.after: list[list[int]] = [[] for _ in before]
        for command, earlier in enumerate(before):
            for other in earlier:
                self.after[other].append(command)
        self.values = values
        self.used: list[list[int]] = [[] for _ in before]
        for number, value in enumerate(values):
            for command in value.users:
                self.used[command].append(number)

    def peak(self, order: Sequence[int]) -> int:
        """The most bytes alive at a command of an order."""
        return _Line(self, order).height[0]

    def lowest(self, order: Sequence[int], work: int = WORK) -> list[int]:
        """The order with the lowest peak that is found from a given one."""
        line, left = _Line(self, order), work
        while left > 0:
            best, place, lower = line.height, 0, list[int]()
            for start, stretch in line.moves():
                if (height := line.height_with(start, stretch)) < best:
                    best, place, lower = height, start, stretch
                left -= sum(len(self.used[c]) + len(self.before[c]) for c in stretch)
                if left <= 0:
                    break
            if not lower:
                break
            line = _Line(self, [*line.order[:place], *lower, *line.order[place + len(lower) :]])
        return line.order

    def side_by_side(self, order: Sequence[int], limit: int) -> list[list[int]]:
        """An order in groups: neighbours that do not depend on each other, as many as need no more
        bytes together than `limit`.
        """
        line = _Line(self, order)
        groups: list[list[int]] = []
        members: set[int] = set()
        needed = 0
        for place, command in enumerate(line.order):
            made = sum(self.values[v].size for v in line.made[place])
            fits = needed + made <= limit and members.isdisjoint(self.before[command])
            if groups and fits:
                groups[-1].append(command)
                needed += made
            else:
                groups.append([command])
                members = set()
                needed = line.live[place]
            members.add(command)
        return groups


class _Line:
    """An order of commands with the bytes alive at each place."""

    def __init__(self, commands: Commands, order: Sequence[int]) -> None:
        self.commands, self.order = commands, list(order)
        count, values = len(self.order), commands.values
        self.place = [0] * count
        for i, command in enumerate(self.order):
            self.place[command] = i
        self.first = [-1 if v.enters else min(self.place[u] for u in v.users) for v in values]
        self.last = [count if v.leaves else max(self.place[u] for u in v.users) for v in values]
        self.made: list[list[int]] = [[] for _ in self.order]
        self.freed: list[list[int]] = [[] for _ in self.order]
        now = 0
        for v, value in enumerate(values):
            if self.first[v] < 0:
                now += value.size
            else:
                self.made[self.first[v]].append(v)
            if self.last[v] < count:
                self.freed[self.last[v]].append(v)
        self.start: list[int] = []  # alive right before each command
        self.live: list[int] = []
        for made, freed in zip(self.made, self.freed, strict=True):
            self.start.append(now)
            now += sum(values[v].size for v in made)
            self.live.append(now)
            now -= sum(values[v].size for v in freed)
        self.height = _height(self.live)
        self._left = [(0, 0)]  # the height of what stands before each place
        for bytes_ in self.live:
            self._left.append(_higher(self._left[-1], (bytes_, 1)))
        self._right = [(0, 0)]
        for bytes_ in reversed(self.live):
            self._right.append(_higher(self._right[-1], (bytes_, 1)))
        self._right.reverse()

    def moves(self) -> Iterator[tuple[int, list[int]]]:
        """Other orders of a stretch around the peak: where it starts, and its commands."""
        peak = self.live.index(self.height[0])
        makers = self._largest(range(peak), self.made)
        for i in makers:
            if (later := self._with_readers(i, peak)) is not None:
                stretch = self.order[i : peak + 1]
                yield i, [c for c in stretch if c not in later] + [c for c in stretch if c in later]
        for j in self._largest(range(peak + 1, len(self.order)), self.freed):
            if (sooner := self._with_makers(j, peak)) is not None:
                stretch = self.order[peak : j + 1]
                moved = [c for c in stretch if c in sooner]
                yield peak, moved + [c for c in stretch if c not in sooner]

    def _largest(self, places: range, values: list[list[int]]) -> list[int]:
        """The places with the most bytes of values, near the peak first where they are equal."""
        peak = places.stop if places.start == 0 else places.start
        size = {i: sum(self.commands.values[v].size for v in values[i]) for i in places}
        found = [i for i in places if size[i]]
        return sorted(found, key=lambda i: (-size[i], abs(i - peak)))[:CANDIDATES]

    def _with_readers(self, place: int, peak: int) -> set[int] | None:
        """A command and all up to the peak that have to come behind it; None if the one at the peak
        has to.
        """
        found = {self.order[place]}
        for command in self.order[place + 1 : peak + 1]:
            if not found.isdisjoint(self.commands.before[command]):
                found.add(command)
        return None if self.order[peak] in found else found

    def _with_makers(self, place: int, peak: int) -> set[int] | None:
        """A command and all from the peak on that have to come before it; None if the one at the
        peak has to.
        """
        found = {self.order[place]}
        for command in reversed(self.order[peak:place]):
            if not found.isdisjoint(self.commands.after[command]):
                found.add(command)
        return None if self.order[peak] in found else found

    def height_with(self, start: int, stretch: list[int]) -> Height:
        """The height with the commands from `start` on in the order of `stretch`."""
        end = start + len(stretch)
        used, values = self.commands.used, self.commands.values
        left: dict[int, int] = {}
        for command in stretch:
            for v in used[command]:
                left[v] = left.get(v, 0) + 1
        there = {v for v in left if self.first[v] < start}
        now, live = self.start[start], []
        for command in stretch:
            for v in used[command]:
                if v not in there:
                    there.add(v)
                    now += values[v].size
            live.append(now)
            for v in used[command]:
                left[v] -= 1
                if not left[v] and self.last[v] < end:
                    now -= values[v].size
        return _higher(_higher(self._left[start], _height(live)), self._right[end])


def _height(live: list[int]) -> Height:
    most = max(live, default=0)
    return most, live.count(most)


def _higher(a: Height, b: Height) -> Height:
    """The height of two stretches together."""
    return (a[0], a[1] + b[1]) if a[0] == b[0] else max(a, b)
