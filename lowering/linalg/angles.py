# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Sine and cosine in pairs of float32 (pairs.py), over the whole range."""

import math as pymath

from ...dialect.mlir import arith
from ...dialect.types import float32, int32, uint32
from .pairs import Pair, add, pair, parts_of, settled
from .scalar import Scalar, absolute, bitcast, convert, polynomial, round_even, select

HALF_PI = parts_of(pymath.pi / 2, 6.123233995736766e-17, 3)
SIN_TAIL = (2.7557314297e-6, -1.9841270114e-4, 8.3333337680e-3, -1.6666667163e-1)
COS_TAIL = (-2.7557314297e-7, 2.4801587642e-5, -1.3888889225e-3, 4.1666667908e-2)
"""Taylor's coefficients on [-pi/4, pi/4], from r^3 and r^4 on, good to 2^-26."""


def pair_sine_cosine(x: Pair) -> tuple[Pair, Pair]:
    """sin x and cos x, by what x is away from the nearest quarter turn; NaN for infinite x."""
    r, quadrant = near_turns(x)
    if x.single is not None:
        far, far_quadrant = far_turns(x.single)
        is_far = absolute(x.single) > LIMIT
        r, quadrant = far.chosen(is_far, r), select(is_far, far_quadrant, quadrant)
    single = r.rounded()
    z = single * single
    sine = settled(r.high, r.lower + single * z * polynomial(z, SIN_TAIL))
    square = r * r
    cosine = 1.0 - square * 0.5
    cosine = settled(cosine.high, cosine.lower + z * z * polynomial(z, COS_TAIL))
    swapped = (quadrant & 1) == 1
    a, b = cosine.chosen(swapped, sine), sine.chosen(swapped, cosine)
    return (-a).chosen((quadrant & 2) != 0, a), (-b).chosen(((quadrant + 1) & 2) != 0, b)


LIMIT = 2.0**10


def near_turns(x: Pair) -> tuple[Pair, Scalar]:
    """x less k quarter turns, and k, for |x| <= 2^10, by Cody and Waite: up to the last products
    are exact.
    """
    k = round_even(x.rounded() * (2 / pymath.pi))
    r = add(pair(x.high - k * HALF_PI[0]), pair(x.lower - k * HALF_PI[1]))
    r = add(r, pair(-(k * HALF_PI[2])))
    return settled(r.high, r.lower - k * HALF_PI[3]), convert(k, int32)


TURNS = (0, 0xA2F9836E, 0x4E441529, 0xFC2757D1, 0xF534DDC0, 0xDB629599, 0x3C439041, 0xFE5163AB)
"""The bits of 2 / pi behind the point, with 32 zeros in front."""


def far_turns(x: Scalar) -> tuple[Pair, Scalar]:
    """The same for a float32 above 2^9 in size, by Payne and Hanek: x is a whole number m times a
    power of two, so that m times the right 96 bits of 2 / pi, as whole numbers, has the quarter
    turns in its first two bits, and what x is behind the last of them in the others.
    """
    bits = bitcast(x, uint32)
    m = (bits & 0x7FFFFF) | 0x800000
    first = ((bits >> 23) & 0xFF) - (150 + 2 - 32)  # of the 96 bits
    words = window(first)
    low = wide_product(m, words[2])[1]
    middle, carry = wide_product(m, words[1])
    mid = middle + low
    top = m * words[0] + carry + select(mid < low, mid.constant(1), 0)
    k = (top + 0x20000000) >> 30
    rest = bitcast(top - (k << 30), int32)  # in quarter turns, 2^30 of them in one
    terms = (rest & -0x40000, rest & 0x3FFFF, bitcast(mid >> 8, int32))
    a, b, c = (convert(t, float32) for t in terms)
    r = add(add(pair(a), pair(b)), pair(c * 2.0**-24)) * (pymath.pi / 2 * 2.0**-30)
    negative, k = x < 0.0, bitcast(k, int32)
    whole = (bits & 0x7F800000) != 0x7F800000
    return (-r).chosen(negative, r).chosen(whole, pymath.nan), select(negative, -k, k)


def window(first: Scalar) -> list[Scalar]:
    """Three words of TURNS from a bit on."""
    index, shift = first >> 5, first & 31
    found = []
    for k in range(4):
        word = first.constant(TURNS[k])
        for i in range(1, len(TURNS) - 3):
            word = select(index == i, TURNS[k + i], word)
        found.append(word)
    return [
        (a << shift) | ((b >> 1) >> (31 - shift)) for a, b in zip(found, found[1:], strict=False)
    ]


def wide_product(x: Scalar, y: Scalar) -> tuple[Scalar, Scalar]:
    """The low and the high word of a product of uint32."""
    low, high = arith.mului_extended(x.value, y.value)
    return Scalar(low, uint32), Scalar(high, uint32)
