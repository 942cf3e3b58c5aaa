# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Processes that do tasks side by side, and are replaced when a task ends them or does not end."""

import collections
import contextlib
import dataclasses
import multiprocessing
import multiprocessing.connection
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any


@dataclasses.dataclass(frozen=True)
class Lost:
    """What came of a task that gave no result: its process ended or was ended, or it raised."""

    reason: str


@dataclasses.dataclass
class _Member:
    """A process, and the task that it is at: its key, and when it has to have ended."""

    process: Any
    pipe: Any
    key: Any = None
    until: float = 0.0

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


class Crew:
    """Up to `jobs` processes. They are started, not forked, as devices and threads do not survive a
    fork, and call `start(*arguments)` first.
    """

    def __init__(self, jobs: int, start: Callable[..., Any], *arguments: Any) -> None:
        self._jobs = jobs
        self._start = start, arguments
        self._context = multiprocessing.get_context("spawn")
        self._idle: list[_Member] = []
        self._busy: list[_Member] = []

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *exception: Any) -> None:
        for member in (*self._idle, *self._busy):
            member.end()
        self._idle, self._busy = [], []

    def run(
        self,
        tasks: Iterable[tuple[Any, Callable[..., Any], tuple[Any, ...]]],
        limit: float | None = None,
        deadline: float | None = None,
    ) -> Iterator[tuple[Any, Any]]:
        """The key and the result of each task (key, function, its arguments), in the order in which
        they end, or Lost: for a task that takes longer than `limit` seconds, or is not done at
        `deadline`, by time.monotonic(). Tasks that are not begun by then are left out.
        """
        waiting = collections.deque(tasks)
        while waiting or self._busy:
            late = deadline is not None and time.monotonic() > deadline
            if late:
                waiting.clear()
            while waiting and len(self._busy) < self._jobs:
                self._give(*waiting.popleft(), limit, deadline)
            ends = min((m.until for m in self._busy), default=0.0)
            patience = None if ends == float("inf") else max(ends - time.monotonic(), 0)
            ready = multiprocessing.connection.wait([m.pipe for m in self._busy], patience)
            for member in [m for m in self._busy if m.pipe in ready]:
                yield member.key, self._take(member)
            for member in [m for m in self._busy if m.until <= time.monotonic()]:
                self._busy.remove(member)
                member.end()
                yield member.key, Lost("no result in time")

    def _give(
        self,
        key: Any,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        limit: float | None,
        deadline: float | None,
    ) -> None:
        member = self._idle.pop() if self._idle else self._new()
        member.key = key
        ends = [time.monotonic() + limit] if limit is not None else []
        member.until = min([*ends, *([deadline] if deadline is not None else [])], default=FOR_EVER)
        self._busy.append(member)
        with contextlib.suppress(OSError):  # it has ended: that is seen when its answer is read
            member.pipe.send((function, arguments))

    def _new(self) -> _Member:
        here, there = self._context.Pipe()
        process = self._context.Process(target=_work, args=(there, *self._start), daemon=True)
        process.start()
        there.close()
        return _Member(process, here)

    def _take(self, member: _Member) -> Any:
        self._busy.remove(member)
        try:
            found = member.pipe.recv()
        except (EOFError, OSError):
            member.process.join()
            code = member.process.exitcode
            member.pipe.close()
            return Lost(f"the process that ran it ended (it crashed) with code {code}")
        self._idle.append(member)
        return found


FOR_EVER = float("inf")


def _work(pipe: Any, start: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """What a process does: tasks, until nobody gives it another."""
    start(*arguments)
    while True:
        try:
            function, given = pipe.recv()
        except EOFError:
            return
        try:
            found = function(*given)
        except Exception as error:
            found = Lost(f"{error!r}\n{traceback.format_exc()}")
        pipe.send(found)
