# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The cache of compiled modules, from call to disk: processes, threads, damage, kill -9, sizes.

GRADOPT_CACHE_ROUNDS is the number of rounds with killed processes (1), GRADOPT_CACHE_MUTATIONS that
of damaged entries (5), GRADOPT_CACHE_CONSTANTS the MiB of constants of an artifact (4).
"""

import collections
import gc
import itertools
import json
import os
import pathlib
import random
import subprocess
import sys
import threading
import time
import warnings
from typing import Any

import gradopt as go
import numpy as np
import pytest
from gradopt.errors import ArgumentError
from gradopt.runtime import cache

from .test_store import mutations

pytestmark = pytest.mark.compiler

ROUNDS = int(os.environ.get("GRADOPT_CACHE_ROUNDS", "1"))
MUTATIONS = int(os.environ.get("GRADOPT_CACHE_MUTATIONS", "5"))
CONSTANTS = int(os.environ.get("GRADOPT_CACHE_CONSTANTS", "4"))


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> pathlib.Path:
    monkeypatch.setenv("GRADOPT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def counts(before: cache.CacheInfo) -> tuple[int, int, int]:
    """Modules compiled, found in memory, found on disk since then."""
    now = go.cache_info()
    return (
        now.compiled - before.compiled,
        now.memory_hits - before.memory_hits,
        now.disk_hits - before.disk_hits,
    )


def forget() -> None:
    """Make this process one that has compiled nothing."""
    gc.collect()
    go.clear_cache()


def resident() -> int:
    """Bytes of memory that this process has."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# --- memory and disk ------------------------------------------------------------------------------


def test_two_levels(folder: pathlib.Path) -> None:
    """B05: equal keys compile once; found in memory, after that on disk."""
    x, before = np.ones(3, np.float32), go.cache_info()
    f, g = (go.compile(lambda x: go.exp(x) * 1.625) for _ in range(2))
    f(x)
    assert counts(before) == (1, 0, 0)
    g(x)
    assert counts(before) == (1, 1, 0)
    assert g.why().source == cache.MEMORY
    assert go.cache_info().disk_entries == 1
    del f, g
    forget()
    assert go.cache_info().modules == 0
    h = go.compile(lambda x: go.exp(x) * 1.625)
    np.testing.assert_allclose(h(x), np.exp(x) * 1.625, rtol=1e-6)
    assert counts(before) == (1, 1, 1)
    assert h.why().source == cache.DISK


def test_without_the_disk(folder: pathlib.Path) -> None:
    f = go.compile(lambda x: x * 3.75, disk_cache=False)
    f(np.ones(2, np.float32))
    assert not list(folder.rglob("*.vmfb"))
    assert "disk_cache=False" in str(f.why())


def test_compared_with_what_is_on_disk(folder: pathlib.Path) -> None:
    """B05: the first miss of a process is explained by what an earlier one left."""
    go.compile(lambda x: go.exp(x) * 1.5)(np.ones(3, np.float32))
    go.runtime.why._misses.clear()
    f = go.compile(lambda x: go.exp(x) * 1.5, static_alloc=True)
    f(np.ones(3, np.float32))
    said = str(f.why())
    assert f.why().compared == "disk", said
    assert "option static_alloc: was False, is True" in said
    assert "the disk cache: not there" in said
    assert "compiled in" in said


def test_the_size_is_a_limit(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B05: the entry used longest ago goes when a new one needs its place."""
    functions = [go.compile(lambda x, n=n: x * (n + 0.25)) for n in range(3)]
    x = np.ones(3, np.float32)
    functions[0](x)
    size = go.cache_info().disk_bytes
    monkeypatch.setenv("GRADOPT_CACHE_SIZE", str(int(2.5 * size)))
    first = {p.name for p in folder.rglob("*.vmfb")}
    functions[1](x)
    functions[2](x)
    info = go.cache_info()
    assert (info.disk_entries, info.disk_bytes) == (2, 2 * size)
    assert not first & {p.name for p in folder.rglob("*.vmfb")}
    monkeypatch.setenv("GRADOPT_CACHE_SIZE", "plenty")
    with pytest.raises(ArgumentError, match="GRADOPT_CACHE_SIZE expected a size such as 2GiB"):
        go.cache_info()


def test_a_cache_that_cannot_be_written(folder: pathlib.Path) -> None:
    folder.write_text("")
    with pytest.warns(UserWarning, match="cannot be written .* set GRADOPT_CACHE_DIR"):
        go.compile(lambda x: x * 8.75)(np.ones(2, np.float32))


def test_lengths_that_vary(folder: pathlib.Path) -> None:
    """C032: a sweep over lengths, five times: later sweeps compile nothing and keep no more; with a
    small limit modules are dropped, and come back from disk.
    """
    lengths = range(5, 41) if ROUNDS > 1 else range(5, 13)
    f = go.compile(lambda x: (go.tanh(x) * x).sum())

    def sweep() -> tuple[int, ...]:
        for n in lengths:
            x = np.linspace(-1, 1, n, dtype=np.float32)
            np.testing.assert_allclose(float(f(x)), (np.tanh(x) * x).sum(), rtol=1e-5)
        gc.collect()
        info = go.cache_info()
        return info.compiled, info.signatures, info.modules, info.bytes, len(go.why())

    forget()
    first = sweep()
    assert first[1] == first[2] == len(lengths)
    before = resident()
    assert [sweep() for _ in range(4)] == [first] * 4
    assert resident() - before < 1 << 20

    f.clear_cache()
    f._bound.limit = 4
    with pytest.warns(UserWarning, match=r"more than 4 signatures; .*go\.bucketed") as said:
        for _ in range(4):
            compiled, signatures, modules, *_ = sweep()
            assert (compiled, signatures, modules) == (first[0], 4, len(lengths))
    assert len(said) == 1


def test_constants_are_stored_once(folder: pathlib.Path) -> None:
    """C142: an entry is as large as the constants of its module."""
    table = np.random.default_rng(0).standard_normal((CONSTANTS << 8, 1024)).astype(np.float32)
    f = go.compile(lambda i: go.constant(table)[i])
    np.testing.assert_array_equal(f(np.int32(7)), table[7])
    assert go.cache_info().disk_bytes <= 1.1 * table.nbytes


# --- damage ---------------------------------------------------------------------------------------


def test_damaged_entries_are_rebuilt(folder: pathlib.Path) -> None:
    """C131, C133: truncated, changed, swapped, emptied, of another version: never read by IREE,
    removed with one warning, compiled again, written whole.
    """
    rng, x = random.Random(0), np.ones(3, np.float32)
    makers = [lambda x: x * 1.375, lambda x: x * 2.375]

    def call(i: int) -> Any:
        f = go.compile(makers[i])
        return np.array(f(x)), f

    call(1)
    other = next(folder.rglob("*.vmfb")).read_bytes()
    want, f = call(0)
    path = cache.disk_store().path(f.why().key)
    good = path.read_bytes()
    damage = (kind for _ in range(MUTATIONS) for kind in mutations(good, other, rng).items())
    for name, data in itertools.islice(damage, MUTATIONS):
        path.write_bytes(data)
        del f
        forget()
        before = go.cache_info()
        with pytest.warns(UserWarning, match="removed and compiled again") as said:
            got, f = call(0)
        assert len(said) == 1, name
        assert counts(before) == (1, 0, 0), name
        assert f.why().disk, name
        np.testing.assert_array_equal(got, want)
        assert cache.disk_store().look(f.why().key, cache.versions())[0] is not None, name
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del f
        forget()
        assert call(0)[1].why().source == cache.DISK


# --- threads and processes ------------------------------------------------------------------------


def test_threads_compile_one_graph_once(folder: pathlib.Path) -> None:
    """B11, C134: other compiled functions of one graph wait for the first."""
    results: list[float] = []

    def work() -> None:
        results.append(float(go.compile(lambda x: (x * 0.4375).sum())(np.ones(4, np.float32))))

    before = go.cache_info()
    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert results == [1.75] * 8
    assert counts(before) == (1, 7, 0)


FILL = """
import json, os, pathlib, random, sys
import numpy as np
import gradopt as go
from gradopt.runtime import compiler, modules

log = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
compile_graph = modules.compile_graph

def noted(module, name, *rest):
    image = compile_graph(module, name, *rest)
    os.write(log, f"{name}\\n".encode())
    return image

modules.compile_graph = noted
order = list(range(4))
random.Random(int(sys.argv[2])).shuffle(order)
for n in order:
    def f(x):
        return go.tanh(x * (n + 0.5)).sum()
    f.__name__ = f"f{n}"
    value = float(go.compile(f)(np.ones(5, np.float32)))
    assert abs(value - 5 * np.tanh(n + 0.5)) < 1e-5, (n, value)
info = go.cache_info()
only_to_compile = {"iree.compiler", "scipy", "gradopt.lowering.pipeline"}
print(json.dumps([info.compiled, info.disk_hits, len(compiler._workers),
                  not only_to_compile & sys.modules.keys()]))
"""


def fill(log: pathlib.Path, seed: int, **variables: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-W", "error", "-c", FILL, str(log), str(seed)]
    environment = os.environ | variables
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)


def finished(process: "subprocess.Popen[str]") -> list[Any]:
    out, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert not said
    return json.loads(out)


def test_a_second_process_compiles_nothing(folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """C130, B05: with another hash seed; it starts no compiler, and imports neither that nor what
    only compiling needs.
    """
    assert finished(fill(tmp_path / "log", 0, PYTHONHASHSEED="1")) == [4, 0, 1, False]
    assert finished(fill(tmp_path / "log", 0, PYTHONHASHSEED="2")) == [0, 4, 0, True]


def test_processes_that_are_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """C131, B05: processes that fill one empty cache while some are killed at random: those that
    are left compile each key at most twice more than once; no bad entry, nothing left over.
    """
    rng = random.Random(ROUNDS)
    for turn in range(ROUNDS):
        log = tmp_path / f"log{turn}"
        monkeypatch.setenv("GRADOPT_CACHE_DIR", str(tmp_path / "cache" / str(turn)))
        running = [fill(log, seed) for seed in range(8 if ROUNDS > 1 else 3)]
        killed = 0
        for _ in range(len(running) // 2):
            time.sleep(rng.uniform(0.1, 1.5))
            victim = running.pop(rng.randrange(len(running)))
            killed += victim.poll() is None
            victim.kill()
            victim.communicate()
        for process in running:
            finished(process)
        assert finished(fill(log, 0))[:2] == [0, 4]
        there = cache.disk_store()
        assert there.verify() == []
        assert len(list(there.entries())) == 4
        there.prune()
        assert not there.temporaries()
        made = collections.Counter(log.read_text().split())
        print(f"round {turn}: {killed} of {killed + len(running)} killed, compiled {dict(made)}")
        assert max(made.values()) <= 3
