# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Folders that are written whole or not at all."""

import contextlib
import ctypes
import hashlib
import os
import pathlib
import secrets
import shutil
from collections.abc import Collection, Iterator

EXCHANGE = 2  # RENAME_EXCHANGE of Linux's renameat2
AT_FDCWD = -100


@contextlib.contextmanager
def written_whole(folder: pathlib.Path, own: Collection[str]) -> Iterator[pathlib.Path]:
    """A new empty folder to write to, which takes the place of `folder` when the block ends well,
    and is gone when it does not. Of what stood in `folder`, all but the names in `own` moves to the
    new one.
    """
    folder = pathlib.Path(os.path.realpath(folder))
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = folder.with_name(f".{folder.name}.{os.getpid()}-{secrets.token_hex(4)}")
    new.mkdir()
    try:
        yield new
        for path in [*new.iterdir(), new]:
            _sync(path)
        _replace(new, folder)
        for path in new.iterdir() if new.exists() else []:
            if path.name not in own and not (folder / path.name).exists():
                os.rename(path, folder / path.name)
        _sync(folder.parent)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _replace(new: pathlib.Path, folder: pathlib.Path) -> None:
    """Put a folder in the place of another, which then has the first one's name, in one step where
    the system can.
    """
    if not folder.exists():
        os.rename(new, folder)
    elif not _exchange(new, folder):
        old = new.with_name(f"{new.name}.old")
        os.rename(folder, old)
        os.rename(new, folder)
        os.rename(old, new)


def _exchange(a: pathlib.Path, b: pathlib.Path) -> bool:
    """Exchange two folders in one step; False where the system cannot."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    return rename(AT_FDCWD, os.fsencode(a), AT_FDCWD, os.fsencode(b), EXCHANGE) == 0


def _sync(path: pathlib.Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def digest(path: pathlib.Path) -> dict[str, str | int]:
    """A file's SHA-256 and bytes."""
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    return {"sha256": found, "bytes": path.stat().st_size}
