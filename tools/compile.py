# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-compile: MLIR text in the gradopt dialect to a compiled artifact."""

import argparse
import pathlib
import sys

from ..dialect.base import new_context
from ..dialect.control import symbols
from ..dialect.mlir import diagnostics, ir
from ..errors import CompileError, Diagnostic, PassError
from ..lowering import pipeline
from ..lowering.target import TARGETS, target
from ..runtime.artifact import compile_modules, describe, write

DESCRIPTION = """\
Compile the public functions of an MLIR file in the gradopt dialect, derivatives included, to
NAME.vmfb with the manifest NAME.json beside it, or print the IR at a stage on the way."""


def main(argv: list[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="gradopt-compile", description=DESCRIPTION)
    parser.add_argument("input", help="a file of MLIR text or bytecode")
    parser.add_argument(
        "-o", dest="output", help="the .vmfb to write (default: the input's name with .vmfb)"
    )
    parser.add_argument(
        "--target", default="cpu", choices=TARGETS, help="what to compile for (default: cpu)"
    )
    parser.add_argument(
        "--emit",
        default="vmfb",
        choices=["vmfb", *pipeline.STAGES],
        help="a stage to print instead (default: vmfb)",
    )
    options = parser.parse_args(argv)
    try:
        text = pathlib.Path(options.input).read_text()
    except (OSError, UnicodeDecodeError) as error:
        print(f"gradopt-compile: error: cannot read '{options.input}': {error}", file=sys.stderr)
        return 2
    try:
        return _compile(text, options)
    except PassError as error:
        for fault in error.diagnostics:
            print(_named(fault, options.input), file=sys.stderr)
    except CompileError as error:
        print(f"gradopt-compile: error: {error}", file=sys.stderr)
    return 1


def _compile(text: str, options: argparse.Namespace) -> int:
    with new_context():
        try:
            module = ir.Module.parse(text)
        except ir.MLIRError as error:
            raise PassError(diagnostics(error)) from None
        if not any(f.visibility.value == "public" for f in symbols(module).values()):
            raise PassError(
                [
                    Diagnostic(
                        options.input,
                        1,
                        1,
                        "error",
                        "expected a public function to compile, got none",
                    )
                ]
            )
        if options.emit != "vmfb":
            _print_stage(module, options.emit)
            return 0
        output = pathlib.Path(options.output or options.input).with_suffix("")
        chosen = target(options.target)
        tables = describe(module, {})
        image = compile_modules([module], output.name, chosen)
    print(f"wrote {write(output, image, tables, {}, chosen).with_suffix('.vmfb')}")
    return 0


def _print_stage(module: ir.Module, stage: str) -> None:
    for name, passes in pipeline.STAGES.items():
        pipeline.run(module, passes)
        if name == stage:
            break
    print(module.operation.get_asm())


def _named(fault: Diagnostic, name: str) -> Diagnostic:
    file = name if fault.file == "-" else fault.file
    return Diagnostic(file, fault.line, fault.column, fault.severity, fault.message)


if __name__ == "__main__":
    sys.exit(main())
