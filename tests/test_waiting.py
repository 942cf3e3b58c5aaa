# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How a thread waits for a device."""

import os
from typing import Any

import pytest
from gradopt.deploy import Waiting
from gradopt.errors import DeviceError
from gradopt.runtime import dispatch

pytestmark = pytest.mark.skipif(
    not hasattr(os, "SCHED_BATCH"), reason="only Linux has scheduling policies"
)


def test_waits_displace_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread waits as SCHED_BATCH, and is what it was before after it, also where a wait fails;
    one that has a policy of its own keeps it. Who waits again after success waits for nothing.
    """
    seen = []

    class Fence:
        def wait(self) -> None:
            seen.append(os.sched_getscheduler(0))
            if len(seen) > 1:
                raise RuntimeError("the device is gone")

    class Semaphore:
        def query(self) -> int:
            return 1

    def call() -> dispatch.Pending:
        pending = dispatch.Pending.__new__(dispatch.Pending)
        pending.name, pending.fence, pending._semaphore = "f", Fence(), Semaphore()
        pending._has_succeeded = False
        return pending

    first, second = call(), call()
    for _ in range(2):
        first.wait()
        assert os.sched_getscheduler(0) == os.SCHED_OTHER
    for _ in range(2):
        with pytest.raises(DeviceError, match="the device is gone"):
            second.wait()
        assert os.sched_getscheduler(0) == os.SCHED_OTHER
    assert seen == [os.SCHED_BATCH] * 3
    monkeypatch.setattr(os, "sched_getscheduler", lambda _: os.SCHED_RR)
    with monkeypatch.context() as patch:
        patch.setattr(os, "sched_setscheduler", lambda *_: pytest.fail("the policy was changed"))
        with Waiting():
            pass


def test_waits_where_policies_are_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbid(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", forbid)
    with Waiting():
        pass
