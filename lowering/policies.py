# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checkpoints that keep something: what a policy saves of a function, and the functions that
compute with it.

`gradopt.checkpoint = {policy = "dots_saveable", names = []}` on a function: where it is
differentiated, its call becomes one of @f_saving, which gives the saved values too; the backward
calls @f_resumed, the derived function with the saved values as arguments, on arguments and saved
values behind barriers. What is not saved is computed anew there.
"""

from collections.abc import Callable, Sequence
from typing import Any

from ..dialect.base import Op
from ..dialect.contraction import DotGeneralOp
from ..dialect.control import CHECKPOINT, TagOp, argument_names
from ..dialect.mlir import func, ir, op_of
from . import costs
from .call_rules import has_rule
from .decompose import expand, needs_rule
from .inline import Functions, callee_of, clone_body
from .passes import failure

SAVING, RESUMED = "gradopt.saving", "gradopt.resumed"
"""Attributes: of a checkpoint its @f_saving, of a call of that the checkpoint; of a derived
function its @f_resumed.
"""

Make = Callable[[str, Sequence[ir.Type], Sequence[ir.Type], Sequence[str]], func.FuncOp]
"""Adds a private function to the module: its name (if that is free), types, argument names."""

NAMED = ("save_only_these_names", "save_anything_except_these_names", "save_any_names_but_these")
PLAIN = (
    "nothing_saveable",
    "everything_saveable",
    "dots_saveable",
    "dots_with_no_batch_dims_saveable",
)


def policy_of(function: func.FuncOp) -> tuple[str, frozenset[str]]:
    """The policy of a checkpoint, checked: a unit attribute saves nothing."""
    about = function.attributes[CHECKPOINT]
    if isinstance(about, ir.UnitAttr):
        return "nothing_saveable", frozenset()
    is_dict = isinstance(about, ir.DictAttr)
    name = about["policy"].value if is_dict and "policy" in about else None
    if name not in NAMED + PLAIN:
        expected = f"attribute '{CHECKPOINT}' of @{function.name.value} expected a policy out of"
        listed = ", ".join(NAMED + PLAIN)
        raise failure([(function.location, f"{expected} {listed}, got {about}")])
    has_names = "names" in about
    return name, frozenset(n.value for n in about["names"]) if has_names else frozenset()


def saves_something(function: func.FuncOp) -> bool:
    """True for checkpoints whose policy is not to keep nothing."""
    return CHECKPOINT in function.attributes and policy_of(function)[0] != "nothing_saveable"


def saved_values(function: func.FuncOp, ops: list[Any]) -> list[ir.Value]:
    """The results of `ops`, the body of a checkpoint, that its policy saves."""
    policy, names = policy_of(function)
    labels = _labels(ops)

    def is_saved(op: Any, value: ir.Value) -> bool:
        if isinstance(op, costs.ON_DEMAND + costs.VIEWS) or not isinstance(op, Op):
            return False  # as cheap as what it is made of; another's results may not be tensors
        if policy == "save_only_these_names":
            return labels.get(value) in names
        if policy == "save_any_names_but_these":
            return value in labels and labels[value] not in names
        if policy == "save_anything_except_these_names":
            return labels.get(value) not in names
        if policy == "dots_saveable":
            return isinstance(op, costs.PRODUCTS)
        if policy == "dots_with_no_batch_dims_saveable":
            return isinstance(op, DotGeneralOp) and not op.lhs_batch
        return policy == "everything_saveable"

    return [r for op in ops for r in op.operation.results if is_saved(op, r)]


def _labels(ops: list[Any]) -> dict[ir.Value, str]:
    """The label of each value that is tagged. A tag is a view: what is kept is what it looks at."""
    found = {}
    for op in ops:
        if isinstance(op, TagOp):
            value = op.operation.operands[0]
            while isinstance(op_of(value), TagOp):
                value = value.owner.operands[0]
            found[value] = op.label
    return found


def use_saving_functions(
    functions: Functions, block: ir.Block, kept: Sequence[ir.Value], make: Make
) -> list[ir.Value]:
    """Call @f_saving in the place of checkpoints @f that save something; returns what stands for
    the values in `kept`.
    """
    values = list(kept)
    for op in list(block.operations):
        callee = functions.get(callee_of(op)) if isinstance(op, func.CallOp) else None
        if callee is None or not saves_something(callee):
            continue
        with ir.InsertionPoint(op), op.location:
            saving = saving_function(functions, callee, make)
            new = func.CallOp(saving, list(op.operation.operands)).operation
            new.attributes[SAVING] = ir.FlatSymbolRefAttr.get(callee.name.value)
        for old, result in zip(op.operation.results, new.results, strict=False):
            values = [result if v == old else v for v in values]
            old.replace_all_uses_with(result)
        op.operation.erase()
    return values


def saving_function(functions: Functions, callee: func.FuncOp, make: Make) -> func.FuncOp:
    """@f_saving: the body of a checkpoint, which returns what is saved too; made once."""
    if SAVING in callee.attributes:
        return functions[callee.attributes[SAVING].value]
    inputs, results = list(callee.type.inputs), list(callee.type.results)
    function = make(f"{callee.name.value}_saving", inputs, results, argument_names(callee))
    block = function.entry_block
    with ir.InsertionPoint(block):
        values = clone_body(functions, callee, list(block.arguments), keep=has_rule)
    values = expand(block, needs_rule, values)
    values += saved_values(callee, list(block.operations))
    with ir.InsertionPoint(block), callee.location:
        func.ReturnOp(values)
    kind = ir.FunctionType.get(inputs, [v.type for v in values])
    function.attributes["function_type"] = ir.TypeAttr.get(kind)
    callee.attributes[SAVING] = ir.FlatSymbolRefAttr.get(function.name.value)
    return function


def resumed_function(
    functions: Functions, derived: func.FuncOp, results: int, saved: int, make: Make
) -> func.FuncOp:
    """The derived function of @f_saving with the saved values as arguments behind its own, which
    gives the gradients only. `results` are those of @f.
    """
    if RESUMED in derived.attributes:
        return functions[derived.attributes[RESUMED].value]
    own = list(derived.type.inputs)
    names = [*argument_names(derived), *(f"saved{i}" for i in range(saved))]
    kinds = list(derived.type.results)
    given = kinds[results : results + saved]
    name = derived.name.value.replace("_saving", "_resumed")
    function = make(name, own + given, kinds[results + saved :], names)
    block = function.entry_block
    arguments = list(block.arguments)
    with ir.InsertionPoint(block):
        values = clone_body(functions, derived, arguments[: len(own)])
    gradients = values[results + saved :]
    for old, new in zip(values[results : results + saved], arguments[len(own) :], strict=True):
        old.replace_all_uses_with(new)
        gradients = [new if g == old else g for g in gradients]
    with ir.InsertionPoint(block), derived.location:
        func.ReturnOp(gradients)
    derived.attributes[RESUMED] = ir.FlatSymbolRefAttr.get(function.name.value)
    return function
