# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Functions with a gradient rule of their own: `custom_vjp` and `checkpoint`."""

import functools
from collections.abc import Callable
from typing import Any

from ..errors import GradientError
from . import trees
from .checkpoint_policies import Policy, nothing_saveable
from .control import CHECKPOINT, CUSTOM_VJP, call
from .creation import constant, zeros
from .graph import Graph, function_name, spec_of, trace_inside, trace_private
from .mlir import ir
from .transform import at_once
from .types import TensorSpec, is_float


class custom_vjp:  # noqa: N801 - a decorator
    """A function whose gradient the user gives.

    >>> @go.custom_vjp
    ... def f(x): ...
    >>> f.defvjp(forward, backward)

    `forward(*arguments)` returns `(f(*arguments), residuals)`; `backward(residuals, cotangents)`,
    with cotangents in the structure of the result (None for integers), returns a tuple of one
    gradient an argument, in its structure; None for one that has none (integers), or is zero.
    Derivatives of higher order go through `forward` and `backward`. All three see their arguments
    only: a tensor of an enclosing function is refused, as its gradient would be lost.
    """

    WRAPS = "fn", "rules"  # see runtime/walk.py

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self.rules: tuple[Callable[..., Any], Callable[..., Any]] | None = None
        functools.update_wrapper(self, fn)

    def defvjp(self, forward: Callable[..., Any], backward: Callable[..., Any]) -> None:
        """Set the rule."""
        self.rules = forward, backward

    def __call__(self, *arguments: Any) -> Any:
        name = function_name(self.fn)
        if self.rules is None:
            raise GradientError(f"custom_vjp '{name}' expected a rule, got none; call its defvjp")
        forward, backward = self.rules
        if (eager := at_once(arguments)) is not None:

            def rule(residuals: Any, cotangents: Any) -> list[Any]:
                return _gradients(name, backward(residuals, cotangents), arguments)

            return eager.custom_call(name, self.fn, forward, rule, arguments)
        inner, operands = trace_inside(self.fn, arguments)
        residual_tree: list[Any] = []

        def forward_flat(*args: Any) -> Any:
            found = forward(*args)
            if not (isinstance(found, tuple) and len(found) == 2):
                got = type(found).__name__
                raise GradientError(
                    f"forward of custom_vjp '{name}' expected to return (result, residuals), "
                    f"got {got}"
                )
            residual_tree.append(trees.structure(found[1]))
            return found

        specs = trees.unflatten(inner.in_tree, inner.input_specs[: inner.in_tree.num_leaves])
        outside = trace_private(forward_flat, specs)
        self._check_forward(name, inner, outside)
        residuals = outside.output_specs[len(inner.output_specs) :]
        floats = [s for s in inner.output_specs if is_float(s.dtype)]
        count = len(residuals)

        def backward_flat(*leaves: Any) -> Any:
            cts = iter(leaves[count:])
            heads = [next(cts) if is_float(s.dtype) else None for s in inner.output_specs]
            given = trees.unflatten(inner.out_tree, heads)
            found = backward(trees.unflatten(residual_tree[0], leaves[:count]), given)
            gradients = _gradients(name, found, arguments)
            return [g for g in gradients if g is not None]

        inside = trace_private(backward_flat, (*residuals, *floats))
        for graph, what in ((inner, "it"), (outside, "its forward"), (inside, "its backward")):
            if graph.captures:
                first = next(iter(graph.captures.values()))[0]
                raise GradientError(
                    f"custom_vjp '{name}' expected only its arguments to be used, got {what} using "
                    f"{first!r} of the function around it; pass it as an argument"
                )
        _mark(inner, outside, inside)
        return trees.unflatten(inner.out_tree, call(inner.func, *operands))

    def _check_forward(self, name: str, inner: Graph, outside: Graph) -> None:
        specs = inner.output_specs
        if outside.output_specs[: len(specs)] != specs:
            got = ", ".join(map(str, outside.output_specs[: len(specs)]))
            expected = ", ".join(map(str, specs))
            raise GradientError(
                f"forward of custom_vjp '{name}' expected its first result to be that of the "
                f"function, {expected}, got {got}"
            )


def _mark(inner: Graph, outside: Graph, inside: Graph) -> None:
    with inner.context:
        symbol = ir.FlatSymbolRefAttr.get
        names = {
            "forward": symbol(outside.func.name.value),
            "backward": symbol(inside.func.name.value),
        }
        inner.func.attributes[CUSTOM_VJP] = ir.DictAttr.get(names)


def _gradients(name: str, found: Any, arguments: Any) -> list[Any]:
    """The gradients by the leaves of the arguments, None for integers, from what backward
    returned.
    """
    if not isinstance(found, tuple) or len(found) != len(arguments):
        got = f"{len(found)} entries" if isinstance(found, tuple) else type(found).__name__
        raise GradientError(
            f"backward of custom_vjp '{name}' expected to return a tuple of {len(arguments)} "
            f"gradients, one an argument, got {got}"
        )
    flat: list[Any] = []
    for argument, gradient in zip(arguments, found, strict=True):
        count = trees.structure(argument).num_leaves
        leaves = [None] * count if gradient is None else trees.leaves(gradient, none_is_leaf=True)
        if len(leaves) != count:
            raise GradientError(
                f"backward of custom_vjp '{name}' expected a gradient in the structure of its "
                f"argument, {trees.structure(argument)}, got {trees.structure(gradient)}"
            )
        flat += leaves
    specs = [spec_of(leaf) for leaf in trees.leaves(arguments)]
    return [_gradient(name, i, g, s) for i, (g, s) in enumerate(zip(flat, specs, strict=True))]


def _gradient(name: str, i: int, found: Any, spec: TensorSpec) -> Any:
    """One of them, as a tensor of the type that it must have."""
    if not is_float(spec.dtype):
        return None
    if found is None:
        found = zeros(spec.extents, spec.dtype)
    elif not hasattr(found, "graph"):
        found = constant(found, spec.dtype)
    if found.spec != spec:
        raise GradientError(
            f"backward of custom_vjp '{name}' expected gradient {i} of type {spec}, got "
            f"{found.spec}"
        )
    return found


def checkpoint(fn: Callable[..., Any] | None = None, *, policy: Policy = nothing_saveable) -> Any:
    """`fn`, of which only the arguments, and what `policy` saves, are kept for its backward: the
    rest is computed anew there.

    Less memory for more work; values and gradients are the same. Policies stand in
    `go.checkpoint_policies`; on arrays outside a trace nothing is kept besides the arguments,
    unless the policy is `everything_saveable`. There the function runs twice, Python and all:
    arrays that it writes to are written to twice. Can be used as a decorator.
    """
    if not isinstance(policy, Policy):
        got = f"got {policy!r:.60}"
        raise GradientError(f"checkpoint expected a policy of go.checkpoint_policies, {got}")
    if fn is None:
        return functools.partial(checkpoint, policy=policy)

    @functools.wraps(fn)
    def wrapped(*arguments: Any, **keywords: Any) -> Any:
        bound = functools.update_wrapper(functools.partial(fn, **keywords), fn) if keywords else fn
        if (eager := at_once(arguments)) is not None:
            return eager.checkpoint_call(bound, function_name(fn), arguments, policy)
        inner, operands = trace_inside(bound, arguments)
        with inner.context:
            inner.func.attributes[CHECKPOINT] = _policy_attribute(policy)
        return trees.unflatten(inner.out_tree, call(inner.func, *operands))

    return wrapped


def _policy_attribute(policy: Policy) -> ir.Attribute:
    if policy == nothing_saveable:
        return ir.UnitAttr.get()
    names = ir.ArrayAttr.get([ir.StringAttr.get(n) for n in policy.names])
    return ir.DictAttr.get({"policy": ir.StringAttr.get(policy.name), "names": names})
