# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""One row an op: inputs, attributes and what JAX computes for them; a file a family. Every check of
tests/test_ops.py, of tests/test_iree_ops.py and of gradopt-check runs over these rows.

Inputs are float64, integers or booleans; other element types are made from them.
"""

from . import (
    arrange,
    attention,
    contraction,
    convolution,
    creation,
    elementwise,
    elementwise_more,
    indexing,
    loss,
    nn,
    norm,
    optimizer,
    padding,
    random,
    reduction,
    resize,
    scan,
    scatter,
    shape,
    sort,
    window,
)
from .case import Case

FAMILIES = {
    module.__name__.rsplit(".", 1)[-1]: module.CASES
    for module in (
        elementwise,
        elementwise_more,
        reduction,
        contraction,
        convolution,
        shape,
        indexing,
        scan,
        sort,
        scatter,
        nn,
        norm,
        loss,
        attention,
        random,
        optimizer,
        creation,
        window,
        arrange,
        resize,
        padding,
    )
}
"""Rows by family."""

CASES = [case for cases in FAMILIES.values() for case in cases]

WITHOUT_CASE = {
    "vjp": "test_differentiate.py",
    "jvp": "test_differentiate.py",
    "scan": "test_loops.py",
}
"""Ops that are about functions rather than arrays, and where they are tested."""

__all__ = ["CASES", "FAMILIES", "WITHOUT_CASE", "Case"]
