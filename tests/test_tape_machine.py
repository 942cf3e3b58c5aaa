# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The tape against forward mode: random sessions of recorded ops, pauses, writes, marks and
backwards, beside NumPy that carries along the derivatives by everything that ever was made.

GRADOPT_SESSIONS=5000 in the environment is a long campaign.
"""

import dataclasses
import os
from typing import Any

import gradopt as go
import numpy as np
import pytest
from gradopt.errors import GradientError
from gradopt.runtime.config import eager_mode

SESSIONS = int(os.environ.get("GRADOPT_SESSIONS", "40"))
SIZE, STEPS = 3, 25

LEAF, MADE, FILLED, CONSTANT = "leaf", "made by an op", "filled by assignments", "constant"


@dataclasses.dataclass
class Entry:
    """An array, what it should hold, and its derivatives by the elements of all entries, by
    number.
    """

    array: Any
    value: np.ndarray
    slopes: dict[int, np.ndarray]
    kind: str
    request: str = ""
    gradient: np.ndarray | None = None


class Session:
    """A random sequence of actions on a few arrays."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.entries: list[Entry] = []
        for i in range(4):
            x = self.rng.uniform(-1, 1, SIZE)
            entry = self.put(go.array(x), x, {}, LEAF if i < 2 else CONSTANT)
            if i < 2:
                self.mark(entry)

    def put(self, array: Any, value: np.ndarray, slopes: Any, kind: str) -> Entry:
        entry = Entry(array, value, slopes, kind)
        if kind in (LEAF, MADE):
            entry.slopes = slopes | {len(self.entries): np.eye(SIZE)}
        self.entries.append(entry)
        return entry

    def pick(self, *kinds: str) -> Entry:
        fit = [e for e in self.entries if not kinds or e.kind in kinds]
        return fit[self.rng.integers(len(fit))]

    # --- actions ----------------------------------------------------------------------------------

    def unary(self) -> None:
        a = self.pick()
        fn, slope = [(go.sin, np.cos), (go.tanh, lambda x: 1 - np.tanh(x) ** 2)][
            self.rng.integers(2)
        ]
        value = np.sin(a.value) if fn is go.sin else np.tanh(a.value)
        factor = slope(a.value)[:, None]
        self.result(fn(a.array), value, {k: factor * d for k, d in a.slopes.items()})

    def binary(self) -> None:
        a, b = self.pick(), self.pick()
        if self.rng.integers(2):
            parts = [(a, np.ones(SIZE)), (b, np.ones(SIZE))]
            found, value = a.array + b.array, a.value + b.value
        else:
            parts = [(a, b.value), (b, a.value)]
            found, value = a.array * b.array, a.value * b.value
        slopes: dict[int, np.ndarray] = {}
        for entry, factor in parts:
            for k, d in entry.slopes.items():
                slopes[k] = slopes.get(k, 0) + factor[:, None] * d
        self.result(found, value, slopes)

    def result(self, array: Any, value: np.ndarray, slopes: Any) -> None:
        if not go.is_recording():
            slopes = {}
        self.put(array, value, slopes, MADE if slopes else CONSTANT)

    def detach(self) -> None:
        a = self.pick()
        self.put(a.array.detach(), a.value, {}, CONSTANT)

    def assign(self) -> None:
        """A part of one array becomes a part of another."""
        to, source = self.pick(), self.pick()
        i, j = self.rng.integers(SIZE, size=2)
        is_refused = to.kind == MADE or (to.kind == LEAF and go.is_recording())
        if is_refused:
            with pytest.raises(GradientError, match=r"while recording|part of a recorded"):
                to.array[i] = source.array[j]
            return
        to.array[i] = source.array[j]
        to.value = np.where(np.arange(SIZE) == i, source.value[j], to.value)
        if to.kind == LEAF:  # a variable stays one, for all that it held
            return
        given = source.slopes if go.is_recording() else {}
        if not go.is_recording():  # what is written then is numbers, of which nothing is recorded
            to.kind, to.slopes = CONSTANT, {}
            return
        slopes = {}
        for k in to.slopes.keys() | given.keys():
            d = to.slopes.get(k, np.zeros((SIZE, SIZE))).copy()
            d[i] = given[k][j] if k in given else 0
            slopes[k] = d
        to.slopes, to.kind = slopes, FILLED if slopes else CONSTANT

    def add(self) -> None:
        """x += 1"""
        to = self.pick(LEAF, CONSTANT, FILLED)
        if to.kind == LEAF and go.is_recording():
            with pytest.raises(GradientError, match="while recording"):
                to.array += 1.0
            return
        to.array += 1.0
        to.value = to.value + 1
        if to.kind == FILLED and not go.is_recording():
            to.kind, to.slopes = CONSTANT, {}

    def mark(self, entry: Entry | None = None) -> None:
        entry = entry or self.pick(LEAF, MADE)
        if entry.request:
            with pytest.raises(GradientError, match="no variable yet"):
                entry.array.attach_grad()
            return
        entry.request = ["write", "add"][self.rng.integers(2)]
        entry.array.attach_grad(entry.request)
        entry.gradient = np.zeros(SIZE)

    def backward(self, retain: bool) -> None:
        heads = [e for e in (self.pick(LEAF, MADE, FILLED) for _ in range(2)) if e.slopes]
        cts = [self.rng.uniform(-1, 1, SIZE) for _ in heads]
        if self.rng.integers(2):
            variables = [self.pick(LEAF), self.pick(LEAF, MADE)]
            numbers = [next(i for i, e in enumerate(self.entries) if e is v) for v in variables]
            if not all(any(n in h.slopes for h in heads) for n in numbers):
                return
            arrays = [h.array for h in heads], cts, [v.array for v in variables]
            found = go.backward(*arrays, retain_graph=True)
            for got, n in zip(found, numbers, strict=True):
                self.close(got, self.total(heads, cts, n))
            return
        go.backward([h.array for h in heads], cts, retain_graph=retain)
        for n, entry in enumerate(self.entries):
            if entry.request and any(n in h.slopes for h in heads):
                total = self.total(heads, cts, n)
                entry.gradient = entry.gradient + total if entry.request == "add" else total

    @staticmethod
    def total(heads: list[Entry], cts: list[np.ndarray], n: int) -> np.ndarray:
        pairs = zip(heads, cts, strict=True)
        return sum((ct @ h.slopes[n] for h, ct in pairs if n in h.slopes), np.zeros(SIZE))

    # --- checks -----------------------------------------------------------------------------------

    @staticmethod
    def close(got: Any, want: Any) -> None:
        np.testing.assert_allclose(np.asarray(got), want, 1e-9, 1e-11)

    def check(self) -> None:
        for entry in self.entries:
            self.close(entry.array, entry.value)
            if entry.request:
                self.close(entry.array.grad, entry.gradient)

    def run(self) -> None:
        actions = [self.unary, self.binary, self.binary, self.detach, self.assign, self.add]
        for _ in range(STEPS):
            paused = self.rng.random() < 0.2
            with go.pause() if paused else go.record():
                actions[self.rng.integers(len(actions))]()
            if self.rng.random() < 0.1:
                self.mark()
            if self.rng.random() < 0.15:
                self.backward(retain=True)
        self.backward(retain=False)
        self.check()


@pytest.mark.parametrize("mode", ["reference", "lazy"])
def test_sessions(mode: str) -> None:
    """B31, B33, B34, C019, C020, C022: gradients by variables and intermediates, values, errors."""
    before, go.config.target = go.config.target, "reference"
    try:
        with eager_mode(mode):
            for seed in range(SESSIONS if mode == "reference" else SESSIONS // 6):
                Session(seed).run()
    finally:
        go.config.target = before
