"""What `bayplan manifests elastic` prints: whole, safe, and the same as deploy/elastic/."""

from typing import Any

import pytest
import yaml

from bayplan.cli.manifests import ELASTIC_PARTS as PARTS
from bayplan.elastic.config import read
from tests.deploy.test_manifests import ROOT, command, every_object, objects

Json = dict[str, Any]


def part(name: str, *options: str) -> dict[str, Json]:
    return objects("elastic", "--part", name, *options)


@pytest.mark.parametrize("name", PARTS)
def test_the_files_are_what_the_command_prints(name: str) -> None:
    """After a change: bayplan manifests elastic --part PART > deploy/elastic/PART.yaml"""
    file = ROOT / "deploy" / "elastic" / f"{name}.yaml"
    assert file.read_text() == command("elastic", "--part", name).output


def test_the_files_together_are_all_that_is_printed() -> None:
    folder = ROOT / "deploy" / "elastic"
    texts = [(folder / f"{name}.yaml").read_text() for name in PARTS]
    assert "---\n".join(texts) == command("elastic").output
    assert {path.name for path in folder.iterdir()} == {f"{name}.yaml" for name in PARTS}


def test_every_object_has_its_name_its_namespace_and_the_recommended_labels() -> None:
    for found in every_object("elastic", "--name", "second", "--namespace", "batch"):
        metadata = found["metadata"]
        wide = found["kind"].startswith("Cluster")
        assert metadata["name"] == "second"
        assert metadata.get("namespace") == (None if wide else "batch")
        assert metadata["labels"]["app.kubernetes.io/component"] == "elastic"
        assert metadata["labels"]["app.kubernetes.io/instance"] == "second"


def test_its_configuration_is_read_and_names_the_lease_that_it_has_a_right_to() -> None:
    text = part("deployment", "--name", "second")["ConfigMap"]["data"]["config.yaml"]
    election = read(yaml.safe_load(text), "config.yaml").leader_election
    assert election.leader_elect
    (_, named) = part("rbac", "--name", "second")["Role"]["rules"]
    assert named["resourceNames"] == [election.resource_name] == ["second"]


def test_it_has_two_replicas_and_runs_as_nobody() -> None:
    spec = part("deployment")["Deployment"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert spec["replicas"] == 2
    assert spec["template"]["spec"]["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["args"][0] == "elastic"


def test_its_rights_have_no_wildcard_no_secrets_and_no_specs_of_jobs() -> None:
    for rule in part("rbac")["ClusterRole"]["rules"]:
        assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]
        assert "secrets" not in rule["resources"]
        if {"elasticjobs", "elastichorovodjobs"} & set(rule["resources"]):
            assert rule["verbs"] == ["get", "list", "watch"]


def test_it_may_make_the_pod_groups_that_the_original_could_not() -> None:
    rules = part("rbac")["ClusterRole"]["rules"]
    (verbs,) = [rule["verbs"] for rule in rules if "podgroups" in rule["resources"]]
    assert verbs == ["get", "list", "watch", "create", "patch"]
