# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""NumPy's functions on Arrays.

Those that gradopt has run through it, give Arrays and are recorded like any op; the tables say
which they are. Others run in NumPy, on the elements, and give NumPy's arrays: of what needs a
gradient that is an error while recording, as the gradient would be lost.
"""

import functools
import importlib
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ..errors import GradientError
from .array import Array, asarray
from .state import state

UFUNCS: dict[str, str] = {
    name: name
    for name in (
        "add", "cbrt", "ceil", "copysign", "cos", "cosh", "deg2rad", "equal", "exp",
        "exp2", "expm1", "floor", "floor_divide", "fmod", "greater", "greater_equal", "heaviside",
        "hypot", "less", "less_equal", "log", "log10", "log1p", "log2", "logaddexp", "logical_and",
        "logical_not", "logical_or", "logical_xor", "matmul", "maximum", "minimum", "not_equal",
        "rad2deg", "reciprocal", "remainder", "sign", "signbit", "sin", "sinh", "sqrt", "square",
        "tan", "tanh", "trunc",
    )
} | {
    "absolute": "abs",
    "arccos": "acos",
    "arccosh": "acosh",
    "arcsin": "asin",
    "arcsinh": "asinh",
    "arctan": "atan",
    "arctan2": "atan2",
    "arctanh": "atanh",
    "bitwise_and": "bitwise_and",
    "bitwise_or": "bitwise_or",
    "bitwise_xor": "bitwise_xor",
    "degrees": "rad2deg",
    "divide": "div",
    "invert": "bitwise_invert",
    "isfinite": "is_finite",
    "isinf": "is_inf",
    "isnan": "is_nan",
    "left_shift": "shift_left",
    "multiply": "mul",
    "negative": "neg",
    "positive": "positive",
    "power": "pow",
    "radians": "deg2rad",
    "right_shift": "shift_right",
    "rint": "round",
    "subtract": "sub",
}  # fmt: skip
"""NumPy's ufuncs by name, and what they are here: functions, or methods of Array."""

FUNCTIONS: dict[str, tuple[str, str]] = {
    "all": ("all", "a=x axis keepdims"),
    "amax": ("max", "a=x axis keepdims"),
    "amin": ("min", "a=x axis keepdims"),
    "any": ("any", "a=x axis keepdims"),
    "argmax": ("argmax", "a=x axis keepdims"),
    "argmin": ("argmin", "a=x axis keepdims"),
    "argsort": ("argsort", "a=x axis"),
    "broadcast_to": ("broadcast_to", "array=x shape"),
    "clip": ("clip", "a=x a_min=min a_max=max min max"),
    "concatenate": ("concat", "arrays=xs axis"),
    "count_nonzero": ("count_nonzero", "a=x axis keepdims"),
    "cumprod": ("cumprod", "a=x axis"),
    "cumsum": ("cumsum", "a=x axis"),
    "cumulative_sum": ("cumulative_sum", "x axis dtype include_initial"),
    "diagonal": ("diagonal", "a=x offset axis1 axis2"),
    "diff": ("diff", "a=x n axis prepend append"),
    "dot": ("dot", "a b"),
    "einsum": ("einsum", "*operands"),
    "expand_dims": ("expand_dims", "a=x axis"),
    "flip": ("flip", "m=x axis"),
    "full_like": ("full_like", "a=x fill_value dtype"),
    "matrix_transpose": ("matrix_transpose", "x"),
    "max": ("max", "a=x axis keepdims"),
    "mean": ("mean", "a=x axis keepdims"),
    "median": ("median", "a=x axis keepdims"),
    "min": ("min", "a=x axis keepdims"),
    "moveaxis": ("moveaxis", "a=x source destination"),
    "nan_to_num": ("nan_to_num", "x nan posinf neginf"),
    "ones_like": ("ones_like", "a=x dtype"),
    "prod": ("prod", "a=x axis dtype keepdims"),
    "ravel": ("flatten", "a=self"),
    "repeat": ("repeat", "a=x repeats axis"),
    "reshape": ("reshape", "a=x shape"),
    "roll": ("roll", "a=x shift axis"),
    "round": ("round", "a=x"),
    "searchsorted": ("searchsorted", "a v=values side"),
    "sort": ("sort", "a=x axis"),
    "squeeze": ("squeeze", "a=x axis"),
    "stack": ("stack", "arrays=xs axis"),
    "std": ("std", "a=x axis ddof=correction keepdims"),
    "sum": ("sum", "a=x axis dtype keepdims"),
    "swapaxes": ("swapaxes", "a=x axis1=a axis2=b"),
    "take": ("take", "a=x indices axis!"),
    "take_along_axis": ("take_along_axis", "arr=x indices axis!"),
    "tensordot": ("tensordot", "a b axes"),
    "tile": ("tile", "A=x reps=repeats"),
    "transpose": ("transpose", "a=x axes"),
    "tril": ("tril", "m=x k"),
    "triu": ("triu", "m=x k"),
    "var": ("var", "a=x axis ddof=correction keepdims"),
    "where": ("where", "condition x!=on_true y!=on_false"),
    "zeros_like": ("zeros_like", "a=x dtype"),
}
"""NumPy's functions by name: what they are here, and the parameters of theirs that have a
counterpart, `theirs=ours`; one with a `!` has to be given. Calls with other arguments are NumPy's.
"""

TYPES = (np.shape, np.ndim, np.size)
"""Functions that need no elements."""


def own(name: str) -> Callable[..., Any]:
    """The function of gradopt, or the method of Array, of a name in the tables."""
    gradopt = importlib.import_module("..", __package__)
    if not hasattr(gradopt, name):
        return getattr(Array, name)
    return getattr(gradopt, name)


@functools.cache
def parameters(name: str) -> tuple[dict[str, str], set[str]]:
    """The names of a row of FUNCTIONS, theirs -> ours, and which of theirs have to be given."""
    pairs = [p.partition("=") for p in FUNCTIONS[name][1].split()]
    names = {theirs.rstrip("!"): ours or theirs.rstrip("!") for theirs, _, ours in pairs}
    return names, {theirs[:-1] for theirs, _, _ in pairs if theirs.endswith("!")}


_signature = functools.cache(inspect.signature)


def _arguments(function: Any, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], Any] | None:
    """The arguments for our function of those for NumPy's; None where it has not all of them."""
    names, needed = parameters(function.__name__)
    if "*operands" in names:
        return None if kwargs else (args, {})
    found = _signature(function)
    bound = found.bind(*args, **kwargs)
    defaults = {n: p.default for n, p in found.parameters.items() if n not in names}
    given = {n: v for n, v in bound.arguments.items() if v is not defaults.get(n, bound)}
    for name in needed:
        if name not in given:
            bound.apply_defaults()
            given[name] = bound.arguments[name]
    if not given.keys() <= names.keys() or any(given[n] is None for n in needed):
        return None
    return (), {names[n]: v for n, v in given.items()}


def array_function(self: Array, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
    """NumPy's protocol for its functions."""
    if function in TYPES:
        return function._implementation(*args, **kwargs)
    _check_out(kwargs.get("out"), f"numpy.{function.__name__}")
    if function.__module__ == "numpy" and function.__name__ in FUNCTIONS:
        found = _arguments(function, args, kwargs)
        if found is not None:
            return own(FUNCTIONS[function.__name__][0])(*found[0], **found[1])
    return _in_numpy(function, f"{function.__module__}.{function.__name__}", args, kwargs)


def array_ufunc(self: Array, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
    """NumPy's protocol for its elementwise functions and the operators of its arrays."""
    known = Array, np.ndarray, np.generic
    if any(hasattr(type(x), "__array_ufunc__") and not isinstance(x, known) for x in inputs):
        return NotImplemented
    name = f"numpy.{ufunc.__name__}{'' if method == '__call__' else f'.{method}'}"
    _check_out(options.get("out") or (inputs[0] if method == "at" else None), name)
    if method == "__call__" and not options and ufunc.__name__ in UFUNCS:
        first, *rest = inputs
        return own(UFUNCS[ufunc.__name__])(asarray(first), *rest)
    return _in_numpy(getattr(ufunc, method), name, inputs, options)


def _check_out(out: Any, name: str) -> None:
    if any(isinstance(x, Array) for x in _leaves(out)):
        raise TypeError(
            f"{name}: an Array cannot be written to by NumPy; leave `out` away and take the "
            "result, or use x[...] = values or x.at[...].add(values)"
        )


def _in_numpy(function: Callable[..., Any], name: str, args: Any, kwargs: Any) -> Any:
    """NumPy's function on the elements. GradientError where a gradient would be lost by it."""
    needs = state.recording and any(
        isinstance(x, Array) and x._history is not None and x._history.needs
        for x in _leaves((args, kwargs))
    )
    result = function(*_elements(args), **_elements(kwargs))
    if needs and any(getattr(x, "dtype", np.dtype(bool)).kind in "fcV" for x in _leaves(result)):
        raise GradientError(
            f"{name} with these arguments runs in NumPy, which records no gradient, and was given "
            "an Array that needs one; use functions of gradopt, or x.detach() for a value without "
            "a gradient"
        )
    return result


def _leaves(x: Any) -> Iterable[Any]:
    """What tuples, lists and dicts hold."""
    if isinstance(x, tuple | list | dict):
        for part in x.values() if isinstance(x, dict) else x:
            yield from _leaves(part)
    else:
        yield x


def _elements(x: Any) -> Any:
    """Arguments with NumPy's arrays for Arrays."""
    if isinstance(x, Array):
        return x.numpy()
    if isinstance(x, dict):
        return {k: _elements(v) for k, v in x.items()}
    return type(x)(map(_elements, x)) if type(x) in (tuple, list) else x


setattr(Array, "__array_function__", array_function)  # noqa: B010 - Array is defined without NumPy
setattr(Array, "__array_ufunc__", array_ufunc)  # noqa: B010
