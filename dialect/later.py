# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""SciPy, which only the ops' references need: imported when one of them is first called, so that
`import gradopt` does without.
"""

import importlib
import types
from collections.abc import Callable
from typing import Any


class Later:
    """The functions of a module that is imported when the first of them is called."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def function(*arguments: Any, **keywords: Any) -> Any:
            module = importlib.import_module(self._module)
            return getattr(module, name)(*arguments, **keywords)

        if name.startswith("__"):
            raise AttributeError(name)
        function.__name__ = name
        return function


scipy = types.SimpleNamespace(special=Later("scipy.special"))
