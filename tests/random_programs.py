# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What random programs are made of: steps from all families of ops, each in gradopt and in JAX.

A rule is given a namespace (go or jnp), earlier values and a number that picks an axis, a split
point or a constant. It returns None where the operands do not fit; a tanh takes its place, so that
every program is as long as it was drawn. Values are squashed before what grows, and set apart by a
ramp before what has ties, whose gradients differ between systems.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import gradopt as go
import jax
import jax.numpy as jnp
import numpy as np
from gradopt.op_cases.rows import run_reference
from hypothesis import strategies as st

INPUTS = [(3, 4), (4,), (2, 3, 4), ()]
"""Shapes of the four floating-point arguments of every program."""

LARGEST = 2000
"""Most elements of a value."""


@dataclasses.dataclass(frozen=True)
class Step:
    """`name` applied to earlier values, counted back from the newest."""

    name: str
    operands: tuple[int, ...]
    number: int


Rule = Callable[..., Any]
OPS: dict[str, tuple[str, int, Rule]] = {}
"""Name -> (family, how many operands, rule)."""

INDEXED: set[str] = set()
"""Rules that are also given positions, the fifth argument of every program, before the number."""


def op(family: str, count: int = 1, indexed: bool = False) -> Callable[[Rule], Rule]:
    def register(fn: Rule) -> Rule:
        name = fn.__name__.strip("_")
        OPS[name] = family, count, fn
        if indexed:
            INDEXED.add(name)
        return fn

    return register


def axis_of(x: Any, number: int) -> int:
    return number % x.ndim


def either(n: Any, in_go: Any, in_jax: Any) -> Any:
    return in_jax if n is jnp else in_go


def apart(n: Any, x: Any) -> Any:
    """`x` with a ramp added: no two elements are equal."""
    size = int(np.prod(x.shape))
    return x + (np.arange(size) * 0.00618034).reshape(x.shape).astype(x.dtype)


def broadcasts(x: Any, y: Any) -> bool:
    return all(a == b or 1 in (a, b) for a, b in zip(x.shape[::-1], y.shape[::-1], strict=False))


# --- elementwise ----------------------------------------------------------------------------------

SMOOTH = ("tanh", "sin", "cos", "exp", "expm1", "sinh", "cosh", "square", "arctan", "log1p", "cbrt")
for _name in SMOOTH:
    OPS[_name] = (
        "elementwise",
        1,
        lambda n, x, k, f=_name: getattr(n, f if n is jnp else f.replace("arc", "a"))(
            n.tanh(x) * 0.9 + (0.05 if f == "cbrt" else 0)
        ),
    )

ACTIVATIONS = ("softplus", "gelu", "silu", "sigmoid", "elu", "log_sigmoid", "mish", "squareplus")
for _name in ACTIVATIONS:
    OPS[_name] = (
        "elementwise",
        1,
        lambda n, x, k, f=_name: (
            jax.nn.gelu(x, approximate=False)
            if (f, n) == ("gelu", jnp)
            else getattr(jax.nn if n is jnp else go, f)(x)
        ),
    )


@op("elementwise")
def scale(n: Any, x: Any, k: int) -> Any:
    return x * (0.25 * k - 0.9)


@op("elementwise")
def bend(n: Any, x: Any, k: int) -> Any:
    return n.where(x > 0.3711 * (k - 2), x, 0.1 * x)


@op("elementwise")
def clip(n: Any, x: Any, k: int) -> Any:
    return n.clip(x, -0.713 - 0.1 * k, 0.911)


@op("elementwise", 2)
def add(n: Any, x: Any, y: Any, k: int) -> Any:
    return x + y if broadcasts(x, y) else None


@op("elementwise", 2)
def mul(n: Any, x: Any, y: Any, k: int) -> Any:
    return n.tanh(x) * y if broadcasts(x, y) else None


@op("elementwise", 2)
def div(n: Any, x: Any, y: Any, k: int) -> Any:
    return x / (1.5 + y * y) if broadcasts(x, y) else None


@op("elementwise", 2)
def hypot(n: Any, x: Any, y: Any, k: int) -> Any:
    return n.hypot(x, 0.5 + y * y) if broadcasts(x, y) else None


@op("elementwise", 2)
def maximum(n: Any, x: Any, y: Any, k: int) -> Any:
    return n.maximum(x, y) if broadcasts(x, y) else None


@op("elementwise", 2)
def logaddexp(n: Any, x: Any, y: Any, k: int) -> Any:
    return n.logaddexp(x, y) if broadcasts(x, y) else None


@op("elementwise", 2)
def xlogy(n: Any, x: Any, y: Any, k: int) -> Any:
    if not broadcasts(x, y):
        return None
    return either(n, go.xlogy, jax.scipy.special.xlogy)(x, 1.5 + n.tanh(y))


# --- reductions, scans, order ---------------------------------------------------------------------


@op("reduction")
def sum_(n: Any, x: Any, k: int) -> Any:
    return n.sum(x, axis=axis_of(x, k), keepdims=k > 2) if x.ndim else None


@op("reduction")
def mean(n: Any, x: Any, k: int) -> Any:
    return n.mean(x) if k > 3 or not x.ndim else n.mean(x, axis=axis_of(x, k))


@op("reduction")
def max_(n: Any, x: Any, k: int) -> Any:
    return n.max(x, axis=axis_of(x, k)) if x.ndim else None


@op("reduction")
def prod(n: Any, x: Any, k: int) -> Any:
    return n.prod(n.tanh(x) + 0.3, axis=axis_of(x, k)) if x.ndim else None


@op("reduction")
def logsumexp(n: Any, x: Any, k: int) -> Any:
    return either(n, go.logsumexp, jax.nn.logsumexp)(x, axis=axis_of(x, k)) if x.ndim else None


@op("reduction")
def var(n: Any, x: Any, k: int) -> Any:
    return n.var(x, axis=axis_of(x, k)) if x.ndim else None


@op("scan")
def cumsum(n: Any, x: Any, k: int) -> Any:
    if not x.ndim:
        return None
    return either(n, go.cumsum, jax.lax.cumsum)(x * 0.5, axis=axis_of(x, k), reverse=k > 2)


@op("scan")
def cumprod(n: Any, x: Any, k: int) -> Any:
    if not x.ndim:
        return None
    positive = 1 + 0.5 * n.tanh(x)
    return either(n, go.cumprod, jax.lax.cumprod)(positive, axis=axis_of(x, k), reverse=k > 2)


@op("scan")
def cummax(n: Any, x: Any, k: int) -> Any:
    if not x.ndim:
        return None
    return either(n, go.cummax, jax.lax.cummax)(apart(n, x), axis=axis_of(x, k), reverse=k > 2)


@op("scan")
def cumlogsumexp(n: Any, x: Any, k: int) -> Any:
    if not x.ndim:
        return None
    return either(n, go.cumlogsumexp, jax.lax.cumlogsumexp)(x, axis=axis_of(x, k))


@op("sort")
def sort(n: Any, x: Any, k: int) -> Any:
    return n.sort(apart(n, x), axis=axis_of(x, k)) if x.ndim else None


@op("sort")
def top_k(n: Any, x: Any, k: int) -> Any:
    if not x.ndim:
        return None
    return either(n, go.top_k, jax.lax.top_k)(apart(n, x), min(k + 1, x.shape[-1]))[0]


@op("sort")
def by_order(n: Any, x: Any, k: int) -> Any:
    """The elements of a product in the order of the other factor."""
    if not x.ndim:
        return None
    axis = axis_of(x, k)
    return n.take_along_axis(n.tanh(x) * 0.7, n.argsort(apart(n, x), axis=axis), axis=axis)


# --- products and windows -------------------------------------------------------------------------


@op("contraction", 2)
def matmul(n: Any, x: Any, y: Any, k: int) -> Any:
    if not (x.ndim and y.ndim) or x.shape[-1] != y.shape[-2 if y.ndim > 1 else 0]:
        return None
    batches = x.shape[:-2][::-1], y.shape[:-2][::-1]
    fits = all(a == b or 1 in (a, b) for a, b in zip(*batches, strict=False))
    return n.matmul(x, y) if fits else None


@op("contraction", 2)
def gram(n: Any, x: Any, y: Any, k: int) -> Any:
    if not x.ndim or not y.ndim or x.shape[-1] != y.shape[-1]:
        return None
    return n.einsum("...k,...k->..." if x.shape == y.shape else "ak,bk->ab", *rows_of(n, x, y))


def rows_of(n: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """The operands, as matrices unless they have one shape."""
    if x.shape == y.shape:
        return n.tanh(x), n.tanh(y)
    return tuple(n.reshape(n.tanh(v), (-1, v.shape[-1])) for v in (x, y))


def images(n: Any, x: Any) -> Any:
    """`x` as (images, width, channels)."""
    return n.reshape(x, (1,) * (3 - x.ndim) + tuple(x.shape)) if x.ndim < 4 else None


@op("convolution", 2)
def conv(n: Any, x: Any, y: Any, k: int) -> Any:
    """One spatial axis; the kernel depends on the other operand."""
    x = images(n, x)
    if x is None or x.shape[1] < 2:
        return None
    shape = (2, x.shape[2], 3)
    ramp = np.cos(np.arange(np.prod(shape))).reshape(shape).astype(x.dtype)
    w, stride = n.mean(n.tanh(y)) * 0.5 * ramp + 0.1 * ramp, 1 + k % 2
    if n is jnp:
        return jax.lax.conv_general_dilated(
            x, w, (stride,), [(1, 0)], dimension_numbers=("NWC", "WIO", "NWC")
        )
    return go.conv(x, w, stride, [(1, 0)])


@op("window")
def max_pool(n: Any, x: Any, k: int) -> Any:
    x = images(n, x)
    if x is None or x.shape[1] < 3:
        return None
    if n is jnp:
        strides = (1, 1 + k % 2, 1)
        return jax.lax.reduce_window(
            apart(n, x), -jnp.inf, jax.lax.max, (1, 2, 1), strides, "VALID"
        )
    return go.max_pool(apart(n, x), 2, 1 + k % 2)


@op("window")
def avg_pool(n: Any, x: Any, k: int) -> Any:
    x = images(n, x)
    if x is None or x.shape[1] < 3:
        return None
    if n is jnp:
        return jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 3, 1), (1, 1, 1), "SAME") / 3
    return go.avg_pool(x, 3, 1, "SAME")


# --- moves ----------------------------------------------------------------------------------------


@op("shape")
def transpose(n: Any, x: Any, k: int) -> Any:
    return n.swapaxes(x, 0, axis_of(x, k)) if x.ndim else None


@op("shape")
def flatten(n: Any, x: Any, k: int) -> Any:
    return n.reshape(x, (-1,)) if k % 2 else n.reshape(x, (1, *x.shape)) if x.ndim < 5 else None


@op("shape")
def slice_(n: Any, x: Any, k: int) -> Any:
    return x[k % x.shape[0] :: 1 + k % 2] if x.ndim else None


@op("shape")
def backwards(n: Any, x: Any, k: int) -> Any:
    return x[..., :: -1 - k % 2] if x.ndim else None


@op("shape")
def pick(n: Any, x: Any, k: int) -> Any:
    return x[..., k % x.shape[-1]] if x.ndim else None


@op("shape")
def flip(n: Any, x: Any, k: int) -> Any:
    return n.flip(x, axis_of(x, k)) if x.ndim else None


@op("shape", 2)
def concat(n: Any, x: Any, y: Any, k: int) -> Any:
    if not x.ndim or x.ndim != y.ndim:
        return None
    axis = axis_of(x, k)
    if x.shape[:axis] + x.shape[axis + 1 :] != y.shape[:axis] + y.shape[axis + 1 :]:
        return None
    return either(n, go.concat, jnp.concatenate)([x, y], axis)


@op("shape", 2)
def stack(n: Any, x: Any, y: Any, k: int) -> Any:
    return n.stack([x, y], k % (x.ndim + 1)) if x.shape == y.shape else None


@op("arrange")
def roll(n: Any, x: Any, k: int) -> Any:
    return n.roll(x, k - 2, axis_of(x, k)) if x.ndim else None


@op("arrange")
def tile(n: Any, x: Any, k: int) -> Any:
    return n.tile(x, (2,) * min(x.ndim, 1 + k % 2)) if x.ndim else None


@op("arrange")
def repeat(n: Any, x: Any, k: int) -> Any:
    return n.repeat(x, 2, axis=axis_of(x, k)) if x.ndim else None


@op("arrange")
def triangle(n: Any, x: Any, k: int) -> Any:
    return (n.tril if k % 2 else n.triu)(x, k - 2) if x.ndim > 1 else None


@op("arrange")
def diff(n: Any, x: Any, k: int) -> Any:
    axis = axis_of(x, k) if x.ndim else 0
    return n.diff(x, axis=axis) if x.ndim and x.shape[axis] > 1 else None


@op("arrange")
def diagonal(n: Any, x: Any, k: int) -> Any:
    return n.diagonal(x) if x.ndim > 1 else None


@op("padding")
def pad(n: Any, x: Any, k: int) -> Any:
    width = [(k % 2, 1 if a == 0 else 0) for a in range(x.ndim)]
    return n.pad(x, width) if x.ndim else None


@op("padding")
def pad_mode(n: Any, x: Any, k: int) -> Any:
    if not x.ndim or min(x.shape) < 2:
        return None
    return n.pad(x, [(1, 1)] * x.ndim, mode=("reflect", "edge", "symmetric", "wrap", "edge")[k])


@op("resize")
def resize(n: Any, x: Any, k: int) -> Any:
    if not x.ndim:
        return None
    shape, method = (*x.shape[:-1], x.shape[-1] + k), ("linear", "cubic", "nearest")[k % 3]
    if n is jnp:
        return jax.image.resize(x, shape, method, antialias=False)
    return go.resize(x, shape, method)


# --- positions ------------------------------------------------------------------------------------


@op("indexing")
def take(n: Any, x: Any, k: int) -> Any:
    if not x.ndim:
        return None
    axis = axis_of(x, k)
    return n.take(x, np.array([k, 0, k + 1]) % x.shape[axis], axis=axis)


@op("indexing", indexed=True)
def rows(n: Any, x: Any, ids: Any, k: int) -> Any:
    """Rows at positions that are an argument."""
    axis = axis_of(x, k) if x.ndim else 0
    return n.take(x, ids % x.shape[axis], axis=axis) if x.ndim else None


@op("indexing", indexed=True)
def elements(n: Any, x: Any, ids: Any, k: int) -> Any:
    """Elements at pairs of positions."""
    return x[ids % x.shape[0], (ids + k) % x.shape[1]] if x.ndim > 1 else None


@op("indexing", indexed=True)
def block(n: Any, x: Any, ids: Any, k: int) -> Any:
    if not x.ndim or x.shape[0] < 2:
        return None
    start = [ids[k], *[np.int32(0)] * (x.ndim - 1)]
    sizes = (x.shape[0] - 1, *x.shape[1:])
    return either(n, go, jax.lax).dynamic_slice(x, start, sizes)


@op("scatter", indexed=True)
def add_to_rows(n: Any, x: Any, ids: Any, k: int) -> Any:
    """Some rows of x added to others, some of them more than once."""
    if not x.ndim:
        return None
    at, updates = ids % x.shape[0], n.tanh(n.take(x, (ids + k) % x.shape[0], axis=0))
    return x.at[at].add(updates)


@op("scatter")
def set_rows(n: Any, x: Any, k: int) -> Any:
    """A row replaced by what is made of another; the larger of both with an even number."""
    if not x.ndim or x.shape[0] < 2:
        return None
    at = k % x.shape[0]
    new = n.tanh(x[at - 1]) * 0.8 + 0.1
    both = x.at[at].set(new)
    return both if k % 2 else n.maximum(x, both)


@op("scatter", indexed=True)
def segments(n: Any, x: Any, ids: Any, k: int) -> Any:
    if not x.ndim:
        return None
    to = np.arange(x.shape[0]) * (k + 1) % 3
    return either(n, go, jax.ops).segment_sum(x, to.astype(np.int32), 3)


@op("scatter", indexed=True)
def put_block(n: Any, x: Any, ids: Any, k: int) -> Any:
    if not x.ndim or x.shape[0] < 2:
        return None
    start = [ids[k] % 2, *[np.int32(0)] * (x.ndim - 1)]
    return either(n, go, jax.lax).dynamic_update_slice(x, n.tanh(x[1:]), start)


# --- networks -------------------------------------------------------------------------------------


@op("nn")
def softmax(n: Any, x: Any, k: int) -> Any:
    return either(n, go.softmax, jax.nn.softmax)(x, axis=axis_of(x, k)) if x.ndim else None


@op("nn")
def log_softmax(n: Any, x: Any, k: int) -> Any:
    return either(n, go.log_softmax, jax.nn.log_softmax)(x, axis=axis_of(x, k)) if x.ndim else None


@op("norm", 2)
def layer_norm(n: Any, x: Any, y: Any, k: int) -> Any:
    if not x.ndim or y.shape != x.shape[-1:]:
        return None
    if n is go:
        return go.layer_norm(x, y, eps=0.1)
    centered = x - x.mean(-1, keepdims=True)
    return centered / jnp.sqrt((centered**2).mean(-1, keepdims=True) + 0.1) * y


@op("norm")
def batch_norm(n: Any, x: Any, k: int) -> Any:
    if x.ndim < 2:
        return None
    if n is go:
        return go.batch_norm(x, eps=0.1)
    axes = tuple(range(x.ndim - 1))
    return (x - x.mean(axes)) / jnp.sqrt(x.var(axes) + 0.1)


@op("loss", indexed=True)
def cross_entropy(n: Any, x: Any, ids: Any, k: int) -> Any:
    if x.ndim != 2:
        return None
    labels = n.take(ids, np.arange(x.shape[0]) % 5) % x.shape[1]
    if n is go:
        return go.cross_entropy(x, labels)
    return -jnp.take_along_axis(jax.nn.log_softmax(x), labels[:, None], 1)[:, 0]


@op("loss", 2)
def huber(n: Any, x: Any, y: Any, k: int) -> Any:
    if x.shape != y.shape:
        return None
    if n is go:
        return go.huber(x, y, delta=0.7)
    size = jnp.abs(x - y)
    return jnp.where(size <= 0.7, 0.5 * (x - y) ** 2, 0.7 * (size - 0.35))


@op("attention", 2)
def attention(n: Any, x: Any, y: Any, k: int) -> Any:
    if x.ndim < 2 or y.ndim < 2 or x.shape[-1] != y.shape[-1]:
        return None
    q, kv = (n.reshape(v, (1, 1, -1, v.shape[-1])) for v in (x, y))
    if n is go:
        return go.attention(q, kv, n.tanh(kv))
    weights = jax.nn.softmax(q @ jnp.swapaxes(kv, -1, -2) / q.shape[-1] ** 0.5)
    return weights @ n.tanh(kv)


@op("random")
def dropout(n: Any, x: Any, k: int) -> Any:
    if not x.ndim:
        return None
    key = np.array([7, k], np.uint32)
    if n is go:
        return go.dropout(x, 0.4, key)
    return x * kept(x.shape, k)


@functools.cache
def kept(shape: tuple[int, ...], k: int) -> np.ndarray:
    """What dropout multiplies by, from the reference."""
    ones = np.ones(shape)
    return run_reference(lambda x: go.dropout(x, 0.4, np.array([7, k], np.uint32)), ones)[0]


@op("optimizer", 2)
def momentum(n: Any, x: Any, y: Any, k: int) -> Any:
    """A step of gradient descent with momentum: of x, by y, from a slot made of both."""
    if x.shape != y.shape:
        return None
    slot = n.tanh(x) * 0.5
    if n is go:
        return go.optim.momentum_update(x, y, 0.1, slot, momentum=0.9)[0]
    return x - 0.1 * (0.9 * slot + y)


# --- programs -------------------------------------------------------------------------------------

FAMILIES = sorted({family for family, _, _ in OPS.values()})


def programs(least: int = 5, most: int = 9) -> st.SearchStrategy[list[Step]]:
    """Programs of so many steps, mostly of more than one op: first a family is drawn, then a step.
    Operands are counted back from the newest value, so that programs grow deep rather than wide.
    """
    one = st.sampled_from(FAMILIES).flatmap(
        lambda family: st.sampled_from(sorted(o for o, v in OPS.items() if v[0] == family))
    )
    step = one.flatmap(
        lambda name: st.builds(
            Step,
            st.just(name),
            st.tuples(*[st.integers(0, 5)] * OPS[name][1]),
            st.integers(0, 4),
        )
    )
    return st.lists(step, min_size=least, max_size=most)


def program(n: Any, todo: list[Step]) -> Callable[..., Any]:
    """The loss of a program, with its last three values beside it."""

    def run(*inputs: Any) -> Any:
        *values, ids = inputs
        for step in todo:
            _, _, rule = OPS[step.name]
            operands = [values[-1 - i % len(values)] for i in step.operands]
            positions = [ids] if step.name in INDEXED else []
            result = rule(n, *operands, *positions, step.number)
            if result is None or result.size > LARGEST or 0 in result.shape:
                result = n.tanh(operands[0])
            values.append(result)
        last = values[-3:]
        loss = sum(n.sum(n.tanh(v) * (i + 1)) for i, v in enumerate(last))
        return loss, last

    return run


def differentiated(n: Any, todo: list[Step]) -> Callable[..., Any]:
    """The loss, the last values and the gradients by all four arguments."""
    if n is jnp:
        return jax.value_and_grad(program(jnp, todo), argnums=(0, 1, 2, 3), has_aux=True)
    return go.value_and_grad(program(go, todo), (0, 1, 2, 3), has_aux=True, allow_unused=True)


def flat(both: Any) -> list[np.ndarray]:
    (loss, last), gradients = both
    return [np.asarray(v) for v in (loss, *last, *gradients)]


def arguments() -> list[np.ndarray]:
    rng = np.random.default_rng(6)
    floats = [np.asarray(rng.uniform(-1.5, 1.5, shape)) for shape in INPUTS]
    return [*floats, np.array([3, 0, 5, 1, 5], np.int32)]
