"""Disruption budgets: how many of some pods may go. Here they weigh; they forbid nothing."""

from msgspec import Struct

from bayplan.core.model.pods import Pod
from bayplan.core.model.selectors import Selector


class Budget(Struct, frozen=True):
    """A PodDisruptionBudget, as its status has it."""

    key: str  # namespace/name
    namespace: str
    selector: Selector | None  # None, or without requirements: it covers nothing
    allowed: int
    disrupted: frozenset[str] = frozenset()  # names of pods whose removal is already counted

    def covers(self, pod: Pod) -> bool:
        """Whether removing the pod would use it up."""
        selector = self.selector
        return (
            selector is not None
            and bool(selector.requirements)
            and pod.namespace == self.namespace
            and bool(pod.labels)
            and pod.name not in self.disrupted
            and selector.matches(pod.labels)
        )
