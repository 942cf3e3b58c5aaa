# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Ops that are put off: recorded, and run as one graph when a value is needed."""

from typing import Any

from .array import Array
from .state import state

default = "reference"


def mode() -> str:
    """The mode ops run in on this thread."""
    return state.eager or default


def add(op_class: Any, arrays: list[Array], attributes: Any, specs: Any, name: Any) -> list[Array]:
    raise NotImplementedError
