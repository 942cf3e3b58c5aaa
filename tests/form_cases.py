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


def _window(
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
    last: bool = True,
    pad: tuple[int, ...] = (1, 1),
) -> Any:
    same = {"strides": stride, "dilation": dilation}
    pairs = {k: (v,) * len(pad) for k, v in same.items()} | {"low": pad, "high": pad}
    return pairs | {"groups": groups, "channels_last": last}


def _conv(padding: Any = 1, **options: Any) -> Callable[..., Any]:
    return lambda x, w: go.conv(x, w, padding=padding, **options)


def _by_input(extents: tuple[int, ...], **window: Any) -> Callable[..., Any]:
    return lambda g, w: ConvInputGradientOp.emit(g, w, extents=extents, **_window(**window))


def _by_kernel(window: tuple[int, ...], **about: Any) -> Callable[..., Any]:
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


def _direct(
    name: str, op: str, fn: Callable[..., Any], *arrays: np.ndarray, forms: tuple[str, ...] = ()
) -> FormCase:
    """A case that fits blocks of sums."""
    usual = {"dot_general": ("named", "generic"), "conv": CONV, "conv_weight_gradient": TAPS}
    return FormCase(f"direct {name}", op, fn, arrays, (*(forms or usual[op]), "direct"))


def _products(equation: str, name: str, *shapes: tuple[int, ...]) -> FormCase:
    return _direct(name, "dot_general", lambda a, b: go.einsum(equation, a, b), *map(_f32, shapes))


def _f32(shape: tuple[int, ...]) -> np.ndarray:
    return f32(*shape)


DIRECT_CASES = [
    _products("mk,kn->mn", "matmul", (8, 24), (24, 64)),
    _products("km,kn->mn", "left side transposed", (24, 32), (24, 32)),
    _products("mk,nk->mn", "right side transposed", (12, 24), (32, 24)),
    _products("abk,kn->abn", "merged rows", (3, 4, 8), (8, 16)),
    _products("mk,kn->mn", "seven rows", (7, 8), (8, 48)),
    _products("km,nk->mn", "both sides transposed", (24, 32), (12, 24)),
    _products("mk,kn->mn", "few columns", (16, 24), (24, 10)),
    _products("bkm,bkn->bmn", "few columns, batched", (3, 8, 32), (3, 8, 6)),
    _products("bmk,bkn->bmn", "batched", (3, 6, 8), (3, 8, 16)),
    _products("bhtd,bhsd->bhts", "scores", (2, 3, 8, 4), (2, 3, 16, 4)),
    _products("bthd,bshd->bhts", "scores, heads inside", (2, 8, 3, 4), (2, 16, 3, 4)),
    _products("kab,kan->ban", "batch inside", (5, 2, 6), (5, 2, 16)),
    _products("mkl,kln->mn", "two sums", (6, 3, 4), (3, 4, 16)),
    _products("mkl,lkn->mn", "two sums, other order", (6, 3, 4), (4, 3, 16)),
    _direct(
        "float64",
        "dot_general",
        lambda a, b: a @ b,
        f32(6, 5).astype(np.float64),
        f32(5, 24).astype(np.float64),
    ),
    _direct("1x3", "conv", _conv(((0, 0), (1, 1))), f32(2, 4, 6, 5), f32(1, 3, 5, 32)),
    _direct("3x1", "conv", _conv(((1, 1), (0, 0))), f32(2, 4, 6, 5), f32(3, 1, 5, 32)),
    _direct("3x3", "conv", _conv(), f32(2, 4, 6, 3), f32(3, 3, 3, 32)),
    _direct("1x1", "conv", _conv(0), f32(2, 4, 6, 5), f32(1, 1, 5, 16)),
    _direct("1x1, stride 2", "conv", _conv(0, strides=2), f32(2, 4, 12, 5), f32(1, 1, 5, 16)),
    _direct(
        "1x1, strides 2 and 1", "conv", _conv(0, strides=(2, 1)), f32(2, 8, 6, 5), f32(1, 1, 5, 16)
    ),
    _direct("dilated", "conv", _conv(2, dilation=2), f32(1, 5, 6, 3), f32(3, 3, 3, 16)),
    _direct("1-D", "conv", _conv(1), f32(2, 8, 3), f32(3, 3, 16)),
    _direct("3-D", "conv", _conv(0), f32(1, 3, 4, 6, 2), f32(2, 1, 1, 2, 16)),
    _direct(
        "channels first",
        "conv",
        _conv(((0, 0), (1, 1)), layout="channels_first"),
        f32(2, 5, 4, 6),
        f32(16, 5, 1, 3),
    ),
    _direct(
        "by input, stride 2",
        "conv_input_gradient",
        _by_input((7, 12), stride=2),
        f32(2, 4, 6, 5),
        f32(3, 3, 16, 5),
        forms=PHASES,
    ),
    _direct(
        "by input, 1x3",
        "conv_input_gradient",
        _by_input((4, 6), pad=(0, 1)),
        f32(2, 4, 6, 5),
        f32(1, 3, 16, 5),
        forms=("spread",),
    ),
    _direct(
        "by input, 1x1, stride 2",
        "conv_input_gradient",
        _by_input((8, 12), stride=2, pad=(0, 0)),
        f32(2, 4, 6, 5),
        f32(1, 1, 16, 5),
        forms=PHASES,
    ),
    _direct(
        "by kernel", "conv_weight_gradient", _by_kernel((3, 3)), f32(2, 5, 4, 32), f32(2, 5, 4, 16)
    ),
    _direct(
        "by kernel, stride 2",
        "conv_weight_gradient",
        _by_kernel((3, 3), stride=2),
        f32(2, 6, 5, 3),
        f32(2, 3, 3, 64),
    ),
    _direct(
        "by kernel, strides 2 and 1",
        "conv_weight_gradient",
        lambda x, g: ConvWeightGradientOp.emit(
            x, g, window=(2, 1), **_window(pad=(0, 0)) | {"strides": (2, 1)}
        ),
        f32(2, 8, 6, 8),
        f32(2, 4, 6, 16),
    ),
    _direct(
        "by kernel, wide padding",
        "conv_weight_gradient",
        _by_kernel((5, 3), pad=(2, 3)),
        f32(2, 2, 3, 8),
        f32(2, 2, 7, 16),
    ),
    _direct(
        "by kernel, 3x1",
        "conv_weight_gradient",
        _by_kernel((3, 1), pad=(1, 0)),
        f32(2, 5, 4, 8),
        f32(2, 5, 4, 16),
    ),
    _direct(
        "by kernel, 1x1",
        "conv_weight_gradient",
        _by_kernel((1, 1), pad=(0, 0)),
        f32(2, 5, 4, 8),
        f32(2, 5, 4, 16),
    ),
    _direct(
        "by kernel, one column",
        "conv_weight_gradient",
        _by_kernel((3, 3), pad=(1, 0)),
        f32(2, 5, 3, 8),
        f32(2, 5, 1, 16),
    ),
]

FORM_CASES += DIRECT_CASES
