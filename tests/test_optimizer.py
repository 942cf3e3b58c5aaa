# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Updates of optimizers over several steps against plain NumPy, and clipping of gradients."""

from collections.abc import Callable
from typing import Any

import gradopt as go
import ml_dtypes
import numpy as np
import pytest
from gradopt.errors import OpError

from .helpers import run_reference

rng = np.random.default_rng(8)
SLOTS = {"sgd": 0, "momentum": 1, "adam": 2, "rmsprop": 1, "adagrad": 1, "lion": 1}


def numpy_step(
    name: str, w: np.ndarray, g: np.ndarray, slots: list[np.ndarray], t: int
) -> tuple[np.ndarray, list[np.ndarray]]:
    """One step with the default options of the papers, a learning rate of 0.1."""
    lr = 0.1
    if name == "sgd":
        return w - lr * g, []
    s = slots[0]
    if name == "momentum":
        s = 0.9 * s + g
        return w - lr * s, [s]
    if name == "rmsprop":
        s = 0.99 * s + 0.01 * g * g
        return w - lr * g / (np.sqrt(s) + 1e-8), [s]
    if name == "adagrad":
        s = s + g * g
        return w - lr * g / (np.sqrt(s) + 1e-10), [s]
    if name == "lion":
        return w - lr * np.sign(0.9 * s + 0.1 * g), [0.99 * s + 0.01 * g]
    m, v = 0.9 * s + 0.1 * g, 0.999 * slots[1] + 0.001 * g * g
    corrected = m / (1 - 0.9**t), v / (1 - 0.999**t)
    return w - lr * corrected[0] / (np.sqrt(corrected[1]) + 1e-8), [m, v]


def step(name: str) -> Callable[..., Any]:
    """(w, g, t, *slots) -> (new w, *new slots), in gradopt."""
    update = getattr(go.optim, f"{name}_update")

    def run(w: Any, g: Any, t: Any, *slots: Any) -> Any:
        return update(w, g, 0.1, *slots, *([t] if name == "adam" else []))

    return run


@pytest.mark.parametrize("name", list(SLOTS))
def test_four_steps(name: str) -> None:
    w, slots = rng.normal(size=5), [np.zeros(5)] * SLOTS[name]
    got = [w, *slots]
    for t in range(1, 5):
        g = rng.normal(size=5)
        g[0] = 0  # a row that is never met stays, and divides 0 by 0 nowhere
        w, slots = numpy_step(name, w, g, slots, t)
        found = run_reference(step(name), got[0], g, np.array(t, np.int64), *got[1:])
        got = found
        np.testing.assert_allclose(got[0], w, rtol=1e-12)
        for a, b in zip(got[1:], slots, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)


def test_first_adam_step_in_float32() -> None:
    """The corrections of step 1 are 10 and 1000 to the last digits: the parameter moves by lr."""
    w, zero, g = np.zeros(3, "f"), np.zeros(3, "f"), np.array([1e-3, -5, 200], "f")
    got = run_reference(step("adam"), w, g, np.array(1, np.int32), zero, zero)[0]
    np.testing.assert_allclose(got, [-0.1, 0.1, -0.1], rtol=2e-5)


def test_weight_decay_of_adam() -> None:
    """AdamW decays the parameter itself; in Adam the decay passes through the slots."""
    w, zero, t = np.full(2, 2.0), np.zeros(2), np.array(1, np.int32)

    def run(decoupled: bool) -> np.ndarray:
        return run_reference(
            lambda w, z, t: go.optim.adam_update(
                w, z, 0.1, z, z, t, weight_decay=0.5, decoupled=decoupled
            ),
            w,
            zero,
            t,
        )[0]

    np.testing.assert_allclose(run(True), 2 - 0.1 * 0.5 * 2)
    np.testing.assert_allclose(run(False), 2 - 0.1, rtol=1e-7)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["f16", "bf16"])
def test_16_bit_parameters(dtype: Any) -> None:
    """Slots in float32 keep what 16 bits would lose; the parameter is rounded once."""
    w, g, m = np.ones(2, dtype), np.full(2, 2**-10, dtype), np.full(2, 1, np.float32)
    new, slot = run_reference(lambda w, g, m: go.optim.momentum_update(w, g, 0.5, m), w, g, m)
    assert (new.dtype, slot.dtype) == (w.dtype, np.float32)
    np.testing.assert_array_equal(slot, np.float32(0.9) + np.float32(2**-10))
    np.testing.assert_array_equal(new, (1 - 0.5 * slot).astype(dtype))


def test_gradient_through_a_step() -> None:
    """d loss(w - lr g) / d lr = -g . gradient at the new point: what tunes a learning rate."""
    w, g = rng.normal(size=4), rng.normal(size=4)

    def after(lr: Any) -> Any:
        return go.optim.sgd_update(go.constant(w), go.constant(g), lr).square().sum()

    got = run_reference(go.grad(after), np.array(0.3))[0]
    np.testing.assert_allclose(got, -2 * (g * (w - 0.3 * g)).sum())


# --- clipping -------------------------------------------------------------------------------------


def clipped(tree: Any, limit: float) -> list[np.ndarray]:
    return run_reference(
        lambda *leaves: go.optim.clip_by_global_norm(dict(enumerate(leaves)), limit), *tree
    )


def test_clip_by_global_norm() -> None:
    a, b = np.array([3.0]), np.array([[0.0, 4.0]])
    got = clipped((a, b), 1.0)
    np.testing.assert_allclose(got[0], a / 5)
    np.testing.assert_allclose(got[1], b / 5)
    assert got[2] == 5
    same = clipped((a, b), 5.0)
    np.testing.assert_array_equal(same[0], a)
    np.testing.assert_array_equal(same[1], b)


def test_clip_zeros() -> None:
    got = clipped((np.zeros(3),), 1.0)
    np.testing.assert_array_equal(got[0], 0)
    assert got[1] == 0


def test_clip_16_bits() -> None:
    """The squares, which overflow float16, are summed in float32."""
    got = clipped((np.full(4, 1000, np.float16),), 2.0)
    assert (got[0].dtype, got[1].dtype) == (np.float16, np.float32)
    np.testing.assert_array_equal(got[0], 1)
    assert got[1] == 2000


W = go.TensorSpec((3,))
MISFITS = {
    "a gradient of type tensor<3xf32>": lambda w: go.optim.sgd_update(w, np.ones(3), 0.1),
    "a learning rate that is one": lambda w: go.optim.sgd_update(w, w, w),
    "slots of floats of shape": lambda w: go.optim.momentum_update(w, w, 0.1, w[:2]),
    "a step that is one integer": lambda w: go.optim.adam_update(w, w, 0.1, w, w, 1.0),
    r"beta2 in \[0, 1\)": lambda w: go.optim.adam_update(w, w, 0.1, w, w, 1, beta2=1.0),
    r"decay in \[0, 1\)": lambda w: go.optim.rmsprop_update(w, w, 0.1, w, decay=-0.1),
}


@pytest.mark.parametrize("message", list(MISFITS))
def test_misfit(message: str) -> None:
    with pytest.raises(OpError, match=message):
        go.trace(MISFITS[message], W)
