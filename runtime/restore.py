# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Going on in Python with what was trained where an artifact runs."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import deploy
from ..errors import ArtifactError, ModuleError
from ..nn.module import Module
from ..nn.variables import FROZEN, request_of
from ..nn.walk import check_arrays
from ..optim.optimizer import Optimizer
from . import generator
from .array import Array, of_value, write
from .held_names import KINDS


def restore(path: Any, *objects: Any, **named: Any) -> dict[str, Any]:
    """Give nets, optimizers and loss scales the arrays of a checkpoint that an artifact's `save`
    wrote; returns its notes.

        notes = go.restore("digits.ckpt", net, optimizer, go.random)

    Arrays are found under the names that go.export gave them. What had the name of its variable
    there, as there were several nets or optimizers, is given by that name: `go.restore(path,
    critic=critic)`; so are dicts of arrays, and single ones. `go.random` among the objects restores
    the state that keys are drawn from. Others of the checkpoint are left alone.

    ModuleError, before anything changes, for arrays that the checkpoint has not, or of another
    type; those that no exported function uses are not there, and stay as they are: frozen
    parameters, an optimizer's learning rate that a schedule gives, and its `gradient_norm`.
    ArtifactError for what is no checkpoint, or damaged.
    """
    saved, notes = _read(pathlib.Path(path))
    own: dict[str, Array] = {}
    for prefix, one in [*((_alone(x), x) for x in objects), *named.items()]:
        for name, x in _arrays(prefix, one).items():
            if name in own and own[name] is not x:
                raise ModuleError(
                    f"restore expected one array for each name, got two for '{name}'; give what "
                    "there are several of by the names of their variables, critic=critic"
                )
            own[name] = x
    found = {name: saved[name] for name in own if name in saved}
    needed = {n: x for n, x in own.items() if n in saved or not _may_be_missing(n, x)}
    check_arrays(f"'{path}'", found, needed, dtypes=True, missing=True)
    for name, value in found.items():
        write(own[name], of_value(value), f"restoring '{name}'")
    return notes


def _read(path: pathlib.Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    try:
        arrays, metadata = deploy.read_checkpoint(path)
    except deploy.CheckpointError as error:
        raise ArtifactError(str(error)) from None
    return arrays, json.loads(metadata["notes"])


def _alone(x: Any) -> str:
    """What stands in front of the names of what there is only one of."""
    if x is generator:
        return "random"
    for kind, prefix in KINDS:
        if isinstance(x, kind):
            return prefix
    raise ModuleError(
        f"restore expected nets, optimizers, loss scales or go.random, got {type(x).__name__}; "
        "give arrays and dicts of them by name"
    )


def _arrays(prefix: str, one: Any) -> dict[str, Array]:
    """The arrays of an object under the names that they have in a checkpoint."""
    if isinstance(one, Array):
        return {prefix: one}
    if one is generator:
        arrays: Mapping[str, Any] = generator.state_arrays()
    elif isinstance(one, Module | Optimizer) or hasattr(one, "arrays"):
        arrays = one.arrays()
    elif isinstance(one, Mapping) and all(isinstance(x, Array) for x in one.values()):
        arrays = one
    else:
        raise ModuleError(
            f"restore expected '{prefix}' to be a net, an optimizer, a loss scale, an array or a "
            f"dict of arrays, got {type(one).__name__}"
        )
    return {".".join(filter(None, (prefix, str(name)))): x for name, x in arrays.items()}


def _may_be_missing(name: str, x: Array) -> bool:
    last = name.rpartition(".")[2]
    return request_of(x) == FROZEN or last in ("learning_rate", "gradient_norm")
