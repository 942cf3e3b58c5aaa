# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-opt: runs passes on MLIR text, one at a time or in pipelines, gradopt's own and
MLIR's.
"""

import argparse
import contextlib
import pathlib
import sys
from typing import Any

from ..dialect.base import new_context
from ..dialect.mlir import diagnostics, ir
from ..errors import Diagnostic, PassError, PipelineError
from ..lowering import pipeline
from ..lowering.passes import PASSES
from .expected import check_expected
from .source import SEPARATOR, Source, read
from .tables import ops_table, passes_table, print_table, timing_table

FAILED, MISUSED = 1, 2

DESCRIPTION = """\
Run passes on MLIR text. Passes run in the order given: every gradopt pass is a flag
(--gradopt-simplify, options as --gradopt-simplify=max-iterations=2), so is every pass of MLIR
(--cse, --canonicalize), and --pass-pipeline takes whole pipelines with nesting:
--pass-pipeline='builtin.module(gradopt-simplify,func.func(cse))'."""

EPILOG = "Exit status: 0 done, 1 the input or a pass is at fault, 2 the command line or a file is."


class AddPass(argparse.Action):
    """Appends a pass flag to the list of passes, in the order of the command line."""

    def __call__(
        self, parser: Any, namespace: Any, values: Any, option_string: str | None = None
    ) -> None:
        name = (option_string or "")[2:]
        namespace.passes.append(
            values if name == "pass-pipeline" else f"{name}{{{values}}}" if values else name
        )


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """The parsed command line, with `passes` in order. Flags that are not known are taken for MLIR
    passes.
    """
    parser = argparse.ArgumentParser(
        prog="gradopt-opt", description=DESCRIPTION, epilog=EPILOG, allow_abbrev=False
    )
    parser.add_argument(
        "input",
        nargs="?",
        default="-",
        help="a file of MLIR text or bytecode; - for stdin (default)",
    )
    parser.add_argument(
        "-o", dest="output", default="-", help="where to write the result; - for stdout (default)"
    )
    parser.add_argument(
        "--pass-pipeline",
        action=AddPass,
        metavar="PIPELINE",
        help="passes as text, nesting and options included",
    )
    for own in PASSES.values():
        options = " ".join(f"{k}={v}" for k, v in own.options.items())
        text = own.summary + (f" [options: {options}]" if options else "")
        parser.add_argument(
            f"--{own.name}", action=AddPass, nargs="?", metavar="OPTIONS", help=text
        )
    for name, passes in pipeline.PIPELINES.items():
        parser.add_argument(
            f"--{name}", action=AddPass, nargs="?", metavar="", help=f"the passes {passes}"
        )
    parser.add_argument(
        "--split-input-file",
        action="store_true",
        help=f"treat parts between '{SEPARATOR}' lines on their own",
    )
    parser.add_argument(
        "--verify-diagnostics",
        action="store_true",
        help="check that errors are those in expected-error comments",
    )
    parser.add_argument(
        "--verify-each",
        type=int,
        default=1,
        metavar="0|1",
        help="verify after every pass (default: 1)",
    )
    parser.add_argument(
        "--mlir-print-ir-after-all",
        action="store_true",
        help="print the IR to stderr after every pass",
    )
    parser.add_argument(
        "--mlir-print-debuginfo", action="store_true", help="print source locations"
    )
    parser.add_argument(
        "--mlir-use-nameloc-as-prefix",
        action="store_true",
        help="print values under the names of their locations",
    )
    parser.add_argument(
        "--mlir-timing", action="store_true", help="print the time of every pass to stderr"
    )
    parser.add_argument(
        "--allow-unregistered-dialect",
        action="store_true",
        help="take ops of dialects that are not known",
    )
    parser.add_argument(
        "--list-passes", action="store_true", help="list gradopt's passes and pipelines"
    )
    parser.add_argument(
        "--list-ops",
        action="store_true",
        help="list the ops of the dialect and what each of them has",
    )
    parser.add_argument("--json", action="store_true", help="print tables as JSON")
    parser.set_defaults(passes=[])
    return parser.parse_args(_with_mlir_passes(parser, sys.argv[1:] if argv is None else argv))


def _with_mlir_passes(parser: argparse.ArgumentParser, argv: list[str]) -> list[str]:
    """The command line with flags that argparse does not know (--cse) written as
    --pass-pipeline=cse.
    """
    known = parser._option_string_actions
    rewritten = []
    for word in argv:
        flag, equals, value = word.partition("=")
        if word.startswith("--") and flag not in known:
            word = f"--pass-pipeline={flag[2:]}{f'{{{value}}}' if equals else ''}"
        elif (
            equals
            and flag in known
            and isinstance(known[flag], AddPass)
            and known[flag].nargs == "?"
        ):
            word = f"{flag}={value}"
        rewritten.append(word)
    return rewritten


def main(argv: list[str] | None = None) -> int:
    """The command; returns its exit status."""
    options = arguments(argv)
    if options.list_ops:
        return print_table(ops_table(), options.json)
    if options.list_passes:
        return print_table(passes_table(), options.json)
    try:
        steps = [step for text in options.passes for step in pipeline.parse(text)]
        source = read(options.input)
    except PipelineError as error:
        print(f"gradopt-opt: error: {error}", file=sys.stderr)
        return MISUSED
    except OSError as error:
        print(
            f"gradopt-opt: error: cannot read '{options.input}': {error.strerror}", file=sys.stderr
        )
        return MISUSED
    run = Run(options, steps)
    results, faults = run.all_parts(source)
    if options.verify_diagnostics:
        return check_expected(source.text, source.name, faults)
    for fault in faults:
        print(_shown(fault, source), file=sys.stderr)
    if options.mlir_timing:
        print_table(timing_table(run.times), options.json, sys.stderr)
    if not faults:
        try:
            _write(options.output, f"{SEPARATOR}\n".join(results))
        except OSError as error:
            print(
                f"gradopt-opt: error: cannot write '{options.output}': {error.strerror}",
                file=sys.stderr,
            )
            return MISUSED
    return FAILED if faults else 0


class Run:
    """One run of the tool: the passes, and what they print and take."""

    def __init__(self, options: argparse.Namespace, steps: list[pipeline.Step]) -> None:
        self.options = options
        self.steps = steps
        self.times: list[tuple[str, float]] = []

    def all_parts(self, source: Source) -> tuple[list[str], list[Diagnostic]]:
        """The resulting text of every part, and all faults; a part at fault has no text."""
        results, faults = [], []
        for part in source.parts() if self.options.split_input_file else [source]:
            try:
                results.append(self.one_part(part))
            except PassError as error:
                faults += [source.named(d) for d in error.diagnostics]
        return results, faults

    def one_part(self, source: Source) -> str:
        context = new_context()
        context.allow_unregistered_dialects = self.options.allow_unregistered_dialect
        with context:
            module = source.parse()
            for step in self.steps:
                pipeline.run(module, [step], self._after(module))
            return self._print(module)

    def _after(self, module: ir.Module) -> Any:
        def after(step: pipeline.Step, seconds: float) -> None:
            self.times.append((str(step), seconds))
            if self.options.mlir_print_ir_after_all:
                print(
                    f"// -----// IR Dump After {step} //----- //\n{self._print(module)}",
                    file=sys.stderr,
                )
            if self.options.verify_each:
                try:
                    module.operation.verify()
                except ir.MLIRError as error:
                    raise PassError(diagnostics(error)) from None

        return after

    def _print(self, module: ir.Module) -> str:
        text = module.operation.get_asm(
            enable_debug_info=self.options.mlir_print_debuginfo,
            use_name_loc_as_prefix=self.options.mlir_use_nameloc_as_prefix,
        )
        return text if text.endswith("\n") else text + "\n"


def _shown(fault: Diagnostic, source: Source) -> str:
    """The fault with the line it is at and a mark under the place, as MLIR shows it."""
    lines = source.text.split("\n")
    if fault.file != source.name or not 0 < fault.line <= len(lines):
        return str(fault)
    return f"{fault}\n{lines[fault.line - 1]}\n{' ' * max(fault.column - 1, 0)}^"


def _write(name: str, text: str) -> None:
    if name == "-":
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.write(text)
            sys.stdout.flush()
    else:
        pathlib.Path(name).write_text(text)


if __name__ == "__main__":
    sys.exit(main())
