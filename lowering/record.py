# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""A graph as two: a forward that also gives what the backward needs, and that backward.

The graph's joint function (results and gradients at once) is derived, simplified and split by
gradopt-partition, so that the forward keeps the fewest bytes, and gradients that nobody asked for
are no part of either.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from ..dialect.base import wrap
from ..dialect.builder import Builder
from ..dialect.control import (
    COTANGENT,
    PRIMALS,
    VjpOp,
    argument_names,
    head_positions,
    signature,
    symbols,
)
from ..dialect.function_graph import FunctionGraph
from ..dialect.graph import Graph
from ..dialect.mlir import func, ir
from . import pipeline
from .marks import ADD, NULL
from .partition import Joint, split


@dataclasses.dataclass(frozen=True)
class Recording:
    """The two functions, and what the backward's arguments are: `inputs` of the forward, `results`
    of the forward, what else that gives, the cotangents of `heads`, and what the gradients by the
    inputs `added` are added to. Its results are the gradients by `wrt`.
    """

    forward: FunctionGraph
    backward: FunctionGraph
    inputs: list[int]
    results: list[int]
    heads: list[int]
    wrt: list[int]
    added: list[int]
    result_count: int

    def totals(self) -> dict[int, int]:
        """The backward's arguments that gradients are added to, each with the result that takes
        its place.
        """
        start = len(self.backward.input_specs) - len(self.added)
        return {start + n: self.wrt.index(i) for n, i in enumerate(self.added)}


def record(graph: Graph | FunctionGraph, requests: Sequence[str]) -> Recording:
    """The recording of a graph; `requests` says for each input "null", "write" or "add". Gradients
    by inputs that no result depends on are zeros.

    Raises PassError where the graph cannot be differentiated.
    """
    graph.finish()
    wrt = [i for i, request in enumerate(requests) if request != NULL]
    with graph.context:
        module = ir.Module.parse(graph.mlir(locations=True))
        name = _add_joint(module, graph.name, wrt)
        for stage in ("differentiated", "simplified"):
            pipeline.run(module, pipeline.STAGES[stage])
        joint = Joint(symbols(module)[name])
        heads = list(head_positions(symbols(module)[graph.name], ()))
        forward, backward = split(module, joint, set(symbols(module)))
        arguments, results = list(joint.inputs), list(joint.results)
        inputs = [arguments.index(v) for v in joint.by_reference if v in arguments]
        kept = [results.index(v) for v in joint.by_reference if v not in arguments]
        used = _drop_unused(backward, len(backward.type.inputs) - len(heads))
        added = [i for i in wrt if requests[i] == ADD]
        _accumulate(backward, [wrt.index(i) for i in added], [graph.input_names[i] for i in added])
        count = len(joint.results)
        return Recording(
            _alone(forward, f"{graph.name}_forward"),
            _alone(backward, f"{graph.name}_backward"),
            inputs,
            kept,
            [heads[i] for i in used],
            wrt,
            added,
            count,
        )


def _add_joint(module: ir.Module, name: str, wrt: Sequence[int]) -> str:
    """Add the joint function of `name` to a module; return its name."""
    callee = symbols(module)[name]
    heads = head_positions(callee, ())
    inputs, results = signature(callee)
    names = [*argument_names(callee), *(f"ct{i}" for i in heads)]
    types = [s.to_mlir() for s in (*inputs, *(results[i] for i in heads))]
    gradients = [inputs[i].to_mlir() for i in wrt]
    location = callee.location
    with location, ir.InsertionPoint(module.body):
        kinds = types, [*callee.type.results, *gradients]
        joint = func.FuncOp(f"{name}_joint", kinds)
    i64 = ir.IntegerType.get_signless(64)
    joint.attributes[PRIMALS] = ir.IntegerAttr.get(i64, len(results))
    about: list[dict[str, ir.Attribute]] = [{"gradopt.name": ir.StringAttr.get(n)} for n in names]
    for attributes in about[len(inputs) :]:
        attributes[COTANGENT] = ir.UnitAttr.get()
    joint.arg_attrs = ir.ArrayAttr.get([ir.DictAttr.get(a) for a in about])
    block = joint.add_entry_block([ir.Location.name(n, location) for n in names])
    with Builder(ir.InsertionPoint(block), location):
        found = VjpOp.emit_call(
            callee, *map(wrap, block.arguments), wrt=tuple(wrt), heads=heads, unreachable="zeros"
        )
        with ir.InsertionPoint(block), location:
            func.ReturnOp([ir.Value(v) for v in found])
    return joint.name.value


def _drop_unused(function: func.FuncOp, start: int) -> list[int]:
    """Erase the arguments from `start` on that nothing reads; return the positions, counted from
    there, of those that stay.
    """
    block = function.entry_block
    unread = [i for i, a in enumerate(block.arguments) if i >= start and not list(a.uses)]
    about = [d for i, d in enumerate(function.arg_attrs) if i not in unread]
    for i in reversed(unread):
        block.erase_argument(i)
    _retype(function, about)
    count = len(block.arguments) + len(unread)
    return [i - start for i in range(start, count) if i not in unread]


def _accumulate(function: func.FuncOp, positions: Sequence[int], names: Sequence[str]) -> None:
    """Add arguments for what the results at `positions` are added to."""
    block = function.entry_block
    terminator = list(block.operations)[-1].operation
    about = list(function.arg_attrs)
    for position, name in zip(positions, names, strict=True):
        gradient = terminator.operands[position]
        label = f"{name}.grad"
        total = block.add_argument(gradient.type, ir.Location.name(label))
        about.append(ir.DictAttr.get({"gradopt.name": ir.StringAttr.get(label)}))
        with Builder(ir.InsertionPoint(terminator), terminator.location):
            terminator.operands[position] = ir.Value(wrap(total) + wrap(gradient))
    _retype(function, about)


def _retype(function: func.FuncOp, about: list[Any]) -> None:
    inputs = [a.type for a in function.entry_block.arguments]
    kind = ir.FunctionType.get(inputs, function.type.results)
    function.attributes["function_type"] = ir.TypeAttr.get(kind)
    function.arg_attrs = ir.ArrayAttr.get(about)


def _alone(function: func.FuncOp, name: str) -> FunctionGraph:
    """A function in a module of its own, under a name of its own."""
    module = ir.Module.create(ir.Location.unknown())
    with ir.InsertionPoint(module.body):
        copy = function.operation.clone()
    copy.attributes["sym_name"] = ir.StringAttr.get(name)
    return FunctionGraph(module, name)
