# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What the array API standard adds to the ops, compiled."""

from typing import Any

import gradopt as go
import numpy as np
import pytest

from .helpers import run_reference

pytestmark = pytest.mark.compiler

SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0])


def test_compiled() -> None:
    """What was added to the ops: powers of integers, next numbers, quotients of infinities, wide
    unsigned integers. The rows of the ops do the rest.
    """
    whole = np.array([2, -1, 1, 0, 3, -2, 0], np.int32)
    exponent = np.array([-1, -3, -2, -1, 40, 31, 0], np.int32)
    left, right = np.repeat(SPECIAL, 6), np.tile(SPECIAL, 6)
    wide = np.array([0, 1, 2**63 + 5, 2**64 - 1], np.uint64)
    small = np.array([0, 7, 2**15 + 1, 2**16 - 1], np.uint16)

    def program(i: Any, e: Any, x: Any, y: Any, u: Any, s: Any) -> Any:
        return (
            go.pow(i, e), go.nextafter(x, y), x // y, go.square(i), go.floor(i),
            u + 3, u // 3, u > 9, go.sort(u, descending=True), go.max(u), u.astype("float64"),
            x.astype("uint64"), s + 3, s * s, go.cumulative_sum(s), go.sum(s), s >> 3,
            u.astype("uint16"),
        )  # fmt: skip

    inputs = (whole, exponent, left, right, wide, small)
    for got, want in zip(
        go.compile(program)(*inputs), run_reference(program, *inputs), strict=True
    ):
        np.testing.assert_array_equal(got, want)
        assert got.dtype == want.dtype
