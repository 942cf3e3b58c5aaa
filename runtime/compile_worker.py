# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The process that runs IREE's compiler: `python compile_worker.py [process flags]`, talked to over
stdin and stdout.

A request is a JSON object {flags, size, plan, sites} with `size` bytes of MLIR behind it; an answer
is {ok, size, stage, diagnostics} with `size` bytes of VMFB. Each JSON object is preceded by its
length in 4 bytes. With `plan`, memory is decided on the way (compile_arena.py): "" for no, "build"
for yes, "report" to get what would be decided as `memory` in the answer, with no VMFB. With
`sites`, the answer's `commands` say what dispatches come from (compile_sites.py). IREE can crash or
hang on some inputs; here it takes down only this process, which the parent replaces. It imports
nothing of gradopt, so that it starts fast.
"""

import ctypes
import gc
import importlib.util
import json
import os
import pathlib
import struct
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, BinaryIO

from iree.compiler.api import Output, Session, Source, _initializeGlobalCL, ctypes_dl

STAGES = (
    "input",
    "abi",
    "preprocessing",
    "global-optimization",
    "dispatch-creation",
    "flow",
    "stream",
    "executable-sources",
    "executable-configurations",
    "executable-targets",
    "hal",
    "vm",
)
ERROR = 2
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


def compile_module(
    source: bytes, flags: list[str], plan: str, with_sites: bool = False
) -> tuple[dict[str, Any], bytes]:
    """The answer to one request."""
    routes = []
    if plan:
        routes.append(lambda session, runs: planned(session, runs, source, plan, with_sites))
    if with_sites:
        routes.append(lambda session, runs: with_commands(session, runs, source))
    for route in routes:
        answer = attempt_in_parts(route, flags)
        if answer is not None:
            return answer
    diagnostics: list[str] = []
    image = attempt(source, flags, diagnostics)
    if image is not None:
        return {"ok": True}, image
    return {"ok": False, "stage": failing_stage(source, flags), "diagnostics": diagnostics}, b""


def attempt(
    source: bytes, flags: list[str], diagnostics: list[str], stop_after: str | None = None
) -> bytes | None:
    """The VMFB (empty where compilation is stopped early), or None with the errors in
    `diagnostics`.
    """
    session = Session()
    try:
        session.set_flags(*flags)
    except ValueError as error:
        diagnostics.append(str(error))
        return None
    run = Run(session, diagnostics)
    if stop_after:
        run.set_phase("To", stop_after)
    if not run.parse(source) or not run.invocation.execute():
        return None
    return b"" if stop_after else run.image()


class Run:
    """One invocation of IREE's compiler, its errors collected in `diagnostics`."""

    def __init__(self, session: Any, diagnostics: list[str]) -> None:
        self.session = session
        self.invocation = session.invocation()
        handle: Any = self.invocation._inv_p
        self.handle = ctypes.c_void_p(handle)

        def collect(severity: int, message: int, size: int, _: Any) -> None:
            if severity == ERROR:
                diagnostics.append(ctypes.string_at(message, size).decode(errors="replace"))

        self.callback = CALLBACK(collect)  # alive as long as it can be called
        enable = ctypes_dl._dylib.ireeCompilerInvocationEnableCallbackDiagnostics
        enable(self.handle, 0, self.callback, None)

    def set_phase(self, which: str, phase: str) -> None:
        """Start ("From") or stop ("To") at one of STAGES."""
        name = f"ireeCompilerInvocationSetCompile{which}Phase"
        getattr(ctypes_dl._dylib, name)(self.handle, phase.encode())

    def parse(self, source: bytes) -> bool:
        """Read MLIR; going on after False would crash."""
        buffer = Source.wrap_buffer(self.session, source + b"\0", buffer_name="gradopt")
        return self.invocation.parse_source(buffer)

    def image(self) -> bytes:
        output = Output.open_membuffer()
        self.invocation.output_vm_bytecode(output)
        return bytes(output.map_memory())


# --- in parts, with something done to the module in between ---------------------------------------

Answer = tuple[dict[str, Any], bytes]


def attempt_in_parts(
    route: Callable[[Any, list["Run"]], Answer | None], flags: list[str]
) -> Answer | None:
    """The answer of a route that opens invocations in a session; None where it fails: what is wrong
    with the module is then said by the plain route.
    """
    session = Session()
    runs: list[Run] = []
    try:
        session.set_flags(*flags)
        return route(session, runs)
    except Exception as error:  # an IREE of another form: its own way is always there
        sys.stderr.write(f"not compiled in parts: {type(error).__name__}: {error}\n")
        return None
    finally:  # in this order: each refers to those after it
        for run in runs:
            run.invocation.close()
        for run in runs:
            run.invocation._retained_module_op = None
        gc.collect()
        session.close()


def opened(session: Any, runs: list["Run"], module: Any = None) -> "Run":
    """Another invocation in a session, of a module that an earlier one gave."""
    run = Run(session, [])
    runs.append(run)
    if module is not None:
        run.invocation.import_module(module)
    return run


def to_flow(
    session: Any, runs: list["Run"], source: bytes, dispatches: list[Any] | None
) -> "Run | None":
    """The invocation of a module up to the phase flow; None where it fails. `dispatches` gets what
    each dispatch computes.
    """
    run = opened(session, runs)
    run.set_phase("To", "flow" if dispatches is None else "dispatch-creation")
    if not run.parse(source) or not run.invocation.execute():
        return None
    if dispatches is None:
        return run
    module = run.invocation.export_module()
    dispatches += sites().number_dispatches(module)
    run = opened(session, runs, module)
    run.set_phase("From", "dispatch-creation")
    run.set_phase("To", "flow")
    return run if run.invocation.execute() else None


def with_commands(session: Any, runs: list["Run"], source: bytes) -> Answer | None:
    """The answer with `commands`, memory left to IREE."""
    dispatches: list[Any] = []
    run = to_flow(session, runs, source, dispatches)
    if run is None:
        return None
    run = opened(session, runs, run.invocation.export_module())
    run.set_phase("From", "flow")
    run.set_phase("To", "stream")
    if not run.invocation.execute():
        return None
    return finished(session, runs, run.invocation.export_module(), dispatches)


def finished(session: Any, runs: list["Run"], module: Any, dispatches: list[Any]) -> Answer | None:
    """The answer with `commands` for a module of the phase stream."""
    found = sites().commands(module, dispatches)
    run = opened(session, runs, module)
    run.set_phase("From", "stream")
    return ({"ok": True, "commands": found}, run.image()) if run.invocation.execute() else None


def planned(
    session: Any, runs: list["Run"], source: bytes, plan: str, with_sites: bool
) -> Answer | None:
    """The answer with memory decided on the way."""
    dispatches: list[Any] | None = [] if with_sites else None
    start = to_flow(session, runs, source, dispatches)
    if start is None or not start.invocation.execute_text_pass_pipeline(arena.UP_TO_ALLOCATION):
        return None
    module = start.invocation.export_module()
    own = own_slabs(session, runs, module)
    memory = arena.plan_module(module, lowering("packing"), lowering("command_order"), own)
    if plan == "report":
        return {"ok": True, "memory": memory}, b""
    if not module.verify():
        return None
    rest = opened(session, runs, module)
    if not rest.invocation.execute_text_pass_pipeline(arena.FROM_ALLOCATION):
        return None
    if dispatches is not None:
        found = finished(session, runs, rest.invocation.export_module(), dispatches)
        return found and (found[0] | {"memory": memory}, found[1])
    rest.set_phase("From", "stream")
    if not rest.invocation.execute():
        return None
    return {"ok": True, "memory": memory}, rest.image()


def own_slabs(session: Any, runs: list["Run"], module: Any) -> dict[str, int]:
    """The bytes that IREE itself needs for the temporaries of each public function: its packings,
    laid out in a copy.
    """
    run = opened(session, runs, module.clone())
    if not run.invocation.execute_text_pass_pipeline("util.func(iree-stream-layout-slices)"):
        return {}
    return arena.slab_sizes(run.invocation.export_module())


def load_beside(*parts: str) -> ModuleType:
    """A module by its file, found from this one's folder: gradopt itself is not imported."""
    path = pathlib.Path(__file__).parent.joinpath(*parts)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def lowering(name: str) -> ModuleType:
    """A module of gradopt's lowering."""
    return sys.modules.get(name) or load_beside("..", "lowering", f"{name}.py")


def sites() -> ModuleType:
    return sys.modules.get("compile_sites") or load_beside("compile_sites.py")


def failing_stage(source: bytes, flags: list[str]) -> str:
    """The first of IREE's compilation phases that fails."""
    for stage in STAGES:
        if attempt(source, flags, [], stop_after=stage) is None:
            return stage
    return STAGES[-1]


arena = load_beside("compile_arena.py")


def read_exactly(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data


def main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever IREE prints must not end up between the answers
    if sys.argv[1:]:
        _initializeGlobalCL("gradopt", *sys.argv[1:])
    try:
        while True:
            (size,) = struct.unpack("<I", read_exactly(sys.stdin.buffer, 4))
            request = json.loads(read_exactly(sys.stdin.buffer, size))
            source = read_exactly(sys.stdin.buffer, request["size"])
            answer, image = compile_module(
                source, request["flags"], request.get("plan", ""), request.get("sites", False)
            )
            header = json.dumps(answer | {"size": len(image)}).encode()
            answers.write(struct.pack("<I", len(header)) + header + image)
            answers.flush()
    except EOFError:
        pass


if __name__ == "__main__":
    main()
