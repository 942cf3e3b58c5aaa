# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""IREE's instance and devices, one of each a process, and the modules loaded there."""

import os
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import iree.runtime as iree
import numpy as np

from ..deploy import Waiting, open_device
from ..errors import ArgumentError, DeviceError, GradoptError
from ..lowering.marks import DISAGREE
from . import dispatch
from .buffers import borrow
from .homes import Away, Home
from .present import why_no_device

PLACES = {"local-task": "cpu", "local-sync": "cpu"}
"""The devices whose memory is the host's, by driver: those of one name can use each other's. All
others have memory of their own, and the name of their driver.
"""
_lock = threading.Lock()
_instance: Any = None
_devices: dict[str, Any] = {}
_homes: dict[str, Home] = {}
away: dict[str, Away] = {}
"""The devices in use whose memory the host does not read, by their name."""


def instance() -> Any:
    """The process's VM instance. IREE's type tables race when several are set up at once."""
    global _instance
    with _lock:
        if _instance is None:
            _instance = iree.VmInstance()
        return _instance


def device(driver: str) -> Any:
    """The process's device for a driver; DeviceError where there is none, ForkError in a child of a
    process that has devices.
    """
    dispatch.check_process()
    instance()
    with _lock:
        if driver not in _devices:
            try:
                _devices[driver] = open_device(driver)
            except (RuntimeError, ValueError) as error:
                reason = why_no_device(driver) or error
                raise DeviceError(f"driver '{driver}' has no device here: {reason}") from None
            dispatch.device_opened()
        return _devices[driver]


def home(driver: str) -> Home:
    """The memory of the process's device for a driver; errors as those of `device`."""
    dispatch.check_process()
    found = _homes.get(driver)
    if found is None:
        made = (Home if driver in PLACES else Away)(device(driver))
        with _lock:
            found = _homes.setdefault(driver, made)
            if isinstance(found, Away):
                away[place(driver)] = found
    return found


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def place(driver: str) -> str:
    """The name of the device that a driver's arrays live on."""
    return PLACES.get(driver, driver)


class Module:
    """A loaded VMFB: its functions by name, called with buffer views."""

    def __init__(self, image: bytes, driver: str) -> None:
        self.size = len(image)
        self.driver = driver
        self.home = home(driver)
        self.device = self.home.device
        self.allocator = self.home.allocator
        self._module = iree.VmModule.copy_buffer(instance(), image)
        hal = iree.create_hal_module(instance(), self.device)
        try:
            self.context = iree.VmContext(instance(), modules=[hal, self._module])
        except RuntimeError as error:
            if self.home.is_host:
                raise
            raise DeviceError(
                f"the device of driver '{driver}' cannot load the module, which may ask for more "
                f"than it can do; choose another target: {error}"
            ) from None
        self._is_async: dict[str, bool] = {}

    def function(self, name: str) -> Any:
        """The exported function, or None."""
        return self._module.lookup_function(name)

    def about(self, name: str) -> dict[str, str]:
        """What the module says about a function: its reflection entries."""
        found = self.function(name)
        return dict(found.reflection) if found is not None else {}

    def call(self, function: Any, arguments: list[Any], results: int) -> list[Any]:
        """Run a function to its end; buffer views in, buffer views out."""
        given = iree.VmVariantList(len(arguments) + 2)
        for argument in arguments:
            given.push_ref(argument)
        found = iree.VmVariantList(results)
        name = function.name
        if name not in self._is_async:
            self._is_async[name] = is_async(function)
        if self._is_async[name]:
            pending = dispatch.Pending(self.device, function.name)
            self.submit(function, given, found, pending)
            pending.wait()
        else:
            self.run_now(function, given, found)
        return [found.get_as_object(i, iree.HalBufferView) for i in range(results)]

    def run_now(self, function: Any, given: Any, found: Any) -> None:
        """Run a function to its end; lists of buffer views in and out."""
        try:
            with Waiting():
                self.context.invoke(function, given, found)
        except (RuntimeError, ValueError) as error:
            raise invocation_error(function, given, error) from None

    def submit(
        self,
        function: Any,
        given: Any,
        found: Any,
        pending: dispatch.Pending,
        after: Iterable[dispatch.Pending] = (),
        writes: bool = False,
    ) -> None:
        """Run a function of the asynchronous form, behind others (dispatch.submit)."""

        def run(fence: Any) -> None:
            given.push_ref(fence)
            given.push_ref(pending.fence)
            self.context.invoke(function, given, found)

        try:
            dispatch.submit(pending, after, writes, run)
        except GradoptError:
            raise
        except (RuntimeError, ValueError) as error:
            raise invocation_error(function, given, error) from None

    def run(
        self, name: str, arrays: Sequence[np.ndarray], dtypes: Sequence[np.dtype]
    ) -> list[np.ndarray]:
        """Call a function by name on NumPy arrays; `dtypes` are those of its results."""
        keep: list[Any] = []
        if self.home.is_host:
            views = [borrow(self.allocator, a, keep) for a in arrays]
        else:
            views = [self.home.new(a) for a in arrays]
        found = self.call(self.function(name), views, len(dtypes))
        return [self.home.read(v, d).copy() for v, d in zip(found, dtypes, strict=True)]


def is_async(function: Any) -> bool:
    """Whether a function takes fences and returns before it has run."""
    return dict(function.reflection).get("iree.abi.model") == "coarse-fences"


EMPTY = "resolved to an empty buffer range"
"""What IREE's Vulkan driver says where it refuses to run code on an array without elements. In code
for known extents there is none.
"""


def invocation_error(function: Any, given: Any, error: Exception) -> GradoptError:
    """What a call that failed at once is told; `given` is the list of its arguments."""
    if EMPTY in str(error):
        return ArgumentError(
            f"'{function.name}' expected arrays with elements where extents are unknown until the "
            "call, which is all that Vulkan runs, got one without; compile it for these extents"
        )
    if DISAGREE not in str(error):
        return dispatch.failed(function.name, error)
    shapes = []
    for i in range(given.size):
        try:
            view = given.get_as_object(i, iree.HalBufferView)
        except (TypeError, ValueError, RuntimeError):  # an arena or a fence
            view = None
        if view is None:
            break
        shapes.append(tuple(view.shape))
    return disagreement(str(error), shapes)


def disagreement(message: str, shapes: Sequence[tuple[int, ...]]) -> ArgumentError:
    """The error of a call whose check of unknown extents failed with a message."""
    where = message.partition(DISAGREE)[2].partition(";")[0].strip()
    return ArgumentError(
        f"expected extents that are unknown until the call to agree at {where}, got arguments of "
        f"shapes {', '.join(map(str, shapes))}"
    )
