# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Loads and runs artifacts where neither gradopt nor a compiler is: NumPy and iree.runtime suffice.

    import gradopt_deploy  # this file, which lies in every artifact; `gradopt.deploy` is the same

    model = gradopt_deploy.load("out/digits")       # the best target that this machine has
    print(model.step(images, labels)["loss"])       # trains: the weights stay on the device
    model.save("digits.ckpt", epoch=3)              # whole or not at all
    print(model.infer(images)["label"])

An artifact is a folder with a manifest, a compiled module for each target and the initial values of
the arrays that it holds: parameters, the optimizer's state, constants. IREE checks little of what
it is given and crashes on the rest, so everything is checked here first, and said in one sentence.

    python gradopt_deploy.py FOLDER                                     # lists the functions
    python gradopt_deploy.py FOLDER infer --input 1x8x8x1xfloat32=0     # calls one
"""

import argparse
import atexit
import collections
import contextlib
import dataclasses
import functools
import glob
import hashlib
import importlib.metadata
import json
import math
import os
import pathlib
import platform
import re
import secrets
import sys
import threading
import time
import types
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import iree.runtime as iree
import ml_dtypes
import numpy as np

try:
    import fcntl
except ImportError:  # there is none on Windows
    fcntl = None

FORMAT, CHECKPOINT = "gradopt-artifact-2", "gradopt-checkpoint-1"
VERSION = "0.1.0"
"""Of the gradopt that this file belongs to."""

bfloat16 = np.dtype(ml_dtypes.bfloat16)


class ArtifactError(RuntimeError):
    """An artifact is damaged, or was made for another version or machine. Base of all errors that
    are raised here on purpose.
    """


class ArgumentError(ArtifactError, TypeError):
    """A function was given arguments, or a model a state, of other names, shapes or dtypes."""


class DeviceError(ArtifactError):
    """A call failed on its device, or is not possible in this process."""


class CheckpointError(ArtifactError):
    """A checkpoint is damaged, or is not one of this artifact."""


# --- element types and safetensors files ----------------------------------------------------------


_TYPES = {  # by name: as safetensors calls it, and as IREE does, which takes unsigned as signless
    "float64": ("F64", iree.HalElementType.FLOAT_64),
    "float32": ("F32", iree.HalElementType.FLOAT_32),
    "float16": ("F16", iree.HalElementType.FLOAT_16),
    "bfloat16": ("BF16", iree.HalElementType.BFLOAT_16),
    "int64": ("I64", iree.HalElementType.SINT_64),
    "int32": ("I32", iree.HalElementType.SINT_32),
    "int16": ("I16", iree.HalElementType.SINT_16),
    "int8": ("I8", iree.HalElementType.SINT_8),
    "uint64": ("U64", iree.HalElementType.SINT_64),
    "uint32": ("U32", iree.HalElementType.SINT_32),
    "uint16": ("U16", iree.HalElementType.SINT_16),
    "uint8": ("U8", iree.HalElementType.SINT_8),
    "bool": ("BOOL", iree.HalElementType.BOOL_8),
}
_DTYPES = {name: bfloat16 if name == "bfloat16" else np.dtype(name) for name in _TYPES}
_ELEMENTS = {_DTYPES[name]: element for name, (_, element) in _TYPES.items()}
_STORED = {stored: _DTYPES[name] for name, (stored, _) in _TYPES.items()}
_STORED_NAMES = {dtype: stored for stored, dtype in _STORED.items()}


def _bits(dtype: np.dtype) -> np.dtype:
    """The element type that IREE's and NumPy's buffers are told: bfloat16 is none of theirs."""
    return np.dtype(np.uint16) if dtype == bfloat16 else dtype


def read_safetensors(data: Any) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The arrays of a safetensors file by name, which are views of its bytes, and its metadata.
    ValueError where it is none.
    """
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > len(data) - 8:
        raise ValueError("it is cut off")
    header = json.loads(bytes(data[8 : 8 + size]))
    if not isinstance(header, dict):
        raise ValueError("its header is no table")
    metadata = header.pop("__metadata__", {})
    arrays = {}
    for name, about in header.items():
        try:
            dtype, shape = _STORED[about["dtype"]], tuple(about["shape"])
            begin, end = about["data_offsets"]
            raw = np.frombuffer(data, np.uint8, end - begin, 8 + size + begin)
            arrays[name] = raw.view(_bits(dtype)).view(dtype).reshape(shape)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"its entry '{name}' is wrong: {error!r}") from None
    return arrays, metadata


def read_irpa(data: bytes, entries: Mapping[str, "Entry"]) -> dict[str, np.ndarray]:
    """The arrays of an archive of IREE's by name, which has their bytes, but not their types: those
    are the entries'.
    """
    index = iree.ParameterIndex()
    index.load_from_file_handle(iree.FileHandle.wrap_memory(data, True, False), "irpa")
    arrays = {n: np.zeros(e.extents, e.dtype) for n, e in entries.items() if not e.nbytes}
    for name, about in index.items():
        if name not in entries:
            raise ValueError(f"'{name}' is no array of the artifact")
        if about.is_splat:
            raw = bytes(about.splat_pattern) * (about.length // len(about.splat_pattern))
        else:
            raw = about.file_view
        entry = entries[name]
        if about.length != entry.nbytes:
            raise ValueError(f"'{name}' expected {entry.nbytes} bytes, got {about.length}")
        arrays[name] = np.frombuffer(raw, _bits(entry.dtype)).view(entry.dtype)
        arrays[name] = arrays[name].reshape(entry.extents)
    return arrays


_WEIGHTS = {
    "weights.safetensors": lambda data, entries: read_safetensors(data)[0],
    "weights.irpa": read_irpa,
}
"""How the files of initial values are read; the first of them that an artifact has."""


def safetensors_pieces(
    arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]
) -> list[bytes | memoryview]:
    """The pieces of a safetensors file, in order: the length, the header, the arrays' bytes."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    pieces: list[bytes | memoryview] = []
    offset = 0
    for name in sorted(arrays, key=lambda n: (-arrays[n].dtype.itemsize, n)):  # aligned
        array = np.ascontiguousarray(arrays[name])
        header[name] = {
            "dtype": _STORED_NAMES[array.dtype],
            "shape": list(arrays[name].shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
        pieces.append(memoryview(array.reshape(-1).view(np.uint8)))  # type: ignore[arg-type]
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 64)
    return [len(text).to_bytes(8, "little"), text, *pieces]


# --- this machine ---------------------------------------------------------------------------------


_HOST = ("local-task", "local-sync")
"""Drivers whose memory is the host's."""

_MACHINES = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}


@dataclasses.dataclass(frozen=True)
class Device:
    """A device of this machine: IREE's driver, its name, what `load(device=...)` takes for it, and
    its kind: cpu, gpu, or software for a GPU's driver that computes on the CPU.
    """

    driver: str
    name: str
    uri: str
    kind: str

    def __str__(self) -> str:
        about = " (software)" if self.kind == "software" else ""
        return f"{self.driver}: {self.name}{about}"


def devices() -> list[Device]:
    """The devices of this machine that IREE can use."""
    return [device for driver in sorted(iree.HalDriver.query()) for device in _devices(driver)[0]]


def _devices(driver: str) -> tuple[list[Device], str]:
    """The devices of a driver, those that are hardware first; why there are none."""
    if driver not in iree.HalDriver.query():
        return [], f"IREE's runtime here has no driver '{driver}'"
    try:
        opened = iree.get_driver(driver)
        found = [_device(driver, opened, about) for about in opened.query_available_devices()]
    except (RuntimeError, ValueError) as error:
        return [], _short(error)
    found.sort(key=lambda d: d.kind == "software")
    return found, "" if found else f"driver '{driver}' finds no device"


def _device(driver: str, opened: Any, about: Mapping[str, Any]) -> Device:
    if driver in _HOST:
        return Device(driver, f"{architecture()} CPU", driver, "cpu")
    kind = "gpu"
    if driver == "vulkan":
        text = opened.dump_device_info(about["device_id"])
        if re.search(r"^type: cpu$", text, re.MULTILINE) or "llvmpipe" in about["name"]:
            kind = "software"
    uri = f"{driver}://{about['path']}" if about["path"] else driver
    return Device(driver, about["name"], uri, kind)


def open_device(uri: str) -> Any:
    """IREE's device; raises RuntimeError or ValueError as IREE does.

    In Mesa 22's software device a thread that waits for one of several semaphores, as IREE's do all
    the time, asks again and again: at rest it takes two CPUs whole. Its threads therefore get the
    least priority, but for those that compute.
    """
    before = _threads().keys()
    device = iree.get_device(uri)
    found, _ = _devices(uri.partition("://")[0])
    if {d.kind for d in found if uri in (d.driver, d.uri)} == {"software"}:
        for thread, name in _threads().items():
            if thread not in before and not name.startswith("llvmpipe"):
                with contextlib.suppress(OSError):  # it may have ended
                    os.setpriority(os.PRIO_PROCESS, thread, 19)
    return device


class Waiting:
    """`with Waiting():` around what waits for a device: when it wakes, it displaces no thread that
    computes.

    IREE 3.13 wakes a waiting thread before it has finished with the wait, and that thread then
    spins until it has. Where every CPU computes, Linux lets the woken thread run instead of the
    waking one, so that it spins for a whole time slice (measured on 2 CPUs: 1.7 ms of a call of 9).
    Threads of the policy SCHED_BATCH displace nobody; those that have a policy of their own keep
    it.
    """

    __slots__ = ("_is_changed",)

    def __enter__(self) -> None:
        self._is_changed = _ORDINARY is not None and os.sched_getscheduler(0) == _ORDINARY
        if self._is_changed:
            _schedule(os.SCHED_BATCH)

    def __exit__(self, *exception: Any) -> None:
        if self._is_changed:
            _schedule(os.SCHED_OTHER)


def _schedule(policy: int) -> None:
    """Give this thread a policy; nothing where a sandbox forbids it."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, policy, _NO_PRIORITY)


_ORDINARY = os.SCHED_OTHER if hasattr(os, "SCHED_BATCH") else None
_NO_PRIORITY = os.sched_param(0) if _ORDINARY is not None else None


def _threads() -> dict[int, str]:
    """This process's threads by their numbers, and their names; none where the system does not
    list them.
    """
    found = {}
    for path in glob.glob("/proc/self/task/*"):
        with contextlib.suppress(OSError), open(f"{path}/comm") as file:
            found[int(os.path.basename(path))] = file.read().strip()
    return found


def architecture() -> str:
    """This machine's, by the name that Linux has for it."""
    name = platform.machine().lower()
    return _MACHINES.get(name, name)


@functools.cache
def cpu_features() -> frozenset[str] | None:
    """The features of this CPU as /proc/cpuinfo names them; None where there is no such file."""
    try:
        with open("/proc/cpuinfo") as file:
            line = next(x for x in file if x.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        return None
    return frozenset(line.split(":", 1)[1].split())


def runtime_version() -> str:
    """The version of IREE's runtime here."""
    try:
        return importlib.metadata.version("iree-base-runtime")
    except importlib.metadata.PackageNotFoundError:
        return iree.version.VERSION


def _short(error: BaseException) -> str:
    """An error of IREE's without the places in its sources."""
    line = " ".join(str(error).split())
    return re.sub(r"\S*/runtime/src/\S+:\d+: ", "", line)[:300]


def _process() -> Any:
    """What all copies of this file in a process share, as each artifact brings one: IREE's type
    tables race when several instances are set up at once, and a device is opened once.
    """
    fresh = types.ModuleType("_gradopt_deploy_process")
    fresh.lock = threading.Lock()
    fresh.instance = None
    fresh.pid = None
    fresh.modules = weakref.WeakValueDictionary()
    fresh.recent = collections.deque(maxlen=4)
    return sys.modules.setdefault(fresh.__name__, fresh)


_shared = _process()


def _check_process() -> None:
    """The threads of a device are not there in a child of its process, where calls would hang."""
    if _shared.pid not in (None, os.getpid()):
        raise DeviceError(
            "this process was forked from one that had loaded an artifact, whose threads are not "
            "here; start processes by multiprocessing's 'spawn' or 'forkserver' method, or fork "
            "before the first load"
        )


# --- memory on a device ---------------------------------------------------------------------------


_HOST_MEMORY = int(iree.MemoryType.HOST_LOCAL) | int(iree.MemoryType.DEVICE_VISIBLE)
_DEVICE_MEMORY = int(iree.MemoryType.DEVICE_LOCAL)
_ANY_USE = int(iree.BufferUsage.DEFAULT)
_MAPPED = _ANY_USE | int(iree.BufferUsage.MAPPING)
_READBACK = int(iree.BufferUsage.TRANSFER_TARGET) | int(iree.BufferUsage.MAPPING_SCOPED)
_ALIGNMENT = 64
"""Bytes. IREE's code assumes it of memory that it is lent, and crashes on other."""


class _Memory:
    """Arrays in a device's memory, as IREE's buffer views."""

    def __init__(self, driver: str, device: Any) -> None:
        self.device = device
        self.allocator = device.allocator
        self.is_host = driver in _HOST
        self.kind = (_HOST_MEMORY, _MAPPED) if self.is_host else (_DEVICE_MEMORY, _ANY_USE)

    def put(self, array: np.ndarray) -> Any:
        """A copy of a NumPy array."""
        array = np.require(array, requirements="C")
        return self.allocator.allocate_buffer_copy(
            memory_type=self.kind[0],
            allowed_usage=self.kind[1],
            device=self.device,
            buffer=array.view(_bits(array.dtype)),
            element_type=_ELEMENTS[array.dtype],
        )

    def lend(self, array: np.ndarray, keep: list[Any]) -> Any:
        """A NumPy array where it lies, if the device can read it there; otherwise a copy. What has
        to live as long as the view is used is appended to `keep`.
        """
        flags = array.flags
        if not (self.is_host and array.size and flags.carray and _address(array) % _ALIGNMENT == 0):
            return self.put(array)
        buffer = self.allocator.import_host_allocation(
            array.view(_bits(array.dtype)), memory_type=_HOST_MEMORY, allowed_usage=_MAPPED
        )
        keep.append(buffer)
        return iree.HalBufferView(buffer, array.shape, _ELEMENTS[array.dtype])

    def empty(self, shape: Sequence[int], dtype: np.dtype) -> Any:
        """A new array with any contents."""
        buffer = self.allocator.allocate_buffer(*self.kind, math.prod(shape) * dtype.itemsize)
        return iree.HalBufferView(buffer, shape, _ELEMENTS[dtype])

    def scratch(self, size: int) -> Any:
        """A buffer that only the device uses."""
        return self.allocator.allocate_buffer(_DEVICE_MEMORY, _ANY_USE, max(size, _ALIGNMENT))

    def copy(self, view: Any, dtype: np.dtype) -> Any:
        """A copy of an array on the device."""
        target = self.empty(view.shape, dtype)
        if view.byte_length:
            self._copy(view.get_buffer(), target.get_buffer())
        return target

    def get(self, view: Any, dtype: np.dtype) -> np.ndarray:
        """A copy of an array on the host. A view's own reading is broken on Vulkan: IREE imports
        NumPy's memory, which is not aligned to a page.
        """
        shape = tuple(view.shape)
        if not view.byte_length:
            return np.zeros(shape, dtype)
        if self.is_host:
            return self.window(view, dtype).copy()
        source = view.get_buffer()
        staging = self.allocator.allocate_buffer(_HOST_MEMORY, _READBACK, source.byte_length())
        self._copy(source, staging)
        return staging.map().asarray(shape, _bits(dtype)).view(dtype).copy()

    def window(self, view: Any, dtype: np.dtype) -> np.ndarray:
        """The array itself, in memory of the host."""
        return np.asarray(_Window(view, _bits(dtype))).view(dtype)

    def span(self, view: Any) -> tuple[int, int]:
        """The addresses of an array in memory of the host."""
        size = view.byte_length
        if not size:
            return 0, 0
        raw = view.get_buffer().map().asarray((size,), np.dtype(np.uint8))
        return _address(raw), _address(raw) + size

    def _copy(self, source: Any, target: Any) -> None:
        semaphore = self.device.create_semaphore(0)
        begin, end = (iree.HalFence.create_at(semaphore, i) for i in (0, 1))
        self.device.queue_copy(source, target, wait_semaphores=begin, signal_semaphores=end)
        with Waiting():
            end.wait()


class _Window:
    """What NumPy takes for an array, and keeps: IREE's own arrays do not keep the memory that they
    lie in from being used by the next call.
    """

    def __init__(self, view: Any, dtype: np.dtype) -> None:
        mapped = view.get_buffer().map().asarray(tuple(view.shape), dtype)
        self.view, self.mapped = view, mapped
        self.__array_interface__ = mapped.__array_interface__


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


class _Gate:
    """Lets calls that only read pass together, and one that writes alone; it does not starve."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers = self._waiting = 0
        self._is_writing = False
        _gates.add(self)

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        is_in = False
        try:
            with self._changed:
                self._changed.wait_for(lambda: not (self._is_writing or self._waiting))
                is_in = True
                self._readers += 1
            yield
        finally:
            if is_in:
                with self._changed:
                    self._readers -= 1
                    self._changed.notify_all()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        is_in = False
        try:
            with self._changed:
                self._waiting += 1
                try:
                    self._changed.wait_for(lambda: not (self._is_writing or self._readers))
                    is_in = self._is_writing = True
                finally:
                    self._waiting -= 1
            yield
        finally:
            if is_in:
                with self._changed:
                    self._is_writing = False
                    self._changed.notify_all()

    def close(self) -> None:
        """Wait for who is in, and let nobody in any more."""
        with self._changed:
            self._waiting += 1
            self._changed.wait_for(lambda: not (self._is_writing or self._readers))
            self._is_writing = True


@atexit.register
def _finish() -> None:
    """No thread is in IREE's code when the interpreter ends: it would be ended there, which aborts
    the process.
    """
    if _shared.pid == os.getpid():
        for gate in list(_gates):
            gate.close()


_gates: weakref.WeakSet[_Gate] = weakref.WeakSet()


# --- the manifest ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Entry:
    """An input or output of a function. `shape` has None for an extent known only at the call.
    Roles: data and result are the caller's, parameter, state and constant the model's.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: np.dtype
    role: str

    @property
    def type(self) -> str:
        return "x".join(["?" if n is None else str(n) for n in self.shape] + [self.dtype.name])

    @property
    def extents(self) -> tuple[int, ...]:
        """The shape, of an entry that has no open extents."""
        return tuple(n or 0 for n in self.shape)

    @property
    def nbytes(self) -> int:
        return math.prod(self.extents) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.name}: {self.type}" if self.name else self.type


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A compiled module as the manifest describes it; of each function the bytes of its arena and
    the positions of the inputs that it overwrites.
    """

    target: str
    driver: str
    file: str
    architecture: str
    cpu_features: tuple[str, ...]
    functions: Mapping[str, tuple[int, frozenset[int]]]

    @property
    def family(self) -> str:
        return self.target.partition(":")[0]


@dataclasses.dataclass(frozen=True)
class Signature:
    """A function as the manifest describes it. `storage` has for each further argument the output
    that is written there and the input whose memory it takes over, or None.
    """

    name: str
    mode: str
    inputs: tuple[Entry, ...]
    outputs: tuple[Entry, ...]
    storage: tuple[tuple[int, int | None], ...]


class Manifest:
    """What the manifest of an artifact says, checked; ArtifactError where it cannot be."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.path = folder / "manifest.json"
        try:
            self.text = self.path.read_bytes()
        except OSError as error:
            raise ArtifactError(
                f"'{folder}' expected to be the folder of an artifact, but '{self.path}' cannot be "
                f"read: {error.strerror}"
            ) from None
        try:
            self.raw: dict[str, Any] = json.loads(self.text)
        except (ValueError, RecursionError) as error:
            raise self._damaged(str(error)) from None
        if not isinstance(self.raw, dict) or "format" not in self.raw:
            raise self._damaged("it has no format")
        self._check_versions()
        try:
            self._read()
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise self._damaged(f"{type(error).__name__}: {error}") from None

    def _damaged(self, why: str) -> ArtifactError:
        return ArtifactError(f"'{self.path}' is damaged: {why}; export the artifact again")

    def _check_versions(self) -> None:
        """Refuse what other versions made: the same major and minor version of gradopt and of IREE
        is known to work, of others nothing is known.
        """
        versions = self.raw.get("versions")
        versions = versions if isinstance(versions, dict) else {}
        made = str(versions.get("gradopt", "unknown"))
        own = f"load it with the gradopt_deploy.py in its folder, install gradopt=={made}, or "
        if self.raw["format"] != FORMAT:
            raise ArtifactError(
                f"'{self.folder}' expected format {FORMAT}, got {self.raw['format']}, written by "
                f"gradopt {made}; this loader is of gradopt {VERSION}; {own}export it again"
            )
        if _release(made) != _release(VERSION):
            raise ArtifactError(
                f"'{self.folder}' was written by gradopt {made}, this loader is of gradopt "
                f"{VERSION}; {own}export it again"
            )
        made, here = str(versions.get("iree-base-compiler", "unknown")), runtime_version()
        if _release(made) != _release(here):
            raise ArtifactError(
                f"'{self.folder}' was compiled by IREE {made}, the runtime here is IREE {here}; "
                f"install iree-base-runtime=={made}, or export it again with IREE {here}"
            )

    def _read(self) -> None:
        raw = self.raw
        self.name = str(raw["name"])
        self.files = {
            _plain_name(name): (str(about["sha256"]), int(about["bytes"]))
            for name, about in raw["files"].items()
        }
        functions = [_signature(f) for f in raw["functions"]]
        self.functions = {f.name: f for f in functions}
        if len(self.functions) != len(functions) or not functions:
            raise ValueError("its functions expected names of their own")
        self.modules = [self._module(m) for m in raw["modules"]]
        if not self.modules:
            raise ValueError("it has no module")
        self.held = self._held()
        self.zeros = [self.held[name] for name in raw.get("zeros", ())]

    def _module(self, raw: Mapping[str, Any]) -> Compiled:
        found = {}
        for name, about in raw["functions"].items():
            f = self.functions[name]
            in_place = frozenset(_position(i, f.inputs) for i in about["in_place"])
            found[name] = int(about["arena"]), in_place
            outputs = {o.name for o in f.outputs if o.role in ("parameter", "state")}
            for i in in_place:
                if f.inputs[i].role != "data" and f.inputs[i].name not in outputs:
                    raise ValueError(f"'{name}' overwrites '{f.inputs[i].name}' for nothing")
        if set(found) != set(self.functions):
            raise ValueError(f"module {raw['target']} has other functions than the artifact")
        if _plain_name(raw["file"]) not in self.files:
            raise ValueError(f"'{raw['file']}' is not among its files")
        return Compiled(
            str(raw["target"]),
            str(raw["driver"]),
            raw["file"],
            str(raw["architecture"]),
            tuple(map(str, raw["cpu_features"])),
            found,
        )

    def _held(self) -> dict[str, Entry]:
        """The arrays that the model holds; what any function changes is no constant."""
        found: dict[str, Entry] = {}
        for f in self.functions.values():
            for entry in (*f.inputs, *f.outputs):
                if entry.role in ("data", "result"):
                    continue
                old = found.get(entry.name, entry)
                if (old.shape, old.dtype) != (entry.shape, entry.dtype):
                    raise ValueError(f"'{entry.name}' is both {old.type} and {entry.type}")
                if None in entry.shape:
                    raise ValueError(f"'{entry.name}' of type {entry.type} has an open extent")
                found[entry.name] = entry if old.role == "constant" else old
        return found

    def read(self, name: str) -> bytes:
        """A file's bytes, which are those that the manifest was written for; ArtifactError for
        others. They are read, not mapped: a file that is overwritten under a map takes the process
        with it.
        """
        path = self.folder / name
        digest, size = self.files[name]
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ArtifactError(f"cannot read '{path}': {error.strerror}") from None
        if len(data) != size:
            raise ArtifactError(
                f"'{path}' is damaged: expected {size} bytes, got {len(data)}; copy or export the "
                "artifact again"
            )
        if (got := hashlib.sha256(data).hexdigest()) != digest:
            raise ArtifactError(
                f"'{path}' is damaged: expected SHA-256 {digest}, got {got}; copy or export the "
                "artifact again"
            )
        return data


def _release(version: str) -> str:
    """What of a version has to be the same: major and minor number; all of a pre-release."""
    found = re.fullmatch(r"(\d+\.\d+)(\.\d+)*(\.?post\d+)?(\+.*)?", version)
    return found[1] if found else version


def _plain_name(name: str) -> str:
    if not name or name != os.path.basename(name) or name in (".", "..") or "\\" in name:
        raise ValueError(f"'{name}' is no name of a file in its folder")
    return name


def _position(i: Any, entries: Sequence[Entry]) -> int:
    if not isinstance(i, int) or not 0 <= i < len(entries):
        raise ValueError(f"expected a position below {len(entries)}, got {i!r}")
    return i


def _entry(raw: Mapping[str, Any], roles: Sequence[str]) -> Entry:
    shape = tuple(None if n is None else int(n) for n in raw["shape"])
    if raw["role"] not in roles:
        raise ValueError(f"role '{raw['role']}' of '{raw['name']}' is none of {', '.join(roles)}")
    if any(n is not None and n < 0 for n in shape):
        raise ValueError(f"'{raw['name']}' has a negative extent")
    return Entry(str(raw["name"]), shape, _DTYPES[raw["dtype"]], raw["role"])


def _signature(raw: Mapping[str, Any]) -> Signature:
    inputs = tuple(_entry(i, ("data", "parameter", "state", "constant")) for i in raw["inputs"])
    outputs = tuple(_entry(o, ("result", "parameter", "state")) for o in raw["outputs"])
    storage = tuple(
        (
            _position(s["output"], outputs),
            None if s["input"] is None else _position(s["input"], inputs),
        )
        for s in raw["storage"]
    )
    for output, source in storage:
        if None in outputs[output].shape:
            raise ValueError(f"storage of '{raw['name']}' has an open extent")
        if source is not None and inputs[source].type != outputs[output].type:
            raise ValueError(f"storage of '{raw['name']}' is of another type")
    for what, entries in (("inputs", inputs), ("outputs", outputs)):
        if len({e.name for e in entries}) != len(entries):
            raise ValueError(f"'{raw['name']}' has two {what} of one name")
    return Signature(str(raw["name"]), str(raw["mode"]), inputs, outputs, storage)


# --- which module runs here -----------------------------------------------------------------------


_ORDER = ("cuda", "hip", "metal", "vulkan")
"""Drivers from best to worst; CPUs come after them, software that plays a GPU last."""


def _preferred(
    modules: Iterable[Compiled], target: str, device: str | None = None
) -> list[Compiled]:
    """The modules that `target` may mean, the best first; those that `device` does not run come
    last, without a look at what there is.
    """
    fit = [m for m in modules if target in ("auto", m.target, m.family)]
    if target == "auto":  # code for one model of GPU may compute wrong numbers on another
        fit = [m for m in fit if m.driver != "vulkan" or ":" not in m.target]
    return sorted(fit, key=lambda m: (_rank(m, device), target != m.target, _weakness(m)))


def _rank(module: Compiled, device: str | None) -> int:
    if device is not None:
        return not _runs(module, device)
    if module.driver == "vulkan" and all(d.kind == "software" for d in _devices("vulkan")[0]):
        return len(_ORDER) + 1
    return _ORDER.index(module.driver) if module.driver in _ORDER else len(_ORDER)


def _weakness(module: Compiled) -> tuple[bool, int]:
    """Code for more CPU features, or a later GPU, comes first; interpreted code last."""
    if module.driver in _HOST:
        return not module.architecture, -len(module.cpu_features)
    number = re.search(r"sm_(\d+)", module.target)
    return False, -int(number[1]) if number else -80


def _runs(module: Compiled, device: str) -> bool:
    driver = device.partition("://")[0]
    return driver == module.driver or (driver in _HOST and module.driver in _HOST)


def _unfit(module: Compiled, device: str | None) -> str:
    """Why a module does not run here; "" if it does, as far as can be told without loading it."""
    if device is not None and not _runs(module, device):
        return f"runs on {module.driver}, not on device '{device}'"
    if module.driver not in _HOST:
        return _devices(module.driver)[1]
    if module.architecture not in ("", architecture()):
        return f"is code for {module.architecture}, this machine is {architecture()}"
    here = cpu_features()
    if here is None and module.cpu_features:
        return "needs CPU features, and those of this machine are not known: no /proc/cpuinfo"
    missing = [f for f in module.cpu_features if f not in (here or ())]
    if missing:
        return f"needs the CPU features {', '.join(missing)}, which this CPU lacks"
    return ""


def _machine() -> str:
    drivers = [str(d) for d in devices() if d.kind != "cpu"]
    return ", ".join([f"{architecture()} CPU", *(drivers or ["no GPU"])])


class _Code:
    """A loaded module: machine code that has no state, which all who load the same bytes share."""

    def __init__(self, image: bytes, uri: str) -> None:
        self.driver = uri.partition("://")[0]
        self.device = open_device(uri)
        self.memory = _Memory(self.driver, self.device)
        self.module = iree.VmModule.copy_buffer(_shared.instance, image)
        hal = iree.create_hal_module(_shared.instance, self.device)
        self.context = iree.VmContext(_shared.instance, modules=[hal, self.module])

    @classmethod
    def load(cls, image: bytes, digest: str, uri: str) -> "_Code":
        """From memory if it is there: a context on a GPU never gives all its memory back."""
        _check_process()
        _shared.pid = os.getpid()
        key = digest, uri
        with _shared.lock:
            if _shared.instance is None:
                _shared.instance = iree.VmInstance()
            found = _shared.modules.get(key)
            if found is None:
                found = _shared.modules[key] = cls(image, uri)
            if found.driver not in _HOST:
                _shared.recent.append(found)
            return found


def load(
    folder: str | os.PathLike[str], target: str = "auto", device: str | None = None
) -> "Model":
    """The artifact in `folder`, ready to be called, with its initial state.

    `target` is the name of a module of the artifact, such as "cpu:x86-64-v3", or of a family, such
    as "vulkan"; "auto" takes the best one that runs here: CUDA, ROCm, Metal, Vulkan on a GPU, then
    the CPU with the most features, and software that plays a GPU only where nothing else is. Code
    for a GPU's model is only taken by name. `device` is one of `devices()` by its uri, where there
    are several, or "local-sync" to compute on the caller's thread, which is faster for small
    functions.

    ArtifactError says what is wrong: a file that is missing or damaged, another version, no module
    for this machine.
    """
    start = time.perf_counter()
    folder = pathlib.Path(folder)
    manifest = Manifest(folder)
    for attempt in range(3):
        try:
            model = _load(manifest, target, device)
            break
        except ArtifactError:  # perhaps another artifact was being written over this one
            newer = Manifest(folder)
            if newer.text == manifest.text or attempt == 2:
                raise
            manifest = newer
    model.load_seconds = time.perf_counter() - start
    return model


def _load(manifest: Manifest, target: str, device: str | None) -> "Model":
    modules = _preferred(manifest.modules, target, device)
    has = ", ".join(m.target for m in manifest.modules)
    if not modules:
        raise ArtifactError(
            f"'{manifest.folder}' expected a target that it has, {has}, got '{target}'; this "
            f"machine is {_machine()}; export it for '{target}' or choose one of those"
        )
    reasons: list[str] = []
    for module in modules:
        if why := _unfit(module, device):
            reasons.append(f"{module.target} {why}")
            continue
        uri = device or _devices(module.driver)[0][0].uri
        image = manifest.read(module.file)
        try:
            code = _Code.load(image, manifest.files[module.file][0], uri)
        except (RuntimeError, ValueError) as error:
            if isinstance(error, ArtifactError):
                raise
            reasons.append(f"{module.target} cannot be loaded on {uri}: {_short(error)}")
            continue
        return Model(manifest, module, code, reasons)
    raise ArtifactError(
        f"'{manifest.folder}' expected a machine that one of its modules runs on, got "
        f"{_machine()}: {'; '.join(reasons)}; export it for a target that is here"
    )


# --- the model ------------------------------------------------------------------------------------


@dataclasses.dataclass
class _Slot:
    """An array that the model holds, in the device's memory; `view` is None while it has no value,
    `lost` says why it had one.
    """

    entry: Entry
    view: Any = None
    lost: str = ""


class Function:
    """A function of a model: `inputs` are those that the caller gives, `outputs` those it gets."""

    def __init__(self, model: "Model", signature: Signature, code: _Code) -> None:
        self.signature = signature
        self.name, self.mode = signature.name, signature.mode
        self.inputs = tuple(i for i in signature.inputs if i.role == "data")
        self.outputs = tuple(o for o in signature.outputs if o.role == "result")
        self.arena, self.in_place = model.module.functions[self.name]
        self.storage = dict(signature.storage)
        self.changes = tuple(
            (i, o.name) for i, o in enumerate(signature.outputs) if o.role != "result"
        )
        overwritten = [signature.inputs[i] for i in self.in_place]
        self.overwrites = tuple(e.name for e in overwritten if e.role != "data")
        self.is_open = any(None in i.shape for i in self.inputs)
        self.proven: set[tuple[tuple[int, ...], ...]] = set()
        self._model = model
        self.entry_point: Any = code.module.lookup_function(self.name)
        self._check_module()

    def _check_module(self) -> None:
        """Raise where the module is not what the manifest describes: IREE does not check the size
        of an arena.
        """
        if self.entry_point is None:
            raise ArtifactError(f"the module expected a function '{self.name}', which is not there")
        about = dict(self.entry_point.reflection)
        size = int(about.get("iree.abi.transients.size.constant", 0))
        if size > self.arena or ("iree.abi.transients.size" in about) != (self.arena > 0):
            raise ArtifactError(
                f"'{self.name}' expected an arena of {size} bytes, the manifest says {self.arena}; "
                "export the artifact again"
            )
        ties = json.loads(about.get("gradopt.memory", "{}")).get("ties", [])
        overwritten = {tie["donated"] for tie in ties if tie["in_place"]}
        if overwritten != self.in_place:
            raise ArtifactError(
                f"'{self.name}' overwrites inputs {sorted(overwritten)}, the manifest says "
                f"{sorted(self.in_place)}; export the artifact again"
            )

    def __call__(self, /, *data: Any, **named: Any) -> dict[str, np.ndarray]:
        """The results by name, as NumPy arrays. Data are given in order or by name."""
        return self._model._perform(self, self._bind(data, named))

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(map(str, e)) for e in (self.inputs, self.outputs))
        return f"{self.name}({inputs}) -> {outputs}"

    def _bind(self, data: Sequence[Any], named: Mapping[str, Any]) -> list[np.ndarray]:
        """The arrays for the data inputs, checked."""
        names = [i.name for i in self.inputs]
        listed = f"{len(names)} arguments ({', '.join(names)})"
        if len(data) > len(names):
            raise ArgumentError(f"'{self.name}' expected {listed}, got {len(data)}")
        given = dict(zip(names, data, strict=False))
        for name, value in named.items():
            if name not in names:
                raise ArgumentError(f"'{self.name}' expected {listed}, got one called '{name}'")
            if name in given:
                raise ArgumentError(f"'{self.name}' expected argument '{name}' once, got it twice")
            given[name] = value
        if missing := [name for name in names if name not in given]:
            raise ArgumentError(
                f"'{self.name}' expected {listed}, got none for {', '.join(missing)}"
            )
        return [_as_array(f"'{self.name}'", i, given[i.name]) for i in self.inputs]


def _as_array(who: str, entry: Entry, value: Any) -> np.ndarray:
    """A NumPy array of an entry's type; a Python number takes on its dtype, nothing else does."""
    if isinstance(value, bool | int | float) and not isinstance(value, np.generic):
        value = _number(who, entry, value)
    elif not isinstance(value, np.ndarray | np.generic) and hasattr(value, "__dlpack__"):
        value = np.from_dlpack(value)
    if not isinstance(value, np.ndarray | np.generic):
        raise ArgumentError(
            f"{who} expected argument '{entry.name}' to be an array, {entry.type}, got "
            f"{type(value).__name__}"
        )
    array = np.asarray(value)
    fits = len(array.shape) == len(entry.shape) and all(
        n in (None, m) for n, m in zip(entry.shape, array.shape, strict=True)
    )
    if not fits or array.dtype != entry.dtype:
        dtype = array.dtype.name if array.dtype.isnative else array.dtype.str
        got = "x".join([*map(str, array.shape), dtype])
        raise ArgumentError(
            f"{who} expected argument '{entry.name}' of type {entry.type}, got {got}"
        )
    return array


def _number(who: str, entry: Entry, value: Any) -> np.ndarray:
    kinds = {"b": bool, "i": int, "u": int}
    kind = kinds.get(entry.dtype.kind, (int, float))
    try:
        if isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool):
            return np.array(value, entry.dtype)
    except OverflowError:
        pass
    raise ArgumentError(
        f"{who} expected argument '{entry.name}' of type {entry.type}, got {value!r}"
    )


_SMALL = 1 << 16
"""Bytes of a result that is copied without asking whether it has to be."""


class Model:
    """An artifact, loaded. Its functions are called by name, `model.call("step", x, y)`, or as
    attributes, `model.step(x, y)`. The arrays it holds stay in the device's memory; a function that
    changes them changes what all others see.

    Calls that change the state, and whatever reads or writes it as a whole, wait for each other;
    other calls of several threads run at once.
    """

    def __init__(
        self, manifest: Manifest, module: Compiled, code: _Code, skipped: Sequence[str]
    ) -> None:
        self.manifest, self.module = manifest, module
        self.name, self.target, self.device = manifest.name, module.target, code.driver
        self.skipped = tuple(skipped)  # why better modules were not taken
        self.load_seconds = 0.0
        self._code, self._memory, self._gate = code, code.memory, _Gate()
        self._arenas: list[tuple[int, Any]] = []
        self._arena_lock = threading.Lock()
        self._spares: dict[tuple[Any, ...], list[Any]] = {}
        self.functions = {
            name: Function(self, signature, code) for name, signature in manifest.functions.items()
        }
        self._slots = {name: _Slot(entry) for name, entry in manifest.held.items()}
        self._recycles = any(f.storage for f in self.functions.values())
        for name, view in self._initial().items():
            self._slots[name].view = view

    def __getattr__(self, name: str) -> Function:
        functions = self.__dict__.get("functions", {})
        if name in functions:
            return functions[name]
        raise AttributeError(f"a model with functions {', '.join(functions)} has no '{name}'")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.functions})

    def __repr__(self) -> str:
        return f"Model('{self.name}', {self.target} on {self.device}: {', '.join(self.functions)})"

    def call(self, function: str, /, *data: Any, **named: Any) -> dict[str, np.ndarray]:
        """The results of a function, by name. Data are given in order or by name.

        ArgumentError for arguments that do not fit, before anything runs. DeviceError if the call
        failed; the state is then as it was, or the message says which arrays are lost.
        """
        if function not in self.functions:
            raise ArgumentError(
                f"'{self.name}' expected a function out of {', '.join(self.functions)}, got "
                f"'{function}'"
            )
        return self.functions[function](*data, **named)

    def describe(self) -> dict[str, Any]:
        """What was loaded, for people and JSON: names, versions, types, bytes, milliseconds."""
        held = [s.entry for s in self._slots.values()]
        return {
            "name": self.name,
            "target": self.target,
            "device": self.device,
            "versions": dict(self.manifest.raw["versions"]),
            "runtime": runtime_version(),
            "licence": self.manifest.raw.get("licence"),
            "load_ms": round(self.load_seconds * 1e3, 3),
            "module_bytes": self.manifest.files[self.module.file][1],
            "held_bytes": sum(e.nbytes for e in held),
            "state_bytes": sum(e.nbytes for e in held if e.role != "constant"),
            "skipped": list(self.skipped),
            "functions": {
                f.name: {
                    "mode": f.mode,
                    "inputs": {i.name: i.type for i in f.inputs},
                    "outputs": {o.name: o.type for o in f.outputs},
                    "changes": [name for _, name in f.changes],
                    "arena_bytes": f.arena,
                }
                for f in self.functions.values()
            },
        }

    # --- calls

    def _perform(self, f: Function, data: list[np.ndarray]) -> dict[str, np.ndarray]:
        _check_process()
        with self._gate.alone() if f.changes else self._gate.shared():
            keep: list[Any] = []
            return self._run(f, self._data(f, data, keep), tuple(a.shape for a in data))

    def _data(self, f: Function, data: list[np.ndarray], keep: list[Any]) -> list[Any]:
        """The views of the caller's arrays, in their places among the inputs."""
        given = iter(data)
        views: list[Any] = []
        for i, entry in enumerate(f.signature.inputs):
            if entry.role != "data":
                views.append(None)
            elif i in f.in_place:
                views.append(self._memory.put(next(given)))
            else:
                views.append(self._memory.lend(next(given), keep))
        return views

    def _run(
        self, f: Function, views: list[Any], shapes: tuple[tuple[int, ...], ...]
    ) -> dict[str, np.ndarray]:
        """A call, with the views of its data; those of held arrays are put in here."""
        on_copies = bool(f.is_open and f.overwrites) and shapes not in f.proven
        for i, entry in enumerate(f.signature.inputs):
            if entry.role != "data":
                view = self._value(f, entry.name).view
                on_copy = on_copies and i in f.in_place
                views[i] = self._memory.copy(view, entry.dtype) if on_copy else view
        places = {r: self._place(f, views, r, source) for r, source in f.signature.storage}
        given = iree.VmVariantList(len(views) + len(places) + 1)
        for view in (*views, *places.values()):
            given.push_ref(view)
        found = iree.VmVariantList(len(f.signature.outputs))
        arena = self._take_arena(f.arena) if f.arena else None
        if arena is not None:
            given.push_ref(arena[1])
        try:
            with Waiting():
                self._code.context.invoke(f.entry_point, given, found)
        except RuntimeError as error:
            raise self._failed(f, shapes, error, () if on_copies else f.overwrites) from None
        except BaseException:  # an interrupt: the call has ended, or never began
            if found.size:
                self._commit(f, views, places, found)
            raise
        try:
            outputs = self._commit(f, views, places, found, recycle=True)
        except BaseException:
            self._commit(f, views, places, found)
            raise
        if arena is not None:
            self._arenas.append(arena)
        if on_copies:
            f.proven.add(shapes)
        return {
            o.name: self._result(o, outputs[i], i in places, views)
            for i, o in enumerate(f.signature.outputs)
            if o.role == "result"
        }

    def _value(self, f: Function, name: str) -> _Slot:
        """A held array for a call; an error where it has no value."""
        slot = self._slots[name]
        if slot.view is None:
            raise self._without_value(f"'{f.name}'", slot)
        return slot

    def _without_value(self, who: str, slot: _Slot) -> ArtifactError:
        if slot.lost:
            return DeviceError(slot.lost)
        makers = [
            f.name
            for f in self.functions.values()
            if any(n == slot.entry.name for _, n in f.changes)
        ]
        makers = [
            n
            for n in makers
            if all(i.name != slot.entry.name for i in self.functions[n].signature.inputs)
        ]
        call = f"call '{makers[0]}', " if makers else ""
        return ArgumentError(
            f"{who} expected '{slot.entry.name}' to have a value, which the artifact came without; "
            f"{call}restore a checkpoint or use set_state first"
        )

    def _place(self, f: Function, views: Sequence[Any], output: int, source: int | None) -> Any:
        """Memory for an output: that of the input it takes over, where the module overwrites it;
        else what the call before it left, or new.
        """
        if source is not None and source in f.in_place:
            return views[source]
        entry = f.signature.outputs[output]
        if source is not None and entry.role != "result":
            spares = self._spares.get((entry.shape, entry.dtype))
            if spares:
                return spares.pop()
        return self._memory.empty(entry.extents, entry.dtype)

    def _take_arena(self, size: int) -> tuple[int, Any]:
        """The smallest free arena that suffices, or a new one: calls at once have their own."""
        with self._arena_lock:
            fit = [i for i, (n, _) in enumerate(self._arenas) if n >= size]
            if fit:
                return self._arenas.pop(min(fit, key=lambda i: self._arenas[i][0]))
        return size, self._memory.scratch(size)

    def _commit(
        self,
        f: Function,
        views: Sequence[Any],
        places: Mapping[int, Any],
        found: Any,
        recycle: bool = False,
    ) -> list[Any]:
        """Put the new values of held arrays in their slots; the views of all outputs. It may be
        done again after an interrupt, then without keeping memory for the next call.
        """
        outputs = [
            places[i] if i in places else found.get_as_object(i, iree.HalBufferView)
            for i in range(len(f.signature.outputs))
        ]
        for i, _ in f.changes:
            if i not in places and self._recycles:
                # It may lie in memory of an input, which a later call overwrites.
                outputs[i] = self._memory.copy(outputs[i], f.signature.outputs[i].dtype)
        before = [self._slots[name].view for _, name in f.changes]
        for i, name in f.changes:
            self._slots[name].view, self._slots[name].lost = outputs[i], ""
        if recycle:
            self._recycle(f, before, [outputs[i] for i, _ in f.changes])
        return outputs

    def _recycle(self, f: Function, before: Sequence[Any], now: Sequence[Any]) -> None:
        """Keep memory that is free now for the next call, as much as this one took."""
        wanted = collections.Counter(
            (f.signature.outputs[r].shape, f.signature.outputs[r].dtype)
            for r, source in f.signature.storage
            if source is not None and source not in f.in_place
        )
        used = set(map(id, now))
        for (i, _), view in zip(f.changes, before, strict=True):
            key = f.signature.outputs[i].shape, f.signature.outputs[i].dtype
            if view is not None and id(view) not in used and wanted[key]:
                wanted[key] -= 1
                self._spares.setdefault(key, []).append(view)

    def _result(self, entry: Entry, view: Any, is_own: bool, inputs: Sequence[Any]) -> np.ndarray:
        """A result as the caller gets it: a copy if small, or where a held or given array lies."""
        memory = self._memory
        if not memory.is_host or view.byte_length <= _SMALL:
            return memory.get(view, entry.dtype)
        if not is_own:
            low, high = memory.span(view)
            for begin, end in map(memory.span, inputs):
                if begin < high and low < end:
                    return memory.get(view, entry.dtype)
        return memory.window(view, entry.dtype)

    def _failed(
        self, f: Function, shapes: Sequence[Any], error: RuntimeError, overwritten: Sequence[str]
    ) -> ArtifactError:
        """The error of a call; what it may have overwritten is lost."""
        lost = ""
        if overwritten:
            names = _listed(sorted(overwritten))
            lost = f"; the values of {names} are lost with it: restore a checkpoint, or reset()"
        where = re.search(r"unknown extents differ at (.*?);", str(error))
        if where:
            failed: ArtifactError = ArgumentError(
                f"'{f.name}' expected open extents of its arguments to agree, got shapes "
                f"{', '.join(map(str, shapes))} (checked at {where[1].strip()}){lost}"
            )
        else:
            failed = DeviceError(f"'{f.name}' failed while it ran: {_short(error)}{lost}")
        for name in overwritten:
            self._slots[name].view, self._slots[name].lost = None, str(failed)
        return failed

    # --- the state

    def state(self, constants: bool = False) -> dict[str, np.ndarray]:
        """Copies of the parameters and states by name, NumPy arrays; of constants too if asked."""
        _check_process()
        with self._gate.shared():
            slots = self._slots if constants else self._changeable()
            for slot in slots.values():
                if slot.view is None:
                    raise self._without_value("the state", slot)
            return {n: self._memory.get(s.view, s.entry.dtype) for n, s in slots.items()}

    def set_state(self, arrays: Mapping[str, Any]) -> None:
        """Give parameters and states new values, all of them or some. ArgumentError for names that
        the model does not have and arrays of other types; then nothing is changed.
        """
        checked = {}
        for name, value in arrays.items():
            slot = self._slots.get(name)
            if slot is None or (slot.entry.role == "constant" and slot.view is not None):
                kind = "a constant" if slot else "none"
                raise ArgumentError(
                    f"set_state expected names of parameters and states, "
                    f"{_listed(list(self._changeable()))}, got '{name}', which is {kind}"
                )
            checked[name] = _as_array("set_state", slot.entry, value)
        self._exchange(checked)

    def reset(self) -> None:
        """Put back the initial values, which are read from the artifact's folder again."""
        _check_process()
        with self._gate.alone():
            views = self._initial()
            for name, slot in self._slots.items():
                slot.view, slot.lost = views.get(name), ""

    def _exchange(self, arrays: Mapping[str, np.ndarray]) -> None:
        _check_process()
        with self._gate.alone():
            views = {name: self._memory.put(array) for name, array in arrays.items()}
            for name, view in views.items():
                self._slots[name].view, self._slots[name].lost = view, ""

    def _changeable(self) -> dict[str, _Slot]:
        return {n: s for n, s in self._slots.items() if s.entry.role != "constant"}

    def _initial(self) -> dict[str, Any]:
        """Views of the initial values, for the arrays that the artifact has them of."""
        zeros = {
            e.name: self._memory.put(np.zeros(e.extents, e.dtype)) for e in self.manifest.zeros
        }
        file = next((name for name in _WEIGHTS if name in self.manifest.files), None)
        if file is None:
            return zeros
        path, data = self.manifest.folder / file, self.manifest.read(file)
        try:
            arrays = _WEIGHTS[file](data, self.manifest.held)
        except (ValueError, RuntimeError) as error:
            raise ArtifactError(
                f"'{path}' does not fit the manifest: {_short(error)}; export the artifact again"
            ) from None
        for name, array in arrays.items():
            entry = self.manifest.held.get(name)
            if entry is None or (entry.shape, entry.dtype) != (array.shape, array.dtype):
                raise ArtifactError(
                    f"'{path}' expected {entry or 'no array'}, got '{name}' of shape {array.shape} "
                    f"and dtype {array.dtype.name}; export the artifact again"
                )
        return zeros | {name: self._memory.put(array) for name, array in arrays.items()}

    # --- checkpoints

    def save(self, path: str | os.PathLike[str], /, **notes: Any) -> None:
        """Write the state to a file, and `notes`, which JSON can hold: an epoch, a batch, a seed.

        The file at `path` is the old one or the new one at any time, also if the process is killed
        or the machine loses power. It is a safetensors file, with a checksum of all of it.
        """
        text = _as_json(notes)
        state = self.state()
        metadata = {
            "format": CHECKPOINT,
            "artifact": self.name,
            "gradopt": VERSION,
            "signature": self._signature(),
            "notes": text,
        }
        _write_whole(pathlib.Path(path), _checkpoint_pieces(state, metadata))

    def restore(self, path: str | os.PathLike[str], /) -> dict[str, Any]:
        """Read the state from a file that `save` wrote; returns the notes. CheckpointError where it
        is damaged, or of another state than this artifact's; then nothing is changed.
        """
        arrays, metadata = read_checkpoint(pathlib.Path(path))
        slots = self._changeable()
        expected = {name: slot.entry.type for name, slot in slots.items()}
        got = {n: Entry(n, a.shape, a.dtype, "").type for n, a in arrays.items()}
        if expected != got or metadata["signature"] != self._signature():
            raise CheckpointError(
                f"'{path}' is a checkpoint of '{metadata['artifact']}' with another state than "
                f"that of '{self.name}': {_difference(expected, got)}"
            )
        self._exchange(arrays)
        return json.loads(metadata["notes"])

    def _signature(self) -> str:
        """The digest of the names and types of the state."""
        types = sorted((n, s.entry.type) for n, s in self._changeable().items())
        return hashlib.sha256(json.dumps(types).encode()).hexdigest()


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more


def _difference(expected: Mapping[str, str], got: Mapping[str, str]) -> str:
    faults = [
        f"'{name}' expected {expected.get(name, 'no array')}, got {got.get(name, 'none')}"
        for name in sorted({*expected, *got})
        if expected.get(name) != got.get(name)
    ]
    return "; ".join(faults[:5]) + (f"; and {len(faults) - 5} more" if len(faults) > 5 else "")


# --- checkpoint files -----------------------------------------------------------------------------


_START = b'{"__metadata__":{"sha256":"'
_DIGEST = slice(8 + len(_START), 8 + len(_START) + 64)
"""Where a checkpoint has its own SHA-256, which is that of the file with zeros there."""


def _as_json(notes: Mapping[str, Any]) -> str:
    def plain(x: Any) -> Any:
        if isinstance(x, np.generic | np.ndarray):
            return x.tolist()
        raise TypeError(f"{type(x).__name__} is nothing that JSON can hold")

    try:
        return json.dumps(notes, default=plain)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"save expected notes that JSON can hold: {error}") from None


def _checkpoint_pieces(
    arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]
) -> list[bytes | memoryview]:
    pieces = safetensors_pieces(arrays, {"sha256": "0" * 64, **metadata})
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    head = bytearray(pieces[0] + pieces[1])  # type: ignore[operator]
    head[_DIGEST] = digest.hexdigest().encode()
    return [bytes(head), *pieces[2:]]


def read_checkpoint(path: pathlib.Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    try:
        data = bytearray(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"cannot read '{path}': {error.strerror}") from None
    if not data[8:].startswith(_START):
        raise CheckpointError(f"'{path}' is no checkpoint, or damaged at its beginning")
    expected = bytes(data[_DIGEST])
    data[_DIGEST] = b"0" * 64
    got = hashlib.sha256(data).hexdigest()
    if expected != got.encode():
        raise CheckpointError(
            f"'{path}' is damaged: expected SHA-256 {expected.decode(errors='replace')}, got {got}"
        )
    try:
        arrays, metadata = read_safetensors(data)
    except ValueError as error:
        raise CheckpointError(f"'{path}' is no checkpoint: {error}") from None
    if metadata.get("format") != CHECKPOINT:
        raise CheckpointError(
            f"'{path}' expected format {CHECKPOINT}, got {metadata.get('format')}, written by "
            f"gradopt {metadata.get('gradopt')}"
        )
    return arrays, metadata


def _write_whole(path: pathlib.Path, pieces: Sequence[bytes | memoryview]) -> None:
    """Write a file of which nobody ever sees a part: under another name, to the disk, renamed."""
    folder = path.parent
    folder.mkdir(parents=True, exist_ok=True)
    _sweep(path)
    temporary = folder / f".{path.name}.{secrets.token_hex(8)}.tmp"
    try:
        with open(temporary, "xb") as file:
            _lock(file)
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _lock(file: Any) -> bool:
    """Whether the file is ours until it is closed: a process that was killed has none."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


_STALE = 60.0
"""Seconds after which a temporary file that nobody has locked was left by a killed process: it is
locked as soon as it is there, but not at once.
"""


def _sweep(path: pathlib.Path) -> None:
    """Remove what killed processes left of this checkpoint."""
    pattern = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{16}}\.tmp")
    for name in os.listdir(path.parent):
        if not pattern.fullmatch(name):
            continue
        stale = path.parent / name
        with contextlib.suppress(OSError):
            is_old = time.time() - stale.stat().st_mtime > _STALE
            with open(stale, "rb") as file:
                if is_old and (fcntl is None or _lock(file)):
                    stale.unlink()


# --- the command line -----------------------------------------------------------------------------


DESCRIPTION = """\
List the functions of an artifact, or call one: --input takes a .npy file, or SHAPExDTYPE=VALUE such
as 4x8xfloat32=0 for an array filled with a number, once for each argument, in order. Results are
printed, or written as .npy files to the folder given by --output. The state is the artifact's
initial one, or that of the checkpoint given by --state; --save writes it after the calls."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command here and gradopt-run have in common."""
    add = parser.add_argument
    add("artifact", nargs="?", help="the artifact's folder")
    add("function", nargs="?", help="the function to call; without it the functions are listed")
    add("--input", action="append", default=[], metavar="ARRAY", help="an argument, in order")
    add("--output", type=pathlib.Path, help="a folder for the results, one .npy file each")
    add("--target", default="auto", help="a target of the artifact, or a family (auto)")
    add("--device", help="a device by its uri, or local-sync")
    add("--state", metavar="FILE", help="a checkpoint to start from")
    add("--save", metavar="FILE", help="a checkpoint to write after the calls")
    add("--steps", type=int, default=1, metavar="N", help="how often to call (1)")
    add("--devices", action="store_true", help="list the devices of this machine")


def open_model(options: argparse.Namespace) -> Model:
    """The model that the options of a command name, in the state they name."""
    if options.artifact is None:
        raise ArgumentError("expected the folder of an artifact")
    if options.steps < 1:
        raise ArgumentError(f"--steps expected a number of calls, got {options.steps}")
    model = load(options.artifact, options.target, options.device)
    if options.state:
        model.restore(options.state)
    return model


def call_with(model: Model, options: argparse.Namespace) -> dict[str, np.ndarray]:
    """The results of the last of the calls that the options of a command ask for."""
    inputs = [parse_array(text) for text in options.input]
    results = model.call(options.function, *inputs)
    for _ in range(options.steps - 1):
        results = model.call(options.function, *inputs)
    if options.save:
        model.save(options.save)
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
        for name, array in results.items():
            np.save(options.output / f"{name.replace(os.sep, '_') or 'result'}.npy", array)
    return results


def parse_array(text: str) -> np.ndarray:
    """A .npy file's array, or one made from SHAPExDTYPE=VALUE."""
    kind, equals, value = text.partition("=")
    *extents, name = kind.split("x")
    try:
        if not equals or name not in _DTYPES:
            with open(text, "rb") as file:
                array = np.lib.format.read_array(file, allow_pickle=False)
            return array.view(bfloat16) if array.dtype == np.dtype("V2") else array
        dtype = _DTYPES[name]
        is_integer = dtype.kind in "biu"
        number = np.array(int(value) if is_integer else float(value)).astype(dtype)
        if is_integer and int(number) != int(value):
            raise ValueError(f"{value} does not fit {name}")
        return np.full([int(n) for n in extents], number, dtype)
    except (OSError, ValueError, OverflowError, EOFError) as error:
        raise ArgumentError(
            f"--input expected a .npy file or SHAPExDTYPE=VALUE such as 4x8xfloat32=0, got "
            f"'{text}': {error}"
        ) from None


def show(results: Mapping[str, np.ndarray]) -> None:
    """Print results."""
    for name, array in results.items():
        print(f"{name or 'result'}: {Entry(name, array.shape, array.dtype, '').type}")
        print(np.array2string(array, threshold=64))


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(description=DESCRIPTION)
    add_arguments(parser)
    options = parser.parse_args(argv)
    try:
        if options.devices:
            print("\n".join(f"{d.uri}  {d}" for d in devices()))
            return 0
        model = open_model(options)
        if options.function is None:
            print(f"{model.name}: {model.target} on {model.device}")
            print("\n".join(f"  {f!r}" for f in model.functions.values()))
            return 0
        results = call_with(model, options)
        if not options.output:
            show(results)
    except (ArtifactError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
