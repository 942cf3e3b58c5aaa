# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The reference executor: runs a function of the dialect through its ops' NumPy `reference`. The
oracle of every test.
"""

from typing import Any

import numpy as np

from ..errors import ArgumentError, Diagnostic, PassError
from .base import Op
from .control import DerivativeOp, argument_names, signature, symbols
from .elementwise import Elementwise
from .loops import ScanOp, loop_of
from .mlir import func, ir, place
from .types import TensorSpec


def run(module: ir.Module, name: str, *arrays: Any) -> tuple[np.ndarray, ...]:
    """The results of function `name` of `module` on NumPy arrays of the types it takes.

    Raises ArgumentError for arguments of another type, PassError for derivatives that have not been
    expanded.
    """
    functions = symbols(module)
    if name not in functions:
        raise ArgumentError(
            f"expected a function out of {', '.join('@' + n for n in functions)}, got @{name}"
        )
    return _run(functions, functions[name], [np.asarray(a) for a in arrays])


def _run(
    functions: dict[str, func.FuncOp], function: func.FuncOp, arrays: list[np.ndarray]
) -> tuple[np.ndarray, ...]:
    _check(function, arrays)
    block = function.entry_block
    ops = list(block.operations)
    last_use = {operand: i for i, op in enumerate(ops) for operand in op.operation.operands}
    values: dict[ir.Value, np.ndarray] = dict(zip(block.arguments, arrays, strict=True))
    for i, op in enumerate(ops):
        operands = [values[o] for o in op.operation.operands]
        if isinstance(op, func.ReturnOp):
            return tuple(operands)
        for operand in set(op.operation.operands):
            if last_use[operand] == i:
                del values[operand]
        for result, array in zip(
            op.operation.results, _evaluate(functions, op, operands), strict=True
        ):
            if result in last_use:
                values[result] = array
    raise _fault(function, f"function @{function.name.value} has no return")


def _evaluate(
    functions: dict[str, func.FuncOp], op: Any, operands: list[np.ndarray]
) -> tuple[np.ndarray, ...]:
    if (loop := loop_of(op)) is not None:
        return _loop(op, loop, functions, operands[1:])
    if isinstance(op, ScanOp):
        return (np.zeros(()),)  # calls of it look the op up
    if isinstance(op, func.CallOp):
        return _run(functions, functions[op.attributes["callee"].value], operands)
    name = op.operation.name
    if isinstance(op, DerivativeOp):
        raise _fault(op, f"'{name}' op has to be expanded first; run gradopt-differentiate")
    if not isinstance(op, Op):
        raise _fault(op, f"'{name}' is no op of the gradopt dialect and has no reference")
    if all(s.is_static for s in op.operand_specs()):
        return op.evaluate(*operands, **op.read_attributes())
    shapes = [a.shape for a in operands]
    if isinstance(op, Elementwise) and len(set(shapes)) > 1:
        raise _fault(op, f"'{name}' op expected operands of one shape, got {shapes}")
    try:
        results = op.compute(op.result_specs(), operands, op.read_attributes())
    except ValueError as error:  # NumPy's, of extents that do not fit
        raise _fault(op, f"'{name}' op expected operands that fit, got {shapes}: {error}") from None
    for array, spec in zip(results, op.result_specs(), strict=True):
        if not fits(array.shape, spec):
            raise _fault(op, f"'{name}' op expected a result of type {spec}, got {array.shape}")
    return results


def _loop(
    op: Any, loop: ScanOp, functions: dict[str, func.FuncOp], arrays: list[np.ndarray]
) -> tuple[np.ndarray, ...]:
    """A call of a loop, step by step."""

    def body(*step: np.ndarray) -> tuple[np.ndarray, ...]:
        return _run(functions, functions[loop.callee], list(step))

    results = [TensorSpec.from_mlir(r.type) for r in op.operation.results]
    about = loop.read_attributes()
    del about["callee"]
    return loop.reference(*arrays, body=body, results=results, **about)


def _fault(op: Any, message: str) -> PassError:
    return PassError([Diagnostic(*place(op.location), "error", message)])


def _check(function: func.FuncOp, arrays: list[np.ndarray]) -> None:
    specs = signature(function)[0]
    if len(arrays) != len(specs):
        raise ArgumentError(
            f"@{function.name.value} expected {len(specs)} arguments, got {len(arrays)}"
        )
    for name, spec, array in zip(argument_names(function), specs, arrays, strict=True):
        if array.dtype != spec.dtype or not fits(array.shape, spec):
            got = TensorSpec(array.shape, array.dtype)
            raise ArgumentError(
                f"@{function.name.value} expected argument '{name}' of type {spec}, got {got}"
            )


def fits(shape: tuple[int, ...], spec: TensorSpec) -> bool:
    """True if an array of `shape` is of the type `spec`, dtype aside."""
    return len(shape) == spec.rank and all(
        n is None or n == m for n, m in zip(spec.shape, shape, strict=True)
    )
