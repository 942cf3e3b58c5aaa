# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Ops that make tensors from nothing: constants and index ramps."""

from typing import Any

import numpy as np

from ..errors import OpError
from .base import NO_GRADIENT, DType, Elements, Int, Ints, Op, Result
from .mlir import ir
from .types import TensorSpec, as_dtype, bool_, float32, int32, int64, is_float, is_integer


class ConstantOp(Op, name="constant"):
    """A tensor known at build time.

    Example: `%c = "gradopt.constant"() {value = dense<1.0> : tensor<4xf32>} : () -> tensor<4xf32>`
    """

    value: Elements
    y: Result

    @classmethod
    def infer(cls, value: np.ndarray) -> TensorSpec:
        return TensorSpec(value.shape, value.dtype)

    @staticmethod
    def reference(value: np.ndarray) -> np.ndarray:
        return value

    vjp = NO_GRADIENT


class IotaOp(Op, name="iota"):
    """Index ramp: y[..., i, ...] = i along `axis`.

    Example: `%i = "gradopt.iota"() {shape = array<i64: 2, 3>, axis = 1 : i64, dtype = i32} : () ->
    tensor<2x3xi32>`
    """

    shape: Ints
    axis: Int
    dtype: DType
    y: Result

    @classmethod
    def infer(cls, shape: tuple[int, ...], axis: int, dtype: np.dtype) -> TensorSpec:
        if None in shape:
            raise cls.error("a static shape", f"{shape}")
        if not 0 <= axis < len(shape):
            raise cls.error(f"an axis in [0, {len(shape)})", axis)
        if not (is_float(dtype) or is_integer(dtype)):
            raise cls.error("a numeric dtype", dtype.name)
        return TensorSpec(shape, dtype)

    @staticmethod
    def reference(shape: tuple[int, ...], axis: int, dtype: np.dtype) -> np.ndarray:
        ramp = np.arange(shape[axis], dtype=np.int64).reshape(
            [-1 if i == axis else 1 for i in range(len(shape))]
        )
        return np.broadcast_to(ramp, shape)

    vjp = NO_GRADIENT


def constant(value: Any, dtype: Any = None, name: str | None = None) -> Any:
    """`value` (array, nested list or number) as a tensor of the graph; Python floats become
    float32, ints int32.
    """
    return ConstantOp.emit(value=as_array(value, dtype), name=name)


def as_array(value: Any, dtype: Any = None) -> np.ndarray:
    """`value` as a NumPy array of a supported element type, Python numbers in 32 bits (integers
    that do not fit in 64).

    Raises OpError for what is no array, and for integers outside the range of an integer `dtype`.
    """
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise OpError(f"expected an array or number, got {type(value).__name__}: {error}") from None
    if array.dtype.kind in "OSUMm":
        hint = "; extents that are known only at run time are None" if value is None else ""
        raise OpError(f"expected an array or number, got {type(value).__name__}{hint}")
    if dtype is None and not hasattr(value, "dtype"):
        whole = int32 if _outside(array, int32) is None else int64
        dtype = {"f": float32, "i": whole, "b": bool_}.get(array.dtype.kind)
    dtype = as_dtype(array.dtype if dtype is None else dtype)
    if (lost := _outside(array, dtype)) is not None:
        limits = np.iinfo(dtype)
        raise OpError(
            f"expected integers that fit {dtype.name}, [{limits.min}, {limits.max}], got {lost}; "
            "convert the tensors they meet to a wider type first, or the array by astype"
        )
    return array.astype(dtype, copy=False)


def _outside(array: np.ndarray, dtype: np.dtype) -> Any:
    """An integer of the array that an integer type cannot hold; None if there is none."""
    if array.dtype.kind not in "iu" or not (array.size and is_integer(dtype)):
        return None
    limits = np.iinfo(dtype)
    if limits.min <= np.iinfo(array.dtype).min and np.iinfo(array.dtype).max <= limits.max:
        return None
    least, most = (array.min(), array.max()) if array.ndim else (array[()],) * 2
    return most if most > limits.max else least if least < limits.min else None


def full(
    shape: int | tuple[int, ...], fill_value: float, dtype: Any = None, *, device: Any = None
) -> Any:
    """A tensor filled with `fill_value`: a number, or an array of rank 0."""
    extents = np.atleast_1d(np.asarray(shape, object)).tolist()
    if None in extents:
        raise ConstantOp.error("known extents", shape, "use full_like, zeros_like or ones_like")
    if hasattr(fill_value, "graph"):  # a tensor or an Array, which may have a gradient
        value = fill_value if dtype is None else fill_value.astype(as_dtype(dtype))
        return placed(value.broadcast_to(tuple(extents)), device)
    value = np.broadcast_to(as_array(fill_value, dtype), extents)
    return placed(ConstantOp.emit(value=value), device)


def zeros(shape: int | tuple[int, ...], dtype: Any = float32, *, device: Any = None) -> Any:
    """A tensor filled with 0."""
    return full(shape, 0, float32 if dtype is None else dtype, device=device)


def ones(shape: int | tuple[int, ...], dtype: Any = float32, *, device: Any = None) -> Any:
    """A tensor filled with 1."""
    return full(shape, 1, float32 if dtype is None else dtype, device=device)


def empty(shape: int | tuple[int, ...], dtype: Any = float32, *, device: Any = None) -> Any:
    """A tensor whose elements may be anything; they are 0, so that programs repeat themselves."""
    return zeros(shape, dtype, device=device)


def full_like(x: Any, fill_value: float, dtype: Any = None, *, device: Any = None) -> Any:
    """A tensor of `x`'s shape (unknown extents included) and dtype, unless given, filled with
    `fill_value`.
    """
    spec = TensorSpec(x.shape, x.dtype if dtype is None else dtype)
    if spec.is_static:
        return full(spec.extents, fill_value, spec.dtype, device=device)
    return placed(constant(fill_value, spec.dtype).broadcast_to(spec.shape, like=(x,)), device)


def zeros_like(x: Any, dtype: Any = None, *, device: Any = None) -> Any:
    """Zeros of `x`'s shape and, unless given, dtype."""
    return full_like(x, 0, dtype, device=device)


def ones_like(x: Any, dtype: Any = None, *, device: Any = None) -> Any:
    """Ones of `x`'s shape and, unless given, dtype."""
    return full_like(x, 1, dtype, device=device)


def empty_like(x: Any, dtype: Any = None, *, device: Any = None) -> Any:
    """A tensor of `x`'s shape and, unless given, dtype, whose elements may be anything; see
    `empty`.
    """
    return zeros_like(x, dtype, device=device)


def iota(shape: tuple[int, ...], axis: int = -1, dtype: Any = int32) -> Any:
    """Index ramp along `axis`: iota((2, 3)) is [[0, 1, 2], [0, 1, 2]]."""
    if -len(shape) <= axis < 0:
        axis += len(shape)
    return IotaOp.emit(shape=tuple(shape), axis=axis, dtype=as_dtype(dtype))


def arange(
    start: float,
    stop: float | None = None,
    step: float = 1,
    dtype: Any = None,
    *,
    device: Any = None,
) -> Any:
    """Evenly spaced numbers in [start, stop), or [0, start), as NumPy's arange."""
    if start is None:
        raise ConstantOp.error("a known length", None, "an unknown extent has no arange")
    first, last = (0, start) if stop is None else (start, stop)
    values = np.arange(first, last, step)
    if dtype is None and not values.size:
        dtype = float32 if is_float(values.dtype) else int32
    return placed(constant(values if dtype is not None else values.tolist(), dtype), device)


def linspace(
    start: float,
    stop: float,
    num: int,
    *,
    dtype: Any = None,
    device: Any = None,
    endpoint: bool = True,
) -> Any:
    """`num` numbers from `start` to `stop`, the latter included with `endpoint`, at equal distances
    and correctly rounded to `dtype` (float32).
    """
    values = np.linspace(start, stop, num, endpoint=endpoint, dtype=np.float64)
    return placed(constant(values.astype(float32 if dtype is None else as_dtype(dtype))), device)


def eye(
    n: int, m: int | None = None, k: int = 0, dtype: Any = float32, *, device: Any = None
) -> Any:
    """Ones on the k-th diagonal, zeros elsewhere, shape (n, m or n)."""
    shape = (n, n if m is None else m)
    k = min(max(k, -shape[0]), shape[1])  # further out there is nothing
    diagonal = iota(shape, 1).equal(iota(shape, 0) + k)
    return placed(diagonal.astype(float32 if dtype is None else as_dtype(dtype)), device)


def elements(x: Any) -> np.ndarray | None:
    """The elements of an array, which shapes may depend on where nothing is compiled for them; None
    for a tensor of a graph, whose elements are not known.
    """
    return None if isinstance(x, ir.Value) else as_array(x)


def placed(x: Any, device: Any) -> Any:
    """`x` on a device; where it is made if that is None, and always in a graph, which runs where
    the function that it becomes is called.
    """
    return x if device is None else x.to_device(device)
