# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Two targets on one program: the first op whose values differ, where it stands, by how much, and
which of the two is off.
"""

import argparse
import dataclasses
import importlib
import inspect
import pathlib
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ..dialect import trees
from ..dialect.base import Op, new_context
from ..dialect.control import is_public, symbols
from ..dialect.creation import as_array
from ..dialect.function_graph import FunctionGraph
from ..dialect.graph import Graph, trace
from ..dialect.mlir import ir
from ..dialect.types import TensorSpec, as_dtype, is_float
from ..errors import ArgumentError, GradoptError
from ..lowering.tap import TappedOp, Taps
from ..lowering.target import Target
from ..op_cases.rows import ulps
from ..runtime.binding import bind
from ..runtime.debug import describe
from ..runtime.monitor import OpName, tapped_graph
from ..runtime.present import check_present, find_target
from .source import read
from .tables import Table, print_table

TOLERANCE = 64.0
"""Units in the last place of the largest element that two targets may differ by: sums are made in
another order, and functions are approximated in another way.
"""
LARGEST_INTEGER = 4
"""Integers drawn at random are below it, so that they serve as indices and labels."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options about programs."""
    group = parser.add_argument_group("programs, with --against")
    group.add_argument(
        "--program",
        default="",
        metavar="FILE|MODULE:FUNCTION",
        help="an MLIR file in the gradopt dialect, or a Python function; one without arguments is "
        "called, and returns the function and its arguments. Run on both targets with every op's "
        "value recorded",
    )
    group.add_argument("--function", default="", help="the function of the file (default: the one)")
    group.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="ARRAY",
        help="an argument, in order: a .npy file, SHAPExDTYPE=VALUE such as 4x8xfloat32=0, or "
        "SHAPExDTYPE for random numbers, which are taken for those of a file that are not given",
    )
    group.add_argument("--seed", type=int, default=0, help="of random numbers (default: 0)")
    group.add_argument(
        "--tolerance",
        type=float,
        default=TOLERANCE,
        metavar="ULP",
        help=f"how far values may be apart (default: {TOLERANCE:g} units in the last place of the "
        "largest element; integers must be equal)",
    )


# --- the program ----------------------------------------------------------------------------------

Program = tuple[Graph | FunctionGraph, list[np.ndarray]]


def load(name: str, function: str, inputs: Sequence[str], seed: int) -> Program:
    """The graph of a program and its arguments, in order. Raises GradoptError or OSError."""
    rng = np.random.default_rng(seed)
    module, colon, attribute = name.partition(":")
    if colon and not pathlib.Path(name).exists():
        if function:
            raise ArgumentError("--function expected an MLIR file as --program, got a Python one")
        return _python(module, attribute, [array_of(text, rng) for text in inputs])
    source = read(name)
    with new_context():
        found = source.parse()
        graph = FunctionGraph(found, _only(found, function))
    if len(inputs) > len(graph.input_specs):
        names = ", ".join(graph.input_names)
        raise ArgumentError(f"--input expected at most the arguments {names}, got {len(inputs)}")
    given = [array_of(text, rng) for text in inputs]
    for argument, spec, array in zip(graph.input_names, graph.input_specs, given, strict=False):
        if not _fits(spec, array):
            got = TensorSpec(array.shape, array.dtype)
            raise ArgumentError(f"--input expected {spec} for argument '{argument}', got {got}")
    rest = graph.input_specs[len(given) :]
    return graph, given + [random_array(s.shape, s.dtype, rng) for s in rest]


def _fits(spec: TensorSpec, array: np.ndarray) -> bool:
    return (
        array.dtype == spec.dtype
        and len(array.shape) == len(spec.shape)
        and all(n in (None, m) for n, m in zip(spec.shape, array.shape, strict=True))
    )


def _only(module: ir.Module, name: str) -> str:
    """The function that is meant: the one named, or the only public one."""
    known = [n for n, f in symbols(module).items() if is_public(f)]
    if name in known:
        return name
    if len(known) == 1 and not name:
        return known[0]
    raise ArgumentError(
        f"--function expected one of {', '.join(known) or '(no public function)'}, got "
        f"{name or 'none'}"
    )


def _python(module: str, attribute: str, arrays: list[np.ndarray]) -> Program:
    sys.path.insert(0, "")
    try:
        fn: Any = importlib.import_module(module)
        for part in attribute.split("."):
            fn = getattr(fn, part)
    except (ImportError, AttributeError) as error:
        raise ArgumentError(f"--program expected MODULE:FUNCTION: {error}") from None
    finally:
        sys.path.remove("")
    arguments: Sequence[Any] = arrays
    if not arrays and _takes_nothing(fn):
        made = fn()
        if not (isinstance(made, tuple) and len(made) == 2 and callable(made[0])):
            raise ArgumentError(
                f"--program expected '{attribute}', which takes no arguments, to return a pair "
                f"(function, its arguments), got {made!r:.60}"
            )
        fn, arguments = made
    graph = trace(fn, *arguments)
    graph.finish()
    return graph, [as_array(x) for x in trees.leaves(tuple(arguments))]


def _takes_nothing(fn: Callable[..., Any]) -> bool:
    return all(
        p.default is not p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        for p in inspect.signature(fn).parameters.values()
    )


def array_of(text: str, rng: np.random.Generator) -> np.ndarray:
    """The array that an --input names."""
    kind, equals, value = text.partition("=")
    try:
        if not equals and text.endswith(".npy"):
            return np.load(text, allow_pickle=False)
        *extents, dtype = kind.split("x")
        shape, element = tuple(map(int, extents)), as_dtype(dtype)
        if not equals:
            return random_array(shape, element, rng)
        return np.full(shape, float(value) if is_float(element) else int(value), element)
    except (ValueError, OSError, GradoptError) as error:
        raise ArgumentError(
            f"--input expected a .npy file, SHAPExDTYPE=VALUE or SHAPExDTYPE, got '{text}': {error}"
        ) from None


def random_array(
    shape: Sequence[int | None], dtype: np.dtype, rng: np.random.Generator
) -> np.ndarray:
    """Normal numbers, or small integers. Raises ArgumentError for an unknown extent."""
    if any(n is None for n in shape):
        raise ArgumentError(
            f"expected --input for each argument with unknown extents, got none for {shape}"
        )
    known = [int(n) for n in shape if n is not None]
    if is_float(dtype):
        return np.asarray(rng.standard_normal(known)).astype(dtype)
    top = 2 if dtype == np.bool_ else LARGEST_INTEGER
    return np.asarray(rng.integers(0, top, known)).astype(dtype)


# --- the comparison -------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Gap:
    """How far two arrays are apart: in units in the last place of the largest element, and
    absolutely; where that is.
    """

    ulp: float
    absolute: float
    place: tuple[int, ...]

    @classmethod
    def of(cls, a: Any, b: Any) -> "Gap":
        left, right = (np.asarray(x) for x in (a, b))
        wide = [x.astype(np.float64) for x in (left, right)]
        with np.errstate(invalid="ignore"):
            same = (wide[0] == wide[1]) | (np.isnan(wide[0]) & np.isnan(wide[1]))
            gap = np.where(same, 0, np.abs(wide[0] - wide[1]))
        gap = np.where(np.isnan(gap), np.inf, gap)
        at = np.unravel_index(int(gap.argmax()), gap.shape) if gap.size else ()
        place = tuple(int(n) for n in at)
        return cls(ulps(left, right, whole=True), float(gap.max(initial=0)), place)

    def __str__(self) -> str:
        return f"{self.ulp:.1f} ulp ({self.absolute:.3g})"


def largest(gaps: Iterable[Gap]) -> Gap:
    """The largest of some gaps; none of nothing."""
    return max(gaps, key=lambda gap: gap.ulp, default=Gap(0.0, 0.0, ()))


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A program on two targets: the gap of each op, of its results with every value recorded, and
    of those that it gives as it is; what the first op that differs read and made.
    """

    ops: list[tuple[TappedOp, Gap]]
    results: list[Gap]
    tolerance: float
    report: str

    @property
    def first(self) -> int | None:
        """The position of the first op that differs."""
        return next((i for i, (_, g) in enumerate(self.ops) if g.ulp > self.tolerance), None)

    @property
    def is_same(self) -> bool:
        return self.first is None and all(g.ulp <= self.tolerance for g in self.results)


def compare(
    graph: Graph | FunctionGraph,
    leaves: list[np.ndarray],
    targets: tuple[Target, Target],
    tolerance: float = TOLERANCE,
) -> Comparison:
    """Run a graph on two targets, as it is and with the values of all its ops."""
    tapped, taps = tapped_graph(graph, inputs=True, constants=True)
    values = [bind(tapped, t, disk_cache=False)(list(leaves))[1] for t in targets]
    plain = [trees.leaves(bind(graph, t, disk_cache=False)(list(leaves))) for t in targets]
    gaps = [Gap.of(a, b) for a, b in zip(*values, strict=True)]
    ops = [(op, largest(gaps[p] for _, p in op.outputs)) for op in taps.ops]
    found = Comparison(ops, [Gap.of(a, b) for a, b in zip(*plain, strict=True)], tolerance, "")
    if found.first is None:
        return found
    pair = Pair(tapped, taps, targets, values, gaps)
    return dataclasses.replace(found, report=pair.report(taps.ops[found.first]))


@dataclasses.dataclass(frozen=True)
class Pair:
    """The values of all ops on two targets."""

    graph: Graph | FunctionGraph
    taps: Taps
    targets: tuple[Target, Target]
    values: list[Sequence[Any]]
    gaps: list[Gap]

    def report(self, op: TappedOp) -> str:
        """What an op read and made on both targets, and how far each is from the reference."""
        name = OpName.of(op)
        side = "backward" if name.is_backward else "forward"
        lines = [f"op '{name}' (gradopt.{op.kind}, {side}) at {op.where or 'an unknown line'}"]
        for label, p in op.inputs:
            lines.append(f"  read {label}: {self._shown(p)}")
        for label, p in op.outputs:
            lines.append(f"  made {label}: {self._shown(p)}")
            place = self.gaps[p].place
            both = (
                f"{t.name} {np.asarray(v[p])[place]}"
                for t, v in zip(self.targets, self.values, strict=True)
            )
            lines.append(f"    at {list(place)}: {', '.join(both)}")
        if errors := self._errors(op):
            lines.append(f"  off the reference on what each read: {errors}")
        return "\n".join(lines)

    def _shown(self, position: int) -> str:
        ranges = dict.fromkeys(describe(v[position]) for v in self.values)
        return f"{' / '.join(ranges)}; apart by {self.gaps[position]}"

    def _errors(self, op: TappedOp) -> str:
        """How far an op's outputs are from what NumPy makes of the inputs that it had."""
        with self.graph.context:
            function = symbols(self.graph.module)[self.graph.name]
            returned = list(list(function.entry_block.operations)[-1].operation.operands)
            made = returned[len(returned) - len(self.taps.types) + op.outputs[0][1]]
            node = made.owner.opview
            if not isinstance(node, Op) or not all(s.is_static for s in node.operand_specs()):
                return ""
            said = []
            for where, values in zip(self.targets, self.values, strict=True):
                inputs = [np.asarray(values[p]) for _, p in op.inputs]
                want = node.evaluate(*inputs, **node.read_attributes())
                off = [Gap.of(values[p], w) for (_, p), w in zip(op.outputs, want, strict=True)]
                said.append(f"{where.name} {largest(off)}")
        return ", ".join(said)


# --- the command ----------------------------------------------------------------------------------


def main(options: argparse.Namespace) -> int:
    """gradopt-check --program; returns its exit status."""
    if not options.against:
        raise ArgumentError("--program expected --against with the target to compare with")
    targets = find_target(options.target), find_target(options.against)
    for where in targets:
        check_present(where)
    try:
        graph, leaves = load(options.program, options.function, options.input, options.seed)
    except OSError as error:
        raise ArgumentError(f"cannot read '{options.program}': {error.strerror}") from None
    print(
        f"gradopt-check: '{graph.name}' on {targets[0].name} and {targets[1].name}",
        file=sys.stderr,
    )
    found = compare(graph, leaves, targets, options.tolerance)
    if options.verbose or options.json:
        print_table(_ops(found), options.json)
    if not options.json:
        print(told(found, graph.name, targets))
    return 0 if found.is_same else 1


def told(found: Comparison, name: str, targets: tuple[Target, Target]) -> str:
    """What a comparison found, for people."""
    pair = f"'{name}' on {targets[0].name} against {targets[1].name}"
    worst = largest(g for _, g in found.ops)
    results = f"results apart by at most {largest(found.results)}"
    over = sum(g.ulp > found.tolerance for _, g in found.ops)
    if found.first is not None:
        return (
            f"{pair}: {over} of {len(found.ops)} ops differ by more than {found.tolerance:g} ulp; "
            f"{results}; the first is\n{found.report}"
        )
    text = f"{pair}: no op of {len(found.ops)} differs by more than {found.tolerance:g} ulp"
    if worst.ulp:
        op = next(op for op, g in found.ops if g is worst)
        text += f", the most by {worst} is '{op.name}' at {op.where or 'an unknown line'}"
    if not found.is_same:
        text += "; the results differ where values are not recorded: by how ops are fused"
    return f"{text}; {results}"


def _ops(found: Comparison) -> Table:
    limit = found.tolerance
    lines = [
        [op.name, op.kind, op.where, gap.ulp, gap.absolute, "yes" if gap.ulp <= limit else "NO"]
        for op, gap in found.ops
    ]
    columns = ["op", "kind", "where", "ulp", "absolute", "agrees"]
    return Table("ops in the order in which they run", columns, lines)
