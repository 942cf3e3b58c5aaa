# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Questions about one op, for planners and eager executors, which look at ops one at a time: what
it gives, what memory it needs; what its backward is, see backward.py.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..dialect.base import OPS, Op
from ..dialect.graph import trace
from ..dialect.mlir import func
from ..dialect.types import TensorSpec
from ..errors import OpError
from . import pipeline, storage

FOLDED = 1024
"""Host constants of at most this many elements are folded."""


@dataclasses.dataclass(frozen=True)
class Description:
    """A value before it is computed: its shape (None where unknown), element type, the device it
    lives on and, for a small host constant, its numbers.
    """

    shape: tuple[int | None, ...]
    dtype: np.dtype
    device: str = "cpu"
    value: np.ndarray | None = dataclasses.field(default=None, compare=False)

    @property
    def spec(self) -> TensorSpec:
        return TensorSpec(self.shape, self.dtype)

    @property
    def nbytes(self) -> int | None:
        """Bytes of the elements; None where an extent is unknown."""
        return None if self.spec.size is None else self.spec.size * self.spec.dtype.itemsize


@dataclasses.dataclass(frozen=True)
class Inference:
    """What an op gives. It is not `exact` where an extent is known only when the op has run;
    `reason` says why.
    """

    outputs: tuple[Description, ...]
    exact: bool
    reason: str = ""


def describe(x: Any, device: str = "cpu") -> Description:
    """A Description of a TensorSpec, an array or a number; arrays and numbers are host constants
    with a value.
    """
    if isinstance(x, Description):
        return x
    if isinstance(x, TensorSpec):
        return Description(x.shape, x.dtype, device)
    array = np.asarray(x)
    spec = TensorSpec(array.shape, array.dtype)
    return Description(spec.shape, spec.dtype, device, array.astype(spec.dtype))


def infer(op: str, *inputs: Any, **attributes: Any) -> tuple[Description, ...]:
    """The outputs of an op: shape, element type and device, and the value where all inputs are
    small host constants.

    An input is a Description, a TensorSpec, an array or a number. An attribute may be a Description
    with a value, such as a shape that was computed. Raises OpError where the op does not take the
    inputs, where they live on several devices, and where an output's extents depend on values that
    are not known; see `infer_fallible`.
    """
    found = infer_fallible(op, *inputs, **attributes)
    if not found.exact and all(None not in describe(x).shape for x in inputs):
        raise OpError(f"'gradopt.{op}' op expected known values, got {found.reason}")
    return found.outputs


def infer_fallible(op: str, *inputs: Any, **attributes: Any) -> Inference:
    """`infer` that answers also where values are not known: with None for the extents that depend
    on them, and `exact` false.
    """
    rule = op_class(op)
    given = [describe(x) for x in inputs]
    device = _device(rule, given)
    attributes, unknown = resolved(rule, attributes)
    if unknown:  # the result's shape: as many extents as it has entries
        dtype = attributes.get("dtype", given[0].dtype if given else "float32")
        loose = Description(attributes["shape"], TensorSpec((), dtype).dtype, device)
        return Inference((loose,), False, "attribute 'shape' without a value")
    results = _infer(rule, given, attributes)
    values = _folded(rule, given, attributes)
    outputs = tuple(
        Description(s.shape, s.dtype, device, None if values is None else values[i])
        for i, s in enumerate(results)
    )
    open_inputs = [f"input {i}" for i, d in enumerate(given) if None in d.shape]
    if any(None in o.shape for o in outputs):
        return Inference(outputs, False, f"unknown extents of {', '.join(open_inputs)}")
    return Inference(outputs, True)


def op_class(op: str) -> type[Op]:
    """The class of an op of arrays by its mnemonic; OpError if there is none."""
    rule = OPS.get(op.removeprefix("gradopt."))
    if rule is None or rule.OF_FUNCTION:
        raise OpError(f"expected an op of the gradopt dialect on arrays, got '{op}'")
    return rule


def _device(rule: type[Op], given: Sequence[Description]) -> str:
    for i, description in enumerate(given):
        if description.device != given[0].device:
            raise rule.error(
                "inputs on one device",
                f"input 0 on {given[0].device} and input {i} on {description.device}",
                "copy one of them",
            )
    return given[0].device if given else "cpu"


def resolved(rule: type[Op], attributes: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Attributes with the values of those that are Descriptions, and whether the shape is one
    without a value: its entries are then unknown.
    """
    found, is_unknown = {}, False
    for name, value in attributes.items():
        if isinstance(value, Description):
            if value.value is None:
                if name != "shape" or len(value.shape) != 1 or value.shape[0] is None:
                    raise rule.error(f"the value of attribute '{name}'", value.spec)
                found[name], is_unknown = (None,) * value.shape[0], True
                continue
            value = value.value
        is_small = isinstance(value, np.ndarray) and value.size <= FOLDED and name != "value"
        found[name] = value.tolist() if is_small else value
    return found, is_unknown


def _infer(
    rule: type[Op], given: Sequence[Description], attributes: dict[str, Any]
) -> tuple[TensorSpec, ...]:
    found = rule.infer(*(d.spec for d in given), **rule.with_defaults(attributes))
    return (found,) if isinstance(found, TensorSpec) else tuple(found)


def _folded(
    rule: type[Op], given: Sequence[Description], attributes: dict[str, Any]
) -> tuple[np.ndarray, ...] | None:
    """The op's values where all inputs are small host constants."""
    values = [d.value for d in given if d.value is not None and d.value.size <= FOLDED]
    if len(values) < len(given):
        return None
    results = rule.evaluate(*values, **attributes)
    return results if sum(r.size for r in results) <= FOLDED else None


# --- memory ---------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Memory:
    """What an op needs: its outputs, workspaces it may use besides, each with its bytes (an upper
    bound: the compiler fuses what it can), and which outputs may be written over which inputs, as
    pairs (output, input).
    """

    outputs: tuple[Description, ...]
    workspaces: tuple[tuple[str, int], ...]
    aliases: tuple[tuple[int, int], ...]


def memory(op: str, *inputs: Any, **attributes: Any) -> Memory:
    """Outputs, workspaces and aliases of an op on inputs of known shapes; raises as `infer`."""
    rule = op_class(op)
    outputs = infer(op, *inputs, **attributes)
    specs = [describe(x).spec for x in inputs]
    attributes, _ = resolved(rule, attributes)
    for spec in specs:
        if not spec.is_static:
            raise rule.error("inputs of known shapes to say what memory it needs", spec)
    aliases = storage.aliases(rule, specs, [o.spec for o in outputs])
    return Memory(outputs, _workspaces(rule, specs, attributes), aliases)


def _workspaces(
    rule: type[Op], specs: Sequence[TensorSpec], attributes: dict[str, Any]
) -> tuple[tuple[str, int], ...]:
    """The tensors that the op's lowering makes and does not return."""
    graph = trace(lambda *xs: rule.emit(*xs, **attributes), *specs, name="op")
    pipeline.run(graph.module, "gradopt-lower")
    (function,) = [f for f in graph.module.body.operations if isinstance(f, func.FuncOp)]
    ops = list(function.entry_block.operations)
    returned = {storage.root(o) for o in ops[-1].operation.operands}
    found = []
    for op in ops:
        name = op.operation.name
        if not name.startswith(("linalg.", "tensor.pad", "tensor.concat", "iree_linalg_ext.")):
            continue
        for result in op.operation.results:
            if name != "linalg.fill" and result not in returned:
                found.append((name, storage.nbytes(result.type) or 0))
    return tuple(found)
