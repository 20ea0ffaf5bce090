"""Devices as pods and nodes say them: what is read, what is not believed, what is not known."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.core.model.devices import (
    ASSIGNMENT,
    CORDON,
    INVENTORY,
    MOST_BYTES,
    Device,
    Devices,
    Inventory,
    write_inventory,
)
from bayplan.core.model.pods import MOST_MIB, Holding, Part, Pod
from bayplan.core.model.vendors import DeviceClass, Resource, Vendors
from bayplan.kube.read import Reader, Unreadable

GPU, MEMORY = "nvidia.com/gpu", "bayplan.dev/gpu-memory-mib"
VGPU, VCOMPUTE = "alnair/vgpu-memory", "alnair/vgpu-compute"
HELD_ALNAIR = "ai.centaurus.io/alnair-gpu-id"


def container(name: str = "main", **requests: Any) -> dict[str, Any]:
    return {"name": name, "resources": {"requests": requests}}


def read(
    *containers: dict[str, Any],
    notes: dict[str, str] | None = None,
    node: str = "n1",
    init: tuple[dict[str, Any], ...] = (),
) -> Pod:
    spec = {"nodeName": node, "containers": list(containers), "initContainers": list(init)}
    return Reader().pod({"metadata": {"name": "p", "annotations": notes or {}}, "spec": spec})


def assigned(
    *held: tuple[str, str, list[tuple[str, int]]], node: str = "n1", v: int = 1
) -> dict[str, str]:
    entries = [
        {
            "container": name,
            "resource": resource,
            "pool": node,
            "devices": [
                {"id": id, "index": i, "amount": amount} for i, (id, amount) in enumerate(devices)
            ],
        }
        for name, resource, devices in held
    ]
    return {ASSIGNMENT: json.dumps({"v": v, "node": node, "held": entries})}


def test_requests_are_kept_by_container_and_as_they_start() -> None:
    pod = read(
        container("a", **{VGPU: "4", VCOMPUTE: "50", "cpu": "1"}),
        container("b", **{GPU: 2}),
        init=(
            container("first", **{GPU: "1"}),
            {**container("side", **{MEMORY: "1k"}), "restartPolicy": "Always"},
        ),
    )

    assert [(a.container, a.resource, a.amount, a.phase) for a in pod.row.devices] == [
        ("first", GPU, 1, "init"),
        ("side", MEMORY, 1000, "sidecar"),
        ("a", VCOMPUTE, 50, "main"),
        ("a", VGPU, 4, "main"),
        ("b", GPU, 2, "main"),
    ]
    assert [ask.memory_mib for ask in pod.row.devices] == [0, 1000, 0, 4096, 0]


@pytest.mark.parametrize(
    ("amount", "counts"), [("1500m", 2), ("0", None), ("9E", MOST_MIB), ("1e30", MOST_MIB)]
)
def test_odd_amounts_are_counted_as_kubernetes_counts_them(amount: str, counts: int | None) -> None:
    asks = read(container(**{VGPU: amount})).row.devices

    assert [ask.amount for ask in asks] == ([] if counts is None else [counts])
    assert all(ask.memory_mib <= MOST_MIB for ask in asks)


@pytest.mark.parametrize("amount", ["NaN", "-1", "many", "", [], {}, True])
def test_what_is_no_amount_is_said(amount: Any) -> None:
    with pytest.raises(Unreadable, match="vgpu-memory"):
        read(container(**{VGPU: amount}))


def test_an_assignment_is_what_a_bound_pod_holds() -> None:
    notes = assigned(("main", VGPU, [("g0", 4)]), ("main", VCOMPUTE, [("g0", 50)]))
    pod = read(container(**{VGPU: "4", VCOMPUTE: "50"}), notes=notes)

    assert pod.held == Holding((Part("nvidia", "g0", 4096, 50),))
    assert read(container(**{VGPU: "4", VCOMPUTE: "50"}), notes=notes, node="").held is None


def test_a_pod_holds_the_most_that_it_needs_at_any_time() -> None:
    notes = assigned(
        ("first", MEMORY, [("g0", 9)]),
        ("side", MEMORY, [("g0", 2)]),
        ("later", MEMORY, [("g1", 5)]),
        ("main", MEMORY, [("g0", 4)]),
    )
    pod = read(
        container(**{MEMORY: "4"}),
        notes=notes,
        init=(
            container("first", **{MEMORY: "9"}),
            {**container("side", **{MEMORY: "2"}), "restartPolicy": "Always"},
            container("later", **{MEMORY: "5"}),
        ),
    )

    assert pod.held is not None
    assert set(pod.held.parts) == {
        Part("nvidia", "g0", 9, holders=2),  # alone at first; later 2 and 4
        Part("nvidia", "g1", 5),
    }


WRONG = {
    "nothing": {},
    "no JSON": {ASSIGNMENT: "{"},
    "a list": {ASSIGNMENT: "[]"},
    "newer": assigned(("main", GPU, [("g0", 1)]), v=2),
    "version 0": assigned(("main", GPU, [("g0", 1)]), v=0),
    "another node": assigned(("main", GPU, [("g0", 1)]), node="n2"),
    "another container": assigned(("other", GPU, [("g0", 1)])),
    "another resource": assigned(("main", MEMORY, [("g0", 1)])),
    "too many": assigned(("main", GPU, [("g0", 1), ("g1", 1)])),
    "too few": assigned(("main", GPU, [])),
    "not whole": assigned(("main", GPU, [("g0", 2)])),
    "the same device twice": assigned(("main", GPU, [("g0", 1), ("g0", 1)])),
    "the same entry twice": assigned(("main", GPU, [("g0", 1)]), ("main", GPU, [("g1", 1)])),
    "more than was asked for": assigned(("main", GPU, [("g0", 1)]), ("main", MEMORY, [("g1", 1)])),
    "another pool": {
        key: text.replace('"pool": "n1"', '"pool": "n2"')
        for key, text in assigned(("main", GPU, [("g0", 1)])).items()
    },
    "too long": {ASSIGNMENT: " " * MOST_BYTES + "{}"},
    "deep": {ASSIGNMENT: "[" * 10_000},
}


@pytest.mark.parametrize("notes", WRONG.values(), ids=WRONG)
def test_what_contradicts_the_request_is_not_known(notes: dict[str, str]) -> None:
    held = read(container(**{GPU: "1"}), notes=notes).held

    assert held is None or held == Holding((), ("nvidia",))


def test_a_pod_that_asks_for_no_device_holds_none_whatever_it_says() -> None:
    notes = assigned(("main", GPU, [("g0", 1)]))

    assert read(container(cpu="1"), notes=notes).held is None


def test_what_the_node_side_wrote_wins() -> None:
    notes = assigned(("main", VGPU, [("g0", 4)]), ("main", VCOMPUTE, [("g0", 30)]))
    asks = container(**{VGPU: "4", VCOMPUTE: "30"})

    told = read(asks, notes={**notes, HELD_ALNAIR: "g1_0,g1_1,g1_2,g1_3"}).held
    assert told == Holding((Part("nvidia", "g1", 4096, 30),))
    mixed = read(asks, notes={HELD_ALNAIR: "g1_0,g2_0"}).held
    assert mixed == Holding((Part("nvidia", "g1", 1024, 30), Part("nvidia", "g2", 1024)))
    odd = read(asks, notes={**notes, HELD_ALNAIR: "what?"}).held
    assert odd == Holding((), ("nvidia",))


def test_gpushare_and_hami_count_as_used() -> None:
    shared = read(
        container(**{"aliyun.com/gpu-mem": "3"}),
        notes={"ALIYUN_COM_GPU_MEM_IDX": "1", "ALIYUN_COM_GPU_MEM_POD": "3"},
    ).held
    assert shared == Holding((Part("nvidia", "#1", 3072),))

    hami = {"hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,3000,30:;"}
    held = Holding((Part("nvidia", "GPU-1", 3000, 30),))
    assert read(container(**{GPU: "1"}), notes=hami).held == held
    assert read(container(**{"nvidia.com/gpumem": "3000"}), notes=hami).held == held


OTHERS = {
    HELD_ALNAIR: "no_0",
    "hami.io/vgpu-devices-allocated": "GPU-zz,NVIDIA,1,0:;",
    "hami.io/vgpu-devices-to-allocate": "garbage",
    "ALIYUN_COM_GPU_MEM_IDX": "63",
    "ALIYUN_COM_GPU_MEM_POD": "1",
}


def test_other_softwares_annotations_free_nothing_that_we_have_given() -> None:
    ours = assigned(("main", MEMORY, [("g0", 16)]), ("more", GPU, [("g1", 1), ("g2", 1)]))
    containers = container(**{MEMORY: "16"}), container("more", **{GPU: "2"})
    true = read(*containers, notes=ours).held

    assert true is not None
    assert len(true.parts) == 3
    assert read(*containers, notes={**ours, **OTHERS}).held == true
    assert read(container(cpu="1"), notes=OTHERS).held is None  # it asks for no device


def test_what_alnair_says_is_about_its_own_resources() -> None:
    ours = assigned(("main", VGPU, [("g0", 1)]), ("more", GPU, [("g1", 1)]))
    pod = read(
        container(**{VGPU: "1"}),
        container("more", **{GPU: "1"}),
        notes={**ours, HELD_ALNAIR: "g3_0"},
    )

    assert pod.held is not None
    assert set(pod.held.parts) == {Part("nvidia", "g3", 1024), Part("nvidia", "g1", whole=True)}


def test_memory_by_two_names_adds_up() -> None:
    notes = assigned(("main", VGPU, [("g0", 8)]), ("main", MEMORY, [("g0", 4096)]))

    held = read(container(**{VGPU: "8", MEMORY: "4096"}), notes=notes).held
    assert held == Holding((Part("nvidia", "g0", 12 * 1024),))


def test_too_many_devices_are_not_known() -> None:
    for count in ("257", "999999999"):
        notes = {
            "ai.centaurus.io/physical-gpu-count": count,
            "ai.centaurus.io/virtual-gpu-count": "8",
        }
        (pool,) = Reader().node({"metadata": {"name": "n", "annotations": notes}}).pools
        assert pool.devices == ()
        assert "more than 256" in pool.unknown


def test_pools_come_from_the_agent_first_and_operators_can_take_devices_out() -> None:
    cards = (Device("g0", 0, 16), Device("g1", 1, 16, healthy=False), Device("g2", 2, 16))
    notes = {
        INVENTORY: write_inventory(Inventory({"nvidia": Devices(cards)})),
        "ai.centaurus.io/physical-gpu-count": "1",
        "ai.centaurus.io/virtual-gpu-count": "8",
        CORDON: " g0, 2",
    }
    (pool,) = Reader().node({"metadata": {"name": "n", "annotations": notes}}).pools
    assert [(d.id, d.healthy) for d in pool.devices] == [
        ("g0", False),
        ("g1", False),
        ("g2", False),
    ]

    del notes[INVENTORY]
    (pool,) = Reader().node({"metadata": {"name": "n", "annotations": notes}}).pools
    assert [(d.id, d.memory_mib, d.healthy) for d in pool.devices] == [("0", 8192, True)]
    assert Reader().node({"metadata": {"name": "n", "annotations": {}}}).pools == ()


def test_an_inventory_that_cannot_be_read_closes_the_node_for_devices() -> None:
    for text in ("{", '{"v":2,"classes":{}}', '{"v":1,"classes":{"nvidia":{"devices":[{}]}}}'):
        pools = Reader().node({"metadata": {"name": "n", "annotations": {INVENTORY: text}}}).pools
        assert [pool.device_class for pool in pools] == ["nvidia", "neuron"]
        for pool in pools:
            assert pool.devices == ()
            assert pool.unknown


def test_vendors_are_configuration() -> None:
    vendors = Vendors((DeviceClass("fpga", (Resource("example.com/fpga"),)),))
    pod = Reader(vendors).pod(
        {
            "metadata": {"name": "p"},
            "spec": {"containers": [container(**{"example.com/fpga": "1", GPU: "1"})]},
        }
    )

    assert [(ask.resource, ask.device_class) for ask in pod.row.devices] == [
        ("example.com/fpga", "fpga")
    ]


@given(st.dictionaries(st.sampled_from((ASSIGNMENT, INVENTORY, CORDON, HELD_ALNAIR)), st.text()))
def test_any_annotation_gives_a_pod_and_a_node(notes: dict[str, str]) -> None:
    pod = read(container(**{GPU: "1", VGPU: "1"}), notes=notes)
    node = Reader().node({"metadata": {"name": "n", "annotations": notes}})

    assert pod.held is None or set(pod.held.unknown) | {p.device_class for p in pod.held.parts}
    assert all(pool.device_class == "nvidia" or pool.unknown for pool in node.pools)
