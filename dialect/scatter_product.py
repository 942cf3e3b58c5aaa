# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Multiplying at positions along an axis, with a gradient that does not divide."""

from typing import Any

import numpy as np

from .base import in_float32
from .creation import ones_like
from .elementwise import mul_no_nan
from .indexing import Scatter, take
from .logic import select
from .scan import LinearScanOp, neighbour
from .scatter import positions
from .sort import argsort


class ScatterMulOp(Scatter, name="scatter_mul"):
    """x with slices multiplied at the given positions: y = x, then y[a, indices[i], b] *=
    updates[a, i, b] for every i. The gradient is exact where factors are 0.

    Example: `%y = "gradopt.scatter_mul"(%x, %i, %u) {axis = 0 : i64}
    : (tensor<10x4xf32>, tensor<3xi32>, tensor<3x4xf32>) -> tensor<10x4xf32>`
    """

    @classmethod
    def combine(cls, old: np.ndarray, update: np.ndarray) -> np.ndarray:
        return old * update

    @in_float32
    def vjp(self, ct: Any) -> list[Any]:
        """dx = ct * the product of the updates of a position; dupdates_i = ct * x at the position *
        the product of the other updates there: those before i and those after it
        """
        x, indices, updates, axis = self.x, self.indices, self.updates, self.axis
        factors = ScatterMulOp.emit(ones_like(x), indices, updates, axis=axis)
        n, extent = indices.spec.size, x.shape[axis]
        if n is None:
            raise self.error("a known number of indices for a gradient", indices.spec)
        rest = updates.shape[axis + indices.ndim :]
        if None in updates.shape:
            raise self.error("known extents for a gradient", updates.spec, "declare them")
        flat = updates.reshape((*updates.shape[:axis], n, *rest))
        where = positions(indices.reshape(-1), extent)
        order = argsort(where)
        place = take(where, order)
        factor = take(flat, order, axis)
        slopes = mul_no_nan(take(ct, place, axis), take(x, place, axis))
        for reverse in (False, True):
            slopes = slopes * _others(place, factor, axis, reverse)
        du = take(slopes, argsort(order), axis).reshape(updates.shape)
        return [mul_no_nan(ct, factors), None, du]


def _others(place: Any, factor: Any, axis: int, reverse: bool) -> Any:
    """For each factor the product of those before it (after it, with `reverse`) with the same
    place; equal places stand together.
    """
    follows = place.equal(neighbour(place, 0, reverse, -1))
    follows = follows.broadcast_in_dim(factor.shape, (axis,))
    before = select(follows, neighbour(factor, axis, reverse, 1), 0)
    return LinearScanOp.emit(
        before, select(follows, 0, ones_like(factor)), axis=axis, reverse=reverse
    )
