"""Kubernetes JSON in, values out: what kube-scheduler makes of each field."""

import json
from typing import Any

import msgspec
import pytest

from bayplan.core.model.nodes import Image
from bayplan.core.model.pods import HostPort, Pod, RowKey
from bayplan.core.model.selectors import Taint, Toleration
from bayplan.kube.read import Reader

Json = dict[str, Any]


def read(
    spec: Json | None = None,
    status: Json | None = None,
    labels: Json | None = None,
    newcomer: bool = False,
    **metadata: Any,
) -> Pod:
    named = {"name": "p", "namespace": "prod", "labels": labels, **metadata}
    return Reader().pod({"metadata": named, "spec": spec, "status": status}, newcomer)


# Pods


def test_the_least_pod() -> None:
    pod = Reader().pod(b'{"metadata":{"name":"p"}}')
    row = RowKey(containers=0)
    assert pod == Pod(uid="default/p", namespace="default", name="p", labels={}, row=row)


def test_null_is_as_good_as_absent() -> None:
    nothing = dict.fromkeys(
        (
            *("containers", "initContainers", "volumes", "resources", "overhead", "nodeName"),
            *("nodeSelector", "affinity", "tolerations", "topologySpreadConstraints", "priority"),
            *("schedulerName", "schedulingGates", "preemptionPolicy", "resourceClaims"),
        )
    )
    assert read(nothing, {"phase": None, "conditions": None}, uid=None) == read()


def test_the_plain_fields() -> None:
    pod = read(
        {
            "nodeName": "n1",
            "schedulerName": "bayplan",
            "priority": -5,
            "preemptionPolicy": "Never",
            "schedulingGates": [{"name": "a.b/c"}],
        },
        {"startTime": "1970-01-01T01:00:02+01:00", "nominatedNodeName": "n2"},
        {"app": "web"},
        uid="u",
        creationTimestamp="1970-01-01T00:00:01.5Z",
        deletionTimestamp="2026-01-01T00:00:00Z",
    )
    assert (pod.uid, pod.key, pod.labels) == ("u", "prod/p", {"app": "web"})
    assert (pod.node, pod.scheduler, pod.priority, pod.preempts) == ("n1", "bayplan", -5, False)
    assert (pod.created_s, pod.started_s, pod.nominated) == (1.5, 2.0, "n2")
    assert (pod.gates, pod.terminating) == (("a.b/c",), True)


def test_bytes_raw_json_and_mappings_read_alike() -> None:
    manifest = {"metadata": {"name": "p"}, "spec": {"overhead": {"cpu": 1.5, "memory": 10**30}}}
    data = json.dumps(manifest).encode()
    reader = Reader()
    assert reader.pod(data) == reader.pod(msgspec.Raw(data)) == reader.pod(manifest)


def test_equal_keys_become_one() -> None:
    reader = Reader()
    spec = {
        "tolerations": [{"operator": "Exists"}],
        "topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}],
    }
    one, other = (reader.pod({"metadata": {"name": n}, "spec": spec}) for n in "ab")
    assert one.row is other.row
    assert one.terms is other.terms is not None


@pytest.mark.parametrize("spec", [{}, {"activeDeadlineSeconds": 9, "preemptionPolicy": "Never"}])
def test_equal_lifecycles_and_workers_become_one(spec: dict[str, Any]) -> None:
    reader = Reader()
    owner = {"apiVersion": "bayplan.dev/v1alpha1", "kind": "ElasticJob", "uid": "u"}
    facts = {"annotations": {"bayplan.dev/elastic": "train"}, "ownerReferences": [owner]}
    one, other = (reader.pod({"metadata": {"name": n, **facts}, "spec": spec}) for n in "ab")
    assert one.lifecycle is other.lifecycle
    assert one.worker is other.worker is not None


@pytest.mark.parametrize(
    ("phase", "live"), [("Running", True), (None, True), ("Failed", False), ("Succeeded", False)]
)
def test_pods_at_their_end_are_known(phase: str | None, live: bool) -> None:
    pod = {"metadata": {"name": "p"}, "status": {"phase": phase}}
    assert (Reader().live_pod(pod) is not None) is live


def test_a_newcomer_that_names_a_node_insists_on_it() -> None:
    assert read({"nodeName": "n1"}).node == "n1"
    assert read({"nodeName": "n1"}).row.node_name == ""
    newcomer = read({"nodeName": "n1"}, newcomer=True)
    assert (newcomer.node, newcomer.row.node_name) == ("", "n1")


def test_requests_from_every_place() -> None:
    spec = {
        "containers": [
            {"name": "a", "resources": {"requests": {"cpu": 0.5, "memory": "1Ki", "x.y/z": 2}}},
            {"name": "b", "resources": {"requests": {"cpu": "250m", "other": "7"}}},
        ],
        "initContainers": [
            {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": 1}}},
            {"name": "i", "resources": {"requests": {"memory": "4Ki"}}},
        ],
        "overhead": {"cpu": "1m"},
    }
    row = read(spec).row
    assert row.requests == (("cpu", 1751), ("memory", 4096), ("x.y/z", 2))
    assert row.containers == 4


def test_a_resize_counts_once_the_pod_is_bound() -> None:
    spec: Json = {"containers": [{"name": "a", "resources": {"requests": {"cpu": "1"}}}]}
    status: Json = {
        "containerStatuses": [
            {"name": "a", "resources": {"requests": {"cpu": 2}}, "allocatedResources": {"cpu": 3}}
        ]
    }
    assert read(spec, status).row.requests == (("cpu", 1000),)
    bound = {**spec, "nodeName": "n"}
    assert read(bound, status).row.requests == (("cpu", 3000),)
    status["conditions"] = [{"type": "PodResizePending", "reason": "Infeasible"}]
    assert read({**bound, "containers": spec["containers"]}, status).row.requests[0][1] == 3000
    status["containerStatuses"][0]["resources"] = None  # the node has not said
    assert read(bound, status).row.requests == (("cpu", 1000),)


def test_a_pod_level_resize() -> None:
    spec = {"nodeName": "n", "resources": {"requests": {"cpu": "1"}}}
    status = {"resources": {"requests": {"cpu": "2"}}, "allocatedResources": {"cpu": "1500m"}}
    assert read(spec, status).row.requests == (("cpu", 2000),)


def test_host_ports() -> None:
    port = {"hostPort": 80}
    spec = {
        "containers": [
            {"ports": [port, port, {"containerPort": 1}, {"hostPort": 0}, {"hostPort": -1}]},
            {"ports": [{"hostPort": 53, "protocol": "UDP", "hostIP": "10.0.0.1"}]},
        ],
        "initContainers": [
            {"ports": [{"hostPort": 1}]},
            {"restartPolicy": "Always", "ports": [{"hostPort": 2, "hostIP": "", "protocol": ""}]},
        ],
    }
    assert read(spec).row.ports == (
        HostPort("TCP", 2, "0.0.0.0"),
        HostPort("TCP", 80, "0.0.0.0"),
        HostPort("UDP", 53, "10.0.0.1"),
    )


def test_images_are_named_in_full() -> None:
    spec = {
        "initContainers": [{"image": "a"}],
        "containers": [{"image": "reg:5000/a"}, {"image": "a:1"}, {"image": "a@sha256:0"}, {}],
        "volumes": [{"image": {"reference": "m"}}, {"emptyDir": {}}],
    }
    names = ("a:latest", "reg:5000/a:latest", "a:1", "a@sha256:0", ":latest", "m:latest")
    assert read(spec).row.images == names


def test_tolerations() -> None:
    spec = {"tolerations": [{"key": "k", "value": "v"}, {"operator": "Exists", "effect": "E"}]}
    assert read(spec).row.tolerations == (
        Toleration("k", "Equal", "v", ""),
        Toleration("", "Exists", "", "E"),
    )


# Nodes and namespaces


def test_a_node() -> None:
    node = Reader().node(
        {
            "metadata": {"name": "n", "uid": "u", "labels": {"zone": "z"}},
            "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}], "unschedulable": True},
            "status": {
                "allocatable": {"cpu": "1.5", "memory": 10, "pods": "110", "x.y/z": 2, "odd": "1"},
                "images": [{"names": ["a", "b"], "sizeBytes": 7}, {"names": None}],
            },
        }
    )
    assert (node.name, node.uid, node.labels, node.unschedulable) == ("n", "u", {"zone": "z"}, True)
    assert node.allocatable == {"cpu": 1500, "memory": 10, "pods": 110, "x.y/z": 2}
    assert node.taints == (Taint("k", "", "NoSchedule"),)
    assert node.images == (Image(("a", "b"), 7), Image((), 0))


def test_a_node_without_a_status_has_nothing() -> None:
    assert Reader().node(b'{"metadata":{"name":"n"},"spec":null}').allocatable == {}


def test_a_namespace() -> None:
    named = Reader().namespace({"metadata": {"name": "prod", "labels": {"team": "a"}}})
    assert named == ("prod", {"team": "a"})
