# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Sums of products in index notation, and NumPy's products of vectors and matrices, all built on
`dot_general`.
"""

import itertools
import string
from collections.abc import Sequence
from typing import Any

from ..errors import OpError
from . import builder as builders
from .arrange import diagonal
from .contraction import dot_general
from .elementwise import NUMERIC, promote_together
from .reduction import SumOp
from .shape import normalize_axes, squeeze, transpose
from .slicing import slice_axis, stack

ELLIPSIS = "..."


def _error(expected: str, got: Any, remedy: str = "") -> OpError:
    return OpError(f"einsum expected {expected}, got {got}{'; ' if remedy else ''}{remedy}")


def einsum(subscripts: str, *operands: Any, name: str | None = None) -> Any:
    """Sums of products in Einstein's notation, as NumPy's einsum: einsum("bij,bjk->bik", x, y).

    A letter names an axis: those of one letter have one extent (1 is not repeated), a letter twice
    in an operand is its diagonal, one that is not in the result is summed over. Without "->" the
    result has the letters that occur once, in alphabetical order. `...` stands for further axes,
    which are broadcast by NumPy's rules. Several operands are contracted from left to right, in
    their common element type.
    """
    with builders.owner("einsum", operands):
        inputs, output = _parse(subscripts, len(operands))
        tensors = promote_together(NUMERIC, operands)
        labelled, output = _with_ellipses(inputs, output, tensors)
        _check_extents(labelled, tensors)
        terms = []
        for position, (labels, x) in enumerate(zip(labelled, tensors, strict=True)):
            others = labelled[:position] + labelled[position + 1 :]
            terms.append(_single(x, labels, {*output, *itertools.chain(*others)}))
        x, labels = terms[0]
        for position, (y, more) in enumerate(terms[1:], 1):
            needed = {*output, *itertools.chain(*(term[1] for term in terms[position + 1 :]))}
            x, labels = _contract(x, labels, y, more, needed, name)
        x, labels = _single(x, labels, set(output))
        return transpose(x, [labels.index(label) for label in output])


def _parse(subscripts: str, count: int) -> tuple[list[list[str]], list[str] | None]:
    """The labels of each operand and of the result; None where no result is given."""
    text = subscripts.replace(" ", "")
    left, arrow, right = text.partition("->")
    inputs = [_labels(part, subscripts) for part in left.split(",")]
    if len(inputs) != count:
        raise _error(f"{len(inputs)} operands for '{subscripts}'", count)
    if not arrow:
        return inputs, None
    output = _labels(right, subscripts)
    if len(set(output)) != len(output):
        raise _error("each letter at most once in the result", f"'{subscripts}'")
    known = {ELLIPSIS, *itertools.chain(*inputs)}
    if unknown := sorted(set(output) - known):
        raise _error(f"letters of the operands in the result of '{subscripts}'", f"{unknown}")
    return inputs, output


def _labels(part: str, subscripts: str) -> list[str]:
    """The letters of one operand, `...` as one label."""
    before, dots, after = part.partition(ELLIPSIS)
    labels = [*before, *([ELLIPSIS] if dots else []), *after]
    if any(label not in string.ascii_letters for label in labels if label != ELLIPSIS):
        raise _error("letters, ',', '->' and at most one '...' an operand", f"'{subscripts}'")
    return labels


def _with_ellipses(
    inputs: Sequence[list[str]], output: list[str] | None, tensors: list[Any]
) -> tuple[list[list[str]], list[str]]:
    """Labels with "...0", "...1" and so on (counted from the last axis) for what `...` stands for.
    An operand whose axis has extent 1 where another's has not loses it: it is broadcast.
    """
    found: list[list[str]] = []
    extents: dict[str, set[int | None]] = {}
    for position, (labels, x) in enumerate(zip(inputs, tensors, strict=True)):
        rest = x.ndim - len(labels) + (ELLIPSIS in labels)
        if rest < 0 or (rest > 0 and ELLIPSIS not in labels):
            raise _error(f"an operand of {len(labels)} axes at '{''.join(labels)}'", x.spec)
        dots = [f"{ELLIPSIS}{i}" for i in reversed(range(rest))]
        at = labels.index(ELLIPSIS) if ELLIPSIS in labels else len(labels)
        found.append([*labels[:at], *dots, *labels[at + 1 :]])
        for label, n in zip(found[position], x.shape, strict=True):
            if label.startswith(ELLIPSIS):
                extents.setdefault(label, set()).add(n)
    for position, labels in enumerate(found):
        shape = tensors[position].shape
        lost = [
            axis
            for axis, label in enumerate(labels)
            if label.startswith(ELLIPSIS) and shape[axis] == 1 and extents[label] != {1}
        ]
        tensors[position] = squeeze(tensors[position], lost) if lost else tensors[position]
        found[position] = [label for axis, label in enumerate(labels) if axis not in lost]
    dots = sorted(extents, key=lambda label: -int(label[len(ELLIPSIS) :]))
    if output is None:
        every = list(itertools.chain(*inputs))
        return found, [
            *dots,
            *sorted(l for l in set(every) if every.count(l) == 1 and l != ELLIPSIS),
        ]
    at = output.index(ELLIPSIS) if ELLIPSIS in output else len(output)
    if dots and at == len(output):
        raise _error("'...' in the result too", "'" + "".join(output) + "'", "sum over the axes")
    return found, [*output[:at], *dots, *output[at + 1 :]]


def _check_extents(labelled: Sequence[list[str]], tensors: Sequence[Any]) -> None:
    """Raise unless all axes of a label have one extent."""
    extents: dict[str, Any] = {}
    for labels, x in zip(labelled, tensors, strict=True):
        for label, n in zip(labels, x.shape, strict=True):
            if extents.setdefault(label, n) != n:
                got = f"{extents[label]} and {n}".replace("None", "?")
                remedy = "squeeze an axis of extent 1 to broadcast it"
                raise _error(f"one extent for all axes '{label}'", got, remedy)


def _single(x: Any, labels: list[str], needed: set[str]) -> tuple[Any, list[str]]:
    """An operand with its diagonals taken, and summed over labels that nothing else needs."""
    labels = list(labels)
    while repeated := [l for l in labels if labels.count(l) > 1]:
        first = labels.index(repeated[0])
        second = labels.index(repeated[0], first + 1)
        x = diagonal(x, 0, first, second)
        labels = [l for a, l in enumerate(labels) if a not in (first, second)] + [repeated[0]]
    axes = tuple(a for a, label in enumerate(labels) if label not in needed)
    if axes:
        x = SumOp.emit(x, axes=axes)
    return x, [label for label in labels if label in needed]


def _contract(
    x: Any, labels: list[str], y: Any, more: list[str], needed: set[str], name: str | None
) -> tuple[Any, list[str]]:
    """Two operands as one: shared labels that are needed later are batch axes, the others are
    contracted.
    """
    shared = [label for label in labels if label in more]
    batch = [label for label in shared if label in needed]
    summed = [label for label in shared if label not in needed]
    product = dot_general(
        x,
        y,
        lhs_contract=[labels.index(label) for label in summed],
        rhs_contract=[more.index(label) for label in summed],
        lhs_batch=[labels.index(label) for label in batch],
        rhs_batch=[more.index(label) for label in batch],
        name=name,
    )
    free = [label for label in (*labels, *more) if label not in shared]
    return product, [*batch, *free]


def inner(a: Any, b: Any) -> Any:
    """Contraction of the last axes of `a` and `b`, as NumPy's inner; a product where one is a
    scalar.
    """
    a, b = promote_together(NUMERIC, (a, b))
    if a.ndim == 0 or b.ndim == 0:
        return a * b
    return dot_general(a, b, lhs_contract=(a.ndim - 1,), rhs_contract=(b.ndim - 1,))


def vdot(a: Any, b: Any) -> Any:
    """Sum of the products of the elements of `a` and `b`, each flattened."""
    a, b = promote_together(NUMERIC, (a, b))
    return inner(a.flatten(), b.flatten())


def kron(a: Any, b: Any) -> Any:
    """Kronecker product: blocks of `b`, one an element of `a`, times that element."""
    a, b = promote_together(NUMERIC, (a, b))
    rank = max(a.ndim, b.ndim)
    a, b = (x.reshape((1,) * (rank - x.ndim) + x.shape) if x.ndim < rank else x for x in (a, b))
    if None in (*a.shape, *b.shape):
        raise OpError(f"kron expected known extents, got {a.spec} and {b.spec}")
    left = a.reshape([e for n in a.shape for e in (n, 1)])
    right = b.reshape([e for n in b.shape for e in (1, n)])
    return (left * right).reshape([n * m for n, m in zip(a.shape, b.shape, strict=True)])


def cross(a: Any, b: Any, axis: int = -1) -> Any:
    """Cross product of vectors of 3 elements along `axis`, the other axes broadcast."""
    a, b = promote_together(NUMERIC, (a, b))
    places = [normalize_axes(SumOp, axis, x.ndim)[0] for x in (a, b)]
    if any(x.shape[p] != 3 for x, p in zip((a, b), places, strict=True)):
        raise OpError(f"cross expected 3 elements along axis {axis}, got {a.spec} and {b.spec}")
    (a0, a1, a2), (b0, b1, b2) = (
        [slice_axis(x, p, i, i + 1).squeeze(p) for i in range(3)]
        for x, p in zip((a, b), places, strict=True)
    )
    rank = max(a.ndim, b.ndim)  # axes before the vectors' are broadcast
    parts = [a1 * b2 - a2 * b1, a2 * b0 - a0 * b2, a0 * b1 - a1 * b0]
    return stack(parts, axis=axis % rank)
