# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""go.bucketed: batches of many sizes, filled up to a few, so that few variants are compiled."""

import functools
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..dialect import trees
from ..dialect.graph import Graph, argument_names, function_name, spec_of
from ..dialect.tensor import Tensor
from ..dialect.types import TensorSpec, is_float
from ..errors import ArgumentError
from .array import Array
from .dynamic import Dynamic
from .function import CachedFunction, compile  # noqa: A004 - go.compile

POWERS = "powers of two"
MASK = "mask"
INFER = "infer"
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def bucketed(
    fn: Callable[..., Any] | None = None,
    sizes: Sequence[int] | str = POWERS,
    *,
    argnums: int | Sequence[int] = 0,
    axis: int = 0,
    axes: Mapping[Any, int] | None = None,
    out_axes: Any = INFER,
    check: bool = True,
    **options: Any,
) -> Any:
    """`fn`, compiled for batches of a few sizes: each call fills the batch up to the next of
    `sizes` (a list, or "powers of two") and cuts results back.

    All arrays of the arguments at `argnums` have the batch on `axis`; or `axes` says which have it
    where, by an argument's name, position, or path: `{"x": 0, "state.h": 1}`. What is filled in
    are copies of the first row, zeros where there is none. If `fn` has a parameter `mask` it is
    given booleans, one a row, true for those of the caller: `go.masked_mean(loss, mask)`.
    The batch axis of results is found by tracing with two sizes, or stands in `out_axes`: one
    for all results, None for none, or a tree of them. Results that have it are NumPy arrays, views
    of what was computed; others are as `fn` gives them.

    The first call with fill-in of each size runs twice, with other rows filled in, and raises
    ArgumentError if a result changes: it is made of rows that are not the caller's (a mean without
    the mask, statistics of the batch). `check=False` leaves that out. `fn` may be a CachedFunction;
    otherwise `options` are those of go.compile. Can be used as a decorator. Raises ArgumentError
    for batches larger than all sizes, or of different sizes.
    """
    about = (sizes, argnums, axis, axes, out_axes, check, options)
    if fn is None:
        return lambda f: Bucketed(f, *about)
    return Bucketed(fn, *about)


class Bucketed:
    """A function for batches of many sizes; see `bucketed`. `compiled` is what it calls."""

    def __init__(
        self,
        fn: Callable[..., Any],
        sizes: Sequence[int] | str,
        argnums: int | Sequence[int],
        axis: int,
        axes: Mapping[Any, int] | None,
        out_axes: Any,
        check: bool,
        options: dict[str, Any],
    ) -> None:
        if not callable(fn):
            raise ArgumentError(f"bucketed expected a function, got {fn!r:.60}")
        functools.update_wrapper(self, fn)
        inner = fn.fn if isinstance(fn, CachedFunction) else fn
        if isinstance(inner, Graph):
            raise ArgumentError(f"bucketed expected a function, got a graph, '{inner.name}'")
        self.fn = inner
        self.name = function_name(self.fn)
        if isinstance(fn, CachedFunction) and options:
            raise ArgumentError(
                f"bucketed expected no options for '{self.name}', which is compiled, got "
                f"{', '.join(options)}; give them to its go.compile"
            )
        self.sizes = _sizes(sizes)
        numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
        self.axes = Dynamic(dict.fromkeys(numbers, axis) if axes is None else axes)
        self.out_axes = out_axes
        self.check = check
        self.has_mask = MASK in _parameters(self.fn)
        is_compiled = isinstance(fn, CachedFunction)
        self.compiled: CachedFunction = fn if is_compiled else compile(_maskable(fn), **options)
        self._out: dict[Any, list[int | None]] = {}
        self._checked: set[Any] = set()
        self._lock = threading.Lock()

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        arguments = self._positional(arguments, keywords)
        leaves, structure = trees.flatten(arguments)
        axes = self._batch_axes(arguments)
        count = self._count(arguments, leaves, axes)
        if any(isinstance(leaf, Tensor) for leaf in leaves):  # in a trace extents are known
            return self._call(arguments, np.ones(count, bool))
        size = self.size_for(count)
        filled = [
            leaf if axis is None else _filled(np.asarray(leaf), axis, count, size)
            for leaf, axis in zip(leaves, axes, strict=True)
        ]
        mask = np.arange(size) < count
        padded = trees.unflatten(structure, filled)
        cut = self._result_axes(padded, axes, size)
        key = structure, size, tuple(map(spec_of, filled))
        again = None
        if is_new := self.check and count < size and key not in self._checked:
            other = self._otherwise(leaves, structure, axes, count, size)
            again = self._cut(self._call(other, mask), cut, count)
        found = self._cut(self._call(padded, mask), cut, count)
        if is_new:
            self._compare(found, again, size, count)
            self._checked.add(key)
        return found

    def _otherwise(
        self, leaves: list[Any], structure: Any, axes: list[int | None], count: int, size: int
    ) -> tuple[Any, ...]:
        """The arguments with other rows filled in; arrays that a call might be given for good are
        copied.
        """
        found = []
        for leaf, axis in zip(leaves, axes, strict=True):
            if axis is not None:
                found.append(_filled(np.asarray(leaf), axis, count, size, other=True))
            else:
                found.append(np.array(leaf) if isinstance(leaf, Array) else leaf)
        return trees.unflatten(structure, found)

    def size_for(self, count: int) -> int:
        """The size that a batch is filled up to. Raises ArgumentError if it is too large."""
        if not self.sizes:
            return 1 << max(count - 1, 0).bit_length()
        for size in self.sizes:
            if count <= size:
                return size
        raise ArgumentError(
            f"'{self.name}' expected a batch of at most {self.sizes[-1]} rows (sizes: "
            f"{', '.join(map(str, self.sizes))}), got {count}; split it, or add a size"
        )

    def _positional(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, ...]:
        if MASK in keywords and self.has_mask:
            raise ArgumentError(f"'{self.name}' is given its mask by bucketed, got one more")
        if not keywords:
            return arguments
        parameters = [p for n, p in _parameters(self.fn).items() if n != MASK]
        try:
            bound = inspect.Signature(parameters).bind(*arguments, **keywords)
        except TypeError as error:
            raise ArgumentError(f"'{self.name}': {error}") from None
        if bound.kwargs:
            names = ", ".join(bound.kwargs)
            raise ArgumentError(
                f"'{self.name}' expected arguments that can be given by position, got {names}; "
                "bind them with functools.partial"
            )
        return bound.args

    def _call(self, arguments: tuple[Any, ...], mask: np.ndarray) -> Any:
        return self.compiled(*arguments, **({MASK: mask} if self.has_mask else {}))

    # --- the batch --------------------------------------------------------------------------------

    def _batch_axes(self, arguments: tuple[Any, ...]) -> list[int | None]:
        """For each leaf the axis of the batch, None where it has none."""
        found = self.axes.axes(self.fn, arguments)
        return [next(iter(axes), None) for axes in found]

    def _count(self, arguments: tuple[Any, ...], leaves: list[Any], axes: list[int | None]) -> int:
        """How many rows the caller gives."""
        names = argument_names(self.fn, len(arguments))
        paths = [
            path
            for name, argument in zip(names, arguments, strict=True)
            for path, _ in trees.named_leaves(name, argument)
        ]
        counts = {
            path: np.shape(leaf)[axis] if not hasattr(leaf, "shape") else leaf.shape[axis]
            for path, leaf, axis in zip(paths, leaves, axes, strict=True)
            if axis is not None
        }
        first, count = next(iter(counts.items()))
        for path, other in counts.items():
            if other != count:
                raise ArgumentError(
                    f"'{self.name}' expected one batch, got {count} rows in argument '{first}' and "
                    f"{other} in '{path}'"
                )
        return count

    # --- results ----------------------------------------------------------------------------------

    def _result_axes(
        self, arguments: tuple[Any, ...], axes: list[int | None], size: int
    ) -> list[int | None] | None:
        """For each result the axis of the batch, found by tracing with two sizes; None where
        `out_axes` says it.
        """
        if self.out_axes != INFER:
            return None
        leaves, structure = trees.flatten(arguments)
        specs = list(map(spec_of, leaves))
        key = (
            structure,
            tuple(
                spec if axis is None else _resized(spec, axis, 0)
                for spec, axis in zip(specs, axes, strict=True)
            ),
        )
        with self._lock:
            if key not in self._out:
                self._out[key] = self._inferred(specs, structure, axes, size)
            return self._out[key]

    def _inferred(
        self, specs: list[TensorSpec], structure: Any, axes: list[int | None], size: int
    ) -> list[int | None]:
        outputs = []
        for extent in (size, size + 1):
            at_size = [
                spec if axis is None else _resized(spec, axis, extent)
                for spec, axis in zip(specs, axes, strict=True)
            ]
            mask = [TensorSpec(extent, "bool")] if self.has_mask else []
            given = self._with_mask(trees.unflatten(structure, at_size), mask)
            outputs.append(self.compiled.trace(*given).output_specs)
        small, large = outputs
        return [self._varying(i, small[i], large[i], size) for i in range(len(small))]

    def _with_mask(self, arguments: tuple[Any, ...], mask: list[Any]) -> tuple[Any, ...]:
        """All arguments of the compiled function by position."""
        if not mask:
            return arguments
        signature = inspect.signature(self.compiled.fn)  # type: ignore[arg-type]
        bound = signature.bind(*arguments, **{MASK: mask[0]})
        if bound.kwargs:
            bound.apply_defaults()
        return bound.args

    def _varying(self, i: int, a: TensorSpec, b: TensorSpec, size: int) -> int | None:
        """The axis of a result that grows with the batch."""
        if a.rank == b.rank:
            changed = [k for k in range(a.rank) if a.shape[k] != b.shape[k]]
            if not changed:
                return None
            if len(changed) == 1 and (a.shape[changed[0]], b.shape[changed[0]]) == (size, size + 1):
                return changed[0]
        raise ArgumentError(
            f"bucketed '{self.name}' expected results with the batch on one axis, got result {i} "
            f"of type {a} for a batch of {size} and {b} for {size + 1}; keep the batch an axis of "
            "its own, or leave it out of the result"
        )

    def _cut(self, results: Any, axes: list[int | None] | None, count: int) -> Any:
        """Results without the rows that were filled in."""
        leaves, structure = trees.flatten(results)
        if axes is None:
            axes = _spread(self.out_axes, results)
        cut = [
            leaf if axis is None else np.asarray(leaf)[_rows(axis, count)]
            for leaf, axis in zip(leaves, axes, strict=True)
        ]
        return trees.unflatten(structure, cut)

    def _compare(self, found: Any, other: Any, size: int, count: int) -> None:
        """Raise where results depend on what was filled in, by more than rounding."""
        pairs = zip(trees.named_leaves("result", found), trees.leaves(other), strict=True)
        for (path, a), b in pairs:
            a, b = np.asarray(a), np.asarray(b)
            if np.array_equal(a, b, equal_nan=is_float(a.dtype)):
                continue
            if is_float(a.dtype):
                wide = a.astype(np.float64), b.astype(np.float64)
                least = 16 * float(np.finfo(np.float32 if a.itemsize < 4 else a.dtype).eps)
                scale = least * float(np.max(np.abs(wide[0]), initial=0.0))
                if np.allclose(*wide, rtol=0, atol=scale, equal_nan=True):
                    continue
            remedy = (
                "leave out the rows that `mask` is false for (go.masked_mean, go.masked_sum)"
                if self.has_mask
                else "give the function a parameter `mask`, true for the rows of the caller, and "
                "use it (go.masked_mean, go.masked_sum)"
            )
            raise ArgumentError(
                f"bucketed '{self.name}' expected results that depend on the {count} rows given, "
                f"not on the {size - count} filled in, got another '{path}' for other filled-in "
                f"rows; {remedy}, or compute rows independently"
            )


def _sizes(sizes: Sequence[int] | str) -> list[int]:
    """The sizes in order; none for powers of two."""
    if sizes == POWERS:
        return []
    good = not isinstance(sizes, str) and all(
        isinstance(s, int) and not isinstance(s, bool) and s > 0 for s in sizes
    )
    if not good or not len(sizes):
        raise ArgumentError(f"sizes expected numbers of rows, or '{POWERS}', got {sizes!r:.60}")
    return sorted(set(sizes))  # type: ignore[arg-type]


def _parameters(fn: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(fn).parameters
    except (TypeError, ValueError):
        return {}


def _maskable(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn`, whose mask can be given by position, as compiled functions are given arguments."""
    parameters = _parameters(fn)
    if MASK not in parameters or parameters[MASK].kind != inspect.Parameter.KEYWORD_ONLY:
        return fn
    positional = [p for p in parameters.values() if p.kind in POSITIONAL]

    @functools.wraps(fn)
    def wrapped(*arguments: Any) -> Any:
        *given, mask = arguments
        return fn(*given, mask=mask)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    mask = inspect.Parameter(MASK, kind)
    plain = [p.replace(default=inspect.Parameter.empty) for p in positional]
    wrapped.__signature__ = inspect.Signature([*plain, mask])  # type: ignore[attr-defined]
    return wrapped


def _resized(spec: TensorSpec, axis: int, extent: int) -> TensorSpec:
    return spec.with_shape((*spec.shape[:axis], extent, *spec.shape[axis + 1 :]))


def _rows(axis: int, count: int) -> tuple[slice, ...]:
    return (slice(None),) * axis + (slice(0, count),)


def _filled(array: np.ndarray, axis: int, count: int, size: int, other: bool = False) -> np.ndarray:
    """The array with more rows: copies of the first one, or `other` ones: the last ones first,
    floats by half, so that they differ from the first.
    """
    if count == size:
        return array
    filled = np.zeros((*array.shape[:axis], size, *array.shape[axis + 1 :]), array.dtype)
    filled[_rows(axis, count)] = array
    if count:
        rows = (np.arange(size - count) - size + count) % count if other else [0] * (size - count)
        extra = np.take(array, rows, axis)
        rest = (slice(None),) * axis + (slice(count, None),)
        half = other and is_float(array.dtype)
        filled[rest] = extra * array.dtype.type(0.5) if half else extra
    return filled


def _spread(axes: Any, results: Any) -> list[int | None]:
    """`out_axes` for each leaf of the results."""
    leaves = trees.leaves(results)
    if axes is None or isinstance(axes, int):
        return [axes] * len(leaves)
    try:
        return trees.spread(axes, results)
    except ValueError as error:
        raise ArgumentError(
            f"out_axes expected an axis or None for each part of the result, got {axes!r:.80}: "
            f"{error}"
        ) from None
