# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Shared fixtures: every test session has its own compile cache."""

import os
import pathlib
import sys

import pytest

os.environ["JAX_ENABLE_X64"] = "1"  # gradients are compared in float64
# JAX compiles hundreds of one-op functions once each: the time is its compiler's.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)

# IREE's tools, of the environment whose Python this is, whether or not it is activated.
os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])

LONG = "artifact bare checkpoint deploy export run targets vulkan vulkan_ops"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files of few long tests go first: of the processes that share the files, none is left alone
    with one of them at the end.
    """
    long = {f"test_iree_{name}" for name in LONG.split()}
    items.sort(key=lambda item: item.path.stem not in long)


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("cache")
    os.environ["GRADOPT_CACHE_DIR"] = str(folder)
    return folder
