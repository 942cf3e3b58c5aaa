# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""`x[key]` and `x.at[key]`: integers, slices, None, `...`, index arrays and boolean masks, with
NumPy's rules.

A key is taken in two parts. Integers and slices name a block, which is read by slicing and written
by padding or choosing. Index arrays name slices of that block, together: the axes that they index
go to the front and become one, and rows of it are read or written.
"""

import dataclasses
import functools
import math
from typing import Any

import numpy as np

from ..errors import OpError, PlaceError
from . import builder as builders
from .arithmetic import maximum, minimum
from .base import Op
from .dynamic import UpdateSliceOp
from .elementwise import as_tensor, broadcast_shapes
from .indexing import TakeOp
from .mlir import ir
from .padding import pad
from .scatter import as_index, flat_positions, scatter
from .shape import broadcast_to, expand_dims, squeeze, transpose, unchanged
from .slicing import SliceOp, flip, slice_axis
from .types import TensorSpec, is_integer


@dataclasses.dataclass
class Axis:
    """What a key says of one axis of the tensor: a part of it that is a slice, or an index array
    (as a tensor) over the whole axis.
    """

    start: int = 0
    count: int | None = None  # None for a whole axis
    step: int = 1
    dropped: bool = False  # named by an integer
    array: Any = None

    @property
    def first(self) -> int:
        """The least position of the slice."""
        return self.start + ((self.count or 1) - 1) * min(self.step, 0)


class Key:
    """What `x[key]` names."""

    def __init__(self, x: Any, key: Any) -> None:
        self.x = x
        items = _full_key(x, key)
        self.axes: list[Axis] = []
        self.layout: list[int | None] = []  # axes of x, and None for new ones, as the key has them
        for item in items:
            if item is None:
                self.layout.append(None)
                continue
            axis = len(self.axes)
            self.layout.append(axis)
            if isinstance(item, slice):
                self.axes.append(_sliced(x, axis, item))
            elif _is_integer(item):
                self.axes.append(_picked(x, axis, int(item)))
            else:
                self.axes.append(Axis(array=item))
        self.arrays = [a for a, axis in enumerate(self.axes) if axis.array is not None]
        self.shape: tuple[int | None, ...] = ()  # of the index arrays, broadcast together
        self.place = 0  # of their axes in the result
        if self.arrays:
            self._join_arrays(items)

    def _join_arrays(self, items: list[Any]) -> None:
        """Broadcast the index arrays together, and find where their axes go."""
        tensors = [self.axes[a].array for a in self.arrays]
        self.shape = broadcast_shapes(TakeOp, *(t.shape for t in tensors))
        likes = [t for t in tensors if None in t.shape]
        for a, t in zip(self.arrays, tensors, strict=True):
            wide = t if t.shape == self.shape else broadcast_to(as_index(t), self.shape, likes)
            self.axes[a].array = wide
        named = [i for i, item in enumerate(items) if not (item is None or isinstance(item, slice))]
        together = named == list(range(named[0], named[-1] + 1))
        before = [a for a in self.layout[: named[0]] if a is None or not self.axes[a].dropped]
        self.place = len(before) if together else 0  # as NumPy has it

    def block(self) -> Any:
        """The part of x that slices and integers name; an axis of an integer has extent 1."""
        y = self.x
        for a, axis in enumerate(self.axes):
            if axis.count is not None:
                step = abs(axis.step)
                limit = axis.first + max((axis.count - 1) * step + 1, 0)
                y = y.slice_axis(a, axis.first, limit, step)
        return self._turned(y)

    def _turned(self, y: Any) -> Any:
        """A block with the axes of negative steps reversed."""
        turned = [a for a, axis in enumerate(self.axes) if axis.step < 0 and axis.count != 0]
        return flip(y, turned) if turned else y

    def _others(self) -> list[int]:
        """The axes of a block that no index array indexes."""
        return [a for a in range(len(self.axes)) if a not in self.arrays]

    def table(self, block: Any) -> tuple[Any, Any]:
        """A block as rows, and the positions of those that the index arrays name."""
        extents = [block.shape[a] for a in self.arrays]
        for a, n in zip(self.arrays, extents, strict=True):
            if n is None or (n == 0 and 0 not in self.shape):
                raise TakeOp.error(f"a known extent of at least 1 on axis {a}", self.x.spec)
        moved = transpose(block, self.arrays + self._others())
        if len(self.arrays) == 1:
            return moved, self.axes[self.arrays[0]].array
        shape = (math.prod(extents), *moved.shape[len(self.arrays) :])
        if shape.count(None) > 1:
            raise TakeOp.error("at most one unknown extent with several index arrays", block.spec)
        return moved.reshape_to(shape), flat_positions(
            [self.axes[a].array for a in self.arrays], extents
        )

    def from_table(self, rows: Any, block: Any) -> Any:
        """Rows as the block again."""
        order = self.arrays + self._others()
        if len(self.arrays) > 1:
            rows = rows.reshape_to(tuple(block.shape[a] for a in order))
        return transpose(rows, np.argsort(order).tolist())

    def _result(self) -> list[Any]:
        """The axes of `x[key]`: axes of x, None for new ones, and "0", "1", ... for those of the
        index arrays.
        """
        kept = [
            a
            for a in self.layout
            if a is None or not (self.axes[a].dropped or self.axes[a].array is not None)
        ]
        return [*kept[: self.place], *map(str, range(len(self.shape))), *kept[self.place :]]

    def read(self) -> Any:
        """`x[key]`."""
        y = self.block()
        axes: list[Any] = list(range(len(self.axes)))
        names = list(map(str, range(len(self.shape))))
        if len(self.arrays) == 1:
            (a,) = self.arrays
            y = TakeOp.emit(y, self.axes[a].array, axis=a)
            axes = [*axes[:a], *names, *axes[a + 1 :]]
        elif self.arrays:
            rows, where = self.table(y)
            y = TakeOp.emit(rows, where, axis=0)
            axes = [*names, *self._others()]
        gone = [i for i, a in enumerate(axes) if a not in names and self.axes[a].dropped]
        y = y.squeeze(gone) if gone else y
        axes = [a for i, a in enumerate(axes) if i not in gone]
        result = self._result()
        y = transpose(y, [axes.index(a) for a in result if a is not None])
        new = [i for i, a in enumerate(result) if a is None]
        return y.expand_dims(new) if new else y

    def spread(self, value: Any) -> Any:
        """`value`, broadcast to the shape of `x[key]`, in the form of a block, or of the rows that
        the index arrays name.
        """
        result, names = self._result(), list(map(str, range(len(self.shape))))
        extents = [
            1 if a is None else self.shape[int(a)] if a in names else self._extent(a)
            for a in result
        ]
        value = broadcast_to(value, extents, [self.read()] if None in extents else [])
        new = [i for i, a in enumerate(result) if a is None]
        value = value.squeeze(new) if new else value
        result = [a for a in result if a is not None]
        order = names + [a for a in self._others() if not self.axes[a].dropped]
        value = transpose(value, [result.index(a) for a in order])
        whole = names + self._others()
        added = [i for i, a in enumerate(whole) if a not in order]
        return value.expand_dims(added) if added else value

    def _extent(self, a: int) -> int | None:
        count = self.axes[a].count
        return self.x.shape[a] if count is None else count

    def write_back(self, block: Any) -> Any:
        """x with its block replaced."""
        block = self._turned(block)
        if block.shape == self.x.shape:
            return block
        start = [axis.first for axis in self.axes]
        stride = [abs(axis.step) for axis in self.axes]
        return UpdateSliceOp.emit(self.x, block, start=tuple(start), stride=tuple(stride))

    def add_back(self, block: Any) -> Any:
        """x with a block added to it."""
        block = self._turned(block)
        if block.shape == self.x.shape:
            return self.x + block
        widths, between = [], []
        for a, axis in enumerate(self.axes):
            step, count = abs(axis.step), axis.count
            after = 0 if count is None else self.x.shape[a] - axis.first - (count - 1) * step - 1
            widths.append((axis.first, after))
            between.append(0 if count in (None, 1) else step - 1)
        return self.x + pad(block, widths, interior=between)


def getitem(x: Any, key: Any) -> Any:
    """`x[key]` for integers, slices (negative steps too), None, `...`, integer arrays or tensors,
    which broadcast together, and boolean masks that are arrays, not tensors of a graph: of 0 or 1
    elements along a new axis for a mask of rank 0.
    """
    frozen = _frozen(key)
    if frozen is None or None in x.shape:
        if (whole := _whole_mask(key)) is not None:
            x, key = x.expand_dims(0), whole
        found = Key(x, key).read()
        return unchanged(x) if found is x else found
    if not (steps := _steps(x.shape, x.dtype, frozen)):
        return unchanged(x)
    for op_class, attributes in steps:
        x = op_class.emit(x, **attributes)
    return x


def _frozen(key: Any) -> tuple[Any, ...] | None:
    """A key of integers, slices of integers, None and `...`, in a form that has a hash; None for
    others.
    """
    found: list[Any] = []
    for item in key if type(key) is tuple else (key,):
        if type(item) is slice:
            bounds = item.start, item.stop, item.step
            if not all(b is None or type(b) is int for b in bounds):
                return None
            found.append(bounds)
        elif item is None or item is Ellipsis or type(item) is int:
            found.append(item)
        else:
            return None
    return tuple(found)


@functools.lru_cache(maxsize=4096)
def _steps(
    shape: tuple[int, ...], dtype: Any, frozen: tuple[Any, ...]
) -> tuple[tuple[type[Op], dict[str, Any]], ...]:
    """The ops that read a key, one after the other, from a tensor of a type; found once."""
    key = tuple(slice(*item) if type(item) is tuple else item for item in frozen)
    noted = _Noted()
    with builders.emitting_to(noted):
        Key(_StandIn(TensorSpec(shape, dtype)), key).read()
    return tuple(noted.steps)


class _StandIn:
    """A tensor of which only the type is asked."""

    graph = None
    slice_axis, squeeze, expand_dims = slice_axis, squeeze, expand_dims

    def __init__(self, spec: TensorSpec) -> None:
        self.spec, self.shape, self.dtype, self.ndim = spec, spec.shape, spec.dtype, spec.rank


class _Noted:
    """Notes ops of one operand, each on the result of the one before, with the interface of a
    Builder.
    """

    def __init__(self) -> None:
        self.steps: list[tuple[type[Op], dict[str, Any]]] = []

    def add(
        self, op_class: type[Op], operands: tuple[Any], attributes: dict[str, Any], name: Any = None
    ) -> _StandIn:
        attributes = op_class.with_defaults(attributes)
        self.steps.append((op_class, attributes))
        spec: Any = op_class.infer(operands[0].spec, **attributes)
        return _StandIn(spec)


def _whole_mask(key: Any) -> np.ndarray | None:
    """The mask of one axis that a mask of rank 0 is; None for other keys."""
    if isinstance(key, tuple) and len(key) == 1:
        key = key[0]
    is_mask = isinstance(key, bool) or (getattr(key, "dtype", None) == np.bool_ and not key.ndim)
    return np.reshape(key, (1,)) if is_mask and not isinstance(key, ir.Value) else None


class At:
    """`x.at[key]`: what `x` is with the part that `key` names changed. The tensor itself is not."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __getitem__(self, key: Any) -> "Part":
        return Part(self.x, key)


@dataclasses.dataclass
class Part:
    """`x.at[key]`. Updates broadcast to the shape of `x[key]`; where an index array names a place
    several times, each update counts, in row-major order.
    """

    x: Any
    key: Any

    def get(self) -> Any:
        """`x[key]`."""
        return getitem(self.x, self.key)

    def set(self, value: Any) -> Any:
        """x with `x[key]` replaced by `value`; of several values for a place the last one stays."""
        return self._change("set", value)

    def add(self, value: Any) -> Any:
        """x with `value` added to `x[key]`."""
        return self._change("add", value)

    def multiply(self, value: Any) -> Any:
        """x with `x[key]` multiplied by `value`."""
        return self._change("mul", value)

    def max(self, value: Any) -> Any:
        """x with the larger of `x[key]` and `value`."""
        return self._change("max", value)

    def min(self, value: Any) -> Any:
        """x with the smaller of `x[key]` and `value`."""
        return self._change("min", value)

    def _change(self, mode: str, value: Any) -> Any:
        if (whole := _whole_mask(self.key)) is not None:
            return Part(self.x.expand_dims(0), whole)._change(mode, value).squeeze(0)
        key = Key(self.x, self.key)
        value = key.spread(as_tensor(value, self.x.dtype))
        if not key.arrays:
            if mode == "add":
                return key.add_back(value)
            return key.write_back(value if mode == "set" else COMBINE[mode](key.block(), value))
        block = key.block()
        rows, where = key.table(block)
        return key.write_back(key.from_table(scatter(mode, rows, where, value), block))


COMBINE = {"mul": lambda a, b: a * b, "max": maximum, "min": minimum}


# --- reading a key --------------------------------------------------------------------------------


def _is_integer(item: Any) -> bool:
    return isinstance(item, int | np.integer) and not isinstance(item, bool)


def _is_basic(item: Any) -> bool:
    return item is None or item is Ellipsis or isinstance(item, slice) or _is_integer(item)


def _full_key(x: Any, key: Any) -> list[Any]:
    """One item an axis of `x`, plus None for each new axis; `...` and what is left out written as
    full slices, masks as index arrays.
    """
    items = [
        i if _is_basic(i) else _index_array(i) for i in (key if isinstance(key, tuple) else [key])
    ]
    dots = [i for i, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1:
        raise SliceOp.error("at most one `...`", len(dots))
    counts = [
        0 if i is None or i is Ellipsis else i.ndim if isinstance(i, np.ndarray) else 1
        for i in items
    ]
    if sum(counts) > x.ndim:
        raise SliceOp.error(f"at most {x.ndim} indices for {x.spec}", sum(counts), kind=PlaceError)
    at = dots[0] if dots else len(items)
    rest = [slice(None)] * (x.ndim - sum(counts))
    found: list[Any] = []
    axis = 0
    for item in [*items[:at], *rest, *items[at + 1 :]]:
        if isinstance(item, np.ndarray):
            over = x.shape[axis : axis + item.ndim]
            if any(m and n not in (None, m) for n, m in zip(over, item.shape, strict=True)):
                raise TakeOp.error(f"a mask of shape {over}", item.shape, kind=PlaceError)
            found += [as_tensor(p.astype(np.int32)) for p in np.nonzero(item)]
            axis += item.ndim
        else:
            found.append(item)
            axis += item is not None
    return found


def _index_array(item: Any) -> Any:
    """An index array as a tensor; a constant mask as it is."""
    try:
        if not isinstance(item, ir.Value):
            array = np.asarray(item)
            if array.dtype == np.bool_ and array.ndim:
                return array
        if not hasattr(item, "graph"):
            item = array.astype(np.int32) if array.size == 0 else item  # [] has floats
        indices = as_tensor(item)
    except (OpError, ValueError):
        got, remedy = f"{type(item).__name__} {item!r:.40}", ""
    else:
        if is_integer(indices.dtype):
            return indices
        remedy = "shapes must not depend on data: use where() for a mask, or nonzero(mask, size=)"
        got = indices.spec
    raise TakeOp.error(
        "an index of integers, slices, None, ..., a NumPy mask or an integer array", got, remedy
    )


def _sliced(x: Any, axis: int, item: slice) -> Axis:
    if item.start is item.stop is item.step is None:
        return Axis()
    n = x.shape[axis]
    if n is None:
        raise SliceOp.error(f"axis {axis}, whose extent is unknown, to be kept whole", item)
    if item.step == 0:
        raise SliceOp.error("a step other than 0", item)
    start, stop, step = item.indices(n)
    count = len(range(start, stop, step))
    if count == 0:
        return Axis(0, 0)
    whole = (count == n) and abs(step) == 1
    return Axis(start, None if whole and step == 1 else count, step)


def _picked(x: Any, axis: int, position: int) -> Axis:
    n = x.shape[axis]
    if n is None:
        raise SliceOp.error(f"axis {axis}, whose extent is unknown, to be kept whole", position)
    if not -n <= position < n:
        raise SliceOp.error(
            f"an index in [-{n}, {n}) on axis {axis} of {x.spec}", position, kind=PlaceError
        )
    return Axis(position % n, 1, dropped=True)
