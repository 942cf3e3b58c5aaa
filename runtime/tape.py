# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The tape: ops recorded for gradients."""

from typing import Any

from .array import Array


def record(op_class: Any, attributes: Any, arrays: list[Array], results: list[Array]) -> None:
    raise NotImplementedError
