# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Arrays: NumPy's functions on them, what they look like, copies and pickles, and the bytes that
eager ops move.
"""

import copy
import inspect
import operator
import pickle
from collections.abc import Callable
from typing import Any

import gradopt as go
import numpy as np
import pytest
from gradopt.dialect.types import DTYPES
from gradopt.runtime import interop
from gradopt.runtime.state import state

X = np.array([[0.5, -0.25, 0.75], [0.125, 1.0, -0.5]], np.float32)
Y = np.array([[2.0, 0.25, 1.5], [-1.0, 0.5, 4.0]], np.float32)
WHOLE = np.array([[5, 2, 7], [1, 0, 3]], np.int32)
MASK = WHOLE > 2

# --- NumPy's functions ----------------------------------------------------------------------------

INTEGERS = {"left_shift", "right_shift"}
LOGIC = {"logical_and", "logical_or", "logical_xor", "logical_not"}
BITS = {"bitwise_and", "bitwise_or", "bitwise_xor", "invert"}
ABOVE_ONE = {"log", "log10", "log1p", "log2", "power", "sqrt"}


@pytest.mark.parametrize("name", sorted(interop.UFUNCS))
def test_ufuncs_run_through_gradopt(name: str) -> None:
    """B38: NumPy's elementwise functions on Arrays are ops, and give what NumPy gives."""
    ufunc = getattr(np, name)
    assert ufunc.__name__ == name
    kinds = [WHOLE] if name in INTEGERS else [MASK, WHOLE] if name in BITS else [X]
    for first in [MASK] if name in LOGIC else kinds:
        first = first + 1 if name in ABOVE_ONE else first / 2 if name == "arctanh" else first
        inputs = [first, first[::-1] if first.dtype != np.float32 else Y][: ufunc.nin]
        inputs = [first + 2] if name == "arccosh" else inputs
        inputs = [first, Y.T] if name == "matmul" else inputs
        got = ufunc(*map(go.array, inputs))
        want = ufunc(*inputs)
        assert type(got) is go.Array
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        np.testing.assert_allclose(got, want, rtol=3e-7)


POSITIONS = np.array([[0, 1, 1], [1, 0, 1]])
CALLS: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "all": [((MASK,), {"axis": 0})],
    "amax": [((X, 1), {})],
    "amin": [((X,), {"keepdims": True})],
    "any": [((MASK,), {})],
    "argmax": [((X,), {"axis": 1})],
    "argmin": [((X, 0), {})],
    "argsort": [((X,), {}), ((X, 0), {})],
    "broadcast_to": [((X, (4, 2, 3)), {})],
    "clip": [((X, -0.25, 0.5), {}), ((X,), {"min": 0.0}), ((X,), {"a_min": None, "a_max": 0.5})],
    "concatenate": [(([X, Y],), {}), (([X, Y], 1), {})],
    "cumprod": [((X, 1), {})],
    "cumsum": [((X,), {}), ((X,), {"axis": 0})],
    "diagonal": [((X,), {"offset": 1})],
    "diff": [((X,), {}), ((X,), {"axis": 0, "n": 1})],
    "dot": [((X, Y.T), {})],
    "einsum": [(("ij,kj->ik", X, Y), {})],
    "expand_dims": [((X, 1), {})],
    "flip": [((X,), {}), ((X, 1), {})],
    "full_like": [((X, 2.5), {}), ((X, 2), {"dtype": np.int32})],
    "max": [((X,), {}), ((X, 0, None, True), {})],
    "mean": [((X, 1), {}), ((X,), {"keepdims": True})],
    "median": [((X,), {"axis": 1})],
    "min": [((X, (0, 1)), {})],
    "moveaxis": [((X, 0, 1), {})],
    "nan_to_num": [((np.array([np.nan, 1, np.inf], np.float32),), {"nan": 3.0})],
    "ones_like": [((X,), {})],
    "prod": [((X,), {"axis": 0})],
    "ravel": [((X,), {})],
    "repeat": [((X, 2), {"axis": 1})],
    "reshape": [((X, (3, -1)), {})],
    "roll": [((X, 1), {}), ((X, 1, 0), {})],
    "round": [((X,), {})],
    "sort": [((X,), {}), ((X, 0), {})],
    "squeeze": [((X[None],), {}), ((X[None], 0), {})],
    "stack": [(([X, Y],), {"axis": 1})],
    "std": [((X,), {"ddof": 1})],
    "sum": [((X,), {}), ((X,), {"axis": (0, 1), "keepdims": True}), ((X, 1, None), {})],
    "swapaxes": [((X, 0, 1), {})],
    "take": [((X, np.array([1, 0, 1])), {"axis": 1})],
    "take_along_axis": [((X, POSITIONS, 1), {})],
    "tensordot": [((X, Y), {}), ((X, Y, ([1], [1])), {})],
    "tile": [((X, (2, 1)), {})],
    "transpose": [((X,), {}), ((X, (1, 0)), {})],
    "tril": [((X,), {}), ((X, 1), {})],
    "triu": [((X,), {"k": 1})],
    "var": [((X, 0), {})],
    "where": [((MASK, X, Y), {}), ((MASK, X, 0), {})],
    "zeros_like": [((X,), {})],
}


def converted(x: Any) -> Any:
    """Arguments with Arrays for NumPy's floats and masks."""
    if isinstance(x, np.ndarray):
        return go.array(x)
    return [converted(v) for v in x] if isinstance(x, list) and x[0] is X else x


@pytest.mark.parametrize("name", sorted(interop.FUNCTIONS))
def test_functions_run_through_gradopt(name: str) -> None:
    """Every row of the table, with NumPy's spellings of its arguments, gives what NumPy gives."""
    for args, kwargs in CALLS[name]:
        got = getattr(np, name)(*map(converted, args), **kwargs)
        want = getattr(np, name)(*args, **kwargs)
        assert type(got) is go.Array
        assert (got.shape, got.dtype.kind) == (want.shape, want.dtype.kind)
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_tables_name_what_there_is() -> None:
    """Rows name functions and parameters that both sides have."""
    assert CALLS.keys() == interop.FUNCTIONS.keys()
    for name, (ours, _) in interop.FUNCTIONS.items():
        names, needed = interop.parameters(name)
        theirs = inspect.signature(getattr(np, name)).parameters
        mine = inspect.signature(interop.own(ours)).parameters
        assert {n.lstrip("*") for n in names} | needed <= set(theirs)
        assert {n.lstrip("*") for n in names.values()} <= set(mine)


def test_other_functions_run_in_numpy() -> None:
    x = go.array(X)
    assert type(np.linalg.norm(x)) is np.float32
    assert type(np.fft.fft(x)) is np.ndarray
    assert np.sum(x, dtype=np.float64).dtype == np.float64  # an argument that `go.sum` has not
    np.testing.assert_array_equal(np.concatenate([x, x], axis=None), np.concatenate([X, X], None))
    np.testing.assert_array_equal(np.take(x, [5, 0]), X.ravel()[[5, 0]])
    np.testing.assert_array_equal(np.add.reduce(x), X.sum(0))
    np.testing.assert_array_equal(np.where(x > 0), np.where(X > 0))
    assert np.array_equal(x, X)
    assert (np.shape(x), np.ndim(x), np.size(x)) == ((2, 3), 2, 6)
    a = np.ones((2, 3))
    a += x
    np.testing.assert_array_equal(a, X + 1)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: np.add(x, 1, out=x),
        lambda x: np.add(np.ones(3), 1, out=x),
        lambda x: np.sum(x, axis=0, out=x),
        lambda x: np.concatenate([np.ones(2), np.ones(1)], out=x),
        lambda x: np.add.at(x, 0, 1),
        lambda x: np.add.reduce(np.ones((2, 3)), out=x),
    ],
)
def test_numpy_cannot_write_to_arrays(call: Callable[[Any], Any]) -> None:
    """B33: what `out` would lose is said, with the remedy."""
    x = go.array([1.0, 2.0, 3.0])
    with pytest.raises(TypeError, match=r"numpy\.\w+.*cannot be written to.*leave `out` away"):
        call(x)
    assert x.tolist() == [1, 2, 3]


def test_gradients_are_not_lost_in_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """B32: a function of NumPy's that is not recorded refuses arrays that need a gradient."""
    x = go.array(X)
    monkeypatch.setattr(type(state), "recording", True)
    np.fft.fft(x)  # needs none
    x._history = object()
    for call in (np.fft.fft, np.linalg.norm, np.add.reduce, lambda x: np.sum(x, dtype=float)):
        with pytest.raises(go.errors.GradientError, match=r"numpy\..*records no gradient.*detach"):
            call(x)
    assert np.array_equal(x, X)  # nothing to differentiate
    assert np.shape(x) == (2, 3)


@pytest.mark.parametrize("x", [np.ones(2, complex), np.array(["a"]), [object()], [[1], [1, 2]]])
def test_elements_are_numbers(x: Any) -> None:
    with pytest.raises(go.errors.OpError, match=r"expected an (array or number|element type)"):
        go.array(x)
    with pytest.raises(go.errors.OpError, match=r"expected an (array or number|element type)"):
        _ = go.array([1.0, 2.0]) + x


# --- what Python does with objects ----------------------------------------------------------------


def test_repr() -> None:
    assert repr(go.array([1.0, 2.5])) == "Array([1. , 2.5], dtype=float32)"
    assert repr(go.array(3)) == "Array(3, dtype=int32)"
    assert repr(go.array([[1, 2], [3, 4]])) == "Array([[1, 2],\n       [3, 4]], dtype=int32)"
    assert repr(go.zeros((0, 3))) == "Array([], shape=(0, 3), dtype=float32)"
    large = repr(go.zeros((1000, 1000), "bfloat16"))
    assert large.endswith("shape=(1000, 1000), dtype=bfloat16)")
    assert len(large) < 500
    assert f"{go.array(1.5):.2f} {go.array([1, 2])}" == "1.50 Array([1, 2], dtype=int32)"


@pytest.mark.parametrize("dtype", [d.name for d in DTYPES])
@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_keep_type_and_elements(way: Callable[[Any], Any], dtype: str) -> None:
    x = go.array([[0, 1, 3], [1, 0, 2]]).astype(dtype)
    y = way(x)
    assert (type(y), y.dtype, y.shape) == (go.Array, x.dtype, x.shape)
    x[0] = 1
    np.testing.assert_array_equal(y, np.array([[0, 1, 3], [1, 0, 2]]).astype(x.dtype))


def test_comparison_with_what_is_no_array() -> None:
    x = go.array([1.0, 2.0])
    for other in (None, "a", object(), float, {}):
        assert (x == other) is False
        assert (x != other) is True
    assert (x == [1, 3]).tolist() == [True, False]
    assert (x != 1).tolist() == [False, True]


def test_no_hash() -> None:
    with pytest.raises(TypeError, match=r"no hash.*use id\(x\)"):
        _ = {go.array(1.0)}


def test_scalars_are_numbers() -> None:
    x = go.array([3, 1, 2])
    assert [int(v) for v in sorted(x)] == [1, 2, 3]
    assert [v.shape for v in x] == [()] * 3
    assert "abcd"[x[1]] == "b"
    assert operator.index(x[0]) == 3
    assert list(range(x[2])) == [0, 1]
    for bad in (go.array(1.0), x, go.array(True)):
        with pytest.raises(TypeError, match=r"[Oo]nly integer scalar"):
            operator.index(bad)
    with pytest.raises(TypeError, match="no axes"):
        iter(go.array(1.0))
    with pytest.raises(ValueError, match="ambiguous"):
        bool(x)


def test_reading_without_a_copy() -> None:
    x = go.array(X)
    assert np.shares_memory(np.asarray(x), x.numpy())
    assert np.shares_memory(np.array(x, copy=False), x.numpy())
    assert not np.shares_memory(np.array(x), x.numpy())
    with pytest.raises(ValueError, match=r"float32.*float64.*without a copy"):
        np.array(x, np.float64, copy=False)
