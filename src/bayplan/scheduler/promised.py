"""Promises to elastic jobs in a snapshot."""

from msgspec import Struct

from bayplan.core.engine.engine import Engine
from bayplan.core.model.grants import Confirmed, Grant
from bayplan.core.model.pods import Pod


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


def taken(engine: Engine) -> Promised | None:
    """None where there are none."""
    promises, cluster = engine.promises, engine.cluster
    if not promises.is_kept:
        return None
    rows, pods = cluster.holds.rows, cluster.holds.pods
    places = [
        Place(key, cluster.name(rows[uid]), pods[rows[uid]][uid])
        for key in promises.places
        for uid in promises.of(key)
    ]
    grants = list(promises.grants.values())
    return Promised(grants, places, promises.told, promises.count, promises.is_due)


def restore(engine: Engine, promised: Promised | None) -> None:
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
