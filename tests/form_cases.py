# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Ops with forms, a row for each set of forms that are right together."""

import dataclasses
from collections.abc import Callable
from typing import Any

import gradopt as go
import numpy as np
from gradopt.dialect.convolution import ConvInputGradientOp, ConvWeightGradientOp

rng = np.random.default_rng(3)


@dataclasses.dataclass(frozen=True)
class FormCase:
    """A function with one op of a kind, its arguments, and the forms that the op can have."""

    name: str
    op: str
    fn: Callable[..., Any]
    arrays: tuple[np.ndarray, ...]
    forms: tuple[str, ...]

    def __str__(self) -> str:
        return self.name

    def is_of(self, op: Any) -> bool:
        return op.operation.name == f"gradopt.{self.op}"


def f32(*shape: int) -> np.ndarray:
    return rng.uniform(-2, 2, shape).astype(np.float32)


def _window(stride: int = 1, dilation: int = 1, groups: int = 1, last: bool = True) -> Any:
    pairs = {"strides": stride, "low": 1, "high": 1, "dilation": dilation}
    return {k: (v, v) for k, v in pairs.items()} | {"groups": groups, "channels_last": last}


def _conv(**options: Any) -> Callable[..., Any]:
    return lambda x, w: go.conv(x, w, padding=1, **options)


def _by_input(extents: tuple[int, int], **window: Any) -> Callable[..., Any]:
    return lambda g, w: ConvInputGradientOp.emit(g, w, extents=extents, **_window(**window))


def _by_kernel(window: tuple[int, int], **about: Any) -> Callable[..., Any]:
    return lambda x, g: ConvWeightGradientOp.emit(x, g, window=window, **_window(**about))


CONV, TAPS = ("named", "columns"), ("taps", "gathered", "columns")
PHASES, SPLITS = ("spread", "phases"), ("whole", "split-16", "split-64")

FORM_CASES = [
    FormCase(
        "matmul", "dot_general", lambda a, b: a @ b, (f32(5, 7), f32(7, 3)), ("named", "generic")
    ),
    FormCase(
        "batched",
        "dot_general",
        lambda a, b: a @ b.mT,
        (f32(2, 5, 7), f32(2, 3, 7)),
        ("named", "generic"),
    ),
    FormCase("conv", "conv", _conv(strides=2), (f32(2, 6, 5, 3), f32(3, 2, 3, 4)), CONV),
    FormCase("dilated", "conv", _conv(dilation=2), (f32(2, 7, 6, 3), f32(3, 3, 3, 4)), CONV),
    FormCase("1x1", "conv", _conv(strides=2), (f32(2, 6, 5, 3), f32(1, 1, 3, 4)), CONV),
    FormCase("groups", "conv", _conv(groups=2), (f32(2, 6, 5, 4), f32(3, 3, 2, 6)), ("grouped",)),
    FormCase(
        "by input",
        "conv_input_gradient",
        _by_input((6, 6)),
        (f32(2, 6, 6, 4), f32(3, 3, 3, 4)),
        ("spread",),
    ),
    FormCase(
        "by input, stride 2",
        "conv_input_gradient",
        _by_input((6, 5), stride=2),
        (f32(2, 3, 3, 4), f32(3, 3, 3, 4)),
        PHASES,
    ),
    FormCase(
        "by kernel",
        "conv_weight_gradient",
        _by_kernel((3, 3)),
        (f32(2, 5, 4, 3), f32(2, 5, 4, 6)),
        TAPS,
    ),
    FormCase(
        "by kernel, stride 2",
        "conv_weight_gradient",
        _by_kernel((3, 3), stride=2),
        (f32(2, 6, 5, 3), f32(2, 3, 3, 4)),
        TAPS,
    ),
    FormCase(
        "by kernel, channels first",
        "conv_weight_gradient",
        _by_kernel((3, 3), last=False),
        (f32(2, 3, 5, 4), f32(2, 6, 5, 4)),
        TAPS,
    ),
    FormCase(
        "by kernel, groups",
        "conv_weight_gradient",
        _by_kernel((3, 3), groups=2),
        (f32(2, 5, 4, 4), f32(2, 5, 4, 6)),
        ("taps",),
    ),
    FormCase(
        "softmax",
        "softmax",
        lambda x: go.softmax(x, axis=1),
        (f32(4, 6, 3),),
        ("computed-twice", "kept"),
    ),
    FormCase("sum of rows", "sum", lambda x: x.sum(axis=1), (f32(8, 32),), ("whole",)),
    FormCase("sum of columns", "sum", lambda x: x.sum(axis=(0, 1)), (f32(8, 16, 3),), SPLITS),
    FormCase("max of columns", "max", lambda x: x.max(axis=0), (f32(128, 3),), SPLITS),
    FormCase("mean of columns", "mean", lambda x: x.mean(axis=0), (f32(128, 3),), SPLITS),
    FormCase("var of columns", "var", lambda x: x.var(axis=0), (f32(128, 3),), SPLITS),
    FormCase("norm of columns", "norm", lambda x: go.norm(x, axis=0), (f32(128, 3),), SPLITS),
    FormCase(
        "logsumexp of columns",
        "logsumexp",
        lambda x: go.logsumexp(x, axis=0),
        (f32(128, 3),),
        SPLITS,
    ),
    FormCase("batch norm", "normalize", lambda x: go.batch_norm(x), (f32(8, 4, 4, 3),), SPLITS),
    FormCase(
        "many rows",
        "sum",
        lambda x: x.sum(axis=0),
        (f32(20480, 2),),
        ("split-16", "split-64", "split-256"),
    ),
]
