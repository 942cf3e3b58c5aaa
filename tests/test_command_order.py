# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The order of commands: random ones that read and write memory, run in the order found.

`python -m pytest tests/test_command_order.py` with GRADOPT_ORDERS=2000 in the environment is a long
campaign.
"""

import itertools
import os
import random
import time

import pytest
from gradopt.lowering.command_order import Commands, Value

ORDERS = int(os.environ.get("GRADOPT_ORDERS", "60"))

Use = tuple[int, bool]
"""A memory, and whether it is written."""


def drawn(seed: int) -> tuple[list[list[Use]], list[Value], list[list[int]]]:
    """Commands by what they use, the memories that are temporaries, and what each command has to
    come behind. Some memories are written in several commands, as a padded image is.
    """
    draw = random.Random(seed)
    count, memories = draw.randint(1, 40), draw.randint(1, 30)
    uses: list[list[Use]] = []
    for _ in range(count):
        chosen = draw.sample(range(memories), min(memories, draw.randint(0, 4)))
        uses.append([(m, draw.random() < 0.4) for m in chosen])
    by = [[c for c, used in enumerate(uses) if m in dict(used)] for m in range(memories)]
    values = [
        Value(draw.choice([1, 3, 10, 100]), users, draw.random() < 0.1, draw.random() < 0.1)
        for users in by
        if users and draw.random() < 0.8
    ]
    before: list[list[int]] = [
        [
            earlier
            for earlier in range(later)
            if any(m == n and (w or v) for m, w in uses[earlier] for n, v in uses[later])
        ]
        for later in range(count)
    ]
    return uses, values, before


def run(uses: list[list[Use]], order: list[int]) -> tuple[dict[int, int], dict[int, int]]:
    """What a run leaves in each memory, and what each command has seen: digests of all before."""
    memory: dict[int, int] = {}
    seen: dict[int, int] = {}
    for command in order:
        seen[command] = hash((command, *(memory.get(m, 0) for m, _ in uses[command])))
        memory.update((m, hash((m, seen[command]))) for m, writes in uses[command] if writes)
    return memory, seen


def peak(groups: list[list[int]], values: list[Value]) -> int:
    """The most bytes alive while a group runs, its commands side by side."""
    place = {c: i for i, group in enumerate(groups) for c in group}
    live = [0] * len(groups)
    for value in values:
        first = 0 if value.enters else min(place[c] for c in value.users)
        last = len(groups) - 1 if value.leaves else max(place[c] for c in value.users)
        for i in range(first, last + 1):
            live[i] += value.size
    return max(live, default=0)


@pytest.mark.parametrize("seed", range(ORDERS))
def test_random_commands(seed: int) -> None:
    """B09: every command sees what it saw in the given order, the peak is what is said and never
    higher than it was, and what runs side by side depends on nothing that runs with it.
    """
    uses, values, before = drawn(seed)
    commands, given = Commands(before, values), list(range(len(uses)))
    found = commands.lowest(given)
    assert run(uses, found) == run(uses, given)
    assert commands.peak(found) == peak([[c] for c in found], values)
    assert commands.peak(found) <= commands.peak(given)
    assert found == Commands(before, values).lowest(given)
    for limit in (commands.peak(found), 2 * commands.peak(found)):
        groups = commands.side_by_side(found, limit)
        assert list(itertools.chain.from_iterable(groups)) == found
        assert peak(groups, values) <= limit
        for group in groups:
            assert not any(set(before[c]) & set(group) for c in group)


def test_what_waits_is_made_late() -> None:
    """Ten values made at the start and read one by one need the memory of one."""
    made = [Value(100, [i, 10 + i]) for i in range(10)]
    before = [[] for _ in range(10)] + [[i] + [9 + i] * (i > 0) for i in range(10)]
    commands = Commands(before, made)
    assert commands.peak(range(20)) == 1000
    assert commands.peak(commands.lowest(range(20))) == 100


def test_time_is_bounded() -> None:
    """20,000 commands, each with a value that waits: the search ends by its count."""
    count = 10_000
    values = [Value(64 + i % 7, [i, 2 * count - 1 - i]) for i in range(count)]
    before = [[] for _ in range(count)] + [[2 * count - 1 - i] for i in range(count, 2 * count)]
    start = time.process_time()
    commands = Commands(before, values)
    found = commands.lowest(range(2 * count))
    assert commands.peak(found) < commands.peak(range(2 * count))
    assert time.process_time() - start < 30
