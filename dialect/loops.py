# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Loops with a known number of steps: `scan` and `fori_loop`, with the meaning they have in JAX.

In a trace the body is traced once, into a private function of the module, and the loop is one op
that names it; the pass gradopt-differentiate derives it as a loop, gradopt-unroll-scans decides
what is unrolled. On arrays outside a trace the body runs step by step, in Python.
"""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import OpError, TraceError
from . import builder as builders
from . import trees
from .base import Bool, Int
from .control import FunctionOp, signature
from .creation import constant, zeros
from .elementwise import ANY, as_tensor, common_type, is_scalar, number_type
from .graph import Graph, function_name, spec_of, trace, trace_private
from .mlir import func, ir, op_of
from .slicing import stack, unstack
from .tensor import Tensor
from .transform import at_once
from .types import TensorSpec, int32, int64

Body = Callable[..., tuple[np.ndarray, ...]]


class ScanOp(FunctionOp, name="scan"):
    """A function of the module applied `length` times, each time to what it gave before: (carry,
    x_t, captured) -> (carry, y_t), as one function (carry, xs, captured) -> (carry, ys).

    The first `carries` inputs are the carry, the next `xs` are slices of arrays along their first
    axis, and the rest is the same in every step; the y_t stand along a new first axis. With
    `reverse` steps run from the last slice to the first. `unroll` is how many steps a trip of the
    compiled loop has, 0 where gradopt-unroll-scans chooses.
    Example: `%f = "gradopt.scan"() {callee = @step, length = 5 : i64, carries = 1 : i64, xs = 1 :
    i64} : () -> ((tensor<3xf32>, tensor<5x3xf32>) -> (tensor<3xf32>, tensor<5x3xf32>))`
    """

    length: Int
    carries: Int
    xs: Int
    reverse: Bool = False
    unroll: Int = 0

    @classmethod
    def infer(  # type: ignore[override]  # from a function, not from tensors
        cls,
        callee: func.FuncOp,
        length: int,
        carries: int,
        xs: int,
        reverse: bool = False,
        unroll: int = 0,
    ) -> tuple[list[TensorSpec], list[TensorSpec]]:
        """Input and result types of the loop; raises where the function is no step of one."""
        inputs, results = signature(callee)
        name = f"@{callee.name.value}"
        if length < 0 or unroll < 0:
            raise cls.error("length and unroll of at least 0", f"{length} and {unroll}")
        if not (carries >= 0 and xs >= 0 and carries + xs <= len(inputs)):
            expected = f"carries and xs among the {len(inputs)} inputs of {name}"
            raise cls.error(expected, f"{carries} and {xs}")
        if results[:carries] != inputs[:carries]:
            expected = f"{name} to give the carry that it takes, ({_listed(inputs[:carries])})"
            raise cls.error(expected, f"({_listed(results[:carries])})")
        for i in range(carries, carries + xs):
            inputs[i] = _stacked(inputs[i], length)
        return inputs, [*results[:carries], *(_stacked(y, length) for y in results[carries:])]

    @staticmethod
    def reference(
        *arrays: np.ndarray,
        body: Body,
        results: Sequence[TensorSpec],
        length: int,
        carries: int,
        xs: int,
        reverse: bool = False,
        unroll: int = 0,
    ) -> tuple[np.ndarray, ...]:
        """The loop on arrays: `body` is the function on arrays, `results` are the types of the
        loop's results, which say those of the outputs where there are no steps.
        """
        carry, slices = arrays[:carries], arrays[carries : carries + xs]
        steps: list[tuple[np.ndarray, ...]] = []
        for t in reversed(range(length)) if reverse else range(length):
            found = body(*carry, *(x[t] for x in slices), *arrays[carries + xs :])
            carry = found[:carries]
            steps.append(found[carries:])
        if not steps:
            return (
                *carry,
                *(np.zeros([n or 0 for n in s.shape], s.dtype) for s in results[carries:]),
            )
        return (*carry, *map(np.stack, zip(*(steps[::-1] if reverse else steps), strict=True)))

    @classmethod
    def has_gradient(cls) -> bool:
        """True: gradopt-differentiate derives the body."""
        return True


def _stacked(spec: TensorSpec, length: int) -> TensorSpec:
    return spec.with_shape((length, *spec.shape))


def _listed(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(map(str, specs))


def loop_of(op: Any) -> ScanOp | None:
    """The loop that an op runs: a call of what a `gradopt.scan` gives; None for other ops."""
    if not isinstance(op, func.CallIndirectOp):
        return None
    made = op_of(op.operation.operands[0])
    return made if isinstance(made, ScanOp) else None


def loop_operands(op: Any) -> list[ir.Value]:
    """What the call of a loop hands on: the carry, the xs, then what is captured."""
    return list(op.operation.operands)[1:]


# --- functions ------------------------------------------------------------------------------------


def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool | None = None,
) -> tuple[Any, Any]:
    """`(carry, ys)` of `carry, y = f(carry, x)` applied to each slice x of `xs` along the first
    axis, beginning with `init`; ys are the y along a new first axis.

    init, x and y are arrays or nested containers of them. The carry keeps its structure, shapes and
    element types from step to step; a Python number in `init` takes the type that the body gives.
    `length` is the number of steps, needed where `xs` has no arrays. With `reverse` steps run from
    the last slice to the first, and each y stands where its x did. `unroll` is how many steps a
    trip of the compiled loop has: True for all, None for what gradopt-unroll-scans chooses.

    `f` may use arrays of the function around it, and gradients by them are computed. Raises OpError
    that names the leaf for an `xs` without a known first axis or of another length, and for a carry
    that changes.
    """
    init_leaves, xs_leaves = _leaves("init", init), _leaves("xs", xs)
    length = _length(xs_leaves, length)
    about = _Loop(f, init, xs, length, bool(reverse), _trip(unroll, length))
    if (eager := at_once((init, xs))) is not None:
        with eager:
            return about.run()
    with builders.owner("scan", tuple(leaf for _, leaf in init_leaves + xs_leaves)):
        return about.traced()


def fori_loop(
    lower: int,
    upper: int,
    body_fun: Callable[[Any, Any], Any],
    init_val: Any,
    unroll: int | bool | None = None,
) -> Any:
    """What `value = body_fun(i, value)` makes of `init_val` for i from `lower` up to, without,
    `upper`, which are Python integers; i is an int32 number.

    The value is an array or nested containers of them, and keeps its structure, shapes and element
    types; it is differentiated as in `scan`, which see. Raises OpError for bounds that are no
    integers.
    """
    try:
        first, last = operator.index(lower), operator.index(upper)
    except (TypeError, TraceError):
        raise ScanOp.error(
            "Python integers as bounds of fori_loop",
            f"{type(lower).__name__} and {type(upper).__name__}",
            "the number of steps has to be known while tracing; bound it, and use go.where",
        ) from None
    dtype = int32 if first >= -(2**31) and last < 2**31 else int64

    @functools.wraps(body_fun)
    def step(value: Any, i: Any) -> tuple[Any, None]:
        return body_fun(i, value), None

    return scan(step, init_val, np.arange(first, max(first, last), dtype=dtype), unroll=unroll)[0]


def _leaves(what: str, tree: Any) -> list[tuple[str, Any]]:
    """The arrays of a tree by their names; OpError for what is none."""
    found = trees.named_leaves(what, tree)
    for name, leaf in found:
        if isinstance(leaf, TensorSpec):
            raise ScanOp.error(f"an array or number as '{name}'", f"the type {leaf}")
        try:
            spec_of(leaf)
        except (OpError, TraceError):
            got = f"{type(leaf).__name__} {leaf!r:.60}"
            raise ScanOp.error(f"an array or number as '{name}'", got) from None
    return found


def _length(xs: list[tuple[str, Any]], length: int | None) -> int:
    """The number of steps; OpError where arrays disagree on it, or none says it."""
    if length is not None:
        try:
            length = operator.index(length)
        except TypeError:
            raise ScanOp.error("length as an integer", repr(length)) from None
        if length < 0:
            raise ScanOp.error("length of at least 0", length)
    known = "length" if length is not None else ""
    for name, leaf in xs:
        spec = spec_of(leaf)
        if not spec.rank or spec.shape[0] is None:
            remedy = "steps go along it" if not spec.rank else "declare the extent"
            raise ScanOp.error(f"'{name}' with a first axis of known extent", spec, remedy)
        if length is not None and spec.shape[0] != length:
            expected = f"'{name}' with a first axis of extent {length}, as {known} has"
            raise ScanOp.error(expected, spec, "slice the longer one")
        length, known = spec.shape[0], known or f"'{name}'"
    if length is None:
        raise ScanOp.error("length, or arrays in xs", "neither", "say how many steps there are")
    return length


def _trip(unroll: int | bool | None, length: int) -> int:
    """The attribute `unroll`: steps a trip, 0 for the pass's choice."""
    if unroll is None:
        return 0
    if isinstance(unroll, bool):
        return max(length, 1) if unroll else 1
    try:
        steps = operator.index(unroll)
    except TypeError:
        steps = 0
    if steps < 1:
        raise ScanOp.error("unroll as None, a boolean or an integer of at least 1", repr(unroll))
    return steps


def _adapts(leaf: Any, dtype: np.dtype) -> bool:
    """Whether a leaf is a number, and gives way to arrays of an element type."""
    return is_scalar(leaf) and common_type(ANY, (number_type(leaf), True), (dtype, False)) == dtype


class _Loop:
    """A loop in the making."""

    def __init__(
        self,
        f: Callable[..., Any],
        init: Any,
        xs: Any,
        length: int,
        reverse: bool,
        unroll: int,
    ) -> None:
        self.f, self.length, self.reverse, self.unroll = f, length, reverse, unroll
        self.init, self.structure = trees.flatten(init)
        self.names = [name for name, _ in trees.named_leaves("carry", init)]
        self.xs, self.xs_structure = trees.flatten(xs)

    def step(self, carry: Sequence[Any], x: Sequence[Any]) -> tuple[list[Any], Any]:
        """One step: the leaves of the carry, and y. OpError where `f` gives no pair, or a carry of
        another structure.
        """
        given = trees.unflatten(self.structure, carry)
        found = self.f(given, trees.unflatten(self.xs_structure, x))
        if not (isinstance(found, tuple | list) and len(found) == 2):
            got = f"{len(found)} entries" if isinstance(found, tuple) else type(found).__name__
            raise ScanOp.error("the body to return a pair (carry, y)", got)
        leaves, structure = trees.flatten(found[0])
        if structure != self.structure:
            expected = f"a carry of the structure {trees.shown(self.structure)} from the body"
            raise ScanOp.error(expected, trees.shown(structure))
        adapted = [
            as_tensor(leaf, before.dtype) if _adapts(leaf, before.dtype) else leaf
            for leaf, before in zip(leaves, carry, strict=True)
        ]
        return adapted, found[1]

    def wider(self, found: Sequence[TensorSpec]) -> bool:
        """Give numbers of `init` the element types that the carry has behind a step, `found`, where
        they give way to those; whether that changes any.
        """
        changed = False
        for i, (leaf, spec) in enumerate(zip(self.init, found, strict=True)):
            if _adapts(leaf, spec.dtype) and number_type(leaf) != spec.dtype:
                self.init[i] = constant(leaf, spec.dtype)
                changed = True
        return changed

    def check(self, given: Sequence[TensorSpec], found: Sequence[TensorSpec]) -> None:
        """Raise OpError unless the carry has the types it had, naming the first that has not."""
        for name, before, after in zip(self.names, given, found, strict=True):
            if before != after:
                remedy = (
                    "convert one of them with astype"
                    if before.shape == after.shape
                    else "its shape has to stay as it is"
                )
                raise ScanOp.error(f"the body to give '{name}' of type {before}", after, remedy)

    # --- at once ----------------------------------------------------------------------------------

    def run(self) -> tuple[Any, Any]:
        """The loop on arrays, step by step."""
        if not self.length:
            return self._without_steps()
        slices = [unstack(x) for x in self.xs]
        order = range(self.length)
        carry = self._first()
        steps = []
        for number, t in enumerate(reversed(order) if self.reverse else order):
            x = [s[t] for s in slices]
            leaves, y = self.step(carry, x)
            found = [as_tensor(leaf) for leaf in leaves]
            if not number and self.wider([spec_of(leaf) for leaf in found]):
                leaves, y = self.step(carry := self._first(), x)
                found = [as_tensor(leaf) for leaf in leaves]
            self.check([c.spec for c in carry], [c.spec for c in found])
            carry = found
            steps.append(trees.flatten(y))
        if any(s != steps[0][1] for _, s in steps):
            raise ScanOp.error("y of one structure from each step", "several")
        ordered = steps[::-1] if self.reverse else steps
        outputs = zip(*(leaves for leaves, _ in ordered), strict=True)
        ys = trees.unflatten(steps[0][1], [stack(leaves) for leaves in outputs])
        return trees.unflatten(self.structure, carry), ys

    def _first(self) -> list[Any]:
        return [as_tensor(x, number_type(x) if is_scalar(x) else None) for x in self.init]

    def _without_steps(self) -> tuple[Any, Any]:
        """No step: the carry as it is, and outputs of the types that a step would give."""
        carry, x = self._first(), [spec_of(leaf) for leaf in self.xs]
        given = [c.spec for c in carry]
        x = [s.with_shape(s.shape[1:]) for s in x]
        graph = trace(self._flat, given, x, name=function_name(self.f))
        count = len(carry)
        if self.wider(graph.output_specs[:count]):
            return self._without_steps()
        self.check(given, graph.output_specs[:count])
        ys = [zeros((0, *s.extents), s.dtype) for s in graph.output_specs[count:]]
        structure = self.y_structure
        return trees.unflatten(self.structure, carry), trees.unflatten(structure, ys)

    def _flat(self, carry: Sequence[Any], x: Sequence[Any]) -> list[Any]:
        """The body on leaves, as it is traced."""
        leaves, y = self.step(carry, x)
        outputs, self.y_structure = trees.flatten(y)
        return [*leaves, *outputs]

    # --- in a trace -------------------------------------------------------------------------------

    def traced(self) -> tuple[Any, Any]:
        """The loop as one op of the graph that is being built."""
        graph: Any = builders.required("scan")
        if not isinstance(graph, Graph):
            raise TraceError("a loop can be traced only while a graph is being built")
        inner = self._body(graph)
        xs = [x if isinstance(x, Tensor) else constant(x) for x in self.xs]
        captured = [outer for outer, _ in inner.captures.values()]
        found = ScanOp.emit_call(
            inner.func,
            *self._first(),
            *xs,
            *captured,
            length=self.length,
            carries=len(self.init),
            xs=len(xs),
            reverse=self.reverse,
            unroll=self.unroll,
        )
        count = len(self.init)
        carry = trees.unflatten(self.structure, found[:count])
        return carry, trees.unflatten(self.y_structure, found[count:])

    def _body(self, graph: Graph) -> Graph:
        """The body, traced into a function of the module."""
        x = [spec_of(leaf) for leaf in self.xs]
        given = [c.spec for c in self._first()]

        def flat(carry: Any, x: Any) -> list[Any]:
            return self._flat(carry, x)

        flat.__name__ = function_name(self.f)
        inner = trace_private(flat, (given, [s.with_shape(s.shape[1:]) for s in x]))
        found = inner.output_specs[: len(given)]
        if self.wider(found):
            inner.func.operation.erase()
            return self._body(graph)
        self.check(given, found)
        return inner
