"""Which nodes to prefer when pods must be removed for another."""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from bayplan.core.plugins.hooks import Plans, Preempt
from bayplan.core.state.arrays import Ints, Times


class PreemptionArgs(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """`lostWork`: whether lost work decides among what kube-scheduler finds equal, or right after
    broken budgets."""

    lost_work: Literal["last", "afterBudgets"] = "last"


class DefaultPreemption:
    """Prefers kube-scheduler's choice, and where that leaves several, the least lost work."""

    name = "DefaultPreemption"
    Args = PreemptionArgs

    def __init__(self, args: PreemptionArgs = PreemptionArgs()) -> None:  # noqa: B008
        self._args = args

    def order(self, plans: Plans) -> Sequence[Ints | Times]:
        rest = (plans.highest, plans.total, plans.count, -plans.start)
        if self._args.lost_work == "afterBudgets":
            return (plans.violations, plans.lost_s, *rest)
        return (plans.violations, *rest, plans.lost_s)


_: type[Preempt] = DefaultPreemption
