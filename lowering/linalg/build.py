# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Building blocks of the lowerings: generics, fills, reshapes, with static and unknown extents
treated alike.

An extent is an int, or an `index` value where it is known only at run time. Unsigned integers are
signless here, as linalg and IREE want them; what is unsigned is told apart by the gradopt types of
the op being lowered.
"""

from collections.abc import Callable, Sequence

import numpy as np

from ...dialect.mlir import DYNAMIC, arith, cf, ir, linalg, location, tensor
from ...dialect.types import MLIR_NAMES, TensorSpec, is_float_type
from ..marks import DISAGREE

Extent = int | ir.Value
PARALLEL, REDUCTION = "parallel", "reduction"


# --- types ----------------------------------------------------------------------------------------


def element_type(dtype: np.dtype) -> ir.Type:
    """The signless MLIR element type of `dtype`."""
    return ir.Type.parse(MLIR_NAMES[dtype].replace("ui", "i"))


def tensor_type(shape: Sequence[Extent], element: ir.Type) -> ir.Type:
    return ir.RankedTensorType.get_unchecked(
        [n if isinstance(n, int) else DYNAMIC for n in shape], element
    )


def lowered_type(spec: TensorSpec) -> ir.Type:
    """The type that a gradopt tensor has in linalg."""
    return ir.RankedTensorType.get_unchecked(
        [DYNAMIC if n is None else n for n in spec.shape], element_type(spec.dtype)
    )


def element_of(value: ir.Value) -> ir.Type:
    return ir.RankedTensorType(value.type).element_type


# --- scalars and extents --------------------------------------------------------------------------


def number(value: float, element: ir.Type) -> ir.Value:
    """A scalar constant."""
    if is_float_type(element):
        return arith.constant(
            element, ir.FloatAttr.get(element, float(value), loc=ir.Location.unknown())
        )
    if isinstance(element, ir.IndexType):
        return arith.constant(element, ir.IntegerAttr.get(element, int(value)))
    return arith.constant(element, ir.IntegerAttr.get(element, wrapped(int(value), element.width)))


def wrapped(value: int, width: int) -> int:
    """`value` as the signed number with the same low bits."""
    if width == 1:
        return -(value & 1)
    value &= (1 << width) - 1
    return value - (1 << width) if value >> (width - 1) else value


def index(value: int) -> ir.Value:
    return number(value, ir.IndexType.get())


def extent(value: ir.Value, axis: int) -> Extent:
    """The extent of one axis."""
    n = ir.RankedTensorType(value.type).shape[axis]
    return tensor.dim(of_same_shape(value), index(axis)) if n == DYNAMIC else n


FUSION_BARRIER = "iree_tensor_ext.compute_barrier.start"

SHAPED_LIKE = {
    "util.optimization_barrier": 0,
    FUSION_BARRIER: 0,
    "iree_linalg_ext.gather": 2,
    "iree_linalg_ext.scatter": 2,
    "iree_linalg_ext.scan": 0,
}
"""IREE's ops, which MLIR's passes know nothing of, and the operand that has the result's shape."""


def of_same_shape(value: ir.Value) -> ir.Value:
    """A value of the same shape that is not the result of an op of IREE's."""
    while not isinstance(value.owner, ir.Block) and value.owner.name in SHAPED_LIKE:
        value = value.owner.operands[SHAPED_LIKE[value.owner.name]]
    return value


def shape_of(value: ir.Value) -> list[Extent]:
    return [extent(value, axis) for axis in range(rank_of(value))]


def rank_of(value: ir.Value) -> int:
    return ir.RankedTensorType(value.type).rank


def static_shape(value: ir.Value) -> list[int]:
    """Extents, with DYNAMIC for unknown ones."""
    return list(ir.RankedTensorType(value.type).shape)


def product(extents: Sequence[Extent]) -> Extent:
    total: Extent = 1
    for n in extents:
        if isinstance(total, int) and isinstance(n, int):
            total *= n
        elif total == 1 and not isinstance(total, ir.Value):
            total = n
        elif isinstance(n, ir.Value) or n != 1:
            total = arith.muli(as_index(total), as_index(n))
    return total


def plus(n: Extent, m: Extent) -> Extent:
    """The sum of two extents."""
    if isinstance(n, int) and isinstance(m, int):
        return n + m
    return arith.addi(as_index(n), as_index(m))


def mixed(extents: Sequence[Extent]) -> tuple[list[int], list[ir.Value]]:
    """Extents as MLIR's ops take them: numbers, with DYNAMIC for the unknown ones, and those."""
    static = [n if isinstance(n, int) else DYNAMIC for n in extents]
    return static, [n for n in extents if not isinstance(n, int)]


def agree(*extents: Extent) -> None:
    """Have a call fail where extents that have to be equal are not. Known ones were compared when
    the op was built; what canonicalization shows to be equal costs nothing.
    """
    first, *rest = sorted(extents, key=lambda n: not isinstance(n, int))
    for other in rest:
        if not isinstance(other, int) and other != first:
            equal = arith.cmpi(arith.CmpIPredicate.eq, as_index(first), other)
            cf.AssertOp(equal, f"{DISAGREE} {location(ir.Location.current)}")


def as_index(n: Extent) -> ir.Value:
    return n if isinstance(n, ir.Value) else index(n)


# --- tensors --------------------------------------------------------------------------------------


def empty(shape: Sequence[Extent], element: ir.Type) -> ir.Value:
    kind = tensor_type(shape, element)
    return ir.Operation.create("tensor.empty", results=[kind], operands=mixed(shape)[1]).results[0]


def fill(value: float | ir.Value, shape: Sequence[Extent], element: ir.Type) -> ir.Value:
    """A tensor filled with one number."""
    scalar = value if isinstance(value, ir.Value) else number(value, element)
    return named("linalg.fill", [scalar], empty(shape, element))


def named(
    name: str, inputs: Sequence[ir.Value], out: ir.Value, **attributes: ir.Attribute
) -> ir.Value:
    """A named linalg op with one result."""
    segments = ir.DenseI32ArrayAttr.get([len(inputs), 1])
    op = ir.Operation.create(
        name,
        results=[out.type],
        operands=[*inputs, out],
        attributes={**attributes, "operandSegmentSizes": segments},
        regions=1,
    )
    linalg.fill_builtin_region(op)
    return op.results[0]


def affine_map(loops: int, axes: Sequence[int | ir.AffineExpr]) -> ir.AffineMap:
    """A map from loops to the axes of an operand, each an expression or the number of a loop."""
    return ir.AffineMap.get(loops, 0, [dim(a) if isinstance(a, int) else a for a in axes])


def dim(loop: int) -> ir.AffineExpr:
    return ir.AffineExpr.get_dim(loop)


def generic(
    inputs: Sequence[tuple[ir.Value, Sequence[int | ir.AffineExpr]]],
    outputs: Sequence[tuple[ir.Value, Sequence[int]]],
    loops: Sequence[str],
    body: Callable[..., Sequence[ir.Value]],
) -> list[ir.Value]:
    """A `linalg.generic`: operands with the loops that index their axes; `body` gets the inputs'
    then the outputs' elements.
    """
    operands = [v for v, _ in inputs]
    inits = [v for v, _ in outputs]
    indexed = [(v, list(axes)) for v, axes in [*inputs, *outputs]]
    if any(DYNAMIC in static_shape(v) for v, _ in indexed):
        for loop in range(len(loops)):
            agree(*(extent(v, axes.index(loop)) for v, axes in indexed if loop in axes))
    maps = [ir.AffineMapAttr.get(affine_map(len(loops), axes)) for _, axes in [*inputs, *outputs]]
    kinds = [ir.Attribute.parse(f"#linalg.iterator_type<{kind}>") for kind in loops]
    op = linalg.GenericOp(
        [v.type for v in inits], operands, inits, ir.ArrayAttr.get(maps), ir.ArrayAttr.get(kinds)
    )
    block = op.regions[0].blocks.append(*[element_of(v) for v in [*operands, *inits]])
    with ir.InsertionPoint(block):
        linalg.YieldOp(list(body(*block.arguments)))
    return list(op.operation.results)


def loop_index(loop: int) -> ir.Value:
    """Inside the body of a generic: where the loop stands."""
    return linalg.IndexOp(loop).result


def elementwise(
    inputs: Sequence[ir.Value], element: ir.Type, body: Callable[..., ir.Value]
) -> ir.Value:
    """One result element from the elements of tensors of one shape at the same place."""
    axes = list(range(rank_of(inputs[0])))
    out = empty(shape_of(inputs[0]), element)
    return generic(
        [(v, axes) for v in inputs],
        [(out, axes)],
        [PARALLEL] * len(axes),
        lambda *x: [body(*x[:-1])],
    )[0]


def barrier(value: ir.Value) -> ir.Value:
    """`value`, which IREE does not fuse, merge or recompute across this point. IREE cannot compile
    one of unknown extents: those are only not fused.
    """
    if DYNAMIC in static_shape(value):
        return fusion_barrier(value)
    return ir.Operation.create(
        "util.optimization_barrier", results=[value.type], operands=[value]
    ).results[0]


def is_elementwise(op: ir.Operation) -> bool:
    """Whether an op is a `linalg.generic` that reduces nothing."""
    return op.name == "linalg.generic" and "reduction" not in str(op.attributes["iterator_types"])


def indexing_maps(op: ir.Operation) -> list[ir.AffineMap]:
    """The maps of a structured op, an operand each."""
    return [ir.AffineMapAttr(m).value for m in ir.ArrayAttr(op.attributes["indexing_maps"])]


def is_identity(found: ir.AffineMap) -> bool:
    """Whether a map reads at the step's own position."""
    return found == ir.AffineMap.get_identity(found.n_dims)


def fusion_barrier(value: ir.Value) -> ir.Value:
    """`value`, which IREE does not fuse into what reads it. Unlike `barrier`, it costs no
    synchronization, and does not keep recomputation apart.
    """
    operands = [value, *mixed(shape_of(value))[1]]
    return ir.Operation.create(FUSION_BARRIER, results=[value.type], operands=operands).results[0]


def unbarred(value: ir.Value) -> ir.Value:
    """What a value is behind fusion barriers."""
    while not isinstance(value.owner, ir.Block) and value.owner.name == FUSION_BARRIER:
        value = value.owner.operands[0]
    return value


def read_at(value: ir.Value) -> ir.Value:
    """`value`, to be read in a body at positions that the body computes (`tensor.extract`). IREE
    cannot compile a dispatch that computes what it reads so.
    """
    return fusion_barrier(value)


def copied(value: ir.Value) -> ir.Value:
    """A copy that IREE does not see through: each element is chosen by a number that is 0, which
    IREE is kept from knowing.
    """
    i32 = ir.IntegerType.get_signless(32)
    zero = barrier(fill(0, [1], i32))
    axes = list(range(rank_of(value)))
    element = element_of(value)
    constant_axis = ir.AffineExpr.get_constant(0)

    def body(x: ir.Value, found: ir.Value, _: ir.Value) -> list[ir.Value]:
        is_zero = arith.cmpi(arith.CmpIPredicate.eq, found, number(0, i32))
        return [arith.select(is_zero, x, number(0, element))]

    out = empty(shape_of(value), element)
    return generic(
        [(value, axes), (zero, [constant_axis])], [(out, axes)], [PARALLEL] * len(axes), body
    )[0]


# --- shapes ---------------------------------------------------------------------------------------


def collapse(value: ir.Value, groups: Sequence[Sequence[int]]) -> ir.Value:
    """Neighbouring axes merged, group by group."""
    if len(groups) == rank_of(value):
        return value
    shape = static_shape(value)
    merged = [
        DYNAMIC if DYNAMIC in [shape[a] for a in g] else int(np.prod([shape[a] for a in g]))
        for g in groups
    ]
    kind = ir.RankedTensorType.get_unchecked(merged, element_of(value))
    return tensor.collapse_shape(kind, value, [list(g) for g in groups])


def expand(value: ir.Value, groups: Sequence[Sequence[Extent]]) -> ir.Value:
    """Each axis split into the extents of its group."""
    if all(len(g) == 1 for g in groups):
        return value
    flat = [n for g in groups for n in g]
    places, at = [], 0
    for g in groups:
        places.append(list(range(at, at + len(g))))
        at += len(g)
    static, unknown = mixed(flat)
    return tensor.expand_shape(tensor_type(flat, element_of(value)), value, places, unknown, static)


def reshape(value: ir.Value, shape: Sequence[Extent]) -> ir.Value:
    """The same elements in row-major order under another shape, merged or split in place where axes
    match up.
    """
    old = static_shape(value)
    new = [n if isinstance(n, int) else DYNAMIC for n in shape]
    if old == new and old.count(DYNAMIC) <= 1:
        return value
    if DYNAMIC in old and DYNAMIC not in new:
        flat = collapse(value, [list(range(len(old)))])
        known = tensor_type([int(np.prod(new))], element_of(value))
        return reshape(tensor.cast(known, flat), shape)
    if not new:
        return collapse(value, [])
    if not old:
        return tensor.expand_shape(tensor_type(new, element_of(value)), value, [], [], new)
    pairs = matching(old, new)
    if pairs is None:
        pairs = [(list(range(len(old))), list(range(len(new))))]
    merged = collapse(value, [a for a, _ in pairs])
    return expand(merged, [[shape[i] for i in b] for _, b in pairs])


UNKNOWN_WEIGHT = 10**18 + 9
"""Stands for an unknown extent in products that are compared: a prime larger than any extent."""


def matching(old: Sequence[int], new: Sequence[int]) -> list[tuple[list[int], list[int]]] | None:
    """Groups of neighbouring axes of two shapes with equal products, as fine as possible; None if
    they do not line up.
    """
    if 0 in old or 0 in new:
        return None
    weights = [[UNKNOWN_WEIGHT if n == DYNAMIC else n for n in shape] for shape in (old, new)]
    ends = len(old), len(new)
    at = [0, 0]
    pairs: list[tuple[list[int], list[int]]] = []
    while at[0] < ends[0] and at[1] < ends[1]:
        group: tuple[list[int], list[int]] = ([], [])
        products = [1, 1]
        while not (group[0] and group[1] and products[0] == products[1]):
            side = 0 if not group[0] or (group[1] and products[0] < products[1]) else 1
            if at[side] == ends[side]:
                return None
            products[side] *= weights[side][at[side]]
            group[side].append(at[side])
            at[side] += 1
        pairs.append(group)
    for side in (0, 1):
        rest = range(at[side], ends[side])
        if any(weights[side][a] != 1 for a in rest):
            return None
        pairs[-1][side].extend(rest)
    return pairs
