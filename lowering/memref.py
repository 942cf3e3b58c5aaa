# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-bufferize{form=memref}: the memory plan written out literally, for the host JIT.

Every tensor becomes a memref at its planned place: a `memref.view` of the one byte arena, an
argument of the caller's, or a constant. Ops write into the place of their result (destination
passing); nothing is copied that the plan puts in the same place. The function becomes

    func.func @f(inputs..., outputs..., arena: memref<?xi8>)

and says in `gradopt.results` which argument each result is found in. Values whose extents are
unknown until the call have no place in a plan: they are allocated. A result of unknown extents is
handed over in an argument of type `memref<nxi64>`: its address, which the caller frees, and its
extents. A function that checks unknown extents gets a last argument, `memref<1xi64>`, for the
number, from 1 on, of the check that failed; `gradopt.failures` holds their messages.
"""

from ..dialect.mlir import DYNAMIC, arith, cf, func, ir, memref, passmanager
from .bufferize import FORMS
from .linalg import build
from .liveness import Buffer, analyse
from .memref_build import (
    Extent,
    copy,
    elementwise,
    extents,
    integer,
    is_static,
    is_tensor,
    memref_of,
    placed,
    unknown_extents,
)
from .memref_ops import READS, SHAPES, WRITERS, inits, is_destination_passing, unexpected
from .passes import failure
from .plan_memory import ARENA, OFFSETS, Plan, plan, separate_destinations
from .storage import root

INPUTS = "gradopt.inputs"
"""On a function in memref form: how many of its arguments are its inputs."""
RESULTS = "gradopt.results"
"""On a function in memref form: the argument that each result is found in."""
ALLOCATED = "gradopt.allocated"
"""On a function in memref form: the results that it allocates, and hands over by their address."""
FAILURES = "gradopt.failures"
"""On a function in memref form: the messages of its checks."""
C_INTERFACE = "llvm.emit_c_interface"


def to_memrefs(function: func.FuncOp, poison: bool = False) -> None:
    """Rewrite a function at the linalg level, in place, with every value where its plan has it: the
    one in its attributes, else one made now.
    """
    write(plan_in(function) or fresh_plan(function), poison)


FORMS["memref"] = to_memrefs


def plan_in(function: func.FuncOp) -> Plan | None:
    """The plan that gradopt-plan-memory wrote into a function at this level; None without one."""
    if ARENA not in function.attributes:
        return None
    program = analyse(function)
    is_planned = False
    for op in program.steps:
        if OFFSETS in op.attributes:
            is_planned = True
            offsets = ir.DenseI64ArrayAttr(op.attributes[OFFSETS])
            for result, offset in zip(op.results, offsets, strict=True):
                if offset >= 0:
                    program.buffer_of[result].offset = offset
    if not is_planned and program.arena:
        return None  # one of the ops before they were lowered
    sizes = ir.DictAttr(function.attributes[ARENA])
    return Plan(program, *(ir.IntegerAttr(sizes[name]).value for name in ("size", "bound")))


def fresh_plan(function: func.FuncOp) -> Plan:
    """A plan made for a function at the linalg level."""
    if ARENA in function.attributes:  # of its ops before they were lowered
        del function.attributes[ARENA]
    separate_destinations(function)
    return plan(function)


def write(plan: Plan, poison: bool = False) -> None:
    """Rewrite the plan's function, at the linalg level, in place. With `poison`, storage is filled
    with ones bit by bit, NaNs and -1, when its last reader has run.
    """
    Writer(plan, poison).run()
    function = plan.program.function
    passmanager.PassManager.parse("func.func(cse)").run(function.operation)


class Writer:
    """Builds the memref form of each op in front of it, then erases the ops on tensors."""

    def __init__(self, plan: Plan, poison: bool) -> None:
        self.plan = plan
        self.program = plan.program
        self.function = self.program.function
        self.buffer_of = self.program.buffer_of
        self.block = self.function.entry_block
        self.ops = [op.operation for op in self.block.operations]
        self.inputs = list(self.block.arguments)
        self.returned = list(self.ops[-1].operands)
        self.memrefs: dict[ir.Value, ir.Value] = {}
        self.external: dict[Buffer, ir.Value] = {}  # the caller's -> the argument that it is
        self.allocated: list[ir.Value] = []
        self.names = 0
        self.dying: dict[int, list[Buffer]] = {}
        for buffer in self.program.arena if poison else ():
            if buffer.size:
                self.dying.setdefault(buffer.last, []).append(buffer)

    def run(self) -> None:
        with self.function.location:
            self._add_arguments()
        steps = 0
        for op in self.ops[:-1]:
            with ir.InsertionPoint(op), op.location:
                self._write(op)
                if steps < len(self.program.steps) and op == self.program.steps[steps]:
                    self._spoil(steps)
                    steps += 1
        with ir.InsertionPoint(self.ops[-1]), self.ops[-1].location:
            self._hand_over()
        with self.function.location:
            self._retype()
            self._branch()

    # --- the signature ------------------------------------------------------------------------

    def _add_arguments(self) -> None:
        places = [self._argument(x.type, self.buffer_of.get(x)) for x in self.inputs]
        with ir.InsertionPoint.at_block_begin(self.block):
            for argument, place in zip(self.inputs, places, strict=True):
                self.memrefs[argument] = placed(place, memref_of(argument.type))
        owners = {result: argument for argument, result in self.program.donated.items()}
        self.outputs = [
            places[owners[i]] if i in owners else self._output(value, self.program.results[i])
            for i, value in enumerate(self.returned)
        ]
        self.arena = self._add(ir.MemRefType.get([DYNAMIC], integer(8)))
        checks = [op for op in self.ops if op.name == "cf.assert"]
        self.failures = [op.attributes["msg"] for op in checks]
        if checks:
            self.failed = self._add(ir.MemRefType.get([1], integer(64)))

    def _add(self, kind: ir.Type) -> ir.Value:
        return self.block.add_argument(kind, self.function.location)

    def _argument(self, kind: ir.Type, buffer: Buffer | None) -> ir.Value:
        """A new argument for a tensor type: a memref, of bytes where values of several element
        types lie in it.
        """
        if buffer is None:
            return self._add(memref_of(kind))
        elements = {build.element_of(value) for value in buffer.values}
        if len(elements | {ir.RankedTensorType(kind).element_type}) > 1:
            self.external[buffer] = self._add(ir.MemRefType.get([buffer.size], integer(8)))
        else:
            self.external[buffer] = self._add(memref_of(kind))
        return self.external[buffer]

    def _output(self, value: ir.Value, buffer: Buffer) -> ir.Value:
        """A new argument for a result."""
        if is_static(value):
            return self._argument(value.type, buffer)
        return self._add(ir.MemRefType.get([1 + build.rank_of(value)], integer(64)))

    def _hand_over(self) -> None:
        """Copy results that are not where they are looked for; say where allocated ones are."""
        handed: set[ir.Value] = set()
        for i, (value, out) in enumerate(zip(self.returned, self.outputs, strict=True)):
            if not is_static(value):
                found = self._handed(value, handed)
                address = memref.extract_aligned_pointer_as_index(found)
                for at, n in enumerate([address, *extents(found)]):
                    number = arith.index_cast(integer(64), build.as_index(n))
                    memref.store(number, out, [build.index(at)])
            elif i in self.program.copied:
                copy(self.memref(value), placed(out, memref_of(value.type)))
        for value in self.allocated:
            if value not in handed:
                memref.dealloc(value)
        func.ReturnOp([])

    def _handed(self, value: ir.Value, handed: set[ir.Value]) -> ir.Value:
        """The memory of a result of unknown extents, for itself alone."""
        found, whole = self.memref(value), self.memref(root(value))
        if whole in handed or whole not in self.allocated:
            whole = memref.alloc(found.type, unknown_extents(found), [])
            copy(found, whole)
            found = whole
        handed.add(whole)
        return found

    def _erase(self) -> None:
        for op in reversed(self.ops):
            has_tensors = any(map(is_tensor, [*op.operands, *op.results]))
            if has_tensors or op.name == "func.return":
                op.erase()
        for i in reversed(range(len(self.inputs))):
            self.block.erase_argument(i)

    def _retype(self) -> None:
        """Give the function its new type, and the attributes by which it is called."""
        allocated = [i for i, value in enumerate(self.returned) if not is_static(value)]
        self._erase()
        arguments = list(self.block.arguments)
        kind = ir.FunctionType.get([a.type for a in arguments], [])
        about = list(self.function.arg_attrs) if "arg_attrs" in self.function.attributes else []
        about += [ir.DictAttr.get({})] * (len(arguments) - len(about))
        attributes = self.function.attributes
        attributes["function_type"] = ir.TypeAttr.get(kind)
        self.function.arg_attrs = ir.ArrayAttr.get(about)
        if "res_attrs" in attributes:
            del attributes["res_attrs"]
        position = {argument: i for i, argument in enumerate(arguments)}
        attributes[INPUTS] = ir.IntegerAttr.get(integer(64), len(self.inputs))
        attributes[RESULTS] = ir.DenseI64ArrayAttr.get([position[out] for out in self.outputs])
        if allocated:
            attributes[ALLOCATED] = ir.DenseI64ArrayAttr.get(allocated)
        if ARENA not in attributes:
            sizes = {"size": self.plan.size, "bound": self.plan.bound}
            sizes = {name: ir.IntegerAttr.get(integer(64), n) for name, n in sizes.items()}
            attributes[ARENA] = ir.DictAttr.get(sizes)
        attributes[C_INTERFACE] = ir.UnitAttr.get()
        if self.failures:
            attributes[FAILURES] = ir.ArrayAttr.get(self.failures)

    def _branch(self) -> None:
        """Turn each check into a branch to a block that notes its number, frees what was allocated
        and returns.
        """
        here, checks = self.block, 0
        allocated: list[ir.Value] = []
        for op in [o.operation for o in self.block.operations] if self.failures else []:
            if here != self.block:
                here.append(op)
            if op.name == "memref.alloc":
                allocated.append(op.results[0])
            if op.name != "cf.assert":
                continue
            checks += 1
            after = here.create_after()
            wrong = after.create_after()
            with ir.InsertionPoint(wrong), op.location:
                number = build.number(checks, integer(64))
                memref.store(number, self.failed, [build.index(0)])
                for value in allocated:
                    memref.dealloc(value)
                func.ReturnOp([])
            with ir.InsertionPoint(op), op.location:
                cf.CondBranchOp(op.operands[0], [], [], after, wrong)
            op.erase()
            here = after

    # --- where values are -----------------------------------------------------------------------

    def memref(self, value: ir.Value) -> ir.Value:
        """Where a tensor is to be read."""
        if value not in self.memrefs:  # a tensor.empty whose elements nobody may ask for
            self.memrefs[value] = self.place(value)
        return self.memrefs[value]

    def place(self, value: ir.Value) -> ir.Value:
        """Where a tensor is to be written."""
        kind = memref_of(value.type)
        if not is_static(value):
            self.allocated.append(memref.alloc(kind, self._unknown(value), []))
            return self.allocated[-1]
        buffer = self.buffer_of.get(value)
        if buffer in self.external:
            return placed(self.external[buffer], kind)
        offset = buffer.offset if buffer is not None and buffer.size else 0
        if offset < 0:
            message = f"expected a place for the result of '{value.owner.name}' in the memory plan"
            raise failure([(value.owner.location, f"{message}; run gradopt-plan-memory")])
        return memref.view(kind, self.arena, build.index(offset), [])

    def _unknown(self, value: ir.Value) -> list[ir.Value]:
        """The extents of a value that are unknown before the call, by the op that makes it."""
        op = value.owner
        known = list(ir.RankedTensorType(value.type).shape)
        if op.name == "tensor.empty":
            return list(op.operands)
        if op.name in SHAPES:
            return [n for n in SHAPES[op.name](self, op) if not isinstance(n, int)]
        if is_destination_passing(op):
            init = inits(op)[list(op.results).index(value)]
            given = self.shape(init)
            return [build.as_index(n) for n, k in zip(given, known, strict=True) if k == DYNAMIC]
        raise unexpected(op)

    def shape(self, value: ir.Value) -> list[Extent]:
        """The extents of a value, which need not be stored anywhere."""
        if value in self.memrefs:
            return extents(self.memrefs[value])
        if value.owner.name == "tensor.empty":
            rest = iter(value.owner.operands)
            shape = ir.RankedTensorType(value.type).shape
            return [next(rest) if n == DYNAMIC else n for n in shape]
        return extents(self.memref(value))

    def written(self, result: ir.Value, init: ir.Value, is_read: bool) -> ir.Value:
        """The place of a result, with the elements of `init` in it if the op reads them."""
        place = self.place(result)
        is_empty = not isinstance(init.owner, ir.Block) and init.owner.name == "tensor.empty"
        if is_read and not is_empty:
            source = self.memref(init)
            if not is_static(init) or self.buffer_of[init] is not self.buffer_of[result]:
                copy(source, place)
        self.memrefs[result] = place
        return place

    def _spoil(self, step: int) -> None:
        """Fill what no later step may read."""
        for buffer in self.dying.get(step, ()):
            kind = ir.MemRefType.get([buffer.size], integer(8))
            dead = memref.view(kind, self.arena, build.index(buffer.offset), [])
            ones = build.number(-1, integer(8))
            elementwise([], dead, lambda _, ones=ones: [ones])

    def new_name(self, what: str) -> str:
        """A symbol's name that no other function's has."""
        self.names += 1
        return f"{self.function.name.value}_{what}{self.names - 1}"

    # --- ops ------------------------------------------------------------------------------------

    def _write(self, op: ir.Operation) -> None:
        self._write_reads(op)
        if not any(map(is_tensor, [*op.operands, *op.results])) or op.name == "tensor.empty":
            return
        if op.name in WRITERS:
            WRITERS[op.name](self, op)
        elif op.name.startswith("linalg."):
            self._write_linalg(op)
        elif op.name not in READS:
            raise unexpected(op)

    def _write_reads(self, op: ir.Operation) -> None:
        """Have an op, and those inside it, read elements and extents of memrefs."""
        inside: list[ir.Operation] = []

        def find(inner: ir.Operation) -> ir.WalkResult:
            if inner.name in READS:
                inside.append(inner)
            return ir.WalkResult.ADVANCE

        op.walk(find)
        for inner in inside:
            source, *where = inner.operands
            with ir.InsertionPoint(inner), inner.location:
                if inner.name == "tensor.dim" and source not in self.memrefs:
                    axis = ir.IntegerAttr(where[0].owner.attributes["value"]).value
                    new = build.as_index(self.shape(source)[axis])
                elif inner.name == "tensor.dim":
                    new = memref.dim(self.memref(source), where[0])
                else:
                    new = memref.load(self.memref(source), where)
            inner.results[0].replace_all_uses_with(new)
            if inner != op:
                inner.erase()

    def _write_linalg(self, op: ir.Operation) -> None:
        block = op.regions[0].blocks[0]
        outs = inits(op)
        elements = list(block.arguments)[-len(outs) :]
        new_outs = [
            self.written(result, init, any(True for _ in element.uses))
            for result, init, element in zip(op.results, outs, elements, strict=True)
        ]
        ins = list(op.operands)[: len(op.operands) - len(outs)]
        new = ir.Operation.create(
            op.name,
            operands=[*(self.memref(v) if is_tensor(v) else v for v in ins), *new_outs],
            attributes={a: op.attributes[a] for a in op.attributes if a != OFFSETS},
            regions=1,
        )
        block.append_to(new.regions[0])
