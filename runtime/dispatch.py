# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Calls that were submitted and may not have ended: what they wait for, and what they keep alive.

A call waits for the calls that make its arguments. One that writes to memory which calls before it
may have in use (donated arrays, memory out of pools, the caller's) waits for all of them; so that
such memory can be handed on as soon as the call that had it is submitted. Each call has a semaphore
of its own: one that fails takes with it what waits for it, and nothing else.
"""

import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

import iree.runtime as iree

from ..deploy import Waiting
from ..dialect import trees
from ..errors import DeviceError, ForkError

LIMIT = 8
"""How many calls may be under way. Results and arguments of each need memory; more overlap nothing
further.
"""


class Pending:
    """The end of a call that was submitted."""

    __slots__ = ("_has_succeeded", "_semaphore", "fence", "keep", "name")

    def __init__(self, device: Any, name: str) -> None:
        self._semaphore = device.create_semaphore(0)
        self.fence = iree.HalFence.create_at(self._semaphore, 1)
        self.name = name
        self.keep: Any = None  # what must live as long as the call runs
        self._has_succeeded = False  # known from a wait, which need not be repeated

    def is_done(self) -> bool:
        """True once the call has ended, be it with a failure."""
        try:
            if self._semaphore.query() < 1:
                return False
        except RuntimeError:
            pass
        self.keep = None
        return True

    def wait(self) -> None:
        """Wait for the end; DeviceError if the call failed."""
        if self._has_succeeded:
            return
        check_process()
        try:
            with Waiting():
                self.fence.wait()
            self._has_succeeded = True
        except RuntimeError as error:
            raise failed(self.name, error) from None
        finally:
            self.keep = None
            _forget()

    def give_up(self) -> None:
        """The call could not be submitted: whoever waits for it waits for nothing."""
        self._semaphore.signal(1)


def failed(name: str, error: Exception) -> DeviceError:
    """The error of a call that failed on its device."""
    return DeviceError(
        f"'{name}' failed while it ran, after its arguments had been accepted: {error}"
    )


_lock = threading.Lock()
_calls: list[Pending] = []
is_forked = False
_nothing = iree.HalFence(0)


def submit(
    pending: Pending, after: Iterable[Pending], writes: bool, run: Callable[[Any], Any]
) -> Any:
    """Submit a call: `run` is given the fence to wait on. `after` are the calls that make its
    arguments; a call that writes waits for all that are under way.
    """
    global _calls
    check_process()
    with _lock:
        before, _calls = _calls, [c for c in _calls if not c.is_done()]
        waits = {*after, *_calls} if writes else set(after)
        oldest = _calls[0] if len(_calls) >= LIMIT else None
        _calls.append(pending)
    del before  # and what these calls kept alive, outside the lock
    if oldest is not None:
        _wait_quietly(oldest)
    try:
        return run(iree.HalFence.join([c.fence for c in waits]) if waits else _nothing)
    except BaseException:
        for call in waits:  # those that wait for this call have left them to it
            _wait_quietly(call)
        pending.give_up()
        raise


def _forget() -> None:
    """Let go of what calls that have ended kept alive."""
    global _calls
    with _lock:
        _calls = [c for c in _calls if not c.is_done()]


def settle() -> None:
    """Wait until no call is under way; failures are left to those who want the results."""
    check_process()
    for call in list(_calls):
        _wait_quietly(call)


def _wait_quietly(call: Pending) -> None:
    with contextlib.suppress(DeviceError):
        call.wait()


def block_until_ready(tree: Any) -> Any:
    """Wait for all arrays of a tree, and return it; DeviceError if a call that makes one failed.
    Leaves of other kinds are ready.
    """
    for leaf in trees.leaves(tree):
        if (wait := getattr(leaf, "block_until_ready", None)) is not None:
            wait()
    return tree


# --- processes ------------------------------------------------------------------------------------


_has_devices = False


def device_opened() -> None:
    """Note that a fork would leave threads behind."""
    global _has_devices
    _has_devices = True


def check_process() -> None:
    """ForkError in a process that was forked while a device was open: its threads are not here, and
    a call would hang.
    """
    if is_forked:
        raise ForkError(
            "this process was forked from one that had called compiled functions, whose threads "
            "are not here; start processes by multiprocessing's 'spawn' or 'forkserver' method, or "
            "fork before the first call"
        )


def _after_fork() -> None:
    global is_forked, _lock
    _lock = threading.Lock()
    is_forked = is_forked or _has_devices


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@atexit.register
def _finish() -> None:
    """No call is under way when the interpreter takes its memory apart."""
    if not is_forked:
        settle()
