"""What `bayplan manifests` prints: whole, safe, and the same as the files under deploy/."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from bayplan.cli.main import main
from bayplan.cli.run import run
from bayplan.scheduler.config import Configuration, read

ROOT = Path(__file__).parents[2]
KINDS = ("deployment", "static-pod", "rbac")
Json = dict[str, Any]


def command(*args: str) -> Result:
    return CliRunner().invoke(main, ["manifests", *args])


def objects(*args: str) -> dict[str, Json]:
    """What is printed, by kind."""
    done = command(*args)
    assert done.exit_code == 0, done.output
    return {found["kind"]: found for found in yaml.safe_load_all(done.output)}


def pod_spec(kind: str, *options: str) -> Json:
    found = objects(kind, *options)
    spec: Json = (
        found["Pod"]["spec"] if kind == "static-pod" else deployment(found)["template"]["spec"]
    )
    return spec


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
    assert {path.name for path in (ROOT / "deploy").iterdir()} == {f"{k}.yaml" for k in KINDS}


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


@pytest.mark.parametrize("kind", KINDS)
def test_every_object_has_its_name_its_namespace_and_the_recommended_labels(kind: str) -> None:
    for found in objects(kind, "--name", "second", "--namespace", "batch").values():
        metadata = found["metadata"]
        assert metadata["name"] == "second"
        assert metadata.get("namespace") == (
            None if found["kind"].startswith("Cluster") else "batch"
        )
        labels = {
            key.removeprefix("app.kubernetes.io/"): v for key, v in metadata["labels"].items()
        }
        assert labels.pop("version")
        assert {key: labels[key] for key in ("name", "instance", "component", "part-of")} == {
            "name": "bayplan",
            "instance": "second",
            "component": "scheduler",
            "part-of": "bayplan",
        }


def test_the_roles_name_everything_and_no_secrets() -> None:
    found = objects("rbac")
    for rule in (*found["ClusterRole"]["rules"], *found["Role"]["rules"]):
        words = {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
        assert not words & {"*", "secrets", "delete", "deletecollection", "impersonate", "escalate"}


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


@pytest.mark.parametrize("kind", ["deployment", "static-pod"])
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
    for kind in ("deployment", "static-pod"):
        assert pod_spec(kind, "--image", image)["containers"][0]["image"] == image


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((), "Name a kind; there are: deployment, rbac, static-pod"),
        (("deploymnt",), "No such command 'deploymnt'; did you mean deployment?"),
        (("rbac", "--name", "A b"), "'A b' is not a name such as bayplan"),
        (("rbac", "--name", "null"), "'null' is not a name such as bayplan"),
        (("rbac", "--namespace", "x: y"), "'x: y' is not a name"),
        (("rbac", "--user", 'a"b'), "is not a user such as system:kube-scheduler"),
        (("rbac", "--image", "x"), "No such option '--image'"),
        (("deployment", "--image", "a b"), "'a b' is not an image such as bayplan:"),
        (("deployment", "--image", "12"), "'12' is not an image such as bayplan:"),
        (("deployment", "--replicas", "0"), "0 is not in the range x>=1"),
    ],
)
def test_bad_input_is_one_line_and_status_2(args: tuple[str, ...], says: str) -> None:
    done = command(*args)

    assert done.exit_code == 2
    assert says in done.output
    assert len(done.output.splitlines()) == 1
