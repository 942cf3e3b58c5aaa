# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What a thread is doing: recording, and how ops are run where no graph is being built."""

import threading
from typing import Any

MODES = ("reference", "lazy", "op")


class State(threading.local):
    """One for each thread. `recording` says whether ops are recorded for gradients; `follower` is
    told of them, too (tape.py); `deferred`, in deferred compute, is the scope (nodes.py) that
    collects the ops; `eager` is a mode out of MODES, or None for that of `go.config`; `queue` holds
    the ops that the thread has put off (lazy.py).
    """

    recording = False
    follower: Any = None
    deferred: Any = None
    eager: str | None = None
    queue: Any = None


state = State()
