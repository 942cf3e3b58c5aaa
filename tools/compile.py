# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-compile: MLIR text in the gradopt dialect to a compiled artifact."""

import argparse
import pathlib
import sys

from ..dialect.base import new_context
from ..dialect.control import is_public, symbols
from ..dialect.mlir import ir
from ..errors import CompileError, Diagnostic, PassError
from ..lowering import pipeline
from ..lowering.passes import failure
from ..lowering.target import families, target
from ..runtime.artifact_1 import base_path, compile_modules, describe, write
from .source import Source, read

DESCRIPTION = """\
Compile the public functions of an MLIR file in the gradopt dialect, derivatives included, to
NAME.vmfb with the manifest NAME.json beside it, or print the IR at a stage on the way."""


def main(argv: list[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="gradopt-compile", description=DESCRIPTION)
    parser.add_argument("input", help="a file of MLIR text or bytecode; - for stdin")
    parser.add_argument(
        "-o",
        dest="output",
        help="the .vmfb to write (default: the input's name with .vmfb), or the text with --emit "
        "(default: stdout)",
    )
    parser.add_argument(
        "--target",
        default="cpu",
        choices=[name for name, family in families().items() if family.is_compiled],
        help="what to compile for (default: cpu)",
    )
    parser.add_argument(
        "--emit",
        default="vmfb",
        choices=["vmfb", *pipeline.STAGES],
        help="a stage to print instead (default: vmfb)",
    )
    options = parser.parse_args(argv)
    try:
        source = read(options.input)
    except OSError as error:
        reason = error.strerror
        print(f"gradopt-compile: error: cannot read '{options.input}': {reason}", file=sys.stderr)
        return 2
    try:
        return _compile(source, options)
    except OSError as error:
        reason = error.strerror
        path = options.output or options.input
        print(f"gradopt-compile: error: cannot write '{path}': {reason}", file=sys.stderr)
        return 2
    except PassError as error:
        for fault in error.diagnostics:
            print(source.named(fault), file=sys.stderr)
    except CompileError as error:
        print(f"gradopt-compile: error: {error}", file=sys.stderr)
    return 1


def _compile(source: Source, options: argparse.Namespace) -> int:
    with new_context():
        module = source.parse()
        _check(module, source.name)
        if options.emit != "vmfb":
            _print_stage(module, options)
            return 0
        output = _base(options.output or options.input)
        chosen = target(options.target)
        tables = describe(module, {})
        image = compile_modules([module], output.name, chosen)
    path = write(output, image, tables, {}, chosen)
    print(f"wrote {path.with_name(f'{output.name}.vmfb')}")
    return 0


def _check(module: ir.Module, name: str) -> None:
    """Raise for what cannot become an artifact."""
    functions = symbols(module).values()
    if not any(map(is_public, functions)):
        missing = "expected a public function to compile, got none"
        raise PassError([Diagnostic(name, 1, 1, "error", missing)])
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


def _base(name: str) -> pathlib.Path:
    """Where the artifact goes: `a/model.mlir` and `a/model.vmfb` are `a/model`."""
    path = base_path("model" if name == "-" else name)
    return path.with_suffix("") if path.suffix in (".mlir", ".mlirbc") else path


def _print_stage(module: ir.Module, options: argparse.Namespace) -> None:
    for name, passes in pipeline.STAGES.items():
        pipeline.run(module, passes)
        if name == options.emit:
            break
    text = module.operation.get_asm()
    if options.output in (None, "-"):
        print(text)
    else:
        pathlib.Path(options.output).write_text(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
