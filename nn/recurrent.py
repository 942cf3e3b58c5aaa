# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Recurrent layers: unrolled over time, with the products of all steps with the input in one."""

from typing import Any

from ..dialect import recurrent
from ..dialect.contraction import matmul
from ..dialect.creation import zeros, zeros_like
from ..dialect.slicing import stack
from ..dialect.types import float32
from ..errors import ModuleError
from . import init
from .layers import check_extents, check_width
from .module import Module, parameter


class Recurrent(Module):
    """What LSTM and GRU have in common: the weights of `GATES` gates, one after the other."""

    GATES = 0

    def __init__(
        self,
        in_width: int,
        width: int,
        reverse: bool = False,
        dtype: Any = float32,
        weight_init: init.Initializer | None = None,
        recurrent_init: init.Initializer | None = None,
    ) -> None:
        check_extents(type(self).__name__, in_width=in_width, width=width)
        self.in_width, self.width, self.reverse = in_width, width, reverse
        gates = self.GATES * width
        self.weight = parameter((weight_init or init.glorot_uniform())((in_width, gates), dtype))
        self.recurrent = parameter((recurrent_init or init.orthogonal())((width, gates), dtype))
        self.bias = parameter(init.zeros()((gates,), dtype))

    def _inputs(self, x: Any) -> list[Any]:
        """x weight + bias of each step, (batch, gates)."""
        check_width(self, x, self.in_width)
        if x.ndim != 3 or x.shape[1] is None or (x.shape[0] is None and not x.shape[1]):
            raise ModuleError(
                f"{type(self).__name__}({self.summary()}) expected an input (batch, time, width) "
                f"of a known extent of time, got shape {x.shape}"
            )
        z = matmul(x, self.weight) + self.bias
        steps = [z[:, t] for t in range(x.shape[1])]
        return steps[::-1] if self.reverse else steps

    def _product(self, h: Any, bias: Any = None) -> Any:
        y = matmul(h, self.recurrent)
        return y if bias is None else y + bias

    def _start(self, x: Any, steps: list[Any]) -> Any:
        if x.shape[0] is None:
            return zeros_like(steps[0][:, : self.width], dtype=self.recurrent.dtype)
        return zeros((x.shape[0], self.width), self.recurrent.dtype)

    def _stacked(self, outputs: list[Any], x: Any) -> Any:
        if not outputs:
            return zeros((x.shape[0], 0, self.width), self.recurrent.dtype)
        return stack(outputs[::-1] if self.reverse else outputs, 1)

    def summary(self) -> str:
        return f"{self.in_width} -> {self.width}{', reverse' if self.reverse else ''}"


class LSTM(Recurrent):
    """Long short-term memory: (batch, time, in_width) to (batch, time, width), and the state behind
    the last step, a pair (h, c) of (batch, width); see `go.lstm_cell`.

    z = x weight + h recurrent + bias, with the gates i, f, g, o. A state begins as zeros unless
    given. With `reverse` time runs backwards. The bias begins as 0, but for 1 at the forget gate
    (Jozefowicz et al., 2015).
    """

    GATES = 4

    def __init__(
        self,
        in_width: int,
        width: int,
        reverse: bool = False,
        dtype: Any = float32,
        weight_init: init.Initializer | None = None,
        recurrent_init: init.Initializer | None = None,
        forget_bias: float = 1.0,
    ) -> None:
        super().__init__(in_width, width, reverse, dtype, weight_init, recurrent_init)
        bias = init.zeros()((4 * width,), dtype)
        bias[width : 2 * width] = forget_bias
        self.bias = parameter(bias)

    def __call__(self, x: Any, state: Any = None) -> tuple[Any, tuple[Any, Any]]:
        steps = self._inputs(x)
        h, c = (self._start(x, steps), self._start(x, steps)) if state is None else state
        outputs = []
        for z in steps:
            h, c = recurrent.lstm_cell(z + self._product(h), c)
            outputs.append(h)
        return self._stacked(outputs, x), (h, c)


class GRU(Recurrent):
    """Gated recurrent units: (batch, time, in_width) to (batch, time, width), and the state behind
    the last step, (batch, width); see `go.gru_cell`.

    The cell takes x weight + bias and h recurrent + recurrent_bias, with the gates r, u, n. A state
    begins as zeros unless given. With `reverse` time runs backwards.
    """

    GATES = 3

    def __init__(
        self,
        in_width: int,
        width: int,
        reverse: bool = False,
        dtype: Any = float32,
        weight_init: init.Initializer | None = None,
        recurrent_init: init.Initializer | None = None,
    ) -> None:
        super().__init__(in_width, width, reverse, dtype, weight_init, recurrent_init)
        self.recurrent_bias = parameter(init.zeros()((3 * width,), dtype))

    def __call__(self, x: Any, state: Any = None) -> tuple[Any, Any]:
        steps = self._inputs(x)
        h = self._start(x, steps) if state is None else state
        outputs = []
        for z in steps:
            h = recurrent.gru_cell(z, self._product(h, self.recurrent_bias), h)
            outputs.append(h)
        return self._stacked(outputs, x), h
