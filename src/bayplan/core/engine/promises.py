"""Places that elastic jobs were promised: held for workers that do not exist yet.

A grant says how many workers a job may have. Pods of the job that are on nodes have their places;
for the others places are held, each for a pretend pod of the shape of a worker, against everybody,
however important. A worker that comes takes one of them. All grants are settled before anybody is
decided about: what one gives back goes to the others first, in the same cycle.
"""

from collections import Counter
from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from itertools import chain

from msgspec.structs import replace

from bayplan.core.engine import gangs, placing
from bayplan.core.engine.alike import same_room
from bayplan.core.engine.nominations import Nominations
from bayplan.core.engine.questions import asking
from bayplan.core.engine.verdicts import Verdicts
from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.core.model.grants import Confirmed, Grant
from bayplan.core.model.pods import Pod
from bayplan.core.state.cluster import Cluster
from bayplan.core.state.waiting import Waiting

FIRST = 2**31 - 1  # a priority that no pod has
_State = tuple[int, int]  # of a job: workers that have a place, and places that are held


class Promises:
    def __init__(
        self,
        cluster: Cluster,
        verdicts: Mapping[str, Verdicts],
        nominations: Nominations,
        waiting: Waiting,
        assumed: Container[str],
    ) -> None:
        self._cluster, self._verdicts, self._assumed = cluster, verdicts, assumed
        self._nominations, self._waiting = nominations, waiting
        self.grants: dict[str, Grant] = {}  # by key
        self.places: dict[str, list[str]] = {}  # by key: uids of holds, some of which have ended
        self.told: dict[str, Confirmed] = {}  # by key: what was said last, or stands there
        self.doubted: set[str] = set()  # nodes that may not take the workers any more
        self.count = 0  # pretend pods so far
        self.is_due = False  # something happened since they were settled
        filters = (plugin for each in verdicts.values() for _, plugin in each.profile.filters)
        self._use_closes = any(getattr(plugin, "use_closes", False) for plugin in filters)
        self._settled: dict[str, _State] = {}  # by key: as it was left
        self._helped = -1  # `waiting.helped` at that time
        self._has_freed = False  # places were given up since

    @property
    def is_kept(self) -> bool:
        """Whether there is anything to be settled, ever."""
        return bool(self.grants or self.places)

    def concerns(self, event: on.Event) -> bool:
        """Whether places may come or go by it. What is measured of nodes and pods comes all the
        time, and closes or opens a node only where a profile says so."""
        match event:
            case on.Tick():
                return False
            case on.UseSeen():
                return self._use_closes
            case on.PodSeen(pod):
                known = self._cluster.pods.get(pod.uid)
                return known is None or known.pod != replace(pod, use=known.pod.use)
        return True

    def note(self, event: on.Event) -> None:
        """Whatever happens may cost a place, or make room for one."""
        if not self.concerns(event):
            return
        self.is_due = True
        match event:
            case on.NodeSeen(node):
                self.doubted.add(node.name)
            case on.PodUnreadable(_, name) | on.KubeletRefused(name, _) | on.UseSeen(name, _):
                self.doubted.add(name)
            case on.PodSeen(pod) if pod.node and (pod.terms is not None or self._is_touchy()):
                self.doubted.add(pod.node)  # it may be in the way, whatever it uses
            case on.PodNotExpected() | on.PlaceWanted() | on.BindAsked():
                self._helped = -1

    def _is_touchy(self) -> bool:
        """Whether it matters to some workers who else is there."""
        pods = (grant.pod for grant in self.grants.values())
        return any(pod.terms is not None or pod.row.ports for pod in pods)

    def hear(self, event: on.GrantSeen | on.GrantGone | on.ConfirmFailed) -> None:
        match event:
            case on.GrantSeen(grant):
                self._settled.pop(grant.key, None)
                self._see(grant)
            case on.GrantGone(key):
                self._forget(key)
            case on.ConfirmFailed(key) if key in self.told:
                self._settled.pop(key, None)
                self.told[key] = self.grants[key].confirmed
        self.is_due |= self.is_kept  # also after the last: what was kept for it is anybody's

    def _see(self, grant: Grant) -> None:
        if grant.pod.scheduler not in self._verdicts:
            self._forget(grant.key)
            return
        known = self.grants.get(grant.key)
        if known is not None and known.uid == grant.uid and grant.generation < known.generation:
            # A watch that is behind what was read, or a status that somebody has emptied: whoever
            # writes the next grant has to know which generation was the last.
            self.told[grant.key] = grant.confirmed
            return
        if known is not None and not _alike(known.pod, grant.pod):
            for uid in self.of(grant.key):  # they are of no use to such workers
                self._release(uid)
                self._has_freed = True
        self.grants[grant.key] = grant
        if grant.key in self.told:  # somebody else may have written, or it is from before
            self.told[grant.key] = grant.confirmed

    def _forget(self, key: str) -> None:
        """The job is gone; what was kept for it is free at the next look."""
        self.grants.pop(key, None)
        self.told.pop(key, None)
        self._settled.pop(key, None)

    def all(self) -> set[str]:
        """The holds of all jobs."""
        return {uid for uids in self.places.values() for uid in uids}

    def of(self, key: str) -> list[str]:
        """The holds for workers of the job that are not there yet."""
        rows = self._cluster.holds.rows
        return [uid for uid in self.places.get(key, ()) if uid in rows]

    def granted(self, pod: Pod) -> bool:
        """Whether it is a worker of a job that has a grant; of that very job, not of an earlier one
        of the same name."""
        return self._grant_of(pod) is not None

    def _grant_of(self, pod: Pod) -> Grant | None:
        grant = self.grants.get(pod.worker.key) if pod.worker is not None else None
        return grant if grant is not None and pod.worker in grant.marks else None

    def open_to(self, pod: Pod) -> list[str]:
        """The holds of the job that the pod is a worker of."""
        grant = self._grant_of(pod)
        return [] if grant is None else self.of(grant.key)

    def homes(self, pods: Sequence[Pod]) -> dict[str, int]:
        """Gives the pods the places that they were promised, by uid the rows. Until they are
        placed, or on a trial."""
        found: dict[str, int] = {}
        for pod in pods:
            if holds := self.open_to(pod):
                found[pod.uid] = self._release(holds[0])
        return found

    def _release(self, uid: str) -> int:
        row = self._cluster.holds.rows[uid]
        self._cluster.holds.release(uid)
        return row

    # ---- settling

    def settle(self) -> tuple[list[do.Effect], bool]:
        """What is to be said of which grant; and whether anybody's chances are better."""
        better, self.is_due, self._has_freed = self._has_freed, False, False
        better |= self._recheck()
        better |= self._rank()
        otherwise = self._promised_otherwise()
        for key in [key for key in self.places if key not in self.grants]:
            better |= self._trim(key, 0)
        due = sorted((g for g in self.grants.values() if self._is_due(g, otherwise)), key=_turn)
        for grant in due:
            wanted = 0 if grant.wrong else self._missing(grant, grant.places, otherwise)
            better |= self._trim(grant.key, wanted)
        is_roomier = better or self._helped != self._waiting.helped
        self._helped, before = self._waiting.helped, self.count
        short = (g for g in self.grants.values() if self._told(g).places < g.places)
        tried = (g for g in short if is_roomier or self._shape(g) is None)
        due = sorted({g.key: g for g in (*due, *tried)}.values(), key=_turn)
        effects = self._filled(due, otherwise)
        return effects, better or self.count > before  # workers may wait for just that

    def _filled(self, due: Sequence[Grant], otherwise: Mapping[str, int]) -> list[do.Effect]:
        hopeless: dict[Hashable, str] = {}  # by shape: why nobody takes one more
        for grant in due:
            named = self._missing(grant, self._named(grant, otherwise), otherwise)
            self._fill(grant, named, hopeless)
        for grant in due:
            places = min(grant.places, self._told(grant).places)
            self._fill(grant, self._missing(grant, places, otherwise), hopeless)
        effects: list[do.Effect] = []
        for grant in due:  # who was told that there are places has them by now, if they are
            missing = self._missing(grant, grant.places, otherwise)
            effects += self._say(grant, missing, self._fill(grant, missing, hopeless))
            self._settled[grant.key] = self._state(grant, otherwise)
        return effects

    def _state(self, grant: Grant, otherwise: Mapping[str, int]) -> _State:
        there = sum(map(len, self._there(grant))) + otherwise.get(grant.key, 0)
        return there, len(self.of(grant.key))

    def _there(self, grant: Grant) -> list[dict[str, None]]:
        """The uids of its workers that have a place."""
        found = self._cluster.census.workers
        return [found[mark] for mark in grant.marks if mark in found]

    def _is_due(self, grant: Grant, otherwise: Mapping[str, int]) -> bool:
        """Whether it has changed, or who has its places."""
        return self._settled.get(grant.key) != self._state(grant, otherwise)

    def _recheck(self) -> bool:
        """Leaves places on nodes that no longer take such workers. Whether there were any."""
        rows = {self._cluster.rows[name] for name in self.doubted if name in self._cluster.rows}
        self.doubted.clear()
        left = False
        for grant in sorted(self.grants.values(), key=_turn, reverse=True) if rows else ():
            for uid in self.of(grant.key):
                row = self._cluster.holds.rows[uid]
                if row in rows:
                    left |= not self._hold_again(grant, uid, row)
        return left

    def _hold_again(self, grant: Grant, uid: str, row: int) -> bool:
        """The same place, with devices that are there."""
        cluster, verdicts = self._cluster, self._verdicts[grant.pod.scheduler]
        self._release(uid)
        with cluster.trial(), asking(verdicts, replace(grant.pod, uid=uid)) as ask:
            if self._shape(grant) is None or grant.pod.row.ports:
                self._embody()
            if not verdicts.takes(ask, row):
                return False
            placed = placing.placement(cluster, verdicts.profile, ask, row)
        cluster.holds.hold(replace(placing.holding(placed), priority=FIRST), row)
        return True

    def _told(self, grant: Grant) -> Confirmed:
        return self.told.get(grant.key, grant.confirmed)

    def _named(self, grant: Grant, otherwise: Mapping[str, int]) -> int:
        """After a restart: places whose node is told, before others are looked for."""
        if grant.key in self.told:
            return 0
        kept = sum(count for _, count in grant.confirmed.kept)
        there = self._state(grant, otherwise)[0]
        return min(grant.places, grant.confirmed.places, there + kept)

    def _missing(self, grant: Grant, places: int, otherwise: Mapping[str, int]) -> int:
        """So many of the places are for workers that are not there yet."""
        return max(places - self._state(grant, otherwise)[0], 0)

    def _promised_otherwise(self) -> Counter[str]:
        """By key: workers that wait, and for whom a place of their own is kept."""
        found = map(self._grant_of, self._nominated())
        return Counter(grant.key for grant in found if grant is not None)

    def _nominated(self) -> list[Pod]:
        """The pods that wait, and for whom a place of their own is kept."""
        waiting = self._waiting.pods
        owners = (uid for uid in self._nominations.owners if uid in waiting)
        return [waiting[uid][0].pod for uid in owners if uid in self._nominations]

    def _rank(self) -> bool:
        """The job is told of such places, as far as it has a grant for them: then nobody else gets
        them, either. Whether some of them lose that."""
        holds, left, lower = self._cluster.holds, dict[str, int](), False
        for pod in self._nominated():
            rank, grant = pod.priority, self._grant_of(pod)
            if grant is not None and not grant.wrong:
                there = sum(map(len, self._there(grant)))
                left[grant.key] = left.get(grant.key, grant.places - there) - 1
                rank = FIRST if left[grant.key] >= 0 else rank
            held = holds.pods[holds.rows[pod.uid]][pod.uid]
            if held.priority != rank:
                lower |= rank < held.priority
                holds.hold(replace(held, priority=rank), self._release(pod.uid))
        return lower

    def _trim(self, key: str, wanted: int) -> bool:
        """Gives back what is too much. Whether it was."""
        here = self.of(key)
        for uid in here[wanted:]:
            self._release(uid)
        self.places[key] = here[:wanted]
        if not here[:wanted]:
            del self.places[key]
        return len(here) > wanted

    def _fill(self, grant: Grant, missing: int, hopeless: dict[Hashable, str]) -> str:
        """Finds the places that are missing. Gives why there are not enough; empty if there are."""
        here = self.of(grant.key)
        missing -= len(here)
        if grant.wrong or missing <= 0:
            return grant.wrong
        shape = self._shape(grant)
        if shape in hopeless:  # nothing was given back since
            return hopeless[shape]
        numbers = range(self.count, self.count + missing)
        pods = [replace(grant.pod, uid=f"{grant.pod.uid}#{number}") for number in numbers]
        cluster, verdicts = self._cluster, self._verdicts[grant.pod.scheduler]
        gang = gangs.meant(cluster, pods)[0] if grant.pod.gang is not None else None
        homes = self._told_of(grant, here, pods)
        with cluster.trial():
            if shape is None or grant.pod.row.ports:
                self._embody()
            placed = gangs.place(verdicts, pods, 1, homes, keep=True, gang=gang)
        if placed.ok:
            self.count += missing
            for each in placed.placements:
                held = replace(placing.holding(each), priority=FIRST)
                cluster.holds.hold(held, cluster.rows[each.node])
            self.places[grant.key] = [*here, *(each.pod.uid for each in placed.placements)]
        why = placed.refusal.message if placed.refusal is not None else ""
        if why and shape is not None:
            hopeless[shape] = why
        return why

    def _embody(self) -> None:
        """On a trial: whoever is to come is there, with its ports, labels and terms."""
        holds = self._cluster.holds
        for pod, row in holds.taken([uid for key in self.places for uid in self.of(key)]):
            self._cluster.place(pod, self._cluster.name(row))

    def _shape(self, grant: Grant) -> Hashable:
        """What workers must share to be refused alike; None where that cannot be said."""
        pod, verdicts = grant.pod, self._verdicts[grant.pod.scheduler]
        if not verdicts.by_terms_alone or pod.row.claims or grant.wrong:
            return None
        if pod.terms is not None or self._cluster.terms.concerning(pod):
            return None
        gang = gangs.meant(self._cluster, [pod])[0] if pod.gang is not None else None
        if gang is not None and (gang.within or gang.across or gang.spread):
            return None
        return pod.scheduler, pod.row

    def _told_of(self, grant: Grant, here: Iterable[str], pods: Iterable[Pod]) -> dict[str, int]:
        """By uid the rows that the object says are kept, and are not yet: after a restart."""
        if grant.key in self.told:
            return {}
        rows = self._cluster.rows
        told = Counter({rows[node]: count for node, count in grant.confirmed.kept if node in rows})
        told -= Counter(self._cluster.holds.rows[uid] for uid in here)
        return dict(zip((pod.uid for pod in pods), told.elements(), strict=False))

    def _on_their_way(self, grant: Grant) -> list[str]:
        """Workers whose bind is not answered: who starts anew may find them without a node."""
        there = chain.from_iterable(self._there(grant))
        return [uid for uid in there if uid in self._assumed and uid in self._cluster.pods]

    def _say(self, grant: Grant, missing: int, why: str) -> list[do.Effect]:
        here = self.of(grant.key)
        there = grant.places - missing
        rows = [self._cluster.holds.rows[uid] for uid in here]
        rows += [self._cluster.pods[uid].row for uid in self._on_their_way(grant)]
        kept = Counter(map(self._cluster.name, rows))
        said = Confirmed(
            grant.generation,
            0 if grant.wrong else there + len(here),
            tuple(sorted(kept.items())),
            why,
        )
        known, self.told[grant.key] = self._told(grant), said
        return [] if _same(known, said) else [do.Confirm(grant.key, said, grant.uid)]


def _alike(old: Pod, new: Pod) -> bool:
    """Whether places for the one are places for the other."""
    return same_room(old, new) and (old.scheduler, old.terms) == (new.scheduler, new.terms)


def _turn(grant: Grant) -> tuple[int, float, str]:
    return -grant.pod.priority, grant.pod.created_s, grant.key


def _same(known: Confirmed, said: Confirmed) -> bool:
    """Where the places are kept is told along, and is no news by itself; nor are other words."""
    return (known.generation, known.places, bool(known.why)) == (
        said.generation,
        said.places,
        bool(said.why),
    )
