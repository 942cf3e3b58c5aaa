# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""gradopt-choose-forms: the form of every op that has several, written on the op (forms.py)."""

from collections.abc import Mapping
from typing import Any

from ..dialect.base import OPS, Op
from ..dialect.control import symbols
from ..dialect.mlir import ir
from ..errors import PipelineError
from .forms import ATTRIBUTE, FORMS, choices, form_of, group_of
from .passes import gradopt_pass


@gradopt_pass("gradopt-choose-forms")
def choose_forms(module: ir.Module, *, forms: str = "", wide_vectors: bool = False) -> None:
    """Write `gradopt.form` on the ops that are not lowered in their plain form, or not in that of
    the rules.

    An op that has the attribute keeps it. `forms` says which others get another form than the
    rules choose, as `conv=columns+sum.3f2a9c01d4e5=split-64`: the ops of a kind, or of a group; a
    form that is not right for an op of the kind is passed over. `wide-vectors` is for targets with
    vectors of 512 bits, for which some forms are the fastest.
    """
    asked = parsed(forms)
    for function in symbols(module).values():
        for op in [] if function.is_external else function.entry_block.operations:
            if not isinstance(op, Op):
                continue
            if valid := choices(op):
                form = _chosen(op, valid, asked, wide_vectors)
                if {form, form_of(op)} != {valid[0]}:
                    op.operation.attributes[ATTRIBUTE] = ir.StringAttr.get(form)
            elif ATTRIBUTE in op.operation.attributes:
                form_of(op)  # tells that it has none


def _chosen(op: Any, valid: list[str], asked: dict[str, str], wide: bool) -> str:
    if asked and ATTRIBUTE not in op.operation.attributes:
        for name in (group_of(op), op.MNEMONIC):
            if asked.get(name) in valid:
                return asked[name]
    return form_of(op, wide)


def parsed(text: str) -> dict[str, str]:
    """The forms by kind or group of the option's text. Raises PipelineError for unknown ones."""
    found = {}
    for entry in filter(None, text.split("+")):
        name, equals, form = entry.partition("=")
        kind = OPS.get(name.partition(".")[0])
        if kind not in FORMS or not equals:
            kinds = ", ".join(sorted(op.MNEMONIC for op in FORMS))
            raise _error(f"ops with forms, as conv=columns, out of: {kinds}", entry)
        known = FORMS[kind].all
        if form not in known and not ("split-N" in known and _is_split(form)):
            raise _error(f"a form of '{kind.MNEMONIC}' out of: {', '.join(known)}", form)
        found[name] = form
    return found


def _is_split(form: str) -> bool:
    return form.startswith("split-") and form.removeprefix("split-").isdigit()


def written(forms: Mapping[str, str]) -> str:
    """The text of the option for forms by kind or group."""
    return "+".join(f"{name}={form}" for name, form in sorted(forms.items()))


def _error(expected: str, got: str) -> PipelineError:
    return PipelineError(
        f"option 'forms' of pass 'gradopt-choose-forms' expected {expected}, got '{got}'"
    )
