# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What makes two calls the same: the parts of a signature, and their digest, the key of a compiled
module, which is equal across processes, hash seeds and working folders.
"""

import dataclasses
import functools
import hashlib
import inspect
import json
import os
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from ..dialect import trees
from ..dialect.control import symbols
from ..dialect.function_graph import FunctionGraph
from ..dialect.graph import DATA, Graph
from ..lowering.target import Target, host_cpu
from .cache import versions

LARGEST_TEXT = 1 << 22
"""Characters of a graph that is kept to be compared with later ones."""


@dataclasses.dataclass(frozen=True)
class Signature:
    """All that a compiled module depends on, part by part, as JSON has it.

    `parts` make the key. `notes` describe the call for people; what they say of the module is in
    the graph's text already, so that two calls that differ in them alone share a module. `origin`
    says whose signature it is, in words that another process would use.
    """

    name: str
    parts: Mapping[str, Any]
    notes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    origin: str = ""
    packed: bytes = dataclasses.field(default=b"", repr=False)

    @functools.cached_property
    def key(self) -> str:
        """The digest of the parts."""
        return digest(self.parts)

    @property
    def described(self) -> dict[str, Any]:
        """Every part, the notes first."""
        return {**self.notes, **self.parts}

    @property
    def text(self) -> str:
        """The graph's text, "" where it is too long to be kept."""
        return zlib.decompress(self.packed).decode() if self.packed else ""

    def about(self) -> dict[str, Any]:
        """What an entry on disk says of the signature that it is for."""
        parts, notes = dict(self.parts), dict(self.notes)
        return {"name": self.name, "origin": self.origin, "parts": parts, "notes": notes}


def of_graph(
    graph: Graph | FunctionGraph,
    target: Target,
    parts: Mapping[str, Any] | None = None,
    origin: str = "",
) -> Signature:
    """The signature of a graph compiled for a target; `parts` are the options and all else that it
    was made under.
    """
    function = symbols(graph.module)[graph.name]
    names, specs = graph.input_names, graph.input_specs
    notes = {"structure of the arguments": trees.shown(graph.in_tree)} if graph.in_tree else {}
    for name, spec, about in zip(names, specs, function.arg_attrs, strict=True):
        role = about["gradopt.role"].value if "gradopt.role" in about else DATA
        notes[f"argument '{name}'"] = str(spec) if role == DATA else f"{spec} {role}"
    text = graph.module.operation.get_asm()
    return of_text(graph.name, text, target, parts, notes, origin or f"graph {graph.name}")


def of_text(
    name: str,
    text: str,
    target: Target,
    parts: Mapping[str, Any] | None = None,
    notes: Mapping[str, Any] | None = None,
    origin: str = "",
) -> Signature:
    """The signature of a module's text, which has no source locations, so that moving code does not
    compile it again.
    """
    found: dict[str, Any] = {
        "graph": hashlib.sha256(text.encode()).hexdigest(),
        **(parts or {}),
        "target": target.name,
        "device": target.driver,
        "CPU": host_cpu() if target.is_host else target.name,
        "tuned forms": target.forms,
        "compiler flags": [target.flags, [(r.flags, r.process_flags) for r in target.ladder]],
        **{f"version of {package}": version for package, version in versions().items()},
    }
    packed = zlib.compress(text.encode(), 1) if len(text) <= LARGEST_TEXT else b""
    return Signature(name, _plain(found), _plain(notes or {}), origin, packed)


def digest(parts: Mapping[str, Any]) -> str:
    """The key that parts make."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _plain(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Parts as they come back from JSON."""
    return json.loads(json.dumps(parts))


def origin_of(fn: Callable[..., Any] | Graph) -> str:
    """Whose signature it is, in words that the same program would use in another process."""
    if isinstance(fn, Graph):
        return f"graph {fn.name}"
    inner = inspect.unwrap(fn) if callable(fn) else fn
    inner = getattr(inner, "func", inner)  # of functools.partial
    code = getattr(inner, "__code__", None)
    name = getattr(inner, "__qualname__", type(inner).__qualname__)
    return f"{os.path.basename(code.co_filename)}:{name}" if code else name
