# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Arrays of other libraries, taken without a copy where their memory permits: DLPack."""

import ctypes
from typing import Any

import numpy as np

from ..errors import ArgumentError
from .array import Array, made
from .buffers import ALIGNMENT, ELEMENT_TYPES, copy_to, imported, view_of
from .device import device, place


def from_dlpack(x: Any) -> Array:
    """An Array of any object with DLPack's protocol, which lies in host memory.

    It has the memory of `x` where that is contiguous and aligned to 64 bytes, so that what is
    written to `x` later is seen; a copy otherwise. A call that it is donated to copies it: the
    memory stays that of `x`. Raises ArgumentError for memory that the host cannot read, and for
    element types that gradopt has none of.
    """
    array = view_of(x)
    if array.dtype not in ELEMENT_TYPES:
        known = ", ".join(d.name for d in ELEMENT_TYPES)
        raise ArgumentError(f"expected an element type out of {known}, got {array.dtype}")
    home = device("local-task")
    if not array.size or not array.flags.c_contiguous or array.ctypes.data % ALIGNMENT:
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
