# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Where the modules of this process come from: its memory (modules.py), the disk (store.py), or the
compiler; how many of each, and where the disk's are.
"""

import dataclasses
import functools
import hashlib
import importlib.metadata
import logging
import os
import pathlib
import threading
from collections.abc import Callable, Mapping
from typing import Any

import platformdirs

from ..errors import ArgumentError
from .store import ABSENT, Store, parse_size, write_whole

_log = logging.getLogger("gradopt.cache")

__all__ = ["CacheInfo", "Found", "cache_directory", "cache_info", "find", "versions", "write_whole"]

SIZE = "2GiB"
"""Of the disk cache, where GRADOPT_CACHE_SIZE does not say otherwise."""

MEMORY, DISK, COMPILED = "memory", "disk", "compiled"
"""Where a module can come from."""

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_lock = threading.Lock()
_counts = {COMPILED: 0, MEMORY: 0, DISK: 0}

_in_memory: list[Callable[[], Mapping[str, int]]] = []
"""What is asked for the fields of CacheInfo that are about memory."""


@dataclasses.dataclass(frozen=True)
class CacheInfo:
    """Where the modules of this process came from, and what is kept.

    `compiled`, `memory_hits` and `disk_hits` count since the process started; `signatures` are the
    bound signatures of all compiled functions, `modules` and `bytes` what they and the cache keep
    in memory; `disk_entries` and `disk_bytes` are those of the whole folder.
    """

    compiled: int = 0
    memory_hits: int = 0
    disk_hits: int = 0
    signatures: int = 0
    modules: int = 0
    bytes: int = 0
    disk_entries: int = 0
    disk_bytes: int = 0


def cache_info() -> CacheInfo:
    """How many modules this process has compiled, found in memory and on disk; what is kept in
    memory; what the folder on disk holds.
    """
    sizes = [e.bytes for e in disk_store().entries()]
    kept: dict[str, int] = {}
    for ask in _in_memory:
        kept |= ask()
    return CacheInfo(
        compiled=_counts[COMPILED],
        memory_hits=_counts[MEMORY],
        disk_hits=_counts[DISK],
        disk_entries=len(sizes),
        disk_bytes=sum(sizes),
        **kept,
    )


def count(source: str) -> None:
    """Note where a module came from."""
    with _lock:
        _counts[source] += 1


def tells(ask: Callable[[], Mapping[str, int]]) -> None:
    """Let `cache_info` ask for fields about memory."""
    _in_memory.append(ask)


@dataclasses.dataclass(frozen=True)
class Found:
    """A module, where it came from, and why the disk did not have it ("" where it did)."""

    image: bytes
    source: str
    disk: str = ""


def find(
    key: str, make: Callable[[], bytes], disk: bool = True, about: Mapping[str, Any] | None = None
) -> Found:
    """The module stored under `key`, or the one that `make` compiles, which is then stored, with
    what `about` says of it.

    Of several processes that want the same entry one compiles, and the others wait for it.
    """
    if not disk:
        return _made(make, "not asked, as disk_cache=False")
    store = disk_store()
    image, _ = store.look(key, versions())
    if image is None:
        with store.lock(key):
            image, fault = store.look(key, versions())  # another process may have made it
            if image is None:
                if fault != ABSENT:
                    store.discard(key, fault)
                _log.debug("not found: %s", key)
                made = _made(make, fault)
                store.save(key, made.image, {"versions": versions()} | dict(about or {}))
                return made
    _log.debug("found on disk: %s", key)
    count(DISK)
    return Found(image, DISK)


def _made(make: Callable[[], bytes], why: str) -> Found:
    image = make()
    count(COMPILED)
    return Found(image, COMPILED, why)


def disk_store() -> Store:
    """The disk cache, where GRADOPT_CACHE_DIR and GRADOPT_CACHE_SIZE say. Raises ArgumentError for
    a size that is none.
    """
    return Store(cache_directory(), cache_size())


def cache_directory() -> pathlib.Path:
    """GRADOPT_CACHE_DIR, or the platform's cache folder for gradopt."""
    return pathlib.Path(
        os.environ.get("GRADOPT_CACHE_DIR") or platformdirs.user_cache_dir("gradopt")
    )


def cache_size() -> int:
    """Bytes that the disk cache may have: GRADOPT_CACHE_SIZE, or 2 GiB."""
    try:
        return parse_size(os.environ.get("GRADOPT_CACHE_SIZE") or SIZE)
    except ValueError as error:
        raise ArgumentError(f"GRADOPT_CACHE_SIZE {error}") from None


@functools.cache
def versions() -> dict[str, str]:
    """What an entry is only good for: the versions of gradopt, with a digest of its passes, and of
    IREE.
    """
    sources = sorted(
        p for folder in ("dialect", "lowering") for p in (_ROOT / folder).rglob("*.py")
    ) + sorted((_ROOT / "runtime").glob("compile_*.py"))
    digest = hashlib.sha256()
    for source in sources:
        name = source.relative_to(_ROOT).as_posix()
        digest.update(name.encode() + b"\0" + hashlib.sha256(source.read_bytes()).digest())
    found = {
        name: importlib.metadata.version(name)
        for name in ("iree-base-compiler", "iree-base-runtime", "torch-mlir")
    }
    return {"gradopt": digest.hexdigest()[:16], **found}
