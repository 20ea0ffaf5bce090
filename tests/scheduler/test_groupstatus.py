"""The statuses of PodGroups: what they should say, as a table of cases."""

from typing import Any

import pytest

from bayplan.core.model.groups import SOURCES, PodGroup, Source
from bayplan.core.model.pods import Gang
from bayplan.scheduler.groupstatus import (
    Counts,
    Member,
    SeenGroup,
    conditions_of,
    count,
    phase_of,
    status_of,
)

NEW, OLD, OWN = SOURCES
NOW, THEN = "2026-01-01T00:00:00Z", "2025-01-01T00:00:00Z"
Json = dict[str, Any]


def seen(minimum: int = 3, source: Source = NEW, wrong: str = "", **status: Any) -> SeenGroup:
    gang = Gang("PodGroup red/g", minimum, grouped=True)
    return SeenGroup("red", "g", 7, "1", PodGroup(source, gang, wrong=wrong), status)


def members(*phases: str, owners: tuple[str, ...] = ()) -> list[Member]:
    """A phase each; "waits" is a pending pod without a node."""
    return [
        Member(
            uid=str(i),
            name=f"p{i}",
            created=str(i),
            phase=phase.replace("waits", "Pending"),
            scheduled=phase != "waits",
            ours=True,
            owners=owners,
        )
        for i, phase in enumerate(phases)
    ]


PHASES = [  # members; the phase of each of the two kinds that have one
    ([], "Pending", "Pending"),
    (["waits", "waits"], "Pending", "Pending"),
    (["Running", "Running"], "Pending", "Pending"),
    (["waits"] * 3, "Scheduling", "PreScheduling"),
    (["Pending", "waits", "waits"], "Scheduling", "Scheduling"),
    (["Pending"] * 3, "Scheduling", "Scheduled"),
    (["Running", "Running", "Pending"], "Scheduling", "Scheduled"),
    (["Running"] * 3, "Running", "Running"),
    (["Running", "Running", "Succeeded"], "Running", "Running"),
    (["Running", "Running", "Running", "waits"], "Running", "Running"),
    (["Succeeded"] * 3, "Finished", "Finished"),
    (["Succeeded", "Succeeded", "Succeeded", "Running"], "Finished", "Finished"),
    (["Failed", "Running", "Running"], "Failed", "Failed"),
    (["Failed", "Running", "Pending"], "Scheduling", "Scheduling"),
    (["Failed", "Succeeded", "Succeeded", "Succeeded"], "Finished", "Finished"),
]


@pytest.mark.parametrize(("phases", "new", "old"), PHASES)
def test_the_phase_follows_from_the_members(phases: list[str], new: str, old: str) -> None:
    counts = count(members(*phases))
    assert phase_of(seen(), counts) == new
    assert phase_of(seen(source=OLD), counts) == old


@pytest.mark.parametrize("before", ["Finished", "Failed"])
def test_who_is_done_stays_done_until_new_members_come(before: str) -> None:
    done = seen(phase=before)
    assert phase_of(done, Counts()) == before  # deleted, with the Job
    assert phase_of(done, count(members("Succeeded"))) == before
    assert phase_of(done, count(members("Succeeded", "waits"))) == "Pending"
    assert phase_of(done, count(members("Running", "Running", "Running"))) == "Running"


def test_counts() -> None:
    phases = ("waits", "Pending", "Running", "Running", "Succeeded", "Failed")
    assert count(members(*phases)) == Counts(6, 4, 2, 1, 1)


def test_a_whole_status() -> None:
    found = status_of(seen(), members("Running", "Running", "Pending"), "", NOW)
    assert found == {
        "phase": "Scheduling",
        "scheduled": 3,
        "running": 2,
        "succeeded": 0,
        "failed": 0,
        "scheduleStartTime": NOW,
        "conditions": [
            {
                "type": "PodGroupScheduled",
                "status": "True",
                "reason": "Scheduled",
                "message": "at least 3 members have a node",
                "lastTransitionTime": NOW,
                "observedGeneration": 7,
            }
        ],
    }


def test_the_owner_of_the_first_member_and_the_first_start_stay() -> None:
    owned = members("Running", owners=("train", "also"))
    first = status_of(seen(), owned, "", NOW)
    assert (first["occupiedBy"], first["scheduleStartTime"]) == ("red/also,red/train", NOW)
    kept = status_of(seen(occupiedBy="red/x", scheduleStartTime=THEN), owned, "", NOW)
    assert (kept["occupiedBy"], kept["scheduleStartTime"]) == ("red/x", THEN)
    assert "scheduleStartTime" not in status_of(seen(), members("waits"), "", NOW)


def condition(found: Json) -> tuple[str, str, str, str]:
    (ours,) = [each for each in found["conditions"] if each["type"] == "PodGroupScheduled"]
    assert ours["observedGeneration"] == 7
    return ours["status"], ours["reason"], ours["message"], ours["lastTransitionTime"]


def scheduled(status: str, message: str = "", **more: Any) -> Json:
    return {
        "type": "PodGroupScheduled",
        "status": status,
        "reason": "R",
        "message": message,
        "lastTransitionTime": THEN,
        "observedGeneration": 6,
        **more,
    }


def test_the_condition_says_what_the_members_wait_for() -> None:
    waits = conditions_of(seen(), 2, "0/1 nodes are available", NOW)
    assert condition(waits) == ("False", "Unschedulable", "0/1 nodes are available", NOW)
    again = conditions_of(seen(conditions=[scheduled("False", "before")]), 2, "now", NOW)
    assert condition(again) == ("False", "Unschedulable", "now", THEN)
    enough = conditions_of(seen(conditions=[scheduled("False")]), 3, "", NOW)
    assert condition(enough)[::3] == ("True", NOW)
    assert conditions_of(seen(), 0, "", NOW) == {}  # nothing is known yet
    assert len(condition(conditions_of(seen(), 0, "x" * 10_000, NOW))[2]) == 4096


def test_a_group_that_cannot_be_understood() -> None:
    wrong = seen(wrong="PodGroup red/g: spec.minMember: it is missing", minimum=1)
    found = status_of(wrong, members("Running"), "", NOW)
    assert found["phase"] == "Unknown"
    assert condition(found)[:3] == ("False", "Invalid", wrong.group.wrong)


def test_of_the_apis_own_kind_true_is_never_taken_back() -> None:
    stands = [scheduled("True")]
    assert conditions_of(seen(source=OWN, conditions=stands), 0, "why", NOW) == {
        "conditions": stands
    }
    taken_back = conditions_of(seen(conditions=stands), 0, "why", NOW)
    assert condition(taken_back)[0] == "False"


def test_conditions_of_others_stay() -> None:
    other = {"type": "DisruptionTarget", "status": "True"}
    found = conditions_of(seen(source=OWN, conditions=[other, scheduled("False")]), 3, "", NOW)
    assert found["conditions"][0] == other
    assert condition(found)[0] == "True"


@pytest.mark.parametrize("odd", [None, 1, "x", {}, [1, None, "x"], [{"type": 5}]])
def test_a_status_of_any_form_is_no_trouble(odd: Any) -> None:
    found = status_of(seen(conditions=odd, phase=odd, occupiedBy=odd), members("waits"), "w", NOW)
    assert found["phase"] == "Pending"
    assert condition(found)[:2] == ("False", "Unschedulable")


@pytest.mark.parametrize(
    ("before", "done", "after"),
    [
        ({"status": "False", "reason": "Invalid"}, False, ("False", "Unschedulable")),
        ({"status": "True", "reason": "Scheduled"}, False, ("False", "Unschedulable")),
        ({"status": "True", "reason": "Scheduled"}, True, ("True", "Scheduled")),
        ({"status": "False", "reason": "Unschedulable"}, False, ("False", "Unschedulable")),
    ],
)
def test_what_is_not_true_any_more_does_not_stay(
    before: Json, done: bool, after: tuple[str, str]
) -> None:
    stands = [before | {"type": "PodGroupScheduled", "lastTransitionTime": THEN}]
    (found,) = conditions_of(seen(3, conditions=stands), 0, "", NOW, done=done)["conditions"]
    assert (found["status"], found["reason"]) == after
