# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Recorded calls give no gradient by auxiliary inputs."""

from typing import Any

import gradopt as go
import numpy as np
import pytest
from gradopt.errors import GradientError
from gradopt.runtime.requests import requests_of


def net(p: Any, x: Any) -> Any:
    y, state = go.batch_norm(x, p["gamma"], p["beta"], running=(p["mean"], p["var"]))
    return go.relu(y).sum(), state


def test_requests_for_states() -> None:
    """B14, B17: null by default and in a request for the whole argument; asking for one of them is
    an error.
    """
    p = {n: np.ones(3, np.float32) for n in ("beta", "gamma", "mean", "var")}
    x = np.ones((4, 3), np.float32)
    fn = go.compile(net)
    graph = fn.trace(p, x)
    assert fn.auxiliary_names(p, x) == ["p.mean", "p.var"]
    some = ("write", "write", "null", "null")
    want: list[tuple[Any, tuple[str, ...]]] = [
        (None, (*some, "write")),
        ("write", (*some, "write")),
        ({"p": "write"}, (*some, "null")),
        (["write", "null"], (*some, "null")),
    ]
    for given, requests in want:
        assert requests_of(graph, given, fn.options, ["p", "x"]) == requests
    with pytest.raises(GradientError, match=r"got 'p.mean', which is auxiliary; ask for 'null'"):
        requests_of(graph, {"p.mean": "add"}, fn.options, ["p", "x"])
