# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Where values lie in one arena: offsets for live ranges, so that no two that are live together
overlap and the arena is small.

Every candidate is an order of the intervals and a rule that places one after the other; the best of
them stays. First come candidates that take n log n; where few enough pairs of intervals are live
together, rules that look at all such pairs follow, and at last a local search on their orders. What
may be spent is counted in pairs looked at, not in seconds, so that the same intervals always get
the same offsets. It stops as soon as the lower bound is reached.

This module imports the standard library only: a compile worker loads it by its path.
"""

import bisect
import dataclasses
import heapq
from collections.abc import Callable, Sequence
from typing import Any

PAIRS = 600_000
"""Most pairs of intervals live together for which rules that look at each are used."""
WORK = 6_000_000
"""Pairs that are looked at in all, unless the bound is reached before."""
TRIES = 400
"""Most orders that the local search tries."""


@dataclasses.dataclass
class Interval:
    """`size` bytes, live from `first` to `last`, both included: numbers, or tuples, of any one
    order. `offset` is where it lies, -1 until it is packed.
    """

    size: int
    first: Any
    last: Any
    offset: int = -1


def lower_bound(intervals: Sequence[Interval], alignment: int = 64) -> int:
    """The largest sum of bytes live at one time, sizes rounded up to the alignment: no packing can
    do better.
    """
    return _Problem(intervals, alignment).bound


def pack(intervals: Sequence[Interval], alignment: int = 64) -> int:
    """Give every interval an offset, a multiple of the alignment; return the bytes of the arena."""
    problem = _Problem(intervals, alignment)
    offsets, total = problem.solve()
    for interval in intervals:
        interval.offset = 0
    for interval, offset in zip(problem.intervals, offsets, strict=True):
        interval.offset = offset
    return total


class _Problem:
    """The intervals that take bytes, times as numbers 0, 1, ..., sizes rounded up."""

    def __init__(self, intervals: Sequence[Interval], alignment: int) -> None:
        for i in intervals:
            if i.size < 0 or i.last < i.first:
                raise ValueError(f"expected bytes and a live range, got {i}")
        self.intervals = [i for i in intervals if i.size]
        moments = sorted({t for i in self.intervals for t in (i.first, i.last)})
        rank = {t: n for n, t in enumerate(moments)}
        self.moments = len(moments)
        self.size = [-(-i.size // alignment) * alignment for i in self.intervals]
        self.first = [rank[i.first] for i in self.intervals]
        self.last = [rank[i.last] for i in self.intervals]
        self.bound, self.pairs = self._sweep()
        self.work = 0

    def _sweep(self) -> tuple[int, int]:
        """The lower bound, and how many pairs are live together."""
        grown, begun, ended = ([0] * (self.moments + 1) for _ in range(3))
        for size, first, last in zip(self.size, self.first, self.last, strict=True):
            grown[first] += size
            grown[last + 1] -= size
            begun[first] += 1
            ended[last + 1] += 1
        live = most = count = pairs = 0
        for t in range(self.moments):
            live += grown[t]
            most = max(most, live)
            count -= ended[t]
            pairs += count * begun[t] + begun[t] * (begun[t] - 1) // 2
            count += begun[t]
        return most, pairs

    # --- the candidates -------------------------------------------------------------------------

    def solve(self) -> tuple[list[int], int]:
        """The offsets of the best candidate, and the arena's size."""
        best, least = self._heights(self._order("length")), 0
        least = self._total(best)
        for candidate in self._candidates():
            if least == self.bound:
                break
            offsets = candidate()
            if (total := self._total(offsets)) < least:
                best, least = offsets, total
        if least > self.bound and self.pairs <= PAIRS:
            best, least = self._search(best, least)
        return best, least

    def _candidates(self) -> list[Callable[[], list[int]]]:
        def line(backwards: bool, key: str) -> Callable[[], list[int]]:
            return lambda: self._in_time(backwards, key)

        def gaps(key: str) -> Callable[[], list[int]]:
            return lambda: self._into_gaps(self._order(key))

        def heights(key: str) -> Callable[[], list[int]]:
            return lambda: self._heights(self._order(key))

        found = [line(b, key) for key in ("length", "size") for b in (False, True)]
        found += [heights("size"), heights("area")]
        if self.pairs <= PAIRS:
            found += [gaps(key) for key in ("size", "area", "length", "first")]
        return found

    def _order(self, key: str) -> list[int]:
        size, first, last = self.size, self.first, self.last
        keys: dict[str, Callable[[int], Any]] = {
            "size": lambda i: (-size[i], first[i] - last[i], first[i], i),
            "length": lambda i: (first[i] - last[i], -size[i], first[i], i),
            "area": lambda i: (-size[i] * (last[i] - first[i] + 1), first[i], i),
            "first": lambda i: (first[i], -size[i], i),
        }
        return sorted(range(len(size)), key=keys[key])

    def _total(self, offsets: list[int]) -> int:
        return max((o + s for o, s in zip(offsets, self.size, strict=True)), default=0)

    def _in_time(self, backwards: bool, key: str) -> list[int]:
        """As an allocator would, in the order of time: into the smallest gap that is large
        enough.
        """
        first, last = self.first, self.last
        if backwards:
            first = [self.moments - 1 - t for t in self.last]
            last = [self.moments - 1 - t for t in self.first]
        size = self.size
        by_length = key == "length"
        order = sorted(
            range(len(size)),
            key=lambda i: (first[i], -last[i] if by_length else 0, -size[i], i),
        )
        offsets, gaps, dying = [0] * len(size), _Gaps(), []
        for i in order:
            while dying and dying[0][0] < first[i]:
                _, gone = heapq.heappop(dying)
                gaps.free(offsets[gone], size[gone])
            offsets[i] = gaps.take(size[i])
            heapq.heappush(dying, (last[i], i))
        return offsets

    def _heights(self, order: list[int]) -> list[int]:
        """Each on top of what is already there in its live range."""
        skyline = _Skyline(self.moments)
        offsets = [0] * len(self.size)
        for i in order:
            offsets[i] = skyline.put(self.first[i], self.last[i], self.size[i])
        return offsets

    def _into_gaps(self, order: Sequence[int]) -> list[int]:
        """Each into the smallest gap that those already there leave it, else the lowest."""
        offsets = [-1] * len(self.size)
        size, neighbours = self.size, self._neighbours()
        for i in order:
            near = neighbours[i]
            self.work += len(near)
            taken = sorted([(offsets[j], size[j]) for j in near if offsets[j] >= 0])
            wanted, top, best, room = size[i], 0, -1, 0
            for offset, length in taken:
                gap = offset - top
                if gap >= wanted and (best < 0 or gap < room):
                    best, room = top, gap
                if offset + length > top:
                    top = offset + length
            offsets[i] = best if best >= 0 else top
        return offsets

    def _neighbours(self) -> list[list[int]]:
        """For each interval those that are live together with it."""
        if not hasattr(self, "_near"):
            near: list[list[int]] = [[] for _ in self.size]
            live: list[int] = []
            for i in sorted(range(len(self.size)), key=self.first.__getitem__):
                live = [j for j in live if self.last[j] >= self.first[i]]
                for j in live:
                    near[j].append(i)
                near[i] = list(live)
                live.append(i)
            self._near = near
        return self._near

    # --- local search ---------------------------------------------------------------------------

    def _search(self, best: list[int], least: int) -> tuple[list[int], int]:
        """Orders in which what reaches the top comes earlier, one after the other, as long as work
        is left.
        """
        order = sorted(range(len(self.size)), key=lambda i: (best[i], -self.size[i], i))
        for _ in range(TRIES):
            if least == self.bound or self.work >= WORK:
                break
            order = self._raised(order, best)
            offsets = self._into_gaps(order)
            if (total := self._total(offsets)) < least:
                best, least = offsets, total
        return best, least

    def _raised(self, order: list[int], offsets: list[int]) -> list[int]:
        top = max(range(len(order)), key=lambda i: (offsets[i] + self.size[i], i))
        place = order.index(top)
        return [top, *order[:place], *order[place + 1 :]]


class _Gaps:
    """The free bytes of an arena that grows: gaps by address and by size."""

    def __init__(self) -> None:
        self.top = 0
        self.starts: list[int] = []
        self.room: dict[int, int] = {}  # start -> bytes
        self.sizes: list[tuple[int, int]] = []  # (bytes, start)

    def take(self, size: int) -> int:
        place = bisect.bisect_left(self.sizes, (size, -1))
        if place < len(self.sizes):
            room, start = self.sizes[place]
            self._remove(start, room)
            if room > size:
                self._add(start + size, room - size)
            return start
        start = self.top
        if self.starts and (last := self.starts[-1]) + self.room[last] == self.top:
            start = last
            self._remove(start, self.room[start])
        self.top = start + size
        return start

    def free(self, start: int, size: int) -> None:
        place = bisect.bisect_left(self.starts, start)
        after = self.starts[place] if place < len(self.starts) else -1
        before = self.starts[place - 1] if place else -1
        if after == start + size:
            size += self.room[after]
            self._remove(after, self.room[after])
        if before >= 0 and before + self.room[before] == start:
            start, size = before, size + self.room[before]
            self._remove(before, self.room[before])
        self._add(start, size)

    def _add(self, start: int, room: int) -> None:
        bisect.insort(self.starts, start)
        bisect.insort(self.sizes, (room, start))
        self.room[start] = room

    def _remove(self, start: int, room: int) -> None:
        self.starts.pop(bisect.bisect_left(self.starts, start))
        self.sizes.pop(bisect.bisect_left(self.sizes, (room, start)))
        del self.room[start]


class _Skyline:
    """How high the arena is filled at each moment: a segment tree of the largest heights."""

    def __init__(self, moments: int) -> None:
        self.leaves = 1 << max(moments - 1, 0).bit_length()
        self.most = [0] * (2 * self.leaves)  # largest height in the node's range
        self.all = [0] * (2 * self.leaves)  # a height that the whole range is at least filled to

    def put(self, first: int, last: int, size: int) -> int:
        """Fill [first, last] `size` bytes higher than its highest place, which is returned."""
        low = self._highest(first, last)
        self._fill(first, last, low + size)
        return low

    def _highest(self, first: int, last: int) -> int:
        left, right = first + self.leaves, last + self.leaves
        found = 0
        ends = left, right
        while left <= right:
            if left & 1:
                found = max(found, self.most[left])
                left += 1
            if not right & 1:
                found = max(found, self.most[right])
                right -= 1
            left, right = left >> 1, right >> 1
        for node in ends:
            while node := node >> 1:
                found = max(found, self.all[node])
        return found

    def _fill(self, first: int, last: int, height: int) -> None:
        left, right = first + self.leaves, last + self.leaves
        ends = left, right
        while left <= right:
            if left & 1:
                self.all[left] = self.most[left] = height
                left += 1
            if not right & 1:
                self.all[right] = self.most[right] = height
                right -= 1
            left, right = left >> 1, right >> 1
        for node in ends:
            while node := node >> 1:
                self.most[node] = max(self.most[node], height)
