# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How lit runs the tests of this folder: as shell commands, with the tools of this Python's own
environment, and its own files in out/.
"""

# ruff: noqa: F821 - lit defines `config`
import os
import pathlib
import sys

import lit.formats

config.name = "gradopt"
config.test_format = lit.formats.ShTest()
config.suffixes = [".mlir"]
config.test_exec_root = str(pathlib.Path(__file__).parents[2] / "out" / "filecheck")
tools = str(pathlib.Path(sys.executable).parent)
config.environment["PATH"] = os.pathsep.join([tools, config.environment["PATH"]])
