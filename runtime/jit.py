# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The host JIT: functions in memref form, every value at its planned place, compiled by LLVM into
this process and called on NumPy arrays.

It is there to prove memory plans and to look at them: a value that is overwritten while it is still
needed gives a wrong result. Its loops are plain, so that programs compile in a fraction of a second
and run slowly. Nothing is kept on disk.
"""

import contextlib
import ctypes
import dataclasses
import functools
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..dialect.control import symbols
from ..dialect.function_graph import FunctionGraph
from ..dialect.graph import Graph
from ..dialect.mlir import DYNAMIC, ExecutionEngine, ir
from ..dialect.types import TensorSpec
from ..errors import ArgumentError, CompileError, PassError
from ..lowering import pipeline
from ..lowering.marks import DISAGREE
from ..lowering.memref import ALLOCATED, ARENA, FAILURES, INPUTS, RESULTS
from ..lowering.target import Target
from . import dispatch
from .array import Array
from .buffers import ALIGNMENT, allocate, contents, copy_in
from .device import disagreement, home
from .device import place as place_of
from .executable import Executable

OPTIMIZATION = 0
"""LLVM's level. Higher ones take two to three times as long to compile."""
POISON = 0xFF
"""A byte that makes floats NaN and numbers -1."""

Allocate = Callable[[tuple[int, ...], np.dtype], np.ndarray]


class JitModule:
    """Compiled functions in memref form, by name."""

    def __init__(self, module: ir.Module, name: str = "module") -> None:
        """Compile a module, which is lowered in place. Raises CompileError where that fails."""
        with module.context:
            self.functions = {
                name: Function(function)
                for name, function in symbols(module).items()
                if RESULTS in function.attributes
            }
            _show_mathematics()
            try:
                pipeline.run(module, "convert-memref-form-to-llvm")
                engine = ExecutionEngine(module, OPTIMIZATION)
            except (PassError, RuntimeError) as error:
                raise CompileError(f"LLVM could not compile '{name}': {error}") from None
        for function in self.functions.values():
            function.find(engine)

    def run(
        self,
        name: str,
        arrays: Sequence[np.ndarray],
        specs: Sequence[TensorSpec],
        poison: int | None = None,
        arena: np.ndarray | None = None,
    ) -> list[np.ndarray]:
        """Call a function by name; `specs` are its results' types. With `poison`, every byte of the
        arena, `arena` or the function's own, has this value when the call starts.
        """
        function = self.functions[name]
        given = [np.asarray(a, order="C") for a in arrays]
        for position in set(function.results) & set(range(len(given))):
            given[position] = given[position].copy()  # donated, but the caller's
        return function.call(given, specs, aligned, poison, arena)


class Function:
    """A compiled function: what its arguments are, and the arena that it works in."""

    def __init__(self, function: Any) -> None:
        attributes = function.attributes
        self.name = function.name.value
        self.arguments = [Argument.of(ir.MemRefType(kind)) for kind in function.type.inputs]
        self.inputs = ir.IntegerAttr(attributes[INPUTS]).value
        self.results = list(ir.DenseI64ArrayAttr(attributes[RESULTS]))
        self.allocated = (
            list(ir.DenseI64ArrayAttr(attributes[ALLOCATED])) if ALLOCATED in attributes else []
        )
        self.failures = (
            [ir.StringAttr(m).value for m in attributes[FAILURES]] if FAILURES in attributes else []
        )
        self.size = ir.IntegerAttr(ir.DictAttr(attributes[ARENA])["size"]).value
        self._arena = aligned((self.size,), np.dtype(np.uint8))
        self._lock = threading.Lock()  # the arena is one call's at a time

    def find(self, engine: Any) -> None:
        """Look the code up; CompileError where LLVM left something undefined."""
        address = engine.raw_lookup(f"_mlir_ciface_{self.name}")
        if not address:
            raise CompileError(f"LLVM could not link '{self.name}'; what is missing is on stderr")
        self._code = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)
        self._engine = engine  # which the code belongs to

    def call(
        self,
        inputs: Sequence[np.ndarray],
        specs: Sequence[TensorSpec],
        allocate: Allocate,
        poison: int | None = None,
        arena: np.ndarray | None = None,
    ) -> list[np.ndarray]:
        """The results for contiguous inputs, in memory that `allocate` gives, or in that of the
        donated inputs.
        """
        self._check(inputs)
        given = list(inputs)
        for i, (place, spec) in enumerate(zip(self.results, specs, strict=True)):
            if i in self.allocated:
                given.append(np.zeros(1 + spec.rank, np.int64))
            elif place >= self.inputs:
                given.append(allocate(spec.shape, spec.dtype))  # type: ignore[arg-type]
        with self._lock:
            arena = self._arena if arena is None else arena
            if poison is not None:
                arena.fill(poison)
            given.append(arena)
            failed = np.zeros(1, np.int64)
            self._invoke([*given, failed] if self.failures else given)
        if failed[0]:
            raise self._error(self.failures[failed[0] - 1], inputs)
        return [
            taken(given[place], spec) if i in self.allocated else shaped(given[place], spec)
            for i, (place, spec) in enumerate(zip(self.results, specs, strict=True))
        ]

    def _check(self, inputs: Sequence[np.ndarray]) -> None:
        """Raise where memory is not what the function takes it for."""
        if len(inputs) != self.inputs:
            raise ArgumentError(f"'{self.name}' expected {self.inputs} arrays, got {len(inputs)}")
        for i, (array, argument) in enumerate(zip(inputs, self.arguments, strict=False)):
            if not argument.takes(array):
                raise ArgumentError(
                    f"'{self.name}' expected argument {i} to be {argument}, got an array of shape "
                    f"{array.shape} and {array.dtype.itemsize} bytes an element"
                )

    def _invoke(self, given: Sequence[np.ndarray]) -> None:
        descriptors = [a.descriptor(array) for a, array in zip(self.arguments, given, strict=True)]
        pointers = np.array([d.ctypes.data for d in descriptors], np.int64)
        places = pointers.ctypes.data + np.arange(len(pointers)) * pointers.itemsize
        self._code(places.ctypes.data)

    def _error(self, message: str, inputs: Sequence[np.ndarray]) -> ArgumentError:
        if DISAGREE in message:
            return disagreement(message, [a.shape for a in inputs])
        return ArgumentError(f"'{self.name}' expected: {message}")


@dataclasses.dataclass(frozen=True)
class Argument:
    """A memref that a function takes: extents, None where unknown, and bytes of an element."""

    shape: tuple[int | None, ...]
    itemsize: int

    @classmethod
    def of(cls, kind: ir.MemRefType) -> "Argument":
        shape = tuple(None if n == DYNAMIC else n for n in kind.shape)
        return cls(shape, max(getattr(kind.element_type, "width", 64) // 8, 1))

    def __str__(self) -> str:
        return f"of shape {self.shape} and {self.itemsize} bytes an element"

    def takes(self, array: np.ndarray) -> bool:
        """True for memory of the right size; of bytes, also under another type."""
        if not array.flags.c_contiguous:
            return False
        if self.itemsize == 1 and self.shape == (array.nbytes,):
            return True
        return (
            array.dtype.itemsize == self.itemsize
            and array.ndim == len(self.shape)
            and all(n in (None, m) for n, m in zip(self.shape, array.shape, strict=True))
        )

    def descriptor(self, array: np.ndarray) -> np.ndarray:
        """What MLIR passes a memref as: address twice, offset, extents, strides."""
        known = zip(self.shape, array.shape, strict=False)
        shape = [n or m for n, m in known] if None in self.shape else [n or 0 for n in self.shape]
        strides = [math.prod(shape[a + 1 :]) for a in range(len(shape))]
        address = array.ctypes.data
        return np.array([address, address, 0, *shape, *strides], np.int64)


@functools.cache
def _show_mathematics() -> None:
    """Let LLVM's linker find the C library's exp and the like where Python does not bring them."""
    with contextlib.suppress(OSError):  # other systems have them in the C library itself
        ctypes.CDLL("libm.so.6", mode=ctypes.RTLD_GLOBAL)


def aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """New memory that starts at a multiple of 64."""
    size = int(np.prod(shape)) * dtype.itemsize
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def shaped(memory: np.ndarray, spec: TensorSpec) -> np.ndarray:
    return memory.reshape(-1).view(spec.dtype).reshape(spec.shape)  # type: ignore[arg-type]


def taken(slot: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """A copy of an array that a function allocated, which is freed."""
    address, *shape = slot.tolist()
    size = int(np.prod(shape)) * spec.dtype.itemsize
    found = np.empty(shape, spec.dtype)
    ctypes.memmove(found.ctypes.data, address, size)
    _free(address)
    return found


_free = ctypes.CDLL(None).free
_free.argtypes, _free.restype = [ctypes.c_void_p], None


# --- compiled functions and graphs ----------------------------------------------------------------


class JitExecutable(Executable):
    """A graph compiled by the host JIT, called like one that IREE compiled: the results are
    `Array`s; those of donated inputs are in their memory.
    """

    def __init__(
        self,
        graph: Graph | FunctionGraph,
        target: Target,
        donated: list[int],
        is_static: bool,
        remat: str = "",
    ) -> None:
        self._describe(graph, donated, is_static, place_of(target.driver))
        self.in_place: set[int] = set()
        self.home = home(target.driver)
        self.allocator = self.home.allocator
        lowered, _ = pipeline.lower(graph.module, target, remat)
        self.module = JitModule(lowered, graph.name)
        self.function = self.module.functions[graph.name]

    def __call__(self, leaves: Sequence[Any], out: Sequence[Any] | None = None) -> Any:
        """As an Executable; results are computed elsewhere and copied to `out`."""
        destinations = self.destinations(leaves, out)
        leaves = self.here(leaves)
        if self.donated:
            self.check_donated(leaves)
            dispatch.settle()  # calls that read what is overwritten
        views: dict[int, Any] = {}  # address -> the buffer view that owns the memory

        def new(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
            return mapped(allocate(self.allocator, shape, dtype), dtype, views)

        inputs = [self._input(i, leaf, views) for i, leaf in enumerate(leaves)]
        found = self.function.call(inputs, self.outputs, new)
        for position in self.donated:
            if isinstance(leaves[position], Array):
                leaves[position].give_up()
        results = [
            Array(views.get(a.ctypes.data) or copy_in(self.allocator, a), a.shape, a.dtype)
            for a in found
        ]
        return self.tree(results if destinations is None else destinations.fill(results))

    def _input(self, position: int, leaf: Any, views: dict[int, Any]) -> np.ndarray:
        """An input's memory; a copy where a result takes its place and it is the caller's, or is
        read by NumPy arrays.
        """
        if position not in self.function.results:
            array = np.asarray(leaf, order="C")
            return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
        if isinstance(leaf, Array) and not leaf.is_shared():
            return mapped(leaf.block_until_ready().buffer_view(), leaf.dtype, views)
        return mapped(copy_in(self.allocator, np.asarray(leaf)), leaf.dtype, views)


def mapped(view: Any, dtype: np.dtype, views: dict[int, Any]) -> np.ndarray:
    """The memory of a buffer view as an array; `views` notes whose it is."""
    array = contents(view, dtype)
    if array.size:
        views[array.ctypes.data] = view
    return array
