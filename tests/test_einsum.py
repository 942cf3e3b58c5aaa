# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""einsum and NumPy's products: values against NumPy, gradients against central differences, known
answers, and what is refused.
"""

from collections.abc import Callable
from typing import Any

import gradopt as go
import numpy as np
import pytest
from gradopt.errors import OpError

from .helpers import run_reference

F32 = np.dtype(np.float32)
rng = np.random.default_rng(11)

EQUATIONS: dict[str, list[tuple[int, ...]]] = {
    "ij,jk->ik": [(2, 3), (3, 4)],
    "ij,jk": [(2, 3), (3, 4)],
    "bij,bjk->bik": [(2, 3, 4), (2, 4, 5)],
    "bhqd,bhkd->bhqk": [(2, 2, 3, 4), (2, 2, 5, 4)],
    "ij->ji": [(2, 3)],
    "ji": [(2, 3)],
    "ij->": [(2, 3)],
    "ij->j": [(2, 3)],
    "ii": [(3, 3)],
    "ii->i": [(3, 3)],
    "iij->i": [(2, 2, 4)],
    "iij->ij": [(2, 2, 4)],
    "iji->j": [(3, 2, 3)],
    "ijij->ij": [(2, 3, 2, 3)],
    "iii->i": [(3, 3, 3)],
    "abcd->bd": [(3, 2, 3, 2)],
    "i,j->ij": [(2,), (3,)],
    "i,i->i": [(3,), (3,)],
    "i,i": [(3,), (3,)],
    "ii,i->": [(3, 3), (3,)],
    "ij,ij->": [(2, 3), (2, 3)],
    ",ij->ij": [(), (2, 3)],
    "ij,": [(2, 3), ()],
    "ij,jk,kl->il": [(2, 3), (3, 4), (4, 2)],
    "ij,jk,ik->": [(2, 3), (3, 4), (2, 4)],
    "ab,cd,bc->da": [(2, 3), (4, 5), (3, 4)],
    "bi,bj,bk->bijk": [(2, 2), (2, 3), (2, 2)],
    "...ij,...jk->...ik": [(2, 1, 3, 4), (5, 4, 2)],
    "...ij,jk": [(2, 3, 4), (4, 2)],
    "i...->...i": [(2, 3, 4)],
    "...,...->...": [(2, 1, 3), (4, 3)],
    "...i,...i": [(2, 3), (1, 3)],
    "...ii->...i": [(2, 3, 3)],
    "i...j,j...->...i": [(2, 3, 4), (4, 3)],
    "aB,Bc": [(2, 3), (3, 2)],
    " i j , j k -> i k ": [(2, 3), (3, 4)],
}


@pytest.mark.parametrize("equation", EQUATIONS)
def test_agrees_with_numpy(equation: str) -> None:
    """Values, and gradients along a random direction of each operand."""
    arrays = [rng.normal(size=shape) for shape in EQUATIONS[equation]]
    (got,) = run_reference(lambda *a: go.einsum(equation, *a), *arrays)
    want = np.einsum(equation, *arrays)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)

    def squared(*a: Any) -> Any:
        return (go.einsum(equation, *a) ** 2).sum()

    slopes = run_reference(
        lambda *a: go.grad(squared, argnums=tuple(range(len(arrays))))(*a), *arrays
    )
    for which, (array, slope) in enumerate(zip(arrays, slopes, strict=True)):
        direction, h = rng.normal(size=array.shape), 1e-6
        values = []
        for step in (h, -h):
            moved = list(arrays)
            moved[which] = array + step * direction
            values.append((np.einsum(equation, *moved) ** 2).sum())
        along = (values[0] - values[1]) / (2 * h)
        np.testing.assert_allclose((slope * direction).sum(), along, rtol=1e-6, atol=1e-7)


Point = tuple[Callable[..., Any], tuple[np.ndarray, ...], Any]
DIAGONALS = np.arange(16, dtype=F32).reshape(2, 2, 4)
APART = np.arange(36, dtype=F32).reshape(3, 2, 3, 2)

POINTS: dict[str, Point] = {
    "C085 trace of leading letters": (
        lambda x: go.einsum("iij->i", x),
        (DIAGONALS,),
        [6, 54],
    ),
    "C085 diagonal": (
        lambda x: go.einsum("iij->ij", x),
        (DIAGONALS,),
        [[0, 1, 2, 3], [12, 13, 14, 15]],
    ),
    "C086 separated axes": (
        go.grad(lambda x: (go.einsum("abcd->bd", x) ** 2).sum()),
        (APART,),
        np.broadcast_to(2 * APART.sum((0, 2))[None, :, None, :], APART.shape),
    ),
    "C083 broadcast by an ellipsis": (
        go.grad(lambda y, x: go.einsum("...,...->...", x, y).sum()),
        (np.array([2], F32), np.array([2, 3], F32)),
        [5],
    ),
    "C113 column": (
        go.grad(lambda w, x: (x @ w)[:, 0].mean()),
        (np.ones((5, 7), F32), np.ones((3, 5), F32)),
        np.pad(np.ones((5, 1)), ((0, 0), (0, 6))),
    ),
    "C113 time step": (
        go.grad(lambda w, x, v: (go.einsum("abc,cd->abd", x, w)[:, 0] @ v).sum()),
        (np.ones((4, 5), F32), np.ones((2, 3, 4), F32), np.ones((5, 6), F32)),
        np.full((4, 5), 12),
    ),
    "C097 broadcast against nothing": (
        go.grad(lambda b, a: (a + b[:, None]).sum()),
        (np.ones(4, F32), np.zeros((4, 0), F32)),
        np.zeros(4),
    ),
    "int8 stays int8": (
        lambda x: go.einsum("ij->i", x),
        (np.array([[100, 27], [1, 2]], np.int8),),
        np.array([127, 3], np.int8),
    ),
}


@pytest.mark.parametrize("name", POINTS)
def test_known_answers(name: str) -> None:
    fn, arrays, want = POINTS[name]
    (got,) = run_reference(fn, *arrays)
    assert got.shape == np.shape(want)
    np.testing.assert_allclose(got, want, rtol=1e-6)


REFUSED = {
    ("i,i", ((2,), (1,))): "one extent for all axes 'i', got 2 and 1",  # C083
    ("ij,jk->ik", ((2, 3), (4, 5))): "one extent for all axes 'j', got 3 and 4",
    ("ii->i", ((2, 3),)): "one extent for all axes 'i'",
    ("ij,jk->ik", ((2, 3),)): "2 operands",
    ("ijk", ((2, 3),)): "an operand of 3 axes",
    ("ij->ik", ((2, 3),)): "letters of the operands in the result",
    ("ij->ii", ((2, 3),)): "each letter at most once",
    ("i1", ((2, 3),)): "letters, ',', '->'",
    ("...i->i", ((2, 3),)): "'...' in the result too",
    ("i.j", ((2, 3),)): "at most one '...' an operand",
}


@pytest.mark.parametrize("what", REFUSED, ids=lambda w: w[0])
def test_refused(what: Any) -> None:
    """C083: an axis of extent 1 is not repeated without a word."""
    equation, shapes = what
    with pytest.raises(OpError, match=REFUSED[what].replace(".", r"\.")):
        go.trace(lambda *a: go.einsum(equation, *a), *map(go.TensorSpec, shapes))


def test_unknown_batch() -> None:
    graph = go.trace(
        lambda x, w: go.einsum("...c,cd->...d", x, w),
        go.TensorSpec((None, 3, 4)),
        go.TensorSpec((4, 5)),
    )
    assert graph.output_specs[0].shape == (None, 3, 5)


PRODUCTS: dict[str, tuple[Callable[..., Any], Callable[..., Any], list[tuple[int, ...]]]] = {
    "inner": (go.inner, np.inner, [(2, 3), (4, 5, 3)]),
    "inner of a scalar": (go.inner, np.inner, [(), (4, 3)]),
    "vdot": (go.vdot, np.vdot, [(2, 3), (3, 2)]),
    "kron": (go.kron, np.kron, [(2, 3), (4, 2)]),
    "kron of other ranks": (go.kron, np.kron, [(2,), (3, 1, 2)]),
    "cross": (go.cross, np.cross, [(4, 3), (4, 3)]),
    "cross, broadcast": (go.cross, np.cross, [(5, 1, 3), (4, 3)]),
    "cross by columns": (
        lambda a, b: go.cross(a, b, axis=0),
        lambda a, b: np.cross(a, b, axis=0),
        [(3, 4), (3, 4)],
    ),
    "tensordot": (
        lambda a, b: go.tensordot(a, b, ([0, -1], [1, 0])),
        lambda a, b: np.tensordot(a, b, ([0, -1], [1, 0])),
        [(2, 3, 4), (4, 2, 5)],
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_agree_with_numpy(name: str) -> None:
    fn, numpy, shapes = PRODUCTS[name]
    arrays = [rng.normal(size=shape) for shape in shapes]
    (got,) = run_reference(fn, *arrays)
    want = np.asarray(numpy(*arrays))
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


def test_cross_of_planes_is_refused() -> None:
    with pytest.raises(OpError, match="cross expected 3 elements along axis -1"):
        go.trace(go.cross, go.TensorSpec((2,)), go.TensorSpec((2,)))
