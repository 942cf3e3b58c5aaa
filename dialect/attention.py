# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Attention and the rotary embedding of positions."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .base import Bool, Float, Op, Operand, Operands, Result, Str, check_float, in_wide
from .contraction import DotGeneralOp
from .creation import constant, iota
from .elementwise import FLOAT, as_tensor, promote_together
from .later import scipy
from .logic import select
from .nn import DropoutOp, SoftmaxOp
from .precision import current_precision, product_type, rounded
from .slicing import concat, split, stack
from .threefry import as_key, check_key
from .transcendental import cos, sin
from .types import TensorSpec, bool_, is_integer


class Attention(Op):
    """Queries that look at keys and take a mean of values."""

    query: Operand
    key: Operand
    value: Operand
    scale: Float
    causal: Bool = False
    precision: Str = ""
    y: Result

    @classmethod
    def check(
        cls,
        query: TensorSpec,
        key: TensorSpec,
        value: TensorSpec,
        mask: Sequence[TensorSpec],
        causal: bool,
        precision: str,
    ) -> TensorSpec:
        """The type of the result."""
        check_float(cls, query)
        if not query.dtype == key.dtype == value.dtype:
            raise cls.error("operands of one element type", f"{query}, {key} and {value}")
        if not query.rank == key.rank == value.rank == 4:
            expected = "operands with axes (batch, heads, length, dim)"
            raise cls.error(expected, f"{query}, {key} and {value}")
        batch, heads, queries, dim = query.shape
        if (key.shape[0], key.shape[3]) != (batch, dim):
            raise cls.error(f"a key of batch {batch} and dim {dim}", key)
        if value.shape[:3] != key.shape[:3]:
            raise cls.error(f"a value of shape {key.shape[:3]} and a dim", value)
        kv_heads, keys = key.shape[1:3]
        if heads is None or kv_heads is None or not kv_heads or heads % kv_heads:
            raise cls.error("a number of key heads that divides that of query heads", key)
        if heads != kv_heads and (batch, queries, keys).count(None) > 1:
            expected = "at most one unknown extent where heads share keys"
            raise cls.error(expected, f"{query} and {key}")
        if causal and None in (queries, keys):
            raise cls.error("known lengths for a causal mask", f"{query} and {key}")
        cls.check_mask(mask, query, keys)
        if product_type(cls, query, precision) != query.dtype:
            raise cls.error("operands of float32 for a precision", query, "convert them")
        return query.with_shape((batch, heads, queries, value.shape[3]))

    @classmethod
    def check_mask(cls, mask: Sequence[TensorSpec], query: TensorSpec, keys: int | None) -> None:
        scores = (*query.shape[:3], keys)
        if len(mask) > 1:
            raise cls.error("at most one mask", len(mask))
        for spec in mask:
            fits = spec.rank == 4 and all(
                n in (1, m) for n, m in zip(spec.shape, scores, strict=True)
            )
            if not fits or spec.dtype not in (bool_, query.dtype):
                expected = f"a mask of bool or {query.dtype.name}, of shape {scores} or with 1s"
                raise cls.error(expected, spec)


class AttentionOp(Attention, name="attention"):
    """Scaled dot-product attention (Vaswani et al., 2017): y = softmax(scale * q k^T + mask) v,
    for each head of each example.

    query is (batch, heads, queries, dim), key (batch, kv_heads, keys, dim), value (batch, kv_heads,
    keys, value_dim); a group of heads / kv_heads neighbouring heads shares a key and a value. The
    mask is boolean, true where a query may look at a key, or is added; its shape is (batch, heads,
    queries, keys), or has extents of 1. With `causal` query i sees keys 0 to i. A query that sees
    no key gives zeros, with gradient 0. `precision` is that of both products, as `dot_general` has
    it, and takes operands of float32.
    Example: `%y = "gradopt.attention"(%q, %k, %v) {scale = 0.125 : f64, causal = true} :
    (tensor<2x4x8x64xf32>, tensor<2x4x8x64xf32>, tensor<2x4x8x64xf32>) -> tensor<2x4x8x64xf32>`
    """

    mask: Operands

    @classmethod
    def infer(
        cls,
        query: TensorSpec,
        key: TensorSpec,
        value: TensorSpec,
        *mask: TensorSpec,
        scale: float,
        causal: bool,
        precision: str,
    ) -> TensorSpec:
        return cls.check(query, key, value, mask, causal, precision)

    @staticmethod
    def reference(
        query: np.ndarray,
        key: np.ndarray,
        value: np.ndarray,
        *mask: np.ndarray,
        scale: float,
        causal: bool,
        precision: str,
    ) -> np.ndarray:
        query, key = rounded(precision, query, key)
        weights = reference_weights(query, key, mask, scale, causal)
        weights, value = rounded(precision, weights, value)
        return np.einsum("bhqk,bhkd->bhqd", weights, per_head(value, query))

    @staticmethod
    @in_wide
    def decompose(
        query: Any, key: Any, value: Any, *mask: Any, scale: float, causal: bool, precision: str
    ) -> Any:
        weights = _weights(query, key, mask, scale, causal, precision)
        return _mixed(weights, value, (*query.shape[:3], value.shape[3]), precision)


class DropoutAttentionOp(Attention, name="dropout_attention"):
    """Attention whose weights are dropped out: y = dropout(softmax(scale * q k^T + mask)) v, with a
    key of random numbers and the rate of `dropout`; see `attention` for the rest.

    Example: `%y = "gradopt.dropout_attention"(%q, %k, %v, %key) {scale = 0.5 : f64, rate = 0.1 :
    f64} : (tensor<2x1x8x4xf32>, tensor<2x1x8x4xf32>, tensor<2x1x8x4xf32>, tensor<2xui32>) ->
    tensor<2x1x8x4xf32>`
    """

    random_key: Operand
    mask: Operands
    rate: Float

    @classmethod
    def infer(
        cls,
        query: TensorSpec,
        key: TensorSpec,
        value: TensorSpec,
        random_key: TensorSpec,
        *mask: TensorSpec,
        scale: float,
        causal: bool,
        precision: str,
        rate: float,
    ) -> TensorSpec:
        check_key(cls, random_key)
        if not 0 <= rate <= 1:
            raise cls.error("a rate in [0, 1]", rate)
        return cls.check(query, key, value, mask, causal, precision)

    @staticmethod
    def reference(
        query: np.ndarray,
        key: np.ndarray,
        value: np.ndarray,
        random_key: np.ndarray,
        *mask: np.ndarray,
        scale: float,
        causal: bool,
        precision: str,
        rate: float,
    ) -> np.ndarray:
        query, key = rounded(precision, query, key)
        weights = reference_weights(query, key, mask, scale, causal)
        kept = DropoutOp.reference(weights, random_key, rate=rate, shared=())
        kept, value = rounded(precision, kept, value)
        return np.einsum("bhqk,bhkd->bhqd", kept, per_head(value, query))

    @staticmethod
    @in_wide
    def decompose(
        query: Any,
        key: Any,
        value: Any,
        random_key: Any,
        *mask: Any,
        scale: float,
        causal: bool,
        precision: str,
        rate: float,
    ) -> Any:
        weights = _weights(query, key, mask, scale, causal, precision)
        kept = DropoutOp.emit(weights, random_key, rate=rate)
        return _mixed(kept, value, (*query.shape[:3], value.shape[3]), precision)


def per_head(x: np.ndarray, query: np.ndarray) -> np.ndarray:
    """Keys or values repeated for every head of the query."""
    return np.repeat(x, query.shape[1] // x.shape[1], 1)


def reference_weights(
    query: np.ndarray, key: np.ndarray, mask: Sequence[np.ndarray], scale: float, causal: bool
) -> np.ndarray:
    """The weights in NumPy."""
    scores = np.einsum("bhqd,bhkd->bhqk", query, per_head(key, query)) * scale
    for m in mask:
        scores = np.where(m, scores, -np.inf) if m.dtype == bool_ else scores + m
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    seen = (scores != -np.inf).any(-1, keepdims=True)
    if not scores.size:
        return scores
    return np.where(seen, scipy.special.softmax(np.where(seen, scores, 0), axis=-1), 0)


def _weights(
    query: Any, key: Any, mask: Sequence[Any], scale: float, causal: bool, precision: str
) -> Any:
    """The weights of keys, (batch, kv_heads, heads of a group * queries, keys): the heads of a
    group are rows of one matrix product, so that keys are not repeated.

    They are not split before the product with the values: IREE 3.13 gives wrong numbers for a
    product with a reshape of something divided by one number a row, where the reshape merges rows.
    """
    queries, keys = query.shape[2], key.shape[2]
    group = query.shape[1] // key.shape[1]
    scores = _batched(_merged(query, group), key, 3, 3, precision) * scale
    for m in mask:
        wide = _merged_mask(m, group, query.shape)
        scores = select(wide, scores, -math.inf) if m.dtype == bool_ else scores + wide
    if causal:
        rows = (group * queries, keys)
        visible = iota(rows, 0) % queries >= iota(rows, 1) if group > 1 and queries else None
        visible = iota(rows, 0) >= iota(rows, 1) if visible is None else visible
        scores = select(visible, scores, -math.inf)
    return SoftmaxOp.emit(scores, axis=3)


def _mixed(weights: Any, value: Any, shape: tuple[int | None, ...], precision: str) -> Any:
    """The means of values, heads split again."""
    mixed = _batched(weights, value, 3, 2, precision)
    return mixed if mixed.shape == shape else mixed.reshape_to(shape)


def _batched(lhs: Any, rhs: Any, lhs_contract: int, rhs_contract: int, precision: str) -> Any:
    """A matrix product for each batch and head."""
    return DotGeneralOp.emit(
        lhs,
        rhs,
        lhs_contract=(lhs_contract,),
        rhs_contract=(rhs_contract,),
        lhs_batch=(0, 1),
        rhs_batch=(0, 1),
        precision=precision,
    )


def _merged(x: Any, group: int) -> Any:
    """(batch, kv_heads * group, n, m) as (batch, kv_heads, group * n, m)."""
    if group == 1:
        return x
    batch, heads, n, m = x.shape
    return x.reshape_to((batch, heads // group, None if n is None else group * n, m))


def _merged_mask(mask: Any, group: int, query: tuple[int | None, ...]) -> Any:
    """The mask beside the scores: as it is where all heads and queries share it, else repeated over
    heads and queries first.
    """
    if group == 1 or mask.shape[1:3] == (1, 1):
        return mask
    shape = (mask.shape[0], *query[1:3], mask.shape[3])
    return _merged(mask.broadcast_to(shape, like=(mask,)), group)


class RotaryOp(Op, name="rotary"):
    """Rotary embedding of positions (Su et al., 2021): pairs of elements (a, b) of a vector are
    turned by the angle t = position * base^(-2 i / dim): (a cos t - b sin t, b cos t + a sin t).

    x is (..., length, dim), positions are whole numbers of shape (length) or of x's shape without
    the last axis. Pair i is elements i and i + dim / 2, or with `interleaved` 2 i and 2 i + 1.
    Example: `%y = "gradopt.rotary"(%x, %positions) : (tensor<2x8x64xf32>, tensor<8xi32>) ->
    tensor<2x8x64xf32>`
    """

    x: Operand
    positions: Operand
    base: Float = 10000.0
    interleaved: Bool = False
    y: Result

    @classmethod
    def infer(
        cls, x: TensorSpec, positions: TensorSpec, base: float, interleaved: bool
    ) -> TensorSpec:
        check_float(cls, x)
        if x.rank < 2 or x.shape[-1] is None or x.shape[-1] % 2:
            raise cls.error("axes (..., length, dim) with an even dim", x)
        if not is_integer(positions.dtype) or positions.shape not in (x.shape[-2:-1], x.shape[:-1]):
            expected = f"integer positions of shape {x.shape[-2:-1]} or {x.shape[:-1]}"
            raise cls.error(expected, positions)
        if not base > 0:
            raise cls.error("a positive base", base)
        return x

    @staticmethod
    def frequencies(dim: int, base: float) -> np.ndarray:
        """The angle by which pair i turns from one position to the next."""
        return base ** (-2 * np.arange(dim // 2) / dim)

    @staticmethod
    def reference(
        x: np.ndarray, positions: np.ndarray, base: float, interleaved: bool
    ) -> np.ndarray:
        turn = RotaryOp.frequencies(x.shape[-1], base).astype(x.dtype)
        angle = positions.astype(x.dtype)[..., None] * turn
        half = x.shape[-1] // 2
        pairs = (
            (slice(0, None, 2), slice(1, None, 2))
            if interleaved
            else (slice(half), slice(half, None))
        )
        a, b = (x[..., p] for p in pairs)
        y = np.empty_like(x)
        y[..., pairs[0]] = a * np.cos(angle) - b * np.sin(angle)
        y[..., pairs[1]] = b * np.cos(angle) + a * np.sin(angle)
        return y

    @staticmethod
    @in_wide
    def decompose(x: Any, positions: Any, base: float, interleaved: bool) -> Any:
        dim = x.shape[-1]
        turn = constant(RotaryOp.frequencies(dim, base), x.dtype)
        angle = positions.astype(x.dtype).expand_dims(-1) * turn
        c, s = cos(angle), sin(angle)
        if interleaved:
            a, b = (x.slice_axis(-1, i, dim - 1 + i, 2) for i in (0, 1))
            return stack([a * c - b * s, b * c + a * s], -1).reshape_to(x.shape, like=(x,))
        a, b = split(x, 2, -1)
        return concat([a * c - b * s, b * c + a * s], -1)


# --- functions ------------------------------------------------------------------------------------


def attention(
    query: Any,
    key: Any,
    value: Any,
    mask: Any = None,
    causal: bool = False,
    scale: float | None = None,
    dropout: float = 0.0,
    random_key: Any = None,
) -> Any:
    """softmax(scale * query key^T + mask) value for each head, axes (batch, heads, length, dim).

    `scale` is 1 / sqrt(dim) unless given. Fewer heads of `key` and `value` than of `query` are each
    shared by a group of neighbouring heads. A boolean `mask` is true where a query may look at a
    key, one of floats is added; it is broadcast to (batch, heads, queries, keys). With `causal`
    query i sees keys 0 to i. A query that sees no key gives zeros. `dropout` drops weights at that
    rate, drawn with `random_key`.
    """
    query, key, value = promote_together(FLOAT, (query, key, value))
    if scale is None:
        dim = query.shape[-1] if query.ndim else None
        if not dim:
            raise AttentionOp.error("a known dim, at least 1, or a scale", query.spec)
        scale = 1 / math.sqrt(dim)
    masks = []
    if mask is not None:
        mask = as_tensor(mask)
        mask = mask if mask.dtype == bool_ else mask.astype(query.dtype)
        masks.append(mask.expand_dims(tuple(range(4 - mask.ndim))) if mask.ndim < 4 else mask)
    settings: dict[str, Any] = {"scale": scale, "causal": causal}
    settings["precision"] = current_precision(query, key, value)
    if not dropout:
        return AttentionOp.emit(query, key, value, *masks, **settings)
    if random_key is None:
        raise AttentionOp.error("a random_key to draw what is dropped", None)
    drawn = random_key if hasattr(random_key, "graph") else constant(as_key(random_key))
    return DropoutAttentionOp.emit(query, key, value, drawn, *masks, **settings, rate=dropout)


def rotary(x: Any, positions: Any = None, base: float = 10000.0, interleaved: bool = False) -> Any:
    """Vectors along the last axis of `x` (..., length, dim), turned by their positions: 0, 1, ...
    along the axis before unless given, of shape (length) or of x's shape without the last axis.
    """
    (x,) = promote_together(FLOAT, (x,))
    if positions is None:
        length = x.shape[-2] if x.ndim > 1 else None
        if length is None:
            raise RotaryOp.error("a known length, or positions", x.spec)
        positions = iota((length,))
    return RotaryOp.emit(x, as_tensor(positions), base=base, interleaved=interleaved)
