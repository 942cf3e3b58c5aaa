# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The command line of gradopt-compile."""

import argparse
import re
from collections.abc import Sequence
from typing import Any

from ..dialect.types import TensorSpec, as_dtype
from ..errors import CompileError, OpError
from ..lowering import pipeline
from ..lowering.rematerialize import POLICIES
from ..lowering.target import families, target
from ..runtime.pieces import EMITTED, RULES
from ..runtime.weights import FORMATS

DESCRIPTION = """\
Compile functions to an artifact: a folder with a module for each target, a manifest, the initial
values, and a loader, which trains and infers where neither gradopt nor a compiler is installed.

INPUT is MLIR text or bytecode in the gradopt dialect (- for stdin), or a Python function: its
module or file and its name, as package.module:function or file.py:function, with --input for the
type of each of its arguments. All public functions of a file are compiled as they are; with --emit,
functions are made of its loss and its prediction:

  infer   the prediction                  loss    the value of the loss
  grad    the loss, and its gradients     step    an update of parameters and optimizer state
  init    the optimizer's state as it is before the first step
"""
EXAMPLES = """\
examples:
  gradopt-compile model.mlir -o out/model
  gradopt-compile model.mlir --emit infer,step --parameters w,b --optimizer adamw \\
      --learning-rate 0.001 --weights initial.safetensors --target cpu,vulkan -o out/model
  gradopt-compile train.py:loss --emit step --parameters p --input p.w=4x2xfloat32 \\
      --input x=8x4xfloat32 --input y=8x2xfloat32 --learning-rate input -o out/model
  gradopt-compile model.mlir --stage linalg

exit status: 0 if all is written, 1 if the input is at fault or a target cannot be compiled for, 2
if the command line or a file is. Then nothing is written, and what stood in FOLDER is as it was."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="gradopt-compile",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("input", metavar="INPUT", help="a file, -, or module:function")
    made.add_argument(
        "-o",
        dest="output",
        metavar="FOLDER",
        help="the folder to write (default: INPUT's name), or the file with --stage (stdout)",
    )
    _what(made.add_argument_group("what to compile"))
    _optimizer(made.add_argument_group("the optimizer of step"))
    _how(made.add_argument_group("how to compile"))
    _written(made.add_argument_group("what is written"))
    return made


def _what(group: Any) -> None:
    add = group.add_argument
    add("--emit", type=_emitted, metavar="NAMES", help=f"functions out of {', '.join(EMITTED)}")
    add("--loss", metavar="NAME", help="the function that is the loss (loss, or the only one)")
    add("--infer", metavar="NAME", help="the prediction (infer or predict, or the only one)")
    add(
        "--parameters",
        type=_names,
        metavar="NAMES",
        default=[],
        help='arguments that are trained, beside those with gradopt.role = "parameter"; a name '
        "stands for all below it, as p for p.w",
    )
    add(
        "--state",
        type=_names,
        metavar="NAMES",
        default=[],
        help="arguments that are held, too, and not trained, such as running statistics; a result "
        "of the name of a held argument is its new value",
    )
    add(
        "--input",
        dest="input_types",
        type=_typed,
        action="append",
        default=[],
        metavar="NAME=TYPE",
        help="the type of an argument of a Python function, as x=?x8xfloat32, ? for an extent that "
        "is known only at run time",
    )
    add(
        "--dynamic",
        type=_dynamic,
        action="append",
        default=[],
        metavar="NAME:AXIS[=DIM]",
        help="an axis of an argument of a Python function whose extent is open; those of one DIM "
        "are equal",
    )
    add(
        "--dtype",
        type=_stored,
        action="append",
        default=[],
        metavar="[NAME=]DTYPE",
        help="the element type that an argument, or all floating-point parameters, are stored in; "
        "they are converted for computing, and back",
    )


def _optimizer(group: Any) -> None:
    add = group.add_argument
    add("--optimizer", choices=list(RULES), default="sgd", help="(default: sgd)")
    add(
        "--learning-rate",
        type=_rate,
        metavar="RATE",
        help="a number, or input for an argument learning_rate of step",
    )
    add("--weight-decay", type=float, metavar="X")
    add("--momentum", type=float, metavar="X", help="of momentum (0.9)")
    add("--nesterov", action="store_true", default=None, help="of momentum")
    add("--betas", type=_betas, metavar="X,Y", help="of adam, adamw (0.9,0.999), lion (0.9,0.99)")
    add("--eps", type=float, metavar="X", help="of adam, adamw, rmsprop, adagrad")
    add("--decay", type=float, metavar="X", help="of rmsprop (0.99)")


def _how(group: Any) -> None:
    add = group.add_argument
    names = ", ".join(name for name, family in families().items() if family.is_compiled)
    add(
        "--target",
        type=_targets,
        action="append",
        metavar="NAMES",
        help=f"what to compile for (cpu): {names}, or with a colon one of their variants, as "
        "cuda:sm_80",
    )
    add("--fat", action="store_true", help="one module for all targets, instead of one for each")
    flag = argparse.BooleanOptionalAction
    add(
        "--static-alloc",
        action=flag,
        default=True,
        help="functions allocate nothing where all extents are known",
    )
    add(
        "--donate",
        action=flag,
        default=True,
        help="new values take over the memory of the old ones",
    )
    less = group.add_mutually_exclusive_group()
    less.add_argument(
        "--memory-budget",
        metavar="SIZE",
        help="recompute so that grad and step need no more: 12MiB, or 0.5 of what they need",
    )
    less.add_argument("--remat", choices=sorted(POLICIES), help="recompute what a policy says")
    add(
        "--stage",
        choices=list(pipeline.STAGES),
        help="print the IR of INPUT at a stage, and write no artifact",
    )


def _written(group: Any) -> None:
    add = group.add_argument
    add("--name", help="the artifact's name (default: the folder's)")
    add("--weights", metavar="FILE", help="initial values by name, a safetensors file")
    add(
        "--weights-format",
        type=_formats,
        default=["safetensors"],
        metavar="NAMES",
        help=f"how they are written: {', '.join(FORMATS)} or none (default: safetensors)",
    )
    add("--licence", metavar="TEXT", help="of the weights")


# --- types of options -----------------------------------------------------------------------------


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _one_of(known: Sequence[str], text: str) -> list[str]:
    names = list(dict.fromkeys(_names(text)))
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(
                f"expected names out of {', '.join(known)}, got '{name}'"
            )
    return names


def _targets(text: str) -> list[str]:
    names = _names(text)
    for name in names:
        try:
            target(name)
        except CompileError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    return names


def _emitted(text: str) -> list[str]:
    return _one_of(EMITTED, text)


def _formats(text: str) -> list[str]:
    return [] if text == "none" else _one_of(list(FORMATS), text)


def _typed(text: str) -> tuple[str, TensorSpec]:
    name, _, kind = text.partition("=")
    *extents, dtype = kind.split("x")
    try:
        if not name or not all(re.fullmatch(r"\d+|\?", n) for n in extents):
            raise ValueError("it is none")
        shape = [None if n == "?" else int(n) for n in extents]
        return name, TensorSpec(shape, dtype)
    except (ValueError, TypeError) as error:
        raise argparse.ArgumentTypeError(
            f"expected NAME=TYPE such as x=?x8xfloat32 or rate=float32, got '{text}': {error}"
        ) from None


def _dynamic(text: str) -> tuple[str, int, str]:
    match = re.fullmatch(r"([^:=]+):(-?\d+)(?:=(\w+))?", text)
    if not match:
        raise argparse.ArgumentTypeError(f"expected NAME:AXIS=DIM such as x:0=batch, got '{text}'")
    return match[1], int(match[2]), match[3] or ""


def _stored(text: str) -> tuple[str, Any]:
    name, equals, dtype = text.rpartition("=")
    try:
        return name if equals else "", as_dtype(dtype)
    except (OpError, TypeError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _rate(text: str) -> float | str:
    return text if text == "input" else float(text)


def _betas(text: str) -> tuple[float, float]:
    try:
        first, second = map(float, text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected two numbers X,Y, got '{text}'") from None
    return first, second
