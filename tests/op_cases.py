# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""One row an op: inputs, attributes and what JAX computes for them. Every check of test_ops.py runs
over these rows.

Inputs are float64 or integers; the checks against IREE round floats to float32. A row may name the
inputs to differentiate by (`wrt`; all floating-point ones by default) and a tolerance in units in
the last place for IREE.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gradopt.dialect.base import OPS


@dataclasses.dataclass
class Case:
    """A row: the op, its inputs and attributes, the same in JAX."""

    op: str
    inputs: list[np.ndarray]
    jax: Callable[..., Any] | None
    attributes: dict[str, Any] = dataclasses.field(default_factory=dict)
    ulp: float = 8
    wrt: tuple[int, ...] | None = None
    suffix: str = ""

    @property
    def name(self) -> str:
        return f"{self.op}{'_' if self.suffix else ''}{self.suffix}"

    def differentiable(self) -> tuple[int, ...]:
        """Positions of the inputs to differentiate by."""
        if not OPS[self.op].has_gradient():
            return ()
        if self.wrt is not None:
            return self.wrt
        return tuple(i for i, x in enumerate(self.inputs) if x.dtype.kind == "f")

    def build(self, *tensors: Any) -> Any:
        return OPS[self.op].build(*tensors, **self.attributes)


_rng = np.random.default_rng(0)


def reals(*shape: int, low: float = -2.0, high: float = 2.0) -> np.ndarray:
    """Distinct numbers in [low, high], kept 0.01 away from whole numbers, where rounding ops
    jump.
    """
    x = _rng.uniform(low, high, shape)
    near = np.abs(x - np.round(x)) < 0.01
    return np.where(near, x + 0.02, x)


def ints(*shape: int, low: int = -9, high: int = 10, dtype: str = "int32") -> np.ndarray:
    return _rng.integers(low, high, shape).astype(dtype)


def bools(*shape: int) -> np.ndarray:
    return _rng.integers(0, 2, shape).astype(bool)


X = reals(3, 5)
Y = reals(3, 5)
POSITIVE = reals(3, 5, low=0.1, high=4.0)
UNIT = reals(3, 5, low=-0.95, high=0.95)
I, J = ints(3, 5), ints(3, 5)
B, C = bools(3, 5), bools(3, 5)
CUBE = reals(2, 3, 4)


def unary(op: str, function: Callable[..., Any], x: np.ndarray = X, **options: Any) -> Case:
    return Case(op, [x], function, **options)


def binary(
    op: str, function: Callable[..., Any], x: np.ndarray = X, y: np.ndarray = Y, **options: Any
) -> Case:
    return Case(op, [x, y], function, **options)


ELEMENTWISE = [
    binary("add", jnp.add),
    binary("add", jnp.add, I, J, suffix="int"),
    binary("sub", jnp.subtract),
    binary("mul", jnp.multiply),
    binary("div", jnp.divide),
    binary("mul_no_nan", lambda a, b: jnp.where(a == 0, 0, a * b)),
    binary("floor_divide", jnp.floor_divide),
    binary("floor_divide", jnp.floor_divide, I, ints(3, 5, low=1), suffix="int"),
    binary("remainder", jnp.remainder),
    binary("remainder", jnp.remainder, I, ints(3, 5, low=1), suffix="int"),
    binary("fmod", jnp.fmod),
    binary("maximum", jnp.maximum),
    binary("minimum", jnp.minimum),
    binary("copysign", jnp.copysign),
    binary("pow", jnp.power, POSITIVE, Y, ulp=32),
    binary("atan2", jnp.arctan2),
    binary("hypot", jnp.hypot),
    binary("logaddexp", jnp.logaddexp),
    unary("neg", jnp.negative),
    unary("abs", jnp.abs),
    unary("abs", jnp.abs, I, suffix="int"),
    unary("sign", jnp.sign),
    unary("floor", jnp.floor),
    unary("ceil", jnp.ceil),
    unary("trunc", jnp.trunc),
    unary("round", jnp.round),
    unary("round_half_away", lambda x: jax.lax.round(x, jax.lax.RoundingMethod.AWAY_FROM_ZERO)),
    unary("square", jnp.square),
    unary("sqrt", jnp.sqrt, POSITIVE),
    unary("rsqrt", jax.lax.rsqrt, POSITIVE),
    unary("cbrt", jnp.cbrt),
    unary("reciprocal", jnp.reciprocal),
    unary("exp", jnp.exp),
    unary("expm1", jnp.expm1),
    unary("exp2", jnp.exp2),
    unary("log", jnp.log, POSITIVE),
    unary("log1p", jnp.log1p, POSITIVE),
    unary("log2", jnp.log2, POSITIVE),
    unary("log10", jnp.log10, POSITIVE),
    unary("sin", jnp.sin),
    unary("cos", jnp.cos),
    unary("tan", jnp.tan, UNIT),
    unary("asin", jnp.arcsin, UNIT),
    unary("acos", jnp.arccos, UNIT),
    unary("atan", jnp.arctan),
    unary("sinh", jnp.sinh),
    unary("cosh", jnp.cosh),
    unary("tanh", jnp.tanh),
    unary("asinh", jnp.arcsinh),
    unary("acosh", jnp.arccosh, POSITIVE + 1),
    unary("atanh", jnp.arctanh, UNIT),
    unary("erf", jax.scipy.special.erf),
    unary("erfc", jax.scipy.special.erfc),
    unary("erf_inv", jax.scipy.special.erfinv, UNIT),
    unary("lgamma", jax.scipy.special.gammaln, POSITIVE, ulp=32),
    unary("digamma", jax.scipy.special.digamma, POSITIVE, ulp=32),
    unary(
        "polygamma",
        lambda x: jax.scipy.special.polygamma(2, x),
        POSITIVE,
        attributes={"order": 2},
    ),
    unary("relu", jax.nn.relu),
    unary("leaky_relu", lambda x: jax.nn.leaky_relu(x, 0.1), attributes={"negative_slope": 0.1}),
    binary("prelu", lambda x, w: jnp.where(x > 0, x, x * w)),
    unary("elu", lambda x: jax.nn.elu(x, 1.5), attributes={"alpha": 1.5}),
    unary("celu", lambda x: jax.nn.celu(x, 1.5), attributes={"alpha": 1.5}),
    unary("selu", jax.nn.selu),
    unary("gelu", lambda x: jax.nn.gelu(x, approximate=False), attributes={"approximate": "none"}),
    unary(
        "gelu",
        lambda x: jax.nn.gelu(x, approximate=True),
        attributes={"approximate": "tanh"},
        suffix="tanh",
        ulp=32,  # 1 + tanh cancels for negative x, in the formula itself
    ),
    unary("sigmoid", jax.nn.sigmoid),
    unary("silu", jax.nn.silu),
    unary("softplus", jax.nn.softplus),
    unary("mish", jax.nn.mish),
    unary("softsign", jax.nn.soft_sign),
    unary("hard_sigmoid", lambda x: jnp.clip(x / 6 + 0.5, 0, 1), X * 2),
    unary("hard_swish", lambda x: x * jnp.clip(x / 6 + 0.5, 0, 1), X * 2),
    unary("hardtanh", jax.nn.hard_tanh, attributes={"low": -1.0, "high": 1.0}),
    Case("clamp", [X, Y - 1, Y + 0.5], jnp.clip),
    Case("select", [B, X, Y], jnp.where),
    binary("compare", jnp.less, attributes={"direction": "lt"}),
    binary("compare", jnp.equal, I, J, attributes={"direction": "eq"}, suffix="int"),
    unary("is_finite", jnp.isfinite, np.array([1.0, np.inf, -np.inf, np.nan])),
    unary("is_nan", jnp.isnan, np.array([1.0, np.inf, -np.inf, np.nan])),
    unary("is_inf", jnp.isinf, np.array([1.0, np.inf, -np.inf, np.nan])),
    unary("logical_not", jnp.logical_not, B),
    binary("logical_and", jnp.logical_and, B, C),
    binary("logical_or", jnp.logical_or, B, C),
    binary("logical_xor", jnp.logical_xor, B, C),
    unary("bitwise_not", jnp.bitwise_not, I),
    binary("bitwise_and", jnp.bitwise_and, I, J),
    binary("bitwise_or", jnp.bitwise_or, I, J),
    binary("bitwise_xor", jnp.bitwise_xor, I, J),
    binary("shift_left", jnp.left_shift, I, ints(3, 5, low=0, high=8)),
    binary("shift_right", jnp.right_shift, I, ints(3, 5, low=0, high=8)),
    unary("convert", lambda x: x.astype("int32"), attributes={"dtype": np.dtype("int32")}, wrt=()),
    unary(
        "convert",
        lambda x: x.astype("float32"),
        X.astype("float32").astype("float64"),
        attributes={"dtype": np.dtype("float32")},
        suffix="float",
    ),
    unary(
        "bitcast",
        lambda x: jax.lax.bitcast_convert_type(x, jnp.float32),
        I,
        attributes={"dtype": np.dtype("float32")},
    ),
    unary("stop_gradient", lambda x: x),
    unary("optimization_barrier", lambda x: x),
]


def reduction(
    op: str,
    function: Callable[..., Any],
    x: np.ndarray = CUBE,
    axes: tuple[int, ...] = (0, 2),
    **options: Any,
) -> Case:
    attributes = {"axes": axes} | options.pop("attributes", {})
    return Case(op, [x], lambda v: function(v, axis=axes), attributes, **options)


REDUCTIONS = [
    reduction("sum", jnp.sum),
    reduction("sum", jnp.sum, axes=(0, 1, 2), suffix="all"),
    reduction("sum", jnp.sum, ints(2, 3, 4), suffix="int"),
    reduction("sum", jnp.sum, reals(8192, 3), axes=(0,), suffix="tall", ulp=64),
    reduction("prod", jnp.prod),
    reduction("prod", jnp.prod, reals(7, 2), axes=(0,), suffix="odd"),
    reduction("max", jnp.max),
    reduction("min", jnp.min),
    reduction("mean", jnp.mean),
    reduction("var", jnp.var),
    reduction(
        "var",
        lambda v, axis: jnp.var(v, axis=axis, ddof=1),
        attributes={"correction": 1},
        suffix="corrected",
    ),
    reduction("any", jnp.any, bools(2, 3, 4)),
    reduction("all", jnp.all, bools(2, 3, 4)),
    reduction("logsumexp", jax.scipy.special.logsumexp),
    reduction("norm", lambda v, axis: jnp.sqrt(jnp.sum(v * v, axis=axis))),
    Case("argmax", [CUBE], lambda v: jnp.argmax(v, axis=1), {"axis": 1}),
    Case("argmin", [CUBE], lambda v: jnp.argmin(v, axis=1), {"axis": 1}),
]

CONTRACTIONS = [
    Case(
        "dot_general",
        [reals(3, 4), reals(4, 5)],
        jnp.matmul,
        {"lhs_contract": (1,), "rhs_contract": (0,)},
    ),
    Case(
        "dot_general",
        [reals(4, 3), reals(5, 4)],
        lambda a, b: a.T @ b.T,
        {"lhs_contract": (0,), "rhs_contract": (1,)},
        suffix="transposed",
    ),
    Case(
        "dot_general",
        [reals(2, 3, 4), reals(4, 2, 5)],
        lambda a, b: jnp.einsum("bik,kbj->bij", a, b),
        {"lhs_contract": (2,), "rhs_contract": (0,), "lhs_batch": (0,), "rhs_batch": (1,)},
        suffix="batch",
    ),
    Case(
        "dot_general",
        [reals(3, 2, 4), reals(4, 5, 3)],
        lambda a, b: jnp.einsum("ikl,lji->kj", a, b),
        {"lhs_contract": (0, 2), "rhs_contract": (2, 0)},
        suffix="two_axes",
    ),
    Case(
        "dot_general",
        [reals(3), reals(4)],
        jnp.outer,
        {"lhs_contract": (), "rhs_contract": ()},
        suffix="outer",
    ),
    Case(
        "dot_general",
        [reals(7), reals(7)],
        jnp.dot,
        {"lhs_contract": (0,), "rhs_contract": (0,)},
        suffix="vectors",
    ),
]


def conv_attributes(
    strides: tuple[int, ...],
    low: tuple[int, ...],
    high: tuple[int, ...],
    dilation: tuple[int, ...] | None = None,
    groups: int = 1,
    channels_last: bool = True,
) -> dict[str, Any]:
    return {
        "strides": strides,
        "low": low,
        "high": high,
        "dilation": dilation or (1,) * len(strides),
        "groups": groups,
        "channels_last": channels_last,
    }


def jax_conv(a: dict[str, Any]) -> Callable[..., Any]:
    spatial = "DHW"[-len(a["strides"]) :]
    layouts = (
        (f"N{spatial}C", f"{spatial}IO", f"N{spatial}C")
        if a["channels_last"]
        else (f"NC{spatial}", f"OI{spatial}", f"NC{spatial}")
    )

    def conv(x: Any, w: Any) -> Any:
        return jax.lax.conv_general_dilated(
            x,
            w,
            a["strides"],
            list(zip(a["low"], a["high"], strict=True)),
            rhs_dilation=a["dilation"],
            feature_group_count=a["groups"],
            dimension_numbers=layouts,
        )

    return conv


def conv_cases(
    suffix: str, x: tuple[int, ...], w: tuple[int, ...], a: dict[str, Any]
) -> list[Case]:
    """The convolution and its two gradient ops for one setting."""
    image, kernel = reals(*x), reals(*w)
    conv = jax_conv(a)
    g = reals(*jax.eval_shape(conv, image, kernel).shape)
    last = a["channels_last"]
    extents = x[1:-1] if last else x[2:]
    window = w[:-2] if last else w[2:]

    def dx(g: Any, w: Any) -> Any:
        return jax.linear_transpose(lambda x: conv(x, w), image)(g)[0]

    def dw(x: Any, g: Any) -> Any:
        return jax.linear_transpose(lambda w: conv(x, w), kernel)(g)[0]

    return [
        Case("conv", [image, kernel], conv, a, suffix=suffix),
        Case("conv_input_gradient", [g, kernel], dx, {"extents": extents} | a, suffix=suffix),
        Case("conv_weight_gradient", [image, g], dw, {"window": window} | a, suffix=suffix),
    ]


CONVOLUTIONS = [
    *conv_cases("", (2, 7, 6, 3), (3, 3, 3, 4), conv_attributes((1, 1), (1, 1), (1, 1))),
    *conv_cases("stride2", (2, 8, 8, 3), (3, 3, 3, 4), conv_attributes((2, 2), (1, 1), (1, 1))),
    *conv_cases(
        "stride2_odd", (2, 9, 7, 17), (3, 3, 17, 4), conv_attributes((2, 2), (0, 1), (1, 1))
    ),
    *conv_cases("stride3", (1, 9, 8, 2), (2, 2, 2, 3), conv_attributes((3, 3), (0, 0), (0, 0))),
    *conv_cases("same_1x1", (2, 5, 5, 4), (1, 1, 4, 3), conv_attributes((1, 1), (0, 0), (0, 0))),
    *conv_cases(
        "dilated", (1, 9, 9, 2), (3, 3, 2, 3), conv_attributes((2, 1), (2, 1), (1, 2), (1, 2))
    ),
    *conv_cases(
        "groups", (1, 6, 6, 4), (3, 3, 2, 6), conv_attributes((2, 2), (1, 1), (1, 1), groups=2)
    ),
    *conv_cases(
        "depthwise", (1, 6, 6, 4), (3, 3, 1, 4), conv_attributes((1, 1), (1, 1), (1, 1), groups=4)
    ),
    *conv_cases(
        "channels_first",
        (2, 3, 6, 6),
        (4, 3, 3, 3),
        conv_attributes((2, 2), (1, 1), (1, 1), channels_last=False),
    ),
    *conv_cases("one_axis", (2, 9, 3), (4, 3, 5), conv_attributes((2,), (1,), (2,))),
    *conv_cases(
        "three_axes",
        (1, 4, 5, 4, 2),
        (2, 3, 2, 2, 3),
        conv_attributes((1, 2, 1), (0, 1, 0), (1, 1, 0)),
    ),
]

SHAPES = [
    Case("reshape", [CUBE], lambda x: x.reshape(4, 6), {"shape": (4, 6)}),
    Case("transpose", [CUBE], lambda x: x.transpose(2, 0, 1), {"permutation": (2, 0, 1)}),
    Case(
        "broadcast",
        [reals(3, 1)],
        lambda x: jnp.broadcast_to(x[None, :, :], (2, 3, 4)),
        {"shape": (2, 3, 4), "dims": (1, 2)},
    ),
    Case(
        "concat",
        [reals(2, 3), reals(2, 4)],
        lambda a, b: jnp.concatenate((a, b), 1),
        {"axis": 1},
    ),
    Case("stack", [reals(2, 3), reals(2, 3)], lambda a, b: jnp.stack((a, b), 1), {"axis": 1}),
    Case("unstack", [CUBE], lambda x: [x[:, i] for i in range(3)], {"axis": 1}),
    Case(
        "slice",
        [reals(6, 7)],
        lambda x: x[1:6:2, 2:7],
        {"start": (1, 2), "limit": (6, 7), "stride": (2, 1)},
    ),
    Case(
        "pad",
        [reals(2, 3)],
        lambda x: jax.lax.pad(x, 0.5, [(1, 2, 1), (0, 1, 2)]),
        {"low": (1, 0), "high": (2, 1), "interior": (1, 2), "value": 0.5},
    ),
    Case("reverse", [CUBE], lambda x: jnp.flip(x, (0, 2)), {"axes": (0, 2)}),
]

INDICES = np.array([[0, 4, 2], [-1, 0, 0]], np.int32)
INDEXING = [
    Case("take", [reals(5, 3), INDICES], lambda x, i: jnp.take(x, i, axis=0), {"axis": 0}),
    Case(
        "take",
        [reals(2, 5, 3), INDICES],
        lambda x, i: jnp.take(x, i, axis=1),
        {"axis": 1},
        suffix="middle",
    ),
    Case(
        "scatter_add",
        [reals(5, 3), INDICES, reals(2, 3, 3)],
        lambda x, i, u: jnp.asarray(x).at[i].add(u),
        {"axis": 0},
    ),
    Case(
        "scatter_add",
        [reals(2, 5, 3), INDICES, reals(2, 2, 3, 3)],
        lambda x, i, u: jnp.asarray(x).at[:, i].add(u),
        {"axis": 1},
        suffix="middle",
    ),
]


def jax_normalize(x: Any, axes: tuple[int, ...], eps: float, center: bool) -> Any:
    m = x.mean(axes, keepdims=True) * center
    r = jax.lax.rsqrt(((x - m) ** 2).mean(axes, keepdims=True) + eps)
    return (x - m) * r, jnp.squeeze(m, axes), jnp.squeeze(r, axes)


def jax_cross_entropy(x: Any, labels: Any) -> Any:
    lse = jax.scipy.special.logsumexp(x, -1)
    return lse - jnp.take_along_axis(x, labels[..., None], -1)[..., 0], lse


LABELS = ints(2, 3, low=0, high=4)
NN = [
    Case("softmax", [CUBE], lambda x: jax.nn.softmax(x, 1), {"axis": 1}),
    Case("log_softmax", [CUBE], lambda x: jax.nn.log_softmax(x, 2), {"axis": 2}),
    Case("cross_entropy", [CUBE, LABELS], jax_cross_entropy, ulp=32),
    *(
        Case(
            "normalize",
            [reals(4, 6, 5)],
            lambda x, axes=axes, center=center: jax_normalize(x, axes, 1e-3, center),
            {"axes": axes, "eps": 1e-3, "center": center},
            suffix=suffix,
            ulp=64,
        )
        for suffix, axes, center in (
            ("", (2,), True),
            ("batch", (0, 1), True),
            ("rms", (2,), False),
        )
    ),
]

CREATION = [
    Case("constant", [], lambda: jnp.array([1.5, -2.0]), {"value": np.array([1.5, -2.0])}),
    Case(
        "iota",
        [],
        lambda: jax.lax.broadcasted_iota(jnp.int32, (2, 3), 1),
        {"shape": (2, 3), "axis": 1, "dtype": np.dtype("int32")},
    ),
]

CASES = [
    *ELEMENTWISE,
    *REDUCTIONS,
    *CONTRACTIONS,
    *CONVOLUTIONS,
    *SHAPES,
    *INDEXING,
    *NN,
    *CREATION,
]

WITHOUT_CASE = {"vjp": "test_differentiate.py", "jvp": "test_differentiate.py"}
"""Ops that are about functions rather than arrays, and where they are tested."""
