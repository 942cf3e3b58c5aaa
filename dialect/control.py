# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Ops about programs rather than numbers: derivatives of functions, barriers.

Functions of a module call each other with `func.call`. A derivative is a function too:
`gradopt.vjp` and `gradopt.jvp` name a function by its symbol and give its derivative as a function
value, called with `func.call_indirect`. The pass gradopt-differentiate writes the derived functions
out, gradopt-inline removes the calls.
"""

from typing import Any

import numpy as np

from ..errors import OpError
from . import builder as builders
from . import trees
from .base import NO_GRADIENT, FunctionValue, Ints, Op, Str, Strs, Symbol, function, wrap
from .elementwise import ANY, Unary
from .mlir import func, ir
from .types import TensorSpec, is_float

CUSTOM_VJP, CHECKPOINT, COMPILED = "gradopt.custom_vjp", "gradopt.checkpoint", "gradopt.compiled"
"""Attributes of functions that say how calls of them are differentiated; see
lowering/call_rules.py.
"""


COTANGENT, PRIMALS = "gradopt.cotangent", "gradopt.primals"
"""Attributes of derived functions: of an argument that is a cotangent, of the function how many
results stand before the gradients.
"""


class StopGradientOp(Unary, name="stop_gradient"):
    """x itself, with a gradient of 0.

    Example: `%y = "gradopt.stop_gradient"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    KIND = ANY

    @staticmethod
    def reference(x: np.ndarray) -> np.ndarray:
        return x

    vjp = NO_GRADIENT


class OptimizationBarrierOp(Unary, name="optimization_barrier", pure=False):
    """x itself, as a value that no later pass or compiler stage merges, moves or recomputes.

    Example: `%y = "gradopt.optimization_barrier"(%x) : (tensor<4xf32>) -> tensor<4xf32>`
    """

    KIND = ANY

    @staticmethod
    def reference(x: np.ndarray) -> np.ndarray:
        return x

    def vjp(self, ct: Any) -> list[Any]:
        """dx = ct"""
        return [ct]


class TagOp(Unary, name="tag"):
    """x itself, under a name by which derivatives find it (`intermediates` of `vjp`).

    Example: `%y = "gradopt.tag"(%x) {label = "hidden"} : (tensor<4xf32>) -> tensor<4xf32>`
    """

    KIND = ANY
    label: Str

    @staticmethod
    def reference(x: np.ndarray, label: str) -> np.ndarray:
        return x

    def vjp(self, ct: Any) -> list[Any]:
        """dx = ct"""
        return [ct]


class FunctionOp(Op):
    """A function of the module made into another one, as a function value for `func.call_indirect`.

    `callee` is the function's symbol. An op of the dialect cannot take tensors of several types in
    one list of operands; a call can.
    """

    OF_FUNCTION = True

    callee: Symbol
    f: FunctionValue

    @classmethod
    def infer(  # type: ignore[override]  # from a function, not from tensors
        cls, callee: func.FuncOp, **attributes: Any
    ) -> tuple[list[TensorSpec], list[TensorSpec]]:
        """Input and result types of the new function; raises where it cannot be made."""
        raise NotImplementedError(cls)

    @classmethod
    def emit_call(cls, callee: func.FuncOp, *operands: Any, **attributes: Any) -> tuple[Any, ...]:
        """Append the op and a call of what it gives; return the call's results."""
        builder = builders.owner(cls.MNEMONIC, operands)
        with builder.context:
            values = [builder.adopt(o) for o in operands]
            inputs, results = cls.infer(callee, **attributes)
            kind = ir.FunctionType.get(
                [s.to_mlir() for s in inputs], [s.to_mlir() for s in results]
            )
            given = cls.with_defaults(attributes | {"callee": callee.name.value})
            made = cls.create([], [kind], given, builder, None)
            where = {"loc": made.location, "ip": builder.insertion_point}
            call = func.CallIndirectOp(kind.results, made.results[0], values, **where)
            return tuple(wrap(r, builder) for r in call.operation.results)

    def target(self) -> func.FuncOp:
        """The function named by `callee`; OpError if the module has none of that name."""
        module = self.operation.parent
        while module.name != "builtin.module":
            module = module.parent.operation
        table = ir.SymbolTable(module)
        if self.callee in table and isinstance(table[self.callee], func.FuncOp):
            return table[self.callee]
        names = ", ".join(f"@{name}" for name in symbols(module))
        raise self.error(f"a function out of {names}", f"@{self.callee}")

    def verify_invariants(self) -> bool:
        """Called by MLIR's verifier: the result must be the function type that `infer` says."""
        try:
            self.check_fields()
            attributes = self.read_attributes()
            del attributes["callee"]
            inputs, results = self.infer(self.target(), **attributes)
            with self.operation.context:
                kind = ir.FunctionType.get(
                    [s.to_mlir() for s in inputs], [s.to_mlir() for s in results]
                )
            if kind != (found := self.operation.results[0].type):
                raise self.error(f"result type {kind}", found)
        except OpError as error:
            self.location.emit_error(self.named(error))
            return False
        return True


class DerivativeOp(FunctionOp):
    """A derivative of a function of the module, as a function value for `func.call_indirect`.

    `callee` is the function's symbol, `wrt` are the positions of the inputs to differentiate by,
    `heads` those of the results that are differentiated (by default all floating-point ones). An
    input that no head depends on is an error, or has a derivative of 0 where `unreachable` is
    "zeros".
    """

    wrt: Ints
    heads: Ints = ()
    unreachable: Str = "error"

    @classmethod
    def types(
        cls, inputs: list[Any], results: list[Any], by: list[Any], of: list[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Input and result types of the derivative, from those of the function, of what it is
        differentiated by and of its heads.
        """
        raise NotImplementedError(cls)

    @classmethod
    def infer(  # type: ignore[override]  # from a function, not from tensors
        cls,
        callee: func.FuncOp,
        wrt: tuple[int, ...],
        heads: tuple[int, ...] = (),
        unreachable: str = "error",
        intermediates: tuple[str, ...] = (),
    ) -> tuple[list[TensorSpec], list[TensorSpec]]:
        """Input and result types of the derivative; raises where the function cannot be
        differentiated so.
        """
        inputs, results = signature(callee)
        if unreachable not in ("error", "zeros"):
            raise cls.error("unreachable to be 'error' or 'zeros'", f"'{unreachable}'")
        chosen = head_positions(callee, heads)
        for what, positions, specs in (("inputs", wrt, inputs), ("results", chosen, results)):
            if len(set(positions)) != len(positions) or not set(positions) <= set(
                range(len(specs))
            ):
                raise cls.error(
                    f"distinct positions of the {len(specs)} {what} of @{callee.name.value}",
                    list(positions),
                )
        if not chosen:
            raise cls.error(
                "a floating-point result to differentiate",
                ", ".join(map(str, results)) or "no result",
            )
        names = {"input": argument_names(callee), "result": [str(i) for i in range(len(results))]}
        for what, positions, specs in (("input", wrt, inputs), ("result", chosen, results)):
            for i in positions:
                if not is_float(specs[i].dtype):
                    argument = f"{what} '{names[what][i]}' of @{callee.name.value}"
                    found = f"{argument} with dtype {specs[i].dtype.name}"
                    raise cls.error(
                        f"floating-point {what}s", found, "integers and booleans have no gradient"
                    )
        by = [inputs[i] for i in wrt] + [t.x.spec for t in tagged(cls, callee, intermediates)]
        return cls.types(inputs, results, by, [results[i] for i in chosen])


class VjpOp(DerivativeOp, name="vjp"):
    """Vector-Jacobian product of a function f: (inputs, cotangents of the heads) -> (results of f,
    gradients of `wrt`, gradients of `intermediates`).

    `intermediates` are the labels of values in f that are marked by `tag`.
    Example: `%f = "gradopt.vjp"() {callee = @loss, wrt = array<i64: 0>}
    : () -> ((tensor<4xf32>, tensor<f32>) -> (tensor<f32>, tensor<4xf32>))`
    """

    intermediates: Strs = ()

    @classmethod
    def types(
        cls, inputs: list[Any], results: list[Any], by: list[Any], of: list[Any]
    ) -> tuple[list[Any], list[Any]]:
        return [*inputs, *of], [*results, *by]


class JvpOp(DerivativeOp, name="jvp"):
    """Jacobian-vector product of a function f: (inputs, tangents of `wrt`) -> (results of f,
    tangents of the heads).

    Example: `%f = "gradopt.jvp"() {callee = @loss, wrt = array<i64: 0>}
    : () -> ((tensor<4xf32>, tensor<4xf32>) -> (tensor<f32>, tensor<f32>))`
    """

    @classmethod
    def types(
        cls, inputs: list[Any], results: list[Any], by: list[Any], of: list[Any]
    ) -> tuple[list[Any], list[Any]]:
        if not by:
            raise cls.error("at least one input to differentiate by", "none")
        return [*inputs, *by], [*results, *of]


def tagged(rule: type[Op], callee: func.FuncOp, labels: tuple[str, ...]) -> list[Any]:
    """The `tag` ops of a function with the given labels, in their order; raises where one is
    missing, is there twice, or has no gradient.
    """
    if not labels:
        return []
    tags: dict[str, list[Any]] = {}
    for op in callee.entry_block.operations:
        if isinstance(op, TagOp):
            tags.setdefault(op.label, []).append(op)
    for label in labels:
        where = f"in @{callee.name.value}"
        if (count := len(tags.get(label, []))) != 1:
            known = ", ".join(f"'{t}'" for t in tags) or "none"
            raise rule.error(f"one value tagged '{label}' {where}", f"{count}; tags are: {known}")
        if not is_float(tags[label][0].x.dtype):
            found = f"'{label}' {where} with dtype {tags[label][0].x.dtype.name}"
            raise rule.error("floating-point intermediates", found, "integers have no gradient")
    if len(set(labels)) != len(labels):
        raise rule.error("distinct labels", ", ".join(labels))
    return [tags[label][0] for label in labels]


# --- functions and symbols ------------------------------------------------------------------------

optimization_barrier = function(OptimizationBarrierOp)


def tag(x: Any, label: str, name: str | None = None) -> Any:
    """`x` under a label, by which its gradient can be asked for: `intermediates` of `go.grad`."""
    return TagOp.build(x, label=label, name=name)


def stop_gradient(tree: Any, name: str | None = None) -> Any:
    """The array, or all arrays of nested containers, as they are, but constant to derivatives."""
    leaves, structure = trees.flatten(tree)
    stopped = [StopGradientOp.build(leaf, name=name) for leaf in leaves]
    return trees.unflatten(structure, stopped)


def symbols(module: ir.Operation | ir.Module) -> dict[str, func.FuncOp]:
    """The functions of a module by name, in order."""
    return {
        f.name.value: f
        for f in module.operation.regions[0].blocks[0].operations
        if isinstance(f, func.FuncOp)
    }


def named_symbols(module: ir.Operation | ir.Module) -> set[str]:
    """The names of everything in a module that has one."""
    found = (op.attributes for op in module.operation.regions[0].blocks[0].operations)
    return {about["sym_name"].value for about in found if "sym_name" in about}


def is_public(function: func.FuncOp) -> bool:
    """True for a function that callers outside the module see; functions are unless they say
    otherwise.
    """
    return "sym_visibility" not in function.attributes or function.visibility.value == "public"


def signature(callee: func.FuncOp) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """Input and result types of a function."""
    kind = callee.type
    return [TensorSpec.from_mlir(t) for t in kind.inputs], [
        TensorSpec.from_mlir(t) for t in kind.results
    ]


def head_positions(callee: func.FuncOp, heads: tuple[int, ...]) -> tuple[int, ...]:
    """`heads`, or all floating-point results where none are given."""
    return heads or tuple(i for i, spec in enumerate(signature(callee)[1]) if is_float(spec.dtype))


def argument_names(callee: func.FuncOp) -> list[str]:
    """The inputs' names (attribute gradopt.name), or their positions where they have none."""
    attributes = callee.arg_attrs if callee.attributes and "arg_attrs" in callee.attributes else []
    names = [
        d["gradopt.name"].value
        if "gradopt.name" in d and isinstance(d["gradopt.name"], ir.StringAttr)
        else str(i)
        for i, d in enumerate(attributes)
    ]
    return names or [str(i) for i in range(len(callee.type.inputs))]


def call(callee: func.FuncOp, *operands: Any) -> tuple[Any, ...]:
    """Append a call of a function of the same module; return its results."""
    builder = builders.owner("call", operands)
    with builder.context:
        values = [builder.adopt(o) for o in operands]
        where = {"loc": builder.location(callee.name.value), "ip": builder.insertion_point}
        return tuple(
            wrap(r, builder) for r in func.CallOp(callee, values, **where).operation.results
        )
