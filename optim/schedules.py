# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Learning rates as functions of the number of updates made before, 0 at the first.

Each function here gives a function of a step: of a Python number a float, of an integer array or
tensor of rank 0 one of float32, so that a compiled step needs no recompilation.
"""

import bisect
import math
from collections.abc import Callable, Sequence
from typing import Any

from ..dialect import arithmetic, logic, transcendental
from ..dialect.creation import constant as tensor_of
from ..dialect.types import float32
from ..errors import OpError

Schedule = Callable[[Any], Any]


def _check(name: str, steps: int, least: int = 1) -> None:
    if steps < least:
        raise OpError(f"schedule '{name}' expected at least {least} steps, got {steps}")


def _share(step: Any, steps: float) -> Any:
    """How far `step` is on the way to `steps`, in [0, 1]."""
    if not hasattr(step, "graph"):
        return min(max(step / steps, 0.0), 1.0)
    part = step.astype(float32) / steps
    return arithmetic.minimum(arithmetic.maximum(part, 0.0), 1.0)


def _cos(x: Any) -> Any:
    return transcendental.cos(x) if hasattr(x, "graph") else math.cos(x)


def _power(base: Any, exponent: Any) -> Any:
    tensors = hasattr(base, "graph") or hasattr(exponent, "graph")
    return transcendental.pow(base, exponent) if tensors else base**exponent


def constant(value: float) -> Schedule:
    """Always `value`."""
    return lambda step: tensor_of(value, float32) if hasattr(step, "graph") else float(value)


def exponential(start: float, decay: float, steps: int = 1, staircase: bool = False) -> Schedule:
    """start * decay^(step / steps); with `staircase` the exponent is rounded down."""
    _check("exponential", steps)

    def rate(step: Any) -> Any:
        if hasattr(step, "graph"):
            exponent = (step // steps if staircase else step / steps).astype(float32)
        else:
            exponent = step // steps if staircase else step / steps
        return start * _power(float(decay), exponent)

    return rate


def polynomial(start: float, end: float, steps: int, power: float = 1.0) -> Schedule:
    """end + (start - end) (1 - step / steps)^power, `end` from `steps` on; linear with power 1."""
    _check("polynomial", steps)

    def rate(step: Any) -> Any:
        left = 1 - _share(step, steps)
        return end + (start - end) * (left if power == 1 else _power(left, float(power)))

    return rate


def cosine(start: float, steps: int, end: float = 0.0) -> Schedule:
    """Half a period of a cosine from `start` to `end` (Loshchilov and Hutter, 2017), which stays
    from `steps` on.
    """
    _check("cosine", steps)
    half = (start - end) / 2
    return lambda step: end + half * (1 + _cos(_share(step, steps) * math.pi))


def warmup_cosine(
    peak: float, warmup: int, steps: int, start: float = 0.0, end: float = 0.0
) -> Schedule:
    """Linear from `start` to `peak` over `warmup` steps, then a cosine to `end` at step `steps`."""
    _check("warmup_cosine", warmup)
    _check("warmup_cosine", steps, warmup + 1)
    rises, falls = polynomial(start, peak, warmup), cosine(peak, steps - warmup, end)
    return joined([rises, falls], [warmup])


def piecewise(values: Sequence[float], boundaries: Sequence[int]) -> Schedule:
    """values[i] for the steps from boundaries[i - 1] to boundaries[i] - 1."""
    return joined([constant(v) for v in values], boundaries)


def joined(schedules: Sequence[Schedule], boundaries: Sequence[int]) -> Schedule:
    """Schedule i from step boundaries[i - 1] to boundaries[i] - 1, counting from its own 0."""
    parts, ends = list(schedules), list(boundaries)
    if len(ends) != len(parts) - 1 or ends != sorted(set(ends)):
        raise OpError(
            f"expected {len(parts) - 1} increasing boundaries of {len(parts)} parts of a schedule, "
            f"got {ends}"
        )
    starts = [0, *ends]

    def rate(step: Any) -> Any:
        if not hasattr(step, "graph"):
            i = bisect.bisect_right(ends, step)
            return parts[i](step - starts[i])
        found = parts[0](step)
        for start, part in zip(ends, parts[1:], strict=True):
            found = logic.where(step >= start, part(step - start), found)
        return found

    return rate
