# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Threefry-2x32 with 20 rounds: random bits as a pure function of a key and a position (Salmon et
al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import OpError
from .base import NO_GRADIENT, Extents, Op, Operand, Operands, Result, Str
from .types import TensorSpec, uint32

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
"""How far each round rotates, four rounds at a time."""
PARITY = 0x1BD11BDA
"""What the third word of the key schedule is mixed with."""
KEY = TensorSpec((2,), uint32)


def check_key(op_class: type[Op], key: TensorSpec) -> None:
    if key != KEY:
        raise op_class.error(f"a key of type {KEY}", key, "make one by go.random.key(seed)")


def as_key(key: Any) -> np.ndarray:
    """A key that is no tensor."""
    array = np.asarray(key)
    if array.shape != (2,) or array.dtype != uint32:
        got = f"{array.dtype.name} of shape {array.shape}"
        raise OpError(f"expected a key, two uint32 words, got {got}; make one by go.random.key")
    return array


def encrypt(key: np.ndarray, c0: np.ndarray, c1: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The two words of the blocks of counters (c0, c1), in NumPy."""
    words = key.astype(np.uint32)
    schedule = (words[0], words[1], words[0] ^ words[1] ^ np.uint32(PARITY))
    x, y = c0.astype(np.uint32) + schedule[0], c1.astype(np.uint32) + schedule[1]
    for group in range(5):
        for r in ROTATIONS[group % 2]:
            x = x + y
            y = x ^ ((y << np.uint32(r)) | (y >> np.uint32(32 - r)))
        x = x + schedule[(group + 1) % 3]
        y = y + schedule[(group + 2) % 3] + np.uint32(group + 1)
    return x, y


class ThreefryOp(Op, name="threefry"):
    """Block cipher Threefry-2x32, 20 rounds: (y0, y1) = the two random words of the block of each
    counter (c0, c1).

    Example: `%y0, %y1 = "gradopt.threefry"(%key, %c0, %c1)
    : (tensor<2xui32>, tensor<4xui32>, tensor<4xui32>) -> (tensor<4xui32>, tensor<4xui32>)`
    """

    key: Operand
    c0: Operand
    c1: Operand
    y0: Result
    y1: Result

    @classmethod
    def infer(
        cls, key: TensorSpec, c0: TensorSpec, c1: TensorSpec
    ) -> tuple[TensorSpec, TensorSpec]:
        check_key(cls, key)
        if c0 != c1 or c0.dtype != uint32:
            raise cls.error("two ui32 counters of one shape", f"{c0} and {c1}")
        return c0, c0

    @staticmethod
    def reference(key: np.ndarray, c0: np.ndarray, c1: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return encrypt(key, c0, c1)

    vjp = NO_GRADIENT


# --- draws ----------------------------------------------------------------------------------------


class Draw(Op):
    """Independent random numbers of a shape; unknown extents are those of an operand `like`."""

    key: Operand
    like: Operands
    shape: Extents
    y: Result

    @classmethod
    def drawn(cls, key: TensorSpec, like: Sequence[TensorSpec], spec: TensorSpec) -> TensorSpec:
        """`spec`, checked."""
        check_key(cls, key)
        for axis, n in enumerate(spec.shape):
            if n is None and not any(l.rank == spec.rank and l.shape[axis] is None for l in like):
                raise cls.error(f"an operand `like` with an unknown extent {axis}", spec)
        return spec

    vjp = NO_GRADIENT


def known(shape: Sequence[int | None], like: Sequence[np.ndarray]) -> tuple[int, ...]:
    """The shape of a result on arrays."""
    same_rank = [l for l in like if l.ndim == len(shape)]
    return tuple(same_rank[0].shape[i] if n is None else n for i, n in enumerate(shape))


class RandomBitsOp(Draw, name="random_bits"):
    """32 random bits: y at flat position p is made of the two words of the threefry block of (p >>
    32, p mod 2^32).

    `word` says how: their exclusive or ("xor"), the "first" or the "second" one.
    Example: `%y = "gradopt.random_bits"(%key) {shape = array<i64: 4>} : (tensor<2xui32>) ->
    tensor<4xui32>`
    """

    word: Str = "xor"

    @classmethod
    def infer(
        cls, key: TensorSpec, *like: TensorSpec, shape: tuple[int | None, ...], word: str
    ) -> TensorSpec:
        if word not in ("xor", "first", "second"):
            raise cls.error("word to be 'xor', 'first' or 'second'", f"'{word}'")
        return cls.drawn(key, like, TensorSpec(shape, uint32))

    @staticmethod
    def reference(
        key: np.ndarray, *like: np.ndarray, shape: tuple[int | None, ...], word: str = "xor"
    ) -> np.ndarray:
        extents = known(shape, like)
        position = np.arange(math.prod(extents), dtype=np.uint64).reshape(extents)
        x, y = encrypt(key, position >> np.uint64(32), position & np.uint64(0xFFFFFFFF))
        return {"xor": x ^ y, "first": x, "second": y}[word]
