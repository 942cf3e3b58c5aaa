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
from ..lowering.target import TARGETS, target
from ..runtime.artifact import base_path, compile_modules, describe, write
from .source import Source, read

DESCRIPTION = """\
Compile the public functions of an MLIR file in the gradopt dialect, derivatives included, to
NAME.vmfb with the manifest NAME.json beside it, or print the IR at a stage on the way."""


def main(argv: list[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="gradopt-compile", description=DESCRIPTION)
    parser.add_argument("input", help="a file of MLIR text or bytecode; - for stdin")
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
        source = read(options.input)
    except OSError as error:
        reason = error.strerror
        print(f"gradopt-compile: error: cannot read '{options.input}': {reason}", file=sys.stderr)
        return 2
    try:
        return _compile(source, options)
    except PassError as error:
        for fault in error.diagnostics:
            print(source.named(fault), file=sys.stderr)
    except CompileError as error:
        print(f"gradopt-compile: error: {error}", file=sys.stderr)
    return 1


def _compile(source: Source, options: argparse.Namespace) -> int:
    with new_context():
        module = source.parse()
        if not any(map(is_public, symbols(module).values())):
            missing = "expected a public function to compile, got none"
            raise PassError([Diagnostic(source.name, 1, 1, "error", missing)])
        if options.emit != "vmfb":
            _print_stage(module, options.emit)
            return 0
        output = _base(options.output or options.input)
        chosen = target(options.target)
        tables = describe(module, {})
        image = compile_modules([module], output.name, chosen)
    path = write(output, image, tables, {}, chosen)
    print(f"wrote {path.with_name(f'{output.name}.vmfb')}")
    return 0


def _base(name: str) -> pathlib.Path:
    """Where the artifact goes: `a/model.mlir` and `a/model.vmfb` are `a/model`."""
    path = base_path("model" if name == "-" else name)
    return path.with_suffix("") if path.suffix in (".mlir", ".mlirbc") else path


def _print_stage(module: ir.Module, stage: str) -> None:
    for name, passes in pipeline.STAGES.items():
        pipeline.run(module, passes)
        if name == stage:
            break
    print(module.operation.get_asm())


if __name__ == "__main__":
    sys.exit(main())
