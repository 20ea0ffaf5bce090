"""What is to be said of a gang: how many of it fit, what the next one lacks, and what would help.

A smaller gang, new nodes, victims. A member speaks for all of them.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from bayplan.core.engine import gang_room, gangs
from bayplan.core.engine.gang_deciding import kept_words, together
from bayplan.core.engine.ground import Ground, daring
from bayplan.core.engine.growing import added, kinds
from bayplan.core.engine.preempting import KEPT
from bayplan.core.engine.preemption import TERMINATING
from bayplan.core.engine.room import names
from bayplan.core.model.advice import Change, Explanation, GangState, Suggestion
from bayplan.core.model.nodes import Node
from bayplan.core.model.pods import Gang, Pod
from bayplan.core.model.steps import AddNodes
from bayplan.core.model.verdicts import Refusal

MOST_MEMBERS = 128  # of larger gangs only the minimum is looked at
MOST_KINDS = 8  # of nodes
FEWER = 3  # how often one node fewer, or one member more, is tried


class Members:
    """The members of a gang that wait, in a trial where nothing is kept for them."""

    def __init__(self, ground: Ground, pod: Pod, gang: Gang) -> None:
        self._ground, self._cluster = ground, ground.cluster
        _, group = ground.engine.waiting.pods[pod.uid]
        waiters = sorted(group.members.values(), key=lambda each: (each.sort, each.arrival))
        self._pods = [each.pod for each in waiters]
        self._gang, self._group = gangs.meant(self._cluster, self._pods)
        self._minimum = self._gang.minimum
        self._doomed = ground.engine.nominations.doomed
        self._bound = len(gangs.staying(self._cluster, gang.key, self._doomed))
        self._bound += gangs.ended(self._group)
        self._missing = max(self._minimum - self._bound, 1)
        ground.release(*self._pods)

    def explain(self, pod: Pod) -> Explanation:
        version = self._cluster.version
        unclear = gangs.unclear(self._gang, self._group)
        if unclear:
            state = GangState(self._gang.key, self._minimum, self._bound, len(self._pods), 0)
            return Explanation(
                version=version, pod=pod.key, state="waits", ok=False, message=unclear, gang=state
            )
        placed = self._placed(self._missing)
        count = len(placed.placements)
        state = GangState(self._gang.key, self._minimum, self._bound, len(self._pods), count)
        said = Explanation(
            version=version, pod=pod.key, state="waits", ok=False, message="", gang=state
        )
        if len(self._pods) < self._missing:
            there = self._bound + len(self._pods)
            words = f"{self._gang.title} is not complete"
            message = f"{words}: {there} of {self._minimum} members are here"
            return replace(said, message=message, suggestions=tuple(self._smaller(count)))
        short = gangs.gap(self._cluster, self._group)
        if placed.ok and short:
            return replace(said, message=short)
        if placed.ok and self._ground.yields(pod):
            return replace(said, message=f"{self._gang.title}: {KEPT}")
        if placed.ok:
            fit = f"{self._gang.title}: {self._bound + count} of {self._minimum} members fit"
            node = next((p.node for p in placed.placements if p.pod.uid == pod.uid), "")
            message = f"{fit}: it waits for its turn"
            return replace(said, state="fits", ok=True, message=message, node=node)
        assert placed.refusal is not None
        found = self._smaller(count)
        if len(self._pods) <= MOST_MEMBERS:
            found += [*self._nodes(placed), *self._victims(self._taken())]
        return replace(
            said,
            message=self._sentence(placed.refusal, count),
            reasons=placed.refusal.tallies,
            suggestions=tuple(found),
        )

    def _sentence(self, refusal: Refusal, count: int) -> str:
        fit = self._bound + count
        where = together(self._gang)
        more = f"{self._gang.title}: {fit} of {self._minimum} members fit{where}."
        if self._ground.engine.nominations.waits(self._gang.key):
            more = f"{more} preemption: {TERMINATING}"
        if self._gang.key in self._ground.engine.reservations:
            more = f"{more} {kept_words(self._missing)}"
        return replace(refusal, more=more).sentence

    def _placed(self, enough: int) -> gangs.Placed:
        with self._cluster.trial():
            return gangs.place(
                self._ground.verdicts,
                self._pods,
                enough,
                keep=True,
                gang=self._gang,
                doomed=self._doomed,
            )

    def _first(self, placed: gangs.Placed) -> str:
        return placed.placements[0].node

    # ---- what would help

    def _smaller(self, count: int) -> list[Suggestion]:
        """The largest minimum with which it would start."""
        enough, proven = count, self._placed(count) if count else None
        if proven is None or not proven.ok:
            return []
        for _ in range(FEWER):
            more = self._placed(enough + 1) if enough < len(self._pods) else None
            if more is None or not more.ok:
                break
            enough, proven = enough + 1, more
        minimum = self._bound + enough
        if minimum >= self._minimum:
            return []
        text = f"start with {minimum} members instead of {self._minimum}"
        return [Suggestion("gang", text, self._first(proven), Change(minimum=minimum))]

    def _nodes(self, placed: gangs.Placed) -> list[Suggestion]:
        """As few as possible of the smallest kind that would do."""
        there = {each.pod.uid for each in placed.placements}
        refused = next(pod for pod in self._pods if pod.uid not in there)
        for like in kinds(self._ground, refused)[:MOST_KINDS]:
            count = self._count(like)
            proven = self._with(like, count) if count else None
            if proven is None:
                continue
            for _ in range(FEWER):
                fewer = self._with(like, count - 1) if count > 1 else None
                if fewer is None:
                    break
                count, proven = count - 1, fewer
            text = f"add {count} node{'s' if count > 1 else ''} like {like.name}"
            change = Change(nodes=AddNodes(like.name, count))
            return [Suggestion("node", text, self._first(proven), change)]
        return []

    def _count(self, like: Node) -> int:
        """How many are needed if each is added when a member needs it; 0: they do not help."""
        count = there = 0
        with self._cluster.trial():
            for pod in self._pods:
                if there == self._missing:
                    break
                if self._ground.place(pod) is None:
                    row = added(self._ground, like)
                    if not self._ground.fits(pod, row):
                        return 0
                    self._ground.place(pod, row=row)
                    count += 1
                there += 1
        return count

    def _with(self, like: Node, count: int) -> gangs.Placed | None:
        with self._cluster.trial():
            for _ in range(count):
                added(self._ground, like)
            placed = self._placed(self._missing)
        return placed if placed.ok else None

    def _victims(self, pods: Sequence[Pod]) -> list[Suggestion]:
        proven = self._without(pods) if pods else None
        if proven is None:
            return []
        if all(pod.preempts for pod in self._pods):
            text = f"it may preempt {names(pods)}, by itself"
        else:
            text = f"remove {names(pods)}; it may not preempt (preemptionPolicy is Never)"
        change = Change(evict=tuple(pod.key for pod in pods))
        return [Suggestion("victims", text, self._first(proven), change)]

    # ---- who would have to go

    def _taken(self) -> list[Pod]:
        """The pods that would go for the members, if they might preempt; none: in vain."""
        members = [daring(pod) for pod in self._pods]
        with self._cluster.trial():
            ground = self._ground
            found = gang_room.plan(
                ground.verdicts,
                ground.preemption,
                members,
                self._missing,
                self._gang,
                self._doomed,
            )
            if gangs.gap(self._cluster, self._group):
                return []
        return [] if isinstance(found, str) else [victim.pod for victim in found.victims]

    def _without(self, pods: Sequence[Pod]) -> gangs.Placed | None:
        with self._cluster.trial():
            self._ground.remove(*pods)
            placed = self._placed(self._missing)
        return placed if placed.ok else None
