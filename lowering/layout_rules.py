# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How each op runs on tensors whose axes are in another order: the orders that it takes operands in
and gives results in, and its attributes then.

An order lists the axes of a tensor as they lie: axis i of what lies there is the tensor's own axis
order[i]. A rule finds all orders of an op from those that are known of some of its values, and
returns None where the op cannot run so.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from ..dialect.base import Op
from ..dialect.convolution import ConvInputGradientOp, ConvOp, ConvWeightGradientOp
from ..dialect.dynamic import UpdateSliceOp
from ..dialect.elementwise import Elementwise
from ..dialect.mlir import DYNAMIC, ir
from ..dialect.nn import SoftmaxLike
from ..dialect.norm import NormalizeOp
from ..dialect.padding import PadModeOp
from ..dialect.patches import ExtractPatchesOp, FoldPatchesOp
from ..dialect.pooling import ExtremePool, SumPoolOp, TiesOp
from ..dialect.reduction import ArgExtreme, Reduction
from ..dialect.resize import ResampleOp
from ..dialect.scan import Scan
from ..dialect.shape import BroadcastOp, ReshapeOp, TransposeOp
from ..dialect.slicing import ConcatOp, PadOp, ReverseOp, SliceOp, StackOp, UnstackOp
from ..dialect.sort import SortOp, TopKOp
from .linalg.build import matching

Order: TypeAlias = tuple[int, ...]
Known: TypeAlias = Mapping[ir.Value, Order]


@dataclasses.dataclass(frozen=True)
class Form:
    """An op in another layout: the order of each operand and result, and the attributes that
    change.
    """

    operands: tuple[Order, ...]
    results: tuple[Order, ...]
    attributes: dict[str, Any] = dataclasses.field(default_factory=dict)


Rule: TypeAlias = Callable[[Any, Known], Form | None]
RULES: dict[type[Op], Rule] = {}

CONVOLUTIONS = (ConvOp, ConvInputGradientOp, ConvWeightGradientOp)
POOLS = (SumPoolOp, ExtremePool, TiesOp)


def permutes(*op_classes: type[Op]) -> Callable[[Rule], Rule]:
    """Register the rule of op classes and of those derived from them."""

    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(op_classes, rule))
        return rule

    return register


def form_of(op: Any, known: Known) -> Form | None:
    """The form of an op that known orders of its values lead to; None if it has none."""
    for kind in type(op).__mro__:
        if kind in RULES:
            return RULES[kind](op, known)
    return None


def is_first(op: Any) -> bool:
    """Whether an op is a convolution or pool with channels first, which are lowered with channels
    last.
    """
    return isinstance(op, (*CONVOLUTIONS, *POOLS)) and not op.channels_last


# --- orders ---------------------------------------------------------------------------------------


def own(rank: int) -> Order:
    """The order that a tensor of the program has."""
    return tuple(range(rank))


def rank_of(value: ir.Value) -> int:
    return ir.RankedTensorType(value.type).rank


def own_of(value: ir.Value) -> Order:
    return own(rank_of(value))


def inverse(order: Order) -> Order:
    """Where each axis lies."""
    places = [0] * len(order)
    for place, axis in enumerate(order):
        places[axis] = place
    return tuple(places)


def between(old: Order, new: Order) -> Order:
    """The permutation that brings a tensor from one order to another."""
    places = inverse(old)
    return tuple(places[axis] for axis in new)


def images(rank: int) -> Order:
    """Channels last, of images with channels first."""
    return (0, *range(2, rank), 1)


def kernels(rank: int) -> Order:
    """(*window, C, O), of kernels (O, C, *window)."""
    return (*range(2, rank), 1, 0)


def _first_known(op: Any, known: Known) -> Order | None:
    values = [*op.operation.results, *op.operation.operands]
    return next((known[v] for v in values if v in known), None)


def _dropped(order: Order, axes: Sequence[int]) -> Order:
    """The order of a tensor without `axes`."""
    kept = sorted(set(order) - set(axes))
    return tuple(kept.index(a) for a in order if a not in axes)


def _with(order: Order, axis: int) -> Order:
    """The order of a tensor with a new axis, in front of the one that it stands before."""
    raised = [a + (a >= axis) for a in order]
    raised.insert(raised.index(axis + 1) if axis + 1 in raised else len(raised), axis)
    return tuple(raised)


def _all(op: Any, order: Order, **attributes: Any) -> Form:
    """All operands and results in one order."""
    count = len(op.operation.operands), len(op.operation.results)
    return Form((order,) * count[0], (order,) * count[1], attributes)


# --- convolutions and windows ---------------------------------------------------------------------


@permutes(ConvOp, ConvInputGradientOp)
def _conv(op: Any, known: Known) -> Form | None:
    image, kernel = images(op.x.ndim if isinstance(op, ConvOp) else op.g.ndim), kernels(op.w.ndim)
    return None if op.channels_last else Form((image, kernel), (image,), {"channels_last": True})


@permutes(ConvWeightGradientOp)
def _weight_gradient(op: Any, known: Known) -> Form | None:
    image, kernel = images(op.x.ndim), kernels(op.x.ndim)
    return None if op.channels_last else Form((image, image), (kernel,), {"channels_last": True})


@permutes(*POOLS)
def _pool(op: Any, known: Known) -> Form | None:
    return None if op.channels_last else _all(op, images(op.x.ndim), channels_last=True)


def _patches(axes: int) -> Order:
    """(N, *windows, *window, C), of patches (N, C, *window, *windows)."""
    return (0, *range(axes + 2, 2 * axes + 2), *range(2, axes + 2), 1)


@permutes(ExtractPatchesOp)
def _extract(op: Any, known: Known) -> Form | None:
    if op.channels_last:
        return None
    return Form((images(op.x.ndim),), (_patches(op.x.ndim - 2),), {"channels_last": True})


@permutes(FoldPatchesOp)
def _fold(op: Any, known: Known) -> Form | None:
    if op.channels_last:
        return None
    return Form((_patches(op.x.ndim - 2),), (images(op.x.ndim),), {"channels_last": True})


# --- what works on all axes alike, or on some -----------------------------------------------------


@permutes(Elementwise)
def _elementwise(op: Any, known: Known) -> Form | None:
    order = _first_known(op, known)
    return None if order is None else _all(op, order)


@permutes(SoftmaxLike, Scan, SortOp, TopKOp, ResampleOp, ConcatOp)
def _along_axis(op: Any, known: Known) -> Form | None:
    order = _first_known(op, known)
    return None if order is None else _all(op, order, axis=inverse(order)[op.axis])


@permutes(ReverseOp)
def _reverse(op: Any, known: Known) -> Form | None:
    order = _first_known(op, known)
    return None if order is None else _all(op, order, axes=_moved(op.axes, order))


def _moved(axes: Sequence[int], order: Order) -> tuple[int, ...]:
    places = inverse(order)
    return tuple(sorted(places[a] for a in axes))


def _by_axis(*names: str) -> Rule:
    """The rule of ops with attributes that have a number for each axis."""

    def rule(op: Any, known: Known) -> Form | None:
        order = _first_known(op, known)
        if order is None:
            return None
        return _all(op, order, **{n: tuple(getattr(op, n)[a] for a in order) for n in names})

    return rule


permutes(PadOp)(_by_axis("low", "high", "interior"))
permutes(PadModeOp)(_by_axis("low", "high"))
permutes(SliceOp)(_by_axis("start", "limit", "stride"))
permutes(UpdateSliceOp)(_by_axis("start", "stride"))


@permutes(Reduction)
def _reduction(op: Any, known: Known) -> Form | None:
    order = known.get(op.operation.operands[0])
    if order is None:
        return None
    return Form((order,), (_dropped(order, op.axes),), {"axes": _moved(op.axes, order)})


@permutes(ArgExtreme)
def _arg_extreme(op: Any, known: Known) -> Form | None:
    order, axis = known.get(op.operation.operands[0]), op.axis
    if order is None:
        return None
    return Form((order,), (_dropped(order, [axis]),), {"axis": inverse(order)[axis]})


@permutes(NormalizeOp)
def _normalize(op: Any, known: Known) -> Form | None:
    x, (y, *_) = op.operation.operands[0], op.operation.results
    order = known.get(y, known.get(x))
    if order is None:
        return None
    row = _dropped(order, op.axes)
    return Form((order,), (order, row, row), {"axes": _moved(op.axes, order)})


# --- what changes the number of axes --------------------------------------------------------------


@permutes(BroadcastOp)
def _broadcast(op: Any, known: Known) -> Form | None:
    """The operand's axes come in the order of those that they become"""
    x, *like = op.operation.operands
    order = known.get(op.operation.results[0])
    if order is None and x in known and op.x.ndim == len(op.shape):
        order = known[x]
    if order is None:
        return None
    places = inverse(order)
    inner = tuple(sorted(range(op.x.ndim), key=lambda a: places[op.dims[a]]))
    attributes = {
        "shape": tuple(op.shape[a] for a in order),
        "dims": tuple(places[op.dims[a]] for a in inner),
    }
    return Form((inner, *(order for _ in like)), (order,), attributes)


@permutes(StackOp)
def _stack(op: Any, known: Known) -> Form | None:
    orders = _along_new_axis(op, op.operation.results[0], known)
    if orders is None:
        return None
    whole, part = orders
    count = len(op.operation.operands)
    return Form((part,) * count, (whole,), {"axis": inverse(whole)[op.axis]})


@permutes(UnstackOp)
def _unstack(op: Any, known: Known) -> Form | None:
    orders = _along_new_axis(op, op.operation.operands[0], known)
    if orders is None:
        return None
    whole, part = orders
    count = len(op.operation.results)
    return Form((whole,), (part,) * count, {"axis": inverse(whole)[op.axis]})


def _along_new_axis(op: Any, value: ir.Value, known: Known) -> tuple[Order, Order] | None:
    """The orders of the tensor that has the axis of a stack, and of its parts, which have not."""
    whole = known.get(value)
    if whole is None:
        part = _first_known(op, known)
        whole = part and _with(part, op.axis)
    return None if whole is None else (whole, _dropped(whole, [op.axis]))


@permutes(TransposeOp)
def _transpose(op: Any, known: Known) -> Form | None:
    """What is left to do between the operand's order and the result's"""
    x, y = op.operation.operands[0], op.operation.results[0]
    if x not in known and y not in known:
        return None
    before, after = known.get(x, own_of(x)), known.get(y, own_of(y))
    left = between(before, tuple(op.permutation[a] for a in after))
    return Form((before,), (after,), {"permutation": left})


@permutes(ReshapeOp)
def _reshape(op: Any, known: Known) -> Form | None:
    """Axes that are merged or split have to lie next to each other, in their order. Extents of 1
    may lie anywhere
    """
    x, *like = op.operation.operands
    y = op.operation.results[0]
    groups = _groups(op.x.shape, op.shape)
    if groups is None or (x not in known and y not in known):
        return None
    before, after = known.get(x), known.get(y)
    if before is None and after is not None:
        before = _across(after, [(b, a) for a, b in groups], op.x.shape)
    if after is None and before is not None:
        after = _across(before, groups, op.shape)
    if before is None or after is None or not _agree(before, after, groups):
        return None
    shape = tuple(op.shape[a] for a in after)
    if shape.count(None) > 1 and not like:
        return None
    return Form((before, *(after for _ in like)), (after,), {"shape": shape})


Groups: TypeAlias = list[tuple[list[int], list[int]]]


def _groups(old: Sequence[int | None], new: Sequence[int | None]) -> Groups | None:
    """Which axes of one shape are which of another, extents of 1 left out."""
    kept = [[a for a, n in enumerate(shape) if n != 1] for shape in (old, new)]
    if max(old.count(None), new.count(None)) > 1:
        return None
    if not any(kept):
        return []
    sizes = [
        [DYNAMIC if shape[a] is None else shape[a] for a in axes]
        for shape, axes in zip((old, new), kept, strict=True)
    ]
    found = matching(*sizes)  # type: ignore[arg-type]
    if found is None:
        return None
    return [([kept[0][i] for i in a], [kept[1][i] for i in b]) for a, b in found]


def _across(order: Order, groups: Groups, shape: Sequence[int | None]) -> Order:
    """The order behind a reshape, extents of 1 behind the axes that they stand behind."""
    after: list[int] = []
    for axis in order:
        after += next((b for a, b in groups if a and a[0] == axis), [])
    for axis in range(len(shape)):
        if axis not in after:
            after.insert(after.index(axis - 1) + 1 if axis else 0, axis)
    return tuple(after)


def _agree(before: Order, after: Order, groups: Groups) -> bool:
    """Whether a reshape from one order to another moves no element."""
    axes = [{a for g in groups for a in g[side]} for side in (0, 1)]
    first, second = [[a for a in o if a in s] for o, s in zip((before, after), axes, strict=True)]
    at = [0, 0]
    while at[0] < len(first):
        group = next((g for g in groups if g[0] and g[0][0] == first[at[0]]), None)
        if group is None:
            return False
        for side, whole in enumerate((first, second)):
            end = at[side] + len(group[side])
            if whole[at[side] : end] != group[side]:
                return False
            at[side] = end
    return at[1] == len(second)
