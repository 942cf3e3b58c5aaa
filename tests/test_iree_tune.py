# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The tuner with IREE: a small function tuned, its note used by another process's function; the
flags that it tries are flags of IREE's.
"""

import pathlib
from typing import Any

import gradopt as go
import numpy as np
import pytest
from gradopt.lowering.target import target
from gradopt.runtime import compiler, tune

pytestmark = pytest.mark.compiler


def total(x: Any) -> Any:
    return x.sum(axis=0)


def test_tuned_functions(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """Whatever is taken, results stay the same, and later functions do without timing."""
    monkeypatch.setenv("GRADOPT_CACHE_DIR", str(tmp_path))
    timed = []

    def briefly(timers: Any, _: float) -> Any:
        """A race without a finish, but for forms of columns."""
        found = race(timers, 0.0)
        timed.append(found)
        return {n: 1.0 if n not in ("split-64", 1) else 0.5 for n in found}

    race = tune.race
    monkeypatch.setattr(tune, "race", briefly)
    x = np.random.default_rng(0).normal(size=(4096, 4)).astype("f")
    want = x.sum(axis=0)
    np.testing.assert_allclose(go.compile(total, tune=True)(x), want, rtol=1e-4, atol=1e-3)
    assert all(0 < seconds < 60 for times in timed for seconds in times.values())
    assert set(timed[0]) == {"whole", "split-16", "split-64", "split-256"}
    functions = [about for about in tune.noted().values() if "function" in about]
    assert "split-64" in functions[0]["forms"].values()
    count = len(timed)
    for how in (True, "stored"):
        again = go.compile(total, tune=how)
        np.testing.assert_allclose(again(x), want, rtol=1e-4, atol=1e-3)
    assert len(timed) == count


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("rung", target("cpu").variants, ids=lambda rung: rung.name)
def test_flags(rung: Any) -> None:
    text = """
    func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
      %y = math.exp %x : tensor<4xf32>
      return %y : tensor<4xf32>
    }"""
    tuned = tune.Tuning({}, rung.name).of(target("cpu"))
    assert tuned.ladder[0] is rung
    assert compiler.compile_linalg(text, tuned, "f")
