# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Optimizers as objects: they hold what the updates of dialect/optimizer.py remember, and write to
the parameters. All is done by ops on arrays, so that a step runs eagerly, put off, or as a part of
one compiled step.
"""

import fnmatch
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..dialect.logic import where
from ..dialect.optimizer import clip_by_global_norm
from ..dialect.types import float32, float64, int32, is_narrow
from ..errors import GradientError, ModuleError
from ..nn import files
from ..nn.module import Module, check_arrays
from ..nn.variables import FROZEN, ask, request_of, zero
from ..runtime import autograd
from ..runtime.array import Array, array, of_value, write
from .clipping import all_finite, clip_by_value
from .loss_scale import LossScale

WHAT = "an optimizer's step"


def named(parameters: Any) -> dict[str, Array]:
    """Parameters by name: a module's, a dict as it is, or a sequence by positions; ModuleError for
    what is no variable, and for one that is there twice.
    """
    if isinstance(parameters, Module):
        parameters = parameters.parameters()
    if not isinstance(parameters, Mapping):
        parameters = {str(i): x for i, x in enumerate(parameters)}
    if not parameters:
        raise ModuleError("an optimizer expected parameters, got none; net.parameters() has them")
    seen: dict[int, str] = {}
    for name, x in parameters.items():
        if request_of(x) in (None, FROZEN):
            got = x.spec if isinstance(x, Array) else type(x).__name__
            raise ModuleError(
                f"an optimizer expected variables, got {got} as '{name}' that has no gradient; "
                "make it by nn.parameter, or call its attach_grad first"
            )
        if id(x) in seen:
            raise ModuleError(f"one array is both parameter '{seen[id(x)]}' and '{name}'")
        seen[id(x)] = name
    return dict(parameters)


class Optimizer:
    """Updates parameters by their gradients. See `SGD`, `Adam`, `AdamW`, `RMSProp`, `AdaGrad` and
    `Lion`; a subclass says in SLOTS what it remembers of each parameter, and in `update` what a
    step does.

    `parameters` is a dict of arrays by name as `net.parameters()` gives it, a module, or a sequence
    of arrays. `learning_rate` is a number, or a schedule: a function of the number of updates made
    before. `overrides` has other settings for parameters whose names match a pattern, with
    `learning_rate` as a factor: {"*.bias": {"weight_decay": 0.0}, "head.*": {"learning_rate":
    0.1}}; later patterns win. `clip_value` limits each element of the gradients, then `clip_norm`
    the Euclidean norm of all of them together, which is kept in `gradient_norm`. Parameters of 16
    bits are updated in a float32 copy, unless `master_weights` is false.
    """

    SLOTS: tuple[str, ...] = ()
    NOTES = ("_seen",)  # attributes that no result depends on, see runtime/walk.py

    def __init__(
        self,
        parameters: Any,
        learning_rate: float | Callable[[Any], Any],
        settings: dict[str, Any],
        overrides: Mapping[str, Mapping[str, float]] | None = None,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        master_weights: bool = True,
    ) -> None:
        for name, limit in (("clip_norm", clip_norm), ("clip_value", clip_value)):
            if limit is not None and not limit > 0:
                raise ModuleError(f"an optimizer expected a positive {name}, got {limit}")
        self.parameters = named(parameters)
        self.settings = _settings(self.parameters, settings, overrides or {})
        self.clip_norm, self.clip_value = clip_norm, clip_value
        wide = any(x.dtype == float64 for x in self.parameters.values())
        self.schedule = learning_rate if callable(learning_rate) else None
        rate = 0.0 if callable(learning_rate) else learning_rate
        self._rate = array(rate, float64 if wide else float32)
        self.count: Array = array(0, int32)  # of updates made
        self.gradient_norm: Array = array(0.0, float32)
        self.masters = {
            name: x.detach().astype(float32)
            for name, x in self.parameters.items()
            if master_weights and is_narrow(x.dtype)
        }
        self.slots = {
            name: {slot: _zeros_for(x) for slot in self.SLOTS}
            for name, x in self.parameters.items()
        }
        self._seen = {name: _storage(x.grad) for name, x in self.parameters.items()}

    # --- for subclasses ---------------------------------------------------------------------------

    def update(
        self,
        param: Any,
        grad: Any,
        rate: Any,
        slots: dict[str, Any],
        count: Any,
        settings: dict[str, Any],
    ) -> tuple[Any, ...]:
        """The new parameter, then the new slots in the order of SLOTS; `count` is the number of the
        update, from 1.
        """
        raise NotImplementedError(type(self))

    # --- learning rate ----------------------------------------------------------------------------

    @property
    def learning_rate(self) -> float:
        """The rate of the next step. It can be set, unless a schedule says it; compiled steps see
        the new one.
        """
        if self.schedule is None:
            return float(self._rate)
        return float(np.asarray(self.schedule(int(self.count))))

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        if self.schedule is not None:
            raise ModuleError(
                "the learning rate is given by a schedule; make an optimizer with a number instead"
            )
        write(self._rate, array(float(value), self._rate.dtype), "a learning rate")

    def after_replay(self) -> None:
        """A captured step has run: gradients that it used are used."""
        for name, x in self.parameters.items():
            if not autograd.is_fresh(x) and (grad := x.grad) is not None:
                self._seen[name] = _storage(grad)

    # --- a step -----------------------------------------------------------------------------------

    def zero_grad(self) -> None:
        """Set the gradients of all parameters to zero."""
        for name, x in self.parameters.items():
            if request_of(x) not in (None, FROZEN):
                zero(x)
                self._seen[name] = _storage(x.grad)

    def step(self, ignore_stale: bool = False, loss_scale: LossScale | None = None) -> None:
        """Update all parameters but frozen ones, in place, by the gradients that backward has
        filled.

        GradientError, before anything changes, for gradients that were not filled or written since
        the last step: a parameter that no loss depends on, or a missing backward; with
        `ignore_stale` those parameters stay as they are. With a `loss_scale` the gradients are
        those of the scaled loss, and a step with any that is not finite changes nothing.
        """
        with autograd.pause():
            if gradients := self._gradients(ignore_stale):
                self._apply(gradients, loss_scale)

    def _gradients(self, ignore_stale: bool) -> dict[str, Array]:
        found, stale = {}, []
        for name, x in self.parameters.items():
            if (request := request_of(x)) == FROZEN:
                continue
            if request is None:
                raise GradientError(f"parameter '{name}' is no variable any more: drop_grad was")
            if autograd.is_fresh(x) or _storage(x.grad) is not self._seen[name]:
                found[name] = x.grad
            else:
                stale.append(name)
        if stale and not ignore_stale:
            raise GradientError(
                f"the gradient of {', '.join(map(repr, stale))} was not filled by a backward since "
                "the last step: the loss does not depend on it, or backward was not called; freeze "
                "it, or give step(ignore_stale=True) to leave it as it is"
            )
        for name in found:
            autograd.consume(self.parameters[name])
            self._seen[name] = _storage(found[name])
        return found

    def _apply(self, gradients: dict[str, Any], loss_scale: LossScale | None) -> None:
        if loss_scale is not None:
            gradients = {k: loss_scale.unscaled(g) for k, g in gradients.items()}
        finite = None if loss_scale is None else all_finite(gradients)
        if self.clip_value is not None:
            gradients = clip_by_value(gradients, self.clip_value)
        if self.clip_norm is not None:
            gradients, norm = clip_by_global_norm(gradients, self.clip_norm)
            write(self.gradient_norm, norm.astype(float32), WHAT)
        rate = self._rate if self.schedule is None else self.schedule(self.count)
        count = self.count + 1
        new: list[tuple[Array, Any]] = [(self.count, count)]
        for name, gradient in gradients.items():
            new += self._updated(name, gradient, rate, count)
        for old, value in new:
            write(old, value if finite is None else where(finite, value, old), WHAT)
        for name, master in self.masters.items():
            if name in gradients:
                param = self.parameters[name]
                write(param, master.astype(param.dtype), WHAT)
        if loss_scale is not None:
            loss_scale.update(finite)

    def _updated(self, name: str, grad: Any, rate: Any, count: Any) -> list[tuple[Array, Any]]:
        """The arrays that a parameter's update changes, with their new values."""
        param = self.masters.get(name, self.parameters[name])
        settings = dict(self.settings[name])
        if (factor := settings.pop("learning_rate")) != 1:
            rate = rate * factor
        slots = self.slots[name]
        results = self.update(param, grad.astype(param.dtype), rate, slots, count, settings)
        return list(zip((param, *slots.values()), results, strict=True))

    # --- state ------------------------------------------------------------------------------------

    def arrays(self) -> dict[str, Array]:
        """What the optimizer remembers, by name: "count", "learning_rate", and of each parameter
        the slots and the float32 copy: "slots.layers.0.weight.m", "masters.layers.0.weight".
        """
        found = {"count": self.count, "learning_rate": self._rate}
        found["gradient_norm"] = self.gradient_norm
        for name, slots in self.slots.items():
            found |= {f"slots.{name}.{slot}": x for slot, x in slots.items()}
        return found | {f"masters.{name}": x for name, x in self.masters.items()}

    def save(self, path: Any) -> None:
        """Write all that the optimizer remembers to a safetensors file, whole or not at all."""
        files.save(path, self.arrays())

    def load(self, path: Any) -> None:
        """Read it back. ModuleError, before anything changes, for a file of other parameters or
        another optimizer.
        """
        given, own = files.load(path), self.arrays()
        check_arrays(type(self).__name__, given, own, dtypes=True, missing=True)
        for name, x in given.items():
            write(own[name], of_value(x), "an update of the optimizer's state")

    def __getstate__(self) -> dict[str, Any]:
        requests = {name: request_of(x) for name, x in self.parameters.items()}
        state = {k: v for k, v in vars(self).items() if k not in self.NOTES}
        return {"attributes": state, "requests": requests}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Copied together with a net, an optimizer has the parameters of the copy."""
        self.__dict__.update(state["attributes"])
        for name, request in state["requests"].items():
            if request is not None and request_of(self.parameters[name]) != request:
                ask(self.parameters[name], request)
        self._seen = {name: _storage(x.grad) for name, x in self.parameters.items()}

    def __repr__(self) -> str:
        rate = "a schedule" if self.schedule is not None else f"{self.learning_rate:g}"
        return (
            f"{type(self).__name__}({len(self.parameters)} parameters, learning_rate={rate}, "
            f"{int(self.count)} updates)"
        )


def _settings(
    parameters: dict[str, Array],
    settings: dict[str, Any],
    overrides: Mapping[str, Mapping[str, float]],
) -> dict[str, dict[str, Any]]:
    """The settings of each parameter, with the factor of its learning rate."""
    base = settings | {"learning_rate": 1.0}
    found = {name: dict(base) for name in parameters}
    for pattern, changes in overrides.items():
        if unknown := [k for k in changes if k not in base]:
            raise ModuleError(
                f"overrides of '{pattern}' expected settings out of {', '.join(base)}, got "
                f"{', '.join(unknown)}"
            )
        matching = fnmatch.filter(parameters, pattern)
        if not matching:
            raise ModuleError(
                f"overrides: '{pattern}' matches no parameter; there are {', '.join(parameters)}"
            )
        for name in matching:
            found[name] |= changes
    return found


def _zeros_for(x: Array) -> Array:
    return of_value(np.zeros(x.shape, float32 if is_narrow(x.dtype) else x.dtype))


def _storage(x: Array | None) -> Any:
    """What tells one storage of a gradient from a later one, without keeping it alive."""
    if x is None:
        return None
    storage: Any = next((s for s in (x._value, x._view, x._source) if s is not None), None)
    try:
        return weakref.ref(storage)
    except TypeError:
        return storage
