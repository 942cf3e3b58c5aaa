# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Nests and blocks of sums of products: simplified nests compute the same, blocks divide them."""

import math
import string

import numpy as np
import pytest
from gradopt.lowering import blocks
from gradopt.lowering.blocks import Nest, block_of, is_fast
from hypothesis import given
from hypothesis import strategies as st


def matrix(m: int, n: int, k: int, lhs: str = "mk") -> Nest:
    """The nest of a product of matrices: loops m, n, k."""
    order = {"m": 0, "n": 1, "k": 2}
    return Nest((m, n, k), tuple(order[c] for c in lhs), (2, 1), (0, 1))


@st.composite
def nests(draw: st.DrawFn) -> Nest:
    """Batch, rows, columns and sums, several of each or none, in any order in each tensor."""
    kinds = draw(st.lists(st.sampled_from("brck"), min_size=1, max_size=7))
    extents = draw(st.tuples(*[st.integers(1, 3)] * len(kinds)))
    lhs, rhs, out = (
        draw(st.permutations([i for i, kind in enumerate(kinds) if kind in of]))
        for of in ("brk", "bck", "brc")
    )
    if draw(st.booleans()):  # sorted axes, more of which can be merged
        lhs, rhs, out = map(sorted, (lhs, rhs, out))
    return Nest(extents, tuple(lhs), tuple(rhs), tuple(out))


def computed(nest: Nest, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    a, b, out = (
        "".join(string.ascii_letters[i] for i in t) for t in (nest.lhs, nest.rhs, nest.out)
    )
    shapes = nest.shapes
    return np.einsum(f"{a},{b}->{out}", lhs.reshape(shapes[0]), rhs.reshape(shapes[1]))


@given(nests(), st.integers(0, 2**32 - 1))
def test_a_simplified_nest_computes_the_same(nest: Nest, seed: int) -> None:
    rng = np.random.default_rng(seed)
    lhs, rhs = (rng.integers(-4, 5, shape) for shape in nest.shapes[:2])
    plain = nest.simplified()
    assert plain == plain.simplified()
    assert plain.products == nest.products
    assert 1 not in plain.extents
    want = computed(nest, lhs, rhs)
    np.testing.assert_array_equal(computed(plain, lhs, rhs).reshape(want.shape), want)
    kept = nest.simplified(are_views=True)
    np.testing.assert_array_equal(computed(kept, lhs, rhs).reshape(want.shape), want)


def test_neighbours_are_merged() -> None:
    """Images times a matrix: all places are one loop; not where the images are a view."""
    nest = Nest((2, 4, 6, 16, 8), (0, 1, 2, 4), (4, 3), (0, 1, 2, 3))
    assert nest.simplified() == Nest((48, 16, 8), (0, 2), (2, 1), (0, 1))
    assert nest.simplified(are_views=True) == nest


def test_panels() -> None:
    nest = matrix(8, 256, 32).in_panels(64)
    assert nest == Nest((8, 64, 32, 4), (0, 2), (3, 2, 1), (0, 3, 1))
    rng = np.random.default_rng(0)
    lhs, rhs = rng.integers(-4, 5, (8, 32)), rng.integers(-4, 5, (32, 256))
    panels = rhs.reshape(32, 4, 64).transpose(1, 0, 2)
    np.testing.assert_array_equal(computed(nest, lhs, panels).reshape(8, 256), lhs @ rhs)


@given(nests(), st.sampled_from([4, 8]), st.integers(0, 3), st.integers(0, 6))
def test_blocks_divide_their_loops(nest: Nest, itemsize: int, wider: int, higher: int) -> None:
    """With a last axis of columns of some vectors, and rows of any number."""
    lanes = blocks.VECTOR_BITS // 8 // itemsize
    size = len(nest.extents)
    nest = Nest(
        (*nest.extents, lanes << wider, 1 + higher, 3),
        (size + 1, *nest.lhs, size + 2),
        (*nest.rhs, size + 2, size),
        (size + 1, *nest.out, size),
    ).simplified()
    block = block_of(nest, itemsize)
    if block is None:
        return
    for extent, group, registers in zip(
        nest.extents, block.workgroup, block.registers, strict=True
    ):
        assert group == registers == 0 or extent % group == group % registers == 0
    taken = [n for n in block.registers if n > 1]
    assert blocks.LEAST_SUMS <= math.prod(taken) // lanes <= blocks.SUMS
    assert block.registers[nest.out[-1]] % lanes == 0


@pytest.mark.parametrize(
    ("nest", "registers"),
    [
        (matrix(128, 1024, 784), (4, 64, 0)),
        (matrix(512, 96, 256), (8, 32, 0)),
        (matrix(7, 48, 8), (7, 16, 0)),
        (matrix(1024, 1024, 128, "km"), (16, 16, 0)),
        (matrix(3, 64, 4096, "km"), (3, 64, 0)),
    ],
)
def test_registers(nest: Nest, registers: tuple[int, ...]) -> None:
    block = block_of(nest, 4)
    assert block is not None
    assert block.registers == registers


@pytest.mark.parametrize(
    "nest",
    [
        matrix(64, 24, 8),  # columns are no vectors
        matrix(31, 16, 8),  # one vector of sums
        matrix(1, 64, 8).simplified(),  # no rows
        matrix(64, 64, 1).simplified(),  # no sum
        Nest((64, 64, 8), (0, 2), (1, 2), (0, 1)),  # columns do not lie side by side
        Nest((64,), (0,), (), (0,)),
    ],
)
def test_what_has_no_block(nest: Nest) -> None:
    assert block_of(nest, 4) is None


def test_work_is_shared_out() -> None:
    """Some workgroups of no more than a twentieth of a millisecond or so, and not too small."""
    for nest in (matrix(512, 1024, 256), matrix(32, 4096, 1024), matrix(16384, 32, 32)):
        block = block_of(nest, 4)
        assert block is not None
        work = nest.products * math.prod(block.workgroup[:2]) // math.prod(nest.extents[:2])
        assert nest.products // work >= blocks.LEAST_GROUPS
        assert blocks.LEAST_WORK <= work <= blocks.MOST_WORK


def test_large_operands_are_packed() -> None:
    assert is_fast(matrix(128, 1024, 1024))
    assert not is_fast(matrix(128, 2048, 2048))
    assert is_fast(matrix(32, 2048, 2048))
    assert is_fast(matrix(512, 1024, 512, "km"))
    assert not is_fast(matrix(1024, 1024, 2048, "km"))
