# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Random training steps whose arguments are donated, with and without static allocation: every
updated value after each of several calls, against the reference in float64.

`python -m pytest tests/test_iree_in_place.py -s` with GRADOPT_RANDOM_STEPS=300 in the environment
is a long campaign; --hypothesis-seed starts another.
"""

import collections
import os
from collections.abc import Callable
from typing import Any

import gradopt as go
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from .helpers import run_reference

pytestmark = pytest.mark.compiler

EXAMPLES = int(os.environ.get("GRADOPT_RANDOM_STEPS", "2"))
IS_CAMPAIGN = "GRADOPT_RANDOM_STEPS" in os.environ
SIZE, ROWS, TABLE, CALLS = 64, 32, 96, 4
COUNTS: collections.Counter[str] = collections.Counter()

Layer = Callable[[Any, dict[str, Any], Any], Any]

LAYERS: dict[str, Layer] = {
    "matmul": lambda h, p, i: h @ p["w"],
    "matmul of the transpose": lambda h, p, i: h @ p["w"].T,
    "second matrix": lambda h, p, i: go.tanh(h @ p["v"]),
    "both matrices": lambda h, p, i: h @ (p["w"] @ p["v"]),
    "tied": lambda h, p, i: go.tanh(h @ p["w"]) @ p["w"].T,
    "bias": lambda h, p, i: h + p["b"],
    "scale": lambda h, p, i: h * p["b"],
    "tanh": lambda h, p, i: go.tanh(h),
    "rows of the table": lambda h, p, i: h + go.embedding(p["t"], i),
    "table as a matrix": lambda h, p, i: go.tanh(h @ p["t"].T) @ p["t"],
    "sum of a matrix": lambda h, p, i: h * go.tanh(p["v"].sum()),
    "row of a matrix": lambda h, p, i: h + p["w"][3],
    "broadcast column": lambda h, p, i: h + p["v"][:, 2],
    "softmax": lambda h, p, i: go.softmax(h),
}

Update = Callable[[str, dict[str, Any], dict[str, Any], Any], Any]

RATE = 0.05
UPDATES: dict[str, Update] = {
    "descent": lambda k, p, g, m: p[k] - RATE * g[k],
    "momentum": lambda k, p, g, m: p[k] - RATE * m,
    "sign": lambda k, p, g, m: p[k] - RATE * go.tanh(m * 8),
    "decay by the norm": lambda k, p, g, m: p[k] - RATE * (g[k] + p[k] / (p[k] * p[k]).sum()),
    "reads another": lambda k, p, g, m: p[k] - RATE * (g[k] + p["b"]),
    "transposed": lambda k, p, g, m: (
        p[k] - RATE * (g[k] + p[k].T) if k in ("w", "v") else p[k] - RATE * g[k]
    ),
    "kept": lambda k, p, g, m: p[k],
    "rolled": lambda k, p, g, m: go.concat([p[k][1:], p[k][:1]], 0) - RATE * g[k],
}

NAMES = ("w", "v", "b", "t")
SHAPES = {"w": (SIZE, SIZE), "v": (SIZE, SIZE), "b": (SIZE,), "t": (TABLE, SIZE)}


def make_step(layers: list[str], updates: list[str], extra: str) -> Callable[..., Any]:
    """(p, m, x, i) -> (p, m, loss, something that reads old or new parameters)."""

    def step(p: Any, m: Any, x: Any, i: Any) -> Any:
        def loss(p: dict[str, Any]) -> Any:
            h = x
            for name in layers:
                h = LAYERS[name](h, p, i)
            return (go.tanh(h) * x).mean()

        value, g = go.value_and_grad(loss, allow_unused=True)(p)
        moments = {k: 0.7 * m[k] + g[k] for k in NAMES}
        new = {k: UPDATES[u](k, p, g, moments[k]) for k, u in zip(NAMES, updates, strict=True)}
        read = {"old": p["w"] @ p["v"].T, "new": new["w"].T, "both": p["w"] - new["w"]}
        return new, moments, value, read[extra]

    return step


STEPS = st.tuples(
    st.lists(st.sampled_from(list(LAYERS)), min_size=1, max_size=5),
    st.lists(st.sampled_from(list(UPDATES)), min_size=4, max_size=4),
    st.sampled_from(["old", "new", "both"]),
)


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=not IS_CAMPAIGN,
    phases=[p for p in Phase if p != Phase.shrink or not IS_CAMPAIGN],
    suppress_health_check=list(HealthCheck),
    print_blob=True,
    database=None,
)
@given(STEPS)
@example((["matmul", "rows of the table", "second matrix"], ["descent"] * 4, "new"))
@example((["tied", "bias", "tied"], ["momentum", "transposed", "sign", "reads another"], "old"))
def test_random_steps(drawn: tuple[list[str], list[str], str]) -> None:
    """B09, C035: nothing is read after it was overwritten, and nothing is lost."""
    step = make_step(*drawn)
    rng = np.random.default_rng(5)
    start = {k: rng.uniform(-0.3, 0.3, SHAPES[k]).astype(np.float32) for k in NAMES}
    zeros = {k: np.zeros_like(v) for k, v in start.items()}
    xs = rng.uniform(-1, 1, (CALLS, ROWS, SIZE)).astype(np.float32)
    rows = rng.integers(0, TABLE, (CALLS, ROWS)).astype(np.int32)
    want = expected(step, start, zeros, xs, rows)
    for static in (False, True):
        f = go.compile(step, donate=(0, 1), static_alloc=static, disk_cache=False)
        p = {k: go.device_put(v) for k, v in start.items()}
        m = {k: go.device_put(v) for k, v in zeros.items()}
        for n in range(CALLS):
            p, m, value, read = f(p, m, xs[n], rows[n])
            got = [*p.values(), *m.values(), value, read]
            for name, a, b in zip([*NAMES, *NAMES, "loss", "read"], got, want[n], strict=True):
                a, b = np.asarray(a), np.asarray(b)
                np.testing.assert_allclose(
                    a, b, rtol=0, atol=2e-5 * max(1, np.abs(b).max()), err_msg=f"{name}, call {n}"
                )
        (e,) = f._bound.values()
        COUNTS["in place"] += len(e.in_place)
        COUNTS["donated"] += len(e.donated)
    COUNTS["steps"] += 1


def expected(step: Any, start: Any, zeros: Any, xs: Any, rows: Any) -> list[list[np.ndarray]]:
    """What each call gives, in float64."""

    def flat_step(*flat: Any) -> Any:
        p, m = (dict(zip(NAMES, flat[i : i + 4], strict=True)) for i in (0, 4))
        new, moments, value, read = step(p, m, flat[8], flat[9])
        return (*new.values(), *moments.values(), value, read)

    flat = [v.astype(float) for group in (start, zeros) for v in group.values()]
    found = []
    for x, i in zip(xs, rows, strict=True):
        out = run_reference(flat_step, *flat, x.astype(float), i)
        found.append(out)
        flat = out[:8]
    return found


@pytest.fixture(scope="module", autouse=True)
def printed() -> Any:
    yield
    print(
        f"\n{COUNTS['steps']} random steps, {COUNTS['in place']} of {COUNTS['donated']} donated "
        "arrays overwritten in place"
    )
