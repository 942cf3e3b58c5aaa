# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Matrices of derivatives, built from vjp and jvp, a row or a column at a time."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import GradientError
from . import trees
from .creation import constant, zeros_like
from .elementwise import as_tensor
from .graph import function_name
from .slicing import stack
from .transform import Derivative, grad, jvp
from .types import is_float


def jacobian(
    fn: Callable[..., Any], argnums: int | tuple[int, ...] = 0, mode: str = "auto"
) -> Callable[..., Any]:
    """A function that returns the derivative of every element of the result by every element of the
    arguments at `argnums`.

    For arrays x and y = fn(x) it has the shape y.shape + x.shape; for trees it has the structure of
    the result, each leaf of which is one like the argument (a tuple of them for a tuple `argnums`).
    `mode` is "reverse" (a vjp for each element of the result), "forward" (a jvp for each element of
    the arguments), or "auto": whichever needs fewer. Every one is written out in the graph, so this
    is for small matrices. Extents have to be known. Raises GradientError for integers.
    """
    if mode not in ("auto", "forward", "reverse"):
        raise GradientError(f"jacobian expected mode auto, forward or reverse, got '{mode}'")

    @functools.wraps(fn)
    def wrapped(*arguments: Any, **keywords: Any) -> Any:
        many = isinstance(argnums, tuple | list)
        chosen = tuple(argnums) if isinstance(argnums, tuple | list) else (argnums,)
        arguments = tuple(trees.map_leaves(as_tensor, a) for a in arguments)

        def of_chosen(*values: Any) -> Any:
            every = list(arguments)
            for i, v in zip(chosen, values, strict=True):
                every[i] = v
            return fn(*every, **keywords)

        values = tuple(arguments[i] for i in chosen)
        of = Derivative(f"the jacobian of '{function_name(fn)}'", of_chosen, values)
        result = of.result()
        name = function_name(fn)
        rows, columns = _count(name, "result", result), _count(name, "argument", values)
        forward = mode == "forward" or (mode == "auto" and columns < rows)
        built = _by_columns(of, values, result) if forward else _by_rows(of.pullback, result)
        return trees.unflatten(trees.structure(result), [b if many else b[0] for b in built])

    return wrapped


def _count(name: str, what: str, tree: Any) -> int:
    """How many elements the leaves have, all of which must be floating-point."""
    total = 0
    for leaf in trees.leaves(tree):
        spec = as_tensor(leaf).spec
        if not is_float(spec.dtype) or spec.size is None:
            raise GradientError(
                f"the jacobian of '{name}' expected floating-point {what}s of known shapes, got "
                f"{spec}"
            )
        total += spec.size
    return total


def _basis(spec: Any) -> list[Any]:
    """The tensors of a type that are 1 at one place and 0 elsewhere, in row-major order."""
    ones = np.eye(spec.size, dtype=spec.dtype)
    return [constant(one.reshape(spec.extents)) for one in ones]


def _by_rows(pullback: Callable[..., Any], result: Any) -> list[Any]:
    """For each leaf of the result its derivatives, in the structure of the arguments: a vjp for
    every element of the result.
    """
    leaves, structure = trees.flatten(result)
    built = []
    for k, leaf in enumerate(leaves):
        found = []
        for one in _basis(leaf.spec):
            cts = [one if i == k else None for i in range(len(leaves))]
            found.append(pullback(trees.unflatten(structure, cts)))
        built.append(_stacked(found, leaf.shape))
    return built


def _by_columns(of: Derivative, values: tuple[Any, ...], result: Any) -> list[Any]:
    """The same by a jvp for every element of the arguments."""
    leaves, structure = trees.flatten(values)
    columns: list[list[Any]] = [[] for _ in trees.leaves(result)]
    for k, leaf in enumerate(leaves):
        found = []
        for one in _basis(leaf.spec):
            parts = [one if i == k else zeros for i, zeros in enumerate(map(zeros_like, leaves))]
            found.append(trees.leaves(of.push(parts)[1]))
        for column, per_result in zip(columns, zip(*found, strict=True), strict=True):
            shape = (*per_result[0].shape, *leaf.shape)
            column.append(stack(per_result, -1).reshape(shape))
    return [trees.unflatten(structure, column) for column in columns]


def _stacked(found: list[Any], shape: tuple[int, ...]) -> Any:
    """Trees of gradients, one an element of a tensor of `shape`, as one tree of larger tensors."""
    flat = zip(*(trees.leaves(f) for f in found), strict=True)
    together = [stack(part).reshape((*shape, *part[0].shape)) for part in flat]
    return trees.unflatten(trees.structure(found[0]), together)


def hessian(fn: Callable[..., Any], argnums: int | tuple[int, ...] = 0) -> Callable[..., Any]:
    """A function that returns the second derivatives of `fn`, which returns one number: the
    jacobian, by jvp, of its gradient. For an array x it has the shape x.shape + x.shape.
    """
    return jacobian(grad(fn, argnums, allow_unused=True), argnums, mode="forward")


def hvp(fn: Callable[..., Any], primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> Any:
    """The Hessian of `fn`, which returns one number, times `tangents`: the jvp of its gradient, at
    the cost of a few gradients. Both tuples have one entry an argument; so has the result, or it is
    the one for a single argument.
    """
    every = tuple(range(len(primals)))
    gradient = grad(fn, every, allow_unused=True)
    found = jvp(gradient, tuple(primals), tuple(tangents))[1]
    return found[0] if len(primals) == 1 else found
