# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Padding with what the tensor itself holds: reflected, repeated, continued."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from . import builder as builders
from .base import Ints, Op, Operand, Result, Str, in_float32
from .elementwise import as_tensor
from .slicing import PadOp, SliceOp, flip, slice_axis
from .types import TensorSpec

MODES = ("reflect", "symmetric", "edge", "wrap")


class PadModeOp(Op, name="pad_mode"):
    """Elements of the tensor before (low) and after (high) each axis: y[i] = x[position(i - low)].

    For an axis a b c d, padding by 3 gives d c b | a b c d | c b a with mode "reflect", c b a | a b
    c d | d c b with "symmetric", a a a | a b c d | d d d with "edge" and b c d | a b c d | a b c
    with "wrap", and so on in turn for more.
    Example: `%y = "gradopt.pad_mode"(%x) {low = array<i64: 1>, high = array<i64: 2>, mode =
    "reflect"} : (tensor<4xf32>) -> tensor<7xf32>`
    """

    x: Operand
    low: Ints
    high: Ints
    mode: Str
    y: Result

    @classmethod
    def infer(
        cls, x: TensorSpec, low: tuple[int, ...], high: tuple[int, ...], mode: str
    ) -> TensorSpec:
        if mode not in MODES:
            raise cls.error(f"a mode out of {', '.join(MODES)}", f"'{mode}'")
        if not len(low) == len(high) == x.rank:
            raise cls.error(f"low and high of length {x.rank}", f"{len(low)} and {len(high)}")
        if min((*low, *high), default=0) < 0:
            raise cls.error("no negative padding", f"low {low}, high {high}", "slice instead")
        for axis, (n, lo, hi) in enumerate(zip(x.shape, low, high, strict=True)):
            if (lo or hi) and not n:
                raise cls.error(f"a known extent of at least 1 on padded axis {axis}", x)
        sides = zip(x.shape, low, high, strict=True)
        return x.with_shape(n if n is None else n + lo + hi for n, lo, hi in sides)

    @staticmethod
    def reference(
        x: np.ndarray, low: tuple[int, ...], high: tuple[int, ...], mode: Any
    ) -> np.ndarray:
        return np.pad(x, list(zip(low, high, strict=True)), mode)

    @in_float32
    def vjp(self, ct: Any) -> list[Any]:
        """dx = for each element, the sum of ct over its copies: runs of copies in the elements'
        order, in the opposite order, or of one element, put in their place and added
        """
        for axis in range(self.x.ndim):
            lo, hi, n = self.low[axis], self.high[axis], self.x.shape[axis]
            if lo or hi:
                where = positions(n, lo, hi, self.mode)
                ct = _added(ct, axis, n, where)
        return [ct]


def positions(n: int, low: int, high: int, mode: str) -> list[int]:
    """Which of n elements each element of the padded axis is a copy of."""
    last = n - 1
    found = []
    for i in range(-low, n + high):
        if mode == "edge":
            found.append(min(max(i, 0), last))
        elif mode == "wrap":
            found.append(i % n)
        elif mode == "symmetric":
            found.append(min(i % (2 * n), 2 * n - 1 - i % (2 * n)))
        else:
            turn = i % (2 * last) if last else 0
            found.append(min(turn, 2 * last - turn))
    return found


def runs(where: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Positions as runs with one step: (start, end, step) of each, the step 1, -1 or 0."""
    start = 0
    while start < len(where):
        end, step = start + 1, 0
        if end < len(where) and abs(where[end] - where[start]) <= 1:
            step = where[end] - where[start]
            while end < len(where) and where[end] - where[end - 1] == step:
                end += 1
        yield start, end, step
        start = end


def _added(ct: Any, axis: int, n: int, where: Sequence[int]) -> Any:
    """ct along `axis`, added up at positions `where` of n elements."""
    total = None
    for start, end, step in runs(where):
        part = slice_axis(ct, axis, start, end)
        if step == 0:
            part = part.sum(axis, keepdims=True)
        elif step < 0:
            part = flip(part, axis)
        first = min(where[start], where[end - 1])
        low = tuple(first if a == axis else 0 for a in range(ct.ndim))
        after = n - first - part.shape[axis]
        high = tuple(after if a == axis else 0 for a in range(ct.ndim))
        if any(low) or any(high):
            part = PadOp.emit(part, low=low, high=high, interior=(0,) * ct.ndim)
        total = part if total is None else total + part
    return total


# --- functions ------------------------------------------------------------------------------------


def pad(
    x: Any,
    pad_width: int | Sequence[Any],
    mode: str = "constant",
    constant_values: float = 0.0,
    interior: int | Sequence[int] = 0,
    name: str | None = None,
) -> Any:
    """`x` with elements around it, as in NumPy: `pad_width` is a number for every side, a pair
    (before, after) for every axis, or such a pair for each axis.

    With mode "constant" they are `constant_values`, of which `interior` also stand between two
    elements, a number for every or for each axis; negative widths cut off. The modes "reflect",
    "symmetric", "edge" and "wrap" take them from `x`.
    """
    with builders.owner("pad", (x,)):
        x = as_tensor(x)
        try:
            pairs = np.broadcast_to(np.asarray(pad_width, np.int64), (x.ndim, 2)).tolist()
            between = np.broadcast_to(np.asarray(interior, np.int64), (x.ndim,)).tolist()
        except (TypeError, ValueError):
            raise PadOp.error(
                f"pad_width and interior for {x.ndim} axes", f"{pad_width} and {interior}"
            ) from None
        low, high = (tuple(p[side] for p in pairs) for side in (0, 1))
        if mode != "constant":
            if any(between):
                raise PadModeOp.error("no interior padding", between, "use mode 'constant'")
            return PadModeOp.emit(x, low=low, high=high, mode=mode, name=name)
        value = float(constant_values)
        if isinstance(constant_values, int) and int(value) != constant_values:
            raise PadOp.error("a value that float64 holds exactly", constant_values)
        return _padded(x, low, high, tuple(between), value, name)


def _padded(
    x: Any,
    low: tuple[int, ...],
    high: tuple[int, ...],
    interior: tuple[int, ...],
    value: float,
    name: str | None,
) -> Any:
    """Padding where negative widths cut off, from the elements with their interior padding."""
    if min((*low, *high), default=0) >= 0:
        return PadOp.emit(x, low=low, high=high, interior=interior, value=value, name=name)
    none = (0,) * x.ndim
    if any(interior):
        x = PadOp.emit(x, low=none, high=none, interior=interior, value=value, name=name)
    limit = tuple(
        m if hi >= 0 or m is None else m + hi for m, hi in zip(x.shape, high, strict=True)
    )
    start = tuple(max(-lo, 0) for lo in low)
    x = SliceOp.emit(x, start=start, limit=limit, stride=(1,) * x.ndim, name=name)
    low, high = (tuple(max(w, 0) for w in widths) for widths in (low, high))
    if any(low) or any(high):
        x = PadOp.emit(x, low=low, high=high, interior=none, value=value, name=name)
    return x
