# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Functions that gradopt-compile makes an artifact's functions of: out of a file, or traced."""

import dataclasses
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..dialect import control
from ..dialect.base import new_context
from ..dialect.function_graph import FunctionGraph
from ..dialect.graph import Graph, free_symbol
from ..dialect.mlir import func, ir
from ..dialect.types import TensorSpec
from ..lowering import pipeline
from ..lowering.marks import donation_pairs, unmark, with_attributes
from .exported import DATA, MODE, MODES, NAME, PARAMETER, ROLE, STATE, Exported

OTHER_NAMES = {"param": PARAMETER, "aux": STATE}
"""What graphs call the roles."""

Types = list[tuple[str, TensorSpec]]


@dataclasses.dataclass(frozen=True)
class Program:
    """A function and those that it needs, as bytecode; names and types of what it takes and
    returns; the roles of inputs, by name, as far as it says them; new values among its results, by
    position, with the names of the inputs that they replace; its mode, "" where it says none.
    """

    name: str
    code: bytes
    inputs: Types
    results: Types
    roles: Mapping[str, str]
    updates: Mapping[int, str]
    mode: str = ""

    @classmethod
    def of_module(cls, module: ir.Module, name: str) -> "Program":
        """A function of a module. Names of results are in their attributes gradopt.name; a result
        that has the name and type of a held input, or is named by the attribute gradopt.donated of
        one, is its new value.
        """
        function = control.symbols(module)[name]
        with module.context:
            with_attributes(function)
            inputs, outputs = control.signature(function)
            names = control.argument_names(function)
            roles = {n: _role(about) for n, about in zip(names, function.arg_attrs, strict=True)}
            results = list(zip(_result_names(function), outputs, strict=True))
            updates = {result: names[i] for i, result in donation_pairs(function)}
            for n in updates.values():  # what is donated is held
                roles[n] = STATE if roles[n] == DATA else roles[n]
            code = io.BytesIO()
            module.operation.write_bytecode(code)
        typed = list(zip(names, inputs, strict=True))
        made = cls(name, code.getvalue(), typed, results, roles, updates, _mode(function))
        return made.with_roles({})

    @classmethod
    def of_graph(cls, graph: Graph) -> "Program":
        """A traced function, whose inputs have the roles of the graph."""
        graph.finish()
        made = cls.of_module(graph.module, graph.name)
        names = Exported(graph).result_names()
        results = [(n, spec) for n, (_, spec) in zip(names, made.results, strict=True)]
        return dataclasses.replace(made, results=results)

    def with_roles(self, chosen: Mapping[str, str]) -> "Program":
        """The same with roles of inputs; results of the name and type of a held one are its new
        value.
        """
        roles = {**self.roles, **{n: r for n, r in chosen.items() if n in self.roles}}
        held = {n: spec for n, spec in self.inputs if roles[n] != DATA}
        updates = {i: n for i, n in self.updates.items() if n in held}
        for i, (n, spec) in enumerate(self.results):
            if held.get(n) == spec and n not in updates.values():
                updates.setdefault(i, n)
        return dataclasses.replace(self, roles=roles, updates=updates)

    def stored_as(self, dtypes: Mapping[str, np.dtype]) -> "Program":
        """The same with inputs, and their new values, of other element types: they are converted to
        what the function computes in, and back.
        """
        chosen = {n: dtypes[n] for n, _ in self.inputs if n in dtypes}
        if not chosen:
            return self
        piece = Piece(self.name, self, dtypes=chosen)
        with piece.graph:
            results = list(control.call(piece.callee, *piece.operands))
            for i, name in self.updates.items():
                results[i] = results[i].astype(chosen.get(name, results[i].dtype))
        finished = piece.finish(results)
        made = Program.of_module(finished.module, self.name)
        typed = [(n, s) for (n, _), (_, s) in zip(self.results, made.results, strict=True)]
        return dataclasses.replace(made, results=typed, roles=self.roles, updates=self.updates)

    def alone(self, name: str) -> FunctionGraph:
        """The function as it is, with those that it needs, under a name."""
        with new_context():
            module = self._parsed()
            known = control.symbols(module)
            if name in known and name != self.name:
                others = (f"{name}_{i}" for i in range(len(known) + 1))
                _set_name(module, name, next(n for n in others if n not in known))
            _set_name(module, self.name, name)
            return FunctionGraph(module, name)

    def _parsed(self) -> ir.Module:
        """The function, public, and those that it needs, private, in the current context."""
        source = ir.Module.parse(self.code)
        for name, function in control.symbols(source).items():
            visible = "public" if name == self.name else "private"
            function.attributes["sym_visibility"] = ir.StringAttr.get(visible)
        pipeline.run(source, "symbol-dce")
        return source

    def place(self, graph: Graph) -> func.FuncOp:
        """Put the function, and those that it needs, into a graph's module, under names that are
        free.
        """
        with graph.context:
            source = self._parsed()
            renamed = _rename(source, graph)
            for function in control.symbols(source).values():
                function.attributes["sym_visibility"] = ir.StringAttr.get("private")
                with_attributes(function)
                unmark(function)
                function.operation.clone(ir.InsertionPoint(graph.module.body))
            return control.symbols(graph.module)[renamed.get(self.name, self.name)]


class Piece:
    """A function of an artifact in the making: the graph, a program in it, and the values that it
    is called on. Inputs with other `dtypes` are converted.
    """

    def __init__(
        self, name: str, program: Program, dtypes: Mapping[str, np.dtype] | None = None
    ) -> None:
        self.graph = Graph(name)
        self.names: list[str] = []
        self.callee = program.place(self.graph)
        self.operands: list[Any] = []
        for n, spec in program.inputs:
            stored = TensorSpec(spec.shape, (dtypes or {}).get(n, spec.dtype))
            value = self.input(n, stored)
            with self.graph:
                self.operands.append(value if stored == spec else value.astype(spec.dtype))

    def input(self, name: str, spec: TensorSpec) -> Any:
        """A further input. Its name stays as it is, whatever characters are in it."""
        self.names.append(name)
        return self.graph.input(name, spec)

    def finish(self, results: Sequence[Any]) -> FunctionGraph:
        """The function that returns these."""
        self.graph.output(list(results))
        function = self.graph.finish()
        with self.graph.context:
            text = ir.StringAttr.get
            named = [ir.DictAttr.get({NAME: text(n), ROLE: text(DATA)}) for n in self.names]
            function.arg_attrs = ir.ArrayAttr.get(named)
        return FunctionGraph(self.graph.module, self.graph.name)


def _rename(source: ir.Module, graph: Graph) -> dict[str, str]:
    """Give the functions of a module names that a graph's module has not; returns the new ones of
    those that had to be changed.
    """
    changed: dict[str, str] = {}
    names = set(control.symbols(source))
    for name in control.symbols(source):
        if (free := free_symbol(graph, name, names)) != name:
            _set_name(source, name, free)
            changed[name] = free
            names.add(free)
    return changed


def _set_name(module: ir.Module, old: str, new: str) -> None:
    """Call a function of a module otherwise."""
    if old != new:
        function = control.symbols(module)[old]
        ir.SymbolTable.replace_all_symbol_uses(old, new, module.operation)
        ir.SymbolTable.set_symbol_name(function, new)


def _role(about: ir.DictAttr) -> str:
    text = about[ROLE].value if ROLE in about and isinstance(about[ROLE], ir.StringAttr) else DATA
    return OTHER_NAMES.get(text, text)


def _mode(function: func.FuncOp) -> str:
    if MODE not in function.attributes:
        return ""
    given = function.attributes[MODE]
    return given.value if isinstance(given, ir.StringAttr) and given.value in MODES else ""


def _result_names(function: func.FuncOp) -> list[str]:
    count = len(function.type.results)
    if "res_attrs" not in function.attributes:
        return [str(i) for i in range(count)]
    about: Any = function.res_attrs
    return [
        d[NAME].value if NAME in d and isinstance(d[NAME], ir.StringAttr) else str(i)
        for i, d in enumerate(about)
    ]


__all__ = ["Piece", "Program"]
