# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Arrays of other libraries, taken without a copy where their memory permits: DLPack."""

import ctypes
from typing import Any

import numpy as np

from ..errors import ArgumentError
from .array import Array, made
from .buffers import ALIGNMENT, ELEMENT_TYPES, copy_to, imported, view_of
from .device import device as hal_device
from .device import place
from .info import check_device


def from_dlpack(x: Any, *, device: Any = None, copy: bool | None = None) -> Array:
    """An Array of any object with DLPack's protocol, which lies in host memory.

    It has the memory of `x` where that is contiguous and aligned to 64 bytes, so that what is
    written to `x` later is seen; a copy otherwise. A call that it is donated to copies it: the
    memory stays that of `x`. With `copy` it is always a copy, with copy=False never. Raises
    ArgumentError for memory that the host cannot read, for element types that gradopt has none of,
    for a device that is none, and where copy=False cannot be.
    """
    check_device(device)
    array = view_of(x)
    if array.dtype not in ELEMENT_TYPES:
        known = ", ".join(d.name for d in ELEMENT_TYPES)
        raise ArgumentError(f"expected an element type out of {known}, got {array.dtype}")
    home = hal_device("local-task")
    fits = array.size and array.flags.c_contiguous and array.ctypes.data % ALIGNMENT == 0
    if not fits and copy is False:
        raise ArgumentError(
            f"from_dlpack expected memory that is contiguous and aligned to {ALIGNMENT} bytes for "
            "copy=False, got other; allow a copy"
        )
    if copy or not fits:
        return made(Array(copy_to(home, np.ascontiguousarray(array)), array.shape, array.dtype))
    buffer, view = imported(home.allocator, _writable(array))
    owner = (buffer, array)
    return made(Array(view, array.shape, array.dtype, None, place("local-task"), None, owner))


def _writable(array: np.ndarray) -> np.ndarray:
    """The same memory as an array that IREE takes; it writes to none of it."""
    if array.flags.writeable:
        return array
    memory = (ctypes.c_uint8 * array.nbytes).from_address(array.ctypes.data)
    return np.ctypeslib.as_array(memory).view(array.dtype).reshape(array.shape)
