# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Further elementwise ops: bits, blends, thresholds, functions of probabilities."""

import numpy as np

from .case import POSITIVE, UNIT, Case, I, X, Y, binary, ints, jax, jnp, reals, seed, unary

seed(11)

FRACTION = reals(3, 5, low=0.05, high=0.95)
SPECIAL = np.array([1.5, -0.0, np.inf, -np.inf, np.nan, 3.0])

CASES = [
    unary("log_sigmoid", jax.nn.log_sigmoid),
    unary(
        "threshold",
        lambda x: jnp.where(x > 0.3, x, -1.0),
        attributes={"threshold": 0.3, "value": -1.0},
    ),
    unary("hard_shrink", lambda x: jnp.where(jnp.abs(x) <= 0.5, 0, x)),
    unary(
        "soft_shrink",
        lambda x: jnp.where(jnp.abs(x) <= 0.7, 0, x - jnp.sign(x) * 0.7),
        attributes={"width": 0.7},
    ),
    unary("squareplus", jax.nn.squareplus),
    unary("ndtr", jax.scipy.special.ndtr),
    Case("glu", [reals(2, 6, 3)], lambda x: jax.nn.glu(x, axis=1), {"axis": 1}),
    Case(
        "lerp",
        [X, Y, FRACTION],
        lambda a, b, w: a + w * (b - a),
        ulp=64,  # the two terms cancel where the result is near 0, in the formula itself
    ),
    binary("div_no_nan", lambda a, b: jnp.where(b == 0, 0, a / b)),
    binary("squared_difference", lambda a, b: (a - b) ** 2),
    binary("heaviside", jnp.heaviside),
    unary("nan_to_num", jnp.nan_to_num),
    unary(
        "nan_to_num",
        lambda x: jnp.nan_to_num(x, nan=2.0, posinf=7.0, neginf=-7.0),
        SPECIAL,
        attributes={"nan": 2.0, "posinf": 7.0, "neginf": -7.0},
        wrt=(),
        suffix="special",
    ),
    unary("deg2rad", jnp.deg2rad),
    unary("rad2deg", jnp.rad2deg),
    unary("signbit", jnp.signbit, SPECIAL),
    binary("xlogy", jax.scipy.special.xlogy, X, POSITIVE),
    binary("xlog1py", jax.scipy.special.xlog1py, X, POSITIVE),
    unary("entr", jax.scipy.special.entr, POSITIVE),
    unary("logit", jax.scipy.special.logit, FRACTION),
    unary("sinc", jnp.sinc),
    unary("sinc", jnp.sinc, UNIT * 0.1, suffix="near_0"),
    binary("lbeta", jax.scipy.special.betaln, POSITIVE, POSITIVE[::-1] + 0.3, ulp=64),
    binary(
        "nextafter",  # JAX has no gradient of it
        lambda a, b: a + (jnp.nextafter(*jax.lax.stop_gradient((a, b))) - jax.lax.stop_gradient(a)),
        np.array([1.0, -1.0, 0.5, 2.0, -3.0, 1.5]),
        np.array([2.0, 1.0, 0.25, -1.0, -4.0, 1.5]),
    ),
    binary(
        "nextafter",
        jnp.nextafter,
        np.array([0.0, -0.0, 0.0, np.inf, -np.inf, np.nan, 1.0, 0.0]),
        np.array([-0.0, 0.0, -1.0, 0.0, np.inf, 1.0, np.nan, 5.0]),
        wrt=(),
        suffix="special",
    ),
    unary("popcount", jax.lax.population_count, I),
    unary("count_leading_zeros", jax.lax.clz, I),
    binary("shift_right_logical", jax.lax.shift_right_logical, I, ints(3, 5, low=0, high=31)),
    binary("pow", jnp.power, I, ints(3, 5, low=0, high=40), suffix="int"),
    unary("square", jnp.square, I, suffix="int"),
]
