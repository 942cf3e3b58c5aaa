# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Gradients in imperative mode: recording, variables, and going backward."""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..dialect import modes, trees
from ..dialect.elementwise import is_scalar
from ..dialect.types import TensorSpec, is_float
from ..errors import GradientError
from . import sweep, tape
from .array import Array, asarray, of_value, write
from .state import state

# --- recording ------------------------------------------------------------------------------------


def is_recording() -> bool:
    """Whether ops of this thread on arrays are recorded for gradients."""
    return state.recording


@contextlib.contextmanager
def _recording(on: bool, train_mode: bool | None) -> Iterator[None]:
    mode = contextlib.nullcontext()
    if train_mode is not None:
        mode = modes.mode("train" if train_mode else "infer")
    with mode, sweep.recording(on):
        yield


def record(train_mode: bool | None = None) -> contextlib.AbstractContextManager[None]:
    """A context in which ops on arrays are recorded, so that `backward` can differentiate them. An
    op is recorded only where one of its operands is a variable (`attach_grad`), or depends on one.

    `train_mode` says whether `dropout`, `batch_norm` and their like train within; by default that
    stays as it is. The state is the thread's, and is what it was before when the context is left,
    by an exception, too. GradientError in `go.deferred()`.
    """
    if state.deferred is not None and not state.deferred.RECORDS:
        raise GradientError(
            "go.record expected no go.deferred() around it, which builds a graph of what would be "
            "recorded; compile the graph, and record its call, or use go.grad"
        )
    return _recording(True, train_mode)


def pause(train_mode: bool | None = None) -> contextlib.AbstractContextManager[None]:
    """A context, inside `record()`, in which nothing is recorded."""
    return _recording(False, train_mode)


# --- variables ------------------------------------------------------------------------------------


def attach_grad(x: Array, grad_req: str = "write") -> None:
    """Make an array a variable: `backward` gives its gradient in `x.grad`, zeros until then.

    `grad_req` says whether it is written there ("write"), added to what is there ("add"), or not
    computed ("null", without an `x.grad`). A result of recorded ops keeps its place in the graph:
    its gradient comes besides those of what it was made from. Raises GradientError for an array
    that is a variable already, for integers and booleans, and for other requests.
    """
    if grad_req not in tape.REQUESTS:
        listed = ", ".join(f"'{r}'" for r in tape.REQUESTS)
        raise GradientError(f"attach_grad expected grad_req out of {listed}, got {grad_req!r:.60}")
    if not is_float(x.dtype):
        raise GradientError(
            f"attach_grad expected a floating-point array, got one of type {x.spec}; integers and "
            "booleans have no gradient"
        )
    if mark_of(x) is not None:
        raise GradientError(
            f"attach_grad expected an array that is no variable yet, got one of type {x.spec} with "
            f"grad_req '{mark_of(x).request}'; call its drop_grad first"  # type: ignore[union-attr]
        )
    buffer = None if grad_req == "null" else of_value(np.zeros(x.shape, x.dtype))
    mark = tape.Mark(grad_req, buffer)
    if x._history is None or x._history.node.freed or not x._history.needs:
        x._history = tape.leaf(mark)
    else:
        x._history.set_mark(mark)


def drop_grad(x: Array) -> None:
    """Free the gradient of a variable, which is none any more; GradientError for what is none."""
    if mark_of(x) is None:
        raise GradientError(
            f"drop_grad expected a variable, got an array of type {x.spec} without a gradient; "
            "call it once, after attach_grad"
        )
    history = x._history
    history.set_mark(None)
    if history.is_leaf():
        history.node.needs = False
        x._history = None


def mark_of(x: Array) -> tape.Mark | None:
    """The request for the gradient of an array, and where it goes, if there is one."""
    return None if x._history is None else x._history.mark


def grad_of(x: Array) -> Array | None:
    """The array that holds the gradient of a variable; None for what is none."""
    mark = mark_of(x)
    return None if mark is None else mark.gradient


def set_grad(x: Array, value: Any) -> None:
    """Write to the array that holds a variable's gradient; GradientError where there is none."""
    gradient = grad_of(x)
    if gradient is None:
        raise GradientError(
            f"a gradient can be written to a variable, got an array of type {x.spec} without one; "
            "call its attach_grad first"
        )
    if value is not gradient:  # `x.grad += y` comes here when it is done
        write(gradient, asarray(value, gradient.dtype), "an assignment to a gradient")


def zero_grad(x: Array) -> None:
    """Set the gradient of a variable to zero, whatever graph it is part of; it is fresh no more."""
    mark = mark_of(x)
    if mark is not None and mark.gradient is not None:
        mark.gradient.rebind(of_value(np.zeros(x.shape, x.dtype)))
        mark.is_fresh = False


def is_fresh(x: Array) -> bool:
    """Whether a backward has filled the gradient of a variable since `consume` of it."""
    mark = mark_of(x)
    return mark is not None and mark.is_fresh


def consume(x: Array) -> bool:
    """Note that the gradient of a variable is being used; whether it was fresh."""
    mark = mark_of(x)
    if mark is None:
        return False
    was, mark.is_fresh = mark.is_fresh, False
    return was


# --- backward -------------------------------------------------------------------------------------


def backward(
    heads: Any,
    head_grads: Any = None,
    variables: Any = None,
    retain_graph: bool = False,
    create_graph: bool = False,
) -> Any:
    """Gradients of recorded arrays, by all variables that they depend on, or by `variables`.

    `heads` is an array or a sequence of them; `head_grads` has the gradient of each (an array of
    its type, a number for all elements, or None for ones), and is left away for ones. The gradients
    go where `attach_grad` says; those by `variables` are returned instead, and nothing is filled.
    The contributions to a gradient are summed first, 16-bit floats in float32, and then written or
    added once.

    The recorded graph is freed, unless `retain_graph` is true. With `create_graph` the backward is
    recorded, too, so that gradients can be differentiated again (and the graph is retained).

    Raises GradientError for a head outside a recorded graph, a variable without a gradient or that
    no head depends on, each with its position, for head gradients of other types, and for a graph
    that was freed.
    """
    given = _arrays("head", heads)
    seeds = _head_grads(given, head_grads)
    places = None if variables is None else _places(_arrays("variable", variables))
    retain = retain_graph or create_graph
    found = sweep.gradients(seeds, places, True, create_graph)
    gradients = None if places is None else _all_found(found)
    if not retain:
        release(given)
    return gradients


def grad(
    heads: Any,
    variables: Any,
    head_grads: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
) -> Any:
    """The gradients of heads by `variables`: a list for a sequence, one array for an array. The
    graph is retained if `create_graph` is true, where `retain_graph` is left away. See `backward`.
    """
    retain = create_graph if retain_graph is None else retain_graph
    found = backward(heads, head_grads, variables, retain, create_graph)
    return found[0] if isinstance(variables, Array) else found


def release(heads: Any) -> None:
    """Free the graph that arrays were recorded in; nothing happens where that has been done, or
    nothing was recorded.
    """
    places = [a._history for a in _arrays("head", heads) if a._history is not None]
    for node in sweep.reachable([p for p in places if not p.node.freed], whole=False):
        node.free()


def saved_bytes(heads: Any) -> int:
    """Bytes that the graph of heads keeps for its backward. An array that several ops keep counts
    once, variables and other arrays of the program included; one number in place of all elements
    counts as one.
    """
    places = [a._history for a in _arrays("head", heads) if a._history is not None]
    nodes = sweep.reachable([p for p in places if not p.node.freed], whole=False)
    return sum({_identity(x): _bytes(x) for node in nodes for x in node.kept()}.values())


def _bytes(kept: Any) -> int:
    if isinstance(kept, Array):
        return kept.nbytes
    extents = zip(kept.shape, kept.strides, strict=True)
    return math.prod(n for n, stride in extents if stride or not n) * kept.itemsize


def _identity(kept: Any) -> int:
    """What is the same for what is kept of one array."""
    if not isinstance(kept, Array):
        return id(kept)
    return next((id(s) for s in (kept._view, kept._source, kept._value) if s is not None), id(kept))


def _arrays(what: str, given: Any) -> list[Array]:
    found = [given] if isinstance(given, Array) else trees.leaves(given, none_is_leaf=True)
    for i, x in enumerate(found):
        if not isinstance(x, Array):
            raise GradientError(
                f"backward expected Arrays, got {type(x).__name__} as {what} {i}; go.array makes "
                "one"
            )
    if not found:
        raise GradientError(f"backward expected at least one {what}, got none")
    return found


def _head_grads(heads: list[Array], given: Any) -> list[tuple[tape.History, Array]]:
    """The heads' places, and their gradients."""
    grads = [None] * len(heads)
    if given is not None:
        is_one = isinstance(given, Array | np.ndarray) or is_scalar(given)
        grads = [given] if is_one else list(given)
    if len(grads) != len(heads):
        raise GradientError(
            f"backward expected a head gradient, or None, for each of {len(heads)} heads, got "
            f"{len(grads)}"
        )
    found = []
    for i, (head, ct) in enumerate(zip(heads, grads, strict=True)):
        history = tape.needed(head)
        if history is None:
            raise GradientError(
                f"backward expected heads that were recorded, got head {i} of type {head.spec}, "
                "which depends on no variable, or was not computed within go.record(); call "
                "attach_grad of a variable first, and compute it in go.record()"
            )
        found.append((history, _head_grad(i, head, ct)))
    return found


def _head_grad(i: int, head: Array, ct: Any) -> Array:
    if ct is None:
        return of_value(np.ones(head.shape, head.dtype))
    if is_scalar(ct):
        ct = np.full(head.shape, ct, head.dtype)
    ct = asarray(ct)
    if ct.spec != head.spec:
        raise GradientError(
            f"backward expected the head gradient {i} of type {head.spec}, got "
            f"{TensorSpec(ct.shape, ct.dtype)}"
        )
    return ct


def _places(variables: list[Array]) -> list[sweep.Place]:
    found = []
    for i, x in enumerate(variables):
        history = tape.needed(x)
        if history is None or history.node.freed:
            raise GradientError(
                f"backward expected variables that have a gradient, got variable {i} of type "
                f"{x.spec}, which has none; call its attach_grad before it is used in go.record()"
            )
        found.append((history.node, history.index))
    return found


def _all_found(found: list[Array | None]) -> list[Array]:
    for i, gradient in enumerate(found):
        if gradient is None:
            raise GradientError(
                f"backward expected variables that a head depends on, got variable {i}, which is "
                "unreachable from all heads; leave it away"
            )
    return found  # type: ignore[return-value]
