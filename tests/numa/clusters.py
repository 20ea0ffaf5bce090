"""Nodes with zones and pods for them, as Kubernetes writes them, in an engine."""

from collections.abc import Mapping, Sequence
from typing import Any

from bayplan.core.engine.engine import Engine
from bayplan.core.engine.profile import Enabled as On
from bayplan.core.engine.profile import (
    PluginConfig,
    PluginSet,
    Profile,
    ProfileConfig,
)
from bayplan.core.model import events as on
from bayplan.core.model.pods import Pod
from bayplan.core.plugins.hooks import Ask
from bayplan.core.plugins.numa import NodeResourceTopologyMatch
from bayplan.core.state.view import View
from bayplan.kube.defaults import default_pod
from bayplan.kube.read import Reader

Json = dict[str, Any]
Zones = Sequence[Mapping[str, str]]  # per zone, by resource: what is available, or "there/free"
NAME = NodeResourceTopologyMatch.name


def topology(name: str, zones: Zones, policy: str = "", **more: Any) -> Json:
    """`policy` is one of the older field; `more` are fields of the object."""
    return {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": name},
        "topologyPolicies": [policy] if policy else [],
        "zones": [zone(f"node-{i}", resources) for i, resources in enumerate(zones)],
        **more,
    }


def zone(name: str, resources: Mapping[str, str], costs: Mapping[str, int] | None = None) -> Json:
    found = []
    for resource, amount in resources.items():
        there, _, free = amount.rpartition("/")
        amounts = {"capacity": there or free, "allocatable": there or free, "available": free}
        found.append({"name": resource, **amounts})
    distances = [{"name": other, "value": cost} for other, cost in (costs or {}).items()]
    return {"name": name, "type": "Node", "resources": found, "costs": distances}


def node(name: str, allocatable: Mapping[str, str]) -> Json:
    amounts = {"pods": "110", "ephemeral-storage": "1Ti", **allocatable}
    return {"metadata": {"name": name}, "status": {"allocatable": amounts}}


def container(requests: Mapping[str, str], limits: Mapping[str, str] | None = None) -> Json:
    """Guaranteed, where cpu and memory are asked for, unless other `limits` are given."""
    return {
        "resources": {
            "requests": dict(requests),
            "limits": dict(requests if limits is None else limits),
        }
    }


def manifest(name: str, *containers: Json, init: Sequence[Json] = (), **spec: Any) -> Json:
    named = [{"name": f"c{i}", **each} for i, each in enumerate(containers)]
    first = [{"name": f"i{i}", **each} for i, each in enumerate(init)]
    return {
        "metadata": {"name": name, "uid": f"uid-{name}"},
        "spec": {
            "schedulerName": "bayplan",
            "containers": named,
            "initContainers": first,
            **spec,
        },
    }


def pod(name: str, *containers: Json, init: Sequence[Json] = (), **spec: Any) -> Pod:
    return Reader().pod(default_pod(manifest(name, *containers, init=init, **spec)))


def asking(**amounts: str) -> Pod:
    """A Guaranteed pod with one container; `_` in a name stands for `/`."""
    return pod("p", container({name.replace("_", "/"): each for name, each in amounts.items()}))


class Lone:
    """One node, its zones, and what the plugin says to pods."""

    def __init__(self, published: Json, more: Mapping[str, str] | None = None) -> None:
        """The node has all that its zones have, and `more`."""
        self.engine = Engine()
        self.name = published["metadata"]["name"]
        self.reader = Reader()
        amounts: dict[str, str] = {}
        for each in published["zones"]:
            amounts.update({r["name"]: "1Pi" for r in each["resources"]})
        made = node(self.name, {**amounts, **(more or {})})
        self.engine.handle(on.NodeSeen(self.reader.node(made)), 0.0)
        self.publish(published)

    def publish(self, published: Json) -> None:
        self.engine.handle(on.TopologySeen(self.reader.topology(published)), 0.0)

    def says(self, newcomer: Pod) -> str:
        """Why the plugin refuses the pod; empty where it does not."""
        plugin, cluster = NodeResourceTopologyMatch(), self.engine.cluster
        ask = Ask(newcomer, cluster.demand(newcomer.row))
        codes = plugin.refuse(ask, View(cluster))
        code = 0 if codes is None else int(codes[0])
        found = [each.text for bit, each in enumerate(plugin.reasons(ask)) if code >> bit & 1]
        return ", ".join(found)


def scores(kind: str, published: Sequence[Json], newcomer: Pod) -> dict[str, int]:
    """By node, with a strategy."""
    engine = Engine([Profile(with_strategy(kind))])
    reader = Reader()
    for each in published:
        made = node(each["metadata"]["name"], {"cpu": "64", "memory": "1Ti", "x.io/gpu": "8"})
        engine.handle(on.NodeSeen(reader.node(made)), 0.0)
        engine.handle(on.TopologySeen(reader.topology(each)), 0.0)
    profile = engine.profiles["bayplan"]
    plugin = next(score for _, score in profile.scores if score.name == NAME)
    found = plugin.score(Ask(newcomer, engine.cluster.demand(newcomer.row)), View(engine.cluster))
    assert found is not None
    return {name: int(found[row]) for name, row in engine.cluster.rows.items()}


def with_strategy(kind: str) -> ProfileConfig:
    args = {"scoringStrategy": {"type": kind}}
    return ProfileConfig(plugin_config=(PluginConfig(NAME, args),))


def without_plugin() -> ProfileConfig:
    off = PluginSet(disabled=(On(NAME),))
    return ProfileConfig(plugins={"filter": off, "score": off})
