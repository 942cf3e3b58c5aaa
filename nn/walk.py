# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Arrays in the attributes of modules, in lists, tuples and dicts that stand there, and in modules
of theirs; and copies of such containers with other arrays.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..dialect.tensor import Tensor
from ..errors import ModuleError
from ..runtime.array import Array


def entries(holder: Any) -> list[tuple[str, Any]]:
    """The entries of a container under their names; empty for what is none."""
    if isinstance(holder, dict):
        return [(str(k), v) for k, v in holder.items()]
    if isinstance(holder, tuple) and hasattr(holder, "_fields"):
        return list(zip(holder._fields, holder, strict=True))
    if isinstance(holder, list | tuple):
        return [(str(i), v) for i, v in enumerate(holder)]
    return []


def walk(
    root: Any, inside: Callable[[Any], list[tuple[str, Any]]]
) -> Iterator[tuple[str, Any, int]]:
    """(path, value, depth) of everything in `root`, in order, where `inside` gives the entries of a
    value. What stands in several places is met once, in the first.
    """
    seen = {id(root)}
    stack = [(name, value, 0) for name, value in reversed(inside(root))]
    while stack:
        path, value, depth = stack.pop()
        below = inside(value)
        if below or is_array(value):
            if id(value) in seen:
                continue
            seen.add(id(value))
        yield path, value, depth
        stack += [(f"{path}.{name}", v, depth + 1) for name, v in reversed(below)]


def by_path(found: Iterator[tuple[str, Any]]) -> dict[str, Any]:
    """A dict of values by path; ModuleError where two have one path."""
    result: dict[str, Any] = {}
    for path, value in found:
        if path in result:
            raise ModuleError(
                f"two arrays of a module have the path '{path}'; use keys of dicts without dots"
            )
        result[path] = value
    return result


def is_array(x: Any) -> bool:
    """Whether it is an Array, or a tensor in its place."""
    return isinstance(x, Array | Tensor)


def rebuilt(holder: Any, change: Callable[[Any], Any]) -> Any:
    """A container with `change` of what stands in it, containers in it included; itself where
    nothing changes.
    """
    if not isinstance(holder, dict | list | tuple):
        return change(holder)
    if isinstance(holder, dict):
        new: Any = copy.copy(holder)
        new.update((k, rebuilt(v, change)) for k, v in holder.items())
        same = all(new[k] is v for k, v in holder.items())
    else:
        values = [rebuilt(v, change) for v in holder]
        same = all(a is b for a, b in zip(values, holder, strict=True))
        fields = hasattr(holder, "_fields")
        new = type(holder)(*values) if fields else type(holder)(values)
    return holder if same else new


def check_arrays(
    of: str, given: dict[str, Any], own: dict[str, Any], dtypes: bool, missing: bool
) -> None:
    """Raise ModuleError for all that does not fit the arrays of something, at once: unknown paths,
    other shapes, and if asked for other dtypes and missing paths.
    """
    faults = []
    if missing and (absent := [p for p in own if p not in given]):
        faults.append(f"missing {', '.join(absent)}")
    if unknown := [p for p in given if p not in own]:
        faults.append(f"unexpected {', '.join(unknown)}")
    for path in (p for p in own if p in given):
        x, old = given[path], own[path]
        x = x if is_array(x) else np.asarray(x)
        if x.shape != old.shape or (dtypes and x.dtype != old.dtype):
            got = f"{x.dtype.name} of shape {x.shape}"
            faults.append(f"'{path}' expected {old.dtype.name} of shape {old.shape}, got {got}")
    if faults:
        raise ModuleError(f"arrays for {of} do not fit: {'; '.join(faults)}")
