# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The lowerings to linalg, one file an op family."""

from . import (
    build,
    contraction,
    convolution,
    creation,
    elementwise,
    elementwise_more,
    indexing,
    nn,
    padding,
    pairs,
    random,
    reduction,
    resize,
    scan,
    scatter,
    shape,
    sort,
    window,
)
from .registry import BODIES, LOWERINGS, is_lowered

__all__ = [
    "BODIES",
    "LOWERINGS",
    "build",
    "contraction",
    "convolution",
    "creation",
    "elementwise",
    "elementwise_more",
    "indexing",
    "is_lowered",
    "nn",
    "padding",
    "pairs",
    "random",
    "reduction",
    "resize",
    "scan",
    "scatter",
    "shape",
    "sort",
    "window",
]
