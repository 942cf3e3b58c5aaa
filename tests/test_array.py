# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Arrays: NumPy's functions on them, what they look like, copies and pickles, and the bytes that
eager ops move.
"""

import copy
import inspect
import json
import operator
import pickle
import tracemalloc
from collections.abc import Callable
from typing import Any

import gradopt as go
import numpy as np
import pytest
from gradopt.dialect import trees
from gradopt.dialect.base import OPS
from gradopt.dialect.elementwise import Elementwise
from gradopt.dialect.types import DTYPES, TensorSpec
from gradopt.errors import GradientError, OpError
from gradopt.op_cases import CASES, Case
from gradopt.runtime import interop
from gradopt.tools import bench, bench_eager

from .helpers import run_reference

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
    "concatenate": [(([X, Y],), {}), (([X, Y], 1), {}), (([X, Y],), {"axis": None})],
    "count_nonzero": [((X > 0, 1), {})],
    "cumprod": [((X, 1), {})],
    "cumsum": [((X,), {}), ((X,), {"axis": 0})],
    "cumulative_sum": [((X,), {"axis": 1, "include_initial": True})],
    "diagonal": [((X,), {"offset": 1})],
    "diff": [((X,), {}), ((X,), {"axis": 0, "n": 1})],
    "dot": [((X, Y.T), {})],
    "einsum": [(("ij,kj->ik", X, Y), {})],
    "expand_dims": [((X, 1), {})],
    "flip": [((X,), {}), ((X, 1), {})],
    "full_like": [((X, 2.5), {}), ((X, 2), {"dtype": np.int32})],
    "matrix_transpose": [((X,), {})],
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
    "searchsorted": [((np.sort(X[0]), Y), {"side": "right"})],
    "sort": [((X,), {}), ((X, 0), {})],
    "squeeze": [((X[None],), {}), ((X[None], 0), {})],
    "stack": [(([X, Y],), {"axis": 1})],
    "std": [((X,), {"ddof": 1})],
    "sum": [
        ((X,), {}),
        ((X,), {"axis": (0, 1), "keepdims": True}),
        ((X, 1, None), {}),
        ((X, 1, float), {}),
    ],
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
    assert np.sum(x, initial=1.0) == X.sum() + 1  # an argument that `go.sum` has not
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


def test_gradients_are_not_lost_in_numpy() -> None:
    """B32: functions of NumPy's that gradopt has are recorded; others refuse arrays that need a
    gradient.
    """
    x = go.array(X)
    x.attach_grad()
    with go.record():
        np.fft.fft(go.array(X))  # needs none
        for call in (np.fft.fft, np.linalg.norm, np.add.reduce, lambda x: np.sum(x, initial=1.0)):
            with pytest.raises(GradientError, match=r"numpy\..*records no gradient.*detach"):
                call(x)
        assert np.array_equal(x, X)  # nothing to differentiate
        assert np.shape(x) == (2, 3)
        y = np.sum(np.multiply(np.sin(x), 2)) + np.ones(1) @ np.sum(np.concatenate([x, x]), 0)[:1]
    y.backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad, 2 * np.cos(X) + [2, 0, 0], rtol=1e-6)
    np.linalg.norm(x)  # not recording


@pytest.mark.parametrize("x", [np.ones(2, complex), np.array(["a"]), [object()], [[1], [1, 2]]])
def test_elements_are_numbers(x: Any) -> None:
    with pytest.raises(OpError, match=r"expected an (array or number|element type)"):
        go.array(x)
    with pytest.raises(OpError, match=r"expected an (array or number|element type)"):
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


def test_copies_compute_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of what an op that is put off will give is put off, too, and keeps its elements."""
    monkeypatch.setattr(go.config, "target", "reference")
    with go.eager_mode("lazy"):
        x = go.array([1.0, 2.0]) * 3
        y = copy.deepcopy(x)
        assert not x.is_ready()
        x += 1
        assert (y.tolist(), x.tolist()) == ([3, 6], [4, 7])


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


# --- ops that run at once -------------------------------------------------------------------------


def same(got: Any, want: Any) -> bool:
    """Whether two arrays have the same type and bits."""
    got, want = np.asarray(got), np.asarray(want)
    return (got.dtype, got.shape, got.tobytes()) == (want.dtype, want.shape, want.tobytes())


@pytest.mark.parametrize("op", sorted({c.op for c in CASES}))
def test_eager_ops_are_their_references(op: str) -> None:
    """B38: every row gives on arrays, when first called and by what was kept of that call, the very
    bits that its graph gives on NumPy; and NumPy never warns.
    """
    for case in CASES:
        if case.op == op:
            want = run_reference(case.build, *case.inputs)
            for _ in range(2):
                with np.errstate(all="raise"):
                    got = trees.leaves(case.build(*map(go.array, case.inputs)))
                assert list(map(same, got, want)) == [True] * len(want), case.name


@pytest.mark.parametrize(
    "case", [c for c in CASES if issubclass(OPS[c.op], Elementwise)], ids=lambda c: c.name
)
def test_elementwise_references_repeat_operands(case: Case) -> None:
    """References take an operand that NumPy has to repeat as they take it repeated."""
    op, inputs = OPS[case.op], [np.asarray(x) for x in case.inputs]
    attributes = op.with_defaults(case.attributes)
    if len(inputs) < 2 or len({x.shape for x in inputs}) > 1:
        return
    for i, x in enumerate(inputs):
        for part in (x.reshape(-1)[:1].reshape(()), x[:1] if x.ndim else x):
            short = [part if j == i else y for j, y in enumerate(inputs)]
            whole = [np.broadcast_to(part, x.shape) if j == i else y for j, y in enumerate(inputs)]
            specs = op.infer(*(TensorSpec(y.shape, y.dtype) for y in whole), **attributes)
            assert isinstance(specs, TensorSpec)
            runs = [op.compute([specs], ys, attributes)[0] for ys in (short, whole)]
            assert same(*runs)


def test_numbers_keep_their_kind() -> None:
    """What is kept for a number is for its kind, and never for its value."""
    whole = go.array([1, 2])
    for _ in range(2):
        assert [(whole + v).dtype.name for v in (1, True, 1.0)] == ["int32", "int32", "float32"]
        assert (go.array([True]) + 1).dtype == np.int32
        assert (go.array([True]) + 2**40).dtype == np.int64
        for zero in (0.0, -0.0):
            assert np.signbit(float(go.array([-0.0])[0] + zero)) == np.signbit(zero)
            assert np.signbit(
                go.pad(go.array([1.0]), 1, constant_values=zero).numpy()[0]
            ) == np.signbit(zero)
        assert (go.array([1], "uint8") + 3).tolist() == [4]
        with pytest.raises(OpError, match=r"fit uint8, \[0, 255\], got 300"):
            _ = go.array([1], "uint8") + 300
        with pytest.raises(OpError, match="fit int32"):
            _ = whole + 2**40


def test_ops_do_not_take_what_their_functions_do() -> None:
    """What was kept for operands that a function brings together is not for the op itself."""
    x, row = go.array(X), go.array(X[0])
    for _ in range(2):
        assert same(x + row, X + X[0])
        with pytest.raises(OpError, match="operands of one type"):
            OPS["add"].emit(x, row)


def test_gradients_of_numbers_and_repeated_arrays() -> None:
    """B32, B38: an operand that is repeated gets the sum of the gradients."""
    for _ in range(2):
        x, row = go.array(X), go.array(X[0])
        x.attach_grad()
        row.attach_grad()
        with go.record():
            y = (2 * x * row + 1).sum()
        y.backward()
        assert x.grad is not None
        assert row.grad is not None
        np.testing.assert_allclose(x.grad, 2 * np.broadcast_to(X[0], X.shape))
        np.testing.assert_allclose(row.grad, 2 * X.sum(0))


def allocated(call: Callable[[], Any]) -> int:
    """The most bytes that a call has at a time."""
    call()
    tracemalloc.start()
    try:
        result = call()
        return tracemalloc.get_traced_memory()[1] + 0 * (result is None)
    finally:
        tracemalloc.stop()


def test_bytes_moved() -> None:
    """Ops make their results and nothing else; parts of an array that has elements are views."""
    n = 1 << 20
    x = go.array(np.ones(n, np.float32))
    table = x.reshape(1024, 1024)
    row = go.array(np.ones(1024, np.float32))
    for call in (lambda: x + x, lambda: x * 2.5, lambda: table * row, lambda: go.exp(x)):
        assert allocated(call) < 4 * n + (1 << 16)
    for view in (x[5], x[2:10], table[3], table[1:-1, ::2], table.T, x.reshape(-1, 2), table[None]):
        assert np.shares_memory(view, x)
        assert allocated(lambda v=view: v[...]) < 5000
    assert allocated(lambda: x[7]) < 5000
    assert allocated(lambda: x.numpy()) < 5000
    before = x[:3]
    x[0] = 7  # other elements for x; nobody who shares the old ones sees it
    assert (x[0].item(), before.tolist(), table[0, 0].item()) == (7, [1, 1, 1], 1)


def test_numpy_warns_as_before() -> None:
    before = np.geterr()
    assert np.isinf(float(go.array(1.0) / 0))
    assert np.geterr() == before
    with np.errstate(all="raise"), pytest.raises(FloatingPointError):
        np.divide(np.ones(1), 0)


def test_bench_eager(capsys: pytest.CaptureFixture[str]) -> None:
    """`gradopt-bench --eager` prints a table, or a JSON line for each library, op and size."""
    given = ["--eager", "--libraries", "numpy,gradopt,recorded", "--sizes", "16", "--runs", "1"]
    assert bench.main([*given, "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {(r["library"], r["op"]) for r in rows} == {
        (name, op) for name in ("numpy", "gradopt", "recorded") for op in bench_eager.OPS
    }
    assert all(0 < r["best_us"] <= r["first_us"] * 10 for r in rows)
    assert bench.main([*given, "--ops", "add;conv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    arrays = bench_eager.data(16)
    numpy, own = bench_eager.NumPy(), bench_eager.Gradopt()
    for name, op in bench_eager.OPS.items():
        want = op(numpy, arrays)
        got = op(own, {k: go.array(v) for k, v in arrays.items()})
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6, err_msg=name)


IDENTITIES: dict[str, Callable[[Any], Any]] = {
    "reshape": lambda x: x.reshape(2, 3),
    "transpose": lambda x: go.permute_dims(x, (0, 1)),
    "swapaxes": lambda x: x.swapaxes(1, 1),
    "moveaxis": lambda x: go.moveaxis(x, 0, 0),
    "broadcast_to": lambda x: go.broadcast_to(x, (2, 3)),
    "broadcast_arrays": lambda x: go.broadcast_arrays(x, x)[0],
    "astype": lambda x: x.astype("float32"),
    "convert": lambda x: go.convert(x, dtype="float32"),
    "[...]": lambda x: x[...],
    "[:]": lambda x: x[:],
    "[:, mask]": lambda x: x[:, [True, True, True]],
    "squeeze": lambda x: x.squeeze(),
    "expand_dims": lambda x: go.expand_dims(x, ()),
    "concat": lambda x: go.concat([x]),
    "** 1": lambda x: x**1,
    "+": lambda x: +x,
    "clip": lambda x: x.clip(),
    "roll": lambda x: go.roll(x, 0),
    "tile": lambda x: go.tile(x, (1, 1)),
    "sum": lambda x: x.sum(axis=()),
    "split": lambda x: go.split(x, 1)[0],
    "dropout": lambda x: go.dropout(x, 0.5, go.random.key(0), training=False),
    "Dropout": lambda x: go.nn.Dropout(0.0)(x),
    "array": go.array,
    "asarray": lambda x: go.asarray(x, copy=True),
}


@pytest.mark.parametrize("name", IDENTITIES)
def test_functions_with_nothing_to_do_give_arrays_of_their_own(name: str) -> None:
    """B33: whether two arrays are one does not depend on shapes and types: writing to the result
    never writes to the operand; gradients pass.
    """
    x = go.array(X)
    x.attach_grad()
    with go.record():
        y = IDENTITIES[name](x)
    y.backward()
    assert x.grad.tolist() == np.ones_like(X).tolist()
    assert y is not x
    y[0] = 7
    assert x.tolist() == X.tolist()
