# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Arrays that are trained: what nets and optimizers need to know of gradients."""

from typing import Any

import numpy as np

from ..runtime import autograd, tape
from ..runtime.array import Array, of_value, write

FROZEN = "null"
"""The gradient request of parameters that are not trained for now."""


def request_of(x: Any) -> str | None:
    """The gradient request of an array that is a variable, else None."""
    mark = autograd.mark_of(x) if isinstance(x, Array) else None
    return None if mark is None else mark.request


def is_trained(x: Any) -> bool:
    """Whether an array is a variable with a gradient."""
    return request_of(x) not in (None, FROZEN)


def ask(x: Array, grad_req: str) -> None:
    """Give a variable another gradient request, which an array that is none gets, too. A request
    that does not exist is an error before anything changes.
    """
    if request_of(x) is not None and grad_req in tape.REQUESTS:
        x.drop_grad()
    x.attach_grad(grad_req)


def zero(x: Array) -> None:
    """Set the gradient of a variable to zero; its next use needs a backward first."""
    write(x.grad, of_value(np.zeros(x.shape, x.dtype)), "zero_grad")  # type: ignore[arg-type]
    autograd.consume(x)
