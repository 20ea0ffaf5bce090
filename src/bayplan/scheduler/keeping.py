"""Places that are kept, in a snapshot: for pods that wait, and those promised to elastic jobs."""

from collections.abc import Iterator
from typing import Protocol

from msgspec import Struct

from bayplan.core.engine.engine import Engine
from bayplan.core.model.grants import Confirmed, Grant
from bayplan.core.model.pods import Pod


class Kept(Struct, omit_defaults=True):
    """A place that is kept for a pod; without a pod: it was, until its node went."""

    uid: str
    owner: str
    node: str = ""
    pod: Pod | None = None  # with the devices that are kept


class Saved(Protocol):
    """What a snapshot has of pods' places."""

    kept: list[Kept]
    doomed: list[tuple[str, list[str]]]
    awaited: list[tuple[str, dict[str, bool]]]
    spared: list[tuple[str, float]]


class Place(Struct):
    key: str  # of the job
    node: str
    pod: Pod  # a pretend one, with the devices that are kept


class Promised(Struct, omit_defaults=True):
    grants: list[Grant] = []
    places: list[Place] = []
    told: dict[str, Confirmed] = {}
    count: int = 0
    is_due: bool = False
    doubted: list[str] = []  # nodes

    @classmethod
    def of(cls, engine: Engine) -> "Promised":
        promises, cluster = engine.promises, engine.cluster
        rows, pods = cluster.holds.rows, cluster.holds.pods
        places = [
            Place(key, cluster.name(rows[uid]), pods[rows[uid]][uid])
            for key in promises.places
            for uid in promises.of(key)
        ]
        grants = list(promises.grants.values())
        doubted = sorted(promises.doubted)
        return cls(grants, places, promises.told, promises.count, promises.is_due, doubted)


def kept(engine: Engine) -> Iterator[Kept]:
    cluster, holds = engine.cluster, engine.cluster.holds
    for uid, owner in engine.nominations.owners.items():
        row = holds.rows.get(uid)
        if row is None:
            yield Kept(uid, owner)
        else:
            yield Kept(uid, owner, cluster.name(row), holds.pods[row][uid])


def restore_nominations(engine: Engine, state: Saved) -> None:
    cluster, nominations = engine.cluster, engine.nominations
    for kept in state.kept:
        nominations.owners[kept.uid] = kept.owner
        if kept.pod is not None:
            cluster.holds.hold(kept.pod, cluster.rows[kept.node])
    for uid, owners in state.doomed:
        nominations.doomed[uid] = dict.fromkeys(owners)
    for owner, uids in state.awaited:
        nominations.awaited[owner] = dict(uids)
    nominations.spared |= dict(state.spared)


def restore_promises(engine: Engine, promised: Promised | None) -> None:
    """Of an engine that knows its nodes and who is on them."""
    if promised is None:
        return
    promises, cluster = engine.promises, engine.cluster
    promises.grants |= {grant.key: grant for grant in promised.grants}
    for place in promised.places:
        cluster.holds.hold(place.pod, cluster.rows[place.node])
        promises.places.setdefault(place.key, []).append(place.pod.uid)
    promises.told |= promised.told
    promises.count, promises.is_due = promised.count, promised.is_due
    promises.doubted |= set(promised.doubted)
