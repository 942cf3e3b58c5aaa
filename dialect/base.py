# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The gradopt dialect and the base class of its ops.

An op is one class: a docstring (one sentence, the formula, an IR example), its fields, and three
hooks: `infer` (result types from operand types), `reference` (NumPy), `vjp` (gradient, in gradopt
ops) or `NO_GRADIENT`. A composite op says by a fourth, `decompose`, what simpler ops it is made of;
it may then do without a gradient rule and a lowering of its own.
"""

import contextvars
import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ..errors import OpError
from . import attributes as kinds
from . import builder as builders
from .attributes import AttributeKind
from .mlir import ext, ir, irdl
from .types import TensorSpec, float32, is_float, is_narrow

if TYPE_CHECKING:  # what an instance's field holds
    from .tensor import Tensor

    Operand: TypeAlias = Tensor
    Operands: TypeAlias = Sequence[Tensor]
    Result: TypeAlias = Tensor
    Results: TypeAlias = Sequence[Tensor]
    FunctionValue: TypeAlias = ir.Value
    Ints: TypeAlias = tuple[int, ...]
    Extents: TypeAlias = tuple[int | None, ...]
    Int: TypeAlias = int
    Float: TypeAlias = float
    Bool: TypeAlias = bool
    Str: TypeAlias = str
    Strs: TypeAlias = tuple[str, ...]
    DType: TypeAlias = np.dtype
    Elements: TypeAlias = np.ndarray
    Symbol: TypeAlias = str
else:  # what declares the field
    Operand, Operands = ext.Operand[ir.RankedTensorType], Sequence[ext.Operand[ir.RankedTensorType]]
    Result, Results = ext.Result[ir.RankedTensorType], Sequence[ext.Result[ir.RankedTensorType]]
    FunctionValue = ext.Result[Any]
    Ints, Int, Float, Bool = kinds.Ints, kinds.Int, kinds.Float, kinds.Bool
    Str, Strs = kinds.Str, kinds.Strs
    Extents, DType, Elements, Symbol = kinds.Extents, kinds.DType, kinds.Elements, kinds.Symbol

REQUIRED: Any = object()
"""Default of an attribute that has none."""

DIALECTS = ["arith", "cf", "func", "irdl", "linalg", "math", "tensor"]
"""MLIR's own dialects whose ops are built here."""

OPS: dict[str, type["Op"]] = {}
"""Every op of the dialect by mnemonic."""


_QUIET = contextvars.Context()
"""Where NumPy does not warn. NumPy keeps its error state in the context, and to run something in a
copy of this one takes a twentieth of entering np.errstate.
"""
_QUIET.run(np.seterr, all="ignore")


def _no_gradient(self: "Op", *cotangents: Any) -> Any:
    raise TypeError(f"{type(self).OPERATION_NAME} has no gradient by definition")


NO_GRADIENT: Any = _no_gradient
"""In the place of `vjp`: the gradient is zero, or does not exist, by mathematics. The
differentiation pass never calls it.
"""


class Gradopt(ext.Dialect, name="gradopt"):
    """Tensor programs that can be differentiated."""

    _definition = (0, "")  # number of ops, IRDL module of the last context that emitted one

    @classmethod
    def load(cls) -> None:
        """Define the dialect in the current context. The bindings emit the definition op by op, in
        Python: later contexts read it back from text, several times faster.
        """
        count, text = cls._definition
        if count != len(cls.operations):
            super().load()
            cls._definition = (len(cls.operations), str(cls._mlir_module))
            return
        irdl.load_dialects(ir.Module.parse(text))
        for op in cls.operations:
            op._attach_traits()


# The bindings look for a module of this name at every access to an op until they find it.
sys.modules.setdefault(f"{ext.__package__}.{Gradopt.DIALECT_NAMESPACE}", sys.modules[__name__])


class Op(Gradopt.Operation, traits=[ext.Pure]):
    """Base of all ops. A field's annotation says what it is: Operand, Operands, Result, Results or
    an attribute kind.
    """

    # Not annotated: an annotation in an op class declares a field.
    MNEMONIC = ""
    ATTRIBUTES = {}  # field -> (AttributeKind, default)
    OPERANDS = {}  # field -> whether it is variadic; RESULTS likewise
    RESULTS = {}
    HAS_FLOATS = False  # whether attributes are floats
    OF_FUNCTION = False  # True for ops that name a function, and are no op on arrays alone
    UPDATES = False  # True where the result may be written over the first operand
    STATES = ()  # operand fields that are states, such as running statistics
    WIDEN = True  # False for ops on bits, whose reference must see 16-bit floats as they are

    if TYPE_CHECKING:
        OPERATION_NAME: str
        reference: Callable[..., Any]
        vjp: Callable[..., Any]
        decompose: Callable[..., Any]

    def __init_subclass__(
        cls, *, name: str | None = None, pure: bool = True, **options: Any
    ) -> None:
        declared = inspect.get_annotations(cls)
        cls.ATTRIBUTES, cls.OPERANDS, cls.RESULTS = (
            dict(cls.ATTRIBUTES),
            dict(cls.OPERANDS),
            dict(cls.RESULTS),
        )
        for field, kind in declared.items():
            if isinstance(kind, AttributeKind):
                cls.ATTRIBUTES[field] = (kind, cls.__dict__.get(field, REQUIRED))
                if field in cls.__dict__:
                    # IRDL has no optional attributes; ours are checked by `verify_invariants`.
                    delattr(cls, field)
                    del cls.__annotations__[field]
                else:
                    cls.__annotations__[field] = Any
            elif kind in (Operand, Operands):
                cls.OPERANDS[field] = kind is Operands
            elif kind in (Result, Results, FunctionValue):
                cls.RESULTS[field] = kind is Results
        cls.HAS_FLOATS = any(kind is kinds.Float for kind, _ in cls.ATTRIBUTES.values())
        if name:
            cls.MNEMONIC = name
            OPS[name] = cls
        super().__init_subclass__(name=name, **options)
        if not pure:  # MLIR's passes then neither merge nor remove it
            cls._traits = [t for t in cls._traits if t is not ext.Pure]
        if name:
            cls._add_accessors()

    @classmethod
    def _add_accessors(cls) -> None:
        """Fields read as Tensors and Python values instead of MLIR's."""
        for group, fields in (("operands", cls.OPERANDS), ("results", cls.RESULTS)):
            for index, (field, variadic) in enumerate(fields.items()):
                read = _reader(group, index, variadic, list(fields.values()))
                setattr(cls, field, property(read))
        for field in cls.ATTRIBUTES:
            setattr(cls, field, property(lambda self, field=field: self.read_attribute(field)))

    # --- the hooks --------------------------------------------------------------------------------

    @classmethod
    def infer(cls, *operands: TensorSpec, **attributes: Any) -> TensorSpec | tuple[TensorSpec, ...]:
        """The result types; raises what `cls.error` makes when operands and attributes do
        not fit.
        """
        raise NotImplementedError(cls)

    @classmethod
    def error(
        cls, expected: str, got: Any, remedy: str = "", kind: type[OpError] = OpError
    ) -> OpError:
        """`'gradopt.name' op expected ..., got ...; remedy`"""
        return kind(
            f"'{cls.OPERATION_NAME}' op expected {expected}, got "
            f"{got}{'; ' if remedy else ''}{remedy}"
        )

    @classmethod
    def has_gradient(cls) -> bool:
        """True if the op has a gradient, by its own rule or through what it is made of; False if it
        states that it has none; see `NO_GRADIENT`.
        """
        return is_composite(cls) if not hasattr(cls, "vjp") else cls.vjp is not NO_GRADIENT

    # --- building ---------------------------------------------------------------------------------

    @classmethod
    def prepare(cls, *operands: Any) -> Sequence[Any]:
        """Operands as they were given to the public function, in the form that the op takes, for
        families that convert or broadcast them.
        """
        return operands

    @classmethod
    def build(cls, *operands: Any, name: str | None = None, **attributes: Any) -> Any:
        """What the public function of the op does; families that convert or broadcast their
        operands extend it.
        """
        return cls.emit(*operands, name=name, **attributes)

    @classmethod
    def emit(cls, *operands: Any, name: str | None = None, **attributes: Any) -> Any:
        """Append the op where the current builder stands, or run it where there is none; return
        its result, or a tuple of them.
        """
        return builders.owner(cls.MNEMONIC, operands).add(cls, operands, attributes, name)

    @classmethod
    def append(
        cls,
        builder: builders.Builder,
        operands: Sequence[Any],
        attributes: dict[str, Any],
        name: str | None,
    ) -> Any:
        """Append the op where a builder stands; its result, or a tuple of them."""
        attributes = cls.with_defaults(attributes)
        with builder.context:
            values = [builder.adopt(o) for o in operands]
            results = cls.infer(*(TensorSpec.from_mlir(v.type) for v in values), **attributes)
            single = isinstance(results, TensorSpec)
            types = [spec.to_mlir() for spec in ([results] if single else results)]
            created = cls.create(values, types, attributes, builder, name)
            tensors = tuple(wrap(r, builder) for r in created.results)
        return tensors[0] if single else tensors

    @classmethod
    def with_defaults(cls, attributes: dict[str, Any]) -> dict[str, Any]:
        """`attributes` in their normal form, with the defaults of those that are missing."""
        found = {}
        for field, (kind, default) in cls.ATTRIBUTES.items():
            value = attributes.get(field, default)
            try:
                found[field] = kind.normal(value)
            except (TypeError, ValueError) as error:
                if isinstance(error, OpError):
                    raise
                raise cls.error(f"attribute '{field}' like {kind.example}", repr(value)) from None
        return found

    @classmethod
    def create(
        cls,
        operands: Sequence[ir.Value],
        results: Sequence[ir.Type],
        attributes: dict[str, Any],
        builder: builders.Builder,
        name: str | None = None,
    ) -> ir.Operation:
        """The MLIR operation, without inference; attributes equal to their default are not
        written.
        """
        written = {
            field: kind.to_mlir(attributes[field])
            for field, (kind, default) in cls.ATTRIBUTES.items()
            if default is REQUIRED or attributes[field] != default
        }
        return ir.Operation.create(
            cls.OPERATION_NAME,
            results=results,
            operands=operands,
            attributes=written,
            loc=builder.location(name or cls.MNEMONIC),
            ip=builder.insertion_point,
        )

    # --- reading ----------------------------------------------------------------------------------

    def read_attribute(self, field: str) -> Any:
        kind, default = self.ATTRIBUTES[field]
        found = self.operation.attributes
        if field in found:
            try:
                return kind.parse(found[field])
            except (ValueError, TypeError) as error:
                raise OpError(f"'{self.OPERATION_NAME}' op attribute '{field}': {error}") from None
        if default is REQUIRED:
            raise self.error(f"attribute '{field}'", "none", f"write {{{field} = {kind.example}}}")
        return default

    def read_attributes(self) -> dict[str, Any]:
        """All attributes as Python values, defaults filled in."""
        return {field: self.read_attribute(field) for field in self.ATTRIBUTES}

    def operand_specs(self) -> list[TensorSpec]:
        return [TensorSpec.from_mlir(o.type) for o in self.operation.operands]

    def result_specs(self) -> list[TensorSpec]:
        return [TensorSpec.from_mlir(r.type) for r in self.operation.results]

    # --- verification -----------------------------------------------------------------------------

    def verify_invariants(self) -> bool:
        """Called by MLIR's verifier: the op must be what `infer` says."""
        try:
            self.check_fields()
            expected = self.expected_results()
            expected = (expected,) if isinstance(expected, TensorSpec) else tuple(expected)
            if expected != (found := tuple(self.result_specs())):
                raise self.error(f"result type {_listed(expected)}", _listed(found))
        except OpError as error:
            self.location.emit_error(self.named(error))
            return False
        return True

    def named(self, error: OpError) -> str:
        """What the verifier says: the error, with the op in front."""
        text = str(error)
        return text if text.startswith("'gradopt.") else f"'{self.OPERATION_NAME}' op {text}"

    def expected_results(self) -> TensorSpec | tuple[TensorSpec, ...]:
        return self.infer(*self.operand_specs(), **self.read_attributes())

    def check_fields(self) -> None:
        """Raise for attributes that the op does not have, and for a wrong number of operands."""
        for attribute in self.operation.attributes:
            if attribute not in self.ATTRIBUTES and "." not in attribute:
                known = ", ".join(self.ATTRIBUTES) or "none"
                raise self.error(f"attributes out of: {known}", f"'{attribute}'")
        count, fields = len(self.operation.operands), self.OPERANDS
        least = sum(not variadic for variadic in fields.values())
        if count < least or (count > least and not any(fields.values())):
            raise self.error(f"operands ({', '.join(fields)})", f"{count} of them")

    # --- execution --------------------------------------------------------------------------------

    @classmethod
    def evaluate(cls, *arrays: np.ndarray, **attributes: Any) -> tuple[np.ndarray, ...]:
        """The results on NumPy arrays. 16-bit floats are computed in float32 and rounded once, as
        on the targets.
        """
        attributes = cls.with_defaults(attributes)
        results = cls.infer(*(TensorSpec(a.shape, a.dtype) for a in arrays), **attributes)
        specs = (results,) if isinstance(results, TensorSpec) else results
        return cls.compute(specs, arrays, attributes)

    @classmethod
    def compute(
        cls,
        specs: Sequence[TensorSpec],
        arrays: Sequence[np.ndarray],
        attributes: dict[str, Any],
    ) -> tuple[np.ndarray, ...]:
        """`evaluate` for results of given types, whose extents may be unknown."""
        wide = [a.astype(float32) if a.itemsize == 2 and cls._widens(a) else a for a in arrays]
        return _QUIET.copy().run(_results, cls, specs, wide, attributes)

    @classmethod
    def _widens(cls, array: np.ndarray) -> bool:
        return cls.WIDEN and is_narrow(array.dtype)


def _results(
    op_class: type[Op],
    specs: Sequence[TensorSpec],
    arrays: list[np.ndarray],
    attributes: dict[str, Any],
) -> tuple[np.ndarray, ...]:
    """What an op's reference gives, in the types that `infer` says."""
    values = op_class.reference(*arrays, **attributes)
    if not isinstance(values, tuple):
        values = (values,)
    if len(values) != len(specs):
        raise ValueError(f"{op_class.OPERATION_NAME}: {len(specs)} results, got {len(values)}")
    return tuple(map(_as_typed, values, specs))


def _as_typed(value: Any, spec: TensorSpec) -> np.ndarray:
    """What a reference gave as an array of the type that `infer` says."""
    if type(value) is not np.ndarray:
        value = np.asarray(value)
    if value.dtype is spec.dtype and value.shape == spec.shape:
        return value
    value = value.astype(spec.dtype, copy=False)
    return value.reshape(spec.extents) if spec.is_static else value


def is_composite(op_class: type[Op] | None) -> bool:
    """True for ops that say what they are made of: `decompose(*operands, **attributes)`, a
    classmethod or staticmethod, builds the same results from simpler ops.
    """
    return hasattr(op_class, "decompose")


def _reader(
    group: str, index: int, variadic: bool, all_variadic: list[bool]
) -> Callable[[Op], Any]:
    """An accessor of the operand or result field at `index`; one field of the group may be
    variadic.
    """
    after = len(all_variadic) - index - 1
    from_end = any(all_variadic[:index])

    def read(self: Op) -> Any:
        values = getattr(self.operation, group)
        if variadic:
            return [wrap(values[i]) for i in range(index, len(values) - after)]
        return wrap(values[len(values) - after - 1 if from_end else index])

    return read


def _listed(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(map(str, specs)) or "none"


def wrap(value: ir.Value, builder: builders.Builder | None = None) -> "Tensor":
    """`value` as a Tensor. The class is put here by tensor.py, whose operators are built from the
    ops defined on this one.
    """
    tensor = wrap.tensor_class(value)
    tensor.graph = builder
    return tensor


wrap.tensor_class = ir.Value


def in_float32(rule: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Decorator of a `vjp` that rounding to 16 bits would spoil (differences of near numbers,
    counts, squares): of 16-bit operands it is the rule of the op computed anew in float32, rounded
    once.
    """

    @functools.wraps(rule)
    def wrapped(self: Op, *cotangents: Any) -> list[Any]:
        narrow = [is_narrow(s.dtype) for s in self.operand_specs()]
        if not any(narrow):
            return rule(self, *cotangents)
        operands = [wrap(o) for o in self.operation.operands]
        wide = [o.astype(float32) if n else o for o, n in zip(operands, narrow, strict=True)]
        results = self.emit(*wide, **self.read_attributes())
        twin = (results[0] if isinstance(results, tuple) else results).owner.opview
        gradients = rule(twin, *(ct if ct is None else ct.astype(float32) for ct in cotangents))
        return [
            g.astype(o.dtype) if n and g is not None else g
            for g, o, n in zip(gradients, operands, narrow, strict=True)
        ]

    return wrapped


def as_wide(x: Any) -> Any:
    """`x` in the type that composite ops are computed in: float32 for 16-bit floats."""
    return x.astype(float32) if is_narrow(x.dtype) else x


def in_wide(parts: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator of a `decompose`: 16-bit operands are taken in float32, and the result is rounded
    once, to the type of the first one.
    """

    @functools.wraps(parts)
    def wrapped(*operands: Any, **attributes: Any) -> Any:
        dtype = operands[0].dtype
        found = parts(*map(as_wide, operands), **attributes)
        if isinstance(found, tuple):
            return tuple(f.astype(dtype) for f in found)
        return found.astype(dtype)

    return wrapped


def new_context() -> ir.Context:
    """An MLIR context with the dialect loaded. Contexts are cheap (about 3 ms) and independent:
    one a graph or tool run. Other dialects are loaded when a file or a pass first needs them.
    """
    context = ir.Context(load_on_create_dialects=DIALECTS)
    # Verifiers are Python: threads of MLIR's own would only wait for each other.
    context.enable_multithreading(False)
    with context, ir.Location.unknown():
        Gradopt.load()
    return context


def function(op_class: type[Op]) -> Callable[..., Any]:
    """The public function of an op: its operands, then its attributes as keywords; the op's
    docstring is its help.
    """

    fields, build = op_class.OPERANDS, op_class.build
    count, is_variadic = len(fields) - any(fields.values()), any(fields.values())
    defaults = {f: d for f, (_, d) in op_class.ATTRIBUTES.items() if d is not REQUIRED}
    required = op_class.ATTRIBUTES.keys() - defaults.keys()

    def call(*operands: Any, name: str | None = None, **attributes: Any) -> Any:
        if len(operands) == count or (is_variadic and len(operands) > count):
            if not attributes and not required:
                return build(*operands, name=name, **defaults)
            if required <= attributes.keys() <= op_class.ATTRIBUTES.keys():
                return build(*operands, name=name, **{**defaults, **attributes})
        bound = signature.bind(*operands, **attributes)
        given = bound.arguments
        values = [
            v
            for field, many in fields.items()
            for v in (given.get(field, ()) if many else (given[field],))
        ]
        return build(
            *values, name=name, **{f: given.get(f, d) for f, (_, d) in op_class.ATTRIBUTES.items()}
        )

    parameters = [
        inspect.Parameter(
            f, inspect.Parameter.VAR_POSITIONAL if many else inspect.Parameter.POSITIONAL_OR_KEYWORD
        )
        for f, many in op_class.OPERANDS.items()
    ] + [
        inspect.Parameter(
            f,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if d is REQUIRED else d,
        )
        for f, (_, d) in op_class.ATTRIBUTES.items()
    ]
    signature = inspect.Signature(parameters)
    call.__name__ = call.__qualname__ = op_class.MNEMONIC
    call.__doc__ = op_class.__doc__
    call.__signature__ = inspect.Signature(
        [*parameters, inspect.Parameter("name", inspect.Parameter.KEYWORD_ONLY, default=None)]
    )
    return call


def check_float(op_class: type[Op], *specs: TensorSpec) -> None:
    """Raise unless every operand is floating-point."""
    for spec in specs:
        if not is_float(spec.dtype):
            raise op_class.error("a floating-point operand", spec, "convert it first")
