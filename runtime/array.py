# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Array: numbers in memory, of the host or a device, on which functions and operators run at once.

The storage of an array is one of: elements that NumPy reads (`_value`), a buffer view of a device
(`_view`), or an op that is still to run (`_source`). The first is never written to, so that arrays
may share it: an assignment to an array gives that array other storage. Only calls of compiled
functions write to buffers, those that are donated to them or given as `out`.

An array stays on the device that somebody asked for: by device_put, or as the result of a compiled
function. One that nobody put anywhere (go.array, eager results) may be copied to where it is needed
(`_is_anywhere`), as NumPy's arrays are.
"""

import math
import threading
import weakref
from collections.abc import Callable
from sys import getrefcount
from typing import Any

import numpy as np

from ..dialect import logic, standard
from ..dialect.creation import as_array, placed
from ..dialect.operators import IN_PLACE, Operators
from ..dialect.tensor import Tensor
from ..dialect.types import TensorSpec, as_dtype
from ..errors import ArgumentError, DonationError, OpError
from . import dispatch
from .buffers import BITS, contents, from_other
from .device import PLACES, away, home, place
from .homes import Home
from .info import check_device
from .present import check_present, find_target
from .state import state

_lock = threading.Lock()

HOST = "local-task"
"""The driver of the device whose memory is the host's."""
DLPACK_DEVICES = {"cpu": (1, 0), "cuda": (2, 0), "vulkan": (7, 0), "metal": (8, 0), "hip": (10, 0)}
DLPACK_OTHER = 12
"""Devices as DLPack numbers them, and the number of those it knows nothing of."""


class Lease:
    """Memory lent out of a pool; it goes back when nothing refers to the lease any more."""

    __slots__ = ("pool", "view")

    def __init__(self, view: Any, pool: list[Any]) -> None:
        self.view = view
        self.pool = pool

    def __del__(self) -> None:
        self.pool.append(self.view)


class Hold:
    """What arrays of one memory have in common, as long as there are several."""

    __slots__ = ("__weakref__",)


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


def _nothing() -> None:
    return None


readers: list[Callable[[], None]] = []
"""What runs the ops that are put off and read buffers; see lazy.py."""


def before_overwriting() -> None:
    """Called before memory is written to that others may have still to read."""
    for run in readers:
        run()


class Array(Operators):
    """An array of numbers. Functions of `gradopt` and operators on it run at once and give Arrays.

    NumPy and DLPack read it without a copy where its device shares the host's memory; of another
    device NumPy reads a copy, each time. Reading waits for the call that makes the array. It is
    changed by `x[key] = value` and `x += y`, unless a recorded graph needs it. An array that was
    donated to a call can no longer be used.
    """

    __slots__ = (
        "__weakref__", "_address", "_history", "_hold", "_host", "_is_anywhere", "_lease", "_owner",
        "_pending", "_source", "_value", "_view", "device", "dtype", "shape",
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
        self._hold: Callable[[], Any] = _nothing  # weakly, what snapshots of the memory hold
        self._address: int | None = None
        self._value: np.ndarray | None = None
        self._source: Any = None  # what computes it, where that is still to be done
        self._history: Any = None  # where it stands in a recorded graph
        self._is_anywhere = False
        self.shape = shape
        self.dtype = dtype
        self.device = device

    # --- type -------------------------------------------------------------------------------------

    @property
    def spec(self) -> TensorSpec:
        """Shape and element type."""
        return TensorSpec.known(self.shape, self.dtype)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    # --- storage ----------------------------------------------------------------------------------

    def _resolve(self) -> None:
        """Run what computes the array, if that is still to be done."""
        if self._source is not None:
            self._source.resolve(self)

    def buffer_view(self) -> Any:
        """The HAL buffer view; DonationError if the array was donated."""
        if self._view is None:
            self._resolve()
        if self._view is None:
            value = self._value
            if value is None:
                raise DonationError(
                    f"an array of shape {self.shape} was used after it had been donated to a call; "
                    "use the call's result instead"
                )
            self._view, self._value = home(HOST).new(value), None
        return self._view

    def home(self) -> Home:
        """The memory of the device that the array, whose elements are there, lives on."""
        return away.get(self.device) or home(HOST)

    def move(self, device: str) -> None:
        """Have the elements on another device from now on; for arrays that may be anywhere."""
        view = (away.get(device) or home(HOST)).new(self.numpy())
        self._view, self._lease, self._owner, self._pending = view, None, None, None
        self._host = self._hold = _nothing
        self._address = self._value = None
        self.device = device

    def give_up(self) -> "Donation":
        """Let go of the memory, for a donation; DonationError if somebody did before."""
        with _lock:
            view = self.buffer_view()
            self._view = self._source = None
            lease, self._lease = self._lease, None
            # Arrays of the same storage, and ops that are put off, have the view, too.
            ours = getrefcount(view) == (2 if lease is None else 3)
            is_free = self._host() is None and self._owner is None and ours
            return Donation(self, view, lease, is_free)

    def is_shared(self) -> bool:
        """True if NumPy arrays, snapshots, a pool or somebody else have the memory, too."""
        return (
            self._host() is not None
            or self._lease is not None
            or self._owner is not None
            or self.is_held()
        )

    def is_held(self) -> bool:
        """True while a recorded graph, or a detached array, has the elements in this memory."""
        return self._hold() is not None

    def assign(self, values: Any) -> None:
        """Write elements in place, for NumPy arrays made of this, too, when no call is under way
        that may read the old ones. The shape and dtype are the caller's to check.
        """
        before_overwriting()
        dispatch.settle()
        view = self.block_until_ready().buffer_view()
        if isinstance(values, Array) and values.device == self.device:
            self.home().copy(view, values.block_until_ready().buffer_view())
        else:
            self.home().write([(view, np.asarray(values))])

    def take_over(self, result: "Array") -> None:
        """Be usable again after a donation, with the result that was written in place."""
        self._view, self._lease, self._pending = result._view, result._lease, result._pending
        self.device = result.device

    def alias(self) -> "Array":
        """Another array of the same storage, outside any recorded graph. Nothing is computed."""
        found = Array(
            self._view, self.shape, self.dtype, self._lease, self.device, self._pending, self._owner
        )
        found._host, found._value, found._source = self._host, self._value, self._source
        found._hold, found._is_anywhere = self._hold, self._is_anywhere
        if state.deferred is not None:
            state.deferred.made(found)
            state.deferred.rebind(found, self)
        return found

    def snapshot(self) -> "Array":
        """An alias for a recorded graph, or a caller, that counts on the elements: the memory must
        not be written to as long as it is there; see `is_held`.
        """
        found = self.alias()
        if self._value is None:  # NumPy's elements are never written to
            hold = self._hold()
            if hold is None:
                hold = Hold()
                self._hold = weakref.ref(hold)
            found._owner, found._hold = (self._owner, hold), self._hold
        return found

    def rebind(self, other: "Array") -> None:
        """Have the storage, and the history, of another array of the same type."""
        if state.deferred is not None and state.deferred.rebind(self, other):
            self._history = other._history
            return
        self._view, self._lease, self._host = other._view, other._lease, other._host
        self._pending, self._owner, self._address = other._pending, other._owner, other._address
        self._hold = other._hold
        self._value, self._source, self._history = other._value, other._source, other._history
        self.device, self._is_anywhere = other.device, other._is_anywhere

    def address(self) -> int:
        """Where the memory begins for the host, on a device that shares it."""
        if self._address is None:
            self._address = contents(self.buffer_view(), self.dtype).ctypes.data
        return self._address

    def is_deleted(self) -> bool:
        """True once the array was donated."""
        return self._view is None and self._value is None and self._source is None

    def is_ready(self) -> bool:
        """True once the call that makes it has ended."""
        source = self._source
        if source is not None and source.result is not None:
            source.resolve(self)
        is_there = self._value is not None or self._view is not None
        return is_there and (self._pending is None or self._pending.is_done())

    def block_until_ready(self) -> "Array":
        """The array, when the call that makes it has ended; DeviceError if that failed."""
        self._resolve()
        if self._pending is not None:
            self._pending.wait()
            self._pending = None
        return self

    def _memory(self) -> np.ndarray:
        """The elements in place, when they are there; a copy, on a device that does not share the
        host's memory.
        """
        if state.deferred is not None:
            state.deferred.reading(self)
        self.block_until_ready()
        if (there := away.get(self.device)) is not None:
            return there.read(self.buffer_view(), self.dtype)
        with _lock:
            view = self.buffer_view()
            host = self._host()
            if host is None:
                host = _HostMemory(view, self.shape, self.dtype, (self._lease, self._owner))
                self._host = weakref.ref(host)
        return np.asarray(host).view(self.dtype)

    def numpy(self) -> np.ndarray:
        """The elements as a read-only NumPy array, which shares the memory and keeps it alive, or
        is a copy where the host cannot read the device's memory.
        """
        if state.deferred is not None:
            state.deferred.reading(self)
        self._resolve()
        value = self._value
        array = self._memory() if value is None else value.view()
        array.setflags(write=False)
        return array

    # --- gradients --------------------------------------------------------------------------------

    def attach_grad(self, grad_req: str = "write") -> None:
        """Make the array a variable, whose gradient `backward` gives in `x.grad`: "write", "add"
        or "null"; see `go.autograd.attach_grad`.
        """
        autograd().attach_grad(self, grad_req)

    def drop_grad(self) -> None:
        """Free the gradient: the array is no variable any more. GradientError for what is none."""
        autograd().drop_grad(self)

    @property
    def needs_gradient(self) -> bool:
        """Whether what is recorded of it has a gradient to hand on: `attach_grad` was called, of it
        or of what it was computed from.
        """
        return self._history is not None and self._history.needs

    @property
    def grad(self) -> Any:
        """The gradient of a variable, an array that each backward writes or adds to; zeros until
        then. None for what is no variable.
        """
        return autograd().grad_of(self)

    @grad.setter
    def grad(self, value: Any) -> None:
        autograd().set_grad(self, value)

    def backward(
        self, head_grad: Any = None, retain_graph: bool = False, create_graph: bool = False
    ) -> None:
        """Gradients of this recorded array by all variables that it depends on; see
        `go.backward`.
        """
        grads = None if head_grad is None else [head_grad]
        autograd().backward([self], grads, None, retain_graph, create_graph)

    def detach(self) -> "Array":
        """An array of the same elements outside the recorded graph: a constant to gradients."""
        return self.snapshot()

    # --- other libraries --------------------------------------------------------------------------

    def __dlpack_device__(self) -> tuple[int, int]:
        self._resolve()  # before, it is not known where it is
        return DLPACK_DEVICES.get(self.device, (DLPACK_OTHER, 0))

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: Any = None,
        dl_device: Any = None,
        copy: bool | None = None,
    ) -> Any:
        """The elements for another library, without a copy, read-only where it can be told so.
        BufferError for bfloat16, which NumPy cannot pass on, and on a device that does not share
        the host's memory, unless a copy for the host is asked for (`dl_device`).
        """
        self._resolve()
        if self.device in away:
            if dl_device is None or tuple(dl_device) != DLPACK_DEVICES["cpu"] or copy is False:
                raise BufferError(
                    f"an Array on {self.device} cannot be shared by DLPack; copy it to the host "
                    "first, with np.asarray(x) or x.to_device('cpu')"
                )
            stream, dl_device = None, None
        options: dict[str, Any] = {"stream": stream, "dl_device": dl_device, "copy": copy}
        if max_version is None:  # an old protocol, which knows nothing of read-only memory
            return self._memory().__dlpack__(**options)
        return self.numpy().__dlpack__(max_version=max_version, **options)

    def to_device(self, device: Any, /, *, stream: Any = None) -> "Array":
        """The array itself where it is there already, else a copy; the gradient of that comes back
        here. ArgumentError for a `device` out of none that
        `go.__array_namespace_info__().devices()` lists, and for a `stream`.
        """
        if stream is not None:
            raise ArgumentError(f"to_device expected no stream, got {stream!r}; leave it away")
        check_device(device)
        if device is None or (device == self.device and not self._is_anywhere):
            return self
        if state.deferred is None:
            self._resolve()
        if device == self.device or state.deferred is not None:  # where a graph runs, it is
            found = self.alias()
            found._is_anywhere = False
            return _as_copy(found, self)
        return _put(self, HOST if device in PLACES.values() else device)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False and self.__dlpack_device__() != DLPACK_DEVICES["cpu"]:
            raise ValueError(
                f"an Array on {self.device} cannot be read by NumPy without a copy; leave `copy` "
                "away"
            )
        array = self.numpy()
        if dtype is not None and np.dtype(dtype) != array.dtype:
            if copy is False:
                raise ValueError(
                    f"an Array of {array.dtype.name} cannot be read as {np.dtype(dtype).name} "
                    "without a copy; leave `copy` away"
                )
            return array.astype(dtype)
        return array.copy() if copy else array

    def __reduce__(self) -> Any:
        """Pickles have the elements, which are the host's when they are read."""
        return array, (self.numpy(),)

    def __copy__(self) -> "Array":
        """An array of the same elements on the same device, which no call to come writes to,
        outside any recorded graph.
        """
        if self._value is not None or self._source is not None:  # which nobody writes to
            return self.alias()
        return _copied(self)

    def __deepcopy__(self, memo: Any) -> "Array":
        return self.__copy__()

    # --- values -----------------------------------------------------------------------------------

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an Array of rank 0")
        return self.shape[0]

    def __setitem__(self, key: Any, value: Any) -> None:
        write(self, self.at[key].set(value), "an assignment to a part of it")

    def item(self) -> Any:
        """The only element as a Python number."""
        return self.numpy().item()

    def tolist(self) -> Any:
        return self.numpy().tolist()

    def __float__(self) -> float:
        return float(self.numpy())

    def __int__(self) -> int:
        return int(self.numpy())

    def __complex__(self) -> complex:
        return complex(self.numpy())

    def __bool__(self) -> bool:
        return bool(self.numpy())

    def __index__(self) -> int:
        return self.numpy().__index__()

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.ndim == 0 else format(str(self), spec)

    def __eq__(self, other: object) -> Any:
        return logic.equal(self, other) if _is_operand(other) else NotImplemented

    def __ne__(self, other: object) -> Any:
        return logic.not_equal(self, other) if _is_operand(other) else NotImplemented

    def __hash__(self) -> int:
        raise TypeError(
            "an Array has no hash, as its elements can change and == compares each; use id(x), or "
            "x.item() or tuple(x.tolist()) for the values"
        )

    def __repr__(self) -> str:
        self._resolve()
        rest = [f"dtype={self.dtype.name}"]
        if self.device != "cpu":
            rest.append(f"device='{self.device}'")
        if self.is_deleted():
            return f"Array(donated, shape={self.shape}, {', '.join(rest)})"
        elements = self.numpy()
        text = np.array2string(elements, separator=", ", prefix="Array(", suffix=")")
        if not elements.size or elements.size > np.get_printoptions()["threshold"]:
            rest.insert(0, f"shape={self.shape}")  # which the elements do not show
        return f"Array({text}, {', '.join(rest)})"


def _is_operand(x: object) -> bool:
    """True for what arrays are compared with elementwise; they are just unequal to the rest."""
    known = isinstance(x, bool | int | float | list | tuple) or hasattr(x, "dtype")
    return known and not isinstance(x, type)


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


def of_value(value: np.ndarray) -> Array:
    """An array of elements that nobody writes to."""
    found = _new(Array)  # what __init__ does, at half the cost: eager ops spend their time here
    found._value, found.shape, found.dtype, found.device = value, value.shape, value.dtype, "cpu"
    found._view = found._lease = found._pending = found._owner = found._address = None
    found._source = found._history = None
    found._host = found._hold = _nothing
    found._is_anywhere = True
    return found if state.deferred is None else made(found)


def made(found: Array) -> Array:
    """A new array with elements; told to what is being traced."""
    if state.deferred is not None:
        state.deferred.made(found)
    return found


_new = Array.__new__


def array(x: Any, dtype: Any = None) -> Array:
    """An array of its own memory with the elements of `x`: an array of any library, a number, or
    nested lists of them. Python floats become float32, integers int32 (int64 where they must), and
    booleans bool. Raises OpError for what is no array.
    """
    if isinstance(x, Array):
        if dtype is not None and as_dtype(dtype) != x.dtype:
            return x.astype(dtype)
        return _as_copy(x.snapshot(), x)
    return of_value(np.array(as_array(from_other(x), dtype)))


def asarray(obj: Any, dtype: Any = None, *, device: Any = None, copy: bool | None = None) -> Any:
    """`obj` itself if it is an Array (of that dtype) or a tensor of a graph, else `array(obj,
    dtype)`; another array of the same elements with `copy`. OpError where copy=False asks for the
    memory of another library's array: `go.from_dlpack` shares that.
    """
    if isinstance(obj, Array | Tensor):
        is_same = dtype is None or as_dtype(dtype) == obj.dtype
        if copy is False and not is_same:
            raise OpError(f"asarray expected copy=None or True to convert {obj.spec} to {dtype}")
        return standard.astype(obj, dtype or obj.dtype, copy=bool(copy), device=device)
    if copy is False:
        raise OpError(
            f"asarray expected copy=None or True for {type(obj).__name__}, whose memory others "
            "write to; share memory by go.from_dlpack"
        )
    return placed(array(obj, dtype), device)


def autograd() -> Any:
    """The module of gradients, which is built on this one."""
    from . import autograd as module

    return module


def device_put(array: Any, target: str = "cpu") -> Array:
    """A copy of an array on the target's device, where it stays. Its gradient comes back to where
    the array is. DeviceError where this machine has no such device.
    """
    if state.deferred is not None and isinstance(array, Array):  # where a graph runs, it is
        return _as_copy(array.snapshot(), array)
    where = find_target(target)
    check_present(where)
    return _put(array, where.driver)


def _put(array: Any, driver: str) -> Array:
    """A copy of an array on the device of a driver."""
    there = home(driver)
    if isinstance(array, Array) and not there.is_host and array.device == place(driver):
        return _as_copy(made(_copied(array)), array)
    host = np.asarray(array)
    dtype = host.dtype if host.dtype.isnative else host.dtype.newbyteorder("=")
    found = Array(there.new(host), host.shape, dtype, None, place(driver))
    return _as_copy(made(found), array)


def _copied(array: Array) -> Array:
    """An array of the same elements in memory of its own on the same device."""
    there, view = array.home(), array.block_until_ready().buffer_view()
    new = there.allocate(array.shape, array.dtype)
    there.copy(new, view)
    found = Array(new, array.shape, array.dtype, None, array.device)
    found._is_anywhere = array._is_anywhere
    return found


def _as_copy(found: Array, of: Any) -> Array:
    """An array that was made as a copy of another, recorded as one while the thread records."""
    if state.recording and isinstance(of, Array) and of._history is not None:
        found._history = of._history.of_copy(of.device)
    return found


# --- writing --------------------------------------------------------------------------------------


def write(to: Array, new: Any, what: str) -> None:
    """Give an array other elements of its type; GradientError where a recorded graph has it."""
    if to._history is not None:
        to._history.check_write(to, what)
    if new.shape != to.shape or new.dtype != to.dtype:
        raise OpError(
            f"{what} expected values of type {to.spec}, got {new.spec}; make a new array instead"
        )
    before = to._history
    after = new._history if state.recording else None
    to.rebind(new)
    if after is not None:
        after = after.of_assignment()
    to._history = after if before is None else before.after_write(after)


def _in_place(name: str, operator: str) -> Callable[[Array, Any], Array]:
    """`x += y`: the elements of x become those of x + y."""
    plain = getattr(Array, f"__{name}__")

    def update(self: Array, other: Any) -> Array:
        new = plain(self, other)
        if type(new) is not Array:  # in a trace the name gets a tensor
            return new
        write(self, new, f"'{operator}'")
        return self

    update.__name__ = f"__i{name}__"
    return update


for _name, _operator in IN_PLACE.items():
    setattr(Array, f"__i{_name}__", _in_place(_name, _operator))
