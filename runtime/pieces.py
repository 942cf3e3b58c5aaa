# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What an artifact can do with a loss and a prediction: infer, loss, grad, step and init, each a
function made of them.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..dialect import control, optimizer
from ..dialect.creation import constant, zeros
from ..dialect.function_graph import FunctionGraph
from ..dialect.types import TensorSpec, float32, int32, is_float, is_narrow
from ..errors import ArtifactError
from .exported import DATA, PARAMETER, STATE, Exported, spec_of
from .program import Piece, Program

EMITTED = ("infer", "loss", "grad", "step", "init")
COUNT, RATE, LOSS = "count", "learning_rate", "loss"

Values = Mapping[str, np.ndarray | TensorSpec]


@dataclasses.dataclass(frozen=True)
class Rule:
    """An optimizer: its update of one parameter, the slots it remembers, its settings with their
    defaults, and whether the update is told how many there have been.
    """

    update: Any
    rate: float
    slots: tuple[str, ...] = ()
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    counts: bool = False
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)


_ADAM = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
_DECAY = {"weight_decay": 0.0}
RULES = {
    "sgd": Rule(optimizer.sgd_update, 0.01, (), _DECAY),
    "momentum": Rule(
        optimizer.momentum_update,
        0.01,
        ("m",),
        {"momentum": 0.9, "nesterov": False, **_DECAY},
    ),
    "adam": Rule(
        optimizer.adam_update,
        0.001,
        ("m", "v"),
        _ADAM | _DECAY,
        True,
        {"decoupled": False},
    ),
    "adamw": Rule(
        optimizer.adam_update,
        0.001,
        ("m", "v"),
        _ADAM | {"weight_decay": 0.01},
        True,
        {"decoupled": True},
    ),
    "rmsprop": Rule(optimizer.rmsprop_update, 0.01, ("v",), {"decay": 0.99, "eps": 1e-8, **_DECAY}),
    "adagrad": Rule(optimizer.adagrad_update, 0.01, ("s",), {"eps": 1e-10, **_DECAY}),
    "lion": Rule(optimizer.lion_update, 0.0001, ("m",), {"beta1": 0.9, "beta2": 0.99, **_DECAY}),
}
"""The optimizers; formulas are those of dialect/optimizer.py, defaults those of optim/."""


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """An optimizer with its settings. Without a `rate` the learning rate is an input of step."""

    name: str
    rate: float | None
    settings: Mapping[str, Any]

    @classmethod
    def of(cls, name: str, rate: float | str | None, **settings: Any) -> "Optimizer":
        """The optimizer called `name`; settings that are None, and the rate, are its defaults.
        Raises ArtifactError for settings that it does not have, and for a rate below 0.
        """
        if name not in RULES:
            raise ArtifactError(f"expected an optimizer out of {', '.join(RULES)}, got '{name}'")
        rule = RULES[name]
        given = {key: value for key, value in settings.items() if value is not None}
        for key in given:
            if key not in rule.settings:
                raise ArtifactError(
                    f"optimizer '{name}' expected settings out of {', '.join(rule.settings)}, got "
                    f"{key}"
                )
        number = None if rate == "input" else rule.rate if rate is None else float(rate)
        if number is not None and not number >= 0:
            raise ArtifactError(f"expected a learning rate of at least 0, got {number}")
        return cls(name, number, {**rule.settings, **given})

    def state(self, parameters: Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
        """What it remembers of these parameters, by name, as `go.optim` calls it: "count",
        "slots.w.m". In 16 bits too little would be remembered.
        """
        rule = RULES[self.name]
        found = {COUNT: TensorSpec((), int32)} if rule.counts else {}
        for name, spec in parameters.items():
            dtype = float32 if is_narrow(spec.dtype) else spec.dtype
            for slot in rule.slots:
                found[_slot(name, slot)] = TensorSpec(spec.shape, dtype)
        return found

    def update(
        self, name: str, value: Any, gradient: Any, rate: Any, state: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The new value of a parameter, and of its slots, by name."""
        rule = RULES[self.name]
        slots = [_slot(name, slot) for slot in rule.slots]
        arguments = [value, gradient, rate, *(state[n] for n in slots)]
        if rule.counts:
            arguments.append(state[COUNT])
        results = rule.update(*arguments, **self.settings, **rule.fixed)
        return dict(zip([name, *slots], results if slots else [results], strict=True))


def _slot(parameter: str, slot: str) -> str:
    return f"slots.{parameter}.{slot}"


# --- the functions --------------------------------------------------------------------------------


def as_is(program: Program, values: Values) -> Exported:
    """A function as it is. Results of the name and type of what is held by others are its new
    value, too.
    """
    updates = dict(program.updates)
    for i, (name, spec) in enumerate(program.results):
        if name in values and spec_of(values[name]) == spec and name not in updates.values():
            updates.setdefault(i, name)
    mode = program.mode or ("train" if updates else "infer")
    return _whole(program, program.name, values, updates, mode)


def infer(program: Program, values: Values) -> Exported:
    """The prediction as it is."""
    return _whole(program, "infer", values, program.updates, "infer")


def loss(program: Program, values: Values) -> Exported:
    """The value of the loss, and its other results but new values of what is held."""
    at, kept = loss_position(program), _reported(program)
    names = [_name(program, i, at) for i in kept]
    if len(kept) == len(program.results):
        return _exported(program.alone("loss"), names, program, values, {}, "infer")
    piece = Piece("loss", program)
    with piece.graph:
        results = control.call(piece.callee, *piece.operands)
    graph = piece.finish([results[i] for i in kept])
    return _exported(graph, names, program, values, {}, "infer")


def _whole(
    program: Program, name: str, values: Values, updates: Mapping[int, str], mode: str
) -> Exported:
    names = [n for n, _ in program.results]
    return _exported(program.alone(name), names, program, values, updates, mode)


def grad(program: Program, values: Values) -> Exported:
    """What `loss` returns, and the gradients: "grad.w" for parameter w, zeros where the loss does
    not depend on it, none for integers.
    """
    piece = Piece("grad", program)
    results, gradients = _differentiated(piece, program)
    kept, at = _reported(program), loss_position(program)
    names = [_name(program, i, at) for i in kept] + [f"grad.{n}" for n in gradients]
    returned = [results[i] for i in kept] + list(gradients.values())
    positions = {n: len(kept) + i for i, n in enumerate(gradients)}
    every = {n: positions.get(n) for n, _ in program.inputs if program.roles[n] == PARAMETER}
    notes = {"gradients": every}
    return _exported(piece.finish(returned), names, program, values, {}, "train", notes)


def step(program: Program, values: Values, chosen: Optimizer) -> Exported:
    """An update of all floating-point parameters, of what the loss returns new values of, and of
    the optimizer's state; returns what `loss` returns.
    """
    piece = Piece("step", program)
    given = dict(zip(piece.names, piece.operands, strict=True))
    parameters = trained(program)
    slots = chosen.state(parameters)
    for name in slots:
        if name in given:
            raise ArtifactError(f"'{name}' expected to be the optimizer's, but is an input")
    rate = piece.input(RATE, TensorSpec((), float32)) if chosen.rate is None else chosen.rate
    state = {n: piece.input(n, spec) for n, spec in slots.items()}
    results, gradients = _differentiated(piece, program)
    new: dict[str, Any] = {n: results[i] for i, n in program.updates.items()}
    with piece.graph:
        if COUNT in state:
            new[COUNT] = state[COUNT] = state[COUNT] + 1
        for name, gradient in gradients.items():
            new |= chosen.update(name, given[name], gradient, rate, state)
    kept, at = _reported(program), loss_position(program)
    names = [*(_name(program, i, at) for i in kept), *new]
    updates = {len(kept) + i: name for i, name in enumerate(new)}
    returned = [*(results[i] for i in kept), *new.values()]
    values = {**{n: values.get(n, spec) for n, spec in slots.items()}, **values}
    graph = piece.finish(returned)
    return _exported(graph, names, program, values, updates, "train", state=slots)


def init(chosen: Optimizer, parameters: Mapping[str, TensorSpec], values: Values) -> Exported:
    """The optimizer's state as it is before the first step: zeros."""
    from ..dialect.graph import Graph

    slots = chosen.state(parameters)
    if not slots:
        raise ArtifactError(f"optimizer '{chosen.name}' expected a state for init, but has none")
    graph = Graph("init")
    with graph:
        graph.output([zeros(spec.extents, spec.dtype) for spec in slots.values()])
    graph.finish()
    held = {n: values.get(n, spec) for n, spec in slots.items()}
    return Exported(graph, {}, held, dict(enumerate(slots)), "train", list(slots))


def trained(program: Program) -> dict[str, TensorSpec]:
    """The parameters that have a gradient."""
    found = {
        n: spec
        for n, spec in program.inputs
        if program.roles[n] == PARAMETER and is_float(spec.dtype)
    }
    if not found:
        known = ", ".join(n for n, _ in program.inputs) or "none"
        raise ArtifactError(
            f"'{program.name}' expected floating-point parameters among its inputs, {known}; say "
            'which by --parameters, or by the attribute gradopt.role = "parameter"'
        )
    return found


def loss_position(program: Program) -> int:
    """The position of the result that is the loss: the one called so, or the first. Raises
    ArtifactError where that is not one floating-point number.
    """
    names = [n for n, _ in program.results]
    at = names.index(LOSS) if LOSS in names else 0
    spec = program.results[at][1] if program.results else None
    if spec is None or spec.shape or not is_float(spec.dtype):
        raise ArtifactError(
            f"'{program.name}' expected a loss that is one floating-point number, the result "
            f"called 'loss' or else the first, got {spec or 'no result'}; return its mean or sum"
        )
    return at


def _differentiated(piece: Piece, program: Program) -> tuple[list[Any], dict[str, Any]]:
    """The results, and the gradients of the loss by parameter."""
    at, parameters = loss_position(program), trained(program)
    wrt = tuple(i for i, (n, _) in enumerate(program.inputs) if n in parameters)
    about = {"wrt": wrt, "heads": (at,), "unreachable": "zeros", "intermediates": ()}
    with piece.graph:
        seed = constant(1.0, program.results[at][1].dtype)
        found = control.VjpOp.emit_call(piece.callee, *piece.operands, seed, **about)
    count = len(program.results)
    return list(found[:count]), dict(zip(parameters, found[count:], strict=True))


def _reported(program: Program) -> list[int]:
    """The results that are no new values."""
    return [i for i in range(len(program.results)) if i not in program.updates]


def _name(program: Program, i: int, loss: int) -> str:
    return LOSS if i == loss else program.results[i][0]


def _exported(
    graph: FunctionGraph,
    names: Sequence[str],
    program: Program,
    values: Values,
    updates: Mapping[int, str],
    mode: str,
    notes: Mapping[str, Any] | None = None,
    state: Mapping[str, TensorSpec] | None = None,
) -> Exported:
    """A function made of a program with what is held of its inputs."""
    roles = {n: r for n, r in program.roles.items() if r != DATA} | dict.fromkeys(
        state or {}, STATE
    )
    specs = dict(zip(graph.input_names, graph.input_specs, strict=True))
    held = {n: values[n] if n in values else specs[n] for n in [*roles, *updates.values()]}
    return Exported(graph, roles, held, updates, mode, list(names), notes or {})
