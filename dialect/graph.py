# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Graph: a function of the dialect under construction, built by hand or by tracing a Python
function.

A graph knows its inputs by name, gives every op a unique readable name and the user's source line,
and can hold other graphs (functions traced inside it), whose captured values become their inputs.
"""

import inspect
import os
import re
import sys
import threading
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from ..errors import OpError, TraceError
from . import builder as builders
from . import trees
from .base import new_context, wrap
from .control import argument_names as parameter_names
from .control import is_public, named_symbols, signature, symbols
from .creation import ConstantOp, as_array, constant
from .elementwise import is_scalar
from .mlir import func, ir
from .mutation import Watch
from .tensor import Tensor
from .types import TensorSpec

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_OWN_CODE = tuple(
    os.path.join(_ROOT, d) + os.sep for d in ("dialect", "lowering", "nn", "optim", "runtime")
)

DATA, PARAMETER, AUXILIARY = "data", "param", "aux"
"""The roles an input can have."""


class Graph(builders.Builder):
    """A function of the dialect under construction.

    >>> g = Graph("affine")
    >>> x, w = g.input("x", (8, 3)), g.parameter("w", (3, 2))
    >>> g.output(x @ w)
    >>> print(g)
    """

    def __init__(self, name: str = "main", parent: "Graph | None" = None) -> None:
        context = parent.context if parent else new_context()
        self.parent = parent
        self.name = name
        self.lock = threading.RLock()  # held while passes or a compiler have the module
        self.captures: dict[
            ir.Value, tuple[Tensor, Tensor]
        ] = {}  # outer value -> (outer tensor, input of this graph)
        self.in_tree: Any = None
        self.out_tree: Any = None
        self._names: Counter[str] = Counter()
        self.input_specs: list[TensorSpec] = []
        self.output_specs: list[TensorSpec] = []
        self._inputs: list[tuple[str, str]] = []
        self._outputs: list[ir.Value] = []
        self._sealed = False
        self.shared: dict[Any, Any] = parent.shared if parent else {}
        """What graphs of one module share: functions traced for several calls."""
        self.updates: dict[ir.Value, tuple[str, str]] = {}
        """New values of inputs that were updated in place (`x -= y`): which, and the operator."""
        with context:
            unknown = ir.Location.unknown()
            self.module = parent.module if parent else ir.Module.create(unknown)
            location = self._source_location()
            with location, ir.InsertionPoint(self.module.body):
                self.func = func.FuncOp(
                    name, ([], []), visibility="private" if parent else "public"
                )
            self.block = self.func.add_entry_block([])
        super().__init__(ir.InsertionPoint(self.block), unknown)

    # --- building ---------------------------------------------------------------------------------

    def input(self, name: str, shape: Any = (), dtype: Any = "float32", role: str = DATA) -> Tensor:
        """A new input of the function; None in `shape` is an extent known only at run time. `shape`
        may be a TensorSpec.
        """
        spec = shape if isinstance(shape, TensorSpec) else TensorSpec(shape, dtype)
        self._unseal()
        with self.context:
            unique = self._unique(name)
            argument = self.block.add_argument(
                spec.to_mlir(), ir.Location.name(unique, self._source_location())
            )
        self._inputs.append((unique, role))
        self.input_specs.append(spec)
        return wrap(argument, self)

    def parameter(self, name: str, shape: Any = (), dtype: Any = "float32") -> Tensor:
        """A new input that is trained: a weight, bias or table."""
        return self.input(name, shape, dtype, role=PARAMETER)

    def auxiliary(self, name: str, shape: Any = (), dtype: Any = "float32") -> Tensor:
        """A new input that is a state, such as running statistics: it gets no gradient."""
        return self.input(name, shape, dtype, role=AUXILIARY)

    def set_auxiliary(self, arguments: Sequence[int]) -> None:
        """Make the inputs auxiliary that the arguments at these positions of the traced function
        consist of. Raises TraceError for positions that it has not.
        """
        counts = [tree.num_leaves for tree in self.in_tree.children()]
        for position in arguments:
            if isinstance(position, bool) or not 0 <= position < len(counts):
                raise TraceError(
                    f"auxiliary expected positions of the {len(counts)} arguments of "
                    f"'{self.name}', got {position!r}"
                )
            self._unseal()
            start = sum(counts[:position])
            for i in range(start, start + counts[position]):
                self._inputs[i] = self._inputs[i][0], AUXILIARY
        self.finish()

    def output(self, *results: Any) -> None:
        """Append results of the function: tensors, numbers, or nested containers of them."""
        self._unseal()
        with self:
            for leaf in trees.leaves(results):
                tensor = leaf if isinstance(leaf, Tensor) else constant(leaf)
                self._outputs.append(self.adopt(tensor))
                self.output_specs.append(tensor.spec)

    @property
    def inputs(self) -> list[tuple[str, str]]:
        """Names and roles of the inputs."""
        return list(self._inputs)

    @property
    def input_names(self) -> list[str]:
        return [name for name, _ in self._inputs]

    def finish(self) -> func.FuncOp:
        """The function with its terminator and type; more ops may be added afterwards."""
        if not self._sealed:
            with self.context, ir.Location.unknown():
                types = [a.type for a in self.block.arguments], [o.type for o in self._outputs]
                self.func.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(*types))
                text = ir.StringAttr.get
                about = [
                    {"gradopt.name": text(n), "gradopt.role": text(r)} for n, r in self._inputs
                ]
                self.func.arg_attrs = ir.ArrayAttr.get([ir.DictAttr.get(d) for d in about])
                with ir.InsertionPoint(self.block):
                    func.ReturnOp(self._outputs)
            self._sealed = True
        return self.func

    def _unseal(self) -> None:
        if self._sealed:
            list(self.block.operations)[-1].operation.erase()
            self._sealed = False

    def mlir(self, locations: bool = False) -> str:
        """The module as text, verified; with source locations on request."""
        self.finish()
        self.module.operation.verify()
        return self.module.operation.get_asm(
            use_name_loc_as_prefix=True, enable_debug_info=locations
        )

    __str__ = mlir

    @classmethod
    def parse(cls, text: str) -> "Graph":
        """The graph of a module's text that has one public function, as `mlir` writes it; names of
        inputs and results' structure are those of the function. Raises TraceError for other text.
        """
        graph = cls()
        with graph.context:
            try:
                graph.module = ir.Module.parse(text)
            except ir.MLIRError as error:
                raise TraceError(f"expected the text of a graph, got {error}") from None
            functions = symbols(graph.module).values()
            public = [f for f in functions if is_public(f) and not f.is_external]
            if len(public) != 1:
                raise TraceError(
                    f"expected the text of a graph with one public function, got {len(public)}"
                )
            graph._take(public[0])
        return graph

    def _take(self, function: func.FuncOp) -> None:
        """Become the graph of a finished function of the module."""
        self.name, self.func, self.block = function.name.value, function, function.entry_block
        super().__init__(ir.InsertionPoint(self.block), ir.Location.unknown())
        self.input_specs, self.output_specs = signature(function)
        has_names = "arg_attrs" in function.attributes
        about = list(function.arg_attrs) if has_names else [{} for _ in self.input_specs]
        roles = [d["gradopt.role"].value if "gradopt.role" in d else DATA for d in about]
        names = parameter_names(function) if has_names else [f"arg{i}" for i in range(len(about))]
        self._inputs = list(zip(names, roles, strict=True))
        self._names.update(name for name, _ in self._inputs)
        self._outputs = list(list(self.block.operations)[-1].operation.operands)
        self._sealed = True
        if not has_names:
            self._unseal()
            self.finish()

    # --- what a builder does ----------------------------------------------------------------------

    def __enter__(self) -> "Graph":
        self._unseal()
        super().__enter__()
        return self

    def location(self, name: str) -> ir.Location:
        """The user's line that is being executed, under a unique name with the open name scopes in
        front.
        """
        self._unseal()
        return ir.Location.name(
            self._unique(".".join([*builders.scopes(), name])), self._source_location()
        )

    def note_update(self, old: ir.Value, new: ir.Value, operator: str) -> None:
        """An operator such as `-=` was applied to a value: if that is an input, or what became of
        one, its new value has to go somewhere.
        """
        key = ir.Value(old)
        if key in self.updates:
            self.updates[ir.Value(new)] = self.updates[key][0], operator
        elif isinstance(key.owner, ir.Block) and key.owner == self.block:
            name = self.input_names[ir.BlockArgument(key).arg_number]
            self.updates[ir.Value(new)] = name, operator

    def adopt(self, value: Any) -> ir.Value:
        """`value` inside this graph: itself, or an input standing for a value of an enclosing
        graph.
        """
        if not isinstance(value, Tensor):
            if hasattr(value, "graph"):  # an array, with numbers
                if value.needs_gradient:
                    self._warn_of_constant(value)
                made = ConstantOp.append(self, (), {"value": as_array(np.asarray(value))}, None)
                return ir.Value(made)
            raise TraceError(
                f"expected a Tensor of graph '{self.name}', got {type(value).__name__}; wrap it "
                "in go.constant"
            )
        if value.graph is self or value.graph is None:
            return value
        if value.graph not in self.ancestors():
            raise TraceError(
                f"{value!r} belongs to graph '{getattr(value.graph, 'name', '?')}', which is not "
                f"graph '{self.name}' or one "
                "around it; pass it in as an input"
            )
        key = ir.Value(value)
        if key not in self.captures:
            self.captures[key] = value, self.input(f"captured{len(self.captures)}", value.spec)
        return self.captures[key][1]

    def _warn_of_constant(self, array: Any) -> None:
        """An array whose gradient is asked for becomes a constant: say so, once a graph."""
        if (frame := user_frame()) is None or "constant" in self.shared:
            return
        self.shared["constant"] = True
        warnings.warn_explicit(
            f"an array of type {array.spec} whose gradient is asked for (attach_grad) is a "
            f"constant of '{self.name}': it gets no gradient there, and changes of it are not seen "
            "later; pass it as an argument, use go.hybridize, or give x.detach() if that is meant",
            UserWarning,
            frame.f_code.co_filename,
            frame.f_lineno,
        )

    def ancestors(self) -> list["Graph"]:
        return [] if self.parent is None else [self.parent, *self.parent.ancestors()]

    def _unique(self, name: str) -> str:
        name = re.sub(r"[^A-Za-z0-9_.]", "_", name) or "value"
        count = self._names[name]
        self._names[name] += 1
        return self._unique(f"{name}_{count}") if count else name

    def renamed(self, location: ir.Location) -> ir.Location:
        """The location of an op that was built for another graph, under a name unique in this."""
        if not isinstance(location, ir.NameLoc):
            return location
        name = ".".join([*builders.scopes(), location.name_str])
        return ir.Location.name(self._unique(name), location.child_loc)

    def _source_location(self) -> ir.Location:
        frame = user_frame()
        return (
            ir.Location.file(frame.f_code.co_filename, frame.f_lineno, 0)
            if frame
            else ir.Location.unknown()
        )


def user_frame() -> Any:
    """The innermost frame that is not gradopt's own code."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OWN_CODE):
        frame = frame.f_back
    return frame


# --- tracing --------------------------------------------------------------------------------------


def trace(
    fn: Callable[..., Any], *specs: Any, name: str | None = None, parameters: Collection[int] = ()
) -> Graph:
    """Run `fn` once on tensors without numbers and return the graph of what it did.

    `specs` are the arguments: nested containers of TensorSpec, or arrays and numbers that stand for
    their type; those at the positions `parameters` are trained. Whatever `fn` returns becomes the
    outputs, and `graph.out_tree` its structure.
    """
    graph = Graph(name or function_name(fn))
    names = argument_names(fn, len(specs))
    _run(graph, fn, [_specs(n, s) for n, s in zip(names, specs, strict=True)], parameters)
    return graph


def _specs(name: str, argument: Any) -> Any:
    """The tree of types that an argument stands for; TraceError that names what is no array."""
    found = []
    for path, leaf in trees.named_leaves(name, argument):
        try:
            found.append(spec_of(leaf))
        except (OpError, TraceError) as error:
            raise TraceError(f"argument '{path}': {error}") from None
    return trees.unflatten(trees.structure(argument), found)


def trace_inside(fn: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Graph, list[Any]]:
    """Trace `fn` into a private function of the current graph's module, on `arguments`, trees of
    tensors and arrays.

    Returns the inner graph and the operands of a call to it: the arguments' leaves, then captured
    values of outer graphs.
    """
    outer = builders.required("call")
    if not isinstance(outer, Graph):
        raise TraceError("a function can be traced only while a graph is being built")
    leaves = [
        leaf if isinstance(leaf, Tensor) else constant(leaf) for leaf in trees.leaves(arguments)
    ]
    with outer:
        leaves = [wrap(outer.adopt(leaf), outer) for leaf in leaves]
    specs = trees.unflatten(trees.structure(arguments), [leaf.spec for leaf in leaves])
    inner = trace_private(fn, specs)
    return inner, leaves + [outer_value for outer_value, _ in inner.captures.values()]


def trace_private(fn: Callable[..., Any], specs: tuple[Any, ...]) -> Graph:
    """Trace `fn` on arguments of given types, trees of TensorSpec, into a private function of the
    current graph's module.
    """
    outer = builders.required("call")
    if not isinstance(outer, Graph):
        raise TraceError("a function can be traced only while a graph is being built")
    inner = Graph(free_symbol(outer, function_name(fn)), parent=outer)
    _run(inner, fn, list(specs))
    return inner


def _run(
    graph: Graph, fn: Callable[..., Any], arguments: list[Any], parameters: Collection[int] = ()
) -> None:
    names = argument_names(fn, len(arguments))
    graph.in_tree = trees.structure(tuple(arguments))
    inputs = []
    for i, (name, argument) in enumerate(zip(names, arguments, strict=True)):
        role = PARAMETER if i in parameters else DATA
        leaves = trees.named_leaves(name, argument)
        inputs += [graph.input(n, leaf, role=role) for n, leaf in leaves]
    results = run_function(graph, fn, names, trees.unflatten(graph.in_tree, inputs))
    with graph:
        leaves, graph.out_tree = trees.flatten(results)
        for leaf in leaves:
            is_array = isinstance(leaf, np.ndarray) or hasattr(leaf, "graph")
            if not is_array and not is_scalar(leaf):
                raise TraceError(
                    f"'{graph.name}' returned {type(leaf).__name__} {leaf!r:.60}; results must be "
                    "tensors or numbers"
                )
        graph.output(leaves)
    graph.finish()
    check_updates(graph)


def run_function(
    graph: Graph, fn: Callable[..., Any], names: list[str], arguments: tuple[Any, ...]
) -> Any:
    """What `fn` returns, called while a graph is being built. Raises TraceError where it changes a
    container that it is given, and does not return that.
    """
    watch = Watch(names, arguments)
    with graph:
        try:
            results = fn(*arguments)
        except OpError as error:
            _locate(error)
            raise
    watch.check(graph.name, results)
    return results


def check_updates(graph: Graph) -> None:
    """Raise TraceError for an input that was updated in place, where nothing depends on its new
    value: the caller never sees it.
    """
    for value, (name, operator) in graph.updates.items():
        if not list(value.uses):
            raise TraceError(
                f"'{graph.name}' changes its argument '{name}' by {operator}, and the new value is "
                "neither used nor returned; the caller's array stays as it is: return it"
            )


def _locate(error: OpError) -> None:
    """Put the user's line that the error came from in front of its message, once."""
    lines = [(f.f_code.co_filename, n) for f, n in traceback.walk_tb(error.__traceback__)]
    users = [f"{file}:{line}" for file, line in lines if not file.startswith(_OWN_CODE)]
    if users and not error.located:
        error.args = (f"{users[-1]}: {error}",)
        error.located = True


def spec_of(leaf: Any) -> TensorSpec:
    """The type that an argument stands for; TraceError for something that is no array."""
    if isinstance(leaf, TensorSpec):
        return leaf
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return TensorSpec(leaf.shape, leaf.dtype)
    try:
        array = as_array(leaf)
    except OpError:
        raise TraceError(
            f"expected an array, number or TensorSpec, got {type(leaf).__name__} {leaf!r:.60}; "
            "bind what is no array with functools.partial"
        ) from None
    return TensorSpec(array.shape, array.dtype)


def function_name(fn: Callable[..., Any]) -> str:
    """A symbol name for a Python function."""
    name = getattr(fn, "__name__", type(fn).__name__)
    return re.sub(r"[^A-Za-z0-9_]", "_", name).strip("_") or "fn"


def argument_names(fn: Callable[..., Any], count: int) -> list[str]:
    """Names of the first `count` positional parameters of `fn`."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        parameters = ()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return (names + [f"arg{i}" for i in range(len(names), count)])[:count]


def free_symbol(graph: Graph, name: str, also: set[str] = frozenset()) -> str:  # type: ignore[assignment]
    """A name like `name` that nothing in a graph's module has, nor in `also`, but `name` itself."""
    taken = named_symbols(graph.module) | (also - {name})
    candidates = [name, *(f"{name}_{i}" for i in range(len(taken) + 1))]
    return next(c for c in candidates if c not in taken)
