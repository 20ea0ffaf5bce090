"""Binds that kube-scheduler would send again, too late or to the wrong place."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from bayplan.testing.controlplane import ControlPlane
from tests.real.apicheck import Json
from tests.real.chaos.waiting import eventually
from tests.real.extender import rig, rules
from tests.real.extender.rig import Extender, StartExtender
from tests.real.extender.rules import INF2

NODES = ("inf2-a", "inf2-b")
UNKNOWN = "nowhere"


class Place:
    """Two nodes, an extender, and pods of a test."""

    def __init__(self, plane: ControlPlane, namespace: str, extender: Extender) -> None:
        self._plane, self._path = plane, f"/api/v1/namespaces/{namespace}/pods"
        self.extender = extender

    def add(self, name: str = "train", devices: int = 3) -> Json:
        """A pod that the extender has seen."""
        made: Json = self._plane.request("POST", self._path, rig.pod(name, INF2, devices))
        eventually(lambda: self.passes(made), "the extender sees the pod")
        return made

    def passes(self, pod: Json) -> list[str]:
        """The nodes that the filter lets through."""
        asked = {"Pod": pod, "Nodes": None, "NodeNames": list(NODES)}
        status, said = self.extender.ask("filter", asked)
        assert (status, said["Error"] or "") == (200, "")
        return list(said["NodeNames"])

    def delete(self, pod: Json) -> None:
        path = f"{self._path}/{pod['metadata']['name']}?gracePeriodSeconds=0"
        self._plane.request("DELETE", path)

    def now(self, pod: Json) -> rules.NeuronPod:
        return rules.read(self._plane.request("GET", f"{self._path}/{pod['metadata']['name']}"))


@pytest.fixture
def place(wiped: ControlPlane, namespace: str, start_extender: StartExtender) -> Place:
    for name in NODES:
        wiped.request("POST", "/api/v1/nodes", rig.node(name, INF2))
    return Place(wiped, namespace, start_extender().wait_until_ready())


def test_a_bind_that_comes_again_is_no_error_and_changes_nothing(place: Place) -> None:
    pod = place.add()
    assert place.extender.bind(pod, "inf2-a") == ""
    once = place.now(pod)

    assert place.extender.bind(pod, "inf2-a") == ""
    assert place.now(pod) == once
    assert (once.node, once.told, once.assigned) == ("inf2-a", (0, 1, 2), (0, 1, 2))


def test_sixteen_equal_binds_at_once_are_one_bind(place: Place) -> None:
    pod = place.add()

    with ThreadPoolExecutor(16) as pool:
        errors = list(pool.map(lambda _: place.extender.bind(pod, "inf2-b"), range(16)))

    assert errors == [""] * 16
    assert place.now(pod).told == (0, 1, 2)


def test_binds_to_two_nodes_at_once_leave_it_on_one(place: Place) -> None:
    pod = place.add()

    with ThreadPoolExecutor(2) as pool:
        errors = list(pool.map(lambda name: place.extender.bind(pod, name), NODES))

    assert sorted(map(bool, errors)) == [False, True]
    assert place.now(pod).node == NODES[errors.index("")]
    more = place.add("more", devices=12)  # the other node is empty still
    assert place.passes(more) == [NODES[1 - errors.index("")]]


def test_a_bound_pod_is_not_bound_elsewhere(place: Place) -> None:
    pod = place.add()
    assert place.extender.bind(pod, "inf2-a") == ""

    assert place.extender.bind(pod, "inf2-b") != ""
    assert place.now(pod).node == "inf2-a"


def test_a_deleted_pod_is_not_bound_and_holds_nothing(place: Place) -> None:
    pod = place.add(devices=12)
    place.delete(pod)

    assert place.extender.bind(pod, "inf2-a") != ""
    assert place.extender.bind(place.add("next", devices=12), "inf2-a") == ""


def test_a_pod_that_was_made_anew_is_not_bound_by_the_bind_of_the_old_one(place: Place) -> None:
    old = place.add()
    place.delete(old)
    new = place.add()

    assert place.extender.bind(old, "inf2-a") != ""
    assert place.now(new).node == ""
    assert place.extender.bind(new, "inf2-a") == ""


def test_an_unknown_node_is_an_error(place: Place) -> None:
    pod = place.add()

    assert UNKNOWN in place.extender.bind(pod, UNKNOWN)
    assert place.now(pod).node == ""
    assert place.extender.bind(pod, "inf2-a") == ""


def test_a_full_node_is_an_error_and_another_is_not(place: Place) -> None:
    first, second = place.add("first", devices=11), place.add("second", devices=2)
    assert place.extender.bind(first, "inf2-a") == ""

    assert place.extender.bind(second, "inf2-a") != ""
    assert place.now(second).node == ""
    assert place.extender.bind(second, "inf2-b") == ""
