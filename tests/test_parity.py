# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Every op and its gradient in every mode, with graphs that NumPy runs: the numbers are the same.

With GRADOPT_ALL_ROWS=1 all rows run in all element types and modes, else in float32, and in the
mode "op by op" every fourth group.
"""

import os

import pytest
from gradopt.op_cases import CASES
from gradopt.op_cases.rows import variants

from . import four_modes

ALL = os.environ.get("GRADOPT_ALL_ROWS") == "1"
ROWS = {
    f"{case.name}_{dtype}": row
    for case in CASES
    for dtype, row in variants(case)
    if ALL or dtype in ("float32", "fixed")
}
GROUPS = four_modes.groups(list(ROWS), 16)
ROUNDED = 0.05
"""How much of a row's tolerance the gradients of composite ops may differ by between the tape,
which differentiates what they are made of, and a compiled function, whose pass adds up in another
order. All else is equal bit for bit.
"""


@pytest.mark.parametrize("group", GROUPS)
def test_every_mode_gives_the_same(group: str) -> None:
    """B38: values and gradients, eager, lazy, deferred, compiled and hybridized."""
    rows = [ROWS[name] for name in GROUPS[group]]
    want = four_modes.run(rows, "eager", "reference")
    some = () if ALL or list(GROUPS).index(group) % 4 == 0 else ("op by op",)
    for mode in (m for m in four_modes.MODES[1:] if m not in some):
        got = four_modes.run(rows, mode, "reference")
        for name, row, a, b in zip(GROUPS[group], rows, got, want, strict=True):
            if mode == "compiled" and row.differentiable():
                assert four_modes.error(row, a, b) < ROUNDED, f"{name}, {mode}"
            else:
                assert four_modes.identical(a, b), f"{name}, {mode}"
