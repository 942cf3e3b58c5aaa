# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Attention with the products around it."""

from typing import Any

from ..dialect.attention import attention, rotary
from ..dialect.modes import is_training
from ..dialect.types import float32
from ..errors import ModuleError
from ..runtime import generator
from . import init
from .layers import Dense, check_extents, check_width
from .module import Module


class MultiHeadAttention(Module):
    """Queries of (batch, length, width) look at keys of the same, or of `context` (batch, other
    length, context_width), in `heads` heads of `head_width`, by default width / heads.

    Groups of heads share the keys and values of `kv_heads` heads, by default as many as heads.
    `causal`: query i sees keys 0 to i. `rotary`: queries and keys are turned by their positions
    first. `dropout` drops weights while training, with the next key of `go.random`. The parts are
    Dense: query, key, value and out.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        kv_heads: int | None = None,
        head_width: int | None = None,
        context_width: int | None = None,
        causal: bool = False,
        rotary: bool = False,
        dropout: float = 0.0,
        bias: bool = True,
        dtype: Any = float32,
        weight_init: init.Initializer | None = None,
    ) -> None:
        kv_heads = heads if kv_heads is None else kv_heads
        check_extents("MultiHeadAttention", width=width, heads=heads, kv_heads=kv_heads)
        if head_width is None and width % heads:
            raise ModuleError(
                f"MultiHeadAttention expected heads that divide the width {width}, got {heads}; or "
                "give head_width"
            )
        if heads % kv_heads:
            raise ModuleError(
                f"MultiHeadAttention expected kv_heads that divide {heads}, got {kv_heads}"
            )
        if not 0 <= dropout < 1:
            raise ModuleError(f"MultiHeadAttention expected a dropout in [0, 1), got {dropout}")
        each = width // heads if head_width is None else head_width
        self.width, self.heads, self.kv_heads, self.head_width = width, heads, kv_heads, each
        self.causal, self.rotary, self.dropout = causal, rotary, dropout
        made: dict[str, Any] = {"bias": bias, "dtype": dtype, "weight_init": weight_init}
        seen = width if context_width is None else context_width
        self.query = Dense(width, heads * each, **made)
        self.key = Dense(seen, kv_heads * each, **made)
        self.value = Dense(seen, kv_heads * each, **made)
        self.out = Dense(heads * each, width, **made)

    def __call__(self, x: Any, context: Any = None, mask: Any = None, key: Any = None) -> Any:
        """(batch, length, width). The mask is as that of `go.attention`, for (batch, heads, length,
        other length); `key` is that of the dropout.
        """
        check_width(self, x, self.width)
        seen = x if context is None else context
        query = self._split(self.query(x), self.heads)
        keys = self._split(self.key(seen), self.kv_heads)
        values = self._split(self.value(seen), self.kv_heads)
        if self.rotary:
            query, keys = rotary(query), rotary(keys)
        rate = self.dropout if is_training() else 0.0
        if rate and key is None:
            key = generator.next_key()
        mixed = attention(query, keys, values, mask, self.causal, dropout=rate, random_key=key)
        batch, heads, length, each = mixed.shape
        merged = (batch, length, heads * each)
        return self.out(mixed.swapaxes(1, 2).reshape_to(merged, like=(x,)))

    def _split(self, y: Any, heads: int) -> Any:
        """(batch, length, heads * head_width) as (batch, heads, length, head_width)."""
        batch, length, _ = y.shape
        if batch is None and length is None:
            raise ModuleError(
                "MultiHeadAttention expected a known batch or length in a trace, got neither"
            )
        return y.reshape_to((batch, length, heads, self.head_width)).swapaxes(1, 2)

    def summary(self) -> str:
        groups = "" if self.kv_heads == self.heads else f", kv_heads={self.kv_heads}"
        return f"{self.width}, {self.heads} heads{groups}{', causal' if self.causal else ''}"
