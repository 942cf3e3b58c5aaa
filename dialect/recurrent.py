# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""One step of recurrent layers, given the products of input and state with the weights: of all
steps together, products with the input cost less.
"""

from typing import Any

import numpy as np

from . import builder as builders
from .activation import sigmoid
from .base import Op, Operand, Result, as_wide, check_float, function, in_wide
from .elementwise import FLOAT, promote_together
from .later import scipy
from .slicing import split
from .transcendental import tanh
from .types import TensorSpec


def check_gates(op_class: type[Op], z: TensorSpec, state: TensorSpec, gates: int) -> None:
    """Raise unless the last axis of `z` has `gates` gates of the state's width."""
    check_float(op_class, state)
    width = state.shape[-1] if state.rank else None
    if width is None or z != state.with_shape((*state.shape[:-1], gates * width)):
        raise op_class.error(
            f"{gates} gates of the known width of the state on the last axis", f"{z} and {state}"
        )


class Cell(Op):
    """One step of a recurrent layer."""

    @classmethod
    def build(cls, *operands: Any, name: str | None = None, **attributes: Any) -> Any:
        """Promote the operands, then emit."""
        with builders.owner(cls.MNEMONIC, operands):
            return cls.emit(*promote_together(FLOAT, operands), name=name, **attributes)


class LstmCellOp(Cell, name="lstm_cell"):
    """Long short-term memory, one step: c' = sigmoid(f) c + sigmoid(i) tanh(g), h' = sigmoid(o)
    tanh(c'), where z is i, f, g, o one after the other on the last axis.

    z = x w_x + h w_h + b with the input x and the last output h.
    Example: `%h, %c = "gradopt.lstm_cell"(%z, %c0) : (tensor<8x64xf32>, tensor<8x16xf32>) ->
    (tensor<8x16xf32>, tensor<8x16xf32>)`
    """

    z: Operand
    c: Operand
    new_h: Result
    new_c: Result

    @classmethod
    def infer(cls, z: TensorSpec, c: TensorSpec) -> tuple[TensorSpec, TensorSpec]:
        check_gates(cls, z, c, 4)
        return c, c

    @staticmethod
    def reference(z: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        i, f, g, o = np.split(z, 4, axis=-1)
        new = scipy.special.expit(f) * c + scipy.special.expit(i) * np.tanh(g)
        return scipy.special.expit(o) * np.tanh(new), new

    @staticmethod
    def decompose(z: Any, c: Any) -> tuple[Any, Any]:
        i, f, g, o = split(as_wide(z), 4, -1)
        new = sigmoid(f) * as_wide(c) + sigmoid(i) * tanh(g)
        return (sigmoid(o) * tanh(new)).astype(c.dtype), new.astype(c.dtype)


class GruCellOp(Cell, name="gru_cell"):
    """Gated recurrent unit, one step: h' = (1 - u) n + u h with r = sigmoid(x_r + h_r), u =
    sigmoid(x_u + h_u), n = tanh(x_n + r h_n), where x and s are r, u, n one after the other on the
    last axis.

    x = input w_x + b_x and s = h w_h + b_h; the reset gate r acts behind the product, as in cuDNN
    and PyTorch.
    Example: `%h = "gradopt.gru_cell"(%x, %s, %h0) : (tensor<8x48xf32>, tensor<8x48xf32>,
    tensor<8x16xf32>) -> tensor<8x16xf32>`
    """

    x: Operand
    s: Operand
    h: Operand
    new_h: Result

    @classmethod
    def infer(cls, x: TensorSpec, s: TensorSpec, h: TensorSpec) -> TensorSpec:
        check_gates(cls, x, h, 3)
        check_gates(cls, s, h, 3)
        return h

    @staticmethod
    def reference(x: np.ndarray, s: np.ndarray, h: np.ndarray) -> np.ndarray:
        xr, xu, xn = np.split(x, 3, axis=-1)
        hr, hu, hn = np.split(s, 3, axis=-1)
        r, u = scipy.special.expit(xr + hr), scipy.special.expit(xu + hu)
        return (1 - u) * np.tanh(xn + r * hn) + u * h

    @staticmethod
    @in_wide
    def decompose(x: Any, s: Any, h: Any) -> Any:
        (xr, xu, xn), (hr, hu, hn) = (split(v, 3, -1) for v in (x, s))
        r, u = sigmoid(xr + hr), sigmoid(xu + hu)
        n = tanh(xn + r * hn)
        return n + u * (h - n)


lstm_cell, gru_cell = map(function, (LstmCellOp, GruCellOp))
