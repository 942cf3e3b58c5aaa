# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Shared fixtures: every test session has its own compile cache."""

import os
import pathlib

import pytest


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("cache")
    os.environ["GRADOPT_CACHE_DIR"] = str(folder)
    return folder
