# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Imperative mode on the compiler's target: rows of ops in every mode, graphs put off, whole steps.

With GRADOPT_ALL_ROWS=1 every row runs in float32.
"""

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from typing import Any

import gradopt as go
import numpy as np
import pytest
from gradopt import nn, optim
from gradopt.errors import CompileError
from gradopt.op_cases import CASES
from gradopt.op_cases.rows import variants
from gradopt.runtime import lazy

from . import four_modes

pytestmark = pytest.mark.compiler

ALL = os.environ.get("GRADOPT_ALL_ROWS") == "1"
SAMPLE = ("tanh", "dot_general", "softmax", "cumsum", "layer_norm")
ROWS = {
    case.name: row
    for case in CASES
    for dtype, row in variants(case)
    if dtype in ("float32", "fixed") and (ALL or case.name in SAMPLE)
}
GROUPS = four_modes.groups(list(ROWS), 10)


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    before = go.config.eager, go.config.target
    go.config.target = "cpu"
    yield
    go.config.eager, go.config.target = before


def f32(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("mode", ("lazy", "deferred", "compiled", "hybridized"))
def test_every_mode_gives_the_same(mode: str, group: str) -> None:
    """B38: values and gradients within what the row allows the target."""
    rows = [ROWS[name] for name in GROUPS[group]]
    want = four_modes.run(rows, "eager", "cpu")
    got = four_modes.run(rows, mode, "cpu")
    errors = {
        name: four_modes.error(row, a, b)
        for name, row, a, b in zip(GROUPS[group], rows, got, want, strict=True)
    }
    assert max(errors.values()) <= 1, {name: e for name, e in errors.items() if e > 1}


def test_op_by_op() -> None:
    """Mode "op": each op compiled by itself, and found again."""
    x = normal(0, 4, 3)
    with go.eager_mode("op"):
        for k in range(3):
            a = go.array(x + k)
            np.testing.assert_allclose(go.tanh(a).numpy(), np.tanh(x + k), rtol=1e-6)
            np.testing.assert_allclose((a * a).numpy(), (x + k) ** 2, rtol=1e-6)


def test_train_step_in_all_modes() -> None:
    """B30, B38: a net with dropout, batch statistics and momentum, eager, lazily and hybridized."""

    def train(wrap: Any, mode: str) -> tuple[list[float], dict[str, np.ndarray]]:
        go.random.seed(3)
        layers = nn.Dense(8, 16), nn.BatchNorm(16), go.relu, nn.Dropout(0.3), nn.Dense(16, 4)
        net = nn.Sequential(*layers)
        opt = optim.SGD(net.parameters(), 0.05, momentum=0.9)

        def step(x: Any, y: Any) -> Any:
            with go.record():
                loss = ((net(x) - y) ** 2).mean()
            loss.backward()
            opt.step()
            return loss

        run, x, y = wrap(step), go.array(normal(1, 32, 8)), go.array(normal(2, 32, 4))
        with go.eager_mode(mode):
            losses = [float(run(x, y)) for _ in range(4)]
        return losses, {path: np.array(x) for path, x in net.arrays().items()}

    losses, arrays = train(lambda f: f, "reference")
    before = len(lazy._executables)
    for wrap, mode in ((lambda f: f, "lazy"), (go.hybridize, "reference")):
        got, found = train(wrap, mode)
        np.testing.assert_allclose(got, losses, rtol=1e-5)
        for path, x in found.items():
            np.testing.assert_allclose(x, arrays[path], rtol=1e-4, atol=1e-5, err_msg=path)
    assert len(lazy._executables) - before <= 3  # a step like the one before is found again


def test_updates_take_the_memory_over() -> None:
    """What a hybrid function writes to is overwritten in place, unless others have it."""
    w = go.device_put(normal(0, 64, 64))
    step = go.hybridize(lambda x: w.__isub__(x * w))
    x = go.device_put(normal(1, 64, 64))
    want = np.array(w)
    for kept in (None, w.detach(), np.asarray(w)):
        then = None if kept is None else np.array(kept)
        want = want - np.array(x) * want
        step(x)
        np.testing.assert_allclose(w.numpy(), want, rtol=1e-4, atol=1e-4)
        if kept is not None:
            np.testing.assert_array_equal(np.array(kept), then)
        want = np.array(w)
    (executable,) = step.traced(x).donating._bound.values()
    assert executable.in_place == {step.input_names(x).index("w")}


def test_graphs_are_found_on_disk(tmp_path: Any) -> None:
    """Another process finds the graphs of lazy ops, and of hybrid functions, compiled."""
    program = textwrap.dedent("""
        import gradopt as go, numpy as np
        go.config.eager = "lazy"
        x = go.array(np.arange(4, dtype="f"))
        print((go.exp(-x) * 2 + x).tolist(), go.hybridize(lambda x: go.tanh(x) * 3)(x).tolist())
        print(go.cache_info().compiled, go.cache_info().disk_hits)
    """)
    environment = {**os.environ, "GRADOPT_CACHE_DIR": str(tmp_path)}
    printed = [
        subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True,
            check=True,
        ).stdout.splitlines()
        for _ in range(2)
    ]  # fmt: skip
    assert printed[0][0] == printed[1][0]
    assert printed[0][1] == "2 0" and printed[1][1] == "0 2"


def test_threads() -> None:
    """Arrays put off in one thread are read in others while they are computed."""
    faults: list[BaseException] = []
    x = go.array(normal(0, 64, 64))
    with go.eager_mode("lazy"):
        made = [go.tanh(x @ x * k) for k in range(4)]

    def read(k: int) -> None:
        try:
            np.testing.assert_allclose(made[k].numpy(), np.tanh(np.array(x) @ np.array(x) * k),
                                       rtol=1e-3, atol=1e-3)  # fmt: skip
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=read, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not faults and not any(thread.is_alive() for thread in threads)


def test_a_compile_error_names_op_and_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that the compiler refuses says which op, and the line that called it; the arrays can
    be read where it does not.
    """
    monkeypatch.setenv("GRADOPT_COMPILE_TIMEOUT", "0.0001")
    x = go.array(normal(0, 3, 5, 7))
    with go.eager_mode("lazy"):
        y = go.cumsum(go.tanh(x) * 11, 1)
        for _ in range(2):
            with pytest.raises(CompileError, match="could not compile 'eager' for target 'cpu'"):
                y.numpy()
        go.config.target = "reference"
        np.testing.assert_allclose(y.numpy(), np.cumsum(np.tanh(np.array(x)) * 11, 1), rtol=1e-5)
