"""`bayplan demo` and the parts of `bayplan up` that need no port."""

import json

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from bayplan.cli import demo as demo_command
from bayplan.cli.main import main
from bayplan.cli.stories import STORIES, TOY
from bayplan.cli.stories_of_elastic import COUNTS, GROWTH, USE
from bayplan.cli.stories_of_gangs import CROWD, GROUP, RACK, ZONES
from bayplan.cli.story import Arrival, Change, Story, node, pod
from bayplan.local.faults import BadChances, chances
from bayplan.local.spec import BadSpec, nodes


def test_every_story_ends_as_it_should() -> None:
    done = CliRunner().invoke(main, ["demo"])

    assert done.exit_code == 0, done.output
    assert "each where it should be" in done.output
    assert all(story.name in done.output for story in STORIES)


def test_the_outcome_as_json() -> None:
    done = CliRunner().invoke(main, ["demo", "-o", "json"])
    whole = json.loads(done.output)

    assert whole["ok"] is True
    toy = [entry for entry in whole["placements"] if entry["story"] == TOY.name]
    placed = {entry["pod"]: entry["node"] for entry in toy}
    assert placed["nginx-1"] == "small"
    assert placed["too-big"] is None


def test_a_pod_that_went_elsewhere_is_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Story(
        "wrong", "a story with a mistake", (node("a", 1),), (Arrival(pod("p", "bayplan"), "b", ""),)
    )
    monkeypatch.setattr("bayplan.cli.stories.STORIES", (wrong,))
    done = CliRunner().invoke(main, ["demo"])

    assert done.exit_code == 1
    assert "not where they should be: p" in done.output
    assert demo_command.play(wrong)[0].node == "a"


def says(story: Story) -> dict[str, str]:
    """What is said of pods that wait, by name."""
    return {found.pod: found.says for found in demo_command.play(story) if found.node is None}


def test_pods_of_groups_and_of_zones_wait_for_the_reasons_of_their_stories() -> None:
    group, rack, zones = says(GROUP), says(RACK), says(ZONES)

    assert group["nginx-2"].endswith("2 of 3 members are here")
    assert "1 of 2 members fit in one example.com/rack" in rack["train-1"]
    assert "2 cannot align container" in zones["db-2"]


def test_without_a_reservation_the_small_pod_takes_the_place() -> None:
    played = demo_command.play(replace(CROWD, reserve_after_s=3600.0))

    assert [found.pod for found in played if not found.ok] == ["small-2", "large-0", "large-1"]
    assert {found.pod: found.node for found in played}["small-2"] == "a"


def test_without_a_promise_another_pod_comes_in_between() -> None:
    created, _, *others = GROWTH.scenes
    played = demo_command.play(replace(GROWTH, scenes=(created, *others)))
    places = {found.pod: found.node for found in played}

    assert [found.pod for found in played if not found.ok] == ["other-1", "train-1", "other-2"]
    assert (places["other-1"], places["train-1"]) == ("a", None)


def test_without_utilsched_a_busy_node_is_as_good_as_an_idle_one() -> None:
    plain = tuple(
        replace(scene, pod=pod(scene.pod["metadata"]["name"], "bayplan", 1))
        for scene in USE.scenes
        if isinstance(scene, Arrival)
    )
    played = demo_command.play(replace(USE, scenes=plain))

    assert {found.node for found in played[:2]} == {"busy", "idle"}


def test_another_number_of_workers_is_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    first = COUNTS.scenes[0]
    assert isinstance(first, Change)
    wrong = replace(COUNTS, scenes=(replace(first, workers={"first": 4}),))
    monkeypatch.setattr("bayplan.cli.stories.STORIES", (wrong,))
    done = CliRunner().invoke(main, ["demo"])

    assert done.exit_code == 1
    assert "first 5" in done.output
    assert "should be first 4" in done.output


def test_a_spec_becomes_nodes() -> None:
    made = nodes("8xA100*2, inf1.24xlarge,cpu*1,8xA100*1")
    names = [found["metadata"]["name"] for found in made]
    first, neuron = made[0], made[2]

    assert names == ["8xa100-0", "8xa100-1", "inf1.24xlarge-0", "cpu-0", "8xa100-2"]
    assert first["status"]["allocatable"]["nvidia.com/gpu"] == "8"
    assert first["metadata"]["labels"]["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-80GB"
    assert neuron["status"]["allocatable"]["aws.amazon.com/neuron"] == "16"
    assert neuron["status"]["allocatable"]["aws.amazon.com/neuroncore"] == "64"


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("8xFOO", "there is no model FOO; there are T4"),
        ("zebra", "'zebra' is no machine"),
        ("8xA100*0", "there must be from 1 to 20000 nodes"),
        ("8xA100*30000", "there must be from 1 to 20000 nodes"),
        ("99xA100", "a machine has from 1 to 64 accelerators"),
        ("", "'' is not of the form MACHINE*COUNT"),
        ("8xA100*x", "is not of the form MACHINE*COUNT"),
    ],
)
def test_a_bad_spec_is_said(spec: str, says: str) -> None:
    with pytest.raises(BadSpec, match=says.replace("*", r"\*")):
        nodes(spec)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("bussy=0.1", "there is no fault 'bussy'; there are latency"),
        ("busy=x", "'x' is not a number"),
        ("busy=2", "it should be from 0 to 1"),
        ("busy", "'' is not a number"),
    ],
)
def test_bad_chances_are_said(text: str, says: str) -> None:
    with pytest.raises(BadChances, match=says):
        chances(text)


def test_chances_by_name() -> None:
    given = chances("busy=0.1, latency=2,lostAnswer=1")

    assert (given.busy, given.latency, given.lost_answer, given.error) == (0.1, 2.0, 1.0, 0.0)


def test_bad_input_of_up_is_one_line_and_status_2() -> None:
    done = CliRunner().invoke(main, ["up", "--nodes", "8xFOO"])

    assert done.exit_code == 2
    assert "there is no model FOO" in done.output
    assert "Traceback" not in done.output
