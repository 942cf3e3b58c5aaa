# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The disk store: damaged entries, sizes, locks, processes that are killed; modules are any bytes.

GRADOPT_TEST_ROUNDS makes the campaigns larger.
"""

import contextlib
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time

import pytest
from gradopt.runtime import store
from gradopt.runtime.store import ABSENT, Store, entry, parse, parse_size

ROUNDS = int(os.environ.get("GRADOPT_TEST_ROUNDS", "1"))
VERSIONS = {"gradopt": "0123", "iree": "3.13.0"}
ABOUT = {"versions": VERSIONS, "name": "step"}
KEYS = [f"{i:02x}" * 32 for i in range(40)]


def image(key: str) -> bytes:
    return random.Random(key).randbytes(3000)


@pytest.fixture
def kept(tmp_path: pathlib.Path) -> Store:
    return Store(tmp_path, 1 << 20)


# --- one entry ------------------------------------------------------------------------------------


def test_an_entry_comes_back(kept: Store) -> None:
    assert kept.look(KEYS[0], VERSIONS) == (None, ABSENT)
    kept.save(KEYS[0], image(KEYS[0]), ABOUT)
    assert kept.look(KEYS[0], VERSIONS) == (image(KEYS[0]), "")
    (found,) = kept.entries()
    assert (found.key, found.about()["name"]) == (KEYS[0], "step")
    assert found.bytes == found.path.stat().st_size


@pytest.mark.parametrize("seconds", [1.8e9, 1.8e9 + 0.5, 1.8e9 + 0.123456789])
def test_an_entry_has_the_same_size_whenever_it_is_made(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a limit holds as many modules at any time of the day."""
    size = len(entry(KEYS[0], image(KEYS[0]), ABOUT))
    monkeypatch.setattr(store.time, "time", lambda: seconds)
    monkeypatch.setattr(store.time, "time_ns", lambda: int(seconds * 1e9))
    assert len(entry(KEYS[0], image(KEYS[0]), ABOUT)) == size


def mutations(data: bytes, other: bytes, rng: random.Random) -> dict[str, bytes]:
    """Entries that must not be used, one of each kind, at a random place."""
    at, bit = rng.randrange(len(data)), 1 << rng.randrange(8)
    hole = rng.randrange(len(data) - 64)
    line = data.find(b"\n") + 1
    about, made, _ = parse(data)
    return {
        "truncated": data[:at],
        "a bit flipped": data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :],
        "swapped with another's": other,
        "emptied": b"",
        "other version": entry(about["key"], made, {"versions": VERSIONS | {"iree": "9"}}),
        "a hole": data[:hole] + bytes(64) + data[hole + 64 :],
        "another's module": data[:line] + other[other.find(b"\n") + 1 :],
        "longer": data + b"\0",
        "other format": data.replace(store.FORMAT, b"gradopt-cache-1", 1),
        "no line": rng.randbytes(200).replace(b"\n", b" "),
        "no header": data[line:],
    }


def test_mutated_entries_are_never_used(kept: Store) -> None:
    """C131, C133: whatever happened to a file, its module is the one stored, or counts as missing;
    it is removed with one warning and can be written again.
    """
    rng = random.Random(0)
    good, other = (entry(k, image(k), ABOUT) for k in KEYS[:2])
    path = kept.path(KEYS[0])
    path.parent.mkdir(parents=True)
    for _ in range(20 * ROUNDS):
        for name, data in mutations(good, other, rng).items():
            path.write_bytes(data)
            found, fault = kept.look(KEYS[0], VERSIONS)
            assert found is None, name
            assert fault, name
            with pytest.warns(UserWarning, match="it is removed and compiled again") as said:
                kept.discard(KEYS[0], fault)
            assert len(said) == 1
            assert kept.look(KEYS[0], VERSIONS) == (None, ABSENT)
    kept.save(KEYS[0], image(KEYS[0]), ABOUT)
    assert kept.look(KEYS[0], VERSIONS) == (image(KEYS[0]), "")


def test_every_truncation_and_byte_is_checked() -> None:
    """No cut and no changed byte of an entry goes unnoticed."""
    good = entry(KEYS[0], b"module", ABOUT)
    assert not parse(good)[2]
    for at in range(len(good)):
        assert parse(good[:at])[2], at
        assert parse(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])[2], at


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    there = Store(tmp_path / "file", 1 << 20)
    with there.lock(KEYS[0]) as is_held:
        assert not is_held
    with pytest.warns(UserWarning, match="cannot be written .* set GRADOPT_CACHE_DIR"):
        there.save(KEYS[0], b"module", ABOUT)
    assert there.look(KEYS[0], VERSIONS)[0] is None
    assert not list(there.entries())
    assert there.prune() == []
    assert there.clear() == []


# --- sizes ----------------------------------------------------------------------------------------


def test_the_entries_used_longest_ago_go_first(kept: Store) -> None:
    """B05: the size is kept under the limit; looking at an entry is using it."""
    for i, key in enumerate(KEYS[:4]):
        kept.save(key, image(key), ABOUT)
        os.utime(kept.path(key), (i, i))
    kept.look(KEYS[0], VERSIONS)
    size = sum(e.bytes for e in kept.entries())
    small = Store(kept.folder, size)
    small.save(KEYS[4], image(KEYS[4]), ABOUT)
    assert {e.key for e in small.entries()} == {KEYS[0], KEYS[2], KEYS[3], KEYS[4]}
    assert [e.key for e in small.prune(size // 4)] == [KEYS[2], KEYS[3], KEYS[0]]


def test_orphans_never_stop_writes(kept: Store) -> None:
    """C131: files and folders that belong to nothing, under a limit: entries come and go on."""
    kept.save(KEYS[0], image(KEYS[0]), ABOUT)
    (kept.modules / f"{KEYS[1]}.atime").write_text("")
    (kept.modules / "notes").mkdir()
    (kept.modules / f"{KEYS[2]}.vmfb").mkdir()
    (kept.modules / f"{KEYS[3]}.vmfb").symlink_to("nowhere")
    (kept.modules / f".{KEYS[0]}.vmfb.9-9").write_bytes(b"half")
    (kept.modules / f".{KEYS[5]}.vmfb.9-9").write_bytes(b"half")
    size = next(kept.entries()).bytes
    small = Store(kept.folder, 3 * size)
    for key in KEYS[4:12]:
        with small.lock(key):
            small.save(key, image(key), ABOUT)
        assert small.look(key, VERSIONS)[0] == image(key)
        assert sum(e.bytes for e in small.entries()) <= small.size
    assert not small.temporaries()
    with small.lock(KEYS[3]):
        small.save(KEYS[3], image(KEYS[3]), ABOUT)
    assert small.look(KEYS[3], VERSIONS)[0] == image(KEYS[3])


def test_a_module_larger_than_the_cache_is_left_out(kept: Store) -> None:
    with pytest.warns(UserWarning, match=r"not kept on disk: .*1,000; raise GRADOPT_CACHE_SIZE"):
        Store(kept.folder, 1000).save(KEYS[0], image(KEYS[0]), ABOUT)
    assert not list(kept.entries())


@pytest.mark.parametrize(
    ("text", "size"),
    [("512MiB", 512 << 20), ("2GiB", 2 << 30), ("1.5 kB", 1500), ("7", 7), ("4M", 4 << 20)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "lots", "-1", "1 parsec", "1e3"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="expected a size such as 2GiB, 512MiB or 1048576"):
        parse_size(text)


# --- locks ----------------------------------------------------------------------------------------


def test_one_holder_at_a_time(kept: Store) -> None:
    with kept.lock(KEYS[0]) as first, kept.lock(KEYS[0], wait=0.05) as second:
        assert (first, second) == (True, False)
        with kept.lock(KEYS[1], wait=0) as other:
            assert other
    with kept.lock(KEYS[0], wait=0) as again:
        assert again


def test_an_error_frees_the_lock(kept: Store) -> None:
    with contextlib.suppress(KeyError), kept.lock(KEYS[0]):
        raise KeyError
    with kept.lock(KEYS[0], wait=0) as is_held:
        assert is_held


def test_threads_take_turns(kept: Store) -> None:
    inside, most = 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(5):
            with kept.lock(KEYS[0]):
                inside += 1
                most = max(most, inside)
                time.sleep(0.001)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert most == 1


# --- processes ------------------------------------------------------------------------------------


FILL = """
import importlib.util, pathlib, random, sys, time

spec = importlib.util.spec_from_file_location("store", sys.argv[1])
store = sys.modules["store"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(store)
folder, size, seed = pathlib.Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
rng, kept = random.Random(seed), store.Store(folder, size)
keys = [f"{i:02x}" * 32 for i in range(40)]
versions = {"gradopt": "0123", "iree": "3.13.0"}
image = lambda key: random.Random(key).randbytes(3000)
log = open(folder / "log", "ab", buffering=0)
for _ in range(60):
    key = rng.choice(keys)
    found, fault = kept.look(key, versions)
    if found is None:
        with kept.lock(key):
            found, fault = kept.look(key, versions)
            if found is None:
                assert fault == "not there", fault
                time.sleep(0.002)  # compiling
                log.write(f"{key}\\n".encode())
                kept.save(key, image(key), {"versions": versions})
                continue
    assert found == image(key)
"""
"""A process that wants keys again and again; a line in the log for every module it makes. It loads
the store by itself, which is fast.
"""


def started(there: Store, seeds: range) -> "list[subprocess.Popen[bytes]]":
    command = [sys.executable, "-W", "error", "-c", FILL, store.__file__, there.folder]
    return [subprocess.Popen([*command, str(there.size), str(seed)]) for seed in seeds]


def run_all(there: Store, seeds: range) -> None:
    running = started(there, seeds)
    assert [p.wait(timeout=120) for p in running] == [0] * len(running)


def test_writers_side_by_side_keep_to_the_size(tmp_path: pathlib.Path) -> None:
    """B05: removing the oldest entries is safe under other readers and writers."""
    size = 10 * len(entry(KEYS[0], image(KEYS[0]), ABOUT))
    there = Store(tmp_path, size)
    for turn in range(ROUNDS):
        run_all(there, range(3 * turn, 3 * turn + 3))
        assert there.verify() == []
        assert sum(e.bytes for e in there.entries()) <= size
        assert not there.temporaries()


def test_killed_writers_leave_nothing_behind(tmp_path: pathlib.Path) -> None:
    """C131: kill -9 at any moment: no bad entry, nothing that stays locked, nothing left over, and
    no key made more often than by those who were killed and one.
    """
    rng = random.Random(ROUNDS)
    for turn in range(ROUNDS):
        there = Store(tmp_path / str(turn), 1 << 30)
        there.folder.mkdir()
        running = started(there, range(4))
        for process in running:
            time.sleep(rng.uniform(0, 0.2))
            process.send_signal(signal.SIGKILL)
        for process in running:
            process.wait(timeout=60)
        run_all(there, range(2))
        assert there.verify() == []
        there.prune()
        assert not there.temporaries()
        made = (there.folder / "log").read_text().split()
        assert max(map(made.count, made)) <= 1 + len(running)
