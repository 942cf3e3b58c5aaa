# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""IREE's instance and devices, one of each a process, and arrays that live on a device."""

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import iree.runtime as iree
import numpy as np

from ..dialect.types import bfloat16
from ..errors import ArgumentError, DonationError
from ..lowering.marks import DISAGREE
from ..lowering.target import target as find_target

HOST_MEMORY = int(iree.MemoryType.HOST_LOCAL) | int(iree.MemoryType.DEVICE_VISIBLE)
DEVICE_MEMORY = int(iree.MemoryType.DEVICE_LOCAL)
ALIGNMENT = 64
ANY_USE = int(iree.BufferUsage.DEFAULT) | int(iree.BufferUsage.MAPPING)

ELEMENT_TYPES = {
    np.dtype("float64"): iree.HalElementType.FLOAT_64,
    np.dtype("float32"): iree.HalElementType.FLOAT_32,
    np.dtype("float16"): iree.HalElementType.FLOAT_16,
    bfloat16: iree.HalElementType.BFLOAT_16,
    np.dtype("int64"): iree.HalElementType.SINT_64,
    np.dtype("int32"): iree.HalElementType.SINT_32,
    np.dtype("int16"): iree.HalElementType.SINT_16,
    np.dtype("int8"): iree.HalElementType.SINT_8,
    # Modules take unsigned integers as signless ones.
    np.dtype("uint32"): iree.HalElementType.SINT_32,
    np.dtype("uint8"): iree.HalElementType.SINT_8,
    np.dtype("bool"): iree.HalElementType.BOOL_8,
}

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
    """The process's device for a driver."""
    instance()
    with _lock:
        if driver not in _devices:
            _devices[driver] = iree.get_device(driver)
        return _devices[driver]


class Module:
    """A loaded VMFB: its functions by name, called with buffer views."""

    def __init__(self, image: bytes, driver: str) -> None:
        self.size = len(image)
        self.device = device(driver)
        self._module = iree.VmModule.copy_buffer(instance(), image)
        hal = iree.create_hal_module(instance(), self.device)
        self._context = iree.VmContext(instance(), modules=[hal, self._module])

    def function(self, name: str) -> Any:
        """The exported function, or None."""
        return self._module.lookup_function(name)

    def about(self, name: str) -> dict[str, str]:
        """What the module says about a function: its reflection entries."""
        found = self.function(name)
        return dict(found.reflection) if found is not None else {}

    def call(self, function: Any, arguments: list[Any], results: int) -> list[Any]:
        """Run a function to its end; buffer views in, buffer views out."""
        given = iree.VmVariantList(len(arguments))
        for argument in arguments:
            given.push_ref(argument)
        found = iree.VmVariantList(results)
        try:
            self._context.invoke(function, given, found)
        except RuntimeError as error:
            if DISAGREE not in str(error):
                raise
            raise disagreement(str(error), [tuple(a.shape) for a in arguments]) from None
        return [found.get_as_object(i, iree.HalBufferView) for i in range(results)]

    def run(
        self, name: str, arrays: Sequence[np.ndarray], dtypes: Sequence[np.dtype]
    ) -> list["Array"]:
        """Call a function by name on NumPy arrays; `dtypes` are those of its results."""
        keep: list[Any] = []
        views = [borrow(self.device.allocator, a, keep) for a in arrays]
        found = self.call(self.function(name), views, len(dtypes))
        return [Array(v, tuple(v.shape), d) for v, d in zip(found, dtypes, strict=True)]


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
        self, view: Any, shape: tuple[int, ...], dtype: np.dtype, lease: "Lease | None"
    ) -> None:
        bits = np.dtype(np.uint16) if dtype == bfloat16 else dtype
        self._lease = lease
        self._buffer = view.get_buffer()
        self._mapped = self._buffer.map().asarray(shape, bits)
        self.__array_interface__ = self._mapped.__array_interface__


def disagreement(message: str, shapes: Sequence[tuple[int, ...]]) -> ArgumentError:
    """The error of a call whose check of unknown extents failed with a message."""
    place = message.partition(DISAGREE)[2].partition(";")[0].strip()
    return ArgumentError(
        f"expected extents that are unknown until the call to agree at {place}, got arguments of "
        f"shapes {', '.join(map(str, shapes))}"
    )


def _nothing() -> None:
    return None


class Array(np.lib.mixins.NDArrayOperatorsMixin):
    """An array on a device. NumPy reads it without a copy where the device shares the host's
    memory.

    Arithmetic on it gives NumPy arrays. An array that was donated to a call can no longer be used.
    """

    __array_priority__ = 100

    def __init__(
        self, view: Any, shape: tuple[int, ...], dtype: np.dtype, lease: Lease | None = None
    ) -> None:
        self._view = view
        self._lease = lease  # the memory's, if it goes back to a pool
        self._host: Callable[[], _HostMemory | None] = _nothing  # weakly, what NumPy reads it by
        self.shape = shape
        self.dtype = dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

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
            return Donation(self, view, lease, self._host() is None)

    def is_shared(self) -> bool:
        """True if NumPy arrays or a pool have the memory, too."""
        return self._host() is not None or self._lease is not None

    def is_deleted(self) -> bool:
        """True once the array was donated."""
        return self._view is None

    def numpy(self) -> np.ndarray:
        """The elements as a read-only NumPy array, which shares the memory and keeps it alive."""
        with _lock:
            view = self.buffer_view()
            host = self._host()
            if host is None:
                host = _HostMemory(view, self.shape, self.dtype, self._lease)
                self._host = weakref.ref(host)
        array = np.asarray(host)
        array.setflags(write=False)
        return array.view(self.dtype)

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


def borrow(allocator: Any, array: np.ndarray, keep: list[Any]) -> Any:
    """A buffer view on a NumPy array's own memory; on a copy where IREE cannot take it as it is.

    IREE does not keep the memory alive: what has to live as long as the view is used is appended to
    `keep`. Its code assumes memory aligned to 64 bytes, and crashes on other.
    """
    if not can_borrow(array):
        return copy_in(allocator, array)
    buffer = allocator.import_host_allocation(
        _raw(array), memory_type=HOST_MEMORY, allowed_usage=ANY_USE
    )
    keep.append(buffer)
    return iree.HalBufferView(buffer, array.shape, ELEMENT_TYPES[array.dtype])


def can_borrow(array: np.ndarray) -> bool:
    """Whether IREE can take an array's memory as it is."""
    flags = array.flags
    return (
        flags.c_contiguous
        and flags.writeable
        and array.ctypes.data % ALIGNMENT == 0
        and array.dtype.isnative
    )


def copy_in(allocator: Any, array: np.ndarray) -> Any:
    """A buffer view on device memory of its own, with the array's contents."""
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    view = allocate(allocator, array.shape, array.dtype)
    fill(view, array)
    return view


def fill(view: Any, array: np.ndarray) -> None:
    """Write an array's elements to a buffer view's memory."""
    if array.size:
        bits = _raw(array)
        view.get_buffer().map().asarray(array.shape, bits.dtype.newbyteorder("="))[...] = bits


def contents(view: Any, dtype: np.dtype) -> np.ndarray:
    """The elements in a buffer view's memory, without a copy."""
    bits = np.dtype(np.uint16) if dtype == bfloat16 else dtype
    return view.get_buffer().map().asarray(tuple(view.shape), bits).view(dtype)


def allocate(allocator: Any, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """A buffer view on new memory."""
    size = int(np.prod(shape)) * dtype.itemsize
    buffer = allocator.allocate_buffer(
        memory_type=HOST_MEMORY, allowed_usage=ANY_USE, allocation_size=size
    )
    return iree.HalBufferView(buffer, shape, ELEMENT_TYPES[dtype])


def allocate_arena(allocator: Any, size: int) -> Any:
    """A buffer for temporaries, which only the device sees."""
    return allocator.allocate_buffer(
        memory_type=DEVICE_MEMORY, allowed_usage=ANY_USE, allocation_size=max(size, ALIGNMENT)
    )


def _raw(array: np.ndarray) -> np.ndarray:
    """The array as IREE's Python layer can take it: bfloat16 as its bits."""
    return array.view(np.uint16) if array.dtype == bfloat16 else array


def device_put(array: Any, target: str = "cpu") -> Array:
    """A copy of an array on the target's device."""
    host = np.asarray(array)
    return Array(
        copy_in(device(find_target(target).driver).allocator, host), host.shape, host.dtype
    )
