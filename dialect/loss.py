# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Losses of rows of classes: one number a row; the reduction (`.mean()`, `.sum()`, a weighted mean)
is the caller's. distance.py has those of a prediction against a target of its shape.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from .base import (
    Float,
    Ints,
    Op,
    Operand,
    Operands,
    Result,
    as_wide,
    check_float,
    in_float32,
    in_wide,
)
from .counting import one_hot
from .elementwise import (
    as_tensor,
    mul_no_nan,
)
from .gather import take_along_axis
from .indexing import take
from .later import scipy
from .logic import select
from .nn import LogSoftmaxOp
from .reduction import LogsumexpOp, as_float, expand, logsumexp
from .scatter import as_index
from .transcendental import exp
from .types import TensorSpec, is_integer


def check_labels(op_class: type[Op], x: TensorSpec, labels: TensorSpec) -> TensorSpec:
    """The type of one loss a row; raises unless there is one integer label a row of classes."""
    check_float(op_class, x)
    if x.rank < 1 or x.shape[-1] == 0:
        raise op_class.error("logits with at least one class on the last axis", x)
    if labels.shape != x.shape[:-1] or not is_integer(labels.dtype):
        raise op_class.error(
            f"integer labels of shape {x.shape[:-1]}", labels, "one label a row of logits"
        )
    return x.with_shape(x.shape[:-1])


class CrossEntropyOp(Op, name="cross_entropy"):
    """Loss of each row of logits against an integer label: loss = ln sum e^x - x[label], over the
    last axis.

    The second result is ln sum e^x, kept for the gradient. Labels outside [0, classes) count as the
    nearest one inside.
    Example: `%loss, %lse = "gradopt.cross_entropy"(%x, %labels)
    : (tensor<8x10xf32>, tensor<8xi32>) -> (tensor<8xf32>, tensor<8xf32>)`
    """

    x: Operand
    labels: Operand
    loss: Result
    lse: Result

    @classmethod
    def infer(cls, x: TensorSpec, labels: TensorSpec) -> tuple[TensorSpec, TensorSpec]:
        row = check_labels(cls, x, labels)
        return row, row

    @staticmethod
    def reference(x: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        lse = LogsumexpOp.reference(x, (x.ndim - 1,))
        labels = np.clip(labels.astype(np.int64), 0, x.shape[-1] - 1)
        return lse - np.take_along_axis(x, labels[..., None], -1)[..., 0], lse

    @staticmethod
    def decompose(x: Any, labels: Any) -> tuple[Any, Any]:
        """The logarithm of the sum, less the label's logit"""
        wide = as_wide(x)
        lse = logsumexp(wide, -1)
        place = as_index(labels).clip(min=0).expand_dims(-1)
        loss = lse - take_along_axis(wide, place, -1).squeeze(-1)
        return loss.astype(x.dtype), lse.astype(x.dtype)

    @in_float32
    def vjp(self, ct: Any, ct_lse: Any) -> list[Any]:
        """dx = ct * (softmax(x) - onehot(labels)) + ct_lse * softmax(x)"""
        x, last = self.x, (self.x.ndim - 1,)
        p = exp(x - expand(self.lse, x, last))
        dx = None
        if ct is not None:
            classes = x.shape[-1]
            if classes is None:
                raise self.error("a known number of classes for a gradient", x.spec)
            hot = one_hot(as_index(self.labels).clip(0, classes - 1), classes, x.dtype)
            dx = mul_no_nan(expand(ct, x, last), p - hot)
        if ct_lse is not None:
            more = mul_no_nan(expand(ct_lse, x, last), p)
            dx = more if dx is None else dx + more
        return [dx, None]


class RowLoss(Op):
    """One loss a row of classes, against an integer label, with rows that do not count and weights
    of classes.
    """

    x: Operand
    labels: Operand
    weight: Operands
    loss: Result
    ignored: Ints = ()

    @classmethod
    def check_rows(
        cls, x: TensorSpec, labels: TensorSpec, weight: Sequence[TensorSpec]
    ) -> TensorSpec:
        """The type of the loss."""
        row = check_labels(cls, x, labels)
        if x.shape[-1] is None:
            raise cls.error("a known number of classes", x)
        if len(weight) > 1 or any(w != x.with_shape(x.shape[-1:]) for w in weight):
            expected = f"at most one weight of type {x.with_shape(x.shape[-1:])}"
            raise cls.error(expected, " and ".join(map(str, weight)))
        return row


class LabelCrossEntropyOp(RowLoss, name="label_cross_entropy"):
    """Cross-entropy of each row against an integer label with options: loss = w[label] (1 - s) (lse
    - x[label]) + s / classes * sum of w (lse - x), lse = ln sum e^x.

    s is `smoothing`, w the weights of the classes (1 if none are given). Rows whose label is in
    `ignored` have loss 0 and gradient 0, whatever is in them; other labels outside [0, classes)
    count as the nearest one inside.
    Example: `%loss = "gradopt.label_cross_entropy"(%x, %labels) {ignored = array<i64: -100>,
    smoothing = 0.1 : f64} : (tensor<8x10xf32>, tensor<8xi32>) -> tensor<8xf32>`
    """

    smoothing: Float = 0.0

    @classmethod
    def infer(
        cls,
        x: TensorSpec,
        labels: TensorSpec,
        *weight: TensorSpec,
        ignored: tuple[int, ...],
        smoothing: float,
    ) -> TensorSpec:
        if not 0 <= smoothing <= 1:
            raise cls.error("smoothing in [0, 1]", smoothing)
        return cls.check_rows(x, labels, weight)

    @staticmethod
    def reference(
        x: np.ndarray,
        labels: np.ndarray,
        *weight: np.ndarray,
        ignored: tuple[int, ...],
        smoothing: float,
    ) -> np.ndarray:
        classes = x.shape[-1]
        w = weight[0] if weight else np.ones(classes, x.dtype)
        places = np.clip(labels.astype(np.int64), 0, classes - 1)
        terms = -scipy.special.log_softmax(x, axis=-1) if x.size else x
        own = w[places] * np.take_along_axis(terms, places[..., None], -1)[..., 0]
        loss = (1 - smoothing) * own
        if smoothing:
            loss = loss + smoothing / classes * (w * terms).sum(-1)
        return np.where(np.isin(labels, ignored), 0, loss)

    @staticmethod
    @in_wide
    def decompose(
        x: Any, labels: Any, *weight: Any, ignored: tuple[int, ...], smoothing: float
    ) -> Any:
        loss, lse = CrossEntropyOp.emit(x, labels)
        if weight:
            loss = loss * _weight_of(labels, weight[0])
        if smoothing:
            terms = expand(lse, x, (x.ndim - 1,)) - x
            terms = terms * weight[0] if weight else terms
            loss = loss * (1 - smoothing) + terms.mean(-1) * smoothing
        return _counted(loss, labels, ignored)


class NllLossOp(RowLoss, name="nll_loss"):
    """Negative log-likelihood of each row's label: loss = -w[label] x[label], x log-probabilities
    along the last axis.

    Rows whose label is in `ignored` have loss 0 and gradient 0; other labels outside [0, classes)
    count as the nearest one inside.
    Example: `%loss = "gradopt.nll_loss"(%x, %labels) : (tensor<8x10xf32>, tensor<8xi32>) ->
    tensor<8xf32>`
    """

    @classmethod
    def infer(
        cls, x: TensorSpec, labels: TensorSpec, *weight: TensorSpec, ignored: tuple[int, ...]
    ) -> TensorSpec:
        return cls.check_rows(x, labels, weight)

    @staticmethod
    def reference(
        x: np.ndarray, labels: np.ndarray, *weight: np.ndarray, ignored: tuple[int, ...]
    ) -> np.ndarray:
        places = np.clip(labels.astype(np.int64), 0, x.shape[-1] - 1)
        loss = -np.take_along_axis(x, places[..., None], -1)[..., 0]
        loss = loss * weight[0][places] if weight else loss
        return np.where(np.isin(labels, ignored), 0, loss)

    @staticmethod
    @in_wide
    def decompose(x: Any, labels: Any, *weight: Any, ignored: tuple[int, ...]) -> Any:
        classes = x.shape[-1]
        hot = one_hot(as_index(labels).clip(0, classes - 1), classes, bool)
        loss = -select(hot, x, 0).sum(-1)
        loss = loss * _weight_of(labels, weight[0]) if weight else loss
        return _counted(loss, labels, ignored)


def _weight_of(labels: Any, weight: Any) -> Any:
    """The weight of each label's class."""
    return take(weight, as_index(labels).clip(0, weight.shape[0] - 1))


def _counted(loss: Any, labels: Any, ignored: tuple[int, ...]) -> Any:
    """`loss`, 0 where the label is ignored."""
    for label in ignored:
        loss = select(as_index(labels).equal(label), 0, loss)
    return loss


class SoftCrossEntropyOp(Op, name="soft_cross_entropy"):
    """Cross-entropy of each row of logits against probabilities: loss = -sum of t * log softmax(x)
    over the last axis; what has no probability adds 0, even at a logit of -inf.

    Example: `%loss = "gradopt.soft_cross_entropy"(%x, %t) : (tensor<8x10xf32>, tensor<8x10xf32>) ->
    tensor<8xf32>`
    """

    x: Operand
    target: Operand
    loss: Result

    @classmethod
    def infer(cls, x: TensorSpec, target: TensorSpec) -> TensorSpec:
        check_float(cls, x)
        if x.rank < 1 or x.shape[-1] == 0 or x != target:
            raise cls.error(
                "logits and probabilities of one type, with at least one class on the last axis",
                f"{x} and {target}",
            )
        return x.with_shape(x.shape[:-1])

    @staticmethod
    def reference(x: np.ndarray, target: np.ndarray) -> np.ndarray:
        logs = scipy.special.log_softmax(x, axis=-1) if x.size else x
        return -np.where(target == 0, 0, target * logs).sum(-1)

    @staticmethod
    @in_wide
    def decompose(x: Any, target: Any) -> Any:
        return -mul_no_nan(target, LogSoftmaxOp.emit(x, axis=x.ndim - 1)).sum(-1)


# --- functions ------------------------------------------------------------------------------------


def cross_entropy(
    logits: Any,
    labels: Any,
    ignore_index: int | Sequence[int] = (),
    label_smoothing: float = 0.0,
    weight: Any = None,
    name: str | None = None,
) -> Any:
    """Softmax cross-entropy of each row of `logits` (..., classes); one loss a row.

    `labels` are integers (...), or probabilities of the shape of `logits`. Rows with the label
    `ignore_index` (or one of several) have loss 0 and gradient 0: divide the sum by the number of
    the others. `label_smoothing` s gives every class s / classes of the label's probability.
    `weight`, a number a class, scales each class' term.
    """
    logits, labels = as_float(logits), as_tensor(labels)
    ignored = (ignore_index,) if isinstance(ignore_index, int) else tuple(ignore_index)
    weights = [] if weight is None else [as_tensor(weight).astype(logits.dtype)]
    if not is_integer(labels.dtype):
        if ignored:
            raise SoftCrossEntropyOp.error("integer labels to ignore some", labels.spec)
        target = labels.astype(logits.dtype)
        if label_smoothing:
            if not logits.ndim or (classes := logits.shape[-1]) is None:
                raise SoftCrossEntropyOp.error("a known number of classes to smooth", logits.spec)
            target = target * (1 - label_smoothing) + label_smoothing / classes
        target = target * weights[0] if weights else target
        return SoftCrossEntropyOp.emit(logits, target, name=name)
    if not (ignored or label_smoothing or weights):
        return CrossEntropyOp.emit(logits, labels, name=name)[0]
    return LabelCrossEntropyOp.emit(
        logits, labels, *weights, ignored=ignored, smoothing=label_smoothing, name=name
    )


def nll_loss(
    log_probabilities: Any,
    labels: Any,
    ignore_index: int | Sequence[int] = (),
    weight: Any = None,
) -> Any:
    """Minus the log-probability, along the last axis, of each row's integer label; see
    `cross_entropy` for the options.
    """
    x = as_float(log_probabilities)
    ignored = (ignore_index,) if isinstance(ignore_index, int) else tuple(ignore_index)
    weights = [] if weight is None else [as_tensor(weight).astype(x.dtype)]
    return NllLossOp.emit(x, as_tensor(labels), *weights, ignored=ignored)
