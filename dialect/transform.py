# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Derivatives of Python functions.

Inside a function that is being traced, each transformation traces its function into the module and
emits one op that names it (`gradopt.vjp`, `gradopt.jvp`); the pass gradopt-differentiate does the
rest, so transformations nest to any depth. Outside, on arrays, the function runs at once, and the
tape is differentiated (runtime/transforms.py).
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import GradientError
from . import builder as builders
from . import trees
from .control import JvpOp, VjpOp, call
from .creation import constant
from .elementwise import is_scalar
from .graph import argument_names, function_name, spec_of, trace_inside
from .tensor import Tensor
from .types import TensorSpec, is_float


class Traced:
    """A function traced on arguments, in a trace; what is asked of it are ops there. `wrt` are the
    positions of the leaves of the arguments that it is differentiated by.
    """

    def __init__(
        self, fn: Callable[..., Any], arguments: tuple[Any, ...], wrt: tuple[int, ...]
    ) -> None:
        inner, self.operands = trace_inside(fn, arguments)
        self.wrt = wrt
        self.callee = inner.func
        self.output_specs: Sequence[TensorSpec] = inner.output_specs
        self.out_tree = inner.out_tree

    def values(self) -> list[Any]:
        """The leaves of the result."""
        return list(call(self.callee, *self.operands))

    def vjp(
        self,
        heads: tuple[int, ...],
        cts: list[Any],
        unreachable: str,
        intermediates: tuple[str, ...] = (),
    ) -> tuple[list[Any], list[Any]]:
        """The leaves of the result, and the gradients by `wrt` and `intermediates`."""
        about = {"wrt": self.wrt, "heads": heads, "unreachable": unreachable}
        found = VjpOp.emit_call(
            self.callee, *self.operands, *cts, **about, intermediates=intermediates
        )
        count = len(self.output_specs)
        return list(found[:count]), list(found[count:])

    def jvp(self, tangents: list[Any]) -> tuple[list[Any], list[Any]]:
        """The leaves of the result, and the tangents of those that are floating-point."""
        about = {"wrt": self.wrt, "unreachable": "zeros"}
        found = JvpOp.emit_call(self.callee, *self.operands, *tangents, **about)
        count = len(self.output_specs)
        return list(found[:count]), list(found[count:])


def at_once(arguments: Any) -> Any:
    """What runs functions at once where no graph is being built; None in a trace."""
    if builders.current() is not None or builders.imperative is None:
        return None
    is_traced = any(isinstance(leaf, Tensor) for leaf in trees.leaves(arguments))
    return None if is_traced else builders.imperative


def _called(
    fn: Callable[..., Any], arguments: tuple[Any, ...], wrt: tuple[int, ...], follow: bool = False
) -> Any:
    """A function that is traced, or run at once, on arguments; see Traced, and Run."""
    eager = at_once(arguments)
    if eager is None:
        return Traced(fn, arguments, wrt)
    return eager.called(fn, arguments, wrt, follow)


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
        wrt, structures = _positions(arguments, chosen)
        _check_arguments(fn, arguments, wrt)
        of = _called(bound, arguments, wrt, bool(labels) or not allow_unused)
        _check_loss(of, fn, has_aux)
        ct = constant(1.0, of.output_specs[0].dtype)
        mode = "zeros" if allow_unused else "error"
        results, rest = of.vjp((0,), [ct], mode, labels)
        values = trees.unflatten(of.out_tree, results)
        gradients = []
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


class Derivative:
    """A function at its floating-point arguments: its result, and products with its Jacobian, any
    number of them. `what` is what messages call it.
    """

    def __init__(self, what: str, fn: Callable[..., Any], primals: tuple[Any, ...]) -> None:
        self._fn = fn
        self._what = what
        self._tree = trees.structure(primals)
        specs = [spec_of(leaf) for leaf in trees.leaves(primals)]
        self._wrt = _float_leaves(fn, specs)
        self._specs = [specs[i] for i in self._wrt]
        self._of = _called(fn, primals, self._wrt)

    def result(self) -> Any:
        """The function's result."""
        return trees.unflatten(self._of.out_tree, self._of.values())

    def pullback(self, cotangents: Any) -> Any:
        """The gradients by the primals, None for integers, of the result times cotangents."""
        heads, cts = _heads(self._of, self._fn, cotangents)
        _, found = self._of.vjp(heads, cts, "zeros")
        gradients = dict(zip(self._wrt, found, strict=True))
        leaves = [gradients.get(i) for i in range(self._tree.num_leaves)]
        return trees.unflatten(self._tree, leaves)

    def tangents(self, given: Any) -> list[Any]:
        """Tangents, a tree like the primals, as a list; GradientError where they do not fit."""
        places = [0 if i in self._wrt else None for i in range(self._tree.num_leaves)]
        wanted = trees.structure(trees.unflatten(self._tree, places))
        if trees.structure(given) != wanted:
            raise GradientError(
                f"{self._what} expected tangents with the structure of the primals, None for "
                f"integers and booleans, {wanted}, got {trees.structure(given)}"
            )
        return _matching(self._what, "tangent", trees.leaves(given), self._specs)

    def push(self, tangents: list[Any]) -> tuple[Any, Any]:
        """The result, and its derivative along tangents, None for integers."""
        of = self._of
        results, found = of.jvp(tangents)
        derivative = iter(found)
        outputs = [next(derivative) if is_float(s.dtype) else None for s in of.output_specs]
        return trees.unflatten(of.out_tree, results), trees.unflatten(of.out_tree, outputs)


def vjp(fn: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """`(fn(*primals), pullback)`; `pullback(cotangents)`, given a tree like the result's, returns
    one gradient a primal, None for integers and booleans.
    """
    of = Derivative(f"vjp of '{function_name(fn)}'", fn, primals)
    return of.result(), of.pullback


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
    of = Derivative(what, fn, tuple(primals))
    return of.push(of.tangents(tuple(tangents)))


# --- checks ---------------------------------------------------------------------------------------


def _check_loss(inner: Any, fn: Callable[..., Any], has_aux: bool) -> None:
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
    fn: Callable[..., Any], arguments: tuple[Any, ...], wrt: tuple[int, ...]
) -> None:
    leaves = trees.leaves(arguments)
    for position in wrt:
        dtype = spec_of(leaves[position]).dtype
        if not is_float(dtype):
            raise GradientError(
                f"the gradient of '{function_name(fn)}' expected floating-point arguments to "
                f"differentiate, got argument '{leaf_names(fn, arguments)[position]}' with dtype "
                f"{dtype.name}; integers and booleans have no gradient"
            )


def leaf_names(fn: Callable[..., Any], arguments: tuple[Any, ...]) -> list[str]:
    """Readable names of the leaves of arguments."""
    names = argument_names(fn, len(arguments))
    pairs = zip(names, arguments, strict=True)
    return [path for name, argument in pairs for path, _ in trees.named_leaves(name, argument)]


def _float_leaves(fn: Callable[..., Any], specs: list[TensorSpec]) -> tuple[int, ...]:
    """Positions of the floating-point ones among the types of arguments' leaves."""
    floats = tuple(i for i, spec in enumerate(specs) if is_float(spec.dtype))
    if not floats:
        raise GradientError(
            f"the derivative of '{function_name(fn)}' expected at least one floating-point "
            f"argument, got {', '.join(map(str, specs)) or 'none'}"
        )
    return floats


def _matching(what: str, kind: str, leaves: list[Any], specs: list[TensorSpec]) -> list[Any]:
    """Cotangents or tangents as tensors of the types they must have; Python numbers take those."""
    tensors = []
    for i, (leaf, spec) in enumerate(zip(leaves, specs, strict=True)):
        if not hasattr(leaf, "graph"):
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
    inner: Any, fn: Callable[..., Any], cotangents: Any
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
