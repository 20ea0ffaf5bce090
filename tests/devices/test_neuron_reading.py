"""What bound pods hold of Neuron devices, from annotations that are not ours; and what is not read.

A cluster that was Neuron's own extension's until now has only these."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.core.model.devices import ASSIGNMENT, Assignment, Held, HeldDevice, write_assignment
from bayplan.core.model.dialects import NEURON_CORE_MAP, NEURON_DEVICE_MAP
from bayplan.core.model.events import NodeSeen, PodGone, PodSeen
from bayplan.core.model.pods import Holding
from bayplan.kube.read import Reader
from bayplan.testing.world import NEURON as DEVICE
from bayplan.testing.world import NEURON_CORE as CORE
from bayplan.testing.world import World, asks

ALIAS = "aws.amazon.com/neurondevice"
UNKNOWN = Holding((), ("neuron",))
Containers = dict[str, dict[str, int]]


def node(noted: dict[str, str] | None = None) -> dict[str, Any]:
    room = {"cpu": "96", "memory": "384Gi", "pods": "110", DEVICE: "6", CORE: "12"}
    labels = {"node.kubernetes.io/instance-type": "inf2.24xlarge"}
    metadata = {"name": "n1", "uid": "u-n1", "labels": labels, "annotations": noted or {}}
    return {"metadata": metadata, "status": {"allocatable": room}}


def pod(noted: dict[str, str], containers: Containers, name: str = "old") -> dict[str, Any]:
    """Bound, as the API has it."""
    return {
        "metadata": {"name": name, "namespace": "ml", "uid": name, "annotations": noted},
        "spec": {
            "nodeName": "n1",
            "containers": [
                {"name": each, "resources": {"requests": {k: str(n) for k, n in asked.items()}}}
                for each, asked in containers.items()
            ],
        },
        "status": {"phase": "Running"},
    }


def held(noted: dict[str, str], **asked: int) -> Holding | None:
    """Of a pod with one container; `devices`, `cores` or `alias`."""
    names = {"devices": DEVICE, "cores": CORE, "alias": ALIAS}
    wanted = {names[name]: amount for name, amount in asked.items()}
    return Reader().pod(pod(noted, {"main": wanted})).held


def ids(found: Holding | None) -> list[str]:
    assert found is not None
    assert found.unknown == ()
    assert all(part.whole and part.device_class == "neuron" for part in found.parts)
    return [part.id for part in found.parts]


@pytest.mark.parametrize(
    ("noted", "asked", "wanted"),
    [
        ({"AWS_NEURON_IDS": "2,3"}, {"devices": 2}, ["#2", "#3"]),
        ({"AWS_NEURON_IDS": " 2 , 3,"}, {"devices": 2}, ["#2", "#3"]),
        ({"AWS_NEURON_IDS": "4"}, {"alias": 1}, ["#4"]),
        ({"AWS_NEURON_IDS": "2,3", "NEURON_RESOURCE_TYPE": DEVICE}, {"devices": 2}, ["#2", "#3"]),
        ({"NEURON_DEVS": "2,3"}, {"devices": 2}, ["#2", "#3"]),
        ({"AWS_NEURON_IDS": "6,7,8"}, {"cores": 3}, ["@6", "@7", "@8"]),
        ({"AWS_NEURON_IDS": "6", "NEURON_RESOURCE_TYPE": CORE}, {"cores": 1}, ["@6"]),
        ({"NEURON_CORES": "2,3"}, {"cores": 2}, ["@2", "@3"]),
        (
            {"NEURON_DEVS": "0", "NEURON_CORES": "2,3", "AWS_NEURON_IDS": "0"},
            {"devices": 1, "cores": 2},
            ["#0", "@2", "@3"],
        ),
        (
            {"AWS_NEURON_IDS": "0", "NEURON_RESOURCE_TYPE": DEVICE, "NEURON_CORES": "2"},
            {"devices": 1, "cores": 1},
            ["#0", "@2"],
        ),
    ],
)
def test_what_the_original_wrote_counts(
    noted: dict[str, str], asked: dict[str, int], wanted: list[str]
) -> None:
    assert ids(held(noted, **asked)) == wanted
    allocated = noted | {"NEURON_ALLOCATED": "false", "NEURON_ALLOC_TIME": "1"}
    assert ids(held(allocated, **asked)) == wanted  # whether its device plugin took note or not


@pytest.mark.parametrize(
    ("noted", "asked"),
    [
        ({"AWS_NEURON_IDS": "2"}, {"devices": 2}),  # too few
        ({"AWS_NEURON_IDS": "2,3,4"}, {"devices": 2}),
        ({"AWS_NEURON_IDS": "2,2"}, {"devices": 2}),
        ({"AWS_NEURON_IDS": ""}, {"devices": 1}),
        ({"AWS_NEURON_IDS": ","}, {"devices": 1}),
        ({"AWS_NEURON_IDS": "2,x"}, {"devices": 2}),
        ({"AWS_NEURON_IDS": "-1"}, {"devices": 1}),
        ({"AWS_NEURON_IDS": "²"}, {"devices": 1}),
        ({"AWS_NEURON_IDS": "1e0"}, {"devices": 1}),
        ({"AWS_NEURON_IDS": "65536"}, {"devices": 1}),
        ({"AWS_NEURON_IDS": "9" * 40}, {"devices": 1}),
        ({"AWS_NEURON_IDS": "0," * 70_000}, {"devices": 1}),
        ({"AWS_NEURON_IDS": "2,3", "NEURON_RESOURCE_TYPE": CORE}, {"devices": 2}),
        ({"AWS_NEURON_IDS": "2,3", "NEURON_RESOURCE_TYPE": DEVICE}, {"cores": 2}),
        ({"NEURON_DEVS": "2,3"}, {"cores": 2}),  # of the other kind only
        ({"NEURON_CORES": "2,3"}, {"devices": 2}),
        ({"NEURON_DEVS": "2"}, {"devices": 1, "cores": 1}),
        ({"AWS_NEURON_IDS": "0,1", "NEURON_DEVS": "4,5"}, {"devices": 2}),  # they differ
        ({"AWS_NEURON_IDS": "0,1", "NEURON_CORES": "4,5"}, {"cores": 2}),
        ({"AWS_NEURON_IDS": "0,1"}, {"devices": 2, "cores": 2}),  # of which kind?
        ({"AWS_NEURON_IDS": "0,1", "NEURON_RESOURCE_TYPE": "gold"}, {"devices": 2}),
    ],
)
def test_what_cannot_be_made_out_is_unknown(noted: dict[str, str], asked: dict[str, int]) -> None:
    assert held(noted, **asked) == UNKNOWN


def test_a_pod_with_nothing_written_holds_something_that_nobody_knows() -> None:
    assert held({}, devices=2) is None
    made = migrated(pod({}, {"main": {DEVICE: 2}}))
    assert made.engine.cluster.pools.ordered["neuron"].unknown[0] == 1
    made.submit("new", devices=asks(neurons=1))
    text = "0/1 nodes are available: 1 node(s) had neuron devices that are not known."
    assert made.waiting() == {"new": text}
    made.finish("new")
    made.submit("plain")
    assert made.running() == {"plain": "n1"}  # the rest of the node is as open as before


def test_a_pod_that_asks_for_none_holds_none_whatever_it_writes() -> None:
    """Else anybody could close a node, or take devices without asking."""
    noted = {"AWS_NEURON_IDS": "0,1,2,3,4,5", "NEURON_DEVS": "x"}
    made = migrated(pod(noted, {"main": {"cpu": 1}}))
    made.submit("all", devices=asks(neurons=6))
    assert made.running() == {"all": "n1"}


def migrated(*pods: dict[str, Any], noted: dict[str, str] | None = None) -> World:
    """The node, and pods that others have bound there."""
    made, reader = World(), Reader()
    made.tell(NodeSeen(reader.node(node(noted))))
    for each in pods:
        made.tell(PodSeen(reader.pod(each)))
    return made


def test_what_others_gave_is_not_given_again() -> None:
    made = migrated(
        pod({"AWS_NEURON_IDS": "1,2"}, {"main": {DEVICE: 2}}, "a"),
        pod({"NEURON_CORES": "7"}, {"main": {CORE: 1}}, "b"),  # of device 3
    )
    for i in range(4):
        made.submit(f"new{i}", devices=asks(neurons=1))
    assert sorted(made.devices.values()) == [["0"], ["4"], ["5"]]
    made.submit("core", devices=asks(cores=1))
    assert made.devices["core"] == ["6"]


def test_a_device_that_two_pods_claim_is_held_by_both() -> None:
    """Whoever goes first does not free it."""
    made = migrated(
        pod({"AWS_NEURON_IDS": "1,2"}, {"main": {DEVICE: 2}}, "a"),
        pod({"AWS_NEURON_IDS": "2,3"}, {"main": {DEVICE: 2}}, "b"),
    )
    table = made.engine.cluster.pools.ordered["neuron"]
    assert table.free[0] == 0b11_11_00_00_00_11
    for gone, free in (("a", 0b11_11_00_00_11_11), ("b", 0b11_11_11_11_11_11)):
        made.tell(PodGone(gone))
        assert table.free[0] == free


def test_several_containers_are_counted_as_kubernetes_counts_them() -> None:
    """The original writes one list for the whole pod."""
    containers = {"a": {DEVICE: 1}, "b": {DEVICE: 2}}
    found = Reader().pod(pod({"AWS_NEURON_IDS": "1,2,3"}, containers)).held
    assert ids(found) == ["#1", "#2", "#3"]
    with_init = pod({"AWS_NEURON_IDS": "1,2,3"}, containers)
    first = {"name": "first", "resources": {"requests": {DEVICE: "2"}}}
    with_init["spec"]["initContainers"] = [first]
    assert ids(Reader().pod(with_init).held) == ["#1", "#2", "#3"]
    first["resources"] = {"requests": {DEVICE: "4"}}
    assert Reader().pod(with_init).held == UNKNOWN


def ours(*numbers: int, where: str = "n1") -> str:
    devices = tuple(HeldDevice(str(number), number, 1) for number in numbers)
    return write_assignment(Assignment(where, (Held("main", DEVICE, where, devices),)))


@pytest.mark.parametrize("theirs", ["2,3", "x", ""])
def test_our_assignment_wins(theirs: str) -> None:
    noted = {"AWS_NEURON_IDS": theirs, "NEURON_DEVS": theirs}
    assert ids(held(noted | {ASSIGNMENT: ours(4, 5)}, devices=2)) == ["4", "5"]


@pytest.mark.parametrize("text", [ours(4), ours(4, 5, where="n2"), '{"v":2}', "{", ""])
def test_where_ours_is_spoilt_theirs_does_not_stand_in(text: str) -> None:
    """We have bound it, so what else is written there is a copy, or a forgery."""
    found = held({"AWS_NEURON_IDS": "2,3", ASSIGNMENT: text}, devices=2)
    assert found is None or found == UNKNOWN


@pytest.mark.parametrize("text", ["true,true,true,true,true,true", "", "garbage", "false"])
def test_maps_on_nodes_are_never_believed(text: str) -> None:
    noted = {NEURON_DEVICE_MAP: text, NEURON_CORE_MAP: text}
    assert Reader().node(node(noted)).pools == Reader().node(node()).pools
    made = migrated(pod({"AWS_NEURON_IDS": "0"}, {"main": {DEVICE: 1}}), noted=noted)
    made.submit("five", devices=asks(neurons=5))
    assert made.devices == {"five": ["1", "2", "3", "4", "5"]}


@given(
    st.dictionaries(
        st.sampled_from(("AWS_NEURON_IDS", "NEURON_DEVS", "NEURON_CORES", "NEURON_RESOURCE_TYPE")),
        st.text(max_size=12) | st.lists(st.integers(-1, 20)).map(lambda n: ",".join(map(str, n))),
    ),
    st.integers(0, 3),
    st.integers(0, 3),
)
def test_any_text_is_as_much_as_was_asked_for_or_unknown(
    noted: dict[str, str], devices: int, cores: int
) -> None:
    found = held(noted, devices=devices, cores=cores)
    if found is None or found.unknown:
        assert found is None or (found == UNKNOWN and devices + cores > 0)
        return
    by_core = [part for part in found.parts if part.id[0] == "@"]
    assert (len(found.parts) - len(by_core), len(by_core)) == (devices, cores)
    assert all(part.id[1:].isdecimal() for part in found.parts)


def test_numbers_that_the_node_does_not_have_hold_something_that_nobody_knows() -> None:
    for noted, asked in (
        ({"AWS_NEURON_IDS": "900,901"}, {DEVICE: 2}),
        ({"NEURON_CORES": "11,12"}, {CORE: 2}),
    ):
        made = migrated(pod(noted, {"main": asked}))
        assert made.engine.cluster.pools.ordered["neuron"].unknown[0] > 0
        made.submit("new", devices=asks(neurons=1))
        assert "devices that are not known" in made.waiting()["new"]
        made.engine.handle(PodGone("old"), made.now)
        assert made.engine.cluster.pools.ordered["neuron"].unknown[0] == 0


@pytest.mark.parametrize(
    ("type", "amounts", "cores"),
    [
        ("trn2.48xlarge", {DEVICE: 16, CORE: 64}, 4),
        ("trn2.48xlarge", {DEVICE: 16, CORE: 128}, 8),
        ("trn2.48xlarge", {DEVICE: 16}, 4),
        ("trn2.48xlarge", {CORE: 128}, 8),
        ("trn2.48xlarge", {DEVICE: 16, CORE: 120}, None),
        ("trn2.48xlarge", {DEVICE: 16, CORE: 0}, None),
        ("trn2.48xlarge", {DEVICE: 0, CORE: 64}, None),
        ("trn1.32xlarge", {DEVICE: 16, CORE: 30}, None),
        ("trn1.32xlarge", {DEVICE: 15, CORE: 30}, None),
        ("trn9.48xlarge", {DEVICE: 8, CORE: 32}, 4),
        ("trn9.48xlarge", {DEVICE: 0, CORE: 32}, None),
        ("trn9.48xlarge", {DEVICE: 10**12}, None),
        ("trn9.48xlarge", {CORE: 10**12}, None),
    ],
)
def test_devices_and_cores_must_go_together(
    type: str, amounts: dict[str, int], cores: int | None
) -> None:
    """Else nothing is given: a device plugin may be about to start, or something is broken."""
    labels = {"node.kubernetes.io/instance-type": type}
    room = {name: str(amount) for name, amount in amounts.items()}
    made = {"metadata": {"name": "n1", "labels": labels}, "status": {"allocatable": room}}
    (pool,) = Reader().node(made).pools

    if cores is None:
        assert pool.unknown
        assert pool.devices == ()
    else:
        assert {device.cores for device in pool.devices} == {cores}


def test_a_plugin_that_is_away_leaves_no_pool() -> None:
    room = {DEVICE: "0", CORE: "0"}
    assert Reader().node({"metadata": {"name": "n1"}, "status": {"allocatable": room}}).pools == ()
