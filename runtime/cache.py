# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The disk cache of compiled modules: one file an entry, written whole or not at all, checked
before anything reads it.

An entry is a line of JSON (format, versions, sha256 of the image), a newline, and the image. IREE's
loader crashes on damaged machine code, so an entry whose checksum or versions do not match is
removed and counts as missing.
"""

import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import logging
import os
import pathlib
import tempfile
import warnings
from collections.abc import Callable, Iterator

import filelock
import platformdirs

FORMAT = "gradopt-cache-1"
_log = logging.getLogger("gradopt.cache")


_ROOT = pathlib.Path(__file__).resolve().parent.parent


@dataclasses.dataclass
class CacheInfo:
    """Where the modules of this process came from."""

    compiled: int = 0
    memory_hits: int = 0
    disk_hits: int = 0


_info = CacheInfo()


def cache_info() -> CacheInfo:
    """How many modules this process has compiled, and how many it found in memory and on disk."""
    return dataclasses.replace(_info)


def count(kind: str) -> None:
    """Add one to a number of `cache_info`."""
    setattr(_info, kind, getattr(_info, kind) + 1)


def image(key: str, make: Callable[[], bytes], disk: bool = True) -> bytes:
    """The image stored under `key`, or the one that `make` compiles, which is then stored.

    Of several processes that want the same entry one compiles, and the others wait for it.
    """
    with _entry_lock(key) if disk else contextlib.nullcontext():
        found = load(key) if disk else None
        if found is not None:
            count("disk_hits")
            _log.debug("found on disk: %s", key)
            return found
        _log.debug("not found: %s", key)
        made = make()
        count("compiled")
        if disk:
            store(key, made)
        return made


@contextlib.contextmanager
def _entry_lock(key: str) -> Iterator[None]:
    """Hold an entry against other processes; the system frees it when its holder ends. A cache that
    cannot be written has no locks.
    """
    path = _path(key).with_suffix(".lock")
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(filelock.FileLock(path))
        yield


def cache_directory() -> pathlib.Path:
    """GRADOPT_CACHE_DIR, or the platform's cache folder for gradopt."""
    return pathlib.Path(
        os.environ.get("GRADOPT_CACHE_DIR") or platformdirs.user_cache_dir("gradopt")
    )


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
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    found = {
        name: importlib.metadata.version(name)
        for name in ("iree-base-compiler", "iree-base-runtime", "torch-mlir")
    }
    return {"gradopt": digest.hexdigest()[:16], **found}


def load(key: str) -> bytes | None:
    """The image stored under `key`; None if there is none that can be used."""
    path = _path(key)
    try:
        data = path.read_bytes()
    except OSError:
        return None
    header, _, found = data.partition(b"\n")
    if fault := _fault(header, found):
        warnings.warn(f"cache entry {path} {fault}; it is removed and compiled again", stacklevel=2)
        path.unlink(missing_ok=True)
        return None
    return found


def _fault(header: bytes, found: bytes) -> str | None:
    try:
        about = json.loads(header)
    except ValueError:
        return "has no readable header"
    if about.get("format") != FORMAT or about.get("versions") != versions():
        return f"was made by other versions ({about.get('versions')})"
    if about.get("sha256") != hashlib.sha256(found).hexdigest():
        return "is damaged (wrong checksum)"
    return None


def store(key: str, made: bytes) -> None:
    """Keep an image under `key`. A cache that cannot be written is a warning, not an error."""
    about = {"format": FORMAT, "versions": versions(), "sha256": hashlib.sha256(made).hexdigest()}
    path = _path(key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(about).encode() + b"\n" + made)
    except OSError as error:
        warnings.warn(
            f"the compile cache at {path.parent} cannot be written ({error}); set "
            "GRADOPT_CACHE_DIR",
            stacklevel=2,
        )


def write_whole(path: pathlib.Path, data: bytes) -> None:
    """Write a file so that readers see the old content or all of the new one."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        pathlib.Path(temporary).unlink(missing_ok=True)
        raise


def _path(key: str) -> pathlib.Path:
    return cache_directory() / "modules" / f"{key}.vmfb"
