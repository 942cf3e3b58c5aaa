# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The process that runs IREE's compiler: `python compile_worker.py [process flags]`, talked to over
stdin and stdout.

A request is a JSON object {flags, size} with `size` bytes of MLIR behind it; an answer is {ok,
size, stage, diagnostics} with `size` bytes of VMFB. Each JSON object is preceded by its length in 4
bytes. IREE can crash or hang on some inputs; here it takes down only this process, which the parent
replaces. It imports nothing of gradopt, so that it starts fast.
"""

import ctypes
import json
import os
import struct
import sys
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


def compile_module(source: bytes, flags: list[str]) -> tuple[dict[str, Any], bytes]:
    """The answer to one request."""
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
    invocation = session.invocation()

    def collect(severity: int, message: int, size: int, _: Any) -> None:
        if severity == ERROR:
            diagnostics.append(ctypes.string_at(message, size).decode(errors="replace"))

    callback = CALLBACK(collect)
    handle: Any = invocation._inv_p
    handle = ctypes.c_void_p(handle)
    ctypes_dl._dylib.ireeCompilerInvocationEnableCallbackDiagnostics(handle, 0, callback, None)
    if stop_after:
        ctypes_dl._dylib.ireeCompilerInvocationSetCompileToPhase(handle, stop_after.encode())
    if not invocation.parse_source(
        Source.wrap_buffer(session, source + b"\0", buffer_name="gradopt")
    ):
        return None  # going on after this would crash
    if not invocation.execute():
        return None
    if stop_after:
        return b""
    output = Output.open_membuffer()
    invocation.output_vm_bytecode(output)
    return bytes(output.map_memory())


def failing_stage(source: bytes, flags: list[str]) -> str:
    """The first of IREE's compilation phases that fails."""
    for stage in STAGES:
        if attempt(source, flags, [], stop_after=stage) is None:
            return stage
    return STAGES[-1]


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
            answer, image = compile_module(source, request["flags"])
            header = json.dumps(answer | {"size": len(image)}).encode()
            answers.write(struct.pack("<I", len(header)) + header + image)
            answers.flush()
    except EOFError:
        pass


if __name__ == "__main__":
    main()
