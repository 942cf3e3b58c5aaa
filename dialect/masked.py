# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Sums and means over the valid rows of a batch that is longer than what it holds."""

from typing import Any

from ..errors import OpError
from .elementwise import as_tensor
from .logic import where
from .reduction import as_float
from .reduction import mean as mean_of
from .reduction import sum as sum_of
from .shape import broadcast_in_dim
from .types import bool_


def masked_sum(x: Any, mask: Any = None, axis: int = 0) -> Any:
    """The sum of all elements of `x` in rows for which `mask` is true: booleans, one for each place
    along `axis`. Without a mask that of all.

    What stands in other rows, even a NaN, has no effect, and a gradient of 0. Raises OpError for a
    mask of another type or length.
    """
    x = as_tensor(x)
    return sum_of(x if mask is None else where(_rows(x, mask, axis), x, 0))


def masked_mean(x: Any, mask: Any = None, axis: int = 0) -> Any:
    """The mean of all elements of `x` in rows for which `mask` is true; see `masked_sum`. NaN where
    there is none.
    """
    x = as_float(as_tensor(x))
    if mask is None:
        return mean_of(x)
    rows = _rows(x, mask, axis)
    return sum_of(where(rows, x, 0)) / sum_of(rows.astype(x.dtype))


def _rows(x: Any, mask: Any, axis: int) -> Any:
    """The mask in the shape of `x`."""
    mask = as_tensor(mask)
    if not -x.ndim <= axis < x.ndim:
        raise OpError(f"a masked sum expected an axis of a tensor of rank {x.ndim}, got {axis}")
    axis %= x.ndim
    extents = mask.shape[0] if mask.ndim == 1 else -1, x.shape[axis]
    fits = mask.ndim == 1 and (None in extents or extents[0] == extents[1])
    if mask.dtype != bool_ or not fits:
        raise OpError(
            f"a masked sum expected one boolean for each place along axis {axis} of {x.spec} as "
            f"mask, got {mask.spec}"
        )
    return broadcast_in_dim(mask, x.shape, (axis,), like=(x,))
