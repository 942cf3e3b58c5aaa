# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""convert-memref-form-to-llvm: what gradopt-bufferize{form=memref} gives, in LLVM's dialect, for
the host JIT. The work is done by passes of MLIR; ops that they do not lower well are rewritten
first.
"""

from ..dialect.mlir import arith, ir, math, passmanager
from .linalg import build
from .passes import gradopt_pass

MLIR_PASSES = (
    "convert-linalg-to-loops",
    "expand-strided-metadata",
    "lower-affine",
    "convert-scf-to-cf",
    "canonicalize",
    "cse",
    "math-expand-ops{ops=rsqrt}",
    "convert-math-to-libm",  # exact; convert-math-to-llvm makes log1p(x) into log(1 + x)
    "convert-math-to-llvm",
    "arith-expand{include-bf16=true}",
    "convert-arith-to-llvm",
    "finalize-memref-to-llvm",
    "convert-func-to-llvm",
    "convert-cf-to-llvm",
    "reconcile-unrealized-casts",
)

OWN = ("math.copysign", "math.ctlz", "math.ctpop")
"""What convert-math-to-libm takes for its own and has no function for."""


@gradopt_pass("convert-memref-form-to-llvm")
def to_llvm(module: ir.Module) -> None:
    """Lower functions in memref form to LLVM's dialect."""
    found: list[ir.Operation] = []

    def find(op: ir.Operation) -> ir.WalkResult:
        if op.name in OWN or _halves_double(op):
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(find)
    module.context.get_dialect_descriptor("llvm")  # loads it: else its ops would be unknown ones
    for op in found:
        with ir.InsertionPoint(op), op.location:
            if op.name not in OWN:
                op.operands[0] = rounded_to_odd(op.operands[0])
                continue
            make = with_sign if op.name == "math.copysign" else counted
            op.results[0].replace_all_uses_with(make(op.name, *op.operands))
            op.erase()
    passes = passmanager.PassManager.parse(f"builtin.module({','.join(MLIR_PASSES)})")
    passes.run(module.operation)


def counted(name: str, x: ir.Value) -> ir.Value:
    """Bits that are set, or zeros in front of the first that is."""
    is_zero_poison = {"is_zero_poison": ir.BoolAttr.get(False)} if name == "math.ctlz" else {}
    intrinsic = name.replace("math.", "llvm.intr.")
    return ir.Operation.create(intrinsic, [x.type], [x], is_zero_poison).results[0]


def with_sign(_: str, x: ir.Value, sign: ir.Value) -> ir.Value:
    """`x` with the sign of another number, by their bits: LLVM makes its own copysign one of f64
    and f16 where it can, and then has to narrow the former.
    """
    kind = ir.IntegerType.get_signless(x.type.width)
    top = 1 << (kind.width - 1)
    bits = [
        arith.andi(arith.bitcast(kind, v), build.number(mask, kind))
        for v, mask in ((x, top - 1), (sign, top))
    ]
    return arith.bitcast(x.type, arith.ori(*bits))


def _halves_double(op: ir.Operation) -> bool:
    """True for a conversion from f64 to f16, for which LLVM calls a function that not every system
    has.
    """
    return (
        op.name == "arith.truncf"
        and isinstance(op.operands[0].type, ir.F64Type)
        and isinstance(op.results[0].type, ir.F16Type)
    )


def rounded_to_odd(x: ir.Value) -> ir.Value:
    """An f64 as the f32 that rounds to the f16 that it does itself: where it lies between two f32s,
    the one whose last bit is 1 (S. Boldo, G. Melquiond, "Emulation of FMA and correctly rounded
    sums", IEEE Trans. Computers 57, 2008).
    """
    f32, f64, i32 = ir.F32Type.get(), ir.F64Type.get(), ir.IntegerType.get_signless(32)
    near = arith.truncf(f32, x)
    back = arith.extf(f64, near)
    is_larger = arith.cmpf(arith.CmpFPredicate.OGT, math.absf(back), math.absf(x))
    below = arith.subi(arith.bitcast(i32, near), arith.extui(i32, is_larger))  # towards zero
    odd = arith.bitcast(f32, arith.ori(below, build.number(1, i32)))
    return arith.select(arith.cmpf(arith.CmpFPredicate.ONE, back, x), odd, near)
