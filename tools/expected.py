# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""--verify-diagnostics: the faults of a run against `// expected-error {{text}}` comments in its
input.
"""

import dataclasses
import re
import sys

from ..errors import Diagnostic

COMMENT = re.compile(
    r"expected-(error|warning|note|remark)\s*(@[-+]?\d+|@above|@below)?\s*\{\{(.*?)\}\}"
)


@dataclasses.dataclass(frozen=True)
class Expected:
    """A fault that a comment asks for: part of its message, at a line."""

    line: int
    severity: str
    text: str

    def matches(self, fault: Diagnostic, name: str) -> bool:
        return (
            fault.file == name
            and fault.line == self.line
            and fault.severity == self.severity
            and self.text in fault.message
        )


def expectations(text: str) -> list[Expected]:
    """All expectations of an input; `@+1`, `@-1`, `@above` and `@below` are relative to the
    comment's line.
    """
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        comment = line.partition("//")[2]
        for severity, where, message in COMMENT.findall(comment):
            offset = {"": 0, "@above": -1, "@below": 1}.get(where)
            found.append(
                Expected(number + (int(where[1:]) if offset is None else offset), severity, message)
            )
    return found


def check_expected(text: str, name: str, faults: list[Diagnostic]) -> int:
    """0 if the faults are exactly those expected, each by one comment, else 1 with each difference
    on stderr.
    """
    missing, surprising = [], list(faults)
    for e in expectations(text):
        match = next((f for f in surprising if e.matches(f, name)), None)
        if match:
            surprising.remove(match)
        else:
            missing.append(e)
    for e in missing:
        print(
            f'{name}:{e.line}: error: expected {e.severity} "{e.text}" was not produced',
            file=sys.stderr,
        )
    for f in surprising:
        print(f"{f}\n{name}:{f.line}: error: unexpected {f.severity}", file=sys.stderr)
    return 1 if missing or surprising else 0
