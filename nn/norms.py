# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Layers that normalize."""

from collections.abc import Sequence
from typing import Any

from ..dialect import norm
from ..dialect.batch_norm import batch_norm
from ..dialect.modes import is_training
from ..dialect.types import as_dtype, float32, is_narrow
from ..errors import ModuleError
from . import init
from .layers import check_extents, check_width
from .module import Module, parameter


class BatchNorm(Module):
    """Every channel normalized over all other axes, then scaled by `gamma` and shifted by `beta`.

    While training by the statistics of the batch, which move the running ones, once a call: new =
    momentum * old + (1 - momentum) * batch. In `go.infer_mode()` by the running ones. These are
    states: arrays that are not trained, float32 at least; running_mean begins as 0, running_var as
    1.
    """

    def __init__(
        self,
        width: int,
        channel_axis: int = -1,
        momentum: float = 0.9,
        eps: float = 1e-5,
        affine: bool = True,
        unbiased: bool = False,
        dtype: Any = float32,
    ) -> None:
        check_extents("BatchNorm", width=width)
        if not 0 <= momentum <= 1:
            raise ModuleError(f"BatchNorm expected a momentum in [0, 1], got {momentum}")
        self.width, self.channel_axis = width, channel_axis
        self.settings = {"momentum": momentum, "eps": eps, "unbiased": unbiased}
        self.gamma = parameter(init.ones()((width,), dtype)) if affine else None
        self.beta = parameter(init.zeros()((width,), dtype)) if affine else None
        wide = float32 if is_narrow(as_dtype(dtype)) else as_dtype(dtype)
        self.running_mean = init.zeros()((width,), wide)
        self.running_var = init.ones()((width,), wide)

    def __call__(self, x: Any) -> Any:
        check_width(self, x, self.width, self.channel_axis)
        running = self.running_mean, self.running_var
        y, (mean, var) = batch_norm(
            x, self.gamma, self.beta, self.channel_axis, running=running, **self.settings
        )
        if is_training():
            self.set_state("running_mean", mean)
            self.set_state("running_var", var)
        return y

    def summary(self) -> str:
        return f"{self.width}"


class LayerNorm(Module):
    """The last axes, of extents `shape`, normalized together, then scaled and shifted."""

    def __init__(
        self,
        shape: int | Sequence[int],
        eps: float = 1e-5,
        bias: bool = True,
        dtype: Any = float32,
    ) -> None:
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.eps = eps
        self.gamma = parameter(init.ones()(self.shape, dtype))
        self.beta = parameter(init.zeros()(self.shape, dtype)) if bias else None

    def __call__(self, x: Any) -> Any:
        self._check(x)
        return norm.layer_norm(x, self.gamma, self.beta, len(self.shape), self.eps)

    def _check(self, x: Any) -> None:
        for axis, n in zip(range(-len(self.shape), 0), self.shape, strict=True):
            if x.ndim < len(self.shape) or x.shape[axis] != n:
                raise ModuleError(
                    f"{type(self).__name__}({self.summary()}) expected an input whose last axes "
                    f"are {self.shape}, got shape {x.shape}"
                )

    def summary(self) -> str:
        return "x".join(map(str, self.shape))


class RMSNorm(LayerNorm):
    """The last axes, of extents `shape`, divided by their root mean square, then scaled."""

    def __init__(self, shape: int | Sequence[int], eps: float = 1e-5, dtype: Any = float32) -> None:
        super().__init__(shape, eps, bias=False, dtype=dtype)

    def __call__(self, x: Any) -> Any:
        self._check(x)
        return norm.rms_norm(x, self.gamma, len(self.shape), self.eps)


class GroupNorm(Module):
    """Groups of neighbouring channels of an example normalized together, then scaled and shifted a
    channel.
    """

    def __init__(
        self,
        width: int,
        groups: int,
        channel_axis: int = -1,
        eps: float = 1e-5,
        dtype: Any = float32,
    ) -> None:
        check_extents("GroupNorm", width=width, groups=groups)
        if width % groups:
            raise ModuleError(f"GroupNorm expected groups that divide {width}, got {groups}")
        self.width, self.groups, self.channel_axis, self.eps = width, groups, channel_axis, eps
        self.gamma = parameter(init.ones()((width,), dtype))
        self.beta = parameter(init.zeros()((width,), dtype))

    def __call__(self, x: Any) -> Any:
        check_width(self, x, self.width, self.channel_axis)
        affine = self.gamma, self.beta
        return norm.group_norm(x, self.groups, *affine, self.channel_axis, self.eps)

    def summary(self) -> str:
        return f"{self.width}, {self.groups} groups"
