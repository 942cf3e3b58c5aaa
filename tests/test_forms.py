# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Forms: all of them give the same values, rules choose them, attributes and options override the
rules, and wrong names are errors.
"""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import gradopt as go
import numpy as np
import pytest
from gradopt.dialect.base import Op, new_context
from gradopt.dialect.control import symbols
from gradopt.dialect.graph import Graph, trace
from gradopt.dialect.mlir import ir
from gradopt.errors import PassError, PipelineError
from gradopt.lowering import forms, pipeline
from gradopt.lowering.choose_forms import parsed, written
from gradopt.lowering.target import target
from gradopt.runtime.binding import bind
from gradopt.tools import opt

from .form_cases import FORM_CASES, FormCase
from .helpers import CPU, run_reference, spec

JIT = target("jit")


def ops_of(graph: Graph) -> list[Any]:
    """The ops of a graph that have forms, as the lowering finds them."""
    graph.finish()
    with graph.context:
        for passes in list(pipeline.STAGES.values())[:3]:
            pipeline.run(graph.module, passes)
        ops = list(symbols(graph.module)[graph.name].entry_block.operations)
        return [op for op in ops if isinstance(op, Op) and forms.choices(op)]


def shown(fn: Callable[..., Any], *shapes: tuple[int, ...], options: str = "") -> str:
    graph = trace(fn, *(go.TensorSpec(s) for s in shapes))
    with graph.context:
        pipeline.run(graph.module, f"gradopt-choose-forms{options}")
    return graph.mlir()


@pytest.mark.parametrize("case", FORM_CASES, ids=str)
def test_all_forms_give_the_same_values(case: FormCase) -> None:
    graph = trace(case.fn, *map(spec, case.arrays))
    simplified = trace(case.fn, *map(spec, case.arrays))
    (op,) = [op for op in ops_of(simplified) if case.is_of(op)]
    assert forms.choices(op) == list(case.forms)
    want, texts = run_reference(case.fn, *case.arrays), set()
    for form in case.forms:
        chosen = dataclasses.replace(JIT, forms=f"{case.op}={form}")
        got = bind(graph, chosen)(list(case.arrays))
        for a, b in zip(got if isinstance(got, tuple) else [got], want, strict=True):
            np.testing.assert_allclose(np.asarray(a), b, rtol=2e-5, atol=1e-4, err_msg=form)
        texts.add(
            str(pipeline.lower(graph.module, dataclasses.replace(CPU, forms=chosen.forms))[0])
        )
    assert len(texts) == len(case.forms)


def test_every_form_is_in_a_case() -> None:
    tried = {
        (c.op, "split-N" if f.startswith("split-") else f) for c in FORM_CASES for f in c.forms
    }
    for op_class, known in forms.FORMS.items():
        if op_class not in forms.REDUCTIONS or op_class.MNEMONIC in ("sum", "normalize"):
            assert {(op_class.MNEMONIC, f) for f in known.all} - {("normalize", "split-N")} <= tried


def test_rules_choose_valid_forms() -> None:
    for case in FORM_CASES:
        graph = trace(case.fn, *map(spec, case.arrays))
        for op in ops_of(graph):
            for wide in (False, True):
                assert forms.form_of(op, wide) in forms.choices(op, wide)


def test_what_is_not_plain_is_written_on_the_op() -> None:
    text = shown(lambda x: (x.sum(axis=0), x.sum(axis=1)), (16384, 8))
    assert text.count("gradopt.form") == 1
    assert 'axes = array<i64: 0>, gradopt.form = "split-' in text


def test_options_choose_for_kinds_and_groups() -> None:
    def fn(x: Any, y: Any) -> Any:
        return x.sum(axis=0), y.sum(axis=0)

    shapes = (16384, 8), (4096, 4)
    assert shown(fn, *shapes, options="{forms=sum=split-256}").count('"split-256"') == 2
    graph = trace(fn, *(go.TensorSpec(s) for s in shapes))
    group = forms.group_of(ops_of(graph)[1])
    text = shown(fn, *shapes, options=f"{{forms={group}=split-256+sum=split-64}}")
    assert text.count('"split-256"') == text.count('"split-64"') == 1
    assert text.index('"split-64"') < text.index('"split-256"')


@pytest.mark.parametrize(
    ("fn", "shapes", "count"),
    [
        (lambda a, b: a @ b, ((128, 64), (64, 256)), 1),
        (lambda a, b: a @ b.T, ((128, 64), (256, 64)), 1),
        (lambda a, b: a @ b, ((128, 64), (64, 1)), 0),
        (lambda a, b: a @ b, ((128, 4096), (4096, 4096)), 0),
        (lambda a, b: a @ b, ((16, 4096), (4096, 4096)), 1),
        (lambda a, b: a.astype("bfloat16") @ b.astype("bfloat16"), ((16, 16), (16, 16)), 0),
        (lambda a, b: go.conv(a, b), ((2, 8, 8, 16), (1, 3, 16, 16)), 1),
        (lambda a, b: go.conv(a, b), ((2, 8, 8, 16), (3, 3, 16, 16)), 0),
    ],
)
def test_direct_forms_are_for_wide_vectors(
    fn: Callable[..., Any], shapes: tuple[tuple[int, ...], ...], count: int
) -> None:
    wide = shown(fn, *shapes, options="{wide-vectors=true}")
    assert wide.count('gradopt.form = "direct"') == count
    assert "direct" not in shown(fn, *shapes)


def test_targets_with_wide_vectors() -> None:
    wide = [n for n in ("x86-64-v3", "x86-64-v4", "znver4", "aarch64") if is_wide(f"cpu:{n}")]
    assert wide == ["x86-64-v4", "znver4"]
    assert not is_wide("vulkan")
    assert not is_wide("cuda")
    assert "wide-vectors=true" in pipeline.stages(target("cpu:znver4"))["linalg"]
    assert "wide-vectors" not in pipeline.stages(target("cpu:haswell"))["linalg"]


def is_wide(name: str) -> bool:
    return target(name).wide_vectors


def test_an_attribute_wins() -> None:
    text = """
    func.func @f(%x: tensor<4096x4xf32>) -> tensor<4xf32> {
      %y = "gradopt.sum"(%x) {axes = array<i64: 0>, gradopt.form = "FORM"}
        : (tensor<4096x4xf32>) -> tensor<4xf32>
      return %y : tensor<4xf32>
    }"""
    run = "gradopt-choose-forms{forms=sum=split-64},convert-gradopt-to-linalg"
    with new_context():
        module = ir.Module.parse(text.replace("FORM", "split-256"))
        pipeline.run(module, run)
        assert "tensor<256x16x4xf32>" in str(module)
        module = ir.Module.parse(text.replace("FORM", "halves"))
        expected = (
            r"'gradopt.sum' op expected gradopt.form to be one of whole, split-16, split-64, "
            r"split-256, got 'halves'"
        )
        with pytest.raises(PassError, match=expected):
            pipeline.run(module, "convert-gradopt-to-linalg")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("conv=fast", "a form of 'conv' out of: named, columns, direct, grouped, got 'fast'"),
        ("sum=split-", "a form of 'sum' out of: whole, split-N, got 'split-'"),
        ("relu=named", "ops with forms, as conv=columns, out of: all, .*, got 'relu=named'"),
        ("conv", "ops with forms, as conv=columns, out of: all, .*, got 'conv'"),
    ],
)
def test_unknown_forms_are_errors(text: str, message: str) -> None:
    with pytest.raises(PipelineError, match=f"option 'forms' of pass .* expected {message}"):
        parsed(text)


def test_the_tool_tells_of_unknown_forms(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "empty.mlir"
    file.write_text("module {}")
    assert opt.main([str(file), "--gradopt-choose-forms=forms=conv=fast"]) == opt.MISUSED
    assert "gradopt-opt: error: option 'forms' of pass" in capsys.readouterr().err


def test_text_of_forms() -> None:
    chosen = {"sum.0123456789ab": "split-64", "conv": "columns"}
    assert written(chosen) == "conv=columns+sum.0123456789ab=split-64"
    assert parsed(written(chosen)) == chosen
    assert parsed("") == {}


def test_groups_are_equal_ops() -> None:
    def named(n: int, axis: int) -> tuple[str, str]:
        graph = trace(lambda x: x.sum(axis=axis) + 1, go.TensorSpec((n, n)))
        (op,) = ops_of(graph)
        return forms.group_of(op), forms.described(op)

    first, same, longer, other = (named(*a) for a in ((4, 0), (4, 0), (5, 0), (4, 1)))
    assert first == same
    assert len({group for group, _ in (first, longer, other)}) == 3
    assert first[1] == "sum(tensor<4x4xf32>) {axes = (0,)} -> tensor<4xf32>"
