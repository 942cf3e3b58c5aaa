# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-multi-output-fusion: small elementwise generics that are computed at the same time, as
one with several results.

IREE makes a dispatch of each elementwise result that several ops read. On small tensors a dispatch
takes longer (about 5 microseconds on two threads) than what it computes: the gates of a recurrent
net, the statistics of a normalization. Those that go over the same positions, read each other or
the same intermediate values, and have nothing but each other between them become one.
"""

import collections
import math
from collections.abc import Iterator, Sequence

from ..dialect.control import symbols
from ..dialect.mlir import DYNAMIC, ir
from . import storage
from .joining import captured, join, top_level_users
from .linalg import build
from .passes import gradopt_pass, operations, single_block

OPERANDS = 24
"""Most tensors that one generic reads and writes; a dispatch of IREE cannot have more than 32."""
GAIN = 2
"""By how many dispatches there have to be more than IREE makes none of, having fused them into a
product or a reduction.
"""

Shape = tuple[int, ...]


@gradopt_pass("gradopt-multi-output-fusion")
def multi_output_fusion(module: ir.Module, *, max_elements: int = 65536) -> None:
    """Join elementwise generics of at most `max_elements` positions that are computed at the same
    time. Runs on linalg.
    """
    module.operation.context.allow_unregistered_dialects = True  # for IREE's own ops
    for function in symbols(module).values():
        if not function.is_external:
            loops = [op for op in operations(function) if op.name == "scf.for"]
            for block in (single_block(function), *(op.regions[0].blocks[0] for op in loops)):
                for group in list(_Schedule(block, max_elements).groups()):
                    join(group)


class _Schedule:
    """How many steps have to come before each op of a block. From one op that may be joined to
    another of its domain that reads it in place is no step: between two of one level and one
    domain there is nothing but others of them.
    """

    def __init__(self, block: ir.Block, max_elements: int) -> None:
        self.ops = [op.operation for op in block.operations]
        self.at = {r: i for i, op in enumerate(self.ops) for r in op.results}
        self.domain = [_domain(op, max_elements) for op in self.ops]
        self.level: list[int] = []
        for i in range(len(self.ops)):
            self.level.append(self._level(i))

    def _level(self, i: int) -> int:
        op, domain = self.ops[i], self.domain[i]
        maps = build.indexing_maps(op) if domain else []
        steps = [0]
        for position, value in enumerate(op.operands):
            if (made := self.at.get(build.unbarred(value))) is not None:
                in_place = bool(domain) and build.is_identity(maps[position])
                is_same = in_place and self.domain[made] == domain
                steps.append(self.level[made] + (not is_same))
        steps += [self.level[self.at[v]] + 1 for v in captured(op) if v in self.at]
        return max(steps)

    def groups(self) -> Iterator[list[ir.Operation]]:
        """Ops to be joined, in order: of one level and domain, connected by what they read, and
        worth it.
        """
        found: dict[tuple[int, Shape], list[ir.Operation]] = collections.defaultdict(list)
        for op, domain, level in zip(self.ops, self.domain, self.level, strict=True):
            if domain is not None:
                found[level, domain].append(op)
        for ops in found.values():
            for group in connected(ops):
                yield from (g for g in within_limit(group) if len(g) > 1 and gain(g) >= GAIN)


def _domain(op: ir.Operation, max_elements: int) -> Shape | None:
    """The extents that a generic goes over, if it may be joined with others: it reduces nothing,
    stores its result at its own positions, and that does not leave the function or the trip of a
    loop: its storage could be that of an argument that others here read.
    """
    if not build.is_elementwise(op) or len(op.results) != 1:
        return None
    shape = tuple(build.static_shape(op.results[0]))
    if DYNAMIC in shape or not 1 < math.prod(shape) <= max_elements:
        return None
    init = op.operands[len(op.operands) - 1]
    element = list(op.regions[0].blocks[0].arguments)[-1]
    if not build.is_identity(build.indexing_maps(op)[-1]) or list(element.uses):
        return None
    is_new = not isinstance(init.owner, ir.Block) and init.owner.name == "tensor.empty"
    return shape if is_new and not _is_returned(op.results[0]) else None


def _is_returned(value: ir.Value) -> bool:
    """Whether a value, or what is a view of it, is a result of the function or of a trip."""
    users = [use.owner.operation for use in value.uses]
    views = [r for u in users if u.name in storage.LOWERED_VIEWS for r in u.results]
    return any(u.name in ("func.return", "scf.yield") for u in users) or any(
        map(_is_returned, views)
    )


# --- groups ---------------------------------------------------------------------------------------


def connected(ops: Sequence[ir.Operation]) -> Iterator[list[ir.Operation]]:
    """The parts of `ops` that read each other, or the same values. What is there from the beginning
    connects nothing: ops of other times read it too.
    """
    leader = list(range(len(ops)))

    def find(i: int) -> int:
        while leader[i] != i:
            leader[i] = leader[leader[i]]
            i = leader[i]
        return i

    seen: dict[ir.Value, int] = {}
    for i, op in enumerate(ops):
        for value in (*list(op.operands)[:-1], op.results[0]):
            source = _source(value)
            if not isinstance(source.owner, ir.Block) and source.owner.name not in SPLATS:
                leader[find(i)] = find(seen.setdefault(source, i))
    parts: dict[int, list[ir.Operation]] = collections.defaultdict(list)
    for i, op in enumerate(ops):
        parts[find(i)].append(op)
    yield from parts.values()


SPLATS = ("arith.constant", "linalg.fill")


def _source(value: ir.Value) -> ir.Value:
    """The value that a view or a slice is taken of."""
    while not isinstance(value.owner, ir.Block) and (
        value.owner.name in storage.LOWERED_VIEWS or value.owner.name == "tensor.extract_slice"
    ):
        value = value.owner.operands[0]
    return value


def within_limit(group: Sequence[ir.Operation]) -> Iterator[list[ir.Operation]]:
    """A group in pieces that do not read and write too many tensors each."""
    piece: list[ir.Operation] = []
    tensors: set[ir.Value] = set()
    for op in group:
        more = {*map(build.unbarred, list(op.operands)[:-1]), op.results[0]}
        if piece and len(tensors | more) > OPERANDS:
            yield piece
            piece, tensors = [], set()
        piece.append(op)
        tensors |= more
    yield piece


def gain(group: Sequence[ir.Operation]) -> int:
    """How many dispatches would be one: those of results that others read, less those that IREE
    fuses into what they read. 0 where it computes one inside a reduction.
    """
    inside = {op.results[0] for op in group}
    count, producers = 0, set()
    for op in group:
        users = top_level_users(op.results[0], group)
        if not users:
            continue
        if len(users) == 1 and _reduces(users[0]):
            return 0
        count += 1
        for value in list(op.operands)[:-1]:
            source = build.unbarred(value)
            if source not in inside and not isinstance(source.owner, ir.Block):
                producers |= {source} if _reduces(source.owner) else set()
    return count - len(producers)


def _reduces(op: ir.Operation) -> bool:
    moves = ("linalg.fill", "linalg.transpose", "linalg.copy")
    return op.name.startswith("linalg.") and op.name not in moves and not build.is_elementwise(op)
