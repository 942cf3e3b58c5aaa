# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The modules of an artifact: its functions, lowered and compiled for each target, side by side."""

import concurrent.futures
import dataclasses
import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from ..dialect.control import symbols
from ..dialect.mlir import func, ir
from ..errors import ArtifactError, CompileError, PassError
from ..lowering import pipeline
from ..lowering.marks import mark_donated, mark_static, storage_of_results, unmark
from ..lowering.target import Target
from . import cache
from .compiler import compile_linalg, retire
from .exported import DATA, Exported
from .manifest import Storage
from .signature import of_text


@dataclasses.dataclass(frozen=True)
class Part:
    """A function in a module of its own, marked with what is donated, and its storage."""

    name: str
    module: ir.Module
    storage: Storage


def part(exported: Exported, donate: bool, static_alloc: bool) -> Part:
    """A copy of an exported function's module as it is to be compiled. Held inputs that a result
    replaces give it their memory, where their extents are known.
    """
    graph = exported.graph
    with graph.lock, graph.context:
        graph.finish()
        module = copied(graph.module)
        function = symbols(module)[graph.name]
        with_attributes(function)
        unmark(function)
        mark_donated(function, _donated(exported) if donate else {})
        is_static = static_alloc and mark_static(function)
        return Part(graph.name, module, Storage(storage_of_results(function), is_static))


def copied(module: ir.Module) -> ir.Module:
    """A module with the same functions, in the same context. Large constants are shared."""
    with module.context, ir.Location.unknown():
        new = ir.Module.create()
        with ir.InsertionPoint(new.body):
            for op in module.body.operations:
                op.operation.clone()
    return new


def with_attributes(function: func.FuncOp) -> None:
    """Give a function whose arguments have no attributes empty ones."""
    if "arg_attrs" not in function.attributes:
        empty = [ir.DictAttr.get({}) for _ in function.type.inputs]
        function.arg_attrs = ir.ArrayAttr.get(empty)


def _donated(exported: Exported) -> dict[int, int]:
    graph, results = exported.graph, {name: i for i, name in exported.updates.items()}
    return {
        i: results[name]
        for i, (name, spec) in enumerate(zip(graph.input_names, graph.input_specs, strict=True))
        if exported.role(name) != DATA and name in results and None not in spec.shape
    }


def build(parts: Sequence[Part], targets: Sequence[Target], name: str) -> list[bytes]:
    """The VMFB with all functions for each target, compiled in processes of their own. All targets
    are tried; ArtifactError then names those that failed, each with the reason.
    """
    failed: dict[str, Exception] = {}
    running: dict[str, concurrent.futures.Future[bytes]] = {}
    lanes = {t.name: f"{t.name} {secrets.token_hex(4)}" for t in targets}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for target in targets:
            try:
                source = Source.of(parts, target, name)
            except (PassError, CompileError) as error:
                failed[target.name] = error
            else:
                lane = lanes[target.name] if len(targets) > 1 else ""
                running[target.name] = pool.submit(source.compiled, lane)
    retire(lanes.values())
    for target_name, future in running.items():
        if error := future.exception():
            if not isinstance(error, CompileError):
                raise error
            failed[target_name] = error
    if failed:
        raise _failure(failed, targets)
    return [running[target.name].result() for target in targets]


def _failure(failed: Mapping[str, Exception], targets: Sequence[Target]) -> Exception:
    if len(targets) == 1:
        return next(iter(failed.values()))
    reasons = "".join(
        f"\n{name}: {failed[name]}" for name in (t.name for t in targets) if name in failed
    )
    return ArtifactError(
        f"{len(failed)} of {len(targets)} targets cannot be compiled for, and nothing is written; "
        f"leave them out, or change what they refuse:{reasons}"
    )


@dataclasses.dataclass(frozen=True)
class Source:
    """What the compiler gets of an artifact for one target."""

    name: str
    target: Target
    text: str
    ops: Mapping[str, list[str]]
    key: Any

    @classmethod
    def of(cls, parts: Sequence[Part], target: Target, name: str) -> "Source":
        functions: list[str] = []
        ops: dict[str, list[str]] = {}
        before = []
        for one in parts:
            lowered, names = pipeline.lower(one.module, target)
            with one.module.context:
                before.append(one.module.operation.get_asm())
                functions += [_standing_alone(op) for op in lowered.body.operations]
            for place, found in names.items():
                ops.setdefault(place, []).extend(n for n in found if n not in ops.get(place, []))
        text = "module {\n" + "\n".join(functions) + "\n}\n"
        key = of_text(name, "\n".join(before), target, origin=f"artifact {name}")
        return cls(name, target, text, ops, key)

    def compiled(self, lane: str) -> bytes:
        """The VMFB, from the disk cache if it is there, by a compiler process of that lane."""

        def make() -> bytes:
            return compile_linalg(self.text, self.target, self.name, dict(self.ops), True, lane)

        return cache.find(self.key.key, make, about=self.key.about()).image


def _standing_alone(op: Any) -> str:
    """An op's text that can stand beside that of other modules, with its source lines."""
    return op.operation.get_asm(use_local_scope=True, enable_debug_info=True)
