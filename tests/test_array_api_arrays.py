# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Arrays as the array API standard has them: shapes that depend on data, indexing, updates in
place, element types, devices and other libraries.
"""

import operator
from typing import Any

import gradopt as go
import numpy as np
import pytest
from gradopt.errors import ArgumentError, OpError, TraceError

from .helpers import run_reference
from .test_array_api import DTYPES, I, X

# --- shapes that depend on data -------------------------------------------------------------------


def test_unique() -> None:
    """Every NaN is distinct; zeros of both signs are one. Values have gradients."""
    x = go.array([[2.0, 1.0, 2.0], [np.nan, 1.0, np.nan]])
    found = go.unique_all(x)
    np.testing.assert_array_equal(found.values, [1, 2, np.nan, np.nan])
    np.testing.assert_array_equal(found.counts, [2, 2, 1, 1])
    np.testing.assert_array_equal(x.flatten()[found.indices], found.values)
    np.testing.assert_array_equal(found.values[found.inverse_indices], x)
    assert found.inverse_indices.shape == x.shape and found.counts.dtype == go.int32
    assert go.unique_values(go.array([0.0, -0.0])).shape == (1,)
    assert go.unique_values(go.zeros((0, 2), go.int8)).dtype == go.int8
    np.testing.assert_array_equal(go.unique_counts([3, 1, 3]).counts, [1, 2])
    np.testing.assert_array_equal(go.unique_inverse([3, 1, 3]).inverse_indices, [1, 0, 1])


def test_nonzero() -> None:
    rows, columns = go.nonzero(go.array(I))
    np.testing.assert_array_equal((rows, columns), np.nonzero(I))
    assert rows.dtype == go.int32
    with pytest.raises(OpError, match="nonzero expected at least one axis, got an array of rank 0"):
        go.nonzero(go.array(3))


@pytest.mark.parametrize(
    ("fn", "fault"),
    [
        (go.unique_values, r"unique expected an array, because .* depends on data, got Tensor"),
        (go.nonzero, "nonzero expected a size, because a shape must not depend on data"),
        (lambda x: x[x > 0], r"shapes must not depend on data: use where\(\) for a mask"),
        (lambda x: go.repeat(x, x.astype("int32")), "repeats that are known"),
    ],
)
def test_data_dependent_in_a_graph(fn: Any, fault: str) -> None:
    """B36: a clear error in a trace, and constants are known there."""
    with pytest.raises((TraceError, OpError), match=fault):
        go.trace(fn, go.TensorSpec(4))
    mask = go.array([True, False, True, True])
    (got,) = run_reference(lambda x: x[mask] + go.unique_values(mask).sum(), np.arange(4.0))
    np.testing.assert_array_equal(got, [1, 3, 4])


# --- indexing -------------------------------------------------------------------------------------

KEYS = {
    "mask": (I > 0,),
    "mask of an axis": (slice(None), np.array([True, False, True])),
    "mask and integers": (np.array([True, False]), 1),
    "array": (np.array([1, 0, 1]),),
    "arrays": (np.array([[1], [0]]), np.array([2, 0])),
    "new axis": (None, 0, ..., slice(None, None, -2)),
}


@pytest.mark.parametrize("name", KEYS)
def test_index(name: str) -> None:
    """Reads and writes, with masks and index arrays that are Arrays, too."""
    key = KEYS[name]
    for k in (key, tuple(go.asarray(i) if isinstance(i, np.ndarray) else i for i in key)):
        x, want = go.array(X), X.copy()
        np.testing.assert_array_equal(x[k], X[key])
        x[k] = -8
        want[key] = -8
        np.testing.assert_array_equal(x, want)


def test_masks_of_rank_0() -> None:
    x = go.array(3.0)
    for mask in (True, go.array(True), np.array(True), (go.array(True),)):
        np.testing.assert_array_equal(x[mask], [3])
    assert go.ones((2, 3))[go.array(False)].shape == (0, 2, 3)
    x[go.array(False)] = 1
    x[go.array(x > 2)] += 4
    assert float(x) == 7


def test_outside() -> None:
    """What is outside is an IndexError, as Python's protocols and the standard expect."""
    x = go.ones((2, 3))
    for key in (2, (0, -4), (0, 0, 0), go.ones((2, 2), go.bool)):
        with pytest.raises(IndexError, match=r"'gradopt.* op expected"):
            x[key]
    for axis in (2, -3):
        with pytest.raises(IndexError, match=r"an axis in \[-2, 2\)"):
            go.sum(x, axis=axis)


def test_in_place() -> None:
    """B33: an operation in place changes that array alone, and keeps its type."""
    x = go.array([1, 2], dtype=go.int8)
    y, z = +x, go.astype(x, go.int8)
    x += 3
    x <<= go.array([1, 2], go.int8)
    np.testing.assert_array_equal(x, [8, 20])
    assert x.dtype == go.int8 and y.tolist() == z.tolist() == [1, 2]
    assert go.astype(x, go.int8, copy=False) is x
    with pytest.raises(OpError, match=r"'\+=' expected values of type tensor<2xi8>, got"):
        x += go.array([1, 2], go.int16)


# --- element types --------------------------------------------------------------------------------


def test_info_of_types() -> None:
    info = go.finfo(go.float32)
    assert (info.bits, info.dtype) == (32, go.float32)
    assert info.eps == np.finfo(np.float32).eps and info.max == -info.min
    assert go.finfo(go.ones(2, go.bfloat16)).eps == 2**-7
    assert (go.iinfo(go.uint16).min, go.iinfo(go.ones(1, go.uint64)).max) == (0, 2**64 - 1)
    with pytest.raises(OpError, match="finfo expected a floating-point type, got int32; see iinfo"):
        go.finfo(go.int32)
    with pytest.raises(OpError, match="iinfo expected an integer type, got bool; see finfo"):
        go.iinfo(go.bool)


def test_kinds() -> None:
    assert go.isdtype(go.uint8, "unsigned integer") and go.isdtype(go.int8, "integral")
    assert go.isdtype(go.float32, ("bool", go.float32)) and not go.isdtype(go.bool, "numeric")
    assert not go.isdtype(go.float64, "complex floating")
    with pytest.raises(OpError, match="isdtype expected a kind out of bool, signed integer"):
        go.isdtype(go.float32, "real number")


def test_common_types() -> None:
    assert go.result_type(go.ones(1, go.int8), go.uint8) == go.int16
    assert go.result_type(go.float32, 1.5, 2) == go.float32
    assert go.result_type(go.int8, 2.5) == go.float32
    assert go.result_type(np.float64, go.float32, True) == go.float64
    assert go.can_cast(go.int8, go.int16) and not go.can_cast(go.ones(1, go.int64), go.int32)
    assert not go.can_cast(go.uint64, go.int64)
    with pytest.raises(OpError, match="one type holds, got uint64 and int8; convert"):
        go.result_type(go.uint64, go.int8)
    with pytest.raises(OpError, match="at least one array or element type, got none"):
        go.result_type()


@pytest.mark.parametrize("dtype", DTYPES)
def test_operators_keep_the_type(dtype: str) -> None:
    """Python numbers adapt to the array, on either side."""
    x = go.ones(3, dtype)
    ops: list[Any] = [operator.and_, operator.or_, operator.xor] if "float" not in dtype else []
    if dtype != "bool":
        ops += [operator.add, operator.sub, operator.mul, operator.mod, operator.floordiv]
        ops += [operator.pow, *([operator.lshift, operator.rshift] if "int" in dtype else [])]
    one = True if dtype == "bool" else 1
    for op in ops:
        for got in (op(x, one), op(one, x), op(x, x)):
            assert got.dtype == dtype and got.tolist() == op(np.ones(3, dtype), one).tolist()


def test_whole_numbers_stay() -> None:
    """Rounding, squares and powers of integers are integers; a power is modulo 2^width."""
    x = go.array([-3, 0, 7], go.int16)
    for fn in (go.floor, go.ceil, go.trunc, go.round, go.square, go.positive):
        assert fn(x).dtype == go.int16
    base, exponent = np.array([2, -1, 1, 0, 3, -2]), np.array([-1, -3, -2, -1, 40, 31])
    got = go.pow(go.array(base, go.int32), go.array(exponent, go.int32))
    power = 3**40 % 2**32
    assert got.tolist() == [0, -1, 1, 0, power - 2**32 * (power >= 2**31), -(2**31)]
    assert (go.array([2], go.int32) ** -1).tolist() == [0.5]


# --- devices, other libraries ---------------------------------------------------------------------


def test_inspection() -> None:
    info = go.__array_namespace_info__()
    assert info.capabilities()["boolean indexing"] and info.capabilities()["data-dependent shapes"]
    assert info.default_device() in info.devices()
    assert info.default_dtypes() == {
        "real floating": go.float32, "integral": go.int32, "indexing": go.int32,
    }  # fmt: skip
    assert set(info.dtypes()) == set(DTYPES)
    assert set(info.dtypes(kind=("bool", "real floating"))) == {"bool", "float32", "float64"}
    assert info.dtypes(kind="complex floating") == {}
    with pytest.raises(ArgumentError, match=r"expected a device out of cpu.*, got 'moon'"):
        info.dtypes(device="moon")


def test_devices() -> None:
    x = go.zeros(3, device="cpu")
    assert x.to_device("cpu") is x and x.device == go.__array_namespace_info__().default_device()
    for call in (lambda: go.ones(2, device="moon"), lambda: x.to_device("moon")):
        with pytest.raises(ArgumentError, match=r"expected a device out of cpu.*, got 'moon'"):
            call()
    with pytest.raises(ArgumentError, match="to_device expected no stream, got 3"):
        x.to_device("cpu", stream=3)
    graph = go.trace(lambda t: go.zeros_like(t, device=t.device).to_device(None) + t, x.spec)
    assert graph.output_specs == [x.spec]
    with pytest.raises(TraceError, match="cannot be moved to 'cpu': it is where the function"):
        go.trace(lambda t: t.to_device("cpu"), x.spec)


def test_asarray() -> None:
    x = go.array([1.0, 2.0])
    assert go.asarray(x) is x and go.asarray(x, copy=False) is x
    y = go.asarray(x, copy=True)
    y += 1
    assert x.tolist() == [1, 2]
    assert go.asarray([2**64 - 1], dtype=go.uint64).tolist() == [2**64 - 1]
    assert go.asarray([True, 2]).dtype == go.int32 and go.asarray(1.5).dtype == go.float32
    for args in ((x, go.int8), (np.ones(2), None), ([1], None)):
        with pytest.raises(ValueError, match="asarray expected copy=None or True"):
            go.asarray(*args, copy=False)


def test_dlpack() -> None:
    """C022: both ways, shared where it can be; a copy on demand."""
    x = go.array([1.0, 2.0])
    np.testing.assert_array_equal(np.from_dlpack(x), [1, 2])
    assert x.__dlpack_device__()[0] == 1
    memory = np.zeros(64, np.float32)
    at = -memory.ctypes.data % 64 // 4
    part = memory[at : at + 8]
    shared, copied = go.from_dlpack(part, copy=False), go.from_dlpack(part, copy=True)
    part[:] = 3
    assert shared.tolist() == [3] * 8 and copied.tolist() == [0] * 8
    with pytest.raises(ArgumentError, match="contiguous and aligned to 64 bytes for copy=False"):
        go.from_dlpack(part[1:], copy=False)
    with pytest.raises(ArgumentError, match=r"expected a device out of cpu.*, got 'moon'"):
        go.from_dlpack(part, device="moon")
