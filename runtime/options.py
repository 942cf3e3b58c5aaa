# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The options of go.compile, checked one by one and together before anything is traced."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ..dialect.modes import MODES
from ..errors import ArgumentError
from ..lowering.marks import ADD, NULL, WRITE
from ..lowering.target import Target
from .composed import INLINE_LIMIT, checked_limit
from .dynamic import Dynamic
from .present import find_target

REQUESTS = (NULL, WRITE, ADD)

GradReq = str | Mapping[Any, str] | Sequence[str] | None


@dataclasses.dataclass(frozen=True)
class Options:
    """What go.compile was told. Positions are those of arguments, not of the arrays in them."""

    target: Target
    donate: tuple[int, ...] = ()
    donate_strict: bool = False
    data: tuple[int, ...] | None = None
    param: tuple[int, ...] | None = None
    grad_req: GradReq = None
    mode: str | None = None
    static_alloc: bool = False
    static_shape: bool = False
    remat: str = ""
    disk_cache: bool = True
    inline_limit: int = INLINE_LIMIT
    auxiliary: tuple[int, ...] = ()
    dynamic: Dynamic | None = None
    tune: bool | str = False

    @classmethod
    def of(
        cls,
        *,
        target: str,
        donate: int | Sequence[int],
        donate_strict: bool,
        data: int | Sequence[int] | None,
        param: int | Sequence[int] | None,
        grad_req: GradReq,
        mode: str | None,
        static_alloc: bool,
        static_shape: bool,
        memory_budget: float | int | str | None,
        remat: str | None,
        disk_cache: bool,
        inline_limit: int,
        auxiliary: int | Sequence[int],
        dynamic: Any,
        tune: bool | str,
    ) -> "Options":
        """The options as given to go.compile. Raises ArgumentError where one is malformed, or two
        clash.
        """
        if mode is not None and mode not in MODES:
            raise ArgumentError(f"mode expected 'train', 'infer' or None, got {mode!r}")
        if static_shape and not static_alloc:
            raise ArgumentError(
                "static_shape=True expected static_alloc=True with it, got static_alloc=False; "
                "add static_alloc=True"
            )
        options = cls(
            find_target(target),
            positions("donate", donate),
            donate_strict,
            None if data is None else positions("data", data),
            None if param is None else positions("param", param),
            check_requests(grad_req),
            mode,
            static_alloc,
            static_shape,
            rematerialization(memory_budget, remat),
            disk_cache,
            checked_limit(inline_limit),
            positions("auxiliary", auxiliary),
            None if dynamic is None else Dynamic(dynamic),
            tune,
        )
        check_tune(tune, options.target)
        return options.check_roles()

    def check_roles(self) -> "Options":
        """Raise where an argument is both data and a parameter, or is listed twice."""
        listed = [*(self.data or ()), *(self.param or ())]
        for position in listed:
            if listed.count(position) > 1:
                raise ArgumentError(
                    "data and param expected every argument exactly once, got argument "
                    f"{position} {listed.count(position)} times"
                )
        return self

    def as_keywords(self) -> dict[str, Any]:
        """The options that are not about single arguments, as go.compile takes them."""
        kind, _, value = self.remat.partition("=")
        return {
            "target": self.target.name,
            "donate_strict": self.donate_strict,
            "static_alloc": self.static_alloc,
            "static_shape": self.static_shape,
            "memory_budget": value if kind == "budget" else None,
            "remat": value if kind == "policy" else None,
            "disk_cache": self.disk_cache,
            "inline_limit": self.inline_limit,
            "tune": self.tune,
        }

    @property
    def has_roles(self) -> bool:
        """Whether `data` and `param` say what the arguments are."""
        return self.data is not None or self.param is not None

    def check_recordable(self, name: str) -> None:
        """Raise where options are given that calls with a backward do not go with."""
        if self.donate:
            raise ArgumentError(
                f"a recorded call of '{name}' expected no donated arguments, as its backward may "
                f"read them, got donate={self.donate}; compile it without donate"
            )
        if self.remat:
            raise ArgumentError(
                f"a recorded call of '{name}' expected no memory_budget or remat, which choose for "
                "a function that holds its backward, got one; use go.checkpoint inside it, or "
                "compile go.grad of it"
            )

    def check_arguments(self, name: str, names: Sequence[str]) -> None:
        """Raise where positions do not fit the arguments of a function."""
        count = len(names)
        listed = {
            "donate": self.donate,
            "data": self.data or (),
            "param": self.param or (),
            "auxiliary": self.auxiliary,
        }
        for option, found in listed.items():
            for position in found:
                if not 0 <= position < count:
                    raise ArgumentError(
                        f"{option} expected positions of the {count} arguments of '{name}', "
                        f"got {position}"
                    )
        missing = set(range(count)) - {*(self.data or ()), *(self.param or ())}
        if self.has_roles and missing:
            first = min(missing)
            raise ArgumentError(
                f"data and param expected every argument of '{name}' exactly once, got "
                f"argument {first} ('{names[first]}') in neither; add it to one of them"
            )


def refuse_for_graphs(dynamic: Any, auxiliary: Any) -> None:
    """Raise where an option is given that a graph's own inputs say."""
    if dynamic is not None:
        raise ArgumentError(
            "dynamic expected a function, got a graph; give its inputs None extents"
        )
    if auxiliary != ():
        raise ArgumentError(
            "auxiliary expected a function, got a graph; make its inputs by Graph.auxiliary"
        )


def positions(option: str, given: int | Sequence[int]) -> tuple[int, ...]:
    """One position or several as a tuple."""
    found = (given,) if isinstance(given, int) else tuple(given)
    if not all(isinstance(p, int) and not isinstance(p, bool) for p in found):
        raise ArgumentError(f"{option} expected positions of arguments, got {given!r}")
    return found


def check_requests(grad_req: GradReq) -> GradReq:
    """`grad_req`, if all its entries are known."""
    if isinstance(grad_req, Mapping):
        entries = list(grad_req.values())
    else:
        entries = [grad_req] if isinstance(grad_req, str) else list(grad_req or ())
    for entry in entries:
        if entry not in REQUESTS:
            raise ArgumentError(
                f"grad_req expected 'null', 'write' or 'add', one for all arguments, a sequence "
                f"with one an argument, or a dict by their names, got {entry!r}"
            )
    return grad_req


def check_tune(tune: bool | str, target: Target) -> None:
    """Raise for a value of `tune` that is none, and for targets that have nothing to tune."""
    if not isinstance(tune, bool) and tune != "stored":
        raise ArgumentError(f"tune expected True, False or 'stored', got {tune!r}")
    if tune and not target.ladder:
        raise ArgumentError(
            f"tune={tune!r} expected a target that IREE compiles for, got '{target.name}'; leave "
            "tune away"
        )


def rematerialization(memory_budget: Any = None, remat: str | None = None) -> str:
    """The options of gradopt-rematerialize for those of `compile`; empty where it is not to run."""
    if memory_budget is None and remat is None:
        return ""
    if memory_budget is not None and remat is not None:
        raise ArgumentError("expected memory_budget or remat, got both")
    if remat is not None:
        from ..lowering.rematerialize import POLICIES

        if remat not in POLICIES:
            raise ArgumentError(f"remat expected one of {', '.join(POLICIES)}, got {remat!r}")
        return f"policy={remat}"
    if isinstance(memory_budget, str):
        return f"budget={''.join(memory_budget.split())}"
    if isinstance(memory_budget, float) and 0 <= memory_budget <= 1:
        return f"budget={memory_budget:.12f}"
    if isinstance(memory_budget, bool) or not isinstance(memory_budget, int) or memory_budget < 0:
        expected = "memory_budget expected bytes, or a fraction from 0.0 to 1.0"
        raise ArgumentError(f"{expected}, got {memory_budget!r}")
    return f"budget={memory_budget}"
