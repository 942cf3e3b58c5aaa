# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Large constants of a function become inputs, so that what is compiled for several targets, and
for several functions, does not hold a copy each.
"""

import hashlib

import numpy as np

from ..dialect.control import argument_names, symbols
from ..dialect.creation import ConstantOp
from ..dialect.mlir import func, ir
from ..dialect.types import TensorSpec
from . import pipeline
from .marks import with_attributes

LARGEST = 4096
"""Bytes of a constant that stays in the code."""
PREFIX = "constant."


def hoist(module: ir.Module, name: str) -> dict[str, np.ndarray]:
    """Replace the large constants that a function of a module uses by further inputs, in place;
    returns their values by the inputs' names. Names say what is in them: equal constants have one.

    Where such constants stand in other functions of the module, derivatives and calls are first
    written out in the function itself.
    """
    with module.context:
        everywhere = [op for f in symbols(module).values() for op in _large(f)]
        if not everywhere:
            return {}
        if len(_large(symbols(module)[name])) < len(everywhere):
            pipeline.run(module, pipeline.STAGES["differentiated"])
        function = symbols(module)[name]
        with_attributes(function)
        return _replace(function)


def _large(function: func.FuncOp) -> list[ConstantOp]:
    ops = [] if function.is_external else function.entry_block.operations
    return [op for op in ops if isinstance(op, ConstantOp) and _is_large(op)]


def _is_large(op: ConstantOp) -> bool:
    spec = TensorSpec.from_mlir(op.operation.results[0].type)
    size = int(np.prod(spec.extents, dtype=np.int64)) * spec.dtype.itemsize
    return size > LARGEST and not op.operation.attributes["value"].is_splat


def _replace(function: func.FuncOp) -> dict[str, np.ndarray]:
    values: dict[str, np.ndarray] = {}
    inputs: dict[str, ir.Value] = {}
    attributes, taken = list(function.arg_attrs), set(argument_names(function))
    for op in _large(function):
        array = np.ascontiguousarray(op.value)
        name = _name(array)
        while name in taken:
            name += "_"
        if name not in inputs:
            kind, location = op.operation.results[0].type, op.operation.location
            inputs[name] = function.entry_block.add_argument(kind, location)
            values[name] = array
            attributes.append(ir.DictAttr.get({"gradopt.name": ir.StringAttr.get(name)}))
        op.operation.results[0].replace_all_uses_with(inputs[name])
        op.operation.erase()
    types = [a.type for a in function.entry_block.arguments]
    kind = ir.FunctionType.get(types, function.type.results)
    function.attributes["function_type"] = ir.TypeAttr.get(kind)
    function.arg_attrs = ir.ArrayAttr.get(attributes)
    return values


def _name(array: np.ndarray) -> str:
    """What a constant is called: by what is in it."""
    digest = hashlib.sha256(f"{array.dtype.name}{array.shape}".encode())
    digest.update(array.view(np.uint8).data)
    return PREFIX + digest.hexdigest()[:16]
