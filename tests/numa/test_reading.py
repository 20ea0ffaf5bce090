"""NodeResourceTopology objects: both versions, zones under any name, and nonsense."""

from typing import Any

import msgspec
import pytest

from bayplan.core.engine.engine import Engine
from bayplan.core.model import events as on
from bayplan.core.model.numa import FAR, Topology, Zone
from bayplan.core.model.pods import ZoneAsk
from bayplan.kube.read import Reader, Unreadable
from bayplan.testing.world import World
from tests.numa.clusters import Lone, container, manifest, topology, zone
from tests.numa.clusters import pod as pod_of

Json = dict[str, Any]
CPU = {"cpu": "8/3500m", "memory": "4Gi"}
GIB4 = 4 << 30


def read(published: Json) -> Topology:
    return Reader().topology(published)


def test_what_is_read_of_v1alpha2() -> None:
    published = topology(
        "n1",
        [CPU, CPU],
        attributes=[
            {"name": "topologyManagerPolicy", "value": "restricted"},
            {"name": "topologyManagerScope", "value": "pod"},
            {"name": "nodeTopologyPodsFingerprint", "value": "pfp0v0011234567890abcdef"},
            {"name": "nodeTopologyPodsFingerprintMethod", "value": "with-exclusive-resources"},
        ],
    )
    published["metadata"]["managedFields"] = [
        {"time": "2026-01-01T00:00:10Z", "fieldsV1": {"f:zones": {}}},
        {"time": "2026-01-01T00:00:20Z", "fieldsV1": {"f:metadata": {"f:labels": {}}}},
    ]
    published["zones"][0]["costs"] = [
        {"name": "node-0", "value": 10},
        {"name": "node-1", "value": "21"},
    ]
    amounts = ((("cpu", 8000), ("memory", GIB4)), (("cpu", 3500), ("memory", GIB4)))

    assert read(published) == Topology(
        node="n1",
        policy="restricted",
        scope="pod",
        zones=(Zone("node-0", 0, *amounts, (10, 21)), Zone("node-1", 1, *amounts)),
        fingerprint="pfp0v0011234567890abcdef",
        of_exclusive=True,
        written_s=1767225610.0,
    )


def test_what_is_read_of_v1alpha1() -> None:
    """With numbers for quantities, in a namespace, the fingerprint as an annotation."""
    published = topology("n1", [{"cpu": "4"}], "SingleNUMANodePodLevel")
    published["apiVersion"] = "topology.node.k8s.io/v1alpha1"
    published["metadata"] |= {
        "namespace": "default",
        "annotations": {"topology.node.k8s.io/fingerprint": "pfp0v001"},
    }
    published["zones"][0]["resources"][0] |= {"capacity": 4, "allocatable": 4, "available": 3}

    found = read(published)

    assert (found.policy, found.scope, found.fingerprint) == ("single-numa-node", "pod", "pfp0v001")
    assert found.zones == (Zone("node-0", 0, (("cpu", 4000),), (("cpu", 3000),)),)


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        (["node-1", "node-0"], {"node-0": 0, "node-1": 1}),
        (["numa-node-0", "numa-node-3"], {"numa-node-0": 0, "numa-node-3": 3}),
        (["left", "right"], {"left": 0, "right": 1}),
        (["a0", "b0"], {"a0": 0, "b0": 1}),
        (["socket1", "far"], {"socket1": 0, "far": 1}),
    ],
)
def test_zones_may_have_any_name(names: list[str], numbers: dict[str, int]) -> None:
    published = {**topology("n1", []), "zones": [zone(name, CPU) for name in names]}

    assert {each.name: each.number for each in read(published).zones} == numbers


def test_zones_of_another_name_are_filled_as_those_of_the_usual_one() -> None:
    published = topology("n1", [], "SingleNUMANodeContainerLevel")
    published["zones"] = [zone("left", {"cpu": "4", "memory": "8Gi"})]
    here = Lone(published)

    assert here.says(pod_of("p", container({"cpu": "4", "memory": "1Gi"}))) == ""
    assert here.says(pod_of("p", container({"cpu": "5", "memory": "1Gi"}))) == (
        "cannot align container"
    )


def test_zones_of_another_type_and_what_is_too_much_are_passed_over() -> None:
    published = topology("n1", [{"cpu": "4/9"}])
    published["zones"].append({"name": "socket-0", "type": "Socket", "resources": [{}]})
    published["zones"].append(zone("node-64", {"cpu": "4"}))

    assert [each.available for each in read(published).zones] == [(("cpu", 4000),)]


def changed(**fields: Any) -> Json:
    return {**topology("n1", [CPU]), **fields}


def with_resource(**fields: Any) -> Json:
    published = topology("n1", [CPU])
    published["zones"][0]["resources"][0] |= fields
    return published


NONSENSE = [
    (with_resource(available="-1"), "zones[0].resources[0].available: it is negative"),
    (
        with_resource(allocatable="lots"),
        "zones[0].resources[0].allocatable: 'lots' is not a quantity",
    ),
    (with_resource(available={}), "zones[0].resources[0].available: '{}' is not a quantity"),
    (with_resource(available=None), "zones[0].resources[0].available: it is not there"),
    (with_resource(name=""), "zones[0].resources[0].name: it has no name"),
    (with_resource(name="memory"), "zones[0].resources[1].name: 'memory' is there twice"),
    (changed(zones=[zone("z", CPU), zone("z", CPU)]), "zones[1].name: 'z' is there twice"),
    (changed(zones=[zone("", CPU)]), "zones[0].name: it has no name"),
    (
        changed(zones=[zone(f"z{i}", CPU) for i in range(65)]),
        "zones: 65 zones; a kubelet has 64 at most",
    ),
    (
        changed(topologyPolicies=["BestOfAll"]),
        "topologyPolicies[0]: 'BestOfAll' is no policy that is known",
    ),
    (
        changed(attributes=[{"name": "topologyManagerPolicy", "value": "strict"}]),
        "attributes[topologyManagerPolicy]: 'strict' is no policy that is known",
    ),
    (
        changed(attributes=[{"name": "topologyManagerScope", "value": "node"}]),
        "attributes[topologyManagerScope]: 'node' is neither container nor pod",
    ),
    (changed(zones="two"), "zones: Expected `array | null`, got `str`"),
    (
        changed(zones=[zone("z", CPU, {"z": 1000})]),
        f"zones[0].costs[0].value: it is 1000, above {FAR}, which stands for no distance known",
    ),
]


@pytest.mark.parametrize(("published", "why"), NONSENSE)
def test_nonsense_is_told_by_object_and_field(published: Json, why: str) -> None:
    with pytest.raises(Unreadable) as caught:
        read(published)

    assert str(caught.value) == f"noderesourcetopology n1: {why}"


def test_nonsense_closes_its_node_to_pods_that_zones_matter_to_and_to_no_others() -> None:
    world = World(a=0)
    world.tell(on.TopologySeen(Topology("a", unknown="zones: 65 zones")))
    world.tell(on.TopologySeen(Topology("nowhere", "restricted")))
    world.submit("plain", cpu=1000)
    world.submit("picky", cpu=1000, aligned=(ZoneAsk((("cpu", 1000),)),), guaranteed=True)

    assert world.running() == {"plain": "a"}
    assert world.waiting() == {"picky": "0/1 nodes are available: 1 invalid node topology data."}

    world.tell(on.TopologyGone("a"))
    world.wait(1)

    assert world.running() == {"plain": "a", "picky": "a"}


# ---- what is read of pods


@pytest.mark.parametrize(
    ("requests", "limits", "aligned"),
    [
        ({"cpu": "2", "memory": "1Gi"}, None, (("cpu", 2000), ("memory", 1 << 30))),
        ({"cpu": "1500m", "memory": "1Gi"}, None, (("memory", 1 << 30),)),
        ({"cpu": "2", "memory": "1Gi"}, {"cpu": "3", "memory": "1Gi"}, ()),
        ({"cpu": "2"}, {}, ()),
        ({"cpu": "2", "x.io/nic": "1"}, {"x.io/nic": "1"}, (("x.io/nic", 1),)),
        (
            {"cpu": "1", "memory": "1Gi", "hugepages-2Mi": "4Mi", "ephemeral-storage": "1Gi"},
            None,
            (("cpu", 1000), ("hugepages-2Mi", 4 << 20), ("memory", 1 << 30)),
        ),
    ],
)
def test_what_a_kubelet_aligns(requests: Json, limits: Json | None, aligned: Any) -> None:
    row = pod_of("p", container(requests, limits)).row

    assert tuple(ask.amounts for ask in row.aligned) == ((aligned,) if aligned else ())
    assert row.guaranteed == (bool(aligned) and "memory" in dict(aligned))


def test_phases_come_in_the_order_of_their_start() -> None:
    own = container({"cpu": "1", "memory": "1Gi"})
    row = pod_of("p", own, init=[own, {**own, "restartPolicy": "Always"}]).row

    assert [ask.phase for ask in row.aligned] == ["init", "sidecar", "main"]


def test_resources_of_the_pod_as_a_whole_are_not_aligned() -> None:
    whole = {"requests": {"cpu": "2", "memory": "2Gi"}, "limits": {"cpu": "2", "memory": "2Gi"}}

    assert pod_of("p", container({"cpu": "1", "memory": "1Gi"}), resources=whole).row.aligned == ()


def test_the_same_spec_of_another_class_is_another_row() -> None:
    """Live pods say their QoS class in the status; limits are not read."""
    reader = Reader()
    made = manifest("p", container({"cpu": "1", "memory": "1Gi"}))
    rows = [
        reader.pod(msgspec.json.encode({**made, "status": {"qosClass": quality}})).row
        for quality in ("Guaranteed", "Burstable")
    ]

    assert [row.guaranteed for row in rows] == [True, False]


def test_a_topology_may_come_before_its_node() -> None:
    engine = Engine()
    published = topology("n1", [{"cpu": "1", "memory": "1Gi"}], "RestrictedPodLevel")
    engine.handle(on.TopologySeen(read(published)), 0.0)

    assert Lone(published).says(pod_of("p", container({"cpu": "2", "memory": "1Gi"}))) == (
        "cannot align pod"
    )
    assert engine.cluster.zones.free("n1") == ({"cpu": 1000, "memory": 1 << 30},)
