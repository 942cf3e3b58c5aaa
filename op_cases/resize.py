# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Resized images and weighted sums along an axis. JAX resizes with half-pixel coordinates only."""

from typing import Any

import numpy as np

from .case import Case, ints, jax, jnp, reals, seed

seed(52)

INDICES = np.array([[0, 2, 1], [3, 3, 0], [4, 1, 0]], np.int32)
WEIGHTS = np.array([[0.5, -1.0, 2.0], [1.0, 0.25, 0.0], [0.0, 3.0, 1.0]])


def jax_resample(x: Any) -> Any:
    dense = np.zeros((3, 5))
    np.add.at(dense, (np.arange(3)[:, None], INDICES), WEIGHTS)
    return jnp.moveaxis(jnp.tensordot(dense, x, (1, 1)), 0, 1)


def resized(
    suffix: str,
    shape: tuple[int, ...],
    axes: tuple[int, ...],
    sizes: tuple[int, ...],
    **attributes: Any,
) -> Case:
    """A row whose equivalent in JAX, if it has one, is jax.image.resize."""
    full = list(shape)
    for axis, size in zip(axes, sizes, strict=True):
        full[axis] = size
    method = attributes.get("method", "linear")

    def resize(x: Any) -> Any:
        return jax.image.resize(x, full, method, antialias=False)

    plain = not set(attributes) & {"coordinates", "cubic", "border"}
    attributes |= {"axes": axes, "sizes": sizes}
    return Case("resize", [reals(*shape)], resize if plain else None, attributes, suffix=suffix)


LARGER = (2, 4, 5, 3), (1, 2), (7, 10)
SMALLER = (2, 9, 3, 8), (1, 3), (4, 5)

CASES = [
    Case(
        "resample",
        [reals(2, 5, 3)],
        jax_resample,
        {"indices": INDICES, "weights": WEIGHTS, "axis": 1},
    ),
    Case(
        "resample",
        [reals(40, 2)],
        lambda x: jnp.tensordot(np.arange(60.0).reshape(3, 20) / 60, x[10:30], 1),
        {
            "indices": np.broadcast_to(np.arange(10, 30, dtype=np.int32), (3, 20)),
            "weights": np.arange(60.0).reshape(3, 20) / 60,
            "axis": 0,
        },
        suffix="wide",
    ),
    resized("", *LARGER),
    resized("smaller", *SMALLER),
    resized("cubic", *LARGER, method="cubic"),
    resized("cubic_smaller", *SMALLER, method="cubic"),
    resized("nearest", *LARGER, method="nearest"),
    resized("nearest_smaller", *SMALLER, method="nearest"),
    resized("nearest_twice", (1, 3, 4, 2), (1, 2), (6, 12), method="nearest"),
    resized("one", (2, 1, 3), (1, 2), (3, 1)),
    resized("three_axes", (1, 2, 3, 4, 2), (1, 2, 3), (3, 5, 2)),
    resized("corners", *LARGER, coordinates="align_corners"),
    resized("corners_smaller", *SMALLER, coordinates="align_corners"),
    resized("asymmetric", *LARGER, coordinates="asymmetric"),
    resized("cubic_clamped", *LARGER, method="cubic", cubic=-0.75, border="clamp"),
    resized(
        "cubic_corners",
        *SMALLER,
        method="cubic",
        cubic=-0.75,
        border="clamp",
        coordinates="align_corners",
    ),
    resized("nearest_corners", *LARGER, method="nearest", coordinates="align_corners"),
    resized("nearest_asymmetric", *SMALLER, method="nearest", coordinates="asymmetric"),
    Case(
        "resize",
        [ints(2, 5)],
        lambda x: jax.image.resize(x, (2, 7), "nearest"),
        {"axes": (1,), "sizes": (7,), "method": "nearest"},
        suffix="int",
    ),
]
