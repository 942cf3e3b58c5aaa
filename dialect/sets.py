# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The distinct elements of an array.

How many there are depends on data, and shapes of a graph must not: these functions are for
imperative mode, where NumPy finds the positions, and for constants. The elements are then taken by
an op, so that they have gradients.
"""

from typing import Any, NamedTuple

import numpy as np

from ..errors import TraceError
from . import builder as builders
from .creation import constant, elements
from .elementwise import as_tensor
from .indexing import take
from .types import int32


class UniqueAll(NamedTuple):
    """`values` in ascending order, the first place of each in the flattened array, which of them
    each element is, and how often each occurs.
    """

    values: Any
    indices: Any
    inverse_indices: Any
    counts: Any


class UniqueCounts(NamedTuple):
    """`values` in ascending order, and how often each occurs."""

    values: Any
    counts: Any


class UniqueInverse(NamedTuple):
    """`values` in ascending order, and which of them each element is."""

    values: Any
    inverse_indices: Any


def unique_all(x: Any) -> UniqueAll:
    """Distinct elements of `x` with their first places, the inverse and counts (int32). Every NaN
    is distinct, 0 and -0 are not. TraceError for a tensor of a graph.
    """
    known = elements(x)
    if known is None:
        raise TraceError(
            f"unique expected an array, because its result's shape depends on data, got {x!r}; use "
            "it outside the traced function, or sort() and a comparison of neighbours"
        )
    found = np.unique(known, True, True, True, equal_nan=False)[1:]
    first, inverse, counts = (n.astype(int32) for n in found)
    with builders.owner("take", (x,)):
        flat = as_tensor(x).flatten()
        values = take(flat, constant(first)) if known.size else flat
        inverse = inverse.reshape(known.shape)
        return UniqueAll(values, *map(constant, (first, inverse, counts)))


def unique_counts(x: Any) -> UniqueCounts:
    """Distinct elements of `x` and how often each occurs; see `unique_all`."""
    found = unique_all(x)
    return UniqueCounts(found.values, found.counts)


def unique_inverse(x: Any) -> UniqueInverse:
    """Distinct elements of `x` and which of them each element is; see `unique_all`."""
    found = unique_all(x)
    return UniqueInverse(found.values, found.inverse_indices)


def unique_values(x: Any) -> Any:
    """Distinct elements of `x` in ascending order; see `unique_all`."""
    return unique_all(x).values
