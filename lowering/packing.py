# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Where values lie in one arena: offsets for live ranges, so that no two that are live together
overlap and the arena is small.

First come candidates that take n log n: in the order of time, as an allocator would, and by length,
each on top of what is there. Where few enough pairs of intervals are live together, the arena is
filled from the bottom instead, each time with the interval that can lie lowest, ties by priority;
a local search then gives what reached too high a better priority. The best packing stays, and all
stops as soon as the lower bound is reached. What may be spent is counted in pairs looked at, not in
seconds, so that the same intervals always get the same offsets.

This module imports the standard library only: a compile worker loads it by its path.
"""

import bisect
import dataclasses
import heapq
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

PAIRS = 250_000
"""Most pairs of intervals live together for which the arena is filled from the bottom."""
WORK = 1_000_000
"""Pairs that are looked at in all; each packing that is begun is finished."""
TRIES = 300
"""Most packings that the local search makes."""
CLOSE, LONGER = 1.01, 10
"""How much more is spent, of both, as long as the best packing is not this close to the bound."""
PATIENCE = 20
"""Packings without a gain after which the local search goes back to the best one."""


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
        """The offsets of the best packing, and the arena's size."""
        best, least = [0] * len(self.size), -1
        for offsets in self._candidates():
            total = self._total(offsets)
            if least < 0 or total < least:
                best, least = offsets, total
            if least == self.bound:
                break
        return best, least

    def _candidates(self) -> Iterator[list[int]]:
        for key in ("length", "size"):
            for backwards in (False, True):
                yield self._in_time(backwards, self._order(key))
        yield self._on_top(self._order("length"))
        if self.pairs <= PAIRS:
            yield from self._search()

    def _order(self, key: str) -> list[int]:
        """Numbers of the intervals, those first that should get a place first."""
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

    def _in_time(self, backwards: bool, order: list[int]) -> list[int]:
        """As an allocator would, in the order of time: into the smallest gap that is large enough;
        what begins together in the order given.
        """
        first, last = self.first, self.last
        if backwards:
            first = [self.moments - 1 - t for t in self.last]
            last = [self.moments - 1 - t for t in self.first]
        offsets, gaps, dying = [0] * len(self.size), _Gaps(), []
        for i in sorted(order, key=first.__getitem__):
            while dying and dying[0][0] < first[i]:
                _, gone = heapq.heappop(dying)
                gaps.free(offsets[gone], self.size[gone])
            offsets[i] = gaps.take(self.size[i])
            heapq.heappush(dying, (last[i], i))
        return offsets

    def _on_top(self, order: list[int]) -> list[int]:
        """Each on top of what is already there in its live range."""
        skyline = _Skyline(self.moments)
        offsets = [0] * len(self.size)
        for i in order:
            offsets[i] = skyline.put(self.first[i], self.last[i], self.size[i])
        return offsets

    # --- from the bottom up ---------------------------------------------------------------------

    def _search(self) -> Iterator[list[int]]:
        """Packings from the bottom up, each with better priorities for what reached above the
        bound in the one before, at times back from the best.
        """
        near = self._neighbours()
        best: list[float] = []
        kept: list[int] = []
        least, work = -1, 0
        for key in ("size", "length", "area", "first"):
            if work > WORK:
                return
            work += 2 * self.pairs
            rank = [0.0] * len(self.size)
            for n, i in enumerate(self._order(key)):
                rank[i] = float(n)
            offsets = self._lowest_first(rank, near)
            yield offsets
            if least < 0 or self._total(offsets) < least:
                best, kept, least = rank, offsets, self._total(offsets)
        draw = random.Random(0).random
        rank, offsets, failed = list(best), kept, 0
        for tried in range(TRIES * LONGER):
            work += 2 * self.pairs
            more = LONGER if least > self.bound * CLOSE else 1
            if work > WORK * more or tried >= TRIES * more:
                return
            self._prefer(rank, offsets, least, draw)
            offsets = self._lowest_first(rank, near)
            yield offsets
            if (total := self._total(offsets)) < least:
                best, kept, least, failed = list(rank), offsets, total, 0
            elif (failed := failed + 1) % PATIENCE == 0:
                rank, offsets = list(best), kept

    def _prefer(
        self, rank: list[float], offsets: list[int], least: int, draw: Callable[[], float]
    ) -> None:
        """Move what reached the top well ahead, what reached above the bound a little."""
        count = len(rank)
        for i, (offset, size) in enumerate(zip(offsets, self.size, strict=True)):
            if offset + size >= least:
                rank[i] -= draw() * count * 0.5 + 1
            elif offset + size > self.bound:
                rank[i] -= draw() * count * 0.2

    def _lowest_first(self, rank: list[float], near: list[list[int]]) -> list[int]:
        """Each as low as what was placed before lets it lie, the lowest first, ties by rank."""
        count = len(self.size)
        floor, is_placed = [0] * count, [False] * count
        waiting = [(0, rank[i], i) for i in range(count)]
        heapq.heapify(waiting)
        while waiting:
            offset, _, i = heapq.heappop(waiting)
            if is_placed[i] or floor[i] != offset:
                continue  # it waits again, further up
            is_placed[i] = True
            top = offset + self.size[i]
            for j in near[i]:
                if not is_placed[j] and floor[j] < top:
                    floor[j] = top
                    heapq.heappush(waiting, (top, rank[j], j))
        return floor

    def _neighbours(self) -> list[list[int]]:
        """For each interval those that are live together with it."""
        near: list[list[int]] = [[] for _ in self.size]
        live: list[int] = []
        for i in sorted(range(len(self.size)), key=self.first.__getitem__):
            live = [j for j in live if self.last[j] >= self.first[i]]
            for j in live:
                near[j].append(i)
            near[i] = list(live)
            live.append(i)
        return near


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
