# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Functions that change their arguments while they are traced: what would be lost is refused."""

from collections.abc import Callable
from typing import Any, NamedTuple

import gradopt as go
import numpy as np
import pytest
from gradopt.dialect.graph import trace
from gradopt.errors import TraceError

from .helpers import run_reference

X = np.arange(4, dtype=np.float32)


class State(NamedTuple):
    w: Any
    slots: Any


def step(p: Any) -> Any:
    loss = (p["w"] ** 2).sum()
    p["w"] = p["w"] - 0.1 * 2 * p["w"]
    return loss


def by_operator(p: Any) -> Any:
    loss = p["w"].sum()
    p["w"] -= 0.2 * p["w"]
    return loss


def in_list(p: Any) -> Any:
    p["ws"][1] = p["ws"][1] * 2
    return p["ws"][0]


def added(p: Any) -> Any:
    p["count"] = p["w"].sum() + 1
    return p["w"]


def popped(p: Any) -> Any:
    return p.pop("w") * 2


def appended(p: Any) -> Any:
    p["ws"].append(p["w"] * 3)
    return p["w"]


def emptied(p: Any) -> Any:
    p["ws"].clear()
    return p["w"]


def swapped(p: Any) -> Any:
    p["ws"].reverse()
    return p["w"]


def nested(p: Any) -> Any:
    p["state"].slots["m"] = p["w"] + 1
    return p["w"]


LOST: dict[str, tuple[Callable[..., Any], str]] = {
    "C034 an update": (step, "'p.w' is replaced"),
    "C034 an update by -=": (by_operator, "'p.w' is replaced"),
    "an item of a list": (in_list, "'p.ws.1' is replaced"),
    "a new entry": (added, "'p.count' is set"),
    "an entry taken out": (popped, "'p.w' is removed"),
    "a longer list": (appended, "'p.ws.2' is set"),
    "an emptied list": (emptied, "'p.ws.0' is removed"),
    "another order": (swapped, "'p.ws.0' is replaced"),
    "deep inside": (nested, "'p.state.slots.m' is replaced"),
}


def parameters() -> dict[str, Any]:
    return {"w": X, "ws": [X, X + 1], "state": State(X, {"m": X})}


@pytest.mark.parametrize("name", LOST)
def test_lost_changes(name: str) -> None:
    """C034: a change of an argument that is not returned is an error that names it."""
    fn, place = LOST[name]
    with pytest.raises(TraceError, match=rf"changes its argument: {place}.*return it"):
        trace(fn, parameters())
    with pytest.raises(TraceError, match=place):  # wherever it is traced
        trace(lambda p: go.checkpoint(fn)(p), parameters())


def returned(p: Any) -> Any:
    p["w"] = p["w"] * 2
    return p["w"], p["ws"]


def all_returned(p: Any) -> Any:
    p["w"] = p["w"] * 2
    p["ws"].append(p.pop("state").w)
    return p


def part_returned(p: Any) -> Any:
    p["ws"].pop()
    p["state"].slots["n"] = p["w"] * 5
    return {"new": p["ws"], "slots": p["state"].slots}


@pytest.mark.parametrize("fn", [returned, all_returned, part_returned])
def test_returned_changes(fn: Callable[..., Any]) -> None:
    """A change whose result is returned is what the caller sees."""
    given = parameters()
    graph = trace(fn, given)
    assert len(graph.output_specs) > 0
    assert list(given) == ["w", "ws", "state"]
    assert len(given["ws"]) == 2


def test_values_of_returned_changes() -> None:
    """C034: five steps from w = 1 whose state is returned."""

    def full(p: dict[str, Any]) -> Any:
        loss = p["w"]
        p["w"] -= 0.1 * 2 * p["w"]
        return loss, p

    w, losses = np.float64(1), []
    for _ in range(6):
        loss, w = run_reference(lambda w: full({"w": w}), w)
        losses.append(float(loss))
    np.testing.assert_allclose(losses, [1, 0.8, 0.64, 0.512, 0.4096, 0.32768], rtol=1e-12)


def test_operators_on_arguments() -> None:
    """C034: `w -= ...` is a new value under an old name; one that goes nowhere is an error."""

    def lost(w: Any) -> Any:
        loss = (w * w).sum()
        w -= 0.1 * 2 * w
        return loss

    def twice(w: Any, g: Any) -> Any:
        w += g
        w *= 2
        return g

    with pytest.raises(TraceError, match=r"'lost' changes its argument 'w' by -=.*return it"):
        trace(lost, X)
    with pytest.raises(TraceError, match=r"'twice' changes its argument 'w' by \*="):
        trace(twice, X, X)

    def used(x: Any, y: Any) -> Any:
        x *= 2
        return x + y

    def captured(x: Any) -> Any:
        x += 1
        return go.grad(lambda y: (x * y).sum())(x * 1.0)

    def whole(x: Any) -> Any:
        x **= 1
        return x + 1

    assert np.array_equal(run_reference(used, X, X)[0], 3 * X)
    assert np.array_equal(run_reference(captured, X)[0], X + 1)
    assert np.array_equal(run_reference(whole, X)[0], X + 1)


def test_all_operators() -> None:
    """Each augmented assignment is the operator."""

    def applied(signs: str) -> Callable[..., list[Any]]:
        def run(x: Any, y: Any) -> list[Any]:
            found = []
            for sign in signs.split():
                scope = {"x": np.copy(x) if isinstance(x, np.ndarray) else x, "y": y}
                exec(f"x {sign}= y", scope)
                found.append(scope["x"])
            return found

        return run

    def product(x: Any) -> Any:
        x @= x
        return x

    floats, ints = applied("+ - * / // % **"), applied("& | ^ << >>")
    a, b = np.array([5.5, 2.0]), np.array([2.0, 3.0])
    for got, want in zip(run_reference(floats, a, b), floats(a, b), strict=True):
        np.testing.assert_allclose(got, want)
    i, j = np.array([6, 3], np.int32), np.array([3, 1], np.int32)
    for got, want in zip(run_reference(ints, i, j), ints(i, j), strict=True):
        np.testing.assert_array_equal(got, want)
    m = np.array([[1.0, 2.0], [3.0, 4.0]])
    np.testing.assert_array_equal(run_reference(product, m)[0], m @ m)
