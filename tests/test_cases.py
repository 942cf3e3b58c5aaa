# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Inputs that broke other systems and fit no family of tests."""

from typing import Any

import gradopt as go
import numpy as np
import pytest
from gradopt.runtime.compiler import compile_linalg
from gradopt.runtime.device import Module

from .helpers import CPU, run_reference


def test_narrow_contributions_are_summed_first() -> None:
    """C005: eight uses of 0.5 each, added to a float16 buffer of 2048: 2052. Added use by use each
    would be lost.
    """
    buffer, x = np.float16([2048]), np.float16([1])

    def accumulated(buffer: Any, x: Any) -> Any:
        return buffer + go.grad(lambda x: sum((x * 0.5).sum() for _ in range(8)))(x)

    for simplify in (False, True):
        (got,) = run_reference(accumulated, buffer, x, simplify=simplify)
        assert got.tolist() == [2052]


def test_gradient_in_two_stages() -> None:
    """C007: through a value set apart with its own gradient, then on with that gradient."""

    def two_stages(x: Any) -> Any:
        h, pull = go.vjp(lambda x: x * x, x)
        by_d = go.grad(lambda d: (3 * d).sum())(go.stop_gradient(h))
        return by_d, pull(by_d)[0]

    by_d, by_x = run_reference(two_stages, np.array([1.0, 2.0]))
    assert by_d.tolist() == [3, 3]
    assert by_x.tolist() == [6, 12]


LOOP = """
module {
  func.func @loop(%x: tensor<0xf32>) -> tensor<0xf32> {
    %first = arith.constant 0 : index
    %last = arith.constant 10 : index
    %step = arith.constant 1 : index
    %y = scf.for %i = %first to %last step %step iter_args(%v = %x) -> tensor<0xf32> {
      %out = tensor.empty() : tensor<0xf32>
      %w = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>],
                           iterator_types = ["parallel"]}
        ins(%v : tensor<0xf32>) outs(%out : tensor<0xf32>) {
      ^bb0(%a: f32, %b: f32):
        %s = arith.addf %a, %a : f32
        linalg.yield %s : f32
      } -> tensor<0xf32>
      scf.yield %w : tensor<0xf32>
    }
    return %y : tensor<0xf32>
  }
}
"""


@pytest.mark.compiler
@pytest.mark.parametrize("driver", ["local-task", "local-sync"])
def test_loop_over_nothing_returns(driver: str) -> None:
    """C100: ten rounds that carry a tensor of shape (0,), on both CPU devices, and the same written
    out. A hang ends with the test run's time limit.
    """
    module = Module(compile_linalg(LOOP, CPU, "loop"), driver)
    (got,) = module.run("loop", [np.zeros(0, np.float32)], [np.dtype("float32")])
    assert np.array(got).shape == (0,)

    def unrolled(x: Any) -> Any:
        for _ in range(10):
            x = x + x
        return x

    compiled = go.compile(go.value_and_grad(lambda x: unrolled(x).sum()))
    value, gradient = compiled(np.zeros(0, np.float32))
    assert float(value) == 0
    assert np.array(gradient).shape == (0,)
