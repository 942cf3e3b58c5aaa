# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Compiling with IREE, out of process: with a time limit, down the fallback ladder, and with errors
that can be read.
"""

import atexit
import contextlib
import hashlib
import json
import logging
import os
import pathlib
import re
import select
import struct
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Collection, Sequence
from typing import Any

from ..errors import CompileError
from ..lowering.target import Rung, Target
from .cache import cache_directory, disk_store
from .store import RUNGS

TIME_LIMIT = 60.0
"""Seconds for one attempt, and as many again for every megabyte of linalg (about 2,000 ops), where
GRADOPT_COMPILE_TIMEOUT does not say otherwise.
"""


NOT_THERE = re.compile(r"\b(ImportError|ModuleNotFoundError)\b")
"""How Python says that a package is missing or damaged."""

_log = logging.getLogger("gradopt.compile")
_memory_log = logging.getLogger("gradopt.memory")


class Worker:
    """A persistent compiler process; started when first needed, replaced when it dies or is
    killed.
    """

    def __init__(self, process_flags: tuple[str, ...]) -> None:
        script = pathlib.Path(__file__).with_name("compile_worker.py")
        self.command = [sys.executable, "-P", str(script), *process_flags]
        self.lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: Any = None
        self._owner = 0

    def compile(
        self,
        source: bytes,
        flags: tuple[str, ...],
        limit: float,
        plan: str = "",
        sites: bool = False,
    ) -> tuple[dict[str, Any], bytes]:
        """The worker's answer, with stage "timeout" or "crash" where there was none; `plan` and
        `sites` as in compile_worker.py.
        """
        with self.lock:
            is_fresh = self._process is None
            answer, image = self._attempt(source, flags, limit, plan, sites)
            if answer.get("stage") == "crash" and not is_fresh:
                # Somebody else may have ended it, or an earlier module spoilt it.
                answer, image = self._attempt(source, flags, limit, plan, sites)
            if answer.get("stage") in ("crash", "timeout") and plan == "build":
                answer, image = self._attempt(source, flags, limit, "", sites)  # IREE's own way
            return answer, image

    def _attempt(
        self, source: bytes, flags: tuple[str, ...], limit: float, plan: str, sites: bool
    ) -> tuple[dict[str, Any], bytes]:
        process = self._running()
        deadline = time.monotonic() + limit
        try:
            about = {"flags": flags, "size": len(source), "plan": plan, "sites": sites}
            request = json.dumps(about).encode()
            assert process.stdin is not None
            process.stdin.write(struct.pack("<I", len(request)) + request + source)
            process.stdin.flush()
            (size,) = struct.unpack("<I", self._read(process, 4, deadline))
            answer = json.loads(self._read(process, size, deadline))
            return answer, self._read(process, answer["size"], deadline)
        except TimeoutError:
            self._kill()
            return _failed("timeout", f"no result after {limit:g} s"), b""
        except (OSError, EOFError):
            code = process.wait()
            said = self._last_words()
            self._kill()
            return _failed("crash", f"the compiler ended with code {code}{said}"), b""

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._process is None or self._process.poll() is not None or self._owner != os.getpid():
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
            )
            self._owner = os.getpid()
        return self._process

    def _read(self, process: "subprocess.Popen[bytes]", size: int, deadline: float) -> bytes:
        assert process.stdout is not None
        answers = select.poll()
        answers.register(process.stdout, select.POLLIN)
        parts = []
        while size > 0:
            if not answers.poll(max(deadline - time.monotonic(), 0) * 1e3):
                raise TimeoutError
            part = os.read(process.stdout.fileno(), min(size, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _last_words(self) -> str:
        """The first lines of what the process wrote to stderr, which can be megabytes; of a Python
        error the last.
        """
        self._errors.seek(0)
        lines = self._errors.read(4096).decode(errors="replace").strip().splitlines()
        said = lines[-1:] if lines and lines[0].startswith("Traceback (") else lines[:2]
        return ": " + " | ".join(said)[:300] if said else ""

    def _kill(self) -> None:
        if self._process is not None and self._owner == os.getpid():
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout, self._errors):
                with contextlib.suppress(OSError):  # what was not written is not wanted any more
                    pipe.close()  # type: ignore[union-attr]
        self._process = None

    def close(self) -> None:
        """End the process."""
        with self.lock:
            self._kill()


def _failed(stage: str, diagnostic: str) -> dict[str, Any]:
    return {"ok": False, "stage": stage, "diagnostics": [diagnostic]}


_workers: dict[tuple[str, tuple[str, ...]], Worker] = {}
"""By lane and process flags: those of another lane than "" work side by side."""
_guard = threading.Lock()


def _worker(process_flags: tuple[str, ...], lane: str = "") -> Worker:
    with _guard:
        return _workers.setdefault((lane, process_flags), Worker(process_flags))


def _after_fork() -> None:
    """The workers are the parent's, as is whoever held a lock."""
    global _guard
    _guard = threading.Lock()
    _workers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def retire(lanes: Collection[str]) -> None:
    """End the processes of lanes that are not needed any more."""
    with _guard:
        ended = [_workers.pop(key) for key in list(_workers) if key[0] in lanes]
    for worker in ended:
        worker.close()


@atexit.register
def shutdown() -> None:
    """End all compiler processes; the next compilation starts them again."""
    for worker in list(_workers.values()):
        worker.close()


def compile_linalg(
    text: str,
    target: Target,
    name: str,
    locate: dict[str, list[str]] | None = None,
    plan: bool = False,
    lane: str = "",
    key: str = "",
) -> bytes:
    """The VMFB of a module, tried on each rung of the target's ladder until one succeeds. The rung
    is noted in the disk cache under `key`, that of the module's signature, and the next time is the
    first one tried.

    `locate` maps `file:line` to the ops that stand there, for the error message. With `plan`,
    memory is decided on the way (compile_arena.py), and the module's reflection says how. Warns
    when a lower rung had to be used. Raises CompileError with op, location, stage, flags and a
    saved reproducer when all fail. Compilations of different lanes run side by side, each in a
    process of its own, which `retire` ends.
    """
    plans = "build" if plan else ""
    return _down_the_ladder(text, target, name, locate or {}, plans, lane=lane, key=key)[1]


def compile_sites(
    text: str, target: Target, name: str, locate: dict[str, list[str]], plan: bool
) -> tuple[bytes, list[list[dict[str, Any]]]]:
    """As compile_linalg, with what each command of the module's command buffers comes from; none
    where that is not known.
    """
    answer, image = _down_the_ladder(text, target, name, locate, "build" if plan else "", True)
    return image, answer.get("commands", [])


def plan_linalg(text: str, target: Target, name: str) -> dict[str, Any]:
    """What would be decided about the memory of each public function of a module, by name; {} where
    the route that decides fails.
    """
    return _down_the_ladder(text, target, name, {}, "report")[0].get("memory", {})


def _down_the_ladder(
    text: str,
    target: Target,
    name: str,
    locate: dict[str, list[str]],
    plan: str,
    sites: bool = False,
    lane: str = "",
    key: str = "",
) -> tuple[dict[str, Any], bytes]:
    if not target.ladder:
        raise CompileError(
            f"expected a target that IREE compiles for, got '{target.name}', which runs in this "
            "process only"
        )
    source = text.encode()
    limit = float(os.environ.get("GRADOPT_COMPILE_TIMEOUT", TIME_LIMIT * (1 + len(source) / 1e6)))
    failures: list[tuple[Rung, dict[str, Any]]] = []
    for rung in _remembered(target.ladder, name, key):
        flags = (*target.flags, *rung.flags)
        begin = time.perf_counter()
        answer, image = _worker(rung.process_flags, lane).compile(source, flags, limit, plan, sites)
        seconds = time.perf_counter() - begin
        if answer["ok"]:
            _log.info("'%s' by IREE: rung '%s', %.2f s", name, rung.name, seconds)
            for function, sizes in answer.get("memory", {}).items():
                _memory_log.info("'%s': %s", function, _sizes(sizes))
            if failures:
                _warn(name, rung, failures[0][1])
                _remember(rung, failures, key)
            return answer, image
        _log.info("'%s' by IREE: rung '%s' failed, %.2f s", name, rung.name, seconds)
        if answer["stage"] == "crash" and NOT_THERE.search(answer["diagnostics"][0]):
            raise CompileError(
                f"'{name}' for target '{target.name}' expected IREE's compiler, but "
                f"{answer['diagnostics'][0]}; install the package iree-base-compiler, or use "
                "target 'reference', which needs no compiler"
            )
        failures.append((rung, answer))
    raise CompileError(_explain(text, target, name, failures, locate))


def _remembered(ladder: Sequence[Rung], name: str, key: str) -> Sequence[Rung]:
    """The ladder from the rung on that a module was compiled with before."""
    noted = disk_store().note(RUNGS, key) if key else ""
    at = next((i for i, rung in enumerate(ladder) if rung.name == noted), 0)
    if at:
        _log.info("'%s' by IREE: rung '%s' is known to be the first to do", name, noted)
    return ladder[at:]


def _remember(rung: Rung, failures: Sequence[tuple[Rung, dict[str, Any]]], key: str) -> None:
    """Note the rung, where those above it cannot do: one that was late or crashed may the next
    time.
    """
    if key and not any(answer["stage"] in ("timeout", "crash") for _, answer in failures):
        disk_store().keep_note(RUNGS, key, rung.name)


def _sizes(plan: dict[str, Any]) -> str:
    """The bytes that a memory plan of compile_arena.py is about."""
    return ", ".join(
        f"{n} {plan[n]}" for n in ("arena", "iree", "bound") if plan.get(n) is not None
    )


def _warn(name: str, rung: Rung, first: dict[str, Any]) -> None:
    reason = _headline(first)
    warnings.warn(
        f"IREE could not compile '{name}' with the default flags ({reason}); it was compiled with "
        f"rung '{rung.name}'",
        stacklevel=4,
    )


def _headline(answer: dict[str, Any]) -> str:
    """The first line of the first diagnostic, cut to a readable length."""
    first = next(iter(answer["diagnostics"]), "no diagnostic").strip().splitlines()
    return re.sub(r"\s+", " ", first[0] if first else "no diagnostic")[:240]


def _explain(
    text: str,
    target: Target,
    name: str,
    failures: list[tuple[Rung, dict[str, Any]]],
    locate: dict[str, list[str]],
) -> str:
    first = failures[0][1]
    headline = _headline(first)
    place = re.match(r"(.+?):(\d+):\d+: ", headline)
    where = f"{place[1]}:{place[2]}" if place else "unknown"
    ops = ", ".join(locate.get(where, [])) or "unknown"
    folder = _save_reproducer(text, target, failures)
    rungs = "\n".join(
        f"  {rung.name}: stage {answer['stage']}: {_headline(answer)}" for rung, answer in failures
    )
    return (
        f"IREE could not compile '{name}' for target '{target.name}'.\n"
        f"op: {ops}\nlocation: {where}\nstage: {first['stage']}\n"
        f"flags: {' '.join((*target.flags, *failures[0][0].flags))}\n"
        f"attempts:\n{rungs}\n"
        f"reproducer: {folder} (run.sh there repeats the first attempt)"
    )


def _save_reproducer(
    text: str, target: Target, failures: list[tuple[Rung, dict[str, Any]]]
) -> pathlib.Path:
    folder = cache_directory() / "reproducers" / hashlib.sha256(text.encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "module.mlir").write_text(text)
    rung = failures[0][0]
    command = " ".join(
        ["iree-compile module.mlir -o module.vmfb", *target.flags, *rung.flags, *rung.process_flags]
    )
    (folder / "run.sh").write_text(f'#!/bin/sh\ncd "$(dirname "$0")" && {command}\n')
    lines = [
        f"== {rung.name}: stage {answer['stage']}\n" + "\n".join(answer["diagnostics"])
        for rung, answer in failures
    ]
    (folder / "diagnostics.txt").write_text("\n".join(lines))
    return folder
