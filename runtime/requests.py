# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Which gradients a recorded call gives: a request for each input of its graph."""

from collections.abc import Mapping
from typing import Any

from ..dialect.auxiliary import auxiliary_inputs
from ..dialect.types import is_float
from ..errors import ArgumentError, GradientError
from ..lowering.marks import NULL, WRITE
from .options import GradReq, Options


class ByLeaf(tuple[str, ...]):
    """Requests for the leaves of all arguments, where there is a gradient to ask for: states,
    integers and booleans have none.
    """


def frozen(grad_req: GradReq) -> Any:
    """`grad_req` as part of a key."""
    if isinstance(grad_req, ByLeaf):
        return grad_req
    if isinstance(grad_req, Mapping):
        return tuple(grad_req.items())
    return grad_req if grad_req is None or isinstance(grad_req, str) else tuple(grad_req)


def requests_of(
    graph: Any, grad_req: GradReq, options: Options, arguments: list[str]
) -> tuple[str, ...]:
    """A request for each input of a graph whose arguments have the given names.

    Where `grad_req` says nothing, gradients by the parameters (`param`) are written, by all
    floating-point inputs if no parameters are named; never by auxiliary inputs. Raises
    ArgumentError for entries that do not fit the arguments, GradientError for gradients that do not
    exist.
    """
    owners = owners_of(graph, len(arguments))
    given = grad_req
    states = set(auxiliary_inputs(graph))
    if isinstance(given, ByLeaf):
        return tuple(
            NULL if i in states or not is_float(spec.dtype) else given[i]
            for i, spec in enumerate(graph.input_specs)
        )
    if given is None or isinstance(given, str):
        wanted = options.param if options.has_roles else range(len(arguments))
        request = WRITE if given is None else given
        return tuple(
            request
            if owner in (wanted or ()) and is_float(spec.dtype) and i not in states
            else NULL
            for i, (owner, spec) in enumerate(zip(owners, graph.input_specs, strict=True))
        )
    if isinstance(given, Mapping):
        found = _by_name(graph, given, arguments, owners, states)
    else:
        found = _by_position(graph, list(given), arguments, owners, states)
    for i in states:
        if found[i] != NULL:
            raise GradientError(
                f"grad_req of '{graph.name}' expected inputs that are no states to differentiate "
                f"by, got '{graph.input_names[i]}', which is auxiliary; ask for 'null'"
            )
    for name, spec, request in zip(graph.input_names, graph.input_specs, found, strict=True):
        if request != NULL and not is_float(spec.dtype):
            raise GradientError(
                f"grad_req of '{graph.name}' expected floating-point inputs to differentiate by, "
                f"got '{name}' with dtype {spec.dtype.name}; integers and booleans have no "
                "gradient: ask for 'null'"
            )
    return tuple(found)


def owners_of(graph: Any, count: int) -> list[int]:
    """For each input of a graph, the position of the argument that it is part of."""
    if graph.in_tree is None:
        return list(range(count))
    return [i for i, tree in enumerate(graph.in_tree.children()) for _ in range(tree.num_leaves)]


def _by_position(
    graph: Any, given: list[str], arguments: list[str], owners: list[int], states: set[int]
) -> list[str]:
    if len(given) != len(arguments):
        raise ArgumentError(
            f"grad_req of '{graph.name}' expected one entry for each of its {len(arguments)} "
            f"arguments ({', '.join(arguments)}), got {len(given)}"
        )
    found = [NULL] * len(owners)
    for argument, request in enumerate(given):
        _assign(found, graph, _leaves(owners, argument), request, states)
    return found


def _by_name(
    graph: Any,
    given: Mapping[Any, str],
    arguments: list[str],
    owners: list[int],
    states: set[int],
) -> list[str]:
    """An entry is for an argument, by name or position, or for one array in it, which goes before;
    "null" is for all others.
    """
    names = graph.input_names
    found = [NULL] * len(names)
    for key, request in given.items():
        if key in arguments or (isinstance(key, int) and 0 <= key < len(arguments)):
            argument = key if isinstance(key, int) else arguments.index(key)
            _assign(found, graph, _leaves(owners, argument), request, states)
        elif key not in names:
            known = ", ".join(dict.fromkeys([*arguments, *names]))
            raise ArgumentError(
                f"grad_req of '{graph.name}' expected names out of {known}, got {key!r}"
            )
    for i, name in enumerate(names):
        found[i] = given.get(name, found[i])
    return found


def _assign(
    found: list[str], graph: Any, leaves: list[int], request: str, states: set[int]
) -> None:
    """A request for an argument holds for its floating-point arrays but states, or for its only
    one.
    """
    for i in leaves:
        is_trained = is_float(graph.input_specs[i].dtype) and i not in states
        if is_trained or len(leaves) == 1:
            found[i] = request


def _leaves(owners: list[int], argument: int) -> list[int]:
    return [i for i, owner in enumerate(owners) if owner == argument]
