# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Losses."""

from typing import Any

import numpy as np

from .case import CUBE, UNIT, Case, X, Y, binary, bools, ints, jax, jnp, reals, seed

seed(22)


def jax_cross_entropy(x: Any, labels: Any) -> Any:
    lse = jax.scipy.special.logsumexp(x, -1)
    return lse - jnp.take_along_axis(x, labels[..., None], -1)[..., 0], lse


def jax_label_cross_entropy(
    x: Any, labels: Any, *weight: Any, smoothing: float = 0.0, ignored: tuple[int, ...] = ()
) -> Any:
    """As in PyTorch, one loss a row."""
    w = weight[0] if weight else jnp.ones(x.shape[-1])
    places = jnp.clip(labels, 0, x.shape[-1] - 1)
    hot = jax.nn.one_hot(places, x.shape[-1])
    share = hot * (1 - smoothing) + smoothing / x.shape[-1]
    loss = -(share * w * jax.nn.log_softmax(x)).sum(-1)
    return jnp.where(jnp.isin(labels, jnp.array(ignored, int)), 0, loss)


def jax_nll(x: Any, labels: Any, *weight: Any, ignored: tuple[int, ...] = ()) -> Any:
    places = jnp.clip(labels, 0, x.shape[-1] - 1)
    loss = -jnp.take_along_axis(x, places[..., None], -1)[..., 0]
    loss = loss * weight[0][places] if weight else loss
    return jnp.where(jnp.isin(labels, jnp.array(ignored, int)), 0, loss)


def jax_focal(x: Any, t: Any, alpha: float, gamma: float) -> Any:
    q = jnp.where(t == 1, jax.nn.sigmoid(x), jax.nn.sigmoid(-x))
    own = jnp.where(t == 1, alpha, 1 - alpha) if alpha >= 0 else 1.0
    return -own * (1 - q) ** gamma * jnp.log(q)


def jax_poisson(x: Any, t: Any, log_input: bool, full: bool) -> Any:
    loss = jnp.exp(x) - t * x if log_input else x - t * jnp.log(x + 1e-8)
    stirling = t * jnp.log(t) - t + 0.5 * jnp.log(2 * jnp.pi * t)
    return loss + jnp.where(t > 1, stirling, 0) if full else loss


def jax_gaussian(x: Any, t: Any, v: Any) -> Any:
    return -jax.scipy.stats.norm.logpdf(t, x, jnp.sqrt(v))


def jax_triplet(a: Any, p: Any, n: Any) -> Any:
    near, far = (jnp.linalg.norm(a - v, axis=-1) for v in (p, n))
    return jnp.maximum(0, near - far + 0.7)


LABELS = ints(2, 3, low=0, high=4)
SOME = np.array([[1, -100, 3], [7, 0, 2]], np.int32)
WEIGHT = reals(4, low=0.2, high=2.0)
SHARE = reals(3, 5, low=0.05, high=0.95)
PROBABILITY = reals(3, 5, low=0.05, high=0.95)
COUNTS = reals(3, 5, low=0.2, high=6.0)
TRUTH = bools(3, 5).astype(float)

CASES = [
    Case("cross_entropy", [CUBE, LABELS], jax_cross_entropy, ulp=32),
    Case(
        "label_cross_entropy",
        [CUBE, SOME],
        lambda x, l: jax_label_cross_entropy(x, l, ignored=(-100, 7)),
        {"ignored": (-100, 7)},
    ),
    Case(
        "label_cross_entropy",
        [CUBE, SOME, WEIGHT],
        lambda x, l, w: jax_label_cross_entropy(x, l, w, smoothing=0.2, ignored=(-100,)),
        {"ignored": (-100,), "smoothing": 0.2},
        suffix="weighted",
    ),
    Case("nll_loss", [CUBE, SOME], lambda x, l: jax_nll(x, l, ignored=(7,)), {"ignored": (7,)}),
    Case("nll_loss", [CUBE, LABELS, WEIGHT], jax_nll, suffix="weighted"),
    Case(
        "soft_cross_entropy",
        [X, SHARE],
        lambda x, t: -(t * jax.nn.log_softmax(x)).sum(-1),
    ),
    binary("mse", lambda x, t: (x - t) ** 2),
    binary("mae", lambda x, t: jnp.abs(x - t)),
    binary(
        "huber",
        lambda x, t: jnp.where(
            jnp.abs(x - t) <= 0.8, (x - t) ** 2 / 2, 0.8 * (jnp.abs(x - t) - 0.4)
        ),
        attributes={"delta": 0.8},
    ),
    binary(
        "smooth_l1",
        lambda x, t: jnp.where(jnp.abs(x - t) < 0.7, (x - t) ** 2 / 1.4, jnp.abs(x - t) - 0.35),
        attributes={"beta": 0.7},
    ),
    binary(
        "bce",
        lambda p, t: -t * jnp.log(p) - (1 - t) * jnp.log1p(-p),
        PROBABILITY,
        SHARE,
    ),
    binary("bce_with_logits", lambda x, t: jax.nn.softplus(x) - x * t, X, SHARE),
    Case(
        "bce_with_logits",
        [X, SHARE, SHARE[::-1].copy()],
        lambda x, t, w: (1 - t) * jax.nn.softplus(x) + w * t * jax.nn.softplus(-x),
        suffix="weighted",
    ),
    binary("kl_div", lambda x, t: t * (jnp.log(t) - x), X, SHARE),
    binary(
        "kl_div",
        lambda x, t: jnp.exp(t) * (t - x),
        attributes={"log_target": True},
        suffix="log",
    ),
    binary("hinge", lambda x, t: jnp.maximum(0, 1 - t * x)),
    *(
        binary(
            "poisson_nll",
            lambda x, t, log_input=log_input, full=full: jax_poisson(x, t, log_input, full),
            COUNTS[::-1].copy(),
            COUNTS,
            attributes={"log_input": log_input, "full": full},
            suffix=suffix,
            ulp=32,
        )
        for suffix, log_input, full in (("", True, False), ("full", False, True))
    ),
    Case("gaussian_nll", [X, Y, COUNTS], jax_gaussian, {"full": True}),
    *(
        binary(
            "focal",
            lambda x, t, alpha=alpha, gamma=gamma: jax_focal(x, t, alpha, gamma),
            X,
            TRUTH,
            attributes={"alpha": alpha, "gamma": gamma},
            wrt=(0,),
            suffix=suffix,
        )
        for suffix, alpha, gamma in (("", 0.25, 2.0), ("plain", -1.0, 1.5))
    ),
    Case(
        "cosine_similarity",
        [CUBE, reals(2, 3, 4)],
        lambda a, b: (a * b).sum(1) / (jnp.linalg.norm(a, axis=1) * jnp.linalg.norm(b, axis=1)),
        {"axis": 1},
    ),
    Case("triplet_margin", [X, Y, UNIT], jax_triplet, {"margin": 0.7}),
]
