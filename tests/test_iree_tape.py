# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The tape and IREE: recorded calls of compiled functions, memory that is written in place, and the
gradient penalty example.
"""

import importlib.util
import pathlib
from typing import Any

import gradopt as go
import numpy as np
import pytest
from gradopt.errors import GradientError

pytestmark = pytest.mark.compiler

rng = np.random.default_rng(3)


def f32(*shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def variable(x: Any) -> Any:
    found = go.device_put(x)
    found.attach_grad()
    return found


def net(w: Any, x: Any) -> Any:
    return go.tanh(x @ w)


compiled = go.compile(net)


def test_a_penalty_through_a_compiled_function() -> None:
    """B19, B38, C010: its backward is compiled, and the backward of that."""
    w, x = f32(4, 3), f32(5, 4)
    found = []
    for fn in (net, compiled):
        v, u = variable(w), variable(x)
        with go.record():
            y = fn(v * 2.0, go.sin(u))
            (slope,) = go.autograd.grad(y, [u], create_graph=True)
            loss = (slope * slope).sum() + y.mean()
        loss.backward()
        found.append([loss, v.grad, u.grad])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, 2e-5, 2e-5)


def test_a_compiled_step_may_write_where_a_graph_has_read() -> None:
    """B33: a donation goes elsewhere while the graph needs the elements; `out` is an error."""
    update = go.compile(lambda w, g: w - g, donate=0)
    zero = go.compile(lambda w: w * 0.0)
    given = f32(4, 3)

    def cube(w: Any) -> Any:
        return w * w * w

    for fn in (cube, go.compile(cube)):
        w = variable(given)
        with go.record():
            y = fn(w)
        with pytest.raises(GradientError, match="a recorded graph, or a detached array"):
            zero(go.zeros((4, 3)), out=w)
        new = update(w, np.full((4, 3), np.float32(1)))
        np.testing.assert_array_equal(new, given - 1)
        gradient = w.grad
        y.backward()
        np.testing.assert_allclose(gradient, 3 * given**2, 1e-5, 1e-6)


def test_gradient_penalty_example() -> None:
    """Two steps of the example, line by line and compiled: the same losses."""
    path = pathlib.Path(__file__).parent.parent / "examples" / "gradient_penalty.py"
    spec = importlib.util.spec_from_file_location("gradient_penalty", path)
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    x = example.images()
    found = [
        example.train(make(*example.initial()), x, 3)[0]
        for make in (example.Eager, example.Compiled)
    ]
    assert found[0][-1, 0] < found[0][0, 0]
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-5)
