# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Nested containers of arrays (tuples, lists, dicts, named tuples), as optree sees them."""

from collections.abc import Callable
from typing import Any

import optree


def leaves(tree: Any, none_is_leaf: bool = False) -> list[Any]:
    """What stands in the containers, in order; dicts in the order of their keys."""
    return optree.tree_leaves(tree, none_is_leaf=none_is_leaf)


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """The leaves and the structure they stand in."""
    return optree.tree_flatten(tree)


def structure(tree: Any) -> Any:
    return optree.tree_structure(tree)


def unflatten(structure: Any, leaves: Any) -> Any:
    """The containers of a structure, filled with leaves."""
    return optree.tree_unflatten(structure, leaves)


def is_leaf(structure: Any) -> bool:
    """Whether a structure is one leaf, in no container."""
    return structure.is_leaf()


def leaves_up_to(structure: Any, tree: Any) -> list[Any]:
    """What stands in `tree` in the places of a structure's leaves; ValueError if it differs."""
    return structure.flatten_up_to(tree)


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """The containers with `function` of each leaf."""
    return optree.tree_map(function, tree)


def shown(structure: Any) -> str:
    """A structure as people read it, leaves as stars: `({'b': *, 'w': *}, *)`."""
    return str(structure).removeprefix("PyTreeSpec(").removesuffix(")")


def named_leaves(name: str, tree: Any) -> list[tuple[str, Any]]:
    """The leaves under readable names: `name`, then keys, fields and positions, with dots."""
    accessors, found, _ = optree.tree_flatten_with_accessor(tree)
    names = [
        ".".join([name, *(str(getattr(e, "field", e.entry)) for e in accessor)])
        for accessor in accessors
    ]
    return list(zip(names, found, strict=True))


def spread(prefix: Any, tree: Any) -> list[Any]:
    """For each leaf of a tree what stands for it in `prefix`, a tree that ends where the same holds
    for all below; None is an entry there. ValueError where they do not fit.
    """
    return optree.broadcast_prefix(prefix, tree, none_is_leaf=True)
