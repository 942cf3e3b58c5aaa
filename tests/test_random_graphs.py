# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Random programs: the reference, JAX and IREE agree in values and gradients.

A program is a list of steps, each an op on values made before. The reference and JAX run in float64
and must agree to rounding; IREE runs in float32 and must agree to what float32 allows.
"""

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import gradopt as go
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from .helpers import run_reference

EXAMPLES = int(os.environ.get("GRADOPT_RANDOM_GRAPHS", "40"))
SETTINGS = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)

INPUTS = [(3, 4), (4,), (2, 3, 4), ()]
"""Shapes of the four floating-point arguments of every program."""


@dataclasses.dataclass(frozen=True)
class Step:
    """`name` applied to earlier values; `number` picks an axis, a split point or a constant."""

    name: str
    operands: tuple[int, ...]
    number: int


Rule = Callable[..., Any]
OPS: dict[str, tuple[int, Rule]] = {}
"""Name -> (how many operands, function of a namespace (go or jnp), operands and a number). A
function returns None where the operands do not fit; the step is then skipped.
"""


def op(count: int) -> Callable[[Rule], Rule]:
    def register(fn: Rule) -> Rule:
        OPS[fn.__name__.strip("_")] = count, fn
        return fn

    return register


def axis_of(x: Any, number: int) -> int:
    return number % x.ndim


for _name in ("tanh", "sin", "exp", "cosh", "square"):
    # kept small: what comes in is squashed first
    OPS[_name] = (
        1,
        lambda n, x, k, f=_name: getattr(n, f if n is jnp else f.replace("arc", "a"))(n.tanh(x)),
    )


@op(1)
def scale(n: Any, x: Any, k: int) -> Any:
    return x * (0.25 * k - 0.9)


@op(1)
def softplus(n: Any, x: Any, k: int) -> Any:
    return jax.nn.softplus(x) if n is jnp else go.softplus(x)


@op(1)
def gelu(n: Any, x: Any, k: int) -> Any:
    return jax.nn.gelu(x, approximate=False) if n is jnp else go.gelu(x)


@op(1)
def bend(n: Any, x: Any, k: int) -> Any:
    return n.where(x > 0.3711 * (k - 2), x, 0.1 * x)


@op(2)
def add(n: Any, x: Any, y: Any, k: int) -> Any:
    return x + y if broadcasts(x, y) else None


@op(2)
def mul(n: Any, x: Any, y: Any, k: int) -> Any:
    return n.tanh(x) * y if broadcasts(x, y) else None


@op(2)
def div(n: Any, x: Any, y: Any, k: int) -> Any:
    return x / (1.5 + y * y) if broadcasts(x, y) else None


@op(2)
def maximum(n: Any, x: Any, y: Any, k: int) -> Any:
    return n.maximum(x, y) if broadcasts(x, y) else None


def broadcasts(x: Any, y: Any) -> bool:
    return all(a == b or 1 in (a, b) for a, b in zip(x.shape[::-1], y.shape[::-1], strict=False))


@op(1)
def sum_(n: Any, x: Any, k: int) -> Any:
    return n.sum(x, axis=axis_of(x, k), keepdims=k > 2) if x.ndim else None


@op(1)
def mean(n: Any, x: Any, k: int) -> Any:
    return n.mean(x) if k > 3 or not x.ndim else n.mean(x, axis=axis_of(x, k))


@op(1)
def max_(n: Any, x: Any, k: int) -> Any:
    return n.max(x, axis=axis_of(x, k)) if x.ndim else None


@op(1)
def logsumexp(n: Any, x: Any, k: int) -> Any:
    if not x.ndim:
        return None
    return (jax.nn.logsumexp if n is jnp else go.logsumexp)(x, axis=axis_of(x, k))


@op(1)
def softmax(n: Any, x: Any, k: int) -> Any:
    return (jax.nn.softmax if n is jnp else go.softmax)(x, axis=axis_of(x, k)) if x.ndim else None


@op(1)
def var(n: Any, x: Any, k: int) -> Any:
    return n.var(x, axis=axis_of(x, k)) if x.ndim else None


@op(2)
def matmul(n: Any, x: Any, y: Any, k: int) -> Any:
    if not (x.ndim and y.ndim) or x.shape[-1] != y.shape[-2 if y.ndim > 1 else 0]:
        return None
    batches = x.shape[:-2][::-1], y.shape[:-2][::-1]
    fits = all(a == b or 1 in (a, b) for a, b in zip(*batches, strict=False))
    return n.matmul(x, y) if fits else None


@op(1)
def transpose(n: Any, x: Any, k: int) -> Any:
    return n.swapaxes(x, 0, axis_of(x, k)) if x.ndim else None


@op(1)
def flatten(n: Any, x: Any, k: int) -> Any:
    return n.reshape(x, (-1,)) if k % 2 else n.reshape(x, (1, *x.shape))


@op(1)
def slice_(n: Any, x: Any, k: int) -> Any:
    return x[k % x.shape[0] :: 1 + k % 2] if x.ndim else None


@op(1)
def pick(n: Any, x: Any, k: int) -> Any:
    return x[..., k % x.shape[-1]] if x.ndim else None


@op(1)
def flip(n: Any, x: Any, k: int) -> Any:
    return n.flip(x, axis_of(x, k)) if x.ndim else None


@op(1)
def take(n: Any, x: Any, k: int) -> Any:
    if not x.ndim:
        return None
    axis = axis_of(x, k)
    indices = np.array([k, 0, k + 1]) % x.shape[axis]
    return n.take(x, indices, axis=axis)


@op(1)
def rows(n: Any, x: Any, ids: Any, k: int) -> Any:
    """Rows at positions that are an argument."""
    axis = axis_of(x, k) if x.ndim else 0
    return n.take(x, ids % x.shape[axis], axis=axis) if x.ndim and x.shape[axis] else None


@op(1)
def add_to_rows(n: Any, x: Any, ids: Any, k: int) -> Any:
    """Some rows of x added to others, some of them more than once."""
    if not (x.ndim and x.shape[0]):
        return None
    at, updates = ids % x.shape[0], n.tanh(n.take(x, (ids + k) % x.shape[0], axis=0))
    return x.at[at].add(updates) if n is jnp else go.scatter_add(x, at, updates)


INDEXED = ("rows", "add_to_rows")
"""Ops that are given the positions, the fifth argument of every program."""


@op(1)
def pad(n: Any, x: Any, k: int) -> Any:
    width = [(k % 2, 1 if a == 0 else 0) for a in range(x.ndim)]
    return n.pad(x, width) if x.ndim else None


@op(2)
def concat(n: Any, x: Any, y: Any, k: int) -> Any:
    if not x.ndim or x.ndim != y.ndim:
        return None
    axis = axis_of(x, k)
    if x.shape[:axis] + x.shape[axis + 1 :] != y.shape[:axis] + y.shape[axis + 1 :]:
        return None
    return (n.concatenate if n is jnp else go.concat)([x, y], axis)


@op(2)
def stack(n: Any, x: Any, y: Any, k: int) -> Any:
    return n.stack([x, y], k % (x.ndim + 1)) if x.shape == y.shape else None


def steps() -> st.SearchStrategy[list[Step]]:
    """Programs of 4 to 14 steps; an operand is counted back from the newest value, so that programs
    grow deep rather than wide.
    """
    one = st.sampled_from(sorted(OPS)).flatmap(
        lambda name: st.builds(
            Step,
            st.just(name),
            st.tuples(*[st.integers(0, 5)] * OPS[name][0]),
            st.integers(0, 4),
        )
    )
    return st.lists(one, min_size=4, max_size=14)


def program(n: Any, todo: list[Step]) -> Callable[..., Any]:
    """The loss of a program, with its last three values beside it."""

    def run(*inputs: Any) -> Any:
        *values, ids = inputs
        for step in todo:
            operands = [values[-1 - i % len(values)] for i in step.operands]
            operands += [ids] if step.name in INDEXED else []
            result = OPS[step.name][1](n, *operands, step.number)
            if result is not None and result.size < 3000:
                values.append(result)
        last = values[-3:]
        loss = sum(n.sum(n.tanh(v) * (i + 1)) for i, v in enumerate(last))
        return loss, last

    return run


def flat(both: Any) -> list[np.ndarray]:
    (loss, last), gradients = both
    return [np.asarray(v) for v in (loss, *last, *gradients)]


def differentiated(n: Any, todo: list[Step]) -> Callable[..., Any]:
    if n is jnp:
        return jax.value_and_grad(program(jnp, todo), argnums=(0, 1, 2, 3), has_aux=True)
    return go.value_and_grad(program(go, todo), (0, 1, 2, 3), has_aux=True, allow_unused=True)


def arguments() -> list[np.ndarray]:
    rng = np.random.default_rng(6)
    floats = [np.asarray(rng.uniform(-1.5, 1.5, shape)) for shape in INPUTS]
    return [*floats, np.array([3, 0, 5, 1, 5], np.int32)]


@SETTINGS
@given(steps())
def test_reference_agrees_with_jax(todo: list[Step]) -> None:
    """Values and gradients in float64, before and after gradopt-simplify."""
    xs = arguments()
    got = run_reference(differentiated(go, todo), *xs)
    simplified = run_reference(differentiated(go, todo), *xs, simplify=True)
    want = flat(differentiated(jnp, todo)(*xs))
    assert len(got) == len(want)
    for a, b, c in zip(got, want, simplified, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(c, a, rtol=1e-12, atol=1e-14)


def found(*todo: tuple[str, tuple[int, ...], int]) -> Any:
    """A program that IREE once got wrong."""
    return example([Step(*step) for step in todo])


@pytest.mark.compiler
@SETTINGS
@given(steps())
@found(("take", (1,), 0), ("add", (0, 2), 0), ("add", (2, 3), 0), ("add", (0, 0), 0))
@found(("bend", (0,), 0), ("pick", (2,), 0), ("div", (3, 4), 0), ("matmul", (1, 4), 0))
@found(("bend", (3,), 4), ("exp", (4,), 3), ("softplus", (2,), 0), ("flatten", (5,), 0))
@found(
    ("take", (1,), 1),
    ("add", (0, 0), 0),
    ("bend", (0,), 0),
    ("max", (0,), 0),
    ("add", (0, 0), 0),
    ("transpose", (0,), 0),
    ("flip", (5,), 3),
    ("max", (2,), 0),
    ("max", (0,), 1),
    ("scale", (5,), 1),
    ("mean", (5,), 4),
    ("bend", (4,), 2),
)
def test_iree_agrees_with_reference_and_jax(todo: list[Step]) -> None:
    """Values and gradients in float32, within 2e-5 of the largest element. C030, C112, C118"""
    xs = arguments()
    want = flat(differentiated(jnp, todo)(*xs))
    reference = run_reference(differentiated(go, todo), *xs)
    compiled = go.compile(differentiated(go, todo), disk_cache=False)
    got = flat(compiled(*(x.astype(np.float32) for x in xs[:-1]), xs[-1]))
    for a, b, c in zip(got, want, reference, strict=True):
        assert (a.shape, a.dtype) == (b.shape, np.float32)
        np.testing.assert_allclose(c, b, rtol=1e-9, atol=1e-11)
        bound = 2e-5 * max(1.0, float(np.max(np.abs(b), initial=0)))
        np.testing.assert_allclose(a, b, rtol=0, atol=bound)
