# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The backward of one op as a graph of its own, and what it needs of the forward."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from ..dialect.base import Op, is_composite
from ..dialect.control import VjpOp
from ..dialect.graph import Graph, trace_inside
from ..dialect.mlir import func, ir
from ..dialect.types import is_float
from ..errors import GradientError
from . import pipeline
from .services import Description, describe, infer_fallible, op_class, resolved
from .simplify import is_splat


@dataclasses.dataclass(frozen=True)
class Backward:
    """The backward of an op as a graph of its own.

    The function `name` of `module` takes those of (the op's inputs, its outputs, its outputs'
    gradients), in this order, that `saved` holds for, and gives the gradients of the inputs that
    `has_gradient` holds for. An input whose gradient is zero by definition has none.
    """

    module: ir.Module
    name: str
    saved: tuple[bool, ...]
    has_gradient: tuple[bool, ...]


def backward_graph(
    op: str,
    inputs: Sequence[Any],
    input_requires_grad: Sequence[bool],
    output_has_grad: Sequence[bool],
    **attributes: Any,
) -> Backward | None:
    """The backward of an op, for the inputs that need a gradient and the outputs that have one.

    Returns None where no output has a gradient or no input needs one. Raises GradientError for an
    op without a gradient rule and for integer inputs, naming op and input; OpError for masks of
    another length.
    """
    rule = op_class(op)
    given = [describe(x) for x in inputs]
    outputs = infer_fallible(op, *given, **attributes).outputs
    names = _input_names(rule, len(given))
    for what, mask, count in (
        ("input_requires_grad", input_requires_grad, len(given)),
        ("output_has_grad", output_has_grad, len(outputs)),
    ):
        if len(mask) != count:
            raise rule.error(f"{what} of length {count}", len(mask))
    wrt = tuple(i for i, needed in enumerate(input_requires_grad) if needed)
    heads = tuple(i for i, has in enumerate(output_has_grad) if has and is_float(outputs[i].dtype))
    if not wrt or not heads:
        return None
    for i in wrt:
        if not is_float(given[i].dtype):
            raise GradientError(
                f"'gradopt.{op}' op expected a floating-point input for a gradient, got "
                f"'{names[i]}' with dtype {given[i].dtype.name}"
            )
    if not hasattr(rule, "vjp") and not is_composite(rule):
        raise GradientError(
            f"'gradopt.{op}' op expected a gradient rule for input '{names[wrt[0]]}', got none; "
            "define `vjp` on its class"
        )
    attributes, _ = resolved(rule, attributes)
    return _derived(rule, names, given, outputs, wrt, heads, attributes)


def _input_names(rule: type[Op], count: int) -> list[str]:
    """The operand fields, numbered where one is variadic."""
    names: list[str] = []
    for field, variadic in rule.OPERANDS.items():
        extra = count - len(rule.OPERANDS) + 1
        names += [f"{field}{i}" for i in range(extra)] if variadic else [field]
    return names


def _derived(
    rule: type[Op],
    names: list[str],
    given: Sequence[Description],
    outputs: Sequence[Description],
    wrt: tuple[int, ...],
    heads: tuple[int, ...],
    attributes: dict[str, Any],
) -> Backward:
    """The derived function of the op alone, with the op's outputs and their gradients as further
    inputs.
    """
    graph = Graph(f"{rule.MNEMONIC}_backward")
    inputs = [graph.input(n, d.spec) for n, d in zip(names, given, strict=True)]
    result_names = _result_names(rule, outputs)
    results = [graph.input(n, d.spec) for n, d in zip(result_names, outputs, strict=True)]
    cts = {i: graph.input(f"ct_{n}", outputs[i].spec) for i, n in enumerate(result_names)}
    with graph:
        inner, operands = trace_inside(lambda *xs: rule.emit(*xs, **attributes), tuple(inputs))
        about = {"wrt": wrt, "heads": heads, "unreachable": "zeros"}
        found = VjpOp.emit_call(inner.func, *operands, *(cts[i] for i in heads), **about)
    graph.output(*found)
    graph.finish()
    pipeline.run(graph.module, f"{pipeline.STAGES['differentiated']},gradopt-simplify")
    has, used = _without_forward(graph, results)
    has_gradient = [False] * len(given)
    for i, kept in zip(wrt, has, strict=True):
        has_gradient[i] = kept
    return Backward(graph.module, graph.name, tuple(used), tuple(has_gradient))


def _result_names(rule: type[Op], outputs: Sequence[Description]) -> list[str]:
    if len(rule.RESULTS) == len(outputs):
        return list(rule.RESULTS)
    return [f"y{i}" for i in range(len(outputs))]


def _without_forward(graph: Graph, outputs: Sequence[Any]) -> tuple[list[bool], list[bool]]:
    """Have the derived function return gradients only, read the outputs it is given instead of
    computing them, and take only what it reads. Returns which gradients and which inputs are left.
    """
    block = graph.block
    results = list(list(block.operations)[-1].operation.operands)
    values, gradients = results[: len(outputs)], results[len(outputs) :]
    for value, given in zip(values, outputs, strict=True):
        value.replace_all_uses_with(ir.Value(given))
    has = [not is_splat(g, 0) for g in gradients]
    _return(graph, [g for g, kept in zip(gradients, has, strict=True) if kept])
    pipeline.run(graph.module, "gradopt-simplify")
    used = [bool(list(a.uses)) for a in block.arguments]
    for i in reversed(range(len(used))):
        if not used[i]:
            block.erase_argument(i)
    names = [n for n, kept in zip(graph.input_names, used, strict=True) if kept]
    with graph.context, ir.Location.unknown():
        last = list(block.operations)[-1].operation
        kinds = [a.type for a in block.arguments], [o.type for o in last.operands]
        kind = ir.TypeAttr.get(ir.FunctionType.get(*kinds))
        graph.func.attributes["function_type"] = kind
        about = [ir.DictAttr.get({"gradopt.name": ir.StringAttr.get(n)}) for n in names]
        graph.func.arg_attrs = ir.ArrayAttr.get(about)
    return has, used


def _return(graph: Graph, values: Sequence[ir.Value]) -> None:
    list(graph.block.operations)[-1].operation.erase()
    with graph.context, ir.Location.unknown(), ir.InsertionPoint(graph.block):
        func.ReturnOp(list(values))
        kinds = [a.type for a in graph.block.arguments], [v.type for v in values]
        kind = ir.TypeAttr.get(ir.FunctionType.get(*kinds))
        graph.func.attributes["function_type"] = kind
