# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Changes that a traced function makes to its arguments, and that would be lost.

A function is traced on containers of its own, so that what it writes into them never reaches the
caller, who has to be given it as a result.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from ..errors import TraceError
from . import trees


class Watch:
    """The arguments of a function as they are before it is traced."""

    def __init__(self, names: Sequence[str], arguments: Sequence[Any]) -> None:
        self.names, self.arguments = names, arguments
        self.leaves, self.structure = trees.flatten(tuple(arguments))
        self.paths = self._paths()
        self.containers = self._containers()

    def check(self, function: str, results: Any) -> None:
        """Raise TraceError where an argument's container holds something else than before, and
        neither that nor the container is returned.
        """
        leaves, structure = trees.flatten(tuple(self.arguments))
        if structure == self.structure and all(
            a is b for a, b in zip(leaves, self.leaves, strict=True)
        ):
            return
        now = self._paths()
        returned = {id(leaf) for leaf in trees.leaves(results)}
        kept = {id(c) for _, c in _mutable("", results)}
        whole = [prefix for prefix, c in self.containers + self._containers() if id(c) in kept]
        for path in [*self.paths, *(p for p in now if p not in self.paths)]:
            before, after = self.paths.get(path), now.get(path)
            if before is after or any(path.startswith(f"{prefix}.") for prefix in whole):
                continue
            if after is not None and id(after) in returned:
                continue
            what = "removed" if after is None else "set" if before is None else "replaced"
            raise TraceError(
                f"'{function}' changes its argument: '{path}' is {what}, and the new value is "
                "not among its results; the caller would never see it: return it (or work on "
                "a copy of the container)"
            )

    def _paths(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, argument in zip(self.names, self.arguments, strict=True):
            found.update(trees.named_leaves(name, argument))
        return found

    def _containers(self) -> list[tuple[str, Any]]:
        pairs = zip(self.names, self.arguments, strict=True)
        return [found for name, argument in pairs for found in _mutable(name, argument)]


def _mutable(name: str, tree: Any) -> Iterator[tuple[str, Any]]:
    """The dicts and lists in nested containers, under the names that their leaves begin with."""
    pending = [(name, tree)]
    while pending:
        prefix, node = pending.pop()
        if isinstance(node, dict):
            yield prefix, node
            pending += [(f"{prefix}.{key}", child) for key, child in node.items()]
        elif isinstance(node, list | tuple):
            if isinstance(node, list):
                yield prefix, node
            keys = getattr(type(node), "_fields", range(len(node)))
            pending += [(f"{prefix}.{k}", child) for k, child in zip(keys, node, strict=True)]
