"""A pod put where it was decided that it goes: its devices chosen, its place taken."""

from msgspec.structs import replace

from bayplan.core.engine.profile import Profile
from bayplan.core.model.devices import Held
from bayplan.core.model.effects import Placement
from bayplan.core.model.holdings import holding_of
from bayplan.core.model.pods import Pod
from bayplan.core.plugins.hooks import Ask
from bayplan.core.state.cluster import Cluster


def placement(cluster: Cluster, profile: Profile, ask: Ask, row: int) -> Placement:
    """The pod on the row, with the devices that it gets there."""
    held: list[Held] = []
    if ask.pod.row.devices:
        for plugin in profile.choose:
            held += plugin.choose(ask, row, cluster)
    return Placement(ask.pod, cluster.name(row), tuple(held))


def holding(placed: Placement) -> Pod:
    """The pod as it counts there."""
    pod = placed.pod
    if not pod.row.devices or (pod.held is None and not placed.held):
        return pod
    return replace(pod, held=holding_of(pod.row.devices, placed.held))


def reserve(
    cluster: Cluster, profile: Profile, ask: Ask, placed: Placement, row: int
) -> str | None:
    """Places the pod on the row. Where a plugin refuses, nothing is done, and why is given."""
    pod = holding(placed)
    if not profile.reserve:
        cluster.place_on(pod, row)
        return None
    with cluster.trial() as trial:
        cluster.place_on(pod, row)
        for plugin in profile.reserve:
            why = plugin.reserve(ask, placed, cluster)
            if why is not None:
                return f"{plugin.name} refused to reserve: {why}"
        trial.keep()
    return None
