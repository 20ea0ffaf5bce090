"""Manifests from files, and what the API server would have filled in."""

import json
from typing import Any

import pytest

from bayplan.kube.defaults import Classes, classes_of, default_pod
from bayplan.kube.manifests import BadFile, load_dump, load_objects, pod_of
from bayplan.kube.read import Reader, Unreadable

Json = dict[str, Any]
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def spec_of(classes: Classes | None = None, labels: Json | None = None, **spec: Any) -> Json:
    manifest = {"metadata": {"name": "p", "labels": labels}, "spec": spec}
    before = json.dumps(manifest)
    defaulted: Json = default_pod(manifest, classes)["spec"]
    assert json.dumps(manifest) == before  # it is a copy
    return defaulted


def container(requests: Json | None = None, limits: Json | None = None, **more: Any) -> Json:
    return {"name": "c", "resources": {"requests": requests, "limits": limits}, **more}


def test_namespace_scheduler_and_priority() -> None:
    pod = default_pod({"metadata": {"name": "p"}, "spec": {}})
    assert pod["metadata"]["namespace"] == "default"
    assert pod["spec"] == {
        "schedulerName": "default-scheduler",
        "priority": 0,
        "preemptionPolicy": "PreemptLowerPriority",
    }
    assert default_pod(pod) == pod


def test_requests_from_limits() -> None:
    spec = spec_of(
        containers=[container({"cpu": "1"}, {"cpu": "2", "x.y/z": 1}), {"name": "bare"}],
        initContainers=[container(None, {"memory": "1Gi"})],
    )
    assert spec["containers"][0]["resources"]["requests"] == {"cpu": "1", "x.y/z": 1}
    assert spec["initContainers"][0]["resources"]["requests"] == {"memory": "1Gi"}
    assert "requests" not in spec["containers"][1]["resources"]


def test_quantities_are_stored_in_thousandths() -> None:
    spec = spec_of(containers=[container({"cpu": "1500u", "memory": "0.1m", "x.y/z": "1.5"})])
    assert spec["containers"][0]["resources"]["requests"] == {
        "cpu": "2m",
        "memory": "1m",
        "x.y/z": "1.5",
    }


def test_pod_level_requests_come_from_containers_then_from_limits() -> None:
    spec = spec_of(
        resources={"limits": {"cpu": "4", "memory": "8Gi"}},
        containers=[container({"cpu": "1"}), container({"cpu": "500m"})],
    )
    assert spec["resources"]["requests"] == {"cpu": "1500m", "memory": "8Gi"}
    unlimited = spec_of(resources={"requests": {"cpu": "4"}}, containers=[container({"memory": 1})])
    assert unlimited["resources"]["requests"] == {"cpu": "4"}


def test_pod_level_huge_pages_come_from_the_containers_limits() -> None:
    spec = spec_of(
        resources={"requests": {"cpu": "4"}},
        containers=[container(None, {"hugepages-2Mi": "2Mi"}), container({"memory": "1Mi"})],
    )
    assert spec["resources"]["limits"] == {"hugepages-2Mi": "2097152"}
    assert spec["resources"]["requests"] == {
        "cpu": "4",
        "hugepages-2Mi": "2097152",
        "memory": "1048576",
    }


def test_host_ports_and_protocols() -> None:
    ports: list[Json] = [{"containerPort": 80}, {"containerPort": 1, "hostPort": 2}]
    assert spec_of(hostNetwork=True, containers=[{"ports": ports}])["containers"][0]["ports"] == [
        {"containerPort": 80, "hostPort": 80, "protocol": "TCP"},
        {"containerPort": 1, "hostPort": 2, "protocol": "TCP"},
    ]
    assert "hostPort" not in spec_of(containers=[{"ports": ports}])["containers"][0]["ports"][0]


def priority(name: str, value: int, **more: Any) -> Json:
    return {"kind": "PriorityClass", "metadata": {"name": name}, "value": value, **more}


CLASSES = classes_of(
    [priority("low", 5, globalDefault=True), priority("batch", 7, preemptionPolicy="Never")],
    [
        {
            "metadata": {"name": "kata"},
            "overhead": {"podFixed": {"cpu": "250m"}},
            "scheduling": {"nodeSelector": {"vm": "yes"}, "tolerations": [{"key": "vm"}]},
        }
    ],
    complete=True,
)


@pytest.mark.parametrize(
    ("name", "value", "policy"),
    [
        ("batch", 7, "Never"),
        ("", 5, "PreemptLowerPriority"),
        ("system-node-critical", 2_000_001_000, "PreemptLowerPriority"),
        ("system-cluster-critical", 2_000_000_000, "PreemptLowerPriority"),
    ],
)
def test_priority_from_its_class(name: str, value: int, policy: str) -> None:
    spec = spec_of(CLASSES, priorityClassName=name)
    assert (spec["priority"], spec["preemptionPolicy"]) == (value, policy)
    assert spec["priorityClassName"] == (name or "low")


def test_an_unknown_class_is_refused_where_all_are_known() -> None:
    for field in ("priorityClassName", "runtimeClassName"):
        named: Json = {field: "none"}
        with pytest.raises(Unreadable, match=rf"pod default/p: spec\.{field}: there is no"):
            spec_of(CLASSES, **named)
        assert spec_of(priority=3, **named)["priority"] == 3


def test_a_priority_that_contradicts_its_class_is_refused() -> None:
    with pytest.raises(Unreadable, match=r"spec\.priority: it is 3, but the PriorityClass says 7"):
        spec_of(CLASSES, priorityClassName="batch", priority=3)
    assert spec_of(priority=3)["priority"] == 3  # its class was not given


def test_runtime_class() -> None:
    spec = spec_of(CLASSES, runtimeClassName="kata", nodeSelector={"a": "b"})
    assert spec["overhead"] == {"cpu": "250m"}
    assert spec["nodeSelector"] == {"a": "b", "vm": "yes"}
    assert spec["tolerations"] == [{"key": "vm"}]
    with pytest.raises(Unreadable, match=r"spec\.nodeSelector\[vm\]"):
        spec_of(CLASSES, runtimeClassName="kata", nodeSelector={"vm": "no"})
    with pytest.raises(Unreadable, match=r"spec\.overhead"):
        spec_of(CLASSES, runtimeClassName="kata", overhead={"cpu": "1"})


def test_label_keys_are_merged() -> None:
    term = {"labelSelector": {}, "matchLabelKeys": ["app", "x"], "mismatchLabelKeys": ["rev"]}
    none = {"matchLabelKeys": ["app"]}
    spec = spec_of(
        labels={"app": "web", "rev": "1"},
        affinity={
            "podAffinity": {REQUIRED: [term, none]},
            "podAntiAffinity": {PREFERRED: [{"weight": 1, "podAffinityTerm": term}]},
        },
        topologySpreadConstraints=[{"labelSelector": {}, "matchLabelKeys": ["app"]}],
    )
    web = {"key": "app", "operator": "In", "values": ["web"]}
    rev = {"key": "rev", "operator": "NotIn", "values": ["1"]}
    near, nothing = spec["affinity"]["podAffinity"][REQUIRED]
    assert near["labelSelector"]["matchExpressions"] == [web, rev]
    assert "labelSelector" not in nothing
    far = spec["affinity"]["podAntiAffinity"][PREFERRED][0]["podAffinityTerm"]
    assert far["labelSelector"] == near["labelSelector"]
    spread = spec["topologySpreadConstraints"][0]
    assert spread["labelSelector"]["matchExpressions"] == [web]


# Files

TEMPLATE = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c"}]}}


@pytest.mark.parametrize(
    "owner",
    [
        {"kind": "Deployment", "spec": {"template": TEMPLATE}},
        {"kind": "Job", "spec": {"template": TEMPLATE}},
        {"kind": "PyTorchThing", "spec": {"template": TEMPLATE}},
        {"kind": "CronJob", "spec": {"jobTemplate": {"spec": {"template": TEMPLATE}}}},
        {"kind": "PodTemplate", "template": TEMPLATE},
    ],
)
def test_a_template_becomes_a_pod(owner: Json) -> None:
    pod = pod_of({**owner, "metadata": {"name": "web", "namespace": "prod"}})
    assert pod["metadata"] == {"name": "web", "namespace": "prod", "labels": {"app": "web"}}
    assert Reader().pod(default_pod(pod)).key == "prod/web"


def test_a_pod_stays_itself_and_gets_a_name() -> None:
    assert pod_of({"spec": {}, "metadata": {"name": "p"}})["metadata"] == {"name": "p"}
    named = pod_of({"kind": "Pod", "spec": {}, "metadata": {"generateName": "p-"}})
    assert named["metadata"]["name"] == "p"


@pytest.mark.parametrize(
    "manifest",
    [{}, {"kind": "Service", "spec": {}}, {"kind": "Job", "spec": {"template": []}}, {"spec": 1}],
)
def test_what_has_no_pod_in_it(manifest: Json) -> None:
    with pytest.raises(Unreadable, match="there is no pod in it"):
        pod_of(manifest)


YAML = """
apiVersion: v1
kind: Pod
metadata: {name: a, creationTimestamp: 2026-01-01T00:00:00Z}
spec: {containers: [{name: c, resources: {requests: {cpu: 0.5, memory: 1Gi}}}]}
---
---
kind: List
items:
- {kind: Node, metadata: {name: n}}
- {kind: Secret, metadata: {name: s}}
"""


def test_yaml_of_several_documents() -> None:
    pod, node, _ = load_objects(YAML)
    assert (pod["metadata"]["name"], node["metadata"]["name"]) == ("a", "n")
    assert Reader().pod(pod).row.requests == (("cpu", 500), ("memory", 2**30))


def test_a_dump_from_several_files() -> None:
    listed = {"kind": "PodList", "items": [{"metadata": {"name": "b"}}]}
    inner = {"kind": "List", "items": [listed, priority("low", 5), {"kind": "Namespace"}]}
    dump = load_dump([YAML, json.dumps(inner), json.dumps([{"kind": "Node"}]).encode(), "", "{}"])
    assert [Reader().pod(pod).name for pod in dump.pods] == ["a", "b"]
    assert (len(dump.nodes), len(dump.namespaces)) == (2, 1)
    assert classes_of(dump.priority_classes).priority.keys() == {"low"}


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "a: b: c",
        "just words",
        "- 1",
        "[1]",
        "a: !!python/object:os.system x",
        "\x00",
        "a: &a [*a]",
        "x: 1\n\ty: 2",
        "[" * 2_000,
        "a0: &a0 [1]\n" + "".join(f"a{i + 1}: &a{i + 1} [{f'*a{i},' * 9}]\n" for i in range(9)),
    ],
)
def test_bad_files_are_one_clear_error(text: str) -> None:
    with pytest.raises(BadFile) as caught:
        load_objects(text)
    assert "\n" not in str(caught.value)
