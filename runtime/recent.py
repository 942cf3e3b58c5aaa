# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Tables that keep what was used last: a compiled function's bound signatures."""

import collections
import warnings
import weakref
from typing import Any

SIGNATURES = 128
"""Signatures that one compiled function keeps in memory, with the arenas and pools that belong to
them; those used longest ago are dropped, and bound again, from memory or disk, when they come back.
"""


class Recent(collections.OrderedDict[Any, Any]):
    """A dict of at most `limit` values, those that were set or got last; the first time that one is
    dropped, a warning says what can be done. `get` may be called from any thread, writers take
    turns.
    """

    def __init__(self, name: str, limit: int | None = None) -> None:
        super().__init__()
        self.name = name
        self.limit = SIGNATURES if limit is None else limit
        self.dropped = 0
        self._latest: Any = None
        self._choose_get()
        _tables[id(self)] = self

    def _choose_get(self) -> None:
        """What was used last matters only when the table fills: before, `get` is that of a dict,
        without a line of Python.
        """
        if 2 * len(self) > self.limit:
            self.__dict__.pop("get", None)
        else:
            self.__dict__["get"] = super().get

    def get(self, key: Any, default: Any = None) -> Any:
        found = super().get(key)
        if found is None:
            return default
        if found is not self._latest:
            try:
                self.move_to_end(key)
            except KeyError:  # dropped by another thread just now
                return found
            self._latest = found
        return found

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        self._latest = value
        while len(self) > self.limit:
            self.popitem(last=False)
            self.dropped += 1
            if self.dropped == 1:
                self._warn()
        self._choose_get()

    def clear(self) -> None:
        super().clear()
        self._latest = None
        self._choose_get()

    def _warn(self) -> None:
        warnings.warn(
            f"'{self.name}' was called with more than {self.limit} signatures; those used longest "
            "ago are dropped from memory. Shapes that vary compile once each: pad them to a few "
            "sizes with go.bucketed, or declare the extents dynamic (None in a go.TensorSpec); "
            "why() says what varies",
            stacklevel=5,
        )


_tables: "weakref.WeakValueDictionary[int, Recent]" = weakref.WeakValueDictionary()


def tables() -> list[Recent]:
    """The tables of all compiled functions."""
    return list(_tables.values())
