# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Recorded calls: a forward that keeps what its backward reads, and the backward of that call."""

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..dialect import trees
from ..dialect.graph import Graph
from ..dialect.types import TensorSpec
from ..errors import ArgumentError, GradientError
from ..lowering.marks import ADD, NULL
from . import dispatch
from .array import Array, of_value
from .destinations import check_free
from .executable import Executable
from .interpreted import ReferenceExecutable

if TYPE_CHECKING:
    from ..lowering.record import Recording


class Differentiable:
    """A function compiled as two for one signature and set of gradient requests."""

    def __init__(
        self,
        graph: Graph,
        recording: "Recording",
        forward: Executable,
        backward: Executable,
        requests: Sequence[str],
    ) -> None:
        self.name = graph.name
        self.names = graph.input_names
        self.inputs = graph.input_specs
        self.in_tree = graph.in_tree
        self.out_tree = graph.out_tree
        self.recording = recording
        self.forward = forward
        self.backward = backward
        self.requests = requests

    def record(self, leaves: list[Any]) -> tuple[Any, "Pullback"]:
        """Call the forward; its results, and the backward of this call."""
        recording = self.recording
        # What a backward reads later must not change before: NumPy's memory is the caller's.
        for i in recording.inputs:
            if not isinstance(leaves[i], Array):
                leaves[i] = self._own(leaves[i])
        found = self.forward(leaves)
        count = recording.result_count
        results, residuals = list(found[:count]), list(found[count:])
        kept = [leaves[i].snapshot() for i in recording.inputs]
        kept += [results[i].snapshot() for i in recording.results] + residuals
        specs = self.forward.outputs[:count]
        return self.results(results), Pullback(self, kept, specs)

    def results(self, leaves: list[Any]) -> Any:
        """Results in the function's structure."""
        return tuple(leaves) if self.out_tree is None else trees.unflatten(self.out_tree, leaves)

    def arguments(self, leaves: list[Any]) -> tuple[Any, ...]:
        """A leaf for each input in the structure of the arguments."""
        return tuple(leaves) if self.in_tree is None else trees.unflatten(self.in_tree, leaves)

    def _own(self, array: np.ndarray) -> Array:
        dtype = array.dtype.newbyteorder("=") if not array.dtype.isnative else array.dtype
        if isinstance(self.forward, ReferenceExecutable):
            return of_value(np.array(array, dtype))
        view = self.forward.home.new(array)
        return Array(view, array.shape, dtype, None, self.forward.device)


class Pullback:
    """The backward of one recorded call: cotangents of its results -> gradients by its arguments.

    It can be called once, after which what the call kept is freed; with `retain_graph=True` again.
    """

    def __init__(self, of: Differentiable, kept: list[Any], specs: list[TensorSpec]) -> None:
        self._of = of
        self._kept: list[Any] | None = kept
        self._specs = specs
        self._lock = threading.Lock()

    def __call__(
        self, cotangents: Any = None, *, out: Any = None, retain_graph: bool = False
    ) -> tuple[Any, ...]:
        """The gradients, a tuple with one entry an argument, in its structure: None where none was
        asked for.

        `cotangents` has the structure, shapes and dtypes of the results; None stands for zeros, and
        for results that have no gradient; left away, they are all ones. `out` has the structure of
        the arguments and holds arrays (`Array` or NumPy's) that the gradients are written to, or
        added to where the request is "add", in place; None where a new array is wanted. Raises
        ArgumentError for wrong cotangents or `out`, GradientError in a second call without
        `retain_graph=True` in the first; neither changes anything.
        """
        self._record()  # before anything is said of the arguments
        cts = self._cotangents(cotangents)
        places = self._places(out)
        with self._lock:
            kept = self._record()
            gradients = self._run(kept, cts, places)
            if not retain_graph:
                self._kept = None
        return self._of.arguments(gradients)

    def _record(self) -> list[Any]:
        """What is kept; GradientError where that has been freed."""
        if self._kept is None:
            raise GradientError(
                f"the backward of '{self._of.name}' was called before, and what it reads has been "
                "freed; call it with retain_graph=True as long as it is needed again"
            )
        return self._kept

    @property
    def kept(self) -> list[Any]:
        """What is kept for the backward; nothing once that is freed."""
        return list(self._kept or ())

    @property
    def nbytes(self) -> int:
        """The bytes of all that is kept for the backward, arguments and results included."""
        return sum(array.nbytes for array in self._kept or ())

    def _run(self, kept: list[Any], cts: list[Any], places: list[Any]) -> list[Any]:
        of, recording = self._of, self._of.recording
        gradients: list[Any] = [None] * len(of.names)
        totals = [places[i] for i in recording.added]
        start = len(kept) + len(cts)
        given = list(totals)
        for total in totals:
            if isinstance(total, Array):
                total._resolve()
                if total.device != of.backward.device:
                    of.backward.check_devices([*kept, *cts, *totals])
                    total.move(of.backward.device)
        held = [(t.buffer_view(), t._lease) if isinstance(t, Array) else None for t in totals]
        for n, total in enumerate(totals):  # donated only where the sum comes in the same memory
            if isinstance(total, Array) and start + n not in of.backward.in_place:
                given[n] = total.numpy()
        found = of.backward([*kept, *cts, *given])
        for i, gradient in zip(recording.wrt, found, strict=True):
            gradients[i] = gradient
        for n, i in enumerate(recording.added):
            if isinstance(given[n], Array):
                _put_back(given[n], held[n], gradients[i])
                gradients[i] = given[n]
        for i in recording.wrt:
            if places[i] is not None and gradients[i] is not places[i]:
                _write(places[i], gradients[i])
                gradients[i] = places[i]
        return gradients

    def _cotangents(self, cotangents: Any) -> list[Any]:
        """The cotangents that the backward reads."""
        of, heads = self._of, self._of.recording.heads
        if cotangents is None:
            return [np.ones(self._specs[i].shape, self._specs[i].dtype) for i in heads]  # type: ignore[arg-type]
        given = trees.leaves(cotangents, none_is_leaf=True)
        wanted = of.results([0] * len(self._specs))
        if len(given) != len(self._specs):
            raise ArgumentError(
                f"the backward of '{of.name}' expected cotangents with the structure of its "
                f"result, {trees.structure(wanted)}, got {trees.structure(cotangents)}"
            )
        return [self._cotangent(i, given[i]) for i in heads]

    def _cotangent(self, i: int, given: Any) -> Any:
        spec = self._specs[i]
        if given is None:
            return np.zeros(spec.shape, spec.dtype)  # type: ignore[arg-type]
        if isinstance(given, bool | int | float):
            given = np.asarray(given, spec.dtype)
        if not isinstance(given, Array):
            given = np.asarray(given)
        if tuple(given.shape) != spec.shape or given.dtype != spec.dtype:
            found = TensorSpec(given.shape, given.dtype)
            raise ArgumentError(
                f"the backward of '{self._of.name}' expected the cotangent of result {i} of type "
                f"{spec}, got {found}"
            )
        return given

    def _places(self, out: Any) -> list[Any]:
        """What the gradients are written or added to, an entry an input."""
        of = self._of
        places = self._given_places(out)
        for i, (name, place) in enumerate(zip(of.names, places, strict=True)):
            if place is not None:
                self._check_place(i, name, place)
            elif of.requests[i] == ADD:
                raise ArgumentError(
                    f"the backward of '{of.name}' expected an array in out that the gradient by "
                    f"'{name}' is added to, as its request is 'add', got none"
                )
        return places

    def _given_places(self, out: Any) -> list[Any]:
        """The leaves of `out`, in which None may stand for a whole argument."""
        of = self._of
        counts = [1] * len(of.names)
        if of.in_tree is not None:
            counts = [tree.num_leaves for tree in of.in_tree.children()]
        if out is None:
            return [None] * len(of.names)
        what = f"out of the backward of '{of.name}' expected"
        if not isinstance(out, tuple | list) or len(out) != len(counts):
            found = f"{len(out)} entries" if isinstance(out, tuple | list) else type(out).__name__
            raise ArgumentError(f"{what} a tuple with one entry an argument, got {found}")
        places: list[Any] = []
        for argument, count in zip(out, counts, strict=True):
            leaves = trees.leaves(argument, none_is_leaf=True)
            places += [None] * count if argument is None else leaves
            if argument is not None and len(leaves) != count:
                first = len(places) - len(leaves)
                names = ", ".join(of.names[first : first + count])
                raise ArgumentError(
                    f"{what} an entry for each of {names}, None where a new array is wanted, got "
                    f"{len(leaves)}"
                )
        return places

    def _check_place(self, i: int, name: str, place: Any) -> None:
        of = self._of
        what = f"out of the backward of '{of.name}' expected"
        if of.requests[i] == NULL:
            raise ArgumentError(f"{what} None for '{name}', whose request is 'null', got an array")
        if not isinstance(place, Array | np.ndarray):
            raise ArgumentError(f"{what} an array for '{name}', got {type(place).__name__}")
        spec = of.backward.outputs[of.recording.wrt.index(i)]
        if tuple(place.shape) != spec.shape or place.dtype != spec.dtype:
            found = TensorSpec(place.shape, place.dtype)
            raise ArgumentError(f"{what} an array of type {spec} for '{name}', got {found}")
        if isinstance(place, np.ndarray) and not place.flags.writeable:
            raise ArgumentError(f"{what} an array that can be written to for '{name}'")
        if isinstance(place, Array):
            check_free(place, f"out of the backward of '{of.name}'")


def _put_back(total: Array, held: Any, result: Array) -> None:
    """Have an array that was donated hold the result, in the memory that it had."""
    if result._view is held[0]:
        total.take_over(result)
    else:  # NumPy reads the array, so that the result was computed elsewhere
        total._view, total._lease = held
        total.assign(result)


def _write(place: Any, gradient: Array) -> None:
    if isinstance(place, Array):
        place.assign(gradient)
    else:
        dispatch.settle()  # nobody reads what was there before
        np.copyto(place, gradient.numpy())
