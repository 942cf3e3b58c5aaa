# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-opt: runs passes on MLIR text, one at a time or in pipelines, gradopt's own and
MLIR's.
"""

import argparse
import contextlib
import json
import pathlib
import sys
from typing import Any

from ..dialect.base import new_context
from ..dialect.mlir import diagnostics, ir
from ..errors import Diagnostic, PassError, PipelineError
from ..lowering import memory_plot, pipeline, plan_memory
from ..lowering.memory_report import MemoryReport, report
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


FLAGS = {
    "split-input-file": f"treat parts between '{SEPARATOR}' lines on their own",
    "verify-diagnostics": "check that errors are those in expected-error comments",
    "mlir-print-ir-after-all": "print the IR to stderr after every pass",
    "mlir-print-debuginfo": "print source locations",
    "mlir-use-nameloc-as-prefix": "print values under the names of their locations",
    "mlir-timing": "print the time of every pass to stderr",
    "allow-unregistered-dialect": "take ops of dialects that are not known",
    "memory-report": "print the planned memory of every function to stderr",
    "list-passes": "list gradopt's passes and pipelines",
    "list-ops": "list the ops of the dialect and what each of them has",
    "json": "print tables as JSON",
}


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """The parsed command line, with `passes` in order. Flags that are not known are taken for MLIR
    passes.
    """
    parser = argparse.ArgumentParser(
        prog="gradopt-opt", description=DESCRIPTION, epilog=EPILOG, allow_abbrev=False
    )
    files = "a file of MLIR text or bytecode; - for stdin (default)"
    parser.add_argument("input", nargs="?", default="-", help=files)
    result = "where to write the result; - for stdout (default)"
    parser.add_argument("-o", dest="output", default="-", help=result)
    for flag, text in FLAGS.items():
        parser.add_argument(f"--{flag}", action="store_true", help=text)
    plot = "draw the arena of the function with the largest, as .svg or .html; can be repeated"
    parser.add_argument("--memory-plot", action="append", metavar="FILE", default=[], help=plot)
    each = "verify after every pass (default: 1)"
    parser.add_argument("--verify-each", type=int, default=1, metavar="0|1", help=each)
    passes = parser.add_argument_group("passes, in the order to run them")
    pipelines = "passes as text, nesting and options included"
    passes.add_argument("--pass-pipeline", action="append", dest="passes", help=pipelines)
    for own in PASSES.values():
        options = " ".join(f"{k}={v}" for k, v in own.options.items())
        text = own.summary + (f" [options: {options}]" if options else "")
        passes.add_argument(f"--{own.name}", action="store_true", help=text)
    for name, steps in pipeline.PIPELINES.items():
        passes.add_argument(f"--{name}", action="store_true", help=f"the passes {steps}")
    parser.set_defaults(passes=[])
    return parser.parse_args(_passes_as_text(parser, sys.argv[1:] if argv is None else argv))


def _passes_as_text(parser: argparse.ArgumentParser, argv: list[str]) -> list[str]:
    """The command line with every pass flag, --cse or --gradopt-simplify=max-iterations=2, written
    as --pass-pipeline=..., which keeps their order and their options.
    """
    own = {*PASSES, *pipeline.PIPELINES}
    rewritten = []
    for word in argv:
        flag, equals, value = word.partition("=")
        is_pass = flag[2:] in own or flag not in parser._option_string_actions
        if word.startswith("--") and len(word) > 2 and is_pass:
            word = f"--pass-pipeline={flag[2:]}{f'{{{value}}}' if equals else ''}"
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
    try:
        results, faults = run.all_parts(source)
    except PipelineError as error:  # a pass does not know what it was told
        print(f"gradopt-opt: error: {error}", file=sys.stderr)
        return MISUSED
    if options.verify_diagnostics:
        return check_expected(source.text, source.name, faults)
    for fault in faults:
        print(_shown(fault, source), file=sys.stderr)
    if options.mlir_timing:
        print_table(timing_table(run.times), options.json, sys.stderr)
    if options.memory_report:
        _print_reports(run.reports, options.json)
    if not faults:
        outputs = {options.output: f"{SEPARATOR}\n".join(results), **_plots(options, run.reports)}
        for name, text in outputs.items():
            try:
                _write(name, text)
            except OSError as error:
                print(
                    f"gradopt-opt: error: cannot write '{name}': {error.strerror}",
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
        self.reports: list[MemoryReport] = []

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
            if self.options.memory_report or self.options.memory_plot:
                self.reports += map(report, plan_memory.planned(module))
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


def _print_reports(reports: list[MemoryReport], as_json: bool) -> None:
    if as_json:
        print(json.dumps([r.to_dict() for r in reports], indent=1), file=sys.stderr)
    else:
        print("\n".join(map(str, reports)), file=sys.stderr, end="")


def _plots(options: argparse.Namespace, reports: list[MemoryReport]) -> dict[str, str]:
    """The text of every picture that is asked for, by its file's name."""
    found = {}
    for name in options.memory_plot if reports else []:
        draw = memory_plot.page if name.endswith((".html", ".htm")) else memory_plot.svg
        found[name] = draw(max(reports, key=lambda r: r.peak))
    return found


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
