# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""convert-gradopt-to-linalg: every op of the dialect as linalg on tensors, in the forms that IREE
compiles well.

Elementwise bodies read constants as numbers, index ramps as loop indices and broadcasts through
indexing maps, so these are lowered only where something else uses them. The lowerings stand in
`linalg/`, one file an op family.
"""

from collections.abc import Callable
from typing import Any

from ..dialect.base import Op
from ..dialect.contraction import DotGeneralOp
from ..dialect.control import DerivativeOp, symbols
from ..dialect.convolution import ConvOp
from ..dialect.creation import ConstantOp, IotaOp
from ..dialect.loops import loop_of, loop_operands
from ..dialect.mlir import func, ir, op_of, passmanager
from ..dialect.shape import BroadcastOp
from ..dialect.types import TensorSpec, bool_
from .decompose import decompose
from .fusion import Fusion, Tree, as_bytes
from .inline import callees_first
from .linalg import LOWERINGS, build, pairs
from .linalg.direct import keep_loops
from .linalg.registry import BODIES
from .linalg.shape import extent_of_like
from .passes import failure, gradopt_pass, single_block
from .product_forms import round_operands
from .unroll_scans import loop_bodies

ON_DEMAND = (ConstantOp, BroadcastOp, IotaOp)
PRODUCTS = (DotGeneralOp, ConvOp)


@gradopt_pass("convert-gradopt-to-linalg")
def to_linalg(module: ir.Module, *, float64: bool = True) -> None:
    """Lower every gradopt op to linalg, arith, math and tensor ops; unsigned types become
    signless.

    `float64=false` is for targets that do not compute in it: functions of float32 that take
    float64 elsewhere to be accurate then take other forms.
    """
    module.operation.context.allow_unregistered_dialects = True  # for IREE's own ops
    _check_places(module)
    bodies = {name for f in symbols(module).values() for name in loop_bodies(f)}
    decompose(module, keep_lowered=True)
    round_operands(module)
    with pairs.computing(has_double=float64):
        functions = symbols(module)
        for name in callees_first(functions, loop_bodies):  # loops take lowered bodies in
            if not functions[name].is_external:
                FunctionLowering(functions[name]).run()
    for name in bodies:
        functions.pop(name).operation.erase()
    clean = passmanager.PassManager.parse(
        "builtin.module(resolve-shaped-type-result-dims,canonicalize,cse)"
    )
    clean.run(module.operation)
    for function in functions.values():
        if not function.is_external:
            keep_loops(function)
    for _ in range(2):  # extents of results become extents of inputs, through IREE's ops too
        module.operation.walk(_look_through_barriers)
        clean.run(module.operation)


def _check_places(module: ir.Module) -> None:
    """Raise for ops of the dialect in regions and nested modules, which are not lowered."""
    inside: list[tuple[ir.Location, str]] = []

    def look(op: ir.Operation) -> ir.WalkResult:
        if isinstance(op.opview, Op):
            outer = op.parent.operation
            if outer.name != "func.func" or outer.parent != module.operation:
                expected = "expected to stand in a function of the outermost module"
                inside.append((op.location, f"'{op.name}' op {expected}, got it in '{outer.name}'"))
        return ir.WalkResult.ADVANCE

    module.operation.walk(look)
    if inside:
        raise failure(inside)


def _look_through_barriers(op: ir.Operation) -> ir.WalkResult:
    if op.name == "tensor.dim":
        op.operands[0] = build.of_same_shape(op.operands[0])
    return ir.WalkResult.ADVANCE


def _is_known(op: Any) -> bool:
    values = [*loop_operands(op), *op.operation.results]
    return all(TensorSpec.from_mlir(v.type).is_static for v in values)


def _is_tensor(value: ir.Value) -> bool:
    return isinstance(value.type, ir.RankedTensorType)


class FunctionLowering:
    """Lowers one function in place: linalg is built in front of each op, then the gradopt ops are
    erased.
    """

    def __init__(self, function: func.FuncOp) -> None:
        self.function = function
        self.block = single_block(function)
        ops = list(self.block.operations)
        self.ops = [op for op in ops if isinstance(op, Op) or loop_of(op) is not None]
        lowered = set(self.ops)
        self.others = [op for op in ops if op not in lowered]
        self.values: dict[ir.Value, ir.Value] = {a: a for a in self.block.arguments}
        self.casts: list[ir.Operation] = []  # of unsigned arguments, which stay so to the end

    def run(self) -> None:
        self._check()
        self._cast_arguments()
        self.fusion = Fusion(self.ops)
        self.positions = {r: i for i, op in enumerate(self.ops) for r in op.operation.results}
        for op in self.ops:
            if isinstance(op, ON_DEMAND):
                continue
            if not any(map(self.fusion.is_inside, op.operation.results)):
                self._lower(op)
        for op in self.others:
            op.operation.walk(self._rewire)
        for op in reversed(self.ops):
            op.operation.erase()
        self._retype([o.type for o in self.others[-1].operation.operands])

    def _rewire(self, op: ir.Operation) -> ir.WalkResult:
        """Give an op of another dialect the lowered forms of what it reads."""
        for i, operand in enumerate(list(op.operands)):
            if operand in self.values or isinstance(op_of(operand), Op):
                op.operands[i] = self.value(operand)
        return ir.WalkResult.ADVANCE

    def _cast_arguments(self) -> None:
        """Unsigned arguments as signless values; the ops still see the type they were built on."""
        with ir.InsertionPoint.at_block_begin(self.block), self.function.location:
            for argument in filter(_is_tensor, self.block.arguments):
                kind = build.lowered_type(TensorSpec.from_mlir(argument.type))
                if kind != argument.type:
                    cast = "builtin.unrealized_conversion_cast"
                    self.casts.append(ir.Operation.create(cast, [kind], [argument]))
                    self.values[argument] = self.casts[-1].result

    def _check(self) -> None:
        faults = []
        for op in self.ops:
            name = op.operation.name
            if isinstance(op, DerivativeOp):
                text = f"'{name}' op has to be expanded first; run gradopt-differentiate"
                faults.append((op.location, text))
            elif type(op) not in LOWERINGS and type(op) not in BODIES:
                faults.append((op.location, f"'{name}' op expected a lowering to linalg, got none"))
            elif loop_of(op) is not None and not _is_known(op):
                text = (
                    "'gradopt.scan' op expected operands and results of known extents, got unknown "
                    "ones; run gradopt-unroll-scans"
                )
                faults.append((op.location, text))
        if faults:
            raise failure(faults)

    def _retype(self, results: list[ir.Type]) -> None:
        for cast in self.casts:
            cast.operands[0].set_type(cast.result.type)
            cast.result.replace_all_uses_with(cast.operands[0])
            cast.erase()
        inputs = [a.type for a in self.block.arguments]
        with self.function.location:
            kind = ir.FunctionType.get(inputs, results)
            self.function.attributes["function_type"] = ir.TypeAttr.get(kind)

    def value(self, old: ir.Value) -> ir.Value:
        """The lowered form of a value; what is lowered on demand is lowered where its op stands."""
        if old not in self.values:
            if not isinstance(owner := op_of(old), Op):
                return old
            self._lower(owner)
        return self.values[old]

    def _lower(self, op: Any) -> None:
        with ir.InsertionPoint(op), op.location:
            if type(op) in BODIES:
                new = self._elementwise(op)
            else:
                new = LOWERINGS[type(op)](op, *(self.value(o) for o in op.operation.operands))
        new = new if isinstance(new, list) else [new]
        self.values.update(zip(op.operation.results, new, strict=True))

    # --- elementwise ops -----------------------------------------------------------------------

    def _elementwise(self, op: Any) -> ir.Value:
        """One generic over the result's shape, with the ops that are computed inside it."""
        (result,) = op.result_specs()
        is_epilogue = any(map(self._is_product, self.fusion.reads[op.operation.results[0]]))
        tree = Tree(op, self.fusion, self._set_apart() if is_epilogue else self.value)
        loops = list(range(result.rank))
        extents = self._extents(tree, result)
        for like, axis in tree.likes:
            build.agree(extents[axis], build.extent(like, axis))
        out = build.empty(extents, build.element_type(result.dtype))
        kinds = [build.PARALLEL] * result.rank
        value = build.generic(tree.inputs, [(out, loops)], kinds, tree.body)[0]
        apart = op.operation.results[0] in self.fusion.cut or self._would_escape_twice(op)
        return build.fusion_barrier(value) if apart else value

    def _would_escape_twice(self, op: Any) -> bool:
        """True for an epilogue of a product that is used both by what IREE would fuse behind it and
        by others.

        With data tiling, IREE 3.13 cannot compile a product of which two such results are kept
        ("large vector sizes").
        """
        result = op.operation.results[0]
        if len(list(result.uses)) < 2 or not any(map(self._is_product, self.fusion.reads[result])):
            return False
        here = self.positions[result]
        return any(
            all(self._is_ready(value, here) for value in self.fusion.reads[root])
            for root in self.fusion.readers(result)
        )

    def _set_apart(self) -> Callable[[ir.Value], ir.Value]:
        """`value` for what the epilogue of a product reads: results that others read too are not
        fused into it, nor are truth values, which become bytes.

        With data tiling, IREE 3.13 packs what an epilogue reads like the product. It does so in the
        dispatch that makes it, also where that has other results and fewer loops (axes collapsed),
        and then packs wrong numbers. It cannot pack truth values ("padding_value").
        """
        apart: dict[ir.Value, ir.Value] = {}

        def value(old: ir.Value) -> ir.Value:
            new = self.value(old)
            is_result = old in self.positions and not self._is_product(old)
            is_truth = TensorSpec.from_mlir(old.type).dtype == bool_
            if not is_truth and not (is_result and len(list(old.uses)) > 1):
                return new
            if old not in apart:
                apart[old] = build.fusion_barrier(as_bytes(new) if is_truth else new)
            return apart[old]

        return value

    def _is_ready(self, value: ir.Value, position: int) -> bool:
        """True if `value` is there when the op at `position` has run."""
        if self.positions.get(value, -1) <= position:
            return True
        owner = value.owner.opview
        return isinstance(owner, ON_DEMAND) and all(
            self._is_ready(o, position) for o in owner.operation.operands
        )

    def _is_product(self, value: ir.Value) -> bool:
        return isinstance(op_of(value), PRODUCTS)

    def _extents(self, tree: Tree, result: TensorSpec) -> list[build.Extent]:
        return [
            n if n is not None else self._unknown(tree, axis) for axis, n in enumerate(result.shape)
        ]

    def _unknown(self, tree: Tree, axis: int) -> build.Extent:
        """An extent from an input that has it, else from what a broadcast in the tree is like."""
        for value, loops in tree.inputs:
            if axis in loops:
                return build.extent(value, loops.index(axis))
        operands = [o for node in tree.nodes.values() for o in node.op.operation.operands]
        broadcasts = [b for b in map(op_of, operands) if isinstance(b, BroadcastOp)]
        likes = [self.value(l) for b in broadcasts for l in list(b.operation.operands)[1:]]
        return extent_of_like(likes, axis)
