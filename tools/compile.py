# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-compile: functions, in MLIR or Python, to an artifact."""

import argparse
import pathlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..dialect.base import new_context
from ..dialect.control import is_public, symbols
from ..dialect.mlir import ir
from ..dialect.types import TensorSpec, is_float
from ..errors import ArgumentError, ArtifactError, Diagnostic, GradoptError, PassError
from ..lowering import pipeline
from ..lowering.passes import failure
from ..runtime import pieces
from ..runtime.artifact import write_artifact
from ..runtime.exported import DATA, PARAMETER, STATE, Exported
from ..runtime.options import rematerialization
from ..runtime.program import Program
from ..runtime.weights import read_weights, with_values
from . import python_source
from .compile_options import parser
from .source import SEPARATOR, Source, read

LOSSES, PREDICTIONS = ("loss",), ("infer", "predict")
"""What functions are called that --loss and --infer need not name."""


def main(argv: list[str] | None = None) -> int:
    """The command; returns its exit status."""
    options = parser().parse_args(argv)
    try:
        options.rule = _optimizer(options)
    except ArtifactError as error:
        return _fail(error, 2)
    is_python = python_source.is_place(options.input)
    source = Source(options.input, b"")
    try:
        if is_python:
            module, name = python_source.load(options.input)
            functions: Functions = PythonFunctions(module, name, options)
        else:
            source = read(options.input)
            functions = FileFunctions(source, options)
    except OSError as error:
        return _fail(f"cannot read '{options.input}': {error.strerror}", 2)
    except ArgumentError as error:
        return _fail(error, 2)
    except PassError as error:
        return _told(source, error)
    try:
        return _stage(functions, options) if options.stage else _compile(functions, options)
    except OSError as error:
        return _fail(f"cannot write '{options.output or options.input}': {error.strerror}", 2)
    except PassError as error:
        return _told(source, error)
    except GradoptError as error:
        return _fail(error, 1)


def _fail(error: object, status: int) -> int:
    print(f"gradopt-compile: error: {error}", file=sys.stderr)
    return status


def _told(source: Source, error: PassError) -> int:
    for fault in error.diagnostics:
        print(source.named(fault), file=sys.stderr)
    return 1


# --- where functions come from --------------------------------------------------------------------


class FileFunctions:
    """The functions of an MLIR file."""

    def __init__(self, source: Source, options: argparse.Namespace) -> None:
        for option, given in (("--input", options.input_types), ("--dynamic", options.dynamic)):
            if given:
                raise ArgumentError(
                    f"{option} expected a Python function; the types of a file's functions stand "
                    "in the file, with ? for open extents"
                )
        self.modules = []
        self.owner: dict[str, ir.Module] = {}
        for part in source.parts():
            with new_context():
                module = part.parse()
            if not options.stage:
                _check(module)
            self.modules.append(module)
            self.owner |= {n: module for n in symbols(module) if n not in self.owner}
        if not options.stage and not self.public():
            missing = "expected a public function to compile, got none"
            raise PassError([Diagnostic(source.name, 1, 1, "error", missing)])

    def public(self) -> list[str]:
        return [n for m in self.modules for n, f in symbols(m).items() if is_public(f)]

    def all(self) -> list[Program]:
        return [
            Program.of_module(module, name)
            for module in self.modules
            for name, f in symbols(module).items()
            if is_public(f)
        ]

    def names(self) -> list[str]:
        return list(self.owner)

    def get(self, name: str, mode: str) -> Program:
        return Program.of_module(self.owner[name], name)

    def only(self) -> str | None:
        return self.public()[0] if len(self.public()) == 1 else None


class PythonFunctions:
    """The functions of a Python module; `name` is the one that the command line says."""

    def __init__(self, module: Any, name: str, options: argparse.Namespace) -> None:
        self.python, self.name = module, name
        self.types = python_source.Types(options.input_types, options.dynamic)
        python_source.function(module, name)

    def all(self) -> list[Program]:
        return [self.get(self.name, "infer")]

    def names(self) -> list[str]:
        return [n for n, value in vars(self.python).items() if callable(value)]

    def get(self, name: str, mode: str) -> Program:
        symbol = name.rpartition(".")[2]
        return self.types.program(python_source.function(self.python, name), symbol, mode)

    def only(self) -> str | None:
        return self.name


Functions = FileFunctions | PythonFunctions


def _check(module: ir.Module) -> None:
    """Raise for what cannot become an artifact."""
    functions = symbols(module).values()
    faults = []
    for function in functions:
        symbol, where = function.name.value, function.location
        types = [*function.type.inputs, *function.type.results]
        other = [str(t) for t in types if not isinstance(t, ir.RankedTensorType)]
        if function.is_external:
            faults.append((where, f"expected @{symbol} to have a body, got a declaration"))
        elif symbol.startswith("__"):
            faults.append((where, f"expected a name that does not start with __, got @{symbol}"))
        elif is_public(function) and other:
            faults.append((where, f"expected @{symbol} to take and return tensors, got {other[0]}"))
    if faults:
        raise failure(faults)


# --- an artifact ----------------------------------------------------------------------------------


def _compile(functions: Functions, options: argparse.Namespace) -> int:
    if options.emit:
        made, held = _emitted(functions, options)
    else:
        programs = _alike([_prepared(p, options) for p in functions.all()])
        held = _values(programs, {}, options)
        made = [pieces.as_is(program, held) for program in programs]
    if isinstance(functions, PythonFunctions):
        functions.types.check_used()
    _check_names(made, options)
    folder = write_artifact(
        options.output or _default(options.input),
        made,
        [name for names in options.target or [["cpu"]] for name in names],
        fat=options.fat,
        donate=options.donate,
        static_alloc=options.static_alloc,
        remat=rematerialization(options.memory_budget, options.remat),
        weights=options.weights_format,
        licence=options.licence,
        name=options.name,
    )
    print(f"wrote {folder}")
    without = [n for n, value in held.items() if isinstance(value, TensorSpec)]
    if without and options.weights_format:
        print(
            f"no initial values of {_listed(without)}; give --weights, or set them when the "
            "artifact is loaded",
            file=sys.stderr,
        )
    return 0


def _emitted(
    functions: Functions, options: argparse.Namespace
) -> tuple[list[Exported], dict[str, Any]]:
    """The functions that --emit asks for, and what they hold."""
    rule = options.rule
    wants = set(options.emit)
    loss = infer = None
    if wants & {"loss", "grad", "step", "init"}:
        name = _chosen(functions, options.loss, LOSSES, "--loss")
        loss = _prepared(functions.get(name, "train"), options)
    if "infer" in wants:
        name = _chosen(functions, options.infer, PREDICTIONS, "--infer")
        infer = _prepared(functions.get(name, "infer"), options)
    if loss is not None and infer is not None:
        loss, infer = _alike([loss, infer])
    slots = {}
    if loss is not None and wants & {"step", "init"}:
        slots = rule.state(pieces.trained(loss))
    held = _values([p for p in (loss, infer) if p], slots, options)
    make = {
        "infer": lambda: pieces.infer(infer, held),  # type: ignore[arg-type]
        "loss": lambda: pieces.loss(loss, held),  # type: ignore[arg-type]
        "grad": lambda: pieces.grad(loss, held),  # type: ignore[arg-type]
        "step": lambda: pieces.step(loss, held, rule),  # type: ignore[arg-type]
        "init": lambda: pieces.init(rule, pieces.trained(loss), held),  # type: ignore[arg-type]
    }
    return [make[name]() for name in options.emit], held


def _chosen(functions: Functions, given: str | None, usual: Sequence[str], option: str) -> str:
    """The name of the loss or the prediction."""
    if given:
        if isinstance(functions, FileFunctions) and given not in functions.names():
            raise ArtifactError(
                f"{option} expected a function out of {', '.join(functions.names())}, got '{given}'"
            )
        return given
    known = functions.names()
    only = functions.only() if option == "--loss" or isinstance(functions, FileFunctions) else None
    found = next((name for name in usual if name in known), only)
    if isinstance(functions, PythonFunctions) and option == "--loss":
        found = functions.name
    if found is None:
        raise ArtifactError(f"expected {option} NAME, a function out of {', '.join(known)}")
    return found


def _optimizer(options: argparse.Namespace) -> pieces.Optimizer:
    settings = {
        n: getattr(options, n) for n in ("weight_decay", "momentum", "nesterov", "eps", "decay")
    }
    if options.betas:
        settings |= {"beta1": options.betas[0], "beta2": options.betas[1]}
    return pieces.Optimizer.of(options.optimizer, options.learning_rate, **settings)


def _prepared(program: Program, options: argparse.Namespace) -> Program:
    """A function with the roles and element types that the command line says."""
    roles = {}
    for role, prefixes in ((PARAMETER, options.parameters), (STATE, options.state)):
        roles |= {n: role for n, _ in program.inputs if any(_is_below(n, p) for p in prefixes)}
    program = program.with_roles(roles)
    dtypes: dict[str, np.dtype] = {}
    for prefix, dtype in options.dtype:
        for n, spec in program.inputs:
            if _is_below(n, prefix) if prefix else _is_trained(program, n, spec):
                dtypes[n] = dtype
    return program.stored_as(dtypes)


def _alike(programs: Sequence[Program]) -> list[Program]:
    """What one function holds is held for all that have an input of its name, unless that is only
    the position of an argument without a name.
    """
    held: dict[str, str] = {}
    for program in programs:
        for name, role in program.roles.items():
            if role != DATA and not name.isdigit():
                held.setdefault(name, role)
    return [
        program.with_roles({n: r for n, r in held.items() if program.roles.get(n) == DATA})
        for program in programs
    ]


def _is_below(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


def _is_trained(program: Program, name: str, spec: TensorSpec) -> bool:
    return program.roles[name] == PARAMETER and is_float(spec.dtype)


def _values(
    programs: Iterable[Program], slots: Mapping[str, TensorSpec], options: argparse.Namespace
) -> dict[str, Any]:
    """What is held, with the values of --weights; the optimizer's state starts as zeros unless
    there is a function init for that.
    """
    held: dict[str, Any] = {}
    for program in programs:
        held |= {n: spec for n, spec in program.inputs if program.roles[n] != DATA}
    own = list(held)
    for name, spec in slots.items():
        held[name] = spec if "init" in options.emit else np.zeros(spec.extents, spec.dtype)
    if not options.weights:
        return held
    try:
        values = read_weights(options.weights)
    except OSError as error:
        raise ArtifactError(f"cannot read '{options.weights}': {error.strerror}") from None
    return with_values(held, values, own, options.weights)


def _check_names(made: Sequence[Exported], options: argparse.Namespace) -> None:
    """Raise for names on the command line that no function has an argument of."""
    known = sorted({n for one in made for n in one.graph.input_names})
    options_of = {
        "--parameters": options.parameters,
        "--state": options.state,
        "--dtype": [name for name, _ in options.dtype if name],
    }
    for option, names in options_of.items():
        for name in names:
            if not any(_is_below(n, name) for n in known):
                raise ArtifactError(
                    f"{option} expected arguments out of {', '.join(known)}, got '{name}'"
                )


def _default(name: str) -> pathlib.Path:
    """Where the artifact goes: `a/model.mlir` to `a/model`."""
    if name == "-":
        return pathlib.Path("model")
    if python_source.is_place(name):
        return pathlib.Path(name.rpartition(":")[2])
    path = pathlib.Path(name)
    return (
        path.with_suffix("")
        if path.suffix in (".mlir", ".mlirbc")
        else path.with_name(f"{path.name}.artifact")
    )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more


# --- a stage --------------------------------------------------------------------------------------


def _stage(functions: Functions, options: argparse.Namespace) -> int:
    if isinstance(functions, PythonFunctions):
        raise ArtifactError("--stage expected a file of MLIR, got a Python function")
    for name, passes in pipeline.STAGES.items():
        for module in functions.modules:
            pipeline.run(module, passes)
        if name == options.stage:
            break
    text = f"\n{SEPARATOR}\n\n".join(m.operation.get_asm() for m in functions.modules)
    if options.output in (None, "-"):
        print(text)
    else:
        pathlib.Path(options.output).write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
