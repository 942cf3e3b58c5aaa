# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The optimizers; formulas and defaults are those of the updates in dialect/optimizer.py."""

from typing import Any

from ..dialect import optimizer as updates
from ..errors import ModuleError
from .optimizer import Optimizer


def _check(name: str, shares: dict[str, float], others: dict[str, float]) -> None:
    for field, x in shares.items():
        if not 0 <= x < 1:
            raise ModuleError(f"{name} expected {field} in [0, 1), got {x}")
    for field, x in others.items():
        if not x >= 0:
            raise ModuleError(f"{name} expected {field} of at least 0, got {x}")


class SGD(Optimizer):
    """Gradient descent, with `momentum` if it is not 0; see `go.optim.momentum_update`. Other
    options are those of `Optimizer`.
    """

    def __init__(
        self,
        parameters: Any,
        learning_rate: Any = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        **options: Any,
    ) -> None:
        _check("SGD", {"momentum": momentum}, {"weight_decay": weight_decay})
        if nesterov and not momentum:
            raise ModuleError("SGD expected a momentum with nesterov, got 0")
        self.SLOTS = ("m",) if momentum else ()
        settings: dict[str, Any] = {"weight_decay": weight_decay}
        settings |= {"momentum": momentum, "nesterov": nesterov} if momentum else {}
        super().__init__(parameters, learning_rate, settings, **options)

    def update(
        self, param: Any, grad: Any, rate: Any, slots: Any, count: Any, settings: Any
    ) -> Any:
        if not slots:
            return (updates.sgd_update(param, grad, rate, **settings),)
        return updates.momentum_update(param, grad, rate, slots["m"], **settings)


class Adam(Optimizer):
    """Adam, whose weight decay is a part of the gradient; see `go.optim.adam_update`. Other options
    are those of `Optimizer`.
    """

    SLOTS = ("m", "v")
    DECOUPLED = False

    def __init__(
        self,
        parameters: Any,
        learning_rate: Any = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        **options: Any,
    ) -> None:
        shares = {"beta1": beta1, "beta2": beta2}
        others = {"eps": eps, "weight_decay": weight_decay}
        _check(type(self).__name__, shares, others)
        super().__init__(parameters, learning_rate, shares | others, **options)

    def update(
        self, param: Any, grad: Any, rate: Any, slots: Any, count: Any, settings: Any
    ) -> Any:
        m, v = slots["m"], slots["v"]
        decoupled = self.DECOUPLED
        return updates.adam_update(param, grad, rate, m, v, count, decoupled=decoupled, **settings)


class AdamW(Adam):
    """Adam whose weight decay shrinks the parameter itself (Loshchilov and Hutter, 2019)."""

    DECOUPLED = True

    def __init__(
        self,
        parameters: Any,
        learning_rate: Any = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        **options: Any,
    ) -> None:
        super().__init__(parameters, learning_rate, beta1, beta2, eps, weight_decay, **options)


class RMSProp(Optimizer):
    """RMSProp; see `go.optim.rmsprop_update`. Other options are those of `Optimizer`."""

    SLOTS = ("v",)

    def __init__(
        self,
        parameters: Any,
        learning_rate: Any = 0.01,
        decay: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        **options: Any,
    ) -> None:
        others = {"eps": eps, "weight_decay": weight_decay}
        _check("RMSProp", {"decay": decay}, others)
        super().__init__(parameters, learning_rate, {"decay": decay} | others, **options)

    def update(
        self, param: Any, grad: Any, rate: Any, slots: Any, count: Any, settings: Any
    ) -> Any:
        return updates.rmsprop_update(param, grad, rate, slots["v"], **settings)


class AdaGrad(Optimizer):
    """AdaGrad; see `go.optim.adagrad_update`. Other options are those of `Optimizer`."""

    SLOTS = ("s",)

    def __init__(
        self,
        parameters: Any,
        learning_rate: Any = 0.01,
        eps: float = 1e-10,
        weight_decay: float = 0.0,
        **options: Any,
    ) -> None:
        others = {"eps": eps, "weight_decay": weight_decay}
        _check("AdaGrad", {}, others)
        super().__init__(parameters, learning_rate, others, **options)

    def update(
        self, param: Any, grad: Any, rate: Any, slots: Any, count: Any, settings: Any
    ) -> Any:
        return updates.adagrad_update(param, grad, rate, slots["s"], **settings)


class Lion(Optimizer):
    """Lion; see `go.optim.lion_update`. Other options are those of `Optimizer`."""

    SLOTS = ("m",)

    def __init__(
        self,
        parameters: Any,
        learning_rate: Any = 0.0001,
        beta1: float = 0.9,
        beta2: float = 0.99,
        weight_decay: float = 0.0,
        **options: Any,
    ) -> None:
        shares = {"beta1": beta1, "beta2": beta2}
        _check("Lion", shares, {"weight_decay": weight_decay})
        settings = shares | {"weight_decay": weight_decay}
        super().__init__(parameters, learning_rate, settings, **options)

    def update(
        self, param: Any, grad: Any, rate: Any, slots: Any, count: Any, settings: Any
    ) -> Any:
        return updates.lion_update(param, grad, rate, slots["m"], **settings)
