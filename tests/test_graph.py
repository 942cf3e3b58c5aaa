# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Capture: graphs by hand and by tracing, names, lines, trees, operators and what they refuse."""

import collections
import functools
import inspect
import operator
import pathlib
import re
import subprocess
import sys
import warnings
from typing import Any

import gradopt as go
import numpy as np
import pytest
from gradopt.dialect import reference
from gradopt.errors import OpError, TraceError

from .helpers import run_reference

rng = np.random.default_rng(4)
X = rng.uniform(0.5, 2, (2, 3, 4))
Y = rng.uniform(0.5, 2, (3, 1))
I = rng.integers(-5, 9, (3, 4))
B = rng.integers(0, 2, (3, 4)).astype(bool)


def line() -> int:
    """The caller's line."""
    return inspect.currentframe().f_back.f_lineno  # type: ignore[union-attr]


# --- by hand --------------------------------------------------------------------------------------


def test_graph_by_hand() -> None:
    g = go.Graph("affine")
    x, w = g.input("x", (8, 3)), g.parameter("w", (3, 2))
    with g:
        y = go.tanh(x @ w)
    g.output(y, y.sum())
    text = g.mlir()
    assert "func.func public @affine(%x: tensor<8x3xf32>" in text
    assert '%w: tensor<3x2xf32> {gradopt.name = "w", gradopt.role = "param"}' in text
    x_, w_ = np.ones((8, 3), np.float32), np.ones((3, 2), np.float32)
    got = reference.run(g.module, "affine", x_, w_)
    np.testing.assert_allclose(got[0], np.tanh(x_ @ w_), rtol=1e-6)


def test_operators_need_no_open_graph() -> None:
    """Operators on tensors find their graph by themselves."""
    g = go.Graph()
    g.output(g.input("x", (2,)) * 2 + 1)
    g.finish()
    np.testing.assert_allclose(reference.run(g.module, "main", np.ones(2, np.float32))[0], [3, 3])


def test_graph_can_be_read_and_continued() -> None:
    g = go.Graph()
    x = g.input("x", (2,))
    g.output(x + 1)
    assert g.mlir().count("gradopt.add") == 1
    g.output(x + 2)
    assert g.mlir().count("gradopt.add") == 2
    assert len(g.output_specs) == 2


def test_tensors_of_another_graph_are_refused() -> None:
    a, b = go.Graph("a"), go.Graph("b")
    x, y = a.input("x", (2,)), b.input("y", (2,))
    with pytest.raises(TraceError, match=r"belongs to graph '[ab]', which is not graph '[ab]'"):
        x + y


def test_no_graph() -> None:
    """Where no graph is being built an op runs; a program that imports the dialect alone is told
    that it needs one.
    """
    assert go.zeros((2,)).tolist() == [0, 0]
    program = (
        "import sys, types, pathlib; root = types.ModuleType('gradopt');"
        f"root.__path__ = [{str(pathlib.Path(go.__file__).parent)!r}];"
        "sys.modules['gradopt'] = root; from gradopt.dialect.creation import zeros; zeros(2)"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "'gradopt.constant' needs a graph to be added to" in found.stderr


# --- names and places -----------------------------------------------------------------------------


def test_names_are_unique_and_scoped() -> None:
    """B37"""

    def f(x: Any) -> Any:
        y = go.tanh(go.tanh(x))
        with go.name_scope("block"), go.name_scope("head"):
            return go.exp(y, name="energy") + go.exp(y, name="energy")

    text = go.trace(f, go.TensorSpec((2,))).mlir()
    names = re.findall(r"%([\w.]+) =", text)
    assert names == ["tanh", "tanh_1", "block.head.energy", "block.head.energy_1", "block.head.add"]


def test_every_op_has_the_users_line() -> None:
    def f(x: Any) -> Any:
        y = go.relu(x)
        return go.softmax(y @ y.T).sum()

    start = line() - 4
    text = go.trace(f, go.TensorSpec((3, 3))).mlir(locations=True)
    lines = {int(n) for n in re.findall(rf'"{re.escape(__file__)}":(\d+)', text)}
    assert {start + 1, start + 2} <= lines
    body = [row for row in text.splitlines() if '"gradopt.' in row]
    assert body
    assert all("loc(" in row for row in body)


def test_errors_start_with_the_users_line() -> None:
    def f(x: Any, y: Any) -> Any:
        z = x * 2
        return z + y

    start = line() - 4
    with pytest.raises(OpError) as caught:
        go.trace(f, go.TensorSpec((2, 3)), go.TensorSpec((4,)))
    assert str(caught.value).startswith(f"{__file__}:{start + 2}: 'gradopt.add' op expected")
    assert "got (2, 3) and (4,); extents at -1 differ" in str(caught.value)


# --- trees ----------------------------------------------------------------------------------------

Pair = collections.namedtuple("Pair", "left right")


def test_trees_in_and_out() -> None:
    def f(params: dict[str, Any], pair: Any) -> Any:
        return {
            "sum": params["w"] + pair.left,
            "list": [pair.right, (params["b"], 3.0)],
            "no": None,
        }

    spec = go.TensorSpec((2,))
    graph = go.trace(f, {"w": spec, "b": spec}, Pair(spec, spec))
    assert graph.input_names == ["params.b", "params.w", "pair.left", "pair.right"]
    values = reference.run(graph.module, "f", *(np.full(2, n, np.float32) for n in (1, 2, 3, 4)))
    from gradopt.dialect import trees

    out = trees.unflatten(graph.out_tree, values)
    assert out["no"] is None
    np.testing.assert_array_equal(out["sum"], [5, 5])
    np.testing.assert_array_equal(out["list"][0], [4, 4])
    np.testing.assert_array_equal(out["list"][1][0], [1, 1])
    assert out["list"][1][1] == 3.0


def test_what_stands_for_a_type() -> None:
    """Arrays and numbers stand for their types; Python numbers are 32 bits wide."""
    graph = go.trace(lambda *a: a, np.ones((2, 3), np.float64), 1.5, 2, True, [np.int8(3)])
    assert [str(s) for s in graph.input_specs] == [
        "tensor<2x3xf64>", "tensor<f32>", "tensor<i32>", "tensor<i1>", "tensor<i8>",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (
            {"a": "text"},
            r"argument 'x\.a': expected an array, number or TensorSpec, got str 'text'",
        ),
        ([object()], r"argument 'x\.0': expected an array"),
        (
            np.ones(2, complex),
            r"argument 'x': expected an element type .* got dtype\('complex128'\)",
        ),
    ],
    ids=["str", "object", "complex"],
)
def test_arguments_that_are_no_arrays(argument: Any, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        go.trace(lambda x: x, argument)


def test_result_that_is_no_tensor() -> None:
    with pytest.raises(TraceError, match=r"'f' returned str 'done'; results must be tensors"):

        def f(x: Any) -> Any:
            return x, "done"

        go.trace(f, go.TensorSpec((2,)))


# --- what a tensor without numbers cannot do ------------------------------------------------------


@pytest.mark.parametrize(
    "use",
    [
        bool,
        int,
        float,
        np.asarray,
        lambda x: x.item(),
        lambda x: [0, 1][x],
        lambda x: x if x > 0 else 0,
    ],
    ids=["bool", "int", "float", "array", "item", "index", "if"],
)
def test_values_are_not_known_while_tracing(use: Any) -> None:
    with pytest.raises(TraceError, match=r"needs the value of Tensor.*go\.where"):
        go.trace(use, np.int32(1))


def test_length_of_an_unknown_extent() -> None:
    with pytest.raises(TraceError, match=r"len\(\) of tensor<\?xf32>: the first extent is unknown"):
        go.trace(len, go.TensorSpec((None,)))


# --- operators and methods against NumPy ----------------------------------------------------------

BINARY = [
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod,
    operator.pow, operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge,
]  # fmt: skip


@pytest.mark.parametrize("op", BINARY, ids=lambda f: f.__name__)
@pytest.mark.parametrize("order", ["tensor first", "array first", "number first", "number last"])
def test_binary_operator(op: Any, order: str) -> None:
    """Tensors, arrays and numbers mix, on both sides, with broadcasting."""
    fn, want = {
        "tensor first": (lambda x: op(x, Y), op(X, Y)),
        "array first": (lambda x: op(Y, x), op(Y, X)),
        "number first": (lambda x: op(1.5, x), op(1.5, X)),
        "number last": (lambda x: op(x, 2), op(X, 2)),
    }[order]
    (got,) = run_reference(fn, X)
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=1e-14)


INTEGER = [
    lambda i: i & 3, lambda i: 3 | i, lambda i: i ^ i.T.T, lambda i: ~i, lambda i: i << 1,
    lambda i: i >> 1, lambda i: i // 3, lambda i: i % 3, lambda i: -i, abs, lambda i: +i,
    lambda i: i**2,
]  # fmt: skip


@pytest.mark.parametrize("fn", INTEGER, ids=map(str, range(len(INTEGER))))
def test_integer_operator(fn: Any) -> None:
    (got,) = run_reference(fn, I)
    np.testing.assert_array_equal(got, fn(I))
    assert got.dtype == I.dtype


@pytest.mark.parametrize(
    "fn", [lambda b: b & ~b, lambda b: b | True, lambda b: b ^ b, lambda b: ~b], ids="&|^~"
)
def test_boolean_operator(fn: Any) -> None:
    (got,) = run_reference(fn, B)
    np.testing.assert_array_equal(got, fn(B))
    assert got.dtype == bool


METHODS = [
    lambda x: x.sum(), lambda x: x.sum(axis=(0, -1)), lambda x: x.mean(axis=1, keepdims=True),
    lambda x: x.var(axis=0), lambda x: x.std(), lambda x: x.max(axis=2), lambda x: x.min(),
    lambda x: x.prod(axis=1), lambda x: x[None].squeeze(0),
    lambda x: (x > 1).any(axis=0), lambda x: (x > 1).all(), lambda x: x.T, lambda x: x.transpose(),
    lambda x: x.transpose(1, 0, 2), lambda x: x.transpose((2, 0, 1)), lambda x: x.swapaxes(0, 2),
    lambda x: x.reshape(4, 6), lambda x: x.reshape((-1, 2)), lambda x: x.reshape(-1),
    lambda x: x.flatten(),
    lambda x: x.round(), lambda x: x.clip(0.8, 1.5), lambda x: x.astype(np.float32),
    lambda x: x @ x.swapaxes(1, 2),
]  # fmt: skip


@pytest.mark.parametrize("fn", METHODS, ids=map(str, range(len(METHODS))))
def test_method(fn: Any) -> None:
    (got,), want = run_reference(fn, X), np.asarray(fn(X))
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    np.testing.assert_allclose(got, want, rtol=1e-13)


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_position_of_extremes(name: str, axis: int | None) -> None:
    (got,) = run_reference(lambda x: getattr(x, name)(axis), X)
    np.testing.assert_array_equal(got, getattr(X, name)(axis))
    assert got.dtype == np.int32


KEYS = [
    0, -1, (1, 2), (slice(None), 1), slice(1, None), (..., 0), (..., None, 1), (None, 1, ..., None),
    (slice(None, None, -1),), (slice(None), slice(2, 0, -1), slice(None, None, 3)), slice(5, 1),
    (0, slice(None), slice(-3, -1)), (slice(None), [2, 0, 2]), np.array([1, 0, 1, -1]),
    (slice(None), slice(None), np.array([[0, 3], [1, 1]])), (Ellipsis,), (slice(0, 0),),
    (0, slice(None), [2, 0]), (0, [2, 0]), ([1, 0], slice(None), 2), (0, None, [1, 2]),
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_getitem(key: Any) -> None:
    """Basic indexing in full, and one integer array, as NumPy has them."""
    (got,) = run_reference(lambda x: x[key], X)
    np.testing.assert_array_equal(got, X[key])


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (2, "index.*2"),
        ((0, 0, 0, 0), "indices"),
        ("a", "an index of integers, slices.*got str 'a'"),
        (np.ones(3, bool), r"expected a mask of shape \(2,\)"),
        ((slice(None, None, 0),), "a step other than 0"),
        ((0, 4), "index.*4"),
        (1.5, "an integer array, got tensor<f32>"),
    ],
    ids=str,
)
def test_getitem_refuses(key: Any, message: str) -> None:
    with pytest.raises(OpError, match=message):
        run_reference(lambda x: x[key], X)


def test_iteration() -> None:
    (got,) = run_reference(lambda x: functools.reduce(operator.add, x), X)
    np.testing.assert_allclose(got, X[0] + X[1])
    a, b = run_reference(lambda x: list(x), X)
    np.testing.assert_array_equal(a, X[0])
    np.testing.assert_array_equal(b, X[1])


# --- promotion ------------------------------------------------------------------------------------

PROMOTION = [
    ("float32", "float64", "float64"), ("float16", "float32", "float32"),
    ("int8", "int32", "int32"),
    ("uint8", "int8", "int16"), ("bool", "int32", "int32"), ("int32", "float32", "float32"),
    ("bfloat16", "float32", "float32"), ("int64", "float16", "float16"),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b", "want"), PROMOTION, ids=map(str, PROMOTION))
def test_promotion(a: str, b: str, want: str) -> None:
    """As the array API has it; an integer beside a float takes the float's type."""
    specs = go.TensorSpec((2,), a), go.TensorSpec((2,), b)
    graph = go.trace(lambda x, y: (x + y, y + x), *specs)
    assert [s.dtype.name for s in graph.output_specs] == [want, want]


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_python_numbers_do_not_widen(dtype: str) -> None:
    graph = go.trace(
        lambda x: (x * 2.5, 1 - x, x**2, go.where(x > 0, x, 0.0)), go.TensorSpec((2,), dtype)
    )
    assert {s.dtype.name for s in graph.output_specs} == {dtype}


def test_a_variable_becomes_a_constant_with_a_warning() -> None:
    """A function that closes over an array whose gradient is asked for is told, once, that the
    gradient is lost; detached arrays are constants without a word.
    """
    w = go.array([2.0])
    w.attach_grad()
    with pytest.warns(UserWarning, match=r"is a constant of 'lambda'.*use go.hybridize") as said:
        go.trace(lambda x: x * w + w, go.TensorSpec((1,)))
    assert [w.filename for w in said] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (found,) = run_reference(lambda x: x * w.detach(), np.ones(1, np.float32))
    assert found.tolist() == [2]
