# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Which values of a function are stored, from which step to which, and which share storage.

At the gradopt level the answer takes into account what lowering computes inside other ops: fused
elementwise ops, numbers, index ramps and broadcasts that only such ops read take no storage. At the
linalg level ops write into their destinations (`outs`). In a function that still has gradopt ops,
ops of other dialects read what they name and make what they give, no more is known of them.

Rules: a view is the storage it looks at. An op may write over an operand of its size that dies at
it, where it reads every element before it writes the one at the same place, and into its
destination where that dies. Arguments are never written, but for a donated one, by the result
that takes it over, once every reader has run. Results lie in the caller's storage, as does what
they are written over: it is made there. The arena holds the rest.
"""

import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ..dialect.base import Op
from ..dialect.creation import ConstantOp, IotaOp
from ..dialect.mlir import ext, func, ir, op_of
from ..dialect.shape import BroadcastOp
from . import storage
from .bufferize import STORAGE, TIED, donation_pairs
from .fusion import Fusion
from .linalg.registry import BODIES
from .packing import lower_bound
from .passes import single_block
from .simplify import splat_of
from .to_linalg import ON_DEMAND

INPUT, PARAMETER, AUXILIARY, OUTPUT, CONSTANT = (
    "input",
    "parameter",
    "auxiliary",
    "output",
    "constant",
)
TEMPORARY, RESIDUAL, GRADIENT = "temporary", "residual", "gradient"
ARENA = (TEMPORARY, RESIDUAL, GRADIENT)
"""Kinds of buffers that lie in the arena."""

DERIVED = ".vjp"
"""How the names of ops end that gradopt-differentiate makes."""


@dataclasses.dataclass(eq=False)
class Buffer:
    """Storage of one or more values: `size` bytes (None where an extent is unknown), used from
    step `first` to step `last`, both included. Arguments are there before step 0; what stays after
    the last step has `last` = the number of steps.

    `owner` is the name of the argument or op that it is accounted to, `offset` its place in the
    arena, -1 where it has none.
    """

    size: int | None
    first: int
    last: int
    kind: str = TEMPORARY
    owner: str = ""
    values: list[ir.Value] = dataclasses.field(default_factory=list)
    offset: int = -1

    @property
    def in_arena(self) -> bool:
        return self.kind in ARENA


@dataclasses.dataclass
class Program:
    """A function as a planner sees it."""

    function: func.FuncOp
    steps: list[ir.Operation]
    """The ops that do work, in order."""
    buffers: list[Buffer]
    buffer_of: dict[ir.Value, Buffer]
    results: list[Buffer]
    """Where each result of the function lies."""
    returned: list[ir.Value]
    """The values whose storage the results are, or are copies of."""
    in_place: list[tuple[int, ir.Value, ir.Value]]
    """(step, result, the operand that it is written over)."""
    donated: dict[int, int]
    """Donated argument -> the result that is written into its storage."""
    kept: dict[int, str]
    """Donated argument -> why no result is."""
    copied: list[int]
    """Results that are copies: of arguments, constants, or results before."""

    @property
    def arena(self) -> list[Buffer]:
        """The buffers of known size that a plan gives a place."""
        return [b for b in self.buffers if b.in_arena and b.size is not None]

    @property
    def unknown(self) -> list[Buffer]:
        """The buffers whose size is known only when the function runs; no plan includes them."""
        return [b for b in self.buffers if b.size is None]

    def peak(self) -> int:
        """The largest sum of bytes live in the arena at one step, each rounded up to 64."""
        return lower_bound(self.arena)  # type: ignore[arg-type]

    def results_bytes(self) -> int:
        """Bytes of the results that get storage of their own, beside donated arguments."""
        return sum(b.size or 0 for b in self.buffers if b.kind == OUTPUT)

    def live(self) -> list[int]:
        """Bytes live in the arena at each step."""
        grown = [0] * (len(self.steps) + 2)
        for buffer in self.arena:
            grown[buffer.first] += buffer.size or 0
            grown[buffer.last + 1] -= buffer.size or 0
        return list(itertools.accumulate(grown))


@dataclasses.dataclass
class Work:
    """A step in the making: what it reads, and what its results may be written over, best first."""

    op: ir.Operation
    reads: list[ir.Value]
    over: list[list[ir.Value]]


def analyse(function: func.FuncOp) -> Program:
    """Steps and buffers of a function of one block, at any level."""
    return Analysis(function).program()


class Analysis:
    """The steps of a function, and what is stored if they run in a given order."""

    def __init__(self, function: func.FuncOp) -> None:
        self.function = function
        self.block = single_block(function)
        self.ops = [op.operation for op in self.block.operations]
        self.number: dict[ir.Value, int] = {}
        for value in self.block.arguments:
            self.number[value] = len(self.number)
        for op in self.ops:
            for value in op.results:
                self.number[value] = len(self.number)
        self.sizes: dict[ir.Value, int | None] = {}
        self.base: dict[ir.Value, ir.Value] = {}  # a view -> the value that has the storage
        self.work = _gradopt_work(self) if self.has_gradopt else _lowered_work(self)
        for work in self.work:
            work.reads = [self.root(v) for v in work.reads]
            work.over = [[self.root(v) for v in choices] for choices in work.over]
        self.returned = [self.root(v) for v in self.ops[-1].operands]

    @property
    def has_gradopt(self) -> bool:
        """True for a function that is not lowered yet."""
        return any(isinstance(op.opview, Op) for op in self.ops)

    def root(self, value: ir.Value) -> ir.Value:
        """The value whose storage `value` is."""
        while value in self.base:
            value = self.base[value]
        return value

    def uses(self, op: ir.Operation) -> list[ir.Value]:
        """All values of the function that an op uses, in its regions too."""
        return list(op.operands) + _captured(op, self)

    # --- buffers --------------------------------------------------------------------------------

    def program(self, order: Sequence[int] | None = None) -> Program:
        """What is stored; with the steps in the order of `order`, a permutation, if given, and then
        without names and kinds.
        """
        if order is not None:
            return _Storing(self, [self.work[i] for i in order]).program()
        program = _Storing(self, self.work).program()
        _classify(program, self.work)
        return program

    def bytes(self, value: ir.Value) -> int | None:
        """Bytes of a tensor, None where an extent is unknown; 0 for what is no tensor."""
        if value not in self.sizes:
            self.sizes[value] = storage.nbytes(value.type) if is_tensor(value) else 0
        return self.sizes[value]


class _Storing:
    """Buffers for the values of steps in one order."""

    def __init__(self, analysis: Analysis, work: list[Work]) -> None:
        self.analysis, self.work = analysis, work
        self.function, self.block = analysis.function, analysis.block
        self.root, self.number, self.returned = analysis.root, analysis.number, analysis.returned
        self.end = len(work)

    def program(self) -> Program:
        self.made = {r: t for t, w in enumerate(self.work) for r in w.op.results}
        self.last: dict[ir.Value, int] = {}
        for t, work in enumerate(self.work):
            for value in work.reads:
                self.last[value] = t
        self.buffer_of: dict[ir.Value, Buffer] = {}
        self.buffers: dict[Buffer, None] = {}
        self.in_place: list[tuple[int, ir.Value, ir.Value]] = []
        self.copied: list[int] = []
        self._arguments()
        self._donations()
        self._results()
        for t, work in enumerate(self.work):
            for result, choices in zip(work.op.results, work.over, strict=True):
                self._store(t, result, choices)
        for value in self.number:  # views
            if value not in self.buffer_of and (under := self.root(value)) in self.buffer_of:
                self.buffer_of[value] = self.buffer_of[under]
                self.buffer_of[value].values.append(value)
        return Program(
            self.function,
            [w.op for w in self.work],
            sorted(self.buffers, key=lambda b: b.first),
            self.buffer_of,
            self.result_buffers,
            self.returned,
            self.in_place,
            self.donated,
            self.kept,
            self.copied,
        )

    def _new(
        self, value: ir.Value | None, kind: str, first: int, last: int, like: ir.Value
    ) -> Buffer:
        buffer = Buffer(self.analysis.bytes(like), first, last, kind)
        self.buffers[buffer] = None
        if value is not None:
            self._join(value, buffer)
        return buffer

    def _join(self, value: ir.Value, buffer: Buffer) -> None:
        buffer.values.append(value)
        self.buffer_of[value] = buffer

    def _arguments(self) -> None:
        about = _attributes(self.function)
        for argument, attributes in zip(self.block.arguments, about, strict=True):
            if is_tensor(argument) and not (TIED in attributes and STORAGE in attributes):
                self._new(argument, INPUT, -1, self.end, argument)
        for work in self.work:
            for value in work.reads:
                if value not in self.made and value not in self.buffer_of and is_tensor(value):
                    self._new(value, CONSTANT, -1, self.end, value)
        for value in self.returned:
            if value not in self.made and value not in self.buffer_of and is_tensor(value):
                self._new(value, CONSTANT, -1, self.end, value)

    def _donations(self) -> None:
        """Decide which donated arguments are overwritten by the results that they are tied to."""
        self.donated: dict[int, int] = {}
        self.kept: dict[int, str] = {}
        if any(STORAGE in about for about in _attributes(self.function)):
            return  # gradopt-bufferize has given the results storage
        for position, result in donation_pairs(self.function):
            argument = self.block.arguments[position]
            reason = self._kept_because(argument, self.returned[result], result)
            if reason:
                self.kept[position] = reason
            else:
                self.donated[position] = result
                if self.returned[result] != argument:
                    self._join(self.returned[result], self.buffer_of[argument])

    def _kept_because(self, argument: ir.Value, value: ir.Value, result: int) -> str:
        if value == argument:
            return ""
        if argument in self.returned:
            return "the argument is a result as well"
        if value not in self.made:
            return "the result is another argument or a constant"
        if self.returned.index(value) != result or value in self.buffer_of:
            return "the result is returned twice"
        t = self.made[value]
        last = self.last.get(argument, -1)
        if last > t:
            return f"'{name_of(self.work[last].op)}' reads the argument after the result is made"
        position = ir.OpResult(value).result_number
        if last == t and argument not in self.work[t].over[position]:
            return f"'{name_of(self.work[t].op)}' reads the argument while it makes the result"
        return ""

    def _results(self) -> None:
        """External storage for what is returned; what stands there already is copied."""
        self.result_buffers: list[Buffer] = []
        seen: set[ir.Value] = set()
        tied = {
            about[TIED].value: argument
            for argument, about in zip(
                self.block.arguments, _attributes(self.function), strict=True
            )
            if TIED in about and STORAGE in about
        }
        donated = {r: self.block.arguments[a] for a, r in self.donated.items()}
        for i, value in enumerate(self.returned):
            if i in donated:
                buffer = self.buffer_of[donated[i]]
            elif value in self.made and value not in seen and value not in self.buffer_of:
                buffer = self._new(value, OUTPUT, self.made[value], self.end, value)
            else:
                buffer = self._new(None, OUTPUT, self.end, self.end, value)
                self.copied.append(i)
            if i in tied:
                self._join(tied[i], buffer)
            seen.add(value)
            self.result_buffers.append(buffer)

    def _store(self, t: int, result: ir.Value, choices: list[ir.Value]) -> None:
        """The buffer of a step's result: one that dies, else a new one."""
        if result in self.analysis.base:
            return
        own = self.buffer_of.get(result)
        for value in choices:
            buffer = self.buffer_of.get(value)
            if buffer is own and own is not None:
                self.in_place.append((t, result, value))  # a donated argument
                return
            if buffer is not None and self._can_take(t, result, buffer, own):
                self.in_place.append((t, result, value))
                if own is None:
                    self._join(result, buffer)
                    buffer.last = self._last(t, result)
                else:
                    self._merge(buffer, own)
                return
        if own is None and is_tensor(result):
            self._new(result, TEMPORARY, t, self._last(t, result), result)

    def _can_take(self, t: int, result: ir.Value, buffer: Buffer, own: Buffer | None) -> bool:
        if buffer.kind != TEMPORARY or buffer.last != t or buffer.size is None:
            return False
        if buffer.size != self.analysis.bytes(result):
            return False
        if own is None or own.kind == OUTPUT:
            return True
        return self._readers_end(own, result) < buffer.first  # a donated argument's storage

    def _readers_end(self, own: Buffer, result: ir.Value) -> int:
        """The last step that reads a donated argument, whose storage `result` takes over."""
        return max(self.last.get(v, -1) for v in own.values if v != result)

    def _merge(self, buffer: Buffer, own: Buffer) -> None:
        """Make what stands in `buffer` in the storage of a result."""
        for value in buffer.values:
            self._join(value, own)
        own.first = min(own.first, buffer.first)
        del self.buffers[buffer]

    def _last(self, t: int, value: ir.Value) -> int:
        return max(self.last.get(value, t), t)


def is_tensor(value: ir.Value) -> bool:
    return isinstance(value.type, ir.RankedTensorType)


def _attributes(function: func.FuncOp) -> Sequence[Any]:
    if "arg_attrs" in function.attributes:
        return list(function.arg_attrs)
    return [{} for _ in function.type.inputs]


# --- steps at the gradopt level -------------------------------------------------------------------


def _gradopt_work(analysis: Analysis) -> list[Work]:
    """The steps of a function of gradopt ops, last first looked at, since what is computed on
    demand depends on who reads it.
    """
    ops = analysis.ops
    fusion = Fusion([op.opview for op in ops if isinstance(op.opview, Op)])
    needed: set[ir.Value] = set(ops[-1].operands)
    found: list[Work] = []
    for op in reversed(ops[:-1]):
        rule, results = type(op.opview), list(op.results)
        if rule is ConstantOp:
            continue
        if rule in ON_DEMAND and results[0] not in needed:
            continue
        if rule in BODIES and fusion.is_inside(results[0]):
            continue
        if issubclass(rule, storage.VIEW_OPS) and _is_view(op, fusion):
            analysis.base[results[0]] = op.operands[0]
            if results[0] in needed or list(results[0].uses):
                needed.add(op.operands[0])
            if not is_pure_rule(rule):  # a step, which keeps its place among such
                found.append(Work(op, [op.operands[0]], [[]]))
            continue
        if rule in BODIES:
            reads = sorted(fusion.reads[results[0]], key=analysis.number.__getitem__)
            work = _generic_work(op, reads, analysis)
        else:
            work = Work(op, _read_tensors(op, analysis), [[] for _ in results])
            if issubclass(rule, Op):
                work.over = _over(op, rule)
        needed.update(work.reads)
        found.append(work)
    found.reverse()
    for work in found:  # other access to the same storage keeps it from being overwritten
        _exclude(work, analysis)
    return found


def _is_view(op: ir.Operation, fusion: Fusion) -> bool:
    """True where a view's operand is stored as it is, so that the view is nothing by itself."""
    operand = op.operands[0]
    spec = storage.nbytes(operand.type), storage.nbytes(op.results[0].type)
    return spec[0] == spec[1] and not fusion.is_inside(operand)


def _generic_work(op: ir.Operation, reads: Iterable[ir.Value], analysis: Analysis) -> Work:
    """A generic of fused elementwise ops: broadcasts are read through, numbers and index ramps are
    not read.
    """
    (result,) = op.results
    shape = ir.RankedTensorType(result.type).shape
    found, direct = [], []
    for value in reads:
        owner = op_of(value)
        if splat_of(value) is not None or isinstance(owner, IotaOp):
            continue
        if isinstance(owner, BroadcastOp):
            inner = owner.operation.operands[0]
            if splat_of(inner) is None and not isinstance(op_of(inner), IotaOp):
                found.append(inner)
            continue
        found.append(value)
        if ir.RankedTensorType(value.type).shape == shape:
            direct.append(value)
    return Work(op, found, [[v for v in direct if found.count(v) == 1]])


def _over(op: ir.Operation, rule: type[Op]) -> list[list[ir.Value]]:
    """What the results of an op that is no elementwise body may be written over."""
    choices: list[list[ir.Value]] = [[] for _ in op.results]
    if not storage.may_alias(rule):
        return choices
    for result, operand in storage.aliases(
        rule, op.opview.operand_specs(), op.opview.result_specs()
    ):
        choices[result].append(op.operands[operand])
    return choices


def _exclude(work: Work, analysis: Analysis) -> None:
    """Drop choices whose storage the op reads in another way as well."""
    roots = [analysis.root(v) for v in work.reads]
    work.over = [
        [v for v in choices if roots.count(analysis.root(v)) == 1] for choices in work.over
    ]


def _read_tensors(op: ir.Operation, analysis: Analysis) -> list[ir.Value]:
    """The tensors of the function that an op reads, as often as they are operands, then those that
    its regions capture.
    """
    found = [v for v in op.operands if is_tensor(v)]
    return found + [v for v in _captured(op, analysis) if is_tensor(v)]


def _captured(op: ir.Operation, analysis: Analysis) -> list[ir.Value]:
    """The values of the function that the regions of an op use."""
    found: dict[ir.Value, None] = {}

    def look(inner: ir.Operation) -> ir.WalkResult:
        if inner != op:
            found.update((v, None) for v in inner.operands if v in analysis.number)
        return ir.WalkResult.ADVANCE

    if len(op.regions):
        op.walk(look)
    return list(found)


def is_pure_rule(rule: type[Op]) -> bool:
    """True for ops of the dialect that passes may merge, move and remove."""
    return ext.Pure in rule._traits


# --- steps at the linalg level --------------------------------------------------------------------


def _lowered_work(analysis: Analysis) -> list[Work]:
    """The steps of a function of linalg and tensor ops."""
    found = []
    for op in analysis.ops[:-1]:
        results = list(op.results)
        if op.name in storage.LOWERED_VIEWS:
            for result in results:
                if (under := storage.viewed(result)) is not None:
                    analysis.base[result] = under
        elif any(map(is_tensor, results)) and op.name not in ("tensor.empty", "arith.constant"):
            found.append(_destination_work(op, analysis))
        elif _has_effect(op, analysis):
            found.append(Work(op, _read_tensors(op, analysis), [[] for _ in results]))
    return found


def _has_effect(op: ir.Operation, analysis: Analysis) -> bool:
    """True for ops without a tensor result that read one: extents, elements, checks."""
    return op.name != "tensor.dim" and bool(_read_tensors(op, analysis))


def destinations(op: ir.Operation) -> list[int]:
    """The operands that a destination-passing op writes its results into, one a result."""
    if op.name.startswith(("linalg.", "iree_linalg_ext.")):
        count, results = len(op.operands), len(op.results)
        return list(range(count - results, count))
    return [1] if op.name in ("tensor.insert", "tensor.insert_slice") else []


def _destination_work(op: ir.Operation, analysis: Analysis) -> Work:
    reads = [v for v in _read_tensors(op, analysis) if not _is_empty(v)]
    outs = [op.operands[i] for i in destinations(op)]
    over: list[list[ir.Value]] = [[] for _ in op.results]
    for i, out in enumerate(outs):
        if _reads_destination(op, i):
            over[i] = [] if _is_empty(out) else [out]
            continue
        if out in reads:
            reads.remove(out)  # its bytes do not matter
        over[i] = list(_same_place(op, i))
    work = Work(op, reads, over)
    _exclude(work, analysis)
    return work


def _is_empty(value: ir.Value) -> bool:
    owner = value.owner
    return not isinstance(owner, ir.Block) and owner.name == "tensor.empty"


def _reads_destination(op: ir.Operation, position: int) -> bool:
    """True where what stands in the destination before counts."""
    if not op.name.startswith("linalg.") or not len(op.regions):
        return op.name != "iree_linalg_ext.gather"
    block = op.regions[0].blocks[0]
    count = len(block.arguments) - len(op.results)
    return bool(list(block.arguments[count + position].uses)) or not _is_filled(op, position)


def _is_filled(op: ir.Operation, position: int) -> bool:
    """True where a generic writes every element of a result: at every index, once each."""
    if op.name != "linalg.generic":
        return True
    maps = list(op.attributes["indexing_maps"])
    access = ir.AffineMapAttr(maps[len(maps) - len(op.results) + position])
    places = str(access).split("->")[1].strip("() >").split(",")
    names = [p.strip() for p in places if p.strip()]
    return all(re.fullmatch(r"d\d+", n) for n in names) and len(set(names)) == len(names)


def _same_place(op: ir.Operation, position: int) -> Iterator[ir.Value]:
    """The inputs that an elementwise generic reads at the place where it writes a result."""
    if op.name != "linalg.generic":
        return
    if any("parallel" not in str(k) for k in op.attributes["iterator_types"]):
        return
    maps = list(op.attributes["indexing_maps"])
    results = len(op.results)
    inputs = list(op.operands)[: len(op.operands) - results]
    for value, access in zip(inputs, maps, strict=False):
        if is_tensor(value) and access == maps[len(maps) - results + position]:
            yield value


# --- names and kinds ------------------------------------------------------------------------------


def name_of(op: ir.Operation) -> str:
    """The name that an op has in the user's program, else the op's own."""
    return location_name(op.location) or op.name.removeprefix("gradopt.")


def location_name(location: ir.Location) -> str:
    """The name in a location; empty where it has none."""
    while True:
        if isinstance(location, ir.NameLoc):
            return location.name_str
        if isinstance(location, ir.CallSiteLoc):
            location = location.callee
        elif isinstance(location, ir.FusedLoc) and location.locations:
            location = location.locations[0]
        else:
            return ""


def _classify(program: Program, work: list[Work]) -> None:
    """Owners and kinds of all buffers."""
    _name_arguments(program)
    for step in work:
        for result in step.op.results:
            buffer = program.buffer_of.get(result)
            if buffer is not None and not buffer.owner:
                buffer.owner = name_of(step.op)
    for i, buffer in enumerate(program.results):
        buffer.owner = buffer.owner or f"result {i}"
    for buffer in program.buffers:
        if not buffer.owner:
            owner = buffer.values[0].owner
            buffer.owner = "constant" if isinstance(owner, ir.Block) else name_of(owner)
    derived = _derived(program, work)
    loss = _begin_of_backward(work, derived)
    for t, step in enumerate(work):
        if derived[t]:
            for value in step.reads:
                buffer = program.buffer_of.get(value)
                if buffer and buffer.kind == TEMPORARY and buffer.first < loss:
                    buffer.kind = RESIDUAL
    _find_states(program, work, derived)


def _begin_of_backward(work: list[Work], derived: list[bool]) -> int:
    """The first derived step that reads what a derived step made: those before it may have been
    moved into the forward, since they wait for no cotangent.
    """
    late: set[ir.Value] = set()
    for t, step in enumerate(work):
        if derived[t]:
            if any(v in late for v in step.reads):
                return t
            late.update(step.op.results)
    return derived.index(True) if True in derived else len(work)


def _name_arguments(program: Program) -> None:
    arguments = program.function.entry_block.arguments
    for i, (argument, about) in enumerate(
        zip(arguments, _attributes(program.function), strict=True)
    ):
        if (buffer := program.buffer_of.get(argument)) is None:
            continue
        name = about["gradopt.name"].value if "gradopt.name" in about else ""
        buffer.owner = name or location_name(argument.location) or f"argument {i}"
        if "gradopt.role" in about and about["gradopt.role"].value == "param":
            buffer.kind = PARAMETER


def _derived(program: Program, work: list[Work]) -> list[bool]:
    """For each step whether it belongs to the backward.

    It does where its op is named as gradopt-differentiate names what it makes, or where it reads
    what such a step made. In text without names it does where the loss does not depend on it: the
    one result that is a number, if all others have the type of an argument.
    """
    names = [name_of(step.op).endswith(DERIVED) for step in work]
    if not any(names):
        return _not_for_the_loss(program, work)
    late: set[ir.Value] = set()
    found = []
    for is_named, step in zip(names, work, strict=True):
        is_late = is_named or any(v in late for v in step.reads)
        found.append(is_late)
        if is_late:
            late.update(step.op.results)
    return found


def _not_for_the_loss(program: Program, work: list[Work]) -> list[bool]:
    terminator = list(program.function.entry_block.operations)[-1].operation
    results = [(b, v.type) for b, v in zip(program.results, terminator.operands, strict=True)]
    losses = [b for b, kind in results if _is_number(kind)]
    inputs = list(program.function.type.inputs)
    if len(losses) != 1 or any(k not in inputs for _, k in results if not _is_number(k)):
        return [False] * len(work)
    wanted, found = set(losses[0].values), [True] * len(work)
    for t in range(len(work) - 1, -1, -1):
        if any(r in wanted for r in work[t].op.results):
            wanted.update(work[t].reads)
            found[t] = False
    return found


def _is_number(kind: ir.Type) -> bool:
    tensor = ir.RankedTensorType(kind)
    return tensor.rank == 0 and isinstance(tensor.element_type, ir.FloatType)


def _find_states(program: Program, work: list[Work], derived: list[bool]) -> None:
    """Parameters, auxiliary states and gradients.

    An argument is a state where the backward gives a result of its type that its last step makes
    from it: a parameter if the forward reads it, else auxiliary (an optimizer's slot). A gradient
    is what the backward makes of the type of a state and that state's update reads.
    """
    arguments = {v: v.type for v in program.function.entry_block.arguments if is_tensor(v)}
    made = {r: t for t, step in enumerate(work) for r in step.op.results}
    early = {v for t, step in enumerate(work) if not derived[t] for v in step.reads}
    taken: set[ir.Value] = set()
    for value in program.returned:
        if value not in made or not derived[made[value]]:
            continue
        step = work[made[value]]
        states = [v for v in step.reads if arguments.get(v) == value.type and v not in taken]
        states.sort(key=lambda v: v not in early)
        if not states:
            continue
        taken.add(state := states[0])
        argument = program.buffer_of[state]
        if argument.kind == INPUT:
            argument.kind = PARAMETER if state in early else AUXILIARY
        for read in step.reads:
            found = program.buffer_of.get(read)
            if not found or read.type != value.type or read not in made:
                continue
            # What waits for no cotangent was taken for part of the forward.
            is_early = found.kind == RESIDUAL and derived[made[read]]
            if found.kind == TEMPORARY or is_early:
                found.kind, found.owner = GRADIENT, argument.owner
