# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt: the training compiler for IREE. `import gradopt as go`."""

import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
    from .api import *  # noqa: F403

__version__ = "0.1.0"


def __getattr__(name: str) -> _typing.Any:
    """The names of api.py, which stand here from the first time that one is asked for."""
    if name.startswith("__") and name not in _STANDARD:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    api = _importlib.import_module(".api", __name__)
    if name == "__all__":  # of `from gradopt import *`
        return [n for n in dir(api) if not n.startswith("_")]
    globals().update({n: x for n, x in vars(api).items() if not n.startswith("_")})
    return getattr(api, name)


def __dir__() -> list[str]:
    api = _importlib.import_module(".api", __name__)
    return sorted({*globals(), *dir(api), *_STANDARD})


_STANDARD = ("__all__", "__array_api_version__", "__array_namespace_info__")
"""What the array API and Python ask for under names that begin like Python's own."""
