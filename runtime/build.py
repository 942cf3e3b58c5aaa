# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The modules of an artifact: its functions, lowered and compiled for each target, side by side."""

import concurrent.futures
import dataclasses
import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from ..dialect.control import DerivativeOp, symbols
from ..dialect.function_graph import FunctionGraph
from ..dialect.mlir import func, ir
from ..errors import ArtifactError, CompileError, PassError
from ..lowering import pipeline
from ..lowering.hoist import hoist
from ..lowering.marks import (
    mark_donated,
    mark_static,
    storage_of_results,
    unmark,
    with_attributes,
)
from ..lowering.target import Target
from ..lowering.target_fat import fat
from . import cache, progress
from .budget import settled
from .compiler import compile_linalg, retire
from .exported import CONSTANT, DATA, MODE, MODES, NAME, ROLE, Exported
from .manifest import Storage
from .signature import of_text

FAT = "fat.vmfb"
TRAIN = MODES[0]
WITHOUT_PLACES = (
    "--iree-vm-bytecode-module-strip-source-map=true",
    "--iree-hal-executable-debug-level=0",
    "--iree-llvmcpu-debug-symbols=false",
)
"""So that no paths of the machine that exports are in the module, which would be another one in
another folder.
"""


@dataclasses.dataclass(frozen=True)
class Part:
    """A function in a module of its own, marked with what is donated; its storage; the options of
    gradopt-rematerialize, "" where it is not to run.
    """

    name: str
    module: ir.Module
    storage: Storage
    remat: str = ""

    def text(self) -> str:
        """The module, as people read it."""
        return self.module.operation.get_asm(use_name_loc_as_prefix=True)


@dataclasses.dataclass(frozen=True)
class Images:
    """Modules by the names of their files, and the file for each target, in order."""

    files: Mapping[str, bytes]
    names: Sequence[str]


def part(exported: Exported, donate: bool, static_alloc: bool, remat: str = "") -> Part:
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
        _annotate(function, exported)
        mark_donated(function, _donated(exported) if donate else {})
        is_static = static_alloc and mark_static(function)
        is_derived = any(map(_is_derived, symbols(module).values()))
        options = remat if is_derived or exported.mode == TRAIN else ""
        return Part(graph.name, module, Storage(storage_of_results(function), is_static), options)


def _annotate(function: func.FuncOp, exported: Exported) -> None:
    """Write the names and roles into a function, as gradopt-compile reads them."""
    named = zip(function.arg_attrs, exported.graph.input_names, strict=True)
    function.arg_attrs = ir.ArrayAttr.get([_named(d, n, exported.role(n)) for d, n in named])
    results = [ir.DictAttr.get({NAME: ir.StringAttr.get(n)}) for n in exported.result_names()]
    function.attributes[MODE] = ir.StringAttr.get(exported.mode)
    if results:
        function.res_attrs = ir.ArrayAttr.get(results)


def _named(about: ir.DictAttr, name: str, role: str) -> ir.DictAttr:
    text = ir.StringAttr.get
    return ir.DictAttr.get({a.name: a.attr for a in about} | {NAME: text(name), ROLE: text(role)})


def _is_derived(function: func.FuncOp) -> bool:
    ops = [] if function.is_external else function.entry_block.operations
    return any(isinstance(op, DerivativeOp) for op in ops)


def without_constants(exported: Exported) -> Exported:
    """The function with its large constants as held inputs; itself where it has none."""
    graph = exported.graph
    with graph.lock, graph.context:
        graph.finish()
        module = copied(graph.module)
        constants = hoist(module, graph.name)
        if not constants:
            return exported
        return dataclasses.replace(
            exported,
            graph=FunctionGraph(module, graph.name),
            roles={**exported.roles, **dict.fromkeys(constants, CONSTANT)},
            held={**exported.held, **constants},
            results=exported.result_names(),
        )


def copied(module: ir.Module) -> ir.Module:
    """A module with the same functions, in the same context. Large constants are shared."""
    with module.context, ir.Location.unknown():
        new = ir.Module.create()
        with ir.InsertionPoint(new.body):
            for op in module.body.operations:
                op.operation.clone()
    return new


def _donated(exported: Exported) -> dict[int, int]:
    graph, results = exported.graph, {name: i for i, name in exported.updates.items()}
    return {
        i: results[name]
        for i, (name, spec) in enumerate(zip(graph.input_names, graph.input_specs, strict=True))
        if exported.role(name) != DATA and name in results and None not in spec.shape
    }


def build(parts: Sequence[Part], targets: Sequence[Target], name: str) -> Images:
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
        progress.follow(running)
    retire(lanes.values())
    for target_name, future in running.items():
        if error := future.exception():
            if not isinstance(error, CompileError):
                raise error
            failed[target_name] = error
    if failed:
        raise _failure(failed, targets)
    names = [f"{target.name.replace(':', '-')}.vmfb" for target in targets]
    return Images({n: running[t.name].result() for n, t in zip(names, targets, strict=True)}, names)


def build_fat(parts: Sequence[Part], targets: Sequence[Target], name: str) -> Images:
    """The same as one VMFB for all targets. Raises PassError for what one of them cannot do."""
    source = Source.of(parts, fat(targets), name)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        running = pool.submit(source.compiled, "")
        progress.follow({source.target.name: running})
    return Images({FAT: running.result()}, [FAT] * len(targets))


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
            remat = settled(one.module, one.name, target, one.remat)
            lowered, names = pipeline.lower(one.module, target, remat)
            with one.module.context:
                before.append(one.module.operation.get_asm())
                functions += [_standing_alone(op) for op in lowered.body.operations]
            for place, found in names.items():
                ops.setdefault(place, []).extend(n for n in found if n not in ops.get(place, []))
        target = dataclasses.replace(target, flags=(*target.flags, *WITHOUT_PLACES))
        text = "module {\n" + "\n".join(functions) + "\n}\n"
        remat = {one.name: one.remat for one in parts if one.remat}
        about = {"option remat": remat} if remat else {}
        key = of_text(name, "\n".join(before), target, about, origin=f"artifact {name}")
        return cls(name, target, text, ops, key)

    def compiled(self, lane: str) -> bytes:
        """The VMFB, from the disk cache if it is there, by a compiler process of that lane."""

        def make() -> bytes:
            ops, key = dict(self.ops), self.key.key
            return compile_linalg(self.text, self.target, self.name, ops, True, lane, key)

        return cache.find(self.key.key, make, about=self.key.about()).image


def _standing_alone(op: Any) -> str:
    """An op's text that can stand beside that of other modules, with its source lines."""
    return op.operation.get_asm(use_local_scope=True, enable_debug_info=True)
