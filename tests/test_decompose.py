# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-decompose: composite ops and what they are made of give the same numbers."""

from collections.abc import Callable
from typing import Any

import gradopt as go
import numpy as np
import pytest
from gradopt.dialect import reference
from gradopt.dialect.base import OPS, is_composite
from gradopt.errors import PipelineError
from gradopt.lowering import pipeline
from gradopt.op_cases import CASES, Case

from .helpers import lowered, run_reference, spec
from .test_ops import ids, with_gradient

COMPOSITE = [c for c in CASES if is_composite(OPS[c.op])]


def run_decomposed(fn: Callable[..., Any], *arrays: np.ndarray) -> list[np.ndarray]:
    """The results of a function whose composite ops are written out before it is
    differentiated.
    """
    graph = go.trace(fn, *map(spec, arrays))
    lowered(graph, "gradopt-decompose")
    for op in graph.module.body.operations:
        assert not any(is_composite(type(o)) for o in op.entry_block.operations)
    return list(reference.run(lowered(graph).module, graph.name, *arrays))


@pytest.mark.parametrize("case", COMPOSITE, ids=ids)
def test_parts_give_the_same(case: Case) -> None:
    """Values, and gradients at ones: the op's own rule against those of its parts."""
    for fn in [case.build, *([with_gradient(case)] if case.differentiable() else [])]:
        want = run_reference(fn, *case.inputs)
        for a, b in zip(run_decomposed(fn, *case.inputs), want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)


def test_chosen_ops_only() -> None:
    graph = go.trace(lambda x: go.softmax(go.log_softmax(x)), go.TensorSpec((2, 3)))
    pipeline.run(graph.module, "gradopt-decompose{ops=softmax}")
    text = graph.mlir()
    assert "gradopt.softmax" not in text
    assert "gradopt.log_softmax" in text
    pipeline.run(graph.module, "gradopt-decompose{keep-lowered=true}")
    assert "gradopt.log_softmax" in graph.mlir()


def test_unknown_op() -> None:
    graph = go.trace(go.tanh, go.TensorSpec((2, 3)))
    with pytest.raises(
        PipelineError, match=r"expected composite ops out of: .*softmax.*got 'tanh'"
    ):
        pipeline.run(graph.module, "gradopt-decompose{ops=tanh}")
