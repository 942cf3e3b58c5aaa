# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""`go.optim`: optimizers as objects, schedules of their learning rate, clipping and loss scaling;
and the updates that they are made of, as functions of a parameter, its gradient, what the optimizer
remembers and the learning rate.
"""

from ..dialect.optimizer import (
    adagrad_update,
    adam_update,
    clip_by_global_norm,
    lion_update,
    momentum_update,
    rmsprop_update,
    sgd_update,
)
from . import schedules
from .clipping import all_finite, clip_by_value
from .loss_scale import (
    LossScale,
    loss_scale_state,
    loss_scale_update,
    select_tree,
    unscale,
)
from .optimizer import Optimizer
from .optimizers import SGD, AdaGrad, Adam, AdamW, Lion, RMSProp

__all__ = [
    "SGD", "AdaGrad", "Adam", "AdamW", "Lion", "LossScale", "Optimizer", "RMSProp",
    "adagrad_update", "adam_update", "all_finite", "clip_by_global_norm", "clip_by_value",
    "lion_update", "loss_scale_state", "loss_scale_update", "momentum_update", "rmsprop_update",
    "schedules", "select_tree", "sgd_update", "unscale",
]  # fmt: skip
