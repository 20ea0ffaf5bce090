"""PodGroups on a real API server: our definition of the kind, and the kind that Kubernetes has."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bayplan.cli.clusters import load_cluster
from bayplan.testing.controlplane import ControlPlane, Refused
from tests.real.rig import Cluster, Json, Scheduler, pod, until
from tests.real.rights import apply, grant, printed

CUSTOM, OWN = "scheduling.x-k8s.io", "scheduling.k8s.io"
PATHS = {CUSTOM: f"/apis/{CUSTOM}/v1alpha1", OWN: f"/apis/{OWN}/v1alpha2"}
LABEL = "scheduling.x-k8s.io/pod-group"
GATES = {"GenericWorkload": True, "GangScheduling": True, "TopologyAwareWorkloadScheduling": True}


@pytest.fixture(scope="module")
def grouping() -> Iterator[ControlPlane]:
    """A control plane that has both kinds."""
    enabled = f"--runtime-config={OWN}/v1alpha2=true"
    with ControlPlane(feature_gates=GATES, apiserver_args=[enabled]) as plane:
        apply(plane, printed("crds"))
        established = "--for=condition=Established"
        plane.kubectl("wait", f"crd/podgroups.{CUSTOM}", established, "--timeout=20s")
        until(lambda: is_served(plane))
        yield plane


def is_served(plane: ControlPlane) -> bool:
    """The API server takes a moment for a kind that is new."""
    try:
        plane.request("GET", f"{PATHS[CUSTOM]}/podgroups")
    except Refused:
        return False
    return True


@pytest.fixture
def groups(grouping: ControlPlane) -> Iterator["Groups"]:
    grouping.wipe()
    space = f"test-{uuid.uuid4().hex[:8]}"
    grouping.request("POST", "/api/v1/namespaces", {"metadata": {"name": space}})
    yield Groups(grouping, space)
    grouping.wipe()


class Groups(Cluster):
    """A namespace with PodGroups."""

    plane: ControlPlane

    def path(self, source: str, name: str = "") -> str:
        return f"{PATHS[source]}/namespaces/{self.namespace}/podgroups/{name}".rstrip("/")

    def add_group(self, name: str, source: str = CUSTOM, **spec: Any) -> None:
        version = PATHS[source].removeprefix("/apis/")
        head = {"apiVersion": version, "kind": "PodGroup", "metadata": {"name": name}}
        self.plane.request("POST", self.path(source), {**head, "spec": spec})

    def add_member(self, name: str, group: str, source: str = CUSTOM, **more: Any) -> None:
        made = pod(name, **more)
        if source == CUSTOM:
            made["metadata"]["labels"][LABEL] = group
        else:
            made["spec"]["schedulingGroup"] = {"podGroupName": group}
        self.plane.request("POST", f"/api/v1/namespaces/{self.namespace}/pods", made)

    def group(self, name: str, source: str = CUSTOM) -> Json:
        found: Json = self.plane.request("GET", self.path(source, name)).get("status") or {}
        return found

    def said(self, name: str, source: str = CUSTOM) -> tuple[str, str, str]:
        """Of the group's condition: status, reason and message."""
        conditions: list[Json] = self.group(name, source).get("conditions") or []
        found = next(iter(conditions), Json())
        return found.get("status", ""), found.get("reason", ""), found.get("message", "")

    def end(self, name: str, phase: str) -> None:
        self.patch_pod(name, {"status": {"phase": phase}}, "/status")

    def start(self, **more: Any) -> Scheduler:
        return Scheduler(self.plane.directory, self.plane.kubeconfig, **more)


def test_two_of_three_wait_and_three_run(groups: Groups) -> None:
    groups.add_node("a")
    groups.add_group("pg1", minMember=3, scheduleTimeoutSeconds=10)
    for name in ("nginx-1", "nginx-2"):
        groups.add_member(name, "pg1")
    with groups.start():
        until(lambda: groups.group("pg1").get("phase") == "Pending")
        until(lambda: "2 of 3 members are here" in groups.condition("nginx-2").get("message", ""))
        until(lambda: groups.said("pg1")[:2] == ("False", "Unschedulable"))
        assert groups.places() == {}
        groups.add_member("nginx-3", "pg1")
        until(lambda: len(groups.places()) == 3)
        until(lambda: groups.said("pg1")[:2] == ("True", "Scheduled"))
        assert groups.group("pg1")["phase"] == "Scheduling"  # nobody has started them yet
        for name in ("nginx-1", "nginx-2", "nginx-3"):
            groups.end(name, "Running")
        until(lambda: groups.group("pg1")["phase"] == "Running")
        shown = groups.plane.kubectl("get", "pg", "-n", groups.namespace).splitlines()
        columns = ["NAME", "PHASE", "MINMEMBER", "SCHEDULED", "RUNNING", "SUCCEEDED", "FAILED"]
        assert shown[0].split()[:7] == columns
        assert shown[1].split()[:7] == ["pg1", "Running", "3", "3", "3", "0", "0"]
        for name in ("nginx-1", "nginx-2", "nginx-3"):
            groups.end(name, "Succeeded")
        until(lambda: groups.group("pg1")["phase"] == "Finished")
        assert groups.group("pg1")["succeeded"] == 3


def test_a_group_that_is_missing_changed_and_deleted_while_members_wait(groups: Groups) -> None:
    groups.add_node("a")
    for name in ("one", "two"):
        groups.add_member(name, "late")
    missing = f"PodGroup {groups.namespace}/late does not exist"
    with groups.start() as scheduler:

        def why(name: str) -> str:
            """At once; the pod's condition is written every half minute at most."""
            path = f"/v1/explain/{groups.namespace}/{name}"
            return scheduler.get(path, scheduler.api_port) or ""

        until(lambda: missing in groups.condition("one").get("message", ""))
        groups.add_group("late", minMember=4)
        until(lambda: "2 of 4 members are here" in why("one"))
        groups.plane.request("DELETE", groups.path(CUSTOM, "late"))
        until(lambda: missing in why("one"))
        groups.add_group("late", minMember=3)
        until(lambda: "2 of 3 members are here" in why("one"))
        assert groups.places() == {}
        groups.plane.request("PATCH", groups.path(CUSTOM, "late"), {"spec": {"minMember": 2}})
        until(lambda: len(groups.places()) == 2)
        groups.plane.request("DELETE", groups.path(CUSTOM, "late"))
        groups.add_member("three", "late")
        until(lambda: missing in why("three"))
        assert len(groups.places()) == 2  # those that run stay


def test_the_definition_refuses_what_makes_no_sense(groups: Groups) -> None:
    odd: list[Json] = [{}, {"minMember": 0}, {"minMember": "3"}, {"minMember": 2**31}]
    odd += [{"minMember": 1, "scheduleTimeoutSeconds": -1}, {"minMember": 1, "minResources": 5}]
    for spec in odd:
        with pytest.raises(Refused):
            groups.add_group("odd", **spec)
    groups.add_group("good", minMember=1, minResources={"cpu": 1, "memory": "1Gi"})


def test_a_million_members_two_groups_and_owners_in_a_circle(groups: Groups) -> None:
    groups.add_node("a")
    groups.add_group("million", minMember=1_000_000)
    groups.add_group("round", minMember=2)
    groups.add_member("lonely", "million")
    for name in ("egg", "hen"):
        groups.add_member(name, "round")
    torn = pod("torn")
    torn["metadata"]["labels"] |= {LABEL: "round", "pod-group.scheduling.sigs.k8s.io": "other"}
    groups.plane.request("POST", f"/api/v1/namespaces/{groups.namespace}/pods", torn)
    uids = {name: groups.pod(name)["metadata"]["uid"] for name in ("egg", "hen")}
    for name, owner in (("egg", "hen"), ("hen", "egg")):
        made_by = {"apiVersion": "v1", "kind": "Pod", "name": owner, "uid": uids[owner]}
        owners = {"ownerReferences": [made_by | {"controller": True}]}
        groups.patch_pod(name, {"metadata": owners})
    with groups.start():
        until(lambda: groups.places().keys() == {"egg", "hen"})
        until(lambda: "1 of 1000000 members" in groups.condition("lonely").get("message", ""))
        until(lambda: any(LABEL in each["note"] for each in groups.events("torn")))
        until(lambda: groups.group("round").get("scheduled") == 2)
        assert groups.places().keys() == {"egg", "hen"}


def test_more_than_there_is_waits_with_the_reason_on_the_group(groups: Groups) -> None:
    groups.add_node("a", 2)
    groups.add_group("big", minMember=3)
    for i in range(3):
        groups.add_member(f"big-{i}", "big")
    with groups.start():
        until(lambda: "Insufficient nvidia.com/gpu" in groups.said("big")[2])
        assert groups.said("big")[:2] == ("False", "Unschedulable")
        assert groups.group("big")["phase"] == "Scheduling"
        groups.add_node("b", 2)
        until(lambda: len(groups.places()) == 3)
        until(lambda: groups.said("big")[0] == "True")


def test_the_kind_that_kubernetes_has(groups: Groups) -> None:
    for name, rack in (("a", "x"), ("b", "y"), ("c", "y")):
        groups.add_node(name, 1, labels={"rack": rack})
    gang = {"gang": {"minCount": 2}}
    one_rack = {"topology": [{"key": "rack"}]}
    groups.add_member("one", "own", OWN)
    with groups.start():
        missing = f"{groups.namespace}/own does not exist"
        until(lambda: missing in groups.condition("one").get("message", ""))
        groups.add_group("own", OWN, schedulingPolicy=gang, schedulingConstraints=one_rack)
        until(lambda: "1 of 2 members are here" in groups.said("own", OWN)[2])
        groups.add_member("two", "own", OWN)
        until(lambda: len(groups.places()) == 2)
        until(lambda: groups.said("own", OWN)[:2] == ("True", "Scheduled"))
        assert set(groups.places().values()) == {"b", "c"}
        for name in ("one", "two"):
            groups.delete_pod(name)
        groups.add_member("three", "own", OWN, gpus=9)
        until(lambda: groups.condition("three").get("reason") == "Unschedulable")
        assert groups.said("own", OWN)[0] == "True"  # never taken back
        groups.add_group("basic", OWN, schedulingPolicy={"basic": {}})
        groups.add_member("alone", "basic", OWN)
        until(lambda: groups.node_of("alone"))
        until(lambda: groups.said("basic", OWN)[0] == "True")


def test_our_role_is_enough(groups: Groups) -> None:
    space = groups.namespace
    grant(groups.plane, space)
    groups.add_node("a")
    for source in (CUSTOM, OWN):
        spec: Json = {"minMember": 1}
        if source == OWN:
            spec = {"schedulingPolicy": {"gang": {"minCount": 1}}}
        groups.add_group("g", source, **spec)
        groups.add_member(source.replace(".", "-"), "g", source)
    token = groups.plane.service_account_token(space, space)
    kubeconfig = groups.plane.kubeconfig_for(f"{space}-account", token)
    with Scheduler(groups.plane.directory, kubeconfig) as scheduler:
        until(lambda: groups.said("g")[0] == groups.said("g", OWN)[0] == "True")
    log = scheduler.process.log.read_text()
    assert "forbidden" not in log
    assert "going without" not in log


def test_a_dump_of_it_can_be_asked(groups: Groups, tmp_path: Path) -> None:
    groups.add_node("a")
    groups.add_group("g", minMember=2)
    groups.add_group("h", OWN, schedulingPolicy={"gang": {"minCount": 3}})
    kinds = f"nodes,podgroups.{CUSTOM},podgroups.{OWN}"
    (tmp_path / "dump.json").write_text(groups.plane.kubectl("get", kinds, "-A", "-o", "json"))
    known = load_cluster([str(tmp_path / "dump.json")]).engine.cluster.groups

    def minimum(key: str) -> int:
        group = known.get(key)
        return 0 if group is None else group.gang.minimum

    assert minimum(f"PodGroup {groups.namespace}/g") == 2
    assert minimum(f"PodGroup.{OWN} {groups.namespace}/h") == 3
