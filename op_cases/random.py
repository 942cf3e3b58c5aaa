# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Random numbers: those of JAX, bit for bit where rounding is not involved."""

from collections.abc import Callable
from typing import Any

import numpy as np

from .case import Case, ints, jax, jnp, reals, seed

seed(20)

KEY = np.array([0x12345678, 0x9ABCDEF0], np.uint32)
COUNTERS = [ints(3, 5, low=0, high=2**32, dtype="uint32") for _ in range(2)]
F64 = np.dtype("float64")


def jax_threefry(key: Any, c0: Any, c1: Any) -> Any:
    from jax.extend.random import threefry_2x32

    words = threefry_2x32(key, jnp.stack([c0.ravel(), c1.ravel()]).ravel())
    return tuple(words.reshape(2, *c0.shape))


def jax_bits(key: Any, shape: Any) -> Any:
    return jax.random.bits(key, shape, "uint32")


def draw(
    op: str, function: Callable[..., Any] | None, shape: tuple[int, ...] = (3, 5), **options: Any
) -> Case:
    """A row of numbers drawn from KEY; in JAX of (key, shape)."""
    attributes = {"shape": shape} | options.pop("attributes", {})
    own = None if function is None else lambda key: function(key, shape)
    return Case(op, [KEY], own, attributes, **options)


CASES = [
    Case("threefry", [KEY, *COUNTERS], jax_threefry),
    draw("random_bits", jax_bits),
    draw("random_bits", jax_bits, (7, 3, 1, 11), suffix="deep"),
    draw(
        "random_bits",
        lambda k, s: (jax.random.bits(k, s, "uint64") >> 32).astype("uint32"),
        attributes={"word": "first"},
        suffix="first",
    ),
    draw(
        "random_bits",
        lambda k, s: jax.random.bits(k, s, "uint64").astype("uint32"),
        attributes={"word": "second"},
        suffix="second",
    ),
    draw("random_uniform", lambda k, s: jax.random.uniform(k, s, "float32"), ulp=0),
    draw(
        "random_uniform",
        lambda k, s: jax.random.uniform(k, s, "float64", -3.0, 5.0),
        attributes={"low": -3.0, "high": 5.0, "dtype": F64},
        suffix="f64",
    ),
    *(
        draw(
            "random_uniform",
            None,
            (40,),
            attributes={"low": 0.1, "high": 1.7, "dtype": np.dtype(dtype)},
            suffix=dtype,
        )
        for dtype in ("float16", "float32")
    ),
    draw("random_normal", jax.random.normal, attributes={"dtype": F64}),
    draw(
        "random_truncated_normal",
        lambda k, s: jax.random.truncated_normal(k, -1.0, 2.5, s),
        attributes={"lower": -1.0, "upper": 2.5, "dtype": F64},
    ),
    draw(
        "random_exponential", lambda k, s: jax.random.exponential(k, s), attributes={"dtype": F64}
    ),
    draw("random_gumbel", jax.random.gumbel, attributes={"dtype": F64}),
    draw(
        "random_bernoulli",
        lambda k, s: jax.random.bernoulli(k, jnp.float32(0.3), s),
        attributes={"p": 0.3},
    ),
    draw(
        "random_randint",
        lambda k, s: jax.random.randint(k, s, -7, 60000, "int32"),
        attributes={"low": -7, "high": 60000},
    ),
    draw(
        "random_randint",
        lambda k, s: jax.random.randint(k, s, 5, 2**32 - 1, "uint32"),
        attributes={"low": 5, "high": 2**32 - 1, "dtype": np.dtype("uint32")},
        suffix="uint32",
    ),
    *(
        draw(
            "random_randint",
            None,
            attributes={"low": low, "high": high, "dtype": np.dtype(dtype)},
            suffix=dtype,
        )
        for dtype, low, high in (
            ("int64", -(2**40), 2**32 - 1 - 2**40),
            ("int8", -128, 128),
            ("uint8", 200, 256),
        )
    ),
    Case("random_permutation", [KEY], None, {"n": 33}),
    Case(
        "random_categorical",
        [KEY, reals(4, 6)],
        lambda k, x: jax.random.categorical(k, x, 1).astype("int32"),
        {"axis": 1},
    ),
    Case("random_categorical", [KEY, reals(4, 6)], None, {"axis": 0}, suffix="first"),
]
