# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""`go.random`: random numbers as pure functions of a key, by the block cipher Threefry-2x32 with 20
rounds.

A key is two ui32 words. The block cipher `threefry` turns a key and a counter of two words into two
random words. The number at flat (row-major) position p of a result is made of the block with the
counter (p >> 32, p mod 2^32) alone: of the exclusive or of its words, or for float64 of both. So it
depends on nothing but the key and its position, and every target draws the same. Keys, bits,
float32 and float64 numbers are those of JAX with its partitionable threefry.

- bits: first word xor second word of the block
- uniform: the upper bits, as many as the type has behind the point (23, 52), or 11 for float16 and
  8 for bfloat16, as a fraction in [0, 1)
- fold_in(key, n): the block of the counter (0, n); split: row i is the block of the counter
  (i >> 32, i mod 2^32)

No op here has a gradient.
"""

import operator
from typing import Any

import numpy as np

from ..errors import OpError
from . import distributions as ops
from .base import Op
from .creation import constant
from .elementwise import as_tensor
from .indexing import take
from .shape import normalize_axes
from .slicing import stack
from .threefry import RandomBitsOp, ThreefryOp, as_key
from .types import as_dtype, float32, int32, int64, is_integer, uint32, uint64

# --- functions: keys ------------------------------------------------------------------------------


def key(seed: Any) -> Any:
    """A key made of a seed: the words (seed >> 32, seed mod 2^32).

    Of a Python integer in [-2^63, 2^64) an array, which is a constant to functions that use it; of
    an integer tensor a tensor. Keys can be arguments of compiled functions.
    """
    if hasattr(seed, "graph"):
        if not is_integer(seed.dtype) or seed.ndim:
            raise OpError(f"random.key expected an integer of rank 0, got {seed.spec}")
        wide = seed.dtype in (int64, uint64)
        high = (seed >> 32).astype(int64) & 0xFFFFFFFF if wide else constant(0, int64)
        low = seed.astype(int64) & 0xFFFFFFFF
        return stack([high.astype(uint32), low.astype(uint32)])
    try:
        number = operator.index(seed)
    except TypeError:
        raise OpError(f"random.key expected an integer, got {seed!r:.40}") from None
    if not -(2**63) <= number < 2**64:
        raise OpError(f"random.key expected a seed of 64 bits, got {number}")
    return np.array([(number >> 32) & 0xFFFFFFFF, number & 0xFFFFFFFF], np.uint32)


def split(key: Any, num: int = 2) -> Any:
    """`num` independent keys, as rows of a (num, 2) tensor, or of an array if `key` is one."""
    if not isinstance(num, int) or num < 1:
        raise OpError(f"random.split expected a number of keys of at least 1, got {num!r}")
    counters = np.zeros(num, np.uint32), np.arange(num, dtype=np.uint32)
    if not hasattr(key, "graph"):
        return np.stack(ThreefryOp.evaluate(as_key(key), *counters), axis=-1)
    return stack(ThreefryOp.emit(key, *map(constant, counters)), axis=1)


def fold_in(key: Any, data: Any) -> Any:
    """The key of number `data` (a step, a layer) under `key`: a pure function of both. `data` is
    an integer in [0, 2^32) or an integer tensor, taken modulo 2^32.
    """
    if not hasattr(data, "graph"):
        try:
            number = operator.index(data)
        except TypeError:
            raise OpError(f"random.fold_in expected an integer, got {data!r:.40}") from None
        if not 0 <= number < 2**32:
            raise OpError(f"random.fold_in expected a number in [0, 2^32), got {number}")
        data = np.array(number, np.uint32)
    elif not is_integer(data.dtype) or data.ndim:
        raise OpError(f"random.fold_in expected an integer of rank 0, got {data.spec}")
    if not hasattr(key, "graph") and not hasattr(data, "graph"):
        zero = np.zeros((), np.uint32)
        return np.stack(ThreefryOp.evaluate(as_key(key), zero, data))
    number = data.astype(uint32) if hasattr(data, "graph") else constant(data)
    return stack(ThreefryOp.emit(as_tensor(key), constant(0, uint32), number))


# --- functions: numbers ---------------------------------------------------------------------------


def bits(key: Any, shape: Any = ()) -> Any:
    """Random bits, 32 an element (uint32). `shape`, here and below: an extent, several, or a tensor
    whose shape is taken, unknown extents included.
    """
    return _draw(RandomBitsOp, key, shape)


def uniform(
    key: Any, shape: Any = (), low: float = 0.0, high: float = 1.0, dtype: Any = float32
) -> Any:
    """Numbers spread evenly over [low, high)."""
    return _draw(ops.RandomUniformOp, key, shape, low=low, high=high, dtype=as_dtype(dtype))


def normal(key: Any, shape: Any = (), dtype: Any = float32) -> Any:
    """Numbers of the standard normal distribution."""
    return _draw(ops.RandomNormalOp, key, shape, dtype=as_dtype(dtype))


def truncated_normal(
    key: Any, lower: float, upper: float, shape: Any = (), dtype: Any = float32
) -> Any:
    """Numbers of the standard normal distribution between `lower` and `upper`."""
    return _draw(
        ops.RandomTruncatedNormalOp, key, shape, lower=lower, upper=upper, dtype=as_dtype(dtype)
    )


def exponential(key: Any, shape: Any = (), dtype: Any = float32) -> Any:
    """Numbers of the exponential distribution of mean 1."""
    return _draw(ops.RandomExponentialOp, key, shape, dtype=as_dtype(dtype))


def gumbel(key: Any, shape: Any = (), dtype: Any = float32) -> Any:
    """Numbers of the standard Gumbel distribution."""
    return _draw(ops.RandomGumbelOp, key, shape, dtype=as_dtype(dtype))


def bernoulli(key: Any, p: Any = 0.5, shape: Any = None) -> Any:
    """Booleans that are true with probability `p`: a number, or a tensor, whose shape is the
    default.
    """
    if hasattr(p, "graph"):
        shape = p.shape if shape is None else shape
        return uniform(key, shape, dtype=p.dtype) < p
    return _draw(ops.RandomBernoulliOp, key, () if shape is None else shape, p=p)


def randint(key: Any, shape: Any, low: int, high: int, dtype: Any = int32) -> Any:
    """Whole numbers in [low, high)."""
    return _draw(ops.RandomRandintOp, key, shape, low=low, high=high, dtype=as_dtype(dtype))


def permutation(key: Any, x: Any) -> Any:
    """The numbers below `x` in random order (int32), or the slices of a tensor `x` along its first
    axis in random order. Costs the square of their number in comparisons.
    """
    if isinstance(x, int | np.integer):
        return ops.RandomPermutationOp.emit(_key(key), n=int(x))
    x = as_tensor(x)
    if not x.ndim or x.shape[0] is None:
        raise ops.RandomPermutationOp.error("a known number of slices to permute", x.spec)
    return take(x, ops.RandomPermutationOp.emit(_key(key), n=x.shape[0])) if x.shape[0] else x


def categorical(key: Any, logits: Any, axis: int = -1) -> Any:
    """Indices (int32) drawn with probabilities softmax(`logits`) along `axis`."""
    logits = as_tensor(logits)
    (axis,) = normalize_axes(ops.RandomCategoricalOp, axis, logits.ndim)
    return ops.RandomCategoricalOp.emit(_key(key), logits, axis=axis)


def _key(key: Any) -> Any:
    return key if hasattr(key, "graph") else constant(as_key(key))


def _draw(op_class: type[Op], key: Any, shape: Any, **attributes: Any) -> Any:
    """Numbers of `shape`: an extent, several, or a tensor to take them from."""
    if hasattr(shape, "graph"):
        like = [] if shape.spec.is_static else [shape]
        return op_class.emit(_key(key), *like, shape=shape.shape, **attributes)
    extents = (int(shape),) if isinstance(shape, int | np.integer) else tuple(shape)
    return op_class.emit(_key(key), shape=extents, **attributes)
