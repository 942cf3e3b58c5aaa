# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""static_alloc, donation in place, and memory reports of compiled functions."""

import contextlib
import dataclasses
import gc
import importlib.metadata
import json
import pathlib
import shutil
import subprocess
import sys
import threading
import warnings
import weakref
from typing import Any

import gradopt as go
import numpy as np
import pytest
from gradopt.dialect.control import symbols
from gradopt.errors import DeviceError, DonationError
from gradopt.lowering import marks
from gradopt.lowering.bufferize import storage_of_results
from gradopt.runtime import array, compiler, device, dispatch, homes, modules, options
from gradopt.tools.workloads import mlp, recsys, train_step

from .helpers import CPU, run_reference

pytestmark = pytest.mark.compiler
rng = np.random.default_rng(11)

SYNC = dataclasses.replace(CPU, driver="local-sync")
"""Runs on the caller's thread; its allocator counts every allocation."""


def f32(*shape: int) -> np.ndarray:
    return rng.uniform(-1, 1, shape).astype(np.float32)


@pytest.fixture
def on_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile for, and put arrays on, the device that counts allocations."""
    for module in (options, array):
        monkeypatch.setattr(module, "find_target", lambda name: SYNC)


def allocated() -> int:
    return device.device("local-sync").allocator.statistics["device_bytes_allocated"]


def image_of(f: Any, *specs: Any) -> bytes:
    """The VMFB of a compiled function."""
    graph = f.trace(*specs)
    with graph.context:
        f._mark(graph, graph.module)
    return modules.compile_graph(graph.module, graph.name, f.target)


def executable(f: Any) -> Any:
    (found,) = f._bound.values()
    return found


def small_step(p: dict[str, Any], x: Any, y: Any) -> tuple[Any, Any]:
    def loss(p: dict[str, Any]) -> Any:
        h = go.tanh(x @ p["w"] + p["b"])
        return go.cross_entropy(h @ p["v"], y).mean()

    value, g = go.value_and_grad(loss)(p)
    return {k: p[k] - 0.1 * g[k] for k in p}, value


def small_state() -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    p = {"w": f32(24, 32), "b": f32(32), "v": f32(32, 8)}
    return p, f32(16, 24), rng.integers(0, 8, 16).astype(np.int32)


# --- no allocation --------------------------------------------------------------------------------


def test_no_allocation_in_steady_state(on_sync: None, tmp_path: pathlib.Path) -> None:
    """B04, C056: 1,000 training steps allocate nothing; parameters stay at a fixed set of
    addresses; the module does not even import an allocation.
    """
    start, x, y = small_state()
    step = go.compile(small_step, donate=0, static_alloc=True)
    p: Any = {k: go.device_put(v) for k, v in start.items()}
    y.setflags(write=False)  # cannot be read in place: it is copied into memory that is kept
    losses = []
    for _ in range(3):
        p, value = step(p, x, y)
    before, addresses = allocated(), {k: set() for k in p}
    for i in range(1000):
        p, value = step(p, x, y)
        if i % 100 == 0:
            losses.append(float(value))
        if i < 20:
            for k, array in p.items():
                addresses[k].add(array.numpy().ctypes.data)
            before = allocated()  # reading the parameters while they are donated needs memory
    assert allocated() == before
    assert losses == sorted(losses, reverse=True)
    assert all(len(found) <= 3 for found in addresses.values())
    path = tmp_path / "step.vmfb"
    path.write_bytes(image_of(step, start, x, y))
    tool = pathlib.Path(sys.executable).with_name("iree-dump-module")
    command = [tool, "--output=metadata", path]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "hal.device.queue.execute" in said
    assert "hal.device.queue.alloca" not in said


def test_in_place_parameters_have_one_address(on_sync: None) -> None:
    """C140: matrices are updated where they are, with no second buffer."""
    start, x, y = small_state()
    step = go.compile(small_step, donate=0, static_alloc=True)
    p: Any = {k: go.device_put(v) for k, v in start.items()}
    p, _ = step(p, x, y)
    in_place = {executable(step).names[i] for i in executable(step).in_place}
    assert in_place == {"p.w", "p.v"}
    seen = {k: set() for k in p}
    for _ in range(6):
        p, _ = step(p, x, y)
        for k, found in p.items():
            seen[k].add(address(found))
    assert {k: len(addresses) for k, addresses in seen.items()} == {"w": 1, "v": 1, "b": 2}


def address(array: Any) -> int:
    """Where an Array lies, without a NumPy array that lasts."""
    return array.buffer_view().get_buffer().map().asarray(array.shape, array.dtype).ctypes.data


def test_large_table_is_not_copied(on_sync: None) -> None:
    """C140: rows of an embedding table are updated in place: no copy of the table, not even as a
    temporary.
    """
    start, batch, loss = recsys(batch=32, rows=20_000)
    step = go.compile(train_step(loss), donate=0, static_alloc=True)
    p: Any = {k: go.device_put(v) for k, v in start.items()}
    plain: Any = go.compile(train_step(loss))(start, *batch)
    p, value = step(p, *batch)
    where = address(p["table"])
    assert float(value) == float(plain[1])
    for k in p:
        np.testing.assert_array_equal(p[k], plain[0][k])
    p = {k: go.device_put(v) for k, v in start.items()}
    p, _ = step(p, *batch)
    p, _ = step(p, *batch)
    report = step.memory_report(start, *batch)
    table = next(b for b in report.inputs if b.name == "parameters.table")
    assert table.donated == "in place"
    assert report.arena < report.iree - table.bytes + 64
    assert where


@pytest.mark.parametrize(
    ("fn", "arguments"),
    [
        (lambda x: x + 1, (np.ones(4, np.float32),)),
        (lambda a, b, c: a @ b + c, (np.ones((3, 4), "f"), np.ones((4, 5), "f"), np.ones(5, "f"))),
        (lambda x: (x, x, go.zeros((2,))), (np.ones(3, np.float32),)),
        (lambda x: x.reshape(0, 3), (np.ones((3, 0), np.float32),)),
        (lambda x: (x > 0, x.astype("bfloat16")), (np.array([-1.0, 1.0], np.float32),)),
        (lambda x: x[None].T.reshape(-1), (np.ones((2, 3), np.float32),)),
    ],
    ids=["elementwise", "no scratch", "copies", "empty", "bool and bfloat16", "view"],
)
def test_functions_that_need_little(fn: Any, arguments: Any) -> None:
    """B02, C055, C031: with no temporaries, views and empty results; each call has results of its
    own.
    """
    f = go.compile(fn, static_alloc=True)
    want = run_reference(fn, *arguments)
    calls = [f(*arguments) for _ in range(3)]
    for got in calls:
        for a, b in zip(got if isinstance(got, tuple) else (got,), want, strict=True):
            np.testing.assert_array_equal(np.asarray(a), b)
    arrays = [np.asarray(r) for c in calls for r in (c if isinstance(c, tuple) else (c,))]
    assert not any(np.shares_memory(a, b) for i, a in enumerate(arrays) for b in arrays[:i])


# --- results live as long as they are used --------------------------------------------------------


def test_results_are_not_written_again_while_used() -> None:
    """Arrays and views of views keep their values through later calls; then the memory is used
    again.
    """
    f = go.compile(lambda x: (go.exp(x), x.sum()), static_alloc=True)
    kept = []
    for i in range(20):
        array, total = f(np.full(1000, float(i), np.float32))
        kept.append(array if i % 2 else np.asarray(array)[3:].reshape(-1)[1:])
        assert float(total) == 1000 * i
    for i, view in enumerate(kept):
        np.testing.assert_allclose(view, np.exp(np.float32(i)), rtol=1e-6)
    pool = executable(f).pools[0]
    assert len(pool) == 0
    del kept, view, array
    assert len(pool) == 20


def test_donated_arrays_that_numpy_reads() -> None:
    """What NumPy reads is copied before it would be overwritten, NumPy's own arrays as well."""
    step = go.compile(small_step, donate=0, static_alloc=True)
    plain = go.compile(small_step)
    start, x, y = small_state()
    p: Any = {k: go.device_put(v) for k, v in start.items()}
    q: Any = start
    for i in range(5):
        views = {k: np.asarray(v) for k, v in p.items()} if i % 2 else {}
        before = {k: v.copy() for k, v in views.items()}
        p, _ = step(p if i != 2 else {k: np.array(v) for k, v in p.items()}, x, y)
        q, _ = plain(q, x, y)
        for k in views:
            np.testing.assert_array_equal(views[k], before[k])
        for k in p:
            np.testing.assert_array_equal(p[k], q[k])


def test_an_exception_gives_everything_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """B25: donated arrays, the arena and results' memory are as before the call."""
    step = go.compile(small_step, donate=0, static_alloc=True)
    start, x, y = small_state()
    p: Any = {k: go.device_put(v) for k, v in start.items()}
    for _ in range(2):
        p, _ = step(p, x, y)
    e = executable(step)
    held = []

    def fails(*_: Any) -> Any:
        raise RuntimeError("the device is gone")

    with monkeypatch.context() as patch:
        for way in ("run_now", "submit"):
            patch.setattr(e.module, way, fails)
        for _ in range(3):
            with pytest.raises(RuntimeError, match="the device is gone"):
                step(p, x, y)
            held.append((len(e.arenas), {r: len(pool) for r, pool in e.pools.items()}))
    assert held[0] == held[1] == held[2]
    assert not any(v.is_deleted() for v in p.values())
    q, _ = step(p, x, y)
    assert all(v.is_deleted() for v in p.values())
    with pytest.raises(DonationError, match="used after it had been donated"):
        step({**q, "w": p["w"]}, x, y)
    assert not any(v.is_deleted() for v in q.values())


def test_threads_have_arenas_of_their_own() -> None:
    """B10, B11: a state in use is not used again; as many states as calls at once."""
    f = go.compile(lambda x, n: go.tanh(x @ x.T * n) @ x, static_alloc=True)
    x = f32(64, 64)
    want = {n: np.asarray(f(x, np.float32(n))).copy() for n in range(4)}
    wrong = []

    def work(n: int) -> None:
        for _ in range(25):
            if not np.array_equal(f(x, np.float32(n)), want[n]):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not wrong
    assert 1 <= len(executable(f).arenas) <= 4


def large(x: Any) -> Any:
    return go.tanh(x @ x.T) @ x


def larger(x: Any) -> Any:
    y = go.tanh(x @ x.T)
    return go.tanh(go.concat([y, y.T]) @ y) @ x


@pytest.fixture
def all_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """All functions are taken for large, and run asynchronously."""
    monkeypatch.setattr(marks, "LARGE", 0)
    monkeypatch.setenv("GRADOPT_DISPATCH", "async")


def test_large_functions_use_one_arena_in_turns(all_large: None) -> None:
    """B10: without static_alloc one state a device serves all, as long as somebody uses it; results
    have memory of their own.
    """
    f, g = go.compile(large), go.compile(larger)
    x, y = f32(64, 64), f32(80, 64)
    results = [(h(z), h, z) for z in (x, y) for h in (f, g, f)]
    for found, h, z in results:
        np.testing.assert_allclose(found, run_reference(h.fn, z)[0], rtol=1e-4, atol=1e-4)
    used = [e for h in (f, g) for e in h._bound.values()]
    assert {e.is_static for e in used} == {True}
    assert {e.arenas for e in used} == {used[0].home.arenas()}
    assert not any(e.places for e in used)
    assert len(used[0].arenas) == 1
    (arena,) = used[0].arenas._free
    assert arena.size == max(e.arena_size for e in used) > 0
    gone = weakref.ref(used[0].arenas)
    del arena, used, f, g, h, results, found
    dispatch.settle()
    go.clear_cache()
    gc.collect()
    assert gone() is None


def test_threads_use_shared_arenas(all_large: None) -> None:
    """B11: as many arenas as calls at once, none in use by two."""
    f, g = go.compile(large), go.compile(larger)
    inputs = [f32(n, 64) for n in (48, 64, 80, 96)]
    want = [(h, x, np.array(h(x))) for x in inputs for h in (f, g)]
    wrong = []

    def work(first: int) -> None:
        for i in range(40):
            h, x, y = want[(first + 3 * i) % len(want)]
            if not np.array_equal(h(x), y):
                wrong.append((first, i))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not wrong
    (arenas,) = {e.arenas for h in (f, g) for e in h._bound.values()}
    assert 1 <= len(arenas) <= 4


def test_arenas() -> None:
    class Memory:
        def allocate_arena(self, size: int) -> Any:
            return object()

    home: Any = Memory()
    arenas = homes.Arenas()
    small, middle = arenas.take(10, home, "f"), arenas.take(20, home, "f")
    arenas.give(small)
    arenas.give(middle)
    assert arenas.take(5, home, "f") is small
    assert arenas.take(5, home, "f") is middle
    arenas.give(small)
    arenas.give(middle)
    largest = arenas.take(30, home, "f")
    assert largest.size == 30
    assert len(arenas) == 1  # in place of the middle one
    assert arenas.take(10, home, "f") is small


@pytest.mark.parametrize("static_alloc", [False, True])
def test_more_temporaries_than_memory(static_alloc: bool) -> None:
    f = go.compile(
        lambda x: go.tanh(go.tanh(x[:, None] @ x[None, :]) @ x[:, None]), static_alloc=static_alloc
    )
    with pytest.raises(DeviceError, match=r"'lambda' expected 64,000,.* bytes.*memory_budget"):
        f(np.ones(4_000_000, np.float32))


def test_who_gets_an_arena_unasked(all_large: None) -> None:
    x = f32(16, 16)

    def looped(x: Any) -> Any:
        return go.scan(lambda c, _: (go.tanh(c @ x), None), x, None, length=3)[0]

    spare = go.compile(lambda x: go.grad(lambda y: large(y).sum())(x), memory_budget="1MiB")
    open_ended = go.compile(large, dynamic={0: [0]})
    for f, wanted in ((go.compile(large), True), (go.compile(looped), False), (spare, False)):
        np.testing.assert_allclose(f(x), run_reference(f.fn, x)[0], rtol=1e-4, atol=1e-5)
        assert executable(f).is_static is wanted
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nobody asked for what cannot be
        open_ended(x)
    assert not executable(open_ended).is_static


def test_large_by_what_is_made() -> None:
    """Attention is large by its weights, which are no value of the graph."""

    def is_large(fn: Any, *shape: int) -> bool:
        graph = go.compile(fn).trace(*[go.TensorSpec(shape)] * 3)
        with graph.context:
            return marks.is_large(symbols(graph.module)[graph.name])

    assert not is_large(lambda q, k, v: go.attention(q, k, v), 1, 4, 512, 8)
    assert is_large(lambda q, k, v: go.attention(q, k, v), 1, 4, 1024, 8)
    assert not is_large(lambda q, k, v: q + k + v, 1024, 1024)
    assert is_large(lambda q, k, v: q * k + v, 1536, 1024)


def test_one_array_donated_by_two_threads_is_taken_once() -> None:
    step = go.compile(lambda p: p * 2, donate=0, static_alloc=True)
    step(go.device_put(f32(8)))
    taken = []

    def work(array: Any) -> None:
        with contextlib.suppress(DonationError):
            taken.append(step(array))

    for _ in range(20):
        array = go.device_put(np.ones(8, np.float32))
        taken.clear()
        threads = [threading.Thread(target=work, args=(array,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert len(taken) == 1
        np.testing.assert_array_equal(taken[0], np.full(8, 2.0))


def test_unknown_extents_drop_it_with_one_warning() -> None:
    """B07"""
    g = go.Graph("rows")
    g.output(g.input("x", (None, 3)) * 2)
    f = go.compile(g, static_alloc=True)
    with pytest.warns(UserWarning, match="'rows' has extents .* without static_alloc"):
        np.testing.assert_array_equal(f(np.ones((2, 3), "f"))[0], np.full((2, 3), 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(f(np.ones((4, 3), "f"))[0], np.full((4, 3), 2))


def test_options_do_not_stick_to_a_graph() -> None:
    """One graph, compiled in three ways; the options are part of the key."""
    g = go.Graph("twice")
    g.output(g.input("x", (3,)) * 2)
    before = go.cache_info().compiled
    for given in ({}, {"static_alloc": True}, {"donate": 0}, {}):
        x = go.device_put(np.ones(3, np.float32))
        np.testing.assert_array_equal(go.compile(g, **given)(x)[0], [2, 2, 2])
        assert x.is_deleted() == ("donate" in given)
    assert go.cache_info().compiled - before == 3


# --- in place, with proof -------------------------------------------------------------------------


def hazard(w: Any, x: Any, ct: Any) -> Any:
    """The gradient of w, and one that reads w, which nothing orders before w's update."""
    return w - 0.1 * (x.T @ ct), ct @ w.T


@pytest.mark.parametrize("rung", ["default", "unoptimized"])
def test_write_after_read_hazard(rung: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The minimal hazard, with each way to compile it: where IREE writes w before it has read all
    of it, w gets a second buffer.
    """
    one = dataclasses.replace(CPU, ladder=tuple(r for r in CPU.ladder if r.name == rung))
    monkeypatch.setattr(options, "find_target", lambda name: one)
    step, w, x = go.compile(hazard, donate=0), f32(64, 48), f32(32, 64)
    report = step.memory_report(w, x, f32(32, 48))
    (tie,) = (b for b in report.inputs if b.donated)
    assert tie.donated == "ping-pong"
    assert "may read it after" in tie.why or (rung != "default" and "at other places" in tie.why)
    array, want = go.device_put(w), w.astype(float)
    for _ in range(4):
        ct = f32(32, 48)
        array, dx = step(array, x, ct)
        np.testing.assert_allclose(dx, ct @ want.T, atol=2e-5)
        want = want - 0.1 * (x.T.astype(float) @ ct)
        np.testing.assert_allclose(array, want, atol=2e-5)


NOT_IN_PLACE = {
    "transposed": lambda p: p - 0.1 * p.T,
    "shifted": lambda p: p + go.concat([p[1:], p[:1]], 0),
    "scaled by its sum": lambda p: p / (p * p).sum(),
    "sorted": lambda p: go.sort(p, axis=0),
    "swapped halves": lambda p: go.concat([p[4:], p[:4]], 0),
}


@pytest.mark.parametrize("name", NOT_IN_PLACE)
def test_updates_that_read_elsewhere(name: str) -> None:
    """Right in any case; overwritten only if every element is read before."""
    fn = NOT_IN_PLACE[name]
    f, p = go.compile(fn, donate=0, static_alloc=True), f32(8, 8)
    array, want = go.device_put(p), p
    for _ in range(3):
        array = f(array)
        (want,) = run_reference(fn, want)
        np.testing.assert_allclose(array, want, rtol=1e-5, atol=1e-6)


def test_two_parameters_that_change_places() -> None:
    f = go.compile(lambda a, b: (b * 2, a + 1), donate=(0, 1), static_alloc=True)
    a, b = f32(32, 32), f32(32, 32)
    one, two = go.device_put(a), go.device_put(b)
    for _ in range(3):
        one, two = f(one, two)
        a, b = b * 2, a + 1
    np.testing.assert_allclose(one, a, rtol=1e-6)
    np.testing.assert_allclose(two, b, rtol=1e-6)


def adam(p: Any, m: Any, v: Any, x: Any) -> Any:
    g = go.grad(lambda p: (go.tanh(x @ p["a"]) @ p["b"]).sum())(p)
    m = {k: 0.9 * m[k] + 0.1 * g[k] for k in p}
    v = {k: 0.99 * v[k] + 0.01 * g[k] * g[k] for k in p}
    return {k: p[k] - 0.01 * m[k] / (go.sqrt(v[k]) + 1e-3) for k in p}, m, v


def test_adam_is_in_place() -> None:
    """Parameters and both moments of matrices, five steps against the reference."""
    p = {"a": f32(16, 24), "b": f32(24, 8)}
    zeros = {k: np.zeros_like(v) for k, v in p.items()}
    step, x = go.compile(adam, donate=(0, 1, 2), static_alloc=True), f32(8, 16)
    assert {b.donated for b in step.memory_report(p, zeros, zeros, x).inputs} == {"in place", ""}
    state: Any = (p, zeros, zeros)
    flat = [v.astype(float) for group in state for v in group.values()]

    def reference_step(*flat: Any) -> Any:
        groups = [dict(zip("ab", flat[i : i + 2], strict=True)) for i in (0, 2, 4)]
        return tuple(v for group in adam(*groups, x.astype(float)) for v in group.values())

    for _ in range(5):
        state = step(*state, x)
        flat = run_reference(reference_step, *flat)
        for got, want in zip((v for g in state for v in g.values()), flat, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


# --- inside the compiler --------------------------------------------------------------------------


def test_report_and_module_agree() -> None:
    """B22: one arena, no larger than IREE's own, of the size that the report says; owners have
    names.
    """
    start, batch, loss = mlp(batch=32, width=128)
    step = go.compile(train_step(loss), donate=0, static_alloc=True)
    report = step.memory_report(start, *batch)
    step(start, *batch)
    assert executable(step).arena_size == report.arena
    assert report.bound <= report.arena <= report.iree
    assert report.arena <= 1.02 * report.bound
    assert report.spare == sum(b.bytes for b in report.inputs if b.donated == "ping-pong")
    placed = [t for t in report.temporaries if t.bytes]
    for a in placed:
        assert 0 <= a.offset <= report.arena - a.bytes
        for b in placed:
            if a is not b and a.first <= b.last and b.first <= a.last:
                assert a.offset + a.bytes <= b.offset or b.offset + b.bytes <= a.offset
    assert {"dot_general", "relu"} & {t.name for t in placed}
    assert all("workloads.py:" in t.where for t in placed)
    assert json.loads(json.dumps(report.to_dict()))["arena"] == report.arena
    text = str(report)
    assert f"{report.arena:,}" in text
    assert "in place: every reader comes before the update" in text
    plain = go.compile(train_step(loss)).memory_report(start, *batch)
    assert plain.iree > 0
    assert not plain.static_alloc
    assert plain.spare == 0


STUB = """
UP_TO_ALLOCATION = "{passes}"
FROM_ALLOCATION = "symbol-dce"
def slab_sizes(module): return {{}}
def plan_module(module, packing, ordering, own): raise TypeError("another IREE")
"""


@pytest.mark.parametrize("passes", ["iree-no-such-pipeline", "symbol-dce"])
def test_another_iree_compiles_the_plain_way(passes: str, tmp_path: pathlib.Path) -> None:
    """Passes that are gone, or ops of another form, cost the plan and nothing else."""
    runtime = pathlib.Path(compiler.__file__).parent
    (tmp_path / "runtime").mkdir()
    shutil.copy(runtime / "compile_worker.py", tmp_path / "runtime")
    shutil.copytree(runtime.parent / "lowering", tmp_path / "lowering")
    (tmp_path / "runtime" / "compile_arena.py").write_text(STUB.format(passes=passes))
    worker = compiler.Worker(())
    worker.command[2] = str(tmp_path / "runtime" / "compile_worker.py")
    text = "func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }"
    flags = (*CPU.flags, *CPU.ladder[0].flags)
    for _ in range(2):  # the process lives on
        answer, image = worker.compile(text.encode(), flags, 60, "build")
        assert answer["ok"]
        assert "memory" not in answer
        assert image
    worker.close()


def test_pinned_compiler() -> None:
    """compile_arena reads the ops and names the passes of this version: look at it, and at the
    tests here, before the pin is changed.
    """
    assert importlib.metadata.version("iree-base-compiler").startswith("3.13.")


def test_storage_of_results() -> None:
    """Donated inputs first, then every other result; as the text of the pass says."""
    step = go.compile(small_step, donate=0, static_alloc=True)
    start, x, y = small_state()
    graph = step.trace(start, x, y)
    with graph.context:
        step._mark(graph, graph.module)
        assert storage_of_results(symbols(graph.module)[graph.name]) == [
            (0, 0),
            (1, 1),
            (2, 2),
            (3, None),
        ]
    assert "!hal.buffer {iree.abi.transients}" in step.mlir("linalg", start, x, y)
