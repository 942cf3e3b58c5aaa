# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The disk store of compiled modules: one file an entry, written whole or not at all, checked
before anything reads it, the ones used longest ago removed when there are too many bytes.

An entry is a line with the format and the sha256 of all that follows, a line of JSON about the
entry (its key, the versions that made it, what the key was made of), and the module. IREE's loader
crashes on damaged machine code, so that an entry with a wrong checksum, of another key or of other
versions counts as missing, and is replaced. Whoever makes an entry holds the lock of its key, which
the system frees when its holder ends in any way; a temporary file of a key that nobody has locked
was left behind by a process that was killed, and is removed.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import pathlib
import re
import secrets
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

FORMAT = b"gradopt-cache-2"
SUFFIX = ".vmfb"
KEY = re.compile(r"[0-9a-f]{64}")
ABSENT = "not there"
RUNGS, TUNED = "rungs", "tuned"
"""Kinds of notes: the rung of the ladder that a module was compiled with (compiler.py), what was
measured (tune.py).
"""

WAIT = 900.0
"""Seconds that a process waits for another one to make an entry, then it makes its own."""
POLL = 0.02
LONGEST_HEADER = 1 << 24
UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
UNITS |= {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}


@dataclasses.dataclass(frozen=True)
class Entry:
    """A file of the store: its key, path, bytes, and when it was last used (seconds since 1970)."""

    key: str
    path: pathlib.Path
    bytes: int
    used: float

    def about(self) -> dict[str, Any]:
        """What the entry says about itself, unchecked; {} where it cannot be read."""
        try:
            with open(self.path, "rb") as file:
                file.readline(len(FORMAT) + 80)
                about = json.loads(file.readline(LONGEST_HEADER))
        except (OSError, ValueError):
            return {}
        return about if isinstance(about, dict) else {}


@dataclasses.dataclass(frozen=True)
class Store:
    """The entries in a folder, of at most `size` bytes together."""

    folder: pathlib.Path
    size: int

    @property
    def modules(self) -> pathlib.Path:
        return self.folder / "modules"

    def path(self, key: str) -> pathlib.Path:
        return self.modules / f"{key}{SUFFIX}"

    # --- one entry --------------------------------------------------------------------------------

    def look(self, key: str, versions: Mapping[str, str]) -> tuple[bytes | None, str]:
        """The module stored under a key; None, and why, if there is none that can be used."""
        path = self.path(key)
        try:
            data = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None, ABSENT
        except OSError as error:
            return None, f"cannot be read ({error.strerror})"
        about, image, fault = parse(data)
        if not fault and about.get("key") != key:
            fault = f"is the entry of another key ({about.get('key')})"
        if not fault and about.get("versions") != versions:
            fault = f"was made by other versions ({about.get('versions')})"
        if fault:
            return None, fault
        with contextlib.suppress(OSError):  # others may have removed it, or own it
            os.utime(path)
        return image, ""

    def save(self, key: str, image: bytes, about: Mapping[str, Any]) -> None:
        """Keep a module; `about` are the versions and what else is to be known. A store that cannot
        be written is a warning, not an error.
        """
        data = entry(key, image, about)
        if len(data) > self.size:
            warnings.warn(
                f"a compiled module of {len(data):,} bytes is not kept on disk: the cache may have "
                f"{self.size:,}; raise GRADOPT_CACHE_SIZE",
                stacklevel=2,
            )
            return
        try:
            self.modules.mkdir(parents=True, exist_ok=True)
            write_whole(self.path(key), data)
        except OSError as error:
            warnings.warn(
                f"the compile cache at {self.modules} cannot be written ({error}); set "
                "GRADOPT_CACHE_DIR",
                stacklevel=2,
            )
            return
        if sum(e.bytes for e in self.entries()) > self.size:
            self.prune()

    def discard(self, key: str, fault: str) -> None:
        """Remove an entry that cannot be used, with a warning."""
        path = self.path(key)
        warnings.warn(f"cache entry {path} {fault}; it is removed and compiled again", stacklevel=2)
        _unlink(path)

    def remove(self, entry: Entry) -> bool:
        """Remove an entry; False where that cannot be done, or another process did."""
        return _unlink(entry.path)

    @contextlib.contextmanager
    def lock(self, key: str, wait: float = WAIT) -> Iterator[bool]:
        """Hold a key against other threads and processes; False, and nothing held, where it could
        not be had in time, or the folder takes no locks. Keys share 256 lock files, so that these
        need never be removed.
        """
        with contextlib.ExitStack() as stack:
            is_held = False
            with contextlib.suppress(OSError):
                is_held = stack.enter_context(_held(self.folder / "locks" / key[:2], wait))
            if is_held:
                self._sweep(key)
            yield is_held

    def _sweep(self, key: str) -> None:
        """Remove the temporaries that makers of a key, which is held, left behind."""
        for path in self.modules.glob(f".{key}{SUFFIX}.*"):
            _unlink(path)

    # --- notes ------------------------------------------------------------------------------------

    def note(self, kind: str, key: str) -> str:
        """What is noted under a key; "" where nothing is."""
        try:
            return (self.folder / kind / key).read_text()
        except (OSError, UnicodeDecodeError):
            return ""

    def keep_note(self, kind: str, key: str, text: str) -> None:
        """Note something small under a key. Where that cannot be written it is not kept."""
        with contextlib.suppress(OSError):
            (self.folder / kind).mkdir(parents=True, exist_ok=True)
            write_whole(self.folder / kind / key, text.encode())

    def notes(self, kind: str) -> dict[str, str]:
        """All notes of a kind by key."""
        found = {}
        with contextlib.suppress(OSError):
            for path in sorted((self.folder / kind).iterdir()):
                if KEY.fullmatch(path.name):
                    found[path.name] = self.note(kind, path.name)
        return found

    def forget(self, kind: str, keys: Iterable[str]) -> int:
        """Remove notes; how many there were."""
        return sum(_unlink(self.folder / kind / key) for key in keys)

    # --- all entries ------------------------------------------------------------------------------

    def entries(self) -> Iterator[Entry]:
        """Every entry, in no order, unchecked."""
        for name, path, status in self._files():
            key = name.removesuffix(SUFFIX)
            if name.endswith(SUFFIX) and KEY.fullmatch(key):
                yield Entry(key, path, status.st_size, status.st_mtime)

    def _files(self) -> Iterator[tuple[str, pathlib.Path, os.stat_result]]:
        with contextlib.suppress(OSError), os.scandir(self.modules) as found:
            for file in found:
                with contextlib.suppress(OSError):  # another process may have removed it
                    if file.is_file(follow_symlinks=False):
                        yield file.name, pathlib.Path(file.path), file.stat()

    def prune(self, size: int | None = None) -> list[Entry]:
        """Remove what was left behind, then the entries used longest ago until the others have at
        most `size` bytes; returns the entries removed. Does nothing while another process prunes.
        """
        limit = self.size if size is None else size
        removed = []
        with contextlib.suppress(OSError), _held(self.folder / "locks" / "prune", 0) as is_held:
            if not is_held:
                return []
            self._sweep_all()
            entries = sorted(self.entries(), key=lambda e: (e.used, e.key))
            total = sum(e.bytes for e in entries)
            for e in entries:
                if total <= limit:
                    break
                if self.remove(e):
                    removed.append(e)
                total -= e.bytes
        return removed

    def temporaries(self) -> dict[str, str]:
        """Names of files that are being written, or were left behind, with the keys they are of."""
        found = {name: name[1:].partition(".")[0] for name, _, _ in self._files() if name[0] == "."}
        return {name: key for name, key in found.items() if KEY.fullmatch(key)}

    def _sweep_all(self) -> None:
        for key in sorted(set(self.temporaries().values())):
            with self.lock(key, 0):  # if it can be had, taking it sweeps
                pass

    def verify(self, remove: bool = False) -> list[tuple[Entry, str]]:
        """The entries that are damaged or in another's place, each with what is wrong."""
        faults = []
        for e in sorted(self.entries(), key=lambda e: e.key):
            try:
                about, _, fault = parse(e.path.read_bytes())
            except OSError as error:
                about, fault = {}, f"cannot be read ({error.strerror})"
            if not fault and about.get("key") != e.key:
                fault = f"is the entry of another key ({about.get('key')})"
            if fault:
                faults.append((e, fault))
                if remove:
                    self.remove(e)
        return faults

    def clear(self) -> list[Entry]:
        """Remove all entries, what was left behind, and the notes on how modules were compiled;
        returns the entries removed.
        """
        self._sweep_all()
        self.forget(RUNGS, self.notes(RUNGS))
        return [e for e in list(self.entries()) if self.remove(e)]


def _unlink(path: pathlib.Path) -> bool:
    try:
        path.unlink()
    except OSError:
        return False
    return True


def entry(key: str, image: bytes, about: Mapping[str, Any]) -> bytes:
    """The bytes of an entry. When it was made is in nanoseconds since 1970: always as many digits,
    so that the same entry has the same size whenever it is made.
    """
    header = {"key": key, "made": time.time_ns(), "size": len(image)} | dict(about)
    body = json.dumps(header).encode() + b"\n" + image
    return b"%s %s\n%s" % (FORMAT, hashlib.sha256(body).hexdigest().encode(), body)


def parse(data: bytes) -> tuple[dict[str, Any], bytes, str]:
    """What an entry says about itself, its module, and what is wrong with it, if anything is."""
    end = data.find(b"\n", 0, len(FORMAT) + 80)
    format_, _, digest = data[: max(end, 0)].partition(b" ")
    if not data:
        return {}, b"", "is empty"
    if format_ != FORMAT:
        return {}, b"", "is of another format"
    body = memoryview(data)[end + 1 :]
    if hashlib.sha256(body).hexdigest().encode() != digest:
        return {}, b"", "is damaged (wrong checksum)"
    split = data.find(b"\n", end + 1)
    try:
        about = json.loads(data[end + 1 : split])
    except ValueError:
        about = None
    if split < 0 or not isinstance(about, dict):
        return {}, b"", "has no readable header"
    return about, data[split + 1 :], ""


def write_whole(path: pathlib.Path, data: bytes) -> None:
    """Write a file so that readers see the old content or all of the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _held(path: pathlib.Path, wait: float) -> Iterator[bool]:
    """Hold a lock file, waiting so many seconds for it; False where that was not enough. Raises
    OSError where there can be none.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        is_held = _flock(handle, time.monotonic() + wait)
        try:
            yield is_held
        finally:
            if is_held:  # said, as a forked child may have the file open, too
                fcntl.flock(handle, fcntl.LOCK_UN)
    finally:
        os.close(handle)


def _flock(handle: int, deadline: float) -> bool:
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL)


def parse_size(text: str) -> int:
    """Bytes of a size such as 2GiB, 512MiB, 500 MB or 1048576. Raises ValueError."""
    match = re.fullmatch(r"([0-9]+\.?[0-9]*)\s*([A-Za-z]*)", text.strip())
    unit = UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError(f"expected a size such as 2GiB, 512MiB or 1048576, got '{text}'")
    return int(float(match[1]) * unit)
