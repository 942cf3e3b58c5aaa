# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""A compiled graph as something to call: which memory a call uses, and where it goes afterwards."""

import json
from collections.abc import Callable
from typing import Any

from ..dialect import trees
from ..dialect.function_graph import FunctionGraph
from ..dialect.graph import Graph
from ..errors import DonationError
from .device import (
    Array,
    Donation,
    Lease,
    Module,
    allocate,
    allocate_arena,
    borrow,
    can_borrow,
    contents,
    fill,
)


class Executable:
    """A compiled graph with what a call needs to know: types, donated inputs, the memory that calls
    use again, the results' structure.

    Memory that is in use by one call or array is in no pool, so that calls of several threads at
    once each have their own.
    """

    def __init__(
        self,
        graph: Graph | FunctionGraph,
        module: Module,
        donated: list[int],
        places: list[tuple[int, int | None]],
        is_static: bool,
    ) -> None:
        self.name = graph.name
        self.names = graph.input_names
        self.inputs = graph.input_specs
        self.outputs = graph.output_specs
        self.out_tree = graph.out_tree
        self.module = module
        self.donated = donated
        self.places = places
        self.is_static = is_static
        self.allocator = module.device.allocator
        self.function = module.function(graph.name)
        about = module.about(graph.name)
        self.in_place = _in_place(about)
        self.result_of = {position: result for result, position in places if position is not None}
        self.arena_size = int(about.get("iree.abi.transients.size.constant", 0))
        self.arenas: list[Any] = []
        self.pools: dict[int, list[Any]] = {result: [] for result, _ in places}
        self.staging: dict[int, list[Any]] = {i: [] for i in range(len(self.inputs))}

    def __call__(self, leaves: list[Any]) -> Any:
        call = Call(self)
        try:
            found = call.run(leaves)
        except BaseException:
            call.undo()
            raise
        finally:
            call.close()
        results = [
            Array(view, tuple(view.shape), spec.dtype, lease)
            for (view, lease), spec in zip(found, self.outputs, strict=True)
        ]
        return tuple(results) if self.out_tree is None else trees.unflatten(self.out_tree, results)

    def check_donated(self, leaves: list[Any]) -> None:
        """Raise where an array is donated and given again."""
        arrays = [id(leaf) for leaf in leaves if isinstance(leaf, Array)]
        for i in self.donated:
            if isinstance(leaves[i], Array) and arrays.count(id(leaves[i])) > 1:
                raise DonationError(
                    f"'{self.name}' expected a donated array to be given once, got "
                    f"'{self.names[i]}' also as another argument; "
                    "pass a copy, or do not donate it"
                )


def _in_place(about: dict[str, str]) -> set[int]:
    """The donated inputs that a module may overwrite, from its reflection."""
    found = json.loads(about.get("gradopt.memory", "{}"))
    return {tie["donated"] for tie in found.get("ties", []) if tie["in_place"]}


class Call:
    """One call: the memory it takes from pools and donated arrays, and where that goes after it."""

    def __init__(self, executable: Executable) -> None:
        self.executable = executable
        self.donations: dict[int, Donation] = {}
        self.lent: list[tuple[list[Any], Any]] = []  # pools, and what goes back there at the end
        self.keep: list[Any] = []

    def run(self, leaves: list[Any]) -> list[tuple[Any, Lease | None]]:
        """The results' buffer views, and the leases of those that go back to a pool."""
        e = self.executable
        if e.donated:
            e.check_donated(leaves)
            for i in e.donated:
                if isinstance(leaves[i], Array):
                    self.donations[i] = leaves[i].give_up()
        overwritten: dict[int | None, tuple[Any, Lease | None]] = {}
        arguments = [self._argument(i, leaf, overwritten) for i, leaf in enumerate(leaves)]
        places = [overwritten[p] if p in overwritten else self._place(r) for r, p in e.places]
        arguments += [view for view, _ in places]
        if e.is_static:
            arguments.append(self._borrow(e.arenas, lambda a: allocate_arena(a, e.arena_size)))
        returned = e.module.call(e.function, arguments, len(e.outputs))
        found: list[tuple[Any, Lease | None]] = [(view, None) for view in returned]
        for (result, position), place in zip(e.places, places, strict=True):
            found[result] = place
            if position in self.donations and position not in e.in_place:
                self._adopt(self.donations[position], e.pools[result])
        return found

    def _argument(
        self, i: int, leaf: Any, overwritten: dict[int | None, tuple[Any, Lease | None]]
    ) -> Any:
        """The buffer view of an argument. What the call overwrites is a copy where NumPy reads the
        donated array, or it is itself NumPy's: that memory stays the caller's.
        """
        e = self.executable
        donation = self.donations.get(i)
        if i in e.in_place:
            if donation is not None and donation.is_free:
                overwritten[i] = donation.view, donation.lease
            else:
                overwritten[i] = self._place(e.result_of[i])
                old = leaf if donation is None else contents(donation.view, leaf.dtype)
                fill(overwritten[i][0], old)
            return overwritten[i][0]
        if donation is not None:
            return donation.view
        if isinstance(leaf, Array):
            return leaf.buffer_view()
        allocator = e.module.device.allocator
        if i in e.result_of or (e.is_static and not can_borrow(leaf)):
            pool = e.pools[e.result_of[i]] if i in e.result_of else e.staging[i]
            view = self._borrow(pool, lambda a: allocate(a, leaf.shape, leaf.dtype))
            fill(view, leaf)
            return view
        return borrow(allocator, leaf, self.keep)

    def _place(self, result: int) -> tuple[Any, Lease]:
        """Memory for a result."""
        e = self.executable
        spec, pool = e.outputs[result], e.pools[result]
        view = _pop(pool) or allocate(e.module.device.allocator, spec.shape, spec.dtype)  # type: ignore[arg-type]
        return view, Lease(view, pool)

    def _borrow(self, pool: list[Any], make: Callable[[Any], Any]) -> Any:
        """Memory for the time of the call."""
        found = _pop(pool) or make(self.executable.module.device.allocator)
        self.lent.append((pool, found))
        return found

    def _adopt(self, donation: Donation, pool: list[Any]) -> None:
        """Keep a donated array's memory for the next call, unless it goes to another pool, or
        enough is there: a pool grows only when it had nothing to give.
        """
        if donation.is_free and donation.lease is None and not pool:
            pool.append(donation.view)

    def undo(self) -> None:
        """The call failed: donated arrays are as they were."""
        for donation in self.donations.values():
            donation.undo()

    def close(self) -> None:
        """The call is over."""
        for pool, view in self.lent:
            pool.append(view)


def _pop(pool: list[Any]) -> Any:
    try:
        return pool.pop()
    except IndexError:
        return None
