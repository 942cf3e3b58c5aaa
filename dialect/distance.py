# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Losses of a prediction against a target of its shape, one number an element or, of vectors, one
a vector; the reduction (`.mean()`, `.sum()`) is the caller's.
"""

import math
from typing import Any

import numpy as np

from . import arithmetic, reduction, transcendental
from .activation import relu, sigmoid, softplus
from .base import Bool, Float, Int, Op, Operand, Operands, Result, check_float, function, in_wide
from .elementwise import (
    FLOAT,
    Elementwise,
    broadcast_together,
    mul_no_nan,
    promote_together,
)
from .later import scipy
from .logic import select
from .shape import normalize_axes
from .transcendental import exp, log, log1p
from .types import TensorSpec

HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


class ElementLoss(Elementwise):
    """The loss of each element of a prediction against a target."""

    KIND = FLOAT
    prediction: Operand
    target: Operand
    loss: Result


class MseOp(ElementLoss, name="mse"):
    """Squared error: loss = (prediction - target)^2.

    Example: `%loss = "gradopt.mse"(%p, %t) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>`
    """

    @staticmethod
    def reference(prediction: np.ndarray, target: np.ndarray) -> np.ndarray:
        return (prediction - target) ** 2

    @staticmethod
    @in_wide
    def decompose(prediction: Any, target: Any) -> Any:
        return (prediction - target).square()


class MaeOp(ElementLoss, name="mae"):
    """Absolute error: loss = |prediction - target|.

    Example: `%loss = "gradopt.mae"(%p, %t) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>`
    """

    @staticmethod
    def reference(prediction: np.ndarray, target: np.ndarray) -> np.ndarray:
        return np.abs(prediction - target)

    @staticmethod
    @in_wide
    def decompose(prediction: Any, target: Any) -> Any:
        return arithmetic.abs(prediction - target)


class HuberOp(ElementLoss, name="huber"):
    """Squared error near 0, absolute error far from it (Huber, 1964), with d = prediction - target:
    loss = d^2 / 2 where |d| <= delta, else delta (|d| - delta / 2).

    Example: `%loss = "gradopt.huber"(%p, %t) {delta = 1.0 : f64} : (tensor<4xf32>, tensor<4xf32>)
    -> tensor<4xf32>`
    """

    delta: Float = 1.0

    @classmethod
    def infer(cls, prediction: TensorSpec, target: TensorSpec, delta: float) -> TensorSpec:
        if not delta > 0:
            raise cls.error("a positive delta", delta)
        return cls.check(prediction, target)

    @staticmethod
    def reference(prediction: np.ndarray, target: np.ndarray, delta: float) -> np.ndarray:
        d = np.abs(prediction - target)
        return np.where(d <= delta, d**2 / 2, delta * (d - delta / 2))

    @staticmethod
    @in_wide
    def decompose(prediction: Any, target: Any, delta: float) -> Any:
        """c (d - c / 2), c = d limited to [-delta, delta], whose slope is c"""
        d = prediction - target
        c = d.clip(-delta, delta)
        return c * (d - c * 0.5)


class SmoothL1Op(ElementLoss, name="smooth_l1"):
    """Absolute error, smooth near 0, with d = prediction - target: loss = d^2 / (2 beta) where |d|
    < beta, else |d| - beta / 2; that is huber / delta.

    Example: `%loss = "gradopt.smooth_l1"(%p, %t) {beta = 1.0 : f64} : (tensor<4xf32>,
    tensor<4xf32>) -> tensor<4xf32>`
    """

    beta: Float = 1.0

    @classmethod
    def infer(cls, prediction: TensorSpec, target: TensorSpec, beta: float) -> TensorSpec:
        if not beta > 0:
            raise cls.error("a positive beta", beta, "use mae for 0")
        return cls.check(prediction, target)

    @staticmethod
    def reference(prediction: np.ndarray, target: np.ndarray, beta: float) -> np.ndarray:
        d = np.abs(prediction - target)
        return np.where(d < beta, d**2 / (2 * beta), d - beta / 2)

    @staticmethod
    @in_wide
    def decompose(prediction: Any, target: Any, beta: float) -> Any:
        """c (d - beta c / 2), c = d / beta limited to [-1, 1]"""
        d = prediction - target
        c = (d / beta).clip(-1, 1)
        return c * (d - c * (beta / 2))


class BceOp(ElementLoss, name="bce"):
    """Binary cross-entropy of probabilities: loss = -t ln p - (1 - t) ln(1 - p), with 0 ln 0 = 0.

    Example: `%loss = "gradopt.bce"(%p, %t) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>`
    """

    @staticmethod
    def reference(prediction: np.ndarray, target: np.ndarray) -> np.ndarray:
        return -scipy.special.xlogy(target, prediction) - scipy.special.xlog1py(
            1 - target, -prediction
        )

    @staticmethod
    @in_wide
    def decompose(prediction: Any, target: Any) -> Any:
        """A side whose share of the target is 0 counts nothing, in the gradient by p too"""
        inside = mul_no_nan(target, log(prediction))
        return -(inside + mul_no_nan(1 - target, log1p(-prediction)))


class BceWithLogitsOp(ElementLoss, name="bce_with_logits"):
    """Binary cross-entropy of sigmoid(x): loss = ln(1 + e^x) - x t, without overflow; with a weight
    w of positive examples (1 - t) ln(1 + e^x) + w t ln(1 + e^-x).

    Example: `%loss = "gradopt.bce_with_logits"(%x, %t) : (tensor<4xf32>, tensor<4xf32>) ->
    tensor<4xf32>`
    """

    positive_weight: Operands

    @classmethod
    def infer(cls, *operands: TensorSpec) -> TensorSpec:
        if len(operands) > 3:
            raise cls.error("at most one weight", len(operands) - 2)
        return cls.check(*operands)

    @staticmethod
    def reference(prediction: np.ndarray, target: np.ndarray, *weight: np.ndarray) -> np.ndarray:
        positive = target * np.logaddexp(0, -prediction)
        positive = positive * weight[0] if weight else positive
        return (1 - target) * np.logaddexp(0, prediction) + positive

    @staticmethod
    @in_wide
    def decompose(prediction: Any, target: Any, *weight: Any) -> Any:
        if not weight:
            return softplus(prediction) - prediction * target
        positive = target * weight[0] * softplus(-prediction)
        return (1 - target) * softplus(prediction) + positive


class KlDivOp(ElementLoss, name="kl_div"):
    """Terms of the Kullback-Leibler divergence of a prediction given as log-probabilities: loss = t
    (ln t - x), 0 where t = 0; with log_target e^t (t - x).

    Example: `%loss = "gradopt.kl_div"(%x, %t) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>`
    """

    log_target: Bool = False

    @classmethod
    def infer(cls, prediction: TensorSpec, target: TensorSpec, log_target: bool) -> TensorSpec:
        return cls.check(prediction, target)

    @staticmethod
    def reference(prediction: np.ndarray, target: np.ndarray, log_target: bool) -> np.ndarray:
        share, logs = (np.exp(target), target) if log_target else (target, np.log(target))
        return np.where(share == 0, 0, share * (logs - prediction))

    @staticmethod
    @in_wide
    def decompose(prediction: Any, target: Any, log_target: bool) -> Any:
        if log_target:
            return mul_no_nan(exp(target), target - prediction)
        return mul_no_nan(target, log(target) - prediction)


class HingeOp(ElementLoss, name="hinge"):
    """Hinge loss against targets -1 and 1: loss = max(0, 1 - t x), with slope 0 at the kink.

    Example: `%loss = "gradopt.hinge"(%x, %t) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>`
    """

    @staticmethod
    def reference(prediction: np.ndarray, target: np.ndarray) -> np.ndarray:
        return np.maximum(0, 1 - target * prediction)

    @staticmethod
    @in_wide
    def decompose(prediction: Any, target: Any) -> Any:
        return relu(1 - target * prediction)


class PoissonNllOp(ElementLoss, name="poisson_nll"):
    """Negative log-likelihood of Poisson counts, but for a term of the target: loss = e^x - t x,
    where x is the logarithm of the rate; without log_input x - t ln(x + eps), where x is the rate.

    With `full` Stirling's approximation of ln t! is added for t > 1: t ln t - t + ln(2 pi t) / 2.
    Example: `%loss = "gradopt.poisson_nll"(%x, %t) : (tensor<4xf32>, tensor<4xf32>) ->
    tensor<4xf32>`
    """

    log_input: Bool = True
    full: Bool = False
    eps: Float = 1e-8

    @classmethod
    def infer(
        cls, prediction: TensorSpec, target: TensorSpec, log_input: bool, full: bool, eps: float
    ) -> TensorSpec:
        return cls.check(prediction, target)

    @staticmethod
    def reference(
        prediction: np.ndarray, target: np.ndarray, log_input: bool, full: bool, eps: float
    ) -> np.ndarray:
        x, t = prediction, target
        loss = np.exp(x) - t * x if log_input else x - t * np.log(x + eps)
        stirling = t * np.log(t) - t + 0.5 * np.log(2 * np.pi * t)
        return loss + np.where(t > 1, stirling, 0) if full else loss

    @staticmethod
    @in_wide
    def decompose(prediction: Any, target: Any, log_input: bool, full: bool, eps: float) -> Any:
        x, t = prediction, target
        loss = exp(x) - t * x if log_input else x - t * log(x + eps)
        if not full:
            return loss
        logs = log(select(t > 1, t, 1))
        return loss + select(t > 1, t * logs - t + 0.5 * logs + HALF_LOG_TWO_PI, 0)


class GaussianNllOp(ElementLoss, name="gaussian_nll"):
    """Negative log-likelihood of a normal distribution, but for a constant: loss = (ln v + (x -
    t)^2 / v) / 2 with v = max(var, eps); with `full` ln(2 pi) / 2 more.

    Example: `%loss = "gradopt.gaussian_nll"(%x, %t, %v) : (tensor<4xf32>, tensor<4xf32>,
    tensor<4xf32>) -> tensor<4xf32>`
    """

    var: Operand
    full: Bool = False
    eps: Float = 1e-6

    @classmethod
    def infer(
        cls,
        prediction: TensorSpec,
        target: TensorSpec,
        var: TensorSpec,
        full: bool,
        eps: float,
    ) -> TensorSpec:
        if not eps > 0:
            raise cls.error("a positive eps", eps)
        return cls.check(prediction, target, var)

    @staticmethod
    def reference(
        prediction: np.ndarray, target: np.ndarray, var: np.ndarray, full: bool, eps: float
    ) -> np.ndarray:
        v = np.maximum(var, eps)
        loss = 0.5 * (np.log(v) + (prediction - target) ** 2 / v)
        return loss + HALF_LOG_TWO_PI if full else loss

    @staticmethod
    @in_wide
    def decompose(prediction: Any, target: Any, var: Any, full: bool, eps: float) -> Any:
        v = var.clip(min=eps)
        loss = 0.5 * (log(v) + (prediction - target).square() / v)
        return loss + HALF_LOG_TWO_PI if full else loss


class FocalOp(ElementLoss, name="focal"):
    """Focal loss of sigmoid(x) (Lin et al., 2017): loss = a (1 - q)^gamma * bce, where q is the
    probability given to the target, a = alpha for t = 1 and 1 - alpha for t = 0.

    A negative alpha leaves a out.
    Example: `%loss = "gradopt.focal"(%x, %t) {alpha = 0.25 : f64, gamma = 2.0 : f64} :
    (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>`
    """

    alpha: Float = 0.25
    gamma: Float = 2.0

    @classmethod
    def infer(
        cls, prediction: TensorSpec, target: TensorSpec, alpha: float, gamma: float
    ) -> TensorSpec:
        if alpha > 1 or gamma < 0:
            raise cls.error("alpha of at most 1 and gamma of at least 0", f"{alpha} and {gamma}")
        return cls.check(prediction, target)

    @staticmethod
    def reference(
        prediction: np.ndarray, target: np.ndarray, alpha: float, gamma: float
    ) -> np.ndarray:
        x, t = prediction, target
        p = scipy.special.expit(x)
        q = p * t + (1 - p) * (1 - t)
        loss = (np.logaddexp(0, x) - x * t) * (1 - q) ** gamma
        return loss * (alpha * t + (1 - alpha) * (1 - t)) if alpha >= 0 else loss

    @staticmethod
    @in_wide
    def decompose(prediction: Any, target: Any, alpha: float, gamma: float) -> Any:
        x, t = prediction, target
        missed = sigmoid(x) * (1 - t) + sigmoid(-x) * t
        loss = BceWithLogitsOp.emit(x, t)
        if gamma:
            loss = loss * (missed.square() if gamma == 2 else transcendental.pow(missed, gamma))
        return loss * (alpha * t + (1 - alpha) * (1 - t)) if alpha >= 0 else loss


# --- vectors --------------------------------------------------------------------------------------


class CosineSimilarityOp(Op, name="cosine_similarity"):
    """Cosine of the angle between vectors along an axis: y = sum a b / (|a| |b|); 0, with gradient
    0, where one of them is 0.

    Example: `%y = "gradopt.cosine_similarity"(%a, %b) {axis = 1 : i64} : (tensor<8x4xf32>,
    tensor<8x4xf32>) -> tensor<8xf32>`
    """

    a: Operand
    b: Operand
    axis: Int
    y: Result

    @classmethod
    def infer(cls, a: TensorSpec, b: TensorSpec, axis: int) -> TensorSpec:
        check_float(cls, a)
        if a != b:
            raise cls.error("operands of one type", f"{a} and {b}")
        if not 0 <= axis < a.rank:
            raise cls.error(f"an axis of a tensor of rank {a.rank}", axis)
        return a.with_shape(n for i, n in enumerate(a.shape) if i != axis)

    @staticmethod
    def reference(a: np.ndarray, b: np.ndarray, axis: int) -> np.ndarray:
        lengths = np.sqrt((a**2).sum(axis)) * np.sqrt((b**2).sum(axis))
        return np.where(lengths == 0, 0, (a * b).sum(axis) / np.where(lengths == 0, 1, lengths))

    @staticmethod
    @in_wide
    def decompose(a: Any, b: Any, axis: int) -> Any:
        """The product of the inverse lengths, 0 for a length of 0, stops the gradient there"""
        inverse = [select(n.equal(0), 0, 1 / n) for n in (reduction.norm(v, axis) for v in (a, b))]
        return (a * b).sum(axis) * inverse[0] * inverse[1]


class TripletMarginOp(Op, name="triplet_margin"):
    """How much nearer, by a margin, each anchor should be to its positive than to its negative
    example: loss = max(0, |a - p| - |a - n| + margin), lengths along the last axis.

    Example: `%loss = "gradopt.triplet_margin"(%a, %p, %n) {margin = 1.0 : f64} : (tensor<8x4xf32>,
    tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8xf32>`
    """

    anchor: Operand
    positive: Operand
    negative: Operand
    margin: Float = 1.0
    loss: Result

    @classmethod
    def infer(
        cls, anchor: TensorSpec, positive: TensorSpec, negative: TensorSpec, margin: float
    ) -> TensorSpec:
        check_float(cls, anchor)
        if not anchor == positive == negative or not anchor.rank:
            expected = "operands of one type, with at least one axis"
            raise cls.error(expected, f"{anchor}, {positive} and {negative}")
        return anchor.with_shape(anchor.shape[:-1])

    @staticmethod
    def reference(
        anchor: np.ndarray, positive: np.ndarray, negative: np.ndarray, margin: float
    ) -> np.ndarray:
        near, far = (np.sqrt(((anchor - v) ** 2).sum(-1)) for v in (positive, negative))
        return np.maximum(0, near - far + margin)

    @staticmethod
    @in_wide
    def decompose(anchor: Any, positive: Any, negative: Any, margin: float) -> Any:
        near, far = (reduction.norm(anchor - v, -1) for v in (positive, negative))
        return relu(near - far + margin)


# --- functions ------------------------------------------------------------------------------------


mse, mae, huber, smooth_l1, bce, kl_div, hinge, poisson_nll, gaussian_nll, focal = map(
    function,
    (
        MseOp,
        MaeOp,
        HuberOp,
        SmoothL1Op,
        BceOp,
        KlDivOp,
        HingeOp,
        PoissonNllOp,
        GaussianNllOp,
        FocalOp,
    ),
)


def bce_with_logits(logits: Any, targets: Any, pos_weight: Any = None) -> Any:
    """Binary cross-entropy of sigmoid(logits) against targets in [0, 1], elementwise; the term of
    positive targets is scaled by `pos_weight`, which is broadcast.
    """
    return BceWithLogitsOp.build(logits, targets, *([] if pos_weight is None else [pos_weight]))


def cosine_similarity(a: Any, b: Any, axis: int = -1) -> Any:
    """Cosine of the angle between vectors along `axis`; 0, with gradient 0, for a vector of 0."""
    a, b = _together(CosineSimilarityOp, a, b)
    return CosineSimilarityOp.emit(a, b, axis=normalize_axes(CosineSimilarityOp, axis, a.ndim)[0])


def triplet_margin(anchor: Any, positive: Any, negative: Any, margin: float = 1.0) -> Any:
    """max(0, |anchor - positive| - |anchor - negative| + margin), lengths along the last axis."""
    tensors = _together(TripletMarginOp, anchor, positive, negative)
    return TripletMarginOp.emit(*tensors, margin=margin)


def _together(op_class: type[Op], *tensors: Any) -> list[Any]:
    """Tensors promoted to one floating-point type and broadcast to one shape."""
    return broadcast_together(op_class, *promote_together(FLOAT, tensors))
