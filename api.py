# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""All that `import gradopt as go` gives. It is imported when a name is first asked for, so that
`gradopt.deploy` runs where there is no compiler.
"""

# ruff: noqa: A004 - NumPy's names are the point
import importlib as _importlib
import math as _math
import typing as _typing

from . import nn, optim
from .dialect import checkpoint_policies, linalg
from .dialect import operators as _operators
from .dialect.activation import (
    celu,
    elu,
    gelu,
    hard_sigmoid,
    hard_swish,
    hardtanh,
    leaky_relu,
    mish,
    prelu,
    relu,
    relu6,
    selu,
    sigmoid,
    silu,
    softplus,
    softsign,
)
from .dialect.arithmetic import (
    abs,
    add,
    ceil,
    copysign,
    div,
    floor,
    floor_divide,
    fmod,
    maximum,
    minimum,
    mul,
    neg,
    remainder,
    round,
    round_half_away,
    sign,
    sub,
    trunc,
)
from .dialect.arrange import diagonal, diff, matrix_trace, repeat, roll, tile, tril, triu
from .dialect.attention import attention, rotary
from .dialect.batch_norm import batch_norm
from .dialect.bits import count_leading_zeros, nextafter, popcount, shift_right_logical
from .dialect.blend import (
    deg2rad,
    div_no_nan,
    heaviside,
    lerp,
    nan_to_num,
    rad2deg,
    signbit,
    squared_difference,
)
from .dialect.blocks import depth_to_space, space_to_depth
from .dialect.builder import name_scope
from .dialect.contraction import (
    dot,
    dot_general,
    matmul,
    outer,
    tensordot,
    vecdot,
)
from .dialect.control import optimization_barrier, stop_gradient, tag
from .dialect.convolution import conv, conv_transpose
from .dialect.counting import (
    argwhere,
    bincount,
    count_nonzero,
    nonzero,
    one_hot,
    unravel_index,
)
from .dialect.creation import (
    arange,
    constant,
    empty,
    empty_like,
    eye,
    full,
    full_like,
    iota,
    linspace,
    ones,
    ones_like,
    zeros,
    zeros_like,
)
from .dialect.datatypes import (
    can_cast,
    finfo,
    iinfo,
    isdtype,
    result_type,
)
from .dialect.distance import (
    bce,
    bce_with_logits,
    cosine_similarity,
    focal,
    gaussian_nll,
    hinge,
    huber,
    kl_div,
    mae,
    mse,
    poisson_nll,
    smooth_l1,
    triplet_margin,
)
from .dialect.dynamic import dynamic_slice, dynamic_update_slice, update_slice
from .dialect.einsum import cross, einsum, inner, kron, vdot
from .dialect.elementwise import mul_no_nan
from .dialect.entropy import entr, lbeta, logit, sinc, xlog1py, xlogy
from .dialect.gather import take_along_axis
from .dialect.graph import Graph, trace
from .dialect.indexing import embedding, scatter_add, take
from .dialect.jacobian import hessian, hvp, jacobian
from .dialect.logic import (
    bitcast,
    bitwise_and,
    bitwise_not,
    bitwise_or,
    bitwise_xor,
    clamp,
    clip,
    compare,
    convert,
    equal,
    greater,
    greater_equal,
    is_finite,
    is_inf,
    is_nan,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    not_equal,
    select,
    shift_left,
    shift_right,
    where,
)
from .dialect.loops import fori_loop, scan
from .dialect.loss import cross_entropy, nll_loss
from .dialect.masked import masked_mean, masked_sum
from .dialect.modes import autocast, infer_mode, is_training, train_mode
from .dialect.nn import dropout, log_softmax, softmax
from .dialect.norm import group_norm, instance_norm, layer_norm, rms_norm
from .dialect.padding import pad
from .dialect.patches import extract_patches, fold_patches
from .dialect.pooling import avg_pool, max_pool, min_pool, sum_pool
from .dialect.recurrent import gru_cell, lstm_cell
from .dialect.reduction import (
    all,
    any,
    argmax,
    argmin,
    logsumexp,
    max,
    mean,
    min,
    norm,
    prod,
    std,
    sum,
    var,
)
from .dialect.resize import adaptive_avg_pool, adaptive_max_pool, resize, upsample
from .dialect.response_norm import local_response_norm
from .dialect.rules import checkpoint, custom_vjp
from .dialect.scan import (
    cumlogsumexp,
    cummax,
    cummin,
    cumprod,
    cumsum,
    cumulative_prod,
    cumulative_sum,
    linear_scan,
)
from .dialect.scatter import (
    put_along_axis,
    scatter_max,
    scatter_min,
    scatter_mul,
    scatter_set,
    segment_max,
    segment_sum,
)
from .dialect.sets import (
    unique_all,
    unique_counts,
    unique_inverse,
    unique_values,
)
from .dialect.shape import (
    broadcast_arrays,
    broadcast_to,
    expand_dims,
    matrix_transpose,
    meshgrid,
    moveaxis,
    permute_dims,
    reshape,
    squeeze,
    swapaxes,
    transpose,
)
from .dialect.shrink import (
    glu,
    hard_shrink,
    log_sigmoid,
    ndtr,
    soft_shrink,
    squareplus,
    threshold,
)
from .dialect.slicing import concat, flip, split, stack, unstack
from .dialect.sort import argsort, median, quantile, searchsorted, sort, top_k
from .dialect.special import digamma, erf, erf_inv, erfc, lgamma, polygamma
from .dialect.standard import (
    astype,
    bitwise_invert,
    bitwise_left_shift,
    bitwise_right_shift,
    conj,
    divide,
    imag,
    isfinite,
    isinf,
    isnan,
    multiply,
    negative,
    positive,
    real,
    subtract,
)
from .dialect.tensor import Tensor
from .dialect.transcendental import (
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    cbrt,
    cos,
    cosh,
    exp,
    exp2,
    expm1,
    hypot,
    log,
    log1p,
    log2,
    log10,
    logaddexp,
    pow,
    reciprocal,
    rsqrt,
    sin,
    sinh,
    sqrt,
    square,
    tan,
    tanh,
)
from .dialect.transform import grad, jvp, value_and_grad, vjp
from .dialect.types import (
    TensorSpec,
    bfloat16,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from .dialect.types import bool_ as _bool
from .runtime import autograd
from .runtime import generator as random
from .runtime import imperative as _imperative
from .runtime.array import Array, array, asarray, device_put
from .runtime.autograd import backward, is_recording, pause, record
from .runtime.bucketed import bucketed
from .runtime.cache import cache_info
from .runtime.config import config, eager_mode, invoke
from .runtime.deferred import clear, deferred, get_graph, set_variable
from .runtime.dispatch import block_until_ready
from .runtime.dlpack import from_dlpack
from .runtime.function import CachedFunction, compile, deserialize
from .runtime.hybrid import HybridFunction, hybridize
from .runtime.info import __array_namespace_info__
from .runtime.modules import clear_cache
from .runtime.present import devices
from .runtime.recorded import Pullback
from .runtime.why import Miss, why

__array_api_version__ = _operators.VERSIONS[-1]

bool = _bool  # noqa: A001 - the standard's name
e, pi, inf, nan = _math.e, _math.pi, _math.inf, _math.nan
newaxis = None

if _typing.TYPE_CHECKING:
    from .lowering import services
    from .lowering.residuals import print_residuals, residuals
    from .runtime.artifact import export
    from .runtime.debug import debug_infs, debug_nans
    from .runtime.profile import profile
    from .runtime.restore import restore

_LATER = {
    "debug_infs": "runtime.debug",
    "debug_nans": "runtime.debug",
    "export": "runtime.artifact",
    "print_residuals": "lowering.residuals",
    "profile": "runtime.profile",
    "residuals": "lowering.residuals",
    "restore": "runtime.restore",
    "services": "lowering",
}
"""Names that need the passes, and where they are: imported when first used, so that a program whose
modules are on disk starts faster.
"""


def __getattr__(name: str) -> _typing.Any:
    if name not in _LATER:
        raise AttributeError(f"module '{__package__}' has no attribute '{name}'")
    if name == "services":
        return _importlib.import_module(".lowering.services", __package__)
    return getattr(_importlib.import_module(f".{_LATER[name]}", __package__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
