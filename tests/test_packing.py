# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Packing of live ranges: nothing overlaps, nothing is wasted, nothing depends on luck.

With GRADOPT_PACKINGS=1000 in the environment 1,000 random sets are packed, and 10,000 and 100,000
intervals, whose times are printed with -s.
"""

import copy
import heapq
import os
import random
import time
from typing import Any
from unittest import mock

import pytest
from gradopt.lowering import packing
from gradopt.lowering.packing import Interval, lower_bound, pack
from hypothesis import given, settings
from hypothesis import strategies as st

COUNT = int(os.environ.get("GRADOPT_PACKINGS", "40"))
IS_CAMPAIGN = "GRADOPT_PACKINGS" in os.environ

INTERVALS = st.lists(
    st.builds(
        lambda size, first, length: Interval(size, first, first + length),
        st.integers(0, 3000),
        st.integers(0, 30),
        st.integers(0, 15),
    ),
    max_size=25,
)


def overlaps(intervals: list[Interval]) -> list[tuple[Interval, Interval]]:
    """Pairs that share bytes at a time at which both are live."""
    found, live = [], []
    for new in sorted((i for i in intervals if i.size), key=lambda i: i.first):
        live = [i for i in live if i.last >= new.first]
        end = new.offset + new.size
        found += [(i, new) for i in live if i.offset < end and new.offset < i.offset + i.size]
        live.append(new)
    return found


@settings(max_examples=150, deadline=None, derandomize=True)
@given(INTERVALS, st.sampled_from([1, 16, 64]))
def test_packings_are_valid(intervals: list[Interval], alignment: int) -> None:
    """B09: no overlap, aligned, inside the arena, never below the bound, the same every time."""
    again = copy.deepcopy(intervals)
    total = pack(intervals, alignment)
    assert not overlaps(intervals)
    assert all(i.offset % alignment == 0 and i.offset >= 0 for i in intervals)
    assert total == max(
        (i.offset + -(-i.size // alignment) * alignment for i in intervals), default=0
    )
    moments = {i.first for i in intervals}
    most = max(
        (
            sum(-(-i.size // alignment) * alignment for i in intervals if i.first <= t <= i.last)
            for t in moments
        ),
        default=0,
    )
    assert lower_bound(intervals, alignment) == most <= total
    pack(again, alignment)
    assert intervals == again


def test_moments_can_be_tuples() -> None:
    """Times are anything with an order; live ranges are closed at both ends."""
    a, b = Interval(64, (0, 0), (0, 3)), Interval(64, (0, 3), (1, 0))
    assert pack([a, b]) == 128  # both are live at (0, 3)
    b.first = (0, 4)
    assert pack([a, b]) == 64


def test_nothing_takes_nothing() -> None:
    assert pack([]) == lower_bound([]) == 0
    empty = Interval(0, 0, 5)
    assert pack([empty, Interval(1, 0, 5)]) == 64
    assert empty.offset == 0
    with pytest.raises(ValueError, match="a live range"):
        pack([Interval(1, 3, 2)])


def random_intervals(count: int, seed: int) -> list[Interval]:
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        first = draw.randrange(count)
        length = int(draw.expovariate(10 / count))
        found.append(Interval(draw.randint(64, 4096), first, min(count - 1, first + length)))
    return found


def test_random_sets_are_near_the_bound() -> None:
    """At most 1.02 times the bound for 95% of random sets, live ranges of any length."""
    ratios = []
    for seed in range(COUNT):
        intervals = random_intervals(random.Random(seed).choice([5, 10, 20, 50, 100]), seed)
        ratios.append(pack(intervals) / lower_bound(intervals))
        assert not overlaps(intervals)
    good = sum(r <= 1.02 for r in ratios) / len(ratios)
    exact = sum(r == 1 for r in ratios) / len(ratios)
    print(f"\n{COUNT} sets: {good:.1%} within 1.02, {exact:.1%} at the bound, {max(ratios):.4f}")
    assert good >= 0.95


def training_step(count: int) -> list[Interval]:
    """Residuals nested like those of a chain of layers, cotangents, and gradients to the end."""
    draw = random.Random(count)
    sizes = [[draw.randrange(64, 1 << 16) for _ in range(5)] for _ in range(7)]
    found, end = [], 2 * count
    for layer in range(count // 5):
        begin, size = 5 * layer, sizes[layer % 7]
        back = end - begin
        found += [
            Interval(size[0], begin, back),
            Interval(size[1], begin + 1, back - 1),
            Interval(size[2], begin + 1, begin + 2),
            Interval(size[3], back - 2, back),
            Interval(size[4], back - 1, min(back + draw.randrange(30), end)),
        ]
    return found


def work(intervals: list[Interval]) -> int:
    """How many times something is put into a sorted structure."""
    count = 0

    def counted(original: Any) -> Any:
        def call(*arguments: Any) -> Any:
            nonlocal count
            count += 1
            return original(*arguments)

        return call

    with (
        mock.patch.object(packing.heapq, "heappush", counted(heapq.heappush)),
        mock.patch.object(packing._Skyline, "put", counted(packing._Skyline.put)),
        mock.patch.object(packing._Gaps, "_add", counted(packing._Gaps._add)),
    ):
        pack(intervals)
    return count


@pytest.mark.parametrize("make", [training_step, lambda n: random_intervals(n, 1)])
def test_work_is_linear_in_sorted_structures(make: Any) -> None:
    """n log n: ten times the intervals take ten times the operations, each of which is
    logarithmic.
    """
    small, large = (work(make(n)) for n in (2_000, 20_000))
    assert large <= 13 * small


@pytest.mark.skipif(not IS_CAMPAIGN, reason="prints times")
@pytest.mark.parametrize("count", [10_000, 100_000])
def test_times(count: int) -> None:
    """How long large sets take."""
    for name, intervals in (
        ("training step", training_step(count)),
        ("random", random_intervals(count, 1)),
    ):
        start = time.process_time()
        ratio = pack(intervals) / lower_bound(intervals)
        print(f"\n{count} intervals of a {name}: {time.process_time() - start:.2f} s, {ratio:.4f}")
        assert ratio < 1.1
