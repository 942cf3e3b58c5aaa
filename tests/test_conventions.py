# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Derivatives at kinks, ties and singular points: the table of docs/gradients.md, a row a spelling;
on the reference, after gradopt-simplify and gradopt-decompose, in 16 bits, and compiled by IREE.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import gradopt as go
import numpy as np
import pytest

from .helpers import compile_many, linalg_function, run_reference
from .test_decompose import run_decomposed

INF, NAN = np.inf, np.nan


@dataclasses.dataclass
class Spelling:
    """A function, a point of its inputs, and its gradients there."""

    rule: str
    name: str
    fn: Callable[..., Any]
    point: tuple[float, ...]
    gradients: tuple[float, ...]

    def __str__(self) -> str:
        at = ",".join(f"{p:g}" for p in self.point)
        return f"{self.rule}:{self.name}({at})"

    def arrays(self, dtype: str) -> list[np.ndarray]:
        return [np.array(p).astype(dtype) for p in self.point]

    def gradient(self) -> Callable[..., Any]:
        wrt = tuple(range(len(self.point)))
        return go.grad(lambda *xs: go.sum(self.fn(*xs)), wrt, allow_unused=True)


def rule(
    name: str,
    point: float | tuple[float, ...],
    gradients: float | tuple[float, ...],
    **fns: Callable[..., Any],
) -> list[Spelling]:
    at, want = (v if isinstance(v, tuple) else (v,) for v in (point, gradients))
    return [Spelling(name, key, fn, at, want) for key, fn in fns.items()]


def split(*xs: Any) -> Any:
    return go.stack(xs)


SPELLINGS = [
    # C077: what is written as a rectifier has slope 0 at 0
    *rule(
        "relu",
        0.0,
        0.0,
        relu=go.relu,
        method=lambda x: x.relu(),
        where=lambda x: go.where(x > 0, x, 0),
        where_ge=lambda x: go.where(x <= 0, 0, x),
        mask=lambda x: x * (x > 0),
        relu6=go.relu6,
        threshold=go.threshold,
        leaky=lambda x: go.leaky_relu(x, negative_slope=0.0),
        prelu=lambda x: go.prelu(x, 0.0),
        hardtanh=lambda x: go.hardtanh(x, low=0.0, high=9.0),
    ),
    *rule("relu", 6.0, 0.0, relu6=go.relu6, hardtanh=lambda x: go.hardtanh(x, low=0.0, high=6.0)),
    *rule(
        "leaky",
        0.0,
        0.25,
        leaky_relu=lambda x: go.leaky_relu(x, negative_slope=0.25),
        prelu=lambda x: go.prelu(x, 0.25),
        where=lambda x: go.where(x > 0, x, 0.25 * x),
    ),
    # two numbers that tie share evenly, however the larger is taken
    *rule(
        "max_tie",
        0.0,
        0.5,
        maximum=lambda x: go.maximum(x, 0),
        swapped=lambda x: go.maximum(0, x),
        minimum=lambda x: -go.minimum(-x, 0),
        reduced=lambda x: go.max(split(x, go.zeros_like(x))),
        mean_and_half_distance=lambda x: (x + abs(x)) / 2,
        amin=lambda x: -go.min(split(-x, go.zeros_like(x))),
    ),
    *rule(
        "max_tie",
        (2.0, 2.0),
        (0.5, 0.5),
        maximum=go.maximum,
        minimum=go.minimum,
        reduced=lambda x, y: go.max(split(x, y)),
        through_minimum=lambda x, y: -go.minimum(-x, -y),
    ),
    *rule(
        "max_ties",
        (1.0, 1.0, 1.0),
        (1 / 3, 1 / 3, 1 / 3),
        max=lambda *xs: go.max(split(*xs)),
        min=lambda *xs: go.min(split(*xs)),
        columns=lambda *xs: go.max(split(*xs).reshape(3, 1), axis=0),
    ),
    # a bound reached from inside lets the gradient through
    *rule(
        "clamp",
        1.0,
        1.0,
        clip=lambda x: go.clip(x, -1, 1),
        method=lambda x: x.clip(-1, 1),
        clamp=lambda x: go.clamp(x, -1.0, 1.0),
        upper_only=lambda x: go.clip(x, max=1),
        lower_only=lambda x: go.clip(x, 1),
    ),
    *rule("clamp", 0.0, 1.0, lower_only=lambda x: go.clip(x, 0)),
    *rule("clamp", 1.5, 0.0, clip=lambda x: go.clip(x, -1, 1), method=lambda x: x.clip(max=1)),
    *rule(
        "abs",
        0.0,
        0.0,
        abs=go.abs,
        operator=abs,
        sign=lambda x: x * go.sign(x),
        root=lambda x: go.sqrt(x * x),
        norm=lambda x: go.norm(split(x)),
    ),
    *rule(
        "step", 0.3, 0.0, sign=go.sign, floor=go.floor, round=go.round, method=lambda x: x.round()
    ),
    # roots at 0
    *rule(
        "root",
        0.0,
        0.0,
        sqrt=go.sqrt,
        method=lambda x: x.sqrt(),
        power=lambda x: x**0.5,
        pow=lambda x: go.pow(x, 0.5),
        cbrt=go.cbrt,
    ),
    *rule("root", 4.0, 0.25, sqrt=go.sqrt, power=lambda x: x**0.5, pow=lambda x: go.pow(x, 0.5)),
    *rule(
        "norm",
        (0.0, 0.0),
        (0.0, 0.0),
        norm=lambda *x: go.norm(split(*x)),
        hypot=go.hypot,
        squared=lambda *x: go.norm(split(*x)) ** 2,
        root=lambda x, y: go.sqrt(x * x + y * y),
    ),
    *rule(
        "std",
        (1.0, 1.0),
        (0.0, 0.0),
        std=lambda *x: go.std(split(*x)),
        root=lambda *x: go.sqrt(go.var(split(*x))),
        var=lambda *x: go.var(split(*x)),
    ),
    *rule("std", 0.5, 0.0, std=lambda x: go.std(split(x))),
    # powers
    *rule(
        "pow_0",
        0.0,
        0.0,
        pow=lambda x: go.pow(x, 0.0),
        operator=lambda x: x**0,
        weak=lambda x: x**0.0,
        tensor=lambda x: go.pow(x, go.zeros_like(x)),
    ),
    *rule("0_pow", (0.0, 1.0), (1.0, 0.0), pow=go.pow),
    *rule("0_pow", (0.0, 0.0), (0.0, 0.0), pow=go.pow),
    *rule("pow", (2.0, 1.0), (1.0, 2 * np.log(2)), pow=go.pow, operator=lambda x, y: x**y),
    # formulas that are infinite, and what does not see them
    *rule("log", 0.0, INF, log=go.log, log2=go.log2, method=lambda x: x.log()),
    *rule(
        "div",
        0.0,
        -INF,
        reciprocal=go.reciprocal,
        operator=lambda x: 1 / x,
        div=lambda x: go.div(1, x),
    ),
    *rule(
        "untaken",
        0.0,
        0.0,
        where_log=lambda x: go.where(x > 0, go.log(x), 0),
        where_div=lambda x: go.where(x == 0, 0, 1 / x),
        select=lambda x: go.select(x > 0, go.sqrt(x - 1), x * 0),
        masked=lambda x: go.where(x > 0, 1 / x, 0) * 2,
        no_nan=lambda x: go.div_no_nan(1.0, x),
    ),
    *rule("xlogy", (0.0, 2.0), (np.log(2), 0.0), xlogy=go.xlogy),
    *rule("xlogy", (0.0, 0.0), (-INF, 0.0), xlogy=go.xlogy),
    # products with zeros
    *rule(
        "prod", (4.0, 0.0), (0.0, 4.0), prod=lambda *x: go.prod(split(*x)), mul=lambda x, y: x * y
    ),
    *rule("prod", (4.0, 0.0, 0.0), (0.0, 0.0, 0.0), prod=lambda *x: go.prod(split(*x))),
    *rule("prod", (0.0, 2.0, 3.0), (6.0, 0.0, 0.0), prod=lambda *x: go.prod(split(*x))),
    # exponentials of nothing
    *rule(
        "lse",
        (-INF, -INF),
        (0.0, 0.0),
        logsumexp=lambda *x: go.logsumexp(split(*x)),
        logaddexp=go.logaddexp,
        softmax=lambda *x: go.softmax(split(*x))[0],
    ),
    *rule(
        "lse",
        (-INF, -INF, 2.0),
        (0.0, 0.0, 1.0),
        left=lambda a, b, c: go.logaddexp(go.logaddexp(a, b), c),
        right=lambda a, b, c: go.logaddexp(a, go.logaddexp(b, c)),
        once=lambda *x: go.logsumexp(split(*x)),
    ),
    *rule(
        "softplus",
        0.0,
        0.5,
        softplus=go.softplus,
        logaddexp=lambda x: go.logaddexp(x, 0),
        parts=lambda x: go.maximum(x, 0) + go.log1p(go.exp(-abs(x))),
        log_sigmoid=lambda x: -go.log_sigmoid(-x),
    ),
    *rule("softplus", 100.0, 1.0, softplus=go.softplus, scaled=lambda x: go.softplus(x * 5) / 5),
    # halves and wholes of hypot
    *rule("hypot", (1.0, 1.0), (0.5**0.5, 0.5**0.5), hypot=go.hypot),
]


def check(spelling: Spelling, got: Any, rtol: float) -> None:
    for g, want in zip(got, spelling.gradients, strict=True):
        np.testing.assert_allclose(np.float64(g), want, rtol=rtol, atol=0)


@pytest.mark.parametrize("spelling", SPELLINGS, ids=str)
def test_reference(spelling: Spelling) -> None:
    """C061, C062, C064, C065, C067, C068, C070, C074, C076, C077, C079: as written, simplified, and
    in parts.
    """
    xs = spelling.arrays("float64")
    check(spelling, run_reference(spelling.gradient(), *xs), 1e-12)
    check(spelling, run_reference(spelling.gradient(), *xs, simplify=True), 1e-12)
    check(spelling, run_decomposed(spelling.gradient(), *xs), 1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("spelling", SPELLINGS, ids=str)
def test_narrow(spelling: Spelling, dtype: str) -> None:
    rtol = {"float32": 1e-6, "float16": 2e-3, "bfloat16": 1e-2}[dtype]
    check(spelling, run_reference(spelling.gradient(), *spelling.arrays(dtype)), rtol)


@pytest.mark.compiler
def test_iree() -> None:
    """Every target follows the same table."""
    texts, names = {}, [f"s{i}" for i in range(len(SPELLINGS))]
    for name, s in zip(names, SPELLINGS, strict=True):
        texts[name] = linalg_function(s.gradient(), name, *s.arrays("float32"))
    compiled = compile_many(texts)
    for name, s in zip(names, SPELLINGS, strict=True):
        xs = s.arrays("float32")
        check(s, compiled[name]([go.TensorSpec(())] * len(xs), *xs), 1e-6)


@pytest.mark.parametrize("tiny", [1e-40, -1e-40])
def test_subnormal_points(tiny: float) -> None:
    """C077: at 1e-40 the slope is that of its side, in every spelling that is 0 or 1 at 0."""
    for s in SPELLINGS:
        if (s.rule, s.point) == ("relu", (0.0,)):
            (g,) = run_reference(s.gradient(), np.float32(tiny))
            assert g == (tiny > 0), s


def test_second_derivative_of_hypot() -> None:
    """C080: d2/dx2 hypot(x, y) = y^2 / h^3; along (x, 3 - 2x) at 1 the slope is -0.7071."""
    second = go.grad(lambda x, y: go.grad(go.hypot)(x, y))
    (g,) = run_reference(second, np.float64(1), np.float64(1))
    np.testing.assert_allclose(g, 0.35355339, rtol=1e-7)
    (g,) = run_reference(go.grad(lambda x: go.hypot(x, 3 - 2 * x)), np.float64(1))
    np.testing.assert_allclose(g, -0.70710678, rtol=1e-7)


def test_integers_have_no_gradient() -> None:
    """B56: asking is an error with name and dtype."""
    from gradopt.errors import GradientError

    for dtype in ("int64", "int8", "uint32", "bool"):
        with pytest.raises(GradientError, match=f"argument 'n' with dtype {dtype}"):
            run_reference(go.grad(lambda n: n.sum()), np.ones(2, dtype))
