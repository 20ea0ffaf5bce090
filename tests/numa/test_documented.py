"""scheduler-plugins' documented cases: the same verdicts and the same messages."""

from typing import Any

import pytest

from bayplan.core.model.pods import Pod
from tests.numa.clusters import Json, Lone, container, pod, scores, topology, zone

CONTAINER, INIT, POD = (
    "cannot align container",
    "cannot align init container",
    "cannot align pod",
)
CONTAINER_LEVEL, POD_LEVEL = "SingleNUMANodeContainerLevel", "SingleNUMANodePodLevel"
NIC, OLD_NIC, EXTENDED, NO_NIC = (
    "vendor/nic1",
    "vendor.com/old-nic-model",
    "namespace/extended",
    "vendor/notexistingnic",
)
HUGE = "hugepages-2Mi"
SMALL = [
    {"cpu": "20/2", "memory": "8Gi/4Gi", NIC: "30/5"},
    {"cpu": "30/4", "memory": "8Gi/4Gi", NIC: "30/2"},
]
LARGE = [
    {"cpu": "20/4", "memory": "8Gi", NIC: "30/10"},
    {"cpu": "30/8", "memory": "8Gi", NIC: "30/10"},
]
HUGE_PAGES = [{**each, HUGE: "128Mi"} for each in SMALL]
NODES: dict[str, tuple[Json, dict[str, str]]] = {
    "large": (topology("large", LARGE, CONTAINER_LEVEL), {}),
    "small": (topology("small", HUGE_PAGES, CONTAINER_LEVEL), {OLD_NIC: "4"}),
    "pod": (topology("pod", SMALL, POD_LEVEL), {}),
    "bad": (
        {
            **topology("bad", [], POD_LEVEL),
            "zones": [zone("node-0", SMALL[0]), zone("node-75", SMALL[1])],
        },
        {},
    ),
    "extended": (topology("extended", LARGE, CONTAINER_LEVEL), {EXTENDED: "1"}),
}


def ask(amounts: dict[str, str], limits: dict[str, str] | None = None, count: int = 1) -> Pod:
    return pod("p", *[container(amounts, limits)] * count)


def cpu_memory(cpu: str, memory: str, **more: Any) -> dict[str, str]:
    return {"cpu": cpu, "memory": memory}


ONE = [
    # Guaranteed with other resources
    ("extended", ask({"cpu": "2", "memory": "2Gi", EXTENDED: "1", NIC: "3"}), ""),
    ("extended", ask({"cpu": "2", "memory": "2Gi", EXTENDED: "1"}), ""),
    # BestEffort
    ("large", pod("p", container({})), ""),
    ("pod", ask({NIC: "5"}), ""),
    ("pod", ask({NIC: "20"}), POD),
    ("small", ask({NIC: "5"}), ""),
    ("large", ask({NIC: "20"}), CONTAINER),
    ("extended", ask({EXTENDED: "1", NIC: "10"}), ""),
    # Burstable: devices count, cpu and memory do not
    *[
        (where, ask(asked, {**asked, "cpu": "40", "memory": "40Gi"}), said)
        for where, asked, said in (
            ("small", {"cpu": "3", "memory": "3Gi", NIC: "11"}, CONTAINER),
            ("pod", {"cpu": "1", "memory": "1Gi", NIC: "6"}, POD),
            ("pod", {"cpu": "1", "memory": "1Gi", NIC: "5"}, ""),
            ("pod", {"cpu": "19", "memory": "5Gi", NIC: "5"}, ""),
            ("small", {"cpu": "3", "memory": "3Gi", NIC: "5"}, ""),
            ("small", {"cpu": "5", "memory": "5Gi", NIC: "5"}, ""),
        )
    ],
    ("small", ask({"cpu": "4", NIC: "3"}), ""),
    ("small", ask({"cpu": "4", NIC: "11"}), CONTAINER),
    ("pod", ask({"cpu": "2", NIC: "6"}), POD),
    ("pod", ask({"cpu": "2", NIC: "5"}), ""),
    ("pod", ask({"cpu": "20", NIC: "5"}), ""),
    ("small", ask({"cpu": "2", NIC: "5"}), ""),
    ("small", ask({"cpu": "4", NIC: "5"}), ""),
    ("small", ask({"memory": "2Gi", NIC: "11"}), CONTAINER),
    ("pod", ask({"memory": "2Gi", NIC: "6"}), POD),
    ("pod", ask({"memory": "2Gi", NIC: "5"}), ""),
    ("pod", ask({"memory": "5Gi", NIC: "5"}), ""),
    ("small", ask({"memory": "4Gi", NIC: "5"}), ""),
    ("small", ask({"memory": "5Gi", NIC: "5"}), ""),
    ("small", ask({"cpu": "4", "memory": "4Gi", NIC: "11"}, {NIC: "11"}), CONTAINER),
    ("pod", ask({"cpu": "2", "memory": "2Gi", NIC: "6"}, {NIC: "6"}), POD),
    ("pod", ask({"cpu": "2", "memory": "2Gi", NIC: "5"}, {NIC: "5"}), ""),
    ("pod", ask({"cpu": "20", "memory": "5Gi", NIC: "5"}, {NIC: "5"}), ""),
    ("small", ask({"cpu": "4", "memory": "4Gi", NIC: "5"}, {NIC: "5"}), ""),
    ("small", ask({"cpu": "5", "memory": "5Gi", NIC: "5"}, {NIC: "5"}), ""),
    ("extended", ask({EXTENDED: "1", "cpu": "4", NIC: "3"}), ""),
    # Guaranteed
    ("large", ask(cpu_memory("2", "2Gi")), ""),
    ("large", ask(cpu_memory("8", "8Gi")), ""),
    ("large", ask({"cpu": "2", "memory": "2Gi", HUGE: "0", NIC: "3"}), ""),
    ("small", ask({"cpu": "2", "memory": "2Gi", NIC: "3"}), ""),
    ("small", ask({"cpu": "2", "memory": "2Gi", HUGE: "64Mi", NIC: "3"}), ""),
    ("small", ask({"cpu": "2", "memory": "2Gi", HUGE: "256Mi", NIC: "3"}), CONTAINER),
    ("large", ask({"cpu": "9", "memory": "1Gi", NIC: "3"}), CONTAINER),
    ("large", ask({"cpu": "2", "memory": "1Gi", NO_NIC: "0"}), ""),
    ("pod", ask({"cpu": "3", "memory": "1Gi", NO_NIC: "0"}, count=3), POD),
    ("pod", ask(cpu_memory("1", "1Gi")), ""),
    ("bad", ask(cpu_memory("2", "4Gi")), ""),
    ("pod", ask({"cpu": "1", "memory": "1Gi", NO_NIC: "0"}, count=3), ""),
    ("bad", ask({"cpu": "1", "memory": "1Gi", NO_NIC: "0"}, count=3), POD),
    ("small", ask({"cpu": "2", "memory": "2Gi", HUGE: "64Mi", OLD_NIC: "3"}), ""),
    ("small", ask({"cpu": "2", "memory": "2Gi", "ephemeral-storage": "100Mi"}), ""),
]


@pytest.mark.parametrize(("where", "newcomer", "said"), ONE)
def test_one_container_or_equal_ones(where: str, newcomer: Pod, said: str) -> None:
    published, more = NODES[where]

    assert Lone(published, more).says(newcomer) == said


HOST = [
    {"cpu": "32/30", "memory": "64Gi/60Gi", HUGE: "384Mi", NIC: "16"},
    {"cpu": "32", "memory": "64Gi", HUGE: "512Mi", NIC: "32"},
]
FIRST = [cpu_memory("2", "2Gi"), cpu_memory("4", "8Gi")]
SEVERAL: list[tuple[list[dict[str, str]], str]] = [
    ([*FIRST, {"cpu": "26", "memory": "32Gi", HUGE: "512Mi", NIC: "26"}], ""),
    (
        [
            cpu_memory("2", "2Gi"),
            cpu_memory("8", "8Gi"),
            {"cpu": "26", "memory": "26Gi", HUGE: "52Mi", NIC: "26"},
        ],
        POD,
    ),
    (
        [
            cpu_memory("2", "4Gi"),
            cpu_memory("4", "16Gi"),
            {"cpu": "26", "memory": "52Gi", HUGE: "52Mi", NIC: "26"},
        ],
        POD,
    ),
    ([*FIRST, {"cpu": "26", "memory": "32Gi", HUGE: "3328Mi", NIC: "26"}], POD),
    ([*FIRST, {"cpu": "26", "memory": "26Gi", HUGE: "52Mi", NIC: "52"}], POD),
]


@pytest.mark.parametrize(("containers", "said"), SEVERAL)
def test_several_containers_of_a_pod_together(containers: list[dict[str, str]], said: str) -> None:
    host = Lone(topology("host0", HOST, POD_LEVEL))

    assert host.says(pod("p", *map(container, containers))) == said


A, B = cpu_memory("20", "40G"), cpu_memory("30", "10G")
EACH: list[tuple[list[dict[str, str]], list[dict[str, str]], str]] = [
    ([], [cpu_memory("2", "4G")], ""),
    ([], [cpu_memory("40", "4G")], CONTAINER),
    ([], [cpu_memory("2", "100G")], CONTAINER),
    ([], [cpu_memory("40", "100G")], CONTAINER),
    ([], [A, A], ""),
    (
        [],
        [
            {"cpu": "2", "memory": "6G", HUGE: "500Mi", NIC: "16"},
            {"cpu": "2", "memory": "6G", HUGE: "50Mi", NIC: "8"},
        ],
        "",
    ),
    ([cpu_memory("40", "40G")], [cpu_memory("1", "4G")] * 2, INIT),
    ([cpu_memory("4", "70G")], [cpu_memory("1", "4G")] * 2, INIT),
    ([cpu_memory("4", "10G")], [A, A], ""),
    ([cpu_memory("4", "10G")] * 3, [A, A, cpu_memory("6", "10G")], ""),
    ([B, B], [A, A, cpu_memory("20", "6G")], CONTAINER),
    ([B, B], [cpu_memory("35", "40G")], CONTAINER),
    # Not as there, where these fit: the kubelet binds the second container to the zone of cpus that
    # an init container had and the first one has left over.
    ([B, B], [A, A], CONTAINER),
    ([B, B, B], [A, A, cpu_memory("2", "6G")], CONTAINER),
    ([cpu_memory("3", "50G")] * 3, [A, A, cpu_memory("2", "6G")], ""),
    ([cpu_memory("40", "50G"), *[cpu_memory("3", "50G")] * 2], [A, cpu_memory("2", "6G")], INIT),
    (
        [cpu_memory("20", "50G"), cpu_memory("40", "50G"), cpu_memory("3", "50G")],
        [A, cpu_memory("2", "6G")],
        INIT,
    ),
]


@pytest.mark.parametrize(("init", "containers", "said"), EACH)
def test_each_container_by_itself(
    init: list[dict[str, str]], containers: list[dict[str, str]], said: str
) -> None:
    host = Lone(topology("host0", HOST, CONTAINER_LEVEL))
    newcomer = pod("p", *map(container, containers), init=[container(each) for each in init])

    assert host.says(newcomer) == said


# ---- scores


def three(policy: str) -> list[Json]:
    sizes = {"Node1": ("4", "500Mi"), "Node2": ("2", "50Mi"), "Node3": ("6", "60Mi")}
    return [
        topology(name, [{"cpu": cpu, "memory": memory}] * 2, policy)
        for name, (cpu, memory) in sizes.items()
    ]


@pytest.mark.parametrize(
    ("kind", "best", "score", "alone"),
    [
        ("MostAllocated", "Node2", 70, 27),
        ("BalancedAllocation", "Node3", 100, 89),
        ("LeastAllocated", "Node1", 73, 73),
    ],
)
def test_how_full_zones_become(kind: str, best: str, score: int, alone: int) -> None:
    newcomer = ask(cpu_memory("2", "20Mi"))

    found = scores(kind, three(CONTAINER_LEVEL), newcomer)

    assert max(found.items(), key=lambda each: each[1]) == (best, score)
    assert found["Node1"] == alone
    others = [topology(name, [], "None") for name in ("Node2", "Node3")]
    assert scores(kind, [three(CONTAINER_LEVEL)[0], *others], newcomer) == {
        "Node1": alone,
        "Node2": 0,
        "Node3": 0,
    }


FEW = [
    ("Container", [cpu_memory("2", "50Mi")], (94, 94, 94)),
    ("Container", [cpu_memory("4", "50Mi")], (94, 82, 94)),
    ("Container", [cpu_memory("6", "50Mi")], (82, 0, 94)),
    ("Container", [cpu_memory("2", "50Mi")] * 2, (94, 94, 94)),
    ("Container", [cpu_memory("1", "50Mi"), cpu_memory("3", "50Mi")], (94, 82, 94)),
    ("Container", [cpu_memory("5", "50Mi"), cpu_memory("3", "50Mi")], (82, 0, 94)),
    ("Pod", [cpu_memory("2", "50Mi")] * 2, (94, 82, 82)),
    ("Pod", [cpu_memory("1", "50Mi"), cpu_memory("3", "50Mi")], (94, 82, 82)),
    ("Pod", [cpu_memory("5", "50Mi"), cpu_memory("3", "50Mi")], (82, 0, 82)),
]


@pytest.mark.parametrize(("scope", "containers", "wanted"), FEW)
def test_fewest_zones(
    scope: str, containers: list[dict[str, str]], wanted: tuple[int, int, int]
) -> None:
    newcomer = pod("p", *map(container, containers))

    found = scores("LeastNUMANodes", three(f"BestEffort{scope}Level"), newcomer)

    assert tuple(found.values()) == wanted


GPU = "x.io/gpu"
NEAR = {"0": (10, 12, 20, 20), "1": (12, 10, 20, 20), "2": (20, 20, 10, 12), "3": (20, 20, 12, 10)}


def four(name: str, *gpus: int) -> Json:
    zones = []
    for i, count in enumerate(gpus):
        costs = {f"node-{j}": cost for j, cost in enumerate(NEAR[str(i)])}
        amounts = {"cpu": "2", "memory": "50Mi", GPU: str(count)}
        zones.append(zone(f"node-{i}", amounts, costs))
    return {**topology(name, [], "BestEffortContainerLevel"), "zones": zones}


@pytest.mark.parametrize(
    ("gpus", "more", "wanted"),
    [("1", [], (94, 94)), ("2", [], (82, 76)), ("2", [cpu_memory("2", "50Mi")], (82, 76))],
)
def test_near_zones_before_far_ones(
    gpus: str, more: list[dict[str, str]], wanted: tuple[int, int]
) -> None:
    newcomer = pod("p", *map(container, [{**cpu_memory("2", "50Mi"), GPU: gpus}, *more]))
    nodes = [four("Node1", 1, 1, 0, 0), four("Node2", 1, 0, 1, 0)]

    assert tuple(scores("LeastNUMANodes", nodes, newcomer).values()) == wanted
