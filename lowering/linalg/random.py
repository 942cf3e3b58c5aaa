# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Threefry: one pass over the result, every element from the key and its position alone."""

from typing import Any

import numpy as np

from ...dialect.mlir import arith, ir, tensor
from ...dialect.threefry import PARITY, ROTATIONS, RandomBitsOp, ThreefryOp
from ...dialect.types import int64, uint32
from . import build
from .build import PARALLEL, Extent
from .registry import lowers
from .scalar import Scalar, convert, from_index


def rotated(x: Scalar, by: int) -> Scalar:
    return (x << by) | (x >> (32 - by))


def block(key: tuple[Scalar, Scalar], x: Scalar, y: Scalar) -> tuple[Scalar, Scalar]:
    """The two words of the block of the counter (x, y)"""
    schedule = (*key, key[0] ^ key[1] ^ PARITY)
    x, y = x + schedule[0], y + schedule[1]
    for group in range(5):
        for by in ROTATIONS[group % 2]:
            x = x + y
            y = x ^ rotated(y, by)
        x = x + schedule[(group + 1) % 3]
        y = y + schedule[(group + 2) % 3] + (group + 1)
    return x, y


def words_of(key: ir.Value) -> list[tuple[ir.Value, list[int]]]:
    """The key's words as operands of a generic: numbers of rank 0, since IREE does not vectorize a
    generic that reads elements of `key` through constant maps.
    """
    element = build.element_of(key)
    slices = [
        tensor.extract_slice(build.tensor_type([1], element), key, [], [], [], [i], [1], [1])
        for i in range(2)
    ]
    return [(build.collapse(word, []), []) for word in slices]


def of_key(words: Any) -> tuple[Scalar, Scalar]:
    first, second = (Scalar(w, uint32) for w in words)
    return first, second


@lowers(ThreefryOp)
def threefry(op: Any, key: ir.Value, c0: ir.Value, c1: ir.Value) -> list[ir.Value]:
    loops = list(range(build.rank_of(c0)))
    out = build.empty(build.shape_of(c0), build.element_type(uint32))

    def body(k0: ir.Value, k1: ir.Value, x: ir.Value, y: ir.Value, *_: ir.Value) -> list[ir.Value]:
        return [w.value for w in block(of_key((k0, k1)), Scalar(x, uint32), Scalar(y, uint32))]

    inputs = [*words_of(key), (c0, loops), (c1, loops)]
    return build.generic(inputs, [(out, loops), (out, loops)], [PARALLEL] * len(loops), body)


@lowers(RandomBitsOp)
def random_bits(op: Any, key: ir.Value, *like: ir.Value) -> ir.Value:
    shape: list[Extent] = [
        build.extent(next(l for l in like if build.rank_of(l) == len(op.shape)), i)
        if n is None
        else n
        for i, n in enumerate(op.shape)
    ]
    loops = list(range(len(shape)))
    out = build.empty(shape, build.element_type(uint32))

    def body(k0: ir.Value, k1: ir.Value, _: ir.Value) -> list[ir.Value]:
        x, y = block(of_key((k0, k1)), *position(shape))
        return [{"xor": x ^ y, "first": x, "second": y}[op.word].value]

    return build.generic(words_of(key), [(out, loops)], [PARALLEL] * len(loops), body)[0]


def position(shape: list[Extent]) -> tuple[Scalar, Scalar]:
    """Inside a generic over `shape`: the upper and the lower word of the flat position. Where all
    positions fit 32 bits, 64-bit arithmetic, of which a vector holds half as much, is not used.
    """
    known = [n for n in shape if isinstance(n, int)]
    fits = len(known) == len(shape) and int(np.prod(known, dtype=object)) <= 2**32
    dtype = uint32 if fits else int64
    flat = None
    for loop, n in enumerate(shape):
        here = from_index(build.loop_index(loop), dtype)
        extent = n if isinstance(n, int) else from_index(n, dtype)
        flat = here if flat is None else flat * extent + here
    if flat is None:
        flat = Scalar(build.number(0, build.element_type(dtype)), dtype)
    if fits:
        return flat.constant(0), flat
    high = Scalar(arith.shrui(flat.value, flat.constant(32).value), int64)
    return convert(high, uint32), convert(flat, uint32)
