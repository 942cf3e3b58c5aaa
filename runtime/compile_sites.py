# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Which ops of the user's program the dispatches of a module come from. Runs in the compiler's
process (compile_worker.py), and imports nothing of gradopt.

IREE groups ops into dispatches, and keeps the code of equal ones once: code says nothing of the
places that it is used at. So dispatches are numbered when they are formed, by their locations,
with a note of what is in them; IREE carries locations along to the commands that it makes.
"""

import re
from typing import Any

from iree.compiler import ir

DISPATCH = "flow.dispatch.workgroups"
EXECUTE, COMMAND = "stream.cmd.execute", "stream.cmd.dispatch"
NUMBER = re.compile(r"gradopt\.dispatch\.(\d+)$")
NOT_COMPUTING = re.compile(
    r"iree_tensor_ext\.|flow\.|iree_encoding\.|tensor\.empty|arith\.constant|linalg\.(yield|fill)"
)

Origin = tuple[str, str, int]
"""The name of an op, and the file and line where it stands."""


def number_dispatches(module: Any) -> list[list[Origin]]:
    """Give each dispatch of a module a location with its number; returns what each computes."""
    found: list[list[Origin]] = []

    def look(op: Any) -> Any:
        if op.name == DISPATCH:
            root = origin(op.location)
            inside = [root] if root[0] else []
            op.walk(lambda inner: collect(inner, inside))
            with op.context:
                op.location = ir.Location.name(f"gradopt.dispatch.{len(found)}", op.location)
            found.append(list(dict.fromkeys(inside)))
        return ir.WalkResult.ADVANCE

    module.walk(look)
    return found


def collect(op: Any, found: list[Origin]) -> Any:
    """Note what an op in a dispatch comes from."""
    if not NOT_COMPUTING.match(op.name) and (place := origin(op.location))[0]:
        found.append(place)
    return ir.WalkResult.ADVANCE


def commands(module: Any, dispatches: list[list[Origin]]) -> list[list[dict[str, Any]]]:
    """The dispatches that each command buffer of a module consists of, in order: the name of its
    code, the op that it is made for first among those in it.
    """
    found: list[list[dict[str, Any]]] = []

    def look(op: Any) -> Any:
        if op.name == EXECUTE:
            found.append([])
        elif op.name == COMMAND and found:
            entry = str(op.attributes["entry_points"]).split("@")[-1].strip('"]')
            found[-1].append({"code": entry, "ops": origins(op.location, dispatches)})
        return ir.WalkResult.ADVANCE

    module.walk(look, ir.WalkOrder.PRE_ORDER)
    return found


def origins(location: Any, dispatches: list[list[Origin]]) -> list[Origin]:
    """What a command computes."""
    for leaf in leaves(location):
        if isinstance(leaf, ir.NameLoc) and (number := NUMBER.match(leaf.name_str)):
            return dispatches[int(number[1])]
    root = origin(location)
    return [root] if root[0] else []


def origin(location: Any) -> Origin:
    """The first named location in a location, and its place."""
    for leaf in leaves(location):
        if isinstance(leaf, ir.NameLoc) and not NUMBER.match(leaf.name_str):
            return leaf.name_str, *place(leaf.child_loc)
    return "", *place(location)


def place(location: Any) -> tuple[str, int]:
    for leaf in leaves(location):
        if isinstance(leaf, ir.FileLineColLoc):
            return leaf.filename, leaf.start_line
    return "", 0


def leaves(location: Any) -> list[Any]:
    """The named locations and places in a location, outermost first, without callers."""
    pending, found = [location], []
    while pending:
        one = pending.pop()
        if isinstance(one, ir.CallSiteLoc):
            pending.append(one.callee)
        elif isinstance(one, ir.FusedLoc):
            pending += reversed(list(one.locations))
        else:
            found.append(one)
            if isinstance(one, ir.NameLoc):
                pending.append(one.child_loc)
    return found
