# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Memory, decided inside IREE's own pipeline: one arena a function, donated inputs overwritten.

IREE has scheduled its commands and given every value a lifetime, but has laid out no memory yet
(after `iree-stream-schedule-allocation`). Here the commands of each function are read, and

- results that are first made in a temporary and then copied are made in place;
- a donated input shares its memory with the result that takes it over, where the schedule shows
  that nothing reads the old value once the new one is being written;
- the temporaries of a function with a caller's arena, which IREE packs execution by execution, are
  packed into one allocation, on one time axis; groups of commands that may run side by side are
  split where that lowers the peak.

A function whose ops are not as expected is left alone. The file is loaded by the compiler process,
on its own: it imports nothing of gradopt.
"""

import collections
import dataclasses
import json
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from iree.compiler import ir

UP_TO_ALLOCATION = (
    "iree-stream-tensor-transformation-pipeline,iree-stream-async-transformation-pipeline,"
    "iree-stream-schedule-allocation"
)
FROM_ALLOCATION = (
    "iree-stream-cmd-transformation-pipeline,iree-stream-optimization-pipeline,"
    "iree-stream-cleanup-pipeline,symbol-dce"
)
STORAGE = "gradopt.storage"
REFLECTION = "iree.reflection"
REPORT = "gradopt.memory"
"""The entry of a function's reflection that says what was decided, as JSON."""

READ, WRITE = 1, 2

Memory = tuple[str, int, int]
"""What a command touches: ("argument", position, 0), ("slab", number, slice), ("constant", ...)."""

QUIET = {
    "stream.tensor.import",
    "stream.tensor.export",
    "stream.timepoint.await",
    "stream.resource.alloca",
    "stream.resource.dealloca",
    "stream.resource.size",
    "stream.resource.transients",
    "stream.resource.subview",
    "util.optimization_barrier",
}
"""Ops outside of executions that take resources but touch no memory."""


class UnexpectedError(Exception):
    """The function holds something that is not read here."""


@dataclasses.dataclass
class Access:
    """One command's use of a memory."""

    command: ir.Operation
    operand: int  # the position of the resource among the command's operands
    memory: Memory
    kind: int  # READ, WRITE or both
    path: tuple[int, ...]  # execution, step, then positions inside concurrent and serial groups
    kinds: tuple[str, ...]  # names of the ops that hold each element of the path
    whole: bool  # it covers all of the memory

    @property
    def time(self) -> tuple[int, int]:
        return self.path[:2]  # type: ignore[return-value]


def comes_before(a: Access, b: Access) -> bool:
    """Whether a has ended when b starts. Executions follow each other."""
    for x, y, kind in zip(a.path, b.path, a.kinds, strict=False):
        if x != y:
            return x < y and kind != "stream.cmd.concurrent"
    return False


# --- reading a function ---------------------------------------------------------------------------


class Slab:
    """One transient allocation of IREE's, with the values in it."""

    def __init__(self, op: ir.Operation) -> None:
        self.op = op
        size = next(o for o in op.operands if o.type == ir.IndexType.get(op.context))
        owner = None if isinstance(size.owner, ir.Block) else size.owner
        self.packing = owner if owner is not None and owner.name == "stream.resource.pack" else None
        if self.packing is None:
            self.sizes = [number(size)]
        else:
            self.sizes = [number(o) for o in self.packing.operands]
            if len(self.sizes) + 1 != len(self.packing.results):
                raise UnexpectedError("a packing with a base offset")


class Schedule:
    """The commands of one function: what each touches, and when. Raises UnexpectedError where that
    cannot be told.
    """

    def __init__(self, function: ir.Operation) -> None:
        if len(function.regions[0].blocks) != 1:
            raise UnexpectedError("several blocks")
        self.function = function
        self.block = function.regions[0].blocks[0]
        self.arguments = list(self.block.arguments)
        self.slabs: list[Slab] = []
        self.executions: list[ir.Operation] = []
        self.accesses: list[Access] = []
        self._memory: dict[ir.Value, Memory] = {}
        for op in [o.operation for o in self.block.operations]:
            self._read(op)

    def _read(self, op: ir.Operation) -> None:
        if op.name == "stream.cmd.execute":
            self.executions.append(op)
            self._read_execution(op)
            return
        if len(op.regions):
            raise UnexpectedError(f"a region in '{op.name}'")
        resources = [o for o in op.operands if is_resource(o)]
        if resources and op.name not in QUIET:
            raise UnexpectedError(f"'{op.name}'")
        if op.name == "stream.tensor.import":
            source = op.operands[0]
            if not isinstance(source.owner, ir.Block):
                raise UnexpectedError("an import of what is no argument")
            self._memory[op.results[0]] = ("argument", self.arguments.index(source), 0)
        elif op.name == "stream.resource.alloca":
            lifetime = str(op.results[0].type)
            if "transient" in lifetime:
                self.slabs.append(Slab(op))
                self._memory[op.results[0]] = ("slab", len(self.slabs) - 1, -1)
            else:
                self._memory[op.results[0]] = ("result", id(op), 0)
        elif op.name == "stream.resource.subview":
            inner = self._memory[op.operands[0]]
            if inner[0] == "slab":
                inner = (*inner[:2], self._slice(inner[1], op.operands[2]))
            self._memory[op.results[0]] = inner
        elif op.name in ("stream.timepoint.await", "stream.resource.transients"):
            kept = resources if op.name == "stream.timepoint.await" else resources[:1]
            for old, new in zip(kept, [r for r in op.results if is_resource(r)], strict=True):
                self._memory[new] = self._memory[old]
        elif op.name == "util.optimization_barrier":
            for old, new in zip(op.operands, op.results, strict=True):
                if is_resource(new):
                    self._memory[new] = self._memory[old]
        elif op.name == "util.global.load" and is_resource(op.results[0]):
            self._memory[op.results[0]] = ("constant", id(op), 0)
        elif any(is_resource(r) for r in op.results):
            raise UnexpectedError(f"'{op.name}'")

    def _read_execution(self, op: ir.Operation) -> None:
        block = op.regions[0].blocks[0]
        given = [o for o in op.operands if is_resource(o)]
        for inner, outer in zip(block.arguments, given, strict=True):
            self._memory[inner] = self._memory[outer]
        self._read_commands(op, (len(self.executions) - 1,), ("stream.cmd.execute",))

    def _read_commands(
        self, holder: ir.Operation, path: tuple[int, ...], kinds: tuple[str, ...]
    ) -> None:
        for i, op in enumerate(commands(holder)):
            here, of = (*path, i), (*kinds, holder.name)
            if op.name in ("stream.cmd.concurrent", "stream.cmd.serial"):
                self._read_commands(op, here, of)
                continue
            for operand, kind, offset, length, size in operands_of(op):
                memory = self._memory[op.operands[operand]]
                if memory[0] == "slab" and memory[2] < 0:
                    memory = (*memory[:2], self._slice(memory[1], offset))
                    whole = offset_is_start(offset) and (
                        number_or_none(length) == self.slabs[memory[1]].sizes[memory[2]]
                    )
                else:
                    whole = number_or_none(offset) == 0 and length == size
                self.accesses.append(Access(op, operand, memory, kind, here, of, whole))

    def _slice(self, slab: int, offset: ir.Value) -> int:
        """Which of a slab's values an offset points into."""
        packing = self.slabs[slab].packing
        if packing is None:
            return 0
        if isinstance(offset.owner, ir.Block):
            raise UnexpectedError("an offset that is an argument")
        if offset.owner == packing:
            return ir.OpResult(offset).result_number - 1
        if offset.owner.name == "arith.addi":
            for part in offset.owner.operands:
                if not isinstance(part.owner, ir.Block) and part.owner == packing:
                    return ir.OpResult(part).result_number - 1
        raise UnexpectedError("an offset that is not from the packing")

    def of(self, memory: Memory) -> list[Access]:
        return self._by_memory().get(memory, [])

    def _by_memory(self) -> dict[Memory, list[Access]]:
        if not hasattr(self, "_table"):
            self._table: dict[Memory, list[Access]] = {}
            for access in self.accesses:
                self._table.setdefault(access.memory, []).append(access)
        return self._table

    def order_executions(self) -> None:
        """Let each execution wait for the one before, if it does not: memory is shared."""
        for i, after in enumerate(self.executions[1:], 1):
            before = self.executions[i - 1].results[0]
            if not waits_for(after, before):
                self.executions[i] = wait_too(after, before)


def commands(holder: ir.Operation) -> list[ir.Operation]:
    """The commands of an execution or a group, without its terminator."""
    found = [o.operation for o in holder.regions[0].blocks[0].operations]
    return [o for o in found if o.name != "stream.yield"]


def operands_of(
    op: ir.Operation,
) -> Iterator[tuple[int, int, ir.Value, ir.Value, ir.Value]]:
    """(operand position, kind, offset, length, size of the resource) of what a command touches."""
    values = list(op.operands)
    if op.name == "stream.cmd.dispatch":
        counts = segments(op)
        start, count = sum(counts[:2]), counts[2]
        if counts[2:] != [count] * 4:
            raise UnexpectedError("a dispatch of another form")
        kinds = [ir.IntegerAttr(a).value for a in ir.ArrayAttr(op.attributes["resource_accesses"])]
        for i, kind in enumerate(kinds):
            at = start + i
            yield at, kind, values[at + 2 * count], values[at + 3 * count], values[at + count]
    elif op.name == "stream.cmd.copy" and len(values) == 7:
        yield 0, READ, values[2], values[6], values[1]
        yield 3, WRITE, values[5], values[6], values[4]
    elif op.name == "stream.cmd.fill" and len(values) == 5:
        yield 0, WRITE, values[2], values[3], values[1]
    elif any(is_resource(v) for v in values) or len(op.regions):
        raise UnexpectedError(f"'{op.name}'")


TRANSPARENT = {"stream.timepoint.await", "util.optimization_barrier"}
"""Ops behind which a resource has waited for what the op waited for."""


def waits_for(op: ir.Operation, timepoint: ir.Value) -> bool:
    """Whether an op waits, directly or through others, for a timepoint."""
    seen: set[ir.Value] = set()
    left = collections.deque(o for o in op.operands if is_timepoint(o) or is_resource(o))
    while left:  # the nearest first: mostly it is one of these
        value = left.popleft()
        if value == timepoint:
            return True
        if value in seen or isinstance(value.owner, ir.Block):
            continue
        seen.add(value)
        if is_timepoint(value) or value.owner.name in TRANSPARENT:
            left += [o for o in value.owner.operands if is_timepoint(o) or is_resource(o)]
    return False


def wait_too(execution: ir.Operation, timepoint: ir.Value) -> ir.Operation:
    """Let an execution wait for a timepoint as well; returns the execution."""
    operands, counts = list(execution.operands), segments(execution)
    with ir.InsertionPoint(execution), execution.location:
        if counts[-1]:
            both = [operands[-1], timepoint]
            joined = ir.Operation.create("stream.timepoint.join", [timepoint.type], both)
            execution.operands[len(operands) - 1] = joined.results[0]
            return execution
        about = {name: execution.attributes[name] for name in execution.attributes}
        about["operandSegmentSizes"] = ir.DenseI32ArrayAttr.get([*counts[:-1], 1])
        results = [r.type for r in execution.results]
        made = ir.Operation.create(
            execution.name, results, [*operands, timepoint], about, regions=1
        )
    execution.regions[0].blocks[0].append_to(made.regions[0])
    for old, new in zip(execution.results, made.results, strict=True):
        old.replace_all_uses_with(new)
    execution.erase()
    return made


def segments(op: ir.Operation) -> list[int]:
    """How many operands each of an op's groups of operands has."""
    return [int(n) for n in ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"])]


def is_resource(value: ir.Value) -> bool:
    return str(value.type).startswith("!stream.resource")


def is_timepoint(value: ir.Value) -> bool:
    return str(value.type) == "!stream.timepoint"


def number(value: ir.Value) -> int:
    if (found := number_or_none(value)) is None:
        raise UnexpectedError("a size that is no constant")
    return found


def number_or_none(value: ir.Value) -> int | None:
    if isinstance(value.owner, ir.Block) or value.owner.name != "arith.constant":
        return None
    return ir.IntegerAttr(value.owner.attributes["value"]).value


def offset_is_start(offset: ir.Value) -> bool:
    if number_or_none(offset) == 0:
        return True
    return not isinstance(offset.owner, ir.Block) and offset.owner.name == "stream.resource.pack"


def index(value: int) -> ir.Value:
    kind = ir.IndexType.get()
    about = {"value": ir.IntegerAttr.get(kind, value)}
    return ir.Operation.create("arith.constant", [kind], attributes=about).results[0]


# --- results made where they belong ---------------------------------------------------------------


def place_results(schedule: Schedule) -> list[Memory]:
    """Let temporaries that end as a copy into a result's memory live there from the start; returns
    the temporaries that are gone.
    """
    copies = [
        (source, target)
        for source, target in zip(schedule.accesses, schedule.accesses[1:], strict=False)
        if source.command.name == "stream.cmd.copy"
        and source.command == target.command
        and _may_live_in(schedule, source, target)
    ]
    gone: list[Memory] = []
    for source, target in copies:
        if source.memory in gone:
            continue
        for use in schedule.of(source.memory):
            if use.command != source.command:
                _redirect(use, target)
        gone.append(source.memory)
        source.command.erase()
    return gone


def drop_unused(schedule: Schedule) -> None:
    """Let values that no command touches take no memory."""
    with ir.InsertionPoint.at_block_begin(schedule.block), schedule.function.location:
        nothing = index(0)
    for number_, slab in enumerate(schedule.slabs):
        for i in range(len(slab.sizes)):
            if slab.packing is not None and not schedule.of(("slab", number_, i)):
                slab.packing.operands[i] = nothing


def _may_live_in(schedule: Schedule, source: Access, target: Access) -> bool:
    """Whether a copied temporary and the copy's target can be one memory: nothing else touches the
    target, and every use of the temporary comes before, in the same execution.
    """
    if source.memory[0] != "slab" or target.memory[0] != "argument":
        return False
    others = [a for a in schedule.of(source.memory) if a.command != source.command]
    return (
        source.whole
        and target.whole
        and len(schedule.of(target.memory)) == 1
        and all(a.path[0] == source.path[0] and a.whole for a in others)
        and all(comes_before(a, source) for a in others)
    )


def _redirect(use: Access, target: Access) -> None:
    """Let a command use the memory that a copy writes to."""
    command, copy = use.command, target.command
    values = list(copy.operands)
    resource, size, offset = values[3], values[4], values[5]
    if command.name == "stream.cmd.dispatch":
        count = segments(command)[2]
        places = (use.operand, use.operand + count, use.operand + 2 * count)
    else:
        places = (use.operand, use.operand + 1, use.operand + 2)
    for place, value in zip(places, (resource, size, offset), strict=True):
        command.operands[place] = value


# --- donated inputs that are overwritten ----------------------------------------------------------


@dataclasses.dataclass
class Tie:
    """A donated input and the argument whose memory takes its new value: one memory, or two."""

    donated: int
    storage: int
    in_place: bool
    why: str


def decide_ties(schedule: Schedule, bodies: dict[str, ir.Operation]) -> list[Tie]:
    """For each donated input, whether its memory may be overwritten: no command reads the old
    value at the same time as, or after, one that writes the new. Copies from old to new go away
    with the difference.
    """
    ties = []
    for storage, about in enumerate(argument_attributes(schedule.function)):
        if STORAGE not in about:
            continue
        donated = ir.IntegerAttr(about[STORAGE]).value
        old, new = schedule.of(("argument", donated, 0)), schedule.of(("argument", storage, 0))
        copies = [
            w.command
            for w in new
            if w.command.name == "stream.cmd.copy"
            and w.whole
            and any(r.command == w.command and r.whole for r in old)
        ]
        why = _conflict(
            [a for a in old if a.command not in copies],
            [a for a in new if a.kind & WRITE and a.command not in copies],
            bodies,
        )
        ties.append(Tie(donated, storage, why == "", why or "every reader comes before the update"))
        if why == "":
            for copy in copies:
                copy.erase()
    return ties


def _conflict(old: list[Access], new: list[Access], bodies: dict[str, ir.Operation]) -> str:
    """Why the old value cannot be overwritten; "" if it can."""
    for reader in old:
        for writer in new:
            if reader.command == writer.command:
                if not updates_each_element(reader, writer, bodies):
                    return f"{name_of(writer.command)} reads it at other places than it writes"
            elif not comes_before(reader, writer):
                return f"{name_of(reader.command)} may read it after {name_of(writer.command)}"
    return ""


SIMPLE = {
    "arith.constant",
    "func.return",
    "iree_tensor_ext.dispatch.tensor.load",
    "iree_tensor_ext.dispatch.tensor.store",
    "linalg.generic",
    "stream.binding.subspan",
    "tensor.empty",
}
"""The ops of a dispatch that computes nothing but one elementwise op."""


def updates_each_element(reader: Access, writer: Access, bodies: dict[str, ir.Operation]) -> bool:
    """Whether a dispatch is one elementwise op that reads each element of one memory, and no
    other, before it writes the same element of the other memory.

    With another op in the dispatch its result could be kept in the written memory for a while.
    """
    if reader.command.name != "stream.cmd.dispatch" or not (reader.whole and writer.whole):
        return False
    body = bodies.get(name_of(reader.command))
    if body is None:
        return False
    ops = [o.operation for o in body.regions[0].blocks[0].operations]
    computing = [o for o in ops if o.name == "linalg.generic"]
    if len(computing) != 1 or any(o.name not in SIMPLE for o in ops):
        return False
    bindings = [a for a in body.regions[0].blocks[0].arguments if str(a.type) == "!stream.binding"]
    first = sum(segments(reader.command)[:2])
    loads = _through(bindings[reader.operand - first], "iree_tensor_ext.dispatch.tensor.load")
    stores = _through(bindings[writer.operand - first], "iree_tensor_ext.dispatch.tensor.store")
    if len(loads) != 1 or len(stores) != 1:
        return False
    (load,), (store,), (update,) = loads, stores, computing
    return (
        _piece(load) == _piece(store)
        and list(load.operands)[1:] == []
        and list(store.operands)[2:] == []
        and _is_elementwise(update, load.results[0], store.operands[0])
    )


def _through(binding: ir.Value, name: str) -> list[ir.Operation]:
    """The loads or stores of a binding; [] if something else is done with it."""
    spans = users(binding)
    if len(spans) != 1 or spans[0].name != "stream.binding.subspan":
        return []
    found = users(spans[0].results[0])
    return found if all(o.name == name for o in found) else []


def _piece(op: ir.Operation) -> tuple[str, ...]:
    """What a load or store touches: which part, of a tensor of which type."""
    kind = next(str(o.type) for o in op.operands if "dispatch.tensor<" in str(o.type))
    parts = (str(op.attributes[f"static_{n}"]) for n in ("offsets", "sizes", "strides"))
    return (kind.partition(":")[2], *parts)


def _is_elementwise(op: ir.Operation, source: ir.Value, result: ir.Value) -> bool:
    """Whether op reads source only at the position where it writes result, all loops parallel."""
    loops = len(ir.ArrayAttr(op.attributes["iterator_types"]))
    maps = list(ir.ArrayAttr(op.attributes["indexing_maps"]))
    identity = ir.AffineMapAttr.get(ir.AffineMap.get_identity(loops))
    inputs = segments(op)[0]
    places = [i for i, o in enumerate(op.operands) if o == source]
    if result.owner.operation != op or any(user != op for user in users(source)):
        return False
    written = inputs + ir.OpResult(result).result_number
    return (
        "reduction" not in str(op.attributes["iterator_types"])
        and all(i < inputs and maps[i] == identity for i in places)
        and maps[written] == identity
        and all(u.name.endswith("tensor.store") for r in op.results for u in users(r))
    )


def users(value: ir.Value) -> list[ir.Operation]:
    return [use.owner.operation for use in value.uses]


def name_of(command: ir.Operation) -> str:
    """What a command runs."""
    if command.name != "stream.cmd.dispatch":
        return command.name
    points = [str(p) for p in ir.ArrayAttr(command.attributes["entry_points"])]
    return points[0].rpartition("@")[2] if len(points) == 1 else " or ".join(points)


def dispatch_bodies(module: ir.Operation) -> dict[str, ir.Operation]:
    """The functions inside a module's executables, by name."""
    found = {}
    for op in module.regions[0].blocks[0].operations:
        if op.operation.name == "stream.executable":
            for inner in op.operation.regions[0].blocks[0].operations:
                if inner.operation.name == "builtin.module":
                    for function in inner.operation.regions[0].blocks[0].operations:
                        name = ir.StringAttr(function.operation.attributes["sym_name"]).value
                        found[name] = function.operation
    return found


def argument_attributes(function: ir.Operation) -> list[ir.DictAttr]:
    if "arg_attrs" not in function.attributes:
        return []
    return [ir.DictAttr(a) for a in ir.ArrayAttr(function.attributes["arg_attrs"])]


# --- one arena ------------------------------------------------------------------------------------


Spans = dict[Memory, tuple[tuple[int, int], tuple[int, int]]]


def lifetimes(schedule: Schedule) -> Spans:
    """When each temporary is first and last touched, as (execution, step)."""
    found = {}
    for memory, accesses in schedule._by_memory().items():
        if memory[0] == "slab":
            times = [a.time for a in accesses]
            found[memory] = (min(times), max(times))
    return found


def rounded(size: int, alignment: int = 64) -> int:
    return -(-size // alignment) * alignment


def size_of(schedule: Schedule, memory: Memory) -> int:
    return rounded(schedule.slabs[memory[1]].sizes[memory[2]])


def split_groups(schedule: Schedule) -> int:
    """Run commands of a group one after the other where the group holds more memory than the
    function needs at any single command; returns how many groups were split.

    The commands of a group do not depend on each other, so that any order is right.
    """
    groups = Groups(schedule)
    target = groups.least_peak()
    split = 0
    for time, op in groups.ops.items():
        if groups.live(time) > target:
            parts = groups.parts(time, target)
            if len(parts) > 1:
                _write_parts(op, parts)
                split += 1
    return split


class Groups:
    """The groups of commands that may run side by side, and the memory alive at them."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.spans = lifetimes(schedule)
        self.ops = {
            (e, i): op
            for e, execution in enumerate(schedule.executions)
            for i, op in enumerate(commands(execution))
            if op.name == "stream.cmd.concurrent"
        }
        self.touched: dict[tuple[int, int], list[set[Memory]]] = {
            time: [set() for _ in commands(op)] for time, op in self.ops.items()
        }
        for access in schedule.accesses:
            if access.time in self.ops and access.memory[0] == "slab":
                self.touched[access.time][access.path[2]].add(access.memory)
        self._live: dict[tuple[int, int], int] = {}
        changes: dict[tuple[int, int], int] = {}
        ends: dict[tuple[int, int], int] = {}
        for memory, (first, last) in self.spans.items():
            size = size_of(schedule, memory)
            changes[first] = changes.get(first, 0) + size
            ends[last] = ends.get(last, 0) + size
        now = 0
        for time in sorted({*changes, *ends, *self.ops}):
            now += changes.get(time, 0)
            self._live[time] = now
            now -= ends.get(time, 0)

    def live(self, time: tuple[int, int]) -> int:
        """Bytes alive while the commands at `time` run, side by side if it is a group."""
        return self._live[time]

    def least_peak(self) -> int:
        """The peak with every group run one command after the other."""
        peaks = [
            self._run(time, [[i] for i in self._order(time)]) if time in self.ops else live
            for time, live in self._live.items()
        ]
        return max(peaks, default=0)

    def parts(self, time: tuple[int, int], target: int) -> list[list[int]]:
        """A group's commands in order, as many side by side as stay within target bytes."""
        parts: list[list[int]] = []
        order = self._order(time)
        for done, i in enumerate(order, 1):
            rest = [[j] for j in order[done:]]
            if parts and self._run(time, [*parts[:-1], [*parts[-1], i], *rest]) <= target:
                parts[-1].append(i)
            else:
                parts.append([i])
        return parts

    def _order(self, time: tuple[int, int]) -> list[int]:
        """Commands that free more than they make first, the least making first; then those that
        make more, the most freeing first: no order of independent commands has a lower peak.
        """
        makes, frees = [], []
        for memories in self.touched[time]:
            makes.append(sum(self._size(m) for m in memories if self.spans[m][0] == time))
            frees.append(sum(self._size(m) for m in memories if self.spans[m][1] == time))

        def key(i: int) -> tuple[int, int, int]:
            return (0, makes[i], i) if frees[i] >= makes[i] else (1, -frees[i], i)

        return sorted(range(len(makes)), key=key)

    def _run(self, time: tuple[int, int], parts: list[list[int]]) -> int:
        """The most bytes alive when parts of a group run one after the other."""
        touched = [{m for i in part for m in self.touched[time][i]} for part in parts]
        first: dict[Memory, int] = {}
        last: dict[Memory, int] = {}
        for p, memories in enumerate(touched):
            for memory in memories:
                first.setdefault(memory, p)
                last[memory] = p
        born: list[list[Memory]] = [[] for _ in parts]
        for memory, p in first.items():
            if self.spans[memory][0] == time:
                born[p].append(memory)
        now = self.live(time) - sum(self._size(m) for memories in born for m in memories)
        peak = now
        for p, memories in enumerate(touched):
            now += sum(map(self._size, born[p]))
            peak = max(peak, now)
            now -= sum(self._size(m) for m in memories if last[m] == p and self.spans[m][1] == time)
        return peak

    def _size(self, memory: Memory) -> int:
        return size_of(self.schedule, memory)


def _write_parts(group: ir.Operation, parts: list[list[int]]) -> None:
    """Replace a group by its parts, one after the other."""
    inner = commands(group)
    for part in parts:
        _write_group([inner[i] for i in part], group)
    group.erase()


def _write_group(members: list[ir.Operation], before: ir.Operation) -> None:
    """Move commands to where they may run side by side, in front of an op."""
    if len(members) == 1:
        members[0].move_before(before)
        return
    with ir.InsertionPoint(before), before.location:
        group = ir.Operation.create("stream.cmd.concurrent", regions=1)
        block = group.regions[0].blocks.append()
        with ir.InsertionPoint(block):
            end = ir.Operation.create("stream.yield")
        for op in members:
            op.move_before(end)


# --- another order of commands --------------------------------------------------------------------


class Batch:
    """The commands of one execution, what each has to wait for, and the temporaries that they use:
    `beside` bytes of others are alive meanwhile.
    """

    def __init__(
        self, schedule: Schedule, number_: int, ties: list[Tie], spans: Spans, ordering: ModuleType
    ) -> None:
        self.execution = schedule.executions[number_]
        self.ops: list[ir.Operation] = []
        self.number: dict[tuple[int, ...], int] = {}  # by path
        for i, op in enumerate(commands(self.execution)):
            is_group = op.name == "stream.cmd.concurrent"
            for j, member in enumerate(commands(op) if is_group else [op]):
                self.number[(number_, i, j) if is_group else (number_, i)] = len(self.ops)
                self.ops.append(member)
        accesses = [a for a in schedule.accesses if a.path[0] == number_]
        users: dict[Memory, dict[int, None]] = {}
        for access in accesses:
            if access.memory[0] == "slab":
                users.setdefault(access.memory, {})[self._of(access)] = None
        values = [
            ordering.Value(
                size_of(schedule, m), list(by), spans[m][0][0] < number_, spans[m][1][0] > number_
            )
            for m, by in users.items()
        ]
        self.beside = sum(
            size_of(schedule, m)
            for m, (first, last) in spans.items()
            if first[0] < number_ < last[0] and m not in users
        )
        self.commands = ordering.Commands(self._before(accesses, ties), values)
        self.order: list[int] = list(range(len(self.ops)))

    def _of(self, access: Access) -> int:
        """The number of the command that an access belongs to."""
        return self.number.get(access.path[:3], self.number.get(access.path[:2], -1))

    def _before(self, accesses: list[Access], ties: list[Tie]) -> list[list[int]]:
        """What each command has to wait for: who wrote what it uses, and who reads what it writes.
        A donated input that is overwritten and its new value are one memory.
        """
        same = {("argument", t.storage, 0): ("argument", t.donated, 0) for t in ties if t.in_place}
        before: list[dict[int, None]] = [{} for _ in self.ops]
        writer: dict[Memory, int] = {}
        readers: dict[Memory, list[int]] = {}
        for access in accesses:
            here, memory = self._of(access), same.get(access.memory, access.memory)
            waits = [writer[memory]] if memory in writer else []
            if access.kind & WRITE:
                waits += readers.pop(memory, [])
                writer[memory] = here
            if access.kind & READ:
                readers.setdefault(memory, []).append(here)
            before[here].update((c, None) for c in waits if c != here)
        return [list(found) for found in before]

    def peak(self) -> int:
        return self.commands.peak(self.order) + self.beside

    def write(self, limit: int) -> None:
        """Put the commands in their new order, side by side where that needs no more than `limit`
        bytes.
        """
        groups = [op for op in commands(self.execution) if op.name == "stream.cmd.concurrent"]
        end = self.execution.regions[0].blocks[0].operations[-1].operation
        for group in self.commands.side_by_side(self.order, limit - self.beside):
            _write_group([self.ops[i] for i in group], end)
        for group in groups:
            group.erase()


def reordered(function: ir.Operation, ties: list[Tie], ordering: ModuleType) -> ir.Operation | None:
    """A copy of a function, in front of it, with its commands in an order that needs less memory
    for temporaries; None where no such order is found.
    """
    copy = function.clone(ir.InsertionPoint(function))
    schedule = Schedule(copy)
    spans = lifetimes(schedule)
    batches = [Batch(schedule, i, ties, spans, ordering) for i in range(len(schedule.executions))]
    lowest, moved = 0, []
    for batch in sorted(batches, key=Batch.peak, reverse=True):
        if batch.peak() <= lowest:
            break
        batch.order = batch.commands.lowest(batch.order)
        lowest = max(lowest, batch.peak())
        moved.append(batch)
    if lowest >= Groups(schedule).least_peak():
        copy.erase()
        return None
    for batch in moved:
        batch.write(lowest)
    return copy


@dataclasses.dataclass
class Value:
    """A temporary: its bytes, when it lives, where it was put, and the op it is made for, with its
    source line and the command that makes it.
    """

    size: int
    first: tuple[int, int]
    last: tuple[int, int]
    offset: int
    name: str
    where: str
    command: str


def values_of(schedule: Schedule) -> dict[Memory, Value]:
    """The temporaries of a function, without places."""
    found = {}
    for memory, (first, last) in lifetimes(schedule).items():
        maker = schedule.of(memory)[0].command
        name, where = source_of(maker)
        size = size_of(schedule, memory)
        found[memory] = Value(size, first, last, -1, name, where, name_of(maker))
    return found


def source_of(op: ir.Operation) -> tuple[str, str]:
    """The name of the op that a command was made for, and its file and line; "" where unknown."""
    text = str(op.location)
    name = re.search(r'"([^"]*)"\("', text)
    place = re.search(r'"([^"]*)":(\d+):\d+', text)
    return name[1] if name else "", f"{place[1]}:{place[2]}" if place else ""


def pack(values: dict[Memory, Value], packing: ModuleType) -> int:
    """Give each value its offset in one arena; returns the arena's bytes."""
    intervals = [packing.Interval(v.size, v.first, v.last) for v in values.values()]
    size = packing.pack(intervals)
    for value, interval in zip(values.values(), intervals, strict=True):
        value.offset = interval.offset
    return size


def lower_bound(values: dict[Memory, Value], packing: ModuleType) -> int:
    """The most bytes of values alive at one time."""
    return packing.lower_bound([packing.Interval(v.size, v.first, v.last) for v in values.values()])


def write_arena(schedule: Schedule, values: dict[Memory, Value], size: int) -> None:
    """Put every temporary at its offset in one allocation."""
    slabs = schedule.slabs
    with ir.InsertionPoint.at_block_begin(schedule.block), schedule.function.location:
        total = index(size)
        first = slabs[0].op
        about = {a: first.attributes[a] for a in first.attributes if a != "operandSegmentSizes"}
        made = ir.Operation.create(first.name, [r.type for r in first.results], [total], about)
        arena, ready = made.results
        nothing = index(0)
        places = {m: index(v.offset) for m, v in values.items()}
    for number_, slab in enumerate(slabs):
        count = len(slab.sizes)
        offsets = [places.get(("slab", number_, i), nothing) for i in range(count)]
        _move(slab, offsets, arena, total, ready)


def _move(
    slab: Slab, offsets: list[ir.Value], arena: ir.Value, size: ir.Value, ready: ir.Value
) -> None:
    """Put a slab's values at their offsets in the arena. Who waited for the slab waits for what it
    waited for.
    """
    resource, allocated = slab.op.results
    for op in users(resource):
        if op.name == "stream.resource.dealloca":
            op.results[0].replace_all_uses_with(next(o for o in op.operands if is_timepoint(o)))
            op.erase()
    with ir.InsertionPoint(slab.op), slab.op.location:
        if slab.packing is None:
            length = next(o for o in slab.op.operands if str(o.type) == "index")
            view = [arena, size, offsets[0], length]
            resource.replace_all_uses_with(
                ir.Operation.create("stream.resource.subview", [resource.type], view).results[0]
            )
        else:
            resource.replace_all_uses_with(arena)
        waited = [o for o in slab.op.operands if is_timepoint(o)]
        joined = ir.Operation.create("stream.timepoint.join", [ready.type], [ready, *waited])
        allocated.replace_all_uses_with(joined.results[0])
    slab.op.erase()
    if slab.packing is not None:
        for result, value in zip(slab.packing.results, [size, *offsets], strict=True):
            result.replace_all_uses_with(value)
        slab.packing.erase()


# --- a module -------------------------------------------------------------------------------------


def has_arena(function: ir.Operation) -> bool:
    """Whether a function's temporaries are to live in a buffer that its caller gives."""
    block = function.regions[0].blocks[0]
    return any(o.operation.name == "stream.resource.transients" for o in block.operations)


def functions_of(module: ir.Operation) -> list[ir.Operation]:
    """A module's public functions."""
    return [
        o.operation
        for o in module.regions[0].blocks[0].operations
        if o.operation.name == "util.func"
        and "sym_visibility" not in o.operation.attributes
        and len(o.operation.regions[0].blocks)
    ]


def slab_sizes(module: ir.Operation) -> dict[str, int]:
    """The bytes of each public function's temporaries, all its executions together; functions that
    do not say are left out.
    """
    found = {}
    for function in functions_of(module):
        sizes = [
            number_or_none(op.operation.operands[0])
            for op in function.regions[0].blocks[0].operations
            if op.operation.name == "stream.resource.alloca"
            and "transient" in str(op.operation.results[0].type)
        ]
        if None not in sizes:
            name = ir.StringAttr(function.attributes["sym_name"]).value
            found[name] = sum(rounded(n) for n in sizes if n is not None)
    return found


def plan_module(
    module: ir.Operation, packing: ModuleType, ordering: ModuleType, own: dict[str, int]
) -> dict[str, Any]:
    """Rewrite a module's public functions; returns what was decided, by function, which is also
    put into each function's reflection. `own` are the bytes that IREE needs for the temporaries of
    each; `packing` and `ordering` are those modules of gradopt's lowering.
    """
    found = {}
    with module.context:
        bodies = dispatch_bodies(module)
        for function in functions_of(module):
            name = ir.StringAttr(function.attributes["sym_name"]).value
            try:
                function, found[name] = plan_function(
                    function, bodies, packing, ordering, own.get(name, 0)
                )
            except UnexpectedError as reason:
                found[name] = {"understood": False, "why": str(reason), "ties": []}
            _reflect(function, found[name])
    return found


def plan_function(
    function: ir.Operation,
    bodies: dict[str, ir.Operation],
    packing: ModuleType,
    ordering: ModuleType,
    own: int,
) -> tuple[ir.Operation, dict[str, Any]]:
    """Rewrite one function; the function, and what was decided, as JSON has it. Nothing is changed
    where it raises UnexpectedError.
    """
    Schedule(function).order_executions()
    placed = place_results(Schedule(function))
    drop_unused(Schedule(function))
    ties = decide_ties(Schedule(function), bodies)
    report: dict[str, Any] = {
        "understood": True,
        "ties": [dataclasses.asdict(t) for t in ties],
        "placed": len(placed),
        "iree": own,
        "split": 0,
        "reordered": False,
    }
    arena = has_arena(function)
    if arena:
        function, report["reordered"], report["split"] = arrange(function, ties, packing, ordering)
    schedule = Schedule(function)
    values = values_of(schedule)
    size = pack(values, packing) if arena else own
    report["bound"] = lower_bound(values, packing)
    report["arena"] = size if arena else None
    report["repacked"] = arena and size < own
    report["values"] = [dataclasses.asdict(v) for v in values.values()]
    if report["repacked"]:
        write_arena(schedule, values, size)
    return function, report


def arrange(
    function: ir.Operation, ties: list[Tie], packing: ModuleType, ordering: ModuleType
) -> tuple[ir.Operation, bool, int]:
    """Put a function's commands into the order that gives the smallest arena, the given one if none
    is better: the function, whether they were reordered, how many groups were split.
    """
    other = reordered(function, ties, ordering)
    split = split_groups(Schedule(function))
    if other is None:
        return function, False, split
    split_there = split_groups(Schedule(other))
    sizes = [pack(values_of(Schedule(f)), packing) for f in (function, other)]
    if sizes[1] >= sizes[0]:
        other.erase()
        return function, False, split
    function.erase()
    return other, True, split_there


def _reflect(function: ir.Operation, report: dict[str, Any]) -> None:
    short = {key: value for key, value in report.items() if key != "values"}
    entries = {REPORT: ir.StringAttr.get(json.dumps(short), function.context)}
    if REFLECTION in function.attributes:
        for entry in ir.DictAttr(function.attributes[REFLECTION]):
            entries.setdefault(entry.name, entry.attr)
    function.attributes[REFLECTION] = ir.DictAttr.get(entries, function.context)
