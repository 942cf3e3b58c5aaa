# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""go.debug_nans, go.debug_infs: which op made the first NaN or infinity of a compiled function."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..dialect import trees
from ..dialect.function_graph import FunctionGraph
from ..dialect.graph import Graph
from ..dialect.types import is_float
from ..errors import NonFiniteError
from ..lowering.tap import TappedOp, Taps
from ..lowering.target import Target
from . import monitor
from .executable import Executable

KINDS: dict[str, Callable[..., Any]] = {"NaN": np.isnan, "infinity": np.isinf}
"""What results are checked for, and how."""


@dataclasses.dataclass(frozen=True)
class Check:
    """The wrapper of calls that checks results."""

    kind: str
    is_lasting = True

    def __call__(
        self,
        inner: Executable,
        graph: Graph | FunctionGraph,
        target: Target,
        options: dict[str, Any],
    ) -> Executable:
        return CheckedExecutable(inner, graph, target, self.kind, options["disk_cache"])


class _Switch:
    """A check, on or off from when this is made; as a context manager it is put back at the end."""

    KIND = ""

    def __init__(self, on: bool = True) -> None:
        self._before = monitor.wrappers()
        others = tuple(w for w in self._before if w != Check(self.KIND))
        monitor.wrap_calls((*others, Check(self.KIND)) if on else others)

    def __enter__(self) -> "_Switch":
        return self

    def __exit__(self, *exception: Any) -> None:
        monitor.wrap_calls(self._before)


class debug_nans(_Switch):  # noqa: N801 - used as a function, `with debug_nans():`
    """From here on, check the results of every call of a compiled function for NaN; with
    `on=False`, no longer. In a `with` statement: until its end.

    A call whose results have one raises NonFiniteError, which names the op that made it, forward or
    backward, with the user's source line and what it read. That takes a second form of the
    function, compiled when first needed. Concerns all threads.
    """

    KIND = "NaN"


class debug_infs(_Switch):  # noqa: N801
    """As `debug_nans`, for infinities."""

    KIND = "infinity"


class CheckedExecutable(monitor.Wrapped):
    """An executable whose results are checked after each call."""

    def __init__(
        self,
        inner: Executable,
        graph: Graph | FunctionGraph,
        target: Target,
        check: str,
        disk_cache: bool,
    ) -> None:
        super().__init__(inner)
        self.disk_cache = disk_cache
        self.graph = graph
        self.target = target
        self.check = check
        self._tapped: tuple[Executable, Taps] | None = None

    def __call__(self, leaves: list[Any], *more: Any, **options: Any) -> Any:
        given = [  # the call may overwrite what is donated
            np.array(leaf) if i in self.inner.donated else leaf for i, leaf in enumerate(leaves)
        ]
        found = self.inner(leaves, *more, **options)
        if any(has(self.check, x) for x in trees.leaves(found)):
            raise self._explained(self.check, given)
        return found

    def _explained(self, check: str, leaves: list[Any]) -> NonFiniteError:
        if self._tapped is None:
            from .binding import bind

            graph, taps = monitor.tapped_graph(self.graph, inputs=True, constants=True)
            self._tapped = bind(graph, self.target, disk_cache=self.disk_cache), taps
        executable, taps = self._tapped
        result, values = executable(leaves)
        bad = [has(check, v) for v in values]
        start = [i for i, x in enumerate(trees.leaves(result)) if has(check, x)]
        names = dict(zip(taps.arguments, self.graph.input_names, strict=True))
        return explain(Fault(self.name, check, taps, values, bad, start, names))


@dataclasses.dataclass
class Fault:
    """A call whose results are not as they should be: the tapped values, and which of them are
    `bad`, the results that are, and the arguments' names by their place among the values.
    """

    function: str
    check: str
    taps: Taps
    values: Sequence[Any]
    bad: Sequence[bool]
    results: Sequence[int]
    names: dict[int, str]


def explain(fault: Fault) -> NonFiniteError:
    """The error for a fault, with the first op or argument that it comes from: of those that a bad
    result depends on through bad values, so that what a `where` leaves out is not blamed.
    """
    head = f"'{fault.function}' expected results without {fault.check}, got {fault.check}"
    producers = {p: i for i, op in enumerate(fault.taps.ops) for _, p in op.outputs}
    pending = [p for i in fault.results if (p := fault.taps.results[i]) >= 0 and fault.bad[p]]
    seen: set[int] = set()
    origins: list[int] = []
    while pending:
        if (position := pending.pop()) in seen:
            continue
        seen.add(position)
        if position not in producers:
            return NonFiniteError(
                f"{head}, which argument '{fault.names.get(position, '?')}' has already: "
                f"{describe(fault.values[position])}"
            )
        read = [p for _, p in fault.taps.ops[producers[position]].inputs if fault.bad[p]]
        pending += read
        if not read:
            origins.append(producers[position])
    if not origins:
        return NonFiniteError(
            f"{head}, but not where every op's value is kept; it comes from how ops are fused"
        )
    return _of_op(fault, head, fault.taps.ops[min(origins)])


def _of_op(fault: Fault, head: str, op: TappedOp) -> NonFiniteError:
    name = monitor.OpName.of(op)
    lines = [
        f"{head}, first made by op '{name}' (gradopt.{op.kind}, "
        f"{'backward' if name.is_backward else 'forward'}) at {op.where or 'an unknown line'}"
    ]
    for kind, entries in (("read", op.inputs), ("made", op.outputs)):
        lines += [f"  {kind} {label}: {describe(fault.values[p])}" for label, p in entries]
    error = NonFiniteError("\n".join(lines))
    error.op = name
    error.inputs = {label: np.asarray(fault.values[p]) for label, p in op.inputs}
    error.outputs = {label: np.asarray(fault.values[p]) for label, p in op.outputs}
    return error


def has(check: str, array: Any) -> bool:
    """True if an array has an element that a check looks for; integers have none."""
    return is_float(array.dtype) and bool(KINDS[check](np.asarray(array)).any())


def describe(array: Any) -> str:
    """Type and range of an array, and how many elements are NaN or infinite."""
    array = np.asarray(array)
    text = f"{array.dtype.name}{list(array.shape)}"
    if not is_float(array.dtype):
        return f"{text}, from {array.min()} to {array.max()}" if array.size else text
    wide = array.astype(np.float64)
    if (finite := wide[np.isfinite(wide)]).size:
        text += f", from {finite.min():g} to {finite.max():g}"
    counts = [(kind, int(find(wide).sum())) for kind, find in KINDS.items()]
    return text + "".join(f", {n} of {array.size} {kind}" for kind, n in counts if n)
