# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Building blocks of the memref form: types and extents of memrefs, parts of them, loops that fill
them.
"""

from collections.abc import Callable, Sequence

from ..dialect.mlir import DYNAMIC, ir, linalg, memref, scf
from .linalg import build

Extent = build.Extent


def is_tensor(value: ir.Value) -> bool:
    return isinstance(value.type, ir.RankedTensorType)


def is_static(value: ir.Value) -> bool:
    return ir.RankedTensorType(value.type).has_static_shape


def integer(width: int) -> ir.Type:
    return ir.IntegerType.get_signless(width)


def memref_of(kind: ir.Type) -> ir.Type:
    """A tensor's type as one of contiguous memory; other types as they are."""
    if not isinstance(kind, ir.RankedTensorType):
        return kind
    return ir.MemRefType.get(kind.shape, kind.element_type)


def extents(value: ir.Value) -> list[Extent]:
    shape = ir.MemRefType(value.type).shape
    return [memref.dim(value, build.index(a)) if n == DYNAMIC else n for a, n in enumerate(shape)]


def unknown_extents(value: ir.Value) -> list[ir.Value]:
    return [n for n in extents(value) if not isinstance(n, int)]


def only_unknown(shape: Sequence[Extent], value: ir.Value) -> list[Extent]:
    """A shape with the numbers that a value's type says."""
    known = build.static_shape(value)
    return [build.as_index(n) if k == DYNAMIC else k for n, k in zip(shape, known, strict=True)]


def placed(value: ir.Value, kind: ir.MemRefType) -> ir.Value:
    """An argument that may have another shape, or be bytes, as memory of the type."""
    if value.type == kind or not isinstance(kind, ir.MemRefType):
        return value
    if ir.MemRefType(value.type).element_type != kind.element_type:
        return memref.view(kind, value, build.index(0), [])
    shape = list(kind.shape)
    return memref.ReinterpretCastOp(kind, value, [], [], [], [0], shape, row_major(shape)).result


def row_major(shape: Sequence[int]) -> list[int]:
    """The strides of contiguous memory; DYNAMIC where they depend on an unknown extent."""
    strides = [1] * len(shape)
    for a in reversed(range(len(shape) - 1)):
        strides[a] = times(strides[a + 1], shape[a + 1])
    return strides


def times(a: int, b: int) -> int:
    return DYNAMIC if DYNAMIC in (a, b) else a * b


def subview(
    value: ir.Value,
    offsets: Sequence[Extent],
    sizes: Sequence[Extent],
    strides: Sequence[Extent],
    rank: int,
) -> ir.Value:
    """A part of contiguous memory; axes of extent 1 are dropped to get to `rank`."""
    kind = ir.MemRefType(value.type)
    steps = row_major(kind.shape)
    static = [[n if isinstance(n, int) else DYNAMIC for n in v] for v in (offsets, sizes, strides)]
    at = 0
    for start, step in zip(static[0], steps, strict=True):
        at = DYNAMIC if DYNAMIC in (at, times(start, step)) else at + start * step
    layout = [times(a, b) for a, b in zip(steps, static[2], strict=True)]
    kept = kept_axes(sizes, rank)
    result = ir.MemRefType.get(
        [static[1][a] for a in kept],
        kind.element_type,
        ir.StridedLayoutAttr.get(at, [layout[a] for a in kept]),
    )
    unknown = [[n for n in v if not isinstance(n, int)] for v in (offsets, sizes, strides)]
    return memref.SubViewOp(result, value, *unknown, *static).result


def kept_axes(sizes: Sequence[Extent], rank: int) -> list[int]:
    """The axes of a slice that are left in its result of a rank: the last of extent 1 are
    dropped.
    """
    kept = list(range(len(sizes)))
    for a in reversed(kept.copy()):
        n = sizes[a]
        if len(kept) > rank and isinstance(n, int) and n == 1:
            kept.remove(a)
    return kept


def elementwise(
    inputs: Sequence[ir.Value], out: ir.Value, body: Callable[..., Sequence[ir.Value]]
) -> None:
    """Write each element of `out` from those of the inputs at the same place."""
    rank = ir.MemRefType(out.type).rank
    maps = [ir.AffineMapAttr.get(ir.AffineMap.get_identity(rank))] * (len(inputs) + 1)
    kinds = [ir.Attribute.parse("#linalg.iterator_type<parallel>")] * rank
    op = linalg.GenericOp([], list(inputs), [out], ir.ArrayAttr.get(maps), ir.ArrayAttr.get(kinds))
    elements = [ir.MemRefType(v.type).element_type for v in (*inputs, out)]
    block = op.regions[0].blocks.append(*elements)
    with ir.InsertionPoint(block):
        linalg.YieldOp(list(body(*block.arguments)))


def copy(source: ir.Value, target: ir.Value) -> None:
    elementwise([source], target, lambda x, _: [x])


def loops(bounds: Sequence[Extent], body: Callable[..., None], *at: ir.Value) -> None:
    """Nested loops, the last axis innermost; `body` gets where they stand."""
    if not bounds:
        body(*at)
        return
    loop = scf.ForOp(build.index(0), build.as_index(bounds[0]), build.index(1))
    with ir.InsertionPoint(loop.body):
        loops(bounds[1:], body, *at, loop.induction_variable)
        scf.YieldOp([])
