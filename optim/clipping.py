# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Gradients kept within limits, and found to be finite."""

from typing import Any

from ..dialect import logic, trees
from ..dialect.creation import constant
from ..dialect.elementwise import as_tensor
from ..dialect.types import bool_
from ..errors import OpError


def clip_by_value(gradients: Any, limit: float) -> Any:
    """A tree of gradients with every element between -limit and limit."""
    if not limit > 0:
        raise OpError(f"clip_by_value expected a positive limit, got {limit}")
    return trees.map_leaves(lambda g: logic.clip(as_tensor(g), -limit, limit), gradients)


def all_finite(gradients: Any) -> Any:
    """Whether all elements of a tree of gradients are finite: one boolean."""
    found = constant(True, bool_)
    for g in trees.leaves(gradients):
        found = logic.logical_and(found, logic.is_finite(as_tensor(g)).all())
    return found
