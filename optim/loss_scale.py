# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Loss scaling: small gradients survive in float16."""

from typing import Any

from ..dialect import arithmetic, logic
from ..dialect.types import float32, int32
from ..errors import ModuleError
from ..runtime.array import Array, array, write


class LossScale:
    """A number that the loss is multiplied by before the backward, so that small gradients do not
    underflow, and that gradients are divided by before the update (Micikevicius et al., 2018).

        with go.record():
            loss = scale(net(x))
        loss.backward()
        optimizer.step(loss_scale=scale)

    A step whose gradients are not all finite changes nothing, and is counted in `skipped`. A
    `dynamic` scale is then multiplied by `backoff`, and by `growth` after every `interval` finite
    steps, within [minimum, maximum]. `value`, `good` (finite steps since the last change) and
    `skipped` are arrays: all of it can be part of one compiled step.
    """

    def __init__(
        self,
        value: float = 2.0**15,
        dynamic: bool = True,
        growth: float = 2.0,
        backoff: float = 0.5,
        interval: int = 2000,
        minimum: float = 1.0,
        maximum: float = 2.0**24,
    ) -> None:
        if not 0 < minimum <= value <= maximum:
            raise ModuleError(
                f"LossScale expected 0 < minimum <= value <= maximum, got {minimum}, {value} and "
                f"{maximum}"
            )
        if not (growth >= 1 and 0 < backoff <= 1 and interval >= 1):
            raise ModuleError(
                "LossScale expected growth of at least 1, backoff in (0, 1] and an interval of at "
                f"least 1, got {growth}, {backoff} and {interval}"
            )
        self.dynamic, self.growth, self.backoff, self.interval = dynamic, growth, backoff, interval
        self.minimum, self.maximum = minimum, maximum
        self.value: Array = array(value, float32)
        self.good: Array = array(0, int32)
        self.skipped: Array = array(0, int32)

    def __call__(self, loss: Any) -> Any:
        """The loss, in float32 or wider, times the scale."""
        return loss.astype(float32 if loss.dtype.itemsize < 4 else loss.dtype) * self.value

    def unscaled(self, gradient: Any) -> Any:
        """A gradient of the scaled loss as that of the loss, in float32 or wider."""
        return gradient.astype(float32 if gradient.dtype.itemsize < 4 else gradient.dtype) / (
            self.value
        )

    def update(self, finite: Any) -> None:
        """Take note of a step whose gradients were finite, or not: a boolean array."""
        write(self.skipped, self.skipped + (1 - finite.astype(int32)), "a loss scale's update")
        if not self.dynamic:
            return
        good = logic.where(finite, self.good + 1, 0)
        grows = good >= self.interval
        grown = arithmetic.minimum(self.value * self.growth, self.maximum)
        shrunk = arithmetic.maximum(self.value * self.backoff, self.minimum)
        value = logic.where(finite, logic.where(grows, grown, self.value), shrunk)
        write(self.value, value, "a loss scale's update")
        write(self.good, logic.where(grows, 0, good), "a loss scale's update")

    def arrays(self) -> dict[str, Array]:
        """What changes from step to step, by name."""
        return {"value": self.value, "good": self.good, "skipped": self.skipped}

    def __repr__(self) -> str:
        kind = "dynamic" if self.dynamic else "static"
        return f"LossScale({float(self.value):g}, {kind}, {int(self.skipped)} skipped)"
