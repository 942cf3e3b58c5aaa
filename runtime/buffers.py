# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""HAL buffers: allocated, filled, read, and made of NumPy's memory without a copy."""

import ctypes
import math
import weakref
from typing import Any

import iree.runtime as iree
import numpy as np

from ..dialect.types import bfloat16
from ..errors import ArgumentError

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
    np.dtype("uint64"): iree.HalElementType.SINT_64,
    np.dtype("uint32"): iree.HalElementType.SINT_32,
    np.dtype("uint16"): iree.HalElementType.SINT_16,
    np.dtype("uint8"): iree.HalElementType.SINT_8,
    np.dtype("bool"): iree.HalElementType.BOOL_8,
}
BITS = {bfloat16: np.dtype(np.uint16)}
"""Element types that NumPy's buffer protocol does not know, and what it takes them for."""


def borrow(allocator: Any, array: np.ndarray, keep: list[Any]) -> Any:
    """A buffer view on a NumPy array's own memory; on a copy where IREE cannot take it as it is.

    IREE does not keep the memory alive: what has to live as long as the view is used is appended to
    `keep`. Its code assumes memory aligned to 64 bytes, and crashes on other.
    """
    if not can_borrow(array):
        return copy_in(allocator, array)
    buffer, view = imported(allocator, array)
    keep.append(buffer)
    return view


def imported(allocator: Any, array: np.ndarray) -> tuple[Any, Any]:
    """The buffer and view on an array's own memory. The buffer keeps the array alive, the view does
    not.
    """
    buffer = allocator.import_host_allocation(
        _raw(array), memory_type=HOST_MEMORY, allowed_usage=ANY_USE
    )
    return buffer, iree.HalBufferView(buffer, array.shape, ELEMENT_TYPES[array.dtype])


def can_borrow(array: np.ndarray) -> bool:
    """Whether IREE can take an array's memory as it is."""
    flags = array.flags
    return flags.carray and array.dtype.isnative and address(array) % ALIGNMENT == 0


def address(array: np.ndarray) -> int:
    """Where a writable contiguous array lies; as `array.ctypes.data`, and four times as fast."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array))  # type: ignore[arg-type]
    except (TypeError, ValueError):  # NumPy has no format for the element type, or it is empty
        return array.ctypes.data


class Import:
    """A NumPy array whose memory a buffer view stands for, as long as somebody else has the
    array.
    """

    __slots__ = ("address", "array", "view")

    def __init__(self, array: np.ndarray, view: Any) -> None:
        self.array = weakref.ref(array)
        self.address = address(array)
        self.view = view

    def is_of(self, array: np.ndarray) -> bool:
        """Whether the view is on this very array, which still is where it was."""
        return self.array() is array and array.flags.carray and address(array) == self.address


def copy_in(allocator: Any, array: np.ndarray) -> Any:
    """A buffer view on device memory of its own, with the array's contents."""
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    view = allocate(allocator, array.shape, array.dtype)
    fill(view, array)
    return view


def copy_to(device: Any, array: np.ndarray) -> Any:
    """The same, on the allocator of a device; fast for what is contiguous."""
    if not (array.flags.c_contiguous and array.dtype.isnative):
        return copy_in(device.allocator, array)
    return device.allocator.allocate_buffer_copy(
        memory_type=HOST_MEMORY,
        allowed_usage=ANY_USE,
        device=device,
        buffer=_raw(array),
        element_type=ELEMENT_TYPES[array.dtype],
    )


def fill(view: Any, array: np.ndarray) -> None:
    """Write an array's elements to a buffer view's memory."""
    if array.size:
        bits = _raw(array)
        view.get_buffer().map().asarray(array.shape, bits.dtype.newbyteorder("="))[...] = bits


def contents(view: Any, dtype: np.dtype) -> np.ndarray:
    """The elements in a buffer view's memory, without a copy."""
    bits = BITS.get(dtype, dtype)
    return view.get_buffer().map().asarray(tuple(view.shape), bits).view(dtype)


def allocate(allocator: Any, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """A buffer view on new memory."""
    buffer = allocator.allocate_buffer(
        memory_type=HOST_MEMORY,
        allowed_usage=ANY_USE,
        allocation_size=math.prod(shape) * dtype.itemsize,
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


def from_other(x: Any) -> Any:
    """What NumPy makes an array of: `x`, or for a type that has DLPack's protocol alone, a view of
    its memory.
    """
    if hasattr(x, "__array__") or not hasattr(x, "__dlpack__"):
        return x
    return view_of(x)


def view_of(x: Any) -> np.ndarray:
    """A NumPy view of what has DLPack's protocol; ArgumentError where that cannot be."""
    try:
        return np.from_dlpack(x)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise ArgumentError(
            f"expected an array that the host can read through DLPack, got {type(x).__name__}: "
            f"{error}"
        ) from None
