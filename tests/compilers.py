# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""IREE's compiler replaced, for tests of what stands around it."""

from typing import Any

import pytest
from gradopt.runtime import build, manifest


def replaced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Modules of artifacts are compiled to nothing; the target and text of each that was given."""
    given: list[tuple[str, str]] = []

    def compile_linalg(text: str, to: Any, name: str, *_: Any) -> bytes:
        given.append((to.name, text))
        return f"{to.name} of {name}".encode()

    def memory(_: Any, name: str, storage: manifest.Storage) -> dict[str, Any]:
        return {"arena": 64 if storage.is_static else 0, "in_place": []}

    monkeypatch.setattr(build, "compile_linalg", compile_linalg)
    monkeypatch.setattr(build.cache, "find", lambda _, make, about: build.cache.Found(make(), ""))
    monkeypatch.setattr(manifest, "_memory", memory)
    monkeypatch.setattr(manifest.iree.VmModule, "copy_buffer", lambda *_: None)
    return given
