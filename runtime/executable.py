# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""A compiled graph as something to call: which memory a call uses, and where it goes afterwards."""

import json
from collections.abc import Sequence
from typing import Any

import iree.runtime as iree
import numpy as np

from ..dialect import trees
from ..dialect.function_graph import FunctionGraph
from ..dialect.graph import Graph
from ..errors import ArgumentError, DonationError
from . import dispatch
from .array import Array, Donation, Lease
from .buffers import Import, can_borrow, copy_to, imported
from .destinations import Destinations
from .device import Module, invocation_error, is_async, place
from .homes import Arena, Arenas


class Executable:
    """A compiled graph with what a call needs to know: types, donated inputs, the memory that calls
    use again, the results' structure.

    Memory that is in use by one call or array is in no pool, so that calls of several threads at
    once each have their own. A call of a module of the asynchronous form returns when it is
    submitted; then memory goes back to its pool while the call still uses it, and whoever takes it
    from there waits (dispatch.py).
    """

    def __init__(
        self,
        graph: Graph | FunctionGraph,
        module: Module,
        donated: list[int],
        places: list[tuple[int, int | None]],
        is_static: bool,
        arenas: Arenas | None = None,
    ) -> None:
        self._describe(graph, donated, is_static, place(module.driver))
        self.module = module
        self.home = module.home
        self.places = places
        self.allocator = module.allocator
        self.invoke = module.context.invoke
        self.function = module.function(graph.name)
        self.is_async = is_async(self.function)
        about = module.about(graph.name)
        self.in_place = in_place(about)
        self.result_of = {position: result for result, position in places if position is not None}
        self.returned = sorted(set(range(self.count)) - {result for result, _ in places})
        self.arena_size = int(about.get("iree.abi.transients.size.constant", 0))
        self.arenas = Arenas() if arenas is None else arenas
        self.pools: dict[int, list[Any]] = {result: [] for result, _ in places}
        self.staging: dict[int, list[Any]] = {i: [] for i in range(len(self.inputs))}
        self.writes = bool(donated or places or is_static)
        self.is_simple = self.home.is_host and not (self.is_async or self.writes)

    def _describe(
        self, graph: Graph | FunctionGraph, donated: list[int], is_static: bool, device: str
    ) -> None:
        self.name = graph.name
        self.names = graph.input_names
        self.inputs = graph.input_specs
        self.outputs = graph.output_specs
        self.out_tree = graph.out_tree
        self.donated = donated
        self.is_static = is_static
        self.device = device
        self.imports: list[Import | None] = [None] * len(self.inputs)
        self.count = len(self.outputs)
        self.is_leaf = graph.out_tree is not None and trees.is_leaf(graph.out_tree)
        self.known: list[Any] = [
            None if None in s.shape else (s.shape, s.dtype) for s in self.outputs
        ]
        self.is_known = all(self.known)
        self.only = self.known[0] if self.count == 1 else None

    def __call__(self, leaves: Sequence[Any], out: Sequence[Any] | None = None) -> Any:
        """The results for the leaves of the arguments, NumPy arrays or Arrays of the right types.

        `out` has an array or None for each result: a result is written to its array, which is
        returned, and is a new one for None. ArgumentError, before anything runs, for arrays of
        another shape, dtype or device, that cannot be written to, or that overlap each other.
        """
        if out is None and self.is_simple:
            found = self._run(leaves)
            return found[0] if self.is_leaf else self.tree(found)
        return self.tree(Call(self, leaves, self.destinations(leaves, out)).perform())

    def tree(self, results: list[Any]) -> Any:
        """Results in the structure that the function returns."""
        if self.is_leaf:
            return results[0]
        return tuple(results) if self.out_tree is None else trees.unflatten(self.out_tree, results)

    def out_leaves(self, out: Any) -> list[Any]:
        """`out` as the caller gives it, with an array or None for each result; ArgumentError for
        another structure than that of the results.
        """
        if self.out_tree is None:
            if not isinstance(out, list | tuple):
                raise ArgumentError(
                    f"'{self.name}' expected out to be a tuple of {len(self.outputs)} arrays, got "
                    f"{type(out).__name__}"
                )
            return list(out)
        try:
            return trees.leaves_up_to(self.out_tree, out)
        except ValueError as error:
            raise ArgumentError(
                f"'{self.name}' expected out to have the structure of the result, arrays or None "
                f"for leaves: {str(error).splitlines()[0]}"
            ) from None

    def destinations(self, leaves: Sequence[Any], out: Sequence[Any] | None) -> Destinations | None:
        """The arrays that results are to be written to, checked; None if there are none."""
        if out is None or (len(out) == len(self.outputs) and all(x is None for x in out)):
            return None
        return Destinations(self.name, self.device, self.outputs, leaves, self.donated, out)

    def _run(self, leaves: Sequence[Any]) -> list[Array]:
        """A call that needs nothing but its arguments, to its end, where host and device share
        their memory.
        """
        given, found = iree.VmVariantList(len(leaves)), iree.VmVariantList(self.count)
        push, device, keep = given.push_ref, self.device, None
        for i, leaf in enumerate(leaves):
            if type(leaf) is Array:
                view = leaf._view
                if view is not None and leaf._pending is None and leaf.device == device:
                    push(view)
                    continue
                leaf = self.here(leaves)[i]
                if type(leaf) is Array:
                    push(leaf.block_until_ready().buffer_view())
                    continue
            keep = [] if keep is None else keep
            push(self.taken(i, leaf, keep))
        if dispatch.is_forked:
            dispatch.check_process()
        try:
            self.invoke(self.function, given, found)
        except RuntimeError as error:
            raise invocation_error(self.function, given, error) from None
        get, kind = found.get_as_object, iree.HalBufferView
        if self.only is not None:  # as below, for the most common case
            shape, dtype = self.only
            return [Array(get(0, kind), shape, dtype, None, device)]
        if self.is_known:
            return [
                Array(get(i, kind), shape, dtype, None, device)
                for i, (shape, dtype) in enumerate(self.known)
            ]
        return [self.array(i, get(i, kind)) for i in range(self.count)]

    def array(
        self,
        result: int,
        view: Any,
        lease: Lease | None = None,
        pending: dispatch.Pending | None = None,
    ) -> Array:
        """A result as the caller gets it."""
        shape, dtype = self.known[result] or (tuple(view.shape), self.outputs[result].dtype)
        return Array(view, shape, dtype, lease, self.device, pending)

    def taken(self, i: int, leaf: np.ndarray, keep: list[Any]) -> Any:
        """The buffer view of a NumPy argument: its own memory where IREE can read that, else a
        copy.
        """
        view = self.borrowed(i, leaf, keep)
        return copy_to(self.module.device, leaf) if view is None else view

    def borrowed(self, i: int, leaf: np.ndarray, keep: list[Any]) -> Any:
        """The buffer view of a NumPy argument's own memory; None where IREE cannot read that. The
        same array at the same position again is not imported again (B12).
        """
        found = self.imports[i]
        if found is not None and found.is_of(leaf):
            keep.append(leaf)
            return found.view
        if not can_borrow(leaf):
            return None
        buffer, view = imported(self.allocator, leaf)
        self.imports[i] = Import(leaf, view)
        keep.append(buffer)
        return view

    def here(self, leaves: Sequence[Any]) -> Sequence[Any]:
        """The leaves for a call; B18: raises where inputs are on several devices, or on another
        than the function's. Those that nobody put where they are come over: the donated ones
        themselves, of the others NumPy's copies.
        """
        for leaf in leaves:
            if type(leaf) is Array:
                if leaf._source is not None:
                    leaf._resolve()  # before, it is not known where it is
                if leaf.device != self.device:
                    break
        else:
            return leaves
        self.check_devices(leaves)
        for i in self.donated:
            if isinstance(leaves[i], Array) and leaves[i].device != self.device:
                leaves[i].move(self.device)
        return [
            x.numpy() if isinstance(x, Array) and x.device != self.device else x for x in leaves
        ]

    def check_devices(self, leaves: Sequence[Any]) -> None:
        """Raise for arrays that were put on another device."""
        placed = []
        for name, leaf in zip(self.names, leaves, strict=True):
            if isinstance(leaf, Array):
                leaf._resolve()
                if not leaf._is_anywhere:
                    placed.append((name, leaf.device))
        if all(device == self.device for _, device in placed):
            return
        first, on = placed[0]
        other = next(((name, device) for name, device in placed if device != on), None)
        got = f"'{first}' on {on}" + (f" and '{other[0]}' on {other[1]}" if other else "")
        raise ArgumentError(
            f"'{self.name}' expected all inputs on one device, {self.device}, got {got}; move them "
            "with gradopt.device_put"
        )

    def check_donated(self, leaves: Sequence[Any]) -> None:
        """Raise where an array is donated and given again."""
        arrays = [id(leaf) for leaf in leaves if isinstance(leaf, Array)]
        if len(set(arrays)) == len(arrays):
            return
        for i in self.donated:
            if isinstance(leaves[i], Array) and arrays.count(id(leaves[i])) > 1:
                raise DonationError(
                    f"'{self.name}' expected a donated array to be given once, got "
                    f"'{self.names[i]}' also as another argument; "
                    "pass a copy, or do not donate it"
                )


def in_place(about: dict[str, str]) -> set[int]:
    """The donated inputs that a module may overwrite, from its reflection."""
    found = json.loads(about.get("gradopt.memory", "{}"))
    return {tie["donated"] for tie in found.get("ties", []) if tie["in_place"]}


class Call:
    """One call: the memory it takes from pools and donated arrays, and where that goes after it."""

    sent: Sequence[tuple[Any, np.ndarray]] = ()
    """What is written to the device before the call, memory and elements."""

    def __init__(
        self, executable: Executable, leaves: Sequence[Any], out: Destinations | None
    ) -> None:
        self.executable = executable
        self.leaves = leaves
        self.out = out
        self.donations: dict[int, Donation] = {}
        self.arena: Arena | None = None
        self.keep: list[Any] = []  # as long as the call runs
        self.after: list[dispatch.Pending] = []  # the calls that make the arguments
        self.direct: set[int] = set()  # results that are written to the caller's array at once
        self.is_lent = False  # whether the call uses memory that the caller may change after it

    def perform(self) -> list[Any]:
        """The results, when the call has run or is submitted; the caller's arrays among them."""
        self.leaves = self.executable.here(self.leaves)
        try:
            found, pending = self._run()
        except BaseException:
            for donation in self.donations.values():  # donated arrays are as they were
                donation.undo()
            raise
        finally:
            if self.arena is not None:
                self.executable.arenas.give(self.arena)
        arrays = [
            self.executable.array(i, view, lease, pending) for i, (view, lease) in enumerate(found)
        ]
        return arrays if self.out is None else self._deliver(arrays, pending)

    def _run(self) -> tuple[list[tuple[Any, Lease | None]], dispatch.Pending | None]:
        """The results' buffer views, the leases of those that go back to a pool, and the call's
        end, if it has not come.
        """
        e = self.executable
        self._take_donations()
        overwritten: dict[int | None, tuple[Any, Lease | None]] = {}
        given = iree.VmVariantList(len(self.leaves) + len(e.places) + 3)
        for i, leaf in enumerate(self.leaves):
            given.push_ref(self._argument(i, leaf, overwritten))
        places = [overwritten[p] if p in overwritten else self._place(r) for r, p in e.places]
        for view, _ in places:
            given.push_ref(view)
        if e.is_static:
            self.arena = e.arenas.take(e.arena_size, e.home, e.name)
            given.push_ref(self.arena.buffer)
        returned = iree.VmVariantList(e.count)
        pending = self._invoke(given, returned)
        found: list[Any] = [None] * e.count
        for i in e.returned:
            found[i] = returned.get_as_object(i, iree.HalBufferView), None
        for (result, position), where in zip(e.places, places, strict=True):
            found[result] = where
            if position in self.donations and position not in e.in_place:
                self._adopt(self.donations[position], e.pools[result])
        return found, pending

    def _invoke(self, given: Any, returned: Any) -> dispatch.Pending | None:
        e = self.executable
        if self.sent:
            e.home.write(self.sent)
        if not e.is_async:
            for call in self.after:
                call.wait()
            if e.writes:  # calls under way may read what it writes to
                dispatch.settle()
            dispatch.check_process()
            e.module.run_now(e.function, given, returned)
            return None
        pending = dispatch.Pending(e.module.device, e.name)
        pending.keep = given, self.keep
        e.module.submit(e.function, given, returned, pending, self.after, e.writes)
        if self.is_lent:
            pending.wait()
            return None
        return pending

    def _take_donations(self) -> None:
        e = self.executable
        if e.donated:
            e.check_donated(self.leaves)
        for i in e.donated:
            leaf = self.leaves[i]
            if isinstance(leaf, Array):
                self.donations[i] = leaf.give_up()

    def _argument(
        self, i: int, leaf: Any, overwritten: dict[int | None, tuple[Any, Lease | None]]
    ) -> Any:
        """The buffer view of an argument. What the call overwrites is a copy where NumPy reads the
        donated array, or it is itself NumPy's: that memory stays the caller's.
        """
        e = self.executable
        donation = self.donations.get(i)
        if isinstance(leaf, Array) and leaf._pending is not None:
            self.after.append(leaf._pending)
        if i in e.in_place:
            if donation is not None and donation.is_free:
                overwritten[i] = donation.view, donation.lease
            else:
                overwritten[i] = self._new_place(e.result_of[i])
                dispatch.settle()  # the host writes to memory out of a pool
                if donation is None:
                    self._send(overwritten[i][0], np.asarray(leaf))
                else:
                    e.home.copy(overwritten[i][0], donation.view)
            return overwritten[i][0]
        if donation is not None:
            return donation.view
        if isinstance(leaf, Array):
            return leaf.buffer_view()
        if i not in e.result_of and e.home.is_host:
            view = e.borrowed(i, leaf, self.keep)
            if view is not None:
                self.is_lent = True
                return view
            if not e.is_static:
                return copy_to(e.module.device, leaf)
        return self._staged(i, leaf)

    def _staged(self, i: int, leaf: np.ndarray) -> Any:
        """A copy of a NumPy argument, in memory that the call after this one uses again."""
        e = self.executable
        if not e.inputs[i].is_static:
            view = e.home.allocate(leaf.shape, e.inputs[i].dtype)
            self.keep.append(view)
        else:
            pool = e.staging[i]
            view = _pop(pool) or e.home.allocate(leaf.shape, e.inputs[i].dtype)
            self.keep.append(Lease(view, pool))
        self._send(view, leaf)
        return view

    def _send(self, view: Any, array: np.ndarray) -> None:
        """Write an argument to memory, at once or with all others before the call."""
        if self.executable.home.is_host:
            self.executable.home.write([(view, array)])
        else:
            self.sent = [*self.sent, (view, array)]

    def _place(self, result: int) -> tuple[Any, Lease | None]:
        """Memory for a result: the caller's, if that can be written to while inputs are read."""
        array = None if self.out is None else self.out.arrays[result]
        if self.out is None or array is None or result in self.out.shared:
            return self._new_place(result)
        if isinstance(array, Array):
            self.direct.add(result)
            return array.buffer_view(), array._lease
        if not (self.executable.home.is_host and can_borrow(array)):
            return self._new_place(result)
        self.direct.add(result)
        self.is_lent = True
        buffer, view = imported(self.executable.allocator, array)
        self.keep.append(buffer)
        return view, None

    def _new_place(self, result: int) -> tuple[Any, Lease]:
        e = self.executable
        spec, pool = e.outputs[result], e.pools[result]
        view = _pop(pool) or e.home.allocate(spec.shape, spec.dtype)  # type: ignore[arg-type]
        return view, Lease(view, pool)

    def _adopt(self, donation: Donation, pool: list[Any]) -> None:
        """Keep a donated array's memory for the next call, unless it goes to another pool, or
        enough is there: a pool grows only when it had nothing to give.
        """
        if donation.is_free and donation.lease is None and not pool:
            pool.append(donation.view)

    def _deliver(self, found: list[Array], pending: dispatch.Pending | None) -> list[Any]:
        """The caller's arrays with the results in them, and the other results."""
        assert self.out is not None
        for i in self.direct:
            if isinstance(self.out.arrays[i], Array):
                self.out.arrays[i]._pending = pending
        return self.out.fill(found, self.direct)


def _pop(pool: list[Any]) -> Any:
    try:
        return pool.pop()
    except IndexError:
        return None
