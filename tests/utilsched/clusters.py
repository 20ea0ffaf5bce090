"""Clusters whose devices are in use, in a line each."""

from typing import Any

from bayplan.core.engine.profile import Enabled, PluginConfig, PluginSet, Profile, ProfileConfig
from bayplan.core.model.events import NodeSeen
from bayplan.core.model.nodes import Node
from bayplan.core.model.pods import Pod
from bayplan.core.model.utilisation import DeviceUse, NodeUse
from bayplan.core.plugins.hooks import Ask
from bayplan.core.plugins.registry import DEFAULT
from bayplan.core.plugins.utilsched import UtilSched, UtilSchedArgs
from bayplan.core.state.view import View
from bayplan.testing import World
from bayplan.testing.world import cards, node

GIB = 1024  # MiB
K80 = NodeUse(2, "Tesla K80", 12, 1, 16)


def device(
    index: int, gpu: int = 0, copy: int = 0, used: int = 0, of: int = 12 * GIB, at: float = 0.0
) -> DeviceUse:
    return DeviceUse(index, gpu, copy, used, of - used, at)


def used(*devices: DeviceUse, like: NodeUse = K80) -> NodeUse:
    return NodeUse(
        len(devices), like.model, like.memory_gib, like.pcie_gen, like.pcie_width, devices
    )


def carded(name: str, use: NodeUse | None, count: int = 2) -> Node:
    """A node that publishes its cards."""
    facts: dict[str, Any] = cards(*[12 * GIB] * count, name=name)
    return node(name, count, use=use, **facts)


def profile(**args: Any) -> ProfileConfig:
    """The profile `bayplan`, with UtilSched as in `utilsched`."""
    filters = tuple(Enabled(name) for name, _ in (*DEFAULT["filter"], ("UtilSched", 0)))
    scores = tuple(Enabled(*entry) for entry in (*DEFAULT["score"], ("UtilSched", 300)))
    off = (Enabled("*"),)
    return ProfileConfig(
        "bayplan",
        {"filter": PluginSet(filters, off), "score": PluginSet(scores, off)},
        (PluginConfig("UtilSched", args),),
    )


def world(*nodes: Node, **args: Any) -> World:
    made = World(profiles=[Profile(profile(**args))])
    for each in nodes:
        made.tell(NodeSeen(each))
    return made


def scores(world: World, pod: Pod, **args: Any) -> dict[str, int]:
    """What UtilSched alone says, by node."""
    cluster = world.engine.cluster
    ask = Ask(pod, cluster.demand(pod.row))
    plugin = UtilSched(UtilSchedArgs(**args))
    found = plugin.score(ask, View(cluster))
    if found is None:
        return {}
    return {name: int(found[row]) for name, row in cluster.rows.items()}
