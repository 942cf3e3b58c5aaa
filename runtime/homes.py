# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What memory a device's arrays have, and how the host gets at it: in place where the two share it
(`Home`), else by copies that the device makes from and to memory that both see (`Away`).

All that depends on which of the two it is stands here.
"""

import math
import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import iree.runtime as iree
import numpy as np

from ..deploy import Waiting
from ..errors import DeviceError
from . import buffers
from .buffers import BITS, DEVICE_MEMORY, ELEMENT_TYPES, HOST_MEMORY

DEVICE_USE = int(iree.BufferUsage.DEFAULT)
STAGING_USE = int(iree.BufferUsage.TRANSFER) | int(iree.BufferUsage.MAPPING_SCOPED)
WORD = 16
"""Bytes that memory comes in multiples of: GPUs without small stores write a byte by its word."""
SMALLEST = 1 << 12
KEPT_BYTES = 1 << 26
"""Bytes of the smallest staging buffer, and of all that are kept for the next copies."""


class Arena(NamedTuple):
    """Memory for the temporaries of a call."""

    size: int
    buffer: Any


class Arenas:
    """Arenas that no call has: of one function, or of several that use them in turns. There are as
    many as calls had one at the same time, and none that a larger one took the place of.
    """

    def __init__(self) -> None:
        self._free: list[Arena] = []
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._free)

    def take(self, size: int, home: "Home", name: str) -> Arena:
        """The smallest of at least `size` bytes, or a new one, in place of the largest, for the
        function `name`; DeviceError where there is no memory for it.
        """
        with self._lock:
            fits = [a for a in self._free if a.size >= size]
            found = min(fits, default=None, key=_size)
            gone = found or max(self._free, default=None, key=_size)
            self._free = [a for a in self._free if a is not gone]
        del gone
        try:
            return found or Arena(size, home.allocate_arena(size))
        except RuntimeError as error:
            raise DeviceError(
                f"'{name}' expected {size:,} bytes for its temporaries, which the device does not "
                "have; give it less at once, or compute values anew (memory_budget=, "
                f"go.checkpoint): {error}"
            ) from None

    def give(self, arena: Arena) -> None:
        with self._lock:
            self._free.append(arena)


def _size(arena: Arena) -> int:
    return arena.size


class Home:
    """Memory that host and device share: views of it are filled and read in place."""

    is_host = True

    def __init__(self, device: Any) -> None:
        self.device = device
        self.allocator = device.allocator
        self._arenas: weakref.ref[Arenas] | None = None

    def arenas(self) -> Arenas:
        """Those that functions share, as long as there is one that does."""
        found = self._arenas() if self._arenas else None
        if found is None:
            found = Arenas()
            self._arenas = weakref.ref(found)
        return found

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """A buffer view on new memory."""
        return buffers.allocate(self.allocator, shape, dtype)

    def allocate_arena(self, size: int) -> Any:
        """A buffer for temporaries, which only the device sees."""
        return buffers.allocate_arena(self.allocator, size)

    def new(self, array: np.ndarray) -> Any:
        """A buffer view on new memory with an array's elements."""
        return buffers.copy_to(self.device, array)

    def write(self, pairs: Iterable[tuple[Any, np.ndarray]]) -> None:
        """Write arrays' elements to the memory of buffer views."""
        for view, array in pairs:
            buffers.fill(view, array)

    def read(self, view: Any, dtype: np.dtype) -> np.ndarray:
        """The elements in a buffer view's memory: that memory itself, or a copy of it."""
        return buffers.contents(view, dtype)

    def copy(self, to: Any, of: Any) -> None:
        """Give a buffer view the elements of another one of its type."""
        size = view_bytes(of)
        if size:
            bytes_of = [v.get_buffer().map().asarray((size,), np.dtype(np.uint8)) for v in (to, of)]
            bytes_of[0][...] = bytes_of[1]


class Away(Home):
    """Memory of a device that the host does not read or write."""

    is_host = False

    def __init__(self, device: Any) -> None:
        super().__init__(device)
        self.staging = Staging(self.allocator)

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        buffer = self._buffer(math.prod(shape) * dtype.itemsize)
        return iree.HalBufferView(buffer, shape, ELEMENT_TYPES[dtype])

    def allocate_arena(self, size: int) -> Any:
        return self._buffer(size)

    def _buffer(self, size: int) -> Any:
        return self.allocator.allocate_buffer(
            memory_type=DEVICE_MEMORY, allowed_usage=DEVICE_USE, allocation_size=rounded(size)
        )

    def new(self, array: np.ndarray) -> Any:
        dtype = array.dtype if array.dtype.isnative else array.dtype.newbyteorder("=")
        view = self.allocate(array.shape, dtype)
        self.write([(view, array)])
        return view

    def write(self, pairs: Iterable[tuple[Any, np.ndarray]]) -> None:
        staged: list[Any] = []
        try:
            copies = []
            for view, array in pairs:
                if array.size:
                    buffer = self.staging.take(array.nbytes)
                    staged.append(buffer)
                    _put(buffer, array)
                    copies.append((buffer, view.get_buffer(), array.nbytes))
            self._run(copies)
        finally:
            self.staging.give(staged)

    def read(self, view: Any, dtype: np.dtype) -> np.ndarray:
        shape = tuple(view.shape)
        found = np.empty(shape, dtype)
        if found.nbytes:
            buffer = self.staging.take(found.nbytes)
            try:
                self._run([(view.get_buffer(), buffer, found.nbytes)])
                bits = BITS.get(dtype, dtype)
                found.view(bits)[...] = buffer.map().asarray(shape, bits)
            finally:
                self.staging.give([buffer])
        return found

    def copy(self, to: Any, of: Any) -> None:
        size = view_bytes(of)
        self._run([(of.get_buffer(), to.get_buffer(), size)] if size else [])

    def _run(self, copies: Sequence[tuple[Any, Any, int]]) -> None:
        """Have the device copy so many bytes each, from buffer to buffer, and wait for that."""
        if not copies:
            return
        commands = iree.HalCommandBuffer(self.device, begin=True)
        for source, target, size in copies:
            commands.copy(source, target, length=size)
        commands.end()
        semaphore = self.device.create_semaphore(0)
        done = iree.HalFence.create_at(semaphore, 1)
        # IREE 3.13 takes one command buffer here, and no list of them, whatever its text says.
        self.device.queue_execute(commands, iree.HalFence(0), done)
        with Waiting():
            done.wait()


class Staging:
    """Buffers that host and device both see, by which elements come and go; those that are free are
    used again.
    """

    def __init__(self, allocator: Any) -> None:
        self._allocator = allocator
        self._lock = threading.Lock()
        self._free: dict[int, list[Any]] = {}
        self._kept = 0

    def take(self, size: int) -> Any:
        """A buffer of at least so many bytes."""
        size = max(SMALLEST, 1 << (size - 1).bit_length())
        with self._lock:
            if found := self._free.get(size):
                self._kept -= size
                return found.pop()
        return self._allocator.allocate_buffer(
            memory_type=HOST_MEMORY, allowed_usage=STAGING_USE, allocation_size=size
        )

    def give(self, taken: Iterable[Any]) -> None:
        """Keep buffers for the next copies, as many as fit."""
        with self._lock:
            for buffer in taken:
                size = buffer.byte_length()
                if self._kept + size <= KEPT_BYTES:
                    self._kept += size
                    self._free.setdefault(size, []).append(buffer)


def rounded(size: int) -> int:
    """Bytes to allocate for a size."""
    return max(size + -size % WORD, WORD)


def view_bytes(view: Any) -> int:
    """The bytes of a buffer view's elements; its buffer may have more."""
    return int(view.byte_length)


def _put(buffer: Any, array: np.ndarray) -> None:
    """Write an array's elements to a staging buffer."""
    bits = array.view(np.uint16) if array.dtype in BITS else array
    buffer.map().asarray(array.shape, bits.dtype.newbyteorder("="))[...] = bits
