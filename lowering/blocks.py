# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Sums of products computed in blocks that stay in vector registers, with operands read where they
lie: which loops they have, which blocks fit, and where that is faster than to pack the operands.

A block is some rows, each an element of lhs for all of them, times some vectors of columns, which
lie side by side in rhs: for each step of the sum a few vectors are loaded and every row's element
is multiplied by them, into as many sums as there are registers to spare.

Measured on IREE 3.13 and one Zen 4 core (GF/s of 115 at most), packed by IREE first, and so:
128x784 times 784x1024 105, 113; 512x256 times 256x1024 107, 111; 8x1024 times 1024x1024 39, 108;
16384x32 times 32x32 18, 104; the weight gradient of a 3x3 convolution of 16x32x32x32 71, 114.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

VECTOR_BITS = 512
"""Vectors that this is for: narrower ones come with half the registers."""
SUMS = 16
"""Most vectors of sums of a block, of 32 registers."""
LEAST_SUMS = 6
"""Fewer cannot keep the multipliers busy: each has to wait for the one before in its sum."""
PANEL, PANELS = 1 << 20, 1 << 19
"""Most elements of an operand that is walked down its columns, and of each where both are: beyond,
lines that are read again have left the caches, as those of 2048x2048 (50, packed 71).
"""
FEW_ROWS = 64
"""So few rows read the other side so few times that to pack it does not pay at any size."""
SIDE = 64
"""Most rows and columns that a workgroup computes, where it does not compute all others too."""
LEAST_WORK, MOST_WORK = 1 << 16, 1 << 22
"""Products of a workgroup: about 1 and 70 microseconds."""
LEAST_GROUPS = 16
"""Workgroups that are left to be shared out, where their work allows it."""


@dataclasses.dataclass(frozen=True)
class Nest:
    """Loops over out[...] += lhs[...] * rhs[...]: their extents, and for each tensor the loops that
    index its axes.
    """

    extents: tuple[int, ...]
    lhs: tuple[int, ...]
    rhs: tuple[int, ...]
    out: tuple[int, ...]

    @property
    def shapes(self) -> list[list[int]]:
        """The shapes of lhs, rhs and out."""
        return [[self.extents[i] for i in loops] for loops in (self.lhs, self.rhs, self.out)]

    @property
    def reduced(self) -> list[int]:
        """The loops of the sum."""
        return [i for i in range(len(self.extents)) if i not in self.out]

    @property
    def products(self) -> int:
        """How many products there are."""
        return math.prod(self.extents)

    def in_panels(self, width: int) -> "Nest":
        """With rhs as panels of `width` columns, one after the other."""
        columns, panel = self.out[-1], len(self.extents)
        extents = [*self.extents, self.extents[columns] // width]
        extents[columns] = width
        out = (*self.out[:-1], panel, columns)
        return Nest(tuple(extents), self.lhs, (panel, *self.rhs), out)

    def simplified(self, are_views: bool = False) -> "Nest":
        """Without loops of one step, and with those merged that are neighbours in every tensor that
        has them, unless tensors are views of others; loops of `out` first, in its order.
        """
        tensors = [[i for i in t if self.extents[i] != 1] for t in (self.lhs, self.rhs, self.out)]
        extents = dict(enumerate(self.extents))
        while not are_views and (pair := _neighbours(tensors)):
            first, second = pair
            extents[first] *= extents[second]
            tensors = [[i for i in t if i != second] for t in tensors]
        order = list(dict.fromkeys([*tensors[2], *tensors[0], *tensors[1]]))
        lhs, rhs, out = (tuple(order.index(i) for i in t) for t in tensors)
        return Nest(tuple(extents[i] for i in order), lhs, rhs, out)


def _neighbours(tensors: Sequence[Sequence[int]]) -> tuple[int, int] | None:
    """Two loops the second of which comes right after the first wherever there is one of them."""
    for first in dict.fromkeys(i for t in tensors for i in t):
        after = {t[t.index(first) + 1] if t[-1] != first else None for t in tensors if first in t}
        second = after.pop()
        if after or second is None:
            continue
        if all(first in t for t in tensors if second in t):
            return first, second
    return None


@dataclasses.dataclass(frozen=True)
class Block:
    """How many steps of each loop of a nest are computed at once in registers, and by a workgroup;
    0 and 1 of loops of the sum.
    """

    registers: tuple[int, ...]
    workgroup: tuple[int, ...]


@functools.lru_cache(maxsize=4096)
def block_of(nest: Nest, itemsize: int) -> Block | None:
    """The block of a simplified nest of elements of `itemsize` bytes; None where none fits: columns
    have to lie side by side, rows and columns to be multiples of the block's.
    """
    if not nest.out or not nest.rhs or not nest.reduced:
        return None
    columns = nest.out[-1]
    if columns != nest.rhs[-1] or columns in nest.lhs:
        return None
    lanes = VECTOR_BITS // 8 // itemsize
    best, sizes = LEAST_SUMS - 1, None
    for rows in reversed([i for i in nest.out if i in nest.lhs and i not in nest.rhs]):
        # Rows that lie side by side share lines, so that many are best; of others each has its own.
        vectors = (1, 2, 4) if nest.lhs[-1] == rows else (4, 2, 1)
        for count in vectors:
            height = _divisor(nest.extents[rows], SUMS // count)
            if nest.extents[columns] % (count * lanes) == 0 and height * count > best:
                best, sizes = height * count, {rows: height, columns: count * lanes}
    if sizes is None:
        return None
    loops = range(len(nest.extents))
    registers = tuple(sizes.get(i, 1) if i in nest.out else 0 for i in loops)
    return Block(registers, _workgroup(nest, sizes))


def _divisor(n: int, most: int) -> int:
    """The largest divisor of n that is at most `most`."""
    return max(d for d in range(1, most + 1) if n % d == 0)


def _workgroup(nest: Nest, registers: dict[int, int]) -> tuple[int, ...]:
    sizes = {i: registers.get(i, 1) for i in nest.out}
    depth = math.prod(nest.extents[i] for i in nest.reduced)
    order = [*registers, *reversed([i for i in nest.out if i not in registers])]
    is_growing = True
    while is_growing:
        is_growing = False
        for loop in order:
            left = nest.extents[loop] // sizes[loop]
            factor = next((f for f in range(2, left + 1) if left % f == 0), 0)
            if factor and _may_grow(nest, sizes, depth, factor, loop in registers, sizes[loop]):
                sizes[loop] *= factor
                is_growing = True
    return tuple(sizes.get(i, 0) for i in range(len(nest.extents)))


def _may_grow(
    nest: Nest, sizes: dict[int, int], depth: int, factor: int, is_side: bool, size: int
) -> bool:
    """Whether a workgroup may do `factor` times as much."""
    work = depth * math.prod(sizes.values())
    groups = nest.products // work
    return (
        work * factor <= MOST_WORK
        and (work < LEAST_WORK or groups // factor >= LEAST_GROUPS)
        and not (is_side and size * factor > SIDE)
    )


def is_fast(nest: Nest) -> bool:
    """Whether a simplified nest that has a block is computed faster so than packed."""
    batch = set(nest.lhs) & set(nest.rhs) & set(nest.out)
    rows = math.prod(nest.extents[i] for i in nest.lhs if i in nest.out and i not in batch)
    lhs, rhs = (
        math.prod(nest.extents[i] for i in side if i not in batch) for side in (nest.lhs, nest.rhs)
    )
    if nest.lhs[-1] in nest.out:
        return max(lhs, rhs) <= PANELS
    return rhs <= PANEL or rows <= FEW_ROWS
