# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The command gradopt-opt: what it reads, runs, prints and says when something is wrong."""

import io
import json
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from gradopt.dialect import reference
from gradopt.dialect.arithmetic import MulOp
from gradopt.dialect.base import OPS, new_context
from gradopt.dialect.mlir import ir
from gradopt.lowering.linalg.registry import BODIES
from gradopt.lowering.passes import PASSES, Pass
from gradopt.lowering.pipeline import PIPELINES
from gradopt.tools import opt

NEGATIONS = """\
func.func @f(%x: tensor<3xf32>) -> tensor<3xf32> {
  %0 = "gradopt.neg"(%x) : (tensor<3xf32>) -> tensor<3xf32>
  %1 = "gradopt.neg"(%0) : (tensor<3xf32>) -> tensor<3xf32>
  return %1 : tensor<3xf32>
}
"""

TWICE = """\
func.func @f(%x: tensor<3xf32>) -> tensor<3xf32> {
  %0 = "gradopt.exp"(%x) : (tensor<3xf32>) -> tensor<3xf32>
  %1 = "gradopt.exp"(%x) : (tensor<3xf32>) -> tensor<3xf32>
  %2 = "gradopt.mul"(%0, %1) : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
  return %2 : tensor<3xf32>
}
"""

WRONG_SHAPE = """\
func.func @f(%x: tensor<2xf32>, %y: tensor<3xf32>) -> tensor<2xf32> {
  %0 = "gradopt.add"(%x, %y) : (tensor<2xf32>, tensor<3xf32>) -> tensor<2xf32>
  return %0 : tensor<2xf32>
}
"""

# f = sum of x^4; @slope is its gradient, and contains a vjp itself.
QUARTIC = """\
!v = tensor<3xf64>
!s = tensor<f64>
func.func private @f(%x: !v {gradopt.name = "x"}) -> !s {
  %0 = "gradopt.square"(%x) : (!v) -> !v
  %1 = "gradopt.mul"(%0, %0) : (!v, !v) -> !v
  %2 = "gradopt.sum"(%1) {axes = array<i64: 0>} : (!v) -> !s
  return %2 : !s
}
func.func @slope(%x: !v) -> !v {
  %one = "gradopt.constant"() {value = dense<1.0> : !s} : () -> !s
  %vjp = "gradopt.vjp"() {callee = @f, wrt = array<i64: 0>} : () -> ((!v, !s) -> (!s, !v))
  %r:2 = call_indirect %vjp(%x, %one) : (!v, !s) -> (!s, !v)
  return %r#1 : !v
}
"""


class Done(NamedTuple):
    """What a run of the command left behind."""

    status: Any
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command, in process: its arguments, and the text on its standard input."""

    def command(*argv: Any, text: str = "") -> Done:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        try:
            status = opt.main([str(a) for a in argv])
        except SystemExit as stop:
            status = stop.code
        return Done(status, *capsys.readouterr())

    return command


def mnemonics(text: str) -> list[str]:
    """The gradopt ops of a text, in order."""
    return re.findall(r'"gradopt\.(\w+)"', text)


# --- input and output -----------------------------------------------------------------------------


def test_reads_stdin_and_files(run: Run, tmp_path: pathlib.Path) -> None:
    """Text comes from stdin, by default or as `-`, or from a file; the output is the same."""
    path = tmp_path / "f.mlir"
    path.write_text(NEGATIONS)
    piped = run(text=NEGATIONS)
    assert (piped.status, piped.err) == (0, "")
    assert mnemonics(piped.out) == ["neg", "neg"]
    assert run("-", text=NEGATIONS) == run(path) == piped


def test_reads_bytecode(run: Run, tmp_path: pathlib.Path) -> None:
    """A file of MLIR bytecode gives what its text gives."""
    path = tmp_path / "f.mlirbc"
    with new_context(), path.open("wb") as file:
        ir.Module.parse(NEGATIONS).operation.write_bytecode(file)
    assert run(path) == run(text=NEGATIONS)


def test_writes_a_file(run: Run, tmp_path: pathlib.Path) -> None:
    """-o writes what would be printed to a file, and prints nothing."""
    path = tmp_path / "out.mlir"
    done = run("-o", path, "--gradopt-simplify=", text=NEGATIONS)
    assert done == (0, "", "")
    assert path.read_text() == run("--gradopt-simplify=", text=NEGATIONS).out


def test_output_can_be_read_again(run: Run) -> None:
    """The text printed is a fixed point: parsed and printed again, it is the same."""
    text = run("--gradopt-differentiate", "--gradopt-inline", text=QUARTIC).out
    assert run(text=text).out == text
    text = run("--gradopt-lower", text=QUARTIC).out
    assert run("--allow-unregistered-dialect", text=text).out == text


def test_same_input_same_output(run: Run) -> None:
    """Passes are deterministic."""
    assert run("--gradopt-lower", text=QUARTIC) == run("--gradopt-lower", text=QUARTIC)


def test_console_script() -> None:
    """The installed command reads stdin, writes stdout and gives the exit status."""
    command = pathlib.Path(sys.executable).parent / "gradopt-opt"
    flags = [command, "--gradopt-simplify="]
    done = subprocess.run(flags, input=NEGATIONS, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert mnemonics(done.stdout) == []


# --- passes ---------------------------------------------------------------------------------------


def test_nested_pipeline_with_options(run: Run) -> None:
    """--pass-pipeline takes nesting and options; the option is seen: 0 iterations do nothing."""
    pipeline = "builtin.module(gradopt-simplify{{max-iterations={}}},func.func(cse,canonicalize))"
    idle = run(f"--pass-pipeline={pipeline.format(0)}", text=NEGATIONS)
    busy = run(f"--pass-pipeline={pipeline.format(1)}", text=NEGATIONS)
    assert (idle.status, mnemonics(idle.out)) == (0, ["neg", "neg"])
    assert (busy.status, mnemonics(busy.out)) == (0, [])


def test_flag_with_options(run: Run) -> None:
    """A pass flag takes options after `=`."""
    idle = run("--gradopt-simplify=max-iterations=0", text=NEGATIONS)
    assert (idle.status, mnemonics(idle.out)) == (0, ["neg", "neg"])


def test_flag_before_the_file(run: Run, tmp_path: pathlib.Path) -> None:
    """A file may stand behind a pass flag: it is not taken for the flag's options."""
    path = tmp_path / "f.mlir"
    path.write_text(NEGATIONS)
    done = run("--gradopt-simplify", path)
    assert (done.status, mnemonics(done.out), done.err) == (0, [], "")


def test_mlir_passes_are_flags(run: Run) -> None:
    """Every pass of MLIR is a flag, with options too: cse merges what simplify need not touch."""
    assert mnemonics(run("--cse", text=TWICE).out) == ["exp", "mul"]
    assert mnemonics(run("--canonicalize=max-iterations=1", text=TWICE).out) == [
        "exp",
        "exp",
        "mul",
    ]


def test_flags_run_in_order(run: Run) -> None:
    """Passes run in the order of the command line, flags and pipelines mixed; the IR is shown on
    stderr after each.
    """
    flags = (
        "--cse",
        "--pass-pipeline=func.func(canonicalize),gradopt-inline",
        "--gradopt-simplify=",
    )
    done = run("--mlir-print-ir-after-all", *flags, text=TWICE)
    dumps = re.findall(r"^// -----// IR Dump After (.*) //----- //$", done.err, re.MULTILINE)
    assert dumps == ["cse", "func.func(canonicalize)", "gradopt-inline", "gradopt-simplify"]
    first = done.err.split("// -----// IR Dump After")[1]
    assert mnemonics(first) == ["exp", "mul"]
    assert "IR Dump" not in done.out


def test_pipeline_names_stand_for_their_passes(run: Run) -> None:
    """--gradopt-lower is the list of passes that --list-passes says it is."""
    one = run("--gradopt-lower", text=QUARTIC)
    many = run(f"--pass-pipeline={PIPELINES['gradopt-lower']}", text=QUARTIC)
    assert one == many
    assert (one.status, mnemonics(one.out)) == (0, [])


def test_timing(run: Run) -> None:
    """--mlir-timing tells every pass's seconds and share on stderr, as a table or JSON."""
    flags = ("--mlir-timing", "--cse", "--gradopt-simplify=")
    table = run(*flags, text=TWICE)
    assert re.search(r"^Execution time", table.err)
    assert re.findall(r"^(\S+) +\d+\.\d{4} +\d+\.\d *$", table.err, re.MULTILINE) == [
        "cse", "gradopt-simplify", "total",
    ]  # fmt: skip
    rows = json.loads(run(*flags, "--json", text=TWICE).err)
    assert [row["pass"] for row in rows] == ["cse", "gradopt-simplify", "total"]
    assert sum(float(row["seconds"]) for row in rows[:-1]) == pytest.approx(
        float(rows[-1]["seconds"]), abs=2e-4
    )


def test_locations_are_printed(run: Run) -> None:
    """--mlir-print-debuginfo prints where ops come from; with --mlir-use-nameloc-as-prefix values
    are called what their locations are.
    """
    text = NEGATIONS.replace("tensor<3xf32>\n  %1", 'tensor<3xf32> loc("minus")\n  %1')
    assert re.search(r'loc\("minus"\)', run("--mlir-print-debuginfo", text=text).out)
    assert re.search(r'%minus = "gradopt.neg"', run("--mlir-use-nameloc-as-prefix", text=text).out)


# --- parts ----------------------------------------------------------------------------------------


def test_split_input_file(run: Run) -> None:
    """Parts are run on their own, and printed with the same line between them."""
    done = run("--split-input-file", "--cse", text=f"{NEGATIONS}// -----\n{TWICE}")
    first, second = done.out.split("// -----\n")
    assert done.status == 0
    assert (mnemonics(first), mnemonics(second)) == (["neg", "neg"], ["exp", "mul"])


def test_split_input_file_counts_lines_of_the_whole(run: Run) -> None:
    """Errors in later parts are told at their line of the whole input, with that line."""
    text = f"{NEGATIONS}// -----\n{WRONG_SHAPE}// -----\n{WRONG_SHAPE}"
    done = run("--split-input-file", text=text)
    assert (done.status, done.out) == (1, "")
    shown = re.findall(
        r"<stdin>:(\d+):8: error: 'gradopt.add' .*\n  %0 = \"gradopt.add\"", done.err
    )
    assert shown == ["8", "13"]


def test_verify_diagnostics(run: Run) -> None:
    """Expected errors are matched by line and text; what is missing or surprising is told."""
    comment = "  // expected-error@+1 {{expected operands of one type}}\n"
    first, rest = WRONG_SHAPE.split("\n", 1)
    assert run("--verify-diagnostics", text=f"{first}\n{comment}{rest}") == (0, "", "")
    missing = run("--verify-diagnostics", text=f"{comment}{NEGATIONS}")
    message = 'expected error "expected operands of one type" was not produced'
    assert missing == (1, "", f"<stdin>:2: error: {message}\n")
    twice = "  // expected-error@+1 {{one type}} expected-error@+1 {{operands}}\n"
    missing = run("--verify-diagnostics", text=f"{first}\n{twice}{rest}")
    message = 'expected error "operands" was not produced'
    assert missing == (1, "", f"<stdin>:3: error: {message}\n")
    surprising = run("--verify-diagnostics", text=WRONG_SHAPE)
    first, second = surprising.err.splitlines()
    assert surprising.status == 1
    assert first.startswith("<stdin>:2:8: error: 'gradopt.add' op expected")
    assert second == "<stdin>:2: error: unexpected error"


# --- lists ----------------------------------------------------------------------------------------


def test_list_ops(run: Run) -> None:
    """Every op is listed, and none lacks a gradient rule (or the statement that there is none), a
    reference or a lowering.
    """
    done = run("--list-ops", "--json")
    rows = json.loads(done.out)
    assert done.status == 0
    assert [row["op"] for row in rows] == sorted(OPS)
    assert len(rows) >= 90
    assert "MISSING" not in done.out
    assert all(row["summary"] for row in rows)
    title = run("--list-ops").out.splitlines()[0]
    assert title.rstrip() == f"{len(rows)} ops of the gradopt dialect, 0 with a gap"


def test_list_ops_shows_gaps(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing rule and a missing lowering are seen."""
    monkeypatch.delattr(MulOp, "vjp")
    monkeypatch.delitem(BODIES, MulOp)
    rows = {row["op"]: row for row in json.loads(run("--list-ops", "--json").out)}
    assert (rows["mul"]["gradient"], rows["mul"]["lowering"]) == ("MISSING", "MISSING")


def test_list_passes(run: Run) -> None:
    """Every gradopt pass and pipeline is listed, with its options and a sentence."""
    rows = {row["pass"]: row for row in json.loads(run("--list-passes", "--json").out)}
    assert set(rows) == {*PASSES, *PIPELINES}
    assert rows["gradopt-simplify"]["options"] == "max-iterations=4"
    assert all(row["summary"] for row in rows.values())


def test_help_names_every_pass(run: Run) -> None:
    """--help has a line for every gradopt pass, and says what the exit status means."""
    done = run("--help")
    assert done.status == 0
    assert all(f"--{name}" in done.out for name in (*PASSES, *PIPELINES))
    assert "Exit status: 0 done, 1 the input or a pass is at fault" in " ".join(done.out.split())


# --- what is said of a fault in the input ---------------------------------------------------------


def test_wrong_shape(run: Run, tmp_path: pathlib.Path) -> None:
    """What, where, expected, got, what to do; the line, and a mark under the place."""
    path = tmp_path / "f.mlir"
    path.write_text(WRONG_SHAPE)
    done = run("--gradopt-simplify=", path)
    assert done == (1, "", f"""\
{path}:2:8: error: 'gradopt.add' op expected operands of one type, got tensor<2xf32> and \
tensor<3xf32>; broadcast or convert one of them
  %0 = "gradopt.add"(%x, %y) : (tensor<2xf32>, tensor<3xf32>) -> tensor<2xf32>
       ^
""")  # fmt: skip


@pytest.mark.parametrize(
    ("op", "hint"),
    [("sine", "did you mean 'gradopt.sin'? "), ("xyzzy", "")],
)
def test_unknown_op(run: Run, op: str, hint: str) -> None:
    """An op that the dialect does not have, with the one that may be meant."""
    done = run(text=NEGATIONS.replace("gradopt.neg", f"gradopt.{op}"))
    assert done.status == 1
    assert done.err.splitlines()[0] == (
        f"<stdin>:2:8: error: expected an op of the gradopt dialect, got 'gradopt.{op}'; {hint}"
        "gradopt-opt --list-ops shows them all"
    )


def test_syntax_error(run: Run) -> None:
    """MLIR's own errors are shown the same way."""
    done = run(text=NEGATIONS.replace("return %1", "return %2"))
    fault = "<stdin>:4:10: error: use of undeclared SSA value name\n"
    assert done == (1, "", f"{fault}  return %2 : tensor<3xf32>\n         ^\n")


@pytest.mark.parametrize("use", ["%1 = gradopt.neg %0 :", "gradopt.neg(%0) :", "  gradopt.neg"])
def test_custom_form(run: Run, use: str) -> None:
    """MLIR refuses it without a word."""
    done = run(text=f"{NEGATIONS}func.func @g(%0: tensor<3xf32>) {{\n{use} tensor<3xf32>\n}}\n")
    line, column = NEGATIONS.count("\n") + 2, use.index("gradopt") + 1
    expected = 'expected an op in generic form, "gradopt.neg"(...) {...} : (...) -> ..., got'
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith(f"<stdin>:{line}:{column}: error: {expected} 'gradopt.neg'")


def test_location_in_another_file(run: Run) -> None:
    """A fault at a location in another file is told there, without a line of the input."""
    text = WRONG_SHAPE.replace(
        "-> tensor<2xf32>\n  return", '-> tensor<2xf32> loc("model.py":1:5)\n  return'
    )
    done = run(text=text)
    assert done.status == 1
    assert re.fullmatch(
        r"model\.py:1:5: error: 'gradopt\.add' op expected .* one of them\n", done.err
    )


def test_missing_gradient_rule(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """B53: an op without a gradient rule is an error where a cotangent reaches it."""
    monkeypatch.delattr(MulOp, "vjp")
    done = run("--gradopt-differentiate", text=QUARTIC)
    assert done == (1, "", """\
<stdin>:5:8: error: 'gradopt.mul' op expected a gradient rule, got none; define `vjp` on its \
class, or keep it out with stop_gradient
  %1 = "gradopt.mul"(%0, %0) : (!v, !v) -> !v
       ^
""")  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "fault"),
    [
        (lambda self, ct: [ct], "2 entries, got 1"),
        (lambda self, ct: [ct, ct.sum()], r"tensor<3xf64> for operand 1, got tensor<f64>"),
    ],
)
def test_wrong_gradient_rule(
    run: Run, monkeypatch: pytest.MonkeyPatch, rule: Any, fault: str
) -> None:
    """A rule must give an entry of the operand's type, or None, for every operand."""
    monkeypatch.setattr(MulOp, "vjp", rule)
    done = run("--gradopt-differentiate", text=QUARTIC)
    assert done.status == 1
    assert done.err.splitlines()[0] == (
        f"<stdin>:5:8: error: 'gradopt.mul' op expected its gradient rule to give {fault}"
    )


def test_missing_lowering(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """An op without a lowering is told before anything is lowered."""
    monkeypatch.delitem(BODIES, MulOp)
    done = run("--convert-gradopt-to-linalg", text=TWICE)
    assert (done.status, done.out) == (1, "")
    assert done.err.splitlines()[0] == (
        "<stdin>:4:8: error: 'gradopt.mul' op expected a lowering to linalg, got none"
    )


def test_integer_input(run: Run) -> None:
    """B56: a gradient by an integer input is an error with the input's name and dtype."""
    text = QUARTIC.replace('!v {gradopt.name = "x"}', '!v, %n: tensor<i32> {gradopt.name = "n"}')
    done = run(
        "--gradopt-differentiate", text=text.replace("array<i64: 0>} : ()", "array<i64: 1>} : ()")
    )
    assert done.status == 1
    assert done.err.splitlines()[0] == (
        "<stdin>:11:10: error: 'gradopt.vjp' op expected floating-point inputs, got input 'n' of "
        "@f with dtype int32; integers and booleans have no gradient"
    )


def test_verify_each(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The IR is verified after every pass, and a pass that breaks it is found; --verify-each=0 does
    not look.
    """
    monkeypatch.setitem(PASSES, "gradopt-break", Pass("gradopt-break", break_module, "Break.", {}))
    done = run("--gradopt-break", text=TWICE)
    assert (done.status, done.out) == (1, "")
    assert re.match(
        r"<stdin>:2:8: error: 'gradopt\.exp' op expected .*: none, got 'fast'\n", done.err
    )
    assert run("--gradopt-break", "--verify-each=0", text=TWICE).status == 0


def break_module(module: ir.Module) -> None:
    """A pass that gives an op an attribute that it does not have."""
    function = module.body.operations[0]
    function.entry_block.operations[0].attributes["fast"] = ir.UnitAttr.get()


# --- what is said of a fault in the command line --------------------------------------------------


MALFORMED = {
    "builtin.module(cse": "expected ')', got its end at character 19 of 'builtin.module(cse'",
    "func.func(cse]": "expected ')', got ']' at character 14 of 'func.func(cse]'",
    "cse,": "expected a pass or op name, got its end at character 5 of 'cse,'",
    ",cse": "expected a pass or op name, got ',cse' at character 1 of ',cse'",
    "cse)": "expected ',' or its end, got ')' at character 4 of 'cse)'",
    "cse}": "expected ',' or its end, got '}' at character 4 of 'cse}'",
    "func.func(cse)x": "expected ',' or its end, got 'x' at character 15 of 'func.func(cse)x'",
    "cse{a=1": "expected '}', got its end, in 'cse{a=1'",
}


@pytest.mark.parametrize("pipeline", MALFORMED)
def test_malformed_pipeline(run: Run, pipeline: str) -> None:
    """A pipeline that cannot be read: what was expected, what came, at which character of what."""
    done = run(f"--pass-pipeline={pipeline}", text=NEGATIONS)
    assert done == (2, "", f"gradopt-opt: error: pipeline {MALFORMED[pipeline]}\n")


LIST = "--list-passes shows gradopt's passes"
MISUSED = {
    "--gradopt-simplfy": "pipeline step 'gradopt-simplfy': 'gradopt-simplfy' does not refer to a "
    f"registered pass or pass pipeline; did you mean 'gradopt-simplify'? {LIST}",
    "--xyzzy": "pipeline step 'xyzzy': 'xyzzy' does not refer to a registered pass or pass "
    f"pipeline; {LIST}",
    "--gradopt-simplify=rounds=2": "pass 'gradopt-simplify' expected options out of: "
    "max-iterations, got 'rounds'",
    "--gradopt-inline=deep": "pass 'gradopt-inline' expected options out of: none, got 'deep'",
    "--gradopt-simplify=max-iterations=few": "option 'max-iterations' of pass 'gradopt-simplify' "
    "expected int, got 'few'",
    "--gradopt-simplify=max-iterations": "option 'max-iterations' of pass 'gradopt-simplify' "
    "expected int, got 'true'",
    "--cse=rounds=2": "pipeline step 'cse{rounds=2}': <Pass-Options-Parser>: no such option "
    f"rounds; {LIST}",
    "--pass-pipeline=func.func(gradopt-simplify)": "pass 'gradopt-simplify' expected to run on "
    "builtin.module, got nested in 'func.func'; move it out",
}


@pytest.mark.parametrize("flag", MISUSED)
def test_unknown_pass_or_option(run: Run, flag: str) -> None:
    """Passes and options that do not exist, values that do not fit, passes at the wrong place."""
    assert run(flag, text=NEGATIONS) == (2, "", f"gradopt-opt: error: {MISUSED[flag]}\n")


def test_pass_that_nests_passes(run: Run) -> None:
    done = run("--pass-pipeline=gradopt-simplify(cse)", text=NEGATIONS)
    expected = "pass 'gradopt-simplify' expected no nested passes, got 'gradopt-simplify(cse)'"
    assert done == (2, "", f"gradopt-opt: error: {expected}\n")


def test_options_of_a_pipeline_name(run: Run) -> None:
    """A name that stands for several passes has no options: they are not dropped in silence."""
    done = run("--gradopt-lower=max-iterations=1", text=NEGATIONS)
    assert (done.status, done.out) == (2, "")
    assert re.match(r"gradopt-opt: error: .*'gradopt-lower' .*'max-iterations(=1)?'", done.err)


def test_missing_file(run: Run, tmp_path: pathlib.Path) -> None:
    """A file that is not there."""
    path = tmp_path / "none.mlir"
    message = f"gradopt-opt: error: cannot read '{path}': No such file or directory\n"
    assert run(path) == (2, "", message)


def test_directory(run: Run, tmp_path: pathlib.Path) -> None:
    """A directory instead of a file."""
    message = f"gradopt-opt: error: cannot read '{tmp_path}': Is a directory\n"
    assert run(tmp_path) == (2, "", message)


def test_bytes_that_are_no_text(run: Run, tmp_path: pathlib.Path) -> None:
    """A file that is neither UTF-8 nor bytecode: the input is at fault, at a place."""
    path = tmp_path / "noise.mlir"
    path.write_bytes(b"func\xff")
    done = run(path)
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith(f"{path}:1:5: error: unexpected character\n")


def test_output_that_cannot_be_written(run: Run, tmp_path: pathlib.Path) -> None:
    """An output file in a folder that is not there."""
    path = tmp_path / "none" / "out.mlir"
    message = f"gradopt-opt: error: cannot write '{path}': No such file or directory\n"
    assert run("-o", path, text=NEGATIONS) == (2, "", message)


# --- the promise: derivatives of any order, asked for in text -------------------------------------

HESSIAN = {
    "reverse over reverse": """
func.func @hvp(%x: !v, %v: !v) -> !v {
  %vjp = "gradopt.vjp"() {callee = @slope, wrt = array<i64: 0>} : () -> ((!v, !v) -> (!v, !v))
  %r:2 = call_indirect %vjp(%x, %v) : (!v, !v) -> (!v, !v)
  return %r#1 : !v
}
""",
    "forward over reverse": """
func.func @hvp(%x: !v, %v: !v) -> !v {
  %jvp = "gradopt.jvp"() {callee = @slope, wrt = array<i64: 0>} : () -> ((!v, !v) -> (!v, !v))
  %r:2 = call_indirect %jvp(%x, %v) : (!v, !v) -> (!v, !v)
  return %r#1 : !v
}
""",
    "reverse over forward": """
func.func @directional(%x: !v, %v: !v) -> !s {
  %jvp = "gradopt.jvp"() {callee = @f, wrt = array<i64: 0>} : () -> ((!v, !v) -> (!s, !s))
  %r:2 = call_indirect %jvp(%x, %v) : (!v, !v) -> (!s, !s)
  return %r#1 : !s
}
func.func @hvp(%x: !v, %v: !v) -> !v {
  %one = "gradopt.constant"() {value = dense<1.0> : !s} : () -> !s
  %vjp = "gradopt.vjp"() {callee = @directional, wrt = array<i64: 0>}
      : () -> ((!v, !v, !s) -> (!s, !v))
  %r:2 = call_indirect %vjp(%x, %v, %one) : (!v, !v, !s) -> (!s, !v)
  return %r#1 : !v
}
""",
}

EXPAND = ("--gradopt-differentiate", "--gradopt-inline", "--symbol-dce")


def evaluate(text: str, name: str, *arrays: np.ndarray) -> np.ndarray:
    """The only result of a function of a text, by the NumPy reference."""
    with new_context():
        (result,) = reference.run(ir.Module.parse(text), name, *arrays)
    return result


@pytest.mark.parametrize("order", HESSIAN)
def test_second_derivative(run: Run, order: str) -> None:
    """B55: the Hessian of sum x^4 times v is 12 x^2 v, in every nesting of the two modes."""
    done = run(*EXPAND, text=QUARTIC + HESSIAN[order])
    assert (done.status, done.err) == (0, "")
    assert not re.search(r"gradopt\.[vj]vp|call|private", done.out)
    x, v = np.array([0.5, -2.0, 3.0]), np.array([1.0, 0.25, -2.0])
    np.testing.assert_allclose(evaluate(done.out, "slope", x), 4 * x**3, rtol=1e-14)
    np.testing.assert_allclose(evaluate(done.out, "hvp", x, v), 12 * x**2 * v, rtol=1e-14)


def test_third_derivative(run: Run) -> None:
    """B55: the derivative of the Hessian-vector product is 24 x v w; simplified, it still is."""
    third = """
func.func @third(%x: !v, %v: !v, %w: !v) -> !v {
  %vjp = "gradopt.vjp"() {callee = @hvp, wrt = array<i64: 0>} : () -> ((!v, !v, !v) -> (!v, !v))
  %r:2 = call_indirect %vjp(%x, %v, %w) : (!v, !v, !v) -> (!v, !v)
  return %r#1 : !v
}
"""
    text = QUARTIC + HESSIAN["reverse over reverse"] + third
    x, v, w = np.array([0.5, -2.0, 3.0]), np.array([1.0, 0.25, -2.0]), np.array([3.0, 1.0, -1.0])
    for flags in (EXPAND, (*EXPAND, "--gradopt-simplify=")):
        done = run(*flags, text=text)
        assert (done.status, done.err) == (0, "")
        np.testing.assert_allclose(evaluate(done.out, "third", x, v, w), 24 * x * v * w, rtol=1e-14)


def test_gradients_of_several_uses(run: Run) -> None:
    """B50: what is used in several places gets the sum of all contributions; other inputs none."""
    text = """
!v = tensor<3xf64>
func.func private @f(%x: !v, %y: !v) -> !v {
  %0 = "gradopt.mul"(%x, %x) : (!v, !v) -> !v
  %1 = "gradopt.mul"(%0, %y) : (!v, !v) -> !v
  %2 = "gradopt.add"(%1, %x) : (!v, !v) -> !v
  return %2 : !v
}
func.func @g(%x: !v, %y: !v, %ct: !v) -> !v {
  %vjp = "gradopt.vjp"() {callee = @f, wrt = array<i64: 0>} : () -> ((!v, !v, !v) -> (!v, !v))
  %r:2 = call_indirect %vjp(%x, %y, %ct) : (!v, !v, !v) -> (!v, !v)
  return %r#1 : !v
}
"""
    x, y, ct = np.array([0.5, -2.0, 3.0]), np.array([1.0, 0.25, -2.0]), np.array([3.0, 1.0, -1.0])
    done = run(*EXPAND, text=text)
    np.testing.assert_allclose(evaluate(done.out, "g", x, y, ct), ct * (2 * x * y + 1), rtol=1e-14)
