# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Where ops go when they are emitted: a per-thread stack of builders, so that passes and traces
share one way to build.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from ..errors import TraceError
from .mlir import ir


class _Thread(threading.local):
    """The builders entered and the name scopes open on a thread, outermost first."""

    def __init__(self) -> None:
        self.builders: list[Builder] = []
        self.scopes: list[str] = []


_thread = _Thread()

imperative: Any = None
"""What runs ops at once where no graph is being built, with the interface of a Builder; put here by
runtime/imperative.py.
"""


class Builder:
    """An insertion point and a location. Entered with `with`, it is where this thread's ops are
    emitted.

    Passes use it as it is; `Graph` adds names, source lines and captured values.
    """

    def __init__(self, insertion_point: ir.InsertionPoint, location: ir.Location) -> None:
        self.insertion_point = insertion_point
        self.context: ir.Context = location.context
        self._location = location

    def location(self, name: str) -> ir.Location:
        """The location of the next op, called `name` where names are kept."""
        return self._location

    def adopt(self, value: ir.Value) -> ir.Value:
        """`value` as it can be used at the insertion point."""
        return value

    def add(
        self,
        op_class: Any,
        operands: tuple[Any, ...],
        attributes: dict[str, Any],
        name: str | None = None,
    ) -> Any:
        """Append an op; its result, or a tuple of them."""
        return op_class.append(self, operands, attributes, name)

    def build(
        self,
        op_class: Any,
        operands: tuple[Any, ...],
        attributes: dict[str, Any],
        name: str | None = None,
    ) -> Any:
        """`add`, of operands as the op's `prepare` brings them together."""
        with self:
            return self.add(op_class, op_class.prepare(*operands), attributes, name)

    def __enter__(self) -> "Builder":
        self.context.__enter__()
        _thread.builders.append(self)
        return self

    def __exit__(self, *exception: Any) -> None:
        _thread.builders.pop()
        self.context.__exit__(*exception)


@contextlib.contextmanager
def emitting_to(builder: Any) -> Iterator[None]:
    """Within it, the ops of this thread go to `builder`."""
    _thread.builders.append(builder)
    try:
        yield
    finally:
        _thread.builders.pop()


def current() -> Builder | None:
    """The builder entered last on this thread."""
    return _thread.builders[-1] if _thread.builders else None


def required(mnemonic: str) -> Builder:
    """The current builder; TraceError if none is open."""
    if (builder := current()) is None:
        raise TraceError(
            f"'gradopt.{mnemonic}' needs a graph to be added to, and none is being built; call it "
            "in a function given "
            "to go.trace or go.compile, or in a `with go.Graph():` block"
        )
    return builder


def owner(mnemonic: str, operands: tuple[Any, ...]) -> Builder:
    """The builder that an op on `operands` is emitted with: the current one, else the graph of the
    first operand that has one, else what runs ops at once.
    """
    if _thread.builders:
        return _thread.builders[-1]
    for operand in operands:
        if (graph := getattr(operand, "graph", None)) is not None:
            return graph
    return required(mnemonic) if imperative is None else imperative


class name_scope:  # noqa: N801 - used as a function, `with name_scope("layer1"):`
    """Prefix the names of ops built inside with `name` and a dot; scopes nest."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        scopes().append(self.name)

    def __exit__(self, *exception: Any) -> None:
        scopes().pop()


def scopes() -> list[str]:
    """The name scopes open on this thread, outermost first."""
    return _thread.scopes
