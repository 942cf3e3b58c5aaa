# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What a program means: the ops of the gradopt dialect, graphs of them, and the NumPy reference."""

from . import (
    activation,
    arithmetic,
    contraction,
    control,
    convolution,
    creation,
    graph,
    indexing,
    logic,
    nn,
    reduction,
    reference,
    shape,
    slicing,
    special,
    tensor,
    transcendental,
    transform,
)

__all__ = [
    "activation",
    "arithmetic",
    "contraction",
    "control",
    "convolution",
    "creation",
    "graph",
    "indexing",
    "logic",
    "nn",
    "reduction",
    "reference",
    "shape",
    "slicing",
    "special",
    "tensor",
    "transcendental",
    "transform",
]
