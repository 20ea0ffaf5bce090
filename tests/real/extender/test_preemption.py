"""An unchanged kube-scheduler that does not count devices, and nodes full of pods that matter less:
the extender makes room. There are no kubelets, so the test ends the pods that have to go."""

import time
from collections.abc import Iterator

import pytest

from bayplan.testing.controlplane import ControlPlane
from tests.real.apicheck import Json
from tests.real.chaos.waiting import eventually
from tests.real.extender import rig, rules
from tests.real.extender.rig import Extender, StartExtender, StartScheduler
from tests.real.extender.rules import INF2, TRN1

CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
LATE_S = 60.0


class Place:
    """Two nodes, and pods on them."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane, self.space = plane, namespace
        self.path = f"/api/v1/namespaces/{namespace}/pods"
        for name, kind in (("inf2-a", INF2), ("trn1-a", TRN1)):
            plane.request("POST", "/api/v1/nodes", rig.node(name, kind))

    def add(self, name: str, kind: str, devices: int, priority: str = "", **spec: object) -> Json:
        made = rig.pod(name, kind, devices)
        made["spec"] |= {"terminationGracePeriodSeconds": 1, **spec}
        if priority:
            made["spec"]["priorityClassName"] = priority
        found: Json = self.plane.request("POST", self.path, made)
        return found

    def pods(self) -> dict[str, Json]:
        raws = self.plane.request("GET", self.path)["items"]
        return {raw["metadata"]["name"]: raw for raw in raws}

    def is_bound(self, *names: str) -> bool:
        found = self.pods()
        return all("nodeName" in found[name]["spec"] for name in names)

    def victims(self, count: int) -> set[str]:
        """Once so many are leaving. Meanwhile things happen in the cluster: else kube-scheduler
        tries a pod that an extender refused again only after five minutes."""

        def found() -> set[str]:
            note = {"metadata": {"annotations": {"stirred": str(time.monotonic())}}}
            self.plane.request("PATCH", "/api/v1/nodes/inf2-a", note)
            names = self.leaving()
            return names if len(names) >= count else set()

        return eventually(found, "victims", LATE_S)

    def leaving(self) -> set[str]:
        pods = self.pods().items()
        return {name for name, pod in pods if "deletionTimestamp" in pod["metadata"]}

    def end(self, names: set[str]) -> None:
        """As a kubelet does when the containers have ended."""
        for name in names:
            self.plane.request("DELETE", f"{self.path}/{name}?gracePeriodSeconds=0")

    def told(self, name: str) -> tuple[int, ...] | None:
        return rules.read(self.pods()[name]).told


@pytest.fixture
def place(wiped: ControlPlane, namespace: str) -> Iterator[Place]:
    """With a class of higher priority that has the name of the namespace."""
    wiped.request("POST", CLASSES, {"metadata": {"name": namespace}, "value": 1000})
    yield Place(wiped, namespace)
    wiped.request("DELETE", f"{CLASSES}/{namespace}")


def looks(extender: Extender, result: str) -> int:
    """How often victims were looked for, with this result."""
    name = f'bayplan_extender_preemptions_total{{result="{result}"}}'
    lines = extender.get("/metrics")[1].splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith(name))


def test_pods_go_for_devices_that_kube_scheduler_does_not_count(
    place: Place, start_extender: StartExtender, start_scheduler: StartScheduler
) -> None:
    extender = start_extender().wait_until_ready()
    start_scheduler(extender.port, ignores=True)
    low = [f"low-{number}" for number in range(4)]
    for name in low:
        place.add(name, TRN1, 4)
    eventually(lambda: place.is_bound(*low), "the node is full")
    place.add("high", TRN1, 8, place.space)
    place.add("other", TRN1, 4)

    gone = place.victims(2)
    place.end(set(sorted(gone)[:1]))
    place.end(set(sorted(gone)[1:]))
    eventually(lambda: place.is_bound("high"), "the pod that others went for", LATE_S)

    told = place.told("high")
    assert told in (tuple(range(8)), tuple(range(8, 16)))
    assert not place.is_bound("other")
    stay = [name for name in low if name not in gone]
    assert place.is_bound(*stay)
    assert not place.leaving()
    assert not {each for name in stay for each in place.told(name) or ()} & set(told or ())
    assert looks(extender, "found") == 1
    events = f"/apis/events.k8s.io/v1/namespaces/{place.space}/events"
    said = place.plane.request("GET", events)["items"]
    preempted = {e["regarding"]["name"] for e in said if e["reason"] == "Preempted"}
    assert preempted == gone


def test_pods_go_for_devices_side_by_side(
    place: Place, start_extender: StartExtender, start_scheduler: StartScheduler
) -> None:
    """kube-scheduler counts enough of them, and so finds nobody who would have to go."""
    extender = start_extender().wait_until_ready()
    start_scheduler(extender.port)
    low = [f"low-{number}" for number in range(4)]
    for name in low:
        place.add(name, INF2, 3)
        eventually(lambda name=name: place.is_bound(name), "it is bound")  # type: ignore[misc]
    by_first = {(place.told(name) or (0,))[0]: name for name in low}
    place.end({by_first[0], by_first[6]})
    place.add("high", INF2, 6, place.space)

    gone = place.victims(1)
    assert gone <= {by_first[3], by_first[9]}
    place.end(gone)
    eventually(lambda: place.is_bound("high"), "the pod that another went for", LATE_S)
    assert len(gone) == 1
    assert not place.leaving()


def test_what_kube_scheduler_can_do_itself_is_left_to_it(
    place: Place, start_extender: StartExtender, start_scheduler: StartScheduler
) -> None:
    extender = start_extender().wait_until_ready()
    start_scheduler(extender.port)
    low = [f"low-{number}" for number in range(3)]
    for name in low:
        place.add(name, INF2, 4)
    eventually(lambda: place.is_bound(*low), "the node is full")
    place.add("high", INF2, 4, place.space)

    gone = eventually(place.leaving, "a victim", LATE_S)
    eventually(lambda: "nominatedNodeName" in place.pods()["high"]["status"], "a nomination")
    asked = {"Pod": place.pods()["high"], "NodeNames": ["inf2-a"]}
    deadline = time.monotonic() + 3.0
    while time.monotonic() < deadline:
        assert extender.ask("filter", asked)[1]["NodeNames"] == []
    place.end(gone)
    eventually(lambda: place.is_bound("high"), "the pod that another went for", LATE_S)
    assert (len(gone), looks(extender, "found"), looks(extender, "no victims")) == (1, 0, 0)
