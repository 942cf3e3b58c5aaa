# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Ops on Vulkan: rows of every kind of lowering that is its own there, and functions of float32
that take float64 elsewhere, whose forms without it are compiled for the CPU, too.

With GRADOPT_VULKAN_ROWS=all in the environment all rows are run: hours on a software device.
"""

import os
import subprocess
from collections.abc import Callable
from typing import Any

import gradopt as go
import numpy as np
import pytest
import scipy.special
from gradopt.dialect.base import OPS
from gradopt.dialect.types import as_dtype, float64
from gradopt.lowering import pipeline
from gradopt.lowering.target import target
from gradopt.op_cases import CASES
from gradopt.op_cases.rows import Row, rows, run_reference, ulps
from gradopt.runtime.compiler import compile_linalg
from gradopt.runtime.device import Module
from gradopt.runtime.present import why_no_device
from gradopt.tools import check_rows

REASON = why_no_device("vulkan")
on_vulkan = pytest.mark.skipif(bool(REASON), reason=f"no Vulkan device: {REASON}")
pytestmark = pytest.mark.compiler

SAMPLE = (
    *("erf_float32", "tan_float32", "pow_float32", "lgamma_float32", "fmod_float32"),  # no float64
    *("exp_float16", "log1p_bfloat16", "logical_xor_fixed", "all_fixed", "signbit_float32"),
    *("shift_left_int64", "floor_divide_int_uint64", "add_int8", "take_float32_vjp"),
    *("dot_general_bfloat16", "dot_general_float16", "softmax_float32", "cumsum_float32"),
)
F32 = np.float32
SPECIAL = np.array([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-30, 1e-37], F32)
FORMS: dict[str, tuple[Callable[..., Any], float, float]] = {
    "exp": (np.exp, 2, 120),
    "expm1": (np.expm1, 2, 120),
    "log": (np.log, 2, 1e4),
    "log1p": (np.log1p, 4, 1e4),
    "log2": (np.log2, 1, 1e4),
    "cbrt": (np.cbrt, 1, 1e4),
    "tanh": (np.tanh, 4, 10),
    "sin": (np.sin, 1, 1e7),
    "cos": (np.cos, 1, 1e7),
    "atan": (np.arctan, 1, 100),
    "erf": (scipy.special.erf, 3, 5),
    "erfc": (scipy.special.erfc, 5, 5),
    "erf_inv": (scipy.special.erfinv, 6, 1),
    "lgamma": (scipy.special.gammaln, 2, 30),
}
"""The function in float64, how many units its form may be off, and the numbers to try it on."""


def chosen() -> list[Row]:
    every = [row for case in CASES for row in rows(case)]
    if os.environ.get("GRADOPT_VULKAN_ROWS") == "all":
        return every
    return [row for row in every if row.name in SAMPLE]


@on_vulkan
def test_rows_agree() -> None:
    """C133: what Vulkan computes is what the reference does, or is refused by name."""
    picked = chosen()
    found = check_rows.outcomes(picked, check_rows.Plan("vulkan"))
    bad = [
        (row.name, o.error, o.why)
        for row, o in zip(picked, found, strict=True)
        if not o.refused and not o.error <= row.ulp
    ]
    assert not bad
    assert len(picked) >= len(SAMPLE)


def compiled_on(where: str, text: str) -> Module:
    at = target(where)
    return Module(compile_linalg(f"module {{\n{text}\n}}", at, where), at.driver)


def without_float64(fn: Callable[..., Any], *arrays: np.ndarray, name: str = "f") -> str:
    stages = pipeline.stages(target("vulkan")).values()
    return check_rows.linalg_function(fn, name, *arrays, passes=",".join(filter(None, stages)))


def test_forms_without_float64() -> None:
    """C133: functions that take float64 on the CPU are as accurate without it, at all magnitudes,
    infinities and NaN; checked on the CPU, so that no Vulkan is needed.
    """
    rng = np.random.default_rng(0)
    numbers, texts = {}, []
    for name, (_, _, size) in FORMS.items():
        near, wide = rng.uniform(-size, size, 2000), np.exp2(rng.uniform(-100, 100, 500))
        x = np.concatenate([near, rng.uniform(-2, 2, 1000), wide, SPECIAL]).astype(F32)
        positive = name in ("log", "log2", "lgamma")
        numbers[name] = np.abs(x) if positive else x
        op = OPS[name]
        texts.append(without_float64(op.build, numbers[name], name=name))
    text = "\n".join(texts)
    assert "f64" not in text
    module = compiled_on("cpu", text)
    for name, (exact, allowed, _) in FORMS.items():
        x = numbers[name]
        (got,) = module.run(name, [x], [x.dtype])
        with np.errstate(all="ignore"):
            want = exact(x.astype(float64)).astype(F32)
        normal = ~(np.abs(want) < 2.0**-125)  # smaller ones may become 0
        unit = np.spacing(np.abs(np.where(np.isfinite(want), want, 1)))
        same = (got == want) | (np.isnan(got) & np.isnan(want))
        with np.errstate(all="ignore"):
            gap = np.where(same | ~normal, 0, np.abs(got - want) / unit)
        assert np.max(np.where(np.isnan(gap), np.inf, gap)) <= allowed, name


def test_remainder_is_exact() -> None:
    """C133: quotients of any size leave the exact remainder."""
    rng = np.random.default_rng(1)
    x, y = (np.exp2(rng.uniform(-90, 100, 3000)).astype(F32) for _ in range(2))
    module = compiled_on("cpu", without_float64(OPS["fmod"].build, x, y))
    np.testing.assert_array_equal(module.run("f", [x, y], [x.dtype])[0], np.fmod(x, y))


@on_vulkan
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_products_that_are_vectorized(dtype: str) -> None:
    """C133: a product of a size that IREE vectorizes, in 16-bit floats."""
    rng = np.random.default_rng(2)
    x, y = (rng.uniform(-1, 1, s).astype(as_dtype(dtype)) for s in ((64, 128), (128, 32)))
    (want,) = run_reference(lambda a, b: a @ b, x, y)
    module = compiled_on("vulkan", without_float64(lambda a, b: a @ b, x, y))
    assert ulps(module.run("f", [x, y], [x.dtype])[0], want, True) <= 8


@on_vulkan
def test_scatters_of_many_rows() -> None:
    """C133: repeated positions, with more numbers than one thread may take steps on a software
    device; columns that fill workgroups, or not, or are one.
    """
    rng = np.random.default_rng(3)

    def both(x: Any, i: Any, u: Any) -> Any:
        return go.scatter_add(x, i, u), go.scatter_set(x, i, u)

    for shape, count in (((64, 129), 600), ((7, 1), 3000)):
        x, u = (rng.uniform(-1, 1, s).astype(F32) for s in (shape, (count, shape[1])))
        i = rng.integers(0, shape[0], count).astype(np.int32)
        added, last = go.compile(both, target="vulkan")(x, i, u)
        want, kept = x.astype(float64), x.copy()
        np.add.at(want, i, u)
        for place, row in zip(i, u, strict=True):
            kept[place] = row
        np.testing.assert_allclose(added, want, rtol=0, atol=1e-4)
        np.testing.assert_array_equal(last, kept)


@on_vulkan
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_widened_elements_are_whole_before_they_are_reduced(dtype: str) -> None:
    """C133: sums over other axes than the last, of elements that are widened and read twice."""

    def centred(x: Any) -> Any:
        wide = x.astype("float32")
        return wide - wide.mean(0, keepdims=True)

    x = np.random.default_rng(4).standard_normal((300, 4)).astype(as_dtype(dtype))
    wide = x.astype(F32)
    found = go.compile(centred, target="vulkan")(x)
    np.testing.assert_allclose(found, wide - wide.mean(0, keepdims=True), rtol=0, atol=1e-5)


def test_spirv_is_what_the_profile_says(tmp_path: Any) -> None:
    """C133: 8-bit numbers and 64-bit integers are the device's own, not emulated."""
    x = np.zeros((3, 5), np.int8)
    y = np.zeros((3, 5), np.int64)
    where = target("vulkan")
    text = without_float64(lambda a, b: (a + a, b << b), x, y)
    source = tmp_path / "x.mlir"
    source.write_text(text)
    flags = [*where.flags, *where.ladder[0].flags, "--compile-to=executable-targets"]
    done = subprocess.run(
        ["iree-compile", str(source), *flags, "-o", "-"], capture_output=True, text=True
    )
    assert "rtarray<i8, stride=1>" in done.stdout and "rtarray<i64, stride=8>" in done.stdout
    assert "AtomicAnd" not in done.stdout
