# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Mixed precision in compiled code: numbers of products and gradients, and a curve beside that of
float32.
"""

from typing import Any

import gradopt as go
import ml_dtypes
import numpy as np
import pytest
from gradopt.tools.workloads import WORKLOADS, start_of, train_step

pytestmark = pytest.mark.compiler


def rounded(x: np.ndarray, dtype: str) -> np.ndarray:
    return x.astype(getattr(ml_dtypes, dtype, dtype)).astype(np.float32)


@pytest.mark.parametrize("target", ["cpu", "jit"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_products(dtype: str, target: str) -> None:
    """A matrix product, a convolution with stride and their gradients, against the same in float32
    with operands rounded in NumPy.
    """
    rng = np.random.default_rng(0)
    shapes = (6, 33), (33, 7), (6, 7), (2, 7, 7, 3), (3, 3, 3, 4), (2, 4, 4, 4)
    a, b, c, x, w, d = (rounded(rng.standard_normal(s).astype(np.float32), dtype) for s in shapes)
    noise = np.float32(1 + 2**-12)  # too little to change what is rounded, or what is tested

    def losses(a: Any, b: Any, x: Any, w: Any) -> Any:
        y, z = go.matmul(a, b), go.conv(x, w, strides=2, padding=1)
        return (y * c).sum() + (z * d).sum(), (y, z)

    def cast(*inputs: Any) -> Any:
        with go.autocast(dtype):
            return go.value_and_grad(losses, (0, 1, 2, 3), has_aux=True)(*inputs)

    (_, (y, z)), gradients = go.compile(cast, target=target)(*(v * noise for v in (a, b, x, w)))
    (_, wanted), by_inputs = go.value_and_grad(losses, (0, 1, 2, 3), has_aux=True)(a, b, x, w)
    for got, want in zip([y, z, *gradients], [*wanted, *by_inputs], strict=True):
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_training(precision: str) -> None:
    """Adam from the same start: the losses of 8 compiled steps stay near those of float32, and the
    float16 loss scale near what it was.
    """
    start, batch, loss = WORKLOADS["mlp"](batch=32, width=32)
    curves = []
    for kind in ("float32", precision):
        step = go.compile(train_step(loss, "adam", kind), donate=0)
        state, curve = start_of(start, "adam", kind), []
        for _ in range(8):
            state, value = step(state, *batch)
            curve.append(float(value))
        curves.append(curve)
    np.testing.assert_allclose(curves[1], curves[0], rtol=2e-2)
    assert curves[1][-1] < curves[1][0]
    if precision == "float16":
        assert int(state["scale"]["skipped"]) + int(state["scale"]["good"]) == 8
