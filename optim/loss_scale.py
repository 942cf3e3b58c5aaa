# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Loss scaling: small gradients survive in float16. As functions of a state, for steps that are
functions of theirs, and as an object that remembers it.
"""

from typing import Any

from ..dialect import arithmetic, logic, trees
from ..dialect.creation import constant
from ..dialect.elementwise import as_tensor
from ..dialect.types import bool_, float32, int32, is_float, is_narrow
from ..errors import ModuleError, OpError
from ..runtime.array import Array, array, write

STATE = ("good", "skipped", "value")


def loss_scale_state(value: float = 2.0**15) -> dict[str, Any]:
    """The state of a dynamic loss scale before the first step: "value", float32, what the loss is
    multiplied by; "good" and "skipped", int32, the finite steps since it last changed and all that
    were not. OpError unless `value` is positive.
    """
    if not value > 0:
        raise OpError(f"loss_scale_state expected a positive value, got {value}")
    return {
        "value": constant(value, float32),
        "good": constant(0, int32),
        "skipped": constant(0, int32),
    }


def loss_scale_update(
    state: dict[str, Any],
    finite: Any,
    growth: float = 2.0,
    backoff: float = 0.5,
    interval: int = 2000,
    minimum: float = 1.0,
    maximum: float = 2.0**24,
) -> dict[str, Any]:
    """The state of a dynamic loss scale (`loss_scale_state`) after a step whose gradients were
    finite, or not: `finite` is one boolean, as `all_finite` gives it.

    The value is multiplied by `backoff` after a step that was not, and by `growth` after every
    `interval` finite ones in a row, within [minimum, maximum]. A pure function, for compiled steps:

        gradients = optim.unscale(go.grad(scaled_loss)(parameters), state["value"])
        finite = optim.all_finite(gradients)
        parameters = optim.select_tree(finite, updated, parameters)
        state = optim.loss_scale_update(state, finite)

    OpError for settings out of range and for a state of other entries.
    """
    _check_settings("loss_scale_update", OpError, growth, backoff, interval, minimum, maximum)
    if not isinstance(state, dict) or tuple(sorted(state)) != STATE:
        got = sorted(state) if isinstance(state, dict) else type(state).__name__
        raise OpError(
            f"loss_scale_update expected a state with {', '.join(STATE)}, got {got}; begin with "
            "loss_scale_state()"
        )
    finite, value = as_tensor(finite), state["value"]
    if finite.dtype != bool_ or finite.shape:
        raise OpError(
            f"loss_scale_update expected finite to be one boolean, got {finite.spec}; "
            "all_finite(gradients) is one"
        )
    good = logic.where(finite, state["good"] + 1, 0)
    grows = good >= interval
    grown = arithmetic.minimum(value * growth, maximum)
    shrunk = arithmetic.maximum(value * backoff, minimum)
    return {
        "value": logic.where(finite, logic.where(grows, grown, value), shrunk),
        "good": logic.where(grows, 0, good),
        "skipped": state["skipped"] + (1 - finite.astype(int32)),
    }


def unscale(gradients: Any, value: Any) -> Any:
    """A tree of gradients of a loss that was multiplied by `value`, as those of the loss: divided
    by it, in float32 or wider.
    """
    return trees.map_leaves(lambda g: _wide(as_tensor(g)) / value, gradients)


def select_tree(condition: Any, on_true: Any, on_false: Any) -> Any:
    """One tree or the other, of the same structure, types and shapes, by one boolean: what a step
    gives and what was before, by whether its gradients are finite. OpError for trees that differ.
    """
    condition = as_tensor(condition)
    if condition.dtype != bool_ or condition.shape:
        raise OpError(f"select_tree expected one boolean condition, got {condition.spec}")
    if trees.structure(on_true) != trees.structure(on_false):
        raise OpError("select_tree expected two trees of one structure, got others")
    chosen = []
    for a, b in zip(trees.leaves(on_true), trees.leaves(on_false), strict=True):
        a, b = as_tensor(a), as_tensor(b)
        if a.spec != b.spec:
            raise OpError(f"select_tree expected leaves of one type, got {a.spec} and {b.spec}")
        chosen.append(logic.where(condition, a, b))
    return trees.unflatten(trees.structure(on_true), chosen)


def _wide(x: Any) -> Any:
    """`x` in float32 where it is of 16 bits."""
    return x.astype(float32) if is_float(x.dtype) and is_narrow(x.dtype) else x


def _check_settings(
    who: str,
    kind: type[Exception],
    growth: float,
    backoff: float,
    interval: int,
    minimum: float,
    maximum: float,
) -> None:
    if not 0 < minimum <= maximum:
        raise kind(f"{who} expected 0 < minimum <= maximum, got {minimum} and {maximum}")
    if not (growth >= 1 and 0 < backoff <= 1 and interval >= 1):
        raise kind(
            f"{who} expected growth of at least 1, backoff in (0, 1] and an interval of at least "
            f"1, got {growth}, {backoff} and {interval}"
        )


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
        _check_settings("LossScale", ModuleError, growth, backoff, interval, minimum, maximum)
        self.dynamic, self.growth, self.backoff, self.interval = dynamic, growth, backoff, interval
        self.minimum, self.maximum = minimum, maximum
        self.value: Array = array(value, float32)
        self.good: Array = array(0, int32)
        self.skipped: Array = array(0, int32)

    def __call__(self, loss: Any) -> Any:
        """The loss, in float32 or wider, times the scale."""
        return _wide(loss) * self.value

    def unscaled(self, gradient: Any) -> Any:
        """A gradient of the scaled loss as that of the loss, in float32 or wider."""
        return unscale(gradient, self.value)

    def update(self, finite: Any) -> None:
        """Take note of a step whose gradients were finite, or not: a boolean array."""
        if not self.dynamic:
            skipped = self.skipped + (1 - finite.astype(int32))
            write(self.skipped, skipped, "a loss scale's update")
            return
        settings = self.growth, self.backoff, self.interval, self.minimum, self.maximum
        new = loss_scale_update(self.arrays(), finite, *settings)
        for name, x in self.arrays().items():
            write(x, new[name], "a loss scale's update")

    def arrays(self) -> dict[str, Array]:
        """What changes from step to step, by name."""
        return {"value": self.value, "good": self.good, "skipped": self.skipped}

    def __repr__(self) -> str:
        kind = "dynamic" if self.dynamic else "static"
        return f"LossScale({float(self.value):g}, {kind}, {int(self.skipped)} skipped)"
