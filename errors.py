# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Every exception gradopt raises on purpose. A message names the op or argument, what was expected,
what came, what to do.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Diagnostic:
    """A fault in the IR and where it is."""

    file: str
    line: int
    column: int
    severity: str
    message: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}:{self.column}" if self.file else "<unknown>"
        return f"{where}: {self.severity}: {self.message}"


class GradoptError(Exception):
    """Base of all errors raised by gradopt."""


class OpError(GradoptError, ValueError):
    """An op was given operands or attributes that its definition does not allow."""

    located = False
    """True once the message starts with the user's source line."""


class PlaceError(OpError, IndexError):
    """An axis or an index is outside the tensor, or there are more of them than it has axes."""


class TraceError(GradoptError, TypeError):
    """A Python function or graph cannot be captured as it is written."""


class GradientError(GradoptError, ValueError):
    """A gradient was asked for that does not exist: by an integer, or of what is not one number.
    What only the pass can find, an unreachable input or an op without a rule, is its PassError.
    """


class PassError(GradoptError, RuntimeError):
    """A pass failed; the message is that of its diagnostics, a line each."""

    def __init__(self, diagnostics: Sequence[Diagnostic]) -> None:
        super().__init__("\n".join(map(str, diagnostics)))
        self.diagnostics = list(diagnostics)


class PipelineError(GradoptError, ValueError):
    """A pass pipeline is malformed, or names a pass or option that does not exist."""


class ArgumentError(GradoptError, TypeError):
    """A function was called with arguments of another structure, shape or dtype than it takes."""


class DonationError(ArgumentError):
    """A donated array was used again, or was given twice."""


class DeviceError(GradoptError, RuntimeError):
    """A device failed while it ran a call."""


class ForkError(GradoptError, RuntimeError):
    """A call in a process that was forked from one that has devices open."""


class CompileError(GradoptError, RuntimeError):
    """The target's compiler failed on every rung of the fallback ladder, or ran out of time."""


class ArtifactError(GradoptError, RuntimeError):
    """A compiled artifact is damaged, or was made for another version or machine."""


class NonFiniteError(GradoptError, FloatingPointError):
    """A call's results have a NaN or an infinity, and debug_nans or debug_infs is on. `op` is the
    name of the op that made the first one, None where that was given to the call; `inputs` and
    `outputs` are its arrays by name.
    """

    op: str | None = None
    inputs: dict[str, Any] = {}
    outputs: dict[str, Any] = {}


class ModuleError(GradoptError, ValueError):
    """A net or an optimizer is put together wrongly, or arrays do not fit it."""


class ProfileError(GradoptError, RuntimeError):
    """IREE's tools could not measure a compiled function."""
