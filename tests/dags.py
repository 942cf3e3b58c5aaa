# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Graphs compared as expressions: two functions with equal digests compute the same numbers, bit
for bit, in whatever order their ops stand.
"""

from collections.abc import Callable
from typing import Any

from gradopt.dialect.control import symbols
from gradopt.dialect.graph import trace
from gradopt.dialect.mlir import func
from gradopt.lowering import pipeline


def numbered(fn: Callable[..., Any], *specs: Any) -> Callable[[dict[Any, int]], list[int]]:
    """The function, differentiated and inlined, as one number a result: given a table, the number
    of an expression is its place there.
    """
    graph = trace(fn, *specs, name="main")
    pipeline.run(graph.module, pipeline.STAGES["differentiated"])

    def number(table: dict[Any, int]) -> list[int]:
        function = symbols(graph.module)["main"]
        known: dict[Any, int] = {}
        for i, argument in enumerate(function.entry_block.arguments):
            known[argument] = table.setdefault(("argument", i, str(argument.type)), len(table))
        for op in function.entry_block.operations:
            operands = tuple(known[o] for o in op.operation.operands)
            if isinstance(op, func.ReturnOp):
                return list(operands)
            found = op.operation.attributes
            about = tuple(sorted((name, str(found[name])) for name in found))
            types = tuple(str(r.type) for r in op.operation.results)
            for i, result in enumerate(op.operation.results):
                key = op.operation.name, about, types, operands, i
                known[result] = table.setdefault(key, len(table))
        raise AssertionError("a function returns")

    return number


def same(a: Callable[..., Any], b: Callable[..., Any], *specs: Any) -> bool:
    """Whether two functions are the same expressions of their arguments."""
    table: dict[Any, int] = {}
    return numbered(a, *specs)(table) == numbered(b, *specs)(table)
