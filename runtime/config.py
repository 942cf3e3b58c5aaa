# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""`go.config`: how ops run where no graph is being built; `go.eager_mode`: the same for a block of
one thread; `go.invoke`: one op by its name.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from ..dialect import builder as builders
from ..dialect.base import OPS, REQUIRED
from ..errors import ArgumentError, OpError
from . import lazy
from .present import find_target
from .state import MODES, state


class Config:
    """Settings of the process."""

    __slots__ = ()

    @property
    def eager(self) -> str:
        """How ops on arrays run where a thread does not say otherwise by `go.eager_mode`.

        "reference", the default: at once, on NumPy, by the op's reference. "lazy": they are put
        off, and run as one compiled graph on `target` when a value is needed. "op": at once, each
        compiled for `target` by itself. ArgumentError for other words.
        """
        return lazy.default

    @eager.setter
    def eager(self, mode: str) -> None:
        lazy.default = checked("go.config.eager", mode)

    @property
    def target(self) -> str:
        """The target of the modes "lazy" and "op": "cpu", "jit", or "reference", which runs graphs
        on NumPy. CompileError for other words.
        """
        return lazy.where

    @target.setter
    def target(self, target: str) -> None:
        lazy.where = find_target(target).name

    def __repr__(self) -> str:
        return f"Config(eager={self.eager!r}, target={self.target!r})"


config = Config()


def checked(what: str, mode: Any) -> str:
    """A mode; ArgumentError for what is none."""
    if mode not in MODES:
        listed = ", ".join(f"'{m}'" for m in MODES)
        raise ArgumentError(f"{what} expected one of {listed}, got {mode!r}")
    return mode


@contextlib.contextmanager
def eager_mode(mode: str) -> Iterator[None]:
    """Within it, ops of this thread run in a mode, whatever `go.config.eager` says. ArgumentError
    for a mode that is none.
    """
    before, state.eager = state.eager, checked("go.eager_mode", mode)
    try:
        yield
    finally:
        state.eager = before


def invoke(op: str, inputs: Any, **attributes: Any) -> Any:
    """One op of the dialect by its mnemonic, such as "reduce_sum", on arrays or tensors of the
    types that it takes; nothing is converted or broadcast. Its result, or a tuple of them. OpError
    for an op that does not exist, and for inputs or attributes that it does not take.
    """
    name = op.removeprefix("gradopt.")
    op_class = OPS.get(name)
    if op_class is None or op_class.OF_FUNCTION:
        raise OpError(
            f"go.invoke expected the name of an op on arrays, got '{op}'; see docs/ops.md"
        )
    for attribute in attributes:
        if attribute not in op_class.ATTRIBUTES:
            known = ", ".join(op_class.ATTRIBUTES) or "none"
            raise op_class.error(f"attributes out of: {known}", f"'{attribute}'")
    for field, (kind, default) in op_class.ATTRIBUTES.items():
        if default is REQUIRED and field not in attributes:
            raise op_class.error(f"attribute '{field}' like {kind.example}", "none")
    operands = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    fields = op_class.OPERANDS
    least = sum(not variadic for variadic in fields.values())
    if len(operands) < least or (len(operands) > least and not any(fields.values())):
        raise op_class.error(f"operands ({', '.join(fields)})", f"{len(operands)} of them")
    return builders.owner(name, operands).add(op_class, operands, attributes)
