# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Graphs with the options that they are compiled with, as text."""

import json
from collections.abc import Mapping
from typing import Any

from ..dialect.graph import Graph
from ..dialect.mlir import ir
from ..errors import TraceError

OPTIONS = "gradopt.options"
"""On a module: the options as JSON."""


def serialized(graph: Graph, options: Mapping[str, Any]) -> str:
    """A graph's text, source lines included, with options on its module."""
    with graph.context:
        module = ir.Module.parse(graph.mlir(locations=True))
        module.operation.attributes[OPTIONS] = ir.StringAttr.get(json.dumps(dict(options)))
        return module.operation.get_asm(use_name_loc_as_prefix=True, enable_debug_info=True)


def parsed(text: str) -> tuple[Graph, dict[str, Any]]:
    """The graph and the options that `serialized` wrote. Raises TraceError for other text."""
    graph = Graph.parse(text)
    attributes = graph.module.operation.attributes
    try:
        options = json.loads(ir.StringAttr(attributes[OPTIONS]).value)
    except (KeyError, ValueError):
        raise TraceError(
            f"expected the options of '{graph.name}' as attribute '{OPTIONS}' of the module, got "
            "none that can be read; use gradopt.Graph.parse and gradopt.compile"
        ) from None
    del attributes[OPTIONS]
    return graph, options
