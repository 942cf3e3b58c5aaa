# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-simplify: algebra, constant folding and the undoing of moves that cancel, before MLIR's
own cse and canonicalize.

Every rule keeps values bit for bit, but for those that say otherwise; none hides a NaN or infinity
that a user's op makes.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..dialect.arithmetic import AddOp, DivOp, MulOp, NegOp, SubOp
from ..dialect.base import Op
from ..dialect.builder import Builder
from ..dialect.contraction import DotGeneralOp, free_axes
from ..dialect.control import DerivativeOp, OptimizationBarrierOp, StopGradientOp, TagOp, symbols
from ..dialect.creation import ConstantOp, constant, zeros_like
from ..dialect.elementwise import Elementwise, MulNoNanOp
from ..dialect.indexing import ScatterAddOp
from ..dialect.logic import ConvertOp, SelectOp
from ..dialect.mlir import ir, op_of, passmanager
from ..dialect.reduction import Reduction
from ..dialect.shape import BroadcastOp, ReshapeOp, TransposeOp
from ..dialect.slicing import ConcatOp, PadOp, ReverseOp, SliceOp, StackOp, UnstackOp, concat
from .passes import gradopt_pass

FOLD_LIMIT = 4096
"""Largest constant, in elements, that folding makes where it is not a splat."""

Rule = Callable[[Any], Any]
RULES: dict[type[Op], list[Rule]] = {}


@gradopt_pass("gradopt-simplify")
def simplify(module: ir.Module, *, max_iterations: int = 4) -> None:
    """Remove work that algebra shows to be needless, fold constants, then run MLIR's cse and
    canonicalize.
    """
    functions = [f for f in symbols(module).values() if not f.is_external]
    differentiable = any(
        isinstance(op, DerivativeOp) for f in functions for op in f.entry_block.operations
    )
    for _ in range(max_iterations):
        changed = [sweep(f.entry_block, keep_stops=differentiable) for f in functions]
        passmanager.PassManager.parse("builtin.module(cse,canonicalize)").run(module.operation)
        if not any(changed):
            break


def sweep(block: ir.Block, keep_stops: bool) -> bool:
    """Apply the rules once to every op, operands first; True if anything changed.

    `keep_stops` keeps stop_gradient and tag, which have a meaning as long as derivatives are still
    to be written out.
    """
    changed = False
    for op in list(block.operations):
        if not isinstance(op, Op) or (keep_stops and isinstance(op, StopGradientOp | TagOp)):
            continue
        if isinstance(op, OptimizationBarrierOp) and not list(op.operation.results[0].uses):
            op.operation.erase()  # MLIR does not know that it does nothing
            changed = True
            continue
        with Builder(ir.InsertionPoint(op), op.location):
            new = simpler(op)
        if new is not None:
            for old, replacement in zip(op.operation.results, new, strict=True):
                old.replace_all_uses_with(ir.Value(replacement))
            op.operation.erase()
            changed = True
    return changed


def simpler(op: Op) -> list[Any] | None:
    """Replacements of the op's results; None if no rule applies."""
    if (folded := fold(op)) is not None:
        return folded
    for kind in type(op).__mro__:
        for rule in RULES.get(kind, ()):
            if (new := rule(op)) is not None:
                return new if isinstance(new, list) else [new]
    return None


def simplifies(op_class: type[Op]) -> Callable[[Rule], Rule]:
    """Register a rule for an op class: op -> replacement tensor (or list of them), or None."""

    def register(rule: Rule) -> Rule:
        RULES.setdefault(op_class, []).append(rule)
        return rule

    return register


@simplifies(TagOp)
def _tag(op: Any) -> Any:
    return op.x


# --- constants ------------------------------------------------------------------------------------


def constant_of(value: ir.Value) -> np.ndarray | None:
    """The array behind a constant."""
    return op.value if isinstance(op := op_of(value), ConstantOp) else None


def splat_of(value: Any) -> np.generic | None:
    """The one number that a constant is filled with."""
    array = constant_of(ir.Value(value))
    if (
        array is None
        or array.size == 0
        or any(s != 0 and n != 1 for s, n in zip(array.strides, array.shape, strict=True))
    ):
        return None
    return array[(0,) * array.ndim]


def is_splat(value: Any, number: float) -> bool:
    found = splat_of(value)
    return found is not None and bool(found == number)


def fold(op: Op) -> list[Any] | None:
    """The op's results as constants, if its operands are constants and the results small or filled
    with one number.
    """
    if isinstance(op, ConstantOp | OptimizationBarrierOp) or not op.operation.operands:
        return None
    operands = op.operation.operands
    arrays = [a for o in operands if (a := constant_of(o)) is not None]
    if len(arrays) < len(operands):
        return None
    specs = op.result_specs()
    numbers = [n for o in operands if (n := splat_of(o)) is not None]
    if len(numbers) == len(operands) and specs[0].is_static:
        if isinstance(op, Elementwise):
            (value,) = op.evaluate(*map(np.asarray, numbers), **op.read_attributes())
            return [constant(np.broadcast_to(value, specs[0].extents))]
        if isinstance(op, BroadcastOp | ReshapeOp | TransposeOp):
            return [constant(np.broadcast_to(np.asarray(numbers[0]), specs[0].extents))]
    sizes = [s.size for s in specs] + [a.size for a in arrays]
    if any(size is None or size > FOLD_LIMIT for size in sizes):
        return None
    return [constant(v) for v in op.evaluate(*arrays, **op.read_attributes())]


# --- algebra --------------------------------------------------------------------------------------


@simplifies(AddOp)
def _add_zero(op: Any) -> Any:
    """x + 0 = x (-0.0 + 0.0 becomes -0.0)"""
    return op.lhs if is_splat(op.rhs, 0) else op.rhs if is_splat(op.lhs, 0) else None


@simplifies(SubOp)
def _sub_zero(op: Any) -> Any:
    """x - 0 = x, but -0 - -0 = 0"""
    zero = splat_of(op.rhs)
    return op.lhs if zero is not None and zero == 0 and not np.signbit(zero) else None


@simplifies(MulOp)
def _mul_one(op: Any) -> Any:
    """x * 1 = x, x * -1 = -x"""
    for x, c in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
        if is_splat(c, 1):
            return x
        if is_splat(c, -1):
            return -x
    return None


@simplifies(DivOp)
def _div_one(op: Any) -> Any:
    """x / 1 = x, and x / c = x * (1 / c) where c is a power of two, whose reciprocal is exact"""
    c = splat_of(op.rhs)
    if c is None or not np.isfinite(c) or c == 0:
        return None
    if c == 1:
        return op.lhs
    mantissa, exponent = math.frexp(abs(float(c)))
    return (
        op.lhs * (1 / float(c))
        if mantissa == 0.5 and -100 < exponent < 100 and op.lhs.dtype.itemsize >= 4
        else None
    )


@simplifies(MulNoNanOp)
def _mul_no_nan(op: Any) -> Any:
    """0 * s = 0, 1 * s = s, ct * 1 = ct; with a finite number on one side the guard is not needed,
    and * is enough
    """
    ct, slope = splat_of(op.lhs), splat_of(op.rhs)
    if ct is not None:
        return zeros_like(op.lhs) if ct == 0 else op.rhs if ct == 1 else op.lhs * op.rhs
    if slope is not None and np.isfinite(slope):
        return op.lhs if slope == 1 else op.lhs * op.rhs
    return None


@simplifies(NegOp)
def _double_negation(op: Any) -> Any:
    """-(-x) = x"""
    return inner.x if (inner := defined_by(op.x, NegOp)) else None


@simplifies(SelectOp)
def _known_choice(op: Any) -> Any:
    """A known condition, or two equal sides"""
    if (condition := splat_of(op.condition)) is not None:
        return op.on_true if condition else op.on_false
    return op.on_true if ir.Value(op.on_true) == ir.Value(op.on_false) else None


@simplifies(ConvertOp)
def _same_type(op: Any) -> Any:
    """Nothing to convert"""
    return op.x if op.x.dtype == op.dtype else None


@simplifies(StopGradientOp)
def _stop(op: Any) -> Any:
    """A value, once all derivatives are written out"""
    return op.x


# --- moves ----------------------------------------------------------------------------------------


def defined_by(value: Any, op_class: type[Op]) -> Any:
    """The op of class `op_class` that made `value`, or None."""
    return op if isinstance(op := op_of(value), op_class) else None


@simplifies(ReshapeOp)
def _reshape(op: Any) -> Any:
    """To the same shape: nothing. Of a reshape: one reshape."""
    if op.x.spec == op.result_specs()[0] and op.x.spec.is_static:
        return op.x
    if (inner := defined_by(op.x, ReshapeOp)) and inner.x.spec.is_static:
        return inner.x.reshape_to(op.shape)
    return None


@simplifies(TransposeOp)
def _transpose(op: Any) -> Any:
    """Of nothing: nothing. Of a transpose: one transpose. That only moves extents of 1: a
    reshape.
    """
    order = list(op.permutation)
    if order == sorted(order):
        return op.x
    if inner := defined_by(op.x, TransposeOp):
        return inner.x.transpose([inner.permutation[p] for p in order])
    moved = [p for p in order if op.x.shape[p] != 1]
    return (
        op.x.reshape_to(op.result_specs()[0].shape)
        if moved == sorted(moved) and op.x.spec.is_static
        else None
    )


@simplifies(BroadcastOp)
def _broadcast(op: Any) -> Any:
    """To the same shape: nothing. Of a broadcast, or of a reshape that adds extents of 1: one
    broadcast. Of one element: a reshape
    """
    if op.x.spec == op.result_specs()[0] and op.x.spec.is_static:
        return op.x
    if None in op.shape:
        return None
    if inner := defined_by(op.x, BroadcastOp):
        return (
            inner.x.broadcast_in_dim(op.shape, tuple(op.dims[d] for d in inner.dims))
            if inner.x.spec.is_static
            else None
        )
    if op.x.spec.size == math.prod(op.shape):
        return op.x.reshape_to(op.shape)
    if (inner := defined_by(op.x, ReshapeOp)) and (
        places := _added_ones(inner.x.shape, op.x.shape)
    ) is not None:
        return inner.x.broadcast_in_dim(op.shape, tuple(op.dims[p] for p in places))
    return None


@simplifies(BroadcastOp)
def _like_operand(op: Any) -> Any:
    """A result of an elementwise op as `like`: its operand has the same extents, and the result may
    be used less
    """
    if op.like and (inner := defined_by(op.like[0], Elementwise)):
        return BroadcastOp.emit(op.x, inner.operation.operands[0], shape=op.shape, dims=op.dims)
    return None


def _added_ones(before: tuple[Any, ...], after: tuple[Any, ...]) -> list[int] | None:
    """Where each extent of `before` stands in `after`, if `after` is `before` with extents of 1 put
    in between.
    """
    places, i = [], 0
    for place, n in enumerate(after):
        if i < len(before) and before[i] == n:
            places.append(place)
            i += 1
        elif n != 1:
            return None
    return places if i == len(before) and None not in before else None


@simplifies(ReverseOp)
def _reverse(op: Any) -> Any:
    """Twice over the same axes: nothing"""
    return (
        inner.x
        if (inner := defined_by(op.x, ReverseOp)) and inner.axes == op.axes
        else op.x
        if not op.axes
        else None
    )


@simplifies(SliceOp)
def _slice(op: Any) -> Any:
    """Of everything: nothing. Of a pad whose padding it removes: nothing"""
    if op.x.spec == op.result_specs()[0]:
        return op.x
    inner = defined_by(op.x, PadOp)
    if (
        inner
        and inner.x.spec == op.result_specs()[0]
        and inner.low == op.start
        and op.stride == tuple(i + 1 for i in inner.interior)
    ):
        return inner.x
    return None


@simplifies(PadOp)
def _pad(op: Any) -> Any:
    """By nothing: nothing"""
    return op.x if op.x.spec == op.result_specs()[0] else None


@simplifies(StackOp)
def _stack(op: Any) -> Any:
    """Of everything that an unstack gave, in order: what was unstacked. Of one tensor: a reshape"""
    if len(op.xs) == 1 and op.xs[0].spec.is_static:
        return op.xs[0].expand_dims(op.axis)
    inner = defined_by(op.xs[0], UnstackOp)
    if (
        inner
        and inner.axis == op.axis
        and list(inner.operation.results) == list(op.operation.operands)
    ):
        return inner.x
    return None


@simplifies(UnstackOp)
def _unstack(op: Any) -> Any:
    """Of a stack: what was stacked"""
    return (
        list(inner.xs) if (inner := defined_by(op.x, StackOp)) and inner.axis == op.axis else None
    )


@simplifies(Reduction)
def _reduction(op: Any) -> Any:
    """Over no axes, or over extents of 1 where that is the element itself: a reshape"""
    same = op.MNEMONIC in ("sum", "prod", "max", "min", "mean", "any", "all")
    return (
        op.x.reshape_to(op.result_specs()[0].shape)
        if same and all(op.x.shape[a] == 1 for a in op.axes) and op.x.spec.is_static
        else None
    )


# --- products and sums ----------------------------------------------------------------------------


@simplifies(DotGeneralOp)
def _transposed_operand(op: Any) -> Any:
    """A transpose of an operand that keeps the order of its free axes becomes part of the
    contraction
    """
    attributes = op.read_attributes()
    sides = {"lhs": op.lhs, "rhs": op.rhs}
    for side, x in sides.items():
        if inner := defined_by(x, TransposeOp):
            order = inner.permutation
            free = free_axes(x.ndim, attributes[f"{side}_batch"], attributes[f"{side}_contract"])
            if [order[a] for a in free] == sorted(order[a] for a in free):
                for part in ("batch", "contract"):
                    attributes[f"{side}_{part}"] = tuple(
                        order[a] for a in attributes[f"{side}_{part}"]
                    )
                sides[side] = inner.x
                return DotGeneralOp.emit(sides["lhs"], sides["rhs"], **attributes)
    return None


@simplifies(AddOp)
def _add_products(op: Any) -> Any:
    """a1 b1 + a2 b2 = [a1 a2] [b1 b2], one product over a longer contracted axis, where joining
    costs less than adding

    Weight gradients of a recurrent net, one a step, become one product (sums in another order).
    """
    first, second = defined_by(op.lhs, DotGeneralOp), defined_by(op.rhs, DotGeneralOp)
    if not (first and second and _used_once(op.lhs) and _used_once(op.rhs)):
        return None
    attributes = first.read_attributes()
    contract = attributes["lhs_contract"], attributes["rhs_contract"]
    if attributes != second.read_attributes() or len(contract[0]) != 1 or attributes["lhs_batch"]:
        return None
    sides = (first.lhs, second.lhs, contract[0][0]), (first.rhs, second.rhs, contract[1][0])
    sizes = [x.spec.size for a, b, _ in sides for x in (a, b)]
    result = op.lhs.spec.size
    if None in (*sizes, result) or sizes[1] + sizes[3] > result:
        return None
    if any(not _joinable(a, b, axis) for a, b, axis in sides):
        return None
    return DotGeneralOp.emit(*(concat([a, b], axis) for a, b, axis in sides), **attributes)


@simplifies(DotGeneralOp)
def _stacked_operand(op: Any) -> Any:
    """[a1 a2] [b1 b2] = [a2 a1] [b2 b1], where b2, b1 is what a stack has in that order: a reshape
    of it (sums in another order)

    What an unstacked input's gradient consists of stands there already, for that gradient.
    """
    attributes = op.read_attributes()
    contract = attributes["lhs_contract"], attributes["rhs_contract"]
    if len(contract[0]) != 1 or attributes["lhs_batch"]:
        return None
    sides = (op.lhs, contract[0][0]), (op.rhs, contract[1][0])
    parts = [_concatenated(x, axis) for x, axis in sides]
    if len(parts[0]) == 1 or len(parts[0]) != len(parts[1]):
        return None
    for stacked in (0, 1):
        (x, axis), (_, other_axis) = sides[stacked], sides[1 - stacked]
        mine, others = parts[stacked], parts[1 - stacked]
        extents = {part.shape[other_axis] for part in others}
        if not x.spec.is_static or extents != {mine[0].shape[axis]}:
            continue
        if found := _stack_of([ir.Value(part) for part in mine], axis, op):
            stack, order = found
            new = [stack.y.reshape_to(x.shape), concat([others[i] for i in order], other_axis)]
            return DotGeneralOp.emit(new[stacked], new[1 - stacked], **attributes)
    return None


def _concatenated(x: Any, axis: int) -> list[Any]:
    """What concatenations along an axis made `x` of; itself alone where it is none."""
    found, todo = [], [x]
    while todo:
        part = todo.pop()
        inner = defined_by(part, ConcatOp)
        if inner and inner.axis == axis:
            todo += [inner.rhs, inner.lhs]
        else:
            found.append(part)
    return found


def _stack_of(parts: list[ir.Value], axis: int, reader: Any) -> tuple[Any, list[int]] | None:
    """An op that stacks `parts`, each once, before their reader from then on, and the order in
    which it has them.
    """
    for use in parts[0].uses:
        stack = use.owner.opview
        if not isinstance(stack, StackOp) or stack.axis != axis:
            continue
        stacked = list(stack.operation.operands)
        is_same = len({*stacked, *parts}) == len(stacked) == len(parts)
        if is_same and stack.operation.block == reader.operation.block:
            if not stack.operation.is_before_in_block(reader.operation):
                stack.operation.move_before(reader.operation)
            return stack, [parts.index(x) for x in stacked]
    return None


def _joinable(a: Any, b: Any, axis: int) -> bool:
    return all(n == m for i, (n, m) in enumerate(zip(a.shape, b.shape, strict=True)) if i != axis)


def _used_once(value: Any) -> bool:
    return len(list(value.uses)) == 1


@simplifies(AddOp)
def _add_scattered(op: Any) -> Any:
    """x + scatter_add(0, i, u) = scatter_add(x, i, u): rows that get nothing are not touched (sums
    in another order)
    """
    for x, scattered in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
        if inner := _scatter_into_zeros(scattered):
            return ScatterAddOp.emit(x, inner.indices, inner.updates, axis=inner.axis)
    return None


@simplifies(SubOp)
def _subtract_scattered(op: Any) -> Any:
    """x - scatter_add(0, i, u) = scatter_add(x, i, -u) (sums in another order)"""
    if inner := _scatter_into_zeros(op.rhs):
        return ScatterAddOp.emit(op.lhs, inner.indices, -inner.updates, axis=inner.axis)
    return None


@simplifies(MulOp)
def _scale_scattered(op: Any) -> Any:
    """c * scatter_add(0, i, u) = scatter_add(0, i, c * u) for a number c (each term rounded, and
    overflowing, by itself)
    """
    for number, scattered in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
        c = splat_of(number)
        if c is not None and np.isfinite(c) and (inner := _scatter_into_zeros(scattered)):
            return ScatterAddOp.emit(
                inner.x, inner.indices, inner.updates * c.item(), axis=inner.axis
            )
    return None


def _scatter_into_zeros(value: Any) -> Any:
    """The op that scattered `value` into zeros, if nothing else uses it."""
    inner = defined_by(value, ScatterAddOp)
    return inner if inner and is_splat(inner.x, 0) and _used_once(value) else None
