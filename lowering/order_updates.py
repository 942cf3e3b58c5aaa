# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Updates in place made safe: everything that reads a donated input runs before its update writes.

IREE takes the input and the storage of the result for two things. It may write the new value while
other dispatches still have to read the old one, and data flow alone orders them. So all that may
read the old value is found, through what IREE may compute again inside a later dispatch; and every
reader that the update does not wait for already gives it a token: a number that is always 0, which
nothing before code generation can know, made in a dispatch of its own from an element that the
reader computes. The update mixes it into the bits of its result. That costs a small dispatch an
update; a barrier would cost a wait and a pass over the gradients, other storage a second copy of
the parameters.

Runs on linalg, before IREE's own passes.
"""

import dataclasses
import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from ..dialect.mlir import DYNAMIC, arith, func, ir, linalg
from .linalg import build

SAME_ELEMENTS = {"tensor.cast", "tensor.collapse_shape", "tensor.expand_shape", "tensor.reshape"}
"""Ops whose result is another view of their first operand."""

BARRIERS = {"util.optimization_barrier", "iree_tensor_ext.compute_barrier.start"}
"""Ops whose operand, where it is computed, is stored before anything behind them runs."""

RECOMPUTED = {
    "linalg.broadcast",
    "linalg.transpose",
    "tensor.concat",
    "tensor.extract",
    "tensor.extract_slice",
    "tensor.insert_slice",
    "tensor.pad",
}
"""Ops that IREE may compute anew inside the dispatch of a later op, if they read nothing else; it
may elementwise ones, too.
"""

MADE_ON_THE_SPOT = {"arith.constant", "linalg.fill", "tensor.empty"}
PRODUCTS = ("linalg.matmul", "linalg.batch_matmul", "linalg.conv_", "linalg.depthwise_")
SCATTER = "iree_linalg_ext.scatter"


@dataclasses.dataclass(eq=False)
class Node:
    """An op, what it reads, and its place among the others. (MLIR's hash of an op changes with the
    op, so that ops cannot be keys.)
    """

    op: ir.Operation
    place: float
    reads: list[ir.Value] = dataclasses.field(default_factory=list)

    @property
    def name(self) -> str:
        return self.op.name


def order_updates(function: func.FuncOp, pairs: Iterable[tuple[int, int]]) -> dict[int, str]:
    """Have results wait for the readers of the inputs whose storage they take over, given (input,
    result) pairs. Returns the inputs for which that cannot be, each with the reason.
    """
    pairs = list(pairs)
    if not pairs:
        return {}
    order = UpdateOrder(function)
    arguments = function.entry_block.arguments
    refused = {}
    for position, result in pairs:
        if reason := order.write_over(arguments[position], result):
            refused[position] = reason
    order.finish()
    return refused


class UpdateOrder:
    """Puts updates of one function behind the readers of what they overwrite."""

    def __init__(self, function: func.FuncOp) -> None:
        self.nodes: list[Node] = []
        self.makers: dict[ir.Value, Node] = {}
        self.users: dict[ir.Value, list[Node]] = {}
        for i, op in enumerate(function.entry_block.operations):
            self._enter(op.operation, float(i))
        self.terminator = self.nodes[-1]

    def _enter(self, op: ir.Operation, place: float) -> Node:
        node = Node(op, place)
        self.nodes.append(node)
        for result in op.results:
            self.makers[result] = node
        self._connect(node)
        return node

    def _connect(self, node: Node) -> None:
        for value in node.reads:
            self.users[value].remove(node)
        node.reads = list(dict.fromkeys(_read(node.op)))
        for value in node.reads:
            self.users.setdefault(value, []).append(node)

    def _users(self, node: Node) -> list[Node]:
        return [u for r in node.op.results for u in self.users.get(r, ())]

    def write_over(self, argument: ir.Value, result: int) -> str:
        """Have the op that makes a result wait for all that reads `argument`, so that it may write
        over it. Returns "", or why that cannot be.
        """
        stored = self.terminator.op.operands[result]
        update = self.makers.get(_behind(stored, SAME_ELEMENTS | BARRIERS))
        if update is None:
            return "it is an input itself"
        if reason := _misfit(update.op, argument, update.reads):
            return reason
        readers, again = self._readers(argument, update)
        if again:
            return "its op reads what is computed from the old value, in the same dispatch"
        after = self._after(update) | {update}
        if any(node in after for node in readers):
            return "an op reads the old value that depends on the new one"
        before = self._before_a_product(update)
        waiting = [self._fused_end(node, after) for node in readers if node not in before]
        if any(DYNAMIC in build.static_shape(v) for v in waiting):
            return "an op with unknown extents reads the old value"
        self._keep_from_recomputing(update, argument)
        if waiting:
            self._add_token(update, list(dict.fromkeys(waiting)))
        return ""

    def finish(self) -> None:
        """Put the ops in an order in which each stands behind what it reads, and else as before."""
        number = {node: i for i, node in enumerate(self.nodes)}
        count = {n: len({m for v in n.reads if (m := self.makers.get(v))}) for n in self.nodes}
        ready = [(node.place, i) for i, node in enumerate(self.nodes) if not count[node]]
        heapq.heapify(ready)
        while ready:
            node = self.nodes[heapq.heappop(ready)[1]]
            if node is not self.terminator:
                node.op.move_before(self.terminator.op)
            for user in dict.fromkeys(self._users(node)):
                count[user] -= 1
                if not count[user]:
                    heapq.heappush(ready, (user.place, number[user]))

    # --- who reads ------------------------------------------------------------------------------

    def _readers(self, argument: ir.Value, update: Node) -> tuple[list[Node], bool]:
        """The ops in whose dispatch the input's memory may be read, without the update; and whether
        the update's dispatch may read it by something that it computes anew.
        """
        found: dict[Node, None] = {}
        again = False
        todo, seen = [(argument, True)], {argument}
        while todo:
            value, is_memory = todo.pop()
            for node in self.users.get(value, ()):
                passes = node.name in SAME_ELEMENTS or node.name in BARRIERS
                if node is self.terminator or node.name == "tensor.dim":
                    continue
                if node is update:
                    again |= not is_memory
                    continue
                if not passes:
                    found[node] = None
                if not (passes and (is_memory or node.name not in BARRIERS)):
                    others = [v for v in node.reads if v not in seen and self._is_stored(v)]
                    if node.name in BARRIERS or others or not _is_cheap(node.op):
                        continue
                fresh = [r for r in node.op.results if r not in seen]
                seen.update(fresh)
                todo += [(r, is_memory and passes) for r in fresh]
        return [node for node in found if any(map(_has_elements, node.op.results))], again

    def _is_stored(self, value: ir.Value) -> bool:
        """False for what is made in the dispatch that reads it: constants, and tensors to fill."""
        maker = self.makers.get(value)
        return maker is None or maker.name not in MADE_ON_THE_SPOT

    def _after(self, start: Node) -> set[Node]:
        """All ops that depend on an op."""
        found: set[Node] = set()
        todo = [start]
        while todo:
            for user in self._users(todo.pop()):
                if user not in found:
                    found.add(user)
                    todo.append(user)
        return found

    def _before_a_product(self, update: Node) -> set[Node]:
        """The ops that the update depends on by a product, which is in another dispatch than they
        are.
        """
        found: set[Node] = set()
        seen = {update}
        todo = [(update, False)]
        while todo:
            node, is_apart = todo.pop()
            apart = is_apart or (node is not update and node.name.startswith(PRODUCTS))
            for maker in {m for v in node.reads if (m := self.makers.get(v))}:
                if maker not in seen or (apart and maker not in found):
                    seen.add(maker)
                    if apart:
                        found.add(maker)
                    todo.append((maker, apart))
        return found

    def _fused_end(self, node: Node, after: set[Node]) -> ir.Value:
        """A result that is there when an op has run: its own, or that of the elementwise op which
        alone reads it, so that it need not be stored for the token.
        """
        while len(node.op.results) == 1 and len(users := self._users(node)) == 1:
            (user,) = users
            is_fused = user.name in SAME_ELEMENTS or _is_elementwise(user.op)
            is_result = self.terminator in self._users(user)
            if user in after or is_result or not is_fused or not _has_elements(user.op.results[0]):
                break
            node = user
        return next(filter(_has_elements, node.op.results))

    # --- what is put in -------------------------------------------------------------------------

    def _keep_from_recomputing(self, update: Node, argument: ir.Value) -> None:
        """Others that use the new value read it where it is stored: computed anew, it would be made
        from what was overwritten.
        """
        if not any(_behind_views(v) == argument for v in update.reads):
            return
        for result in update.op.results:
            apart = (*BARRIERS, self.terminator.name)
            others = [u for u in self.users.get(result, ()) if u.name not in apart]
            if others:
                with ir.InsertionPoint(self.terminator.op), update.op.location:
                    stored = build.fusion_barrier(result)
                self._enter(stored.owner, update.place)
                for user in others:
                    self._replace(user, result, stored)

    def _add_token(self, update: Node, values: Sequence[ir.Value]) -> None:
        place = max([m.place for v in values if (m := self.makers.get(v))])
        with ir.InsertionPoint(self.terminator.op), update.op.location:
            stored = [build.fusion_barrier(v) for v in values]
            zero = _zero(stored)
            token = build.fusion_barrier(zero)
        made = [*stored, zero.owner.operands[len(stored)], zero, token]
        for value in made:
            self._enter(value.owner, place)
        if update.name == SCATTER:
            self._mix_into_operand(update, 0, token, build.fusion_barrier)
        elif (product := self._product_of(update)) is not None:
            sizes = [math.prod(build.static_shape(v)) for v in list(product.op.operands)[:2]]
            self._mix_into_operand(product, sizes.index(min(sizes)), token)
        else:
            self._mix_into_results(update, token)

    def _product_of(self, update: Node) -> Node | None:
        """The product that the update is fused behind. With data tiling, IREE 3.13 does not fuse it
        if it reads a single number besides.
        """
        todo = [update]
        while todo:
            for value in todo.pop().reads:
                maker = self.makers.get(value)
                if maker is None or len(self._users(maker)) > 1:
                    continue
                if maker.name.startswith(PRODUCTS):
                    return maker
                if maker.name in SAME_ELEMENTS or _is_elementwise(maker.op):
                    todo.append(maker)
        return None

    def _replace(self, user: Node, old: ir.Value, new: ir.Value) -> None:
        def look(op: ir.Operation) -> ir.WalkResult:
            for i, operand in enumerate(list(op.operands)):
                if operand == old:
                    op.operands[i] = new
            return ir.WalkResult.ADVANCE

        user.op.walk(look)
        self._connect(user)

    def _mix_into_results(self, update: Node, token: ir.Value) -> None:
        """The generic once more, with the token as a further input."""
        old = update.op
        with ir.InsertionPoint(old), old.location:
            update.op = _with_token(old, token)
        for before, result in zip(old.results, update.op.results, strict=True):
            del self.makers[before]
            self.makers[result] = update
            users = self.users.pop(before, [])
            before.replace_all_uses_with(result)
            for user in users:
                user.reads = [result if v == before else v for v in user.reads]
            self.users[result] = users
        old.erase()
        self._connect(update)

    def _mix_into_operand(
        self,
        node: Node,
        position: int,
        token: ir.Value,
        store: Callable[[ir.Value], ir.Value] | None = None,
    ) -> None:
        """Have an op wait for the token by one of its operands."""
        given = node.op.operands[position]
        axes = list(range(build.rank_of(given)))
        with ir.InsertionPoint(node.op), node.op.location:
            out = build.empty(build.static_shape(given), build.element_of(given))
            mixed = build.generic(
                [(given, axes), (token, [])],
                [(out, axes)],
                [build.PARALLEL] * len(axes),
                lambda x, zero, _: [_mixed(x, zero)],
            )[0]
            made = [out, mixed] + ([store(mixed)] if store else [])
        for value in made:
            self._enter(value.owner, node.place)
        node.op.operands[position] = made[-1]
        self._connect(node)


def _misfit(update: ir.Operation, argument: ir.Value, reads: Sequence[ir.Value]) -> str:
    """Why an op cannot write its result over the input, whatever the order; "" if it can: an
    elementwise one that reads it, if at all, at the place that it writes, or a scatter into it.
    """
    inside = [v for v in reads if v not in list(update.operands)]
    if any(_behind_views(v) == argument for v in inside):
        return "its op reads the old value at places that it computes"
    if update.name == SCATTER:
        if _behind_views(update.operands[2]) == argument:
            return ""
        return "its op scatters into something else"
    if not _is_elementwise(update):
        return f"'{update.name}' makes it, which is not elementwise"
    maps = _maps(update)
    if len(set(maps[-len(update.results) :])) > 1:
        return "its op writes several results in different orders"
    for operand, read in zip(update.operands, maps, strict=True):
        if _behind_views(operand) == argument and read != maps[-1]:
            return "its op reads the old value at other places than it writes"
    return ""


def _zero(values: Sequence[ir.Value]) -> ir.Value:
    """A number that is 0, made of the first element of each value: whether one is less than all
    numbers. (IREE's analysis of integer ranges would see through shifts and masks.)
    """
    i32 = ir.IntegerType.get_signless(32)
    first = ir.AffineExpr.get_constant(0)
    inputs = [(v, [first] * build.rank_of(v)) for v in values]

    def body(*elements: ir.Value) -> list[ir.Value]:
        total = None
        for x in elements[:-1]:
            x = _as_float(x)
            least = build.number(-math.inf, x.type)
            is_less = arith.cmpf(arith.CmpFPredicate.OLT, x, least)
            total = is_less if total is None else arith.ori(total, is_less)
        return [arith.extui(i32, total)]

    return build.generic(inputs, [(build.empty([], i32), [])], [], body)[0]


def _as_float(x: ir.Value) -> ir.Value:
    """The number, or the bits of an integer taken for those of one."""
    if not isinstance(x.type, ir.IntegerType):
        return x
    return arith.bitcast(ir.F32Type.get(), _resized(x, 32))


def _mixed(x: ir.Value, zero: ir.Value) -> ir.Value:
    """x, its bits changed by those of a 32-bit number."""
    bits = _bits(x)
    found = arith.xori(bits, _resized(zero, bits.type.width))
    return found if isinstance(x.type, ir.IntegerType) else arith.bitcast(x.type, found)


def _bits(x: ir.Value) -> ir.Value:
    """The bits of a number, as an integer."""
    if isinstance(x.type, ir.IntegerType):
        return x
    return arith.bitcast(ir.IntegerType.get_signless(x.type.width), x)


def _resized(x: ir.Value, width: int) -> ir.Value:
    kind = ir.IntegerType.get_signless(width)
    if x.type.width == width:
        return x
    return arith.extui(kind, x) if x.type.width < width else arith.trunci(kind, x)


def _with_token(update: ir.Operation, token: ir.Value) -> ir.Operation:
    """A copy of an elementwise generic that mixes the token into its results."""
    count = len(update.results)
    operands = list(update.operands)
    inputs, outs = [*operands[:-count], token], operands[-count:]
    maps = _maps(update)
    loops = maps[-1].n_dims
    maps.insert(len(inputs) - 1, ir.AffineMap.get(loops, 0, []))
    new = linalg.GenericOp(
        [r.type for r in update.results],
        inputs,
        outs,
        ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps]),
        update.attributes["iterator_types"],
    ).operation
    block = update.regions[0].blocks[0]
    block.append_to(new.regions[0])
    old = list(block.arguments)[-count:]
    zero = block.add_argument(token.type.element_type, update.location)
    for argument in old:
        argument.replace_all_uses_with(block.add_argument(argument.type, update.location))
    for argument in reversed(old):
        block.erase_argument(argument.arg_number)
    last = list(block.operations)[-1].operation
    with ir.InsertionPoint(last), update.location:
        for i, value in enumerate(list(last.operands)):
            last.operands[i] = _mixed(value, zero)
    return new


def _behind_views(value: ir.Value) -> ir.Value:
    return _behind(value, SAME_ELEMENTS)


def _behind(value: ir.Value, names: set[str]) -> ir.Value:
    """What ops of these names make a value of."""
    while not isinstance(value.owner, ir.Block) and value.owner.name in names:
        value = value.owner.operands[0]
    return value


def _is_elementwise(op: ir.Operation) -> bool:
    """A generic without reductions, whose result's elements are in the order of its loops."""
    if op.name != "linalg.generic":
        return False
    kinds = ir.ArrayAttr(op.attributes["iterator_types"])
    return all("parallel" in str(k) for k in kinds) and all(
        m.is_permutation for m in _maps(op)[-len(op.results) :]
    )


def _is_cheap(op: ir.Operation) -> bool:
    return op.name in RECOMPUTED or (
        op.name == "linalg.generic"
        and all("parallel" in str(k) for k in ir.ArrayAttr(op.attributes["iterator_types"]))
    )


def _has_elements(value: ir.Value) -> bool:
    return isinstance(value.type, ir.RankedTensorType) and 0 not in build.static_shape(value)


def _maps(op: ir.Operation) -> list[ir.AffineMap]:
    return [ir.AffineMapAttr(m).value for m in ir.ArrayAttr(op.attributes["indexing_maps"])]


def _read(op: ir.Operation) -> Iterator[ir.Value]:
    """What an op reads: its operands, and what its regions take from around it."""
    yield from op.operands
    inside: set[ir.Value] = set()
    found: list[ir.Value] = []

    def look(inner: ir.Operation) -> ir.WalkResult:
        inside.update(inner.results)
        for region in inner.regions:
            for block in region:
                inside.update(block.arguments)
        if inner != op:
            found.extend(inner.operands)
        return ir.WalkResult.ADVANCE

    if len(op.regions):
        op.walk(look)
        yield from (v for v in found if v not in inside)
