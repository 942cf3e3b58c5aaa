# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Derivatives of Python functions, inside a function that is being traced.

Each transformation traces its function into the module and emits one op that names it
(`gradopt.vjp`, `gradopt.jvp`); the pass gradopt-differentiate does the rest, so transformations
nest to any depth.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import GradientError
from . import trees
from .control import JvpOp, VjpOp, call
from .creation import constant
from .elementwise import is_scalar
from .graph import Graph, function_name, spec_of, trace_inside
from .tensor import Tensor
from .types import TensorSpec, is_float


def value_and_grad(
    fn: Callable[..., Any],
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    allow_unused: bool = False,
    intermediates: Sequence[str] = (),
) -> Callable[..., Any]:
    """A function that returns `(fn(...), gradient)`.

    `fn` returns one floating-point number, or `(number, aux)` with `has_aux`. The gradient has the
    structure of the argument at `argnums` (a tuple of them for a tuple). An argument that the
    number does not depend on is an error, or has a gradient of zeros with `allow_unused`. With
    `intermediates`, labels of values that `fn` marks by `go.tag`, it is `(fn(...), (gradient,
    {label: gradient by that value}))`. Raises GradientError for integer arguments and results that
    are no number, OpError for labels that `fn` does not set once.
    """

    @functools.wraps(fn)
    def wrapped(*arguments: Any, **keywords: Any) -> Any:
        chosen = tuple(argnums) if isinstance(argnums, tuple | list) else (argnums,)
        bound = functools.update_wrapper(functools.partial(fn, **keywords), fn) if keywords else fn
        inner, operands = trace_inside(bound, arguments)
        wrt, structures = _positions(arguments, chosen)
        _check_arguments(fn, inner, operands, wrt)
        _check_loss(inner, fn, has_aux)
        ct = constant(1.0, inner.output_specs[0].dtype)
        mode = "zeros" if allow_unused else "error"
        about = {"wrt": wrt, "heads": (0,), "unreachable": mode, "intermediates": labels}
        results = VjpOp.emit_call(inner.func, *operands, ct, **about)
        count = len(inner.output_specs)
        values = trees.unflatten(inner.out_tree, results[:count])
        gradients, rest = [], list(results[count:])
        for tree in structures:
            gradients.append(trees.unflatten(tree, rest[: tree.num_leaves]))
            rest = rest[tree.num_leaves :]
        found = tuple(gradients) if isinstance(argnums, tuple | list) else gradients[0]
        return values, (found, dict(zip(labels, rest, strict=True))) if labels else found

    labels = tuple(intermediates)
    return wrapped


def grad(
    fn: Callable[..., Any],
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    allow_unused: bool = False,
    intermediates: Sequence[str] = (),
) -> Callable[..., Any]:
    """A function that returns the gradient of `fn`, or `(gradient, aux)`; see `value_and_grad`."""
    both = value_and_grad(fn, argnums, has_aux, allow_unused, intermediates)

    @functools.wraps(fn)
    def wrapped(*arguments: Any, **keywords: Any) -> Any:
        value, gradient = both(*arguments, **keywords)
        return (gradient, value[1]) if has_aux else gradient

    return wrapped


def vjp(fn: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """`(fn(*primals), pullback)`; `pullback(cotangents)`, given a tree like the result's, returns
    one gradient a primal, None for integers and booleans.
    """
    inner, operands = trace_inside(fn, primals)
    results = call(inner.func, *operands)
    wrt = _float_leaves(fn, inner, trees.structure(primals).num_leaves)

    def pullback(cotangents: Any) -> Any:
        heads, cts = _heads(inner, fn, cotangents)
        found = VjpOp.emit_call(
            inner.func, *operands, *cts, wrt=wrt, heads=heads, unreachable="zeros"
        )
        gradients = dict(zip(wrt, found[len(results) :], strict=True))
        tree = trees.structure(primals)
        return trees.unflatten(tree, [gradients.get(i) for i in range(tree.num_leaves)])

    return trees.unflatten(inner.out_tree, results), pullback


def jvp(
    fn: Callable[..., Any], primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[Any, Any]:
    """`(fn(*primals), directional derivative along tangents)`, the second with the structure of the
    first.

    `tangents` has the structure, shapes and dtypes of `primals`, with None for integers and
    booleans.
    """
    what = f"jvp of '{function_name(fn)}'"
    for name, given in (("primals", primals), ("tangents", tangents)):
        if not isinstance(given, tuple | list):
            raise GradientError(f"{what} expected a tuple of {name}, got {type(given).__name__}")
    inner, operands = trace_inside(fn, tuple(primals))
    tree = trees.structure(tuple(primals))
    wrt = _float_leaves(fn, inner, tree.num_leaves)
    wanted = trees.unflatten(tree, [0 if i in wrt else None for i in range(tree.num_leaves)])
    if trees.structure(tuple(tangents)) != trees.structure(wanted):
        raise GradientError(
            f"{what} expected tangents with the structure of the primals, None for integers and "
            f"booleans, {trees.structure(wanted)}, got {trees.structure(tuple(tangents))}"
        )
    directions = _matching(
        what, "tangent", trees.leaves(tuple(tangents)), [inner.input_specs[i] for i in wrt]
    )
    results = JvpOp.emit_call(inner.func, *operands, *directions, wrt=wrt, unreachable="zeros")
    count = len(inner.output_specs)
    derivative = iter(results[count:])
    outputs = [next(derivative) if is_float(s.dtype) else None for s in inner.output_specs]
    return trees.unflatten(inner.out_tree, results[:count]), trees.unflatten(
        inner.out_tree, outputs
    )


# --- checks ---------------------------------------------------------------------------------------


def _check_loss(inner: Graph, fn: Callable[..., Any], has_aux: bool) -> None:
    specs = inner.output_specs
    if has_aux and (
        len(specs) < 1 or inner.out_tree.type is not tuple or inner.out_tree.num_children != 2
    ):
        raise GradientError(
            f"'{function_name(fn)}' with has_aux expected to return (number, aux), got "
            f"{inner.out_tree}"
        )
    if (
        not specs
        or specs[0].shape != ()
        or not is_float(specs[0].dtype)
        or (len(specs) > 1 and not has_aux)
    ):
        got = ", ".join(map(str, specs)) or "nothing"
        raise GradientError(
            f"the gradient of '{function_name(fn)}' expected one floating-point number as result, "
            f"got {got}; "
            "reduce it (for instance with .mean()), return (number, aux) with has_aux, or use "
            "go.vjp"
        )


def _check_arguments(
    fn: Callable[..., Any], inner: Graph, operands: list[Any], wrt: tuple[int, ...]
) -> None:
    for position in wrt:
        if not is_float(operands[position].dtype):
            raise GradientError(
                f"the gradient of '{function_name(fn)}' expected floating-point arguments to "
                "differentiate, got argument "
                f"'{inner.input_names[position]}' with dtype {operands[position].dtype.name}; "
                "integers and booleans have no gradient"
            )


def _float_leaves(fn: Callable[..., Any], inner: Graph, count: int) -> tuple[int, ...]:
    """Positions of the floating-point tensors among the first `count` inputs."""
    floats = tuple(i for i in range(count) if is_float(inner.input_specs[i].dtype))
    if not floats:
        raise GradientError(
            f"the derivative of '{function_name(fn)}' expected at least one floating-point "
            f"argument, got {', '.join(map(str, inner.input_specs[:count])) or 'none'}"
        )
    return floats


def _matching(what: str, kind: str, leaves: list[Any], specs: list[TensorSpec]) -> list[Tensor]:
    """Cotangents or tangents as tensors of the types they must have; Python numbers take those."""
    tensors = []
    for i, (leaf, spec) in enumerate(zip(leaves, specs, strict=True)):
        if not isinstance(leaf, Tensor):
            leaf = constant(leaf, spec.dtype if is_scalar(leaf) else spec_of(leaf).dtype)
        if leaf.spec != spec:
            raise GradientError(f"{what} expected {kind} {i} of type {spec}, got {leaf.spec}")
        tensors.append(leaf)
    return tensors


def _positions(
    arguments: tuple[Any, ...], chosen: tuple[int, ...]
) -> tuple[tuple[int, ...], list[Any]]:
    """Leaf positions of the chosen arguments among all leaves, and each argument's structure."""
    counts = [trees.structure(a).num_leaves for a in arguments]
    if not arguments:
        raise GradientError(
            "a gradient expected positional arguments to differentiate by, got none; keyword "
            "arguments are constants to it"
        )
    for argument in chosen:
        if not hasattr(argument, "__index__") or not -len(arguments) <= argument < len(arguments):
            raise GradientError(
                f"argnums expected positions of the {len(arguments)} arguments, got {argument}"
            )
    chosen = tuple(a % len(arguments) for a in chosen)
    wrt = tuple(i for a in chosen for i in range(sum(counts[:a]), sum(counts[: a + 1])))
    return wrt, [trees.structure(arguments[a]) for a in chosen]


def _heads(
    inner: Graph, fn: Callable[..., Any], cotangents: Any
) -> tuple[tuple[int, ...], list[Any]]:
    """Floating-point results and their cotangents; a cotangent for an integer result is ignored."""
    if len(trees.leaves(cotangents, none_is_leaf=True)) != len(inner.output_specs):
        raise GradientError(
            f"vjp of '{function_name(fn)}' expected cotangents with the structure of its result, "
            f"{inner.out_tree}"
        )
    leaves = trees.leaves(cotangents, none_is_leaf=True)
    heads = tuple(
        i for i, s in enumerate(inner.output_specs) if is_float(s.dtype) and leaves[i] is not None
    )
    return heads, _matching(
        f"vjp of '{function_name(fn)}'",
        "cotangent",
        [leaves[i] for i in heads],
        [inner.output_specs[i] for i in heads],
    )
