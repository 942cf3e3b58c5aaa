# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How compiled functions are called: `out=`, other libraries' arrays, devices, calls under way,
threads, forks, lifetimes.

The campaigns run longer with GRADOPT_TEST_CALLS, a factor (10 or more).
"""

import dataclasses
import gc
import os
import pathlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import gradopt as go
import iree.runtime as iree
import numpy as np
import pytest
from gradopt.errors import ArgumentError, DeviceError, DonationError
from gradopt.lowering.target import Family, families, target
from gradopt.runtime import device as devices
from gradopt.runtime import dispatch
from gradopt.tools.bench_memory import live_bytes

from .test_runtime import aligned, f32

pytestmark = pytest.mark.compiler
TIMES = int(os.environ.get("GRADOPT_TEST_CALLS", "1"))


def executable(f: Any) -> Any:
    """The one executable of a compiled function."""
    (found,) = f._bound.values()
    return found


@pytest.fixture
def asynchronous(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions are compiled in the asynchronous form, however small they are."""
    monkeypatch.setenv("GRADOPT_DISPATCH", "async")


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """No call that is submitted begins before this is called."""
    semaphore = devices.device("local-task").create_semaphore(0)
    monkeypatch.setattr(dispatch, "_nothing", iree.HalFence.create_at(semaphore, 1))
    yield lambda: semaphore.signal(1)
    if semaphore.query() < 1:
        semaphore.signal(1)
    dispatch.settle()


def test_calls_that_have_ended_hold_nothing(asynchronous: None, gate: Callable[[], None]) -> None:
    """B22: what calls kept alive is freed when somebody has waited for the last of them, not by the
    next call.
    """
    f, allocator = go.compile(lambda x: x * 2 + 1), devices.device("local-task").allocator
    dispatch.settle()  # calls of other tests
    dispatch._forget()
    gc.collect()
    before = live_bytes(allocator)
    x = f(f(go.device_put(f32(1 << 10))))
    assert live_bytes(allocator) > before
    gate()
    x.block_until_ready()
    assert live_bytes(allocator) == before  # what is computed is in pools that are not counted


# --- out ------------------------------------------------------------------------------------------

TARGET = [
    {},
    {"static_alloc": True},
    {"target": "jit"},
    {"dispatch": "async"},
    {"dispatch": "async", "static_alloc": True},
]


@pytest.fixture(params=TARGET, ids=lambda o: "-".join(map(str, o.values())) or "plain")
def options(request: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Options of `go.compile`; the form in which functions run is set aside."""
    given = dict(request.param)
    if "dispatch" in given:
        monkeypatch.setenv("GRADOPT_DISPATCH", given.pop("dispatch"))
    return given


def both(x: Any, y: Any) -> Any:
    return {"sum": x + y, "rest": (x * y,)}


def test_out(options: dict[str, Any]) -> None:
    """B13: results are written to NumPy arrays of any layout and to Arrays, in place; None stands
    for a new array; what is returned are the caller's arrays.
    """
    f = go.compile(both, **options)
    x, y = aligned(4, 6), f32(4, 6)
    wide = np.zeros((4, 12), np.float32)
    for make in (
        lambda: aligned(4, 6),
        lambda: np.zeros(25, np.float32)[1:].reshape(4, 6),
        lambda: wide[:, ::2],
        lambda: np.asfortranarray(f32(4, 6)),
        lambda: go.device_put(np.zeros((4, 6), np.float32)),
    ):
        one, two = make(), make()
        if one.base is wide if isinstance(one, np.ndarray) else False:
            two = None
        for _ in range(2):
            found = f(x, y, out={"sum": one, "rest": (two,)})
            assert found["sum"] is one
            assert two is None or found["rest"][0] is two
            np.testing.assert_array_equal(np.asarray(one), x + y)
            np.testing.assert_array_equal(np.asarray(found["rest"][0]), x * y)
    assert not wide[:, 1::2].any()
    array = go.device_put(np.zeros((4, 6), np.float32))
    address, view = array.address(), np.asarray(array)
    f(x, y, out={"sum": None, "rest": (array,)})
    assert array.address() == address
    np.testing.assert_array_equal(array, x * y)
    np.testing.assert_array_equal(view, x * y)  # NumPy's view is of the same memory


def test_out_that_is_an_input(options: dict[str, Any]) -> None:
    """B13: where the memory of `out` is, or overlaps, that of an input, results are those of the
    values before the call.
    """
    f = go.compile(lambda x, y: (x[::-1] + y, x * 2), **options)
    x, y = aligned(32), f32(32)
    want = x[::-1] + y
    f(x, y, out=(x, None))
    np.testing.assert_array_equal(x, want)
    memory = aligned(48)
    x, shifted, old = memory[:32], memory[16:], memory[:32].copy()
    f(x, y, out=(shifted, None))
    np.testing.assert_array_equal(shifted, old[::-1] + y)
    a = go.device_put(old)
    one, two = f(a, y, out=(None, a))
    assert two is a
    np.testing.assert_array_equal(np.asarray(one), old[::-1] + y)
    np.testing.assert_array_equal(np.asarray(a), old * 2)
    a = go.device_put(old)
    f(np.asarray(a), y, out=(a, None))  # by a NumPy view of it
    np.testing.assert_array_equal(np.asarray(a), old[::-1] + y)


def test_out_in_place_of_results() -> None:
    """B13: with static allocation the compiled code writes to the caller's memory itself."""
    f = go.compile(lambda x: x + 1, static_alloc=True)
    x, out = aligned(16), aligned(16)
    f(x)
    pool = executable(f).pools[0]
    before = list(pool)
    f(x, out=out)
    np.testing.assert_array_equal(out, x + 1)
    assert pool == before  # no other memory was taken
    kept = f(x)
    address = kept.address()
    f(x * 2, out=kept)
    np.testing.assert_array_equal(kept, x * 2 + 1)
    assert kept.address() == address
    fresh = f(x * 3)
    np.testing.assert_array_equal(kept, x * 2 + 1)
    assert not np.shares_memory(np.asarray(fresh), np.asarray(kept))


def test_out_of_a_donation() -> None:
    """B13: a result that would take over a donated array's memory goes where `out` says."""
    f = go.compile(lambda p, g: p - g, donate=0)
    p, g, out = go.device_put(f32(8)), f32(8), aligned(8)
    want = np.array(p) - g
    assert f(p, g, out=out) is out
    np.testing.assert_array_equal(out, want)
    assert p.is_deleted()
    q = go.device_put(out)
    with pytest.raises(ArgumentError, match="not donated to the same call"):
        f(q, g, out=q)
    assert not q.is_deleted()


def read_only() -> np.ndarray:
    x = aligned(4, 6)
    x.setflags(write=False)
    return x


WRONG_OUT: dict[str, tuple[Callable[[], Any], str]] = {
    "shape": (lambda: np.zeros((6, 4), np.float32), r"result 0 to be tensor<4x6xf32>, got shape"),
    "rank": (lambda: np.zeros(24, np.float32), r"result 0 to be tensor<4x6xf32>, got shape \(24,"),
    "dtype": (lambda: np.zeros((4, 6)), r"tensor<4x6xf32>, got shape \(4, 6\) of float64"),
    "byte order": (lambda: np.zeros((4, 6), ">f4"), r"got shape \(4, 6\) of >f4"),
    "read-only": (read_only, "result 0 to be an array that can be written to, got a read-only one"),
    "list": (lambda: 3.0, "a NumPy array, an Array or None, got 3.0"),
    "borrowed": (lambda: go.from_dlpack(aligned(4, 6)), "memory of its own, got one that borrows"),
}


@pytest.mark.parametrize("name", WRONG_OUT)
def test_wrong_out(name: str) -> None:
    """B13, B25: an error before anything runs; the function stays usable."""
    make, message = WRONG_OUT[name]
    f = go.compile(both, donate=0)
    x, y, total = go.device_put(f32(4, 6)), f32(4, 6), aligned(4, 6)
    before = total.copy()
    with pytest.raises(ArgumentError, match=message):
        f(x, y, out={"rest": (make(),), "sum": total})
    np.testing.assert_array_equal(total, before)
    assert not x.is_deleted()
    want = np.array(x) + y
    f(x, y, out={"rest": (None,), "sum": total})
    np.testing.assert_array_equal(total, want)


def test_wrong_structure_of_out() -> None:
    """B13"""
    f, x = go.compile(both), f32(3)
    for out in (x, {"sum": x}, {"sum": x, "rest": x}, {"sum": x, "rest": (x, x)}):
        with pytest.raises(ArgumentError, match="'both' expected out to have the structure"):
            f(x, x, out=out)
    with pytest.raises(ArgumentError, match="result 1 to be a NumPy array, an Array or None, got"):
        f(x, x, out={"sum": [x], "rest": (None,)})
    with pytest.raises(ArgumentError, match="'both' expected no `out` in a trace"):
        go.trace(lambda x: f(x, x, out={"sum": None, "rest": (None,)}), x)
    g = go.Graph("g")
    g.output(g.input("x", (3,)) + 1)
    with pytest.raises(ArgumentError, match="out to have an array or None for each of 1 results"):
        go.compile(g)(x, out=(None, x))
    with pytest.raises(ArgumentError, match="out to be a tuple of 1 arrays, got ndarray"):
        go.compile(g)(x, out=x)


def test_out_that_overlaps_itself() -> None:
    """B13: two results cannot have one place; interleaved places are two."""
    f, memory = go.compile(lambda x: (x + 1, x + 2)), np.zeros(9, np.float32)
    x = f32(4)
    with pytest.raises(ArgumentError, match=r"result 1 .* result 0, got one that overlaps it"):
        f(x, out=(memory[:4], memory[3:7]))
    array = go.device_put(x)
    with pytest.raises(ArgumentError, match=r"result 1 .* got one that overlaps it"):
        f(x, out=(array, array))
    f(x, out=(memory[:8:2], memory[1:8:2]))
    np.testing.assert_array_equal(memory[:8].reshape(4, 2), np.stack([x + 1, x + 2], 1))


def test_out_of_unknown_extents() -> None:
    """B13: what is known is checked before the call, the rest before anything is written."""
    g = go.Graph("g")
    x = g.input("x", (None, 3))
    g.output(x * 2)
    f, out = go.compile(g), np.zeros((2, 3), np.float32)
    with pytest.raises(ArgumentError, match=r"result 0 to be shape \(4, 3\), got \(2, 3\)"):
        f(np.ones((4, 3), np.float32), out=(out,))
    assert not out.any()
    f(np.ones((2, 3), np.float32), out=(out,))
    assert (out == 2).all()


# --- donation -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda p, q: p.sum() + q.sum(), r"'p' of type tensor<4xf32>, .*no result has that type"),
        (lambda p, q: p + q, r"'q' of type tensor<4xf32>, .*take over other donated arguments"),
    ],
    ids=["no result", "taken"],
)
def test_strict_donation(fn: Any, message: str) -> None:
    """C139: donating what no result can take over is an error where that is asked for."""
    p, q = go.device_put(f32(4)), go.device_put(f32(4))
    with pytest.raises(DonationError, match=message):
        go.compile(fn, donate=(0, 1), donate_strict=True)(p, q)
    assert not p.is_deleted()
    go.compile(lambda p, q: (p + q, p - q), donate=(0, 1), donate_strict=True)(p, q)
    assert p.is_deleted()
    g = go.Graph("g")
    g.output(g.input("x", (None,)) + 1)
    with pytest.raises(DonationError, match="its extents are known only when it is called"):
        go.compile(g, donate=0, donate_strict=True)(f32(3))


# --- devices and other libraries' arrays ----------------------------------------------------------


def test_inputs_on_several_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """B18: the first two inputs that differ are named, with their devices; B25: nothing else."""
    other = dataclasses.replace(target("cpu"), name="other", driver="local-sync")
    monkeypatch.setenv("GRADOPT_DISPATCH", "sync")
    monkeypatch.setitem(families(), "other", Family("other", ("",), lambda _: other))
    monkeypatch.setitem(devices.PLACES, "local-sync", "other")
    here, there = go.device_put(f32(3)), go.device_put(f32(3), "other")
    assert (here.device, there.device) == ("cpu", "other")
    for options in ({"donate": 0}, {"static_alloc": True}, {"target": "jit"}):
        f = go.compile(lambda a, b, c: a + b * c, **options)  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="one device, cpu, got 'a' on cpu and 'c' on other"):
            f(here, f32(3), there)
        with pytest.raises(ArgumentError, match="one device, cpu, got 'a' on other; move them"):
            f(there, f32(3), there)
        assert not here.is_deleted()
        with pytest.raises(ArgumentError, match="result 0 to be an array on cpu, got one on other"):
            f(f32(3), f32(3), f32(3), out=there)
    with pytest.raises(ArgumentError, match="got 'a' on cpu and 'b' on other"):
        go.compile(lambda a, b: a + b)(here, there)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "uint32", "bool"])
def test_dlpack_with_numpy(dtype: str) -> None:
    """Without a copy in both directions; memory that another library has is not written to."""
    f = go.compile(lambda x: x[::-1])
    x = np.array([0, 1, 3, 1], dtype)
    y = f(x)
    for z in (np.from_dlpack(y), np.from_dlpack(y, copy=False)):
        np.testing.assert_array_equal(z, x[::-1])
        assert z.ctypes.data == y.address()
        assert not z.flags.writeable
    source = np.zeros(64, dtype)
    source = source[-source.ctypes.data % 64 // source.itemsize :][:16]
    array = go.from_dlpack(source)
    assert array.address() == source.ctypes.data
    source[3] = 1
    assert np.asarray(array)[3] == 1
    assert np.asarray(go.from_dlpack(source[::2])).tolist() == source[::2].tolist()
    g = go.compile(lambda x: go.where(x == x, x * x, x), donate=0) if dtype != "bool" else None
    if g is not None:
        g(array)
        assert source[3] == 1
        assert array.is_deleted()


def test_dlpack_lives_as_long_as_it_is_used() -> None:
    """What another library reads is not used again, be it out of a pool."""
    f = go.compile(lambda x: x + 1, static_alloc=True)
    kept = [np.from_dlpack(f(np.full(64, i, np.float32))) for i in range(20)]
    assert [k[0] for k in kept] == [i + 1 for i in range(20)]
    step = go.compile(lambda p: p + 1, donate=0)
    p = go.device_put(np.zeros(64, np.float32))
    view = np.from_dlpack(p)
    for _ in range(3):
        p = step(p)
    assert view[0] == 0
    assert np.asarray(p)[0] == 3


class OnlyDLPack:
    """An array of a library that knows no NumPy."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


def test_dlpack_arguments() -> None:
    """Arguments with DLPack's protocol, and JAX's arrays, are taken as NumPy's are."""
    jnp = pytest.importorskip("jax.numpy")
    f, x = go.compile(lambda x: x * 2), aligned(5, 3)
    for given in (OnlyDLPack(x), jnp.asarray(x)):
        np.testing.assert_array_equal(f(given), x * 2)
        np.testing.assert_array_equal(f(go.from_dlpack(given)), x * 2)
    theirs = jnp.asarray(x)
    ours = go.from_dlpack(theirs)
    if theirs.unsafe_buffer_pointer() % 64 == 0:
        assert ours.address() == theirs.unsafe_buffer_pointer()
    del theirs
    gc.collect()
    np.testing.assert_array_equal(ours, x)
    np.testing.assert_array_equal(jnp.from_dlpack(f(x)), x * 2)
    with pytest.raises(ArgumentError, match="that the host can read through DLPack, got"):
        go.from_dlpack(OnlyDLPack(np.array(["a"])))
    with pytest.raises(ArgumentError, match=r"element type out of float64.*, got complex64"):
        go.from_dlpack(np.ones(3, np.complex64))


# --- imports --------------------------------------------------------------------------------------


def test_the_same_buffer_is_imported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """B12: the same array again is not imported again; another is, be it at the same address."""
    from gradopt.runtime import executable as module

    count, original = [], module.imported
    monkeypatch.setattr(module, "imported", lambda *a: count.append(1) or original(*a))
    f = go.compile(lambda w, x: w * x)
    w, x = aligned(8), aligned(8)
    for _ in range(5):
        x += 1  # new values in the same memory are seen
        np.testing.assert_array_equal(f(w, x), w * x)
    assert len(count) == 2
    other = aligned(8)
    np.testing.assert_array_equal(f(other, x), other * x)
    assert len(count) == 3
    del other, w
    for _ in range(20):  # of which some may lie where one lay before
        w = aligned(8)
        np.testing.assert_array_equal(f(w, x), w * x)
    w.setflags(write=False)
    np.testing.assert_array_equal(f(w, x), w * x)


# --- calls under way ------------------------------------------------------------------------------


@pytest.mark.usefixtures("asynchronous")
@pytest.mark.parametrize("static", [False, True])
def test_calls_are_under_way_together(static: bool, gate: Callable[[], None]) -> None:
    """Results are awaited when they are used; calls take what is not ready; donation and memory out
    of pools keep their order.
    """
    step = go.compile(lambda p, x: (p * 0.5 + x, (p * x).sum()), donate=0, static_alloc=static)
    double = go.compile(lambda p: p * 2)
    start, x = f32(64), go.device_put(f32(64))
    p, want, sums, doubles = go.device_put(start), start, [], []
    for _ in range(3):
        doubles.append(double(p))
        p, total = step(p, x)
        sums.append(total)
    assert not any(array.is_ready() for array in [p, *sums, *doubles])
    gate()
    assert go.block_until_ready({"p": p, "rest": [sums, 3.0]})["p"] is p
    assert p.is_ready()
    assert p.block_until_ready() is p
    x = np.asarray(x)
    for total, doubled in zip(sums, doubles, strict=True):
        np.testing.assert_array_equal(doubled, want * 2)
        np.testing.assert_allclose(float(total), (want * x).sum(), rtol=1e-4, atol=1e-5)
        want = want * np.float32(0.5) + x
    np.testing.assert_array_equal(p, want)


@pytest.mark.usefixtures("asynchronous")
def test_memory_of_the_caller_is_not_read_later() -> None:
    """A NumPy array may be changed, and `out` be read, as soon as the call returns."""
    f, x = go.compile(lambda x: go.tanh(x) * 2), aligned(1 << 16)
    for _ in range(20):
        want = np.tanh(x) * 2
        y = f(x)
        x[...] = f32(1 << 16)
        np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)
    out = aligned(1 << 16)
    array = go.device_put(x)
    for static in (False, True):
        g = go.compile(lambda x: go.tanh(x) * 2, static_alloc=static)
        out[...] = 0
        np.testing.assert_allclose(g(array, out=out), np.tanh(x) * 2, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("asynchronous")
def test_steps_under_way_are_right() -> None:
    """Thousands of calls in a chain, with donation and without, have the numbers of calls that are
    waited for.
    """
    for static in (False, True):
        step = go.compile(
            lambda w, v, x: (lambda h: (w - 0.1 * (x.T @ h), v * 0.9 + h.sum(), h.mean()))(
                go.tanh(x @ w)
            ),
            donate=(0, 1),
            static_alloc=static,
        )
        start, x = (f32(32, 16), f32()), go.device_put(f32(8, 32))
        runs = []
        for wait in (True, False):
            w, v = map(go.device_put, start)
            means = []
            for _ in range(100 * TIMES):
                w, v, mean = step(w, v, x)
                means.append(mean.block_until_ready() if wait else mean)
            runs.append([*map(float, means), *np.asarray(w).ravel().tolist(), float(v)])
        assert runs[0] == runs[1]


@pytest.mark.usefixtures("asynchronous")
def test_a_call_that_fails_under_way(gate: Callable[[], None]) -> None:
    """B25: the error comes where the result, or what is made of it, is used; the function, and
    calls that have nothing to do with it, go on.
    """
    f = go.compile(lambda x: x + 1)
    x, y = go.device_put(f32(4)), go.device_put(f32(4))
    good, bad = f(x), f(y)
    after = f(bad)
    bad._pending._semaphore.fail("no such luck")
    with pytest.raises(DeviceError, match="no such luck"):
        f(bad)
    gate()
    for result in (bad, after, bad):
        with pytest.raises(DeviceError, match=r"failed while it ran.*no such luck"):
            np.asarray(result)
    with pytest.raises(DeviceError, match="no such luck"):
        go.block_until_ready([good, bad])
    np.testing.assert_array_equal(good, np.asarray(x) + 1)
    np.testing.assert_array_equal(f(y), np.asarray(y) + 1)
    step = go.compile(lambda p: p * 2, donate=0, static_alloc=True)
    p = go.device_put(f32(4))
    want = np.array(p) * 2
    np.testing.assert_array_equal(step(p), want)


@pytest.mark.parametrize("form", ["inline", "async"])
def test_a_device_that_fails(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """B25: donated arrays, pools and the arena are as before the call, and the next one works."""
    monkeypatch.setenv("GRADOPT_DISPATCH", form)
    f = go.compile(lambda p, x: p + x, donate=0, static_alloc=True)
    p, x = go.device_put(f32(4)), f32(4)
    p = f(p, x)
    e = executable(f)
    pools = {k: list(v) for k, v in e.pools.items()}, len(e.arenas)
    want = np.array(p) + x

    class Broken:
        def invoke(self, *given: Any) -> None:
            raise RuntimeError("the device is gone")

    with monkeypatch.context() as patch:
        patch.setattr(e.module, "context", Broken())
        with pytest.raises(DeviceError, match="the device is gone"):
            f(p, x)
    assert not p.is_deleted()
    assert pools == ({k: list(v) for k, v in e.pools.items()}, len(e.arenas))
    np.testing.assert_array_equal(f(p, x), want)


def test_forms_by_work() -> None:
    """Small functions run on the caller's thread, and are ready when they return; others do not."""
    small, large = go.compile(lambda x: x + 1), go.compile(lambda x: x @ x)
    y = small(f32(8))
    assert y.is_ready()
    z = large(go.device_put(f32(256, 256)))
    assert not executable(small).is_async
    assert executable(large).is_async
    np.testing.assert_array_equal(small(z[0, :8]), z[0, :8] + 1)


# --- threads --------------------------------------------------------------------------------------


def together(count: int, work: Callable[[int], None], seconds: float = 300) -> None:
    """Run `work` on threads that start at once; raises what one of them raised."""
    errors: list[BaseException] = []
    start = threading.Barrier(count)

    def run(n: int) -> None:
        start.wait()
        try:
            work(n)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
        assert not thread.is_alive(), "deadlock"
    if errors:
        raise errors[0]


@pytest.mark.parametrize("static", [False, True], ids=["", "static"])
@pytest.mark.parametrize("form", ["inline", "async"])
@pytest.mark.parametrize("shared", [True, False], ids=["one", "each"])
def test_threads(shared: bool, form: str, static: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """B11, C134: 32 threads on one callable, and on one each, which they compile at once. The
    campaign has 200 calls a thread, ten times.
    """
    monkeypatch.setenv("GRADOPT_DISPATCH", form)

    def make() -> Any:
        return go.compile(lambda x, p: ((go.sin(x) * p).sum(), p + 1, x), static_alloc=static)

    functions = [make()] * 32 if shared else [make() for _ in range(32)]
    x = f32(50)
    sines = np.sin(x.astype(np.float64)).sum()

    def work(n: int) -> None:
        p = np.float32(n)
        for i in range(20 * min(TIMES, 10)):
            total, p, same = functions[n](x, p)
            np.testing.assert_allclose(float(total), sines * (n + i), rtol=1e-4, atol=1e-3)
            if i % 5 == 0:
                np.testing.assert_array_equal(same, x)
        assert float(p) == n + 20 * min(TIMES, 10)

    for _ in range(min(TIMES, 10)):
        together(32, work)


def test_threads_donate_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """B11: one callable with donation, static allocation and `out` from many threads."""
    for form in ("inline", "async"):
        monkeypatch.setenv("GRADOPT_DISPATCH", form)
        step = go.compile(lambda p, x: (p + x, p.sum()), donate=0, static_alloc=True)

        def work(n: int, step: Any = step) -> None:
            p, x, out = go.device_put(np.zeros(64, np.float32)), np.full(64, n, np.float32), f32()
            for i in range(20 * TIMES):
                p, _ = step(p, x, out=(None, out))
                assert out == 64 * n * i
            np.testing.assert_array_equal(p, x * (20 * TIMES))

        together(8, work)


# --- processes ------------------------------------------------------------------------------------

FORK = """
import os, signal, sys, numpy as np, gradopt as go
x = np.ones(3, np.float32)
f = go.compile(lambda x: go.tanh(x) * 2)
y = f(x)
z = go.compile(lambda x: x @ x)(go.device_put(np.ones((256, 256), np.float32)))
child = os.fork()
if child == 0:
    signal.alarm(60)
    try:
        g = go.compile(lambda x: x * 3.5)
        for use in (lambda: f(x), lambda: g(x), lambda: go.device_put(x)):
            try:
                use()
            except go.errors.ForkError as error:
                assert "'spawn' or 'forkserver'" in str(error), error
            else:
                raise AssertionError("no error")
        assert "gradopt.tanh" in f.mlir("graph", x)
        assert "linalg" in go.compile(go.grad(lambda x: go.exp(x).sum())).mlir("linalg", x)
        assert y.tolist() == (np.tanh(x) * 2).tolist()
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
f(x)
sys.exit(code)
"""

EARLY = """
import os, signal, sys, numpy as np, gradopt as go
child = os.fork()
if child == 0:
    signal.alarm(60)
y = go.compile(lambda x: go.tanh(x) * 2)(np.ones(3, np.float32))
z = go.compile(lambda x: x @ x)(go.device_put(np.ones((256, 256), np.float32)))
assert float(z[0, 0]) == 256
if child == 0:
    sys.exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

END = """
import numpy as np, gradopt as go
x = np.ones((256, 256), np.float32)
f = go.compile(lambda x: x @ x, static_alloc=True)
y = f(go.device_put(x))
z = [f(y) for _ in range(3)]
views = np.asarray(go.compile(lambda x: x + 1)(x[0])), np.from_dlpack(f(x)), go.from_dlpack(x)
"""


def run_python(program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("program", [FORK, EARLY], ids=["late", "early"])
def test_fork(program: str) -> None:
    """A child of a process that has called functions gets an error, and does not hang; it can
    trace, and read what was ready. A fork before the first call is no matter.
    """
    done = run_python(program)
    assert done.returncode == 0, done.stderr


def test_ends_without_clean_up() -> None:
    """C137: processes end with status 0 with calls under way, and with arrays, views and borrowed
    memory alive. The campaign has 50.
    """
    for _ in range(1 if TIMES == 1 else 50):
        done = run_python(END)
        assert done.returncode == 0, done.stderr


# --- lifetimes ------------------------------------------------------------------------------------


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="no /proc")
def test_calls_leak_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """C136, B22: resident memory is flat over calls of every kind. The campaign has 100,000."""
    calls = []
    for form in ("inline", "async"):
        monkeypatch.setenv("GRADOPT_DISPATCH", form)
        f, x, y = go.compile(lambda x, y: (x * y, x)), aligned(16), f32(16)
        g = go.compile(lambda p, x: (p + x, x.sum()), donate=0, static_alloc=True)
        state = [go.device_put(x)]

        def call(f: Any = f, g: Any = g, x: Any = x, y: Any = y, state: Any = state) -> None:
            f(x, y)
            f(state[0], y, out=(x, None))
            state[0] = g(state[0], y)[0]
            np.from_dlpack(f(go.from_dlpack(x), y)[0])

        calls.append(call)
    for call in calls:
        for _ in range(300):
            call()
        dispatch.settle()
        gc.collect()
        before = resident()
        for _ in range(125 * TIMES):
            call()
        dispatch.settle()
        gc.collect()
        assert resident() <= before * 1.01


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="no /proc")
def test_loads_leak_nothing() -> None:
    """C136: a module that is loaded, called and dropped leaves nothing behind. The campaign has
    1,000 loads.
    """
    from gradopt.runtime.compiler import compile_linalg

    text = """
    func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
      %y = math.exp %x : tensor<4xf32>
      return %y : tensor<4xf32>
    }
    """
    image = compile_linalg(text, target("cpu"), "f")

    def load() -> None:
        (y,) = devices.Module(image, "local-task").run("f", [f32(4)], [np.dtype(np.float32)])
        np.asarray(y)

    for _ in range(50):
        load()
    gc.collect()
    before = resident()
    for _ in range(50 * TIMES):
        load()
    gc.collect()
    assert resident() <= before * 1.01
