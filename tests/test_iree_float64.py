# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Every op and its gradient in float64, by IREE, against the reference."""

import pytest
from gradopt.op_cases.rows import rows

from .helpers import iree_errors, some_cases

pytestmark = pytest.mark.compiler

ROWS = {row.name: row for case in some_cases() for row in rows(case) if row.dtype == "float64"}


@pytest.fixture(scope="module")
def errors() -> dict[str, tuple[float, str]]:
    return iree_errors(list(ROWS.values()))


@pytest.mark.parametrize("name", ROWS)
def test_iree_agrees_with_reference(name: str, errors: dict[str, tuple[float, str]]) -> None:
    error, why = errors[name]
    assert error <= ROWS[name].ulp, why or f"{error:.1f} ulp"
