# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Labels as rows of 0 and 1, counts of integers, and where elements are not 0.

How many elements are not 0 depends on data, and shapes must not: what lists them takes a size.
"""

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import OpError
from . import builder as builders
from .base import NO_GRADIENT, DType, Int, Op, Operand, Result
from .creation import constant, elements, full, zeros
from .elementwise import as_tensor
from .indexing import scatter_add
from .logic import select
from .reduction import sum as sum_of
from .scan import cumsum
from .scatter import as_index, scatter_set
from .slicing import stack
from .types import TensorSpec, as_dtype, bool_, float32, int32, is_integer


class OneHotOp(Op, name="one_hot"):
    """1 at each label along a new last axis, 0 elsewhere: y[i, c] = (labels[i] = c). Labels outside
    [0, classes) give all zeros.

    Example: `%y = "gradopt.one_hot"(%labels) {classes = 4 : i64, dtype = f32} : (tensor<3xi32>) ->
    tensor<3x4xf32>`
    """

    labels: Operand
    classes: Int
    dtype: DType
    y: Result

    @classmethod
    def infer(cls, labels: TensorSpec, classes: int, dtype: np.dtype) -> TensorSpec:
        if not is_integer(labels.dtype):
            raise cls.error("integer labels", labels, "convert them by astype")
        if classes < 0:
            raise cls.error("a number of classes of at least 0", classes)
        return TensorSpec((*labels.shape, classes), dtype)

    @staticmethod
    def reference(labels: np.ndarray, classes: int, dtype: np.dtype) -> np.ndarray:
        return (labels[..., None].astype(np.int64) == np.arange(classes)).astype(dtype)

    @staticmethod
    def decompose(labels: Any, classes: int, dtype: np.dtype) -> Any:
        """labels = 0, 1, 2, ..., compared along the new axis"""
        labels = as_index(labels)
        shape = (*labels.shape, classes)
        columns = constant(np.arange(classes).astype(labels.dtype)).broadcast_in_dim(
            shape, (labels.ndim,), like=(labels.expand_dims(-1),)
        )
        rows = labels.broadcast_in_dim(shape, tuple(range(labels.ndim)))
        return rows.equal(columns).astype(dtype)

    vjp = NO_GRADIENT


# --- functions ------------------------------------------------------------------------------------


def one_hot(labels: Any, classes: int, dtype: Any = float32) -> Any:
    """1 at each label along a new last axis of extent `classes`, 0 elsewhere; labels outside give
    all zeros.
    """
    return OneHotOp.emit(as_tensor(labels), classes=classes, dtype=as_dtype(dtype))


def bincount(x: Any, length: int, weights: Any = None) -> Any:
    """How often each number in [0, length) stands in the integers `x`, or the sum of the `weights`
    that stand with it. Other numbers are not counted.
    """
    with builders.owner("bincount", (x, weights)):
        x = as_tensor(x)
        length = _size("bincount", length, "length")
        if not is_integer(x.dtype):
            raise OpError(f"bincount expected integers, got {x.spec}; convert them by astype")
        if weights is None:
            values = x.equal(x).astype(int32)
        else:
            values = as_tensor(weights)
            values = values.astype(int32) if values.dtype == bool_ else values
            if values.shape != x.shape:
                raise OpError(f"bincount expected weights of shape {x.shape}, got {values.spec}")
        x = as_index(x)
        where = select((x < 0) | (x >= length), length, x)  # the last place is for the others
        return scatter_add(zeros(length + 1, values.dtype), where, values).slice_axis(0, 0, length)


def count_nonzero(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """How many elements over `axis` (None: all) are not 0, as int32."""
    return sum_of(as_tensor(x).astype(bool_), axis, keepdims)


def nonzero(x: Any, size: int | None = None, fill_value: Any = 0) -> tuple[Any, ...]:
    """Positions (int32) of the first `size` elements that are not 0, in row-major order: a row for
    each axis. What is left over holds `fill_value`, a number or one for each axis.

    Without `size` of all of them, in imperative mode and of constants: how many there are depends
    on data. OpError for a tensor of a graph.
    """
    with builders.owner("nonzero", (x,)):
        if size is None and (known := elements(x)) is not None:
            if known.ndim == 0:
                raise OpError("nonzero expected at least one axis, got an array of rank 0")
            return tuple(constant(row.astype(int32)) for row in np.nonzero(known))
        x = as_tensor(x)
        if size is None:
            raise OpError(
                "nonzero expected a size, because a shape must not depend on data; give the most "
                "elements there can be as size=, or use where() for a choice between tensors"
            )
        size = _size("nonzero", size, "size")
        if not x.ndim or not x.spec.is_static:
            raise OpError(f"nonzero expected known extents and at least one axis, got {x.spec}")
        count = x.spec.size or 0
        fills = np.broadcast_to(np.asarray(fill_value, np.int32), (x.ndim,))
        if count == 0:
            return tuple(full(size, int(f), int32) for f in fills)
        found = x.reshape(-1).astype(bool_)
        place = cumsum(found) - 1
        place = select(found & (place < size), place, size)  # the last place is for the others
        flat = scatter_set(full(size + 1, count, int32), place, np.arange(count, dtype=np.int32))
        flat = flat.slice_axis(0, 0, size)
        rows = unravel_index(flat, x.spec.extents)
        return tuple(
            select(flat.equal(count), int(f), row) for f, row in zip(fills, rows, strict=True)
        )


def argwhere(x: Any, size: int | None = None, fill_value: Any = 0) -> Any:
    """Positions (int32) of the first `size` elements that are not 0, a row for each; what is left
    over holds `fill_value`.
    """
    return stack(nonzero(x, size, fill_value), axis=-1)


def unravel_index(indices: Any, shape: int | Sequence[int]) -> tuple[Any, ...]:
    """Positions along each axis of `shape` from row-major positions in it, which may be negative to
    count from the end; one outside is the nearest inside.
    """
    with builders.owner("unravel_index", (indices,)):
        extents = (shape,) if isinstance(shape, int) else tuple(shape)
        i = as_tensor(indices)
        if not is_integer(i.dtype):
            raise OpError(f"unravel_index expected integers, got {i.spec}")
        i = as_index(i)
        count = int(np.prod(extents, dtype=np.int64))
        i = select(i < 0, i + count, i).clip(0, max(count - 1, 0))
        rows: list[Any] = []
        for n in reversed(extents):
            rows.append(i % max(n, 1))
            i = i // max(n, 1)
        return tuple(rows[::-1])


def _size(name: str, value: Any, what: str) -> int:
    try:
        found = operator.index(value)
    except TypeError:
        found = -1
    if found < 0:
        raise OpError(f"{name} expected a {what} that is a known number, got {value!r}")
    return found
