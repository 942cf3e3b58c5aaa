# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The array API standard 2024.12 in the namespace `gradopt`: every mandatory name with its
parameters; a sample of each function, run at once and traced, against NumPy, which follows the
standard too.

The public suite (docs/array-api.md) is the thorough test; this one is fast, and covers graphs.
"""

import inspect
import itertools
from collections.abc import Callable
from typing import Any

import gradopt as go
import numpy as np
import pytest
from gradopt.errors import OpError

from .helpers import run_reference

# --- names and parameters -------------------------------------------------------------------------


def words(text: str) -> list[str]:
    return text.split()


SIGNATURES = """
arange(start, /, stop, step, *, dtype, device)      asarray(obj, /, *, dtype, device, copy)
empty(shape, *, dtype, device)                      empty_like(x, /, *, dtype, device)
eye(n_rows, n_cols, /, *, k, dtype, device)         from_dlpack(x, /, *, device, copy)
full(shape, fill_value, *, dtype, device)           full_like(x, /, fill_value, *, dtype, device)
linspace(start, stop, /, num, *, dtype, device, endpoint)
meshgrid(*arrays, indexing)                         ones(shape, *, dtype, device)
ones_like(x, /, *, dtype, device)                   tril(x, /, *, k)
triu(x, /, *, k)                                    zeros(shape, *, dtype, device)
zeros_like(x, /, *, dtype, device)                  astype(x, dtype, /, *, copy, device)
can_cast(from_, to, /)                              finfo(type, /)
iinfo(type, /)                                      isdtype(dtype, kind)
result_type(*arrays_and_dtypes)                     clip(x, /, min, max)
take(x, indices, /, *, axis)                        take_along_axis(x, indices, /, *, axis)
matrix_transpose(x, /)                              tensordot(x1, x2, /, *, axes)
vecdot(x1, x2, /, *, axis)                          broadcast_arrays(*arrays)
broadcast_to(x, /, shape)                           concat(arrays, /, *, axis)
expand_dims(x, /, axis)                             flip(x, /, *, axis)
moveaxis(x, source, destination, /)                 permute_dims(x, /, axes)
repeat(x, repeats, /, *, axis)                      reshape(x, /, shape, *, copy)
roll(x, /, shift, *, axis)                          squeeze(x, /, axis)
stack(arrays, /, *, axis)                           tile(x, repetitions, /)
unstack(x, /, *, axis)                              argmax(x, /, *, axis, keepdims)
argmin(x, /, *, axis, keepdims)                     count_nonzero(x, /, *, axis, keepdims)
nonzero(x, /)                                       searchsorted(x1, x2, /, *, side, sorter)
where(condition, x1, x2, /)                         unique_all(x, /)
unique_counts(x, /)                                 unique_inverse(x, /)
unique_values(x, /)                                 argsort(x, /, *, axis, descending, stable)
sort(x, /, *, axis, descending, stable)             max(x, /, *, axis, keepdims)
cumulative_prod(x, /, *, axis, dtype, include_initial)
cumulative_sum(x, /, *, axis, dtype, include_initial)
mean(x, /, *, axis, keepdims)                       min(x, /, *, axis, keepdims)
prod(x, /, *, axis, dtype, keepdims)                std(x, /, *, axis, correction, keepdims)
sum(x, /, *, axis, dtype, keepdims)                 var(x, /, *, axis, correction, keepdims)
all(x, /, *, axis, keepdims)                        any(x, /, *, axis, keepdims)
diff(x, /, *, axis, n, prepend, append)             matmul(x1, x2, /)
__array_namespace_info__()
"""
UNARY = words(
    """
abs acos acosh asin asinh atan atanh bitwise_invert ceil conj cos cosh exp expm1 floor imag isfinite
isinf isnan log log1p log2 log10 logical_not negative positive real reciprocal round sign signbit
sin sinh sqrt square tan tanh trunc
"""
)
BINARY = words(
    """
add atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor copysign divide
equal floor_divide greater greater_equal hypot less less_equal logaddexp logical_and logical_or
logical_xor maximum minimum multiply nextafter not_equal pow remainder subtract
"""
)
DTYPES = ["bool", *(f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64)), "float32", "float64"]
METHODS = words(
    """
__abs__ __add__ __and__ __array_namespace__ __bool__ __complex__ __dlpack__ __dlpack_device__ __eq__
__float__ __floordiv__ __ge__ __getitem__ __gt__ __index__ __int__ __invert__ __le__ __lshift__
__lt__ __matmul__ __mod__ __mul__ __ne__ __neg__ __or__ __pos__ __pow__ __rshift__ __setitem__
__sub__ __truediv__ __xor__ to_device dtype device mT ndim shape size T __iadd__ __isub__ __imul__
__itruediv__ __ifloordiv__ __ipow__ __imod__ __imatmul__ __iand__ __ior__ __ixor__ __ilshift__
__irshift__ __radd__ __rsub__ __rmul__ __rtruediv__ __rfloordiv__ __rpow__ __rmod__ __rmatmul__
__rand__ __ror__ __rxor__ __rlshift__ __rrshift__
"""
)


def signatures() -> dict[str, str]:
    """The parameters of each function, as the standard has them."""
    found = dict.fromkeys(UNARY, "x, /") | dict.fromkeys(BINARY, "x1, x2, /")
    for word in SIGNATURES.replace("\n", "  ").split("  "):
        if word.strip():
            name, _, rest = word.strip().partition("(")
            found[name] = rest[:-1]
    return found


TAKES = signatures()
OPTIONAL = {"arange": ["stop", "step"], "eye": ["n_cols"], "clip": ["min", "max"]}
"""Parameters that can be given by position, and need not be."""


@pytest.mark.parametrize("name", TAKES)
def test_signature(name: str) -> None:
    """Every call that the standard allows binds: what is needed alone, and all parameters, those
    that may be named by name and by position.
    """
    before, _, after = TAKES[name].rpartition("/")
    places, named = ([w.strip() for w in part.split(",") if w.strip()] for part in (before, after))
    by_either = list(itertools.takewhile(lambda w: w[0] != "*", named))
    by_name = named[len(by_either) + 1 :]
    if any(w[0] == "*" and len(w) > 1 for w in named):  # as many as one likes
        calls = [([], []), (["", "", ""], by_name)]
    else:
        needed = [w for w in places + by_either if w not in OPTIONAL.get(name, [])]
        calls = [(needed, []), (places, by_either + by_name), (places + by_either, by_name)]
    signature = inspect.signature(getattr(go, name))
    for given, names in calls:
        signature.bind(*given, **dict.fromkeys(names))
    assert list(signature.parameters)[len(places) :][: len(by_either)] == by_either


def test_names() -> None:
    """Array attributes and methods, of tensors of a graph too; constants; element types."""
    x = go.ones((1, 1))
    assert [m for m in METHODS if not hasattr(x, m)] == []
    found: list[str] = []
    go.trace(lambda t: found.extend(m for m in METHODS if not hasattr(t, m)) or t, x.spec)
    assert set(found) <= {"__dlpack_device__"}
    assert (go.e, go.pi, go.inf, go.newaxis) == (np.e, np.pi, np.inf, None)
    assert go.nan != go.nan
    for name in DTYPES:
        assert getattr(go, name) == np.dtype(name)
    assert go.__array_api_version__ == "2024.12"


def test_namespace() -> None:
    x = go.ones(3)
    assert x.__array_namespace__() is go
    assert x.__array_namespace__(api_version="2023.12") is go
    with pytest.raises(OpError, match=r"a version of the array API out of 2021.12, .*got '2019'"):
        x.__array_namespace__(api_version="2019")
    namespaces = []
    go.trace(lambda t: namespaces.append(t.__array_namespace__()) or t, x.spec)
    assert namespaces == [go]


# --- a sample of each function --------------------------------------------------------------------

X = np.array([[0.5, -1.25, 3.0], [2.0, -0.0, 1.75]])
Y = np.array([[2.0, 0.75, -3.0], [1.5, 4.0, 1.75]])
UNIT = X / 4
I = np.array([[5, -3, 7], [0, 2, -9]], np.int32)
J = np.array([[2, 1, 3], [0, 1, 2]], np.int32)
B = I > 0
ROW = np.array([1.0, 2.0, 2.0, 5.0])
SQUARE = np.arange(9.0).reshape(3, 3)
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0])

IN_UNIT = {"acos", "asin", "atanh"}
POSITIVE = {"acosh", "log", "log2", "log10", "log1p", "sqrt"}
WHOLE = {f"bitwise_{n}" for n in ("and", "or", "xor", "invert", "left_shift", "right_shift")}

SAMPLES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    **{
        name: (
            lambda xp, x, n=name: getattr(xp, n)(x),
            (UNIT if name in IN_UNIT else abs(X) + 1 if name in POSITIVE else I
             if name in WHOLE else B if name == "logical_not" else X,),
        )
        for name in UNARY
    },
    **{
        name: (
            lambda xp, x, y, n=name: getattr(xp, n)(x, y),
            (I, J) if name in WHOLE else (B, ~B) if name.startswith("logical_")
            else (abs(X), Y) if name == "pow" else (X, Y),
        )
        for name in BINARY
    },
    "arange": (lambda xp: xp.arange(1, stop=9, step=3), ()),
    "arange of floats": (lambda xp: xp.arange(0.5, 4, 1.5), ()),
    "asarray": (lambda xp, x: xp.asarray(x, dtype=xp.float32), (X,)),
    "empty": (lambda xp: xp.empty((2, 3)).shape == (2, 3) and xp.ones(1), ()),
    "empty_like": (lambda xp, x: xp.empty_like(x) * 0, (I,)),
    "eye": (lambda xp: xp.eye(3, 4, k=1), ()),
    "full": (lambda xp: xp.full((2, 2), 7), ()),
    "full_like": (lambda xp, x: xp.full_like(x, 2.5), (X,)),
    "linspace": (lambda xp: xp.linspace(0, 1, 5), ()),
    "linspace without end": (lambda xp: xp.linspace(1, -1, num=4, endpoint=False), ()),
    "meshgrid": (lambda xp, a: xp.concat(xp.meshgrid(a, a[:2], a[1:])), (ROW,)),
    "meshgrid in order": (lambda xp, a: xp.meshgrid(a, a[:2], indexing="ij")[1], (ROW,)),
    "ones": (lambda xp: xp.ones((2, 1), dtype=xp.int16), ()),
    "ones_like": (lambda xp, x: xp.ones_like(x), (I,)),
    "zeros": (lambda xp: xp.zeros(3, dtype=xp.bool), ()),
    "zeros_like": (lambda xp, x: xp.zeros_like(x, dtype=xp.float64), (I,)),
    "tril": (lambda xp, x: xp.tril(x, k=-1), (SQUARE,)),
    "triu": (lambda xp, x: xp.triu(x, k=1), (SQUARE,)),
    "astype": (lambda xp, x: xp.astype(x, xp.uint8), (abs(X),)),
    "astype of the same": (lambda xp, x: xp.astype(x, xp.float64), (X,)),
    "clip": (lambda xp, x: xp.clip(x, min=0, max=2), (X,)),
    "clip by arrays": (lambda xp, x, y: xp.clip(x, max=y), (X, Y)),
    "take": (lambda xp, x, i: xp.take(x, i, axis=1), (X, np.array([2, 0]))),
    "take_along_axis": (lambda xp, x, i: xp.take_along_axis(x, i % 3, axis=1), (X, abs(I))),
    "matmul": (lambda xp, x, y: xp.matmul(x, xp.matrix_transpose(y)), (X, Y)),
    "matrix_transpose": (lambda xp, x: xp.matrix_transpose(x), (X,)),
    "tensordot": (lambda xp, x, y: xp.tensordot(x, y, axes=((0, 1), (0, 1))), (X, Y)),
    "vecdot": (lambda xp, x, y: xp.vecdot(x, y[:1]), (X, Y)),
    "vecdot along an axis": (lambda xp, x, y: xp.vecdot(x, y, axis=-2), (I, J)),
    "broadcast_arrays": (lambda xp, x, y: xp.stack(xp.broadcast_arrays(x, y[0])), (X, Y)),
    "broadcast_to": (lambda xp, x: xp.broadcast_to(x, (2, 2, 3)), (X,)),
    "concat": (lambda xp, x, y: xp.concat((x, y), axis=1), (X, I)),
    "concat flat": (lambda xp, x, y: xp.concat([x, y], axis=None), (X, ROW)),
    "expand_dims": (lambda xp, x: xp.expand_dims(x, axis=-1), (X,)),
    "flip": (lambda xp, x: xp.flip(x, axis=0), (X,)),
    "moveaxis": (lambda xp, x: xp.moveaxis(x[None], (0, 1), (2, 0)), (X,)),
    "permute_dims": (lambda xp, x: xp.permute_dims(x, (1, 0)), (X,)),
    "repeat": (lambda xp, x: xp.repeat(x, 2, axis=1), (X,)),
    "repeat by counts": (lambda xp, x: xp.repeat(x, np.array([2, 0, 1]), axis=1), (X,)),
    "reshape": (lambda xp, x: xp.reshape(x, (3, -1)), (X,)),
    "roll": (lambda xp, x: xp.roll(x, 2), (X,)),
    "roll of axes": (lambda xp, x: xp.roll(x, (1, 1), axis=(0, 1)), (X,)),
    "squeeze": (lambda xp, x: xp.squeeze(x[:, None], axis=1), (X,)),
    "stack": (lambda xp, x, y: xp.stack((x, y), axis=-1), (X, Y)),
    "tile": (lambda xp, x: xp.tile(x, (2, 1, 2)), (X,)),
    "unstack": (lambda xp, x: xp.unstack(x, axis=1)[2], (X,)),
    "argmax": (lambda xp, x: xp.argmax(x, axis=1, keepdims=True), (X,)),
    "argmin": (lambda xp, x: xp.argmin(x), (X,)),
    "count_nonzero": (lambda xp, x: xp.count_nonzero(x, axis=0), (I,)),
    "searchsorted": (lambda xp, x, y: xp.searchsorted(x, y, side="right"), (ROW, X)),
    "searchsorted by a sorter": (
        lambda xp, x, y: xp.searchsorted(x[::-1], y, sorter=xp.argsort(x[::-1])), (ROW, X),
    ),
    "where": (lambda xp, b, x: xp.where(b, x, 0), (B, X)),
    "argsort": (lambda xp, x: xp.argsort(x, axis=1), (X,)),
    "sort": (lambda xp, x: xp.flip(xp.sort(x, axis=0), axis=0), (X,)),
    "cumulative_prod": (lambda xp, x: xp.cumulative_prod(x, axis=1), (X,)),
    "cumulative_sum": (
        lambda xp, x: xp.cumulative_sum(x, axis=0, dtype=xp.float64, include_initial=True), (I,),
    ),
    "max": (lambda xp, x: xp.max(x, axis=1), (X,)),
    "min": (lambda xp, x: xp.min(x, keepdims=True), (X,)),
    "mean": (lambda xp, x: xp.mean(x, axis=(0, 1)), (X,)),
    "prod": (lambda xp, x: xp.prod(x, axis=0, dtype=xp.float64), (I,)),
    "sum": (lambda xp, x: xp.sum(x, axis=1, keepdims=True), (X,)),
    "std": (lambda xp, x: xp.std(x, axis=1, correction=1), (X,)),
    "var": (lambda xp, x: xp.var(x, correction=0.5), (X,)),
    "all": (lambda xp, x: xp.all(x, axis=1), (I,)),
    "any": (lambda xp, x: xp.any(x), (B,)),
    "diff": (lambda xp, x: xp.diff(x, axis=1, n=2, append=x[:, :1]), (X,)),
    "linalg.diagonal": (lambda xp, x: xp.linalg.diagonal(x, offset=1), (SQUARE,)),
    "linalg.trace": (lambda xp, x: xp.linalg.trace(x, offset=-1), (SQUARE,)),
    "linalg.cross": (lambda xp, x, y: xp.linalg.cross(x, y, axis=1), (X, Y)),
    "linalg.outer": (lambda xp, x: xp.linalg.outer(x, x), (ROW,)),
    "linalg.matrix_power": (lambda xp, x: xp.linalg.matrix_power(x, 5), (SQUARE,)),
    "linalg.matrix_power of 0": (lambda xp, x: xp.linalg.matrix_power(x, 0), (SQUARE,)),
    **{
        f"linalg.vector_norm {kind}": (
            lambda xp, x, o=kind: xp.linalg.vector_norm(x, axis=1, ord=o), (X,),
        )
        for kind in (0, 1, 2, 3.5, np.inf, -np.inf)
    },
    **{
        f"linalg.matrix_norm {kind}": (
            lambda xp, x, o=kind: xp.linalg.matrix_norm(x, ord=o), (X[None],),
        )
        for kind in ("fro", 1, -1, np.inf, -np.inf)
    },
}  # fmt: skip
ELSEWHERE = {
    "from_dlpack", "can_cast", "finfo", "iinfo", "isdtype", "result_type", "nonzero", "unique_all",
    "unique_counts", "unique_inverse", "unique_values", "__array_namespace_info__",
}  # fmt: skip
"""Functions that are not of tensors, or not for graphs: each has a test of its own below."""


def test_every_function_has_a_sample() -> None:
    assert {s.partition(" ")[0] for s in SAMPLES if "linalg" not in s} | ELSEWHERE == set(TAKES)


@pytest.mark.parametrize("name", SAMPLES)
def test_sample(name: str) -> None:
    """C020: at once as traced, bit for bit, in one type; both as NumPy has it."""
    fn, inputs = SAMPLES[name]
    at_once = fn(go, *map(go.asarray, inputs))
    (traced,) = run_reference(lambda *xs: fn(go, *xs), *inputs)
    assert at_once.dtype == traced.dtype
    np.testing.assert_array_equal(at_once, traced)
    with np.errstate(all="ignore"):
        want = fn(np, *inputs)
    assert at_once.shape == want.shape and at_once.dtype.kind == want.dtype.kind
    np.testing.assert_allclose(at_once, want, rtol=1e-6 if at_once.dtype == "float32" else 1e-14)


@pytest.mark.parametrize("name", [n for n in (*UNARY, *BINARY) if n not in WHOLE])
def test_special_values(name: str) -> None:
    """Zeros of both signs, infinities and NaN as NumPy has them; floor_divide is special."""
    x = SPECIAL.astype(bool) if name.startswith("logical_") else SPECIAL
    inputs = [x] if name in UNARY else [np.repeat(x, len(x)), np.tile(x, len(x))]
    with np.errstate(all="ignore"):
        want = getattr(np, name)(*inputs)
        if name == "floor_divide":
            infinite = np.isinf(inputs[0]) | np.isinf(inputs[1])
            want = np.where(infinite, inputs[0] / inputs[1], want)
    got = getattr(go, name)(*map(go.asarray, inputs)).numpy()
    np.testing.assert_array_equal(got, want)
    if got.dtype.kind == "f":
        np.testing.assert_array_equal(
            np.signbit(got), np.signbit(want) & ~np.isnan(want) | (np.signbit(got) & np.isnan(got))
        )
