"""The kinds that `bayplan manifests crds` defines: PodGroups and elastic jobs."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from bayplan.cli.main import main
from bayplan.kube.client import POD_GROUPS
from bayplan.kube.elastic import RESOURCES
from bayplan.local import definitions
from bayplan.local.kinds import custom_kinds

FILE = Path(__file__).parents[2] / "deploy" / "crds.yaml"
Json = dict[str, Any]


def printed() -> str:
    done = CliRunner().invoke(main, ["manifests", "crds"])
    assert done.exit_code == 0, done.output
    return done.output


def definition() -> Json:
    found: Json = next(yaml.safe_load_all(printed()))
    return found


def elastic(name: str) -> Json:
    every = {each["spec"]["names"]["plural"]: each for each in yaml.safe_load_all(printed())}
    found: Json = every[name]
    return found


def version() -> Json:
    (found,) = definition()["spec"]["versions"]
    assert isinstance(found, dict)
    return found


def test_the_file_is_what_the_command_prints() -> None:
    """After a change: bayplan manifests crds > deploy/crds.yaml"""
    assert FILE.read_text() == printed()


def test_it_is_the_kind_that_the_scheduler_follows() -> None:
    (kind,) = custom_kinds(definitions.settled(definition(), None, "now"))
    followed = POD_GROUPS["scheduling.x-k8s.io"]
    assert (kind.group, kind.version, kind.plural) == (
        followed.group,
        followed.version,
        followed.plural,
    )
    assert (kind.kind, kind.short, kind.subresources) == ("PodGroup", ("pg", "pgs"), ("status",))
    assert kind.namespaced


def test_each_column_is_a_field() -> None:
    whole = version()["schema"]["openAPIV3Schema"]
    for column in version()["additionalPrinterColumns"]:
        _, part, field = column["jsonPath"].split(".")
        if part != "metadata":
            assert whole["properties"][part]["properties"][field]["type"] == column["type"]


def test_a_group_must_say_how_many() -> None:
    spec = version()["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert spec["required"] == ["minMember"]
    assert spec["properties"]["minMember"]["minimum"] == 1


def test_every_field_says_what_it_is() -> None:
    parts = version()["schema"]["openAPIV3Schema"]["properties"]
    for field in parts["spec"]["properties"].values():
        assert field["description"].endswith(".")


@pytest.mark.parametrize("name", RESOURCES)
def test_elastic_jobs_are_of_the_kinds_that_the_controller_follows(name: str) -> None:
    resource = RESOURCES[name]
    (kind,) = custom_kinds(definitions.settled(elastic(resource.plural), None, "now"))
    assert (kind.group, kind.version, kind.kind) == (resource.group, resource.version, name)
    assert (kind.subresources, kind.namespaced) == (("status",), True)


@pytest.mark.parametrize("name", RESOURCES)
def test_elastic_jobs_have_the_same_columns_and_the_same_protocol(name: str) -> None:
    (version,) = elastic(RESOURCES[name].plural)["spec"]["versions"]
    columns = [column["name"] for column in version["additionalPrinterColumns"]]
    assert columns == ["Min", "Max", "Workers", "Phase", "Message", "Age"]
    status = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    assert set(status["grant"]["properties"]) == {"generation", "workers", "passing", "counts"}
    assert set(status["confirmed"]["properties"]) == {"generation", "workers", "kept", "message"}
