# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What an artifact is made of: functions, each with what its inputs are for and where its results
go.

An artifact holds arrays by name: parameters, optimizer state, statistics, constants. All functions
that have an input of that name read it there, and a result can be its new value, so that a call of
`step` changes what `infer` then computes with. All other inputs are data, which the caller gives.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..dialect.function_graph import FunctionGraph
from ..dialect.graph import Graph
from ..dialect.types import TensorSpec
from ..errors import ArtifactError
from .arguments import check_types

DATA, PARAMETER, STATE, CONSTANT = ROLES = ("data", "parameter", "state", "constant")
"""What an input is for: given by the caller, trained, changed otherwise, or always the same. All
but data are held by the artifact.
"""
RESULT = "result"
"""The role of an output that the caller gets; others have the role of the array they replace."""
MODES = ("train", "infer")
NAME, ROLE, MODE = "gradopt.name", "gradopt.role", "gradopt.mode"
"""The attributes that say so in the dialect, of arguments and results, arguments, and functions."""


@dataclasses.dataclass(frozen=True)
class Exported:
    """A function for an artifact: a traced graph, by whose name it is called, and

    - `roles`: of the inputs that are held, by name; inputs that are not there are data;
    - `held`: the initial values of held arrays by name, or a TensorSpec where there is none yet (a
      function that updates it makes it); it may have more names than the function has inputs;
    - `updates`: the results that are new values of held arrays, by position. Where the function
      reads the old value as well, the new one takes over its memory;
    - `mode`: "train" or "infer", what its layers were traced for;
    - `results`: names of the results; None for those of the graph's structure: the keys of the path
      with dots between, "0", "1", ... where a function returns a tuple, "" where it returns an
      array;
    - `notes`: more fields of its entry in the manifest, which have to be JSON.
    """

    graph: Graph | FunctionGraph
    roles: Mapping[str, str] = dataclasses.field(default_factory=dict)
    held: Mapping[str, np.ndarray | TensorSpec] = dataclasses.field(default_factory=dict)
    updates: Mapping[int, str] = dataclasses.field(default_factory=dict)
    mode: str = "infer"
    results: Sequence[str] | None = None
    notes: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.graph.name

    def role(self, name: str) -> str:
        """What the input of that name is for."""
        return self.roles.get(name, DATA)

    def result_names(self) -> list[str]:
        """The results' names; those of new values are the names of the arrays they replace."""
        if self.results is not None:
            names = list(self.results)
        elif self.graph.out_tree is not None:
            names = [".".join(map(str, path)) for path in self.graph.out_tree.paths()]
        else:
            names = [str(i) for i in range(len(self.graph.output_specs))]
        return [self.updates.get(i, name) for i, name in enumerate(names)]

    def check(self) -> None:
        """Raise ArtifactError or ArgumentError where the parts do not fit each other."""
        graph = self.graph
        inputs = dict(zip(graph.input_names, graph.input_specs, strict=True))
        for name, role in self.roles.items():
            if role not in ROLES:
                raise self.error(f"the role of '{name}' to be one of {', '.join(ROLES)}", role)
            if name not in inputs:
                raise self.error(f"'{name}' to be one of its inputs", ", ".join(inputs) or "none")
            if role != DATA and name not in self.held:
                raise self.error(f"a value, or a TensorSpec, for the held input '{name}'", "none")
        for name, spec in inputs.items():
            if self.role(name) != DATA:
                check_types(self.name, [name], [spec], [spec_of(self.held[name])])
                if None in spec.shape:
                    raise self.error(f"known extents of '{name}', which is held", str(spec))
        self._check_updates()
        if self.mode not in MODES:
            raise self.error(f"a mode out of {', '.join(MODES)}", self.mode)
        names = self.result_names()
        if len(names) != len(graph.output_specs):
            raise self.error(f"{len(graph.output_specs)} names of results", str(len(names)))
        if twice := sorted({n for n in names if names.count(n) > 1}):
            raise self.error("results of different names", f"'{twice[0]}' twice")

    def _check_updates(self) -> None:
        outputs = self.graph.output_specs
        for position, name in self.updates.items():
            if not 0 <= position < len(outputs):
                raise self.error(
                    f"the new value of '{name}' among {len(outputs)} results", str(position)
                )
            if name not in self.held:
                raise self.error(f"'{name}', which a result replaces, to be held", "no such array")
            if self.role(name) == CONSTANT:
                raise self.error(f"constant '{name}' to stay as it is", f"result {position}")
            if outputs[position] != (spec := spec_of(self.held[name])):
                raise self.error(
                    f"the new value of '{name}' to be of type {spec}", str(outputs[position])
                )

    def error(self, expected: str, got: str) -> ArtifactError:
        return ArtifactError(f"'{self.name}' expected {expected}, got {got}")


def spec_of(value: np.ndarray | TensorSpec) -> TensorSpec:
    """The type of a held array."""
    return value if isinstance(value, TensorSpec) else TensorSpec(value.shape, value.dtype)


def held_by(functions: Sequence[Exported]) -> dict[str, np.ndarray | TensorSpec]:
    """All held arrays by name, from all functions; a value stands in for a type alone. Raises
    ArtifactError where two functions disagree on one.
    """
    found: dict[str, np.ndarray | TensorSpec] = {}
    for function in functions:
        for name, value in function.held.items():
            other = found.setdefault(name, value)
            if spec_of(other) != spec_of(value):
                raise function.error(f"held '{name}' of type {spec_of(other)}", str(spec_of(value)))
            if isinstance(other, TensorSpec):
                found[name] = value
            elif not isinstance(value, TensorSpec) and not same(other, value):
                raise function.error(f"one initial value of '{name}'", "two")
    return found


def roles_of(functions: Sequence[Exported]) -> dict[str, str]:
    """The role of each held array. Raises ArtifactError where two functions disagree on one."""
    found: dict[str, str] = {}
    for function in functions:
        for name, role in function.roles.items():
            if role != DATA and found.setdefault(name, role) != role:
                raise function.error(f"'{name}' to be a {found[name]}, as elsewhere", role)
            if role == DATA and name in function.held:
                raise function.error(f"held '{name}' to be no data", role)
    for function in functions:
        for name in function.held:
            found.setdefault(name, STATE)
    return found


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays of one type are equal, bit for bit."""
    return a is b or a.tobytes() == b.tobytes()
