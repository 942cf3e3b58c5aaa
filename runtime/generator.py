# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""`go.random`: the functions of dialect/random.py, which take a key, and the state that keys are
drawn from where a program has none at hand (initialisers, `nn.Dropout`).

The state is two arrays, a key and how many keys have been drawn. Key number n is the block of the
counter n under the state's key, so that 2^64 keys differ. A draw reads and writes the arrays as
any op does: where a whole step is captured, they are among what it reads and writes.
"""

import contextlib
import contextvars
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..dialect import builder as builders
from ..dialect.creation import constant
from ..dialect.random import (
    bernoulli,
    bits,
    categorical,
    exponential,
    fold_in,
    gumbel,
    key,
    normal,
    permutation,
    randint,
    split,
    truncated_normal,
    uniform,
)
from ..dialect.slicing import stack
from ..dialect.tensor import Tensor
from ..dialect.threefry import ThreefryOp, as_key
from ..dialect.types import int64, uint32
from ..errors import GradientError, OpError, TraceError
from .array import Array, of_value

__all__ = [
    "bernoulli", "bits", "categorical", "exponential", "fold_in", "get_state", "gumbel", "key",
    "key_scope", "next_key", "normal", "permutation", "randint", "seed", "set_state", "split",
    "truncated_normal", "uniform",
]  # fmt: skip

_lock = threading.Lock()
_key = of_value(key(0))
_count = of_value(np.zeros((), np.int64))

_scope: contextvars.ContextVar[Any] = contextvars.ContextVar("gradopt_key_scope", default=None)
_again = contextvars.ContextVar("gradopt_again", default=False)

is_running_again = _again.get
"""Whether code of this thread runs a second time for its backward: it draws the keys of the first
time, and modules leave their states alone.
"""


class KeyScope:
    """Where keys come from within `key_scope`: the key given there and how many were drawn."""

    def __init__(self, key: Any) -> None:
        self.key = key
        self.count = 0

    def next(self) -> Any:
        self.count += 1
        return fold_in(self.key, self.count - 1)


def seed(seed: Any) -> None:
    """Begin again with the keys of a seed, an integer in [-2^63, 2^64), or an array of one. The
    process has one state, seeded with 0 at its start; OpError for what is no such integer.
    """
    if isinstance(seed, Tensor):
        raise OpError(
            "random.seed expected an integer or an array, got a tensor; use random.key for it"
        )
    words = key(seed)
    with _lock:
        _key[...] = words
        _count[...] = 0


def next_key() -> Any:
    """A key that was not drawn before from this state, which moves on. Within `key_scope` it comes
    from the key given there. TraceError in a trace outside one: a compiled function has no state
    but its arguments.
    """
    if (scope := _scope.get()) is not None:
        return scope.next()
    if builders.current() is not None:
        raise TraceError(
            "a random key was asked for in a function that is traced, which would be the same at "
            "every call; give the function a key as an argument, and call what needs keys within "
            "`with go.random.key_scope(key):`, or use go.hybridize, which keeps the state"
        )
    with _lock:
        high, low = ((_count >> 32).astype(uint32), (_count & 0xFFFFFFFF).astype(uint32))
        found = stack(ThreefryOp.emit(_key, high, low))
        _count[...] = _count + constant(1, int64)
    return found


class Noted:
    """Within `keys_noted`: keys come from where they did before, and are kept."""

    def __init__(self, outer: Any) -> None:
        self.outer = outer
        self.keys: list[Any] = []

    def next(self) -> Any:
        with _scoped(self.outer):
            self.keys.append(next_key())
        return self.keys[-1]


class Again:
    """Within `keys_again`: the keys that were noted, in their order."""

    def __init__(self, keys: list[Any]) -> None:
        self.keys = iter(keys)

    def next(self) -> Any:
        if (found := next(self.keys, None)) is None:
            raise GradientError(
                "code that runs again for its backward drew more random keys than the first time; "
                "draw them outside of it, and pass them as arguments"
            )
        return found


@contextlib.contextmanager
def _scoped(scope: Any) -> Iterator[None]:
    before = _scope.set(scope)
    try:
        yield
    finally:
        _scope.reset(before)


@contextlib.contextmanager
def keys_noted() -> Iterator[list[Any]]:
    """Within it, on this thread, the keys that are drawn are appended to the list that it gives."""
    noted = Noted(_scope.get())
    with _scoped(noted):
        yield noted.keys


@contextlib.contextmanager
def keys_again(keys: list[Any]) -> Iterator[None]:
    """Within it, on this thread, the given keys are drawn again."""
    before = _again.set(True)
    try:
        with _scoped(Again(keys)):
            yield
    finally:
        _again.reset(before)


@contextlib.contextmanager
def key_scope(key: Any) -> Iterator[None]:
    """Within it, on this thread, `next_key` gives fold_in(key, 0), fold_in(key, 1), ... and leaves
    the state alone. The key may be an argument of a traced function.
    """
    if not hasattr(key, "graph"):
        as_key(key)  # raises for what is none
    with _scoped(KeyScope(key)):
        yield


def get_state() -> dict[str, np.ndarray]:
    """The state, to be kept with a checkpoint: "key", 2 words, and "count", an integer."""
    with _lock:
        return {"key": np.array(_key), "count": np.array(_count)}


def set_state(state: dict[str, Any]) -> None:
    """Go on from what `get_state` gave; OpError for what is no state."""
    if not isinstance(state, dict) or set(state) != {"key", "count"}:
        raise OpError(f"random.set_state expected 'key' and 'count', got {state!r:.60}")
    words, count = as_key(state["key"]), np.asarray(state["count"])
    if count.shape or count.dtype != int64:
        raise OpError(f"random.set_state expected a count of type int64, got {count!r:.60}")
    with _lock:
        _key[...] = words
        _count[...] = count


def state_arrays() -> dict[str, Array]:
    """The arrays that the state is made of."""
    return {"key": _key, "count": _count}
