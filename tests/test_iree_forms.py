# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Each form compiled once by IREE, against the reference; sums in blocks with what stands around
them, and that IREE keeps the loops that they say how to compile.
"""

import dataclasses
import re
import subprocess
from collections.abc import Callable
from typing import Any

import gradopt as go
import numpy as np
import pytest
from gradopt.dialect.types import TensorSpec
from gradopt.lowering import pipeline

from .form_cases import DIRECT_CASES, FORM_CASES, FormCase
from .helpers import CPU, compile_many, linalg_function, run_reference

pytestmark = pytest.mark.compiler
LIKE_SUM = ("mean", "var", "max", "norm", "logsumexp")  # which have its forms
FIRST = {
    (case.op, form): (case, form)
    for case in reversed(FORM_CASES)
    for form in case.forms
    if case.op not in LIKE_SUM
}
DIRECT = {(str(case), "direct"): (case, "direct") for case in DIRECT_CASES}
ROWS = {f"{case}, {form}": (case, form) for case, form in (FIRST | DIRECT).values()}
NAMES = {row: f"f{i}" for i, row in enumerate(ROWS)}


def text_of(case: FormCase, form: str, name: str) -> str:
    stages = pipeline.stages(dataclasses.replace(CPU, forms=f"{case.op}={form}"))
    passes = ",".join(filter(None, stages.values()))
    return linalg_function(case.fn, name, *case.arrays, passes=passes)


@pytest.fixture(scope="module")
def functions() -> dict[str, Callable[..., Any]]:
    return compile_many({NAMES[row]: text_of(*ROWS[row], NAMES[row]) for row in ROWS})


@pytest.mark.parametrize("row", ROWS)
def test_form(row: str, functions: dict[str, Callable[..., Any]]) -> None:
    case = ROWS[row][0]
    want = run_reference(case.fn, *case.arrays)
    got = functions[NAMES[row]]([TensorSpec(w.shape, w.dtype) for w in want], *case.arrays)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-4)


# --- sums in blocks, and what stands around them --------------------------------------------------


def heads(x: Any, w: Any) -> Any:
    y = (x @ w).reshape(2, 4, 3, 2, 16)
    return y.transpose(2, 0, 3, 1, 4)


def hidden(x: Any, w: Any, b: Any) -> Any:
    return go.relu(go.relu(x @ w + b) @ w)


def steps(x: Any, w: Any, v: Any) -> Any:
    for _ in range(4):
        x = go.tanh(x @ w)[:, :16] + x
    return x @ v


def gates(x: Any, w: Any, b: Any) -> Any:
    """Sums in panels, added to in another shape, and split."""
    for i in range(4):
        z = (x @ w + b[i]).reshape(8, 4, 256)
        x = go.tanh(z[:, 0, :16]) * z[:, 3, :16] + x
    return x, z


def block(x: Any, w: Any, small: Any) -> Any:
    y = go.relu(go.conv(x, w, padding=1))
    return go.relu(go.conv(y, w, padding=1, strides=2) + go.conv(x, small, strides=2)).sum()


def attention(q: Any, k: Any, v: Any) -> Any:
    scores = go.einsum("bthd,bshd->bhts", q, k) / 4
    return go.einsum("bhts,bshd->bthd", go.softmax(scores), v)


f32 = np.random.default_rng(5).standard_normal
FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "heads": (heads, ((8, 16), (16, 96))),
    "hidden": (hidden, ((8, 16), (16, 16), (16,))),
    "sums": (lambda x, w: (x @ w).sum(axis=0), ((8, 16), (16, 32))),
    "pieces": (lambda x, w: (x @ w)[:, 16:] * 2, ((8, 16), (16, 32))),
    "of pieces": (lambda x, w: x[1:3] @ w[:, 16:], ((4, 8, 16), (16, 32))),
    "zeros": (lambda w, y: go.zeros((8, 16)) @ w + y, ((16, 32), (8, 32))),
    "of columns": (lambda x, w: x[:, 4:12] @ w[2:10], ((8, 16), (16, 32))),
    "steps": (steps, ((8, 16), (16, 1024), (16, 1024))),
    "gates": (gates, ((8, 16), (16, 1024), (4, 8, 1024))),
    "attention": (attention, ((2, 16, 3, 16),) * 3),
    "its gradient": (go.grad(lambda *x: attention(*x).sum(), (0, 1, 2)), ((2, 16, 3, 16),) * 3),
    "gradient": (
        go.grad(lambda *x: hidden(*x).sum(), argnums=(0, 1, 2)),
        ((16, 16), (16, 16), (16,)),
    ),
    "block": (
        go.grad(block, argnums=(0, 1, 2)),
        ((2, 8, 8, 16), (3, 3, 16, 16), (1, 1, 16, 16)),
    ),
}
ARRAYS = {
    name: [f32(s).astype(np.float32) / 4 for s in shapes] for name, (_, shapes) in FUNCTIONS.items()
}
WIDE = dataclasses.replace(CPU, wide_vectors=True)


def wide_text(name: str, at: int) -> str:
    passes = ",".join(filter(None, pipeline.stages(WIDE).values()))
    return linalg_function(FUNCTIONS[name][0], f"g{at}", *ARRAYS[name], passes=passes)


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return {name: wide_text(name, at) for at, name in enumerate(FUNCTIONS)}


@pytest.fixture(scope="module")
def wide_functions(texts: dict[str, str]) -> dict[str, Callable[..., Any]]:
    made = compile_many({f"g{at}": texts[name] for at, name in enumerate(texts)})
    return {name: made[f"g{at}"] for at, name in enumerate(texts)}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_sums_in_blocks_with_their_neighbours(
    name: str, wide_functions: dict[str, Callable[..., Any]]
) -> None:
    want = run_reference(FUNCTIONS[name][0], *ARRAYS[name])
    kinds = [TensorSpec(w.shape, w.dtype) for w in want]
    for a, b in zip(wide_functions[name](kinds, *ARRAYS[name]), want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def executables(text: str) -> str:
    """What IREE's code generator gets for a module."""
    flags = [*WIDE.flags, *WIDE.ladder[0].flags, "--compile-to=executable-sources"]
    command = ["iree-compile", "-", *flags]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def loops_and_tiles(text: str) -> list[tuple[int, int]]:
    """Of the ops that say how they are compiled, as IREE's code generator gets them: how many loops
    they have, and for how many they speak.
    """
    text = executables(text)
    names = dict(re.findall(r"^(#\w+) = (.*)$", text, re.M))
    found = []
    for line in text.splitlines():
        if "linalg.generic" in line and "compilation_info" in line:
            loops = re.findall(r"iterator_types = \[(.*?)\]", line)[0]
            about = line.partition("compilation_info")[2]
            for _ in range(3):
                about = re.sub(r"#\w+", lambda m: names.get(m[0], m[0]), about)
            tiles = re.findall(r"distribution = \[(.*?)\]", about)[0]
            found.append((len(loops.split(",")), len(tiles.split(","))))
    return found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_their_loops_are_kept(name: str, texts: dict[str, str]) -> None:
    found = loops_and_tiles(texts[name])
    assert found
    assert all(loops == tiles for loops, tiles in found)


def test_tensors_of_one_number_are_read(texts: dict[str, str]) -> None:
    """The state that a recurrence starts from, where IREE would have the number in the loops."""
    lines = executables(texts["zeros"]).splitlines()
    (line,) = [one for one in lines if "linalg.generic" in one and "compilation_info" in one]
    assert re.search(r"ins\(%\w+, %\w+ :", line)


def test_their_loops_are_kept_in_all_cases() -> None:
    for case in DIRECT_CASES:
        found = loops_and_tiles(text_of(case, "direct", "f"))
        assert found, case
        assert all(loops == tiles for loops, tiles in found), case


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, y, w: (x[:1] @ w, y),
        lambda x, y, w: (x @ w, y @ w[:, :1]),
        lambda x, y, w: go.grad(lambda x, w: (go.relu(x[:1] @ w) * y[0, 0]).sum(), (0, 1))(x, w),
    ],
)
def test_what_is_not_to_be_packed_is_not(fn: Callable[..., Any]) -> None:
    """IREE packs a matrix that one row is multiplied by, unless it finds its mark somewhere."""
    passes = ",".join(filter(None, pipeline.stages(WIDE).values()))
    arrays = [f32(s).astype(np.float32) for s in ((32, 64), (32, 64), (64, 64))]
    text = linalg_function(fn, "f", *arrays, passes=passes)
    assert "encode" not in executables(text)
