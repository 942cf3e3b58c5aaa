# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""IREE's instance and devices, one of each a process, and arrays that live on a device."""

import math
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import iree.runtime as iree
import numpy as np

from ..errors import ArgumentError, DonationError, GradoptError
from ..lowering.marks import DISAGREE
from ..lowering.target import target as find_target
from . import dispatch
from .buffers import ALIGNMENT as ALIGNMENT
from .buffers import BITS, borrow, contents, copy_in, fill
from .buffers import allocate as allocate

PLACES = {"local-task": "cpu", "local-sync": "cpu"}
"""The devices that arrays live on, by driver: those of one name can use each other's memory."""

_lock = threading.Lock()
_instance: Any = None
_devices: dict[str, Any] = {}


def instance() -> Any:
    """The process's VM instance. IREE's type tables race when several are set up at once."""
    global _instance
    with _lock:
        if _instance is None:
            _instance = iree.VmInstance()
        return _instance


def device(driver: str) -> Any:
    """The process's device for a driver; ForkError in a child of a process that has devices."""
    dispatch.check_process()
    instance()
    with _lock:
        if driver not in _devices:
            _devices[driver] = iree.get_device(driver)
            dispatch.device_opened()
        return _devices[driver]


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
        self.device = device(driver)
        self.allocator = self.device.allocator
        self._module = iree.VmModule.copy_buffer(instance(), image)
        hal = iree.create_hal_module(instance(), self.device)
        self.context = iree.VmContext(instance(), modules=[hal, self._module])
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
            self.context.invoke(function, given, found)
        except RuntimeError as error:
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
        except RuntimeError as error:
            raise invocation_error(function, given, error) from None

    def run(
        self, name: str, arrays: Sequence[np.ndarray], dtypes: Sequence[np.dtype]
    ) -> list["Array"]:
        """Call a function by name on NumPy arrays; `dtypes` are those of its results."""
        keep: list[Any] = []
        views = [borrow(self.allocator, a, keep) for a in arrays]
        found = self.call(self.function(name), views, len(dtypes))
        on = place(self.driver)
        return [Array(v, tuple(v.shape), d, None, on) for v, d in zip(found, dtypes, strict=True)]


def is_async(function: Any) -> bool:
    """Whether a function takes fences and returns before it has run."""
    return dict(function.reflection).get("iree.abi.model") == "coarse-fences"


class Lease:
    """Memory lent out of a pool; it goes back when nothing refers to the lease any more."""

    __slots__ = ("pool", "view")

    def __init__(self, view: Any, pool: list[Any]) -> None:
        self.view = view
        self.pool = pool

    def __del__(self) -> None:
        self.pool.append(self.view)


class _HostMemory:
    """A buffer's memory as NumPy takes it, which holds the buffer, and its lease if it has one.

    IREE ties its mapping to the one NumPy array that it gives out, but NumPy's views of that array
    look through it to the memory, and outlive it. All views of an array made from this have it as
    their base.
    """

    def __init__(
        self, view: Any, shape: tuple[int, ...], dtype: np.dtype, holds: tuple[Any, ...]
    ) -> None:
        self._holds = holds
        self._buffer = view.get_buffer()
        self._mapped = self._buffer.map().asarray(shape, BITS.get(dtype, dtype))
        self.__array_interface__ = self._mapped.__array_interface__


def invocation_error(function: Any, given: Any, error: RuntimeError) -> GradoptError:
    """What a call that failed at once is told; `given` is the list of its arguments."""
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


def _nothing() -> None:
    return None


class Array(np.lib.mixins.NDArrayOperatorsMixin):
    """An array on a device. NumPy and DLPack read it without a copy where the device shares the
    host's memory; reading waits for the call that makes it.

    Arithmetic on it gives NumPy arrays. An array that was donated to a call can no longer be used.
    """

    __slots__ = (
        "__weakref__", "_address", "_host", "_lease", "_owner", "_pending", "_view",
        "device", "dtype", "shape",
    )  # fmt: skip
    __array_priority__ = 100

    def __init__(
        self,
        view: Any,
        shape: tuple[int, ...],
        dtype: np.dtype,
        lease: Lease | None = None,
        device: str = "cpu",
        pending: dispatch.Pending | None = None,
        owner: Any = None,
    ) -> None:
        self._view = view
        self._lease = lease  # the memory's, if it goes back to a pool
        self._host: Callable[[], _HostMemory | None] = _nothing  # weakly, what NumPy reads it by
        self._pending = pending  # the call that makes it, until that is known to have ended
        self._owner = owner  # of the memory, if that is not ours
        self._address: int | None = None
        self.shape = shape
        self.dtype = dtype
        self.device = device

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def buffer_view(self) -> Any:
        """The HAL buffer view; DonationError if the array was donated."""
        if self._view is None:
            raise DonationError(
                f"an array of shape {self.shape} was used after it had been donated to a call; "
                "use the call's result instead"
            )
        return self._view

    def give_up(self) -> "Donation":
        """Let go of the memory, for a donation; DonationError if somebody did before."""
        with _lock:
            view = self.buffer_view()
            self._view = None
            lease, self._lease = self._lease, None
            return Donation(self, view, lease, self._host() is None and self._owner is None)

    def is_shared(self) -> bool:
        """True if NumPy arrays, a pool or somebody else have the memory, too."""
        return self._host() is not None or self._lease is not None or self._owner is not None

    def assign(self, values: Any) -> None:
        """Write elements in place, for NumPy arrays made of this, too, when no call is under way
        that may read the old ones. The shape and dtype are the caller's to check.
        """
        dispatch.settle()
        fill(self.block_until_ready().buffer_view(), values)

    def take_over(self, result: "Array") -> None:
        """Be usable again after a donation, with the result that was written in place."""
        self._view, self._lease, self._pending = result._view, result._lease, result._pending

    def address(self) -> int:
        """Where the memory begins for the host."""
        if self._address is None:
            self._address = contents(self.buffer_view(), self.dtype).ctypes.data
        return self._address

    def is_deleted(self) -> bool:
        """True once the array was donated."""
        return self._view is None

    def is_ready(self) -> bool:
        """True once the call that makes it has ended."""
        return self._pending is None or self._pending.is_done()

    def block_until_ready(self) -> "Array":
        """The array, when the call that makes it has ended; DeviceError if that failed."""
        if self._pending is not None:
            self._pending.wait()
            self._pending = None
        return self

    def _memory(self) -> np.ndarray:
        """The elements in place, when they are there."""
        self.block_until_ready()
        with _lock:
            view = self.buffer_view()
            host = self._host()
            if host is None:
                host = _HostMemory(view, self.shape, self.dtype, (self._lease, self._owner))
                self._host = weakref.ref(host)
        return np.asarray(host).view(self.dtype)

    def numpy(self) -> np.ndarray:
        """The elements as a read-only NumPy array, which shares the memory and keeps it alive."""
        array = self._memory()
        array.setflags(write=False)
        return array

    def __dlpack_device__(self) -> tuple[int, int]:
        return np.empty(0).__dlpack_device__()

    def __dlpack__(self, *, max_version: Any = None, **options: Any) -> Any:
        """The elements for another library, without a copy, read-only where it can be told so.
        BufferError for bfloat16, which NumPy cannot pass on.
        """
        array = self._memory()
        if max_version is None:  # an old protocol, which knows nothing of read-only memory
            return array.__dlpack__(**options)
        array.setflags(write=False)
        return array.__dlpack__(max_version=max_version, **options)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self.numpy()
        if dtype is not None and np.dtype(dtype) != array.dtype:
            return array.astype(dtype)
        return array.copy() if copy else array

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if any(isinstance(x, Array) for x in options.get("out") or ()):
            raise TypeError("an Array cannot be written to; leave `out` away and take the result")
        arrays = [x.numpy() if isinstance(x, Array) else x for x in inputs]
        return getattr(ufunc, method)(*arrays, **options)

    def __reduce__(self) -> Any:
        """Copies and pickles have memory of their own."""
        return device_put, (self.numpy(),)

    def __getitem__(self, key: Any) -> Any:
        return self.numpy()[key]

    def __len__(self) -> int:
        return len(self.numpy())

    def item(self) -> Any:
        """The only element as a Python number."""
        return self.numpy().item()

    def tolist(self) -> Any:
        return self.numpy().tolist()

    def astype(self, dtype: Any) -> np.ndarray:
        return self.numpy().astype(dtype)

    def __float__(self) -> float:
        return float(self.numpy())

    def __int__(self) -> int:
        return int(self.numpy())

    def __bool__(self) -> bool:
        return bool(self.numpy())

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.ndim == 0 else format(str(self), spec)

    def __repr__(self) -> str:
        if self.is_deleted():
            return f"Array(donated, shape={self.shape}, dtype={self.dtype.name})"
        return f"Array({np.array2string(self.numpy(), separator=', ')}, dtype={self.dtype.name})"


class Donation:
    """What a donated array gave up: its memory, and whether that is free to be written to."""

    def __init__(self, array: Array, view: Any, lease: Lease | None, is_free: bool) -> None:
        self.array = array
        self.view = view
        self.lease = lease
        self.is_free = is_free

    def undo(self) -> None:
        """Give the memory back to the array."""
        self.array._view, self.array._lease = self.view, self.lease


IN_PLACE = "add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow"
for _name in IN_PLACE:  # `x += 1` gives the name a new array: this one cannot be written to
    setattr(Array, f"__i{_name}__", getattr(Array, f"__{_name}__"))


def device_put(array: Any, target: str = "cpu") -> Array:
    """A copy of an array on the target's device."""
    host = np.asarray(array)
    driver = find_target(target).driver
    view = copy_in(device(driver).allocator, host)
    return Array(view, host.shape, host.dtype, None, place(driver))
