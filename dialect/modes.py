# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Training and inference: what ops that differ between the two do where the caller does not say;
and the type that products take their operands in.
"""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..errors import OpError
from .types import as_dtype, is_float, is_narrow

MODES = ("train", "infer")
AUTOCAST = ", autocast "

_mode = contextvars.ContextVar("gradopt_mode", default="train")

current_mode = _mode.get
"""The mode of this thread: one of MODES, with the type of `autocast` behind it if there is one,
"train, autocast bfloat16". Compiled functions keep a module for each.
"""


def is_training() -> bool:
    """Whether `dropout`, `batch_norm` and their like train where their `training` is left away:
    yes, outside `go.infer_mode()`. Each thread has a state of its own.
    """
    return current_mode().startswith("train")


def mode_like(name: str) -> str:
    """What `current_mode` is within `mode(name)`."""
    _, cast, dtype = current_mode().partition(AUTOCAST)
    return name if AUTOCAST in name else name + cast + dtype


@contextlib.contextmanager
def mode(name: str) -> Iterator[None]:
    """Within it, functions are traced for a mode, "train" or "infer", or one that `current_mode`
    was.
    """
    before = _mode.set(mode_like(name))
    try:
        yield
    finally:
        _mode.reset(before)


def train_mode() -> contextlib.AbstractContextManager[None]:
    """A context in which `dropout`, `batch_norm` and their like train; compiled functions keep a
    module for each mode.
    """
    return mode("train")


def infer_mode() -> contextlib.AbstractContextManager[None]:
    """A context in which `dropout` does nothing and `batch_norm` uses its running statistics;
    gradients are those of that function.
    """
    return mode("infer")


# --- mixed precision ------------------------------------------------------------------------------


def autocast_dtype() -> np.dtype | None:
    """The type that this thread's products round float32 operands to, None where they do not."""
    _, _, dtype = current_mode().partition(AUTOCAST)
    return as_dtype(dtype) if dtype else None


@contextlib.contextmanager
def _autocast(suffix: str) -> Iterator[None]:
    name, _, _ = current_mode().partition(AUTOCAST)
    before = _mode.set(name + suffix)
    try:
        yield
    finally:
        _mode.reset(before)


def autocast(dtype: Any) -> contextlib.AbstractContextManager[None]:
    """A context in which matrix products, convolutions and attention round float32 operands to a
    16-bit type, "bfloat16" or "float16", and sum in float32. Results, parameters and gradients stay
    float32; gradients of these products are computed likewise. Operands of other types are taken
    as they are.

    `go.autocast(None)` inside it switches that off. It holds for this thread, for ops that run and
    ops that are traced; compiled functions keep a module for each type. OpError for another type.
    """
    if dtype is None:
        return _autocast("")
    found = as_dtype(dtype)
    if not (is_float(found) and is_narrow(found)):
        raise OpError(
            f"autocast expected 'bfloat16', 'float16' or None, got {dtype!r}; to compute in a "
            "wider type convert the parameters, net.astype(dtype)"
        )
    return _autocast(AUTOCAST + found.name)
