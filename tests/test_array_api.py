# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The array API standard 2024.12 in the namespace `gradopt`: every mandatory name with its
parameters; a sample of each function, run at once and traced, against NumPy, which follows the
standard too; what depends on data; element types, indexing, devices and DLPack.

The public suite (docs/array-api.md) is the thorough test; this one is fast, and covers graphs.
"""

import inspect
import itertools
import operator
from collections.abc import Callable
from typing import Any

import gradopt as go
import numpy as np
import pytest
from gradopt.errors import ArgumentError, OpError, TraceError

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


# --- shapes that depend on data -------------------------------------------------------------------


def test_unique() -> None:
    """Every NaN is distinct; zeros of both signs are one. Values have gradients."""
    x = go.array([[2.0, 1.0, 2.0], [np.nan, 1.0, np.nan]])
    found = go.unique_all(x)
    np.testing.assert_array_equal(found.values, [1, 2, np.nan, np.nan])
    np.testing.assert_array_equal(found.counts, [2, 2, 1, 1])
    np.testing.assert_array_equal(x.flatten()[found.indices], found.values)
    np.testing.assert_array_equal(found.values[found.inverse_indices], x)
    assert found.inverse_indices.shape == x.shape and found.counts.dtype == go.int32
    assert go.unique_values(go.array([0.0, -0.0])).shape == (1,)
    assert go.unique_values(go.zeros((0, 2), go.int8)).dtype == go.int8
    np.testing.assert_array_equal(go.unique_counts([3, 1, 3]).counts, [1, 2])
    np.testing.assert_array_equal(go.unique_inverse([3, 1, 3]).inverse_indices, [1, 0, 1])


def test_nonzero() -> None:
    rows, columns = go.nonzero(go.array(I))
    np.testing.assert_array_equal((rows, columns), np.nonzero(I))
    assert rows.dtype == go.int32
    with pytest.raises(OpError, match="nonzero expected at least one axis, got an array of rank 0"):
        go.nonzero(go.array(3))


@pytest.mark.parametrize(
    ("fn", "fault"),
    [
        (go.unique_values, r"unique expected an array, because .* depends on data, got Tensor"),
        (go.nonzero, "nonzero expected a size, because a shape must not depend on data"),
        (lambda x: x[x > 0], r"shapes must not depend on data: use where\(\) for a mask"),
        (lambda x: go.repeat(x, x.astype("int32")), "repeats that are known"),
    ],
)
def test_data_dependent_in_a_graph(fn: Any, fault: str) -> None:
    """B36: a clear error in a trace, and constants are known there."""
    with pytest.raises((TraceError, OpError), match=fault):
        go.trace(fn, go.TensorSpec(4))
    mask = go.array([True, False, True, True])
    (got,) = run_reference(lambda x: x[mask] + go.unique_values(mask).sum(), np.arange(4.0))
    np.testing.assert_array_equal(got, [1, 3, 4])


# --- indexing -------------------------------------------------------------------------------------

KEYS = {
    "mask": (I > 0,),
    "mask of an axis": (slice(None), np.array([True, False, True])),
    "mask and integers": (np.array([True, False]), 1),
    "array": (np.array([1, 0, 1]),),
    "arrays": (np.array([[1], [0]]), np.array([2, 0])),
    "new axis": (None, 0, ..., slice(None, None, -2)),
}


@pytest.mark.parametrize("name", KEYS)
def test_index(name: str) -> None:
    """Reads and writes, with masks and index arrays that are Arrays, too."""
    key = KEYS[name]
    for k in (key, tuple(go.asarray(i) if isinstance(i, np.ndarray) else i for i in key)):
        x, want = go.array(X), X.copy()
        np.testing.assert_array_equal(x[k], X[key])
        x[k] = -8
        want[key] = -8
        np.testing.assert_array_equal(x, want)


def test_masks_of_rank_0() -> None:
    x = go.array(3.0)
    for mask in (True, go.array(True), np.array(True), (go.array(True),)):
        np.testing.assert_array_equal(x[mask], [3])
    assert go.ones((2, 3))[go.array(False)].shape == (0, 2, 3)
    x[go.array(False)] = 1
    x[go.array(x > 2)] += 4
    assert float(x) == 7


def test_outside() -> None:
    """What is outside is an IndexError, as Python's protocols and the standard expect."""
    x = go.ones((2, 3))
    for key in (2, (0, -4), (0, 0, 0), go.ones((2, 2), go.bool)):
        with pytest.raises(IndexError, match=r"'gradopt.* op expected"):
            x[key]
    for axis in (2, -3):
        with pytest.raises(IndexError, match=r"an axis in \[-2, 2\)"):
            go.sum(x, axis=axis)


def test_in_place() -> None:
    """B33: an operation in place changes that array alone, and keeps its type."""
    x = go.array([1, 2], dtype=go.int8)
    y, z = +x, go.astype(x, go.int8)
    x += 3
    x <<= go.array([1, 2], go.int8)
    np.testing.assert_array_equal(x, [8, 20])
    assert x.dtype == go.int8 and y.tolist() == z.tolist() == [1, 2]
    assert go.astype(x, go.int8, copy=False) is x
    with pytest.raises(OpError, match=r"'\+=' expected values of type tensor<2xi8>, got"):
        x += go.array([1, 2], go.int16)


# --- element types --------------------------------------------------------------------------------


def test_info_of_types() -> None:
    info = go.finfo(go.float32)
    assert (info.bits, info.dtype) == (32, go.float32)
    assert info.eps == np.finfo(np.float32).eps and info.max == -info.min
    assert go.finfo(go.ones(2, go.bfloat16)).eps == 2**-7
    assert (go.iinfo(go.uint16).min, go.iinfo(go.ones(1, go.uint64)).max) == (0, 2**64 - 1)
    with pytest.raises(OpError, match="finfo expected a floating-point type, got int32; see iinfo"):
        go.finfo(go.int32)
    with pytest.raises(OpError, match="iinfo expected an integer type, got bool; see finfo"):
        go.iinfo(go.bool)


def test_kinds() -> None:
    assert go.isdtype(go.uint8, "unsigned integer") and go.isdtype(go.int8, "integral")
    assert go.isdtype(go.float32, ("bool", go.float32)) and not go.isdtype(go.bool, "numeric")
    assert not go.isdtype(go.float64, "complex floating")
    with pytest.raises(OpError, match="isdtype expected a kind out of bool, signed integer"):
        go.isdtype(go.float32, "real number")


def test_common_types() -> None:
    assert go.result_type(go.ones(1, go.int8), go.uint8) == go.int16
    assert go.result_type(go.float32, 1.5, 2) == go.float32
    assert go.result_type(go.int8, 2.5) == go.float32
    assert go.result_type(np.float64, go.float32, True) == go.float64
    assert go.can_cast(go.int8, go.int16) and not go.can_cast(go.ones(1, go.int64), go.int32)
    assert not go.can_cast(go.uint64, go.int64)
    with pytest.raises(OpError, match="one type holds, got uint64 and int8; convert"):
        go.result_type(go.uint64, go.int8)
    with pytest.raises(OpError, match="at least one array or element type, got none"):
        go.result_type()


@pytest.mark.parametrize("dtype", DTYPES)
def test_operators_keep_the_type(dtype: str) -> None:
    """Python numbers adapt to the array, on either side."""
    x = go.ones(3, dtype)
    ops: list[Any] = [operator.and_, operator.or_, operator.xor] if "float" not in dtype else []
    if dtype != "bool":
        ops += [operator.add, operator.sub, operator.mul, operator.mod, operator.floordiv]
        ops += [operator.pow, *([operator.lshift, operator.rshift] if "int" in dtype else [])]
    one = True if dtype == "bool" else 1
    for op in ops:
        for got in (op(x, one), op(one, x), op(x, x)):
            assert got.dtype == dtype and got.tolist() == op(np.ones(3, dtype), one).tolist()


def test_whole_numbers_stay() -> None:
    """Rounding, squares and powers of integers are integers; a power is modulo 2^width."""
    x = go.array([-3, 0, 7], go.int16)
    for fn in (go.floor, go.ceil, go.trunc, go.round, go.square, go.positive):
        assert fn(x).dtype == go.int16
    base, exponent = np.array([2, -1, 1, 0, 3, -2]), np.array([-1, -3, -2, -1, 40, 31])
    got = go.pow(go.array(base, go.int32), go.array(exponent, go.int32))
    power = 3**40 % 2**32
    assert got.tolist() == [0, -1, 1, 0, power - 2**32 * (power >= 2**31), -(2**31)]
    assert (go.array([2], go.int32) ** -1).tolist() == [0.5]


# --- devices, other libraries ---------------------------------------------------------------------


def test_inspection() -> None:
    info = go.__array_namespace_info__()
    assert info.capabilities()["boolean indexing"] and info.capabilities()["data-dependent shapes"]
    assert info.default_device() in info.devices()
    assert info.default_dtypes() == {
        "real floating": go.float32, "integral": go.int32, "indexing": go.int32,
    }  # fmt: skip
    assert set(info.dtypes()) == set(DTYPES)
    assert set(info.dtypes(kind=("bool", "real floating"))) == {"bool", "float32", "float64"}
    assert info.dtypes(kind="complex floating") == {}
    with pytest.raises(ArgumentError, match="expected a device out of cpu, got 'moon'"):
        info.dtypes(device="moon")


def test_devices() -> None:
    x = go.zeros(3, device="cpu")
    assert x.to_device("cpu") is x and x.device == go.__array_namespace_info__().default_device()
    for call in (lambda: go.ones(2, device="moon"), lambda: x.to_device("moon")):
        with pytest.raises(ArgumentError, match="expected a device out of cpu, got 'moon'"):
            call()
    with pytest.raises(ArgumentError, match="to_device expected no stream, got 3"):
        x.to_device("cpu", stream=3)
    graph = go.trace(lambda t: go.zeros_like(t, device=t.device).to_device(None) + t, x.spec)
    assert graph.output_specs == [x.spec]
    with pytest.raises(TraceError, match="cannot be moved to 'cpu': it is where the function"):
        go.trace(lambda t: t.to_device("cpu"), x.spec)


def test_asarray() -> None:
    x = go.array([1.0, 2.0])
    assert go.asarray(x) is x and go.asarray(x, copy=False) is x
    y = go.asarray(x, copy=True)
    y += 1
    assert x.tolist() == [1, 2]
    assert go.asarray([2**64 - 1], dtype=go.uint64).tolist() == [2**64 - 1]
    assert go.asarray([True, 2]).dtype == go.int32 and go.asarray(1.5).dtype == go.float32
    for args in ((x, go.int8), (np.ones(2), None), ([1], None)):
        with pytest.raises(ValueError, match="asarray expected copy=None or True"):
            go.asarray(*args, copy=False)


def test_dlpack() -> None:
    """C022: both ways, shared where it can be; a copy on demand."""
    x = go.array([1.0, 2.0])
    np.testing.assert_array_equal(np.from_dlpack(x), [1, 2])
    assert x.__dlpack_device__()[0] == 1
    memory = np.zeros(64, np.float32)
    at = -memory.ctypes.data % 64 // 4
    part = memory[at : at + 8]
    shared, copied = go.from_dlpack(part, copy=False), go.from_dlpack(part, copy=True)
    part[:] = 3
    assert shared.tolist() == [3] * 8 and copied.tolist() == [0] * 8
    with pytest.raises(ArgumentError, match="contiguous and aligned to 64 bytes for copy=False"):
        go.from_dlpack(part[1:], copy=False)
    with pytest.raises(ArgumentError, match="expected a device out of cpu, got 'moon'"):
        go.from_dlpack(part, device="moon")
