# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""`go.nn.init`: initialisers. Each function here gives a function `(shape, dtype="float32",
key=None)` from a shape to an Array, drawn with the key, or with the next one of `go.random.seed`.

Those that scale by fans count as JAX and Keras do: an array whose axes are a window, inputs and
outputs, as that of a dense layer (no window) or a convolution, has fan_in = inputs * window and
fan_out = outputs * window. The kernel of a grouped convolution has the inputs of a group, so that
fan_in is that of an output; fan_out is not divided. `in_axis` and `out_axis` say where they are.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..dialect import creation
from ..dialect.types import TensorSpec, as_dtype, float32, is_float, is_narrow
from ..errors import OpError, TraceError
from ..runtime import generator
from ..runtime.array import Array, of_value

Initializer = Callable[..., Array]

TRUNCATED = 0.87962566103423978
"""Standard deviation of the normal distribution cut off at -2 and 2."""


def constant(value: float) -> Initializer:
    """All elements `value`."""

    def make(shape: Any, dtype: Any = float32, key: Any = None) -> Array:
        return creation.full(shape, value, as_dtype(dtype))

    return make


def zeros() -> Initializer:
    return constant(0)


def ones() -> Initializer:
    return constant(1)


def _drawn(draw: Callable[[Any, Any, Any], Any]) -> Initializer:
    """An initialiser of floats that `draw(key, spec, dtype)` gives in float32 or wider."""

    def make(shape: Any, dtype: Any = float32, key: Any = None) -> Array:
        extents = (shape,) if isinstance(shape, int) else tuple(shape)
        spec = TensorSpec(extents, as_dtype(dtype))
        if not is_float(spec.dtype):
            raise OpError(f"random initialisers expected a floating-point type, got {spec}")
        wide = float32 if is_narrow(spec.dtype) else spec.dtype
        drawn = draw(generator.next_key() if key is None else key, spec, wide)
        return drawn.astype(spec.dtype)

    return make


def normal(stddev: float = 0.01, mean: float = 0.0) -> Initializer:
    """The normal distribution."""
    return _drawn(lambda key, spec, d: generator.normal(key, spec.shape, d) * stddev + mean)


def uniform(low: float = -0.01, high: float = 0.01) -> Initializer:
    """Evenly spread over [low, high)."""
    return _drawn(lambda key, spec, d: generator.uniform(key, spec.shape, low, high, d))


def truncated_normal(
    stddev: float = 0.01, mean: float = 0.0, lower: float = -2.0, upper: float = 2.0
) -> Initializer:
    """mean + stddev z, z of the standard normal distribution between `lower` and `upper`."""
    return _drawn(
        lambda key, spec, d: (
            generator.truncated_normal(key, lower, upper, spec.shape, d) * stddev + mean
        )
    )


# --- by fans --------------------------------------------------------------------------------------


def fans(shape: tuple[int, ...], in_axis: int = -2, out_axis: int = -1) -> tuple[int, int]:
    """(fan_in, fan_out) of an array of weights. OpError for less than two axes."""
    if len(shape) < 2:
        raise OpError(
            f"initialisers that scale by fans expected at least 2 axes, got shape {shape}; use "
            "nn.init.normal or uniform for vectors"
        )
    ends = {in_axis % len(shape), out_axis % len(shape)}
    if len(ends) < 2:
        raise OpError(f"in_axis and out_axis expected two axes of shape {shape}, got one")
    window = math.prod(n for i, n in enumerate(shape) if i not in ends)
    return shape[in_axis] * window, shape[out_axis] * window


FANS = ("fan_in", "fan_out", "fan_avg")
DISTRIBUTIONS = ("normal", "uniform", "truncated_normal")


def variance_scaling(
    scale: float = 1.0,
    mode: str = "fan_in",
    distribution: str = "truncated_normal",
    in_axis: int = -2,
    out_axis: int = -1,
) -> Initializer:
    """Mean 0 and variance scale / fan, "fan_in", "fan_out" or their mean "fan_avg". `distribution`
    is "normal", "uniform" (between -+sqrt(3 scale / fan)) or "truncated_normal" (cut off at two
    deviations and stretched to that variance).
    """
    if mode not in FANS:
        raise OpError(f"variance_scaling expected a mode out of {', '.join(FANS)}, got {mode!r}")
    if distribution not in DISTRIBUTIONS:
        raise OpError(
            f"variance_scaling expected a distribution out of {', '.join(DISTRIBUTIONS)}, got "
            f"{distribution!r}"
        )

    def draw(key: Any, spec: TensorSpec, dtype: Any) -> Any:
        fan_in, fan_out = fans(spec.extents, in_axis, out_axis)
        fan = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[mode]
        deviation = math.sqrt(scale / max(1, fan))
        if distribution == "uniform":
            limit = math.sqrt(3) * deviation
            return generator.uniform(key, spec.shape, -limit, limit, dtype)
        if distribution == "normal":
            return generator.normal(key, spec.shape, dtype) * deviation
        cut = generator.truncated_normal(key, -2.0, 2.0, spec.shape, dtype)
        return cut * (deviation / TRUNCATED)

    return _drawn(draw)


def _named(scale: float, mode: str, distribution: str, about: str) -> Callable[..., Initializer]:
    def named(in_axis: int = -2, out_axis: int = -1) -> Initializer:
        return variance_scaling(scale, mode, distribution, in_axis, out_axis)

    named.__doc__ = about
    return named


glorot_uniform = xavier_uniform = _named(
    1, "fan_avg", "uniform", "Glorot and Bengio (2010): uniform in -+sqrt(6 / (fan_in + fan_out))."
)
glorot_normal = xavier_normal = _named(
    1, "fan_avg", "truncated_normal", "Glorot and Bengio (2010): variance 2 / (fan_in + fan_out)."
)
he_uniform = kaiming_uniform = _named(
    2, "fan_in", "uniform", "He et al. (2015), for rectifiers: uniform in -+sqrt(6 / fan_in)."
)
he_normal = kaiming_normal = _named(
    2, "fan_in", "truncated_normal", "He et al. (2015), for rectifiers: variance 2 / fan_in."
)
lecun_uniform = _named(
    1, "fan_in", "uniform", "LeCun et al. (1998): uniform in -+sqrt(3 / fan_in)."
)
lecun_normal = _named(1, "fan_in", "truncated_normal", "LeCun et al. (1998): variance 1 / fan_in.")


def orthogonal(gain: float = 1.0) -> Initializer:
    """Saxe et al. (2014): columns (or rows, if they are fewer) that are orthogonal and of length
    `gain`, where all axes but the last are taken together as rows. The decomposition is NumPy's, on
    the host.
    """

    def draw(key: Any, spec: TensorSpec, dtype: Any) -> Any:
        if spec.rank < 2:
            raise OpError(f"nn.init.orthogonal expected at least 2 axes, got shape {spec.shape}")
        columns = spec.extents[-1]
        rows = math.prod(spec.extents[:-1])
        tall = (max(rows, columns), min(rows, columns))
        try:
            drawn = np.asarray(generator.normal(key, tall, dtype))
        except TraceError:
            raise TraceError(
                "nn.init.orthogonal works on the host, and cannot be part of a function that is "
                "hybridized or exported; give another initialiser there, as "
                "recurrent_init=nn.init.glorot_uniform()"
            ) from None
        q, r = np.linalg.qr(drawn)
        q = q * np.where(np.diagonal(r) < 0, -1, 1)  # else not evenly spread (Mezzadri, 2007)
        q = (q if rows >= columns else q.T) * gain
        return of_value(np.ascontiguousarray(q.reshape(spec.extents), dtype=dtype))

    return _drawn(draw)
