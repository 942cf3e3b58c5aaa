# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What can be asked of a compiled function without calling it: its graph, IR, memory, signature."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..dialect import modes
from ..dialect.auxiliary import auxiliary_inputs
from ..dialect.control import symbols
from ..dialect.graph import ARRAYS, Graph, argument_names, function_name, trace
from ..dialect.mlir import ir
from ..dialect.modes import current_mode, mode_like
from ..errors import ArgumentError, GradientError
from ..lowering.dispatch_form import in_form
from ..lowering.marks import NULL, storage_of_results
from .binding import mark, signature_of
from .composed import output_names
from .options import GradReq, Options
from .requests import owners_of, requests_of
from .serial import serialized
from .signature import Signature
from .state import state
from .tape_calls import check_constants

if TYPE_CHECKING:
    from .memory import MemoryReport

RECORDED = ("forward", "backward")
"""The parts of a recorded call, as stages of `mlir`."""


class Inspected:
    """A function or graph with the options that it is compiled with. Methods take arguments as
    `specs`: TensorSpecs, or arrays that stand for their type, in any structure.
    """

    WRAPS = ("fn",)  # see walk.py

    def __init__(self, fn: Callable[..., Any] | Graph, options: Options) -> None:
        self.fn = fn
        self.options = options
        self.target = options.target
        self.remat = options.remat
        self._grad_req = options.grad_req
        self.constants: list[Any] = []  # weakly, arrays that traces met besides the arguments

    @property
    def name(self) -> str:
        """The name of the function, as its graph has it."""
        return self.fn.name if isinstance(self.fn, Graph) else function_name(self.fn)

    def trace(self, *specs: Any) -> Graph:
        """The graph for arguments like `specs` (TensorSpec, or arrays that stand for their
        type).
        """
        if isinstance(self.fn, Graph):
            self.options.check_arguments(self.fn.name, self.fn.input_names)
            self.fn.finish()
            return self.fn
        names = argument_names(self.fn, len(specs))
        self.options.check_arguments(function_name(self.fn), names)
        if self.options.dynamic is not None:
            specs = self.options.dynamic.specs(self.fn, specs)
        with modes.mode(self._mode()):
            graph = trace(self.fn, *specs, parameters=self.options.param or ())
        graph.set_auxiliary(self.options.auxiliary)
        for ref in graph.shared.get(ARRAYS, []):
            if all(ref is not known for known in self.constants):
                self.constants.append(ref)
        if state.recording:
            check_constants(self)
        return graph

    def input_names(self, *specs: Any) -> list[str]:
        """Readable names of the arrays in arguments like `specs`: the argument's, then keys, fields
        and positions.
        """
        return self.trace(*specs).input_names

    def output_names(self, *specs: Any) -> list[str]:
        """Readable names of the results for arguments like `specs`: "result", then keys, fields and
        positions; for a graph the names of the ops that make them.
        """
        return output_names(self.trace(*specs))

    def auxiliary_names(self, *specs: Any) -> list[str]:
        """The names of those inputs that are states and get no gradient: arguments declared
        `auxiliary`, and running statistics of normalization.
        """
        graph = self.trace(*specs)
        return [graph.input_names[i] for i in auxiliary_inputs(graph)]

    def mlir(self, stage: str, *specs: Any) -> str:
        """The IR for arguments like `specs` at a stage: graph, differentiated, simplified,
        rematerialized or linalg; memref, too, for target jit; forward and backward, those of
        recorded calls.
        """
        from ..lowering import pipeline  # calls that find their module on disk do without
        from .budget import settled

        stages = pipeline.stages(self.target, self.remat)
        if stage not in (*stages, *RECORDED):
            known = ", ".join((*stages, *RECORDED))
            raise ArgumentError(f"expected a stage out of {known}, got '{stage}'")
        graph = self.trace(*specs)
        if stage in RECORDED:
            from ..lowering.record import record

            return getattr(record(graph, self._requests(graph, self._grad_req)), stage).mlir()
        with graph.lock, graph.context:
            module = ir.Module.parse(graph.mlir(locations=True))
            self._mark(graph, module)
        remat = settled(module, graph.name, in_form(module, self.target), self.remat)
        for name, passes in pipeline.stages(self.target, remat).items():
            pipeline.run(module, passes)
            if name == stage:
                break
        return module.operation.get_asm(use_name_loc_as_prefix=True)

    def memory_report(self, *specs: Any) -> "MemoryReport":
        """The memory of a call with arguments like `specs`: what it takes and returns, how donated
        arguments are used again, and what IREE and gradopt need for temporaries.
        """
        from ..lowering import memory_report, pipeline, plan_memory
        from .budget import settled
        from .compiler import plan_linalg
        from .memory import MemoryReport

        graph = self.trace(*specs)
        with graph.lock, graph.context:
            module = ir.Module.parse(graph.mlir(locations=True))
            self._mark(graph, module)
            places = storage_of_results(symbols(module)[graph.name])
            target = in_form(module, self.target)
            remat = settled(module, graph.name, target, self.remat)
            lowered, _ = pipeline.lower(module, target, remat)
            text = lowered.operation.get_asm(enable_debug_info=True)
        decided = plan_linalg(text, target, graph.name).get(graph.name, {})
        for stage in ("differentiated", "simplified", "rematerialized"):
            pipeline.run(module, pipeline.stages(self.target, remat)[stage])
        with graph.context:
            plan = memory_report.report(plan_memory.plan(symbols(module)[graph.name]))
        return MemoryReport.of(graph, places, decided, plan)

    def signature(self, *specs: Any) -> Signature:
        """What a call with arguments like `specs` depends on, part by part, and its key; nothing is
        compiled.
        """
        graph = self.trace(*specs)
        return signature_of(
            graph,
            self.target,
            donated=self._donated(graph),
            static_alloc=self.options.static_alloc,
            remat=self.remat,
            parts={"mode": self._mode()},
        )

    def serialize(self, *specs: Any) -> str:
        """The graph for arguments like `specs`, with the options, as text; `go.deserialize` makes a
        compiled function of it that has the same key.
        """
        graph = self.trace(*specs)
        options = self.options.as_keywords() | {
            "donate": self._donated(graph),
            "mode": self._mode(),
        }
        return serialized(graph, options)

    def _requests(self, graph: Graph, grad_req: GradReq) -> tuple[str, ...]:
        """What is done with the gradient by each input. Raises where calls cannot be recorded."""
        self.options.check_recordable(graph.name)
        requests = requests_of(graph, grad_req, self.options, self._argument_names(graph))
        if all(request == NULL for request in requests):
            raise GradientError(
                f"a recorded call of '{graph.name}' expected an argument to differentiate by, got "
                "the request 'null' for all; see grad_req"
            )
        return requests

    def _mode(self) -> str:
        return mode_like(self.options.mode) if self.options.mode else current_mode()

    def _argument_names(self, graph: Graph) -> list[str]:
        """The names of the arguments, as the function calls them."""
        if isinstance(self.fn, Graph) or graph.in_tree is None:
            return graph.input_names
        return argument_names(self.fn, graph.in_tree.num_children)

    def _mark(self, graph: Graph, module: ir.Module) -> bool | str:
        """Write the options into a graph's module; whether allocation is static."""
        asked = self.options.static_alloc, self.target, self.remat
        return mark(symbols(module)[graph.name], self._donated(graph), *asked)

    def _donated(self, graph: Graph) -> list[int]:
        """The positions of the inputs that the donated arguments consist of."""
        owners = owners_of(graph, len(self._argument_names(graph)))
        return [i for p in self.options.donate for i, owner in enumerate(owners) if owner == p]
