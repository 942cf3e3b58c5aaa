# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Compiled functions: calls, donation, the cache, errors of the compiler, threads."""

import copy
import json
import os
import pathlib
import pickle
import subprocess
import sys
import threading
import time
import warnings
from typing import Any

import gradopt as go
import numpy as np
import pytest
from gradopt.errors import ArgumentError, CompileError, DonationError, OpError, TraceError
from gradopt.lowering.target import Rung, target
from gradopt.lowering.target_cpu import LADDER
from gradopt.runtime import compiler

from .helpers import run_reference

pytestmark = pytest.mark.compiler
rng = np.random.default_rng(8)


def f32(*shape: int) -> np.ndarray:
    return rng.uniform(-1, 1, shape).astype(np.float32)


def aligned(*shape: int) -> np.ndarray:
    """An array that IREE reads in place."""
    raw = np.zeros(int(np.prod(shape)) + 32, np.float32)
    start = (-raw.ctypes.data % 64) // 4
    array = raw[start : start + int(np.prod(shape))].reshape(shape)
    array[...] = f32(*shape)
    return array


# --- calls ----------------------------------------------------------------------------------------


def test_trees_in_and_out() -> None:
    @go.compile
    def f(params: dict[str, Any], pair: tuple[Any, Any]) -> Any:
        return {"y": params["w"] * pair[0], "rest": [pair[1] + 1, params["b"]]}

    got = f({"w": np.full(2, 3.0), "b": 2.5}, (np.arange(2.0), 7))
    np.testing.assert_array_equal(got["y"], [0, 3])
    assert got["rest"][0].item() == 8
    assert float(got["rest"][1]) == 2.5
    assert got["rest"][0].dtype == np.int32


def test_one_compilation_a_signature() -> None:
    f = go.compile(lambda x: go.tanh(x) * 1.25)
    before = go.cache_info()
    for shape in [(2,), (3,), (2,), (3,)]:
        f(np.ones(shape, np.float32))
    f(np.ones(2, np.float64))
    after = go.cache_info()
    assert after.compiled - before.compiled == 3


def test_keywords_and_defaults() -> None:
    def f(a: Any, b: float = 2.0, *, c: float = 1.0) -> Any:
        return a * b * c

    compiled = go.compile(f)
    np.testing.assert_array_equal(compiled(a=np.ones(2), b=3.0), [3, 3])
    np.testing.assert_array_equal(compiled(np.ones(2)), [2, 2])
    with pytest.raises(ArgumentError, match=r"'f' expected arguments .* got keyword-only c"):
        compiled(np.ones(2), c=2.0)
    with pytest.raises(ArgumentError, match="'f': missing a required argument: 'a'"):
        compiled(b=1.0)


def test_compiled_function_in_a_trace() -> None:
    """It becomes part of the graph that is built, so that it can be differentiated."""
    square = go.compile(lambda x: x * x)
    total = go.compile(lambda x: square(x).sum())
    x = f32(3)
    np.testing.assert_allclose(total(x), (x * x).sum(), rtol=1e-6)
    np.testing.assert_allclose(go.compile(go.grad(total))(x), 2 * x)


def test_compiled_graph() -> None:
    g = go.Graph("affine")
    x, w = g.input("x", (None, 3)), g.parameter("w", (3, 2))
    g.output(x @ w)
    f = go.compile(g)
    for n in (1, 4):
        a, b = f32(n, 3), f32(3, 2)
        np.testing.assert_allclose(f(a, b)[0], a @ b, rtol=1e-5)
    with pytest.raises(
        ArgumentError, match=r"argument 'w' of type tensor<3x2xf32>, got tensor<4x2"
    ):
        f(f32(1, 3), f32(4, 2))
    with pytest.raises(ArgumentError, match=r"'affine' expected 2 arguments \(x, w\), got 1"):
        f(f32(1, 3))


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("text", r"'f' expected an array or number as argument 'x', got str 'text'"),
        ({"a": [1.0, "b"]}, r"as argument 'x\.a\.1', got str 'b'"),
        (np.array(["a"]), r"argument 'x': expected an element type out of float64"),
        (
            np.ones(2, complex),
            r"argument 'x': expected an element type .* got dtype\('complex128'\)",
        ),
    ],
    ids=["str", "nested", "strings", "complex"],
)
def test_arguments_that_are_no_arrays(argument: Any, message: str) -> None:
    def f(x: Any) -> Any:
        return x

    with pytest.raises((ArgumentError, TraceError), match=message):
        go.compile(f)(argument)


def test_method() -> None:
    """The instance is an argument like others: it has to be an array or a container of them."""

    class Net:
        @go.compile
        def f(self, x: Any) -> Any:
            return x

    with pytest.raises(ArgumentError, match="an array or number as argument 'self', got Net"):
        Net().f(f32(2))


def test_what_cannot_be_compiled() -> None:
    with pytest.raises(ArgumentError, match="expected a function or a Graph to compile, got 3"):
        go.compile(3)
    with pytest.raises(ArgumentError, match="donate expected positions of arguments, got 'x'"):
        go.compile(lambda x: x, donate="x")


def test_nothing_to_compile() -> None:
    """B01"""
    with pytest.raises(TraceError, match="at least one input to compile, got none in 'empty'"):
        go.compile(go.Graph("empty"))
    with pytest.raises(TraceError, match="at least one array among its arguments"):
        go.compile(lambda: go.zeros((2,)))()


def test_any_layout_of_arguments() -> None:
    """Strided, reversed, Fortran-ordered, unaligned, read-only and 0-d arrays are read right."""
    base = np.arange(48, dtype=np.float32).reshape(6, 8)
    frozen = base.copy()
    frozen.setflags(write=False)
    unaligned = np.frombuffer(bytearray(4 + base.nbytes), np.float32)[1:].reshape(6, 8)
    f = go.compile(lambda x: x * 2)
    for x in (base[::2], base[::-1, ::-3], base.T, np.asfortranarray(base), frozen, unaligned):
        np.testing.assert_array_equal(f(x), x * 2)
    np.testing.assert_array_equal(f(np.float32(3)), 6)
    big_endian = base.astype(">f4")
    np.testing.assert_array_equal(f(big_endian), base * 2)


VIEWS = {
    "itself": lambda x: x,
    "reshaped": lambda x: x.reshape(-1),
    "with an axis": lambda x: x[None],
    "unit axis moved": lambda x: x[:, None].transpose(0, 2, 1, 3),
    "behind a barrier": lambda x: go.optimization_barrier(x).reshape(6, 4),
    "stopped": lambda x: go.stop_gradient(x),
    "first row": lambda x: x[0],
    "as bits": lambda x: go.bitcast(x, dtype=np.int32),
    "unstacked": lambda x: list(x),
    "twice": lambda x: (x, x),
    "twice computed": lambda x: (lambda y: (y, y, y.reshape(-1), y[0]))(go.tanh(x)),
    "equal constants": lambda x: (go.zeros((3,)), go.zeros((3,)), x + 1),
}


@pytest.mark.parametrize("name", VIEWS)
def test_results_are_nobodys_else(name: str) -> None:
    """B02, C037: results share no memory with arguments, each other, or other calls' results."""
    x, f = aligned(2, 3, 4), go.compile(VIEWS[name])
    calls = [f(x), f(x)]
    results = [np.asarray(r) for c in calls for r in (c if isinstance(c, list | tuple) else [c])]
    kept = [r.copy() for r in results]
    x[...] = -9
    for i, a in enumerate(results):
        np.testing.assert_array_equal(a, kept[i])
        assert not np.shares_memory(a, x)
        assert not any(np.shares_memory(a, b) for b in results[:i])


def test_passthrough_fed_back() -> None:
    """C037: f(x) = (x, x + 1), fed back four times; what was returned does not change later."""
    f, x, kept = go.compile(lambda x: (x, x + 1)), np.float32(0), []
    for _ in range(4):
        x, y = f(x)
        kept.append((x, y))
    assert [(float(a), float(b)) for a, b in kept] == [(0, 1)] * 4


def test_equal_gradients_are_two_arrays() -> None:
    """B52"""
    da, db = go.compile(go.grad(lambda a, b: (a + b).sum(), argnums=(0, 1)))(f32(3), f32(3))
    assert not np.shares_memory(np.asarray(da), np.asarray(db))


def test_results_live_as_long_as_they_are_used() -> None:
    f = go.compile(lambda x: go.exp(x))
    views = [np.asarray(f(np.full(1000, float(i), np.float32))) for i in range(50)]
    for i, view in enumerate(views):
        np.testing.assert_allclose(view, np.exp(np.float32(i)), rtol=1e-6)


def test_array_behaves_like_numpy() -> None:
    y = go.compile(lambda x: x * 2)(np.arange(6, dtype=np.float32).reshape(2, 3))
    assert (y.shape, y.ndim, y.size, y.nbytes, len(y)) == ((2, 3), 2, 6, 24, 2)
    np.testing.assert_array_equal(y + 1, y.numpy() + 1)
    np.testing.assert_array_equal(1 - y, 1 - y.numpy())
    np.testing.assert_array_equal(y[1], [6, 8, 10])
    assert type(np.sum(y)) is go.Array
    assert np.sum(y) == 30
    assert y.tolist() == [[0, 2, 4], [6, 8, 10]]
    assert f"{go.compile(lambda x: x.sum())(y):.1f}" == "30.0"
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(y)[0, 0] = 1
    with pytest.raises(TypeError, match="cannot be written to"):
        np.add(y, 1, out=y)
    z, before = y, y.numpy()
    z += 1  # the elements of the array, of which `before` has the old ones
    assert z is y
    np.testing.assert_array_equal(y, before + 1)


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_have_their_own_memory(way: Any) -> None:
    x = go.device_put(np.ones(3, np.float32))
    y, f = way(x), go.compile(lambda p: p + 1, donate=0)
    f(f(x))
    np.testing.assert_array_equal(y, [1, 1, 1])


@pytest.mark.parametrize(
    "dtype", ["bfloat16", "float16", "float64", "int8", "uint8", "uint32", "bool"]
)
def test_element_types_pass_through(dtype: str) -> None:
    x = np.array([0, 1, 3]).astype(go.TensorSpec((), dtype).dtype)
    y = go.compile(lambda x: x[::-1])(x)
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(np.asarray(y), x[::-1])


UNKNOWN = {
    "sum": (lambda a, b: a + b, [(None,), (None,)], [(3,), (3,)], [(3,), (4,)]),
    "rows": (
        lambda a, b: (a * b).sum(),
        [(None, 3), (None, 3)],
        [(2, 3), (2, 3)],
        [(2, 3), (4, 3)],
    ),
    "product": (lambda a, b: a @ b, [(None, None), (None, 4)], [(2, 3), (3, 4)], [(2, 3), (2, 4)]),
    "batches": (
        lambda a, b: a @ b,
        [(None, 3, 2), (None, 2, 5)],
        [(2, 3, 2), (2, 2, 5)],
        [(2, 3, 2), (3, 2, 5)],
    ),
    "concat": (
        lambda a, b: go.concat([a, b], 1),
        [(None, 3), (None, 2)],
        [(2, 3), (2, 2)],
        [(2, 3), (1, 2)],
    ),
    "stack": (lambda a, b: go.stack([a, b], 1), [(None,), (None,)], [(2,), (2,)], [(2,), (3,)]),
    "reversed": (lambda a, b: go.flip(a, 1) + b, [(None, 3)] * 2, [(2, 3)] * 2, [(2, 3), (3, 3)]),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_extents_have_to_agree(name: str) -> None:
    """Checked when the function runs, before anything is read; the function stays usable."""
    fn, shapes, good, bad = UNKNOWN[name]
    g = go.Graph(name)
    inputs = [g.input(f"x{i}", shape) for i, shape in enumerate(shapes)]
    with g:
        result = fn(*inputs)
    g.output(result)
    f = go.compile(g)
    for _ in range(2):
        arrays = [f32(*shape) for shape in good]
        (want,) = run_reference(fn, *arrays)
        np.testing.assert_allclose(f(*arrays)[0], want, rtol=1e-5, atol=1e-6)
        with pytest.raises(ArgumentError, match=r"to agree at .*test_runtime\.py:\d+.*of shapes"):
            f(*(f32(*shape) for shape in bad))


# --- donation -------------------------------------------------------------------------------------


def conv_step(params: dict[str, Any], x: Any, y: Any) -> tuple[Any, Any]:
    """A training step of a small convolutional net whose update reads every parameter twice."""

    def loss(params: dict[str, Any]) -> Any:
        h = go.relu(go.conv(x, params["k1"], padding="SAME") + params["b1"])
        h = go.relu(go.conv(h, params["k2"], 2, padding=1) + params["b2"])
        logits = h.mean(axis=(1, 2)) @ params["w"] + params["b3"]
        decay = sum((p * p).sum() for p in params.values())
        return go.cross_entropy(logits, y).mean() + 1e-3 * decay

    value, gradients = go.value_and_grad(loss)(params)
    return {k: p - 0.1 * gradients[k] for k, p in params.items()}, value


def conv_state() -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    shapes = {
        "k1": (3, 3, 3, 8),
        "b1": (8,),
        "k2": (3, 3, 8, 8),
        "b2": (8,),
        "w": (8, 4),
        "b3": (4,),
    }
    params = {name: f32(*shape) / 2 for name, shape in shapes.items()}
    return params, f32(6, 8, 8, 3), rng.integers(0, 4, 6).astype(np.int32)


def test_donated_parameters_are_updated_safely() -> None:
    """The hazard of in-place arguments: every parameter after each of five steps, against the
    reference. Storage alternates, so that no step writes what it still reads, and no step allocates
    parameters.
    """
    start, x, y = conv_state()
    step = go.compile(conv_step, donate=0)
    params: Any = start
    want = {k: v.astype(np.float64) for k, v in start.items()}
    addresses: dict[str, set[int]] = {k: set() for k in start}
    for _ in range(5):
        params, value = step(params, x, y)
        flat = run_reference(
            lambda *p: conv_step(dict(zip(sorted(start), p, strict=True)), x.astype(float), y),
            *(want[k] for k in sorted(want)),
        )
        want = dict(zip(sorted(start), flat[:-1], strict=True))
        np.testing.assert_allclose(float(value), flat[-1], rtol=1e-5)
        for name, array in params.items():
            np.testing.assert_allclose(np.asarray(array), want[name], rtol=0, atol=2e-6)
            addresses[name].add(np.asarray(array).ctypes.data)
    assert all(len(found) <= 2 for found in addresses.values())


def test_donated_arrays_cannot_be_used_again() -> None:
    """C139"""
    f = go.compile(lambda p, x: p + x, donate=0)
    first = go.device_put(f32(4))
    second = f(first, f32(4))
    assert first.is_deleted()
    for use in (lambda: f(first, f32(4)), lambda: np.asarray(first), lambda: first + 1):
        with pytest.raises(DonationError, match="used after it had been donated"):
            use()
    with pytest.raises(DonationError, match="'p' also as another argument"):
        f(second, second)
    assert not second.is_deleted()


def test_numpy_arguments_are_not_taken() -> None:
    """A NumPy array that is donated stays the caller's, unchanged."""
    x = aligned(4)
    before = x.copy()
    y = go.compile(lambda p: p + 1, donate=0)(x)
    np.testing.assert_array_equal(x, before)
    np.testing.assert_array_equal(y, before + 1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool"])
def test_numpy_arrays_outlive_a_donation(dtype: str) -> None:
    """What NumPy reads in place is never written to, not even through a view of a view."""
    f = go.compile(lambda p, x: go.where(p == x, x, x), donate=0)
    zeros = np.zeros(1000, go.TensorSpec((), dtype).dtype)
    array = f(go.device_put(zeros), np.ones_like(zeros))
    kept = [np.asarray(array), array[10:20], memoryview(array.numpy().view(np.uint8)[::2])]
    before = [np.array(k) for k in kept]
    first, kept[0] = kept[0][-1:], None
    for _ in range(4):
        array = f(array, zeros)
    np.testing.assert_array_equal(first, before[0][-1:])
    np.testing.assert_array_equal(kept[1], before[1])
    np.testing.assert_array_equal(kept[2], before[2])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("view", [np.asarray, lambda x: np.asarray(x)[1:], lambda x: x.numpy()[0]])
def test_numpy_arrays_outlive_their_array(view: Any, dtype: str) -> None:
    """What NumPy reads stays while it reads it, whatever is computed meanwhile."""
    f = go.compile(lambda x: x * 2)
    given = [np.full((64, 64), k).astype(go.TensorSpec((), dtype).dtype) for k in range(8)]
    read = [view(f(x)) for x in given]
    for k, y in enumerate(read):
        assert (y == 2 * k).all()


def test_donation_of_what_no_result_can_use() -> None:
    """Another shape, or extents that are unknown: given up all the same, and right."""
    f = go.compile(lambda p: p.sum(), donate=0)
    p = go.device_put(np.ones(4, np.float32))
    assert float(f(p)) == 4
    assert p.is_deleted()
    g = go.Graph("f")
    g.output(g.input("x", (None,)) + 1)
    np.testing.assert_array_equal(go.compile(g, donate=0)(np.ones(3, np.float32))[0], [2, 2, 2])


def test_donated_swap() -> None:
    """Two donated arguments whose results change places."""
    f, a, b = go.compile(lambda a, b: (b, a), donate=(0, 1)), f32(3), f32(3)
    one, two = go.device_put(a), go.device_put(b)
    for _ in range(3):
        one, two = f(one, two)
    np.testing.assert_array_equal(one, b)
    np.testing.assert_array_equal(two, a)


def test_donate_positions_are_checked() -> None:
    with pytest.raises(
        ArgumentError, match=r"donate expected positions of the 1 arguments .* got 3"
    ):
        go.compile(lambda x: x, donate=3)(f32(2))


# --- processes ------------------------------------------------------------------------------------

PROGRAM = """
import json, sys, numpy as np, gradopt as go
f = go.compile(go.value_and_grad(lambda w, x: (go.tanh(x @ w) ** 2).sum()))
value, gradient = f(np.ones((3, 2), np.float32), np.ones((4, 3), np.float32))
info = go.cache_info()
print(json.dumps([info.compiled, info.memory_hits, info.disk_hits, float(value)]))
"""


def run_program(
    folder: pathlib.Path, where: pathlib.Path, **variables: str
) -> tuple[list[Any], str]:
    environment = os.environ | {"GRADOPT_CACHE_DIR": str(folder)} | variables
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        command, env=environment, cwd=where, capture_output=True, text=True, check=True, timeout=120
    )
    return json.loads(done.stdout), done.stderr


# --- the compiler fails ---------------------------------------------------------------------------

LARGE_VECTOR = pathlib.Path(__file__).with_name("large_vector.mlir")
"""Fails on the first rung, "large vector sizes", and compiles on the next."""

GOOD = """
func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = math.exp %x : tensor<4xf32>
  return %y : tensor<4xf32>
}
"""


def test_ladder() -> None:
    """What the default flags cannot compile is compiled by a lower rung, with a warning."""
    with pytest.warns(UserWarning, match=r"could not compile 'attention' .*rung 'large-vectors'"):
        image = compiler.compile_linalg(LARGE_VECTOR.read_text(), target("cpu"), "attention")
    assert image


def test_error_has_what_is_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """Op, location, stage, flags, a reproducer that fails again; no dump."""
    monkeypatch.setenv("GRADOPT_CACHE_DIR", str(tmp_path))
    text = GOOD.replace("math.exp %x : tensor<4xf32>", "math.nonesuch %x : tensor<4xf32>")
    with pytest.raises(CompileError) as caught:
        compiler.compile_linalg(text, target("cpu"), "f", {"gradopt:3": ["gradopt.exp"]})
    message = str(caught.value)
    for part in ("'f'", "op: gradopt.exp", "location: gradopt:3", "stage: input", "flags: --iree",
                 "default: stage", "unoptimized: stage", "reproducer: "):  # fmt: skip
        assert part in message
    assert len(message) < 3000
    folder = next((tmp_path / "reproducers").iterdir())
    assert (folder / "module.mlir").read_text() == text
    assert "nonesuch" in (folder / "diagnostics.txt").read_text()
    environment = os.environ | {
        "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    }
    again = subprocess.run(
        ["sh", folder / "run.sh"], env=environment, capture_output=True, check=False
    )
    assert again.returncode != 0


READ = "import sys, struct, json; sys.stdin.buffer.read(4); "
STUBS = {
    "hangs": ("import time; time.sleep(600)", "stage timeout: no result after 1 s"),
    "crashes": (READ + "import os; os.abort()", "stage crash: the compiler ended with code -6"),
    "exits": (READ + "sys.exit('bad day')", "stage crash: the compiler ended with code 1: bad day"),
    "says nothing": (
        READ
        + "a = json.dumps({'ok': False, 'size': 0, 'stage': 'flow', 'diagnostics': []}).encode();"
        "sys.stdout.buffer.write(struct.pack('<I', len(a)) + a); sys.stdout.flush();"
        "sys.stdin.buffer.read()",
        "stage flow: no diagnostic",
    ),
}


@pytest.mark.parametrize("name", STUBS)
def test_compiler_that(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """C122: hangs, crashes or fails without a word: an error with flags, stage and a reproducer."""
    script, message = STUBS[name]
    stub = compiler.Worker(())
    stub.command = [sys.executable, "-c", script]
    monkeypatch.setenv("GRADOPT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("GRADOPT_COMPILE_TIMEOUT", "1")
    monkeypatch.setattr(compiler, "_worker", lambda *_: stub)
    start = time.monotonic()
    with pytest.raises(CompileError, match=message):
        compiler.compile_linalg(GOOD, target("cpu"), "f")
    assert time.monotonic() - start < 20
    stub.close()


@pytest.mark.filterwarnings("error")  # no lower rung is needed
def test_worker_is_replaced_after_a_crash() -> None:
    worker = compiler._worker(())
    compiler.compile_linalg(GOOD, target("cpu"), "f")
    worker._process.kill()  # type: ignore[union-attr]
    assert compiler.compile_linalg(GOOD, target("cpu"), "f")


def test_function_is_usable_after_an_error() -> None:
    """B25"""
    f = go.compile(lambda x, y: x @ y)
    for _ in range(2):
        with pytest.raises(OpError, match="expected"):
            f(f32(2, 3), f32(2, 3))
    np.testing.assert_allclose(f(np.eye(2, dtype="f"), np.eye(2, dtype="f")), np.eye(2))


def test_unknown_target() -> None:
    with pytest.raises(CompileError, match=r"expected a target out of .*, got 'tpu'"):
        go.compile(lambda x: x, target="tpu")


def test_rungs_have_names() -> None:
    assert [r.name for r in LADDER] == ["default", "large-vectors", "no-data-tiling", "unoptimized"]
    assert all(isinstance(r, Rung) for r in LADDER)


# --- threads --------------------------------------------------------------------------------------


def test_threads_share_one_function() -> None:
    """B11, C134: the results of serial calls, one compilation."""
    f = go.compile(lambda x, n: (go.sin(x) * n).sum())
    x = f32(100)
    before = go.cache_info().compiled
    wrong: list[Any] = []

    def work(n: int) -> None:
        for i in range(20):
            value = float(f(x, np.float32(n + i)))
            if not np.isclose(value, np.sin(x).sum() * (n + i), rtol=1e-4, atol=1e-4):
                wrong.append((n, i, value))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not wrong
    assert go.cache_info().compiled - before == 1


def test_threads_compile_their_own() -> None:
    """C134"""
    results: dict[int, float] = {}

    def work(n: int) -> None:
        results[n] = float(go.compile(lambda x: (x * (n + 0.5)).sum())(np.ones(3, np.float32)))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert results == {n: 3 * (n + 0.5) for n in range(8)}


def test_exit_without_clean_up(tmp_path: pathlib.Path) -> None:
    """C137: processes that end with arrays and functions alive end with status 0."""
    for _ in range(3):
        run_program(tmp_path, tmp_path)


def test_no_warning_in_ordinary_use() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        go.compile(lambda x: go.softmax(x @ x.T))(f32(5, 4))
