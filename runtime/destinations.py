# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Arrays of the caller's that results are written to: `out=`."""

from collections.abc import Container, Iterator, Sequence
from typing import Any

import numpy as np

from ..dialect.types import TensorSpec
from ..errors import ArgumentError, GradientError
from . import dispatch
from .array import Array, before_overwriting

Span = tuple[int, int, int, bool]
"""First byte, the one after the last, position among results or inputs, whether it is a result."""


class Destinations:
    """One array or None for each result, checked before anything runs.

    `shared` are the results whose array has memory in common with an input: they are computed
    elsewhere and copied, so that what is read is what was given.
    """

    def __init__(
        self,
        name: str,
        device: str,
        specs: Sequence[TensorSpec],
        leaves: Sequence[Any],
        donated: Sequence[int],
        out: Sequence[Any],
    ) -> None:
        self.name = name
        self.arrays = list(out)
        if len(self.arrays) != len(specs):
            raise ArgumentError(
                f"'{name}' expected out to have an array or None for each of {len(specs)} results, "
                f"got {len(self.arrays)}"
            )
        for i, (array, spec) in enumerate(zip(self.arrays, specs, strict=True)):
            if array is not None:
                self._check(i, array, spec, device)
        given = {id(leaves[i]) for i in donated}
        for i, array in enumerate(self.arrays):
            if isinstance(array, Array) and id(array) in given:
                raise self._error(i, "an array that is not donated to the same call", "one that is")
        self.shared = {i for i, _ in self._overlaps(leaves)}

    def check_found(self, results: Sequence[Array]) -> None:
        """Raise where extents that only the call knew are not those of the given array."""
        for i, (array, result) in enumerate(zip(self.arrays, results, strict=True)):
            if array is not None and array.shape != result.shape:
                raise self._error(i, f"shape {result.shape}", str(array.shape))

    def fill(self, found: Sequence[Array], written: Container[int] = ()) -> list[Any]:
        """The caller's arrays, with the results in them that were not written there, and the other
        results.
        """
        self.check_found(found)
        results: list[Any] = list(found)
        for i, array in enumerate(self.arrays):
            if array is None:
                continue
            results[i] = array
            if i not in written:
                if isinstance(array, Array):
                    array.assign(found[i])
                else:
                    dispatch.settle()  # nobody reads what was there before
                    array[...] = found[i].numpy()
        return results

    def _check(self, i: int, array: Any, spec: TensorSpec, device: str) -> None:
        if not isinstance(array, np.ndarray | Array):
            raise self._error(i, "a NumPy array, an Array or None", f"{array!r:.60}")
        same = len(array.shape) == spec.rank and all(
            n in (None, m) for n, m in zip(spec.shape, array.shape, strict=True)
        )
        if not same or array.dtype != spec.dtype:
            dtype = array.dtype.name if array.dtype.isnative else array.dtype.str
            raise self._error(i, f"{spec}", f"shape {array.shape} of {dtype}")
        if isinstance(array, np.ndarray):
            if not array.flags.writeable:
                raise self._error(i, "an array that can be written to", "a read-only one")
            return
        array.buffer_view()  # raises if it was donated
        if array.device != device:
            raise self._error(i, f"an array on {device}", f"one on {array.device}")
        if array._owner is not None:
            raise self._error(i, "an array with memory of its own", "one that borrows it")
        check_free(array, f"out of '{self.name}'")

    def _overlaps(self, leaves: Sequence[Any]) -> Iterator[tuple[int, int]]:
        """Results and inputs that have memory in common; ArgumentError for two results."""
        spans = [s for i, x in enumerate(self.arrays) if (s := span(x, i, True))]
        spans += [s for i, x in enumerate(leaves) if (s := span(x, i, False))]
        active: list[Span] = []
        for new in sorted(spans):
            active = [s for s in active if s[1] > new[0]]
            for old in active:
                a, b = (new, old) if new[3] else (old, new)
                if not a[3] or not meet(self.arrays[a[2]], (self.arrays if b[3] else leaves)[b[2]]):
                    continue
                if b[3]:
                    first, second = sorted((a[2], b[2]))
                    message = f"memory that is not that of the array for result {first}"
                    raise self._error(second, message, "one that overlaps it")
                yield a[2], b[2]
            active.append(new)

    def _error(self, i: int, expected: str, got: str) -> ArgumentError:
        return ArgumentError(
            f"'{self.name}' expected out for result {i} to be {expected}, got {got}"
        )


def check_free(array: Array, what: str) -> None:
    """Raise GradientError for an array that must not be written to in place, as it is part of a
    recorded graph, or one keeps its elements.
    """
    before_overwriting()
    if array._history is not None:
        array._history.check_write(array, what)
    if array.is_held():
        raise GradientError(
            f"{what} would change the elements of an array of type {array.spec} that a recorded "
            "graph, or a detached array, has in the same memory; go backward first, or give "
            "another array"
        )


def span(x: Any, position: int, is_result: bool) -> Span | None:
    """The memory that an array lies in; where the host has no address of it, a place of its own,
    which no other array's memory is.
    """
    if isinstance(x, Array) and not x.is_deleted() and x.nbytes:
        x.buffer_view()
        if not x.home().is_host:
            view = id(x.buffer_view())
            return view, view + 1, position, is_result
        return x.address(), x.address() + x.nbytes, position, is_result
    if isinstance(x, np.ndarray) and x.size:
        low, high = np.lib.array_utils.byte_bounds(x)
        return low, high, position, is_result
    return None


def meet(a: Any, b: Any) -> bool:
    """Whether two arrays whose spans overlap have an element in common."""
    if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)):
        return True
    try:
        return np.shares_memory(a, b, max_work=10_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True
