# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The arguments of a call: put in order, and told what is wrong with them by name."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from ..dialect import trees
from ..dialect.creation import as_array
from ..dialect.graph import Graph, argument_names, function_name
from ..dialect.types import TensorSpec
from ..errors import ArgumentError, OpError


def positional(
    fn: Callable[..., Any] | Graph, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[Any, ...]:
    """All arguments by position, as the function's own signature places them."""
    if isinstance(fn, Graph):
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        signature = inspect.Signature([inspect.Parameter(n, kind) for n in fn.input_names])
    else:
        signature = inspect.signature(fn)
    try:
        bound = signature.bind(*arguments, **keywords)
    except TypeError as error:
        raise ArgumentError(f"'{_name(fn)}': {error}") from None
    if bound.kwargs:  # keyword-only, or behind an argument left to its default
        bound.apply_defaults()
    if bound.kwargs:
        raise ArgumentError(
            f"'{_name(fn)}' expected arguments that can be given by position, got keyword-only "
            f"{', '.join(bound.kwargs)}; bind them with functools.partial"
        )
    return bound.args


def not_arrays(fn: Callable[..., Any] | Graph, arguments: tuple[Any, ...]) -> ArgumentError:
    """The error for arguments of which at least one leaf is no array: it names the first."""
    count = len(arguments)
    extra = [f"arg{i}" for i in range(count)]
    names = (fn.input_names + extra)[:count] if isinstance(fn, Graph) else argument_names(fn, count)
    for name, argument in zip(names, arguments, strict=True):
        for path, leaf in trees.named_leaves(name, argument):
            try:
                as_array(leaf)
            except OpError:
                return ArgumentError(
                    f"'{_name(fn)}' expected an array or number as argument '{path}', got "
                    f"{type(leaf).__name__} {leaf!r:.60}; bind what is no array with "
                    "functools.partial"
                )
    raise AssertionError("all arguments are arrays")


def _name(fn: Callable[..., Any] | Graph) -> str:
    return fn.name if isinstance(fn, Graph) else function_name(fn)


def check_types(
    name: str, names: Sequence[str], specs: Sequence[TensorSpec], found: Sequence[TensorSpec]
) -> None:
    """Raise ArgumentError where arguments do not have the types that a function takes."""
    if len(specs) != len(found):
        raise ArgumentError(
            f"'{name}' expected {len(specs)} arguments ({', '.join(names)}), got {len(found)}"
        )
    for argument, spec, other in zip(names, specs, found, strict=True):
        same = spec.rank == other.rank and all(
            n is None or n == m for n, m in zip(spec.shape, other.shape, strict=True)
        )
        if not same or spec.dtype != other.dtype:
            raise ArgumentError(
                f"'{name}' expected argument '{argument}' of type {spec}, got {other}"
            )
