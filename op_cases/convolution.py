# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Convolutions and their gradients."""

from collections.abc import Callable
from typing import Any

from .case import Case, jax, reals, result_shape, seed

seed(4)


def conv_attributes(
    strides: tuple[int, ...],
    low: tuple[int, ...],
    high: tuple[int, ...],
    dilation: tuple[int, ...] | None = None,
    groups: int = 1,
    channels_last: bool = True,
) -> dict[str, Any]:
    return {
        "strides": strides,
        "low": low,
        "high": high,
        "dilation": dilation or (1,) * len(strides),
        "groups": groups,
        "channels_last": channels_last,
    }


def jax_conv(a: dict[str, Any]) -> Callable[..., Any]:
    spatial = "DHW"[-len(a["strides"]) :]
    layouts = (
        (f"N{spatial}C", f"{spatial}IO", f"N{spatial}C")
        if a["channels_last"]
        else (f"NC{spatial}", f"OI{spatial}", f"NC{spatial}")
    )

    def conv(x: Any, w: Any) -> Any:
        return jax.lax.conv_general_dilated(
            x,
            w,
            a["strides"],
            list(zip(a["low"], a["high"], strict=True)),
            rhs_dilation=a["dilation"],
            feature_group_count=a["groups"],
            dimension_numbers=layouts,
        )

    return conv


def conv_cases(
    suffix: str, x: tuple[int, ...], w: tuple[int, ...], a: dict[str, Any]
) -> list[Case]:
    """The convolution and its two gradient ops for one setting."""
    image, kernel = reals(*x), reals(*w)
    conv = jax_conv(a)
    g = reals(*result_shape("conv", image, kernel, **a))
    last = a["channels_last"]
    extents = x[1:-1] if last else x[2:]
    window = w[:-2] if last else w[2:]

    def dx(g: Any, w: Any) -> Any:
        return jax.linear_transpose(lambda x: conv(x, w), image)(g)[0]

    def dw(x: Any, g: Any) -> Any:
        return jax.linear_transpose(lambda w: conv(x, w), kernel)(g)[0]

    return [
        Case("conv", [image, kernel], conv, a, suffix=suffix),
        Case("conv_input_gradient", [g, kernel], dx, {"extents": extents} | a, suffix=suffix),
        Case("conv_weight_gradient", [image, g], dw, {"window": window} | a, suffix=suffix),
    ]


CASES = [
    *conv_cases("", (2, 7, 6, 3), (3, 3, 3, 4), conv_attributes((1, 1), (1, 1), (1, 1))),
    *conv_cases("stride2", (2, 8, 8, 3), (3, 3, 3, 4), conv_attributes((2, 2), (1, 1), (1, 1))),
    *conv_cases(
        "stride2_odd", (2, 9, 7, 17), (3, 3, 17, 4), conv_attributes((2, 2), (0, 1), (1, 1))
    ),
    *conv_cases("stride3", (1, 9, 8, 2), (2, 2, 2, 3), conv_attributes((3, 3), (0, 0), (0, 0))),
    *conv_cases("same_1x1", (2, 5, 5, 4), (1, 1, 4, 3), conv_attributes((1, 1), (0, 0), (0, 0))),
    *conv_cases(
        "dilated", (1, 9, 9, 2), (3, 3, 2, 3), conv_attributes((2, 1), (2, 1), (1, 2), (1, 2))
    ),
    *conv_cases(
        "groups", (1, 6, 6, 4), (3, 3, 2, 6), conv_attributes((2, 2), (1, 1), (1, 1), groups=2)
    ),
    *conv_cases(
        "depthwise", (1, 6, 6, 4), (3, 3, 1, 4), conv_attributes((1, 1), (1, 1), (1, 1), groups=4)
    ),
    *conv_cases(
        "channels_first",
        (2, 3, 6, 6),
        (4, 3, 3, 3),
        conv_attributes((2, 2), (1, 1), (1, 1), channels_last=False),
    ),
    *conv_cases("one_window", (1, 3, 6, 3), (2, 2, 3, 4), conv_attributes((2, 3), (0, 0), (0, 0))),
    *conv_cases(
        "one_window_groups",
        (1, 3, 3, 4),
        (2, 2, 1, 4),
        conv_attributes((2, 2), (0, 0), (0, 0), groups=4),
    ),
    *conv_cases("one_axis", (2, 9, 3), (4, 3, 5), conv_attributes((2,), (1,), (2,))),
    *conv_cases(
        "three_axes",
        (1, 4, 5, 4, 2),
        (2, 3, 2, 2, 3),
        conv_attributes((1, 2, 1), (0, 1, 0), (1, 1, 0)),
    ),
]
