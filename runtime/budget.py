# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""A memory budget that holds for the arena of a compiled function, not only for gradopt's plan.

`gradopt-rematerialize` makes the planned peak fit. IREE then adds operands that it packs for its
products, and orders its commands itself, so that the one arena of a function that allocates
statically can need more than its share. Its size is known before any code is made. Where it is over
the budget, the pass is run again with what IREE adds taken off, a few times.
"""

from ..dialect.control import symbols
from ..dialect.mlir import ir
from ..errors import CompileError
from ..lowering import pipeline
from ..lowering.marks import STATIC
from ..lowering.passes import failure
from ..lowering.rematerialize import BudgetError, Report, parse_budget, report_of
from ..lowering.target import Target
from .compiler import plan_linalg
from .signature import of_text

ATTEMPTS = 4
"""How often memory is planned for one budget."""
MARGIN = 0.005
"""How much of the budget is left free from the second attempt on."""

_settled: dict[str, str] = {}


def settled(module: ir.Module, name: str, target: Target, remat: str) -> str:
    """The options of gradopt-rematerialize with which the arena of a function fits what `remat`
    says: a budget in bytes, or a fraction of the arena without recomputing. For a policy, `remat`
    itself, or "" where it would not lower the arena.

    Without static allocation there is no arena, and `remat` is for the planned peak. Raises
    PassError, with the smallest arena found, where none fits.
    """
    if not remat or not target.ladder or STATIC not in symbols(module)[name].attributes:
        return remat
    key = of_text(name, module.operation.get_asm(), target, {"remat": remat}).key
    if key not in _settled:
        with module.context:
            _settled[key] = _Search(module, name, target).settle(remat)
    return _settled[key]


class _Search:
    """Attempts at one function."""

    def __init__(self, module: ir.Module, name: str, target: Target) -> None:
        self.module, self.name, self.target = module, name, target

    def settle(self, remat: str) -> str:
        plain = self._needed("")[0]
        if plain is None:
            return remat  # nothing is known of the arena: the plan has to do
        option, _, text = remat.partition("=")
        if option != "budget":
            needed = self._needed(remat)[0]
            return remat if needed is None or needed < plain else ""
        limit = parse_budget(text, plain, symbols(self.module)[self.name])
        return "" if plain <= limit else self._fit(limit, plain)

    def _fit(self, limit: int, plain: int) -> str:
        """Options with which the arena, `plain` bytes without, takes at most `limit` bytes."""
        smallest, aim, low = plain, f"budget={limit / plain:.12f}", 0
        for _ in range(ATTEMPTS):
            try:
                needed, report = self._needed(aim)
            except BudgetError as error:  # the smallest that there is may fit, or is to be told
                low = max(error.smallest, low + low // 50)
                aim = f"budget={low}"
                continue
            if needed is None or needed <= limit:
                return aim
            smallest = min(smallest, needed)
            if low:
                break
            peak = report.peak_after
            less = min(peak - (needed - limit), peak * limit // needed) - int(limit * MARGIN)
            aim = f"budget={max(less, 0)}"
        function = symbols(self.module)[self.name]
        expected = f"expected a budget that @{self.name} can be computed in, got {limit:,} bytes"
        found = f"the smallest arena found is {smallest:,} bytes, of {plain:,} without recomputing"
        raise failure([(function.location, f"{expected}; {found}")])

    def _needed(self, remat: str) -> tuple[int | None, Report]:
        """The bytes of the arena, None where they are not known, and what the pass did."""
        lowered, _ = pipeline.lower(self.module, self.target, remat)
        report = report_of(symbols(lowered)[self.name]) or Report(0, 0)
        text = lowered.operation.get_asm(enable_debug_info=True)
        try:
            found = plan_linalg(text, self.target, self.name).get(self.name, {})
        except CompileError:  # the function is compiled, or refused, without looking ahead
            found = {}
        return (found["arena"] if found.get("repacked") else found.get("iree")), report
