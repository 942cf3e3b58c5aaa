# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Targets that run in this process without IREE."""

from .target import Family, Target

JIT = Target("jit", "local-task", (), (), products=(), is_host=True)  # MLIR's own compiler
REFERENCE = Target("reference", "local-task", (), (), is_host=True)  # ops run on NumPy

LOCAL = (
    Family("jit", ("",), lambda _: JIT, is_compiled=False),
    Family("reference", ("",), lambda _: REFERENCE, is_compiled=False),
)
