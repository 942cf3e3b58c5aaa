# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Training and inference: what ops that differ between the two do where the caller does not say."""

import contextlib
import contextvars
from collections.abc import Iterator

MODES = ("train", "infer")

_mode = contextvars.ContextVar("gradopt_mode", default="train")

current_mode = _mode.get
"""The mode of this thread, one of MODES."""


def is_training() -> bool:
    """Whether `dropout`, `batch_norm` and their like train where their `training` is left away:
    yes, outside `go.infer_mode()`. Each thread has a state of its own.
    """
    return current_mode() == "train"


@contextlib.contextmanager
def mode(name: str) -> Iterator[None]:
    """Within it, functions are traced for a mode, "train" or "infer"."""
    before = _mode.set(name)
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
