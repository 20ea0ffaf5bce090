"""Scheduling gates."""

from bayplan.core.model.pods import Pod
from bayplan.core.plugins.hooks import Admit


class SchedulingGates:
    """Keeps a pod out of the queue while it has scheduling gates."""

    name = "SchedulingGates"

    def hold(self, pod: Pod) -> str | None:
        if not pod.lifecycle.gates:
            return None
        return f"waiting for scheduling gates: [{' '.join(pod.gates)}]"


_: type[Admit] = SchedulingGates
