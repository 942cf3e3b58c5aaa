# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""`go.optim`: one step of an optimizer for one parameter, as a function of the parameter, its
gradient, the slots (what the optimizer remembers) and the learning rate; and clipping of gradients.

An update returns the new parameter, then the new slots. Slots begin as zeros of the parameter's
shape. Parameters in 16 bits are updated in float32 and rounded once; slots may have another
floating-point type, float32 is good for them. Learning rate and step are numbers or tensors of rank
0, so that a schedule needs no recompilation.
"""

import math
from typing import Any

import numpy as np

from . import arithmetic, trees
from .base import Bool, Float, Op, Operand, Result, as_wide, check_float
from .control import optimization_barrier
from .creation import constant
from .elementwise import as_tensor
from .logic import select
from .transcendental import expm1, sqrt
from .types import TensorSpec, float32, is_float, is_integer, is_narrow, promote


class Update(Op):
    """A parameter and its gradient, of one type, slots of their shape and the learning rate."""

    UPDATES = True
    param: Operand
    grad: Operand
    lr: Operand

    @classmethod
    def check(cls, param: TensorSpec, grad: TensorSpec, lr: TensorSpec, *slots: TensorSpec) -> None:
        check_float(cls, param)
        if grad != param:
            raise cls.error(f"a gradient of type {param}", grad)
        if lr.shape or not is_float(lr.dtype):
            raise cls.error("a learning rate that is one floating-point number", lr)
        for slot in slots:
            if slot.shape != param.shape or not is_float(slot.dtype):
                raise cls.error(f"slots of floats of shape {param.shape}", slot)

    @classmethod
    def check_shares(cls, **shares: float) -> None:
        for name, share in shares.items():
            if not 0 <= share < 1:
                raise cls.error(f"{name} in [0, 1)", share)


def decayed(param: Any, grad: Any, weight_decay: float) -> Any:
    """The gradient with that of weight_decay / 2 * param^2."""
    return grad + param * weight_decay if weight_decay else grad


def alike(param: Any, *others: Any) -> tuple[Any, ...]:
    """All in the parameter's type, float32 for 16 bits."""
    wide = as_wide(param)
    return wide, *(o.astype(wide.dtype) for o in others)


def alike_apart(param: Any, grad: Any, *others: Any) -> tuple[Any, ...]:
    """The same, with the gradient kept apart from what makes it: IREE would fuse several results of
    the update behind the product that the gradient mostly is, and pack all that they read like it,
    which is slower, or fails ("large vector sizes").
    """
    return alike(param, optimization_barrier(grad), *others)


class SgdUpdateOp(Update, name="sgd_update"):
    """Gradient descent: param' = param - lr (grad + weight_decay param).

    Example: `%p1 = "gradopt.sgd_update"(%p, %g, %lr) : (tensor<4xf32>, tensor<4xf32>, tensor<f32>)
    -> tensor<4xf32>`
    """

    weight_decay: Float = 0.0
    new_param: Result

    @classmethod
    def infer(
        cls, param: TensorSpec, grad: TensorSpec, lr: TensorSpec, weight_decay: float
    ) -> TensorSpec:
        cls.check(param, grad, lr)
        return param

    @staticmethod
    def reference(
        param: np.ndarray, grad: np.ndarray, lr: np.ndarray, weight_decay: float
    ) -> np.ndarray:
        return param - lr * (grad + weight_decay * param)

    @staticmethod
    def decompose(param: Any, grad: Any, lr: Any, weight_decay: float) -> Any:
        p, g, rate = alike(param, grad, lr)
        return (p - rate * decayed(p, g, weight_decay)).astype(param.dtype)


class MomentumUpdateOp(Update, name="momentum_update"):
    """Gradient descent with momentum: m' = momentum m + g, g = grad + weight_decay param; param' =
    param - lr m', with `nesterov` param - lr (g + momentum m').

    Example: `%p1, %m1 = "gradopt.momentum_update"(%p, %g, %lr, %m) {momentum = 0.9 : f64} :
    (tensor<4xf32>, tensor<4xf32>, tensor<f32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)`
    """

    m: Operand
    momentum: Float = 0.9
    nesterov: Bool = False
    weight_decay: Float = 0.0
    new_param: Result
    new_m: Result

    @classmethod
    def infer(
        cls,
        param: TensorSpec,
        grad: TensorSpec,
        lr: TensorSpec,
        m: TensorSpec,
        momentum: float,
        nesterov: bool,
        weight_decay: float,
    ) -> tuple[TensorSpec, ...]:
        cls.check(param, grad, lr, m)
        return param, m

    @staticmethod
    def reference(
        param: np.ndarray,
        grad: np.ndarray,
        lr: np.ndarray,
        m: np.ndarray,
        momentum: float,
        nesterov: bool,
        weight_decay: float,
    ) -> tuple[np.ndarray, ...]:
        g = grad + weight_decay * param
        new = momentum * m + g
        return param - lr * (g + momentum * new if nesterov else new), new

    @staticmethod
    def decompose(
        param: Any,
        grad: Any,
        lr: Any,
        m: Any,
        momentum: float,
        nesterov: bool,
        weight_decay: float,
    ) -> tuple[Any, ...]:
        p, g, rate, old = alike_apart(param, grad, lr, m)
        g = decayed(p, g, weight_decay)
        new = old * momentum + g
        step = g + new * momentum if nesterov else new
        return (p - rate * step).astype(param.dtype), new.astype(m.dtype)


class AdamUpdateOp(Update, name="adam_update"):
    """Adam (Kingma and Ba, 2015): m' = beta1 m + (1 - beta1) g, v' = beta2 v + (1 - beta2) g^2,
    param' = param - lr (a / (sqrt(b) + eps) + weight_decay param), a = m' / (1 - beta1^step), b =
    v' / (1 - beta2^step).

    g is the gradient (AdamW, Loshchilov and Hutter, 2019); without `decoupled` it has weight_decay
    param added, and the parameter is not decayed apart. `step` counts from 1.
    Example: `%p1, %m1, %v1 = "gradopt.adam_update"(%p, %g, %lr, %m, %v, %step) : (tensor<4xf32>,
    tensor<4xf32>, tensor<f32>, tensor<4xf32>, tensor<4xf32>, tensor<i32>) -> (tensor<4xf32>,
    tensor<4xf32>, tensor<4xf32>)`
    """

    m: Operand
    v: Operand
    step: Operand
    beta1: Float = 0.9
    beta2: Float = 0.999
    eps: Float = 1e-8
    weight_decay: Float = 0.0
    decoupled: Bool = True
    new_param: Result
    new_m: Result
    new_v: Result

    @classmethod
    def infer(
        cls,
        param: TensorSpec,
        grad: TensorSpec,
        lr: TensorSpec,
        m: TensorSpec,
        v: TensorSpec,
        step: TensorSpec,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
        decoupled: bool,
    ) -> tuple[TensorSpec, ...]:
        cls.check(param, grad, lr, m, v)
        cls.check_shares(beta1=beta1, beta2=beta2)
        if step.shape or not is_integer(step.dtype):
            raise cls.error("a step that is one integer, counted from 1", step)
        return param, m, v

    @staticmethod
    def reference(
        param: np.ndarray,
        grad: np.ndarray,
        lr: np.ndarray,
        m: np.ndarray,
        v: np.ndarray,
        step: np.ndarray,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
        decoupled: bool,
    ) -> tuple[np.ndarray, ...]:
        t = float(step)
        g = grad if decoupled else grad + weight_decay * param
        new_m = beta1 * m + (1 - beta1) * g
        new_v = beta2 * v + (1 - beta2) * g**2
        a, b = new_m / (1 - beta1**t), new_v / (1 - beta2**t)
        move = a / (np.sqrt(b) + eps)
        move = move + weight_decay * param if decoupled else move
        return param - lr * move, new_m, new_v

    @staticmethod
    def decompose(
        param: Any,
        grad: Any,
        lr: Any,
        m: Any,
        v: Any,
        step: Any,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
        decoupled: bool,
    ) -> tuple[Any, ...]:
        p, g, rate, old_m, old_v, t = alike_apart(param, grad, lr, m, v, step)
        g = g if decoupled else decayed(p, g, weight_decay)
        new_m = old_m * beta1 + g * (1 - beta1)
        new_v = old_v * beta2 + g.square() * (1 - beta2)
        move = new_m * _correction(t, beta1) / (sqrt(new_v * _correction(t, beta2)) + eps)
        move = decayed(p, move, weight_decay) if decoupled else move
        return (p - rate * move).astype(param.dtype), new_m.astype(m.dtype), new_v.astype(v.dtype)


def _correction(step: Any, beta: float) -> Any:
    """1 / (1 - beta^step), accurate where beta^step is close to 1."""
    return -1 / expm1(step * math.log(beta)) if beta else 1.0


class RmspropUpdateOp(Update, name="rmsprop_update"):
    """RMSProp (Tieleman and Hinton, 2012): v' = decay v + (1 - decay) g^2, param' = param - lr g /
    (sqrt(v') + eps), g = grad + weight_decay param.

    Example: `%p1, %v1 = "gradopt.rmsprop_update"(%p, %g, %lr, %v) : (tensor<4xf32>, tensor<4xf32>,
    tensor<f32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)`
    """

    v: Operand
    decay: Float = 0.99
    eps: Float = 1e-8
    weight_decay: Float = 0.0
    new_param: Result
    new_v: Result

    @classmethod
    def infer(
        cls,
        param: TensorSpec,
        grad: TensorSpec,
        lr: TensorSpec,
        v: TensorSpec,
        decay: float,
        eps: float,
        weight_decay: float,
    ) -> tuple[TensorSpec, ...]:
        cls.check(param, grad, lr, v)
        cls.check_shares(decay=decay)
        return param, v

    @staticmethod
    def reference(
        param: np.ndarray,
        grad: np.ndarray,
        lr: np.ndarray,
        v: np.ndarray,
        decay: float,
        eps: float,
        weight_decay: float,
    ) -> tuple[np.ndarray, ...]:
        g = grad + weight_decay * param
        new = decay * v + (1 - decay) * g**2
        return param - lr * g / (np.sqrt(new) + eps), new

    @staticmethod
    def decompose(
        param: Any, grad: Any, lr: Any, v: Any, decay: float, eps: float, weight_decay: float
    ) -> tuple[Any, ...]:
        p, g, rate, old = alike_apart(param, grad, lr, v)
        g = decayed(p, g, weight_decay)
        new = old * decay + g.square() * (1 - decay)
        return (p - rate * (g / (sqrt(new) + eps))).astype(param.dtype), new.astype(v.dtype)


class AdagradUpdateOp(Update, name="adagrad_update"):
    """AdaGrad (Duchi et al., 2011): s' = s + g^2, param' = param - lr g / (sqrt(s') + eps), g =
    grad + weight_decay param.

    Example: `%p1, %s1 = "gradopt.adagrad_update"(%p, %g, %lr, %s) : (tensor<4xf32>, tensor<4xf32>,
    tensor<f32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)`
    """

    s: Operand
    eps: Float = 1e-10
    weight_decay: Float = 0.0
    new_param: Result
    new_s: Result

    @classmethod
    def infer(
        cls,
        param: TensorSpec,
        grad: TensorSpec,
        lr: TensorSpec,
        s: TensorSpec,
        eps: float,
        weight_decay: float,
    ) -> tuple[TensorSpec, ...]:
        cls.check(param, grad, lr, s)
        return param, s

    @staticmethod
    def reference(
        param: np.ndarray,
        grad: np.ndarray,
        lr: np.ndarray,
        s: np.ndarray,
        eps: float,
        weight_decay: float,
    ) -> tuple[np.ndarray, ...]:
        g = grad + weight_decay * param
        new = s + g**2
        return param - lr * g / (np.sqrt(new) + eps), new

    @staticmethod
    def decompose(
        param: Any, grad: Any, lr: Any, s: Any, eps: float, weight_decay: float
    ) -> tuple[Any, ...]:
        p, g, rate, old = alike_apart(param, grad, lr, s)
        g = decayed(p, g, weight_decay)
        new = old + g.square()
        return (p - rate * (g / (sqrt(new) + eps))).astype(param.dtype), new.astype(s.dtype)


class LionUpdateOp(Update, name="lion_update"):
    """Lion (Chen et al., 2023): param' = param - lr (sign(beta1 m + (1 - beta1) grad) +
    weight_decay param), m' = beta2 m + (1 - beta2) grad.

    Example: `%p1, %m1 = "gradopt.lion_update"(%p, %g, %lr, %m) : (tensor<4xf32>, tensor<4xf32>,
    tensor<f32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)`
    """

    m: Operand
    beta1: Float = 0.9
    beta2: Float = 0.99
    weight_decay: Float = 0.0
    new_param: Result
    new_m: Result

    @classmethod
    def infer(
        cls,
        param: TensorSpec,
        grad: TensorSpec,
        lr: TensorSpec,
        m: TensorSpec,
        beta1: float,
        beta2: float,
        weight_decay: float,
    ) -> tuple[TensorSpec, ...]:
        cls.check(param, grad, lr, m)
        cls.check_shares(beta1=beta1, beta2=beta2)
        return param, m

    @staticmethod
    def reference(
        param: np.ndarray,
        grad: np.ndarray,
        lr: np.ndarray,
        m: np.ndarray,
        beta1: float,
        beta2: float,
        weight_decay: float,
    ) -> tuple[np.ndarray, ...]:
        move = np.sign(beta1 * m + (1 - beta1) * grad) + weight_decay * param
        return param - lr * move, beta2 * m + (1 - beta2) * grad

    @staticmethod
    def decompose(
        param: Any, grad: Any, lr: Any, m: Any, beta1: float, beta2: float, weight_decay: float
    ) -> tuple[Any, ...]:
        p, g, rate, old = alike_apart(param, grad, lr, m)
        move = decayed(p, arithmetic.sign(old * beta1 + g * (1 - beta1)), weight_decay)
        new = old * beta2 + g * (1 - beta2)
        return (p - rate * move).astype(param.dtype), new.astype(m.dtype)


# --- functions ------------------------------------------------------------------------------------


def sgd_update(param: Any, grad: Any, lr: Any, weight_decay: float = 0.0) -> Any:
    """The parameter moved against its gradient: param - lr (grad + weight_decay param)."""
    return SgdUpdateOp.emit(*_common(param, grad, lr), weight_decay=weight_decay)


def momentum_update(
    param: Any,
    grad: Any,
    lr: Any,
    m: Any,
    momentum: float = 0.9,
    nesterov: bool = False,
    weight_decay: float = 0.0,
) -> tuple[Any, Any]:
    """(new parameter, new m) of gradient descent with momentum: m' = momentum m + g, param' = param
    - lr m', or param - lr (g + momentum m') with `nesterov`.
    """
    return MomentumUpdateOp.emit(
        *_common(param, grad, lr, m),
        momentum=momentum,
        nesterov=nesterov,
        weight_decay=weight_decay,
    )


def adam_update(
    param: Any,
    grad: Any,
    lr: Any,
    m: Any,
    v: Any,
    step: Any,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decoupled: bool = True,
) -> tuple[Any, Any, Any]:
    """(new parameter, new m, new v) of Adam; `step`, an integer, counts from 1. The weight decay is
    AdamW's, or part of the gradient unless `decoupled`.
    """
    return AdamUpdateOp.emit(
        *_common(param, grad, lr, m, v),
        as_tensor(step),
        beta1=beta1,
        beta2=beta2,
        eps=eps,
        weight_decay=weight_decay,
        decoupled=decoupled,
    )


def rmsprop_update(
    param: Any,
    grad: Any,
    lr: Any,
    v: Any,
    decay: float = 0.99,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> tuple[Any, Any]:
    """(new parameter, new v) of RMSProp: v' = decay v + (1 - decay) g^2, param' = param - lr g /
    (sqrt(v') + eps).
    """
    return RmspropUpdateOp.emit(
        *_common(param, grad, lr, v), decay=decay, eps=eps, weight_decay=weight_decay
    )


def adagrad_update(
    param: Any, grad: Any, lr: Any, s: Any, eps: float = 1e-10, weight_decay: float = 0.0
) -> tuple[Any, Any]:
    """(new parameter, new s) of AdaGrad: s' = s + g^2, param' = param - lr g / (sqrt(s') + eps)."""
    return AdagradUpdateOp.emit(*_common(param, grad, lr, s), eps=eps, weight_decay=weight_decay)


def lion_update(
    param: Any,
    grad: Any,
    lr: Any,
    m: Any,
    beta1: float = 0.9,
    beta2: float = 0.99,
    weight_decay: float = 0.0,
) -> tuple[Any, Any]:
    """(new parameter, new m) of Lion: the parameter moves by the sign of beta1 m + (1 - beta1)
    grad, and by its decoupled decay.
    """
    return LionUpdateOp.emit(
        *_common(param, grad, lr, m), beta1=beta1, beta2=beta2, weight_decay=weight_decay
    )


def _common(param: Any, grad: Any, lr: Any, *slots: Any) -> list[Any]:
    """The operands of an update as tensors, a learning rate that is a number in the type of the
    computation.
    """
    param = as_tensor(param)
    wide = float32 if is_narrow(param.dtype) else param.dtype
    rate = lr if hasattr(lr, "graph") else as_tensor(lr, wide)
    return [param, as_tensor(grad), rate, *map(as_tensor, slots)]


def clip_by_global_norm(gradients: Any, max_norm: Any) -> tuple[Any, Any]:
    """A tree of gradients scaled so that the Euclidean norm of all of them together is at most
    `max_norm`, and what the norm was, in float32 or wider. A norm that is not finite shows in the
    second result; the gradients are then not usable.
    """
    leaves = [as_tensor(g) for g in trees.leaves(gradients)]
    wide = promote(float32, *(g.dtype for g in leaves))
    total = constant(0.0, wide)
    for g in leaves:
        total = total + g.astype(wide).square().sum()
    norm = sqrt(total)
    limit = as_tensor(max_norm, wide)
    scale = select(norm > limit, limit / norm, 1)
    clipped = [(g.astype(wide) * scale).astype(g.dtype) for g in leaves]
    return trees.unflatten(trees.structure(gradients), clipped), norm
