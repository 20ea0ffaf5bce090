"""What `bayplan manifests extender` prints: whole, safe, and the same as deploy/extender/."""

from typing import Any

import pytest
import yaml

from bayplan.cli.manifests import EXTENDER_PARTS as PARTS
from bayplan.core.model.dialects import NEURON_CORE_MAP, NEURON_DEVICE_MAP
from bayplan.core.model.vendors import NEURON
from bayplan.scheduler.config import read
from tests.deploy.test_manifests import ROOT, command, every_object, objects

Json = dict[str, Any]
ASKING = "bayplan-extender-kube-scheduler"
CLUSTER_WIDE = ("Cluster", "Validating")
LEADER = "bayplan.dev/extender-leader"


def part(name: str, *options: str) -> dict[str, Json]:
    """The objects of a part, by kind."""
    return objects("extender", "--part", name, *options)


def pod_template(name: str, *options: str) -> Json:
    template: Json = part(name, *options)["Deployment"]["spec"]["template"]
    return template


def asking(*options: str) -> Json:
    """The configuration of the kube-scheduler that asks the extender."""
    text = part("kube-scheduler", *options)["ConfigMap"]["data"]["config.yaml"]
    found: Json = yaml.safe_load(text)
    return found


def rules(role: Json) -> set[tuple[str, str, str]]:
    """Resource, name or nothing, verb."""
    return {
        (resource, name, verb)
        for rule in role["rules"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
        for verb in rule["verbs"]
    }


@pytest.mark.parametrize("name", PARTS)
def test_the_files_are_what_the_command_prints(name: str) -> None:
    """After a change: bayplan manifests extender --part PART > deploy/extender/PART.yaml"""
    file = ROOT / "deploy" / "extender" / f"{name}.yaml"
    assert file.read_text() == command("extender", "--part", name).output


def test_the_files_together_are_all_that_is_printed() -> None:
    folder = ROOT / "deploy" / "extender"
    texts = [(folder / f"{name}.yaml").read_text() for name in PARTS]

    assert "---\n".join(texts) == command("extender").output
    assert {path.name for path in folder.iterdir()} == {f"{name}.yaml" for name in PARTS}


def test_parts_come_in_the_order_in_which_they_are_applied() -> None:
    said = command("extender", "--part", "service", "--part", "rbac").output

    assert [found["kind"] for found in yaml.safe_load_all(said)][::5] == [
        "ServiceAccount",
        "Service",
    ]


def test_every_object_has_its_name_its_namespace_and_the_recommended_labels() -> None:
    for found in every_object("extender", "--name", "second", "--namespace", "batch"):
        metadata = found["metadata"]
        labels = metadata["labels"]
        own = metadata["name"].endswith("-authentication")  # of a Role that is there
        wide = found["kind"].startswith(CLUSTER_WIDE)
        assert metadata["name"].startswith("second")
        assert metadata.get("namespace") == (None if wide else "kube-system" if own else "batch")
        assert labels["app.kubernetes.io/name"] == labels["app.kubernetes.io/part-of"] == "bayplan"
        assert labels["app.kubernetes.io/instance"] == "second"
        assert labels["app.kubernetes.io/component"] == (
            "kube-scheduler" if "kube-scheduler" in metadata["name"] else "extender"
        )


def test_no_two_objects_have_one_name() -> None:
    found = [(each["kind"], each["metadata"]["name"]) for each in every_object("extender")]
    others = [
        (each["kind"], each["metadata"]["name"])
        for kind in ("rbac", "deployment", "agent", "policy")
        for each in every_object(kind)
    ]

    assert len(set(found)) == len(found)
    assert not set(found) & set(others)


def test_the_extender_may_do_what_it_uses_and_nothing_else() -> None:
    found = part("rbac", "--name", "second")

    assert rules(found["ClusterRole"]) == {
        *(("nodes", "", verb) for verb in ("list", "watch")),
        ("nodes/status", "", "patch"),
        *(("pods", "", verb) for verb in ("get", "list", "watch", "delete")),
        ("pods/binding", "", "create"),
        ("pods/status", "", "patch"),
        ("events", "", "create"),
        *(("poddisruptionbudgets", "", verb) for verb in ("list", "watch")),
    }
    assert rules(found["Role"]) == {
        ("leases", "", "create"),
        ("leases", "second", "get"),
        ("leases", "second", "update"),
        ("pods", "", "patch"),
    }


def test_the_policies_are_about_the_account_and_the_maps() -> None:
    account = part("rbac")["ServiceAccount"]["metadata"]
    user = f"system:serviceaccount:{account['namespace']}:{account['name']}"
    found = every_object("extender", "--part", "guard")
    for policy, binding in zip(found[::2], found[1::2], strict=True):
        (condition,) = policy["spec"]["matchConditions"]
        assert condition["expression"] == f"request.userInfo.username == '{user}'"
        assert policy["spec"]["failurePolicy"] == "Fail"
        assert binding["spec"] == {
            "policyName": policy["metadata"]["name"],
            "validationActions": ["Deny"],
        }
    assert [each["metadata"]["name"].rpartition("-")[2] for each in found[::2]] == [
        "pods",
        "victims",
        "nodes",
    ]
    (maps,) = [each for each in found[4]["spec"]["variables"] if each["name"] == "maps"]

    assert yaml.safe_load(maps["expression"]) == [NEURON_DEVICE_MAP, NEURON_CORE_MAP]


def test_the_configuration_inside_is_valid_and_elects_a_leader() -> None:
    options = ("--name", "second", "--namespace", "batch")
    found = read(part("config", *options)["ConfigMap"]["data"]["config.yaml"], "config")
    role = part("rbac", *options)["Role"]

    assert found.leader_election.leader_elect
    assert found.leader_election.resource_name == "second" == role["rules"][1]["resourceNames"][0]
    assert found.leader_election.resource_namespace == "batch" == role["metadata"]["namespace"]


def test_the_leader_is_selected_among_the_pods_of_the_deployment() -> None:
    selector = part("service", "--name", "second")["Service"]["spec"]["selector"]
    template = pod_template("deployment", "--name", "second")
    leader = selector.pop(LEADER)

    assert leader == "true"
    assert LEADER not in template["metadata"]["labels"]  # the leader puts it there
    assert (
        selector
        == part("deployment", "--name", "second")["Deployment"]["spec"]["selector"]["matchLabels"]
    )


def test_ports_are_those_of_the_configuration() -> None:
    (container,) = pod_template("deployment")["spec"]["containers"]
    (service,) = part("service")["Service"]["spec"]["ports"]
    config = yaml.safe_load(part("config")["ConfigMap"]["data"]["config.yaml"])
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    (extender,) = asking()["extenders"]

    assert ports == {"extender": config["extender"]["port"], "http": 10270}
    assert service == {"name": "extender", "port": 12345, "targetPort": "extender"}
    assert extender["urlPrefix"] == "http://bayplan-extender.kube-system.svc:12345"
    for probe, path in (("liveness", "/livez"), ("readiness", "/readyz"), ("startup", "/livez")):
        assert container[f"{probe}Probe"]["httpGet"] == {"path": path, "port": "http"}


def test_the_pod_is_told_who_it_is() -> None:
    (container,) = pod_template("deployment")["spec"]["containers"]

    assert {each["name"]: each["valueFrom"] for each in container["env"]} == {
        "POD_NAME": {"fieldRef": {"fieldPath": "metadata.name"}},
        "POD_NAMESPACE": {"fieldRef": {"fieldPath": "metadata.namespace"}},
    }


@pytest.mark.parametrize("name", ["deployment", "kube-scheduler"])
def test_the_containers_can_do_little(name: str) -> None:
    spec = pod_template(name)["spec"]
    (container,) = spec["containers"]

    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["securityContext"]["runAsNonRoot"]
    assert {"memory", "cpu"} <= set(container["resources"]["requests"])
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in spec["volumes"]
    }


@pytest.mark.parametrize("name", ["deployment", "kube-scheduler"])
def test_neither_waits_for_the_extender(name: str) -> None:
    """They are scheduled by the cluster's own scheduler, and ask for nothing that is managed."""
    spec = pod_template(name)["spec"]
    (container,) = spec["containers"]
    amounts = container["resources"]
    (extender,) = asking()["extenders"]
    managed = {each["name"] for each in extender["managedResources"]}

    assert "schedulerName" not in spec
    assert not managed & {*amounts["requests"], *amounts.get("limits", ())}
    assert spec["priorityClassName"] == "system-cluster-critical"


@pytest.mark.parametrize("name", ["deployment", "kube-scheduler"])
def test_replicas_are_selected_spread_and_protected_as_one(name: str) -> None:
    found = part(name, "--name", "second")
    spec = found["Deployment"]["spec"]
    pod = spec["template"]["spec"]
    (near,) = pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    (spread,) = pod["topologySpreadConstraints"]

    assert spec["replicas"] == 2
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    for other in (near["podAffinityTerm"]["labelSelector"], spread["labelSelector"]):
        assert other == spec["selector"]
    assert found["PodDisruptionBudget"]["spec"]["selector"] == spec["selector"]


def test_kube_scheduler_asks_about_pods_with_neuron_resources_only() -> None:
    (extender,) = asking()["extenders"]

    assert extender["managedResources"] == [
        {"name": resource.name, "ignoredByScheduler": False} for resource in NEURON.resources
    ]


def test_one_step_of_the_extenders_score_outweighs_how_full_nodes_are() -> None:
    """Scores are 0 to 10 times the weight times 10; each of the two plugins gives 100 at most."""
    (extender,) = asking()["extenders"]

    assert extender["weight"] * 10 > 100 + 100
    assert asking()["percentageOfNodesToScore"] == 100


def test_one_kube_scheduler_can_have_several_names() -> None:
    names = ("--scheduler-name", "neuron-scheduler", "--scheduler-name", "my-scheduler")

    assert [each["schedulerName"] for each in asking()["profiles"]] == ["neuron-scheduler"]
    assert [each["schedulerName"] for each in asking(*names)["profiles"]] == [
        "neuron-scheduler",
        "my-scheduler",
    ]


def test_kube_scheduler_leads_by_a_lease_that_it_may_hold() -> None:
    election = asking()["leaderElection"]
    role = part("kube-scheduler")["Role"]

    assert election == {
        "leaderElect": True,
        "resourceName": ASKING,
        "resourceNamespace": role["metadata"]["namespace"],
    }
    assert rules(role) == {
        ("leases", "", "create"),
        ("leases", ASKING, "get"),
        ("leases", ASKING, "update"),
    }


def test_the_images_are_those_that_were_given() -> None:
    images = ("--image", "registry.example/b:1", "--scheduler-image", "registry.example/k:2")

    for name, image in (("deployment", images[1]), ("kube-scheduler", images[3])):
        assert pod_template(name, *images)["spec"]["containers"][0]["image"] == image
