# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Padding with elements of the tensor."""

import numpy as np

from .case import CUBE, Case, bools, jnp, reals, seed

seed(53)


def padded(
    mode: str, x: np.ndarray, low: tuple[int, ...], high: tuple[int, ...], suffix: str
) -> Case:
    widths = list(zip(low, high, strict=True))
    attributes = {"low": low, "high": high, "mode": mode}
    return Case("pad_mode", [x], lambda v: jnp.pad(v, widths, mode), attributes, suffix=suffix)


MODES = ("reflect", "symmetric", "edge", "wrap")

CASES = [
    *(padded(mode, CUBE, (0, 2, 1), (0, 1, 3), mode) for mode in MODES),
    *(padded(mode, reals(3), (7,), (11,), f"{mode}_far") for mode in MODES),
    *(padded(mode, reals(2, 1), (0, 3), (0, 2), f"{mode}_one") for mode in MODES),
    padded("reflect", bools(3, 4), (1, 2), (2, 0), "bool"),
]
