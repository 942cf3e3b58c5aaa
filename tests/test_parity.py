# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Every op and its gradient in every mode, with graphs that NumPy runs: the numbers are the same.

With GRADOPT_ALL_ROWS=1 all rows run in all modes and element types, else in float32, and in the
modes "op by op" and "hybridized" every fourth.
"""

import os

import pytest
from gradopt.op_cases import CASES, Case
from gradopt.op_cases.rows import variants

from . import four_modes

ALL = os.environ.get("GRADOPT_ALL_ROWS") == "1"
ROWS = {
    f"{case.name}_{dtype}": (i, row)
    for i, case in enumerate(CASES)
    for dtype, row in variants(case)
    if ALL or dtype in ("float32", "fixed")
}
ROUNDED = 0.05
"""How much of a row's tolerance the gradients of composite ops may differ by between the tape,
which differentiates what they are made of, and a compiled function, whose pass adds up in another
order. All else is equal bit for bit.
"""


def in_some_modes(number: int, row: Case) -> list[str]:
    some = () if ALL or number % 4 == 0 else ("op by op", "hybridized")
    return [mode for mode in four_modes.MODES[1:] if mode not in some]


@pytest.mark.parametrize("name", ROWS)
def test_every_mode_gives_the_same(name: str) -> None:
    """B38: values and gradients, eager, lazy, deferred, compiled and hybridized."""
    number, row = ROWS[name]
    want = four_modes.run(row, "eager", "reference")
    for mode in in_some_modes(number, row):
        got = four_modes.run(row, mode, "reference")
        if mode == "compiled" and row.differentiable():
            assert four_modes.error(row, got, want) < ROUNDED, mode
        else:
            assert four_modes.identical(got, want), mode
