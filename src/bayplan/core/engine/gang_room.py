"""Room for a gang: who would have to go so that enough of its members fit, and where they would be.

Member by member, each as if it came alone; in the end whoever is in nobody's way is spared. So it
is proven, and nobody can be spared for the places that were chosen; other places may cost less.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from bayplan.core.engine import gangs
from bayplan.core.engine.preemption import Preemption
from bayplan.core.engine.questions import asking
from bayplan.core.engine.verdicts import Verdicts
from bayplan.core.model.effects import Placement
from bayplan.core.model.pods import Pod
from bayplan.core.state.removable import importance


class Victim(Struct, frozen=True):
    pod: Pod
    node: str


class GangPlan(Struct, frozen=True):
    """Where the members would be once the victims are gone."""

    placements: tuple[Placement, ...]
    victims: tuple[Victim, ...]


def plan(
    verdicts: Verdicts, preemption: Preemption, pods: Sequence[Pod], missing: int
) -> GangPlan | str:
    """Places `missing` of the pods and removes whoever must go; or says why that does not help. To
    be called inside a trial."""
    room = _Room(verdicts, preemption)
    why = ""
    for left, pod in zip(range(len(pods), 0, -1), pods, strict=True):
        if len(room.placements) == missing:
            break
        if len(room.placements) + left < missing:
            return why
        why = room.make(pod) or why
    return room.plan() if len(room.placements) == missing else why


class _Room:
    def __init__(self, verdicts: Verdicts, preemption: Preemption) -> None:
        self._verdicts, self._preemption = verdicts, preemption
        self._cluster = verdicts.cluster
        self.placements: list[Placement] = []
        self._victims: dict[str, Victim] = {}  # by uid

    def make(self, pod: Pod) -> str:
        """Places the member, without those who must go for it; or says why it cannot be."""
        cluster = self._cluster
        placed = gangs.place(self._verdicts, [pod], 1, keep=True)
        if not placed.ok:
            with asking(self._verdicts, pod) as ask:
                found = self._preemption.plan(ask)
            if isinstance(found, str):
                return found
            row = cluster.rows[found.node]
            cluster.release_below(pod, row)
            for each in found.gone:
                self._victims[each.uid] = Victim(each, cluster.name(cluster.pods[each.uid].row))
                cluster.remove(each.uid)
            placed = gangs.place(self._verdicts, [pod], 1, {pod.uid: row}, keep=True)
        assert placed.ok, f"the plan for {pod.key} was proven"
        self.placements += placed.placements
        return ""

    def plan(self) -> GangPlan:
        """Without those whose place nobody took in the end; gangs go, or stay, together."""
        concerning = self._cluster.terms.concerning
        pods = [placed.pod for placed in self.placements]
        everywhere = any(
            pod.terms is not None or pod.row.partitions or concerning(pod) for pod in pods
        )
        going: list[Victim] = []
        for unit in _units(self._victims).values():
            nodes = {victim.node for victim in unit}
            near = [each for each in self.placements if everywhere or each.node in nodes]
            with self._cluster.trial() as trial:
                for victim in unit:
                    self._cluster.place(victim.pod, victim.node)
                if all(map(self._stands, near)):
                    trial.keep()
                else:
                    going += unit
        return GangPlan(tuple(self.placements), tuple(going))

    def _stands(self, placed: Placement) -> bool:
        """Whether the member would still fit where it is."""
        with self._cluster.trial():
            self._cluster.remove(placed.pod.uid)
            with asking(self._verdicts, placed.pod) as ask:
                return self._verdicts.takes(ask, self._cluster.rows[placed.node])


def _units(victims: Mapping[str, Victim]) -> dict[str, list[Victim]]:
    """The most important first."""
    units: dict[str, list[Victim]] = {}
    for victim in sorted(victims.values(), key=lambda each: importance(each.pod)):
        gang = victim.pod.gang
        units.setdefault(victim.pod.uid if gang is None else gang.key, []).append(victim)
    return units
