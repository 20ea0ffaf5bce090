"""Stories of pods that start together, and of nodes whose zones matter: `bayplan demo` plays them.

They need kinds that an API server does not have by itself; each story brings its own.
"""

import yaml

from bayplan.cli.manifests import render
from bayplan.cli.story import Arrival, Json, Later, Story, node, pod

_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_GROUPS = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/podgroups"
_TOPOLOGIES = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"
_RACK = "example.com/rack"

_POD_GROUPS = tuple((_DEFINITIONS, made) for made in yaml.safe_load_all(render("crds", {})))


def _group(name: str, minimum: int, within: str = "") -> tuple[str, Json]:
    notes = {"bayplan.dev/gang-within": within} if within else {}
    made = {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": name, "annotations": notes},
        "spec": {"minMember": minimum},
    }
    return _GROUPS, made


def _member(name: str, group: str, gpus: int = 0) -> Json:
    made = pod(name, "bayplan", gpus)
    made["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": group}
    return made


GROUP = Story(
    name="scheduler-plugins' Coscheduling",
    says="a PodGroup with minMember 3: two wait, and with the third all three run",
    nodes=(node("a"),),
    others=(*_POD_GROUPS, _group("nginx", 3)),
    scenes=(
        Arrival(_member("nginx-1", "nginx"), None, "one of three"),
        Arrival(_member("nginx-2", "nginx"), None, "two of three"),
        Arrival(_member("nginx-3", "nginx"), "a", "the third"),
        Later("nginx-1", "a", "with the third"),
        Later("nginx-2", "a", "with the third"),
    ),
)


def _racked(name: str, rack: str) -> Json:
    made = node(name, 8)
    made["metadata"]["labels"][_RACK] = rack
    return made


def _lasting(name: str, seconds: int, on: str = "") -> Json:
    """A pod of 8 GPUs that ends by itself."""
    made = pod(name, "bayplan", 8)
    made["metadata"]["annotations"] = {"bayplan.dev/run-seconds": str(seconds)}
    if on:
        made["spec"]["nodeSelector"] = {"kubernetes.io/hostname": on}
    return made


RACK = Story(
    name="a gang in one rack",
    says="bayplan.dev/gang-within: all on nodes that agree in a label, or nowhere",
    nodes=(_racked("x-1", "x"), _racked("y-1", "y"), _racked("y-2", "y")),
    others=(*_POD_GROUPS, _group("train", 2, _RACK)),
    scenes=(
        Arrival(_lasting("other", 20, "y-2"), "y-2", "for 20 s"),
        Arrival(_member("train-0", "train", 8), None, "one of two"),
        Arrival(_member("train-1", "train", 8), None, "x-1 and y-1 are free, in two racks"),
        Later("train-0", "y-2", "other has ended, and rack y has room for both"),
        Later("train-1", "y-1", "at the same time"),
    ),
)

CROWD = Story(
    name="a large gang among small pods",
    says="once it has waited for gangs.reserveAfter, here 1 s, places are kept for it",
    nodes=(node("a", 8), node("b", 8)),
    others=(*_POD_GROUPS, _group("large", 2)),
    reserve_after_s=1.0,
    scenes=(
        Arrival(_lasting("early", 10, "a"), "a", "for 10 s"),
        Arrival(_member("large-0", "large", 8), None, "one of two"),
        Arrival(_member("large-1", "large", 8), None, "one of two fits"),
        Arrival(_lasting("small-1", 30), "b", "for 30 s: it came before early ended"),
        Arrival(pod("small-2", "bayplan", 8), None, "early ended, and a is kept", after_s=10.0),
        Later("large-0", "b", "small-1 has ended"),
        Later("large-1", "a", "kept for it, though small-2 asked for it"),
    ),
)


def _zoned(name: str, *free: int) -> tuple[str, Json]:
    """A node with a zone for each of these numbers of free cpus."""
    zones = [
        {
            "name": f"node-{number}",
            "type": "Node",
            "resources": [
                {"name": "cpu", "capacity": "16", "allocatable": "16", "available": str(cpus)},
                {"name": "memory", "capacity": "64Gi", "allocatable": "64Gi", "available": "32Gi"},
            ],
        }
        for number, cpus in enumerate(free)
    ]
    made = {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": name},
        "attributes": [{"name": "topologyManagerPolicy", "value": "single-numa-node"}],
        "zones": zones,
    }
    return _TOPOLOGIES, made


def _topologies() -> tuple[str, Json]:
    """The kind, with any content."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    names = {"kind": "NodeResourceTopology", "plural": "noderesourcetopologies"}
    version = {"name": "v1alpha2", "served": True, "storage": True}
    made = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "noderesourcetopologies.topology.node.k8s.io",
            "annotations": {  # the API server asks for it in every group that ends in k8s.io
                "api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/1870"
            },
        },
        "spec": {
            "group": "topology.node.k8s.io",
            "scope": "Cluster",
            "names": names | {"singular": "noderesourcetopology"},
            "versions": [version | {"schema": {"openAPIV3Schema": anything}}],
        },
    }
    return _DEFINITIONS, made


ZONES = Story(
    name="scheduler-plugins' NodeResourceTopologyMatch",
    says="a Guaranteed pod goes where one NUMA zone has all of its cpus",
    nodes=(node("a"), node("b")),
    others=(_topologies(), _zoned("a", 3, 3), _zoned("b", 4, 1)),
    scenes=(
        Arrival(pod("db", "bayplan", cpu=4), "b", "b has fewer cpus free, but 4 of them in a zone"),
        Arrival(pod("db-2", "bayplan", cpu=4), None, "no zone has 4"),
        Arrival(pod("web", "bayplan", cpu=2), "a", "a zone of a has 2; those of b may be used up"),
    ),
)
