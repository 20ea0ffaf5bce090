"""What `bayplan manifests` prints: whole, safe, and the same as the files under deploy/."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from bayplan.cli.agent import agent
from bayplan.cli.main import main
from bayplan.cli.run import run
from bayplan.core.model.devices import ASSIGNMENT, INVENTORY
from bayplan.core.model.vendors import IPU
from bayplan.scheduler.config import Configuration, read
from bayplan.scheduler.steward import HOST, ID, PORT

ROOT = Path(__file__).parents[2]
KINDS = ("deployment", "static-pod", "rbac", "agent", "policy", "vipu")
COMPONENTS = {"agent": "agent", "policy": "policy", "vipu": "policy"}  # of the others: scheduler
PODS = ("deployment", "static-pod", "agent")
ACCOUNT = "system:serviceaccount:kube-system"
Json = dict[str, Any]


def command(*args: str) -> Result:
    return CliRunner().invoke(main, ["manifests", *args])


def every_object(*args: str) -> list[Json]:
    done = command(*args)
    assert done.exit_code == 0, done.output
    return list(yaml.safe_load_all(done.output))


def objects(*args: str) -> dict[str, Json]:
    """What is printed, by kind."""
    return {found["kind"]: found for found in every_object(*args)}


def pod_spec(kind: str, *options: str) -> Json:
    found = objects(kind, *options)
    if kind == "static-pod":
        spec: Json = found["Pod"]["spec"]
    else:
        whole = daemon_set(found) if kind == "agent" else deployment(found)
        spec = whole["template"]["spec"]
    return spec


def daemon_set(found: dict[str, Json]) -> Json:
    spec: Json = found["DaemonSet"]["spec"]
    return spec


def policies(*options: str) -> dict[str, Json]:
    """The specs of the policies, by what their names end in."""
    return {
        found["metadata"]["name"].rpartition("-")[2]: found["spec"]
        for found in every_object("policy", *options)
        if found["kind"] == "ValidatingAdmissionPolicy"
    }


def matched(policy: Json) -> set[tuple[str, str]]:
    """The resources and operations that a policy is asked about."""
    rules = policy["matchConstraints"]["resourceRules"]
    assert all((rule["apiGroups"], rule["apiVersions"]) == ([""], ["v1"]) for rule in rules)
    return {
        (what, how) for rule in rules for what in rule["resources"] for how in rule["operations"]
    }


def deployment(found: dict[str, Json]) -> Json:
    spec: Json = found["Deployment"]["spec"]
    return spec


def configuration(kind: str, *options: str) -> Configuration:
    found = objects(kind, *options)
    if kind == "static-pod":
        return read(found["Pod"]["metadata"]["annotations"]["bayplan.dev/configuration"], kind)
    return read(found["ConfigMap"]["data"]["config.yaml"], kind)


@pytest.mark.parametrize("kind", KINDS)
def test_the_files_are_what_the_command_prints(kind: str) -> None:
    """After a change: bayplan manifests KIND > deploy/KIND.yaml"""
    assert (ROOT / "deploy" / f"{kind}.yaml").read_text() == command(kind).output


def test_there_is_no_other_file() -> None:
    files = {f"{kind}.yaml" for kind in KINDS}
    others = {"crds.yaml", "elastic", "extender"}
    assert {path.name for path in (ROOT / "deploy").iterdir()} == files | others


def test_each_kind_has_its_objects() -> None:
    assert list(objects("deployment")) == ["ConfigMap", "Deployment", "PodDisruptionBudget"]
    assert list(objects("static-pod")) == ["Pod"]  # a kubelet reads one object from a file
    assert list(objects("rbac")) == [
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
        "Role",
        "RoleBinding",
    ]
    assert list(objects("agent")) == [
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
        "DaemonSet",
    ]
    assert [found["kind"] for found in every_object("policy")] == [
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    ] * 3
    assert list(objects("vipu")) == ["MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_object_has_its_name_its_namespace_and_the_recommended_labels(kind: str) -> None:
    space = () if kind == "vipu" else ("--namespace", "batch")
    for found in every_object(kind, "--name", "second", *space):
        metadata = found["metadata"]
        assert re.sub("-(pods|bindings|nodes|vipu)$", "", metadata["name"]) == "second"
        assert metadata.get("namespace") == (
            None if found["kind"].startswith(("Cluster", "Validating", "Mutating")) else "batch"
        )
        labels = {
            key.removeprefix("app.kubernetes.io/"): v for key, v in metadata["labels"].items()
        }
        assert labels.pop("version")
        assert {key: labels[key] for key in ("name", "instance", "component", "part-of")} == {
            "name": "bayplan",
            "instance": "second",
            "component": COMPONENTS.get(kind, "scheduler"),
            "part-of": "bayplan",
        }


def test_the_roles_name_everything_and_no_secrets() -> None:
    found = objects("rbac")
    agents = objects("agent")["ClusterRole"]["rules"]
    for rule in (*found["ClusterRole"]["rules"], *found["Role"]["rules"], *agents):
        words = {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
        assert not words & {"*", "secrets", "deletecollection", "impersonate", "escalate"}
        if "delete" in words:  # pods, for others; by the scheduler
            assert rule == {"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"]}
            assert rule not in agents


def test_the_bindings_name_the_account_and_whom_else_one_wants() -> None:
    found = objects("rbac", "--user", "system:kube-scheduler")
    for kind in ("RoleBinding", "ClusterRoleBinding"):
        account, user = found[kind]["subjects"]
        assert (account["kind"], account["name"]) == ("ServiceAccount", "bayplan")
        assert (user["kind"], user["name"]) == ("User", "system:kube-scheduler")
        assert found[kind]["roleRef"]["kind"] == kind.removesuffix("Binding")


@pytest.mark.parametrize("kind", ["deployment", "static-pod"])
def test_the_configuration_inside_is_valid_and_elects_a_leader(kind: str) -> None:
    election = configuration(kind, "--name", "second", "--namespace", "batch").leader_election
    role = objects("rbac", "--name", "second", "--namespace", "batch")["Role"]

    assert election.leader_elect
    assert [election.resource_name] == role["rules"][1]["resourceNames"]
    assert election.resource_namespace == role["metadata"]["namespace"]
    assert configuration(kind).profiles == Configuration().profiles


@pytest.mark.parametrize("kind", PODS)
def test_the_container_can_do_little(kind: str) -> None:
    spec = pod_spec(kind)
    (container,) = spec["containers"]

    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert {"memory", "cpu"} <= set(container["resources"]["requests"])


def test_the_deployment_runs_as_nobody_in_particular() -> None:
    security = pod_spec("deployment")["securityContext"]

    assert (security["runAsNonRoot"], security["runAsUser"]) == (True, 65532)


@pytest.mark.parametrize("kind", ["deployment", "static-pod"])
def test_the_probes_ask_where_the_configuration_listens(kind: str) -> None:
    (container,) = pod_spec(kind)["containers"]
    _, _, port = configuration(kind).listen.rpartition(":")
    named = {each["name"]: each["containerPort"] for each in container.get("ports", ())}
    for probe, path in (("liveness", "/livez"), ("readiness", "/readyz"), ("startup", "/livez")):
        get = container[f"{probe}Probe"]["httpGet"]
        assert get["path"] == path
        assert str(named.get(get["port"], get["port"])) == port


@pytest.mark.parametrize("kind", ["deployment", "static-pod"])
def test_the_command_line_inside_is_one_that_exists(kind: str) -> None:
    spec = pod_spec(kind)
    (container,) = spec["containers"]
    name, *args = container["args"]
    params = run.make_context(name, list(args)).params
    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]

    assert name == run.name
    for path in (params["config_file"], params["kubeconfig"]):
        assert path is None or any(path.startswith(mount) for mount in mounts)
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in spec["volumes"]
    }


def test_a_static_pod_refers_to_no_other_object() -> None:
    text = command("static-pod").output
    for word in ("serviceAccountName", "configMap", "secret", "persistentVolumeClaim"):
        assert f"{word}:" not in text


def test_replicas_are_selected_spread_and_protected_as_one() -> None:
    found = objects("deployment", "--replicas", "3", "--name", "second")
    spec = deployment(found)
    labels = spec["template"]["metadata"]["labels"]
    term = spec["template"]["spec"]["affinity"]["podAntiAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ][0]["podAffinityTerm"]
    spread = spec["template"]["spec"]["topologySpreadConstraints"][0]

    assert spec["replicas"] == 3
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    for other in (term["labelSelector"], spread["labelSelector"]):
        assert other == spec["selector"]
    assert found["PodDisruptionBudget"]["spec"]["selector"] == spec["selector"]


def test_the_image_is_the_one_that_was_given() -> None:
    image = "registry.example:5000/a/bayplan@sha256:" + "0" * 64
    for kind in PODS:
        assert pod_spec(kind, "--image", image)["containers"][0]["image"] == image


def test_the_agent_sees_two_directories_of_its_node_and_no_more() -> None:
    spec = pod_spec("agent")
    (container,) = spec["containers"]
    paths = {each["name"]: each["hostPath"] for each in spec["volumes"] if "hostPath" in each}
    mounts = {each["name"]: each for each in container["volumeMounts"]}

    assert {path["path"] for path in paths.values()} == {
        "/var/lib/kubelet/device-plugins",
        "/var/lib/kubelet/pod-resources",
    }
    for name, path in paths.items():
        assert path["type"] == "Directory"  # a kubelet makes its sockets anew when it starts
        assert mounts[name]["mountPath"] == path["path"]
        assert mounts[name].get("readOnly", False) == (name == "pod-resources")
    assert set(mounts) == {each["name"] for each in spec["volumes"]} == {*paths, "tmp"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)


def test_for_neuron_the_agent_also_reads_the_nodes_device_files() -> None:
    spec = pod_spec("agent", "--neuron", "--config-map", "bayplan")
    (container,) = spec["containers"]
    mounts = {each["mountPath"]: each for each in container["volumeMounts"]}
    paths = {
        each["name"]: each["hostPath"]["path"] for each in spec["volumes"] if "hostPath" in each
    }

    assert "--root=/host" in container["args"]
    for path in ("/dev", "/sys"):
        assert mounts[f"/host{path}"]["readOnly"] is True
        assert paths[mounts[f"/host{path}"]["name"]] == path
    assert "/etc/bayplan" in mounts


def test_to_profile_the_agent_also_sees_the_nodes_processes_and_what_they_use() -> None:
    for more, folders in ((), {"/proc", "/sys/fs/cgroup"}), (("--neuron",), {"/proc", "/sys"}):
        spec = pod_spec("agent", "--profile", *more)
        (container,) = spec["containers"]
        params = agent.make_context("agent", container["args"][1:]).params
        mounts = {each["mountPath"]: each for each in container["volumeMounts"]}
        paths = {
            each["name"]: each["hostPath"]["path"] for each in spec["volumes"] if "hostPath" in each
        }

        assert (params["profile"], params["root"]) == (True, "/host")
        assert container["args"].count("--root=/host") == 1
        assert spec["hostPID"] is True
        for path in folders:
            assert mounts[f"/host{path}"]["readOnly"] is True
            assert paths[mounts[f"/host{path}"]["name"]] == path
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    roles = [objects("agent", *more)["ClusterRole"]["rules"] for more in ((), ("--profile",))]
    assert roles[0] == roles[1]


def test_the_agent_is_told_its_node_and_where_the_kubelet_is() -> None:
    (container,) = pod_spec("agent")["containers"]
    name, *args = container["args"]
    params = agent.make_context(name, list(args)).params
    (port,) = container["ports"]
    (node,) = [each for each in container["env"] if each["name"] == "NODE_NAME"]

    assert name == agent.name
    assert params["node"] == "$(NODE_NAME)"
    assert params["device_plugins"] == "/var/lib/kubelet/device-plugins"
    assert params["pod_resources"] == "/var/lib/kubelet/pod-resources/kubelet.sock"
    assert params["listen"] == f":{port['containerPort']}"
    assert params["config_file"] is None
    assert node["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
    for probe, path in (("liveness", "/livez"), ("readiness", "/readyz"), ("startup", "/livez")):
        assert container[f"{probe}Probe"]["httpGet"] == {"path": path, "port": port["name"]}


def test_the_agent_stays_on_its_node_whatever_happens_there() -> None:
    found = daemon_set(objects("agent", "--name", "second"))
    spec = found["template"]["spec"]

    assert spec["tolerations"] == [{"operator": "Exists"}]
    assert spec["priorityClassName"] == "system-node-critical"
    assert (
        found["selector"]["matchLabels"].items() <= found["template"]["metadata"]["labels"].items()
    )
    assert (
        spec["serviceAccountName"]
        == objects("agent", "--name", "second")["ServiceAccount"]["metadata"]["name"]
    )


def test_the_agent_runs_where_one_wants_it() -> None:
    plain = pod_spec("agent")
    labels = ("--node-selector", "nvidia.com/gpu.present=true", "--node-selector", "null=")
    chosen = pod_spec("agent", *labels, "--runtime-class", "nvidia")

    assert plain["nodeSelector"] == {"kubernetes.io/os": "linux"}
    assert "runtimeClassName" not in plain
    assert chosen["nodeSelector"] == {
        "kubernetes.io/os": "linux",
        "nvidia.com/gpu.present": "true",
        "null": "",
    }
    assert chosen["runtimeClassName"] == "nvidia"


def test_the_agent_can_read_the_schedulers_configuration() -> None:
    spec = pod_spec("agent", "--config-map", "bayplan")
    (container,) = spec["containers"]
    params = agent.make_context("agent", container["args"][1:]).params
    (volume,) = [each for each in spec["volumes"] if "configMap" in each]
    (mount,) = [each for each in container["volumeMounts"] if each["name"] == volume["name"]]
    (file,) = objects("deployment")["ConfigMap"]["data"]

    assert volume["configMap"] == {"name": objects("deployment")["ConfigMap"]["metadata"]["name"]}
    assert params["config_file"] == f"{mount['mountPath']}/{file}"
    assert mount["readOnly"]


def test_the_policies_are_asked_wherever_annotations_travel() -> None:
    found = policies()
    pods = ("pods", "pods/status", "pods/ephemeralcontainers", "pods/resize")
    written = ("CREATE", "UPDATE")

    assert matched(found["pods"]) == {(what, how) for what in pods for how in written}
    assert matched(found["bindings"]) == {("pods/binding", "CREATE"), ("bindings", "CREATE")}
    assert matched(found["nodes"]) == {
        (what, how) for what in ("nodes", "nodes/status") for how in written
    }


def test_each_policy_is_in_force_for_all_and_fails_closed() -> None:
    found = every_object("policy", "--name", "second")
    for policy, binding in zip(found[::2], found[1::2], strict=True):
        name = policy["metadata"]["name"]
        assert policy["spec"]["failurePolicy"] == "Fail"
        assert "matchConditions" not in policy["spec"]
        assert binding["spec"] == {"policyName": name, "validationActions": ["Deny"]}
        for validation in policy["spec"]["validations"]:
            assert "bayplan.dev/" in validation["message"]
            assert validation["reason"] == "Forbidden"


def test_the_policies_and_the_models_name_the_same_annotations() -> None:
    found = policies()
    for kind, key in (("pods", ASSIGNMENT), ("bindings", ASSIGNMENT), ("nodes", INVENTORY)):
        assert f"'{key}'" in str(found[kind])


def test_the_policy_for_partitions_names_what_the_scheduler_reads_and_writes() -> None:
    text = command("vipu").output
    other = command("vipu", "--key", "example.com/a", "--scheduler-name", "batch").output

    assert objects("vipu")["MutatingAdmissionPolicyBinding"]["spec"] == {
        "policyName": objects("vipu")["MutatingAdmissionPolicy"]["metadata"]["name"]
    }
    assert f"['{IPU.resources[0].name}']" in text
    assert f"['{IPU.annotation}']" in text
    for variable, key in (("HOST", HOST), ("PORT", PORT), ("PARTITION_ID", ID)):
        prefix, _, name = key.rpartition("/")
        assert f"{{'name': 'IPUOF_VIPU_API_{variable}', 'key': '{name}'}}" in text
        assert f"metadata.annotations['{prefix}/\" + w.key" in text
    assert "['example.com/a'].exists" in other
    assert "schedulerName in ['batch']" in other


def test_the_policies_name_the_accounts_of_the_other_manifests() -> None:
    for kind, *part in (("rbac",), ("agent",), ("extender", "--part", "rbac")):
        name = objects(kind, *part)["ServiceAccount"]["metadata"]["name"]
        assert f"'{ACCOUNT}:{name}'" in str(policies()["pods"])
    found = policies("--user", "system:kube-scheduler", "--namespace", "batch", "--agent", "nodes")
    writers = {
        kind: each["expression"]
        for kind in ("pods", "bindings")
        for each in found[kind]["variables"]
        if each["name"] == "writers"
    }
    binding = (
        "'system:serviceaccount:batch:bayplan', 'system:serviceaccount:batch:bayplan-extender', "
        "'system:kube-scheduler'"
    )

    assert writers["bindings"] == f"[{binding}]"
    assert writers["pods"] == f"[{binding}, 'system:serviceaccount:batch:nodes']"
    assert "bayplan-extender" not in str(found["nodes"])
    assert "'system:serviceaccount:batch:nodes'" in str(found["nodes"])


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (
            (),
            "there are: agent, alnair-config, crds, deployment, elastic, extender, policy, rbac",
        ),
        (("deploymnt",), "No such command 'deploymnt'; did you mean deployment?"),
        (("rbac", "--name", "A b"), "'A b' is not a name such as bayplan"),
        (("rbac", "--name", "null"), "'null' is not a name such as bayplan"),
        (("rbac", "--namespace", "x: y"), "'x: y' is not a name"),
        (("rbac", "--user", 'a"b'), "is not a user such as system:kube-scheduler"),
        (("rbac", "--image", "x"), "No such option '--image'"),
        (("deployment", "--image", "a b"), "'a b' is not an image such as bayplan:"),
        (("deployment", "--image", "12"), "'12' is not an image such as bayplan:"),
        (("agent", "--node-selector", "gpu"), "'gpu' is not a label such as"),
        (("agent", "--node-selector", 'a="b"'), "is not a label such as"),
        (("agent", "--runtime-class", "a: b"), "'a: b' is not a name such as bayplan"),
        (("policy", "--user", "a'b"), "is not a user such as system:kube-scheduler"),
        (("policy", "--agent", "bayplan"), "the agent needs an account of its own"),
        (("policy", "--image", "x"), "No such option '--image'"),
        (("vipu", "--key", "a'b"), "is not a key such as graphcore.ai/ipu"),
        (("vipu", "--scheduler-name", "My"), "'My' is not a name such as bayplan"),
        (("extender", "--part", "all"), "'all' is not one of 'rbac', 'guard', 'config'"),
        (("extender", "--scheduler-name", "My"), "'My' is not a name such as bayplan"),
        (("extender", "--scheduler-image", "a b"), "'a b' is not an image such as bayplan:"),
        (("deployment", "--replicas", "0"), "0 is not in the range x>=1"),
    ],
)
def test_bad_input_is_one_line_and_status_2(args: tuple[str, ...], says: str) -> None:
    done = command(*args)

    assert done.exit_code == 2
    assert says in done.output
    assert len(done.output.splitlines()) == 1
