"""Room for a gang: who would have to go so that enough of its members fit, and where they would be.

Member by member, each as if it came alone; in the end whoever is in nobody's way is spared. So it
is proven, and nobody can be spared for the places that were chosen; other places may cost less.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct

from bayplan.core.engine import gangs
from bayplan.core.engine.preemption import Preemption
from bayplan.core.engine.questions import asking
from bayplan.core.engine.verdicts import Verdicts
from bayplan.core.model.effects import Placement
from bayplan.core.model.pods import Gang, Pod
from bayplan.core.state.arrays import Mask
from bayplan.core.state.removable import importance

NO_DOMAIN = "no domain has less important pods whose going would help"


class Victim(Struct, frozen=True):
    pod: Pod
    node: str


class GangPlan(Struct, frozen=True):
    """Where the members would be once the victims are gone."""

    placements: tuple[Placement, ...]
    victims: tuple[Victim, ...]


def plan(
    verdicts: Verdicts,
    preemption: Preemption,
    pods: Sequence[Pod],
    missing: int,
    gang: Gang | None = None,
    doomed: Collection[str] = (),
) -> GangPlan | str:
    """Places `missing` of the pods and removes whoever must go; or says why that does not help. To
    be called inside a trial. `gang` and `doomed`: as in gangs.place. Where all must be in one
    domain, the first that will do is taken."""
    found: GangPlan | str = NO_DOMAIN
    for within in gangs.domains(verdicts, pods, missing, gang, doomed):
        with verdicts.cluster.trial() as trial:
            room = _Room(verdicts, preemption, gang, within, doomed)
            found = _planned(room, pods, missing) or found
            if isinstance(found, GangPlan):
                trial.keep()
                break
    return found


def _planned(room: "_Room", pods: Sequence[Pod], missing: int) -> GangPlan | str:
    why = ""
    for left, pod in zip(range(len(pods), 0, -1), pods, strict=True):
        if len(room.placements) == missing:
            break
        if len(room.placements) + left < missing:
            return why
        why = room.make(pod) or why
    return room.plan() if len(room.placements) == missing else why


class _Room:
    def __init__(
        self,
        verdicts: Verdicts,
        preemption: Preemption,
        gang: Gang | None,
        within: Mask | None,
        doomed: Collection[str],
    ) -> None:
        self._verdicts, self._preemption = verdicts, preemption
        self._gang, self._within, self._doomed = gang, within, doomed
        self._cluster = verdicts.cluster
        self.placements: list[Placement] = []
        self._victims: dict[str, Victim] = {}  # by uid

    def make(self, pod: Pod) -> str:
        """Places the member, without those who must go for it; or says why it cannot be."""
        cluster = self._cluster
        placed = self._placed(pod, {})
        if placed.ok:
            self.placements += placed.placements
            return ""
        with asking(self._verdicts, pod) as ask:
            within = gangs.allowed(self._verdicts, ask, self._gang, self._within, self._doomed)
            found = self._preemption.plan(ask, within)
        if isinstance(found, str):
            return found
        row = cluster.rows[found.node]
        with cluster.trial() as trial:
            cluster.release_below(pod, row)
            gone = {each.uid: Victim(each, self._home(each)) for each in found.gone}
            for uid in gone:
                cluster.remove(uid)
            placed = self._placed(pod, {pod.uid: row})
            if not placed.ok:  # members of its own went, and with them the domain
                return NO_DOMAIN
            trial.keep()
        self._victims |= gone
        self.placements += placed.placements
        return ""

    def _home(self, pod: Pod) -> str:
        return self._cluster.name(self._cluster.pods[pod.uid].row)

    def _placed(self, pod: Pod, homes: Mapping[str, int]) -> gangs.Placed:
        return gangs.place(
            self._verdicts,
            [pod],
            1,
            homes,
            keep=True,
            gang=self._gang,
            within=self._within,
            doomed=self._doomed,
        )

    def plan(self) -> GangPlan:
        return spared(self._verdicts, self.placements, self._victims.values())


def spared(
    verdicts: Verdicts, placements: Sequence[Placement], victims: Iterable[Victim]
) -> GangPlan:
    """Without those whose place nobody took in the end; gangs go, or stay, together. To be called
    in the trial where the members have their places and the victims are gone."""
    cluster = verdicts.cluster
    concerning = cluster.terms.concerning
    pods = [placed.pod for placed in placements]
    everywhere = any(pod.terms is not None or pod.row.partitions or concerning(pod) for pod in pods)
    on: dict[str, list[Placement]] = {}
    for placed in placements:
        on.setdefault(placed.node, []).append(placed)
    going: list[Victim] = []
    for unit in _units(victims).values():
        nodes = dict.fromkeys(victim.node for victim in unit)
        near = placements if everywhere else [each for node in nodes for each in on.get(node, ())]
        with cluster.trial() as trial:
            for victim in unit:
                cluster.place(victim.pod, victim.node)
            if all(_stands(verdicts, each) for each in near):
                trial.keep()
            else:
                going += unit
    return GangPlan(tuple(placements), tuple(going))


def _stands(verdicts: Verdicts, placed: Placement) -> bool:
    """Whether the member would still fit where it is."""
    with verdicts.cluster.trial():
        verdicts.cluster.remove(placed.pod.uid)
        with asking(verdicts, placed.pod) as ask:
            return verdicts.takes(ask, verdicts.cluster.rows[placed.node])


def _units(victims: Iterable[Victim]) -> dict[str, list[Victim]]:
    """The most important first."""
    units: dict[str, list[Victim]] = {}
    for victim in sorted(victims, key=lambda each: importance(each.pod)):
        gang = victim.pod.gang
        units.setdefault(victim.pod.uid if gang is None else gang.key, []).append(victim)
    return units
