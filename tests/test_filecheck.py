# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Every .mlir file in filecheck/ is a test: lit runs its RUN lines. Also by hand:
`lit -v tests/filecheck`.
"""

import pathlib
import subprocess
import sys

import pytest

FOLDER = pathlib.Path(__file__).parent / "filecheck"
LIT = pathlib.Path(sys.executable).parent / "lit"


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("*.mlir")))
def test_file(name: str) -> None:
    """The passes give what the file's CHECK and expected-error comments say."""
    command = [sys.executable, LIT, "-v", FOLDER / name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
