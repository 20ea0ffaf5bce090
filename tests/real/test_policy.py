"""Nobody but Bayplan writes assignments and inventories: the policies on a real API server.

All accounts here have all rights on pods and nodes, so what is refused, a policy refuses.
"""

import json
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from bayplan.core.model.devices import ASSIGNMENT, INVENTORY
from bayplan.testing.controlplane import ControlPlane, Refused
from tests.real.rig import Json, node, pod
from tests.real.rights import apply, printed
from tests.real.ruled import Act, Ruled, passes

IDS = "ids.bayplan.dev/main"
PARTITION = "vipu.bayplan.dev/partition"


@pytest.fixture(scope="module")
def ruled(control_plane: ControlPlane) -> Iterator[Ruled]:
    found = Ruled(control_plane, everything=True)
    try:
        found.enforce()
        yield found
    finally:
        found.lift()


def refusal(act: Act) -> str:
    """What a policy says against it."""
    with pytest.raises(Refused) as caught:
        act()
    assert caught.value.status == 403
    message: str = json.loads(str(caught.value).partition(": ")[2])["message"]
    assert " denied request: " in message
    return message.partition(" denied request: ")[2]


def _without(body: Json, key: str) -> Json:
    del body["metadata"]["annotations"][key]
    return body


FORGERIES: dict[str, Callable[[Ruled, str], object]] = {
    "created with": lambda at, key: at.user.create("forged", {key: "forged"}),
    "patched on": lambda at, key: at.user.annotate(at.given(), {key: "forged"}),
    "patched on when bound": lambda at, key: at.user.annotate(
        at.given(to=at.here), {key: "forged"}
    ),
    "with the status": lambda at, key: at.user.annotate(at.given(), {key: "forged"}, "/status"),
    "bound with": lambda at, key: at.user.bind(at.given(), at.here, {key: "forged"}),
    "bound with, of old": lambda at, key: at.user.bind_as_of_old(
        at.given(), at.here, {key: "forged"}
    ),
    "changed": lambda at, key: at.user.annotate(at.given({key: "true"}), {key: "forged"}),
    "removed": lambda at, key: at.user.annotate(at.given({key: "true"}), {key: None}),
    "removed with the status": lambda at, key: at.user.annotate(
        at.given({key: "true"}), {key: None}, "/status"
    ),
    "left out": lambda at, key: at.user.replace(
        _without(at.user.read(at.given({key: "true"})), key)
    ),
}


@pytest.mark.parametrize("key", [ASSIGNMENT, IDS, PARTITION])
@pytest.mark.parametrize("how", FORGERIES)
def test_a_user_cannot_write_an_assignment(how: str, key: str, ruled: Ruled) -> None:
    said = refusal(lambda: FORGERIES[how](ruled, key))

    assert said.startswith(f"the annotation {key} may be ")
    assert ruled.account(ruled.space) in said
    assert said.endswith(f", not by {ruled.account('user')}")


def test_not_even_an_admin_can(ruled: Ruled) -> None:
    said = refusal(lambda: ruled.admin.annotate(ruled.given(), {ASSIGNMENT: "forged"}))

    assert said.endswith(", not by admin")


@pytest.mark.parametrize("sub", ["/ephemeralcontainers", "/resize"])
def test_other_ways_to_a_pod_do_not_carry_an_assignment(sub: str, ruled: Ruled) -> None:
    """The server drops annotations there; the policies are asked in case it does not."""
    name = ruled.given({ASSIGNMENT: "true"})
    passes(lambda: ruled.user.annotate(name, {ASSIGNMENT: "forged", IDS: "forged"}, sub))

    assert ruled.user.read(name)["metadata"]["annotations"] == {ASSIGNMENT: "true"}


def test_a_user_may_change_all_else_of_a_pod_that_has_one(ruled: Ruled) -> None:
    user, name = ruled.user, ruled.given({ASSIGNMENT: "true", IDS: "0,1"})
    user.label(name, tier="batch")
    user.annotate(name, {"example.com/a": "1", "bayplan.dev/checkpoint": "now"})
    user.annotate(name, {"example.com/a": None, ASSIGNMENT: "true"})
    user.annotate(name, {"example.com/b": "2"}, "/status")
    body = user.read(name)
    body["metadata"]["labels"]["tier"] = "prod"
    user.replace(body)
    found = user.read(name)["metadata"]

    assert found["labels"] == {"name": name, "tier": "prod"}
    assert found["annotations"] == {
        ASSIGNMENT: "true",
        IDS: "0,1",
        "bayplan.dev/checkpoint": "now",
        "example.com/b": "2",
    }


def test_other_schedulers_bind_as_ever(ruled: Ruled) -> None:
    one, other = ruled.given(), ruled.given()
    ruled.user.bind(one, ruled.here, {"example.com/a": "1"})
    ruled.user.bind_as_of_old(other, ruled.there)

    assert ruled.user.read(one)["metadata"]["annotations"] == {"example.com/a": "1"}
    assert ruled.user.read(other)["spec"]["nodeName"] == ruled.there


@pytest.mark.parametrize("who", ["", "-extender", "static"])
def test_the_scheduler_the_extender_and_named_users_bind_with_it(who: str, ruled: Ruled) -> None:
    writer = ruled.person(who if who == "static" else f"{ruled.space}{who}")
    one, other = ruled.given(), ruled.given()
    writer.bind(one, ruled.here, {ASSIGNMENT: "true", IDS: "0,1", PARTITION: "bp-1"})
    writer.bind_as_of_old(other, ruled.here, {ASSIGNMENT: "true"})
    writer.annotate(other, {ASSIGNMENT: "corrected"}, "/status")

    assert ruled.user.read(one)["metadata"]["annotations"] == {
        ASSIGNMENT: "true",
        IDS: "0,1",
        PARTITION: "bp-1",
    }
    assert ruled.user.read(other)["metadata"]["annotations"] == {ASSIGNMENT: "corrected"}


def test_the_agent_corrects_the_pods_of_its_node(ruled: Ruled) -> None:
    agent, name = ruled.agent(ruled.here), ruled.given({ASSIGNMENT: "true", IDS: "0"})
    agent.annotate(name, {ASSIGNMENT: "corrected", IDS: "1"})
    agent.annotate(name, {IDS: None})

    assert ruled.user.read(name)["metadata"]["annotations"] == {ASSIGNMENT: "corrected"}


@pytest.mark.parametrize("where", ["another node", "no node"])
def test_the_agent_changes_nothing_on_other_pods(where: str, ruled: Ruled) -> None:
    agent, name = ruled.agent(ruled.here), ruled.given()
    if where == "another node":
        ruled.scheduler.bind(name, ruled.there, {ASSIGNMENT: "true"})
    acts: tuple[Act, ...] = (
        lambda: agent.annotate(name, {ASSIGNMENT: "corrected"}),
        lambda: agent.annotate(name, {ASSIGNMENT: "corrected"}, "/status"),
        lambda: agent.label(name, tier="batch"),
    )
    for act in acts:
        said = refusal(act)
        assert said.startswith(f"{ASSIGNMENT} may be written by the agent of node {ruled.here} ")


def test_the_agent_does_not_bind_with_it(ruled: Ruled) -> None:
    agent, name = ruled.agent(ruled.here), ruled.given()
    said = refusal(lambda: agent.bind(name, ruled.here, {ASSIGNMENT: "true"}))

    assert said.startswith(f"the annotation {ASSIGNMENT} may be bound only by ")


def test_only_the_agent_of_a_node_says_what_the_node_has(ruled: Ruled) -> None:
    here, there = ruled.here, ruled.there
    agent, stranger = ruled.agent(here), ruled.agent(there)
    agent.annotate_node(here, {INVENTORY: "true"})
    agent.annotate_node(here, {INVENTORY: "newer"}, "/status")
    forged = node(f"{here}-forged")
    forged["metadata"]["annotations"] = {INVENTORY: "forged"}
    user, key = ruled.user, INVENTORY
    acts: tuple[Act, ...] = (
        lambda: user.annotate_node(here, {key: "forged"}),
        lambda: user.annotate_node(here, {key: "forged"}, "/status"),
        lambda: user.annotate_node(here, {key: None}),
        lambda: user.annotate_node(there, {key: "forged"}),
        lambda: user.ask("POST", "/api/v1/nodes", forged),
        lambda: ruled.admin.annotate_node(here, {key: "forged"}),
        lambda: ruled.scheduler.annotate_node(here, {key: "forged"}),
        lambda: stranger.annotate_node(here, {key: "forged"}),
        lambda: stranger.annotate_node(here, {"example.com/a": "1"}, "/status"),
    )
    for act in acts:
        assert INVENTORY in refusal(act)
    user.annotate_node(here, {"bayplan.dev/cordon-devices": "0"})
    found = user.ask("GET", f"/api/v1/nodes/{here}")["metadata"]["annotations"]

    assert found == {INVENTORY: "newer", "bayplan.dev/cordon-devices": "0"}


def test_a_kubelet_reports_and_does_not_forge(ruled: Ruled) -> None:
    name = ruled.given({ASSIGNMENT: "true"})
    ruled.agent(ruled.here).annotate_node(ruled.here, {INVENTORY: "true"})
    of_pod = f"/api/v1/namespaces/{ruled.space}/pods/{name}/status"
    of_node = f"/api/v1/nodes/{ruled.here}/status"
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    for path, key in ((of_pod, ASSIGNMENT), (of_node, INVENTORY)):
        found = ruled.as_kubelet("PATCH", path, ready)
        assert "Ready" in {condition["type"] for condition in found["status"]["conditions"]}
        assert found["metadata"]["annotations"][key] == "true"
        forged = {"metadata": {"annotations": {key: "forged"}}}
        said = refusal(partial(ruled.as_kubelet, "PATCH", path, forged))
        assert said.startswith(f"the annotation {key} may be written only by ")
        assert said.endswith(f", not by system:node:{ruled.here}")


def test_a_kubelet_shows_its_static_pods(ruled: Ruled) -> None:
    uid = ruled.user.ask("GET", f"/api/v1/nodes/{ruled.here}")["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": ruled.here, "uid": uid, "controller": True}
    mirror = pod("static-pod", nodeName=ruled.here)
    mirror["metadata"]["ownerReferences"] = [owner]
    mirror["metadata"]["annotations"] = {
        "kubernetes.io/config.mirror": "0",
        "bayplan.dev/configuration": "{}",
    }
    made = ruled.as_kubelet("POST", f"/api/v1/namespaces/{ruled.space}/pods", mirror)

    assert made["spec"]["nodeName"] == ruled.here


def test_more_annotations_than_can_be_searched_are_refused(ruled: Ruled) -> None:
    many = {f"example.com/{number}": "" for number in range(4096)}
    ruled.user.create("many", many)
    said = refusal(lambda: ruled.user.create("more", many | {"one": "more"}))

    assert said.startswith("so many annotations cannot be searched for bayplan.dev/assignment")


def test_every_object_is_accepted_and_stays_as_it_is(ruled: Ruled) -> None:
    first = apply(ruled.plane, printed("policy"), "--dry-run=server")
    again = apply(ruled.plane, ruled.policy)

    assert len(first) == len(again) == 6
    assert all(line.endswith(" created (server dry run)") for line in first)
    assert all(line.endswith(" unchanged") for line in again)
