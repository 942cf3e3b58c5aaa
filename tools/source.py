# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""MLIR files that tools read: text or bytecode, parsed with errors that name the file, its lines
and what may be meant.
"""

import dataclasses
import difflib
import pathlib
import re
import sys

from ..dialect.base import OPS
from ..dialect.mlir import diagnostics, ir
from ..errors import Diagnostic, PassError

BYTECODE = b"ML\xefR"
"""How MLIR bytecode starts."""
SEPARATOR = "// -----"
"""The line between parts of a file that are treated on their own."""


@dataclasses.dataclass(frozen=True)
class Source:
    """An input and what messages call it."""

    name: str
    data: bytes
    path: str | None = None

    @property
    def text(self) -> str:
        """The text; none of bytecode."""
        return "" if self.data.startswith(BYTECODE) else self.data.decode(errors="replace")

    def parts(self) -> list["Source"]:
        """The parts between separator lines, each after as many empty lines as put it at its place
        in the file; bytecode is one part.
        """
        if self.data.startswith(BYTECODE):
            return [self]
        starts, lines = [0], self.text.split("\n")
        starts += [i + 1 for i, line in enumerate(lines) if line.strip() == SEPARATOR]
        ends = [start - 1 for start in starts[1:]] + [len(lines)]
        return [
            Source(self.name, ("\n" * start + "\n".join(lines[start:end])).encode())
            for start, end in zip(starts, ends, strict=True)
        ]

    def parse(self) -> ir.Module:
        """The module in the current context. Raises PassError where it does not parse or verify."""
        try:
            return ir.Module.parseFile(self.path) if self.path else ir.Module.parse(self.data)
        except ir.MLIRError as error:
            found = diagnostics(error) or [self._unparsed()]
            raise PassError([self.named(d) for d in found]) from None

    def _unparsed(self) -> Diagnostic:
        """The fault of an input that MLIR refuses without a word, as it does custom syntax for an
        op whose dialect has none.
        """
        for number, line in enumerate(self.text.split("\n"), 1):
            if custom := re.match(r"(\s*(?:%[^=]*=\s*)?)(gradopt\.\w+)", line):
                message = (
                    f'expected an op in generic form, "{custom[2]}"(...) {{...}} : (...) -> ..., '
                    f"got '{custom[2]}' without quotes"
                )
                return Diagnostic(self.name, number, len(custom[1]) + 1, "error", message)
        return Diagnostic(self.name, 1, 1, "error", "expected MLIR text or bytecode")

    def named(self, fault: Diagnostic) -> Diagnostic:
        """The fault with the input's name, which MLIR knows as '-', and what may be meant."""
        file = self.name if fault.file == "-" else fault.file
        return dataclasses.replace(fault, file=file, message=_explained(fault.message))


def read(name: str) -> Source:
    """The input called `name`, - for stdin. Raises OSError."""
    if name == "-":
        return Source("<stdin>", sys.stdin.buffer.read())
    return Source(name, pathlib.Path(name).read_bytes(), name)


def _explained(message: str) -> str:
    """What MLIR says of an op that gradopt does not have, with the op that may be meant."""
    unknown = re.match(r"(?:unregistered operation|custom op) 'gradopt\.([^']*)'", message)
    if not unknown:
        return message
    close = difflib.get_close_matches(unknown[1], OPS, 1)
    hint = f"did you mean 'gradopt.{close[0]}'? " if close else ""
    return (
        f"expected an op of the gradopt dialect, got 'gradopt.{unknown[1]}'; {hint}"
        "gradopt-opt --list-ops shows them all"
    )
