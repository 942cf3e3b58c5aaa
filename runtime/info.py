# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What the namespace says of itself to code written for any array library: the array API standard's
inspection functions.
"""

from typing import Any

import numpy as np

from ..dialect.datatypes import STANDARD, isdtype
from ..dialect.types import float32, int32
from ..errors import ArgumentError
from .device import PLACES, place
from .present import devices


class Info:
    """Capabilities, devices and element types of gradopt."""

    def capabilities(self) -> dict[str, Any]:
        """Boolean masks and shapes that depend on data work on arrays, not in a graph; NumPy, which
        holds the elements, has at most 64 axes.
        """
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> str:
        return "cpu"

    def devices(self) -> list[str]:
        """Where arrays can be on this machine."""
        others = [place(d) for d, found in devices().items() if found and d not in PLACES]
        return [*sorted(set(PLACES.values())), *others]

    def default_dtypes(self, *, device: Any = None) -> dict[str, np.dtype]:
        """What Python numbers and positions become; there are no complex numbers."""
        check_device(device)
        return {"real floating": float32, "integral": int32, "indexing": int32}

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, np.dtype]:
        """The element types of the standard, all or those of a kind (see `isdtype`)."""
        check_device(device)
        return {n: d for n, d in STANDARD.items() if kind is None or isdtype(d, kind)}


def check_device(device: Any) -> None:
    """ArgumentError for what is no device."""
    if device is None or device in PLACES.values():  # others are looked for
        return
    known = Info().devices()
    if device not in known:
        raise ArgumentError(f"expected a device out of {', '.join(known)}, got {device!r}")


def __array_namespace_info__() -> Info:  # noqa: N807 - the standard's name
    """Capabilities, devices and element types of gradopt, by methods of what is returned."""
    return Info()
